//! sin, cos, tan. The argument is reduced by multiples of π/2 that are subtracted in parts; where it is too large for
//! that, by a product with the bits of 2/π (Payne and Hanek), behind a branch that is taken when any lane needs it.

use super::coefficients as c;
use super::lanes::{Float, Int, Width};
use super::pair::{Pair, fast_two_sum, two_product, two_sum};

/// `x = n·π/2 + r`: n in the low bits of a float, and r.
struct Turned<'e, 'ctx> {
    count: Float<'e, 'ctx>,
    rest: Pair<'e, 'ctx>,
}

/// Below this the parts of π are subtracted.
fn small_limit(width: Width) -> f64 {
    match width {
        Width::F32 => 40_000.0,
        Width::F64 => 1_073_741_824.0,
    }
}

/// sin x.
pub(super) fn sin<'e, 'ctx>(x: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    // -0 would turn to +0.
    x.eq(0.0).select(x, sine_of(reduce(x), 0))
}

/// cos x.
pub(super) fn cos<'e, 'ctx>(x: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    sine_of(reduce(x), 1)
}

/// sin(r + (count + ahead)·π/2). Both polynomials have the form `m + m·z·P(z)`, with m = r for the sine and 1 for the
/// cosine, so that selecting coefficients costs less than evaluating both.
fn sine_of<'e, 'ctx>(turned: Turned<'e, 'ctx>, ahead: i64) -> Float<'e, 'ctx> {
    let Pair { high: r, low } = turned.rest;
    let quadrant = turned.count.bits() + ahead;
    let odd = (quadrant & 1).eq(1);
    let z = r * r;
    let (sine, cosine): (&[f64], &[f64]) = match r.width {
        Width::F32 => (&c::SIN_F32, &c::COS_F32),
        Width::F64 => (&c::SIN_QUARTER, &c::COS_QUARTER),
    };
    // The cosine's polynomial has one coefficient more.
    let last = odd.choose(cosine[sine.len()], 0.0, r);
    let factor = sine
        .iter()
        .zip(cosine)
        .rev()
        .fold(last, |sum, (&of_sine, &of_cosine)| sum.fma(z, odd.choose(of_cosine, of_sine, r)));
    let m = odd.select(1.0, r);
    let value = match r.width {
        Width::F32 => (m * z).fma(factor, m),
        Width::F64 => m + (m * z).fma(factor, odd.select(-(r * low), low)),
    };
    let sign = (quadrant >> 1) << (r.width.bits() - 1);
    (value.bits() ^ sign).as_float()
}

/// `x - k·π/2`; for f32 in one float.
fn subtract_quarter_turns<'e, 'ctx>(x: Float<'e, 'ctx>, k: Float<'e, 'ctx>) -> Pair<'e, 'ctx> {
    match x.width {
        Width::F32 => {
            let r = c::PI_F32.iter().take(3).fold(x, |r, part| k.fma(-0.5 * part, r));
            Pair::of(r)
        }
        Width::F64 => {
            let first = k.fma(-0.5 * c::PI[0], x);
            let part = two_product(k, x.constant(0.5 * c::PI[1]));
            let sum = two_sum(first, -part.high);
            Pair { high: sum.high, low: k.fma(-0.5 * c::PI[2], sum.low - part.low) }
        }
    }
}

/// The reduction for any finite argument ≥ 1; infinities and NaN give NaN.
fn payne_hanek<'e, 'ctx>(x: Float<'e, 'ctx>) -> Turned<'e, 'ctx> {
    if x.width == Width::F32 {
        let wide = payne_hanek(x.widen());
        return Turned { count: wide.count.narrow_low_bits(), rest: Pair::of(wide.rest.high.narrow()) };
    }
    let (top, bottom) = quarter_turns(x);
    let negative = x.sign_bit();
    let top = negative.select_int(negate_high(top, bottom), top);
    let bottom = negative.select_int(bottom.constant(0) - bottom, bottom);
    // Rounds to the nearest quarter turn, and leaves a signed fraction of one.
    let count = (top + (1 << 61)) >> 62;
    let rest = top - (count << 62);
    // In units of 2^-62 quarter turns, four pieces of 32 bits that floats hold exactly.
    let pieces = [
        (rest.shift_signed(32), 4_294_967_296.0),
        (rest & 0xffff_ffff, 1.0),
        (bottom >> 32, 1.0 / 4_294_967_296.0),
        (bottom & 0xffff_ffff, 1.0 / 18_446_744_073_709_551_616.0),
    ];
    let scale = 0.5f64.powi(62);
    let [a, b, d, e] = pieces.map(|(piece, weight)| piece.to_float() * (weight * scale));
    let upper = fast_two_sum(a, b);
    let lower = fast_two_sum(d, e);
    let fraction = Pair::plus(upper, lower);
    let angle = fraction.times(Pair { high: x.constant(c::PI[0] * 0.5), low: x.constant(c::PI[1] * 0.5) });
    // Zero, or NaN where the argument is no number or infinite.
    let poison = x * 0.0;
    Turned { count: count.as_float(), rest: Pair { high: angle.high + poison, low: angle.low } }
}

/// The upper half of -(top·2^64 + bottom).
fn negate_high<'e, 'ctx>(top: Int<'e, 'ctx>, bottom: Int<'e, 'ctx>) -> Int<'e, 'ctx> {
    let carry = bottom.eq(0).select_int(bottom.constant(1), bottom.constant(0));
    (top ^ -1) + carry
}

/// `|x|·2/π` modulo 4 as a fixed-point number of 2 + 126 bits, in two words.
fn quarter_turns<'e, 'ctx>(x: Float<'e, 'ctx>) -> (Int<'e, 'ctx>, Int<'e, 'ctx>) {
    let bits = x.bits() & i64::MAX;
    let significand = (bits & ((1 << 52) - 1)) | (1 << 52);
    // x = significand·2^exponent. The window starts at the bit of 2/π whose product with the lowest bit of the
    // significand has weight 2; the table starts with 64 zeros.
    let exponent = (bits >> 52) - 1075;
    let start = (exponent + (64 - 2)).clamp(0, 1033);
    let word = start >> 6;
    let shift = start & 63;
    let e = x.emitter();
    let words = [0, 1, 2, 3].map(|k| e.gather("loafc.two_over_pi", &c::TWO_OVER_PI, word + k));
    let window = |k: usize| {
        // Shifted in two steps, as a shift by 64 is undefined.
        let from_next = (words[k + 1] >> 1).shift_right_by(shift.constant(63) - shift);
        words[k].shift_left_by(shift) | from_next
    };
    // 32-bit limbs, the most significant first.
    let mut limbs = Vec::with_capacity(6);
    for w in [window(0), window(1), window(2)] {
        limbs.push(w >> 32);
        limbs.push(w & 0xffff_ffff);
    }
    multiply_top(&limbs, significand)
}

/// The upper 128 bits of `limbs·factor` modulo 2^192; limbs have 32 bits, the factor 53.
fn multiply_top<'e, 'ctx>(limbs: &[Int<'e, 'ctx>], factor: Int<'e, 'ctx>) -> (Int<'e, 'ctx>, Int<'e, 'ctx>) {
    let (low, high) = (factor & 0xffff_ffff, factor >> 32);
    let zero = factor.constant(0);
    let by_low: Vec<_> = limbs.iter().map(|&w| w.times(low)).collect();
    let by_high: Vec<_> = limbs.iter().map(|&w| w.times(high)).collect();
    let lower = |v: Option<&Int<'e, 'ctx>>| v.map_or(zero, |&v| v & 0xffff_ffff);
    let upper = |v: Option<&Int<'e, 'ctx>>| v.map_or(zero, |&v| v >> 32);
    let mut carry = zero;
    let mut digits = Vec::with_capacity(limbs.len());
    for k in (0..limbs.len()).rev() {
        let sum = lower(by_low.get(k))
            + upper(by_low.get(k + 1))
            + lower(by_high.get(k + 1))
            + upper(by_high.get(k + 2))
            + carry;
        digits.push(sum & 0xffff_ffff);
        carry = sum >> 32;
    }
    digits.reverse();
    ((digits[0] << 32) | digits[1], (digits[2] << 32) | digits[3])
}

/// tan x.
pub(super) fn tan<'e, 'ctx>(x: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    if x.width == Width::F32 {
        return tan_f32(x);
    }
    let turned = reduce(x);
    let Pair { high: r, low } = turned.rest;
    let z = r * r;
    let sine = fast_two_sum(r, (r * z).fma(z.polynomial(&c::SIN_QUARTER), low));
    let half = z * 0.5;
    let one = x.constant(1.0);
    let square_rest = r.fma(r, -z) * 0.5;
    let near_one = one - half;
    let cosine_rest = ((one - near_one) - half) - square_rest;
    let cosine_rest = r.fma(-low, (z * z).fma(z.polynomial(&c::COS_QUARTER[1..]), cosine_rest));
    let cosine = fast_two_sum(near_one, cosine_rest);
    let odd = (turned.count.bits() & 1).eq(1);
    let top = Pair { high: odd.select(-cosine.high, sine.high), low: odd.select(-cosine.low, sine.low) };
    let bottom = Pair { high: odd.select(sine.high, cosine.high), low: odd.select(sine.low, cosine.low) };
    x.eq(0.0).select(x, top.over(bottom).value())
}

/// Through f64, whose precision leaves room for short polynomials.
fn tan_f32<'e, 'ctx>(x: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    let turned = reduce(x.widen());
    let r = turned.rest.high;
    let z = r * r;
    let sine = (r * z).fma(z.polynomial(&c::SIN_SHORT), r);
    let cosine = z.fma(z.fma(z.polynomial(&c::COS_SHORT), z.constant(-0.5)), z.constant(1.0));
    let odd = (turned.count.bits() & 1).eq(1);
    let value = odd.select(-cosine, sine) / odd.select(sine, cosine);
    x.eq(0.0).select(x, value.narrow())
}

/// `x = n·π/2 + r` with |r| ≤ π/4; `count` carries n in its low bits.
fn reduce<'e, 'ctx>(x: Float<'e, 'ctx>) -> Turned<'e, 'ctx> {
    let magic = x.width.round_magic();
    let count = x.fma(std::f64::consts::FRAC_2_PI, x.constant(magic));
    let rest = subtract_quarter_turns(x, count - magic);
    let huge = !x.abs().le(small_limit(x.width));
    let fast = [count, rest.high, rest.low];
    let [count, high, low] = x.emitter().unless_any(huge, fast, "turned", x, |[x]| {
        let slow = payne_hanek(x);
        [slow.count, slow.rest.high, slow.rest.low]
    });
    Turned { count, rest: Pair { high, low } }
}

/// sin(πx) and cos(πx) of an f64: x - round(x) is exact, so no reduction is needed.
pub(super) fn sin_cos_pi<'e, 'ctx>(x: Float<'e, 'ctx>) -> (Float<'e, 'ctx>, Float<'e, 'ctx>) {
    let halves = (x * 2.0).round_even();
    let part = halves.fma(-0.5, x);
    let angle = Pair::of(part).times(Pair::constant(x, [c::PI[0], c::PI[1]]));
    let (r, z) = (angle.high, angle.high * angle.high);
    let sine = (r * z).fma(z.polynomial(&c::SIN_QUARTER), angle.low) + r;
    let cosine = z.fma(z.polynomial(&c::COS_QUARTER), z.constant(1.0));
    // halves modulo 4, in floats, as it may be larger than any integer.
    let turn = halves - (halves * 0.25).floor() * 4.0;
    let odd = turn.eq(1.0) | turn.eq(3.0);
    let (s, t) = (odd.select(cosine, sine), odd.select(sine, cosine));
    (turn.ge(2.0).select(-s, s), (turn.eq(1.0) | turn.eq(2.0)).select(-t, t))
}

/// |sin(πx)| of an f64 as a pair, with 2^-70 of relative error.
pub(super) fn sine_pi_pair<'e, 'ctx>(x: Float<'e, 'ctx>) -> Pair<'e, 'ctx> {
    let halves = (x * 2.0).round_even();
    let part = halves.fma(-0.5, x);
    let odd = ((halves * 0.5).floor() * 2.0).lt(halves);
    let r = Pair::of(part).times(Pair::constant(x, [c::PI[0], c::PI[1]]));
    let z = r.times(r);
    // As in `sine_of`: m + m·z·P(z), of which the first terms are pairs.
    let coefficient = |k: usize| {
        let [sine, cosine] = [2 * k + 1, 2 * k].map(|n| {
            let sign = if k.is_multiple_of(2) { 1.0 } else { -1.0 };
            let factorial = (1..=n).map(|n| n as f64).product::<f64>();
            let high = sign / factorial;
            // What the division left, which is exact.
            [high, (-high).mul_add(factorial, sign) / factorial]
        });
        Pair { high: odd.choose(cosine[0], sine[0], x), low: odd.choose(cosine[1], sine[1], x) }
    };
    let last = coefficient(SERIES).high;
    let tail = (PAIRS + 1..SERIES).rev().fold(last, |sum, k| sum.fma(z.high, coefficient(k).high));
    let factor = (1..=PAIRS).rev().fold(Pair::of(tail), |sum, k| {
        let product = z.times(sum);
        let first = coefficient(k);
        let sum = fast_two_sum(first.high, product.high);
        fast_two_sum(sum.high, sum.low + (first.low + product.low))
    });
    let m = Pair { high: odd.select(1.0, r.high), low: odd.select(0.0, r.low) };
    let rest = m.times(z.times(factor));
    let sum = fast_two_sum(m.high, rest.high);
    let value = fast_two_sum(sum.high, sum.low + (m.low + rest.low));
    let negative = value.high.lt(0.0);
    let negated = value.negate();
    Pair { high: negative.select(negated.high, value.high), low: negative.select(negated.low, value.low) }
}

/// Terms behind the first one of the series of sine and cosine up to π/4 that are pairs, and all of them.
const PAIRS: usize = 3;
const SERIES: usize = 10;
