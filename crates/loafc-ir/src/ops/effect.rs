//! Operators that are called for their effect: checks of values.

use super::eval::{EvalCall, Fault};
use super::{InferError, OpDef, ResultTypes, general};
use crate::interp::tensor::HostTensor;
use crate::ops::call::Call;

pub(super) const OPS: &[OpDef] = &[
    general("aten._assert_async.default", "self", infer_assert, eval_assert),
    general("aten._assert_async.msg", "self, assert_msg", infer_assert, eval_assert),
];

fn infer_assert(call: &Call) -> Result<ResultTypes, InferError> {
    call.tensor_type(0, "self")?;
    call.str_or(1, "assert_msg", "")?;
    Ok(Vec::new())
}

fn eval_assert(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    if e.number(0, "self")?.to_bool() {
        return Ok(Vec::new());
    }
    Err(Fault::Value(e.call.str_or(1, "assert_msg", "a value that must be true is false")?.to_owned()))
}
