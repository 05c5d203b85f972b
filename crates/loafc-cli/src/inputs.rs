//! Makes the inputs of a run: from files, and at random where none is given.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;

use loafc::{Graph, Input, Size, SymbolValues, Tensor, TensorType, Value, npy};

use crate::args::Inputs;
use crate::failure::{Outcome, fail, told, while_doing};
use crate::load::pair;

/// What a symbol without value or hint counts as: small, so that the interpreter is quick.
const DEFAULT_SIZE: i64 = 16;

/// The inputs of a program, in order.
pub fn inputs(graph: &Graph, arguments: &Inputs) -> Outcome<Vec<Value>> {
    let files = read_files(graph, arguments)?;
    let sizes = sizes(graph, arguments, &files)?;
    let mut values = Vec::with_capacity(graph.inputs.len());
    for (position, input) in graph.inputs.iter().enumerate() {
        values.push(match input {
            Input::Size(_, symbol) => Value::Size(sizes.0.get(symbol).copied().unwrap_or(DEFAULT_SIZE)),
            Input::Tensor(id) => {
                let name = &*graph.value(*id).name;
                let Some(ty) = graph.tensor_type(*id) else {
                    return fail(format!("input {position} (`{name}`) is neither a tensor nor a size"));
                };
                let tensor = match files.get(name) {
                    Some(tensor) => tensor.clone(),
                    None => random(name, ty, &sizes, arguments.seed.wrapping_add(position as u64))?,
                };
                Value::Tensor(laid_out(name, tensor, ty, &sizes)?)
            }
        });
    }
    Ok(values)
}

fn read_files(graph: &Graph, arguments: &Inputs) -> Outcome<BTreeMap<String, Tensor>> {
    let mut files = BTreeMap::new();
    for text in &arguments.inputs {
        let (name, path) = pair("--input", text, "NAME=FILE.npy")?;
        let name = name.trim_start_matches('%');
        let Some(ty) = tensor_inputs(graph).find(|(n, _)| *n == name).map(|(_, ty)| ty) else {
            let known: Vec<&str> = tensor_inputs(graph).map(|(n, _)| n).collect();
            return fail(format!(
                "--input {text}: the program has no tensor input `{name}`; it has {known:?}"
            ));
        };
        if files.contains_key(name) {
            return fail(format!("--input {text}: input `{name}` is given twice"));
        }
        let file = while_doing(path, File::open(path))?;
        let tensor = while_doing(path, npy::read(BufReader::new(file)))?;
        let tensor = while_doing(path, npy::reinterpret(&tensor, ty.dtype))?;
        if tensor.shape().len() != ty.shape.len() {
            return fail(format!(
                "{path}: input `{name}` is {}{:?}, the array has shape {:?}",
                ty.dtype,
                ty.shape,
                tensor.shape()
            ));
        }
        files.insert(name.to_owned(), tensor);
    }
    Ok(files)
}

fn tensor_inputs(graph: &Graph) -> impl Iterator<Item = (&str, &TensorType)> {
    graph.inputs.iter().filter_map(|input| match input {
        Input::Tensor(id) => Some((&*graph.value(*id).name, graph.tensor_type(*id)?)),
        Input::Size(..) => None,
    })
}

/// Values of all size symbols: those given, then those of files, then hints, then the default.
fn sizes(graph: &Graph, arguments: &Inputs, files: &BTreeMap<String, Tensor>) -> Outcome<SymbolValues> {
    let mut known: Vec<Box<str>> = graph.inputs.iter().filter_map(symbol_of_input).collect();
    for (_, ty) in tensor_inputs(graph) {
        known.extend(ty.shape.iter().chain(&ty.strides).flat_map(|s| s.symbols()));
    }
    let mut values = SymbolValues::new();
    for text in &arguments.sizes {
        let (name, value) = pair("--size", text, "SYMBOL=N")?;
        if known.iter().all(|k| **k != *name) {
            return fail(format!("--size {text}: the program has no size symbol `{name}`"));
        }
        if values.0.contains_key(name) {
            return fail(format!("--size {text}: size symbol `{name}` is given twice"));
        }
        match value.parse::<i64>() {
            Ok(value) if value >= 0 => values.set(name, value),
            _ => return fail(format!("--size {text}: `{value}` is not a whole number, 0 or more")),
        }
    }
    for (name, ty) in tensor_inputs(graph) {
        let Some(tensor) = files.get(name) else { continue };
        for (size, extent) in ty.shape.iter().zip(tensor.shape()) {
            if let Some(symbol) = size.as_symbol() {
                values.0.entry(symbol).or_insert(*extent);
            }
        }
    }
    for symbol in known {
        let hint = graph.hints.0.get(&symbol).copied().unwrap_or(DEFAULT_SIZE);
        values.0.entry(symbol).or_insert(hint);
    }
    Ok(values)
}

fn symbol_of_input(input: &Input) -> Option<Box<str>> {
    match input {
        Input::Size(_, symbol) => Some(symbol.clone()),
        Input::Tensor(_) => None,
    }
}

fn evaluated(name: &str, dims: &[Size], sizes: &SymbolValues) -> Outcome<Vec<i64>> {
    let mut values = Vec::with_capacity(dims.len());
    for size in dims {
        match size.eval(sizes) {
            Some(value) if value >= 0 => values.push(value),
            Some(value) => return fail(format!("input `{name}`: size {size} is {value}")),
            None => return fail(format!("input `{name}`: size {size} has no value; use --size")),
        }
    }
    Ok(values)
}

fn random(name: &str, ty: &TensorType, sizes: &SymbolValues, seed: u64) -> Outcome<Tensor> {
    let shape: Vec<usize> = evaluated(name, &ty.shape, sizes)?.into_iter().map(|n| n as usize).collect();
    while_doing(format!("input `{name}`"), Tensor::random(ty.dtype, &shape, seed))
}

/// The tensor with the strides of its type. Where these map several elements to one place, the last one stays:
/// all levels then see the same values.
fn laid_out(name: &str, tensor: Tensor, ty: &TensorType, sizes: &SymbolValues) -> Outcome<Tensor> {
    let strides = evaluated(name, &ty.strides, sizes)?;
    if tensor.strides() == strides {
        return Ok(tensor);
    }
    told(tensor.with_strides(&strides))
}
