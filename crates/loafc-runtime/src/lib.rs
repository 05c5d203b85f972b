//! Runs compiled programs: plans and reuses memory, shares kernels among threads, makes the extern calls. Takes a
//! schedule as it is and never changes it.

mod call;
mod call_plan;
#[cfg(test)]
mod call_tests;
pub mod error;
mod executable;
pub mod externs;
pub mod externs_native;
pub mod fork;
mod in_place;
mod inputs;
mod native;
pub mod plan;
pub mod pool;
mod positions;
mod products;
pub mod random;
mod scan;
pub mod strided;
pub mod threads;
pub mod value;
mod width;

pub use call_plan::CallPlan;
pub use error::{ExternError, LinkError, RunError};
pub use executable::Executable;
pub use externs::{Externs, Invocation, ResultMemory};
pub use inputs::{InputKind, InputLayout, InputSpec, inputs_of};
pub use value::{InputValue, Keepalive, OutputMemory, OutputTensor, OutputValue, ResultSpec, TensorRef};
