//! What lanes compute from their position alone is the same in every pass over them: positions and weights of an
//! interpolation, angles of a rotary embedding. Where that is more than a few operations, it moves into tables in shared
//! memory, which a phase of their own fills once a call.

use std::borrow::Borrow;

use loafc_ir::dtype::DType;
use loafc_ir::index::{Index, IndexAtom, LoopVar};
use loafc_ir::nest::{BinaryOp, BufferId, Op, StoreMode, UnaryOp, ValueId};
use loafc_ir::size::{Size, floor_div};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::smallvec;

use super::{Kernel, Loop, Mapping, Memory, MemoryPlace, Node, Phase};

/// Longest table.
const MOST_ENTRIES: i64 = 1024;
/// Bytes of all tables of a kernel: they stay in the first-level cache beside what streams by.
const MOST_BYTES: i64 = 16 << 10;
/// Fewest passes over a table that pay for filling it.
const FEWEST_PASSES: i64 = 16;
/// Operations that a table has to save in each pass, beside reading it.
const LEAST_SAVED: u32 = 8;

/// Moves what only depends on lanes' positions into tables. `unit` is a variable that the kernel does not use.
pub(super) fn tabulate(kernel: &mut Kernel, unit: LoopVar) {
    let mut filling = Vec::new();
    let mut bytes_left = MOST_BYTES;
    let mut phases = std::mem::take(&mut kernel.phases);
    for phase in &mut phases {
        let Some(units) = phase.units.as_const() else { continue };
        let mut walk = Walk {
            kernel,
            filling: &mut filling,
            bytes_left: &mut bytes_left,
            ranges: FxHashMap::default(),
            pure: FxHashMap::default(),
            passes: units,
        };
        walk.ranges.insert(phase.unit, (0, units.max(1) - 1));
        walk.nodes(&mut phase.body);
    }
    if !filling.is_empty() {
        let work = filling.iter().map(entries).sum::<i64>().saturating_mul(64);
        let first = Phase { units: Size::ONE, unit, body: filling, work_per_unit: Size::from(work) };
        phases.insert(0, first);
    }
    kernel.phases = phases;
}

/// Iterations of a loop over a whole table.
fn entries(node: &Node) -> i64 {
    let Node::Loop(l) = node else { return 0 };
    let constant = |i: Option<&Index>| i.and_then(Index::as_constant).and_then(Size::as_const).unwrap_or(0);
    constant(l.end.first()) - constant(Some(&l.begin))
}

struct Walk<'a> {
    kernel: &'a mut Kernel,
    filling: &'a mut Vec<Node>,
    /// Bytes that further tables may have.
    bytes_left: &'a mut i64,
    /// Smallest and largest value of each variable around.
    ranges: FxHashMap<LoopVar, (i64, i64)>,
    /// Values around that depend on nothing, with their operations.
    pure: FxHashMap<ValueId, Op>,
    /// How often the current nodes run in a call.
    passes: i64,
}

impl Walk<'_> {
    fn nodes(&mut self, nodes: &mut [Node]) {
        for node in nodes {
            match node {
                Node::Var(var, index) => {
                    match self.range(index) {
                        Some(range) => self.ranges.insert(*var, range),
                        None => self.ranges.remove(var),
                    };
                }
                Node::Op(v, op) if self.is_pure(op, None) => {
                    self.pure.insert(*v, op.clone());
                }
                Node::Loop(l) => self.enter(l),
                _ => {}
            }
        }
    }

    fn enter(&mut self, l: &mut Loop) {
        let Some((low, high)) = self.loop_range(l) else { return };
        let run = self.longest_run(l).unwrap_or(high - low + 1);
        if l.mapping == Mapping::Vector {
            return self.vector_loop(l, (low, high), run);
        }
        let passes = self.passes;
        self.passes = passes.saturating_mul(((run - 1) / l.step + 1).max(1));
        self.ranges.insert(l.var, (low, high));
        self.nodes(&mut l.body);
        self.passes = passes;
    }

    /// Smallest and largest value of a loop's variable, over all its runs.
    fn loop_range(&self, l: &Loop) -> Option<(i64, i64)> {
        let (low, _) = self.range(&l.begin)?;
        let ends = l.end.iter().map(|end| self.range(end).map(|(_, high)| high));
        let end = ends.flatten().min()?;
        Some((low, end - 1))
    }

    /// The most that one run of a loop goes through: a tile's share of the range.
    fn longest_run(&self, l: &Loop) -> Option<i64> {
        let begin = l.begin.times(Size::from(-1));
        l.end.iter().filter_map(|end| self.range(&end.plus(&begin))).map(|(_, longest)| longest).min()
    }

    fn range(&self, index: &Index) -> Option<(i64, i64)> {
        let offset = index.offset.as_const()?;
        index.terms.iter().try_fold((offset, offset), |(low, high), (atom, factor)| {
            let (a, b) = self.atom_range(atom)?;
            let factor = factor.as_const()?;
            let (a, b) = (a.checked_mul(factor)?, b.checked_mul(factor)?);
            Some((low.checked_add(a.min(b))?, high.checked_add(a.max(b))?))
        })
    }

    fn atom_range(&self, atom: &IndexAtom) -> Option<(i64, i64)> {
        match atom {
            IndexAtom::Loop(var) => self.ranges.get(var).copied(),
            IndexAtom::Value(_) => None,
            IndexAtom::FloorDiv(division) => {
                let divisor = division.divisor.as_const().filter(|d| *d > 0)?;
                let (low, high) = self.range(&division.index)?;
                Some((floor_div(low, divisor), floor_div(high, divisor)))
            }
            IndexAtom::Mod(division) => Some((0, division.divisor.as_const().filter(|d| *d > 0)? - 1)),
        }
    }

    /// Whether an operation depends on nothing but values that are known to, and the lanes' variable.
    fn is_pure(&self, op: &Op, lanes: Option<(LoopVar, &FxHashSet<ValueId>)>) -> bool {
        let index = match op {
            Op::Load { .. } | Op::Store { .. } | Op::Check(..) | Op::Reduce { .. } | Op::ReduceSecond(_) => {
                return false;
            }
            Op::IndexValue(index) | Op::InRange { index, .. } => Some(index),
            _ => None,
        };
        let mut known = index.is_none_or(|index| {
            let others = index.substitute(&|var| lane_or_self(var, lanes), &|v| v, &|_| None);
            !uses_any_loop(&others)
        });
        op.for_each_operand(&mut |v| {
            known &= self.pure.contains_key(&v) || lanes.is_some_and(|(_, values)| values.contains(&v));
        });
        known
    }

    fn vector_loop(&mut self, l: &mut Loop, (low, high): (i64, i64), run: i64) {
        let len = high - low + 1;
        if !(1..=MOST_ENTRIES).contains(&len) || self.passes.saturating_mul(run) / len < FEWEST_PASSES {
            return;
        }
        let mut positional: FxHashSet<ValueId> = FxHashSet::default();
        for node in &l.body {
            if let Node::Op(v, op) = node
                && self.is_pure(op, Some((l.var, &positional)))
            {
                positional.insert(*v);
            }
        }
        let tables = self.worthwhile(l, &positional);
        let bytes: i64 = tables.iter().map(|v| len * self.kernel.types[v.0 as usize].bytes() as i64).sum();
        if tables.is_empty() || bytes > *self.bytes_left {
            return;
        }
        *self.bytes_left -= bytes;
        self.fill(l, (low, high + 1), &tables);
    }

    /// The values to keep in tables: those that the rest of the loop uses and that take many operations.
    fn worthwhile(&self, l: &Loop, positional: &FxHashSet<ValueId>) -> Vec<ValueId> {
        let ops: FxHashMap<ValueId, &Op> = ops_of(&l.body).collect();
        let mut used: Vec<ValueId> = Vec::new();
        for node in &l.body {
            let mut add = |v: ValueId| {
                if positional.contains(&v) && !used.contains(&v) {
                    used.push(v);
                }
            };
            match node {
                Node::Op(v, _) if positional.contains(v) => {}
                Node::Op(_, op) => op.for_each_operand(&mut add),
                Node::Accumulate { value, position, .. } => {
                    add(*value);
                    position.iter().copied().for_each(add);
                }
                _ => {}
            }
        }
        let weight_of = |values: &mut dyn Iterator<Item = ValueId>| {
            let mut needed = FxHashSet::default();
            values.for_each(|v| cone(v, &ops, &mut needed));
            needed.iter().map(|v| weight(ops[v])).sum::<u32>()
        };
        let (tables, computed): (Vec<_>, Vec<_>) = used.iter().copied().partition(|v| {
            self.is_stored_as_computed(*v) && weight_of(&mut std::iter::once(*v)) >= LEAST_SAVED
        });
        let before = weight_of(&mut used.iter().copied());
        let behind = weight_of(&mut computed.iter().copied());
        let reading: u32 =
            tables.iter().map(|v| self.kernel.types[v.0 as usize].bytes() as u32 / 4 + 1).sum();
        if before >= behind + reading + LEAST_SAVED { tables } else { Vec::new() }
    }

    /// Whether memory of its type holds all of a value: bf16 values are f32 in registers.
    fn is_stored_as_computed(&self, v: ValueId) -> bool {
        let dtype = self.kernel.types[v.0 as usize];
        dtype == DType::Bool || dtype == dtype.compute()
    }

    /// Reads these values from tables, and fills the tables ahead of all else.
    fn fill(&mut self, l: &mut Loop, (low, end): (i64, i64), tables: &[ValueId]) {
        let ops: FxHashMap<ValueId, &Op> = ops_of(&l.body).collect();
        let mut needed = FxHashSet::default();
        tables.iter().for_each(|v| cone(*v, &ops, &mut needed));
        let mut outer = FxHashSet::default();
        for v in &needed {
            ops[v].for_each_operand(&mut |o| {
                if !needed.contains(&o) {
                    cone(o, &self.pure, &mut outer);
                }
            });
        }
        // Values are numbered in the order of their definitions in each straight line.
        let mut outer: Vec<(ValueId, Op)> = outer.iter().map(|v| (*v, self.pure[v].clone())).collect();
        outer.sort_by_key(|(v, _)| *v);
        let inner: Vec<(ValueId, Op)> =
            ops_of(&l.body).filter(|(v, _)| needed.contains(v)).map(|(v, op)| (v, op.clone())).collect();

        let mut names: FxHashMap<ValueId, ValueId> = FxHashMap::default();
        let before: Vec<Node> = outer.iter().map(|(v, op)| self.copy(*v, op, &mut names)).collect();
        let mut body: Vec<Node> = inner.iter().map(|(v, op)| self.copy(*v, op, &mut names)).collect();
        let at = Index::of_loop(l.var).shifted(Size::from(-low));
        for v in tables {
            let dtype = self.kernel.types[v.0 as usize];
            let place = MemoryPlace::Shared;
            self.kernel.memory.push(Memory {
                name: "table".into(),
                dtype,
                len: Size::from(end - low),
                place,
            });
            let buffer = BufferId(self.kernel.memory.len() as u32 - 1);
            let store =
                Op::Store { buffer, index: at.clone(), value: names[v], guard: None, mode: StoreMode::Set };
            body.push(Node::Op(self.new_value(dtype), store));
            for node in &mut l.body {
                if let Node::Op(defined, op) = node
                    && defined == v
                {
                    *op = Op::Load { buffer, index: at.clone(), guard: None };
                }
            }
        }
        self.filling.extend(before);
        let (begin, end) = (Index::constant(Size::from(low)), Index::constant(Size::from(end)));
        let filled = Loop { var: l.var, begin, end: smallvec![end], step: 1, mapping: Mapping::Vector, body };
        self.filling.push(Node::Loop(Box::new(filled)));
    }

    /// An operation under a new name, on operands under their new names.
    fn copy(&mut self, v: ValueId, op: &Op, names: &mut FxHashMap<ValueId, ValueId>) -> Node {
        let copy = op.substitute(&Index::of_loop, &|v| names.get(&v).copied().unwrap_or(v), &|_| None);
        let name = self.new_value(self.kernel.types[v.0 as usize]);
        names.insert(v, name);
        Node::Op(name, copy)
    }

    fn new_value(&mut self, dtype: DType) -> ValueId {
        self.kernel.types.push(dtype);
        ValueId(self.kernel.types.len() as u32 - 1)
    }
}

fn lane_or_self(var: LoopVar, lanes: Option<(LoopVar, &FxHashSet<ValueId>)>) -> Index {
    match lanes {
        Some((lane, _)) if lane == var => Index::constant(Size::ZERO),
        _ => Index::of_loop(var),
    }
}

fn uses_any_loop(index: &Index) -> bool {
    index.terms.iter().any(|(atom, _)| match atom {
        IndexAtom::Loop(_) => true,
        IndexAtom::Value(_) => false,
        IndexAtom::FloorDiv(d) | IndexAtom::Mod(d) => uses_any_loop(&d.index),
    })
}

fn ops_of(nodes: &[Node]) -> impl Iterator<Item = (ValueId, &Op)> {
    nodes.iter().filter_map(|node| match node {
        Node::Op(v, op) => Some((*v, op)),
        _ => None,
    })
}

/// Adds a value and all that it is made of, as far as it is among the operations.
fn cone<O: Borrow<Op>>(v: ValueId, ops: &FxHashMap<ValueId, O>, needed: &mut FxHashSet<ValueId>) {
    let Some(op) = ops.get(&v) else { return };
    if needed.insert(v) {
        op.borrow().for_each_operand(&mut |o| cone(o, ops, needed));
    }
}

/// About how many instructions an operation takes for a vector, as the code for x86 has them: a floor division of
/// positions is a multiplication of 64-bit halves, of floats a division with corrections; functions are polynomials.
fn weight(op: &Op) -> u32 {
    match op {
        Op::Const(..) | Op::SizeValue(_) => 0,
        Op::IndexValue(index) => {
            if index.is_affine() {
                2
            } else {
                20
            }
        }
        Op::InRange { .. } => 4,
        Op::Unary(UnaryOp::Neg | UnaryOp::Abs | UnaryOp::Not, _) => 1,
        Op::Unary(UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Trunc | UnaryOp::Round, _) => 1,
        Op::Unary(..) => 16,
        Op::Binary(BinaryOp::Div | BinaryOp::TruncDiv, ..) => 8,
        Op::Binary(BinaryOp::FloorDiv | BinaryOp::Remainder | BinaryOp::Fmod, ..) => 30,
        Op::Binary(BinaryOp::Pow | BinaryOp::Atan2 | BinaryOp::Hypot, ..) => 50,
        Op::Cast(..) => 4,
        _ => 1,
    }
}
