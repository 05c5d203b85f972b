//! Reductions over dimensions: sums, products, extremes and their positions, truth, mean and variance. Results
//! are contiguous. Floats are accumulated in f64 and rounded once.

use smallvec::SmallVec;

use super::call::{Call, KEYWORD};
use super::elements::each_index;
use super::eval::{EvalCall, Fault};
use super::promote::{accumulated, to_float};
use super::shape::contiguous_like;
use super::{InferError, OpDef, ResultTypes, general, one};
use crate::dtype::{DType, Scalar};
use crate::graph::{Dims, TensorType};
use crate::interp::scalar::{self, Accumulator};
use crate::interp::tensor::HostTensor;
use crate::nest::ReduceOp;
use crate::size::Size;

pub(super) const OPS: &[OpDef] = &[
    general("aten.sum.default", "self, *, dtype", infer_sum, eval_sum),
    general("aten.sum.dim_IntList", "self, dim, keepdim, *, dtype", infer_sum, eval_sum),
    general("aten.prod.default", "self, *, dtype", infer_sum, eval_prod),
    general("aten.prod.dim_int", "self, dim, keepdim, *, dtype", infer_sum, eval_prod),
    general("aten.mean.default", "self, *, dtype", infer_mean, eval_mean),
    general("aten.mean.dim", "self, dim, keepdim, *, dtype", infer_mean, eval_mean),
    general("aten.amax.default", "self, dim, keepdim", infer_extreme, eval_max),
    general("aten.amin.default", "self, dim, keepdim", infer_extreme, eval_min),
    general("aten.max.default", "self", infer_extreme, eval_max),
    general("aten.min.default", "self", infer_extreme, eval_min),
    general("aten.max.dim", "self, dim, keepdim", infer_with_indices, eval_max_dim),
    general("aten.min.dim", "self, dim, keepdim", infer_with_indices, eval_min_dim),
    general("aten.argmax.default", "self, dim, keepdim", infer_arg, eval_argmax),
    general("aten.argmin.default", "self, dim, keepdim", infer_arg, eval_argmin),
    general("aten.any.default", "self", infer_truth, eval_any),
    general("aten.any.dim", "self, dim, keepdim", infer_truth, eval_any),
    general("aten.any.dims", "self, dim, keepdim", infer_truth, eval_any),
    general("aten.all.default", "self", infer_truth, eval_all),
    general("aten.all.dim", "self, dim, keepdim", infer_truth, eval_all),
    general("aten.all.dims", "self, dim, keepdim", infer_truth, eval_all),
    general("aten.var.correction", VARIANCE, infer_variance, |e| eval_variance(e, Spread::Variance)),
    general("aten.std.correction", VARIANCE, infer_variance, |e| eval_variance(e, Spread::Deviation)),
    general("aten.var_mean.correction", VARIANCE, infer_variance_mean, |e| {
        eval_variance(e, Spread::Variance)
    }),
    general("aten.std_mean.correction", VARIANCE, infer_variance_mean, |e| {
        eval_variance(e, Spread::Deviation)
    }),
    general("aten.logsumexp.default", "self, dim, keepdim", infer_logsumexp, eval_logsumexp),
    general(
        "aten.linalg_vector_norm.default",
        "self, ord, dim, keepdim, *, dtype",
        infer_vector_norm,
        eval_vector_norm,
    ),
];

const VARIANCE: &str = "self, dim, *, correction, keepdim";

/// What a reduction runs over, and what it leaves.
struct Plan {
    /// Reduced dimensions.
    dims: SmallVec<[usize; 6]>,
    keepdim: bool,
}

impl Plan {
    /// Reads `dim` and `keepdim` at these positions; operators without them reduce everything.
    fn new(call: &Call, dim: usize, keepdim: usize, rank: usize) -> Result<Plan, InferError> {
        Ok(Plan {
            dims: call.reduced_dims(dim, "dim", rank)?,
            keepdim: call.bool_or(keepdim, "keepdim", false)?,
        })
    }

    fn shape(&self, x: &[Size]) -> Dims {
        x.iter()
            .enumerate()
            .filter_map(|(d, extent)| match self.dims.contains(&d) {
                false => Some(*extent),
                true => self.keepdim.then_some(Size::ONE),
            })
            .collect()
    }

    fn result(&self, x: &TensorType, dtype: DType) -> TensorType {
        contiguous_like(x, dtype, self.shape(&x.shape))
    }
}

/// The plan of reductions whose parameters are `self, dim, keepdim`.
fn plan(call: &Call, rank: usize) -> Result<Plan, InferError> {
    Plan::new(call, 1, 2, rank)
}

/// Fails where a reduction without a value for no elements runs over none.
fn check_not_empty(call: &Call, x: &TensorType, plan: &Plan) -> Result<(), InferError> {
    match plan.dims.iter().find(|d| x.shape[**d].is(0)) {
        None => Ok(()),
        Some(d) => Err(call.invalid("self", format!("dimension {d} is empty and has no extreme"))),
    }
}

fn infer_sum(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(0, "self")?;
    let dtype = call.opt_dtype(KEYWORD, "dtype")?.unwrap_or(accumulated(x.dtype));
    one(plan(call, x.rank())?.result(&x, dtype))
}

fn infer_mean(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(0, "self")?;
    let dtype = call.opt_dtype(KEYWORD, "dtype")?.unwrap_or(x.dtype);
    floats_only(call, dtype)?;
    one(plan(call, x.rank())?.result(&x, dtype))
}

fn floats_only(call: &Call, dtype: DType) -> Result<(), InferError> {
    if dtype.is_float() {
        return Ok(());
    }
    Err(InferError::DType { op: call.op.to_owned(), expected: "floats", found: dtype })
}

fn infer_extreme(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(0, "self")?;
    let plan = plan(call, x.rank())?;
    check_not_empty(call, &x, &plan)?;
    one(plan.result(&x, x.dtype))
}

fn infer_with_indices(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(0, "self")?;
    call.dim(1, "dim", x.rank())?;
    let plan = plan(call, x.rank())?;
    check_not_empty(call, &x, &plan)?;
    Ok(vec![Some(plan.result(&x, x.dtype)), Some(plan.result(&x, DType::I64))])
}

fn infer_arg(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(0, "self")?;
    let plan = plan(call, x.rank())?;
    check_not_empty(call, &x, &plan)?;
    one(plan.result(&x, DType::I64))
}

fn infer_truth(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(0, "self")?;
    // A historical exception of PyTorch: bytes stay bytes.
    let dtype = if x.dtype == DType::U8 { DType::U8 } else { DType::Bool };
    one(plan(call, x.rank())?.result(&x, dtype))
}

fn infer_variance(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(0, "self")?;
    floats_only(call, x.dtype)?;
    call.scalar_or(KEYWORD, "correction", Scalar::Int(1))?;
    one(Plan::new(call, 1, KEYWORD, x.rank())?.result(&x, x.dtype))
}

fn infer_variance_mean(call: &Call) -> Result<ResultTypes, InferError> {
    let types = infer_variance(call)?;
    Ok(vec![types[0].clone(), types[0].clone()])
}

fn infer_logsumexp(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(0, "self")?;
    one(plan(call, x.rank())?.result(&x, to_float(x.dtype)))
}

fn infer_vector_norm(call: &Call) -> Result<ResultTypes, InferError> {
    let x = call.tensor_type(0, "self")?;
    floats_only(call, x.dtype)?;
    let dtype = call.opt_dtype(KEYWORD, "dtype")?.unwrap_or(x.dtype);
    one(Plan::new(call, 2, 3, x.rank())?.result(&x, dtype))
}

/// The elements that each element of the result is made of, with their positions in the reduced dimensions
/// counted in row-major order. One row for each element of the result, in row-major order.
fn rows(x: &HostTensor, plan: &Plan) -> Result<Vec<Vec<Scalar>>, Fault> {
    let kept: Vec<usize> = (0..x.shape.len()).filter(|d| !plan.dims.contains(d)).collect();
    let extents: Vec<usize> = kept.iter().map(|d| x.shape[*d]).collect();
    let mut rows = vec![Vec::new(); extents.iter().product()];
    each_index(&x.shape, |index| {
        let row = kept.iter().zip(&extents).fold(0, |at, (d, extent)| at * extent + index[*d]);
        rows[row].push(x.at(index));
        Ok(())
    })?;
    Ok(rows)
}

/// A reduction that makes one value of each row.
fn reduce(
    e: &EvalCall,
    plan: &Plan,
    row: impl Fn(&[Scalar]) -> Result<Scalar, Fault>,
) -> Result<Vec<HostTensor>, Fault> {
    let x = e.tensor(0, "self")?;
    let data = rows(x, plan)?.iter().map(|values| row(values)).collect::<Result<_, Fault>>()?;
    Ok(vec![HostTensor { dtype: e.result(0)?.dtype, shape: e.shape(0)?, data }])
}

fn plan_of(e: &EvalCall) -> Result<Plan, Fault> {
    Ok(plan(&e.call, e.tensor(0, "self")?.shape.len())?)
}

/// A float as an element of memory.
pub(super) fn stored(value: f64, dtype: DType) -> Scalar {
    let computed = Scalar::Float(scalar::round_to_compute(dtype, value));
    scalar::cast(computed, dtype.compute(), dtype)
}

/// Sum or product of the values converted to the result's type; floats in f64.
fn fold(e: &EvalCall, op: ReduceOp) -> Result<Vec<HostTensor>, Fault> {
    let (from, to) = (e.tensor(0, "self")?.dtype, e.result(0)?.dtype);
    reduce(e, &plan_of(e)?, |values| {
        let within = if to.is_float() { DType::F64 } else { to };
        let mut total = Accumulator::new(op, within)?;
        for value in values {
            total.add(scalar::cast(scalar::cast(*value, from, to), to, within), 0)?;
        }
        let total = total.finish().0;
        Ok(if to.is_float() { stored(total.to_f64(), to) } else { total })
    })
}

fn eval_sum(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    // A sum into truth values asks whether any is true.
    fold(e, if e.result(0)?.dtype == DType::Bool { ReduceOp::Any } else { ReduceOp::Sum })
}

fn eval_prod(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    fold(e, if e.result(0)?.dtype == DType::Bool { ReduceOp::All } else { ReduceOp::Prod })
}

fn eval_mean(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let (from, to) = (e.tensor(0, "self")?.dtype, e.result(0)?.dtype);
    reduce(e, &plan_of(e)?, |values| {
        let total: f64 = values.iter().map(|v| scalar::cast(*v, from, to).to_f64()).sum();
        Ok(stored(total / values.len() as f64, to))
    })
}

/// The extreme of each row, and its position: the first of equals.
fn extremes(e: &EvalCall, plan: &Plan, op: ReduceOp) -> Result<Vec<(Scalar, Scalar)>, Fault> {
    let x = e.tensor(0, "self")?;
    rows(x, plan)?
        .iter()
        .map(|values| {
            let mut extreme = Accumulator::new(op, x.dtype)?;
            for (position, value) in values.iter().enumerate() {
                extreme.add(*value, position as i64)?;
            }
            let (value, position) = extreme.finish();
            Ok((value, position.unwrap_or(Scalar::Int(0))))
        })
        .collect()
}

fn extreme_values(e: &EvalCall, op: ReduceOp) -> Result<Vec<HostTensor>, Fault> {
    let data = extremes(e, &plan_of(e)?, op)?.into_iter().map(|(value, _)| value).collect();
    Ok(vec![HostTensor { dtype: e.result(0)?.dtype, shape: e.shape(0)?, data }])
}

fn extreme_positions(e: &EvalCall, op: ReduceOp) -> Result<Vec<HostTensor>, Fault> {
    if e.tensor(0, "self")?.dtype == DType::Bool {
        return Err(Fault::Value("truth values are refused; convert them to integers".to_owned()));
    }
    let data = extremes(e, &plan_of(e)?, op)?.into_iter().map(|(_, position)| position).collect();
    Ok(vec![HostTensor { dtype: DType::I64, shape: e.shape(0)?, data }])
}

fn extreme_values_and_positions(e: &EvalCall, op: ReduceOp) -> Result<Vec<HostTensor>, Fault> {
    let (values, positions) = extremes(e, &plan_of(e)?, op)?.into_iter().unzip();
    let shape = e.shape(0)?;
    Ok(vec![
        HostTensor { dtype: e.result(0)?.dtype, shape: shape.clone(), data: values },
        HostTensor { dtype: DType::I64, shape, data: positions },
    ])
}

fn eval_max(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    extreme_values(e, ReduceOp::ArgMax)
}

fn eval_min(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    extreme_values(e, ReduceOp::ArgMin)
}

fn eval_argmax(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    extreme_positions(e, ReduceOp::ArgMax)
}

fn eval_argmin(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    extreme_positions(e, ReduceOp::ArgMin)
}

fn eval_max_dim(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    extreme_values_and_positions(e, ReduceOp::ArgMax)
}

fn eval_min_dim(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    extreme_values_and_positions(e, ReduceOp::ArgMin)
}

fn truth(e: &EvalCall, row: impl Fn(&[Scalar]) -> bool) -> Result<Vec<HostTensor>, Fault> {
    let dtype = e.result(0)?.dtype;
    reduce(e, &plan_of(e)?, |values| Ok(scalar::cast(Scalar::Bool(row(values)), DType::Bool, dtype)))
}

fn eval_any(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    truth(e, |values| values.iter().any(|v| v.to_bool()))
}

fn eval_all(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    truth(e, |values| values.iter().all(|v| v.to_bool()))
}

/// What is made of the squared differences from the mean.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Spread {
    Variance,
    Deviation,
}

/// Mean and sum of squared differences from it.
pub(super) fn moments(values: &[f64]) -> (f64, f64) {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    (mean, values.iter().map(|v| (v - mean) * (v - mean)).sum())
}

fn eval_variance(e: &EvalCall, spread: Spread) -> Result<Vec<HostTensor>, Fault> {
    let x = e.tensor(0, "self")?;
    let plan = Plan::new(&e.call, 1, KEYWORD, x.shape.len())?;
    let correction = e.call.float_or(KEYWORD, "correction", 1.0)?;
    let (mut variances, mut means) = (Vec::new(), Vec::new());
    for row in rows(x, &plan)? {
        let values: Vec<f64> = row.iter().map(|v| v.to_f64()).collect();
        let (mean, squares) = moments(&values);
        // Fewer degrees of freedom than none count as none: the variance is then infinite or NaN.
        let variance = squares / (values.len() as f64 - correction).max(0.0);
        let made = if spread == Spread::Deviation { variance.sqrt() } else { variance };
        variances.push(stored(made, x.dtype));
        means.push(stored(mean, x.dtype));
    }
    let shape = e.shape(0)?;
    let mut results = vec![HostTensor { dtype: x.dtype, shape: shape.clone(), data: variances }];
    if e.results() == 2 {
        results.push(HostTensor { dtype: x.dtype, shape, data: means });
    }
    Ok(results)
}

fn eval_logsumexp(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let dtype = e.result(0)?.dtype;
    reduce(e, &plan_of(e)?, |values| {
        let largest = values.iter().map(|v| v.to_f64()).fold(f64::NEG_INFINITY, f64::max);
        let shift = if largest.is_finite() { largest } else { 0.0 };
        let total: f64 = values.iter().map(|v| (v.to_f64() - shift).exp()).sum();
        Ok(stored(total.ln() + shift, dtype))
    })
}

fn eval_vector_norm(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let plan = Plan::new(&e.call, 2, 3, e.tensor(0, "self")?.shape.len())?;
    let (order, dtype) = (e.call.float_or(1, "ord", 2.0)?, e.result(0)?.dtype);
    reduce(e, &plan, |values| Ok(stored(norm(values, order), dtype)))
}

/// The `order`-norm of a vector.
pub(super) fn norm(values: &[Scalar], order: f64) -> f64 {
    let sizes = values.iter().map(|v| v.to_f64().abs());
    let nan = values.iter().any(|v| v.to_f64().is_nan());
    if nan && order.is_infinite() {
        return f64::NAN;
    }
    if order == f64::INFINITY {
        sizes.fold(0.0, f64::max)
    } else if order == f64::NEG_INFINITY {
        sizes.fold(f64::INFINITY, f64::min)
    } else if order == 0.0 {
        sizes.filter(|v| *v != 0.0).count() as f64
    } else if order == 2.0 {
        sizes.map(|v| v * v).sum::<f64>().sqrt()
    } else {
        sizes.map(|v| v.powf(order)).sum::<f64>().powf(1.0 / order)
    }
}
