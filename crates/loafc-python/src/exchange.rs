//! PyTorch's table of C functions for exchanging tensors: DLPack's exchange API, which PyTorch has from 2.10 on. Through
//! it a tensor is read or made without a Python call. The layout of the structures is DLPack's stable ABI.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::NonNull;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyCapsule;

const NAME: &CStr = c"dlpack_exchange_api";

/// The version of the structures here; a minor version only adds to enumerations.
pub const VERSION: Version = Version { major: 1, minor: 0 };

/// A version of DLPack.
#[repr(C)]
#[derive(Copy, Clone)]
pub struct Version {
    major: u32,
    minor: u32,
}

/// Where a tensor lives.
#[repr(C)]
#[derive(Copy, Clone)]
pub struct Device {
    /// 1 for the CPU.
    pub device_type: i32,
    /// Which of them.
    pub device_id: i32,
}

/// An element type.
#[repr(C)]
#[derive(Copy, Clone)]
pub struct DataType {
    /// Kind of number.
    pub code: u8,
    /// Width.
    pub bits: u8,
    /// Always 1 here.
    pub lanes: u16,
}

/// A tensor as memory.
#[repr(C)]
pub struct Tensor {
    /// First byte, without `byte_offset`.
    pub data: *mut c_void,
    /// Where that is.
    pub device: Device,
    /// Number of dimensions.
    pub ndim: i32,
    /// Element type.
    pub dtype: DataType,
    /// Extents, `ndim` of them.
    pub shape: *mut i64,
    /// Strides in elements, `ndim` of them.
    pub strides: *mut i64,
    /// Bytes from `data` to the first element.
    pub byte_offset: u64,
}

/// A tensor that somebody else's memory holds until `deleter` is called.
#[repr(C)]
pub struct ManagedTensor {
    /// Of this structure.
    pub version: Version,
    /// The owner's own.
    pub manager_ctx: *mut c_void,
    /// Frees the structure and gives up the memory.
    pub deleter: Option<unsafe extern "C" fn(*mut ManagedTensor)>,
    /// None of which is set here: the memory may be written to and is no copy.
    pub flags: u64,
    /// What is managed.
    pub tensor: Tensor,
}

#[repr(C)]
struct Header {
    version: Version,
    previous: *mut Header,
}

/// The table. Functions that aren't used here are plain pointers.
#[repr(C)]
struct Table {
    header: Header,
    allocate: *const c_void,
    managed_from_object: *const c_void,
    object_from_managed: Option<unsafe extern "C" fn(*mut ManagedTensor, *mut *mut c_void) -> c_int>,
    read_object: Option<unsafe extern "C" fn(*mut c_void, *mut Tensor) -> c_int>,
    current_stream: *const c_void,
}

/// The functions of PyTorch's table that are used here.
#[derive(Copy, Clone)]
pub struct Exchange {
    read: unsafe extern "C" fn(*mut c_void, *mut Tensor) -> c_int,
    make: unsafe extern "C" fn(*mut ManagedTensor, *mut *mut c_void) -> c_int,
}

impl Exchange {
    /// The table, if this PyTorch has one.
    pub fn get(py: Python<'_>) -> Option<Exchange> {
        static FOUND: PyOnceLock<Option<Exchange>> = PyOnceLock::new();
        *FOUND.get_or_init(py, || Exchange::find(py).ok().flatten())
    }

    fn find(py: Python<'_>) -> PyResult<Option<Exchange>> {
        let class = py.import("torch")?.getattr("Tensor")?;
        let Some(attribute) = class.getattr_opt("__dlpack_c_exchange_api__")? else { return Ok(None) };
        let capsule = attribute.cast::<PyCapsule>()?;
        let table = capsule.pointer_checked(Some(NAME))?.cast::<Table>();
        // SAFETY: a capsule of this name holds a table that lives as long as the process; its header, which never
        // changes, says whether the rest is as declared here.
        let table = unsafe {
            if (*table.as_ptr()).header.version.major != VERSION.major {
                return Ok(None);
            }
            table.as_ref()
        };
        let functions = table.read_object.zip(table.object_from_managed);
        Ok(functions.map(|(read, make)| Exchange { read, make }))
    }

    /// Reads where a tensor's elements are and how they lie. The extents and strides are the tensor's own: they are
    /// valid while it is and isn't changed.
    ///
    /// An object that is no tensor, or none that DLPack can express, is an error.
    pub fn read(self, tensor: &Bound<'_, PyAny>) -> PyResult<Tensor> {
        let mut read = Tensor {
            data: std::ptr::null_mut(),
            device: Device { device_type: 0, device_id: 0 },
            ndim: 0,
            dtype: DataType { code: 0, bits: 0, lanes: 0 },
            shape: std::ptr::null_mut(),
            strides: std::ptr::null_mut(),
            byte_offset: 0,
        };
        // SAFETY: the GIL is held, and the function checks what object it gets.
        let status = unsafe { (self.read)(tensor.as_ptr().cast(), &raw mut read) };
        if status == 0 { Ok(read) } else { Err(PyErr::fetch(tensor.py())) }
    }

    /// Makes a torch tensor, which owns the structure from here on.
    ///
    /// # Safety
    /// The structure must be whole, and its memory stay valid until its deleter is called.
    pub unsafe fn make<'py>(
        self,
        py: Python<'py>,
        managed: NonNull<ManagedTensor>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let mut object: *mut c_void = std::ptr::null_mut();
        // SAFETY: the caller's promise; the GIL is held.
        let status = unsafe { (self.make)(managed.as_ptr(), &raw mut object) };
        if status != 0 {
            return Err(PyErr::fetch(py));
        }
        // SAFETY: a new reference, as the function promises.
        unsafe { Bound::from_owned_ptr_or_err(py, object.cast::<ffi::PyObject>()) }
    }
}

impl Tensor {
    /// The first element.
    pub fn pointer(&self) -> *mut u8 {
        self.data.cast::<u8>().wrapping_add(self.byte_offset as usize)
    }

    /// Extents and strides.
    ///
    /// # Safety
    /// The torch tensor that this was read from must be alive and unchanged.
    pub unsafe fn dims(&self) -> (&[i64], &[i64]) {
        let rank = usize::try_from(self.ndim).unwrap_or(0);
        if rank == 0 {
            return (&[], &[]);
        }
        // SAFETY: PyTorch gives both, `ndim` numbers each; they live as the caller promises.
        unsafe {
            (std::slice::from_raw_parts(self.shape, rank), std::slice::from_raw_parts(self.strides, rank))
        }
    }
}
