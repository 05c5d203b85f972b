//! What the scheduler gives to code generation: kernels as fused groups, in an order that respects all
//! dependencies, and extern calls between them.

use std::sync::Arc;

use loafc_ir::graph::SourceLine;
use loafc_ir::nest::{Body, BufferId, NestProgram, StepId};
use loafc_ir::size::Size;

/// A scheduled program.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// The program that was scheduled: buffers, extern calls, outputs.
    pub program: NestProgram,
    /// Kernels and extern calls in the order in which they run.
    pub steps: Vec<ScheduledStep>,
}

/// One step of a schedule.
#[derive(Clone, Debug)]
pub enum ScheduledStep {
    /// A fused group: one kernel.
    Kernel(Group),
    /// The extern call at this step of the program.
    Extern(StepId),
}

/// What becomes one kernel: a shared outer space, and stages that each run over an inner space of their own,
/// one after the other, within every iteration of the outer space.
///
/// Digits of the outer space are numbered from 0, those of a stage's inner space go on from there; bodies name
/// them as [`loafc_ir::index::LoopVar`]s. Outer iterations are independent of each other but for members that
/// reduce over an outer digit ([`Member::reduced`]).
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Name for people: the operators in it.
    pub name: Arc<str>,
    /// Extents of the outer digits, outermost first.
    pub outer: Vec<Size>,
    /// What is done in one outer iteration, in order.
    pub stages: Vec<Stage>,
    /// Every buffer that a member reads or writes, in ascending order.
    pub buffers: Vec<GroupBuffer>,
}

/// One pass over an inner space.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
    /// Extents of the inner digits, outermost first; empty for what runs once an outer iteration.
    pub inner: Vec<Size>,
    /// Bodies that share this pass, in order: in each iteration a member sees what the members before it stored
    /// in the same iteration. Reductions' results exist behind the loops that they reduce over.
    pub members: Vec<Member>,
}

/// A loop nest inside a group, rewritten to the group's digits.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// The step of the program that it was.
    pub step: StepId,
    /// Name for people.
    pub name: Arc<str>,
    /// What one iteration does.
    pub body: Body,
    /// For each digit, outer ones first, whether this member's reductions run over it. What comes after a
    /// reduction runs once for each combination of the other digits. An outer digit that is reduced over makes
    /// partial results, one for each part of the outer space, which are combined in a fixed order at the end.
    pub reduced: Vec<bool>,
    /// The user's source lines.
    pub origins: Vec<SourceLine>,
}

/// A buffer in a group.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupBuffer {
    /// Which.
    pub buffer: BufferId,
    /// Whether a member reads it.
    pub read: bool,
    /// Whether a member writes it.
    pub written: bool,
    /// Where it is inside the kernel.
    pub place: Place,
}

/// Where a kernel keeps a buffer.
#[derive(Clone, Debug, PartialEq)]
pub enum Place {
    /// In the program's memory; indices are the program's.
    Memory,
    /// Only inside the kernel, anew in each outer iteration: an array of this many elements, whose indices in
    /// the bodies use inner digits alone. Never larger than what the producing stage writes in one outer
    /// iteration.
    Local(Size),
}

impl Group {
    /// The digits' extents as a stage's bodies see them: outer, then inner.
    pub fn digits<'a>(&'a self, stage: &'a Stage) -> impl Iterator<Item = Size> + 'a {
        self.outer.iter().chain(&stage.inner).copied()
    }
}
