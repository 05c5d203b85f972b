//! The `.loaf` text form of tensor programs, and how loop nests print.
//!
//! ```text
//! size s0 = 32                      // a size symbol with the value that scores assume
//! graph @name(%x: f32[64, s0], s1: size, %w: f32[8, 16] strides [1, 8]) {
//!   %a: f32[64, 1] = aten.sum.dim_IntList(%x, [-1], true)
//!   %b = aten.add.Tensor(%x, %a, alpha=2) loc("model.py":12)
//!   return %b, s0, none
//! }
//! ```
//!
//! Beyond that: names of other than letters, digits, `_` and `.` are quoted (`%"a b"`, `"my op"(%x)`); an input
//! whose name is not its symbol is written `n: size(s1)`; a result that is a size is `%n: size(u0)`. Inside
//! brackets, behind an operand of a size, `//` divides; there a comment begins with `#`.

mod cursor;
mod error;
mod parse;
mod print;
mod print_nest;
mod size;

pub use error::ParseError;
pub use parse::parse;
pub use print_nest::{BodyText, snake_case};

#[cfg(test)]
mod round_trip;
#[cfg(test)]
mod tests;
