//! Tensors made from numbers and positions: constants, ranges, identity and triangles.

use loafc_ir::dtype::{DType, Scalar};
use loafc_ir::index::Index;
use loafc_ir::nest::BinaryOp;
use loafc_ir::ops::{Call, Operand};
use loafc_ir::size::Size;

use crate::expr::ExprId;
use crate::lowering::{Lowered, Lowering, Refusal};
use crate::table::{Entry, compute};
use crate::view::coordinate;

type Cx<'a> = Lowering<'a>;

pub(super) static TABLE: &[Entry] = &[
    compute("aten.full.default", |cx, c| filled(cx, c, 1)),
    compute("aten.full_like.default", |cx, c| filled(cx, c, 1)),
    compute("aten.new_full.default", |cx, c| filled(cx, c, 2)),
    compute("aten.scalar_tensor.default", |cx, c| filled(cx, c, 0)),
    compute("aten.fill.Scalar", |cx, c| filled(cx, c, 1)),
    compute("aten.fill.Tensor", |cx, c| filled(cx, c, 1)),
    compute("aten.zeros.default", |cx, _| uniform(cx, 0)),
    compute("aten.zeros_like.default", |cx, _| uniform(cx, 0)),
    compute("aten.new_zeros.default", |cx, _| uniform(cx, 0)),
    compute("aten.ones.default", |cx, _| uniform(cx, 1)),
    compute("aten.ones_like.default", |cx, _| uniform(cx, 1)),
    compute("aten.new_ones.default", |cx, _| uniform(cx, 1)),
    // What nobody has written has no value; zero is as good as any.
    compute("aten.empty.memory_format", |cx, _| uniform(cx, 0)),
    compute("aten.empty_like.default", |cx, _| uniform(cx, 0)),
    compute("aten.empty_strided.default", |cx, _| uniform(cx, 0)),
    compute("aten.empty_permuted.default", |cx, _| uniform(cx, 0)),
    compute("aten.new_empty.default", |cx, _| uniform(cx, 0)),
    compute("aten.new_empty_strided.default", |cx, _| uniform(cx, 0)),
    compute("aten.arange.default", |cx, c| range(cx, c, None, None)),
    compute("aten.arange.start", |cx, c| range(cx, c, Some(0), None)),
    compute("aten.arange.start_step", |cx, c| range(cx, c, Some(0), Some(2))),
    compute("prims.iota.default", iota),
    compute("aten.linspace.default", linspace),
    compute("aten.eye.default", eye),
    compute("aten.eye.m", eye),
    compute("aten.tril.default", |cx, c| triangle(cx, c, Half::Lower)),
    compute("aten.triu.default", |cx, c| triangle(cx, c, Half::Upper)),
];

fn filled(cx: &mut Cx, c: &Call, position: usize) -> Lowered {
    let out = cx.out()?;
    let name = if position == 0 { "s" } else { "fill_value" };
    let value = match c.operand(position, name).or_else(|_| c.operand(position, "value"))? {
        Operand::Scalar(number) => cx.constant(number, out.dtype, &out.shape),
        other => cx.operand(&other, out.dtype, &out.shape)?,
    };
    Ok(vec![value])
}

fn uniform(cx: &mut Cx, value: i64) -> Lowered {
    let out = cx.out()?;
    Ok(vec![cx.constant(Scalar::Int(value), out.dtype, &out.shape)])
}

/// `start + step·position`. `start` and `step` are positions of arguments, 0 and 1 without.
fn range(cx: &mut Cx, c: &Call, start: Option<usize>, step: Option<usize>) -> Lowered {
    let start = match start {
        Some(at) => c.operand(at, "start")?,
        None => Operand::Scalar(Scalar::Int(0)),
    };
    let step = match step {
        Some(at) => c.opt_operand(at, "step")?.unwrap_or(Operand::Scalar(Scalar::Int(1))),
        None => Operand::Scalar(Scalar::Int(1)),
    };
    steps(cx, &start, &step)
}

fn iota(cx: &mut Cx, c: &Call) -> Lowered {
    let start = c.opt_operand(1, "start")?.unwrap_or(Operand::Scalar(Scalar::Int(0)));
    let step = c.opt_operand(2, "step")?.unwrap_or(Operand::Scalar(Scalar::Int(1)));
    steps(cx, &start, &step)
}

fn steps(cx: &mut Cx, start: &Operand, step: &Operand) -> Lowered {
    let out = cx.out()?;
    if let (Some(start), Some(step)) = (whole(start), whole(step)) {
        let positions = cx.index(coordinate(0).times(step).shifted(start), &out.shape);
        return Ok(vec![cx.cast(positions, out.dtype)]);
    }
    // Fractions are counted in f64 whatever the result is, as in PyTorch.
    let positions = cx.index(coordinate(0), &out.shape);
    let positions = cx.cast(positions, DType::F64);
    let start = cx.operand(start, DType::F64, &out.shape)?;
    let step = cx.operand(step, DType::F64, &out.shape)?;
    let travelled = cx.binary(BinaryOp::Mul, positions, step);
    let value = cx.binary(BinaryOp::Add, start, travelled);
    Ok(vec![cx.cast(value, out.dtype)])
}

/// Steps from the nearer end, so that the last element is the end exactly.
fn linspace(cx: &mut Cx, c: &Call) -> Lowered {
    let out = cx.out()?;
    let (start, end) = (c.scalar(0, "start")?.to_f64(), c.scalar(1, "end")?.to_f64());
    let Some(count) = out.shape.first().and_then(|s| s.as_const()) else { return Err(Refusal::Extern) };
    if count <= 1 {
        return Ok(vec![cx.constant(Scalar::Float(start), out.dtype, &out.shape)]);
    }
    let last = count - 1;
    let step = (end - start) / last as f64;
    let fraction = |cx: &mut Cx, index: Index| {
        let position = cx.index(index, &out.shape);
        cx.cast(position, DType::F64)
    };
    let from_start = fraction(cx, coordinate(0));
    let from_end = fraction(cx, coordinate(0).times(Size::from(-1)).shifted(Size::from(last)));
    let step = cx.float(step, from_start);
    let (start, end) = (cx.float(start, step), cx.float(end, step));
    let travelled = cx.binary(BinaryOp::Mul, step, from_start);
    let left = cx.binary(BinaryOp::Mul, step, from_end);
    let low = cx.binary(BinaryOp::Add, start, travelled);
    let high = cx.binary(BinaryOp::Sub, end, left);
    let near_start = cx.in_range(coordinate(0), Size::ZERO, Size::from((last + 1) / 2), &out.shape);
    let value = cx.choose(near_start, low, high);
    Ok(vec![cx.cast(value, out.dtype)])
}

fn whole(operand: &Operand) -> Option<Size> {
    match operand {
        Operand::Scalar(Scalar::Int(v)) => Some(Size::from(*v)),
        Operand::Scalar(Scalar::Bool(v)) => Some(Size::from(i64::from(*v))),
        Operand::Scalar(Scalar::Float(v)) if v.fract() == 0.0 && v.abs() < 1e15 => {
            Some(Size::from(*v as i64))
        }
        Operand::Size(size) => Some(*size),
        _ => None,
    }
}

/// How far a position lies right of the diagonal: column less row.
fn right_of_diagonal(rank: usize) -> Index {
    coordinate(rank - 1).plus(&coordinate(rank - 2).times(Size::from(-1)))
}

fn eye(cx: &mut Cx, _: &Call) -> Lowered {
    let out = cx.out()?;
    let diagonal = cx.in_range(right_of_diagonal(2), Size::ZERO, Size::ONE, &out.shape);
    Ok(vec![cx.cast(diagonal, out.dtype)])
}

/// A half of a matrix, the diagonal with it.
#[derive(Copy, Clone, PartialEq)]
enum Half {
    Lower,
    Upper,
}

fn triangle(cx: &mut Cx, c: &Call, half: Half) -> Lowered {
    let a: ExprId = cx.tensor(c, 0, "self")?;
    let shape = cx.shape(a);
    let rank = shape.len();
    if rank < 2 {
        return Err(Refusal::Extern);
    }
    let diagonal = c.size_or(1, "diagonal", Size::ZERO)?;
    let (low, high) = match half {
        Half::Lower => (Size::ONE - shape[rank - 2], diagonal + Size::ONE),
        Half::Upper => (diagonal, shape[rank - 1]),
    };
    let inside = cx.in_range(right_of_diagonal(rank), low, high, &shape);
    let zero = cx.int(0, a);
    Ok(vec![cx.choose(inside, a, zero)])
}
