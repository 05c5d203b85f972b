//! Pooling over windows of the last two dimensions, and enlarging by repetition. Small windows are written out
//! element by element, so that a pooling is pointwise and fuses like anything else; gradients gather from the
//! windows that an element lies in instead of scattering.

use loafc_ir::dtype::{DType, Scalar};
use loafc_ir::graph::Dims;
use loafc_ir::index::{Index, LoopVar};
use loafc_ir::interp::scalar::lowest;
use loafc_ir::nest::{BinaryOp, ReduceOp, UnaryOp};
use loafc_ir::ops::Call;
use loafc_ir::ops::pool::{Dilated, Windows};
use loafc_ir::size::Size;

use crate::expr::ExprId;
use crate::lowering::{Lowered, Lowering, Refusal};
use crate::reduce::{Finish, FinishValue, Reduction};
use crate::table::{Entry, compute, view};
use crate::view::coordinate;

type Cx<'a> = Lowering<'a>;

pub(super) static TABLE: &[Entry] = &[
    compute("aten.max_pool2d_with_indices.default", |cx, c| max_pool(cx, c, Place::InPlane)),
    compute("prims._low_memory_max_pool_with_offsets.default", |cx, c| max_pool(cx, c, Place::InWindow)),
    compute("prims._low_memory_max_pool_offsets_to_indices.default", offsets_to_indices),
    compute("aten.max_pool2d_with_indices_backward.default", max_pool_backward),
    compute("aten.avg_pool2d.default", avg_pool),
    compute("aten.avg_pool2d_backward.default", avg_pool_backward),
    compute("aten._adaptive_avg_pool2d.default", adaptive_pool),
    compute("aten._adaptive_avg_pool2d_backward.default", adaptive_pool_backward),
    view("aten.upsample_nearest2d.default", upsample_nearest),
];

/// Largest number of elements of a window that is written out.
const MAX_TAPS: i64 = 25;

/// What the second result of a maximum pooling says.
#[derive(Copy, Clone, PartialEq)]
enum Place {
    /// Position in the plane of the input.
    InPlane,
    /// Position in the window.
    InWindow,
}

fn planes(cx: &mut Cx, c: &Call, position: usize, name: &str) -> Result<ExprId, Refusal> {
    let a = cx.tensor(c, position, name)?;
    if cx.shape(a).len() < 2 {
        return Err(Refusal::Extern);
    }
    cx.store_if_dear(a);
    Ok(a)
}

/// Coordinates with other last two.
fn plane_coordinates(rank: usize, row: Index, column: Index) -> Vec<Index> {
    (0..rank - 2).map(coordinate).chain([row, column]).collect()
}

/// `a` at a row and column that may lie outside, and whether they lie inside.
fn tap(cx: &mut Cx, a: ExprId, row: Index, column: Index, shape: &[Size]) -> (ExprId, ExprId) {
    let from = cx.shape(a);
    let rank = from.len();
    let rows = cx.in_range(row.clone(), Size::ZERO, from[rank - 2], shape);
    let columns = cx.in_range(column.clone(), Size::ZERO, from[rank - 1], shape);
    let inside = cx.binary(BinaryOp::And, rows, columns);
    (cx.view(a, plane_coordinates(rank, row, column), shape), inside)
}

/// Row or column of an element of a window.
fn window_position(w: &Windows, d: usize, rank: usize, at: i64) -> Index {
    coordinate(rank - 2 + d)
        .times(Size::from(w.stride[d]))
        .shifted(Size::from(at * w.dilation[d] - w.padding[d]))
}

fn max_pool(cx: &mut Cx, c: &Call, place: Place) -> Lowered {
    let w = Windows::new(c, 1, Dilated::Yes)?;
    if w.kernel[0] * w.kernel[1] > MAX_TAPS {
        return Err(Refusal::Extern);
    }
    let a = planes(cx, c, 0, "self")?;
    let shape = cx.out()?.shape.clone();
    let rank = shape.len();
    let dtype = cx.dtype(a);
    if dtype == DType::Bool {
        return Err(Refusal::Extern);
    }
    let mut best = cx.constant(lowest(dtype), dtype, &shape);
    let outside = best;
    let mut place_of_best = first_tap(cx, &w, rank, &shape);
    for at in 0..w.kernel[0] * w.kernel[1] {
        let row = window_position(&w, 0, rank, at / w.kernel[1]);
        let column = window_position(&w, 1, rank, at % w.kernel[1]);
        let (value, inside) = tap(cx, a, row, column, &shape);
        let value = cx.guarded(inside, value, outside);
        // Larger, or the first NaN.
        let at_most = cx.binary(BinaryOp::Le, value, best);
        let larger = cx.unary(UnaryOp::Not, at_most);
        let known = cx.binary(BinaryOp::Eq, best, best);
        let wins = cx.binary(BinaryOp::And, larger, known);
        let here = cx.constant(Scalar::Int(at), DType::I64, &shape);
        place_of_best = cx.choose(wins, here, place_of_best);
        best = cx.binary(BinaryOp::Max, best, value);
    }
    let place_of_best = match place {
        Place::InWindow => cx.cast(place_of_best, DType::I8),
        Place::InPlane => {
            let columns = cx.shape(a)[rank - 1];
            plane_position(cx, &w, place_of_best, columns)
        }
    };
    if cx.result(0).is_some() && cx.result(1).is_some() {
        cx.name_after_result(best, 0);
        cx.name_after_result(place_of_best, 1);
        cx.realize_together(&[best, place_of_best]);
    }
    Ok(vec![best, place_of_best])
}

/// The first element of a window that lies inside: what wins if all are equally small.
fn first_tap(cx: &mut Cx, w: &Windows, rank: usize, shape: &[Size]) -> ExprId {
    let zero = cx.constant(Scalar::Int(0), DType::I64, shape);
    let mut first = |d: usize| {
        if w.padding[d] == 0 {
            return zero;
        }
        let before = coordinate(rank - 2 + d)
            .times(Size::from(-w.stride[d]))
            .shifted(Size::from(w.padding[d] + w.dilation[d] - 1))
            .floor_div(Size::from(w.dilation[d]), &|_| None);
        let before = cx.index(before, shape);
        cx.binary(BinaryOp::Max, before, zero)
    };
    let (row, column) = (first(0), first(1));
    let columns = cx.int(w.kernel[1], zero);
    let whole = cx.binary(BinaryOp::Mul, row, columns);
    cx.binary(BinaryOp::Add, whole, column)
}

/// From the place in a window to the position in the plane.
fn plane_position(cx: &mut Cx, w: &Windows, place: ExprId, columns: Size) -> ExprId {
    let shape = cx.shape(place);
    let rank = shape.len();
    let width = cx.int(w.kernel[1], place);
    let taps = [cx.binary(BinaryOp::FloorDiv, place, width), cx.binary(BinaryOp::Remainder, place, width)];
    let [row, column] = [(0, taps[0]), (1, taps[1])].map(|(d, tap)| {
        let start = cx.index(window_position(w, d, rank, 0), &shape);
        let dilation = cx.int(w.dilation[d], tap);
        let distance = cx.binary(BinaryOp::Mul, tap, dilation);
        cx.binary(BinaryOp::Add, start, distance)
    });
    let columns = cx.size(columns, DType::I64, &shape);
    let whole = cx.binary(BinaryOp::Mul, row, columns);
    cx.binary(BinaryOp::Add, whole, column)
}

fn offsets_to_indices(cx: &mut Cx, c: &Call) -> Lowered {
    let offsets = planes(cx, c, 0, "self")?;
    let pair = |at: usize, name: &str| -> Result<[i64; 2], Refusal> {
        match c.ints(at, name)?.as_slice() {
            [both] => Ok([*both, *both]),
            [first, second] => Ok([*first, *second]),
            _ => Err(Refusal::Extern),
        }
    };
    let w = Windows {
        kernel: pair(1, "kernel_size")?,
        stride: pair(3, "stride")?,
        padding: pair(4, "padding")?,
        dilation: pair(5, "dilation")?,
        ceil_mode: false,
    };
    let input = c.sizes(2, "input_size")?;
    let columns = *input.last().ok_or(Refusal::Extern)?;
    let place = cx.cast(offsets, DType::I64);
    Ok(vec![plane_position(cx, &w, place, columns)])
}

/// The windows along one dimension that an element can lie in, as functions of its coordinate: the last one that
/// begins at or before it, and those before that.
fn covering(w: &Windows, d: usize, rank: usize) -> Vec<Index> {
    let stride = Size::from(w.stride[d]);
    let last =
        coordinate(rank - 2 + d).shifted(Size::from(w.padding[d])).floor_div(stride, &|_: LoopVar| None);
    let span = w.dilation[d] * (w.kernel[d] - 1) + 1;
    (0..(span + w.stride[d] - 1) / w.stride[d]).map(|k| last.clone().shifted(Size::from(-k))).collect()
}

fn max_pool_backward(cx: &mut Cx, c: &Call) -> Lowered {
    let w = Windows::new(c, 2, Dilated::Yes)?;
    let gradient = planes(cx, c, 0, "grad_output")?;
    let indices = planes(cx, c, 7, "indices")?;
    let shape = cx.out()?.shape.clone();
    let rank = shape.len();
    let (rows, columns) = (covering(&w, 0, rank), covering(&w, 1, rank));
    if (rows.len() * columns.len()) as i64 > MAX_TAPS {
        return Err(Refusal::Extern);
    }
    let wide = cx.dtype(gradient).compute();
    let own = coordinate(rank - 2).times(shape[rank - 1]).plus(&coordinate(rank - 1));
    let own = cx.index(own, &shape);
    let zero = cx.constant(Scalar::Int(0), wide, &shape);
    let nowhere = cx.int(-1, own);
    let mut sum = zero;
    for row in &rows {
        for column in &columns {
            let (value, inside) = tap(cx, gradient, row.clone(), column.clone(), &shape);
            let (from, _) = tap(cx, indices, row.clone(), column.clone(), &shape);
            let from = cx.guarded(inside, from, nowhere);
            let value = cx.cast(value, wide);
            let value = cx.guarded(inside, value, zero);
            let chosen = cx.binary(BinaryOp::Eq, from, own);
            let part = cx.choose(chosen, value, zero);
            sum = cx.binary(BinaryOp::Add, sum, part);
        }
    }
    let dtype = cx.out()?.dtype;
    Ok(vec![cx.cast(sum, dtype)])
}

fn avg_pool(cx: &mut Cx, c: &Call) -> Lowered {
    let w = Windows::new(c, 1, Dilated::No)?;
    let a = planes(cx, c, 0, "self")?;
    let out = cx.out()?;
    let shape = out.shape.clone();
    let rank = shape.len();
    if !out.dtype.is_float() {
        return Err(Refusal::Extern);
    }
    let sum = if w.kernel[0] * w.kernel[1] > MAX_TAPS {
        window_sum(cx, a, &w, &shape)
    } else {
        let wide = out.dtype.compute();
        let zero = cx.constant(Scalar::Int(0), wide, &shape);
        let mut sum = zero;
        for at in 0..w.kernel[0] * w.kernel[1] {
            let row = window_position(&w, 0, rank, at / w.kernel[1]);
            let column = window_position(&w, 1, rank, at % w.kernel[1]);
            let (value, inside) = tap(cx, a, row, column, &shape);
            let value = cx.cast(value, wide);
            let value = cx.guarded(inside, value, zero);
            sum = if at == 0 { value } else { cx.binary(BinaryOp::Add, sum, value) };
        }
        sum
    };
    let from = cx.shape(a);
    let extents = [from[rank - 2], from[rank - 1]];
    let windows = [coordinate(rank - 2), coordinate(rank - 1)];
    let divisor = divisor(cx, c, 5, &w, &windows, extents, sum)?;
    let mean = cx.binary(BinaryOp::Div, sum, divisor);
    Ok(vec![cx.cast(mean, out.dtype)])
}

/// Sums over windows as a reduction over two more dimensions.
fn window_sum(cx: &mut Cx, a: ExprId, w: &Windows, shape: &[Size]) -> ExprId {
    let rank = shape.len();
    let mut windows: Dims = shape.iter().copied().collect();
    windows.extend(w.kernel.map(Size::from));
    let position = |d: usize| window_position(w, d, rank, 0).plus(&coordinate(rank + d));
    let (value, inside) = tap(cx, a, position(0), position(1), &windows);
    let wide = cx.dtype(a).compute();
    let zero = cx.constant(Scalar::Int(0), wide, &windows);
    let value = cx.cast(value, wide);
    let input = cx.guarded(inside, value, zero);
    let reduction = Reduction { input, dims: &[rank, rank + 1], keepdim: false, op: ReduceOp::Sum };
    cx.reduce_to(&reduction, FinishValue::First)
}

/// What the sum over a window is divided by. `from` is the position of `count_include_pad`; `windows` are the row
/// and column of the window.
fn divisor(
    cx: &mut Cx,
    c: &Call,
    from: usize,
    w: &Windows,
    windows: &[Index; 2],
    extents: [Size; 2],
    like: ExprId,
) -> Result<ExprId, Refusal> {
    if let Some(divisor) = c.opt_int(from + 1, "divisor_override")? {
        return Ok(cx.float(divisor as f64, like));
    }
    let padded = c.bool_or(from, "count_include_pad", true)?;
    let whole = !w.ceil_mode && (padded || w.padding == [0, 0]);
    if whole {
        return Ok(cx.float((w.kernel[0] * w.kernel[1]) as f64, like));
    }
    let (dtype, shape) = (cx.dtype(like), cx.shape(like));
    let mut counts = Vec::new();
    for d in 0..2 {
        let start = windows[d].times(Size::from(w.stride[d])).shifted(Size::from(-w.padding[d]));
        let end = start.clone().shifted(Size::from(w.kernel[d]));
        let (start, end) = (cx.index(start, &shape), cx.index(end, &shape));
        let limit = |cx: &mut Cx, size: Size| cx.size(size, DType::I64, &shape);
        let behind = limit(cx, extents[d] + Size::from(if padded { w.padding[d] } else { 0 }));
        let end = cx.binary(BinaryOp::Min, end, behind);
        let start = if padded {
            start
        } else {
            let zero = limit(cx, Size::ZERO);
            cx.binary(BinaryOp::Max, start, zero)
        };
        counts.push(cx.binary(BinaryOp::Sub, end, start));
    }
    let count = cx.binary(BinaryOp::Mul, counts[0], counts[1]);
    Ok(cx.cast(count, dtype))
}

fn avg_pool_backward(cx: &mut Cx, c: &Call) -> Lowered {
    let w = Windows::new(c, 2, Dilated::No)?;
    let gradient = planes(cx, c, 0, "grad_output")?;
    let out = cx.out()?;
    let shape = out.shape.clone();
    let rank = shape.len();
    let (rows, columns) = (covering(&w, 0, rank), covering(&w, 1, rank));
    if (rows.len() * columns.len()) as i64 > MAX_TAPS || !out.dtype.is_float() {
        return Err(Refusal::Extern);
    }
    let wide = out.dtype.compute();
    let zero = cx.constant(Scalar::Int(0), wide, &shape);
    let extents = [shape[rank - 2], shape[rank - 1]];
    let mut sum = None;
    for row in &rows {
        for column in &columns {
            let (value, mut inside) = tap(cx, gradient, row.clone(), column.clone(), &shape);
            // With gaps between windows, and at the far end of the oldest one, an element may lie in none.
            for (d, window) in [row, column].into_iter().enumerate() {
                let place = coordinate(rank - 2 + d)
                    .shifted(Size::from(w.padding[d]))
                    .plus(&window.times(Size::from(-w.stride[d])));
                let here = cx.in_range(place, Size::ZERO, Size::from(w.kernel[d]), &shape);
                inside = cx.binary(BinaryOp::And, inside, here);
            }
            let value = cx.cast(value, wide);
            let windows = [row.clone(), column.clone()];
            let divisor = divisor(cx, c, 6, &w, &windows, extents, value)?;
            let share = cx.binary(BinaryOp::Div, value, divisor);
            let share = cx.guarded(inside, share, zero);
            sum = Some(match sum {
                None => share,
                Some(sum) => cx.binary(BinaryOp::Add, sum, share),
            });
        }
    }
    let sum = sum.unwrap_or(zero);
    Ok(vec![cx.cast(sum, out.dtype)])
}

/// Adaptive pooling whose windows do not overlap: a mean over blocks, or repetition of single elements.
fn adaptive_pool(cx: &mut Cx, c: &Call) -> Lowered {
    let a = planes(cx, c, 0, "self")?;
    let out = cx.out()?;
    let from = cx.shape(a);
    let rank = from.len();
    let block = |d: usize| from[rank - 2 + d].div_exact(out.shape[rank - 2 + d]);
    if let (Some(rows), Some(columns)) = (block(0), block(1)) {
        let mut blocks: Dims = from[..rank - 2].iter().copied().collect();
        blocks.extend([out.shape[rank - 2], rows, out.shape[rank - 1], columns]);
        let split = cx.reshape(a, &blocks);
        let input = cx.cast(split, out.dtype.compute());
        let reduction = Reduction { input, dims: &[rank - 1, rank + 1], keepdim: false, op: ReduceOp::Sum };
        let finish = Finish { value: FinishValue::Mean, dtype: out.dtype, result: Some(0) };
        return Ok(cx.reduce(&reduction, &[finish]));
    }
    let repeated = repeated(cx, a, &out.shape)?;
    Ok(vec![cx.copy(repeated)])
}

fn adaptive_pool_backward(cx: &mut Cx, c: &Call) -> Lowered {
    let gradient = planes(cx, c, 0, "grad_output")?;
    let out = cx.out()?;
    let from = cx.shape(gradient);
    let rank = from.len();
    let spread = repeated(cx, gradient, &out.shape)?;
    let count = (0..2)
        .map(|d| out.shape[rank - 2 + d].div_exact(from[rank - 2 + d]))
        .product::<Option<Size>>()
        .ok_or(Refusal::Extern)?;
    let divisor = cx.size(count, out.dtype, &out.shape);
    Ok(vec![cx.binary(BinaryOp::Div, spread, divisor)])
}

/// Each element of a plane a whole number of times along rows and columns.
fn repeated(cx: &mut Cx, a: ExprId, shape: &[Size]) -> Result<ExprId, Refusal> {
    let from = cx.shape(a);
    let rank = from.len();
    let extents = |v: LoopVar| shape.get(v.0 as usize).copied();
    let mut at = Vec::new();
    for d in rank - 2..rank {
        let factor = shape[d].div_exact(from[d]).ok_or(Refusal::Extern)?;
        at.push(coordinate(d).floor_div(factor, &extents));
    }
    let coords = (0..rank - 2).map(coordinate).chain(at).collect();
    Ok(cx.view(a, coords, shape))
}

fn upsample_nearest(cx: &mut Cx, c: &Call) -> Lowered {
    let a = cx.tensor(c, 0, "self")?;
    let shape = cx.out()?.shape.clone();
    if shape.len() != 4 || shape.iter().any(|e| e.is(0)) {
        return Err(Refusal::Extern);
    }
    let from = cx.shape(a);
    for (d, name) in [(2, "scales_h"), (3, "scales_w")] {
        let factor = shape[d].div_exact(from[d]).and_then(Size::as_const).ok_or(Refusal::Extern)?;
        if c.opt_scalar(d, name)?.is_some_and(|s| s.to_f64() != factor as f64) {
            return Err(Refusal::Extern);
        }
    }
    let repeated = repeated(cx, a, &shape)?;
    Ok(vec![cx.copy(repeated)])
}
