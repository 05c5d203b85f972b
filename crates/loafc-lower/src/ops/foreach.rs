//! Operators on lists of tensors (`_foreach_*`): the operator on single tensors, once for each entry.

use std::sync::Arc;

use loafc_ir::graph::Arg;
use loafc_ir::ops::Call;

use crate::lowering::{Lowered, Lowering, Refusal};
use crate::table::{self, Entry, compute};

type Cx<'a> = Lowering<'a>;

/// `($list, $single)`: an operator on lists and the one on each entry.
macro_rules! each {
    ($(($list:literal, $single:literal)),* $(,)?) => {
        &[
            $(compute($list, |cx, c| for_each(cx, c, $single)),)*
            compute("aten._foreach_norm.Scalar", norm),
        ]
    };
}

pub(super) static TABLE: &[Entry] = each![
    ("aten._foreach_add.Scalar", "aten.add.Tensor"),
    ("aten._foreach_add.List", "aten.add.Tensor"),
    ("aten._foreach_add.ScalarList", "aten.add.Tensor"),
    ("aten._foreach_add.Tensor", "aten.add.Tensor"),
    ("aten._foreach_sub.Scalar", "aten.sub.Tensor"),
    ("aten._foreach_sub.List", "aten.sub.Tensor"),
    ("aten._foreach_sub.ScalarList", "aten.sub.Tensor"),
    ("aten._foreach_mul.Scalar", "aten.mul.Tensor"),
    ("aten._foreach_mul.List", "aten.mul.Tensor"),
    ("aten._foreach_mul.ScalarList", "aten.mul.Tensor"),
    ("aten._foreach_mul.Tensor", "aten.mul.Tensor"),
    ("aten._foreach_div.Scalar", "aten.div.Tensor"),
    ("aten._foreach_div.List", "aten.div.Tensor"),
    ("aten._foreach_div.ScalarList", "aten.div.Tensor"),
    ("aten._foreach_div.Tensor", "aten.div.Tensor"),
    ("aten._foreach_pow.Scalar", "aten.pow.Tensor_Scalar"),
    ("aten._foreach_pow.List", "aten.pow.Tensor_Tensor"),
    ("aten._foreach_pow.ScalarList", "aten.pow.Tensor_Scalar"),
    ("aten._foreach_pow.ScalarAndTensor", "aten.pow.Scalar"),
    ("aten._foreach_maximum.Scalar", "aten.clamp_min.default"),
    ("aten._foreach_maximum.List", "aten.maximum.default"),
    ("aten._foreach_maximum.ScalarList", "aten.clamp_min.default"),
    ("aten._foreach_minimum.Scalar", "aten.clamp_max.default"),
    ("aten._foreach_minimum.List", "aten.minimum.default"),
    ("aten._foreach_minimum.ScalarList", "aten.clamp_max.default"),
    ("aten._foreach_clamp_min.Scalar", "aten.clamp_min.default"),
    ("aten._foreach_clamp_min.List", "aten.maximum.default"),
    ("aten._foreach_clamp_min.ScalarList", "aten.clamp_min.default"),
    ("aten._foreach_clamp_max.Scalar", "aten.clamp_max.default"),
    ("aten._foreach_clamp_max.List", "aten.minimum.default"),
    ("aten._foreach_clamp_max.ScalarList", "aten.clamp_max.default"),
    ("aten._foreach_addcmul.Scalar", "aten.addcmul.default"),
    ("aten._foreach_addcmul.ScalarList", "aten.addcmul.default"),
    ("aten._foreach_addcdiv.Scalar", "aten.addcdiv.default"),
    ("aten._foreach_addcdiv.ScalarList", "aten.addcdiv.default"),
    ("aten._foreach_lerp.Scalar", "aten.lerp.Scalar"),
    ("aten._foreach_lerp.List", "aten.lerp.Tensor"),
    ("aten._foreach_lerp.ScalarList", "aten.lerp.Scalar"),
    ("aten._foreach_copy.default", "aten.copy.default"),
    ("aten._foreach_neg.default", "aten.neg.default"),
    ("aten._foreach_abs.default", "aten.abs.default"),
    ("aten._foreach_sqrt.default", "aten.sqrt.default"),
    ("aten._foreach_rsqrt.default", "aten.rsqrt.default"),
    ("aten._foreach_reciprocal.default", "aten.reciprocal.default"),
    ("aten._foreach_exp.default", "aten.exp.default"),
    ("aten._foreach_expm1.default", "aten.expm1.default"),
    ("aten._foreach_log.default", "aten.log.default"),
    ("aten._foreach_log1p.default", "aten.log1p.default"),
    ("aten._foreach_log2.default", "aten.log2.default"),
    ("aten._foreach_log10.default", "aten.log10.default"),
    ("aten._foreach_sign.default", "aten.sign.default"),
    ("aten._foreach_sin.default", "aten.sin.default"),
    ("aten._foreach_cos.default", "aten.cos.default"),
    ("aten._foreach_tan.default", "aten.tan.default"),
    ("aten._foreach_tanh.default", "aten.tanh.default"),
    ("aten._foreach_sigmoid.default", "aten.sigmoid.default"),
    ("aten._foreach_erf.default", "aten.erf.default"),
    ("aten._foreach_floor.default", "aten.floor.default"),
    ("aten._foreach_ceil.default", "aten.ceil.default"),
    ("aten._foreach_trunc.default", "aten.trunc.default"),
    ("aten._foreach_round.default", "aten.round.default"),
    ("aten._foreach_frac.default", "aten.frac.default"),
];

/// The arguments for entry `k`: that entry of each list, everything else as it is.
fn entry_arguments(args: &[Arg], k: usize) -> Option<Vec<Arg>> {
    args.iter()
        .map(|arg| match arg {
            Arg::List(items) => items.get(k).cloned(),
            other => Some(other.clone()),
        })
        .collect()
}

fn for_each(cx: &mut Cx, c: &Call, single: &str) -> Lowered {
    let lower = table::find(single).ok_or(Refusal::Extern)?.lower;
    parts(cx, c, single, lower)
}

fn norm(cx: &mut Cx, c: &Call) -> Lowered {
    if c.has(2, "dtype") {
        return Err(Refusal::Extern);
    }
    parts(cx, c, "aten.norm.Scalar", |cx, c| {
        let a = cx.tensor(c, 0, "self")?;
        let order = c.float_or(1, "ord", 2.0)?;
        let dims: Vec<usize> = (0..cx.shape(a).len()).collect();
        super::reduction::norm_over(cx, a, order, &dims, false)
    })
}

fn parts(cx: &mut Cx, c: &Call, single: &str, lower: table::LowerFn) -> Lowered {
    let mut results = Vec::new();
    for k in 0..cx.result_count() {
        let args = entry_arguments(c.args, k).ok_or(Refusal::Extern)?;
        let kwargs = c
            .kwargs
            .iter()
            .map(|(name, arg)| Some((name.clone(), entry_arguments(std::slice::from_ref(arg), k)?.pop()?)))
            .collect::<Option<Vec<(Arc<str>, Arg)>>>()
            .ok_or(Refusal::Extern)?;
        let value_type = |id| c.value_type(id);
        let call = c.part(single, &args, &kwargs, &value_type);
        let made = cx.part(k, lower, &call)?;
        results.extend(made.into_iter().take(1));
    }
    Ok(results)
}
