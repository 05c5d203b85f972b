//! sinh, cosh, tanh and their inverses.

use super::coefficients as c;
use super::exp::{exp_f32_normal, exp_short, half_exp};
use super::lanes::{Float, Width};
use super::log::{log_of_pair, log_short, log1p_of_pair};
use super::pair::{Pair, fast_two_sum, two_product, two_sum};

/// Above this, x² + 1 is x² and might overflow; the result is then ln 2x.
const LARGE: f64 = 1_073_741_824.0;

/// (e^x - e^-x)/2.
pub(super) fn sinh<'e, 'ctx>(x: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    if x.width == Width::F32 {
        return sinh_f32(x);
    }
    let magnitude = x.abs();
    let half = half_exp(magnitude);
    let large = (half - x.constant(0.25) / half).copysign(x);
    let z = x * x;
    let small = (x * z).fma(z.polynomial(&c::SINH), x);
    magnitude.lt(1.0).select(small, large)
}

fn sinh_f32<'e, 'ctx>(x: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    let wide = x.abs().widen();
    let power = exp_short(wide.at_most(90.0));
    let large = (power - x.widen().constant(1.0) / power) * 0.5;
    let z = x * x;
    let small = (x * z).fma(z.polynomial(&c::SINH_F32), x);
    x.abs().lt(1.0).select(small, large.narrow().copysign(x))
}

/// (e^x + e^-x)/2.
pub(super) fn cosh<'e, 'ctx>(x: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    if x.width == Width::F32 {
        let power = exp_short(x.abs().widen().at_most(90.0));
        return ((power + power.constant(1.0) / power) * 0.5).narrow();
    }
    let half = half_exp(x.abs());
    half + x.constant(0.25) / half
}

/// `base + top/bottom`, with one division for both ranges: `x + x³·P/Q` or `1 - 2/(e^2x + 1)`.
pub(super) fn tanh<'e, 'ctx>(x: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    let magnitude = x.abs();
    let z = x * x;
    let one = x.constant(1.0);
    match x.width {
        Width::F32 => {
            let grown = exp_f32_normal(magnitude.at_most(10.0) * 2.0);
            let large = (one - x.constant(2.0) / (grown + 1.0)).copysign(x);
            let small = (x * z).fma(z.polynomial(&c::TANH_F32), x);
            // NaN comes out of the range that is no exponential's.
            magnitude.ge(0.65).select(large, small)
        }
        Width::F64 => {
            let grown = half_exp(magnitude.at_most(20.0) * 2.0);
            let small = magnitude.lt(1.0);
            let top = small.select(magnitude * z * z.polynomial(&c::TANH_TOP), -one);
            let bottom = small.select(z.polynomial(&c::TANH_BOTTOM), grown + 0.5);
            (small.select(magnitude, one) + top / bottom).copysign(x)
        }
    }
}

/// ln(x + √(x² + 1)).
pub(super) fn asinh<'e, 'ctx>(x: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    if x.width == Width::F32 {
        return asinh_f32(x);
    }
    let magnitude = x.abs();
    let z = x * x;
    let small = (magnitude * z).fma(z.polynomial(&c::ASINH), magnitude);
    let large = log_of_root(magnitude, x.constant(1.0));
    let value = magnitude.lt(0.5).select(small, large);
    finite_or_same(magnitude, value).copysign(x)
}

fn asinh_f32<'e, 'ctx>(x: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    let wide = x.abs().widen();
    let z = wide * wide;
    let small = (wide * z).fma(z.polynomial(&c::ASINH), wide);
    let large = log_short(wide + (z + 1.0).sqrt());
    let value = wide.lt(0.5).select(small, large);
    finite_or_same(wide, value).narrow().copysign(x)
}

/// x where it is infinite or NaN.
fn finite_or_same<'e, 'ctx>(x: Float<'e, 'ctx>, value: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    x.abs().lt(f64::INFINITY).select(value, x)
}

/// ln(x + √(x² + one)) of x ≥ 0.5 with `one` being ±1.
fn log_of_root<'e, 'ctx>(x: Float<'e, 'ctx>, one: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    let large = x.gt(LARGE);
    let square = two_product(x, x);
    let radicand = two_sum(square.high, one);
    let radicand = Pair { high: radicand.high, low: radicand.low + square.low };
    let sum = two_sum(x, radicand.high.sqrt());
    let low = sum.low + sqrt_rest(radicand);
    let (high, low) = (large.select(x, sum.high), large.select(0.0, low));
    log_of_pair(Pair { high, low }) + large.choose(std::f64::consts::LN_2, 0.0, x)
}

/// What rounding took from the root of a positive pair.
fn sqrt_rest<'e, 'ctx>(x: Pair<'e, 'ctx>) -> Float<'e, 'ctx> {
    let root = x.high.sqrt();
    ((-root).fma(root, x.high) + x.low) / (root + root)
}

/// ln(x + √(x² - 1)); near 1 as ln(1 + t + √(2t + t²)) with t = x - 1.
pub(super) fn acosh<'e, 'ctx>(x: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    if x.width == Width::F32 {
        // In f64, where x² - 1 is exact and what the root adds to x keeps its precision.
        let wide = x.widen();
        let value = log_short(wide + wide.fma(wide, wide.constant(-1.0)).sqrt());
        let value = finite_or_same(wide, value).narrow();
        return x.ge(1.0).select(value, x.constant(f64::NAN));
    }
    let t = x - 1.0;
    let square = two_product(t, t);
    let radicand = fast_two_sum(t + t, square.high);
    let radicand = Pair { high: radicand.high, low: radicand.low + square.low };
    let root = radicand.high.sqrt();
    let rest = radicand.high.gt(0.0).select(sqrt_rest(radicand), x.constant(0.0));
    let sum = two_sum(root, t);
    let near = log1p_of_pair(Pair { high: sum.high, low: sum.low + rest });
    let far = log_of_root(x, x.constant(-1.0));
    let value = x.lt(2.0).select(near, far);
    let value = x.eq(1.0).select(0.0, value);
    x.ge(1.0).select(finite_or_same(x, value), x.constant(f64::NAN))
}

/// ln((1+x)/(1-x))/2.
pub(super) fn atanh<'e, 'ctx>(x: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    if x.width == Width::F32 {
        return atanh_f32(x);
    }
    let magnitude = x.abs();
    let divisor = two_sum(x.constant(1.0), -magnitude);
    let ratio = Pair::of(magnitude * 2.0).over(divisor);
    let value = log1p_of_pair(ratio) * 0.5;
    let value = magnitude.lt(1e-150).select(magnitude, value);
    let limit = magnitude.eq(1.0).choose(f64::INFINITY, f64::NAN, x);
    magnitude.lt(1.0).select(value, limit).copysign(x)
}

/// Through f64: the logarithm of (1+x)/(1-x) keeps precision enough down to where two terms of the series do.
fn atanh_f32<'e, 'ctx>(x: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    let wide = x.abs().widen();
    let one = wide.constant(1.0);
    let large = log_short((one + wide) / (one - wide)) * 0.5;
    let small = (wide * wide).fma(wide * (1.0 / 3.0), wide);
    let value = wide.lt(1.0 / 1024.0).select(small, large);
    let limit = wide.eq(1.0).choose(f64::INFINITY, f64::NAN, wide);
    wide.lt(1.0).select(value, limit).narrow().copysign(x)
}
