//! Reads at positions that are data: gather, embedding, advanced indexing.

use std::sync::Arc;

use loafc_ir::dtype::{DType, Scalar};
use loafc_ir::graph::Dims;
use loafc_ir::nest::{BinaryOp, CheckedPositions, Failure, FailureKind};
use loafc_ir::ops::{Call, TensorArg};
use loafc_ir::size::Size;

use crate::expr::{Coord, Expr, ExprId};
use crate::lowering::{Lowered, Lowering, Refusal};
use crate::table::{Entry, compute};
use crate::view::{coordinate, coordinate_within};

type Cx<'a> = Lowering<'a>;

pub(super) static TABLE: &[Entry] = &[
    compute("aten.gather.default", gather),
    compute("aten.index_select.default", index_select),
    compute("aten.embedding.default", embedding),
    compute("aten.take.default", take),
    compute("aten.index.Tensor", |cx, c| index(cx, c, Bounds::WRAP_AND_CHECK)),
    compute("aten._unsafe_index.Tensor", |cx, c| index(cx, c, Bounds::WRAP)),
    compute("aten._unsafe_masked_index.default", masked_index),
];

/// What is done about positions outside of a dimension.
#[derive(Copy, Clone)]
pub(super) struct Bounds {
    /// Whether negative positions count from the end.
    pub wrap: bool,
    /// Whether others than existing positions fail the program.
    pub check: bool,
}

impl Bounds {
    pub(super) const CHECK: Bounds = Bounds { wrap: false, check: true };
    pub(super) const WRAP: Bounds = Bounds { wrap: true, check: false };
    pub(super) const WRAP_AND_CHECK: Bounds = Bounds { wrap: true, check: true };
}

/// Positions along a dimension of this extent as i64, in bounds.
pub(super) fn positions(cx: &mut Cx, c: &Call, index: ExprId, extent: Size, bounds: Bounds) -> ExprId {
    let shape = cx.shape(index);
    let mut at = cx.cast(index, DType::I64);
    let zero = cx.int(0, at);
    let extent_value = cx.size(extent, DType::I64, &shape);
    if bounds.wrap {
        let negative = cx.binary(BinaryOp::Lt, at, zero);
        let from_end = cx.binary(BinaryOp::Add, at, extent_value);
        at = cx.choose(negative, from_end, at);
    }
    if bounds.check {
        let above = cx.binary(BinaryOp::Ge, at, zero);
        let below = cx.binary(BinaryOp::Lt, at, extent_value);
        let condition = cx.binary(BinaryOp::And, above, below);
        let line = cx.source_line();
        let message = format!("{line}{}: index out of range for a dimension of size {extent}", c.op).into();
        let positions =
            cx.as_view(index).map(|tensor| Arc::new(CheckedPositions { tensor, extent, wrap: bounds.wrap }));
        let failure = Failure { kind: FailureKind::Index, message, positions };
        at = cx.make(Expr::Checked { value: at, condition, failure }, DType::I64, &shape);
    }
    at
}

fn gather(cx: &mut Cx, c: &Call) -> Lowered {
    let a = cx.tensor(c, 0, "self")?;
    let from = cx.shape(a);
    let dim = c.dim(1, "dim", from.len())?;
    let index = cx.tensor(c, 2, "index")?;
    let shape = cx.out()?.shape.clone();
    if from.is_empty() {
        return Ok(vec![cx.broadcast(a, &shape)]);
    }
    // An empty index may have any number of dimensions.
    if shape.iter().any(|extent| extent.is(0)) {
        return Ok(vec![cx.constant(Scalar::Int(0), cx.dtype(a), &shape)]);
    }
    if cx.shape(index).len() != from.len() {
        return Err(Refusal::Extern);
    }
    let at = positions(cx, c, index, from[dim], Bounds::CHECK);
    let coords = (0..from.len())
        .map(|d| if d == dim { Coord::Value(at) } else { Coord::At(coordinate_within(d, shape[d])) })
        .collect();
    Ok(vec![cx.indirect(a, coords, &shape)])
}

fn index_select(cx: &mut Cx, c: &Call) -> Lowered {
    let a = cx.tensor(c, 0, "self")?;
    let from = cx.shape(a);
    let index = cx.tensor(c, 2, "index")?;
    if from.is_empty() || cx.shape(index).len() > 1 {
        return Err(Refusal::Extern);
    }
    let dim = c.dim(1, "dim", from.len())?;
    let shape = cx.out()?.shape.clone();
    let index = cx.reshape(index, &[shape[dim]]);
    let along = cx.view(index, vec![coordinate_within(dim, shape[dim])], &shape);
    let at = positions(cx, c, along, from[dim], Bounds::CHECK);
    let coords =
        (0..from.len()).map(|d| if d == dim { Coord::Value(at) } else { Coord::At(coordinate(d)) }).collect();
    Ok(vec![cx.indirect(a, coords, &shape)])
}

fn embedding(cx: &mut Cx, c: &Call) -> Lowered {
    let table = cx.tensor(c, 0, "weight")?;
    let index = cx.tensor(c, 1, "indices")?;
    let from = cx.shape(table);
    if from.len() != 2 {
        return Err(Refusal::Extern);
    }
    let shape = cx.out()?.shape.clone();
    let rank = shape.len();
    let index_shape = cx.shape(index);
    let coords = (0..rank - 1).map(|d| coordinate_within(d, index_shape[d])).collect();
    let rows = cx.view(index, coords, &shape);
    let row = positions(cx, c, rows, from[0], Bounds::CHECK);
    Ok(vec![cx.indirect(table, vec![Coord::Value(row), Coord::At(coordinate(rank - 1))], &shape)])
}

/// Elements by their row-major positions.
fn take(cx: &mut Cx, c: &Call) -> Lowered {
    let a = cx.tensor(c, 0, "self")?;
    let index = cx.tensor(c, 1, "index")?;
    let count: Size = cx.shape(a).iter().copied().product();
    let line = cx.reshape(a, &[count]);
    let shape = cx.shape(index);
    let at = positions(cx, c, index, count, Bounds::WRAP_AND_CHECK);
    Ok(vec![cx.indirect(line, vec![Coord::Value(at)], &shape)])
}

/// Advanced indexing: which dimensions are indexed, and where the indices' common shape goes.
pub(super) struct Advanced {
    /// Shape of the indexed elements.
    pub shape: Dims,
    /// For each dimension of the indexed tensor, its coordinate.
    pub coords: Vec<Coord>,
}

/// Coordinates of `indices` into a tensor of shape `from`, as NumPy defines them: index tensors broadcast
/// together, and their shape takes the place of the dimensions that they index if those are neighbours, else the
/// front. Masks select a number of elements that only their contents tell and are refused.
pub(super) fn advanced(
    cx: &mut Cx,
    c: &Call,
    from: &[Size],
    indices: &[Option<TensorArg>],
    bounds: Bounds,
) -> Result<Advanced, Refusal> {
    let is_mask = |t: &TensorArg| matches!(t.ty.dtype, DType::Bool | DType::U8);
    if indices.len() > from.len() || indices.iter().flatten().any(is_mask) {
        return Err(Refusal::Extern);
    }
    let indexed: Vec<usize> = (0..indices.len()).filter(|d| indices[*d].is_some()).collect();
    let (Some(first), Some(last)) = (indexed.first(), indexed.last()) else { return Err(Refusal::Extern) };
    let common = broadcast_shape(indices.iter().flatten().map(|t| t.ty.shape.as_slice()));
    let neighbours = last - first + 1 == indexed.len();
    let lead = if neighbours { *first } else { 0 };
    let mut shape: Dims = Dims::new();
    let others: Vec<usize> = (0..from.len()).filter(|d| !indexed.contains(d)).collect();
    shape.extend(others.iter().take(lead).map(|d| from[*d]));
    shape.extend(common.iter().copied());
    shape.extend(others.iter().skip(lead).map(|d| from[*d]));
    let mut coords = Vec::new();
    for (d, extent) in from.iter().enumerate() {
        let coord = match indices.get(d).and_then(Option::as_ref) {
            Some(tensor) => {
                let value = cx.value(tensor.id)?;
                let spread = spread(cx, value, &common, lead, &shape);
                Coord::Value(positions(cx, c, spread, *extent, bounds))
            }
            None => {
                let place = others.iter().position(|o| *o == d).unwrap_or(0);
                let own = if place < lead { place } else { place + common.len() };
                Coord::At(coordinate_within(own, *extent))
            }
        };
        coords.push(coord);
    }
    Ok(Advanced { shape, coords })
}

/// An index tensor as a function of the coordinates of the result, of which `common` begin at `lead`.
fn spread(cx: &mut Cx, index: ExprId, common: &[Size], lead: usize, shape: &[Size]) -> ExprId {
    let from = cx.shape(index);
    let skip = common.len() - from.len();
    let coords = (0..from.len()).map(|d| coordinate_within(lead + skip + d, from[d])).collect();
    cx.view(index, coords, shape)
}

/// The common shape of tensors whose shapes broadcast.
pub(super) fn broadcast_shape<'a>(shapes: impl Iterator<Item = &'a [Size]>) -> Dims {
    let mut common: Dims = Dims::new();
    for shape in shapes {
        while common.len() < shape.len() {
            common.insert(0, Size::ONE);
        }
        let skip = common.len() - shape.len();
        for (d, extent) in shape.iter().enumerate() {
            if common[skip + d].is(1) {
                common[skip + d] = *extent;
            }
        }
    }
    common
}

fn index(cx: &mut Cx, c: &Call, bounds: Bounds) -> Lowered {
    let a = cx.tensor(c, 0, "self")?;
    let indices = c.opt_tensors(1, "indices")?;
    let from = cx.shape(a);
    let found = advanced(cx, c, &from, &indices, bounds)?;
    Ok(vec![cx.indirect(a, found.coords, &found.shape)])
}

/// As `index`, but reads only where the mask holds.
fn masked_index(cx: &mut Cx, c: &Call) -> Lowered {
    let a = cx.tensor(c, 0, "self")?;
    let mask = cx.tensor(c, 1, "mask")?;
    let indices = c.opt_tensors(2, "indices")?;
    let from = cx.shape(a);
    let found = advanced(cx, c, &from, &indices, Bounds::WRAP)?;
    let read = cx.indirect(a, found.coords, &found.shape);
    let mask = cx.cast(mask, DType::Bool);
    let mask = cx.broadcast(mask, &found.shape);
    let fill = c.operand(3, "fill")?;
    let dtype = cx.dtype(a);
    let fill = cx.operand(&fill, dtype, &found.shape)?;
    Ok(vec![cx.guarded(mask, read, fill)])
}
