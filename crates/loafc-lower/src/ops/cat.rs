//! Tensors put together from parts by position: concatenation, padding, and slices replaced by others. A part is
//! chosen by a range test on a coordinate, so that loops can be cut there instead of testing each element.

use loafc_ir::dtype::Scalar;
use loafc_ir::graph::Dims;
use loafc_ir::index::{Index, LoopVar};
use loafc_ir::nest::{BinaryOp, StoreMode, TensorView};
use loafc_ir::ops::Call;
use loafc_ir::size::Size;

use crate::expr::ExprId;
use crate::lowering::{Lowered, Lowering, Refusal};
use crate::table::{Entry, compute};
use crate::view::coordinate;

type Cx<'a> = Lowering<'a>;

pub(super) static TABLE: &[Entry] = &[
    compute("aten.cat.default", cat),
    compute("aten.concat.default", cat),
    compute("aten.stack.default", stack),
    compute("aten.constant_pad_nd.default", pad),
    compute("aten.slice_scatter.default", slice_scatter),
    compute("aten.select_scatter.default", select_scatter),
];

/// A tensor's place along the dimension that is put together.
struct Part {
    value: ExprId,
    start: Size,
    length: Size,
}

fn cat(cx: &mut Cx, c: &Call) -> Lowered {
    let tensors = c.tensors(0, "tensors")?;
    let out = cx.out()?;
    let dim = c.dim_or(1, "dim", 0, out.shape.len())?;
    let mut parts = Vec::new();
    let mut start = Size::ZERO;
    for tensor in tensors {
        // A one-dimensional tensor without elements goes with every shape.
        if tensor.ty.shape.len() != out.shape.len() || tensor.ty.shape[dim].is(0) {
            continue;
        }
        let value = cx.value(tensor.id)?;
        let value = cx.cast(value, out.dtype);
        let length = tensor.ty.shape[dim];
        parts.push(Part { value, start, length });
        start += length;
    }
    joined(cx, &parts, dim)
}

fn stack(cx: &mut Cx, c: &Call) -> Lowered {
    let tensors = c.tensors(0, "tensors")?;
    let out = cx.out()?;
    let dim = c.dim_or(1, "dim", 0, out.shape.len())?;
    let mut parts = Vec::new();
    for (k, tensor) in tensors.iter().enumerate() {
        let value = cx.value(tensor.id)?;
        let value = cx.cast(value, out.dtype);
        let value = cx.unsqueeze(value, dim);
        parts.push(Part { value, start: Size::from(k), length: Size::ONE });
    }
    joined(cx, &parts, dim)
}

fn joined(cx: &mut Cx, parts: &[Part], dim: usize) -> Lowered {
    let out = cx.out()?;
    let ops: u32 = parts.iter().map(|p| cx.arena.get(p.value).cost.ops + 3).sum();
    match parts {
        [] => Ok(vec![cx.constant(Scalar::Int(0), out.dtype, &out.shape)]),
        [only] => Ok(vec![cx.copy(only.value)]),
        _ if parts.len() > cx.options.max_pointwise_cat_inputs || ops > cx.options.max_body_ops => {
            written(cx, parts, dim)
        }
        _ => chosen(cx, parts, dim, &out.shape),
    }
}

/// One lazy tensor that chooses the part by the coordinate.
fn chosen(cx: &mut Cx, parts: &[Part], dim: usize, shape: &Dims) -> Lowered {
    let mut result = None;
    for part in parts.iter().rev() {
        let coords = shifted(shape.len(), dim, -part.start);
        let moved = cx.view(part.value, coords, shape);
        let inside = cx.in_range(coordinate(dim), part.start, part.start + part.length, shape);
        result = Some(match result {
            Some(rest) => cx.guarded(inside, moved, rest),
            // The last part is what is left; its reads must stay inside of it all the same.
            None => cx.only_where(inside, moved),
        });
    }
    Ok(result.into_iter().collect())
}

/// One buffer that each part is written to by a nest of its own.
fn written(cx: &mut Cx, parts: &[Part], dim: usize) -> Lowered {
    let out = cx.out()?;
    let whole = cx.constant(Scalar::Int(0), out.dtype, &out.shape);
    cx.name_after_result(whole, 0);
    let buffer = cx.buffer_for(whole);
    for part in parts {
        let mut shape = buffer.shape.clone();
        shape[dim] = part.length;
        let place = TensorView {
            buffer: buffer.buffer,
            shape,
            strides: buffer.strides.clone(),
            offset: buffer.offset + buffer.strides[dim] * part.start,
        };
        cx.write(part.value, &place, StoreMode::Set);
    }
    cx.arena.set_stored(whole, buffer);
    Ok(vec![whole])
}

/// Coordinates moved along one dimension.
fn shifted(rank: usize, dim: usize, by: Size) -> Vec<Index> {
    (0..rank).map(|d| if d == dim { coordinate(d).shifted(by) } else { coordinate(d) }).collect()
}

fn pad(cx: &mut Cx, c: &Call) -> Lowered {
    let a = cx.tensor(c, 0, "self")?;
    let pads = c.sizes(1, "pad")?;
    let out = cx.out()?;
    let value = c.scalar_or(2, "value", Scalar::Int(0))?;
    let shape = cx.shape(a);
    if pads.len() % 2 != 0 || pads.len() / 2 > shape.len() {
        return Err(Refusal::Extern);
    }
    let mut coords: Vec<Index> = (0..shape.len()).map(coordinate).collect();
    let mut inside = None;
    for (k, pair) in pads.chunks_exact(2).enumerate() {
        let d = shape.len() - 1 - k;
        let (before, after) = (pair[0], pair[1]);
        coords[d] = coordinate(d).shifted(-before);
        let grows = |s: Size| s.as_const().is_none_or(|s| s > 0);
        if grows(before) || grows(after) {
            let here = cx.in_range(coordinate(d), before, before + shape[d], &out.shape);
            inside = Some(match inside {
                None => here,
                Some(others) => cx.binary(BinaryOp::And, here, others),
            });
        }
    }
    let moved = cx.view(a, coords, &out.shape);
    let Some(inside) = inside else { return Ok(vec![cx.copy(moved)]) };
    let border = cx.constant(value, out.dtype, &out.shape);
    Ok(vec![cx.guarded(inside, moved, border)])
}

fn slice_scatter(cx: &mut Cx, c: &Call) -> Lowered {
    let a = cx.tensor(c, 0, "self")?;
    let source = cx.tensor(c, 1, "src")?;
    let shape = cx.shape(a);
    let dim = c.dim_or(2, "dim", 0, shape.len())?;
    let start = super::view::wrap_position(c.size_or(3, "start", Size::ZERO)?, shape[dim]);
    let step = c.size_or(5, "step", Size::ONE)?;
    let source = cx.cast(source, cx.dtype(a));
    let length = cx.shape(source)[dim];
    if length.is(0) {
        return Ok(vec![cx.copy(a)]);
    }
    let extents = |v: LoopVar| shape.get(v.0 as usize).copied();
    // Products with a step that leads out of the dimension could overflow.
    let step = if length.is(1) { Size::ONE } else { step };
    let end = start + (length - Size::ONE) * step + Size::ONE;
    let mut inside = cx.in_range(coordinate(dim), start, end, &shape);
    let mut coords = shifted(shape.len(), dim, -start);
    if !step.is(1) {
        let distance = coords[dim].clone();
        let on_step = cx.in_range(distance.modulo(step, &extents), Size::ZERO, Size::ONE, &shape);
        inside = cx.binary(BinaryOp::And, inside, on_step);
        coords[dim] = distance.floor_div(step, &extents);
    }
    let moved = cx.view(source, coords, &shape);
    Ok(vec![cx.guarded(inside, moved, a)])
}

fn select_scatter(cx: &mut Cx, c: &Call) -> Lowered {
    let a = cx.tensor(c, 0, "self")?;
    let source = cx.tensor(c, 1, "src")?;
    let shape = cx.shape(a);
    let dim = c.dim(2, "dim", shape.len())?;
    let at = c.size(3, "index")?;
    let at = if at.as_const().is_some_and(|i| i < 0) { at + shape[dim] } else { at };
    let source = cx.cast(source, cx.dtype(a));
    let source = cx.unsqueeze(source, dim);
    let source = cx.broadcast(source, &shape);
    let here = cx.in_range(coordinate(dim), at, at + Size::ONE, &shape);
    Ok(vec![cx.choose(here, source, a)])
}
