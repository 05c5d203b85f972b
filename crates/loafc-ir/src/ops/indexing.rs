//! Operators that read and write at positions given by tensors: gather, embedding, and NumPy's advanced indexing.
//! Positions are checked: the interpreter reports those outside of a tensor.

use smallvec::SmallVec;

use super::call::{Call, shape_text};
use super::elements::each_index;
use super::eval::{EvalCall, Fault};
use super::pointwise::as_element;
use super::shape::{
    broadcast, check_equal_shapes, check_expands, contiguous_like, expanded_strides, iterator_strides,
    preserved_strides,
};
use super::{InferError, OpDef, Operand, ResultTypes, general, one};
use crate::condition::{Comparison, Relation};
use crate::dtype::{DType, Scalar};
use crate::graph::{Dims, TensorType, contiguous_strides};
use crate::interp::scalar;
use crate::interp::tensor::HostTensor;
use crate::nest::BinaryOp;
use crate::size::Size;

pub(super) const OPS: &[OpDef] = &[
    general("aten.gather.default", "self, dim, index, *, sparse_grad", infer_gather, eval_gather),
    general("aten.index_select.default", "self, dim, index", infer_index_select, eval_index_select),
    general("aten.embedding.default", EMBEDDING, infer_embedding, eval_embedding),
    general("aten.embedding_dense_backward.default", EMBEDDING_BACKWARD, infer_embedding_backward, |e| {
        eval_embedding_backward(e)
    }),
    general("aten.index.Tensor", "self, indices", infer_index, eval_index),
    general("aten._unsafe_index.Tensor", "self, indices", infer_index, eval_index),
    general("aten.index_put.default", INDEX_PUT, infer_index_put, eval_index_put),
    general("aten._unsafe_index_put.default", INDEX_PUT, infer_index_put, eval_index_put),
    general("aten._unsafe_masked_index.default", MASKED, infer_masked_index, eval_masked_index),
    general(
        "aten._unsafe_masked_index_put_accumulate.default",
        "self, mask, indices, values",
        infer_masked_put,
        eval_masked_put,
    ),
    general("aten.masked_fill.Scalar", "self, mask, value", infer_masked_fill, eval_masked_fill),
    general("aten.masked_fill.Tensor", "self, mask, value", infer_masked_fill, eval_masked_fill),
];

const EMBEDDING: &str = "weight, indices, padding_idx, scale_grad_by_freq, sparse";
const EMBEDDING_BACKWARD: &str = "grad_output, indices, num_weights, padding_idx, scale_grad_by_freq";
const INDEX_PUT: &str = "self, indices, values, accumulate";
const MASKED: &str = "self, mask, indices, fill";

/// The type of a tensor of positions. PyTorch doesn't ask of what type none are.
pub(super) fn index_type(call: &Call, position: usize, name: &str) -> Result<TensorType, InferError> {
    let ty = call.tensor_type(position, name)?;
    if matches!(ty.dtype, DType::I64 | DType::I32) || ty.numel().is(0) {
        return Ok(ty);
    }
    Err(call.invalid(name, format!("positions must be i64 or i32, not {}", ty.dtype)))
}

/// A position as it is, if it lies in the dimension.
pub(super) fn in_range(value: Scalar, dim: usize, extent: usize) -> Result<usize, Fault> {
    let index = value.to_i64();
    match usize::try_from(index) {
        Ok(at) if at < extent => Ok(at),
        _ => Err(Fault::Index { index, dim, extent }),
    }
}

/// A position that counts from the end where it is negative.
fn wrapped(value: Scalar, dim: usize, extent: usize) -> Result<usize, Fault> {
    let index = value.to_i64();
    let at = if index < 0 { index.saturating_add(extent as i64) } else { index };
    usize::try_from(at).ok().filter(|at| *at < extent).ok_or(Fault::Index { index, dim, extent })
}

/// Fails unless `index` is empty, or has the rank of `self` and nowhere but in `dim` more elements.
pub(super) fn check_index_shape(
    call: &Call,
    index: &TensorType,
    x: &TensorType,
    dim: usize,
) -> Result<(), InferError> {
    let refused = || {
        let message = format!(
            "shape {} does not fit into {} outside of dimension {dim}",
            shape_text(&index.shape),
            shape_text(&x.shape)
        );
        call.invalid("index", message)
    };
    if index.numel().is(0) {
        return Ok(());
    }
    // Tensors without dimensions count as one element.
    if index.rank().max(1) != x.rank().max(1) {
        return Err(refused());
    }
    for d in (0..index.rank().min(x.rank())).filter(|d| *d != dim) {
        let fits = Comparison::new(index.shape[d], Relation::AtMost, x.shape[d]);
        call.require(fits.with_elements(index.numel()), refused)?;
    }
    Ok(())
}

fn infer_gather(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(0, "self")?;
    let dim = call.dim(1, "dim", x.rank())?;
    let index = index_type(call, 2, "index")?;
    check_index_shape(call, &index, &x, dim)?;
    one(contiguous_like(&x, x.dtype, index.shape))
}

fn eval_gather(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let (x, index) = (e.tensor(0, "self")?, e.tensor(2, "index")?);
    let dim = e.call.dim(1, "dim", x.shape.len())?;
    let extent = x.shape.get(dim).copied().unwrap_or(1);
    let result = HostTensor::build(x.dtype, &index.shape, |at| {
        let chosen = in_range(index.at(at), dim, extent)?;
        let mut from: SmallVec<[usize; 6]> = at.iter().copied().take(x.shape.len()).collect();
        from.resize(x.shape.len(), 0);
        if let Some(along) = from.get_mut(dim) {
            *along = chosen;
        }
        Ok(x.at(&from))
    })?;
    Ok(vec![result])
}

fn infer_index_select(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(0, "self")?;
    let dim = call.dim(1, "dim", x.rank())?;
    let index = index_type(call, 2, "index")?;
    if index.rank() > 1 {
        return Err(call.invalid("index", "a tensor of one dimension was expected"));
    }
    let mut shape = x.shape.clone();
    if let Some(extent) = shape.get_mut(dim) {
        *extent = index.numel();
    }
    one(contiguous_like(&x, x.dtype, shape))
}

fn eval_index_select(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let (x, index) = (e.tensor(0, "self")?, e.tensor(2, "index")?);
    let dim = e.call.dim(1, "dim", x.shape.len())?;
    let result = HostTensor::build(x.dtype, &e.shape(0)?, |at| {
        let mut from: SmallVec<[usize; 6]> = SmallVec::from_slice(at);
        if let Some(along) = from.get_mut(dim) {
            *along = in_range(index.data[*along], dim, x.shape[dim])?;
        }
        Ok(x.at(&from))
    })?;
    Ok(vec![result])
}

fn infer_embedding(call: &Call) -> Result<ResultTypes, InferError> {
    let weight = call.tensor_type(0, "weight")?;
    if weight.rank() != 2 {
        return Err(call.invalid("weight", format!("2 dimensions were expected, it has {}", weight.rank())));
    }
    let indices = index_type(call, 1, "indices")?;
    let shape = indices.shape.iter().copied().chain([weight.shape[1]]);
    one(contiguous_like(&weight, weight.dtype, shape))
}

fn eval_embedding(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let (weight, indices) = (e.tensor(0, "weight")?, e.tensor(1, "indices")?);
    let mut data = Vec::new();
    for index in &indices.data {
        let row = in_range(*index, 0, weight.shape[0])?;
        data.extend_from_slice(&weight.data[row * weight.shape[1]..(row + 1) * weight.shape[1]]);
    }
    Ok(vec![HostTensor { dtype: weight.dtype, shape: e.shape(0)?, data }])
}

fn infer_embedding_backward(call: &Call) -> Result<ResultTypes, InferError> {
    let grad = call.tensor_type(0, "grad_output")?;
    let indices = index_type(call, 1, "indices")?;
    let Some((width, outer)) = grad.shape.split_last() else {
        return Err(call.invalid("grad_output", "at least one dimension was expected"));
    };
    check_equal_shapes(call, "indices", &indices.shape, outer)?;
    one(contiguous_like(&grad, grad.dtype, [call.size(2, "num_weights")?, *width]))
}

fn eval_embedding_backward(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let (grad, indices) = (e.tensor(0, "grad_output")?, e.tensor(1, "indices")?);
    let padding = e.call.int_or(3, "padding_idx", -1)?;
    let by_frequency = e.call.bool_or(4, "scale_grad_by_freq", false)?;
    let shape = e.shape(0)?;
    let width = shape[1];
    let mut totals = vec![0.0; shape[0] * width];
    for (k, index) in indices.data.iter().enumerate() {
        if index.to_i64() == padding {
            continue;
        }
        let row = in_range(*index, 0, shape[0])?;
        let times = indices.data.iter().filter(|other| other.to_i64() == index.to_i64()).count();
        let scale = if by_frequency { 1.0 / times as f64 } else { 1.0 };
        for column in 0..width {
            totals[row * width + column] += grad.data[k * width + column].to_f64() * scale;
        }
    }
    let data = totals.into_iter().map(|v| super::reduction::stored(v, grad.dtype)).collect();
    Ok(vec![HostTensor { dtype: grad.dtype, shape, data }])
}

/// Whether an index chooses by truth values. Bytes do so too, for historical reasons.
fn is_mask(dtype: DType) -> bool {
    matches!(dtype, DType::Bool | DType::U8)
}

/// How the indices of advanced indexing lie in the result.
pub struct Indexing {
    /// For each dimension of the indexed tensor, the type of its index.
    pub indices: Vec<Option<TensorType>>,
    /// Shape that the indices broadcast to.
    pub index_shape: Dims,
    /// First dimension of the result that belongs to `index_shape`: where the indices stand, if they are
    /// neighbours, else 0.
    pub at: usize,
}

impl Indexing {
    /// Reads the list of indices at this position. Masks are refused: the shape of what they choose depends on
    /// data.
    pub fn new(call: &Call, position: usize, x: &TensorType) -> Result<Indexing, InferError> {
        let indices = call.opt_tensors(position, "indices")?;
        if let Some(mask) = indices.iter().flatten().find(|t| is_mask(t.ty.dtype)) {
            let message = format!(
                "positions must be integers, not {}; the shape of what a mask chooses depends on data",
                mask.ty.dtype
            );
            return Err(call.invalid("indices", message));
        }
        Indexing::arrange(call, indices.into_iter().map(|t| t.map(|t| t.ty)).collect(), x.rank())
    }

    /// The arrangement of positions, for a tensor of this rank.
    fn arrange(
        call: &Call,
        mut indices: Vec<Option<TensorType>>,
        rank: usize,
    ) -> Result<Indexing, InferError> {
        let given = indices.iter().flatten().count();
        if indices.len() > rank || given == 0 {
            let message = format!(
                "{} indices for a tensor of {rank} dimensions; give one for at least one dimension",
                indices.len()
            );
            return Err(call.invalid("indices", message));
        }
        if let Some(index) = indices.iter().flatten().find(|ty| !ty.dtype.is_signed_int()) {
            return Err(call.invalid("indices", format!("positions must be integers, not {}", index.dtype)));
        }
        let shapes: Vec<&[Size]> = indices.iter().flatten().map(|ty| ty.shape.as_slice()).collect();
        let index_shape = broadcast(call, &shapes)?;
        indices.resize(rank, None);
        let first = indices.iter().position(Option::is_some).unwrap_or(0);
        let neighbours = indices[first..].iter().take_while(|i| i.is_some()).count() == given;
        Ok(Indexing { indices, index_shape, at: if neighbours { first } else { 0 } })
    }

    /// Dimensions of the tensor that have no index, in order.
    pub fn free_dims(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.indices.len()).filter(|d| self.indices[*d].is_none())
    }

    /// The value of `free` for each free dimension, with `indexed` inserted where the indices stand.
    fn arranged<T: Copy>(&self, free: impl Iterator<Item = T>, indexed: &[T]) -> SmallVec<[T; 6]> {
        let mut arranged: SmallVec<[T; 6]> = free.collect();
        arranged.insert_many(self.at, indexed.iter().copied());
        arranged
    }

    /// Type of what the indices choose.
    fn result(&self, x: &TensorType) -> TensorType {
        let shape: Dims = self.arranged(self.free_dims().map(|d| x.shape[d]), &self.index_shape);
        let nothing: Dims = SmallVec::from_elem(Size::ZERO, self.index_shape.len());
        let mut strides = vec![self.arranged(self.free_dims().map(|d| x.strides[d]), &nothing)];
        for index in self.indices.iter().flatten() {
            let own = expanded_strides(index, &self.index_shape);
            strides.push(self.arranged(self.free_dims().map(|_| Size::ZERO), &own));
        }
        let strides = iterator_strides(&shape, &strides);
        TensorType { shape, strides, ..x.clone() }
    }
}

fn infer_index(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(0, "self")?;
    one(Indexing::new(call, 1, &x)?.result(&x))
}

/// What is done with positions outside of a dimension.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Outside {
    Refused,
    Clamped,
}

fn sizes_of(shape: &[usize]) -> Dims {
    shape.iter().map(|n| Size::from(*n)).collect()
}

fn type_of(tensor: &HostTensor) -> TensorType {
    TensorType::contiguous(tensor.dtype, tensor.shape.iter().map(|n| Size::from(*n)))
}

/// The indices at this argument with each mask replaced by the positions, one tensor for each of its dimensions,
/// at which it is true.
fn positions_of_masks(
    e: &EvalCall,
    position: usize,
    x: &HostTensor,
) -> Result<Vec<Option<HostTensor>>, Fault> {
    let mut indices = Vec::new();
    for index in e.call.opt_tensors(position, "indices")? {
        let Some(index) = index else {
            indices.push(None);
            continue;
        };
        let index = e.value(index.id)?;
        if !is_mask(index.dtype) {
            indices.push(Some(index.clone()));
            continue;
        }
        let covered = x.shape.get(indices.len()..indices.len() + index.shape.len());
        if index.shape.is_empty() || covered != Some(index.shape.as_slice()) {
            let message = format!("a mask of shape {:?} does not fit into {:?}", index.shape, x.shape);
            return Err(e.call.invalid("indices", message).into());
        }
        let mut positions = vec![Vec::new(); index.shape.len()];
        each_index(&index.shape, |at| {
            if index.at(at).to_bool() {
                for (list, i) in positions.iter_mut().zip(at) {
                    list.push(Scalar::Int(*i as i64));
                }
            }
            Ok(())
        })?;
        indices.extend(
            positions
                .into_iter()
                .map(|data| Some(HostTensor { dtype: DType::I64, shape: vec![data.len()], data })),
        );
    }
    Ok(indices)
}

/// What advanced indexing chooses: its shape, and for each of its elements in row-major order the position of
/// that element in the indexed tensor's data.
fn chosen(e: &EvalCall, position: usize, outside: Outside) -> Result<(Vec<usize>, Vec<usize>), Fault> {
    let x = e.tensor(0, "self")?;
    let given = positions_of_masks(e, position, x)?;
    let types = given.iter().map(|index| index.as_ref().map(type_of)).collect();
    let indexing = Indexing::arrange(&e.call, types, x.shape.len())?;
    let index_shape = super::eval::extents(&indexing.index_shape)?;
    let mut tensors: Vec<_> =
        given.iter().map(|index| index.as_ref().map(|t| (t, t.strides_over(&index_shape)))).collect();
    tensors.resize(x.shape.len(), None);
    let shape: SmallVec<[usize; 6]> =
        indexing.arranged(indexing.free_dims().map(|d| x.shape[d]), &index_shape);
    let mut positions = Vec::new();
    each_index(&shape, |at| {
        let (before, rest) = at.split_at(indexing.at);
        let (inner, behind) = rest.split_at(index_shape.len());
        let mut free = before.iter().chain(behind).copied();
        let mut from: SmallVec<[usize; 6]> = SmallVec::new();
        for (dim, tensor) in tensors.iter().enumerate() {
            let extent = x.shape[dim];
            from.push(match tensor {
                None => free.next().unwrap_or(0),
                Some((index, strides)) => {
                    let k: usize = inner.iter().zip(strides).map(|(i, s)| i * s).sum();
                    let value = match (outside, index.data[k]) {
                        (Outside::Refused, value) => value,
                        (Outside::Clamped, value) => {
                            let n = extent as i64;
                            Scalar::Int(value.to_i64().clamp(-n, (n - 1).max(-n)))
                        }
                    };
                    wrapped(value, dim, extent)?
                }
            });
        }
        positions.push(x.position(&from));
        Ok(())
    })?;
    Ok((shape.to_vec(), positions))
}

fn eval_index(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let x = e.tensor(0, "self")?;
    let (shape, positions) = chosen(e, 1, Outside::Refused)?;
    let data = positions.into_iter().map(|at| x.data[at]).collect();
    Ok(vec![HostTensor { dtype: x.dtype, shape, data }])
}

fn infer_index_put(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(0, "self")?;
    let values = call.tensor_type(2, "values")?;
    check_masks(call, &x)?;
    // How many elements a mask chooses is not known before the program runs.
    if !call.opt_tensors(1, "indices")?.iter().flatten().any(|t| is_mask(t.ty.dtype)) {
        let chosen = Indexing::new(call, 1, &x)?.result(&x);
        check_expands(call, "values", &values.shape, &chosen.shape)?;
    }
    if values.dtype != x.dtype && values.rank() > 0 {
        let message = format!("{} was expected, as in `self`, not {}", x.dtype, values.dtype);
        return Err(call.invalid("values", message));
    }
    call.bool_or(3, "accumulate", false)?;
    one(TensorType { strides: preserved_strides(&x), ..x })
}

/// Fails unless each mask among the indices has the extents of the dimensions that it stands for.
fn check_masks(call: &Call, x: &TensorType) -> Result<(), InferError> {
    let mut dim = 0;
    for index in call.opt_tensors(1, "indices")? {
        let Some(mask) = index.filter(|t| is_mask(t.ty.dtype)) else {
            dim += 1;
            continue;
        };
        let mask = mask.ty.shape;
        let refused = || {
            let (mask, x) = (shape_text(&mask), shape_text(&x.shape));
            call.invalid(
                "indices",
                format!("a mask of shape {mask} does not fit into {x} from dimension {dim} on"),
            )
        };
        let covered = x.shape.get(dim..dim + mask.len()).ok_or_else(refused)?;
        mask.iter().zip(covered).try_for_each(|(own, there)| call.require_equal(*own, *there, refused))?;
        dim += mask.len();
    }
    Ok(())
}

/// The sum of two elements of memory.
pub(super) fn added(dtype: DType, a: Scalar, b: Scalar) -> Result<Scalar, Fault> {
    Ok(scalar::cast(scalar::binary(BinaryOp::Add, dtype, a, b)?, dtype.compute(), dtype))
}

fn eval_index_put(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let mut result = e.tensor(0, "self")?.clone();
    let values = e.tensor(2, "values")?;
    let accumulate = e.call.bool_or(3, "accumulate", false)?;
    let (shape, positions) = chosen(e, 1, Outside::Refused)?;
    check_expands(&e.call, "values", &type_of(values).shape, &sizes_of(&shape))?;
    let strides = values.strides_over(&shape);
    let mut positions = positions.into_iter();
    each_index(&shape, |index| {
        let from: usize = index.iter().zip(&strides).map(|(i, s)| i * s).sum();
        let value = scalar::cast(values.data[from], values.dtype, result.dtype);
        if let Some(to) = positions.next() {
            let before = result.data[to];
            result.data[to] = if accumulate { added(result.dtype, before, value)? } else { value };
        }
        Ok(())
    })?;
    Ok(vec![result])
}

fn masked_type(call: &Call, x: &TensorType) -> Result<TensorType, InferError> {
    let chosen = Indexing::new(call, 2, x)?.result(x);
    let mask = call.tensor_type(1, "mask")?;
    if mask.dtype != DType::Bool {
        return Err(call.invalid("mask", format!("truth values were expected, not {}", mask.dtype)));
    }
    check_expands(call, "mask", &mask.shape, &chosen.shape)?;
    Ok(chosen)
}

fn infer_masked_index(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(0, "self")?;
    call.operand(3, "fill")?;
    let chosen = masked_type(call, &x)?;
    one(contiguous_like(&x, x.dtype, chosen.shape))
}

fn eval_masked_index(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let (x, mask) = (e.tensor(0, "self")?, e.tensor(1, "mask")?);
    let fill = as_element(e.number(3, "fill")?, x.dtype);
    let (shape, positions) = chosen(e, 2, Outside::Clamped)?;
    let strides = mask.strides_over(&shape);
    let mut positions = positions.into_iter();
    let result = HostTensor::build(x.dtype, &shape, |index| {
        let at: usize = index.iter().zip(&strides).map(|(i, s)| i * s).sum();
        let from = positions.next();
        Ok(from.filter(|_| mask.data[at].to_bool()).map_or(fill, |from| x.data[from]))
    })?;
    Ok(vec![result])
}

fn infer_masked_put(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(0, "self")?;
    let chosen = masked_type(call, &x)?;
    check_expands(call, "values", &call.tensor_type(3, "values")?.shape, &chosen.shape)?;
    one(TensorType { strides: preserved_strides(&x), ..x })
}

fn eval_masked_put(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let mut result = e.tensor(0, "self")?.clone();
    let (mask, values) = (e.tensor(1, "mask")?, e.tensor(3, "values")?);
    let (shape, positions) = chosen(e, 2, Outside::Clamped)?;
    let (mask_strides, strides) = (mask.strides_over(&shape), values.strides_over(&shape));
    let at =
        |index: &[usize], strides: &[usize]| -> usize { index.iter().zip(strides).map(|(i, s)| i * s).sum() };
    let mut positions = positions.into_iter();
    each_index(&shape, |index| {
        let to = positions.next().filter(|_| mask.data[at(index, &mask_strides)].to_bool());
        let Some(to) = to else { return Ok(()) };
        let value = scalar::cast(values.data[at(index, &strides)], values.dtype, result.dtype);
        result.data[to] = added(result.dtype, result.data[to], value)?;
        Ok(())
    })?;
    Ok(vec![result])
}

fn infer_masked_fill(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(0, "self")?;
    let mask = call.tensor_type(1, "mask")?;
    if mask.dtype != DType::Bool {
        return Err(call.invalid("mask", format!("truth values were expected, not {}", mask.dtype)));
    }
    if let Operand::Tensor(value) = call.operand(2, "value")?
        && value.ty.rank() > 0
    {
        return Err(call.invalid("value", "a number or a tensor without dimensions was expected"));
    }
    let shape = broadcast(call, &[&x.shape, &mask.shape])?;
    let strides = contiguous_strides(&shape);
    one(TensorType { shape, strides, ..x })
}

fn eval_masked_fill(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let (x, mask) = (e.tensor(0, "self")?, e.tensor(1, "mask")?);
    let value = as_element(e.number(2, "value")?, x.dtype);
    let shape = e.shape(0)?;
    let (own, masks) = (x.strides_over(&shape), mask.strides_over(&shape));
    let at =
        |index: &[usize], strides: &[usize]| -> usize { index.iter().zip(strides).map(|(i, s)| i * s).sum() };
    let result = HostTensor::build(x.dtype, &shape, |index| {
        Ok(if mask.data[at(index, &masks)].to_bool() { value } else { x.data[at(index, &own)] })
    })?;
    Ok(vec![result])
}

/// Fails unless a source of rows has the shape of `self` with the number of positions in `dim`.
pub(super) fn check_rows(
    call: &Call,
    x: &TensorType,
    dim: usize,
    index: &TensorType,
    source: &TensorType,
) -> Result<(), InferError> {
    let mut expected = x.shape.clone();
    if let Some(along) = expected.get_mut(dim) {
        *along = index.numel();
    }
    // A tensor without dimensions has one row, itself.
    let one_row = x.rank() == 0 || source.rank() == 0;
    let refused = || {
        let message =
            format!("shape {} was expected, it has {}", shape_text(&expected), shape_text(&source.shape));
        call.invalid("source", message)
    };
    if index.rank() > 1 {
        return Err(refused());
    }
    if one_row && x.rank() <= 1 && source.rank() <= 1 && call.op == "aten.index_copy.default" {
        return call.require_equal(source.numel(), index.numel(), refused);
    }
    if source.rank() != x.rank() {
        return Err(refused());
    }
    if x.rank() == 0 {
        return call.require_equal(index.numel(), Size::ONE, refused);
    }
    expected.iter().zip(&source.shape).try_for_each(|(e, s)| call.require_equal(*e, *s, refused))
}
