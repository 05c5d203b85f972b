//! Element access of interpreter tensors: everything is a loop over logical indices in row-major order.

use smallvec::SmallVec;

use super::eval::Fault;
use crate::dtype::{DType, Scalar};
use crate::interp::tensor::HostTensor;

/// Row-major strides of a shape, in elements.
pub(super) fn row_major(shape: &[usize]) -> SmallVec<[usize; 6]> {
    let mut strides: SmallVec<[usize; 6]> = SmallVec::from_elem(1, shape.len());
    for d in (0..shape.len().saturating_sub(1)).rev() {
        strides[d] = strides[d + 1] * shape[d + 1];
    }
    strides
}

/// Calls `visit` with every index of a shape, in row-major order.
pub(super) fn each_index(
    shape: &[usize],
    mut visit: impl FnMut(&[usize]) -> Result<(), Fault>,
) -> Result<(), Fault> {
    if shape.contains(&0) {
        return Ok(());
    }
    let mut index: SmallVec<[usize; 6]> = SmallVec::from_elem(0, shape.len());
    loop {
        visit(&index)?;
        let Some(d) = (0..shape.len()).rev().find(|d| index[*d] + 1 < shape[*d]) else { return Ok(()) };
        index[d] += 1;
        index[d + 1..].fill(0);
    }
}

impl HostTensor {
    /// A tensor whose elements `element` computes from their indices.
    pub(super) fn build(
        dtype: DType,
        shape: &[usize],
        mut element: impl FnMut(&[usize]) -> Result<Scalar, Fault>,
    ) -> Result<HostTensor, Fault> {
        let mut data = Vec::with_capacity(shape.iter().product());
        each_index(shape, |index| {
            data.push(element(index)?);
            Ok(())
        })?;
        Ok(HostTensor { dtype, shape: shape.to_vec(), data })
    }

    /// A tensor of equal elements.
    pub(super) fn filled(dtype: DType, shape: &[usize], value: Scalar) -> HostTensor {
        HostTensor { dtype, shape: shape.to_vec(), data: vec![value; shape.iter().product()] }
    }

    /// Position in `data` of an index.
    pub(super) fn position(&self, index: &[usize]) -> usize {
        self.shape.iter().zip(index).fold(0, |at, (extent, i)| at * extent + i)
    }

    /// The element at an index.
    pub(super) fn at(&self, index: &[usize]) -> Scalar {
        self.data[self.position(index)]
    }

    /// Strides in `data` for the dimensions of a shape that this tensor broadcasts to.
    pub(super) fn strides_over(&self, shape: &[usize]) -> SmallVec<[usize; 6]> {
        let own = row_major(&self.shape);
        let added = shape.len() - self.shape.len();
        (0..shape.len())
            .map(|d| match d.checked_sub(added) {
                Some(k) if self.shape[k] != 1 => own[k],
                _ => 0,
            })
            .collect()
    }

    /// The same elements in a shape of as many.
    pub(super) fn reshaped(&self, shape: &[usize]) -> HostTensor {
        HostTensor { dtype: self.dtype, shape: shape.to_vec(), data: self.data.clone() }
    }

    /// The shape grouped around one dimension: product of the extents before it, its extent, product of those
    /// behind. A tensor without dimensions counts as one of a single dimension.
    pub(super) fn around(&self, dim: usize) -> (usize, usize, usize) {
        if self.shape.is_empty() {
            return (1, 1, 1);
        }
        (self.shape[..dim].iter().product(), self.shape[dim], self.shape[dim + 1..].iter().product())
    }
}
