//! Fusions that leave every iteration order as it is: the regular rounds.

use super::{Proposal, Transform, more_telling};
use crate::alignment;
use crate::cluster::Cluster;
use crate::cost::{Facts, evaluate, serializes};
use crate::log::{Method, Reason};

/// See the module.
pub struct Natural;

impl Transform for Natural {
    fn method(&self) -> Method {
        Method::Natural
    }

    fn propose(&self, facts: &Facts, first: &Cluster, second: &Cluster) -> Result<Proposal, Reason> {
        let mut alignment = alignment::natural(first, second);
        let mut refusal = Reason::NoCommonSpace;
        if alignment.first.outer == 0 {
            // Nothing is lost where neither had outer loops.
            if alignment.first.demotes() || alignment.second.demotes() || serializes(first, second) {
                return Err(refusal);
            }
            let score = evaluate(facts, first, second, &alignment)?;
            return Ok(Proposal { method: Method::Natural, alignment, score });
        }
        // The longest common space keeps most loops parallel, so the first that fits is the best.
        while alignment.first.outer > 0 {
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
