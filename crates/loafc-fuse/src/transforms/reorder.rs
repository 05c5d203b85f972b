//! Loop ordering after fusion: one cluster's loops are put into the order in which the other one touches a
//! buffer that both use. Reshapes in between and inverted permutations come out of the same match.

use super::{Proposal, Transform, access_pairs, more_telling};
use crate::alignment::by_access;
use crate::cluster::Cluster;
use crate::cost::{Facts, evaluate};
use crate::log::{Method, Reason};

/// Shared accesses, those with most bytes, that an order is derived from.
const TRIED_PAIRS: usize = 3;

/// See the module.
pub struct Reorder;

impl Transform for Reorder {
    fn method(&self) -> Method {
        Method::Reorder
    }

    fn propose(&self, facts: &Facts, first: &Cluster, second: &Cluster) -> Result<Proposal, Reason> {
        let mut best: Option<Proposal> = None;
        let mut refusal = Reason::NoCommonSpace;
        for (a, b) in access_pairs(first, second, TRIED_PAIRS) {
            // Either may keep its order; of equal scores the earlier one does.
            let anchored = [by_access(a, b), by_access(b, a).map(|found| found.swapped())];
            for alignment in anchored.into_iter().flatten() {
                if alignment.first.outer == 0 || alignment.reorderings() == 0 {
                    continue;
                }
                let spreads = (alignment.first.demotes() && first.has_reduction)
                    || (alignment.second.demotes() && second.has_reduction);
                if spreads {
                    refusal = more_telling(refusal, Reason::ReductionWouldSpread);
                    continue;
                }
                match evaluate(facts, first, second, &alignment) {
                    Ok(score) if best.as_ref().is_none_or(|b| score.saved > b.score.saved) => {
                        best = Some(Proposal { method: Method::Reorder, alignment, score });
                    }
                    Ok(_) => {}
                    Err(reason) => refusal = more_telling(refusal, reason),
                }
            }
        }
        best.ok_or(refusal)
    }
}
