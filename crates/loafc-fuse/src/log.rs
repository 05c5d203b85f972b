//! The decision log: one record for every pair that the scheduler looked at, with one reason. The report, its
//! JSON, the page and the tests all read this one structure.

use std::fmt;
use std::sync::Arc;

use loafc_ir::graph::SourceLine;
use loafc_ir::nest::{BufferId, LoopNest};
use loafc_ir::size::Size;
use serde::{Serialize, Serializer};

use crate::access::PerDigit;
use crate::legality::Conflict;

/// Part of the scheduler's run.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Round {
    /// Only natural alignments.
    Regular,
    /// Reordering, re-indexing, mixed reduction orders, padding.
    Final,
}

/// How two clusters were brought to one space.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// Split and merge loops; the order of iterations stays.
    Natural,
    /// Loops in another order.
    Reorder,
    /// A common outer part of two spaces whose rest differs.
    Rows,
    /// One runs in a part of the other's space.
    Pad,
    /// Reductions over different loops, through partial results.
    MixedReductions,
    /// Little work, done by one thread in one go.
    Serial,
}

/// Why a pair was fused or not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Reason {
    /// Fused: this many bytes of memory traffic less.
    Fused {
        /// Bytes, less what became uncoalesced.
        saved: i64,
    },
    /// They touch nothing in common that one pass could share.
    NothingShared,
    /// The fusion would save less than `score_fusion_memory_threshold`.
    BelowThreshold {
        /// Bytes it would save.
        saved: i64,
    },
    /// Loops can't be brought to one space.
    NoCommonSpace,
    /// The reader needs elements that another iteration of the writer makes.
    OtherIteration {
        /// Where.
        buffer: u32,
    },
    /// One overwrites what another iteration of the other one still reads.
    WeakDependency {
        /// Where.
        buffer: u32,
    },
    /// Which elements are touched is not known before the program runs.
    OpaqueIndex {
        /// Where.
        buffer: u32,
    },
    /// Something must run between them.
    Cycle,
    /// Too much lies between them in the program to rule out a cycle.
    TooFarApart,
    /// More nests than `max_fusion_size`.
    GroupTooLarge,
    /// More memory streams than one kernel should have.
    TooManyBuffers,
    /// Too few outer iterations would be left for the threads.
    TooLittleParallelism {
        /// Outer iterations.
        outer: i64,
    },
    /// A row that a later stage reads again would no longer fit the cache.
    WorkingSetTooLarge {
        /// Bytes of one outer iteration.
        bytes: i64,
    },
    /// What is saved would be lost again by accesses that are no longer contiguous.
    Uncoalesced {
        /// Bytes saved.
        saved: i64,
        /// What the scattered accesses cost, in bytes.
        lost: i64,
    },
    /// The loop order would make outer loops of a reduction inner ones.
    ReductionWouldSpread,
    /// Another fusion took one of the two first.
    Superseded,
    /// `stop_after_fusion` was reached.
    Stopped,
}

impl Reason {
    /// Whether the pair was fused.
    pub fn is_fused(&self) -> bool {
        matches!(self, Reason::Fused { .. })
    }
}

impl From<Conflict> for Reason {
    fn from(conflict: Conflict) -> Reason {
        match conflict {
            Conflict::Memory(BufferId(buffer)) => Reason::OtherIteration { buffer },
            Conflict::Weak(BufferId(buffer)) => Reason::WeakDependency { buffer },
            Conflict::Opaque(BufferId(buffer)) => Reason::OpaqueIndex { buffer },
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Fused { saved } => write!(f, "fused, saves {saved} bytes"),
            Reason::NothingShared => f.write_str("nothing that one pass could share"),
            Reason::BelowThreshold { saved } => {
                write!(f, "saves only {saved} bytes, below score_fusion_memory_threshold")
            }
            Reason::NoCommonSpace => f.write_str("the loops have no common space"),
            Reason::OtherIteration { buffer } => {
                write!(f, "an iteration reads what another one writes to b{buffer}")
            }
            Reason::WeakDependency { buffer } => {
                write!(f, "an iteration overwrites what another one still reads from b{buffer}")
            }
            Reason::OpaqueIndex { buffer } => {
                write!(f, "which elements of b{buffer} are touched is not known")
            }
            Reason::Cycle => f.write_str("something must run between the two"),
            Reason::TooFarApart => f.write_str("too much lies between the two to rule out a cycle"),
            Reason::GroupTooLarge => f.write_str("more nests than max_fusion_size"),
            Reason::TooManyBuffers => f.write_str("more buffers than one kernel should stream"),
            Reason::TooLittleParallelism { outer } => {
                write!(f, "only {outer} outer iterations would be left for the threads")
            }
            Reason::WorkingSetTooLarge { bytes } => {
                write!(f, "a row of {bytes} bytes would no longer be cached when it is read again")
            }
            Reason::Uncoalesced { saved, lost } => {
                write!(f, "saves {saved} bytes, but scattered accesses cost as much as {lost}")
            }
            Reason::ReductionWouldSpread => {
                f.write_str("would spread a reduction's outer loops over its rows")
            }
            Reason::Superseded => f.write_str("one of the two was fused with another first"),
            Reason::Stopped => f.write_str("stop_after_fusion was reached"),
        }
    }
}

/// One pair that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Record {
    /// When.
    pub round: Round,
    /// How they would share a space.
    pub method: Method,
    /// The one that is earlier in the program.
    pub first: u32,
    /// The other.
    pub second: u32,
    /// The cluster that they became, if they were fused.
    pub merged: Option<u32>,
    /// Score under the natural alignment, in bytes; zero where that is not possible.
    pub natural_score: i64,
    /// Score under the alignment that was chosen, in bytes.
    pub score: i64,
    /// Clusters whose loops were reordered for it.
    pub reorderings: u8,
    /// Why.
    pub reason: Reason,
}

/// Extents of loops, those that are reduced over last. As text, also in JSON, they stand in brackets, reduced ones
/// behind an `r`; most logs are never read, so the text is made on demand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoopSpace {
    /// All extents.
    pub extents: PerDigit,
    /// How many of them are not reduced over.
    pub parallel: usize,
}

impl LoopSpace {
    /// The loops of a nest.
    pub fn of_nest(nest: &LoopNest) -> LoopSpace {
        let extents = nest.loops.iter().map(|l| l.extent).collect();
        LoopSpace { extents, parallel: nest.parallel_loops() }
    }

    /// Loops that are not reduced over.
    pub fn of_outer(outer: &[Size]) -> LoopSpace {
        LoopSpace { extents: PerDigit::from_slice(outer), parallel: outer.len() }
    }
}

impl fmt::Display for LoopSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (k, extent) in self.extents.iter().enumerate() {
            let comma = if k == 0 { "" } else { ", " };
            let mark = if k < self.parallel { "" } else { "r" };
            write!(f, "{comma}{mark}{extent}")?;
        }
        f.write_str("]")
    }
}

impl Serialize for LoopSpace {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

fn as_texts<S: Serializer>(lines: &[SourceLine], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(lines.iter().map(ToString::to_string))
}

/// A step of the program, which is a cluster by itself at first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StepSummary {
    /// Which.
    pub step: u32,
    /// Name of the nest or operator.
    pub name: Arc<str>,
    /// Whether it is a call into a library, which never fuses.
    pub is_extern: bool,
    /// Its loops.
    pub space: LoopSpace,
    /// Lines of the user's source; in JSON as `file:line`.
    #[serde(serialize_with = "as_texts")]
    pub source: Vec<SourceLine>,
    /// Bytes it moves alone.
    pub bytes: i64,
}

/// Two clusters that became one.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fusion {
    /// One.
    pub first: u32,
    /// The other.
    pub second: u32,
}

/// What clusters are made of. They are numbered: first the steps, then the fusions. In JSON they are one list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Clusters {
    /// All steps of the program.
    pub steps: Vec<StepSummary>,
    /// All fusions, in order.
    pub fusions: Vec<Fusion>,
}

impl Clusters {
    /// The fusion that made a cluster, unless it is a step.
    pub fn fusion(&self, cluster: u32) -> Option<Fusion> {
        (cluster as usize).checked_sub(self.steps.len()).map(|k| self.fusions[k])
    }
}

impl Serialize for Clusters {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(tag = "kind", rename_all = "snake_case")]
        enum Origin<'a> {
            Step(&'a StepSummary),
            Fused(&'a Fusion),
        }
        let steps = self.steps.iter().map(Origin::Step);
        serializer.collect_seq(steps.chain(self.fusions.iter().map(Origin::Fused)))
    }
}

/// A kernel of the final schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KernelSummary {
    /// Name for people.
    pub name: Arc<str>,
    /// The cluster that it was.
    pub cluster: u32,
    /// Steps of the program in it.
    pub steps: Vec<u32>,
    /// The outer space.
    pub outer: LoopSpace,
    /// Number of stages.
    pub stages: usize,
    /// Bytes between memory and kernel.
    pub bytes: i64,
}

/// All that the scheduler decided.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DecisionLog {
    /// Version of this structure as JSON; changes when a field's meaning does.
    pub version: u32,
    /// What the clusters are made of.
    pub clusters: Clusters,
    /// Every pair that was looked at, in order.
    pub records: Vec<Record>,
    /// Kernels of the final schedule in the order in which they run.
    pub kernels: Vec<KernelSummary>,
    /// Kernels that would run if the final round had not been made.
    pub kernels_before_final_round: usize,
    /// Bytes between memory and kernels in the final schedule.
    pub bytes: i64,
    /// The same before the final round.
    pub bytes_before_final_round: i64,
    /// Extern calls.
    pub extern_calls: usize,
    /// Names of buffers by number.
    pub buffers: Vec<Arc<str>>,
    /// Which step must run before which.
    pub edges: Vec<(u32, u32)>,
}

impl DecisionLog {
    /// Version of the JSON form.
    pub const VERSION: u32 = 1;

    /// Fusions that reordered loops, in all rounds.
    pub fn loop_reorderings(&self) -> usize {
        self.records.iter().filter(|r| r.reason.is_fused()).map(|r| usize::from(r.reorderings)).sum()
    }

    /// Fusions that were made.
    pub fn fusions(&self) -> impl Iterator<Item = &Record> {
        self.records.iter().filter(|r| r.reason.is_fused())
    }

    /// Steps of a cluster, in program order.
    pub fn steps_of(&self, cluster: u32) -> Vec<u32> {
        let mut steps = Vec::new();
        let mut open = vec![cluster];
        while let Some(c) = open.pop() {
            match self.clusters.fusion(c) {
                Some(fusion) => open.extend([fusion.first, fusion.second]),
                None => steps.push(c),
            }
        }
        steps.sort_unstable();
        steps
    }

    /// For each step, the cluster that it was in when the regular rounds had first ended.
    pub fn clusters_after_regular_rounds(&self) -> Vec<u32> {
        let mut of_step: Vec<u32> = (0..self.clusters.steps.len() as u32).collect();
        for record in self.fusions().take_while(|r| r.round == Round::Regular) {
            let Some(merged) = record.merged else { continue };
            for step in self.steps_of(merged) {
                of_step[step as usize] = merged;
            }
        }
        of_step
    }

    /// Name of a cluster for people: its first steps' names.
    pub fn name_of(&self, cluster: u32) -> String {
        let steps = self.steps_of(cluster);
        let name: Vec<&str> =
            steps.iter().take(3).map(|step| &*self.clusters.steps[*step as usize].name).collect();
        let more = steps.len().saturating_sub(3);
        let joined = name.join(" + ");
        if more > 0 { format!("{joined} + {more} more") } else { joined }
    }

    /// A reason with the names of buffers instead of their numbers.
    pub fn explain(&self, reason: &Reason) -> String {
        let text = reason.to_string();
        let (Reason::OtherIteration { buffer }
        | Reason::WeakDependency { buffer }
        | Reason::OpaqueIndex { buffer }) = reason
        else {
            return text;
        };
        match self.buffers.get(*buffer as usize) {
            Some(name) => text.replace(&format!("b{buffer}"), name),
            None => text,
        }
    }

    /// JSON text of the whole log.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("the log holds only strings and numbers")
    }
}
