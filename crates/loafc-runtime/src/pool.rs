//! Memory that is reused across calls: blocks in size classes, aligned to cache lines, the large ones mapped with
//! huge pages. Writing a fresh allocation costs several times what writing reused memory costs, because the kernel
//! clears and maps it page by page; so outputs and scratch come from here and go back when they are dropped.

use std::alloc::Layout;
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::OnceLock;

use crate::fork::ForkLock;

/// Alignment of every block in bytes: a cache line, and the widest vector.
pub const ALIGNMENT: usize = 64;

/// From this size on a block is mapped on its own and asks for huge pages.
const MAPPED_FROM: usize = HUGE_PAGE;
const HUGE_PAGE: usize = 2 << 20;
/// A multiple of the page size of all machines in use.
const PAGE: usize = 64 << 10;

/// Classes per doubling of the size; at most 1/8 of a block is unused.
const STEPS: usize = 8;
/// Up to 2^48 bytes.
const CLASSES: usize = 48 * STEPS;

/// How many classes above its own a request may be served from.
const LOOK_ABOVE: usize = 2;

/// A pool of reusable memory.
pub struct Pool {
    pub(crate) state: ForkLock<State>,
}

pub(crate) struct State {
    /// Free blocks by class; the last used one stands last.
    free: Vec<VecDeque<FreeBlock>>,
    free_bytes: usize,
    live_bytes: usize,
    limit: usize,
    clock: u64,
}

struct FreeBlock {
    memory: Memory,
    /// When it came back: the oldest go first when there is too much.
    stamp: u64,
}

/// Raw memory of one class. Not freed on drop: the pool decides.
#[derive(Clone, Copy)]
struct Memory {
    start: NonNull<u8>,
    class: usize,
}

// SAFETY: plain memory without an owner on any thread.
unsafe impl Send for Memory {}

/// What a pool holds, in bytes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct PoolUse {
    /// In blocks that wait for reuse.
    pub free: usize,
    /// In blocks that are handed out.
    pub live: usize,
}

/// Memory could not be had from the system.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("out of memory: {bytes} bytes could not be allocated")]
pub struct OutOfMemory {
    /// What was asked for.
    pub bytes: usize,
}

/// The class of a request and the bytes that blocks of it have.
fn class_of(bytes: usize) -> Option<(usize, usize)> {
    if bytes > 1 << 47 {
        return None;
    }
    let bytes = bytes.max(STEPS * ALIGNMENT);
    let octave = (bytes.ilog2() as usize).checked_sub(if bytes.is_power_of_two() { 1 } else { 0 })?;
    let step = (1usize << octave) / STEPS;
    let above = (bytes - (1 << octave)).div_ceil(step);
    let class = octave * STEPS + above - 1;
    (class < CLASSES).then_some((class, (1 << octave) + above * step))
}

fn class_bytes(class: usize) -> usize {
    let (octave, above) = (class / STEPS, class % STEPS + 1);
    (1 << octave) + above * ((1 << octave) / STEPS)
}

impl Memory {
    fn allocate(class: usize) -> Option<Memory> {
        let bytes = class_bytes(class);
        let start = if bytes >= MAPPED_FROM { map(bytes)? } else { heap(bytes)? };
        Some(Memory { start, class })
    }

    fn free(self) {
        let bytes = class_bytes(self.class);
        if bytes >= MAPPED_FROM {
            // SAFETY: exactly the range that `map` kept.
            unsafe { libc::munmap(self.start.as_ptr().cast(), mapped_bytes(bytes)) };
        } else {
            // SAFETY: allocated by `heap` with the same layout.
            unsafe { std::alloc::dealloc(self.start.as_ptr(), heap_layout(bytes)) };
        }
    }
}

fn heap_layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, ALIGNMENT).expect("classes below 2 MiB have a layout")
}

fn heap(bytes: usize) -> Option<NonNull<u8>> {
    // SAFETY: no class has zero bytes.
    NonNull::new(unsafe { std::alloc::alloc(heap_layout(bytes)) })
}

/// Whole huge pages where little of the last one is left over. Otherwise the rest behind them has pages of the usual
/// size: writing its first byte would make a whole huge page resident.
fn mapped_bytes(bytes: usize) -> usize {
    let whole = bytes.next_multiple_of(HUGE_PAGE);
    if whole - bytes <= bytes / STEPS { whole } else { bytes.next_multiple_of(PAGE) }
}

/// Maps memory aligned to huge pages: maps more, and gives back what stands out at both ends.
fn map(bytes: usize) -> Option<NonNull<u8>> {
    let wanted = mapped_bytes(bytes);
    let room = wanted.checked_add(HUGE_PAGE)?;
    // SAFETY: a fresh anonymous mapping.
    let raw = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            room,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if raw == libc::MAP_FAILED {
        return None;
    }
    let address = raw as usize;
    let start = address.next_multiple_of(HUGE_PAGE);
    let (before, after) = (start - address, room - wanted - (start - address));
    // SAFETY: both ranges lie in the mapping above and are used by nobody; the advice can't hurt and may fail.
    unsafe {
        if before > 0 {
            libc::munmap(raw, before);
        }
        if after > 0 {
            libc::munmap((start + wanted) as *mut libc::c_void, after);
        }
        libc::madvise(start as *mut libc::c_void, wanted, libc::MADV_HUGEPAGE);
    }
    NonNull::new(start as *mut u8)
}

fn physical_memory() -> usize {
    // SAFETY: plain queries.
    let (pages, page) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    usize::try_from(pages).unwrap_or(0).saturating_mul(usize::try_from(page).unwrap_or(0))
}

impl Pool {
    /// A pool that keeps at most `limit` bytes for reuse.
    pub fn with_limit(limit: usize) -> Pool {
        Pool {
            state: ForkLock::new(State {
                free: (0..CLASSES).map(|_| VecDeque::new()).collect(),
                free_bytes: 0,
                live_bytes: 0,
                limit,
                clock: 0,
            }),
        }
    }

    /// The pool of this process. It keeps at most a quarter of the machine's memory for reuse.
    pub fn global() -> &'static Pool {
        static GLOBAL: OnceLock<Pool> = OnceLock::new();
        GLOBAL.get_or_init(|| Pool::with_limit((physical_memory() / 4).max(256 << 20)))
    }

    /// A block of at least `bytes` bytes, aligned to [`ALIGNMENT`]. Its contents are whatever was there before.
    pub fn take(&'static self, bytes: usize) -> Result<Block, OutOfMemory> {
        crate::fork::watch();
        let (class, class_size) = class_of(bytes).ok_or(OutOfMemory { bytes })?;
        let reused = self.state.with(|state| {
            let found = (class..CLASSES.min(class + 1 + LOOK_ABOVE))
                .find_map(|c| state.free[c].pop_back().map(|b| b.memory));
            if let Some(memory) = found {
                state.free_bytes -= class_bytes(memory.class);
                state.live_bytes += class_bytes(memory.class);
            }
            found
        });
        if let Some(memory) = reused {
            return Ok(Block { memory, bytes, pool: self });
        }
        let memory = Memory::allocate(class).or_else(|| {
            self.trim(0);
            Memory::allocate(class)
        });
        let memory = memory.ok_or(OutOfMemory { bytes })?;
        self.state.with(|state| state.live_bytes += class_size);
        Ok(Block { memory, bytes, pool: self })
    }

    /// Gives free blocks back to the system until at most `keep` bytes of them are left, the longest unused first.
    pub fn trim(&self, keep: usize) {
        while let Some(memory) = self.state.with(|state| state.oldest_beyond(keep)) {
            memory.free();
        }
    }

    /// What the pool holds now.
    pub fn usage(&self) -> PoolUse {
        self.state.with(|state| PoolUse { free: state.free_bytes, live: state.live_bytes })
    }

    fn give_back(&self, memory: Memory) {
        let bytes = class_bytes(memory.class);
        let over = self.state.with(|state| {
            state.clock += 1;
            state.live_bytes -= bytes;
            state.free_bytes += bytes;
            let stamp = state.clock;
            state.free[memory.class].push_back(FreeBlock { memory, stamp });
            (state.free_bytes > state.limit).then_some(state.limit)
        });
        if let Some(limit) = over {
            self.trim(limit);
        }
    }
}

impl State {
    fn oldest_beyond(&mut self, keep: usize) -> Option<Memory> {
        if self.free_bytes <= keep {
            return None;
        }
        let fronts = self.free.iter().enumerate().filter_map(|(c, list)| Some((list.front()?.stamp, c)));
        let (_, class) = fronts.min()?;
        let block = self.free[class].pop_front()?;
        self.free_bytes -= class_bytes(class);
        Some(block.memory)
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
        self.memory.start.as_ptr()
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
        fn a_class_holds_its_request_and_wastes_little(bytes in 0usize..1 << 40) {
            let (class, size) = class_of(bytes).unwrap();
            prop_assert_eq!(class_bytes(class), size);
            prop_assert!(size >= bytes);
            prop_assert!(size <= bytes.max(STEPS * ALIGNMENT) + bytes.max(STEPS * ALIGNMENT) / STEPS);
            prop_assert_eq!(size % ALIGNMENT, 0);
        }
    }

    #[test]
    fn classes_grow_without_gaps() {
        let first = class_of(0).unwrap().0;
        for c in (first..CLASSES - 1).take_while(|c| class_bytes(c + 1) <= 1 << 47) {
            assert_eq!(class_of(class_bytes(c)), Some((c, class_bytes(c))));
            assert_eq!(class_of(class_bytes(c) + 1).unwrap().0, c + 1);
        }
    }

    #[test]
    fn a_mapping_holds_its_block_and_wastes_little() {
        for bytes in [HUGE_PAGE, HUGE_PAGE + 1, 5 << 19, 4 * HUGE_PAGE - 1, 100 << 20] {
            let mapped = mapped_bytes(bytes);
            assert!(mapped >= bytes && mapped - bytes <= (bytes / STEPS).max(PAGE), "{bytes}: {mapped}");
            let start = map(bytes).unwrap();
            assert_eq!(start.as_ptr() as usize % HUGE_PAGE, 0);
            // SAFETY: the first and the last byte of the mapping, which is then given back.
            unsafe {
                *start.as_ptr() = 1;
                *start.as_ptr().add(bytes - 1) = 2;
                assert_eq!(libc::munmap(start.as_ptr().cast(), mapped), 0);
            }
        }
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

    #[test]
    fn large_blocks_start_at_huge_pages() {
        assert_eq!(pool(1 << 30).take(5 << 20).unwrap().as_ptr() as usize % HUGE_PAGE, 0);
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
    fn the_small_rest_of_a_block_has_no_huge_page() {
        if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
            return;
        }
        // Five quarters of a huge page.
        let bytes = 5 << 19;
        let block = pool(1 << 30).take(bytes).unwrap();
        let (start, mapped) = (block.as_ptr() as usize, mapped_bytes(bytes));
        let whole = mapped / HUGE_PAGE * HUGE_PAGE;
        assert!(0 < whole && whole < mapped);
        assert!(may_be_huge(start) && may_be_huge(start + whole - 1));
        assert!(!may_be_huge(start + whole) && !may_be_huge(start + mapped - 1));
    }

    #[test]
    fn the_longest_unused_blocks_go_when_there_is_too_much() {
        let pool = pool(10_000);
        let (a, b, c) = (pool.take(4096).unwrap(), pool.take(4096).unwrap(), pool.take(4096).unwrap());
        let last = c.as_ptr();
        drop((a, b));
        drop(c);
        assert_eq!(pool.usage(), PoolUse { free: 8192, live: 0 });
        assert_eq!(pool.take(4096).unwrap().as_ptr(), last);
        pool.trim(0);
        assert_eq!(pool.usage(), PoolUse { free: 0, live: 0 });
    }

    #[test]
    fn what_no_machine_has_is_an_error() {
        assert_eq!(pool(0).take(usize::MAX).unwrap_err(), OutOfMemory { bytes: usize::MAX });
    }

    #[test]
    fn a_forked_child_can_take_and_give_back() {
        let busy = std::sync::atomic::AtomicBool::new(true);
        let order = std::sync::atomic::Ordering::Relaxed;
        let status = std::thread::scope(|s| {
            s.spawn(|| {
                while busy.load(order) {
                    drop(Pool::global().take(1 << 12));
                }
            });
            std::thread::sleep(std::time::Duration::from_millis(5));
            // SAFETY: the child only uses the pool and then leaves without running anything else.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let fine = (0..100).all(|_| Pool::global().take(1 << 12).is_ok()) && crate::fork::is_child();
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
