//! Where a program's inputs come from in the list of arguments that AOTAutograd passes.

use loafc_ir::size::floor_div;
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::tensor::data_ptr;

/// The source of one input.
pub enum Source {
    /// The argument of this position is the value of a size.
    Size(usize),
    /// A size that follows from a property of an argument: `(property - offset) // factor`.
    Derived { position: usize, property: Property, factor: i64, offset: i64 },
    /// The argument of this position is the tensor. If no guard of Dynamo's covers it, its layout is checked at
    /// each call.
    Tensor { position: usize, unguarded: bool },
    /// Always this tensor.
    Constant(Py<PyAny>),
}

/// A property of an argument.
pub enum Property {
    /// The argument itself, an integer.
    Value,
    /// An extent.
    Size(usize),
    /// A stride.
    Stride(usize),
}

impl Source {
    /// Reads what `loafc.backend` describes as a tuple.
    pub fn extract(description: &Bound<'_, PyTuple>) -> PyResult<Source> {
        let kind: String = description.get_item(0)?.extract()?;
        let position = || description.get_item(1)?.extract::<usize>();
        match kind.as_str() {
            "size" => Ok(Source::Size(position()?)),
            "tensor" => {
                Ok(Source::Tensor { position: position()?, unguarded: description.get_item(2)?.extract()? })
            }
            "constant" => Ok(Source::Constant(description.get_item(1)?.unbind())),
            "derived" => {
                let dim: usize = description.get_item(3)?.extract()?;
                let property: String = description.get_item(2)?.extract()?;
                let property = match property.as_str() {
                    "value" => Property::Value,
                    "size" => Property::Size(dim),
                    "stride" => Property::Stride(dim),
                    other => return Err(PyValueError::new_err(format!("unknown property `{other}`"))),
                };
                let factor: i64 = description.get_item(4)?.extract()?;
                if factor == 0 {
                    return Err(PyValueError::new_err("the factor of a derived size is 0"));
                }
                let offset = description.get_item(5)?.extract()?;
                Ok(Source::Derived { position: position()?, property, factor, offset })
            }
            other => Err(PyValueError::new_err(format!("unknown source `{other}`"))),
        }
    }

    /// Whether the layout must be checked at each call.
    pub fn is_unguarded(&self) -> bool {
        matches!(self, Source::Tensor { unguarded: true, .. })
    }

    /// The object, its first element (null for a size) and its value (0 for a tensor).
    pub fn read<'py>(
        &self,
        py: Python<'py>,
        args: &Bound<'py, PyList>,
    ) -> PyResult<(Bound<'py, PyAny>, *mut u8, i64)> {
        match self {
            Source::Size(position) => {
                let object = argument(args, *position)?;
                let value = object.extract()?;
                Ok((object, std::ptr::null_mut(), value))
            }
            Source::Tensor { position, .. } => {
                let object = argument(args, *position)?;
                let pointer = data_ptr(&object)?;
                Ok((object, pointer, 0))
            }
            Source::Constant(tensor) => {
                let object = tensor.bind(py).clone();
                let pointer = data_ptr(&object)?;
                Ok((object, pointer, 0))
            }
            Source::Derived { position, property, factor, offset } => {
                let object = argument(args, *position)?;
                let number: i64 = match property {
                    Property::Value => object.extract()?,
                    Property::Size(dim) => object.call_method1(intern!(py, "size"), (*dim,))?.extract()?,
                    Property::Stride(dim) => {
                        object.call_method1(intern!(py, "stride"), (*dim,))?.extract()?
                    }
                };
                let value = floor_div(number.wrapping_sub(*offset), *factor);
                Ok((value.into_pyobject(py)?.into_any(), std::ptr::null_mut(), value))
            }
        }
    }
}

fn argument<'py>(args: &Bound<'py, PyList>, position: usize) -> PyResult<Bound<'py, PyAny>> {
    args.get_item(position).map_err(|_| {
        PyIndexError::new_err(format!("argument {position} is missing: only {} were passed", args.len()))
    })
}
