//! `loafc bench fusion`: how long the scheduler takes on large synthetic programs, and how that grows. Time is the
//! process's own processor time, so that other work on the machine counts less.

use std::fmt::Write;
use std::time::Duration;

use loafc::Compiler;
use loafc_ir::nest::{NestProgram, Step};
use loafc_ir::synthetic::{Shape, synthetic_program};

use crate::args::BenchFusion;
use crate::failure::{Outcome, fail, told};

/// The text to print.
pub fn bench(command: &BenchFusion) -> Outcome<String> {
    if command.runs == 0 || command.nodes.contains(&0) {
        return fail("--runs and --nodes must be at least 1".to_owned());
    }
    let compiler = Compiler::default();
    let mut out = String::from("program      nests   extern calls   kernels    fuse\n");
    for shape in [Shape::Transformer, Shape::Chain] {
        let mut before: Option<(usize, f64)> = None;
        for nodes in &command.nodes {
            let graph = told(loafc::parse(&synthetic_program(shape, *nodes), shape.name()))?;
            let program = told(compiler.lower(&graph))?;
            let (median, kernels) = measure(&compiler, &program, command.runs)?;
            let nests = program.steps.iter().filter(|s| matches!(s, Step::Nest(_))).count();
            let _ = write!(
                out,
                "{:11}{nests:7}{:15}{kernels:10}{:9.1} ms",
                shape.name(),
                program.steps.len() - nests,
                1e3 * median
            );
            if let Some((fewer, earlier)) = before {
                let doublings = (nests as f64 / fewer as f64).log2();
                let _ = write!(
                    out,
                    "   {:.2} times as long per doubling",
                    (median / earlier).powf(1.0 / doublings)
                );
            }
            out.push('\n');
            before = Some((nests, median));
        }
    }
    Ok(out)
}

/// Seconds of the median run, and the kernels that it gave.
fn measure(compiler: &Compiler, program: &NestProgram, runs: usize) -> Outcome<(f64, usize)> {
    let mut seconds = Vec::with_capacity(runs);
    let mut kernels = 0;
    for _ in 0..runs {
        let copy = program.clone();
        let begin = processor_time();
        let fused = told(compiler.fuse(copy))?;
        seconds.push((processor_time() - begin).as_secs_f64());
        kernels = fused.log.kernels.len();
    }
    seconds.sort_by(f64::total_cmp);
    Ok((seconds[runs / 2], kernels))
}

/// Processor time that this process has used.
fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live timespec, and the clock always exists on the systems that loafc runs on.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
