//! What goes into a program and comes out of it: memory with a shape. The runtime neither copies nor owns a
//! caller's tensor.

use std::any::Any;
use std::sync::Arc;

use loafc_ir::dtype::DType;

use crate::pool::Block;

/// Keeps foreign memory alive: dropped when the program no longer needs the memory.
pub type Keepalive = Arc<dyn Any + Send + Sync>;

/// An argument of a call.
#[derive(Copy, Clone, Debug)]
pub enum InputValue<'a> {
    /// A tensor.
    Tensor {
        /// First element.
        ptr: *mut u8,
        /// Element type.
        dtype: DType,
        /// Extents.
        shape: &'a [i64],
        /// Strides in elements.
        strides: &'a [i64],
    },
    /// An integer.
    Size(i64),
}

/// A result of a call.
#[derive(Debug)]
pub enum OutputValue {
    /// A tensor.
    Tensor(OutputTensor),
    /// The input of this position, as the caller passed it.
    Input(usize),
    /// A size.
    Size(i64),
    /// Nothing.
    None,
}

/// A tensor that a program returns.
#[derive(Debug)]
pub struct OutputTensor {
    /// First element.
    pub ptr: *mut u8,
    /// Element type.
    pub dtype: DType,
    /// Extents.
    pub shape: Arc<[i64]>,
    /// Strides in elements.
    pub strides: Arc<[i64]>,
    /// What holds the elements. Two results may share it.
    pub memory: OutputMemory,
}

/// Memory of a result.
#[derive(Clone)]
pub enum OutputMemory {
    /// From the pool; goes back there when the last owner drops it.
    Block(Arc<Block>),
    /// Made by an extern call.
    Foreign(Keepalive),
    /// The memory of the input of this position.
    Input(usize),
}

impl std::fmt::Debug for OutputMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            OutputMemory::Block(block) => block.fmt(f),
            OutputMemory::Foreign(_) => f.write_str("Foreign"),
            OutputMemory::Input(position) => write!(f, "Input({position})"),
        }
    }
}

/// A tensor that an extern call reads or writes.
#[derive(Copy, Clone, Debug)]
pub struct TensorRef<'a> {
    /// First element.
    pub ptr: *mut u8,
    /// Element type.
    pub dtype: DType,
    /// Extents.
    pub shape: &'a [i64],
    /// Strides in elements.
    pub strides: &'a [i64],
    /// The position of the program's input that this is, with the same shape and strides.
    pub input: Option<usize>,
}

/// A tensor that an extern call makes.
#[derive(Copy, Clone, Debug)]
pub struct ResultSpec<'a> {
    /// Element type.
    pub dtype: DType,
    /// Extents.
    pub shape: &'a [i64],
    /// Strides in elements that later kernels rely on.
    pub strides: &'a [i64],
    /// Where to put it. `None` if the handler said that it brings memory of its own.
    pub ptr: Option<*mut u8>,
}

/// Elements between the first and the last one of a strided tensor, both included, towards higher addresses; 0
/// for an empty tensor. `None` where a number overflows.
pub fn span(shape: &[i64], strides: &[i64]) -> Option<i64> {
    if shape.contains(&0) {
        return Some(0);
    }
    let mut last = 0i64;
    for (extent, stride) in shape.iter().zip(strides) {
        last = last.checked_add((*extent - 1).checked_mul((*stride).max(0))?)?;
    }
    last.checked_add(1)
}

/// Whether two strides address the same elements of a tensor of this shape: those of extents of 1 don't count,
/// and of an empty tensor none does.
pub fn same_strides(shape: &[i64], a: &[i64], b: &[i64]) -> bool {
    a.len() == b.len()
        && (shape.contains(&0) || shape.iter().zip(a.iter().zip(b)).all(|(n, (a, b))| *n == 1 || a == b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strides_of_single_elements_do_not_count() {
        assert!(same_strides(&[1, 4], &[7, 1], &[4, 1]));
        assert!(!same_strides(&[2, 4], &[7, 1], &[4, 1]));
        assert!(same_strides(&[0, 4], &[7, 1], &[4, 9]));
        assert!(!same_strides(&[2], &[1], &[]));
    }

    #[test]
    fn a_span_reaches_from_the_first_to_the_last_element() {
        assert_eq!(span(&[2, 3], &[10, 2]), Some(15));
        assert_eq!(span(&[], &[]), Some(1));
        assert_eq!(span(&[3, 0], &[1, 1]), Some(0));
        assert_eq!(span(&[i64::MAX], &[2]), None);
    }
}
