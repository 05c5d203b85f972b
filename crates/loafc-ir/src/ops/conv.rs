//! Convolutions in any number of dimensions, plain and transposed, forward and backward. One enumeration of all
//! products that a convolution is made of serves every case.

use super::call::Call;
use super::elements::each_index;
use super::eval::{EvalCall, Fault};
use super::reduction::stored;
use super::shape::{channels_last_strides, check_equal_shapes, contiguous_like, is_channels_last};
use super::{InferError, OpDef, ResultTypes, general, one};
use crate::graph::{Dims, TensorType};
use crate::interp::tensor::HostTensor;
use crate::size::Size;

pub(super) const OPS: &[OpDef] = &[
    general("aten.convolution.default", CONVOLUTION, infer_convolution, eval_convolution),
    general("aten.convolution_backward.default", BACKWARD, infer_backward, eval_backward),
];

const CONVOLUTION: &str =
    "input, weight, bias, stride, padding, dilation, transposed, output_padding, groups";
const BACKWARD: &str = "grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed, \
                        output_padding, groups, output_mask";

/// The numbers of a convolution, one per spatial dimension.
struct Numbers {
    stride: Vec<i64>,
    padding: Vec<i64>,
    dilation: Vec<i64>,
    transposed: bool,
    output_padding: Vec<i64>,
    groups: i64,
}

impl Numbers {
    /// Reads the arguments from `stride`, which stands at this position, on.
    fn new(call: &Call, position: usize, spatial: usize) -> Result<Numbers, InferError> {
        let per_dim = |offset: usize, name: &str| -> Result<Vec<i64>, InferError> {
            let given = call.ints(position + offset, name)?;
            match given.len() {
                1 => Ok(vec![given[0]; spatial]),
                n if n == spatial => Ok(given.to_vec()),
                n => Err(call.invalid(name, format!("{n} numbers for {spatial} dimensions"))),
            }
        };
        let numbers = Numbers {
            stride: per_dim(0, "stride")?,
            padding: per_dim(1, "padding")?,
            dilation: per_dim(2, "dilation")?,
            transposed: call.bool_or(position + 3, "transposed", false)?,
            output_padding: per_dim(4, "output_padding")?,
            groups: call.int_or(position + 5, "groups", 1)?,
        };
        if numbers.stride.iter().chain(&numbers.dilation).any(|n| *n < 1) {
            return Err(call.invalid("stride", "strides and dilations must be positive"));
        }
        let lists = [&numbers.stride, &numbers.padding, &numbers.dilation, &numbers.output_padding];
        if lists.iter().any(|list| list.iter().any(|n| !(0..=i64::from(i32::MAX)).contains(n))) {
            return Err(call.invalid("stride", "numbers from 0 to 2147483647 were expected"));
        }
        if numbers.groups < 1 {
            return Err(call.invalid("groups", format!("{} is not positive", numbers.groups)));
        }
        Ok(numbers)
    }
}

fn check(call: &Call, x: &TensorType, weight: &TensorType, n: &Numbers) -> Result<(), InferError> {
    let groups = Size::from(n.groups);
    let expected = if n.transposed { weight.shape[0] } else { weight.shape[1] * groups };
    call.require_equal(x.shape[1], expected, || {
        call.invalid("input", format!("{expected} channels were expected, it has {}", x.shape[1]))
    })?;
    // Both channels of a plain convolution, both of a transposed one.
    let divided = [weight.shape[0], x.shape[1]];
    for channels in divided {
        call.require_equal(channels.modulo(groups), Size::ZERO, || {
            let message =
                format!("{} and {} channels don't split into {groups} groups", divided[0], divided[1]);
            call.invalid("groups", message)
        })?;
    }
    if x.dtype.is_complex() || !(x.dtype.is_float() || x.dtype.is_int()) {
        return Err(InferError::DType { op: call.op.to_owned(), expected: "real numbers", found: x.dtype });
    }
    if x.dtype != weight.dtype {
        return Err(InferError::Promotion { op: call.op.to_owned(), left: x.dtype, right: weight.dtype });
    }
    Ok(())
}

fn spatial_rank(call: &Call, x: &TensorType, weight: &TensorType) -> Result<usize, InferError> {
    if x.rank() < 3 || x.rank() != weight.rank() {
        let message = format!(
            "batch, channels and spatial dimensions were expected, as many as `weight` has ({}); it has {}",
            weight.rank(),
            x.rank()
        );
        return Err(call.invalid("input", message));
    }
    Ok(x.rank() - 2)
}

fn infer_convolution(call: &Call) -> Result<ResultTypes, InferError> {
    let (x, weight) = (call.tensor_type(0, "input")?, call.tensor_type(1, "weight")?);
    let n = Numbers::new(call, 3, spatial_rank(call, &x, &weight)?)?;
    check(call, &x, &weight, &n)?;
    let shape = output_shape(call, &x, &weight, &n)?;
    if let Some(bias) = call.opt_tensor(2, "bias")? {
        check_equal_shapes(call, "bias", &bias.ty.shape, &shape[1..2])?;
    }
    let mut ty = contiguous_like(&x, x.dtype, shape);
    if is_channels_last(&x) || is_channels_last(&weight) {
        ty.strides = channels_last_strides(&ty.shape);
    }
    one(ty)
}

fn output_shape(call: &Call, x: &TensorType, weight: &TensorType, n: &Numbers) -> Result<Dims, InferError> {
    let mut shape: Dims = Dims::from_slice(&[x.shape[0]]);
    shape.push(if n.transposed { weight.shape[1] * Size::from(n.groups) } else { weight.shape[0] });
    for d in 0..n.stride.len() {
        let span = (weight.shape[d + 2] - Size::ONE) * Size::from(n.dilation[d]) + Size::ONE;
        let (padding, stride) = (Size::from(2 * n.padding[d]), Size::from(n.stride[d]));
        let extent = if n.transposed {
            (x.shape[d + 2] - Size::ONE) * stride - padding + span + Size::from(n.output_padding[d])
        } else {
            (x.shape[d + 2] + padding - span).floor_div(stride) + Size::ONE
        };
        call.require_at_most(Size::ZERO, extent, || {
            call.invalid(
                "input",
                format!("spatial dimension {d} of extent {} is smaller than the kernel", x.shape[d + 2]),
            )
        })?;
        shape.push(extent);
    }
    Ok(shape)
}

/// Calls `visit` with positions in the output, the input and the weight of every product of a convolution of
/// these shapes.
fn each_product(
    n: &Numbers,
    output: &HostTensor,
    input: &HostTensor,
    weight: &HostTensor,
    mut visit: impl FnMut(usize, usize, usize),
) -> Result<(), Fault> {
    // A transposed convolution is the gradient of a plain one: output and input change places.
    let (fine, coarse) = if n.transposed { (output, input) } else { (input, output) };
    let coarse_per_group = coarse.shape[1] / n.groups as usize;
    let fine_per_group = fine.shape[1] / n.groups as usize;
    each_index(&coarse.shape, |at| {
        let group = at[1] / coarse_per_group;
        each_index(&weight.shape[1..], |tap| {
            let mut position = vec![at[0], group * fine_per_group + tap[0]];
            for d in 0..n.stride.len() {
                let i = at[d + 2] as i64 * n.stride[d] - n.padding[d] + tap[d + 1] as i64 * n.dilation[d];
                match usize::try_from(i) {
                    Ok(i) if i < fine.shape[d + 2] => position.push(i),
                    _ => return Ok(()),
                }
            }
            let mut weight_at = vec![at[1]];
            weight_at.extend_from_slice(tap);
            let (fine_at, coarse_at) = (fine.position(&position), coarse.position(at));
            let (output_at, input_at) =
                if n.transposed { (fine_at, coarse_at) } else { (coarse_at, fine_at) };
            visit(output_at, input_at, weight.position(&weight_at));
            Ok(())
        })
    })
}

fn eval_convolution(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let (x, weight) = (e.tensor(0, "input")?, e.tensor(1, "weight")?);
    let n = Numbers::new(&e.call, 3, x.shape.len() - 2)?;
    let mut result = HostTensor::filled(x.dtype, &e.shape(0)?, crate::interp::scalar::zero(x.dtype));
    let mut totals = vec![0.0; result.data.len()];
    if let Some(bias) = e.opt_tensor(2, "bias")? {
        let (_, channels, inner) = result.around(1);
        for (k, total) in totals.iter_mut().enumerate() {
            *total = bias.data[k / inner % channels].to_f64();
        }
    }
    each_product(&n, &result, x, weight, |o, i, w| {
        totals[o] += x.data[i].to_f64() * weight.data[w].to_f64();
    })?;
    result.data = totals.into_iter().map(|v| stored(v, x.dtype)).collect();
    Ok(vec![result])
}

fn infer_backward(call: &Call) -> Result<ResultTypes, InferError> {
    let (grad, x) = (call.tensor_type(0, "grad_output")?, call.tensor_type(1, "input")?);
    let weight = call.tensor_type(2, "weight")?;
    let n = Numbers::new(call, 4, spatial_rank(call, &x, &weight)?)?;
    check(call, &x, &weight, &n)?;
    check_equal_shapes(call, "grad_output", &grad.shape, &output_shape(call, &x, &weight, &n)?)?;
    let mask = call.ints(10, "output_mask")?;
    let [wants_input, wants_weight, wants_bias] = mask.as_slice() else {
        return Err(call.invalid("output_mask", "three truth values were expected"));
    };
    let channels_last = is_channels_last(&x) || is_channels_last(&weight);
    let like = |ty: &TensorType| match channels_last {
        true => TensorType { strides: channels_last_strides(&ty.shape), ..ty.clone() },
        false => contiguous_like(ty, ty.dtype, ty.shape.iter().copied()),
    };
    Ok(vec![
        (*wants_input != 0).then(|| like(&x)),
        (*wants_weight != 0).then(|| like(&weight)),
        (*wants_bias != 0).then(|| contiguous_like(&grad, grad.dtype, [grad.shape[1]])),
    ])
}

fn eval_backward(e: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
    let (grad, x, weight) = (e.tensor(0, "grad_output")?, e.tensor(1, "input")?, e.tensor(2, "weight")?);
    let n = Numbers::new(&e.call, 4, x.shape.len() - 2)?;
    let mut to_input = vec![0.0; x.data.len()];
    let mut to_weight = vec![0.0; weight.data.len()];
    each_product(&n, grad, x, weight, |o, i, w| {
        let g = grad.data[o].to_f64();
        to_input[i] += g * weight.data[w].to_f64();
        to_weight[w] += g * x.data[i].to_f64();
    })?;
    let (_, channels, inner) = grad.around(1);
    let mut to_bias = vec![0.0; channels];
    for (k, g) in grad.data.iter().enumerate() {
        to_bias[k / inner % channels] += g.to_f64();
    }
    let rounded = |values: Vec<f64>, like: &HostTensor, shape: Vec<usize>| HostTensor {
        dtype: like.dtype,
        shape,
        data: values.into_iter().map(|v| stored(v, like.dtype)).collect(),
    };
    let mask = e.call.ints(10, "output_mask")?;
    super::norm::masked(
        [mask[0] != 0, mask[1] != 0, mask[2] != 0],
        [
            rounded(to_input, x, x.shape.clone()),
            rounded(to_weight, weight, weight.shape.clone()),
            rounded(to_bias, grad, vec![channels]),
        ],
    )
}
