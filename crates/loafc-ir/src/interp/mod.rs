//! The reference interpreter: slow and plain, the oracle for every level of the compiler.

pub mod body;
pub mod error;
pub mod memory;
pub mod nest;
pub mod scalar;
pub mod special;
pub mod tensor;

pub use error::InterpError;

#[cfg(test)]
mod tests;
