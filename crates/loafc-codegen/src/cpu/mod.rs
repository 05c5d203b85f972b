//! Code for CPUs: LLVM IR with explicit vectors from loop trees, object files from that, and their loading.

mod access;
pub(crate) mod compile;
mod convert;
mod emit;
pub mod footprint;
mod ir;
pub mod jit;
pub mod math;
mod reduce;
mod scalar;
mod stream;
pub mod target;
mod transpose;
mod window;
