//! Writes expressions into the body of a loop nest: each node at the coordinates it is asked for, every
//! operation once. Arithmetic on positions stays an index as long as it is affine, so that reads through
//! computed positions and tests on them remain visible to the later passes.

use std::rc::Rc;
use std::sync::Arc;

use loafc_ir::dtype::{DType, Scalar};
use loafc_ir::index::{Index, IndexAtom, LoopVar};
use loafc_ir::nest::{BinaryOp, Body, BufferId, Failure, Loop, LoopNest, Op, StoreMode, UnaryOp, ValueId};
use loafc_ir::size::Size;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::expr::{Arena, Coord, Expr, ExprId};
use crate::view::position;

/// Coordinates of a node as functions of the nest's loops: an entry of [`Emitter::coordinates`], since most nodes
/// of a body are asked for at the same ones.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CoordsId(u32);

/// A nest under construction.
pub(crate) struct Emitter<'a> {
    arena: &'a Arena,
    loops: Vec<Loop>,
    body: Body,
    /// Operations already there.
    known: FxHashMap<Op, ValueId>,
    /// Nodes already written, by coordinates and guard.
    written: FxHashMap<(ExprId, CoordsId, Option<ValueId>), ValueId>,
    /// Distinct coordinates that nodes are asked for at.
    coordinates: Vec<Rc<[Index]>>,
    /// Their positions.
    coordinate_ids: FxHashMap<Rc<[Index]>, CoordsId>,
    /// Nodes of the graph that the body came from, innermost first.
    origins: Vec<u32>,
}

impl<'a> Emitter<'a> {
    pub(crate) fn new(arena: &'a Arena, loops: Vec<Loop>) -> Emitter<'a> {
        Emitter {
            arena,
            loops,
            body: Body::default(),
            known: FxHashMap::default(),
            written: FxHashMap::default(),
            coordinates: Vec::new(),
            coordinate_ids: FxHashMap::default(),
            origins: Vec::new(),
        }
    }

    /// Number of operations so far.
    pub(crate) fn len(&self) -> usize {
        self.body.ops.len()
    }

    /// Appends an operation, unless its value is there already.
    pub(crate) fn push(&mut self, op: Op) -> ValueId {
        if let Some(value) = self.known.get(&op) {
            return *value;
        }
        let value = self.body.push(op.clone());
        self.known.insert(op, value);
        value
    }

    pub(crate) fn constant(&mut self, value: Scalar, dtype: DType) -> ValueId {
        self.push(Op::Const(value, dtype))
    }

    pub(crate) fn unary(&mut self, op: UnaryOp, a: ValueId) -> ValueId {
        self.push(Op::Unary(op, a))
    }

    pub(crate) fn binary(&mut self, op: BinaryOp, a: ValueId, b: ValueId) -> ValueId {
        self.index_arithmetic(op, a, b).unwrap_or_else(|| self.push(Op::Binary(op, a, b)))
    }

    /// Appends a store; unlike other operations, it is never shared.
    pub(crate) fn store(&mut self, store: Op) {
        self.body.push(store);
    }

    /// Appends a store that happens always and replaces what is there.
    pub(crate) fn set(&mut self, buffer: BufferId, index: Index, value: ValueId) {
        self.store(Op::Store { buffer, index, value, guard: None, mode: StoreMode::Set });
    }

    /// Positions along each dimension, those that are values read under a guard.
    pub(crate) fn positions(
        &mut self,
        coords: &[Coord],
        at: CoordsId,
        guard: Option<ValueId>,
    ) -> SmallVec<[Index; 6]> {
        let one = |coord: &Coord| match coord {
            Coord::At(index) => self.at(index, at),
            Coord::Value(value) => {
                let value = self.emit(*value, at, guard);
                self.as_index(value)
            }
        };
        coords.iter().map(one).collect()
    }

    /// The nest, with the graph's nodes that it came from.
    pub(crate) fn finish(self) -> (LoopNest, Vec<u32>) {
        let nest = LoopNest { name: Arc::from(""), loops: self.loops, body: self.body, origins: Vec::new() };
        (nest, self.origins)
    }

    /// An i64 value as an index: affine where it is known to be, else the value itself.
    pub(crate) fn as_index(&self, value: ValueId) -> Index {
        self.known_index(value).unwrap_or_else(|| Index::of_atom(IndexAtom::Value(value)))
    }

    /// Names coordinates for [`Emitter::emit`].
    pub(crate) fn coordinates(&mut self, at: &[Index]) -> CoordsId {
        if let Some(id) = self.coordinate_ids.get(at) {
            return *id;
        }
        let id = CoordsId(self.coordinates.len() as u32);
        let at: Rc<[Index]> = Rc::from(at);
        self.coordinates.push(at.clone());
        self.coordinate_ids.insert(at, id);
        id
    }

    /// The value of a node at these coordinates.
    pub(crate) fn emit(&mut self, id: ExprId, at: CoordsId, guard: Option<ValueId>) -> ValueId {
        let key = (id, at, guard);
        if let Some(value) = self.written.get(&key) {
            return *value;
        }
        let arena = self.arena;
        let node = arena.get(id);
        let value = self.emit_expr(&node.expr, node.dtype, at, guard);
        // What is read from memory came from another nest.
        if !matches!(node.expr, Expr::Load(_)) && !self.origins.contains(&node.origin) {
            self.origins.push(node.origin);
        }
        self.written.insert(key, value);
        value
    }

    fn emit_expr(&mut self, expr: &Expr, dtype: DType, at: CoordsId, guard: Option<ValueId>) -> ValueId {
        match expr {
            Expr::Const(value) => self.constant(*value, dtype),
            Expr::Size(size) => match size.as_const() {
                Some(c) => self.constant(Scalar::Int(c), DType::I64),
                None => self.push(Op::SizeValue(*size)),
            },
            Expr::Index(index) => {
                let index = self.at(index, at);
                self.index_value(index)
            }
            Expr::InRange { index, low, high } => {
                let index = self.at(index, at);
                self.in_range(index, *low, *high)
            }
            Expr::Load(view) => self.push(Op::Load {
                buffer: view.buffer,
                index: position(view, &self.coordinates[at.0 as usize]),
                guard,
            }),
            Expr::Unary(op, a) => {
                let a = self.emit(*a, at, guard);
                self.unary(*op, a)
            }
            Expr::Binary(op, a, b) => {
                let operand_type = self.arena.get(*b).dtype;
                let a = self.emit(*a, at, guard);
                let b = self.emit(*b, at, guard);
                if divides(*op) && operand_type.is_int() {
                    return self.divide(*op, a, b, operand_type, guard);
                }
                self.binary(*op, a, b)
            }
            Expr::Where(c, a, b) => {
                let c = self.emit(*c, at, guard);
                match self.known_bool(c) {
                    Some(true) => return self.emit(*a, at, guard),
                    Some(false) => return self.emit(*b, at, guard),
                    None => {}
                }
                let a = self.emit(*a, at, guard);
                let b = self.emit(*b, at, guard);
                if a == b { a } else { self.push(Op::Where(c, a, b)) }
            }
            Expr::Fma(a, b, c) => {
                let a = self.emit(*a, at, guard);
                let b = self.emit(*b, at, guard);
                let c = self.emit(*c, at, guard);
                self.push(Op::Fma(a, b, c))
            }
            Expr::Cast(a) => {
                let from = self.arena.get(*a).dtype;
                let a = self.emit(*a, at, guard);
                if from == dtype { a } else { self.push(Op::Cast(a, dtype)) }
            }
            Expr::Bitcast(a) => {
                let a = self.emit(*a, at, guard);
                self.push(Op::Bitcast(a, dtype))
            }
            Expr::Copy(a) => self.emit(*a, at, guard),
            Expr::View { source, coords } => {
                let coords = self.positions(coords, at, guard);
                let coords = self.coordinates(&coords);
                self.emit(*source, coords, guard)
            }
            Expr::Guarded { condition, source } => {
                let condition = self.emit(*condition, at, guard);
                let inner = match (guard, self.known_bool(condition)) {
                    (_, Some(true)) => guard,
                    (None, _) => Some(condition),
                    (Some(outer), _) => Some(self.push(Op::Binary(BinaryOp::And, outer, condition))),
                };
                self.emit(*source, at, inner)
            }
            Expr::Checked { value, condition, failure } => {
                let condition = self.emit(*condition, at, guard);
                let value = self.emit(*value, at, guard);
                self.check(condition, failure.clone(), guard);
                value
            }
        }
    }

    /// Fails the program where the condition is false and the guard is true.
    fn check(&mut self, condition: ValueId, failure: Failure, guard: Option<ValueId>) {
        if self.known_bool(condition) == Some(true) {
            return;
        }
        let condition = match guard {
            None => condition,
            Some(guard) => {
                let outside = self.push(Op::Unary(UnaryOp::Not, guard));
                self.push(Op::Binary(BinaryOp::Or, condition, outside))
            }
        };
        self.push(Op::Check(condition, failure));
    }

    /// An integer division that fails the program on a zero divisor, as PyTorch does, and itself divides by one
    /// there, so that no lane of a vector ever traps.
    fn divide(
        &mut self,
        op: BinaryOp,
        a: ValueId,
        b: ValueId,
        dtype: DType,
        guard: Option<ValueId>,
    ) -> ValueId {
        if let Some(value) = self.index_arithmetic(op, a, b) {
            return value;
        }
        if matches!(self.body.op(b), Op::Const(c, _) if c.to_i64() != 0) {
            return self.push(Op::Binary(op, a, b));
        }
        let zero = self.constant(Scalar::Int(0), dtype);
        let one = self.constant(Scalar::Int(1), dtype);
        let fine = self.push(Op::Binary(BinaryOp::Ne, b, zero));
        self.check(fine, Failure::value("ZeroDivisionError: integer division or modulo by zero"), guard);
        let divisor = self.push(Op::Where(fine, b, one));
        self.push(Op::Binary(op, a, divisor))
    }

    /// A function of coordinates as a function of the loops.
    pub(crate) fn at(&self, index: &Index, at: CoordsId) -> Index {
        let at = &self.coordinates[at.0 as usize];
        // Most coordinates of views are those of the view.
        if let [(IndexAtom::Loop(v), one)] = index.terms.as_slice()
            && one.is(1)
            && index.offset.is(0)
        {
            return at[v.0 as usize].clone();
        }
        let extents = |v: LoopVar| self.loops.get(v.0 as usize).map(|l| l.extent);
        index.substitute(&|v| at[v.0 as usize].clone(), &|v| v, &extents)
    }

    fn bounds(&self, index: &Index) -> Option<(Size, Size)> {
        let extents = |v: LoopVar| self.loops.get(v.0 as usize).map(|l| l.extent);
        index.bounds(&extents)
    }

    pub(crate) fn index_value(&mut self, index: Index) -> ValueId {
        if let [(IndexAtom::Value(value), stride)] = index.terms.as_slice()
            && stride.is(1)
            && index.offset.is(0)
        {
            return *value;
        }
        match index.as_constant() {
            Some(size) => match size.as_const() {
                Some(c) => self.constant(Scalar::Int(c), DType::I64),
                None => self.push(Op::SizeValue(size)),
            },
            None => self.push(Op::IndexValue(index)),
        }
    }

    fn in_range(&mut self, index: Index, low: Size, high: Size) -> ValueId {
        let extents = |v: LoopVar| self.loops.get(v.0 as usize).map(|l| l.extent);
        match decided_range(&index, low, high, &extents) {
            Some(decided) => self.constant(Scalar::Bool(decided), DType::Bool),
            None => self.push(Op::InRange { index, low, high }),
        }
    }

    /// The index that an i64 value is, if it is one.
    fn known_index(&self, value: ValueId) -> Option<Index> {
        match self.body.op(value) {
            Op::IndexValue(index) => Some(index.clone()),
            Op::SizeValue(size) => Some(Index::constant(*size)),
            Op::Const(Scalar::Int(c), DType::I64) => Some(Index::constant(Size::from(*c))),
            _ => None,
        }
    }

    fn known_bool(&self, value: ValueId) -> Option<bool> {
        match self.body.op(value) {
            Op::Const(Scalar::Bool(b), _) => Some(*b),
            _ => None,
        }
    }

    /// Arithmetic and comparisons of positions that stay indices or range tests. Positions are far from
    /// overflowing, so exact integers and wrapping ones agree.
    fn index_arithmetic(&mut self, op: BinaryOp, a: ValueId, b: ValueId) -> Option<ValueId> {
        let (x, y) = (self.known_index(a)?, self.known_index(b)?);
        let extents = |v: LoopVar| self.loops.get(v.0 as usize).map(|l| l.extent);
        let constant = |i: &Index| i.as_constant();
        let positive = |i: &Index| i.as_constant().filter(|s| s.as_const().is_some_and(|c| c > 0));
        let index = match op {
            BinaryOp::Add => x.plus(&y),
            BinaryOp::Sub => x.plus(&y.times(Size::from(-1))),
            BinaryOp::Mul => match (constant(&x), constant(&y)) {
                (_, Some(factor)) => x.times(factor),
                (Some(factor), _) => y.times(factor),
                _ => return None,
            },
            BinaryOp::FloorDiv => x.floor_div(positive(&y)?, &extents),
            BinaryOp::Remainder => x.modulo(positive(&y)?, &extents),
            // Truncation is rounding down for what is never negative.
            BinaryOp::TruncDiv | BinaryOp::Fmod => {
                let divisor = positive(&y)?;
                let (low, _) = x.bounds(&extents)?;
                if low.as_const().is_none_or(|l| l < 0) {
                    return None;
                }
                if op == BinaryOp::Fmod {
                    x.modulo(divisor, &extents)
                } else {
                    x.floor_div(divisor, &extents)
                }
            }
            BinaryOp::Lt | BinaryOp::Le | BinaryOp::Gt | BinaryOp::Ge | BinaryOp::Eq => {
                // Program constants may be anything; a difference with them must not wrap.
                let small = |i: &Index| i.offset.as_const().is_none_or(|c| c.unsigned_abs() < 1 << 62);
                if !small(&x) || !small(&y) {
                    return None;
                }
                let difference = x.plus(&y.times(Size::from(-1)));
                let (least, most) = self.bounds(&difference)?;
                let (zero, one) = (Size::ZERO, Size::ONE);
                let (low, high) = match op {
                    BinaryOp::Lt => (least, zero),
                    BinaryOp::Le => (least, one),
                    BinaryOp::Gt => (one, most + one),
                    BinaryOp::Ge => (zero, most + one),
                    _ => (zero, one),
                };
                return Some(self.in_range(difference, low, high));
            }
            _ => return None,
        };
        Some(self.index_value(index))
    }
}

fn divides(op: BinaryOp) -> bool {
    matches!(op, BinaryOp::FloorDiv | BinaryOp::TruncDiv | BinaryOp::Remainder | BinaryOp::Fmod)
}

/// Decides what the loops decide, drops operations that nothing uses and joins equal ones. Loads may only be
/// joined while no store stands between them, which holds for all nests of the lowering: they load first and
/// store last.
pub(crate) fn tidy(nest: &LoopNest) -> Body {
    let simplified = share(nest, &nest.body);
    // Deciding a test can leave what only the other case used.
    drop_unused(&simplified)
}

fn share(nest: &LoopNest, body: &Body) -> Body {
    let mut shared = Body::default();
    let mut known: FxHashMap<Op, ValueId> = FxHashMap::default();
    let mut renamed: Vec<ValueId> = Vec::with_capacity(body.ops.len());
    for op in &body.ops {
        let mut op = rename(op, &renamed);
        match decide(nest, &shared, &op) {
            Some(Decided::Value(value)) => {
                renamed.push(value);
                continue;
            }
            Some(Decided::Truth(truth)) => op = Op::Const(Scalar::Bool(truth), DType::Bool),
            Some(Decided::Unguarded) => {
                if let Op::Load { guard, .. } | Op::Store { guard, .. } = &mut op {
                    *guard = None;
                }
            }
            None => {}
        }
        let value = match known.get(&op) {
            Some(value) if !matches!(op, Op::Store { .. }) => *value,
            _ => {
                let value = shared.push(op.clone());
                known.insert(op, value);
                value
            }
        };
        renamed.push(value);
    }
    shared
}

/// What an operation is known to be from its operands.
enum Decided {
    /// This value.
    Value(ValueId),
    /// This truth value.
    Truth(bool),
    /// An access whose guard always holds.
    Unguarded,
}

fn decide(nest: &LoopNest, body: &Body, op: &Op) -> Option<Decided> {
    let truth = |v: ValueId| match body.op(v) {
        Op::Const(Scalar::Bool(b), DType::Bool) => Some(*b),
        _ => None,
    };
    match op {
        Op::InRange { index, low, high } => {
            decided_range(index, *low, *high, &|v| nest.extent(v)).map(Decided::Truth)
        }
        Op::Binary(BinaryOp::And, a, b) => match (truth(*a), truth(*b)) {
            (Some(true), _) => Some(Decided::Value(*b)),
            (_, Some(true)) => Some(Decided::Value(*a)),
            (Some(false), _) | (_, Some(false)) => Some(Decided::Truth(false)),
            _ => (a == b).then_some(Decided::Value(*a)),
        },
        Op::Binary(BinaryOp::Or, a, b) => match (truth(*a), truth(*b)) {
            (Some(false), _) => Some(Decided::Value(*b)),
            (_, Some(false)) => Some(Decided::Value(*a)),
            (Some(true), _) | (_, Some(true)) => Some(Decided::Truth(true)),
            _ => None,
        },
        Op::Binary(BinaryOp::Mul, a, b) if is_int(body, *b, 1) => Some(Decided::Value(*a)),
        Op::Binary(BinaryOp::Mul, a, b) if is_int(body, *a, 1) => Some(Decided::Value(*b)),
        Op::Binary(BinaryOp::Add | BinaryOp::Sub, a, b) if is_int(body, *b, 0) => Some(Decided::Value(*a)),
        Op::Binary(BinaryOp::Add, a, b) if is_int(body, *a, 0) => Some(Decided::Value(*b)),
        Op::Unary(UnaryOp::Not, a) => truth(*a).map(|b| Decided::Truth(!b)),
        Op::Where(c, a, b) => truth(*c).map(|c| Decided::Value(if c { *a } else { *b })),
        Op::Load { guard: Some(g), .. } | Op::Store { guard: Some(g), .. } => {
            (truth(*g) == Some(true)).then_some(Decided::Unguarded)
        }
        _ => None,
    }
}

/// Whether a value is this integer constant. Floats are left alone: adding zero changes the sign of -0.0.
fn is_int(body: &Body, value: ValueId, wanted: i64) -> bool {
    matches!(body.op(value), Op::Const(Scalar::Int(v), dtype) if *v == wanted && dtype.is_int())
}

/// Whether an index lies in `low..high` for all iterations, or for none; `None` where that depends.
fn decided_range(
    index: &Index,
    low: Size,
    high: Size,
    extents: &dyn Fn(LoopVar) -> Option<Size>,
) -> Option<bool> {
    let (least, most) = index.bounds(extents)?;
    let known = |s: Size| s.as_const();
    if known(least - low).is_some_and(|d| d >= 0) && known(high - most).is_some_and(|d| d > 0) {
        return Some(true);
    }
    if known(most - low).is_some_and(|d| d < 0) || known(high - least).is_some_and(|d| d <= 0) {
        return Some(false);
    }
    None
}

/// The operations that a store or check needs.
pub(crate) fn drop_unused(body: &Body) -> Body {
    let mut used = vec![false; body.ops.len()];
    for (k, op) in body.ops.iter().enumerate().rev() {
        if matches!(op, Op::Store { .. } | Op::Check(..)) {
            used[k] = true;
        }
        if used[k] {
            op.for_each_operand(&mut |v| used[v.0 as usize] = true);
        }
    }
    if used.iter().all(|u| *u) {
        return body.clone();
    }
    let mut kept = Body::default();
    let mut renamed = vec![ValueId(0); body.ops.len()];
    for (k, op) in body.ops.iter().enumerate() {
        if used[k] {
            renamed[k] = kept.push(rename(op, &renamed));
        }
    }
    kept
}

fn rename(op: &Op, names: &[ValueId]) -> Op {
    let name = |v: ValueId| names[v.0 as usize];
    match op {
        // Most indices name no values and stay as they are.
        Op::Load { buffer, index, guard } if !index.is_indirect() => {
            Op::Load { buffer: *buffer, index: index.clone(), guard: guard.map(name) }
        }
        Op::Store { buffer, index, value, guard, mode } if !index.is_indirect() => Op::Store {
            buffer: *buffer,
            index: index.clone(),
            value: name(*value),
            guard: guard.map(name),
            mode: *mode,
        },
        Op::IndexValue(index) | Op::InRange { index, .. } if !index.is_indirect() => op.clone(),
        // No extents: an index must not be taken apart any further here.
        _ => op.substitute(&Index::of_loop, &name, &|_| None),
    }
}
