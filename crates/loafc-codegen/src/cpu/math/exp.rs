//! Exponentials: exp, exp2, expm1, sigmoid, and the core that the hyperbolic functions, erfc and pow share.
//!
//! The argument is reduced to `k·ln 2 + r` with |r| ≤ ln 2 / 2, and the result is scaled by two powers of two that make
//! 2^k together, so that one rounding makes denormals, and infinity comes by itself.

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

/// An integer k as a float, and two powers of two whose product is 2^k.
#[derive(Copy, Clone)]
struct Exponent<'e, 'ctx> {
    k: Float<'e, 'ctx>,
    scale: [Float<'e, 'ctx>; 2],
}

/// `x·factor` rounded to an integer k; |k| may exceed the exponent range a little.
fn exponent<'e, 'ctx>(x: Float<'e, 'ctx>, factor: f64) -> Exponent<'e, 'ctx> {
    // Twice the bias goes into the sum, so that both halves of its low bits are stored exponents.
    let magic = x.width.round_magic() + 2.0 * x.width.bias() as f64;
    let shifted = x.fma(factor, x.constant(magic));
    let both = shifted.bits();
    let half = both >> 1;
    let place = x.width.significand_bits();
    Exponent { k: shifted - magic, scale: [half, both - half].map(|e| (e << place).as_float()) }
}

/// `e^x = (1 + tail)·scale[0]·scale[1]`.
struct Reduced<'e, 'ctx> {
    /// e^r - 1.
    tail: Float<'e, 'ctx>,
    scale: [Float<'e, 'ctx>; 2],
}

impl<'e, 'ctx> Reduced<'e, 'ctx> {
    fn value(self) -> Float<'e, 'ctx> {
        (self.tail + 1.0) * self.scale[0] * self.scale[1]
    }
}

/// Reduces an f64 argument in range; `low` is added to it.
fn reduce<'e, 'ctx>(x: Float<'e, 'ctx>, low: Option<Float<'e, 'ctx>>) -> Reduced<'e, 'ctx> {
    let Exponent { k, scale } = exponent(x, c::LOG2_E[0]);
    let high = k.fma(-c::LN2[0], x);
    let small = match low {
        Some(low) => k.fma(c::LN2[1], -low),
        None => k * c::LN2[1],
    };
    let r = high - small;
    let rest = (high - r) - small;
    // The rest times e^r, to a few bits.
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
    match x.width {
        Width::F32 => {
            let Exponent { k, scale } = exponent(clamp(x), c::LOG2_E[0]);
            let r = subtract_f32(clamp(x), k);
            r.polynomial(&c::EXP_F32).fma(r, x.constant(1.0)) * scale[0] * scale[1]
        }
        Width::F64 => reduce(clamp(x), None).value(),
    }
}

/// `x - k·ln 2`.
fn subtract_f32<'e, 'ctx>(x: Float<'e, 'ctx>, k: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    k.fma(-c::LN2_F32[1], k.fma(-c::LN2_F32[0], x))
}

/// e^x/2, which is finite a little longer than e^x. For x ≥ 0.
pub(super) fn half_exp<'e, 'ctx>(x: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    let reduced = reduce(x.at_most(711.0), None);
    (reduced.tail + 1.0) * reduced.scale[0] * (reduced.scale[1] * 0.5)
}

/// e^(high+low) as a sum, for f64 arguments that are neither NaN nor out of range: not denormal.
pub(super) fn exp_pair<'e, 'ctx>(x: Pair<'e, 'ctx>) -> Pair<'e, 'ctx> {
    let reduced = reduce(x.high, Some(x.low));
    let power = fast_two_sum(reduced.tail.constant(1.0), reduced.tail);
    let scale = reduced.scale[0] * reduced.scale[1];
    Pair { high: power.high * scale, low: power.low * scale }
}

/// e^(high+low), rounded; any f64.
pub(super) fn exp_of_pair<'e, 'ctx>(x: Pair<'e, 'ctx>) -> Float<'e, 'ctx> {
    let high = clamp(x.high);
    let low = high.eq(x.high).select(x.low, high.constant(0.0));
    reduce(high, Some(low)).value()
}

/// e^x of an f32 between -87 and 88, where no scaling can go wrong.
pub(super) fn exp_f32_normal<'e, 'ctx>(x: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    let magic = x.width.round_magic();
    let shifted = x.fma(c::LOG2_E[0], x.constant(magic));
    let k = shifted - magic;
    let r = k.fma(-c::LN2_F32[0], x);
    let r = k.fma(-c::LN2_F32[1], r);
    let power = r.polynomial(&c::EXP_F32).fma(r, x.constant(1.0));
    (power.bits() + (shifted.bits() << 23)).as_float()
}

/// e^x of an f64 in range, precise enough for a result in f32.
pub(super) fn exp_short<'e, 'ctx>(x: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    let Exponent { k, scale } = exponent(x, c::LOG2_E[0]);
    let r = k.fma(-c::LN2[1], k.fma(-c::LN2[0], x));
    r.polynomial(&c::EXP_SHORT).fma(r, x.constant(1.0)) * scale[0] * scale[1]
}

/// 2^x.
pub(super) fn exp2<'e, 'ctx>(x: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    match x.width {
        Width::F32 => {
            let x = x.at_least(-151.0).at_most(129.0);
            let Exponent { k, scale } = exponent(x, 1.0);
            let f = x - k;
            f.polynomial(&c::EXP2_F32).fma(f, x.constant(1.0)) * scale[0] * scale[1]
        }
        Width::F64 => {
            let x = x.at_least(-1076.0).at_most(1025.0);
            let Exponent { k, scale } = exponent(x, 1.0);
            let f = x - k;
            let r = two_product(f, x.constant(c::LN2_NEAREST[0]));
            let rest = f.fma(c::LN2_NEAREST[1], r.low);
            let rest = rest.fma(r.high, rest);
            let tail = r.high + (r.high * r.high).fma(r.high.polynomial(&c::EXP), rest);
            Reduced { tail, scale }.value()
        }
    }
}

/// e^x - 1.
pub(super) fn expm1<'e, 'ctx>(x: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    let Reduced { tail, scale: [first, second] } = match x.width {
        Width::F32 => {
            let bounded = x.at_least(-20.0).at_most(89.0);
            let Exponent { k, scale } = exponent(bounded, c::LOG2_E[0]);
            let r = subtract_f32(bounded, k);
            Reduced { tail: (r * r).fma(r.polynomial(&c::EXPM1_F32), r), scale }
        }
        Width::F64 => reduce(x.at_least(-40.0).at_most(710.0), None),
    };
    // e^x - 1 = second·(first·tail + (first - 1/second)); the inverse has the negated exponent.
    let twice_bias = (2 * x.width.bias()) << x.width.significand_bits();
    let inverse = (second.bits().constant(twice_bias) - second.bits()).as_float();
    let value = first.fma(tail, first - inverse) * second;
    // Keeps the sign of zero.
    x.eq(0.0).select(x, value)
}

/// 1/(1 + e^-x), from e^-|x| so that nothing overflows and small results keep their precision.
pub(super) fn sigmoid<'e, 'ctx>(x: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    let decay = exp(-x.abs());
    let top = x.lt(0.0).select(decay, x.constant(1.0));
    let bottom = decay + 1.0;
    let quotient = top / bottom;
    // What rounding took from the divisor, for small decays, where it counts.
    let lost = decay - (bottom - 1.0);
    (-quotient).fma(lost, quotient)
}
