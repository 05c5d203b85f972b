//! Positions in a buffer as a function of loop variables: `offset + Σ stride·atom`.
//!
//! An index is affine when all its atoms are loop variables. Views bring floor division and modulo, which
//! stay as atoms until the loops are split into digits; what depends on a loaded value is indirect.

use std::fmt;

use smallvec::SmallVec;

use crate::nest::ValueId;
use crate::size::{Divisor, Size, floor_div, floor_mod};

/// A loop of the nest that an index stands in: position in [`crate::nest::LoopNest::loops`].
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LoopVar(pub u16);

/// What a stride is multiplied with.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum IndexAtom {
    /// A loop variable, from 0 to its extent less one.
    Loop(LoopVar),
    /// An integer value of the body (indirect access).
    Value(ValueId),
    /// `index // divisor`, rounded down.
    FloorDiv(Box<Division>),
    /// `index mod divisor`, from 0 to the divisor less one.
    Mod(Box<Division>),
}

/// Operands of a division. Boxed together: most atoms are loops, and the smaller they are, the more fit the cache.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Division {
    /// What is divided.
    pub index: Index,
    /// By what; never zero where a loop runs.
    pub divisor: Size,
}

impl IndexAtom {
    /// `index // divisor` as an atom.
    pub fn floor_div(index: Index, divisor: Size) -> IndexAtom {
        IndexAtom::FloorDiv(Box::new(Division { index, divisor }))
    }

    /// `index mod divisor` as an atom.
    pub fn modulo(index: Index, divisor: Size) -> IndexAtom {
        IndexAtom::Mod(Box::new(Division { index, divisor }))
    }
}

/// `offset + Σ stride·atom`, in elements. Each atom stands once, no stride is zero, and terms keep the order of
/// [`Index::compare_atoms`]; so equal indices are equal values.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Index {
    /// The position where all atoms are zero.
    pub offset: Size,
    /// Atoms with their strides.
    pub terms: SmallVec<[(IndexAtom, Size); 3]>,
}

impl Index {
    /// A position that depends on nothing.
    pub fn constant(offset: Size) -> Index {
        Index { offset, terms: SmallVec::new() }
    }

    /// The variable of a loop.
    pub fn of_loop(var: LoopVar) -> Index {
        Index::of_atom(IndexAtom::Loop(var))
    }

    /// A single atom with stride 1.
    pub fn of_atom(atom: IndexAtom) -> Index {
        let mut terms = SmallVec::new();
        terms.push((atom, Size::ONE));
        Index { offset: Size::ZERO, terms }
    }

    /// Adds `stride · atom`.
    pub fn add_term(&mut self, atom: IndexAtom, stride: Size) {
        if stride.is(0) {
            return;
        }
        match self.terms.binary_search_by(|t| Index::compare_atoms(&t.0, &atom)) {
            Ok(at) => {
                self.terms[at].1 += stride;
                if self.terms[at].1.is(0) {
                    self.terms.remove(at);
                }
            }
            Err(at) => self.terms.insert(at, (atom, stride)),
        }
    }

    /// The sum of two.
    pub fn plus(&self, other: &Index) -> Index {
        let mut sum = self.clone();
        sum.add_scaled(other.clone(), Size::ONE);
        sum
    }

    /// All strides and the offset times `factor`.
    pub fn times(&self, factor: Size) -> Index {
        if factor.is(0) {
            return Index::constant(Size::ZERO);
        }
        let mut product = self.clone();
        product.offset *= factor;
        for t in &mut product.terms {
            t.1 *= factor;
        }
        product
    }

    /// This index moved by `offset`.
    pub fn shifted(mut self, offset: Size) -> Index {
        self.offset += offset;
        self
    }

    /// `self // divisor`, taken apart as far as the strides allow: terms that the divisor divides move out.
    /// That is exact only if the rest lies in `0..divisor`, which `extents` (of the loops) must show; otherwise
    /// the division stays as an atom. A divisor of zero has no meaning and must not be passed.
    pub fn floor_div(&self, divisor: Size, extents: &dyn Fn(LoopVar) -> Option<Size>) -> Index {
        let (quotient, rest) = self.split_multiples(divisor);
        if rest.lies_below(divisor, extents) {
            return quotient;
        }
        // floor((q·d + r) / d) = q + floor(r / d) holds for every r.
        if let (Some(d), Some(rest)) = (divisor.as_const(), rest.as_constant().and_then(Size::as_const)) {
            return quotient.shifted(Size::from(floor_div(rest, d)));
        }
        let rest = rest.reduce_by_common_factor(divisor);
        quotient.plus(&Index::of_atom(IndexAtom::floor_div(rest.0, rest.1)))
    }

    /// `self mod divisor`; see [`Index::floor_div`].
    pub fn modulo(&self, divisor: Size, extents: &dyn Fn(LoopVar) -> Option<Size>) -> Index {
        let (_, rest) = self.split_multiples(divisor);
        if rest.lies_below(divisor, extents) {
            return rest;
        }
        if let (Some(d), Some(rest)) = (divisor.as_const(), rest.as_constant().and_then(Size::as_const)) {
            return Index::constant(Size::from(floor_mod(rest, d)));
        }
        Index::of_atom(IndexAtom::modulo(rest, divisor))
    }

    /// `(q, r)` with `self = q·divisor + r`, as much as possible in `q`.
    fn split_multiples(&self, divisor: Size) -> (Index, Index) {
        let (mut q, mut r) = (Index::default(), Index::default());
        for (atom, stride) in &self.terms {
            match stride.div_exact(divisor) {
                Some(whole) => q.add_term(atom.clone(), whole),
                None => r.add_term(atom.clone(), *stride),
            }
        }
        match (self.offset.as_const(), divisor.as_const()) {
            (Some(o), Some(d)) => {
                q.offset = Size::from(floor_div(o, d));
                r.offset = Size::from(floor_mod(o, d));
            }
            _ => match self.offset.div_exact(divisor) {
                Some(whole) => q.offset = whole,
                None => r.offset = self.offset,
            },
        }
        (q, r)
    }

    /// Divides both an index and the divisor of a floor division by a constant that divides all of them.
    fn reduce_by_common_factor(&self, divisor: Size) -> (Index, Size) {
        fn gcd(a: i64, b: i64) -> i64 {
            if b == 0 { a.abs() } else { gcd(b, a % b) }
        }
        let Some(mut g) = divisor.as_const() else { return (self.clone(), divisor) };
        for size in self.terms.iter().map(|t| t.1) {
            match size.as_const() {
                Some(c) => g = gcd(g, c),
                None => return (self.clone(), divisor),
            }
        }
        let Some(offset) = self.offset.as_const() else { return (self.clone(), divisor) };
        if g <= 1 {
            return (self.clone(), divisor);
        }
        let part = |size: Size| size.div_exact(Size::from(g)).expect("the common factor divides it");
        let reduced = Index {
            // The offset may be rounded down: floor(floor(x / g) / d) = floor(x / (g·d)).
            offset: Size::from(floor_div(offset, g)),
            terms: self.terms.iter().map(|(a, s)| (a.clone(), part(*s))).collect(),
        };
        (reduced, part(divisor))
    }

    /// Whether the value provably lies in `0..bound`.
    fn lies_below(&self, bound: Size, extents: &dyn Fn(LoopVar) -> Option<Size>) -> bool {
        let Some((low, high)) = self.bounds(extents) else { return false };
        low.as_const().is_some_and(|l| l >= 0)
            && (bound - high).as_const().map_or_else(|| provably_positive(bound - high), |d| d > 0)
    }

    /// Smallest and largest value, where the loops' extents and the strides' signs are known. Extents of zero
    /// count as one: an empty loop never computes an index.
    pub fn bounds(&self, extents: &dyn Fn(LoopVar) -> Option<Size>) -> Option<(Size, Size)> {
        let (mut low, mut high) = (self.offset, self.offset);
        for (atom, stride) in &self.terms {
            let top = match atom {
                IndexAtom::Loop(v) => extents(*v)? - Size::ONE,
                IndexAtom::Mod(division) => division.divisor - Size::ONE,
                IndexAtom::FloorDiv(division) => {
                    let (l, h) = division.index.bounds(extents)?;
                    if l.as_const().is_none_or(|l| l < 0) {
                        return None;
                    }
                    h.floor_div(division.divisor)
                }
                IndexAtom::Value(_) => return None,
            };
            match stride.as_const() {
                Some(s) if s < 0 => low += *stride * top,
                Some(_) => high += *stride * top,
                // Symbolic strides are products of extents, never negative, unless a flip negated them.
                None if provably_positive(*stride) => high += *stride * top,
                None => return None,
            }
        }
        Some((low, high))
    }

    /// The offset, if there are no terms.
    pub fn as_constant(&self) -> Option<Size> {
        self.terms.is_empty().then_some(self.offset)
    }

    /// Whether all atoms are loop variables.
    pub fn is_affine(&self) -> bool {
        self.terms.iter().all(|t| matches!(t.0, IndexAtom::Loop(_)))
    }

    /// Whether a value of the body takes part, at any depth.
    pub fn is_indirect(&self) -> bool {
        self.terms.iter().any(|t| match &t.0 {
            IndexAtom::Loop(_) => false,
            IndexAtom::Value(_) => true,
            IndexAtom::FloorDiv(d) | IndexAtom::Mod(d) => d.index.is_indirect(),
        })
    }

    /// Stride of a loop among the affine terms; zero where the loop is not in them.
    pub fn stride_of(&self, var: LoopVar) -> Size {
        self.terms
            .iter()
            .find_map(|(atom, stride)| (*atom == IndexAtom::Loop(var)).then_some(*stride))
            .unwrap_or(Size::ZERO)
    }

    /// Whether the loop's variable takes part, at any depth.
    pub fn uses_loop(&self, var: LoopVar) -> bool {
        self.terms.iter().any(|t| match &t.0 {
            IndexAtom::Loop(v) => *v == var,
            IndexAtom::Value(_) => false,
            IndexAtom::FloorDiv(d) | IndexAtom::Mod(d) => d.index.uses_loop(var),
        })
    }

    /// Calls `visit` for every body value that takes part.
    pub fn for_each_value(&self, visit: &mut dyn FnMut(ValueId)) {
        for (atom, _) in &self.terms {
            match atom {
                IndexAtom::Loop(_) => {}
                IndexAtom::Value(v) => visit(*v),
                IndexAtom::FloorDiv(d) | IndexAtom::Mod(d) => d.index.for_each_value(visit),
            }
        }
    }

    /// Puts an index in place of each loop variable and another value in place of each value; floor divisions and
    /// modulos are taken apart again where the new `extents` allow.
    pub fn substitute(
        &self,
        loops: &dyn Fn(LoopVar) -> Index,
        values: &dyn Fn(ValueId) -> ValueId,
        extents: &dyn Fn(LoopVar) -> Option<Size>,
    ) -> Index {
        let mut out = Index::constant(self.offset);
        for (atom, stride) in &self.terms {
            let part = match atom {
                IndexAtom::Loop(v) => loops(*v),
                IndexAtom::Value(v) => Index::of_atom(IndexAtom::Value(values(*v))),
                IndexAtom::FloorDiv(d) => {
                    d.index.substitute(loops, values, extents).floor_div(d.divisor, extents)
                }
                IndexAtom::Mod(d) => d.index.substitute(loops, values, extents).modulo(d.divisor, extents),
            };
            out.add_scaled(part, *stride);
        }
        out
    }

    /// Adds `factor · other`.
    fn add_scaled(&mut self, other: Index, factor: Size) {
        self.offset += other.offset * factor;
        for (atom, stride) in other.terms {
            self.add_term(atom, stride * factor);
        }
    }

    /// The value for given loop variables, body values and sizes; `None` where a size has no value.
    pub fn eval(
        &self,
        loops: &dyn Fn(LoopVar) -> i64,
        values: &dyn Fn(ValueId) -> i64,
        sizes: &crate::size::SymbolValues,
    ) -> Option<i64> {
        let mut sum = self.offset.eval(sizes)?;
        for (atom, stride) in &self.terms {
            let factor = match atom {
                IndexAtom::Loop(v) => loops(*v),
                IndexAtom::Value(v) => values(*v),
                IndexAtom::FloorDiv(d) => {
                    floor_div(d.index.eval(loops, values, sizes)?, nonzero(d.divisor.eval(sizes)?)?)
                }
                IndexAtom::Mod(d) => {
                    floor_mod(d.index.eval(loops, values, sizes)?, nonzero(d.divisor.eval(sizes)?)?)
                }
            };
            sum = sum.wrapping_add(stride.eval(sizes)?.wrapping_mul(factor));
        }
        Some(sum)
    }

    /// Order of terms: loops by number, then values, then divisions and modulos by their text.
    pub fn compare_atoms(a: &IndexAtom, b: &IndexAtom) -> std::cmp::Ordering {
        fn rank(a: &IndexAtom) -> u8 {
            match a {
                IndexAtom::Loop(_) => 0,
                IndexAtom::Value(_) => 1,
                IndexAtom::FloorDiv(..) => 2,
                IndexAtom::Mod(..) => 3,
            }
        }
        match (a, b) {
            (IndexAtom::Loop(x), IndexAtom::Loop(y)) => x.cmp(y),
            (IndexAtom::Value(x), IndexAtom::Value(y)) => x.cmp(y),
            _ if a == b => std::cmp::Ordering::Equal,
            _ => rank(a).cmp(&rank(b)).then_with(|| a.to_string().cmp(&b.to_string())),
        }
    }
}

fn nonzero(d: i64) -> Option<i64> {
    (d != 0).then_some(d)
}

/// Whether a size is at least 1 for all positive values of its symbols: no product of symbols is subtracted, and
/// the products outweigh a negative constant. Symbols stand for extents; an extent of zero runs no iteration at all.
pub fn provably_positive(size: Size) -> bool {
    match size.as_const() {
        Some(c) => c > 0,
        None => {
            let terms = size.terms();
            // Each symbol is at least 1, so a monomial with positive factor is worth at least that factor.
            let negative: i64 = terms.iter().filter(|t| t.0 < 0 && t.1.is_empty()).map(|t| t.0).sum();
            let positive: i64 = terms.iter().filter(|t| t.0 > 0).map(|t| t.0).sum();
            terms.iter().all(|t| t.0 > 0 || t.1.is_empty())
                && terms.iter().all(|t| t.1.iter().all(|a| matches!(a, crate::size::Atom::Symbol(_))))
                && positive + negative > 0
        }
    }
}

impl fmt::Display for IndexAtom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IndexAtom::Loop(v) => write!(f, "i{}", v.0),
            IndexAtom::Value(v) => write!(f, "v{}", v.0),
            IndexAtom::FloorDiv(d) => write!(f, "(({}) // {})", d.index, Divisor(d.divisor)),
            IndexAtom::Mod(d) => write!(f, "(({}) % {})", d.index, Divisor(d.divisor)),
        }
    }
}

impl fmt::Display for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut first = true;
        for (atom, stride) in &self.terms {
            if !first {
                f.write_str(" + ")?;
            }
            first = false;
            if stride.is(1) {
                write!(f, "{atom}")?;
            } else {
                write!(f, "{stride}*{atom}")?;
            }
        }
        if first || !self.offset.is(0) {
            if !first {
                f.write_str(" + ")?;
            }
            write!(f, "{}", self.offset)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::size::SymbolValues;
    use proptest::prelude::*;

    fn affine(offset: i64, strides: &[i64]) -> Index {
        let mut i = Index::constant(Size::from(offset));
        for (k, s) in strides.iter().enumerate() {
            i.add_term(IndexAtom::Loop(LoopVar(k as u16)), Size::from(*s));
        }
        i
    }

    #[test]
    fn division_takes_whole_digits_out() {
        let extents = |v: LoopVar| Some(Size::from([5, 32][v.0 as usize]));
        let i = affine(0, &[32, 1]);
        assert_eq!(i.floor_div(Size::from(32), &extents), affine(0, &[1]));
        assert_eq!(i.modulo(Size::from(32), &extents), affine(0, &[0, 1]));
        assert_eq!(i.floor_div(Size::from(64), &extents).to_string(), "((32*i0 + i1) // 64)");
    }

    proptest! {
        #[test]
        fn division_and_modulo_agree_with_integers(
            offset in -20i64..20, s0 in -12i64..13, s1 in -12i64..13, d in 1i64..17,
            e0 in 1i64..6, e1 in 1i64..6,
        ) {
            let extents = |v: LoopVar| Some(Size::from([e0, e1][v.0 as usize]));
            let index = affine(offset, &[s0, s1]);
            let (q, r) = (index.floor_div(Size::from(d), &extents), index.modulo(Size::from(d), &extents));
            let sizes = SymbolValues::new();
            for a in 0..e0 {
                for b in 0..e1 {
                    let at = |i: &Index| i.eval(&|v| [a, b][v.0 as usize], &|_| 0, &sizes).unwrap();
                    let x = offset + s0 * a + s1 * b;
                    prop_assert_eq!(at(&q), x.div_euclid(d));
                    prop_assert_eq!(at(&r), x.rem_euclid(d));
                }
            }
        }
    }
}
