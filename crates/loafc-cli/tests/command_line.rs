//! The command line from outside: what it prints, and what it says to bad input.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

const PROGRAM: &str = "
size n = 6
graph @scaled(%x: f32[n, 4], %w: f32[4]) {
  %s = aten.sum.dim_IntList(%x, [-1], true)
  %y = aten.mul.Tensor(%x, %w)
  %z = aten.add.Tensor(%y, %s)
  return %z, n
}
";

fn folder(test: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(test);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn loafc(arguments: &[&str], stdin: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_loafc"))
        .args(arguments)
        .env("NO_COLOR", "1")
        .env_remove("RUST_BACKTRACE")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that fails early doesn't read its input.
    let _ = child.stdin.take().unwrap().write_all(stdin);
    child.wait_with_output().unwrap()
}

#[test]
fn errors_that_nobody_reads_change_nothing() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let status = Command::new(env!("CARGO_BIN_EXE_loafc"))
        .args(["explain", "no_such_file.loaf"])
        .stderr(writer)
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(1));
}

fn succeeds(arguments: &[&str], stdin: &str) -> String {
    let output = loafc(arguments, stdin.as_bytes());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// The message of a command that must fail as a user's mistake.
fn fails(arguments: &[&str], stdin: &[u8]) -> String {
    let output = loafc(arguments, stdin);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {errors}");
    assert!(!errors.contains("panicked"), "{errors}");
    // Long messages are wrapped for the terminal.
    errors.split_whitespace().filter(|w| *w != "│").collect::<Vec<_>>().join(" ")
}

#[test]
fn every_level_gives_the_interpreters_results() {
    for level in ["graph", "nest", "group", "loop-tree", "native"] {
        let text = succeeds(&["run", "-", "--level", level, "--check"], PROGRAM);
        assert!(text.contains("out0: f32[6, 4] = [["), "{text}");
        assert!(text.contains("out1: size = 6"), "{text}");
        assert!(text.contains("check: results agree"), "{text}");
    }
}

#[test]
fn inputs_come_from_files_and_results_go_to_files() {
    let folder = folder("files");
    let out = folder.join("out");
    let out = out.to_str().unwrap();
    succeeds(&["run", "-", "--size", "n=3", "--out", out], PROGRAM);
    let input = format!("x={out}/out0.npy");
    let text = succeeds(&["run", "-", "--input", &input, "--check"], PROGRAM);
    assert!(text.contains("out0: f32[3, 4]"), "{text}");
    assert!(text.contains("out1: size = 3"), "{text}");
}

#[test]
fn explain_prints_text_json_and_a_page() {
    let text = succeeds(&["explain", "-"], PROGRAM);
    assert!(text.starts_with("scaled: 1 kernel, 0 extern calls"), "{text}");
    let json = succeeds(&["explain", "-", "--json"], PROGRAM);
    assert!(json.contains("\"loop_reorderings\": 0"), "{json}");
    let page = folder("page").join("page.html");
    succeeds(&["explain", "-", "--html", page.to_str().unwrap()], PROGRAM);
    assert!(std::fs::read_to_string(page).unwrap().contains("<h1>scaled</h1>"));
    let text = succeeds(&["explain", "-", "--stop-after-fusion", "0", "--no-final-round"], PROGRAM);
    assert!(text.starts_with("scaled: "), "{text}");
}

#[test]
fn bench_measures() {
    let text = succeeds(&["bench", "-", "--seconds", "0.01"], PROGRAM);
    assert!(text.contains("runs: median"), "{text}");
    assert!(fails(&["bench", "-", "--seconds", "0"], PROGRAM.as_bytes()).contains("expected more than 0"));
}

#[test]
fn a_broken_program_is_shown_with_its_place() {
    let broken = PROGRAM.replace("%y, %s)", "%y, %nosuch)");
    let output = loafc(&["explain", "-"], broken.as_bytes());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(errors.contains("<stdin>:6:"), "{errors}");
    assert!(errors.contains("nosuch"), "{errors}");
    assert!(errors.contains("%z = aten.add.Tensor"), "the source line is missing: {errors}");
}

#[test]
fn calls_that_only_a_library_computes_are_named_at_every_level() {
    let program = "graph @noisy(%x: f32[4]) {
  %n: f32[4] = aten.randn_like.default(%x)
  %y = aten.add.Tensor(%x, %n)
  return %y
}";
    for level in ["graph", "nest", "group", "loop-tree", "native"] {
        let message = fails(&["run", "-", "--level", level], program.as_bytes());
        assert!(
            message.contains("`aten.randn_like.default` is computed by the library"),
            "{level}: {message}"
        );
        assert!(message.contains("make the results of the call inputs"), "{level}: {message}");
    }
}

#[test]
fn unreadable_files_are_named() {
    assert!(fails(&["explain", "no/such/file.loaf"], b"").contains("no/such/file.loaf: No such file"));
    let folder = folder("a_folder");
    assert!(fails(&["run", folder.to_str().unwrap()], b"").contains("directory"));
    let message = fails(&["explain", "-"], b"graph \xff\xfe");
    assert!(message.contains("<stdin>: not a text file: byte 6 is not UTF-8"), "{message}");
    assert!(fails(&["explain", "-"], b"").contains("<stdin>:1:"));
}

#[test]
fn wrong_options_inputs_and_sizes_are_named() {
    let program = PROGRAM.as_bytes();
    let message = fails(&["explain", "-", "-o", "max_fuson_size=3"], program);
    assert!(
        message.contains("unknown option `max_fuson_size`, did you mean `max_fusion_size`?"),
        "{message}"
    );
    let message = fails(&["explain", "-", "-o", "threads=many"], program);
    assert!(message.contains("option `threads`: expected a whole number"), "{message}");
    assert!(fails(&["explain", "-", "-o", "threads"], program).contains("expected NAME=VALUE"));
    assert!(fails(&["run", "-", "--size", "m=3"], program).contains("no size symbol `m`"));
    assert!(fails(&["run", "-", "--size", "n=-3"], program).contains("`-3` is not a whole number"));
    assert!(fails(&["run", "-", "--input", "q=x.npy"], program).contains("no tensor input `q`"));
    assert!(fails(&["run", "-", "--input", "x=nosuch.npy"], program).contains("nosuch.npy: No such file"));
    assert!(fails(&["run", "-", "-s", "n=3", "-s", "n=4"], program).contains("`n` is given twice"));
    let out = folder("given_twice");
    succeeds(&["run", "-", "--size", "n=3", "--out", out.to_str().unwrap()], PROGRAM);
    let input = format!("x={}", out.join("out0.npy").display());
    assert!(fails(&["run", "-", "-i", &input, "-i", &input], program).contains("`x` is given twice"));
    let text = folder("not_npy").join("x.npy");
    std::fs::write(&text, "this is no array at all").unwrap();
    let input = format!("x={}", text.display());
    assert!(fails(&["run", "-", "--input", &input], program).contains("not a .npy file"));
}

#[test]
fn an_array_of_the_wrong_type_or_shape_is_refused() {
    let folder = folder("wrong_arrays");
    let out = folder.to_str().unwrap();
    let make = "graph @g(%a: i64[5, 4], %b: f32[5], %c: f32[5, 3]) { return %a, %b, %c }";
    succeeds(&["run", "-", "--out", out], make);
    let with = |k: usize| fails(&["run", "-", "--input", &format!("x={out}/out{k}.npy")], PROGRAM.as_bytes());
    assert!(with(0).contains("expected elements of type f32, the tensor has i64"));
    assert!(with(1).contains("the array has shape [5]"));
    assert!(with(2).contains("[5, 3]"));
}

#[test]
fn wrong_usage_has_status_2() {
    for arguments in [&["frobnicate"][..], &[], &["run"], &["run", "-", "--level", "deep"]] {
        assert_eq!(loafc(arguments, b"").status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn a_changed_input_is_shown_and_checked() {
    let program = "graph @inc(%x: f32[4]) {
      %y = aten.add.Scalar(%x, 1)
      %z = aten.copy_.default(%x, %y)
      return none
    }";
    let text = succeeds(&["run", "-", "--check"], program);
    assert!(text.contains("out0: none"), "{text}");
    assert!(text.contains("x: f32[4] = ["), "{text}");
}

/// The report as JSON, without the seconds that phases took.
fn decisions_in_a_process(file: &str, threads: usize) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_loafc"))
        .args(["explain", file, "--json"])
        .env("RAYON_NUM_THREADS", threads.to_string())
        .env("LOAFC_COMPILE_THREADS", threads.to_string())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let (decided, _) = text.split_once("\"compile_seconds\"").expect("the seconds come last");
    decided.to_owned()
}

#[test]
fn twenty_processes_with_different_thread_counts_decide_the_same() {
    let program =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fusion/total_and_both_layouts.loaf");
    let file = program.to_str().unwrap();
    let first = decisions_in_a_process(file, 1);
    assert!(first.contains("\"fused\""));
    for process in 1..20 {
        assert_eq!(decisions_in_a_process(file, 1 + process % 4), first, "process {process}");
    }
}

#[test]
fn the_scheduler_can_be_measured_on_synthetic_programs() {
    let text = succeeds(&["bench", "fusion", "--nodes", "60,120", "--runs", "1"], "");
    assert_eq!(text.matches("transformer").count(), 2, "{text}");
    assert!(text.contains("per doubling"), "{text}");
    let output = loafc(&["bench", "fusion", "--nodes", "0"], b"");
    assert_eq!(output.status.code(), Some(1));
}
