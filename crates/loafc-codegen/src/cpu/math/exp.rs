//! Exponentials: exp, exp2, expm1, sigmoid, and the core that the hyperbolic functions, erfc and pow share.
//!
//! The argument is reduced to `2j·ln 2 + r` with |r| ≤ ln 2; the result is scaled by 2^j twice, so that one rounding
//! makes denormals, and infinity comes by itself. Halving the exponent costs one coefficient and saves the integer
//! operations that splitting it would take.

use super::coefficients as c;
use super::lanes::{Float, Width};
use super::pair::{Pair, fast_two_sum, two_product};

/// Largest and smallest arguments at which anything still changes: beyond them lie infinity and zero.
fn exp_range(width: Width) -> (f64, f64) {
    match width {
        Width::F32 => (-104.0, 89.0),
        Width::F64 => (-746.0, 710.0),
    }
}

/// `x·factor` rounded to the integer j, and 2^j; |j| must be less than half the exponent range.
fn halved_exponent<'e, 'ctx>(x: Float<'e, 'ctx>, factor: f64) -> (Float<'e, 'ctx>, Float<'e, 'ctx>) {
    let magic = x.width.round_magic() + x.width.bias() as f64;
    let shifted = x.fma(factor, x.constant(magic));
    (shifted - magic, (shifted.bits() << x.width.significand_bits()).as_float())
}

/// `e^x = (1 + tail)·scale²`.
pub(super) struct Reduced<'e, 'ctx> {
    /// e^r - 1.
    pub(super) tail: Float<'e, 'ctx>,
    /// 2^j.
    pub(super) scale: Float<'e, 'ctx>,
}

/// Reduces an f64 argument in range; `low` is added to it.
fn reduce<'e, 'ctx>(x: Float<'e, 'ctx>, low: Option<Float<'e, 'ctx>>) -> Reduced<'e, 'ctx> {
    let (j, scale) = halved_exponent(x, 0.5 * c::LOG2_E[0]);
    let high = j.fma(-2.0 * c::LN2[0], x);
    let small = j * (2.0 * c::LN2[1]);
    let r = high - small;
    let mut rest = (high - r) - small;
    if let Some(low) = low {
        rest = rest + low;
    }
    let rest = rest.fma(r, rest);
    Reduced { tail: r + (r * r).fma(r.polynomial(&c::EXP), rest), scale }
}

/// Clamps an f64 argument to where its exponential is neither zero nor infinite by much; NaN stays.
fn clamp<'e, 'ctx>(x: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    let (low, high) = exp_range(x.width);
    x.at_least(low).at_most(high)
}

/// e^x.
pub(super) fn exp<'e, 'ctx>(x: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    let (power, scale) = match x.width {
        Width::F32 => exp_f32(clamp(x)),
        Width::F64 => {
            let reduced = reduce(clamp(x), None);
            (reduced.tail + 1.0, reduced.scale)
        }
    };
    power * scale * scale
}

/// e^x/2, which is finite a little longer than e^x. For x ≥ 0.
pub(super) fn half_exp<'e, 'ctx>(x: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    let reduced = reduce(x.at_most(711.0), None);
    (reduced.tail + 1.0) * reduced.scale * (reduced.scale * 0.5)
}

/// e^(high+low) as a sum, for f64 arguments that are neither NaN nor out of range: not denormal.
pub(super) fn exp_pair<'e, 'ctx>(x: Pair<'e, 'ctx>) -> Pair<'e, 'ctx> {
    let reduced = reduce(x.high, Some(x.low));
    let power = fast_two_sum(reduced.tail.constant(1.0), reduced.tail);
    let square = reduced.scale * reduced.scale;
    Pair { high: power.high * square, low: power.low * square }
}

/// e^(high+low), rounded; any f64.
pub(super) fn exp_of_pair<'e, 'ctx>(x: Pair<'e, 'ctx>) -> Float<'e, 'ctx> {
    let high = clamp(x.high);
    let low = high.eq(x.high).select(x.low, high.constant(0.0));
    let reduced = reduce(high, Some(low));
    (reduced.tail + 1.0) * reduced.scale * reduced.scale
}

/// `(e^r, 2^j)` of an f32 argument in range.
fn exp_f32<'e, 'ctx>(x: Float<'e, 'ctx>) -> (Float<'e, 'ctx>, Float<'e, 'ctx>) {
    let (j, scale) = halved_exponent(x, 0.5 * c::LOG2_E[0]);
    let r = j.fma(-2.0 * c::LN2_F32[0], x);
    let r = j.fma(-2.0 * c::LN2_F32[1], r);
    (r.polynomial(&c::EXP_F32).fma(r, x.constant(1.0)), scale)
}

/// e^x of an f32 between -87 and 88, where no scaling can go wrong.
pub(super) fn exp_f32_normal<'e, 'ctx>(x: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    let magic = x.width.round_magic();
    let shifted = x.fma(c::LOG2_E[0], x.constant(magic));
    let k = shifted - magic;
    let r = k.fma(-c::LN2_F32[0], x);
    let r = k.fma(-c::LN2_F32[1], r);
    let power = r.polynomial(&c::EXP_HALF_F32).fma(r, x.constant(1.0));
    (power.bits() + (shifted.bits() << 23)).as_float()
}

/// e^x of an f64 in range, precise enough for a result in f32.
pub(super) fn exp_short<'e, 'ctx>(x: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    let (j, scale) = halved_exponent(x, 0.5 * c::LOG2_E[0]);
    let r = j.fma(-2.0 * c::LN2[0], x);
    let r = j.fma(-2.0 * c::LN2[1], r);
    r.polynomial(&c::EXP_SHORT).fma(r, x.constant(1.0)) * scale * scale
}

/// 2^x.
pub(super) fn exp2<'e, 'ctx>(x: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    match x.width {
        Width::F32 => {
            let x = x.at_least(-151.0).at_most(129.0);
            let (j, scale) = halved_exponent(x, 0.5);
            let f = j.fma(-2.0, x);
            f.polynomial(&c::EXP2_F32).fma(f, x.constant(1.0)) * scale * scale
        }
        Width::F64 => {
            let x = x.at_least(-1076.0).at_most(1025.0);
            let (j, scale) = halved_exponent(x, 0.5);
            let r = two_product(j.fma(-2.0, x), x.constant(c::LN2_NEAREST[0]));
            let f = j.fma(-2.0, x);
            let rest = f.fma(c::LN2_NEAREST[1], r.low);
            let rest = rest.fma(r.high, rest);
            let tail = r.high + (r.high * r.high).fma(r.high.polynomial(&c::EXP), rest);
            (tail + 1.0) * scale * scale
        }
    }
}

/// e^x - 1.
pub(super) fn expm1<'e, 'ctx>(x: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    let bounded = match x.width {
        Width::F32 => x.at_least(-20.0).at_most(89.0),
        Width::F64 => x.at_least(-40.0).at_most(710.0),
    };
    let (tail, scale) = match x.width {
        Width::F32 => expm1_f32(bounded),
        Width::F64 => {
            let reduced = reduce(bounded, None);
            (reduced.tail, reduced.scale)
        }
    };
    // e^x - 1 = scale·(scale·tail + (scale - 1/scale)); 1/scale has the negated exponent.
    let twice_bias = (2 * x.width.bias()) << x.width.significand_bits();
    let inverse = (scale.bits().constant(twice_bias) - scale.bits()).as_float();
    let value = scale.fma(tail, scale - inverse) * scale;
    // Keeps the sign of zero.
    x.eq(0.0).select(x, value)
}

fn expm1_f32<'e, 'ctx>(x: Float<'e, 'ctx>) -> (Float<'e, 'ctx>, Float<'e, 'ctx>) {
    let (j, scale) = halved_exponent(x, 0.5 * c::LOG2_E[0]);
    let r = j.fma(-2.0 * c::LN2_F32[0], x);
    let r = j.fma(-2.0 * c::LN2_F32[1], r);
    ((r * r).fma(r.polynomial(&c::EXPM1_F32), r), scale)
}

/// 1/(1 + e^-x), from e^-|x| so that nothing overflows and small results keep their precision.
pub(super) fn sigmoid<'e, 'ctx>(x: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    let decay = exp(-x.abs());
    let top = x.lt(0.0).select(decay, x.constant(1.0));
    top / (decay + 1.0)
}
