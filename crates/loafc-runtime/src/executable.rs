//! A compiled program that can be called: links kernels and extern calls with the buffers they use, and keeps the
//! plans of the sizes it was called with.

use std::any::Any;
use std::sync::{Arc, Mutex};

use loafc_codegen::kernel::{Access, Entry, KernelUse, PhaseSizes};
use loafc_fuse::schedule::{Schedule, ScheduledStep};
use loafc_ir::condition::{BrokenCondition, SizeCondition};
use loafc_ir::graph::Device;
use loafc_ir::nest::{
    Buffer, BufferId, BufferSource, ExternCall, Failure, NestProgram, Output, Step as ProgramStep, StepId,
};
use loafc_ir::size::{Size, SymbolValues};

use crate::call::{self, CallState};
use crate::call_plan::CallPlan;
use crate::error::{LinkError, RunError};
use crate::externs::{Externs, WritesResults};
use crate::in_place;
use crate::inputs::{Bindings, InputSpec, check_kinds, check_layouts};
use crate::native::Native;
use crate::plan::Owner;
use crate::threads::Team;
use crate::value::{InputValue, OutputValue};

/// Plans kept for a program with size symbols.
const KEPT_PLANS: usize = 16;
/// States kept for calls on several threads.
const KEPT_STATES: usize = 8;

/// A program ready to be called, from any thread.
pub struct Executable {
    pub(crate) name: Arc<str>,
    pub(crate) inputs: Vec<InputSpec>,
    pub(crate) bindings: Bindings,
    pub(crate) buffers: Vec<LinkedBuffer>,
    pub(crate) steps: Vec<LinkedStep>,
    pub(crate) outputs: Vec<Output>,
    /// What must hold for the sizes of a call.
    pub(crate) conditions: Vec<SizeCondition>,
    /// For a program without size symbols.
    fixed_plan: Option<Arc<CallPlan>>,
    /// The last used ones, by the symbols' values; the newest last.
    plans: Mutex<Vec<(Vec<i64>, Arc<CallPlan>)>>,
    states: Mutex<Vec<CallState>>,
}

/// A buffer and what is the same in all calls about its lifetime.
pub(crate) struct LinkedBuffer {
    pub buffer: Buffer,
    pub steps: Option<(usize, usize)>,
    pub owner: Owner,
    pub in_place_of: Option<usize>,
}

pub(crate) enum LinkedStep {
    Kernel(LinkedKernel),
    /// A call; with what the runtime needs to make it without a library, where it can.
    Extern {
        step: StepId,
        call: ExternCall,
        native: Option<Native>,
    },
}

/// A kernel as it is called.
pub(crate) struct LinkedKernel {
    pub name: Arc<str>,
    pub entries: Vec<Entry>,
    pub failures: Vec<Failure>,
    /// Position of each parameter's buffer.
    pub buffers: Vec<usize>,
    /// Those of them that it writes.
    pub written: Vec<usize>,
    pub sizes: Vec<Size>,
    pub phases: Vec<PhaseSizes>,
    pub shared_scratch_bytes: Size,
    /// Keeps the code loaded.
    pub _code: Arc<dyn Any + Send + Sync>,
}

impl Executable {
    /// Links a schedule with its kernels, which stand in the order of the schedule.
    ///
    /// `writes_results` says which extern calls put their results where the runtime wants them.
    pub fn new(
        inputs: Vec<InputSpec>,
        schedule: &Schedule,
        kernels: &[KernelUse],
        writes_results: WritesResults<'_>,
    ) -> Result<Executable, LinkError> {
        let groups = schedule.steps.iter().filter_map(|s| match s {
            ScheduledStep::Kernel(group) => Some(group),
            ScheduledStep::Extern(_) => None,
        });
        let expected = groups.clone().count();
        if expected != kernels.len() {
            return Err(LinkError::KernelCount { expected, got: kernels.len() });
        }
        let mut uses = kernels.iter();
        let mut steps = Vec::with_capacity(schedule.steps.len());
        for step in &schedule.steps {
            match step {
                ScheduledStep::Extern(id) => steps.push(link_extern(&schedule.program, *id)?),
                ScheduledStep::Kernel(_) => steps.extend(uses.next().map(link_kernel)),
            }
        }
        let single_phase = groups.zip(kernels).filter(|(_, k)| k.phases.len() == 1);
        let pairs = single_phase.flat_map(|(group, _)| in_place::pairs(group)).collect::<Vec<_>>();
        Executable::link(inputs, &schedule.program, steps, &pairs, writes_results)
    }

    pub(crate) fn link(
        inputs: Vec<InputSpec>,
        program: &NestProgram,
        steps: Vec<LinkedStep>,
        in_place: &[(BufferId, BufferId)],
        writes_results: WritesResults<'_>,
    ) -> Result<Executable, LinkError> {
        let mut buffers = link_buffers(program, &steps, writes_results)?;
        for (read, written) in in_place {
            let (read, written) = (read.0 as usize, written.0 as usize);
            // Iterations correspond byte by byte only where elements have the same width.
            if buffers[read].buffer.dtype.bytes() == buffers[written].buffer.dtype.bytes() {
                buffers[written].in_place_of = Some(read);
            }
        }
        let bindings = Bindings::of(&inputs);
        let mut executable = Executable {
            name: program.name.clone(),
            inputs,
            bindings,
            buffers,
            steps,
            outputs: program.outputs.clone(),
            conditions: program.conditions.clone(),
            fixed_plan: None,
            plans: Mutex::default(),
            states: Mutex::default(),
        };
        if executable.bindings.is_empty() {
            // A size that can't be had is an error of each call, not of linking.
            executable.fixed_plan = CallPlan::new(&executable, &[]).ok().map(Arc::new);
        }
        Ok(executable)
    }

    /// Name for people.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// What the program takes.
    pub fn inputs(&self) -> &[InputSpec] {
        &self.inputs
    }

    /// Positions of the inputs that the program writes to, in ascending order.
    pub fn mutated_inputs(&self) -> Vec<usize> {
        let written = self.steps.iter().flat_map(|step| match step {
            LinkedStep::Kernel(kernel) => kernel.written.clone(),
            LinkedStep::Extern { call, .. } => {
                call.mutates.iter().filter_map(|k| Some(call.tensors.get(*k)?.buffer.0 as usize)).collect()
            }
        });
        let mut positions: Vec<usize> = written
            .filter_map(|b| match self.buffers[b].owner {
                Owner::Input(position) => Some(position),
                _ => None,
            })
            .collect();
        positions.sort_unstable();
        positions.dedup();
        positions
    }

    /// What is wrong with values of size symbols that the program can't be called with.
    pub fn contradiction(&self, sizes: &SymbolValues) -> Option<BrokenCondition> {
        self.conditions.iter().find_map(|condition| condition.contradiction(sizes))
    }

    /// The plan of every call, for a program without size symbols.
    pub fn fixed_plan(&self) -> Option<&Arc<CallPlan>> {
        self.fixed_plan.as_ref()
    }

    /// Checks the inputs and finds the plan of a call with their sizes.
    pub fn plan_for(&self, inputs: &[InputValue<'_>]) -> Result<Arc<CallPlan>, RunError> {
        check_kinds(&self.inputs, inputs)?;
        let plan = match &self.fixed_plan {
            Some(plan) => plan.clone(),
            None => self.plan_of_sizes(self.bindings.values(inputs))?,
        };
        check_layouts(&self.inputs, &plan.inputs, inputs)?;
        Ok(plan)
    }

    fn plan_of_sizes(&self, values: Vec<i64>) -> Result<Arc<CallPlan>, RunError> {
        // Never waits: in a forked child the lock may be held for ever by a thread that is gone.
        if let Ok(mut plans) = self.plans.try_lock()
            && let Some(at) = plans.iter().position(|p| p.0 == values)
        {
            let found = plans.remove(at);
            let plan = found.1.clone();
            plans.push(found);
            return Ok(plan);
        }
        let plan = Arc::new(CallPlan::new(self, &values)?);
        if let Ok(mut plans) = self.plans.try_lock() {
            if plans.len() == KEPT_PLANS {
                plans.remove(0);
            }
            plans.push((values, plan.clone()));
        }
        Ok(plan)
    }

    /// Calls the program.
    ///
    /// # Safety
    /// Each tensor's elements must be readable (and writable, if the program changes the input) at its pointer and
    /// strides until the call returns or names it in [`Externs::release_inputs`], and no other thread may change them.
    /// An input that the program changes must not overlap another input. Memory that `externs` returns must hold the
    /// elements it says.
    pub unsafe fn run(
        &self,
        inputs: &[InputValue<'_>],
        externs: &mut dyn Externs,
        team: &dyn Team,
    ) -> Result<Vec<OutputValue>, RunError> {
        let plan = self.plan_for(inputs)?;
        let mut pointers = smallvec::SmallVec::<[*mut u8; 16]>::new();
        pointers.extend(inputs.iter().map(|input| match input {
            InputValue::Tensor { ptr, .. } => *ptr,
            InputValue::Size(_) => std::ptr::null_mut(),
        }));
        // SAFETY: the inputs were checked against this plan; the rest is the caller's promise.
        unsafe { self.run_planned(&plan, &pointers, externs, team) }
    }

    /// Calls the program with inputs that are known to be right: `pointers` holds the first element of each, and
    /// anything for sizes.
    ///
    /// # Safety
    /// As [`Executable::run`]; besides, the plan must come from this executable's [`Executable::plan_for`] for
    /// inputs of the same kinds, element types, shapes and strides, and there must be one pointer for each input.
    pub unsafe fn run_planned(
        &self,
        plan: &Arc<CallPlan>,
        pointers: &[*mut u8],
        externs: &mut dyn Externs,
        team: &dyn Team,
    ) -> Result<Vec<OutputValue>, RunError> {
        let mut state = self.states.try_lock().ok().and_then(|mut s| s.pop()).unwrap_or_default();
        // SAFETY: the caller's promise.
        let result = unsafe { call::run(self, plan, pointers, externs, team, &mut state) };
        state.clear(plan);
        if let Ok(mut states) = self.states.try_lock()
            && states.len() < KEPT_STATES
        {
            states.push(state);
        }
        result
    }
}

fn link_kernel(kernel: &KernelUse) -> LinkedStep {
    LinkedStep::Kernel(LinkedKernel {
        name: kernel.kernel.name.clone(),
        entries: kernel.kernel.code.entries.clone(),
        failures: kernel.failures.clone(),
        buffers: kernel.buffers.iter().map(|b| b.0 as usize).collect(),
        written: written_by(kernel),
        sizes: kernel.sizes.clone(),
        phases: kernel.phases.clone(),
        shared_scratch_bytes: kernel.shared_scratch_bytes,
        _code: kernel.kernel.clone(),
    })
}

fn written_by(kernel: &KernelUse) -> Vec<usize> {
    let params = kernel.buffers.iter().zip(&kernel.kernel.params);
    params.filter(|(_, p)| p.access != Access::Read).map(|(b, _)| b.0 as usize).collect()
}

fn link_extern(program: &NestProgram, step: StepId) -> Result<LinkedStep, LinkError> {
    match program.steps.get(step.0 as usize) {
        Some(ProgramStep::Extern(call)) => {
            Ok(LinkedStep::Extern { step, call: call.clone(), native: Native::of(call, program) })
        }
        _ => Err(LinkError::NotExtern(step.0)),
    }
}

fn link_buffers(
    program: &NestProgram,
    steps: &[LinkedStep],
    writes_results: WritesResults<'_>,
) -> Result<Vec<LinkedBuffer>, LinkError> {
    let mut buffers = Vec::with_capacity(program.buffers.len());
    for buffer in &program.buffers {
        if buffer.device != Device::Cpu {
            return Err(LinkError::Device { buffer: buffer.name.clone(), device: buffer.device });
        }
        let owner = match buffer.source {
            BufferSource::Input(position) => Owner::Input(position),
            BufferSource::Owned => Owner::Call,
        };
        buffers.push(LinkedBuffer { buffer: buffer.clone(), steps: None, owner, in_place_of: None });
    }
    let find =
        |b: usize| if b < program.buffers.len() { Ok(b) } else { Err(LinkError::UnknownBuffer(b as u32)) };
    for output in &program.outputs {
        if let Output::Tensor(view) = output {
            let buffer = &mut buffers[find(view.buffer.0 as usize)?];
            if buffer.owner == Owner::Call {
                buffer.owner = Owner::Output;
            }
        }
    }
    for (position, step) in steps.iter().enumerate() {
        if let LinkedStep::Extern { call, native: None, .. } = step
            && !writes_results(call)
        {
            for view in call.results.iter().flatten() {
                buffers[find(view.buffer.0 as usize)?].owner = Owner::Library;
            }
        }
        for b in buffers_of(step) {
            let uses = &mut buffers[find(b)?].steps;
            *uses = Some((uses.map_or(position, |u| u.0), position));
        }
    }
    Ok(buffers)
}

fn buffers_of(step: &LinkedStep) -> Vec<usize> {
    match step {
        LinkedStep::Kernel(kernel) => kernel.buffers.clone(),
        LinkedStep::Extern { call, .. } => {
            call.tensors.iter().chain(call.results.iter().flatten()).map(|v| v.buffer.0 as usize).collect()
        }
    }
}
