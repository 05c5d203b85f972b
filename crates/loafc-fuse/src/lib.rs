//! The fusion scheduler: decides which loop nests become one kernel, in regular rounds and in a final round
//! that may reorder loops. Sees no machine, no thread and no operator name.

pub mod access;
pub mod alignment;
pub mod cluster;
pub mod cost;
mod emit;
pub mod interpret;
pub mod legality;
pub mod log;
pub mod options;
pub mod order;
pub mod pair;
mod queue;
mod rounds;
pub mod schedule;
pub mod transforms;
pub mod verify;

use std::time::{Duration, Instant};

use loafc_ir::nest::{NestProgram, Step, StepId};

use crate::cost::Facts;
use crate::log::{ClusterOrigin, DecisionLog, KernelSummary, LoopSpace};
pub use crate::options::FuseOptions;
use crate::order::{ClusterId, StepGraph};
use crate::schedule::{Schedule, ScheduledStep};

/// A schedule and how it came about.
#[derive(Clone, Debug)]
pub struct Fused {
    /// What to run.
    pub schedule: Schedule,
    /// Why.
    pub log: DecisionLog,
    /// How long it took to decide on fusions. The rest of the scheduler's time goes into finding accesses and
    /// dependencies before, and into laying out the groups behind.
    pub rounds: Duration,
}

/// The program can't be scheduled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FuseError {
    /// A step names a buffer that the program does not have.
    #[error("step {step} touches b{buffer}, but the program has only {count} buffers")]
    UnknownBuffer {
        /// Position of the step.
        step: usize,
        /// The buffer's number.
        buffer: u32,
        /// Number of buffers.
        count: usize,
    },
    /// The scheduler broke a rule of its own; debug builds find out.
    #[error("the schedule is broken, which is a bug of the scheduler: {0}")]
    Broken(verify::ScheduleError),
}

/// Schedules a program: decides what is fused with what.
///
/// # Errors
/// When a step names a buffer that does not exist.
pub fn fuse(program: NestProgram, options: &FuseOptions) -> Result<Fused, FuseError> {
    let (kernels, mut log, rounds) = {
        let graph = StepGraph::new(&program)?;
        let facts = Facts::new(&program, options, &graph);
        let start = starting_log(&facts, &graph);
        let scheduler = rounds::Scheduler::new(&facts, &graph, start);
        let begin = Instant::now();
        let outcome = scheduler.run();
        let rounds = begin.elapsed();
        let (kernels, log) = lay_out(&facts, outcome);
        (kernels, log, rounds)
    };
    log.kernels = kernels.iter().filter_map(|k| k.1.clone()).collect();
    let steps = kernels.into_iter().map(|k| k.0).collect();
    let schedule = Schedule { program, steps };
    if cfg!(debug_assertions) {
        verify::verify_schedule(&schedule).map_err(FuseError::Broken)?;
    }
    Ok(Fused { schedule, log, rounds })
}

fn starting_log(facts: &Facts, graph: &StepGraph) -> DecisionLog {
    let program = facts.program;
    let clusters = program
        .steps
        .iter()
        .enumerate()
        .map(|(k, step)| match step {
            Step::Nest(nest) => ClusterOrigin::Step {
                step: k as u32,
                name: nest.name.clone(),
                is_extern: false,
                space: LoopSpace::of_nest(nest),
                source: nest.origins.clone(),
                bytes: 0,
            },
            Step::Extern(call) => ClusterOrigin::Step {
                step: k as u32,
                name: call.op.clone(),
                is_extern: true,
                space: LoopSpace::default(),
                source: call.origin.iter().cloned().collect(),
                bytes: 0,
            },
        })
        .collect();
    DecisionLog {
        version: DecisionLog::VERSION,
        clusters,
        extern_calls: program.steps.iter().filter(|s| matches!(s, Step::Extern(_))).count(),
        buffers: program.buffers.iter().map(|b| b.name.clone()).collect(),
        edges: graph.edges(),
        ..DecisionLog::default()
    }
}

type LaidOut = Vec<(ScheduledStep, Option<KernelSummary>)>;

fn lay_out(facts: &Facts, outcome: rounds::Outcome) -> (LaidOut, DecisionLog) {
    let mut clusters = outcome.clusters;
    let steps = outcome
        .sequence
        .into_iter()
        .map(|ClusterId(id)| match clusters[id as usize].take() {
            Some(cluster) => {
                let bytes = cost::cluster_bytes(&cluster);
                let steps = cluster.members.iter().map(|m| m.step.0).collect();
                let group = emit::emit(facts, cluster);
                let summary = KernelSummary {
                    name: group.name.clone(),
                    cluster: id,
                    steps,
                    outer: LoopSpace::of_outer(&group.outer),
                    stages: group.stages.len(),
                    bytes,
                };
                (ScheduledStep::Kernel(group), Some(summary))
            }
            // Steps that are no nests keep their number as their cluster's.
            None => (ScheduledStep::Extern(StepId(id)), None),
        })
        .collect();
    (steps, outcome.log)
}
