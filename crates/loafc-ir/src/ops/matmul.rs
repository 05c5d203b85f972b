//! Matrix products and attention, by plain loops. Floats are accumulated in f64 and rounded once.

use smallvec::SmallVec;

use super::call::{Call, KEYWORD, shape_text};
use super::eval::{EvalCall, Fault};
use super::reduction::stored;
use super::shape::{
    broadcast, check_equal_shapes, check_expands, contiguous_like, dense_strides, preserved_strides,
};
use super::{InferError, OpDef, ResultTypes, general, one};
use crate::condition::{Comparison, Relation};
use crate::dtype::{DType, Scalar};
use crate::graph::{Dims, TensorType, contiguous_strides};
use crate::interp::scalar;
use crate::interp::tensor::HostTensor;
use crate::nest::BinaryOp;
use crate::size::Size;

pub(super) const OPS: &[OpDef] = &[
    general("aten.mm.default", "self, mat2", |c| product(c, "mat2", Some(2)), |e| eval_product(e, "mat2")),
    general("aten.bmm.default", "self, mat2", |c| product(c, "mat2", Some(3)), |e| eval_product(e, "mat2")),
    general("aten.mv.default", "self, vec", |c| product(c, "vec", None), |e| eval_product(e, "vec")),
    general(
        "aten.dot.default",
        "self, tensor",
        |c| product(c, "tensor", Some(1)),
        |e| eval_product(e, "tensor"),
    ),
    general(
        "aten.matmul.default",
        "self, other",
        |c| product(c, "other", None),
        |e| eval_product(e, "other"),
    ),
    general(
        "aten.addmm.default",
        "self, mat1, mat2, *, beta, alpha",
        |c| sum_type(c, MATRICES, 2),
        |e| eval_sum(e, MATRICES),
    ),
    general(
        "aten.addmv.default",
        "self, mat, vec, *, beta, alpha",
        |c| sum_type(c, VECTOR, 1),
        |e| eval_sum(e, VECTOR),
    ),
    general(
        "aten.baddbmm.default",
        "self, batch1, batch2, *, beta, alpha",
        |c| sum_type(c, BATCHES, 3),
        |e| eval_sum(e, BATCHES),
    ),
    general("aten.linear.default", "input, weight, bias", infer_linear, eval_linear),
    general(
        "aten._scaled_dot_product_flash_attention_for_cpu.default",
        "query, key, value, dropout_p, is_causal, *, attn_mask, scale",
        infer_attention,
        eval_attention,
    ),
];

/// Names of the two factors of a product that is added to something.
type Factors = (&'static str, &'static str);
const MATRICES: Factors = ("mat1", "mat2");
const VECTOR: Factors = ("mat", "vec");
const BATCHES: Factors = ("batch1", "batch2");

/// Shape of the product of two tensors, with `torch.matmul`'s rules for any number of dimensions.
fn product_shape(call: &Call, name: &str, a: &TensorType, b: &TensorType) -> Result<Dims, InferError> {
    if a.dtype != b.dtype {
        return Err(InferError::Promotion { op: call.op.to_owned(), left: a.dtype, right: b.dtype });
    }
    let (Some(inner), false) = (a.shape.last(), b.shape.is_empty()) else {
        return Err(call.invalid(name, "both factors need at least one dimension"));
    };
    let other = b.shape[b.rank().saturating_sub(2)];
    call.require_equal(*inner, other, || {
        let message = format!(
            "shapes {} and {} have no product: {inner} differs from {other}",
            shape_text(&a.shape),
            shape_text(&b.shape)
        );
        call.invalid(name, message)
    })?;
    let batch = |t: &TensorType| -> Dims { t.shape[..t.rank().saturating_sub(2)].into() };
    let mut shape = broadcast(call, &[&batch(a), &batch(b)])?;
    if a.rank() > 1 {
        shape.push(a.shape[a.rank() - 2]);
    }
    if b.rank() > 1 {
        shape.push(b.shape[b.rank() - 1]);
    }
    Ok(shape)
}

fn check_rank(call: &Call, name: &str, ty: &TensorType, rank: Option<usize>) -> Result<(), InferError> {
    match rank {
        Some(rank) if ty.rank() != rank => {
            Err(call.invalid(name, format!("{rank} dimensions were expected, it has {}", ty.rank())))
        }
        _ => Ok(()),
    }
}

fn product(call: &Call, other: &'static str, rank: Option<usize>) -> Result<ResultTypes, InferError> {
    let (a, b) = (call.tensor_type(0, "self")?, call.tensor_type(1, other)?);
    check_rank(call, "self", &a, rank)?;
    check_rank(call, other, &b, rank)?;
    if rank == Some(3) {
        call.require_equal(a.shape[0], b.shape[0], || {
            call.invalid(other, format!("{} matrices were expected, it has {}", a.shape[0], b.shape[0]))
        })?;
    }
    let shape = product_shape(call, other, &a, &b)?;
    one(contiguous_like(&a, a.dtype, shape))
}

/// The product before rounding: in f64 for floats, in the type itself for integers.
fn multiplied(a: &HostTensor, b: &HostTensor, shape: &[usize]) -> Result<Vec<Scalar>, Fault> {
    let within = if a.dtype.is_float() { DType::F64 } else { a.dtype };
    let inner = a.shape.last().copied().unwrap_or(1);
    let batch_rank = shape.len() - usize::from(a.shape.len() > 1) - usize::from(b.shape.len() > 1);
    let batch = &shape[..batch_rank];
    let offset = |t: &HostTensor, index: &[usize]| -> usize {
        let own = t.shape.len().saturating_sub(2);
        let per = t.shape[own..].iter().product::<usize>();
        let at = t.shape[..own]
            .iter()
            .zip(&index[batch.len() - own..])
            .fold(0, |at, (extent, i)| at * extent + if *extent == 1 { 0 } else { *i });
        at * per
    };
    let columns = if b.shape.len() > 1 { b.shape[b.shape.len() - 1] } else { 1 };
    let result = HostTensor::build(a.dtype, shape, |index| {
        let (row, column) = match (a.shape.len() > 1, b.shape.len() > 1) {
            (true, true) => (index[batch_rank], index[batch_rank + 1]),
            (true, false) => (index[batch_rank], 0),
            (false, true) => (0, index[batch_rank]),
            (false, false) => (0, 0),
        };
        let (a_at, b_at) = (offset(a, &index[..batch_rank]), offset(b, &index[..batch_rank]));
        let mut total = scalar::zero(within);
        for k in 0..inner {
            let (x, y) = (a.data[a_at + row * inner + k], b.data[b_at + k * columns + column]);
            total =
                scalar::binary(BinaryOp::Add, within, total, scalar::binary(BinaryOp::Mul, within, x, y)?)?;
        }
        Ok(total)
    })?;
    Ok(result.data)
}

fn element(value: Scalar, dtype: DType) -> Scalar {
    if dtype.is_float() { stored(value.to_f64(), dtype) } else { value }
}

fn eval_product(e: &EvalCall, other: &str) -> Result<Vec<HostTensor>, Fault> {
    let (a, b, shape) = (e.tensor(0, "self")?, e.tensor(1, other)?, e.shape(0)?);
    let data = multiplied(a, b, &shape)?.into_iter().map(|v| element(v, a.dtype)).collect();
    Ok(vec![HostTensor { dtype: a.dtype, shape, data }])
}

/// Type of `beta·self + alpha·(a @ b)`, which has this rank.
fn sum_type(call: &Call, factors: Factors, rank: usize) -> Result<ResultTypes, InferError> {
    let (a, b) = (call.tensor_type(1, factors.0)?, call.tensor_type(2, factors.1)?);
    check_rank(call, factors.0, &a, Some(rank.max(2)))?;
    check_rank(call, factors.1, &b, Some(rank))?;
    let shape = product_shape(call, factors.1, &a, &b)?;
    check_expands(call, "self", &call.tensor_type(0, "self")?.shape, &shape)?;
    call.scalar_or(KEYWORD, "beta", Scalar::Int(1))?;
    call.scalar_or(KEYWORD, "alpha", Scalar::Int(1))?;
    one(contiguous_like(&a, a.dtype, shape))
}

fn eval_sum(e: &EvalCall, factors: Factors) -> Result<Vec<HostTensor>, Fault> {
    let (a, b, shape) = (e.tensor(1, factors.0)?, e.tensor(2, factors.1)?, e.shape(0)?);
    let addend = e.tensor(0, "self")?;
    let beta = e.call.scalar_or(KEYWORD, "beta", Scalar::Int(1))?;
    let alpha = e.call.scalar_or(KEYWORD, "alpha", Scalar::Int(1))?;
    let within = if a.dtype.is_float() { DType::F64 } else { a.dtype };
    let product = multiplied(a, b, &shape)?;
    let strides = addend.strides_over(&shape);
    // With beta = 0 the addend is not read: its NaNs don't count.
    let ignored = beta.to_f64() == 0.0;
    let scaled = |factor: Scalar, value: Scalar| {
        scalar::binary(BinaryOp::Mul, within, scalar::constant(factor, within), value)
    };
    let mut k = 0;
    let result = HostTensor::build(a.dtype, &shape, |index| {
        let product = scaled(alpha, product[k])?;
        k += 1;
        if ignored {
            return Ok(element(product, a.dtype));
        }
        let at: usize = index.iter().zip(&strides).map(|(i, s)| i * s).sum();
        let total = scalar::binary(BinaryOp::Add, within, scaled(beta, addend.data[at])?, product)?;
        Ok(element(total, a.dtype))
    })?;
    Ok(vec![result])
}

fn infer_linear(call: &Call) -> Result<ResultTypes, InferError> {
    let (x, weight) = (call.tensor_type(0, "input")?, call.tensor_type(1, "weight")?);
    check_rank(call, "weight", &weight, Some(2))?;
    let Some((inner, outer)) = x.shape.split_last() else {
        return Err(call.invalid("input", "at least one dimension was expected"));
    };
    call.require_equal(*inner, weight.shape[1], || {
        call.invalid("weight", format!("{inner} columns were expected, it has {}", weight.shape[1]))
    })?;
    if let Some(bias) = call.opt_tensor(2, "bias")? {
        check_equal_shapes(call, "bias", &bias.ty.shape, &weight.shape[..1])?;
    }
    let shape = outer.iter().copied().chain([weight.shape[0]]);
    one(contiguous_like(&x, x.dtype, shape))
}

fn eval_linear(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let (x, weight) = (e.tensor(0, "input")?, e.tensor(1, "weight")?);
    let bias = e.opt_tensor(2, "bias")?;
    let inner = weight.shape[1];
    let mut row = 0;
    let result = HostTensor::build(x.dtype, &e.shape(0)?, |index| {
        let column = index[index.len() - 1];
        let at = row / weight.shape[0] * inner;
        row += 1;
        let total: f64 =
            (0..inner).map(|k| x.data[at + k].to_f64() * weight.data[column * inner + k].to_f64()).sum();
        Ok(stored(total + bias.map_or(0.0, |bias| bias.data[column].to_f64()), x.dtype))
    })?;
    Ok(vec![result])
}

fn infer_attention(call: &Call) -> Result<ResultTypes, InferError> {
    let (query, key) = (call.tensor_type(0, "query")?, call.tensor_type(1, "key")?);
    let value = call.tensor_type(2, "value")?;
    for (name, ty) in [("query", &query), ("key", &key), ("value", &value)] {
        check_rank(call, name, ty, Some(4))?;
    }
    if call.float_or(3, "dropout_p", 0.0)? != 0.0 {
        return Err(call.invalid("dropout_p", "only 0 is supported"));
    }
    // PyTorch traces this operator without comparing these sizes: two symbols may have one value, and what doesn't
    // fit shows at the call.
    let equal = |left: Size, right: Size| Comparison::new(left, Relation::Equal, right);
    let fits = "its extents don't fit those of `query` and `value`";
    for sizes in [equal(query.shape[3], key.shape[3]), equal(key.shape[2], value.shape[2])] {
        call.require(sizes, || call.invalid("key", fits))?;
    }
    let (heads, shared) = (query.shape[1], key.shape[1]);
    let fits = "its batch or heads don't fit those of `query` and `value`";
    if shared.is(0) {
        return Err(call.invalid("key", fits));
    }
    for sizes in [
        equal(heads.modulo(shared), Size::ZERO),
        equal(query.shape[0], key.shape[0]),
        equal(query.shape[0], value.shape[0]),
        equal(shared, value.shape[1]),
    ] {
        call.require(sizes, || call.invalid("key", fits))?;
    }
    let shape: Dims = SmallVec::from_slice(&[query.shape[0], query.shape[1], query.shape[2], value.shape[3]]);
    if let Some(mask) = call.opt_tensor(KEYWORD, "attn_mask")? {
        let scores = [shape[0], shape[1], shape[2], key.shape[2]];
        let refused = || {
            let (from, to) = (shape_text(&mask.ty.shape), shape_text(&scores));
            call.invalid("attn_mask", format!("shape {from} does not expand to {to}"))
        };
        if mask.ty.rank() > 4 {
            return Err(refused());
        }
        for (m, s) in mask.ty.shape.iter().rev().zip(scores.iter().rev()).filter(|(m, _)| !m.is(1)) {
            call.require(equal(*m, *s), refused)?;
        }
    }
    let strides = match shape == query.shape {
        true => preserved_strides(&query),
        false => contiguous_strides(&shape),
    };
    let sums_shape: Dims = SmallVec::from_slice(&shape[..3]);
    let sums_strides = dense_strides(&sums_shape, [1, 2, 0].into_iter());
    let sums = TensorType { dtype: query.dtype.compute(), shape: sums_shape, strides: sums_strides, ..query };
    Ok(vec![Some(TensorType { shape, strides, ..query }), Some(sums)])
}

fn eval_attention(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let (query, key, value) = (e.tensor(0, "query")?, e.tensor(1, "key")?, e.tensor(2, "value")?);
    let mask = e.opt_tensor(KEYWORD, "attn_mask")?;
    let causal = e.call.bool_or(4, "is_causal", false)?;
    let shape = e.shape(0)?;
    let (width, keys) = (query.shape[3], key.shape[2]);
    let scale = e.call.float_or(KEYWORD, "scale", 1.0 / (width as f64).sqrt())?;
    let mask_strides = mask.map(|m| m.strides_over(&[shape[0], shape[1], shape[2], keys]));
    let score = |b: usize, h: usize, row: usize, column: usize| -> f64 {
        if causal && column > row {
            return f64::NEG_INFINITY;
        }
        // Fewer heads of keys than of queries are shared by neighbouring ones.
        let shared = h * key.shape[1] / shape[1];
        let dot: f64 = (0..width)
            .map(|k| query.at(&[b, h, row, k]).to_f64() * key.at(&[b, shared, column, k]).to_f64())
            .sum();
        let added = match (mask, &mask_strides) {
            (Some(mask), Some(strides)) => {
                let at = b * strides[0] + h * strides[1] + row * strides[2] + column * strides[3];
                match mask.data[at] {
                    Scalar::Bool(true) => 0.0,
                    Scalar::Bool(false) => f64::NEG_INFINITY,
                    number => number.to_f64(),
                }
            }
            _ => 0.0,
        };
        dot * scale + added
    };
    let mut result = HostTensor::filled(query.dtype, &shape, Scalar::Float(0.0));
    let sums_dtype = e.result(1)?.dtype;
    let sums = HostTensor::build(sums_dtype, &shape[..3], |index| {
        let [b, h, row] = [index[0], index[1], index[2]];
        let scores: Vec<f64> = (0..keys).map(|column| score(b, h, row, column)).collect();
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let shift = if largest == f64::NEG_INFINITY { 0.0 } else { largest };
        let weights: Vec<f64> = scores.iter().map(|s| (s - shift).exp()).collect();
        let total: f64 = weights.iter().sum();
        let shared = h * value.shape[1] / shape[1];
        for column in 0..shape[3] {
            let mixed: f64 =
                weights.iter().enumerate().map(|(k, w)| w * value.at(&[b, shared, k, column]).to_f64()).sum();
            let at = result.position(&[b, h, row, column]);
            // A row that is masked out as a whole gives zeros.
            let mixed = if total == 0.0 { 0.0 } else { mixed / total };
            result.data[at] = stored(mixed, query.dtype);
        }
        Ok(stored(total.ln() + shift, sums_dtype))
    })?;
    Ok(vec![result, sums])
}
