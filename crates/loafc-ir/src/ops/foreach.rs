//! `_foreach_*` operators: the same elementwise operator on each tensor of a list. A definition names the operator
//! of one tensor; the k-th call gets the k-th element of every list.

use std::sync::Arc;

use super::call::Call;
use super::eval::{EvalCall, Fault};
use super::{InferError, OpDef, ResultTypes, Semantics, find};
use crate::graph::Arg;
use crate::interp::tensor::HostTensor;

/// Definition of an operator on lists.
pub struct Foreach {
    /// Operator on the elements.
    pub each: &'static str,
    /// Parameters that the operator on elements takes by keyword only, with their positions here.
    keywords: &'static [(usize, &'static str)],
}

const NONE: &[(usize, &str)] = &[];
const VALUE: &[(usize, &str)] = &[(3, "value")];

const fn foreach(name: &'static str, params: &'static str, each: &'static str) -> OpDef {
    OpDef { name, params, semantics: Semantics::Foreach(Foreach { each, keywords: NONE }) }
}

const fn addc(name: &'static str, params: &'static str, each: &'static str) -> OpDef {
    OpDef { name, params, semantics: Semantics::Foreach(Foreach { each, keywords: VALUE }) }
}

pub(super) const OPS: &[OpDef] = &[
    foreach("aten._foreach_add.List", "self, other, *, alpha", "aten.add.Tensor"),
    foreach("aten._foreach_add.Tensor", "self, other, *, alpha", "aten.add.Tensor"),
    foreach("aten._foreach_add.Scalar", "self, scalar", "aten.add.Tensor"),
    foreach("aten._foreach_add.ScalarList", "self, scalars", "aten.add.Tensor"),
    foreach("aten._foreach_sub.List", "self, other, *, alpha", "aten.sub.Tensor"),
    foreach("aten._foreach_sub.Scalar", "self, scalar", "aten.sub.Tensor"),
    foreach("aten._foreach_sub.ScalarList", "self, scalars", "aten.sub.Tensor"),
    foreach("aten._foreach_mul.List", "self, other", "aten.mul.Tensor"),
    foreach("aten._foreach_mul.Tensor", "self, other", "aten.mul.Tensor"),
    foreach("aten._foreach_mul.Scalar", "self, scalar", "aten.mul.Tensor"),
    foreach("aten._foreach_mul.ScalarList", "self, scalars", "aten.mul.Tensor"),
    foreach("aten._foreach_div.List", "self, other", "aten.div.Tensor"),
    foreach("aten._foreach_div.Tensor", "self, other", "aten.div.Tensor"),
    foreach("aten._foreach_div.Scalar", "self, scalar", "aten.div.Tensor"),
    foreach("aten._foreach_div.ScalarList", "self, scalars", "aten.div.Tensor"),
    foreach("aten._foreach_maximum.List", "self, other", "aten.maximum.default"),
    foreach("aten._foreach_maximum.Scalar", "self, scalar", "aten.clamp_min.default"),
    foreach("aten._foreach_minimum.List", "self, other", "aten.minimum.default"),
    foreach("aten._foreach_minimum.Scalar", "self, scalar", "aten.clamp_max.default"),
    foreach("aten._foreach_clamp_min.Scalar", "self, scalar", "aten.clamp_min.default"),
    foreach("aten._foreach_clamp_max.Scalar", "self, scalar", "aten.clamp_max.default"),
    foreach("aten._foreach_pow.List", "self, exponent", "aten.pow.Tensor_Tensor"),
    foreach("aten._foreach_pow.Scalar", "self, exponent", "aten.pow.Tensor_Scalar"),
    foreach("aten._foreach_pow.ScalarList", "self, exponent", "aten.pow.Tensor_Scalar"),
    foreach("aten._foreach_pow.ScalarAndTensor", "self, exponent", "aten.pow.Scalar"),
    foreach("aten._foreach_neg.default", "self", "aten.neg.default"),
    foreach("aten._foreach_abs.default", "self", "aten.abs.default"),
    foreach("aten._foreach_sign.default", "self", "aten.sign.default"),
    foreach("aten._foreach_sqrt.default", "self", "aten.sqrt.default"),
    foreach("aten._foreach_rsqrt.default", "self", "aten.rsqrt.default"),
    foreach("aten._foreach_reciprocal.default", "self", "aten.reciprocal.default"),
    foreach("aten._foreach_exp.default", "self", "aten.exp.default"),
    foreach("aten._foreach_log.default", "self", "aten.log.default"),
    foreach("aten._foreach_sigmoid.default", "self", "aten.sigmoid.default"),
    foreach("aten._foreach_tanh.default", "self", "aten.tanh.default"),
    foreach("aten._foreach_lerp.List", "self, tensors1, weights", "aten.lerp.Tensor"),
    foreach("aten._foreach_lerp.Scalar", "self, tensors1, weight", "aten.lerp.Scalar"),
    foreach("aten._foreach_lerp.ScalarList", "self, tensors1, weight", "aten.lerp.Scalar"),
    foreach("aten._foreach_norm.Scalar", "self, ord", "aten.linalg_vector_norm.default"),
    foreach("aten._foreach_copy.default", "self, src", "aten.copy.default"),
    addc("aten._foreach_addcmul.Scalar", "self, tensor1, tensor2, value", "aten.addcmul.default"),
    addc("aten._foreach_addcmul.ScalarList", "self, tensor1, tensor2, scalars", "aten.addcmul.default"),
    addc("aten._foreach_addcdiv.Scalar", "self, tensor1, tensor2, value", "aten.addcdiv.default"),
    addc("aten._foreach_addcdiv.ScalarList", "self, tensor1, tensor2, scalars", "aten.addcdiv.default"),
];

/// Positional and keyword arguments of a call.
pub type CallArgs = (Vec<Arg>, Vec<(Arc<str>, Arg)>);

impl Foreach {
    /// The arguments of each call on elements, in order. Lists must be of one length.
    pub fn calls(&self, call: &Call) -> Result<Vec<CallArgs>, InferError> {
        let lists = || call.args.iter().filter_map(|arg| if let Arg::List(l) = arg { Some(l) } else { None });
        let Some(count) = lists().next().map(Vec::len) else {
            return Err(call.invalid("self", "a list of tensors was expected"));
        };
        if lists().any(|list| list.len() != count) {
            return Err(call.invalid("self", "all lists must be of one length"));
        }
        Ok((0..count).map(|k| self.arguments(call, k)).collect())
    }

    fn arguments(&self, call: &Call, k: usize) -> CallArgs {
        let mut args = Vec::new();
        let mut kwargs: Vec<(Arc<str>, Arg)> = call.kwargs.to_vec();
        for (position, arg) in call.args.iter().enumerate() {
            let own = match arg {
                Arg::List(items) => items[k].clone(),
                other => other.clone(),
            };
            match self.keywords.iter().find(|(at, _)| *at == position) {
                Some((_, keyword)) => kwargs.push(((*keyword).into(), own)),
                None => args.push(own),
            }
        }
        (args, kwargs)
    }

    fn definition(&self) -> Result<&'static OpDef, InferError> {
        find(self.each).ok_or_else(|| InferError::UnknownOperator { op: self.each.to_owned() })
    }

    pub(super) fn infer(&self, call: &Call) -> Result<ResultTypes, InferError> {
        let each = self.definition()?;
        let value_type = |id| call.value_type(id);
        let mut types = Vec::new();
        for (args, kwargs) in self.calls(call)? {
            types.extend(each.infer(&call.part(self.each, &args, &kwargs, &value_type))?);
        }
        Ok(types)
    }

    pub(super) fn eval(&self, e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
        let each = self.definition()?;
        let value_type = |id| e.call.value_type(id);
        let mut results = Vec::new();
        for (args, kwargs) in self.calls(&e.call)? {
            let call = Call::new(self.each, &args, &kwargs, &value_type);
            results.extend(each.eval(&e.with(call, each.infer(&call)?))?);
        }
        Ok(results)
    }
}
