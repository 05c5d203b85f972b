//! Runs the inline functions: a small just-in-time compiler for one function over arrays, references to compare
//! with, and errors in units in the last place.

use std::fmt::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use inkwell::OptimizationLevel;
use inkwell::attributes::AttributeLoc;
use inkwell::builder::Builder;
use inkwell::context::Context;
use inkwell::execution_engine::ExecutionEngine;
use inkwell::module::Module;
use inkwell::passes::PassBuilderOptions;
use inkwell::targets::{CodeModel, InitializationConfig, RelocMode, Target, TargetMachine};
use inkwell::types::{BasicType, BasicTypeEnum};
use inkwell::values::{BasicValueEnum, PointerValue};
use loafc_codegen::cpu::math::Math;
use loafc_codegen::cpu::target::host;
use loafc_ir::interp::special;
use loafc_ir::nest::{BinaryOp, UnaryOp};

/// Width of the floats that a kernel works on.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Lane {
    F32,
    F64,
}

/// The function of a kernel.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Function {
    Unary(UnaryOp),
    Binary(BinaryOp),
}

impl Function {
    pub fn name(self) -> String {
        match self {
            Function::Unary(op) => format!("{op:?}"),
            Function::Binary(op) => format!("{op:?}"),
        }
    }
}

/// All functions whose error is measured.
pub fn measured_functions() -> Vec<Function> {
    use UnaryOp::*;
    let unary = [
        Exp, Exp2, Expm1, Log, Log2, Log10, Log1p, Sin, Cos, Tan, Asin, Acos, Atan, Sinh, Cosh, Tanh, Asinh,
        Acosh, Atanh, Erf, Erfc, Erfinv, Sigmoid, Rsqrt, Lgamma, Digamma,
    ];
    let binary = [BinaryOp::Pow, BinaryOp::Atan2, BinaryOp::Hypot, BinaryOp::Fmod];
    unary.map(Function::Unary).into_iter().chain(binary.map(Function::Binary)).collect()
}

type Entry = unsafe extern "C" fn(*const u8, *const u8, *mut u8, i64);

/// A function applied to arrays. Owns all that its machine code needs.
pub struct Kernel {
    entry: Entry,
    lanes: usize,
    lane: Lane,
    assembly: String,
    // Freed before the context that they live in.
    _engine: ExecutionEngine<'static>,
}

impl Kernel {
    /// Compiles a function for vectors of this many lanes; one lane is a scalar.
    pub fn compile(function: Function, lane: Lane, lanes: usize) -> Kernel {
        Target::initialize_native(&InitializationConfig::default()).expect("a native target");
        // Contexts are few and small here, and leaking them lets a kernel move freely.
        let context: &'static Context = Box::leak(Box::new(Context::create()));
        let module = context.create_module("math");
        let builder = context.create_builder();
        emit_loop(context, &module, &builder, function, lane, lanes);
        module.verify().unwrap_or_else(|e| panic!("{function:?}: {}", e.to_string()));
        let machine = host_machine();
        let options = PassBuilderOptions::create();
        module
            .run_passes(
                "function(early-cse,instcombine<no-verify-fixpoint>,loop-mssa(licm))",
                &machine,
                options,
            )
            .expect("passes");
        let assembly =
            machine.write_to_memory_buffer(&module, inkwell::targets::FileType::Assembly).expect("assembly");
        let assembly = String::from_utf8_lossy(assembly.as_slice()).into_owned();
        let engine = module.create_jit_execution_engine(OptimizationLevel::Default).expect("an engine");
        let address = engine.get_function_address("apply").expect("the function");
        // SAFETY: `emit_loop` gave the function of this name this signature.
        let entry = unsafe { std::mem::transmute::<usize, Entry>(address) };
        Kernel { entry, lanes, lane, assembly, _engine: engine }
    }

    pub fn assembly(&self) -> &str {
        &self.assembly
    }

    /// Applies it to f32 arrays of equal length; `b` is not looked at by functions of one operand.
    pub fn apply_f32(&self, a: &[f32], b: &[f32], out: &mut [f32]) {
        assert_eq!(self.lane, Lane::F32);
        assert!(a.len() == b.len() && a.len() == out.len() && a.len().is_multiple_of(self.lanes));
        // SAFETY: all three have this many elements, a multiple of the vectors' length.
        unsafe { (self.entry)(a.as_ptr().cast(), b.as_ptr().cast(), out.as_mut_ptr().cast(), a.len() as i64) }
    }

    /// As [`Kernel::apply_f32`].
    pub fn apply_f64(&self, a: &[f64], b: &[f64], out: &mut [f64]) {
        assert_eq!(self.lane, Lane::F64);
        assert!(a.len() == b.len() && a.len() == out.len() && a.len().is_multiple_of(self.lanes));
        // SAFETY: all three have this many elements, a multiple of the vectors' length.
        unsafe { (self.entry)(a.as_ptr().cast(), b.as_ptr().cast(), out.as_mut_ptr().cast(), a.len() as i64) }
    }
}

fn host_machine() -> TargetMachine {
    let triple = TargetMachine::get_default_triple();
    Target::from_triple(&triple)
        .expect("the host's target")
        .create_target_machine(
            &triple,
            &TargetMachine::get_host_cpu_name().to_string(),
            &TargetMachine::get_host_cpu_features().to_string(),
            OptimizationLevel::Default,
            RelocMode::PIC,
            CodeModel::Default,
        )
        .expect("a machine")
}

/// `for i in (0..n).step_by(lanes) { out[i..] = f(a[i..], b[i..]) }`
fn emit_loop<'ctx>(
    context: &'ctx Context,
    module: &Module<'ctx>,
    builder: &Builder<'ctx>,
    function: Function,
    lane: Lane,
    lanes: usize,
) {
    let pointer = context.ptr_type(Default::default());
    let count = context.i64_type();
    let signature =
        context.void_type().fn_type(&[pointer.into(), pointer.into(), pointer.into(), count.into()], false);
    let apply = module.add_function("apply", signature, None);
    for (key, value) in [
        ("target-cpu", TargetMachine::get_host_cpu_name().to_string()),
        ("target-features", TargetMachine::get_host_cpu_features().to_string()),
        ("prefer-vector-width", "512".to_string()),
        ("min-legal-vector-width", "512".to_string()),
    ] {
        apply.add_attribute(AttributeLoc::Function, context.create_string_attribute(key, &value));
    }
    let element: BasicTypeEnum = match lane {
        Lane::F32 => context.f32_type().into(),
        Lane::F64 => context.f64_type().into(),
    };
    let vector: BasicTypeEnum = match (element, lanes) {
        (_, 1) => element,
        (BasicTypeEnum::FloatType(t), _) => t.vec_type(lanes as u32).into(),
        _ => unreachable!("elements are floats"),
    };
    let argument = |k: u32| apply.get_nth_param(k).expect("a parameter");
    let entry = context.append_basic_block(apply, "entry");
    let body = context.append_basic_block(apply, "body");
    let done = context.append_basic_block(apply, "done");
    builder.position_at_end(entry);
    builder.build_unconditional_branch(body).expect("a branch");
    builder.position_at_end(body);
    let phi = builder.build_phi(count, "i").expect("a phi");
    let i = phi.as_basic_value().into_int_value();
    let address = |base: BasicValueEnum<'ctx>| -> PointerValue<'ctx> {
        // SAFETY: i is less than the arrays' length.
        unsafe { builder.build_gep(element, base.into_pointer_value(), &[i], "") }.expect("an address")
    };
    let load = |base: BasicValueEnum<'ctx>| {
        let value = builder.build_load(vector, address(base), "").expect("a load");
        align(value, element);
        value
    };
    let math = Math::new(builder, module).for_vectors_of(host().vector_bits);
    let value = match function {
        Function::Unary(op) => math.unary(op, load(argument(0))),
        Function::Binary(op) => math.binary(op, load(argument(0)), load(argument(1))),
    }
    .expect("a value");
    let value = truth_as_float(context, builder, value, vector);
    let store = builder.build_store(address(argument(2)), value).expect("a store");
    store.set_alignment(4).expect("an alignment");
    let step = count.const_int(lanes as u64, false);
    let next = builder.build_int_add(i, step, "").expect("a sum");
    let end = argument(3).into_int_value();
    let more = builder.build_int_compare(inkwell::IntPredicate::SLT, next, end, "").expect("a comparison");
    let last = builder.get_insert_block().expect("a block");
    builder.build_conditional_branch(more, body, done).expect("a branch");
    phi.add_incoming(&[(&count.const_zero(), entry), (&next, last)]);
    builder.position_at_end(done);
    builder.build_return(None).expect("a return");
}

fn align(value: BasicValueEnum<'_>, element: BasicTypeEnum<'_>) {
    use inkwell::values::BasicValue;
    let bytes = if element.is_float_type() { 4 } else { 1 };
    value.as_instruction_value().expect("a load").set_alignment(bytes).expect("an alignment");
}

/// Truth values as 0 and 1, so that one signature serves all functions.
fn truth_as_float<'ctx>(
    context: &'ctx Context,
    builder: &Builder<'ctx>,
    value: BasicValueEnum<'ctx>,
    to: BasicTypeEnum<'ctx>,
) -> BasicValueEnum<'ctx> {
    match (value, to) {
        (BasicValueEnum::IntValue(v), BasicTypeEnum::FloatType(t)) => {
            builder.build_unsigned_int_to_float(v, t, "").expect("a conversion").into()
        }
        (BasicValueEnum::VectorValue(v), BasicTypeEnum::VectorType(t))
            if v.get_type().get_element_type() == context.bool_type().as_basic_type_enum() =>
        {
            builder.build_unsigned_int_to_float(v, t, "").expect("a conversion").into()
        }
        _ => value,
    }
}

unsafe extern "C" {
    safe fn erf(x: f64) -> f64;
    safe fn erfc(x: f64) -> f64;
    safe fn lgamma(x: f64) -> f64;
}

/// The f64 function that results in f32 are compared with; none where only the f64 kernel can serve.
pub fn reference(op: UnaryOp) -> Option<fn(f64) -> f64> {
    Some(match op {
        UnaryOp::Exp => f64::exp,
        UnaryOp::Exp2 => f64::exp2,
        UnaryOp::Expm1 => f64::exp_m1,
        UnaryOp::Log => f64::ln,
        UnaryOp::Log2 => f64::log2,
        UnaryOp::Log10 => f64::log10,
        UnaryOp::Log1p => f64::ln_1p,
        UnaryOp::Sin => f64::sin,
        UnaryOp::Cos => f64::cos,
        UnaryOp::Tan => f64::tan,
        UnaryOp::Asin => f64::asin,
        UnaryOp::Acos => f64::acos,
        UnaryOp::Atan => f64::atan,
        UnaryOp::Sinh => f64::sinh,
        UnaryOp::Cosh => f64::cosh,
        UnaryOp::Tanh => f64::tanh,
        UnaryOp::Asinh => |x| x.abs().asinh_precise().copysign(x),
        UnaryOp::Acosh => {
            |x| if x < 1.0 { f64::NAN } else { ((x - 1.0) + ((x - 1.0) * (x + 1.0)).sqrt()).ln_1p() }
        }
        UnaryOp::Atanh => |x| (0.5 * (2.0 * x.abs() / (1.0 - x.abs())).ln_1p()).copysign(x),
        UnaryOp::Erf => |x| erf(x),
        UnaryOp::Erfc => |x| erfc(x),
        UnaryOp::Sigmoid => |x| 1.0 / (1.0 + (-x).exp()),
        UnaryOp::Rsqrt => |x| 1.0 / x.sqrt(),
        UnaryOp::Lgamma => |x| lgamma(x),
        // Of the interpreter, which has nothing in common with the kernels.
        UnaryOp::Digamma => special::digamma,
        UnaryOp::Erfinv => special::erfinv,
        _ => return None,
    })
}

trait Precise {
    fn asinh_precise(self) -> f64;
}

impl Precise for f64 {
    /// ln(x + √(x²+1)) of x ≥ 0, precise for small x too.
    fn asinh_precise(self) -> f64 {
        (self + self * self / (1.0 + (1.0 + self * self).sqrt())).ln_1p()
    }
}

/// As [`reference`], for two operands.
pub fn binary_reference(op: BinaryOp) -> fn(f64, f64) -> f64 {
    match op {
        BinaryOp::Pow => f64::powf,
        BinaryOp::Atan2 => f64::atan2,
        BinaryOp::Hypot => f64::hypot,
        BinaryOp::Fmod => |a, b| a % b,
        _ => panic!("no reference for {op:?}"),
    }
}

/// The distance of one f32 from an exact value, in units in the last place of that.
pub fn ulps_f32(got: f32, exact: f64) -> f64 {
    let rounded = exact as f32;
    if got == rounded || (got.is_nan() && exact.is_nan()) {
        return if exact.is_finite() && rounded.is_finite() {
            unit_error(f64::from(got) - exact, exact)
        } else {
            0.0
        };
    }
    if !got.is_finite() || !exact.is_finite() {
        // An overflow one unit early is an error of one unit.
        let largest = f64::from(f32::MAX);
        if got.is_infinite() && exact.abs() > largest * (1.0 - 1e-7) {
            return 1.0;
        }
        return f64::INFINITY;
    }
    unit_error(f64::from(got) - exact, exact)
}

fn unit_error(difference: f64, exact: f64) -> f64 {
    let exponent = if exact == 0.0 { -126 } else { exponent_of(exact).max(-126) };
    difference.abs() / 2f64.powi(exponent - 23)
}

fn exponent_of(x: f64) -> i32 {
    ((x.to_bits() >> 52) & 0x7ff) as i32 - 1023
}

/// The distance of an f64 from `high + low`, in units in the last place of that, or of `least` where that is larger.
pub fn ulps_f64(got: f64, high: f64, low: f64, least: f64) -> f64 {
    if !got.is_finite() {
        return f64::INFINITY;
    }
    let exponent = exponent_of(high.abs().max(least)).max(-1022);
    let difference = ((got - high) - low).abs();
    // In two steps: the unit itself may be denormal.
    difference * 2f64.powi(-exponent / 2) * 2f64.powi(52 - (exponent - exponent / 2))
}

/// The size of a result whose units errors are measured in, where the result itself is smaller: next to zeros whose places
/// no float tells exactly, a function is the difference of two terms. PyTorch's errors are larger there.
fn least_scale(function: &str, x: f64) -> f64 {
    match function {
        "Lgamma" => 2f64.powi(-14),
        // ln of 1 - x is about what the cotangent is subtracted from.
        "Digamma" if x < 0.0 => (-x).ln_1p(),
        "Digamma" => 2f64.powi(-14),
        _ => 0.0,
    }
}

/// A reference point of an f64 function.
pub struct Point {
    pub function: String,
    pub operands: [f64; 2],
    pub high: f64,
    pub low: f64,
}

/// Reads lines of `function x [y] high low`.
pub fn parse_points(text: &str) -> Vec<Point> {
    text.lines().map(parse_point).collect()
}

fn parse_point(line: &str) -> Point {
    let mut words = line.split(' ');
    let function = words.next().expect("a name").to_string();
    let numbers: Vec<f64> =
        words.map(|w| f64::from_bits(u64::from_str_radix(w, 16).expect("a hexadecimal number"))).collect();
    let [x, y] = if numbers.len() == 4 { [numbers[0], numbers[1]] } else { [numbers[0], 0.0] };
    Point { function, operands: [x, y], high: numbers[numbers.len() - 2], low: numbers[numbers.len() - 1] }
}

/// The largest error over some inputs.
#[derive(Clone, Debug, Default)]
pub struct Worst {
    pub ulps: f64,
    pub at: Vec<f64>,
    pub got: f64,
    pub count: u64,
}

impl Worst {
    pub fn add(&mut self, ulps: f64, at: &[f64], got: f64) {
        self.count += 1;
        if ulps > self.ulps || ulps.is_nan() {
            *self = Worst { ulps, at: at.to_vec(), got, count: self.count };
        }
    }

    /// The larger of two errors, over both's inputs; of equal ones that of the smaller input, whichever came first.
    pub fn merge(&mut self, other: Worst) {
        let count = self.count + other.count;
        let place = |w: &Worst| w.at.first().map_or(u64::MAX, |x| x.to_bits());
        if other.ulps > self.ulps || (other.ulps == self.ulps && place(&other) < place(self)) {
            *self = other;
        }
        self.count = count;
    }

    pub fn describe(&self) -> String {
        let mut text = String::new();
        let _ =
            write!(text, "{:.3} ulp at {:?} (got {:e}), {} inputs", self.ulps, self.at, self.got, self.count);
        text
    }
}

/// The error of an f64 kernel at the points of its function.
pub fn worst_f64(function: Function, points: &[Point], lanes: usize) -> Worst {
    let kernel = Kernel::compile(function, Lane::F64, lanes);
    let name = function.name();
    let mine: Vec<&Point> = points.iter().filter(|p| p.function == name).collect();
    let padded = mine.len().next_multiple_of(lanes);
    let column =
        |k: usize| (0..padded).map(|i| mine.get(i).map_or(1.0, |p| p.operands[k])).collect::<Vec<_>>();
    let (a, b) = (column(0), column(1));
    let mut out = vec![0.0; padded];
    if padded > 0 {
        kernel.apply_f64(&a, &b, &mut out);
    }
    let mut worst = Worst::default();
    for (point, &got) in mine.iter().zip(&out) {
        let least = least_scale(&name, point.operands[0]);
        worst.add(ulps_f64(got, point.high, point.low, least), &point.operands, got);
    }
    worst
}

/// The error of an f32 kernel of one operand over every `stride`-th bit pattern.
pub fn worst_f32(op: UnaryOp, stride: usize, lanes: usize) -> Worst {
    let kernel = Kernel::compile(Function::Unary(op), Lane::F32, lanes);
    let wide = reference(op).is_none().then(|| Kernel::compile(Function::Unary(op), Lane::F64, 8));
    let mut worst = Worst::default();
    let mut inputs = vec![0f32; 4096];
    let mut out = vec![0f32; 4096];
    let mut exact = vec![0f64; 4096];
    let mut bits = 0u64;
    while bits < 1 << 32 {
        for x in &mut inputs {
            *x = f32::from_bits(bits.min(u64::from(u32::MAX)) as u32);
            bits += stride as u64;
        }
        kernel.apply_f32(&inputs, &inputs, &mut out);
        let doubles: Vec<f64> = inputs.iter().map(|&x| f64::from(x)).collect();
        match (reference(op), &wide) {
            (Some(f), _) => exact.iter_mut().zip(&doubles).for_each(|(e, &x)| *e = f(x)),
            (None, Some(kernel)) => kernel.apply_f64(&doubles, &doubles, &mut exact),
            (None, None) => unreachable!("one of them is there"),
        }
        for k in 0..inputs.len() {
            worst.add(ulps_f32(out[k], exact[k]), &[doubles[k]], out[k].into());
        }
    }
    worst
}

/// The error of an f32 kernel of the gamma function's kin where it has poles and zeros: next to whole numbers from -40 to
/// 6 at distances of every size, and anywhere between them.
pub fn worst_f32_near_poles(op: UnaryOp, count: usize) -> Worst {
    let kernel = Kernel::compile(Function::Unary(op), Lane::F32, 16);
    let exact = reference(op).expect("a reference for a function with poles");
    let mut random = Random(3);
    let mut worst = Worst::default();
    let (mut inputs, mut out) = (vec![0f32; BLOCK], vec![0f32; BLOCK]);
    for _ in 0..count.div_ceil(BLOCK) {
        for (k, x) in inputs.iter_mut().enumerate() {
            let whole = (random.next() % 47) as f64 - 40.0;
            let fraction = random.next() as f64 / u64::MAX as f64;
            let distance = if k % 2 == 0 { fraction } else { (-16.0 * fraction).exp() };
            *x = (whole + if random.next().is_multiple_of(2) { distance } else { -distance }) as f32;
        }
        kernel.apply_f32(&inputs, &inputs, &mut out);
        for (&x, &got) in inputs.iter().zip(&out) {
            worst.add(ulps_f32(got, exact(x.into())), &[x.into()], got.into());
        }
    }
    worst
}

/// Inputs that a thread takes at once, and evaluates at once.
const PATTERNS_AT_ONCE: u64 = 1 << 20;
const BLOCK: usize = 4096;

/// The error of an f32 kernel of one operand over all 2³² bit patterns, on this many threads.
///
/// The reference is the f64 kernel, which is fast enough for that and itself compared with others elsewhere; whatever
/// would be the largest error is measured again with [`reference`]. A function that always agrees with its f64 kernel is
/// that kernel: then all inputs are measured with the other reference, where there is one.
pub fn worst_f32_everywhere(op: UnaryOp, threads: usize) -> Worst {
    let worst = sweep(op, threads, false);
    if worst.ulps == 0.0 { sweep(op, threads, true) } else { worst }
}

fn sweep(op: UnaryOp, threads: usize, every: bool) -> Worst {
    let next = AtomicU64::new(0);
    let found = Mutex::new(Worst::default());
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                let mut sweep = Sweep::new(op, every);
                loop {
                    let begin = next.fetch_add(PATTERNS_AT_ONCE, Ordering::Relaxed);
                    if begin >= 1 << 32 {
                        break;
                    }
                    for first in (begin..begin + PATTERNS_AT_ONCE).step_by(BLOCK) {
                        sweep.block(first as u32);
                    }
                }
                found.lock().expect("no thread panics with it").merge(sweep.worst);
            });
        }
    });
    found.into_inner().expect("all threads have ended")
}

/// One thread's part of a sweep over all inputs.
struct Sweep {
    /// Whether results that agree with the f64 kernel are measured too.
    every: bool,
    single: Kernel,
    double: Kernel,
    precise: Option<fn(f64) -> f64>,
    inputs: Vec<f32>,
    got: Vec<f32>,
    wide: Vec<f64>,
    exact: Vec<f64>,
    worst: Worst,
}

impl Sweep {
    fn new(op: UnaryOp, every: bool) -> Sweep {
        Sweep {
            every,
            single: Kernel::compile(Function::Unary(op), Lane::F32, 16),
            double: Kernel::compile(Function::Unary(op), Lane::F64, 8),
            precise: reference(op),
            inputs: vec![0.0; BLOCK],
            got: vec![0.0; BLOCK],
            wide: vec![0.0; BLOCK],
            exact: vec![0.0; BLOCK],
            worst: Worst::default(),
        }
    }

    /// Measures a block of bit patterns from `first` on.
    fn block(&mut self, first: u32) {
        for (k, (x, wide)) in self.inputs.iter_mut().zip(&mut self.wide).enumerate() {
            *x = f32::from_bits(first + k as u32);
            *wide = f64::from(*x);
        }
        self.single.apply_f32(&self.inputs, &self.inputs, &mut self.got);
        self.double.apply_f64(&self.wide, &self.wide, &mut self.exact);
        self.worst.count += BLOCK as u64;
        for k in 0..BLOCK {
            // The nearest float is no further off than half a unit: most inputs end here.
            if self.every || self.got[k] != self.exact[k] as f32 {
                self.measure(k);
            }
        }
    }

    fn measure(&mut self, k: usize) {
        let (got, x) = (self.got[k], self.wide[k]);
        let error = |exact| ulps_f32(got, exact);
        if !self.every && error(self.exact[k]) <= self.worst.ulps {
            return;
        }
        let ulps = error(self.precise.map_or(self.exact[k], |f| f(x)));
        if ulps > self.worst.ulps {
            self.worst = Worst { ulps, at: vec![x], got: got.into(), count: self.worst.count };
        }
    }
}

/// The error of an f32 kernel of two operands over pseudo-random bit patterns, a half of them of like magnitude.
pub fn worst_binary_f32(op: BinaryOp, count: usize, lanes: usize) -> Worst {
    let kernel = Kernel::compile(Function::Binary(op), Lane::F32, lanes);
    let exact = binary_reference(op);
    let mut random = Random(1);
    let mut worst = Worst::default();
    let (mut a, mut b, mut out) = (vec![0f32; 4096], vec![0f32; 4096], vec![0f32; 4096]);
    for _ in 0..count.div_ceil(4096) {
        for k in 0..4096 {
            let plain = k % 2 == 0;
            a[k] = if plain { random.near() } else { f32::from_bits(random.next() as u32) };
            b[k] = if plain { random.near() } else { f32::from_bits(random.next() as u32) };
        }
        kernel.apply_f32(&a, &b, &mut out);
        for k in 0..4096 {
            let (x, y) = (f64::from(a[k]), f64::from(b[k]));
            worst.add(ulps_f32(out[k], exact(x, y)), &[x, y], out[k].into());
        }
    }
    worst
}

/// A small pseudo-random generator (SplitMix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Between -16 and 16.
    pub fn near(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 19) as f32 - 16.0
    }
}
