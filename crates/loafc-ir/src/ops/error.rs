//! What can be wrong with a call of an operator, and with running one. Every message names the operator and,
//! where there is one, the argument, says what was found, and what would have been right.

use crate::dtype::DType;
use crate::size::Size;

/// A call that no types can be given to.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum InferError {
    /// The operator has no entry in the table.
    #[error("`{op}` is not an operator whose types loafc can infer; annotate the types of its results")]
    UnknownOperator {
        /// Operator with overload.
        op: String,
    },
    /// More positional arguments than parameters.
    #[error("`{op}` takes at most {most} positional arguments ({params}), {given} were given")]
    TooManyArguments {
        /// Operator with overload.
        op: String,
        /// Number of positional parameters.
        most: usize,
        /// Number of positional arguments.
        given: usize,
        /// Parameters as in the table.
        params: &'static str,
    },
    /// A keyword that names no parameter.
    #[error("`{op}` has no parameter `{keyword}`; it has ({params})")]
    UnknownKeyword {
        /// Operator with overload.
        op: String,
        /// The keyword.
        keyword: String,
        /// Parameters as in the table.
        params: &'static str,
    },
    /// A parameter without default that got no argument, or `none`.
    #[error("`{op}` needs argument {position}, `{name}`: {expected}")]
    Missing {
        /// Operator with overload.
        op: String,
        /// Position of the parameter, from 0.
        position: usize,
        /// Name of the parameter.
        name: String,
        /// What it must be.
        expected: &'static str,
    },
    /// An argument of the wrong kind.
    #[error("argument `{name}` of `{op}` must be {expected}, not {found}")]
    Kind {
        /// Operator with overload.
        op: String,
        /// Name of the parameter.
        name: String,
        /// What it must be.
        expected: &'static str,
        /// What it is.
        found: String,
    },
    /// An argument whose value must be known while compiling, and isn't.
    #[error("argument `{name}` of `{op}` must be a constant, not the size `{found}`")]
    NotConstant {
        /// Operator with overload.
        op: String,
        /// Name of the parameter.
        name: String,
        /// What it is.
        found: Size,
    },
    /// Shapes that don't broadcast.
    #[error(
        "the operands of `{op}` have shapes {} that don't broadcast: in dimension {dim} from the right \
         the extents {left} and {right} are neither equal nor 1",
        shapes.join(" and ")
    )]
    Broadcast {
        /// Operator with overload.
        op: String,
        /// Shapes of all operands.
        shapes: Vec<String>,
        /// Dimension, from the right, from 1.
        dim: usize,
        /// One extent.
        left: Size,
        /// The other.
        right: Size,
    },
    /// A dimension that the tensor hasn't got.
    #[error("argument `{name}` of `{op}` is dimension {dim}, but the tensor has {rank} dimensions")]
    Dim {
        /// Operator with overload.
        op: String,
        /// Name of the parameter.
        name: String,
        /// The dimension as given.
        dim: i64,
        /// Number of dimensions of the tensor.
        rank: usize,
    },
    /// The same dimension twice.
    #[error("argument `{name}` of `{op}` names dimension {dim} twice")]
    RepeatedDim {
        /// Operator with overload.
        op: String,
        /// Name of the parameter.
        name: String,
        /// The dimension, from 0.
        dim: usize,
    },
    /// An element type that the operator doesn't work on.
    #[error("`{op}` works on {expected}, not on {found}")]
    DType {
        /// Operator with overload.
        op: String,
        /// The types it works on.
        expected: &'static str,
        /// The type it got.
        found: DType,
    },
    /// Element types without a common type.
    #[error("`{op}` mixes {left} and {right}, which have no common type; convert one of them")]
    Promotion {
        /// Operator with overload.
        op: String,
        /// One type.
        left: DType,
        /// The other.
        right: DType,
    },
    /// Anything else about one argument.
    #[error("argument `{name}` of `{op}`: {message}")]
    Argument {
        /// Operator with overload.
        op: String,
        /// Name of the parameter.
        name: String,
        /// What is wrong and what would be right.
        message: String,
    },
}

/// A call, or a program, that can't be run by the interpreter.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum EvalError {
    /// The call has no types.
    #[error(transparent)]
    Infer(#[from] InferError),
    /// An operator without an entry in the table, which a program may hold when the types of its results are annotated.
    #[error(
        "`{op}` is computed by the library that the program was made for, not by loafc; to run the rest of the \
         program without that library, make the results of the call inputs of the program"
    )]
    NotImplemented {
        /// Operator with overload.
        op: String,
    },
    /// An index outside of the tensor that it indexes.
    #[error("`{op}`: index {index} is out of range for dimension {dim} of extent {extent}")]
    IndexOutOfRange {
        /// Operator with overload.
        op: String,
        /// The index.
        index: i64,
        /// Indexed dimension.
        dim: usize,
        /// Its extent.
        extent: usize,
    },
    /// An operation on elements that has no result, such as an integer division by zero.
    #[error("`{op}`: {message}")]
    Arithmetic {
        /// Operator with overload.
        op: String,
        /// What went wrong.
        message: String,
    },
    /// Values that the operator refuses.
    #[error("`{op}`: {message}")]
    Value {
        /// Operator with overload.
        op: String,
        /// What is wrong and what would be right.
        message: String,
    },
    /// A number of inputs other than the program's.
    #[error("program @{graph} takes {expected} inputs, {given} were given")]
    InputCount {
        /// Name of the program.
        graph: String,
        /// Number of inputs it takes.
        expected: usize,
        /// Number of inputs it got.
        given: usize,
    },
    /// An input of the wrong kind, shape or type.
    #[error("input {position} (%{name}) must be {expected}, not {found}")]
    Input {
        /// Position, from 0.
        position: usize,
        /// Name in the program.
        name: String,
        /// What the program wants.
        expected: String,
        /// What it got.
        found: String,
    },
    /// A size symbol that no input gives a value.
    #[error("size `{size}` has no value: no input binds its symbols")]
    UnboundSize {
        /// The size.
        size: Size,
    },
    /// A result that is not what the program says it is.
    #[error("`{op}` made {found}, but the program says {expected}")]
    Result {
        /// Operator with overload.
        op: String,
        /// What the program says.
        expected: String,
        /// What it is.
        found: String,
    },
}
