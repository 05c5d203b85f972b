//! Tests of the lowering as a whole.

mod samples;
mod support;
mod text;
mod values;
