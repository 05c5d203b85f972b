//! Ways to bring two clusters into one space. The regular rounds use only [`natural`]; the final round tries the
//! others as well. Each is one implementation of one trait, so that they compose: a cluster that came out of one
//! goes into the next like any other.

use crate::alignment::Alignment;
use crate::cost::{Facts, Score};
use crate::log::{Method, Reason};
use crate::pair::Pair;

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

    /// The best fusion of two clusters by this way, or why there is none.
    fn propose(&self, facts: &Facts, pair: &Pair) -> Result<Proposal, Reason>;
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
