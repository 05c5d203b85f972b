//! Runs fused groups on the reference interpreter, in the order of their contract: outer iterations one after the
//! other, in each the stages, in each stage all members side by side. A fusion that was not allowed shows as a
//! wrong value, a load of something that nothing has written yet, or an access out of bounds.

use indexmap::IndexMap;
use loafc_ir::dtype::{DType, Scalar};
use loafc_ir::interp::InterpError;
use loafc_ir::interp::body::{BodyEval, Memory};
use loafc_ir::interp::nest::{ExternFn, Machine, ProgramInputs};
use loafc_ir::nest::{BufferId, StepId};
use loafc_ir::ops::EvalResult;
use loafc_ir::size::{Size, SymbolValues};
use rustc_hash::FxBuildHasher;

use crate::schedule::{Group, Member, Place, Schedule, ScheduledStep, Stage};

/// Runs one group on a program's memory.
///
/// # Errors
/// Those of the interpreter; also if an outer iteration reads from a local buffer what it has not written.
pub fn run_group(group: &Group, sizes: &SymbolValues, memory: &mut dyn Memory) -> Result<(), InterpError> {
    let outer = extents(&group.outer, sizes)?;
    let mut partial: Vec<Vec<Running>> =
        group.stages.iter().map(|s| s.members.iter().map(|_| Running::default()).collect()).collect();
    let mut locals = Locals::new(group, sizes)?;
    for_each_position(&outer, &mut |at| {
        locals.clear();
        for (stage, partial) in group.stages.iter().zip(&mut partial) {
            run_stage(stage, at, partial, sizes, &mut WithLocals { locals: &mut locals, memory })?;
        }
        Ok(())
    })?;
    for (stage, partial) in group.stages.iter().zip(partial) {
        for (member, running) in stage.members.iter().zip(partial) {
            if is_partial(member, group.outer.len()) {
                // The value of no iterations is stored where the outer space is empty, too.
                running.or_empty(member, &group.outer, stage, sizes, memory)?.finish(memory)?;
            }
        }
    }
    Ok(())
}

/// Whether a member's results exist only behind all outer iterations.
fn is_partial(member: &Member, outer: usize) -> bool {
    member.reduced[..outer].iter().any(|r| *r)
}

/// Evaluators of one member, by the values of the digits that it does not reduce over.
#[derive(Default)]
struct Running<'a>(IndexMap<Vec<i64>, (BodyEval<'a>, Vec<i64>), FxBuildHasher>);

impl<'a> Running<'a> {
    fn iterate(
        &mut self,
        member: &'a Member,
        at: &[i64],
        sizes: &'a SymbolValues,
        memory: &mut dyn Memory,
    ) -> Result<(), InterpError> {
        let key: Vec<i64> = at.iter().zip(&member.reduced).filter(|(_, r)| !**r).map(|(v, _)| *v).collect();
        if !self.0.contains_key(&key) {
            let eval = BodyEval::new(&member.body, &member.reduced, sizes, memory)?;
            self.0.insert(key.clone(), (eval, at.to_vec()));
        }
        self.0[&key].0.iterate(at, memory)
    }

    fn finish(self, memory: &mut dyn Memory) -> Result<(), InterpError> {
        for (_, (mut eval, at)) in self.0 {
            eval.finish(&at, memory)?;
        }
        Ok(())
    }

    /// Adds an evaluator without iterations for each result that no iteration belongs to.
    fn or_empty(
        mut self,
        member: &'a Member,
        outer: &[Size],
        stage: &Stage,
        sizes: &'a SymbolValues,
        memory: &dyn Memory,
    ) -> Result<Self, InterpError> {
        if !member.reduced.contains(&true) || !self.0.is_empty() {
            return Ok(self);
        }
        let all = extents(&[outer, stage.inner.as_slice()].concat(), sizes)?;
        let shown: Vec<i64> =
            all.iter().zip(&member.reduced).map(|(e, reduced)| if *reduced { 1 } else { *e }).collect();
        for_each_position(&shown, &mut |at| {
            let eval = BodyEval::new(&member.body, &member.reduced, sizes, memory)?;
            self.0.insert(at.to_vec(), (eval, at.to_vec()));
            Ok(())
        })?;
        Ok(self)
    }
}

fn run_stage<'a>(
    stage: &'a Stage,
    outer: &[i64],
    partial: &mut [Running<'a>],
    sizes: &'a SymbolValues,
    memory: &mut WithLocals,
) -> Result<(), InterpError> {
    let inner = extents(&stage.inner, sizes)?;
    let mut running: Vec<Running> = stage.members.iter().map(|_| Running::default()).collect();
    for_each_position(&inner, &mut |at| {
        let at = [outer, at].concat();
        for ((member, running), partial) in stage.members.iter().zip(&mut running).zip(partial.iter_mut()) {
            if is_partial(member, outer.len()) {
                partial.iterate(member, &at, sizes, memory)?;
            } else if member.reduced.contains(&true) {
                running.iterate(member, &at, sizes, memory)?;
            } else {
                let mut eval = BodyEval::new(&member.body, &member.reduced, sizes, memory)?;
                eval.iterate(&at, memory)?;
                eval.finish(&at, memory)?;
            }
        }
        Ok(())
    })?;
    for (member, running) in stage.members.iter().zip(running) {
        if member.reduced.contains(&true) && !is_partial(member, outer.len()) {
            let running = if running.0.is_empty() {
                empty_results(member, outer, &inner, sizes, memory)?
            } else {
                running
            };
            running.finish(memory)?;
        }
    }
    Ok(())
}

/// Evaluators for reductions over an empty inner space.
fn empty_results<'a>(
    member: &'a Member,
    outer: &[i64],
    inner: &[i64],
    sizes: &'a SymbolValues,
    memory: &dyn Memory,
) -> Result<Running<'a>, InterpError> {
    let shown: Vec<i64> =
        inner.iter().zip(&member.reduced[outer.len()..]).map(|(e, r)| if *r { 1 } else { *e }).collect();
    let mut running = Running::default();
    for_each_position(&shown, &mut |at| {
        let at = [outer, at].concat();
        let eval = BodyEval::new(&member.body, &member.reduced, sizes, memory)?;
        running.0.insert(at.clone(), (eval, at));
        Ok(())
    })?;
    Ok(running)
}

fn extents(sizes: &[Size], values: &SymbolValues) -> Result<Vec<i64>, InterpError> {
    sizes.iter().map(|s| value_of(*s, values)).collect()
}

fn value_of(size: Size, values: &SymbolValues) -> Result<i64, InterpError> {
    size.eval(values).ok_or_else(|| InterpError::Size(size.to_string()))
}

/// Counts through a space, the last digit fastest.
fn for_each_position(
    extents: &[i64],
    visit: &mut dyn FnMut(&[i64]) -> Result<(), InterpError>,
) -> Result<(), InterpError> {
    if extents.iter().any(|e| *e <= 0) {
        return Ok(());
    }
    let mut at = vec![0; extents.len()];
    loop {
        visit(&at)?;
        let Some(digit) = (0..at.len()).rev().find(|k| at[*k] + 1 < extents[*k]) else { return Ok(()) };
        at[digit] += 1;
        at[digit + 1..].fill(0);
    }
}

/// The local buffers of one outer iteration.
struct Locals {
    arrays: IndexMap<BufferId, Vec<Option<Scalar>>, FxBuildHasher>,
}

impl Locals {
    fn new(group: &Group, sizes: &SymbolValues) -> Result<Locals, InterpError> {
        let mut arrays = IndexMap::default();
        for entry in &group.buffers {
            if let Place::Local(len) = entry.place {
                arrays.insert(entry.buffer, vec![None; value_of(len, sizes)?.max(0) as usize]);
            }
        }
        Ok(Locals { arrays })
    }

    fn clear(&mut self) {
        for array in self.arrays.values_mut() {
            array.fill(None);
        }
    }
}

struct WithLocals<'a> {
    locals: &'a mut Locals,
    memory: &'a mut dyn Memory,
}

fn outside(access: &'static str, buffer: BufferId, index: i64, len: usize) -> InterpError {
    InterpError::OutOfBounds { access, buffer, name: "local".to_owned(), index, len }
}

impl Memory for WithLocals<'_> {
    fn dtype(&self, buffer: BufferId) -> Result<DType, InterpError> {
        self.memory.dtype(buffer)
    }

    fn load(&self, buffer: BufferId, index: i64) -> Result<Scalar, InterpError> {
        let Some(array) = self.locals.arrays.get(&buffer) else { return self.memory.load(buffer, index) };
        let place = usize::try_from(index).ok().and_then(|k| array.get(k));
        place
            .ok_or_else(|| outside("load", buffer, index, array.len()))?
            .ok_or_else(|| InterpError::Uninitialized { buffer, name: "local".to_owned(), index })
    }

    fn store(&mut self, buffer: BufferId, index: i64, value: Scalar) -> Result<(), InterpError> {
        let Some(array) = self.locals.arrays.get_mut(&buffer) else {
            return self.memory.store(buffer, index, value);
        };
        let len = array.len();
        let place = usize::try_from(index).ok().and_then(|k| array.get_mut(k));
        *place.ok_or_else(|| outside("store", buffer, index, len))? = Some(value);
        Ok(())
    }
}

/// Runs a whole schedule on the reference interpreter.
///
/// # Errors
/// Those of [`run_group`] and of extern calls.
pub fn run_schedule(
    schedule: &Schedule,
    inputs: &ProgramInputs,
    extern_call: &mut ExternFn,
) -> Result<EvalResult, InterpError> {
    run_schedule_with(schedule, inputs, extern_call, |group, sizes, memory| run_group(group, sizes, memory))
}

/// Interprets a schedule whose groups are run in another way, such as by a later level of the compiler.
///
/// # Errors
/// Those of `run_kernel` and of extern calls.
pub fn run_schedule_with<E: From<InterpError>>(
    schedule: &Schedule,
    inputs: &ProgramInputs,
    extern_call: &mut ExternFn,
    mut run_kernel: impl FnMut(&Group, &SymbolValues, &mut dyn Memory) -> Result<(), E>,
) -> Result<EvalResult, E> {
    let program = &schedule.program;
    let mut machine = Machine::new(program, inputs)?;
    for step in &schedule.steps {
        match step {
            ScheduledStep::Extern(StepId(step)) => {
                machine.run_step(&program.steps[*step as usize], extern_call)?;
            }
            ScheduledStep::Kernel(group) => {
                for member in group.stages.iter().flat_map(|s| &s.members) {
                    machine.note_stores(&member.body);
                }
                run_kernel(group, machine.sizes(), &mut machine.memory)?;
            }
        }
    }
    Ok(machine.finish()?)
}
