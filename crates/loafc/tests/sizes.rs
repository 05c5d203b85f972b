//! Sizes that a program can't be run with are one clear error at every level, before anything is read: positions
//! outside of a dimension, views whose sizes don't fit, shapes that were taken for equal.

use loafc::{Compiler, Graph, Input, Level, Tensor, Value, parse};

/// An operator's call in a program over `%x: f32[6, 8]`, `%v: f32[a]`, `%w: f32[b // 2]`, `%e` without elements, and the
/// sizes `n` and `k`; values of `n`, `k`, `a` and `b` that it can be run with; ones that it can't, and what the error has
/// to say.
struct Case {
    call: &'static str,
    good: [i64; 4],
    bad: [i64; 4],
    message: &'static str,
}

const fn case(call: &'static str, good: [i64; 4], bad: [i64; 4], message: &'static str) -> Case {
    Case { call, good, bad, message }
}

const CASES: &[Case] = &[
    case(
        "%y = aten.select.int(%x, 0, n)",
        [5, 0, 1, 2],
        [17, 0, 1, 2],
        "%y: argument `index` of `aten.select.int`: n is out of range for dimension 0 of extent 6, where n = 17",
    ),
    case("%y = aten.select.int(%x, 0, n)", [0, 0, 1, 2], [-1, 0, 1, 2], "where n = -1"),
    case("%y = aten.select.int(%x, -1, n + k)", [3, 4, 1, 2], [3, 5, 1, 2], "dimension 1 of extent 8"),
    case(
        "%y = aten.select.int(%v, 0, -2)",
        [0, 0, 2, 2],
        [0, 0, 1, 2],
        "extent a, where (a - 2) = -1, a = 1",
    ),
    case(
        "%y = aten.slice.Tensor(%x, 0, 0, n)",
        [6, 0, 1, 2],
        [7, 0, 1, 2],
        "positions from 0 to n are no part of dimension 0 of extent 6, where n = 7",
    ),
    case("%y = aten.slice.Tensor(%x, 0, n, k)", [2, 6, 1, 2], [4, 3, 1, 2], "where n = 4, k = 3"),
    case("%y = aten.slice.Tensor(%x, 0, n, k, 3)", [0, 6, 1, 2], [-1, 6, 1, 2], "n = -1"),
    case(
        "%y = aten.slice.Tensor(%x, 0, 1, 5, n)",
        [2, 0, 1, 2],
        [0, 0, 1, 2],
        "n is not positive, where n = 0",
    ),
    case("%y = aten.slice.Tensor(%v, 0, 3)", [0, 0, 4, 2], [0, 0, 2, 2], "dimension 0 of extent a"),
    case(
        "%y = aten.narrow.default(%x, 1, n, k)",
        [2, 6, 1, 2],
        [2, 7, 1, 2],
        "k positions from n on are no part of dimension 1 of extent 8",
    ),
    case("%y = aten.narrow.default(%x, 1, n, k)", [2, 6, 1, 2], [-1, 1, 1, 2], "n lies before the first"),
    case(
        "%y = aten.narrow.default(%x, 1, n, k)",
        [2, 6, 1, 2],
        [i64::MAX, 1, 1, 2],
        "where n = 9223372036854775807",
    ),
    case("%y = aten.narrow.default(%x, 1, n, k)", [2, 6, 1, 2], [1, i64::MAX, 1, 2], "k positions from n on"),
    case("%y = aten.narrow.default(%x, 1, n, k)", [2, 6, 1, 2], [1, -1, 1, 2], "k = -1"),
    case(
        "%y = aten.constant_pad_nd.default(%x, [n, k])",
        [-3, -4, 1, 2],
        [-3, -6, 1, 2],
        "n and k leave nothing",
    ),
    case(
        "%y, %z = aten.split_with_sizes.default(%x, [n // 2, k], 1)",
        [6, 5, 1, 2],
        [6, 6, 1, 2],
        "add up to ((n // 2) + k), not to the extent 8 of dimension 1",
    ),
    case(
        "%y, %z = aten.split_with_sizes.default(%x, [n // 2, k], 1)",
        [6, 5, 1, 2],
        [18, -1, 1, 2],
        "k is negative",
    ),
    case(
        "%y: f32[n], %z: f32[a - n] = aten.split.Tensor(%v, n)",
        [4, 0, 7, 2],
        [4, 0, 9, 2],
        "dimension 0 is declared as (a - n)",
    ),
    case(
        "%y = aten.as_strided.default(%x, [n, k], [8, 1], 1)",
        [5, 7, 1, 2],
        [6, 8, 1, 2],
        "argument `self` of `aten.as_strided.default`: the view reaches over",
    ),
    case("%y = aten.as_strided.default(%x, [n], [k], 47)", [1, 100, 1, 2], [2, 1, 1, 2], "48 elements"),
    case("%y = aten.as_strided.default(%x, [n], [k], 99)", [0, 1, 1, 2], [1, 1, 1, 2], "48 elements"),
    case("%y = aten.as_strided.default(%x, [n], [k])", [3, 1, 1, 2], [3, -1, 1, 2], "k is negative"),
    case("%y = aten.as_strided.default(%x, [n], [k])", [3, 1, 1, 2], [3, i64::MAX, 1, 2], "reaches over"),
    case("%y = aten.as_strided.default(%e, [n], [k])", [0, 1, 4, 2], [3, 1, 4, 2], "has 0 elements"),
    case(
        "%y = aten.as_strided_scatter.default(%x, %v, [a], [n], 3)",
        [8, 0, 6, 2],
        [8, 0, 7, 2],
        "the view reaches over",
    ),
    case("%y = aten.slice_scatter.default(%v, %w, 0, n, n + b // 2)", [2, 0, 6, 8], [3, 0, 6, 8], "extent a"),
    case(
        "%y = aten.unfold.default(%x, 1, n, k)",
        [8, 3, 1, 2],
        [9, 3, 1, 2],
        "n is larger than the extent 8",
    ),
    case("%y = aten.unfold.default(%x, 1, n, k)", [3, 2, 1, 2], [3, 0, 1, 2], "k is not positive"),
    case("%y = aten.view.default(%w, [n, -1])", [2, 0, 1, 8], [3, 0, 1, 8], "don't fit the shape"),
    case("%y = aten.view.default(%w, [n, -1])", [2, 0, 1, 8], [0, 0, 1, 8], "divides by zero"),
    case(
        "%y = aten.view.default(%w, [n, k])",
        [2, 2, 1, 8],
        [2, 3, 1, 8],
        "(b // 2) elements don't fit the shape [n, k]",
    ),
    case("%y: f32[n, 8] = aten.view.default(%x, [6, 8])", [6, 0, 1, 2], [7, 0, 1, 2], "is declared as n"),
    case("%y: f32[n, 8] = aten.neg.default(%x)", [6, 0, 1, 2], [7, 0, 1, 2], "is declared as n"),
    case("%y = aten.expand.default(%w, [n, a])", [2, 0, 4, 8], [2, 0, 5, 8], "does not expand to [n, a]"),
    case("%y = aten.expand.default(%v, [n, -1])", [2, 0, 4, 8], [-2, 0, 4, 8], "extent n of dimension 0"),
    case(
        "%y = aten.add.Tensor(%v, %w)",
        [0, 0, 4, 8],
        [0, 0, 5, 8],
        "have shapes [a] and [(b // 2)] that don't broadcast",
    ),
    case(
        "%y = aten.stack.default([%v, %w])",
        [0, 0, 4, 8],
        [0, 0, 3, 8],
        "shape [a] was expected, it has [(b // 2)]",
    ),
    case(
        "%m = aten.gt.Scalar(%w, 0.0) %s = aten.sum.default(%w) %y = aten.index_put.default(%v, [%m], %s)",
        [0, 0, 4, 8],
        [0, 0, 6, 8],
        "a mask of shape [(b // 2)] does not fit into [a] from dimension 0 on",
    ),
    case("%y = aten.full.default([n, k], 1.0)", [2, 3, 1, 2], [-2, -3, 1, 2], "n is negative"),
    case("%y = aten.arange.start(n, k)", [2, 5, 1, 2], [5, 2, 1, 2], "k can't be reached from n"),
    case("%y = aten.repeat.default(%x, [n, 1])", [2, 5, 1, 2], [-1, 2, 1, 2], "n is negative"),
];

fn program(call: &str) -> Graph {
    let text = format!(
        "size a = 4\nsize b = 8\n\
         graph @f(%x: f32[6, 8], %v: f32[a], %w: f32[b // 2], n: size, k: size, %b: f32[b], %e: f32[a, 0] strides [4, 1]) {{\n  {call}\n  return %y\n}}\n"
    );
    parse(&text, "sizes.loaf").unwrap()
}

fn inputs(graph: &Graph, [n, k, a, b]: [i64; 4]) -> Vec<Value> {
    let mut values = graph.hints.clone();
    for (name, value) in [("n", n), ("k", k), ("a", a), ("b", b)] {
        values.set(name, value);
    }
    let value = |input: &Input| match input {
        Input::Size(_, symbol) => Value::Size(values.0[symbol]),
        Input::Tensor(id) => {
            let ty = graph.tensor_type(*id).unwrap();
            let shape: Vec<usize> = ty.shape.iter().map(|s| s.eval(&values).unwrap() as usize).collect();
            Value::Tensor(Tensor::random(ty.dtype, &shape, 3).unwrap())
        }
    };
    graph.inputs.iter().map(value).collect()
}

#[test]
fn sizes_that_do_not_fit_are_an_error_before_anything_is_read() {
    let compiler = Compiler::default();
    let mut wrong = Vec::new();
    for Case { call, good, bad, message } in CASES {
        let graph = program(call);
        for level in [Level::Nest, Level::Group, Level::LoopTree, Level::Native] {
            let run = |sizes| compiler.run_at(level, &graph, &inputs(&graph, sizes));
            if let Err(e) = run(*good) {
                wrong.push(format!("{call} at {}: {e}", level.name()));
            }
            match run(*bad) {
                Err(e) if e.to_string().contains(message) => {}
                Err(e) => wrong.push(format!("{call} at {}: {e}", level.name())),
                Ok(_) => wrong.push(format!("{call} at {} ran with {bad:?}", level.name())),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
