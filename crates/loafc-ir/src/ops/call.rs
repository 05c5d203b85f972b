//! Access to the arguments of a call, by position or keyword, with defaults, and with errors that name operator
//! and argument. Type inference, the interpreter and the lowering all read arguments through this one type.

use std::cell::RefCell;
use std::sync::Arc;

use smallvec::SmallVec;

use super::error::InferError;
use super::shape::provably_differ;
use crate::condition::{Comparison, Relation};
use crate::dtype::{DType, Scalar};
use crate::graph::{Arg, Device, Dims, TensorId, TensorType, ValueType};
use crate::size::Size;

/// A call of an operator with access to the types of its operands.
///
/// A parameter is named by its position and its name: `call.int_or(1, "dim", 0)`. `none` counts as not given.
#[derive(Copy, Clone)]
pub struct Call<'a> {
    /// Operator with overload.
    pub op: &'a str,
    /// Positional arguments.
    pub args: &'a [Arg],
    /// Keyword arguments.
    pub kwargs: &'a [(Arc<str>, Arg)],
    value_type: &'a dyn Fn(TensorId) -> ValueType,
    noted: Option<&'a Noted>,
}

/// What a call takes for true about sizes, with what is wrong otherwise.
pub type Noted = RefCell<Vec<(Comparison, Arc<str>)>>;

/// Position of a parameter that can be given by keyword only.
pub const KEYWORD: usize = usize::MAX;

/// A tensor among the arguments.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorArg {
    /// Which value of the program.
    pub id: TensorId,
    /// Its type.
    pub ty: TensorType,
}

/// A tensor or a number among the arguments.
// Operands are few and short-lived; a box for each would cost more than their size.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Debug, PartialEq)]
pub enum Operand {
    /// A tensor.
    Tensor(TensorArg),
    /// A Python number: weaker than any tensor in type promotion.
    Scalar(Scalar),
    /// An integer known when the program is called.
    Size(Size),
}

impl Operand {
    /// The shape; a number's is that of a tensor without dimensions.
    pub fn shape(&self) -> &[Size] {
        match self {
            Operand::Tensor(t) => &t.ty.shape,
            Operand::Scalar(_) | Operand::Size(_) => &[],
        }
    }

    /// The tensor's type, if it is one.
    pub fn tensor(&self) -> Option<&TensorType> {
        match self {
            Operand::Tensor(t) => Some(&t.ty),
            Operand::Scalar(_) | Operand::Size(_) => None,
        }
    }
}

impl<'a> Call<'a> {
    /// A call; `value_type` gives the type of each value among the arguments.
    pub fn new(
        op: &'a str,
        args: &'a [Arg],
        kwargs: &'a [(Arc<str>, Arg)],
        value_type: &'a dyn Fn(TensorId) -> ValueType,
    ) -> Call<'a> {
        Call { op, args, kwargs, value_type, noted: None }
    }

    /// The same call, which notes what it takes for true about sizes.
    pub fn noting(self, noted: &'a Noted) -> Call<'a> {
        Call { noted: Some(noted), ..self }
    }

    /// A call that this one consists of. `value_type` is that of this one.
    pub fn part<'b>(
        &self,
        op: &'b str,
        args: &'b [Arg],
        kwargs: &'b [(Arc<str>, Arg)],
        value_type: &'b dyn Fn(TensorId) -> ValueType,
    ) -> Call<'b>
    where
        'a: 'b,
    {
        Call { op, args, kwargs, value_type, noted: self.noted }
    }

    /// Fails where a comparison of sizes is false. Where only the symbols' values tell, the program has to be called
    /// with such.
    pub fn require(
        &self,
        comparison: Comparison,
        error: impl FnOnce() -> InferError,
    ) -> Result<(), InferError> {
        match (comparison.decided(), self.noted) {
            (Some(false), _) => Err(error()),
            (None, Some(noted)) => {
                noted.borrow_mut().push((comparison, error().to_string().into()));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// As [`Call::require`] for `left == right`. Polynomials in symbols that differ are taken for different sizes.
    pub fn require_equal(
        &self,
        left: Size,
        right: Size,
        error: impl FnOnce() -> InferError,
    ) -> Result<(), InferError> {
        if provably_differ(left, right) {
            return Err(error());
        }
        self.require(Comparison::new(left, Relation::Equal, right), error)
    }

    /// As [`Call::require`] for `left <= right`.
    pub fn require_at_most(
        &self,
        left: Size,
        right: Size,
        error: impl FnOnce() -> InferError,
    ) -> Result<(), InferError> {
        self.require(Comparison::new(left, Relation::AtMost, right), error)
    }

    /// Fails where a size is negative, as [`Call::require`] does.
    pub fn require_natural(&self, name: &str, size: Size) -> Result<(), InferError> {
        self.require_at_most(Size::ZERO, size, || self.invalid(name, format!("{size} is negative")))
    }

    /// The type of a value of the program.
    pub fn value_type(&self, id: TensorId) -> ValueType {
        (self.value_type)(id)
    }

    /// The argument as it stands; `None` where it is not given or `none`.
    pub fn get(&self, position: usize, name: &str) -> Option<&'a Arg> {
        let arg = self.args.get(position).or_else(|| {
            self.kwargs.iter().find(|(keyword, _)| keyword.as_ref() == name).map(|(_, arg)| arg)
        })?;
        (!matches!(arg, Arg::None)).then_some(arg)
    }

    /// Whether the argument is given and not `none`.
    pub fn has(&self, position: usize, name: &str) -> bool {
        self.get(position, name).is_some()
    }

    fn required(&self, position: usize, name: &str, expected: &'static str) -> Result<&'a Arg, InferError> {
        self.get(position, name).ok_or_else(|| InferError::Missing {
            op: self.op.to_owned(),
            position: if position == KEYWORD { self.args.len() } else { position },
            name: name.to_owned(),
            expected,
        })
    }

    fn kind(&self, name: &str, expected: &'static str, found: &Arg) -> InferError {
        InferError::Kind {
            op: self.op.to_owned(),
            name: name.to_owned(),
            expected,
            found: self.describe(found),
        }
    }

    /// The argument in words, for messages.
    fn describe(&self, arg: &Arg) -> String {
        match arg {
            Arg::Value(id) => match self.value_type(*id) {
                ValueType::Tensor(t) => format!("a tensor {}{}", t.dtype, shape_text(&t.shape)),
                ValueType::Size(s) => format!("the size {s}"),
            },
            Arg::Size(s) => format!("the integer {s}"),
            Arg::Float(v) => format!("the float {v:?}"),
            Arg::Bool(v) => format!("{v}"),
            Arg::Str(s) => format!("the string {s:?}"),
            Arg::DType(d) => format!("the element type {d}"),
            Arg::Device(d) => format!("the device {d}"),
            Arg::List(items) => format!("a list of {}", items.len()),
            Arg::None => "none".to_owned(),
        }
    }

    /// An error about one argument.
    pub fn invalid(&self, name: &str, message: impl Into<String>) -> InferError {
        InferError::Argument { op: self.op.to_owned(), name: name.to_owned(), message: message.into() }
    }

    fn as_tensor(&self, arg: &Arg) -> Option<TensorArg> {
        let Arg::Value(id) = arg else { return None };
        match self.value_type(*id) {
            ValueType::Tensor(ty) => Some(TensorArg { id: *id, ty }),
            ValueType::Size(_) => None,
        }
    }

    fn as_size(&self, arg: &Arg) -> Option<Size> {
        match arg {
            Arg::Size(s) => Some(*s),
            Arg::Bool(b) => Some(Size::from(i64::from(*b))),
            Arg::Value(id) => match self.value_type(*id) {
                ValueType::Size(s) => Some(s),
                ValueType::Tensor(_) => None,
            },
            _ => None,
        }
    }

    fn as_operand(&self, arg: &Arg) -> Option<Operand> {
        match arg {
            Arg::Float(v) => Some(Operand::Scalar(Scalar::Float(*v))),
            Arg::Bool(v) => Some(Operand::Scalar(Scalar::Bool(*v))),
            _ => match self.as_size(arg) {
                Some(s) => Some(match s.as_const() {
                    Some(c) => Operand::Scalar(Scalar::Int(c)),
                    None => Operand::Size(s),
                }),
                None => self.as_tensor(arg).map(Operand::Tensor),
            },
        }
    }

    /// A tensor.
    pub fn tensor(&self, position: usize, name: &str) -> Result<TensorArg, InferError> {
        let arg = self.required(position, name, "a tensor")?;
        self.as_tensor(arg).ok_or_else(|| self.kind(name, "a tensor", arg))
    }

    /// The type of a tensor.
    pub fn tensor_type(&self, position: usize, name: &str) -> Result<TensorType, InferError> {
        self.tensor(position, name).map(|t| t.ty)
    }

    /// A tensor or nothing.
    pub fn opt_tensor(&self, position: usize, name: &str) -> Result<Option<TensorArg>, InferError> {
        self.has(position, name).then(|| self.tensor(position, name)).transpose()
    }

    /// A tensor or a number.
    pub fn operand(&self, position: usize, name: &str) -> Result<Operand, InferError> {
        let arg = self.required(position, name, "a tensor or a number")?;
        self.as_operand(arg).ok_or_else(|| self.kind(name, "a tensor or a number", arg))
    }

    /// A tensor, a number or nothing.
    pub fn opt_operand(&self, position: usize, name: &str) -> Result<Option<Operand>, InferError> {
        self.has(position, name).then(|| self.operand(position, name)).transpose()
    }

    fn list(&self, position: usize, name: &str, expected: &'static str) -> Result<&'a [Arg], InferError> {
        match self.required(position, name, expected)? {
            Arg::List(items) => Ok(items),
            other => Err(self.kind(name, expected, other)),
        }
    }

    /// A list of tensors.
    pub fn tensors(&self, position: usize, name: &str) -> Result<Vec<TensorArg>, InferError> {
        self.list(position, name, "a list of tensors")?
            .iter()
            .map(|a| self.as_tensor(a).ok_or_else(|| self.kind(name, "a list of tensors", a)))
            .collect()
    }

    /// A list of tensors, some of which may be `none` (the indices of `index.Tensor`).
    pub fn opt_tensors(&self, position: usize, name: &str) -> Result<Vec<Option<TensorArg>>, InferError> {
        let expected = "a list of tensors and none";
        self.list(position, name, expected)?
            .iter()
            .map(|a| match a {
                Arg::None => Ok(None),
                _ => self.as_tensor(a).map(Some).ok_or_else(|| self.kind(name, expected, a)),
            })
            .collect()
    }

    /// An integer or a size.
    pub fn size(&self, position: usize, name: &str) -> Result<Size, InferError> {
        let arg = self.required(position, name, "an integer")?;
        self.as_size(arg).ok_or_else(|| self.kind(name, "an integer", arg))
    }

    /// An integer, a size or nothing.
    pub fn opt_size(&self, position: usize, name: &str) -> Result<Option<Size>, InferError> {
        self.has(position, name).then(|| self.size(position, name)).transpose()
    }

    /// An integer or a size, or this one.
    pub fn size_or(&self, position: usize, name: &str, default: Size) -> Result<Size, InferError> {
        Ok(self.opt_size(position, name)?.unwrap_or(default))
    }

    /// A list of sizes.
    pub fn sizes(&self, position: usize, name: &str) -> Result<Dims, InferError> {
        let expected = "a list of integers";
        self.list(position, name, expected)?
            .iter()
            .map(|a| self.as_size(a).ok_or_else(|| self.kind(name, expected, a)))
            .collect()
    }

    /// An integer that is known while compiling.
    pub fn int(&self, position: usize, name: &str) -> Result<i64, InferError> {
        self.constant(name, self.size(position, name)?)
    }

    /// An integer that is known while compiling, or this one.
    pub fn int_or(&self, position: usize, name: &str, default: i64) -> Result<i64, InferError> {
        Ok(self.opt_int(position, name)?.unwrap_or(default))
    }

    /// An integer that is known while compiling, or nothing.
    pub fn opt_int(&self, position: usize, name: &str) -> Result<Option<i64>, InferError> {
        self.has(position, name).then(|| self.int(position, name)).transpose()
    }

    /// A list of integers that are known while compiling. One integer stands for a list of one, as PyTorch
    /// allows for most of its lists.
    pub fn ints(&self, position: usize, name: &str) -> Result<SmallVec<[i64; 6]>, InferError> {
        let expected = "a list of integers";
        match self.required(position, name, expected)? {
            Arg::List(items) => items
                .iter()
                .map(|a| {
                    let size = self.as_size(a).ok_or_else(|| self.kind(name, expected, a))?;
                    self.constant(name, size)
                })
                .collect(),
            other => {
                let size = self.as_size(other).ok_or_else(|| self.kind(name, expected, other))?;
                Ok(SmallVec::from_slice(&[self.constant(name, size)?]))
            }
        }
    }

    /// A list of integers that are known while compiling, or nothing.
    pub fn opt_ints(&self, position: usize, name: &str) -> Result<Option<SmallVec<[i64; 6]>>, InferError> {
        self.has(position, name).then(|| self.ints(position, name)).transpose()
    }

    fn constant(&self, name: &str, size: Size) -> Result<i64, InferError> {
        size.as_const().ok_or_else(|| InferError::NotConstant {
            op: self.op.to_owned(),
            name: name.to_owned(),
            found: size,
        })
    }

    /// A truth value, or this one.
    pub fn bool_or(&self, position: usize, name: &str, default: bool) -> Result<bool, InferError> {
        match self.get(position, name) {
            None => Ok(default),
            Some(Arg::Bool(b)) => Ok(*b),
            Some(Arg::Size(s)) if s.is(0) || s.is(1) => Ok(s.is(1)),
            Some(other) => Err(self.kind(name, "true or false", other)),
        }
    }

    /// A number that is known while compiling.
    pub fn scalar(&self, position: usize, name: &str) -> Result<Scalar, InferError> {
        let arg = self.required(position, name, "a number")?;
        match self.as_operand(arg) {
            Some(Operand::Scalar(s)) => Ok(s),
            Some(Operand::Size(s)) => {
                Err(InferError::NotConstant { op: self.op.to_owned(), name: name.to_owned(), found: s })
            }
            _ => Err(self.kind(name, "a number", arg)),
        }
    }

    /// A number that is known while compiling, or nothing.
    pub fn opt_scalar(&self, position: usize, name: &str) -> Result<Option<Scalar>, InferError> {
        self.has(position, name).then(|| self.scalar(position, name)).transpose()
    }

    /// A number that is known while compiling, or this one.
    pub fn scalar_or(&self, position: usize, name: &str, default: Scalar) -> Result<Scalar, InferError> {
        Ok(self.opt_scalar(position, name)?.unwrap_or(default))
    }

    /// A number that is known while compiling, as a float, or this one.
    pub fn float_or(&self, position: usize, name: &str, default: f64) -> Result<f64, InferError> {
        Ok(self.opt_scalar(position, name)?.map_or(default, Scalar::to_f64))
    }

    /// A string, or this one.
    pub fn str_or(&self, position: usize, name: &str, default: &'a str) -> Result<&'a str, InferError> {
        match self.get(position, name) {
            None => Ok(default),
            Some(Arg::Str(s)) => Ok(s),
            Some(other) => Err(self.kind(name, "a string", other)),
        }
    }

    /// An element type or nothing.
    pub fn opt_dtype(&self, position: usize, name: &str) -> Result<Option<DType>, InferError> {
        match self.get(position, name) {
            None => Ok(None),
            Some(Arg::DType(d)) => Ok(Some(*d)),
            Some(other) => Err(self.kind(name, "an element type", other)),
        }
    }

    /// The device given by the keyword `device`, or nothing.
    pub fn opt_device(&self) -> Result<Option<Device>, InferError> {
        match self.get(KEYWORD, "device") {
            None => Ok(None),
            Some(Arg::Device(d)) => Ok(Some(*d)),
            Some(other) => Err(self.kind("device", "a device", other)),
        }
    }

    /// A dimension counted from the front, from one that may be negative. A tensor without dimensions is
    /// treated as one with a single dimension, as PyTorch does.
    pub fn wrap_dim(&self, name: &str, dim: i64, rank: usize) -> Result<usize, InferError> {
        let n = rank.max(1) as i64;
        if !(-n..n).contains(&dim) {
            return Err(InferError::Dim { op: self.op.to_owned(), name: name.to_owned(), dim, rank });
        }
        Ok((if dim < 0 { dim + n } else { dim }) as usize)
    }

    /// A dimension of a tensor of this rank, counted from the front.
    pub fn dim(&self, position: usize, name: &str, rank: usize) -> Result<usize, InferError> {
        self.wrap_dim(name, self.int(position, name)?, rank)
    }

    /// A dimension of a tensor of this rank, counted from the front, or this one (which may be negative).
    pub fn dim_or(
        &self,
        position: usize,
        name: &str,
        default: i64,
        rank: usize,
    ) -> Result<usize, InferError> {
        self.wrap_dim(name, self.int_or(position, name, default)?, rank)
    }

    /// Distinct dimensions of a tensor of this rank, counted from the front, in the order given; `None` where
    /// there is no list.
    pub fn opt_dims(
        &self,
        position: usize,
        name: &str,
        rank: usize,
    ) -> Result<Option<SmallVec<[usize; 6]>>, InferError> {
        let Some(given) = self.opt_ints(position, name)? else { return Ok(None) };
        let mut dims: SmallVec<[usize; 6]> = SmallVec::new();
        for dim in given {
            let dim = self.wrap_dim(name, dim, rank)?;
            if dims.contains(&dim) {
                return Err(InferError::RepeatedDim { op: self.op.to_owned(), name: name.to_owned(), dim });
            }
            dims.push(dim);
        }
        Ok(Some(dims))
    }

    /// The dimensions that a reduction runs over: those given, or all where none or an empty list is given.
    pub fn reduced_dims(
        &self,
        position: usize,
        name: &str,
        rank: usize,
    ) -> Result<SmallVec<[usize; 6]>, InferError> {
        match self.opt_dims(position, name, rank)? {
            Some(dims) if rank > 0 && !dims.is_empty() => Ok(dims),
            _ => Ok((0..rank).collect()),
        }
    }
}

/// A shape for messages: `[64, s0]`.
pub fn shape_text(shape: &[Size]) -> String {
    let parts: Vec<String> = shape.iter().map(Size::to_string).collect();
    format!("[{}]", parts.join(", "))
}
