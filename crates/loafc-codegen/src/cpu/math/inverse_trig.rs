//! asin, acos, atan, atan2.

use super::coefficients as c;
use super::lanes::{Float, Width};
use super::pair::{Pair, fast_two_sum, two_sum};

const TAN_PI_8: f64 = 0.414_213_562_373_095_05;

/// asin of a magnitude: the argument of the odd polynomial, and whether the result is `π/2 - 2·` its value.
struct Folded<'e, 'ctx> {
    large: super::lanes::Mask<'e, 'ctx>,
    /// |x|, or √((1-|x|)/2).
    root: Float<'e, 'ctx>,
    /// What rounding took from `root`.
    root_low: Float<'e, 'ctx>,
    /// asin(root) - root.
    tail: Float<'e, 'ctx>,
}

fn fold<'e, 'ctx>(x: Float<'e, 'ctx>) -> Folded<'e, 'ctx> {
    let magnitude = x.abs();
    let large = magnitude.gt(0.5);
    let z = large.select(magnitude.fma(-0.5, x.constant(0.5)), x * x);
    let sqrt = z.sqrt();
    let root = large.select(sqrt, magnitude);
    let rest = (-sqrt).fma(sqrt, z) / (sqrt + sqrt);
    let root_low = (large & z.gt(0.0)).select(rest, x.constant(0.0));
    let coefficients: &[f64] = match x.width {
        Width::F32 => &c::ASIN_F32,
        Width::F64 => &c::ASIN,
    };
    let tail = root * z * z.polynomial(coefficients);
    Folded { large, root, root_low, tail }
}

/// π/2 in two floats of this width.
fn half_pi(width: Width) -> [f64; 2] {
    match width {
        Width::F32 => c::HALF_PI_F32,
        Width::F64 => [c::PI[0] * 0.5, c::PI[1] * 0.5],
    }
}

/// The arc sine.
pub(super) fn asin<'e, 'ctx>(x: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    let [half_pi, half_pi_low] = half_pi(x.width);
    let folded = fold(x);
    let small = folded.root + folded.tail;
    let twice = Pair { high: folded.root * 2.0, low: (folded.tail + folded.root_low) * 2.0 };
    let difference = fast_two_sum(x.constant(half_pi), -twice.high);
    let large = difference.high + (difference.low - (twice.low - half_pi_low));
    folded.large.select(large, small).copysign(x)
}

/// The arc cosine.
pub(super) fn acos<'e, 'ctx>(x: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    let [half_pi, half_pi_low] = half_pi(x.width);
    let folded = fold(x);
    let negative = x.sign_bit();
    let signed = folded.root.copysign(x);
    let near = fast_two_sum(x.constant(half_pi), -signed);
    let middle = near.high + (near.low - (folded.tail.copysign(x) - half_pi_low));
    let low = folded.tail + folded.root_low;
    let right = (folded.root + low) * 2.0;
    let pi = x.constant(2.0 * half_pi);
    let far = fast_two_sum(pi, folded.root * -2.0);
    let left = far.high + (far.low - low.fma(2.0, x.constant(-2.0 * half_pi_low)));
    folded.large.select(negative.select(left, right), middle)
}

/// The arc tangent.
pub(super) fn atan<'e, 'ctx>(x: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    match x.width {
        Width::F32 => atan_f32(x),
        Width::F64 => {
            let value = atan_of_ratio(x.abs().at_most(1e300), x.constant(1.0)).value().copysign(x);
            x.is_nan().select(x, value)
        }
    }
}

fn atan_f32<'e, 'ctx>(x: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    let magnitude = x.abs();
    let large = magnitude.gt(1.0);
    let t = large.select(-(x.constant(1.0) / magnitude), magnitude);
    let z = t * t;
    let tail = (t * z).fma(z.polynomial(&c::ATAN_F32), large.choose(c::HALF_PI_F32[1], 0.0, x));
    let offset = large.choose(c::HALF_PI_F32[0], 0.0, x);
    let sum = fast_two_sum(large.select(offset, t), large.select(t, x.constant(0.0)));
    (sum.high + (sum.low + tail)).copysign(x)
}

/// atan(a/b) of f64 numbers ≥ 0 as a pair, not normalised.
fn atan_of_ratio<'e, 'ctx>(a: Float<'e, 'ctx>, b: Float<'e, 'ctx>) -> Pair<'e, 'ctx> {
    let swap = a.gt(b);
    let (top, bottom) = (swap.select(b, a), swap.select(a, b));
    // atan t = π/4 + atan((t-1)/(t+1)) for the upper half.
    let upper = top.gt(bottom * TAN_PI_8);
    let difference = two_sum(top, -bottom);
    let sum = fast_two_sum(bottom, top);
    let zero = a.constant(0.0);
    let numerator =
        Pair { high: upper.select(difference.high, top), low: upper.select(difference.low, zero) };
    let denominator = Pair { high: upper.select(sum.high, bottom), low: upper.select(sum.low, zero) };
    let t = numerator.over(denominator);
    let z = t.high * t.high;
    let tail = (t.high * z).fma(z.polynomial(&c::ATAN), t.low);
    // Offsets 0, π/4, and π/2 less either.
    let low_offset = upper.choose(c::PI[1] * 0.25, 0.0, a);
    let offset = upper.choose(c::PI[0] * 0.25, 0.0, a);
    let sign = swap.choose(-1.0, 1.0, a);
    let offset = swap.select(offset.constant(c::PI[0] * 0.5) - offset, offset);
    let low_offset = swap.select(offset.constant(c::PI[1] * 0.5) - low_offset, low_offset);
    let sum = two_sum(offset, t.high * sign);
    Pair { high: sum.high, low: sum.low + tail.fma(sign, low_offset) }
}

/// The angle of the point (x, y), by C's rules.
pub(super) fn atan2<'e, 'ctx>(y: Float<'e, 'ctx>, x: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    if x.width == Width::F32 {
        return atan2(y.widen(), x.widen()).narrow();
    }
    let (a, b) = (y.abs(), x.abs());
    let (a, b) = rescale(a, b);
    let both_infinite = a.is_inf() & b.is_inf();
    let both_zero = a.eq(0.0) & b.eq(0.0);
    let one = x.constant(1.0);
    // Where the quotient means nothing: 1/1 for two infinities, 0/1 for two zeros, x/0 and inf/x as inf/1.
    let infinite = a.is_inf() | b.is_inf();
    let top = infinite.select(a.is_inf().choose(1.0, 0.0, x), a);
    let bottom = infinite.select(b.is_inf().choose(1.0, 0.0, x), b);
    let top = both_infinite.select(one, top);
    let bottom = (both_infinite | both_zero).select(one, bottom);
    let angle = atan_of_ratio(top, bottom);
    let left = x.sign_bit();
    let pi = two_sum(x.constant(c::PI[0]), -angle.high);
    let mirrored = pi.high + (pi.low - (angle.low - c::PI[1]));
    let value = left.select(mirrored, angle.value()).copysign(y);
    (x.is_nan() | y.is_nan()).select(x + y, value)
}

/// Scales both by a power of two to where the steps of the division neither overflow nor lose bits.
fn rescale<'e, 'ctx>(a: Float<'e, 'ctx>, b: Float<'e, 'ctx>) -> (Float<'e, 'ctx>, Float<'e, 'ctx>) {
    let larger = a.gt(b).select(a, b);
    let factor = larger.lt(1e-150).choose(2f64.powi(500), 1.0, a);
    let factor = larger.gt(1e150).select(2f64.powi(-500), factor);
    (a * factor, b * factor)
}
