//! The command line: `loafc explain`, `run` and `bench` on `.loaf` files. It reads, calls the library and prints;
//! it decides nothing about a program.

mod args;
mod bench_fusion;
mod bench_program;
mod check;
mod explain;
mod failure;
mod inputs;
mod load;
mod run;
mod show;

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use clap::Parser;

use crate::args::{Arguments, BenchPart, Command};
use crate::failure::{Failure, Outcome, fail};

/// The compiler makes many small objects and drops them together.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if std::env::var_os("RUST_BACKTRACE").is_none() {
        // A panic is told below, as an error of the compiler.
        std::panic::set_hook(Box::new(|_| {}));
    }
    let result = catch_unwind(AssertUnwindSafe(|| match &arguments.command {
        Command::Explain(command) => explain::explain(command),
        Command::Run(command) => run::run(command),
        Command::Bench(command) => match (&command.part, &command.source) {
            (Some(BenchPart::Fusion(part)), _) => bench_fusion::bench(part),
            (None, Some(source)) => bench_program::bench(source, &command.inputs, command.seconds),
            (None, None) => fail("name a program, or `fusion`: loafc bench FILE.loaf".to_owned()),
        },
    }));
    let failure = match result {
        Ok(Ok(text)) => match print(&text) {
            Ok(()) => return ExitCode::SUCCESS,
            Err(failure) => *failure,
        },
        Ok(Err(failure)) => *failure,
        Err(_) => Failure::new("internal error: the compiler panicked")
            .help("please report it with the program's text; RUST_BACKTRACE=1 shows where"),
    };
    // Whoever reads the errors may be gone, which `eprintln` would panic at.
    let _ = writeln!(std::io::stderr(), "{:?}", miette::Report::new(failure));
    ExitCode::FAILURE
}

/// Writes to standard output. A reader that has seen enough (`| head`) is no error.
fn print(text: &str) -> Outcome<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            fail(format!("standard output can't be written: {e}"))
        }
        _ => Ok(()),
    }
}
