//! Which extern calls are gradients of attentions that are computed here, and how their work is shared among threads.

use loafc_ir::nest::{ExternCall, NestProgram};

use super::arguments::{is_float, tensor};
use super::attention_call::{Attention, has_short_rows};
use super::attention_gradients::{self as gradients, KeyHead, QueryHead};
use super::shape::{Problem, first_row, head, rows};
use super::vector::Vector;
use super::width::{Kernel, memory};
use crate::threads::Team;
use crate::value::{ResultSpec, TensorRef};
use crate::width::Width;

/// The operands as positions in [`ExternCall::tensors`].
#[derive(Clone, Debug, PartialEq)]
pub(super) struct AttentionGradients {
    pub attention: Attention,
    pub result: usize,
    pub result_gradient: usize,
    pub logarithms: usize,
}

impl AttentionGradients {
    /// The call, if it is one.
    pub fn of(call: &ExternCall, program: &NestProgram) -> Option<AttentionGradients> {
        if &*call.op != "aten._scaled_dot_product_flash_attention_for_cpu_backward.default" {
            return None;
        }
        let found = AttentionGradients {
            attention: Attention::with_query_at(1, 6, call, program)?,
            result: tensor(call.args.get(4))?,
            result_gradient: tensor(call.args.first())?,
            logarithms: tensor(call.args.get(5))?,
        };
        let [query, value] = [found.attention.query, found.attention.value].map(|k| &call.tensors[k]);
        let like_result = [found.result, found.result_gradient].iter().all(|k| {
            let t = call.tensors.get(*k);
            t.is_some_and(|t| {
                has_short_rows(program, t) && t.shape[..3] == query.shape[..3] && t.shape[3] == value.shape[3]
            })
        });
        let logarithms = call.tensors.get(found.logarithms)?;
        let fits = like_result
            && is_float(program, logarithms)
            && logarithms.shape[..] == query.shape[..3]
            && call.results.iter().flatten().all(|r| r.strides.last().is_some_and(|s| s.is(1)));
        fits.then_some(found)
    }

    /// # Safety
    /// All elements of the operands must be there, and memory for all of the results; the processor must have this width.
    pub unsafe fn run(
        &self,
        width: Width,
        tensors: &[TensorRef<'_>],
        results: &[Option<ResultSpec<'_>>],
        team: &dyn Team,
    ) -> Result<(), &'static str> {
        let problem = self.attention.problem(tensors)?;
        let Attention { query, key, value, mask, .. } = &self.attention;
        let (query, key, value) = (&tensors[*query], &tensors[*key], &tensors[*value]);
        let (result, gradient) = (&tensors[self.result], &tensors[self.result_gradient]);
        let logarithms = &tensors[self.logarithms];
        let mask = mask.map(|k| &tensors[k]);
        let to = |k: usize, batch: usize, head: usize| {
            results.get(k).and_then(Option::as_ref).and_then(|r| rows(r, batch, head))
        };
        let query_head = |batch: usize, h: usize| {
            let (first, apart) = first_row(logarithms.ptr, logarithms.strides, batch, h);
            QueryHead {
                query: head(query, batch, h),
                mask: mask.map(|mask| head(mask, batch, h)),
                result: head(result, batch, h),
                result_gradient: head(gradient, batch, h),
                logarithms: (first.cast_const(), apart),
                gradient: to(0, batch, h),
            }
        };
        let group = problem.heads / problem.key_heads;
        let units = problem.batch * problem.key_heads;
        let each = group * problem.queries * problem.keys * (3 * problem.dim + 2 * problem.value_dim);
        let unit = |unit: usize| {
            let (batch, shared) = (unit / problem.key_heads, unit % problem.key_heads);
            let keys = KeyHead {
                key: head(key, batch, shared),
                value: head(value, batch, shared),
                key_gradient: to(1, batch, shared),
                value_gradient: to(2, batch, shared),
            };
            Unit { problem: &problem, query_head: &query_head, batch, first_head: shared * group, keys }
        };
        // SAFETY: the caller's promise; each unit writes the gradients of heads of its own.
        unsafe { width.run_units(units, each, team, unit) };
        Ok(())
    }
}

/// A head of keys.
struct Unit<'a> {
    problem: &'a Problem,
    /// A head of queries by batch and number.
    query_head: &'a dyn Fn(usize, usize) -> QueryHead,
    batch: usize,
    /// The first head of queries that shares the keys.
    first_head: usize,
    keys: KeyHead,
}

impl Kernel for Unit<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let memory = memory(gradients::scratch::<V>(self.problem));
        let queries = |k: usize| (self.query_head)(self.batch, self.first_head + k);
        // SAFETY: the caller's promise, and as much memory as a unit asks for.
        unsafe { gradients::unit::<V>(self.problem, queries, &self.keys, memory) }
    }
}
