//! Two clusters that may be fused: what every way to fuse them asks of them, found out once.

use std::cell::OnceCell;
use std::cmp::Reverse;

use loafc_ir::nest::BufferId;
use smallvec::SmallVec;

use crate::alignment::Site;
use crate::cluster::{BufferUse, Cluster};
use crate::cost::{Facts, most_saved};

/// Pairs of accesses that the transforms look at: those with most bytes.
pub const TRIED_ACCESSES: usize = 3;

/// Accesses to one buffer, one of either cluster.
pub type SitePairs<'a> = SmallVec<[(Site<'a>, Site<'a>); TRIED_ACCESSES]>;

/// Two clusters, the one that runs first in front.
pub struct Pair<'a> {
    /// The one that runs first.
    pub first: &'a Cluster,
    /// The other one.
    pub second: &'a Cluster,
    /// Positions, in either one's list, of the buffers that both use.
    pub shared: SmallVec<[(usize, usize); 6]>,
    /// No fusion of the two saves more bytes.
    pub most_saved: i64,
    has_barrier: OnceCell<bool>,
    accesses: OnceCell<SitePairs<'a>>,
}

impl<'a> Pair<'a> {
    /// Puts two clusters together.
    pub fn new(facts: &Facts, first: &'a Cluster, second: &'a Cluster) -> Pair<'a> {
        let shared: SmallVec<[(usize, usize); 6]> = shared_buffers(first, second).collect();
        let most_saved = most_saved(facts, first, second, &shared);
        Pair { first, second, shared, most_saved, has_barrier: OnceCell::new(), accesses: OnceCell::new() }
    }

    /// What either cluster does with each buffer that both use.
    pub fn shared_uses(&self) -> impl Iterator<Item = (&'a BufferUse, &'a BufferUse)> {
        let (first, second) = (self.first, self.second);
        self.shared.iter().map(|(mine, theirs)| (&first.buffers[*mine], &second.buffers[*theirs]))
    }

    /// Whether one cluster needs what a reduction of the other one gives: then what they share is passed twice.
    pub fn has_barrier(&self) -> bool {
        *self.has_barrier.get_or_init(|| {
            let written_late = |cluster: &Cluster, entry: &BufferUse| {
                cluster.has_reduction
                    && entry.written
                    && entry.accesses.iter().any(|at| {
                        let (member, access) = cluster.access(*at);
                        access.kind.writes() && member.reduces()
                    })
            };
            self.shared_uses().any(|(a, b)| written_late(self.first, a) || written_late(self.second, b))
        })
    }

    /// Affine accesses to buffers that both use, the most bytes first.
    pub fn accesses(&self) -> &SitePairs<'a> {
        self.accesses.get_or_init(|| {
            let mut pairs: SmallVec<[(i64, BufferId, Site, Site); 8]> = SmallVec::new();
            for (a_use, b_use) in self.shared_uses() {
                for a in &a_use.accesses {
                    let (a_member, a) = self.first.access(*a);
                    for b in &b_use.accesses {
                        let (b_member, b) = self.second.access(*b);
                        if a.place.is_some() && b.place.is_some() {
                            let sites = ((self.first, a_member, a), (self.second, b_member, b));
                            pairs.push((a.bytes.min(b.bytes), a.buffer, sites.0, sites.1));
                        }
                    }
                }
            }
            pairs.sort_by_key(|p| (Reverse(p.0), p.1));
            pairs.into_iter().take(TRIED_ACCESSES).map(|p| (p.2, p.3)).collect()
        })
    }
}

/// Positions, in either cluster's list, of the buffers that both use.
fn shared_buffers<'a>(first: &'a Cluster, second: &'a Cluster) -> impl Iterator<Item = (usize, usize)> + 'a {
    let swapped = first.buffers.len() > second.buffers.len();
    let (few, many) = if swapped { (second, first) } else { (first, second) };
    // Far apart in size, each of the few is looked up; otherwise both lists are walked through.
    let look_up = many.buffers.len() > 8 * few.buffers.len();
    let (mut i, mut j) = (0, 0);
    std::iter::from_fn(move || {
        while i < few.buffers.len() && j < many.buffers.len() {
            let wanted = few.buffers[i].buffer;
            if look_up {
                j += many.buffers[j..].partition_point(|u| u.buffer < wanted);
            } else {
                while j < many.buffers.len() && many.buffers[j].buffer < wanted {
                    j += 1;
                }
            }
            i += 1;
            if many.buffers.get(j).is_some_and(|u| u.buffer == wanted) {
                return Some(if swapped { (j, i - 1) } else { (i - 1, j) });
            }
        }
        None
    })
}
