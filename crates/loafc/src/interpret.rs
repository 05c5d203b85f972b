//! Runs a program at any level of the compiler on the reference interpreter, so that a wrong result is bisected
//! by level: the first level that differs from the one before it is at fault.

use loafc_codegen::loop_tree;
use loafc_fuse::interpret::{run_group, run_schedule_with};
use loafc_ir::graph::Graph;
use loafc_ir::interp::InterpError;
use loafc_ir::interp::nest::{ProgramInputs, reference_extern, run_program};
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
    /// What the user asked for and doesn't get.
    pub warnings: Vec<String>,
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
            warnings: Vec::new(),
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
        Ok(Outcome { outputs, mutated_inputs, warnings: program.report().warnings.clone() })
    }

    fn interpret(&self, level: Level, graph: &Graph, inputs: &[Value]) -> Result<EvalResult, LevelError> {
        let failed = |error| LevelError::Interpret { level: level.name(), error };
        let nests = self.lower(graph)?;
        let inputs = ProgramInputs::new(graph, &host_inputs(inputs)?).map_err(failed)?;
        if level == Level::Nest {
            return run_program(&nests, &inputs, &mut reference_extern).map_err(failed);
        }
        let schedule = self.fuse(nests)?.schedule;
        let mut kernel = 0..;
        let run = run_schedule_with(&schedule, &inputs, &mut reference_extern, |group, sizes, memory| {
            let kernel = kernel.next().unwrap_or_default();
            if level == Level::Group {
                return Ok(run_group(group, sizes, memory)?);
            }
            let built = loop_tree::build(group, &schedule.program, &loop_tree::Limits::default())
                .map_err(|message| Stopped::LoopTree { kernel, message })?;
            Ok(loop_tree::interpret::interpret(&built.kernel, &built.buffers, sizes, memory)?)
        });
        run.map_err(|stopped| match stopped {
            Stopped::Interpret(error) => failed(error),
            Stopped::LoopTree { kernel, message } => LevelError::LoopTree { kernel, message },
        })
    }
}

/// Why a run of a schedule stopped.
enum Stopped {
    Interpret(InterpError),
    LoopTree { kernel: usize, message: String },
}

impl From<InterpError> for Stopped {
    fn from(error: InterpError) -> Self {
        Stopped::Interpret(error)
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
