//! Cuts a group into phases. A group with many outer iterations is one phase whose units are outer iterations.
//! With few of them, each stage that is long becomes a phase of its own, whose units are parts of its inner
//! space: all threads then work on one row. What is cut depends on sizes only, never on the number of threads.

use loafc_fuse::schedule::{Group, Member, Place};
use loafc_ir::index::{IndexAtom, LoopVar};
use loafc_ir::nest::{Op, ReduceOp, StoreMode};
use loafc_ir::size::{Size, SymbolValues};

use super::limits::Limits;
use crate::tiling::{self, VectorDigit};

/// A digit: the variable that bodies name it by, and its extent.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Digit {
    /// The variable.
    pub var: LoopVar,
    /// The extent.
    pub extent: Size,
}

/// A stage of a phase.
#[derive(Clone, Debug)]
pub struct PhaseStage<'a> {
    /// Digits of its own, outermost first.
    pub inner: Vec<Digit>,
    /// Its members.
    pub members: Vec<&'a Member>,
}

/// Part of a group: what one phase does, and the phases that combine its partial results.
#[derive(Clone, Debug)]
pub struct PhaseGroup<'a> {
    /// Outer digits, outermost first.
    pub outer: Vec<Digit>,
    /// Outer digits whose iterations must run in order: different ones may store to one element.
    pub serial: Vec<LoopVar>,
    /// The stages.
    pub stages: Vec<PhaseStage<'a>>,
    /// An inner digit of the only stage, which all its reductions run over and which is split into units.
    pub chunk: Option<LoopVar>,
}

impl PhaseGroup<'_> {
    /// Iterations of an outer digit in a tile where all that the phase reduces, it reduces along the other direction:
    /// rows then stream by, and the tile's states stay in the cache. `None` where it reduces in another way, or not.
    pub fn column_tile(&self, limits: &Limits) -> Option<i64> {
        let [stage] = self.stages.as_slice() else { return None };
        let reduces_all = |m: &Member| stage.inner.iter().all(|d| Self::is_reduced(m, d.var));
        let sums: Vec<&&Member> = stage.members.iter().filter(|m| m.body.has_reduction()).collect();
        // What maps write needs no room beside the states; it streams by like what is read.
        let streams = !sums.is_empty() && !stage.inner.is_empty() && sums.iter().all(|m| reduces_all(m));
        if !streams || !self.serial.is_empty() || reduces_outer_digit(self) {
            return None;
        }
        let ops = stage.members.iter().flat_map(|m| &m.body.ops);
        let bytes = ops.map(|op| match op {
            Op::Reduce { op: ReduceOp::Welford, .. } => 32,
            Op::Reduce { op: ReduceOp::ArgMax | ReduceOp::ArgMin, .. } => 12,
            Op::Reduce { .. } => 4,
            _ => 0,
        });
        let lanes = limits.column_bytes / bytes.sum::<i64>().max(1);
        Some((lanes / 16 * 16).max(limits.state_tile.min(limits.column_bytes)))
    }

    /// Whether a member's reductions run over a digit.
    pub fn is_reduced(member: &Member, var: LoopVar) -> bool {
        member.body.has_reduction() && member.reduced.get(var.0 as usize).copied().unwrap_or(false)
    }
}

/// The phases of a group, in order.
pub fn partition<'a>(
    group: &'a Group,
    limits: &Limits,
    bytes: &dyn Fn(&Op) -> f64,
    hints: &SymbolValues,
) -> Vec<PhaseGroup<'a>> {
    let whole = whole(group);
    let can_split = whole.serial.is_empty() && !reduces_outer_digit(&whole);
    if !can_split || units(&whole, limits, bytes, hints) >= limits.enough_units {
        return vec![whole];
    }
    let mut phases: Vec<PhaseGroup<'a>> = Vec::new();
    for stage in &whole.stages {
        let phase = split_stage(&whole, stage, limits, hints);
        // Neighbouring short stages stay together: a phase costs all threads a meeting.
        match (phases.last_mut(), &phase) {
            (Some(last), None) if last.chunk.is_none() && last.outer == whole.outer => {
                last.stages.push(stage.clone());
            }
            _ => phases
                .push(phase.unwrap_or_else(|| PhaseGroup { stages: vec![stage.clone()], ..whole.clone() })),
        }
    }
    if phases.iter().all(|p| p.chunk.is_none() && p.outer == whole.outer) {
        return vec![whole];
    }
    phases
}

fn whole(group: &Group) -> PhaseGroup<'_> {
    let digits = |first: usize, extents: &[Size]| -> Vec<Digit> {
        let var = |k: usize| LoopVar((first + k) as u16);
        extents.iter().enumerate().map(|(k, e)| Digit { var: var(k), extent: *e }).collect()
    };
    let stages = group.stages.iter().map(|s| PhaseStage {
        inner: digits(group.outer.len(), &s.inner),
        members: s.members.iter().collect(),
    });
    let outer = digits(0, &group.outer);
    let serial = outer.iter().map(|d| d.var).filter(|v| must_run_in_order(group, *v)).collect();
    PhaseGroup { outer, serial, stages: stages.collect(), chunk: None }
}

/// Whether a store that may hit one element several times does not tell iterations of this digit apart.
fn must_run_in_order(group: &Group, var: LoopVar) -> bool {
    let is_local = |b| group.buffers.iter().any(|g| g.buffer == b && g.place != Place::Memory);
    group.stages.iter().flat_map(|s| &s.members).flat_map(|m| &m.body.ops).any(|op| match op {
        Op::Store { buffer, index, mode, .. } if !is_local(*buffer) => {
            let collides = *mode != StoreMode::Set || index.is_indirect();
            let told_apart = index.terms.iter().any(|t| t.0 == IndexAtom::Loop(var));
            collides && !told_apart
        }
        _ => false,
    })
}

fn reduces_outer_digit(phase: &PhaseGroup<'_>) -> bool {
    let members = || phase.stages.iter().flat_map(|s| &s.members);
    phase.outer.iter().any(|d| members().any(|m| PhaseGroup::is_reduced(m, d.var)))
}

/// Units that the group would have as one phase.
fn units(phase: &PhaseGroup<'_>, limits: &Limits, bytes: &dyn Fn(&Op) -> f64, hints: &SymbolValues) -> i64 {
    let tiled = match tiling::choose(phase, bytes, hints) {
        VectorDigit::Outer(var) => Some(var),
        VectorDigit::Inner(_) => None,
    };
    phase
        .outer
        .iter()
        .map(|d| {
            let extent = d.extent.hint(hints).max(1);
            if Some(d.var) == tiled {
                let size = phase.column_tile(limits).unwrap_or(limits.smallest_tile);
                (extent + size - 1) / size
            } else {
                extent
            }
        })
        .fold(1, i64::saturating_mul)
}

fn product(digits: &[Digit], hints: &SymbolValues) -> i64 {
    digits.iter().map(|d| d.extent.hint(hints).max(1)).fold(1, i64::saturating_mul)
}

/// A phase whose units are parts of the stage; `None` where the stage is short or can't be cut.
fn split_stage<'a>(
    whole: &PhaseGroup<'a>,
    stage: &PhaseStage<'a>,
    limits: &Limits,
    hints: &SymbolValues,
) -> Option<PhaseGroup<'a>> {
    if product(&stage.inner, hints).saturating_mul(product(&whole.outer, hints)) < limits.long {
        return None;
    }
    let reducing = || stage.members.iter().filter(|m| m.body.has_reduction());
    // Digits that no reduction runs over are as good as outer ones.
    let is_free = |d: &Digit| !reducing().any(|m| PhaseGroup::is_reduced(m, d.var));
    let (free, rest): (Vec<Digit>, Vec<Digit>) = stage.inner.iter().partition(|d| is_free(d));
    let mut phase = PhaseGroup {
        outer: whole.outer.iter().chain(&free).copied().collect(),
        serial: Vec::new(),
        stages: vec![PhaseStage { inner: rest.clone(), members: stage.members.clone() }],
        chunk: None,
    };
    let size = phase.column_tile(limits).unwrap_or(limits.smallest_tile);
    let enough_units = product(&phase.outer, hints) / size >= limits.enough_units;
    if rest.is_empty() || enough_units {
        return (!free.is_empty()).then_some(phase);
    }
    let common = rest.iter().filter(|d| reducing().all(|m| PhaseGroup::is_reduced(m, d.var)));
    let longest = common.max_by_key(|d| d.extent.hint(hints));
    phase.chunk = longest.filter(|d| d.extent.hint(hints) >= 2 * limits.enough_units).map(|d| d.var);
    (phase.chunk.is_some() || !free.is_empty()).then_some(phase)
}
