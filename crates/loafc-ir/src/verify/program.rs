//! The rules of loop nests and nest programs: the form of the loops, buffers that exist and are written before
//! they are read, and extern calls whose arguments and results fit.

use rustc_hash::FxHashSet;

use super::VerifyError;
use super::body::verify_body;
use crate::graph::{Arg, Input};
use crate::nest::{
    BufferId, BufferSource, ExternCall, LoopKind, LoopNest, NestProgram, Op, Output, Step, TensorView,
};
use crate::size::Size;

/// Checks a nest program and names the first rule that it breaks.
pub fn verify_program(program: &NestProgram) -> Result<(), VerifyError> {
    check_buffers(program)?;
    let mut state = State { program, written: vec![false; program.buffers.len()] };
    for (k, buffer) in program.buffers.iter().enumerate() {
        // What has no elements needs no write.
        state.written[k] = buffer.source != BufferSource::Owned || buffer.len.is(0);
    }
    for (k, step) in program.steps.iter().enumerate() {
        match step {
            Step::Nest(nest) => {
                let place = format!("step {k} (nest {})", nest.name);
                check_nest(program, nest, &place)?;
                state.nest(nest).map_err(|problem| VerifyError::new(place, problem))?;
            }
            Step::Extern(call) => {
                let place = format!("step {k} ({})", call.op);
                state.call(call).map_err(|problem| VerifyError::new(place, problem))?;
            }
        }
    }
    for (k, output) in program.outputs.iter().enumerate() {
        let place = format!("output {k}");
        state.output(output).map_err(|problem| VerifyError::new(place, problem))?;
    }
    Ok(())
}

/// Checks one nest over the buffers of a program.
pub fn verify_nest(program: &NestProgram, nest: &LoopNest) -> Result<(), VerifyError> {
    check_nest(program, nest, &format!("nest {}", nest.name))
}

fn check_nest(program: &NestProgram, nest: &LoopNest, place: &str) -> Result<(), VerifyError> {
    let parallel = nest.parallel_loops();
    for (k, l) in nest.loops.iter().enumerate() {
        if l.kind == LoopKind::Parallel && k >= parallel {
            return Err(VerifyError::new(
                place,
                format!("parallel loop i{k} stands behind a reduction loop"),
            ));
        }
        if l.extent.as_const().is_some_and(|n| n < 0) {
            return Err(VerifyError::new(place, format!("loop i{k} has the extent {}", l.extent)));
        }
    }
    let buffers = |id: BufferId| program.buffers.get(id.0 as usize).map(|b| (b.dtype, b.len));
    verify_body(&nest.body, &nest.loops, &buffers)
        .map_err(|e| VerifyError::new(format!("{place}, {}", e.place), e.problem))
}

fn check_buffers(program: &NestProgram) -> Result<(), VerifyError> {
    let mut inputs = FxHashSet::default();
    for (k, buffer) in program.buffers.iter().enumerate() {
        let wrong =
            |problem: String| Err(VerifyError::new(format!("buffer b{k} ({})", buffer.name), problem));
        if buffer.len.as_const().is_some_and(|n| n < 0) {
            return wrong(format!("it has the length {}", buffer.len));
        }
        let BufferSource::Input(position) = buffer.source else { continue };
        match program.inputs.get(position) {
            None => return wrong(format!("there is no input {position}")),
            Some(Input::Size(..)) => return wrong(format!("input {position} is a size")),
            Some(Input::Tensor(_)) if !inputs.insert(position) => {
                return wrong(format!("input {position} has another buffer already"));
            }
            Some(Input::Tensor(_)) => {}
        }
    }
    Ok(())
}

struct State<'a> {
    program: &'a NestProgram,
    /// For each buffer, whether it holds anything by now.
    written: Vec<bool>,
}

impl State<'_> {
    fn is_written(&self, id: BufferId) -> Result<(), String> {
        match self.written.get(id.0 as usize) {
            None => Err(format!("buffer {id} does not exist")),
            Some(true) => Ok(()),
            Some(false) => Err(format!("it reads buffer {id}, which nothing before it writes")),
        }
    }

    fn nest(&mut self, nest: &LoopNest) -> Result<(), String> {
        for op in &nest.body.ops {
            match op {
                // A load may follow a store of its own nest; the interpreter sees whether it comes too early.
                Op::Store { buffer, .. } => self.written[buffer.0 as usize] = true,
                Op::Load { buffer, .. } => self.is_written(*buffer)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn call(&mut self, call: &ExternCall) -> Result<(), String> {
        let args = call.args.iter().chain(call.kwargs.iter().map(|(_, arg)| arg));
        args.clone().try_for_each(|arg| check_argument(arg, call.tensors.len()))?;
        for view in &call.tensors {
            self.view(view)?;
            self.is_written(view.buffer)?;
        }
        if let Some(position) = call.mutates.iter().find(|p| **p >= call.tensors.len()) {
            return Err(format!("it mutates tensor {position}, which does not exist"));
        }
        for view in call.results.iter().flatten() {
            self.view(view)?;
            let buffer = self.program.buffer(view.buffer);
            if buffer.source != BufferSource::Owned {
                return Err(format!("result {view} lies in an input"));
            }
            // A buffer of nothing counts as written from the start.
            let written = std::mem::replace(&mut self.written[view.buffer.0 as usize], true);
            if written && !buffer.len.is(0) {
                return Err(format!("result {view} lies in a buffer that something else writes"));
            }
        }
        Ok(())
    }

    fn view(&self, view: &TensorView) -> Result<(), String> {
        let Some(buffer) = self.program.buffers.get(view.buffer.0 as usize) else {
            return Err(format!("buffer {} does not exist", view.buffer));
        };
        if view.shape.len() != view.strides.len() {
            return Err(format!(
                "{view} has {} extents but {} strides",
                view.shape.len(),
                view.strides.len()
            ));
        }
        let mut last = view.offset;
        for (extent, stride) in view.shape.iter().zip(&view.strides) {
            if !crate::index::provably_positive(*extent) {
                return Ok(());
            }
            last += (*extent - Size::ONE) * *stride;
        }
        if (buffer.len - Size::ONE - last).as_const().is_some_and(|room| room < 0) {
            return Err(format!("{view} reaches element {last} of a buffer of {}", buffer.len));
        }
        Ok(())
    }

    fn output(&self, output: &Output) -> Result<(), String> {
        match output {
            Output::Tensor(view) => {
                self.view(view)?;
                // An empty tensor has nothing to be written.
                if view.shape.iter().any(|n| n.is(0)) { Ok(()) } else { self.is_written(view.buffer) }
            }
            Output::Input(position) if *position >= self.program.inputs.len() => {
                Err(format!("there is no input {position}"))
            }
            Output::Input(_) | Output::Size(_) | Output::None => Ok(()),
        }
    }
}

fn check_argument(arg: &Arg, tensors: usize) -> Result<(), String> {
    match arg {
        Arg::Value(id) if id.0 as usize >= tensors => {
            Err(format!("it uses tensor {}, which does not exist", id.0))
        }
        Arg::List(items) => items.iter().try_for_each(|item| check_argument(item, tensors)),
        _ => Ok(()),
    }
}
