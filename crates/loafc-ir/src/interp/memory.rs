//! Memory of interpreted programs: buffers that know their bounds and which of their elements were written.

use super::InterpError;
use super::body::Memory;
use super::scalar;
use super::tensor::HostTensor;
use crate::dtype::{DType, Scalar};
use crate::nest::BufferId;

/// One buffer.
#[derive(Clone, Debug, PartialEq)]
pub struct HostBuffer {
    /// Name for messages.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Elements; `None` where nothing was written yet.
    pub data: Vec<Option<Scalar>>,
}

/// Buffers by number.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostMemory {
    /// The buffers; `None` where there is none of that number.
    pub buffers: Vec<Option<HostBuffer>>,
}

/// Where the elements of a tensor lie in a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Extents.
    pub shape: Vec<usize>,
    /// Strides in elements.
    pub strides: Vec<i64>,
    /// Position of the first element.
    pub offset: i64,
}

impl Placement {
    /// Position of each element in row-major order of the shape.
    pub fn positions(&self) -> Vec<i64> {
        let count: usize = self.shape.iter().product();
        let mut positions = Vec::with_capacity(count);
        let mut at = vec![0usize; self.shape.len()];
        let mut position = self.offset;
        for _ in 0..count {
            positions.push(position);
            for d in (0..at.len()).rev() {
                at[d] += 1;
                position += self.strides[d];
                if at[d] < self.shape[d] {
                    break;
                }
                position -= self.strides[d] * self.shape[d] as i64;
                at[d] = 0;
            }
        }
        positions
    }
}

impl HostBuffer {
    /// A buffer that nothing has written to.
    pub fn new(name: &str, dtype: DType, len: usize) -> HostBuffer {
        HostBuffer { name: name.to_owned(), dtype, data: vec![None; len] }
    }
}

impl HostMemory {
    /// The buffer of this number.
    pub fn buffer(&self, id: BufferId) -> Result<&HostBuffer, InterpError> {
        self.buffers.get(id.0 as usize).and_then(Option::as_ref).ok_or(InterpError::UnknownBuffer(id))
    }

    fn place(&self, access: &'static str, id: BufferId, index: i64) -> Result<usize, InterpError> {
        let buffer = self.buffer(id)?;
        let len = buffer.data.len();
        usize::try_from(index).ok().filter(|k| *k < len).ok_or_else(|| InterpError::OutOfBounds {
            access,
            buffer: id,
            name: buffer.name.clone(),
            index,
            len,
        })
    }

    /// Reads a tensor out of a buffer. Elements that nothing has written are zero, as those of `aten.empty`
    /// may be anything.
    pub fn read(&self, id: BufferId, place: &Placement) -> Result<HostTensor, InterpError> {
        let buffer = self.buffer(id)?;
        let mut data = Vec::new();
        for position in place.positions() {
            let k = self.place("load", id, position)?;
            data.push(buffer.data[k].unwrap_or_else(|| scalar::zero(buffer.dtype)));
        }
        Ok(HostTensor { dtype: buffer.dtype, shape: place.shape.clone(), data })
    }

    /// Writes a tensor of the same shape and element type into a buffer.
    pub fn write(&mut self, id: BufferId, place: &Placement, tensor: &HostTensor) -> Result<(), InterpError> {
        for (position, value) in place.positions().into_iter().zip(&tensor.data) {
            self.store(id, position, *value)?;
        }
        Ok(())
    }
}

impl Memory for HostMemory {
    fn dtype(&self, buffer: BufferId) -> Result<DType, InterpError> {
        Ok(self.buffer(buffer)?.dtype)
    }

    fn load(&self, id: BufferId, index: i64) -> Result<Scalar, InterpError> {
        let k = self.place("load", id, index)?;
        let buffer = self.buffer(id)?;
        buffer.data[k].ok_or_else(|| InterpError::Uninitialized {
            buffer: id,
            name: buffer.name.clone(),
            index,
        })
    }

    fn store(&mut self, id: BufferId, index: i64, value: Scalar) -> Result<(), InterpError> {
        let k = self.place("store", id, index)?;
        if let Some(Some(buffer)) = self.buffers.get_mut(id.0 as usize) {
            buffer.data[k] = Some(value);
        }
        Ok(())
    }
}
