//! Scalar operations on registers. Floats go to [`super::math`]; integers wrap, and what the machine leaves
//! undefined or traps on (division by zero, shifts out of range) gets the result that
//! [`loafc_ir::interp::scalar`] gives, or zero where that gives an error: lanes without meaning must not trap.

use llvm_sys::LLVMIntPredicate::*;
use llvm_sys::LLVMRealPredicate::*;
use loafc_ir::dtype::DType;
use loafc_ir::nest::{BinaryOp, UnaryOp};

use super::convert::{Family, family};
use super::emit::{EmitError, Emitter, Value};
use super::ir::V;
use super::math::Math;

impl<'b, 'ctx> Emitter<'_, 'b, 'ctx> {
    fn math(&self) -> Math<'b, 'ctx> {
        let (_, module, builder) = self.ir.parts();
        Math::new(builder, module).for_vectors_of(self.vector_bits)
    }

    fn all(&self, v: V, value: i64) -> V {
        self.ir.const_int(self.ir.type_of(v), value)
    }

    fn truth_value(&self, v: V) -> Value {
        Value { v, dtype: DType::Bool }
    }

    /// An operation on one value.
    pub(super) fn unary(&self, op: UnaryOp, x: Value) -> Result<Value, EmitError> {
        let undefined = || format!("{op:?} is not defined on {}", x.dtype);
        let v = match family(x.dtype) {
            Family::Float => {
                let result = self.math().unary(op, self.ir.to_inkwell(x.v)).map_err(|e| e.to_string())?;
                let v = self.ir.of_inkwell(result);
                return Ok(match op {
                    UnaryOp::IsNan | UnaryOp::IsInf | UnaryOp::SignBit => self.truth_value(v),
                    _ => Value { v, dtype: x.dtype },
                });
            }
            Family::Int => match self.unary_int(op, x) {
                Some(value) => return Ok(value),
                None => return Err(undefined()),
            },
            Family::Bool => match op {
                UnaryOp::Not => self.ir.xor(x.v, self.all(x.v, -1)),
                UnaryOp::IsNan | UnaryOp::IsInf | UnaryOp::SignBit => self.all(x.v, 0),
                UnaryOp::Abs
                | UnaryOp::Sign
                | UnaryOp::Floor
                | UnaryOp::Ceil
                | UnaryOp::Trunc
                | UnaryOp::Round => x.v,
                _ => return Err(undefined()),
            },
        };
        Ok(Value { v, dtype: x.dtype })
    }

    fn unary_int(&self, op: UnaryOp, x: Value) -> Option<Value> {
        let ir = &self.ir;
        let signed = x.dtype.is_signed_int();
        let zero = self.all(x.v, 0);
        let truth = self.like(x.v, ir.int(1));
        let v = match op {
            UnaryOp::IsNan | UnaryOp::IsInf => return Some(self.truth_value(ir.zero(truth))),
            UnaryOp::SignBit if signed => return Some(self.truth_value(ir.icmp(LLVMIntSLT, x.v, zero))),
            UnaryOp::SignBit => return Some(self.truth_value(ir.zero(truth))),
            UnaryOp::Neg => ir.sub(zero, x.v),
            UnaryOp::Not => ir.xor(x.v, self.all(x.v, -1)),
            UnaryOp::Abs if signed => ir.select(ir.icmp(LLVMIntSLT, x.v, zero), ir.sub(zero, x.v), x.v),
            UnaryOp::Sign => {
                let positive = match signed {
                    true => ir.icmp(LLVMIntSGT, x.v, zero),
                    false => ir.icmp(LLVMIntNE, x.v, zero),
                };
                let positive = ir.zext(positive, ir.type_of(x.v));
                if !signed {
                    return Some(Value { v: positive, dtype: x.dtype });
                }
                let negative = ir.sext(ir.icmp(LLVMIntSLT, x.v, zero), ir.type_of(x.v));
                ir.or(positive, negative)
            }
            UnaryOp::Abs | UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Trunc | UnaryOp::Round => x.v,
            _ => return None,
        };
        Some(Value { v, dtype: x.dtype })
    }

    /// An operation on two values of one type.
    pub(super) fn binary(&self, op: BinaryOp, a: Value, b: Value) -> Result<Value, EmitError> {
        let dtype = a.dtype;
        let [a, b] = self.equal_lanes([a, b]);
        if self.register_type(a.dtype) != self.register_type(b.dtype) {
            return Err(format!("{op:?} of {} and {}", a.dtype, b.dtype));
        }
        if op.is_comparison() {
            return Ok(self.truth_value(self.compare(op, dtype, a.v, b.v)?));
        }
        let v = match family(dtype) {
            Family::Float => {
                let (x, y) = (self.ir.to_inkwell(a.v), self.ir.to_inkwell(b.v));
                self.ir.of_inkwell(self.math().binary(op, x, y).map_err(|e| e.to_string())?)
            }
            Family::Int => self.binary_int(op, dtype, a.v, b.v)?,
            Family::Bool => match op {
                BinaryOp::Add | BinaryOp::Max | BinaryOp::Fmax | BinaryOp::Or => self.ir.or(a.v, b.v),
                BinaryOp::Mul | BinaryOp::Min | BinaryOp::Fmin | BinaryOp::And => self.ir.and(a.v, b.v),
                BinaryOp::Xor => self.ir.xor(a.v, b.v),
                _ => return Err(format!("{op:?} is not defined on {dtype}")),
            },
        };
        Ok(Value { v, dtype })
    }

    /// A comparison of registers of this type; an error for what is none.
    pub(super) fn compare(&self, op: BinaryOp, dtype: DType, a: V, b: V) -> Result<V, EmitError> {
        let none = || format!("{op:?} is no comparison");
        if family(dtype) == Family::Float {
            let predicate = match op {
                BinaryOp::Eq => LLVMRealOEQ,
                BinaryOp::Ne => LLVMRealUNE,
                BinaryOp::Lt => LLVMRealOLT,
                BinaryOp::Le => LLVMRealOLE,
                BinaryOp::Gt => LLVMRealOGT,
                BinaryOp::Ge => LLVMRealOGE,
                _ => return Err(none()),
            };
            return Ok(self.ir.fcmp(predicate, a, b));
        }
        let signed = dtype.is_signed_int();
        let predicate = match (op, signed) {
            (BinaryOp::Eq, _) => LLVMIntEQ,
            (BinaryOp::Ne, _) => LLVMIntNE,
            (BinaryOp::Lt, true) => LLVMIntSLT,
            (BinaryOp::Le, true) => LLVMIntSLE,
            (BinaryOp::Gt, true) => LLVMIntSGT,
            (BinaryOp::Ge, true) => LLVMIntSGE,
            (BinaryOp::Lt, false) => LLVMIntULT,
            (BinaryOp::Le, false) => LLVMIntULE,
            (BinaryOp::Gt, false) => LLVMIntUGT,
            (BinaryOp::Ge, false) => LLVMIntUGE,
            _ => return Err(none()),
        };
        Ok(self.ir.icmp(predicate, a, b))
    }

    fn binary_int(&self, op: BinaryOp, dtype: DType, a: V, b: V) -> Result<V, EmitError> {
        let ir = &self.ir;
        let larger = |x, y| Ok(ir.select(self.compare(BinaryOp::Gt, dtype, x, y)?, x, y));
        let smaller = |x, y| Ok(ir.select(self.compare(BinaryOp::Lt, dtype, x, y)?, x, y));
        Ok(match op {
            BinaryOp::Add => ir.add(a, b),
            BinaryOp::Sub => ir.sub(a, b),
            BinaryOp::Mul => ir.mul(a, b),
            BinaryOp::FloorDiv | BinaryOp::TruncDiv | BinaryOp::Remainder | BinaryOp::Fmod => {
                self.divide_int(op, dtype, a, b)
            }
            BinaryOp::Pow => self.pow_int(dtype, a, b),
            BinaryOp::Max | BinaryOp::Fmax => return larger(a, b),
            BinaryOp::Min | BinaryOp::Fmin => return smaller(a, b),
            BinaryOp::And => ir.and(a, b),
            BinaryOp::Or => ir.or(a, b),
            BinaryOp::Xor => ir.xor(a, b),
            BinaryOp::Shl | BinaryOp::Shr => self.shift(op, dtype, a, b),
            _ => return Err(format!("{op:?} is not defined on {dtype}")),
        })
    }

    fn divide_int(&self, op: BinaryOp, dtype: DType, a: V, b: V) -> V {
        let ir = &self.ir;
        let (zero, one) = (self.all(a, 0), self.all(a, 1));
        let by_zero = ir.icmp(LLVMIntEQ, b, zero);
        if !dtype.is_signed_int() {
            let safe = ir.select(by_zero, one, b);
            return match op {
                BinaryOp::FloorDiv | BinaryOp::TruncDiv => ir.udiv(a, safe),
                _ => ir.urem(a, safe),
            };
        }
        // The smallest number divided by -1 traps; its negation wraps to itself.
        let by_minus_one = ir.icmp(LLVMIntEQ, b, self.all(a, -1));
        let safe = ir.select(ir.or(by_zero, by_minus_one), one, b);
        let quotient = ir.select(by_minus_one, ir.sub(zero, a), ir.sdiv(a, safe));
        if op == BinaryOp::TruncDiv {
            return quotient;
        }
        let rest = ir.select(by_minus_one, zero, ir.srem(a, safe));
        if op == BinaryOp::Fmod {
            return rest;
        }
        let inexact = ir.icmp(LLVMIntNE, rest, zero);
        let signs_differ = ir.icmp(LLVMIntSLT, ir.xor(a, b), zero);
        let down = ir.and(inexact, signs_differ);
        match op {
            BinaryOp::FloorDiv => ir.add(quotient, ir.sext(down, ir.type_of(a))),
            _ => ir.add(rest, ir.select(down, b, zero)),
        }
    }

    fn shift(&self, op: BinaryOp, dtype: DType, a: V, count: V) -> V {
        let ir = &self.ir;
        let bits = dtype.bytes() as i64 * 8;
        // As an unsigned number a negative count is beyond the width too.
        let inside = ir.icmp(LLVMIntULT, count, self.all(a, bits));
        let zero = self.all(a, 0);
        let safe = ir.select(inside, count, zero);
        match op {
            BinaryOp::Shl => ir.select(inside, ir.shl(a, safe), zero),
            _ if dtype.is_signed_int() => ir.ashr(a, ir.select(inside, count, self.all(a, bits - 1))),
            _ => ir.select(inside, ir.lshr(a, safe), zero),
        }
    }

    /// Square and multiply, all lanes together, until no lane has exponent bits left.
    fn pow_int(&self, dtype: DType, base: V, exponent: V) -> V {
        let ir = &self.ir;
        let ty = ir.type_of(base);
        let (zero, one) = (self.all(base, 0), self.all(base, 1));
        let before = ir.current();
        let (head, after) = (ir.block("power"), ir.block("after"));
        ir.br(head);
        ir.at(head);
        let product = ir.phi(ty, &[(one, before)]);
        let square = ir.phi(ty, &[(base, before)]);
        let rest = ir.phi(ty, &[(exponent, before)]);
        let bit = ir.icmp(LLVMIntNE, ir.and(rest, one), zero);
        let next_product = ir.select(bit, ir.mul(product, square), product);
        let next_square = ir.mul(square, square);
        let next_rest = ir.lshr(rest, one);
        ir.add_incoming(product, &[(next_product, head)]);
        ir.add_incoming(square, &[(next_square, head)]);
        ir.add_incoming(rest, &[(next_rest, head)]);
        let more = ir.icmp(LLVMIntNE, next_rest, zero);
        let more = match ir.lanes_of(more) {
            Some(n) => ir.icmp(LLVMIntNE, ir.bitcast(more, ir.int(n)), ir.zero(ir.int(n))),
            None => more,
        };
        ir.cond_br(more, head, after);
        ir.at(after);
        if !dtype.is_signed_int() {
            return next_product;
        }
        // With a negative exponent only 1 and -1 have a power but zero.
        let is_one = ir.icmp(LLVMIntEQ, base, one);
        let is_minus_one = ir.icmp(LLVMIntEQ, base, self.all(base, -1));
        let odd = ir.icmp(LLVMIntNE, ir.and(exponent, one), zero);
        let sign = ir.select(odd, self.all(base, -1), one);
        let inverse = ir.select(is_one, one, ir.select(is_minus_one, sign, zero));
        let negative = ir.icmp(LLVMIntSLT, exponent, zero);
        ir.select(negative, inverse, next_product)
    }

    /// `a·b + c`; floats round once.
    pub(super) fn fma(&self, a: Value, b: Value, c: Value) -> Result<Value, EmitError> {
        if family(a.dtype) != Family::Float {
            return self.binary(BinaryOp::Add, self.binary(BinaryOp::Mul, a, b)?, c);
        }
        let dtype = a.dtype;
        let [a, b, c] = self.equal_lanes([a, b, c]);
        Ok(Value { v: self.ir.intrinsic_like("llvm.fma", &[a.v, b.v, c.v]), dtype })
    }
}
