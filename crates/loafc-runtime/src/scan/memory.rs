//! Where a scan's operand and results are, and how their elements come and go.

use super::element::Read;
use super::operation::Operation;
use crate::width::{Work, with_moderate, with_widest};

/// Where operand and results are.
pub(super) struct Memory<O: Operation> {
    pub from: *const u8,
    /// Bytes of an element of the operand.
    pub from_bytes: isize,
    pub read: Read<O::Element>,
    /// Whether the operand's elements are of the result's type.
    pub as_it_is: bool,
    pub to: *mut O::Element,
    /// Laid out as the values are; anything where [`Operation::Position`] is `()`.
    pub positions: *mut O::Position,
}

// SAFETY: threads write lines, or parts of them, of their own.
unsafe impl<O: Operation> Sync for Memory<O> {}

impl<O: Operation> Memory<O> {
    /// Elements of the operand: where they are, or read into `memory`, which is as long.
    ///
    /// # Safety
    /// The offset must be that of as many elements at this distance.
    #[inline(always)]
    pub unsafe fn operand<'a>(
        &'a self,
        from: i64,
        step: i64,
        memory: &'a mut [O::Element],
    ) -> &'a [O::Element] {
        // SAFETY: the caller's promise.
        unsafe {
            let first = self.from.offset(from as isize * self.from_bytes);
            if self.as_it_is && step == 1 {
                return std::slice::from_raw_parts(first.cast(), memory.len());
            }
            (self.read)(first, step as isize, memory);
        }
        memory
    }
}

/// Writes elements at this distance from each other.
///
/// # Safety
/// The pointer must be valid for all of them.
#[inline(always)]
pub(super) unsafe fn scatter<T: Copy>(elements: &[T], to: *mut T, step: i64) {
    for (k, x) in elements.iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { *to.offset(k as isize * step as isize) = *x };
    }
}

/// Does work in vectors of a width that suits the operation.
pub(super) fn work<O: Operation>(work: impl Work) {
    if O::HEAVY { with_widest(work) } else { with_moderate(work) }
}
