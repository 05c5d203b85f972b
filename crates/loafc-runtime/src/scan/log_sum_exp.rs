//! Running logarithms of sums of exponentials, in f64. The state is the largest element so far and the sum of
//! exponentials of all others' distances below it: with the largest one's own 1 left out, sums far below 1 keep all
//! their digits, as they do where PyTorch adds one element after the other by `log1p`.

use std::f64::consts::{LN_2, LOG2_E};
use std::marker::PhantomData;

use super::element::{Brain, Element, Half};
use super::operation::{Join, Operation, State};

/// Elements whose exponentials are computed at once where one line goes alone.
const PIECE: usize = 64;

/// An element that f64 stands in for.
pub(super) trait Logarithm: Element {
    fn wide(self) -> f64;
    fn of(x: f64) -> Self;
}

macro_rules! logarithm {
    ($element:ty, $wide:expr, $of:expr) => {
        impl Logarithm for $element {
            #[inline(always)]
            fn wide(self) -> f64 {
                $wide(self)
            }

            #[inline(always)]
            fn of(x: f64) -> $element {
                $of(x)
            }
        }
    };
}
logarithm!(f64, |x| x, |x| x);
logarithm!(f32, f64::from, |x| x as f32);
logarithm!(Half, |x: Half| f64::from(x.wide()), |x| Half::of(x as f32));
logarithm!(Brain, |x: Brain| f64::from(x.wide()), |x| Brain::of(x as f32));

/// Running logarithms of sums of exponentials.
pub(super) struct LogSumExp<E>(PhantomData<E>);

impl<E: Logarithm> Operation for LogSumExp<E> {
    type Element = E;
    type Position = ();
    type First = f64;
    type Second = f64;
    const START: State<Self> = (f64::NEG_INFINITY, 0.0);
    const JOIN: Join<Self> = Join::Never;
    const CHAINS: usize = 1;
    const HEAVY: bool = true;

    #[inline(always)]
    fn step((largest, sum): State<Self>, x: E, _at: i64) -> State<Self> {
        let x = x.wide();
        let distant = exp(-distance(x, largest));
        (larger(x, largest), next(sum, x > largest, distant))
    }

    #[inline(always)]
    fn value((largest, sum): State<Self>) -> E {
        E::of(largest + log1p(sum))
    }

    #[inline(always)]
    fn position(_state: State<Self>) {}

    /// Only the largest element and the sum wait for those before; all else of a piece is computed in vectors.
    #[inline(always)]
    fn along<const LINES: usize>(
        states: &mut [State<Self>; LINES],
        _begins: [i64; LINES],
        from: [&[E]; LINES],
        to: [&mut [E]; LINES],
        _positions: [&mut [()]; LINES],
    ) {
        for ((state, from), to) in states.iter_mut().zip(from).zip(to) {
            for (from, to) in from.chunks(PIECE).zip(to.chunks_mut(PIECE)) {
                *state = along_piece(*state, from, to);
            }
        }
    }
}

/// Goes along at most [`PIECE`] elements.
#[inline(always)]
fn along_piece<E: Logarithm>(state: (f64, f64), from: &[E], to: &mut [E]) -> (f64, f64) {
    let (mut largest, mut sum) = state;
    let (mut wide, mut before, mut distant, mut sums) =
        ([0.0; PIECE], [0.0; PIECE], [0.0; PIECE], [0.0; PIECE]);
    let count = from.len().min(to.len()).min(PIECE);
    // Whole vectors, of elements that are not there too.
    let vectors = count.next_multiple_of(8);
    for k in 0..count {
        wide[k] = from[k].wide();
        before[k] = largest;
        largest = larger(wide[k], largest);
    }
    for k in 0..vectors {
        distant[k] = exp(-distance(wide[k], before[k]));
    }
    for k in 0..count {
        sum = next(sum, wide[k] > before[k], distant[k]);
        sums[k] = sum;
    }
    for k in 0..vectors {
        wide[k] = larger(wide[k], before[k]) + log1p(sums[k]);
    }
    for k in 0..count {
        to[k] = E::of(wide[k]);
    }
    (largest, sum)
}

/// The larger one; `largest` where `x` is NaN, which goes on in the sum.
#[inline(always)]
fn larger(x: f64, largest: f64) -> f64 {
    if x > largest { x } else { largest }
}

/// How far two elements lie from each other: equal infinities don't.
#[inline(always)]
fn distance(x: f64, largest: f64) -> f64 {
    if x == largest { 0.0 } else { (x - largest).abs() }
}

/// The sum behind an element: if it becomes the largest one, the sum and the one that was the largest are taken
/// relative to it.
#[inline(always)]
fn next(sum: f64, becomes_largest: bool, distant: f64) -> f64 {
    sum.mul_add(if becomes_largest { distant } else { 1.0 }, distant)
}

/// Added to a number, rounds it to a whole one, which then stands in the last bits.
const ROUNDS: f64 = 6_755_399_441_055_744.0;
/// The natural logarithm of 2 in two parts; products of the first with exponents are exact.
const LN_2_HIGH: f64 = f64::from_bits(LN_2.to_bits() & !0x7ff_ffff);
/// ln 2 - LN_2_HIGH.
const LN_2_LOW: f64 = LN_2 - LN_2_HIGH + 2.319_046_813_846_299_6e-17;
/// Below it exponentials are no normal numbers, and count for nothing.
const LEAST_EXPONENT: f64 = -708.0;

/// 1/k! from k = 13 down to 2.
const EXPONENTIAL: [f64; 12] = {
    let mut terms = [0.0; 12];
    let mut factorial = 1.0;
    let mut k = 2;
    while k <= 13 {
        factorial *= k as f64;
        terms[13 - k] = 1.0 / factorial;
        k += 1;
    }
    terms
};

/// e^x for x ≤ 0, and NaN for NaN.
#[inline(always)]
fn exp(x: f64) -> f64 {
    let shifted = x.mul_add(LOG2_E, ROUNDS);
    let whole = shifted - ROUNDS;
    let rest = whole.mul_add(-LN_2_LOW, whole.mul_add(-LN_2_HIGH, x));
    let tail = EXPONENTIAL.iter().fold(0.0, |sum: f64, term| sum.mul_add(rest, *term));
    let fraction = (rest * rest).mul_add(tail, rest) + 1.0;
    let power = f64::from_bits((shifted.to_bits() << 52).wrapping_add(1.0f64.to_bits()));
    if x < LEAST_EXPONENT { 0.0 } else { fraction * power }
}

/// 2/(2k + 1) from k = 11 down to 1: the inverse hyperbolic tangent behind its first term, twice.
const LOGARITHM: [f64; 11] = {
    let mut terms = [0.0; 11];
    let mut k = 1;
    while k <= 11 {
        terms[11 - k] = 2.0 / (2 * k + 1) as f64;
        k += 1;
    }
    terms
};

/// ln(1 + x) for finite x ≥ 0, and NaN for NaN.
#[inline(always)]
fn log1p(x: f64) -> f64 {
    let sum = 1.0 + x;
    // What the sum was rounded by.
    let lost = (x - (sum - 1.0)) / sum;
    let exponent = sum.to_bits().wrapping_sub(std::f64::consts::FRAC_1_SQRT_2.to_bits()) >> 52;
    let fraction = f64::from_bits(sum.to_bits().wrapping_sub(exponent << 52));
    let exponent = f64::from_bits(ROUNDS.to_bits().wrapping_add(exponent)) - ROUNDS;
    let (above, ratio) = (fraction - 1.0, (fraction - 1.0) / (fraction + 1.0));
    let square = ratio * ratio;
    let tail = LOGARITHM.iter().fold(0.0, |sum: f64, term| sum.mul_add(square, *term));
    // ln(1 + a) = a - a·r + r·tail, for a/(2 + a) = r: the largest term is exact.
    let logarithm = ratio.mul_add(square.mul_add(tail, -above), above);
    exponent.mul_add(LN_2_HIGH, exponent.mul_add(LN_2_LOW, lost) + logarithm)
}
