//! Sums, products, extremes, their positions, truth values of many, means and variances.

use loafc_ir::dtype::{DType, Scalar};
use loafc_ir::nest::{BinaryOp, ReduceOp, UnaryOp};
use loafc_ir::ops::Call;
use smallvec::SmallVec;

use crate::expr::ExprId;
use crate::lowering::{Lowered, Lowering, Refusal};
use crate::reduce::{Finish, FinishValue, Reduction};
use crate::table::{Entry, compute};

type Cx<'a> = Lowering<'a>;
type ReducedDims = SmallVec<[usize; 6]>;

pub(super) static TABLE: &[Entry] = &[
    compute("aten.sum.default", |cx, c| over_all(cx, c, ReduceOp::Sum)),
    compute("aten.sum.dim_IntList", |cx, c| over_dims(cx, c, ReduceOp::Sum)),
    compute("aten.prod.default", |cx, c| over_all(cx, c, ReduceOp::Prod)),
    compute("aten.prod.dim_int", |cx, c| over_dims(cx, c, ReduceOp::Prod)),
    compute("aten.amax.default", |cx, c| over_dims(cx, c, ReduceOp::Max)),
    compute("aten.amin.default", |cx, c| over_dims(cx, c, ReduceOp::Min)),
    compute("aten.max.default", |cx, c| over_all(cx, c, ReduceOp::Max)),
    compute("aten.min.default", |cx, c| over_all(cx, c, ReduceOp::Min)),
    compute("aten.max.dim", |cx, c| with_position(cx, c, ReduceOp::ArgMax)),
    compute("aten.min.dim", |cx, c| with_position(cx, c, ReduceOp::ArgMin)),
    compute("aten.argmax.default", |cx, c| position(cx, c, ReduceOp::ArgMax)),
    compute("aten.argmin.default", |cx, c| position(cx, c, ReduceOp::ArgMin)),
    compute("aten.any.default", |cx, c| truth(cx, c, ReduceOp::Any)),
    compute("aten.any.dim", |cx, c| truth(cx, c, ReduceOp::Any)),
    compute("aten.any.dims", |cx, c| truth(cx, c, ReduceOp::Any)),
    compute("aten.all.default", |cx, c| truth(cx, c, ReduceOp::All)),
    compute("aten.all.dim", |cx, c| truth(cx, c, ReduceOp::All)),
    compute("aten.all.dims", |cx, c| truth(cx, c, ReduceOp::All)),
    compute("prims.xor_sum.default", |cx, c| over_dims(cx, c, ReduceOp::Xor)),
    compute("aten.mean.default", mean_all),
    compute("aten.mean.dim", mean),
    compute("aten.var.correction", |cx, c| spread(cx, c, Spread::Variance)),
    compute("aten.std.correction", |cx, c| spread(cx, c, Spread::Deviation)),
    compute("aten.var_mean.correction", |cx, c| spread(cx, c, Spread::VarianceAndMean)),
    compute("aten.std_mean.correction", |cx, c| spread(cx, c, Spread::DeviationAndMean)),
    compute("prims.var.default", prims_var),
    compute("aten.logsumexp.default", logsumexp),
    compute("aten.count_nonzero.default", count_nonzero),
    compute("aten.count_nonzero.dim_IntList", count_nonzero),
    compute("aten.linalg_vector_norm.default", vector_norm),
    compute("aten.norm.Scalar", |cx, c| norm(cx, c, None)),
    compute("aten.norm.ScalarOpt_dim", |cx, c| norm(cx, c, Some((2, 3)))),
];

fn all_dims(cx: &Cx, a: ExprId) -> ReducedDims {
    (0..cx.shape(a).len()).collect()
}

/// The type that elements are added up in: as wide as arithmetic on the result's type.
fn accumulated(cx: &mut Cx, a: ExprId, result: DType) -> ExprId {
    cx.cast(a, result.compute())
}

fn only(value: FinishValue, dtype: DType) -> [Finish; 1] {
    [Finish { value, dtype, result: Some(0) }]
}

fn fold(cx: &mut Cx, a: ExprId, dims: &[usize], keepdim: bool, op: ReduceOp) -> Lowered {
    let dtype = cx.out()?.dtype;
    let input = match op {
        ReduceOp::Sum | ReduceOp::Prod => accumulated(cx, a, dtype),
        _ => a,
    };
    let op = match (cx.dtype(input), op) {
        (DType::Bool, ReduceOp::Max) => ReduceOp::Any,
        (DType::Bool, ReduceOp::Min) => ReduceOp::All,
        (_, op) => op,
    };
    Ok(cx.reduce(&Reduction { input, dims, keepdim, op }, &only(FinishValue::First, dtype)))
}

fn over_all(cx: &mut Cx, c: &Call, op: ReduceOp) -> Lowered {
    let a = cx.tensor(c, 0, "self")?;
    let dims = all_dims(cx, a);
    fold(cx, a, &dims, false, op)
}

fn over_dims(cx: &mut Cx, c: &Call, op: ReduceOp) -> Lowered {
    let a = cx.tensor(c, 0, "self")?;
    let dims = c.reduced_dims(1, "dim", cx.shape(a).len())?;
    let keepdim = c.bool_or(2, "keepdim", false)?;
    fold(cx, a, &dims, keepdim, op)
}

fn truth(cx: &mut Cx, c: &Call, op: ReduceOp) -> Lowered {
    let a = cx.tensor(c, 0, "self")?;
    let dims = c.reduced_dims(1, "dim", cx.shape(a).len())?;
    let keepdim = c.bool_or(2, "keepdim", false)?;
    let input = cx.cast(a, DType::Bool);
    // u8 in, u8 out; everything else gives truth values.
    let dtype = cx.out()?.dtype;
    Ok(cx.reduce(&Reduction { input, dims: &dims, keepdim, op }, &only(FinishValue::First, dtype)))
}

/// Elements in a type whose order is that of numbers: truth values as 0 and 1.
fn ordered(cx: &mut Cx, a: ExprId) -> ExprId {
    if cx.dtype(a) == DType::Bool { cx.cast(a, DType::U8) } else { a }
}

fn with_position(cx: &mut Cx, c: &Call, op: ReduceOp) -> Lowered {
    let a = cx.tensor(c, 0, "self")?;
    let dims = [c.dim(1, "dim", cx.shape(a).len())?];
    let dims: &[usize] = if cx.shape(a).is_empty() { &[] } else { &dims };
    let keepdim = c.bool_or(2, "keepdim", false)?;
    let dtype = cx.dtype(a);
    let input = ordered(cx, a);
    let mut finishes = Vec::new();
    if cx.result(0).is_some() {
        finishes.push(Finish { value: FinishValue::First, dtype, result: Some(0) });
    }
    if cx.result(1).is_some() {
        finishes.push(Finish { value: FinishValue::Second, dtype: DType::I64, result: Some(1) });
    }
    let mut made = cx.reduce(&Reduction { input, dims, keepdim, op }, &finishes);
    if cx.result(0).is_none() {
        made.insert(0, made[0]);
    }
    Ok(made)
}

fn position(cx: &mut Cx, c: &Call, op: ReduceOp) -> Lowered {
    let a = cx.tensor(c, 0, "self")?;
    // Tracing takes truth values, which the operator itself refuses.
    if cx.dtype(a) == DType::Bool {
        return Err(Refusal::Extern);
    }
    let rank = cx.shape(a).len();
    let keepdim = c.bool_or(2, "keepdim", false)?;
    let dims: ReducedDims = match c.opt_int(1, "dim")? {
        Some(dim) if rank > 0 => SmallVec::from_slice(&[c.wrap_dim("dim", dim, rank)?]),
        _ => (0..rank).collect(),
    };
    let input = ordered(cx, a);
    Ok(cx.reduce(&Reduction { input, dims: &dims, keepdim, op }, &only(FinishValue::Second, DType::I64)))
}

fn mean_all(cx: &mut Cx, c: &Call) -> Lowered {
    let a = cx.tensor(c, 0, "self")?;
    let dims = all_dims(cx, a);
    mean_over(cx, a, &dims, false)
}

fn mean(cx: &mut Cx, c: &Call) -> Lowered {
    let a = cx.tensor(c, 0, "self")?;
    let dims = c.reduced_dims(1, "dim", cx.shape(a).len())?;
    let keepdim = c.bool_or(2, "keepdim", false)?;
    mean_over(cx, a, &dims, keepdim)
}

pub(super) fn mean_over(cx: &mut Cx, a: ExprId, dims: &[usize], keepdim: bool) -> Lowered {
    let dtype = cx.out()?.dtype;
    let input = accumulated(cx, a, dtype);
    let reduction = Reduction { input, dims, keepdim, op: ReduceOp::Sum };
    Ok(cx.reduce(&reduction, &only(FinishValue::Mean, dtype)))
}

/// `log Σ exp(a - m) + m` with the largest element for m, or 0 if that is infinite.
fn logsumexp(cx: &mut Cx, c: &Call) -> Lowered {
    let a = cx.tensor(c, 0, "self")?;
    let shape = cx.shape(a);
    let dims = c.reduced_dims(1, "dim", shape.len())?;
    let out = cx.out()?;
    if !out.dtype.is_float() || dims.iter().any(|d| shape[*d].is(0)) {
        return Err(Refusal::Extern);
    }
    cx.store_if_dear(a);
    let a = accumulated(cx, a, out.dtype);
    let reduction = |input, op| Reduction { input, dims: &dims, keepdim: true, op };
    let most = cx.reduce_to(&reduction(a, ReduceOp::Max), FinishValue::First);
    let infinite = cx.unary(UnaryOp::IsInf, most);
    let zero = cx.float(0.0, most);
    let shift = cx.choose(infinite, zero, most);
    let spread = cx.broadcast(shift, &shape);
    let distance = cx.binary(BinaryOp::Sub, a, spread);
    let exp = cx.unary(UnaryOp::Exp, distance);
    let sum = cx.reduce_to(&reduction(exp, ReduceOp::Sum), FinishValue::First);
    let log = cx.unary(UnaryOp::Log, sum);
    let result = cx.binary(BinaryOp::Add, log, shift);
    let result = cx.cast(result, out.dtype);
    Ok(vec![cx.reshape(result, &out.shape)])
}

/// Which measures of spread a call wants.
#[derive(Copy, Clone, PartialEq)]
enum Spread {
    Variance,
    Deviation,
    VarianceAndMean,
    DeviationAndMean,
}

fn spread(cx: &mut Cx, c: &Call, wanted: Spread) -> Lowered {
    let a = cx.tensor(c, 0, "self")?;
    let dims = c.reduced_dims(1, "dim", cx.shape(a).len())?;
    let correction = c.float_or(loafc_ir::ops::call::KEYWORD, "correction", 1.0)?;
    let keepdim = c.bool_or(loafc_ir::ops::call::KEYWORD, "keepdim", false)?;
    spread_over(cx, a, &dims, correction, keepdim, wanted)
}

fn prims_var(cx: &mut Cx, c: &Call) -> Lowered {
    let a = cx.tensor(c, 0, "inp")?;
    let dims = c.reduced_dims(1, "dims", cx.shape(a).len())?;
    let correction = c.float_or(2, "correction", 1.0)?;
    spread_over(cx, a, &dims, correction, false, Spread::Variance)
}

fn spread_over(
    cx: &mut Cx,
    a: ExprId,
    dims: &[usize],
    correction: f64,
    keepdim: bool,
    wanted: Spread,
) -> Lowered {
    let dtype = cx.out()?.dtype;
    if !dtype.is_float() {
        return Err(Refusal::Extern);
    }
    let input = match wanted {
        // The root of a variance below f32's range may lie within it: eager mode takes it in f64 too.
        Spread::Deviation | Spread::DeviationAndMean if dtype == DType::F32 => cx.cast(a, DType::F64),
        _ => accumulated(cx, a, dtype),
    };
    let value = match wanted {
        Spread::Variance | Spread::VarianceAndMean => FinishValue::Variance(correction),
        Spread::Deviation | Spread::DeviationAndMean => FinishValue::Deviation(correction),
    };
    let mut finishes = vec![Finish { value, dtype, result: Some(0) }];
    if matches!(wanted, Spread::VarianceAndMean | Spread::DeviationAndMean) && cx.result(1).is_some() {
        finishes.push(Finish { value: FinishValue::WelfordMean, dtype, result: Some(1) });
    }
    let mut made = cx.reduce(&Reduction { input, dims, keepdim, op: ReduceOp::Welford }, &finishes);
    made.push(made[0]);
    Ok(made)
}

fn count_nonzero(cx: &mut Cx, c: &Call) -> Lowered {
    let a = cx.tensor(c, 0, "self")?;
    let dims = c.reduced_dims(1, "dim", cx.shape(a).len())?;
    let nonzero = cx.cast(a, DType::Bool);
    let input = cx.cast(nonzero, DType::I64);
    let reduction = Reduction { input, dims: &dims, keepdim: false, op: ReduceOp::Sum };
    Ok(cx.reduce(&reduction, &only(FinishValue::First, DType::I64)))
}

fn vector_norm(cx: &mut Cx, c: &Call) -> Lowered {
    let a = cx.tensor(c, 0, "self")?;
    let order = c.float_or(1, "ord", 2.0)?;
    let dims = c.reduced_dims(2, "dim", cx.shape(a).len())?;
    let keepdim = c.bool_or(3, "keepdim", false)?;
    norm_over(cx, a, order, &dims, keepdim)
}

/// `dims` are the positions of the arguments `dim` and `keepdim`, where the overload has them.
fn norm(cx: &mut Cx, c: &Call, dims: Option<(usize, usize)>) -> Lowered {
    let a = cx.tensor(c, 0, "self")?;
    let order = c.float_or(1, "p", 2.0)?;
    let rank = cx.shape(a).len();
    let (dims, keepdim) = match dims {
        Some((dim, keepdim)) => (c.reduced_dims(dim, "dim", rank)?, c.bool_or(keepdim, "keepdim", false)?),
        None => ((0..rank).collect(), false),
    };
    norm_over(cx, a, order, &dims, keepdim)
}

pub(super) fn norm_over(cx: &mut Cx, a: ExprId, order: f64, dims: &[usize], keepdim: bool) -> Lowered {
    let dtype = cx.out()?.dtype;
    let a = accumulated(cx, a, dtype);
    if order == 2.0 {
        let input = cx.binary(BinaryOp::Mul, a, a);
        let reduction = Reduction { input, dims, keepdim, op: ReduceOp::Sum };
        return Ok(cx.reduce(&reduction, &only(FinishValue::Root, dtype)));
    }
    let magnitude = cx.unary(UnaryOp::Abs, a);
    let reduce = |cx: &mut Cx, input, op| {
        cx.reduce(&Reduction { input, dims, keepdim, op }, &only(FinishValue::First, dtype))
    };
    if order == f64::INFINITY {
        return Ok(reduce(cx, magnitude, ReduceOp::Max));
    }
    if order == f64::NEG_INFINITY {
        return Ok(reduce(cx, magnitude, ReduceOp::Min));
    }
    if order == 1.0 {
        return Ok(reduce(cx, magnitude, ReduceOp::Sum));
    }
    if order == 0.0 {
        let zero = cx.float(0.0, a);
        let nonzero = cx.binary(BinaryOp::Ne, a, zero);
        let ones = cx.cast(nonzero, cx.dtype(a));
        return Ok(reduce(cx, ones, ReduceOp::Sum));
    }
    let exponent = cx.float(order, a);
    let powers = cx.binary(BinaryOp::Pow, magnitude, exponent);
    let sum = reduce(cx, powers, ReduceOp::Sum)[0];
    let shape = cx.shape(sum);
    let inverse = cx.number(Scalar::Float(1.0 / order), dtype, &shape);
    Ok(vec![cx.binary(BinaryOp::Pow, sum, inverse)])
}
