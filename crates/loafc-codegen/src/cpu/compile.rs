//! From a loop tree to an object file: IR, a short pass pipeline, LLVM's code generator.

use inkwell::context::Context;
use inkwell::memory_buffer::MemoryBuffer;
use inkwell::module::Module;
use inkwell::passes::PassBuilderOptions;
use inkwell::targets::{FileType, TargetMachine};

use super::emit::emit;
use super::target::{Host, host};
use crate::loop_tree::{Kernel, SizeSlots};

/// What pays for the time it takes on straight vector code: stack slots to registers, common subexpressions,
/// addresses and constants out of loops.
const PASSES: &str = "function(sroa,early-cse<memssa>,instcombine<no-verify-fixpoint>,loop-mssa(licm),simplifycfg,early-cse<memssa>)";

/// An object file, and texts for people where asked for.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) bytes: Vec<u8>,
    /// LLVM IR behind the passes, and assembly.
    pub(crate) texts: Option<(String, String)>,
}

/// Generates code for a kernel, with functions `{name}_{phase}`.
pub(crate) fn compile(
    kernel: &Kernel,
    slots: &SizeSlots,
    name: &str,
    vector_bits: Option<u32>,
    keep_text: bool,
) -> Result<Object, String> {
    let host: &Host = host();
    let machine = host.machine()?;
    let context = Context::create();
    let module = context.create_module(name);
    let builder = context.create_builder();
    module.set_triple(&machine.get_triple());
    module.set_data_layout(&machine.get_target_data().get_data_layout());
    emit(kernel, slots, name, used_bits(vector_bits), (&context, &module, &builder))?;
    if cfg!(debug_assertions) || keep_text {
        module.verify().map_err(|e| e.to_string())?;
    }
    module.run_passes(PASSES, &machine, PassBuilderOptions::create()).map_err(|e| e.to_string())?;
    let object = write(&machine, &module, FileType::Object)?;
    let texts = match keep_text {
        true => {
            let assembly = write(&machine, &module, FileType::Assembly)?;
            Some((
                module.print_to_string().to_string(),
                String::from_utf8_lossy(assembly.as_slice()).into_owned(),
            ))
        }
        false => None,
    };
    Ok(Object { bytes: object.as_slice().to_vec(), texts })
}

/// Width of the vector registers that are used where this one is asked for, in bits.
pub(crate) fn used_bits(asked: Option<u32>) -> u32 {
    let widest = host().vector_bits;
    asked.unwrap_or(widest).clamp(128, 512).min(widest)
}

fn write(
    machine: &TargetMachine,
    module: &Module<'_>,
    kind: FileType,
) -> Result<MemoryBuffer<'static>, String> {
    machine.write_to_memory_buffer(module, kind).map_err(|e| e.to_string())
}
