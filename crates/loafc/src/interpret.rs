//! Runs a program at any level of the compiler on the reference interpreter, so that a wrong result is bisected
//! by level: the first level that differs from the one before it is at fault.

use loafc_codegen::loop_tree;
use loafc_fuse::schedule::ScheduledStep;
use loafc_ir::graph::Graph;
use loafc_ir::interp::InterpError;
use loafc_ir::interp::nest::{Machine, ProgramInputs, reference_extern, run_program};
use loafc_ir::nest::Step;
use loafc_ir::ops::{self, EvalError, EvalResult, GraphInput, GraphOutput};

use crate::compiler::Compiler;
use crate::error::CompileError;
use crate::program::{ProgramError, Value};
use crate::tensor::{Tensor, TensorError};

/// A form that a program takes on its way.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// The tensor program.
    Graph,
    /// Loop nests.
    Nest,
    /// Fused groups.
    Group,
    /// Loop trees.
    LoopTree,
    /// Machine code.
    Native,
}

impl Level {
    /// All levels, in the order of the compiler.
    pub const ALL: [Level; 5] = [Level::Graph, Level::Nest, Level::Group, Level::LoopTree, Level::Native];

    /// Name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Level::Graph => "graph",
            Level::Nest => "nest",
            Level::Group => "group",
            Level::LoopTree => "loop-tree",
            Level::Native => "native",
        }
    }
}

/// What a run gives.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The results.
    pub outputs: Vec<Value>,
    /// Positions of the inputs that the program wrote to, in order, with their final contents.
    pub mutated_inputs: Vec<(usize, Tensor)>,
}

/// Running a program at some level failed.
#[derive(Debug, thiserror::Error)]
pub enum LevelError {
    /// A phase before that level failed.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// The tensor program failed.
    #[error(transparent)]
    Eval(#[from] EvalError),
    /// The interpreter of that level failed.
    #[error("{level}: {error}")]
    Interpret {
        /// Where.
        level: &'static str,
        /// What happened.
        error: InterpError,
    },
    /// No loop tree could be made of a group.
    #[error("loop tree of kernel {kernel}: {message}")]
    LoopTree {
        /// Which kernel, from 0.
        kernel: usize,
        /// Why.
        message: String,
    },
    /// The machine code failed.
    #[error(transparent)]
    Native(#[from] ProgramError),
    /// An input or result is no tensor that the interpreter knows.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

impl Compiler {
    /// Runs `graph` in the form that it has at `level`.
    ///
    /// # Errors
    /// When compiling up to there, or running, fails.
    pub fn run_at(&self, level: Level, graph: &Graph, inputs: &[Value]) -> Result<Outcome, LevelError> {
        let result = match level {
            Level::Native => return self.run_native(graph, inputs),
            Level::Graph => ops::eval_graph(graph, &host_inputs(inputs)?)?,
            Level::Nest | Level::Group | Level::LoopTree => self.interpret(level, graph, inputs)?,
        };
        let mutated = result.mutated_inputs.iter().map(|(k, host)| Ok((*k, Tensor::from_host(host)?)));
        Ok(Outcome {
            outputs: result.outputs.iter().map(value).collect::<Result<_, TensorError>>()?,
            mutated_inputs: mutated.collect::<Result<_, TensorError>>()?,
        })
    }

    fn run_native(&self, graph: &Graph, inputs: &[Value]) -> Result<Outcome, LevelError> {
        let program = self.compile(graph.clone())?;
        let mut inputs = inputs.to_vec();
        let outputs = program.run_in_place(&mut inputs)?;
        let mutated = program.executable().mutated_inputs().into_iter();
        let mutated_inputs = mutated
            .filter_map(|k| match inputs.get(k) {
                Some(Value::Tensor(tensor)) => Some((k, tensor.clone())),
                _ => None,
            })
            .collect();
        Ok(Outcome { outputs, mutated_inputs })
    }

    fn interpret(&self, level: Level, graph: &Graph, inputs: &[Value]) -> Result<EvalResult, LevelError> {
        let failed = |error| LevelError::Interpret { level: level.name(), error };
        let nests = self.lower(graph)?;
        let inputs = ProgramInputs::new(graph, &host_inputs(inputs)?).map_err(failed)?;
        if level == Level::Nest {
            return run_program(&nests, &inputs, &mut reference_extern).map_err(failed);
        }
        let schedule = self.fuse(nests)?.schedule;
        let mut machine = Machine::new(&schedule.program, &inputs).map_err(failed)?;
        let mut kernel = 0;
        for step in &schedule.steps {
            match step {
                ScheduledStep::Extern(id) => {
                    if let Step::Extern(call) = &schedule.program.steps[id.0 as usize] {
                        machine.run_extern(call, &mut reference_extern).map_err(failed)?;
                    }
                }
                ScheduledStep::Kernel(group) => {
                    for member in group.stages.iter().flat_map(|s| &s.members) {
                        machine.note_stores(&member.body);
                    }
                    let sizes = machine.sizes();
                    if level == Level::Group {
                        loafc_fuse::interpret::run_group(group, sizes, &mut machine.memory)
                            .map_err(failed)?;
                    } else {
                        let built = loop_tree::build(group, &schedule.program, &loop_tree::Limits::default())
                            .map_err(|message| LevelError::LoopTree { kernel, message })?;
                        loop_tree::interpret::interpret(
                            &built.kernel,
                            &built.buffers,
                            sizes,
                            &mut machine.memory,
                        )
                        .map_err(failed)?;
                    }
                    kernel += 1;
                }
            }
        }
        machine.finish().map_err(failed)
    }
}

fn host_inputs(inputs: &[Value]) -> Result<Vec<GraphInput>, LevelError> {
    let host = |(k, value): (usize, &Value)| match value {
        Value::Tensor(tensor) => Ok(GraphInput::Tensor(tensor.to_host()?)),
        Value::Size(size) => Ok(GraphInput::Size(*size)),
        Value::None => Err(LevelError::Native(ProgramError::NoInput(k))),
    };
    inputs.iter().enumerate().map(host).collect()
}

fn value(output: &GraphOutput) -> Result<Value, TensorError> {
    Ok(match output {
        GraphOutput::Tensor(host) => Value::Tensor(Tensor::from_host(host)?),
        GraphOutput::Size(size) => Value::Size(*size),
        GraphOutput::None => Value::None,
    })
}
