//! Verifiers: what must hold of a tensor program and of a nest program. Run after each pass in debug builds and
//! tests, so that a broken pass is named rather than whatever trips over its result later.

mod body;
mod graph;
mod program;

pub(crate) use body::operand_problem;
pub use body::verify_body;
pub(crate) use graph::shapes_may_be_equal;
pub use graph::verify_graph;
pub use program::{verify_nest, verify_program};

/// A rule that a program breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {problem}")]
pub struct VerifyError {
    /// Which node, step, buffer or output.
    pub place: String,
    /// Which rule, and what breaks it.
    pub problem: String,
}

impl VerifyError {
    fn new(place: impl Into<String>, problem: impl Into<String>) -> VerifyError {
        VerifyError { place: place.into(), problem: problem.into() }
    }
}

#[cfg(test)]
mod tests;
