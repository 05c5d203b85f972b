//! Random tensor programs as `.loaf` text, for property tests and fuzzing of every later level. The same seed
//! gives the same program; the text is what a failing test prints.
//!
//! Values are small integers wherever that is possible, so that sums come out the same in any order and a wrong
//! element shows.

use std::fmt::Write;

use crate::dtype::{DType, Scalar};
use crate::graph::{Graph, Input};
use crate::interp::tensor::HostTensor;
use crate::ops::{EvalResult, GraphInput, GraphOutput};

/// A source of random numbers that needs no crate: splitmix64.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which must not be zero.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.bits() % bound as u64) as usize
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }
}

/// Inputs for a program without sizes: small integers of each input's type.
///
/// # Panics
/// When an input is a size or has a symbolic shape; random programs have neither.
pub fn random_inputs(graph: &Graph, random: &mut Random) -> Vec<GraphInput> {
    graph
        .inputs
        .iter()
        .map(|input| {
            let Input::Tensor(id) = input else { unreachable!("random programs have no sizes") };
            let ty = graph.tensor_type(*id).expect("a tensor");
            let shape: Vec<usize> =
                ty.shape.iter().map(|e| e.as_const().expect("constant") as usize).collect();
            let data = (0..shape.iter().product::<usize>())
                .map(|_| {
                    let v = random.below(9) as i64 - 4;
                    match ty.dtype {
                        DType::Bool => Scalar::Bool(v > 0),
                        d if d.is_float() => Scalar::Float(v as f64),
                        _ => Scalar::Int(v),
                    }
                })
                .collect();
            GraphInput::Tensor(HostTensor { dtype: ty.dtype, shape, data })
        })
        .collect()
}

/// Whether two runs gave the same, as far as a compiler may choose: sums may round differently in another order,
/// and 16-bit values are not rounded between fused operations.
///
/// # Errors
/// Says which result differs, and where.
pub fn same_values(a: &EvalResult, b: &EvalResult) -> Result<(), String> {
    // A write of nothing need not happen.
    let written = |r: &EvalResult| -> Vec<usize> {
        r.mutated_inputs.iter().filter(|m| m.1.numel() > 0).map(|m| m.0).collect()
    };
    if written(a) != written(b) {
        return Err("other inputs were written to".to_owned());
    }
    let tensors = |r: &EvalResult| -> Vec<Option<HostTensor>> {
        let outputs = r.outputs.iter().map(|o| match o {
            GraphOutput::Tensor(t) => Some(t.clone()),
            _ => None,
        });
        let mutated = r.mutated_inputs.iter().filter(|m| m.1.numel() > 0);
        outputs.chain(mutated.map(|m| Some(m.1.clone()))).collect()
    };
    for (k, (a, b)) in tensors(a).iter().zip(&tensors(b)).enumerate() {
        let (Some(a), Some(b)) = (a, b) else { continue };
        if a.shape != b.shape || a.dtype != b.dtype {
            return Err(format!("result {k}: {}{:?} and {}{:?}", a.dtype, a.shape, b.dtype, b.shape));
        }
        let scale = a.data.iter().map(|v| v.to_f64().abs()).fold(1.0, f64::max);
        let tolerance = match a.dtype {
            DType::BF16 | DType::F16 => 0.05 * scale,
            d if d.is_float() => 1e-5 * scale,
            _ => 0.0,
        };
        for (at, (x, y)) in a.data.iter().zip(&b.data).enumerate() {
            if (x.to_f64() - y.to_f64()).abs() > tolerance {
                return Err(format!("result {k}, element {at}: {x} and {y}"));
            }
        }
    }
    Ok(())
}

/// A tensor that the program has.
#[derive(Clone, Debug)]
struct Known {
    name: String,
    dtype: DType,
    shape: Vec<i64>,
    /// A multiple of this bounds the elements' magnitude, so that products don't grow without end.
    magnitude: f64,
}

impl Known {
    fn numel(&self) -> i64 {
        self.shape.iter().product()
    }
}

struct Builder {
    random: Random,
    text: String,
    values: Vec<Known>,
    inputs: usize,
    fresh: usize,
}

/// Sizes that extents are drawn from: ones and zeros, primes, and numbers with many divisors.
const EXTENTS: [i64; 12] = [1, 2, 2, 3, 4, 4, 5, 6, 8, 8, 12, 16];
const DTYPES: [DType; 8] =
    [DType::F32, DType::F32, DType::F32, DType::F64, DType::BF16, DType::I64, DType::I32, DType::Bool];
const MOST_ELEMENTS: i64 = 512;
const MOST_MAGNITUDE: f64 = 1e4;

/// A random program with about `calls` operator calls.
pub fn random_program(seed: u64, calls: usize) -> String {
    let mut random = Random(seed);
    let inputs = 1 + random.below(3);
    let mut b = Builder { random, text: String::new(), values: Vec::new(), inputs, fresh: 0 };
    b.header();
    for _ in 0..calls {
        b.call();
    }
    b.finish()
}

impl Builder {
    fn header(&mut self) {
        let mut params = Vec::new();
        let dtype = *self.random.pick(&DTYPES);
        let shape = self.shape();
        for k in 0..self.inputs {
            // Most inputs share a shape, so that most values can meet.
            let shape = if k == 0 || !self.random.one_in(3) { shape.clone() } else { self.shape() };
            let dtype = if self.random.one_in(4) { *self.random.pick(&DTYPES) } else { dtype };
            let name = format!("x{k}");
            params.push(format!("%{name}: {}", self.input_type(dtype, &shape)));
            self.values.push(Known { name, dtype, shape, magnitude: 4.0 });
        }
        let _ = writeln!(self.text, "graph @random({}) {{", params.join(", "));
    }

    fn shape(&mut self) -> Vec<i64> {
        loop {
            let rank = 1 + self.random.below(4);
            let mut shape: Vec<i64> = (0..rank).map(|_| *self.random.pick(&EXTENTS)).collect();
            if self.random.one_in(40) {
                shape[0] = 0;
            }
            if shape.iter().product::<i64>() <= MOST_ELEMENTS {
                return shape;
            }
        }
    }

    /// A type whose strides are contiguous, permuted, or with gaps.
    fn input_type(&mut self, dtype: DType, shape: &[i64]) -> String {
        let mut order: Vec<usize> = (0..shape.len()).collect();
        if self.random.one_in(3) {
            for k in (1..order.len()).rev() {
                order.swap(k, self.random.below(k + 1));
            }
        }
        let gap = if self.random.one_in(5) { 2 } else { 1 };
        let mut strides = vec![0; shape.len()];
        let mut next = gap;
        for d in order.iter().rev() {
            strides[*d] = next;
            next *= shape[*d].max(1);
        }
        format!("{dtype}{shape:?} strides {strides:?}")
    }

    fn emit(&mut self, call: &str, dtype: DType, shape: Vec<i64>, magnitude: f64) {
        let name = format!("v{}", self.fresh);
        self.fresh += 1;
        let _ = writeln!(self.text, "  %{name} = {call}");
        self.values.push(Known { name, dtype, shape, magnitude });
    }

    /// A known value; later ones are likelier.
    fn value(&mut self) -> Known {
        let n = self.values.len();
        let k = self.random.below(n).max(self.random.below(n));
        self.values[k].clone()
    }

    fn call(&mut self) {
        let x = self.value();
        match self.random.below(20) {
            0..=2 => self.unary(&x),
            3..=6 => self.binary(&x),
            7..=9 => self.reduce(&x),
            10 | 11 => self.permute(&x),
            12 | 13 => self.reshape(&x),
            14 => self.slice(&x),
            15 => self.cat(&x),
            16 => self.expand(&x),
            17 => self.emit(&format!("loafc.realize.default(%{})", x.name), x.dtype, x.shape, x.magnitude),
            18 => self.cast(&x),
            _ => self.special(&x),
        }
    }

    fn unary(&mut self, x: &Known) {
        if x.dtype == DType::Bool {
            let call = format!("aten.logical_not.default(%{})", x.name);
            return self.emit(&call, DType::Bool, x.shape.clone(), 1.0);
        }
        let name = &x.name;
        let (call, magnitude) = match self.random.below(5) {
            0 => (format!("aten.neg.default(%{name})"), x.magnitude),
            1 => (format!("aten.abs.default(%{name})"), x.magnitude),
            2 => (format!("aten.add.Tensor(%{name}, 1)"), x.magnitude + 1.0),
            3 if x.magnitude < MOST_MAGNITUDE => (format!("aten.mul.Tensor(%{name}, 2)"), 2.0 * x.magnitude),
            _ => (format!("aten.relu.default(%{name})"), x.magnitude),
        };
        self.emit(&call, x.dtype, x.shape.clone(), magnitude);
    }

    fn binary(&mut self, x: &Known) {
        let partners: Vec<Known> = self
            .values
            .iter()
            .filter(|y| y.dtype == x.dtype && broadcast(&x.shape, &y.shape).is_some())
            .cloned()
            .collect();
        let y = self.random.pick(&partners).clone();
        let shape = broadcast(&x.shape, &y.shape).expect("filtered");
        if shape.iter().product::<i64>() > MOST_ELEMENTS {
            return;
        }
        let (a, b) = (&x.name, &y.name);
        if x.dtype == DType::Bool {
            let op = self.random.pick(&["logical_and", "logical_or", "logical_xor"]);
            let call = format!("aten.{op}.default(%{a}, %{b})");
            return self.emit(&call, DType::Bool, shape, 1.0);
        }
        let sum = x.magnitude + y.magnitude;
        let (op, magnitude) = match self.random.below(6) {
            0 => ("add.Tensor", sum),
            1 => ("sub.Tensor", sum),
            2 if x.magnitude * y.magnitude < MOST_MAGNITUDE => ("mul.Tensor", x.magnitude * y.magnitude),
            3 => ("maximum.default", x.magnitude.max(y.magnitude)),
            4 => ("minimum.default", x.magnitude.max(y.magnitude)),
            _ => ("add.Tensor", sum),
        };
        self.emit(&format!("aten.{op}(%{a}, %{b})"), x.dtype, shape, magnitude);
    }

    fn reduce(&mut self, x: &Known) {
        let rank = x.shape.len();
        let dims: Vec<usize> = (0..rank).filter(|_| self.random.one_in(2)).collect();
        if dims.is_empty() {
            return;
        }
        let keep = self.random.one_in(2);
        let count: i64 = dims.iter().map(|d| x.shape[*d]).product();
        let shape: Vec<i64> = (0..rank)
            .filter_map(|d| match (dims.contains(&d), keep) {
                (false, _) => Some(x.shape[d]),
                (true, true) => Some(1),
                (true, false) => None,
            })
            .collect();
        let name = &x.name;
        let list: Vec<String> = dims.iter().map(ToString::to_string).collect();
        let list = list.join(", ");
        let magnitude = x.magnitude * count.max(1) as f64;
        if x.dtype == DType::Bool {
            let call = format!("aten.any.dims(%{name}, [{list}], {keep})");
            return self.emit(&call, DType::Bool, shape, 1.0);
        }
        match self.random.below(5) {
            0 if count > 0 => {
                let call = format!("aten.amax.default(%{name}, [{list}], {keep})");
                self.emit(&call, x.dtype, shape, x.magnitude);
            }
            1 if count > 0 => {
                let call = format!("aten.amin.default(%{name}, [{list}], {keep})");
                self.emit(&call, x.dtype, shape, x.magnitude);
            }
            // Low precision values may tie or not depending on where they were rounded.
            2 if dims.len() == 1 && count > 0 && x.dtype != DType::BF16 => {
                let call = format!("aten.argmax.default(%{name}, {list}, {keep})");
                self.emit(&call, DType::I64, shape, count as f64);
            }
            _ if magnitude < MOST_MAGNITUDE => {
                let dtype = if x.dtype.is_int() { DType::I64 } else { x.dtype };
                let call = format!("aten.sum.dim_IntList(%{name}, [{list}], {keep})");
                self.emit(&call, dtype, shape, magnitude);
            }
            _ => {}
        }
    }

    fn permute(&mut self, x: &Known) {
        let mut order: Vec<usize> = (0..x.shape.len()).collect();
        for k in (1..order.len()).rev() {
            order.swap(k, self.random.below(k + 1));
        }
        let shape: Vec<i64> = order.iter().map(|d| x.shape[*d]).collect();
        self.emit(
            &format!("aten.permute.default(%{}, {order:?})", x.name),
            x.dtype,
            shape.clone(),
            x.magnitude,
        );
        if self.random.one_in(2) {
            let name = self.values.last().expect("just made").name.clone();
            let call = format!("aten.clone.default(%{name}, memory_format=\"contiguous_format\")");
            self.emit(&call, x.dtype, shape, x.magnitude);
        }
    }

    fn reshape(&mut self, x: &Known) {
        let mut rest = x.numel();
        let mut shape = Vec::new();
        if rest == 0 {
            shape = vec![0];
        }
        while rest > 1 && shape.len() < 4 {
            let divisors: Vec<i64> = (1..=rest).filter(|d| rest % d == 0).collect();
            let d = *self.random.pick(&divisors);
            shape.push(d);
            rest /= d;
        }
        if rest > 1 || shape.is_empty() {
            shape.push(rest);
        }
        self.emit(&format!("aten.reshape.default(%{}, {shape:?})", x.name), x.dtype, shape, x.magnitude);
    }

    fn slice(&mut self, x: &Known) {
        let d = self.random.below(x.shape.len().max(1));
        let Some(extent) = x.shape.get(d).copied().filter(|e| *e > 0) else { return };
        let start = self.random.below(extent as usize) as i64;
        let end = start + 1 + self.random.below((extent - start) as usize) as i64;
        let step = 1 + self.random.below(2) as i64;
        let mut shape = x.shape.clone();
        shape[d] = (end - start + step - 1) / step;
        let call = format!("aten.slice.Tensor(%{}, {d}, {start}, {end}, {step})", x.name);
        self.emit(&call, x.dtype, shape, x.magnitude);
    }

    fn cat(&mut self, x: &Known) {
        let d = self.random.below(x.shape.len().max(1));
        if x.shape.is_empty() {
            return;
        }
        let fits = |y: &Known| {
            y.dtype == x.dtype
                && y.shape.len() == x.shape.len()
                && y.shape.iter().zip(&x.shape).enumerate().all(|(k, (a, b))| k == d || a == b)
        };
        let partners: Vec<Known> = self.values.iter().filter(|y| fits(y)).cloned().collect();
        let y = self.random.pick(&partners).clone();
        let mut shape = x.shape.clone();
        shape[d] += y.shape[d];
        if shape.iter().product::<i64>() <= MOST_ELEMENTS {
            let call = format!("aten.cat.default([%{}, %{}], {d})", x.name, y.name);
            self.emit(&call, x.dtype, shape, x.magnitude.max(y.magnitude));
        }
    }

    fn expand(&mut self, x: &Known) {
        let mut shape = x.shape.clone();
        let mut sizes: Vec<i64> = shape.clone();
        for (size, extent) in sizes.iter_mut().zip(&mut shape) {
            if *extent == 1 {
                *size = 1 + self.random.below(4) as i64;
                *extent = *size;
            }
        }
        if self.random.one_in(2) {
            sizes.insert(0, 2);
            shape.insert(0, 2);
        }
        if shape.iter().product::<i64>() <= MOST_ELEMENTS && shape.len() <= 5 {
            self.emit(&format!("aten.expand.default(%{}, {sizes:?})", x.name), x.dtype, shape, x.magnitude);
        }
    }

    fn cast(&mut self, x: &Known) {
        let to = *self.random.pick(&DTYPES);
        if x.magnitude < 100.0 {
            let call = format!("prims.convert_element_type.default(%{}, {to})", x.name);
            let magnitude = if to == DType::Bool { 1.0 } else { x.magnitude };
            self.emit(&call, to, x.shape.clone(), magnitude);
        }
    }

    /// Comparison with `where`, reversal, padding, or a write into an input.
    fn special(&mut self, x: &Known) {
        let name = &x.name;
        match self.random.below(4) {
            0 if x.dtype != DType::Bool => {
                let mask = format!("v{}", self.fresh);
                self.emit(&format!("aten.gt.Scalar(%{name}, 0)"), DType::Bool, x.shape.clone(), 1.0);
                let call = format!("aten.where.self(%{mask}, %{name}, %{name})");
                self.emit(&call, x.dtype, x.shape.clone(), x.magnitude);
            }
            1 if !x.shape.is_empty() => {
                let d = self.random.below(x.shape.len());
                let call = format!("aten.flip.default(%{name}, [{d}])");
                self.emit(&call, x.dtype, x.shape.clone(), x.magnitude);
            }
            2 if !x.shape.is_empty() && x.dtype != DType::Bool => {
                let mut shape = x.shape.clone();
                *shape.last_mut().expect("not empty") += 3;
                if shape.iter().product::<i64>() <= MOST_ELEMENTS {
                    let call = format!("aten.constant_pad_nd.default(%{name}, [1, 2], 3)");
                    self.emit(&call, x.dtype, shape, x.magnitude.max(3.0));
                }
            }
            _ => {
                let inputs = &self.values[..self.inputs];
                let into: Vec<Known> = inputs
                    .iter()
                    .filter(|i| i.dtype == x.dtype && i.shape == x.shape && i.name != x.name)
                    .cloned()
                    .collect();
                if into.is_empty() {
                    return;
                }
                let target = self.random.pick(&into).clone();
                let call = format!("aten.copy_.default(%{}, %{name})", target.name);
                self.emit(&call, x.dtype, x.shape.clone(), x.magnitude);
                for v in &mut self.values[..self.inputs] {
                    if v.name == target.name {
                        v.magnitude = v.magnitude.max(x.magnitude);
                    }
                }
            }
        }
    }

    fn finish(mut self) -> String {
        let made = self.values.len() - self.inputs;
        let mut outputs: Vec<String> =
            self.values.iter().rev().take(made.min(2)).map(|v| format!("%{}", v.name)).collect();
        for k in self.inputs..self.values.len() {
            let name = format!("%{}", self.values[k].name);
            if self.random.one_in(4) && !outputs.contains(&name) {
                outputs.push(name);
            }
        }
        let _ = writeln!(self.text, "  return {}\n}}", outputs.join(", "));
        self.text
    }
}

fn broadcast(a: &[i64], b: &[i64]) -> Option<Vec<i64>> {
    let rank = a.len().max(b.len());
    let at = |s: &[i64], k: usize| {
        let missing = rank - s.len();
        if k < missing { 1 } else { s[k - missing] }
    };
    (0..rank)
        .map(|k| match (at(a, k), at(b, k)) {
            (x, y) if x == y => Some(x),
            (1, y) => Some(y),
            (x, 1) => Some(x),
            _ => None,
        })
        .collect()
}

/// Calls `check` with many random programs and fails with those that are wrong or panic, each with its seed.
/// `LOAFC_RANDOM_PROGRAMS` sets how many are tried instead of `default`, `LOAFC_RANDOM_SEED` where to start, and
/// `LOAFC_RANDOM_FAILURES` how many wrong ones are shown.
///
/// `check` gets the seed, the program's text, and what its inputs are to be drawn from.
///
/// # Panics
/// When a program is wrong, or one of the variables holds no number.
pub fn check_random_programs(
    default: u64,
    check: impl Fn(u64, &str, &mut Random) -> Result<(), String> + std::panic::RefUnwindSafe,
) {
    let (start, count) = (number("LOAFC_RANDOM_SEED", 0), number("LOAFC_RANDOM_PROGRAMS", default));
    let wrong: Vec<String> = (start..start + count)
        .filter_map(|seed| {
            let mut random = Random(seed ^ 0x5eed);
            let text = random_program(seed, 3 + random.below(12));
            let wrong = match std::panic::catch_unwind(|| check(seed, &text, &mut random.clone())) {
                Ok(result) => result.err()?,
                Err(_) => "panicked".to_owned(),
            };
            Some(format!("seed {seed}: {wrong}\n{text}"))
        })
        .take(number("LOAFC_RANDOM_FAILURES", 5) as usize)
        .collect();
    assert!(wrong.is_empty(), "at least {} programs are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

fn number(variable: &str, default: u64) -> u64 {
    match std::env::var(variable) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{variable} is `{text}`, not a whole number")),
        Err(_) => default,
    }
}
