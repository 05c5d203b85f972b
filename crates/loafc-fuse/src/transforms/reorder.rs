//! Loop ordering after fusion: one cluster's loops are put into the order in which the other one touches a
//! buffer that both use. Reshapes in between and inverted permutations come out of the same match.

use smallvec::SmallVec;

use super::{Proposal, Transform, more_telling};
use crate::alignment::{Alignment, Anchor, match_all};
use crate::cost::{Facts, evaluate};
use crate::log::{Method, Reason};
use crate::pair::Pair;

/// See the module.
pub struct Reorder;

impl Transform for Reorder {
    fn method(&self) -> Method {
        Method::Reorder
    }

    fn propose(&self, facts: &Facts, pair: &Pair) -> Result<Proposal, Reason> {
        let mut best: Option<Proposal> = None;
        let mut refusal = Reason::NoCommonSpace;
        let mut tried: SmallVec<[Alignment; 2]> = SmallVec::new();
        for (a, b) in pair.accesses() {
            let Some(matched) = match_all(*a, *b) else { continue };
            // Either may keep its order; of equal scores the earlier one does.
            for anchor in [Anchor::First, Anchor::Second] {
                let alignment = matched.alignment(pair.first, pair.second, anchor);
                if alignment.first.outer == 0 || alignment.reorderings() == 0 {
                    continue;
                }
                // Accesses that lie alike lead to the same alignment again and again.
                if tried.contains(&alignment) || best.as_ref().is_some_and(|b| b.alignment == alignment) {
                    continue;
                }
                let spreads = (alignment.first.demotes() && pair.first.has_reduction)
                    || (alignment.second.demotes() && pair.second.has_reduction);
                if spreads {
                    refusal = more_telling(refusal, Reason::ReductionWouldSpread);
                    continue;
                }
                match evaluate(facts, pair, &alignment) {
                    Ok(score) if best.as_ref().is_none_or(|b| score.saved > b.score.saved) => {
                        let enough = score.saved >= pair.most_saved;
                        best = Some(Proposal { method: Method::Reorder, alignment, score });
                        if enough {
                            return best.ok_or(refusal);
                        }
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
