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

use crate::cluster::Cluster;
use crate::cost::{Facts, cluster_bytes, set_nest_traffic};
use crate::log::{Clusters, DecisionLog, KernelSummary, LoopSpace, StepSummary};
pub use crate::options::FuseOptions;
use crate::order::{ClusterId, StepGraph, StepGraphBuilder};
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
        let Start { graph, mut clusters, touch_again, mut log } = start(&program)?;
        let facts = Facts::new(&program, options, &graph);
        for k in touch_again {
            let Some(cluster) = &mut clusters[k] else { continue };
            set_nest_traffic(&facts, cluster);
            let bytes = cluster_bytes(cluster);
            log.bytes += bytes - std::mem::replace(&mut log.clusters.steps[k].bytes, bytes);
        }
        let scheduler = rounds::Scheduler::new(&facts, &graph, clusters, log);
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

/// What a run starts with.
struct Start {
    graph: StepGraph,
    /// One for each nest; extern calls have none.
    clusters: Vec<Option<Cluster>>,
    /// Those that touch a buffer more than once: what they move depends on who else uses it.
    touch_again: Vec<usize>,
    /// Bytes are those that the clusters move apart.
    log: DecisionLog,
}

/// Records that a step brings about at most, as a rule: one for each pair that is looked at.
const RECORDS_PER_STEP: usize = 3;

/// Looks at each step once: a program of thousands of steps would leave the cache between one look and the next.
fn start(program: &NestProgram) -> Result<Start, FuseError> {
    let count = program.steps.len();
    let mut graph = StepGraphBuilder::new(program);
    // A fusion makes one cluster of two, so there are never twice as many.
    let mut clusters = Vec::with_capacity(2 * count);
    let mut summaries = Vec::with_capacity(count);
    let mut touch_again = Vec::new();
    let mut all_bytes = 0;
    for (k, step) in program.steps.iter().enumerate() {
        graph.add(step)?;
        let cluster = match step {
            Step::Nest(nest) => Some(Cluster::of_nest(StepId(k as u32), nest, program)),
            Step::Extern(_) => None,
        };
        let bytes = cluster.as_ref().map_or(0, cluster_bytes);
        all_bytes += bytes;
        if cluster.as_ref().is_some_and(Cluster::touches_again) {
            touch_again.push(k);
        }
        let (name, space, source) = match step {
            Step::Nest(nest) => (&nest.name, LoopSpace::of_nest(nest), nest.origins.clone()),
            Step::Extern(call) => (&call.op, LoopSpace::default(), call.origin.iter().cloned().collect()),
        };
        clusters.push(cluster);
        summaries.push(StepSummary {
            step: k as u32,
            name: name.clone(),
            is_extern: matches!(step, Step::Extern(_)),
            space,
            source,
            bytes,
        });
    }
    let graph = graph.finish();
    let log = DecisionLog {
        version: DecisionLog::VERSION,
        clusters: Clusters { steps: summaries, fusions: Vec::with_capacity(count) },
        records: Vec::with_capacity(RECORDS_PER_STEP * count),
        extern_calls: graph.externs.len(),
        buffers: program.buffers.iter().map(|b| b.name.clone()).collect(),
        edges: graph.edges(),
        bytes: all_bytes,
        ..DecisionLog::default()
    };
    Ok(Start { graph, clusters, touch_again, log })
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
