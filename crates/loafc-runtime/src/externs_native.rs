//! Extern calls without any library at hand: matrix products through `matrixmultiply`, all else through the
//! reference interpreter, which is slow but knows every operator that the compiler knows.

use loafc_ir::dtype::DType;
use loafc_ir::graph::Arg;
use loafc_ir::nest::ExternCall;
use loafc_ir::ops;

use crate::error::ExternError;
use crate::externs::{Externs, Invocation, ResultMemory};
use crate::strided;
use crate::value::{ResultSpec, TensorRef};

/// The operators of this crate.
#[derive(Copy, Clone, Debug, Default)]
pub struct NativeExterns;

impl NativeExterns {
    /// Results always go where the runtime wants them.
    pub fn writes_results(_call: &ExternCall) -> bool {
        true
    }
}

impl Externs for NativeExterns {
    fn call(&mut self, invocation: &Invocation<'_>) -> Result<Vec<ResultMemory>, ExternError> {
        if !matrix_product(invocation) {
            interpret(invocation)?;
        }
        let made = |r: &Option<ResultSpec<'_>>| {
            if r.is_some() { ResultMemory::Written } else { ResultMemory::Unused }
        };
        Ok(invocation.results.iter().map(made).collect())
    }
}

/// Runs the call in the reference interpreter.
fn interpret(invocation: &Invocation<'_>) -> Result<(), ExternError> {
    let op = &invocation.call.op;
    if !invocation.call.mutates.is_empty() {
        return Err(ExternError::new(
            op,
            "the operator writes to its operands, which needs a library for it",
        ));
    }
    let results = invocation.results.iter().flatten().map(|r| r.dtype);
    if let Some(dtype) = invocation.tensors.iter().map(|t| t.dtype).chain(results).find(|d| d.is_complex()) {
        return Err(ExternError::new(op, format!("no implementation for element type {dtype}")));
    }
    // SAFETY: the runtime gives tensors whose elements are all there.
    let read = |t: &TensorRef<'_>| unsafe { strided::read(t.ptr, t.dtype, t.shape, t.strides) };
    let tensors: Vec<_> = invocation.tensors.iter().map(read).collect();
    let made = ops::eval_call_with(invocation.call, &tensors, invocation.sizes)
        .map_err(|e| ExternError::new(op, e))?;
    for (k, spec) in invocation.results.iter().enumerate() {
        let Some(ResultSpec { dtype, shape, strides, ptr: Some(ptr) }) = *spec else { continue };
        let wanted: Vec<usize> = shape.iter().map(|n| *n as usize).collect();
        match made.get(k) {
            Some(t) if t.shape == wanted && t.dtype == dtype => {
                // SAFETY: the runtime planned memory for the whole result.
                unsafe { strided::write(ptr, dtype, shape, strides, &t.data) };
            }
            Some(t) => {
                let message = format!("result {k} is {}{:?}, expected {dtype}{wanted:?}", t.dtype, t.shape);
                return Err(ExternError::new(op, message));
            }
            None => return Err(ExternError::new(op, format!("result {k} was not made"))),
        }
    }
    Ok(())
}

/// `result = beta · addend + alpha · (left @ right)` for each batch.
struct Product<'a> {
    addend: Option<TensorRef<'a>>,
    left: TensorRef<'a>,
    right: TensorRef<'a>,
    result: ResultSpec<'a>,
    alpha: f64,
    beta: f64,
}

/// Computes the call if it is a matrix product of f32 or f64.
fn matrix_product(invocation: &Invocation<'_>) -> bool {
    let Some(product) = product_of(invocation) else { return false };
    match product.result.dtype {
        DType::F32 => multiply::<f32>(&product),
        DType::F64 => multiply::<f64>(&product),
        _ => return false,
    }
    true
}

fn product_of<'a>(invocation: &Invocation<'a>) -> Option<Product<'a>> {
    let call = invocation.call;
    let (has_addend, rank) = match &*call.op {
        "aten.mm.default" => (false, 2),
        "aten.bmm.default" => (false, 3),
        "aten.addmm.default" => (true, 2),
        "aten.baddbmm.default" => (true, 3),
        _ => return None,
    };
    let operand = |k: usize| match call.args.get(k)? {
        Arg::Value(id) => invocation.tensors.get(id.0 as usize).copied(),
        _ => None,
    };
    let first = usize::from(has_addend);
    let result = (*invocation.results.first()?)?;
    let product = Product {
        addend: if has_addend { Some(operand(0)?) } else { None },
        left: operand(first)?,
        right: operand(first + 1)?,
        result,
        alpha: factor(call, invocation, "alpha")?,
        beta: factor(call, invocation, "beta")?,
    };
    let fits =
        [&product.left, &product.right].into_iter().chain(&product.addend).all(|t| t.dtype == result.dtype)
            && product.left.shape.len() == rank
            && product.right.shape.len() == rank
            && result.shape.len() == rank
            && result.ptr.is_some();
    fits.then_some(product)
}

/// A keyword argument that is 1 when absent.
fn factor(call: &ExternCall, invocation: &Invocation<'_>, name: &str) -> Option<f64> {
    match call.kwargs.iter().find(|(n, _)| &**n == name).map(|(_, value)| value) {
        None => Some(1.0),
        Some(Arg::Float(v)) => Some(*v),
        Some(Arg::Size(s)) => s.eval(invocation.sizes).map(|v| v as f64),
        Some(_) => None,
    }
}

/// An element type with a matrix product.
trait Element: Copy + std::ops::Mul<Output = Self> {
    const ZERO: Self;

    fn from_f64(value: f64) -> Self;

    /// # Safety
    /// As `matrixmultiply::sgemm`.
    #[allow(clippy::too_many_arguments)]
    unsafe fn gemm(
        size: (usize, usize, usize),
        alpha: Self,
        a: (*const Self, isize, isize),
        b: (*const Self, isize, isize),
        beta: Self,
        c: (*mut Self, isize, isize),
    );
}

macro_rules! element {
    ($type:ty, $gemm:path) => {
        impl Element for $type {
            const ZERO: Self = 0.0;

            fn from_f64(value: f64) -> Self {
                value as $type
            }

            unsafe fn gemm(
                (m, k, n): (usize, usize, usize),
                alpha: Self,
                a: (*const Self, isize, isize),
                b: (*const Self, isize, isize),
                beta: Self,
                c: (*mut Self, isize, isize),
            ) {
                // SAFETY: the caller's promise.
                unsafe { $gemm(m, k, n, alpha, a.0, a.1, a.2, b.0, b.1, b.2, beta, c.0, c.1, c.2) }
            }
        }
    };
}
element!(f32, matrixmultiply::sgemm);
element!(f64, matrixmultiply::dgemm);

/// Rows, columns and their strides of the last two dimensions, and the batch stride before them.
fn matrix_strides(strides: &[i64]) -> (isize, isize, isize) {
    let from_last = |k: usize| strides.len().checked_sub(k).map_or(0, |d| strides[d] as isize);
    (from_last(3), from_last(2), from_last(1))
}

fn multiply<T: Element>(product: &Product<'_>) {
    let Product { left, right, result, .. } = product;
    let Some(out) = result.ptr else { return };
    let rank = result.shape.len();
    let (m, n) = (result.shape[rank - 2] as usize, result.shape[rank - 1] as usize);
    let (k, batches) = (left.shape[rank - 1] as usize, if rank == 3 { result.shape[0] as usize } else { 1 });
    // As in PyTorch, a beta of zero ignores the addend even where it is NaN.
    let addend = product.addend.filter(|_| product.beta != 0.0);
    if let Some(addend) = addend {
        scale_into::<T>(&addend, T::from_f64(product.beta), result, out.cast());
    }
    let beta = if addend.is_some() { T::from_f64(1.0) } else { T::ZERO };
    let (a, b, c) =
        (matrix_strides(left.strides), matrix_strides(right.strides), matrix_strides(result.strides));
    for batch in 0..batches as isize {
        // SAFETY: the runtime gives tensors whose elements are all there, and the result overlaps no operand.
        unsafe {
            T::gemm(
                (m, k, n),
                T::from_f64(product.alpha),
                (left.ptr.cast::<T>().offset(batch * a.0), a.1, a.2),
                (right.ptr.cast::<T>().offset(batch * b.0), b.1, b.2),
                beta,
                (out.cast::<T>().offset(batch * c.0), c.1, c.2),
            );
        }
    }
}

/// Writes `beta · addend`, broadcast to the result's shape.
fn scale_into<T: Element>(addend: &TensorRef<'_>, beta: T, result: &ResultSpec<'_>, out: *mut T) {
    let missing = result.shape.len() - addend.shape.len();
    let strides: Vec<i64> = (0..result.shape.len())
        .map(|d| if d < missing || addend.shape[d - missing] == 1 { 0 } else { addend.strides[d - missing] })
        .collect();
    let mut from = Vec::new();
    strided::for_each_position(result.shape, &strides, |position| from.push(position));
    let mut from = from.into_iter();
    strided::for_each_position(result.shape, result.strides, |position| {
        let Some(source) = from.next() else { return };
        // SAFETY: the runtime gives tensors whose elements are all there.
        unsafe {
            *out.offset(position as isize) = beta * *addend.ptr.cast::<T>().offset(source as isize);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use loafc_ir::graph::TensorId;
    use loafc_ir::nest::StepId;
    use loafc_ir::size::{Size, SymbolValues};

    fn call(op: &str, args: usize, kwargs: &[(&str, Arg)]) -> ExternCall {
        ExternCall {
            op: op.into(),
            args: (0..args).map(|k| Arg::Value(TensorId(k as u32))).collect(),
            kwargs: kwargs.iter().map(|(n, a)| ((*n).into(), a.clone())).collect(),
            tensors: vec![],
            results: vec![None],
            mutates: vec![],
            ordered: false,
            origin: None,
        }
    }

    fn tensor<'a>(data: &'a [f32], shape: &'a [i64], strides: &'a [i64]) -> TensorRef<'a> {
        let ptr = data.as_ptr().cast_mut().cast();
        TensorRef { ptr, dtype: DType::F32, shape, strides, input: None }
    }

    fn run(call: &ExternCall, tensors: &[TensorRef<'_>], shape: &[i64]) -> Vec<f32> {
        let strides = strided::contiguous_strides(shape);
        let mut out = vec![f32::NAN; shape.iter().product::<i64>() as usize];
        let ptr = Some(out.as_mut_ptr().cast());
        let result = ResultSpec { dtype: DType::F32, shape, strides: &strides, ptr };
        let sizes = SymbolValues::new();
        let invocation =
            Invocation { call, step: StepId(0), tensors, results: &[Some(result)], sizes: &sizes };
        assert!(matrix_product(&invocation));
        out
    }

    #[test]
    fn matrices_multiply_whatever_their_strides() {
        let (a, b) = ([1., 2., 3., 4., 5., 6.], [1., 0., 2., 1., 0., 3.]);
        let (left, right) = (tensor(&a, &[2, 3], &[3, 1]), tensor(&b, &[3, 2], &[1, 3]));
        // b as [3, 2] in column order is [[1, 1], [0, 0], [2, 3]].
        assert_eq!(run(&call("aten.mm.default", 2, &[]), &[left, right], &[2, 2]), [7., 10., 16., 22.]);
    }

    #[test]
    fn the_addend_broadcasts_and_a_zero_beta_ignores_it() {
        let (bias, a, b) = ([10., f32::NAN], [1., 2.], [3., 4.]);
        let tensors = [tensor(&bias, &[2], &[1]), tensor(&a, &[2, 1], &[1, 1]), tensor(&b, &[1, 2], &[2, 1])];
        let plain = run(&call("aten.addmm.default", 3, &[]), &tensors, &[2, 2]);
        assert_eq!((plain[0], plain[2]), (13., 16.));
        assert!(plain[1].is_nan() && plain[3].is_nan());
        let factors = [("beta", Arg::Size(Size::ZERO)), ("alpha", Arg::Float(2.0))];
        assert_eq!(run(&call("aten.addmm.default", 3, &factors), &tensors, &[2, 2]), [6., 8., 12., 16.]);
    }

    #[test]
    fn batches_and_empty_inner_dimensions_work() {
        let (a, b) = ([1., 2., 3., 4.], [5., 6., 7., 8.]);
        let tensors = [tensor(&a, &[2, 1, 2], &[2, 2, 1]), tensor(&b, &[2, 2, 1], &[2, 1, 1])];
        assert_eq!(run(&call("aten.bmm.default", 2, &[]), &tensors, &[2, 1, 1]), [17., 53.]);
        let empty = [tensor(&a, &[2, 0], &[1, 1]), tensor(&b, &[0, 3], &[3, 1])];
        assert_eq!(run(&call("aten.mm.default", 2, &[]), &empty, &[2, 3]), [0.; 6]);
    }
}
