//! Which vectors the processor has: the one place that asks, and that calls what is compiled for them.

/// Vectors of a processor.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(crate) enum Width {
    Avx512,
    Avx2,
}

/// What is compiled for each width, by being inlined into a function that may use its instructions.
pub(crate) trait Work {
    /// Has to be `#[inline(always)]`, as everything that is to run in vectors and is called by it.
    fn run(self);
}

impl Width {
    /// The widest that the processor has.
    pub fn of_processor() -> Option<Width> {
        [Width::Avx512, Width::Avx2].into_iter().find(|width| width.is_there())
    }

    /// Whether the processor has it.
    pub fn is_there(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return match self {
            Width::Avx512 => is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw"),
            Width::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
        };
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// Elements of a vector of f32.
    pub fn lanes(self) -> usize {
        match self {
            Width::Avx512 => 16,
            Width::Avx2 => 8,
        }
    }

    /// Does work with it.
    ///
    /// # Safety
    /// The processor must have it.
    #[inline]
    pub unsafe fn call(self, work: impl Work) {
        #[cfg(target_arch = "x86_64")]
        {
            #[target_feature(enable = "avx512f,avx512bw")]
            fn avx512(work: impl Work) {
                work.run();
            }
            #[target_feature(enable = "avx2,fma")]
            fn avx2(work: impl Work) {
                work.run();
            }
            // SAFETY: the caller's promise.
            unsafe {
                match self {
                    Width::Avx512 => avx512(work),
                    Width::Avx2 => avx2(work),
                }
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        work.run();
    }
}

/// Does work with the widest vectors of the processor, or with those that every processor of its kind has.
#[inline]
pub(crate) fn with_widest(work: impl Work) {
    match Width::of_processor() {
        // SAFETY: the processor has it.
        Some(width) => unsafe { width.call(work) },
        None => work.run(),
    }
}

/// As [`with_widest`], with vectors of 256 bits at most: for code that comes in many variants and that waits for memory
/// rather than for instructions.
#[inline]
pub(crate) fn with_moderate(work: impl Work) {
    match Width::Avx2.is_there() {
        // SAFETY: the processor has it.
        true => unsafe { Width::Avx2.call(work) },
        false => work.run(),
    }
}
