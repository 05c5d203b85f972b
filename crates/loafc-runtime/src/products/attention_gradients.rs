//! The gradients of attention. Scores are computed again, for a few rows and a block of keys at a time, as
//! `P = e^(scores - logarithm of the row's sum)`; with `dP = dO Vᵀ` and `dS = scale · P · (dP - Σ dO · O)` the gradients
//! are `dV = Pᵀ dO`, `dK = dSᵀ Q` and `dQ = dS K` (FlashAttention: Dao et al., 2022).

use super::panel::{Matrix, Panels, pack, padded, product};
use super::scores::{Mask, Scores};
use super::shape::Problem;
use super::vector::Vector;
use super::width::Parts;

/// Rows whose scores are in the cache together.
const ROWS: usize = 48;
/// Keys whose scores are in the cache together.
const KEYS: usize = 256;

/// A head of queries that shares its keys with the others of a unit.
#[derive(Copy, Clone)]
pub(super) struct QueryHead {
    pub query: Matrix,
    pub mask: Option<Matrix>,
    pub result: Matrix,
    pub result_gradient: Matrix,
    /// Of each row the logarithm of its sum of exponentials, and the distance of rows.
    pub logarithms: (*const f32, isize),
    /// Where the query's gradient goes, and its rows' distance.
    pub gradient: Option<(*mut f32, usize)>,
}

/// A head of keys and values.
#[derive(Copy, Clone)]
pub(super) struct KeyHead {
    pub key: Matrix,
    pub value: Matrix,
    pub key_gradient: Option<(*mut f32, usize)>,
    pub value_gradient: Option<(*mut f32, usize)>,
}

/// What lies where in a unit's memory.
struct Scratch {
    /// Transposed, for scores and their gradients.
    keys: *mut f32,
    values: *mut f32,
    /// Not transposed, for the queries' gradients.
    key_rows: *mut f32,
    queries: *mut f32,
    gradients: *mut f32,
    scores: *mut f32,
    score_gradients: *mut f32,
    mask: *mut f32,
    key_gradients: *mut f32,
    value_gradients: *mut f32,
    query_gradients: *mut f32,
    /// Of each row the sum of the result times its gradient.
    products: *mut f32,
}

/// Distances of rows.
struct Strides {
    scores: usize,
    keys: usize,
    values: usize,
}

impl Strides {
    #[inline(always)]
    fn of<V: Vector>(problem: &Problem) -> Strides {
        Strides {
            scores: padded::<V>(KEYS),
            keys: padded::<V>(problem.dim),
            values: padded::<V>(problem.value_dim),
        }
    }
}

impl Scratch {
    #[inline(always)]
    fn of<V: Vector>(problem: &Problem, parts: &mut Parts) -> Scratch {
        let Strides { scores, keys, values } = Strides::of::<V>(problem);
        let rows = problem.heads / problem.key_heads * problem.queries;
        Scratch {
            keys: parts.take(problem.dim * scores),
            values: parts.take(problem.value_dim * scores),
            key_rows: parts.take(KEYS * keys),
            queries: parts.take(ROWS * keys),
            gradients: parts.take(ROWS * values),
            scores: parts.take(ROWS * scores),
            score_gradients: parts.take(ROWS * scores),
            mask: parts.take(scores),
            key_gradients: parts.take(KEYS * keys),
            value_gradients: parts.take(KEYS * values),
            query_gradients: parts.take(rows * keys),
            products: parts.take(rows),
        }
    }
}

/// Elements of memory that a unit needs.
pub(super) fn scratch<V: Vector>(problem: &Problem) -> usize {
    let mut parts = Parts::nowhere();
    Scratch::of::<V>(problem, &mut parts);
    parts.elements
}

/// A block of keys with their values, packed.
struct Block {
    first: usize,
    count: usize,
    keys: Panels,
    values: Panels,
    key_rows: Panels,
}

/// All gradients of one head of keys and the heads of queries that share it.
///
/// # Safety
/// All elements must be there, and [`scratch`] elements at `memory`; the processor must have the vector's instructions.
#[inline(always)]
pub(super) unsafe fn unit<V: Vector>(
    problem: &Problem,
    queries: impl Fn(usize) -> QueryHead,
    keys: &KeyHead,
    memory: *mut f32,
) {
    let strides = Strides::of::<V>(problem);
    let heads = problem.heads / problem.key_heads;
    // SAFETY: the caller's promise.
    unsafe {
        let scratch = Scratch::of::<V>(problem, &mut Parts::of(memory));
        let all = heads * problem.queries;
        std::slice::from_raw_parts_mut(scratch.query_gradients, all * strides.keys).fill(0.0);
        for head in 0..heads {
            let QueryHead { result, result_gradient, .. } = queries(head);
            for row in 0..problem.queries {
                *scratch.products.add(head * problem.queries + row) = dot::<V>(
                    result.from(row, 0).first,
                    result_gradient.from(row, 0).first,
                    problem.value_dim,
                );
            }
        }
        for first in (0..problem.keys).step_by(KEYS) {
            let count = (problem.keys - first).min(KEYS);
            let (key, value) = (keys.key.from(first, 0), keys.value.from(first, 0));
            let block = Block {
                first,
                count,
                keys: pack::<V>(key.transposed(), problem.dim, count, scratch.keys),
                values: pack::<V>(value.transposed(), problem.value_dim, count, scratch.values),
                key_rows: pack::<V>(key, count, problem.dim, scratch.key_rows),
            };
            std::slice::from_raw_parts_mut(scratch.key_gradients, count * strides.keys).fill(0.0);
            std::slice::from_raw_parts_mut(scratch.value_gradients, count * strides.values).fill(0.0);
            for head in 0..heads {
                let query = queries(head);
                for row in (0..problem.queries).step_by(ROWS) {
                    let rows = (problem.queries - row).min(ROWS);
                    add_rows::<V>(problem, &query, &scratch, &block, (head * problem.queries, row, rows));
                }
            }
            write(keys.key_gradient, first, count, scratch.key_gradients, strides.keys, problem.dim);
            write(
                keys.value_gradient,
                first,
                count,
                scratch.value_gradients,
                strides.values,
                problem.value_dim,
            );
        }
        for head in 0..heads {
            let from = scratch.query_gradients.add(head * problem.queries * strides.keys);
            write(queries(head).gradient, 0, problem.queries, from, strides.keys, problem.dim);
        }
    }
}

/// Adds what some rows of one head and a block of keys give to each other's gradients.
#[inline(always)]
unsafe fn add_rows<V: Vector>(
    problem: &Problem,
    query: &QueryHead,
    scratch: &Scratch,
    block: &Block,
    (before, row, rows): (usize, usize, usize),
) {
    // The last row sees most.
    let count = block.count.min(problem.visible(row + rows).saturating_sub(block.first));
    if count == 0 {
        return;
    }
    let strides = Strides::of::<V>(problem);
    // SAFETY: as for `unit`.
    unsafe {
        let (queries, gradients) = (query.query.from(row, 0), query.result_gradient.from(row, 0));
        let (scores, changes) = (scratch.scores, scratch.score_gradients);
        product::<V>(rows, count, problem.dim, queries, block.keys, scores, strides.scores, false);
        product::<V>(rows, count, problem.value_dim, gradients, block.values, changes, strides.scores, false);
        let mask = query.mask.map(|values| Mask { values, memory: scratch.mask });
        for k in 0..rows {
            let line = Scores { first: scores.add(k * strides.scores), count };
            line.finish::<V>(problem, mask.as_ref(), row + k, block.first);
            let (logarithms, apart) = query.logarithms;
            line.exponentials::<V>(*logarithms.offset((row + k) as isize * apart));
            let product = *scratch.products.add(before + row + k);
            change::<V>(&line, changes.add(k * strides.scores), product, problem.scale);
        }
        // Transposed, so that keys are rows.
        let columns = |first: *mut f32| Matrix { first, row: 1, column: strides.scores as isize };
        let packed = pack::<V>(gradients, rows, problem.value_dim, scratch.gradients);
        let to = scratch.value_gradients;
        product::<V>(count, problem.value_dim, rows, columns(scores), packed, to, strides.values, true);
        let packed = pack::<V>(queries, rows, problem.dim, scratch.queries);
        let to = scratch.key_gradients;
        product::<V>(count, problem.dim, rows, columns(changes), packed, to, strides.keys, true);
        let lines = Matrix { first: changes, row: strides.scores as isize, column: 1 };
        let to = scratch.query_gradients.add((before + row) * strides.keys);
        product::<V>(rows, problem.dim, count, lines, block.key_rows, to, strides.keys, true);
    }
}

/// The gradients of a row of scores from those of its exponentials.
#[inline(always)]
unsafe fn change<V: Vector>(powers: &Scores, changes: *mut f32, product: f32, scale: f32) {
    // SAFETY: as for `unit`.
    unsafe {
        let (product, scale) = (V::splat(product), V::splat(scale));
        for k in (0..powers.count).step_by(V::LANES) {
            let change = V::sub(V::load(changes.add(k)), product);
            let power = V::mul(V::load(powers.first.add(k)), scale);
            V::store(changes.add(k), V::mul(power, change));
        }
    }
}

/// The sum of products of two rows.
#[inline(always)]
unsafe fn dot<V: Vector>(a: *const f32, b: *const f32, count: usize) -> f32 {
    // SAFETY: as for `unit`.
    unsafe {
        let whole = count / V::LANES * V::LANES;
        let mut sums = V::splat(0.0);
        for k in (0..whole).step_by(V::LANES) {
            sums = V::fma(V::load(a.add(k)), V::load(b.add(k)), sums);
        }
        let rest: f32 = (whole..count).map(|k| *a.add(k) * *b.add(k)).sum();
        V::sum(sums) + rest
    }
}

/// Writes rows from `first` on.
#[inline(always)]
unsafe fn write(
    to: Option<(*mut f32, usize)>,
    first: usize,
    rows: usize,
    from: *const f32,
    stride: usize,
    columns: usize,
) {
    let Some((to, apart)) = to else { return };
    // SAFETY: as for `unit`.
    unsafe {
        for row in 0..rows {
            std::ptr::copy_nonoverlapping(from.add(row * stride), to.add((first + row) * apart), columns);
        }
    }
}
