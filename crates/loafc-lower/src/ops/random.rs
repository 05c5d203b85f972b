//! Operators that draw random events. Eager mode's numbers come one after the other, so they are drawn into memory by
//! a call; what is done with them is a map like any other.

use loafc_ir::dtype::DType;
use loafc_ir::graph::TensorType;
use loafc_ir::nest::BinaryOp;
use loafc_ir::ops::Call;

use super::pointwise::argument;
use crate::lowering::{Lowered, Lowering, Refusal};
use crate::table::{Entry, compute};

type Cx<'a> = Lowering<'a>;

pub(super) static TABLE: &[Entry] =
    &[compute("aten.native_dropout.default", dropout), compute("aten.bernoulli.p", bernoulli)];

fn dropout(cx: &mut Cx, c: &Call) -> Lowered {
    let dropped = c.float_or(1, "p", 0.5)?;
    // Of an empty tensor PyTorch gives a mask of the tensor's own type.
    let mask_type = match cx.result(1) {
        Some(ty) => ty.clone(),
        None => TensorType { dtype: DType::Bool, ..cx.out()?.clone() },
    };
    let draws = c.bool_or(2, "train", true)? && mask_type.dtype == DType::Bool;
    if !draws || !(0.0..=1.0).contains(&dropped) {
        return Err(Refusal::Extern);
    }
    let x = argument(cx, c, 0, "input")?;
    let kept = 1.0 - dropped;
    let mask = cx.draw_events(kept, 1, &mask_type)?;
    let factor = if kept == 0.0 { 0.0 } else { 1.0 / kept };
    let as_number = cx.cast(mask, cx.dtype(x));
    let masked = cx.binary(BinaryOp::Mul, x, as_number);
    let factor = cx.float(factor, masked);
    Ok(vec![cx.binary(BinaryOp::Mul, masked, factor), mask])
}

fn bernoulli(cx: &mut Cx, c: &Call) -> Lowered {
    let probability = c.float_or(1, "p", 0.5)?;
    let generator = c.has(usize::MAX, "generator");
    if generator || !(0.0..=1.0).contains(&probability) {
        return Err(Refusal::Extern);
    }
    let ty = cx.out()?.clone();
    let events = cx.draw_events(probability, 0, &TensorType { dtype: DType::Bool, ..ty.clone() })?;
    Ok(vec![cx.cast(events, ty.dtype)])
}
