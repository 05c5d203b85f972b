//! The team for programs without one of their own: workers that wait a little for the next kernel and then sleep.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;

use super::{Part, Team, parts, share};

/// How often a thread looks again before it sleeps: about 10 µs on cores whose `pause` takes 140 cycles. That spans
/// the gap between two kernels of one program, and is short enough not to take a core from another process.
const SPINS: u32 = 300;

/// A pool of worker threads. The calling thread does a part as well, so a team of `n` has `n - 1` workers.
pub struct ThreadTeam {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Set while a call is under way.
    busy: AtomicBool,
    /// The process that the workers live in.
    generation: u32,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
    /// Copy of [`State::epoch`] to look at without the lock.
    epoch: AtomicU64,
    /// Parts of the workers that are not done yet.
    pending: AtomicUsize,
    done: Mutex<()>,
    finished: Condvar,
    panicked: AtomicBool,
}

#[derive(Default)]
struct State {
    /// Counts calls.
    epoch: u64,
    job: Option<Job>,
    stop: bool,
}

#[derive(Clone, Copy)]
struct Job {
    body: *const Part<'static>,
    units: i64,
    parts: usize,
}

// SAFETY: the body is `Sync`, and `parallel_for` keeps it alive until all parts are done.
unsafe impl Send for Job {}

impl ThreadTeam {
    /// A team of this many threads; 0 means as many as the machine runs at once. Fewer when the system refuses to
    /// start more.
    pub fn new(threads: usize) -> ThreadTeam {
        let threads = if threads == 0 { default_threads() } else { threads };
        let shared = Arc::new(Shared::default());
        let workers = (1..threads)
            .map_while(|part| {
                let shared = shared.clone();
                let name = format!("loafc-{part}");
                std::thread::Builder::new().name(name).spawn(move || work(&shared, part)).ok()
            })
            .collect();
        ThreadTeam { shared, workers, busy: AtomicBool::new(false), generation: crate::fork::generation() }
    }

    /// The team that all programs of this process share, with as many threads as the machine runs at once.
    pub fn shared() -> Arc<ThreadTeam> {
        static SHARED: OnceLock<Arc<ThreadTeam>> = OnceLock::new();
        SHARED.get_or_init(|| Arc::new(ThreadTeam::new(0))).clone()
    }

    /// The process that the workers live in, see [`crate::fork::generation`].
    pub(super) fn generation(&self) -> u32 {
        self.generation
    }

    /// As [`Team::parallel_for`], in at most `threads` parts.
    pub(super) fn parallel_up_to(&self, threads: usize, units: i64, grain: i64, body: &Part<'_>) {
        let parts = parts(units, grain, threads.min(self.threads()));
        if parts == 0 {
            return;
        }
        let alone = parts == 1
            || self.generation != crate::fork::generation()
            || self.busy.swap(true, Ordering::Acquire);
        if alone {
            return body(0, units, 0);
        }
        struct Free<'a>(&'a AtomicBool);
        impl Drop for Free<'_> {
            fn drop(&mut self) {
                self.0.store(false, Ordering::Release);
            }
        }
        let _free = Free(&self.busy);
        // SAFETY: only the lifetime changes; `run` returns after the last use of the body.
        let body = unsafe { std::mem::transmute::<*const Part<'_>, *const Part<'static>>(body) };
        self.run(Job { body, units, parts });
    }

    fn run(&self, job: Job) {
        let shared = &*self.shared;
        shared.pending.store(job.parts - 1, Ordering::Relaxed);
        {
            let mut state = shared.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.epoch += 1;
            state.job = Some(job);
            shared.epoch.store(state.epoch, Ordering::Release);
        }
        shared.wake.notify_all();
        let own = catch_unwind(AssertUnwindSafe(|| run_part(job, 0)));
        self.wait();
        if let Err(panic) = own {
            std::panic::resume_unwind(panic);
        }
        if shared.panicked.swap(false, Ordering::Relaxed) {
            panic!("a part of a parallel loop panicked on a worker thread");
        }
    }

    /// Waits until the workers have done their parts.
    fn wait(&self) {
        let shared = &*self.shared;
        for _ in 0..SPINS {
            if shared.pending.load(Ordering::Acquire) == 0 {
                return;
            }
            std::hint::spin_loop();
        }
        let mut guard = shared.done.lock().unwrap_or_else(PoisonError::into_inner);
        while shared.pending.load(Ordering::Acquire) != 0 {
            guard = shared.finished.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

fn run_part(job: Job, part: usize) {
    let (begin, end) = share(job.units, job.parts, part);
    // SAFETY: `parallel_for` keeps the body alive until all parts are done.
    unsafe { (*job.body)(begin, end, part) };
}

fn work(shared: &Shared, part: usize) {
    let mut seen = 0;
    while let Some((epoch, job)) = next_job(shared, seen) {
        seen = epoch;
        if part >= job.parts {
            continue;
        }
        if catch_unwind(AssertUnwindSafe(|| run_part(job, part))).is_err() {
            shared.panicked.store(true, Ordering::Relaxed);
        }
        if shared.pending.fetch_sub(1, Ordering::Release) == 1 {
            // The lock closes the gap between the caller's last look and its sleep.
            drop(shared.done.lock());
            shared.finished.notify_one();
        }
    }
}

/// The call after the one of epoch `seen`; `None` when the team ends.
fn next_job(shared: &Shared, seen: u64) -> Option<(u64, Job)> {
    for _ in 0..SPINS {
        if shared.epoch.load(Ordering::Acquire) != seen {
            break;
        }
        std::hint::spin_loop();
    }
    let mut state = shared.state.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if state.stop {
            return None;
        }
        if let Some(job) = state.job
            && state.epoch != seen
        {
            return Some((state.epoch, job));
        }
        state = shared.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
    }
}

impl Team for ThreadTeam {
    fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    fn parallel_for(&self, units: i64, grain: i64, body: &Part<'_>) {
        self.parallel_up_to(self.threads(), units, grain, body);
    }
}

impl Drop for ThreadTeam {
    fn drop(&mut self) {
        // In a forked child the workers don't exist, and their locks may be held for ever.
        if self.generation != crate::fork::generation() {
            self.workers.drain(..).for_each(std::mem::forget);
            return;
        }
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner).stop = true;
        self.shared.epoch.store(u64::MAX, Ordering::Release);
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // A worker catches all panics of its parts.
            let _ = worker.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(team: &dyn Team, units: i64, grain: i64) -> i64 {
        let total = std::sync::atomic::AtomicI64::new(0);
        team.parallel_for(units, grain, &|begin, end, _| {
            total.fetch_add((begin..end).sum::<i64>(), Ordering::Relaxed);
        });
        total.into_inner()
    }

    #[test]
    fn every_unit_runs_once() {
        for threads in [1, 2, 3, 8] {
            let team = ThreadTeam::new(threads);
            assert_eq!(team.threads(), threads);
            for units in [0, 1, 2, 7, 1000] {
                for _ in 0..50 {
                    assert_eq!(sum(&team, units, 1), (0..units).sum::<i64>());
                }
            }
        }
    }

    #[test]
    fn workers_that_sleep_wake_up_again() {
        let team = ThreadTeam::new(3);
        for _ in 0..5 {
            std::thread::sleep(std::time::Duration::from_millis(3));
            assert_eq!(sum(&team, 100, 1), 4950);
        }
    }

    #[test]
    fn little_work_stays_on_the_calling_thread() {
        let team = ThreadTeam::new(4);
        let caller = std::thread::current().id();
        team.parallel_for(10, 100, &|begin, end, part| {
            assert_eq!((begin, end, part), (0, 10, 0));
            assert_eq!(std::thread::current().id(), caller);
        });
    }

    #[test]
    fn nested_and_concurrent_calls_do_not_block() {
        let team = ThreadTeam::new(2);
        let total = AtomicUsize::new(0);
        std::thread::scope(|s| {
            for _ in 0..3 {
                s.spawn(|| {
                    for _ in 0..100 {
                        team.parallel_for(4, 1, &|begin, end, _| {
                            for _ in begin..end {
                                team.parallel_for(2, 1, &|b, e, _| {
                                    total.fetch_add((e - b) as usize, Ordering::Relaxed);
                                });
                            }
                        });
                    }
                });
            }
        });
        assert_eq!(total.into_inner(), 3 * 100 * 4 * 2);
    }

    #[test]
    fn a_panic_on_a_worker_reaches_the_caller_and_the_team_goes_on() {
        let team = ThreadTeam::new(2);
        let bad = catch_unwind(AssertUnwindSafe(|| {
            team.parallel_for(2, 1, &|begin, _, _| assert_ne!(begin, 1));
        }));
        assert!(bad.is_err());
        assert_eq!(sum(&team, 10, 1), 45);
    }

    #[test]
    fn a_forked_child_runs_on_its_own_thread() {
        let team = ThreadTeam::new(2);
        assert_eq!(sum(&team, 10, 1), 45);
        // SAFETY: the child only runs a sum and leaves.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let fine = sum(&team, 10, 1) == 45;
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(if fine { 0 } else { 1 }) };
        }
        let mut status = -1;
        // SAFETY: waits for our own child.
        unsafe { libc::waitpid(child, &mut status, 0) };
        assert_eq!(status, 0);
    }
}
