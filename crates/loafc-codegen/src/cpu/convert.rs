//! Conversions: between memory and registers, and between element types with PyTorch's rules. Types narrower
//! than f32 are f32 in registers, truth values are one bit there and a byte in memory.

use llvm_sys::LLVMIntPredicate::{LLVMIntEQ, LLVMIntNE, LLVMIntSGT, LLVMIntUGT};
use llvm_sys::LLVMRealPredicate::{LLVMRealOGE, LLVMRealOLT, LLVMRealUNE, LLVMRealUNO};
use loafc_ir::dtype::{DType, Scalar};
use loafc_ir::interp::scalar;

use super::emit::{EmitError, Emitter, Value};
use super::ir::{T, V};

/// How a type is computed with.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(super) enum Family {
    Float,
    Int,
    Bool,
}

pub(super) fn family(dtype: DType) -> Family {
    match dtype {
        DType::Bool => Family::Bool,
        d if d.is_int() => Family::Int,
        _ => Family::Float,
    }
}

impl Emitter<'_, '_, '_> {
    /// The type of an element in memory.
    pub(super) fn memory_type(&self, dtype: DType) -> T {
        match dtype {
            DType::F64 => self.ir.double(),
            DType::F32 => self.ir.float(),
            DType::F16 => self.ir.half(),
            d => self.ir.int(d.bytes() as u32 * 8),
        }
    }

    /// `ty` with as many lanes as the value has.
    pub(super) fn like(&self, v: V, ty: T) -> T {
        self.ir.vector(ty, self.ir.lanes_of(v))
    }

    fn int_like(&self, v: V, bits: u32, value: i64) -> V {
        self.ir.const_int(self.like(v, self.ir.int(bits)), value)
    }

    fn float_like(&self, v: V, value: f64) -> V {
        self.ir.const_float(self.ir.type_of(v), value)
    }

    /// A constant as a value of `dtype`.
    pub(super) fn constant(&self, value: Scalar, dtype: DType) -> Value {
        let ty = self.register_type(dtype);
        let v = match scalar::constant(value, dtype.compute()) {
            Scalar::Float(x) => self.ir.const_float(ty, x),
            Scalar::Int(x) => self.ir.const_int(ty, x),
            Scalar::Bool(x) => self.ir.const_int(ty, i64::from(x)),
        };
        Value { v, dtype }
    }

    /// What was loaded, as it is computed with.
    pub(super) fn loaded(&self, raw: V, dtype: DType) -> Value {
        let single = self.like(raw, self.ir.float());
        let v = match dtype {
            DType::F16 => self.ir.fpext(raw, single),
            DType::BF16 => {
                let wide = self.ir.zext(raw, self.like(raw, self.ir.int(32)));
                self.ir.bitcast(self.ir.shl(wide, self.int_like(raw, 32, 16)), single)
            }
            DType::F8E4M3FN => self.widen_f8(raw, 3, 7, false),
            DType::F8E5M2 => self.widen_f8(raw, 2, 15, true),
            DType::Bool => self.ir.icmp(LLVMIntNE, raw, self.int_like(raw, 8, 0)),
            _ => raw,
        };
        Value { v, dtype }
    }

    /// A value as memory of this type holds it.
    pub(super) fn for_memory(&self, value: Value, dtype: DType) -> V {
        let v = value.v;
        match dtype {
            DType::F16 => self.ir.fptrunc(v, self.like(v, self.ir.half())),
            DType::BF16 => self.narrow_bf16(v),
            DType::F8E4M3FN => self.narrow_f8(v, 3, 7, false),
            DType::F8E5M2 => self.narrow_f8(v, 2, 15, true),
            DType::Bool => self.ir.zext(v, self.like(v, self.ir.int(8))),
            _ => v,
        }
    }

    /// Round to nearest, ties to even; NaNs stay NaNs.
    fn narrow_bf16(&self, v: V) -> V {
        let ir = &self.ir;
        let bits = ir.bitcast(v, self.like(v, ir.int(32)));
        let high = ir.lshr(bits, self.int_like(v, 32, 16));
        let odd = ir.and(high, self.int_like(v, 32, 1));
        let rounded = ir.add(bits, ir.add(odd, self.int_like(v, 32, 0x7fff)));
        let rounded = ir.lshr(rounded, self.int_like(v, 32, 16));
        let quiet = ir.or(high, self.int_like(v, 32, 0x40));
        let is_nan = ir.fcmp(LLVMRealUNO, v, v);
        ir.trunc(ir.select(is_nan, quiet, rounded), self.like(v, ir.int(16)))
    }

    /// f32 of an 8-bit float. Its bits are moved to where f32 has them and scaled by the difference of the
    /// biases, which makes subnormal numbers right too.
    fn widen_f8(&self, raw: V, mantissa: u32, bias: i32, has_infinity: bool) -> V {
        let ir = &self.ir;
        let single = self.like(raw, ir.float());
        let bits = ir.zext(raw, self.like(raw, ir.int(32)));
        let magnitude = ir.and(bits, self.int_like(raw, 32, 0x7f));
        let moved = ir.shl(magnitude, self.int_like(raw, 32, i64::from(23 - mantissa)));
        let scale = ir.const_float(single, f64::from(127 - bias).exp2());
        let value = ir.fmul(ir.bitcast(moved, single), scale);
        let top = if has_infinity { 0x7c } else { 0x7f };
        let nan_from = if has_infinity { 0x7d } else { 0x7f };
        let infinite = ir.icmp(LLVMIntEQ, magnitude, self.int_like(raw, 32, top));
        let is_nan = ir.icmp(LLVMIntUGT, magnitude, self.int_like(raw, 32, nan_from - 1));
        let value = match has_infinity {
            true => ir.select(infinite, ir.const_float(single, f64::INFINITY), value),
            false => value,
        };
        let value = ir.select(is_nan, ir.const_float(single, f64::NAN), value);
        let sign = ir.shl(ir.and(bits, self.int_like(raw, 32, 0x80)), self.int_like(raw, 32, 24));
        let value = ir.bitcast(value, self.like(raw, ir.int(32)));
        ir.bitcast(ir.or(value, sign), single)
    }

    /// An 8-bit float of f32: to nearest, ties to even. Without infinity it saturates.
    fn narrow_f8(&self, v: V, mantissa: u32, bias: i32, has_infinity: bool) -> V {
        let ir = &self.ir;
        let int = self.like(v, ir.int(32));
        let c = |x: i64| self.int_like(v, 32, x);
        let bits = ir.bitcast(v, int);
        let magnitude = ir.and(bits, c(0x7fff_ffff));
        let shift = i64::from(23 - mantissa);
        // Normal numbers: round at the bit where the mantissa ends, then move the exponent to the new bias.
        let odd = ir.and(ir.lshr(magnitude, c(shift)), c(1));
        let rounded = ir.add(magnitude, ir.add(odd, c((1 << (shift - 1)) - 1)));
        let normal = ir.sub(ir.lshr(rounded, c(shift)), c(i64::from(127 - bias) << mantissa));
        // Subnormal ones: adding a number whose last bit is worth the smallest step rounds at that bit.
        let magic = f64::from(24 - bias - mantissa as i32).exp2();
        let absolute = ir.bitcast(magnitude, ir.type_of(v));
        let aligned = ir.fadd(absolute, self.float_like(v, magic));
        let subnormal = ir.sub(ir.bitcast(aligned, int), ir.bitcast(self.float_like(v, magic), int));
        let smallest = self.float_like(v, f64::from(1 - bias).exp2());
        let is_small = ir.fcmp(LLVMRealOLT, absolute, smallest);
        let code = ir.select(is_small, subnormal, normal);
        let (largest, beyond) = if has_infinity { (0x7b, 0x7c) } else { (0x7e, 0x7e) };
        let code = ir.select(ir.icmp(LLVMIntSGT, code, c(largest)), c(beyond), code);
        let is_nan = ir.icmp(LLVMIntUGT, magnitude, c(0x7f80_0000));
        let code = ir.select(is_nan, c(0x7f), code);
        let sign = ir.and(ir.lshr(bits, c(24)), c(0x80));
        ir.trunc(ir.or(code, sign), self.like(v, ir.int(8)))
    }

    /// Conversion with PyTorch's rules; see [`scalar::cast`], which this does the same as.
    pub(super) fn cast(&self, value: Value, to: DType) -> Value {
        let from = value.dtype;
        let v = match (family(from), family(to)) {
            (_, Family::Bool) => self.truth(value),
            (Family::Float, Family::Float) => self.float_to_float(value, to),
            (Family::Bool | Family::Int, Family::Float) => self.int_to_float(value, to),
            (Family::Float, Family::Int) => self.float_to_int(value, to),
            (Family::Bool, Family::Int) => self.ir.zext(value.v, self.like(value.v, self.register_type(to))),
            (Family::Int, Family::Int) => self.int_to_int(value, to),
        };
        Value { v, dtype: to }
    }

    fn truth(&self, value: Value) -> V {
        match family(value.dtype) {
            Family::Bool => value.v,
            Family::Int => self.ir.icmp(LLVMIntNE, value.v, self.ir.zero(self.ir.type_of(value.v))),
            Family::Float => self.ir.fcmp(LLVMRealUNE, value.v, self.float_like(value.v, 0.0)),
        }
    }

    fn float_to_float(&self, value: Value, to: DType) -> V {
        let mut v = value.v;
        if value.dtype == DType::F64 && to != DType::F64 {
            v = self.ir.fptrunc(v, self.like(v, self.ir.float()));
        }
        if to == DType::F64 {
            return if value.dtype == DType::F64 {
                v
            } else {
                self.ir.fpext(v, self.like(v, self.ir.double()))
            };
        }
        self.rounded_to_storage(v, to)
    }

    /// An f32 rounded to what memory of a narrower type holds.
    fn rounded_to_storage(&self, v: V, to: DType) -> V {
        if to == to.compute() {
            return v;
        }
        let raw = self.for_memory(Value { v, dtype: DType::F32 }, to);
        self.loaded(raw, to).v
    }

    fn int_to_float(&self, value: Value, to: DType) -> V {
        let signed = value.dtype.is_signed_int();
        let ty = self.like(value.v, self.register_type(to));
        let v = if signed { self.ir.sitofp(value.v, ty) } else { self.ir.uitofp(value.v, ty) };
        self.rounded_to_storage(v, to)
    }

    /// Out of range and for NaN the smallest number of i32, or of i64 for wide types, as x86 does.
    fn float_to_int(&self, value: Value, to: DType) -> V {
        let ir = &self.ir;
        let x = value.v;
        let wide = to.bytes() == 8 || to == DType::U32;
        let (bits, limit) = if wide { (64, 63.0) } else { (32, 31.0) };
        let cut = ir.intrinsic_like("llvm.trunc", &[x]);
        let limit = f64::exp2(limit);
        let low = ir.fcmp(LLVMRealOGE, cut, self.float_like(x, -limit));
        let high = ir.fcmp(LLVMRealOLT, cut, self.float_like(x, limit));
        let fits = ir.and(low, high);
        let safe = ir.select(fits, cut, self.float_like(x, 0.0));
        let int = self.like(x, ir.int(bits));
        let smallest = ir.const_int(int, if wide { i64::MIN } else { i64::from(i32::MIN) });
        let whole = ir.select(fits, ir.fptosi(safe, int), smallest);
        let target = self.like(x, self.register_type(to));
        if to.bytes() as u32 * 8 < bits { ir.trunc(whole, target) } else { whole }
    }

    fn int_to_int(&self, value: Value, to: DType) -> V {
        let target = self.like(value.v, self.register_type(to));
        match (value.dtype.bytes(), to.bytes()) {
            (a, b) if a == b => value.v,
            (a, b) if a > b => self.ir.trunc(value.v, target),
            _ if value.dtype.is_signed_int() => self.ir.sext(value.v, target),
            _ => self.ir.zext(value.v, target),
        }
    }

    /// The same bits as another type of the same width.
    pub(super) fn reinterpret(&self, value: Value, to: DType) -> Result<Value, EmitError> {
        if value.dtype.bytes() != to.bytes() || value.dtype.is_complex() || to.is_complex() {
            return Err(format!("bitcast of {} to {to}: the widths differ", value.dtype));
        }
        let raw = self.for_memory(value, value.dtype);
        let raw = self.ir.bitcast(raw, self.like(raw, self.memory_type(to)));
        Ok(self.loaded(raw, to))
    }
}
