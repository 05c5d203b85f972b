//! Operators along one dimension that keep its extent: running sums and products, sorting, the largest few.

use std::cmp::Ordering;

use super::call::{Call, KEYWORD};
use super::eval::{EvalCall, Fault};
use super::promote::accumulated;
use super::reduction::stored;
use super::shape::{contiguous_like, preserved_strides};
use super::view::position;
use super::{InferError, OpDef, ResultTypes, general, one};
use crate::dtype::{DType, Scalar};
use crate::graph::TensorType;
use crate::interp::scalar;
use crate::interp::tensor::HostTensor;
use crate::nest::BinaryOp;
use crate::size::Size;

pub(super) const OPS: &[OpDef] = &[
    general("aten.cumsum.default", "self, dim, *, dtype", infer_running, |e| eval_running(e, BinaryOp::Add)),
    general("aten.cumprod.default", "self, dim, *, dtype", infer_running, |e| eval_running(e, BinaryOp::Mul)),
    general("aten.logcumsumexp.default", "self, dim", infer_log_running, eval_log_running),
    general("aten.cummax.default", "self, dim", infer_running_extreme, eval_running_extreme),
    general("aten.cummin.default", "self, dim", infer_running_extreme, eval_running_extreme),
    general("aten.sort.default", "self, dim, descending", infer_sort, eval_sort),
    general("aten.sort.stable", "self, *, stable, dim, descending", infer_sort, eval_sort),
    general("aten.argsort.default", "self, dim, descending", infer_argsort, eval_argsort),
    general("aten.topk.default", "self, k, dim, largest, sorted", infer_topk, eval_topk),
];

/// Calls `line` with the elements of each line along `dim`; it returns a line of the result.
fn along<T: Copy>(
    x: &HostTensor,
    dim: usize,
    length: usize,
    empty: T,
    mut line: impl FnMut(&[Scalar]) -> Result<Vec<T>, Fault>,
) -> Result<Vec<T>, Fault> {
    let (outer, extent, inner) = x.around(dim);
    let mut made = vec![empty; outer * length * inner];
    for o in 0..outer {
        for i in 0..inner {
            let values: Vec<Scalar> = (0..extent).map(|k| x.data[(o * extent + k) * inner + i]).collect();
            for (k, value) in line(&values)?.into_iter().enumerate() {
                made[(o * length + k) * inner + i] = value;
            }
        }
    }
    Ok(made)
}

fn infer_running(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(0, "self")?;
    call.dim(1, "dim", x.rank())?;
    let dtype = call.opt_dtype(KEYWORD, "dtype")?.unwrap_or(accumulated(x.dtype));
    one(contiguous_like(&x, dtype, x.shape.iter().copied()))
}

fn eval_running(e: &EvalCall, op: BinaryOp) -> Result<Vec<HostTensor>, Fault> {
    let (x, dtype) = (e.tensor(0, "self")?, e.result(0)?.dtype);
    let dim = e.call.dim(1, "dim", x.shape.len())?;
    let within = if dtype.is_float() { DType::F64 } else { dtype };
    let data = along(x, dim, x.around(dim).1, scalar::zero(dtype), |values| {
        let mut total = None;
        let mut line = Vec::new();
        for value in values {
            let value = scalar::cast(scalar::cast(*value, x.dtype, dtype), dtype, within);
            let next = match total {
                None => value,
                Some(total) => scalar::binary(op, within, total, value)?,
            };
            total = Some(next);
            line.push(if dtype.is_float() { stored(next.to_f64(), dtype) } else { next });
        }
        Ok(line)
    })?;
    Ok(vec![HostTensor { dtype, shape: x.shape.clone(), data }])
}

fn infer_log_running(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(0, "self")?;
    call.dim(1, "dim", x.rank())?;
    if !x.dtype.is_float() {
        return Err(InferError::DType { op: call.op.to_owned(), expected: "floats", found: x.dtype });
    }
    one(contiguous_like(&x, x.dtype, x.shape.iter().copied()))
}

fn eval_log_running(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let x = e.tensor(0, "self")?;
    let dim = e.call.dim(1, "dim", x.shape.len())?;
    let data = along(x, dim, x.around(dim).1, scalar::zero(x.dtype), |values| {
        let mut line = Vec::new();
        for end in 1..=values.len() {
            let largest = values[..end].iter().map(|v| v.to_f64()).fold(f64::NEG_INFINITY, f64::max);
            let shift = if largest.is_finite() { largest } else { 0.0 };
            let total: f64 = values[..end].iter().map(|v| (v.to_f64() - shift).exp()).sum();
            line.push(stored(total.ln() + shift, x.dtype));
        }
        Ok(line)
    })?;
    Ok(vec![HostTensor { data, ..x.clone() }])
}

fn values_and_positions(x: &TensorType) -> ResultTypes {
    let shape = || x.shape.iter().copied();
    vec![Some(contiguous_like(x, x.dtype, shape())), Some(contiguous_like(x, DType::I64, shape()))]
}

fn infer_running_extreme(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(0, "self")?;
    call.dim(1, "dim", x.rank())?;
    Ok(values_and_positions(&x))
}

fn eval_running_extreme(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let x = e.tensor(0, "self")?;
    let dim = e.call.dim(1, "dim", x.shape.len())?;
    let wanted = if e.call.op == "aten.cummax.default" { Ordering::Greater } else { Ordering::Less };
    let pairs = along(x, dim, x.around(dim).1, (scalar::zero(x.dtype), 0), |values| {
        let mut best = 0;
        Ok((0..values.len())
            .map(|k| {
                // The last of equals, and NaN before all others.
                let nan = is_nan(values[k]);
                let order = order(values[k], values[best]);
                if nan || (!is_nan(values[best]) && (order == wanted || order == Ordering::Equal)) {
                    best = k;
                }
                (values[best], best)
            })
            .collect())
    })?;
    Ok(split(x, x.shape.clone(), pairs))
}

/// Values and positions as two tensors.
fn split(x: &HostTensor, shape: Vec<usize>, pairs: Vec<(Scalar, usize)>) -> Vec<HostTensor> {
    let (data, positions) = pairs.into_iter().map(|(v, k)| (v, Scalar::Int(k as i64))).unzip();
    vec![
        HostTensor { dtype: x.dtype, shape: shape.clone(), data },
        HostTensor { dtype: DType::I64, shape, data: positions },
    ]
}

fn is_nan(value: Scalar) -> bool {
    matches!(value, Scalar::Float(v) if v.is_nan())
}

/// NaN is larger than all numbers.
fn order(a: Scalar, b: Scalar) -> Ordering {
    match (a, b) {
        (Scalar::Float(a), Scalar::Float(b)) => {
            a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
        }
        _ => a.to_i64().cmp(&b.to_i64()),
    }
}

/// Elements with their positions, sorted stably.
fn sorted(values: &[Scalar], descending: bool) -> Vec<(Scalar, usize)> {
    let mut pairs: Vec<(Scalar, usize)> = values.iter().copied().zip(0..).collect();
    if descending {
        pairs.sort_by(|a, b| order(b.0, a.0));
    } else {
        pairs.sort_by(|a, b| order(a.0, b.0));
    }
    pairs
}

/// Positions of `dim` and `descending` in the operators that sort.
fn sort_arguments(call: &Call, rank: usize) -> Result<(usize, bool), InferError> {
    let keywords = call.op == "aten.sort.stable";
    let at = |position| if keywords { KEYWORD } else { position };
    Ok((call.dim_or(at(1), "dim", -1, rank)?, call.bool_or(at(2), "descending", false)?))
}

fn infer_sort(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(0, "self")?;
    sort_arguments(call, x.rank())?;
    let values = TensorType { strides: preserved_strides(&x), ..x };
    let positions = TensorType { dtype: DType::I64, ..values.clone() };
    Ok(vec![Some(values), Some(positions)])
}

fn eval_sort(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let x = e.tensor(0, "self")?;
    let (dim, descending) = sort_arguments(&e.call, x.shape.len())?;
    let pairs =
        along(x, dim, x.around(dim).1, (scalar::zero(x.dtype), 0), |values| Ok(sorted(values, descending)))?;
    Ok(split(x, x.shape.clone(), pairs))
}

fn infer_argsort(call: &Call) -> Result<ResultTypes, InferError> {
    Ok(vec![infer_sort(call)?.remove(1)])
}

fn eval_argsort(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    Ok(vec![eval_sort(e)?.remove(1)])
}

fn infer_topk(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(0, "self")?;
    let (k, dim) = (call.size(1, "k")?, call.dim_or(2, "dim", -1, x.rank())?);
    let extent = x.shape.get(dim).copied().unwrap_or(Size::ONE);
    for (low, high) in [(Size::ZERO, k), (k, extent)] {
        call.require_at_most(low, high, || {
            call.invalid("k", format!("{k} is out of range for dimension {dim} of extent {extent}"))
        })?;
    }
    let mut chosen = x;
    if let Some(extent) = chosen.shape.get_mut(dim) {
        *extent = k;
    }
    Ok(values_and_positions(&chosen))
}

fn eval_topk(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let x = e.tensor(0, "self")?;
    let dim = e.call.dim_or(2, "dim", -1, x.shape.len())?;
    let (k, largest) = (position(e.call.size(1, "k")?)?, e.call.bool_or(3, "largest", true)?);
    let length = if x.shape.is_empty() { 1 } else { k };
    let pairs = along(x, dim, length, (scalar::zero(x.dtype), 0), |values| {
        let mut pairs = sorted(values, largest);
        pairs.truncate(length);
        Ok(pairs)
    })?;
    Ok(split(x, e.shape(0)?, pairs))
}
