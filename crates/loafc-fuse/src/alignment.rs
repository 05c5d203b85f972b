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
    pub fn reorderings(&self) -> usize {
        usize::from(!self.first.keeps_order()) + usize::from(!self.second.keeps_order())
    }

    /// The same with the sides exchanged.
    pub fn swapped(self) -> Alignment {
        Alignment { first: self.second, second: self.first }
    }

    /// The common space without its innermost digit, which goes to the inner spaces.
    pub fn shortened(&self) -> Option<Alignment> {
        let outer = self.first.outer.checked_sub(1)?;
        let mut shorter = self.clone();
        shorter.first.outer = outer;
        shorter.second.outer = outer;
        Some(shorter)
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
/// smallest on, and split where one is longer. The first cluster is the anchor, whose order stays.
///
/// `None` where the accesses don't match digit by digit.
pub fn by_access(anchor: Site, moved: Site) -> Option<Alignment> {
    let matched = match_digits(anchor, moved, Ends::Equal)?;
    Some(from_pieces(&matched, anchor.0.outer.len(), moved.0.outer.len()))
}

/// As [`by_access`], where the digit of the largest stride may be longer on one side: the other one is padded.
pub fn by_padded_access(anchor: Site, moved: Site) -> Option<Alignment> {
    let matched = match_digits(anchor, moved, Ends::Padded)?;
    matched.padded.as_ref()?;
    Some(from_pieces(&matched, anchor.0.outer.len(), moved.0.outer.len()))
}

/// An access with the cluster and member that it belongs to.
pub type Site<'a> = (&'a Cluster, &'a Member, &'a Access);

fn from_pieces(matched: &Matched, first_outer: usize, second_outer: usize) -> Alignment {
    let mut common: SmallVec<[(NewDigit, NewDigit); 6]> = SmallVec::new();
    let mut first_rest: SmallVec<[NewDigit; 4]> = SmallVec::new();
    let mut second_rest: SmallVec<[(Rank, NewDigit); 6]> = SmallVec::new();
    for piece in &matched.pieces {
        let part = |side: Option<(usize, Size)>, outer: usize| {
            side.filter(|s| s.0 < outer).map(|(from, weight)| NewDigit { from, weight, extent: piece.extent })
        };
        let (f, s) = (part(piece.first, first_outer), part(piece.second, second_outer));
        match (f, s) {
            (Some(f), Some(s)) => common.push((f, s)),
            (Some(f), None) => first_rest.push(f),
            (None, Some(s)) => {
                // Inner digits in the anchor's order where it has them too, so that both can share a pass.
                let rank = match piece.first {
                    Some((digit, weight)) => (0, digit, weight),
                    None => (1, s.from, s.weight),
                };
                second_rest.push((rank, s));
            }
            (None, None) => {}
        }
    }
    sort_by(&mut common, |d| (0, d.0.from, d.0.weight));
    sort_by(&mut first_rest, |d| (0, d.from, d.weight));
    sort_by(&mut second_rest, |d| d.0);
    let outer = common.len();
    let first = common.iter().map(|c| c.0).chain(first_rest).collect();
    let second = common.iter().map(|c| c.1).chain(second_rest.into_iter().map(|d| d.1)).collect();
    let mut alignment =
        Alignment { first: Respace::of_outer(first, outer), second: Respace::of_outer(second, outer) };
    if let Some(padded) = &matched.padded {
        let side = if padded.first { &mut alignment.first } else { &mut alignment.second };
        let at = side.digits.iter().position(|d| (d.from, d.weight) == padded.digit);
        side.padded.extend(at.map(|at| (at, padded.extent)));
    }
    alignment
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

impl Open {
    fn rest(self, taken: Size) -> Option<Open> {
        let extent = self.extent.div_exact(taken)?;
        Some(Open { stride: self.stride * taken, extent, digit: self.digit, weight: self.weight * taken })
    }
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
pub fn match_all(first: Site, second: Site) -> Option<SmallVec<[Piece; 8]>> {
    match_digits(first, second, Ends::Equal).map(|m| m.pieces)
}

fn match_digits(first: Site, second: Site, ends: Ends) -> Option<Matched> {
    let (mut a, mut free_a) = open_digits(first)?;
    let (mut b, mut free_b) = open_digits(second)?;
    let mut pieces = SmallVec::new();
    let mut padded = None;
    while let (Some(x), Some(y)) = (a.last().copied(), b.last().copied()) {
        if x.stride != y.stride {
            return None;
        }
        let extent = match (x.extent.div_exact(y.extent), y.extent.div_exact(x.extent)) {
            _ if ends == Ends::Padded && a.len() == 1 && b.len() == 1 && x.extent != y.extent => {
                let (p, q) = (x.extent.as_const()?, y.extent.as_const()?);
                let short = if p < q { x } else { y };
                let digit = (short.digit, short.weight);
                padded = Some(Padded { first: p < q, digit, extent: short.extent });
                a.clear();
                b.clear();
                Size::from(p.max(q))
            }
            (Some(_), _) => y.extent,
            (_, Some(_)) => x.extent,
            _ => return None,
        };
        pieces.push(Piece { extent, first: Some((x.digit, x.weight)), second: Some((y.digit, y.weight)) });
        for (list, open) in [(&mut a, x), (&mut b, y)] {
            if list.pop().is_none() {
                continue;
            }
            let rest = open.rest(extent)?;
            if !rest.extent.is(1) {
                list.push(rest);
            }
        }
    }
    free_a.extend(a);
    free_b.extend(b);
    let one_sided = |o: &Open| (o.extent, Some((o.digit, o.weight)));
    pieces.extend(free_a.iter().map(one_sided).map(|(extent, first)| Piece { extent, first, second: None }));
    pieces.extend(free_b.iter().map(one_sided).map(|(extent, second)| Piece { extent, first: None, second }));
    Some(Matched { pieces, padded })
}

type Opens = SmallVec<[Open; 6]>;

/// Digits that the access moves with, largest stride first, and those that it doesn't. `None` where strides can't
/// be ordered, are negative, or where the access isn't affine.
fn open_digits((cluster, member, access): Site) -> Option<(Opens, Opens)> {
    let place = access.place.as_ref()?;
    let extents = cluster.outer.iter().chain(&member.inner);
    let (mut moving, mut still): (Opens, Opens) = (SmallVec::new(), SmallVec::new());
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
    (ordered && positive).then_some((moving, still))
}
