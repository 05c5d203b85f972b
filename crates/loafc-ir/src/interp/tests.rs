//! Tests of bodies and whole nest programs: reductions, what follows them, guards, checks, combining stores,
//! strided inputs, extern calls and every error.

use super::InterpError;
use super::body::{BodyEval, Digit, run_body};
use super::memory::{HostBuffer, HostMemory};
use super::nest::run_lowered;
use super::tensor::HostTensor;
use crate::dtype::{DType, Scalar};
use crate::graph::{Arg, Device, Graph, Input, TensorId};
use crate::index::{Index, IndexAtom, LoopVar};
use crate::nest::*;
use crate::ops::{GraphInput, GraphOutput};
use crate::size::{Size, SymbolValues};
use crate::text::parse;

fn floats(values: &[f64]) -> Option<HostBuffer> {
    let data = values.iter().map(|v| Some(Scalar::Float(*v))).collect();
    Some(HostBuffer { name: "x".to_owned(), dtype: DType::F32, data })
}

fn empty(len: usize) -> Option<HostBuffer> {
    Some(HostBuffer::new("out", DType::F32, len))
}

fn index(offset: i64, strides: &[i64]) -> Index {
    let mut index = Index::constant(Size::from(offset));
    for (k, stride) in strides.iter().enumerate() {
        index.add_term(IndexAtom::Loop(LoopVar(k as u16)), Size::from(*stride));
    }
    index
}

fn load(buffer: u32, index: Index) -> Op {
    Op::Load { buffer: BufferId(buffer), index, guard: None }
}

fn store(buffer: u32, index: Index, value: ValueId) -> Op {
    Op::Store { buffer: BufferId(buffer), index, value, guard: None, mode: StoreMode::Set }
}

fn reduce(op: ReduceOp, value: ValueId) -> Op {
    Op::Reduce { op, value, position: None }
}

fn parallel(extent: i64) -> Digit {
    Digit { extent, reduced: false }
}

fn reduced(extent: i64) -> Digit {
    Digit { extent, reduced: true }
}

fn run(body: &Body, digits: &[Digit], buffers: Vec<Option<HostBuffer>>) -> Result<HostMemory, InterpError> {
    let mut memory = HostMemory { buffers };
    run_body(body, digits, &[], &SymbolValues::new(), &mut memory)?;
    Ok(memory)
}

fn contents(memory: &HostMemory, buffer: u32) -> Vec<f64> {
    let buffer = memory.buffer(BufferId(buffer)).unwrap();
    buffer.data.iter().map(|v| v.map_or(f64::NAN, Scalar::to_f64)).collect()
}

/// `out[i] = x[i, 0] + Σ_j x[i, j]`, where the first term needs parallel loops alone.
fn row_sums() -> Body {
    let mut body = Body::default();
    let first = body.push(load(0, index(0, &[3])));
    let each = body.push(load(0, index(0, &[3, 1])));
    let sum = body.push(reduce(ReduceOp::Sum, each));
    let total = body.push(Op::Binary(BinaryOp::Add, first, sum));
    body.push(store(1, index(0, &[1]), total));
    body
}

#[test]
fn what_follows_a_reduction_runs_once_for_each_parallel_iteration() {
    let x = floats(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let memory = run(&row_sums(), &[parallel(2), reduced(3)], vec![x, empty(2)]).unwrap();
    assert_eq!(contents(&memory, 1), [7.0, 19.0]);
}

#[test]
fn reductions_over_no_iterations_still_store_their_identity() {
    let x = floats(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let memory = run(&row_sums(), &[parallel(2), reduced(0)], vec![x, empty(2)]).unwrap();
    assert_eq!(contents(&memory, 1), [1.0, 4.0]);
}

#[test]
fn no_parallel_iteration_stores_nothing() {
    let memory = run(&row_sums(), &[parallel(0), reduced(3)], vec![floats(&[]), empty(0)]).unwrap();
    assert_eq!(contents(&memory, 1), [0.0; 0]);
}

#[test]
fn fixed_digits_stand_still() {
    let mut memory = HostMemory { buffers: vec![floats(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), empty(2)] };
    let digits = [parallel(2), reduced(3)];
    run_body(&row_sums(), &digits, &[1], &SymbolValues::new(), &mut memory).unwrap();
    assert_eq!(memory.buffer(BufferId(1)).unwrap().data, [None, Some(Scalar::Float(19.0))]);
}

#[test]
fn reduced_digits_may_stand_anywhere() {
    // out[j] = Σ_i x[i, j] with the reduced digit outside.
    let mut body = Body::default();
    let each = body.push(load(0, index(0, &[3, 1])));
    let sum = body.push(reduce(ReduceOp::Sum, each));
    body.push(store(1, index(0, &[0, 1]), sum));
    let x = floats(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let memory = run(&body, &[reduced(2), parallel(3)], vec![x, empty(3)]).unwrap();
    assert_eq!(contents(&memory, 1), [5.0, 7.0, 9.0]);
}

#[test]
fn an_interpreter_of_its_own_order_can_drive_the_iterations() {
    let body = row_sums();
    let sizes = SymbolValues::new();
    let mut memory = HostMemory { buffers: vec![floats(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), empty(2)] };
    let mut eval = BodyEval::new(&body, &[false, true], &sizes, &memory).unwrap();
    for j in [2, 0, 1] {
        eval.iterate(&[1, j], &mut memory).unwrap();
    }
    eval.finish(&[1, 0], &mut memory).unwrap();
    assert_eq!(memory.buffer(BufferId(1)).unwrap().data[1], Some(Scalar::Float(19.0)));
}

#[test]
fn second_results_come_with_their_reduction() {
    let mut body = Body::default();
    let x = body.push(load(0, index(0, &[1])));
    let at = body.push(Op::IndexValue(index(0, &[1])));
    let best = body.push(Op::Reduce { op: ReduceOp::ArgMax, value: x, position: Some(at) });
    let position = body.push(Op::ReduceSecond(best));
    let mean = body.push(reduce(ReduceOp::Welford, x));
    let squares = body.push(Op::ReduceSecond(mean));
    let position = body.push(Op::Cast(position, DType::F32));
    for (k, value) in [best, position, mean, squares].into_iter().enumerate() {
        body.push(store(1, index(k as i64, &[]), value));
    }
    let memory = run(&body, &[reduced(4)], vec![floats(&[1.0, 6.0, 2.0, 3.0]), empty(4)]).unwrap();
    assert_eq!(contents(&memory, 1), [6.0, 1.0, 3.0, 14.0]);
}

#[test]
fn guarded_loads_are_zero_and_guarded_stores_keep_what_is_there() {
    // Shifts by one: out[i] = i >= 1 ? x[i - 1] : 0, stored where i < 3 only.
    let mut body = Body::default();
    let in_range = |low: i64, high: i64| Op::InRange {
        index: index(0, &[1]),
        low: Size::from(low),
        high: Size::from(high),
    };
    let inside = body.push(in_range(1, 9));
    let x = body.push(Op::Load { buffer: BufferId(0), index: index(-1, &[1]), guard: Some(inside) });
    let early = body.push(in_range(0, 3));
    body.push(Op::Store {
        buffer: BufferId(1),
        index: index(0, &[1]),
        value: x,
        guard: Some(early),
        mode: StoreMode::Set,
    });
    let buffers = vec![floats(&[5.0, 6.0, 7.0, 8.0]), floats(&[-1.0; 4])];
    let memory = run(&body, &[parallel(4)], buffers).unwrap();
    assert_eq!(contents(&memory, 1), [0.0, 5.0, 6.0, -1.0]);
}

#[test]
fn combining_stores_add_up_where_they_meet() {
    let mut body = Body::default();
    let x = body.push(load(0, index(0, &[1])));
    let two = Size::from(2);
    let mut target = Index::default();
    target.add_term(IndexAtom::modulo(index(0, &[1]), two), Size::ONE);
    let mode = StoreMode::Combine(BinaryOp::Add);
    body.push(Op::Store { buffer: BufferId(1), index: target, value: x, guard: None, mode });
    let memory =
        run(&body, &[parallel(4)], vec![floats(&[1.0, 2.0, 3.0, 4.0]), floats(&[10.0, 20.0])]).unwrap();
    assert_eq!(contents(&memory, 1), [14.0, 26.0]);
}

#[test]
fn stores_round_to_the_buffers_type() {
    let mut body = Body::default();
    let x = body.push(Op::Const(Scalar::Float(1.00390625), DType::BF16));
    let three = body.push(Op::Const(Scalar::Float(3.0), DType::BF16));
    let product = body.push(Op::Binary(BinaryOp::Mul, x, three));
    body.push(store(0, index(0, &[]), product));
    let out = Some(HostBuffer::new("out", DType::BF16, 1));
    // Neither the constant nor the product is rounded before it is stored.
    assert_eq!(contents(&run(&body, &[], vec![out]).unwrap(), 0), [3.015625]);
}

fn message(body: &Body, digits: &[Digit], buffers: Vec<Option<HostBuffer>>) -> String {
    run(body, digits, buffers).expect_err("this can't run").to_string()
}

#[test]
fn errors_say_what_is_wrong_and_where() {
    let mut outside = Body::default();
    outside.push(load(0, index(2, &[1])));
    assert_eq!(
        message(&outside, &[parallel(3)], vec![floats(&[1.0, 2.0, 3.0])]),
        "load of element 3 of buffer b0 (x), which has 3"
    );

    let mut unwritten = Body::default();
    unwritten.push(load(0, index(0, &[])));
    assert_eq!(
        message(&unwritten, &[], vec![empty(1)]),
        "load of element 0 of buffer b0 (out), which nothing has written"
    );

    let mut failing = Body::default();
    let no = failing.push(Op::Const(Scalar::Bool(false), DType::Bool));
    failing.push(Op::Check(no, Failure::value("index out of range")));
    assert_eq!(message(&failing, &[], vec![]), "index out of range");

    let mut division = Body::default();
    let zero = division.push(Op::Const(Scalar::Int(0), DType::I64));
    division.push(Op::Binary(BinaryOp::FloorDiv, zero, zero));
    assert_eq!(message(&division, &[], vec![]), "value v1: FloorDiv of integers by zero");

    let mut late_loop = Body::default();
    let x = late_loop.push(load(0, index(0, &[1])));
    let sum = late_loop.push(reduce(ReduceOp::Sum, x));
    late_loop.push(store(1, index(0, &[1]), sum));
    assert_eq!(
        message(&late_loop, &[reduced(1)], vec![floats(&[1.0]), empty(1)]),
        "value v2: loop i0 is reduced over and has no value behind the reduction"
    );

    let mut twice = Body::default();
    let x = twice.push(load(0, index(0, &[1])));
    let sum = twice.push(reduce(ReduceOp::Sum, x));
    twice.push(reduce(ReduceOp::Sum, sum));
    assert_eq!(
        message(&twice, &[reduced(1)], vec![floats(&[1.0])]),
        "value v2: a reduction of what depends on a reduction"
    );

    let mut early = Body::default();
    early.push(Op::Unary(UnaryOp::Neg, ValueId(3)));
    assert_eq!(message(&early, &[], vec![]), "value v0: operand v3 does not stand before it");

    let mut unknown = Body::default();
    unknown.push(Op::SizeValue(Size::symbol("s9")));
    assert_eq!(
        message(&unknown, &[], vec![]),
        "size `s9` has no value: a symbol is not bound, or it divides by zero"
    );

    let mut nowhere = Body::default();
    nowhere.push(load(4, index(0, &[])));
    assert_eq!(message(&nowhere, &[], vec![]), "buffer b4 does not exist");
}

fn tensor(shape: &[usize], values: impl IntoIterator<Item = i64>) -> HostTensor {
    let data = values.into_iter().map(|v| Scalar::Float(v as f64)).collect();
    HostTensor { dtype: DType::F32, shape: shape.to_vec(), data }
}

fn view(buffer: u32, shape: &[i64]) -> TensorView {
    let shape: Vec<Size> = shape.iter().map(|n| Size::from(*n)).collect();
    let strides = crate::graph::contiguous_strides(&shape).to_vec();
    TensorView { buffer: BufferId(buffer), shape, strides, offset: Size::ZERO }
}

fn buffer(name: &str, len: Size, source: BufferSource) -> Buffer {
    Buffer { name: name.into(), dtype: DType::F32, len, device: Device::Cpu, source }
}

/// Doubles the columns of a transposed input in place, and returns its product with itself.
fn example() -> (Graph, NestProgram) {
    let graph = parse("size n graph @g(%x: f32[2, n] strides [1, 2]) { return %x }", "g").unwrap();
    let n = Size::symbol("n");
    let mut body = Body::default();
    let x = body.push(load(0, index(0, &[2, 1])));
    let twice = body.push(Op::Binary(BinaryOp::Add, x, x));
    body.push(store(0, index(0, &[2, 1]), twice));
    let parallel = |extent| Loop { extent, kind: LoopKind::Parallel };
    let nest = LoopNest {
        name: "double".into(),
        loops: vec![parallel(n), parallel(Size::from(2))],
        body,
        origins: Vec::new(),
    };
    let x = TensorView {
        buffer: BufferId(0),
        shape: vec![Size::from(2), n],
        strides: vec![Size::ONE, Size::from(2)],
        offset: Size::ZERO,
    };
    let call = ExternCall {
        op: "aten.mul.Tensor".into(),
        args: vec![Arg::Value(TensorId(0)), Arg::Value(TensorId(0))],
        kwargs: Vec::new(),
        tensors: vec![x],
        results: vec![Some(TensorView { shape: vec![Size::from(2), n], ..view(1, &[2, 3]) })],
        mutates: Vec::new(),
        ordered: false,
        origin: None,
    };
    let program = NestProgram {
        name: "g".into(),
        buffers: vec![
            buffer("x", n * Size::from(2), BufferSource::Input(0)),
            buffer("square", n * Size::from(2), BufferSource::Owned),
        ],
        steps: vec![Step::Nest(nest), Step::Extern(call)],
        outputs: vec![Output::Tensor(view(1, &[2, 3])), Output::Input(0), Output::Size(n), Output::None],
        inputs: vec![Input::Tensor(TensorId(0))],
        hints: SymbolValues::new(),
        conditions: Vec::new(),
    };
    (graph, program)
}

#[test]
fn a_program_runs_over_strided_inputs_and_returns_what_it_changed() {
    let (graph, program) = example();
    let x = GraphInput::Tensor(tensor(&[2, 3], [1, 2, 3, 4, 5, 6]));
    let result = run_lowered(&program, &graph, &[x]).unwrap();
    let doubled = tensor(&[2, 3], [2, 4, 6, 8, 10, 12]);
    let squares = tensor(&[2, 3], [4, 16, 36, 64, 100, 144]);
    let expected = [
        GraphOutput::Tensor(squares),
        GraphOutput::Tensor(doubled.clone()),
        GraphOutput::Size(3),
        GraphOutput::None,
    ];
    assert_eq!(result.outputs, expected);
    assert_eq!(result.mutated_inputs, [(0, doubled)]);
}

#[test]
fn inputs_that_do_not_fit_are_refused() {
    let (graph, program) = example();
    let run = |inputs: &[GraphInput]| run_lowered(&program, &graph, inputs).unwrap_err().to_string();
    assert_eq!(run(&[]), "input 0: the program takes 1 inputs, not 0");
    assert_eq!(run(&[GraphInput::Size(3)]), "input 0: %x is a tensor, not a size");
    assert_eq!(
        run(&[GraphInput::Tensor(tensor(&[3, 1], [1, 2, 3]))]),
        "input 0: %x is f32[2, n] strides [1, 2], not f32[3, 1]"
    );
}
