//! Kernels of the loafc compiler: loop trees from fused groups, and machine code for them through LLVM.
//! Allocates no tensor and changes no schedule.

pub mod code;
pub mod cpu;
pub mod kernel;
pub mod loop_tree;
pub mod tiling;
