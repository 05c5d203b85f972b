//! Tests of the lowering as a whole.

mod random;
mod samples;
mod support;
mod text;
mod values;
