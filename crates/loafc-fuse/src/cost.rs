//! What a fusion is worth: bytes of memory traffic that it removes, and what makes it not worth having.

use loafc_ir::nest::{BufferId, BufferSource, NestProgram, Output, Step};
use loafc_ir::size::Size;
use smallvec::SmallVec;

use crate::access::{Access, AccessKind};
use crate::alignment::Alignment;
use crate::cluster::{BufferUse, Cluster, Member, Respace, Side};
use crate::legality::{Placed, conflict, place, same_outer, within};
use crate::log::Reason;
use crate::options::{FuseOptions, LINE_BYTES, MAX_KERNEL_BUFFERS};
use crate::order::StepGraph;
use crate::pair::Pair;

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
        for step in &graph.externs {
            let Step::Extern(call) = &program.steps[step.0 as usize] else { continue };
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
    pub reorderings: u8,
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

/// What a fusion of two clusters saves at most: all traffic of what both touch, and all passes over other buffers that
/// may fall together where outer loops become inner ones.
pub fn most_saved(facts: &Facts, first: &Cluster, second: &Cluster, shared: &[(usize, usize)]) -> i64 {
    let both = shared.iter().map(|(mine, theirs)| {
        let (a, b) = (&first.buffers[*mine], &second.buffers[*theirs]);
        let all = a.bytes + b.bytes;
        // What both only read is still read once, by the longest pass of either at least.
        let longest = |u: &BufferUse| u.bytes / u.accesses.len().max(1) as i64;
        let most = if a.written || b.written { all } else { all - longest(a).max(longest(b)) };
        most - repeated(facts, first, a) - repeated(facts, second, b)
    });
    first.repeated + second.repeated + both.sum::<i64>()
}

/// Refuses pairs whose fusion would save too little at the very most.
pub fn worth_a_look(facts: &Facts, pair: &Pair) -> Result<(), Reason> {
    match pair.most_saved {
        most if most == 0 || pair.shared.is_empty() => Err(Reason::NothingShared),
        most if most < threshold(facts) => Err(Reason::BelowThreshold { saved: most }),
        _ => Ok(()),
    }
}

/// Sets how much of a cluster's traffic other loops could save.
pub fn set_repeated(facts: &Facts, cluster: &mut Cluster) {
    cluster.repeated = cluster.buffers.iter().map(|entry| repeated(facts, cluster, entry)).sum();
}

/// Bytes of a buffer that a cluster moves in passes which other loops could bring together: all but one pass, or all
/// if the kernel could keep the buffer to itself then.
fn repeated(facts: &Facts, cluster: &Cluster, entry: &BufferUse) -> i64 {
    if entry.accesses.len() < 2 {
        return 0;
    }
    if entry.written && facts.is_internal(entry.buffer, entry.steps) {
        return entry.bytes;
    }
    let accesses = entry.accesses.iter().map(|at| cluster.access(*at).1);
    let stays = accesses.filter(|a| a.kind.writes() == entry.written).map(|a| a.bytes).max();
    entry.bytes - stays.unwrap_or(0)
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
pub fn evaluate(facts: &Facts, pair: &Pair, alignment: &Alignment) -> Result<Score, Reason> {
    let (first, second) = (pair.first, pair.second);
    let sides = [Side::new(first, &alignment.first), Side::new(second, &alignment.second)];
    if let Some(conflict) = conflict(pair, &sides) {
        return Err(conflict.into());
    }
    let traffic = changed_traffic(facts, pair, &sides);
    let saved: i64 = traffic.iter().map(|t| t.before - t.after).sum();
    // Candidates wait in the order of this bound, and searches end where it is reached.
    debug_assert!(saved <= pair.most_saved, "saves {saved} bytes, at most {} were expected", pair.most_saved);
    if saved <= 0 {
        return Err(Reason::NothingShared);
    }
    if saved < threshold(facts) {
        return Err(Reason::BelowThreshold { saved });
    }
    if sides.iter().all(|side| side.is_unchanged) {
        return Ok(Score { saved, reorderings: 0, traffic });
    }
    keeps_parallelism(facts, first, second, alignment)?;
    keeps_working_set(facts, &sides[0])?;
    keeps_working_set(facts, &sides[1])?;
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
pub fn serializes(facts: &Facts, pair: &Pair) -> bool {
    pair.first.work.min(pair.second.work) > facts.options.limits.serial_work && pair.has_barrier()
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
fn keeps_working_set(facts: &Facts, side: &Side) -> Result<(), Reason> {
    let cluster = side.cluster;
    if !side.with.demotes() || !cluster.has_reduction || cluster.members.len() < 2 {
        return Ok(());
    }
    for entry in cluster.buffers.iter().filter(|u| u.accesses.len() > 1) {
        for at in &entry.accesses {
            let (member, access) = cluster.access(*at);
            let Some(placed) = place(side, member, access) else { continue };
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
fn changed_traffic(facts: &Facts, pair: &Pair, sides: &[Side; 2]) -> ChangedTraffic {
    let barrier = pair.has_barrier();
    let mut changed = ChangedTraffic::new();
    let [first, second] = sides;
    for (mine, theirs) in &pair.shared {
        let (a, b) = (&pair.first.buffers[*mine], &pair.second.buffers[*theirs]);
        changed.push(BufferTraffic {
            buffer: a.buffer,
            before: a.bytes + b.bytes,
            after: traffic(facts, &[(first, a), (second, b)], barrier),
        });
    }
    for (side, other) in [(first, second), (second, first)] {
        let cluster = side.cluster;
        if !side.with.demotes() {
            continue;
        }
        for entry in &cluster.buffers {
            if entry.accesses.len() > 1 && other.cluster.buffer_use(entry.buffer).is_none() {
                let after = traffic(facts, &[(side, entry)], cluster.has_reduction);
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

/// Sets the traffic of those buffers that a cluster of one nest touches more than once.
pub fn set_nest_traffic(facts: &Facts, cluster: &mut Cluster) {
    let identity = Respace::identity(&cluster.outer);
    for at in 0..cluster.buffers.len() {
        let entry = &cluster.buffers[at];
        if entry.accesses.len() > 1 {
            let bytes = traffic(facts, &[(&Side::new(cluster, &identity), entry)], false);
            cluster.buffers[at].bytes = bytes;
        }
    }
    set_repeated(facts, cluster);
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
fn traffic(facts: &Facts, sides: &[(&Side, &BufferUse)], barrier: bool) -> i64 {
    if let Some(bytes) = traffic_of_two(facts, sides, barrier) {
        return bytes;
    }
    let mut accesses: SmallVec<[(loafc_ir::nest::StepId, &Access, Option<Placed>); 4]> = SmallVec::new();
    let mut steps = 0;
    for (side, entry) in sides {
        steps += entry.steps;
        for (k, at) in entry.accesses.iter().enumerate() {
            let (member, access) = side.cluster.access(*at);
            if !barrier && repeats_a_read(side.cluster, &entry.accesses[..k], member, access) {
                continue;
            }
            accesses.push((member.step, access, place(side, member, access)));
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
fn traffic_of_two(facts: &Facts, sides: &[(&Side, &BufferUse)], barrier: bool) -> Option<i64> {
    let [(x, x_use), (y, y_use)] = sides else { return None };
    let ([a], [b]) = (x_use.accesses.as_slice(), y_use.accesses.as_slice()) else { return None };
    let ((x_member, a), (y_member, b)) = (x.cluster.access(*a), y.cluster.access(*b));
    let writer = match (a.kind, b.kind) {
        (AccessKind::Read, AccessKind::Read) => None,
        (AccessKind::Write, AccessKind::Read) if x_member.step < y_member.step => Some(a),
        (AccessKind::Read, AccessKind::Write) if y_member.step < x_member.step => Some(b),
        _ => return None,
    };
    let (placed_a, placed_b) = (place(x, x_member, a), place(y, y_member, b));
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
