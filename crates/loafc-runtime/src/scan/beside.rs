//! Scans of lines that lie beside each other: they go forward together, in vectors. So do short lines, whose elements
//! are copied there and back.

use super::lines::{Axis, GRAIN, offsets};
use super::memory::{Memory, scatter, work};
use super::operation::Operation;
use crate::threads::Team;
use crate::width::Work;

/// Most lines that go forward together: their states stay in the first-level cache.
const BESIDE: usize = 1024;
/// Most lines of those that are copied: their elements stay there too.
const COPIED: i64 = 256;

/// Goes along lines that neighbours on one axis, all by their elements in vectors.
pub(super) fn run_beside<O: Operation>(
    along: Axis,
    beside: Axis,
    others: &[Axis],
    memory: &Memory<O>,
    team: &dyn Team,
) {
    let extent = beside.extent;
    let most = if beside.from == 1 && beside.to == 1 { BESIDE as i64 } else { COPIED };
    let share = (extent + team.threads() as i64 - 1) / team.threads() as i64;
    let group = share.clamp(64, most);
    let groups = (extent + group - 1) / group;
    let units = groups * others.iter().map(|a| a.extent).product::<i64>();
    let grain = (GRAIN / (group * along.extent)).max(1);
    team.parallel_for(units, grain, &|begin, end, _| {
        work::<O>(Beside { along, beside, others, group, groups, memory, units: begin..end });
    });
}

/// Groups of lines that lie beside each other.
struct Beside<'a, O: Operation> {
    along: Axis,
    beside: Axis,
    others: &'a [Axis],
    /// Lines in a group.
    group: i64,
    /// Groups of lines beside each other.
    groups: i64,
    memory: &'a Memory<O>,
    units: std::ops::Range<i64>,
}

impl<O: Operation> Work for Beside<'_, O> {
    #[inline(always)]
    fn run(self) {
        let (mut first, mut second) = ([O::START.0; BESIDE], [O::START.1; BESIDE]);
        let mut read = [O::Element::default(); BESIDE];
        let (mut made, mut placed) = (read, [O::Position::default(); BESIDE]);
        let direct = self.beside.to == 1;
        for unit in self.units.clone() {
            let line = unit % self.groups * self.group;
            let count = self.group.min(self.beside.extent - line) as usize;
            let (from, to) = offsets(self.others, unit / self.groups);
            let (from, to) = (from + line * self.beside.from, to + line * self.beside.to);
            let (first, second) = (&mut first[..count], &mut second[..count]);
            first.fill(O::START.0);
            second.fill(O::START.1);
            for at in 0..self.along.extent {
                let to = (to + at * self.along.to) as isize;
                // SAFETY: lines of a unit are lines of the tensors, which no other unit has.
                unsafe {
                    let from = from + at * self.along.from;
                    let from = self.memory.operand(from, self.beside.from, &mut read[..count]);
                    let result = (self.memory.to.offset(to), self.memory.positions.offset(to));
                    let (to, positions) =
                        if direct { result } else { (made.as_mut_ptr(), placed.as_mut_ptr()) };
                    let to = std::slice::from_raw_parts_mut(to, count);
                    let positions = std::slice::from_raw_parts_mut(positions, count);
                    advance::<O>(first, second, from, to, positions, at);
                    if !direct {
                        scatter(to, result.0, self.beside.to);
                        scatter(positions, result.1, self.beside.to);
                    }
                }
            }
        }
    }
}

/// Goes one element forward on lines beside each other.
#[inline(always)]
fn advance<O: Operation>(
    first: &mut [O::First],
    second: &mut [O::Second],
    from: &[O::Element],
    to: &mut [O::Element],
    positions: &mut [O::Position],
    at: i64,
) {
    let states = first.iter_mut().zip(second);
    let results = to.iter_mut().zip(positions);
    for (((first, second), x), (value, position)) in states.zip(from).zip(results) {
        let state = O::step((*first, *second), *x, at);
        (*first, *second) = state;
        *value = O::value(state);
        *position = O::position(state);
    }
}
