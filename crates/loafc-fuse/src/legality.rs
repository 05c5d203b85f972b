//! Whether two clusters may share an outer space: whatever one writes and the other touches must be the same
//! elements in the same outer iteration.
//!
//! Memory dependencies (read after write, write after write) and weak ones (write after read) are looked at
//! alike, every time, on the accesses themselves; nothing is remembered from an earlier round, so none can be
//! forgotten.

use loafc_ir::nest::BufferId;
use loafc_ir::size::Size;

use crate::access::{Access, AccessKind, PerDigit, embed};
use crate::cluster::{Member, Respace, Side};
use crate::pair::Pair;

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

/// An access of a cluster in another space; `None` if it is not affine.
pub fn place<'a>(side: &Side, member: &'a Member, access: &'a Access) -> Option<Placed<'a>> {
    let place = access.place.as_ref()?;
    let with = side.with;
    let (offset, outer) = (place.offset, with.outer);
    if side.is_unchanged {
        let (strides, inner) = (Sizes::Same(&place.strides), Sizes::Same(&member.inner));
        return Some(Placed { strides, inner, offset, outer });
    }
    let strides = Sizes::Other(with.strides(place, side.cluster.outer.len()));
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

/// Looks for a conflict between two clusters in a common space.
pub fn conflict(pair: &Pair, [first, second]: &[Side; 2]) -> Option<Conflict> {
    for (a_use, b_use) in pair.shared_uses() {
        if !a_use.written && !b_use.written {
            continue;
        }
        for a in &a_use.accesses {
            let (a_member, a_access) = pair.first.access(*a);
            let a_writes = a_access.kind.writes();
            if !a_writes && !b_use.written {
                continue;
            }
            if is_partial(a_member, a_access, first.with) {
                return Some(Conflict::Memory(a_use.buffer));
            }
            let pa = place(first, a_member, a_access);
            for b in &b_use.accesses {
                let (b_member, b_access) = pair.second.access(*b);
                if !a_writes && !b_access.kind.writes() {
                    continue;
                }
                if is_partial(b_member, b_access, second.with) {
                    return Some(Conflict::Memory(a_use.buffer));
                }
                if first.with.outer == 0 {
                    continue;
                }
                let (Some(pa), Some(pb)) = (&pa, &place(second, b_member, b_access)) else {
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
