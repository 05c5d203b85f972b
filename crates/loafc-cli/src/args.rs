//! What can be given on the command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use loafc::Level;

/// A fusing tensor compiler: fuse first, reorder loops after.
#[derive(Parser, Debug)]
#[command(name = "loafc", version)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Show the kernels of a program and why loops were or were not fused.
    Explain(Explain),
    /// Run a program on given or random inputs.
    Run(Run),
    /// Measure how long a program, or a part of the compiler, takes.
    Bench(Bench),
}

/// A program and how it is compiled.
#[derive(Args, Debug)]
pub struct Source {
    /// The program, a `.loaf` file; `-` reads standard input.
    pub file: PathBuf,
    /// Set an option of the compiler, NAME=VALUE.
    #[arg(short = 'o', long = "option", value_name = "NAME=VALUE")]
    pub options: Vec<String>,
    /// Leave out the final round, which reorders loops.
    #[arg(long)]
    pub no_final_round: bool,
    /// Stop after this many fusions, to bisect a wrong result.
    #[arg(long, value_name = "N")]
    pub stop_after_fusion: Option<usize>,
}

/// What a program is run on.
#[derive(Args, Debug)]
pub struct Inputs {
    /// Take an input from a `.npy` file; inputs that are not given are random.
    #[arg(short, long = "input", value_name = "NAME=FILE.npy")]
    pub inputs: Vec<String>,
    /// Give a size symbol its value; otherwise its hint counts.
    #[arg(short, long = "size", value_name = "SYMBOL=N")]
    pub sizes: Vec<String>,
    /// Seed of the random inputs.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
}

/// `loafc explain`
#[derive(Args, Debug)]
pub struct Explain {
    /// The program.
    #[command(flatten)]
    pub source: Source,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Write a page to this file.
    #[arg(long, value_name = "OUT")]
    pub html: Option<PathBuf>,
}

/// `loafc run`
#[derive(Args, Debug)]
pub struct Run {
    /// The program.
    #[command(flatten)]
    pub source: Source,
    /// Its inputs.
    #[command(flatten)]
    pub inputs: Inputs,
    /// Write results and changed inputs to this folder, as `.npy` files.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Compare with the interpreter of tensor programs; fail if results differ.
    #[arg(long)]
    pub check: bool,
    /// Which form of the program runs.
    #[arg(long, value_enum, default_value_t = LevelName::Native)]
    pub level: LevelName,
}

/// `loafc bench`
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Bench {
    /// A part of the compiler instead of a program.
    #[command(subcommand)]
    pub part: Option<BenchPart>,
    /// The program to measure.
    #[command(flatten)]
    pub source: Option<Source>,
    /// Its inputs.
    #[command(flatten)]
    pub inputs: Inputs,
    /// How long to measure.
    #[arg(long, default_value_t = 1.0)]
    pub seconds: f64,
}

/// A part of the compiler that can be measured by itself.
#[derive(Subcommand, Debug)]
pub enum BenchPart {
    /// Measure the scheduler on large synthetic programs.
    Fusion(BenchFusion),
}

/// `loafc bench fusion`
#[derive(Args, Debug)]
pub struct BenchFusion {
    /// Loop nests of the programs.
    #[arg(long, value_delimiter = ',', default_values_t = [1000, 10_000, 20_000, 40_000])]
    pub nodes: Vec<usize>,
    /// Turns of which the median counts.
    #[arg(long, default_value_t = 5)]
    pub runs: usize,
}

/// A form that a program takes on its way.
#[derive(ValueEnum, Copy, Clone, Debug, PartialEq, Eq)]
pub enum LevelName {
    /// The tensor program, interpreted.
    Graph,
    /// Loop nests, interpreted.
    Nest,
    /// Fused groups, interpreted.
    Group,
    /// Loop trees, interpreted.
    LoopTree,
    /// Machine code.
    Native,
}

impl From<LevelName> for Level {
    fn from(name: LevelName) -> Level {
        match name {
            LevelName::Graph => Level::Graph,
            LevelName::Nest => Level::Nest,
            LevelName::Group => Level::Group,
            LevelName::LoopTree => Level::LoopTree,
            LevelName::Native => Level::Native,
        }
    }
}
