//! Arithmetic, comparisons, logic, rounding and elementary functions, element by element.

use loafc_ir::dtype::{DType, Scalar};
use loafc_ir::interp::scalar::{highest_finite, saturate};
use loafc_ir::nest::{BinaryOp, UnaryOp};
use loafc_ir::ops::promote::{keeps_wide, result_type, rounds_number};
use loafc_ir::ops::{Call, Operand};

use crate::expr::{Expr, ExprId};
use crate::lowering::{Lowered, Lowering, Refusal};
use crate::table::{Entry, compute};

type Cx<'a> = Lowering<'a>;

pub(super) static TABLE: &[Entry] = &[
    compute("aten.neg.default", |cx, c| unary(cx, c, UnaryOp::Neg)),
    compute("aten.abs.default", |cx, c| unary(cx, c, UnaryOp::Abs)),
    compute("aten.sign.default", |cx, c| unary(cx, c, UnaryOp::Sign)),
    compute("aten.sgn.default", |cx, c| unary(cx, c, UnaryOp::Sign)),
    compute("aten.sqrt.default", |cx, c| unary(cx, c, UnaryOp::Sqrt)),
    compute("aten.rsqrt.default", |cx, c| unary(cx, c, UnaryOp::Rsqrt)),
    compute("aten.reciprocal.default", |cx, c| unary(cx, c, UnaryOp::Reciprocal)),
    compute("aten.exp.default", |cx, c| unary(cx, c, UnaryOp::Exp)),
    compute("aten.exp2.default", |cx, c| unary(cx, c, UnaryOp::Exp2)),
    compute("aten.expm1.default", |cx, c| unary(cx, c, UnaryOp::Expm1)),
    compute("aten.log.default", |cx, c| unary(cx, c, UnaryOp::Log)),
    compute("aten.log2.default", |cx, c| unary(cx, c, UnaryOp::Log2)),
    compute("aten.log10.default", |cx, c| unary(cx, c, UnaryOp::Log10)),
    compute("aten.log1p.default", |cx, c| unary(cx, c, UnaryOp::Log1p)),
    compute("aten.sin.default", |cx, c| unary(cx, c, UnaryOp::Sin)),
    compute("aten.cos.default", |cx, c| unary(cx, c, UnaryOp::Cos)),
    compute("aten.tan.default", |cx, c| unary(cx, c, UnaryOp::Tan)),
    compute("aten.asin.default", |cx, c| unary(cx, c, UnaryOp::Asin)),
    compute("aten.acos.default", |cx, c| unary(cx, c, UnaryOp::Acos)),
    compute("aten.atan.default", |cx, c| unary(cx, c, UnaryOp::Atan)),
    compute("aten.sinh.default", |cx, c| unary(cx, c, UnaryOp::Sinh)),
    compute("aten.cosh.default", |cx, c| unary(cx, c, UnaryOp::Cosh)),
    compute("aten.tanh.default", |cx, c| unary(cx, c, UnaryOp::Tanh)),
    compute("aten.asinh.default", |cx, c| unary(cx, c, UnaryOp::Asinh)),
    compute("aten.acosh.default", |cx, c| unary(cx, c, UnaryOp::Acosh)),
    compute("aten.atanh.default", |cx, c| unary(cx, c, UnaryOp::Atanh)),
    compute("aten.erf.default", |cx, c| unary(cx, c, UnaryOp::Erf)),
    compute("aten.erfc.default", |cx, c| unary(cx, c, UnaryOp::Erfc)),
    compute("aten.erfinv.default", |cx, c| unary(cx, c, UnaryOp::Erfinv)),
    compute("aten.lgamma.default", |cx, c| unary(cx, c, UnaryOp::Lgamma)),
    compute("aten.digamma.default", |cx, c| unary(cx, c, UnaryOp::Digamma)),
    compute("aten.sigmoid.default", |cx, c| unary(cx, c, UnaryOp::Sigmoid)),
    compute("aten.floor.default", |cx, c| rounding(cx, c, UnaryOp::Floor)),
    compute("aten.ceil.default", |cx, c| rounding(cx, c, UnaryOp::Ceil)),
    compute("aten.trunc.default", |cx, c| rounding(cx, c, UnaryOp::Trunc)),
    compute("aten.fix.default", |cx, c| rounding(cx, c, UnaryOp::Trunc)),
    compute("aten.round.default", |cx, c| rounding(cx, c, UnaryOp::Round)),
    compute("aten.round.decimals", round_decimals),
    compute("aten.frac.default", frac),
    compute("aten.square.default", square),
    compute("aten.positive.default", identity),
    compute("aten.isnan.default", |cx, c| test(cx, c, UnaryOp::IsNan)),
    compute("aten.isinf.default", |cx, c| test(cx, c, UnaryOp::IsInf)),
    compute("aten.isfinite.default", is_finite),
    compute("aten.isposinf.default", |cx, c| is_infinity(cx, c, f64::INFINITY)),
    compute("aten.isneginf.default", |cx, c| is_infinity(cx, c, f64::NEG_INFINITY)),
    compute("aten.signbit.default", sign_bit),
    compute("aten.logical_not.default", logical_not),
    compute("aten.bitwise_not.default", |cx, c| unary(cx, c, UnaryOp::Not)),
    compute("aten.nan_to_num.default", nan_to_num),
    compute("aten.add.Tensor", |cx, c| add(cx, c, BinaryOp::Add)),
    compute("aten.add.Scalar", |cx, c| add(cx, c, BinaryOp::Add)),
    compute("aten.sub.Tensor", |cx, c| add(cx, c, BinaryOp::Sub)),
    compute("aten.sub.Scalar", |cx, c| add(cx, c, BinaryOp::Sub)),
    compute("aten.rsub.Tensor", rsub),
    compute("aten.rsub.Scalar", rsub),
    compute("aten.mul.Tensor", |cx, c| scale(cx, c, BinaryOp::Mul)),
    compute("aten.mul.Scalar", |cx, c| arithmetic(cx, c, BinaryOp::Mul)),
    compute("aten.div.Tensor", |cx, c| scale(cx, c, BinaryOp::Div)),
    compute("aten.div.Scalar", |cx, c| arithmetic(cx, c, BinaryOp::Div)),
    compute("aten.true_divide.Tensor", |cx, c| scale(cx, c, BinaryOp::Div)),
    compute("aten.div.Tensor_mode", div_mode),
    compute("aten.div.Scalar_mode", div_mode),
    compute("aten.floor_divide.default", |cx, c| scale(cx, c, BinaryOp::FloorDiv)),
    compute("aten.floor_divide.Scalar", |cx, c| arithmetic(cx, c, BinaryOp::FloorDiv)),
    compute("aten.remainder.Tensor", |cx, c| arithmetic(cx, c, BinaryOp::Remainder)),
    compute("aten.remainder.Scalar", |cx, c| arithmetic(cx, c, BinaryOp::Remainder)),
    compute("aten.remainder.Scalar_Tensor", |cx, c| arithmetic(cx, c, BinaryOp::Remainder)),
    compute("aten.fmod.Tensor", |cx, c| arithmetic(cx, c, BinaryOp::Fmod)),
    compute("aten.fmod.Scalar", |cx, c| arithmetic(cx, c, BinaryOp::Fmod)),
    compute("aten.pow.Tensor_Tensor", |cx, c| arithmetic(cx, c, BinaryOp::Pow)),
    compute("aten.pow.Scalar", |cx, c| arithmetic(cx, c, BinaryOp::Pow)),
    compute("aten.pow.Tensor_Scalar", pow_scalar),
    compute("aten.maximum.default", |cx, c| arithmetic(cx, c, BinaryOp::Max)),
    compute("aten.minimum.default", |cx, c| arithmetic(cx, c, BinaryOp::Min)),
    compute("aten.fmax.default", |cx, c| arithmetic(cx, c, BinaryOp::Fmax)),
    compute("aten.fmin.default", |cx, c| arithmetic(cx, c, BinaryOp::Fmin)),
    compute("aten.max.other", |cx, c| arithmetic(cx, c, BinaryOp::Max)),
    compute("aten.min.other", |cx, c| arithmetic(cx, c, BinaryOp::Min)),
    compute("aten.atan2.default", |cx, c| arithmetic(cx, c, BinaryOp::Atan2)),
    compute("aten.hypot.default", |cx, c| arithmetic(cx, c, BinaryOp::Hypot)),
    compute("aten.copysign.Tensor", |cx, c| arithmetic(cx, c, BinaryOp::Copysign)),
    compute("aten.copysign.Scalar", |cx, c| arithmetic(cx, c, BinaryOp::Copysign)),
    compute("aten.nextafter.default", nextafter),
    compute("aten.bitwise_and.Tensor", |cx, c| arithmetic(cx, c, BinaryOp::And)),
    compute("aten.bitwise_and.Scalar", |cx, c| arithmetic(cx, c, BinaryOp::And)),
    compute("aten.bitwise_or.Tensor", |cx, c| arithmetic(cx, c, BinaryOp::Or)),
    compute("aten.bitwise_or.Scalar", |cx, c| arithmetic(cx, c, BinaryOp::Or)),
    compute("aten.bitwise_xor.Tensor", |cx, c| arithmetic(cx, c, BinaryOp::Xor)),
    compute("aten.bitwise_xor.Scalar", |cx, c| arithmetic(cx, c, BinaryOp::Xor)),
    compute("aten.bitwise_left_shift.Tensor", |cx, c| arithmetic(cx, c, BinaryOp::Shl)),
    compute("aten.bitwise_left_shift.Tensor_Scalar", |cx, c| arithmetic(cx, c, BinaryOp::Shl)),
    compute("aten.bitwise_right_shift.Tensor", |cx, c| arithmetic(cx, c, BinaryOp::Shr)),
    compute("aten.bitwise_right_shift.Tensor_Scalar", |cx, c| arithmetic(cx, c, BinaryOp::Shr)),
    compute("aten.__lshift__.Scalar", |cx, c| arithmetic(cx, c, BinaryOp::Shl)),
    compute("aten.__rshift__.Scalar", |cx, c| arithmetic(cx, c, BinaryOp::Shr)),
    compute("aten.eq.Tensor", |cx, c| compare(cx, c, BinaryOp::Eq)),
    compute("aten.eq.Scalar", |cx, c| compare(cx, c, BinaryOp::Eq)),
    compute("aten.ne.Tensor", |cx, c| compare(cx, c, BinaryOp::Ne)),
    compute("aten.ne.Scalar", |cx, c| compare(cx, c, BinaryOp::Ne)),
    compute("aten.lt.Tensor", |cx, c| compare(cx, c, BinaryOp::Lt)),
    compute("aten.lt.Scalar", |cx, c| compare(cx, c, BinaryOp::Lt)),
    compute("aten.le.Tensor", |cx, c| compare(cx, c, BinaryOp::Le)),
    compute("aten.le.Scalar", |cx, c| compare(cx, c, BinaryOp::Le)),
    compute("aten.gt.Tensor", |cx, c| compare(cx, c, BinaryOp::Gt)),
    compute("aten.gt.Scalar", |cx, c| compare(cx, c, BinaryOp::Gt)),
    compute("aten.ge.Tensor", |cx, c| compare(cx, c, BinaryOp::Ge)),
    compute("aten.ge.Scalar", |cx, c| compare(cx, c, BinaryOp::Ge)),
    compute("aten.logical_and.default", |cx, c| logical(cx, c, BinaryOp::And)),
    compute("aten.logical_or.default", |cx, c| logical(cx, c, BinaryOp::Or)),
    compute("aten.logical_xor.default", |cx, c| logical(cx, c, BinaryOp::Xor)),
    compute("aten.where.self", where_self),
    compute("aten.where.ScalarSelf", where_self),
    compute("aten.where.ScalarOther", where_self),
    compute("aten.where.Scalar", where_self),
    compute("aten.masked_fill.Scalar", masked_fill),
    compute("aten.masked_fill.Tensor", masked_fill),
    compute("aten.clamp.default", clamp),
    compute("aten.clamp.Tensor", clamp),
    compute("aten.clamp_min.default", |cx, c| limited(cx, c, "min", BinaryOp::Max)),
    compute("aten.clamp_min.Tensor", |cx, c| limited(cx, c, "min", BinaryOp::Max)),
    compute("aten.clamp_max.default", |cx, c| limited(cx, c, "max", BinaryOp::Min)),
    compute("aten.clamp_max.Tensor", |cx, c| limited(cx, c, "max", BinaryOp::Min)),
    compute("aten.addcmul.default", |cx, c| addc(cx, c, BinaryOp::Mul)),
    compute("aten.addcdiv.default", |cx, c| addc(cx, c, BinaryOp::Div)),
    compute("aten.lerp.Scalar", lerp),
    compute("aten.lerp.Tensor", lerp),
    compute("prims.fma.default", fma),
    compute("aten.logaddexp.default", logaddexp),
    compute("aten.xlogy.Tensor", xlogy),
    compute("aten.xlogy.Scalar_Other", xlogy),
    compute("aten.xlogy.Scalar_Self", xlogy),
    compute("prims.convert_element_type.default", convert),
    compute("aten._to_copy.default", to_copy),
    compute("aten.to.dtype", to_dtype),
];

/// An argument in the type and shape of the result, which is also the type that the operator computes in.
pub(super) fn argument(cx: &mut Cx, c: &Call, position: usize, name: &str) -> Result<ExprId, Refusal> {
    let out = cx.out()?;
    match c.operand(position, name)? {
        Operand::Scalar(number) if rounds_number(c.op, position) => {
            Ok(cx.constant(number, out.dtype, &out.shape))
        }
        operand => cx.operand(&operand, out.dtype, &out.shape),
    }
}

fn unary(cx: &mut Cx, c: &Call, op: UnaryOp) -> Lowered {
    let a = argument(cx, c, 0, "self")?;
    Ok(vec![cx.unary(op, a)])
}

/// Rounds floats; integers are whole.
fn rounding(cx: &mut Cx, c: &Call, op: UnaryOp) -> Lowered {
    let a = argument(cx, c, 0, "self")?;
    Ok(vec![if cx.dtype(a).is_float() { cx.unary(op, a) } else { cx.copy(a) }])
}

fn frac(cx: &mut Cx, c: &Call) -> Lowered {
    let a = argument(cx, c, 0, "self")?;
    let whole = cx.unary(UnaryOp::Trunc, a);
    Ok(vec![cx.binary(BinaryOp::Sub, a, whole)])
}

fn square(cx: &mut Cx, c: &Call) -> Lowered {
    let a = argument(cx, c, 0, "self")?;
    Ok(vec![cx.binary(BinaryOp::Mul, a, a)])
}

fn identity(cx: &mut Cx, c: &Call) -> Lowered {
    let a = argument(cx, c, 0, "self")?;
    Ok(vec![cx.copy(a)])
}

/// A test of floats that no integer passes.
fn test(cx: &mut Cx, c: &Call, op: UnaryOp) -> Lowered {
    let a = cx.tensor(c, 0, "self")?;
    if cx.dtype(a).is_float() {
        return Ok(vec![cx.unary(op, a)]);
    }
    let shape = cx.shape(a);
    Ok(vec![cx.constant(Scalar::Bool(false), DType::Bool, &shape)])
}

fn is_finite(cx: &mut Cx, c: &Call) -> Lowered {
    let a = cx.tensor(c, 0, "self")?;
    if !cx.dtype(a).is_float() {
        let shape = cx.shape(a);
        return Ok(vec![cx.constant(Scalar::Bool(true), DType::Bool, &shape)]);
    }
    let nan = cx.unary(UnaryOp::IsNan, a);
    let infinite = cx.unary(UnaryOp::IsInf, a);
    let either = cx.binary(BinaryOp::Or, nan, infinite);
    Ok(vec![cx.unary(UnaryOp::Not, either)])
}

fn is_infinity(cx: &mut Cx, c: &Call, infinity: f64) -> Lowered {
    let a = cx.tensor(c, 0, "self")?;
    if !cx.dtype(a).is_float() {
        let shape = cx.shape(a);
        return Ok(vec![cx.constant(Scalar::Bool(false), DType::Bool, &shape)]);
    }
    let infinity = cx.float(infinity, a);
    Ok(vec![cx.binary(BinaryOp::Eq, a, infinity)])
}

fn round_decimals(cx: &mut Cx, c: &Call) -> Lowered {
    let a = argument(cx, c, 0, "self")?;
    let decimals = c.int_or(loafc_ir::ops::call::KEYWORD, "decimals", 0)?;
    if !cx.dtype(a).is_float() || decimals.abs() > 30 {
        return Err(Refusal::Extern);
    }
    // Powers of ten below one are not exact; dividing by those above one is.
    let power = cx.float(10f64.powi(decimals.unsigned_abs() as i32), a);
    let (there, back) = match decimals {
        0.. => (BinaryOp::Mul, BinaryOp::Div),
        _ => (BinaryOp::Div, BinaryOp::Mul),
    };
    let scaled = cx.binary(there, a, power);
    let rounded = cx.unary(UnaryOp::Round, scaled);
    Ok(vec![cx.binary(back, rounded, power)])
}

fn sign_bit(cx: &mut Cx, c: &Call) -> Lowered {
    let a = cx.tensor(c, 0, "self")?;
    if cx.dtype(a).is_float() {
        return Ok(vec![cx.unary(UnaryOp::SignBit, a)]);
    }
    let a = if cx.dtype(a) == DType::Bool { cx.cast(a, DType::U8) } else { a };
    let zero = cx.int(0, a);
    Ok(vec![cx.binary(BinaryOp::Lt, a, zero)])
}

fn logical_not(cx: &mut Cx, c: &Call) -> Lowered {
    let a = cx.tensor(c, 0, "self")?;
    let a = cx.cast(a, DType::Bool);
    Ok(vec![cx.unary(UnaryOp::Not, a)])
}

fn nan_to_num(cx: &mut Cx, c: &Call) -> Lowered {
    let a = argument(cx, c, 0, "self")?;
    let dtype = cx.dtype(a);
    if !dtype.is_float() {
        return Ok(vec![cx.copy(a)]);
    }
    if matches!(dtype, DType::F8E4M3FN | DType::F8E5M2) {
        return Err(Refusal::Extern);
    }
    let largest = highest_finite(dtype);
    let nan = c.float_or(1, "nan", 0.0)?;
    let posinf = c.float_or(2, "posinf", largest)?;
    let neginf = c.float_or(3, "neginf", -largest)?;
    let (nan, posinf, neginf) = (cx.float(nan, a), cx.float(posinf, a), cx.float(neginf, a));
    let infinity = cx.float(f64::INFINITY, a);
    let minus_infinity = cx.float(f64::NEG_INFINITY, a);
    let is_nan = cx.unary(UnaryOp::IsNan, a);
    let is_posinf = cx.binary(BinaryOp::Eq, a, infinity);
    let is_neginf = cx.binary(BinaryOp::Eq, a, minus_infinity);
    let value = cx.choose(is_neginf, neginf, a);
    let value = cx.choose(is_posinf, posinf, value);
    Ok(vec![cx.choose(is_nan, nan, value)])
}

/// An operation on two values of the result's type, with what it means for truth values.
pub(super) fn apply(cx: &mut Cx, op: BinaryOp, a: ExprId, b: ExprId) -> ExprId {
    let op = match (cx.dtype(a), op) {
        (DType::Bool, BinaryOp::Add | BinaryOp::Max | BinaryOp::Fmax) => BinaryOp::Or,
        (DType::Bool, BinaryOp::Mul | BinaryOp::Min | BinaryOp::Fmin) => BinaryOp::And,
        (_, op) => op,
    };
    cx.binary(op, a, b)
}

fn arithmetic(cx: &mut Cx, c: &Call, op: BinaryOp) -> Lowered {
    let a = argument(cx, c, 0, "self")?;
    let b = argument(cx, c, 1, "other")?;
    let needs_numbers = matches!(
        op,
        BinaryOp::FloorDiv
            | BinaryOp::TruncDiv
            | BinaryOp::Remainder
            | BinaryOp::Fmod
            | BinaryOp::Pow
            | BinaryOp::Sub
    );
    if cx.dtype(a) == DType::Bool && needs_numbers {
        return Err(Refusal::Extern);
    }
    Ok(vec![apply(cx, op, a, b)])
}

/// A product or quotient. One with a number from memory that is more precise than the result is computed in the
/// number's precision.
fn scale(cx: &mut Cx, c: &Call, op: BinaryOp) -> Lowered {
    let out = cx.out()?;
    let other = c.operand(1, "other")?;
    if !keeps_wide(c.op, 1, &other, out.dtype) {
        return arithmetic(cx, c, op);
    }
    let wide = out.dtype.compute();
    let a = c.operand(0, "self")?;
    let (a, b) = (cx.operand(&a, wide, &out.shape)?, cx.operand(&other, wide, &out.shape)?);
    let result = cx.binary(op, a, b);
    Ok(vec![cx.cast(result, out.dtype)])
}

/// `self op alpha·other`.
fn add(cx: &mut Cx, c: &Call, op: BinaryOp) -> Lowered {
    let a = argument(cx, c, 0, "self")?;
    let b = argument(cx, c, 1, "other")?;
    let b = scaled(cx, c, 2, "alpha", b)?;
    if cx.dtype(a) == DType::Bool && op == BinaryOp::Sub {
        return Err(Refusal::Extern);
    }
    Ok(vec![apply(cx, op, a, b)])
}

fn rsub(cx: &mut Cx, c: &Call) -> Lowered {
    let a = argument(cx, c, 0, "self")?;
    let b = argument(cx, c, 1, "other")?;
    let a = scaled(cx, c, 2, "alpha", a)?;
    Ok(vec![cx.binary(BinaryOp::Sub, b, a)])
}

/// `factor·a`, where the factor is an argument that is 1 if not given.
fn scaled(cx: &mut Cx, c: &Call, position: usize, name: &str, a: ExprId) -> Result<ExprId, Refusal> {
    let Some(factor) = c.opt_operand(position, name)? else { return Ok(a) };
    if matches!(factor, Operand::Scalar(s) if s.to_f64() == 1.0) {
        return Ok(a);
    }
    let (dtype, shape) = (cx.dtype(a), cx.shape(a));
    let factor = match factor {
        Operand::Scalar(number) if rounds_number(c.op, position) => cx.constant(number, dtype, &shape),
        operand => cx.operand(&operand, dtype, &shape)?,
    };
    Ok(apply(cx, BinaryOp::Mul, factor, a))
}

fn div_mode(cx: &mut Cx, c: &Call) -> Lowered {
    let op = match c.str_or(2, "rounding_mode", "")? {
        "floor" => BinaryOp::FloorDiv,
        "trunc" => BinaryOp::TruncDiv,
        _ => BinaryOp::Div,
    };
    scale(cx, c, op)
}

fn nextafter(cx: &mut Cx, c: &Call) -> Lowered {
    // The neighbour in a narrow type is not the neighbour in f32 that kernels compute with.
    let dtype = cx.out()?.dtype;
    if dtype != dtype.compute() {
        return Err(Refusal::Extern);
    }
    arithmetic(cx, c, BinaryOp::Nextafter)
}

/// Small powers are products, as in PyTorch.
fn pow_scalar(cx: &mut Cx, c: &Call) -> Lowered {
    let a = argument(cx, c, 0, "self")?;
    let exponent = c.operand(1, "exponent")?;
    let (dtype, shape) = (cx.dtype(a), cx.shape(a));
    if dtype == DType::Bool {
        return Err(Refusal::Extern);
    }
    let whole = match &exponent {
        Operand::Scalar(s) => s.to_f64(),
        _ => f64::NAN,
    };
    let square = |cx: &mut Cx, a| cx.binary(BinaryOp::Mul, a, a);
    if whole == 1.0 {
        return Ok(vec![cx.copy(a)]);
    }
    if whole == 2.0 {
        return Ok(vec![square(cx, a)]);
    }
    if whole == 3.0 {
        let b = square(cx, a);
        return Ok(vec![cx.binary(BinaryOp::Mul, b, a)]);
    }
    if dtype.is_float() {
        if whole == 0.0 {
            return Ok(vec![cx.float(1.0, a)]);
        }
        if whole == 0.5 {
            return Ok(vec![cx.unary(UnaryOp::Sqrt, a)]);
        }
        if whole == -0.5 {
            return Ok(vec![cx.unary(UnaryOp::Rsqrt, a)]);
        }
        if whole == -1.0 {
            return Ok(vec![cx.unary(UnaryOp::Reciprocal, a)]);
        }
        if whole == -2.0 {
            let b = square(cx, a);
            return Ok(vec![cx.unary(UnaryOp::Reciprocal, b)]);
        }
        if whole == 4.0 {
            let b = square(cx, a);
            return Ok(vec![square(cx, b)]);
        }
    }
    let b = match exponent {
        Operand::Scalar(number) => cx.constant(number, dtype, &shape),
        operand => cx.operand(&operand, dtype, &shape)?,
    };
    Ok(vec![cx.binary(BinaryOp::Pow, a, b)])
}

/// Compares in the common type of the operands; numbers are rounded to it first, as in PyTorch.
fn compare(cx: &mut Cx, c: &Call, op: BinaryOp) -> Lowered {
    let shape = cx.out()?.shape.clone();
    let (a, b) = (c.operand(0, "self")?, c.operand(1, "other")?);
    let common = result_type(c, &[&a, &b])?;
    let mut side = |operand: &Operand| match operand {
        Operand::Scalar(number) => Ok(cx.constant(*number, common, &shape)),
        other => cx.operand(other, common, &shape),
    };
    let (a, b) = (side(&a)?, side(&b)?);
    if common != DType::Bool {
        return Ok(vec![cx.binary(op, a, b)]);
    }
    let different = cx.binary(BinaryOp::Xor, a, b);
    Ok(vec![match op {
        BinaryOp::Ne => different,
        BinaryOp::Eq => cx.unary(UnaryOp::Not, different),
        _ => {
            let (a, b) = (cx.cast(a, DType::U8), cx.cast(b, DType::U8));
            cx.binary(op, a, b)
        }
    }])
}

fn logical(cx: &mut Cx, c: &Call, op: BinaryOp) -> Lowered {
    let shape = cx.out()?.shape.clone();
    let (a, b) = (c.operand(0, "self")?, c.operand(1, "other")?);
    let a = cx.operand(&a, DType::Bool, &shape)?;
    let b = cx.operand(&b, DType::Bool, &shape)?;
    Ok(vec![cx.binary(op, a, b)])
}

fn where_self(cx: &mut Cx, c: &Call) -> Lowered {
    let shape = cx.out()?.shape.clone();
    let condition = c.operand(0, "condition")?;
    let condition = cx.operand(&condition, DType::Bool, &shape)?;
    let a = argument(cx, c, 1, "self")?;
    let b = argument(cx, c, 2, "other")?;
    Ok(vec![cx.choose(condition, a, b)])
}

fn masked_fill(cx: &mut Cx, c: &Call) -> Lowered {
    let shape = cx.out()?.shape.clone();
    let a = argument(cx, c, 0, "self")?;
    let mask = c.operand(1, "mask")?;
    let mask = cx.operand(&mask, DType::Bool, &shape)?;
    let value = argument(cx, c, 2, "value")?;
    Ok(vec![cx.choose(mask, value, a)])
}

/// A limit of values; an integer that their type can't hold must not wrap around.
fn limit(cx: &mut Cx, c: &Call, position: usize, name: &str) -> Result<ExprId, Refusal> {
    let out = cx.out()?;
    match c.operand(position, name)? {
        Operand::Scalar(Scalar::Int(value)) if out.dtype.is_int() => {
            Ok(cx.constant(Scalar::Int(saturate(out.dtype, value)), out.dtype, &out.shape))
        }
        operand => cx.operand(&operand, out.dtype, &out.shape),
    }
}

fn limited(cx: &mut Cx, c: &Call, name: &str, op: BinaryOp) -> Lowered {
    let a = argument(cx, c, 0, "self")?;
    let b = limit(cx, c, 1, name)?;
    Ok(vec![apply(cx, op, a, b)])
}

fn clamp(cx: &mut Cx, c: &Call) -> Lowered {
    let mut value = argument(cx, c, 0, "self")?;
    if c.has(1, "min") {
        let low = limit(cx, c, 1, "min")?;
        value = apply(cx, BinaryOp::Max, value, low);
    }
    if c.has(2, "max") {
        let high = limit(cx, c, 2, "max")?;
        value = apply(cx, BinaryOp::Min, value, high);
    }
    Ok(vec![value])
}

/// `self + value·(tensor1 op tensor2)`.
fn addc(cx: &mut Cx, c: &Call, op: BinaryOp) -> Lowered {
    let a = argument(cx, c, 0, "self")?;
    let x = argument(cx, c, 1, "tensor1")?;
    let y = argument(cx, c, 2, "tensor2")?;
    if cx.dtype(a) == DType::Bool || op == BinaryOp::Div && !cx.dtype(a).is_float() {
        return Err(Refusal::Extern);
    }
    let x = scaled(cx, c, 3, "value", x)?;
    let product = cx.binary(op, x, y);
    Ok(vec![cx.binary(BinaryOp::Add, a, product)])
}

/// `self + weight·(end - self)`, from the other end for weights of a half and more, as in PyTorch.
fn lerp(cx: &mut Cx, c: &Call) -> Lowered {
    let a = argument(cx, c, 0, "self")?;
    let b = argument(cx, c, 1, "end")?;
    let weight = argument(cx, c, 2, "weight")?;
    let difference = cx.binary(BinaryOp::Sub, b, a);
    let from_start = cx.fma(weight, difference, a);
    let one = cx.float(1.0, a);
    let rest = cx.binary(BinaryOp::Sub, one, weight);
    let back = cx.binary(BinaryOp::Mul, difference, rest);
    let from_end = cx.binary(BinaryOp::Sub, b, back);
    let half = cx.float(0.5, a);
    let magnitude = cx.unary(UnaryOp::Abs, weight);
    let near_start = cx.binary(BinaryOp::Lt, magnitude, half);
    Ok(vec![match cx.as_constant(weight) {
        Some(w) if w.to_f64().abs() < 0.5 => from_start,
        Some(_) => from_end,
        None => cx.choose(near_start, from_start, from_end),
    }])
}

fn fma(cx: &mut Cx, c: &Call) -> Lowered {
    let a = argument(cx, c, 0, "a")?;
    let b = argument(cx, c, 1, "b")?;
    let x = argument(cx, c, 2, "c")?;
    Ok(vec![cx.fma(a, b, x)])
}

/// `max + log1p(exp(-|a - b|))`; equal infinities are their own sum.
fn logaddexp(cx: &mut Cx, c: &Call) -> Lowered {
    let a = argument(cx, c, 0, "self")?;
    let b = argument(cx, c, 1, "other")?;
    let larger = cx.binary(BinaryOp::Max, a, b);
    let difference = cx.binary(BinaryOp::Sub, a, b);
    let distance = cx.unary(UnaryOp::Abs, difference);
    let minus = cx.unary(UnaryOp::Neg, distance);
    let small = cx.unary(UnaryOp::Exp, minus);
    let rest = cx.unary(UnaryOp::Log1p, small);
    let sum = cx.binary(BinaryOp::Add, larger, rest);
    let infinite = cx.unary(UnaryOp::IsInf, a);
    let equal = cx.binary(BinaryOp::Eq, a, b);
    let same_infinity = cx.binary(BinaryOp::And, infinite, equal);
    Ok(vec![cx.choose(same_infinity, a, sum)])
}

/// `a·log(b)`, zero where `a` is zero unless `b` is NaN.
fn xlogy(cx: &mut Cx, c: &Call) -> Lowered {
    let a = argument(cx, c, 0, "self")?;
    let b = argument(cx, c, 1, "other")?;
    let zero = cx.float(0.0, a);
    let log = cx.unary(UnaryOp::Log, b);
    let product = cx.binary(BinaryOp::Mul, a, log);
    let is_zero = cx.binary(BinaryOp::Eq, a, zero);
    let value = cx.choose(is_zero, zero, product);
    let nan = cx.unary(UnaryOp::IsNan, b);
    Ok(vec![cx.choose(nan, b, value)])
}

/// A conversion that the program asks for is always made, and so rounds.
fn convert(cx: &mut Cx, c: &Call) -> Lowered {
    let a = cx.tensor(c, 0, "a")?;
    let dtype = cx.out()?.dtype;
    Ok(vec![converted(cx, a, dtype)])
}

fn to_copy(cx: &mut Cx, c: &Call) -> Lowered {
    let argument = c.tensor(0, "self")?;
    let out = cx.out()?;
    if argument.ty.device != out.device {
        return Err(Refusal::Extern);
    }
    let a = cx.value(argument.id)?;
    Ok(vec![converted(cx, a, out.dtype)])
}

/// The tensor itself where it has the type, unless a copy is asked for.
fn to_dtype(cx: &mut Cx, c: &Call) -> Lowered {
    let a = cx.tensor(c, 0, "self")?;
    let dtype = cx.out()?.dtype;
    let copy = c.bool_or(3, "copy", false)?;
    Ok(vec![if cx.dtype(a) == dtype && !copy { a } else { converted(cx, a, dtype) }])
}

fn converted(cx: &mut Cx, a: ExprId, dtype: DType) -> ExprId {
    if cx.dtype(a) != dtype {
        return cx.cast(a, dtype);
    }
    if dtype.compute() == dtype {
        return cx.copy(a);
    }
    // To the type that it has: rounds, since what is computed in between is not rounded.
    let shape = cx.shape(a);
    let wide = cx.make(Expr::Cast(a), dtype.compute(), &shape);
    cx.make(Expr::Cast(wide), dtype, &shape)
}
