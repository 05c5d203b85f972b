//! Prints the error of every inline function in units in the last place, and its speed in nanoseconds for 16 f32 (8
//! f64) lanes. f32 functions are compared with f64 ones over a sample of all bit patterns, or with `--all` over all of
//! them; f64 functions with the points in a file that `tests/math/points.py` writes. Ends with status 1 where an error
//! is larger than two units.

#[path = "../tests/math/support.rs"]
#[allow(dead_code)]
mod support;

use std::process::ExitCode;
use std::time::Instant;

use loafc_ir::nest::UnaryOp;
use support::{Function, Kernel, Lane, Worst};

const USAGE: &str = "usage: ulp_table [--all] [--stride N] [--points FILE] [--only NAME]";

/// No error may be larger.
const LIMIT: f64 = 2.0;

/// Random pairs that functions of two operands are measured at with `--all`.
const ALL_PAIRS: usize = 1 << 27;

/// Inputs next to poles and zeros that the gamma function's kin are measured at.
const NEAR_POLES: usize = 1 << 22;

/// What is measured.
struct Settings {
    all: bool,
    /// Distance between the bit patterns of a sample.
    stride: usize,
    points: String,
    only: String,
}

fn settings() -> Result<Settings, String> {
    let points = include_str!("../tests/math/points.txt").to_owned();
    let mut settings = Settings { all: false, stride: 1009, points, only: String::new() };
    let mut arguments = std::env::args().skip(1);
    while let Some(flag) = arguments.next() {
        if flag == "--all" {
            settings.all = true;
            continue;
        }
        let value = arguments.next().ok_or_else(|| format!("{flag} needs a value; {USAGE}"))?;
        match flag.as_str() {
            "--stride" => {
                let stride = value.parse().ok().filter(|n| *n > 0);
                settings.stride = stride.ok_or_else(|| format!("--stride {value}: expected 1 or more"))?;
            }
            "--points" => {
                settings.points = std::fs::read_to_string(&value).map_err(|e| format!("{value}: {e}"))?;
            }
            "--only" => settings.only = value.to_lowercase(),
            _ => return Err(format!("unknown argument {flag}; {USAGE}")),
        }
    }
    Ok(settings)
}

fn main() -> ExitCode {
    let settings = match settings() {
        Ok(settings) => settings,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::FAILURE;
        }
    };
    let points = support::parse_points(&settings.points);
    println!("| function | f32 ulp | f64 ulp | f32 ns/16 | f64 ns/8 | worst f32 | worst f64 |");
    println!("|---|---|---|---|---|---|---|");
    let mut fine = true;
    for function in support::measured_functions() {
        if !function.name().to_lowercase().contains(&settings.only) {
            continue;
        }
        let single = worst_f32(function, &settings);
        let double = support::worst_f64(function, &points, 8);
        fine &= single.ulps <= LIMIT && double.ulps <= LIMIT;
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
    if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn worst_f32(function: Function, settings: &Settings) -> Worst {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let mut worst = match function {
        Function::Unary(op) if settings.all => support::worst_f32_everywhere(op, threads),
        Function::Unary(op) => support::worst_f32(op, settings.stride, 16),
        Function::Binary(op) => {
            let pairs = if settings.all { ALL_PAIRS } else { (1usize << 32) / settings.stride };
            support::worst_binary_f32(op, pairs, 16)
        }
    };
    if let Function::Unary(op @ (UnaryOp::Lgamma | UnaryOp::Digamma)) = function {
        worst.merge(support::worst_f32_near_poles(op, NEAR_POLES));
    }
    worst
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
