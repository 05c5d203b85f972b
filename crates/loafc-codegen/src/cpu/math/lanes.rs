//! Vectors of floats, integers and truth values with operators, so that the functions beside this file read like
//! formulas. A failed builder call is kept in the emitter and reported once, at the end; a scalar is a vector of one.

use std::cell::RefCell;
use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Not, Shl, Shr, Sub};

use inkwell::attributes::{Attribute, AttributeLoc};
use inkwell::basic_block::BasicBlock;
use inkwell::builder::{Builder, BuilderError};
use inkwell::context::ContextRef;
use inkwell::intrinsics::Intrinsic;
use inkwell::module::{Linkage, Module};
use inkwell::types::{BasicTypeEnum, IntType, VectorType};
use inkwell::values::{
    BasicMetadataValueEnum, BasicValue, BasicValueEnum, FunctionValue, InstructionValue, IntValue, PhiValue,
    VectorValue,
};
use inkwell::{FloatPredicate, IntPredicate};

use super::MathError;

/// Width of a lane.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Width {
    F32,
    F64,
}

impl Width {
    pub(super) const fn bits(self) -> u32 {
        match self {
            Width::F32 => 32,
            Width::F64 => 64,
        }
    }

    /// Bits of the stored part of the significand.
    pub(super) const fn significand_bits(self) -> u32 {
        match self {
            Width::F32 => 23,
            Width::F64 => 52,
        }
    }

    /// What is added to an exponent before it is stored.
    pub(super) const fn bias(self) -> i64 {
        match self {
            Width::F32 => 127,
            Width::F64 => 1023,
        }
    }

    /// The smallest normal number.
    pub(super) const fn min_normal(self) -> f64 {
        match self {
            Width::F32 => f32::MIN_POSITIVE as f64,
            Width::F64 => f64::MIN_POSITIVE,
        }
    }

    /// Bits of the sign.
    pub(super) const fn sign_mask(self) -> i64 {
        match self {
            Width::F32 => 0x8000_0000,
            Width::F64 => i64::MIN,
        }
    }

    /// 1.5·2^significand: adding it rounds to an integer, which then stands in the low bits.
    pub(super) const fn round_magic(self) -> f64 {
        match self {
            Width::F32 => 12_582_912.0,
            Width::F64 => 6_755_399_441_055_744.0,
        }
    }
}

/// Where instructions go. Keeps the first failure of a builder call.
pub(super) struct Emitter<'a, 'ctx> {
    builder: &'a Builder<'ctx>,
    module: &'a Module<'ctx>,
    context: ContextRef<'ctx>,
    lanes: u32,
    wide_tables: bool,
    failure: RefCell<Option<MathError>>,
}

/// A vector of floats.
#[derive(Copy, Clone)]
pub(super) struct Float<'e, 'ctx> {
    e: &'e Emitter<'e, 'ctx>,
    v: VectorValue<'ctx>,
    pub(super) width: Width,
}

/// A vector of integers.
#[derive(Copy, Clone)]
pub(super) struct Int<'e, 'ctx> {
    e: &'e Emitter<'e, 'ctx>,
    v: VectorValue<'ctx>,
    bits: u32,
}

/// A vector of truth values.
#[derive(Copy, Clone)]
pub(super) struct Mask<'e, 'ctx> {
    e: &'e Emitter<'e, 'ctx>,
    v: VectorValue<'ctx>,
}

impl<'a, 'ctx> Emitter<'a, 'ctx> {
    pub(super) fn new(
        builder: &'a Builder<'ctx>,
        module: &'a Module<'ctx>,
        lanes: u32,
        wide_tables: bool,
    ) -> Self {
        let failure = RefCell::new(None);
        Emitter { builder, module, context: module.get_context(), lanes, wide_tables, failure }
    }

    /// The first failure, or nothing.
    pub(super) fn finish(&self) -> Result<(), MathError> {
        match self.failure.borrow_mut().take() {
            Some(failure) => Err(failure),
            None => Ok(()),
        }
    }

    fn fail(&self, failure: MathError) {
        self.failure.borrow_mut().get_or_insert(failure);
    }

    /// The value, or `instead` with the failure kept.
    fn keep<T>(&self, result: Result<T, BuilderError>, instead: T) -> T {
        result.unwrap_or_else(|failure| {
            self.fail(failure.into());
            instead
        })
    }

    fn float_type(&self, width: Width) -> VectorType<'ctx> {
        match width {
            Width::F32 => self.context.f32_type().vec_type(self.lanes),
            Width::F64 => self.context.f64_type().vec_type(self.lanes),
        }
    }

    fn int_element(&self, bits: u32) -> IntType<'ctx> {
        match bits {
            32 => self.context.i32_type(),
            64 => self.context.i64_type(),
            _ => self.context.bool_type(),
        }
    }

    fn int_type(&self, bits: u32) -> VectorType<'ctx> {
        self.int_element(bits).vec_type(self.lanes)
    }

    fn splat<V: BasicValue<'ctx> + Copy>(&self, element: V) -> VectorValue<'ctx> {
        VectorType::const_vector(&vec![element; self.lanes as usize])
    }

    fn float_constant(&self, width: Width, value: f64) -> VectorValue<'ctx> {
        match width {
            Width::F32 => self.splat(self.context.f32_type().const_float(value)),
            Width::F64 => self.splat(self.context.f64_type().const_float(value)),
        }
    }

    fn int_constant(&self, bits: u32, value: i64) -> VectorValue<'ctx> {
        self.splat(self.int_element(bits).const_int(value as u64, true))
    }

    fn bit_cast(&self, v: VectorValue<'ctx>, to: VectorType<'ctx>) -> VectorValue<'ctx> {
        match self.builder.build_bit_cast(v, to, "") {
            Ok(BasicValueEnum::VectorValue(v)) => v,
            Ok(_) => v,
            Err(failure) => {
                self.fail(failure.into());
                v
            }
        }
    }

    /// Takes a scalar or a vector in.
    pub(super) fn import<'e>(&'e self, x: BasicValueEnum<'ctx>, width: Width) -> Float<'e, 'ctx> {
        let v = match x {
            BasicValueEnum::VectorValue(v) => v,
            scalar => match self.builder.build_bit_cast(scalar, self.float_type(width), "") {
                Ok(BasicValueEnum::VectorValue(v)) => v,
                Ok(_) => self.float_type(width).get_undef(),
                Err(failure) => {
                    self.fail(failure.into());
                    self.float_type(width).get_undef()
                }
            },
        };
        Float { e: self, v, width }
    }

    /// Gives a vector out, as a scalar where one came in.
    fn export(&self, v: VectorValue<'ctx>, scalar: Option<BasicTypeEnum<'ctx>>) -> BasicValueEnum<'ctx> {
        match scalar {
            Some(to) => self.keep(self.builder.build_bit_cast(v, to, ""), v.into()),
            None => v.into(),
        }
    }

    fn select(
        &self,
        mask: VectorValue<'ctx>,
        a: VectorValue<'ctx>,
        b: VectorValue<'ctx>,
    ) -> VectorValue<'ctx> {
        match self.builder.build_select(mask, a, b, "") {
            Ok(BasicValueEnum::VectorValue(v)) => v,
            Ok(_) => a,
            Err(failure) => {
                self.fail(failure.into());
                a
            }
        }
    }

    fn intrinsic(
        &self,
        name: &'static str,
        types: &[BasicTypeEnum<'ctx>],
        args: &[BasicMetadataValueEnum<'ctx>],
    ) -> Option<BasicValueEnum<'ctx>> {
        let Some(function) = Intrinsic::find(name).and_then(|i| i.get_declaration(self.module, types)) else {
            self.fail(MathError::NoIntrinsic(name));
            return None;
        };
        match self.builder.build_direct_call(function, args, "") {
            Ok(call) => call.try_as_basic_value().basic(),
            Err(failure) => {
                self.fail(failure.into());
                None
            }
        }
    }

    fn float_intrinsic(&self, name: &'static str, args: &[VectorValue<'ctx>]) -> VectorValue<'ctx> {
        let operands: Vec<BasicMetadataValueEnum> = args.iter().map(|&v| v.into()).collect();
        match self.intrinsic(name, &[args[0].get_type().into()], &operands) {
            Some(BasicValueEnum::VectorValue(v)) => v,
            _ => args[0],
        }
    }

    /// One bit: whether the mask holds anywhere.
    fn any(&self, mask: VectorValue<'ctx>) -> IntValue<'ctx> {
        match self.intrinsic("llvm.vector.reduce.or", &[mask.get_type().into()], &[mask.into()]) {
            Some(BasicValueEnum::IntValue(v)) => v,
            _ => self.context.bool_type().const_zero(),
        }
    }

    fn current_function(&self) -> Result<(BasicBlock<'ctx>, FunctionValue<'ctx>), MathError> {
        let block = self.builder.get_insert_block().ok_or(BuilderError::UnsetPosition)?;
        let function = block.get_parent().ok_or(BuilderError::UnsetPosition)?;
        Ok((block, function))
    }

    fn phi(&self, of: VectorType<'ctx>) -> Result<PhiValue<'ctx>, MathError> {
        Ok(self.builder.build_phi(of, "")?)
    }

    /// `fast`, or what `slow` makes of `x` in the lanes where the mask holds. Emits a branch; `slow` is a function of
    /// its own, see [`Emitter::outlined`].
    pub(super) fn unless_any<'e, const N: usize>(
        &'e self,
        mask: Mask<'e, 'ctx>,
        fast: [Float<'e, 'ctx>; N],
        name: &str,
        x: Float<'e, 'ctx>,
        slow: impl FnOnce([Float<'e, 'ctx>; 1]) -> [Float<'e, 'ctx>; N],
    ) -> [Float<'e, 'ctx>; N] {
        self.try_unless_any(mask, fast, || self.outlined(name, [x], slow)).unwrap_or_else(|failure| {
            self.fail(failure);
            fast
        })
    }

    fn try_unless_any<'e, const N: usize>(
        &'e self,
        mask: Mask<'e, 'ctx>,
        fast: [Float<'e, 'ctx>; N],
        slow: impl FnOnce() -> [Float<'e, 'ctx>; N],
    ) -> Result<[Float<'e, 'ctx>; N], MathError> {
        let (from, function) = self.current_function()?;
        let slow_block = self.context.append_basic_block(function, "math.slow");
        let join_block = self.context.append_basic_block(function, "math.join");
        let branch = self.builder.build_conditional_branch(self.any(mask.v), slow_block, join_block)?;
        self.mark_unlikely(branch);
        self.builder.position_at_end(slow_block);
        let made = slow();
        let chosen: [_; N] = std::array::from_fn(|k| mask.select(made[k], fast[k]));
        let (slow_end, _) = self.current_function()?;
        self.builder.build_unconditional_branch(join_block)?;
        self.builder.position_at_end(join_block);
        let mut joined = fast;
        for (k, lane) in joined.iter_mut().enumerate() {
            let phi = self.phi(fast[k].v.get_type())?;
            phi.add_incoming(&[(&fast[k].v, from), (&chosen[k].v, slow_end)]);
            lane.v = phi.as_basic_value().into_vector_value();
        }
        Ok(joined)
    }

    /// Says that a branch's first way is hardly ever taken, so that what the other way needs stays in registers.
    fn mark_unlikely(&self, branch: InstructionValue<'ctx>) {
        let weight = |weight: u64| self.context.i32_type().const_int(weight, false).into();
        let weights = [self.context.metadata_string("branch_weights").into(), weight(1), weight(1 << 20)];
        let kind = self.context.get_kind_id("prof");
        // Fails only for what is no metadata node.
        let _ = branch.set_metadata(self.context.metadata_node(&weights), kind);
    }

    /// What `body` makes of the arguments, by a call of a function that a module has once for each name and type. For
    /// code that is long and seldom runs, or so long that a call is nothing beside it: kernels with many copies of it
    /// would take long to compile.
    pub(super) fn outlined<'e, const ARGS: usize, const RESULTS: usize>(
        &'e self,
        name: &str,
        args: [Float<'e, 'ctx>; ARGS],
        body: impl FnOnce([Float<'e, 'ctx>; ARGS]) -> [Float<'e, 'ctx>; RESULTS],
    ) -> [Float<'e, 'ctx>; RESULTS] {
        self.try_outlined(name, args, body).unwrap_or_else(|failure| {
            self.fail(failure);
            [args[0]; RESULTS]
        })
    }

    fn try_outlined<'e, const ARGS: usize, const RESULTS: usize>(
        &'e self,
        name: &str,
        args: [Float<'e, 'ctx>; ARGS],
        body: impl FnOnce([Float<'e, 'ctx>; ARGS]) -> [Float<'e, 'ctx>; RESULTS],
    ) -> Result<[Float<'e, 'ctx>; RESULTS], MathError> {
        let width = args[0].width;
        let name = format!("loafc.{name}.f{}x{}", width.bits(), self.lanes);
        let function = match self.module.get_function(&name) {
            Some(function) => function,
            None => self.define(&name, args, body)?,
        };
        let passed: [BasicMetadataValueEnum<'ctx>; ARGS] = args.map(|x| x.v.into());
        let call = self.builder.build_call(function, &passed, "")?;
        let made = call.try_as_basic_value().basic().ok_or(BuilderError::UnsetPosition)?.into_struct_value();
        let mut results = [args[0]; RESULTS];
        for (k, result) in results.iter_mut().enumerate() {
            result.v = self.builder.build_extract_value(made, k as u32, "")?.into_vector_value();
        }
        Ok(results)
    }

    /// Adds a function to the module; the builder stays where it is.
    fn define<'e, const ARGS: usize, const RESULTS: usize>(
        &'e self,
        name: &str,
        args: [Float<'e, 'ctx>; ARGS],
        body: impl FnOnce([Float<'e, 'ctx>; ARGS]) -> [Float<'e, 'ctx>; RESULTS],
    ) -> Result<FunctionValue<'ctx>, MathError> {
        let (caller_block, caller) = self.current_function()?;
        let vector = args[0].v.get_type();
        let ty =
            self.context.struct_type(&[vector.into(); RESULTS], false).fn_type(&[vector.into(); ARGS], false);
        let function = self.module.add_function(name, ty, Some(Linkage::Internal));
        for attribute in caller.attributes(AttributeLoc::Function) {
            function.add_attribute(AttributeLoc::Function, attribute);
        }
        let no_inline = self.context.create_enum_attribute(Attribute::get_named_enum_kind_id("noinline"), 0);
        function.add_attribute(AttributeLoc::Function, no_inline);
        self.builder.position_at_end(self.context.append_basic_block(function, "start"));
        let mut inner = args;
        for (x, parameter) in inner.iter_mut().zip(function.get_param_iter()) {
            x.v = parameter.into_vector_value();
        }
        let made = body(inner).map(|x| x.v.into());
        self.builder.build_aggregate_return(&made)?;
        self.builder.position_at_end(caller_block);
        Ok(function)
    }

    /// Applies `step` at least once, and again while the mask that it returns holds in some lane. Emits a loop.
    pub(super) fn repeat<'e>(
        &'e self,
        start: Float<'e, 'ctx>,
        step: impl FnOnce(Float<'e, 'ctx>) -> (Float<'e, 'ctx>, Mask<'e, 'ctx>),
    ) -> Float<'e, 'ctx> {
        self.try_repeat(start, step).unwrap_or_else(|failure| {
            self.fail(failure);
            start
        })
    }

    fn try_repeat<'e>(
        &'e self,
        start: Float<'e, 'ctx>,
        step: impl FnOnce(Float<'e, 'ctx>) -> (Float<'e, 'ctx>, Mask<'e, 'ctx>),
    ) -> Result<Float<'e, 'ctx>, MathError> {
        let (from, function) = self.current_function()?;
        let loop_block = self.context.append_basic_block(function, "math.loop");
        let exit_block = self.context.append_basic_block(function, "math.done");
        self.builder.build_unconditional_branch(loop_block)?;
        self.builder.position_at_end(loop_block);
        let phi = self.phi(start.v.get_type())?;
        let (next, again) = step(Float { v: phi.as_basic_value().into_vector_value(), ..start });
        let (loop_end, _) = self.current_function()?;
        self.builder.build_conditional_branch(self.any(again.v), loop_block, exit_block)?;
        phi.add_incoming(&[(&start.v, from), (&next.v, loop_end)]);
        self.builder.position_at_end(exit_block);
        Ok(next)
    }

    /// Whether the machine picks from [`Emitter::pick`]'s tables with one instruction. An algorithm is chosen by that and
    /// not by the number of lanes: all elements of a tensor are computed alike.
    pub(super) fn has_wide_tables(&self) -> bool {
        self.wide_tables
    }

    /// `table[index]` in every lane, as f32; of an index only the lowest four bits count. Needs wide tables.
    pub(super) fn pick<'e>(&'e self, table: &[f64; 16], index: Int<'e, 'ctx>) -> Float<'e, 'ctx> {
        let v = self.try_pick(table, index).unwrap_or_else(|failure| {
            self.fail(failure);
            self.float_type(Width::F32).get_undef()
        });
        Float { e: self, v, width: Width::F32 }
    }

    fn try_pick(&self, table: &[f64; 16], index: Int<'_, 'ctx>) -> Result<VectorValue<'ctx>, MathError> {
        const INSTRUCTION: &str = "llvm.x86.avx512.permvar.sf.512";
        let float = self.context.f32_type();
        let number = self.context.i32_type();
        let lanes = |numbers: &[u32]| {
            let numbers: Vec<_> = numbers.iter().map(|n| number.const_int(u64::from(*n), false)).collect();
            VectorType::const_vector(&numbers)
        };
        let values: Vec<_> = table.iter().map(|value| float.const_float(*value)).collect();
        let table = VectorType::const_vector(&values);
        // Lanes that are missing are the last one again; lanes beyond the first 16 come in further parts.
        let shuffle = |a, b, numbers: Vec<u32>| self.builder.build_shuffle_vector(a, b, lanes(&numbers), "");
        let mut picked: Option<VectorValue<'ctx>> = None;
        for begin in (0..self.lanes).step_by(16) {
            let indices = match self.lanes {
                16 => index.v,
                _ => shuffle(index.v, index.v, (begin..begin + 16).map(|k| k.min(self.lanes - 1)).collect())?,
            };
            let Some(BasicValueEnum::VectorValue(now)) =
                self.intrinsic(INSTRUCTION, &[], &[table.into(), indices.into()])
            else {
                return Err(MathError::NoIntrinsic(INSTRUCTION));
            };
            picked = Some(match picked {
                None => now,
                Some(before) => {
                    let as_long = shuffle(now, now, (0..begin).map(|k| k % 16).collect())?;
                    shuffle(before, as_long, (0..begin + 16).collect())?
                }
            });
        }
        match picked {
            Some(picked) if self.lanes.is_multiple_of(16) => Ok(picked),
            Some(picked) => Ok(shuffle(picked, picked, (0..self.lanes).collect())?),
            None => Err(MathError::NoIntrinsic(INSTRUCTION)),
        }
    }

    /// A private constant array of this module, made once.
    fn table(&self, name: &str, words: &[u64]) -> inkwell::values::PointerValue<'ctx> {
        if let Some(global) = self.module.get_global(name) {
            return global.as_pointer_value();
        }
        let element = self.context.i64_type();
        let values: Vec<_> = words.iter().map(|&w| element.const_int(w, false)).collect();
        let global = self.module.add_global(element.array_type(words.len() as u32), None, name);
        global.set_initializer(&element.const_array(&values));
        global.set_constant(true);
        global.set_linkage(Linkage::Private);
        global.as_pointer_value()
    }

    /// `words[index]` in every lane.
    pub(super) fn gather<'e>(&'e self, name: &str, words: &[u64], index: Int<'e, 'ctx>) -> Int<'e, 'ctx> {
        let base = self.table(name, words);
        let mut v = self.int_type(64).get_undef();
        for lane in 0..self.lanes {
            match self.gather_lane(base, index, v, lane) {
                Ok(next) => v = next,
                Err(failure) => self.fail(failure),
            }
        }
        Int { e: self, v, bits: 64 }
    }

    fn gather_lane(
        &self,
        base: inkwell::values::PointerValue<'ctx>,
        index: Int<'_, 'ctx>,
        into: VectorValue<'ctx>,
        lane: u32,
    ) -> Result<VectorValue<'ctx>, MathError> {
        let word = self.context.i64_type();
        let lane = self.context.i32_type().const_int(lane.into(), false);
        let at = self.builder.build_extract_element(index.v, lane, "")?.into_int_value();
        // SAFETY: callers clamp the index to the table.
        let address = unsafe { self.builder.build_gep(word, base, &[at], "") }?;
        let loaded = self.builder.build_load(word, address, "")?;
        Ok(self.builder.build_insert_element(into, loaded, lane, "")?)
    }
}

impl<'e, 'ctx> Float<'e, 'ctx> {
    fn with(self, v: VectorValue<'ctx>) -> Self {
        Float { v, ..self }
    }

    pub(super) fn emitter(self) -> &'e Emitter<'e, 'ctx> {
        self.e
    }

    /// The vector, or the scalar of this type.
    pub(super) fn export(self, scalar: Option<BasicTypeEnum<'ctx>>) -> BasicValueEnum<'ctx> {
        self.e.export(self.v, scalar)
    }

    /// A constant of this vector's type.
    pub(super) fn constant(self, value: f64) -> Self {
        self.with(self.e.float_constant(self.width, value))
    }

    /// `self·b + c`, rounded once.
    pub(super) fn fma(self, b: impl Operand<'e, 'ctx>, c: impl Operand<'e, 'ctx>) -> Self {
        let (b, c) = (b.lanes(self), c.lanes(self));
        self.with(self.e.float_intrinsic("llvm.fma", &[self.v, b.v, c.v]))
    }

    /// Σ coefficients\[k\]·self^k by Horner's rule: the fewest instructions, and loops have other work to overlap.
    pub(super) fn polynomial(self, coefficients: &[f64]) -> Self {
        let Some((&last, rest)) = coefficients.split_last() else { return self.constant(0.0) };
        rest.iter().rev().fold(self.constant(last), |sum, &c| sum.fma(self, c))
    }

    pub(super) fn abs(self) -> Self {
        self.with(self.e.float_intrinsic("llvm.fabs", &[self.v]))
    }

    pub(super) fn sqrt(self) -> Self {
        self.with(self.e.float_intrinsic("llvm.sqrt", &[self.v]))
    }

    pub(super) fn floor(self) -> Self {
        self.with(self.e.float_intrinsic("llvm.floor", &[self.v]))
    }

    pub(super) fn ceil(self) -> Self {
        self.with(self.e.float_intrinsic("llvm.ceil", &[self.v]))
    }

    pub(super) fn trunc(self) -> Self {
        self.with(self.e.float_intrinsic("llvm.trunc", &[self.v]))
    }

    /// To the nearest integer, ties to even.
    pub(super) fn round_even(self) -> Self {
        self.with(self.e.float_intrinsic("llvm.roundeven", &[self.v]))
    }

    /// This magnitude with the sign of `sign`.
    pub(super) fn copysign(self, sign: Self) -> Self {
        self.with(self.e.float_intrinsic("llvm.copysign", &[self.v, sign.v]))
    }

    /// The larger one; `self` where it is NaN.
    pub(super) fn at_least(self, low: impl Operand<'e, 'ctx>) -> Self {
        let low = low.lanes(self);
        low.gt(self).select(low, self)
    }

    /// The smaller one; `self` where it is NaN.
    pub(super) fn at_most(self, high: impl Operand<'e, 'ctx>) -> Self {
        let high = high.lanes(self);
        high.lt(self).select(high, self)
    }

    fn compare(self, predicate: FloatPredicate, b: Self) -> Mask<'e, 'ctx> {
        let v = self.e.builder.build_float_compare(predicate, self.v, b.v, "");
        Mask { e: self.e, v: self.e.keep(v, self.e.int_type(1).get_undef()) }
    }

    pub(super) fn lt(self, b: impl Operand<'e, 'ctx>) -> Mask<'e, 'ctx> {
        self.compare(FloatPredicate::OLT, b.lanes(self))
    }

    pub(super) fn le(self, b: impl Operand<'e, 'ctx>) -> Mask<'e, 'ctx> {
        self.compare(FloatPredicate::OLE, b.lanes(self))
    }

    pub(super) fn gt(self, b: impl Operand<'e, 'ctx>) -> Mask<'e, 'ctx> {
        self.compare(FloatPredicate::OGT, b.lanes(self))
    }

    pub(super) fn ge(self, b: impl Operand<'e, 'ctx>) -> Mask<'e, 'ctx> {
        self.compare(FloatPredicate::OGE, b.lanes(self))
    }

    pub(super) fn eq(self, b: impl Operand<'e, 'ctx>) -> Mask<'e, 'ctx> {
        self.compare(FloatPredicate::OEQ, b.lanes(self))
    }

    /// True for NaNs.
    pub(super) fn ne(self, b: impl Operand<'e, 'ctx>) -> Mask<'e, 'ctx> {
        self.compare(FloatPredicate::UNE, b.lanes(self))
    }

    pub(super) fn is_nan(self) -> Mask<'e, 'ctx> {
        self.compare(FloatPredicate::UNO, self)
    }

    pub(super) fn is_inf(self) -> Mask<'e, 'ctx> {
        self.abs().eq(f64::INFINITY)
    }

    /// The sign bit, of zeros and NaNs too.
    pub(super) fn sign_bit(self) -> Mask<'e, 'ctx> {
        self.bits().lt(0)
    }

    /// The bits as integers.
    pub(super) fn bits(self) -> Int<'e, 'ctx> {
        let bits = self.width.bits();
        Int { e: self.e, v: self.e.bit_cast(self.v, self.e.int_type(bits)), bits }
    }

    /// In f64, exactly.
    pub(super) fn widen(self) -> Self {
        let v = self.e.builder.build_float_ext(self.v, self.e.float_type(Width::F64), "");
        Float { v: self.e.keep(v, self.e.float_type(Width::F64).get_undef()), e: self.e, width: Width::F64 }
    }

    /// Rounded to f32.
    pub(super) fn narrow(self) -> Self {
        let v = self.e.builder.build_float_trunc(self.v, self.e.float_type(Width::F32), "");
        Float { v: self.e.keep(v, self.e.float_type(Width::F32).get_undef()), e: self.e, width: Width::F32 }
    }

    /// An f32 with the low bits of this f64.
    pub(super) fn narrow_low_bits(self) -> Self {
        let bits = self.bits();
        let v = self.e.builder.build_int_truncate(bits.v, self.e.int_type(32), "");
        Int { e: self.e, v: self.e.keep(v, self.e.int_type(32).get_undef()), bits: 32 }.as_float()
    }
}

impl<'e, 'ctx> Int<'e, 'ctx> {
    fn with(self, v: Result<VectorValue<'ctx>, BuilderError>) -> Self {
        Int { v: self.e.keep(v, self.v), ..self }
    }

    pub(super) fn constant(self, value: i64) -> Self {
        Int { v: self.e.int_constant(self.bits, value), ..self }
    }

    fn width(self) -> Width {
        if self.bits == 32 { Width::F32 } else { Width::F64 }
    }

    /// The bits as floats.
    pub(super) fn as_float(self) -> Float<'e, 'ctx> {
        let width = self.width();
        Float { e: self.e, v: self.e.bit_cast(self.v, self.e.float_type(width)), width }
    }

    /// The nearest floats of the same width.
    pub(super) fn to_float(self) -> Float<'e, 'ctx> {
        let width = self.width();
        let to = self.e.float_type(width);
        let v = self.e.builder.build_signed_int_to_float(self.v, to, "");
        Float { e: self.e, v: self.e.keep(v, to.get_undef()), width }
    }

    /// Shifts right, the sign moving in.
    pub(super) fn shift_signed(self, count: u32) -> Self {
        let count = self.constant(count.into());
        self.with(self.e.builder.build_right_shift(self.v, count.v, true, ""))
    }

    /// Shifts right by counts of each lane, zeros moving in.
    pub(super) fn shift_right_by(self, count: Self) -> Self {
        self.with(self.e.builder.build_right_shift(self.v, count.v, false, ""))
    }

    /// Shifts left by counts of each lane.
    pub(super) fn shift_left_by(self, count: Self) -> Self {
        self.with(self.e.builder.build_left_shift(self.v, count.v, ""))
    }

    pub(super) fn times(self, b: Self) -> Self {
        self.with(self.e.builder.build_int_mul(self.v, b.v, ""))
    }

    fn compare(self, predicate: IntPredicate, b: Self) -> Mask<'e, 'ctx> {
        let v = self.e.builder.build_int_compare(predicate, self.v, b.v, "");
        Mask { e: self.e, v: self.e.keep(v, self.e.int_type(1).get_undef()) }
    }

    /// Signed.
    pub(super) fn lt(self, b: i64) -> Mask<'e, 'ctx> {
        self.compare(IntPredicate::SLT, self.constant(b))
    }

    /// Signed.
    pub(super) fn gt(self, b: i64) -> Mask<'e, 'ctx> {
        self.compare(IntPredicate::SGT, self.constant(b))
    }

    pub(super) fn eq(self, b: i64) -> Mask<'e, 'ctx> {
        self.compare(IntPredicate::EQ, self.constant(b))
    }

    /// Signed.
    pub(super) fn clamp(self, low: i64, high: i64) -> Self {
        let raised = self.lt(low).select_int(self.constant(low), self);
        raised.gt(high).select_int(self.constant(high), raised)
    }
}

impl<'e, 'ctx> Mask<'e, 'ctx> {
    /// `a` where it holds, else `b`.
    pub(super) fn select(self, a: impl Operand<'e, 'ctx>, b: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
        b.with(self.e.select(self.v, a.lanes(b).v, b.v))
    }

    /// The first constant where it holds, else the second, as floats like `like`.
    pub(super) fn choose(self, a: f64, b: f64, like: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
        self.select(a, like.constant(b))
    }

    pub(super) fn select_int(self, a: Int<'e, 'ctx>, b: Int<'e, 'ctx>) -> Int<'e, 'ctx> {
        Int { v: self.e.select(self.v, a.v, b.v), ..b }
    }

    pub(super) fn export(self, scalar: bool) -> BasicValueEnum<'ctx> {
        self.e.export(self.v, scalar.then(|| self.e.context.bool_type().into()))
    }
}

/// A vector, or a constant that becomes one.
pub(super) trait Operand<'e, 'ctx> {
    fn lanes(self, like: Float<'e, 'ctx>) -> Float<'e, 'ctx>;
}

impl<'e, 'ctx> Operand<'e, 'ctx> for Float<'e, 'ctx> {
    fn lanes(self, _: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
        self
    }
}

impl<'e, 'ctx> Operand<'e, 'ctx> for f64 {
    fn lanes(self, like: Float<'e, 'ctx>) -> Float<'e, 'ctx> {
        like.constant(self)
    }
}

macro_rules! float_operator {
    ($trait:ident, $method:ident, $build:ident) => {
        impl<'e, 'ctx, O: Operand<'e, 'ctx>> $trait<O> for Float<'e, 'ctx> {
            type Output = Self;
            fn $method(self, b: O) -> Self {
                let b = b.lanes(self);
                self.with(self.e.keep(self.e.builder.$build(self.v, b.v, ""), self.v))
            }
        }
    };
}
float_operator!(Add, add, build_float_add);
float_operator!(Sub, sub, build_float_sub);
float_operator!(Mul, mul, build_float_mul);
float_operator!(Div, div, build_float_div);

impl Neg for Float<'_, '_> {
    type Output = Self;
    fn neg(self) -> Self {
        self.with(self.e.keep(self.e.builder.build_float_neg(self.v, ""), self.v))
    }
}

macro_rules! int_operator {
    ($trait:ident, $method:ident, $build:ident) => {
        impl $trait for Int<'_, '_> {
            type Output = Self;
            fn $method(self, b: Self) -> Self {
                self.with(self.e.builder.$build(self.v, b.v, ""))
            }
        }

        impl $trait<i64> for Int<'_, '_> {
            type Output = Self;
            fn $method(self, b: i64) -> Self {
                self.with(self.e.builder.$build(self.v, self.constant(b).v, ""))
            }
        }
    };
}
int_operator!(Add, add, build_int_add);
int_operator!(Sub, sub, build_int_sub);
int_operator!(BitAnd, bitand, build_and);
int_operator!(BitOr, bitor, build_or);
int_operator!(BitXor, bitxor, build_xor);

impl Shl<u32> for Int<'_, '_> {
    type Output = Self;
    fn shl(self, count: u32) -> Self {
        self.with(self.e.builder.build_left_shift(self.v, self.constant(count.into()).v, ""))
    }
}

/// Zeros move in.
impl Shr<u32> for Int<'_, '_> {
    type Output = Self;
    fn shr(self, count: u32) -> Self {
        self.with(self.e.builder.build_right_shift(self.v, self.constant(count.into()).v, false, ""))
    }
}

macro_rules! mask_operator {
    ($trait:ident, $method:ident, $build:ident) => {
        impl $trait for Mask<'_, '_> {
            type Output = Self;
            fn $method(self, b: Self) -> Self {
                Mask { v: self.e.keep(self.e.builder.$build(self.v, b.v, ""), self.v), ..self }
            }
        }
    };
}
mask_operator!(BitAnd, bitand, build_and);
mask_operator!(BitOr, bitor, build_or);
mask_operator!(BitXor, bitxor, build_xor);

impl Not for Mask<'_, '_> {
    type Output = Self;
    fn not(self) -> Self {
        Mask { v: self.e.keep(self.e.builder.build_not(self.v, ""), self.v), ..self }
    }
}
