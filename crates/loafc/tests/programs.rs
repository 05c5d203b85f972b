//! Whole programs through the library: all levels agree, inputs may lie in memory as they like, and what goes
//! wrong says so.

use loafc::{
    CompileError, Compiler, DType, GraphBuilder, Level, Options, Program, Size, Tensor, TensorType, Value,
    parse,
};

fn compile(text: &str) -> Program {
    Compiler::default().compile(parse(text, "test.loaf").unwrap()).unwrap()
}

fn tensor(shape: &[usize], data: &[f32]) -> Tensor {
    Tensor::from_slice(shape, data).unwrap()
}

/// Asserts that all levels give what the interpreter of tensor programs gives.
fn check_levels(text: &str) {
    let graph = parse(text, "test.loaf").unwrap();
    let compiler = Compiler::default();
    let inputs: Vec<Value> = graph
        .inputs
        .iter()
        .enumerate()
        .map(|(k, input)| match input {
            loafc::Input::Size(..) => Value::Size(5),
            loafc::Input::Tensor(id) => {
                let ty = graph.tensor_type(*id).unwrap();
                let mut sizes = graph.hints.clone();
                sizes.0.entry("n".into()).or_insert(5);
                let shape: Vec<usize> = ty.shape.iter().map(|s| s.eval(&sizes).unwrap() as usize).collect();
                let strides: Vec<i64> = ty.strides.iter().map(|s| s.eval(&sizes).unwrap()).collect();
                let tensor = Tensor::random(ty.dtype, &shape, k as u64).unwrap();
                Value::Tensor(tensor.with_strides(&strides).unwrap())
            }
        })
        .collect();
    let expected = compiler.run_at(Level::Graph, &graph, &inputs).unwrap();
    for level in Level::ALL {
        let got = compiler
            .run_at(level, &graph, &inputs)
            .unwrap_or_else(|e| panic!("{}: {e}\n{text}", level.name()));
        assert_eq!(got.outputs.len(), expected.outputs.len());
        for (a, b) in got.outputs.iter().zip(&expected.outputs) {
            assert_close(a, b, level, text);
        }
        assert_eq!(got.mutated_inputs.len(), expected.mutated_inputs.len());
        for ((i, a), (j, b)) in got.mutated_inputs.iter().zip(&expected.mutated_inputs) {
            assert_eq!(i, j);
            assert_close(&Value::Tensor(a.clone()), &Value::Tensor(b.clone()), level, text);
        }
    }
}

fn assert_close(a: &Value, b: &Value, level: Level, text: &str) {
    let (a, b) = match (a, b) {
        (Value::Tensor(a), Value::Tensor(b)) => (a, b),
        (Value::Size(a), Value::Size(b)) => return assert_eq!(a, b),
        (Value::None, Value::None) => return,
        _ => panic!("{}: {a:?} where {b:?} was expected", level.name()),
    };
    assert_eq!((a.dtype(), a.shape()), (b.dtype(), b.shape()), "{}", level.name());
    for (x, y) in a.to_host().unwrap().data.iter().zip(&b.to_host().unwrap().data) {
        let (x, y) = (x.to_f64(), y.to_f64());
        let close = (x - y).abs() <= 1e-5 + 1e-4 * y.abs() || (x.is_nan() && y.is_nan()) || x == y;
        assert!(close, "{}: got {x}, expected {y}\n{text}", level.name());
    }
}

#[test]
fn all_levels_agree_on_pointwise_programs() {
    check_levels(
        "graph @g(%x: f32[3, 5], %y: f32[5]) {
          %a = aten.mul.Tensor(%x, %y)
          %b = aten.exp.default(%a)
          %c = aten.add.Scalar(%b, 2)
          return %c, %a
        }",
    );
}

#[test]
fn all_levels_agree_on_reductions_and_views() {
    check_levels(
        "graph @g(%x: f32[4, 6] strides [1, 4]) {
          %s = aten.sum.dim_IntList(%x, [-1], true)
          %d = aten.sub.Tensor(%x, %s)
          %t = aten.permute.default(%d, [1, 0])
          %m = aten.amax.default(%t, [0])
          return %t, %m
        }",
    );
}

#[test]
fn all_levels_agree_on_matrix_products_between_kernels() {
    check_levels(
        "graph @g(%x: f32[4, 6], %w: f32[6, 3], %b: f32[3]) {
          %h = aten.relu.default(%x)
          %p = aten.addmm.default(%b, %h, %w)
          %y = aten.sigmoid.default(%p)
          return %y
        }",
    );
}

#[test]
fn all_levels_agree_with_size_symbols() {
    check_levels(
        "size n = 7
        graph @g(%x: f32[n, 3], k: size) {
          %s = aten.sum.dim_IntList(%x, [0])
          %v = aten.view.default(%x, [n*3])
          %y = aten.mul.Scalar(%v, 2.5)
          return %s, %y, n, k, none
        }",
    );
}

#[test]
fn the_larger_of_a_magnitude_and_zero_is_the_magnitude() {
    // LLVM 19 makes a wrong comparison of `|x| is NaN or |x| > 0`.
    check_levels(
        "graph @g(%x: f32[24]) {
          %a = aten.abs.default(%x)
          %r = aten.relu.default(%a)
          %n = aten.neg.default(%a)
          %m = aten.clamp_max.default(%a, 0)
          return %r, %m, %n
        }",
    );
}

#[test]
fn all_levels_agree_on_inputs_that_change() {
    check_levels(
        "graph @g(%x: f32[6]) {
          %y = aten.add.Scalar(%x, 1)
          %c = aten.copy_.default(%x, %y)
          %z = aten.mul.Tensor(%y, %y)
          return %z, %x
        }",
    );
}

#[test]
fn all_levels_agree_on_narrow_types() {
    check_levels(
        "graph @g(%x: bf16[8], %h: f16[8], %i: i64[8], %b: b8[8]) {
          %y = aten.add.Tensor(%x, %h)
          %n = aten.mul.Scalar(%i, 3)
          %s = aten.sum.default(%b)
          return %y, %n, %s
        }",
    );
}

#[test]
fn inputs_may_have_any_strides() {
    let program = compile("graph @g(%x: f32[2, 3]) { %y = aten.add.Scalar(%x, 1) return %y }");
    let x = tensor(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let turned = x.with_strides(&[1, 2]).unwrap();
    for input in [x, turned] {
        assert_eq!(program.run(&[input]).unwrap()[0].to_vec::<f32>().unwrap(), [2., 3., 4., 5., 6., 7.]);
    }
}

#[test]
fn a_changed_input_stays_unless_it_is_passed_to_be_changed() {
    let program = compile(
        "graph @g(%x: f32[2]) {
          %y = aten.add.Scalar(%x, 1)
          %c = aten.copy_.default(%x, %y)
          return %y
        }",
    );
    let x = tensor(&[2], &[1.0, 2.0]);
    program.run(std::slice::from_ref(&x)).unwrap();
    assert_eq!(x.to_vec::<f32>().unwrap(), [1.0, 2.0]);

    let mut inputs = [Value::Tensor(x.clone())];
    program.run_in_place(&mut inputs).unwrap();
    let Value::Tensor(changed) = &inputs[0] else { panic!() };
    assert_eq!(changed.to_vec::<f32>().unwrap(), [2.0, 3.0]);
    assert_eq!(x.to_vec::<f32>().unwrap(), [1.0, 2.0]);
}

#[test]
fn results_survive_later_calls() {
    let program = compile("graph @g(%x: f32[2]) { %y = aten.add.Scalar(%x, 1) return %y }");
    let first = program.run(&[tensor(&[2], &[1.0, 2.0])]).unwrap();
    let second = program.run(&[tensor(&[2], &[10.0, 20.0])]).unwrap();
    assert_eq!(first[0].to_vec::<f32>().unwrap(), [2.0, 3.0]);
    assert_eq!(second[0].to_vec::<f32>().unwrap(), [11.0, 21.0]);
}

#[test]
fn wrong_inputs_are_refused_by_name() {
    let program = compile("size n\ngraph @g(%x: f32[n, 2], %y: f32[n]) { return %x, %y }");
    let message = |inputs: &[Tensor]| program.run(inputs).unwrap_err().to_string();
    let (x, y) = (tensor(&[2, 2], &[0.0; 4]), tensor(&[2], &[0.0; 2]));
    assert_eq!(message(std::slice::from_ref(&x)), "the program takes 2 inputs, got 1");
    assert_eq!(message(&[x.clone(), x.clone()]), "input 1 (`y`): expected 1 dimensions, got [2, 2]");
    let long = tensor(&[3], &[0.0; 3]);
    assert_eq!(message(&[x.clone(), long]), "input 1 (`y`): expected shape [n] = [2], got [3]");
    let integers = Tensor::from_slice(&[2], &[1i64, 2]).unwrap();
    assert_eq!(message(&[x, integers]), "input 1 (`y`): expected element type f32, got i64");
    let none = program.run_values(&[Value::Tensor(y), Value::None]).unwrap_err().to_string();
    assert!(none.contains("nothing was passed"), "{none}");
}

#[test]
fn an_index_out_of_range_is_an_error_of_the_call() {
    let program = compile(
        "graph @g(%w: f32[4, 2], %i: i64[3]) {
          %e = aten.embedding.default(%w, %i)
          return %e
        }",
    );
    let w = tensor(&[4, 2], &[0.0; 8]);
    let index = |v: i64| Tensor::from_slice(&[3], &[0, 1, v]).unwrap();
    assert!(program.run(&[w.clone(), index(3)]).is_ok());
    let message = program.run(&[w, index(4)]).unwrap_err().to_string();
    assert!(message.contains("in kernel"), "{message}");
}

#[test]
fn the_report_counts_and_names_what_runs() {
    let program = compile(
        "graph @mlp(%x: f32[4, 6], %w: f32[6, 3]) {
          %h = aten.relu.default(%x)
          %p = aten.mm.default(%h, %w)
          %y = aten.sigmoid.default(%p)
          return %y
        }",
    );
    let report = program.report();
    assert_eq!((report.kernels.len(), report.extern_calls.len()), (2, 1));
    assert_eq!(report.bytes_accessed, report.decisions.bytes);
    let text = report.to_text();
    assert!(text.starts_with("mlp: 2 kernels, 1 extern call, 0 loop reorderings"), "{text}");
    assert!(text.contains("= aten.mm.default("), "{text}");
    assert!(report.to_json().contains("\"op\": \"aten.mm.default\""));
    assert!(report.to_html().contains("aten.mm.default"));
}

#[test]
fn the_page_says_one_fusion_and_no_fusions() {
    let html = |body: &str| compile(&format!("graph @g(%x: f32[64, 64]) {{ {body} }}")).report().to_html();
    let one = html("%y = aten.exp.default(%x) %s = aten.sum.dim_IntList(%x, [1]) return %y, %s");
    assert!(one.contains("1 fusion<") && !one.contains("1 fusions"), "{one}");
    assert!(html("%y = aten.exp.default(%x) return %y").contains("0 fusions<"));
}

#[test]
fn debug_files_are_written_where_asked() {
    let folder = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("debug");
    let mut options = Options::default();
    options.set("debug_dir", folder.to_str().unwrap()).unwrap();
    let graph = parse("graph @g(%x: f32[4]) { %y = aten.exp.default(%x) return %y }", "t").unwrap();
    Compiler::new(options.clone()).compile(graph.clone()).unwrap();
    for name in ["program.loaf", "report.txt", "report.json", "report.html"] {
        assert!(folder.join("g").join(name).exists(), "{name}");
    }
    let file = folder.join("file");
    std::fs::write(&file, "").unwrap();
    options.set("debug_dir", file.to_str().unwrap()).unwrap();
    let error = Compiler::new(options).compile(graph).err().unwrap();
    assert!(matches!(error, CompileError::DebugDir { .. }), "{error}");
}

#[test]
fn an_invalid_program_is_refused_not_compiled() {
    let mut graph = parse("graph @g(%x: f32[4]) { %y = aten.exp.default(%x) return %y }", "t").unwrap();
    graph.outputs.push(loafc::Arg::Bool(true));
    let mut options = Options::default();
    options.set("verify", "true").unwrap();
    let error = Compiler::new(options).compile(graph).err().unwrap();
    assert!(matches!(error, CompileError::Invalid { .. }), "{error}");
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let mut build = GraphBuilder::new("softmax");
    let x = build.input("x", TensorType::contiguous(DType::F32, [Size::from(64), Size::from(1000)])).unwrap();
    let y = build.softmax(x, -1).unwrap();
    let z = build.sum(y, &[0], false).unwrap();
    let graph = build.finish(&[y, z]);
    let x = Tensor::random(DType::F32, &[64, 1000], 3).unwrap();
    let bits = |threads: &str| {
        let mut options = Options::default();
        options.set("threads", threads).unwrap();
        let program = Compiler::new(options).compile(graph.clone()).unwrap();
        let results = program.run(std::slice::from_ref(&x)).unwrap();
        results.iter().flat_map(Tensor::to_bytes).collect::<Vec<u8>>()
    };
    let one = bits("1");
    for threads in ["2", "3", "8"] {
        assert!(bits(threads) == one, "{threads} threads");
    }
}

#[test]
fn views_by_strides_of_a_part_count_from_where_the_part_starts() {
    check_levels(
        "graph @f(%x: f32[6]) {
           %s = aten.slice.Tensor(%x, 0, 2, 6)
           %a = aten.as_strided.default(%s, [2], [1], 1)
           %b = aten.as_strided.default(%s, [2], [2])
           %y = aten.add.Tensor(%a, %b)
           return %y
         }",
    );
}
