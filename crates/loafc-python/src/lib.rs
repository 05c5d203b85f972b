//! The Python extension module `loafc._loafc`: compiles the text of a tensor program and runs it on PyTorch's
//! tensors. It converts between Python and the compiler and decides nothing.

mod dlpack;
mod externs;
