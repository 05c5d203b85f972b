//! Attention without its matrix of scores: `softmax(scale · Q Kᵀ + mask) V` for a few rows of Q and a block of keys at a
//! time, so that scores stay in the cache. Where there are several blocks, what was summed so far shrinks when a larger
//! score comes (online softmax: Milakov and Gimelshein, 2018).

use super::panel::{Matrix, Panels, pack, padded, product};
use super::scores::{Mask, Scores};
use super::shape::Problem;
use super::vector::Vector;
use super::width::Parts;

/// Rows of Q that one unit of work takes.
pub(super) const UNIT: usize = 192;
/// Rows of Q whose scores are in the cache together.
const ROWS: usize = 24;
/// Keys whose scores are in the cache together.
const KEYS: usize = 256;

/// The matrices of one head.
#[derive(Copy, Clone)]
pub(super) struct Head {
    pub query: Matrix,
    pub key: Matrix,
    pub value: Matrix,
    pub mask: Option<Matrix>,
    /// The result's first row, and the distance of rows.
    pub result: Option<(*mut f32, usize)>,
    /// Where the logarithms of the rows' sums of exponentials go, and their distance.
    pub logarithms: Option<(*mut f32, usize)>,
}

/// Elements of memory that a unit needs.
pub(super) fn scratch<V: Vector>(problem: &Problem) -> usize {
    let mut parts = Parts::nowhere();
    Scratch::of::<V>(problem, &mut parts);
    parts.elements
}

/// What lies where in a unit's memory.
struct Scratch {
    keys: *mut f32,
    values: *mut f32,
    scores: *mut f32,
    /// Distance of rows of scores.
    score_row: usize,
    sums: *mut f32,
    /// Distance of rows of sums.
    sum_row: usize,
    /// Of each row the largest score so far.
    largest: *mut f32,
    /// Of each row the sum of exponentials so far.
    total: *mut f32,
    mask: *mut f32,
}

impl Scratch {
    #[inline(always)]
    fn of<V: Vector>(problem: &Problem, parts: &mut Parts) -> Scratch {
        let (score_row, sum_row) = (padded::<V>(KEYS), padded::<V>(problem.value_dim));
        Scratch {
            keys: parts.take(problem.dim * score_row),
            values: parts.take(KEYS * sum_row),
            scores: parts.take(ROWS * score_row),
            score_row,
            sums: parts.take(UNIT * sum_row),
            sum_row,
            largest: parts.take(UNIT),
            total: parts.take(UNIT),
            mask: parts.take(score_row),
        }
    }
}

/// A block of keys with their values, packed.
struct Keys {
    first: usize,
    count: usize,
    keys: Panels,
    values: Panels,
}

/// Rows `begin..end` of one head's result, at most [`UNIT`].
///
/// # Safety
/// All elements must be there, and [`scratch`] elements at `memory`; the processor must have the vector's instructions.
#[inline(always)]
pub(super) unsafe fn unit<V: Vector>(
    problem: &Problem,
    head: &Head,
    (begin, end): (usize, usize),
    memory: *mut f32,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let scratch = Scratch::of::<V>(problem, &mut Parts::of(memory));
        for row in 0..end - begin {
            *scratch.largest.add(row) = f32::NEG_INFINITY;
            *scratch.total.add(row) = 0.0;
        }
        std::slice::from_raw_parts_mut(scratch.sums, (end - begin) * scratch.sum_row).fill(0.0);
        let last = problem.visible(end);
        for first in (0..last).step_by(KEYS) {
            let count = (last - first).min(KEYS);
            let keys = head.key.from(first, 0).transposed();
            let block = Keys {
                first,
                count,
                keys: pack::<V>(keys, problem.dim, count, scratch.keys),
                values: pack::<V>(head.value.from(first, 0), count, problem.value_dim, scratch.values),
            };
            for row in (begin..end).step_by(ROWS) {
                add_keys::<V>(problem, head, &scratch, &block, (begin, row, (end - row).min(ROWS)));
            }
        }
        for row in begin..end {
            write::<V>(problem, head, &scratch, row, row - begin);
        }
    }
}

/// Adds what a block of keys gives to some rows of a unit.
#[inline(always)]
unsafe fn add_keys<V: Vector>(
    problem: &Problem,
    head: &Head,
    scratch: &Scratch,
    block: &Keys,
    (begin, row, rows): (usize, usize, usize),
) {
    // The last row sees most.
    let count = block.count.min(problem.visible(row + rows).saturating_sub(block.first));
    if count == 0 {
        return;
    }
    // SAFETY: as for `unit`.
    unsafe {
        let query = head.query.from(row, 0);
        product::<V>(rows, count, problem.dim, query, block.keys, scratch.scores, scratch.score_row, false);
        let mask = head.mask.map(|values| Mask { values, memory: scratch.mask });
        for k in 0..rows {
            let scores = Scores { first: scratch.scores.add(k * scratch.score_row), count };
            let largest = scores.finish::<V>(problem, mask.as_ref(), row + k, block.first);
            exponentials::<V>(&scores, largest, scratch, row - begin + k);
        }
        let scores = Matrix { first: scratch.scores, row: scratch.score_row as isize, column: 1 };
        let sums = scratch.sums.add((row - begin) * scratch.sum_row);
        product::<V>(rows, problem.value_dim, count, scores, block.values, sums, scratch.sum_row, true);
    }
}

/// Turns a row's scores into exponentials that go with what the row has summed so far, or that with them.
#[inline(always)]
unsafe fn exponentials<V: Vector>(scores: &Scores, found: f32, scratch: &Scratch, row: usize) {
    // SAFETY: as for `unit`.
    unsafe {
        let (largest, total) = (scratch.largest.add(row), scratch.total.add(row));
        let now = found.max(*largest);
        // A row that sees nothing has no largest score, and exponentials of zero.
        let offset = if now == f32::NEG_INFINITY { 0.0 } else { now };
        let sum = scores.exponentials::<V>(offset);
        if *largest != now && *total != 0.0 {
            let shrink = (*largest - offset).exp();
            *total *= shrink;
            let sums = scratch.sums.add(row * scratch.sum_row);
            for c in (0..scratch.sum_row).step_by(V::LANES) {
                V::store(sums.add(c), V::mul(V::load(sums.add(c)), V::splat(shrink)));
            }
        }
        *total += sum;
        *largest = now;
    }
}

/// Writes a row of the result: zeros where it saw nothing.
#[inline(always)]
unsafe fn write<V: Vector>(problem: &Problem, head: &Head, scratch: &Scratch, row: usize, at: usize) {
    // SAFETY: as for `unit`.
    unsafe {
        let (largest, total) = (*scratch.largest.add(at), *scratch.total.add(at));
        if let Some((first, stride)) = head.result {
            let factor = if total == 0.0 { 0.0 } else { 1.0 / total };
            let (from, to) = (scratch.sums.add(at * scratch.sum_row), first.add(row * stride));
            for c in 0..problem.value_dim {
                *to.add(c) = *from.add(c) * factor;
            }
        }
        if let Some((first, stride)) = head.logarithms {
            *first.add(row * stride) = if total == 0.0 { 0.0 } else { largest + total.ln() };
        }
    }
}
