//! Logarithms. The argument is `2^k·m` with m near 1; log m comes from `s = f/(2+f)`, `f = m - 1`, in f64 and from a
//! polynomial in f, without a division, in f32.

use super::coefficients as c;
use super::lanes::{Float, Int, Width};
use super::pair::{Pair, fast_two_sum, two_product, two_sum};

/// `x = 2^exponent·(1 + fraction)`, for positive finite x.
struct Split<'e, 'ctx> {
    exponent: Float<'e, 'ctx>,
    /// The exponent where x is not denormal.
    normal_exponent: Int<'e, 'ctx>,
    fraction: Float<'e, 'ctx>,
}

/// Splits with 1 + fraction from the float of these bits up to its double.
fn split<'e, 'ctx>(x: Float<'e, 'ctx>, lowest_bits: i64) -> Split<'e, 'ctx> {
    let width = x.width;
    let (lift, lifted_by) = match width {
        Width::F32 => (8_388_608.0, -23.0),
        Width::F64 => (18_014_398_509_481_984.0, -54.0),
    };
    let denormal = x.lt(width.min_normal());
    let bits = denormal.select(x * lift, x).bits();
    let exponent = (bits - lowest_bits).shift_signed(width.significand_bits());
    let significand = (bits - (exponent << width.significand_bits())).as_float();
    Split {
        exponent: exponent.to_float() + denormal.choose(lifted_by, 0.0, x),
        normal_exponent: exponent,
        fraction: significand - 1.0,
    }
}

/// √½ in f64 and 2/3 in f32.
fn split_at_default<'e, 'ctx>(x: Float<'e, 'ctx>) -> Split<'e, 'ctx> {
    split(
        x,
        match x.width {
            Width::F32 => 0x3f2a_aaab,
            Width::F64 => 0x3fe6_a09e_667f_3bcd,
        },
    )
}

/// `value` for positive finite x, and the right thing for all others.
fn with_limits<'e, 'ctx>(x: Float<'e, 'ctx>, value: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    let negative = x.lt(0.0).select(f64::NAN, x);
    let special = x.eq(0.0).select(f64::NEG_INFINITY, negative);
    (x.gt(0.0) & x.lt(f64::INFINITY)).select(value, special)
}

/// The natural logarithm of high + low, in f64, for positive finite high; the low part must be less than half a unit
/// of the high one.
fn log_core<'e, 'ctx>(high: Float<'e, 'ctx>, low: Option<Float<'e, 'ctx>>) -> Float<'e, 'ctx> {
    let Split { exponent: k, normal_exponent, fraction: f } = split_at_default(high);
    let s = f / (f + 2.0);
    let z = s * s;
    let half_square = f * f * 0.5;
    let rest = z * z.polynomial(&c::LOG);
    let mut correction = k * c::LN2[1];
    if let Some(low) = low {
        // low/high; with 1/(1+f) to a few bits.
        let power = (normal_exponent.constant(1023 << 52) - (normal_exponent << 52)).as_float();
        // Beyond that the low part is too small to matter, and the power might not exist.
        let scaled = high.lt(1e18).select(low * power, low.constant(0.0));
        correction = scaled.fma(f.fma(f - 1.0, f.constant(1.0)), correction);
    }
    let inner = half_square - s.fma(half_square + rest, correction);
    k.fma(c::LN2[0], -(inner - f))
}

/// The logarithm of an f32 in its parts.
fn ln_f32<'e, 'ctx>(parts: &Split<'e, 'ctx>) -> Float<'e, 'ctx> {
    let tail = parts.exponent.fma(c::LN2_F32[1], log_f32_tail(parts));
    parts.exponent.fma(c::LN2_F32[0], parts.fraction + tail)
}

/// The logarithm to another base of an f32: `base` is the logarithm of e, `octave` that of 2, in two floats each.
fn log_f32_to_base<'e, 'ctx>(x: Float<'e, 'ctx>, base: [f64; 2], octave: [f64; 2]) -> Float<'e, 'ctx> {
    let parts = split_at_default(x);
    let log = fast_two_sum(parts.fraction, log_f32_tail(&parts));
    let product = two_product(log.high, x.constant(base[0]));
    let low = log.low.fma(base[0], log.high.fma(base[1], product.low));
    let low = if octave[1] == 0.0 { low } else { parts.exponent.fma(octave[1], low) };
    parts.exponent.fma(octave[0], product.high + low)
}

/// ln(1 + f) - f.
fn log_f32_tail<'e, 'ctx>(parts: &Split<'e, 'ctx>) -> Float<'e, 'ctx> {
    let f = parts.fraction;
    let square = f * f;
    let cubic = square * f * f.polynomial(&c::LOG_F32);
    square.fma(-0.5, cubic)
}

/// ln x.
pub(super) fn log<'e, 'ctx>(x: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    let value = match x.width {
        Width::F32 => ln_f32(&split_at_default(x)),
        Width::F64 => log_core(x, None),
    };
    with_limits(x, value)
}

/// ln of a pair that is positive and finite.
pub(super) fn log_of_pair<'e, 'ctx>(x: Pair<'e, 'ctx>) -> Float<'e, 'ctx> {
    let x = fast_two_sum(x.high, x.low);
    log_core(x.high, Some(x.low))
}

/// ln(1 + y) of a pair > -1 in f64.
pub(super) fn log1p_of_pair<'e, 'ctx>(y: Pair<'e, 'ctx>) -> Float<'e, 'ctx> {
    let sum = two_sum(y.high.constant(1.0), y.high);
    log_of_pair(Pair { high: sum.high, low: sum.low + y.low })
}

/// ln(1 + x).
pub(super) fn log1p<'e, 'ctx>(x: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    let value = match x.width {
        Width::F32 => log1p_f32(x),
        Width::F64 => log1p_of_pair(Pair::of(x)),
    };
    let value = x.eq(0.0).select(x, value);
    let below = x.lt(-1.0).select(f64::NAN, x);
    let special = x.eq(-1.0).select(f64::NEG_INFINITY, below);
    (x.gt(-1.0) & x.lt(f64::INFINITY)).select(value, special)
}

fn log1p_f32<'e, 'ctx>(x: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    let sum = two_sum(x.constant(1.0), x);
    let mut parts = split_at_default(sum.high);
    // What rounding took from 1 + x goes into the fraction; for large x it does not matter, and the power might not
    // exist.
    let power = (parts.normal_exponent.constant(127 << 23) - (parts.normal_exponent << 23)).as_float();
    let lost = x.lt(1e9).select(sum.low * power, x.constant(0.0));
    parts.fraction = parts.fraction + lost;
    ln_f32(&parts)
}

/// The logarithm of an f64 > 0 as a pair, with 2^-66 of relative error.
pub(super) fn log_pair<'e, 'ctx>(x: Float<'e, 'ctx>) -> Pair<'e, 'ctx> {
    let Split { exponent: k, fraction: f, .. } = split_at_default(x);
    let m = significand_log(f);
    let sum = two_sum(k * c::LN2[0], m.high);
    fast_two_sum(sum.high, sum.low + k.fma(c::LN2[1], m.low))
}

/// ln(1 + f) as a pair.
fn significand_log<'e, 'ctx>(f: Float<'e, 'ctx>) -> Pair<'e, 'ctx> {
    let divisor = fast_two_sum(f.constant(2.0), f);
    let s = Pair::of(f).over(divisor);
    let z = s.times(s);
    let tail = z.high * z.high.polynomial(&c::LOG_TAIL);
    let factor = fast_two_sum(f.constant(c::TWO_THIRDS[0]), tail + c::TWO_THIRDS[1]);
    let cubic = s.times(z).times(factor);
    let twice = s.scale(2.0);
    let sum = fast_two_sum(twice.high, cubic.high);
    fast_two_sum(sum.high, sum.low + (twice.low + cubic.low))
}

/// As [`log_pair`], with 2^-70 of relative error, of a pair.
pub(super) fn long_log_pair<'e, 'ctx>(x: Pair<'e, 'ctx>) -> Pair<'e, 'ctx> {
    let Split { exponent: k, fraction: f, .. } = split_at_default(x.high);
    let divisor = fast_two_sum(f.constant(2.0), f);
    let s = Pair::of(f).over(divisor);
    let z = s.times(s);
    // Taylor's series of 2 atanh s, 2/3 + z·(2/5 + z·(2/7 + …)), with two coefficients in pairs.
    let coefficients: [f64; 12] = std::array::from_fn(|k| 2.0 / (2 * k + 7) as f64);
    let tail = z.high * z.high.polynomial(&coefficients);
    let fifth = fast_two_sum(f.constant(c::TWO_FIFTHS[0]), tail + c::TWO_FIFTHS[1]);
    let factor = Pair::constant(f, c::TWO_THIRDS).plus(z.times(fifth));
    let m = s.scale(2.0).plus(s.times(z).times(factor));
    let sum = two_sum(k * c::LN2[0], m.high);
    let low = sum.low + k.fma(c::LN2[1], m.low);
    let sum = two_sum(sum.high, low);
    two_sum(sum.high, sum.low + x.low / x.high)
}

/// ln x of a positive f64, precise enough for a result in f32.
pub(super) fn log_short<'e, 'ctx>(x: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    let Split { exponent: k, fraction: f, .. } = split_at_default(x);
    let s = f / (f + 2.0);
    let z = s * s;
    let value = (s * z).fma(z.polynomial(&c::LOG_SHORT), s + s);
    k.fma(c::LN2[0], value)
}

/// log2 x.
pub(super) fn log2<'e, 'ctx>(x: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    let value = match x.width {
        Width::F32 => log_f32_to_base(x, c::LOG2_E_F32, [1.0, 0.0]),
        Width::F64 => {
            let Split { exponent, fraction, .. } = split_at_default(x);
            let product = significand_log(fraction).times(Pair::constant(x, c::LOG2_E));
            let sum = two_sum(exponent, product.high);
            sum.high + (sum.low + product.low)
        }
    };
    with_limits(x, value)
}

/// log10 x.
pub(super) fn log10<'e, 'ctx>(x: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    if x.width == Width::F32 {
        return with_limits(x, log_f32_to_base(x, c::LOG10_E_F32, c::LOG10_2_F32));
    }
    let Split { exponent, fraction, .. } = split_at_default(x);
    let product = significand_log(fraction).times(Pair::constant(x, c::LOG10_E));
    let sum = two_sum(exponent * c::LOG10_2[0], product.high);
    let value = sum.high + (sum.low + exponent.fma(c::LOG10_2[1], product.low));
    with_limits(x, value)
}
