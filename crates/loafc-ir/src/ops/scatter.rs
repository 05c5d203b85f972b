//! Operators that write elements of one tensor to positions in another: scatter and its reductions, and writes of
//! whole rows.

use smallvec::SmallVec;

use super::call::{Call, KEYWORD, shape_text};
use super::elements::each_index;
use super::eval::{EvalCall, Fault};
use super::indexing::{added, check_index_shape, check_rows, in_range, index_type};
use super::pointwise::as_element;
use super::shape::{contiguous_like, preserved_strides};
use super::{InferError, OpDef, ResultTypes, general, one};
use crate::condition::{Comparison, Relation};
use crate::dtype::{DType, Scalar};
use crate::graph::TensorType;
use crate::interp::scalar;
use crate::interp::tensor::HostTensor;
use crate::nest::BinaryOp;

pub(super) const OPS: &[OpDef] = &[
    general("aten.scatter.src", "self, dim, index, src", infer_scatter, eval_scatter),
    general("aten.scatter.value", "self, dim, index, value", infer_scatter_value, eval_scatter),
    general("aten.scatter.reduce", "self, dim, index, src, *, reduce", infer_scatter, eval_scatter),
    general(
        "aten.scatter.value_reduce",
        "self, dim, index, value, *, reduce",
        infer_scatter_value,
        eval_scatter,
    ),
    general("aten.scatter_add.default", "self, dim, index, src", infer_scatter, eval_scatter),
    general("aten.scatter_reduce.two", REDUCE_TWO, infer_scatter, eval_scatter),
    general("aten.index_add.default", "self, dim, index, source, *, alpha", infer_rows, eval_rows),
    general("aten.index_copy.default", "self, dim, index, source", infer_rows, eval_rows),
    general("aten.index_fill.int_Scalar", "self, dim, index, value", infer_row_fill, eval_row_fill),
    general("aten.index_fill.int_Tensor", "self, dim, index, value", infer_row_fill, eval_row_fill),
];

const REDUCE_TWO: &str = "self, dim, index, src, reduce, *, include_self";

/// How a written element combines with what is there.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Combine {
    /// Replaces it.
    Set,
    /// This operation on both.
    With(BinaryOp),
    /// Mean of all that are written.
    Mean,
}

/// What a scatter does where several elements meet, and whether the old element takes part.
pub fn combine(call: &Call) -> Result<(Combine, bool), InferError> {
    let position = if call.op == "aten.scatter_reduce.two" { 4 } else { KEYWORD };
    let how = match call.op {
        "aten.scatter_add.default" => Combine::With(BinaryOp::Add),
        "aten.scatter.src" | "aten.scatter.value" => Combine::Set,
        _ => match call.str_or(position, "reduce", "")? {
            "sum" | "add" => Combine::With(BinaryOp::Add),
            "prod" | "multiply" => Combine::With(BinaryOp::Mul),
            "amax" => Combine::With(BinaryOp::Max),
            "amin" => Combine::With(BinaryOp::Min),
            "mean" => Combine::Mean,
            other => {
                let message = format!(
                    "{other:?} is no reduction; use \"sum\", \"prod\", \"mean\", \"amax\" or \"amin\" \
                     (in `scatter.reduce`: \"add\" or \"multiply\")"
                );
                return Err(call.invalid("reduce", message));
            }
        },
    };
    Ok((how, call.bool_or(KEYWORD, "include_self", true)?))
}

fn infer_scatter(call: &Call) -> Result<ResultTypes, InferError> {
    let source = call.tensor_type(3, "src")?;
    let x = scattered(call)?;
    let index = call.tensor_type(2, "index")?;
    if source.dtype != x.dtype {
        let message = format!("{} was expected, as in `self`, not {}", x.dtype, source.dtype);
        return Err(call.invalid("src", message));
    }
    let refused = || {
        let (source, index) = (shape_text(&source.shape), shape_text(&index.shape));
        call.invalid(
            "src",
            format!("shape {source} has fewer elements than that of `index`, {index}, in some dimension"),
        )
    };
    if source.rank().max(1) != index.rank().max(1) {
        return Err(refused());
    }
    for (wanted, there) in index.shape.iter().zip(&source.shape) {
        let fits = Comparison::new(*wanted, Relation::AtMost, *there);
        call.require(fits.with_elements(index.numel()), refused)?;
    }
    one(contiguous_like(&x, x.dtype, x.shape.iter().copied()))
}

fn infer_scatter_value(call: &Call) -> Result<ResultTypes, InferError> {
    call.operand(3, "value")?;
    let x = scattered(call)?;
    one(contiguous_like(&x, x.dtype, x.shape.iter().copied()))
}

/// The type of `self`, with all arguments but the source checked.
fn scattered(call: &Call) -> Result<TensorType, InferError> {
    let x = call.tensor_type(0, "self")?;
    let dim = call.dim(1, "dim", x.rank())?;
    let index = index_type(call, 2, "index")?;
    check_index_shape(call, &index, &x, dim)?;
    combine(call)?;
    Ok(x)
}

fn eval_scatter(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let mut result = e.tensor(0, "self")?.clone();
    let index = e.tensor(2, "index")?;
    let dim = e.call.dim(1, "dim", result.shape.len())?;
    let extent = result.shape.get(dim).copied().unwrap_or(1);
    let (how, include_self) = combine(&e.call)?;
    let from_tensor = !e.call.op.starts_with("aten.scatter.value");
    let source = if from_tensor { Some(e.tensor(3, "src")?) } else { None };
    let number = match source {
        Some(_) => scalar::zero(result.dtype),
        None => as_element(e.number(3, "value")?, result.dtype),
    };
    // How many elements were combined at each position.
    let mut counts = vec![usize::from(include_self); result.data.len()];
    each_index(&index.shape, |at| {
        let chosen = in_range(index.at(at), dim, extent)?;
        let mut to: SmallVec<[usize; 6]> = at.iter().copied().take(result.shape.len()).collect();
        to.resize(result.shape.len(), 0);
        if let Some(along) = to.get_mut(dim) {
            *along = chosen;
        }
        let to = result.position(&to);
        let value = source.map_or(number, |source| match source.shape.is_empty() {
            true => source.data[0],
            false => source.at(at),
        });
        let before = result.data[to];
        result.data[to] = match how {
            _ if counts[to] == 0 => value,
            Combine::Set => value,
            Combine::With(op) => combined(op, result.dtype, before, value)?,
            Combine::Mean => combined(BinaryOp::Add, result.dtype, before, value)?,
        };
        counts[to] += 1;
        Ok(())
    })?;
    if how == Combine::Mean {
        for (value, count) in result.data.iter_mut().zip(&counts) {
            *value = divided(result.dtype, *value, (*count).max(1))?;
        }
    }
    Ok(vec![result])
}

fn combined(op: BinaryOp, dtype: DType, a: Scalar, b: Scalar) -> Result<Scalar, Fault> {
    Ok(scalar::cast(scalar::binary(op, dtype, a, b)?, dtype.compute(), dtype))
}

/// A mean of this many; integers are rounded down.
fn divided(dtype: DType, total: Scalar, count: usize) -> Result<Scalar, Fault> {
    let op = if dtype.is_float() { BinaryOp::Div } else { BinaryOp::FloorDiv };
    combined(op, dtype, total, as_element(Scalar::Int(count as i64), dtype.compute()))
}

fn infer_rows(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(0, "self")?;
    let dim = call.dim(1, "dim", x.rank())?;
    let index = index_type(call, 2, "index")?;
    check_rows(call, &x, dim, &index, &call.tensor_type(3, "source")?)?;
    call.scalar_or(KEYWORD, "alpha", Scalar::Int(1))?;
    one(TensorType { strides: preserved_strides(&x), ..x })
}

fn eval_rows(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let mut result = e.tensor(0, "self")?.clone();
    let (index, source) = (e.tensor(2, "index")?, e.tensor(3, "source")?);
    let dim = e.call.dim(1, "dim", result.shape.len())?;
    let alpha = as_element(e.call.scalar_or(KEYWORD, "alpha", Scalar::Int(1))?, result.dtype);
    let adds = e.call.op == "aten.index_add.default";
    let extent = result.shape.get(dim).copied().unwrap_or(1);
    each_index(&source.shape, |at| {
        let chosen = in_range(index.data[at.get(dim).copied().unwrap_or(0)], dim, extent)?;
        let mut to: SmallVec<[usize; 6]> = at.iter().copied().take(result.shape.len()).collect();
        to.resize(result.shape.len(), 0);
        if let Some(along) = to.get_mut(dim) {
            *along = chosen;
        }
        let to = result.position(&to);
        let value = scalar::cast(source.at(at), source.dtype, result.dtype);
        result.data[to] = if adds {
            let scaled = combined(BinaryOp::Mul, result.dtype, alpha, value)?;
            added(result.dtype, result.data[to], scaled)?
        } else {
            value
        };
        Ok(())
    })?;
    Ok(vec![result])
}

fn infer_row_fill(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(0, "self")?;
    call.dim(1, "dim", x.rank())?;
    index_type(call, 2, "index")?;
    call.operand(3, "value")?;
    one(TensorType { strides: preserved_strides(&x), ..x })
}

fn eval_row_fill(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let mut result = e.tensor(0, "self")?.clone();
    let index = e.tensor(2, "index")?;
    let dim = e.call.dim(1, "dim", result.shape.len())?;
    let value = as_element(e.number(3, "value")?, result.dtype);
    let (outer, extent, inner) = result.around(dim);
    for position in &index.data {
        let at = position.to_i64();
        let at = if at < 0 { at.saturating_add(extent as i64) } else { at };
        let at = in_range(Scalar::Int(at), dim, extent)?;
        for o in 0..outer {
            let from = (o * extent + at) * inner;
            result.data[from..from + inner].fill(value);
        }
    }
    Ok(vec![result])
}
