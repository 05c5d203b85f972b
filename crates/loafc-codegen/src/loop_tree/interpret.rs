//! Runs a loop tree slowly and plainly, unit by unit and without lanes: the oracle that machine code is
//! compared with, and what is itself compared with the interpretation of groups.

use loafc_ir::dtype::{DType, Scalar};
use loafc_ir::index::{Index, IndexAtom, LoopVar};
use loafc_ir::interp::InterpError;
use loafc_ir::interp::body::Memory as Access;
use loafc_ir::interp::memory::{HostBuffer, HostMemory};
use loafc_ir::interp::scalar::{self, ScalarError};
use loafc_ir::nest::{BinaryOp, BufferId, Op, ReduceOp, StoreMode, ValueId};
use loafc_ir::size::{Size, SymbolValues};
use rustc_hash::FxHashMap;

use super::{AccumulatorId, Home, Kernel, Loop, MemoryPlace, Node, Range};

/// Runs all phases. `params` names the buffer in `memory` that each parameter is.
pub fn interpret(
    kernel: &Kernel,
    params: &[BufferId],
    sizes: &SymbolValues,
    memory: &mut dyn Access,
) -> Result<(), InterpError> {
    let mut scratch = HostMemory::default();
    let mut places = Vec::new();
    let mut next = params.iter();
    for m in &kernel.memory {
        match m.place {
            MemoryPlace::Param(_) => {
                places.push(next.next().copied());
                scratch.buffers.push(None);
            }
            MemoryPlace::Shared | MemoryPlace::Thread => {
                let len = usize::try_from(eval(m.len, sizes)?).unwrap_or(0);
                places.push(None);
                scratch.buffers.push(Some(HostBuffer::new(&m.name, m.dtype, len)));
            }
        }
    }
    let mut run = Run {
        kernel,
        sizes,
        memory,
        scratch,
        places,
        values: vec![Scalar::Int(0); kernel.types.len()],
        vars: FxHashMap::default(),
        registers: FxHashMap::default(),
        arrays: FxHashMap::default(),
    };
    for phase in &kernel.phases {
        for unit in 0..eval(phase.units, sizes)? {
            run.vars.insert(phase.unit, unit);
            run.nodes(&phase.body)?;
        }
    }
    Ok(())
}

fn eval(size: Size, sizes: &SymbolValues) -> Result<i64, InterpError> {
    size.eval(sizes).ok_or_else(|| InterpError::Size(size.to_string()))
}

/// What is combined so far, in the widest type there is.
#[derive(Clone, Debug)]
struct State {
    op: ReduceOp,
    dtype: DType,
    value: Scalar,
    position: i64,
    count: f64,
    squares: f64,
}

impl State {
    fn new(op: ReduceOp, dtype: DType) -> State {
        State { op, dtype, value: scalar::identity(op, dtype), position: 0, count: 0.0, squares: 0.0 }
    }

    fn of_value(op: ReduceOp, dtype: DType, value: Scalar, position: i64) -> State {
        State { op, dtype, value, position, count: 1.0, squares: 0.0 }
    }

    fn merge(&mut self, other: &State) -> Result<(), ScalarError> {
        let wide = if self.dtype.is_float() { DType::F64 } else { self.dtype };
        let combined = |op| scalar::binary(op, wide, self.value, other.value);
        match self.op {
            ReduceOp::Sum => self.value = combined(BinaryOp::Add)?,
            ReduceOp::Prod => self.value = combined(BinaryOp::Mul)?,
            ReduceOp::Max => self.value = combined(BinaryOp::Max)?,
            ReduceOp::Min => self.value = combined(BinaryOp::Min)?,
            ReduceOp::Any => self.value = combined(BinaryOp::Or)?,
            ReduceOp::All => self.value = combined(BinaryOp::And)?,
            ReduceOp::Xor => self.value = combined(BinaryOp::Xor)?,
            ReduceOp::ArgMax | ReduceOp::ArgMin => {
                if other.count > 0.0 && (self.count == 0.0 || self.is_beaten_by(other)?) {
                    (self.value, self.position) = (other.value, other.position);
                }
            }
            ReduceOp::Welford => self.merge_means(other),
        }
        self.count += other.count;
        Ok(())
    }

    fn is_beaten_by(&self, other: &State) -> Result<bool, ScalarError> {
        let better = if self.op == ReduceOp::ArgMax { BinaryOp::Gt } else { BinaryOp::Lt };
        let is_nan = |x: Scalar| matches!(x, Scalar::Float(v) if v.is_nan());
        Ok(match (is_nan(other.value), is_nan(self.value)) {
            (true, false) => true,
            (false, true) => false,
            (true, true) => other.position < self.position,
            (false, false) => {
                let equal = scalar::binary(BinaryOp::Eq, self.dtype, other.value, self.value)?.to_bool();
                scalar::binary(better, self.dtype, other.value, self.value)?.to_bool()
                    || (equal && other.position < self.position)
            }
        })
    }

    fn merge_means(&mut self, other: &State) {
        let count = self.count + other.count;
        if count == 0.0 {
            return;
        }
        let (a, b) = (self.value.to_f64(), other.value.to_f64());
        let difference = if self.count == 0.0 || other.count == 0.0 { 0.0 } else { b - a };
        let base = if self.count == 0.0 { b } else { a };
        self.value = Scalar::Float(base + difference * other.count / count);
        self.squares += other.squares + difference * difference * self.count * other.count / count;
    }
}

struct Run<'a> {
    kernel: &'a Kernel,
    sizes: &'a SymbolValues,
    memory: &'a mut dyn Access,
    scratch: HostMemory,
    /// The caller's buffer behind each of the kernel's memories that has one.
    places: Vec<Option<BufferId>>,
    values: Vec<Scalar>,
    vars: FxHashMap<LoopVar, i64>,
    registers: FxHashMap<AccumulatorId, State>,
    arrays: FxHashMap<(BufferId, i64), State>,
}

impl Run<'_> {
    fn nodes(&mut self, nodes: &[Node]) -> Result<(), InterpError> {
        nodes.iter().try_for_each(|n| self.node(n))
    }

    fn node(&mut self, node: &Node) -> Result<(), InterpError> {
        match node {
            Node::Op(v, op) => {
                let value = self.op(*v, op)?;
                self.values[v.0 as usize] = value;
            }
            Node::Var(v, index) => {
                let value = self.index(index)?;
                self.vars.insert(*v, value);
            }
            Node::Loop(l) => self.a_loop(l)?,
            Node::Transpose(t) => {
                let (rows, columns) = (self.range(&t.rows)?, self.range(&t.columns)?);
                for row in rows {
                    for column in columns.clone() {
                        self.vars.insert(t.rows.var, row);
                        self.vars.insert(t.columns.var, column);
                        let value = self.load(t.from.0, self.index(&t.from.1)?)?;
                        self.store(t.to.0, self.index(&t.to.1)?, value)?;
                    }
                }
            }
            Node::Init(a) => {
                let accumulator = &self.kernel.accumulators[a.0 as usize];
                let state = State::new(accumulator.op, accumulator.dtype);
                self.set_state(*a, state)?;
            }
            Node::Accumulate { into, value, position } => {
                let accumulator = &self.kernel.accumulators[into.0 as usize];
                let position = position.map_or(0, |p| self.value(p).to_i64());
                let other = State::of_value(accumulator.op, accumulator.dtype, self.value(*value), position);
                self.merge(*into, &other)?;
            }
            Node::Merge { into, from } => {
                let other = self.state(*from)?;
                self.merge(*into, &other)?;
            }
            Node::Finish { of, first, second } => {
                let state = self.state(*of)?;
                let rounded = |x: Scalar| match x {
                    Scalar::Float(v) => Scalar::Float(scalar::round_to_compute(state.dtype, v)),
                    other => other,
                };
                self.values[first.0 as usize] = rounded(state.value);
                if let Some(second) = second {
                    self.values[second.0 as usize] = match state.op {
                        ReduceOp::Welford => rounded(Scalar::Float(state.squares)),
                        _ => Scalar::Int(state.position),
                    };
                }
            }
        }
        Ok(())
    }

    fn a_loop(&mut self, l: &Loop) -> Result<(), InterpError> {
        let range = Range { var: l.var, begin: l.begin.clone(), end: l.end.clone() };
        for at in self.range(&range)?.step_by(l.step as usize) {
            self.vars.insert(l.var, at);
            self.nodes(&l.body)?;
        }
        Ok(())
    }

    fn range(&self, range: &Range) -> Result<std::ops::Range<i64>, InterpError> {
        let mut end = i64::MAX;
        for e in &range.end {
            end = end.min(self.index(e)?);
        }
        Ok(self.index(&range.begin)?..end)
    }

    fn merge(&mut self, into: AccumulatorId, other: &State) -> Result<(), InterpError> {
        let mut state = self.state(into)?;
        state.merge(other).map_err(|source| InterpError::Scalar { value: 0, source })?;
        self.set_state(into, state)
    }

    fn state(&self, a: AccumulatorId) -> Result<State, InterpError> {
        let accumulator = &self.kernel.accumulators[a.0 as usize];
        let state = match &accumulator.home {
            Home::Registers => self.registers.get(&a),
            Home::Array { memory, index } => self.arrays.get(&(memory[0], self.index(index)?)),
        };
        state.cloned().ok_or_else(|| malformed(format!("accumulator {} was never set", a.0)))
    }

    fn set_state(&mut self, a: AccumulatorId, state: State) -> Result<(), InterpError> {
        match &self.kernel.accumulators[a.0 as usize].home {
            Home::Registers => self.registers.insert(a, state),
            Home::Array { memory, index } => {
                let at = self.index(index)?;
                let len = eval(self.kernel.memory[memory[0].0 as usize].len, self.sizes)?;
                if !(0..len).contains(&at) {
                    return Err(malformed(format!("state {at} of accumulator {}, which has {len}", a.0)));
                }
                self.arrays.insert((memory[0], at), state)
            }
        };
        Ok(())
    }

    fn value(&self, v: ValueId) -> Scalar {
        self.values[v.0 as usize]
    }

    fn index(&self, index: &Index) -> Result<i64, InterpError> {
        let mut unbound = None;
        for (atom, _) in &index.terms {
            if let IndexAtom::Loop(v) = atom
                && !self.vars.contains_key(v)
            {
                unbound = Some(*v);
            }
        }
        if let Some(v) = unbound {
            return Err(malformed(format!("i{} is not bound", v.0)));
        }
        let loops = |v: LoopVar| self.vars.get(&v).copied().unwrap_or(0);
        let values = |v: ValueId| self.value(v).to_i64();
        index.eval(&loops, &values, self.sizes).ok_or_else(|| InterpError::Size(index.to_string()))
    }

    fn load(&self, buffer: BufferId, at: i64) -> Result<Scalar, InterpError> {
        match self.places[buffer.0 as usize] {
            Some(outside) => self.memory.load(outside, at),
            None => self.scratch.load(buffer, at),
        }
    }

    fn store(&mut self, buffer: BufferId, at: i64, value: Scalar) -> Result<(), InterpError> {
        match self.places[buffer.0 as usize] {
            Some(outside) => self.memory.store(outside, at, value),
            None => self.scratch.store(buffer, at, value),
        }
    }

    fn op(&mut self, v: ValueId, op: &Op) -> Result<Scalar, InterpError> {
        let of = |source| InterpError::Scalar { value: v.0, source };
        let kernel = self.kernel;
        let dtype = |v: &ValueId| kernel.types[v.0 as usize];
        Ok(match op {
            Op::Const(value, dtype) => scalar::constant(*value, dtype.compute()),
            Op::SizeValue(size) => Scalar::Int(eval(*size, self.sizes)?),
            Op::IndexValue(index) => Scalar::Int(self.index(index)?),
            Op::InRange { index, low, high } => {
                let at = self.index(index)?;
                Scalar::Bool(eval(*low, self.sizes)? <= at && at < eval(*high, self.sizes)?)
            }
            Op::Load { buffer, index, guard } => {
                if guard.is_some_and(|g| !self.value(g).to_bool()) {
                    return Ok(scalar::zero(kernel.memory[buffer.0 as usize].dtype));
                }
                self.load(*buffer, self.index(index)?)?
            }
            Op::Unary(op, a) => scalar::unary(*op, dtype(a), self.value(*a)).map_err(of)?,
            Op::Binary(op, a, b) => {
                scalar::binary(*op, dtype(a), self.value(*a), self.value(*b)).map_err(of)?
            }
            Op::Where(c, a, b) => self.value(if self.value(*c).to_bool() { *a } else { *b }),
            Op::Fma(a, b, c) => {
                scalar::fma(dtype(a), self.value(*a), self.value(*b), self.value(*c)).map_err(of)?
            }
            Op::Cast(a, to) => scalar::cast(self.value(*a), dtype(a), *to),
            Op::Bitcast(a, to) => scalar::bitcast(self.value(*a), dtype(a), *to).map_err(of)?,
            Op::Check(a, failure) => match self.value(*a).to_bool() {
                true => Scalar::Bool(true),
                false => return Err(InterpError::Check(failure.to_string())),
            },
            Op::Store { buffer, index, value, guard, mode } => {
                let stored = self.value(*value);
                if guard.is_some_and(|g| !self.value(g).to_bool()) {
                    return Ok(stored);
                }
                let at = self.index(index)?;
                let to = kernel.memory[buffer.0 as usize].dtype;
                let new = match mode {
                    StoreMode::Set => stored,
                    StoreMode::Combine(op) => {
                        scalar::binary(*op, to, self.load(*buffer, at)?, stored).map_err(of)?
                    }
                };
                self.store(*buffer, at, to_storage(to, new))?;
                stored
            }
            Op::Reduce { .. } | Op::ReduceSecond(_) => return Err(malformed("a reduction among operations")),
        })
    }
}

/// As memory of type `dtype` holds it.
fn to_storage(dtype: DType, value: Scalar) -> Scalar {
    match value {
        Scalar::Float(x) => Scalar::Float(scalar::round_to_storage(dtype, x)),
        other => other,
    }
}

fn malformed(problem: impl Into<String>) -> InterpError {
    InterpError::Malformed { value: 0, problem: problem.into() }
}
