//! Alignments: bijections between the digits of two clusters' spaces, as values.
//!
//! A *natural* alignment keeps the flattened iteration order of both sides; splits and merges are allowed. Any
//! other one reorders at least one side. Computing an alignment changes nothing, so a hypothetical reordering
//! costs neither a clone nor a rollback.

use loafc_ir::size::Size;
use smallvec::SmallVec;

use crate::access::{Access, larger};
use crate::cluster::{Cluster, Member, NewDigit, Respace};

/// One outer space for two clusters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alignment {
    /// For the first cluster.
    pub first: Respace,
    /// For the second cluster.
    pub second: Respace,
}

impl Alignment {
    /// Extents of the common outer space.
    pub fn outer(&self) -> impl Iterator<Item = Size> + '_ {
        self.first.digits[..self.first.outer].iter().map(|d| d.extent)
    }

    /// How many of the two sides run in another order than before.
    pub fn reorderings(&self) -> u8 {
        u8::from(!self.first.keeps_order()) + u8::from(!self.second.keeps_order())
    }

    /// The same with the sides exchanged.
    pub fn swapped(self) -> Alignment {
        Alignment { first: self.second, second: self.first }
    }

    /// Takes the innermost digit out of the common space, if there is one; it goes to the inner spaces.
    pub fn shorten(&mut self) {
        let outer = self.first.outer.saturating_sub(1);
        self.first.outer = outer;
        self.second.outer = outer;
    }
}

/// The longest natural alignment: both outer spaces are read from the outermost digit inwards and split where
/// one digit is a multiple of the other.
pub fn natural(first: &Cluster, second: &Cluster) -> Alignment {
    if first.outer == second.outer {
        return Alignment {
            first: Respace::identity(&first.outer),
            second: Respace::identity(&second.outer),
        };
    }
    let mut left = Reader::new(&first.outer);
    let mut right = Reader::new(&second.outer);
    let (mut a, mut b) = (SmallVec::new(), SmallVec::new());
    while let (Some(x), Some(y)) = (left.current(), right.current()) {
        let common = match (x.div_exact(y), y.div_exact(x)) {
            (Some(_), _) => y,
            (_, Some(_)) => x,
            _ => break,
        };
        a.push(left.take(common));
        b.push(right.take(common));
    }
    let outer = a.len();
    left.finish(&mut a);
    right.finish(&mut b);
    Alignment { first: Respace::of_outer(a, outer), second: Respace::of_outer(b, outer) }
}

/// Takes digits off a space from the outermost on.
struct Reader<'a> {
    extents: &'a [Size],
    at: usize,
    /// What is left of the digit at `at`.
    rest: Size,
}

impl<'a> Reader<'a> {
    fn new(extents: &'a [Size]) -> Self {
        Reader { extents, at: 0, rest: extents.first().copied().unwrap_or(Size::ONE) }
    }

    fn current(&self) -> Option<Size> {
        (self.at < self.extents.len()).then_some(self.rest)
    }

    /// The upper part of this extent; it must divide what is left.
    fn take(&mut self, extent: Size) -> NewDigit {
        let weight = self.rest.div_exact(extent).expect("a divisor");
        let digit = NewDigit { from: self.at, weight, extent };
        if weight.is(1) {
            self.at += 1;
            self.rest = self.extents.get(self.at).copied().unwrap_or(Size::ONE);
        } else {
            self.rest = weight;
        }
        digit
    }

    fn finish(mut self, digits: &mut SmallVec<[NewDigit; 4]>) {
        while let Some(rest) = self.current() {
            digits.push(self.take(rest));
        }
    }
}

/// A piece that two digits have in common, or that only one side has.
#[derive(Clone, Debug)]
pub struct Piece {
    /// Number of steps.
    pub extent: Size,
    /// Digit (outer, then inner) and weight in the first cluster's member.
    pub first: Option<(usize, Size)>,
    /// The same in the second's.
    pub second: Option<(usize, Size)>,
}

/// An alignment under which two accesses to one buffer are equal: their digits are matched by stride, from the
/// smallest on, and split where one is longer. The first cluster is the anchor.
///
/// `None` where the accesses don't match digit by digit.
pub fn by_access(anchor: Site, moved: Site) -> Option<Alignment> {
    match_all(anchor, moved).map(|matched| matched.alignment(anchor.0, moved.0, Anchor::First))
}

/// As [`by_access`], where the digit of the largest stride may be longer on one side: the other one is padded.
pub fn by_padded_access(anchor: Site, moved: Site) -> Option<Alignment> {
    let matched = match_digits(anchor, moved, Ends::Padded)?;
    matched.padded.as_ref()?;
    Some(matched.alignment(anchor.0, moved.0, Anchor::First))
}

/// An access with the cluster and member that it belongs to.
pub type Site<'a> = (&'a Cluster, &'a Member, &'a Access);

/// The cluster whose order stays when digits are aligned.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// The first one.
    First,
    /// The second one.
    Second,
}

impl Matched {
    /// The common outer space of the two clusters that this match leads to.
    pub fn alignment(&self, first: &Cluster, second: &Cluster, anchor: Anchor) -> Alignment {
        let (kept, moved) = match anchor {
            Anchor::First => (first, second),
            Anchor::Second => (second, first),
        };
        let mut common: SmallVec<[(NewDigit, NewDigit); 4]> = SmallVec::new();
        let mut kept_rest: SmallVec<[NewDigit; 4]> = SmallVec::new();
        let mut moved_rest: SmallVec<[(Rank, NewDigit); 4]> = SmallVec::new();
        for piece in &self.pieces {
            let sides = match anchor {
                Anchor::First => (piece.first, piece.second),
                Anchor::Second => (piece.second, piece.first),
            };
            let part = |side: Option<(usize, Size)>, cluster: &Cluster| {
                let (from, weight) = side.filter(|s| s.0 < cluster.outer.len())?;
                Some(NewDigit { from, weight, extent: piece.extent })
            };
            match (part(sides.0, kept), part(sides.1, moved)) {
                (Some(k), Some(m)) => common.push((k, m)),
                (Some(k), None) => kept_rest.push(k),
                (None, Some(m)) => {
                    // Inner digits in the anchor's order where it has them too, so that both can share a pass.
                    let rank = match sides.0 {
                        Some((digit, weight)) => (0, digit, weight),
                        None => (1, m.from, m.weight),
                    };
                    moved_rest.push((rank, m));
                }
                (None, None) => {}
            }
        }
        sort_by(&mut common, |d| (0, d.0.from, d.0.weight));
        sort_by(&mut kept_rest, |d| (0, d.from, d.weight));
        sort_by(&mut moved_rest, |d| d.0);
        let outer = common.len();
        let kept = common.iter().map(|c| c.0).chain(kept_rest).collect();
        let moved = common.iter().map(|c| c.1).chain(moved_rest.into_iter().map(|d| d.1)).collect();
        let (kept, moved) = (Respace::of_outer(kept, outer), Respace::of_outer(moved, outer));
        let (first, second) = match anchor {
            Anchor::First => (kept, moved),
            Anchor::Second => (moved, kept),
        };
        let mut alignment = Alignment { first, second };
        if let Some(padded) = &self.padded {
            let side = if padded.first { &mut alignment.first } else { &mut alignment.second };
            let at = side.digits.iter().position(|d| (d.from, d.weight) == padded.digit);
            side.padded.extend(at.map(|at| (at, padded.extent)));
        }
        alignment
    }
}

/// Where a digit goes among others: class, digit, and weight within the digit.
type Rank = (usize, usize, Size);

/// Ascending by class and digit, within a digit from the largest weight down.
fn sort_by<T>(list: &mut [T], key: impl Fn(&T) -> Rank) {
    list.sort_by(|a, b| {
        let (a, b) = (key(a), key(b));
        (a.0, a.1).cmp(&(b.0, b.1)).then_with(|| {
            if larger(a.2, b.2) {
                std::cmp::Ordering::Less
            } else if larger(b.2, a.2) {
                std::cmp::Ordering::Greater
            } else {
                std::cmp::Ordering::Equal
            }
        })
    });
}

/// What is still to be matched of a digit.
#[derive(Copy, Clone)]
struct Open {
    stride: Size,
    extent: Size,
    digit: usize,
    weight: Size,
}

/// How the digits of two accesses correspond.
pub struct Matched {
    /// The pieces.
    pub pieces: SmallVec<[Piece; 8]>,
    /// The digit that was made longer, if any.
    padded: Option<Padded>,
}

struct Padded {
    /// Whether it is the first side's.
    first: bool,
    /// Digit and weight.
    digit: (usize, Size),
    /// Its own length.
    extent: Size,
}

/// Whether digits of the largest stride must be of one length.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Ends {
    Equal,
    Padded,
}

/// Matches the digits of two accesses to one buffer by stride. Digits that an access does not move with, and what
/// is left of one where the other access ends, are pieces of one side only. `None` where strides or extents don't
/// fit, can't be compared or are negative.
pub fn match_all(first: Site, second: Site) -> Option<Matched> {
    match_digits(first, second, Ends::Equal)
}

fn match_digits(first: Site, second: Site, ends: Ends) -> Option<Matched> {
    let (mut a, mut b) = (Digits::new(first)?, Digits::new(second)?);
    if ends == Ends::Padded && a.len() == b.len() {
        // What lies within equal digits of smaller strides is then of one length, too.
        return None;
    }
    let mut pieces = SmallVec::new();
    let mut padded = None;
    while let (Some(x), Some(y)) = (a.smallest(), b.smallest()) {
        if x.stride != y.stride {
            return None;
        }
        let (part, other) = (Some((x.digit, x.weight)), Some((y.digit, y.weight)));
        if ends == Ends::Padded && a.open == 1 && b.open == 1 && x.extent != y.extent {
            let (p, q) = (x.extent.as_const()?, y.extent.as_const()?);
            let short = if p < q { x } else { y };
            let digit = (short.digit, short.weight);
            padded = Some(Padded { first: p < q, digit, extent: short.extent });
            pieces.push(Piece { extent: Size::from(p.max(q)), first: part, second: other });
            (a.open, b.open) = (0, 0);
            break;
        }
        let extent = match (x.extent.div_exact(y.extent), y.extent.div_exact(x.extent)) {
            (Some(_), _) => y.extent,
            (_, Some(_)) => x.extent,
            _ => return None,
        };
        pieces.push(Piece { extent, first: part, second: other });
        a.take(extent)?;
        b.take(extent)?;
    }
    pieces.extend(a.left().map(|o| Piece {
        extent: o.extent,
        first: Some((o.digit, o.weight)),
        second: None,
    }));
    pieces.extend(b.left().map(|o| Piece {
        extent: o.extent,
        first: None,
        second: Some((o.digit, o.weight)),
    }));
    Some(Matched { pieces, padded })
}

/// The digits of an access that are still to be matched.
struct Digits {
    /// Digits that the access moves with, largest stride first.
    moving: SmallVec<[Open; 4]>,
    /// How many of those are left.
    open: usize,
    /// Digits that it doesn't move with.
    still: SmallVec<[Open; 4]>,
}

impl Digits {
    /// `None` where strides can't be ordered, are negative, or where the access isn't affine.
    fn new((cluster, member, access): Site) -> Option<Digits> {
        let place = access.place.as_ref()?;
        let extents = cluster.outer.iter().chain(&member.inner);
        let (mut moving, mut still) = (SmallVec::<[Open; 4]>::new(), SmallVec::new());
        for (digit, (stride, extent)) in place.strides.iter().zip(extents).enumerate() {
            let open = Open { stride: *stride, extent: *extent, digit, weight: Size::ONE };
            if stride.is(0) {
                still.push(open);
            } else {
                moving.push(open);
            }
        }
        for end in 1..moving.len() {
            let mut at = end;
            while at > 0 && larger(moving[at].stride, moving[at - 1].stride) {
                moving.swap(at - 1, at);
                at -= 1;
            }
        }
        let ordered = moving.windows(2).all(|w| larger(w[0].stride, w[1].stride));
        let positive = moving.iter().all(|o| loafc_ir::index::provably_positive(o.stride));
        let open = moving.len();
        (ordered && positive).then_some(Digits { moving, open, still })
    }

    /// Elements that the access touches.
    fn len(&self) -> Size {
        self.moving.iter().map(|o| o.extent).product()
    }

    fn smallest(&self) -> Option<Open> {
        self.moving[..self.open].last().copied()
    }

    /// Takes these many steps off the digit of the smallest stride. `None` if it can't be divided so.
    fn take(&mut self, steps: Size) -> Option<()> {
        let open = &mut self.moving[self.open - 1];
        open.extent = open.extent.div_exact(steps)?;
        open.stride *= steps;
        open.weight *= steps;
        if open.extent.is(1) {
            self.open -= 1;
        }
        Some(())
    }

    /// Those that the access doesn't move with, then what was not matched.
    fn left(&self) -> impl Iterator<Item = &Open> {
        self.still.iter().chain(&self.moving[..self.open])
    }
}
