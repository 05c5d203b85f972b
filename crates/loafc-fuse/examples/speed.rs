//! Times the scheduler alone: `cargo run --release -p loafc-fuse --example speed [NODES...]`.

use std::time::Instant;

use loafc_fuse::{FuseOptions, fuse};
use loafc_ir::synthetic::{Shape, synthetic_program};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut nodes: Vec<usize> = std::env::args().skip(1).map(|a| a.parse()).collect::<Result<_, _>>()?;
    if nodes.is_empty() {
        nodes = vec![1000, 10_000, 20_000, 40_000];
    }
    for shape in [Shape::Transformer, Shape::Chain] {
        for nodes in &nodes {
            let text = synthetic_program(shape, *nodes);
            let t0 = Instant::now();
            let graph = loafc_ir::text::parse(&text, "synthetic")?;
            let parse = t0.elapsed();
            let t0 = Instant::now();
            let program = loafc_lower::lower(&graph, &loafc_lower::LowerOptions::default())?;
            let lower = t0.elapsed();
            let mut times = Vec::new();
            let mut last = None;
            for _ in 0..5 {
                let copy = program.clone();
                let t0 = Instant::now();
                last = Some(fuse(copy, &FuseOptions::default())?);
                times.push(t0.elapsed());
            }
            times.sort();
            let log = last.expect("ran").log;
            println!(
                "{} {nodes}: {} steps, parse {parse:?}, lower {lower:?}, fuse {:?} (median of 5), {} kernels, {} records",
                shape.name(),
                program.steps.len(),
                times[2],
                log.kernels.len(),
                log.records.len(),
            );
        }
    }
    Ok(())
}
