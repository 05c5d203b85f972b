//! Data of the loafc compiler: sizes and indices, tensor programs, loop nests, their text forms, verifiers and
//! the reference interpreter. Knows no device and no machine instruction.

pub mod dtype;
pub mod graph;
pub mod index;
pub mod nest;
pub mod size;
