//! Builds the loop tree of a group: units from outer digits, tiles of the digit that is vectorised, stages
//! inside, and for reductions over outer digits partial results that a phase of their own combines.

use std::sync::Arc;

use loafc_fuse::schedule::{Group, Member, Place};
use loafc_ir::dtype::DType;
use loafc_ir::index::{Index, IndexAtom, LoopVar};
use loafc_ir::nest::{BufferId, Failure, NestProgram, Op, ReduceOp, UnaryOp, ValueId};
use loafc_ir::size::{Size, SymbolValues};
use rustc_hash::FxHashMap;
use smallvec::{SmallVec, smallvec};

use super::limits::Limits;
use super::partition::{Digit, PhaseGroup, PhaseStage, partition};
use super::stage::{StageLoop, build_stage, emit_behind, wrap};
use super::{Accumulator, AccumulatorId, Home, Kernel, Loop, Mapping, Memory, MemoryPlace, Node, Phase};
use crate::kernel::Access;
use crate::tiling::{self, VectorDigit};

/// Iterations of a digit that are written out at most, and operations of bodies for which that is done.
const UNROLLED_EXTENT: i64 = 4;
const UNROLLED_OPS: usize = 64;

/// A kernel's tree and the program's buffer for each of its parameters, in the order of
/// [`MemoryPlace::Param`] entries in [`Kernel::memory`].
#[derive(Clone, Debug)]
pub struct Built {
    /// The tree.
    pub kernel: Kernel,
    /// The buffers.
    pub buffers: Vec<BufferId>,
}

/// Builds the tree of a group. Fails with what is wrong where the group breaks the schedule's contract.
pub fn build(group: &Group, program: &NestProgram, limits: &Limits) -> Result<Built, String> {
    check_references(group, program)?;
    let mut builder = Builder::new(group, program, limits);
    let bytes = |op: &Op| item_bytes(program, op);
    let phases = partition(group, limits, &bytes, &program.hints);
    builder.split = phases.len() > 1;
    for phase in &phases {
        builder.phase(phase, &bytes)?;
    }
    let unit = builder.fresh_var();
    let (mut kernel, buffers) = builder.finish();
    super::tabulate::tabulate(&mut kernel, unit);
    let (kernel, buffers) = super::cleanup::cleanup(kernel, buffers);
    super::verify::verify(&kernel)?;
    Ok(Built { kernel, buffers })
}

/// Bodies name only values before them and buffers of the group; the rest of the tree's rules is checked on
/// the finished tree.
fn check_references(group: &Group, program: &NestProgram) -> Result<(), String> {
    for member in group.stages.iter().flat_map(|s| &s.members) {
        for (v, op) in member.body.iter() {
            let mut early = true;
            op.for_each_operand(&mut |o| early &= o < v);
            if !early {
                return Err(format!("member `{}`: {v} uses a value that is not before it", member.name));
            }
            if let Op::ReduceSecond(r) = op
                && !matches!(member.body.op(*r), Op::Reduce { op, .. } if op.has_second())
            {
                return Err(format!(
                    "member `{}`: {v} is the second result of {r}, which has one",
                    member.name
                ));
            }
            let (Op::Load { buffer, .. } | Op::Store { buffer, .. }) = op else { continue };
            let known = group.buffers.iter().any(|b| b.buffer == *buffer);
            if !known || buffer.0 as usize >= program.buffers.len() {
                return Err(format!("member `{}`: {buffer} is not among the group's buffers", member.name));
            }
        }
    }
    Ok(())
}

/// What of a kernel is built so far.
pub(super) struct Builder<'a> {
    pub(super) group: &'a Group,
    pub(super) program: &'a NestProgram,
    limits: &'a Limits,
    memory: Vec<Memory>,
    /// The program's buffer behind each memory that has one.
    origins: Vec<Option<BufferId>>,
    slots: FxHashMap<BufferId, BufferId>,
    pub(super) accumulators: Vec<Accumulator>,
    pub(super) types: Vec<DType>,
    failures: Vec<Failure>,
    phases: Vec<Phase>,
    next_var: u16,
    /// Whether there are several phases, so that what is local to an outer iteration must outlive one.
    split: bool,
}

/// The digit that vector loops run along, cut into tiles.
#[derive(Clone, Debug)]
pub(super) struct Tile {
    digit: Digit,
    /// Iterations in a full tile.
    pub(super) size: i64,
    /// First iteration of the current tile.
    begin: Index,
    /// The variable that counts tiles; `None` where one tile is the whole digit.
    counter: Option<LoopVar>,
}

/// What all stages of a phase share.
pub(super) struct PhaseContext {
    /// Outer digits that stages run over innermost, tile by tile.
    pub(super) tiles: Vec<Tile>,
    /// Whether the last tile is what vector loops run along.
    has_vector_tile: bool,
    /// For each stage the inner digit to vectorise.
    vector: Vec<Option<LoopVar>>,
    /// An outer digit whose iterations are written out one after the other.
    pub(super) unrolled: Option<Digit>,
    /// Part of an inner digit that belongs to this unit.
    chunk: Option<(LoopVar, Index, Size)>,
    /// Partial results of members that reduce over what is split into units, by stage and member.
    pub(super) partials: FxHashMap<(usize, usize), Partial>,
}

/// Partial results of one member: states in shared memory for each part and each element.
#[derive(Clone, Debug)]
pub(super) struct Partial {
    /// For each reduction of the body its state in the current unit.
    pub(super) states: Vec<(ValueId, AccumulatorId)>,
    /// Digits that the states are told apart by.
    dims: Vec<Digit>,
    /// Number of states in one part.
    len: Size,
    /// Number of parts.
    parts: Size,
}

/// A variable around the stages.
struct OuterLoop {
    var: LoopVar,
    /// The digit that it counts, or counts tiles of.
    digit: LoopVar,
    extent: Size,
    role: Role,
}

#[derive(Clone, PartialEq)]
enum Role {
    /// Told apart by units.
    Parallel,
    /// Runs inside a unit.
    Serial,
    /// Runs inside a unit over the part of this number, which units tell apart.
    Chunked { part: LoopVar, size: Size, parts: Size },
}

impl<'a> Builder<'a> {
    fn new(group: &'a Group, program: &'a NestProgram, limits: &'a Limits) -> Self {
        let digits = group.outer.len() + group.stages.iter().map(|s| s.inner.len()).max().unwrap_or(0);
        Builder {
            group,
            program,
            limits,
            memory: Vec::new(),
            origins: Vec::new(),
            slots: FxHashMap::default(),
            accumulators: Vec::new(),
            types: Vec::new(),
            failures: Vec::new(),
            phases: Vec::new(),
            next_var: digits as u16,
            split: false,
        }
    }

    fn finish(self) -> (Kernel, Vec<BufferId>) {
        let kernel = Kernel {
            name: self.group.name.clone(),
            memory: self.memory,
            accumulators: self.accumulators,
            phases: self.phases,
            failures: self.failures,
            types: self.types,
        };
        (kernel, self.origins.into_iter().flatten().collect())
    }

    pub(super) fn hints(&self) -> &'a SymbolValues {
        &self.program.hints
    }

    pub(super) fn fresh_var(&mut self) -> LoopVar {
        self.next_var += 1;
        LoopVar(self.next_var - 1)
    }

    pub(super) fn new_value(&mut self, dtype: DType) -> ValueId {
        self.types.push(dtype);
        ValueId(self.types.len() as u32 - 1)
    }

    pub(super) fn add_check(&mut self, failure: &Failure) {
        if !self.failures.contains(failure) {
            self.failures.push(failure.clone());
        }
    }

    pub(super) fn add_memory(
        &mut self,
        name: Arc<str>,
        dtype: DType,
        len: Size,
        place: MemoryPlace,
    ) -> BufferId {
        self.memory.push(Memory { name, dtype, len, place });
        self.origins.push(None);
        BufferId(self.memory.len() as u32 - 1)
    }

    /// A state in registers.
    pub(super) fn register_state(&mut self, op: ReduceOp, dtype: DType) -> AccumulatorId {
        self.accumulators.push(Accumulator { op, dtype, home: Home::Registers });
        AccumulatorId(self.accumulators.len() as u32 - 1)
    }

    /// States in arrays of `len` elements at `index`.
    pub(super) fn array_state(
        &mut self,
        op: ReduceOp,
        dtype: DType,
        len: Size,
        index: Index,
        place: MemoryPlace,
    ) -> AccumulatorId {
        let mut state = Accumulator { op, dtype, home: Home::Registers };
        let memory = state
            .components()
            .into_iter()
            .map(|c| self.add_memory(format!("{op:?}").to_lowercase().into(), c, len, place))
            .collect();
        state.home = Home::Array { memory, index };
        self.accumulators.push(state);
        AccumulatorId(self.accumulators.len() as u32 - 1)
    }

    /// Where an access of a body goes: the memory, and the index in it.
    pub(super) fn locate(
        &mut self,
        buffer: BufferId,
        index: Index,
        context: &PhaseContext,
    ) -> (BufferId, Index) {
        let used = self.group.buffers.iter().find(|b| b.buffer == buffer);
        let Some((used, Place::Local(len))) = used.map(|b| (b, &b.place)) else {
            let access = match used {
                Some(b) if b.read && b.written => Access::ReadWrite,
                Some(b) if b.written => Access::Write,
                _ => Access::Read,
            };
            let len = self.program.buffer(buffer).len;
            return (self.slot(buffer, len, MemoryPlace::Param(access)), index);
        };
        if self.split {
            let outer: Vec<Digit> = outer_digits(self.group);
            let (position, count) = flatten(&outer);
            let slot = self.slot(used.buffer, *len * count, MemoryPlace::Shared);
            return (slot, index.plus(&position.times(*len)));
        }
        let (mut at, mut count) = (Index::constant(Size::ZERO), Size::ONE);
        for tile in context.tiles.iter().rev() {
            at = at.plus(&tile.position().times(count));
            count *= Size::from(tile.size);
        }
        let slot = self.slot(buffer, *len * count, MemoryPlace::Thread);
        (slot, index.times(count).plus(&at))
    }

    fn slot(&mut self, buffer: BufferId, len: Size, place: MemoryPlace) -> BufferId {
        if let Some(slot) = self.slots.get(&buffer) {
            return *slot;
        }
        let source = self.program.buffer(buffer);
        let slot = self.add_memory(source.name.clone(), source.dtype, len, place);
        if matches!(place, MemoryPlace::Param(_)) {
            self.origins[slot.0 as usize] = Some(buffer);
        }
        self.slots.insert(buffer, slot);
        slot
    }

    /// A digit of a few iterations that is written out: between lanes it would leave most of them idle, and
    /// around them it would hide which ranges an iteration lies in.
    fn unrolled_digit(&self, phase: &PhaseGroup<'_>) -> Option<Digit> {
        let [stage] = phase.stages.as_slice() else { return None };
        let ops: usize = stage.members.iter().map(|m| m.body.ops.len()).sum();
        // Rows that outlive their phase are told apart by all outer digits.
        if self.split || ops > UNROLLED_OPS || stage.members.iter().any(|m| m.body.has_reduction()) {
            return None;
        }
        let is_short = |d: &&Digit| d.extent.as_const().is_some_and(|e| (2..=UNROLLED_EXTENT).contains(&e));
        let short = phase.outer.iter().rev().find(is_short).filter(|d| !phase.serial.contains(&d.var))?;
        let others = phase.outer.iter().filter(|d| d.var != short.var && !phase.serial.contains(&d.var));
        let longest = others.map(|d| d.extent.hint(self.hints())).max()?;
        (longest >= self.limits.smallest_tile).then_some(*short)
    }

    fn phase(&mut self, phase: &PhaseGroup<'a>, bytes: &dyn Fn(&Op) -> f64) -> Result<(), String> {
        let unrolled = self.unrolled_digit(phase);
        let mut rest = phase.clone();
        rest.outer.retain(|d| Some(*d) != unrolled);
        let phase = &rest;
        let choice = tiling::choose(phase, bytes, self.hints());
        let second = self.second_tile(phase, &choice, bytes);
        let (tile, vector) = match choice {
            VectorDigit::Outer(var) => {
                (self.tile(phase, var, second.is_some()), vec![None; phase.stages.len()])
            }
            VectorDigit::Inner(vector) => (None, vector),
        };
        let has_vector_tile = tile.is_some();
        let tiles: Vec<Tile> = second.into_iter().chain(tile).collect();
        let outers = self.outer_loops(phase, &tiles);
        let chunk = phase.chunk.map(|digit| self.inner_chunk(phase, digit, &outers));
        let mut context = PhaseContext {
            tiles,
            has_vector_tile,
            vector,
            unrolled,
            chunk: chunk.as_ref().map(|c| (c.digit, Index::of_loop(c.part), c.size)),
            partials: FxHashMap::default(),
        };
        let (part, parts) = part_number(&outers, chunk.as_ref());
        let partial_members = self.partials(phase, &mut context, &part, parts);

        let mut body = Vec::new();
        let mut units: Vec<(LoopVar, Size)> = Vec::new();
        for outer in &outers {
            match &outer.role {
                Role::Parallel => units.push((outer.var, outer.extent)),
                Role::Chunked { part, parts, .. } => units.push((*part, *parts)),
                Role::Serial => {}
            }
        }
        units.extend(chunk.as_ref().map(|c| (c.part, c.parts)));
        let unit = self.fresh_var();
        let count = decode_unit(unit, &units, &mut body);
        for key in &partial_members {
            self.init_partial(&context, key, &outers, &mut body);
        }
        let mut inside = Vec::new();
        for (k, stage) in phase.stages.iter().enumerate() {
            let mut loops = self.stage_loops(&context, stage, k);
            let rows = self.rows_at_once(stage, &mut loops);
            inside.extend(build_stage(self, &context, stage, k, (loops, rows))?);
        }
        body.extend(serial_loops(&outers, inside));
        let work_per_unit = self.work(phase, &context, &outers, bytes);
        self.phases.push(Phase { units: count, unit, body, work_per_unit });
        for (stage, member) in partial_members {
            let partial = context.partials[&(stage, member)].clone();
            self.combine(phase.stages[stage].members[member], &partial)?;
        }
        Ok(())
    }

    /// An outer digit along which accesses are contiguous that the vector digit makes jump, cut into tiles.
    fn second_tile(
        &mut self,
        phase: &PhaseGroup<'_>,
        choice: &VectorDigit,
        bytes: &dyn Fn(&Op) -> f64,
    ) -> Option<Tile> {
        let members = || phase.stages.iter().flat_map(|s| &s.members);
        let movable = |d: &&Digit| {
            !phase.serial.contains(&d.var)
                && !members().any(|m| PhaseGroup::is_reduced(m, d.var))
                && *choice != VectorDigit::Outer(d.var)
                && d.extent.hint(self.hints()) >= self.limits.fewest_columns
        };
        let (digit, items) = phase
            .outer
            .iter()
            .filter(movable)
            .map(|d| (*d, tiling::transposed_items(phase, choice, d.var, bytes)))
            .filter(|(_, items)| !items.is_empty())
            .max_by(|a, b| a.1.iter().sum::<f64>().total_cmp(&b.1.iter().sum()))?;
        if self.bytes_per_lane(phase).saturating_mul(self.limits.transposed_columns) > self.limits.tile_bytes
        {
            return None;
        }
        let mut size = run_length(self.limits.transposed_columns, items.into_iter());
        let units = |size: i64| {
            let extent = |d: &Digit| d.extent.hint(self.hints()).max(1);
            let outer = phase.outer.iter().filter(|d| !phase.serial.contains(&d.var));
            outer.map(|d| if d.var == digit.var { extent(d) / size } else { extent(d) }).product::<i64>()
        };
        while size > self.limits.fewest_columns.max(16) && units(size) < self.limits.enough_units {
            size /= 2;
        }
        let whole = digit.extent.as_const().filter(|d| *d <= size);
        Some(self.tile_of(digit, whole.unwrap_or(size), whole.is_some()))
    }

    fn tile_of(&mut self, digit: Digit, size: i64, whole: bool) -> Tile {
        let counter = (!whole).then(|| self.fresh_var());
        let begin = match counter {
            Some(c) => Index::of_loop(c).times(Size::from(size)),
            None => Index::constant(Size::ZERO),
        };
        Tile { digit, size, begin, counter }
    }

    /// How to cut an outer digit into tiles; `narrow` where another one is cut as well.
    fn tile(&mut self, phase: &PhaseGroup<'_>, var: LoopVar, narrow: bool) -> Option<Tile> {
        let digit = *phase.outer.iter().find(|d| d.var == var)?;
        let hints = self.hints();
        let extent = digit.extent.hint(hints).max(1);
        let others: i64 = phase
            .outer
            .iter()
            .filter(|d| d.var != var && !phase.serial.contains(&d.var))
            .map(|d| d.extent.hint(hints).max(1))
            .fold(1, i64::saturating_mul);
        if let Some(size) = phase.column_tile(self.limits).filter(|_| phase.chunk.is_some() && !narrow) {
            return Some(self.even_tile(digit, size));
        }
        let kept = self.bytes_per_lane(phase);
        let kept = if narrow { kept.saturating_mul(self.limits.transposed_columns) } else { kept };
        let (mut size, smallest) = match kept {
            // What runs in order inside of a unit makes each tile long enough.
            0 if narrow || !phase.serial.is_empty() => (self.limits.state_tile, self.limits.smallest_tile),
            0 => (self.limits.pointwise_tile, self.limits.pointwise_tile / 4),
            _ => {
                // Long rows leave the cache whatever the tile; a cache line of them is then the least.
                let room = 16 * self.limits.tile_bytes / kept;
                let smallest = self.limits.smallest_tile.min(room).max(16);
                let size = self.limits.state_tile.min(self.limits.tile_bytes / kept).max(smallest);
                let size = phase.column_tile(self.limits).filter(|_| !narrow).unwrap_or(size);
                (size / 16 * 16, smallest)
            }
        };
        while size / 2 >= smallest && (extent + size - 1) / size * others < self.limits.enough_units {
            size /= 2;
        }
        Some(self.even_tile(digit, size))
    }

    /// Tiles of nearly one size, at most the one given: the last one is not a rest of a few elements.
    fn even_tile(&mut self, digit: Digit, mut size: i64) -> Tile {
        let whole = digit.extent.as_const().is_some_and(|d| d <= size);
        if let Some(d) = digit.extent.as_const() {
            let tiles = (d + size - 1) / size;
            size = if whole { d.max(1) } else { ((d + tiles - 1) / tiles + 15) / 16 * 16 };
        }
        self.tile_of(digit, size, whole)
    }

    /// Bytes that are kept for each iteration of a tile: rows of local buffers, and states.
    fn bytes_per_lane(&self, phase: &PhaseGroup<'_>) -> i64 {
        let hints = self.hints();
        let rows: i64 = match self.split {
            true => 0,
            false => self
                .group
                .buffers
                .iter()
                .filter_map(|b| match &b.place {
                    Place::Local(len) => Some(
                        len.hint(hints)
                            .max(1)
                            .saturating_mul(self.program.buffer(b.buffer).dtype.bytes() as i64),
                    ),
                    Place::Memory => None,
                })
                .fold(0, i64::saturating_add),
        };
        let states = phase.stages.iter().flat_map(|s| &s.members).flat_map(|m| &m.body.ops);
        rows.saturating_add(8 * states.filter(|op| matches!(op, Op::Reduce { .. })).count() as i64)
    }

    fn outer_loops(&mut self, phase: &PhaseGroup<'_>, tiles: &[Tile]) -> Vec<OuterLoop> {
        let hints = self.hints();
        let members = || phase.stages.iter().flat_map(|s| &s.members);
        let is_reduced = |var| members().any(|m| PhaseGroup::is_reduced(m, var));
        let mut outers = Vec::new();
        for digit in &phase.outer {
            let (var, extent) = match tiles.iter().find(|t| t.digit.var == digit.var) {
                Some(Tile { counter: None, .. }) => continue,
                Some(Tile { counter: Some(c), size, .. }) => (*c, digit.extent.ceil_div(Size::from(*size))),
                None => (digit.var, digit.extent),
            };
            let in_order = is_reduced(digit.var) || phase.serial.contains(&digit.var);
            let role = if in_order { Role::Serial } else { Role::Parallel };
            outers.push(OuterLoop { var, digit: digit.var, extent, role });
        }
        let longest = outers
            .iter_mut()
            .filter(|o| is_reduced(o.digit) && !phase.serial.contains(&o.digit))
            .max_by_key(|o| o.extent.hint(hints));
        if let Some(longest) = longest {
            let (size, parts) =
                chunk_size(longest.extent, self.limits.chunk_iterations, 1, self.limits, hints);
            longest.role = Role::Chunked { part: self.fresh_var(), size, parts };
        }
        outers
    }

    fn inner_chunk(&mut self, phase: &PhaseGroup<'_>, digit: LoopVar, outers: &[OuterLoop]) -> InnerChunk {
        let inner = phase.stages.iter().flat_map(|s| &s.inner);
        let extent = inner.filter(|d| d.var == digit).map(|d| d.extent).next().unwrap_or(Size::ONE);
        if phase.column_tile(self.limits).is_some() && !phase.outer.is_empty() {
            // Each part has a row of states to combine: no more parts than the threads need.
            let units: i64 = outers.iter().map(|o| o.extent.hint(self.hints()).max(1)).product();
            let chunks = (2 * self.limits.enough_units / units.max(1)).clamp(2, self.limits.chunks);
            let limits = Limits { chunks, ..self.limits.clone() };
            // Rows that are not cut have as many states as elements: few of them would leave as much to combine.
            let fewest = self.limits.chunk_iterations * if outers.is_empty() { 4 } else { 1 };
            let (size, parts) = chunk_size(extent, fewest, self.limits.rows_at_once, &limits, self.hints());
            return InnerChunk { digit, part: self.fresh_var(), size, parts };
        }
        let others = phase.stages.iter().flat_map(|s| &s.inner).filter(|d| d.var != digit);
        let row: i64 = others.map(|d| d.extent.hint(self.hints()).max(1)).fold(1, i64::saturating_mul);
        let multiple = if row >= self.limits.inner_chunk { 1 } else { self.limits.inner_chunk / row };
        let (size, parts) = chunk_size(extent, 4 * multiple, multiple, self.limits, self.hints());
        InnerChunk { digit, part: self.fresh_var(), size, parts }
    }

    /// Makes the shared states of all members that reduce over what units tell apart.
    fn partials(
        &mut self,
        phase: &PhaseGroup<'a>,
        context: &mut PhaseContext,
        part: &Index,
        parts: Size,
    ) -> Vec<(usize, usize)> {
        let mut keys = Vec::new();
        for (s, stage) in phase.stages.iter().enumerate() {
            for (m, member) in stage.members.iter().enumerate() {
                let over_outer = phase.outer.iter().any(|d| PhaseGroup::is_reduced(member, d.var));
                let over_part = context.chunk.is_some() && member.body.has_reduction();
                if !over_outer && !over_part {
                    continue;
                }
                let digits = phase.outer.iter().chain(&stage.inner);
                let dims: Vec<Digit> =
                    digits.filter(|d| !PhaseGroup::is_reduced(member, d.var)).copied().collect();
                let (position, len) = flatten(&dims);
                let index = part.times(len).plus(&position);
                let types = self.body_types(member);
                let mut states = Vec::new();
                for (v, op) in member.body.iter() {
                    if let Op::Reduce { op, value, .. } = op {
                        let dtype = types[value.0 as usize];
                        let place = MemoryPlace::Shared;
                        let state = self.array_state(*op, dtype, len * parts, index.clone(), place);
                        states.push((v, state));
                    }
                }
                context.partials.insert((s, m), Partial { states, dims, len, parts });
                keys.push((s, m));
            }
        }
        keys
    }

    pub(super) fn body_types(&self, member: &Member) -> Vec<DType> {
        member.body.dtypes(&|b| self.program.buffer(b).dtype)
    }

    /// Sets the states that a unit will combine into to those of no iterations.
    fn init_partial(
        &mut self,
        context: &PhaseContext,
        key: &(usize, usize),
        outers: &[OuterLoop],
        body: &mut Vec<Node>,
    ) {
        let partial = &context.partials[key];
        let mut loops = Vec::new();
        for digit in &partial.dims {
            let tile = context.tiles.iter().find(|t| t.digit.var == digit.var);
            let outer = outers.iter().find(|o| o.digit == digit.var);
            let fixed = outer.is_some_and(|o| o.role == Role::Parallel);
            match (tile, fixed) {
                (None, true) => {}
                (Some(tile), true) => loops.push(tile.stage_loop()),
                _ => loops.push(StageLoop::over(*digit)),
            }
        }
        if let Some(last) = loops.last_mut() {
            last.mapping = Mapping::Vector;
        }
        let all: Vec<&StageLoop> = loops.iter().collect();
        let init = partial.states.iter().map(|(_, state)| Node::Init(*state)).collect();
        body.extend(wrap(&all, init));
    }

    /// The loops of a stage, outermost first, the vectorised one last.
    fn stage_loops(
        &mut self,
        context: &PhaseContext,
        stage: &PhaseStage<'_>,
        number: usize,
    ) -> Vec<StageLoop> {
        let mut loops: Vec<StageLoop> = Vec::new();
        let vector = context.vector[number];
        let mut last = None;
        for digit in &stage.inner {
            let mut one = StageLoop::over(*digit);
            if let Some((_, part, size)) = context.chunk.as_ref().filter(|c| c.0 == digit.var) {
                one.restrict(part.times(*size), *size);
            }
            if Some(digit.var) == vector {
                last = Some(one);
            } else {
                loops.push(one);
            }
        }
        loops.extend(context.tiles.iter().map(Tile::stage_loop));
        loops.extend(last);
        if let (Some(last), true) = (loops.last_mut(), vector.is_some() || context.has_vector_tile) {
            last.mapping = Mapping::Vector;
        }
        let loops = self.transposed_loops(stage, loops);
        self.split_blocks(stage, loops)
    }

    /// Brings a loop along which accesses are contiguous before the vectorised one where that makes them jump,
    /// and cuts both into blocks whose transposed copies stay in the cache.
    fn transposed_loops(&mut self, stage: &PhaseStage<'_>, mut loops: Vec<StageLoop>) -> Vec<StageLoop> {
        let Some(rows) = loops.last().filter(|l| l.mapping == Mapping::Vector).cloned() else { return loops };
        let items = |columns: LoopVar| -> Vec<f64> {
            let members = stage.members.iter();
            let ops = members.flat_map(|m| tiling::transposed_accesses(m, columns, rows.digit));
            ops.map(|op| item_bytes(self.program, op)).collect()
        };
        let is_long = |l: &&StageLoop| l.extent.hint(self.hints()) >= self.limits.fewest_columns;
        let candidates = loops[..loops.len() - 1].iter().filter(is_long).map(|l| l.digit);
        let best = candidates.map(|d| (items(d), d)).max_by_key(|c| c.0.len());
        let Some((items, columns)) = best.filter(|c| !c.0.is_empty()) else { return loops };
        let Some(at) = loops.iter().position(|l| l.digit == columns) else { return loops };
        loops.pop();
        let columns = loops.remove(at);
        let mut inside = Vec::new();
        for (one, size) in [(columns, self.limits.transposed_columns), (rows, self.limits.transposed_rows)] {
            let size = run_length(size, items.iter().copied());
            if one.extent.as_const().is_some_and(|e| e <= size) {
                inside.push(one);
                continue;
            }
            let (blocks, one) = one.blocked(self.fresh_var(), size);
            loops.push(StageLoop { mapping: Mapping::Tile, ..blocks });
            inside.push(one);
        }
        loops.extend(inside);
        if let Some(last) = loops.last_mut() {
            last.transposes = true;
        }
        loops
    }

    /// Cuts long loops that floating-point sums run over into blocks.
    fn split_blocks(&mut self, stage: &PhaseStage<'_>, loops: Vec<StageLoop>) -> Vec<StageLoop> {
        let reducing: Vec<&&Member> = stage.members.iter().filter(|m| m.body.has_reduction()).collect();
        let rounds = reducing.iter().any(|m| self.rounds(m));
        let mut out = Vec::new();
        for mut one in loops {
            let common = reducing.iter().all(|m| PhaseGroup::is_reduced(m, one.digit));
            let block =
                if one.mapping == Mapping::Vector { self.limits.vector_block } else { self.limits.block };
            // One and a half blocks are not worth a second loop; an extent known only at run time may be longer
            // than its hint.
            let long = match one.extent.as_const() {
                Some(extent) => extent > block + block / 2,
                None => one.mapping == Mapping::Vector || one.extent.hint(self.hints()) > block / 4,
            };
            if rounds && common && long && one.block.is_none() && one.step == 1 {
                let (blocks, inside) = one.blocked(self.fresh_var(), block);
                out.push(blocks);
                one = StageLoop { fresh: true, ..inside };
            }
            out.push(one);
        }
        out
    }

    /// Lets several iterations of the loop around the vectorised one go into states at once, where these are kept for
    /// each lane. Returns that loop's variable and how many.
    fn rows_at_once(&self, stage: &PhaseStage<'_>, loops: &mut [StageLoop]) -> Option<(LoopVar, i64)> {
        let [.., rows, lanes] = loops else { return None };
        let reduced = |m: &&Member, l: &StageLoop| PhaseGroup::is_reduced(m, l.digit);
        let members = &stage.members;
        let streams = members.iter().all(|m| reduced(m, rows) && !reduced(m, lanes));
        if !streams || lanes.mapping != Mapping::Vector || rows.mapping != Mapping::Serial || lanes.transposes
        {
            return None;
        }
        let ops: usize = members.iter().map(|m| m.body.ops.len()).sum();
        let fits = |count: &i64| ops * *count as usize <= UNROLLED_OPS && rows.divides(*count);
        let halves = std::iter::successors(Some(self.limits.rows_at_once), |n| Some(n / 2));
        let count = halves.take_while(|n| *n > 1).find(fits)?;
        rows.step = count;
        Some((rows.var, count))
    }

    fn rounds(&self, member: &Member) -> bool {
        let types = self.body_types(member);
        member.body.ops.iter().any(|op| match op {
            Op::Reduce { op: ReduceOp::Sum | ReduceOp::Prod, value, .. } => {
                types[value.0 as usize].is_float()
            }
            _ => false,
        })
    }

    /// The phase that combines a member's partial results, part by part in order, and does what the body does
    /// behind its reductions.
    fn combine(&mut self, member: &Member, partial: &Partial) -> Result<(), String> {
        let mut body = Vec::new();
        let mut units: Vec<(LoopVar, Size)> = Vec::new();
        let mut loops = Vec::new();
        let mut context = PhaseContext {
            tiles: Vec::new(),
            has_vector_tile: false,
            vector: Vec::new(),
            unrolled: None,
            chunk: None,
            partials: FxHashMap::default(),
        };
        if let Some((last, others)) = partial.dims.split_last() {
            units.extend(others.iter().map(|d| (d.var, d.extent)));
            let counter = self.fresh_var();
            let size = Size::from(self.limits.state_tile);
            units.push((counter, last.extent.ceil_div(size)));
            let begin = Index::of_loop(counter).times(size);
            let tile = Tile { digit: *last, size: self.limits.state_tile, begin, counter: Some(counter) };
            let mut one = tile.stage_loop();
            one.mapping = Mapping::Vector;
            loops.push(one);
            context.tiles.push(tile);
        }
        let unit = self.fresh_var();
        let count = decode_unit(unit, &units, &mut body);
        let part = self.fresh_var();
        let all: Vec<&StageLoop> = loops.iter().collect();
        let (position, _) = flatten(&partial.dims);
        let (mut init, mut merge, mut finish) = (Vec::new(), Vec::new(), Vec::new());
        for (reduction, shared) in &partial.states {
            let Accumulator { op, dtype, home } = self.accumulators[shared.0 as usize].clone();
            let Home::Array { memory, .. } = home else {
                return Err("partial results must be in memory".to_owned());
            };
            let index = Index::of_loop(part).times(partial.len).plus(&position);
            self.accumulators.push(Accumulator { op, dtype, home: Home::Array { memory, index } });
            let from = AccumulatorId(self.accumulators.len() as u32 - 1);
            let total = match context.tiles.first() {
                Some(tile) => {
                    let (len, index) = (Size::from(tile.size), tile.position());
                    self.array_state(op, dtype, len, index, MemoryPlace::Thread)
                }
                None => self.register_state(op, dtype),
            };
            init.push(Node::Init(total));
            merge.push(Node::Merge { into: total, from });
            finish.push((*reduction, total));
        }
        body.extend(wrap(&all, init));
        body.push(Node::Loop(Box::new(Loop {
            var: part,
            begin: Index::constant(Size::ZERO),
            end: smallvec![Index::constant(partial.parts)],
            step: 1,
            mapping: Mapping::Serial,
            body: wrap(&all, merge),
        })));
        let behind = emit_behind(self, &context, member, &finish, &FxHashMap::default())?;
        body.extend(wrap(&all, behind));
        let lanes = if loops.is_empty() { Size::ONE } else { Size::from(self.limits.state_tile) };
        let work_per_unit = lanes * (partial.parts + Size::from(4)) * Size::from(8 * partial.states.len());
        self.phases.push(Phase { units: count, unit, body, work_per_unit });
        Ok(())
    }

    /// Rough bytes and operations of one unit.
    fn work(
        &self,
        phase: &PhaseGroup<'_>,
        context: &PhaseContext,
        outers: &[OuterLoop],
        bytes: &dyn Fn(&Op) -> f64,
    ) -> Size {
        let mut around = Size::ONE;
        for outer in outers {
            match &outer.role {
                Role::Parallel => {}
                Role::Serial => around *= outer.extent,
                Role::Chunked { size, .. } => around *= *size,
            }
        }
        for tile in &context.tiles {
            around *= Size::from(tile.size);
        }
        let mut sum = Size::ZERO;
        for stage in &phase.stages {
            let mut count = around;
            for digit in &stage.inner {
                count *= match &context.chunk {
                    Some((var, _, size)) if *var == digit.var => *size,
                    _ => digit.extent,
                };
            }
            let one: f64 =
                stage.members.iter().flat_map(|m| &m.body.ops).map(|op| bytes(op) + weight(op)).sum();
            let times = context.unrolled.map_or(Size::ONE, |d| d.extent);
            sum += count * times * Size::from(one.ceil() as i64);
        }
        sum
    }
}

struct InnerChunk {
    digit: LoopVar,
    part: LoopVar,
    size: Size,
    parts: Size,
}

impl Tile {
    /// The loop over the current tile.
    fn stage_loop(&self) -> StageLoop {
        let mut one = StageLoop::over(self.digit);
        match self.counter {
            Some(_) => one.restrict(self.begin.clone(), Size::from(self.size)),
            None => one.extent = Size::from(self.size),
        }
        one
    }

    /// Position in the tile.
    fn position(&self) -> Index {
        Index::of_loop(self.digit.var).plus(&self.begin.times(Size::from(-1)))
    }
}

/// Operations of one iteration, in units of simple ones.
fn weight(op: &Op) -> f64 {
    match op {
        Op::Unary(UnaryOp::Neg | UnaryOp::Abs | UnaryOp::Not, _) => 0.5,
        Op::Unary(..) => 8.0,
        Op::Const(..) | Op::SizeValue(_) => 0.0,
        _ => 0.5,
    }
}

/// Bytes of the element that an operation loads or stores; 0 of others.
fn item_bytes(program: &NestProgram, op: &Op) -> f64 {
    match op {
        Op::Load { buffer, .. } | Op::Store { buffer, .. } => program.buffer(*buffer).dtype.bytes() as f64,
        _ => 0.0,
    }
}

/// Iterations of a digit that fill as many cache lines with the smallest of some elements as `words` 4-byte ones do, or
/// half as many.
fn run_length(words: i64, items: impl Iterator<Item = f64>) -> i64 {
    let smallest = items.fold(8.0, f64::min).max(1.0);
    // Twice as many iterations at most: rows far apart share few places in the cache.
    (words as f64 * (4.0 / smallest).min(2.0)).max(1.0) as i64
}

fn outer_digits(group: &Group) -> Vec<Digit> {
    let digit = |(k, extent): (usize, &Size)| Digit { var: LoopVar(k as u16), extent: *extent };
    group.outer.iter().enumerate().map(digit).collect()
}

/// Row-major position in a space of digits, and its size.
fn flatten(digits: &[Digit]) -> (Index, Size) {
    let mut index = Index::constant(Size::ZERO);
    let mut count = Size::ONE;
    for digit in digits.iter().rev() {
        index.add_term(IndexAtom::Loop(digit.var), count);
        count *= digit.extent;
    }
    (index, count)
}

/// Size and number of the parts of a digit: at most `limits.chunks`, none shorter than `fewest`, each but the last a
/// multiple of `multiple`.
fn chunk_size(
    extent: Size,
    fewest: i64,
    multiple: i64,
    limits: &Limits,
    hints: &SymbolValues,
) -> (Size, Size) {
    let size = match extent.as_const() {
        Some(e) => {
            let size = ((e + limits.chunks - 1) / limits.chunks).max(fewest);
            Size::from((size + multiple - 1) / multiple * multiple)
        }
        // The number of parts stays fixed where the extent is known only at run time.
        None => {
            let parts = (extent.hint(hints) / fewest).clamp(1, limits.chunks);
            let size = extent.ceil_div(Size::from(parts)).max(Size::ONE);
            size.ceil_div(Size::from(multiple)) * Size::from(multiple)
        }
    };
    (size, extent.ceil_div(size))
}

/// The number of the part that a unit works on, and how many there are.
fn part_number(outers: &[OuterLoop], chunk: Option<&InnerChunk>) -> (Index, Size) {
    if let Some(chunk) = chunk {
        return (Index::of_loop(chunk.part), chunk.parts);
    }
    for outer in outers {
        if let Role::Chunked { part, parts, .. } = &outer.role {
            return (Index::of_loop(*part), *parts);
        }
    }
    (Index::constant(Size::ZERO), Size::ONE)
}

/// Binds the variables that units tell apart, the last one changing fastest; returns how many units there are.
fn decode_unit(unit: LoopVar, vars: &[(LoopVar, Size)], body: &mut Vec<Node>) -> Size {
    let vars: Vec<&(LoopVar, Size)> = vars
        .iter()
        .filter(|v| {
            !v.1.is(1) || {
                body.push(zero(v.0));
                false
            }
        })
        .collect();
    let mut rest = Index::of_loop(unit);
    let mut count = Size::ONE;
    let no_extents = |_: LoopVar| None;
    for (k, (var, extent)) in vars.iter().rev().enumerate() {
        let outermost = k + 1 == vars.len();
        let value = if outermost { rest.clone() } else { rest.modulo(*extent, &no_extents) };
        body.push(Node::Var(*var, value));
        if !outermost {
            rest = Index::of_loop(unit).floor_div(count * *extent, &no_extents);
        }
        count *= *extent;
    }
    count
}

fn zero(var: LoopVar) -> Node {
    Node::Var(var, Index::constant(Size::ZERO))
}

fn serial_loops(outers: &[OuterLoop], inside: Vec<Node>) -> Vec<Node> {
    let mut nodes = inside;
    for outer in outers.iter().rev() {
        let all = Index::constant(outer.extent);
        let (begin, end): (Index, SmallVec<[Index; 2]>) = match &outer.role {
            Role::Parallel => continue,
            Role::Serial => (Index::constant(Size::ZERO), smallvec![all]),
            Role::Chunked { part, size, .. } => {
                let begin = Index::of_loop(*part).times(*size);
                (begin.clone(), smallvec![begin.shifted(*size), all])
            }
        };
        nodes = vec![Node::Loop(Box::new(Loop {
            var: outer.var,
            begin,
            end,
            step: 1,
            mapping: Mapping::Serial,
            body: nodes,
        }))];
    }
    nodes
}
