//! Hands memory to PyTorch without a copy, through DLPack: a C structure with a deleter, in a capsule. The layout
//! of the structures is DLPack's stable ABI.

use std::ffi::{CStr, c_void};
use std::sync::Arc;

use loafc_ir::dtype::DType;
use loafc_runtime::pool::Block;
use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

const NAME: &CStr = c"dltensor";
const CPU: i32 = 1;

#[repr(C)]
struct DLDevice {
    device_type: i32,
    device_id: i32,
}

#[repr(C)]
struct DLDataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct DLTensor {
    data: *mut c_void,
    device: DLDevice,
    ndim: i32,
    dtype: DLDataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct DLManagedTensor {
    dl_tensor: DLTensor,
    manager_ctx: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut DLManagedTensor)>,
}

/// The structure with all that it points to.
struct Managed {
    tensor: DLManagedTensor,
    _dims: Box<[i64]>,
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
    pub shape: &'a [i64],
    /// Strides in elements.
    pub strides: &'a [i64],
}

/// Makes a torch tensor of this memory. Without an owner it is the caller who sees to it that nobody uses the
/// tensor after the memory is gone.
pub fn tensor<'py>(
    py: Python<'py>,
    layout: Layout<'_>,
    owner: Option<Arc<Block>>,
) -> PyResult<Bound<'py, PyAny>> {
    let tensor = from_dlpack(py)?.call1((capsule(py, layout, owner)?,))?;
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

fn data_type(dtype: DType) -> DLDataType {
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
        DType::C64 | DType::C128 => COMPLEX,
    };
    DLDataType { code, bits: 8 * dtype.bytes() as u8, lanes: 1 }
}

fn capsule<'py>(
    py: Python<'py>,
    layout: Layout<'_>,
    owner: Option<Arc<Block>>,
) -> PyResult<Bound<'py, PyAny>> {
    let rank = layout.shape.len();
    let ndim =
        i32::try_from(rank).map_err(|_| PyRuntimeError::new_err("a tensor has too many dimensions"))?;
    let mut dims: Box<[i64]> = layout.shape.iter().chain(layout.strides).copied().collect();
    let (shape, strides) = dims.split_at_mut(rank);
    let dl_tensor = DLTensor {
        data: layout.ptr.cast(),
        device: DLDevice { device_type: CPU, device_id: 0 },
        ndim,
        dtype: data_type(layout.dtype),
        shape: shape.as_mut_ptr(),
        strides: strides.as_mut_ptr(),
        byte_offset: 0,
    };
    let tensor = DLManagedTensor { dl_tensor, manager_ctx: std::ptr::null_mut(), deleter: Some(delete) };
    let managed = Box::into_raw(Box::new(Managed { tensor, _dims: dims, _owner: owner }));
    // The context is the box itself, so that the deleter doesn't depend on where the structure lies in it.
    // SAFETY: the box was just made and is not shared yet.
    let tensor = unsafe {
        (*managed).tensor.manager_ctx = managed.cast();
        &raw mut (*managed).tensor
    };
    // SAFETY: a pointer that isn't null, a static name, a destructor of the right type; the result is a new
    // reference or null with an error set.
    unsafe {
        let capsule = ffi::PyCapsule_New(tensor.cast(), NAME.as_ptr(), Some(drop_capsule));
        if capsule.is_null() {
            delete(tensor);
        }
        Bound::from_owned_ptr_or_err(py, capsule)
    }
}

/// Frees what [`capsule`] made. Called by PyTorch with the tensor's last reference; needs no Python.
unsafe extern "C" fn delete(tensor: *mut DLManagedTensor) {
    // SAFETY: called once with a structure that `capsule` made, whose context is the box.
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
