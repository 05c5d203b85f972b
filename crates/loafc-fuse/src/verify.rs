//! What must hold of a schedule: every step of the program runs once and after what it needs, and groups keep the
//! contract that code generation relies on. Debug builds and tests check it after every run of the scheduler.

use loafc_ir::canonical::for_each_index_nested;
use loafc_ir::index::IndexAtom;
use loafc_ir::nest::{Op, Step, StepId};
use rustc_hash::FxHashSet;

use crate::order::StepGraph;
use crate::schedule::{Group, Place, Schedule, ScheduledStep};

/// A schedule breaks a rule; the text says which, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ScheduleError(pub String);

fn wrong<T>(text: String) -> Result<T, ScheduleError> {
    Err(ScheduleError(text))
}

/// Checks a schedule.
///
/// # Errors
/// Names the step or group, and what is wrong with it.
pub fn verify_schedule(schedule: &Schedule) -> Result<(), ScheduleError> {
    let steps = &schedule.program.steps;
    let graph = StepGraph::new(&schedule.program).map_err(|error| ScheduleError(error.to_string()))?;
    let mut done: Vec<bool> = vec![false; steps.len()];
    for scheduled in &schedule.steps {
        let ids: Vec<StepId> = match scheduled {
            ScheduledStep::Extern(id) => vec![*id],
            ScheduledStep::Kernel(group) => {
                verify_group(group)?;
                let mut ids: Vec<StepId> =
                    group.stages.iter().flat_map(|s| &s.members).map(|m| m.step).collect();
                ids.sort_unstable();
                ids
            }
        };
        for id in &ids {
            let k = id.0 as usize;
            match (steps.get(k), scheduled) {
                (Some(Step::Nest(_)), ScheduledStep::Kernel(_))
                | (Some(Step::Extern(_)), ScheduledStep::Extern(_)) => {}
                _ => return wrong(format!("step {k} is scheduled as what it is not")),
            }
            if std::mem::replace(&mut done[k], true) {
                return wrong(format!("step {k} runs twice"));
            }
        }
        for id in &ids {
            let missing = graph.before[id.0 as usize].iter().find(|b| !done[b.0 as usize]);
            if let Some(needed) = missing {
                return wrong(format!("step {} runs before step {}, which it needs", id.0, needed.0));
            }
        }
    }
    match done.iter().position(|d| !d) {
        Some(k) => wrong(format!("step {k} never runs")),
        None => Ok(()),
    }
}

/// Checks one group.
///
/// # Errors
/// Names the group and member, and what is wrong.
pub fn verify_group(group: &Group) -> Result<(), ScheduleError> {
    let name = &group.name;
    if group.buffers.windows(2).any(|w| w[0].buffer >= w[1].buffer) {
        return wrong(format!("group {name}: buffers are not in ascending order"));
    }
    let mut written = FxHashSet::default();
    for (k, stage) in group.stages.iter().enumerate() {
        let digits = group.outer.len() + stage.inner.len();
        if stage.members.is_empty() {
            return wrong(format!("group {name}: stage {k} is empty"));
        }
        for member in &stage.members {
            let at = format!("group {name}, stage {k}, member {}", member.name);
            if member.reduced.len() != digits {
                return wrong(format!(
                    "{at}: {} digits, but {} reduction marks",
                    digits,
                    member.reduced.len()
                ));
            }
            let mut beyond = None;
            for_each_index_nested(&member.body, &mut |index| {
                for (atom, _) in &index.terms {
                    if let IndexAtom::Loop(v) = atom
                        && v.0 as usize >= digits
                    {
                        beyond = Some(v.0);
                    }
                }
            });
            if let Some(digit) = beyond {
                return wrong(format!("{at}: an index names digit {digit} of {digits}"));
            }
            for op in &member.body.ops {
                let (Op::Load { buffer, index, .. } | Op::Store { buffer, index, .. }) = op else { continue };
                let Ok(entry) = group.buffers.binary_search_by_key(buffer, |b| b.buffer) else {
                    return wrong(format!("{at}: {buffer} is not listed"));
                };
                let entry = &group.buffers[entry];
                let stores = matches!(op, Op::Store { .. });
                if (stores && !entry.written) || (!stores && !entry.read) {
                    return wrong(format!("{at}: {buffer} is listed as untouched in this way"));
                }
                if entry.place == Place::Memory {
                    continue;
                }
                if index
                    .terms
                    .iter()
                    .any(|t| matches!(&t.0, IndexAtom::Loop(v) if (v.0 as usize) < group.outer.len()))
                {
                    return wrong(format!("{at}: the index of local {buffer} uses an outer digit"));
                }
                if stores {
                    written.insert(*buffer);
                } else if !written.contains(buffer) {
                    return wrong(format!("{at}: local {buffer} is read before it is written"));
                }
            }
        }
    }
    Ok(())
}
