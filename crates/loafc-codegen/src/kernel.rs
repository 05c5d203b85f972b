//! What code generation gives to the runtime: compiled kernels, and for each kernel of a schedule how it is
//! called. Kernels of equal structure are compiled once, so what differs between two uses of one kernel
//! (buffers, sizes, numbers of units) stands in the use.

use std::sync::Arc;

use indexmap::IndexMap;
use loafc_fuse::schedule::{Group, Schedule, ScheduledStep};
use loafc_ir::nest::{BufferId, Failure, NestProgram};
use loafc_ir::size::Size;

use crate::code::{self, LoadedObject, ObjectStore, Origin, Wanted};
use crate::loop_tree::{self, Built, Kernel, Limits, MemoryPlace, SizeSlots};

/// Machine code of one phase of a kernel: runs the units `begin..end`.
///
/// `buffers` holds a pointer to the first element of each parameter's buffer, `sizes` the values of
/// [`KernelUse::sizes`], `shared_scratch` is one block for all threads and all phases of a call,
/// `thread_scratch` one block for each thread; both are aligned to 64 bytes and need no initial content.
/// Returns 0, or 1 + the position in [`KernelUse::failures`] of a check that failed.
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
    /// How groups are cut.
    pub limits: Limits,
    /// Where object files are kept for other processes.
    pub store: Option<Arc<dyn ObjectStore>>,
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
    /// The code; a phase starts when all units of the phase before have ended.
    pub code: Arc<LoadedObject>,
    /// Where the code came from.
    pub origin: Origin,
    /// Text forms, with [`CodegenOptions::keep_text`].
    pub text: Option<KernelText>,
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
///
/// Buffers of different parameters must not overlap. The one exception is a buffer that is only written over one
/// that is only read, where each iteration reads exactly the element that it overwrites, and computes from it
/// what it writes.
#[derive(Clone, Debug)]
pub struct KernelUse {
    /// The code; uses of equal structure share it.
    pub kernel: Arc<CompiledKernel>,
    /// The program's buffer for each parameter.
    pub buffers: Vec<BufferId>,
    /// What its checks fail with, by number.
    pub failures: Vec<Failure>,
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
    #[error(
        "kernel `{kernel}`: no code for element type {dtype} of buffer {buffer}; keep the operator as an extern call"
    )]
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
    /// The threads to compile with could not be started.
    #[error("no threads to compile with: {message}; set their number to 1 to compile on the calling thread")]
    Threads {
        /// Why.
        message: String,
    },
}

/// Compiles the kernels of a schedule, one use for each kernel step in order. Kernels of equal structure are
/// compiled once.
///
/// # Errors
/// If a group breaks the contract of [`loafc_fuse::schedule`], uses an element type without kernels, or LLVM
/// refuses.
pub fn compile(schedule: &Schedule, options: &CodegenOptions) -> Result<Vec<KernelUse>, CodegenError> {
    let groups = schedule.steps.iter().filter_map(|step| match step {
        ScheduledStep::Kernel(group) => Some(group),
        ScheduledStep::Extern(_) => None,
    });
    let mut trees: IndexMap<String, Tree> = IndexMap::default();
    let mut uses = Vec::new();
    for group in groups {
        let Built { kernel, buffers } = build_tree(group, &schedule.program, &options.limits)?;
        let (key, slots) = kernel.key();
        let entry = trees.entry(key);
        let position = entry.index();
        let (failures, sizes, phases) = (kernel.failures.clone(), slots.sizes.clone(), phase_sizes(&kernel));
        let shared_scratch_bytes = kernel.scratch_bytes(MemoryPlace::Shared);
        let with_code =
            move |kernel| KernelUse { kernel, buffers, failures, sizes, phases, shared_scratch_bytes };
        uses.push((position, with_code));
        entry.or_insert_with(|| Tree { kernel, slots });
    }
    let kernels = compile_trees(&trees, options)?;
    Ok(uses.into_iter().map(|(position, with_code)| with_code(kernels[position].clone())).collect())
}

struct Tree {
    kernel: Kernel,
    slots: SizeSlots,
}

/// The loop tree of a group, with the program's buffer for each of its parameters.
///
/// # Errors
/// If the group breaks the contract of [`loafc_fuse::schedule`] or uses an element type without kernels.
pub fn build_tree(group: &Group, program: &NestProgram, limits: &Limits) -> Result<Built, CodegenError> {
    for used in &group.buffers {
        let Some(buffer) = program.buffers.get(used.buffer.0 as usize) else { continue };
        if !buffer.dtype.has_kernels() {
            let (kernel, buffer, dtype) = (group.name.clone(), buffer.name.clone(), buffer.dtype);
            return Err(CodegenError::DType { kernel, dtype, buffer });
        }
    }
    let malformed = |what| CodegenError::Malformed { kernel: group.name.clone(), what };
    loop_tree::build(group, program, limits).map_err(malformed)
}

fn phase_sizes(kernel: &Kernel) -> Vec<PhaseSizes> {
    let thread_scratch_bytes = kernel.scratch_bytes(MemoryPlace::Thread);
    let of = |phase: &loop_tree::Phase| PhaseSizes {
        units: phase.units,
        work_per_unit: phase.work_per_unit,
        thread_scratch_bytes,
    };
    kernel.phases.iter().map(of).collect()
}

fn compile_trees(
    trees: &IndexMap<String, Tree>,
    options: &CodegenOptions,
) -> Result<Vec<Arc<CompiledKernel>>, CodegenError> {
    let wanted: Vec<Wanted> = trees
        .iter()
        .map(|(structure, tree)| Wanted { structure, kernel: &tree.kernel, slots: &tree.slots })
        .collect();
    let found = code::get(&wanted, options)?;
    let kernels = trees.values().zip(found).map(|(tree, found)| {
        let params = tree.kernel.memory.iter().filter_map(|m| match m.place {
            MemoryPlace::Param(access) => Some(KernelParam { access }),
            MemoryPlace::Shared | MemoryPlace::Thread => None,
        });
        Arc::new(CompiledKernel {
            name: tree.kernel.name.clone(),
            params: params.collect(),
            code: found.loaded,
            origin: found.origin,
            text: found.texts.map(|(llvm_ir, assembly)| KernelText {
                loop_tree: tree.kernel.to_string(),
                llvm_ir,
                assembly,
            }),
        })
    });
    Ok(kernels.collect())
}
