//! Loop nests: what the scheduler fuses. A nest is a space of loops and a body of loads, scalar operations,
//! reductions and stores; a nest program is a sequence of nests and extern calls over buffers.

use std::fmt;
use std::sync::Arc;

use crate::condition::{BrokenCondition, SizeCondition};
use crate::dtype::{DType, Scalar};
use crate::graph::{Arg, Device, SourceLine};
use crate::index::{Index, LoopVar};
use crate::size::{Size, SymbolValues};

/// A buffer of a nest program: position in [`NestProgram::buffers`].
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub u32);

/// A value of a body: position in [`Body::ops`].
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub u32);

/// A step of a nest program: position in [`NestProgram::steps`].
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StepId(pub u32);

/// Linear memory of one element type.
#[derive(Clone, Debug, PartialEq)]
pub struct Buffer {
    /// Name for people: the tensor's name in the program.
    pub name: Arc<str>,
    /// Element type in memory.
    pub dtype: DType,
    /// Number of elements.
    pub len: Size,
    /// Where it lives.
    pub device: Device,
    /// Who provides the memory.
    pub source: BufferSource,
}

/// Who provides a buffer's memory.
#[derive(Clone, Debug, PartialEq)]
pub enum BufferSource {
    /// The caller: the storage of the input of this position, starting at the tensor's first element.
    Input(usize),
    /// Allocated by the runtime.
    Owned,
}

/// One loop of a nest, from 0 to its extent less one.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct Loop {
    /// Number of iterations; may be zero.
    pub extent: Size,
    /// Whether iterations are independent or reduced over.
    pub kind: LoopKind,
}

/// How a loop's iterations relate.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum LoopKind {
    /// Independent iterations.
    Parallel,
    /// Iterations that a [`Op::Reduce`] combines.
    Reduction,
}

/// Loops around a body. Parallel loops stand before reduction loops, each kind from the outermost inwards;
/// [`Index`]es in the body name loops by position.
#[derive(Clone, Debug, PartialEq)]
pub struct LoopNest {
    /// Name for people, from the operators that it came from.
    pub name: Arc<str>,
    /// The loops.
    pub loops: Vec<Loop>,
    /// What one iteration does.
    pub body: Body,
    /// Where in the user's program it came from.
    pub origins: Vec<SourceLine>,
}

/// A straight list of operations in SSA form. Operations before a [`Op::Reduce`] run once an iteration; what
/// uses a reduction's result, directly or not, runs after its loops have ended and may use parallel loops only.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Body {
    /// The operations; a value is named by position.
    pub ops: Vec<Op>,
}

/// One operation of a body. Element types narrower than f32 are computed in f32 (see [`DType::compute`]):
/// a load widens, a store narrows, and only [`Op::Cast`] rounds in between.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// A constant of this type.
    Const(Scalar, DType),
    /// A size as an i64.
    SizeValue(Size),
    /// An index expression as an i64.
    IndexValue(Index),
    /// Whether `low <= index < high`. Kept apart from comparisons of values so that loops can be cut at it.
    InRange {
        /// The tested position.
        index: Index,
        /// First position inside.
        low: Size,
        /// First position behind.
        high: Size,
    },
    /// Reads one element. Where `guard` is false nothing is read and the value is zero.
    Load {
        /// What is read.
        buffer: BufferId,
        /// Which element.
        index: Index,
        /// A truth value, or always.
        guard: Option<ValueId>,
    },
    /// An operation on one value.
    Unary(UnaryOp, ValueId),
    /// An operation on two values of one type.
    Binary(BinaryOp, ValueId, ValueId),
    /// The second where the first is true, else the third.
    Where(ValueId, ValueId, ValueId),
    /// `a·b + c`, rounded once where the machine can.
    Fma(ValueId, ValueId, ValueId),
    /// Conversion to another type, with PyTorch's rules. To a storage type narrower than f32 it rounds, and the
    /// result is computed with in f32 again.
    Cast(ValueId, DType),
    /// The same bits as another type of the same width.
    Bitcast(ValueId, DType),
    /// Combines a value over all reduction loops.
    Reduce {
        /// How.
        op: ReduceOp,
        /// What.
        value: ValueId,
        /// For [`ReduceOp::ArgMax`] and [`ReduceOp::ArgMin`], and only there: the logical position of the
        /// value, an i64. It decides between equal values, so that the result does not depend on the order in
        /// which loops run.
        position: Option<ValueId>,
    },
    /// Second result of a reduction that has two (see [`ReduceOp`]).
    ReduceSecond(ValueId),
    /// Writes one element. Where `guard` is false nothing is written.
    Store {
        /// What is written.
        buffer: BufferId,
        /// Which element.
        index: Index,
        /// The value, of the buffer's type.
        value: ValueId,
        /// A truth value, or always.
        guard: Option<ValueId>,
        /// How it is combined with what is there.
        mode: StoreMode,
    },
    /// Fails the program with this message where the value is false (bounds of indices, divisors of zero).
    Check(ValueId, Failure),
}

/// What the program fails with where a check's value is false.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Failure {
    /// Front ends raise an error of this kind.
    pub kind: FailureKind,
    /// What it says.
    pub message: Arc<str>,
    /// The positions that are checked, where they lie in memory: who tells of the failure finds the wrong one there.
    pub positions: Option<Arc<CheckedPositions>>,
}

/// Positions along a dimension that a check takes from a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CheckedPositions {
    /// The positions.
    pub tensor: TensorView,
    /// Extent of the dimension.
    pub extent: Size,
    /// Whether negative ones count from the end.
    pub wrap: bool,
}

/// Kinds of failures: front ends raise an error of another class for each.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum FailureKind {
    /// A position outside of a tensor.
    Index,
    /// Any other value that an operator refuses.
    Value,
}

impl Failure {
    /// A failure of the kind [`FailureKind::Value`].
    pub fn value(message: impl Into<Arc<str>>) -> Failure {
        Failure { kind: FailureKind::Value, message: message.into(), positions: None }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// How a store combines with what is in memory.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum StoreMode {
    /// Replaces it.
    Set,
    /// Combines with it; several iterations may hit one element, and do so in the order of the loops.
    Combine(BinaryOp),
}

/// Operations on one value. Floats follow IEEE 754 and PyTorch; integers wrap.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum UnaryOp {
    Neg,
    Abs,
    Sign,
    /// Bitwise on integers, logical on truth values.
    Not,
    Sqrt,
    Rsqrt,
    Reciprocal,
    Exp,
    Exp2,
    Expm1,
    Log,
    Log2,
    Log10,
    Log1p,
    Sin,
    Cos,
    Tan,
    Asin,
    Acos,
    Atan,
    Sinh,
    Cosh,
    Tanh,
    Asinh,
    Acosh,
    Atanh,
    Erf,
    Erfc,
    Erfinv,
    Lgamma,
    Digamma,
    Sigmoid,
    Floor,
    Ceil,
    Trunc,
    /// To the nearest integer, ties to even.
    Round,
    /// To a truth value.
    IsNan,
    /// To a truth value.
    IsInf,
    /// To a truth value: the sign bit, of zeros and NaNs too.
    SignBit,
}

/// Operations on two values of one type.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum BinaryOp {
    Add,
    Sub,
    Mul,
    /// True division of floats.
    Div,
    /// Quotient rounded towards minus infinity; floats by PyTorch's `floor_divide`.
    FloorDiv,
    /// Quotient rounded towards zero.
    TruncDiv,
    /// Remainder of the divisor's sign (Python's `%`, `torch.remainder`).
    Remainder,
    /// Remainder of the dividend's sign (C's `fmod`).
    Fmod,
    Pow,
    Atan2,
    Hypot,
    Copysign,
    Nextafter,
    /// NaN if either is NaN.
    Max,
    /// NaN if either is NaN.
    Min,
    /// The other one if one is NaN.
    Fmax,
    /// The other one if one is NaN.
    Fmin,
    /// Bitwise on integers, logical on truth values.
    And,
    Or,
    Xor,
    /// Shifts by negative counts or by the width and more: zero to the left, the sign to the right.
    Shl,
    Shr,
    /// Comparisons give truth values.
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

/// Ways to combine a value over the reduction loops, with the value of no iterations in brackets.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ReduceOp {
    /// [0]
    Sum,
    /// [1]
    Prod,
    /// [-inf or the smallest]; NaN if any is NaN.
    Max,
    /// [inf or the largest]; NaN if any is NaN.
    Min,
    /// [false] logical or.
    Any,
    /// [true] logical and.
    All,
    /// [0] exclusive or.
    Xor,
    /// Largest value; second: its position, i64, the smallest one of equals. NaN counts as larger than all.
    /// Over no iterations both are undefined; front ends refuse that.
    ArgMax,
    /// Smallest value; second: its position, i64, the smallest one of equals. NaN counts as smaller than all.
    ArgMin,
    /// Mean; second: sum of squared differences from the mean. Computed in f64 for f32, as PyTorch on the CPU.
    Welford,
}

impl ReduceOp {
    /// Whether [`Op::ReduceSecond`] may follow.
    pub const fn has_second(self) -> bool {
        matches!(self, ReduceOp::ArgMax | ReduceOp::ArgMin | ReduceOp::Welford)
    }
}

impl BinaryOp {
    /// Whether the result is a truth value whatever the operands' type.
    pub const fn is_comparison(self) -> bool {
        matches!(
            self,
            BinaryOp::Eq | BinaryOp::Ne | BinaryOp::Lt | BinaryOp::Le | BinaryOp::Gt | BinaryOp::Ge
        )
    }
}

impl Op {
    /// Calls `visit` for each operand, those inside an index too.
    pub fn for_each_operand(&self, visit: &mut dyn FnMut(ValueId)) {
        match self {
            Op::Const(..) | Op::SizeValue(_) => {}
            Op::IndexValue(index) | Op::InRange { index, .. } => index.for_each_value(visit),
            Op::Load { index, guard, .. } => {
                index.for_each_value(visit);
                if let Some(g) = guard {
                    visit(*g);
                }
            }
            Op::Unary(_, a) | Op::Cast(a, _) | Op::Bitcast(a, _) | Op::ReduceSecond(a) | Op::Check(a, _) => {
                visit(*a)
            }
            Op::Reduce { value, position, .. } => {
                visit(*value);
                if let Some(p) = position {
                    visit(*p);
                }
            }
            Op::Binary(_, a, b) => {
                visit(*a);
                visit(*b);
            }
            Op::Where(a, b, c) | Op::Fma(a, b, c) => {
                visit(*a);
                visit(*b);
                visit(*c);
            }
            Op::Store { index, value, guard, .. } => {
                index.for_each_value(visit);
                visit(*value);
                if let Some(g) = guard {
                    visit(*g);
                }
            }
        }
    }

    /// The same operation with other loops and values; `extents` are the new loops'.
    pub fn substitute(
        &self,
        loops: &dyn Fn(LoopVar) -> Index,
        values: &dyn Fn(ValueId) -> ValueId,
        extents: &dyn Fn(LoopVar) -> Option<Size>,
    ) -> Op {
        let at = |i: &Index| i.substitute(loops, values, extents);
        match self {
            Op::Const(..) | Op::SizeValue(_) => self.clone(),
            Op::IndexValue(i) => Op::IndexValue(at(i)),
            Op::InRange { index, low, high } => Op::InRange { index: at(index), low: *low, high: *high },
            Op::Load { buffer, index, guard } => {
                Op::Load { buffer: *buffer, index: at(index), guard: guard.map(values) }
            }
            Op::Unary(op, a) => Op::Unary(*op, values(*a)),
            Op::Binary(op, a, b) => Op::Binary(*op, values(*a), values(*b)),
            Op::Where(a, b, c) => Op::Where(values(*a), values(*b), values(*c)),
            Op::Fma(a, b, c) => Op::Fma(values(*a), values(*b), values(*c)),
            Op::Cast(a, d) => Op::Cast(values(*a), *d),
            Op::Bitcast(a, d) => Op::Bitcast(values(*a), *d),
            Op::Reduce { op, value, position } => {
                Op::Reduce { op: *op, value: values(*value), position: position.map(values) }
            }
            Op::ReduceSecond(a) => Op::ReduceSecond(values(*a)),
            Op::Check(a, m) => Op::Check(values(*a), m.clone()),
            Op::Store { buffer, index, value, guard, mode } => Op::Store {
                buffer: *buffer,
                index: at(index),
                value: values(*value),
                guard: guard.map(values),
                mode: *mode,
            },
        }
    }
}

impl Body {
    /// Appends an operation and names its value.
    pub fn push(&mut self, op: Op) -> ValueId {
        self.ops.push(op);
        ValueId(self.ops.len() as u32 - 1)
    }

    /// The operation that makes a value.
    pub fn op(&self, value: ValueId) -> &Op {
        &self.ops[value.0 as usize]
    }

    /// All operations with their values.
    pub fn iter(&self) -> impl Iterator<Item = (ValueId, &Op)> {
        self.ops.iter().enumerate().map(|(k, op)| (ValueId(k as u32), op))
    }

    /// Whether it reduces anything.
    pub fn has_reduction(&self) -> bool {
        self.ops.iter().any(|op| matches!(op, Op::Reduce { .. }))
    }

    /// The element type of each value; stores and checks have the type of their operand. Storage types stand
    /// for themselves although they are computed with in [`DType::compute`].
    pub fn dtypes(&self, buffer_dtype: &dyn Fn(BufferId) -> DType) -> Vec<DType> {
        let mut types: Vec<DType> = Vec::with_capacity(self.ops.len());
        for op in &self.ops {
            let of = |v: &ValueId| types[v.0 as usize];
            let t = match op {
                Op::Const(_, d) | Op::Cast(_, d) | Op::Bitcast(_, d) => *d,
                Op::SizeValue(_) | Op::IndexValue(_) => DType::I64,
                Op::InRange { .. } => DType::Bool,
                Op::Load { buffer, .. } => buffer_dtype(*buffer),
                Op::Unary(UnaryOp::IsNan | UnaryOp::IsInf | UnaryOp::SignBit, _) => DType::Bool,
                Op::Unary(_, a) => of(a),
                Op::Binary(op, ..) if op.is_comparison() => DType::Bool,
                Op::Binary(_, a, _) => of(a),
                Op::Where(_, b, _) => of(b),
                Op::Fma(a, ..) => of(a),
                Op::Reduce { value, .. } => of(value),
                Op::ReduceSecond(r) => match self.op(*r) {
                    Op::Reduce { op: ReduceOp::ArgMax | ReduceOp::ArgMin, .. } => DType::I64,
                    _ => of(r),
                },
                Op::Store { value, .. } => of(value),
                Op::Check(a, _) => of(a),
            };
            types.push(t);
        }
        types
    }
}

impl LoopNest {
    /// Number of parallel loops; they stand first.
    pub fn parallel_loops(&self) -> usize {
        self.loops.iter().take_while(|l| l.kind == LoopKind::Parallel).count()
    }

    /// Whether there is a reduction loop.
    pub fn is_reduction(&self) -> bool {
        self.parallel_loops() < self.loops.len()
    }

    /// Extent of a loop, as [`Index::substitute`] and its kin ask for it.
    pub fn extent(&self, var: LoopVar) -> Option<Size> {
        self.loops.get(var.0 as usize).map(|l| l.extent)
    }
}

/// A tensor on a buffer: which elements, in which order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorView {
    /// The memory.
    pub buffer: BufferId,
    /// Extents.
    pub shape: Vec<Size>,
    /// Strides in elements, as many as extents.
    pub strides: Vec<Size>,
    /// First element.
    pub offset: Size,
}

/// An operator that stays what it is: a call into a library.
#[derive(Clone, Debug, PartialEq)]
pub struct ExternCall {
    /// Operator with overload, `aten.mm.default`.
    pub op: Arc<str>,
    /// Positional arguments. [`Arg::Value`] names an entry of `tensors`.
    pub args: Vec<Arg>,
    /// Keyword arguments.
    pub kwargs: Vec<(Arc<str>, Arg)>,
    /// The tensors among the arguments.
    pub tensors: Vec<TensorView>,
    /// Tensors it makes, in order, each the whole of a buffer of its own; `None` for results nobody uses.
    pub results: Vec<Option<TensorView>>,
    /// Positions in `tensors` that it writes to.
    pub mutates: Vec<usize>,
    /// Whether it must keep its place among other calls of this kind (random numbers, collectives).
    pub ordered: bool,
    /// Where in the user's program it came from.
    pub origin: Option<SourceLine>,
}

/// A step of a nest program.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// A loop nest.
    Nest(LoopNest),
    /// A call into a library.
    Extern(ExternCall),
}

/// A result of the program.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// A tensor; may lie on an input's buffer, or share one with another output.
    Tensor(TensorView),
    /// The input of this position, as the caller passed it.
    Input(usize),
    /// A size.
    Size(Size),
    /// Nothing (Python's `None`).
    None,
}

/// Loop nests and extern calls in program order over buffers. A step sees the writes of all earlier steps.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct NestProgram {
    /// Name for people.
    pub name: Arc<str>,
    /// All memory.
    pub buffers: Vec<Buffer>,
    /// What is done, in order.
    pub steps: Vec<Step>,
    /// What is returned.
    pub outputs: Vec<Output>,
    /// How the inputs come.
    pub inputs: Vec<crate::graph::Input>,
    /// Values of size symbols that scores assume.
    pub hints: SymbolValues,
    /// What must hold for the sizes of a call.
    pub conditions: Vec<SizeCondition>,
}

impl NestProgram {
    /// Fails where the program can't be run with these values of its size symbols.
    pub fn check_sizes(&self, values: &SymbolValues) -> Result<(), BrokenCondition> {
        self.conditions.iter().try_for_each(|condition| condition.check(values))
    }

    /// The buffer of this id.
    pub fn buffer(&self, id: BufferId) -> &Buffer {
        &self.buffers[id.0 as usize]
    }
}

impl fmt::Display for BufferId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b{}", self.0)
    }
}
impl fmt::Display for ValueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}", self.0)
    }
}
