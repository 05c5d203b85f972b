//! Convolutions stay with a library; how it is called is decided here.
//!
//! The gradients of a depthwise convolution have nothing in common but the convolution, and a library is slow at
//! computing them together: they become calls of their own, and the bias's a sum like any other. Large images go to the
//! library with their channels last. For other layouts it makes copies of its own, in memory that is new in each call:
//! one convolution of 13 MB took 14 ms instead of 5. What the program returns, in its own layout, would be copied twice.

use loafc_ir::dtype::{DType, Scalar};
use loafc_ir::graph::{Arg, Dims, TensorType};
use loafc_ir::nest::ReduceOp;
use loafc_ir::ops::Call;
use loafc_ir::size::Size;

use crate::expr::ExprId;
use crate::lowering::{Lowered, Lowering, Refusal, Replaced};
use crate::reduce::{FinishValue, Reduction};
use crate::table::{Entry, buffers};

type Cx<'a> = Lowering<'a>;

pub(super) static TABLE: &[Entry] =
    &[buffers("aten.convolution.default", forward), buffers("aten.convolution_backward.default", backward)];

/// Elements of large images, in f32 8 MiB. Memory of that size is not kept between calls by the usual allocators.
const LARGE_ELEMENTS: i64 = 2 << 20;

fn forward(cx: &mut Cx, c: &Call) -> Lowered {
    let input = c.tensor_type(0, "input")?;
    let result = cx.result(0).ok_or(Refusal::Extern)?.clone();
    if !is_plain(c, 6)? || !(is_large(&input) || is_large(&result)) || cx.is_returned(0) {
        return Err(Refusal::Extern);
    }
    let images = in_channels_last(cx, c, 0, "input", &input)?;
    let made = cx.extern_with(&[images], &[Some(channels_last(&result))])?;
    Ok(made.into_iter().flatten().collect())
}

/// Position of the gradients' `output_mask`.
const WANTED: usize = 10;

fn backward(cx: &mut Cx, c: &Call) -> Lowered {
    let gradient = c.tensor_type(0, "grad_output")?;
    let input = c.tensor_type(1, "input")?;
    if gradient.dtype != DType::F32 || c.bool_or(7, "transposed", false)? {
        return Err(Refusal::Extern);
    }
    let mut types: Vec<Option<TensorType>> = (0..3).map(|k| cx.result(k).cloned()).collect();
    let wanted = types.iter().flatten().count();
    if wanted > 1 && is_depthwise(c, &input)? {
        return separate_gradients(cx, c, types);
    }
    if !is_plain(c, 7)? || !(is_large(&input) || is_large(&gradient)) {
        return Err(Refusal::Extern);
    }
    let images =
        [in_channels_last(cx, c, 0, "grad_output", &gradient)?, in_channels_last(cx, c, 1, "input", &input)?];
    types[0] = types[0].as_ref().map(channels_last);
    let made = cx.extern_with(&images, &types)?;
    Ok(filled(cx, made))
}

/// Whether this is an f32 convolution of images in one group, with `transposed` at this position.
fn is_plain(c: &Call, transposed: usize) -> Result<bool, Refusal> {
    let input = c.tensor_type(transposed - 6, "input")?;
    let groups = c.size(transposed + 2, "groups")?;
    Ok(input.dtype == DType::F32
        && input.shape.len() == 4
        // Images of one channel are in either layout, and a library takes them for the other one.
        && !input.shape[1].is(1)
        && groups.is(1)
        && !c.bool_or(transposed, "transposed", false)?)
}

fn is_large(images: &TensorType) -> bool {
    images
        .shape
        .iter()
        .copied()
        .product::<Size>()
        .as_const()
        .is_some_and(|elements| elements >= LARGE_ELEMENTS)
}

/// Images with the channels of a pixel beside each other.
fn channels_last(images: &TensorType) -> TensorType {
    let shape = &images.shape;
    let row = shape[1] * shape[3];
    TensorType { strides: Dims::from_slice(&[row * shape[2], Size::ONE, row, shape[1]]), ..images.clone() }
}

fn in_channels_last(
    cx: &mut Cx,
    c: &Call,
    position: usize,
    name: &str,
    images: &TensorType,
) -> Result<(usize, Replaced), Refusal> {
    let value = cx.tensor(c, position, name)?;
    let view = cx.store_in_strides(value, &channels_last(images)).ok_or(Refusal::Extern)?;
    Ok((position, Replaced::Tensor(view)))
}

/// Whether each channel is a convolution of its own, of a kind that libraries have no kernel for that computes all
/// gradients in one go: they do have one for windows of three columns.
fn is_depthwise(c: &Call, input: &TensorType) -> Result<bool, Refusal> {
    let weight = c.tensor_type(2, "weight")?;
    let groups = c.size(9, "groups")?;
    Ok(weight.shape.len() == 4
        && !groups.is(1)
        && weight.shape[1].is(1)
        && !weight.shape[3].is(3)
        && weight.shape[0] == groups
        && input.shape.get(1) == Some(&groups))
}

fn separate_gradients(cx: &mut Cx, c: &Call, types: Vec<Option<TensorType>>) -> Lowered {
    let mut made = Vec::new();
    for (k, ty) in types.iter().enumerate().take(2) {
        if ty.is_none() {
            made.push(None);
            continue;
        }
        let only = Arg::List((0..3).map(|other| Arg::Bool(other == k)).collect());
        let only_type: Vec<_> = (0..3).map(|other| ty.clone().filter(|_| other == k)).collect();
        made.push(cx.extern_with(&[(WANTED, Replaced::Arg(only))], &only_type)?[k]);
    }
    made.push(match types[2] {
        Some(_) => {
            let input = cx.tensor(c, 0, "grad_output")?;
            let sum = Reduction { input, dims: &[0, 2, 3], keepdim: false, op: ReduceOp::Sum };
            Some(cx.reduce_to(&sum, FinishValue::First))
        }
        None => None,
    });
    Ok(filled(cx, made))
}

/// Something for each result: where nobody uses one, nothing is looked at.
fn filled(cx: &mut Cx, made: Vec<Option<ExprId>>) -> Vec<ExprId> {
    let nothing = cx.constant(Scalar::Float(0.0), DType::F32, &[]);
    made.into_iter().map(|result| result.unwrap_or(nothing)).collect()
}
