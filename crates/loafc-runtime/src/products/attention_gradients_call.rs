//! Which extern calls are gradients of attentions that are computed here, and how their work is shared among threads.

use loafc_ir::nest::{ExternCall, NestProgram};

use super::arguments::{is_float, tensor};
use super::attention_call::{Attention, has_short_rows};
use super::attention_gradients::{self as gradients, KeyHead, QueryHead};
use super::shape::{Problem, head, rows};
use super::vector::Vector;
use super::width::{Kernel, Shared, Width, grain, memory};
use crate::threads::Team;
use crate::value::{ResultSpec, TensorRef};

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
        let Attention { query, key, value, mask, causal, scale } = &self.attention;
        let (query, key, value) = (&tensors[*query], &tensors[*key], &tensors[*value]);
        let problem = Problem::of(query, key, value, *causal, *scale)
            .ok_or("query, key and value have sizes that don't go together")?;
        let (result, gradient) = (&tensors[self.result], &tensors[self.result_gradient]);
        let logarithms = &tensors[self.logarithms];
        let mask = mask.map(|k| &tensors[k]);
        let to = |k: usize, batch: usize, head: usize| {
            results.get(k).and_then(Option::as_ref).and_then(|r| rows(r, batch, head))
        };
        let logarithms_of = |batch: usize, head: usize| {
            let [by_batch, by_head, by_row] = [0, 1, 2].map(|d| logarithms.strides[d] as isize);
            let offset = batch as isize * by_batch + head as isize * by_head;
            (logarithms.ptr.cast::<f32>().wrapping_offset(offset).cast_const(), by_row)
        };
        let group = problem.heads / problem.key_heads;
        let part = |begin: i64, end: i64| {
            for unit in begin as usize..end as usize {
                let (batch, shared) = (unit / problem.key_heads, unit % problem.key_heads);
                let queries = |k: usize| {
                    let h = shared * group + k;
                    QueryHead {
                        query: head(query, batch, h),
                        mask: mask.map(|mask| head(mask, batch, h)),
                        result: head(result, batch, h),
                        result_gradient: head(gradient, batch, h),
                        logarithms: logarithms_of(batch, h),
                        gradient: to(0, batch, h),
                    }
                };
                let keys = KeyHead {
                    key: head(key, batch, shared),
                    value: head(value, batch, shared),
                    key_gradient: to(1, batch, shared),
                    value_gradient: to(2, batch, shared),
                };
                // SAFETY: the caller's promise.
                unsafe { width.run(Unit { problem: &problem, queries: &queries, keys }) };
            }
        };
        // SAFETY: each unit writes the gradients of heads of its own.
        let part = unsafe { Shared::new(part) };
        let part = &part;
        let units = problem.batch * problem.key_heads;
        let each = group * problem.queries * problem.keys * (3 * problem.dim + 2 * problem.value_dim);
        team.parallel_for(units as i64, grain(each), &|begin, end, _| part.get()(begin, end));
        Ok(())
    }
}

/// A head of keys.
struct Unit<'a> {
    problem: &'a Problem,
    queries: &'a dyn Fn(usize) -> QueryHead,
    keys: KeyHead,
}

impl Kernel for Unit<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let memory = memory(gradients::scratch::<V>(self.problem));
        // SAFETY: the caller's promise, and as much memory as a unit asks for.
        unsafe { gradients::unit::<V>(self.problem, self.queries, &self.keys, memory) }
    }
}
