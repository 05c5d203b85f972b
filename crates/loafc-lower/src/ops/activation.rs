//! Activation functions of neural networks and their gradients.

use loafc_ir::dtype::{DType, Scalar};
use loafc_ir::nest::{BinaryOp, UnaryOp};
use loafc_ir::ops::Call;
use loafc_ir::size::Size;

use super::pointwise::argument;
use crate::expr::ExprId;
use crate::lowering::{Lowered, Lowering, Refusal};
use crate::table::{Entry, compute};

type Cx<'a> = Lowering<'a>;

pub(super) static TABLE: &[Entry] = &[
    compute("aten.relu.default", relu),
    compute("aten.relu6.default", relu6),
    compute("aten.leaky_relu.default", leaky_relu),
    compute("aten._prelu_kernel.default", prelu),
    compute("aten.elu.default", elu),
    compute("aten.celu.default", celu),
    compute("aten.selu.default", selu),
    compute("aten.gelu.default", gelu),
    compute("aten.silu.default", silu),
    compute("aten.mish.default", mish),
    compute("aten.softplus.default", softplus),
    compute("aten.log_sigmoid.default", log_sigmoid),
    compute("aten.hardtanh.default", hardtanh),
    compute("aten.hardsigmoid.default", hardsigmoid),
    compute("aten.hardswish.default", hardswish),
    compute("aten.threshold.default", threshold),
    compute("aten.softshrink.default", softshrink),
    compute("aten.hardshrink.default", hardshrink),
    compute("aten.logit.default", logit),
    compute("aten.glu.default", glu),
    compute("aten.threshold_backward.default", threshold_backward),
    compute("aten.sigmoid_backward.default", sigmoid_backward),
    compute("aten.tanh_backward.default", tanh_backward),
    compute("aten.gelu_backward.default", gelu_backward),
    compute("aten.silu_backward.default", silu_backward),
    compute("aten.leaky_relu_backward.default", leaky_relu_backward),
    compute("aten.elu_backward.default", elu_backward),
    compute("aten.softplus_backward.default", softplus_backward),
    compute("aten.hardtanh_backward.default", hardtanh_backward),
    compute("aten.hardsigmoid_backward.default", hardsigmoid_backward),
    compute("aten.hardswish_backward.default", hardswish_backward),
    compute("aten.native_dropout_backward.default", dropout_backward),
];

const SQRT_HALF: f64 = std::f64::consts::FRAC_1_SQRT_2;
/// √(2/π), of the tanh form of GELU.
const SQRT_2_OVER_PI: f64 = std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2;
/// Cubic coefficient of the tanh form of GELU.
const GELU_CUBIC: f64 = 0.044715;

/// A tensor argument of floats; integers have other rules, or no activation.
fn floats(cx: &mut Cx, c: &Call, position: usize, name: &str) -> Result<ExprId, Refusal> {
    if !cx.out()?.dtype.is_float() {
        return Err(Refusal::Extern);
    }
    argument(cx, c, position, name)
}

fn add(cx: &mut Cx, a: ExprId, b: ExprId) -> ExprId {
    cx.binary(BinaryOp::Add, a, b)
}

fn mul(cx: &mut Cx, a: ExprId, b: ExprId) -> ExprId {
    cx.binary(BinaryOp::Mul, a, b)
}

fn scale(cx: &mut Cx, a: ExprId, by: f64) -> ExprId {
    if by == 1.0 {
        return a;
    }
    let by = cx.float(by, a);
    mul(cx, a, by)
}

fn offset(cx: &mut Cx, a: ExprId, by: f64) -> ExprId {
    let by = cx.float(by, a);
    add(cx, a, by)
}

fn compare(cx: &mut Cx, op: BinaryOp, a: ExprId, with: f64) -> ExprId {
    let with = cx.float(with, a);
    cx.binary(op, a, with)
}

/// `a` between two numbers; NaN stays.
fn between(cx: &mut Cx, a: ExprId, low: f64, high: f64) -> ExprId {
    let low = cx.float(low, a);
    let high = cx.float(high, a);
    let a = cx.binary(BinaryOp::Max, a, low);
    cx.binary(BinaryOp::Min, a, high)
}

/// Truth value of `low < a < high`.
fn inside(cx: &mut Cx, a: ExprId, low: f64, high: f64) -> ExprId {
    let above = compare(cx, BinaryOp::Gt, a, low);
    let below = compare(cx, BinaryOp::Lt, a, high);
    cx.binary(BinaryOp::And, above, below)
}

fn relu(cx: &mut Cx, c: &Call) -> Lowered {
    let a = argument(cx, c, 0, "self")?;
    if cx.dtype(a) == DType::Bool {
        return Err(Refusal::Extern);
    }
    let zero = cx.int(0, a);
    Ok(vec![cx.binary(BinaryOp::Max, a, zero)])
}

fn relu6(cx: &mut Cx, c: &Call) -> Lowered {
    let a = floats(cx, c, 0, "self")?;
    Ok(vec![between(cx, a, 0.0, 6.0)])
}

fn leaky_relu(cx: &mut Cx, c: &Call) -> Lowered {
    let a = floats(cx, c, 0, "self")?;
    let slope = c.float_or(1, "negative_slope", 0.01)?;
    let positive = compare(cx, BinaryOp::Gt, a, 0.0);
    let small = scale(cx, a, slope);
    Ok(vec![cx.choose(positive, a, small)])
}

fn prelu(cx: &mut Cx, c: &Call) -> Lowered {
    let a = floats(cx, c, 0, "self")?;
    let weight = floats(cx, c, 1, "weight")?;
    let positive = compare(cx, BinaryOp::Gt, a, 0.0);
    let small = mul(cx, weight, a);
    Ok(vec![cx.choose(positive, a, small)])
}

/// `scale·a` for positive `a`, else `scale·alpha·(exp(input_scale·a) - 1)`.
fn exponential_unit(cx: &mut Cx, a: ExprId, alpha: f64, outer: f64, input_scale: f64) -> ExprId {
    let negative = compare(cx, BinaryOp::Le, a, 0.0);
    let scaled = scale(cx, a, input_scale);
    let curve = cx.unary(UnaryOp::Expm1, scaled);
    let curve = scale(cx, curve, alpha * outer);
    let line = scale(cx, a, outer);
    cx.choose(negative, curve, line)
}

fn elu(cx: &mut Cx, c: &Call) -> Lowered {
    let a = floats(cx, c, 0, "self")?;
    let alpha = c.float_or(1, "alpha", 1.0)?;
    let outer = c.float_or(2, "scale", 1.0)?;
    let input_scale = c.float_or(3, "input_scale", 1.0)?;
    Ok(vec![exponential_unit(cx, a, alpha, outer, input_scale)])
}

fn celu(cx: &mut Cx, c: &Call) -> Lowered {
    let a = floats(cx, c, 0, "self")?;
    let alpha = c.float_or(1, "alpha", 1.0)?;
    Ok(vec![exponential_unit(cx, a, alpha, 1.0, 1.0 / alpha)])
}

fn selu(cx: &mut Cx, c: &Call) -> Lowered {
    let a = floats(cx, c, 0, "self")?;
    Ok(vec![exponential_unit(cx, a, 1.6732632423543772, 1.0507009873554805, 1.0)])
}

/// The argument of the tanh form of GELU: √(2/π)·(a + 0.044715·a³).
fn gelu_inner(cx: &mut Cx, a: ExprId) -> ExprId {
    let square = mul(cx, a, a);
    let cube = mul(cx, square, a);
    let cube = scale(cx, cube, GELU_CUBIC);
    let sum = add(cx, a, cube);
    scale(cx, sum, SQRT_2_OVER_PI)
}

/// The normal distribution's cumulative function.
fn normal_cdf(cx: &mut Cx, a: ExprId) -> ExprId {
    let scaled = scale(cx, a, SQRT_HALF);
    let erf = cx.unary(UnaryOp::Erf, scaled);
    let shifted = offset(cx, erf, 1.0);
    scale(cx, shifted, 0.5)
}

fn gelu(cx: &mut Cx, c: &Call) -> Lowered {
    let a = floats(cx, c, 0, "self")?;
    if c.str_or(1, "approximate", "none")? == "tanh" {
        let inner = gelu_inner(cx, a);
        let tanh = cx.unary(UnaryOp::Tanh, inner);
        let shifted = offset(cx, tanh, 1.0);
        let half = scale(cx, a, 0.5);
        return Ok(vec![mul(cx, half, shifted)]);
    }
    let cdf = normal_cdf(cx, a);
    Ok(vec![mul(cx, a, cdf)])
}

fn silu(cx: &mut Cx, c: &Call) -> Lowered {
    let a = floats(cx, c, 0, "self")?;
    let sigmoid = cx.unary(UnaryOp::Sigmoid, a);
    Ok(vec![mul(cx, a, sigmoid)])
}

fn mish(cx: &mut Cx, c: &Call) -> Lowered {
    let a = floats(cx, c, 0, "self")?;
    let exp = cx.unary(UnaryOp::Exp, a);
    let log = cx.unary(UnaryOp::Log1p, exp);
    let tanh = cx.unary(UnaryOp::Tanh, log);
    Ok(vec![mul(cx, a, tanh)])
}

fn softplus(cx: &mut Cx, c: &Call) -> Lowered {
    let a = floats(cx, c, 0, "self")?;
    let beta = c.float_or(1, "beta", 1.0)?;
    let limit = c.float_or(2, "threshold", 20.0)?;
    let scaled = scale(cx, a, beta);
    let linear = compare(cx, BinaryOp::Gt, scaled, limit);
    let exp = cx.unary(UnaryOp::Exp, scaled);
    let log = cx.unary(UnaryOp::Log1p, exp);
    let beta = cx.float(beta, a);
    let curve = cx.binary(BinaryOp::Div, log, beta);
    Ok(vec![cx.choose(linear, a, curve)])
}

/// `min(a, 0) - log1p(exp(-|a|))`; its second result, `exp(-|a|)` on some devices, is for the library's gradient.
fn log_sigmoid(cx: &mut Cx, c: &Call) -> Lowered {
    let a = floats(cx, c, 0, "self")?;
    let zero = cx.float(0.0, a);
    let low = cx.binary(BinaryOp::Min, a, zero);
    let magnitude = cx.unary(UnaryOp::Abs, a);
    let minus = cx.unary(UnaryOp::Neg, magnitude);
    let exp = cx.unary(UnaryOp::Exp, minus);
    let log = cx.unary(UnaryOp::Log1p, exp);
    Ok(vec![cx.binary(BinaryOp::Sub, low, log)])
}

fn hardtanh(cx: &mut Cx, c: &Call) -> Lowered {
    let a = floats(cx, c, 0, "self")?;
    let low = c.float_or(1, "min_val", -1.0)?;
    let high = c.float_or(2, "max_val", 1.0)?;
    Ok(vec![between(cx, a, low, high)])
}

/// `min(max(a + 3, 0), 6) / 6`.
fn hard_gate(cx: &mut Cx, a: ExprId) -> ExprId {
    let shifted = offset(cx, a, 3.0);
    let cut = between(cx, shifted, 0.0, 6.0);
    let six = cx.float(6.0, a);
    cx.binary(BinaryOp::Div, cut, six)
}

fn hardsigmoid(cx: &mut Cx, c: &Call) -> Lowered {
    let a = floats(cx, c, 0, "self")?;
    Ok(vec![hard_gate(cx, a)])
}

fn hardswish(cx: &mut Cx, c: &Call) -> Lowered {
    let a = floats(cx, c, 0, "self")?;
    let gate = hard_gate(cx, a);
    Ok(vec![mul(cx, a, gate)])
}

fn threshold(cx: &mut Cx, c: &Call) -> Lowered {
    let a = argument(cx, c, 0, "self")?;
    let (dtype, shape) = (cx.dtype(a), cx.shape(a));
    let limit = cx.constant(c.scalar(1, "threshold")?, dtype, &shape);
    let value = cx.constant(c.scalar(2, "value")?, dtype, &shape);
    let low = cx.binary(BinaryOp::Le, a, limit);
    Ok(vec![cx.choose(low, value, a)])
}

/// Zero within `lambd` of zero; NaN stays.
fn hardshrink(cx: &mut Cx, c: &Call) -> Lowered {
    let a = floats(cx, c, 0, "self")?;
    let limit = c.float_or(1, "lambd", 0.5)?;
    let magnitude = cx.unary(UnaryOp::Abs, a);
    let small = compare(cx, BinaryOp::Le, magnitude, limit);
    let zero = cx.float(0.0, a);
    Ok(vec![cx.choose(small, zero, a)])
}

/// As `hardshrink`, with the rest moved towards zero.
fn softshrink(cx: &mut Cx, c: &Call) -> Lowered {
    let a = floats(cx, c, 0, "self")?;
    let limit = c.float_or(1, "lambd", 0.5)?;
    let magnitude = cx.unary(UnaryOp::Abs, a);
    let small = compare(cx, BinaryOp::Le, magnitude, limit);
    let zero = cx.float(0.0, a);
    let positive = compare(cx, BinaryOp::Gt, a, 0.0);
    let lower = offset(cx, a, -limit);
    let higher = offset(cx, a, limit);
    let moved = cx.choose(positive, lower, higher);
    Ok(vec![cx.choose(small, zero, moved)])
}

/// `log(a / (1 - a))`.
fn logit(cx: &mut Cx, c: &Call) -> Lowered {
    let mut a = floats(cx, c, 0, "self")?;
    if let Some(eps) = c.opt_scalar(1, "eps")? {
        a = between(cx, a, eps.to_f64(), 1.0 - eps.to_f64());
    }
    let rest = one_minus(cx, a);
    let odds = cx.binary(BinaryOp::Div, a, rest);
    Ok(vec![cx.unary(UnaryOp::Log, odds)])
}

/// The first half along a dimension times the sigmoid of the second.
fn glu(cx: &mut Cx, c: &Call) -> Lowered {
    let a = cx.tensor(c, 0, "self")?;
    let shape = cx.shape(a);
    if shape.is_empty() || !cx.dtype(a).is_float() {
        return Err(Refusal::Extern);
    }
    let dim = c.dim_or(1, "dim", -1, shape.len())?;
    let half = shape[dim].div_exact(Size::from(2)).ok_or(Refusal::Extern)?;
    let value = cx.slice(a, dim, Size::ZERO, half, Size::ONE);
    let gate = cx.slice(a, dim, half, half, Size::ONE);
    let gate = cx.unary(UnaryOp::Sigmoid, gate);
    Ok(vec![mul(cx, value, gate)])
}

fn threshold_backward(cx: &mut Cx, c: &Call) -> Lowered {
    let gradient = argument(cx, c, 0, "grad_output")?;
    let a = argument(cx, c, 1, "self")?;
    let (dtype, shape) = (cx.dtype(a), cx.shape(a));
    let limit = cx.constant(c.scalar_or(2, "threshold", Scalar::Int(0))?, dtype, &shape);
    let low = cx.binary(BinaryOp::Le, a, limit);
    let zero = cx.int(0, a);
    Ok(vec![cx.choose(low, zero, gradient)])
}

fn one_minus(cx: &mut Cx, a: ExprId) -> ExprId {
    let one = cx.float(1.0, a);
    cx.binary(BinaryOp::Sub, one, a)
}

/// `g·y·(1 - y)`.
fn sigmoid_backward(cx: &mut Cx, c: &Call) -> Lowered {
    let gradient = floats(cx, c, 0, "grad_output")?;
    let y = floats(cx, c, 1, "output")?;
    let rest = one_minus(cx, y);
    let slope = mul(cx, y, rest);
    Ok(vec![mul(cx, gradient, slope)])
}

/// `g·(1 - y²)`.
fn tanh_backward(cx: &mut Cx, c: &Call) -> Lowered {
    let gradient = floats(cx, c, 0, "grad_output")?;
    let y = floats(cx, c, 1, "output")?;
    let square = mul(cx, y, y);
    let slope = one_minus(cx, square);
    Ok(vec![mul(cx, gradient, slope)])
}

fn gelu_backward(cx: &mut Cx, c: &Call) -> Lowered {
    let gradient = floats(cx, c, 0, "grad_output")?;
    let a = floats(cx, c, 1, "self")?;
    if c.str_or(2, "approximate", "none")? == "tanh" {
        let inner = gelu_inner(cx, a);
        let tanh = cx.unary(UnaryOp::Tanh, inner);
        let left = scale(cx, a, 0.5);
        let right = offset(cx, tanh, 1.0);
        let right_half = scale(cx, right, 0.5);
        let tanh_square = mul(cx, tanh, tanh);
        let tanh_slope = one_minus(cx, tanh_square);
        let square = mul(cx, a, a);
        let inner_slope = scale(cx, square, 3.0 * GELU_CUBIC);
        let inner_slope = offset(cx, inner_slope, 1.0);
        let inner_slope = scale(cx, inner_slope, SQRT_2_OVER_PI);
        let curve = mul(cx, left, tanh_slope);
        let curve = mul(cx, curve, inner_slope);
        let slope = add(cx, right_half, curve);
        return Ok(vec![mul(cx, gradient, slope)]);
    }
    let cdf = normal_cdf(cx, a);
    let square = mul(cx, a, a);
    let exponent = scale(cx, square, -0.5);
    let exp = cx.unary(UnaryOp::Exp, exponent);
    let density = scale(cx, exp, std::f64::consts::FRAC_2_SQRT_PI * SQRT_HALF * 0.5);
    let weighted = mul(cx, a, density);
    let slope = add(cx, cdf, weighted);
    Ok(vec![mul(cx, gradient, slope)])
}

/// `g·s·(1 + a·(1 - s))`.
fn silu_backward(cx: &mut Cx, c: &Call) -> Lowered {
    let gradient = floats(cx, c, 0, "grad_output")?;
    let a = floats(cx, c, 1, "self")?;
    let sigmoid = cx.unary(UnaryOp::Sigmoid, a);
    let rest = one_minus(cx, sigmoid);
    let bend = mul(cx, a, rest);
    let bend = offset(cx, bend, 1.0);
    let slope = mul(cx, sigmoid, bend);
    Ok(vec![mul(cx, gradient, slope)])
}

fn leaky_relu_backward(cx: &mut Cx, c: &Call) -> Lowered {
    let gradient = floats(cx, c, 0, "grad_output")?;
    let a = floats(cx, c, 1, "self")?;
    let slope = c.float_or(2, "negative_slope", 0.01)?;
    let positive = compare(cx, BinaryOp::Gt, a, 0.0);
    let small = scale(cx, gradient, slope);
    Ok(vec![cx.choose(positive, gradient, small)])
}

fn elu_backward(cx: &mut Cx, c: &Call) -> Lowered {
    let gradient = floats(cx, c, 0, "grad_output")?;
    let alpha = c.float_or(1, "alpha", 1.0)?;
    let outer = c.float_or(2, "scale", 1.0)?;
    let input_scale = c.float_or(3, "input_scale", 1.0)?;
    let is_result = c.bool_or(4, "is_result", false)?;
    let a = floats(cx, c, 5, "self_or_result")?;
    let negative = compare(cx, BinaryOp::Le, a, 0.0);
    let curve = if is_result {
        let shifted = offset(cx, a, alpha * outer);
        scale(cx, shifted, input_scale)
    } else {
        let scaled = scale(cx, a, input_scale);
        let exp = cx.unary(UnaryOp::Exp, scaled);
        scale(cx, exp, alpha * outer * input_scale)
    };
    let curve = mul(cx, gradient, curve);
    let line = scale(cx, gradient, outer);
    Ok(vec![cx.choose(negative, curve, line)])
}

fn softplus_backward(cx: &mut Cx, c: &Call) -> Lowered {
    let gradient = floats(cx, c, 0, "grad_output")?;
    let a = floats(cx, c, 1, "self")?;
    let beta = c.float_or(2, "beta", 1.0)?;
    let limit = c.float_or(3, "threshold", 20.0)?;
    let scaled = scale(cx, a, beta);
    let linear = compare(cx, BinaryOp::Gt, scaled, limit);
    let sigmoid = cx.unary(UnaryOp::Sigmoid, scaled);
    let curve = mul(cx, gradient, sigmoid);
    Ok(vec![cx.choose(linear, gradient, curve)])
}

fn hardtanh_backward(cx: &mut Cx, c: &Call) -> Lowered {
    let gradient = floats(cx, c, 0, "grad_output")?;
    let a = floats(cx, c, 1, "self")?;
    let low = c.float_or(2, "min_val", -1.0)?;
    let high = c.float_or(3, "max_val", 1.0)?;
    let active = inside(cx, a, low, high);
    let zero = cx.float(0.0, gradient);
    Ok(vec![cx.choose(active, gradient, zero)])
}

fn hardsigmoid_backward(cx: &mut Cx, c: &Call) -> Lowered {
    let gradient = floats(cx, c, 0, "grad_output")?;
    let a = floats(cx, c, 1, "self")?;
    let active = inside(cx, a, -3.0, 3.0);
    let slope = scale(cx, gradient, 1.0 / 6.0);
    let zero = cx.float(0.0, gradient);
    Ok(vec![cx.choose(active, slope, zero)])
}

/// Slope 0 up to -3, `a/3 + 1/2` up to 3, then 1.
fn hardswish_backward(cx: &mut Cx, c: &Call) -> Lowered {
    let gradient = floats(cx, c, 0, "grad_output")?;
    let a = floats(cx, c, 1, "self")?;
    let flat = compare(cx, BinaryOp::Le, a, -3.0);
    let bent = compare(cx, BinaryOp::Lt, a, 3.0);
    let three = cx.float(3.0, a);
    let third = cx.binary(BinaryOp::Div, a, three);
    let slope = offset(cx, third, 0.5);
    let curve = mul(cx, gradient, slope);
    let zero = cx.float(0.0, gradient);
    let upper = cx.choose(bent, curve, gradient);
    Ok(vec![cx.choose(flat, zero, upper)])
}

fn dropout_backward(cx: &mut Cx, c: &Call) -> Lowered {
    let gradient = floats(cx, c, 0, "grad_output")?;
    let mask = floats(cx, c, 1, "mask")?;
    let factor = c.float_or(2, "scale", 1.0)?;
    let masked = mul(cx, gradient, mask);
    Ok(vec![scale(cx, masked, factor)])
}
