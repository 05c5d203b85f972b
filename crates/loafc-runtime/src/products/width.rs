//! Runs a kernel in vectors of a width, and gives each thread memory for what lies between.

use std::cell::RefCell;
#[cfg(target_arch = "x86_64")]
use std::marker::PhantomData;

use super::vector::Vector;
#[cfg(target_arch = "x86_64")]
use super::vector::{Avx2, Avx512};
use crate::threads::Team;
use crate::width::Width;
#[cfg(target_arch = "x86_64")]
use crate::width::Work;

/// What is compiled for each width, in vectors that it names itself.
pub(super) trait Kernel {
    /// Has to be inlined, as everything that it calls with vectors: only the function that calls it may use the
    /// processor's instructions for them.
    ///
    /// # Safety
    /// The processor must have the vector's instructions; else as the kernel says.
    unsafe fn run<V: Vector>(self);
}

/// A kernel in vectors that the processor has, whose other promises have been kept.
#[cfg(target_arch = "x86_64")]
struct Of<K, V>(K, PhantomData<V>);

#[cfg(target_arch = "x86_64")]
impl<K: Kernel, V: Vector> Work for Of<K, V> {
    #[inline(always)]
    fn run(self) {
        // SAFETY: only `Width::run` makes one, under its caller's promise.
        unsafe { self.0.run::<V>() }
    }
}

impl Width {
    /// Runs a kernel with it.
    ///
    /// # Safety
    /// The processor must have it; else as the kernel says.
    pub(super) unsafe fn run(self, kernel: impl Kernel) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Width::Avx512 => self.call(Of::<_, Avx512>(kernel, PhantomData)),
                Width::Avx2 => self.call(Of::<_, Avx2>(kernel, PhantomData)),
            }
        }
    }

    /// Runs the kernels of units 0 to `units` less one, each of so many products, on a team's threads.
    ///
    /// # Safety
    /// As for [`Width::run`]; no unit may write what another one reads or writes.
    pub(super) unsafe fn run_units<K: Kernel>(
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
