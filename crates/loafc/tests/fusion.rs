//! Runs every program in `tests/fusion`: the schedule must be the one that the file's `//=` lines state, and values
//! must be the same at every level of the compiler. `UPDATE_EXPECT=1 cargo test -p loafc --test fusion` rewrites
//! the lines; whoever changes a schedule then sees the difference in the file.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use loafc::{Compiler, Level, Options, Tensor, Value};
use loafc_fuse::log::DecisionLog;
use loafc_ir::graph::{Graph, Input};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fusion")
}

/// `//= option name=value` lines set options for the whole file.
fn options(text: &str) -> Options {
    let mut options = Options::default();
    for line in text.lines() {
        if let Some(setting) = line.strip_prefix("//= option ") {
            let (name, value) = setting.split_once('=').expect("name=value");
            options.set(name.trim(), value.trim()).expect("a known option");
        }
    }
    options
}

fn decide(graph: &Graph, mut options: Options, final_round: bool) -> DecisionLog {
    options.loop_ordering_after_fusion = final_round;
    Compiler::new(options).explain(graph).expect("explains").decisions
}

/// What the scheduler decides, as the file states it.
fn expectation(off: &DecisionLog, on: &DecisionLog) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "//= kernels {} -> {}", off.kernels.len(), on.kernels.len());
    let _ = writeln!(out, "//= reorderings {}", on.loop_reorderings());
    let _ = writeln!(out, "//= bytes {} -> {}", off.bytes, on.bytes);
    for kernel in &on.kernels {
        let _ = writeln!(
            out,
            "//= kernel {} over {}, {} stages, {} nests, {} bytes",
            kernel.name,
            kernel.outer,
            kernel.stages,
            kernel.steps.len(),
            kernel.bytes
        );
    }
    out
}

fn split_expectation(text: &str) -> (String, String) {
    let (stated, program): (Vec<&str>, Vec<&str>) =
        text.lines().partition(|l| l.starts_with("//= ") && !l.starts_with("//= option "));
    let join = |lines: &[&str]| lines.iter().map(|l| format!("{l}\n")).collect::<String>();
    (join(&program), join(&stated))
}

fn random_inputs(graph: &Graph) -> Vec<Value> {
    graph
        .inputs
        .iter()
        .enumerate()
        .map(|(k, input)| {
            let Input::Tensor(id) = input else { panic!("fusion programs have tensors only") };
            let ty = graph.tensor_type(*id).expect("a tensor");
            let constant = |s: &loafc_ir::size::Size| s.as_const().expect("a constant size");
            let shape: Vec<usize> = ty.shape.iter().map(|s| constant(s) as usize).collect();
            let strides: Vec<i64> = ty.strides.iter().map(constant).collect();
            let tensor = Tensor::random(ty.dtype, &shape, k as u64).expect("a random tensor");
            Value::Tensor(tensor.with_strides(&strides).expect("strides that fit"))
        })
        .collect()
}

/// The largest difference relative to the largest finite element; infinite where only one of two is a number.
fn worst_difference(a: &Tensor, b: &Tensor) -> f64 {
    let (a, b) = (a.to_host().expect("host"), b.to_host().expect("host"));
    assert_eq!((a.dtype, &a.shape), (b.dtype, &b.shape));
    let finite = a.data.iter().map(|v| v.to_f64().abs()).filter(|v| v.is_finite());
    let scale = finite.fold(1e-3, f64::max);
    let mut worst: f64 = 0.0;
    for (x, y) in a.data.iter().zip(&b.data) {
        let (x, y) = (x.to_f64(), y.to_f64());
        if x == y || (x.is_nan() && y.is_nan()) {
            continue;
        }
        let difference = (x - y).abs() / scale;
        worst = if difference.is_nan() { f64::INFINITY } else { worst.max(difference) };
    }
    worst
}

fn check_values(name: &str, graph: &Graph, options: &Options, final_round: bool) {
    let mut options = options.clone();
    options.loop_ordering_after_fusion = final_round;
    let compiler = Compiler::new(options);
    let inputs = random_inputs(graph);
    let oracle = compiler.run_at(Level::Graph, graph, &inputs).expect("interprets");
    for level in &Level::ALL[1..] {
        let run = compiler
            .run_at(*level, graph, &inputs)
            .unwrap_or_else(|e| panic!("{name}: {}: {e}", level.name()));
        let tensors = |values: &[Value]| -> Vec<Tensor> {
            values
                .iter()
                .filter_map(|v| match v {
                    Value::Tensor(t) => Some(t.clone()),
                    _ => None,
                })
                .collect()
        };
        let (want, got) = (tensors(&oracle.outputs), tensors(&run.outputs));
        assert_eq!(want.len(), got.len(), "{name}: {}", level.name());
        for (k, (w, g)) in want.iter().zip(&got).enumerate() {
            let worst = worst_difference(w, g);
            assert!(worst < 1e-5, "{name}: output {k} at level {} differs by {worst:e}", level.name());
        }
        assert_eq!(oracle.mutated_inputs.len(), run.mutated_inputs.len(), "{name}: {}", level.name());
        for ((k, w), (_, g)) in oracle.mutated_inputs.iter().zip(&run.mutated_inputs) {
            let worst = worst_difference(w, g);
            assert!(worst < 1e-5, "{name}: input {k} after {} differs by {worst:e}", level.name());
        }
    }
}

#[test]
fn every_program_gets_the_schedule_and_the_values_that_its_file_states() {
    let update = std::env::var_os("UPDATE_EXPECT").is_some();
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder())
        .expect("tests/fusion")
        .map(|entry| entry.expect("an entry").path())
        .filter(|p| p.extension().is_some_and(|e| e == "loaf"))
        .collect();
    files.sort();
    assert!(files.len() > 20, "the programs are missing");
    let mut wrong = String::new();
    for path in files {
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).expect("readable");
        let (program, stated) = split_expectation(&text);
        let graph = loafc_ir::text::parse(&program, &name).unwrap_or_else(|e| panic!("{name}: {e}"));
        let options = options(&text);
        let actual =
            expectation(&decide(&graph, options.clone(), false), &decide(&graph, options.clone(), true));
        if actual != stated {
            if update {
                std::fs::write(&path, format!("{program}{actual}")).expect("writable");
            } else {
                let _ = writeln!(wrong, "{name}: the file states\n{stated}but the schedule is\n{actual}");
            }
        }
        for final_round in [false, true] {
            check_values(&name, &graph, &options, final_round);
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
