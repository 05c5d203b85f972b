//! LLVM's instruction builder with one method for scalars and vectors alike, which inkwell's typed values would
//! tell apart at every call. All calls into LLVM's C interface for instructions stand here.
//!
//! Types are not checked here: operands of one instruction must have equal types, as [`super::emit`] sees to.
//! The finished module is verified by LLVM before code is generated from it.

use std::ffi::CStr;

use inkwell::basic_block::BasicBlock;
use inkwell::builder::Builder;
use inkwell::context::Context;
use inkwell::module::Module;
use inkwell::values::{AsValueRef, BasicValueEnum};
use llvm_sys::core::*;
use llvm_sys::prelude::{
    LLVMBasicBlockRef, LLVMBuilderRef, LLVMContextRef, LLVMModuleRef, LLVMTypeRef, LLVMValueRef,
};
use llvm_sys::{LLVMIntPredicate, LLVMRealPredicate};

/// A value of LLVM; lives as long as the module of its [`Ir`].
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct V(LLVMValueRef);

/// A type of LLVM.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct T(LLVMTypeRef);

/// A basic block.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Block(LLVMBasicBlockRef);

/// Memory that accesses can be told apart by: accesses of different scopes never overlap.
#[derive(Copy, Clone, Debug)]
pub struct AliasScope {
    own: LLVMValueRef,
    others: LLVMValueRef,
}

const UNNAMED: *const std::ffi::c_char = c"".as_ptr();

/// Builds instructions into one function at a time.
pub struct Ir<'b, 'ctx> {
    context: &'ctx Context,
    module: &'b Module<'ctx>,
    builder: &'b Builder<'ctx>,
    function: LLVMValueRef,
    /// Where stack slots go: the function's first block, which ends in a branch from the start.
    slots: LLVMBasicBlockRef,
}

macro_rules! binary {
    ($($(#[$doc:meta])* $name:ident = $build:ident;)*) => {
        $($(#[$doc])*
        pub fn $name(&self, a: V, b: V) -> V {
            // SAFETY: both values belong to this module; the builder stands in a block.
            V(unsafe { $build(self.raw(), a.0, b.0, UNNAMED) })
        })*
    };
}

macro_rules! convert {
    ($($(#[$doc:meta])* $name:ident = $build:ident;)*) => {
        $($(#[$doc])*
        pub fn $name(&self, a: V, to: T) -> V {
            // SAFETY: value and type belong to this module's context; the builder stands in a block.
            V(unsafe { $build(self.raw(), a.0, to.0, UNNAMED) })
        })*
    };
}

impl<'b, 'ctx> Ir<'b, 'ctx> {
    /// A builder for a new function `name` of this type, standing in its first block behind the stack slots.
    pub fn new(
        context: &'ctx Context,
        module: &'b Module<'ctx>,
        builder: &'b Builder<'ctx>,
        name: &CStr,
        result: impl Fn(&Ir<'b, 'ctx>) -> (T, Vec<T>),
    ) -> Ir<'b, 'ctx> {
        let null = std::ptr::null_mut();
        let mut ir = Ir { context, module, builder, function: null, slots: std::ptr::null_mut() };
        let (result, mut params) = result(&ir);
        // SAFETY: types are of this context; the block belongs to the function that is made here.
        unsafe {
            let params_at = params.as_mut_ptr().cast::<LLVMTypeRef>();
            let ty = LLVMFunctionType(result.0, params_at, params.len() as u32, 0);
            ir.function = LLVMAddFunction(ir.module_ref(), name.as_ptr(), ty);
            ir.slots = LLVMAppendBasicBlockInContext(ir.context_ref(), ir.function, c"slots".as_ptr());
            LLVMPositionBuilderAtEnd(ir.raw(), ir.slots);
        }
        let start = ir.block("start");
        ir.br(start);
        ir.at(start);
        ir
    }

    fn raw(&self) -> LLVMBuilderRef {
        self.builder.as_mut_ptr()
    }

    fn context_ref(&self) -> LLVMContextRef {
        inkwell::context::AsContextRef::as_ctx_ref(&self.context)
    }

    fn module_ref(&self) -> LLVMModuleRef {
        self.module.as_mut_ptr()
    }

    /// inkwell's parts, for code that is written with them.
    pub fn parts(&self) -> (&'ctx Context, &'b Module<'ctx>, &'b Builder<'ctx>) {
        (self.context, self.module, self.builder)
    }

    /// The value as inkwell has it.
    pub fn to_inkwell(&self, v: V) -> BasicValueEnum<'ctx> {
        // SAFETY: the value belongs to this module and is no metadata, block or function.
        unsafe { BasicValueEnum::new(v.0) }
    }

    /// A value that inkwell built.
    pub fn of_inkwell(&self, v: BasicValueEnum<'ctx>) -> V {
        V(v.as_value_ref())
    }

    /// Sets a string attribute of the function.
    pub fn attribute(&self, key: &str, value: &str) {
        // SAFETY: the strings are copied with their lengths.
        unsafe {
            let attribute = LLVMCreateStringAttribute(
                self.context_ref(),
                key.as_ptr().cast(),
                key.len() as u32,
                value.as_ptr().cast(),
                value.len() as u32,
            );
            LLVMAddAttributeAtIndex(self.function, llvm_sys::LLVMAttributeFunctionIndex, attribute);
        }
    }

    /// Promises that the function does not unwind.
    pub fn mark_nounwind(&self) {
        // SAFETY: the name is copied.
        unsafe {
            let kind = LLVMGetEnumAttributeKindForName(c"nounwind".as_ptr(), 8);
            let attribute = LLVMCreateEnumAttribute(self.context_ref(), kind, 0);
            LLVMAddAttributeAtIndex(self.function, llvm_sys::LLVMAttributeFunctionIndex, attribute);
        }
    }

    /// A parameter of the function.
    pub fn param(&self, k: u32) -> V {
        // SAFETY: callers ask for parameters that they declared.
        V(unsafe { LLVMGetParam(self.function, k) })
    }

    // Types.

    /// An integer of this width.
    pub fn int(&self, bits: u32) -> T {
        // SAFETY: the context is alive.
        T(unsafe { LLVMIntTypeInContext(self.context_ref(), bits) })
    }

    /// IEEE half precision.
    pub fn half(&self) -> T {
        // SAFETY: the context is alive.
        T(unsafe { LLVMHalfTypeInContext(self.context_ref()) })
    }

    /// IEEE single precision.
    pub fn float(&self) -> T {
        // SAFETY: the context is alive.
        T(unsafe { LLVMFloatTypeInContext(self.context_ref()) })
    }

    /// IEEE double precision.
    pub fn double(&self) -> T {
        // SAFETY: the context is alive.
        T(unsafe { LLVMDoubleTypeInContext(self.context_ref()) })
    }

    /// A pointer.
    pub fn ptr(&self) -> T {
        // SAFETY: the context is alive.
        T(unsafe { LLVMPointerTypeInContext(self.context_ref(), 0) })
    }

    /// A vector of this many lanes, or the type itself.
    pub fn vector(&self, element: T, lanes: Option<u32>) -> T {
        match lanes {
            // SAFETY: the element type is a number or pointer.
            Some(n) => T(unsafe { LLVMVectorType(element.0, n) }),
            None => element,
        }
    }

    /// Type of a value.
    pub fn type_of(&self, v: V) -> T {
        // SAFETY: the value is alive.
        T(unsafe { LLVMTypeOf(v.0) })
    }

    /// Number of lanes of a vector value; `None` for a scalar.
    pub fn lanes_of(&self, v: V) -> Option<u32> {
        // SAFETY: the size is asked for vectors only.
        unsafe {
            let ty = LLVMTypeOf(v.0);
            match LLVMGetTypeKind(ty) {
                llvm_sys::LLVMTypeKind::LLVMVectorTypeKind => Some(LLVMGetVectorSize(ty)),
                _ => None,
            }
        }
    }

    // Constants.

    /// An integer constant; all lanes for a vector type.
    pub fn const_int(&self, ty: T, value: i64) -> V {
        // SAFETY: the type is an integer or a vector of them.
        unsafe {
            match LLVMGetTypeKind(ty.0) {
                llvm_sys::LLVMTypeKind::LLVMVectorTypeKind => {
                    let one = LLVMConstInt(LLVMGetElementType(ty.0), value as u64, 1);
                    let mut all = vec![one; LLVMGetVectorSize(ty.0) as usize];
                    V(LLVMConstVector(all.as_mut_ptr(), all.len() as u32))
                }
                _ => V(LLVMConstInt(ty.0, value as u64, 1)),
            }
        }
    }

    /// A constant i64.
    pub fn i64(&self, value: i64) -> V {
        self.const_int(self.int(64), value)
    }

    /// A constant i32.
    pub fn i32(&self, value: i64) -> V {
        self.const_int(self.int(32), value)
    }

    /// A floating-point constant; all lanes for a vector type.
    pub fn const_float(&self, ty: T, value: f64) -> V {
        // SAFETY: the type is a float or a vector of them.
        unsafe {
            match LLVMGetTypeKind(ty.0) {
                llvm_sys::LLVMTypeKind::LLVMVectorTypeKind => {
                    let one = LLVMConstReal(LLVMGetElementType(ty.0), value);
                    let mut all = vec![one; LLVMGetVectorSize(ty.0) as usize];
                    V(LLVMConstVector(all.as_mut_ptr(), all.len() as u32))
                }
                _ => V(LLVMConstReal(ty.0, value)),
            }
        }
    }

    /// Zero of any type.
    pub fn zero(&self, ty: T) -> V {
        // SAFETY: every first-class type has a null value.
        V(unsafe { LLVMConstNull(ty.0) })
    }

    /// `0, step, 2·step, …`
    pub fn iota(&self, element: T, lanes: u32, step: i64) -> V {
        let mut all: Vec<V> = (0..i64::from(lanes)).map(|k| self.const_int(element, k * step)).collect();
        // SAFETY: V is a plain wrapper of a value reference; all elements have one type.
        V(unsafe { LLVMConstVector(all.as_mut_ptr().cast(), lanes) })
    }

    // Blocks.

    /// A new block at the function's end.
    pub fn block(&self, name: &str) -> Block {
        let name = std::ffi::CString::new(name).unwrap_or_default();
        // SAFETY: the function is alive; the name is copied.
        Block(unsafe { LLVMAppendBasicBlockInContext(self.context_ref(), self.function, name.as_ptr()) })
    }

    /// Goes on at the end of a block.
    pub fn at(&self, block: Block) {
        // SAFETY: the block belongs to the function and is not null. inkwell's builder refuses to work unless
        // it was positioned through its own method.
        if let Some(block) = unsafe { BasicBlock::new(block.0) } {
            self.builder.position_at_end(block);
        }
    }

    /// The block that is being built.
    pub fn current(&self) -> Block {
        // SAFETY: the builder stands in a block.
        Block(unsafe { LLVMGetInsertBlock(self.raw()) })
    }

    /// Jumps.
    pub fn br(&self, to: Block) {
        // SAFETY: the block belongs to the function.
        unsafe { LLVMBuildBr(self.raw(), to.0) };
    }

    /// Jumps where an i1 says.
    pub fn cond_br(&self, condition: V, yes: Block, no: Block) {
        // SAFETY: the blocks belong to the function, the condition is an i1.
        unsafe { LLVMBuildCondBr(self.raw(), condition.0, yes.0, no.0) };
    }

    /// Returns.
    pub fn ret(&self, v: V) {
        // SAFETY: the value has the function's result type.
        unsafe { LLVMBuildRet(self.raw(), v.0) };
    }

    /// A value that depends on where the block was entered from.
    pub fn phi(&self, ty: T, incoming: &[(V, Block)]) -> V {
        // SAFETY: the builder stands at the start of a block.
        let phi = V(unsafe { LLVMBuildPhi(self.raw(), ty.0, UNNAMED) });
        self.add_incoming(phi, incoming);
        phi
    }

    /// Completes a [`Ir::phi`].
    pub fn add_incoming(&self, phi: V, incoming: &[(V, Block)]) {
        let mut values: Vec<LLVMValueRef> = incoming.iter().map(|i| i.0.0).collect();
        let mut blocks: Vec<LLVMBasicBlockRef> = incoming.iter().map(|i| i.1.0).collect();
        // SAFETY: both lists have the same length; values have the phi's type.
        unsafe { LLVMAddIncoming(phi.0, values.as_mut_ptr(), blocks.as_mut_ptr(), values.len() as u32) }
    }

    /// A stack slot.
    pub fn slot(&self, ty: T) -> V {
        // SAFETY: the slots' block ends in a branch, before which the builder is put for a moment.
        unsafe {
            let back = LLVMGetInsertBlock(self.raw());
            LLVMPositionBuilderBefore(self.raw(), LLVMGetBasicBlockTerminator(self.slots));
            let slot = LLVMBuildAlloca(self.raw(), ty.0, UNNAMED);
            LLVMPositionBuilderAtEnd(self.raw(), back);
            V(slot)
        }
    }

    // Memory.

    /// Loads; `align` in bytes.
    pub fn load(&self, ty: T, from: V, align: u32) -> V {
        // SAFETY: `from` is a pointer.
        unsafe {
            let load = LLVMBuildLoad2(self.raw(), ty.0, from.0, UNNAMED);
            LLVMSetAlignment(load, align);
            V(load)
        }
    }

    /// Loads from a slot, with its own alignment.
    pub fn get(&self, ty: T, slot: V) -> V {
        // SAFETY: `slot` is a stack slot of this type.
        V(unsafe { LLVMBuildLoad2(self.raw(), ty.0, slot.0, UNNAMED) })
    }

    /// Stores to a slot, with its own alignment.
    pub fn set(&self, slot: V, value: V) {
        // SAFETY: `slot` is a stack slot of the value's type.
        unsafe { LLVMBuildStore(self.raw(), value.0, slot.0) };
    }

    /// Stores; `align` in bytes. Returns the instruction.
    pub fn store(&self, value: V, to: V, align: u32) -> V {
        // SAFETY: `to` is a pointer.
        unsafe {
            let store = LLVMBuildStore(self.raw(), value.0, to.0);
            LLVMSetAlignment(store, align);
            V(store)
        }
    }

    /// Stores past the cache; whole vectors, aligned to `align` bytes.
    pub fn store_past_cache(&self, value: V, to: V, align: u32) -> V {
        let store = self.store(value, to, align);
        // SAFETY: the kind is looked up by name; its node is the number 1.
        unsafe {
            let name = c"nontemporal";
            let kind =
                LLVMGetMDKindIDInContext(self.context_ref(), name.as_ptr(), name.to_bytes().len() as u32);
            let mut one = [LLVMValueAsMetadata(self.i32(1).0)];
            let node = LLVMMDNodeInContext2(self.context_ref(), one.as_mut_ptr(), 1);
            LLVMSetMetadata(store.0, kind, LLVMMetadataAsValue(self.context_ref(), node));
        }
        store
    }

    /// Fetches the cache line at an address, which need not be one of any memory, into the second-level cache: lines at
    /// distances of a power of two share few places in the first one, and would be gone from it before they are used.
    pub fn prefetch(&self, at: V) {
        // To read, and data.
        let (read, locality, data) = (self.i32(0), self.i32(2), self.i32(1));
        self.intrinsic("llvm.prefetch", &[self.ptr()], &[at, read, locality, data]);
    }

    /// A pointer as a number.
    pub fn address(&self, pointer: V) -> V {
        // SAFETY: the value is a pointer.
        V(unsafe { LLVMBuildPtrToInt(self.raw(), pointer.0, self.int(64).0, UNNAMED) })
    }

    /// A pointer to an element; the index may be a vector.
    pub fn element(&self, ty: T, base: V, index: V) -> V {
        let mut indices = [index.0];
        // SAFETY: `base` points to elements of the type.
        V(unsafe { LLVMBuildGEP2(self.raw(), ty.0, base.0, indices.as_mut_ptr(), 1, UNNAMED) })
    }

    /// Makes scopes for this many disjoint memories.
    pub fn alias_scopes(&self, count: usize) -> Vec<AliasScope> {
        let context = self.context_ref();
        // SAFETY: all nodes belong to this context, which keeps them alive; strings are copied.
        unsafe {
            let text = |s: &str| LLVMMDStringInContext2(context, s.as_ptr().cast(), s.len());
            let node = |mut parts: Vec<_>| LLVMMDNodeInContext2(context, parts.as_mut_ptr(), parts.len());
            let domain = node(vec![text("kernel")]);
            let scopes: Vec<_> =
                (0..count).map(|k| node(vec![text(&format!("memory {k}")), domain])).collect();
            let list = |parts: Vec<_>| LLVMMetadataAsValue(context, node(parts));
            (0..count)
                .map(|k| AliasScope {
                    own: list(vec![scopes[k]]),
                    others: list((0..count).filter(|j| *j != k).map(|j| scopes[j]).collect()),
                })
                .collect()
        }
    }

    /// Says which memory a load, store or masked access touches.
    pub fn in_scope(&self, access: V, scope: AliasScope) {
        // SAFETY: the kinds are looked up by name; constants that folded to no instruction are left alone.
        unsafe {
            if LLVMIsAInstruction(access.0).is_null() {
                return;
            }
            let kind = |name: &CStr| {
                LLVMGetMDKindIDInContext(self.context_ref(), name.as_ptr(), name.to_bytes().len() as u32)
            };
            LLVMSetMetadata(access.0, kind(c"alias.scope"), scope.own);
            LLVMSetMetadata(access.0, kind(c"noalias"), scope.others);
        }
    }

    // Arithmetic.

    binary! {
        /// `a + b` of integers.
        add = LLVMBuildAdd;
        /// `a - b` of integers.
        sub = LLVMBuildSub;
        /// `a · b` of integers.
        mul = LLVMBuildMul;
        /// `a / b` of signed integers, towards zero.
        sdiv = LLVMBuildSDiv;
        /// `a / b` of unsigned integers.
        udiv = LLVMBuildUDiv;
        /// Remainder of signed integers, of the dividend's sign.
        srem = LLVMBuildSRem;
        /// Remainder of unsigned integers.
        urem = LLVMBuildURem;
        /// Bitwise and.
        and = LLVMBuildAnd;
        /// Bitwise or.
        or = LLVMBuildOr;
        /// Bitwise exclusive or.
        xor = LLVMBuildXor;
        /// Shift to the left.
        shl = LLVMBuildShl;
        /// Shift to the right, filling with zeros.
        lshr = LLVMBuildLShr;
        /// Shift to the right, filling with the sign.
        ashr = LLVMBuildAShr;
        /// `a + b` of floats.
        fadd = LLVMBuildFAdd;
        /// `a - b` of floats.
        fsub = LLVMBuildFSub;
        /// `a · b` of floats.
        fmul = LLVMBuildFMul;
        /// `a / b` of floats.
        fdiv = LLVMBuildFDiv;
    }

    convert! {
        /// Drops high bits.
        trunc = LLVMBuildTrunc;
        /// Widens with zeros.
        zext = LLVMBuildZExt;
        /// Widens with the sign.
        sext = LLVMBuildSExt;
        /// Narrows a float.
        fptrunc = LLVMBuildFPTrunc;
        /// Widens a float.
        fpext = LLVMBuildFPExt;
        /// Float to signed integer; poison out of range.
        fptosi = LLVMBuildFPToSI;
        /// Signed integer to float.
        sitofp = LLVMBuildSIToFP;
        /// Unsigned integer to float.
        uitofp = LLVMBuildUIToFP;
        /// The same bits.
        bitcast = LLVMBuildBitCast;
    }

    /// Compares integers.
    pub fn icmp(&self, predicate: LLVMIntPredicate, a: V, b: V) -> V {
        // SAFETY: both values have one integer type.
        V(unsafe { LLVMBuildICmp(self.raw(), predicate, a.0, b.0, UNNAMED) })
    }

    /// Compares floats.
    pub fn fcmp(&self, predicate: LLVMRealPredicate, a: V, b: V) -> V {
        // SAFETY: both values have one float type.
        V(unsafe { LLVMBuildFCmp(self.raw(), predicate, a.0, b.0, UNNAMED) })
    }

    /// `b` where `condition`, else `c`.
    pub fn select(&self, condition: V, b: V, c: V) -> V {
        // SAFETY: `b` and `c` have one type; the condition is an i1 or has as many lanes.
        V(unsafe { LLVMBuildSelect(self.raw(), condition.0, b.0, c.0, UNNAMED) })
    }

    /// One lane of a vector; the position may be known only at run time.
    pub fn extract(&self, vector: V, lane: V) -> V {
        // SAFETY: the value is a vector.
        V(unsafe { LLVMBuildExtractElement(self.raw(), vector.0, lane.0, UNNAMED) })
    }

    /// A scalar in all lanes.
    pub fn splat(&self, scalar: V, lanes: u32) -> V {
        let ty = self.vector(self.type_of(scalar), Some(lanes));
        // SAFETY: the mask is a constant vector of as many lanes.
        unsafe {
            let poison = LLVMGetPoison(ty.0);
            let one = LLVMBuildInsertElement(self.raw(), poison, scalar.0, self.i32(0).0, UNNAMED);
            let mask = self.zero(self.vector(self.int(32), Some(lanes)));
            V(LLVMBuildShuffleVector(self.raw(), one, poison, mask.0, UNNAMED))
        }
    }

    /// Lanes picked from two vectors, those of the second numbered behind those of the first.
    pub fn shuffle(&self, a: V, b: V, lanes: &[u32]) -> V {
        let mut mask: Vec<V> = lanes.iter().map(|k| self.i32(i64::from(*k))).collect();
        // SAFETY: V is a plain wrapper of a value reference; the mask is constant, the vectors have one type.
        unsafe {
            let mask = LLVMConstVector(mask.as_mut_ptr().cast(), lanes.len() as u32);
            V(LLVMBuildShuffleVector(self.raw(), a.0, b.0, mask, UNNAMED))
        }
    }

    /// Lanes `first..first + count` of a vector.
    pub fn part(&self, vector: V, first: u32, count: u32) -> V {
        let mask: Vec<u32> = (first..first + count).collect();
        self.shuffle(vector, vector, &mask)
    }

    /// Lanes of two vectors in turn, half as many of each, from lane `first` on.
    pub fn interleave(&self, a: V, b: V, first: u32) -> V {
        let lanes = self.lanes_of(a).unwrap_or(1);
        let lane = |k: u32| first + k / 2 + if k.is_multiple_of(2) { 0 } else { lanes };
        let mask: Vec<u32> = (0..lanes).map(lane).collect();
        self.shuffle(a, b, &mask)
    }

    /// Calls an intrinsic function; `types` are those that its name carries.
    pub fn intrinsic(&self, name: &str, types: &[T], args: &[V]) -> V {
        let mut types: Vec<LLVMTypeRef> = types.iter().map(|t| t.0).collect();
        let mut args: Vec<LLVMValueRef> = args.iter().map(|a| a.0).collect();
        // SAFETY: callers pass names of LLVM's reference with the types and arguments it lists.
        unsafe {
            let id = LLVMLookupIntrinsicID(name.as_ptr().cast(), name.len());
            let function =
                LLVMGetIntrinsicDeclaration(self.module_ref(), id, types.as_mut_ptr(), types.len());
            let ty = LLVMIntrinsicGetType(self.context_ref(), id, types.as_mut_ptr(), types.len());
            V(LLVMBuildCall2(self.raw(), ty, function, args.as_mut_ptr(), args.len() as u32, UNNAMED))
        }
    }

    /// An intrinsic function of operands and result of one type.
    pub fn intrinsic_like(&self, name: &str, args: &[V]) -> V {
        self.intrinsic(name, &[self.type_of(args[0])], args)
    }
}
