//! Prints tensor programs so that [`super::parse`] reads the same program back.

use std::fmt::{self, Formatter, Write};
use std::sync::Arc;

use rustc_hash::FxHashSet;

use super::cursor::is_word_byte;
use crate::graph::{Arg, Device, Graph, Input, Node, TensorId, TensorType, ValueType, contiguous_strides};
use crate::size::Size;

/// A list with commas between.
pub(super) fn write_list<T>(
    f: &mut Formatter<'_>,
    items: impl IntoIterator<Item = T>,
    mut write: impl FnMut(&mut Formatter<'_>, T) -> fmt::Result,
) -> fmt::Result {
    for (k, item) in items.into_iter().enumerate() {
        if k > 0 {
            f.write_str(", ")?;
        }
        write(f, item)?;
    }
    Ok(())
}

/// Sizes in brackets.
pub(super) fn write_sizes(f: &mut Formatter<'_>, sizes: &[Size]) -> fmt::Result {
    f.write_char('[')?;
    write_list(f, sizes, |f, s| write!(f, "{s}"))?;
    f.write_char(']')
}

/// A string in quotes, with escapes that the parser knows.
pub(super) fn write_string(f: &mut Formatter<'_>, text: &str) -> fmt::Result {
    f.write_char('"')?;
    for c in text.chars() {
        match c {
            '"' => f.write_str("\\\"")?,
            '\\' => f.write_str("\\\\")?,
            '\n' => f.write_str("\\n")?,
            '\t' => f.write_str("\\t")?,
            '\r' => f.write_str("\\r")?,
            c if c.is_control() => write!(f, "\\u{{{:x}}}", u32::from(c))?,
            c => f.write_char(c)?,
        }
    }
    f.write_char('"')
}

/// A name behind a `%` or `@`, quoted where it must be.
pub(super) fn write_name(f: &mut Formatter<'_>, name: &str) -> fmt::Result {
    if !name.is_empty() && name.bytes().all(|b| is_word_byte(b) || b == b'.') {
        return f.write_str(name);
    }
    write_string(f, name)
}

/// An operator, quoted where it must be.
pub(super) fn write_operator(f: &mut Formatter<'_>, name: &str) -> fmt::Result {
    let plain = name.bytes().next().is_some_and(super::cursor::is_word_start)
        && name.bytes().all(|b| is_word_byte(b) || b == b'.')
        && !matches!(name, "_" | "return");
    if plain { f.write_str(name) } else { write_string(f, name) }
}

/// An argument; `value` writes those that are values.
pub(super) fn write_arg(
    f: &mut Formatter<'_>,
    arg: &Arg,
    value: &dyn Fn(&mut Formatter<'_>, TensorId) -> fmt::Result,
) -> fmt::Result {
    match arg {
        Arg::Value(id) => value(f, *id),
        Arg::Size(size) => write!(f, "{size}"),
        Arg::Float(x) if x.is_nan() => f.write_str("nan"),
        Arg::Float(x) => write!(f, "{x:?}"),
        Arg::Bool(b) => write!(f, "{b}"),
        Arg::Str(text) => write_string(f, text),
        Arg::DType(dtype) => write!(f, "{dtype}"),
        Arg::Device(device) => write!(f, "{device}"),
        Arg::List(items) => {
            f.write_char('[')?;
            write_list(f, items, |f, item| write_arg(f, item, value))?;
            f.write_char(']')
        }
        Arg::None => f.write_str("none"),
    }
}

/// Positional arguments, then keyword arguments.
pub(super) fn write_arguments(
    f: &mut Formatter<'_>,
    args: &[Arg],
    kwargs: &[(Arc<str>, Arg)],
    value: &dyn Fn(&mut Formatter<'_>, TensorId) -> fmt::Result,
) -> fmt::Result {
    write_list(f, args, |f, arg| write_arg(f, arg, value))?;
    for (k, (name, arg)) in kwargs.iter().enumerate() {
        if k > 0 || !args.is_empty() {
            f.write_str(", ")?;
        }
        write!(f, "{name}=")?;
        write_arg(f, arg, value)?;
    }
    Ok(())
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.dtype)?;
        write_sizes(f, &self.shape)?;
        if self.strides != contiguous_strides(&self.shape) {
            f.write_str(" strides ")?;
            write_sizes(f, &self.strides)?;
        }
        if self.device != Device::Cpu {
            write!(f, " device {}", self.device)?;
        }
        Ok(())
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            ValueType::Tensor(t) => write!(f, "{t}"),
            ValueType::Size(size) => write!(f, "size({size})"),
        }
    }
}

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for name in self.free_symbols() {
            write!(f, "size {name}")?;
            if let Some(hint) = self.hints.0.get(&name) {
                write!(f, " = {hint}")?;
            }
            f.write_char('\n')?;
        }
        f.write_str("graph @")?;
        write_name(f, &self.name)?;
        f.write_char('(')?;
        write_list(f, &self.inputs, |f, input| self.write_input(f, input))?;
        f.write_str(") {\n")?;
        for node in &self.nodes {
            f.write_str("  ")?;
            self.write_node(f, node)?;
            f.write_char('\n')?;
        }
        f.write_str("  return")?;
        for (k, output) in self.outputs.iter().enumerate() {
            f.write_str(if k == 0 { " " } else { ", " })?;
            write_arg(f, output, &|f, id| self.write_value(f, id))?;
        }
        f.write_str("\n}\n")
    }
}

impl Graph {
    /// Symbols that need a `size` line: those that no size input and no result binds. Sorted.
    fn free_symbols(&self) -> Vec<Box<str>> {
        let mut names: FxHashSet<Box<str>> = self.hints.0.keys().cloned().collect();
        let mut add = |size: Size| {
            if size.as_const().is_none() {
                names.extend(size.symbols());
            }
        };
        for value in &self.values {
            match &value.ty {
                ValueType::Tensor(t) => t.shape.iter().chain(&t.strides).for_each(|s| add(*s)),
                ValueType::Size(size) => add(*size),
            }
        }
        let arguments =
            self.nodes.iter().flat_map(|n| n.args.iter().chain(n.kwargs.iter().map(|(_, arg)| arg)));
        for arg in arguments.chain(&self.outputs) {
            for_each_size(arg, &mut add);
        }
        for input in &self.inputs {
            if let Input::Size(_, symbol) = input {
                names.remove(symbol);
            }
        }
        for id in self.nodes.iter().flat_map(|n| &n.results).flatten() {
            if let Some(ValueType::Size(size)) = self.values.get(id.0 as usize).map(|v| &v.ty)
                && let [symbol] = &size.symbols()[..]
                && *size == Size::symbol(symbol)
                && !self.hints.0.contains_key(symbol)
            {
                names.remove(symbol);
            }
        }
        let mut names: Vec<Box<str>> = names.into_iter().collect();
        names.sort();
        names
    }

    fn write_input(&self, f: &mut Formatter<'_>, input: &Input) -> fmt::Result {
        match input {
            Input::Tensor(id) => {
                self.write_value(f, *id)?;
                self.write_type(f, *id)
            }
            Input::Size(id, symbol) => {
                let name = self.values.get(id.0 as usize).map_or("?", |v| &v.name);
                if name == symbol.as_ref() {
                    write!(f, "{symbol}: size")?;
                } else {
                    write_operator(f, name)?;
                    write!(f, ": size({symbol})")?;
                }
                match self.hints.0.get(symbol) {
                    Some(hint) => write!(f, " = {hint}"),
                    None => Ok(()),
                }
            }
        }
    }

    /// The name of a value with its `%`.
    fn write_value(&self, f: &mut Formatter<'_>, id: TensorId) -> fmt::Result {
        f.write_char('%')?;
        match self.values.get(id.0 as usize) {
            Some(value) => write_name(f, &value.name),
            None => write!(f, "?{}", id.0),
        }
    }

    fn write_type(&self, f: &mut Formatter<'_>, id: TensorId) -> fmt::Result {
        match self.values.get(id.0 as usize) {
            Some(value) => write!(f, ": {}", value.ty),
            None => Ok(()),
        }
    }

    fn write_node(&self, f: &mut Formatter<'_>, node: &Node) -> fmt::Result {
        write_list(f, &node.results, |f, result| match result {
            None => f.write_char('_'),
            Some(id) => {
                self.write_value(f, *id)?;
                self.write_type(f, *id)
            }
        })?;
        if !node.results.is_empty() {
            f.write_str(" = ")?;
        }
        write_operator(f, &node.op)?;
        f.write_char('(')?;
        write_arguments(f, &node.args, &node.kwargs, &|f, id| self.write_value(f, id))?;
        f.write_char(')')?;
        if let Some(origin) = &node.origin {
            f.write_str(" loc(")?;
            write_string(f, &origin.file)?;
            write!(f, ":{})", origin.line)?;
        }
        Ok(())
    }
}

/// Calls `visit` for each size in an argument.
fn for_each_size(arg: &Arg, visit: &mut dyn FnMut(Size)) {
    match arg {
        Arg::Size(size) => visit(*size),
        Arg::List(items) => items.iter().for_each(|item| for_each_size(item, visit)),
        _ => {}
    }
}
