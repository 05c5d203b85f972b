//! Why a program could not be compiled or interpreted.

use std::sync::Arc;

/// Part of the compiler.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Checking the tensor program.
    Verify,
    /// Lowering to loop nests.
    Lower,
    /// Scheduling.
    Fuse,
    /// Code generation.
    Codegen,
    /// Linking kernels and memory.
    Link,
    /// Writing the report.
    Report,
}

impl std::fmt::Display for Phase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Phase::Verify => "verification",
            Phase::Lower => "lowering",
            Phase::Fuse => "scheduling",
            Phase::Codegen => "code generation",
            Phase::Link => "linking",
            Phase::Report => "reporting",
        })
    }
}

/// A program could not be compiled.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// The program breaks a rule of tensor programs.
    #[error("program `{program}` is not valid: {message}")]
    Invalid {
        /// The program.
        program: Arc<str>,
        /// What is wrong with it.
        message: String,
    },
    /// An operator can't be lowered.
    #[error(transparent)]
    Lower(#[from] loafc_lower::LowerError),
    /// The loop nests can't be scheduled.
    #[error(transparent)]
    Fuse(#[from] loafc_fuse::FuseError),
    /// A kernel can't be compiled.
    #[error(transparent)]
    Codegen(#[from] loafc_codegen::kernel::CodegenError),
    /// Kernels and memory can't be put together.
    #[error(transparent)]
    Link(#[from] loafc_runtime::LinkError),
    /// A file for debugging could not be written.
    #[error("option `debug_dir`: {path}: {message}; name a folder that you can write to, or none")]
    DebugDir {
        /// Which file or folder.
        path: String,
        /// What the system says.
        message: String,
    },
    /// A bug in the compiler.
    #[error(
        "internal error during {phase} of `{program}`: {message}; please report it with the program's text"
    )]
    Internal {
        /// Where.
        phase: Phase,
        /// The program.
        program: Arc<str>,
        /// What happened.
        message: String,
    },
}

/// Runs one phase; a panic in it becomes an error that names the phase.
pub(crate) fn guarded<T>(
    phase: Phase,
    program: &Arc<str>,
    work: impl FnOnce() -> Result<T, CompileError>,
) -> Result<T, CompileError> {
    // What the closure borrows is dropped or only read after an error.
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)) {
        Ok(result) => result,
        Err(panic) => {
            let message = panic
                .downcast_ref::<&str>()
                .map(|s| (*s).to_owned())
                .or_else(|| panic.downcast_ref::<String>().cloned())
                .unwrap_or_else(|| "a panic without a message".to_owned());
            Err(CompileError::Internal { phase, program: program.clone(), message })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error_that_names_the_phase() {
        let error = guarded::<()>(Phase::Fuse, &"f".into(), || panic!("index {} is wrong", 3)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "internal error during scheduling of `f`: index 3 is wrong; please report it with the program's text"
        );
    }
}
