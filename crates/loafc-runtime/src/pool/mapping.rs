//! Memory of the operating system: address space for the pool, which gets pages when it is written to, huge ones
//! where the system has them.

use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::OnceLock;

use super::spans::Span;

/// Where huge pages begin.
pub(super) const HUGE_PAGE: usize = 2 << 20;

/// Address space for at least `bytes` bytes, aligned to huge pages: maps more, and gives back what stands out at both
/// ends. Nothing if the system has none.
pub(super) fn map(bytes: usize) -> Option<Span> {
    let wanted = bytes.checked_next_multiple_of(HUGE_PAGE)?;
    let room = wanted.checked_add(HUGE_PAGE)?;
    // SAFETY: a fresh anonymous mapping. One for which memory need not be reserved would never be refused, however
    // large, and the process would be killed as it writes.
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
    Some(Span { start, bytes: wanted })
}

/// The unit in which the system gives memory.
pub(super) fn page() -> usize {
    static PAGE: OnceLock<usize> = OnceLock::new();
    // SAFETY: a plain query.
    *PAGE.get_or_init(|| usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(64 << 10))
}

/// Gives the pages of a span back; the addresses stay ours.
///
/// # Safety
/// The span must lie in memory of [`map`], begin and end with a [`page`], and be used by nobody.
pub(super) unsafe fn give_pages_back(span: Span) {
    // SAFETY: the caller's promise. If it fails, the pages just stay.
    unsafe { libc::madvise(span.start as *mut libc::c_void, span.bytes, libc::MADV_DONTNEED) };
}

/// Gives a whole mapping back.
///
/// # Safety
/// The span must be one that [`map`] returned, and be used by nobody.
pub(super) unsafe fn unmap(span: Span) {
    // SAFETY: the caller's promise.
    unsafe { libc::munmap(span.start as *mut libc::c_void, span.bytes) };
}

/// Memory that this process may use in bytes: the machine's, or what a group of processes that it is in is limited to.
/// 0 if it can't be told.
pub(super) fn usable_memory() -> usize {
    // SAFETY: a plain query.
    let pages = usize::try_from(unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) }).unwrap_or(0);
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    let unified = Path::new("/sys/fs/cgroup");
    let folders = Path::new(own).ancestors().map(|group| unified.join(group).join("memory.max"));
    let limits = folders.chain([unified.join("memory/memory.limit_in_bytes")]);
    let limit = |file: PathBuf| std::fs::read_to_string(file).ok()?.trim().parse::<usize>().ok();
    limits.filter_map(limit).fold(pages.saturating_mul(page()), usize::min)
}

/// A span's first byte as a pointer.
pub(super) fn pointer(span: Span) -> NonNull<u8> {
    NonNull::new(std::ptr::with_exposed_provenance_mut(span.start))
        .expect("no mapping begins at address zero")
}
