//! Weight gradients against their definition in f64, for each width that the processor has and any number of threads.

use super::depthwise_call::WeightGradient;
use super::test_support::{assert_close, largest, random, widths};
use crate::strided::contiguous_strides;
use crate::threads::{Serial, Team, ThreadTeam};
use crate::value::{ResultSpec, TensorRef};
use loafc_ir::dtype::DType;

/// Images, channels and extents of the input, and a number for rows and columns each of the rest.
#[derive(Clone, Debug)]
struct Case {
    input: [usize; 4],
    window: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 2],
    dilation: [usize; 2],
    channels_last: bool,
}

impl Case {
    fn result(&self) -> [usize; 4] {
        let extent = |d: usize| {
            let seen = self.dilation[d] * (self.window[d] - 1) + 1;
            (self.input[d + 2] + 2 * self.padding[d] - seen) / self.stride[d] + 1
        };
        [self.input[0], self.input[1], extent(0), extent(1)]
    }

    fn strides(&self, [_, c, h, w]: [usize; 4]) -> [i64; 4] {
        let strides = if self.channels_last { [c * h * w, 1, c * w, c] } else { [c * h * w, h * w, w, 1] };
        strides.map(|s| s as i64)
    }

    fn tensors(&self) -> [(Vec<f32>, [usize; 4], [i64; 4]); 2] {
        let of = |shape: [usize; 4], seed| (random(shape.iter().product(), seed), shape, self.strides(shape));
        [of(self.result(), 5), of(self.input, 6)]
    }

    fn compute(&self, width: crate::width::Width, team: &dyn Team) -> Vec<f32> {
        let tensors = self.tensors();
        let shapes = tensors.each_ref().map(|t| t.1.map(|n| n as i64));
        let refs: Vec<TensorRef<'_>> = tensors
            .iter()
            .zip(&shapes)
            .map(|((data, _, strides), shape)| TensorRef {
                ptr: data.as_ptr().cast_mut().cast(),
                dtype: DType::F32,
                shape,
                strides,
                input: None,
            })
            .collect();
        let shape = [self.input[1], 1, self.window[0], self.window[1]].map(|n| n as i64);
        let strides = contiguous_strides(&shape);
        let mut out = vec![f32::MAX; shape.iter().product::<i64>() as usize];
        let ptr = Some(out.as_mut_ptr().cast());
        let results =
            [None, Some(ResultSpec { dtype: DType::F32, shape: &shape, strides: &strides, ptr }), None];
        let gradient = WeightGradient {
            gradient: 0,
            input: 1,
            stride: self.stride,
            padding: self.padding,
            dilation: self.dilation,
        };
        // SAFETY: the tensors have as many elements as their shapes say.
        unsafe { gradient.run(width, &refs, &results, team).unwrap() };
        out
    }

    fn expected(&self) -> Vec<f64> {
        let [gradient, input] = self.tensors();
        let at = |t: &(Vec<f32>, [usize; 4], [i64; 4]), position: [usize; 4]| {
            let offset: i64 = position.iter().zip(t.2).map(|(p, s)| *p as i64 * s).sum();
            f64::from(t.0[offset as usize])
        };
        let [images, channels, rows, columns] = self.result();
        let mut out = Vec::new();
        for channel in 0..channels {
            for (row, column) in (0..self.window[0]).flat_map(|r| (0..self.window[1]).map(move |c| (r, c))) {
                let mut sum = 0.0;
                for (image, y, x) in (0..images)
                    .flat_map(|i| (0..rows).flat_map(move |y| (0..columns).map(move |x| (i, y, x))))
                {
                    let seen = |p: usize, k: usize, d: usize| {
                        (p * self.stride[d] + k * self.dilation[d])
                            .checked_sub(self.padding[d])
                            .filter(|p| *p < self.input[d + 2])
                    };
                    let (Some(from_y), Some(from_x)) = (seen(y, row, 0), seen(x, column, 1)) else {
                        continue;
                    };
                    sum +=
                        at(&gradient, [image, channel, y, x]) * at(&input, [image, channel, from_y, from_x]);
                }
                out.push(sum);
            }
        }
        out
    }
}

#[test]
fn windows_of_any_size_stride_and_padding_are_right() {
    let case = |input, window, stride, padding, dilation| Case {
        input,
        window,
        stride,
        padding,
        dilation,
        channels_last: false,
    };
    for case in [
        case([1, 1, 1, 1], [1, 1], [1, 1], [0, 0], [1, 1]),
        case([2, 3, 5, 7], [3, 2], [1, 1], [0, 0], [1, 1]),
        case([2, 17, 9, 8], [7, 7], [1, 1], [3, 3], [1, 1]),
        case([19, 33, 6, 5], [5, 4], [2, 1], [2, 1], [1, 1]),
        case([1, 20, 12, 13], [4, 5], [1, 2], [3, 6], [2, 3]),
        case([2, 9, 4, 30], [2, 11], [3, 1], [0, 5], [1, 1]),
        case([2, 5, 2, 2], [2, 2], [2, 2], [4, 4], [1, 1]),
        // Rows come in several chunks.
        case([1, 8, 160, 130], [2, 6], [1, 1], [1, 2], [1, 1]),
    ] {
        for channels_last in [false, true] {
            let case = Case { channels_last, ..case.clone() };
            let want = case.expected();
            for width in widths() {
                let got = case.compute(width, &Serial);
                assert_close(&got, &want, 1e-5 * largest(&want), &(width, &case));
                assert_eq!(
                    case.compute(width, &ThreadTeam::new(3)),
                    got,
                    "{width:?} {case:?}: threads matter"
                );
            }
        }
    }
}

#[test]
fn without_images_the_gradient_is_zero() {
    let case = Case {
        input: [0, 20, 6, 6],
        window: [5, 5],
        stride: [1, 1],
        padding: [2, 2],
        dilation: [1, 1],
        channels_last: false,
    };
    for width in widths() {
        assert!(case.compute(width, &Serial).iter().all(|x| *x == 0.0));
    }
}
