//! Errors of long reductions, against f64.

mod support;

use loafc_ir::dtype::Scalar;
use loafc_ir::interp::memory::HostMemory;
use loafc_ir::interp::nest::{InputValue, Machine};
use support::{compile_all, program, random_inputs, run_native};

/// Runs a program of one kernel on `value` of each element's position; returns the input and what the last
/// buffers hold.
fn run(text: &str, value: impl Fn(usize) -> f32) -> (Vec<f64>, HostMemory) {
    let program = program(text);
    let mut inputs = random_inputs(&program.graph, &[], 1);
    let mut data = Vec::new();
    if let InputValue::Tensor(tensor, _) = &mut inputs.values[0] {
        for (k, x) in tensor.data.iter_mut().enumerate() {
            *x = Scalar::Float(f64::from(value(k)));
        }
        data = tensor.data.iter().map(|x| x.to_f64()).collect();
    }
    let uses = compile_all(&program.schedule);
    assert_eq!(uses.len(), 1);
    let machine = Machine::new(&program.schedule.program, &inputs).expect("memory");
    (data, run_native(&uses[0], &machine.memory, &inputs.sizes, 2).expect("no checks"))
}

fn results(memory: &HostMemory, len: usize) -> Vec<Vec<f64>> {
    let all = memory.buffers.iter().flatten().skip(1).filter(|b| b.data.len() == len);
    all.map(|b| b.data.iter().map(|x| x.expect("written").to_f64()).collect()).collect()
}

/// Between 0.5 and 1.5, with no pattern that sums could profit from.
fn noise(k: usize) -> f32 {
    let mixed = (k as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    0.5 + mixed as f32 / (1u64 << 24) as f32
}

#[test]
fn a_long_sum_of_f32_is_right_to_a_few_ulp() {
    let (data, memory) = run("graph @f(%x: f32[1000000]) { %s = aten.sum.default(%x) return %s }", noise);
    let expected: f64 = data.iter().sum();
    let found = results(&memory, 1)[0][0];
    assert!((found - expected).abs() <= 4e-7 * expected, "{found} {expected}");
}

#[test]
fn long_column_sums_of_f32_are_right_to_a_few_ulp() {
    let (data, memory) =
        run("graph @f(%x: f32[50000, 16]) { %s = aten.sum.dim_IntList(%x, [0], false) return %s }", noise);
    for (column, found) in results(&memory, 16)[0].iter().enumerate() {
        let expected: f64 = data.iter().skip(column).step_by(16).sum();
        assert!((found - expected).abs() <= 1e-6 * expected, "{found} {expected}");
    }
}

#[test]
fn a_variance_far_from_zero_keeps_its_digits() {
    let (data, memory) = run(
        "graph @f(%x: f32[1, 20000]) {
           %v, %m = aten.var_mean.correction(%x, [1], correction=0, keepdim=false)
           return %v, %m
         }",
        |k| 1e5 + 4.0 * noise(k),
    );
    let count = data.len() as f64;
    let mean = data.iter().sum::<f64>() / count;
    let variance = data.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / count;
    let found: Vec<f64> = results(&memory, 1).iter().map(|r| r[0]).collect();
    assert!(found.iter().any(|x| (x - mean).abs() <= 1e-7 * mean), "{found:?} {mean}");
    assert!(found.iter().any(|x| (x - variance).abs() <= 2e-7 * variance), "{found:?} {variance}");
}
