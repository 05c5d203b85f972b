//! Scans against the reference interpreter, over operations, types, dimensions, layouts and teams.

use loafc_ir::dtype::DType;
use loafc_ir::graph::{Arg, TensorId};
use loafc_ir::nest::{BufferId, ExternCall, StepId, TensorView};
use loafc_ir::size::{Size, SymbolValues};

use super::{Kind, Scan};
use crate::externs::{Externs, Invocation};
use crate::externs_native::NativeExterns;
use crate::strided::{self, contiguous_strides};
use crate::threads::{Serial, Team, ThreadTeam};
use crate::value::{ResultSpec, TensorRef};

const OPERATORS: [&str; 5] = [
    "aten.cumsum.default",
    "aten.cumprod.default",
    "aten.cummax.default",
    "aten.cummin.default",
    "aten.logcumsumexp.default",
];

/// A tensor's bytes with its type.
struct Tensor {
    dtype: DType,
    shape: Vec<i64>,
    strides: Vec<i64>,
    bytes: Vec<u8>,
}

impl Tensor {
    fn new(dtype: DType, shape: &[i64], strides: Vec<i64>) -> Tensor {
        let count = crate::value::span(shape, &strides).unwrap() as usize;
        Tensor { dtype, shape: shape.to_vec(), strides, bytes: vec![0; count * dtype.bytes()] }
    }

    /// Small numbers, the same ones in every run; all types hold them.
    fn small_numbers(dtype: DType, shape: &[i64], strides: Vec<i64>) -> Tensor {
        let mut tensor = Tensor::new(dtype, shape, strides);
        let mut state = 1u64;
        let width = dtype.bytes();
        for element in tensor.bytes.chunks_mut(width) {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let value = (state >> 60) as i64 % 3;
            let value = if dtype == DType::Bool { value & 1 } else { value };
            strided_write(element, dtype, value as f64);
        }
        tensor
    }

    fn reference(&self) -> TensorRef<'_> {
        let ptr = self.bytes.as_ptr().cast_mut();
        TensorRef { ptr, dtype: self.dtype, shape: &self.shape, strides: &self.strides, input: None }
    }

    fn result(&mut self) -> ResultSpec<'_> {
        let ptr = Some(self.bytes.as_mut_ptr());
        ResultSpec { dtype: self.dtype, shape: &self.shape, strides: &self.strides, ptr }
    }

    fn values(&self) -> Vec<f64> {
        // SAFETY: the bytes hold all elements.
        let read =
            unsafe { strided::read(self.bytes.as_ptr().cast_mut(), self.dtype, &self.shape, &self.strides) };
        read.data.iter().map(|x| x.to_f64()).collect()
    }
}

fn strided_write(element: &mut [u8], dtype: DType, value: f64) {
    let scalar = loafc_ir::interp::scalar::cast(loafc_ir::dtype::Scalar::Float(value), DType::F64, dtype);
    // SAFETY: the bytes are one element.
    unsafe { strided::write(element.as_mut_ptr(), dtype, &[], &[], &[scalar]) };
}

/// Results of a scan, of this type, laid out like the operand: values, then positions.
fn scanned(op: &str, x: &Tensor, dim: usize, to: DType, team: &dyn Team) -> Vec<Tensor> {
    let scan = Scan { kind: Kind::of(op).unwrap(), operand: 0, dim, from: x.dtype, to };
    let mut results = results(op, x, to);
    let mut specs = results.iter_mut();
    let specs = [specs.next().map(Tensor::result), specs.next().map(Tensor::result)];
    let wanted = if specs[1].is_some() { 2 } else { 1 };
    // SAFETY: operand and results have all of their elements.
    unsafe { scan.run(&[x.reference()], &specs[..wanted], team) };
    results
}

fn results(op: &str, x: &Tensor, to: DType) -> Vec<Tensor> {
    let made = |dtype| Tensor::new(dtype, &x.shape, x.strides.clone());
    let mut results = vec![made(to)];
    if op.contains("max") || op.contains("min") {
        results.push(made(DType::I64));
    }
    results
}

/// The same by the reference interpreter.
fn interpreted(op: &str, x: &Tensor, dim: usize, to: DType) -> Vec<Tensor> {
    let mut results = results(op, x, to);
    let takes_dtype = op.contains("cumsum.") || op.contains("cumprod.");
    let kwargs = if takes_dtype { vec![("dtype".into(), Arg::DType(to))] } else { vec![] };
    let sizes = |numbers: &[i64]| numbers.iter().map(|n| Size::from(*n)).collect();
    let view = TensorView {
        buffer: BufferId(0),
        shape: sizes(&x.shape),
        strides: sizes(&x.strides),
        offset: Size::ZERO,
    };
    let call = ExternCall {
        op: op.into(),
        args: [Arg::Value(TensorId(0)), Arg::Size(Size::from(dim as i64))].into(),
        kwargs,
        tensors: vec![view],
        results: vec![],
        mutates: vec![],
        ordered: false,
        origin: None,
    };
    let specs: Vec<_> = results.iter_mut().map(|r| Some(r.result())).collect();
    let invocation = Invocation {
        call: &call,
        step: StepId(0),
        tensors: &[x.reference()],
        results: &specs,
        sizes: &SymbolValues::new(),
    };
    assert!(NativeExterns.call(&invocation).is_ok(), "{op}");
    results
}

fn assert_alike(found: &[Tensor], wanted: &[Tensor], tolerance: f64, what: &str) {
    for (found, wanted) in found.iter().zip(wanted) {
        for (k, (a, b)) in found.values().into_iter().zip(wanted.values()).enumerate() {
            let alike = a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= tolerance * b.abs();
            assert!(alike, "{what}: element {k} is {a}, not {b}");
        }
    }
}

fn tolerance(op: &str, dtype: DType) -> f64 {
    match dtype {
        _ if !op.contains("log") => 0.0,
        DType::F64 => 1e-14,
        DType::F32 => 1e-7,
        DType::F16 => 1e-3,
        _ => 8e-3,
    }
}

#[test]
fn every_operation_goes_along_every_dimension_with_any_team() {
    let team = ThreadTeam::new(3);
    let teams: [&dyn Team; 2] = [&Serial, &team];
    for shape in
        [&[5, 7, 11][..], &[3, 1, 130], &[1, 12, 1100], &[0, 3, 2], &[33, 2, 17], &[300, 5], &[6], &[]]
    {
        for op in OPERATORS {
            for dtype in [DType::F32, DType::I64] {
                if !Kind::of(op).unwrap().computes(dtype) {
                    continue;
                }
                let x = Tensor::small_numbers(dtype, shape, contiguous_strides(shape));
                for dim in 0..shape.len().max(1) {
                    let wanted = interpreted(op, &x, dim, dtype);
                    for team in teams {
                        let what = format!("{op} of {dtype}{shape:?} along {dim}");
                        assert_alike(
                            &scanned(op, &x, dim, dtype, team),
                            &wanted,
                            tolerance(op, dtype),
                            &what,
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn every_type_is_scanned_and_read_as_any_other() {
    let (shape, strides) = ([3, 9], vec![9, 1]);
    for op in OPERATORS {
        for from in DType::ALL {
            for to in DType::ALL {
                let converts = op.contains("cumsum.") || op.contains("cumprod.");
                let known = Kind::of(op).unwrap().computes(to) && super::element::converts(from, to);
                if !known || (from != to && !converts) {
                    continue;
                }
                let x = Tensor::small_numbers(from, &shape, strides.clone());
                for dim in 0..2 {
                    let what = format!("{op} of {from} as {to} along {dim}");
                    let wanted = interpreted(op, &x, dim, to);
                    assert_alike(&scanned(op, &x, dim, to, &Serial), &wanted, tolerance(op, to), &what);
                }
            }
        }
    }
}

#[test]
fn any_layout_is_scanned() {
    for strides in [vec![1, 5, 35], vec![77, 1, 7], vec![200, 20, 2], vec![4, 20, 140]] {
        for op in OPERATORS {
            let x = Tensor::small_numbers(DType::F32, &[5, 7, 3], strides.clone());
            for dim in 0..3 {
                let what = format!("{op} of strides {strides:?} along {dim}");
                let wanted = interpreted(op, &x, dim, DType::F32);
                let found = scanned(op, &x, dim, DType::F32, &Serial);
                assert_alike(&found, &wanted, tolerance(op, DType::F32), &what);
            }
        }
    }
}

/// A line that is long enough to be cut.
fn long_line(dtype: DType) -> Tensor {
    let length = super::apart::PART * 5 + 3;
    Tensor::small_numbers(dtype, &[length], vec![1])
}

#[test]
fn long_lines_give_the_same_bits_whoever_goes_along_them() {
    let teams = [ThreadTeam::new(2), ThreadTeam::new(3)];
    for op in OPERATORS {
        for dtype in [DType::F32, DType::F64, DType::BF16, DType::I32, DType::U8] {
            if !Kind::of(op).unwrap().computes(dtype) {
                continue;
            }
            let x = long_line(dtype);
            let alone = scanned(op, &x, 0, dtype, &Serial);
            for team in &teams {
                for (a, b) in alone.iter().zip(scanned(op, &x, 0, dtype, team)) {
                    assert!(a.bytes == b.bytes, "{op} of {dtype}");
                }
            }
        }
    }
}

#[test]
fn a_cut_line_is_what_a_whole_one_is() {
    for op in ["aten.cumsum.default", "aten.cumprod.default", "aten.cummax.default", "aten.cummin.default"] {
        for dtype in [DType::F32, DType::I32] {
            let x = long_line(dtype);
            let wanted = interpreted(op, &x, 0, dtype);
            assert_alike(&scanned(op, &x, 0, dtype, &Serial), &wanted, 0.0, op);
        }
    }
}

/// An f32 line with these elements, scanned: each result, as f64.
fn line(op: &str, elements: &[f32]) -> Vec<Vec<f64>> {
    let mut x = Tensor::new(DType::F32, &[elements.len() as i64], vec![1]);
    x.bytes = elements.iter().flat_map(|e| e.to_ne_bytes()).collect();
    scanned(op, &x, 0, DType::F32, &Serial).iter().map(Tensor::values).collect()
}

#[test]
fn the_last_of_equals_and_of_nans_is_the_extreme_one() {
    let nan = f32::NAN;
    let found =
        line("aten.cummax.default", &[-0.0, 0.0, f32::NEG_INFINITY, 2.0, nan, 9.0, nan, f32::INFINITY]);
    assert_eq!(found[1], [0., 1., 1., 3., 4., 4., 6., 6.]);
    assert!(found[0][4..].iter().all(|x| x.is_nan()));
    assert_eq!(line("aten.cummin.default", &[3.0, 3.0, f32::INFINITY, 1.0, 1.0])[1], [0., 1., 1., 3., 4.]);
    assert_eq!(line("aten.cummax.default", &[f32::NEG_INFINITY; 3])[1], [0., 1., 2.]);
}

#[test]
fn floats_are_summed_in_twice_their_width() {
    let x = vec![0.1f32; 1 << 16];
    let last = line("aten.cumsum.default", &x)[0][x.len() - 1];
    assert_eq!(last as f32, (f64::from(0.1f32) * x.len() as f64) as f32);
}

#[test]
fn logarithms_of_sums_keep_what_is_far_below_one_and_go_on_through_infinities() {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    let op = "aten.logcumsumexp.default";
    let tiny = line(op, &[0.0, -80.0, -90.0])[0].clone();
    assert!((tiny[2] / (f64::exp(-80.0) + f64::exp(-90.0)) - 1.0).abs() < 1e-7);
    assert_eq!(line(op, &[-inf, -inf, 3.0, -inf])[0], [f64::NEG_INFINITY, f64::NEG_INFINITY, 3.0, 3.0]);
    assert_eq!(line(op, &[1.0, inf, inf, -inf])[0][1..], [f64::INFINITY; 3]);
    assert!(line(op, &[1.0, nan, inf, 2.0])[0][1..].iter().all(|x| x.is_nan()));
    assert_eq!(line(op, &[-3e38, 3e38, -3e38])[0], [-3e38f32, 3e38, 3e38].map(f64::from));
}

#[test]
fn logarithms_of_sums_are_exact_to_a_few_units_of_f64() {
    let values: Vec<f64> = (0..1000).map(|k| (f64::from(k) * 0.7).sin() * 30.0).collect();
    let mut x = Tensor::new(DType::F64, &[1000], vec![1]);
    x.bytes = values.iter().flat_map(|e| e.to_ne_bytes()).collect();
    let found = scanned("aten.logcumsumexp.default", &x, 0, DType::F64, &Serial)[0].values();
    for (k, found) in found.iter().enumerate() {
        let largest = values[..=k].iter().copied().fold(f64::MIN, f64::max);
        let wanted = largest + values[..=k].iter().map(|x| (x - largest).exp()).sum::<f64>().ln();
        assert!((found - wanted).abs() <= 1e-15 * wanted.abs().max(4.0), "{k}: {found}, not {wanted}");
    }
}
