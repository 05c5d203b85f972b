//! The operators' lowerings, one file for each family.

mod pointwise;
mod reduction;
mod view;

use crate::table::Entry;

/// All families.
pub(crate) static FAMILIES: &[&[Entry]] = &[pointwise::TABLE, reduction::TABLE, view::TABLE];
