//! Products that a library is slow at: attention and its gradients, whose matrices are small, and the gradient of a depthwise convolution's
//! weight. Each is recognised in an extern call, for f32 on processors with vectors of 8 or 16; the library has all
//! others.

mod arguments;
mod attention;
mod attention_call;
mod attention_gradients;
mod attention_gradients_call;
#[cfg(test)]
mod attention_gradients_tests;
#[cfg(test)]
mod attention_tests;
mod call;
mod depthwise;
mod depthwise_call;
#[cfg(test)]
mod depthwise_tests;
mod panel;
mod scores;
mod shape;
#[cfg(test)]
mod test_support;
mod vector;
mod width;

pub(crate) use call::SmallProduct;
