//! Code for CPUs.

pub mod jit;

pub mod target;
