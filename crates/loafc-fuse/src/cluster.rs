//! A cluster: loop nests that share an outer space while the scheduler is at work. It becomes a
//! [`crate::schedule::Group`] when scheduling has ended.
//!
//! A change of a cluster's outer space is a value of its own, a [`Respace`]: scores are computed through it,
//! and only an accepted fusion applies it.

use loafc_ir::index::{Index, IndexAtom, LoopVar};
use loafc_ir::nest::{BufferId, LoopKind, LoopNest, NestProgram, StepId};
use loafc_ir::size::Size;
use smallvec::{SmallVec, smallvec};

use crate::access::{Access, PerDigit, Strided, accesses_of};

/// A loop nest in a cluster.
#[derive(Clone, Debug)]
pub struct Member {
    /// The step that it is.
    pub step: StepId,
    /// Extents of its inner digits, outermost first; they follow the cluster's outer digits.
    pub inner: PerDigit,
    /// Which digits, outer ones first, its reductions run over.
    pub reduced: SmallVec<[bool; 8]>,
    /// For each loop of the nest, its variable in terms of the digits; `None` as long as the digits are the loops.
    pub loops: Option<Vec<Index>>,
    /// Its accesses in terms of the digits.
    pub accesses: Vec<Access>,
    /// Ranges that digits must lie in for the member to do anything: it was padded to a larger space.
    pub guards: Vec<Guard>,
}

/// A range that an index must lie in: `0 <= index < extent`.
#[derive(Clone, Debug, PartialEq)]
pub struct Guard {
    /// Over the member's digits.
    pub index: Index,
    /// First position behind the range.
    pub extent: Size,
}

/// What a cluster does with one buffer.
#[derive(Clone, Debug)]
pub struct BufferUse {
    /// Which.
    pub buffer: BufferId,
    /// Number of members that touch it.
    pub steps: u32,
    /// Accesses as (member, access), in member order; of several that touch the same elements the first.
    pub accesses: SmallVec<[(u16, u16); 4]>,
    /// Whether one of them writes.
    pub written: bool,
    /// Bytes that cross between memory and the cluster for it; see [`crate::cost`].
    pub bytes: i64,
}

impl BufferUse {
    /// One access to a buffer.
    fn of_access(at: (u16, u16), access: &Access) -> BufferUse {
        BufferUse {
            buffer: access.buffer,
            steps: 1,
            accesses: SmallVec::from_slice(&[at]),
            written: access.kind.writes(),
            bytes: access.bytes,
        }
    }

    fn add(&mut self, at: (u16, u16), writes: bool) {
        if self.accesses.last().is_none_or(|last| last.0 != at.0) {
            self.steps += 1;
        }
        self.accesses.push(at);
        self.written |= writes;
    }
}

/// Nests that share an outer space.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// First step of the program in it.
    pub first_step: StepId,
    /// Extents of the outer digits, outermost first.
    pub outer: PerDigit,
    /// Members in program order. A fusion moves their addresses alone.
    pub members: SmallVec<[Box<Member>; 2]>,
    /// All buffers, ascending.
    pub buffers: Vec<BufferUse>,
    /// Whether a member reduces.
    pub has_reduction: bool,
    /// Element-iterations of all members.
    pub work: i64,
    /// Bytes of passes over the same buffers that other loops could bring together; see [`crate::cost`].
    pub repeated: i64,
}

impl Cluster {
    /// The cluster of one nest. The traffic of buffers that it touches several times is still to be found out.
    pub fn of_nest(step: StepId, nest: &LoopNest, program: &NestProgram) -> Cluster {
        let parallel = nest.parallel_loops();
        let member = Member {
            step,
            inner: nest.loops[parallel..].iter().map(|l| l.extent).collect(),
            reduced: nest.loops.iter().map(|l| l.kind == LoopKind::Reduction).collect(),
            loops: None,
            accesses: accesses_of(nest, program),
            guards: Vec::new(),
        };
        let work = nest.loops.iter().map(|l| l.extent.hint(&program.hints)).fold(1, i64::saturating_mul);
        let mut cluster = Cluster {
            first_step: step,
            outer: nest.loops[..parallel].iter().map(|l| l.extent).collect(),
            members: smallvec![Box::new(member)],
            buffers: Vec::new(),
            has_reduction: nest.is_reduction(),
            work,
            repeated: 0,
        };
        cluster.buffers = cluster.collect_buffers();
        cluster
    }

    fn collect_buffers(&self) -> Vec<BufferUse> {
        let accesses = self.members.iter().map(|m| m.accesses.len()).sum();
        let mut uses: Vec<BufferUse> = Vec::with_capacity(accesses);
        for (m, member) in self.members.iter().enumerate() {
            for (a, access) in member.accesses.iter().enumerate() {
                let at = (m as u16, a as u16);
                match uses.iter_mut().find(|u| u.buffer == access.buffer) {
                    Some(entry) => entry.add(at, access.kind.writes()),
                    None => uses.push(BufferUse::of_access(at, access)),
                }
            }
        }
        uses.sort_by_key(|u| u.buffer);
        uses
    }

    /// Whether it touches a buffer more than once.
    pub fn touches_again(&self) -> bool {
        self.buffers.iter().any(|u| u.accesses.len() > 1)
    }

    /// The access at a place that [`BufferUse::accesses`] names, with its member.
    pub fn access(&self, at: (u16, u16)) -> (&Member, &Access) {
        let member = &self.members[at.0 as usize];
        (member, &member.accesses[at.1 as usize])
    }

    /// What it does with a buffer.
    pub fn buffer_use(&self, buffer: BufferId) -> Option<&BufferUse> {
        self.buffers.binary_search_by_key(&buffer, |u| u.buffer).ok().map(|k| &self.buffers[k])
    }

    /// Sets the traffic of one of its buffers.
    pub fn set_bytes(&mut self, buffer: BufferId, bytes: i64) {
        if let Ok(k) = self.buffers.binary_search_by_key(&buffer, |u| u.buffer) {
            self.buffers[k].bytes = bytes;
        }
    }

    /// Puts the cluster into another outer space.
    pub fn respace(&mut self, with: &Respace) {
        if with.is_identity(&self.outer) {
            return;
        }
        let old_outer = self.outer.len();
        for member in &mut self.members {
            member.respace(with, old_outer);
        }
        self.outer = with.digits[..with.outer].iter().map(|d| d.extent).collect();
    }

    /// The union of two clusters over one outer space. Members come in program order.
    pub fn union(mut self, other: Cluster) -> Cluster {
        debug_assert_eq!(self.outer, other.outer);
        self.first_step = self.first_step.min(other.first_step);
        self.has_reduction |= other.has_reduction;
        self.work = self.work.saturating_add(other.work);
        let in_order = self.members.last().map(|m| m.step) < other.members.first().map(|m| m.step);
        let moved = self.members.len() as u16;
        self.members.extend(other.members);
        if in_order {
            self.buffers = merge_uses(self.buffers, other.buffers, moved);
            return self;
        }
        self.members.sort_by_key(|m| m.step);
        let (mine, theirs) = (std::mem::take(&mut self.buffers), other.buffers);
        self.buffers = self.collect_buffers();
        for entry in &mut self.buffers {
            let of = |list: &[BufferUse]| {
                list.binary_search_by_key(&entry.buffer, |u| u.buffer).map_or(0, |k| list[k].bytes)
            };
            entry.bytes = of(&mine) + of(&theirs);
        }
        self
    }
}

/// Merges a sorted list into another one; members of the second list are `moved` further back. Clusters mostly grow
/// at their end, so that nearly all entries stay where they are.
fn merge_uses(mut first: Vec<BufferUse>, second: Vec<BufferUse>, moved: u16) -> Vec<BufferUse> {
    for mut entry in second {
        for at in &mut entry.accesses {
            at.0 += moved;
        }
        match first.binary_search_by_key(&entry.buffer, |u| u.buffer) {
            Ok(k) => {
                let joint = &mut first[k];
                joint.steps += entry.steps;
                joint.written |= entry.written;
                joint.bytes += entry.bytes;
                joint.accesses.extend(entry.accesses);
            }
            Err(k) => first.insert(k, entry),
        }
    }
    first
}

/// Another outer space for a cluster: every new digit is a part of one old digit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Respace {
    /// New digits: first those of the new outer space, then those that every member gets as inner digits, ahead
    /// of its own.
    pub digits: SmallVec<[NewDigit; 4]>,
    /// How many of them are outer.
    pub outer: usize,
    /// Whether the new digits are parts of the members' inner digits too, and nothing of those is left. All
    /// members must then have the same inner space.
    pub takes_inner: bool,
    /// New outer digits that run further than the old ones, with the old extent.
    pub padded: SmallVec<[(usize, Size); 1]>,
}

/// Appends a few sizes; copying them as a block would cost a call each time.
fn append(list: &mut PerDigit, sizes: &[Size]) {
    for size in sizes {
        list.push(*size);
    }
}

/// A cluster as it would be in another outer space.
pub struct Side<'a> {
    /// As it is.
    pub cluster: &'a Cluster,
    /// The space.
    pub with: &'a Respace,
    /// Whether the space is the one that the cluster has.
    pub is_unchanged: bool,
}

impl<'a> Side<'a> {
    /// A cluster and a space for it.
    pub fn new(cluster: &'a Cluster, with: &'a Respace) -> Side<'a> {
        Side { cluster, with, is_unchanged: with.is_identity(&cluster.outer) }
    }
}

/// A part of an old digit: `old = Σ weight·new` over all parts of it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct NewDigit {
    /// Number of the old digit, outer ones first.
    pub from: usize,
    /// What one step of the new digit is worth in the old one.
    pub weight: Size,
    /// Number of steps.
    pub extent: Size,
}

impl NewDigit {
    /// Stride of an access over it.
    fn stride(&self, place: &Strided) -> Size {
        place.strides[self.from] * self.weight
    }
}

impl Respace {
    /// New digits that are parts of outer ones.
    pub fn of_outer(digits: SmallVec<[NewDigit; 4]>, outer: usize) -> Respace {
        Respace { digits, outer, takes_inner: false, padded: SmallVec::new() }
    }

    /// The space as it is.
    pub fn identity(outer: &[Size]) -> Respace {
        let mut digits = SmallVec::new();
        for (from, extent) in outer.iter().enumerate() {
            digits.push(NewDigit { from, weight: Size::ONE, extent: *extent });
        }
        Respace::of_outer(digits, outer.len())
    }

    /// Whether nothing changes for a cluster of this outer space.
    pub fn is_identity(&self, outer: &[Size]) -> bool {
        !self.takes_inner
            && self.outer == self.digits.len()
            && self.outer == outer.len()
            && self.digits.iter().enumerate().all(|(k, d)| d.from == k && d.extent == outer[k])
    }

    /// Whether the iterations stay in the order that they had: the new digits, outer and inner, run through the
    /// old ones' parts from the most significant to the least.
    pub fn keeps_order(&self) -> bool {
        self.digits.windows(2).all(|w| {
            w[0].from < w[1].from
                || (w[0].from == w[1].from && crate::access::larger(w[0].weight, w[1].weight))
        })
    }

    /// Whether old outer digits become inner ones.
    pub fn demotes(&self) -> bool {
        self.outer < self.digits.len()
    }

    /// Extents of the digits that become inner.
    pub fn demoted(&self) -> impl Iterator<Item = Size> + '_ {
        self.digits[self.outer..].iter().map(|d| d.extent)
    }

    /// Strides of an access over the new digits: outer, demoted, then the member's own inner digits.
    pub fn strides(&self, place: &Strided, old_outer: usize) -> PerDigit {
        let mut strides = PerDigit::new();
        for digit in &self.digits {
            strides.push(digit.stride(place));
        }
        append(&mut strides, self.kept(&place.strides, old_outer));
        strides
    }

    /// The first digit along which an access is contiguous after the change.
    pub fn contiguous_digit(&self, place: &Strided, old_outer: usize) -> Option<usize> {
        let moved = self.digits.iter().position(|d| d.stride(place).is(1));
        moved.or_else(|| {
            let kept = self.kept(&place.strides, old_outer).iter().position(|s| s.is(1));
            kept.map(|k| self.digits.len() + k)
        })
    }

    /// Extents of a member's inner digits after the change.
    pub fn inner(&self, member: &Member) -> PerDigit {
        let mut inner = PerDigit::new();
        for extent in self.demoted() {
            inner.push(extent);
        }
        append(&mut inner, self.kept(&member.inner, 0));
        inner
    }

    /// Extents of those inner digits of a member that stay.
    pub fn kept_inner<'a>(&self, member: &'a Member) -> &'a [Size] {
        self.kept(&member.inner, 0)
    }

    /// What stays of a list with one entry for each digit, from the first inner one on.
    fn kept<'a, T>(&self, list: &'a [T], first_inner: usize) -> &'a [T] {
        if self.takes_inner { &[] } else { &list[first_inner..] }
    }
}

impl Member {
    /// The variables of the nest's loops in terms of the digits, to be rewritten when the digits change.
    pub fn loops_mut(&mut self) -> &mut Vec<Index> {
        let digits = self.reduced.len() as u16;
        self.loops.get_or_insert_with(|| (0..digits).map(|k| Index::of_loop(LoopVar(k))).collect())
    }

    /// Puts the member into another space, its cluster's outer digits and its own inner ones.
    pub fn respace(&mut self, with: &Respace, old_outer: usize) {
        self.loops_mut();
        self.inner = with.inner(self);
        self.reduced = with
            .digits
            .iter()
            .map(|d| self.reduced[d.from])
            .chain(with.kept(&self.reduced, old_outer).iter().copied())
            .collect();
        for access in &mut self.accesses {
            if let Some(place) = &mut access.place {
                place.strides = with.strides(place, old_outer);
            }
        }
        let rewrite = |index: &Index| {
            let mut out = Index::constant(index.offset);
            for (atom, stride) in &index.terms {
                let IndexAtom::Loop(old) = atom else { unreachable!("loop maps are affine in the digits") };
                let old = old.0 as usize;
                if old >= old_outer && !with.takes_inner {
                    let new = LoopVar((old - old_outer + with.digits.len()) as u16);
                    out.add_term(IndexAtom::Loop(new), *stride);
                    continue;
                }
                for (k, digit) in with.digits.iter().enumerate().filter(|(_, d)| d.from == old) {
                    out.add_term(IndexAtom::Loop(LoopVar(k as u16)), *stride * digit.weight);
                }
            }
            out
        };
        for index in self.loops.iter_mut().flatten() {
            *index = rewrite(index);
        }
        for guard in &mut self.guards {
            guard.index = rewrite(&guard.index);
        }
        for (digit, extent) in &with.padded {
            self.guards.push(Guard { index: Index::of_loop(LoopVar(*digit as u16)), extent: *extent });
        }
    }

    /// Whether its reductions run over any digit.
    pub fn reduces(&self) -> bool {
        self.reduced.iter().any(|r| *r)
    }
}
