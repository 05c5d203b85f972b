//! The operators that loafc knows: parameters, type inference, promotion, and their reference semantics.
//!
//! One table maps an operator's name to its definition; each family of operators has a file with a list of
//! definitions, so that adding an operator is one entry in one file. Operators that are not in the table can
//! still stand in a program when their results are annotated: they become calls into a library.

pub mod call;
pub mod error;
pub mod promote;
pub mod shape;

mod cat;
mod conv;
mod creation;
mod effect;
mod elements;
mod eval;
pub mod foreach;
pub mod indexing;
pub mod layout;
mod matmul;
mod norm;
mod pointwise;
pub mod pool;
mod reduction;
mod scan;
pub mod scatter;
pub mod view;

use std::sync::{Arc, OnceLock};

use rustc_hash::FxHashMap;

pub use call::{Call, Operand, TensorArg};
pub use error::{EvalError, InferError};
pub use eval::{EvalResult, GraphInput, GraphOutput, eval_call, eval_call_with, eval_graph};

use eval::{EvalCall, Fault};
pub use pointwise::Pointwise;

use crate::graph::{Arg, TensorId, TensorType, ValueType};
use crate::interp::tensor::HostTensor;

/// Types of an operator's results; `None` stands for a result that is Python's `None`.
pub type ResultTypes = Vec<Option<TensorType>>;

/// Definition of an operator.
pub struct OpDef {
    /// Operator with overload, `aten.sum.dim_IntList`.
    pub name: &'static str,
    /// Parameters in order, separated by `, `; those behind `*` are given by keyword only.
    pub params: &'static str,
    /// Types and values.
    pub semantics: Semantics,
}

/// How types and values of an operator's results come about.
pub enum Semantics {
    /// Elementwise.
    Pointwise(Pointwise),
    /// An operator on each element of lists.
    Foreach(foreach::Foreach),
    /// Anything else: one function for the types, one for the values.
    General(General),
}

/// An operator that is not elementwise.
pub struct General {
    infer: fn(&Call) -> Result<ResultTypes, InferError>,
    eval: fn(&EvalCall) -> Result<Vec<HostTensor>, Fault>,
}

/// An entry of the table for an operator that is not elementwise.
const fn general(
    name: &'static str,
    params: &'static str,
    infer: fn(&Call) -> Result<ResultTypes, InferError>,
    eval: fn(&EvalCall) -> Result<Vec<HostTensor>, Fault>,
) -> OpDef {
    OpDef { name, params, semantics: Semantics::General(General { infer, eval }) }
}

/// The types of an operator with one result.
fn one(ty: TensorType) -> Result<ResultTypes, InferError> {
    Ok(vec![Some(ty)])
}

impl OpDef {
    /// Fails on more positional arguments than parameters and on keywords that name none.
    fn check_arguments(&self, call: &Call) -> Result<(), InferError> {
        let (positional, keywords) = self.params.split_once('*').unwrap_or((self.params, ""));
        let names = |list: &'static str| list.split(", ").filter(|name| !name.is_empty());
        let most = names(positional).count();
        if call.args.len() > most {
            return Err(InferError::TooManyArguments {
                op: self.name.to_owned(),
                most,
                given: call.args.len(),
                params: self.params,
            });
        }
        let known = |keyword: &str| {
            names(positional).skip(call.args.len()).chain(names(keywords)).any(|name| name == keyword)
        };
        match call.kwargs.iter().find(|(keyword, _)| !known(keyword)) {
            None => Ok(()),
            Some((keyword, _)) => Err(InferError::UnknownKeyword {
                op: self.name.to_owned(),
                keyword: keyword.to_string(),
                params: self.params,
            }),
        }
    }

    /// Types of the results of a call of this operator.
    pub fn infer(&self, call: &Call) -> Result<ResultTypes, InferError> {
        self.check_arguments(call)?;
        match &self.semantics {
            Semantics::Pointwise(p) => one(p.infer(call)?),
            Semantics::Foreach(f) => f.infer(call),
            Semantics::General(g) => (g.infer)(call),
        }
    }

    /// Values of the results.
    fn eval(&self, call: &EvalCall) -> Result<Vec<HostTensor>, Fault> {
        match &self.semantics {
            Semantics::Pointwise(p) => Ok(vec![p.eval(call)?]),
            Semantics::Foreach(f) => f.eval(call),
            Semantics::General(g) => (g.eval)(call),
        }
    }
}

/// One list of definitions for each file of operators.
const FAMILIES: &[&[OpDef]] = &[
    view::OPS,
    layout::OPS,
    creation::OPS,
    cat::OPS,
    reduction::OPS,
    scan::OPS,
    indexing::OPS,
    scatter::OPS,
    norm::OPS,
    pool::OPS,
    matmul::OPS,
    conv::OPS,
    foreach::OPS,
    effect::OPS,
];

fn table() -> &'static FxHashMap<&'static str, &'static OpDef> {
    static TABLE: OnceLock<FxHashMap<&'static str, &'static OpDef>> = OnceLock::new();
    TABLE.get_or_init(|| all().map(|def| (def.name, def)).collect())
}

/// All operators of the table, family by family.
pub fn all() -> impl Iterator<Item = &'static OpDef> {
    FAMILIES.iter().copied().chain(pointwise::OPS).flatten()
}

/// The definition of an operator with overload; `None` where the table has none.
pub fn find(op: &str) -> Option<&'static OpDef> {
    table().get(op).copied()
}

/// The operator whose name is most like this one, which is none; `None` where no name is close to it.
pub fn closest(name: &str) -> Option<&'static str> {
    let with_overload = format!("{name}.default");
    if let Some(def) = find(&with_overload) {
        return Some(def.name);
    }
    let most = (name.len() / 5).min(3);
    all()
        .filter(|def| def.name.len().abs_diff(name.len()) <= most)
        .map(|def| (edit_distance(name.as_bytes(), def.name.as_bytes()), def.name))
        .filter(|(distance, _)| *distance <= most)
        // Of names at one distance, one of the same length: letters are swapped more often than forgotten.
        .min_by_key(|(distance, known)| (*distance, known.len().abs_diff(name.len()), *known))
        .map(|(_, name)| name)
}

/// Number of bytes to insert, remove or replace to get from one name to the other.
fn edit_distance(from: &[u8], to: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[to.len()]
}

/// Types of the results of a call: one entry per result, lists of tensors flattened.
pub fn infer(
    op: &str,
    args: &[Arg],
    kwargs: &[(Arc<str>, Arg)],
    value_type: &dyn Fn(TensorId) -> ValueType,
) -> Result<ResultTypes, InferError> {
    let def = find(op).ok_or_else(|| InferError::UnknownOperator { op: op.to_owned() })?;
    def.infer(&Call::new(op, args, kwargs, value_type))
}

/// Whether a call may stand in a program all the same when the types of its results are annotated: it is one of an
/// operator that isn't in the table, or its types are only known when it runs. It becomes a call into a library. Which
/// dimension an operator means must be known in any case: lowering goes by the types.
pub fn needs_annotations(error: &InferError) -> bool {
    match error {
        InferError::UnknownOperator { .. } => true,
        InferError::NotConstant { name, .. } => !name.contains("dim"),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
