//! Padding: a cluster runs in the first part of a longer space of another one, and does nothing in the rest.
//! A concatenation and what reads one of its inputs share their pass that way.

use super::{Proposal, Transform, more_telling};
use crate::alignment::by_padded_access;
use crate::cluster::{Cluster, Respace};
use crate::cost::{Facts, evaluate};
use crate::log::{Method, Reason};
use crate::pair::Pair;

/// A loop may grow by this factor at most.
const MOST_GROWTH: i64 = 2;

/// Shared accesses, those with most bytes, that a space is derived from.
const TRIED_PAIRS: usize = 2;

/// See the module.
pub struct Pad;

impl Transform for Pad {
    fn method(&self) -> Method {
        Method::Pad
    }

    fn propose(&self, facts: &Facts, pair: &Pair) -> Result<Proposal, Reason> {
        let (first, second) = (pair.first, pair.second);
        let mut refusal = Reason::NoCommonSpace;
        if first.has_reduction && second.has_reduction {
            return Err(refusal);
        }
        for (a, b) in pair.accesses().iter().take(TRIED_PAIRS) {
            let Some(alignment) = by_padded_access(*a, *b) else { continue };
            let bearable = can_be_padded(first, &alignment.first) && can_be_padded(second, &alignment.second);
            if alignment.first.outer == 0 || !bearable {
                continue;
            }
            match evaluate(facts, pair, &alignment) {
                Ok(score) => return Ok(Proposal { method: Method::Pad, alignment, score }),
                Err(reason) => refusal = more_telling(refusal, reason),
            }
        }
        Err(refusal)
    }
}

/// A reduction would have to ignore the padding; a map just does nothing there.
fn can_be_padded(cluster: &Cluster, with: &Respace) -> bool {
    if with.demotes() && cluster.has_reduction {
        return false;
    }
    with.padded.iter().all(|(digit, own)| {
        let (Some(own), Some(long)) = (own.as_const(), with.digits[*digit].extent.as_const()) else {
            return false;
        };
        !cluster.has_reduction && long <= own.saturating_mul(MOST_GROWTH)
    })
}
