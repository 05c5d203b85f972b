//! How a loop nest touches memory: one record for each load and store, with a stride for every digit.
//!
//! Everything the scheduler decides, it decides on these records; bodies are not looked at again.

use loafc_ir::index::{Index, IndexAtom, LoopVar};
use loafc_ir::nest::{BufferId, LoopKind, LoopNest, NestProgram, Op, StoreMode};
use loafc_ir::size::{Size, SymbolValues};
use smallvec::SmallVec;

/// One value for each digit: outer ones, then inner ones.
pub type PerDigit = SmallVec<[Size; 4]>;

/// A load or store.
#[derive(Clone, Debug, PartialEq)]
pub struct Access {
    /// What is touched.
    pub buffer: BufferId,
    /// Read or written.
    pub kind: AccessKind,
    /// Which elements; `None` where the index is not affine (opaque or indirect).
    pub place: Option<Strided>,
    /// Bytes of different elements that all iterations touch together; the same whatever the loop order.
    pub bytes: i64,
    /// Bytes of one element.
    pub item: i64,
}

/// What an access does.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum AccessKind {
    /// Reads.
    Read,
    /// Writes every time, one element in each iteration.
    Write,
    /// Writes under a condition, or combines with what is there: the old value may live on.
    PartialWrite,
}

/// An affine index over digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Strided {
    /// Element at which all digits are zero.
    pub offset: Size,
    /// Stride of each digit.
    pub strides: PerDigit,
}

impl AccessKind {
    /// Whether memory changes.
    pub fn writes(self) -> bool {
        self != AccessKind::Read
    }
}

/// The accesses of a nest, each different one once; digits are the nest's loops.
pub fn accesses_of(nest: &LoopNest, program: &NestProgram) -> Vec<Access> {
    let touches = |op: &&Op| matches!(op, Op::Load { .. } | Op::Store { .. });
    let mut found: Vec<Access> = Vec::with_capacity(nest.body.ops.iter().filter(touches).count());
    for op in &nest.body.ops {
        let (buffer, index, kind) = match op {
            Op::Load { buffer, index, .. } => (*buffer, index, AccessKind::Read),
            Op::Store { buffer, index, guard: None, mode: StoreMode::Set, .. } => {
                (*buffer, index, AccessKind::Write)
            }
            Op::Store { buffer, index, .. } => (*buffer, index, AccessKind::PartialWrite),
            _ => continue,
        };
        let access = summarize(nest, program, buffer, index, kind);
        if !found.contains(&access) {
            found.push(access);
        }
    }
    found
}

fn summarize(
    nest: &LoopNest,
    program: &NestProgram,
    buffer: BufferId,
    index: &Index,
    kind: AccessKind,
) -> Access {
    let memory = program.buffer(buffer);
    let item = memory.dtype.bytes() as i64;
    let place = strided(index, nest.loops.len());
    let touched: i64 = match &place {
        Some(place) => nest
            .loops
            .iter()
            .zip(&place.strides)
            .filter(|(_, stride)| !stride.is(0))
            .map(|(l, _)| l.extent.hint(&program.hints))
            .fold(1, i64::saturating_mul),
        None => iterations(nest, &program.hints, index),
    };
    let bytes = touched.min(memory.len.hint(&program.hints)).saturating_mul(item);
    Access { buffer, kind, place, bytes, item }
}

/// Iterations of all loops that an index that isn't affine may depend on.
fn iterations(nest: &LoopNest, hints: &SymbolValues, index: &Index) -> i64 {
    let indirect = index.is_indirect();
    nest.loops
        .iter()
        .enumerate()
        .filter(|(k, l)| index.uses_loop(LoopVar(*k as u16)) || (indirect && l.kind == LoopKind::Parallel))
        .map(|(_, l)| l.extent.hint(hints))
        .fold(1, i64::saturating_mul)
}

fn strided(index: &Index, digits: usize) -> Option<Strided> {
    let mut strides: PerDigit = SmallVec::from_elem(Size::ZERO, digits);
    for (atom, stride) in &index.terms {
        match atom {
            IndexAtom::Loop(v) => strides[v.0 as usize] = *stride,
            _ => return None,
        }
    }
    Some(Strided { offset: index.offset, strides })
}

/// A digit as an access sees it: stride and extent, neither a stride of zero nor an extent of one.
pub type Term = (Size, Size);

/// The terms of some digits of an access, largest stride first as far as strides can be compared.
pub fn terms(strides: &[Size], extents: &[Size]) -> SmallVec<[Term; 4]> {
    let mut out: SmallVec<[Term; 4]> = strides
        .iter()
        .zip(extents)
        .filter(|(stride, extent)| !stride.is(0) && !extent.is(1))
        .map(|(s, e)| (*s, *e))
        .collect();
    // Insertion sort: few terms, and strides that can't be compared must stay where they are.
    for end in 1..out.len() {
        let mut at = end;
        while at > 0 && larger(out[at].0, out[at - 1].0) {
            out.swap(at - 1, at);
            at -= 1;
        }
    }
    out
}

/// Whether `a` is larger than `b` for all values of the symbols.
pub fn larger(a: Size, b: Size) -> bool {
    match (a.as_const(), b.as_const()) {
        (Some(a), Some(b)) => a > b,
        _ if a == b => false,
        _ => a.div_exact(b).is_some_and(|q| q.as_const().is_none_or(|q| q > 1)),
    }
}

/// How the elements of one access lie within those of another: for each digit of the inner access the stride in
/// a compact array of the outer one's elements, and the position where it starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Embedding {
    /// Stride of each given digit in the compact array.
    pub strides: PerDigit,
    /// Position in the compact array where all digits are zero.
    pub offset: Size,
    /// Elements of the compact array.
    pub len: Size,
}

/// Whether every element that `inner` touches is one that `outer` touches, for accesses to one buffer over
/// digits of their own, `shift` elements apart (inner's offset less outer's).
///
/// The outer terms are read as a mixed radix number; each inner term must stay within one of its digits.
/// Sufficient, not necessary: what is not of that form counts as outside.
pub fn embed(inner: (&[Size], &[Size]), outer: (&[Size], &[Size]), shift: Size) -> Option<Embedding> {
    let radix = merge_adjacent(&terms(outer.0, outer.1));
    if !is_mixed_radix(&radix) {
        return None;
    }
    let mut weights: PerDigit = SmallVec::from_elem(Size::ONE, radix.len());
    for k in (0..radix.len().saturating_sub(1)).rev() {
        weights[k] = weights[k + 1] * radix[k + 1].1;
    }
    let len = radix.iter().map(|r| r.1).product();
    let mut top: PerDigit = SmallVec::from_elem(Size::ZERO, radix.len());
    let mut offset = Size::ZERO;
    let mut rest = shift;
    if !shift.is(0) {
        for (k, (stride, _)) in radix.iter().enumerate() {
            let (whole, left) = match (rest.as_const(), stride.as_const()) {
                (Some(r), Some(s)) if r >= 0 && s > 0 => (Size::from(r / s), Size::from(r % s)),
                (Some(_), _) => continue,
                _ => match rest.div_exact(*stride) {
                    Some(q) => (q, Size::ZERO),
                    None => continue,
                },
            };
            top[k] += whole;
            offset += whole * weights[k];
            rest = left;
        }
        if !rest.is(0) {
            return None;
        }
    }
    let mut strides: PerDigit = SmallVec::with_capacity(inner.0.len());
    for (stride, extent) in inner.0.iter().zip(inner.1) {
        if stride.is(0) || extent.is(1) {
            strides.push(Size::ZERO);
            continue;
        }
        let (k, multiple) = radix.iter().enumerate().find_map(|(k, (s, _))| {
            let q = stride.div_exact(*s)?;
            loafc_ir::index::provably_positive(q).then_some((k, q))
        })?;
        top[k] += multiple * (*extent - Size::ONE);
        strides.push(multiple * weights[k]);
    }
    let fits = top.iter().zip(&radix).all(|(t, (_, extent))| at_most(*t, *extent - Size::ONE));
    fits.then_some(Embedding { strides, offset, len })
}

fn at_most(a: Size, b: Size) -> bool {
    a == b || loafc_ir::index::provably_positive(b - a + Size::ONE)
}

/// Joins terms that continue each other: (s·e, f) and (s, e) are one term (s, e·f).
fn merge_adjacent(terms: &[Term]) -> SmallVec<[Term; 4]> {
    let mut out: SmallVec<[Term; 4]> = SmallVec::new();
    for (stride, extent) in terms {
        match out.last_mut() {
            Some(last) if last.0 == *stride * *extent => *last = (*stride, last.1 * *extent),
            _ => out.push((*stride, *extent)),
        }
    }
    out
}

/// Whether different digits give different elements: each stride passes over all that the smaller ones reach.
fn is_mixed_radix(terms: &[Term]) -> bool {
    let mut reach = Size::ZERO;
    for (stride, extent) in terms.iter().rev() {
        if !loafc_ir::index::provably_positive(*stride - reach) {
            return false;
        }
        reach += *stride * (*extent - Size::ONE);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sizes(values: &[i64]) -> Vec<Size> {
        values.iter().map(|v| Size::from(*v)).collect()
    }

    fn embed_const(inner: (&[i64], &[i64]), outer: (&[i64], &[i64]), shift: i64) -> Option<Embedding> {
        let (a, b, c, d) = (sizes(inner.0), sizes(inner.1), sizes(outer.0), sizes(outer.1));
        embed((&a, &b), (&c, &d), Size::from(shift))
    }

    #[test]
    fn a_row_contains_its_blocks_and_its_halves() {
        let blocks = embed_const((&[32, 1], &[4, 32]), (&[1], &[128]), 0).unwrap();
        assert_eq!(blocks.strides.as_slice(), sizes(&[32, 1]));
        let half = embed_const((&[1], &[64]), (&[1], &[128]), 64).unwrap();
        assert_eq!((half.offset, half.len), (Size::from(64), Size::from(128)));
        assert_eq!(embed_const((&[1], &[65]), (&[1], &[128]), 64), None);
    }

    #[test]
    fn a_column_is_compacted() {
        let column = embed_const((&[100], &[8]), (&[100], &[8]), 0).unwrap();
        assert_eq!((column.strides.as_slice(), column.len), (sizes(&[1]).as_slice(), Size::from(8)));
    }

    fn elements(strides: &[i64], extents: &[i64]) -> Vec<(Vec<i64>, i64)> {
        let mut out = vec![(vec![], 0)];
        for (s, e) in strides.iter().zip(extents) {
            out = out
                .into_iter()
                .flat_map(|(d, x)| {
                    (0..*e).map(move |k| {
                        let mut d = d.clone();
                        d.push(k);
                        (d, x + s * k)
                    })
                })
                .collect();
        }
        out
    }

    proptest! {
        #[test]
        fn an_embedding_finds_each_element_at_its_place(
            os in prop::collection::vec(1i64..20, 1..4), oe in prop::collection::vec(1i64..5, 3),
            is in prop::collection::vec(0i64..20, 1..3), ie in prop::collection::vec(1i64..5, 3),
            shift in -3i64..30,
        ) {
            let (oe, ie) = (&oe[..os.len()], &ie[..is.len()]);
            if let Some(found) = embed_const((&is, ie), (&os, oe), shift) {
                // The compact array holds the outer elements in ascending order of position.
                let mut compact: Vec<i64> = elements(&os, oe).into_iter().map(|e| e.1).collect();
                compact.sort_unstable();
                prop_assert_eq!(compact.len() as i64, found.len.as_const().unwrap());
                for (digits, element) in elements(&is, ie) {
                    let at: i64 = found.offset.as_const().unwrap()
                        + digits.iter().zip(&found.strides).map(|(d, s)| d * s.as_const().unwrap()).sum::<i64>();
                    prop_assert_eq!(compact.get(at as usize).copied(), Some(element + shift));
                }
            }
        }
    }
}
