//! Data of the loafc compiler: sizes and indices, tensor programs, loop nests, their text forms, verifiers and
//! the reference interpreter. Knows no device and no machine instruction.

pub mod builder;
pub mod canonical;
pub mod condition;
pub mod dtype;
pub mod graph;
pub mod index;
pub mod interp;
pub mod nest;
pub mod ops;
pub mod random_program;
pub mod size;
pub mod synthetic;
pub mod text;
pub mod verify;
