//! Prints the error of every inline function in units in the last place, and its speed in nanoseconds for 16 f32 (8
//! f64) lanes: `ulp_table [STRIDE] [POINTS]`. f32 functions are compared with f64 ones over every STRIDE-th bit
//! pattern, f64 functions with the points in a file that `tests/math/points.py` writes.

#[path = "../tests/math/support.rs"]
#[allow(dead_code)]
mod support;

use std::time::Instant;

use support::{Function, Kernel, Lane};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let stride: usize = arguments.next().and_then(|s| s.parse().ok()).unwrap_or(1009);
    let text = match arguments.next() {
        Some(path) => std::fs::read_to_string(path).expect("a file of points"),
        None => include_str!("../tests/math/points.txt").to_string(),
    };
    let only = arguments.next();
    let points = support::parse_points(&text);
    println!("| function | f32 ulp | f64 ulp | f32 ns/16 | f64 ns/8 | worst f32 | worst f64 |");
    println!("|---|---|---|---|---|---|---|");
    for function in support::measured_functions() {
        if only.as_ref().is_some_and(|o| !function.name().to_lowercase().contains(&o.to_lowercase())) {
            continue;
        }
        let single = match function {
            Function::Unary(op) => support::worst_f32(op, stride, 16),
            Function::Binary(op) => support::worst_binary_f32(op, (1usize << 32) / stride, 16),
        };
        let double = support::worst_f64(function, &points, 8);
        println!(
            "| {} | {:.2} | {:.2} | {:.1} | {:.1} | {:?} | {:?} |",
            function.name(),
            single.ulps,
            double.ulps,
            nanoseconds_f32(function),
            nanoseconds_f64(function),
            single.at,
            double.at,
        );
    }
}

const LENGTH: usize = 2048;

fn nanoseconds_f32(function: Function) -> f64 {
    let kernel = Kernel::compile(function, Lane::F32, 16);
    let a: Vec<f32> = (0..LENGTH).map(|k| 0.001 + k as f32 / 2100.0).collect();
    let b = a.iter().map(|x| 1.5 - x).collect::<Vec<_>>();
    let mut out = vec![0.0; LENGTH];
    time(|| kernel.apply_f32(&a, &b, &mut out)) / (LENGTH / 16) as f64
}

fn nanoseconds_f64(function: Function) -> f64 {
    let kernel = Kernel::compile(function, Lane::F64, 8);
    let a: Vec<f64> = (0..LENGTH).map(|k| 0.001 + k as f64 / 2100.0).collect();
    let b = a.iter().map(|x| 1.5 - x).collect::<Vec<_>>();
    let mut out = vec![0.0; LENGTH];
    time(|| kernel.apply_f64(&a, &b, &mut out)) / (LENGTH / 8) as f64
}

/// The shortest of several runs, in nanoseconds.
fn time(mut run: impl FnMut()) -> f64 {
    (0..200)
        .map(|_| {
            let start = Instant::now();
            run();
            start.elapsed().as_secs_f64() * 1e9
        })
        .fold(f64::INFINITY, f64::min)
}
