//! What the arguments of an extern call are.

use loafc_ir::dtype::DType;
use loafc_ir::graph::Arg;
use loafc_ir::nest::{ExternCall, NestProgram, TensorView};

/// Position of a tensor argument in [`ExternCall::tensors`].
pub(super) fn tensor(arg: Option<&Arg>) -> Option<usize> {
    match arg {
        Some(Arg::Value(id)) => Some(id.0 as usize),
        _ => None,
    }
}

/// An argument given by name.
pub(super) fn keyword<'a>(call: &'a ExternCall, name: &str) -> Option<&'a Arg> {
    call.kwargs.iter().find(|(n, _)| &**n == name).map(|(_, arg)| arg)
}

/// A list of numbers that are known while compiling, one for each of so many dimensions.
pub(super) fn numbers<const COUNT: usize>(arg: Option<&Arg>) -> Option<[usize; COUNT]> {
    let Some(Arg::List(items)) = arg else { return None };
    let number = |item: &Arg| match item {
        Arg::Size(size) => usize::try_from(size.as_const()?).ok(),
        _ => None,
    };
    match items.as_slice() {
        [one] => Some([number(one)?; COUNT]),
        items => items.iter().map(number).collect::<Option<Vec<_>>>()?.try_into().ok(),
    }
}

/// A list of truth values.
pub(super) fn flags(arg: Option<&Arg>) -> Option<Vec<bool>> {
    let Some(Arg::List(items)) = arg else { return None };
    let flag = |item: &Arg| match item {
        Arg::Bool(flag) => Some(*flag),
        _ => None,
    };
    items.iter().map(flag).collect()
}

/// Whether a tensor's elements are f32.
pub(super) fn is_float(program: &NestProgram, view: &TensorView) -> bool {
    program.buffers.get(view.buffer.0 as usize).is_some_and(|b| b.dtype == DType::F32)
}
