//! The scheduler's guarantees, over random programs: values equal the interpreter's on the tensor program at every
//! level up to fused groups, the final round only adds, and equal input gives an equal schedule.
//!
//! `LOAFC_RANDOM_PROGRAMS` sets how many programs are tried, `LOAFC_RANDOM_SEED` where to start.

use loafc_fuse::interpret::run_schedule;
use loafc_fuse::log::{DecisionLog, Round};
use loafc_fuse::options::Limits;
use loafc_fuse::verify::verify_schedule;
use loafc_fuse::{FuseOptions, Fused, fuse};
use loafc_ir::interp::nest::{ProgramInputs, reference_extern, run_program};
use loafc_ir::nest::NestProgram;
use loafc_ir::ops::eval_graph;
use loafc_ir::random_program::{Random, random_inputs, random_program, same_values};
use loafc_lower::{LowerOptions, lower};

fn number(variable: &str, default: u64) -> u64 {
    match std::env::var(variable) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no number")),
        Err(_) => default,
    }
}

fn fused(program: &NestProgram, options: &FuseOptions) -> Fused {
    let fused = fuse(program.clone(), options).expect("a valid program");
    verify_schedule(&fused.schedule).expect("a valid schedule");
    fused
}

fn regular_fusions(log: &DecisionLog) -> Vec<(u32, u32)> {
    log.fusions().take_while(|r| r.round == Round::Regular).map(|r| (r.first, r.second)).collect()
}

fn program_of(seed: u64) -> (String, Random) {
    let mut random = Random(seed ^ 0x5eed);
    (random_program(seed, 3 + random.below(12)), random)
}

/// One program; what is wrong with it, if anything.
fn check(seed: u64) -> Result<(), String> {
    let (text, mut random) = program_of(seed);
    check_text(&text, &mut random).map_err(|e| format!("seed {seed}: {e}\n{text}"))
}

fn check_text(text: &str, random: &mut Random) -> Result<(), String> {
    let graph = loafc_ir::text::parse(text, "random").map_err(|e| format!("parse: {e}"))?;
    let inputs = random_inputs(&graph, random);
    let oracle = eval_graph(&graph, &inputs).map_err(|e| format!("interpreting the graph: {e}"))?;
    let program = lower(&graph, &LowerOptions::default()).map_err(|e| format!("lower: {e}"))?;
    let given = ProgramInputs::new(&graph, &inputs).map_err(|e| e.to_string())?;
    let nests = run_program(&program, &given, &mut reference_extern).map_err(|e| format!("nests: {e}"))?;
    same_values(&oracle, &nests).map_err(|e| format!("graph and nests differ: {e}"))?;

    // Small programs meet what only large ones would with the limits that users have.
    let limits = if random.one_in(2) { Limits::tiny() } else { Limits::default() };
    let options = FuseOptions { limits, ..FuseOptions::default() };
    let off = fused(&program, &FuseOptions { loop_ordering_after_fusion: false, ..options.clone() });
    let on = fused(&program, &options);
    let again = fused(&program, &options);
    if on.log.to_json() != again.log.to_json() {
        return Err("two runs of the scheduler decided differently".to_owned());
    }
    if on.log.kernels.len() > off.log.kernels.len() || on.log.bytes > off.log.bytes {
        return Err(format!(
            "the final round costs: {} -> {} kernels, {} -> {} bytes",
            off.log.kernels.len(),
            on.log.kernels.len(),
            off.log.bytes,
            on.log.bytes
        ));
    }
    if regular_fusions(&off.log) != regular_fusions(&on.log) {
        return Err("the regular rounds depend on the final round".to_owned());
    }
    if on.log.records.iter().any(|r| !r.reason.is_fused() && r.merged.is_some()) {
        return Err("a refused pair was merged".to_owned());
    }
    let chaos = FuseOptions { fusion_chaos_seed: Some(random.bits()), ..options };
    for (name, schedule) in [("off", off), ("on", on), ("chaos", fused(&program, &chaos))] {
        let groups = run_schedule(&schedule.schedule, &given, &mut reference_extern)
            .map_err(|e| format!("groups ({name}): {e}"))?;
        same_values(&oracle, &groups).map_err(|e| format!("graph and groups ({name}) differ: {e}"))?;
    }
    Ok(())
}

#[test]
fn guarantees_hold_over_random_programs() {
    let (start, count) = (number("LOAFC_RANDOM_SEED", 0), number("LOAFC_RANDOM_PROGRAMS", 2000));
    let wrong: Vec<String> = (start..start + count)
        .filter_map(|seed| match std::panic::catch_unwind(|| check(seed)) {
            Ok(result) => result.err(),
            Err(_) => Some(format!("seed {seed}: panicked\n{}", program_of(seed).0)),
        })
        .take(number("LOAFC_RANDOM_FAILURES", 5) as usize)
        .collect();
    assert!(wrong.is_empty(), "{} programs are wrong, among them\n{}", wrong.len(), wrong.join("\n"));
}
