//! What a call reads off a torch tensor: where its elements are, of what type, and how they are laid out.

use loafc_ir::dtype::DType;
use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use smallvec::SmallVec;

use crate::address;
use crate::exchange::{Exchange, Tensor};

/// Shape and strides.
pub type Dims = (SmallVec<[i64; 6]>, SmallVec<[i64; 6]>);

/// Shape and strides of a tensor.
pub fn layout_of(py: Python<'_>, tensor: &Bound<'_, PyAny>) -> PyResult<Dims> {
    if let Some(read) = read(tensor) {
        // SAFETY: the tensor is alive, and nothing runs in between that could change it.
        let (shape, strides) = unsafe { read.dims() };
        return Ok((shape.into(), strides.into()));
    }
    let shape = tensor.getattr(intern!(py, "shape"))?;
    let strides = tensor.call_method0(intern!(py, "stride"))?;
    Ok((integers(&shape)?, integers(&strides)?))
}

/// What PyTorch's exchange table says of a tensor. None without a table, or for what the table has no words for: its
/// methods give the answer, or a clear error.
fn read(tensor: &Bound<'_, PyAny>) -> Option<Tensor> {
    Exchange::get(tensor.py())?.read(tensor).ok()
}

fn integers(tuple: &Bound<'_, PyAny>) -> PyResult<SmallVec<[i64; 6]>> {
    tuple.cast::<PyTuple>()?.iter_borrowed().map(|v| v.extract()).collect()
}

/// The address of a tensor's first element.
pub fn data_ptr(tensor: &Bound<'_, PyAny>) -> PyResult<*mut u8> {
    if let Some(address) = address::of(tensor) {
        return Ok(address);
    }
    if let Some(read) = read(tensor) {
        return Ok(read.pointer());
    }
    let address: usize = tensor.call_method0(intern!(tensor.py(), "data_ptr"))?.extract()?;
    Ok(address as *mut u8)
}

/// The element type of a torch tensor.
pub fn dtype_of(py: Python<'_>, tensor: &Bound<'_, PyAny>) -> PyResult<DType> {
    let dtype = tensor.getattr(intern!(py, "dtype"))?;
    let name: String = py
        .import(intern!(py, "loafc.literals"))?
        .getattr(intern!(py, "DTYPE_NAMES"))?
        .get_item(&dtype)
        .map_err(|_| PyValueError::new_err(format!("loafc doesn't know the element type {dtype}")))?
        .extract()?;
    name.parse().map_err(|error: loafc_ir::dtype::UnknownDType| PyValueError::new_err(error.to_string()))
}
