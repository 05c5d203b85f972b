//! What can go wrong while a program is interpreted.

use crate::condition::BrokenCondition;
use crate::dtype::DType;
use crate::interp::scalar::ScalarError;
use crate::nest::BufferId;

/// A program can't be interpreted further.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum InterpError {
    /// An operation on scalars has no result.
    #[error("value v{value}: {source}")]
    Scalar {
        /// Position of the operation in its body.
        value: u32,
        /// Why.
        source: ScalarError,
    },
    /// An access outside of its buffer.
    #[error("{access} of element {index} of buffer {buffer} ({name}), which has {len}")]
    OutOfBounds {
        /// `load` or `store`.
        access: &'static str,
        /// Which buffer.
        buffer: BufferId,
        /// The buffer's name.
        name: String,
        /// The element.
        index: i64,
        /// Elements of the buffer.
        len: usize,
    },
    /// A load of an element that nothing has written yet.
    #[error("load of element {index} of buffer {buffer} ({name}), which nothing has written")]
    Uninitialized {
        /// Which buffer.
        buffer: BufferId,
        /// The buffer's name.
        name: String,
        /// The element.
        index: i64,
    },
    /// A buffer that the memory does not have.
    #[error("buffer {0} does not exist")]
    UnknownBuffer(BufferId),
    /// A check of the program failed; this is its message.
    #[error("{0}")]
    Check(String),
    /// A size that uses a symbol without a value, or divides by zero.
    #[error("size `{0}` has no value: a symbol is not bound, or it divides by zero")]
    Size(String),
    /// Sizes that the program can't be run with.
    #[error(transparent)]
    Condition(#[from] BrokenCondition),
    /// A body that breaks the rules of its form.
    #[error("value v{value}: {problem}")]
    Malformed {
        /// Position of the operation in its body.
        value: u32,
        /// What is wrong.
        problem: String,
    },
    /// An element type that the interpreter does not compute in.
    #[error("{what}: element type {dtype} can't be interpreted")]
    Unsupported {
        /// Tensor or buffer.
        what: String,
        /// Its type.
        dtype: DType,
    },
    /// The caller's tensors don't fit the program.
    #[error("input {position}: {problem}")]
    Input {
        /// Position among the inputs.
        position: usize,
        /// What is wrong.
        problem: String,
    },
    /// A call into a library failed.
    #[error("{op}: {message}")]
    Extern {
        /// The operator.
        op: String,
        /// What it said.
        message: String,
    },
}
