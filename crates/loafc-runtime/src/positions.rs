//! Which position it was that a kernel's check refused. Kernels only say which check failed, so that checking costs
//! them no more than a comparison; here the positions are gone through once more.

use loafc_ir::dtype::DType;
use loafc_ir::nest::CheckedPositions;
use loafc_ir::size::{Size, SymbolValues};

use crate::error::RunError;
use crate::executable::{Executable, LinkedKernel};

/// The error of a kernel, with the first position that its check refuses where that is still in memory.
#[cold]
pub(crate) fn told(
    error: RunError,
    (program, kernel): (&Executable, &LinkedKernel),
    pointers: &[*mut u8],
    symbols: &SymbolValues,
) -> RunError {
    let RunError::Check { kernel: name, mut failure } = error else { return error };
    let refused = failure.positions.as_ref().and_then(|checked| {
        let buffer = checked.tensor.buffer.0 as usize;
        // What the kernel reads is there; what it writes, or what it writes in the place of, may have changed.
        let is_kept = kernel.buffers.contains(&buffer)
            && kernel.written.iter().all(|written| pointers.get(*written) != pointers.get(buffer));
        let linked = program.buffers.get(buffer).filter(|_| is_kept)?;
        let first = pointers.get(buffer).filter(|pointer| !pointer.is_null())?;
        // SAFETY: the kernel read these positions at this place a moment ago.
        let position = unsafe { first_refused(checked, linked.buffer.dtype, *first, symbols) }?;
        Some((position, checked.extent))
    });
    if let Some((position, extent)) = refused {
        let mut message = format!("{}: it is {position}", failure.message);
        if let (None, Some(value)) = (extent.as_const(), extent.eval(symbols)) {
            message.push_str(&format!(", and {extent} is {value}"));
        }
        failure.message = message.into();
    }
    RunError::Check { kernel: name, failure }
}

/// # Safety
/// The positions' buffer, of this element type, must begin at `first`.
unsafe fn first_refused(
    checked: &CheckedPositions,
    dtype: DType,
    first: *const u8,
    symbols: &SymbolValues,
) -> Option<i64> {
    let CheckedPositions { tensor, extent, wrap } = checked;
    let values = |sizes: &[Size]| sizes.iter().map(|s| s.eval(symbols)).collect::<Option<Vec<i64>>>();
    let (mut shape, strides) = (values(&tensor.shape)?, values(&tensor.strides)?);
    let (offset, extent) = (tensor.offset.eval(symbols)?, extent.eval(symbols)?);
    if shape.iter().any(|n| *n < 1) {
        return None;
    }
    // What is repeated is looked at once.
    for (n, _) in shape.iter_mut().zip(&strides).filter(|(_, stride)| **stride == 0) {
        *n = 1;
    }
    let lowest = if *wrap { -extent } else { 0 };
    let mut at = vec![0; shape.len()];
    loop {
        let element = offset + at.iter().zip(&strides).map(|(i, stride)| i * stride).sum::<i64>();
        // SAFETY: the caller's promise, for an element of the tensor.
        let position = unsafe { read(first, dtype, element) }?;
        if !(lowest..extent).contains(&position) {
            return Some(position);
        }
        let d = (0..shape.len()).rev().find(|d| at[*d] + 1 < shape[*d])?;
        at[d] += 1;
        at[d + 1..].fill(0);
    }
}

/// # Safety
/// There must be an element of this type so many elements behind `first`.
unsafe fn read(first: *const u8, dtype: DType, element: i64) -> Option<i64> {
    let place = first.wrapping_offset(element as isize * dtype.bytes() as isize);
    // SAFETY: the caller's promise.
    unsafe {
        Some(match dtype {
            DType::I64 => place.cast::<i64>().read_unaligned(),
            DType::I32 => place.cast::<i32>().read_unaligned().into(),
            DType::I16 => place.cast::<i16>().read_unaligned().into(),
            DType::I8 => place.cast::<i8>().read_unaligned().into(),
            DType::U8 => place.read().into(),
            _ => return None,
        })
    }
}
