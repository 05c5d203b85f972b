//! Each rule with the smallest program that breaks it.

use super::{verify_graph, verify_program};
use crate::dtype::{DType, Scalar};
use crate::graph::{Arg, Device, Graph, Input, TensorId, TensorType, ValueType};
use crate::index::{Index, IndexAtom, LoopVar};
use crate::nest::*;
use crate::size::{Size, SymbolValues};
use crate::text::parse;

fn graph() -> Graph {
    let text = "graph @g(%x: f32[n, 4], n: size) {
        %y = aten.exp.default(%x)
        %z = aten.sum.dim_IntList(%y, [1])
        return %z, n
    }";
    parse(text, "g").unwrap()
}

fn check_graph(change: impl FnOnce(&mut Graph), expected: &str) {
    let mut graph = graph();
    assert_eq!(verify_graph(&graph), Ok(()));
    change(&mut graph);
    assert_eq!(verify_graph(&graph).map_err(|e| e.to_string()), Err(expected.to_owned()));
}

#[test]
fn graphs_that_break_a_rule_are_named() {
    check_graph(|g| g.values[2].name = "x".into(), "%x: another value has the same name");
    check_graph(
        |g| g.nodes[0].args[0] = Arg::Value(TensorId(3)),
        "node 0 (aten.exp.default): it uses %z before that is defined",
    );
    check_graph(
        |g| g.nodes[0].args[0] = Arg::Value(TensorId(9)),
        "node 0 (aten.exp.default): it uses value 9, which does not exist",
    );
    check_graph(
        |g| g.nodes[1].results[0] = Some(TensorId(2)),
        "node 1 (aten.sum.dim_IntList): its result %y is f32[n, 4], not f32[n]",
    );
    check_graph(
        |g| g.nodes[0].results[0] = Some(TensorId(9)),
        "node 0 (aten.exp.default): it defines value 9, which does not exist",
    );
    check_graph(
        |g| g.outputs.push(Arg::Value(TensorId(9))),
        "output 2: it uses value 9, which does not exist",
    );
    check_graph(|g| g.outputs.push(Arg::Bool(true)), "output 2: an output must be a value, a size or none");
    check_graph(
        |g| g.outputs[1] = Arg::Size(Size::symbol("m") + Size::ONE),
        "output 1: no input binds the size symbol m of (m + 1)",
    );
    check_graph(
        |g| g.inputs[1] = Input::Size(TensorId(1), "k".into()),
        "input 1: %n is size(n), not the size k",
    );
    check_graph(|g| g.inputs[1] = Input::Tensor(TensorId(0)), "input 1: it defines %x a second time");
    check_graph(
        |g| {
            let ValueType::Tensor(ty) = &mut g.values[0].ty else { panic!("a tensor") };
            ty.strides.pop();
        },
        "%x: it has 2 extents but 1 strides",
    );
    check_graph(
        |g| g.values[2].ty = ValueType::Tensor(TensorType::contiguous(DType::F32, [Size::from(3)])),
        "node 0 (aten.exp.default): its result %y is f32[3], not f32[n, 4]",
    );
}

fn index(offset: i64, strides: &[i64]) -> Index {
    let mut index = Index::constant(Size::from(offset));
    for (k, stride) in strides.iter().enumerate() {
        index.add_term(IndexAtom::Loop(LoopVar(k as u16)), Size::from(*stride));
    }
    index
}

fn buffer(name: &str, dtype: DType, len: i64, source: BufferSource) -> Buffer {
    Buffer { name: name.into(), dtype, len: Size::from(len), device: Device::Cpu, source }
}

fn view(buffer: u32, shape: &[i64]) -> TensorView {
    let shape: Vec<Size> = shape.iter().map(|n| Size::from(*n)).collect();
    let strides = crate::graph::contiguous_strides(&shape).to_vec();
    TensorView { buffer: BufferId(buffer), shape, strides, offset: Size::ZERO }
}

/// Row sums of x[4, 8] into b1, then a call from b1 to b2.
fn program() -> NestProgram {
    let mut body = Body::default();
    let x = body.push(Op::Load { buffer: BufferId(0), index: index(0, &[8, 1]), guard: None });
    let sum = body.push(Op::Reduce { op: ReduceOp::Sum, value: x, position: None });
    body.push(Op::Store {
        buffer: BufferId(1),
        index: index(0, &[1]),
        value: sum,
        guard: None,
        mode: StoreMode::Set,
    });
    let nest = LoopNest {
        name: "sum".into(),
        loops: vec![
            Loop { extent: Size::from(4), kind: LoopKind::Parallel },
            Loop { extent: Size::from(8), kind: LoopKind::Reduction },
        ],
        body,
        origins: Vec::new(),
    };
    let call = ExternCall {
        op: "my.op".into(),
        args: vec![Arg::Value(TensorId(0))],
        kwargs: Vec::new(),
        tensors: vec![view(1, &[4])],
        results: vec![Some(view(2, &[4])), None],
        mutates: Vec::new(),
        ordered: false,
        origin: None,
    };
    NestProgram {
        name: "p".into(),
        buffers: vec![
            buffer("x", DType::F32, 32, BufferSource::Input(0)),
            buffer("sum", DType::F32, 4, BufferSource::Owned),
            buffer("made", DType::F32, 4, BufferSource::Owned),
        ],
        steps: vec![Step::Nest(nest), Step::Extern(call)],
        outputs: vec![Output::Tensor(view(2, &[2, 2])), Output::Input(0)],
        inputs: vec![Input::Tensor(TensorId(0))],
        hints: SymbolValues::new(),
        conditions: Vec::new(),
    }
}

fn check(change: impl FnOnce(&mut NestProgram), expected: &str) {
    let mut program = program();
    assert_eq!(verify_program(&program), Ok(()));
    change(&mut program);
    assert_eq!(verify_program(&program).map_err(|e| e.to_string()), Err(expected.to_owned()));
}

fn nest(program: &mut NestProgram) -> &mut LoopNest {
    let Step::Nest(nest) = &mut program.steps[0] else { panic!("a nest") };
    nest
}

fn call(program: &mut NestProgram) -> &mut ExternCall {
    let Step::Extern(call) = &mut program.steps[1] else { panic!("a call") };
    call
}

/// Puts one operation behind the load of the nest's body.
fn check_op(op: Op, expected: &str) {
    let text = op.to_string();
    let added = |p: &mut NestProgram| {
        nest(p).body.ops.truncate(1);
        nest(p).body.push(op);
    };
    check(added, &format!("step 0 (nest sum), v1 ({text}): {expected}"));
}

const X: ValueId = ValueId(0);

#[test]
fn operands_must_have_types_that_operations_are_defined_on() {
    check_op(Op::Unary(UnaryOp::Not, X), "Not is not defined on f32");
    check_op(Op::Binary(BinaryOp::And, X, X), "And is not defined on f32");
    check_op(Op::Where(X, X, X), "condition v0 is f32, not b8");
    check_op(Op::Check(X, Failure::value("no")), "condition v0 is f32, not b8");
    check_op(Op::Bitcast(X, DType::I64), "f32 and i64 differ in width");
    check_op(Op::Cast(X, DType::C64), "it is c64, which only extern calls can use");
    check_op(Op::Reduce { op: ReduceOp::Any, value: X, position: None }, "Any is not defined on f32");
    check_op(
        Op::Reduce { op: ReduceOp::ArgMax, value: X, position: None },
        "it needs the position of the value",
    );
    check_op(Op::Reduce { op: ReduceOp::ArgMax, value: X, position: Some(X) }, "position v0 is f32, not i64");
    check_op(
        Op::Reduce { op: ReduceOp::Sum, value: X, position: Some(X) },
        "only arg_max and arg_min take a position",
    );
    check_op(
        Op::Load { buffer: BufferId(0), index: index(0, &[]), guard: Some(X) },
        "guard v0 is f32, not b8",
    );
    check_op(Op::IndexValue(Index::of_atom(IndexAtom::Value(X))), "index value v0 is f32, not an integer");
}

#[test]
fn operands_of_one_operation_must_have_one_type() {
    let mixed = |p: &mut NestProgram| {
        let body = &mut nest(p).body;
        body.ops.truncate(1);
        let one = body.push(Op::Const(Scalar::Int(1), DType::I64));
        body.push(Op::Binary(BinaryOp::Add, X, one));
    };
    check(
        mixed,
        "step 0 (nest sum), v2 (add v0, v1): operands v0 and v1 are f32 and i64; they must have one type",
    );
}

#[test]
fn operands_must_be_values_that_stand_before() {
    check_op(Op::Unary(UnaryOp::Neg, ValueId(1)), "operand v1 does not stand before it");
    check_op(Op::ReduceSecond(X), "operand v0 has no second result");
    let of_store = |p: &mut NestProgram| {
        nest(p).body.push(Op::Unary(UnaryOp::Neg, ValueId(2)));
    };
    check(of_store, "step 0 (nest sum), v3 (neg v2): operand v2 is not a value");
    let twice = |p: &mut NestProgram| {
        nest(p).body.push(Op::Reduce { op: ReduceOp::Sum, value: ValueId(1), position: None });
    };
    check(twice, "step 0 (nest sum), v3 (reduce sum v1): it reduces what depends on a reduction");
}

#[test]
fn stores_must_fit_their_buffer() {
    let store = |buffer, strides: &[i64]| Op::Store {
        buffer: BufferId(buffer),
        index: index(0, strides),
        value: X,
        guard: None,
        mode: StoreMode::Set,
    };
    check_op(store(7, &[1]), "buffer b7 does not exist");
    check_op(store(1, &[2, 1]), "it reaches elements 0 to 13 of buffer b1, which has 4");
    check(
        |p| p.buffers[1].dtype = DType::BF16,
        "step 0 (nest sum), v2 (store b1[i0] = v1): v1 is f32, but the buffer is bf16",
    );
}

#[test]
fn loops_must_exist_and_have_values_where_they_are_used() {
    check_op(Op::IndexValue(index(0, &[0, 0, 1])), "there is no loop i2");
    check(
        |p| {
            let Op::Store { index: at, .. } = &mut nest(p).body.ops[2] else { panic!("a store") };
            *at = index(0, &[0, 1]);
        },
        "step 0 (nest sum), v2 (store b1[i1] = v1): loop i1 has no value behind the reduction that it is part of",
    );
    check(|p| nest(p).loops.swap(0, 1), "step 0 (nest sum): parallel loop i1 stands behind a reduction loop");
    check(|p| nest(p).loops[0].extent = Size::from(-1), "step 0 (nest sum): loop i0 has the extent -1");
}

#[test]
fn accesses_in_loops_without_iterations_reach_nothing() {
    let mut program = program();
    nest(&mut program).loops[0].extent = Size::ZERO;
    program.buffers[1].len = Size::ZERO;
    call(&mut program).tensors[0] = view(1, &[0]);
    assert_eq!(verify_program(&program), Ok(()));
}

#[test]
fn buffers_must_be_written_before_they_are_read() {
    check(|p| p.steps.swap(0, 1), "step 0 (my.op): it reads buffer b1, which nothing before it writes");
    check(
        |p| {
            p.steps.pop();
        },
        "output 0: it reads buffer b2, which nothing before it writes",
    );
}

#[test]
fn calls_must_name_tensors_that_exist() {
    check(
        |p| call(p).args[0] = Arg::Value(TensorId(1)),
        "step 1 (my.op): it uses tensor 1, which does not exist",
    );
    check(|p| call(p).mutates.push(3), "step 1 (my.op): it mutates tensor 3, which does not exist");
    check(|p| call(p).results[0] = Some(view(0, &[4])), "step 1 (my.op): result b0[4] lies in an input");
    check(
        |p| call(p).results[0] = Some(view(1, &[4])),
        "step 1 (my.op): result b1[4] lies in a buffer that something else writes",
    );
    check(|p| call(p).tensors[0] = view(1, &[5]), "step 1 (my.op): b1[5] reaches element 4 of a buffer of 4");
    check(|p| p.outputs[1] = Output::Input(4), "output 1: there is no input 4");
    check(|p| p.buffers[0].source = BufferSource::Input(2), "buffer b0 (x): there is no input 2");
    check(
        |p| p.buffers[1].source = BufferSource::Input(0),
        "buffer b1 (sum): input 0 has another buffer already",
    );
}
