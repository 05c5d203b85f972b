//! Builds tensor programs call by call, for Rust users and tests. Types of results are inferred as each call is
//! made, so that a mistake shows where it is made.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::dtype::DType;
use crate::graph::{Arg, Graph, Input, Node, TensorId, TensorType, TypeError, Value, ValueType};
use crate::ops::{self, InferError};
use crate::size::Size;

/// A program under construction.
///
/// Values get the names `v0`, `v1`, … unless [`GraphBuilder::name`] gives them another one.
///
/// ```
/// use loafc_ir::builder::GraphBuilder;
/// use loafc_ir::dtype::DType;
/// use loafc_ir::graph::TensorType;
/// use loafc_ir::size::Size;
///
/// # fn main() -> Result<(), loafc_ir::builder::BuildError> {
/// let mut g = GraphBuilder::new("rms_norm");
/// let rows = g.size_symbol("rows", Some(4096));
/// let x = g.input("x", TensorType::contiguous(DType::F32, [rows, Size::from(1024)]))?;
/// let w = g.input("w", TensorType::contiguous(DType::F32, [Size::from(1024)]))?;
/// let squares = g.mul(x, x)?;
/// let mean = g.mean(squares, &[-1], true)?;
/// let stable = g.add(mean, 1e-6)?;
/// let scale = g.rsqrt(stable)?;
/// let normed = g.mul(x, scale)?;
/// let scaled = g.mul(normed, w)?;
/// let graph = g.finish(&[scaled]);
/// assert_eq!(graph.tensor_type(scaled).unwrap().to_string(), "f32[rows, 1024]");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct GraphBuilder {
    graph: Graph,
    names: FxHashMap<Arc<str>, TensorId>,
    next_name: usize,
}

/// A call that can't be added to a program.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum BuildError {
    /// The types of the results can't be inferred.
    #[error(transparent)]
    Infer(#[from] InferError),
    /// The type of an input or result is one that no tensor can have.
    #[error("%{name} can't be {dtype}{}: {error}", ops::call::shape_text(shape))]
    Type {
        /// Name of the value.
        name: String,
        /// Its element type.
        dtype: DType,
        /// Its extents.
        shape: Vec<Size>,
        /// What is wrong.
        error: TypeError,
    },
    /// The name of an input or value is taken.
    #[error("%{0} is defined twice; every value needs a name of its own")]
    DuplicateName(String),
    /// An argument that is no value of this program.
    #[error("value {0} is not one of this program's")]
    UnknownValue(u32),
    /// A call that was expected to have one tensor as its result.
    #[error("`{op}` has {results} results, not one; use `call_many`")]
    ResultCount {
        /// The operator.
        op: String,
        /// Number of results.
        results: usize,
    },
}

impl From<TensorId> for Arg {
    fn from(id: TensorId) -> Arg {
        Arg::Value(id)
    }
}
impl From<Size> for Arg {
    fn from(size: Size) -> Arg {
        Arg::Size(size)
    }
}
impl From<i64> for Arg {
    fn from(value: i64) -> Arg {
        Arg::Size(Size::from(value))
    }
}
impl From<f64> for Arg {
    fn from(value: f64) -> Arg {
        Arg::Float(value)
    }
}
impl From<bool> for Arg {
    fn from(value: bool) -> Arg {
        Arg::Bool(value)
    }
}
impl From<DType> for Arg {
    fn from(dtype: DType) -> Arg {
        Arg::DType(dtype)
    }
}
impl From<&str> for Arg {
    fn from(text: &str) -> Arg {
        Arg::Str(text.into())
    }
}
impl From<&[i64]> for Arg {
    fn from(values: &[i64]) -> Arg {
        Arg::List(values.iter().map(|v| Arg::from(*v)).collect())
    }
}
impl From<&[Size]> for Arg {
    fn from(sizes: &[Size]) -> Arg {
        Arg::List(sizes.iter().map(|s| Arg::Size(*s)).collect())
    }
}
impl From<&[TensorId]> for Arg {
    fn from(values: &[TensorId]) -> Arg {
        Arg::List(values.iter().map(|v| Arg::Value(*v)).collect())
    }
}

/// Result of adding a call.
pub type Built = Result<TensorId, BuildError>;

impl GraphBuilder {
    /// An empty program.
    pub fn new(name: &str) -> GraphBuilder {
        let graph = Graph { name: name.into(), ..Graph::default() };
        GraphBuilder { graph, ..GraphBuilder::default() }
    }

    /// A size symbol, bound when the program is called by the first extent of an input that is this symbol
    /// alone. `hint` is the value that scores assume.
    pub fn size_symbol(&mut self, name: &str, hint: Option<i64>) -> Size {
        if let Some(hint) = hint {
            self.graph.hints.set(name, hint);
        }
        Size::symbol(name)
    }

    /// An input tensor.
    pub fn input(&mut self, name: &str, ty: TensorType) -> Built {
        let id = self.define(name.into(), ValueType::Tensor(ty))?;
        self.graph.inputs.push(Input::Tensor(id));
        Ok(id)
    }

    /// An input integer that gives the size symbol of the same name its value.
    pub fn size_input(&mut self, name: &str, hint: Option<i64>) -> Result<Size, BuildError> {
        let size = self.size_symbol(name, hint);
        let id = self.define(name.into(), ValueType::Size(size))?;
        self.graph.inputs.push(Input::Size(id, name.into()));
        Ok(size)
    }

    /// Renames a value.
    pub fn name(&mut self, id: TensorId, name: &str) -> Result<(), BuildError> {
        let shared: Arc<str> = name.into();
        let value = self.graph.values.get_mut(id.0 as usize).ok_or(BuildError::UnknownValue(id.0))?;
        match self.names.get(&shared) {
            Some(taken) if *taken != id => return Err(BuildError::DuplicateName(name.to_owned())),
            _ => {}
        }
        let old = std::mem::replace(&mut value.name, shared.clone());
        self.names.remove(&old);
        self.names.insert(shared, id);
        Ok(())
    }

    /// The type of a tensor; `None` for a size, or what is no value of this program.
    pub fn tensor_type(&self, id: TensorId) -> Option<&TensorType> {
        match &self.graph.values.get(id.0 as usize)?.ty {
            ValueType::Tensor(ty) => Some(ty),
            ValueType::Size(_) => None,
        }
    }

    fn define(&mut self, name: Arc<str>, ty: ValueType) -> Built {
        let id = TensorId(self.graph.values.len() as u32);
        if self.names.contains_key(&name) {
            return Err(BuildError::DuplicateName(name.to_string()));
        }
        if let ValueType::Tensor(ty) = &ty {
            ty.check().map_err(|error| BuildError::Type {
                name: name.to_string(),
                dtype: ty.dtype,
                shape: ty.shape.to_vec(),
                error,
            })?;
        }
        self.names.insert(name.clone(), id);
        self.graph.values.push(Value { name, ty });
        Ok(id)
    }

    fn define_result(&mut self, ty: TensorType) -> Built {
        loop {
            let name = format!("v{}", self.next_name);
            self.next_name += 1;
            if !self.names.contains_key(name.as_str()) {
                return self.define(name.into(), ValueType::Tensor(ty));
            }
        }
    }

    /// Adds a call of any operator that loafc knows; lists of tensors are flattened. `None` stands for a result
    /// that is Python's `None`.
    pub fn call_many(
        &mut self,
        op: &str,
        args: Vec<Arg>,
        kwargs: Vec<(Arc<str>, Arg)>,
    ) -> Result<Vec<Option<TensorId>>, BuildError> {
        args.iter().chain(kwargs.iter().map(|(_, arg)| arg)).try_for_each(|arg| self.check_values(arg))?;
        let values = &self.graph.values;
        let types = ops::infer(op, &args, &kwargs, &|id: TensorId| values[id.0 as usize].ty.clone())?;
        self.add_node(op, args, kwargs, types)
    }

    /// Adds a call of an operator whose results have these types: for operators that loafc does not know, which
    /// become calls into a library.
    pub fn call_unknown(
        &mut self,
        op: &str,
        args: Vec<Arg>,
        kwargs: Vec<(Arc<str>, Arg)>,
        results: Vec<TensorType>,
    ) -> Result<Vec<TensorId>, BuildError> {
        args.iter().chain(kwargs.iter().map(|(_, arg)| arg)).try_for_each(|arg| self.check_values(arg))?;
        let made = self.add_node(op, args, kwargs, results.into_iter().map(Some).collect())?;
        Ok(made.into_iter().flatten().collect())
    }

    fn add_node(
        &mut self,
        op: &str,
        args: Vec<Arg>,
        kwargs: Vec<(Arc<str>, Arg)>,
        types: Vec<Option<TensorType>>,
    ) -> Result<Vec<Option<TensorId>>, BuildError> {
        let mut results = Vec::with_capacity(types.len());
        for ty in types {
            results.push(ty.map(|ty| self.define_result(ty)).transpose()?);
        }
        let made = results.clone();
        self.graph.nodes.push(Node { op: op.into(), args, kwargs, results, origin: None, span: None });
        Ok(made)
    }

    fn check_values(&self, arg: &Arg) -> Result<(), BuildError> {
        match arg {
            Arg::Value(id) if id.0 as usize >= self.graph.values.len() => Err(BuildError::UnknownValue(id.0)),
            Arg::List(items) => items.iter().try_for_each(|item| self.check_values(item)),
            _ => Ok(()),
        }
    }

    /// Adds a call of an operator that has one tensor as its result.
    pub fn call(&mut self, op: &str, args: Vec<Arg>, kwargs: Vec<(Arc<str>, Arg)>) -> Built {
        let results = self.call_many(op, args, kwargs)?;
        match results[..] {
            [Some(id)] => Ok(id),
            _ => Err(BuildError::ResultCount { op: op.to_owned(), results: results.len() }),
        }
    }

    /// The program, which returns these values.
    pub fn finish(mut self, outputs: &[TensorId]) -> Graph {
        self.graph.outputs = outputs.iter().map(|id| Arg::Value(*id)).collect();
        self.graph
    }

    /// The program, which returns these: values, sizes or `None`.
    pub fn finish_with(mut self, outputs: Vec<Arg>) -> Graph {
        self.graph.outputs = outputs;
        self.graph
    }
}

/// Methods for operators that differ in their name alone.
macro_rules! operators {
    ($(
        $(#[$doc:meta])*
        $name:ident($($arg:ident: $kind:ty),*) = $op:literal;
    )*) => {
        impl GraphBuilder {
            $(
                $(#[$doc])*
                pub fn $name(&mut self, $($arg: $kind),*) -> Built {
                    self.call($op, vec![$(Arg::from($arg)),*], Vec::new())
                }
            )*
        }
    };
}

operators! {
    /// `-x`
    neg(x: TensorId) = "aten.neg.default";
    /// `|x|`
    abs(x: TensorId) = "aten.abs.default";
    /// `eˣ`
    exp(x: TensorId) = "aten.exp.default";
    /// Natural logarithm.
    log(x: TensorId) = "aten.log.default";
    /// Square root.
    sqrt(x: TensorId) = "aten.sqrt.default";
    /// `1 / √x`
    rsqrt(x: TensorId) = "aten.rsqrt.default";
    /// `1 / x`
    reciprocal(x: TensorId) = "aten.reciprocal.default";
    /// Hyperbolic tangent.
    tanh(x: TensorId) = "aten.tanh.default";
    /// `1 / (1 + e⁻ˣ)`
    sigmoid(x: TensorId) = "aten.sigmoid.default";
    /// `max(x, 0)`
    relu(x: TensorId) = "aten.relu.default";
    /// Gaussian error linear unit.
    gelu(x: TensorId) = "aten.gelu.default";
    /// `x · sigmoid(x)`
    silu(x: TensorId) = "aten.silu.default";
    /// Sine.
    sin(x: TensorId) = "aten.sin.default";
    /// Cosine.
    cos(x: TensorId) = "aten.cos.default";
    /// Error function.
    erf(x: TensorId) = "aten.erf.default";
    /// The larger of two, elementwise.
    maximum(x: TensorId, y: TensorId) = "aten.maximum.default";
    /// The smaller of two, elementwise.
    minimum(x: TensorId, y: TensorId) = "aten.minimum.default";
    /// `a` where `condition` is true, else `b`.
    where_(condition: TensorId, a: TensorId, b: TensorId) = "aten.where.self";
    /// Converts to another element type.
    cast(x: TensorId, dtype: DType) = "prims.convert_element_type.default";
    /// Forces a buffer: the identity, whose result is stored.
    realize(x: TensorId) = "loafc.realize.default";
    /// Sum over dimensions.
    sum(x: TensorId, dims: &[i64], keepdim: bool) = "aten.sum.dim_IntList";
    /// Mean over dimensions.
    mean(x: TensorId, dims: &[i64], keepdim: bool) = "aten.mean.dim";
    /// Largest value over dimensions.
    amax(x: TensorId, dims: &[i64], keepdim: bool) = "aten.amax.default";
    /// Smallest value over dimensions.
    amin(x: TensorId, dims: &[i64], keepdim: bool) = "aten.amin.default";
    /// Product of matrices, or of batches of them.
    matmul(a: TensorId, b: TensorId) = "aten.matmul.default";
    /// The same elements, in order, in another shape; -1 stands for what is left.
    view(x: TensorId, shape: &[Size]) = "aten.view.default";
    /// [`GraphBuilder::view`], with a copy where strides don't allow a view.
    reshape(x: TensorId, shape: &[Size]) = "aten.reshape.default";
    /// Dimensions in another order.
    permute(x: TensorId, dims: &[i64]) = "aten.permute.default";
    /// Two dimensions swapped.
    transpose(x: TensorId, dim0: i64, dim1: i64) = "aten.transpose.int";
    /// Dimensions of extent 1 repeated; -1 keeps an extent.
    expand(x: TensorId, shape: &[Size]) = "aten.expand.default";
    /// A new dimension of extent 1.
    unsqueeze(x: TensorId, dim: i64) = "aten.unsqueeze.default";
    /// Elements `start..end` of a dimension, every `step`-th one.
    slice(x: TensorId, dim: i64, start: Size, end: Size, step: i64) = "aten.slice.Tensor";
    /// One position of a dimension, which goes away.
    select(x: TensorId, dim: i64, index: Size) = "aten.select.int";
    /// A contiguous copy, unless it is contiguous.
    contiguous(x: TensorId) = "aten.contiguous.default";
    /// Tensors one behind the other along a dimension.
    cat(tensors: &[TensorId], dim: i64) = "aten.cat.default";
    /// Tensors side by side in a new dimension.
    stack(tensors: &[TensorId], dim: i64) = "aten.stack.default";
    /// Elements along a dimension by position.
    gather(x: TensorId, dim: i64, index: TensorId) = "aten.gather.default";
    /// Whole slices along a dimension by position.
    index_select(x: TensorId, dim: i64, index: TensorId) = "aten.index_select.default";
    /// Rows of a table by position.
    embedding(weight: TensorId, indices: TensorId) = "aten.embedding.default";
}

/// Methods for operators that take a tensor, a number or a size on the right.
macro_rules! binary_operators {
    ($($(#[$doc:meta])* $name:ident = $tensor:literal, $scalar:literal;)*) => {
        impl GraphBuilder {
            $(
                $(#[$doc])*
                pub fn $name(&mut self, a: TensorId, b: impl Into<Arg>) -> Built {
                    let b = b.into();
                    let op = if self.is_tensor(&b) { $tensor } else { $scalar };
                    self.call(op, vec![Arg::Value(a), b], Vec::new())
                }
            )*
        }
    };
}

binary_operators! {
    /// `a + b`
    add = "aten.add.Tensor", "aten.add.Scalar";
    /// `a - b`
    sub = "aten.sub.Tensor", "aten.sub.Scalar";
    /// `a · b`
    mul = "aten.mul.Tensor", "aten.mul.Scalar";
    /// `a / b`
    div = "aten.div.Tensor", "aten.div.Scalar";
    /// `aᵇ`
    pow = "aten.pow.Tensor_Tensor", "aten.pow.Tensor_Scalar";
    /// `a == b`
    eq = "aten.eq.Tensor", "aten.eq.Scalar";
    /// `a != b`
    ne = "aten.ne.Tensor", "aten.ne.Scalar";
    /// `a < b`
    lt = "aten.lt.Tensor", "aten.lt.Scalar";
    /// `a <= b`
    le = "aten.le.Tensor", "aten.le.Scalar";
    /// `a > b`
    gt = "aten.gt.Tensor", "aten.gt.Scalar";
    /// `a >= b`
    ge = "aten.ge.Tensor", "aten.ge.Scalar";
}

impl GraphBuilder {
    fn is_tensor(&self, arg: &Arg) -> bool {
        matches!(arg, Arg::Value(id) if self.tensor_type(*id).is_some())
    }

    /// Exponentials along a dimension, divided by their sum.
    pub fn softmax(&mut self, x: TensorId, dim: i64) -> Built {
        self.call("aten._softmax.default", vec![x.into(), dim.into(), false.into()], Vec::new())
    }

    /// `min(max(x, low), high)`
    pub fn clamp(&mut self, x: TensorId, low: f64, high: f64) -> Built {
        self.call("aten.clamp.default", vec![x.into(), low.into(), high.into()], Vec::new())
    }

    /// Writes a value into an input.
    pub fn copy_into(&mut self, input: TensorId, value: TensorId) -> Built {
        self.call("aten.copy_.default", vec![input.into(), value.into()], Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn matrix(rows: i64, columns: i64) -> TensorType {
        TensorType::contiguous(DType::F32, [Size::from(rows), Size::from(columns)])
    }

    #[test]
    fn calls_infer_the_types_of_their_results() {
        let mut g = GraphBuilder::new("softmax");
        let x = g.input("x", matrix(4, 8)).unwrap();
        let top = g.amax(x, &[0], true).unwrap();
        let shifted = g.sub(x, top).unwrap();
        let e = g.exp(shifted).unwrap();
        g.name(e, "e").unwrap();
        let sum = g.sum(e, &[0], true).unwrap();
        let y = g.div(e, sum).unwrap();
        let scaled = g.mul(y, 2.0).unwrap();
        let flipped = g.transpose(scaled, 0, 1).unwrap();
        let half = g.cast(flipped, DType::BF16).unwrap();
        expect![[r#"
            graph @softmax(%x: f32[4, 8]) {
              %v0: f32[1, 8] = aten.amax.default(%x, [0], true)
              %v1: f32[4, 8] = aten.sub.Tensor(%x, %v0)
              %e: f32[4, 8] = aten.exp.default(%v1)
              %v3: f32[1, 8] = aten.sum.dim_IntList(%e, [0], true)
              %v4: f32[4, 8] = aten.div.Tensor(%e, %v3)
              %v5: f32[4, 8] = aten.mul.Scalar(%v4, 2.0)
              %v6: f32[8, 4] strides [1, 8] = aten.transpose.int(%v5, 0, 1)
              %v7: bf16[8, 4] strides [1, 8] = prims.convert_element_type.default(%v6, bf16)
              return %v7
            }
        "#]]
        .assert_eq(&g.finish(&[half]).to_string());
    }

    #[test]
    fn mistakes_show_where_they_are_made() {
        let mut g = GraphBuilder::new("g");
        let x = g.input("x", matrix(4, 8)).unwrap();
        let y = g.input("y", matrix(3, 8)).unwrap();
        assert!(matches!(g.input("x", matrix(1, 1)), Err(BuildError::DuplicateName(_))));
        assert!(matches!(g.add(x, y), Err(BuildError::Infer(_))));
        assert_eq!(g.neg(TensorId(77)), Err(BuildError::UnknownValue(77)));
        assert!(matches!(g.call("aten.no_such", vec![], vec![]), Err(BuildError::Infer(_))));
        assert!(matches!(g.name(y, "x"), Err(BuildError::DuplicateName(_))));
        assert!(matches!(g.input("z", matrix(-1, 8)), Err(BuildError::Type { .. })));
        let huge = g.expand(x, &[Size::from(i64::MAX), Size::from(4), Size::from(8)]);
        expect!["%v0 can't be f32[9223372036854775807, 4, 8]: it takes 2^62 bytes or more"]
            .assert_eq(&huge.unwrap_err().to_string());
    }

    #[test]
    fn unknown_operators_take_the_types_they_are_given() {
        let mut g = GraphBuilder::new("g");
        let n = g.size_input("n", Some(7)).unwrap();
        let x = g.input("v0", TensorType::contiguous(DType::F32, [n])).unwrap();
        let made = g.call_unknown("my.op", vec![x.into(), n.into()], vec![], vec![matrix(2, 2)]).unwrap();
        expect![[r#"
            graph @g(n: size = 7, %v0: f32[n]) {
              %v1: f32[2, 2] = my.op(%v0, n)
              return %v1, n
            }
        "#]]
        .assert_eq(&g.finish_with(vec![made[0].into(), n.into()]).to_string());
    }
}
