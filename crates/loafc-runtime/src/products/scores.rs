//! Rows of scores: scaled, masked, and turned into exponentials.

use super::panel::Matrix;
use super::shape::Problem;
use super::vector::{self, Vector};

/// Where a row of scores lies, and for how many keys. The row takes whole vectors.
#[derive(Copy, Clone)]
pub(super) struct Scores {
    pub first: *mut f32,
    pub count: usize,
}

/// What is added to the scores of one head.
#[derive(Copy, Clone)]
pub(super) struct Mask {
    pub values: Matrix,
    /// Memory for a row of it, whole vectors long.
    pub memory: *mut f32,
}

impl Mask {
    /// A row of the mask from key `first` on.
    #[inline(always)]
    unsafe fn row<V: Vector>(&self, row: usize, first: usize, count: usize) -> MaskRow {
        // SAFETY: the caller's promise.
        unsafe {
            let from = self.values.from(row, first);
            // Where elements are neighbours, only those that fill no vector are copied.
            let direct = if from.column == 1 { count / V::LANES * V::LANES } else { 0 };
            for k in direct..count {
                *self.memory.add(k) = *from.from(0, k).first;
            }
            MaskRow { direct: from.first, copied: self.memory, copied_from: direct }
        }
    }
}

/// Where the elements of a mask's row are.
#[derive(Copy, Clone)]
struct MaskRow {
    direct: *const f32,
    copied: *const f32,
    /// The first one that is not `direct`.
    copied_from: usize,
}

impl MaskRow {
    #[inline(always)]
    fn at(&self, k: usize) -> *const f32 {
        let from = if k < self.copied_from { self.direct } else { self.copied };
        from.wrapping_add(k)
    }
}

impl Scores {
    /// Scales products of query `row` with the keys from `first` on, adds the mask, and takes out what the query does not
    /// see. Gives the largest.
    ///
    /// # Safety
    /// All elements must be there; the processor must have the vector's instructions.
    #[inline(always)]
    pub unsafe fn finish<V: Vector>(
        &self,
        problem: &Problem,
        mask: Option<&Mask>,
        row: usize,
        first: usize,
    ) -> f32 {
        // SAFETY: the caller's promise.
        unsafe {
            let scale = V::splat(problem.scale);
            let mask = mask.map(|mask| mask.row::<V>(row, first, self.count));
            let finished = |k: usize| {
                let score = V::load(self.first.add(k));
                match &mask {
                    Some(mask) => V::fma(score, scale, V::load(mask.at(k))),
                    None => V::mul(score, scale),
                }
            };
            let whole = self.count / V::LANES * V::LANES;
            let mut largest = V::splat(f32::NEG_INFINITY);
            for k in (0..whole).step_by(V::LANES) {
                let score = finished(k);
                V::store(self.first.add(k), score);
                largest = V::max(score, largest);
            }
            if whole < self.count {
                // Of the other elements nothing is known: a mask's memory may hold anything, and so may products of zeros.
                let score = V::first(finished(whole), self.count - whole);
                V::store(self.first.add(whole), score);
                largest = V::max(score, largest);
            }
            let seen = problem.visible(row + 1).saturating_sub(first);
            if seen < self.count {
                return self.hide::<V>(seen);
            }
            V::largest(largest)
        }
    }

    /// Takes out the scores from this one on. Gives the largest that remains.
    #[inline(always)]
    unsafe fn hide<V: Vector>(&self, seen: usize) -> f32 {
        // SAFETY: the caller's promise.
        unsafe {
            for k in seen..self.count {
                *self.first.add(k) = f32::NEG_INFINITY;
            }
            let mut largest = V::splat(f32::NEG_INFINITY);
            for k in (0..seen).step_by(V::LANES) {
                largest = V::max(V::load(self.first.add(k)), largest);
            }
            V::largest(largest)
        }
    }

    /// Replaces each score by `e^(score - offset)`; gives their sum.
    ///
    /// # Safety
    /// As for [`Scores::finish`].
    #[inline(always)]
    pub unsafe fn exponentials<V: Vector>(&self, offset: f32) -> f32 {
        // SAFETY: the caller's promise.
        unsafe {
            let mut total = V::splat(0.0);
            for k in (0..self.count).step_by(V::LANES) {
                let at = self.first.add(k);
                let power = vector::exp::<V>(V::sub(V::load(at), V::splat(offset)));
                V::store(at, power);
                total = V::add(total, power);
            }
            V::sum(total)
        }
    }
}
