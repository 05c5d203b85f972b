//! Loop ordering after fusion: one cluster's loops are put into the order in which the other one touches a
//! buffer that both use. Reshapes in between and inverted permutations come out of the same match.

use smallvec::SmallVec;

use super::{Proposal, Transform, access_pairs, more_telling};
use crate::alignment::{Alignment, by_access};
use crate::cluster::Cluster;
use crate::cost::{Facts, enough_saved, evaluate};
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
        let enough = enough_saved(facts, first, second);
        let mut best: Option<Proposal> = None;
        let mut refusal = Reason::NoCommonSpace;
        let mut tried: SmallVec<[Alignment; 2]> = SmallVec::new();
        for (a, b) in access_pairs(first, second, TRIED_PAIRS) {
            // Either may keep its order; of equal scores the earlier one does.
            let anchored = [by_access(a, b), by_access(b, a).map(|found| found.swapped())];
            for alignment in anchored.into_iter().flatten() {
                if alignment.first.outer == 0 || alignment.reorderings() == 0 {
                    continue;
                }
                // Accesses that lie alike lead to the same alignment again and again.
                if tried.contains(&alignment) || best.as_ref().is_some_and(|b| b.alignment == alignment) {
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
                        let found = Proposal { method: Method::Reorder, alignment, score };
                        if found.score.saved >= enough {
                            return Ok(found);
                        }
                        best = Some(found);
                    }
                    Ok(_) => tried.push(alignment),
                    Err(reason) => {
                        refusal = more_telling(refusal, reason);
                        tried.push(alignment);
                    }
                }
            }
        }
        best.ok_or(refusal)
    }
}
