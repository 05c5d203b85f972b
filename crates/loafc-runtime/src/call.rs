//! Runs one call along its plan: kernels on the team, extern calls through the front end's library.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use loafc_ir::nest::Failure;
use smallvec::SmallVec;

use crate::call_plan::{CallPlan, PlannedKind, PlannedOutput, PlannedPhase, PlannedTensor};
use crate::error::{ExternError, RunError};
use crate::executable::{Executable, LinkedKernel, LinkedStep};
use crate::externs::{Externs, Invocation, ResultMemory};
use crate::plan::Place;
use crate::pool::{ALIGNMENT, Block, Pool};
use crate::positions;
use crate::threads::Team;
use crate::value::{Keepalive, OutputMemory, OutputTensor, OutputValue, ResultSpec, TensorRef};

/// Tables of a call, kept between calls so that nothing is allocated for them.
#[derive(Default)]
pub(crate) struct CallState {
    /// First element of each buffer.
    pointers: Vec<*mut u8>,
    /// What the library's memory in use hangs on, by buffer.
    foreign: Vec<Option<Keepalive>>,
    /// Blocks of results, by buffer.
    blocks: Vec<Option<Arc<Block>>>,
    /// Arguments of the kernel that runs.
    args: Vec<*mut u8>,
    /// The arena with scratch behind it.
    arena: Option<Block>,
}

// SAFETY: the pointers are only used during a call, by the thread that makes it.
unsafe impl Send for CallState {}

impl CallState {
    /// Lets go of all memory of a call with this plan. The tables keep their length: all calls have the same buffers.
    pub(crate) fn clear(&mut self, plan: &CallPlan) {
        self.pointers.clear();
        self.args.clear();
        self.arena = None;
        for b in &plan.held {
            self.blocks[*b] = None;
        }
        // A library may bring memory where none was asked for, too.
        self.foreign.iter_mut().for_each(|keepalive| *keepalive = None);
    }
}

/// Where scratch memory lies.
#[derive(Copy, Clone)]
struct Scratch {
    shared: *mut u8,
    thread: *mut u8,
    thread_bytes: usize,
}

/// # Safety
/// As [`Executable::run_planned`].
pub(crate) unsafe fn run(
    program: &Executable,
    plan: &CallPlan,
    inputs: &[*mut u8],
    externs: &mut dyn Externs,
    team: &dyn Team,
    state: &mut CallState,
) -> Result<Vec<OutputValue>, RunError> {
    let count = plan.memory.places.len();
    state.foreign.resize_with(count, || None);
    state.blocks.resize_with(count, || None);
    let scratch = place_buffers(plan, inputs, team, state)?;
    for b in &plan.memory.untouched {
        take_block(plan, *b, state)?;
    }
    for (k, (step, planned)) in program.steps.iter().zip(&plan.steps).enumerate() {
        for b in &plan.memory.takes[k] {
            take_block(plan, *b, state)?;
        }
        for (b, first) in &plan.memory.takes_over[k] {
            // Not where the other buffer is: a library may have put that into memory of its own.
            let block = state.blocks[*first].as_ref();
            state.pointers[*b] = block.map_or(std::ptr::null_mut(), |block| block.as_ptr());
        }
        match (step, &planned.kind) {
            (LinkedStep::Kernel(kernel), PlannedKind::Kernel { sizes, phases }) => {
                state.args.clear();
                state.args.extend(kernel.buffers.iter().map(|b| state.pointers[*b]));
                let sizes = &plan.sizes[sizes.clone()];
                // SAFETY: the plan gives each buffer of the kernel a place that is large enough.
                unsafe { run_kernel(kernel, phases, &state.args, sizes, scratch, team) }.map_err(
                    |error| positions::told(error, (program, kernel), &state.pointers, &plan.symbols),
                )?;
            }
            (LinkedStep::Extern { step, call, native }, PlannedKind::Extern { tensors, results }) => {
                let tensors = tensor_refs(tensors, state);
                let results_at = result_specs(plan, results, state);
                let invocation = Invocation {
                    call,
                    step: *step,
                    tensors: &tensors,
                    results: &results_at,
                    sizes: &plan.symbols,
                };
                let made = match native {
                    // SAFETY: the plan gives operands and results places that are large enough.
                    Some(native) => unsafe { native.run(&tensors, &results_at, team) }
                        .map_err(|reason| ExternError::new(&call.op, reason))?,
                    None => externs.call(&invocation)?,
                };
                accept_results(&invocation, results, made, state)?;
            }
            // A plan has the steps of its program.
            _ => {}
        }
        for b in &planned.release {
            state.foreign[*b] = None;
        }
        for b in &plan.memory.gives_back[k] {
            state.blocks[*b] = None;
        }
        if !planned.release_inputs.is_empty() {
            externs.release_inputs(&planned.release_inputs);
        }
    }
    // Not collected: without a known length, the list would grow and move several times.
    let mut outputs = Vec::with_capacity(plan.outputs.len());
    for output in &plan.outputs {
        outputs.push(output_value(plan, output, state)?);
    }
    Ok(outputs)
}

/// Takes the arena and scratch, and gives inputs and small buffers their places. Blocks come with the first step that
/// uses them: until then, what the call lets go of may have become free.
fn place_buffers(
    plan: &CallPlan,
    inputs: &[*mut u8],
    team: &dyn Team,
    state: &mut CallState,
) -> Result<Scratch, RunError> {
    let bytes = plan.thread_scratch + plan.thread_scratch_bytes.saturating_mul(team.threads());
    // Without a block no byte of the arena is ever touched; the address only has to be aligned.
    let mut base = std::ptr::without_provenance_mut(ALIGNMENT);
    if bytes > 0 {
        let block = Pool::global().take(bytes)?;
        base = block.as_ptr();
        state.arena = Some(block);
    }
    for place in &plan.memory.places {
        let pointer = match place {
            Place::Input(position) => inputs[*position],
            Place::Arena(offset) => base.wrapping_add(*offset),
            Place::Library | Place::Nowhere | Place::Block | Place::BlockOf(_) => std::ptr::null_mut(),
        };
        state.pointers.push(pointer);
    }
    Ok(Scratch {
        shared: base.wrapping_add(plan.shared_scratch),
        thread: base.wrapping_add(plan.thread_scratch),
        thread_bytes: plan.thread_scratch_bytes,
    })
}

fn take_block(plan: &CallPlan, b: usize, state: &mut CallState) -> Result<(), RunError> {
    let block = Pool::global().take(plan.buffer_bytes[b])?;
    state.pointers[b] = block.as_ptr();
    state.blocks[b] = Some(Arc::new(block));
    Ok(())
}

/// What a kernel gets, for all threads.
struct Arguments {
    buffers: *const *mut u8,
    sizes: *const i64,
    scratch: Scratch,
}

// SAFETY: kernels may run on several threads at once; each part writes elements of its own.
unsafe impl Sync for Arguments {}

/// # Safety
/// The buffers must be those that the kernel was compiled for, the sizes theirs.
unsafe fn run_kernel(
    kernel: &LinkedKernel,
    phases: &[PlannedPhase],
    buffers: &[*mut u8],
    sizes: &[i64],
    scratch: Scratch,
    team: &dyn Team,
) -> Result<(), RunError> {
    let arguments = Arguments { buffers: buffers.as_ptr(), sizes: sizes.as_ptr(), scratch };
    let arguments = &arguments;
    for (entry, phase) in kernel.entries.iter().zip(phases) {
        let part = move |begin: i64, end: i64, thread: usize| {
            let Scratch { shared, thread: scratch, thread_bytes } = arguments.scratch;
            let own = scratch.wrapping_add(thread * thread_bytes);
            // SAFETY: the caller's promise; no two running parts have the same thread number.
            unsafe { entry(arguments.buffers, arguments.sizes, begin, end, shared, own) }
        };
        let code = if phase.units == 0 {
            0
        } else if phase.units / 2 < phase.grain {
            part(0, phase.units, 0)
        } else {
            // Of several failed checks the first one is told, whatever the split.
            let failed = AtomicI32::new(i32::MAX);
            team.parallel_for(phase.units, phase.grain, &|begin, end, thread| {
                let code = part(begin, end, thread);
                if code != 0 {
                    failed.fetch_min(code, Ordering::Relaxed);
                }
            });
            let code = failed.into_inner();
            if code == i32::MAX { 0 } else { code }
        };
        if code != 0 {
            return Err(failed_check(kernel, code));
        }
    }
    Ok(())
}

#[cold]
fn failed_check(kernel: &LinkedKernel, code: i32) -> RunError {
    let known = usize::try_from(code - 1).ok().and_then(|k| kernel.failures.get(k).cloned());
    let failure = known.unwrap_or_else(|| Failure::value(format!("check {code} failed")));
    RunError::Check { kernel: kernel.name.clone(), failure }
}

fn tensor_refs<'a>(tensors: &'a [PlannedTensor], state: &CallState) -> SmallVec<[TensorRef<'a>; 6]> {
    tensors
        .iter()
        .map(|t| TensorRef {
            ptr: state.pointers[t.buffer].wrapping_offset(t.offset),
            dtype: t.dtype,
            shape: &t.shape,
            strides: &t.strides,
            input: t.input,
        })
        .collect()
}

fn result_specs<'a>(
    plan: &CallPlan,
    results: &'a [Option<PlannedTensor>],
    state: &CallState,
) -> SmallVec<[Option<ResultSpec<'a>>; 3]> {
    let spec = |t: &'a PlannedTensor| ResultSpec {
        dtype: t.dtype,
        shape: &t.shape,
        strides: &t.strides,
        ptr: (plan.memory.places[t.buffer] != Place::Library)
            .then(|| state.pointers[t.buffer].wrapping_offset(t.offset)),
    };
    results.iter().map(|r| r.as_ref().map(spec)).collect()
}

/// Notes where the results of an extern call are.
fn accept_results(
    invocation: &Invocation<'_>,
    results: &[Option<PlannedTensor>],
    made: Vec<ResultMemory>,
    state: &mut CallState,
) -> Result<(), RunError> {
    let bad = |message: String| RunError::Extern(ExternError::new(&invocation.call.op, message));
    if made.len() != results.len() {
        return Err(bad(format!("expected {} results, got {}", results.len(), made.len())));
    }
    for (k, (planned, memory)) in results.iter().zip(made).enumerate() {
        let Some(planned) = planned else { continue };
        match memory {
            ResultMemory::Foreign { ptr, keepalive } => {
                state.pointers[planned.buffer] = ptr.wrapping_offset(-planned.offset);
                state.foreign[planned.buffer] = Some(keepalive);
            }
            ResultMemory::Written if invocation.results[k].is_some_and(|r| r.ptr.is_some()) => {}
            ResultMemory::Written => {
                return Err(bad(format!("result {k} was to bring memory of its own")));
            }
            ResultMemory::Unused => return Err(bad(format!("result {k} is used but was not made"))),
        }
    }
    Ok(())
}

fn output_value(plan: &CallPlan, output: &PlannedOutput, state: &CallState) -> Result<OutputValue, RunError> {
    let tensor = match output {
        PlannedOutput::Input(position) => return Ok(OutputValue::Input(*position)),
        PlannedOutput::Size(value) => return Ok(OutputValue::Size(*value)),
        PlannedOutput::None => return Ok(OutputValue::None),
        PlannedOutput::Tensor(tensor) => tensor,
    };
    let b = tensor.buffer;
    let memory = match (&state.foreign[b], &state.blocks[b], plan.memory.places[b]) {
        (Some(keepalive), ..) => OutputMemory::Foreign(keepalive.clone()),
        (None, Some(block), _) => OutputMemory::Block(block.clone()),
        (None, None, Place::Input(position)) => OutputMemory::Input(position),
        (None, None, _) => return Err(RunError::NoMemory(b)),
    };
    Ok(OutputValue::Tensor(OutputTensor {
        ptr: state.pointers[b].wrapping_offset(tensor.offset),
        dtype: tensor.dtype,
        shape: tensor.shape.clone(),
        strides: tensor.strides.clone(),
        memory,
    }))
}
