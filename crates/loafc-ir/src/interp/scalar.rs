//! The plain meaning of every scalar operation: one place for NaN, rounding, wrap-around and conversion rules.
//!
//! A value of a float type is a [`Scalar::Float`] that its compute type ([`DType::compute`]) holds exactly; a
//! value of an integer type is a [`Scalar::Int`] in the type's range (u64: the same bits as an i64); a truth
//! value is a [`Scalar::Bool`]. Operations return values in this form. Complex types have no scalars; where one
//! is named it stands for its real part.

use half::{bf16, f16};

use super::special;
use crate::dtype::{DType, Scalar};
use crate::nest::{BinaryOp, ReduceOp, UnaryOp};

/// An operation has no result for these operands.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScalarError {
    /// Integer quotient or remainder by zero.
    #[error("{0:?} of integers by zero")]
    DivisionByZero(BinaryOp),
    /// The operation is not defined on this element type.
    #[error("{op} is not defined on {dtype}")]
    Undefined {
        /// The operation.
        op: String,
        /// The operands' type.
        dtype: DType,
    },
}

fn undefined(op: impl std::fmt::Debug, dtype: DType) -> ScalarError {
    ScalarError::Undefined { op: format!("{op:?}"), dtype }
}

/// How values of a type are computed with.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Family {
    Float,
    Int,
    Bool,
}

fn family(dtype: DType) -> Family {
    match dtype {
        DType::Bool => Family::Bool,
        d if d.is_int() => Family::Int,
        _ => Family::Float,
    }
}

/// The number as the compute type of `dtype` holds it: unchanged for f64, rounded to f32 for narrower floats.
pub fn round_to_compute(dtype: DType, value: f64) -> f64 {
    match dtype {
        DType::F64 | DType::C128 => value,
        _ => f64::from(value as f32),
    }
}

/// The number as memory of the float type `dtype` holds it. Types narrower than f32 round from f32, as PyTorch
/// does. f8e4m3fn, which has no infinity, saturates.
pub fn round_to_storage(dtype: DType, value: f64) -> f64 {
    let single = value as f32;
    match dtype {
        DType::F16 => f16::from_f32(single).to_f64(),
        DType::BF16 => bf16::from_f32(single).to_f64(),
        DType::F8E4M3FN if single.is_nan() => f64::NAN,
        DType::F8E4M3FN => round_mantissa(single, 3, -6).clamp(-448.0, 448.0),
        DType::F8E5M2 => {
            let rounded = round_mantissa(single, 2, -14);
            if rounded.abs() > 57344.0 { f64::INFINITY.copysign(rounded) } else { rounded }
        }
        _ => round_to_compute(dtype, value),
    }
}

/// Rounds to `bits` bits behind the leading one, ties to even; below `2^lowest` the spacing stays the same.
fn round_mantissa(value: f32, bits: i32, lowest: i32) -> f64 {
    let value = f64::from(value);
    if !value.is_finite() || value == 0.0 {
        return value;
    }
    let spacing = libm::scalbn(1.0, libm::ilogb(value).max(lowest) - bits);
    (value / spacing).round_ties_even() * spacing
}

/// The integer as `dtype` holds it: its low bits.
pub fn wrap(dtype: DType, value: i64) -> i64 {
    match dtype {
        DType::I32 => i64::from(value as i32),
        DType::I16 => i64::from(value as i16),
        DType::I8 => i64::from(value as i8),
        DType::U32 => i64::from(value as u32),
        DType::U16 => i64::from(value as u16),
        DType::U8 => i64::from(value as u8),
        _ => value,
    }
}

/// The integer as the integer type holds it, or what it holds nearest to it.
pub fn saturate(dtype: DType, value: i64) -> i64 {
    match dtype {
        DType::I32 => value.clamp(i32::MIN.into(), i32::MAX.into()),
        DType::I16 => value.clamp(i16::MIN.into(), i16::MAX.into()),
        DType::I8 => value.clamp(i8::MIN.into(), i8::MAX.into()),
        DType::U64 => value.max(0),
        DType::U32 => value.clamp(0, u32::MAX.into()),
        DType::U16 => value.clamp(0, u16::MAX.into()),
        DType::U8 => value.clamp(0, u8::MAX.into()),
        _ => value,
    }
}

fn bits_of(dtype: DType) -> i64 {
    dtype.bytes() as i64 * 8
}

/// Zero, or false.
pub fn zero(dtype: DType) -> Scalar {
    match family(dtype) {
        Family::Float => Scalar::Float(0.0),
        Family::Int => Scalar::Int(0),
        Family::Bool => Scalar::Bool(false),
    }
}

/// A constant of any family as a value of `dtype`, with the rules of [`cast`].
pub fn constant(value: Scalar, dtype: DType) -> Scalar {
    let from = match value {
        Scalar::Float(_) => DType::F64,
        Scalar::Int(_) => DType::I64,
        Scalar::Bool(_) => DType::Bool,
    };
    cast(value, from, dtype)
}

/// Conversion with eager PyTorch's rules on x86: floats are cut towards zero and, outside of i64 (for i64 and
/// u64) or i32 (for all narrower integers), become the smallest number of that type; integers then keep their
/// low bits. Everything but zero is true, NaN too. Floats round to the target's storage type.
pub fn cast(value: Scalar, from: DType, to: DType) -> Scalar {
    match (family(from), family(to)) {
        (_, Family::Bool) => Scalar::Bool(value.to_bool()),
        (Family::Float, Family::Float) => Scalar::Float(round_to_storage(to, value.to_f64())),
        (Family::Bool, Family::Float) => Scalar::Float(value.to_f64()),
        (Family::Int, Family::Float) => Scalar::Float(int_to_float(value.to_i64(), from, to)),
        (Family::Float, Family::Int) => Scalar::Int(float_to_int(value.to_f64(), to)),
        (Family::Int | Family::Bool, Family::Int) => Scalar::Int(wrap(to, value.to_i64())),
    }
}

fn int_to_float(value: i64, from: DType, to: DType) -> f64 {
    // Straight to the target where that is f32: by way of f64 it would round twice.
    match (to, from) {
        (DType::F64 | DType::C128, DType::U64) => value as u64 as f64,
        (DType::F64 | DType::C128, _) => value as f64,
        (_, DType::U64) => round_to_storage(to, f64::from(value as u64 as f32)),
        _ => round_to_storage(to, f64::from(value as f32)),
    }
}

fn float_to_int(value: f64, to: DType) -> i64 {
    let cut = value.trunc();
    let narrow = bits_of(to) <= 32 && to != DType::U32;
    if narrow {
        let fits = cut >= f64::from(i32::MIN) && cut <= f64::from(i32::MAX);
        return wrap(to, i64::from(if fits { cut as i32 } else { i32::MIN }));
    }
    let fits = (-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(&cut);
    if to == DType::U64 && (0.0..18_446_744_073_709_551_616.0).contains(&cut) {
        return cut as u64 as i64;
    }
    wrap(to, if fits { cut as i64 } else { i64::MIN })
}

/// The bits of a value in memory of type `dtype`, in the low bits of the result.
pub fn to_bits(value: Scalar, dtype: DType) -> u64 {
    let float = value.to_f64();
    match dtype {
        DType::F64 | DType::C128 => float.to_bits(),
        DType::F32 | DType::C64 => u64::from((float as f32).to_bits()),
        DType::F16 | DType::C32 => u64::from(f16::from_f32(float as f32).to_bits()),
        DType::BF16 => u64::from(bf16::from_f32(float as f32).to_bits()),
        DType::F8E4M3FN => u64::from(f8_bits(round_to_storage(dtype, float), 3, 7, 0x7f)),
        DType::F8E5M2 => u64::from(f8_bits(round_to_storage(dtype, float), 2, 15, 0x7f)),
        DType::Bool => u64::from(value.to_bool()),
        _ => {
            let mask = u64::MAX >> (64 - bits_of(dtype));
            wrap(dtype, value.to_i64()) as u64 & mask
        }
    }
}

/// Bits of a number that an 8-bit float with `mantissa` bits and this exponent bias holds exactly.
fn f8_bits(value: f64, mantissa: i32, bias: i32, nan: u8) -> u8 {
    let sign = u8::from(value.is_sign_negative()) << 7;
    let magnitude = value.abs();
    if magnitude.is_nan() {
        return sign | nan;
    }
    if magnitude.is_infinite() {
        return sign | (0x1f << 2);
    }
    if magnitude == 0.0 {
        return sign;
    }
    let exponent = libm::ilogb(magnitude).max(1 - bias);
    let steps = libm::scalbn(magnitude, mantissa - exponent) as i32;
    // A subnormal number has fewer than 2^mantissa steps; the sum then leaves the exponent field at zero.
    sign | (((exponent + bias - 1) << mantissa) + steps) as u8
}

/// The value that bits in memory stand for; the inverse of [`to_bits`].
pub fn from_bits(bits: u64, dtype: DType) -> Scalar {
    match dtype {
        DType::F64 | DType::C128 => Scalar::Float(f64::from_bits(bits)),
        DType::F32 | DType::C64 => Scalar::Float(f64::from(f32::from_bits(bits as u32))),
        DType::F16 | DType::C32 => Scalar::Float(f16::from_bits(bits as u16).to_f64()),
        DType::BF16 => Scalar::Float(bf16::from_bits(bits as u16).to_f64()),
        DType::F8E4M3FN => {
            Scalar::Float(if bits & 0x7f == 0x7f { f64::NAN } else { f8_value(bits as u8, 3, 7) })
        }
        DType::F8E5M2 => Scalar::Float(match bits & 0x7f {
            0x7c => f64::INFINITY.copysign(if bits & 0x80 == 0 { 1.0 } else { -1.0 }),
            0x7d.. => f64::NAN,
            _ => f8_value(bits as u8, 2, 15),
        }),
        DType::Bool => Scalar::Bool(bits & 0xff != 0),
        _ => Scalar::Int(wrap(dtype, bits as i64)),
    }
}

fn f8_value(bits: u8, mantissa: i32, bias: i32) -> f64 {
    let field = i32::from(bits & 0x7f);
    let (exponent, steps) = (field >> mantissa, field & ((1 << mantissa) - 1));
    let magnitude = match exponent {
        0 => libm::scalbn(f64::from(steps), 1 - bias - mantissa),
        _ => libm::scalbn(f64::from(steps + (1 << mantissa)), exponent - bias - mantissa),
    };
    if bits & 0x80 == 0 { magnitude } else { -magnitude }
}

/// The same bits as another type. Types of different width are refused.
pub fn bitcast(value: Scalar, from: DType, to: DType) -> Result<Scalar, ScalarError> {
    if from.bytes() != to.bytes() || from.is_complex() || to.is_complex() {
        return Err(ScalarError::Undefined { op: format!("Bitcast to {to}"), dtype: from });
    }
    Ok(from_bits(to_bits(value, from), to))
}

/// An operation on one value of type `dtype`. `IsNan`, `IsInf` and `SignBit` give a truth value, all others a
/// value of `dtype`, rounded to its compute type.
pub fn unary(op: UnaryOp, dtype: DType, x: Scalar) -> Result<Scalar, ScalarError> {
    match family(dtype) {
        Family::Float => unary_float(op, dtype, x.to_f64()),
        Family::Int => unary_int(op, dtype, x.to_i64()),
        Family::Bool => unary_bool(op, x.to_bool()),
    }
}

fn unary_float(op: UnaryOp, dtype: DType, x: f64) -> Result<Scalar, ScalarError> {
    let value = match op {
        UnaryOp::IsNan => return Ok(Scalar::Bool(x.is_nan())),
        UnaryOp::IsInf => return Ok(Scalar::Bool(x.is_infinite())),
        UnaryOp::SignBit => return Ok(Scalar::Bool(x.is_sign_negative())),
        UnaryOp::Neg => -x,
        UnaryOp::Abs => x.abs(),
        // Zero for zeros and for NaN, as PyTorch's.
        UnaryOp::Sign => f64::from(u8::from(x > 0.0)) - f64::from(u8::from(x < 0.0)),
        UnaryOp::Not => return Err(undefined(op, dtype)),
        UnaryOp::Sqrt => libm::sqrt(x),
        UnaryOp::Rsqrt => 1.0 / libm::sqrt(x),
        UnaryOp::Reciprocal => 1.0 / x,
        UnaryOp::Exp => libm::exp(x),
        UnaryOp::Exp2 => libm::exp2(x),
        UnaryOp::Expm1 => libm::expm1(x),
        UnaryOp::Log => libm::log(x),
        UnaryOp::Log2 => libm::log2(x),
        UnaryOp::Log10 => libm::log10(x),
        UnaryOp::Log1p => libm::log1p(x),
        UnaryOp::Sin => libm::sin(x),
        UnaryOp::Cos => libm::cos(x),
        UnaryOp::Tan => libm::tan(x),
        UnaryOp::Asin => libm::asin(x),
        UnaryOp::Acos => libm::acos(x),
        UnaryOp::Atan => libm::atan(x),
        UnaryOp::Sinh => libm::sinh(x),
        UnaryOp::Cosh => libm::cosh(x),
        UnaryOp::Tanh => libm::tanh(x),
        UnaryOp::Asinh => libm::asinh(x),
        UnaryOp::Acosh => libm::acosh(x),
        UnaryOp::Atanh => libm::atanh(x),
        UnaryOp::Erf => libm::erf(x),
        UnaryOp::Erfc => libm::erfc(x),
        UnaryOp::Erfinv => special::erfinv(x),
        UnaryOp::Lgamma => libm::lgamma(x),
        UnaryOp::Digamma => special::digamma(x),
        UnaryOp::Sigmoid => 1.0 / (1.0 + libm::exp(-x)),
        UnaryOp::Floor => x.floor(),
        UnaryOp::Ceil => x.ceil(),
        UnaryOp::Trunc => x.trunc(),
        UnaryOp::Round => x.round_ties_even(),
    };
    Ok(Scalar::Float(round_to_compute(dtype, value)))
}

fn unary_int(op: UnaryOp, dtype: DType, x: i64) -> Result<Scalar, ScalarError> {
    let signed = dtype.is_signed_int();
    let value = match op {
        UnaryOp::IsNan | UnaryOp::IsInf => return Ok(Scalar::Bool(false)),
        UnaryOp::SignBit => return Ok(Scalar::Bool(signed && x < 0)),
        UnaryOp::Neg => x.wrapping_neg(),
        UnaryOp::Abs if signed => x.wrapping_abs(),
        UnaryOp::Sign if signed => x.signum(),
        UnaryOp::Sign => i64::from(x != 0),
        UnaryOp::Not => !x,
        UnaryOp::Abs | UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Trunc | UnaryOp::Round => x,
        _ => return Err(undefined(op, dtype)),
    };
    Ok(Scalar::Int(wrap(dtype, value)))
}

fn unary_bool(op: UnaryOp, x: bool) -> Result<Scalar, ScalarError> {
    match op {
        UnaryOp::Not => Ok(Scalar::Bool(!x)),
        UnaryOp::IsNan | UnaryOp::IsInf | UnaryOp::SignBit => Ok(Scalar::Bool(false)),
        UnaryOp::Abs | UnaryOp::Sign | UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Trunc | UnaryOp::Round => {
            Ok(Scalar::Bool(x))
        }
        _ => Err(undefined(op, DType::Bool)),
    }
}

/// An operation on two values of type `dtype`. Comparisons give a truth value, all others a value of `dtype`,
/// rounded to its compute type. On truth values `Add` and `Max` are "or", `Mul` and `Min` are "and".
pub fn binary(op: BinaryOp, dtype: DType, a: Scalar, b: Scalar) -> Result<Scalar, ScalarError> {
    match family(dtype) {
        Family::Float => binary_float(op, dtype, a.to_f64(), b.to_f64()),
        Family::Int => binary_int(op, dtype, a.to_i64(), b.to_i64()),
        Family::Bool => binary_bool(op, a.to_bool(), b.to_bool()),
    }
}

fn compare<T: PartialOrd>(op: BinaryOp, a: T, b: T) -> Option<Scalar> {
    Some(Scalar::Bool(match op {
        BinaryOp::Eq => a == b,
        BinaryOp::Ne => a != b,
        BinaryOp::Lt => a < b,
        BinaryOp::Le => a <= b,
        BinaryOp::Gt => a > b,
        BinaryOp::Ge => a >= b,
        _ => return None,
    }))
}

fn binary_float(op: BinaryOp, dtype: DType, a: f64, b: f64) -> Result<Scalar, ScalarError> {
    if let Some(truth) = compare(op, a, b) {
        return Ok(truth);
    }
    let round = |x: f64| round_to_compute(dtype, x);
    let value = match op {
        // In f32, f64's result rounded once more is the correctly rounded one for these four.
        BinaryOp::Add => a + b,
        BinaryOp::Sub => a - b,
        BinaryOp::Mul => a * b,
        BinaryOp::Div => a / b,
        BinaryOp::FloorDiv => floor_div_float(a, b, &round),
        BinaryOp::TruncDiv => round(a / b).trunc(),
        BinaryOp::Remainder => {
            let rest = libm::fmod(a, b);
            if rest != 0.0 && (b < 0.0) != (rest < 0.0) { rest + b } else { rest }
        }
        BinaryOp::Fmod => libm::fmod(a, b),
        BinaryOp::Pow => libm::pow(a, b),
        BinaryOp::Atan2 => libm::atan2(a, b),
        BinaryOp::Hypot => libm::hypot(a, b),
        BinaryOp::Copysign => a.copysign(b),
        BinaryOp::Nextafter => return nextafter(dtype, a, b),
        BinaryOp::Max if a.is_nan() || b.is_nan() => f64::NAN,
        BinaryOp::Min if a.is_nan() || b.is_nan() => f64::NAN,
        BinaryOp::Max | BinaryOp::Fmax => a.max(b),
        BinaryOp::Min | BinaryOp::Fmin => a.min(b),
        _ => return Err(undefined(op, dtype)),
    };
    Ok(Scalar::Float(round(value)))
}

/// Python's floor division of floats: the remainder is exact, so the quotient is right even where `a / b` would
/// round up to a whole number.
fn floor_div_float(a: f64, b: f64, round: &dyn Fn(f64) -> f64) -> f64 {
    if b == 0.0 {
        return a / b;
    }
    let rest = libm::fmod(a, b);
    let mut quotient = round(round(a - rest) / b);
    if rest != 0.0 && (b < 0.0) != (rest < 0.0) {
        quotient = round(quotient - 1.0);
    }
    if quotient == 0.0 {
        return 0f64.copysign(a / b);
    }
    let floor = quotient.floor();
    if quotient - floor > 0.5 { floor + 1.0 } else { floor }
}

/// The next number after `a` towards `b` among those that `dtype` itself holds.
fn nextafter(dtype: DType, a: f64, b: f64) -> Result<Scalar, ScalarError> {
    if dtype.is_complex() {
        return Err(undefined(BinaryOp::Nextafter, dtype));
    }
    if a.is_nan() || b.is_nan() {
        return Ok(Scalar::Float(f64::NAN));
    }
    if a == b {
        return Ok(Scalar::Float(b));
    }
    let sign = 1u64 << (bits_of(dtype) - 1);
    if a == 0.0 {
        return Ok(from_bits(1 | if b < 0.0 { sign } else { 0 }, dtype));
    }
    let bits = to_bits(Scalar::Float(a), dtype);
    // Magnitudes are ordered like their bits.
    let grows = (b > a) == (a > 0.0);
    Ok(from_bits(if grows { bits + 1 } else { bits - 1 }, dtype))
}

fn binary_int(op: BinaryOp, dtype: DType, a: i64, b: i64) -> Result<Scalar, ScalarError> {
    let unsigned = dtype == DType::U64;
    let truth = if unsigned { compare(op, a as u64, b as u64) } else { compare(op, a, b) };
    if let Some(truth) = truth {
        return Ok(truth);
    }
    let value = match op {
        BinaryOp::Add => a.wrapping_add(b),
        BinaryOp::Sub => a.wrapping_sub(b),
        BinaryOp::Mul => a.wrapping_mul(b),
        BinaryOp::FloorDiv | BinaryOp::TruncDiv | BinaryOp::Remainder | BinaryOp::Fmod => {
            if b == 0 {
                return Err(ScalarError::DivisionByZero(op));
            }
            if unsigned { divide_u64(op, a as u64, b as u64) as i64 } else { divide_i64(op, a, b) }
        }
        BinaryOp::Pow => pow_int(a, b, unsigned),
        BinaryOp::Max | BinaryOp::Fmax if unsigned => (a as u64).max(b as u64) as i64,
        BinaryOp::Min | BinaryOp::Fmin if unsigned => (a as u64).min(b as u64) as i64,
        BinaryOp::Max | BinaryOp::Fmax => a.max(b),
        BinaryOp::Min | BinaryOp::Fmin => a.min(b),
        BinaryOp::And => a & b,
        BinaryOp::Or => a | b,
        BinaryOp::Xor => a ^ b,
        BinaryOp::Shl | BinaryOp::Shr => shift(op, dtype, a, b),
        _ => return Err(undefined(op, dtype)),
    };
    Ok(Scalar::Int(wrap(dtype, value)))
}

fn divide_i64(op: BinaryOp, a: i64, b: i64) -> i64 {
    let (quotient, rest) = (a.wrapping_div(b), a.wrapping_rem(b));
    let differ = rest != 0 && (a < 0) != (b < 0);
    match op {
        BinaryOp::FloorDiv => quotient - i64::from(differ),
        BinaryOp::TruncDiv => quotient,
        BinaryOp::Remainder => rest + if differ { b } else { 0 },
        _ => rest,
    }
}

fn divide_u64(op: BinaryOp, a: u64, b: u64) -> u64 {
    match op {
        BinaryOp::FloorDiv | BinaryOp::TruncDiv => a / b,
        _ => a % b,
    }
}

/// Powers of integers wrap; with negative exponents only 1 and -1 have a power but zero.
fn pow_int(base: i64, exponent: i64, unsigned: bool) -> i64 {
    if exponent < 0 && !unsigned {
        return match base {
            1 => 1,
            -1 if exponent % 2 == 0 => 1,
            -1 => -1,
            _ => 0,
        };
    }
    let (mut square, mut rest, mut product) = (base, exponent as u64, 1i64);
    while rest > 0 {
        if rest & 1 == 1 {
            product = product.wrapping_mul(square);
        }
        square = square.wrapping_mul(square);
        rest >>= 1;
    }
    product
}

fn shift(op: BinaryOp, dtype: DType, a: i64, count: i64) -> i64 {
    let inside = (0..bits_of(dtype)).contains(&count);
    match op {
        BinaryOp::Shl if inside => a << count,
        BinaryOp::Shl => 0,
        _ if dtype.is_signed_int() => a >> if inside { count } else { 63 },
        _ if inside => ((a as u64) >> count) as i64,
        _ => 0,
    }
}

fn binary_bool(op: BinaryOp, a: bool, b: bool) -> Result<Scalar, ScalarError> {
    if let Some(truth) = compare(op, a, b) {
        return Ok(truth);
    }
    Ok(Scalar::Bool(match op {
        BinaryOp::Add | BinaryOp::Max | BinaryOp::Fmax | BinaryOp::Or => a | b,
        BinaryOp::Mul | BinaryOp::Min | BinaryOp::Fmin | BinaryOp::And => a & b,
        BinaryOp::Xor => a ^ b,
        _ => return Err(undefined(op, DType::Bool)),
    }))
}

/// `a·b + c` of type `dtype`; floats are rounded once.
pub fn fma(dtype: DType, a: Scalar, b: Scalar, c: Scalar) -> Result<Scalar, ScalarError> {
    match (family(dtype), dtype) {
        (Family::Float, DType::F64 | DType::C128) => {
            Ok(Scalar::Float(libm::fma(a.to_f64(), b.to_f64(), c.to_f64())))
        }
        (Family::Float, _) => {
            let [a, b, c] = [a, b, c].map(|x| x.to_f64() as f32);
            Ok(Scalar::Float(f64::from(libm::fmaf(a, b, c))))
        }
        _ => binary(BinaryOp::Add, dtype, binary(BinaryOp::Mul, dtype, a, b)?, c),
    }
}

/// Combines values as a reduction does. Sums, products and Welford's mean of floats run in f64 and are rounded
/// to the compute type at the end: the result that other orders of summation are measured against.
#[derive(Clone, Debug)]
pub struct Accumulator {
    op: ReduceOp,
    dtype: DType,
    /// What is combined so far: unrounded for sums and products of floats.
    value: Scalar,
    /// Position of the value, for `ArgMax` and `ArgMin`.
    position: Option<i64>,
    /// Number of values so far.
    count: u64,
    /// Sum of squared differences from the mean.
    squares: f64,
}

impl Accumulator {
    /// Holds the value of no iterations. `dtype` is the type of the values.
    pub fn new(op: ReduceOp, dtype: DType) -> Result<Accumulator, ScalarError> {
        let kind = family(dtype);
        let defined = match op {
            ReduceOp::Sum | ReduceOp::Prod => kind != Family::Bool,
            ReduceOp::Welford => kind == Family::Float,
            ReduceOp::Any | ReduceOp::All => kind == Family::Bool,
            ReduceOp::Xor => kind != Family::Float,
            ReduceOp::Max | ReduceOp::Min | ReduceOp::ArgMax | ReduceOp::ArgMin => true,
        };
        if !defined || dtype.is_complex() {
            return Err(undefined(op, dtype));
        }
        Ok(Accumulator { op, dtype, value: identity(op, dtype), position: None, count: 0, squares: 0.0 })
    }

    /// Takes one value. `position` is only looked at by `ArgMax` and `ArgMin`.
    pub fn add(&mut self, value: Scalar, position: i64) -> Result<(), ScalarError> {
        self.count += 1;
        match self.op {
            ReduceOp::Sum => self.value = self.wide(BinaryOp::Add, value)?,
            ReduceOp::Prod => self.value = self.wide(BinaryOp::Mul, value)?,
            ReduceOp::Max => self.value = binary(BinaryOp::Max, self.dtype, self.value, value)?,
            ReduceOp::Min => self.value = binary(BinaryOp::Min, self.dtype, self.value, value)?,
            ReduceOp::Any => self.value = Scalar::Bool(self.value.to_bool() | value.to_bool()),
            ReduceOp::All => self.value = Scalar::Bool(self.value.to_bool() & value.to_bool()),
            ReduceOp::Xor => self.value = binary(BinaryOp::Xor, self.dtype, self.value, value)?,
            ReduceOp::ArgMax | ReduceOp::ArgMin => self.add_positioned(value, position)?,
            ReduceOp::Welford => {
                let (x, mean) = (value.to_f64(), self.value.to_f64());
                let next = mean + (x - mean) / self.count as f64;
                self.squares += (x - mean) * (x - next);
                self.value = Scalar::Float(next);
            }
        }
        Ok(())
    }

    fn wide(&self, op: BinaryOp, value: Scalar) -> Result<Scalar, ScalarError> {
        let dtype = if self.dtype.is_float() { DType::F64 } else { self.dtype };
        binary(op, dtype, self.value, value)
    }

    fn add_positioned(&mut self, value: Scalar, position: i64) -> Result<(), ScalarError> {
        let better = if self.op == ReduceOp::ArgMax { BinaryOp::Gt } else { BinaryOp::Lt };
        let is_nan = |x: Scalar| matches!(x, Scalar::Float(v) if v.is_nan());
        let replaces = match self.position {
            None => true,
            Some(old) => match (is_nan(value), is_nan(self.value)) {
                (true, false) => true,
                (false, true) => false,
                (true, true) => position < old,
                (false, false) => {
                    let equal = binary(BinaryOp::Eq, self.dtype, value, self.value)?.to_bool();
                    binary(better, self.dtype, value, self.value)?.to_bool() || (equal && position < old)
                }
            },
        };
        if replaces {
            self.value = value;
            self.position = Some(position);
        }
        Ok(())
    }

    /// The result, and the second one of reductions that have two.
    pub fn finish(&self) -> (Scalar, Option<Scalar>) {
        let float = |x: f64| Scalar::Float(round_to_compute(self.dtype, x));
        let first = match self.value {
            Scalar::Float(x) => float(x),
            other => other,
        };
        let second = match self.op {
            ReduceOp::Welford => Some(float(self.squares)),
            ReduceOp::ArgMax | ReduceOp::ArgMin => Some(Scalar::Int(self.position.unwrap_or(0))),
            _ => None,
        };
        (first, second)
    }
}

/// The value of a reduction over no iterations.
pub fn identity(op: ReduceOp, dtype: DType) -> Scalar {
    match op {
        ReduceOp::Sum | ReduceOp::Xor | ReduceOp::Welford => zero(dtype),
        ReduceOp::Prod => constant(Scalar::Int(1), dtype),
        ReduceOp::Any => Scalar::Bool(false),
        ReduceOp::All => Scalar::Bool(true),
        ReduceOp::Max | ReduceOp::ArgMax => lowest(dtype),
        ReduceOp::Min | ReduceOp::ArgMin => highest(dtype),
    }
}

/// The largest finite number of a float type; of any other type, its largest.
pub fn highest_finite(dtype: DType) -> f64 {
    match dtype {
        DType::F64 | DType::C128 => f64::MAX,
        DType::F32 | DType::C64 => f64::from(f32::MAX),
        DType::F16 | DType::C32 => f16::MAX.to_f64(),
        DType::BF16 => bf16::MAX.to_f64(),
        DType::F8E4M3FN => 448.0,
        DType::F8E5M2 => 57344.0,
        _ => highest(dtype).to_f64(),
    }
}

/// The smallest value of a type: -inf where there is one.
pub fn lowest(dtype: DType) -> Scalar {
    match family(dtype) {
        Family::Bool => Scalar::Bool(false),
        Family::Int if dtype.is_signed_int() => Scalar::Int(i64::MIN >> (64 - bits_of(dtype))),
        Family::Int => Scalar::Int(0),
        Family::Float => Scalar::Float(f64::NEG_INFINITY),
    }
}

/// The largest value of a type: inf where there is one.
pub fn highest(dtype: DType) -> Scalar {
    match family(dtype) {
        Family::Bool => Scalar::Bool(true),
        Family::Int if dtype.is_signed_int() => Scalar::Int(i64::MAX >> (64 - bits_of(dtype))),
        Family::Int => Scalar::Int(wrap(dtype, -1)),
        Family::Float => Scalar::Float(f64::INFINITY),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn float(op: BinaryOp, a: f64, b: f64) -> f64 {
        binary(op, DType::F32, Scalar::Float(a), Scalar::Float(b)).unwrap().to_f64()
    }

    fn int(op: BinaryOp, dtype: DType, a: i64, b: i64) -> i64 {
        binary(op, dtype, Scalar::Int(a), Scalar::Int(b)).unwrap().to_i64()
    }

    fn to_int(value: f64, to: DType) -> i64 {
        cast(Scalar::Float(value), DType::F32, to).to_i64()
    }

    #[test]
    fn floats_become_integers_as_in_eager_pytorch() {
        let types = [DType::I64, DType::I32, DType::I16, DType::I8, DType::U8];
        let (low64, low32) = (i64::MIN, i64::from(i32::MIN));
        for (value, expected) in [
            (3e9, [3_000_000_000, low32, 0, 0, 0]),
            (-3e9, [-3_000_000_000, low32, 0, 0, 0]),
            (-3.7, [-3, -3, -3, -3, 253]),
            (300.9, [300, 300, 300, 44, 44]),
            (1e20, [low64, low32, 0, 0, 0]),
            (f64::NAN, [low64, low32, 0, 0, 0]),
            (f64::INFINITY, [low64, low32, 0, 0, 0]),
            (70000.7, [70000, 70000, 4464, 112, 112]),
        ] {
            assert_eq!(types.map(|t| to_int(value, t)), expected, "{value}");
        }
        assert_eq!(cast(Scalar::Float(f64::NAN), DType::F32, DType::Bool), Scalar::Bool(true));
    }

    #[test]
    fn integers_become_floats_with_one_rounding() {
        // By way of f64 this would round to the even neighbour first, then down.
        let value = (1i64 << 60) + (1 << 36) + 1;
        let expected = f64::from(value as f32);
        assert_eq!(cast(Scalar::Int(value), DType::I64, DType::F32), Scalar::Float(expected));
        assert_eq!(cast(Scalar::Int(-1), DType::U64, DType::F64), Scalar::Float(u64::MAX as f64));
    }

    #[test]
    fn casts_to_narrow_floats_round_to_them() {
        let to = |value, dtype| cast(Scalar::Float(value), DType::F32, dtype).to_f64();
        assert_eq!(to(1.00390625, DType::BF16), 1.0);
        assert_eq!(to(65520.0, DType::F16), f64::INFINITY);
        assert_eq!(to(500.0, DType::F8E4M3FN), 448.0);
        assert_eq!(to(f64::NEG_INFINITY, DType::F8E4M3FN), -448.0);
        assert_eq!(to(0.001, DType::F8E4M3FN), 0.001953125);
        assert_eq!(to(60000.0, DType::F8E5M2), 57344.0);
        assert_eq!(to(61440.0, DType::F8E5M2), f64::INFINITY);
        assert_eq!(to(1e-6, DType::F8E5M2), 0.0);
    }

    #[test]
    fn all_bits_of_narrow_types_read_back() {
        for dtype in
            [DType::F16, DType::BF16, DType::F8E4M3FN, DType::F8E5M2, DType::I8, DType::U8, DType::I16]
        {
            for bits in 0..1u64 << bits_of(dtype) {
                let value = from_bits(bits, dtype);
                if !value.to_f64().is_nan() {
                    assert_eq!(to_bits(value, dtype), bits, "{dtype} {bits:#x}");
                    assert_eq!(cast(value, dtype, dtype), value, "{dtype} {bits:#x}");
                }
            }
        }
    }

    #[test]
    fn division_and_remainder_have_pytorchs_signs() {
        use BinaryOp::*;
        let of = |a, b| [FloorDiv, TruncDiv, Remainder, Fmod].map(|op| int(op, DType::I32, a, b));
        assert_eq!(of(-7, 2), [-4, -3, 1, -1]);
        assert_eq!(of(7, -2), [-4, -3, -1, 1]);
        assert_eq!(of(-7, -2), [3, 3, -1, -1]);
        assert_eq!(int(Remainder, DType::I64, i64::MIN, -1), 0);
        assert_eq!(int(FloorDiv, DType::U64, -1, 2), i64::MAX);
        assert_eq!(
            binary(FloorDiv, DType::I64, Scalar::Int(1), Scalar::Int(0)),
            Err(ScalarError::DivisionByZero(FloorDiv))
        );
        assert_eq!(float(FloorDiv, -1.0, 0.0), f64::NEG_INFINITY);
        assert!(float(FloorDiv, f64::INFINITY, 2.0).is_nan());
        assert_eq!(float(FloorDiv, 5.0, f64::INFINITY), 0.0);
        assert_eq!(float(Remainder, -1.0, f64::INFINITY), f64::INFINITY);
        assert!(float(Remainder, 5.0, 0.0).is_nan());
        assert_eq!(float(Fmod, -7.5, 2.0), -1.5);
    }

    #[test]
    fn integers_wrap_at_their_width() {
        assert_eq!(int(BinaryOp::Add, DType::U8, 250, 10), 4);
        assert_eq!(int(BinaryOp::Mul, DType::I8, 100, 2), -56);
        assert_eq!(int(BinaryOp::Sub, DType::U8, 0, 1), 255);
        assert_eq!(unary(UnaryOp::Neg, DType::I64, Scalar::Int(i64::MIN)), Ok(Scalar::Int(i64::MIN)));
        assert_eq!(unary(UnaryOp::Not, DType::U8, Scalar::Int(1)), Ok(Scalar::Int(254)));
        assert_eq!(int(BinaryOp::Pow, DType::I64, 3, 41), 3i64.wrapping_pow(41));
        let powers = [(0, -1), (1, -1), (-1, -3), (-1, -2), (2, -1)];
        assert_eq!(powers.map(|(a, b)| int(BinaryOp::Pow, DType::I64, a, b)), [0, 1, -1, 1, 0]);
    }

    #[test]
    fn shifts_out_of_range_leave_zero_or_the_sign() {
        use BinaryOp::{Shl, Shr};
        assert_eq!(int(Shl, DType::I64, 5, 64), 0);
        assert_eq!(int(Shl, DType::I32, 1, 31), i64::from(i32::MIN));
        assert_eq!(int(Shl, DType::I64, 5, -1), 0);
        assert_eq!(int(Shr, DType::I64, -5, 64), -1);
        assert_eq!(int(Shr, DType::I8, 5, -1), 0);
        assert_eq!(int(Shr, DType::U8, 255, 8), 0);
        assert_eq!(int(Shr, DType::U8, 255, 7), 1);
    }

    #[test]
    fn nan_wins_in_max_and_min_and_loses_in_fmax_and_fmin() {
        for (a, b) in [(1.0, f64::NAN), (f64::NAN, 1.0)] {
            assert!(float(BinaryOp::Max, a, b).is_nan());
            assert!(float(BinaryOp::Min, a, b).is_nan());
            assert_eq!(float(BinaryOp::Fmax, a, b), 1.0);
            assert_eq!(float(BinaryOp::Fmin, a, b), 1.0);
        }
        assert_eq!(unary(UnaryOp::Sign, DType::F32, Scalar::Float(f64::NAN)), Ok(Scalar::Float(0.0)));
    }

    #[test]
    fn rounding_goes_to_the_even_neighbour() {
        let round = |x| unary(UnaryOp::Round, DType::F32, Scalar::Float(x)).unwrap().to_f64();
        assert_eq!([0.5, 1.5, 2.5, -0.5, -1.5].map(round), [0.0, 2.0, 2.0, 0.0, -2.0]);
    }

    #[test]
    fn nextafter_steps_in_the_types_own_numbers() {
        let next = |dtype, a, b| {
            binary(BinaryOp::Nextafter, dtype, Scalar::Float(a), Scalar::Float(b)).unwrap().to_f64()
        };
        assert_eq!(next(DType::F32, 1.0, 2.0), 1.0 + f64::from(f32::EPSILON));
        assert_eq!(next(DType::BF16, 1.0, 2.0), 1.0078125);
        assert_eq!(next(DType::F64, 0.0, -1.0), -5e-324);
        assert_eq!(next(DType::F32, 1.0, 0.0), f64::from(1f32.next_down()));
    }

    fn reduce(op: ReduceOp, dtype: DType, values: &[f64]) -> (f64, Option<f64>) {
        let mut accumulator = Accumulator::new(op, dtype).unwrap();
        for (k, v) in values.iter().enumerate() {
            accumulator.add(constant(Scalar::Float(*v), dtype), k as i64).unwrap();
        }
        let (first, second) = accumulator.finish();
        (first.to_f64(), second.map(Scalar::to_f64))
    }

    #[test]
    fn reductions_over_nothing_have_their_identity() {
        assert_eq!(reduce(ReduceOp::Sum, DType::F32, &[]).0, 0.0);
        assert_eq!(reduce(ReduceOp::Prod, DType::I32, &[]).0, 1.0);
        assert_eq!(reduce(ReduceOp::Max, DType::F32, &[]).0, f64::NEG_INFINITY);
        assert_eq!(reduce(ReduceOp::Max, DType::I8, &[]).0, -128.0);
        assert_eq!(reduce(ReduceOp::Min, DType::U8, &[]).0, 255.0);
        assert_eq!(reduce(ReduceOp::All, DType::Bool, &[]).0, 1.0);
        assert_eq!(reduce(ReduceOp::Welford, DType::F32, &[]), (0.0, Some(0.0)));
    }

    #[test]
    fn arg_reductions_take_the_first_of_equals_and_nan_before_all() {
        let nan = f64::NAN;
        assert_eq!(reduce(ReduceOp::ArgMax, DType::F32, &[1.0, 3.0, 3.0]), (3.0, Some(1.0)));
        assert_eq!(reduce(ReduceOp::ArgMin, DType::I64, &[2.0, 1.0, 1.0]), (1.0, Some(1.0)));
        assert_eq!(reduce(ReduceOp::ArgMax, DType::F32, &[9.0, nan, nan]).1, Some(1.0));
        assert_eq!(reduce(ReduceOp::ArgMin, DType::F32, &[9.0, nan, -1.0]).1, Some(1.0));
        let mut backwards = Accumulator::new(ReduceOp::ArgMax, DType::F32).unwrap();
        for position in [2, 1, 0] {
            backwards.add(Scalar::Float(7.0), position).unwrap();
        }
        assert_eq!(backwards.finish().1, Some(Scalar::Int(0)));
    }

    #[test]
    fn welford_gives_mean_and_squared_differences() {
        assert_eq!(reduce(ReduceOp::Welford, DType::F32, &[1.0, 2.0, 3.0, 6.0]), (3.0, Some(14.0)));
    }

    #[test]
    fn operations_without_meaning_are_errors() {
        assert!(unary(UnaryOp::Exp, DType::I64, Scalar::Int(1)).is_err());
        assert!(unary(UnaryOp::Neg, DType::Bool, Scalar::Bool(true)).is_err());
        assert!(binary(BinaryOp::Sub, DType::Bool, Scalar::Bool(true), Scalar::Bool(true)).is_err());
        assert!(binary(BinaryOp::And, DType::F32, Scalar::Float(1.0), Scalar::Float(1.0)).is_err());
        assert!(Accumulator::new(ReduceOp::Welford, DType::I64).is_err());
        assert!(bitcast(Scalar::Int(1), DType::I64, DType::F32).is_err());
    }

    proptest! {
        #[test]
        fn f32_arithmetic_is_the_machines(a: f32, b: f32, c: f32) {
            let s = |x: f32| Scalar::Float(f64::from(x));
            let same = |x: Scalar, y: f32| {
                let x = x.to_f64() as f32;
                x == y || (x.is_nan() && y.is_nan())
            };
            for (op, expected) in [
                (BinaryOp::Add, a + b), (BinaryOp::Sub, a - b), (BinaryOp::Mul, a * b), (BinaryOp::Div, a / b),
                (BinaryOp::Fmod, a % b),
            ] {
                prop_assert!(same(binary(op, DType::F32, s(a), s(b)).unwrap(), expected), "{op:?} {a} {b}");
            }
            prop_assert!(same(fma(DType::F32, s(a), s(b), s(c)).unwrap(), a.mul_add(b, c)));
        }

        #[test]
        fn integer_quotient_and_remainder_fit_together(a: i32, b: i32) {
            prop_assume!(b != 0);
            let (a, b) = (i64::from(a), i64::from(b));
            for (quotient, rest) in [(BinaryOp::FloorDiv, BinaryOp::Remainder), (BinaryOp::TruncDiv, BinaryOp::Fmod)] {
                prop_assert_eq!(int(quotient, DType::I64, a, b) * b + int(rest, DType::I64, a, b), a);
            }
        }
    }
}
