//! Tensor programs: SSA over ATen operators, the one form that all front ends produce.

use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::dtype::DType;
use crate::size::{Size, SymbolValues};

/// A tensor or size of a program: position in [`Graph::values`].
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorId(pub u32);

/// Extents or strides of a tensor.
pub type Dims = SmallVec<[Size; 6]>;

/// Where a tensor lives.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Device {
    /// Main memory.
    #[default]
    Cpu,
    /// An NVIDIA GPU of this number.
    Cuda(u16),
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => f.write_str("cpu"),
            Device::Cuda(n) => write!(f, "cuda:{n}"),
        }
    }
}

/// Type of a tensor. Strides are in elements; an expanded dimension has stride 0.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// Element type.
    pub dtype: DType,
    /// Extents.
    pub shape: Dims,
    /// Strides, as many as extents.
    pub strides: Dims,
    /// Where it lives.
    pub device: Device,
}

impl TensorType {
    /// A contiguous tensor on the CPU.
    pub fn contiguous(dtype: DType, shape: impl IntoIterator<Item = Size>) -> TensorType {
        let shape: Dims = shape.into_iter().collect();
        let strides = contiguous_strides(&shape);
        TensorType { dtype, shape, strides, device: Device::Cpu }
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Number of elements.
    pub fn numel(&self) -> Size {
        self.shape.iter().copied().product()
    }

    /// Elements of memory from the first to the last that the tensor shows, both counted; `None` where extents or
    /// strides are symbolic.
    pub fn span(&self) -> Option<i128> {
        constant_span(&self.shape, &self.strides)
    }

    /// Fails on a type that no tensor can have, as far as constants tell: a negative extent or stride, or more
    /// bytes than positions can count.
    pub fn check(&self) -> Result<(), TypeError> {
        let constants = |sizes: &Dims| sizes.iter().filter_map(|size| size.as_const()).collect::<Vec<i64>>();
        if let Some(extent) = constants(&self.shape).into_iter().find(|extent| *extent < 0) {
            return Err(TypeError::NegativeExtent(extent));
        }
        if let Some(stride) = constants(&self.strides).into_iter().find(|stride| *stride < 0) {
            return Err(TypeError::NegativeStride(stride));
        }
        let bytes = self.dtype.bytes() as i128;
        // Row-major strides count extents of zero as one.
        let elements = constants(&self.shape)
            .into_iter()
            .try_fold(1i128, |product, extent| product.checked_mul(i128::from(extent.max(1))));
        let fits = |elements: Option<i128>| {
            elements.and_then(|n| n.checked_mul(bytes)).is_some_and(|bytes| bytes < TypeError::BYTES)
        };
        if !fits(elements) || !fits(Some(self.span().unwrap_or(0))) {
            return Err(TypeError::TooLarge);
        }
        Ok(())
    }

    /// Whether the strides are those of a row-major tensor without gaps; dimensions of extent 1 don't count.
    pub fn is_contiguous(&self) -> bool {
        let mut expected = Size::ONE;
        for (extent, stride) in self.shape.iter().zip(&self.strides).rev() {
            if extent.is(1) {
                continue;
            }
            if *stride != expected {
                return false;
            }
            expected *= *extent;
        }
        true
    }
}

/// A type that no tensor can have.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TypeError {
    /// An extent below zero.
    #[error("its extent {0} is negative")]
    NegativeExtent(i64),
    /// A stride below zero.
    #[error("its stride {0} is negative")]
    NegativeStride(i64),
    /// More memory than positions can count.
    #[error("it takes 2^62 bytes or more")]
    TooLarge,
}

impl TypeError {
    /// No tensor takes this many bytes.
    const BYTES: i128 = 1 << 62;
}

/// Elements of memory from the first to the last that these extents and strides reach, both counted; 0 without
/// elements, `None` where a size is symbolic.
pub fn constant_span(shape: &[Size], strides: &[Size]) -> Option<i128> {
    let mut span = 1i128;
    let mut empty = false;
    for (extent, stride) in shape.iter().zip(strides) {
        let (extent, stride) = (i128::from(extent.as_const()?), i128::from(stride.as_const()?));
        empty |= extent <= 0;
        span = span.saturating_add((extent - 1).max(0) * stride);
    }
    Some(if empty { 0 } else { span })
}

/// Row-major strides without gaps. As in PyTorch, extents of zero count as one.
pub fn contiguous_strides(shape: &[Size]) -> Dims {
    let mut strides: Dims = SmallVec::from_elem(Size::ONE, shape.len());
    for d in (0..shape.len().saturating_sub(1)).rev() {
        let extent = shape[d + 1];
        strides[d] = strides[d + 1] * if extent.is(0) { Size::ONE } else { extent };
    }
    strides
}

/// What a value of a program is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ValueType {
    /// A tensor.
    Tensor(TensorType),
    /// A size, known as a polynomial in the program's symbols.
    Size(Size),
}

/// A value with its name.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// Name without the `%`; unique in the program.
    pub name: Arc<str>,
    /// What it is.
    pub ty: ValueType,
}

/// A line of the user's source, or of a `.loaf` file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SourceLine {
    /// File as the front end names it.
    pub file: Arc<str>,
    /// Line, from 1.
    pub line: u32,
}

impl fmt::Display for SourceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// An argument of an operator.
#[derive(Clone, Debug, PartialEq)]
pub enum Arg {
    /// A value of the program.
    Value(TensorId),
    /// An integer or a size.
    Size(Size),
    /// A float.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// A string, also for layouts, memory formats and rounding modes.
    Str(Arc<str>),
    /// An element type.
    DType(DType),
    /// A device.
    Device(Device),
    /// A list.
    List(Vec<Arg>),
    /// Python's `None`.
    None,
}

/// One call of an operator.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Operator with overload: `aten.sum.dim_IntList`.
    pub op: Arc<str>,
    /// Positional arguments.
    pub args: Vec<Arg>,
    /// Keyword arguments.
    pub kwargs: Vec<(Arc<str>, Arg)>,
    /// Values it makes. `None` for results nobody uses; lists of tensors are flattened.
    pub results: Vec<Option<TensorId>>,
    /// The user's source line.
    pub origin: Option<SourceLine>,
    /// Byte range of the node in the `.loaf` text that it was read from.
    pub span: Option<(usize, usize)>,
}

/// How an input comes.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// A tensor.
    Tensor(TensorId),
    /// An integer that gives a size symbol its value.
    Size(TensorId, Box<str>),
}

/// A tensor program.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Graph {
    /// Name for people.
    pub name: Arc<str>,
    /// All values.
    pub values: Vec<Value>,
    /// What the caller passes, in order. Size symbols are bound by [`Input::Size`] or by the first extent of an
    /// input tensor that is that symbol alone.
    pub inputs: Vec<Input>,
    /// The calls, in order.
    pub nodes: Vec<Node>,
    /// What is returned: values, sizes or `None`.
    pub outputs: Vec<Arg>,
    /// Values of size symbols that scores assume.
    pub hints: SymbolValues,
}

impl Graph {
    /// The value of this id.
    pub fn value(&self, id: TensorId) -> &Value {
        &self.values[id.0 as usize]
    }

    /// The tensor type of this id; `None` for a size.
    pub fn tensor_type(&self, id: TensorId) -> Option<&TensorType> {
        match &self.value(id).ty {
            ValueType::Tensor(t) => Some(t),
            ValueType::Size(_) => None,
        }
    }
}
