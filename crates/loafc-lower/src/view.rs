//! Arithmetic of views: coordinates of a reshape, strides of a reshaped tensor, and views of buffers composed
//! with coordinate functions. Pure functions over sizes and indices.

use loafc_ir::canonical::canonicalize;
use loafc_ir::graph::Dims;
use loafc_ir::index::{Index, IndexAtom, LoopVar};
use loafc_ir::nest::{Body, BufferId, Loop, LoopKind, LoopNest, Op, StoreMode, TensorView};
use loafc_ir::size::Size;

/// Coordinate `d` itself.
pub(crate) fn coordinate(d: usize) -> Index {
    Index::of_loop(LoopVar(d as u16))
}

/// Coordinate `d`, or 0 where the extent is 1.
pub(crate) fn coordinate_within(d: usize, extent: Size) -> Index {
    if extent.is(1) { Index::constant(Size::ZERO) } else { coordinate(d) }
}

/// Groups of neighbouring dimensions of two shapes with equal products, from the left: `[2,48,64]` and
/// `[96,64]` give `(0..2, 0..1)` and `(2..3, 1..2)`.
fn groups(from: &[Size], to: &[Size]) -> Vec<(std::ops::Range<usize>, std::ops::Range<usize>)> {
    let mut found = Vec::new();
    let (mut f, mut t) = (0, 0);
    let (mut f0, mut t0) = (0, 0);
    let (mut pf, mut pt) = (Size::ONE, Size::ONE);
    while f < from.len() || t < to.len() {
        // One more dimension on the side that has seen fewer elements; symbolic products that can't be compared
        // grow in turn.
        let grow_from = f < from.len()
            && (t == to.len()
                || match (pf.as_const(), pt.as_const()) {
                    (Some(a), Some(b)) => a <= b,
                    _ => pt.div_exact(pf).is_some() || pf.div_exact(pt).is_none() && f <= t,
                });
        if grow_from {
            pf *= from[f];
            f += 1;
        } else {
            pt *= to[t];
            t += 1;
        }
        if pf == pt && f > f0 && t > t0 {
            found.push((f0..f, t0..t));
            (f0, t0, pf, pt) = (f, t, Size::ONE, Size::ONE);
        }
    }
    // What is left over has extent 1 throughout, or the products of symbols could not be compared.
    if f > f0 || t > t0 {
        match found.last_mut() {
            Some(last) => (last.0.end, last.1.end) = (f, t),
            None => found.push((0..f, 0..t)),
        }
    }
    found
}

/// For a reshape of `from` to `to`: the coordinates in `from` as functions of the coordinates in `to`.
pub(crate) fn reshape_coordinates(from: &[Size], to: &[Size]) -> Vec<Index> {
    let zero = || Index::constant(Size::ZERO);
    // No element, no coordinate; and no division by an extent of zero.
    if from.iter().chain(to).any(|e| e.is(0)) {
        return from.iter().map(|_| zero()).collect();
    }
    let extents = |v: LoopVar| to.get(v.0 as usize).copied();
    let mut coords = vec![zero(); from.len()];
    for (f, t) in groups(from, to) {
        let mut flat = zero();
        let mut stride = Size::ONE;
        for d in t.rev() {
            if !to[d].is(1) {
                flat.add_term(IndexAtom::Loop(LoopVar(d as u16)), stride);
            }
            stride *= to[d];
        }
        // Digits from the innermost: what is left after each is what its quotient says, so that quotient and
        // remainder are seen to belong together. The outermost needs no remainder.
        let first = f.clone().find(|d| !from[*d].is(1));
        for d in f.rev().filter(|d| !from[*d].is(1)) {
            if Some(d) == first {
                coords[d] = flat;
                break;
            }
            coords[d] = flat.modulo(from[d], &extents);
            flat = flat.floor_div(from[d], &extents);
        }
    }
    coords
}

/// Strides of a reshape to `to` of a tensor with these extents and strides that needs no copy; `None` where it
/// would need one.
pub(crate) fn reshape_strides(from: &[Size], strides: &[Size], to: &[Size]) -> Option<Dims> {
    if from.iter().chain(to).any(|e| e.is(0)) {
        return Some(loafc_ir::graph::contiguous_strides(to));
    }
    let mut out: Dims = std::iter::repeat_n(Size::ZERO, to.len()).collect();
    for (f, t) in groups(from, to) {
        let mut real = f.clone().filter(|d| !from[*d].is(1)).rev();
        // The group must be one run of memory, as long as only one dimension of `to` isn't 1 it may be anything
        // that has one stride.
        let Some(inner) = real.next() else {
            t.for_each(|d| out[d] = Size::ONE);
            continue;
        };
        let mut expected = strides[inner] * from[inner];
        for d in real {
            if strides[d] != expected {
                return None;
            }
            expected = strides[d] * from[d];
        }
        let mut stride = strides[inner];
        for d in t.rev() {
            out[d] = stride;
            stride *= to[d];
        }
    }
    Some(out)
}

/// Strides of a tensor stored without gaps or overlaps in the order of `strides`: these strides themselves where
/// they are so already, else row-major.
pub(crate) fn dense_strides(shape: &[Size], strides: &[Size]) -> Dims {
    let mut left: Vec<usize> = (0..shape.len()).filter(|d| !shape[*d].is(1)).collect();
    let mut expected = Size::ONE;
    let mut dense: Dims = loafc_ir::graph::contiguous_strides(shape);
    if shape.iter().any(|e| e.is(0)) {
        return dense;
    }
    let row_major = dense.clone();
    while !left.is_empty() {
        let Some(at) = left.iter().position(|d| strides[*d] == expected) else { return row_major };
        let d = left.remove(at);
        dense[d] = strides[d];
        expected *= shape[d];
    }
    for d in 0..shape.len() {
        if shape[d].is(1) {
            dense[d] = strides[d];
        }
    }
    dense
}

/// Whether two layouts of one shape put each element at the same place: strides of dimensions of extent 1 do
/// not matter, nor any in a tensor without elements.
pub(crate) fn same_layout(shape: &[Size], a: &[Size], b: &[Size]) -> bool {
    shape.iter().any(|e| e.is(0)) || (0..shape.len()).all(|d| shape[d].is(1) || a[d] == b[d])
}

/// Number of elements of memory from the first to the last element of a tensor.
pub(crate) fn storage_len(shape: &[Size], strides: &[Size]) -> Size {
    if shape.iter().any(|e| e.is(0)) {
        return Size::ZERO;
    }
    // A dense tensor's length is its number of elements, which also holds for symbolic extents of zero.
    if same_layout(shape, &dense_strides(shape, strides), strides) {
        return shape.iter().copied().product();
    }
    shape.iter().zip(strides).map(|(e, s)| (*e - Size::ONE) * *s).sum::<Size>() + Size::ONE
}

/// Position in the buffer of the element at these coordinates.
pub(crate) fn position(view: &TensorView, coords: &[Index]) -> Index {
    let mut at = Index::constant(view.offset);
    for (coord, stride) in coords.iter().zip(&view.strides) {
        at = at.plus(&coord.times(*stride));
    }
    recombine(at)
}

/// Puts `s·d·(x // d) + s·(x mod d)` together to `s·x`, as often as possible.
fn recombine(mut index: Index) -> Index {
    while let Some((whole, part)) = find_pair(&index) {
        let (IndexAtom::Mod(division), stride) = &index.terms[part] else { return index };
        let mut sum = Index::constant(index.offset).plus(&division.index.times(*stride));
        for (k, (atom, stride)) in index.terms.iter().enumerate() {
            if k != whole && k != part {
                sum.add_term(atom.clone(), *stride);
            }
        }
        index = sum;
    }
    index
}

/// Positions of a floor division and a modulo of the same that together make it whole.
fn find_pair(index: &Index) -> Option<(usize, usize)> {
    index.terms.iter().enumerate().find_map(|(part, (atom, stride))| {
        let IndexAtom::Mod(division) = atom else { return None };
        let quotient = division.index.floor_div(division.divisor, &|_| None);
        let [(wanted, one)] = quotient.terms.as_slice() else { return None };
        if !one.is(1) || !quotient.offset.is(0) {
            return None;
        }
        let whole = index.terms.iter().position(|(a, s)| a == wanted && *s == *stride * division.divisor)?;
        Some((whole, part))
    })
}

/// The view that reads `view` at `coords` (functions of the coordinates of `shape`), where that is plain stride
/// arithmetic.
pub(crate) fn compose(view: &TensorView, coords: &[Index], shape: &[Size]) -> Option<TensorView> {
    let index = position(view, coords);
    if index.is_indirect() {
        return None;
    }
    let strides = if index.is_affine() {
        (0..shape.len()).map(|d| index.stride_of(LoopVar(d as u16))).collect()
    } else {
        strides_by_digits(&index, shape)?
    };
    let offset = if index.is_affine() { index.offset } else { at_zero(&index)? };
    Some(TensorView { buffer: view.buffer, shape: shape.to_vec(), strides, offset })
}

/// Weight in its coordinate, stride in the buffer, and extent of a digit.
type Digit = (Size, Size, Size);

/// The position where all coordinates are zero.
fn at_zero(index: &Index) -> Option<Size> {
    index.substitute(&|_| Index::constant(Size::ZERO), &|v| v, &|_| None).as_constant()
}

/// Strides of an index whose divisions and modulos cancel out: the coordinates are split into digits until the
/// index is affine, and the digits of each coordinate must then be whole again.
fn strides_by_digits(index: &Index, shape: &[Size]) -> Option<Vec<Size>> {
    // A copy from that position to one that tells the coordinates apart: each has a symbol for its stride.
    let marks: Vec<Size> =
        (0..shape.len()).map(|d| Size::symbol(&format!("stride of coordinate {d}"))).collect();
    let mut mark = Index::default();
    for (d, symbol) in marks.iter().enumerate() {
        mark.add_term(IndexAtom::Loop(LoopVar(d as u16)), *symbol);
    }
    let mut body = Body::default();
    let value = body.push(Op::Load { buffer: BufferId(0), index: index.clone(), guard: None });
    body.push(Op::Store { buffer: BufferId(1), index: mark, value, guard: None, mode: StoreMode::Set });
    let loops = shape.iter().map(|e| Loop { extent: *e, kind: LoopKind::Parallel }).collect();
    let mut nest = LoopNest { name: "".into(), loops, body, origins: Vec::new() };
    canonicalize(&mut nest);
    let [Op::Load { index, .. }, Op::Store { index: mark, .. }] = nest.body.ops.as_slice() else {
        return None;
    };
    if !index.is_affine() {
        return None;
    }
    let digits: Vec<Digit> = (0..nest.loops.len())
        .map(|k| {
            let var = LoopVar(k as u16);
            (mark.stride_of(var), index.stride_of(var), nest.loops[k].extent)
        })
        .collect();
    (0..shape.len()).map(|d| whole_stride(marks[d], shape[d], &digits)).collect()
}

/// The stride of one coordinate from its digits, if each walks on where the one below it ends.
fn whole_stride(mark: Size, extent: Size, digits: &[Digit]) -> Option<Size> {
    if extent.is(1) {
        return Some(Size::ZERO);
    }
    let own: Vec<Digit> = digits.iter().filter_map(|(m, s, e)| Some((m.div_exact(mark)?, *s, *e))).collect();
    let stride = own.iter().find(|(weight, ..)| weight.is(1))?.1;
    own.iter().all(|(weight, s, _)| *s == stride * *weight).then_some(stride)
}

#[cfg(test)]
mod tests {
    use super::*;
    use loafc_ir::graph::contiguous_strides;
    use loafc_ir::size::SymbolValues;
    use proptest::prelude::*;

    fn sizes(values: &[i64]) -> Vec<Size> {
        values.iter().map(|v| Size::from(*v)).collect()
    }

    #[test]
    fn a_reshape_stays_inside_its_group_of_dimensions() {
        let coords = reshape_coordinates(&sizes(&[96, 64]), &sizes(&[2, 48, 64]));
        assert_eq!(coords.iter().map(Index::to_string).collect::<Vec<_>>(), ["48*i0 + i1", "i2"]);
        let coords = reshape_coordinates(&sizes(&[2, 48, 64]), &sizes(&[96, 64]));
        assert_eq!(
            coords.iter().map(Index::to_string).collect::<Vec<_>>(),
            ["((i0) // 48)", "((i0) % 48)", "i1"]
        );
    }

    #[test]
    fn symbolic_extents_are_grouped_too() {
        let n = Size::symbol("n");
        let four = Size::from(4);
        let coords = reshape_coordinates(&[n, four * Size::from(8)], &[n, four, Size::from(8)]);
        assert_eq!(coords.iter().map(Index::to_string).collect::<Vec<_>>(), ["i0", "8*i1 + i2"]);
        let coords = reshape_coordinates(&[n, four], &[n * four]);
        assert_eq!(coords.iter().map(Index::to_string).collect::<Vec<_>>(), ["((i0) // 4)", "((i0) % 4)"]);
    }

    #[test]
    fn a_transposed_tensor_has_no_flat_strides() {
        assert_eq!(reshape_strides(&sizes(&[4, 8]), &sizes(&[1, 4]), &sizes(&[32])), None);
        assert_eq!(
            reshape_strides(&sizes(&[4, 8]), &sizes(&[16, 1]), &sizes(&[4, 2, 4])).unwrap().to_vec(),
            sizes(&[16, 4, 1])
        );
    }

    fn factorings() -> impl Strategy<Value = (Vec<i64>, Vec<i64>)> {
        (proptest::collection::vec(1i64..5, 1..4), 0usize..6).prop_map(|(from, seed)| {
            let n: i64 = from.iter().product();
            let divisors: Vec<i64> = (1..=n).filter(|d| n % d == 0).collect();
            let a = divisors[seed % divisors.len()];
            let rest = n / a;
            let b = (1..=rest).filter(|d| rest % d == 0).nth(seed % 2).unwrap_or(1);
            (from, vec![a, b, rest / b])
        })
    }

    proptest! {
        #[test]
        fn reshape_keeps_row_major_order((from, to) in factorings()) {
            let (f, t) = (sizes(&from), sizes(&to));
            let coords = reshape_coordinates(&f, &t);
            let strides = contiguous_strides(&f);
            let values = SymbolValues::new();
            let n: i64 = from.iter().product();
            for flat in 0..n {
                let at = [flat / (to[1] * to[2]), flat / to[2] % to[1], flat % to[2]];
                let mut back = 0;
                for (c, s) in coords.iter().zip(&strides) {
                    back += c.eval(&|v| at[v.0 as usize], &|_| 0, &values).unwrap() * s.as_const().unwrap();
                }
                prop_assert_eq!(back, flat);
            }
        }

        #[test]
        fn reshape_of_a_contiguous_buffer_is_stride_arithmetic((from, to) in factorings()) {
            let (f, t) = (sizes(&from), sizes(&to));
            let view = TensorView {
                buffer: BufferId(0),
                strides: contiguous_strides(&f).to_vec(),
                shape: f.clone(),
                offset: Size::ZERO,
            };
            let back = compose(&view, &reshape_coordinates(&f, &t), &t);
            let back = back.expect("affine");
            prop_assert!(same_layout(&t, &back.strides, &contiguous_strides(&t)));
            let direct = reshape_strides(&f, &view.strides, &t).expect("contiguous");
            prop_assert!(same_layout(&t, &direct, &contiguous_strides(&t)));
        }
    }
}
