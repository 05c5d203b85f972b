//! PyTorch's type promotion: tensors with dimensions are stronger than those without, and these are stronger
//! than Python numbers; a weaker operand only matters where it is of a higher kind (float over integer over
//! truth value).

use super::call::{Call, Operand};
use super::error::InferError;
use crate::dtype::{DType, Scalar};
use crate::graph::Device;

/// Type of floats that come from nowhere else: PyTorch's default dtype.
pub const DEFAULT_FLOAT: DType = DType::F32;

/// The smallest type that holds both, as PyTorch's `promote_types`; `None` for pairs that PyTorch refuses
/// (8-bit floats and wide unsigned integers with most others).
pub fn promote_types(a: DType, b: DType) -> Option<DType> {
    if a == b {
        return Some(a);
    }
    let f8 = |d| matches!(d, DType::F8E4M3FN | DType::F8E5M2);
    if f8(a) || f8(b) {
        return None;
    }
    if a == DType::Bool {
        return Some(b);
    }
    if b == DType::Bool {
        return Some(a);
    }
    if a.is_complex() || b.is_complex() {
        let either = |types: &[DType]| types.contains(&a) || types.contains(&b);
        return Some(if either(&[DType::C128, DType::F64]) {
            DType::C128
        } else if either(&[DType::C64, DType::F32, DType::BF16]) {
            DType::C64
        } else {
            DType::C32
        });
    }
    match (a.is_float(), b.is_float()) {
        (true, false) => return Some(a),
        (false, true) => return Some(b),
        // f16 and bf16 have no common type but f32.
        (true, true) => {
            return Some(if a == DType::F64 || b == DType::F64 { DType::F64 } else { DType::F32 });
        }
        (false, false) => {}
    }
    match (a.is_signed_int(), b.is_signed_int()) {
        (true, true) => Some(if a.bytes() > b.bytes() { a } else { b }),
        (true, false) => promote_unsigned(a, b),
        (false, true) => promote_unsigned(b, a),
        (false, false) => None,
    }
}

fn promote_unsigned(signed: DType, unsigned: DType) -> Option<DType> {
    match (signed, unsigned) {
        (DType::I8, DType::U8) => Some(DType::I16),
        (_, DType::U8) => Some(signed),
        _ => None,
    }
}

/// `promote_types` of a stronger and a weaker operand: the weaker one's type only counts where its kind is
/// higher.
fn combine(stronger: Option<DType>, weaker: Option<DType>) -> Result<Option<DType>, (DType, DType)> {
    let (Some(s), Some(w)) = (stronger, weaker) else { return Ok(stronger.or(weaker)) };
    if s.is_complex() {
        return Ok(Some(s));
    }
    if s.is_float() {
        return Ok(Some(match (s, w.is_complex()) {
            (DType::F64, true) => DType::C128,
            (DType::F16, true) => DType::C32,
            (_, true) => DType::C64,
            _ => s,
        }));
    }
    if s == DType::Bool || w.is_float() || w.is_complex() {
        return promote_types(s, w).map(Some).ok_or((s, w));
    }
    Ok(Some(s))
}

/// The common type of operands, as PyTorch's `result_type`.
pub fn result_type(call: &Call, operands: &[&Operand]) -> Result<DType, InferError> {
    let mut with_dims = None;
    let mut without_dims = None;
    let mut numbers = None;
    let error = |(left, right)| InferError::Promotion { op: call.op.to_owned(), left, right };
    for operand in operands {
        let (slot, dtype) = match operand {
            Operand::Tensor(t) if t.ty.shape.is_empty() => (&mut without_dims, t.ty.dtype),
            Operand::Tensor(t) => (&mut with_dims, t.ty.dtype),
            Operand::Scalar(Scalar::Float(_)) => (&mut numbers, DEFAULT_FLOAT),
            Operand::Scalar(Scalar::Bool(_)) => (&mut numbers, DType::Bool),
            Operand::Scalar(Scalar::Int(_)) | Operand::Size(_) => (&mut numbers, DType::I64),
        };
        *slot = Some(match *slot {
            None => dtype,
            Some(before) => promote_types(before, dtype).ok_or_else(|| error((before, dtype)))?,
        });
    }
    let weak = combine(without_dims, numbers).map_err(error)?;
    // Operators have at least one operand.
    Ok(combine(with_dims, weak).map_err(error)?.unwrap_or(DEFAULT_FLOAT))
}

/// Whether an operator rounds a Python number to its type before it computes. PyTorch makes the number a tensor of
/// that type, except where it multiplies or divides by it, and where it is a parameter of a function.
pub fn rounds_number(op: &str, position: usize) -> bool {
    let (name, _) = op.strip_prefix("aten.").and_then(|rest| rest.split_once('.')).unwrap_or((op, ""));
    match name {
        "add" | "sub" | "rsub" | "fmod" | "remainder" | "pow" | "xlogy" => true,
        "div" | "true_divide" | "floor_divide" => position == 0,
        _ => false,
    }
}

/// Whether an operand keeps its value in f32 although the operator's type is narrower: PyTorch doesn't round the
/// tensor without dimensions that products multiply and quotients divide by.
pub fn keeps_wide(op: &str, position: usize, operand: &Operand, common: DType) -> bool {
    let scales = matches!(
        op,
        "aten.mul.Tensor"
            | "aten.div.Tensor"
            | "aten.div.Tensor_mode"
            | "aten.true_divide.Tensor"
            | "aten.floor_divide.default"
    );
    let narrow = matches!(common, DType::F16 | DType::BF16);
    match operand {
        Operand::Tensor(t) if scales && narrow && position == 1 => {
            t.ty.shape.is_empty()
                && t.ty.device == Device::Cpu
                && t.ty.dtype != common
                && !t.ty.dtype.is_complex()
        }
        _ => false,
    }
}

/// The type that an operator computes in which needs floats: integers and truth values become the default float.
pub const fn to_float(dtype: DType) -> DType {
    if dtype.is_float() || dtype.is_complex() { dtype } else { DEFAULT_FLOAT }
}

/// The type of a sum or product: integers and truth values are added up as i64.
pub const fn accumulated(dtype: DType) -> DType {
    if dtype.is_float() || dtype.is_complex() { dtype } else { DType::I64 }
}

/// The type that a Python number has as a tensor of its own.
pub const fn number_type(number: Scalar) -> DType {
    match number {
        Scalar::Float(_) => DEFAULT_FLOAT,
        Scalar::Int(_) => DType::I64,
        Scalar::Bool(_) => DType::Bool,
    }
}
