//! Mathematical functions as inline LLVM IR, so that no kernel calls a library in its hot loop: polynomials with at
//! most 2 ulp of error over the whole range (`cargo run --release -p loafc-codegen --example ulp_table` measures it),
//! right at infinities, NaN, denormals and signed zeros, in strict IEEE arithmetic without fast-math flags.
//!
//! The target must have fused multiply-add (x86-64-v3 or later) and rounding instructions; without them LLVM would
//! turn the intrinsics used here into calls.

mod coefficients;
mod cost;
mod division;
mod erf;
mod exp;
mod gamma;
mod hyperbolic;
mod inverse_trig;
mod lanes;
mod log;
mod pair;
mod pow;
mod trig;

use inkwell::builder::{Builder, BuilderError};
use inkwell::module::Module;
use inkwell::types::{BasicTypeEnum, FloatType, VectorType};
use inkwell::values::BasicValueEnum;
use loafc_ir::nest::{BinaryOp, UnaryOp};

pub use cost::{binary_branches, binary_cost, branches, cost};
use lanes::{Emitter, Float, Width};

/// Why a function could not be emitted.
#[derive(Debug, thiserror::Error)]
pub enum MathError {
    /// The operand is no f32 or f64 and no fixed vector of them.
    #[error("{op} needs f32 or f64 lanes, but its operand has type {found}: convert it first")]
    NotFloat {
        /// The operation.
        op: String,
        /// The operand's LLVM type.
        found: String,
    },
    /// The operands' types differ.
    #[error(
        "{op} needs operands of one type, but they have types {left} and {right}: convert one of them first"
    )]
    Mixed {
        /// The operation.
        op: String,
        /// Type of the first operand.
        left: String,
        /// Type of the second operand.
        right: String,
    },
    /// The operation is not defined on floats.
    #[error("{0} is not defined on floats")]
    NotOnFloats(String),
    /// This LLVM lacks an intrinsic.
    #[error("this LLVM has no intrinsic {0}: build against LLVM 19")]
    NoIntrinsic(&'static str),
    /// LLVM refused an instruction, as the builder has no position for one.
    #[error("no instruction could be emitted: {0}")]
    Builder(#[from] BuilderError),
}

/// Emits functions at a builder's position.
///
/// Some functions branch (see [`branches`]): they append blocks to the function and leave the builder at the end of
/// another block than it was in, so callers must ask [`Builder::get_insert_block`] for the block that they are in.
#[derive(Copy, Clone)]
pub struct Math<'a, 'ctx> {
    builder: &'a Builder<'ctx>,
    module: &'a Module<'ctx>,
    wide_tables: bool,
}

/// What a value of float lanes looks like.
#[derive(Copy, Clone)]
struct Shape<'ctx> {
    width: Width,
    lanes: u32,
    /// The type, where it is not a vector.
    scalar: Option<BasicTypeEnum<'ctx>>,
}

impl<'a, 'ctx> Math<'a, 'ctx> {
    /// Emits through this builder, whose position must lie in a function of this module.
    pub fn new(builder: &'a Builder<'ctx>, module: &'a Module<'ctx>) -> Self {
        Math { builder, module, wide_tables: false }
    }

    /// With tables of 16 floats in a register, if the machine has vectors of so many bits as that takes.
    pub fn for_vectors_of(self, bits: u32) -> Self {
        Math { wide_tables: cfg!(target_arch = "x86_64") && bits == 512, ..self }
    }

    /// Emits a function of f32 or f64, scalars or fixed vectors; the result has the operand's type, or is a truth
    /// value (`i1` lanes) for [`UnaryOp::IsNan`], [`UnaryOp::IsInf`] and [`UnaryOp::SignBit`].
    ///
    /// # Errors
    /// If the operand has another type, the operation is [`UnaryOp::Not`], or the builder has no position.
    pub fn unary(&self, op: UnaryOp, x: BasicValueEnum<'ctx>) -> Result<BasicValueEnum<'ctx>, MathError> {
        let shape = shape_of(x).ok_or_else(|| not_float(op, x))?;
        let emitter = Emitter::new(self.builder, self.module, shape.lanes, self.wide_tables);
        let x = emitter.import(x, shape.width);
        let scalar = shape.scalar.is_some();
        let value = match op {
            UnaryOp::IsNan => x.is_nan().export(scalar),
            UnaryOp::IsInf => x.is_inf().export(scalar),
            UnaryOp::SignBit => x.sign_bit().export(scalar),
            _ => float_unary(op, x)?.export(shape.scalar),
        };
        emitter.finish()?;
        Ok(value)
    }

    /// Emits a function of two operands of one type, f32 or f64, scalars or fixed vectors; the result has that type,
    /// or is a truth value (`i1` lanes) for comparisons.
    ///
    /// # Errors
    /// If the operands have other or different types, the operation is not one on floats, or the builder has no
    /// position.
    pub fn binary(
        &self,
        op: BinaryOp,
        a: BasicValueEnum<'ctx>,
        b: BasicValueEnum<'ctx>,
    ) -> Result<BasicValueEnum<'ctx>, MathError> {
        let shape = shape_of(a).ok_or_else(|| not_float(op, a))?;
        if a.get_type() != b.get_type() {
            let (left, right) = (a.get_type().to_string(), b.get_type().to_string());
            return Err(MathError::Mixed { op: format!("{op:?}"), left, right });
        }
        let emitter = Emitter::new(self.builder, self.module, shape.lanes, self.wide_tables);
        let (a, b) = (emitter.import(a, shape.width), emitter.import(b, shape.width));
        let comparison = match op {
            BinaryOp::Eq => Some(a.eq(b)),
            BinaryOp::Ne => Some(a.ne(b)),
            BinaryOp::Lt => Some(a.lt(b)),
            BinaryOp::Le => Some(a.le(b)),
            BinaryOp::Gt => Some(a.gt(b)),
            BinaryOp::Ge => Some(a.ge(b)),
            _ => None,
        };
        let value = match comparison {
            Some(mask) => mask.export(shape.scalar.is_some()),
            None => float_binary(op, a, b)?.export(shape.scalar),
        };
        emitter.finish()?;
        Ok(value)
    }
}

fn not_float<'ctx>(op: impl std::fmt::Debug, x: BasicValueEnum<'ctx>) -> MathError {
    MathError::NotFloat { op: format!("{op:?}"), found: x.get_type().to_string() }
}

fn width_of(t: FloatType<'_>) -> Option<Width> {
    let context = t.get_context();
    if t == context.f32_type() {
        Some(Width::F32)
    } else if t == context.f64_type() {
        Some(Width::F64)
    } else {
        None
    }
}

fn shape_of<'ctx>(x: BasicValueEnum<'ctx>) -> Option<Shape<'ctx>> {
    match x.get_type() {
        BasicTypeEnum::FloatType(t) => Some(Shape { width: width_of(t)?, lanes: 1, scalar: Some(t.into()) }),
        BasicTypeEnum::VectorType(t) => vector_shape(t),
        _ => None,
    }
}

fn vector_shape<'ctx>(t: VectorType<'ctx>) -> Option<Shape<'ctx>> {
    match t.get_element_type() {
        BasicTypeEnum::FloatType(element) => {
            Some(Shape { width: width_of(element)?, lanes: t.get_size(), scalar: None })
        }
        _ => None,
    }
}

fn float_unary<'e, 'ctx>(op: UnaryOp, x: Float<'e, 'ctx>) -> Result<Float<'e, 'ctx>, MathError> {
    Ok(match op {
        UnaryOp::Neg => -x,
        UnaryOp::Abs => x.abs(),
        UnaryOp::Sign => sign(x),
        UnaryOp::Sqrt => x.sqrt(),
        UnaryOp::Rsqrt => x.constant(1.0) / x.sqrt(),
        UnaryOp::Reciprocal => x.constant(1.0) / x,
        UnaryOp::Exp => exp::exp(x),
        UnaryOp::Exp2 => exp::exp2(x),
        UnaryOp::Expm1 => exp::expm1(x),
        UnaryOp::Log => log::log(x),
        UnaryOp::Log2 => log::log2(x),
        UnaryOp::Log10 => log::log10(x),
        UnaryOp::Log1p => log::log1p(x),
        UnaryOp::Sin => trig::sin(x),
        UnaryOp::Cos => trig::cos(x),
        UnaryOp::Tan => trig::tan(x),
        UnaryOp::Asin => inverse_trig::asin(x),
        UnaryOp::Acos => inverse_trig::acos(x),
        UnaryOp::Atan => inverse_trig::atan(x),
        UnaryOp::Sinh => hyperbolic::sinh(x),
        UnaryOp::Cosh => hyperbolic::cosh(x),
        UnaryOp::Tanh => hyperbolic::tanh(x),
        UnaryOp::Asinh => hyperbolic::asinh(x),
        UnaryOp::Acosh => hyperbolic::acosh(x),
        UnaryOp::Atanh => hyperbolic::atanh(x),
        UnaryOp::Erf => erf::erf(x),
        UnaryOp::Erfc => erf::erfc(x),
        UnaryOp::Erfinv => erf::erfinv(x),
        UnaryOp::Lgamma => gamma::lgamma(x),
        UnaryOp::Digamma => gamma::digamma(x),
        UnaryOp::Sigmoid => exp::sigmoid(x),
        UnaryOp::Floor => x.floor(),
        UnaryOp::Ceil => x.ceil(),
        UnaryOp::Trunc => x.trunc(),
        UnaryOp::Round => x.round_even(),
        UnaryOp::Not | UnaryOp::IsNan | UnaryOp::IsInf | UnaryOp::SignBit => {
            return Err(MathError::NotOnFloats(format!("{op:?}")));
        }
    })
}

/// -1, 0 or 1; 0 for NaN, as in PyTorch.
fn sign<'e, 'ctx>(x: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
    x.gt(0.0).select(1.0, x.lt(0.0).choose(-1.0, 0.0, x))
}

fn float_binary<'e, 'ctx>(
    op: BinaryOp,
    a: Float<'e, 'ctx>,
    b: Float<'e, 'ctx>,
) -> Result<Float<'e, 'ctx>, MathError> {
    Ok(match op {
        BinaryOp::Add => a + b,
        BinaryOp::Sub => a - b,
        BinaryOp::Mul => a * b,
        BinaryOp::Div => a / b,
        BinaryOp::FloorDiv => division::floor_divide(a, b),
        BinaryOp::TruncDiv => (a / b).trunc(),
        BinaryOp::Remainder => division::remainder(a, b),
        BinaryOp::Fmod => division::fmod(a, b),
        BinaryOp::Pow => pow::pow(a, b),
        BinaryOp::Atan2 => inverse_trig::atan2(a, b),
        BinaryOp::Hypot => pow::hypot(a, b),
        BinaryOp::Copysign => a.copysign(b),
        BinaryOp::Nextafter => division::nextafter(a, b),
        // A NaN in b fails the comparison and is taken; one in a is taken by the second select.
        // Not as `a is NaN or a > b`: LLVM 19 turns that into `x u> 0` where `a` is |x| and `b` is zero.
        BinaryOp::Max => a.le(b).select(b, b.is_nan().select(b, a)),
        BinaryOp::Min => a.ge(b).select(b, b.is_nan().select(b, a)),
        BinaryOp::Fmax => a.is_nan().select(b, b.gt(a).select(b, a)),
        BinaryOp::Fmin => a.is_nan().select(b, b.lt(a).select(b, a)),
        BinaryOp::And
        | BinaryOp::Or
        | BinaryOp::Xor
        | BinaryOp::Shl
        | BinaryOp::Shr
        | BinaryOp::Eq
        | BinaryOp::Ne
        | BinaryOp::Lt
        | BinaryOp::Le
        | BinaryOp::Gt
        | BinaryOp::Ge => return Err(MathError::NotOnFloats(format!("{op:?}"))),
    })
}
