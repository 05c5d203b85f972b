//! Memory that is reused across calls, aligned to cache lines. Writing a fresh allocation costs several times what
//! writing reused memory costs, because the kernel clears and maps it page by page; so outputs and scratch come from
//! here and go back when they are dropped. Small blocks wait in size classes for the next one of their size. Large
//! ones are cut from long stretches of address space with huge pages, and grow together again with their neighbours
//! when they come back: what was activations serves gradients, whatever sizes they have.

mod mapping;
mod spans;

use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::OnceLock;

use crate::fork::ForkLock;
use mapping::HUGE_PAGE;
use spans::{Span, Spans};

/// Alignment of every block in bytes: a cache line, and the widest vector.
pub const ALIGNMENT: usize = 64;

/// From this size on blocks are cut from mapped memory.
const LARGE: usize = 128 << 10;

/// Address space that is mapped at once. Only what is written to gets memory.
const SEGMENT: usize = 1 << 30;

/// Classes of small blocks per doubling of the size; at most 1/8 of a block is unused.
const STEPS: usize = 8;
const CLASSES: usize = LARGE.ilog2() as usize * STEPS;

/// How many classes above its own a request may be served from.
const LOOK_ABOVE: usize = 2;

/// Bytes of small blocks that wait for reuse at most.
const SMALL_LIMIT: usize = 8 << 20;

/// A pool of reusable memory.
pub struct Pool {
    pub(crate) state: ForkLock<State>,
}

pub(crate) struct State {
    /// Free small blocks by class; the last used one stands last.
    small: Vec<Vec<NonNull<u8>>>,
    small_bytes: usize,
    large: Spans,
    live_bytes: usize,
    peak_bytes: usize,
    limit: usize,
}

// SAFETY: plain memory without an owner on any thread.
unsafe impl Send for State {}

/// Memory of a block. Not freed on drop: the pool decides.
#[derive(Copy, Clone)]
enum Memory {
    Small { start: NonNull<u8>, class: usize },
    Large(Span),
}

// SAFETY: plain memory without an owner on any thread.
unsafe impl Send for Memory {}

/// What a pool holds, in bytes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct PoolUse {
    /// Waiting for reuse.
    pub free: usize,
    /// In blocks that are handed out.
    pub live: usize,
    /// The most that was handed out at once.
    pub peak: usize,
}

/// Memory could not be had from the system.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("out of memory: {bytes} bytes could not be allocated")]
pub struct OutOfMemory {
    /// What was asked for.
    pub bytes: usize,
}

/// The class of a small request.
fn class_of(bytes: usize) -> usize {
    let bytes = bytes.max(STEPS * ALIGNMENT);
    let octave = (bytes - 1).ilog2() as usize;
    let step = (1usize << octave) / STEPS;
    octave * STEPS + (bytes - (1 << octave)).div_ceil(step) - 1
}

fn class_bytes(class: usize) -> usize {
    let (octave, above) = (class / STEPS, class % STEPS + 1);
    (1 << octave) + above * ((1 << octave) / STEPS)
}

impl Memory {
    fn bytes(&self) -> usize {
        match self {
            Memory::Small { class, .. } => class_bytes(*class),
            Memory::Large(span) => span.bytes,
        }
    }

    fn start(&self) -> NonNull<u8> {
        match self {
            Memory::Small { start, .. } => *start,
            Memory::Large(span) => mapping::pointer(*span),
        }
    }
}

fn heap_layout(class: usize) -> Layout {
    Layout::from_size_align(class_bytes(class), ALIGNMENT).expect("small classes have a layout")
}

fn allocate_small(class: usize) -> Option<Memory> {
    // SAFETY: no class has zero bytes.
    let start = NonNull::new(unsafe { std::alloc::alloc(heap_layout(class)) })?;
    Some(Memory::Small { start, class })
}

fn free_small(start: NonNull<u8>, class: usize) {
    // SAFETY: allocated by `allocate_small` with the same layout.
    unsafe { std::alloc::dealloc(start.as_ptr(), heap_layout(class)) };
}

impl Pool {
    /// A pool that keeps at most `limit` bytes for reuse.
    pub fn with_limit(limit: usize) -> Pool {
        Pool {
            state: ForkLock::new(State {
                small: (0..CLASSES).map(|_| Vec::new()).collect(),
                small_bytes: 0,
                large: Spans::default(),
                live_bytes: 0,
                peak_bytes: 0,
                limit,
            }),
        }
    }

    /// The pool of this process. It keeps at most a quarter of the memory that the process may use.
    pub fn global() -> &'static Pool {
        static GLOBAL: OnceLock<Pool> = OnceLock::new();
        GLOBAL.get_or_init(|| Pool::with_limit((mapping::usable_memory() / 4).max(256 << 20)))
    }

    /// A block of at least `bytes` bytes, aligned to [`ALIGNMENT`]. Its contents are whatever was there before.
    pub fn take(&'static self, bytes: usize) -> Result<Block, OutOfMemory> {
        crate::fork::watch();
        let memory = if bytes < LARGE { self.take_small(bytes) } else { self.take_large(bytes) };
        let memory = memory.ok_or(OutOfMemory { bytes })?;
        Ok(Block { memory, bytes, pool: self })
    }

    fn take_small(&self, bytes: usize) -> Option<Memory> {
        let class = class_of(bytes);
        if let Some(memory) = self.state.with(|state| state.reuse_small(class)) {
            return Some(memory);
        }
        let memory = allocate_small(class).or_else(|| {
            self.trim(0);
            allocate_small(class)
        })?;
        self.state.with(|state| state.hand_out(memory.bytes()));
        Some(memory)
    }

    fn take_large(&self, bytes: usize) -> Option<Memory> {
        let bytes = bytes.checked_next_multiple_of(mapping::page())?;
        if let Some(memory) = self.state.with(|state| state.take_large(bytes)) {
            return Some(memory);
        }
        let segment = mapping::map(bytes.max(SEGMENT)).or_else(|| mapping::map(bytes)).or_else(|| {
            self.trim(0);
            mapping::map(bytes)
        })?;
        // At once, before another thread takes part of it.
        self.state.with(|state| {
            state.large.add_segment(segment);
            state.take_large(bytes)
        })
    }

    /// Gives free memory back to the system until at most `keep` bytes of it are left: large blocks first, the longest
    /// unused ones before others.
    pub fn trim(&self, keep: usize) {
        while let Some(span) = self.state.with(|state| state.oldest_beyond(keep)) {
            // SAFETY: spans are pages of mapped memory, and this one was just taken.
            unsafe { mapping::give_pages_back(span) };
            if let Some(segment) = self.state.with(|state| state.large.give_back_cold(span)) {
                // SAFETY: a whole mapping, of which nothing is handed out.
                unsafe { mapping::unmap(segment) };
            }
        }
        while let Some((start, class)) = self.state.with(|state| state.small_beyond(keep)) {
            free_small(start, class);
        }
    }

    /// What the pool holds now.
    pub fn usage(&self) -> PoolUse {
        self.state.with(|state| PoolUse {
            free: state.free_bytes(),
            live: state.live_bytes,
            peak: state.peak_bytes,
        })
    }

    /// From now on, [`PoolUse::peak`] tells of what comes.
    pub fn reset_peak(&self) {
        self.state.with(|state| state.peak_bytes = state.live_bytes);
    }

    fn give_back(&self, memory: Memory) {
        let (rejected, over) = self.state.with(|state| {
            let rejected = state.give_back(memory);
            (rejected, (state.free_bytes() > state.limit).then_some(state.limit))
        });
        if let Some((start, class)) = rejected {
            free_small(start, class);
        }
        if let Some(limit) = over {
            self.trim(limit);
        }
    }
}

impl State {
    fn free_bytes(&self) -> usize {
        self.small_bytes + self.large.warm_bytes()
    }

    fn reuse_small(&mut self, class: usize) -> Option<Memory> {
        let mut classes = class..CLASSES.min(class + 1 + LOOK_ABOVE);
        let (class, start) = classes.find_map(|c| Some((c, self.small[c].pop()?)))?;
        self.small_bytes -= class_bytes(class);
        self.hand_out(class_bytes(class));
        Some(Memory::Small { start, class })
    }

    fn take_large(&mut self, bytes: usize) -> Option<Memory> {
        let span = self.large.take(bytes)?;
        self.hand_out(span.bytes);
        Some(Memory::Large(span))
    }

    fn hand_out(&mut self, bytes: usize) {
        self.live_bytes += bytes;
        self.peak_bytes = self.peak_bytes.max(self.live_bytes);
    }

    /// Returns a small block of which there are enough, with its class.
    fn give_back(&mut self, memory: Memory) -> Option<(NonNull<u8>, usize)> {
        self.live_bytes -= memory.bytes();
        match memory {
            Memory::Large(span) => self.large.give_back(span),
            Memory::Small { start, class } => {
                if self.small_bytes + memory.bytes() > SMALL_LIMIT.min(self.limit) {
                    return Some((start, class));
                }
                self.small_bytes += memory.bytes();
                self.small[class].push(start);
            }
        }
        None
    }

    /// The largest small block, as long as there is more than `keep`.
    fn small_beyond(&mut self, keep: usize) -> Option<(NonNull<u8>, usize)> {
        if self.free_bytes() <= keep {
            return None;
        }
        let (class, start) = (0..CLASSES).rev().find_map(|class| Some((class, self.small[class].pop()?)))?;
        self.small_bytes -= class_bytes(class);
        Some((start, class))
    }

    /// Whole pages of the longest unused memory, as long as there is more than `keep`.
    fn oldest_beyond(&mut self, keep: usize) -> Option<Span> {
        let excess = self.free_bytes().checked_sub(keep).filter(|excess| *excess > 0)?;
        self.large.take_oldest(excess.next_multiple_of(HUGE_PAGE))
    }
}

/// Memory from a pool; goes back there on drop.
pub struct Block {
    memory: Memory,
    bytes: usize,
    pool: &'static Pool,
}

// SAFETY: shared references only hand out the address; whoever reads or writes through it answers for it.
unsafe impl Sync for Block {}

impl Block {
    /// First byte, aligned to [`ALIGNMENT`].
    pub fn as_ptr(&self) -> *mut u8 {
        self.memory.start().as_ptr()
    }

    /// Bytes that were asked for.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether no bytes were asked for.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.pool.give_back(self.memory);
    }
}

impl std::fmt::Debug for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Block({:p}, {} bytes)", self.as_ptr(), self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pool(limit: usize) -> &'static Pool {
        Box::leak(Box::new(Pool::with_limit(limit)))
    }

    proptest! {
        #[test]
        fn a_class_holds_its_request_and_wastes_little(bytes in 0usize..LARGE) {
            let size = class_bytes(class_of(bytes));
            prop_assert!(size >= bytes);
            prop_assert!(size <= bytes.max(STEPS * ALIGNMENT) + bytes.max(STEPS * ALIGNMENT) / STEPS);
            prop_assert_eq!(size % ALIGNMENT, 0);
        }
    }

    #[test]
    fn classes_grow_without_gaps() {
        for class in class_of(0)..CLASSES - 1 {
            assert_eq!(class_of(class_bytes(class)), class);
            assert_eq!(class_of(class_bytes(class) + 1), class + 1);
        }
        assert_eq!(class_of(LARGE - 1), CLASSES - 1);
    }

    #[test]
    fn a_dropped_block_is_handed_out_again() {
        let pool = pool(1 << 30);
        for bytes in [1, 1000, 3 << 20] {
            let first = pool.take(bytes).unwrap();
            let at = first.as_ptr();
            assert_eq!(at as usize % ALIGNMENT, 0);
            drop(first);
            assert_eq!(pool.take(bytes).unwrap().as_ptr(), at);
        }
    }

    #[test]
    fn blocks_in_use_do_not_overlap_and_can_be_written() {
        let pool = pool(1 << 30);
        let blocks: Vec<Block> = (0..20).map(|k| pool.take(100 + k * 300_000).unwrap()).collect();
        for (k, b) in blocks.iter().enumerate() {
            // SAFETY: the block has that many bytes and nobody else has it.
            unsafe { std::ptr::write_bytes(b.as_ptr(), k as u8, b.len()) };
        }
        for (k, b) in blocks.iter().enumerate() {
            // SAFETY: written above.
            let bytes = unsafe { std::slice::from_raw_parts(b.as_ptr(), b.len()) };
            assert!(bytes.iter().all(|x| *x == k as u8));
        }
    }

    /// Whether the system may put a huge page where this byte lies, by the process's map of its memory.
    fn may_be_huge(address: usize) -> bool {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut holds = false;
        for line in maps.lines() {
            let first = line.split(' ').next().unwrap_or_default();
            let hexadecimal = |text| usize::from_str_radix(text, 16).ok();
            let range = first.split_once('-').and_then(|(a, b)| Some(hexadecimal(a)?..hexadecimal(b)?));
            holds = range.map_or(holds, |range| range.contains(&address));
            if let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| holds) {
                return flags.split(' ').any(|flag| flag == "hg");
            }
        }
        panic!("{address:x} is mapped nowhere");
    }

    #[test]
    fn large_blocks_may_have_huge_pages() {
        if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
            return;
        }
        let block = pool(1 << 30).take(5 << 20).unwrap();
        assert!(may_be_huge(block.as_ptr() as usize));
        assert!(may_be_huge(block.as_ptr() as usize + block.len() - 1));
    }

    #[test]
    fn memory_of_several_blocks_serves_a_larger_one() {
        let pool = pool(1 << 30);
        let blocks: Vec<Block> = [1, 5, 2].map(|k| pool.take(k << 20).unwrap()).into();
        let first = blocks[0].as_ptr();
        drop(blocks);
        let held = pool.usage().free;
        let large = pool.take(8 << 20).unwrap();
        assert_eq!(large.as_ptr(), first);
        assert_eq!(pool.usage(), PoolUse { free: held - (8 << 20), live: 8 << 20, peak: 8 << 20 });
    }

    /// Bytes of this range that are in memory.
    fn resident(start: *mut u8, bytes: usize) -> usize {
        // SAFETY: a plain query.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let mut pages = vec![0u8; bytes / page];
        // SAFETY: a byte for each page of the range.
        assert_eq!(unsafe { libc::mincore(start.cast(), bytes, pages.as_mut_ptr()) }, 0);
        pages.iter().filter(|p| **p & 1 == 1).count() * page
    }

    #[test]
    fn what_is_beyond_the_limit_goes_back_to_the_system() {
        let pool = pool(4 << 20);
        let kept = pool.take(1 << 20).unwrap();
        let block = pool.take(16 << 20).unwrap();
        let start = block.as_ptr();
        // SAFETY: the block has that many bytes.
        unsafe { std::ptr::write_bytes(start, 1, block.len()) };
        assert_eq!(resident(start, 16 << 20), 16 << 20);
        drop(block);
        assert!(pool.usage().free <= 4 << 20, "{:?}", pool.usage());
        assert!(resident(start, 16 << 20) <= 4 << 20);
        drop(kept);
        pool.trim(0);
        assert_eq!(pool.usage(), PoolUse { free: 0, live: 0, peak: 17 << 20 });
        pool.reset_peak();
        assert_eq!(pool.usage().peak, 0);
    }

    #[test]
    fn small_blocks_wait_within_the_limit_and_go_when_trimmed() {
        let pool = pool(10_000);
        let (a, b, c) = (pool.take(4096).unwrap(), pool.take(4096).unwrap(), pool.take(4096).unwrap());
        let (first, second) = (a.as_ptr(), b.as_ptr());
        drop((a, b, c));
        assert_eq!(pool.usage(), PoolUse { free: 8192, live: 0, peak: 12288 });
        assert!([first, second].contains(&pool.take(4096).unwrap().as_ptr()));
        pool.trim(5000);
        assert_eq!(pool.usage().free, 4096);
        pool.trim(0);
        assert_eq!(pool.usage().free, 0);
    }

    #[test]
    fn what_no_machine_has_is_an_error() {
        assert_eq!(pool(0).take(usize::MAX).unwrap_err(), OutOfMemory { bytes: usize::MAX });
        // Unless the system is told to promise anything.
        let policy = std::fs::read_to_string("/proc/sys/vm/overcommit_memory").unwrap_or_default();
        let bytes = 1 << 46;
        assert_eq!(pool(0).take(bytes).is_err(), policy.trim() != "1");
    }

    #[test]
    fn a_forked_child_can_take_and_give_back() {
        let busy = std::sync::atomic::AtomicBool::new(true);
        let order = std::sync::atomic::Ordering::Relaxed;
        let status = std::thread::scope(|s| {
            s.spawn(|| {
                while busy.load(order) {
                    drop([1 << 12, 1 << 20].map(|bytes| Pool::global().take(bytes)));
                    Pool::global().trim(0);
                }
            });
            std::thread::sleep(std::time::Duration::from_millis(5));
            // SAFETY: the child only uses the pool and then leaves without running anything else.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let fine = (12..24).all(|k| Pool::global().take(1 << k).is_ok()) && crate::fork::is_child();
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(if fine { 0 } else { 1 }) };
            }
            let mut status = -1;
            // SAFETY: waits for our own child.
            unsafe { libc::waitpid(child, &mut status, 0) };
            busy.store(false, order);
            status
        });
        assert_eq!(status, 0);
    }
}
