//! `loafc run`: runs a program at any level, shows or writes its results, and compares them with the interpreter.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use loafc::{DType, Graph, Input, Level, Tensor, Value, npy};

use crate::args::Run;
use crate::check;
use crate::failure::{Outcome, told, while_doing};
use crate::inputs;
use crate::load::{load, warn};
use crate::show;

/// The text to print.
pub fn run(command: &Run) -> Outcome<String> {
    let (graph, compiler) = load(&command.source)?;
    let inputs = inputs::inputs(&graph, &command.inputs)?;
    let outcome = told(compiler.run_at(command.level.into(), &graph, &inputs))?;
    warn(outcome.warnings);
    let mut named: Vec<(String, Value)> =
        outcome.outputs.into_iter().enumerate().map(|(k, v)| (format!("out{k}"), v)).collect();
    for (position, tensor) in outcome.mutated_inputs {
        named.push((input_name(&graph, position), Value::Tensor(tensor)));
    }
    let mut text = String::new();
    for (name, value) in &named {
        text += &show::value(name, value);
    }
    if let Some(folder) = &command.out {
        text += &write_all(folder, &named)?;
    }
    if command.check {
        let expected = told(compiler.run_at(Level::Graph, &graph, &inputs))?;
        let mut values = expected.outputs;
        values.extend(expected.mutated_inputs.into_iter().map(|(_, t)| Value::Tensor(t)));
        text += &check::compare(&named, &values)?;
    }
    Ok(text)
}

fn input_name(graph: &Graph, position: usize) -> String {
    match graph.inputs.get(position) {
        Some(Input::Tensor(id) | Input::Size(id, _)) => graph.value(*id).name.to_string(),
        None => format!("input{position}"),
    }
}

/// Writes tensors as files and returns what there is to say about it.
fn write_all(folder: &Path, values: &[(String, Value)]) -> Outcome<String> {
    while_doing(folder.display(), std::fs::create_dir_all(folder))?;
    let mut text = String::new();
    for (name, value) in values {
        let Value::Tensor(tensor) = value else { continue };
        let path = folder.join(format!("{name}.npy"));
        while_doing(path.display(), write(&path, tensor))?;
        if matches!(tensor.dtype(), DType::BF16 | DType::F8E4M3FN | DType::F8E5M2) {
            text += &format!("{}: NumPy has no {}, written as raw bits\n", path.display(), tensor.dtype());
        }
    }
    Ok(text)
}

fn write(path: &Path, tensor: &Tensor) -> Result<(), npy::NpyError> {
    let mut file = BufWriter::new(File::create(path)?);
    npy::write(&mut file, tensor)?;
    file.flush()?;
    Ok(())
}
