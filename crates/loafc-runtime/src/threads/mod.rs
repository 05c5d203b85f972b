//! Teams of threads that run a kernel's parallel units. Units are split into one contiguous part per thread, by
//! numbers alone, and kernels give the same bits for any split: results don't depend on the team.

mod openmp;
mod own;

pub use openmp::OpenMpTeam;
pub use own::ThreadTeam;

/// What runs one part: from the first unit up to the last less one, as the thread of this number in the call.
/// No two parts that run at the same time have the same number.
pub type Part<'a> = dyn Fn(i64, i64, usize) + Sync + 'a;

/// Threads that can share work.
pub trait Team: Send + Sync {
    /// Most parts that a call is split into.
    fn threads(&self) -> usize;

    /// Runs `body` over `0..units` in parts of at least `grain` units, the calling thread among those that do it;
    /// returns when all parts are done. A call from within a part, or while another thread uses the team, runs on
    /// the calling thread alone.
    fn parallel_for(&self, units: i64, grain: i64, body: &Part<'_>);
}

/// The calling thread alone.
#[derive(Debug, Clone, Copy, Default)]
pub struct Serial;

impl Team for Serial {
    fn threads(&self) -> usize {
        1
    }

    fn parallel_for(&self, units: i64, _grain: i64, body: &Part<'_>) {
        if units > 0 {
            body(0, units, 0);
        }
    }
}

/// Into how many parts a call is split.
fn parts(units: i64, grain: i64, threads: usize) -> usize {
    if units <= 0 {
        return 0;
    }
    let by_grain = (units / grain.max(1)).max(1);
    usize::try_from(by_grain).unwrap_or(usize::MAX).min(threads.max(1))
}

/// The units of part `part` of `parts`: equal shares, larger by at most one.
fn share(units: i64, parts: usize, part: usize) -> (i64, i64) {
    let at = |k: usize| (i128::from(units) * k as i128 / parts as i128) as i64;
    (at(part), at(part + 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn shares_cover_all_units_once_and_are_no_smaller_than_the_grain(
            units in 0i64..10_000, grain in 1i64..500, threads in 1usize..65,
        ) {
            let n = parts(units, grain, threads);
            prop_assert!(n <= threads);
            let mut next = 0;
            for k in 0..n {
                let (begin, end) = share(units, n, k);
                prop_assert_eq!(begin, next);
                prop_assert!(n == 1 || end - begin >= grain);
                next = end;
            }
            prop_assert_eq!(next, units);
        }
    }

    #[test]
    fn the_largest_counts_do_not_overflow() {
        assert_eq!(share(i64::MAX, 3, 2).1, i64::MAX);
    }
}
