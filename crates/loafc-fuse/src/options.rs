//! What a user can set of the scheduler, and the limits that keep kernels and compile times sane.

/// Settings of the scheduler. Names are TorchInductor's where they mean the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FuseOptions {
    /// Whether the final round runs.
    pub loop_ordering_after_fusion: bool,
    /// Whether reductions over different loops may share one pass through partial results.
    pub mixed_reduction_orders: bool,
    /// Most nests in one kernel.
    pub max_fusion_size: usize,
    /// Fusions that save fewer bytes than this are not made.
    pub score_fusion_memory_threshold: i64,
    /// Stop after this many fusions, to bisect a wrong result.
    pub stop_after_fusion: Option<usize>,
    /// Take candidates in random order from this seed: results must stay right whatever is fused first.
    pub fusion_chaos_seed: Option<u64>,
    /// What counts as much work, little memory and so on.
    pub limits: Limits,
}

/// Sizes at which the scheduler's mind changes. They are the same on every machine, so that a program has one
/// schedule; tests make them small, so that small programs meet every case.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a buffer that one outer iteration may touch for a later stage to find them in the cache again: the
    /// second-level cache of current server cores holds 1 to 2 MiB.
    pub cached_bytes: i64,
    /// Element-iterations up to which one thread is as fast as several; such work may lose its outer loops.
    pub serial_work: i64,
    /// Element-iterations from which a kernel must keep `min_outer` outer iterations for the threads.
    pub parallel_work: i64,
    /// See `parallel_work`.
    pub min_outer: i64,
    /// Bytes that mixed reduction orders must save to be worth a second, combining phase.
    pub mixed_min_saved: i64,
    /// Parts into which an outer space is cut for partial results.
    pub partial_chunks: i64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            cached_bytes: 1 << 20,
            serial_work: 32 << 10,
            parallel_work: 1 << 20,
            min_outer: 16,
            mixed_min_saved: 64 << 10,
            partial_chunks: 16,
        }
    }
}

impl Limits {
    /// Limits that programs of a few hundred elements reach.
    pub const fn tiny() -> Limits {
        Limits {
            cached_bytes: 256,
            serial_work: 16,
            parallel_work: 1 << 20,
            min_outer: 2,
            mixed_min_saved: 1,
            partial_chunks: 0,
        }
    }
}

impl Default for FuseOptions {
    fn default() -> Self {
        FuseOptions {
            loop_ordering_after_fusion: true,
            mixed_reduction_orders: true,
            max_fusion_size: 64,
            score_fusion_memory_threshold: 10,
            stop_after_fusion: None,
            fusion_chaos_seed: None,
            limits: Limits::default(),
        }
    }
}

/// Most buffers in program memory that one kernel touches: more streams than this defeat the hardware
/// prefetcher and the TLB.
pub const MAX_KERNEL_BUFFERS: usize = 64;

/// Columns that one outer iteration drags along when its rows are not contiguous: a cache line's worth.
pub const LINE_BYTES: i64 = 64;

/// Readers of a buffer, nearest first, that its writer is paired with.
pub const READERS: usize = 16;

/// Other readers of a buffer, on either side, that a reader is paired with. A weight that a thousand groups read
/// would otherwise make half a million pairs.
pub const NEIGHBOURS: usize = 4;

/// Steps between two nests that only read the same buffer up to which they are a pair: bringing work forward from
/// further away keeps its results in memory for longer than sharing a read is worth.
pub const NEAR: u32 = 32;

/// Groups visited at most when looking for a path between two; beyond that a fusion is not made.
pub const MAX_PATH_SEARCH: usize = 128;

/// The same for two that are [`FAR`] steps or more apart. If there is a path it is too long to be found; that there is
/// none shows soon, where next to nothing follows the first or leads to the second.
pub const MAX_FAR_PATH_SEARCH: usize = 16;

/// See [`MAX_FAR_PATH_SEARCH`].
pub const FAR: u32 = 512;
