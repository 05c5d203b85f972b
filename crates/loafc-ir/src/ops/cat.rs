//! Operators that put tensors together: concatenation, stacking, and writes into a part of a tensor.

use smallvec::SmallVec;

use super::call::{Call, TensorArg};
use super::elements::each_index;
use super::eval::{EvalCall, Fault};
use super::promote::result_type;
use super::shape::{
    channels_last_strides, check_equal_shapes, check_expands, contiguous_like, is_channels_last,
    preserved_strides,
};
use super::view::{check_reach, existing_dim, position, slice_range, strided_positions, wrapped_index};
use super::{InferError, OpDef, Operand, ResultTypes, general, one};
use crate::dtype::DType;
use crate::graph::TensorType;
use crate::interp::scalar;
use crate::interp::tensor::HostTensor;
use crate::size::Size;

pub(super) const OPS: &[OpDef] = &[
    general("aten.cat.default", "tensors, dim", infer_cat, eval_cat),
    general("aten.stack.default", "tensors, dim", infer_stack, eval_stack),
    general("aten.slice_scatter.default", SLICE_SCATTER, infer_slice_scatter, eval_slice_scatter),
    general(
        "aten.select_scatter.default",
        "self, src, dim, index",
        infer_select_scatter,
        eval_select_scatter,
    ),
    general("aten.as_strided_scatter.default", STRIDED, infer_strided_scatter, eval_strided_scatter),
];

const SLICE_SCATTER: &str = "self, src, dim, start, end, step";
const STRIDED: &str = "self, src, size, stride, storage_offset";

fn common_dtype(call: &Call, parts: &[TensorArg]) -> Result<DType, InferError> {
    let operands: Vec<Operand> = parts.iter().cloned().map(Operand::Tensor).collect();
    result_type(call, &operands.iter().collect::<Vec<_>>())
}

/// PyTorch lets empty tensors of one dimension take part in any concatenation.
fn is_ignored(ty: &TensorType) -> bool {
    ty.rank() == 1 && ty.shape[0].is(0)
}

fn infer_cat(call: &Call) -> Result<ResultTypes, InferError> {
    let parts = call.tensors(0, "tensors")?;
    let dtype = common_dtype(call, &parts)?;
    let mut kept = parts.iter().map(|t| &t.ty).filter(|ty| !is_ignored(ty));
    let Some(first) = kept.next() else {
        return match parts.first() {
            Some(part) => one(contiguous_like(&part.ty, dtype, part.ty.shape.iter().copied())),
            None => Err(call.invalid("tensors", "at least one tensor was expected")),
        };
    };
    let dim = existing_dim(call, call.dim_or(1, "dim", 0, first.rank())?, first)?;
    let mut shape = first.shape.clone();
    let mut channels_last = is_channels_last(first);
    for part in kept {
        let refused = || {
            let message = format!(
                "shapes {} and {} differ in more than dimension {dim}",
                super::call::shape_text(&first.shape),
                super::call::shape_text(&part.shape)
            );
            call.invalid("tensors", message)
        };
        if part.rank() != first.rank() {
            return Err(refused());
        }
        for d in (0..part.rank()).filter(|d| *d != dim) {
            call.require_equal(part.shape[d], first.shape[d], refused)?;
        }
        channels_last &= is_channels_last(part);
        shape[dim] += part.shape[dim];
    }
    let mut ty = contiguous_like(first, dtype, shape);
    if channels_last {
        ty.strides = channels_last_strides(&ty.shape);
    }
    one(ty)
}

fn eval_cat(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let parts = e.tensors(0, "tensors")?;
    let ty = e.result(0)?;
    let dim = e.call.dim_or(1, "dim", 0, ty.rank())?;
    let result = HostTensor::build(ty.dtype, &e.shape(0)?, |index| {
        let mut from: SmallVec<[usize; 6]> = SmallVec::from_slice(index);
        for part in parts.iter().filter(|p| p.shape != [0]) {
            if from[dim] < part.shape[dim] {
                return Ok(scalar::cast(part.at(&from), part.dtype, ty.dtype));
            }
            from[dim] -= part.shape[dim];
        }
        Err(Fault::Value("its parts are shorter than its result".to_owned()))
    })?;
    Ok(vec![result])
}

fn infer_stack(call: &Call) -> Result<ResultTypes, InferError> {
    let parts = call.tensors(0, "tensors")?;
    let Some(first) = parts.first() else {
        return Err(call.invalid("tensors", "at least one tensor was expected"));
    };
    let dtype = common_dtype(call, &parts)?;
    let dim = call.dim_or(1, "dim", 0, first.ty.rank() + 1)?;
    for part in &parts {
        check_equal_shapes(call, "tensors", &part.ty.shape, &first.ty.shape)?;
    }
    let mut shape = first.ty.shape.clone();
    shape.insert(dim, Size::from(parts.len()));
    one(contiguous_like(&first.ty, dtype, shape))
}

fn eval_stack(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let parts = e.tensors(0, "tensors")?;
    let ty = e.result(0)?;
    let dim = e.call.dim_or(1, "dim", 0, ty.rank())?;
    let result = HostTensor::build(ty.dtype, &e.shape(0)?, |index| {
        let mut from: SmallVec<[usize; 6]> = SmallVec::from_slice(index);
        let part = parts[from.remove(dim)];
        Ok(scalar::cast(part.at(&from), part.dtype, ty.dtype))
    })?;
    Ok(vec![result])
}

fn infer_slice_scatter(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(0, "self")?;
    let dim = existing_dim(call, call.dim_or(2, "dim", 0, x.rank())?, &x)?;
    let mut part = x.shape.clone();
    part[dim] = slice_range(call, 3, dim, x.shape[dim])?.length;
    check_expands(call, "src", &call.tensor_type(1, "src")?.shape, &part)?;
    one(written_type(x))
}

/// The type of a copy of `self` that is written to: it keeps even gaps, but not elements that share memory.
fn written_type(x: TensorType) -> TensorType {
    let shared = x.shape.iter().zip(&x.strides).any(|(extent, stride)| stride.is(0) && !extent.is(1));
    let strides = if shared { preserved_strides(&x) } else { x.strides };
    TensorType { strides, ..x }
}

/// A copy of `self` with the elements of `src`, expanded to `shape`, written to where `target` says.
fn written(
    e: &EvalCall,
    shape: &[usize],
    target: impl Fn(&[usize], &mut SmallVec<[usize; 6]>),
) -> Result<Vec<HostTensor>, Fault> {
    let mut result = e.tensor(0, "self")?.clone();
    let source = e.tensor(1, "src")?;
    let strides = source.strides_over(shape);
    let mut to: SmallVec<[usize; 6]> = SmallVec::new();
    each_index(shape, |index| {
        to.clear();
        target(index, &mut to);
        let from: usize = index.iter().zip(&strides).map(|(i, s)| i * s).sum();
        let at = result.position(&to);
        result.data[at] = scalar::cast(source.data[from], source.dtype, result.dtype);
        Ok(())
    })?;
    Ok(vec![result])
}

fn eval_slice_scatter(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let mut shape = e.tensor(0, "self")?.shape.clone();
    let dim = e.call.dim_or(2, "dim", 0, shape.len())?;
    let range = slice_range(&e.call, 3, dim, Size::from(shape[dim]))?;
    let (start, step) = (position(range.start)?, position(range.step)?);
    shape[dim] = position(range.length)?;
    written(e, &shape, |index, to| {
        to.extend_from_slice(index);
        to[dim] = start + step * index[dim];
    })
}

fn infer_select_scatter(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(0, "self")?;
    let dim = existing_dim(call, call.dim(2, "dim", x.rank())?, &x)?;
    wrapped_index(call, 3, dim, x.shape[dim])?;
    let mut part = x.shape.clone();
    part.remove(dim);
    check_expands(call, "src", &call.tensor_type(1, "src")?.shape, &part)?;
    one(written_type(x))
}

fn eval_select_scatter(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let mut shape = e.tensor(0, "self")?.shape.clone();
    let dim = e.call.dim(2, "dim", shape.len())?;
    let extent = Size::from(shape.remove(dim));
    let at = position(wrapped_index(&e.call, 3, dim, extent)?)?;
    written(e, &shape, |index, to| {
        to.extend_from_slice(index);
        to.insert(dim, at);
    })
}

fn infer_strided_scatter(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(0, "self")?;
    let (shape, strides) = (call.sizes(2, "size")?, call.sizes(3, "stride")?);
    if shape.len() != strides.len() {
        let message = format!("{} strides for {} extents", strides.len(), shape.len());
        return Err(call.invalid("stride", message));
    }
    check_reach(call, &x, (&shape, &strides), call.size_or(4, "storage_offset", Size::ZERO)?)?;
    check_expands(call, "src", &call.tensor_type(1, "src")?.shape, &shape)?;
    one(written_type(x))
}

fn eval_strided_scatter(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let TensorArg { id, ty } = e.call.tensor(0, "self")?;
    let x = e.value(id)?;
    let source = e.tensor(1, "src")?;
    let shape = super::eval::extents(&e.call.sizes(2, "size")?)?;
    // Which element of `self` lies at each place of its memory.
    let element_at = super::eval::elements_of_memory(&ty)?;
    let mut result = x.clone();
    let strides = source.strides_over(&shape);
    let mut positions = strided_positions(e, 3, &shape)?.into_iter();
    each_index(&shape, |index| {
        let from: usize = index.iter().zip(&strides).map(|(i, s)| i * s).sum();
        let Some(to) = positions.next() else { return Ok(()) };
        let Some(element) = element_at.get(to).copied().flatten() else {
            return Err(Fault::Value(format!("element {to} of the memory is not part of the operand")));
        };
        result.data[element] = scalar::cast(source.data[from], source.dtype, result.dtype);
        Ok(())
    })?;
    Ok(vec![result])
}
