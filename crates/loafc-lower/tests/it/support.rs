//! Runs a tensor program both as it is and lowered, on the same random inputs, and compares.

use loafc_ir::dtype::{DType, Scalar};
use loafc_ir::graph::{Graph, Input};
use loafc_ir::interp::nest::run_lowered;
use loafc_ir::interp::tensor::HostTensor;
use loafc_ir::nest::{NestProgram, Step};
use loafc_ir::ops::{GraphInput, GraphOutput, eval_graph};
use loafc_ir::size::SymbolValues;
use loafc_ir::text::parse;
use loafc_ir::verify::verify_program;
use loafc_lower::{LowerOptions, lower};

/// A small generator of numbers: the same inputs in every run.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n.max(1)
    }
}

pub fn parsed(text: &str) -> Graph {
    parse(text, "test.loaf").unwrap_or_else(|e| panic!("{e}\n{text}"))
}

pub fn lowered(graph: &Graph) -> NestProgram {
    let program = lower(graph, &LowerOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    verify_program(&program).unwrap_or_else(|e| panic!("{e}\n{program}"));
    program
}

/// Values for the size symbols of a program: its hints, or 3.
fn symbols(graph: &Graph) -> SymbolValues {
    let mut values = graph.hints.clone();
    for value in &graph.values {
        if let loafc_ir::graph::ValueType::Tensor(ty) = &value.ty {
            for name in ty.shape.iter().chain(&ty.strides).flat_map(|s| s.symbols()) {
                values.0.entry(name).or_insert(3);
            }
        }
    }
    values
}

/// Random inputs. Integers of an input named `idxN…` lie in `0..N`; of one named `negN…` in `-N..N`.
pub fn inputs(graph: &Graph, seed: u64) -> Vec<GraphInput> {
    let sizes = symbols(graph);
    let mut random = Random::new(seed);
    graph
        .inputs
        .iter()
        .map(|input| match input {
            Input::Size(_, symbol) => GraphInput::Size(sizes.0.get(symbol).copied().unwrap_or(3)),
            Input::Tensor(id) => {
                let ty = graph.tensor_type(*id).expect("a tensor");
                let shape: Vec<usize> =
                    ty.shape.iter().map(|s| s.eval(&sizes).expect("bound") as usize).collect();
                let name = graph.value(*id).name.clone();
                let count = shape.iter().product();
                let data = (0..count).map(|_| element(&mut random, ty.dtype, &name)).collect();
                GraphInput::Tensor(HostTensor { dtype: ty.dtype, shape, data })
            }
        })
        .collect()
}

fn limit(name: &str, prefix: &str) -> Option<u64> {
    let digits: String = name.strip_prefix(prefix)?.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

fn element(random: &mut Random, dtype: DType, name: &str) -> Scalar {
    use loafc_ir::interp::scalar::constant;
    if let Some(n) = limit(name, "idx") {
        return Scalar::Int(random.below(n) as i64);
    }
    if let Some(n) = limit(name, "neg") {
        return Scalar::Int(random.below(2 * n) as i64 - n as i64);
    }
    match dtype {
        DType::Bool => Scalar::Bool(random.below(2) == 0),
        d if d.is_int() => constant(Scalar::Int(random.below(9) as i64 - 4), d),
        d => {
            let value = random.below(4001) as f64 / 1000.0 - 2.0;
            let value = if name.starts_with("pos") { value.abs() + 0.1 } else { value };
            // Numbers that comparisons and roundings find special.
            let value = match random.below(12) {
                0 if !name.starts_with("pos") => 0.0,
                1 => 1.0,
                _ => value,
            };
            constant(Scalar::Float(value), d)
        }
    }
}

fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-9,
        DType::F32 => 2e-5,
        DType::F16 => 4e-3,
        DType::BF16 => 3e-2,
        DType::F8E4M3FN | DType::F8E5M2 => 0.3,
        _ => 0.0,
    }
}

fn same(a: Scalar, b: Scalar, tolerance: f64) -> bool {
    match (a, b) {
        (Scalar::Float(x), Scalar::Float(y)) => {
            x == y || x.is_nan() && y.is_nan() || (x - y).abs() <= tolerance * (1.0 + x.abs().max(y.abs()))
        }
        (a, b) => a.to_i64() == b.to_i64(),
    }
}

fn assert_tensors(expected: &HostTensor, found: &HostTensor, what: &str, context: &str) {
    assert_eq!(expected.dtype, found.dtype, "{what}: element type\n{context}");
    assert_eq!(expected.shape, found.shape, "{what}: shape\n{context}");
    let tolerance = tolerance(expected.dtype);
    for (k, (a, b)) in expected.data.iter().zip(&found.data).enumerate() {
        assert!(same(*a, *b, tolerance), "{what}: element {k} should be {a}, is {b}\n{context}");
    }
}

/// Lowers a program, runs it on random inputs and compares with the interpreted program.
pub fn check(text: &str) -> NestProgram {
    let graph = parsed(text);
    let program = lowered(&graph);
    for seed in 1..4 {
        check_with(&graph, &program, &inputs(&graph, seed));
    }
    program
}

pub fn check_with(graph: &Graph, program: &NestProgram, inputs: &[GraphInput]) {
    let context = program.to_string();
    let expected = eval_graph(graph, inputs).unwrap_or_else(|e| panic!("interpreter: {e}\n{context}"));
    let found = run_lowered(program, graph, inputs).unwrap_or_else(|e| panic!("lowered: {e}\n{context}"));
    assert_eq!(expected.outputs.len(), found.outputs.len());
    for (k, (a, b)) in expected.outputs.iter().zip(&found.outputs).enumerate() {
        match (a, b) {
            (GraphOutput::Tensor(a), GraphOutput::Tensor(b)) => {
                assert_tensors(a, b, &format!("output {k}"), &context);
            }
            (a, b) => assert_eq!(a, b, "output {k}\n{context}"),
        }
    }
    // A tensor without elements can be written to without a store.
    let written: Vec<_> = expected.mutated_inputs.iter().filter(|m| m.1.numel() > 0).collect();
    let found: Vec<_> = found.mutated_inputs.iter().filter(|m| m.1.numel() > 0).collect();
    let positions = |inputs: &[&(usize, HostTensor)]| inputs.iter().map(|m| m.0).collect::<Vec<_>>();
    assert_eq!(positions(&written), positions(&found), "written inputs\n{context}");
    for (a, b) in written.iter().zip(&found) {
        assert_tensors(&a.1, &b.1, &format!("input {}", a.0), &context);
    }
}

pub fn extern_calls(program: &NestProgram) -> Vec<&str> {
    program
        .steps
        .iter()
        .filter_map(|s| match s {
            Step::Extern(call) => Some(call.op.as_ref()),
            Step::Nest(_) => None,
        })
        .collect()
}

/// As [`check`], with all operators lowered.
pub fn check_nests(text: &str) -> NestProgram {
    let program = check(text);
    assert_eq!(extern_calls(&program), Vec::<&str>::new(), "in\n{text}");
    program
}
