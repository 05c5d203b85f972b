//! Ways to bring two clusters into one space. The regular rounds use only [`natural`]; the final round tries the
//! others as well. Each is one implementation of one trait, so that they compose: a cluster that came out of one
//! goes into the next like any other.

use loafc_ir::nest::BufferId;
use smallvec::SmallVec;

use crate::alignment::{Alignment, Site};
use crate::cluster::Cluster;
use crate::cost::{Facts, Score};
use crate::legality::shared_buffers;
use crate::log::{Method, Reason};

pub mod mixed;
pub mod natural;
pub mod pad;
pub mod reorder;
pub mod serial;

/// A fusion that could be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// How.
    pub method: Method,
    /// The common space.
    pub alignment: Alignment,
    /// What it is worth.
    pub score: Score,
}

/// A way to bring two clusters into one space.
pub trait Transform: Sync {
    /// Its name in the log.
    fn method(&self) -> Method;

    /// The best fusion of two clusters by this way, the earlier one first, or why there is none.
    fn propose(&self, facts: &Facts, first: &Cluster, second: &Cluster) -> Result<Proposal, Reason>;
}

/// What the final round tries, in this order; of equal scores the earlier one is taken.
pub const FINAL_ROUND: [&dyn Transform; 5] =
    [&reorder::Reorder, &pad::Pad, &natural::Rows, &mixed::MixedReductions, &serial::Serial];

/// Of two refusals the one that tells more: a reason about the data outweighs one about the loops.
pub fn more_telling(a: Reason, b: Reason) -> Reason {
    let rank = |r: &Reason| match r {
        Reason::NoCommonSpace => 0,
        Reason::NothingShared => 1,
        Reason::OtherIteration { .. } | Reason::WeakDependency { .. } | Reason::OpaqueIndex { .. } => 2,
        _ => 3,
    };
    if rank(&b) > rank(&a) { b } else { a }
}

/// Pairs of accesses to shared buffers, the most bytes first; at most `most` of them.
fn access_pairs<'a>(
    first: &'a Cluster,
    second: &'a Cluster,
    most: usize,
) -> SmallVec<[(Site<'a>, Site<'a>); 4]> {
    let mut pairs: SmallVec<[(i64, BufferId, Site, Site); 8]> = SmallVec::new();
    for (mine, theirs) in shared_buffers(first, second) {
        let (a_use, b_use) = (&first.buffers[mine], &second.buffers[theirs]);
        for a in &a_use.accesses {
            let (a_member, a) = first.access(*a);
            for b in &b_use.accesses {
                let (b_member, b) = second.access(*b);
                if a.place.is_some() && b.place.is_some() {
                    let bytes = a.bytes.min(b.bytes);
                    pairs.push((bytes, a.buffer, (first, a_member, a), (second, b_member, b)));
                }
            }
        }
    }
    pairs.sort_by_key(|p| (std::cmp::Reverse(p.0), p.1));
    pairs.into_iter().take(most).map(|p| (p.2, p.3)).collect()
}
