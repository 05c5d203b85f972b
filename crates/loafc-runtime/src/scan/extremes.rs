//! Running maxima and minima with their positions: the last of equal elements, and NaN before all numbers, as PyTorch
//! takes them.

use std::marker::PhantomData;

use super::element::{Brain, Element, Half};
use super::operation::{Join, Operation, Position, State};

/// An element with an order.
pub(super) trait Compared: Element {
    /// What is compared in place of it.
    type Key: Copy + PartialOrd + Default + Send + Sync;
    /// Below all others or equal to them.
    const LEAST: Self::Key;
    /// Above all others or equal to them.
    const LARGEST: Self::Key;

    fn key(self) -> Self::Key;
    fn of(key: Self::Key) -> Self;
}

/// Implements [`Compared`].
macro_rules! compared {
    ($element:ty, $key:ty, $least:expr, $largest:expr, $of_element:expr, $of_key:expr) => {
        impl Compared for $element {
            type Key = $key;
            const LEAST: $key = $least;
            const LARGEST: $key = $largest;

            #[inline(always)]
            fn key(self) -> $key {
                $of_element(self)
            }

            #[inline(always)]
            fn of(key: $key) -> $element {
                $of_key(key)
            }
        }
    };
}

macro_rules! whole {
    ($($element:ty)*) => {
        $(compared!($element, $element, <$element>::MIN, <$element>::MAX, |x| x, |key| key);)*
    };
}

whole!(i64 i32 u8);
compared!(f64, f64, f64::NEG_INFINITY, f64::INFINITY, |x| x, |key| key);
compared!(f32, f32, f32::NEG_INFINITY, f32::INFINITY, |x| x, |key| key);
compared!(Half, f32, f32::NEG_INFINITY, f32::INFINITY, Half::wide, Half::of);
compared!(Brain, f32, f32::NEG_INFINITY, f32::INFINITY, Brain::wide, Brain::of);

/// Which of two elements is the extreme one.
pub(super) trait Order: 'static {
    type Element: Compared;
    /// What every element takes the place of.
    const START: Key<Self>;

    /// Whether `later` is as extreme as `earlier` or more; false where one is NaN.
    fn reaches(later: Key<Self>, earlier: Key<Self>) -> bool;
}

type Key<O> = <<O as Order>::Element as Compared>::Key;

pub(super) struct Maximum<E>(PhantomData<E>);

impl<E: Compared> Order for Maximum<E> {
    type Element = E;
    const START: E::Key = E::LEAST;

    #[inline(always)]
    fn reaches(later: E::Key, earlier: E::Key) -> bool {
        later >= earlier
    }
}

pub(super) struct Minimum<E>(PhantomData<E>);

impl<E: Compared> Order for Minimum<E> {
    type Element = E;
    const START: E::Key = E::LARGEST;

    #[inline(always)]
    fn reaches(later: E::Key, earlier: E::Key) -> bool {
        later <= earlier
    }
}

/// Running extremes; `P` are their positions, `()` where nobody asks for them.
pub(super) struct Extreme<O, P>(PhantomData<(O, P)>);

impl<O: Order, P: Position> Extreme<O, P> {
    /// Whether an element takes the place of the extreme one before it.
    #[inline(always)]
    fn takes(later: Key<O>, earlier: Key<O>) -> bool {
        is_nan(later) | (!is_nan(earlier) & O::reaches(later, earlier))
    }

    #[inline(always)]
    fn later(before: State<Self>, after: State<Self>) -> State<Self> {
        if Self::takes(after.0, before.0) { after } else { before }
    }

    /// Goes along a line's elements, the first of which lies at this position, by blocks of `LANES`.
    #[inline(always)]
    fn along_blocks<const LANES: usize, L: Lane>(
        mut state: State<Self>,
        mut at: i64,
        from: &[O::Element],
        to: &mut [O::Element],
        positions: &mut [P],
    ) -> State<Self> {
        let (from, from_rest) = from.as_chunks::<LANES>();
        let (to, to_rest) = to.as_chunks_mut::<LANES>();
        let (positions, positions_rest) = positions.as_chunks_mut::<LANES>();
        for ((from, to), positions) in from.iter().zip(to).zip(positions) {
            let keys = from.map(Compared::key);
            state = if keys.iter().fold(is_nan(state.0), |any, key| any | is_nan(*key)) {
                Self::along_one_by_one(state, at, from, to, positions)
            } else {
                Self::along_block::<LANES, L>(state, at, keys, to, positions)
            };
            at += LANES as i64;
        }
        Self::along_one_by_one(state, at, from_rest, to_rest, positions_rest)
    }

    #[inline(always)]
    fn along_one_by_one(
        mut state: State<Self>,
        begin: i64,
        from: &[O::Element],
        to: &mut [O::Element],
        positions: &mut [P],
    ) -> State<Self> {
        for (((x, to), position), at) in from.iter().zip(to).zip(positions).zip(begin..) {
            state = Self::step(state, *x, at);
            (*to, *position) = (Self::value(state), state.1);
        }
        state
    }

    /// Goes along a block of numbers. Most elements take nobody's place, so that most blocks are filled; in others each
    /// element is compared with that 1, 2, 4 and 8 places before it, whatever the elements are.
    #[inline(always)]
    fn along_block<const LANES: usize, L: Lane>(
        state: State<Self>,
        begin: i64,
        keys: [Key<O>; LANES],
        to: &mut [O::Element; LANES],
        positions: &mut [P; LANES],
    ) -> State<Self> {
        let (best, place) = state;
        if !keys.iter().fold(false, |any, key| any | O::reaches(*key, best)) {
            to.fill(O::Element::of(best));
            positions.fill(place);
            return state;
        }
        let (mut extremes, mut lanes) = (keys, L::count::<LANES>());
        Self::compare_back::<1, LANES, L>(&mut extremes, &mut lanes);
        Self::compare_back::<2, LANES, L>(&mut extremes, &mut lanes);
        Self::compare_back::<4, LANES, L>(&mut extremes, &mut lanes);
        if LANES > 8 {
            Self::compare_back::<8, LANES, L>(&mut extremes, &mut lanes);
        }
        // Selected one by one: as pairs they would not be vectors.
        for k in 0..LANES {
            let takes = O::reaches(extremes[k], best);
            extremes[k] = if takes { extremes[k] } else { best };
            positions[k] = if takes { P::of(begin + lanes[k].wide()) } else { place };
        }
        *to = extremes.map(O::Element::of);
        (extremes[LANES - 1], positions[LANES - 1])
    }

    /// Puts the more extreme one of each element and that `BACK` places before it in its place.
    #[inline(always)]
    fn compare_back<const BACK: usize, const LANES: usize, L: Lane>(
        keys: &mut [Key<O>; LANES],
        lanes: &mut [L; LANES],
    ) {
        let (before, lanes_before) = (*keys, *lanes);
        for k in 0..LANES {
            let earlier = if k >= BACK { k - BACK } else { k };
            let takes = O::reaches(before[k], before[earlier]);
            keys[k] = if takes { before[k] } else { before[earlier] };
            lanes[k] = if takes { lanes_before[k] } else { lanes_before[earlier] };
        }
    }
}

/// A position in a block, as wide as the keys, so that vectors hold as many.
trait Lane: Copy {
    fn count<const LANES: usize>() -> [Self; LANES];
    fn wide(self) -> i64;
}

macro_rules! lane {
    ($($lane:ty)*) => {
        $(impl Lane for $lane {
            #[inline(always)]
            fn count<const LANES: usize>() -> [$lane; LANES] {
                std::array::from_fn(|k| k as $lane)
            }

            #[inline(always)]
            fn wide(self) -> i64 {
                self as i64
            }
        })*
    };
}
lane!(i32 i64);

/// The one thing that isn't equal to itself.
#[inline(always)]
#[allow(clippy::eq_op, reason = "whole numbers have no `is_nan`")]
fn is_nan<K: PartialOrd>(key: K) -> bool {
    key != key
}

impl<O: Order, P: Position> Operation for Extreme<O, P> {
    type Element = O::Element;
    type Position = P;
    type First = Key<O>;
    type Second = P;
    const START: State<Self> = (O::START, P::FIRST);
    const JOIN: Join<Self> = Join::Exact(|before, after| Self::later(before, after));
    const CHAINS: usize = 1;

    #[inline(always)]
    fn step(state: State<Self>, x: O::Element, at: i64) -> State<Self> {
        Self::later(state, (x.key(), P::of(at)))
    }

    #[inline(always)]
    fn value(state: State<Self>) -> O::Element {
        O::Element::of(state.0)
    }

    #[inline(always)]
    fn position(state: State<Self>) -> P {
        state.1
    }

    #[inline(always)]
    fn along<const LINES: usize>(
        states: &mut [State<Self>; LINES],
        begins: [i64; LINES],
        from: [&[O::Element]; LINES],
        to: [&mut [O::Element]; LINES],
        positions: [&mut [P]; LINES],
    ) {
        let lines = states.iter_mut().zip(begins).zip(from).zip(to.into_iter().zip(positions));
        for (((state, at), from), (to, positions)) in lines {
            *state = match size_of::<Key<O>>() {
                8 => Self::along_blocks::<8, i64>(*state, at, from, to, positions),
                _ => Self::along_blocks::<16, i32>(*state, at, from, to, positions),
            };
        }
    }
}
