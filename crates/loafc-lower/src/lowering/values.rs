//! Making lazy tensors: numbers, positions, operations on elements, conversions. Every operator's lowering is built from
//! these.

use loafc_ir::dtype::{DType, Scalar};
use loafc_ir::index::Index;
use loafc_ir::interp::scalar;
use loafc_ir::nest::{BinaryOp, UnaryOp};
use loafc_ir::ops::Operand;
use loafc_ir::size::Size;

use crate::expr::{Expr, ExprId};

use super::{Lowering, Refusal};

impl<'g> Lowering<'g> {
    pub(crate) fn make(&mut self, expr: Expr, dtype: DType, shape: &[Size]) -> ExprId {
        self.arena.add(expr, dtype, shape.iter().copied().collect(), self.device, self.current as u32)
    }

    /// A number that takes part in arithmetic on a type: as precise as the arithmetic, not as the type.
    pub(crate) fn number(&mut self, value: Scalar, dtype: DType, shape: &[Size]) -> ExprId {
        self.make(Expr::Const(scalar::constant(value, dtype.compute())), dtype, shape)
    }

    /// A constant that the type can hold.
    pub(crate) fn constant(&mut self, value: Scalar, dtype: DType, shape: &[Size]) -> ExprId {
        self.make(Expr::Const(scalar::constant(value, dtype)), dtype, shape)
    }

    pub(crate) fn float(&mut self, value: f64, like: ExprId) -> ExprId {
        let (dtype, shape) = (self.dtype(like), self.shape(like));
        self.number(Scalar::Float(value), dtype, &shape)
    }

    pub(crate) fn int(&mut self, value: i64, like: ExprId) -> ExprId {
        let (dtype, shape) = (self.dtype(like), self.shape(like));
        self.constant(Scalar::Int(value), dtype, &shape)
    }

    /// A size as a tensor of this type.
    pub(crate) fn size(&mut self, size: Size, dtype: DType, shape: &[Size]) -> ExprId {
        match size.as_const() {
            Some(c) => self.constant(Scalar::Int(c), dtype, shape),
            None => {
                let size = self.make(Expr::Size(size), DType::I64, shape);
                self.cast(size, dtype)
            }
        }
    }

    /// A function of the coordinates as an i64 tensor.
    pub(crate) fn index(&mut self, index: Index, shape: &[Size]) -> ExprId {
        match index.as_constant() {
            Some(size) => self.size(size, DType::I64, shape),
            None => self.make(Expr::Index(index), DType::I64, shape),
        }
    }

    /// Whether a function of the coordinates lies in `low..high`.
    pub(crate) fn in_range(&mut self, index: Index, low: Size, high: Size, shape: &[Size]) -> ExprId {
        self.make(Expr::InRange { index, low, high }, DType::Bool, shape)
    }

    pub(crate) fn unary(&mut self, op: UnaryOp, a: ExprId) -> ExprId {
        let shape = self.shape(a);
        let dtype = match op {
            UnaryOp::IsNan | UnaryOp::IsInf | UnaryOp::SignBit => DType::Bool,
            _ => self.dtype(a),
        };
        self.make(Expr::Unary(op, a), dtype, &shape)
    }

    /// Both of one type and shape.
    pub(crate) fn binary(&mut self, op: BinaryOp, a: ExprId, b: ExprId) -> ExprId {
        debug_assert_eq!(self.dtype(a), self.dtype(b), "{op:?} needs operands of one type");
        let shape = self.shape(a);
        let dtype = if op.is_comparison() { DType::Bool } else { self.dtype(a) };
        self.make(Expr::Binary(op, a, b), dtype, &shape)
    }

    /// `condition` is of type bool; `a` and `b` of one type; all of one shape.
    pub(crate) fn choose(&mut self, condition: ExprId, a: ExprId, b: ExprId) -> ExprId {
        let (dtype, shape) = (self.dtype(a), self.shape(a));
        self.make(Expr::Where(condition, a, b), dtype, &shape)
    }

    /// `a·b + c`; all of one type and shape.
    pub(crate) fn fma(&mut self, a: ExprId, b: ExprId, c: ExprId) -> ExprId {
        let (dtype, shape) = (self.dtype(a), self.shape(a));
        self.make(Expr::Fma(a, b, c), dtype, &shape)
    }

    pub(crate) fn cast(&mut self, a: ExprId, dtype: DType) -> ExprId {
        let node = self.arena.get(a);
        if node.dtype == dtype {
            return a;
        }
        let shape = node.shape.clone();
        match node.expr {
            Expr::Const(value) => {
                let value = scalar::cast(value, node.dtype, dtype);
                self.constant(value, dtype, &shape)
            }
            _ => self.make(Expr::Cast(a), dtype, &shape),
        }
    }

    /// A tensor or number among the arguments, converted to a type and broadcast to a shape.
    pub(crate) fn operand(
        &mut self,
        operand: &Operand,
        dtype: DType,
        shape: &[Size],
    ) -> Result<ExprId, Refusal> {
        Ok(match operand {
            Operand::Tensor(t) => {
                let value = self.value(t.id)?;
                let value = self.cast(value, dtype);
                self.broadcast(value, shape)
            }
            Operand::Scalar(number) => self.number(*number, dtype, shape),
            Operand::Size(size) => self.size(*size, dtype, shape),
        })
    }

    /// A copy in memory of its own.
    pub(crate) fn copy(&mut self, a: ExprId) -> ExprId {
        let (dtype, shape) = (self.dtype(a), self.shape(a));
        self.make(Expr::Copy(a), dtype, &shape)
    }
}
