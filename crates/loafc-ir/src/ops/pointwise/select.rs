//! Elementwise choice: where, masks, and values held within limits.

use super::{Accepts, Formula, Pointwise, Types, float, map, zip};
use crate::dtype::{DType, Scalar};
use crate::interp::scalar;
use crate::nest::BinaryOp;
use crate::ops::call::Call;
use crate::ops::eval::Fault;
use crate::ops::{OpDef, Semantics};

const WHERE: &[(usize, &str)] = &[(0, "condition"), (1, "self"), (2, "other")];
const LIMITS: &[(usize, &str)] = &[(0, "self"), (1, "min"), (2, "max")];

pub(super) const OPS: &[OpDef] = &[
    zip("aten.where.self", "condition, self, other", WHERE, Types::Select, Accepts::All, choose),
    zip("aten.where.ScalarSelf", "condition, self, other", WHERE, Types::Select, Accepts::All, choose),
    zip("aten.where.ScalarOther", "condition, self, other", WHERE, Types::Select, Accepts::All, choose),
    zip("aten.where.Scalar", "condition, self, other", WHERE, Types::Select, Accepts::All, choose),
    clamp("aten.clamp.default"),
    clamp("aten.clamp.Tensor"),
    limit("aten.clamp_min.default", "self, min", &[(0, "self"), (1, "min")], BinaryOp::Max),
    limit("aten.clamp_min.Tensor", "self, min", &[(0, "self"), (1, "min")], BinaryOp::Max),
    limit("aten.clamp_max.default", "self, max", &[(0, "self"), (1, "max")], BinaryOp::Min),
    limit("aten.clamp_max.Tensor", "self, max", &[(0, "self"), (1, "max")], BinaryOp::Min),
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
        let raised = if low { bounded(BinaryOp::Max, dtype, x[0], x[1])? } else { x[0] };
        if high { bounded(BinaryOp::Min, dtype, raised, x[x.len() - 1]) } else { Ok(raised) }
    });
    let pointwise =
        Pointwise { operands: LIMITS, required: 1, types: Types::Promote, accepts: Accepts::All, formula };
    OpDef { name, params: "self, min, max", semantics: Semantics::Pointwise(pointwise) }
}

const fn limit(
    name: &'static str,
    params: &'static str,
    operands: &'static [(usize, &'static str)],
    op: BinaryOp,
) -> OpDef {
    let pointwise = Pointwise {
        operands,
        required: 2,
        types: Types::Promote,
        accepts: Accepts::All,
        formula: Formula::Binary(op),
    };
    OpDef { name, params, semantics: Semantics::Pointwise(pointwise) }
}

fn bounded(op: BinaryOp, dtype: DType, x: Scalar, limit: Scalar) -> Result<Scalar, Fault> {
    Ok(scalar::binary(op, dtype, x, limit)?)
}

fn choose(_: &Call, _: DType, x: &[Scalar]) -> Result<Scalar, Fault> {
    Ok(if x[0].to_bool() { x[1] } else { x[2] })
}
