//! Reductions: one nest that computes the input's elements, combines them over the reduced loops, finishes the
//! result (divides by the count, takes the root) and stores it.

use loafc_ir::dtype::{DType, Scalar};
use loafc_ir::graph::{Dims, TensorType};
use loafc_ir::index::Index;
use loafc_ir::nest::{BinaryOp, Loop, LoopKind, Op, ReduceOp, UnaryOp, ValueId};
use loafc_ir::size::Size;

use crate::emit::Emitter;
use crate::expr::{Expr, ExprId};
use crate::lowering::{Coords, Lowering};
use crate::view::{dense_strides, position};

/// What is reduced, how.
pub(crate) struct Reduction<'a> {
    /// The elements, in the type that they are combined in.
    pub input: ExprId,
    /// Dimensions that are reduced over.
    pub dims: &'a [usize],
    /// Whether they stay, with extent 1.
    pub keepdim: bool,
    /// How elements are combined.
    pub op: ReduceOp,
}

/// A result of a reduction: how it comes from the combined elements.
#[derive(Clone, Debug)]
pub(crate) struct Finish {
    /// Which of the reduction's results, with what is done to it.
    pub value: FinishValue,
    /// Its type; the value is converted to it.
    pub dtype: DType,
    /// Position among the call's results: gives it strides and a name, if it is one.
    pub result: Option<usize>,
}

/// How a result comes from the combined elements.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(crate) enum FinishValue {
    /// The first result of [`ReduceOp`].
    First,
    /// The second.
    Second,
    /// The first divided by the number of elements.
    Mean,
    /// The first of [`ReduceOp::Welford`], NaN where there are no elements.
    WelfordMean,
    /// The second divided by the number of elements less this correction.
    Variance(f64),
    /// The root of that.
    Deviation(f64),
    /// The root of the first.
    Root,
}

impl Lowering<'_> {
    /// Emits a reduction and gives its results as stored tensors.
    pub(crate) fn reduce(&mut self, reduction: &Reduction, finishes: &[Finish]) -> Vec<ExprId> {
        let from = self.shape(reduction.input);
        if reduction.dims.iter().all(|d| from[*d].is(1)) {
            return self.reduce_nothing(reduction, finishes);
        }
        let kept = kept_shape(reduction, &from);
        let targets: Vec<_> = finishes
            .iter()
            .map(|finish| {
                let strides = match finish.result.and_then(|k| self.result(k)) {
                    Some(ty) if ty.shape.len() == kept.len() => dense_strides(&kept, &ty.strides),
                    _ => loafc_ir::graph::contiguous_strides(&kept),
                };
                let ty =
                    TensorType { dtype: finish.dtype, shape: kept.clone(), strides, device: self.device() };
                let name = self.result_name(finish.result.unwrap_or(0));
                self.new_buffer(name, &ty)
            })
            .collect();

        let outer: Vec<usize> = (0..from.len()).filter(|d| !reduction.dims.contains(d)).collect();
        // Stride of each dimension of the input in the first result and in the input's own memory.
        let kept_strides: Vec<Size> = outer
            .iter()
            .enumerate()
            .map(|(k, d)| targets[0].strides[if reduction.keepdim { *d } else { k }])
            .collect();
        let outer_extents: Vec<Size> = outer.iter().map(|d| from[*d]).collect();
        let mut order: Vec<usize> =
            self.loop_order(&outer_extents, &kept_strides).into_iter().map(|k| outer[k]).collect();
        let parallel = order.len();
        let input_strides = self.memory_strides(reduction.input);
        let mut inner: Vec<usize> = reduction.dims.to_vec();
        inner.sort_unstable();
        let inner_extents: Vec<Size> = inner.iter().map(|d| from[*d]).collect();
        let inner_strides: Vec<Size> = inner.iter().map(|d| input_strides[*d]).collect();
        order.extend(self.loop_order(&inner_extents, &inner_strides).into_iter().map(|k| inner[k]));

        let loops = order
            .iter()
            .enumerate()
            .map(|(k, d)| Loop {
                extent: from[*d],
                kind: if k < parallel { LoopKind::Parallel } else { LoopKind::Reduction },
            })
            .collect();
        let at = crate::lowering::loop_coordinates(&order, &from);
        let mut emitter = Emitter::new(&self.arena, loops);
        let input_at = emitter.coordinates(&at);
        let value = emitter.emit(reduction.input, input_at, None);
        let position_value = matches!(reduction.op, ReduceOp::ArgMax | ReduceOp::ArgMin).then(|| {
            // Row-major position among the reduced dimensions.
            let mut flat = Index::constant(Size::ZERO);
            let mut stride = Size::ONE;
            for d in inner.iter().rev() {
                flat = flat.plus(&at[*d].times(stride));
                stride *= from[*d];
            }
            emitter.index_value(flat)
        });
        let computes_in = self.arena.get(reduction.input).dtype;
        let count: Size = inner.iter().map(|d| from[*d]).product();
        let first = emitter.push(Op::Reduce { op: reduction.op, value, position: position_value });
        let second = if reduction.op.has_second() { emitter.push(Op::ReduceSecond(first)) } else { first };
        for (finish, target) in finishes.iter().zip(&targets) {
            let mut value = finish_value(&mut emitter, finish.value, first, second, count, computes_in);
            let made = match (finish.value, reduction.op) {
                (FinishValue::Second, ReduceOp::ArgMax | ReduceOp::ArgMin) => DType::I64,
                _ => computes_in,
            };
            if made != finish.dtype {
                value = emitter.push(Op::Cast(value, finish.dtype));
            }
            let coords: Coords = if reduction.keepdim {
                (0..from.len())
                    .map(|d| if reduction.dims.contains(&d) { Index::default() } else { at[d].clone() })
                    .collect()
            } else {
                outer.iter().map(|d| at[*d].clone()).collect()
            };
            emitter.set(target.buffer, position(target, &coords), value);
        }
        let (nest, mut origins) = emitter.finish();
        origins.push(self.current_origin());
        self.push_nest((nest, origins));
        finishes
            .iter()
            .zip(targets)
            .map(|(finish, view)| self.make(Expr::Load(view), finish.dtype, &kept))
            .collect()
    }

    /// Emits a reduction inside a composition and gives its only result.
    pub(crate) fn reduce_to(&mut self, reduction: &Reduction, value: FinishValue) -> ExprId {
        let dtype = self.dtype(reduction.input);
        self.reduce(reduction, &[Finish { value, dtype, result: None }])[0]
    }

    /// A reduction over dimensions of extent 1 alone combines nothing: its results are pointwise.
    fn reduce_nothing(&mut self, reduction: &Reduction, finishes: &[Finish]) -> Vec<ExprId> {
        let kept = kept_shape(reduction, &self.shape(reduction.input));
        let value = self.reshape(reduction.input, &kept);
        finishes
            .iter()
            .map(|finish| {
                let result = match finish.value {
                    FinishValue::First | FinishValue::Mean | FinishValue::WelfordMean => value,
                    FinishValue::Root => self.unary(UnaryOp::Sqrt, value),
                    FinishValue::Second if reduction.op == ReduceOp::Welford => {
                        self.spread_of_one(value, 0.0)
                    }
                    FinishValue::Second => self.constant(Scalar::Int(0), DType::I64, &kept),
                    FinishValue::Variance(correction) => self.spread_of_one(value, correction),
                    FinishValue::Deviation(correction) => {
                        let variance = self.spread_of_one(value, correction);
                        self.unary(UnaryOp::Sqrt, variance)
                    }
                };
                self.cast(result, finish.dtype)
            })
            .collect()
    }

    /// Variance of one element: zero over the count less the correction, but NaN for infinities and NaN.
    fn spread_of_one(&mut self, value: ExprId, correction: f64) -> ExprId {
        let difference = self.binary(BinaryOp::Sub, value, value);
        let n = self.float((1.0 - correction).max(0.0), value);
        self.binary(BinaryOp::Div, difference, n)
    }

    /// Strides by which a value's elements are likely read: its own if it is in memory, else those it would be
    /// stored with.
    fn memory_strides(&self, id: ExprId) -> Vec<Size> {
        let node = self.arena.get(id);
        match &node.expr {
            Expr::Load(view) => view.strides.clone(),
            Expr::Cast(a) | Expr::Unary(_, a) | Expr::Copy(a) => self.memory_strides(*a),
            Expr::Binary(_, a, b) => {
                let (a, b) = (self.memory_strides(*a), self.memory_strides(*b));
                // A broadcast operand says less about the order than one that moves everywhere.
                let moves = |s: &[Size]| s.iter().filter(|s| !s.is(0)).count();
                if moves(&b) > moves(&a) { b } else { a }
            }
            _ => node.strides.to_vec(),
        }
    }
}

fn kept_shape(reduction: &Reduction, from: &[Size]) -> Dims {
    if reduction.keepdim {
        (0..from.len()).map(|d| if reduction.dims.contains(&d) { Size::ONE } else { from[d] }).collect()
    } else {
        (0..from.len()).filter(|d| !reduction.dims.contains(d)).map(|d| from[d]).collect()
    }
}

fn finish_value(
    emitter: &mut Emitter,
    finish: FinishValue,
    first: ValueId,
    second: ValueId,
    count: Size,
    dtype: DType,
) -> ValueId {
    match finish {
        FinishValue::First => first,
        FinishValue::Second => second,
        FinishValue::Root => emitter.unary(UnaryOp::Sqrt, first),
        FinishValue::Mean => {
            let n = count_value(emitter, count, dtype);
            emitter.push(Op::Binary(BinaryOp::Div, first, n))
        }
        FinishValue::WelfordMean => mean_of_some(emitter, first, count, dtype),
        FinishValue::Variance(correction) => variance(emitter, second, count, correction, dtype),
        FinishValue::Deviation(correction) => {
            let variance = variance(emitter, second, count, correction, dtype);
            emitter.unary(UnaryOp::Sqrt, variance)
        }
    }
}

/// A mean, or NaN where it is one of nothing.
fn mean_of_some(emitter: &mut Emitter, mean: ValueId, count: Size, dtype: DType) -> ValueId {
    if count.as_const().is_some_and(|c| c != 0) {
        return mean;
    }
    let n = count_value(emitter, count, dtype);
    let zero = emitter.constant(Scalar::Float(0.0), dtype);
    let nan = emitter.constant(Scalar::Float(f64::NAN), dtype);
    let empty = emitter.push(Op::Binary(BinaryOp::Eq, n, zero));
    emitter.push(Op::Where(empty, nan, mean))
}

/// Sum of squares over the count less the correction, which counts as zero when negative.
fn variance(emitter: &mut Emitter, squares: ValueId, count: Size, correction: f64, dtype: DType) -> ValueId {
    let n = match count.as_const() {
        Some(c) => emitter.constant(Scalar::Float((c as f64 - correction).max(0.0)), dtype),
        None => {
            let n = count_value(emitter, count, dtype);
            let correction = emitter.constant(Scalar::Float(correction), dtype);
            let zero = emitter.constant(Scalar::Float(0.0), dtype);
            let n = emitter.push(Op::Binary(BinaryOp::Sub, n, correction));
            emitter.push(Op::Binary(BinaryOp::Max, n, zero))
        }
    };
    emitter.push(Op::Binary(BinaryOp::Div, squares, n))
}

fn count_value(emitter: &mut Emitter, count: Size, dtype: DType) -> ValueId {
    match count.as_const() {
        Some(c) => emitter.constant(Scalar::Float(c as f64), dtype),
        None => {
            let n = emitter.push(Op::SizeValue(count));
            emitter.push(Op::Cast(n, dtype))
        }
    }
}
