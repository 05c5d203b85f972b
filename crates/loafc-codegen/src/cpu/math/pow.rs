//! pow by C's rules, and hypot.

use super::exp::{exp_of_pair, exp_short};
use super::lanes::{Float, Mask, Width};
use super::log::{log_pair, log_short};
use super::pair::{Pair, two_product};

/// x to the power of y.
pub(super) fn pow<'e, 'ctx>(x: Float<'e, 'ctx>, y: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    let magnitude = match x.width {
        Width::F32 => pow_f32(x.abs().widen(), y.widen()).narrow(),
        Width::F64 => pow_f64(x.abs(), y),
    };
    let integer = y.trunc().eq(y);
    let half = y * 0.5;
    let odd = integer & half.trunc().ne(half) & y.abs().lt(f64::INFINITY);
    let negative = x.sign_bit();
    let signed = (negative & odd).select(-magnitude, magnitude);
    let undefined = x.lt(0.0) & x.gt(f64::NEG_INFINITY) & !integer;
    let value = undefined.select(f64::NAN, signed);
    (x.eq(1.0) | y.eq(0.0)).select(1.0, value)
}

/// a^y of a ≥ 0 where the logarithm of zero and infinity is infinite, and 1^±inf is 1.
fn pow_f64<'e, 'ctx>(a: Float<'e, 'ctx>, y: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    let log = log_pair(a);
    // Larger exponents change nothing but would overflow in between.
    let bounded = y.at_most(1e30).at_least(-1e30);
    let product = two_product(log.high, bounded);
    let low = bounded.fma(log.low, product.low);
    let value = exp_of_pair(Pair { high: product.high, low });
    limits(a, y, value)
}

fn pow_f32<'e, 'ctx>(a: Float<'e, 'ctx>, y: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    let exponent = log_short(a) * y.at_most(1e30).at_least(-1e30);
    let value = exp_short(exponent.at_most(700.0).at_least(-700.0));
    limits(a, y, value)
}

/// The result for a base of zero, infinity or NaN, and for 1^±inf.
fn limits<'e, 'ctx>(a: Float<'e, 'ctx>, y: Float<'e, 'ctx>, value: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    let extreme: Mask = a.eq(0.0) | a.is_inf();
    let grows = y.gt(0.0) ^ a.eq(0.0);
    let value = extreme.select(grows.choose(f64::INFINITY, 0.0, a), value);
    let value = (a.eq(1.0) & y.is_inf()).select(1.0, value);
    (a.is_nan() | y.is_nan()).select(a + y, value)
}

/// √(x² + y²); infinite if either is.
pub(super) fn hypot<'e, 'ctx>(x: Float<'e, 'ctx>, y: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    let infinite = x.is_inf() | y.is_inf();
    let value = match x.width {
        Width::F32 => {
            let (a, b) = (x.widen(), y.widen());
            a.fma(a, b * b).sqrt().narrow()
        }
        Width::F64 => hypot_f64(x.abs(), y.abs()),
    };
    infinite.select(f64::INFINITY, value)
}

fn hypot_f64<'e, 'ctx>(x: Float<'e, 'ctx>, y: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    let swap = y.gt(x);
    let (a, b) = (swap.select(y, x), swap.select(x, y));
    let (large, small) = (a.gt(1e150), a.lt(1e-140));
    let up = 2f64.powi(600);
    let down = 2f64.powi(-600);
    let factor = large.select(down, small.choose(up, 1.0, a));
    let back = large.select(up, small.choose(down, 1.0, a));
    let (a, b) = (a * factor, b * factor);
    a.fma(a, b * b).sqrt() * back
}
