//! Operators that make tensors from numbers: fills, ranges, identities, and the triangles of a matrix.

use super::call::{Call, KEYWORD, Operand};
use super::eval::{EvalCall, Fault};
use super::layout::formatted_strides;
use super::pointwise::as_element;
use super::promote::{DEFAULT_FLOAT, number_type};
use super::shape::{contiguous_like, dense_strides};
use super::{InferError, OpDef, ResultTypes, general, one};
use crate::dtype::{DType, Scalar};
use crate::graph::{Dims, TensorType};
use crate::interp::scalar;
use crate::interp::tensor::HostTensor;
use crate::size::Size;

pub(super) const OPS: &[OpDef] = &[
    general("aten.full.default", FULL, infer_full, eval_full),
    general("aten.full_like.default", FULL_LIKE, infer_like, eval_full),
    general("aten.new_full.default", NEW_FULL, infer_new, |e| filled(e, e.number(2, "fill_value")?)),
    general("aten.zeros.default", SIZED, infer_sized, eval_zeros),
    general("aten.ones.default", SIZED, infer_sized, eval_ones),
    general("aten.empty.memory_format", SIZED, infer_sized, eval_zeros),
    general("aten.zeros_like.default", LIKE, infer_like, eval_zeros),
    general("aten.ones_like.default", LIKE, infer_like, eval_ones),
    general("aten.empty_like.default", LIKE, infer_like, eval_zeros),
    general("aten.new_zeros.default", NEW, infer_new, eval_zeros),
    general("aten.new_ones.default", NEW, infer_new, eval_ones),
    general("aten.new_empty.default", NEW, infer_new, eval_zeros),
    general("aten.empty_permuted.default", PERMUTED, infer_permuted, eval_zeros),
    general("aten.empty_strided.default", STRIDED, infer_strided, eval_zeros),
    general("aten.new_empty_strided.default", NEW_STRIDED, infer_new_strided, eval_zeros),
    general("aten.scalar_tensor.default", SCALAR, infer_scalar_tensor, eval_scalar_tensor),
    general("aten.arange.default", ARANGE, infer_arange, eval_arange),
    general("aten.arange.start", ARANGE_START, infer_arange, eval_arange),
    general("aten.arange.start_step", ARANGE_STEP, infer_arange, eval_arange),
    general("prims.iota.default", IOTA, infer_iota, eval_iota),
    general("aten.linspace.default", LINSPACE, infer_linspace, eval_linspace),
    general("aten.eye.default", EYE, infer_eye, eval_eye),
    general("aten.eye.m", EYE_M, infer_eye, eval_eye),
    general("aten.tril.default", "self, diagonal", infer_triangle, eval_triangle),
    general("aten.triu.default", "self, diagonal", infer_triangle, eval_triangle),
];

const FULL: &str = "size, fill_value, *, dtype, layout, device, pin_memory, requires_grad";
const FULL_LIKE: &str =
    "self, fill_value, *, dtype, layout, device, pin_memory, requires_grad, memory_format";
const NEW_FULL: &str = "self, size, fill_value, *, dtype, layout, device, pin_memory";
const SIZED: &str = "size, *, dtype, layout, device, pin_memory, requires_grad, memory_format";
const LIKE: &str = "self, *, dtype, layout, device, pin_memory, requires_grad, memory_format";
const NEW: &str = "self, size, *, dtype, layout, device, pin_memory";
const PERMUTED: &str = "size, physical_layout, *, dtype, layout, device, pin_memory, requires_grad";
const STRIDED: &str = "size, stride, *, dtype, layout, device, pin_memory, requires_grad";
const NEW_STRIDED: &str = "self, size, stride, *, dtype, layout, device, pin_memory";
const SCALAR: &str = "s, *, dtype, layout, device, pin_memory";
const ARANGE: &str = "end, *, dtype, layout, device, pin_memory, requires_grad";
const ARANGE_START: &str = "start, end, *, dtype, layout, device, pin_memory, requires_grad";
const ARANGE_STEP: &str = "start, end, step, *, dtype, layout, device, pin_memory, requires_grad";
const IOTA: &str = "length, *, start, step, dtype, device, requires_grad";
const LINSPACE: &str = "start, end, steps, *, dtype, layout, device, pin_memory, requires_grad";
const EYE: &str = "n, *, dtype, layout, device, pin_memory, requires_grad";
const EYE_M: &str = "n, m, *, dtype, layout, device, pin_memory, requires_grad";

/// A contiguous type of the element type and device that the call names.
fn made(call: &Call, shape: Dims, default: DType) -> Result<TensorType, InferError> {
    shape.iter().try_for_each(|extent| call.require_natural("size", *extent))?;
    let mut ty = TensorType::contiguous(call.opt_dtype(KEYWORD, "dtype")?.unwrap_or(default), shape);
    ty.device = call.opt_device()?.unwrap_or_default();
    Ok(ty)
}

/// The element type of a Python number or symbolic size, or of a tensor that stands for one.
fn operand_type(operand: &Operand) -> DType {
    match operand {
        Operand::Tensor(t) => t.ty.dtype,
        Operand::Scalar(number) => number_type(*number),
        Operand::Size(_) => DType::I64,
    }
}

fn infer_full(call: &Call) -> Result<ResultTypes, InferError> {
    let default = operand_type(&call.operand(1, "fill_value")?);
    one(made(call, call.sizes(0, "size")?, default)?)
}

fn infer_sized(call: &Call) -> Result<ResultTypes, InferError> {
    let mut ty = made(call, call.sizes(0, "size")?, DEFAULT_FLOAT)?;
    ty.strides = formatted_strides(call, &ty, "contiguous_format")?;
    one(ty)
}

fn infer_like(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(0, "self")?;
    let strides = formatted_strides(call, &x, "preserve_format")?;
    let dtype = call.opt_dtype(KEYWORD, "dtype")?.unwrap_or(x.dtype);
    let device = call.opt_device()?.unwrap_or(x.device);
    one(TensorType { dtype, strides, device, ..x })
}

fn infer_new(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(0, "self")?;
    let mut ty = made(call, call.sizes(1, "size")?, x.dtype)?;
    ty.device = call.opt_device()?.unwrap_or(x.device);
    one(ty)
}

fn infer_permuted(call: &Call) -> Result<ResultTypes, InferError> {
    let mut ty = made(call, call.sizes(0, "size")?, DEFAULT_FLOAT)?;
    let layout = call.opt_dims(1, "physical_layout", ty.rank())?.unwrap_or_default();
    if layout.len() != ty.rank() {
        let message = format!("{} dimensions are named, the size has {}", layout.len(), ty.rank());
        return Err(call.invalid("physical_layout", message));
    }
    ty.strides = dense_strides(&ty.shape, layout.iter().rev().copied());
    one(ty)
}

fn with_strides(call: &Call, mut ty: TensorType, position: usize) -> Result<ResultTypes, InferError> {
    ty.strides = call.sizes(position, "stride")?;
    if ty.strides.len() != ty.rank() {
        let message = format!("{} strides for {} extents", ty.strides.len(), ty.rank());
        return Err(call.invalid("stride", message));
    }
    one(ty)
}

fn infer_strided(call: &Call) -> Result<ResultTypes, InferError> {
    with_strides(call, made(call, call.sizes(0, "size")?, DEFAULT_FLOAT)?, 1)
}

fn infer_new_strided(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(0, "self")?;
    let mut ty = made(call, call.sizes(1, "size")?, x.dtype)?;
    ty.device = call.opt_device()?.unwrap_or(x.device);
    with_strides(call, ty, 2)
}

fn filled(e: &EvalCall, value: Scalar) -> Result<Vec<HostTensor>, Fault> {
    let dtype = e.result(0)?.dtype;
    Ok(vec![HostTensor::filled(dtype, &e.shape(0)?, as_element(value, dtype))])
}

fn eval_full(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    filled(e, e.number(1, "fill_value")?)
}

/// Also the value of memory without a value: what a program reads there is undefined, and zero is as good as any.
fn eval_zeros(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    filled(e, Scalar::Int(0))
}

fn eval_ones(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    filled(e, Scalar::Int(1))
}

fn infer_scalar_tensor(call: &Call) -> Result<ResultTypes, InferError> {
    call.operand(0, "s")?;
    one(made(call, Dims::new(), DEFAULT_FLOAT)?)
}

fn eval_scalar_tensor(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    filled(e, e.number(0, "s")?)
}

/// Start, end and step of a range.
fn bounds(call: &Call) -> Result<(Operand, Operand, Operand), InferError> {
    let number = |value| Operand::Scalar(Scalar::Int(value));
    Ok(match call.op {
        "aten.arange.default" => (number(0), call.operand(0, "end")?, number(1)),
        _ => {
            let step = if call.op == "aten.arange.start" { None } else { call.opt_operand(2, "step")? };
            (call.operand(0, "start")?, call.operand(1, "end")?, step.unwrap_or(number(1)))
        }
    })
}

fn as_size(operand: &Operand) -> Option<Size> {
    match operand {
        Operand::Size(s) => Some(*s),
        Operand::Scalar(Scalar::Int(v)) => Some(Size::from(*v)),
        _ => None,
    }
}

fn infer_arange(call: &Call) -> Result<ResultTypes, InferError> {
    let (start, end, step) = bounds(call)?;
    let (length, default) = match (as_size(&start), as_size(&end), as_size(&step)) {
        (Some(start), Some(end), Some(step)) => (integer_steps(call, start, end, step)?, DType::I64),
        _ => (float_steps(call, &start, &end, &step)?, DEFAULT_FLOAT),
    };
    one(made(call, Dims::from_slice(&[length]), default)?)
}

fn integer_steps(call: &Call, start: Size, end: Size, step: Size) -> Result<Size, InferError> {
    let Some(step) = step.as_const() else {
        return Err(call.invalid("step", "a constant was expected"));
    };
    if step == 0 {
        return Err(call.invalid("step", "0 leads nowhere"));
    }
    let (span, step) = if step > 0 { (end - start, step) } else { (start - end, step.saturating_neg()) };
    call.require_at_most(Size::ZERO, span, || {
        call.invalid("end", format!("{end} can't be reached from {start} in this direction"))
    })?;
    Ok(span.ceil_div(Size::from(step)))
}

fn float_steps(call: &Call, start: &Operand, end: &Operand, step: &Operand) -> Result<Size, InferError> {
    let number = |name: &str, operand: &Operand| match operand {
        Operand::Scalar(number) => Ok(number.to_f64()),
        _ => Err(call.invalid(name, "a constant number was expected beside floats")),
    };
    let (start, end, step) = (number("start", start)?, number("end", end)?, number("step", step)?);
    let steps = ((end - start) / step).ceil();
    if step == 0.0 || !(0.0..9e15).contains(&steps) {
        let message = format!("{end} can't be reached from {start} in steps of {step}");
        return Err(call.invalid("end", message));
    }
    Ok(Size::from(steps as i64))
}

fn eval_arange(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let (start, _, step) = bounds(&e.call)?;
    let number = |operand: Operand| match operand {
        Operand::Scalar(number) => Ok(number),
        Operand::Size(size) => Err(Fault::Unbound(size)),
        Operand::Tensor(_) => Err(e.call.invalid("start", "a number was expected").into()),
    };
    progression(e, number(start)?, number(step)?)
}

/// `start + k·step` in the type of the result; floats in f64, rounded once.
fn progression(e: &EvalCall, start: Scalar, step: Scalar) -> Result<Vec<HostTensor>, Fault> {
    let dtype = e.result(0)?.dtype;
    let result = HostTensor::build(dtype, &e.shape(0)?, |index| {
        let k = index[0];
        Ok(match (start, step) {
            (Scalar::Int(start), Scalar::Int(step)) => {
                let value = start.wrapping_add(step.wrapping_mul(k as i64));
                scalar::cast(Scalar::Int(value), DType::I64, dtype)
            }
            _ => as_element(Scalar::Float(start.to_f64() + step.to_f64() * k as f64), dtype),
        })
    })?;
    Ok(vec![result])
}

fn infer_iota(call: &Call) -> Result<ResultTypes, InferError> {
    let length = call.size(0, "length")?;
    call.size_or(KEYWORD, "start", Size::ZERO)?;
    call.size_or(KEYWORD, "step", Size::ONE)?;
    one(made(call, Dims::from_slice(&[length]), DType::I64)?)
}

fn eval_iota(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let (start, step) = (e.call.int_or(KEYWORD, "start", 0)?, e.call.int_or(KEYWORD, "step", 1)?);
    progression(e, Scalar::Int(start), Scalar::Int(step))
}

fn infer_linspace(call: &Call) -> Result<ResultTypes, InferError> {
    call.scalar(0, "start")?;
    call.scalar(1, "end")?;
    one(made(call, Dims::from_slice(&[call.size(2, "steps")?]), DEFAULT_FLOAT)?)
}

fn eval_linspace(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let (start, end) = (e.call.scalar(0, "start")?.to_f64(), e.call.scalar(1, "end")?.to_f64());
    let dtype = e.result(0)?.dtype;
    let shape = e.shape(0)?;
    let last = shape[0].saturating_sub(1).max(1) as f64;
    // From the nearer end, so that the last element is `end` exactly.
    let value = |k: usize| match (k as f64) * 2.0 < last {
        true => start + (end - start) * (k as f64 / last),
        false => end - (end - start) * ((last - k as f64) / last),
    };
    let first = |k: usize| if shape[0] == 1 { start } else { value(k) };
    let result =
        HostTensor::build(dtype, &shape, |index| Ok(as_element(Scalar::Float(first(index[0])), dtype)))?;
    Ok(vec![result])
}

fn infer_eye(call: &Call) -> Result<ResultTypes, InferError> {
    let rows = call.size(0, "n")?;
    let columns = if call.op == "aten.eye.m" { call.size(1, "m")? } else { rows };
    one(made(call, Dims::from_slice(&[rows, columns]), DEFAULT_FLOAT)?)
}

fn eval_eye(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let dtype = e.result(0)?.dtype;
    let result = HostTensor::build(dtype, &e.shape(0)?, |index| {
        Ok(scalar::cast(Scalar::Bool(index[0] == index[1]), DType::Bool, dtype))
    })?;
    Ok(vec![result])
}

fn infer_triangle(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(0, "self")?;
    if x.rank() < 2 {
        let message = format!("at least 2 dimensions were expected, it has {}", x.rank());
        return Err(call.invalid("self", message));
    }
    call.size_or(1, "diagonal", Size::ZERO)?;
    one(contiguous_like(&x, x.dtype, x.shape.iter().copied()))
}

fn eval_triangle(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let x = e.tensor(0, "self")?;
    let diagonal = e.call.int_or(1, "diagonal", 0)?;
    let lower = e.call.op == "aten.tril.default";
    let result = HostTensor::build(x.dtype, &x.shape, |index| {
        let [.., row, column] = index else { return Ok(scalar::zero(x.dtype)) };
        let right = (*column as i64).saturating_sub(*row as i64);
        let kept = if lower { right <= diagonal } else { right >= diagonal };
        Ok(if kept { x.at(index) } else { scalar::zero(x.dtype) })
    })?;
    Ok(vec![result])
}
