//! Runs a kernel with the widest vectors that the processor has, and gives each thread memory for what lies between.

use std::cell::RefCell;

use super::vector::Vector;
#[cfg(target_arch = "x86_64")]
use super::vector::{Avx2, Avx512};
use crate::threads::Team;

/// Vectors of the processor.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(super) enum Width {
    Avx512,
    Avx2,
}

/// What is compiled for each width.
pub(super) trait Kernel {
    /// Has to be inlined, as everything that it calls with vectors: only the function that calls it may use the
    /// processor's instructions for them.
    ///
    /// # Safety
    /// The processor must have the vector's instructions; else as the kernel says.
    unsafe fn run<V: Vector>(self);
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
            Width::Avx512 => is_x86_feature_detected!("avx512f"),
            Width::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
        };
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// Elements of a vector.
    pub fn lanes(self) -> usize {
        match self {
            Width::Avx512 => 16,
            Width::Avx2 => 8,
        }
    }

    /// Runs a kernel with it.
    ///
    /// # Safety
    /// The processor must have it; else as the kernel says.
    pub unsafe fn run(self, kernel: impl Kernel) {
        #[cfg(target_arch = "x86_64")]
        {
            #[target_feature(enable = "avx512f")]
            unsafe fn avx512(kernel: impl Kernel) {
                // SAFETY: the caller's promise.
                unsafe { kernel.run::<Avx512>() }
            }
            #[target_feature(enable = "avx2,fma")]
            unsafe fn avx2(kernel: impl Kernel) {
                // SAFETY: the caller's promise.
                unsafe { kernel.run::<Avx2>() }
            }
            // SAFETY: the caller's promise.
            unsafe {
                match self {
                    Width::Avx512 => avx512(kernel),
                    Width::Avx2 => avx2(kernel),
                }
            }
        }
    }
}

impl Width {
    /// Runs the kernels of units 0 to `units` less one, each of so many products, on a team's threads.
    ///
    /// # Safety
    /// As for [`Width::run`]; no unit may write what another one reads or writes.
    pub unsafe fn run_units<K: Kernel>(
        self,
        units: usize,
        products: usize,
        team: &dyn Team,
        kernel: impl Fn(usize) -> K,
    ) {
        let kernel = Shared(kernel);
        let kernel = &kernel;
        team.parallel_for(units as i64, grain(products), &|begin, end, _| {
            for unit in begin as usize..end as usize {
                // SAFETY: the caller's promise.
                unsafe { self.run(kernel.get()(unit)) };
            }
        });
    }
}

/// How many units of so many products each are worth a thread.
fn grain(products: usize) -> i64 {
    /// A few microseconds.
    const WORTH: usize = 1 << 18;
    (WORTH / products.max(1)).max(1) as i64
}

/// What threads work on together.
struct Shared<T>(T);

impl<T> Shared<T> {
    fn get(&self) -> &T {
        &self.0
    }
}

// SAFETY: who runs units promises that they don't get into each other's way.
unsafe impl<T> Sync for Shared<T> {}

/// A line of the cache.
#[derive(Copy, Clone)]
#[repr(align(64))]
pub(super) struct Line(#[allow(dead_code, reason = "only size and alignment matter")] [f32; 16]);

thread_local! {
    static MEMORY: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
}

/// Memory that is taken in parts, one after the other. Taken from nowhere, the parts tell how much they need together.
pub(super) struct Parts {
    next: *mut f32,
    /// Elements that were taken.
    pub elements: usize,
}

impl Parts {
    pub fn of(memory: *mut f32) -> Parts {
        Parts { next: memory, elements: 0 }
    }

    pub fn nowhere() -> Parts {
        Parts::of(std::ptr::null_mut())
    }

    #[inline(always)]
    pub fn take(&mut self, elements: usize) -> *mut f32 {
        let part = self.next;
        self.next = part.wrapping_add(elements);
        self.elements += elements;
        part
    }
}

/// Memory for so many elements, of any content, which this thread has until it asks again.
pub(super) fn memory(elements: usize) -> *mut f32 {
    MEMORY.with_borrow_mut(|memory| {
        let lines = elements.div_ceil(16);
        if memory.len() < lines {
            *memory = zeros(elements);
        }
        memory.as_mut_ptr().cast()
    })
}

/// Zeros, as whole lines of the cache.
pub(super) fn zeros(elements: usize) -> Vec<Line> {
    vec![Line([0.0; 16]); elements.div_ceil(16)]
}
