//! Loop trees: kernels as loops around straight lines of scalar operations, between fused groups and machine
//! code. A tree says which loop is split over threads, which is vectorised and where partial results live, but
//! names no machine instruction; the same tree serves every target.

mod build;
mod cleanup;
pub mod interpret;
mod layout;
mod limits;
pub mod partition;
mod print;
mod stage;
mod tabulate;
pub mod verify;

use std::sync::Arc;

use loafc_ir::dtype::DType;
use loafc_ir::index::{Index, LoopVar};
use loafc_ir::nest::{BufferId, Failure, Op, ReduceOp, ValueId};
use loafc_ir::size::Size;
use smallvec::SmallVec;

use crate::kernel::Access;
pub use build::{Built, build};
pub use limits::Limits;
pub use print::SizeSlots;
pub(crate) use stage::is_transposed;

/// A kernel. In its operations a [`BufferId`] is a position in [`Kernel::memory`], a [`LoopVar`] one of the
/// variables that loops and [`Node::Var`] bind, and a [`ValueId`] a position in [`Kernel::types`].
#[derive(Clone, Debug, PartialEq)]
pub struct Kernel {
    /// Name for people.
    pub name: Arc<str>,
    /// What operations load from and store to: parameters first.
    pub memory: Vec<Memory>,
    /// Partial results of reductions.
    pub accumulators: Vec<Accumulator>,
    /// What is done, in order.
    pub phases: Vec<Phase>,
    /// What its checks fail with, each once.
    pub failures: Vec<Failure>,
    /// Element type of each value, as [`loafc_ir::nest::Body::dtypes`] has it.
    pub types: Vec<DType>,
}

/// Linear memory of one element type.
#[derive(Clone, Debug, PartialEq)]
pub struct Memory {
    /// Name for people.
    pub name: Arc<str>,
    /// Element type.
    pub dtype: DType,
    /// Number of elements.
    pub len: Size,
    /// Where it is.
    pub place: MemoryPlace,
}

/// Where a kernel's memory is.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum MemoryPlace {
    /// A buffer of the caller.
    Param(Access),
    /// Scratch memory of all threads; lives over all phases.
    Shared,
    /// Scratch memory of one thread; lives for one unit.
    Thread,
}

/// Position in [`Kernel::accumulators`].
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AccumulatorId(pub u32);

/// A partial result of a reduction: one state in registers, or an array of states in memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Accumulator {
    /// How values are combined.
    pub op: ReduceOp,
    /// Type of the values.
    pub dtype: DType,
    /// Where the state is.
    pub home: Home,
}

/// Where an accumulator's state is.
#[derive(Clone, Debug, PartialEq)]
pub enum Home {
    /// In registers, from its [`Node::Init`] on. Around a vector loop each lane has a state of its own.
    Registers,
    /// One array for each of [`Accumulator::components`], all at the same index.
    Array {
        /// The arrays.
        memory: SmallVec<[BufferId; 4]>,
        /// Which element.
        index: Index,
    },
}

impl Accumulator {
    /// Types of the parts of a state. Welford keeps, all in f64, the first value, and of the differences from
    /// it the count, the sum and the sum of squares: no division in the loop, and no cancellation for values
    /// far from zero.
    pub fn components(&self) -> SmallVec<[DType; 4]> {
        let value = self.dtype.compute();
        match self.op {
            ReduceOp::ArgMax | ReduceOp::ArgMin => SmallVec::from_slice(&[value, DType::I64]),
            ReduceOp::Welford => SmallVec::from_slice(&[DType::F64; 4]),
            _ => SmallVec::from_slice(&[value]),
        }
    }
}

/// A part of a kernel that all threads finish before the next begins.
#[derive(Clone, Debug, PartialEq)]
pub struct Phase {
    /// Number of units, which may run in any order and at the same time.
    pub units: Size,
    /// The number of the unit.
    pub unit: LoopVar,
    /// What one unit does.
    pub body: Vec<Node>,
    /// Rough bytes moved and operations done in one unit.
    pub work_per_unit: Size,
}

/// A statement.
#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    /// An operation; never a reduction.
    Op(ValueId, Op),
    /// Binds a variable to an index over variables bound before.
    Var(LoopVar, Index),
    /// A loop.
    Loop(Box<Loop>),
    /// Copies a rectangle between memories that are contiguous along different variables.
    Transpose(Box<Transpose>),
    /// Sets a state to that of no iterations.
    Init(AccumulatorId),
    /// Combines a value with a state.
    Accumulate {
        /// The state.
        into: AccumulatorId,
        /// The value.
        value: ValueId,
        /// Its logical position, for `ArgMax` and `ArgMin`.
        position: Option<ValueId>,
    },
    /// Combines a state with another one, whose values come later in the loops' order.
    Merge {
        /// The state that changes.
        into: AccumulatorId,
        /// The other one.
        from: AccumulatorId,
    },
    /// Results of a state.
    Finish {
        /// The state.
        of: AccumulatorId,
        /// The reduction's result.
        first: ValueId,
        /// The second result of reductions that have two.
        second: Option<ValueId>,
    },
}

/// A copy of all elements of a rectangle, as they are in memory. `from` is contiguous along the variable of
/// `columns`, `to` along that of `rows`.
#[derive(Clone, Debug, PartialEq)]
pub struct Transpose {
    /// What is read, and which element.
    pub from: (BufferId, Index),
    /// What is written, and which element; of the same element type.
    pub to: (BufferId, Index),
    /// One side of the rectangle.
    pub rows: Range,
    /// The other side.
    pub columns: Range,
}

/// Values of a variable: from `begin` on by 1 while below all of `end`.
#[derive(Clone, Debug, PartialEq)]
pub struct Range {
    /// The variable.
    pub var: LoopVar,
    /// First value.
    pub begin: Index,
    /// First values behind; the smallest counts.
    pub end: SmallVec<[Index; 2]>,
}

/// A loop: its variable runs from `begin` by `step` while it is below all of `end`.
#[derive(Clone, Debug, PartialEq)]
pub struct Loop {
    /// The variable.
    pub var: LoopVar,
    /// First value.
    pub begin: Index,
    /// First values behind; the smallest counts.
    pub end: SmallVec<[Index; 2]>,
    /// Distance of values, at least 1.
    pub step: i64,
    /// How iterations are carried out.
    pub mapping: Mapping,
    /// What one iteration does.
    pub body: Vec<Node>,
}

/// How a loop's iterations are carried out. Threads run units, which are no loop of the tree.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Mapping {
    /// One after the other.
    Serial,
    /// Over tiles or blocks of another loop; one after the other.
    Tile,
    /// Several at once, as many as the target's registers hold. Such a loop contains no other loop, and its
    /// iterations touch memory independently of each other but for stores that combine.
    Vector,
}
