//! Running sums and products. Floats go in twice their width where PyTorch's do, one after the other along the line.

use std::marker::PhantomData;

use super::element::{Brain, Element, Half};
use super::operation::{Join, MOST_CHAINS, Operation, State, step_by_step};

/// Elements of a line that become wide at once.
const PIECE: usize = 64;
/// Lines shorter than this are not worth it.
const SHORT: usize = 16;

/// How lines can be cut; see [`Join`].
#[derive(Copy, Clone)]
pub(super) enum Cut {
    Never,
    Close,
    Exact,
}

/// An element, and what it is summed in.
pub(super) trait Summed: Element {
    type Sum: Copy + Send + Sync;
    const ZERO: Self::Sum;
    const ONE: Self::Sum;
    /// Whether it is a whole number.
    const WHOLE: bool;
    /// Whether it takes more than an instruction to make it wide or narrow.
    const NARROW: bool;
    /// How lines are cut for sums: never where these may become infinite on the way.
    const SUMS_CUT: Cut;

    fn wide(self) -> Self::Sum;
    fn of(sum: Self::Sum) -> Self;
    fn add(a: Self::Sum, b: Self::Sum) -> Self::Sum;
    fn multiply(a: Self::Sum, b: Self::Sum) -> Self::Sum;
}

/// Implements [`Summed`].
macro_rules! summed {
    ($element:ty, $sum:ty, $whole:expr, $cut:expr, $zero:expr, $one:expr, $wide:expr, $of:expr, $add:expr, $multiply:expr) => {
        impl Summed for $element {
            type Sum = $sum;
            const ZERO: $sum = $zero;
            const ONE: $sum = $one;
            const WHOLE: bool = $whole;
            const NARROW: bool = size_of::<$element>() == 2;
            const SUMS_CUT: Cut = $cut;

            #[inline(always)]
            fn wide(self) -> $sum {
                $wide(self)
            }

            #[inline(always)]
            fn of(sum: $sum) -> $element {
                $of(sum)
            }

            #[inline(always)]
            fn add(a: $sum, b: $sum) -> $sum {
                $add(a, b)
            }

            #[inline(always)]
            fn multiply(a: $sum, b: $sum) -> $sum {
                $multiply(a, b)
            }
        }
    };
}

macro_rules! float {
    ($element:ty, $sum:ty, $cut:expr, $wide:expr, $of:expr) => {
        summed!($element, $sum, false, $cut, 0.0, 1.0, $wide, $of, |a, b| a + b, |a, b| a * b);
    };
}

macro_rules! whole {
    ($($element:ident)*) => {
        $(summed!(
            $element, $element, true, Cut::Exact, 0, 1, |x| x, |sum| sum, $element::wrapping_add, $element::wrapping_mul
        );)*
    };
}

float!(f64, f64, Cut::Never, |x| x, |sum| sum);
float!(f32, f64, Cut::Close, f64::from, |sum| sum as f32);
float!(Half, f32, Cut::Never, Half::wide, Half::of);
float!(Brain, f32, Cut::Never, Brain::wide, Brain::of);
whole!(i64 i32);

/// Which of the two.
pub(super) trait Rule<E: Summed>: Sized + 'static {
    const START: E::Sum;
    const JOIN: Join<Running<E, Self>>;
    const CHAINS: usize;

    fn put(total: E::Sum, x: E::Sum) -> E::Sum;
}

pub(super) struct Adding;

impl<E: Summed> Rule<E> for Adding {
    const START: E::Sum = E::ZERO;
    const JOIN: Join<Running<E, Self>> = match E::SUMS_CUT {
        Cut::Never => Join::Never,
        Cut::Close => Join::Close(|before, after| (E::add(before.0, after.0), ())),
        Cut::Exact => Join::Exact(|before, after| (E::add(before.0, after.0), ())),
    };
    const CHAINS: usize = if E::WHOLE { 1 } else { MOST_CHAINS };

    #[inline(always)]
    fn put(total: E::Sum, x: E::Sum) -> E::Sum {
        E::add(total, x)
    }
}

pub(super) struct Multiplying;

impl<E: Summed> Rule<E> for Multiplying {
    const START: E::Sum = E::ONE;
    /// Products of floats overflow and vanish on the way, also in twice the width.
    const JOIN: Join<Running<E, Self>> = if E::WHOLE {
        Join::Exact(|before, after| (E::multiply(before.0, after.0), ()))
    } else {
        Join::Never
    };
    const CHAINS: usize = MOST_CHAINS;

    #[inline(always)]
    fn put(total: E::Sum, x: E::Sum) -> E::Sum {
        E::multiply(total, x)
    }
}

/// Running sums.
pub(super) type Sum<E> = Running<E, Adding>;
/// Running products.
pub(super) type Product<E> = Running<E, Multiplying>;

/// Running sums or products.
pub(super) struct Running<E, R>(PhantomData<E>, PhantomData<R>);

impl<E: Summed, R: Rule<E>> Operation for Running<E, R> {
    type Element = E;
    type Position = ();
    type First = E::Sum;
    type Second = ();
    const START: State<Self> = (R::START, ());
    const JOIN: Join<Self> = R::JOIN;
    const CHAINS: usize = R::CHAINS;

    #[inline(always)]
    fn step(state: State<Self>, x: E, _at: i64) -> State<Self> {
        (R::put(state.0, x.wide()), ())
    }

    #[inline(always)]
    fn value(state: State<Self>) -> E {
        E::of(state.0)
    }

    #[inline(always)]
    fn position(_state: State<Self>) {}

    /// Elements of 16 bits become wide and narrow again in vectors; only sums wait for those before. Products of whole
    /// numbers go the same way: in memory that is surely none of the results' they need no checks.
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "elements of several lines are taken in turn")]
    fn along<const LINES: usize>(
        states: &mut [State<Self>; LINES],
        begins: [i64; LINES],
        from: [&[E]; LINES],
        to: [&mut [E]; LINES],
        positions: [&mut [()]; LINES],
    ) {
        let count = from.iter().map(|f| f.len()).min().unwrap_or(0);
        if count < SHORT || !(E::NARROW || (E::WHOLE && LINES > 1)) {
            return step_by_step::<Self, LINES>(states, begins, from, to, positions);
        }
        let from = from.map(|f| &f[..count]);
        let to = to.map(|t| &mut t[..count]);
        let mut wide = [[R::START; PIECE]; LINES];
        for begin in (0..count).step_by(PIECE) {
            let length = PIECE.min(count - begin);
            for line in 0..LINES {
                for (wide, x) in wide[line].iter_mut().zip(&from[line][begin..begin + length]) {
                    *wide = x.wide();
                }
            }
            for k in 0..length {
                for line in 0..LINES {
                    states[line].0 = R::put(states[line].0, wide[line][k]);
                    wide[line][k] = states[line].0;
                }
            }
            for line in 0..LINES {
                for (x, wide) in to[line][begin..begin + length].iter_mut().zip(&wide[line]) {
                    *x = E::of(*wide);
                }
            }
        }
    }
}
