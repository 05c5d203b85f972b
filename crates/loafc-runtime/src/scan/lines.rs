//! The lines of a scan: where they lie in operand and result, and which way to go along them. Threads share groups of
//! lines, and results are the same for any number of threads.

use super::apart::run_apart;
use super::beside::run_beside;
use super::memory::Memory;
use super::operation::Operation;
use crate::threads::Team;
use crate::value::{ResultSpec, TensorRef};

/// Fewest lines beside each other that are worth a vector.
const BESIDE_LEAST: i64 = 8;
/// Elements of the longest line that isn't worth going along it alone.
const SHORT: i64 = 16;
/// Elements that are worth a thread.
pub(super) const GRAIN: i64 = 16 << 10;

/// Extent, and strides in operand and result.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(super) struct Axis {
    pub extent: i64,
    pub from: i64,
    pub to: i64,
}

/// The lines of a scan.
pub(super) struct Lines {
    pub along: Axis,
    /// Where lines lie: the dimension in which neighbours lie closest comes first.
    pub others: Vec<Axis>,
}

impl Lines {
    pub fn of(x: &TensorRef<'_>, result: &ResultSpec<'_>, dim: usize) -> Lines {
        let axis = |k: usize| Axis { extent: x.shape[k], from: x.strides[k], to: result.strides[k] };
        let rank = x.shape.len();
        let along = if rank == 0 { Axis { extent: 1, from: 1, to: 1 } } else { axis(dim) };
        let others = (0..rank).filter(|k| *k != dim).map(axis).collect();
        Lines { along, others: merged(others) }
    }

    /// # Safety
    /// The pointers must be valid for all elements.
    pub unsafe fn run<O: Operation>(&self, memory: &Memory<O>, team: &dyn Team) {
        if self.count() == 0 || self.along.extent == 0 {
            return;
        }
        match self.others.split_first() {
            Some((beside, others)) if self.go_beside(*beside) => {
                run_beside(self.along, *beside, others, memory, team);
            }
            _ => run_apart(self, memory, team),
        }
    }

    /// Whether lines along this axis go forward in vectors: those beside each other, and short ones, whose elements
    /// are copied there.
    fn go_beside(&self, axis: Axis) -> bool {
        axis.extent >= BESIDE_LEAST && ((axis.from == 1 && axis.to == 1) || self.along.extent <= SHORT)
    }

    pub fn count(&self) -> i64 {
        self.others.iter().map(|a| a.extent).product()
    }
}

/// Axes without those of one element, and neighbours that both tensors walk through as one put together; the closest
/// first.
fn merged(mut axes: Vec<Axis>) -> Vec<Axis> {
    axes.retain(|a| a.extent != 1);
    axes.sort_by_key(|a| a.from.unsigned_abs().saturating_add(a.to.unsigned_abs()));
    let mut merged: Vec<Axis> = Vec::with_capacity(axes.len());
    for axis in axes {
        match merged.last_mut() {
            Some(last) if axis.from == last.from * last.extent && axis.to == last.to * last.extent => {
                last.extent *= axis.extent;
            }
            _ => merged.push(axis),
        }
    }
    merged
}

/// Offsets of the `index`th combination of positions on these axes.
#[inline(always)]
pub(super) fn offsets(axes: &[Axis], mut index: i64) -> (i64, i64) {
    let (mut from, mut to) = (0, 0);
    for (k, axis) in axes.iter().enumerate() {
        // Divisions take long where lines are short.
        let last = k + 1 == axes.len();
        let position = if last { index } else { index % axis.extent };
        from += position * axis.from;
        to += position * axis.to;
        index = if last { 0 } else { index / axis.extent };
    }
    (from, to)
}
