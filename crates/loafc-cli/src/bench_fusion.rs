//! `loafc bench fusion`: how long the scheduler takes on large synthetic programs, and how that grows. Time is the
//! process's own processor time, so that other work on the machine counts less; sizes take turns, and growth is the
//! median over the turns, so that a machine that becomes slower or faster meanwhile counts little as well.

use std::fmt::Write;
use std::time::Duration;

use loafc::Compiler;
use loafc_ir::nest::{NestProgram, Step};
use loafc_ir::synthetic::{Shape, synthetic_program};

use crate::args::BenchFusion;
use crate::failure::{Outcome, fail, told};

/// Runs of one size in a turn. The first ones bring the caches to what they are for a program of that size.
const RUNS_A_TURN: usize = 3;

/// The text to print.
pub fn bench(command: &BenchFusion) -> Outcome<String> {
    if command.runs == 0 || command.nodes.contains(&0) {
        return fail("--runs and --nodes must be at least 1".to_owned());
    }
    let compiler = Compiler::default();
    let mut out = String::from("program      nests   extern calls   kernels    fuse\n");
    for shape in [Shape::Transformer, Shape::Chain] {
        let mut programs = Vec::with_capacity(command.nodes.len());
        for nodes in &command.nodes {
            let graph = told(loafc::parse(&synthetic_program(shape, *nodes), shape.name()))?;
            programs.push(Timed { program: told(compiler.lower(&graph))?, kernels: 0, seconds: Vec::new() });
        }
        for _ in 0..command.runs {
            for program in &mut programs {
                program.take_turn(&compiler)?;
            }
        }
        let mut before: Option<&Timed> = None;
        for program in &programs {
            let nests = program.nests();
            let _ = write!(
                out,
                "{:11}{nests:7}{:15}{:10}{:9.1} ms",
                shape.name(),
                program.program.steps.len() - nests,
                program.kernels,
                1e3 * median(program.seconds.clone()),
            );
            if let Some(smaller) = before {
                let _ = write!(out, "   {:.2} times as long per doubling", program.growth_from(smaller));
            }
            out.push('\n');
            before = Some(program);
        }
    }
    Ok(out)
}

/// A program and how long the scheduler took for it.
struct Timed {
    program: NestProgram,
    kernels: usize,
    /// Seconds of the median run of each turn.
    seconds: Vec<f64>,
}

impl Timed {
    fn nests(&self) -> usize {
        self.program.steps.iter().filter(|s| matches!(s, Step::Nest(_))).count()
    }

    fn take_turn(&mut self, compiler: &Compiler) -> Outcome<()> {
        let mut seconds = Vec::with_capacity(RUNS_A_TURN);
        for _ in 0..RUNS_A_TURN {
            let copy = self.program.clone();
            let begin = processor_time();
            let fused = told(compiler.fuse(copy))?;
            seconds.push((processor_time() - begin).as_secs_f64());
            self.kernels = fused.log.kernels.len();
        }
        self.seconds.push(median(seconds));
        Ok(())
    }

    /// How many times as long as for a smaller program, for each time that this one is twice as large: the median
    /// over the turns.
    fn growth_from(&self, smaller: &Timed) -> f64 {
        let doublings = (self.nests() as f64 / smaller.nests() as f64).log2();
        let turns = self.seconds.iter().zip(&smaller.seconds);
        median(turns.map(|(mine, theirs)| (mine / theirs).powf(1.0 / doublings)).collect())
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Processor time that this process has used.
fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live timespec, and the clock always exists on the systems that loafc runs on.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
