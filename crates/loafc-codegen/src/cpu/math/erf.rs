//! The error function, its complement and its inverse.

use super::coefficients as c;
use super::exp::{exp_f32_normal, exp_pair, exp_short};
use super::lanes::{Float, Width};
use super::log::{log_of_pair, log_short};
use super::pair::{Pair, fast_two_sum, two_product, two_sum};

/// erf.
pub(super) fn erf<'e, 'ctx>(x: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    let magnitude = x.abs();
    let z = x * x;
    match x.width {
        Width::F32 if x.emitter().has_wide_tables() => erf_by_pieces(x),
        Width::F32 => {
            let small = x.fma(z.polynomial(&c::ERF_F32), x);
            // 1 - erfc, and erfc is 0 to f32 beyond the bound. NaN comes out of the other range.
            let bounded = magnitude.at_most(3.95);
            let large = -exp_f32_normal(bounded.polynomial(&c::ERF_TAIL_F32)) + 1.0;
            magnitude.ge(1.0).select(large.copysign(x), small)
        }
        Width::F64 => {
            let small = x.fma(z.polynomial(&c::ERF), x);
            let large = -erfc_positive(magnitude.at_most(6.5)).value() + 1.0;
            magnitude.ge(0.9).select(large.copysign(x), small)
        }
    }
}

/// By the polynomial of the nearest of 16 points: half the instructions of two ranges.
fn erf_by_pieces<'e, 'ctx>(x: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    let magnitude = x.abs();
    // Beyond, erf is 1 to f32. What isn't a number stays so.
    let bounded = magnitude.gt(3.95).select(x.constant(3.95), magnitude);
    // The number of the nearest point stands in the lowest bits.
    let shifted = bounded.fma(1.0 / c::ERF_STEP_F32, x.constant(x.width.round_magic()));
    let t = (shifted - x.width.round_magic()).fma(-c::ERF_STEP_F32, bounded);
    let point = shifted.bits();
    let [first, powers @ ..] = c::ERF_PIECES_F32.map(|coefficients| x.emitter().pick(&coefficients, point));
    let [slope, rest @ .., last] = powers;
    let sum = rest.iter().rev().fold(last, |sum, coefficient| sum.fma(t, *coefficient));
    sum.fma(t, slope).fma(t, t + first).copysign(x)
}

/// 1 - erf.
pub(super) fn erfc<'e, 'ctx>(x: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    if x.width == Width::F32 {
        return erfc_f32(x);
    }
    let magnitude = x.abs();
    let z = x * x;
    let small = fast_two_sum(x.constant(1.0), -x.fma(z.polynomial(&c::ERF), x));
    // In two steps, as the results near the end are denormal.
    let bounded = magnitude.at_most(28.0);
    let tail = erfc_scaled(bounded);
    let right = tail.value() * 2f64.powi(-200);
    let left = x.constant(2.0) - right;
    let large = x.sign_bit().select(left, right);
    magnitude.lt(0.5).select(small.value(), large)
}

fn erfc_positive<'e, 'ctx>(a: Float<'e, 'ctx>) -> Pair<'e, 'ctx> {
    erfc_scaled(a).scale(2f64.powi(-200))
}

/// Through f64, where a² is exact and short polynomials do.
fn erfc_f32<'e, 'ctx>(x: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    let a = x.abs().widen().at_most(11.0);
    let t = (a - 4.0) / (a + 4.0);
    let right = exp_short(-(a * a)) * t.polynomial(&c::ERFC_SHORT) / a.fma(2.0, a.constant(1.0));
    let left = a.constant(2.0) - right;
    x.widen().lt(0.0).select(left, right).narrow()
}

/// 2^200·erfc(a) for 0 ≤ a ≤ 28.
fn erfc_scaled<'e, 'ctx>(a: Float<'e, 'ctx>) -> Pair<'e, 'ctx> {
    let four = a.constant(4.0);
    let t = two_sum(a, -four).over(two_sum(a, four));
    let slope = t.high.polynomial(&c::ERFC);
    let product = two_product(t.high, slope);
    let sum = fast_two_sum(a.constant(c::ERFC_FIRST[0]), product.high);
    let low = sum.low + (product.low + t.low.fma(slope, a.constant(c::ERFC_FIRST[1])));
    let polynomial = fast_two_sum(sum.high, low);
    let square = two_product(a, a);
    let lifted = two_sum(a.constant(c::LN2_200[0]), -square.high);
    let exponent = Pair { high: lifted.high, low: lifted.low - square.low + c::LN2_200[1] };
    let power = exp_pair(exponent);
    power.times(polynomial).over(fast_two_sum(a + a, a.constant(1.0)))
}

/// The inverse of erf: x times a function of w = -ln(1 - x²), in three ranges of w.
pub(super) fn erfinv<'e, 'ctx>(x: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    let value = match x.width {
        Width::F32 => {
            let wide = x.widen();
            let w = -log_short((-wide).fma(wide, wide.constant(1.0)));
            (wide * inverse_factor(w)).narrow()
        }
        Width::F64 => {
            let square = two_product(x, x);
            let rest = two_sum(x.constant(1.0), -square.high);
            let w = -log_of_pair(Pair { high: rest.high, low: rest.low - square.low });
            x * inverse_factor(w)
        }
    };
    let limit = x.abs().eq(1.0).choose(f64::INFINITY, f64::NAN, x).copysign(x);
    x.abs().lt(1.0).select(value, limit)
}

fn inverse_factor<'e, 'ctx>(w: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    let near = (w - 3.125).polynomial(&c::ERFINV_NEAR);
    let root = w.sqrt();
    let far = w.lt(16.0);
    let shifted = root - far.choose(3.25, 5.0, w);
    let tail = c::ERFINV_MIDDLE
        .iter()
        .zip(&c::ERFINV_FAR)
        .rev()
        .fold(w.constant(0.0), |sum, (&m, &f)| sum.fma(shifted, far.choose(m, f, w)));
    w.lt(6.25).select(near, tail)
}
