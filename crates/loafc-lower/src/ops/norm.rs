//! Softmax and normalisations, for programs in which they were not decomposed: compositions of reductions and
//! pointwise steps. Statistics are computed in f32 or wider.

use loafc_ir::dtype::{DType, Scalar};
use loafc_ir::graph::Dims;
use loafc_ir::nest::{BinaryOp, ReduceOp, UnaryOp};
use loafc_ir::ops::{Call, TensorArg};
use loafc_ir::size::Size;

use crate::expr::ExprId;
use crate::lowering::{Lowered, Lowering, Refusal};
use crate::reduce::{Finish, FinishValue, Reduction};
use crate::table::{Entry, compute};
use crate::view::coordinate_within;

type Cx<'a> = Lowering<'a>;

pub(super) static TABLE: &[Entry] = &[
    compute("aten._softmax.default", softmax),
    compute("aten.softmax.int", softmax),
    compute("aten._safe_softmax.default", safe_softmax),
    compute("aten._log_softmax.default", log_softmax),
    compute("aten.log_softmax.int", log_softmax),
    compute("aten._softmax_backward_data.default", softmax_backward),
    compute("aten._log_softmax_backward_data.default", log_softmax_backward),
    compute("aten.native_layer_norm.default", layer_norm),
    compute("aten.native_layer_norm_backward.default", layer_norm_backward),
    compute("aten.native_group_norm.default", group_norm),
    compute("aten._native_batch_norm_legit_no_training.default", batch_norm_inference),
    compute("aten._native_batch_norm_legit_functional.default", batch_norm_training),
    compute("aten._native_batch_norm_legit.no_stats", batch_norm_no_stats),
    compute("aten.rms_norm.default", rms_norm),
];

/// An argument in the type that statistics are computed in, stored if it is dear, since it is read several times.
fn input(cx: &mut Cx, c: &Call, position: usize, name: &str) -> Result<ExprId, Refusal> {
    let a = cx.tensor(c, position, name)?;
    if !cx.dtype(a).is_float() {
        return Err(Refusal::Extern);
    }
    cx.store_if_dear(a);
    // A result that is wider than the arguments is computed in its own type.
    let own = cx.dtype(a).compute();
    let wide = if cx.out()?.dtype == DType::F64 { DType::F64 } else { own };
    Ok(cx.cast(a, wide))
}

fn reduce_keep(cx: &mut Cx, input: ExprId, dims: &[usize], op: ReduceOp) -> ExprId {
    cx.reduce_to(&Reduction { input, dims, keepdim: true, op }, FinishValue::First)
}

fn binary_broadcast(cx: &mut Cx, op: BinaryOp, a: ExprId, b: ExprId) -> ExprId {
    let shape = cx.shape(a);
    let b = cx.broadcast(b, &shape);
    cx.binary(op, a, b)
}

fn softmax_dims(cx: &Cx, c: &Call, a: ExprId, position: usize) -> Result<Vec<usize>, Refusal> {
    let rank = cx.shape(a).len();
    let dim = c.dim(position, "dim", rank)?;
    Ok(if rank == 0 { Vec::new() } else { vec![dim] })
}

fn result_in_declared_type(cx: &mut Cx, a: ExprId) -> Lowered {
    let dtype = cx.out()?.dtype;
    Ok(vec![cx.cast(a, dtype)])
}

fn softmax(cx: &mut Cx, c: &Call) -> Lowered {
    let share = shares(cx, c)?;
    result_in_declared_type(cx, share)
}

/// As `softmax`; a row of nothing but -inf gives zeros.
fn safe_softmax(cx: &mut Cx, c: &Call) -> Lowered {
    let share = shares(cx, c)?;
    let a = input(cx, c, 0, "self")?;
    let dims = softmax_dims(cx, c, a, 1)?;
    let most = reduce_keep(cx, a, &dims, ReduceOp::Max);
    let nothing = cx.float(f64::NEG_INFINITY, most);
    let masked = cx.binary(BinaryOp::Eq, most, nothing);
    let shape = cx.shape(share);
    let masked = cx.broadcast(masked, &shape);
    let zero = cx.float(0.0, share);
    let result = cx.choose(masked, zero, share);
    result_in_declared_type(cx, result)
}

/// Each element's share of the sum of exponentials along a dimension.
fn shares(cx: &mut Cx, c: &Call) -> Result<ExprId, Refusal> {
    let a = input(cx, c, 0, "self")?;
    let dims = softmax_dims(cx, c, a, 1)?;
    let most = reduce_keep(cx, a, &dims, ReduceOp::Max);
    let distance = binary_broadcast(cx, BinaryOp::Sub, a, most);
    let exp = cx.unary(UnaryOp::Exp, distance);
    cx.store_if_dear(exp);
    let sum = reduce_keep(cx, exp, &dims, ReduceOp::Sum);
    Ok(binary_broadcast(cx, BinaryOp::Div, exp, sum))
}

fn log_softmax(cx: &mut Cx, c: &Call) -> Lowered {
    let a = input(cx, c, 0, "self")?;
    let dims = softmax_dims(cx, c, a, 1)?;
    let most = reduce_keep(cx, a, &dims, ReduceOp::Max);
    let distance = binary_broadcast(cx, BinaryOp::Sub, a, most);
    let exp = cx.unary(UnaryOp::Exp, distance);
    let sum = reduce_keep(cx, exp, &dims, ReduceOp::Sum);
    let log = cx.unary(UnaryOp::Log, sum);
    let result = binary_broadcast(cx, BinaryOp::Sub, distance, log);
    result_in_declared_type(cx, result)
}

/// `y·g - y·Σ(y·g)`.
fn softmax_backward(cx: &mut Cx, c: &Call) -> Lowered {
    let gradient = input(cx, c, 0, "grad_output")?;
    let y = input(cx, c, 1, "output")?;
    let dims = softmax_dims(cx, c, y, 2)?;
    let weighted = cx.binary(BinaryOp::Mul, gradient, y);
    let sum = reduce_keep(cx, weighted, &dims, ReduceOp::Sum);
    let share = binary_broadcast(cx, BinaryOp::Mul, y, sum);
    let result = cx.binary(BinaryOp::Sub, weighted, share);
    result_in_declared_type(cx, result)
}

/// `g - exp(y)·Σg`.
fn log_softmax_backward(cx: &mut Cx, c: &Call) -> Lowered {
    let gradient = input(cx, c, 0, "grad_output")?;
    let y = input(cx, c, 1, "output")?;
    let dims = softmax_dims(cx, c, y, 2)?;
    let sum = reduce_keep(cx, gradient, &dims, ReduceOp::Sum);
    let exp = cx.unary(UnaryOp::Exp, y);
    let share = binary_broadcast(cx, BinaryOp::Mul, exp, sum);
    let result = cx.binary(BinaryOp::Sub, gradient, share);
    result_in_declared_type(cx, result)
}

/// Mean, and the reciprocal of the deviation with `eps` under the root; both with the reduced dimensions kept.
fn moments(cx: &mut Cx, a: ExprId, dims: &[usize], eps: f64) -> (ExprId, ExprId, ExprId) {
    let dtype = cx.dtype(a);
    let reduction = Reduction { input: a, dims, keepdim: true, op: ReduceOp::Welford };
    let finish = |value| Finish { value, dtype, result: None };
    let made = cx.reduce(&reduction, &[finish(FinishValue::First), finish(FinishValue::Variance(0.0))]);
    let (mean, variance) = (made[0], made[1]);
    let rstd = reciprocal_deviation(cx, variance, eps);
    (mean, variance, rstd)
}

fn reciprocal_deviation(cx: &mut Cx, variance: ExprId, eps: f64) -> ExprId {
    let eps = cx.float(eps, variance);
    let sum = cx.binary(BinaryOp::Add, variance, eps);
    cx.unary(UnaryOp::Rsqrt, sum)
}

fn normalized(cx: &mut Cx, a: ExprId, mean: ExprId, rstd: ExprId) -> ExprId {
    let centred = binary_broadcast(cx, BinaryOp::Sub, a, mean);
    binary_broadcast(cx, BinaryOp::Mul, centred, rstd)
}

/// A parameter in the type of `like`, along the dimensions of `like` that begin at `first`.
fn parameter(cx: &mut Cx, argument: &TensorArg, like: ExprId, first: usize) -> Result<ExprId, Refusal> {
    let value = cx.value(argument.id)?;
    let value = cx.cast(value, cx.dtype(like));
    let shape = cx.shape(like);
    let coords =
        (0..argument.ty.shape.len()).map(|d| coordinate_within(first + d, argument.ty.shape[d])).collect();
    Ok(cx.view(value, coords, &shape))
}

/// `a·weight + bias`, each if given.
fn affine(
    cx: &mut Cx,
    a: ExprId,
    weight: Option<TensorArg>,
    bias: Option<TensorArg>,
    first: usize,
) -> Result<ExprId, Refusal> {
    let mut value = a;
    if let Some(weight) = weight {
        let weight = parameter(cx, &weight, value, first)?;
        value = cx.binary(BinaryOp::Mul, value, weight);
    }
    if let Some(bias) = bias {
        let bias = parameter(cx, &bias, value, first)?;
        value = cx.binary(BinaryOp::Add, value, bias);
    }
    Ok(value)
}

/// A result in the type and shape that the program declares, if it is used.
fn declared(cx: &mut Cx, a: ExprId, k: usize) -> ExprId {
    let Some(ty) = cx.result(k) else { return a };
    let a = cx.cast(a, ty.dtype);
    cx.reshape(a, &ty.shape)
}

/// The first of the dimensions of `a` that `normalized_shape` stands for: the last ones, as many as it has.
fn first_normalized(cx: &Cx, c: &Call, a: ExprId, position: usize) -> Result<usize, Refusal> {
    let count = c.sizes(position, "normalized_shape")?.len();
    cx.shape(a).len().checked_sub(count).ok_or(Refusal::Extern)
}

fn layer_norm(cx: &mut Cx, c: &Call) -> Lowered {
    let a = input(cx, c, 0, "input")?;
    let first = first_normalized(cx, c, a, 1)?;
    let dims: Vec<usize> = (first..cx.shape(a).len()).collect();
    let eps = c.float_or(4, "eps", 1e-5)?;
    let (weight, bias) = (c.opt_tensor(2, "weight")?, c.opt_tensor(3, "bias")?);
    let (mean, _, rstd) = moments(cx, a, &dims, eps);
    let value = normalized(cx, a, mean, rstd);
    let value = affine(cx, value, weight, bias, first)?;
    Ok(vec![declared(cx, value, 0), declared(cx, mean, 1), declared(cx, rstd, 2)])
}

/// Gradients of the input, the weight and the bias: `r·(g·w - mean(g·w) - n·mean(g·w·n))` with the normalised
/// input n and its reciprocal deviation r, and sums of `g·n` and `g` over the rows.
fn layer_norm_backward(cx: &mut Cx, c: &Call) -> Lowered {
    let gradient = input(cx, c, 0, "grad_out")?;
    let a = input(cx, c, 1, "input")?;
    let first = first_normalized(cx, c, a, 2)?;
    let statistic = |cx: &mut Cx, position: usize, name: &str| -> Result<ExprId, Refusal> {
        let value = cx.tensor(c, position, name)?;
        let value = cx.cast(value, cx.dtype(a));
        let shape = cx.shape(a);
        Ok(cx.broadcast(value, &shape))
    };
    let (mean, rstd) = (statistic(cx, 3, "mean")?, statistic(cx, 4, "rstd")?);
    let centred = cx.binary(BinaryOp::Sub, a, mean);
    let normal = cx.binary(BinaryOp::Mul, centred, rstd);
    let inner: Vec<usize> = (first..cx.shape(a).len()).collect();
    let outer: Vec<usize> = (0..first).collect();
    let mut results = Vec::new();
    if cx.result(0).is_some() {
        let weighted = affine(cx, gradient, c.opt_tensor(5, "weight")?, None, first)?;
        let mean_over = |cx: &mut Cx, input| {
            let reduction = Reduction { input, dims: &inner, keepdim: true, op: ReduceOp::Sum };
            cx.reduce_to(&reduction, FinishValue::Mean)
        };
        let along = cx.binary(BinaryOp::Mul, weighted, normal);
        let (total, along) = (mean_over(cx, weighted), mean_over(cx, along));
        let part = binary_broadcast(cx, BinaryOp::Sub, weighted, total);
        let turned = binary_broadcast(cx, BinaryOp::Mul, normal, along);
        let part = cx.binary(BinaryOp::Sub, part, turned);
        let value = cx.binary(BinaryOp::Mul, part, rstd);
        results.push(declared(cx, value, 0));
    } else {
        results.push(gradient);
    }
    let product = cx.binary(BinaryOp::Mul, gradient, normal);
    for (k, input) in [(1, product), (2, gradient)] {
        let Some(ty) = cx.result(k) else {
            results.push(gradient);
            continue;
        };
        // The result of an output that is not wanted has no elements.
        if ty.shape.len() != inner.len() {
            results.push(nothing(cx, k, ty.dtype));
            continue;
        }
        let reduction = Reduction { input, dims: &outer, keepdim: false, op: ReduceOp::Sum };
        let finish = Finish { value: FinishValue::First, dtype: ty.dtype, result: Some(k) };
        results.extend(cx.reduce(&reduction, &[finish]));
    }
    Ok(results)
}

fn group_norm(cx: &mut Cx, c: &Call) -> Lowered {
    let a = input(cx, c, 0, "input")?;
    let shape = cx.shape(a);
    if shape.len() < 2 {
        return Err(Refusal::Extern);
    }
    let groups = c.size(6, "group")?;
    let eps = c.float_or(7, "eps", 1e-5)?;
    let (weight, bias) = (c.opt_tensor(1, "weight")?, c.opt_tensor(2, "bias")?);
    let channels = shape[1].div_exact(groups).ok_or(Refusal::Extern)?;
    let mut grouped: Dims = Dims::from_slice(&[shape[0], groups, channels]);
    grouped.extend(shape[2..].iter().copied());
    let split = cx.reshape(a, &grouped);
    let dims: Vec<usize> = (2..grouped.len()).collect();
    let (mean, _, rstd) = moments(cx, split, &dims, eps);
    let value = normalized(cx, split, mean, rstd);
    let value = cx.reshape(value, &shape);
    let value = affine(cx, value, weight, bias, 1)?;
    Ok(vec![declared(cx, value, 0), declared(cx, mean, 1), declared(cx, rstd, 2)])
}

fn nothing(cx: &mut Cx, k: usize, dtype: DType) -> ExprId {
    let (dtype, shape) = match cx.result(k) {
        Some(ty) => (ty.dtype, ty.shape.clone()),
        None => (dtype, Dims::from_slice(&[Size::ZERO])),
    };
    cx.constant(Scalar::Int(0), dtype, &shape)
}

fn batch_norm_inference(cx: &mut Cx, c: &Call) -> Lowered {
    let a = input(cx, c, 0, "input")?;
    let (weight, bias) = (c.opt_tensor(1, "weight")?, c.opt_tensor(2, "bias")?);
    let (mean, variance) = (c.tensor(3, "running_mean")?, c.tensor(4, "running_var")?);
    let eps = c.float_or(6, "eps", 1e-5)?;
    let dtype = cx.dtype(a);
    let mean = parameter(cx, &mean, a, 1)?;
    let variance = cx.value(variance.id)?;
    let variance = cx.cast(variance, dtype);
    let rstd = reciprocal_deviation(cx, variance, eps);
    let shape = cx.shape(a);
    let rstd = cx.view(rstd, vec![coordinate_within(1, shape[1])], &shape);
    let centred = cx.binary(BinaryOp::Sub, a, mean);
    let value = cx.binary(BinaryOp::Mul, centred, rstd);
    let value = affine(cx, value, weight, bias, 1)?;
    Ok(vec![declared(cx, value, 0), nothing(cx, 1, dtype), nothing(cx, 2, dtype)])
}

/// Results: the normalised tensor, mean and reciprocal deviation of the batch, and the new running statistics.
fn batch_norm_training(cx: &mut Cx, c: &Call) -> Lowered {
    if !c.bool_or(5, "training", false)? {
        return Err(Refusal::Extern);
    }
    let a = input(cx, c, 0, "input")?;
    let (weight, bias) = (c.opt_tensor(1, "weight")?, c.opt_tensor(2, "bias")?);
    let (old_mean, old_variance) = (c.tensor(3, "running_mean")?, c.tensor(4, "running_var")?);
    let momentum = c.float_or(6, "momentum", 0.1)?;
    let eps = c.float_or(7, "eps", 1e-5)?;
    let shape = cx.shape(a);
    let dims: Vec<usize> = (0..shape.len()).filter(|d| *d != 1).collect();
    let (mean, variance, rstd) = moments(cx, a, &dims, eps);
    let value = normalized(cx, a, mean, rstd);
    let value = affine(cx, value, weight, bias, 1)?;
    // Running variances are of the unbiased kind.
    let count = dims.iter().map(|d| shape[*d]).product::<Size>();
    let variance_shape = cx.shape(variance);
    let n = cx.size(count, cx.dtype(variance), &variance_shape);
    let scaled = cx.binary(BinaryOp::Mul, variance, n);
    let one = cx.float(1.0, n);
    let fewer = cx.binary(BinaryOp::Sub, n, one);
    let unbiased = cx.binary(BinaryOp::Div, scaled, fewer);
    let new_mean = running(cx, &old_mean, mean, momentum)?;
    let new_variance = running(cx, &old_variance, unbiased, momentum)?;
    Ok(vec![
        declared(cx, value, 0),
        declared(cx, mean, 1),
        declared(cx, rstd, 2),
        declared(cx, new_mean, 3),
        declared(cx, new_variance, 4),
    ])
}

/// Results: the normalised tensor, mean and reciprocal deviation of the batch.
fn batch_norm_no_stats(cx: &mut Cx, c: &Call) -> Lowered {
    if !c.bool_or(3, "training", true)? {
        return Err(Refusal::Extern);
    }
    let a = input(cx, c, 0, "input")?;
    let (weight, bias) = (c.opt_tensor(1, "weight")?, c.opt_tensor(2, "bias")?);
    let eps = c.float_or(5, "eps", 1e-5)?;
    let dims: Vec<usize> = (0..cx.shape(a).len()).filter(|d| *d != 1).collect();
    let (mean, _, rstd) = moments(cx, a, &dims, eps);
    let value = normalized(cx, a, mean, rstd);
    let value = affine(cx, value, weight, bias, 1)?;
    Ok(vec![declared(cx, value, 0), declared(cx, mean, 1), declared(cx, rstd, 2)])
}

/// `momentum·now + (1 - momentum)·old`.
fn running(cx: &mut Cx, old: &TensorArg, now: ExprId, momentum: f64) -> Result<ExprId, Refusal> {
    let value = cx.value(old.id)?;
    let value = cx.cast(value, cx.dtype(now));
    let shape = cx.shape(value);
    let now = cx.reshape(now, &shape);
    let (share, rest) = (cx.float(momentum, now), cx.float(1.0 - momentum, now));
    let new_part = cx.binary(BinaryOp::Mul, now, share);
    let old_part = cx.binary(BinaryOp::Mul, value, rest);
    Ok(cx.binary(BinaryOp::Add, new_part, old_part))
}

fn rms_norm(cx: &mut Cx, c: &Call) -> Lowered {
    let argument = c.tensor(0, "input")?;
    let a = input(cx, c, 0, "input")?;
    let first = first_normalized(cx, c, a, 1)?;
    let dims: Vec<usize> = (first..cx.shape(a).len()).collect();
    let smallest = match argument.ty.dtype.compute() {
        DType::F64 => f64::EPSILON,
        _ => f64::from(f32::EPSILON),
    };
    let eps = c.float_or(3, "eps", smallest)?;
    let square = cx.binary(BinaryOp::Mul, a, a);
    let reduction = Reduction { input: square, dims: &dims, keepdim: true, op: ReduceOp::Sum };
    let mean = cx.reduce_to(&reduction, FinishValue::Mean);
    let rstd = reciprocal_deviation(cx, mean, eps);
    let value = binary_broadcast(cx, BinaryOp::Mul, a, rstd);
    let value = affine(cx, value, c.opt_tensor(2, "weight")?, None, first)?;
    Ok(vec![declared(cx, value, 0)])
}
