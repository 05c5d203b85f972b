//! The loafc compiler as a library: build a tensor program, compile it, run it.
//!
//! ```
//! use loafc::{Compiler, DType, GraphBuilder, Options, Size, Tensor, TensorType};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut build = GraphBuilder::new("double");
//! let x = build.input("x", TensorType::contiguous(DType::F32, [Size::from(4)]))?;
//! let y = build.add(x, x)?;
//! let program = Compiler::new(Options::default()).compile(build.finish(&[y]))?;
//! let results = program.run(&[Tensor::from_slice(&[4], &[1.0f32, 2.0, 3.0, 4.0])?])?;
//! assert_eq!(results[0].to_vec::<f32>()?, [2.0, 4.0, 6.0, 8.0]);
//! # Ok(())
//! # }
//! ```

mod compiler;
pub mod disk_cache;
mod error;
mod html;
pub mod interpret;
pub mod npy;
mod options;
mod program;
mod report;
mod tensor;

pub use compiler::Compiler;
pub use error::{CompileError, Phase};
pub use interpret::{Level, LevelError, Outcome};
pub use loafc_codegen::cpu::footprint::release_compiler_memory;
pub use loafc_ir::builder::GraphBuilder;
pub use loafc_ir::dtype::DType;
pub use loafc_ir::graph::{Arg, Graph, Input, TensorType};
pub use loafc_ir::size::{Size, SymbolValues};
pub use loafc_ir::text::{ParseError, parse};
pub use loafc_runtime as runtime;
pub use options::{CacheFolder, OptionError, OptionInfo, Options};
pub use program::{Program, ProgramError, Value};
pub use report::{
    BufferTraffic, CodeOrigins, CompileSeconds, ExternReport, KernelReport, MemberReport, Report, count_text,
};
pub use tensor::{Element, Tensor, TensorError};
