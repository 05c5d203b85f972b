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
    expect!["input 1 (%x) must be f32[2], not f32[3]"]
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
