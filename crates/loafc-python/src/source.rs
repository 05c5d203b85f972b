//! Where a program's inputs come from in the list of arguments that AOTAutograd passes.

use loafc_ir::size::floor_div;
use pyo3::Borrowed;
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use smallvec::SmallVec;

use crate::tensor::data_ptr;

/// What the caller passed, as far as nothing has let go of it.
pub type Passed = SmallVec<[Option<Py<PyAny>>; 16]>;

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

    /// The argument that it is, if it is a tensor.
    pub fn tensor_position(&self) -> Option<usize> {
        match self {
            Source::Tensor { position, .. } => Some(*position),
            _ => None,
        }
    }

    /// The tensor or integer that the caller passed. Nothing for a derived size.
    pub fn object<'a, 'py>(
        &'a self,
        py: Python<'py>,
        args: &'a Passed,
    ) -> PyResult<Option<Borrowed<'a, 'py, PyAny>>> {
        match self {
            Source::Size(position) | Source::Tensor { position, .. } => {
                argument(py, args, *position).map(Some)
            }
            Source::Constant(tensor) => Ok(Some(tensor.bind_borrowed(py))),
            Source::Derived { .. } => Ok(None),
        }
    }

    /// The first element (null for a size) and the value (0 for a tensor).
    pub fn read(&self, py: Python<'_>, args: &Passed) -> PyResult<(*mut u8, i64)> {
        match self {
            Source::Size(position) => Ok((std::ptr::null_mut(), argument(py, args, *position)?.extract()?)),
            Source::Tensor { position, .. } => {
                let tensor = argument(py, args, *position)?;
                Ok((data_ptr(&tensor)?, 0))
            }
            Source::Constant(tensor) => Ok((data_ptr(tensor.bind(py))?, 0)),
            Source::Derived { position, property, factor, offset } => {
                let object = argument(py, args, *position)?;
                let method = |name, dim: &usize| object.call_method1(name, (*dim,))?.extract();
                let number: i64 = match property {
                    Property::Value => object.extract()?,
                    Property::Size(dim) => method(intern!(py, "size"), dim)?,
                    Property::Stride(dim) => method(intern!(py, "stride"), dim)?,
                };
                Ok((std::ptr::null_mut(), floor_div(number.wrapping_sub(*offset), *factor)))
            }
        }
    }
}

fn argument<'a, 'py>(
    py: Python<'py>,
    args: &'a Passed,
    position: usize,
) -> PyResult<Borrowed<'a, 'py, PyAny>> {
    let object = args.get(position).and_then(Option::as_ref).map(|object| object.bind_borrowed(py));
    object.ok_or_else(|| {
        PyIndexError::new_err(format!("argument {position} is missing: only {} were passed", args.len()))
    })
}
