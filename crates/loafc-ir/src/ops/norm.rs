//! Softmax and normalizations, forward and backward, as the operators that stand for them before a front end
//! decomposes them. Computed in f64, rounded once.

use super::call::Call;
use super::eval::{EvalCall, Fault};
use super::reduction::{moments, stored};
use super::shape::{check_equal_shapes, contiguous_like, preserved_strides, suggested_strides};
use super::{InferError, OpDef, ResultTypes, general, one};
use crate::dtype::DType;
use crate::graph::TensorType;
use crate::interp::tensor::HostTensor;
use crate::size::Size;

pub(super) const OPS: &[OpDef] = &[
    general("aten._softmax.default", "self, dim, half_to_float", infer_softmax, eval_softmax),
    general("aten.softmax.int", "self, dim, dtype", infer_softmax, eval_softmax),
    general("aten._safe_softmax.default", "self, dim, dtype", infer_softmax, eval_softmax),
    general("aten._log_softmax.default", "self, dim, half_to_float", infer_softmax, eval_softmax),
    general("aten.log_softmax.int", "self, dim, dtype", infer_softmax, eval_softmax),
    general("aten._softmax_backward_data.default", BACKWARD_DATA, infer_backward_data, eval_backward_data),
    general("aten._log_softmax_backward_data.default", BACKWARD_DATA, infer_backward_data, |e| {
        eval_backward_data(e)
    }),
    general("aten.native_layer_norm.default", LAYER_NORM, infer_layer_norm, eval_layer_norm),
    general("aten.native_layer_norm_backward.default", LAYER_NORM_BACKWARD, infer_layer_norm_backward, |e| {
        eval_layer_norm_backward(e)
    }),
    general("aten.native_group_norm.default", GROUP_NORM, infer_group_norm, eval_group_norm),
    general(
        "aten._native_batch_norm_legit_no_training.default",
        BATCH_NORM_INFERENCE,
        infer_batch_norm_inference,
        eval_batch_norm_inference,
    ),
    general(
        "aten._native_batch_norm_legit_functional.default",
        BATCH_NORM_FUNCTIONAL,
        infer_batch_norm,
        eval_batch_norm,
    ),
    general(
        "aten._native_batch_norm_legit.no_stats",
        "input, weight, bias, training, momentum, eps",
        infer_batch_norm_no_stats,
        eval_batch_norm_no_stats,
    ),
    general("aten.glu.default", "self, dim", infer_glu, eval_glu),
];

const BACKWARD_DATA: &str = "grad_output, output, dim, input_dtype";
const LAYER_NORM: &str = "input, normalized_shape, weight, bias, eps";
const LAYER_NORM_BACKWARD: &str = "grad_out, input, normalized_shape, mean, rstd, weight, bias, output_mask";
const GROUP_NORM: &str = "input, weight, bias, N, C, HxW, group, eps";
const BATCH_NORM_INFERENCE: &str = "input, weight, bias, running_mean, running_var, momentum, eps";
const BATCH_NORM_FUNCTIONAL: &str = "input, weight, bias, running_mean, running_var, training, momentum, eps";

fn floats_only(call: &Call, dtype: DType) -> Result<(), InferError> {
    if dtype.is_float() {
        return Ok(());
    }
    Err(InferError::DType { op: call.op.to_owned(), expected: "floats", found: dtype })
}

/// Elements as floats.
fn floats(x: &HostTensor) -> Vec<f64> {
    x.data.iter().map(|v| v.to_f64()).collect()
}

fn rounded(values: Vec<f64>, dtype: DType, shape: Vec<usize>) -> HostTensor {
    HostTensor { dtype, shape, data: values.into_iter().map(|v| stored(v, dtype)).collect() }
}

fn infer_softmax(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(0, "self")?;
    call.dim(1, "dim", x.rank())?;
    let dtype = if call.op.starts_with("aten._softmax") || call.op.starts_with("aten._log") {
        if call.bool_or(2, "half_to_float", false)? { DType::F32 } else { x.dtype }
    } else {
        call.opt_dtype(2, "dtype")?.unwrap_or(x.dtype)
    };
    floats_only(call, dtype)?;
    one(contiguous_like(&x, dtype, x.shape.iter().copied()))
}

/// Replaces each line along a dimension; `line` gets the positions of its elements.
fn each_line(x: &HostTensor, dim: usize, mut line: impl FnMut(&[usize])) {
    let (outer, extent, inner) = x.around(dim);
    for o in 0..outer {
        for i in 0..inner {
            let positions: Vec<usize> = (0..extent).map(|k| (o * extent + k) * inner + i).collect();
            line(&positions);
        }
    }
}

fn eval_softmax(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let (x, dtype) = (e.tensor(0, "self")?, e.result(0)?.dtype);
    let dim = e.call.dim(1, "dim", x.shape.len())?;
    let mut values = floats(x);
    let (log, safe) = (e.call.op.contains("log_softmax"), e.call.op.contains("_safe_"));
    each_line(x, dim, |line| {
        let largest = line.iter().map(|k| values[*k]).fold(f64::NEG_INFINITY, f64::max);
        let total: f64 = line.iter().map(|k| (values[*k] - largest).exp()).sum();
        for k in line {
            values[*k] = match log {
                true => values[*k] - largest - total.ln(),
                // Lines that are masked out as a whole.
                false if safe && largest == f64::NEG_INFINITY => 0.0,
                false => (values[*k] - largest).exp() / total,
            };
        }
    });
    Ok(vec![rounded(values, dtype, x.shape.clone())])
}

fn infer_backward_data(call: &Call) -> Result<ResultTypes, InferError> {
    let (grad, output) = (call.tensor_type(0, "grad_output")?, call.tensor_type(1, "output")?);
    check_equal_shapes(call, "output", &output.shape, &grad.shape)?;
    call.dim(2, "dim", grad.rank())?;
    let dtype = call.opt_dtype(3, "input_dtype")?.unwrap_or(grad.dtype);
    one(contiguous_like(&grad, dtype, grad.shape.iter().copied()))
}

fn eval_backward_data(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let (grad, output) = (e.tensor(0, "grad_output")?, e.tensor(1, "output")?);
    let dim = e.call.dim(2, "dim", grad.shape.len())?;
    let log = e.call.op == "aten._log_softmax_backward_data.default";
    let (mut values, output_values) = (floats(grad), floats(output));
    each_line(grad, dim, |line| {
        let weight = |k: usize| if log { 1.0 } else { output_values[k] };
        let total: f64 = line.iter().map(|k| values[*k] * weight(*k)).sum();
        for k in line {
            values[*k] = match log {
                true => values[*k] - output_values[*k].exp() * total,
                false => (values[*k] - total) * output_values[*k],
            };
        }
    });
    Ok(vec![rounded(values, e.result(0)?.dtype, grad.shape.clone())])
}

/// Number of dimensions in front of the normalized ones.
fn outer_rank(call: &Call, position: usize, x: &TensorType) -> Result<usize, InferError> {
    let normalized = call.sizes(position, "normalized_shape")?;
    let outer = x.rank().checked_sub(normalized.len()).filter(|_| !normalized.is_empty());
    let Some(outer) = outer else {
        return Err(call.invalid("normalized_shape", "it has no or too many dimensions"));
    };
    check_equal_shapes(call, "normalized_shape", &normalized, &x.shape[outer..])?;
    Ok(outer)
}

/// The type of one number for each row.
fn statistics(x: &TensorType, outer: usize) -> TensorType {
    let shape = x.shape.iter().enumerate().map(|(d, n)| if d < outer { *n } else { Size::ONE });
    contiguous_like(x, x.dtype, shape)
}

fn infer_layer_norm(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(0, "input")?;
    floats_only(call, x.dtype)?;
    let outer = outer_rank(call, 1, &x)?;
    for (position, name) in [(2, "weight"), (3, "bias")] {
        if let Some(t) = call.opt_tensor(position, name)? {
            check_equal_shapes(call, name, &t.ty.shape, &x.shape[outer..])?;
        }
    }
    call.scalar(4, "eps")?;
    let result = contiguous_like(&x, x.dtype, x.shape.iter().copied());
    let per_row = statistics(&x, outer);
    Ok(vec![Some(result), Some(per_row.clone()), Some(per_row)])
}

/// A factor or summand for each of a number of elements, `default` where it is not given.
fn per_element(
    e: &EvalCall,
    position: usize,
    name: &str,
    count: usize,
    default: f64,
) -> Result<Vec<f64>, Fault> {
    Ok(e.opt_tensor(position, name)?.map_or_else(|| vec![default; count], floats))
}

fn eval_layer_norm(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let x = e.tensor(0, "input")?;
    let outer = outer_rank(&e.call, 1, &e.call.tensor_type(0, "input")?)?;
    let width: usize = x.shape[outer..].iter().product();
    let (weight, bias) = (per_element(e, 2, "weight", width, 1.0)?, per_element(e, 3, "bias", width, 0.0)?);
    let eps = e.call.scalar(4, "eps")?.to_f64();
    let (mut values, mut means, mut scales) = (Vec::new(), Vec::new(), Vec::new());
    for row in floats(x).chunks(width.max(1)) {
        let (mean, squares) = moments(row);
        let scale = 1.0 / (squares / width as f64 + eps).sqrt();
        values.extend(row.iter().enumerate().map(|(k, v)| (v - mean) * scale * weight[k] + bias[k]));
        means.push(mean);
        scales.push(scale);
    }
    let per_row = e.shape(1)?;
    Ok(vec![
        rounded(values, x.dtype, x.shape.clone()),
        rounded(means, x.dtype, per_row.clone()),
        rounded(scales, x.dtype, per_row),
    ])
}

/// The positions of `output_mask`: which of the results are wanted.
fn output_mask(call: &Call, position: usize) -> Result<[bool; 3], InferError> {
    let mask: Vec<i64> = call.ints(position, "output_mask")?.to_vec();
    match mask.as_slice() {
        [a, b, c] => Ok([*a != 0, *b != 0, *c != 0]),
        _ => Err(call.invalid("output_mask", "three truth values were expected")),
    }
}

fn infer_layer_norm_backward(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(1, "input")?;
    let outer = outer_rank(call, 2, &x)?;
    check_equal_shapes(call, "grad_out", &call.tensor_type(0, "grad_out")?.shape, &x.shape)?;
    let per_row = statistics(&x, outer);
    for (position, name) in [(3, "mean"), (4, "rstd")] {
        check_equal_shapes(call, name, &call.tensor_type(position, name)?.shape, &per_row.shape)?;
    }
    if let Some(weight) = call.opt_tensor(5, "weight")? {
        check_equal_shapes(call, "weight", &weight.ty.shape, &x.shape[outer..])?;
    }
    let mask = output_mask(call, 7)?;
    let result = contiguous_like(&x, x.dtype, x.shape.iter().copied());
    let parameter = contiguous_like(&x, x.dtype, x.shape[outer..].iter().copied());
    Ok(vec![mask[0].then_some(result), mask[1].then(|| parameter.clone()), mask[2].then_some(parameter)])
}

fn eval_layer_norm_backward(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let (grad, x) = (e.tensor(0, "grad_out")?, e.tensor(1, "input")?);
    let outer = outer_rank(&e.call, 2, &e.call.tensor_type(1, "input")?)?;
    let (means, scales) = (floats(e.tensor(3, "mean")?), floats(e.tensor(4, "rstd")?));
    let width: usize = x.shape[outer..].iter().product();
    let weight = per_element(e, 5, "weight", width, 1.0)?;
    let (mut grads, mut weights, mut biases) = (Vec::new(), vec![0.0; width], vec![0.0; width]);
    for (row, (grad, x)) in floats(grad).chunks(width.max(1)).zip(floats(x).chunks(width.max(1))).enumerate()
    {
        let normal: Vec<f64> = x.iter().map(|v| (v - means[row]) * scales[row]).collect();
        let scaled: Vec<f64> = grad.iter().zip(&weight).map(|(g, w)| g * w).collect();
        let total: f64 = scaled.iter().sum::<f64>() / width as f64;
        let along: f64 = scaled.iter().zip(&normal).map(|(g, n)| g * n).sum::<f64>() / width as f64;
        for k in 0..width {
            grads.push(scales[row] * (scaled[k] - total - normal[k] * along));
            weights[k] += grad[k] * normal[k];
            biases[k] += grad[k];
        }
    }
    let parameter = x.shape[outer..].to_vec();
    masked(
        output_mask(&e.call, 7)?,
        [
            rounded(grads, x.dtype, x.shape.clone()),
            rounded(weights, x.dtype, parameter.clone()),
            rounded(biases, x.dtype, parameter),
        ],
    )
}

/// Results that are not wanted are empty tensors, so that positions stay.
pub(super) fn masked(mask: [bool; 3], results: [HostTensor; 3]) -> Result<Vec<HostTensor>, Fault> {
    let empty = |t: HostTensor| HostTensor { shape: vec![0], data: Vec::new(), ..t };
    Ok(results.into_iter().zip(mask).map(|(t, wanted)| if wanted { t } else { empty(t) }).collect())
}

fn infer_group_norm(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(0, "input")?;
    floats_only(call, x.dtype)?;
    let (batch, channels, groups) = (call.size(3, "N")?, call.size(4, "C")?, call.int(6, "group")?);
    let refused = || call.invalid("group", format!("{channels} channels don't split into {groups} groups"));
    if groups < 1 {
        return Err(refused());
    }
    call.require_equal(channels.modulo(Size::from(groups)), Size::ZERO, refused)?;
    call.scalar(7, "eps")?;
    call.require_equal(batch * channels * call.size(5, "HxW")?, x.numel(), || {
        call.invalid("input", "it must have N*C*HxW elements")
    })?;
    check_parameters(call, channels)?;
    let result = TensorType { strides: suggested_strides(&x, &x.shape), ..x.clone() };
    let per_group = contiguous_like(&x, x.dtype, [batch, Size::from(groups)]);
    Ok(vec![Some(result), Some(per_group.clone()), Some(per_group)])
}

fn eval_group_norm(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let x = e.tensor(0, "input")?;
    let per_group = e.shape(1)?;
    let channels = super::view::position(e.call.size(4, "C")?)?;
    let (weight, bias) =
        (per_element(e, 1, "weight", channels, 1.0)?, per_element(e, 2, "bias", channels, 0.0)?);
    let eps = e.call.scalar(7, "eps")?.to_f64();
    let inner = x.data.len() / (per_group[0] * channels).max(1);
    let width = inner * channels / per_group[1];
    let (mut values, mut means, mut scales) = (Vec::new(), Vec::new(), Vec::new());
    for (row, group) in floats(x).chunks(width.max(1)).enumerate() {
        let (mean, squares) = moments(group);
        let scale = 1.0 / (squares / width as f64 + eps).sqrt();
        let first = row % per_group[1] * (channels / per_group[1]);
        values.extend(group.iter().enumerate().map(|(k, v)| {
            let channel = first + k / inner;
            (v - mean) * scale * weight[channel] + bias[channel]
        }));
        means.push(mean);
        scales.push(scale);
    }
    Ok(vec![
        rounded(values, x.dtype, x.shape.clone()),
        rounded(means, x.dtype, per_group.clone()),
        rounded(scales, x.dtype, per_group),
    ])
}

/// Fails unless weight and bias have one number for each channel.
fn check_parameters(call: &Call, channels: Size) -> Result<(), InferError> {
    for (position, name) in [(1, "weight"), (2, "bias")] {
        if let Some(t) = call.opt_tensor(position, name)? {
            check_equal_shapes(call, name, &t.ty.shape, &[channels])?;
        }
    }
    Ok(())
}

/// The type of one number for each channel; statistics of narrow floats are kept in f32.
fn per_channel(call: &Call, x: &TensorType) -> Result<TensorType, InferError> {
    floats_only(call, x.dtype)?;
    let Some(channels) = x.shape.get(1) else {
        return Err(call.invalid("input", "at least 2 dimensions were expected"));
    };
    check_parameters(call, *channels)?;
    let dtype = match call.opt_tensor(3, "running_mean")? {
        Some(running) => running.ty.dtype,
        None => x.dtype.compute(),
    };
    Ok(contiguous_like(x, dtype, [*channels]))
}

fn batch_norm_result(x: &TensorType) -> TensorType {
    TensorType { strides: preserved_strides(x), ..x.clone() }
}

fn infer_batch_norm_inference(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(0, "input")?;
    let channels = per_channel(call, &x)?;
    let empty = contiguous_like(&x, channels.dtype, [Size::ZERO]);
    for (position, name) in [(3, "running_mean"), (4, "running_var")] {
        check_equal_shapes(call, name, &call.tensor_type(position, name)?.shape, &channels.shape)?;
    }
    Ok(vec![Some(batch_norm_result(&x)), Some(empty.clone()), Some(empty)])
}

/// `(x - mean)·scale·weight + bias` by channel.
fn normalized(e: &EvalCall, means: &[f64], scales: &[f64]) -> Result<HostTensor, Fault> {
    let x = e.tensor(0, "input")?;
    let count = means.len();
    let (weight, bias) = (per_element(e, 1, "weight", count, 1.0)?, per_element(e, 2, "bias", count, 0.0)?);
    HostTensor::build(x.dtype, &x.shape, |index| {
        let c = index[1];
        Ok(stored((x.at(index).to_f64() - means[c]) * scales[c] * weight[c] + bias[c], x.dtype))
    })
}

fn eval_batch_norm_inference(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let eps = e.call.scalar(6, "eps")?.to_f64();
    let means = floats(e.tensor(3, "running_mean")?);
    let scales: Vec<f64> =
        floats(e.tensor(4, "running_var")?).iter().map(|v| 1.0 / (v + eps).sqrt()).collect();
    let empty = HostTensor { dtype: e.result(1)?.dtype, shape: vec![0], data: Vec::new() };
    Ok(vec![normalized(e, &means, &scales)?, empty.clone(), empty])
}

fn infer_batch_norm(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(0, "input")?;
    let channels = per_channel(call, &x)?;
    for (position, name) in [(3, "running_mean"), (4, "running_var")] {
        check_equal_shapes(call, name, &call.tensor_type(position, name)?.shape, &channels.shape)?;
    }
    let saved = match call.bool_or(5, "training", false)? {
        true => channels.clone(),
        false => contiguous_like(&x, channels.dtype, [Size::ZERO]),
    };
    Ok(vec![
        Some(batch_norm_result(&x)),
        Some(saved.clone()),
        Some(saved),
        Some(channels.clone()),
        Some(channels),
    ])
}

/// Mean and sum of squared differences from it for each channel, and the number of elements of one.
fn channel_moments(x: &HostTensor) -> (Vec<(f64, f64)>, usize) {
    let (outer, channels, inner) = x.around(1);
    let values = floats(x);
    let of_channel = |c: usize| -> Vec<f64> {
        (0..outer * inner).map(|k| values[(k / inner * channels + c) * inner + k % inner]).collect()
    };
    ((0..channels).map(|c| moments(&of_channel(c))).collect(), outer * inner)
}

fn eval_batch_norm(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let (running_mean, running_var) = (e.tensor(3, "running_mean")?, e.tensor(4, "running_var")?);
    if !e.call.bool_or(5, "training", false)? {
        let eps = e.call.scalar(7, "eps")?.to_f64();
        let scales: Vec<f64> = floats(running_var).iter().map(|v| 1.0 / (v + eps).sqrt()).collect();
        let empty = HostTensor { dtype: running_mean.dtype, shape: vec![0], data: Vec::new() };
        let result = normalized(e, &floats(running_mean), &scales)?;
        return Ok(vec![result, empty.clone(), empty, running_mean.clone(), running_var.clone()]);
    }
    let (momentum, eps) = (e.call.scalar(6, "momentum")?.to_f64(), e.call.scalar(7, "eps")?.to_f64());
    let mut results = normalized_by_batch(e, eps)?;
    let (moments, count) = channel_moments(e.tensor(0, "input")?);
    let blend = |old: &HostTensor, new: &dyn Fn(&(f64, f64)) -> f64| {
        let values = floats(old).iter().zip(&moments).map(|(v, m)| v + momentum * (new(m) - v)).collect();
        rounded(values, old.dtype, old.shape.clone())
    };
    results.push(blend(running_mean, &|m| m.0));
    results.push(blend(running_var, &|m| m.1 / (count as f64 - 1.0)));
    Ok(results)
}

/// Result, means and reciprocal deviations of the batch.
fn normalized_by_batch(e: &EvalCall, eps: f64) -> Result<Vec<HostTensor>, Fault> {
    let (moments, count) = channel_moments(e.tensor(0, "input")?);
    let means: Vec<f64> = moments.iter().map(|m| m.0).collect();
    let scales: Vec<f64> = moments.iter().map(|m| 1.0 / (m.1 / count as f64 + eps).sqrt()).collect();
    let result = normalized(e, &means, &scales)?;
    let (dtype, shape) = (e.result(1)?.dtype, e.shape(1)?);
    Ok(vec![result, rounded(means, dtype, shape.clone()), rounded(scales, dtype, shape)])
}

fn infer_batch_norm_no_stats(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(0, "input")?;
    floats_only(call, x.dtype)?;
    let Some(channels) = x.shape.get(1) else {
        return Err(call.invalid("input", "at least 2 dimensions were expected"));
    };
    check_parameters(call, *channels)?;
    call.scalar(5, "eps")?;
    let saved = contiguous_like(&x, x.dtype.compute(), [*channels]);
    Ok(vec![Some(batch_norm_result(&x)), Some(saved.clone()), Some(saved)])
}

fn eval_batch_norm_no_stats(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    normalized_by_batch(e, e.call.scalar(5, "eps")?.to_f64())
}

fn infer_glu(call: &Call) -> Result<ResultTypes, InferError> {
    let mut x = call.tensor_type(0, "self")?;
    floats_only(call, x.dtype)?;
    let dim = super::view::existing_dim(call, call.dim_or(1, "dim", -1, x.rank())?, &x)?;
    let Some(half) = x.shape[dim].div_exact(Size::from(2)) else {
        return Err(call.invalid("self", format!("the extent {} is not even", x.shape[dim])));
    };
    x.shape[dim] = half;
    let strides = super::shape::iterator_strides(&x.shape, std::slice::from_ref(&x.strides));
    one(TensorType { strides, ..x })
}

fn eval_glu(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let x = e.tensor(0, "self")?;
    let dim = e.call.dim_or(1, "dim", -1, x.shape.len())?;
    let shape = e.shape(0)?;
    let result = HostTensor::build(x.dtype, &shape, |index| {
        let mut gate: smallvec::SmallVec<[usize; 6]> = smallvec::SmallVec::from_slice(index);
        gate[dim] += shape[dim];
        let open = 1.0 / (1.0 + (-x.at(&gate).to_f64()).exp());
        Ok(stored(x.at(index).to_f64() * open, x.dtype))
    })?;
    Ok(vec![result])
}
