//! Everything about a call that follows from its sizes alone: places of buffers, numbers that kernels get, shapes
//! of extern operands and of results. Made once for each set of sizes, so that a call only follows pointers.

use std::ops::Range;
use std::sync::Arc;

use loafc_ir::dtype::DType;
use loafc_ir::graph::TensorType;
use loafc_ir::nest::{Output, TensorView};
use loafc_ir::size::{Size, SymbolValues};
use rustc_hash::FxHashMap;

use crate::error::RunError;
use crate::executable::{Executable, LinkedBuffer, LinkedKernel, LinkedStep};
use crate::inputs::{InputKind, InputLayout};
use crate::plan::{self, Lifetime, MemoryPlan, Owner, Place};
use crate::pool::ALIGNMENT;
use crate::value::same_strides;

/// Work, in bytes moved and operations done, below which a part of a kernel is not worth a thread of its own: waking
/// another one takes about 2 µs even where it waits for work.
const GRAIN: i64 = 128 << 10;

/// Bytes of an input from which on it is let go of before the call ends.
const WORTH_RELEASING: usize = 64 << 10;

/// All that a call needs besides pointers.
#[derive(Debug)]
pub struct CallPlan {
    pub(crate) symbols: SymbolValues,
    pub(crate) inputs: Vec<InputLayout>,
    pub(crate) memory: MemoryPlan,
    /// Buffers with a block of their own or in a library's memory, which a call holds.
    pub(crate) held: Vec<usize>,
    /// Bytes of each buffer.
    pub(crate) buffer_bytes: Vec<usize>,
    /// Bytes into the arena's block where shared scratch begins; it lies behind the arena.
    pub(crate) shared_scratch: usize,
    /// Where the first thread's scratch begins, behind the shared one.
    pub(crate) thread_scratch: usize,
    /// Bytes of each thread's scratch.
    pub(crate) thread_scratch_bytes: usize,
    /// The numbers of all kernels.
    pub(crate) sizes: Vec<i64>,
    pub(crate) steps: Vec<PlannedStep>,
    pub(crate) outputs: Vec<PlannedOutput>,
    work: i64,
}

#[derive(Debug)]
pub(crate) struct PlannedStep {
    pub kind: PlannedKind,
    /// Buffers in a library's memory that no later step uses.
    pub release: Vec<usize>,
    /// Inputs that neither a later step nor a result uses.
    pub release_inputs: Vec<usize>,
}

#[derive(Debug)]
pub(crate) enum PlannedKind {
    Kernel { sizes: Range<usize>, phases: Vec<PlannedPhase> },
    Extern { tensors: Vec<PlannedTensor>, results: Vec<Option<PlannedTensor>> },
}

#[derive(Copy, Clone, Debug)]
pub(crate) struct PlannedPhase {
    pub units: i64,
    /// Fewest units that are worth a thread.
    pub grain: i64,
}

#[derive(Debug)]
pub(crate) struct PlannedTensor {
    pub buffer: usize,
    /// First element, in bytes from the buffer's first one.
    pub offset: isize,
    pub dtype: DType,
    pub shape: Arc<[i64]>,
    pub strides: Arc<[i64]>,
    /// The input that this is.
    pub input: Option<usize>,
}

#[derive(Debug)]
pub(crate) enum PlannedOutput {
    Tensor(PlannedTensor),
    Input(usize),
    Size(i64),
    None,
}

/// Evaluates sizes, each once.
struct Sizes<'a> {
    symbols: &'a SymbolValues,
    known: FxHashMap<Size, i64>,
}

impl Sizes<'_> {
    fn value(&mut self, size: Size) -> Result<i64, RunError> {
        if let Some(value) = size.as_const() {
            return Ok(value);
        }
        if let Some(value) = self.known.get(&size) {
            return Ok(*value);
        }
        let value = size.eval(self.symbols).ok_or_else(|| RunError::UnboundSize(size.to_string()))?;
        self.known.insert(size, value);
        Ok(value)
    }

    fn values(&mut self, sizes: &[Size]) -> Result<Vec<i64>, RunError> {
        sizes.iter().map(|s| self.value(*s)).collect()
    }

    /// An extent or a number of bytes.
    fn count(&mut self, size: Size) -> Result<usize, RunError> {
        let value = self.value(size)?;
        usize::try_from(value).map_err(|_| RunError::BadSize { what: size.to_string(), value })
    }

    fn bytes(&mut self, len: Size, element: usize) -> Result<usize, RunError> {
        let count = self.count(len)?;
        let bytes = count.checked_mul(element).filter(|b| *b <= isize::MAX as usize / 2);
        bytes.ok_or_else(|| RunError::BadSize { what: len.to_string(), value: count as i64 })
    }
}

impl CallPlan {
    /// Plans a call of `program` with these values of its symbols.
    pub(crate) fn new(program: &Executable, values: &[i64]) -> Result<CallPlan, RunError> {
        let symbols = program.bindings.named(values);
        program.conditions.iter().try_for_each(|condition| condition.check(&symbols))?;
        let mut sizes = Sizes { symbols: &symbols, known: FxHashMap::default() };
        let inputs = input_layouts(program, &mut sizes)?;
        let lifetimes = lifetimes(program, &mut sizes)?;
        let memory = plan::plan(&lifetimes, program.steps.len());
        let mut numbers = Vec::new();
        let mut steps = Vec::with_capacity(program.steps.len());
        let (mut shared, mut thread, mut work) = (0usize, 0usize, 0i64);
        for step in &program.steps {
            let kind = match step {
                LinkedStep::Extern { call, .. } => PlannedKind::Extern {
                    tensors: call
                        .tensors
                        .iter()
                        .map(|v| plan_tensor(program, &inputs, v, &mut sizes))
                        .collect::<Result<_, _>>()?,
                    results: call
                        .results
                        .iter()
                        .map(|v| v.as_ref().map(|v| plan_tensor(program, &inputs, v, &mut sizes)).transpose())
                        .collect::<Result<_, _>>()?,
                },
                LinkedStep::Kernel(kernel) => {
                    shared = shared.max(sizes.bytes(kernel.shared_scratch_bytes, 1)?);
                    for phase in &kernel.phases {
                        thread = thread.max(sizes.bytes(phase.thread_scratch_bytes, 1)?);
                    }
                    plan_kernel(kernel, &mut numbers, &mut work, &mut sizes)?
                }
            };
            steps.push(PlannedStep { kind, release: Vec::new(), release_inputs: Vec::new() });
        }
        let mut buffers_of = vec![0; program.inputs.len()];
        for buffer in &program.buffers {
            if let Owner::Input(input) = buffer.owner {
                buffers_of[input] += 1;
            }
        }
        for (b, buffer) in program.buffers.iter().enumerate() {
            let kept = program.outputs.iter().any(|o| is_on_buffer(o, b));
            match (buffer.owner, buffer.steps) {
                (Owner::Library | Owner::Call, Some((_, last))) if !kept => steps[last].release.push(b),
                (Owner::Input(input), Some((_, last)))
                    if !kept
                        && buffers_of[input] == 1
                        && !is_returned(program, input)
                        && lifetimes[b].bytes >= WORTH_RELEASING =>
                {
                    steps[last].release_inputs.push(input);
                }
                _ => {}
            }
        }
        let outputs = program
            .outputs
            .iter()
            .map(|output| plan_output(program, &inputs, output, &mut sizes))
            .collect::<Result<_, _>>()?;
        let shared_scratch = memory.arena_bytes.next_multiple_of(ALIGNMENT);
        Ok(CallPlan {
            inputs,
            shared_scratch,
            thread_scratch: shared_scratch + shared.next_multiple_of(ALIGNMENT),
            thread_scratch_bytes: thread.next_multiple_of(ALIGNMENT),
            held: memory.positions(|p| matches!(p, Place::Block | Place::Library)),
            memory,
            buffer_bytes: lifetimes.iter().map(|l| l.bytes).collect(),
            sizes: numbers,
            steps,
            outputs,
            work,
            symbols,
        })
    }

    /// Layouts of the inputs.
    pub fn inputs(&self) -> &[InputLayout] {
        &self.inputs
    }

    /// Rough work of all kernels, in bytes moved and operations done.
    pub fn work(&self) -> i64 {
        self.work
    }

    /// Bytes of memory that the call uses besides its inputs, results, scratch and what libraries bring.
    pub fn arena_bytes(&self) -> usize {
        self.memory.arena_bytes
    }
}

fn is_returned(program: &Executable, input: usize) -> bool {
    program.outputs.iter().any(|o| matches!(o, Output::Input(position) if *position == input))
}

fn is_on_buffer(output: &Output, buffer: usize) -> bool {
    matches!(output, Output::Tensor(view) if view.buffer.0 as usize == buffer)
}

fn input_layouts(program: &Executable, sizes: &mut Sizes<'_>) -> Result<Vec<InputLayout>, RunError> {
    let mut layouts = Vec::with_capacity(program.inputs.len());
    for input in &program.inputs {
        layouts.push(match &input.kind {
            InputKind::Size(_) => InputLayout { shape: Vec::new(), strides: Vec::new() },
            InputKind::Tensor(TensorType { shape, strides, .. }) => {
                for extent in shape {
                    sizes.count(*extent)?;
                }
                InputLayout { shape: sizes.values(shape)?, strides: sizes.values(strides)? }
            }
        });
    }
    Ok(layouts)
}

fn lifetimes(program: &Executable, sizes: &mut Sizes<'_>) -> Result<Vec<Lifetime>, RunError> {
    let lifetime = |linked: &LinkedBuffer| {
        Ok(Lifetime {
            bytes: sizes.bytes(linked.buffer.len, linked.buffer.dtype.bytes())?,
            steps: linked.steps,
            owner: linked.owner,
            in_place_of: linked.in_place_of,
        })
    };
    program.buffers.iter().map(lifetime).collect()
}

fn plan_kernel(
    kernel: &LinkedKernel,
    numbers: &mut Vec<i64>,
    work: &mut i64,
    sizes: &mut Sizes<'_>,
) -> Result<PlannedKind, RunError> {
    let begin = numbers.len();
    numbers.extend(sizes.values(&kernel.sizes)?);
    let mut phases = Vec::with_capacity(kernel.phases.len());
    for phase in &kernel.phases {
        let units = sizes.value(phase.units)?.max(0);
        let work_per_unit = sizes.value(phase.work_per_unit)?.max(1);
        phases.push(PlannedPhase { units, grain: (GRAIN / work_per_unit).max(1) });
        *work = work.saturating_add(units.saturating_mul(work_per_unit));
    }
    Ok(PlannedKind::Kernel { sizes: begin..numbers.len(), phases })
}

fn plan_tensor(
    program: &Executable,
    inputs: &[InputLayout],
    view: &TensorView,
    sizes: &mut Sizes<'_>,
) -> Result<PlannedTensor, RunError> {
    let buffer = view.buffer.0 as usize;
    let linked = &program.buffers[buffer];
    let (shape, strides) = (sizes.values(&view.shape)?, sizes.values(&view.strides)?);
    let offset = sizes.value(view.offset)?;
    let input = match linked.owner {
        Owner::Input(position) if offset == 0 => inputs
            .get(position)
            .filter(|i| i.shape == shape && same_strides(&shape, &i.strides, &strides))
            .map(|_| position),
        _ => None,
    };
    Ok(PlannedTensor {
        buffer,
        offset: offset as isize * linked.buffer.dtype.bytes() as isize,
        dtype: linked.buffer.dtype,
        shape: shape.into(),
        strides: strides.into(),
        input,
    })
}

fn plan_output(
    program: &Executable,
    inputs: &[InputLayout],
    output: &Output,
    sizes: &mut Sizes<'_>,
) -> Result<PlannedOutput, RunError> {
    Ok(match output {
        Output::Tensor(view) => PlannedOutput::Tensor(plan_tensor(program, inputs, view, sizes)?),
        Output::Input(position) => PlannedOutput::Input(*position),
        Output::Size(size) => PlannedOutput::Size(sizes.value(*size)?),
        Output::None => PlannedOutput::None,
    })
}
