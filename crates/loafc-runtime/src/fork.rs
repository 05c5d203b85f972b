//! What a forked child must know: that the threads of its parent are gone, and that no lock of ours is held.
//! A child keeps using the pool of memory, and never waits for threads of its parent.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Counts the forks between the process that loaded the library and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Number of forks between the process that loaded the library and this one; 0 in the first one.
pub fn generation() -> u32 {
    watch();
    GENERATION.load(Ordering::Relaxed)
}

/// Whether this process is a forked child of the one that loaded the library.
pub fn is_child() -> bool {
    generation() != 0
}

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    crate::pool::Pool::global().state.unlock_after_fork();
}

extern "C" fn before_fork() {
    crate::pool::Pool::global().state.lock_for_fork();
}

extern "C" fn in_parent() {
    crate::pool::Pool::global().state.unlock_after_fork();
}

/// Installs the handlers, once a process.
pub(crate) fn watch() {
    static INSTALLED: OnceLock<()> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        // SAFETY: the handlers only touch atomics and a spin lock, which is allowed in a forked child.
        unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
    });
}

/// A lock for very short sections that a fork can take and both processes can release. A mutex of the standard
/// library can't be released by the child.
pub(crate) struct ForkLock<T> {
    held: AtomicBool,
    value: std::cell::UnsafeCell<T>,
}

// SAFETY: `value` is only reached through `with`, by the one thread that holds the lock.
unsafe impl<T: Send> Sync for ForkLock<T> {}

impl<T> ForkLock<T> {
    pub(crate) const fn new(value: T) -> Self {
        ForkLock { held: AtomicBool::new(false), value: std::cell::UnsafeCell::new(value) }
    }

    fn acquire(&self) {
        let mut spins = 0u32;
        while self.held.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            spins += 1;
            if spins < 64 {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
    }

    /// Runs `section` alone. It must not panic, call the system, or take the lock again.
    /// It may allocate: whoever forks waits for it here, before the allocator's own preparations begin.
    pub(crate) fn with<R>(&self, section: impl FnOnce(&mut T) -> R) -> R {
        struct Release<'a>(&'a AtomicBool);
        impl Drop for Release<'_> {
            fn drop(&mut self) {
                self.0.store(false, Ordering::Release);
            }
        }
        self.acquire();
        let _release = Release(&self.held);
        // SAFETY: the lock is held, so this is the only reference.
        section(unsafe { &mut *self.value.get() })
    }

    pub(crate) fn lock_for_fork(&self) {
        self.acquire();
    }

    pub(crate) fn unlock_after_fork(&self) {
        self.held.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_excludes_other_threads() {
        let lock = ForkLock::new(0u64);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..10_000 {
                        lock.with(|n| *n += 1);
                    }
                });
            }
        });
        assert_eq!(lock.with(|n| *n), 40_000);
    }
}
