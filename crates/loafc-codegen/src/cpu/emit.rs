//! Turns a loop tree into LLVM IR: one function for each phase, explicit vectors in vector loops.
//!
//! A vector loop becomes up to three loops: one over several vectors with a reduction state for each, one over
//! single vectors, and at most one iteration in which the lanes behind the end are masked. Values that don't
//! depend on the loop's variable stay scalars.

use std::cell::RefCell;
use std::ffi::CString;

use inkwell::builder::Builder;
use inkwell::context::Context;
use inkwell::module::Module;
use llvm_sys::LLVMIntPredicate::{LLVMIntEQ, LLVMIntNE, LLVMIntSGE, LLVMIntSLT};
use loafc_ir::dtype::DType;
use loafc_ir::index::{Index, IndexAtom, LoopVar};
use loafc_ir::nest::{Failure, Op, ValueId};
use loafc_ir::size::Size;
use rustc_hash::{FxHashMap, FxHashSet};

use super::ir::{AliasScope, Block, Ir, T, V};
use super::reduce::{Parts, RegisterState};
use super::stream::{FEWEST_ROWS, Rows, gcd, large, streamed};
use crate::loop_tree::{AccumulatorId, Home, Kernel, Loop, Mapping, MemoryPlace, Node, Phase, SizeSlots};

/// Bodies with at most this many operations are unrolled fourfold where they reduce, so that additions of one
/// state need not wait for each other.
const UNROLL_BY_FOUR: usize = 16;
/// The same, twofold.
const UNROLL_BY_TWO: usize = 40;

/// The most states that a reduction has for one lane.
const MOST_COPIES: usize = 4;
/// Iterations from which a loop that does nothing but read and reduce fetches what it reads ahead.
const LONG_LOOP: i64 = 1024;

/// What can't be turned into machine code.
pub(super) type EmitError = String;

/// A value of the tree in the current loop.
#[derive(Copy, Clone, Debug)]
pub(super) struct Value {
    /// One scalar for all lanes, or a vector.
    pub(super) v: V,
    pub(super) dtype: DType,
}

/// The vector loop that is being emitted.
#[derive(Copy, Clone, Debug)]
pub(super) struct Lanes {
    pub(super) var: LoopVar,
    pub(super) count: u32,
    /// Which lanes lie before the end; `None` for all.
    pub(super) mask: Option<V>,
    /// Which of a reduction's states this vector goes to.
    pub(super) copy: usize,
}

/// A position in memory.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// The part that is the same for all iterations of the innermost loop.
    pub(super) fixed: V,
    /// What the innermost loop's variable adds.
    pub(super) moving: Option<V>,
    /// A number that the first lane's position is a multiple of.
    pub(super) divisor: i64,
    /// How lanes differ.
    pub(super) lanes: LanePlace,
}

#[derive(Clone, Debug)]
pub(super) enum LanePlace {
    /// Not at all.
    Same,
    /// By this many elements from one to the next.
    Stride(Size),
    /// Each adds its own i64.
    Each(V),
}

/// Emits all phases of a kernel as `{name}_{phase}`.
pub(super) fn emit<'b, 'ctx>(
    kernel: &Kernel,
    slots: &SizeSlots,
    name: &str,
    vector_bits: u32,
    (context, module, builder): (&'ctx Context, &'b Module<'ctx>, &'b Builder<'ctx>),
) -> Result<(), EmitError> {
    for k in 0..kernel.phases.len() {
        let symbol = CString::new(format!("{name}_{k}")).map_err(|e| e.to_string())?;
        let ir = Ir::new(context, module, builder, &symbol, |ir| {
            let (p, i) = (ir.ptr(), ir.int(64));
            (ir.int(32), vec![p, p, i, i, p, p])
        });
        let mut emitter = Emitter::new(kernel, slots, ir, vector_bits);
        emitter.phase(k)?;
        if let Some(fault) = emitter.fault.into_inner() {
            return Err(fault);
        }
    }
    Ok(())
}

pub(super) struct Emitter<'a, 'b, 'ctx> {
    pub(super) kernel: &'a Kernel,
    pub(super) ir: Ir<'b, 'ctx>,
    pub(super) vector_bits: u32,
    sizes: FxHashMap<Size, V>,
    pub(super) memory: Vec<V>,
    pub(super) scopes: Vec<AliasScope>,
    vars: FxHashMap<LoopVar, V>,
    values: FxHashMap<ValueId, Value>,
    pub(super) states: FxHashMap<AccumulatorId, RegisterState>,
    pub(super) lanes: Option<Lanes>,
    /// Lanes and copies of the states in registers.
    pub(super) shapes: FxHashMap<AccumulatorId, (Option<u32>, usize)>,
    /// Variables that stand for something computed, such as a digit of a unit's number, and not for a loop.
    computed: FxHashSet<LoopVar>,
    /// The variable of the innermost loop around.
    innermost: Option<LoopVar>,
    /// The first thing that was missing.
    fault: RefCell<Option<EmitError>>,
    /// Values that grow from each iteration of any loop to the next one that changes them.
    pub(super) ascending: FxHashSet<ValueId>,
    /// States in memory that the current iteration of a vector loop has changed: they are written at its end.
    pub(super) changed: Vec<(AccumulatorId, Parts)>,
    /// A number that each variable is a multiple of, where one is known.
    pub(super) divisors: FxHashMap<LoopVar, i64>,
    /// Which memories are written past the cache where they are aligned, and whether this code is for that.
    pub(super) streamed: Vec<bool>,
    pub(super) streaming: bool,
    /// Which memories are too large for any cache and only read, and whether the current loop fetches them ahead.
    pub(super) large: Vec<bool>,
    pub(super) fetches_ahead: bool,
    /// The loop around the vector loop, where that makes a short run of each of its iterations.
    pub(super) rows: Option<Rows>,
}

impl<'a, 'b, 'ctx> Emitter<'a, 'b, 'ctx> {
    fn new(kernel: &'a Kernel, slots: &SizeSlots, ir: Ir<'b, 'ctx>, vector_bits: u32) -> Self {
        let mut one = Emitter {
            kernel,
            ir,
            vector_bits,
            sizes: FxHashMap::default(),
            memory: Vec::new(),
            scopes: Vec::new(),
            vars: FxHashMap::default(),
            computed: FxHashSet::default(),
            values: FxHashMap::default(),
            states: FxHashMap::default(),
            lanes: None,
            shapes: FxHashMap::default(),
            innermost: None,
            fault: RefCell::default(),
            ascending: FxHashSet::default(),
            changed: Vec::new(),
            divisors: FxHashMap::default(),
            streamed: streamed(kernel),
            streaming: false,
            large: large(kernel),
            fetches_ahead: false,
            rows: None,
        };
        one.prologue(slots);
        one
    }

    /// Loads sizes and buffers, and finds the scratch memories.
    fn prologue(&mut self, slots: &SizeSlots) {
        let ir = &self.ir;
        ir.mark_nounwind();
        ir.attribute("prefer-vector-width", &self.vector_bits.to_string());
        ir.attribute("min-legal-vector-width", &self.vector_bits.to_string());
        let (buffers, sizes) = (ir.param(0), ir.param(1));
        for (k, size) in slots.sizes.iter().enumerate() {
            let at = ir.element(ir.int(64), sizes, ir.i64(k as i64));
            self.sizes.insert(*size, ir.load(ir.int(64), at, 8));
        }
        self.scopes = ir.alias_scopes(self.kernel.memory.len());
        let offsets = self.kernel.scratch_offsets();
        let mut params = 0;
        for (m, offset) in self.kernel.memory.iter().zip(offsets) {
            let pointer = match m.place {
                MemoryPlace::Param(_) => {
                    let at = self.ir.element(self.ir.ptr(), buffers, self.ir.i64(params));
                    params += 1;
                    self.ir.load(self.ir.ptr(), at, 8)
                }
                MemoryPlace::Shared | MemoryPlace::Thread => {
                    let block = if m.place == MemoryPlace::Shared { 4 } else { 5 };
                    let offset = self.size(offset);
                    self.ir.element(self.ir.int(8), self.ir.param(block), offset)
                }
            };
            self.memory.push(pointer);
        }
    }

    /// A size as an i64.
    pub(super) fn size(&self, size: Size) -> V {
        match size.as_const() {
            Some(c) => self.ir.i64(c),
            None => self.known(self.sizes.get(&size).copied(), || format!("size {size} has no slot")),
        }
    }

    fn phase(&mut self, k: usize) -> Result<(), EmitError> {
        let kernel = self.kernel;
        let phase = &kernel.phases[k];
        self.find_shapes(&phase.body, None);
        // Once more, for states that others of known shape are merged into further up.
        self.find_shapes(&phase.body, None);
        if self.stores_to_streamed(&phase.body) {
            let [streams, caches] = ["streams", "caches"].map(|name| self.ir.block(name));
            self.ir.cond_br(self.all_aligned(), streams, caches);
            self.ir.at(streams);
            self.streaming = true;
            self.units(phase)?;
            self.streaming = false;
            self.ir.at(caches);
        }
        self.units(phase)
    }

    /// Runs the units and returns.
    fn units(&mut self, phase: &Phase) -> Result<(), EmitError> {
        let (begin, end) = (self.ir.param(2), self.ir.param(3));
        let after = self.counted_loop(phase.unit, begin, end, 1, |e| e.nodes(&phase.body))?;
        self.ir.at(after);
        if self.streaming {
            // Other threads must see what went past the cache.
            self.ir.intrinsic("llvm.x86.sse.sfence", &[], &[]);
        }
        self.ir.ret(self.ir.i32(0));
        Ok(())
    }

    fn stores_to_streamed(&self, nodes: &[Node]) -> bool {
        nodes.iter().any(|node| match node {
            Node::Op(_, Op::Store { buffer, .. }) => self.streamed[buffer.0 as usize],
            Node::Transpose(t) => self.streamed[t.to.0.0 as usize],
            Node::Loop(l) => self.stores_to_streamed(&l.body),
            _ => false,
        })
    }

    /// A loop from `begin` while below `end`; returns the block behind it.
    pub(super) fn counted_loop(
        &mut self,
        var: LoopVar,
        begin: V,
        end: V,
        step: i64,
        body: impl FnOnce(&mut Self) -> Result<(), EmitError>,
    ) -> Result<Block, EmitError> {
        let before = self.ir.current();
        let (head, after) = (self.ir.block("loop"), self.ir.block("after"));
        let enter = self.ir.icmp(LLVMIntSLT, begin, end);
        self.ir.cond_br(enter, head, after);
        self.ir.at(head);
        let counter = self.ir.phi(self.ir.int(64), &[(begin, before)]);
        let outer_var = self.vars.insert(var, counter);
        let outer_innermost = self.innermost.replace(var);
        body(self)?;
        let next = self.ir.add(counter, self.ir.i64(step));
        let again = self.ir.icmp(LLVMIntSLT, next, end);
        self.ir.add_incoming(counter, &[(next, self.ir.current())]);
        self.ir.cond_br(again, head, after);
        self.innermost = outer_innermost;
        if let Some(v) = outer_var {
            self.vars.insert(var, v);
        }
        Ok(after)
    }

    fn nodes(&mut self, nodes: &[Node]) -> Result<(), EmitError> {
        nodes.iter().try_for_each(|n| self.node(n))
    }

    fn node(&mut self, node: &Node) -> Result<(), EmitError> {
        match node {
            Node::Op(v, op) => {
                if let Some(value) = self.op(*v, op)? {
                    self.values.insert(*v, value);
                }
            }
            Node::Var(v, index) => {
                let place = self.place(index);
                let value = self.uniform_place(&place);
                self.vars.insert(*v, value);
                self.computed.insert(*v);
                self.divisors.insert(*v, place.divisor);
            }
            Node::Loop(l) => self.a_loop(l)?,
            Node::Transpose(t) => self.transpose(t)?,
            Node::Init(a) => self.init(*a)?,
            Node::Accumulate { into, value, position } => self.accumulate(*into, *value, *position)?,
            Node::Merge { into, from } => self.merge(*into, *from)?,
            Node::Finish { of, first, second } => {
                let (a, b) = self.finish(*of, self.dtype(*first), second.map(|s| self.dtype(s)))?;
                self.values.insert(*first, a);
                if let (Some(second), Some(b)) = (second, b) {
                    self.values.insert(*second, b);
                }
            }
        }
        Ok(())
    }

    pub(super) fn dtype(&self, v: ValueId) -> DType {
        self.kernel.types[v.0 as usize]
    }

    pub(super) fn value(&self, v: ValueId) -> Result<Value, EmitError> {
        self.values.get(&v).copied().ok_or_else(|| format!("{v} has no value"))
    }

    fn a_loop(&mut self, l: &Loop) -> Result<(), EmitError> {
        self.computed.remove(&l.var);
        let begin = self.bound(&l.begin);
        let trip = constant_trip(l);
        let end = match trip {
            Some(trip) => self.ir.add(begin, self.ir.i64(trip)),
            None => self.lowest(&l.end),
        };
        match l.mapping {
            Mapping::Vector => self.vector_loop(l, begin, end, trip),
            Mapping::Serial | Mapping::Tile => {
                self.divisors.insert(l.var, gcd(self.divisor(&l.begin), l.step));
                let outer_rows = std::mem::replace(&mut self.rows, rows_of(l, trip));
                let after = self.counted_loop(l.var, begin, end, l.step, |e| e.nodes(&l.body))?;
                self.rows = outer_rows;
                self.ir.at(after);
                Ok(())
            }
        }
    }

    pub(super) fn bound(&mut self, index: &Index) -> V {
        let place = self.place(index);
        self.uniform_place(&place)
    }

    /// The smallest of some bounds.
    pub(super) fn lowest(&mut self, ends: &[Index]) -> V {
        let ends: Vec<V> = ends.iter().map(|e| self.bound(e)).collect();
        let lower = |a, b| self.ir.intrinsic_like("llvm.smin", &[a, b]);
        self.known(ends.into_iter().reduce(lower), || "a loop has no end".to_owned())
    }

    /// The current value of a variable.
    pub(super) fn var(&self, var: LoopVar) -> V {
        self.known(self.vars.get(&var).copied(), || format!("{var:?} has no value"))
    }

    /// A value that must be there. Where it is not, emitting goes on with another one and ends with an error.
    fn known(&self, value: Option<V>, error: impl FnOnce() -> EmitError) -> V {
        value.unwrap_or_else(|| {
            self.fault.borrow_mut().get_or_insert_with(error);
            self.ir.i64(0)
        })
    }

    /// Gives a variable another value; returns the one before.
    pub(super) fn set_var(&mut self, var: LoopVar, value: V) -> Option<V> {
        self.vars.insert(var, value)
    }

    fn vector_loop(&mut self, l: &Loop, begin: V, end: V, trip: Option<i64>) -> Result<(), EmitError> {
        let count = self.lane_count(l);
        let lanes = i64::from(count);
        self.divisors.insert(l.var, gcd(self.divisor(&l.begin), lanes));
        let unroll = unroll(l) as i64;
        let mut at = begin;
        if unroll > 1 && trip.is_none_or(|t| t >= lanes * unroll) {
            at = self.whole_vectors(l, at, end, count, unroll)?;
        }
        if trip.is_none_or(|t| t % (lanes * if unroll > 1 { unroll } else { i64::MAX / lanes }) >= lanes) {
            at = self.whole_vectors(l, at, end, count, 1)?;
        }
        if trip.is_some_and(|t| t % lanes == 0) {
            return Ok(());
        }
        let (tail, after) = (self.ir.block("tail"), self.ir.block("after"));
        let rest = self.ir.sub(end, at);
        let any = self.ir.icmp(LLVMIntSLT, self.ir.i64(0), rest);
        self.ir.cond_br(any, tail, after);
        self.ir.at(tail);
        let rest = self.ir.trunc(rest, self.ir.int(32));
        let rest = self.ir.splat(rest, count);
        let mask = self.ir.icmp(LLVMIntSLT, self.ir.iota(self.ir.int(32), count, 1), rest);
        self.lanes_body(l, at, Lanes { var: l.var, count, mask: Some(mask), copy: 0 })?;
        self.ir.br(after);
        self.ir.at(after);
        Ok(())
    }

    /// The iterations that fill `unroll` vectors at once; returns the first value left over.
    fn whole_vectors(&mut self, l: &Loop, begin: V, end: V, count: u32, unroll: i64) -> Result<V, EmitError> {
        let step = i64::from(count) * unroll;
        let ir = &self.ir;
        let length = ir.sub(end, begin);
        // An end before the beginning must not round to iterations.
        let length = ir.intrinsic_like("llvm.smax", &[length, ir.i64(0)]);
        let whole = ir.and(length, ir.i64(!(step - 1)));
        let last = ir.add(begin, whole);
        let after = self.counted_loop(l.var, begin, last, step, |e| {
            let base = e.vars[&l.var];
            for copy in 0..unroll {
                let at = e.ir.add(base, e.ir.i64(copy * i64::from(count)));
                e.lanes_body(l, at, Lanes { var: l.var, count, mask: None, copy: copy as usize })?;
            }
            Ok(())
        })?;
        self.ir.at(after);
        Ok(last)
    }

    fn lanes_body(&mut self, l: &Loop, at: V, lanes: Lanes) -> Result<(), EmitError> {
        let outer = self.vars.insert(l.var, at);
        let innermost = self.innermost.replace(l.var);
        self.lanes = Some(lanes);
        self.fetches_ahead =
            unroll(l) == MOST_COPIES && constant_trip(l).is_none_or(|trip| trip >= LONG_LOOP);
        self.nodes(&l.body)?;
        for (state, parts) in std::mem::take(&mut self.changed) {
            self.write_array(state, &parts)?;
        }
        self.lanes = None;
        self.innermost = innermost;
        if let Some(v) = outer {
            self.vars.insert(l.var, v);
        }
        Ok(())
    }

    /// Lanes of a vector loop: as many as the widest type that its values are mostly computed in leaves room for.
    fn lane_count(&self, l: &Loop) -> u32 {
        let mut widest = 1;
        let mut has_float = false;
        for node in &l.body {
            let dtype = match node {
                Node::Op(_, Op::Const(..) | Op::IndexValue(_) | Op::SizeValue(_)) => continue,
                Node::Op(v, _) => self.dtype(*v),
                Node::Init(a) | Node::Accumulate { into: a, .. } | Node::Merge { into: a, .. } => {
                    self.kernel.accumulators[a.0 as usize].dtype
                }
                Node::Finish { first, .. } => self.dtype(*first),
                Node::Var(..) | Node::Loop(_) | Node::Transpose(_) => continue,
            };
            has_float |= dtype.compute() == DType::F32;
            widest = widest.max(dtype.compute().bytes() as u32);
        }
        // Beside f32, wider values take two registers rather than halving all.
        let bytes = if has_float { 4 } else { widest };
        (self.vector_bits / 8 / bytes).clamp(4, 64)
    }

    /// How many lanes and copies each state in registers has: as the vector loop has in which it takes values.
    fn find_shapes(&mut self, nodes: &[Node], vector: Option<(u32, usize)>) {
        for node in nodes {
            match node {
                Node::Loop(l) => {
                    let inside = match l.mapping {
                        Mapping::Vector => Some((self.lane_count(l), unroll(l))),
                        _ => None,
                    };
                    self.find_shapes(&l.body, inside);
                }
                Node::Accumulate { into, .. } => {
                    let shape = vector.map_or((None, 1), |(lanes, copies)| (Some(lanes), copies));
                    self.shapes.insert(*into, shape);
                }
                Node::Merge { into, from } => {
                    let is_register =
                        |a: &AccumulatorId| self.kernel.accumulators[a.0 as usize].home == Home::Registers;
                    let shape = match is_register(from) {
                        true => self.shapes.get(from).copied().unwrap_or((None, 1)),
                        false => (None, 1),
                    };
                    if is_register(into) {
                        self.shapes.insert(*into, shape);
                    }
                }
                _ => {}
            }
        }
    }

    /// A position that all lanes share, as one i64.
    fn uniform_place(&self, place: &Place) -> V {
        match place.moving {
            Some(moving) => self.ir.add(place.fixed, moving),
            None => place.fixed,
        }
    }

    /// An index as an i64, a vector where lanes differ.
    pub(super) fn index_value(&mut self, index: &Index) -> V {
        let place = self.place(index);
        let base = self.uniform_place(&place);
        let Some(lanes) = self.lanes else { return base };
        let each = match place.lanes {
            LanePlace::Same => return base,
            LanePlace::Stride(stride) => self.lane_offsets(stride, lanes.count),
            LanePlace::Each(each) => each,
        };
        let base = self.ir.splat(base, lanes.count);
        self.ir.add(base, each)
    }

    /// `0, stride, 2·stride, …` as i64.
    pub(super) fn lane_offsets(&self, stride: Size, count: u32) -> V {
        match stride.as_const() {
            Some(c) => self.ir.iota(self.ir.int(64), count, c),
            None => {
                let stride = self.ir.splat(self.size(stride), count);
                self.ir.mul(self.ir.iota(self.ir.int(64), count, 1), stride)
            }
        }
    }

    /// Computes a position, keeping apart what the innermost loop does not change.
    pub(super) fn place(&mut self, index: &Index) -> Place {
        let mut fixed = self.size(index.offset);
        let (mut moving, mut each, mut stride) = (None, None, Size::ZERO);
        let sum = |ir: &Ir<'b, 'ctx>, a: Option<V>, b: V| Some(a.map_or(b, |a| ir.add(a, b)));
        for (atom, factor) in &index.terms {
            if let IndexAtom::Loop(var) = atom {
                let value = self.var(*var);
                let term = self.scaled(value, *factor);
                if self.lanes.is_some_and(|l| l.var == *var) {
                    stride = *factor;
                }
                if self.innermost == Some(*var) {
                    moving = sum(&self.ir, moving, term);
                } else {
                    fixed = self.ir.add(fixed, term);
                }
                continue;
            }
            let value = self.atom(atom);
            let term = self.scaled(value, *factor);
            match self.ir.lanes_of(term) {
                Some(_) => each = sum(&self.ir, each, term),
                None => moving = sum(&self.ir, moving, term),
            }
        }
        let lanes = match (each, self.lanes) {
            (Some(each), Some(l)) if !stride.is(0) => {
                let offsets = self.lane_offsets(stride, l.count);
                LanePlace::Each(self.ir.add(each, offsets))
            }
            (Some(each), _) => LanePlace::Each(each),
            (None, _) if stride.is(0) => LanePlace::Same,
            (None, _) => LanePlace::Stride(stride),
        };
        Place { fixed, moving, lanes, divisor: self.divisor(index) }
    }

    fn scaled(&self, value: V, factor: Size) -> V {
        if factor.is(1) {
            return value;
        }
        let factor = self.size(factor);
        match self.ir.lanes_of(value) {
            Some(n) => {
                let factor = self.ir.splat(factor, n);
                self.ir.mul(value, factor)
            }
            None => self.ir.mul(value, factor),
        }
    }

    fn atom(&mut self, atom: &IndexAtom) -> V {
        match atom {
            IndexAtom::Loop(var) => self.var(*var),
            IndexAtom::Value(v) => match self.values.get(v).copied() {
                Some(value) => self.cast(value, DType::I64).v,
                None => self.known(None, || format!("{v} has no value")),
            },
            IndexAtom::FloorDiv(d) => self.division(&d.index, d.divisor).0,
            IndexAtom::Mod(d) => self.division(&d.index, d.divisor).1,
        }
    }

    /// Quotient rounded down, and remainder.
    fn division(&mut self, inner: &Index, divisor: Size) -> (V, V) {
        let x = self.index_value(inner);
        let mut d = self.size(divisor);
        if let Some(n) = self.ir.lanes_of(x) {
            d = self.ir.splat(d, n);
        }
        let ir = &self.ir;
        if never_negative(inner) && divisor.as_const().is_none_or(|c| c > 0) {
            return (ir.udiv(x, d), ir.urem(x, d));
        }
        let (quotient, rest) = (ir.sdiv(x, d), ir.srem(x, d));
        let zero = ir.zero(ir.type_of(x));
        let signs_differ = ir.icmp(LLVMIntSLT, ir.xor(rest, d), zero);
        let inexact = ir.icmp(LLVMIntNE, rest, zero);
        let down = ir.and(signs_differ, inexact);
        let one = ir.zext(down, ir.type_of(x));
        (ir.sub(quotient, one), ir.add(rest, ir.select(down, d, zero)))
    }

    /// Stops with the number of a check where a condition is false in a lane that counts.
    fn check(&mut self, condition: Value, failure: &Failure) -> Result<(), EmitError> {
        let number = self.kernel.failures.iter().position(|f| f == failure);
        let number = number.ok_or_else(|| format!("check {failure:?} has no number"))? as i64 + 1;
        let ir = &self.ir;
        let holds = match ir.lanes_of(condition.v) {
            None => condition.v,
            Some(n) => {
                let all = match self.lanes.and_then(|l| l.mask) {
                    Some(mask) => ir.or(condition.v, ir.xor(mask, ir.const_int(ir.type_of(mask), -1))),
                    None => condition.v,
                };
                let bits = ir.bitcast(all, ir.int(n));
                ir.icmp(LLVMIntEQ, bits, ir.const_int(ir.int(n), -1))
            }
        };
        let (fails, goes_on) = (ir.block("fails"), ir.block("holds"));
        ir.cond_br(holds, goes_on, fails);
        ir.at(fails);
        ir.ret(ir.i32(number));
        ir.at(goes_on);
        Ok(())
    }

    /// Whether an index grows whenever it changes: it counts a single loop, and loops count upwards.
    fn counts_a_loop(&self, index: &Index) -> bool {
        let [(IndexAtom::Loop(var), stride)] = index.terms.as_slice() else { return false };
        !self.computed.contains(var) && stride.as_const().is_some_and(|s| s > 0)
    }

    fn op(&mut self, v: ValueId, op: &Op) -> Result<Option<Value>, EmitError> {
        let dtype = self.dtype(v);
        let value = match op {
            Op::Const(value, dtype) => self.constant(*value, *dtype),
            Op::SizeValue(size) => Value { v: self.size(*size), dtype: DType::I64 },
            Op::IndexValue(index) => {
                if self.counts_a_loop(index) {
                    self.ascending.insert(v);
                }
                Value { v: self.index_value(index), dtype: DType::I64 }
            }
            Op::InRange { index, low, high } => self.in_range(index, *low, *high),
            Op::Load { buffer, index, guard } => self.load_op(*buffer, index, *guard)?,
            Op::Store { buffer, index, value, guard, mode } => {
                self.store_op(*buffer, index, *value, *guard, *mode)?;
                return Ok(None);
            }
            Op::Unary(op, a) => self.unary(*op, self.value(*a)?)?,
            Op::Binary(op, a, b) => self.binary(*op, self.value(*a)?, self.value(*b)?)?,
            Op::Where(c, a, b) => {
                let (c, a, b) = (self.value(*c)?, self.value(*a)?, self.value(*b)?);
                let [c, a, b] = self.equal_lanes([c, a, b]);
                Value { v: self.ir.select(c.v, a.v, b.v), dtype: a.dtype }
            }
            Op::Fma(a, b, c) => self.fma(self.value(*a)?, self.value(*b)?, self.value(*c)?)?,
            Op::Cast(a, to) => self.cast(self.value(*a)?, *to),
            Op::Bitcast(a, to) => self.reinterpret(self.value(*a)?, *to)?,
            Op::Check(a, failure) => {
                self.check(self.value(*a)?, failure)?;
                return Ok(None);
            }
            Op::Reduce { .. } | Op::ReduceSecond(_) => {
                return Err(format!("{v} is a reduction among operations"));
            }
        };
        Ok(Some(Value { dtype, ..value }))
    }

    fn in_range(&mut self, index: &Index, low: Size, high: Size) -> Value {
        let x = self.index_value(index);
        let bound = |e: &Self, size| match e.ir.lanes_of(x) {
            Some(n) => e.ir.splat(e.size(size), n),
            None => e.size(size),
        };
        let from = self.ir.icmp(LLVMIntSGE, x, bound(self, low));
        let below = self.ir.icmp(LLVMIntSLT, x, bound(self, high));
        Value { v: self.ir.and(from, below), dtype: DType::Bool }
    }

    /// The values with equally many lanes: scalars are repeated beside vectors.
    pub(super) fn equal_lanes<const N: usize>(&self, values: [Value; N]) -> [Value; N] {
        let lanes = values.iter().find_map(|x| self.ir.lanes_of(x.v));
        let Some(lanes) = lanes else { return values };
        values.map(|x| match self.ir.lanes_of(x.v) {
            Some(_) => x,
            None => Value { v: self.ir.splat(x.v, lanes), dtype: x.dtype },
        })
    }

    /// The type that values of an element type are computed in.
    pub(super) fn register_type(&self, dtype: DType) -> T {
        match dtype.compute() {
            DType::F64 | DType::C128 => self.ir.double(),
            DType::Bool => self.ir.int(1),
            d if d.is_int() => self.ir.int(d.bytes() as u32 * 8),
            _ => self.ir.float(),
        }
    }
}

/// The loop as one over rows, where it is long and each iteration makes one short vector loop.
fn rows_of(l: &Loop, trip: Option<i64>) -> Option<Rows> {
    let length = l.body.iter().find_map(|node| match node {
        Node::Loop(inner) if inner.mapping == Mapping::Vector => constant_trip(inner),
        _ => None,
    })?;
    trip.is_none_or(|trip| trip >= FEWEST_ROWS).then_some(Rows { var: l.var, length })
}

/// Number of iterations, where begin and end differ by a constant.
fn constant_trip(l: &Loop) -> Option<i64> {
    let [end] = l.end.as_slice() else { return None };
    let length = end.plus(&l.begin.times(Size::from(-1)));
    length.as_constant().and_then(Size::as_const).map(|t| t.max(0))
}

/// How many vectors a vector loop works on at once.
fn unroll(l: &Loop) -> usize {
    let reduces = l.body.iter().any(|n| matches!(n, Node::Accumulate { .. }));
    // A Welford state is four wide vectors: two of them fill the registers.
    let operations = l.body.iter().map(node_weight).sum::<usize>();
    match reduces {
        true if operations <= UNROLL_BY_FOUR => MOST_COPIES,
        true if operations <= UNROLL_BY_TWO => 2,
        _ => 1,
    }
}

fn node_weight(node: &Node) -> usize {
    match node {
        Node::Op(_, Op::Unary(op, _)) => 1 + super::math::cost(*op) as usize,
        Node::Op(_, Op::Binary(op, ..)) => 1 + super::math::binary_cost(*op) as usize,
        Node::Op(_, Op::Load { .. } | Op::Store { .. }) => 2,
        Node::Accumulate { .. } => 3,
        _ => 1,
    }
}

/// Whether all terms are loop variables, which are never negative, with positive factors.
fn never_negative(index: &Index) -> bool {
    let positive = |s: Size| s.as_const().is_some_and(|c| c >= 0);
    positive(index.offset)
        && index.terms.iter().all(|(atom, factor)| matches!(atom, IndexAtom::Loop(_)) && positive(*factor))
}
