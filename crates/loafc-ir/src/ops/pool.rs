//! Pooling over windows of the last two dimensions, and nearest-neighbour upsampling.

use smallvec::SmallVec;

use super::call::Call;
use super::eval::{EvalCall, Fault};
use super::reduction::stored;
use super::shape::{check_equal_shapes, contiguous_like, suggested_strides};
use super::{InferError, OpDef, ResultTypes, general, one};
use crate::dtype::{DType, Scalar};
use crate::graph::{Dims, TensorType};
use crate::interp::scalar;
use crate::interp::tensor::HostTensor;
use crate::size::Size;

pub(super) const OPS: &[OpDef] = &[
    general("aten.max_pool2d_with_indices.default", MAX_POOL, infer_max_pool, eval_max_pool),
    general("prims._low_memory_max_pool_with_offsets.default", MAX_POOL, infer_max_offsets, eval_max_offsets),
    general(
        "prims._low_memory_max_pool_offsets_to_indices.default",
        "self, kernel_size, input_size, stride, padding, dilation",
        infer_offsets_to_indices,
        eval_offsets_to_indices,
    ),
    general(
        "aten.max_pool2d_with_indices_backward.default",
        "grad_output, self, kernel_size, stride, padding, dilation, ceil_mode, indices",
        infer_max_backward,
        eval_max_backward,
    ),
    general("aten.avg_pool2d.default", AVG_POOL, infer_avg_pool, eval_avg_pool),
    general(
        "aten.avg_pool2d_backward.default",
        "grad_output, self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override",
        infer_avg_backward,
        eval_avg_backward,
    ),
    general("aten._adaptive_avg_pool2d.default", "self, output_size", infer_adaptive, eval_adaptive),
    general(
        "aten._adaptive_avg_pool2d_backward.default",
        "grad_output, self",
        infer_adaptive_backward,
        eval_adaptive_backward,
    ),
    general(
        "aten.upsample_nearest2d.default",
        "self, output_size, scales_h, scales_w",
        infer_upsample,
        eval_upsample,
    ),
];

const MAX_POOL: &str = "self, kernel_size, stride, padding, dilation, ceil_mode";
const AVG_POOL: &str = "self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override";

/// Windows of a pooling operator, one number per dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Windows {
    /// Extent of a window.
    pub kernel: [i64; 2],
    /// Distance of windows.
    pub stride: [i64; 2],
    /// Elements added on each side.
    pub padding: [i64; 2],
    /// Distance of the elements of a window.
    pub dilation: [i64; 2],
    /// Whether a window that hangs over the end counts.
    pub ceil_mode: bool,
}

fn pair(call: &Call, position: usize, name: &str, default: Option<[i64; 2]>) -> Result<[i64; 2], InferError> {
    let given = match default {
        None => call.ints(position, name)?,
        Some(_) => call.opt_ints(position, name)?.unwrap_or_default(),
    };
    if given.iter().any(|n| !(0..=i64::from(i32::MAX)).contains(n)) {
        return Err(call.invalid(name, "numbers from 0 to 2147483647 were expected"));
    }
    match (given.as_slice(), default) {
        ([], Some(default)) => Ok(default),
        ([both], _) => Ok([*both, *both]),
        ([first, second], _) => Ok([*first, *second]),
        _ => Err(call.invalid(name, "one or two numbers were expected")),
    }
}

impl Windows {
    /// Reads the arguments from `kernel_size`, which stands at this position, on. With dilation: `kernel_size,
    /// stride, padding, dilation, ceil_mode`; without: `kernel_size, stride, padding, ceil_mode`.
    pub fn new(call: &Call, position: usize, dilated: Dilated) -> Result<Windows, InferError> {
        let kernel = pair(call, position, "kernel_size", None)?;
        let (dilation, ceil_at) = match dilated {
            Dilated::Yes => (pair(call, position + 3, "dilation", Some([1, 1]))?, position + 4),
            Dilated::No => ([1, 1], position + 3),
        };
        let windows = Windows {
            kernel,
            stride: pair(call, position + 1, "stride", Some(kernel))?,
            padding: pair(call, position + 2, "padding", Some([0, 0]))?,
            dilation,
            ceil_mode: call.bool_or(ceil_at, "ceil_mode", false)?,
        };
        let positive = [windows.kernel, windows.stride, windows.dilation];
        if positive.iter().flatten().any(|n| *n < 1) {
            return Err(call.invalid("kernel_size", "kernel, stride and dilation must be positive"));
        }
        if (0..2).any(|d| windows.padding[d] < 0 || windows.padding[d] * 2 > windows.kernel[d]) {
            return Err(call.invalid("padding", "at most half of the kernel was expected"));
        }
        Ok(windows)
    }

    /// Number of windows in dimension `d` of this extent.
    pub fn count(&self, d: usize, extent: Size) -> Size {
        let span = self.dilation[d] * (self.kernel[d] - 1) + 1;
        let round = if self.ceil_mode { self.stride[d] - 1 } else { 0 };
        let stride = Size::from(self.stride[d]);
        let count = (extent + Size::from(2 * self.padding[d] - span + round)).floor_div(stride) + Size::ONE;
        if !self.ceil_mode {
            return count;
        }
        // The last window must start inside of the input or its padding in front.
        count.min((extent + Size::from(self.padding[d])).ceil_div(stride))
    }

    /// First position of a window, which may lie in the padding.
    fn start(&self, d: usize, window: usize) -> i64 {
        window as i64 * self.stride[d] - self.padding[d]
    }

    /// The elements of a window that lie inside: place in the kernel, row, column.
    fn elements(&self, window: [usize; 2], extents: [usize; 2]) -> Vec<(usize, usize, usize)> {
        let mut elements = Vec::new();
        for tap in 0..self.kernel[0] * self.kernel[1] {
            let taps = [tap / self.kernel[1], tap % self.kernel[1]];
            let at = |d: usize| {
                let at = self.start(d, window[d]) + taps[d] * self.dilation[d];
                usize::try_from(at).ok().filter(|at| *at < extents[d])
            };
            if let (Some(row), Some(column)) = (at(0), at(1)) {
                elements.push((tap as usize, row, column));
            }
        }
        elements
    }
}

/// Whether a pooling operator has the argument `dilation`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Dilated {
    Yes,
    No,
}

/// The shape with other last two extents.
fn with_plane(call: &Call, x: &TensorType, rows: Size, columns: Size) -> Result<TensorType, InferError> {
    let mut shape: Dims = x.shape.clone();
    for (d, extent) in [(x.rank() - 2, rows), (x.rank() - 1, columns)] {
        call.require_at_most(Size::ONE, extent, || {
            call.invalid("self", format!("dimension {d} of extent {} is smaller than a window", x.shape[d]))
        })?;
        shape[d] = extent;
    }
    let strides = suggested_strides(x, &shape);
    Ok(TensorType { shape, strides, ..x.clone() })
}

fn planes(call: &Call, position: usize) -> Result<TensorType, InferError> {
    let x = call.tensor_type(position, "self")?;
    if matches!(x.rank(), 3 | 4) {
        return Ok(x);
    }
    Err(call.invalid("self", format!("3 or 4 dimensions were expected, it has {}", x.rank())))
}

fn pooled(call: &Call, x: &TensorType, windows: &Windows) -> Result<TensorType, InferError> {
    let rows = windows.count(0, x.shape[x.rank() - 2]);
    with_plane(call, x, rows, windows.count(1, x.shape[x.rank() - 1]))
}

fn infer_max_pool(call: &Call) -> Result<ResultTypes, InferError> {
    let x = planes(call, 0)?;
    let ty = pooled(call, &x, &Windows::new(call, 1, Dilated::Yes)?)?;
    let indices = TensorType { dtype: DType::I64, ..ty.clone() };
    Ok(vec![Some(ty), Some(indices)])
}

fn infer_max_offsets(call: &Call) -> Result<ResultTypes, InferError> {
    let mut types = infer_max_pool(call)?;
    if let Some(Some(offsets)) = types.get_mut(1) {
        offsets.dtype = DType::I8;
    }
    Ok(types)
}

/// The largest element of each window, the first of equals or a NaN, with its place in the kernel and its
/// position in the plane.
fn window_maxima(e: &EvalCall) -> Result<(HostTensor, Vec<(usize, usize)>), Fault> {
    let x = e.tensor(0, "self")?;
    let windows = Windows::new(&e.call, 1, Dilated::Yes)?;
    let rank = x.shape.len();
    let extents = [x.shape[rank - 2], x.shape[rank - 1]];
    let mut places = Vec::new();
    let values = HostTensor::build(x.dtype, &e.shape(0)?, |index| {
        let mut from: SmallVec<[usize; 6]> = SmallVec::from_slice(index);
        let mut best: Option<(Scalar, (usize, usize))> = None;
        for (tap, row, column) in windows.elements([index[rank - 2], index[rank - 1]], extents) {
            (from[rank - 2], from[rank - 1]) = (row, column);
            let value = x.at(&from);
            let larger = best.is_none_or(|(b, _)| {
                value.to_f64() > b.to_f64() || (value.to_f64().is_nan() && !b.to_f64().is_nan())
            });
            if larger {
                best = Some((value, (tap, row * extents[1] + column)));
            }
        }
        let (value, place) = best.unwrap_or((scalar::lowest(x.dtype), (0, 0)));
        places.push(place);
        Ok(value)
    })?;
    Ok((values, places))
}

fn places_as(dtype: DType, like: &HostTensor, places: impl Iterator<Item = usize>) -> HostTensor {
    let data = places.map(|p| scalar::constant(Scalar::Int(p as i64), dtype)).collect();
    HostTensor { dtype, shape: like.shape.clone(), data }
}

fn eval_max_pool(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let (values, places) = window_maxima(e)?;
    let indices = places_as(DType::I64, &values, places.into_iter().map(|(_, position)| position));
    Ok(vec![values, indices])
}

fn eval_max_offsets(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let (values, places) = window_maxima(e)?;
    let offsets = places_as(DType::I8, &values, places.into_iter().map(|(tap, _)| tap));
    Ok(vec![values, offsets])
}

fn infer_offsets_to_indices(call: &Call) -> Result<ResultTypes, InferError> {
    let x = planes(call, 0)?;
    if pair(call, 1, "kernel_size", None)?.contains(&0) {
        return Err(call.invalid("kernel_size", "positive numbers were expected"));
    }
    call.sizes(2, "input_size")?;
    one(TensorType { dtype: DType::I64, strides: super::shape::preserved_strides(&x), ..x })
}

fn eval_offsets_to_indices(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let offsets = e.tensor(0, "self")?;
    let kernel = pair(&e.call, 1, "kernel_size", None)?;
    let input = pair(&e.call, 2, "input_size", None)?;
    let stride = pair(&e.call, 3, "stride", Some(kernel))?;
    let padding = pair(&e.call, 4, "padding", Some([0, 0]))?;
    let dilation = pair(&e.call, 5, "dilation", Some([1, 1]))?;
    let rank = offsets.shape.len();
    let result = HostTensor::build(DType::I64, &offsets.shape, |index| {
        let offset = offsets.at(index).to_i64();
        let taps = [offset / kernel[1], offset % kernel[1]];
        let at = |d: usize| index[rank - 2 + d] as i64 * stride[d] - padding[d] + taps[d] * dilation[d];
        Ok(Scalar::Int(at(0) * input[1] + at(1)))
    })?;
    Ok(vec![result])
}

fn infer_max_backward(call: &Call) -> Result<ResultTypes, InferError> {
    let x = planes(call, 1)?;
    let grad = call.tensor_type(0, "grad_output")?;
    check_planes(call, &grad, &x)?;
    check_equal_shapes(call, "indices", &call.tensor_type(7, "indices")?.shape, &grad.shape)?;
    let strides = suggested_strides(&x, &x.shape);
    one(TensorType { strides, dtype: grad.dtype, ..x })
}

fn eval_max_backward(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let (grad, indices) = (e.tensor(0, "grad_output")?, e.tensor(7, "indices")?);
    let shape = e.shape(0)?;
    let plane: usize = shape[shape.len() - 2..].iter().product();
    let per_plane: usize = grad.shape[grad.shape.len() - 2..].iter().product();
    let mut totals = vec![0.0; shape.iter().product()];
    for (k, (g, index)) in grad.data.iter().zip(&indices.data).enumerate() {
        let at = super::indexing::in_range(*index, shape.len() - 1, plane)?;
        totals[k / per_plane * plane + at] += g.to_f64();
    }
    let data = totals.into_iter().map(|v| stored(v, grad.dtype)).collect();
    Ok(vec![HostTensor { dtype: grad.dtype, shape, data }])
}

fn infer_avg_pool(call: &Call) -> Result<ResultTypes, InferError> {
    let x = planes(call, 0)?;
    call.opt_int(6, "divisor_override")?;
    one(pooled(call, &x, &Windows::new(call, 1, Dilated::No)?)?)
}

/// What the sum over a window is divided by.
fn divisor(
    call: &Call,
    from: usize,
    windows: &Windows,
    at: [usize; 2],
    extents: [usize; 2],
) -> Result<f64, Fault> {
    if let Some(divisor) = call.opt_int(from + 1, "divisor_override")? {
        return Ok(divisor as f64);
    }
    let padded = call.bool_or(from, "count_include_pad", true)?;
    let count = |d: usize| {
        let start = windows.start(d, at[d]);
        let end = (start + windows.kernel[d]).min(extents[d] as i64 + windows.padding[d]);
        if padded { end - start } else { end.min(extents[d] as i64) - start.max(0) }
    };
    Ok((count(0) * count(1)) as f64)
}

fn eval_avg_pool(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let x = e.tensor(0, "self")?;
    let windows = Windows::new(&e.call, 1, Dilated::No)?;
    let rank = x.shape.len();
    let extents = [x.shape[rank - 2], x.shape[rank - 1]];
    let result = HostTensor::build(x.dtype, &e.shape(0)?, |index| {
        let mut from: SmallVec<[usize; 6]> = SmallVec::from_slice(index);
        let at = [index[rank - 2], index[rank - 1]];
        let mut total = 0.0;
        for (_, row, column) in windows.elements(at, extents) {
            (from[rank - 2], from[rank - 1]) = (row, column);
            total += x.at(&from).to_f64();
        }
        Ok(average(total, divisor(&e.call, 5, &windows, at, extents)?, x.dtype))
    })?;
    Ok(vec![result])
}

/// A mean as an element of memory; those of integers are cut towards zero.
fn average(total: f64, count: f64, dtype: DType) -> Scalar {
    if dtype.is_float() { stored(total / count, dtype) } else { Scalar::Int((total / count).trunc() as i64) }
}

fn infer_avg_backward(call: &Call) -> Result<ResultTypes, InferError> {
    let x = planes(call, 1)?;
    let grad = call.tensor_type(0, "grad_output")?;
    let expected = pooled(call, &x, &Windows::new(call, 2, Dilated::No)?)?;
    check_equal_shapes(call, "grad_output", &grad.shape, &expected.shape)?;
    let strides = suggested_strides(&x, &x.shape);
    one(TensorType { strides, ..x })
}

fn eval_avg_backward(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let (grad, shape) = (e.tensor(0, "grad_output")?, e.shape(0)?);
    let windows = Windows::new(&e.call, 2, Dilated::No)?;
    let rank = shape.len();
    let extents = [shape[rank - 2], shape[rank - 1]];
    spread(grad, &shape, |at| {
        let divisor = divisor(&e.call, 6, &windows, at, extents)?;
        let elements = windows.elements(at, extents);
        Ok((elements.into_iter().map(|(_, row, column)| (row, column)).collect(), divisor))
    })
}

/// Adds each element of `grad`, divided, to the elements of its window.
fn spread(
    grad: &HostTensor,
    shape: &[usize],
    window: impl Fn([usize; 2]) -> Result<(Vec<(usize, usize)>, f64), Fault>,
) -> Result<Vec<HostTensor>, Fault> {
    let rank = shape.len();
    let mut totals = HostTensor::filled(DType::F64, shape, Scalar::Float(0.0));
    super::elements::each_index(&grad.shape, |index| {
        let (elements, divisor) = window([index[rank - 2], index[rank - 1]])?;
        let mut to: SmallVec<[usize; 6]> = SmallVec::from_slice(index);
        for (row, column) in elements {
            (to[rank - 2], to[rank - 1]) = (row, column);
            let at = totals.position(&to);
            let total = totals.data[at].to_f64() + grad.at(index).to_f64() / divisor;
            totals.data[at] = Scalar::Float(total);
        }
        Ok(())
    })?;
    let data = totals.data.iter().map(|v| stored(v.to_f64(), grad.dtype)).collect();
    Ok(vec![HostTensor { dtype: grad.dtype, shape: shape.to_vec(), data }])
}

fn infer_adaptive(call: &Call) -> Result<ResultTypes, InferError> {
    let x = planes(call, 0)?;
    let size = call.sizes(1, "output_size")?;
    let [rows, columns] = size.as_slice() else {
        return Err(call.invalid("output_size", "two numbers were expected"));
    };
    if x.shape[x.rank() - 2..].iter().any(|extent| extent.is(0)) {
        return Err(call.invalid("self", "the last two dimensions must not be empty"));
    }
    one(with_plane(call, &x, *rows, *columns)?)
}

/// First position and first position behind of an adaptive window.
fn adaptive(window: usize, windows: usize, extent: usize) -> (usize, usize) {
    (window * extent / windows, ((window + 1) * extent).div_ceil(windows))
}

/// The elements of an adaptive window.
fn adaptive_window(at: [usize; 2], windows: [usize; 2], extents: [usize; 2]) -> Vec<(usize, usize)> {
    let (top, bottom) = adaptive(at[0], windows[0], extents[0]);
    let (left, right) = adaptive(at[1], windows[1], extents[1]);
    (top..bottom).flat_map(|row| (left..right).map(move |column| (row, column))).collect()
}

fn eval_adaptive(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let (x, shape) = (e.tensor(0, "self")?, e.shape(0)?);
    let rank = shape.len();
    let (windows, extents) = ([shape[rank - 2], shape[rank - 1]], [x.shape[rank - 2], x.shape[rank - 1]]);
    let result = HostTensor::build(x.dtype, &shape, |index| {
        let mut from: SmallVec<[usize; 6]> = SmallVec::from_slice(index);
        let elements = adaptive_window([index[rank - 2], index[rank - 1]], windows, extents);
        let mut total = 0.0;
        for (row, column) in &elements {
            (from[rank - 2], from[rank - 1]) = (*row, *column);
            total += x.at(&from).to_f64();
        }
        Ok(average(total, elements.len() as f64, x.dtype))
    })?;
    Ok(vec![result])
}

/// Fails unless there is one plane of gradients for each plane of the input.
fn check_planes(call: &Call, grad: &TensorType, x: &TensorType) -> Result<(), InferError> {
    let outer = x.rank() - 2;
    if grad.rank() != x.rank() {
        return Err(call.invalid("grad_output", format!("{} dimensions were expected", x.rank())));
    }
    check_equal_shapes(call, "grad_output", &grad.shape[..outer], &x.shape[..outer])
}

fn infer_adaptive_backward(call: &Call) -> Result<ResultTypes, InferError> {
    let x = planes(call, 1)?;
    let grad = call.tensor_type(0, "grad_output")?;
    check_planes(call, &grad, &x)?;
    one(contiguous_like(&x, x.dtype, x.shape.iter().copied()))
}

fn eval_adaptive_backward(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let (grad, shape) = (e.tensor(0, "grad_output")?, e.shape(0)?);
    let rank = shape.len();
    let windows = [grad.shape[rank - 2], grad.shape[rank - 1]];
    let extents = [shape[rank - 2], shape[rank - 1]];
    spread(grad, &shape, |at| {
        let elements = adaptive_window(at, windows, extents);
        let count = elements.len() as f64;
        Ok((elements, count))
    })
}

fn infer_upsample(call: &Call) -> Result<ResultTypes, InferError> {
    infer_adaptive(call)
}

fn eval_upsample(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let (x, shape) = (e.tensor(0, "self")?, e.shape(0)?);
    let rank = shape.len();
    let scale = |d: usize, position: usize, name: &str| -> Result<f64, Fault> {
        let ratio = x.shape[d] as f64 / shape[d] as f64;
        Ok(e.call.opt_scalar(position, name)?.map_or(ratio, |s| 1.0 / s.to_f64()))
    };
    let scales = [scale(rank - 2, 2, "scales_h")?, scale(rank - 1, 3, "scales_w")?];
    let result = HostTensor::build(x.dtype, &shape, |index| {
        let mut from: SmallVec<[usize; 6]> = SmallVec::from_slice(index);
        for (k, d) in [rank - 2, rank - 1].into_iter().enumerate() {
            // PyTorch computes the position in f32.
            let at = (index[d] as f32 * scales[k] as f32).floor() as usize;
            from[d] = at.min(x.shape[d] - 1);
        }
        Ok(x.at(&from))
    })?;
    Ok(vec![result])
}
