//! Turns tensor programs into loop nests. Pointwise producers are computed inside their consumers, views are
//! arithmetic on strides and indices, and what has no lowering stays a call into a library. Decides no fusion.

mod analysis;
mod emit;
mod error;
mod expr;
mod lowering;
mod ops;
mod realize;
mod reduce;
mod table;
mod view;

pub use error::LowerError;
pub use lowering::lower;
pub use realize::LowerOptions;
