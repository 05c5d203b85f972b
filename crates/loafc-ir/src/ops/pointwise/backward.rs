//! Elementwise gradients that PyTorch has operators for.

use super::activation::is_tanh;
use super::{Accepts, Types, float, zip};
use crate::dtype::Scalar;
use crate::ops::OpDef;

const GRAD_SELF: &[(usize, &str)] = &[(0, "grad_output"), (1, "self")];
const GRAD_OUTPUT: &[(usize, &str)] = &[(0, "grad_output"), (1, "output")];

pub(super) const OPS: &[OpDef] = &[
    zip(
        "aten.threshold_backward.default",
        "grad_output, self, threshold",
        GRAD_SELF,
        Types::Promote,
        Accepts::Numbers,
        |c, d, x| {
            let below = x[1].to_f64() <= c.scalar(2, "threshold")?.to_f64();
            Ok(if below { crate::interp::scalar::zero(d) } else { x[0] })
        },
    ),
    zip(
        "aten.sigmoid_backward.default",
        "grad_output, output",
        GRAD_OUTPUT,
        Types::Promote,
        Accepts::Floats,
        |_, d, x| float(d, x[0].to_f64() * (1.0 - x[1].to_f64()) * x[1].to_f64()),
    ),
    zip(
        "aten.tanh_backward.default",
        "grad_output, output",
        GRAD_OUTPUT,
        Types::Promote,
        Accepts::Floats,
        |_, d, x| float(d, x[0].to_f64() * (1.0 - x[1].to_f64() * x[1].to_f64())),
    ),
    zip(
        "aten.silu_backward.default",
        "grad_output, self",
        GRAD_SELF,
        Types::Promote,
        Accepts::Floats,
        |_, d, x| {
            let sigmoid = 1.0 / (1.0 + (-x[1].to_f64()).exp());
            float(d, x[0].to_f64() * sigmoid * (1.0 + x[1].to_f64() * (1.0 - sigmoid)))
        },
    ),
    zip(
        "aten.leaky_relu_backward.default",
        "grad_output, self, negative_slope, self_is_result",
        GRAD_SELF,
        Types::Promote,
        Accepts::Floats,
        |c, d, x| {
            let slope = c.scalar(2, "negative_slope")?.to_f64();
            float(d, if x[1].to_f64() > 0.0 { x[0].to_f64() } else { x[0].to_f64() * slope })
        },
    ),
    zip(
        "aten.hardtanh_backward.default",
        "grad_output, self, min_val, max_val",
        GRAD_SELF,
        Types::Promote,
        Accepts::Floats,
        |c, _, x| {
            let (low, high) = (c.scalar(2, "min_val")?.to_f64(), c.scalar(3, "max_val")?.to_f64());
            let outside = x[1].to_f64() <= low || x[1].to_f64() >= high;
            Ok(if outside { Scalar::Float(0.0) } else { x[0] })
        },
    ),
    zip(
        "aten.gelu_backward.default",
        "grad_output, self, *, approximate",
        GRAD_SELF,
        Types::Promote,
        Accepts::Floats,
        |c, d, x| float(d, x[0].to_f64() * gelu_slope(x[1].to_f64(), is_tanh(c)?)),
    ),
];

fn gelu_slope(x: f64, tanh: bool) -> f64 {
    use std::f64::consts::{FRAC_1_SQRT_2, PI};
    if tanh {
        let beta = (2.0 / PI).sqrt();
        let t = (beta * (x + 0.044715 * x * x * x)).tanh();
        0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * beta * (1.0 + 3.0 * 0.044715 * x * x)
    } else {
        0.5 * libm::erfc(-x * FRAC_1_SQRT_2) + x * (-0.5 * x * x).exp() / (2.0 * PI).sqrt()
    }
}
