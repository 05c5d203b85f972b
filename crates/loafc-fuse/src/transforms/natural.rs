//! Fusions that leave every iteration order as it is: the regular rounds. [`Rows`] goes on where those stop, in
//! the final round: two maps share the outer part of their spaces although they walk through the rest differently.

use super::{Proposal, Transform, more_telling};
use crate::alignment::{self, Alignment};
use crate::cluster::Cluster;
use crate::cost::{Facts, evaluate, serializes};
use crate::log::{Method, Reason};

/// See the module.
pub struct Natural;

/// See the module.
pub struct Rows;

impl Transform for Natural {
    fn method(&self) -> Method {
        Method::Natural
    }

    fn propose(&self, facts: &Facts, first: &Cluster, second: &Cluster) -> Result<Proposal, Reason> {
        let mut alignment = alignment::natural(first, second);
        let mut refusal = Reason::NoCommonSpace;
        if alignment.first.outer == 0 {
            // Nothing is lost where neither had outer loops.
            if alignment.first.demotes() || alignment.second.demotes() || serializes(facts, first, second) {
                return Err(refusal);
            }
            let score = evaluate(facts, first, second, &alignment)?;
            return Ok(Proposal { method: Method::Natural, alignment, score });
        }
        // The longest common space keeps most loops parallel, so the first that fits is the best.
        while alignment.first.outer > 0 {
            if splits_two_maps(first, second, &alignment) {
                break;
            }
            match evaluate(facts, first, second, &alignment) {
                Ok(score) => return Ok(Proposal { method: Method::Natural, alignment, score }),
                Err(reason) => refusal = more_telling(refusal, reason),
            }
            match alignment.shortened() {
                Some(shorter) => alignment = shorter,
                None => break,
            }
        }
        Err(refusal)
    }
}

/// Whether both sides would leave loops to themselves although neither reduces over rows. They would run through
/// the same elements one after the other, not together; a reordering may bring them together.
fn splits_two_maps(first: &Cluster, second: &Cluster, alignment: &Alignment) -> bool {
    alignment.first.demotes() && alignment.second.demotes() && !first.has_reduction && !second.has_reduction
}

impl Transform for Rows {
    fn method(&self) -> Method {
        Method::Rows
    }

    fn propose(&self, facts: &Facts, first: &Cluster, second: &Cluster) -> Result<Proposal, Reason> {
        let mut alignment = Some(alignment::natural(first, second));
        let mut refusal = Reason::NoCommonSpace;
        while let Some(tried) = alignment.filter(|a| a.first.outer > 0) {
            if splits_two_maps(first, second, &tried) {
                match evaluate(facts, first, second, &tried) {
                    Ok(score) => return Ok(Proposal { method: Method::Rows, alignment: tried, score }),
                    Err(reason) => refusal = more_telling(refusal, reason),
                }
            }
            alignment = tried.shortened();
        }
        Err(refusal)
    }
}
