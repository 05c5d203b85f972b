//! Calls into libraries: arguments get memory, results are buffers that the library fills or makes.

use std::sync::Arc;

use loafc_ir::graph::{Arg, Node, TensorId, TensorType, ValueType};
use loafc_ir::nest::{ExternCall, Step, TensorView};
use rustc_hash::FxHashMap;

use crate::analysis::{self};
use crate::error::LowerError;
use crate::expr::{Expr, ExprId};

use crate::view::storage_len;

use super::{Lowering, Refusal};

/// What an argument of a call into a library is instead of the graph's.
pub(crate) enum Replaced {
    Arg(Arg),
    Tensor(TensorView),
}

/// What a call into a library is made with; see [`ExternCall`].
#[derive(Default)]
struct Arguments {
    args: Vec<Arg>,
    kwargs: Vec<(Arc<str>, Arg)>,
    tensors: Vec<TensorView>,
    mutates: Vec<usize>,
}

/// Draws truth values with the probability that is its argument, in the order of memory.
const DRAW_EVENTS: &str = "loafc.bernoulli.default";

impl<'g> Lowering<'g> {
    pub(super) fn extern_call(&mut self, node: &'g Node) -> Result<(), LowerError> {
        let types: Vec<Option<TensorType>> =
            (0..node.results.len()).map(|k| self.result(k).cloned()).collect();
        let made = self.extern_with(&[], &types)?;
        for (id, expr) in node.results.iter().zip(made) {
            let (Some(id), Some(expr)) = (id, expr) else { continue };
            let Some(ty) = self.graph.tensor_type(*id) else { continue };
            self.bind(*id, expr, ty);
        }
        Ok(())
    }

    /// The current call by a library, with the arguments at some positions replaced. It makes results of these types,
    /// whose strides may be other than the graph's; where there is none, it doesn't make the result.
    pub(crate) fn extern_with(
        &mut self,
        replaced: &[(usize, Replaced)],
        types: &[Option<TensorType>],
    ) -> Result<Vec<Option<ExprId>>, LowerError> {
        let node = self.node();
        let written = analysis::written(node);
        let mut call = Arguments::default();
        let mut positions = FxHashMap::default();
        for (k, arg) in node.args.iter().enumerate() {
            let arg = match replaced.iter().find(|(position, _)| *position == k) {
                Some((_, Replaced::Arg(other))) => other.clone(),
                Some((_, Replaced::Tensor(view))) => {
                    call.tensors.push(view.clone());
                    Arg::Value(TensorId(call.tensors.len() as u32 - 1))
                }
                None => self.extern_argument(arg, &mut call.tensors, &mut positions)?,
            };
            call.args.push(arg);
        }
        for (name, arg) in &node.kwargs {
            call.kwargs.push((name.clone(), self.extern_argument(arg, &mut call.tensors, &mut positions)?));
        }
        for id in written {
            if let Some(at) = positions.get(&id) {
                self.prepare_write(call.tensors[*at].buffer, id);
                call.mutates.push(*at);
            }
        }
        Ok(self.push_call(node.op.clone(), call, 0, types))
    }

    /// Adds a call whose results, of these types, are those of the current one from `first` on.
    fn push_call(
        &mut self,
        op: Arc<str>,
        arguments: Arguments,
        first: usize,
        types: &[Option<TensorType>],
    ) -> Vec<Option<ExprId>> {
        let mut results = Vec::with_capacity(types.len());
        for (k, ty) in types.iter().enumerate() {
            results.push(ty.as_ref().map(|ty| self.new_buffer(self.result_name(first + k), ty)));
        }
        let ordered = analysis::is_ordered(&op);
        let Arguments { args, kwargs, tensors, mutates } = arguments;
        let (results_of_call, origin) = (results.clone(), self.node().origin.clone());
        self.program.steps.push(Step::Extern(ExternCall {
            op,
            args,
            kwargs,
            tensors,
            results: results_of_call,
            mutates,
            ordered,
            origin,
        }));
        let load = |(view, ty): (Option<TensorView>, &Option<TensorType>)| {
            let ty = ty.as_ref()?;
            Some(self.make(Expr::Load(view?), ty.dtype, &ty.shape))
        };
        results.into_iter().zip(types).map(load).collect()
    }

    /// A tensor of truth values, each drawn from PyTorch's generator with this probability, as result `k` of the
    /// current call.
    pub(crate) fn draw_events(
        &mut self,
        probability: f64,
        k: usize,
        ty: &TensorType,
    ) -> Result<ExprId, Refusal> {
        if storage_len(&ty.shape, &ty.strides) != ty.shape.iter().copied().product() {
            return Err(Refusal::Extern);
        }
        let call = Arguments { args: vec![Arg::Float(probability)], ..Arguments::default() };
        let made = self.push_call(DRAW_EVENTS.into(), call, k, &[Some(ty.clone())]);
        made.into_iter().flatten().next().ok_or(Refusal::Extern)
    }

    /// A value in memory for the current call. Random numbers are drawn in the order of memory: there the operand's layout
    /// has to be the graph's, which need not be the one that it was stored in.
    fn extern_operand(&mut self, id: TensorId, expr: ExprId, ty: &TensorType) -> TensorView {
        let node = self.node();
        let by_layout = analysis::is_ordered(&node.op) && !analysis::written(node).contains(&id);
        let in_graphs_layout = if by_layout { self.store_in_strides(expr, ty) } else { None };
        in_graphs_layout.unwrap_or_else(|| self.store(expr))
    }

    pub(super) fn extern_argument(
        &mut self,
        arg: &Arg,
        tensors: &mut Vec<TensorView>,
        positions: &mut FxHashMap<TensorId, usize>,
    ) -> Result<Arg, LowerError> {
        Ok(match arg {
            Arg::Value(id) => match &self.graph.value(*id).ty {
                ValueType::Size(size) => Arg::Size(*size),
                ValueType::Tensor(ty) => {
                    let at = match positions.get(id) {
                        Some(at) => *at,
                        None => {
                            let expr = self.value(*id)?;
                            tensors.push(self.extern_operand(*id, expr, ty));
                            positions.insert(*id, tensors.len() - 1);
                            tensors.len() - 1
                        }
                    };
                    Arg::Value(TensorId(at as u32))
                }
            },
            Arg::List(items) => Arg::List(
                items
                    .iter()
                    .map(|a| self.extern_argument(a, tensors, positions))
                    .collect::<Result<_, _>>()?,
            ),
            other => other.clone(),
        })
    }
}
