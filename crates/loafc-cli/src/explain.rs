//! `loafc explain`: what the scheduler made of a program, and why.

use crate::args::Explain;
use crate::failure::{Outcome, told, while_doing};
use crate::load::load;

/// The text to print.
pub fn explain(command: &Explain) -> Outcome<String> {
    let (graph, compiler) = load(&command.source)?;
    let report = told(compiler.explain(&graph))?;
    if let Some(path) = &command.html {
        while_doing(path.display(), std::fs::write(path, report.to_html()))?;
    }
    if command.json {
        return Ok(report.to_json() + "\n");
    }
    if let Some(path) = &command.html {
        return Ok(format!("{}\n", path.display()));
    }
    Ok(format!("{}\n{}", report.to_text(), report.decisions_text()))
}
