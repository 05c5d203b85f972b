//! What compiling leaves behind in a process that goes on to run programs for hours: pages of LLVM's code, tens of
//! megabytes, and what it freed but the C library keeps.

/// Gives back memory that only compiling needs. The next compilation gets LLVM's pages again from the system's cache
/// of files, which takes it about a millisecond. Takes 2 to 3 ms itself in a process of a gigabyte, in which other threads
/// may wait for the C library's heap.
pub fn release_compiler_memory() {
    #[cfg(target_os = "linux")]
    linux::drop_pages_of_llvm();
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: a plain call of the C library, which locks its own heap.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::ffi::{c_int, c_void};

    /// A loaded library holds LLVM where this address lies in it.
    fn address_in_llvm() -> usize {
        llvm_sys::core::LLVMContextCreate as *const () as usize
    }

    pub(super) fn drop_pages_of_llvm() {
        // SAFETY: the callback takes what the loader gives it, and no data.
        unsafe { libc::dl_iterate_phdr(Some(visit), std::ptr::null_mut()) };
    }

    /// # Safety
    /// The loader calls it, with a description of one of its libraries.
    unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _size: usize, _data: *mut c_void) -> c_int {
        // SAFETY: the loader's promise.
        let (base, headers) = unsafe {
            let info = &*info;
            (
                info.dlpi_addr as usize,
                std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)),
            )
        };
        let loaded = || headers.iter().filter(|h| h.p_type == libc::PT_LOAD);
        let range = |h: &libc::Elf64_Phdr| {
            let start = base + h.p_vaddr as usize;
            start..start + h.p_memsz as usize
        };
        if !loaded().any(|h| range(h).contains(&address_in_llvm())) {
            return 0;
        }
        // What the loader itself wrote to would be lost, so only what never was writable.
        for header in loaded().filter(|h| h.p_flags & libc::PF_W == 0) {
            let range = range(header);
            let start = range.start.next_multiple_of(PAGE);
            let end = range.end / PAGE * PAGE;
            if start < end {
                // SAFETY: these pages are a file's, which the loader mapped read-only; the next access reads the same
                // from it. A debugger that set a breakpoint in LLVM loses it.
                unsafe { libc::madvise(start as *mut c_void, end - start, libc::MADV_DONTNEED) };
            }
        }
        1
    }

    /// A multiple of the page size of all machines in use.
    const PAGE: usize = 64 << 10;
}
