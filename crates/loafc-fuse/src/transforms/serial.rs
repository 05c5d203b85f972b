//! Little work: a cluster and what it feeds are done by one thread in one go, stage after stage. Handing work to
//! other threads twice would cost more than doing it.

use super::{Proposal, Transform};
use crate::alignment::Alignment;
use crate::cluster::{Cluster, Respace};
use crate::cost::{Facts, evaluate};
use crate::log::{Method, Reason};
use crate::pair::Pair;

/// See the module.
pub struct Serial;

impl Transform for Serial {
    fn method(&self) -> Method {
        Method::Serial
    }

    fn propose(&self, facts: &Facts, pair: &Pair) -> Result<Proposal, Reason> {
        let (first, second) = (pair.first, pair.second);
        if !pair.shared_uses().any(|(a, b)| a.written || b.written) {
            return Err(Reason::NoCommonSpace);
        }
        if first.work.saturating_add(second.work) > facts.options.limits.serial_work {
            return Err(Reason::TooLittleParallelism { outer: 1 });
        }
        let all_inner = |cluster: &Cluster| {
            let mut space = Respace::identity(&cluster.outer);
            space.outer = 0;
            space
        };
        let alignment = Alignment { first: all_inner(first), second: all_inner(second) };
        let score = evaluate(facts, pair, &alignment)?;
        Ok(Proposal { method: Method::Serial, alignment, score })
    }
}
