//! What the machine code is made of, and what it refuses.

mod support;

use loafc_codegen::kernel::{CodegenOptions, compile};
use loafc_ir::interp::nest::Machine;
use support::{check, compile_all, program, random_inputs, run_native};

#[test]
fn an_addition_is_vectorised() {
    let program = program(
        "graph @f(%x: f32[1000], %y: f32[1000]) {
           %a = aten.add.Tensor(%x, %y)
           return %a
         }",
    );
    let uses = compile_all(&program.schedule);
    let text = uses[0].kernel.text.as_ref().expect("texts are kept");
    assert!(text.llvm_ir.contains("x float>"), "{}", text.llvm_ir);
    assert!(text.assembly.contains("vaddps"), "{}", text.assembly);
    assert!(!text.assembly.contains("call"), "{}", text.assembly);
}

#[test]
fn no_kernel_calls_a_library() {
    let program = program(
        "graph @f(%x: f32[37, 50]) {
           %a = aten.exp.default(%x)
           %b = aten.erf.default(%a)
           %c = aten.tanh.default(%b)
           %d = aten.log1p.default(%c)
           %e = aten.sin.default(%d)
           %g = aten.pow.Tensor_Tensor(%e, %x)
           %h = aten.fmod.Tensor(%g, %x)
           %s = aten.sum.dim_IntList(%h, [1], false)
           return %s
         }",
    );
    for kernel in compile_all(&program.schedule) {
        let text = kernel.kernel.text.as_ref().expect("texts are kept");
        // What a kernel calls are functions of its own, which it defines.
        for call in text.assembly.lines().filter(|line| line.contains("call")) {
            let callee = call.split_whitespace().last().unwrap_or_default();
            assert!(text.assembly.contains(&format!("\n{callee}:")), "{call}\n{}", text.assembly);
        }
    }
}

/// Instructions of LLVM IR for a chain of this operator, on one operand or with another one.
fn instructions_of_chain(operator: &str, binary: bool, length: usize) -> usize {
    let other = if binary { ", %y" } else { "" };
    let chain: String = (0..length)
        .map(|k| {
            let from = if k == 0 { "x".to_owned() } else { format!("v{}", k - 1) };
            format!("%v{k} = {operator}(%{from}{other})\n")
        })
        .collect();
    let text = format!("graph @f(%x: f32[4096], %y: f32[4096]) {{\n{chain}return %v{}\n}}", length - 1);
    let uses = compile_all(&program(&text).schedule);
    let texts = uses.iter().map(|u| u.kernel.text.as_ref().expect("texts are kept"));
    texts.map(|text| text.llvm_ir.lines().filter(|line| line.starts_with("  ")).count()).sum()
}

#[test]
fn functions_add_little_code_to_a_long_chain() {
    // Compiling takes a time that grows with the instructions of a function, and more than in proportion.
    let mut longer = Vec::new();
    for (operator, binary, most) in [
        ("aten.sin.default", false, 60),
        ("aten.cos.default", false, 60),
        ("aten.tan.default", false, 60),
        ("aten.exp.default", false, 35),
        ("aten.tanh.default", false, 50),
        ("aten.erf.default", false, 40),
        ("aten.lgamma.default", false, 5),
        ("aten.digamma.default", false, 5),
        ("aten.pow.Tensor_Tensor", true, 120),
        ("aten.atan2.default", true, 140),
    ] {
        let [short, long] = [4, 12].map(|length| instructions_of_chain(operator, binary, length));
        let each = (long - short) / 8;
        if each > most {
            longer.push(format!("{operator}: {each} instructions for each, expected {most} at most"));
        }
    }
    assert!(longer.is_empty(), "{}", longer.join("\n"));
}

#[test]
fn kernels_of_equal_structure_are_compiled_once() {
    let program = program(
        "graph @f(%x: f32[64, 64], %y: f32[64, 64], %w: f32[64, 64]) {
           %a = aten.mm.default(%x, %w)
           %b = aten.relu.default(%a)
           %c = aten.mm.default(%b, %w)
           %d = aten.relu.default(%c)
           return %d
         }",
    );
    let uses = compile_all(&program.schedule);
    assert_eq!(uses.len(), 2);
    assert!(std::sync::Arc::ptr_eq(&uses[0].kernel, &uses[1].kernel));
    assert_ne!(uses[0].buffers, uses[1].buffers);
}

#[test]
fn one_kernel_serves_all_sizes_of_a_symbol() {
    let text = "size s0 = 32
                graph @f(%x: f32[s0, s0], %y: f32[s0]) {
                  %a = aten.mul.Tensor(%x, %y)
                  return %a
                }";
    let program = program(text);
    let uses = compile_all(&program.schedule);
    assert!(!uses[0].sizes.is_empty());
    for n in [0, 1, 5, 16, 33, 100] {
        check(text, &[("s0", n)]);
    }
}

#[test]
fn an_index_out_of_bounds_fails_its_check() {
    let program = program(
        "graph @f(%w: f32[3, 20], %i: i64[40]) {
           %e = aten.embedding.default(%w, %i)
           %y = aten.mul.Tensor(%e, 2.0)
           return %y
         }",
    );
    let uses = compile_all(&program.schedule);
    let inputs = random_inputs(&program.graph, &[], 3);
    let machine = Machine::new(&program.schedule.program, &inputs).expect("memory");
    let failed = run_native(&uses[0], &machine.memory, &inputs.sizes, 1).expect_err("an index is negative");
    assert!(uses[0].failures.iter().any(|f| *f.message == failed));
}

#[test]
fn the_same_schedule_gives_the_same_object_code() {
    let program = program(
        "graph @f(%x: f32[50, 70]) {
           %s = aten.sum.dim_IntList(%x, [0], true)
           %d = aten.sub.Tensor(%x, %s)
           return %d
         }",
    );
    let options = CodegenOptions { threads: 2, ..CodegenOptions::default() };
    let (a, b) = (compile(&program.schedule, &options), compile(&program.schedule, &options));
    let objects = |uses: Vec<loafc_codegen::kernel::KernelUse>| -> Vec<Vec<u8>> {
        uses.iter().map(|u| u.kernel.code.object.to_vec()).collect()
    };
    assert_eq!(objects(a.expect("compiles")), objects(b.expect("compiles")));
}

#[cfg(target_arch = "x86_64")]
#[test]
fn only_large_results_pass_by_the_cache() {
    let assembly = |len: usize| {
        let text = format!(
            "graph @f(%x: f32[{len}]) {{
               %a = aten.relu.default(%x)
               return %a
             }}"
        );
        compile_all(&program(&text).schedule)[0]
            .kernel
            .text
            .as_ref()
            .expect("texts are kept")
            .assembly
            .clone()
    };
    assert!(assembly(4 << 20).contains("movnt"));
    assert!(!assembly(1 << 20).contains("movnt"));
}
