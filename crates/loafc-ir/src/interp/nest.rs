//! Interprets a whole nest program: memory of inputs as the caller strides it, owned buffers, loop nests and
//! extern calls in order. [`Machine`] holds the memory, so that interpreters of later levels (fused groups, loop
//! trees) share how a program begins and ends.

use super::InterpError;
use super::body::{Digit, Memory, run_body};
use super::memory::{HostBuffer, HostMemory, Placement};
use super::tensor::HostTensor;
use crate::graph::{Graph, Input, ValueType};
use crate::nest::{
    Body, BufferId, BufferSource, ExternCall, LoopKind, LoopNest, NestProgram, Op, Output, Step, TensorView,
};
use crate::ops::{self, EvalResult, GraphInput, GraphOutput};
use crate::size::{Size, SymbolValues};

/// Runs an extern call: from the call, the values of [`ExternCall::tensors`] and of the size symbols to the
/// results, one for each entry of [`ExternCall::results`], and behind them the new contents of the tensors that
/// [`ExternCall::mutates`] names.
pub type ExternFn<'a> =
    dyn FnMut(&ExternCall, &[HostTensor], &SymbolValues) -> Result<Vec<HostTensor>, InterpError> + 'a;

/// What a program is called with.
#[derive(Clone, Debug, PartialEq)]
pub struct ProgramInputs {
    /// The values, in order.
    pub values: Vec<InputValue>,
    /// Values of all size symbols.
    pub sizes: SymbolValues,
}

/// One input.
#[derive(Clone, Debug, PartialEq)]
pub enum InputValue {
    /// A tensor, and how it lies in its buffer.
    Tensor(HostTensor, Placement),
    /// A size.
    Size(i64),
}

impl ProgramInputs {
    /// The inputs of a tensor program for the nest program that it was lowered to: binds the size symbols, and
    /// lays tensors out with the strides of their types.
    pub fn new(graph: &Graph, inputs: &[GraphInput]) -> Result<ProgramInputs, InterpError> {
        if inputs.len() != graph.inputs.len() {
            let problem = format!("the program takes {} inputs, not {}", graph.inputs.len(), inputs.len());
            return Err(InterpError::Input { position: inputs.len().min(graph.inputs.len()), problem });
        }
        let sizes = bind_symbols(graph, inputs);
        let mut values = Vec::with_capacity(inputs.len());
        for (position, (input, given)) in graph.inputs.iter().zip(inputs).enumerate() {
            let value = input_value(graph, input, given, &sizes);
            values.push(value.map_err(|problem| InterpError::Input { position, problem })?);
        }
        Ok(ProgramInputs { values, sizes })
    }
}

fn bind_symbols(graph: &Graph, inputs: &[GraphInput]) -> SymbolValues {
    let mut sizes = SymbolValues::new();
    for (input, given) in graph.inputs.iter().zip(inputs) {
        match (input, given) {
            (Input::Size(_, symbol), GraphInput::Size(value)) => sizes.set(symbol, *value),
            (Input::Tensor(id), GraphInput::Tensor(tensor)) => {
                let Some(ty) = graph.tensor_type(*id) else { continue };
                for (size, extent) in ty.shape.iter().zip(&tensor.shape) {
                    if let Some(symbol) = size.as_symbol() {
                        sizes.0.entry(symbol).or_insert(*extent as i64);
                    }
                }
            }
            _ => {}
        }
    }
    sizes
}

fn input_value(
    graph: &Graph,
    input: &Input,
    given: &GraphInput,
    sizes: &SymbolValues,
) -> Result<InputValue, String> {
    let (Input::Tensor(id) | Input::Size(id, _)) = input;
    let name = &graph.value(*id).name;
    match (&graph.value(*id).ty, given) {
        (ValueType::Size(_), GraphInput::Size(value)) => Ok(InputValue::Size(*value)),
        (ValueType::Size(_), GraphInput::Tensor(_)) => Err(format!("`{name}` is a size, not a tensor")),
        (ValueType::Tensor(_), GraphInput::Size(_)) => Err(format!("%{name} is a tensor, not a size")),
        (ValueType::Tensor(ty), GraphInput::Tensor(tensor)) => {
            let eval = |s: &Size| s.eval(sizes).ok_or_else(|| format!("size {s} of %{name} has no value"));
            let extents = ty.shape.iter().map(eval).collect::<Result<Vec<i64>, String>>()?;
            let fits = extents.iter().copied().eq(tensor.shape.iter().map(|n| *n as i64));
            if !fits || tensor.dtype != ty.dtype || tensor.data.len() != tensor.numel() {
                return Err(format!("%{name} is {ty}, not {}{:?}", tensor.dtype, tensor.shape));
            }
            let strides = ty.strides.iter().map(eval).collect::<Result<Vec<i64>, String>>()?;
            Ok(InputValue::Tensor(
                tensor.clone(),
                Placement { shape: tensor.shape.clone(), strides, offset: 0 },
            ))
        }
    }
}

/// Memory of a running nest program.
#[derive(Clone, Debug)]
pub struct Machine<'a> {
    program: &'a NestProgram,
    inputs: &'a ProgramInputs,
    /// The program's buffers.
    pub memory: HostMemory,
    /// For each buffer, whether something wrote to it.
    written: Vec<bool>,
}

impl<'a> Machine<'a> {
    /// Memory as it is before the first step: inputs in place, all else unwritten.
    pub fn new(program: &'a NestProgram, inputs: &'a ProgramInputs) -> Result<Machine<'a>, InterpError> {
        program.check_sizes(&inputs.sizes)?;
        let mut memory = HostMemory::default();
        for (k, buffer) in program.buffers.iter().enumerate() {
            if buffer.dtype.is_complex() {
                let what = format!("buffer b{k} ({})", buffer.name);
                return Err(InterpError::Unsupported { what, dtype: buffer.dtype });
            }
            let len = usize::try_from(eval(buffer.len, &inputs.sizes)?).unwrap_or(0);
            memory.buffers.push(Some(HostBuffer::new(&buffer.name, buffer.dtype, len)));
        }
        for (k, buffer) in program.buffers.iter().enumerate() {
            let BufferSource::Input(position) = buffer.source else { continue };
            match inputs.values.get(position) {
                Some(InputValue::Tensor(tensor, place)) if tensor.dtype == buffer.dtype => {
                    memory.write(BufferId(k as u32), place, tensor)?;
                }
                _ => {
                    let problem = format!("buffer b{k} needs a tensor of type {} there", buffer.dtype);
                    return Err(InterpError::Input { position, problem });
                }
            }
        }
        Ok(Machine { program, inputs, memory, written: vec![false; program.buffers.len()] })
    }

    /// Values of the size symbols.
    pub fn sizes(&self) -> &'a SymbolValues {
        &self.inputs.sizes
    }

    /// Runs one step of the program.
    pub fn run_step(&mut self, step: &Step, extern_call: &mut ExternFn) -> Result<(), InterpError> {
        match step {
            Step::Nest(nest) => self.run_nest(nest),
            Step::Extern(call) => self.run_extern(call, extern_call),
        }
    }

    /// Runs a loop nest.
    pub fn run_nest(&mut self, nest: &LoopNest) -> Result<(), InterpError> {
        self.note_stores(&nest.body);
        let mut digits = Vec::with_capacity(nest.loops.len());
        for l in &nest.loops {
            let extent = eval(l.extent, &self.inputs.sizes)?;
            digits.push(Digit { extent, reduced: l.kind == LoopKind::Reduction });
        }
        run_body(&nest.body, &digits, &[], &self.inputs.sizes, &mut self.memory)
    }

    /// Notes which inputs a body writes to: those are handed back by [`Machine::finish`].
    pub fn note_stores(&mut self, body: &Body) {
        for op in &body.ops {
            if let Op::Store { buffer, .. } = op
                && let Some(written) = self.written.get_mut(buffer.0 as usize)
            {
                *written = true;
            }
        }
    }

    /// Runs an extern call.
    pub fn run_extern(&mut self, call: &ExternCall, extern_call: &mut ExternFn) -> Result<(), InterpError> {
        let failed = |message: String| InterpError::Extern { op: call.op.to_string(), message };
        let tensors = call
            .tensors
            .iter()
            .map(|view| self.read(view))
            .collect::<Result<Vec<HostTensor>, InterpError>>()?;
        let made = extern_call(call, &tensors, &self.inputs.sizes)?;
        if made.len() < call.results.len() + call.mutates.len() {
            let expected = call.results.len() + call.mutates.len();
            return Err(failed(format!("{} results came back, not {expected}", made.len())));
        }
        for (view, tensor) in call.results.iter().zip(&made) {
            if let Some(view) = view {
                self.write(view, tensor).map_err(&failed)?;
            }
        }
        for (position, tensor) in call.mutates.iter().zip(&made[call.results.len()..]) {
            let view = call
                .tensors
                .get(*position)
                .ok_or_else(|| failed(format!("there is no tensor {position}")))?;
            self.write(view, tensor).map_err(&failed)?;
        }
        Ok(())
    }

    fn place(&self, view: &TensorView) -> Result<Placement, InterpError> {
        let sizes = |list: &[Size]| {
            list.iter().map(|s| eval(*s, &self.inputs.sizes)).collect::<Result<Vec<i64>, InterpError>>()
        };
        let shape = sizes(&view.shape)?.into_iter().map(|n| usize::try_from(n).unwrap_or(0)).collect();
        Ok(Placement {
            shape,
            strides: sizes(&view.strides)?,
            offset: eval(view.offset, &self.inputs.sizes)?,
        })
    }

    /// The tensor of this view.
    pub fn read(&self, view: &TensorView) -> Result<HostTensor, InterpError> {
        self.memory.read(view.buffer, &self.place(view)?)
    }

    fn write(&mut self, view: &TensorView, tensor: &HostTensor) -> Result<(), String> {
        let place = self.place(view).map_err(|e| e.to_string())?;
        let dtype = self.memory.dtype(view.buffer).map_err(|e| e.to_string())?;
        if place.shape != tensor.shape || dtype != tensor.dtype || tensor.data.len() != tensor.numel() {
            let made = format!("{}{:?}", tensor.dtype, tensor.shape);
            return Err(format!("it made {made}, but {view} is {dtype}{:?}", place.shape));
        }
        self.written[view.buffer.0 as usize] = true;
        self.memory.write(view.buffer, &place, tensor).map_err(|e| e.to_string())
    }

    /// The program's results, and what it left in inputs that it wrote to.
    pub fn finish(&self) -> Result<EvalResult, InterpError> {
        let mut outputs = Vec::with_capacity(self.program.outputs.len());
        for output in &self.program.outputs {
            outputs.push(match output {
                Output::Tensor(view) => GraphOutput::Tensor(self.read(view)?),
                Output::Input(position) => self.input(*position)?,
                Output::Size(size) => GraphOutput::Size(eval(*size, &self.inputs.sizes)?),
                Output::None => GraphOutput::None,
            });
        }
        let mut mutated_inputs = Vec::new();
        for position in 0..self.inputs.values.len() {
            let written = self.input_buffer(position).is_some_and(|b| self.written[b.0 as usize]);
            if written && let GraphOutput::Tensor(tensor) = self.input(position)? {
                mutated_inputs.push((position, tensor));
            }
        }
        Ok(EvalResult { outputs, mutated_inputs })
    }

    fn input_buffer(&self, position: usize) -> Option<BufferId> {
        let at = self.program.buffers.iter().position(|b| b.source == BufferSource::Input(position))?;
        Some(BufferId(at as u32))
    }

    /// The input as it is now.
    fn input(&self, position: usize) -> Result<GraphOutput, InterpError> {
        match (self.inputs.values.get(position), self.input_buffer(position)) {
            (Some(InputValue::Tensor(_, place)), Some(buffer)) => {
                Ok(GraphOutput::Tensor(self.memory.read(buffer, place)?))
            }
            (Some(InputValue::Tensor(tensor, _)), None) => Ok(GraphOutput::Tensor(tensor.clone())),
            (Some(InputValue::Size(value)), _) => Ok(GraphOutput::Size(*value)),
            (None, _) => Err(InterpError::Input { position, problem: "there is no such input".to_owned() }),
        }
    }
}

fn eval(size: Size, sizes: &SymbolValues) -> Result<i64, InterpError> {
    size.eval(sizes).ok_or_else(|| InterpError::Size(size.to_string()))
}

/// Runs extern calls with the reference semantics of the operator table.
pub fn reference_extern(
    call: &ExternCall,
    tensors: &[HostTensor],
    sizes: &SymbolValues,
) -> Result<Vec<HostTensor>, InterpError> {
    let failed = |message: String| InterpError::Extern { op: call.op.to_string(), message };
    let mut made = ops::eval_call_with(call, tensors, sizes).map_err(|e| failed(e.to_string()))?;
    match call.mutates.len() {
        0 => Ok(made),
        // Operators that write to an argument return it.
        1 if made.len() == 1 => {
            made.resize(call.results.len() + 1, made[0].clone());
            Ok(made)
        }
        _ => Err(failed("the operator table can't tell what it writes to its arguments".to_owned())),
    }
}

/// Runs a nest program. `inputs` are those of the tensor program, see [`ProgramInputs::new`].
pub fn run_program(
    program: &NestProgram,
    inputs: &ProgramInputs,
    extern_call: &mut ExternFn,
) -> Result<EvalResult, InterpError> {
    let mut machine = Machine::new(program, inputs)?;
    for step in &program.steps {
        machine.run_step(step, extern_call)?;
    }
    machine.finish()
}

/// Runs a nest program that was lowered from `graph`, with the reference semantics for extern calls: what
/// [`ops::eval_graph`] gives for the graph, if the lowering is right.
pub fn run_lowered(
    program: &NestProgram,
    graph: &Graph,
    inputs: &[GraphInput],
) -> Result<EvalResult, InterpError> {
    run_program(program, &ProgramInputs::new(graph, inputs)?, &mut reference_extern)
}
