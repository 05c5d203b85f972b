//! Why a call failed, in words that name the input, kernel or operator.

use std::sync::Arc;

use loafc_ir::condition::BrokenCondition;
use loafc_ir::dtype::DType;
use loafc_ir::graph::Device;
use loafc_ir::nest::Failure;

use crate::pool::OutOfMemory;

/// An extern call failed.
#[derive(Debug, thiserror::Error)]
#[error("extern call `{op}` failed: {source}")]
pub struct ExternError {
    /// The operator.
    pub op: Arc<str>,
    /// What the library said.
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

impl ExternError {
    /// An error of this operator.
    pub fn new(op: &Arc<str>, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> ExternError {
        ExternError { op: op.clone(), source: source.into() }
    }
}

/// A call of a program failed.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Wrong number of inputs.
    #[error("the program takes {expected} inputs, got {got}")]
    InputCount {
        /// What the program takes.
        expected: usize,
        /// What was passed.
        got: usize,
    },
    /// A tensor where a size is expected, or the other way round.
    #[error("input {position} (`{name}`): expected {expected}, got {got}")]
    InputKind {
        /// Position, from 0.
        position: usize,
        /// Name in the program.
        name: Arc<str>,
        /// What the program takes.
        expected: &'static str,
        /// What was passed.
        got: &'static str,
    },
    /// Wrong element type.
    #[error("input {position} (`{name}`): expected element type {expected}, got {got}")]
    InputDType {
        /// Position, from 0.
        position: usize,
        /// Name in the program.
        name: Arc<str>,
        /// What the program takes.
        expected: DType,
        /// What was passed.
        got: DType,
    },
    /// Wrong number of dimensions.
    #[error("input {position} (`{name}`): expected {expected} dimensions, got {got:?}")]
    InputRank {
        /// Position, from 0.
        position: usize,
        /// Name in the program.
        name: Arc<str>,
        /// Number of dimensions that the program takes.
        expected: usize,
        /// The shape that was passed.
        got: Vec<i64>,
    },
    /// Wrong extents.
    #[error("input {position} (`{name}`): expected shape {expected}, got {got:?}")]
    InputShape {
        /// Position, from 0.
        position: usize,
        /// Name in the program.
        name: Arc<str>,
        /// The shape that the program takes, with the values of its symbols.
        expected: String,
        /// The shape that was passed.
        got: Vec<i64>,
    },
    /// Wrong strides.
    #[error(
        "input {position} (`{name}`): compiled for strides {expected:?}, got {got:?} (shape {shape:?}); pass a tensor \
         of that layout or compile for this one"
    )]
    InputStrides {
        /// Position, from 0.
        position: usize,
        /// Name in the program.
        name: Arc<str>,
        /// Strides that the program takes.
        expected: Vec<i64>,
        /// What was passed.
        got: Vec<i64>,
        /// The shape.
        shape: Vec<i64>,
    },
    /// An input without memory.
    #[error("input {position} (`{name}`): the tensor has elements but no memory (null pointer)")]
    InputNull {
        /// Position, from 0.
        position: usize,
        /// Name in the program.
        name: Arc<str>,
    },
    /// A size that can't be an extent.
    #[error("size `{what}` is {value} in this call, which no tensor can have")]
    BadSize {
        /// The size in the program's symbols.
        what: String,
        /// Its value.
        value: i64,
    },
    /// A size has no value.
    #[error("size `{0}` has no value: no input gives one to its symbols, or it divides by zero")]
    UnboundSize(String),
    /// Sizes that the program can't be run with.
    #[error(transparent)]
    Condition(#[from] BrokenCondition),
    /// A condition that the program tests is false.
    #[error("{failure} (in kernel `{kernel}`)")]
    Check {
        /// The kernel.
        kernel: Arc<str>,
        /// What the program says.
        failure: Failure,
    },
    /// A result that no step makes: a bug in the schedule.
    #[error("a result lies in buffer {0}, which no step writes")]
    NoMemory(usize),
    /// An extern call failed.
    #[error(transparent)]
    Extern(#[from] ExternError),
    /// The system has no memory left.
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
}

/// A schedule and its kernels can't be made into a program.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// Kernels and schedule don't belong together.
    #[error("the schedule has {expected} kernels, but {got} were compiled")]
    KernelCount {
        /// Kernels in the schedule.
        expected: usize,
        /// Kernels given.
        got: usize,
    },
    /// Memory that this runtime can't reach.
    #[error("buffer `{buffer}` is on {device}; this runtime runs kernels on the CPU only")]
    Device {
        /// The buffer.
        buffer: Arc<str>,
        /// Where it is.
        device: Device,
    },
    /// An extern call at a step that is none.
    #[error("step {0} of the schedule is not an extern call")]
    NotExtern(u32),
    /// A buffer that does not exist.
    #[error("buffer {0} does not exist")]
    UnknownBuffer(u32),
}
