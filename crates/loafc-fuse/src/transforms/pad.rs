//! Padding: a cluster runs in the first part of a longer space of another one, and does nothing in the rest.
//! A concatenation and what reads one of its inputs share their pass that way.

use loafc_ir::size::Size;

use super::{Proposal, Transform};
use crate::alignment::Alignment;
use crate::cluster::{Cluster, Respace};
use crate::cost::{Facts, evaluate};
use crate::log::{Method, Reason};

/// A space may grow by this factor at most.
const MOST_GROWTH: i64 = 2;

/// See the module.
pub struct Pad;

impl Transform for Pad {
    fn method(&self) -> Method {
        Method::Pad
    }

    fn propose(&self, facts: &Facts, first: &Cluster, second: &Cluster) -> Result<Proposal, Reason> {
        let (digit, a, b) = only_difference(&first.outer, &second.outer).ok_or(Reason::NoCommonSpace)?;
        let (short, long) = (a.min(b), a.max(b));
        if short == 0 || long > short.saturating_mul(MOST_GROWTH) {
            return Err(Reason::NoCommonSpace);
        }
        let (pad_first, cluster) = if a < b { (true, first) } else { (false, second) };
        if cluster.has_reduction {
            return Err(Reason::NoCommonSpace);
        }
        let mut padded = Respace::identity(&cluster.outer);
        padded.digits[digit].extent = Size::from(long);
        padded.padded.push((digit, Size::from(short)));
        let other = Respace::identity(if pad_first { &second.outer } else { &first.outer });
        let alignment = if pad_first {
            Alignment { first: padded, second: other }
        } else {
            Alignment { first: other, second: padded }
        };
        let score = evaluate(facts, first, second, &alignment)?;
        Ok(Proposal { method: Method::Pad, alignment, score })
    }
}

/// The one digit in which two spaces differ, with its extents.
fn only_difference(a: &[Size], b: &[Size]) -> Option<(usize, i64, i64)> {
    if a.len() != b.len() {
        return None;
    }
    let mut different = a.iter().zip(b).enumerate().filter(|(_, (x, y))| x != y);
    let (digit, (x, y)) = different.next()?;
    if different.next().is_some() {
        return None;
    }
    Some((digit, x.as_const()?, y.as_const()?))
}
