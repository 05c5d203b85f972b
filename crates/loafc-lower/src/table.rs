//! The table of operators with a lowering: from name to function. Families of operators list theirs in one file
//! each; adding an operator is one entry in one file.

use std::sync::OnceLock;

use loafc_ir::ops::Call;
use rustc_hash::FxHashMap;

use crate::lowering::{Lowered, Lowering};
use crate::ops;

/// What an operator does to its arguments.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Its results are the argument's elements: who reads them reads the argument.
    View,
    /// Computes with its arguments' elements.
    Compute,
    /// Needs its arguments in memory.
    Buffers,
}

/// Lowers one call.
pub(crate) type LowerFn = fn(&mut Lowering<'_>, &Call<'_>) -> Lowered;

/// An operator with a lowering.
pub(crate) struct Entry {
    /// Operator with overload.
    pub op: &'static str,
    /// What it does to its arguments.
    pub kind: Kind,
    /// Its lowering.
    pub lower: LowerFn,
}

/// An operator that computes with its arguments' elements.
pub(crate) const fn compute(op: &'static str, lower: LowerFn) -> Entry {
    Entry { op, kind: Kind::Compute, lower }
}

/// An operator whose results are its argument's elements.
pub(crate) const fn view(op: &'static str, lower: LowerFn) -> Entry {
    Entry { op, kind: Kind::View, lower }
}

/// An operator that needs its arguments in memory.
pub(crate) const fn buffers(op: &'static str, lower: LowerFn) -> Entry {
    Entry { op, kind: Kind::Buffers, lower }
}

/// The lowering of an operator, if it has one.
pub(crate) fn find(op: &str) -> Option<&'static Entry> {
    static TABLE: OnceLock<FxHashMap<&'static str, &'static Entry>> = OnceLock::new();
    TABLE
        .get_or_init(|| ops::FAMILIES.iter().flat_map(|f| f.iter()).map(|e| (e.op, e)).collect())
        .get(op)
        .copied()
}
