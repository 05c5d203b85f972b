//! Extern calls: operators that the compiler leaves to a library. A front end brings the library; the runtime
//! says where the operands are and where results go.

use loafc_ir::nest::{ExternCall, StepId};
use loafc_ir::size::SymbolValues;

use crate::error::ExternError;
use crate::value::{Keepalive, ResultSpec, TensorRef};

/// One call with all that a library needs.
#[derive(Clone, Copy)]
pub struct Invocation<'a> {
    /// The operator and its arguments.
    pub call: &'a ExternCall,
    /// Which call of the program it is: equal in all runs, so a handler can keep what it resolves.
    pub step: StepId,
    /// The tensors of [`ExternCall::tensors`].
    pub tensors: &'a [TensorRef<'a>],
    /// The results of [`ExternCall::results`]; `None` for those nobody uses.
    pub results: &'a [Option<ResultSpec<'a>>],
    /// Values of the size symbols in the arguments.
    pub sizes: &'a SymbolValues,
}

/// Where a result ended up.
pub enum ResultMemory {
    /// At [`ResultSpec::ptr`].
    Written,
    /// In memory of the library, with the strides of [`ResultSpec::strides`]. It must not be memory that the call
    /// was given as an operand: the runtime reuses that for something else.
    Foreign {
        /// First element.
        ptr: *mut u8,
        /// Dropped after the last use.
        keepalive: Keepalive,
    },
    /// Not made, because nobody uses it.
    Unused,
}

/// A library of operators.
pub trait Externs {
    /// Makes the call. Returns one entry for each of [`Invocation::results`].
    fn call(&mut self, invocation: &Invocation<'_>) -> Result<Vec<ResultMemory>, ExternError>;

    /// Tells that nothing will use these inputs of the program any more. A front end that owns them may let go of
    /// them, so that their memory serves what comes later; it need not. No result lies in them, but another input may
    /// share their memory.
    fn release_inputs(&mut self, _inputs: &[usize]) {}
}

/// Whether a library writes the results of this call to where it is told to. If not, no memory is planned for
/// them and [`ResultSpec::ptr`] is `None`.
pub type WritesResults<'a> = &'a dyn Fn(&ExternCall) -> bool;
