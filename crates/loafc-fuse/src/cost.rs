//! What a fusion is worth: bytes of memory traffic that it removes, and what makes it not worth having.

use loafc_ir::nest::{BufferId, BufferSource, NestProgram, Output, Step};
use loafc_ir::size::Size;
use smallvec::SmallVec;

use crate::access::{Access, AccessKind};
use crate::alignment::Alignment;
use crate::cluster::{BufferUse, Cluster, Member, Respace};
use crate::legality::{Placed, conflict, place, same_outer, shared_buffers, within};
use crate::log::Reason;
use crate::options::{FuseOptions, LINE_BYTES, MAX_KERNEL_BUFFERS};
use crate::order::StepGraph;

/// How much worse an element is that is touched alone than one that comes with its cache line. The lines of a
/// tile stay in the first-level cache, so it is less than the line's length.
const UNCOALESCED_FACTOR: i64 = 4;

/// Digits along which a kernel's tiles make accesses contiguous.
const TILED_DIGITS: usize = 2;

/// What the scheduler knows of the whole program.
pub struct Facts<'a> {
    /// The program.
    pub program: &'a NestProgram,
    /// Settings.
    pub options: &'a FuseOptions,
    /// For each buffer, how many steps touch it; [`u32::MAX`] if it must exist outside of kernels.
    users: Vec<u32>,
}

impl<'a> Facts<'a> {
    /// Collects them.
    pub fn new(program: &'a NestProgram, options: &'a FuseOptions, graph: &StepGraph) -> Self {
        let mut users: Vec<u32> = graph.users.iter().map(|steps| steps.len() as u32).collect();
        for step in &program.steps {
            let Step::Extern(call) = step else { continue };
            let views = call.tensors.iter().chain(call.results.iter().flatten());
            views.for_each(|view| users[view.buffer.0 as usize] = u32::MAX);
        }
        for output in &program.outputs {
            if let Output::Tensor(view) = output {
                users[view.buffer.0 as usize] = u32::MAX;
            }
        }
        for (buffer, count) in program.buffers.iter().zip(&mut users) {
            if buffer.source != BufferSource::Owned {
                *count = u32::MAX;
            }
        }
        Facts { program, options, users }
    }

    /// Whether the buffer lives only between nests, and these many steps are all that touch it.
    pub fn is_internal(&self, buffer: BufferId, steps: u32) -> bool {
        self.users[buffer.0 as usize] == steps
    }

    fn hint(&self, size: Size) -> i64 {
        size.hint(&self.program.hints)
    }

    fn capacity(&self, buffer: BufferId) -> i64 {
        let memory = self.program.buffer(buffer);
        self.hint(memory.len).saturating_mul(memory.dtype.bytes() as i64)
    }
}

/// What a fusion brings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Score {
    /// Bytes of memory traffic that it removes.
    pub saved: i64,
    /// Clusters whose loops are reordered for it.
    pub reorderings: usize,
    /// Traffic of every buffer that the fusion changes.
    pub traffic: ChangedTraffic,
}

/// Bytes below which a fusion is not looked at any further.
fn threshold(facts: &Facts) -> i64 {
    facts.options.score_fusion_memory_threshold.max(1)
}

/// Limits that hold whatever the alignment.
pub fn within_limits(facts: &Facts, first: &Cluster, second: &Cluster) -> Result<(), Reason> {
    if first.members.len() + second.members.len() > facts.options.max_fusion_size {
        return Err(Reason::GroupTooLarge);
    }
    if first.buffers.len() + second.buffers.len() > MAX_KERNEL_BUFFERS
        && external_buffers(facts, first, second) > MAX_KERNEL_BUFFERS
    {
        return Err(Reason::TooManyBuffers);
    }
    Ok(())
}

/// A bound of what a fusion could save: all traffic of what both clusters touch. Refuses pairs for which even that is
/// too little.
pub fn most_saved(facts: &Facts, first: &Cluster, second: &Cluster) -> Result<i64, Reason> {
    let most: i64 = shared_buffers(first, second)
        .map(|(mine, theirs)| {
            let (a, b) = (&first.buffers[mine], &second.buffers[theirs]);
            let both = a.bytes + b.bytes;
            // What both only read is still read once, by the longest pass of either at least.
            let longest = |u: &BufferUse| u.bytes / u.accesses.len().max(1) as i64;
            if a.written || b.written { both } else { both - longest(a).max(longest(b)) }
        })
        .sum();
    match most {
        0 => Err(Reason::NothingShared),
        _ if most < threshold(facts) => Err(Reason::BelowThreshold { saved: most }),
        _ => Ok(most),
    }
}

/// What a fusion saves at most, so that a search for the best one may end where it is found. No limit where one of the
/// two touches a buffer more than once: passes of a single cluster may fall together as well.
pub fn enough_saved(facts: &Facts, first: &Cluster, second: &Cluster) -> i64 {
    let passes_once = |cluster: &Cluster| cluster.buffers.iter().all(|u| u.accesses.len() == 1);
    if passes_once(first) && passes_once(second) {
        most_saved(facts, first, second).unwrap_or(i64::MAX)
    } else {
        i64::MAX
    }
}

fn external_buffers(facts: &Facts, first: &Cluster, second: &Cluster) -> usize {
    let mine = first.buffers.iter().filter(|u| {
        let theirs = second.buffer_use(u.buffer).map_or(0, |s| s.steps);
        !facts.is_internal(u.buffer, u.steps + theirs)
    });
    let theirs = second
        .buffers
        .iter()
        .filter(|u| first.buffer_use(u.buffer).is_none() && !facts.is_internal(u.buffer, u.steps));
    mine.count() + theirs.count()
}

/// The score of fusing two clusters under an alignment, or why they may not or should not be fused.
pub fn evaluate(
    facts: &Facts,
    first: &Cluster,
    second: &Cluster,
    alignment: &Alignment,
) -> Result<Score, Reason> {
    if let Some(conflict) = conflict(first, second, alignment) {
        return Err(conflict.into());
    }
    let traffic = changed_traffic(facts, first, second, alignment);
    let saved: i64 = traffic.iter().map(|t| t.before - t.after).sum();
    if saved <= 0 {
        return Err(Reason::NothingShared);
    }
    if saved < threshold(facts) {
        return Err(Reason::BelowThreshold { saved });
    }
    let unchanged = alignment.first.is_identity(&first.outer) && alignment.second.is_identity(&second.outer);
    if unchanged {
        return Ok(Score { saved, reorderings: 0, traffic });
    }
    keeps_parallelism(facts, first, second, alignment)?;
    keeps_working_set(facts, first, &alignment.first)?;
    keeps_working_set(facts, second, &alignment.second)?;
    let reorderings = alignment.reorderings();
    if reorderings == 0 {
        // What was contiguous in the old order is so in the same order.
        return Ok(Score { saved, reorderings, traffic });
    }
    let lost = uncoalesced(first, second, alignment).saturating_mul(UNCOALESCED_FACTOR);
    if lost >= saved {
        return Err(Reason::Uncoalesced { saved, lost });
    }
    Ok(Score { saved: saved - lost, reorderings, traffic })
}

/// Whether fusing two clusters without outer loops would leave long work to one thread: a reduction can be cut
/// into parts for all of them, but what waits for its result can't run beside it.
pub fn serializes(facts: &Facts, first: &Cluster, second: &Cluster) -> bool {
    first.work.min(second.work) > facts.options.limits.serial_work && has_barrier(first, second)
}

fn iterations(facts: &Facts, extents: impl Iterator<Item = Size>) -> i64 {
    extents.map(|e| facts.hint(e)).fold(1, i64::saturating_mul)
}

fn keeps_parallelism(
    facts: &Facts,
    first: &Cluster,
    second: &Cluster,
    alignment: &Alignment,
) -> Result<(), Reason> {
    let outer = iterations(facts, alignment.outer());
    let before = [first, second].map(|c| iterations(facts, c.outer.iter().copied()));
    let work = first.work.saturating_add(second.work);
    let fewer = outer < before[0].max(before[1]);
    if fewer && outer < facts.options.limits.min_outer && work >= facts.options.limits.parallel_work {
        return Err(Reason::TooLittleParallelism { outer });
    }
    Ok(())
}

/// A cluster that reads its row again in a later stage must still find it in the cache when outer digits become
/// inner ones.
fn keeps_working_set(facts: &Facts, cluster: &Cluster, with: &Respace) -> Result<(), Reason> {
    if !with.demotes() || !cluster.has_reduction || cluster.members.len() < 2 {
        return Ok(());
    }
    for entry in cluster.buffers.iter().filter(|u| u.accesses.len() > 1) {
        for at in &entry.accesses {
            let (member, access) = cluster.access(*at);
            let Some(placed) = place(cluster, member, access, with) else { continue };
            let bytes = footprint(facts, &placed, access.item);
            if bytes > facts.options.limits.cached_bytes {
                return Err(Reason::WorkingSetTooLarge { bytes });
            }
        }
    }
    Ok(())
}

/// Bytes that one outer iteration touches. Where no inner digit is contiguous, each element brings its line.
fn footprint(facts: &Facts, placed: &Placed, item: i64) -> i64 {
    let (strides, extents) = placed.inner_terms();
    let touched = iterations(facts, strides.iter().zip(extents).filter(|(s, _)| !s.is(0)).map(|(_, e)| *e));
    let contiguous = strides.iter().any(|s| s.is(1)) || touched == 1;
    touched.saturating_mul(if contiguous { item } else { item.max(LINE_BYTES) })
}

/// One entry for each buffer whose traffic changes.
pub type ChangedTraffic = SmallVec<[BufferTraffic; 2]>;

/// Traffic of a buffer before and after a fusion.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct BufferTraffic {
    /// Which.
    pub buffer: BufferId,
    /// Bytes that the clusters move apart.
    pub before: i64,
    /// Bytes that their union moves.
    pub after: i64,
}

/// Traffic of every buffer that a fusion changes: those that both clusters use, and those that one of them touches
/// more than once where its outer digits become inner ones.
fn changed_traffic(
    facts: &Facts,
    first: &Cluster,
    second: &Cluster,
    alignment: &Alignment,
) -> ChangedTraffic {
    let barrier = has_barrier(first, second);
    let mut changed = ChangedTraffic::new();
    for (mine, theirs) in shared_buffers(first, second) {
        let sides = [(first, mine, &alignment.first), (second, theirs, &alignment.second)];
        changed.push(BufferTraffic {
            buffer: first.buffers[mine].buffer,
            before: first.buffers[mine].bytes + second.buffers[theirs].bytes,
            after: traffic(facts, &sides, barrier),
        });
    }
    for (cluster, other, with) in [(first, second, &alignment.first), (second, first, &alignment.second)] {
        if !with.demotes() {
            continue;
        }
        for (at, entry) in cluster.buffers.iter().enumerate() {
            if entry.accesses.len() > 1 && other.buffer_use(entry.buffer).is_none() {
                let after = traffic(facts, &[(cluster, at, with)], cluster.has_reduction);
                changed.push(BufferTraffic { buffer: entry.buffer, before: entry.bytes, after });
            }
        }
    }
    changed
}

/// Traffic of a whole cluster.
pub fn cluster_bytes(cluster: &Cluster) -> i64 {
    cluster.buffers.iter().map(|u| u.bytes).sum()
}

/// Sets the traffic of the buffers of a cluster that was made of one nest.
pub fn set_nest_traffic(facts: &Facts, cluster: &mut Cluster) {
    let identity = Respace::identity(&cluster.outer);
    for at in 0..cluster.buffers.len() {
        let entry = &cluster.buffers[at];
        let bytes = match entry.accesses.as_slice() {
            [only] => cluster.access(*only).1.bytes,
            _ => traffic(facts, &[(cluster, at, &identity)], false),
        };
        cluster.buffers[at].bytes = bytes;
    }
}

/// Whether one cluster needs what a reduction of the other one gives: then what they share is passed twice.
fn has_barrier(first: &Cluster, second: &Cluster) -> bool {
    if !first.has_reduction && !second.has_reduction {
        return false;
    }
    shared_buffers(first, second).any(|(mine, theirs)| {
        let written_late = |cluster: &Cluster, at: usize| {
            cluster.buffers[at].accesses.iter().any(|a| {
                let (member, access) = cluster.access(*a);
                access.kind.writes() && member.reduces()
            })
        };
        written_late(first, mine) || written_late(second, theirs)
    })
}

/// Elements that are fetched or stored together.
struct Class<'a> {
    placed: Option<Placed<'a>>,
    access: &'a Access,
    /// Whether the kernel makes them itself before it reads them.
    made: bool,
    written: bool,
}

/// Bytes that cross between memory and the kernel for one buffer: reads once where they are of the same outer
/// iteration and still in the cache, writes unless nothing outside needs them.
fn traffic(facts: &Facts, sides: &[(&Cluster, usize, &Respace)], barrier: bool) -> i64 {
    if let Some(bytes) = traffic_of_two(facts, sides, barrier) {
        return bytes;
    }
    let mut accesses: SmallVec<[(loafc_ir::nest::StepId, &Access, Option<Placed>); 4]> = SmallVec::new();
    let mut steps = 0;
    for (cluster, at, with) in sides {
        let entry = &cluster.buffers[*at];
        steps += entry.steps;
        for (k, at) in entry.accesses.iter().enumerate() {
            let (member, access) = cluster.access(*at);
            if !barrier && repeats_a_read(cluster, &entry.accesses[..k], member, access) {
                continue;
            }
            accesses.push((member.step, access, place(cluster, member, access, with)));
        }
    }
    accesses.sort_by_key(|a| a.0);
    let buffer = accesses[0].1.buffer;
    let mut classes: SmallVec<[Class; 4]> = SmallVec::new();
    let mut partial = false;
    for (_, access, placed) in accesses {
        partial |= access.kind == AccessKind::PartialWrite;
        let same = classes.iter_mut().find(|c| coincide(facts, &c.placed, &placed, access.item, barrier));
        match same {
            Some(class) => {
                class.written |= access.kind.writes();
                if access.bytes > class.access.bytes {
                    class.access = access;
                    class.placed = placed;
                }
            }
            None => classes.push(Class {
                placed,
                access,
                made: access.kind == AccessKind::Write,
                written: access.kind.writes(),
            }),
        }
    }
    let sum = |filter: &dyn Fn(&Class) -> bool| bytes_of_classes(facts, buffer, &classes, filter);
    let local = facts.is_internal(buffer, steps) && !partial && classes.len() == 1 && classes[0].made;
    let written = if local { 0 } else { sum(&|c| c.written) };
    sum(&|c| !c.made) + written
}

/// Whether a cluster reads the very elements before, in the same iterations.
fn repeats_a_read(cluster: &Cluster, before: &[(u16, u16)], member: &Member, access: &Access) -> bool {
    access.kind == AccessKind::Read
        && access.place.is_some()
        && before.iter().any(|at| {
            let (earlier, other) = cluster.access(*at);
            other.kind == AccessKind::Read && other.place == access.place && earlier.inner == member.inner
        })
}

/// Bytes of some classes. Those that the outer digits move alike overlap within the cache, and move no more together
/// than the buffer holds; others pass through it on their own.
fn bytes_of_classes(
    facts: &Facts,
    buffer: BufferId,
    classes: &[Class],
    filter: &dyn Fn(&Class) -> bool,
) -> i64 {
    let capacity = facts.capacity(buffer);
    let mut groups: SmallVec<[(&Class, i64); 4]> = SmallVec::new();
    for class in classes.iter().filter(|c| filter(c)) {
        let bytes = class.access.bytes;
        match groups.iter_mut().find(|(first, _)| moves_alike(&first.placed, &class.placed)) {
            Some((_, sum)) => *sum = sum.saturating_add(bytes).min(capacity),
            None => groups.push((class, bytes.min(capacity))),
        }
    }
    groups.iter().map(|g| g.1).fold(0, i64::saturating_add)
}

fn moves_alike(a: &Option<Placed>, b: &Option<Placed>) -> bool {
    matches!((a, b), (Some(a), Some(b)) if same_outer(a, b))
}

/// [`traffic`] for the case that nearly all pairs are: one access on either side.
fn traffic_of_two(facts: &Facts, sides: &[(&Cluster, usize, &Respace)], barrier: bool) -> Option<i64> {
    let [(x, x_at, x_with), (y, y_at, y_with)] = sides else { return None };
    let ([a], [b]) = (x.buffers[*x_at].accesses.as_slice(), y.buffers[*y_at].accesses.as_slice()) else {
        return None;
    };
    let ((x_member, a), (y_member, b)) = (x.access(*a), y.access(*b));
    let writer = match (a.kind, b.kind) {
        (AccessKind::Read, AccessKind::Read) => None,
        (AccessKind::Write, AccessKind::Read) if x_member.step < y_member.step => Some(a),
        (AccessKind::Read, AccessKind::Write) if y_member.step < x_member.step => Some(b),
        _ => return None,
    };
    let (placed_a, placed_b) = (place(x, x_member, a, x_with), place(y, y_member, b, y_with));
    let together = coincide(facts, &placed_a, &placed_b, a.item, barrier);
    let both = a.bytes.max(b.bytes);
    let bytes = match (writer, together) {
        (None, true) => both,
        (None, false) => {
            let overlap = moves_alike(&placed_a, &placed_b);
            if overlap { (a.bytes + b.bytes).min(facts.capacity(a.buffer)) } else { a.bytes + b.bytes }
        }
        (Some(_), true) if facts.is_internal(a.buffer, 2) => 0,
        (Some(_), true) => both,
        (Some(_), false) => a.bytes + b.bytes,
    };
    Some(bytes)
}

fn coincide(facts: &Facts, a: &Option<Placed>, b: &Option<Placed>, item: i64, barrier: bool) -> bool {
    let (Some(a), Some(b)) = (a, b) else { return false };
    if !within(a, b) && !within(b, a) {
        return false;
    }
    let one_pass = !barrier && a.offset == b.offset && *a.strides == *b.strides && *a.inner == *b.inner;
    one_pass || footprint(facts, a, item).max(footprint(facts, b, item)) <= facts.options.limits.cached_bytes
}

/// Bytes of accesses that were contiguous along one of the two digits that a kernel can tile, and are no more.
/// Inner digits count as one: each stage tiles its own.
fn uncoalesced(first: &Cluster, second: &Cluster, alignment: &Alignment) -> i64 {
    let after = uncovered(&[(first, Some(&alignment.first)), (second, Some(&alignment.second))]);
    if after == 0 {
        return 0;
    }
    let before = uncovered(&[(first, None)]) + uncovered(&[(second, None)]);
    (after - before).max(0)
}

const INNER: usize = usize::MAX;

/// Bytes of accesses that are contiguous along a digit which the tiles don't cover; no respacing stands for the space
/// as it is.
fn uncovered(sides: &[(&Cluster, Option<&Respace>)]) -> i64 {
    let mut by_digit: SmallVec<[(usize, i64); 6]> = SmallVec::new();
    for (cluster, with) in sides {
        let outer = with.map_or(cluster.outer.len(), |w| w.outer);
        for access in cluster.members.iter().flat_map(|m| &m.accesses) {
            let Some(place) = &access.place else { continue };
            let found = match with {
                Some(with) => with.contiguous_digit(place, cluster.outer.len()),
                None => place.strides.iter().position(|s| s.is(1)),
            };
            let Some(digit) = found else { continue };
            let digit = if digit < outer { digit } else { INNER };
            match by_digit.iter_mut().find(|d| d.0 == digit) {
                Some(entry) => entry.1 += access.bytes,
                None => by_digit.push((digit, access.bytes)),
            }
        }
    }
    if by_digit.len() <= TILED_DIGITS {
        return 0;
    }
    by_digit.sort_by_key(|d| std::cmp::Reverse(d.1));
    by_digit.iter().skip(TILED_DIGITS).map(|d| d.1).sum()
}
