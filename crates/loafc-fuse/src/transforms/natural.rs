//! Fusions that leave every iteration order as it is: the regular rounds. [`Rows`] goes on where those stop, in
//! the final round: two maps share the outer part of their spaces although they walk through the rest differently.

use super::{Proposal, Transform, more_telling};
use crate::alignment::{self, Alignment};
use crate::cost::{Facts, evaluate, serializes};
use crate::log::{Method, Reason};
use crate::pair::Pair;

/// See the module.
pub struct Natural;

/// See the module.
pub struct Rows;

impl Transform for Natural {
    fn method(&self) -> Method {
        Method::Natural
    }

    fn propose(&self, facts: &Facts, pair: &Pair) -> Result<Proposal, Reason> {
        let mut alignment = alignment::natural(pair.first, pair.second);
        let mut refusal = Reason::NoCommonSpace;
        if alignment.first.outer == 0 {
            // Nothing is lost where neither had outer loops.
            if alignment.first.demotes() || alignment.second.demotes() || serializes(facts, pair) {
                return Err(refusal);
            }
            let score = evaluate(facts, pair, &alignment)?;
            return Ok(Proposal { method: Method::Natural, alignment, score });
        }
        // The longest common space keeps most loops parallel, so the first that fits is the best.
        while alignment.first.outer > 0 {
            if splits_two_maps(pair, &alignment) {
                break;
            }
            match evaluate(facts, pair, &alignment) {
                Ok(score) => return Ok(Proposal { method: Method::Natural, alignment, score }),
                Err(reason) => refusal = more_telling(refusal, reason),
            }
            alignment.shorten();
        }
        Err(refusal)
    }
}

/// Whether both sides would leave loops to themselves although neither reduces over rows. They would run through
/// the same elements one after the other, not together; a reordering may bring them together.
fn splits_two_maps(pair: &Pair, alignment: &Alignment) -> bool {
    are_maps(pair) && alignment.first.demotes() && alignment.second.demotes()
}

fn are_maps(pair: &Pair) -> bool {
    !pair.first.has_reduction && !pair.second.has_reduction
}

impl Transform for Rows {
    fn method(&self) -> Method {
        Method::Rows
    }

    fn propose(&self, facts: &Facts, pair: &Pair) -> Result<Proposal, Reason> {
        let mut refusal = Reason::NoCommonSpace;
        if !are_maps(pair) {
            return Err(refusal);
        }
        let mut alignment = alignment::natural(pair.first, pair.second);
        while alignment.first.outer > 0 {
            if splits_two_maps(pair, &alignment) {
                match evaluate(facts, pair, &alignment) {
                    Ok(score) => return Ok(Proposal { method: Method::Rows, alignment, score }),
                    Err(reason) => refusal = more_telling(refusal, reason),
                }
            }
            alignment.shorten();
        }
        Err(refusal)
    }
}
