//! Views, and what only moves elements: reshapes, permutations, slices, repetitions, copies.

use loafc_ir::graph::Dims;
use loafc_ir::index::{Index, LoopVar};
use loafc_ir::nest::{StoreMode, TensorView};
use loafc_ir::ops::Call;
use loafc_ir::size::Size;

use crate::expr::{Expr, ExprId};
use crate::lowering::{Lowered, Lowering, Refusal};
use crate::table::{Entry, buffers, compute, view};
use crate::view::{coordinate, coordinate_within};

type Cx<'a> = Lowering<'a>;

pub(super) static TABLE: &[Entry] = &[
    view("aten.view.default", reshape),
    view("aten.reshape.default", reshape),
    view("aten._unsafe_view.default", reshape),
    view("aten._reshape_alias.default", reshape),
    view("aten.flatten.using_ints", reshape),
    view("aten.unflatten.int", reshape),
    view("aten.squeeze.default", reshape),
    view("aten.squeeze.dim", reshape),
    view("aten.squeeze.dims", reshape),
    view("aten.unsqueeze.default", reshape),
    view("prims.collapse_view.default", reshape),
    view("prims.split_dim.default", reshape),
    view("aten.view.dtype", view_dtype),
    view("prims.view_element_type.default", view_dtype),
    view("aten.alias.default", alias),
    view("aten.detach.default", alias),
    view("aten.lift_fresh.default", alias),
    view("aten.permute.default", permute),
    view("aten.transpose.int", transpose),
    view("aten.t.default", t),
    view("aten.expand.default", expand),
    view("aten.broadcast_to.default", expand),
    view("aten.slice.Tensor", slice),
    view("aten.narrow.default", narrow),
    view("aten.select.int", select),
    view("aten.diagonal.default", diagonal),
    view("aten.unfold.default", unfold),
    view("aten.split.Tensor", split),
    view("aten.split_with_sizes.default", |cx, c| split_with_sizes(cx, c, "split_sizes")),
    view("aten.split.sizes", |cx, c| split_with_sizes(cx, c, "split_size")),
    view("aten.chunk.default", split_evenly),
    view("aten.unbind.int", unbind),
    buffers("aten.as_strided.default", as_strided),
    compute("aten.clone.default", clone),
    compute("aten.contiguous.default", clone),
    compute("aten._reshape_copy.default", reshape_copy),
    compute("prims.device_put.default", device_put),
    compute("aten.lift_fresh_copy.default", clone),
    compute("aten.copy.default", copy),
    compute("aten.copy_.default", copy_into),
    buffers("loafc.realize.default", realize),
    compute("aten.flip.default", flip),
    compute("prims.rev.default", flip),
    compute("aten.roll.default", roll),
    compute("aten.repeat.default", repeat),
];

/// Every operator that keeps the row-major order of its elements: the result's shape says it all.
fn reshape(cx: &mut Cx, c: &Call) -> Lowered {
    let a = cx.tensor(c, 0, "self")?;
    let shape = cx.out()?.shape.clone();
    Ok(vec![cx.reshape(a, &shape)])
}

fn reshape_copy(cx: &mut Cx, c: &Call) -> Lowered {
    let reshaped = reshape(cx, c)?;
    Ok(reshaped.into_iter().map(|a| cx.copy(a)).collect())
}

fn device_put(cx: &mut Cx, c: &Call) -> Lowered {
    let argument = c.tensor(0, "self")?;
    if argument.ty.device != cx.out()?.device {
        return Err(Refusal::Extern);
    }
    clone(cx, c)
}

/// The same bits as another type of the same width; other widths change the shape and stay with the library.
fn view_dtype(cx: &mut Cx, c: &Call) -> Lowered {
    let a = cx.tensor(c, 0, "self")?;
    let (from, to) = (cx.dtype(a), cx.out()?.dtype);
    if from == to {
        return Ok(vec![a]);
    }
    if from.bytes() != to.bytes() || from.is_complex() || to.is_complex() {
        return Err(Refusal::Extern);
    }
    let shape = cx.shape(a);
    Ok(vec![cx.make(Expr::Bitcast(a), to, &shape)])
}

fn alias(cx: &mut Cx, c: &Call) -> Lowered {
    Ok(vec![cx.tensor(c, 0, "self")?])
}

fn permute(cx: &mut Cx, c: &Call) -> Lowered {
    let a = cx.tensor(c, 0, "self")?;
    let order = c.opt_dims(1, "dims", cx.shape(a).len())?.ok_or(Refusal::Extern)?;
    if order.len() != cx.shape(a).len() {
        return Err(Refusal::Extern);
    }
    Ok(vec![cx.permute(a, &order)])
}

fn transpose(cx: &mut Cx, c: &Call) -> Lowered {
    let a = cx.tensor(c, 0, "self")?;
    let rank = cx.shape(a).len();
    let (x, y) = (c.dim(1, "dim0", rank)?, c.dim(2, "dim1", rank)?);
    let mut order: Vec<usize> = (0..rank).collect();
    if rank > 0 {
        order.swap(x, y);
    }
    Ok(vec![cx.permute(a, &order)])
}

fn t(cx: &mut Cx, c: &Call) -> Lowered {
    let a = cx.tensor(c, 0, "self")?;
    let order: Vec<usize> = (0..cx.shape(a).len()).rev().collect();
    Ok(vec![cx.permute(a, &order)])
}

fn expand(cx: &mut Cx, c: &Call) -> Lowered {
    let a = cx.tensor(c, 0, "self")?;
    let shape = cx.out()?.shape.clone();
    Ok(vec![cx.broadcast(a, &shape)])
}

/// A start as Python means it, within `0..=extent`.
pub(super) fn wrap_position(position: Size, extent: Size) -> Size {
    let wrapped = if position.as_const().is_some_and(|p| p < 0) { position + extent } else { position };
    match (wrapped.as_const(), extent.as_const()) {
        (Some(p), Some(e)) => Size::from(p.clamp(0, e)),
        // The end of everything: slices without end carry the largest i64.
        (Some(p), None) if p >= i64::MAX / 2 => extent,
        _ => wrapped,
    }
}

/// First element, step and number of elements of a Python slice; the number is the result's extent.
fn slice_bounds(c: &Call, extent: Size) -> Result<(Size, Size), Refusal> {
    let start = wrap_position(c.size_or(2, "start", Size::ZERO)?, extent);
    let step = c.size_or(4, "step", Size::ONE)?;
    Ok((start, step))
}

fn slice(cx: &mut Cx, c: &Call) -> Lowered {
    let a = cx.tensor(c, 0, "self")?;
    let shape = cx.shape(a);
    let dim = c.dim_or(1, "dim", 0, shape.len())?;
    let (start, step) = slice_bounds(c, shape[dim])?;
    let length = cx.out()?.shape[dim];
    // Products with a step that leads out of the dimension could overflow.
    let step = if length.is(1) { Size::ONE } else { step };
    Ok(vec![cx.slice(a, dim, start, length, step)])
}

fn narrow(cx: &mut Cx, c: &Call) -> Lowered {
    let a = cx.tensor(c, 0, "self")?;
    let shape = cx.shape(a);
    let dim = c.dim(1, "dim", shape.len())?;
    let start = wrap_position(c.size(2, "start")?, shape[dim]);
    let length = c.size(3, "length")?;
    Ok(vec![cx.slice(a, dim, start, length, Size::ONE)])
}

fn select(cx: &mut Cx, c: &Call) -> Lowered {
    let a = cx.tensor(c, 0, "self")?;
    let shape = cx.shape(a);
    let dim = c.dim(1, "dim", shape.len())?;
    let at = c.size(2, "index")?;
    let at = if at.as_const().is_some_and(|i| i < 0) { at + shape[dim] } else { at };
    Ok(vec![cx.select(a, dim, at)])
}

fn diagonal(cx: &mut Cx, c: &Call) -> Lowered {
    let a = cx.tensor(c, 0, "self")?;
    let rank = cx.shape(a).len();
    let offset = c.int_or(1, "offset", 0)?;
    let (x, y) = (c.dim_or(2, "dim1", 0, rank)?, c.dim_or(3, "dim2", 1, rank)?);
    let shape = cx.out()?.shape.clone();
    let along = coordinate(rank - 2);
    let mut next = 0..;
    let coords = (0..rank)
        .map(|d| {
            if d == x {
                along.clone().shifted(Size::from((-offset).max(0)))
            } else if d == y {
                along.clone().shifted(Size::from(offset.max(0)))
            } else {
                coordinate(next.next().unwrap_or(0))
            }
        })
        .collect();
    Ok(vec![cx.view(a, coords, &shape)])
}

/// Windows along one dimension, each a new last dimension.
fn unfold(cx: &mut Cx, c: &Call) -> Lowered {
    let a = cx.tensor(c, 0, "self")?;
    let rank = cx.shape(a).len();
    if rank == 0 {
        return Err(Refusal::Extern);
    }
    let dim = c.dim(1, "dimension", rank)?;
    let step = c.size(3, "step")?;
    let shape = cx.out()?.shape.clone();
    let coords = (0..rank)
        .map(|d| if d == dim { coordinate(d).times(step).plus(&coordinate(rank)) } else { coordinate(d) })
        .collect();
    Ok(vec![cx.view(a, coords, &shape)])
}

/// Slices along one dimension that follow each other, as long as the results say.
fn consecutive(cx: &mut Cx, a: ExprId, dim: usize, lengths: &[Size]) -> Lowered {
    let mut start = Size::ZERO;
    let mut parts = Vec::new();
    for length in lengths {
        parts.push(cx.slice(a, dim, start, *length, Size::ONE));
        start += *length;
    }
    Ok(parts)
}

fn split(cx: &mut Cx, c: &Call) -> Lowered {
    let a = cx.tensor(c, 0, "self")?;
    let shape = cx.shape(a);
    let dim = c.dim_or(2, "dim", 0, shape.len())?;
    let length = c.size(1, "split_size")?;
    let count = cx.result_count();
    let lengths: Vec<Size> = (0..count)
        .map(|k| {
            let rest = shape[dim] - length * Size::from(k);
            if k + 1 < count { length } else { rest.min(length) }
        })
        .collect();
    consecutive(cx, a, dim, &lengths)
}

fn split_with_sizes(cx: &mut Cx, c: &Call, name: &str) -> Lowered {
    let a = cx.tensor(c, 0, "self")?;
    let dim = c.dim_or(2, "dim", 0, cx.shape(a).len())?;
    let lengths = c.sizes(1, name)?;
    consecutive(cx, a, dim, &lengths)
}

fn split_evenly(cx: &mut Cx, c: &Call) -> Lowered {
    let a = cx.tensor(c, 0, "self")?;
    let shape = cx.shape(a);
    let dim = c.dim_or(2, "dim", 0, shape.len())?;
    let chunks = c.int(1, "chunks")?;
    let Some(extent) = shape[dim].as_const() else { return Err(Refusal::Extern) };
    if chunks < 1 {
        return Err(Refusal::Extern);
    }
    let length = (extent + chunks - 1) / chunks;
    let lengths: Vec<Size> =
        (0..cx.result_count() as i64).map(|k| Size::from((extent - length * k).clamp(0, length))).collect();
    consecutive(cx, a, dim, &lengths)
}

fn unbind(cx: &mut Cx, c: &Call) -> Lowered {
    let a = cx.tensor(c, 0, "self")?;
    let dim = c.dim_or(1, "dim", 0, cx.shape(a).len())?;
    Ok((0..cx.result_count()).map(|k| cx.select(a, dim, Size::from(k))).collect())
}

/// A view by strides of the tensor's memory, from its first element on: of the caller's buffer, or of the strides
/// that the program gives the tensor.
fn as_strided(cx: &mut Cx, c: &Call) -> Lowered {
    let argument = c.tensor(0, "self")?;
    let a = cx.value(argument.id)?;
    let shape = c.sizes(1, "size")?;
    let strides = c.sizes(2, "stride")?;
    let offset = c.opt_size(3, "storage_offset")?;
    let stored = cx.store_in_strides(a, &argument.ty).ok_or(Refusal::Extern)?;
    let view = TensorView {
        buffer: stored.buffer,
        shape: shape.to_vec(),
        strides: strides.to_vec(),
        offset: stored.offset + offset.unwrap_or(Size::ZERO),
    };
    let dtype = cx.dtype(a);
    Ok(vec![cx.make(Expr::Load(view), dtype, &shape)])
}

fn clone(cx: &mut Cx, c: &Call) -> Lowered {
    let a = cx.tensor(c, 0, "self")?;
    Ok(vec![cx.copy(a)])
}

/// The second argument in the first one's type and shape.
fn source_like_target(cx: &mut Cx, c: &Call, target: ExprId) -> Result<ExprId, Refusal> {
    let source = c.operand(1, "src")?;
    let (dtype, shape) = (cx.dtype(target), cx.shape(target));
    cx.operand(&source, dtype, &shape)
}

fn copy(cx: &mut Cx, c: &Call) -> Lowered {
    let target = cx.tensor(c, 0, "self")?;
    let source = source_like_target(cx, c, target)?;
    Ok(vec![cx.copy(source)])
}

/// Writes to the first argument's memory. Whatever was defined by its old contents is stored first; a source
/// that reads them at other places goes through memory of its own.
fn copy_into(cx: &mut Cx, c: &Call) -> Lowered {
    let argument = c.tensor(0, "self")?;
    let other_device = match c.opt_tensor(1, "src")? {
        Some(source) => source.ty.device != argument.ty.device,
        None => false,
    };
    if other_device {
        return Err(Refusal::Extern);
    }
    let target = cx.value(argument.id)?;
    let source = source_like_target(cx, c, target)?;
    let place = cx.store(target);
    cx.prepare_write(place.buffer, argument.id);
    let source = if cx.reads_elsewhere(source, &place) {
        let copied = cx.copy(source);
        cx.realize(copied);
        copied
    } else {
        source
    };
    cx.write(source, &place, StoreMode::Set);
    Ok(vec![target])
}

fn realize(cx: &mut Cx, c: &Call) -> Lowered {
    let a = cx.tensor(c, 0, "self")?;
    let stored = cx.copy(a);
    cx.name_after_result(stored, 0);
    cx.realize(stored);
    Ok(vec![stored])
}

fn flip(cx: &mut Cx, c: &Call) -> Lowered {
    let a = cx.tensor(c, 0, "self")?;
    let shape = cx.shape(a);
    let dims = c.opt_dims(1, "dims", shape.len())?.ok_or(Refusal::Extern)?;
    let coords = (0..shape.len())
        .map(|d| {
            if dims.contains(&d) {
                coordinate(d).times(Size::from(-1)).shifted(shape[d] - Size::ONE)
            } else {
                coordinate(d)
            }
        })
        .collect();
    let flipped = cx.view(a, coords, &shape);
    Ok(vec![cx.copy(flipped)])
}

fn roll(cx: &mut Cx, c: &Call) -> Lowered {
    let a = cx.tensor(c, 0, "self")?;
    let shape = cx.shape(a);
    let shifts = c.ints(1, "shifts")?;
    let dims = c.opt_ints(2, "dims")?.unwrap_or_default();
    if shape.iter().any(|e| e.is(0)) {
        return Ok(vec![cx.copy(a)]);
    }
    if dims.is_empty() {
        // Rolls the row-major order.
        let flat: Size = shape.iter().copied().product();
        let line = cx.reshape(a, &[flat]);
        let rolled = rolled(cx, line, 0, shifts[0])?;
        let back = cx.reshape(rolled, &shape);
        return Ok(vec![cx.copy(back)]);
    }
    if dims.len() != shifts.len() {
        return Err(Refusal::Extern);
    }
    let mut value = a;
    for (dim, shift) in dims.iter().zip(shifts) {
        let dim = c.wrap_dim("dims", *dim, shape.len())?;
        value = rolled(cx, value, dim, shift)?;
    }
    Ok(vec![cx.copy(value)])
}

fn rolled(cx: &mut Cx, a: ExprId, dim: usize, shift: i64) -> Result<ExprId, Refusal> {
    let shape = cx.shape(a);
    if shape.is_empty() {
        return Ok(a);
    }
    let extents = |v: LoopVar| shape.get(v.0 as usize).copied();
    let shift = match shape[dim].as_const() {
        Some(extent) => Size::from(shift.rem_euclid(extent)),
        None => Size::from(shift),
    };
    let coords = (0..shape.len())
        .map(|d| {
            if d != dim {
                return coordinate(d);
            }
            coordinate(d).shifted(shape[d] - shift).modulo(shape[d], &extents)
        })
        .collect();
    Ok(cx.view(a, coords, &shape))
}

/// The whole tensor several times along each dimension.
fn repeat(cx: &mut Cx, c: &Call) -> Lowered {
    let a = cx.tensor(c, 0, "self")?;
    let shape = cx.shape(a);
    let out: Dims = cx.out()?.shape.clone();
    if out.len() < shape.len() {
        return Err(Refusal::Extern);
    }
    let lead = out.len() - shape.len();
    let empty = out.iter().chain(&shape).any(|e| e.is(0));
    let extents = |v: LoopVar| out.get(v.0 as usize).copied();
    let coords = (0..shape.len())
        .map(|d| {
            if empty {
                Index::constant(Size::ZERO)
            } else if out[d + lead] == shape[d] {
                coordinate_within(d + lead, shape[d])
            } else {
                coordinate(d + lead).modulo(shape[d], &extents)
            }
        })
        .collect();
    let repeated = cx.view(a, coords, &out);
    Ok(vec![cx.copy(repeated)])
}
