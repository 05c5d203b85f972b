//! Unevaluated sums of two floats, for the places where one float is not precise enough.

use super::lanes::Float;

/// `high + low`, the second much smaller than the first.
#[derive(Copy, Clone)]
pub(super) struct Pair<'e, 'ctx> {
    pub(super) high: Float<'e, 'ctx>,
    pub(super) low: Float<'e, 'ctx>,
}

/// a + b exactly, for |a| ≥ |b|.
pub(super) fn fast_two_sum<'e, 'ctx>(a: Float<'e, 'ctx>, b: Float<'e, 'ctx>) -> Pair<'e, 'ctx> {
    let high = a + b;
    Pair { high, low: b - (high - a) }
}

/// a + b exactly.
pub(super) fn two_sum<'e, 'ctx>(a: Float<'e, 'ctx>, b: Float<'e, 'ctx>) -> Pair<'e, 'ctx> {
    let high = a + b;
    let of_b = high - a;
    let of_a = high - of_b;
    Pair { high, low: (a - of_a) + (b - of_b) }
}

/// a·b exactly.
pub(super) fn two_product<'e, 'ctx>(a: Float<'e, 'ctx>, b: Float<'e, 'ctx>) -> Pair<'e, 'ctx> {
    let high = a * b;
    Pair { high, low: a.fma(b, -high) }
}

impl<'e, 'ctx> Pair<'e, 'ctx> {
    /// A float alone.
    pub(super) fn of(high: Float<'e, 'ctx>) -> Self {
        Pair { high, low: high.constant(0.0) }
    }

    /// A constant in two parts.
    pub(super) fn constant(like: Float<'e, 'ctx>, parts: [f64; 2]) -> Self {
        Pair { high: like.constant(parts[0]), low: like.constant(parts[1]) }
    }

    /// The sum, rounded.
    pub(super) fn value(self) -> Float<'e, 'ctx> {
        self.high + self.low
    }

    pub(super) fn plus(self, b: Self) -> Self {
        let sum = two_sum(self.high, b.high);
        fast_two_sum(sum.high, sum.low + (self.low + b.low))
    }

    pub(super) fn times(self, b: Self) -> Self {
        let product = two_product(self.high, b.high);
        let low = self.high.fma(b.low, self.low.fma(b.high, product.low));
        fast_two_sum(product.high, low)
    }

    pub(super) fn negate(self) -> Self {
        Pair { high: -self.high, low: -self.low }
    }

    pub(super) fn scale(self, power_of_two: f64) -> Self {
        Pair { high: self.high * power_of_two, low: self.low * power_of_two }
    }

    /// self/b, with one division.
    pub(super) fn over(self, b: Self) -> Self {
        let inverse = b.high.constant(1.0) / b.high;
        let quotient = self.high * inverse;
        let rest = (-quotient).fma(b.high, self.high);
        let rest = (-quotient).fma(b.low, rest + self.low);
        fast_two_sum(quotient, rest * inverse)
    }
}
