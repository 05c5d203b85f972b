//! The canonical form of a loop nest: loops are split into digits until every access that can be affine is,
//! then put into memory order, then neighbours that every access walks through as one are merged.
//!
//! It is computed once, when a nest is made. Two nests that touch memory in the same way then look the same,
//! and comparing them later never normalises anything.

use smallvec::SmallVec;

use crate::index::{Index, IndexAtom, LoopVar};
use crate::nest::{Body, Loop, LoopKind, LoopNest, Op, ValueId};
use crate::size::Size;

/// Splits that a nest can need before we take its index for hopeless: each view adds at most a few digits.
const MAX_SPLITS: usize = 64;

/// Brings a nest into canonical form. Values do not change, but for the order in which reductions combine.
pub fn canonicalize(nest: &mut LoopNest) {
    drop_single_iterations(nest);
    split_into_digits(nest);
    sort_into_memory_order(nest);
    merge_neighbours(nest);
}

/// Every index of a body: of loads and stores, of index values and range tests.
pub fn for_each_index<'a>(body: &'a Body, visit: &mut dyn FnMut(&'a Index)) {
    for op in &body.ops {
        match op {
            Op::IndexValue(index)
            | Op::InRange { index, .. }
            | Op::Load { index, .. }
            | Op::Store { index, .. } => visit(index),
            _ => {}
        }
    }
}

/// As [`for_each_index`], and into the operands of floor divisions and modulos.
pub fn for_each_index_nested<'a>(body: &'a Body, visit: &mut dyn FnMut(&'a Index)) {
    fn walk<'a>(index: &'a Index, visit: &mut dyn FnMut(&'a Index)) {
        visit(index);
        for (atom, _) in &index.terms {
            if let IndexAtom::FloorDiv(division) | IndexAtom::Mod(division) = atom {
                walk(&division.index, visit);
            }
        }
    }
    for_each_index(body, &mut |index| walk(index, visit));
}

/// Gives the nest new loops; `map` says what each old loop variable is in terms of the new ones.
pub fn replace_loops(nest: &mut LoopNest, loops: Vec<Loop>, map: &[Index]) {
    let extents: Vec<Size> = loops.iter().map(|l| l.extent).collect();
    let extent = |v: LoopVar| extents.get(v.0 as usize).copied();
    for op in &mut nest.body.ops {
        if matches!(op, Op::IndexValue(_) | Op::InRange { .. } | Op::Load { .. } | Op::Store { .. }) {
            *op = op.substitute(&|v| map[v.0 as usize].clone(), &|v: ValueId| v, &extent);
        }
    }
    nest.loops = loops;
}

fn drop_single_iterations(nest: &mut LoopNest) {
    if nest.loops.iter().all(|l| !l.extent.is(1)) {
        return;
    }
    let mut loops = Vec::new();
    let mut map = Vec::new();
    for l in &nest.loops {
        if l.extent.is(1) {
            map.push(Index::constant(Size::ZERO));
        } else {
            map.push(Index::of_loop(LoopVar(loops.len() as u16)));
            loops.push(*l);
        }
    }
    replace_loops(nest, loops, &map);
}

fn split_into_digits(nest: &mut LoopNest) {
    for _ in 0..MAX_SPLITS {
        let Some((var, radix)) = find_split(nest) else { return };
        split_loop(nest, var, radix);
    }
}

/// A loop and the extent of its lower digit that would take a floor division or modulo apart.
fn find_split(nest: &LoopNest) -> Option<(LoopVar, Size)> {
    let mut found = None;
    for_each_index_nested(&nest.body, &mut |index| {
        if found.is_some() {
            return;
        }
        for (atom, _) in &index.terms {
            if let IndexAtom::FloorDiv(division) | IndexAtom::Mod(division) = atom {
                found = found.or_else(|| split_for(nest, &division.index, division.divisor));
            }
        }
    });
    found
}

/// For `inner // divisor` or `inner mod divisor`: a loop of stride s under the divisor reaches over it when
/// s·extent > divisor; its lower digit of extent divisor/s stays below, the upper one becomes a whole multiple.
fn split_for(nest: &LoopNest, inner: &Index, divisor: Size) -> Option<(LoopVar, Size)> {
    for (atom, stride) in &inner.terms {
        let IndexAtom::Loop(var) = atom else { continue };
        if stride.div_exact(divisor).is_some() {
            continue;
        }
        let Some(radix) = divisor.div_exact(*stride) else { continue };
        let extent = nest.loops[var.0 as usize].extent;
        if radix.as_const().is_some_and(|r| r <= 1) {
            continue;
        }
        match extent.div_exact(radix) {
            Some(upper) if !upper.is(1) => return Some((*var, radix)),
            _ => {}
        }
    }
    None
}

fn split_loop(nest: &mut LoopNest, var: LoopVar, radix: Size) {
    let at = var.0 as usize;
    let kind = nest.loops[at].kind;
    let upper = nest.loops[at].extent.div_exact(radix).expect("find_split checked divisibility");
    let mut loops = nest.loops.clone();
    loops[at] = Loop { extent: upper, kind };
    loops.insert(at + 1, Loop { extent: radix, kind });
    let map: Vec<Index> = (0..nest.loops.len())
        .map(|k| {
            let shifted = LoopVar(if k > at { k + 1 } else { k } as u16);
            if k != at {
                return Index::of_loop(shifted);
            }
            let mut digits = Index::of_loop(LoopVar(at as u16)).times(radix);
            digits.add_term(IndexAtom::Loop(LoopVar(at as u16 + 1)), Size::ONE);
            digits
        })
        .collect();
    replace_loops(nest, loops, &map);
}

/// Parallel loops in the order of the first store's strides, reduction loops in that of the first load that
/// moves with two of them; the largest stride outermost. Loops whose strides can't be compared keep their order.
fn sort_into_memory_order(nest: &mut LoopNest) {
    let parallel = nest.parallel_loops();
    let total = nest.loops.len();
    let store = nest.body.ops.iter().find_map(|op| match op {
        Op::Store { index, .. } => Some(index.clone()),
        _ => None,
    });
    let load = nest.body.ops.iter().find_map(|op| match op {
        Op::Load { index, .. } => {
            let moves = (parallel..total).filter(|k| !index.stride_of(LoopVar(*k as u16)).is(0)).count();
            (moves >= 2 || (moves == 1 && total - parallel == 1)).then(|| index.clone())
        }
        _ => None,
    });
    let mut order: SmallVec<[usize; 8]> = (0..total).collect();
    if let Some(index) = &store {
        insertion_sort(&mut order[..parallel], index);
    }
    if let Some(index) = &load {
        insertion_sort(&mut order[parallel..], index);
    }
    if order.iter().enumerate().all(|(k, o)| k == *o) {
        return;
    }
    let loops = order.iter().map(|o| nest.loops[*o]).collect();
    let map: Vec<Index> = (0..total)
        .map(|old| {
            let new = order.iter().position(|o| *o == old).expect("a permutation");
            Index::of_loop(LoopVar(new as u16))
        })
        .collect();
    replace_loops(nest, loops, &map);
}

fn insertion_sort(order: &mut [usize], index: &Index) {
    let stride = |k: usize| index.stride_of(LoopVar(k as u16));
    for end in 1..order.len() {
        let mut at = end;
        while at > 0 && surely_smaller(stride(order[at - 1]), stride(order[at])) {
            order.swap(at - 1, at);
            at -= 1;
        }
    }
}

/// Whether the magnitude of `a` is below that of `b` for every value of the symbols.
fn surely_smaller(a: Size, b: Size) -> bool {
    if a.is(0) || b.is(0) || a == b {
        return false;
    }
    match (a.as_const(), b.as_const()) {
        (Some(a), Some(b)) => a.abs() < b.abs(),
        _ => b.div_exact(a).is_some_and(|q| q.as_const().is_none_or(|q| q.abs() > 1)),
    }
}

/// Merges neighbouring loops of one kind where, in every index, the outer one's stride is the inner one's times
/// its extent.
fn merge_neighbours(nest: &mut LoopNest) {
    let mut at = 0;
    while at + 1 < nest.loops.len() {
        if can_merge(nest, at) {
            merge(nest, at);
            at = at.saturating_sub(1);
        } else {
            at += 1;
        }
    }
}

fn can_merge(nest: &LoopNest, at: usize) -> bool {
    let (outer, inner) = (nest.loops[at], nest.loops[at + 1]);
    if outer.kind != inner.kind {
        return false;
    }
    let mut all = true;
    for_each_index_nested(&nest.body, &mut |index| {
        if !all {
            return;
        }
        let far = index.stride_of(LoopVar(at as u16));
        let near = index.stride_of(LoopVar(at as u16 + 1));
        all = far == near * inner.extent;
    });
    all
}

fn merge(nest: &mut LoopNest, at: usize) {
    let extent = nest.loops[at].extent * nest.loops[at + 1].extent;
    let kind = nest.loops[at].kind;
    let mut loops = nest.loops.clone();
    loops.remove(at + 1);
    loops[at] = Loop { extent, kind };
    // The inner variable runs through the merged range; the outer one's part is contained in it.
    let map: Vec<Index> = (0..nest.loops.len())
        .map(|k| match k {
            _ if k == at => Index::constant(Size::ZERO),
            _ if k <= at => Index::of_loop(LoopVar(k as u16)),
            _ => Index::of_loop(LoopVar(k as u16 - 1)),
        })
        .collect();
    replace_loops(nest, loops, &map);
}

/// Whether a loop nest has loops that no access needs apart; for tests and verifiers.
pub fn is_canonical(nest: &LoopNest) -> bool {
    nest.loops.iter().all(|l| !l.extent.is(1))
        && (1..nest.loops.len()).all(|k| !can_merge(nest, k - 1))
        && nest.loops.windows(2).all(|w| w[0].kind == w[1].kind || w[0].kind == LoopKind::Parallel)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nest::{BufferId, StoreMode};
    use crate::size::SymbolValues;
    use proptest::prelude::*;

    /// A copy nest over these extents: loads with `load` and stores with `store`.
    fn copy(extents: &[i64], load: Index, store: Index) -> LoopNest {
        let mut body = Body::default();
        let value = body.push(Op::Load { buffer: BufferId(0), index: load, guard: None });
        body.push(Op::Store { buffer: BufferId(1), index: store, value, guard: None, mode: StoreMode::Set });
        let loops =
            extents.iter().map(|e| Loop { extent: Size::from(*e), kind: LoopKind::Parallel }).collect();
        LoopNest { name: "copy".into(), loops, body, origins: Vec::new() }
    }

    fn affine(strides: &[i64]) -> Index {
        let mut i = Index::default();
        for (k, s) in strides.iter().enumerate() {
            i.add_term(IndexAtom::Loop(LoopVar(k as u16)), Size::from(*s));
        }
        i
    }

    fn extents(nest: &LoopNest) -> Vec<i64> {
        nest.loops.iter().map(|l| l.extent.as_const().unwrap()).collect()
    }

    #[test]
    fn contiguous_loops_become_one() {
        let mut nest = copy(&[4, 1, 8], affine(&[8, 8, 1]), affine(&[8, 8, 1]));
        canonicalize(&mut nest);
        assert_eq!(extents(&nest), [32]);
    }

    #[test]
    fn a_broadcast_keeps_its_loops_apart() {
        let mut nest = copy(&[4, 8], affine(&[0, 1]), affine(&[8, 1]));
        canonicalize(&mut nest);
        assert_eq!(extents(&nest), [4, 8]);
    }

    #[test]
    fn loops_follow_the_memory_order_of_the_output() {
        let mut nest = copy(&[4, 8], affine(&[8, 1]), affine(&[1, 4]));
        canonicalize(&mut nest);
        assert_eq!(extents(&nest), [8, 4]);
    }

    #[test]
    fn block_scale_reads_through_floor_division_become_a_digit() {
        let flat = Index::of_loop(LoopVar(0));
        let block = flat.floor_div(Size::from(32), &|_| Some(Size::from(128)));
        let mut nest = copy(&[128], block, flat);
        canonicalize(&mut nest);
        assert_eq!(extents(&nest), [4, 32]);
        let mut load = None;
        for_each_index(&nest.body, &mut |i| load = load.take().or(Some(i.clone())));
        assert_eq!(load, Some(Index::of_loop(LoopVar(0))));
    }

    #[test]
    fn symbolic_extents_split_by_constant_blocks() {
        let n = Size::symbol("n");
        let flat = Index::of_loop(LoopVar(0));
        let extent = n * Size::from(32);
        let block = flat.floor_div(Size::from(32), &|_| Some(extent));
        let mut nest = copy(&[1], block, flat);
        nest.loops[0].extent = extent;
        canonicalize(&mut nest);
        assert_eq!(nest.loops.iter().map(|l| l.extent).collect::<Vec<_>>(), [n, Size::from(32)]);
    }

    proptest! {
        /// Random views: a flat position of one shape read as a position of another.
        #[test]
        fn the_set_of_element_pairs_does_not_change(
            a in 1i64..5, b in 1i64..5, c in 1i64..5, divisor in 1i64..9, swap in any::<bool>(),
        ) {
            let shape = [a, b, c];
            let extent = |v: LoopVar| Some(Size::from(shape[v.0 as usize]));
            let flat = if swap { affine(&[1, a, a * b]) } else { affine(&[b * c, c, 1]) };
            let d = Size::from(divisor);
            let load = flat.floor_div(d, &extent).plus(&flat.modulo(d, &extent).times(Size::from(100)));
            let before = copy(&shape, load, affine(&[b * c, c, 1]));
            let mut after = before.clone();
            canonicalize(&mut after);
            prop_assert!(is_canonical(&after));
            prop_assert_eq!(pairs(&before), pairs(&after));
        }
    }

    fn pairs(nest: &LoopNest) -> Vec<(i64, i64)> {
        let dims = extents(nest);
        let sizes = SymbolValues::new();
        let mut out = Vec::new();
        for flat in 0..dims.iter().product::<i64>() {
            let mut rest = flat;
            let mut at = vec![0; dims.len()];
            for k in (0..dims.len()).rev() {
                at[k] = rest % dims[k];
                rest /= dims[k];
            }
            let mut found = Vec::new();
            for_each_index(&nest.body, &mut |i| {
                found.push(i.eval(&|v| at[v.0 as usize], &|_| 0, &sizes).unwrap());
            });
            out.push((found[0], found[1]));
        }
        out.sort_unstable();
        out
    }
}
