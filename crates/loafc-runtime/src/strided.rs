//! Strided tensors in raw memory, as the interpreter's values and back. Slow and plain; for calls into the
//! reference interpreter and for tests.

use loafc_ir::dtype::{DType, Scalar};
use loafc_ir::interp::scalar;
use loafc_ir::interp::tensor::HostTensor;

/// Calls `visit` with the position of each element, in row-major order of the shape.
pub fn for_each_position(shape: &[i64], strides: &[i64], mut visit: impl FnMut(i64)) {
    if shape.iter().any(|n| *n <= 0) {
        return;
    }
    let mut at = vec![0i64; shape.len()];
    let mut position = 0i64;
    loop {
        visit(position);
        let mut d = shape.len();
        loop {
            if d == 0 {
                return;
            }
            d -= 1;
            at[d] += 1;
            position += strides[d];
            if at[d] < shape[d] {
                break;
            }
            position -= strides[d] * shape[d];
            at[d] = 0;
        }
    }
}

/// Row-major strides without gaps.
pub fn contiguous_strides(shape: &[i64]) -> Vec<i64> {
    let mut strides = vec![1i64; shape.len()];
    for d in (1..shape.len()).rev() {
        strides[d - 1] = strides[d].wrapping_mul(shape[d].max(1));
    }
    strides
}

/// Reads a tensor.
///
/// # Safety
/// Every element must be readable. The type must not be complex.
pub unsafe fn read(ptr: *const u8, dtype: DType, shape: &[i64], strides: &[i64]) -> HostTensor {
    let mut data = Vec::new();
    let width = dtype.bytes();
    for_each_position(shape, strides, |position| {
        let mut bits = [0u8; 8];
        // SAFETY: the caller's promise; no type but the complex ones is wider than 8 bytes.
        unsafe {
            let from = ptr.offset(position as isize * width as isize);
            std::ptr::copy_nonoverlapping(from, bits.as_mut_ptr(), width.min(8));
        }
        data.push(scalar::from_bits(u64::from_le_bytes(bits), dtype));
    });
    HostTensor { dtype, shape: shape.iter().map(|n| *n as usize).collect(), data }
}

/// Writes elements in row-major order of the shape.
///
/// # Safety
/// Every element must be writable. The type must not be complex.
pub unsafe fn write(ptr: *mut u8, dtype: DType, shape: &[i64], strides: &[i64], data: &[Scalar]) {
    let width = dtype.bytes();
    let mut values = data.iter();
    for_each_position(shape, strides, |position| {
        let Some(value) = values.next() else { return };
        let bits = scalar::to_bits(*value, dtype).to_le_bytes();
        // SAFETY: the caller's promise; no type but the complex ones is wider than 8 bytes.
        unsafe {
            let to = ptr.offset(position as isize * width as isize);
            std::ptr::copy_nonoverlapping(bits.as_ptr(), to, width.min(8));
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_come_in_row_major_order_whatever_the_strides() {
        let memory = [0i32, 1, 2, 3, 4, 5];
        // SAFETY: six elements.
        let t = unsafe { read(memory.as_ptr().cast(), DType::I32, &[2, 3], &[1, 2]) };
        let values: Vec<i64> = t.data.iter().map(|v| v.to_i64()).collect();
        assert_eq!(values, [0, 2, 4, 1, 3, 5]);
        let mut back = [9i32; 6];
        // SAFETY: six elements.
        unsafe { write(back.as_mut_ptr().cast(), DType::I32, &[2, 3], &[1, 2], &t.data) };
        assert_eq!(back, memory);
    }

    #[test]
    fn empty_tensors_have_no_and_scalars_one_position() {
        let count = |shape: &[i64]| {
            let mut n = 0;
            for_each_position(shape, &contiguous_strides(shape), |_| n += 1);
            n
        };
        assert_eq!((count(&[2, 0]), count(&[]), count(&[2, 3])), (0, 1, 6));
    }
}
