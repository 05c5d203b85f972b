//! Verifiers: what must hold of a tensor program and of a loop nest.
