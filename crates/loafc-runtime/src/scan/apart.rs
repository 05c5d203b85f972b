//! Scans of lines that lie apart from each other: a few go together, so that none waits for its last element. Few long
//! lines are cut where the operation allows it.

use std::array;

use super::lines::{Axis, GRAIN, Lines, offsets};
use super::memory::{Memory, scatter, work};
use super::operation::{Join, MOST_CHAINS, Operation, State};
use crate::threads::Team;
use crate::width::Work;

/// Fewer lines than these are cut.
const CUT_BELOW: i64 = 8;
/// Elements of a part of a line that is cut.
pub(super) const PART: i64 = 16 << 10;
/// Fewest parts that are worth reading the line twice.
const PARTS_LEAST: i64 = 4;
/// Elements that are copied at once where they don't lie one behind the other.
const PIECE: usize = 256;

/// A part of a line.
#[derive(Copy, Clone)]
struct Part {
    /// Offset in the operand.
    from: i64,
    /// Offset in the result.
    to: i64,
    /// Position of its first element in the line.
    begin: i64,
    count: i64,
}

/// Goes along each line by itself, or along its parts.
pub(super) fn run_apart<O: Operation>(lines: &Lines, memory: &Memory<O>, team: &dyn Team) {
    let extent = lines.along.extent;
    // By numbers of the tensor alone where it shows in bits.
    let few = lines.count() < CUT_BELOW && extent >= PARTS_LEAST * PART;
    let join = match O::JOIN {
        Join::Close(join) if few => Some(join),
        Join::Exact(join) if few && team.threads() > 1 => Some(join),
        _ => None,
    };
    let length = if join.is_some() { PART } else { extent };
    let parts = (extent + length - 1) / length;
    let mut states = vec![O::START; if join.is_some() { (parts * lines.count()) as usize } else { 0 }];
    let cut = Cut { lines, length, parts };
    if let Some(join) = join {
        cut.run(memory, Purpose::Fold(Shared(states.as_mut_ptr())), team);
        states.chunks_mut(parts as usize).for_each(|line| begin_behind::<O>(line, join));
    }
    cut.run(memory, Purpose::Write(&states), team);
}

/// Turns the states of a line's parts into those before them.
fn begin_behind<O: Operation>(parts: &mut [State<O>], join: fn(State<O>, State<O>) -> State<O>) {
    let mut before = O::START;
    for state in parts {
        before = join(before, std::mem::replace(state, before));
    }
}

/// Lines as parts of a length.
struct Cut<'a> {
    lines: &'a Lines,
    length: i64,
    /// Parts of a line.
    parts: i64,
}

/// What is done with parts of lines.
enum Purpose<'a, O: Operation> {
    /// Their states, each from the start, are put here.
    Fold(Shared<State<O>>),
    /// Results are written, with the states before each part; from the start where there are none.
    Write(&'a [State<O>]),
}

/// Memory of which threads write different elements.
#[derive(Copy, Clone)]
struct Shared<T>(*mut T);

// SAFETY: no two threads touch the same element.
unsafe impl<T> Sync for Shared<T> {}

impl Cut<'_> {
    fn run<O: Operation>(&self, memory: &Memory<O>, purpose: Purpose<'_, O>, team: &dyn Team) {
        let count = self.lines.count() * self.parts;
        let threads = team.threads() as i64;
        let group = ((count + threads - 1) / threads).min(O::CHAINS as i64);
        let units = (count + group - 1) / group;
        let grain = (GRAIN / (group * self.length)).max(1);
        team.parallel_for(units, grain, &|begin, end, _| {
            work::<O>(Apart {
                lines: self,
                memory,
                purpose: &purpose,
                group,
                parts: begin * group..(end * group).min(count),
            });
        });
    }

    #[inline(always)]
    fn part(&self, index: i64) -> Part {
        let Axis { extent, from: from_step, to: to_step } = self.lines.along;
        let (line, begin) = match self.parts {
            1 => (index, 0),
            parts => (index / parts, index % parts * self.length),
        };
        let (from, to) = offsets(&self.lines.others, line);
        let count = self.length.min(extent - begin);
        Part { from: from + begin * from_step, to: to + begin * to_step, begin, count }
    }
}

/// Parts of lines that lie apart from each other.
struct Apart<'a, O: Operation> {
    lines: &'a Cut<'a>,
    memory: &'a Memory<O>,
    purpose: &'a Purpose<'a, O>,
    /// Parts that go together.
    group: i64,
    parts: std::ops::Range<i64>,
}

/// Pieces of lines on their way.
struct Pieces<O: Operation> {
    from: [[O::Element; PIECE]; MOST_CHAINS],
    to: [[O::Element; PIECE]; MOST_CHAINS],
    positions: [[O::Position; PIECE]; MOST_CHAINS],
}

impl<O: Operation> Work for Apart<'_, O> {
    #[inline(always)]
    fn run(self) {
        let mut pieces = Pieces::<O> {
            from: [[O::Element::default(); PIECE]; MOST_CHAINS],
            to: [[O::Element::default(); PIECE]; MOST_CHAINS],
            positions: [[O::Position::default(); PIECE]; MOST_CHAINS],
        };
        let mut next = self.parts.start;
        while next < self.parts.end {
            let together = next + MOST_CHAINS as i64;
            // Known when this is compiled: most operations need no code for several lines.
            let chains = O::CHAINS == MOST_CHAINS && self.group == MOST_CHAINS as i64;
            if chains && together <= self.parts.end {
                let parts: [Part; MOST_CHAINS] = array::from_fn(|k| self.lines.part(next + k as i64));
                if parts.iter().all(|p| p.count == parts[0].count) {
                    self.go(next, parts, &mut pieces);
                    next = together;
                    continue;
                }
            }
            self.go(next, [self.lines.part(next)], &mut pieces);
            next += 1;
        }
    }
}

impl<O: Operation> Apart<'_, O> {
    /// Goes along parts of the same length.
    #[inline(always)]
    fn go<const LINES: usize>(&self, index: i64, parts: [Part; LINES], pieces: &mut Pieces<O>) {
        let mut states = match self.purpose {
            Purpose::Write(states) if !states.is_empty() => array::from_fn(|k| states[index as usize + k]),
            _ => [O::START; LINES],
        };
        let Axis { from, to, .. } = self.lines.lines.along;
        let in_place = from == 1 && to == 1 && self.memory.as_it_is;
        let count = parts[0].count;
        let piece = if in_place { count } else { PIECE as i64 };
        for done in (0..count).step_by(piece as usize) {
            let length = piece.min(count - done);
            let rest = parts.map(|p| Part {
                from: p.from + done * from,
                to: p.to + done * to,
                begin: p.begin + done,
                count: length,
            });
            self.go_pieces(&mut states, rest, pieces);
        }
        if let Purpose::Fold(Shared(folded)) = self.purpose {
            for (k, state) in states.into_iter().enumerate() {
                // SAFETY: there is one for each part.
                unsafe { *folded.add(index as usize + k) = state };
            }
        }
    }

    /// Goes along parts of at most [`PIECE`] elements, or of any length where they lie one behind the other.
    #[inline(always)]
    fn go_pieces<const LINES: usize>(
        &self,
        states: &mut [State<O>; LINES],
        parts: [Part; LINES],
        pieces: &mut Pieces<O>,
    ) {
        let Axis { from: from_step, to: to_step, .. } = self.lines.lines.along;
        let count = parts[0].count as usize;
        let begins = parts.map(|p| p.begin);
        let in_place = self.memory.as_it_is && from_step == 1;
        if !in_place {
            for (part, memory) in parts.iter().zip(&mut pieces.from) {
                // SAFETY: parts are parts of the tensors.
                unsafe { self.memory.operand(part.from, from_step, &mut memory[..count]) };
            }
        }
        // SAFETY: as above.
        let from = array::from_fn(|k| unsafe {
            let first = self.memory.from.offset(parts[k].from as isize * self.memory.from_bytes);
            let first = if in_place { first.cast() } else { pieces.from[k].as_ptr() };
            std::slice::from_raw_parts(first, count)
        });
        let cut = const { !matches!(O::JOIN, Join::Never) };
        if cut && let Purpose::Fold(_) = self.purpose {
            return O::fold(states, begins, from);
        }
        // SAFETY: as above; no two parts share an element of the result.
        let results: [_; LINES] = array::from_fn(|k| unsafe {
            let to = parts[k].to as isize;
            (self.memory.to.offset(to), self.memory.positions.offset(to))
        });
        let direct = to_step == 1;
        let places: [_; LINES] = array::from_fn(|k| {
            if direct { results[k] } else { (pieces.to[k].as_mut_ptr(), pieces.positions[k].as_mut_ptr()) }
        });
        // SAFETY: as above; pieces hold as many elements where results don't lie one behind the other.
        let to = places.map(|(to, _)| unsafe { std::slice::from_raw_parts_mut(to, count) });
        // SAFETY: as for the values.
        let positions = places.map(|(_, p)| unsafe { std::slice::from_raw_parts_mut(p, count) });
        O::along(states, begins, from, to, positions);
        if direct {
            return;
        }
        for (line, (to, positions)) in results.into_iter().enumerate() {
            // SAFETY: as above.
            unsafe {
                scatter(&pieces.to[line][..count], to, to_step);
                scatter(&pieces.positions[line][..count], positions, to_step);
            }
        }
    }
}
