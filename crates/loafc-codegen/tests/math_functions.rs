//! The inline functions: their error over all exponents, their values at special operands, and that scalars and
//! vectors of every length give the same bits.

#[path = "math/support.rs"]
#[allow(dead_code)]
mod support;

use inkwell::context::Context;
use loafc_codegen::cpu::math::{Math, MathError, binary_branches, branches};
use loafc_ir::nest::{BinaryOp, UnaryOp};
use support::{Function, Kernel, Lane, Random, measured_functions, parse_points};

const POINTS: &str = include_str!("math/points.txt");

/// No error is larger than this, in units in the last place.
const LIMIT: f64 = 2.0;

fn check_f32(stride: usize) {
    for function in measured_functions() {
        let worst = match function {
            Function::Unary(op) => support::worst_f32(op, stride, 16),
            Function::Binary(op) => support::worst_binary_f32(op, (1usize << 32) / stride, 16),
        };
        assert!(worst.ulps <= LIMIT, "{}: {}", function.name(), worst.describe());
    }
}

#[test]
fn f32_functions_are_right_to_two_ulp_over_a_sample_of_all_bit_patterns() {
    check_f32(20_011);
}

#[test]
fn the_gamma_functions_kin_are_right_to_two_ulp_next_to_poles_and_zeros() {
    for op in [UnaryOp::Lgamma, UnaryOp::Digamma] {
        let worst = support::worst_f32_near_poles(op, 1 << 18);
        assert!(worst.ulps <= LIMIT, "{op:?}: {}", worst.describe());
    }
}

#[test]
#[ignore = "takes many minutes"]
fn f32_functions_are_right_to_two_ulp_over_all_bit_patterns() {
    for function in measured_functions() {
        let Function::Unary(op) = function else { continue };
        let worst = support::worst_f32_everywhere(op, 2);
        assert_eq!(worst.count, 1 << 32, "{} skipped inputs", function.name());
        assert!(worst.ulps <= LIMIT, "{}: {}", function.name(), worst.describe());
    }
}

#[test]
fn f64_functions_are_right_to_two_ulp_at_reference_points() {
    let points = parse_points(POINTS);
    for function in measured_functions() {
        let worst = support::worst_f64(function, &points, 8);
        assert!(worst.count > 0, "{} has no points", function.name());
        assert!(worst.ulps <= LIMIT, "{}: {}", function.name(), worst.describe());
    }
}

/// All functions of floats that this module emits.
fn all_functions() -> Vec<Function> {
    let mut functions = measured_functions();
    functions.extend(
        [
            UnaryOp::Neg,
            UnaryOp::Abs,
            UnaryOp::Sign,
            UnaryOp::Sqrt,
            UnaryOp::Reciprocal,
            UnaryOp::Floor,
            UnaryOp::Ceil,
            UnaryOp::Trunc,
            UnaryOp::Round,
            UnaryOp::IsNan,
            UnaryOp::IsInf,
            UnaryOp::SignBit,
        ]
        .map(Function::Unary),
    );
    functions.extend(
        [
            BinaryOp::Add,
            BinaryOp::Sub,
            BinaryOp::Mul,
            BinaryOp::Div,
            BinaryOp::TruncDiv,
            BinaryOp::FloorDiv,
            BinaryOp::Remainder,
            BinaryOp::Copysign,
            BinaryOp::Nextafter,
            BinaryOp::Max,
            BinaryOp::Min,
            BinaryOp::Fmax,
            BinaryOp::Fmin,
            BinaryOp::Lt,
            BinaryOp::Ne,
        ]
        .map(Function::Binary),
    );
    functions
}

#[test]
fn scalars_and_vectors_of_any_length_give_the_same_bits() {
    let mut random = Random(7);
    let mut operand = |k: usize| match k % 3 {
        0 => f32::from_bits(random.next() as u32),
        _ => random.near(),
    };
    let a: Vec<f32> = (0..96).map(&mut operand).collect();
    let b: Vec<f32> = (0..96).map(&mut operand).collect();
    for function in all_functions() {
        let run = |lanes: usize| {
            let mut out = vec![0.0; a.len()];
            Kernel::compile(function, Lane::F32, lanes).apply_f32(&a, &b, &mut out);
            out.iter().map(|x| if x.is_nan() { 0x7fc0_0000 } else { x.to_bits() }).collect::<Vec<_>>()
        };
        let scalar = run(1);
        for lanes in [3, 4, 8, 16, 32] {
            assert_eq!(run(lanes), scalar, "{} with {lanes} lanes", function.name());
        }
    }
}

#[test]
fn no_function_calls_a_library() {
    for function in all_functions() {
        for lane in [Lane::F32, Lane::F64] {
            let kernel = Kernel::compile(function, lane, 8);
            let calls = kernel.assembly().lines().filter(|l| l.trim_start().starts_with("call"));
            for callee in calls.filter_map(|call| call.split_whitespace().last()) {
                let defined = kernel.assembly().contains(&format!("\n{callee}:"));
                assert!(defined, "{} in {lane:?} calls {callee}", function.name());
            }
        }
    }
}

#[test]
fn functions_that_say_they_do_not_branch_emit_one_block() {
    for function in all_functions() {
        let branches = match function {
            Function::Unary(op) => branches(op),
            Function::Binary(op) => binary_branches(op),
        };
        let context = Context::create();
        let module = context.create_module("blocks");
        let builder = context.create_builder();
        let x = context.f64_type();
        let f = module.add_function("f", x.fn_type(&[x.into(), x.into()], false), None);
        builder.position_at_end(context.append_basic_block(f, "entry"));
        let argument = |k| f.get_nth_param(k).unwrap();
        let math = Math::new(&builder, &module);
        match function {
            Function::Unary(op) => math.unary(op, argument(0)),
            Function::Binary(op) => math.binary(op, argument(0), argument(1)),
        }
        .unwrap();
        assert_eq!(f.count_basic_blocks() > 1, branches, "{}", function.name());
    }
}

const INF: f64 = f64::INFINITY;
const NAN: f64 = f64::NAN;
const TINY: f64 = 5e-324;

fn same(got: f64, expected: f64, exactly: bool) -> bool {
    if expected.is_nan() {
        return got.is_nan();
    }
    if exactly || expected == 0.0 || expected.is_infinite() {
        return got.to_bits() == expected.to_bits();
    }
    (got - expected).abs() <= expected.abs() * 4e-16 + TINY
}

/// Runs (operand, result) pairs in f64, and in f32 where both are the same there.
fn check_unary(op: UnaryOp, cases: &[(f64, f64)]) {
    let double = Kernel::compile(Function::Unary(op), Lane::F64, 1);
    let single = Kernel::compile(Function::Unary(op), Lane::F32, 1);
    for &(x, expected) in cases {
        let mut out = [0.0];
        double.apply_f64(&[x], &[x], &mut out);
        assert!(same(out[0], expected, false), "{op:?}({x:e}) = {:e}, not {expected:e}", out[0]);
        let narrow = x as f32;
        if f64::from(narrow) != x && !x.is_nan() {
            continue;
        }
        let mut out = [0f32];
        single.apply_f32(&[narrow], &[narrow], &mut out);
        let near = same(out[0].into(), f64::from(expected as f32), false)
            || (out[0] - expected as f32).abs() <= (expected as f32).abs() * 2.4e-7;
        assert!(near, "{op:?}({narrow:e}) in f32 = {:e}, not {expected:e}", out[0]);
    }
}

fn check_binary(op: BinaryOp, cases: &[(f64, f64, f64)]) {
    let double = Kernel::compile(Function::Binary(op), Lane::F64, 1);
    let single = Kernel::compile(Function::Binary(op), Lane::F32, 1);
    for &(x, y, expected) in cases {
        let mut out = [0.0];
        double.apply_f64(&[x], &[y], &mut out);
        assert!(same(out[0], expected, false), "{op:?}({x:e}, {y:e}) = {:e}, not {expected:e}", out[0]);
        let mut out = [0f32];
        single.apply_f32(&[x as f32], &[y as f32], &mut out);
        let near = same(out[0].into(), f64::from(expected as f32), false)
            || (out[0] - expected as f32).abs() <= (expected as f32).abs() * 2.4e-7;
        assert!(near, "{op:?}({x:e}, {y:e}) in f32 = {:e}, not {expected:e}", out[0]);
    }
}

#[test]
fn exponentials_end_in_zero_and_infinity() {
    check_unary(
        UnaryOp::Exp,
        &[
            (0.0, 1.0),
            (-0.0, 1.0),
            (INF, INF),
            (-INF, 0.0),
            (NAN, NAN),
            (1000.0, INF),
            (-1000.0, 0.0),
            (-745.0, TINY),
        ],
    );
    check_unary(
        UnaryOp::Exp2,
        &[(0.0, 1.0), (10.0, 1024.0), (INF, INF), (-INF, 0.0), (NAN, NAN), (-1074.0, TINY)],
    );
    check_unary(
        UnaryOp::Expm1,
        &[
            (0.0, 0.0),
            (-0.0, -0.0),
            (INF, INF),
            (-INF, -1.0),
            (NAN, NAN),
            (-1000.0, -1.0),
            (1000.0, INF),
            (TINY, TINY),
        ],
    );
    check_unary(
        UnaryOp::Sigmoid,
        &[(0.0, 0.5), (INF, 1.0), (-INF, 0.0), (NAN, NAN), (-1000.0, 0.0), (1000.0, 1.0), (-745.0, TINY)],
    );
}

#[test]
fn logarithms_of_zero_and_negatives_are_infinite_and_nan() {
    for op in [UnaryOp::Log, UnaryOp::Log2, UnaryOp::Log10] {
        check_unary(
            op,
            &[(0.0, -INF), (-0.0, -INF), (1.0, 0.0), (-1.0, NAN), (INF, INF), (-INF, NAN), (NAN, NAN)],
        );
    }
    check_unary(UnaryOp::Log, &[(TINY, -744.4400719213812), (f64::MAX, 709.782712893384)]);
    check_unary(UnaryOp::Log2, &[(TINY, -1074.0), (8.0, 3.0)]);
    check_unary(UnaryOp::Log10, &[(1000.0, 3.0), (1e15, 15.0)]);
    check_unary(
        UnaryOp::Log1p,
        &[
            (0.0, 0.0),
            (-0.0, -0.0),
            (-1.0, -INF),
            (-2.0, NAN),
            (INF, INF),
            (NAN, NAN),
            (-INF, NAN),
            (TINY, TINY),
        ],
    );
    check_unary(UnaryOp::Log1p, &[(f64::MAX, 709.782712893384), (-TINY, -TINY)]);
}

#[test]
fn trigonometric_functions_keep_signed_zeros_and_refuse_infinities() {
    for op in [UnaryOp::Sin, UnaryOp::Tan] {
        check_unary(op, &[(0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN), (NAN, NAN), (TINY, TINY)]);
    }
    check_unary(UnaryOp::Cos, &[(0.0, 1.0), (-0.0, 1.0), (INF, NAN), (-INF, NAN), (NAN, NAN)]);
    check_unary(UnaryOp::Sin, &[(1e22, -0.8522008497671888), (f64::MAX, 0.004961954789184062)]);
    check_unary(UnaryOp::Cos, &[(1e22, 0.5232147853951389), (f64::MAX, -0.9999876894265599)]);
}

#[test]
fn inverse_trigonometric_functions_refuse_what_lies_outside() {
    use std::f64::consts::{FRAC_PI_2, FRAC_PI_4, PI};
    check_unary(
        UnaryOp::Asin,
        &[(0.0, 0.0), (-0.0, -0.0), (1.0, FRAC_PI_2), (-1.0, -FRAC_PI_2), (1.5, NAN), (INF, NAN), (NAN, NAN)],
    );
    check_unary(
        UnaryOp::Acos,
        &[(1.0, 0.0), (-1.0, PI), (0.0, FRAC_PI_2), (1.5, NAN), (-INF, NAN), (NAN, NAN)],
    );
    check_unary(
        UnaryOp::Atan,
        &[
            (0.0, 0.0),
            (-0.0, -0.0),
            (INF, FRAC_PI_2),
            (-INF, -FRAC_PI_2),
            (1.0, FRAC_PI_4),
            (NAN, NAN),
            (TINY, TINY),
        ],
    );
    check_binary(
        BinaryOp::Atan2,
        &[
            (0.0, 1.0, 0.0),
            (-0.0, 1.0, -0.0),
            (0.0, -1.0, PI),
            (-0.0, -1.0, -PI),
            (0.0, 0.0, 0.0),
            (-0.0, 0.0, -0.0),
            (0.0, -0.0, PI),
            (-0.0, -0.0, -PI),
            (1.0, 0.0, FRAC_PI_2),
            (-1.0, -0.0, -FRAC_PI_2),
            (INF, INF, FRAC_PI_4),
            (INF, -INF, 3.0 * FRAC_PI_4),
            (-INF, INF, -FRAC_PI_4),
            (-INF, -INF, -3.0 * FRAC_PI_4),
            (INF, 2.0, FRAC_PI_2),
            (2.0, INF, 0.0),
            (-2.0, INF, -0.0),
            (2.0, -INF, PI),
            (-2.0, -INF, -PI),
            (NAN, 1.0, NAN),
            (1.0, NAN, NAN),
            (NAN, INF, NAN),
            (1.0, 1.0, FRAC_PI_4),
        ],
    );
}

#[test]
fn hyperbolic_functions_end_at_their_limits() {
    check_unary(
        UnaryOp::Sinh,
        &[
            (0.0, 0.0),
            (-0.0, -0.0),
            (INF, INF),
            (-INF, -INF),
            (1000.0, INF),
            (-1000.0, -INF),
            (NAN, NAN),
            (TINY, TINY),
        ],
    );
    check_unary(UnaryOp::Cosh, &[(0.0, 1.0), (INF, INF), (-INF, INF), (1000.0, INF), (NAN, NAN)]);
    check_unary(
        UnaryOp::Tanh,
        &[(0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0), (100.0, 1.0), (NAN, NAN), (-TINY, -TINY)],
    );
    check_unary(
        UnaryOp::Asinh,
        &[(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -INF), (NAN, NAN), (TINY, TINY)],
    );
    check_unary(UnaryOp::Asinh, &[(f64::MAX, 710.4758600739439), (-1e300, -691.4686750787736)]);
    check_unary(UnaryOp::Acosh, &[(1.0, 0.0), (0.5, NAN), (-INF, NAN), (INF, INF), (NAN, NAN)]);
    check_unary(UnaryOp::Acosh, &[(f64::MAX, 710.4758600739439)]);
    check_unary(
        UnaryOp::Atanh,
        &[
            (0.0, 0.0),
            (-0.0, -0.0),
            (1.0, INF),
            (-1.0, -INF),
            (1.5, NAN),
            (INF, NAN),
            (NAN, NAN),
            (TINY, TINY),
        ],
    );
}

#[test]
fn error_and_gamma_functions_end_at_their_limits() {
    check_unary(
        UnaryOp::Erf,
        &[
            (0.0, 0.0),
            (-0.0, -0.0),
            (INF, 1.0),
            (-INF, -1.0),
            (NAN, NAN),
            (30.0, 1.0),
            (1e-30, 1.1283791670955126e-30),
        ],
    );
    check_unary(UnaryOp::Erfc, &[(0.0, 1.0), (INF, 0.0), (-INF, 2.0), (NAN, NAN), (30.0, 0.0), (-30.0, 2.0)]);
    check_unary(
        UnaryOp::Erfinv,
        &[(0.0, 0.0), (-0.0, -0.0), (1.0, INF), (-1.0, -INF), (1.5, NAN), (-2.0, NAN), (NAN, NAN)],
    );
    check_unary(
        UnaryOp::Lgamma,
        &[
            (1.0, 0.0),
            (2.0, 0.0),
            (3.0, std::f64::consts::LN_2),
            (0.0, INF),
            (-0.0, INF),
            (-1.0, INF),
            (-7.0, INF),
            (INF, INF),
            (-INF, INF),
            (NAN, NAN),
            (-0.5, 1.2655121234846454),
            (f64::MAX, INF),
        ],
    );
    check_unary(
        UnaryOp::Digamma,
        &[
            (0.0, -INF),
            (-0.0, INF),
            (-1.0, NAN),
            (-5.0, NAN),
            (INF, INF),
            (-INF, NAN),
            (NAN, NAN),
            (1.0, -0.5772156649015329),
            (-0.5, 0.03648997397857652),
        ],
    );
}

#[test]
fn powers_follow_c() {
    check_binary(
        BinaryOp::Pow,
        &[
            (NAN, 0.0, 1.0),
            (1.0, NAN, 1.0),
            (1.0, INF, 1.0),
            (-1.0, INF, 1.0),
            (-1.0, -INF, 1.0),
            (-1.0, NAN, NAN),
            (NAN, 1.0, NAN),
            (2.0, NAN, NAN),
            (0.0, -1.0, INF),
            (-0.0, -1.0, -INF),
            (-0.0, -2.0, INF),
            (0.0, 3.0, 0.0),
            (-0.0, 3.0, -0.0),
            (-0.0, 2.0, 0.0),
            (-0.0, 0.5, 0.0),
            (0.0, -INF, INF),
            (0.0, INF, 0.0),
            (INF, 2.0, INF),
            (INF, -2.0, 0.0),
            (-INF, 3.0, -INF),
            (-INF, 2.0, INF),
            (-INF, -3.0, -0.0),
            (-INF, 0.5, INF),
            (-INF, INF, INF),
            (0.5, INF, 0.0),
            (2.0, INF, INF),
            (2.0, -INF, 0.0),
            (0.5, -INF, INF),
            (-2.0, 3.0, -8.0),
            (-2.0, 2.0, 4.0),
            (-2.0, 0.5, NAN),
            (3.0, 2.0, 9.0),
            (10.0, 3.0, 1000.0),
            (2.0, 0.5, std::f64::consts::SQRT_2),
            (2.0, 2000.0, INF),
            (2.0, -2000.0, 0.0),
            (-2.0, 2001.0, -INF),
        ],
    );
    check_binary(
        BinaryOp::Hypot,
        &[
            (3.0, 4.0, 5.0),
            (INF, NAN, INF),
            (NAN, -INF, INF),
            (NAN, 1.0, NAN),
            (0.0, -0.0, 0.0),
            (0.0, -2.0, 2.0),
        ],
    );
}

#[test]
fn divisions_follow_pytorch() {
    check_binary(
        BinaryOp::Fmod,
        &[
            (5.0, 3.0, 2.0),
            (-5.0, 3.0, -2.0),
            (5.0, -3.0, 2.0),
            (6.0, 3.0, 0.0),
            (-6.0, 3.0, -0.0),
            (5.0, INF, 5.0),
            (-0.0, 3.0, -0.0),
            (5.0, 0.0, NAN),
            (INF, 3.0, NAN),
            (INF, INF, NAN),
            (NAN, 1.0, NAN),
            (1.0, NAN, NAN),
            (NAN, INF, NAN),
        ],
    );
    check_binary(
        BinaryOp::Remainder,
        &[
            (5.0, 3.0, 2.0),
            (-5.0, 3.0, 1.0),
            (5.0, -3.0, -1.0),
            (5.0, -INF, -INF),
            (-0.0, 3.0, -0.0),
            (-6.0, 3.0, -0.0),
            (5.0, 0.0, NAN),
        ],
    );
    check_binary(
        BinaryOp::FloorDiv,
        &[
            (7.0, 2.0, 3.0),
            (-7.0, 2.0, -4.0),
            (1.0, 0.0, INF),
            (-1.0, 0.0, -INF),
            (0.0, 0.0, NAN),
            (5.0, INF, 0.0),
            (INF, 2.0, NAN),
            (7.0, -INF, -1.0),
            (-1.0, 4.0, -1.0),
            (1.0, 4.0, 0.0),
        ],
    );
}

#[test]
fn nextafter_steps_by_one_bit() {
    let kernel = Kernel::compile(Function::Binary(BinaryOp::Nextafter), Lane::F32, 1);
    let next = |a: f32, b: f32| {
        let mut out = [0.0];
        kernel.apply_f32(&[a], &[b], &mut out);
        out[0].to_bits()
    };
    assert_eq!(next(1.0, 2.0), 1.0f32.to_bits() + 1);
    assert_eq!(next(1.0, -2.0), 1.0f32.to_bits() - 1);
    assert_eq!(next(-1.0, -2.0), (-1.0f32).to_bits() + 1);
    assert_eq!(next(0.0, -1.0), 0x8000_0001);
    assert_eq!(next(-0.0, 1.0), 1);
    assert_eq!(next(0.0, -0.0), 0x8000_0000);
    assert_eq!(next(f32::MAX, f32::INFINITY), f32::INFINITY.to_bits());
    assert_eq!(next(f32::from_bits(0x8000_0001), 1.0), 0x8000_0000);
    assert!(f32::from_bits(next(f32::NAN, 1.0)).is_nan() && f32::from_bits(next(1.0, f32::NAN)).is_nan());
}

#[test]
fn maxima_propagate_nan_or_pass_it_over() {
    check_binary(BinaryOp::Max, &[(1.0, 2.0, 2.0), (NAN, 2.0, NAN), (1.0, NAN, NAN), (-INF, -3.0, -3.0)]);
    check_binary(BinaryOp::Min, &[(1.0, 2.0, 1.0), (NAN, 2.0, NAN), (1.0, NAN, NAN), (INF, 3.0, 3.0)]);
    check_binary(BinaryOp::Fmax, &[(1.0, 2.0, 2.0), (NAN, 2.0, 2.0), (1.0, NAN, 1.0), (NAN, NAN, NAN)]);
    check_binary(BinaryOp::Fmin, &[(1.0, 2.0, 1.0), (NAN, 2.0, 2.0), (1.0, NAN, 1.0), (NAN, NAN, NAN)]);
}

#[test]
fn predicates_and_rounding_are_exact() {
    check_unary(
        UnaryOp::Round,
        &[(2.5, 2.0), (3.5, 4.0), (-0.4, -0.0), (INF, INF), (NAN, NAN), (1e300, 1e300)],
    );
    check_unary(UnaryOp::Floor, &[(-0.5, -1.0), (0.5, 0.0), (-0.0, -0.0), (-INF, -INF)]);
    check_unary(UnaryOp::Ceil, &[(-0.5, -0.0), (0.5, 1.0)]);
    check_unary(UnaryOp::Trunc, &[(-1.5, -1.0), (1.5, 1.0), (-0.5, -0.0)]);
    check_unary(
        UnaryOp::Sign,
        &[(-3.0, -1.0), (2.0, 1.0), (0.0, 0.0), (-0.0, 0.0), (NAN, 0.0), (-INF, -1.0)],
    );
    check_unary(UnaryOp::IsNan, &[(NAN, 1.0), (INF, 0.0), (1.0, 0.0)]);
    check_unary(UnaryOp::IsInf, &[(NAN, 0.0), (INF, 1.0), (-INF, 1.0), (1.0, 0.0)]);
    check_unary(UnaryOp::SignBit, &[(-0.0, 1.0), (0.0, 0.0), (-INF, 1.0), (3.0, 0.0)]);
    check_unary(UnaryOp::Rsqrt, &[(4.0, 0.5), (0.0, INF), (-0.0, -INF), (INF, 0.0), (-1.0, NAN), (NAN, NAN)]);
    check_unary(UnaryOp::Reciprocal, &[(4.0, 0.25), (0.0, INF), (-0.0, -INF), (INF, 0.0)]);
}

#[test]
fn wrong_types_are_refused_by_name() {
    let context = Context::create();
    let module = context.create_module("types");
    let builder = context.create_builder();
    let math = Math::new(&builder, &module);
    let int = context.i32_type().const_int(1, false);
    let single = context.f32_type().const_float(1.0);
    let double = context.f64_type().const_float(1.0);
    assert!(matches!(math.unary(UnaryOp::Exp, int.into()), Err(MathError::NotFloat { .. })));
    assert!(matches!(math.unary(UnaryOp::Not, single.into()), Err(MathError::NotOnFloats(_))));
    assert!(matches!(math.binary(BinaryOp::Pow, single.into(), double.into()), Err(MathError::Mixed { .. })));
    assert!(matches!(
        math.binary(BinaryOp::Shl, single.into(), single.into()),
        Err(MathError::NotOnFloats(_))
    ));
    assert!(matches!(math.unary(UnaryOp::Exp, single.into()), Err(MathError::Builder(_))));
}
