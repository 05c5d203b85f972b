//! The operators' lowerings, one file for each family.

mod activation;
mod cat;
mod conv;
mod creation;
mod foreach;
mod indexing;
mod norm;
mod pointwise;
mod pool;
mod random;
mod reduction;
mod scatter;
mod view;

use crate::table::Entry;

/// All families.
pub(crate) static FAMILIES: &[&[Entry]] = &[
    activation::TABLE,
    cat::TABLE,
    conv::TABLE,
    creation::TABLE,
    foreach::TABLE,
    indexing::TABLE,
    norm::TABLE,
    pointwise::TABLE,
    pool::TABLE,
    random::TABLE,
    reduction::TABLE,
    scatter::TABLE,
    view::TABLE,
];
