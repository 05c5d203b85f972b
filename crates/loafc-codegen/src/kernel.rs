//! What code generation gives to the runtime: compiled kernels, and for each kernel of a schedule how it is
//! called. Kernels of equal structure are compiled once, so what differs between two uses of one kernel
//! (buffers, sizes, numbers of units) stands in the use.

use std::sync::Arc;

use loafc_ir::nest::BufferId;
use loafc_ir::size::Size;

use crate::cpu::jit::LoadedCode;

/// Machine code of one phase of a kernel: runs the units `begin..end`.
///
/// `buffers` holds a pointer to the first element of each parameter's buffer, `sizes` the values of
/// [`KernelUse::sizes`], `shared_scratch` is one block for all threads and all phases of a call,
/// `thread_scratch` one block for each thread; both are aligned to 64 bytes and need no initial content.
/// Returns 0, or 1 + the position in [`CompiledKernel::check_messages`] of a check that failed.
pub type Entry = unsafe extern "C" fn(
    buffers: *const *mut u8,
    sizes: *const i64,
    begin: i64,
    end: i64,
    shared_scratch: *mut u8,
    thread_scratch: *mut u8,
) -> i32;

/// How code is generated.
#[derive(Clone, Debug, Default)]
pub struct CodegenOptions {
    /// Threads that compile in parallel; 0 for as many as there are cores.
    pub threads: usize,
    /// Width of vector registers to use, in bits; `None` for the widest of this machine.
    pub vector_bits: Option<u32>,
    /// Keep the text of each kernel's loop tree, LLVM IR and assembly, for people to look at.
    pub keep_text: bool,
}

/// How a kernel uses a parameter's buffer.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Only read.
    Read,
    /// Only written.
    Write,
    /// Read and written.
    ReadWrite,
}

/// A buffer that a kernel gets as argument.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct KernelParam {
    /// How it is used.
    pub access: Access,
}

/// A kernel ready to run. Its code stays loaded as long as this lives.
#[derive(Debug)]
pub struct CompiledKernel {
    /// Name for people, from the first group that needed it.
    pub name: Arc<str>,
    /// The buffers, in the order in which [`Entry`] gets them.
    pub params: Vec<KernelParam>,
    /// The code of each phase. A phase starts when all units of the phase before have ended.
    pub phases: Vec<Entry>,
    /// Messages of the checks, by number.
    pub check_messages: Vec<Arc<str>>,
    /// The object file that the code was loaded from.
    pub object: Arc<[u8]>,
    /// Text forms, with [`CodegenOptions::keep_text`].
    pub text: Option<KernelText>,
    /// Keeps the code loaded.
    pub(crate) _code: LoadedCode,
}

/// A kernel for people to look at.
#[derive(Clone, Debug)]
pub struct KernelText {
    /// The loop tree.
    pub loop_tree: String,
    /// LLVM IR after the pass pipeline.
    pub llvm_ir: String,
    /// Assembly of this machine.
    pub assembly: String,
}

/// How large one phase is in one use of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct PhaseSizes {
    /// Number of parallel units. Any split of `0..units` over threads gives the same bits.
    pub units: Size,
    /// Rough work of one unit, in bytes moved and operations done, for the grain of the split.
    pub work_per_unit: Size,
    /// Bytes of scratch memory that each thread needs.
    pub thread_scratch_bytes: Size,
}

/// One kernel of a schedule: the code and how to call it.
#[derive(Clone, Debug)]
pub struct KernelUse {
    /// The code; uses of equal structure share it.
    pub kernel: Arc<CompiledKernel>,
    /// The program's buffer for each parameter.
    pub buffers: Vec<BufferId>,
    /// What [`Entry`] gets as `sizes`: the caller evaluates them once a call.
    pub sizes: Vec<Size>,
    /// For each of the kernel's phases, in order.
    pub phases: Vec<PhaseSizes>,
    /// Bytes of scratch memory that all threads share over all phases.
    pub shared_scratch_bytes: Size,
}

/// Why a group could not be compiled. All of these are limits or bugs of this crate, not of the program.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CodegenError {
    /// An element type that kernels can't hold.
    #[error("kernel `{kernel}`: no code for element type {dtype} of buffer {buffer}; keep the operator as an extern call")]
    DType {
        /// The group's name.
        kernel: Arc<str>,
        /// The type.
        dtype: loafc_ir::dtype::DType,
        /// The buffer's name.
        buffer: Arc<str>,
    },
    /// The group breaks the contract of `loafc_fuse::schedule`.
    #[error("kernel `{kernel}`: {what}")]
    Malformed {
        /// The group's name.
        kernel: Arc<str>,
        /// What is wrong.
        what: String,
    },
    /// LLVM refused.
    #[error("kernel `{kernel}`: LLVM: {message}")]
    Llvm {
        /// The kernel's name.
        kernel: Arc<str>,
        /// LLVM's message.
        message: String,
    },
}

/// Compiles the kernels of a schedule, one use for each kernel step in order.
pub fn compile(
    schedule: &loafc_fuse::schedule::Schedule,
    options: &CodegenOptions,
) -> Result<Vec<KernelUse>, CodegenError> {
    let _ = (schedule, options);
    Err(CodegenError::Malformed { kernel: "".into(), what: "code generation is being written".into() })
}
