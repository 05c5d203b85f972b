//! Elementwise operators: broadcasting, promotion and the loop over elements, once for all of them. A definition
//! says which arguments are operands, how their types become one, and what happens to one element.

mod activation;
mod arithmetic;
mod backward;
mod compare;
mod convert;
mod select;

use smallvec::SmallVec;

use super::call::{Call, Operand};
use super::error::InferError;
use super::eval::{EvalCall, Fault};
use super::promote::{keeps_wide, number_type, result_type, rounds_number, to_float};
use super::shape::pointwise_type;
use super::{OpDef, Semantics};
use crate::dtype::{DType, Scalar};
use crate::graph::TensorType;
use crate::interp::scalar;
use crate::interp::tensor::HostTensor;
use crate::nest::{BinaryOp, UnaryOp};

/// Definitions of all elementwise operators.
pub(super) const OPS: [&[OpDef]; 6] =
    [activation::OPS, arithmetic::OPS, backward::OPS, compare::OPS, convert::OPS, select::OPS];

/// Definition of an elementwise operator.
pub struct Pointwise {
    /// Position and name of each operand: a tensor or a number.
    operands: &'static [(usize, &'static str)],
    /// Number of operands that must be given; those behind them may be missing.
    required: usize,
    types: Types,
    accepts: Accepts,
    formula: Formula,
}

/// The type that an elementwise operator computes in, and the type of its result.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Types {
    /// The operands' common type.
    Promote,
    /// The operands' common type, a float where that is none.
    Float,
    /// Computes in the operands' common type, makes truth values.
    Test,
    /// The common type of all operands but the first, which is a condition.
    Select,
    /// `Float` without the argument `rounding_mode`, `Promote` with it.
    Division,
    /// The type named by this parameter; the operand's where it is not given.
    Named(usize, &'static str),
}

/// The common types that an operator works on.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Accepts {
    All,
    Numbers,
    Floats,
    IntegersAndBools,
    /// All types; the limits of an integer must leave it some value.
    Limits,
}

/// What happens to one element. Operands and result have the common type.
#[derive(Copy, Clone)]
enum Formula {
    Unary(UnaryOp),
    Binary(BinaryOp),
    /// Gets the call (for further arguments), the common type, and the operands that are given.
    Custom(fn(&Call, DType, &[Scalar]) -> Result<Scalar, Fault>),
}

const fn unary(name: &'static str, types: Types, accepts: Accepts, op: UnaryOp) -> OpDef {
    let operands = &[(0, "self")];
    let pointwise = Pointwise { operands, required: 1, types, accepts, formula: Formula::Unary(op) };
    OpDef { name, params: "self", semantics: Semantics::Pointwise(pointwise) }
}

const fn binary(name: &'static str, types: Types, accepts: Accepts, op: BinaryOp) -> OpDef {
    let operands = &[(0, "self"), (1, "other")];
    let pointwise = Pointwise { operands, required: 2, types, accepts, formula: Formula::Binary(op) };
    OpDef { name, params: "self, other", semantics: Semantics::Pointwise(pointwise) }
}

/// An operator of one operand and further arguments.
const fn map(
    name: &'static str,
    params: &'static str,
    types: Types,
    accepts: Accepts,
    formula: fn(&Call, DType, &[Scalar]) -> Result<Scalar, Fault>,
) -> OpDef {
    zip(name, params, &[(0, "self")], types, accepts, formula)
}

/// An operator of these operands and further arguments.
const fn zip(
    name: &'static str,
    params: &'static str,
    operands: &'static [(usize, &'static str)],
    types: Types,
    accepts: Accepts,
    formula: fn(&Call, DType, &[Scalar]) -> Result<Scalar, Fault>,
) -> OpDef {
    let required = operands.len();
    let pointwise = Pointwise { operands, required, types, accepts, formula: Formula::Custom(formula) };
    OpDef { name, params, semantics: Semantics::Pointwise(pointwise) }
}

/// A float computed exactly enough in f64, rounded once to the type that `dtype` is computed in.
fn float(dtype: DType, value: f64) -> Result<Scalar, Fault> {
    Ok(Scalar::Float(scalar::round_to_compute(dtype, value)))
}

impl Accepts {
    fn check(self, call: &Call, dtype: DType) -> Result<(), InferError> {
        let (fits, expected) = match self {
            Accepts::All => (true, "all types"),
            Accepts::Limits => return select::check_limits(call, dtype),
            Accepts::Numbers => (dtype != DType::Bool, "numbers"),
            Accepts::Floats => (dtype.is_float(), "floats"),
            Accepts::IntegersAndBools => {
                (dtype.is_int() || dtype == DType::Bool, "integers and truth values")
            }
        };
        if fits {
            return Ok(());
        }
        Err(InferError::DType { op: call.op.to_owned(), expected, found: dtype })
    }
}

/// An element of an operand for each element of the result.
enum Source<'a> {
    /// With strides over the result's shape, in elements of the row-major data.
    /// Elements are converted to the type given.
    Tensor(&'a HostTensor, SmallVec<[usize; 6]>, DType),
    Number(Scalar),
}

impl Pointwise {
    fn operands(&self, call: &Call) -> Result<SmallVec<[Operand; 3]>, InferError> {
        let mut operands = SmallVec::new();
        for (k, (position, name)) in self.operands.iter().enumerate() {
            if k < self.required {
                operands.push(call.operand(*position, name)?);
            } else if let Some(operand) = call.opt_operand(*position, name)? {
                operands.push(operand);
            }
        }
        Ok(operands)
    }

    /// The type that elements are computed in.
    fn common_type(&self, call: &Call, operands: &[Operand]) -> Result<DType, InferError> {
        let promoted = |from: usize| {
            let operands: SmallVec<[&Operand; 3]> = operands.iter().skip(from).collect();
            result_type(call, &operands)
        };
        let common = match self.types {
            Types::Promote | Types::Test => promoted(0)?,
            Types::Float => to_float(promoted(0)?),
            Types::Select => promoted(1)?,
            Types::Named(..) => result_type(call, &[&operands[0]])?,
            Types::Division if call.has(KEYWORD_ROUNDING, "rounding_mode") => promoted(0)?,
            Types::Division => to_float(promoted(0)?),
        };
        self.accepts.check(call, common)?;
        Ok(common)
    }

    fn result_dtype(&self, call: &Call, common: DType) -> Result<DType, InferError> {
        match self.types {
            Types::Test => Ok(DType::Bool),
            // The absolute value of a complex number is real.
            Types::Promote if matches!(self.formula, Formula::Unary(UnaryOp::Abs)) => Ok(match common {
                DType::C32 => DType::F16,
                DType::C64 => DType::F32,
                DType::C128 => DType::F64,
                real => real,
            }),
            Types::Named(position, name) => Ok(call.opt_dtype(position, name)?.unwrap_or(common)),
            _ => Ok(common),
        }
    }

    /// Type of the result.
    pub(super) fn infer(&self, call: &Call) -> Result<TensorType, InferError> {
        let operands = self.operands(call)?;
        let common = self.common_type(call, &operands)?;
        let references: SmallVec<[&Operand; 3]> = operands.iter().collect();
        let mut ty = pointwise_type(call, self.result_dtype(call, common)?, &references)?;
        if let Some(device) = call.opt_device()? {
            ty.device = device;
        }
        Ok(ty)
    }

    /// The result.
    pub(super) fn eval(&self, e: &EvalCall) -> Result<HostTensor, Fault> {
        let operands = self.operands(&e.call)?;
        let common = self.common_type(&e.call, &operands)?;
        let dtype = self.result_dtype(&e.call, common)?;
        if common.is_complex() || dtype.is_complex() {
            return Err(Fault::Value("complex numbers can't be interpreted".to_owned()));
        }
        let shape = e.shape(0)?;
        let sources = operands
            .iter()
            .enumerate()
            .map(|(k, operand)| self.source(e, (k, operand), common, &shape))
            .collect::<Result<SmallVec<[Source; 3]>, Fault>>()?;
        let computed = match self.types {
            Types::Test => DType::Bool,
            _ => common.compute(),
        };
        let mut operands: SmallVec<[Scalar; 3]> = SmallVec::new();
        HostTensor::build(dtype, &shape, |index| {
            operands.clear();
            operands.extend(sources.iter().map(|source| match source {
                Source::Number(value) => *value,
                Source::Tensor(t, strides, to) => {
                    let at: usize = index.iter().zip(strides).map(|(i, s)| i * s).sum();
                    scalar::cast(t.data[at], t.dtype, *to)
                }
            }));
            let value = match self.formula {
                Formula::Unary(op) => scalar::unary(op, common, operands[0])?,
                Formula::Binary(op) => scalar::binary(op, common, operands[0], operands[1])?,
                Formula::Custom(formula) => formula(&e.call, common, &operands)?,
            };
            Ok(scalar::cast(value, computed, dtype))
        })
    }

    fn source<'a>(
        &self,
        e: &EvalCall<'_, 'a>,
        (position, operand): (usize, &Operand),
        common: DType,
        shape: &[usize],
    ) -> Result<Source<'a>, Fault> {
        let number = match operand {
            Operand::Tensor(t) => {
                let tensor = e.value(t.id)?;
                let wide = keeps_wide(e.call.op, position, operand, common);
                let to = if wide { common.compute() } else { common };
                return Ok(Source::Tensor(tensor, tensor.strides_over(shape), to));
            }
            Operand::Scalar(number) => *number,
            Operand::Size(size) => return Err(Fault::Unbound(*size)),
        };
        let rounds = self.types == Types::Test || rounds_number(e.call.op, position);
        let to = if rounds { common } else { common.compute() };
        Ok(Source::Number(scalar::cast(number, number_of(number), to)))
    }
}

/// `rounding_mode` is a keyword of all operators that have it.
const KEYWORD_ROUNDING: usize = super::call::KEYWORD;

/// A number as an element of memory.
pub(super) fn as_element(number: Scalar, dtype: DType) -> Scalar {
    scalar::cast(number, number_of(number), dtype)
}

/// The type that a Python number is kept in until it is converted: floats in all their digits.
fn number_of(number: Scalar) -> DType {
    match number {
        Scalar::Float(_) => DType::F64,
        Scalar::Int(_) | Scalar::Bool(_) => number_type(number),
    }
}
