//! A tensor in the interpreter: logical elements in row-major order, whatever strides the program gives it.

use crate::dtype::{DType, Scalar};

/// A tensor's elements. A float is kept as the f64 nearest to what its type can hold: `data` of an f32 tensor
/// holds only values that an f32 holds exactly, and so on.
#[derive(Clone, Debug, PartialEq)]
pub struct HostTensor {
    /// Element type.
    pub dtype: DType,
    /// Extents.
    pub shape: Vec<usize>,
    /// Elements in row-major order of the shape.
    pub data: Vec<Scalar>,
}

impl HostTensor {
    /// Number of elements.
    pub fn numel(&self) -> usize {
        self.shape.iter().product()
    }
}
