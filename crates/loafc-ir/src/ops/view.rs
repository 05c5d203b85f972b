//! Operators that show a tensor's elements in another shape or order without moving them. In the interpreter a
//! view is a copy: each is defined by where an element of the result comes from.

use std::fmt::Display;

use smallvec::SmallVec;

use super::call::{Call, TensorArg, shape_text};
use super::elements::row_major;
use super::eval::{EvalCall, Fault, extents, memory_of};
use super::shape::{check_expands, contiguous_like, expanded_strides, view_strides};
use super::{InferError, OpDef, ResultTypes, general, one};
use crate::condition::{Comparison, Relation};
use crate::graph::{Dims, TensorType, constant_span};
use crate::interp::scalar;
use crate::interp::tensor::HostTensor;
use crate::size::Size;

pub(super) const OPS: &[OpDef] = &[
    general("aten.view.default", "self, size", infer_view, eval_same_order),
    general("aten.reshape.default", "self, shape", infer_view, eval_same_order),
    general("aten._unsafe_view.default", "self, size", infer_view, eval_same_order),
    general("aten._reshape_copy.default", "self, size", infer_view, eval_same_order),
    general("aten.flatten.using_ints", "self, start_dim, end_dim", infer_flatten, eval_same_order),
    general("aten.unflatten.int", "self, dim, sizes", infer_unflatten, eval_same_order),
    general("aten.view.dtype", "self, dtype", infer_view_dtype, eval_view_dtype),
    general("aten.permute.default", "self, dims", infer_permute, eval_permute),
    general("aten.transpose.int", "self, dim0, dim1", infer_transpose, eval_permute),
    general("aten.t.default", "self", infer_transpose, eval_permute),
    general("aten.expand.default", "self, size, *, implicit", infer_expand, eval_expand),
    general("aten.slice.Tensor", "self, dim, start, end, step", infer_slice, eval_slice),
    general("aten.narrow.default", "self, dim, start, length", infer_narrow, eval_narrow),
    general("aten.select.int", "self, dim, index", infer_select, eval_select),
    general("aten.squeeze.default", "self", infer_squeeze, eval_same_order),
    general("aten.squeeze.dim", "self, dim", infer_squeeze, eval_same_order),
    general("aten.squeeze.dims", "self, dim", infer_squeeze, eval_same_order),
    general("aten.unsqueeze.default", "self, dim", infer_unsqueeze, eval_same_order),
    general("aten.alias.default", "self", infer_same, eval_same_order),
    general("aten.detach.default", "self", infer_same, eval_same_order),
    general("aten.lift_fresh.default", "self", infer_same, eval_same_order),
    general("aten.as_strided.default", AS_STRIDED, infer_as_strided, eval_as_strided),
    general("aten.diagonal.default", "self, offset, dim1, dim2", infer_diagonal, eval_diagonal),
    general("aten.unfold.default", "self, dimension, size, step", infer_unfold, eval_unfold),
    general("aten.split.Tensor", "self, split_size, dim", infer_split, eval_split),
    general("aten.split.sizes", "self, split_size, dim", infer_split_sizes, eval_split),
    general("aten.split_with_sizes.default", "self, split_sizes, dim", infer_split_sizes, eval_split),
    general("aten.chunk.default", "self, chunks, dim", infer_chunk, eval_split),
    general("aten.unbind.int", "self, dim", infer_unbind, eval_unbind),
];

const AS_STRIDED: &str = "self, size, stride, storage_offset";

/// A result whose element at an index is the operand's at another.
pub(super) fn moved(
    e: &EvalCall,
    source: impl Fn(&[usize], &mut SmallVec<[usize; 6]>),
) -> Result<Vec<HostTensor>, Fault> {
    let x = e.tensor(0, "self")?;
    let mut from: SmallVec<[usize; 6]> = SmallVec::new();
    let result = HostTensor::build(x.dtype, &e.shape(0)?, |index| {
        from.clear();
        source(index, &mut from);
        Ok(x.at(&from))
    })?;
    Ok(vec![result])
}

/// The same elements in row-major order.
fn eval_same_order(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    Ok(vec![e.tensor(0, "self")?.reshaped(&e.shape(0)?)])
}

fn infer_same(call: &Call) -> Result<ResultTypes, InferError> {
    one(call.tensor_type(0, "self")?)
}

/// A type of other extents: strides of a view where that is possible, those of a contiguous copy where not.
/// PyTorch's `view` refuses the second; in functional programs the difference is not visible.
fn reshaped(x: &TensorType, shape: Dims) -> TensorType {
    match view_strides(x, &shape) {
        Some(strides) => TensorType { shape, strides, ..x.clone() },
        None => contiguous_like(x, x.dtype, shape),
    }
}

/// Replaces one extent of -1 by what is left of the number of elements.
pub fn resolve_shape(call: &Call, name: &str, numel: Size, mut shape: Dims) -> Result<Dims, InferError> {
    let mut unknown = shape.iter().enumerate().filter(|(_, extent)| extent.is(-1)).map(|(d, _)| d);
    let (at, second) = (unknown.next(), unknown.next());
    let refused = |shape: &Dims| {
        call.invalid(name, format!("{numel} elements don't fit the shape {}", shape_text(shape)))
    };
    if second.is_some() {
        return Err(call.invalid(name, "only one extent can be -1"));
    }
    if let Some(bad) = shape.iter().find(|extent| extent.as_const().is_some_and(|c| c < -1)) {
        return Err(call.invalid(name, format!("{bad} is no extent; use -1 or a number from 0")));
    }
    let known: Size = shape.iter().filter(|extent| !extent.is(-1)).copied().product();
    let Some(at) = at else {
        call.require_equal(known, numel, || refused(&shape))?;
        return Ok(shape);
    };
    if known.is(0) {
        return Err(call.invalid(name, "-1 is ambiguous beside an extent of 0"));
    }
    shape[at] = match (numel.div_exact(known), numel.as_const(), known.as_const()) {
        (Some(exact), ..) => exact,
        (None, Some(_), Some(_)) => return Err(refused(&shape)),
        _ => {
            let quotient = numel.floor_div(known);
            let divides = Comparison::new(quotient * known, Relation::Equal, numel);
            call.require(divides, || refused(&shape))?;
            quotient
        }
    };
    Ok(shape)
}

fn infer_view(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(0, "self")?;
    let name = if call.op == "aten.reshape.default" { "shape" } else { "size" };
    let shape = resolve_shape(call, name, x.numel(), call.sizes(1, name)?)?;
    one(reshaped(&x, shape))
}

fn infer_flatten(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(0, "self")?;
    let (start, end) = (call.dim_or(1, "start_dim", 0, x.rank())?, call.dim_or(2, "end_dim", -1, x.rank())?);
    if start > end {
        return Err(call.invalid("start_dim", format!("{start} is behind `end_dim`, {end}")));
    }
    if x.shape.is_empty() {
        return one(reshaped(&x, SmallVec::from_slice(&[Size::ONE])));
    }
    let mut shape: Dims = SmallVec::from_slice(&x.shape[..start]);
    shape.push(x.shape[start..=end].iter().copied().product());
    shape.extend_from_slice(&x.shape[end + 1..]);
    one(reshaped(&x, shape))
}

fn infer_unflatten(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(0, "self")?;
    let dim = existing_dim(call, call.dim(1, "dim", x.rank())?, &x)?;
    let parts = resolve_shape(call, "sizes", x.shape[dim], call.sizes(2, "sizes")?)?;
    let shape = x.shape[..dim].iter().chain(&parts).chain(&x.shape[dim + 1..]).copied().collect();
    one(reshaped(&x, shape))
}

fn infer_view_dtype(call: &Call) -> Result<ResultTypes, InferError> {
    let mut x = call.tensor_type(0, "self")?;
    let Some(dtype) = call.opt_dtype(1, "dtype")? else { return one(x) };
    let (from, to) = (x.dtype.bytes(), dtype.bytes());
    x.dtype = dtype;
    if from == to {
        return one(x);
    }
    // Bytes of neighbouring elements are split or joined along the last dimension.
    let (Some((extent, outer)), Some(stride)) = (x.shape.split_last(), x.strides.last()) else {
        return Err(call.invalid("self", "at least one dimension was expected for a type of other width"));
    };
    if !stride.is(1) {
        return Err(call.invalid("self", "the elements of the last dimension must be neighbours"));
    }
    let outer_strides = &x.strides[..outer.len()];
    let scaled = |size: Size| match from > to {
        true => Some(size * Size::from(from / to)),
        false => size.div_exact(Size::from(to / from)),
    };
    let last = scaled(*extent);
    let strides: Option<Dims> = outer_strides.iter().map(|s| scaled(*s)).chain([Some(Size::ONE)]).collect();
    let (Some(last), Some(strides)) = (last, strides) else {
        let message = format!("the extent {extent} or a stride can't be divided by {}", to / from);
        return Err(call.invalid("self", message));
    };
    let shape = outer.iter().copied().chain([last]).collect();
    one(TensorType { shape, strides, ..x })
}

fn eval_view_dtype(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let (x, dtype) = (e.tensor(0, "self")?, e.result(0)?.dtype);
    if x.dtype.is_complex() || dtype.is_complex() {
        return Err(Fault::Value("complex numbers can't be interpreted".to_owned()));
    }
    let bytes: Vec<u8> = x
        .data
        .iter()
        .flat_map(|v| scalar::to_bits(*v, x.dtype).to_le_bytes().into_iter().take(x.dtype.bytes()))
        .collect();
    let data = bytes
        .chunks_exact(dtype.bytes())
        .map(|chunk| {
            let mut bits = [0; 8];
            bits[..chunk.len()].copy_from_slice(chunk);
            scalar::from_bits(u64::from_le_bytes(bits), dtype)
        })
        .collect();
    Ok(vec![HostTensor { dtype, shape: e.shape(0)?, data }])
}

/// For each dimension of the result, the operand's.
fn permutation(call: &Call, rank: usize) -> Result<SmallVec<[usize; 6]>, InferError> {
    if call.op == "aten.permute.default" {
        let dims = call.opt_dims(1, "dims", rank)?.unwrap_or_default();
        if dims.len() != rank {
            let message = format!("{} dimensions are named, the tensor has {rank}", dims.len());
            return Err(call.invalid("dims", message));
        }
        return Ok(dims);
    }
    let mut order: SmallVec<[usize; 6]> = (0..rank).collect();
    if call.op == "aten.t.default" {
        if rank > 2 {
            let message = format!("at most 2 dimensions were expected, it has {rank}");
            return Err(call.invalid("self", message));
        }
        order.reverse();
    } else if rank > 0 {
        order.swap(call.dim(1, "dim0", rank)?, call.dim(2, "dim1", rank)?);
    }
    Ok(order)
}

fn infer_permute(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(0, "self")?;
    let order = permutation(call, x.rank())?;
    let shape = order.iter().map(|d| x.shape[*d]).collect();
    let strides = order.iter().map(|d| x.strides[*d]).collect();
    one(TensorType { shape, strides, ..x })
}

fn infer_transpose(call: &Call) -> Result<ResultTypes, InferError> {
    infer_permute(call)
}

fn eval_permute(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let order = permutation(&e.call, e.tensor(0, "self")?.shape.len())?;
    moved(e, |index, from| {
        from.resize(order.len(), 0);
        for (i, d) in index.iter().zip(&order) {
            from[*d] = *i;
        }
    })
}

fn infer_expand(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(0, "self")?;
    let mut shape = call.sizes(1, "size")?;
    if shape.len() < x.rank() {
        let message =
            format!("{} extents for a tensor of {} dimensions; give at least as many", shape.len(), x.rank());
        return Err(call.invalid("size", message));
    }
    let added = shape.len() - x.rank();
    for (d, extent) in shape.iter_mut().enumerate() {
        if !extent.is(-1) {
            continue;
        }
        match d.checked_sub(added) {
            Some(own) => *extent = x.shape[own],
            None => return Err(call.invalid("size", "-1 stands for an extent that the tensor hasn't got")),
        }
    }
    check_expands(call, "self", &x.shape, &shape)?;
    let strides = expanded_strides(&x, &shape);
    one(TensorType { shape, strides, ..x })
}

fn eval_expand(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let x = e.tensor(0, "self")?;
    moved(e, |index, from| {
        let own = &index[index.len() - x.shape.len()..];
        from.extend(own.iter().zip(&x.shape).map(|(i, extent)| if *extent == 1 { 0 } else { *i }));
    })
}

/// The dimension, if the tensor has it; tensors without dimensions can't be sliced or selected from.
pub fn existing_dim(call: &Call, dim: usize, x: &TensorType) -> Result<usize, InferError> {
    if dim < x.rank() {
        return Ok(dim);
    }
    Err(InferError::Dim { op: call.op.to_owned(), name: "dim".to_owned(), dim: dim as i64, rank: x.rank() })
}

/// What a slice takes of one dimension.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct SliceRange {
    /// First position.
    pub start: Size,
    /// Distance of positions; at least 1.
    pub step: Size,
    /// Number of positions.
    pub length: Size,
}

/// Reads the arguments `start`, `end` and `step` of a slice of dimension `dim`, which stand from this position on.
/// Bounds are clamped as PyTorch does where they are constant; symbolic ones have to lie inside of the dimension,
/// in order.
pub fn slice_range(call: &Call, position: usize, dim: usize, extent: Size) -> Result<SliceRange, InferError> {
    let bound = |given: Size| match (given.as_const(), extent.as_const()) {
        (Some(g), Some(n)) => Size::from(if g < 0 { g.saturating_add(n) } else { g }.clamp(0, n)),
        // Python's way to say "to the end".
        (Some(g), None) if g >= i64::from(i32::MAX) => extent,
        (Some(g), None) if g < 0 => extent + given,
        _ => given,
    };
    let start = bound(call.size_or(position, "start", Size::ZERO)?);
    let end = bound(call.size_or(position + 1, "end", extent)?);
    let step = call.size_or(position + 2, "step", Size::ONE)?;
    require_positive(call, "step", step)?;
    let span = end - start;
    if span.as_const().is_some_and(|s| s < 0) {
        return Ok(SliceRange { start, step, length: Size::ZERO });
    }
    for (name, low, high) in [("start", Size::ZERO, start), ("end", start, end), ("end", end, extent)] {
        call.require_at_most(low, high, || {
            let message =
                format!("positions from {start} to {end} are no part of dimension {dim} of extent {extent}");
            call.invalid(name, message)
        })?;
    }
    Ok(SliceRange { start, step, length: span.ceil_div(step) })
}

fn require_positive(call: &Call, name: &str, size: Size) -> Result<(), InferError> {
    call.require_at_most(Size::ONE, size, || call.invalid(name, format!("{size} is not positive")))
}

fn sliced(x: &TensorType, dim: usize, length: Size, step: Size) -> TensorType {
    let mut ty = x.clone();
    ty.shape[dim] = length;
    // The stride of a single position says nothing, and steps to the end of everything would overflow.
    let overflows = match (ty.strides[dim].as_const(), step.as_const()) {
        (Some(stride), Some(step)) => stride.checked_mul(step).is_none(),
        _ => false,
    };
    if !(overflows && length.as_const().is_some_and(|l| l <= 1)) {
        ty.strides[dim] *= step;
    }
    ty
}

fn infer_slice(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(0, "self")?;
    let dim = existing_dim(call, call.dim_or(1, "dim", 0, x.rank())?, &x)?;
    let range = slice_range(call, 2, dim, x.shape[dim])?;
    one(sliced(&x, dim, range.length, range.step))
}

/// A constant size as a position.
pub(super) fn position(size: Size) -> Result<usize, Fault> {
    Ok(extents(&[size])?[0])
}

fn eval_slice(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let x = e.tensor(0, "self")?;
    let dim = e.call.dim_or(1, "dim", 0, x.shape.len())?;
    let range = slice_range(&e.call, 2, dim, Size::from(x.shape[dim]))?;
    let (start, step) = (position(range.start)?, position(range.step)?);
    moved(e, |index, from| {
        from.extend_from_slice(index);
        from[dim] = start + step * index[dim];
    })
}

/// The argument `index`, a position in dimension `dim`; counted from its end where it is a negative constant.
pub fn wrapped_index(call: &Call, position: usize, dim: usize, extent: Size) -> Result<Size, InferError> {
    let given = call.size(position, "index")?;
    let index = if given.as_const().is_some_and(|i| i < 0) { given + extent } else { given };
    let outside =
        || call.invalid("index", format!("{given} is out of range for dimension {dim} of extent {extent}"));
    call.require_at_most(Size::ZERO, index, outside)?;
    call.require(Comparison::new(index, Relation::Less, extent), outside)?;
    Ok(index)
}

fn infer_narrow(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(0, "self")?;
    let dim = existing_dim(call, call.dim(1, "dim", x.rank())?, &x)?;
    let extent = x.shape[dim];
    let (start, length) = narrow_range(call, extent)?;
    call.require_at_most(Size::ZERO, start, || {
        call.invalid(
            "start",
            format!("{start} lies before the first of {extent} positions of dimension {dim}"),
        )
    })?;
    // Each alone as well: the sum of numbers that are too large may be small.
    for (low, high) in [(Size::ZERO, length), (start, extent), (length, extent), (start + length, extent)] {
        call.require_at_most(low, high, || {
            let message = format!(
                "{length} positions from {start} on are no part of dimension {dim} of extent {extent}"
            );
            call.invalid("length", message)
        })?;
    }
    one(sliced(&x, dim, length, Size::ONE))
}

fn narrow_range(call: &Call, extent: Size) -> Result<(Size, Size), InferError> {
    let start = call.size(2, "start")?;
    let start = if start.as_const().is_some_and(|s| s < 0) { start + extent } else { start };
    Ok((start, call.size(3, "length")?))
}

fn eval_narrow(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let x = e.tensor(0, "self")?;
    let dim = e.call.dim(1, "dim", x.shape.len())?;
    let start = position(narrow_range(&e.call, Size::from(x.shape[dim]))?.0)?;
    moved(e, |index, from| {
        from.extend_from_slice(index);
        from[dim] += start;
    })
}

fn infer_select(call: &Call) -> Result<ResultTypes, InferError> {
    let mut x = call.tensor_type(0, "self")?;
    let dim = existing_dim(call, call.dim(1, "dim", x.rank())?, &x)?;
    wrapped_index(call, 2, dim, x.shape[dim])?;
    x.shape.remove(dim);
    x.strides.remove(dim);
    one(x)
}

fn eval_select(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let x = e.tensor(0, "self")?;
    let dim = e.call.dim(1, "dim", x.shape.len())?;
    let at = wrapped_index(&e.call, 2, dim, Size::from(x.shape[dim]))?;
    let at = position(at)?;
    moved(e, |index, from| {
        from.extend_from_slice(&index[..dim]);
        from.push(at);
        from.extend_from_slice(&index[dim..]);
    })
}

fn infer_squeeze(call: &Call) -> Result<ResultTypes, InferError> {
    let mut x = call.tensor_type(0, "self")?;
    let named = call.opt_dims(1, "dim", x.rank())?;
    for d in (0..x.rank()).rev() {
        if x.shape[d].is(1) && named.as_ref().is_none_or(|dims| dims.contains(&d)) {
            x.shape.remove(d);
            x.strides.remove(d);
        }
    }
    one(x)
}

fn infer_unsqueeze(call: &Call) -> Result<ResultTypes, InferError> {
    let mut x = call.tensor_type(0, "self")?;
    let dim = call.dim(1, "dim", x.rank() + 1)?;
    let stride = if dim < x.rank() { x.shape[dim] * x.strides[dim] } else { Size::ONE };
    x.shape.insert(dim, Size::ONE);
    x.strides.insert(dim, stride);
    one(x)
}

fn infer_as_strided(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(0, "self")?;
    let (shape, strides) = (call.sizes(1, "size")?, call.sizes(2, "stride")?);
    if shape.len() != strides.len() {
        let message = format!("{} strides for {} extents", strides.len(), shape.len());
        return Err(call.invalid("stride", message));
    }
    check_reach(call, &x, (&shape, &strides), call.size_or(3, "storage_offset", Size::ZERO)?)?;
    one(TensorType { shape, strides, ..x })
}

/// Fails where a view by strides leaves the memory of its operand.
pub(super) fn check_reach(
    call: &Call,
    x: &TensorType,
    (shape, strides): (&[Size], &[Size]),
    offset: Size,
) -> Result<(), InferError> {
    for (name, sizes) in [("size", shape), ("stride", strides), ("storage_offset", &[offset])] {
        sizes.iter().try_for_each(|size| call.require_natural(name, *size))?;
    }
    let refused = |reach: &dyn Display, memory: &dyn Display| {
        let message = format!(
            "the view reaches over {reach} elements of memory, but its operand has {memory} elements"
        );
        call.invalid("self", message)
    };
    let (Some(span), Some(offset), Some(memory)) =
        (constant_span(shape, strides), offset.as_const(), x.span())
    else {
        let (reach, memory) = (span(shape, strides) + offset, span(&x.shape, &x.strides));
        let elements = shape.iter().copied().product();
        // An operand without elements has no memory, whatever its strides.
        let there = Comparison::new(Size::ONE, Relation::AtMost, x.shape.iter().copied().product());
        call.require(there.with_elements(elements), || refused(&reach, &0))?;
        let inside = Comparison::new(reach, Relation::AtMost, memory);
        return call.require(inside.with_elements(elements), || refused(&reach, &memory));
    };
    // Larger numbers than sizes hold are out of any memory.
    let reach = span.saturating_add(i128::from(offset));
    if span == 0 || reach <= memory {
        return Ok(());
    }
    Err(refused(&reach, &memory))
}

/// Elements of memory from the first to the last that these extents and strides reach, if there are any.
fn span(shape: &[Size], strides: &[Size]) -> Size {
    shape.iter().zip(strides).map(|(extent, stride)| (*extent - Size::ONE) * *stride).sum::<Size>()
        + Size::ONE
}

/// The position in memory of each element that `as_strided` shows, in row-major order.
pub(super) fn strided_positions(e: &EvalCall, at: usize, shape: &[usize]) -> Result<Vec<usize>, Fault> {
    let strides = extents(&e.call.sizes(at, "stride")?)?;
    let offset = position(e.call.size_or(at + 1, "storage_offset", Size::ZERO)?)?;
    let own = row_major(shape);
    // Positions too large for a word are outside of every memory.
    let position = |k: usize| {
        (0..shape.len())
            .fold(offset, |at, d| at.saturating_add((k / own[d] % shape[d]).saturating_mul(strides[d])))
    };
    Ok((0..shape.iter().product()).map(position).collect())
}

fn eval_as_strided(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let TensorArg { id, ty } = e.call.tensor(0, "self")?;
    let memory = memory_of(&ty, e.value(id)?)?;
    let shape = e.shape(0)?;
    let data =
        strided_positions(e, 2, &shape)?
            .into_iter()
            .map(|at| {
                memory.get(at).copied().flatten().ok_or_else(|| {
                    Fault::Value(format!("element {at} of the memory is not part of the operand"))
                })
            })
            .collect::<Result<_, _>>()?;
    Ok(vec![HostTensor { dtype: ty.dtype, shape, data }])
}

/// The two dimensions of a diagonal, and where it starts in each.
struct Diagonal {
    dims: (usize, usize),
    start: (usize, usize),
}

fn diagonal(call: &Call, rank: usize) -> Result<Diagonal, InferError> {
    let offset = call.int_or(1, "offset", 0)?;
    let dims = (call.dim_or(2, "dim1", 0, rank)?, call.dim_or(3, "dim2", 1, rank)?);
    if dims.0 == dims.1 {
        return Err(InferError::RepeatedDim { op: call.op.to_owned(), name: "dim2".into(), dim: dims.1 });
    }
    Ok(Diagonal { dims, start: (offset.saturating_neg().max(0) as usize, offset.max(0) as usize) })
}

fn infer_diagonal(call: &Call) -> Result<ResultTypes, InferError> {
    let mut x = call.tensor_type(0, "self")?;
    let Diagonal { dims, start } = diagonal(call, x.rank())?;
    let length = (x.shape[dims.0] - Size::from(start.0)).min(x.shape[dims.1] - Size::from(start.1));
    let length = if length.as_const().is_some_and(|l| l < 0) { Size::ZERO } else { length };
    let stride = x.strides[dims.0] + x.strides[dims.1];
    for d in [dims.0.max(dims.1), dims.0.min(dims.1)] {
        x.shape.remove(d);
        x.strides.remove(d);
    }
    x.shape.push(length);
    x.strides.push(stride);
    one(x)
}

fn eval_diagonal(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let Diagonal { dims, start } = diagonal(&e.call, e.tensor(0, "self")?.shape.len())?;
    moved(e, |index, from| {
        let (along, others) = index.split_last().map_or((0, index), |(last, rest)| (*last, rest));
        from.extend_from_slice(others);
        let (low, high) = if dims.0 < dims.1 {
            ((dims.0, start.0), (dims.1, start.1))
        } else {
            ((dims.1, start.1), (dims.0, start.0))
        };
        from.insert(low.0, low.1 + along);
        from.insert(high.0, high.1 + along);
    })
}

fn infer_unfold(call: &Call) -> Result<ResultTypes, InferError> {
    let mut x = call.tensor_type(0, "self")?;
    let dim = call.dim(1, "dimension", x.rank())?;
    let (size, step) = (call.size(2, "size")?, call.size(3, "step")?);
    require_positive(call, "step", step)?;
    call.require_natural("size", size)?;
    let (extent, stride) = match x.shape.get(dim) {
        Some(extent) => (*extent, x.strides[dim]),
        None => (Size::ONE, Size::ONE),
    };
    call.require_at_most(size, extent, || {
        call.invalid("size", format!("{size} is larger than the extent {extent} of dimension {dim}"))
    })?;
    if dim < x.rank() {
        x.shape[dim] = (extent - size).floor_div(step) + Size::ONE;
        x.strides[dim] = stride * step;
    }
    x.shape.push(size);
    x.strides.push(stride);
    one(x)
}

fn eval_unfold(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let x = e.tensor(0, "self")?;
    let dim = e.call.dim(1, "dimension", x.shape.len())?;
    let step = position(e.call.size(3, "step")?)?;
    moved(e, |index, from| {
        from.extend_from_slice(&index[..x.shape.len()]);
        if let (Some(at), Some(inner)) = (from.get_mut(dim), index.last()) {
            *at = *at * step + inner;
        }
    })
}

/// Pieces of one dimension, in order.
fn pieces(x: &TensorType, dim: usize, lengths: impl Iterator<Item = Size>) -> ResultTypes {
    lengths.map(|length| Some(sliced(x, dim, length, Size::ONE))).collect()
}

fn even_pieces(x: &TensorType, dim: usize, extent: i64, each: i64) -> ResultTypes {
    let count = if each == 0 { 1 } else { ceil_div(extent, each).max(1) };
    pieces(x, dim, (0..count).map(|k| Size::from((extent - k * each).min(each))))
}

/// `ceil(extent / by)` of positive numbers, without overflow.
fn ceil_div(extent: i64, by: i64) -> i64 {
    extent / by + i64::from(extent % by != 0)
}

/// Fails where an operator would have an absurd number of results.
fn check_count(call: &Call, count: i64) -> Result<(), InferError> {
    const MOST: i64 = 1 << 16;
    if count <= MOST {
        return Ok(());
    }
    Err(call.invalid("self", format!("{count} results were asked for; at most {MOST} are supported")))
}

fn constant_extent(call: &Call, x: &TensorType, dim: usize) -> Result<i64, InferError> {
    x.shape[dim].as_const().ok_or_else(|| InferError::NotConstant {
        op: call.op.to_owned(),
        name: "self".to_owned(),
        found: x.shape[dim],
    })
}

fn infer_split(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(0, "self")?;
    let dim = existing_dim(call, call.dim_or(2, "dim", 0, x.rank())?, &x)?;
    let each = call.size(1, "split_size")?;
    // A symbolic extent splits evenly where the polynomial says how often.
    if let Some(count) = x.shape[dim].div_exact(each).and_then(Size::as_const)
        && x.shape[dim].as_const().is_none()
    {
        check_count(call, count)?;
        return Ok(pieces(&x, dim, (0..count).map(|_| each)));
    }
    let (extent, each) = (constant_extent(call, &x, dim)?, call.int(1, "split_size")?);
    if each < 0 || (each == 0 && extent != 0) {
        return Err(call.invalid("split_size", format!("{each} is no length of pieces of {extent}")));
    }
    check_count(call, if each == 0 { 1 } else { ceil_div(extent, each) })?;
    Ok(even_pieces(&x, dim, extent, each))
}

fn infer_chunk(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(0, "self")?;
    let dim = existing_dim(call, call.dim_or(2, "dim", 0, x.rank())?, &x)?;
    let (extent, chunks) = (constant_extent(call, &x, dim)?, call.int(1, "chunks")?);
    if chunks < 1 {
        return Err(call.invalid("chunks", format!("{chunks} is not positive")));
    }
    check_count(call, chunks)?;
    if extent == 0 {
        return Ok(pieces(&x, dim, (0..chunks).map(|_| Size::ZERO)));
    }
    Ok(even_pieces(&x, dim, extent, ceil_div(extent, chunks)))
}

fn infer_split_sizes(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(0, "self")?;
    let dim = existing_dim(call, call.dim_or(2, "dim", 0, x.rank())?, &x)?;
    let name = if call.op == "aten.split.sizes" { "split_size" } else { "split_sizes" };
    let lengths = call.sizes(1, name)?;
    lengths.iter().try_for_each(|length| call.require_natural(name, *length))?;
    let (total, extent): (Size, Size) = (lengths.iter().copied().sum(), x.shape[dim]);
    call.require_equal(total, extent, || {
        let message = format!(
            "{} add up to {total}, not to the extent {extent} of dimension {dim}",
            shape_text(&lengths)
        );
        call.invalid(name, message)
    })?;
    Ok(pieces(&x, dim, lengths.into_iter()))
}

fn eval_split(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let x = e.tensor(0, "self")?;
    let dim = e.call.dim_or(2, "dim", 0, x.shape.len())?;
    let mut start = 0;
    (0..e.results())
        .map(|k| {
            let shape = e.shape(k)?;
            let piece = HostTensor::build(x.dtype, &shape, |index| {
                let mut from: SmallVec<[usize; 6]> = SmallVec::from_slice(index);
                from[dim] += start;
                Ok(x.at(&from))
            });
            start += shape[dim];
            piece
        })
        .collect()
}

fn infer_unbind(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(0, "self")?;
    let dim = existing_dim(call, call.dim_or(1, "dim", 0, x.rank())?, &x)?;
    let count = constant_extent(call, &x, dim)?;
    check_count(call, count)?;
    let mut slice = x;
    slice.shape.remove(dim);
    slice.strides.remove(dim);
    Ok((0..count).map(|_| Some(slice.clone())).collect())
}

fn eval_unbind(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let x = e.tensor(0, "self")?;
    let dim = e.call.dim_or(1, "dim", 0, x.shape.len())?;
    (0..e.results())
        .map(|k| {
            HostTensor::build(x.dtype, &e.shape(k)?, |index| {
                let mut from: SmallVec<[usize; 6]> = SmallVec::from_slice(index);
                from.insert(dim, k);
                Ok(x.at(&from))
            })
        })
        .collect()
}
