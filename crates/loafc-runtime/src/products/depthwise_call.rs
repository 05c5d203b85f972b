//! Which extern calls are weight gradients of depthwise convolutions, and how their work is shared among threads.

use loafc_ir::graph::Arg;
use loafc_ir::nest::{ExternCall, NestProgram};

use super::arguments::{flags, is_float, numbers, tensor};
use super::depthwise::{self, Dimension, Images, Problem};
use super::vector::Vector;
use super::width::{Kernel, memory, zeros};
use crate::threads::Team;
use crate::value::{ResultSpec, TensorRef};
use crate::width::Width;

/// Images are summed up in so many parts at most, always the same ones, so that the result doesn't depend on threads.
const PARTS: usize = 16;

/// The call, with its tensors as positions in [`ExternCall::tensors`] and a number for rows and columns each.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct WeightGradient {
    pub gradient: usize,
    pub input: usize,
    pub stride: [usize; 2],
    pub padding: [usize; 2],
    pub dilation: [usize; 2],
}

impl WeightGradient {
    /// The call, if it asks for this gradient alone and each channel of the input has one of the result.
    pub fn of(call: &ExternCall, program: &NestProgram) -> Option<WeightGradient> {
        if &*call.op != "aten.convolution_backward.default" || !call.mutates.is_empty() {
            return None;
        }
        let [
            gradient,
            input,
            _,
            _,
            stride,
            padding,
            dilation,
            Arg::Bool(false),
            _,
            Arg::Size(groups),
            wanted,
        ] = call.args.as_slice()
        else {
            return None;
        };
        let [None, Some(weight), None] = call.results.as_slice() else { return None };
        let found = WeightGradient {
            gradient: tensor(Some(gradient))?,
            input: tensor(Some(input))?,
            stride: numbers(Some(stride))?,
            padding: numbers(Some(padding))?,
            dilation: numbers(Some(dilation))?,
        };
        let (gradient, input) = (call.tensors.get(found.gradient)?, call.tensors.get(found.input)?);
        let depthwise = weight.shape.len() == 4
            && weight.shape[1].is(1)
            && weight.shape[2].as_const().is_some()
            && weight.shape[3].as_const().is_some()
            && weight.shape[0] == *groups
            && [gradient, input].iter().all(|t| t.shape.len() == 4 && t.shape[1] == *groups);
        let floats = [gradient, input, weight].iter().all(|t| is_float(program, t));
        let positive = found.stride.iter().chain(&found.dilation).all(|n| *n > 0);
        let alone = flags(Some(wanted))? == [false, true, false];
        (depthwise && floats && positive && alone).then_some(found)
    }

    /// # Safety
    /// All elements of the operands must be there, and memory for all of the results; the processor must have this width.
    pub unsafe fn run(
        &self,
        width: Width,
        tensors: &[TensorRef<'_>],
        results: &[Option<ResultSpec<'_>>],
        team: &dyn Team,
    ) -> Result<(), &'static str> {
        let Some(Some(weight)) = results.get(1) else { return Ok(()) };
        let (gradient, input) = (&tensors[self.gradient], &tensors[self.input]);
        let problem = self.problem(gradient, input, weight).ok_or("the sizes don't go together")?;
        let lanes = width.lanes();
        let (parts, blocks) = (problem.images.clamp(1, PARTS), problem.channels.div_ceil(lanes));
        let window = problem.rows.window * problem.columns.window;
        let mut sums = zeros(parts * blocks * window * lanes);
        let sums: *mut f32 = sums.as_mut_ptr().cast();
        if !problem.is_empty() {
            let (gradient, input) = (images(gradient), images(input));
            let results = problem.rows.result * problem.columns.result;
            let each = problem.images.div_ceil(parts) * lanes * results * window;
            let unit = |unit: usize| {
                let (part, block) = (unit / blocks, unit % blocks);
                let at = |part: usize| part * problem.images / parts;
                Unit {
                    problem: &problem,
                    tensors: (&gradient, &input),
                    images: at(part)..at(part + 1),
                    channels: (block * lanes, lanes.min(problem.channels - block * lanes)),
                    sums: sums.wrapping_add(unit * window * lanes),
                }
            };
            // SAFETY: the caller's promise; each unit has sums of its own.
            unsafe { width.run_units(parts * blocks, each, team, unit) };
        }
        let Some(to) = weight.ptr else { return Ok(()) };
        let strides = weight.strides;
        for channel in 0..problem.channels {
            for k in 0..window {
                let at = (channel / lanes * window + k) * lanes + channel % lanes;
                // SAFETY: the sums of all parts are there, and the caller's promise.
                unsafe {
                    let sum: f32 =
                        (0..parts).map(|part| *sums.add(part * blocks * window * lanes + at)).sum();
                    let (row, column) = (k / problem.columns.window, k % problem.columns.window);
                    let offset =
                        channel as i64 * strides[0] + row as i64 * strides[2] + column as i64 * strides[3];
                    *to.cast::<f32>().offset(offset as isize) = sum;
                }
            }
        }
        Ok(())
    }

    fn problem(
        &self,
        gradient: &TensorRef<'_>,
        input: &TensorRef<'_>,
        weight: &ResultSpec<'_>,
    ) -> Option<Problem> {
        let size = |shape: &[i64], d: usize| usize::try_from(*shape.get(d)?).ok();
        let dimension = |d: usize| {
            let dimension = Dimension {
                input: size(input.shape, d + 2)?,
                result: size(gradient.shape, d + 2)?,
                window: size(weight.shape, d + 2)?,
                stride: self.stride[d],
                padding: self.padding[d],
                dilation: self.dilation[d],
            };
            (dimension.window > 0).then_some(dimension)
        };
        let problem = Problem {
            images: size(input.shape, 0)?,
            channels: size(input.shape, 1)?,
            rows: dimension(0)?,
            columns: dimension(1)?,
        };
        let fits = gradient.shape[..2] == input.shape[..2] && weight.shape[0] == input.shape[1];
        fits.then_some(problem)
    }
}

fn images(tensor: &TensorRef<'_>) -> Images {
    let strides = [0, 1, 2, 3].map(|d| tensor.strides[d] as isize);
    Images { first: tensor.ptr.cast::<f32>(), strides }
}

/// Some images of a vector of channels.
struct Unit<'a> {
    problem: &'a Problem,
    tensors: (&'a Images, &'a Images),
    images: std::ops::Range<usize>,
    channels: (usize, usize),
    sums: *mut f32,
}

impl Kernel for Unit<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let memory = memory(self.problem.scratch::<V>());
        // SAFETY: the caller's promise, and as much memory as a unit asks for.
        unsafe {
            depthwise::unit::<V>(self.problem, self.tensors, self.images, self.channels, (memory, self.sums));
        }
    }
}
