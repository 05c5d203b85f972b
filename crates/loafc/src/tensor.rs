//! Tensors for Rust programs: dtype, shape and strides on shared memory from the runtime's pool, so that a
//! program's results are taken over without a copy.

use std::sync::Arc;

use half::{bf16, f16};
use loafc_ir::dtype::{DType, Scalar};
use loafc_ir::interp::tensor::HostTensor;
use loafc_ir::random_program::Random;
use loafc_runtime::pool::{Block, OutOfMemory, Pool};
use loafc_runtime::strided::{self, contiguous_strides, for_each_position};
use loafc_runtime::value::{Keepalive, span};

/// A tensor in main memory. Clones share the elements; whoever changes them copies them first.
#[derive(Clone)]
pub struct Tensor {
    dtype: DType,
    shape: Vec<i64>,
    strides: Vec<i64>,
    ptr: *mut u8,
    storage: Storage,
}

/// What holds the elements. Only ever dropped.
#[derive(Clone)]
pub(crate) enum Storage {
    Block(Arc<Block>),
    Foreign { _keepalive: Keepalive },
}

// SAFETY: the elements are only read through shared references, and changed only through a unique one.
unsafe impl Send for Tensor {}
// SAFETY: as above.
unsafe impl Sync for Tensor {}

/// A tensor can't be made or read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TensorError {
    /// The number of elements does not belong to the shape.
    #[error("a tensor of shape {shape:?} has {expected} elements, got {got}")]
    Count {
        /// The shape.
        shape: Vec<usize>,
        /// Elements of the shape.
        expected: usize,
        /// Elements given.
        got: usize,
    },
    /// The shape has more elements than memory can hold.
    #[error("a {dtype} tensor of shape {shape:?} is too large")]
    TooLarge {
        /// Element type.
        dtype: DType,
        /// The shape.
        shape: Vec<usize>,
    },
    /// The elements are of another type.
    #[error("expected elements of type {expected}, the tensor has {got}")]
    DType {
        /// What was asked for.
        expected: DType,
        /// What the tensor has.
        got: DType,
    },
    /// The elements are complex, which the interpreter does not know.
    #[error(
        "the interpreter does not compute with complex numbers, and the tensor has elements of type {dtype}"
    )]
    Complex {
        /// What the tensor has.
        dtype: DType,
    },
    /// Not as many strides as extents, or negative ones.
    #[error("strides {strides:?} do not belong to shape {shape:?}")]
    Strides {
        /// The shape.
        shape: Vec<i64>,
        /// The strides.
        strides: Vec<i64>,
    },
    /// The system has no memory left.
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
}

/// A Rust type that is an element type.
pub trait Element: Copy + private::Sealed {
    /// Which.
    const DTYPE: DType;
}

mod private {
    /// Types whose values are plain bytes of the width of their [`super::DType`].
    pub trait Sealed {}
}

macro_rules! elements {
    ($($type:ty => $dtype:ident),*) => {
        $(
            impl private::Sealed for $type {}
            impl Element for $type {
                const DTYPE: DType = DType::$dtype;
            }
        )*
    };
}
elements!(f64 => F64, f32 => F32, f16 => F16, bf16 => BF16, i64 => I64, i32 => I32, i16 => I16, i8 => I8,
    u64 => U64, u32 => U32, u16 => U16, u8 => U8, bool => Bool);

impl Tensor {
    /// A contiguous tensor with the elements `data`, in row-major order.
    ///
    /// # Errors
    /// When `data` has not as many elements as the shape.
    pub fn from_slice<T: Element>(shape: &[usize], data: &[T]) -> Result<Tensor, TensorError> {
        let tensor = Tensor::uninitialized(T::DTYPE, shape)?;
        let expected = tensor.numel();
        if expected != data.len() {
            return Err(TensorError::Count { shape: shape.to_vec(), expected, got: data.len() });
        }
        // SAFETY: a fresh block of that many elements of this type's width.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), tensor.ptr.cast::<T>(), data.len()) };
        Ok(tensor)
    }

    /// A tensor of no dimensions.
    ///
    /// # Errors
    /// When there is no memory left.
    pub fn scalar<T: Element>(value: T) -> Result<Tensor, TensorError> {
        Tensor::from_slice(&[], &[value])
    }

    /// A contiguous tensor of zeros.
    ///
    /// # Errors
    /// When it is too large.
    pub fn zeros(dtype: DType, shape: &[usize]) -> Result<Tensor, TensorError> {
        let tensor = Tensor::uninitialized(dtype, shape)?;
        // SAFETY: a fresh block of that many bytes.
        unsafe { std::ptr::write_bytes(tensor.ptr, 0, tensor.numel() * dtype.bytes()) };
        Ok(tensor)
    }

    /// A contiguous tensor from its bytes in row-major order; truth values are a byte of 0 or 1.
    ///
    /// # Errors
    /// When there are not as many bytes as the shape needs.
    pub fn from_bytes(dtype: DType, shape: &[usize], bytes: &[u8]) -> Result<Tensor, TensorError> {
        let tensor = Tensor::uninitialized(dtype, shape)?;
        let expected = tensor.numel();
        if bytes.len() != expected * dtype.bytes() {
            return Err(TensorError::Count {
                shape: shape.to_vec(),
                expected,
                got: bytes.len() / dtype.bytes(),
            });
        }
        // SAFETY: a fresh block of that many bytes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), tensor.ptr, bytes.len()) };
        if dtype == DType::Bool {
            // SAFETY: as above.
            unsafe { std::slice::from_raw_parts_mut(tensor.ptr, bytes.len()) }
                .iter_mut()
                .for_each(|b| *b = u8::from(*b != 0));
        }
        Ok(tensor)
    }

    /// A contiguous tensor whose elements nothing has written.
    fn uninitialized(dtype: DType, shape: &[usize]) -> Result<Tensor, TensorError> {
        let too_large = || TensorError::TooLarge { dtype, shape: shape.to_vec() };
        let extents: Option<Vec<i64>> = shape.iter().map(|n| i64::try_from(*n).ok()).collect();
        let extents = extents.ok_or_else(too_large)?;
        let count = span(&extents, &checked_strides(&extents).ok_or_else(too_large)?);
        let bytes = count.and_then(|c| c.checked_mul(dtype.bytes() as i64)).filter(|b| *b < 1 << 47);
        let block = Pool::global().take(bytes.ok_or_else(too_large)? as usize)?;
        let ptr = block.as_ptr();
        let strides = contiguous_strides(&extents);
        Ok(Tensor { dtype, shape: extents, strides, ptr, storage: Storage::Block(Arc::new(block)) })
    }

    /// A tensor on memory that `storage` holds.
    pub(crate) fn on_storage(
        dtype: DType,
        shape: &[i64],
        strides: &[i64],
        ptr: *mut u8,
        storage: Storage,
    ) -> Tensor {
        Tensor { dtype, shape: shape.to_vec(), strides: strides.to_vec(), ptr, storage }
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Extents.
    pub fn shape(&self) -> &[i64] {
        &self.shape
    }

    /// Strides in elements.
    pub fn strides(&self) -> &[i64] {
        &self.strides
    }

    /// Number of elements.
    pub fn numel(&self) -> usize {
        self.shape.iter().product::<i64>() as usize
    }

    /// First element.
    pub fn as_ptr(&self) -> *const u8 {
        self.ptr
    }

    pub(crate) fn as_mut_ptr(&self) -> *mut u8 {
        self.ptr
    }

    pub(crate) fn storage(&self) -> &Storage {
        &self.storage
    }

    /// The elements in row-major order.
    ///
    /// # Errors
    /// When the tensor has another element type.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, TensorError> {
        if T::DTYPE != self.dtype {
            return Err(TensorError::DType { expected: T::DTYPE, got: self.dtype });
        }
        let mut data = Vec::with_capacity(self.numel());
        for_each_position(&self.shape, &self.strides, |position| {
            // SAFETY: an element of this tensor; kernels and constructors only store 0 or 1 as truth values.
            data.push(unsafe { self.ptr.cast::<T>().offset(position as isize).read_unaligned() });
        });
        Ok(data)
    }

    /// The bytes of the elements in row-major order.
    pub fn to_bytes(&self) -> Vec<u8> {
        let width = self.dtype.bytes();
        let mut bytes = Vec::with_capacity(self.numel() * width);
        for_each_position(&self.shape, &self.strides, |position| {
            // SAFETY: an element of this tensor.
            let element = unsafe {
                std::slice::from_raw_parts(self.ptr.offset(position as isize * width as isize), width)
            };
            bytes.extend_from_slice(element);
        });
        bytes
    }

    /// The same elements laid out with these strides, in memory of its own.
    ///
    /// # Errors
    /// When strides and shape don't belong together, or there is no memory left.
    pub fn with_strides(&self, strides: &[i64]) -> Result<Tensor, TensorError> {
        let bad = || TensorError::Strides { shape: self.shape.clone(), strides: strides.to_vec() };
        if strides.len() != self.shape.len() || strides.iter().any(|s| *s < 0) {
            return Err(bad());
        }
        let count = span(&self.shape, strides).ok_or_else(bad)?;
        let width = self.dtype.bytes();
        let bytes = count.checked_mul(width as i64).ok_or_else(bad)?;
        let block = Pool::global().take(bytes as usize)?;
        let to = block.as_ptr();
        // SAFETY: a fresh block of that many bytes. Gaps between elements must not stay what they were: the
        // program may hand them to an extern call.
        unsafe { std::ptr::write_bytes(to, 0, bytes as usize) };
        let mut positions = Vec::with_capacity(self.numel());
        for_each_position(&self.shape, strides, |position| positions.push(position));
        let mut positions = positions.into_iter();
        for_each_position(&self.shape, &self.strides, |from| {
            let Some(position) = positions.next() else { return };
            // SAFETY: elements of this tensor and of the block.
            unsafe {
                let source = self.ptr.offset(from as isize * width as isize);
                std::ptr::copy_nonoverlapping(source, to.offset(position as isize * width as isize), width);
            }
        });
        Ok(Tensor {
            dtype: self.dtype,
            shape: self.shape.clone(),
            strides: strides.to_vec(),
            ptr: to,
            storage: Storage::Block(Arc::new(block)),
        })
    }

    /// Makes this tensor the only owner of its elements, by a copy where it is not.
    pub(crate) fn make_unique(&mut self) -> Result<(), TensorError> {
        let unique = match &mut self.storage {
            Storage::Block(block) => Arc::get_mut(block).is_some(),
            Storage::Foreign { .. } => false,
        };
        if !unique {
            *self = self.with_strides(&self.strides)?;
        }
        Ok(())
    }

    /// The elements as the interpreter's values.
    ///
    /// # Errors
    /// When the type is complex, which the interpreter does not know.
    pub fn to_host(&self) -> Result<HostTensor, TensorError> {
        if self.dtype.is_complex() {
            return Err(TensorError::Complex { dtype: self.dtype });
        }
        // SAFETY: this tensor's own elements.
        Ok(unsafe { strided::read(self.ptr, self.dtype, &self.shape, &self.strides) })
    }

    /// A contiguous tensor of the interpreter's values.
    ///
    /// # Errors
    /// When it is too large or has a wrong number of values.
    pub fn from_host(host: &HostTensor) -> Result<Tensor, TensorError> {
        let tensor = Tensor::uninitialized(host.dtype, &host.shape)?;
        let expected = tensor.numel();
        if host.data.len() != expected {
            return Err(TensorError::Count { shape: host.shape.clone(), expected, got: host.data.len() });
        }
        if host.dtype.is_complex() {
            return Err(TensorError::Complex { dtype: host.dtype });
        }
        // SAFETY: a fresh block of that many elements.
        unsafe { strided::write(tensor.ptr, host.dtype, &tensor.shape, &tensor.strides, &host.data) };
        Ok(tensor)
    }

    /// A contiguous tensor of values that the seed fixes: floats near ±1, integers from 0 to 3, truth values.
    ///
    /// # Errors
    /// When it is too large, or complex.
    pub fn random(dtype: DType, shape: &[usize], seed: u64) -> Result<Tensor, TensorError> {
        let count = Tensor::uninitialized(dtype, shape)?.numel();
        let mut random = Random(seed);
        let value = |bits: u64| {
            let quarter = |k: u32| f64::from((bits >> (16 * k)) as u16) / 65536.0;
            match dtype {
                DType::Bool => Scalar::Bool(bits & 1 == 1),
                // A sum of four uniform numbers: bell-shaped, with a standard deviation of 1.
                d if d.is_float() => Scalar::Float((0..4).map(quarter).sum::<f64>().mul_add(1.732, -3.464)),
                _ => Scalar::Int((bits % 4) as i64),
            }
        };
        let data = (0..count)
            .map(|_| {
                let v = value(random.bits());
                // Through the bits, so that the value is one that the type holds.
                loafc_ir::interp::scalar::from_bits(loafc_ir::interp::scalar::to_bits(v, dtype), dtype)
            })
            .collect();
        Tensor::from_host(&HostTensor { dtype, shape: shape.to_vec(), data })
    }
}

fn checked_strides(shape: &[i64]) -> Option<Vec<i64>> {
    let mut count = 1i64;
    for extent in shape {
        count = count.checked_mul((*extent).max(1))?;
    }
    Some(contiguous_strides(shape))
}

impl std::fmt::Debug for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tensor({}{:?}, strides {:?})", self.dtype, self.shape, self.strides)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_come_back_in_row_major_order_from_any_layout() {
        let t = Tensor::from_slice(&[2, 3], &[1i32, 2, 3, 4, 5, 6]).unwrap();
        let turned = t.with_strides(&[1, 2]).unwrap();
        assert_eq!(turned.strides(), [1, 2]);
        assert_eq!(turned.to_vec::<i32>().unwrap(), [1, 2, 3, 4, 5, 6]);
        assert_eq!(turned.to_bytes(), t.to_bytes());
        assert_eq!(Tensor::from_host(&turned.to_host().unwrap()).unwrap().to_bytes(), t.to_bytes());
    }

    #[test]
    fn wrong_counts_types_and_strides_are_errors() {
        let message = |e: Result<Tensor, TensorError>| e.unwrap_err().to_string();
        let t = Tensor::zeros(DType::F32, &[2, 2]).unwrap();
        assert_eq!(
            message(Tensor::from_slice(&[2, 2], &[1.0f32])),
            "a tensor of shape [2, 2] has 4 elements, got 1"
        );
        assert!(message(Tensor::zeros(DType::F32, &[usize::MAX])).contains("too large"));
        assert!(message(Tensor::zeros(DType::F32, &[1 << 40, 1 << 40, 1 << 40])).contains("too large"));
        assert!(message(Tensor::random(DType::C64, &[2], 0)).contains("elements of type c64"));
        assert!(message(t.with_strides(&[1])).contains("do not belong"));
        assert!(message(t.with_strides(&[i64::MAX, 1])).contains("do not belong"));
        assert_eq!(
            t.to_vec::<i64>().unwrap_err().to_string(),
            "expected elements of type i64, the tensor has f32"
        );
    }

    #[test]
    fn a_shared_tensor_is_copied_before_it_changes() {
        let mut a = Tensor::from_slice(&[2], &[1.0f32, 2.0]).unwrap();
        let at = a.as_ptr();
        a.make_unique().unwrap();
        assert_eq!(a.as_ptr(), at);
        let b = a.clone();
        a.make_unique().unwrap();
        assert_ne!(a.as_ptr(), b.as_ptr());
    }

    #[test]
    fn random_tensors_depend_on_the_seed_alone() {
        for dtype in [DType::F32, DType::BF16, DType::I64, DType::U8, DType::Bool] {
            let bytes = |seed| Tensor::random(dtype, &[64], seed).unwrap().to_bytes();
            assert_eq!(bytes(1), bytes(1));
            assert_ne!(bytes(1), bytes(2));
        }
    }

    #[test]
    fn truth_values_are_zero_or_one() {
        let t = Tensor::from_bytes(DType::Bool, &[3], &[0, 1, 7]).unwrap();
        assert_eq!(t.to_vec::<bool>().unwrap(), [false, true, true]);
    }
}
