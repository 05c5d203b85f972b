//! The address of a tensor's elements, read without a Python call: a program with hundreds of inputs asks for that
//! many at each call. PyTorch's C interface (AOTInductor's, which is stable) gives the address of an `at::Tensor`;
//! where in a Python object that one lies isn't part of an interface, so it is found at run time, by the address that
//! `_cdata` tells, and tried. Where that fails, callers ask the tensor itself.

use std::ffi::{CString, c_void};

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyType};

type GetDataPtr = unsafe extern "C" fn(*const c_void, *mut *mut c_void) -> i32;

/// How to read addresses in this process.
struct Reader {
    get_data_ptr: GetDataPtr,
    /// Bytes into a Python object where its `at::Tensor` lies.
    offset: usize,
    /// The classes whose objects are known to be laid out so: tensors and parameters.
    classes: [Py<PyType>; 2],
}

/// The address of the first element of a plain tensor or parameter. None for any other object, and where this PyTorch
/// can't be read.
pub fn of(tensor: &Bound<'_, PyAny>) -> Option<*mut u8> {
    static READER: PyOnceLock<Option<Reader>> = PyOnceLock::new();
    let py = tensor.py();
    READER.get_or_init(py, || Reader::find(py).ok().flatten()).as_ref()?.read(tensor)
}

impl Reader {
    fn find(py: Python<'_>) -> PyResult<Option<Reader>> {
        let torch = py.import("torch")?;
        let Some(get_data_ptr) = find_function(&torch)? else { return Ok(None) };
        let tensor = torch.getattr("Tensor")?.cast_into::<PyType>()?;
        let parameter = torch.getattr("nn")?.getattr("Parameter")?.cast_into::<PyType>()?;
        let samples = samples(&torch, &parameter)?;
        let Some(offset) = find_offset(&tensor, &samples)? else { return Ok(None) };
        let reader = Reader { get_data_ptr, offset, classes: [tensor.unbind(), parameter.unbind()] };
        for sample in &samples {
            let expected: usize = sample.call_method0("data_ptr")?.extract()?;
            if reader.read(sample).map(|p| p as usize) != Some(expected) {
                return Ok(None);
            }
        }
        Ok(Some(reader))
    }

    fn read(&self, tensor: &Bound<'_, PyAny>) -> Option<*mut u8> {
        let class = tensor.get_type_ptr();
        if self.classes.iter().all(|c| c.as_ptr().cast() != class) {
            return None;
        }
        let mut address = std::ptr::null_mut();
        // SAFETY: an object of a class whose objects have an `at::Tensor` there, which lives as long as the object.
        let status = unsafe {
            (self.get_data_ptr)(
                tensor.as_ptr().cast::<u8>().wrapping_add(self.offset).cast(),
                &raw mut address,
            )
        };
        (status == 0).then_some(address.cast())
    }
}

/// The function in the library that PyTorch has loaded.
fn find_function(torch: &Bound<'_, PyModule>) -> PyResult<Option<GetDataPtr>> {
    let file: std::path::PathBuf = torch.getattr("__file__")?.extract()?;
    let library = file.with_file_name("lib").join("libtorch_cpu.so");
    let Some(path) = library.to_str().and_then(|p| CString::new(p).ok()) else { return Ok(None) };
    // SAFETY: a terminated string; a library that isn't loaded already is not loaded now.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if handle.is_null() {
        return Ok(None);
    }
    // SAFETY: a handle that is open, and a terminated string.
    let function = unsafe { libc::dlsym(handle, c"aoti_torch_get_data_ptr".as_ptr()) };
    // SAFETY: the type that PyTorch's header gives the function.
    Ok((!function.is_null()).then(|| unsafe { std::mem::transmute::<*mut c_void, GetDataPtr>(function) }))
}

/// Tensors of each kind that is read: a whole one, one that starts within its storage, a parameter.
fn samples<'py>(
    torch: &Bound<'py, PyModule>,
    parameter: &Bound<'py, PyType>,
) -> PyResult<[Bound<'py, PyAny>; 3]> {
    let on_cpu = PyDict::new(torch.py());
    on_cpu.set_item("device", "cpu")?;
    let whole = torch.call_method("empty", (4,), Some(&on_cpu))?;
    let part = whole.call_method1("narrow", (0, 1, 2))?;
    let parameter = parameter.call1((&whole,))?;
    Ok([whole, part, parameter])
}

/// The one place in all samples that holds the address of the tensor's implementation: an `at::Tensor` is a pointer to
/// it and nothing else.
fn find_offset(class: &Bound<'_, PyType>, samples: &[Bound<'_, PyAny>]) -> PyResult<Option<usize>> {
    let size: usize = class.getattr("__basicsize__")?.extract()?;
    let word = size_of::<usize>();
    let mut offsets: Vec<usize> = (0..size / word).map(|k| k * word).collect();
    for sample in samples {
        let implementation: usize = sample.getattr("_cdata")?.extract()?;
        let start = sample.as_ptr().cast::<u8>();
        // SAFETY: a word within the object, which has as many bytes as its class says.
        offsets.retain(|at| unsafe { start.add(*at).cast::<usize>().read() } == implementation);
    }
    Ok(match offsets[..] {
        [offset] => Some(offset),
        _ => None,
    })
}
