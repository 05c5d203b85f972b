//! Hands memory to PyTorch without a copy, through DLPack: a C structure with a deleter, given to PyTorch's exchange
//! table or, where there is none, in a capsule.

use std::ffi::CStr;
use std::ptr::NonNull;
use std::sync::Arc;

use loafc_ir::dtype::DType;
use loafc_runtime::pool::Block;
use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::exchange::{DataType, Device, Exchange, ManagedTensor, Tensor, VERSION};

const NAME: &CStr = c"dltensor_versioned";
const CPU: i32 = 1;

/// The structure with all that it points to: extents and strides, and what keeps the memory.
struct Managed {
    tensor: ManagedTensor,
    _shape: Arc<[i64]>,
    _strides: Arc<[i64]>,
    // Never a Python object: PyTorch frees tensors with the GIL released, and PyO3 can't tell.
    _owner: Option<Arc<Block>>,
}

/// A tensor as memory: where it is and how it is laid out.
#[derive(Copy, Clone)]
pub struct Layout<'a> {
    /// First element.
    pub ptr: *mut u8,
    /// Element type.
    pub dtype: DType,
    /// Extents.
    pub shape: &'a Arc<[i64]>,
    /// Strides in elements.
    pub strides: &'a Arc<[i64]>,
}

/// Makes a torch tensor of this memory. Without an owner it is the caller who sees to it that nobody uses the
/// tensor after the memory is gone.
pub fn tensor<'py>(
    py: Python<'py>,
    layout: Layout<'_>,
    owner: Option<Arc<Block>>,
) -> PyResult<Bound<'py, PyAny>> {
    let managed = managed(layout, owner)?;
    let tensor = match Exchange::get(py) {
        // SAFETY: made above; its memory has an owner in it, or the caller sees to it.
        Some(exchange) => unsafe { exchange.make(py, managed)? },
        None => from_dlpack(py)?.call1((capsule(py, managed)?,))?,
    };
    match viewed_as(layout.dtype) {
        None => Ok(tensor),
        Some(name) => tensor.call_method1(intern!(py, "view"), (torch(py)?.getattr(name)?,)),
    }
}

fn torch(py: Python<'_>) -> PyResult<Bound<'_, PyModule>> {
    py.import(intern!(py, "torch"))
}

fn from_dlpack(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static FUNCTION: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let function =
        FUNCTION.get_or_try_init(py, || py.import("torch._C")?.getattr("_from_dlpack").map(Bound::unbind))?;
    Ok(function.bind(py))
}

/// Types that not every PyTorch imports are handed over as bytes and viewed as what they are.
fn viewed_as(dtype: DType) -> Option<&'static str> {
    match dtype {
        DType::F8E4M3FN => Some("float8_e4m3fn"),
        DType::F8E5M2 => Some("float8_e5m2"),
        _ => None,
    }
}

fn data_type(dtype: DType) -> DataType {
    const INT: u8 = 0;
    const UINT: u8 = 1;
    const FLOAT: u8 = 2;
    const BFLOAT: u8 = 4;
    const COMPLEX: u8 = 5;
    const BOOL: u8 = 6;
    let code = match dtype {
        DType::F64 | DType::F32 | DType::F16 => FLOAT,
        DType::BF16 => BFLOAT,
        DType::I64 | DType::I32 | DType::I16 | DType::I8 => INT,
        DType::U64 | DType::U32 | DType::U16 | DType::U8 | DType::F8E4M3FN | DType::F8E5M2 => UINT,
        DType::Bool => BOOL,
        DType::C32 | DType::C64 | DType::C128 => COMPLEX,
    };
    DataType { code, bits: 8 * dtype.bytes() as u8, lanes: 1 }
}

/// The structure on the heap; freed by its deleter.
fn managed(layout: Layout<'_>, owner: Option<Arc<Block>>) -> PyResult<NonNull<ManagedTensor>> {
    let ndim = i32::try_from(layout.shape.len())
        .map_err(|_| PyRuntimeError::new_err("a tensor has too many dimensions"))?;
    let managed = Box::new(Managed {
        tensor: ManagedTensor {
            version: VERSION,
            manager_ctx: std::ptr::null_mut(),
            deleter: Some(delete),
            flags: 0,
            tensor: Tensor {
                data: layout.ptr.cast(),
                device: Device { device_type: CPU, device_id: 0 },
                ndim,
                dtype: data_type(layout.dtype),
                // Readers of a tensor don't write its extents.
                shape: layout.shape.as_ptr().cast_mut(),
                strides: layout.strides.as_ptr().cast_mut(),
                byte_offset: 0,
            },
        },
        _shape: layout.shape.clone(),
        _strides: layout.strides.clone(),
        _owner: owner,
    });
    let managed = Box::into_raw(managed);
    // The context is the box itself, so that the deleter doesn't depend on where the structure lies in it.
    // SAFETY: the box was just made and is not shared yet.
    unsafe {
        (*managed).tensor.manager_ctx = managed.cast();
        Ok(NonNull::new_unchecked(&raw mut (*managed).tensor))
    }
}

fn capsule<'py>(py: Python<'py>, managed: NonNull<ManagedTensor>) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: a pointer that isn't null, a static name, a destructor of the right type; the result is a new
    // reference or null with an error set.
    unsafe {
        let capsule = ffi::PyCapsule_New(managed.as_ptr().cast(), NAME.as_ptr(), Some(drop_capsule));
        if capsule.is_null() {
            delete(managed.as_ptr());
        }
        Bound::from_owned_ptr_or_err(py, capsule)
    }
}

/// Frees what [`managed`] made. Called by PyTorch with the tensor's last reference; needs no Python.
unsafe extern "C" fn delete(tensor: *mut ManagedTensor) {
    // SAFETY: called once with a structure that `managed` made, whose context is the box.
    drop(unsafe { Box::from_raw((*tensor).manager_ctx.cast::<Managed>()) });
}

/// Frees a capsule that nobody took the tensor out of: who takes it renames the capsule.
unsafe extern "C" fn drop_capsule(capsule: *mut ffi::PyObject) {
    // SAFETY: Python passes the capsule that is being freed, with the GIL held.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, NAME.as_ptr()) == 1 {
            delete(ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr()).cast());
        }
    }
}
