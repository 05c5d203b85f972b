//! Elementwise comparisons, tests and logic: all make truth values.

use super::{Accepts, Types, binary, map, unary, zip};
use crate::dtype::Scalar;
use crate::nest::{BinaryOp, UnaryOp};
use crate::ops::OpDef;

const BOTH: &[(usize, &str)] = &[(0, "self"), (1, "other")];

pub(super) const OPS: &[OpDef] = &[
    binary("aten.eq.Tensor", Types::Test, Accepts::All, BinaryOp::Eq),
    binary("aten.eq.Scalar", Types::Test, Accepts::All, BinaryOp::Eq),
    binary("aten.ne.Tensor", Types::Test, Accepts::All, BinaryOp::Ne),
    binary("aten.ne.Scalar", Types::Test, Accepts::All, BinaryOp::Ne),
    binary("aten.lt.Tensor", Types::Test, Accepts::All, BinaryOp::Lt),
    binary("aten.lt.Scalar", Types::Test, Accepts::All, BinaryOp::Lt),
    binary("aten.le.Tensor", Types::Test, Accepts::All, BinaryOp::Le),
    binary("aten.le.Scalar", Types::Test, Accepts::All, BinaryOp::Le),
    binary("aten.gt.Tensor", Types::Test, Accepts::All, BinaryOp::Gt),
    binary("aten.gt.Scalar", Types::Test, Accepts::All, BinaryOp::Gt),
    binary("aten.ge.Tensor", Types::Test, Accepts::All, BinaryOp::Ge),
    binary("aten.ge.Scalar", Types::Test, Accepts::All, BinaryOp::Ge),
    unary("aten.isnan.default", Types::Test, Accepts::All, UnaryOp::IsNan),
    unary("aten.isinf.default", Types::Test, Accepts::All, UnaryOp::IsInf),
    unary("aten.signbit.default", Types::Test, Accepts::All, UnaryOp::SignBit),
    map("aten.isfinite.default", "self", Types::Test, Accepts::All, |_, _, x| {
        Ok(Scalar::Bool(x[0].to_f64().is_finite()))
    }),
    map("aten.isposinf.default", "self", Types::Test, Accepts::All, |_, _, x| {
        Ok(Scalar::Bool(x[0].to_f64() == f64::INFINITY))
    }),
    map("aten.isneginf.default", "self", Types::Test, Accepts::All, |_, _, x| {
        Ok(Scalar::Bool(x[0].to_f64() == f64::NEG_INFINITY))
    }),
    map("aten.logical_not.default", "self", Types::Test, Accepts::All, |_, _, x| {
        Ok(Scalar::Bool(!x[0].to_bool()))
    }),
    zip("aten.logical_and.default", "self, other", BOTH, Types::Test, Accepts::All, |_, _, x| {
        Ok(Scalar::Bool(x[0].to_bool() && x[1].to_bool()))
    }),
    zip("aten.logical_or.default", "self, other", BOTH, Types::Test, Accepts::All, |_, _, x| {
        Ok(Scalar::Bool(x[0].to_bool() || x[1].to_bool()))
    }),
    zip("aten.logical_xor.default", "self, other", BOTH, Types::Test, Accepts::All, |_, _, x| {
        Ok(Scalar::Bool(x[0].to_bool() != x[1].to_bool()))
    }),
];
