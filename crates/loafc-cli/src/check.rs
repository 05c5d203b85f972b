//! Compares results with the interpreter's.

use loafc::{DType, Tensor, Value};

use crate::failure::{Outcome, fail, told};

/// Largest error that rounding explains, relative to the largest element of the tensor.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-9,
        DType::F32 => 1e-4,
        DType::F16 => 1e-2,
        DType::BF16 => 4e-2,
        DType::F8E4M3FN | DType::F8E5M2 => 0.25,
        _ => 0.0,
    }
}

/// Says how far results are from what is expected; an error if too far.
pub fn compare(results: &[(String, Value)], expected: &[Value]) -> Outcome<String> {
    if results.len() != expected.len() {
        return fail(format!("check: {} results, expected {}", results.len(), expected.len()));
    }
    let mut worst: f64 = 0.0;
    for ((name, result), expected) in results.iter().zip(expected) {
        match (result, expected) {
            (Value::Tensor(a), Value::Tensor(b)) => worst = worst.max(compare_tensors(name, a, b)?),
            (Value::Size(a), Value::Size(b)) if a == b => {}
            (Value::None, Value::None) => {}
            _ => return fail(format!("check: {name} is {result:?}, expected {expected:?}")),
        }
    }
    Ok(format!(
        "check: results agree with the interpreter, largest error {worst:.1e} of the tensor's scale\n"
    ))
}

fn compare_tensors(name: &str, result: &Tensor, expected: &Tensor) -> Outcome<f64> {
    if result.dtype() != expected.dtype() || result.shape() != expected.shape() {
        let (a, b) = (result, expected);
        return fail(format!(
            "check: {name} is {}{:?}, expected {}{:?}",
            a.dtype(),
            a.shape(),
            b.dtype(),
            b.shape()
        ));
    }
    let (a, b) = (told(result.to_host())?, told(expected.to_host())?);
    let finite = b.data.iter().map(|v| v.to_f64().abs()).filter(|v| v.is_finite());
    let scale = finite.fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    let limit = tolerance(result.dtype());
    let mut worst: f64 = 0.0;
    for (k, (x, y)) in a.data.iter().zip(&b.data).enumerate() {
        let (p, q) = (x.to_f64(), y.to_f64());
        // Large integers that differ may be one number as a float.
        let equal = if limit == 0.0 { x == y } else { p == q || (p.is_nan() && q.is_nan()) };
        if equal {
            continue;
        }
        let error = (p - q).abs() / scale;
        if error.is_nan() || error > limit || limit == 0.0 {
            return fail(format!("check: {name}, element {k} in row-major order: got {x}, expected {y}"));
        }
        worst = worst.max(error);
    }
    Ok(worst)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(a: &[f32], b: &[f32]) -> Outcome<String> {
        let value = |data: &[f32]| Value::Tensor(Tensor::from_slice(&[data.len()], data).unwrap());
        compare(&[("out0".into(), value(a))], &[value(b)])
    }

    #[test]
    fn rounding_is_allowed_and_more_is_not() {
        assert!(check(&[1.0, 100.0, f32::NAN], &[1.00001, 100.0, f32::NAN]).is_ok());
        assert!(check(&[1.0, 2.0], &[1.1, 2.0]).is_err());
        assert!(check(&[f32::NAN], &[1.0]).is_err());
        assert!(check(&[f32::INFINITY], &[1.0]).is_err());
        assert!(check(&[1.0], &[1.0, 2.0]).is_err());
    }

    #[test]
    fn integers_must_be_equal() {
        let value = |v: i64| Value::Tensor(Tensor::scalar(v).unwrap());
        assert!(compare(&[("a".into(), value(3))], &[value(3)]).is_ok());
        assert!(compare(&[("a".into(), value(3))], &[value(4)]).is_err());
        assert!(compare(&[("a".into(), value(1 << 53))], &[value((1 << 53) + 1)]).is_err());
    }
}
