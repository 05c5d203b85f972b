//! The scheduler's guarantees, over random programs: values equal the interpreter's on the tensor program at every
//! level up to fused groups, the final round only adds, and equal input gives an equal schedule.
//! [`check_random_programs`] says how to try more.

use loafc_fuse::interpret::run_schedule;
use loafc_fuse::log::{DecisionLog, Round};
use loafc_fuse::options::Limits;
use loafc_fuse::verify::verify_schedule;
use loafc_fuse::{FuseOptions, Fused, fuse};
use loafc_ir::interp::nest::{ProgramInputs, reference_extern, run_program};
use loafc_ir::nest::NestProgram;
use loafc_ir::ops::eval_graph;
use loafc_ir::random_program::{Random, check_random_programs, random_inputs, same_values};
use loafc_lower::{LowerOptions, lower};

fn fused(program: &NestProgram, options: &FuseOptions) -> Fused {
    let fused = fuse(program.clone(), options).expect("a valid program");
    verify_schedule(&fused.schedule).expect("a valid schedule");
    fused
}

fn regular_fusions(log: &DecisionLog) -> Vec<(u32, u32)> {
    log.fusions().take_while(|r| r.round == Round::Regular).map(|r| (r.first, r.second)).collect()
}

/// One program; what is wrong with it, if anything.
fn check(text: &str, random: &mut Random) -> Result<(), String> {
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
    check_random_programs(2000, |_, text, random| check(text, random));
}
