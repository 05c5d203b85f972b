//! Which extern calls are computed here, and how their work is shared among threads.

use std::cell::RefCell;

use loafc_ir::dtype::DType;
use loafc_ir::graph::Arg;
use loafc_ir::nest::{ExternCall, NestProgram, TensorView};

use super::attention::{self, Head, UNIT};
use super::shape::{Problem, head, rows};
#[cfg(target_arch = "x86_64")]
use super::vector::{Avx2, Avx512};
use crate::threads::Team;
use crate::value::{ResultSpec, TensorRef};

/// Elements of a query, a key or a value at most: more would not fit the cache with a block of keys.
const LARGEST_DIM: i64 = 256;

/// Vectors of the processor.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(super) enum Width {
    Avx512,
    Avx2,
}

impl Width {
    /// The widest that the processor has.
    fn of_processor() -> Option<Width> {
        [Width::Avx512, Width::Avx2].into_iter().find(|width| width.is_there())
    }

    pub(super) fn is_there(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return match self {
            Width::Avx512 => is_x86_feature_detected!("avx512f"),
            Width::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
        };
        #[cfg(not(target_arch = "x86_64"))]
        false
    }
}

/// A call that is computed here.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SmallProduct {
    width: Width,
    attention: Attention,
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

impl SmallProduct {
    /// The call, if it is one that is computed here.
    pub(crate) fn of(call: &ExternCall, program: &NestProgram) -> Option<SmallProduct> {
        let width = Width::of_processor()?;
        let attention = match &*call.op {
            "aten._scaled_dot_product_flash_attention_for_cpu.default" => Attention::of(call, program)?,
            _ => return None,
        };
        Some(SmallProduct { width, attention })
    }

    /// Computes it.
    ///
    /// # Safety
    /// All elements of the operands must be there, and memory for all of the results.
    pub(crate) unsafe fn run(
        &self,
        tensors: &[TensorRef<'_>],
        results: &[Option<ResultSpec<'_>>],
        team: &dyn Team,
    ) -> Result<(), &'static str> {
        // SAFETY: the processor has the instructions; else the caller's promise.
        unsafe { self.attention.run(self.width, tensors, results, team) }
    }
}

impl Attention {
    fn of(call: &ExternCall, program: &NestProgram) -> Option<Attention> {
        let tensor = |arg: Option<&Arg>| match arg {
            Some(Arg::Value(id)) => Some(id.0 as usize),
            _ => None,
        };
        let keyword = |name: &str| call.kwargs.iter().find(|(n, _)| &**n == name).map(|(_, arg)| arg);
        let no_dropout = matches!(call.args.get(3), None | Some(Arg::Float(0.0)));
        let causal = match call.args.get(4) {
            None => false,
            Some(Arg::Bool(causal)) => *causal,
            Some(_) => return None,
        };
        let mask = match keyword("attn_mask") {
            None | Some(Arg::None) => None,
            Some(arg) => Some(tensor(Some(arg))?),
        };
        let scale = match keyword("scale") {
            None | Some(Arg::None) => None,
            Some(Arg::Float(scale)) => Some(*scale),
            Some(_) => return None,
        };
        let found = Attention {
            query: tensor(call.args.first())?,
            key: tensor(call.args.get(1))?,
            value: tensor(call.args.get(2))?,
            mask,
            causal,
            scale,
        };
        let fits = no_dropout
            && call.mutates.is_empty()
            && mask.is_none_or(|k| is_float(program, &call.tensors[k]))
            && found.shapes_fit(call, program)
            && call.results.iter().flatten().all(|r| is_float(program, r))
            && call.results.first()?.as_ref().is_none_or(|r| r.strides.last().is_some_and(|s| s.is(1)));
        fits.then_some(found)
    }

    /// Whether the tensors' types and sizes go together whatever values size symbols have.
    fn shapes_fit(&self, call: &ExternCall, program: &NestProgram) -> bool {
        let [query, key, value] = [self.query, self.key, self.value].map(|k| &call.tensors[k]);
        let short_rows = |t: &TensorView| {
            t.shape.len() == 4
                && is_float(program, t)
                && t.strides[3].is(1)
                && t.shape[3].as_const().is_some_and(|dim| (1..=LARGEST_DIM).contains(&dim))
        };
        let grouped = match (query.shape[1].as_const(), key.shape[1].as_const()) {
            (Some(heads), Some(shared)) => shared > 0 && heads % shared == 0,
            _ => query.shape[1] == key.shape[1],
        };
        [query, key, value].into_iter().all(short_rows)
            && grouped
            && query.shape[0] == key.shape[0]
            && query.shape[3] == key.shape[3]
            && key.shape[..3] == value.shape[..3]
    }

    /// # Safety
    /// As for [`SmallProduct::run`]; the processor must have this width.
    pub(super) unsafe fn run(
        &self,
        width: Width,
        tensors: &[TensorRef<'_>],
        results: &[Option<ResultSpec<'_>>],
        team: &dyn Team,
    ) -> Result<(), &'static str> {
        let (query, key, value) = (&tensors[self.query], &tensors[self.key], &tensors[self.value]);
        let problem = Problem::of(query, key, value, self.causal, self.scale)
            .ok_or("query, key and value have sizes that don't go together")?;
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
        let part = Shared(|begin: i64, end: i64| {
            for unit in begin as usize..end as usize {
                let (chunk, of) = (unit % chunks, unit / chunks);
                let head = heads(of / problem.heads, of % problem.heads);
                let rows = (chunk * UNIT, ((chunk + 1) * UNIT).min(problem.queries));
                // SAFETY: the processor has the instructions; else the caller's promise.
                unsafe { attention_unit(width, &problem, &head, rows) };
            }
        });
        let part = &part;
        team.parallel_for(units as i64, 1, &|begin, end, _| part.get()(begin, end));
        Ok(())
    }
}

fn is_float(program: &NestProgram, view: &TensorView) -> bool {
    program.buffers.get(view.buffer.0 as usize).is_some_and(|b| b.dtype == DType::F32)
}

/// What threads work on together.
struct Shared<T>(T);

// SAFETY: units read the same tensors, and each writes rows of its own.
unsafe impl<T> Sync for Shared<T> {}

impl<T> Shared<T> {
    fn get(&self) -> &T {
        &self.0
    }
}

/// A line of the cache.
#[derive(Copy, Clone)]
#[repr(align(64))]
struct Line(#[allow(dead_code, reason = "only its size and alignment matter")] [f32; 16]);

thread_local! {
    /// Memory for a unit's intermediate values, kept for the next call.
    static MEMORY: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
}

/// Calls with memory for so many elements, of any content.
fn with_memory(elements: usize, f: impl FnOnce(*mut f32)) {
    MEMORY.with_borrow_mut(|memory| {
        let lines = elements.div_ceil(16);
        if memory.len() < lines {
            memory.resize(lines, Line([0.0; 16]));
        }
        f(memory.as_mut_ptr().cast());
    });
}

/// # Safety
/// As for [`attention::unit`], with the processor's own width.
unsafe fn attention_unit(width: Width, problem: &Problem, head: &Head, rows: (usize, usize)) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f")]
        unsafe fn avx512(problem: &Problem, head: &Head, rows: (usize, usize), memory: *mut f32) {
            // SAFETY: the caller's promise.
            unsafe { attention::unit::<Avx512>(problem, head, rows, memory) }
        }
        #[target_feature(enable = "avx2,fma")]
        unsafe fn avx2(problem: &Problem, head: &Head, rows: (usize, usize), memory: *mut f32) {
            // SAFETY: the caller's promise.
            unsafe { attention::unit::<Avx2>(problem, head, rows, memory) }
        }
        match width {
            Width::Avx512 => with_memory(attention::scratch::<Avx512>(problem), |memory| {
                // SAFETY: the caller's promise, and as much memory as a unit asks for.
                unsafe { avx512(problem, head, rows, memory) }
            }),
            Width::Avx2 => with_memory(attention::scratch::<Avx2>(problem), |memory| {
                // SAFETY: as above.
                unsafe { avx2(problem, head, rows, memory) }
            }),
        }
    }
}
