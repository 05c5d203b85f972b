//! The tensor-program interpreter: runs operators on plain tensors, one after the other, as the definition of
//! what a program means. Slow and independent of the lowering, which is tested against it.

use std::sync::Arc;

use super::call::{Call, shape_text};
use super::elements::row_major;
use super::error::{EvalError, InferError};
use super::foreach::CallArgs;
use super::{ResultTypes, find};
use crate::dtype::Scalar;
use crate::graph::{Arg, Device, Dims, Graph, Input, Node, TensorId, TensorType, ValueType};
use crate::interp::scalar::ScalarError;
use crate::interp::tensor::HostTensor;
use crate::nest::ExternCall;
use crate::size::{Size, SymbolValues};

/// What went wrong inside of one operator; its name is added by [`Fault::of`].
pub(super) enum Fault {
    Infer(InferError),
    Scalar(ScalarError),
    Value(String),
    Index { index: i64, dim: usize, extent: usize },
    Unbound(Size),
}

impl From<InferError> for Fault {
    fn from(error: InferError) -> Fault {
        Fault::Infer(error)
    }
}
impl From<ScalarError> for Fault {
    fn from(error: ScalarError) -> Fault {
        Fault::Scalar(error)
    }
}

impl Fault {
    fn of(self, op: &str) -> EvalError {
        let op = op.to_owned();
        match self {
            Fault::Infer(error) => EvalError::Infer(error),
            Fault::Scalar(error) => EvalError::Arithmetic { op, message: error.to_string() },
            Fault::Value(message) => EvalError::Value { op, message },
            Fault::Index { index, dim, extent } => EvalError::IndexOutOfRange { op, index, dim, extent },
            Fault::Unbound(size) => EvalError::UnboundSize { size },
        }
    }
}

/// A call with the values of its operands. All sizes among its arguments and types are constants.
pub(super) struct EvalCall<'c, 'a> {
    /// The arguments.
    pub(super) call: Call<'c>,
    values: &'a dyn Fn(TensorId) -> Option<&'a HostTensor>,
    types: ResultTypes,
}

impl<'a> EvalCall<'_, 'a> {
    /// The value of a tensor.
    pub(super) fn value(&self, id: TensorId) -> Result<&'a HostTensor, Fault> {
        (self.values)(id).ok_or_else(|| Fault::Value(format!("value {} is used before it is made", id.0)))
    }

    /// A tensor among the arguments.
    pub(super) fn tensor(&self, position: usize, name: &str) -> Result<&'a HostTensor, Fault> {
        self.value(self.call.tensor(position, name)?.id)
    }

    /// A tensor among the arguments, or nothing.
    pub(super) fn opt_tensor(&self, position: usize, name: &str) -> Result<Option<&'a HostTensor>, Fault> {
        match self.call.opt_tensor(position, name)? {
            Some(t) => self.value(t.id).map(Some),
            None => Ok(None),
        }
    }

    /// A list of tensors among the arguments.
    pub(super) fn tensors(&self, position: usize, name: &str) -> Result<Vec<&'a HostTensor>, Fault> {
        self.call.tensors(position, name)?.into_iter().map(|t| self.value(t.id)).collect()
    }

    /// A number or a tensor of one element among the arguments, as a number.
    pub(super) fn number(&self, position: usize, name: &str) -> Result<Scalar, Fault> {
        match self.call.operand(position, name)? {
            super::Operand::Tensor(t) => match self.value(t.id)?.data.as_slice() {
                [one] => Ok(*one),
                _ => Err(self.call.invalid(name, "a tensor of one element was expected").into()),
            },
            super::Operand::Scalar(number) => Ok(number),
            super::Operand::Size(size) => Err(Fault::Unbound(size)),
        }
    }

    /// Type of a result.
    pub(super) fn result(&self, k: usize) -> Result<&TensorType, Fault> {
        self.types
            .get(k)
            .and_then(Option::as_ref)
            .ok_or_else(|| Fault::Value(format!("it has no result {k}")))
    }

    /// Another call on the same values.
    pub(super) fn with<'d>(&self, call: Call<'d>, types: ResultTypes) -> EvalCall<'d, 'a> {
        EvalCall { call, values: self.values, types }
    }

    /// Number of results.
    pub(super) fn results(&self) -> usize {
        self.types.len()
    }

    /// Shape of a result.
    pub(super) fn shape(&self, k: usize) -> Result<Vec<usize>, Fault> {
        let shape = extents(&self.result(k)?.shape)?;
        let count = shape.iter().try_fold(1usize, |count, extent| count.checked_mul(*extent));
        match count {
            Some(count) if count <= MAX_ELEMENTS => Ok(shape),
            _ => Err(Fault::Value(format!("a result of shape {shape:?} is too large to interpret"))),
        }
    }
}

/// The largest number of elements that the interpreter makes room for.
const MAX_ELEMENTS: usize = 1 << 28;

/// Constant sizes as extents or positions.
pub(super) fn extents(shape: &[Size]) -> Result<Vec<usize>, Fault> {
    shape
        .iter()
        .map(|size| {
            let value = size.as_const().ok_or(Fault::Unbound(*size))?;
            usize::try_from(value).map_err(|_| Fault::Value(format!("{value} is negative")))
        })
        .collect()
}

/// Runs one call whose sizes are all constant.
fn eval_constant_call<'a>(
    op: &'a str,
    args: &'a [Arg],
    kwargs: &'a [(Arc<str>, Arg)],
    value_type: &'a dyn Fn(TensorId) -> ValueType,
    values: &'a dyn Fn(TensorId) -> Option<&'a HostTensor>,
) -> Result<Vec<HostTensor>, EvalError> {
    let def = find(op).ok_or_else(|| EvalError::NotImplemented { op: op.to_owned() })?;
    let call = Call::new(op, args, kwargs, value_type);
    let types = def.infer(&call)?;
    let results = def.eval(&EvalCall { call, values, types }).map_err(|fault| fault.of(op))?;
    debug_assert!(
        results.iter().all(|r| r.data.len() == r.numel()),
        "{op} made a tensor with a wrong number of elements"
    );
    Ok(results)
}

/// The argument with all sizes replaced by their values.
fn bind_arg(arg: &Arg, sizes: &SymbolValues) -> Result<Arg, EvalError> {
    match arg {
        Arg::Size(s) => Ok(Arg::Size(bind_size(*s, sizes)?)),
        Arg::List(items) => {
            Ok(Arg::List(items.iter().map(|a| bind_arg(a, sizes)).collect::<Result<_, _>>()?))
        }
        other => Ok(other.clone()),
    }
}

fn bind_size(size: Size, sizes: &SymbolValues) -> Result<Size, EvalError> {
    size.eval(sizes).map(Size::constant).ok_or(EvalError::UnboundSize { size })
}

fn bind_dims(dims: &[Size], sizes: &SymbolValues) -> Result<Dims, EvalError> {
    dims.iter().map(|s| bind_size(*s, sizes)).collect()
}

fn bind_args(args: &[Arg], kwargs: &[(Arc<str>, Arg)], sizes: &SymbolValues) -> Result<CallArgs, EvalError> {
    let args = args.iter().map(|a| bind_arg(a, sizes)).collect::<Result<_, _>>()?;
    let kwargs = kwargs
        .iter()
        .map(|(name, a)| Ok((name.clone(), bind_arg(a, sizes)?)))
        .collect::<Result<_, EvalError>>()?;
    Ok((args, kwargs))
}

/// Gives symbols values from the extents of a tensor that are a symbol alone.
fn bind_symbols(shape: &[Size], extents: &[usize], sizes: &mut SymbolValues) {
    for (size, extent) in shape.iter().zip(extents) {
        if let Some(symbol) = size.as_symbol() {
            sizes.0.entry(symbol).or_insert(*extent as i64);
        }
    }
}

/// Runs an extern call of a nest program on the values of its tensors. Symbols get their values from the shapes
/// of these; use [`eval_call_with`] where the program's are known.
pub fn eval_call(call: &ExternCall, tensors: &[HostTensor]) -> Result<Vec<HostTensor>, EvalError> {
    let mut sizes = SymbolValues::new();
    for (view, tensor) in call.tensors.iter().zip(tensors) {
        bind_symbols(&view.shape, &tensor.shape, &mut sizes);
    }
    eval_call_with(call, tensors, &sizes)
}

/// Runs an extern call of a nest program on the values of its tensors: [`Arg::Value`] is a position in
/// `tensors`. All results come back, those that the program doesn't use too.
pub fn eval_call_with(
    call: &ExternCall,
    tensors: &[HostTensor],
    sizes: &SymbolValues,
) -> Result<Vec<HostTensor>, EvalError> {
    let (args, kwargs) = bind_args(&call.args, &call.kwargs, sizes)?;
    let types = call
        .tensors
        .iter()
        .zip(tensors)
        .map(|(view, tensor)| {
            let shape: Dims = tensor.shape.iter().map(|n| Size::from(*n)).collect();
            let strides = bind_dims(&view.strides, sizes)?;
            let ty = TensorType { dtype: tensor.dtype, shape, strides, device: Device::Cpu };
            Ok(ValueType::Tensor(ty))
        })
        .collect::<Result<Vec<ValueType>, EvalError>>()?;
    // An id that is no tensor of the call is reported as an argument of the wrong kind.
    let value_type = |id: TensorId| types.get(id.0 as usize).cloned().unwrap_or(ValueType::Size(Size::ZERO));
    let values = |id: TensorId| tensors.get(id.0 as usize);
    eval_constant_call(&call.op, &args, &kwargs, &value_type, &values)
}

/// An input of a program, as the caller gives it.
#[derive(Clone, Debug, PartialEq)]
pub enum GraphInput {
    /// A tensor.
    Tensor(HostTensor),
    /// A size.
    Size(i64),
}

/// A result of a program.
#[derive(Clone, Debug, PartialEq)]
pub enum GraphOutput {
    /// A tensor.
    Tensor(HostTensor),
    /// A size or another integer.
    Size(i64),
    /// Nothing (Python's `None`).
    None,
}

/// What running a program gives.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct EvalResult {
    /// The results, in order.
    pub outputs: Vec<GraphOutput>,
    /// Positions of the inputs that the program wrote to, with their final contents, in order.
    pub mutated_inputs: Vec<(usize, HostTensor)>,
}

/// Runs a tensor program.
///
/// Views are copies, and `aten.copy_.default` changes the value that its first argument names from there on:
/// exactly what functional programs mean, whose only writes are those into inputs.
pub fn eval_graph(graph: &Graph, inputs: &[GraphInput]) -> Result<EvalResult, EvalError> {
    if inputs.len() != graph.inputs.len() {
        return Err(EvalError::InputCount {
            graph: graph.name.to_string(),
            expected: graph.inputs.len(),
            given: inputs.len(),
        });
    }
    let sizes = bind_inputs(graph, inputs)?;
    let mut run = Run { graph, types: Vec::new(), values: vec![None; graph.values.len()], sizes };
    run.bind_types()?;
    for (position, (input, given)) in graph.inputs.iter().zip(inputs).enumerate() {
        if let (Input::Tensor(id), GraphInput::Tensor(tensor)) = (input, given) {
            run.check_input(position, *id, tensor)?;
            run.values[id.0 as usize] = Some(tensor.clone());
        }
    }
    let mut mutated = Vec::new();
    for node in &graph.nodes {
        run.node(node, &mut mutated)?;
    }
    run.finish(&mutated)
}

/// Values of all size symbols.
fn bind_inputs(graph: &Graph, inputs: &[GraphInput]) -> Result<SymbolValues, EvalError> {
    let mut sizes = SymbolValues::new();
    for (position, (input, given)) in graph.inputs.iter().zip(inputs).enumerate() {
        match (input, given) {
            (Input::Size(_, symbol), GraphInput::Size(value)) => sizes.set(symbol, *value),
            (Input::Tensor(id), GraphInput::Tensor(tensor)) => {
                if let Some(ty) = graph.tensor_type(*id) {
                    bind_symbols(&ty.shape, &tensor.shape, &mut sizes);
                }
            }
            (Input::Size(id, _), GraphInput::Tensor(tensor)) => {
                return Err(input_error(graph, position, *id, "a size", &describe(tensor)));
            }
            (Input::Tensor(id), GraphInput::Size(value)) => {
                return Err(input_error(graph, position, *id, "a tensor", &format!("the size {value}")));
            }
        }
    }
    Ok(sizes)
}

fn input_error(graph: &Graph, position: usize, id: TensorId, expected: &str, found: &str) -> EvalError {
    EvalError::Input {
        position,
        name: graph.value(id).name.to_string(),
        expected: expected.to_owned(),
        found: found.to_owned(),
    }
}

fn describe(tensor: &HostTensor) -> String {
    format!("{}{:?}", tensor.dtype, tensor.shape)
}

/// State of a run.
struct Run<'a> {
    graph: &'a Graph,
    /// Types of all values, with constant sizes.
    types: Vec<ValueType>,
    /// Tensors made so far.
    values: Vec<Option<HostTensor>>,
    sizes: SymbolValues,
}

impl Run<'_> {
    fn bind_types(&mut self) -> Result<(), EvalError> {
        self.types = self
            .graph
            .values
            .iter()
            .map(|value| {
                Ok(match &value.ty {
                    ValueType::Tensor(t) => ValueType::Tensor(TensorType {
                        dtype: t.dtype,
                        shape: bind_dims(&t.shape, &self.sizes)?,
                        strides: bind_dims(&t.strides, &self.sizes)?,
                        device: t.device,
                    }),
                    ValueType::Size(s) => ValueType::Size(bind_size(*s, &self.sizes)?),
                })
            })
            .collect::<Result<_, EvalError>>()?;
        Ok(())
    }

    fn check_input(&self, position: usize, id: TensorId, tensor: &HostTensor) -> Result<(), EvalError> {
        let ValueType::Tensor(ty) = &self.types[id.0 as usize] else { return Ok(()) };
        if fits(ty, tensor) && tensor.data.len() == tensor.numel() {
            return Ok(());
        }
        let expected = format!("{}{}", ty.dtype, shape_text(&ty.shape));
        Err(input_error(self.graph, position, id, &expected, &describe(tensor)))
    }

    fn node(&mut self, node: &Node, mutated: &mut Vec<TensorId>) -> Result<(), EvalError> {
        let (args, kwargs) = bind_args(&node.args, &node.kwargs, &self.sizes)?;
        let results = {
            let value_type = |id: TensorId| self.types[id.0 as usize].clone();
            let values = |id: TensorId| self.values[id.0 as usize].as_ref();
            eval_constant_call(&node.op, &args, &kwargs, &value_type, &values)?
        };
        if node.op.as_ref() == COPY_INTO
            && let (Some(Arg::Value(target)), Some(written)) = (node.args.first(), results.first())
        {
            self.values[target.0 as usize] = Some(written.clone());
            if !mutated.contains(target) {
                mutated.push(*target);
            }
        }
        for (k, result) in node.results.iter().enumerate() {
            let Some(id) = result else { continue };
            let ValueType::Tensor(ty) = &self.types[id.0 as usize] else { continue };
            let made = results.get(k).filter(|made| fits(ty, made));
            let Some(made) = made else {
                return Err(EvalError::Result {
                    op: node.op.to_string(),
                    expected: format!("{}{}", ty.dtype, shape_text(&ty.shape)),
                    found: results.get(k).map_or_else(|| format!("{} results", results.len()), describe),
                });
            };
            self.values[id.0 as usize] = Some(made.clone());
        }
        Ok(())
    }

    fn finish(self, mutated: &[TensorId]) -> Result<EvalResult, EvalError> {
        let outputs = self.graph.outputs.iter().map(|arg| self.output(arg)).collect::<Result<_, _>>()?;
        let mutated_inputs = self
            .graph
            .inputs
            .iter()
            .enumerate()
            .filter_map(|(position, input)| match input {
                Input::Tensor(id) if mutated.contains(id) => {
                    self.values[id.0 as usize].clone().map(|value| (position, value))
                }
                _ => None,
            })
            .collect();
        Ok(EvalResult { outputs, mutated_inputs })
    }

    fn output(&self, arg: &Arg) -> Result<GraphOutput, EvalError> {
        let refused = |message: String| EvalError::Value { op: "return".to_owned(), message };
        match arg {
            Arg::Value(id) => match (&self.types[id.0 as usize], &self.values[id.0 as usize]) {
                (ValueType::Size(s), _) => {
                    s.as_const().map(GraphOutput::Size).ok_or(EvalError::UnboundSize { size: *s })
                }
                (ValueType::Tensor(_), Some(value)) => Ok(GraphOutput::Tensor(value.clone())),
                (ValueType::Tensor(_), None) => {
                    Err(refused(format!("%{} is never made", self.graph.value(*id).name)))
                }
            },
            Arg::Size(s) => {
                s.eval(&self.sizes).map(GraphOutput::Size).ok_or(EvalError::UnboundSize { size: *s })
            }
            Arg::None => Ok(GraphOutput::None),
            other => Err(refused(format!("{other:?} can't be returned; return tensors, sizes or none"))),
        }
    }
}

/// The only operator of functional programs that writes to one of its arguments.
const COPY_INTO: &str = "aten.copy_.default";

fn fits(ty: &TensorType, tensor: &HostTensor) -> bool {
    tensor.dtype == ty.dtype
        && tensor.shape.len() == ty.rank()
        && ty.shape.iter().zip(&tensor.shape).all(|(size, extent)| size.is(*extent as i64))
}

/// The position in row-major order of the element that lies at each place of the memory of a tensor of this type,
/// from its first element on; `None` for gaps.
pub(super) fn elements_of_memory(ty: &TensorType) -> Result<Vec<Option<usize>>, Fault> {
    let (shape, strides) = (extents(&ty.shape)?, extents(&ty.strides)?);
    let last = shape.iter().zip(&strides).fold(0usize, |last, (extent, stride)| {
        last.saturating_add(extent.saturating_sub(1).saturating_mul(*stride))
    });
    if last >= MAX_ELEMENTS {
        return Err(Fault::Value(format!("memory with strides {strides:?} is too large to interpret")));
    }
    let count: usize = shape.iter().product();
    let mut elements = vec![None; if count == 0 { 0 } else { last + 1 }];
    let row_major = row_major(&shape);
    for k in 0..count {
        let at: usize = (0..shape.len()).map(|d| k / row_major[d] % shape[d] * strides[d]).sum();
        elements[at] = Some(k);
    }
    Ok(elements)
}

/// The memory that a tensor of this type lies in, from its first element on; `None` for gaps.
pub(super) fn memory_of(ty: &TensorType, tensor: &HostTensor) -> Result<Vec<Option<Scalar>>, Fault> {
    Ok(elements_of_memory(ty)?.into_iter().map(|element| element.map(|k| tensor.data[k])).collect())
}
