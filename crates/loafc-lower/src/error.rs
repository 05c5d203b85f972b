//! Why a tensor program can't be lowered.

use loafc_ir::graph::SourceLine;

/// A program that has no loop nests.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum LowerError {
    /// A call whose declared results differ from what the operator makes.
    #[error(
        "{}result %{result} of `{op}` is declared as {declared}, but the operator makes {found}",
        at(origin)
    )]
    Contradiction {
        /// Operator with overload.
        op: String,
        /// Name of the result.
        result: String,
        /// Its type in the program.
        declared: String,
        /// What the operator makes.
        found: String,
        /// The user's source line.
        origin: Option<SourceLine>,
    },
    /// A call that uses a value which no call before it makes.
    #[error("{}`{op}` uses %{value} before it is made; run the graph verifier on the program", at(origin))]
    Undefined {
        /// Operator with overload, or `return`.
        op: String,
        /// Name of the value.
        value: String,
        /// The user's source line.
        origin: Option<SourceLine>,
    },
    /// A size that only the contents of a tensor tell.
    #[error(
        "{}`{op}` makes the size {size} from the contents of a tensor; sizes must follow from the inputs' shapes",
        at(origin)
    )]
    DataDependentSize {
        /// Operator with overload.
        op: String,
        /// Name of the size.
        size: String,
        /// The user's source line.
        origin: Option<SourceLine>,
    },
    /// Something that a program can't return.
    #[error("output {position} of the program is {found}; a program returns tensors, sizes and none")]
    Output {
        /// Position, from 0.
        position: usize,
        /// What it is.
        found: String,
    },
}

fn at(origin: &Option<SourceLine>) -> String {
    origin.as_ref().map(|line| format!("{line}: ")).unwrap_or_default()
}
