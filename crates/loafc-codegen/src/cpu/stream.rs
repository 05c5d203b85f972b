//! Hints for the memory system. Large results that a kernel only writes go past the cache in whole aligned vectors:
//! they need not be read before, and leave the cache to what is read again. Short runs of memory at a distance are
//! fetched ahead: the machine finds out by itself only where a run goes on.
//!
//! Stores that bypass the cache need aligned addresses. Positions are known to be multiples while code is generated;
//! where the buffers begin is looked at when a kernel runs, which has code for either case.

use llvm_sys::LLVMIntPredicate::LLVMIntEQ;
use loafc_ir::index::{Index, IndexAtom, LoopVar};
use loafc_ir::nest::BufferId;
use loafc_ir::size::Size;

use super::emit::{Emitter, LanePlace, Lanes, Place};
use super::ir::V;
use crate::kernel::Access;
use crate::loop_tree::{Kernel, MemoryPlace};

/// Results from this size on leave the cache before anyone reads them.
const STREAMED_BYTES: i64 = 16 << 20;

/// What such stores are aligned to: a cache line.
pub(super) const LINE_BYTES: i64 = 64;

/// How far ahead of a loop the buffers that it reads are fetched: one by the first distance, the next by the second and
/// so on, so that they don't come to the ends of pages, and to the same bank of memory, all at once.
const AHEAD_BYTES: [i64; 3] = [6144, 2048, 4096];

/// Rows whose short runs are fetched ahead are so many at least.
pub(super) const FEWEST_ROWS: i64 = 16;
/// Bytes of runs so long that the machine finds out by itself where they go on.
const LONG_RUN: i64 = 2048;
/// How many bytes of runs, and how many rows at most, come between what is fetched ahead and what is read.
const RUNS_AHEAD: i64 = 8192;
const MOST_ROWS_AHEAD: i64 = 32;

/// A loop each of whose iterations reads short runs of memory.
#[derive(Copy, Clone, Debug)]
pub(super) struct Rows {
    pub(super) var: LoopVar,
    /// Elements of a run.
    pub(super) length: i64,
}

/// The memories of a kernel that do not stay in any cache from one kernel to the next, and are only read.
pub(super) fn large(kernel: &Kernel) -> Vec<bool> {
    let is_large = |m: &crate::loop_tree::Memory| {
        let bytes = m.len.as_const().map(|len| len.saturating_mul(m.dtype.bytes() as i64));
        m.place == MemoryPlace::Param(Access::Read) && bytes.is_some_and(|b| b >= STREAMED_BYTES)
    };
    kernel.memory.iter().map(is_large).collect()
}

/// The memories of a kernel that are written past the cache.
pub(super) fn streamed(kernel: &Kernel) -> Vec<bool> {
    let is_streamed = |m: &crate::loop_tree::Memory| {
        let bytes = m.len.as_const().map(|len| len.saturating_mul(m.dtype.bytes() as i64));
        // The fence behind such stores is an instruction of x86.
        cfg!(target_arch = "x86_64")
            && m.place == MemoryPlace::Param(Access::Write)
            && bytes.is_some_and(|b| b >= STREAMED_BYTES)
    };
    kernel.memory.iter().map(is_streamed).collect()
}

pub(super) fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a.abs() } else { gcd(b, a % b) }
}

impl Emitter<'_, '_, '_> {
    /// Whether all streamed memories begin at a cache line.
    pub(super) fn all_aligned(&self) -> V {
        let ir = &self.ir;
        let bases = self.memory.iter().zip(&self.streamed).filter(|(_, s)| **s);
        let bits = bases.map(|(base, _)| ir.address(*base)).reduce(|a, b| ir.or(a, b));
        let low = ir.and(bits.unwrap_or_else(|| ir.i64(0)), ir.i64(LINE_BYTES - 1));
        ir.icmp(LLVMIntEQ, low, ir.i64(0))
    }

    /// A number that every value of a variable is a multiple of; 0 for one that is always 0.
    fn divisor_of_var(&self, var: LoopVar) -> i64 {
        self.divisors.get(&var).copied().unwrap_or(1)
    }

    /// A number that every value of an index is a multiple of; 0 for one that is always 0.
    pub(super) fn divisor(&self, index: &Index) -> i64 {
        let factor = |s: Size| s.as_const().unwrap_or(1);
        index.terms.iter().fold(factor(index.offset), |divisor, (atom, stride)| {
            let of_atom = match atom {
                IndexAtom::Loop(var) => self.divisor_of_var(*var),
                _ => 1,
            };
            gcd(divisor, factor(*stride).saturating_mul(of_atom))
        })
    }

    /// The alignment with which whole vectors at a place go past the cache; `None` where they don't.
    pub(super) fn streamed_alignment(&self, buffer: usize, place: &Place, lanes: Lanes) -> Option<u32> {
        let contiguous = matches!(place.lanes, LanePlace::Stride(s) if s.is(1));
        if !self.streaming || !self.streamed[buffer] || !contiguous || lanes.mask.is_some() {
            return None;
        }
        let item = self.kernel.memory[buffer].dtype.bytes() as i64;
        let vector = i64::from(lanes.count) * item;
        let whole = place.divisor % i64::from(lanes.count) == 0 && vector.count_ones() == 1 && vector >= 16;
        whole.then(|| vector.min(LINE_BYTES) as u32)
    }

    /// Fetches the run that a later row of a large buffer will read, where rows lie apart.
    pub(super) fn fetch_row_ahead(&self, buffer: usize, index: &Index, place: &Place) {
        let (Some(lanes), Some(rows)) = (self.lanes, self.rows) else { return };
        let contiguous = matches!(place.lanes, LanePlace::Stride(s) if s.is(1));
        let Some(stride) = index.stride_of(rows.var).as_const() else { return };
        if lanes.mask.is_some() || !self.large[buffer] || !contiguous {
            return;
        }
        let item = self.kernel.memory[buffer].dtype.bytes() as i64;
        let run = rows.length * item;
        let apart = stride.saturating_abs().saturating_mul(item) >= 2 * run;
        // Vectors of a part of a line would fetch it again and again.
        if !apart || run >= LONG_RUN || i64::from(lanes.count) * item < LINE_BYTES / 2 {
            return;
        }
        let ahead = (RUNS_AHEAD / run.max(1)).clamp(1, MOST_ROWS_AHEAD);
        let distance = self.ir.i64(stride.saturating_mul(item).saturating_mul(ahead));
        let first = self.pointer(BufferId(buffer as u32), place);
        self.ir.prefetch(self.ir.element(self.ir.int(8), first, distance));
    }

    /// Fetches what a loop over a large buffer will read: so many loads of a loop that computes little are under way at
    /// once that the machine's own prefetching falls behind them.
    pub(super) fn fetch_ahead(&self, buffer: usize, pointer: V, lanes: Lanes) {
        if lanes.mask.is_some() || !self.large[buffer] || !self.fetches_ahead {
            return;
        }
        let number = self.large[..buffer].iter().filter(|is_large| **is_large).count();
        let distance = self.ir.i64(AHEAD_BYTES[number % AHEAD_BYTES.len()]);
        let ahead = self.ir.element(self.ir.int(8), pointer, distance);
        self.ir.prefetch(ahead);
    }
}
