//! The reference interpreter: slow and plain, the oracle for every level of the compiler.

pub mod tensor;
