//! What a scan computes: the state that goes along a line, how an element changes it, and what it leaves there.

use super::element::Element;

/// What goes along a line: two parts, because those of lines beside each other lie in two arrays, so that vectors
/// hold either. The second is `()` where one is enough.
pub(super) type State<O> = (<O as Operation>::First, <O as Operation>::Second);

/// How the state behind a line is made of those behind its parts, the state before and that of a part from the start.
pub(super) enum Join<O: Operation + ?Sized> {
    /// Not at all.
    Never,
    /// So that results may differ in bits far below their last ones.
    Close(fn(State<O>, State<O>) -> State<O>),
    /// So that results are the same whether a line is cut or not.
    Exact(fn(State<O>, State<O>) -> State<O>),
}

/// Most lines apart from each other that go together.
pub(super) const MOST_CHAINS: usize = 4;

/// An operation along lines. All functions have to be `#[inline(always)]`.
pub(super) trait Operation: 'static {
    /// Elements of operand and result.
    type Element: Element;
    /// Elements of the second result; `()` where there is none.
    type Position: Position;
    type First: Copy + Send + Sync;
    type Second: Copy + Send + Sync;

    /// The state before the first element.
    const START: State<Self>;

    /// How lines can be cut.
    const JOIN: Join<Self>;

    /// How many lines that lie apart go together, 1 or [`MOST_CHAINS`]: few where steps are short.
    const CHAINS: usize;

    /// Whether a step takes so many instructions that the widest vectors are worth their code.
    const HEAVY: bool = false;

    /// The state behind an element, which lies at this position of its line.
    fn step(state: State<Self>, x: Self::Element, at: i64) -> State<Self>;

    /// What the state leaves in the result.
    fn value(state: State<Self>) -> Self::Element;

    /// What it leaves in the second result.
    fn position(state: State<Self>) -> Self::Position;

    /// Goes along pieces of as many lines, all of the same length, which begin at these positions.
    #[inline(always)]
    fn along<const LINES: usize>(
        states: &mut [State<Self>; LINES],
        begins: [i64; LINES],
        from: [&[Self::Element]; LINES],
        to: [&mut [Self::Element]; LINES],
        positions: [&mut [Self::Position]; LINES],
    ) {
        step_by_step::<Self, LINES>(states, begins, from, to, positions);
    }

    /// Goes along pieces as [`Operation::along`] does, and leaves nothing there.
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "elements of several lines are taken in turn")]
    fn fold<const LINES: usize>(
        states: &mut [State<Self>; LINES],
        begins: [i64; LINES],
        from: [&[Self::Element]; LINES],
    ) {
        let count = from.iter().map(|f| f.len()).min().unwrap_or(0);
        let from = from.map(|f| &f[..count]);
        for k in 0..count {
            for line in 0..LINES {
                states[line] = Self::step(states[line], from[line][k], begins[line] + k as i64);
            }
        }
    }
}

/// What [`Operation::along`] does unless an operation has a better way.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "elements of several lines are taken in turn")]
pub(super) fn step_by_step<O: Operation + ?Sized, const LINES: usize>(
    states: &mut [State<O>; LINES],
    begins: [i64; LINES],
    from: [&[O::Element]; LINES],
    to: [&mut [O::Element]; LINES],
    positions: [&mut [O::Position]; LINES],
) {
    let count = from.iter().map(|f| f.len()).min().unwrap_or(0);
    let from = from.map(|f| &f[..count]);
    let to = to.map(|t| &mut t[..count]);
    let positions = positions.map(|p| &mut p[..count]);
    for k in 0..count {
        for line in 0..LINES {
            let state = O::step(states[line], from[line][k], begins[line] + k as i64);
            to[line][k] = O::value(state);
            positions[line][k] = O::position(state);
            states[line] = state;
        }
    }
}

/// An element's position as a second result.
pub(super) trait Position: Copy + Default + Send + Sync + 'static {
    const FIRST: Self;

    fn of(at: i64) -> Self;
}

impl Position for i64 {
    const FIRST: i64 = 0;

    #[inline(always)]
    fn of(at: i64) -> i64 {
        at
    }
}

impl Position for () {
    const FIRST: () = ();

    #[inline(always)]
    fn of(_at: i64) {}
}
