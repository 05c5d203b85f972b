//! Operators that copy elements: clones, writes over a whole tensor, padding, reversal, rotation, repetition.

use smallvec::SmallVec;

use super::call::Call;
use super::eval::{EvalCall, Fault};
use super::pointwise::as_element;
use super::shape::{
    channels_last_strides, check_expands, contiguous_like, preserved_strides, suggested_strides,
};
use super::view::moved;
use super::{InferError, OpDef, ResultTypes, general, one};
use crate::dtype::Scalar;
use crate::graph::{Dims, TensorType, contiguous_strides};
use crate::interp::scalar;
use crate::interp::tensor::HostTensor;
use crate::size::Size;

pub(super) const OPS: &[OpDef] = &[
    general("aten.clone.default", "self, *, memory_format", infer_clone, eval_same),
    general("aten.contiguous.default", "self, *, memory_format", infer_contiguous, eval_same),
    general("aten.lift_fresh_copy.default", "self", infer_clone, eval_same),
    general("loafc.realize.default", "self", infer_realize, eval_same),
    general("aten.copy.default", "self, src, non_blocking", infer_copy, eval_copy),
    general("aten.copy_.default", "self, src, non_blocking", infer_copy, eval_copy),
    general("aten.fill.Scalar", "self, value", infer_fill, eval_fill),
    general("aten.fill.Tensor", "self, value", infer_fill, eval_fill),
    general("aten.constant_pad_nd.default", "self, pad, value", infer_pad, eval_pad),
    general("aten.flip.default", "self, dims", infer_flip, eval_flip),
    general("prims.rev.default", "self, dims", infer_flip, eval_flip),
    general("aten.roll.default", "self, shifts, dims", infer_roll, eval_roll),
    general("aten.repeat.default", "self, repeats", infer_repeat, eval_repeat),
];

fn eval_same(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    Ok(vec![e.tensor(0, "self")?.clone()])
}

/// Strides in the memory format that a call asks for; `default` stands for no such argument.
pub(super) fn formatted_strides(
    call: &Call,
    like: &TensorType,
    default: &'static str,
) -> Result<Dims, InferError> {
    let format = call.str_or(super::call::KEYWORD, "memory_format", default)?;
    match format.strip_prefix("torch.").unwrap_or(format) {
        "preserve_format" => Ok(preserved_strides(like)),
        "contiguous_format" => Ok(contiguous_strides(&like.shape)),
        "channels_last" if like.rank() == 4 => Ok(channels_last_strides(&like.shape)),
        "channels_last_3d" if like.rank() == 5 => Ok(channels_last_strides(&like.shape)),
        other => {
            let message = format!("{other:?} is no memory format of a tensor of {} dimensions", like.rank());
            Err(call.invalid("memory_format", message))
        }
    }
}

fn infer_clone(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(0, "self")?;
    let strides = formatted_strides(call, &x, "preserve_format")?;
    one(TensorType { strides, ..x })
}

fn infer_contiguous(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(0, "self")?;
    let strides = formatted_strides(call, &x, "contiguous_format")?;
    one(TensorType { strides, ..x })
}

fn infer_realize(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(0, "self")?;
    one(TensorType { strides: preserved_strides(&x), ..x })
}

fn infer_copy(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(0, "self")?;
    check_expands(call, "src", &call.tensor_type(1, "src")?.shape, &x.shape)?;
    one(x)
}

fn eval_copy(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let (x, source) = (e.tensor(0, "self")?, e.tensor(1, "src")?);
    let strides = source.strides_over(&x.shape);
    let result = HostTensor::build(x.dtype, &x.shape, |index| {
        let at: usize = index.iter().zip(&strides).map(|(i, s)| i * s).sum();
        Ok(scalar::cast(source.data[at], source.dtype, x.dtype))
    })?;
    Ok(vec![result])
}

fn infer_fill(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(0, "self")?;
    if !call.operand(1, "value")?.shape().is_empty() {
        return Err(call.invalid("value", "a tensor without dimensions was expected"));
    }
    one(TensorType { strides: preserved_strides(&x), ..x })
}

fn eval_fill(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let x = e.tensor(0, "self")?;
    let value = as_element(e.number(1, "value")?, x.dtype);
    Ok(vec![HostTensor::filled(x.dtype, &x.shape, value)])
}

/// Elements added before and behind each dimension; negative ones are cut off.
pub fn padding(call: &Call, rank: usize) -> Result<Vec<(Size, Size)>, InferError> {
    let pad = call.sizes(1, "pad")?;
    if pad.len() % 2 != 0 || pad.len() > 2 * rank {
        let message = format!("{} numbers for a tensor of {rank} dimensions; give two for each", pad.len());
        return Err(call.invalid("pad", message));
    }
    let mut padding = vec![(Size::ZERO, Size::ZERO); rank];
    for (from_right, pair) in pad.chunks_exact(2).enumerate() {
        padding[rank - 1 - from_right] = (pair[0], pair[1]);
    }
    Ok(padding)
}

fn infer_pad(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(0, "self")?;
    call.scalar_or(2, "value", Scalar::Int(0))?;
    let mut shape = Dims::new();
    for (extent, (before, behind)) in x.shape.iter().zip(padding(call, x.rank())?) {
        let padded = *extent + before + behind;
        call.require_at_most(Size::ZERO, padded, || {
            call.invalid("pad", format!("{before} and {behind} leave nothing of the extent {extent}"))
        })?;
        shape.push(padded);
    }
    let strides = suggested_strides(&x, &shape);
    one(TensorType { shape, strides, ..x })
}

fn eval_pad(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let x = e.tensor(0, "self")?;
    let before = padding(&e.call, x.shape.len())?
        .into_iter()
        .map(|(before, _)| before.as_const().ok_or(Fault::Unbound(before)))
        .collect::<Result<Vec<i64>, Fault>>()?;
    let value = as_element(e.call.scalar_or(2, "value", Scalar::Int(0))?, x.dtype);
    let result = HostTensor::build(x.dtype, &e.shape(0)?, |index| {
        let mut from: SmallVec<[usize; 6]> = SmallVec::new();
        for ((i, before), extent) in index.iter().zip(&before).zip(&x.shape) {
            match usize::try_from((*i as i64).saturating_sub(*before)) {
                Ok(at) if at < *extent => from.push(at),
                _ => return Ok(value),
            }
        }
        Ok(x.at(&from))
    })?;
    Ok(vec![result])
}

fn infer_flip(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(0, "self")?;
    call.opt_dims(1, "dims", x.rank())?;
    one(contiguous_like(&x, x.dtype, x.shape.iter().copied()))
}

fn eval_flip(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let x = e.tensor(0, "self")?;
    let dims = e.call.opt_dims(1, "dims", x.shape.len())?.unwrap_or_default();
    moved(e, |index, from| {
        from.extend(index.iter().enumerate().map(|(d, i)| match dims.contains(&d) {
            true => x.shape[d] - 1 - i,
            false => *i,
        }));
    })
}

/// Pairs of a dimension and the distance that its elements move by; `None` where the tensor is rolled as if it
/// had one dimension.
pub fn rolls(call: &Call, rank: usize) -> Result<Option<Vec<(usize, Size)>>, InferError> {
    let shifts: Dims = match call.get(1, "shifts") {
        Some(crate::graph::Arg::List(_)) => call.sizes(1, "shifts")?,
        _ => SmallVec::from_slice(&[call.size(1, "shifts")?]),
    };
    let dims = call.opt_ints(2, "dims")?.unwrap_or_default();
    if dims.is_empty() && shifts.len() == 1 {
        return Ok(None);
    }
    if dims.len() != shifts.len() {
        return Err(call.invalid("dims", format!("{} dimensions for {} shifts", dims.len(), shifts.len())));
    }
    let pair = |(dim, shift): (&i64, &Size)| Ok((call.wrap_dim("dims", *dim, rank)?, *shift));
    dims.iter().zip(&shifts).map(pair).collect::<Result<_, _>>().map(Some)
}

fn infer_roll(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(0, "self")?;
    rolls(call, x.rank())?;
    one(contiguous_like(&x, x.dtype, x.shape.iter().copied()))
}

fn eval_roll(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let x = e.tensor(0, "self")?;
    let rolled = |at: usize, shift: Size, extent: usize| -> Result<usize, Fault> {
        let shift = shift.as_const().ok_or(Fault::Unbound(shift))?;
        Ok((at as i128 - i128::from(shift)).rem_euclid(extent as i128) as usize)
    };
    let Some(rolls) = rolls(&e.call, x.shape.len())? else {
        let shift = e.call.ints(1, "shifts")?[0];
        let data = (0..x.data.len())
            .map(|k| Ok(x.data[rolled(k, Size::from(shift), x.data.len())?]))
            .collect::<Result<_, Fault>>()?;
        return Ok(vec![HostTensor { data, ..x.clone() }]);
    };
    let result = HostTensor::build(x.dtype, &x.shape, |index| {
        let mut from: SmallVec<[usize; 6]> = SmallVec::from_slice(index);
        for (dim, shift) in &rolls {
            if let Some(at) = from.get_mut(*dim) {
                *at = rolled(*at, *shift, x.shape[*dim])?;
            }
        }
        Ok(x.at(&from))
    })?;
    Ok(vec![result])
}

fn infer_repeat(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(0, "self")?;
    let repeats = call.sizes(1, "repeats")?;
    if repeats.len() < x.rank() {
        let message = format!(
            "{} numbers for a tensor of {} dimensions; give at least as many",
            repeats.len(),
            x.rank()
        );
        return Err(call.invalid("repeats", message));
    }
    repeats.iter().try_for_each(|times| call.require_natural("repeats", *times))?;
    let added = repeats.len() - x.rank();
    let shape: Dims = repeats
        .iter()
        .enumerate()
        .map(|(d, times)| d.checked_sub(added).map_or(*times, |own| *times * x.shape[own]))
        .collect();
    one(contiguous_like(&x, x.dtype, shape))
}

fn eval_repeat(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let x = e.tensor(0, "self")?;
    moved(e, |index, from| {
        let own = &index[index.len() - x.shape.len()..];
        from.extend(own.iter().zip(&x.shape).map(|(i, extent)| i % extent));
    })
}
