//! Memory of the operating system: address space for the pool, which gets pages when it is written to, huge ones
//! where the system has them.

use std::ptr::NonNull;

use super::spans::Span;

/// Where huge pages begin.
pub(super) const HUGE_PAGE: usize = 2 << 20;

/// A multiple of the page size of all machines in use.
const PAGE: usize = 64 << 10;

/// Address space for at least `bytes` bytes, aligned to huge pages: maps more, and gives back what stands out at both
/// ends. Nothing if the system has none.
pub(super) fn map(bytes: usize) -> Option<Span> {
    let wanted = bytes.checked_next_multiple_of(HUGE_PAGE)?;
    let room = wanted.checked_add(HUGE_PAGE)?;
    // SAFETY: a fresh anonymous mapping. Not counted as used up before it is written to: most of it may never be.
    let raw = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            room,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
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

/// Gives the whole pages of a span back; the addresses stay ours.
///
/// # Safety
/// The span must lie in memory of [`map`] and be used by nobody.
pub(super) unsafe fn give_pages_back(span: Span) {
    let (first, last) = (span.start.next_multiple_of(PAGE), span.end() / PAGE * PAGE);
    if first < last {
        // SAFETY: the caller's promise. If it fails, the pages just stay.
        unsafe { libc::madvise(first as *mut libc::c_void, last - first, libc::MADV_DONTNEED) };
    }
}

/// Gives a whole mapping back.
///
/// # Safety
/// The span must be one that [`map`] returned, and be used by nobody.
pub(super) unsafe fn unmap(span: Span) {
    // SAFETY: the caller's promise.
    unsafe { libc::munmap(span.start as *mut libc::c_void, span.bytes) };
}

/// Memory that this process may use in bytes: the machine's, or what its container is limited to. 0 if it can't be
/// told.
pub(super) fn usable_memory() -> usize {
    // SAFETY: plain queries.
    let (pages, page) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    let machine = usize::try_from(pages).unwrap_or(0).saturating_mul(usize::try_from(page).unwrap_or(0));
    let limits = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let limit = |file| std::fs::read_to_string(file).ok()?.trim().parse::<usize>().ok();
    limits.into_iter().filter_map(limit).fold(machine, usize::min)
}

/// A span's first byte as a pointer.
pub(super) fn pointer(span: Span) -> NonNull<u8> {
    NonNull::new(std::ptr::with_exposed_provenance_mut(span.start))
        .expect("no mapping begins at address zero")
}
