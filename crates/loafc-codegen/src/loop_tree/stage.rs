//! Builds the loops of one stage: all members in the innermost body, each operation at the outermost loop that
//! it depends on, and what comes behind a reduction right behind the loops that it runs over.
//!
//! A reduction's states form a chain from the outermost inwards: values go into the last one, and behind the
//! loop where a state began it is merged into the one before. A state over loops that are all reduced is in
//! registers; where other loops lie inside, it is an array with one state for each of their iterations.

use loafc_fuse::schedule::Member;
use loafc_ir::dtype::{DType, Scalar};
use loafc_ir::index::{Index, IndexAtom, LoopVar};
use loafc_ir::interp::body::Phases;
use loafc_ir::interp::scalar;
use loafc_ir::nest::{BinaryOp, BufferId, Op, ReduceOp, StoreMode, ValueId};
use loafc_ir::size::{Size, floor_div};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::{SmallVec, smallvec};

use super::build::{Builder, PhaseContext};
use super::partition::{Digit, PhaseGroup, PhaseStage};
use super::{AccumulatorId, Loop, Mapping, MemoryPlace, Node, Range, Transpose};

/// A loop of a stage.
#[derive(Clone, Debug)]
pub(super) struct StageLoop {
    pub(super) var: LoopVar,
    /// The digit that it runs over, or over blocks of.
    pub(super) digit: LoopVar,
    pub(super) begin: Index,
    pub(super) end: SmallVec<[Index; 2]>,
    pub(super) step: i64,
    /// Most iterations, counted in the digit's steps.
    pub(super) extent: Size,
    /// The digit's value that has position 0 in arrays.
    pub(super) origin: Index,
    pub(super) mapping: Mapping,
    /// Whether states of reductions begin anew around this loop.
    pub(super) fresh: bool,
    /// For a loop inside of blocks the variable of the loop over blocks, and iterations in a block.
    pub(super) block: Option<(LoopVar, i64)>,
    /// For the last loop whether accesses that are contiguous along the one before go through a copy.
    pub(super) transposes: bool,
}

/// Elements between the rows of a transposed copy beside the row itself: rows at distances of a power of two
/// would share few lines of the cache.
const PADDING: i64 = 16;

/// Whether an access is contiguous along `columns`, but jumps along `rows`.
pub(crate) fn is_transposed(index: &Index, columns: LoopVar, rows: LoopVar) -> bool {
    let jump = index.stride_of(rows);
    index.is_affine() && index.stride_of(columns).is(1) && !jump.is(0) && !jump.is(1)
}

impl StageLoop {
    /// Over a whole digit.
    pub(super) fn over(digit: Digit) -> StageLoop {
        StageLoop {
            var: digit.var,
            digit: digit.var,
            begin: Index::constant(Size::ZERO),
            end: smallvec![Index::constant(digit.extent)],
            step: 1,
            extent: digit.extent,
            origin: Index::constant(Size::ZERO),
            mapping: Mapping::Serial,
            fresh: false,
            block: None,
            transposes: false,
        }
    }

    /// The loop over blocks of this one, and this one inside of it.
    pub(super) fn blocked(mut self, counter: LoopVar, size: i64) -> (StageLoop, StageLoop) {
        let blocks = StageLoop { var: counter, step: size, mapping: Mapping::Tile, ..self.clone() };
        let first_behind = Index::of_loop(counter).shifted(Size::from(size));
        let even = self.end.len() == 1 && self.extent.as_const().is_some_and(|e| e % size == 0);
        if even {
            self.end[0] = first_behind;
        } else {
            self.end.insert(0, first_behind);
        }
        self.begin = Index::of_loop(counter);
        self.block = Some((counter, size));
        (blocks, self)
    }

    /// Whether it may run over nothing. Parts and tiles of a digit exist only where the digit has iterations.
    fn may_be_empty(&self) -> bool {
        self.extent.as_const().is_none_or(|extent| extent <= 0)
    }

    fn counts_blocks(&self) -> bool {
        self.var != self.digit
    }

    /// Whether all values from the first one on come in groups of this size.
    pub(super) fn divides(&self, count: i64) -> bool {
        let multiple = |s: Size| s.as_const().is_some_and(|s| s % count == 0);
        let is_multiple = |index: &Index| {
            let term = |(atom, factor): &(IndexAtom, Size)| match atom {
                IndexAtom::Loop(v) => {
                    multiple(*factor) || self.block.is_some_and(|(var, size)| var == *v && size % count == 0)
                }
                _ => false,
            };
            multiple(index.offset) && index.terms.iter().all(term)
        };
        self.step == 1 && is_multiple(&self.begin) && self.end.iter().all(is_multiple)
    }

    fn range(&self) -> Range {
        Range { var: self.var, begin: self.begin.clone(), end: self.end.clone() }
    }

    /// Only over `size` iterations from `begin` on, as far as there are so many.
    pub(super) fn restrict(&mut self, begin: Index, size: Size) {
        let first_behind = begin.clone().shifted(size);
        // Where parts divide the digit evenly, none is cut short.
        match self.end.as_slice() {
            [end] if end.as_constant().is_some_and(|e| e.div_exact(size).is_some()) => {
                self.end[0] = first_behind
            }
            _ => self.end.insert(0, first_behind),
        }
        self.origin = begin.clone();
        self.begin = begin;
        self.extent = size;
    }

    fn around(&self, body: Vec<Node>) -> Node {
        Node::Loop(Box::new(Loop {
            var: self.var,
            begin: self.begin.clone(),
            end: self.end.clone(),
            step: self.step,
            mapping: self.mapping,
            body,
        }))
    }
}

/// Loops around a body, the first one outermost; nothing around nothing.
pub(super) fn wrap(loops: &[&StageLoop], body: Vec<Node>) -> Vec<Node> {
    if body.is_empty() {
        return body;
    }
    loops.iter().rev().fold(body, |inside, l| vec![l.around(inside)])
}

/// The nodes of a stage. Where conditions on the last loop's variable hold in parts of it, each part gets loops of
/// its own, in which they are known.
pub(super) fn build_stage(
    builder: &mut Builder<'_>,
    context: &PhaseContext,
    stage: &PhaseStage<'_>,
    number: usize,
    (loops, rows): (Vec<StageLoop>, Option<(LoopVar, i64)>),
) -> Result<Vec<Node>, String> {
    let bounds = loops.last().map_or(Vec::new(), |last| cuts(stage, last));
    if bounds.is_empty() {
        return build_part(builder, context, stage, number, (loops, rows), None);
    }
    let mut nodes = Vec::new();
    for part in bounds.windows(2) {
        let [low, high] = part else { continue };
        let mut loops = loops.clone();
        if let Some(last) = loops.last_mut() {
            last.begin = Index::constant(Size::from(*low));
            last.end = smallvec![Index::constant(Size::from(*high))];
            let known = Known { digit: last.digit, low: *low, high: *high };
            nodes.extend(build_part(builder, context, stage, number, (loops, rows), Some(known))?);
        }
    }
    Ok(nodes)
}

/// Most parts that a loop is cut into.
const MOST_PARTS: usize = 8;
/// Most operations in all parts together.
const MOST_OPS: usize = 256;

/// Where to cut a loop so that conditions on its variable are the same within each part: its bounds and the
/// positions between them. Empty where it can't be cut.
fn cuts(stage: &PhaseStage<'_>, last: &StageLoop) -> Vec<i64> {
    let whole = last.begin.as_constant().is_some_and(|b| b.is(0)) && last.end.len() == 1;
    let end = last.end.first().and_then(Index::as_constant).and_then(Size::as_const);
    let (true, Some(end)) = (whole, end) else { return Vec::new() };
    if stage.members.iter().any(|m| m.body.has_reduction()) {
        return Vec::new();
    }
    let mut bounds = vec![0, end];
    for op in stage.members.iter().flat_map(|m| &m.body.ops) {
        let Op::InRange { index, low, high } = op else { continue };
        let ([(IndexAtom::Loop(var), stride)], Some(offset)) =
            (index.terms.as_slice(), index.offset.as_const())
        else {
            continue;
        };
        let Some(stride) = stride.as_const().filter(|s| *s != 0 && *var == last.digit) else { continue };
        for limit in [low, high].into_iter().filter_map(|l| l.as_const()) {
            // First value behind the limit: in the direction of the stride.
            let distance = limit.wrapping_sub(offset);
            let at = match stride > 0 {
                true => -floor_div(-distance, stride),
                false => floor_div(distance, stride) + 1,
            };
            if at > 0 && at < end && !bounds.contains(&at) {
                bounds.push(at);
            }
        }
    }
    bounds.sort_unstable();
    let parts = bounds.len() - 1;
    let ops: usize = stage.members.iter().map(|m| m.body.ops.len()).sum();
    let worth = parts > 1 && parts <= MOST_PARTS && parts * ops <= MOST_OPS;
    if worth { bounds } else { Vec::new() }
}

/// Values of a digit in the current part of its loop.
#[derive(Copy, Clone)]
struct Known {
    digit: LoopVar,
    low: i64,
    high: i64,
}

impl Known {
    /// Smallest and largest value of an index over the digit alone.
    fn bounds(&self, index: &Index) -> Option<(i64, i64)> {
        let [(IndexAtom::Loop(var), stride)] = index.terms.as_slice() else { return None };
        let (offset, stride) = (index.offset.as_const()?, stride.as_const()?);
        let at = |x: i64| offset.wrapping_add(stride.wrapping_mul(x));
        let (a, b) = (at(self.low), at(self.high - 1));
        (*var == self.digit).then_some((a.min(b), a.max(b)))
    }
}

fn build_part(
    builder: &mut Builder<'_>,
    context: &PhaseContext,
    stage: &PhaseStage<'_>,
    number: usize,
    (loops, rows): (Vec<StageLoop>, Option<(LoopVar, i64)>),
    range: Option<Known>,
) -> Result<Vec<Node>, String> {
    let depth = loops.len();
    let written = stage.members.iter().flat_map(|m| &m.body.ops).filter_map(|op| match op {
        Op::Store { buffer, .. } => Some(*buffer),
        _ => None,
    });
    let read = stage.members.iter().flat_map(|m| &m.body.ops).filter_map(|op| match op {
        Op::Load { buffer, .. } => Some(*buffer),
        _ => None,
    });
    let mut one = StageBuilder {
        written: written.collect(),
        read: read.collect(),
        transposed: FxHashMap::default(),
        truths: FxHashMap::default(),
        fixed: None,
        is_last_copy: true,
        chains: FxHashMap::default(),
        range,
        builder,
        context,
        before: vec![Vec::new(); depth + 1],
        behind: vec![Vec::new(); depth + 1],
        loops,
        levels: FxHashMap::default(),
        known: FxHashMap::default(),
        versions: FxHashMap::default(),
        stored: FxHashMap::default(),
    };
    let unrolled = context.unrolled.and_then(|d| Some((d.var, d.extent.as_const()?)));
    let copies = unrolled.or(rows).map_or(1, |(_, copies)| copies);
    for copy in 0..copies {
        let constant = |(var, _)| (var, Index::constant(Size::from(copy)));
        let row = |(var, _)| (var, Index::of_loop(var).shifted(Size::from(copy)));
        one.fixed = unrolled.map(constant).or(rows.map(row));
        one.is_last_copy = copy + 1 == copies;
        for (k, member) in stage.members.iter().enumerate() {
            one.member(member, (number, k))?;
        }
    }
    Ok(one.assemble())
}

/// What is behind a member's reductions: their results, then the operations that use them. `known` are values
/// of the body that can be used as they are.
pub(super) fn emit_behind(
    builder: &mut Builder<'_>,
    context: &PhaseContext,
    member: &Member,
    states: &[(ValueId, AccumulatorId)],
    known: &FxHashMap<ValueId, ValueId>,
) -> Result<Vec<Node>, String> {
    let types = builder.body_types(member);
    let phases = Phases::of(&member.body);
    let mut nodes = Vec::new();
    let mut values: FxHashMap<ValueId, ValueId> = known.clone();
    for (reduction, state) in states {
        let first = builder.new_value(types[reduction.0 as usize]);
        values.insert(*reduction, first);
        let seconds =
            member.body.iter().filter(|(_, op)| matches!(op, Op::ReduceSecond(r) if r == reduction));
        let mut second = None;
        for (v, _) in seconds {
            let value = *second.get_or_insert_with(|| builder.new_value(types[v.0 as usize]));
            values.insert(v, value);
        }
        nodes.push(Node::Finish { of: *state, first, second });
    }
    for (v, op) in member.body.iter() {
        if !phases.needed_behind[v.0 as usize] || values.contains_key(&v) {
            continue;
        }
        let op = translate(builder, context, op, None, &|v| values.get(&v).copied())?;
        if let Op::Check(_, failure) = &op {
            builder.add_check(failure);
        }
        let value = builder.new_value(types[v.0 as usize]);
        values.insert(v, value);
        nodes.push(Node::Op(value, op));
    }
    Ok(nodes)
}

/// An operation of a body in the tree's terms.
fn translate(
    builder: &mut Builder<'_>,
    context: &PhaseContext,
    op: &Op,
    fixed: Option<&(LoopVar, Index)>,
    values: &dyn Fn(ValueId) -> Option<ValueId>,
) -> Result<Op, String> {
    let mut missing = None;
    op.for_each_operand(&mut |v| {
        if values(v).is_none() {
            missing = Some(v);
        }
    });
    if let Some(v) = missing {
        return Err(format!("{op:?} uses {v}, which does not exist where it runs"));
    }
    let of_value = |v: ValueId| values(v).unwrap_or(v);
    let of_loop = |v: LoopVar| match fixed {
        Some((var, value)) if *var == v => value.clone(),
        _ => Index::of_loop(v),
    };
    let mut new = op.substitute(&of_loop, &of_value, &|_| None);
    if let Op::Load { buffer, index, .. } | Op::Store { buffer, index, .. } = &mut new {
        (*buffer, *index) = builder.locate(*buffer, std::mem::take(index), context);
    }
    Ok(new)
}

struct StageBuilder<'b, 'a> {
    builder: &'b mut Builder<'a>,
    context: &'b PhaseContext,
    loops: Vec<StageLoop>,
    /// For each number of loops around: what runs before the next loop, and behind it.
    before: Vec<Vec<Node>>,
    behind: Vec<Vec<Node>>,
    /// How many loops each value is inside of.
    levels: FxHashMap<ValueId, usize>,
    /// Operations that exist already, with the version of the memory that they read.
    known: FxHashMap<(Op, u32), ValueId>,
    /// Number of stores so far.
    versions: FxHashMap<BufferId, u32>,
    /// What the current iteration stored, as memory holds it.
    stored: FxHashMap<(BufferId, Index), ValueId>,
    /// The program's buffers that the stage stores to.
    written: FxHashSet<BufferId>,
    /// The program's buffers that the stage loads from.
    read: FxHashSet<BufferId>,
    /// Truth values that are known.
    truths: FxHashMap<ValueId, bool>,
    /// The current iteration of a digit that is written out.
    fixed: Option<(LoopVar, Index)>,
    /// Whether it is the last of those that are written out.
    is_last_copy: bool,
    /// The states of reductions by member, for the iterations that are written out.
    chains: FxHashMap<(usize, ValueId), Vec<Link>>,
    /// What is known of the last loop's digit.
    range: Option<Known>,
    /// Accesses that go to a transposed copy of the current rectangle.
    transposed: FxHashMap<(BufferId, Index), (BufferId, Index)>,
}

/// A state, and the number of loops around it.
#[derive(Copy, Clone)]
struct Link {
    level: usize,
    state: AccumulatorId,
}

impl StageBuilder<'_, '_> {
    fn assemble(self) -> Vec<Node> {
        let mut inside: Vec<Node> = Vec::new();
        let levels = self.before.into_iter().zip(self.behind).enumerate().rev();
        for (level, (before, behind)) in levels {
            let mut nodes = before;
            if level < self.loops.len() && !inside.is_empty() {
                nodes.push(self.loops[level].around(inside));
            }
            nodes.extend(behind);
            inside = nodes;
        }
        inside
    }

    fn member(&mut self, member: &Member, key: (usize, usize)) -> Result<(), String> {
        let types = self.builder.body_types(member);
        let phases = Phases::of(&member.body);
        let reduced: Vec<bool> = self.loops.iter().map(|l| PhaseGroup::is_reduced(member, l.digit)).collect();
        let partial = self.context.partials.get(&key).cloned();
        // A reduction of a single value is that value.
        let trivial = partial.is_none() && !reduced.contains(&true);
        let checked = member.body.ops.iter().any(|op| matches!(op, Op::Check(..)));
        let mut values: FxHashMap<ValueId, ValueId> = FxHashMap::default();
        let mut states = Vec::new();
        for (v, op) in member.body.iter() {
            if phases.behind[v.0 as usize] && !trivial {
                continue;
            }
            let dtype = types[v.0 as usize];
            let value = match op {
                Op::Reduce { op, value, position } if !trivial => {
                    let shared =
                        partial.as_ref().and_then(|p| p.states.iter().find(|s| s.0 == v)).map(|s| s.1);
                    let chain = match self.chains.get(&(key.1, v)) {
                        Some(chain) => chain.clone(),
                        None => {
                            let chain = self.chain(*op, types[value.0 as usize], &reduced, shared);
                            self.merge_chain(&chain, &reduced);
                            self.chains.insert((key.1, v), chain.clone());
                            chain
                        }
                    };
                    states.push((v, chain.first().map_or(AccumulatorId(0), |l| l.state)));
                    self.accumulate(&chain, values[value], position.map(|p| values[&p]));
                    continue;
                }
                Op::Reduce { value, .. } => values[value],
                Op::ReduceSecond(r) => self.trivial_second(member, *r, &values, dtype),
                _ => self.operation(op, &values, dtype, checked)?,
            };
            values.insert(v, value);
        }
        if partial.is_some() || trivial || !member.body.has_reduction() || !self.is_last_copy {
            return Ok(());
        }
        let first = reduced.iter().position(|r| *r).unwrap_or(0);
        self.finish(member, &values, &states, &reduced, first)
    }

    /// The second result of a reduction over a single value.
    fn trivial_second(
        &mut self,
        member: &Member,
        reduction: ValueId,
        values: &FxHashMap<ValueId, ValueId>,
        dtype: DType,
    ) -> ValueId {
        match member.body.op(reduction) {
            Op::Reduce { position: Some(p), .. } => values[p],
            // No difference from the mean, but NaN for what has none.
            Op::Reduce { value, .. } => {
                self.push(Op::Binary(BinaryOp::Sub, values[value], values[value]), dtype, 0)
            }
            _ => values[&reduction],
        }
    }

    /// Positions of the loops from `level` on that a member's reductions don't run over.
    fn dims(&self, level: usize, reduced: &[bool]) -> Vec<usize> {
        (level..self.loops.len()).filter(|k| !reduced[*k]).collect()
    }

    fn wrap_dims(&self, dims: &[usize], body: Vec<Node>) -> Vec<Node> {
        let loops: Vec<&StageLoop> = dims.iter().map(|k| &self.loops[*k]).collect();
        wrap(&loops, body)
    }

    /// The states of one reduction, outermost first. Without any loop that is reduced only `shared` is left.
    fn chain(
        &mut self,
        op: ReduceOp,
        dtype: DType,
        reduced: &[bool],
        shared: Option<AccumulatorId>,
    ) -> Vec<Link> {
        let depth = self.loops.len();
        let trailing = depth - reduced.iter().rev().take_while(|r| **r).count();
        let first = reduced.iter().position(|r| *r).unwrap_or(depth);
        let mut chain: Vec<Link> = shared.map(|state| Link { level: 0, state }).into_iter().collect();
        for level in first..depth {
            let starts = (level == first && shared.is_none()) || level == trailing;
            if !(starts || (self.loops[level].fresh && reduced[level])) {
                continue;
            }
            let state = if level >= trailing {
                self.builder.register_state(op, dtype)
            } else {
                let (index, len) = self.array_position(&self.dims(level, reduced));
                self.builder.array_state(op, dtype, len, index, MemoryPlace::Thread)
            };
            let init = self.wrap_dims(&self.dims(level, reduced), vec![Node::Init(state)]);
            self.before[level].extend(init);
            chain.push(Link { level, state });
        }
        chain
    }

    fn array_position(&self, dims: &[usize]) -> (Index, Size) {
        let mut index = Index::constant(Size::ZERO);
        let mut count = Size::ONE;
        for k in dims.iter().rev() {
            let l = &self.loops[*k];
            let blocks_inside = |b: &(LoopVar, i64)| dims.iter().any(|k| self.loops[*k].var == b.0);
            let (origin, extent) = match l.block {
                _ if l.counts_blocks() => continue,
                Some(b) if !blocks_inside(&b) => (Index::of_loop(b.0), Size::from(b.1)),
                _ => (l.origin.clone(), l.extent),
            };
            index = index.plus(&Index::of_loop(l.digit).plus(&origin.times(Size::from(-1))).times(count));
            count *= extent;
        }
        (index, count)
    }

    fn accumulate(&mut self, chain: &[Link], value: ValueId, position: Option<ValueId>) {
        let Some(last) = chain.last() else { return };
        self.before[self.loops.len()].push(Node::Accumulate { into: last.state, value, position });
    }

    /// Combines each state with the one around it, behind the loops that it is for.
    fn merge_chain(&mut self, chain: &[Link], reduced: &[bool]) {
        for pair in chain.windows(2) {
            let [outer, inner] = pair else { continue };
            let merge = vec![Node::Merge { into: outer.state, from: inner.state }];
            let merge = self.wrap_dims(&self.dims(inner.level, reduced), merge);
            self.behind[inner.level].extend(merge);
        }
    }

    /// What is behind the reductions, at the loops around the first one that they run over.
    fn finish(
        &mut self,
        member: &Member,
        values: &FxHashMap<ValueId, ValueId>,
        states: &[(ValueId, AccumulatorId)],
        reduced: &[bool],
        first: usize,
    ) -> Result<(), String> {
        // What was loaded from a buffer that the stage writes may be out of date there.
        let is_fresh = |v: &ValueId| !self.reads_written(member, *v);
        let known = values
            .iter()
            .filter(|(v, value)| self.levels[*value] <= first && is_fresh(v))
            .map(|(v, value)| (*v, *value))
            .collect();
        let nodes = emit_behind(self.builder, self.context, member, states, &known)?;
        let nodes = self.wrap_dims(&self.dims(first, reduced), nodes);
        self.behind[first].extend(nodes);
        Ok(())
    }

    fn reads_written(&self, member: &Member, value: ValueId) -> bool {
        matches!(member.body.op(value), Op::Load { buffer, .. } if self.written.contains(buffer))
    }

    fn operation(
        &mut self,
        op: &Op,
        values: &FxHashMap<ValueId, ValueId>,
        dtype: DType,
        checked: bool,
    ) -> Result<ValueId, String> {
        let mut new =
            translate(self.builder, self.context, op, self.fixed.as_ref(), &|v| values.get(&v).copied())?;
        if let Some(value) = self.fold(&mut new, dtype) {
            return Ok(value);
        }
        self.transpose(op, &mut new);
        let innermost = self.loops.len();
        match (op, &new) {
            (Op::Load { buffer, .. }, Op::Load { buffer: slot, index, guard }) => {
                if let (None, Some(value)) = (guard, self.stored.get(&(*slot, index.clone()))) {
                    return Ok(*value);
                }
                // A checked index must not be used before its check.
                let stays = self.written.contains(buffer) || (checked && index.is_indirect());
                let version = self.versions.get(slot).copied().unwrap_or(0);
                let lowest = if stays { innermost } else { self.behind_empty_loops() };
                Ok(self.push_once(new, version, dtype, lowest))
            }
            (_, Op::Store { .. }) => Ok(self.store(new, dtype)),
            (_, Op::Check(_, failure)) => {
                self.builder.add_check(failure);
                Ok(self.push(new, dtype, self.behind_empty_loops()))
            }
            _ => Ok(self.push_once(new, 0, dtype, 0)),
        }
    }

    /// The number of loops inside of which operations run only when the program says so: what may fail, or reads what
    /// may not be there, must not be moved in front of a loop that may run over nothing.
    fn behind_empty_loops(&self) -> usize {
        self.loops.iter().rposition(StageLoop::may_be_empty).map_or(0, |k| k + 1)
    }

    /// Uses what is known of truth values: returns the value where it exists already, and otherwise may
    /// simplify the operation.
    fn fold(&mut self, op: &mut Op, dtype: DType) -> Option<ValueId> {
        let known = |v: &ValueId| self.truths.get(v).copied();
        match op {
            Op::InRange { index, low, high } => {
                let (smallest, largest) = match index.as_constant() {
                    Some(at) => (at.as_const()?, at.as_const()?),
                    None => self.range?.bounds(index)?,
                };
                let (low, high) = (low.as_const()?, high.as_const()?);
                let truth = low <= smallest && largest < high;
                if !truth && largest >= low && smallest < high {
                    return None;
                }
                *op = Op::Const(Scalar::Bool(truth), DType::Bool);
                let value = self.push_once(op.clone(), 0, dtype, 0);
                self.truths.insert(value, truth);
                Some(value)
            }
            Op::Where(c, a, b) => known(c).map(|truth| if truth { *a } else { *b }),
            Op::Binary(BinaryOp::And, a, b) => match (known(a), known(b)) {
                (Some(false), _) | (_, Some(true)) => Some(*a),
                (_, Some(false)) | (Some(true), _) => Some(*b),
                _ => None,
            },
            Op::Binary(BinaryOp::Or, a, b) => match (known(a), known(b)) {
                (Some(true), _) | (_, Some(false)) => Some(*a),
                (_, Some(true)) | (Some(false), _) => Some(*b),
                _ => None,
            },
            Op::Load { guard, .. } => match guard.and_then(|g| known(&g)) {
                Some(true) => {
                    *guard = None;
                    None
                }
                Some(false) => {
                    *op = Op::Const(scalar::zero(dtype), dtype);
                    Some(self.push_once(op.clone(), 0, dtype, 0))
                }
                None => None,
            },
            Op::Store { guard, .. } if guard.is_some_and(|g| known(&g) == Some(true)) => {
                *guard = None;
                None
            }
            _ => None,
        }
    }

    /// Lets an access that is contiguous along the last loop but one go to a copy that is so along the last.
    fn transpose(&mut self, op: &Op, new: &mut Op) {
        let [.., columns, rows] = self.loops.as_slice() else { return };
        let (is_load, program_buffer) = match op {
            Op::Load { buffer, guard: None, .. } if !self.written.contains(buffer) => (true, *buffer),
            Op::Store { buffer, guard: None, mode: StoreMode::Set, .. } if !self.read.contains(buffer) => {
                (false, *buffer)
            }
            _ => return,
        };
        let (Op::Load { buffer, index, .. } | Op::Store { buffer, index, .. }) = new else { return };
        if !rows.transposes || !is_transposed(index, columns.digit, rows.digit) {
            return;
        }
        let key = (*buffer, index.clone());
        if let Some((copy, at)) = self.transposed.get(&key) {
            (*buffer, *index) = (*copy, at.clone());
            return;
        }
        let in_range = |l: &StageLoop| Index::of_loop(l.var).plus(&l.begin.times(Size::from(-1)));
        let side = |l: &StageLoop| l.block.map_or(l.extent, |b| Size::from(b.1));
        let width = side(rows) + Size::from(PADDING);
        let at = in_range(columns).times(width).plus(&in_range(rows));
        let (rows_range, columns_range) = (rows.range(), columns.range());
        let len = side(columns) * width;
        let source = self.builder.program.buffer(program_buffer);
        let copy = self.builder.add_memory(source.name.clone(), source.dtype, len, MemoryPlace::Thread);
        let outside = self.loops.len() - 2;
        let rectangle = match is_load {
            true => Transpose {
                from: key.clone(),
                to: (copy, at.clone()),
                rows: rows_range,
                columns: columns_range,
            },
            false => Transpose {
                from: (copy, at.clone()),
                to: key.clone(),
                rows: columns_range,
                columns: rows_range,
            },
        };
        let nodes = if is_load { &mut self.before } else { &mut self.behind };
        nodes[outside].push(Node::Transpose(Box::new(rectangle)));
        (*buffer, *index) = (copy, at.clone());
        self.transposed.insert(key, (copy, at));
    }

    fn store(&mut self, op: Op, dtype: DType) -> ValueId {
        let innermost = self.loops.len();
        let Op::Store { buffer, index, value, guard, mode } = &op else {
            return self.push(op, dtype, innermost);
        };
        let (slot, index, value) = (*buffer, index.clone(), *value);
        let replaces = guard.is_none() && *mode == StoreMode::Set;
        self.stored.retain(|(b, _), _| *b != slot);
        *self.versions.entry(slot).or_insert(0) += 1;
        let stored = self.push(op, dtype, innermost);
        if replaces {
            let rounded = match dtype.compute() == dtype {
                true => value,
                false => self.push_once(Op::Cast(value, dtype), 0, dtype, 0),
            };
            self.stored.insert((slot, index), rounded);
        }
        stored
    }

    fn push_once(&mut self, op: Op, version: u32, dtype: DType, lowest: usize) -> ValueId {
        if let Some(value) = self.known.get(&(op.clone(), version)) {
            return *value;
        }
        let value = self.push(op.clone(), dtype, lowest);
        self.known.insert((op, version), value);
        value
    }

    /// Appends an operation inside of the loops that it depends on, and of `lowest` loops at least.
    fn push(&mut self, op: Op, dtype: DType, lowest: usize) -> ValueId {
        let level = lowest.max(self.level_of(&op));
        let value = self.builder.new_value(dtype);
        self.levels.insert(value, level);
        self.before[level].push(Node::Op(value, op));
        value
    }

    fn level_of(&self, op: &Op) -> usize {
        let mut level = match op {
            Op::Load { index, .. } | Op::Store { index, .. } | Op::IndexValue(index) => {
                self.level_of_index(index)
            }
            Op::InRange { index, .. } => self.level_of_index(index),
            _ => 0,
        };
        op.for_each_operand(&mut |v| level = level.max(self.levels.get(&v).copied().unwrap_or(0)));
        level
    }

    fn level_of_index(&self, index: &Index) -> usize {
        let of_atom = |atom: &IndexAtom| match atom {
            IndexAtom::Loop(v) => self.loops.iter().rposition(|l| l.var == *v).map_or(0, |k| k + 1),
            IndexAtom::Value(_) => 0,
            IndexAtom::FloorDiv(d) | IndexAtom::Mod(d) => self.level_of_index(&d.index),
        };
        index.terms.iter().map(|t| of_atom(&t.0)).max().unwrap_or(0)
    }
}
