//! Elementwise activation functions of neural networks. Each is computed in f64 and rounded once.

use super::{Accepts, Types, float, map, zip};
use crate::dtype::Scalar;
use crate::ops::OpDef;
use crate::ops::call::{Call, KEYWORD};
use crate::ops::eval::Fault;

pub(super) const OPS: &[OpDef] = &[
    map("aten.relu.default", "self", Types::Promote, Accepts::Numbers, |_, d, x| {
        Ok(crate::interp::scalar::binary(
            crate::nest::BinaryOp::Max,
            d,
            x[0],
            crate::interp::scalar::zero(d),
        )?)
    }),
    map("aten.relu6.default", "self", Types::Promote, Accepts::Numbers, |_, d, x| match d {
        d if d.is_float() => float(d, clip(x[0].to_f64(), 0.0, 6.0)),
        _ => Ok(Scalar::Int(x[0].to_i64().clamp(0, 6))),
    }),
    map("aten.gelu.default", "self, *, approximate", Types::Promote, Accepts::Floats, |c, d, x| {
        let approximate = is_tanh(c)?;
        float(d, gelu(x[0].to_f64(), approximate))
    }),
    map("aten.silu.default", "self", Types::Float, Accepts::All, |_, d, x| {
        float(d, x[0].to_f64() / (1.0 + (-x[0].to_f64()).exp()))
    }),
    map("aten.mish.default", "self", Types::Promote, Accepts::Floats, |_, d, x| {
        float(d, x[0].to_f64() * softplus(x[0].to_f64(), 1.0, f64::INFINITY).tanh())
    }),
    map("aten.hardtanh.default", "self, min_val, max_val", Types::Promote, Accepts::Floats, |c, d, x| {
        let (low, high) = (c.float_or(1, "min_val", -1.0)?, c.float_or(2, "max_val", 1.0)?);
        float(d, clip(x[0].to_f64(), low, high))
    }),
    map("aten.hardsigmoid.default", "self", Types::Promote, Accepts::Floats, |_, d, x| {
        float(d, clip(x[0].to_f64() + 3.0, 0.0, 6.0) / 6.0)
    }),
    map("aten.hardswish.default", "self", Types::Promote, Accepts::Floats, |_, d, x| {
        float(d, x[0].to_f64() * clip(x[0].to_f64() + 3.0, 0.0, 6.0) / 6.0)
    }),
    map("aten.leaky_relu.default", "self, negative_slope", Types::Promote, Accepts::Floats, |c, d, x| {
        let (value, slope) = (x[0].to_f64(), c.float_or(1, "negative_slope", 0.01)?);
        float(d, if value > 0.0 { value } else { value * slope })
    }),
    map("aten.elu.default", "self, alpha, scale, input_scale", Types::Promote, Accepts::Floats, |c, d, x| {
        let (alpha, scale) = (c.float_or(1, "alpha", 1.0)?, c.float_or(2, "scale", 1.0)?);
        let (value, input_scale) = (x[0].to_f64(), c.float_or(3, "input_scale", 1.0)?);
        float(d, if value <= 0.0 { (value * input_scale).exp_m1() * alpha * scale } else { value * scale })
    }),
    map("aten.celu.default", "self, alpha", Types::Promote, Accepts::Floats, |c, d, x| {
        let (value, alpha) = (x[0].to_f64(), c.float_or(1, "alpha", 1.0)?);
        float(d, if value > 0.0 { value } else { (value / alpha).exp_m1() * alpha })
    }),
    map("aten.selu.default", "self", Types::Promote, Accepts::Floats, |_, d, x| {
        let value = x[0].to_f64();
        float(d, SELU_SCALE * if value > 0.0 { value } else { value.exp_m1() * SELU_ALPHA })
    }),
    map("aten.softplus.default", "self, beta, threshold", Types::Promote, Accepts::Floats, |c, d, x| {
        let (beta, threshold) = (c.float_or(1, "beta", 1.0)?, c.float_or(2, "threshold", 20.0)?);
        float(d, softplus(x[0].to_f64(), beta, threshold))
    }),
    map("aten.softshrink.default", "self, lambd", Types::Promote, Accepts::Floats, |c, d, x| {
        let (value, lambda) = (x[0].to_f64(), c.float_or(1, "lambd", 0.5)?);
        let shrunk = if value > lambda {
            value - lambda
        } else if value < -lambda {
            value + lambda
        } else if value.is_nan() {
            value
        } else {
            0.0
        };
        float(d, shrunk)
    }),
    map("aten.hardshrink.default", "self, lambd", Types::Promote, Accepts::Floats, |c, d, x| {
        let (value, lambda) = (x[0].to_f64(), c.float_or(1, "lambd", 0.5)?);
        float(d, if value.abs() <= lambda { 0.0 } else { value })
    }),
    map("aten.threshold.default", "self, threshold, value", Types::Promote, Accepts::Numbers, |c, d, x| {
        let below = x[0].to_f64() <= c.scalar(1, "threshold")?.to_f64();
        Ok(if below { crate::interp::scalar::constant(c.scalar(2, "value")?, d) } else { x[0] })
    }),
    map("aten.logit.default", "self, eps", Types::Float, Accepts::All, |c, d, x| {
        let value = match c.opt_scalar(1, "eps")? {
            Some(eps) => clip(x[0].to_f64(), eps.to_f64(), 1.0 - eps.to_f64()),
            None => x[0].to_f64(),
        };
        float(d, (value / (1.0 - value)).ln())
    }),
    map("aten.log_sigmoid.default", "self", Types::Promote, Accepts::Floats, |_, d, x| {
        let value = x[0].to_f64();
        float(d, value.min(0.0) - (-value.abs()).exp().ln_1p())
    }),
    zip(
        "aten._prelu_kernel.default",
        "self, weight",
        &[(0, "self"), (1, "weight")],
        Types::Promote,
        Accepts::Floats,
        |_, d, x| {
            let value = x[0].to_f64();
            float(d, if value > 0.0 { value } else { value * x[1].to_f64() })
        },
    ),
];

const SELU_ALPHA: f64 = 1.673_263_242_354_377_2;
const SELU_SCALE: f64 = 1.050_700_987_355_480_5;

/// Whether gelu is to be computed by its tanh approximation.
pub(super) fn is_tanh(call: &Call) -> Result<bool, Fault> {
    match call.str_or(KEYWORD, "approximate", "none")? {
        "none" => Ok(false),
        "tanh" => Ok(true),
        other => {
            let message = format!("{other:?} is not an approximation of gelu; use \"none\" or \"tanh\"");
            Err(call.invalid("approximate", message).into())
        }
    }
}

fn gelu(x: f64, tanh: bool) -> f64 {
    if tanh {
        let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
        0.5 * x * (1.0 + inner.tanh())
    } else {
        0.5 * x * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2)
    }
}

/// NaN stays NaN.
fn clip(x: f64, low: f64, high: f64) -> f64 {
    if x.is_nan() { x } else { x.max(low).min(high) }
}

fn softplus(x: f64, beta: f64, threshold: f64) -> f64 {
    if x * beta > threshold {
        return x;
    }
    // ln(1 + e^z) without overflow for large z.
    let z = x * beta;
    (z.max(0.0) + (-z.abs()).exp().ln_1p()) / beta
}
