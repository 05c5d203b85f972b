//! Every sample call of the operator table (see `samples.txt` of `loafc-ir`), lowered: the values are those of
//! the reference semantics, which are compared with PyTorch there; and which operators stay calls is known.

use std::collections::BTreeSet;

use crate::support::{Random, check_with, extern_calls, lowered, parsed};
use loafc_ir::dtype::{DType, Scalar};
use loafc_ir::graph::{Arg, Graph, TensorId, Value, ValueType};
use loafc_ir::interp::scalar::constant;
use loafc_ir::interp::tensor::HostTensor;
use loafc_ir::ops::{GraphInput, infer};

const SAMPLES: &str = include_str!("../../../loafc-ir/src/ops/tests/samples.txt");

/// Operators without loop nests: products, scans, sorting, effects.
const EXTERN: &str = "
    aten._assert_async.default aten._assert_async.msg aten._scaled_dot_product_flash_attention_for_cpu.default
    aten.addmm.default aten.addmv.default aten.argsort.default aten.baddbmm.default aten.bmm.default
    aten.convolution.default aten.convolution_backward.default aten.cummax.default aten.cummin.default
    aten.cumprod.default aten.cumsum.default aten.dot.default aten.linear.default aten.logcumsumexp.default
    aten.matmul.default aten.mm.default aten.mv.default aten.sort.default aten.sort.stable aten.topk.default
";

/// Operators of which some forms have no loop nests: windows that overlap, gradients scaled by frequency, means
/// and excluded bases of scattered elements, views as types of another width.
const PARTLY_EXTERN: &str = "
    aten._adaptive_avg_pool2d.default aten._adaptive_avg_pool2d_backward.default
    aten.embedding_dense_backward.default aten.scatter_reduce.two aten.upsample_nearest2d.default aten.view.dtype
";

/// Samples that no program contains: positions of maxima that lie outside of their windows.
const SKIPPED: [&str; 1] = ["aten.max_pool2d_with_indices_backward.default"];

struct Sample {
    name: String,
    dtype: DType,
    shape: Vec<usize>,
    letters: String,
}

/// The meaning of a tensor's name, as the head of the samples says.
fn sample(name: &str) -> Sample {
    let mut parts = name.split('_');
    let (kind, extents) = (parts.next().unwrap(), parts.next().unwrap());
    let shape = match extents {
        "s" => Vec::new(),
        _ => extents.split('x').map(|n| n.parse().unwrap()).collect(),
    };
    let letters = parts.next().unwrap_or("").to_owned();
    Sample { name: name.to_owned(), dtype: kind.parse().unwrap(), shape, letters }
}

impl Sample {
    fn has(&self, letter: char) -> bool {
        self.letters.contains(letter)
    }

    fn strides(&self) -> Vec<usize> {
        let rank = self.shape.len();
        let order: Vec<usize> = match () {
            () if self.has('t') => (0..rank).collect(),
            () if self.has('c') => [1].into_iter().chain((2..rank).rev()).chain([0]).collect(),
            () => (0..rank).rev().collect(),
        };
        let mut strides = vec![0; rank];
        let mut next = 1;
        for d in order {
            strides[d] = next;
            next *= self.shape[d].max(1);
        }
        strides
    }

    fn tensor(&self, random: &mut Random) -> HostTensor {
        let is_position =
            self.dtype == DType::I64 && !self.has('p') && matches!(&self.shape[..], [2] | [2, 1] | [3]);
        let element = |random: &mut Random| {
            let number = if self.has('n') || self.dtype == DType::Bool {
                random.below(2) as f64
            } else if self.dtype.is_float() {
                random.below(101) as f64 / 16.0 - 3.0
            } else if is_position {
                random.below(3) as f64
            } else {
                random.below(7) as f64 - if self.dtype == DType::U8 { 0.0 } else { 3.0 }
            };
            let least = if self.dtype.is_float() { 0.25 } else { 1.0 };
            let number = if self.has('p') { number.abs() + least } else { number };
            let number = if self.has('u') { number / 4.0 } else { number };
            constant(Scalar::Float(number), self.dtype)
        };
        let count = self.shape.iter().product();
        HostTensor {
            dtype: self.dtype,
            shape: self.shape.clone(),
            data: (0..count).map(|_| element(random)).collect(),
        }
    }
}

/// A program of one call that returns all its results.
fn program(call: &str, inputs: &[Sample]) -> Graph {
    let parameters: Vec<String> = inputs
        .iter()
        .map(|s| format!("%{}: {}{:?} strides {:?}", s.name, s.dtype, s.shape, s.strides()))
        .collect();
    let mut graph = parsed(&format!("graph @sample({}) {{\n  {call}\n  return\n}}", parameters.join(", ")));
    let node = &graph.nodes[0];
    let value_type = |id: TensorId| graph.value(id).ty.clone();
    let types = infer(&node.op, &node.args, &node.kwargs, &value_type).unwrap();
    let mut results = Vec::new();
    for ty in types {
        results.push(ty.map(|ty| {
            let id = TensorId(graph.values.len() as u32);
            graph.values.push(Value { name: format!("r{}", id.0).into(), ty: ValueType::Tensor(ty) });
            graph.outputs.push(Arg::Value(id));
            id
        }));
    }
    graph.nodes[0].results = results;
    graph
}

#[test]
fn every_sample_keeps_its_values() {
    let expected: BTreeSet<&str> =
        EXTERN.split_whitespace().chain(PARTLY_EXTERN.split_whitespace()).collect();
    let mut found = BTreeSet::new();
    for line in SAMPLES.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let call = line.trim_start_matches(['~', '!']);
        let op = call.split('(').next().unwrap();
        if SKIPPED.contains(&op) {
            continue;
        }
        let names: BTreeSet<&str> = call
            .split('%')
            .skip(1)
            .map(|rest| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap())
            .collect();
        let tensors: Vec<Sample> = names.into_iter().map(sample).collect();
        let graph = program(call, &tensors);
        let lowered = lowered(&graph);
        if !extern_calls(&lowered).is_empty() {
            found.insert(op);
        }
        // `~`: values undefined. Assertions have none, and fail on random truth values.
        if line.starts_with('~') || op.contains("_assert") {
            continue;
        }
        let mut random = Random::new(7);
        let inputs: Vec<GraphInput> =
            tensors.iter().map(|s| GraphInput::Tensor(s.tensor(&mut random))).collect();
        check_with(&graph, &lowered, &inputs);
    }
    assert_eq!(found, expected, "operators that stay calls");
}
