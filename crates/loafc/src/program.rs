//! A compiled program as Rust calls it: with tensors, whatever their strides.

use std::num::NonZeroUsize;
use std::sync::Arc;

use loafc_runtime::externs::Externs;
use loafc_runtime::externs_native::NativeExterns;
use loafc_runtime::threads::{Serial, Team, ThreadTeam};
use loafc_runtime::{Executable, InputValue, OutputMemory, OutputValue, RunError};

use crate::report::Report;
use crate::tensor::{Storage, Tensor, TensorError};

/// A compiled program.
pub struct Program {
    executable: Executable,
    report: Report,
    team: Arc<dyn Team>,
}

/// An argument or result of a program.
#[derive(Clone, Debug)]
pub enum Value {
    /// A tensor.
    Tensor(Tensor),
    /// A size.
    Size(i64),
    /// Nothing; only as a result.
    None,
}

/// A call of a program failed.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// The program refused its inputs or failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A tensor could not be made.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// Nothing where a tensor or a size is expected.
    #[error("input {0}: nothing was passed")]
    NoInput(usize),
    /// A result that is no tensor.
    #[error("result {0} is none, not a tensor: call the program with `run_values`")]
    NoTensor(usize),
}

impl Program {
    pub(crate) fn new(executable: Executable, report: Report, threads: Option<NonZeroUsize>) -> Program {
        let team: Arc<dyn Team> = match threads.map(NonZeroUsize::get) {
            None => ThreadTeam::shared(),
            Some(1) => Arc::new(Serial),
            Some(n) => Arc::new(ThreadTeam::new(n)),
        };
        Program { executable, report, team }
    }

    /// What the compiler did.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// The program for front ends that bring memory, threads and extern calls of their own.
    pub fn executable(&self) -> &Executable {
        &self.executable
    }

    /// The executable and the report, for front ends that keep them in structures of their own.
    pub fn into_parts(self) -> (Executable, Report) {
        (self.executable, self.report)
    }

    /// Name for people.
    pub fn name(&self) -> &str {
        self.executable.name()
    }

    /// Runs the program on tensors; sizes are passed and returned as i64 tensors of no dimensions. An input that
    /// the program writes to is copied first and stays as it is.
    ///
    /// # Errors
    /// When inputs don't fit, a condition of the program fails, or an extern call does.
    pub fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, ProgramError> {
        let is_size = |k: usize| {
            self.executable
                .inputs()
                .get(k)
                .is_some_and(|i| matches!(i.kind, loafc_runtime::InputKind::Size(_)))
        };
        let mut values = Vec::with_capacity(inputs.len());
        for (k, tensor) in inputs.iter().enumerate() {
            let one_integer = tensor.numel() == 1 && tensor.dtype() == loafc_ir::dtype::DType::I64;
            values.push(match one_integer && is_size(k) {
                true => Value::Size(tensor.to_vec::<i64>()?[0]),
                false => Value::Tensor(tensor.clone()),
            });
        }
        let results = self.run_values(&values)?;
        let tensor = |(k, value)| match value {
            Value::Tensor(tensor) => Ok(tensor),
            Value::Size(size) => Ok(Tensor::scalar(size)?),
            Value::None => Err(ProgramError::NoTensor(k)),
        };
        results.into_iter().enumerate().map(tensor).collect()
    }

    /// Runs the program. An input that the program writes to is copied first and stays as it is.
    ///
    /// # Errors
    /// As [`Program::run`].
    pub fn run_values(&self, inputs: &[Value]) -> Result<Vec<Value>, ProgramError> {
        self.run_with(&mut inputs.to_vec(), &mut NativeExterns)
    }

    /// Runs the program, and lets it write to its inputs. An input may come back with the strides that the program
    /// was compiled for.
    ///
    /// # Errors
    /// As [`Program::run`]; inputs may then be half changed.
    pub fn run_in_place(&self, inputs: &mut [Value]) -> Result<Vec<Value>, ProgramError> {
        self.run_with(inputs, &mut NativeExterns)
    }

    /// As [`Program::run_in_place`], with a library of the caller for extern calls.
    ///
    /// # Errors
    /// As [`Program::run_in_place`].
    pub fn run_with(
        &self,
        inputs: &mut [Value],
        externs: &mut dyn Externs,
    ) -> Result<Vec<Value>, ProgramError> {
        self.arrange(inputs)?;
        for position in self.executable.mutated_inputs() {
            if let Some(Value::Tensor(tensor)) = inputs.get_mut(position) {
                tensor.make_unique()?;
            }
        }
        let views = views_of(inputs)?;
        // SAFETY: the tensors hold their elements, and those that are written to are not shared with others.
        let results = unsafe { self.executable.run(&views, externs, &*self.team)? };
        drop(views);
        Ok(results.into_iter().map(|r| value_of(r, inputs)).collect())
    }

    /// Lays inputs out with the strides that the program was compiled for.
    fn arrange(&self, inputs: &mut [Value]) -> Result<(), ProgramError> {
        // Each round settles one input, and strides of one can't undo another's.
        for _ in 0..=inputs.len() {
            let (position, expected) = match self.executable.plan_for(&views_of(inputs)?) {
                Ok(_) => return Ok(()),
                Err(RunError::InputStrides { position, expected, .. }) => (position, expected),
                Err(error) => return Err(error.into()),
            };
            if let Some(Value::Tensor(tensor)) = inputs.get_mut(position) {
                *tensor = tensor.with_strides(&expected)?;
            }
        }
        Ok(())
    }
}

fn views_of(inputs: &[Value]) -> Result<Vec<InputValue<'_>>, ProgramError> {
    let view = |(k, value)| match value {
        &Value::Size(size) => Ok(InputValue::Size(size)),
        Value::Tensor(tensor) => Ok(InputValue::Tensor {
            ptr: tensor.as_mut_ptr(),
            dtype: tensor.dtype(),
            shape: tensor.shape(),
            strides: tensor.strides(),
        }),
        Value::None => Err(ProgramError::NoInput(k)),
    };
    inputs.iter().enumerate().map(view).collect()
}

fn value_of(output: OutputValue, inputs: &[Value]) -> Value {
    let tensor = match output {
        OutputValue::Input(position) => return inputs[position].clone(),
        OutputValue::Size(size) => return Value::Size(size),
        OutputValue::None => return Value::None,
        OutputValue::Tensor(tensor) => tensor,
    };
    let storage = match &tensor.memory {
        OutputMemory::Block(block) => Storage::Block(block.clone()),
        OutputMemory::Foreign(keepalive) => Storage::Foreign { _keepalive: keepalive.clone() },
        OutputMemory::Input(position) => match &inputs[*position] {
            Value::Tensor(input) => input.storage().clone(),
            // The runtime places tensors on tensors only.
            Value::Size(_) | Value::None => return Value::None,
        },
    };
    Value::Tensor(Tensor::on_storage(tensor.dtype, &tensor.shape, &tensor.strides, tensor.ptr, storage))
}
