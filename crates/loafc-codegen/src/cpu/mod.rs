//! Code for CPUs.

pub mod jit;
pub mod math;

pub mod target;
