//! Random programs run natively as the interpreter says, however they are fused and whatever memory is reused.

use loafc::{Arg, Compiler, DType, Graph, GraphBuilder, Level, Options, Size, Tensor, TensorType, Value};
use proptest::prelude::*;

/// One operation on earlier values, chosen by numbers that are taken modulo what is there.
#[derive(Clone, Debug)]
struct Choice {
    kind: u8,
    a: usize,
    b: usize,
    dim: usize,
}

fn choices() -> impl Strategy<Value = Vec<Choice>> {
    let choice = (any::<u8>(), any::<usize>(), any::<usize>(), any::<usize>())
        .prop_map(|(kind, a, b, dim)| Choice { kind, a, b, dim });
    prop::collection::vec(choice, 1..14)
}

/// Builds a program over square matrices and their row sums, so that most operands fit each other.
fn program(choices: &[Choice], symbolic: bool) -> Graph {
    let mut build = GraphBuilder::new("random");
    let n = if symbolic { build.size_symbol("n", Some(6)) } else { Size::from(6) };
    let matrix = TensorType::contiguous(DType::F32, [n, n]);
    let turned = TensorType { strides: [Size::ONE, n].into_iter().collect(), ..matrix.clone() };
    let mut values = vec![build.input("x", matrix).unwrap(), build.input("y", turned).unwrap()];
    for c in choices {
        let (a, b) = (values[c.a % values.len()], values[c.b % values.len()]);
        let dim = (c.dim % 2) as i64;
        let made = match c.kind % 12 {
            0 => build.add(a, b),
            1 => build.mul(a, b),
            2 => build.sub(a, b),
            3 => build.tanh(a),
            4 => build.sum(a, &[dim], true).and_then(|s| build.add(a, s)),
            5 => build.amax(a, &[dim], true).and_then(|m| build.sub(b, m)),
            6 => build.permute(a, &[1, 0]),
            7 => build.realize(a),
            8 => build.softmax(a, dim),
            9 => build.mean(a, &[dim], true).and_then(|m| build.expand(m, &[n, n])),
            10 => build
                .call("aten.mm.default", vec![Arg::Value(a), Arg::Value(b)], vec![])
                .and_then(|p| build.tanh(p)),
            _ => build
                .permute(a, &[1, 0])
                .and_then(|t| build.call("aten.clone.default", vec![Arg::Value(t)], vec![])),
        };
        values.push(made.unwrap());
    }
    let outputs: Vec<_> = values.iter().rev().take(3).copied().collect();
    if choices.len().is_multiple_of(4) {
        build.copy_into(values[0], outputs[0]).unwrap();
    }
    build.finish(&outputs)
}

fn inputs() -> Vec<Value> {
    let x = Tensor::random(DType::F32, &[6, 6], 1).unwrap();
    let y = Tensor::random(DType::F32, &[6, 6], 2).unwrap().with_strides(&[1, 6]).unwrap();
    vec![Value::Tensor(x), Value::Tensor(y)]
}

fn numbers(value: &Value) -> Vec<f64> {
    let Value::Tensor(tensor) = value else { panic!("{value:?} is no tensor") };
    tensor.to_host().unwrap().data.iter().map(|v| v.to_f64()).collect()
}

fn check(graph: &Graph, options: Options) -> Result<(), TestCaseError> {
    let compiler = Compiler::new(options);
    let expected = compiler.run_at(Level::Graph, graph, &inputs()).unwrap();
    let program = compiler.compile(graph.clone()).unwrap();
    // The second run finds the memory of the first one, with its contents.
    for _ in 0..2 {
        let mut given = inputs();
        let mut got = program.run_in_place(&mut given).unwrap();
        let mut wanted = expected.outputs.clone();
        for (position, tensor) in &expected.mutated_inputs {
            got.push(given[*position].clone());
            wanted.push(Value::Tensor(tensor.clone()));
        }
        for (a, b) in got.iter().zip(&wanted) {
            let (a, b) = (numbers(a), numbers(b));
            let scale = b.iter().map(|v| v.abs()).filter(|v| v.is_finite()).fold(1.0, f64::max);
            for (x, y) in a.iter().zip(&b) {
                let close = (x - y).abs() <= 1e-4 * scale || (x.is_nan() && y.is_nan()) || x == y;
                prop_assert!(close, "got {}, expected {}\n{}\n{}", x, y, graph, program.report());
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn fused_programs_run_as_interpreted(choices in choices(), symbolic in any::<bool>()) {
        check(&program(&choices, symbolic), Options::default())?;
    }

    #[test]
    fn programs_of_many_kernels_run_as_interpreted(choices in choices(), symbolic in any::<bool>()) {
        // Nothing fused: many buffers live at once, take each other's memory and are overwritten in place.
        check(&program(&choices, symbolic), Options { stop_after_fusion: Some(0), ..Options::default() })?;
    }

    #[test]
    fn programs_fused_in_any_order_run_as_interpreted(choices in choices(), seed in any::<u64>()) {
        check(&program(&choices, false), Options { fusion_chaos_seed: Some(seed), ..Options::default() })?;
    }
}

#[test]
fn one_program_runs_on_many_threads_at_once() {
    let text = "size n\ngraph @g(%x: f32[n, 64]) {
      %s = aten.sum.dim_IntList(%x, [1], true)
      %d = aten.div.Tensor(%x, %s)
      %m = aten.permute.default(%d, [1, 0])
      %p = aten.mm.default(%d, %m)
      %y = aten.add.Scalar(%p, 1)
      return %y
    }";
    let program = Compiler::default().compile(loafc::parse(text, "t").unwrap()).unwrap();
    std::thread::scope(|s| {
        for thread in 0..4u64 {
            let program = &program;
            s.spawn(move || {
                for round in 0..30 {
                    let rows = 1 + ((thread + round) % 5) as usize * 20;
                    let x = Tensor::random(DType::F32, &[rows, 64], thread).unwrap();
                    let first = program.run(std::slice::from_ref(&x)).unwrap();
                    let second = program.run(&[x]).unwrap();
                    assert!(first[0].to_bytes() == second[0].to_bytes());
                }
            });
        }
    });
}
