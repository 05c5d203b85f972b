//! Whole programs in the interpreter: binding of inputs, mutation, extern calls.

use expect_test::expect;

use super::*;
use crate::nest::{BufferId, ExternCall, TensorView};

fn floats(shape: &[usize], values: &[f64]) -> HostTensor {
    HostTensor {
        dtype: DType::F32,
        shape: shape.to_vec(),
        data: values.iter().map(|v| Scalar::Float(*v)).collect(),
    }
}

fn run(text: &str, inputs: &[HostTensor]) -> Result<EvalResult, EvalError> {
    let graph = text::parse(text, "test").unwrap_or_else(|e| panic!("{e}"));
    let inputs: Vec<GraphInput> = inputs.iter().cloned().map(GraphInput::Tensor).collect();
    eval_graph(&graph, &inputs)
}

#[test]
fn copies_into_inputs_are_seen_by_later_uses_only() {
    let text = "graph @g(%x: f32[2]) {
        %before = aten.mul.Tensor(%x, 10.0)
        %next = aten.add.Tensor(%x, 1.0)
        %written = aten.copy_.default(%x, %next)
        %after = aten.mul.Tensor(%x, 10.0)
        return %before, %after, %x, %written
    }";
    let made = run(text, &[floats(&[2], &[1.0, 2.0])]).unwrap();
    let tensors = [[10.0, 20.0], [20.0, 30.0], [2.0, 3.0], [2.0, 3.0]];
    let expected: Vec<GraphOutput> =
        tensors.iter().map(|values| GraphOutput::Tensor(floats(&[2], values))).collect();
    assert_eq!(made.outputs, expected);
    assert_eq!(made.mutated_inputs, [(0, floats(&[2], &[2.0, 3.0]))]);
}

#[test]
fn size_symbols_are_bound_by_input_shapes() {
    let text = "size s0
    graph @g(%x: f32[s0, 2]) {
        %y = aten.view.default(%x, [s0*2])
        %z = aten.sum.dim_IntList(%y, [0])
        return %z, s0
    }";
    let made = run(text, &[floats(&[2, 2], &[1.0, 2.0, 3.0, 4.0])]).unwrap();
    assert_eq!(made.outputs, [GraphOutput::Tensor(floats(&[], &[10.0])), GraphOutput::Size(2)]);
}

#[test]
fn inputs_that_do_not_fit_are_refused() {
    let text = "graph @g(%x: f32[2]) {\n  return %x\n}";
    expect!["input 0 (%x) must be f32[2], not f32[3]"]
        .assert_eq(&run(text, &[floats(&[3], &[0.0; 3])]).unwrap_err().to_string());
    expect!["program @g takes 1 inputs, 0 were given"].assert_eq(&run(text, &[]).unwrap_err().to_string());
}

#[test]
fn strided_views_read_the_memory_of_their_operand() {
    let text = "graph @g(%x: f32[2, 3] strides [1, 2]) {
        %y = aten.as_strided.default(%x, [6], [1])
        return %y
    }";
    let made = run(text, &[floats(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])]).unwrap();
    let memory = floats(&[6], &[1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    assert_eq!(made.outputs, [GraphOutput::Tensor(memory)]);
}

#[test]
fn extern_calls_run_on_the_values_of_their_tensors() {
    let view = |shape: &[Size]| TensorView {
        buffer: BufferId(0),
        shape: shape.to_vec(),
        strides: crate::graph::contiguous_strides(shape).to_vec(),
        offset: Size::ZERO,
    };
    let s0 = Size::symbol("s0");
    let call = ExternCall {
        op: "aten.expand.default".into(),
        args: vec![value(0), Arg::List(vec![Arg::Size(Size::from(2)), Arg::Size(s0)])],
        kwargs: Vec::new(),
        tensors: vec![view(&[s0])],
        results: vec![None],
        mutates: Vec::new(),
        ordered: false,
        origin: None,
    };
    let made = eval_call(&call, &[floats(&[2], &[1.0, 2.0])]).unwrap();
    assert_eq!(made, [floats(&[2, 2], &[1.0, 2.0, 1.0, 2.0])]);
}

fn numbers(dtype: DType, shape: &[usize], values: &[f64]) -> HostTensor {
    let data = values.iter().map(|v| scalar::cast(Scalar::Float(*v), DType::F64, dtype)).collect();
    HostTensor { dtype, shape: shape.to_vec(), data }
}

/// The values of the program's only result.
fn values(text: &str, inputs: &[HostTensor]) -> Vec<f64> {
    match &run(text, inputs).unwrap().outputs[0] {
        GraphOutput::Tensor(t) => t.data.iter().map(|v| v.to_f64()).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_step_to_the_end_of_everything_takes_one_element() {
    let text = "graph @g(%x: f32[4, 2]) {
        %y = aten.slice.Tensor(%x, 0, 1, 4, 9223372036854775807)
        return %y
    }";
    let x = floats(&[4, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    assert_eq!(values(text, &[x]), [3.0, 4.0]);
}

#[test]
fn limits_that_an_integer_type_cannot_hold_are_none() {
    let clamped = |dtype: DType, call: &str| {
        let low = if dtype == DType::U8 { 0.0 } else { -100.0 };
        let x = numbers(dtype, &[4], &[low, 10.0, 100.0, 120.0]);
        values(&format!("graph @g(%x: {dtype}[4]) {{ %y = aten.{call} return %y }}"), &[x])
    };
    assert_eq!(clamped(DType::U8, "clamp.default(%x, -3, 50)"), [0.0, 10.0, 50.0, 50.0]);
    assert_eq!(clamped(DType::U8, "clamp.default(%x, 5, 500)"), [5.0, 10.0, 100.0, 120.0]);
    for call in ["clamp.default(%x, 0, 500)", "clamp_min.default(%x, -3)", "clamp_max.default(%x, 300)"] {
        assert_eq!(clamped(DType::U8, call), [0.0, 10.0, 100.0, 120.0], "{call}");
    }
    for dtype in [DType::I8, DType::I16, DType::I32] {
        for call in ["clamp.default(%x, -8589934597, 8589934597)", "clamp_min.default(%x, -8589934597)"] {
            assert_eq!(clamped(dtype, call), [-100.0, 10.0, 100.0, 120.0], "{dtype} {call}");
        }
    }
    assert_eq!(clamped(DType::I8, "clamp.default(%x, -300, 50)"), [-100.0, 10.0, 50.0, 50.0]);
    let refused = "graph @g(%x: u8[4]) { %y = aten.clamp_max.default(%x, -3) return %y }";
    expect!["test:1:28: argument `max` of `aten.clamp_max.default`: -3 is outside of what u8 can hold"]
        .assert_eq(&text::parse(refused, "test").unwrap_err().to_string());
}

/// Values that PyTorch gives; only the right operand of products and quotients keeps its precision.
#[test]
fn a_wide_number_from_memory_scales_a_narrow_tensor_unrounded() {
    let run = |call: &str| {
        let text = format!("graph @g(%h: f16[3], %s: f32[]) {{ %y = aten.{call} return %y }}");
        let inputs = [numbers(DType::F16, &[3], &[1e-3, 2.0, 3.0]), numbers(DType::F32, &[], &[1e5])];
        values(&text, &inputs)
    };
    let infinity = f64::INFINITY;
    assert_eq!(run("mul.Tensor(%h, %s)"), [100.0625, infinity, infinity]);
    assert_eq!(run("mul.Tensor(%s, %h)"), [infinity; 3]);
    assert_eq!(run("div.Tensor(%h, %s)"), [0.0, 2.002716064453125e-05, 2.9981136322021484e-05]);
    assert_eq!(run("div.Tensor(%s, %h)"), [infinity; 3]);
}
