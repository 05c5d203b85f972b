//! Writes at positions that are data. The base is copied first; then a second nest writes the elements, or
//! combines them with what is there, in the order of its loops, so that results do not depend on threads.

use loafc_ir::dtype::{DType, Scalar};
use loafc_ir::index::Index;
use loafc_ir::nest::{BinaryOp, StoreMode, TensorView};
use loafc_ir::ops::{Call, Operand, TensorArg};
use loafc_ir::size::Size;

use super::indexing::{Advanced, Bounds, advanced, positions};
use crate::expr::{Coord, ExprId};
use crate::lowering::{Lowered, Lowering, Placement, Refusal};
use crate::table::{Entry, compute};
use crate::view::{coordinate, coordinate_within};

type Cx<'a> = Lowering<'a>;

pub(super) static TABLE: &[Entry] = &[
    compute("aten.scatter.src", |cx, c| scatter(cx, c, "src", StoreMode::Set)),
    compute("aten.scatter.value", |cx, c| scatter(cx, c, "value", StoreMode::Set)),
    compute("aten.scatter_add.default", |cx, c| scatter(cx, c, "src", StoreMode::Combine(BinaryOp::Add))),
    compute("aten.scatter.reduce", scatter_reduce),
    compute("aten.scatter.value_reduce", scatter_reduce),
    compute("aten.scatter_reduce.two", scatter_reduce),
    compute("aten.index_put.default", |cx, c| index_put(cx, c, Bounds::WRAP_AND_CHECK)),
    compute("aten._unsafe_index_put.default", |cx, c| index_put(cx, c, Bounds::WRAP)),
    compute("aten._unsafe_masked_index_put_accumulate.default", masked_index_put),
    compute("aten.index_add.default", index_add),
    compute("aten.index_copy.default", index_copy),
    compute("aten.index_fill.int_Scalar", index_fill),
    compute("aten.index_fill.int_Tensor", index_fill),
    compute("aten.as_strided_scatter.default", as_strided_scatter),
    compute("aten.embedding_dense_backward.default", embedding_backward),
];

/// The base in a buffer of its own, named after the result.
fn base(cx: &mut Cx, a: ExprId) -> (ExprId, TensorView) {
    let copy = cx.copy(a);
    cx.name_after_result(copy, 0);
    let stored = cx.realize(copy);
    (copy, stored)
}

/// How elements combine in a tensor of truth values.
fn combine(dtype: DType, op: BinaryOp) -> StoreMode {
    StoreMode::Combine(match (dtype, op) {
        (DType::Bool, BinaryOp::Add | BinaryOp::Max) => BinaryOp::Or,
        (DType::Bool, BinaryOp::Mul | BinaryOp::Min) => BinaryOp::And,
        (_, op) => op,
    })
}

fn mode_for(dtype: DType, mode: StoreMode) -> StoreMode {
    match mode {
        StoreMode::Set => StoreMode::Set,
        StoreMode::Combine(op) => combine(dtype, op),
    }
}

fn scatter(cx: &mut Cx, c: &Call, source: &str, mode: StoreMode) -> Lowered {
    let a = cx.tensor(c, 0, "self")?;
    let from = cx.shape(a);
    let index = cx.tensor(c, 2, "index")?;
    let shape = cx.shape(index);
    // An empty index may have any number of dimensions.
    if shape.iter().any(|extent| extent.is(0)) {
        return Ok(vec![cx.copy(a)]);
    }
    if from.is_empty() || shape.len() != from.len() {
        return Err(Refusal::Extern);
    }
    let dim = c.dim(1, "dim", from.len())?;
    let dtype = cx.dtype(a);
    let value = match c.operand(3, source)? {
        Operand::Tensor(t) => {
            let value = cx.value(t.id)?;
            let value = cx.cast(value, dtype);
            // The source may be larger than the index; only its front part is used.
            if t.ty.shape.len() == shape.len() {
                let coords = (0..shape.len()).map(|d| coordinate_within(d, t.ty.shape[d])).collect();
                cx.view(value, coords, &shape)
            } else {
                cx.broadcast(value, &shape)
            }
        }
        number => cx.operand(&number, dtype, &shape)?,
    };
    let at = positions(cx, c, index, from[dim], Bounds::CHECK);
    if mode == StoreMode::Set
        && let Some(result) = scatter_on_constant(cx, a, dim, at, value)
    {
        return Ok(vec![result]);
    }
    let (result, stored) = base(cx, a);
    let coords =
        (0..from.len()).map(|d| if d == dim { Coord::Value(at) } else { Coord::At(coordinate(d)) }).collect();
    cx.write_at(value, &stored, &Placement { coords, guard: None, mode: mode_for(dtype, mode) });
    Ok(vec![result])
}

/// One element for each line of a constant: a comparison of the position with the line's index, with no memory
/// written at random (one-hot rows, and the gradient of a cross entropy).
fn scatter_on_constant(cx: &mut Cx, a: ExprId, dim: usize, at: ExprId, value: ExprId) -> Option<ExprId> {
    let shape = cx.shape(a);
    let index_shape = cx.shape(at);
    cx.as_constant(a)?;
    let covers =
        (0..shape.len()).all(|d| if d == dim { index_shape[d].is(1) } else { index_shape[d] == shape[d] });
    if !covers {
        return None;
    }
    let at = cx.broadcast(at, &shape);
    let value = cx.broadcast(value, &shape);
    let here = cx.index(coordinate(dim), &shape);
    let hit = cx.binary(BinaryOp::Eq, here, at);
    Some(cx.choose(hit, value, a))
}

fn scatter_reduce(cx: &mut Cx, c: &Call) -> Lowered {
    let op = match c.str_or(4, "reduce", "")? {
        "sum" | "add" => BinaryOp::Add,
        "prod" | "multiply" => BinaryOp::Mul,
        "amax" => BinaryOp::Max,
        "amin" => BinaryOp::Min,
        // A mean needs the number of elements that hit each place.
        _ => return Err(Refusal::Extern),
    };
    if !c.bool_or(5, "include_self", true)? {
        return Err(Refusal::Extern);
    }
    let source = if c.op == "aten.scatter.value_reduce" { "value" } else { "src" };
    scatter(cx, c, source, StoreMode::Combine(op))
}

fn index_put(cx: &mut Cx, c: &Call, bounds: Bounds) -> Lowered {
    let a = cx.tensor(c, 0, "self")?;
    let indices = c.opt_tensors(1, "indices")?;
    let values = c.operand(2, "values")?;
    let accumulate = c.bool_or(3, "accumulate", false)?;
    let (dtype, from) = (cx.dtype(a), cx.shape(a));
    if let Some(result) = put_where(cx, a, &indices, &values, accumulate)? {
        return Ok(vec![result]);
    }
    let found = advanced(cx, c, &from, &indices, bounds)?;
    let value = cx.operand(&values, dtype, &found.shape)?;
    let (result, stored) = base(cx, a);
    let mode = if accumulate { combine(dtype, BinaryOp::Add) } else { StoreMode::Set };
    cx.write_at(value, &stored, &Placement { coords: found.coords, guard: None, mode });
    Ok(vec![result])
}

/// Values put where a single mask holds, if they do not depend on how many places that are: a choice for each
/// element.
fn put_where(
    cx: &mut Cx,
    a: ExprId,
    indices: &[Option<TensorArg>],
    values: &Operand,
    accumulate: bool,
) -> Result<Option<ExprId>, Refusal> {
    let Some(at) = indices.iter().position(Option::is_some) else { return Ok(None) };
    let Some(mask) = &indices[at] else { return Ok(None) };
    let (dtype, from) = (cx.dtype(a), cx.shape(a));
    let end = at + mask.ty.shape.len();
    if mask.ty.dtype != DType::Bool || indices[at + 1..].iter().any(Option::is_some) || end > from.len() {
        return Ok(None);
    }
    let value = match values {
        Operand::Tensor(t) => {
            // The dimensions of what is put: those before the mask's, one for the chosen places, those after.
            let places: Vec<Option<usize>> =
                (0..at).map(Some).chain([None]).chain((end..from.len()).map(Some)).collect();
            let shape = &t.ty.shape;
            if shape.len() > places.len() {
                return Ok(None);
            }
            let own = &places[places.len() - shape.len()..];
            if own.iter().zip(shape).any(|(place, extent)| place.is_none() && !extent.is(1)) {
                return Ok(None);
            }
            let coords = own
                .iter()
                .zip(shape)
                .map(|(place, extent)| place.map_or_else(Index::default, |d| coordinate_within(d, *extent)))
                .collect();
            let value = cx.value(t.id)?;
            let value = cx.cast(value, dtype);
            cx.view(value, coords, &from)
        }
        number => cx.operand(number, dtype, &from)?,
    };
    let mask = cx.value(mask.id)?;
    let coords = (at..end).map(|d| coordinate_within(d, from[d])).collect();
    let mask = cx.view(mask, coords, &from);
    let value = if accumulate { super::pointwise::apply(cx, BinaryOp::Add, a, value) } else { value };
    Ok(Some(cx.choose(mask, value, a)))
}

fn masked_index_put(cx: &mut Cx, c: &Call) -> Lowered {
    let a = cx.tensor(c, 0, "self")?;
    let mask = cx.tensor(c, 1, "mask")?;
    let indices = c.opt_tensors(2, "indices")?;
    let values = c.operand(3, "values")?;
    let (dtype, from) = (cx.dtype(a), cx.shape(a));
    let Advanced { shape, coords } = advanced(cx, c, &from, &indices, Bounds::WRAP)?;
    let value = cx.operand(&values, dtype, &shape)?;
    let mask = cx.cast(mask, DType::Bool);
    let mask = cx.broadcast(mask, &shape);
    let (result, stored) = base(cx, a);
    let mode = combine(dtype, BinaryOp::Add);
    cx.write_at(value, &stored, &Placement { coords, guard: Some(mask), mode });
    Ok(vec![result])
}

/// Writes lines of a source along one dimension to the lines that an index names.
fn put_lines(cx: &mut Cx, c: &Call, source: ExprId, bounds: Bounds, mode: StoreMode) -> Lowered {
    let a = cx.tensor(c, 0, "self")?;
    let from = cx.shape(a);
    let index = cx.tensor(c, 2, "index")?;
    let shape = cx.shape(source);
    if from.is_empty() || shape.len() != from.len() || cx.shape(index).len() > 1 {
        return Err(Refusal::Extern);
    }
    let dim = c.dim(1, "dim", from.len())?;
    let index = cx.reshape(index, &[shape[dim]]);
    let along = cx.view(index, vec![coordinate_within(dim, shape[dim])], &shape);
    let at = positions(cx, c, along, from[dim], bounds);
    let (result, stored) = base(cx, a);
    let coords =
        (0..from.len()).map(|d| if d == dim { Coord::Value(at) } else { Coord::At(coordinate(d)) }).collect();
    cx.write_at(source, &stored, &Placement { coords, guard: None, mode });
    Ok(vec![result])
}

fn index_add(cx: &mut Cx, c: &Call) -> Lowered {
    let a = cx.tensor(c, 0, "self")?;
    let mut source = cx.tensor(c, 3, "source")?;
    let alpha = c.scalar_or(4, "alpha", Scalar::Int(1))?;
    let dtype = cx.dtype(a);
    source = cx.cast(source, dtype);
    if alpha.to_f64() != 1.0 {
        let shape = cx.shape(source);
        let factor = cx.number(alpha, dtype, &shape);
        source = super::pointwise::apply(cx, BinaryOp::Mul, source, factor);
    }
    put_lines(cx, c, source, Bounds::CHECK, combine(dtype, BinaryOp::Add))
}

fn index_copy(cx: &mut Cx, c: &Call) -> Lowered {
    let source = cx.tensor(c, 3, "source")?;
    put_lines(cx, c, source, Bounds::CHECK, StoreMode::Set)
}

fn index_fill(cx: &mut Cx, c: &Call) -> Lowered {
    let a = cx.tensor(c, 0, "self")?;
    let mut shape = cx.shape(a);
    let index = cx.tensor(c, 2, "index")?;
    if shape.is_empty() {
        return Err(Refusal::Extern);
    }
    let dim = c.dim(1, "dim", shape.len())?;
    shape[dim] = cx.shape(index).iter().copied().product();
    let value = c.operand(3, "value")?;
    let dtype = cx.dtype(a);
    let value = cx.operand(&value, dtype, &shape)?;
    put_lines(cx, c, value, Bounds::WRAP_AND_CHECK, StoreMode::Set)
}

fn as_strided_scatter(cx: &mut Cx, c: &Call) -> Lowered {
    let a = cx.tensor(c, 0, "self")?;
    let source = cx.tensor(c, 1, "src")?;
    let shape = c.sizes(2, "size")?;
    let strides = c.sizes(3, "stride")?;
    let offset = c.size_or(4, "storage_offset", Size::ZERO)?;
    let source = cx.cast(source, cx.dtype(a));
    let source = cx.broadcast(source, &shape);
    let (result, stored) = base(cx, a);
    let place = TensorView {
        buffer: stored.buffer,
        shape: shape.to_vec(),
        strides: strides.to_vec(),
        offset: stored.offset + offset,
    };
    cx.write(source, &place, StoreMode::Set);
    Ok(vec![result])
}

fn embedding_backward(cx: &mut Cx, c: &Call) -> Lowered {
    let gradient = cx.tensor(c, 0, "grad_output")?;
    let index = cx.tensor(c, 1, "indices")?;
    let rows = c.size(2, "num_weights")?;
    let padding = c.int_or(3, "padding_idx", -1)?;
    if c.bool_or(4, "scale_grad_by_freq", false)? {
        return Err(Refusal::Extern);
    }
    let out = cx.out()?;
    let shape = cx.shape(gradient);
    let rank = shape.len();
    let index_shape = cx.shape(index);
    let coords = (0..rank - 1).map(|d| coordinate_within(d, index_shape[d])).collect();
    let index = cx.view(index, coords, &shape);
    let row = positions(cx, c, index, rows, Bounds::CHECK);
    let guard = (padding >= 0).then(|| {
        let padding = cx.int(padding, row);
        cx.binary(BinaryOp::Ne, row, padding)
    });
    let zeros = cx.constant(Scalar::Int(0), out.dtype, &out.shape);
    let (result, stored) = base(cx, zeros);
    let coords = vec![Coord::Value(row), Coord::At(coordinate(rank - 1))];
    let mode = StoreMode::Combine(BinaryOp::Add);
    cx.write_at(gradient, &stored, &Placement { coords, guard, mode });
    Ok(vec![result])
}
