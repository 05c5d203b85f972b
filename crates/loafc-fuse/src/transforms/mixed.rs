//! Mixed reduction orders: `x.sum(0)` and `x.sum(1)` in one pass over x. The cluster that reduces over the outer
//! loops adds up partial results, one set for each part of the outer space, which are combined in a fixed order
//! at the end. The backward passes of layer norm and RMS norm are the reason to have it.

use smallvec::SmallVec;

use super::{Proposal, Transform, more_telling};
use crate::alignment::{Alignment, Site, match_all};
use crate::cluster::{Cluster, NewDigit, Respace};
use crate::cost::{Facts, Score, evaluate};
use crate::log::{Method, Reason};
use crate::pair::Pair;

/// Shared accesses, those with most bytes, that a space is derived from.
const TRIED_PAIRS: usize = 2;

/// See the module.
pub struct MixedReductions;

impl Transform for MixedReductions {
    fn method(&self) -> Method {
        Method::MixedReductions
    }

    fn propose(&self, facts: &Facts, pair: &Pair) -> Result<Proposal, Reason> {
        let reduces = pair.first.has_reduction || pair.second.has_reduction;
        if !facts.options.mixed_reduction_orders || !reduces {
            return Err(Reason::NoCommonSpace);
        }
        let mut refusal = Reason::NoCommonSpace;
        for (a, b) in pair.accesses().iter().take(TRIED_PAIRS) {
            let mut ways = [(*a, *b, false), (*b, *a, true)];
            // Rows that are contiguous within an outer iteration stream; columns would jump.
            ways.sort_by_key(|(rows, ..)| !is_contiguous_inside(*rows));
            for (rows, columns, swap) in ways {
                match propose(facts, pair, rows, columns, swap) {
                    Ok(found) => return Ok(found),
                    Err(reason) => refusal = more_telling(refusal, reason),
                }
            }
        }
        Err(refusal)
    }
}

/// `rows` keeps its space; `columns` reduces over (a part of) its outer digits.
fn propose(facts: &Facts, pair: &Pair, rows: Site, columns: Site, swap: bool) -> Result<Proposal, Reason> {
    let (kept, moved) = (rows.0, columns.0);
    if !is_plain_reduction(moved) || kept.outer.is_empty() {
        return Err(Reason::NoCommonSpace);
    }
    // Partial results exist only at the end of the kernel: nothing in it may read them.
    if pair.shared_uses().any(|(a, b)| if swap { a.written } else { b.written }) {
        return Err(Reason::NoCommonSpace);
    }
    let space = columns_over_rows(rows, columns).ok_or(Reason::NoCommonSpace)?;
    let alignment = Alignment { first: Respace::identity(&kept.outer), second: space };
    let alignment = if swap { alignment.swapped() } else { alignment };
    let score = evaluate(facts, pair, &alignment)?;
    let partial = partial_bytes(facts, moved);
    if partial > facts.options.limits.cached_bytes {
        return Err(Reason::WorkingSetTooLarge { bytes: partial });
    }
    // Each part is written once and read once by the combining phase.
    let cost = partial.saturating_mul(2 * facts.options.limits.partial_chunks);
    let saved = score.saved - cost;
    if saved < facts.options.limits.mixed_min_saved {
        return Err(Reason::BelowThreshold { saved });
    }
    let score = Score { saved, ..score };
    Ok(Proposal { method: Method::MixedReductions, alignment, score })
}

fn is_contiguous_inside((cluster, _, access): Site) -> bool {
    let strides = access.place.as_ref().map(|p| &p.strides[cluster.outer.len()..]);
    strides.is_some_and(|inner| inner.iter().any(|s| s.is(1)))
}

/// Reductions alone, all over the same inner space and none of another one's result: what is behind them would need
/// a second kernel.
fn is_plain_reduction(cluster: &Cluster) -> bool {
    let alike = cluster
        .members
        .iter()
        .all(|m| m.reduces() && m.inner == cluster.members[0].inner && m.guards.is_empty());
    alike && cluster.buffers.iter().all(|u| !u.written || u.accesses.len() == 1)
}

/// Bytes of one set of partial results, in the widest type.
fn partial_bytes(facts: &Facts, cluster: &Cluster) -> i64 {
    let elements = cluster.outer.iter().map(|e| e.hint(&facts.program.hints)).fold(1, i64::saturating_mul);
    elements.saturating_mul(8 * cluster.members.len() as i64)
}

/// The columns' digits in the rows' space: every outer digit of the rows is one that the columns reduce over, all
/// else becomes inner.
fn columns_over_rows(rows: Site, columns: Site) -> Option<Respace> {
    let matched = match_all(rows, columns)?;
    let (kept_outer, moved_outer) = (rows.0.outer.len(), columns.0.outer.len());
    let mut outer: SmallVec<[(usize, NewDigit); 6]> = SmallVec::new();
    let mut inner: SmallVec<[(usize, NewDigit); 6]> = SmallVec::new();
    for piece in matched.pieces {
        let (row, column) = (piece.first?, piece.second?);
        let digit = NewDigit { from: column.0, weight: column.1, extent: piece.extent };
        if row.0 < kept_outer {
            if column.0 < moved_outer || !row.1.is(1) || piece.extent != rows.0.outer[row.0] {
                return None;
            }
            outer.push((row.0, digit));
        } else {
            inner.push((row.0, digit));
        }
    }
    outer.sort_by_key(|o| o.0);
    inner.sort_by_key(|o| o.0);
    (outer.len() == kept_outer).then(|| Respace {
        outer: kept_outer,
        digits: outer.into_iter().chain(inner).map(|d| d.1).collect(),
        takes_inner: true,
        padded: SmallVec::new(),
    })
}
