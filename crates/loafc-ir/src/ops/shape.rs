//! Shapes and strides of results: broadcasting, the memory order that PyTorch gives the result of an elementwise
//! operator, and strides of views.

use smallvec::SmallVec;

use super::call::{Call, Operand, shape_text};
use super::error::InferError;
use crate::dtype::DType;
use crate::graph::{Dims, TensorType, contiguous_strides};
use crate::size::{Atom, Size, SymbolValues};

/// Whether two sizes differ whatever values symbols have: by a constant, or as polynomials without floor
/// division, modulo, minimum or maximum. Of sizes with these a guard may promise that they are equal.
pub fn provably_differ(a: Size, b: Size) -> bool {
    let difference = a - b;
    match difference.as_const() {
        Some(d) => d != 0,
        None => difference
            .terms()
            .iter()
            .all(|(_, atoms)| atoms.iter().all(|atom| matches!(atom, Atom::Symbol(_)))),
    }
}

/// The shape that these broadcast to.
pub fn broadcast(call: &Call, shapes: &[&[Size]]) -> Result<Dims, InferError> {
    let rank = shapes.iter().map(|s| s.len()).max().unwrap_or(0);
    let mut result: Dims = SmallVec::from_elem(Size::ONE, rank);
    for shape in shapes {
        for (from_right, extent) in shape.iter().rev().enumerate() {
            let merged = &mut result[rank - 1 - from_right];
            if merged.is(1) {
                *merged = *extent;
            } else if !extent.is(1) && merged != extent {
                call.require_equal(*merged, *extent, || InferError::Broadcast {
                    op: call.op.to_owned(),
                    shapes: shapes.iter().map(|s| shape_text(s)).collect(),
                    dim: from_right + 1,
                    left: *merged,
                    right: *extent,
                })?;
            }
        }
    }
    Ok(result)
}

/// Fails unless `from` broadcasts to `to`.
pub fn check_expands(call: &Call, name: &str, from: &[Size], to: &[Size]) -> Result<(), InferError> {
    let refused =
        || call.invalid(name, format!("shape {} does not expand to {}", shape_text(from), shape_text(to)));
    if from.len() > to.len() {
        return Err(refused());
    }
    let mut pairs = from.iter().rev().zip(to.iter().rev()).filter(|(f, _)| !f.is(1));
    pairs.try_for_each(|(f, t)| call.require_equal(*f, *t, refused))
}

/// Fails unless the shapes are equal.
pub fn check_equal_shapes(
    call: &Call,
    name: &str,
    found: &[Size],
    expected: &[Size],
) -> Result<(), InferError> {
    let refused = || {
        let message = format!("shape {} was expected, it has {}", shape_text(expected), shape_text(found));
        call.invalid(name, message)
    };
    if found.len() != expected.len() {
        return Err(refused());
    }
    found.iter().zip(expected).try_for_each(|(f, e)| call.require_equal(*f, *e, refused))
}

/// A comparison that also works on symbolic strides, by their hints.
fn compare(a: Size, b: Size) -> std::cmp::Ordering {
    if a == b {
        return std::cmp::Ordering::Equal;
    }
    let hints = SymbolValues::new();
    a.hint(&hints).cmp(&b.hint(&hints))
}

/// Strides of `ty` seen with `shape`, which it broadcasts to: 0 in broadcast dimensions.
pub fn expanded_strides(ty: &TensorType, shape: &[Size]) -> Dims {
    let added = shape.len().saturating_sub(ty.rank());
    shape
        .iter()
        .enumerate()
        .map(|(d, extent)| match d.checked_sub(added) {
            None => Size::ZERO,
            Some(own) if ty.shape[own].is(1) && !extent.is(1) => Size::ZERO,
            Some(own) => ty.strides[own],
        })
        .collect()
}

/// Strides without gaps in the memory order of the operands, as PyTorch's `TensorIterator` orders dimensions:
/// each pair by the first operand that tells them apart, ties by extent. `strides` holds those of each operand
/// for the result's dimensions, 0 where it is broadcast.
pub fn iterator_strides(shape: &[Size], strides: &[Dims]) -> Dims {
    let rank = shape.len();
    if shape.iter().any(|s| s.is(0)) {
        return contiguous_strides(shape);
    }
    // Innermost first.
    let mut order: SmallVec<[usize; 6]> = (0..rank).rev().collect();
    let swap = |a: usize, b: usize| -> i32 {
        for operand in strides {
            if operand[a].is(0) || operand[b].is(0) {
                continue;
            }
            match compare(operand[a], operand[b]) {
                std::cmp::Ordering::Less => return -1,
                std::cmp::Ordering::Greater => return 1,
                std::cmp::Ordering::Equal if compare(shape[a], shape[b]).is_gt() => return 1,
                std::cmp::Ordering::Equal => {}
            }
        }
        0
    };
    for i in 1..rank {
        let mut at = i;
        for before in (0..i).rev() {
            match swap(order[before], order[at]) {
                1 => {
                    order.swap(before, at);
                    at = before;
                }
                -1 => break,
                _ => {}
            }
        }
    }
    dense_strides(shape, order.iter().copied())
}

/// Strides without gaps; `order` names dimensions, the innermost first.
pub fn dense_strides(shape: &[Size], order: impl Iterator<Item = usize>) -> Dims {
    let mut strides: Dims = SmallVec::from_elem(Size::ONE, shape.len());
    let mut next = Size::ONE;
    for d in order {
        strides[d] = next;
        next *= shape[d];
    }
    strides
}

/// Dimensions from the innermost outwards by stride.
fn by_stride(ty: &TensorType) -> SmallVec<[usize; 6]> {
    let mut order: SmallVec<[usize; 6]> = (0..ty.rank()).rev().collect();
    order.sort_by(|a, b| compare(ty.strides[*a], ty.strides[*b]));
    order
}

/// Whether every element of a memory range belongs to exactly one element of the tensor.
pub fn is_dense(ty: &TensorType) -> bool {
    let mut expected = Size::ONE;
    for d in by_stride(ty) {
        if ty.shape[d].is(1) {
            continue;
        }
        if ty.strides[d] != expected {
            return false;
        }
        expected *= ty.shape[d];
    }
    true
}

/// Strides of a tensor whose dimension 1 is innermost (`torch.channels_last`), for 4 or 5 dimensions.
pub fn channels_last_strides(shape: &[Size]) -> Dims {
    let rank = shape.len();
    dense_strides(shape, std::iter::once(1).chain((2..rank).rev()).chain(std::iter::once(0)))
}

/// Whether PyTorch takes the tensor for one in `torch.channels_last` and not for a contiguous one.
pub fn is_channels_last(ty: &TensorType) -> bool {
    if !matches!(ty.rank(), 4 | 5) || ty.is_contiguous() {
        return false;
    }
    let wanted = channels_last_strides(&ty.shape);
    ty.shape.iter().zip(ty.strides.iter().zip(&wanted)).all(|(n, (s, w))| n.is(1) || s == w)
}

/// Strides for `shape` in the memory format of `like`: channels last or contiguous.
pub fn suggested_strides(like: &TensorType, shape: &[Size]) -> Dims {
    if shape.len() == like.rank() && is_channels_last(like) {
        channels_last_strides(shape)
    } else {
        contiguous_strides(shape)
    }
}

/// Strides of `torch.empty_like(ty)`: its own where it is dense, else dense ones in the same memory order.
pub fn preserved_strides(ty: &TensorType) -> Dims {
    if is_dense(ty) {
        ty.strides.clone()
    } else {
        iterator_strides(&ty.shape, std::slice::from_ref(&ty.strides))
    }
}

/// Type of the result of an elementwise operator.
pub fn pointwise_type(call: &Call, dtype: DType, operands: &[&Operand]) -> Result<TensorType, InferError> {
    let shapes: SmallVec<[&[Size]; 4]> = operands.iter().map(|o| o.shape()).collect();
    let shape = broadcast(call, &shapes)?;
    let tensors: SmallVec<[&TensorType; 4]> = operands.iter().filter_map(|o| o.tensor()).collect();
    let device = tensors.iter().map(|t| t.device).find(|d| *d != Default::default()).unwrap_or_default();
    let same_shape = tensors.len() == operands.len() && tensors.iter().all(|t| t.shape == shape);
    let strides = if same_shape && tensors.iter().all(|t| t.is_contiguous()) {
        contiguous_strides(&shape)
    } else if same_shape && !tensors.is_empty() && tensors.iter().all(|t| is_channels_last(t)) {
        channels_last_strides(&shape)
    } else if same_shape
        && !tensors.is_empty()
        && tensors.iter().all(|t| t.strides == tensors[0].strides && is_dense(t))
    {
        tensors[0].strides.clone()
    } else {
        let strides: Vec<Dims> = tensors.iter().map(|t| expanded_strides(t, &shape)).collect();
        iterator_strides(&shape, &strides)
    };
    Ok(TensorType { dtype, shape, strides, device })
}

/// Strides that show a tensor of `ty` as `shape` without a copy; `None` where there are none.
pub fn view_strides(ty: &TensorType, shape: &[Size]) -> Option<Dims> {
    if ty.shape.is_empty() {
        return Some(SmallVec::from_elem(Size::ONE, shape.len()));
    }
    if ty.shape.as_slice() == shape {
        return Some(ty.strides.clone());
    }
    if ty.numel().is(0) {
        return Some(contiguous_strides(shape));
    }
    let mut strides: Dims = SmallVec::from_elem(Size::ONE, shape.len());
    let mut left = shape.len();
    let mut base = *ty.strides.last()?;
    let (mut old_count, mut new_count) = (Size::ONE, Size::ONE);
    for d in (0..ty.rank()).rev() {
        old_count *= ty.shape[d];
        let joined = d > 0 && (ty.shape[d - 1].is(1) || ty.strides[d - 1] == old_count * base);
        if joined {
            continue;
        }
        while left > 0 && (new_count != old_count || shape[left - 1].is(1)) {
            left -= 1;
            strides[left] = new_count * base;
            new_count *= shape[left];
        }
        if new_count != old_count {
            return None;
        }
        if d > 0 {
            base = ty.strides[d - 1];
            (old_count, new_count) = (Size::ONE, Size::ONE);
        }
    }
    (left == 0).then_some(strides)
}

/// A contiguous type on the device of another.
pub fn contiguous_like(like: &TensorType, dtype: DType, shape: impl IntoIterator<Item = Size>) -> TensorType {
    TensorType { device: like.device, ..TensorType::contiguous(dtype, shape) }
}
