//! Elementwise arithmetic and mathematical functions.

use super::{Accepts, Types, binary, float, map, unary, zip};
use crate::dtype::{DType, Scalar};
use crate::interp::scalar;
use crate::nest::{BinaryOp, UnaryOp};
use crate::ops::OpDef;
use crate::ops::call::{Call, KEYWORD};
use crate::ops::eval::Fault;
use crate::ops::promote::rounds_number;

const BOTH: &[(usize, &str)] = &[(0, "self"), (1, "other")];
const ADD: &str = "self, other, *, alpha";
const ADDC: &str = "self, tensor1, tensor2, *, value";
const TRIPLE: &[(usize, &str)] = &[(0, "self"), (1, "tensor1"), (2, "tensor2")];
const LERP: &[(usize, &str)] = &[(0, "self"), (1, "end"), (2, "weight")];

pub(super) const OPS: &[OpDef] = &[
    unary("aten.neg.default", Types::Promote, Accepts::Numbers, UnaryOp::Neg),
    unary("aten.abs.default", Types::Promote, Accepts::All, UnaryOp::Abs),
    unary("aten.sign.default", Types::Promote, Accepts::All, UnaryOp::Sign),
    unary("aten.sgn.default", Types::Promote, Accepts::All, UnaryOp::Sign),
    unary("aten.floor.default", Types::Promote, Accepts::Numbers, UnaryOp::Floor),
    unary("aten.ceil.default", Types::Promote, Accepts::Numbers, UnaryOp::Ceil),
    unary("aten.trunc.default", Types::Promote, Accepts::Numbers, UnaryOp::Trunc),
    unary("aten.round.default", Types::Promote, Accepts::Numbers, UnaryOp::Round),
    unary("aten.sqrt.default", Types::Float, Accepts::All, UnaryOp::Sqrt),
    unary("aten.rsqrt.default", Types::Float, Accepts::All, UnaryOp::Rsqrt),
    unary("aten.reciprocal.default", Types::Float, Accepts::All, UnaryOp::Reciprocal),
    unary("aten.exp.default", Types::Float, Accepts::All, UnaryOp::Exp),
    unary("aten.exp2.default", Types::Float, Accepts::All, UnaryOp::Exp2),
    unary("aten.expm1.default", Types::Float, Accepts::All, UnaryOp::Expm1),
    unary("aten.log.default", Types::Float, Accepts::All, UnaryOp::Log),
    unary("aten.log2.default", Types::Float, Accepts::All, UnaryOp::Log2),
    unary("aten.log10.default", Types::Float, Accepts::All, UnaryOp::Log10),
    unary("aten.log1p.default", Types::Float, Accepts::All, UnaryOp::Log1p),
    unary("aten.sin.default", Types::Float, Accepts::All, UnaryOp::Sin),
    unary("aten.cos.default", Types::Float, Accepts::All, UnaryOp::Cos),
    unary("aten.tan.default", Types::Float, Accepts::All, UnaryOp::Tan),
    unary("aten.asin.default", Types::Float, Accepts::All, UnaryOp::Asin),
    unary("aten.acos.default", Types::Float, Accepts::All, UnaryOp::Acos),
    unary("aten.atan.default", Types::Float, Accepts::All, UnaryOp::Atan),
    unary("aten.sinh.default", Types::Float, Accepts::All, UnaryOp::Sinh),
    unary("aten.cosh.default", Types::Float, Accepts::All, UnaryOp::Cosh),
    unary("aten.tanh.default", Types::Float, Accepts::All, UnaryOp::Tanh),
    unary("aten.asinh.default", Types::Float, Accepts::All, UnaryOp::Asinh),
    unary("aten.acosh.default", Types::Float, Accepts::All, UnaryOp::Acosh),
    unary("aten.atanh.default", Types::Float, Accepts::All, UnaryOp::Atanh),
    unary("aten.erf.default", Types::Float, Accepts::All, UnaryOp::Erf),
    unary("aten.erfc.default", Types::Float, Accepts::All, UnaryOp::Erfc),
    unary("aten.erfinv.default", Types::Float, Accepts::All, UnaryOp::Erfinv),
    unary("aten.lgamma.default", Types::Float, Accepts::All, UnaryOp::Lgamma),
    unary("aten.digamma.default", Types::Float, Accepts::All, UnaryOp::Digamma),
    unary("aten.sigmoid.default", Types::Float, Accepts::All, UnaryOp::Sigmoid),
    map("aten.square.default", "self", Types::Promote, Accepts::Numbers, |_, d, x| {
        Ok(scalar::binary(BinaryOp::Mul, d, x[0], x[0])?)
    }),
    map("aten.frac.default", "self", Types::Promote, Accepts::Floats, |_, d, x| {
        float(d, x[0].to_f64().fract())
    }),
    map("aten.round.decimals", "self, *, decimals", Types::Promote, Accepts::Floats, |c, d, x| {
        let scale = 10f64.powi(c.int_or(KEYWORD, "decimals", 0)?.clamp(-400, 400) as i32);
        float(d, (x[0].to_f64() * scale).round_ties_even() / scale)
    }),
    zip("aten.add.Tensor", ADD, BOTH, Types::Promote, Accepts::All, |c, d, x| {
        Ok(scalar::binary(BinaryOp::Add, d, x[0], scaled(c, "alpha", d, x[1])?)?)
    }),
    zip("aten.add.Scalar", "self, other, alpha", BOTH, Types::Promote, Accepts::All, |c, d, x| {
        Ok(scalar::binary(BinaryOp::Add, d, x[0], scaled_at(c, 2, "alpha", d, x[1])?)?)
    }),
    zip("aten.sub.Tensor", ADD, BOTH, Types::Promote, Accepts::Numbers, |c, d, x| {
        Ok(scalar::binary(BinaryOp::Sub, d, x[0], scaled(c, "alpha", d, x[1])?)?)
    }),
    zip("aten.sub.Scalar", "self, other, alpha", BOTH, Types::Promote, Accepts::Numbers, |c, d, x| {
        Ok(scalar::binary(BinaryOp::Sub, d, x[0], scaled_at(c, 2, "alpha", d, x[1])?)?)
    }),
    zip("aten.rsub.Tensor", ADD, BOTH, Types::Promote, Accepts::Numbers, |c, d, x| {
        Ok(scalar::binary(BinaryOp::Sub, d, x[1], scaled(c, "alpha", d, x[0])?)?)
    }),
    zip("aten.rsub.Scalar", "self, other, alpha", BOTH, Types::Promote, Accepts::Numbers, |c, d, x| {
        Ok(scalar::binary(BinaryOp::Sub, d, x[1], scaled_at(c, 2, "alpha", d, x[0])?)?)
    }),
    binary("aten.mul.Tensor", Types::Promote, Accepts::All, BinaryOp::Mul),
    binary("aten.mul.Scalar", Types::Promote, Accepts::All, BinaryOp::Mul),
    binary("aten.div.Tensor", Types::Float, Accepts::All, BinaryOp::Div),
    binary("aten.div.Scalar", Types::Float, Accepts::All, BinaryOp::Div),
    binary("aten.true_divide.Tensor", Types::Float, Accepts::All, BinaryOp::Div),
    zip("aten.div.Tensor_mode", "self, other, *, rounding_mode", BOTH, Types::Division, Accepts::All, divide),
    zip("aten.div.Scalar_mode", "self, other, *, rounding_mode", BOTH, Types::Division, Accepts::All, divide),
    binary("aten.floor_divide.default", Types::Promote, Accepts::Numbers, BinaryOp::FloorDiv),
    binary("aten.floor_divide.Scalar", Types::Promote, Accepts::Numbers, BinaryOp::FloorDiv),
    binary("aten.remainder.Tensor", Types::Promote, Accepts::Numbers, BinaryOp::Remainder),
    binary("aten.remainder.Scalar", Types::Promote, Accepts::Numbers, BinaryOp::Remainder),
    binary("aten.remainder.Scalar_Tensor", Types::Promote, Accepts::Numbers, BinaryOp::Remainder),
    binary("aten.fmod.Tensor", Types::Promote, Accepts::Numbers, BinaryOp::Fmod),
    binary("aten.fmod.Scalar", Types::Promote, Accepts::Numbers, BinaryOp::Fmod),
    binary("aten.maximum.default", Types::Promote, Accepts::All, BinaryOp::Max),
    binary("aten.minimum.default", Types::Promote, Accepts::All, BinaryOp::Min),
    binary("aten.max.other", Types::Promote, Accepts::All, BinaryOp::Max),
    binary("aten.min.other", Types::Promote, Accepts::All, BinaryOp::Min),
    binary("aten.fmax.default", Types::Promote, Accepts::All, BinaryOp::Fmax),
    binary("aten.fmin.default", Types::Promote, Accepts::All, BinaryOp::Fmin),
    binary("aten.atan2.default", Types::Float, Accepts::All, BinaryOp::Atan2),
    binary("aten.hypot.default", Types::Promote, Accepts::Floats, BinaryOp::Hypot),
    binary("aten.copysign.Tensor", Types::Float, Accepts::All, BinaryOp::Copysign),
    binary("aten.copysign.Scalar", Types::Float, Accepts::All, BinaryOp::Copysign),
    binary("aten.nextafter.default", Types::Promote, Accepts::Floats, BinaryOp::Nextafter),
    zip("aten.pow.Tensor_Tensor", "self, exponent", POWER, Types::Promote, Accepts::Numbers, |_, d, x| {
        Ok(scalar::binary(BinaryOp::Pow, d, x[0], x[1])?)
    }),
    zip("aten.pow.Tensor_Scalar", "self, exponent", POWER, Types::Promote, Accepts::Numbers, |_, d, x| {
        if d.is_int() && x[1].to_i64() < 0 {
            let message = "integers have no negative integer powers; convert the base to a float";
            return Err(Fault::Value(message.to_owned()));
        }
        Ok(scalar::binary(BinaryOp::Pow, d, x[0], x[1])?)
    }),
    zip("aten.pow.Scalar", "self, exponent", POWER, Types::Promote, Accepts::Numbers, |_, d, x| {
        Ok(scalar::binary(BinaryOp::Pow, d, x[0], x[1])?)
    }),
    zip("aten.xlogy.Tensor", "self, other", BOTH, Types::Float, Accepts::All, |_, d, x| {
        let (x, y) = (x[0].to_f64(), x[1].to_f64());
        float(
            d,
            if y.is_nan() {
                y
            } else if x == 0.0 {
                0.0
            } else {
                x * y.ln()
            },
        )
    }),
    zip("aten.logaddexp.default", "self, other", BOTH, Types::Promote, Accepts::Floats, |_, d, x| {
        let (a, b) = (x[0].to_f64(), x[1].to_f64());
        let largest = a.max(b);
        if a.is_nan() || b.is_nan() || largest.is_infinite() {
            return float(d, if a.is_nan() || b.is_nan() { f64::NAN } else { largest });
        }
        float(d, largest + (-(a - b).abs()).exp().ln_1p())
    }),
    binary("aten.bitwise_and.Tensor", Types::Promote, Accepts::IntegersAndBools, BinaryOp::And),
    binary("aten.bitwise_and.Scalar", Types::Promote, Accepts::IntegersAndBools, BinaryOp::And),
    binary("aten.bitwise_or.Tensor", Types::Promote, Accepts::IntegersAndBools, BinaryOp::Or),
    binary("aten.bitwise_or.Scalar", Types::Promote, Accepts::IntegersAndBools, BinaryOp::Or),
    binary("aten.bitwise_xor.Tensor", Types::Promote, Accepts::IntegersAndBools, BinaryOp::Xor),
    binary("aten.bitwise_xor.Scalar", Types::Promote, Accepts::IntegersAndBools, BinaryOp::Xor),
    unary("aten.bitwise_not.default", Types::Promote, Accepts::IntegersAndBools, UnaryOp::Not),
    binary("aten.bitwise_left_shift.Tensor", Types::Promote, Accepts::IntegersAndBools, BinaryOp::Shl),
    binary("aten.bitwise_left_shift.Tensor_Scalar", Types::Promote, Accepts::IntegersAndBools, BinaryOp::Shl),
    binary("aten.bitwise_right_shift.Tensor", Types::Promote, Accepts::IntegersAndBools, BinaryOp::Shr),
    binary(
        "aten.bitwise_right_shift.Tensor_Scalar",
        Types::Promote,
        Accepts::IntegersAndBools,
        BinaryOp::Shr,
    ),
    binary("aten.__lshift__.Scalar", Types::Promote, Accepts::IntegersAndBools, BinaryOp::Shl),
    binary("aten.__rshift__.Scalar", Types::Promote, Accepts::IntegersAndBools, BinaryOp::Shr),
    zip("aten.addcmul.default", ADDC, TRIPLE, Types::Promote, Accepts::Numbers, |c, d, x| {
        let scaled = scaled(c, "value", d, x[1])?;
        let product = scalar::binary(BinaryOp::Mul, d, scaled, x[2])?;
        Ok(scalar::binary(BinaryOp::Add, d, x[0], product)?)
    }),
    zip("aten.addcdiv.default", ADDC, TRIPLE, Types::Promote, Accepts::Floats, |c, d, x| {
        let scaled = scaled(c, "value", d, x[1])?;
        let quotient = scalar::binary(BinaryOp::Div, d, scaled, x[2])?;
        Ok(scalar::binary(BinaryOp::Add, d, x[0], quotient)?)
    }),
    zip("aten.lerp.Scalar", "self, end, weight", LERP, Types::Promote, Accepts::Floats, lerp),
    zip("aten.lerp.Tensor", "self, end, weight", LERP, Types::Promote, Accepts::Floats, lerp),
    zip(
        "prims.fma.default",
        "self, other, addend",
        &[(0, "self"), (1, "other"), (2, "addend")],
        Types::Promote,
        Accepts::Floats,
        |_, d, x| Ok(scalar::fma(d, x[0], x[1], x[2])?),
    ),
];

const POWER: &[(usize, &str)] = &[(0, "self"), (1, "exponent")];

/// The operand times the number that this keyword gives, or as it is.
fn scaled(call: &Call, keyword: &str, dtype: DType, x: Scalar) -> Result<Scalar, Fault> {
    scaled_at(call, KEYWORD, keyword, dtype, x)
}

fn scaled_at(call: &Call, position: usize, name: &str, dtype: DType, x: Scalar) -> Result<Scalar, Fault> {
    let Some(factor) = call.opt_scalar(position, name)? else { return Ok(x) };
    let factor = match dtype {
        d if d.is_float() && !rounds_number(call.op, position) => {
            Scalar::Float(scalar::round_to_compute(d, factor.to_f64()))
        }
        d => scalar::constant(factor, d),
    };
    Ok(scalar::binary(BinaryOp::Mul, dtype, factor, x)?)
}

fn divide(call: &Call, dtype: DType, x: &[Scalar]) -> Result<Scalar, Fault> {
    let op = match call.str_or(KEYWORD, "rounding_mode", "")? {
        "" => BinaryOp::Div,
        "floor" => BinaryOp::FloorDiv,
        "trunc" => BinaryOp::TruncDiv,
        other => {
            let message = format!("{other:?} is not a rounding mode; use \"floor\", \"trunc\" or none");
            return Err(call.invalid("rounding_mode", message).into());
        }
    };
    Ok(scalar::binary(op, dtype, x[0], x[1])?)
}

/// From the nearer end, as PyTorch does, so that a weight of 1 gives the end exactly.
fn lerp(_: &Call, dtype: DType, x: &[Scalar]) -> Result<Scalar, Fault> {
    let (start, end, weight) = (x[0].to_f64(), x[1].to_f64(), x[2].to_f64());
    float(
        dtype,
        if weight.abs() < 0.5 {
            start + weight * (end - start)
        } else {
            end - (end - start) * (1.0 - weight)
        },
    )
}
