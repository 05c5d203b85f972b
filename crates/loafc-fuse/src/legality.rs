//! Whether two clusters may share an outer space: whatever one writes and the other touches must be the same
//! elements in the same outer iteration.
//!
//! Memory dependencies (read after write, write after write) and weak ones (write after read) are looked at
//! alike, every time, on the accesses themselves; nothing is remembered from an earlier round, so none can be
//! forgotten.

use loafc_ir::nest::BufferId;
use loafc_ir::size::Size;

use crate::access::{Access, AccessKind, PerDigit, embed};
use crate::alignment::Alignment;
use crate::cluster::{Cluster, Member, Respace};

/// Why two clusters may not share a space.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Conflict {
    /// The reader needs elements that another outer iteration writes.
    Memory(BufferId),
    /// The writer overwrites what another outer iteration still reads.
    Weak(BufferId),
    /// It is not known which elements are touched.
    Opaque(BufferId),
}

/// An access as it is under an alignment.
pub struct Placed<'a> {
    /// Strides over outer digits, then over the member's inner ones.
    pub strides: Sizes<'a>,
    /// Extents of the inner digits.
    pub inner: Sizes<'a>,
    /// Element at which all digits are zero.
    pub offset: Size,
    /// Number of outer digits.
    pub outer: usize,
}

/// Sizes that are either those of the cluster as it is, or computed for another space of it.
pub enum Sizes<'a> {
    /// As they are.
    Same(&'a [Size]),
    /// Computed.
    Other(PerDigit),
}

impl std::ops::Deref for Sizes<'_> {
    type Target = [Size];

    fn deref(&self) -> &[Size] {
        match self {
            Sizes::Same(list) => list,
            Sizes::Other(list) => list,
        }
    }
}

impl Placed<'_> {
    /// Strides over the inner digits, and their extents.
    pub fn inner_terms(&self) -> (&[Size], &[Size]) {
        (&self.strides[self.outer..], &self.inner)
    }
}

/// An access under a respacing of its cluster; `None` if it is not affine.
pub fn place<'a>(
    cluster: &Cluster,
    member: &'a Member,
    access: &'a Access,
    with: &Respace,
) -> Option<Placed<'a>> {
    let place = access.place.as_ref()?;
    let (offset, outer) = (place.offset, with.outer);
    if with.is_identity(&cluster.outer) {
        let (strides, inner) = (Sizes::Same(&place.strides), Sizes::Same(&member.inner));
        return Some(Placed { strides, inner, offset, outer });
    }
    let strides = Sizes::Other(with.strides(place, cluster.outer.len()));
    let inner =
        if with.demotes() { Sizes::Other(with.inner(member)) } else { Sizes::Same(with.kept_inner(member)) };
    Some(Placed { strides, inner, offset, outer })
}

/// Whether the outer digits move both accesses alike.
pub fn same_outer(a: &Placed, b: &Placed) -> bool {
    a.strides[..a.outer] == b.strides[..b.outer]
}

/// Whether each outer iteration of `inner` stays within what the same iteration of `outer` touches.
pub fn within(inner: &Placed, outer: &Placed) -> bool {
    if !same_outer(inner, outer) {
        return false;
    }
    (inner.offset == outer.offset && inner.inner_terms() == outer.inner_terms())
        || embed(inner.inner_terms(), outer.inner_terms(), inner.offset - outer.offset).is_some()
}

/// Whether an access writes partial results: those of a reduction over outer digits, which are complete only when
/// the kernel ends.
fn is_partial(member: &Member, access: &Access, with: &Respace) -> bool {
    access.kind.writes() && with.digits[..with.outer].iter().any(|d| member.reduced[d.from])
}

/// Looks for a conflict between two clusters under an alignment.
pub fn conflict(first: &Cluster, second: &Cluster, alignment: &Alignment) -> Option<Conflict> {
    for (mine, theirs) in shared_buffers(first, second) {
        let (a_use, b_use) = (&first.buffers[mine], &second.buffers[theirs]);
        if !a_use.written && !b_use.written {
            continue;
        }
        for a in &a_use.accesses {
            let (a_member, a_access) = first.access(*a);
            let a_writes = a_access.kind.writes();
            if !a_writes && !b_use.written {
                continue;
            }
            if is_partial(a_member, a_access, &alignment.first) {
                return Some(Conflict::Memory(a_use.buffer));
            }
            let pa = place(first, a_member, a_access, &alignment.first);
            for b in &b_use.accesses {
                let (b_member, b_access) = second.access(*b);
                if !a_writes && !b_access.kind.writes() {
                    continue;
                }
                if is_partial(b_member, b_access, &alignment.second) {
                    return Some(Conflict::Memory(a_use.buffer));
                }
                if alignment.first.outer == 0 {
                    continue;
                }
                let (Some(pa), Some(pb)) = (&pa, &place(second, b_member, b_access, &alignment.second))
                else {
                    return Some(Conflict::Opaque(a_use.buffer));
                };
                let fine = if a_writes { within(pb, pa) } else { within(pa, pb) };
                if !fine {
                    let earlier = if a_member.step < b_member.step { a_access } else { b_access };
                    let buffer = a_use.buffer;
                    return Some(if earlier.kind == AccessKind::Read {
                        Conflict::Weak(buffer)
                    } else {
                        Conflict::Memory(buffer)
                    });
                }
            }
        }
    }
    None
}

/// Positions, in either cluster's list, of the buffers that both use.
pub fn shared_buffers<'a>(
    first: &'a Cluster,
    second: &'a Cluster,
) -> impl Iterator<Item = (usize, usize)> + 'a {
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
