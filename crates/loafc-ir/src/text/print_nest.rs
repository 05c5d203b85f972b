//! Prints loop nests and nest programs, for people and for the expectations of tests. There is no parser for
//! this form.

use std::fmt::{self, Formatter, Write};

use super::print::{write_arguments, write_list, write_name, write_operator, write_sizes, write_string};
use crate::graph::{TensorId, contiguous_strides};
use crate::nest::{
    Body, Buffer, BufferSource, ExternCall, FailureKind, LoopKind, LoopNest, NestProgram, Op, Output, Step,
    StoreMode, TensorView, ValueId,
};

/// Source lines named behind a nest; the rest is only counted.
const SHOWN_ORIGINS: usize = 3;

/// The name of an enum's variant in words with `_` between: `FloorDiv` gives `floor_div`.
pub fn snake_case(variant: impl fmt::Debug) -> String {
    let mut name = String::new();
    for c in format!("{variant:?}").chars() {
        if c.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(c.to_ascii_lowercase());
    }
    name
}

/// A body as text, one operation a line, each indented by this many blanks.
pub struct BodyText<'a> {
    /// The body.
    pub body: &'a Body,
    /// Blanks before each line.
    pub indent: usize,
}

impl fmt::Display for BodyText<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (v, op) in self.body.iter() {
            write!(f, "{:indent$}", "", indent = self.indent)?;
            if !matches!(op, Op::Store { .. } | Op::Check(..)) {
                write!(f, "{v} = ")?;
            }
            writeln!(f, "{op}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Body {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        BodyText { body: self, indent: 0 }.fmt(f)
    }
}

fn write_guard(f: &mut Formatter<'_>, guard: &Option<ValueId>) -> fmt::Result {
    match guard {
        Some(guard) => write!(f, " if {guard}"),
        None => Ok(()),
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Op::Const(value, dtype) => write!(f, "{value}: {dtype}"),
            Op::SizeValue(size) => write!(f, "size {size}"),
            Op::IndexValue(index) => write!(f, "index {index}"),
            Op::InRange { index, low, high } => write!(f, "in_range {index} in {low}..{high}"),
            Op::Load { buffer, index, guard } => {
                write!(f, "load {buffer}[{index}]")?;
                write_guard(f, guard)
            }
            Op::Unary(op, a) => write!(f, "{} {a}", snake_case(op)),
            Op::Binary(op, a, b) => write!(f, "{} {a}, {b}", snake_case(op)),
            Op::Where(c, a, b) => write!(f, "where {c}, {a}, {b}"),
            Op::Fma(a, b, c) => write!(f, "fma {a}, {b}, {c}"),
            Op::Cast(a, dtype) => write!(f, "cast {a}: {dtype}"),
            Op::Bitcast(a, dtype) => write!(f, "bitcast {a}: {dtype}"),
            Op::Reduce { op, value, position } => {
                write!(f, "reduce {} {value}", snake_case(op))?;
                match position {
                    Some(position) => write!(f, " at {position}"),
                    None => Ok(()),
                }
            }
            Op::ReduceSecond(a) => write!(f, "second {a}"),
            Op::Store { buffer, index, value, guard, mode } => {
                match mode {
                    StoreMode::Set => f.write_str("store ")?,
                    StoreMode::Combine(op) => write!(f, "store {} ", snake_case(op))?,
                }
                write!(f, "{buffer}[{index}] = {value}")?;
                write_guard(f, guard)
            }
            Op::Check(a, failure) => {
                write!(f, "check {a} ")?;
                if failure.kind == FailureKind::Index {
                    f.write_str("index ")?;
                }
                write_string(f, &failure.message)
            }
        }
    }
}

impl LoopNest {
    fn write(&self, f: &mut Formatter<'_>, indent: usize) -> fmt::Result {
        write!(f, "{:indent$}nest ", "")?;
        write_name(f, &self.name)?;
        f.write_char('(')?;
        write_list(f, self.loops.iter().enumerate(), |f, (k, l)| {
            let kind = if l.kind == LoopKind::Reduction { "reduce " } else { "" };
            write!(f, "{kind}i{k}: {}", l.extent)
        })?;
        f.write_str(") {")?;
        for (k, origin) in self.origins.iter().take(SHOWN_ORIGINS).enumerate() {
            write!(f, "{}{origin}", if k == 0 { "  // " } else { ", " })?;
        }
        if self.origins.len() > SHOWN_ORIGINS {
            write!(f, " and {} more", self.origins.len() - SHOWN_ORIGINS)?;
        }
        f.write_char('\n')?;
        write!(f, "{}", BodyText { body: &self.body, indent: indent + 2 })?;
        writeln!(f, "{:indent$}}}", "")
    }
}

impl fmt::Display for LoopNest {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.write(f, 0)
    }
}

impl fmt::Display for TensorView {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.buffer)?;
        write_sizes(f, &self.shape)?;
        if self.strides[..] != contiguous_strides(&self.shape)[..] {
            f.write_str(" strides ")?;
            write_sizes(f, &self.strides)?;
        }
        if !self.offset.is(0) {
            write!(f, " offset {}", self.offset)?;
        }
        Ok(())
    }
}

impl fmt::Display for ExternCall {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write_list(f, &self.results, |f, result| match result {
            Some(view) => write!(f, "{view}"),
            None => f.write_char('_'),
        })?;
        if !self.results.is_empty() {
            f.write_str(" = ")?;
        }
        f.write_str("extern ")?;
        write_operator(f, &self.op)?;
        f.write_char('(')?;
        let value = |f: &mut Formatter<'_>, id: TensorId| match self.tensors.get(id.0 as usize) {
            Some(view) => write!(f, "{view}"),
            None => write!(f, "?{}", id.0),
        };
        write_arguments(f, &self.args, &self.kwargs, &value)?;
        f.write_char(')')?;
        for (k, position) in self.mutates.iter().enumerate() {
            f.write_str(if k == 0 { " mutates " } else { ", " })?;
            value(f, TensorId(*position as u32))?;
        }
        if self.ordered { f.write_str(" ordered") } else { Ok(()) }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Step::Nest(nest) => write!(f, "{nest}"),
            Step::Extern(call) => writeln!(f, "{call}"),
        }
    }
}

impl fmt::Display for Output {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Output::Tensor(view) => write!(f, "{view}"),
            Output::Input(position) => write!(f, "input {position}"),
            Output::Size(size) => write!(f, "{size}"),
            Output::None => f.write_str("none"),
        }
    }
}

impl fmt::Display for Buffer {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write_name(f, &self.name)?;
        write!(f, ": {}[{}]", self.dtype, self.len)?;
        if self.device != crate::graph::Device::Cpu {
            write!(f, " device {}", self.device)?;
        }
        match self.source {
            BufferSource::Input(position) => write!(f, " input {position}"),
            BufferSource::Owned => Ok(()),
        }
    }
}

impl fmt::Display for NestProgram {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("program @")?;
        write_name(f, &self.name)?;
        f.write_str(" {\n")?;
        for (k, buffer) in self.buffers.iter().enumerate() {
            writeln!(f, "  b{k} {buffer}")?;
        }
        for condition in &self.conditions {
            writeln!(f, "  require {}", condition.comparison)?;
        }
        for step in &self.steps {
            match step {
                Step::Nest(nest) => nest.write(f, 2)?,
                Step::Extern(call) => writeln!(f, "  {call}")?,
            }
        }
        f.write_str("  return")?;
        for (k, output) in self.outputs.iter().enumerate() {
            write!(f, "{}{output}", if k == 0 { " " } else { ", " })?;
        }
        f.write_str("\n}\n")
    }
}
