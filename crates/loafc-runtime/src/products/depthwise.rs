//! The gradient of a depthwise convolution's weight: for each channel and each element of its window, the sum over all
//! positions of the result's gradient times the input seen through that element.
//!
//! Vectors run along channels. Rows of both tensors are packed so, with the padding's zeros, and a window's sums of a
//! few elements stay in registers along a row.

use super::panel::{Matrix, pack_panel};
use super::vector::Vector;

/// One spatial dimension.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(super) struct Dimension {
    /// Positions of the input, of the result, and of the window.
    pub input: usize,
    pub result: usize,
    pub window: usize,
    pub stride: usize,
    pub padding: usize,
    pub dilation: usize,
}

impl Dimension {
    /// Input positions that `results` neighbouring results see, from the first to the last.
    fn seen(&self, results: usize) -> usize {
        (results - 1) * self.stride + (self.window - 1) * self.dilation + 1
    }
}

/// Sizes of the convolution.
#[derive(Copy, Clone, Debug)]
pub(super) struct Problem {
    pub images: usize,
    pub channels: usize,
    pub rows: Dimension,
    pub columns: Dimension,
}

/// A tensor of `[image, channel, row, column]`.
#[derive(Copy, Clone, Debug)]
pub(super) struct Images {
    pub first: *const f32,
    pub strides: [isize; 4],
}

impl Images {
    /// Part of a row, with channels as columns.
    fn row(&self, image: usize, channel: usize, row: usize, column: usize) -> Matrix {
        let [i, c, r, x] = self.strides;
        let offset = image as isize * i + channel as isize * c + row as isize * r + column as isize * x;
        Matrix { first: self.first.wrapping_offset(offset), row: x, column: c }
    }
}

/// Elements that packed rows of the input may take: they stay in the second-level cache.
const PACKED: usize = 64 << 10;
/// Sums of a row that stay in registers.
const SUMS: usize = 8;

impl Problem {
    /// Elements of the sums of as many channels as a vector has.
    pub fn sums<V: Vector>(&self) -> usize {
        self.rows.window * self.columns.window * V::LANES
    }

    /// Rows of the result that are looked at together.
    fn chunk<V: Vector>(&self) -> usize {
        let row = self.columns.seen(self.columns.result) * V::LANES;
        (PACKED / row / self.rows.stride).clamp(1, self.rows.result)
    }

    /// Elements of memory that a unit needs.
    pub fn scratch<V: Vector>(&self) -> usize {
        let chunk = self.chunk::<V>();
        let inputs = self.rows.seen(chunk) * self.columns.seen(self.columns.result);
        (inputs + chunk * self.columns.result) * V::LANES
    }

    /// Whether a result has any element.
    pub fn is_empty(&self) -> bool {
        [self.images, self.rows.result, self.columns.result].contains(&0)
    }
}

/// The sums over some images for a vector of channels, of which the first `count` exist: `[window, lane]`.
///
/// # Safety
/// The problem isn't empty. All elements must be there, and [`Problem::scratch`] elements at `memory`,
/// [`Problem::sums`] at `sums`; the processor must have the vector's instructions.
#[inline(always)]
pub(super) unsafe fn unit<V: Vector>(
    problem: &Problem,
    (gradient, input): (&Images, &Images),
    images: std::ops::Range<usize>,
    (channel, count): (usize, usize),
    (memory, sums): (*mut f32, *mut f32),
) {
    let (rows, columns) = (&problem.rows, &problem.columns);
    let chunk = problem.chunk::<V>();
    // SAFETY: the caller's promise.
    unsafe {
        std::slice::from_raw_parts_mut(sums, problem.sums::<V>()).fill(0.0);
        let width = columns.seen(columns.result) * V::LANES;
        let gradients = memory.add(rows.seen(chunk) * width);
        for image in images {
            for first in (0..rows.result).step_by(chunk) {
                let results = chunk.min(rows.result - first);
                for row in 0..rows.seen(results) {
                    let to = memory.add(row * width);
                    pack_input::<V>(problem, input, (image, first * rows.stride + row), (channel, count), to);
                }
                for row in 0..results {
                    let from = gradient.row(image, channel, first + row, 0);
                    let to = gradients.add(row * columns.result * V::LANES);
                    pack_panel::<V, 1>(from, columns.result, count, to);
                }
                for row in 0..results {
                    let gradient = gradients.add(row * columns.result * V::LANES);
                    for window in 0..rows.window {
                        let input = memory.add((row * rows.stride + window * rows.dilation) * width);
                        add_row::<V>(columns, gradient, input, sums.add(window * columns.window * V::LANES));
                    }
                }
            }
        }
    }
}

/// Packs a row of the input, counted from the first that padding adds, with the columns that padding adds.
#[inline(always)]
unsafe fn pack_input<V: Vector>(
    problem: &Problem,
    input: &Images,
    (image, row): (usize, usize),
    (channel, count): (usize, usize),
    to: *mut f32,
) {
    let columns = &problem.columns;
    let all = columns.seen(columns.result);
    // SAFETY: as for `unit`.
    unsafe {
        let exists = row.checked_sub(problem.rows.padding).filter(|row| *row < problem.rows.input);
        let before = columns.padding.min(all);
        let inside = columns.input.min(all - before);
        let zeros = |from: usize, to_column: usize| {
            std::slice::from_raw_parts_mut(to.add(from * V::LANES), (to_column - from) * V::LANES).fill(0.0);
        };
        match exists {
            None => zeros(0, all),
            Some(row) => {
                zeros(0, before);
                let from = input.row(image, channel, row, 0);
                pack_panel::<V, 1>(from, inside, count, to.add(before * V::LANES));
                zeros(before + inside, all);
            }
        }
    }
}

/// Adds the products of a row of gradients with a row of the input to the sums of a row of the window.
#[inline(always)]
unsafe fn add_row<V: Vector>(columns: &Dimension, gradient: *const f32, input: *const f32, sums: *mut f32) {
    // SAFETY: as for `unit`.
    unsafe {
        for first in (0..columns.window).step_by(SUMS) {
            let input = input.add(first * columns.dilation * V::LANES);
            let sums = sums.add(first * V::LANES);
            match columns.window - first {
                1 => add_products::<V, 1>(columns, gradient, input, sums),
                2 => add_products::<V, 2>(columns, gradient, input, sums),
                3 => add_products::<V, 3>(columns, gradient, input, sums),
                4 => add_products::<V, 4>(columns, gradient, input, sums),
                5 => add_products::<V, 5>(columns, gradient, input, sums),
                6 => add_products::<V, 6>(columns, gradient, input, sums),
                7 => add_products::<V, 7>(columns, gradient, input, sums),
                _ => add_products::<V, SUMS>(columns, gradient, input, sums),
            }
        }
    }
}

#[inline(always)]
unsafe fn add_products<V: Vector, const COUNT: usize>(
    columns: &Dimension,
    gradient: *const f32,
    input: *const f32,
    sums: *mut f32,
) {
    // SAFETY: as for `unit`.
    unsafe {
        // Neighbours share what they see: with constant distances it is loaded once.
        if columns.stride == 1 && columns.dilation == 1 {
            along::<V, COUNT>(columns.result, (1, 1), gradient, input, sums);
        } else {
            along::<V, COUNT>(columns.result, (columns.stride, columns.dilation), gradient, input, sums);
        }
    }
}

#[inline(always)]
unsafe fn along<V: Vector, const COUNT: usize>(
    results: usize,
    (stride, dilation): (usize, usize),
    gradient: *const f32,
    input: *const f32,
    sums: *mut f32,
) {
    // SAFETY: as for `unit`.
    unsafe {
        // Two sets, so that additions need not wait for each other.
        let mut even = [V::splat(0.0); COUNT];
        let mut odd = [V::splat(0.0); COUNT];
        let seen = |column: usize, k: usize| V::load(input.add((column * stride + k * dilation) * V::LANES));
        let weight = |column: usize| V::load(gradient.add(column * V::LANES));
        for column in (0..results / 2 * 2).step_by(2) {
            let (a, b) = (weight(column), weight(column + 1));
            for k in 0..COUNT {
                even[k] = V::fma(a, seen(column, k), even[k]);
                odd[k] = V::fma(b, seen(column + 1, k), odd[k]);
            }
        }
        if !results.is_multiple_of(2) {
            let a = weight(results - 1);
            for (k, sum) in even.iter_mut().enumerate() {
                *sum = V::fma(a, seen(results - 1, k), *sum);
            }
        }
        for k in 0..COUNT {
            let to = sums.add(k * V::LANES);
            V::store(to, V::add(V::load(to), V::add(even[k], odd[k])));
        }
    }
}
