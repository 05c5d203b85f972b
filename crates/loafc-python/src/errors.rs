//! Turns the compiler's errors into Python's: `loafc.errors`' classes for what fails to compile, PyTorch's own error
//! for an operator that failed, and a class that catches like eager mode's where a check in a kernel failed.

use loafc::CompileError;
use loafc_ir::nest::FailureKind;
use loafc_runtime::RunError;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

/// An error of a class in `loafc.errors`.
pub fn loafc_error(py: Python<'_>, class: &str, message: impl std::fmt::Display) -> PyErr {
    let make = || py.import("loafc.errors")?.getattr(class)?.call1((message.to_string(),));
    match make() {
        Ok(value) => PyErr::from_value(value),
        Err(error) => error,
    }
}

/// The Python error for a program that can't be compiled. A folder that can't be written to is no property of the
/// program: it is an error of the option, so that no program runs in eager mode for it.
pub fn compile_error(py: Python<'_>, error: CompileError) -> PyErr {
    let class = if matches!(error, CompileError::DebugDir { .. }) { "OptionError" } else { "CompileError" };
    loafc_error(py, class, error)
}

/// The Python error for a call that failed.
pub fn run_error(py: Python<'_>, error: RunError) -> PyErr {
    match error {
        RunError::Extern(call) => match call.source.downcast::<PyErr>() {
            Ok(original) => *original,
            Err(source) => PyRuntimeError::new_err(format!("extern call `{}` failed: {source}", call.op)),
        },
        RunError::Check { failure, .. } => match failure.kind {
            FailureKind::Index => loafc_error(py, "PositionError", failure),
            FailureKind::Value => PyRuntimeError::new_err(failure.to_string()),
        },
        RunError::InputCount { .. }
        | RunError::InputKind { .. }
        | RunError::InputDType { .. }
        | RunError::InputRank { .. }
        | RunError::InputShape { .. }
        | RunError::InputStrides { .. } => PyValueError::new_err(error.to_string()),
        other => loafc_error(py, "LoafcError", other),
    }
}
