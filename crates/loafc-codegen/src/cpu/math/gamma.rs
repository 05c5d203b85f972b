//! The logarithm of the gamma function, and its derivative.

use super::coefficients as c;
use super::lanes::{Float, Width};
use super::log::{log, log_pair, long_log_pair};
use super::pair::{Pair, fast_two_sum, two_product, two_sum};
use super::trig::{sin_cos_pi, sine_pi_pair};

/// From here on Stirling's series is precise enough.
const STIRLING_FROM: f64 = 10.0;

/// How precise terms are that cancel next to a function's zeros.
#[derive(Copy, Clone, PartialEq)]
enum Terms {
    /// Somewhat more precise than an f64: enough for f32, whose arguments are never that near to a zero.
    Short,
    /// With 2^-70 of error.
    Long,
}

/// ln |Γ(x)|.
pub(super) fn lgamma<'e, 'ctx>(x: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    let [value] = x.emitter().outlined("lgamma", [x], |[x]| match x.width {
        Width::F32 => [lgamma_in_f64(x.widen(), Terms::Short).narrow()],
        Width::F64 => [lgamma_in_f64(x, Terms::Long)],
    });
    value
}

fn lgamma_in_f64<'e, 'ctx>(x: Float<'e, 'ctx>, terms: Terms) -> Float<'e, 'ctx> {
    let magnitude = x.abs();
    let positive = lgamma_positive(magnitude, terms);
    // ln Γ(-a) = ln π - ln |a sin πa| - ln Γ(a).
    let product = match terms {
        Terms::Short => Pair::of((magnitude * sin_cos_pi(magnitude).0).abs()),
        Terms::Long => Pair::of(magnitude).times(sine_pi_pair(magnitude)),
    };
    let of_product = pair_log(product, terms);
    let reflected = Pair::constant(x, c::LN_PI).plus(of_product.negate()).plus(positive.negate()).value();
    let reflected = product.high.eq(0.0).select(f64::INFINITY, reflected);
    // Γ(x) is near 1/|x|, and the product may be denormal.
    let tiny = magnitude.lt(1e-18);
    let value = x.lt(0.0).select(reflected, positive.value());
    let value = tiny.select(-log(magnitude), value);
    let value = near_zero(x - 1.0, &c::LGAMMA_ONE, value);
    let value = near_zero(x - 2.0, &c::LGAMMA_TWO, value);
    let value = magnitude.ge(1e306).select(large(magnitude), value);
    let value = x.is_inf().select(f64::INFINITY, value);
    x.is_nan().select(x, value)
}

/// t·P(t) where t is small, else `value`: next to its zeros the function needs more than sums of large terms.
fn near_zero<'e, 'ctx>(t: Float<'e, 'ctx>, coefficients: &[f64], value: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    t.abs().lt(0.02).select(t.fma(t.polynomial(coefficients), t.constant(0.0)), value)
}

/// x(ln x - 1) where the rest of Stirling's formula is too small to see; infinite for negative x, all integers.
fn large<'e, 'ctx>(x: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    x * (log(x) - 1.0)
}

/// ln Γ(x) of x > 0: Stirling's formula at x + n less the logarithm of x(x+1)…(x+n-1).
fn lgamma_positive<'e, 'ctx>(x: Float<'e, 'ctx>, terms: Terms) -> Pair<'e, 'ctx> {
    let one = x.constant(1.0);
    let mut product = Pair::of(one);
    let mut at = Pair::of(x);
    for _ in 0..STIRLING_FROM as u32 {
        let below = at.high.lt(STIRLING_FROM);
        let next = product.times(at);
        product =
            Pair { high: below.select(next.high, product.high), low: below.select(next.low, product.low) };
        let moved = at.plus(Pair::of(below.choose(1.0, 0.0, x)));
        at = moved;
    }
    let log_at = pair_log(at, terms);
    let inverse = Pair::of(one).over(at);
    let z = inverse.high * inverse.high;
    let corrections = z * z.polynomial(&c::STIRLING[1..]);
    let series = inverse.times(fast_two_sum(x.constant(c::TWELFTH[0]), corrections + c::TWELFTH[1]));
    let shifted = at.plus(Pair::of(x.constant(-0.5)));
    shifted
        .times(log_at)
        .plus(at.negate())
        .plus(Pair::constant(x, c::HALF_LN_2PI))
        .plus(series)
        .plus(pair_log(product, terms).negate())
}

/// The logarithm of a pair, as a pair.
fn pair_log<'e, 'ctx>(x: Pair<'e, 'ctx>, terms: Terms) -> Pair<'e, 'ctx> {
    if terms == Terms::Long {
        return long_log_pair(x);
    }
    let log = log_pair(x.high);
    let sum = fast_two_sum(log.high, log.low + x.low / x.high);
    // Near 1 the first part may be smaller than the second.
    let exact = two_sum(log.high, log.low + x.low / x.high);
    let small = log.high.abs().lt(1e-10);
    Pair { high: small.select(exact.high, sum.high), low: small.select(exact.low, sum.low) }
}

/// The derivative of ln Γ(x); by PyTorch's rules at the poles.
pub(super) fn digamma<'e, 'ctx>(x: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    let [value] = x.emitter().outlined("digamma", [x], |[x]| match x.width {
        Width::F32 => [digamma_in_f64(x.widen()).narrow()],
        Width::F64 => [digamma_in_f64(x)],
    });
    value
}

fn digamma_in_f64<'e, 'ctx>(x: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    let reflect = x.lt(0.5);
    let mirrored = two_sum(x.constant(1.0), -x);
    let at =
        Pair { high: reflect.select(mirrored.high, x), low: reflect.select(mirrored.low, x.constant(0.0)) };
    let positive = digamma_positive(at);
    // ψ(x) = ψ(1-x) - π/tan(πx).
    let (sine, cosine) = sin_cos_pi(x);
    let cotangent = Pair::constant(x, [c::PI[0], c::PI[1]]).times(Pair::of(cosine)).over(Pair::of(sine));
    let reflected = positive.plus(cotangent.negate()).value();
    let value = reflect.select(reflected, positive.value());
    let tiny = x.abs().lt(1e-20);
    let value = tiny.select(x.constant(-1.0) / x, value);
    let pole = (x.lt(0.0) & x.floor().eq(x)) | x.eq(f64::NEG_INFINITY);
    let value = pole.select(f64::NAN, value);
    let value = x.eq(f64::INFINITY).select(x, value);
    x.is_nan().select(x, value)
}

/// ψ(x) of x ≥ 1/2: the asymptotic series at x + n less Σ 1/(x+k).
fn digamma_positive<'e, 'ctx>(x: Pair<'e, 'ctx>) -> Pair<'e, 'ctx> {
    let one = x.high.constant(1.0);
    let mut at = x;
    // Σ 1/(x+k) as one fraction.
    let mut top = Pair::of(x.high.constant(0.0));
    let mut bottom = Pair::of(one);
    for _ in 0..STIRLING_FROM as u32 {
        let below = at.high.lt(STIRLING_FROM);
        let pick = |a: Pair<'e, 'ctx>, b: Pair<'e, 'ctx>| Pair {
            high: below.select(a.high, b.high),
            low: below.select(a.low, b.low),
        };
        top = pick(top.times(at).plus(bottom), top);
        bottom = pick(bottom.times(at), bottom);
        at = at.plus(Pair::of(below.choose(1.0, 0.0, one)));
    }
    let inverse = Pair::of(one).over(at);
    let z = inverse.high * inverse.high;
    let series = two_product(z, z.polynomial(&c::DIGAMMA));
    pair_log(at, Terms::Short).plus(inverse.scale(-0.5)).plus(series.negate()).plus(top.over(bottom).negate())
}
