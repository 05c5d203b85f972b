//! Elementwise choice: where, masks, and values held within limits.

use super::{Accepts, Formula, Pointwise, Types, float, map, zip};
use crate::dtype::{DType, Scalar};
use crate::interp::scalar;
use crate::nest::BinaryOp;
use crate::ops::call::Call;
use crate::ops::eval::Fault;
use crate::ops::{InferError, OpDef, Operand, Semantics};

const WHERE: &[(usize, &str)] = &[(0, "condition"), (1, "self"), (2, "other")];
const LIMITS: &[(usize, &str)] = &[(0, "self"), (1, "min"), (2, "max")];

pub(super) const OPS: &[OpDef] = &[
    zip("aten.where.self", "condition, self, other", WHERE, Types::Select, Accepts::All, choose),
    zip("aten.where.ScalarSelf", "condition, self, other", WHERE, Types::Select, Accepts::All, choose),
    zip("aten.where.ScalarOther", "condition, self, other", WHERE, Types::Select, Accepts::All, choose),
    zip("aten.where.Scalar", "condition, self, other", WHERE, Types::Select, Accepts::All, choose),
    clamp("aten.clamp.default"),
    clamp("aten.clamp.Tensor"),
    limit("aten.clamp_min.default", "self, min", true),
    limit("aten.clamp_min.Tensor", "self, min", true),
    limit("aten.clamp_max.default", "self, max", false),
    limit("aten.clamp_max.Tensor", "self, max", false),
    map("aten.nan_to_num.default", "self, nan, posinf, neginf", Types::Promote, Accepts::All, |c, d, x| {
        if !d.is_float() {
            return Ok(x[0]);
        }
        let (nan, highest) = (c.float_or(1, "nan", 0.0)?, scalar::highest_finite(d));
        let value = x[0].to_f64();
        float(
            d,
            if value.is_nan() {
                nan
            } else if value == f64::INFINITY {
                c.float_or(2, "posinf", highest)?
            } else if value == f64::NEG_INFINITY {
                c.float_or(3, "neginf", -highest)?
            } else {
                value
            },
        )
    }),
];

const fn clamp(name: &'static str) -> OpDef {
    let formula = Formula::Custom(|call, dtype, x| {
        let (low, high) = (call.has(1, "min"), call.has(2, "max"));
        if !low && !high {
            return Err(call.invalid("min", "at least one of `min` and `max` must be given").into());
        }
        let raised = if low { bounded(call, (1, "min"), BinaryOp::Max, dtype, [x[0], x[1]])? } else { x[0] };
        if !high {
            return Ok(raised);
        }
        bounded(call, (2, "max"), BinaryOp::Min, dtype, [raised, x[x.len() - 1]])
    });
    let pointwise =
        Pointwise { operands: LIMITS, required: 1, types: Types::Promote, accepts: Accepts::Limits, formula };
    OpDef { name, params: "self, min, max", semantics: Semantics::Pointwise(pointwise) }
}

/// An operator that holds values above or below the operand `min` or `max`.
const fn limit(name: &'static str, params: &'static str, lower: bool) -> OpDef {
    let (operands, formula): (&[(usize, &str)], _) = if lower {
        (
            &[(0, "self"), (1, "min")],
            Formula::Custom(|c, d, x| bounded(c, (1, "min"), BinaryOp::Max, d, [x[0], x[1]])),
        )
    } else {
        (
            &[(0, "self"), (1, "max")],
            Formula::Custom(|c, d, x| bounded(c, (1, "max"), BinaryOp::Min, d, [x[0], x[1]])),
        )
    };
    let pointwise =
        Pointwise { operands, required: 2, types: Types::Promote, accepts: Accepts::Limits, formula };
    OpDef { name, params, semantics: Semantics::Pointwise(pointwise) }
}

fn bounded(
    call: &Call,
    (position, name): (usize, &str),
    op: BinaryOp,
    dtype: DType,
    [x, limit]: [Scalar; 2],
) -> Result<Scalar, Fault> {
    // An integer that the type can't hold must not wrap around.
    let limit = match call.opt_operand(position, name)? {
        Some(Operand::Scalar(Scalar::Int(value))) if dtype.is_int() => {
            Scalar::Int(scalar::saturate(dtype, value))
        }
        _ => limit,
    };
    Ok(scalar::binary(op, dtype, x, limit)?)
}

/// Fails on a lower limit above everything that the type holds, or an upper one below: PyTorch refuses them.
pub(super) fn check_limits(call: &Call, dtype: DType) -> Result<(), InferError> {
    if !dtype.is_int() {
        return Ok(());
    }
    let low = if call.op.starts_with("aten.clamp_max") { None } else { call.opt_operand(1, "min")? };
    let high = match call.op {
        op if op.starts_with("aten.clamp_min") => None,
        op if op.starts_with("aten.clamp_max") => call.opt_operand(1, "max")?,
        _ => call.opt_operand(2, "max")?,
    };
    let check = |name: &str, limit: Option<Operand>, outside: fn(i64, i64) -> bool| match limit {
        Some(Operand::Scalar(Scalar::Int(value))) if outside(value, scalar::saturate(dtype, value)) => {
            Err(call.invalid(name, format!("{value} is outside of what {dtype} can hold")))
        }
        _ => Ok(()),
    };
    check("min", low, |value, nearest| value > nearest)?;
    check("max", high, |value, nearest| value < nearest)
}

fn choose(_: &Call, _: DType, x: &[Scalar]) -> Result<Scalar, Fault> {
    Ok(if x[0].to_bool() { x[1] } else { x[2] })
}
