//! The thread team that the process already has: in a PyTorch process, PyTorch's. Two teams would fight for the
//! cores. Found through the OpenMP library that is loaded, by the entry point that GCC, Intel and LLVM share.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use super::{Part, Team, ThreadTeam, parts, share};

type Region = unsafe extern "C" fn(*mut c_void);
type GompParallel = unsafe extern "C" fn(Region, *mut c_void, c_uint, c_uint);
type Query = unsafe extern "C" fn() -> c_int;

/// Entry points of an OpenMP library.
#[derive(Clone, Copy)]
struct OpenMp {
    parallel: GompParallel,
    thread_num: Query,
    num_threads: Query,
    in_parallel: Query,
}

/// Takes part in the OpenMP team of the process.
#[derive(Clone, Copy)]
pub struct OpenMpTeam {
    library: &'static OpenMp,
    threads: usize,
}

impl OpenMpTeam {
    /// The team with this many threads (at least 1), if an OpenMP library is loaded.
    ///
    /// Pass the number that the process runs OpenMP regions with (`torch.get_num_threads()`): a region of another
    /// size makes the library end and start threads.
    pub fn find(threads: usize) -> Option<OpenMpTeam> {
        static LIBRARY: OnceLock<Option<OpenMp>> = OnceLock::new();
        let library = LIBRARY.get_or_init(find_library).as_ref()?;
        Some(OpenMpTeam { library, threads: threads.max(1) })
    }
}

/// The team of a forked child, made at its first use with this many threads and never freed.
fn child_team(threads: usize) -> &'static ThreadTeam {
    // An atomic and no lock: a lock could have been held by another thread when the process forked.
    static TEAM: AtomicPtr<ThreadTeam> = AtomicPtr::new(std::ptr::null_mut());
    let current = TEAM.load(Ordering::Acquire);
    // SAFETY: a pointer that was stored below is never freed.
    if let Some(team) = unsafe { current.as_ref() }
        && team.generation() == crate::fork::generation()
    {
        return team;
    }
    let fresh = Box::into_raw(Box::new(ThreadTeam::new(threads)));
    match TEAM.compare_exchange(current, fresh, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: just made, and never freed from here on.
        Ok(_) => unsafe { &*fresh },
        Err(other) => {
            // SAFETY: nobody else has seen it.
            drop(unsafe { Box::from_raw(fresh) });
            // SAFETY: another thread stored it, as above.
            unsafe { &*other }
        }
    }
}

fn find_library() -> Option<OpenMp> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let loaded = |part: &str| {
        let path = maps.lines().filter_map(|l| l.split_once('/')).map(|(_, rest)| format!("/{rest}"));
        path.filter(|p| p.rsplit('/').next().is_some_and(|file| file.contains(part)))
            .collect::<std::collections::BTreeSet<_>>()
    };
    // PyTorch's library first: a search from its handle finds the very library it is linked with, also when the
    // process has loaded several.
    let names = ["libtorch_cpu.", "libgomp", "libiomp5", "libomp"];
    names
        .iter()
        .flat_map(|name| loaded(name))
        .filter_map(|path| open_loaded(&path))
        .chain([libc::RTLD_DEFAULT])
        .find_map(entry_points)
}

/// A handle of a library that is in memory already; loads nothing.
fn open_loaded(path: &str) -> Option<*mut c_void> {
    let path = CString::new(path).ok()?;
    // SAFETY: a terminated string; no library is loaded, so no initialiser runs.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    (!handle.is_null()).then_some(handle)
}

fn symbol(handle: *mut c_void, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a handle that is open, or the default one.
    let address = unsafe { libc::dlsym(handle, name.as_ptr() as *const c_char) };
    (!address.is_null()).then_some(address)
}

fn entry_points(handle: *mut c_void) -> Option<OpenMp> {
    let query = |name| {
        // SAFETY: the OpenMP standard gives these functions this type.
        symbol(handle, name).map(|f| unsafe { std::mem::transmute::<*mut c_void, Query>(f) })
    };
    let parallel = symbol(handle, c"GOMP_parallel")?;
    Some(OpenMp {
        // SAFETY: the type that GCC calls this entry point with.
        parallel: unsafe { std::mem::transmute::<*mut c_void, GompParallel>(parallel) },
        thread_num: query(c"omp_get_thread_num")?,
        num_threads: query(c"omp_get_num_threads")?,
        in_parallel: query(c"omp_in_parallel")?,
    })
}

/// One parallel loop, as the threads of the region see it.
struct Call<'a> {
    library: &'static OpenMp,
    body: &'a Part<'a>,
    units: i64,
    parts: usize,
    panicked: AtomicBool,
}

unsafe extern "C" fn region(data: *mut c_void) {
    // SAFETY: `parallel_for` passes a call that outlives the region.
    let call = unsafe { &*(data as *const Call<'_>) };
    // SAFETY: plain queries from within a region.
    let (thread, threads) = unsafe { ((call.library.thread_num)(), (call.library.num_threads)()) };
    // The library may give fewer threads than asked for: then a thread does several parts.
    for part in (thread.max(0) as usize..call.parts).step_by(threads.max(1) as usize) {
        let (begin, end) = share(call.units, call.parts, part);
        // A panic must not pass through the library's frames.
        if catch_unwind(AssertUnwindSafe(|| (call.body)(begin, end, part))).is_err() {
            call.panicked.store(true, Ordering::Relaxed);
        }
    }
}

impl Team for OpenMpTeam {
    fn threads(&self) -> usize {
        self.threads
    }

    fn parallel_for(&self, units: i64, grain: i64, body: &Part<'_>) {
        let parts = parts(units, grain, self.threads);
        if parts == 0 {
            return;
        }
        if parts == 1 {
            return body(0, units, 0);
        }
        // The library's threads don't survive a fork, and it would wait for them for ever.
        if crate::fork::is_child() {
            return child_team(self.threads).parallel_up_to(self.threads, units, grain, body);
        }
        // SAFETY: a plain query.
        if unsafe { (self.library.in_parallel)() } != 0 {
            return body(0, units, 0);
        }
        let call = Call { library: self.library, body, units, parts, panicked: AtomicBool::new(false) };
        let data = &raw const call as *mut c_void;
        // Always the whole team: a smaller region would make the library end the other threads.
        // SAFETY: `region` has the type that the library expects, and the call outlives the region.
        unsafe { (self.library.parallel)(region, data, self.threads as c_uint, 0) };
        if call.panicked.into_inner() {
            panic!("a part of a parallel loop panicked in an OpenMP region");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Loads the system's OpenMP library, where there is one.
    fn team(threads: usize) -> Option<OpenMpTeam> {
        // SAFETY: a well-kept library without side effects on loading.
        unsafe { libc::dlopen(c"libgomp.so.1".as_ptr(), libc::RTLD_LAZY) };
        OpenMpTeam::find(threads)
    }

    #[test]
    fn every_unit_runs_once_in_the_openmp_team() {
        let Some(team) = team(3) else { return };
        for units in [0i64, 1, 2, 3, 1000] {
            let total = std::sync::atomic::AtomicI64::new(0);
            team.parallel_for(units, 1, &|begin, end, part| {
                assert!(part < 3);
                total.fetch_add((begin..end).sum::<i64>(), Ordering::Relaxed);
            });
            assert_eq!(total.into_inner(), (0..units).sum::<i64>());
        }
    }

    #[test]
    fn a_forked_child_has_threads_of_its_own() {
        let Some(team) = team(2) else { return };
        let sum = || {
            let total = std::sync::atomic::AtomicI64::new(0);
            team.parallel_for(1000, 1, &|begin, end, _| {
                total.fetch_add((begin..end).sum::<i64>(), Ordering::Relaxed);
            });
            total.into_inner()
        };
        assert_eq!(sum(), 499_500);
        // SAFETY: the child only runs sums and leaves.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let fine = sum() == 499_500 && sum() == 499_500;
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(if fine { 0 } else { 1 }) };
        }
        let mut status = -1;
        // SAFETY: waits for our own child.
        unsafe { libc::waitpid(child, &mut status, 0) };
        assert_eq!(status, 0);
    }

    #[test]
    fn a_nested_call_runs_on_its_thread_and_a_panic_reaches_the_caller() {
        let Some(team) = team(2) else { return };
        let total = std::sync::atomic::AtomicI64::new(0);
        team.parallel_for(2, 1, &|_, _, _| {
            team.parallel_for(5, 1, &|begin, end, _| {
                total.fetch_add(end - begin, Ordering::Relaxed);
            });
        });
        assert_eq!(total.into_inner(), 10);
        let bad = catch_unwind(AssertUnwindSafe(|| {
            team.parallel_for(2, 1, &|begin, _, _| assert_ne!(begin, 1));
        }));
        assert!(bad.is_err());
    }
}
