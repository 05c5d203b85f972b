//! fmod, remainder and floor division of floats, by PyTorch's rules; nextafter. The remainder is exact: each step
//! subtracts the rounded quotient times the divisor in one fused operation whose result needs no rounding.

use super::lanes::{Float, Width};

/// The remainder of the dividend's sign.
pub(super) fn fmod<'e, 'ctx>(a: Float<'e, 'ctx>, b: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    let divisor = b.abs();
    // Quotients beyond the range of floats are first reduced by a multiple of the divisor.
    let large_factor = match a.width {
        Width::F32 => 2f64.powi(100),
        Width::F64 => 2f64.powi(900),
    };
    let large = divisor * large_factor;
    let larger = large * large_factor;
    let rest = a.emitter().repeat(a.abs(), |rest| {
        let step = rest.abs().ge(large).select(large, divisor);
        let step = rest.abs().ge(larger).select(larger, step);
        let quotient = (rest / step).round_even();
        let next = (-quotient).fma(step, rest);
        (next, next.abs().ge(divisor) & divisor.gt(0.0) & next.abs().lt(f64::INFINITY))
    });
    // Rounding to the nearest may have gone one too far.
    let rest = rest.lt(0.0).select(rest + divisor, rest);
    let rest = (divisor.is_inf() & a.abs().lt(f64::INFINITY)).select(a, rest);
    rest.copysign(a)
}

/// The remainder of the divisor's sign.
pub(super) fn remainder<'e, 'ctx>(a: Float<'e, 'ctx>, b: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    let rest = fmod(a, b);
    wraps(rest, b).select(rest + b, rest)
}

/// Whether a remainder is not zero and has not the divisor's sign.
fn wraps<'e, 'ctx>(rest: Float<'e, 'ctx>, b: Float<'e, 'ctx>) -> super::lanes::Mask<'e, 'ctx> {
    rest.ne(0.0) & (b.lt(0.0) ^ rest.lt(0.0))
}

/// The quotient rounded towards minus infinity.
pub(super) fn floor_divide<'e, 'ctx>(a: Float<'e, 'ctx>, b: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    let rest = fmod(a, b);
    let quotient = (a - rest) / b;
    let quotient = wraps(rest, b).select(quotient - 1.0, quotient);
    let floor = quotient.floor();
    let floor = (quotient - floor).gt(0.5).select(floor + 1.0, floor);
    let plain = a / b;
    let value = quotient.eq(0.0).select(plain.constant(0.0).copysign(plain), floor);
    b.eq(0.0).select(plain, value)
}

/// The float next to a in the direction of b.
pub(super) fn nextafter<'e, 'ctx>(a: Float<'e, 'ctx>, b: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    let bits = a.bits();
    let away = a.lt(b) ^ a.sign_bit();
    let moved = away.select_int(bits + 1, bits - 1).as_float();
    let smallest = (bits.constant(1) | (b.bits() & a.width.sign_mask())).as_float();
    let value = a.eq(0.0).select(smallest, moved);
    let value = a.eq(b).select(b, value);
    (a.is_nan() | b.is_nan()).select(a + b, value)
}
