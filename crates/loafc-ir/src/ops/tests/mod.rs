//! Tests of the operator table: one sample call of every operator, inferred, run, and compared with PyTorch; then
//! what samples don't show: errors, symbolic sizes, programs, mutation.

mod errors;
mod graphs;
mod robust;
mod symbolic;

use std::collections::BTreeSet;

use super::*;
use crate::dtype::{DType, Scalar};
use crate::graph::{Device, Graph, Input, Value};
use crate::interp::scalar;
use crate::size::Size;
use crate::text;

const SAMPLES: &str = include_str!("samples.txt");
const PYTORCH: &str = include_str!("pytorch.txt");

/// The tensor that a name in samples.txt stands for; `tensor` in generate.py makes the same.
fn sample_tensor(name: &str) -> (TensorType, HostTensor) {
    let mut parts = name.split('_');
    let kind = parts.next().unwrap();
    let extents = parts.next().unwrap();
    let letters = parts.next().unwrap_or("");
    let dtype: DType = kind.parse().unwrap();
    let shape: Vec<usize> = match extents {
        "s" => Vec::new(),
        _ => extents.split('x').map(|n| n.parse().unwrap()).collect(),
    };
    let seed: i64 = letters.bytes().map(i64::from).sum();
    let count: usize = shape.iter().product();
    let has = |letter| letters.contains(letter);
    let float = dtype.is_float();
    let number = |k: i64| {
        let n = (k * 37 + seed * 7 + 11).rem_euclid(101) - 50;
        let n = if has('n') {
            ((k + seed) % 2) as f64
        } else if dtype == DType::Bool {
            n.rem_euclid(2) as f64
        } else if float {
            n as f64 / 16.0
        } else if dtype == DType::I64 && !has('p') && matches!(extents, "2" | "2x1" | "3") {
            (k % 3) as f64
        } else {
            (n.rem_euclid(7) - if dtype == DType::U8 { 0 } else { 3 }) as f64
        };
        let n = if has('p') { n.abs() + if float { 0.25 } else { 1.0 } } else { n };
        if has('u') { n / 4.0 } else { n }
    };
    let data = (0..count as i64).map(|k| scalar::cast(Scalar::Float(number(k)), DType::F64, dtype)).collect();
    let mut ty = TensorType::contiguous(dtype, shape.iter().map(|n| Size::from(*n)));
    if has('t') {
        ty.strides = shape::dense_strides(&ty.shape, 0..shape.len());
    }
    if has('c') {
        ty.strides = shape::channels_last_strides(&ty.shape);
    }
    (ty, HostTensor { dtype, shape, data })
}

/// A program of one call, with the inputs that its text names.
fn sample_graph(call: &str) -> (Graph, Vec<GraphInput>) {
    let names: BTreeSet<&str> = call
        .split('%')
        .skip(1)
        .map(|rest| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap())
        .collect();
    let mut text = String::from("graph @sample(");
    let mut inputs = Vec::new();
    for name in &names {
        let (ty, tensor) = sample_tensor(name);
        let list = |sizes: &[Size]| sizes.iter().map(|s| s.to_string()).collect::<Vec<_>>().join(", ");
        text += &format!("%{name}: {}[{}] strides [{}], ", ty.dtype, list(&ty.shape), list(&ty.strides));
        inputs.push(GraphInput::Tensor(tensor));
    }
    text = format!("{}) {{\n  {call}\n  return\n}}", text.trim_end_matches(", "));
    let mut graph = text::parse(&text, "sample").unwrap_or_else(|e| panic!("{call}: {e}"));
    let node = &graph.nodes[0];
    let value_type = |id: TensorId| graph.value(id).ty.clone();
    let types =
        infer(&node.op, &node.args, &node.kwargs, &value_type).unwrap_or_else(|e| panic!("{call}: {e}"));
    let mut results = Vec::new();
    for ty in types {
        let Some(ty) = ty else {
            results.push(None);
            graph.outputs.push(Arg::None);
            continue;
        };
        let id = TensorId(graph.values.len() as u32);
        graph.values.push(Value { name: format!("r{}", id.0).into(), ty: ValueType::Tensor(ty) });
        results.push(Some(id));
        graph.outputs.push(Arg::Value(id));
    }
    graph.nodes[0].results = results;
    (graph, inputs)
}

fn samples() -> impl Iterator<Item = &'static str> {
    SAMPLES.lines().filter(|line| !line.is_empty() && !line.starts_with('#'))
}

#[test]
fn every_operator_has_a_sample() {
    let sampled: BTreeSet<&str> =
        samples().map(|s| s.trim_start_matches(['~', '!']).split('(').next().unwrap()).collect();
    let missing: Vec<&str> = all().map(|def| def.name).filter(|name| !sampled.contains(name)).collect();
    assert!(missing.is_empty(), "operators without a sample: {missing:?}");
    assert_eq!(all().count(), table().len(), "two definitions of one name");
}

/// The interpreter checks its results against the inferred types.
#[test]
fn interpreted_results_have_the_inferred_types() {
    for sample in samples() {
        let (graph, inputs) = sample_graph(sample.trim_start_matches(['~', '!']));
        eval_graph(&graph, &inputs).unwrap_or_else(|e| panic!("{sample}: {e}"));
    }
}

#[test]
fn types_strides_and_values_are_those_of_pytorch() {
    let mut differences = Vec::new();
    let mut lines = PYTORCH.lines().filter(|line| !line.starts_with('#')).peekable();
    while let Some(call) = lines.next() {
        let mut expected = Vec::new();
        while let Some(line) = lines.next_if(|line| line.starts_with("  ")) {
            expected.push(line.trim());
        }
        let (graph, inputs) = sample_graph(call);
        let made = eval_graph(&graph, &inputs).unwrap_or_else(|e| panic!("{call}: {e}"));
        if made.outputs.len() != expected.len() {
            differences.push(format!("{call}: {} results, not {}", made.outputs.len(), expected.len()));
            continue;
        }
        for (k, (output, expected)) in made.outputs.iter().zip(expected).enumerate() {
            if let Err(difference) = compare(&graph, &graph.outputs[k], output, expected) {
                differences.push(format!("{call}, result {k}: {difference}"));
            }
        }
    }
    assert!(differences.is_empty(), "\n{}", differences.join("\n"));
}

fn compare(graph: &Graph, id: &Arg, output: &GraphOutput, expected: &str) -> Result<(), String> {
    let (Arg::Value(id), GraphOutput::Tensor(tensor)) = (id, output) else {
        return if expected == "none" { Ok(()) } else { Err(format!("none, not {expected}")) };
    };
    let ty = graph.tensor_type(*id).unwrap();
    let list = |sizes: &[Size]| sizes.iter().map(|s| s.to_string()).collect::<Vec<_>>().join(", ");
    let own = format!("{}[{}] strides [{}]", ty.dtype, list(&ty.shape), list(&ty.strides));
    let (header, values) = match expected.split_once(" =") {
        Some((header, values)) => (header, Some(values)),
        None => (expected.trim_end_matches(" undefined"), None),
    };
    if own != header {
        return Err(format!("type {own}, not {header}"));
    }
    let Some(values) = values else { return Ok(()) };
    let values: Vec<f64> = values.split_whitespace().map(|v| v.parse().unwrap()).collect();
    let tolerance = match ty.dtype {
        DType::F64 => 1e-12,
        DType::F16 => 2e-3,
        DType::BF16 => 1.6e-2,
        d if d.is_float() => 3e-6,
        _ => 0.0,
    };
    // Sums of some of the values cancel, so a small absolute error is allowed beside the relative one.
    for (k, (own, expected)) in tensor.data.iter().zip(&values).enumerate() {
        let own = own.to_f64();
        let near = (own - expected).abs() <= tolerance * expected.abs().max(1.0);
        if !(near || own == *expected || (own.is_nan() && expected.is_nan())) {
            return Err(format!("element {k} is {own}, not {expected}"));
        }
    }
    if values.len() == tensor.data.len() { Ok(()) } else { Err("another number of elements".to_owned()) }
}

/// A graph of declared inputs, to call operators on by hand.
fn types_of<'a>(types: &'a [ValueType]) -> impl Fn(TensorId) -> ValueType + 'a {
    |id| types[id.0 as usize].clone()
}

fn tensor(dtype: DType, shape: &[i64]) -> ValueType {
    ValueType::Tensor(TensorType::contiguous(dtype, shape.iter().map(|n| Size::from(*n))))
}

fn value(k: u32) -> Arg {
    Arg::Value(TensorId(k))
}

fn sizes(values: &[i64]) -> Arg {
    Arg::List(values.iter().map(|v| Arg::Size(Size::from(*v))).collect())
}

#[test]
fn devices_come_from_the_operands_or_the_call() {
    let ValueType::Tensor(mut ty) = tensor(DType::F32, &[2]) else { unreachable!() };
    ty.device = Device::Cuda(1);
    let types = [ValueType::Tensor(ty), tensor(DType::F32, &[])];
    let of = |op: &str, args: &[Arg], kwargs: &[(Arc<str>, Arg)]| {
        infer(op, args, kwargs, &types_of(&types)).unwrap()[0].clone().unwrap().device
    };
    assert_eq!(of("aten.mul.Tensor", &[value(0), value(1)], &[]), Device::Cuda(1));
    assert_eq!(of("aten.sum.default", &[value(0)], &[]), Device::Cuda(1));
    let device = [(Arc::from("device"), Arg::Device(Device::Cuda(2)))];
    assert_eq!(of("aten.zeros.default", &[sizes(&[2])], &device), Device::Cuda(2));
    assert_eq!(of("aten._to_copy.default", &[value(0)], &device), Device::Cuda(2));
    assert_eq!(of("aten.zeros.default", &[sizes(&[2])], &[]), Device::Cpu);
}

#[test]
fn promotion_is_that_of_pytorch() {
    use DType::*;
    let cases = [
        (F32, F64, Some(F64)),
        (F16, BF16, Some(F32)),
        (F16, I64, Some(F16)),
        (U8, I8, Some(I16)),
        (U8, I32, Some(I32)),
        (I16, I64, Some(I64)),
        (Bool, U8, Some(U8)),
        (F32, C64, Some(C64)),
        (F64, C64, Some(C128)),
        (F16, C32, Some(C32)),
        (BF16, C32, Some(C64)),
        (C32, C64, Some(C64)),
        (I64, C32, Some(C32)),
        (F8E5M2, F32, None),
        (U32, I64, None),
        (U16, F32, Some(F32)),
    ];
    for (a, b, expected) in cases {
        assert_eq!(promote::promote_types(a, b), expected, "{a} and {b}");
        assert_eq!(promote::promote_types(b, a), expected, "{b} and {a}");
    }
}

#[test]
fn inference_of_a_long_program_is_fast_enough_to_run_on_every_node() {
    // A guard against a quadratic step: 20,000 calls take well under a second even without optimization.
    let types = [tensor(DType::F32, &[64, 64]), tensor(DType::F32, &[64])];
    let start = std::time::Instant::now();
    for _ in 0..20_000 {
        infer("aten.add.Tensor", &[value(0), value(1)], &[], &types_of(&types)).unwrap();
    }
    assert!(start.elapsed().as_secs() < 2, "{:?}", start.elapsed());
}

#[test]
fn inputs_may_be_sizes() {
    let graph = text::parse(
        "graph @g(%x: f32[s0], s0: size) {\n  %y = aten.mul.Tensor(%x, s0)\n  return %y, s0*2, none\n}",
        "g",
    )
    .unwrap();
    assert!(matches!(graph.inputs[1], Input::Size(..)));
    let x = HostTensor { dtype: DType::F32, shape: vec![2], data: vec![Scalar::Float(1.5); 2] };
    let made = eval_graph(&graph, &[GraphInput::Tensor(x), GraphInput::Size(2)]).unwrap();
    let y = HostTensor { dtype: DType::F32, shape: vec![2], data: vec![Scalar::Float(3.0); 2] };
    assert_eq!(made.outputs, [GraphOutput::Tensor(y), GraphOutput::Size(4), GraphOutput::None]);
}

#[test]
fn a_tensor_without_dimensions_has_one_row() {
    let run = |call: &str, source: &str| {
        let graph = text::parse(
            &format!("graph @g(%x: f32[], %i: i64[1], %s: f32[{source}]) {{\n  %r = {call}\n  return %r\n}}"),
            "g",
        )
        .map_err(|error| error.to_string())?;
        let of = |dtype, shape: &[usize], value| {
            GraphInput::Tensor(HostTensor { dtype, shape: shape.to_vec(), data: vec![value] })
        };
        let shape: &[usize] = if source.is_empty() { &[] } else { &[1] };
        let inputs = [
            of(DType::F32, &[], Scalar::Float(3.0)),
            of(DType::I64, &[1], Scalar::Int(0)),
            of(DType::F32, shape, Scalar::Float(4.0)),
        ];
        let made = eval_graph(&graph, &inputs).map_err(|error| error.to_string())?;
        match &made.outputs[..] {
            [GraphOutput::Tensor(r)] => Ok(r.data.clone()),
            other => Err(format!("{other:?}")),
        }
    };
    assert_eq!(run("aten.index_add.default(%x, 0, %i, %s, alpha=2)", ""), Ok(vec![Scalar::Float(11.0)]));
    assert_eq!(run("aten.index_copy.default(%x, 0, %i, %s)", ""), Ok(vec![Scalar::Float(4.0)]));
    assert_eq!(run("aten.index_copy.default(%x, 0, %i, %s)", "1"), Ok(vec![Scalar::Float(4.0)]));
    // Only a copy takes the one element of a row for the row.
    assert!(run("aten.index_add.default(%x, 0, %i, %s)", "1").is_err_and(|e| e.contains("expected")));
}
