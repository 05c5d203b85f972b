//! Reads programs and options.

use std::io::{Read, Write};

use loafc::{Compiler, Graph, Options};

use crate::args::Source;
use crate::failure::{Failure, Outcome, fail, told, while_doing};

/// Reads the program of a command, and makes the compiler for it.
pub fn load(source: &Source) -> Outcome<(Graph, Compiler)> {
    warn(Options::warning_of_unknown_variables());
    let mut options = told(Options::from_env())?;
    let mut settings = Vec::new();
    for setting in &source.options {
        settings.push(pair("--option", setting, "NAME=VALUE")?);
    }
    if source.no_final_round {
        settings.push(("loop_ordering_after_fusion", "false"));
    }
    let stop = source.stop_after_fusion.map(|fusions| fusions.to_string());
    settings.extend(stop.as_deref().map(|stop| ("stop_after_fusion", stop)));
    told(options.set_all(settings))?;
    Ok((read_program(source)?, Compiler::new(options)))
}

/// Tells what the user asked for and doesn't get.
pub fn warn(warnings: impl IntoIterator<Item = String>) {
    for warning in warnings {
        let _ = writeln!(std::io::stderr(), "warning: {warning}");
    }
}

fn read_program(source: &Source) -> Outcome<Graph> {
    let from_stdin = source.file.as_os_str() == "-";
    let name = if from_stdin { "<stdin>".to_owned() } else { source.file.display().to_string() };
    let bytes = if from_stdin {
        let mut bytes = Vec::new();
        while_doing(&name, std::io::stdin().lock().read_to_end(&mut bytes))?;
        bytes
    } else {
        while_doing(&name, std::fs::read(&source.file))?
    };
    let text = match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let at = error.utf8_error().valid_up_to();
            return Err(Box::new(
                Failure::new(format!("{name}: not a text file: byte {at} is not UTF-8"))
                    .help("a program is text, see `loafc explain --help`"),
            ));
        }
    };
    loafc::parse(&text, &name).map_err(|error| Box::new(Failure::in_text(error, text)))
}

/// Splits `name=value`.
pub fn pair<'a>(flag: &str, text: &'a str, form: &str) -> Outcome<(&'a str, &'a str)> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name, value)),
        _ => fail(format!("{flag} {text}: expected {form}")),
    }
}
