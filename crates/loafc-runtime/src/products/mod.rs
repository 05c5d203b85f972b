//! Products of matrices that a library is slow at because they are small: attention, and batches. Each is recognised in
//! an extern call, for f32 on processors with vectors of 8 or 16; the library has all others.

mod attention;
mod call;
mod panel;
mod scores;
mod shape;
#[cfg(test)]
mod tests;
mod vector;

pub(crate) use call::SmallProduct;
