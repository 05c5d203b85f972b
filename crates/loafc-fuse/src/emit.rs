//! From a cluster to a group: stages are laid out, buffers that live only inside a kernel get a place there, and
//! bodies are rewritten to the group's digits.

use std::borrow::Cow;
use std::sync::Arc;

use loafc_ir::canonical::for_each_index_nested;
use loafc_ir::index::{Index, IndexAtom, LoopVar};
use loafc_ir::nest::{Body, BufferId, LoopNest, NestProgram, Op, Step, ValueId};
use loafc_ir::size::Size;

use crate::access::{Access, AccessKind, Embedding, PerDigit, Strided, embed};
use crate::cluster::{BufferUse, Cluster, Member, NewDigit, Respace};
use crate::cost::Facts;
use crate::schedule::{Group, GroupBuffer, Member as GroupMember, Place, Stage};

/// Lays a cluster out as a group.
pub fn emit(facts: &Facts, mut cluster: Cluster) -> Group {
    unify_inner_spaces(&mut cluster);
    let stages = assign_stages(&cluster);
    let buffers = place_buffers(facts, &cluster);
    let mut group = Group {
        name: group_name(facts.program, &cluster),
        outer: cluster.outer.to_vec(),
        stages: stages.iter().map(|s| emit_stage(facts.program, &cluster, s, &buffers)).collect(),
        buffers: buffers.into_iter().map(|b| b.entry).collect(),
    };
    merge_digits(&mut group);
    group
}

fn nest_of<'a>(program: &'a NestProgram, member: &Member) -> &'a LoopNest {
    match &program.steps[member.step.0 as usize] {
        Step::Nest(nest) => nest,
        Step::Extern(_) => unreachable!("extern calls are never in a cluster"),
    }
}

fn group_name(program: &NestProgram, cluster: &Cluster) -> Arc<str> {
    let mut name = String::new();
    for member in &cluster.members {
        let part = &nest_of(program, member).name;
        if name.len() + part.len() > 60 {
            name.push_str("_etc");
            break;
        }
        if !name.is_empty() {
            name.push('_');
        }
        name.push_str(part);
    }
    name.into()
}

/// Splits inner digits so that members whose inner spaces run through the same positions have the same digits:
/// only then can they share a pass. What is left apart is merged again at the end.
fn unify_inner_spaces(cluster: &mut Cluster) {
    let mut spaces: Vec<PerDigit> = Vec::new();
    for member in &cluster.members {
        if member.inner.is_empty() {
            continue;
        }
        match spaces.iter_mut().find_map(|s| Some((refine(s, &member.inner)?, s))) {
            Some((common, space)) => *space = common,
            None => spaces.push(member.inner.clone()),
        }
    }
    let outer = cluster.outer.len();
    let whole = Respace::identity(&cluster.outer);
    for member in &mut cluster.members {
        let Some(common) = spaces.iter().find(|s| refine(s, &member.inner).as_ref() == Some(*s)) else {
            continue;
        };
        if *common != member.inner {
            let mut split = Respace { takes_inner: true, ..whole.clone() };
            split.digits.extend(split_parts(&member.inner, common, outer));
            member.respace(&split, outer);
        }
    }
}

/// The coarsest space that both can be split into without changing the order of positions.
fn refine(a: &[Size], b: &[Size]) -> Option<PerDigit> {
    if a == b {
        return Some(a.into());
    }
    // Everything divides zero: spaces without positions are only alike if they are equal.
    if a.iter().chain(b).any(|e| e.is(0)) {
        return None;
    }
    let mut out = PerDigit::new();
    let (mut a, mut b) = (a.iter().copied(), b.iter().copied());
    let (mut x, mut y) = (a.next(), b.next());
    loop {
        match (x, y) {
            (None, None) => return Some(out),
            (Some(p), Some(q)) if p == q => {
                out.push(p);
                x = a.next();
                y = b.next();
            }
            (Some(p), Some(q)) => match (p.div_exact(q), q.div_exact(p)) {
                (Some(rest), _) => {
                    out.push(q);
                    x = Some(rest);
                    y = b.next();
                }
                (_, Some(rest)) => {
                    out.push(p);
                    x = a.next();
                    y = Some(rest);
                }
                _ => return None,
            },
            _ => return None,
        }
    }
}

/// For each digit of `fine`, the digit of `coarse` that it is a part of, counted from `first` on, and its weight there.
fn split_parts(coarse: &[Size], fine: &[Size], first: usize) -> Vec<NewDigit> {
    let mut parts = Vec::new();
    let mut fine = fine.iter();
    for (from, extent) in (first..).zip(coarse) {
        let mut rest = *extent;
        while !rest.is(1) {
            let Some(part) = fine.next() else { break };
            rest = rest.div_exact(*part).expect("a refinement");
            parts.push(NewDigit { from, weight: rest, extent: *part });
        }
    }
    parts
}

/// Members of each stage, by position in the cluster.
type Stages = Vec<Vec<usize>>;

/// Puts each member, in program order, into the earliest stage that runs over its inner space and comes late
/// enough: in the same stage as what it depends on where both touch the same element in the same iteration, behind
/// it otherwise.
fn assign_stages(cluster: &Cluster) -> Stages {
    let mut stages: Stages = Vec::new();
    let mut stage_of: Vec<usize> = Vec::new();
    for (m, member) in cluster.members.iter().enumerate() {
        let earliest = member.accesses.iter().map(|access| earliest_stage(cluster, m, access, &stage_of));
        let earliest = earliest.max().unwrap_or(0);
        let fits = |stage: &Vec<usize>| {
            stage.iter().all(|s| {
                let other = &cluster.members[*s];
                other.inner == member.inner
                    && (!other.reduces() || !member.reduces() || other.reduced == member.reduced)
            })
        };
        let found = (earliest..stages.len()).find(|k| fits(&stages[*k]));
        let at = found.unwrap_or_else(|| {
            stages.push(Vec::new());
            stages.len() - 1
        });
        stages[at].push(m);
        stage_of.push(at);
    }
    stages
}

/// The first stage that an access of a member may be in, for what earlier members do with the buffer.
fn earliest_stage(cluster: &Cluster, member: usize, access: &Access, stage_of: &[usize]) -> usize {
    let later = &cluster.members[member];
    let Some(entry) = cluster.buffer_use(access.buffer) else { return 0 };
    let conflicts = entry.accesses.iter().take_while(|at| usize::from(at.0) < member).filter_map(|at| {
        let (earlier, other) = cluster.access(*at);
        if !other.kind.writes() && !access.kind.writes() {
            return None;
        }
        let behind = !same_iteration(earlier, other, later, access);
        Some(stage_of[usize::from(at.0)] + usize::from(behind))
    });
    conflicts.max().unwrap_or(0)
}

fn same_iteration(earlier: &Member, a: &Access, later: &Member, b: &Access) -> bool {
    let (Some(pa), Some(pb)) = (&a.place, &b.place) else { return false };
    // What a reduction writes exists only when its loops have ended.
    let late = a.kind.writes() && earlier.reduces();
    let partial = a.kind == AccessKind::PartialWrite || b.kind == AccessKind::PartialWrite;
    let guarded = !earlier.guards.is_empty() || !later.guards.is_empty();
    !late && !partial && !guarded && earlier.inner == later.inner && pa == pb
}

/// A buffer of the group, and where each digit of a member finds its elements if the kernel keeps it.
struct PlacedBuffer {
    entry: GroupBuffer,
    /// For a local buffer, the writer's offset; reads are placed relative to it.
    local: Option<LocalArray>,
}

/// The elements of a local buffer: those that its writer writes in one outer iteration.
struct LocalArray {
    offset: Size,
    strides: PerDigit,
    inner: PerDigit,
    /// Where the writer's own accesses are in the array.
    own: Embedding,
}

impl LocalArray {
    fn new(writer: &Member, place: &Strided, outer: usize) -> Option<LocalArray> {
        let strides: PerDigit = place.strides[outer..].into();
        let own = embed((&strides, &writer.inner), (&strides, &writer.inner), Size::ZERO)?;
        Some(LocalArray { offset: place.offset, strides, inner: writer.inner.clone(), own })
    }

    fn embed(&self, strides: &[Size], inner: &[Size], offset: Size) -> Option<Cow<'_, Embedding>> {
        if strides == &*self.strides && inner == &*self.inner && offset == self.offset {
            return Some(Cow::Borrowed(&self.own));
        }
        embed((strides, inner), (&self.strides, &self.inner), offset - self.offset).map(Cow::Owned)
    }
}

fn place_buffers(facts: &Facts, cluster: &Cluster) -> Vec<PlacedBuffer> {
    let mut out = Vec::with_capacity(cluster.buffers.len());
    for entry in &cluster.buffers {
        let local = local_array(facts, cluster, entry);
        let kinds = || entry.accesses.iter().map(|a| cluster.access(*a).1.kind);
        let place = match &local {
            Some(array) => Place::Local(array.own.len),
            None => Place::Memory,
        };
        out.push(PlacedBuffer {
            entry: GroupBuffer {
                buffer: entry.buffer,
                read: kinds().any(|k| k == AccessKind::Read),
                written: entry.written,
                place,
            },
            local,
        });
    }
    out
}

/// Whether the kernel can keep a buffer to itself: nobody outside needs it, one member writes all of it, and every
/// reader finds its elements in what is written in the same outer iteration.
fn local_array(facts: &Facts, cluster: &Cluster, entry: &BufferUse) -> Option<LocalArray> {
    if !facts.is_internal(entry.buffer, entry.steps) {
        return None;
    }
    let outer = cluster.outer.len();
    let mut writers = entry.accesses.iter().filter(|a| cluster.access(**a).1.kind.writes());
    let (writer, access) = cluster.access(*writers.next()?);
    if writers.next().is_some() || access.kind != AccessKind::Write || !writer.guards.is_empty() {
        return None;
    }
    // A partial result of an outer iteration is no element of the buffer yet.
    if writer.reduced[..outer].iter().any(|r| *r) {
        return None;
    }
    let place = access.place.as_ref()?;
    let array = LocalArray::new(writer, place, outer)?;
    let bytes = array.own.len.hint(&facts.program.hints).saturating_mul(access.item);
    if bytes > facts.options.limits.cached_bytes {
        return None;
    }
    for at in &entry.accesses {
        let (member, access) = cluster.access(*at);
        let read = access.place.as_ref()?;
        if read.strides[..outer] != place.strides[..outer] || member.step < writer.step {
            return None;
        }
        array.embed(&read.strides[outer..], &member.inner, read.offset)?;
    }
    Some(array)
}

fn emit_stage(
    program: &NestProgram,
    cluster: &Cluster,
    members: &[usize],
    buffers: &[PlacedBuffer],
) -> Stage {
    let inner = cluster.members[members[0]].inner.to_vec();
    let members = members
        .iter()
        .map(|m| {
            let member = &cluster.members[*m];
            let nest = nest_of(program, member);
            GroupMember {
                step: member.step,
                name: nest.name.clone(),
                body: emit_body(cluster, member, nest, buffers),
                reduced: member.reduced.to_vec(),
                origins: nest.origins.clone(),
            }
        })
        .collect();
    Stage { inner, members }
}

fn emit_body(cluster: &Cluster, member: &Member, nest: &LoopNest, buffers: &[PlacedBuffer]) -> Body {
    let extents: Vec<Size> = cluster.outer.iter().chain(&member.inner).copied().collect();
    let extent = |v: LoopVar| extents.get(v.0 as usize).copied();
    let mut body = Body { ops: Vec::with_capacity(nest.body.ops.len()) };
    let guard = emit_guards(member, &mut body);
    let mut renamed: Vec<ValueId> = Vec::with_capacity(nest.body.ops.len());
    for op in &nest.body.ops {
        let new = match &member.loops {
            None if guard.is_none() => op.clone(),
            None => op.substitute(&Index::of_loop, &|v| renamed[v.0 as usize], &extent),
            Some(loops) => {
                op.substitute(&|v| loops[v.0 as usize].clone(), &|v| renamed[v.0 as usize], &extent)
            }
        };
        let new = localize(new, cluster, member, buffers);
        let new = match guard {
            Some(guard) => add_guard(new, guard, &mut body),
            None => new,
        };
        renamed.push(body.push(new));
    }
    body
}

fn emit_guards(member: &Member, body: &mut Body) -> Option<ValueId> {
    let mut all = None;
    for guard in &member.guards {
        let inside =
            body.push(Op::InRange { index: guard.index.clone(), low: Size::ZERO, high: guard.extent });
        all = Some(match all {
            Some(so_far) => body.push(Op::Binary(loafc_ir::nest::BinaryOp::And, so_far, inside)),
            None => inside,
        });
    }
    all
}

fn add_guard(op: Op, guard: ValueId, body: &mut Body) -> Op {
    let mut both = |old: Option<ValueId>| match old {
        Some(old) => body.push(Op::Binary(loafc_ir::nest::BinaryOp::And, old, guard)),
        None => guard,
    };
    match op {
        Op::Load { buffer, index, guard } => Op::Load { buffer, index, guard: Some(both(guard)) },
        Op::Store { buffer, index, value, guard, mode } => {
            Op::Store { buffer, index, value, guard: Some(both(guard)), mode }
        }
        Op::Check(value, failure) => {
            // Outside of the range nothing is wrong.
            let outside = body.push(Op::Unary(loafc_ir::nest::UnaryOp::Not, guard));
            Op::Check(body.push(Op::Binary(loafc_ir::nest::BinaryOp::Or, value, outside)), failure)
        }
        other => other,
    }
}

/// Replaces the index of a local buffer by the position in the kernel's array.
fn localize(op: Op, cluster: &Cluster, member: &Member, buffers: &[PlacedBuffer]) -> Op {
    let outer = cluster.outer.len();
    let rewrite = |buffer: BufferId, index: Index| {
        let at = buffers.binary_search_by_key(&buffer, |b| b.entry.buffer).expect("every buffer is listed");
        let Some(local) = &buffers[at].local else { return index };
        let strides: PerDigit =
            (0..member.inner.len()).map(|k| index.stride_of(LoopVar((outer + k) as u16))).collect();
        let found = local
            .embed(&strides, &member.inner, index.offset)
            .expect("a buffer is local only if every access embeds");
        let mut out = Index::constant(found.offset);
        for (k, stride) in found.strides.iter().enumerate() {
            out.add_term(IndexAtom::Loop(LoopVar((outer + k) as u16)), *stride);
        }
        out
    };
    match op {
        Op::Load { buffer, index, guard } => Op::Load { buffer, index: rewrite(buffer, index), guard },
        Op::Store { buffer, index, value, guard, mode } => {
            Op::Store { buffer, index: rewrite(buffer, index), value, guard, mode }
        }
        other => other,
    }
}

/// Merges neighbouring digits that every access walks through as one: outer ones over all stages, inner ones
/// within their stage.
fn merge_digits(group: &mut Group) {
    let outer = group.outer.len();
    for stage in &mut group.stages {
        let mut at = stage.inner.len();
        while at > 1 {
            at -= 1;
            if mergeable(stage.members.iter(), outer + at - 1, stage.inner[at]) {
                let joint = stage.inner[at - 1] * stage.inner[at];
                stage.inner[at - 1] = joint;
                stage.inner.remove(at);
                for member in &mut stage.members {
                    merge_in_member(member, outer + at - 1);
                }
            }
        }
    }
    let mut at = group.outer.len();
    while at > 1 {
        at -= 1;
        let members = group.stages.iter().flat_map(|s| &s.members);
        if !mergeable(members, at - 1, group.outer[at]) {
            continue;
        }
        let merged = group.outer.remove(at);
        group.outer[at - 1] *= merged;
        for member in group.stages.iter_mut().flat_map(|s| &mut s.members) {
            merge_in_member(member, at - 1);
        }
    }
}

/// Whether digit `at` and the next one, of this extent, are one loop to all members.
fn mergeable<'a>(mut members: impl Iterator<Item = &'a GroupMember>, at: usize, extent: Size) -> bool {
    members.all(|member| {
        let mut all = member.reduced[at] == member.reduced[at + 1];
        for_each_index_nested(&member.body, &mut |index| {
            let far = index.stride_of(LoopVar(at as u16));
            let near = index.stride_of(LoopVar(at as u16 + 1));
            all &= far == near * extent;
        });
        all
    })
}

fn merge_in_member(member: &mut GroupMember, at: usize) {
    member.reduced.remove(at + 1);
    let map = |v: LoopVar| match v.0 as usize {
        k if k == at => Index::constant(Size::ZERO),
        k if k < at => Index::of_loop(v),
        _ => Index::of_loop(LoopVar(v.0 - 1)),
    };
    for op in &mut member.body.ops {
        if matches!(op, Op::IndexValue(_) | Op::InRange { .. } | Op::Load { .. } | Op::Store { .. }) {
            *op = op.substitute(&map, &|v| v, &|_| None);
        }
    }
}
