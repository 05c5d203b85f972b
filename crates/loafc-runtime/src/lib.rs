//! Runs compiled programs: plans and reuses memory, shares kernels among threads, makes the extern calls. Takes a
//! schedule as it is and never changes it.

pub mod fork;
pub mod pool;
pub mod threads;
