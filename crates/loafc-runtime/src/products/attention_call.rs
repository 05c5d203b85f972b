//! Which extern calls are attentions that are computed here, and how their work is shared among threads.

use loafc_ir::graph::Arg;
use loafc_ir::nest::{ExternCall, NestProgram, TensorView};
use loafc_ir::size::Size;

use super::arguments::{is_float, keyword, tensor};
use super::attention::{self, Head, UNIT};
use super::shape::{Problem, head, rows};
use super::vector::Vector;
use super::width::{Kernel, memory};
use crate::threads::Team;
use crate::value::{ResultSpec, TensorRef};
use crate::width::Width;

/// Elements of a query, a key or a value at most: more would not fit the cache with a block of keys.
const LARGEST_DIM: i64 = 256;

/// Whether a tensor of `[batch, head, row, column]` has short rows, each in one piece.
pub(super) fn has_short_rows(program: &NestProgram, view: &TensorView) -> bool {
    view.shape.len() == 4
        && is_float(program, view)
        && view.strides[3].is(1)
        && view.shape[3].as_const().is_some_and(|dim| (1..=LARGEST_DIM).contains(&dim))
}

/// An attention's operands as positions in [`ExternCall::tensors`].
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Attention {
    pub query: usize,
    pub key: usize,
    pub value: usize,
    pub mask: Option<usize>,
    pub causal: bool,
    pub scale: Option<f64>,
}

impl Attention {
    /// The call, if it is one.
    pub fn of(call: &ExternCall, program: &NestProgram) -> Option<Attention> {
        if &*call.op != "aten._scaled_dot_product_flash_attention_for_cpu.default" {
            return None;
        }
        let found = Attention::with_query_at(0, 3, call, program)?;
        let result = call.results.first()?.as_ref();
        result.is_none_or(|r| r.strides.last().is_some_and(|s| s.is(1))).then_some(found)
    }

    /// The operands and options of a call whose query, key and value stand at `query` and whose probability of dropout and
    /// causality at `dropout`, if they are such that they can be computed with.
    pub fn with_query_at(
        query: usize,
        dropout: usize,
        call: &ExternCall,
        program: &NestProgram,
    ) -> Option<Attention> {
        let no_dropout = matches!(call.args.get(dropout), None | Some(Arg::Float(0.0)));
        let causal = match call.args.get(dropout + 1) {
            None => false,
            Some(Arg::Bool(causal)) => *causal,
            Some(_) => return None,
        };
        let mask = match keyword(call, "attn_mask") {
            None | Some(Arg::None) => None,
            Some(arg) => Some(tensor(Some(arg))?),
        };
        let scale = match keyword(call, "scale") {
            None | Some(Arg::None) => None,
            Some(Arg::Float(scale)) => Some(*scale),
            Some(_) => return None,
        };
        let found = Attention {
            query: tensor(call.args.get(query))?,
            key: tensor(call.args.get(query + 1))?,
            value: tensor(call.args.get(query + 2))?,
            mask,
            causal,
            scale,
        };
        let fits = no_dropout
            && call.mutates.is_empty()
            && found.shapes_fit(call, program)
            && call.results.iter().flatten().all(|r| is_float(program, r));
        fits.then_some(found)
    }

    /// Whether the tensors' types and sizes go together whatever values size symbols have.
    fn shapes_fit(&self, call: &ExternCall, program: &NestProgram) -> bool {
        let [query, key, value] = [self.query, self.key, self.value].map(|k| &call.tensors[k]);
        let tensors_fit = [query, key, value].into_iter().all(|t| has_short_rows(program, t));
        if !tensors_fit {
            return false;
        }
        let grouped = match (query.shape[1].as_const(), key.shape[1].as_const()) {
            (Some(heads), Some(shared)) => shared > 0 && heads % shared == 0,
            _ => query.shape[1] == key.shape[1],
        };
        let scores = [query.shape[0], query.shape[1], query.shape[2], key.shape[2]];
        grouped
            && query.shape[0] == key.shape[0]
            && query.shape[3] == key.shape[3]
            && key.shape[..3] == value.shape[..3]
            && self.mask.is_none_or(|k| {
                let mask = &call.tensors[k];
                let broadcasts = |(extent, of): (&Size, &Size)| extent.is(1) || extent == of;
                is_float(program, mask)
                    && mask.shape.len() <= 4
                    && mask.shape.iter().rev().zip(scores.iter().rev()).all(broadcasts)
            })
    }

    /// The problem of these tensors.
    pub fn problem(&self, tensors: &[TensorRef<'_>]) -> Result<Problem, &'static str> {
        let [query, key, value] = [self.query, self.key, self.value].map(|k| &tensors[k]);
        Problem::of(query, key, value, self.causal, self.scale)
            .ok_or("query, key and value have sizes that don't go together")
    }

    /// # Safety
    /// All elements of the operands must be there, and memory for all of the results; the processor must have this width.
    pub(super) unsafe fn run(
        &self,
        width: Width,
        tensors: &[TensorRef<'_>],
        results: &[Option<ResultSpec<'_>>],
        team: &dyn Team,
    ) -> Result<(), &'static str> {
        let problem = self.problem(tensors)?;
        let (query, key, value) = (&tensors[self.query], &tensors[self.key], &tensors[self.value]);
        let mask = self.mask.map(|k| &tensors[k]);
        let heads = |batch: usize, h: usize| {
            let shared = problem.key_head(h);
            Head {
                query: head(query, batch, h),
                key: head(key, batch, shared),
                value: head(value, batch, shared),
                mask: mask.map(|mask| head(mask, batch, h)),
                result: results[0].as_ref().and_then(|r| rows(r, batch, h)),
                logarithms: results.get(1).and_then(Option::as_ref).and_then(|r| rows(r, batch, h)),
            }
        };
        let chunks = problem.queries.div_ceil(UNIT);
        let units = problem.batch * problem.heads * chunks;
        let each = problem.queries.min(UNIT) * problem.keys * (problem.dim + problem.value_dim);
        let unit = |unit: usize| {
            let (chunk, of) = (unit % chunks, unit / chunks);
            let head = heads(of / problem.heads, of % problem.heads);
            let rows = (chunk * UNIT, ((chunk + 1) * UNIT).min(problem.queries));
            Unit { problem: &problem, head, rows }
        };
        // SAFETY: the caller's promise; each unit writes rows of its own.
        unsafe { width.run_units(units, each, team, unit) };
        Ok(())
    }
}

/// Some rows of one head.
struct Unit<'a> {
    problem: &'a Problem,
    head: Head,
    rows: (usize, usize),
}

impl Kernel for Unit<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let memory = memory(attention::scratch::<V>(self.problem));
        // SAFETY: the caller's promise, and as much memory as a unit asks for.
        unsafe { attention::unit::<V>(self.problem, &self.head, self.rows, memory) }
    }
}
