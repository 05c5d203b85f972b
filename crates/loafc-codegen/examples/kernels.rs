//! Shows the kernels of a `.loaf` file: `cargo run -p loafc-codegen --example kernels -- FILE.loaf [tree|ir|asm]`.
//! Prints the time to compile, and how fast one thread runs each kernel on memory of the hinted sizes.

#[path = "../tests/support/mod.rs"]
mod support;

use std::time::Instant;

use loafc_codegen::kernel::{CodegenOptions, KernelUse, compile};
use loafc_ir::nest::NestProgram;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let file = args.next().ok_or("usage: kernels FILE.loaf [tree|ir|asm]")?;
    let what = args.next().unwrap_or_else(|| "tree".to_owned());
    let program = support::program(&std::fs::read_to_string(&file)?);
    let options = CodegenOptions { threads: 1, ..CodegenOptions::default() };
    for round in ["first", "second"] {
        let start = Instant::now();
        let uses = compile(&program.schedule, &options)?;
        println!("{} kernels, {round} compilation {:.2} ms", uses.len(), start.elapsed().as_secs_f64() * 1e3);
    }
    let uses = compile(&program.schedule, &CodegenOptions { keep_text: true, ..options })?;
    if what == "group" {
        println!("{:#?}", support::groups(&program.schedule));
    }
    for kernel in &uses {
        let text = kernel.kernel.text.as_ref().ok_or("no text")?;
        println!(
            "{}",
            match what.as_str() {
                "ir" => &text.llvm_ir,
                "asm" => &text.assembly,
                _ => &text.loop_tree,
            }
        );
        time(kernel, &program.schedule.program);
    }
    Ok(())
}

/// The first cache line of some memory: kernels have other code for memory that does not begin at one.
fn line_of(memory: &mut [u64]) -> *mut u8 {
    let start = memory.as_mut_ptr().cast::<u8>();
    start.wrapping_add(start.align_offset(64))
}

fn time(kernel: &KernelUse, program: &NestProgram) {
    let hint = |s: loafc_ir::size::Size| s.hint(&program.hints);
    let mut bytes = 0;
    let mut memory: Vec<Vec<u64>> = kernel
        .buffers
        .iter()
        .map(|b| {
            let buffer = program.buffer(*b);
            let len = hint(buffer.len) as usize * buffer.dtype.bytes();
            bytes += len;
            let mut words = vec![0; len / 8 + 16];
            // Memory that was never written to is one page of zeros, which every read finds in the cache. Numbers near 1
            // don't underflow; other elements may be positions and stay 0.
            words.fill(if buffer.dtype.is_float() { 0x3f80_3f80_3f80_3f80 } else { 0 });
            words
        })
        .collect();
    let pointers: Vec<*mut u8> = memory.iter_mut().map(|m| line_of(m)).collect();
    let sizes: Vec<i64> = kernel.sizes.iter().map(|s| hint(*s)).collect();
    let block = |s| vec![0u128; hint(s) as usize / 16 + 8];
    let mut shared = block(kernel.shared_scratch_bytes);
    let mut best = f64::INFINITY;
    for _ in 0..20 {
        let start = Instant::now();
        for (entry, phase) in kernel.kernel.code.entries.iter().zip(&kernel.phases) {
            let mut thread = block(phase.thread_scratch_bytes);
            let (shared, thread) = (shared.as_mut_ptr().cast(), thread.as_mut_ptr().cast());
            // SAFETY: all pointers are to live memory of the sizes that the kernel asks for.
            unsafe { entry(pointers.as_ptr(), sizes.as_ptr(), 0, hint(phase.units), shared, thread) };
        }
        best = best.min(start.elapsed().as_secs_f64());
    }
    let units: Vec<i64> = kernel.phases.iter().map(|p| hint(p.units)).collect();
    println!(
        "{}: {:.3} ms, {:.2} GB/s, units {units:?}",
        kernel.kernel.name,
        best * 1e3,
        bytes as f64 / best / 1e9
    );
}
