//! Text of loop trees: for people, and as the key by which equal kernels are found. Names of kernels and memory
//! are for people only; [`Kernel::key`] leaves them out and numbers sizes by first appearance.

use std::fmt::{self, Write};

use loafc_ir::index::{Index, IndexAtom};
use loafc_ir::nest::{Op, StoreMode};
use loafc_ir::size::Size;
use rustc_hash::FxHashMap;

use super::{Accumulator, Home, Kernel, Loop, Mapping, Node, Range};

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        writeln!(text, "kernel {}", self.name)?;
        for (k, m) in self.memory.iter().enumerate() {
            writeln!(text, "  b{k} {}: {}[{}] {:?}", m.name, m.dtype, m.len, m.place)?;
        }
        Printer { kernel: self, slots: None, text: &mut text }.phases()?;
        f.write_str(&text)
    }
}

/// Sizes that machine code gets as arguments, by the position in which it gets them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SizeSlots {
    /// The sizes; none is a constant.
    pub sizes: Vec<Size>,
    positions: FxHashMap<Size, usize>,
}

impl SizeSlots {
    /// Position of a size, a new one at its first appearance.
    pub fn slot(&mut self, size: Size) -> usize {
        *self.positions.entry(size).or_insert_with(|| {
            self.sizes.push(size);
            self.sizes.len() - 1
        })
    }
}

impl Kernel {
    /// Text that is equal for two kernels exactly when the same machine code serves both, and the sizes that
    /// the code gets as arguments.
    pub fn key(&self) -> (String, SizeSlots) {
        let (mut text, mut slots) = (String::new(), SizeSlots::default());
        for m in &self.memory {
            let place = m.place;
            // Writing to a String can't fail.
            let _ = writeln!(text, "{} {place:?}", m.dtype);
        }
        let _ = Printer { kernel: self, slots: Some(&mut slots), text: &mut text }.phases();
        for offset in self.scratch_offsets() {
            let _ = match offset.as_const() {
                Some(c) => writeln!(text, "offset {c}"),
                None => writeln!(text, "offset s{}", slots.slot(offset)),
            };
        }
        (text, slots)
    }
}

struct Printer<'a> {
    kernel: &'a Kernel,
    /// `None`: sizes as they are.
    slots: Option<&'a mut SizeSlots>,
    text: &'a mut String,
}

impl Printer<'_> {
    fn phases(&mut self) -> fmt::Result {
        for phase in &self.kernel.phases {
            match self.slots {
                None => writeln!(self.text, "phase i{} in {}", phase.unit.0, phase.units)?,
                Some(_) => writeln!(self.text, "phase i{}", phase.unit.0)?,
            }
            self.nodes(&phase.body, 1)?;
        }
        Ok(())
    }

    fn size(&mut self, size: Size) -> fmt::Result {
        match (&mut self.slots, size.as_const()) {
            (_, Some(c)) => write!(self.text, "{c}"),
            (Some(slots), None) => write!(self.text, "s{}", slots.slot(size)),
            (None, None) => write!(self.text, "({size})"),
        }
    }

    fn index(&mut self, index: &Index) -> fmt::Result {
        let mut is_first = index.offset.is(0) && !index.terms.is_empty();
        if !is_first {
            self.size(index.offset)?;
        }
        for (atom, stride) in &index.terms {
            if !std::mem::take(&mut is_first) {
                self.text.push_str(" + ");
            }
            if !stride.is(1) {
                self.size(*stride)?;
                self.text.push('*');
            }
            match atom {
                IndexAtom::Loop(v) => write!(self.text, "i{}", v.0)?,
                IndexAtom::Value(v) => write!(self.text, "v{}", v.0)?,
                IndexAtom::FloorDiv(d) => self.division(&d.index, "//", d.divisor)?,
                IndexAtom::Mod(d) => self.division(&d.index, "%", d.divisor)?,
            }
        }
        Ok(())
    }

    fn division(&mut self, inner: &Index, operator: &str, divisor: Size) -> fmt::Result {
        self.text.push_str("((");
        self.index(inner)?;
        write!(self.text, ") {operator} ")?;
        self.size(divisor)?;
        self.text.push(')');
        Ok(())
    }

    fn nodes(&mut self, nodes: &[Node], depth: usize) -> fmt::Result {
        for node in nodes {
            for _ in 0..depth {
                self.text.push_str("  ");
            }
            self.node(node, depth)?;
        }
        Ok(())
    }

    fn node(&mut self, node: &Node, depth: usize) -> fmt::Result {
        match node {
            Node::Op(v, op) => {
                write!(self.text, "v{}: {} = ", v.0, self.kernel.types[v.0 as usize])?;
                self.op(op)?;
            }
            Node::Var(v, index) => {
                write!(self.text, "i{} = ", v.0)?;
                self.index(index)?;
            }
            Node::Loop(l) => return self.a_loop(l, depth),
            Node::Transpose(t) => {
                write!(self.text, "transpose {}[", t.from.0)?;
                self.index(&t.from.1)?;
                write!(self.text, "] to {}[", t.to.0)?;
                self.index(&t.to.1)?;
                write!(self.text, "] for ")?;
                self.range(&t.rows)?;
                write!(self.text, " and ")?;
                self.range(&t.columns)?;
            }
            Node::Init(a) => {
                write!(self.text, "init ")?;
                self.accumulator(a.0)?;
            }
            Node::Accumulate { into, value, position } => {
                write!(self.text, "accumulate v{}", value.0)?;
                if let Some(p) = position {
                    write!(self.text, " at v{}", p.0)?;
                }
                write!(self.text, " into ")?;
                self.accumulator(into.0)?;
            }
            Node::Merge { into, from } => {
                write!(self.text, "merge ")?;
                self.accumulator(from.0)?;
                write!(self.text, " into ")?;
                self.accumulator(into.0)?;
            }
            Node::Finish { of, first, second } => {
                write!(self.text, "v{}: {}", first.0, self.kernel.types[first.0 as usize])?;
                if let Some(s) = second {
                    write!(self.text, ", v{}: {}", s.0, self.kernel.types[s.0 as usize])?;
                }
                write!(self.text, " = finish ")?;
                self.accumulator(of.0)?;
            }
        }
        self.text.push('\n');
        Ok(())
    }

    fn accumulator(&mut self, id: u32) -> fmt::Result {
        let kernel = self.kernel;
        let Accumulator { op, dtype, home } = &kernel.accumulators[id as usize];
        write!(self.text, "a{id}({op:?} {dtype}")?;
        if let Home::Array { memory, index } = home {
            for m in memory {
                write!(self.text, " {m}")?;
            }
            self.text.push('[');
            self.index(index)?;
            self.text.push(']');
        }
        self.text.push(')');
        Ok(())
    }

    fn a_loop(&mut self, l: &Loop, depth: usize) -> fmt::Result {
        let mapping = match l.mapping {
            Mapping::Serial => "for",
            Mapping::Tile => "tile",
            Mapping::Vector => "vector",
        };
        write!(self.text, "{mapping} ")?;
        self.range(&Range { var: l.var, begin: l.begin.clone(), end: l.end.clone() })?;
        if l.step != 1 {
            write!(self.text, " by {}", l.step)?;
        }
        self.text.push('\n');
        self.nodes(&l.body, depth + 1)
    }

    fn range(&mut self, range: &Range) -> fmt::Result {
        write!(self.text, "i{} in ", range.var.0)?;
        self.index(&range.begin)?;
        write!(self.text, " .. ")?;
        for (k, end) in range.end.iter().enumerate() {
            if k > 0 {
                write!(self.text, " min ")?;
            }
            self.index(end)?;
        }
        Ok(())
    }

    fn op(&mut self, op: &Op) -> fmt::Result {
        match op {
            Op::Const(value, dtype) => write!(self.text, "{value}: {dtype}"),
            Op::SizeValue(size) => self.size(*size),
            Op::IndexValue(index) => self.index(index),
            Op::InRange { index, low, high } => {
                self.size(*low)?;
                write!(self.text, " <= ")?;
                self.index(index)?;
                write!(self.text, " < ")?;
                self.size(*high)
            }
            Op::Load { buffer, index, guard } => {
                write!(self.text, "load {buffer}[")?;
                self.index(index)?;
                self.text.push(']');
                if self.slots.is_some() && !index.is_affine() {
                    // Code for computed positions may read whole vectors, but not beyond the buffer's end.
                    self.text.push_str(" of ");
                    self.size(self.kernel.memory[buffer.0 as usize].len)?;
                }
                self.guard(guard)
            }
            Op::Store { buffer, index, value, guard, mode } => {
                match mode {
                    StoreMode::Set => write!(self.text, "store v{} to {buffer}[", value.0)?,
                    StoreMode::Combine(op) => write!(self.text, "store {op:?} v{} to {buffer}[", value.0)?,
                }
                self.index(index)?;
                self.text.push(']');
                self.guard(guard)
            }
            Op::Unary(op, a) => write!(self.text, "{op:?} v{}", a.0),
            Op::Binary(op, a, b) => write!(self.text, "{op:?} v{} v{}", a.0, b.0),
            Op::Where(a, b, c) => write!(self.text, "Where v{} v{} v{}", a.0, b.0, c.0),
            Op::Fma(a, b, c) => write!(self.text, "Fma v{} v{} v{}", a.0, b.0, c.0),
            Op::Cast(a, dtype) => write!(self.text, "Cast v{} {dtype}", a.0),
            Op::Bitcast(a, dtype) => write!(self.text, "Bitcast v{} {dtype}", a.0),
            Op::Check(a, failure) => match self.slots {
                None => write!(self.text, "Check v{} {:?} {:?}", a.0, failure.kind, failure.message),
                // Uses differ in what they say: code returns a number.
                Some(_) => {
                    let number = self.kernel.failures.iter().position(|f| f == failure);
                    write!(self.text, "Check v{} {number:?}", a.0)
                }
            },
            Op::Reduce { .. } | Op::ReduceSecond(_) => write!(self.text, "{op:?}"),
        }
    }

    fn guard(&mut self, guard: &Option<loafc_ir::nest::ValueId>) -> fmt::Result {
        match guard {
            Some(g) => write!(self.text, " if v{}", g.0),
            None => Ok(()),
        }
    }
}
