//! `loafc bench FILE`: how long a program takes, and how much of the memory's speed it reaches.

use std::time::{Duration, Instant};

use crate::args::{Inputs, Source};
use crate::failure::{Outcome, fail, told};
use crate::inputs;
use crate::load::{load, warn};

/// Runs before measuring: caches and the pool of memory fill.
const WARM_UP: usize = 3;
/// Runs that are measured at least, however long they take.
const FEWEST_RUNS: usize = 5;

/// The text to print.
pub fn bench(source: &Source, given: &Inputs, seconds: f64) -> Outcome<String> {
    if !(seconds > 0.0 && seconds <= 3600.0) {
        return fail(format!("--seconds {seconds}: expected more than 0, at most 3600"));
    }
    let (graph, compiler) = load(source)?;
    let mut inputs = inputs::inputs(&graph, given)?;
    let program = told(compiler.compile(graph))?;
    warn(program.report().warnings.clone());
    for _ in 0..WARM_UP {
        told(program.run_in_place(&mut inputs))?;
    }
    let limit = Duration::from_secs_f64(seconds);
    let begin = Instant::now();
    let mut times = Vec::new();
    while times.len() < FEWEST_RUNS || begin.elapsed() < limit {
        let start = Instant::now();
        told(program.run_in_place(&mut inputs))?;
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    let (median, fastest) = (times[times.len() / 2], times[0]);
    let report = program.report();
    let gigabytes = report.bytes_accessed as f64 / 1e9;
    Ok(format!(
        "{}: {}, compiled in {:.1} ms\n\
         {} runs: median {}, fastest {}\n\
         {:.3} GB accessed a run (sizes by their hints), {:.1} GB/s\n",
        report.program,
        report.counts(),
        1e3 * report.compile_seconds.total(),
        times.len(),
        time_text(median),
        time_text(fastest),
        gigabytes,
        gigabytes / median
    ))
}

fn time_text(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.1} µs", 1e6 * s),
        s if s < 1.0 => format!("{:.2} ms", 1e3 * s),
        s => format!("{s:.2} s"),
    }
}
