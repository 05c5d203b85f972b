//! Conditions on the sizes of a program's calls: what type inference and the lowering take for true about symbols,
//! that results have the extents that the program says, and that extents are none below zero.

use std::sync::Arc;

use loafc_ir::condition::{Comparison, Relation, SizeCondition};
use loafc_ir::graph::{Arg, Graph, Input, Node, TensorId, ValueType};
use loafc_ir::ops::call::Noted;
use loafc_ir::ops::{self, Call};
use loafc_ir::size::Size;

use super::Lowering;

/// The symbols that an input's extents show: a tensor has none below zero.
pub(super) fn extents(graph: &Graph) -> Vec<Box<str>> {
    let tensors = graph.inputs.iter().filter_map(|input| match input {
        Input::Tensor(id) => graph.tensor_type(*id),
        Input::Size(..) => None,
    });
    tensors.flat_map(|ty| &ty.shape).filter_map(|extent| extent.as_symbol()).collect()
}

impl Lowering<'_> {
    /// Notes what the types of a call's results ask of sizes.
    pub(super) fn require_types(&mut self, node: &Node, call: &Call, noted: &Noted) {
        if !self.is_symbolic(node) {
            return;
        }
        // What can't be inferred is annotated: the lowering, or the library, goes by that.
        let inferred = ops::find(&node.op).and_then(|def| def.infer(call).ok());
        let notes = noted.take();
        let Some(inferred) = inferred else { return self.require_extents(node) };
        self.require_noted(node, notes);
        for (id, ty) in node.results.iter().zip(inferred) {
            if let (Some(id), Some(inferred)) = (id, ty)
                && let Some(declared) = self.graph.tensor_type(*id)
            {
                self.require_shape(node, *id, &inferred.shape, &declared.shape);
            }
        }
        self.require_extents(node);
    }

    /// Requires that no result has a negative extent.
    fn require_extents(&mut self, node: &Node) {
        for id in node.results.iter().flatten() {
            let Some(ty) = self.graph.tensor_type(*id) else { continue };
            for (dim, extent) in ty.shape.iter().enumerate().filter(|(_, extent)| extent.as_const().is_none())
            {
                let message =
                    format!("`{}` makes extent {extent} of dimension {dim}, which is negative", node.op);
                self.require(
                    node,
                    Some(*id),
                    Comparison::new(Size::ZERO, Relation::AtMost, *extent),
                    &message,
                );
            }
        }
    }

    /// Requires that a result has the extents that the program says.
    pub(super) fn require_shape(&mut self, node: &Node, result: TensorId, made: &[Size], declared: &[Size]) {
        for (dim, (made, declared)) in made.iter().zip(declared).enumerate() {
            let comparison = Comparison::new(*made, Relation::Equal, *declared);
            if comparison.decided() == Some(true) {
                continue;
            }
            let message =
                format!("dimension {dim} is declared as {declared}, but `{}` makes {made}", node.op);
            self.require(node, Some(result), comparison, &message);
        }
    }

    /// Requires what a call has noted.
    pub(super) fn require_noted(&mut self, node: &Node, noted: Vec<(Comparison, Arc<str>)>) {
        let first = node.results.iter().flatten().next().copied();
        for (comparison, message) in noted {
            self.require(node, first, comparison, &message);
        }
    }

    /// Adds a condition, which concerns this result of a call.
    fn require(&mut self, node: &Node, result: Option<TensorId>, comparison: Comparison, message: &str) {
        let message = match result {
            Some(result) => format!("%{}: {message}", self.graph.value(result).name).into(),
            None => message.into(),
        };
        self.conditions.add(SizeCondition { comparison, message, origin: node.origin.clone() });
    }

    /// Whether any size of a call depends on symbols.
    fn is_symbolic(&self, node: &Node) -> bool {
        let mut symbolic = false;
        let mut see = |sizes: &[Size]| symbolic |= sizes.iter().any(|s| s.as_const().is_none());
        for arg in node.args.iter().chain(node.kwargs.iter().map(|(_, arg)| arg)) {
            self.for_each_size(arg, &mut see);
        }
        for ty in self.result_types(node) {
            see(&ty.shape);
        }
        symbolic
    }

    fn for_each_size(&self, arg: &Arg, see: &mut dyn FnMut(&[Size])) {
        match arg {
            Arg::Size(size) => see(&[*size]),
            Arg::Value(id) => match &self.graph.value(*id).ty {
                ValueType::Size(size) => see(&[*size]),
                ValueType::Tensor(ty) => {
                    see(&ty.shape);
                    see(&ty.strides);
                }
            },
            Arg::List(items) => items.iter().for_each(|item| self.for_each_size(item, see)),
            _ => {}
        }
    }
}
