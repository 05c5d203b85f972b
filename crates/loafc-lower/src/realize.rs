//! Which lazy values are stored to memory of their own: the one cost rule of the lowering, with its reasons.
//!
//! Computing a value anew in each consumer saves a buffer, but costs its operations and reads each time. The
//! scheduler can fuse a stored value with its consumers again and then drop the buffer, so storing is the
//! cheaper mistake for anything dear; for a few additions it isn't, since a consumer that ends up in another
//! kernel would read one buffer more.

use crate::expr::Cost;

/// Limits of the cost rule. The defaults follow what TorchInductor found to work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LowerOptions {
    /// A value with several users that reads more buffers than this is stored: each user would read them all.
    pub realize_reads_threshold: usize,
    /// A value with several users that takes more operations than this is stored.
    pub realize_opcount_threshold: u32,
    /// A value that takes more operations than this is stored even for a single user, so that no body, and no
    /// compile time, grows with the length of a chain.
    pub max_body_ops: u32,
    /// A value that reads more buffers than this is stored even for a single user: kernels get one pointer for
    /// each buffer.
    pub max_reads: usize,
    /// Concatenations of more tensors than this write each tensor to its slice of the result, instead of
    /// choosing between them for each element.
    pub max_pointwise_cat_inputs: usize,
}

impl Default for LowerOptions {
    fn default() -> Self {
        LowerOptions {
            realize_reads_threshold: 4,
            realize_opcount_threshold: 30,
            max_body_ops: 128,
            max_reads: 32,
            max_pointwise_cat_inputs: 8,
        }
    }
}

/// How a value is used.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Demand {
    /// Number of calls that compute with it, also through views.
    pub users: u32,
    /// Whether some user needs it in memory in any case: an output, an argument of an extern call.
    pub needs_buffer: bool,
}

/// Whether a value is too dear to compute an element more than once.
pub(crate) fn is_dear(cost: &Cost, options: &LowerOptions) -> bool {
    cost.heavy > 0
        || cost.ops > options.realize_opcount_threshold
        || cost.reads.len() > options.realize_reads_threshold
}

/// Whether a value is so large that it is stored whoever uses it.
pub(crate) fn is_too_large(cost: &Cost, options: &LowerOptions) -> bool {
    cost.ops > options.max_body_ops || cost.reads.len() > options.max_reads
}

/// Whether a value with this cost is stored when it is made. One user inlines it whatever it costs.
pub(crate) fn should_realize(cost: &Cost, demand: Demand, options: &LowerOptions) -> bool {
    is_too_large(cost, options) || demand.users > 1 && (demand.needs_buffer || is_dear(cost, options))
}
