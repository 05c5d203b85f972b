//! Scans: what goes along a line and leaves a result at every element, such as running sums and running maxima.
//! They are no loop nests yet, and a library's come slowly. An operation is one implementation of
//! [`operation::Operation`] and one line of [`Kind::of`] and [`Scan::run`]; `lines.rs` brings all of them through memory,
//! lines `beside.rs` each other or `apart.rs`.

mod apart;
mod beside;
mod element;
mod extremes;
mod lines;
mod log_sum_exp;
mod memory;
mod operation;
mod sums;
#[cfg(test)]
mod tests;

use loafc_ir::dtype::DType;
use loafc_ir::graph::Arg;
use loafc_ir::nest::{BufferId, ExternCall, NestProgram, TensorView};

use crate::threads::Team;
use crate::value::{ResultSpec, TensorRef};

use element::{Brain, Half, Target, reader};
use extremes::{Compared, Extreme, Maximum, Minimum};
use lines::Lines;
use log_sum_exp::{LogSumExp, Logarithm};
use memory::Memory;
use operation::Operation;
use sums::{Product, Sum, Summed};

/// What goes along the lines.
#[derive(Copy, Clone, Debug, PartialEq)]
enum Kind {
    Sum,
    Product,
    Maximum,
    Minimum,
    LogSumExp,
}

impl Kind {
    fn of(op: &str) -> Option<Kind> {
        Some(match op {
            "aten.cumsum.default" => Kind::Sum,
            "aten.cumprod.default" => Kind::Product,
            "aten.cummax.default" => Kind::Maximum,
            "aten.cummin.default" => Kind::Minimum,
            "aten.logcumsumexp.default" => Kind::LogSumExp,
            _ => return None,
        })
    }

    /// Whether there is an operation of this kind with results of this type. Types that hardly anybody scans are left
    /// to the library: each costs code for every width of vectors.
    fn computes(self, dtype: DType) -> bool {
        match dtype {
            DType::F64 | DType::F32 | DType::F16 | DType::BF16 => true,
            DType::I64 | DType::I32 => self != Kind::LogSumExp,
            DType::U8 | DType::Bool => matches!(self, Kind::Maximum | Kind::Minimum),
            _ => false,
        }
    }
}

/// A scan that the runtime computes itself.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(crate) struct Scan {
    kind: Kind,
    /// The operand's position in [`ExternCall::tensors`].
    operand: usize,
    dim: usize,
    /// Type of the operand's elements.
    from: DType,
    /// Type of the result's elements, which the operand's become before anything else happens to them.
    to: DType,
}

impl Scan {
    /// The call as a scan, if it is one that is computed here.
    pub(crate) fn of(call: &ExternCall, program: &NestProgram) -> Option<Scan> {
        let kind = Kind::of(&call.op)?;
        let [Arg::Value(operand), Arg::Size(dim)] = &*call.args else { return None };
        let dtype = |b: BufferId| program.buffers.get(b.0 as usize).map(|b| b.dtype);
        let operand = operand.0 as usize;
        let x = call.tensors.get(operand)?;
        let (values, positions) = match &*call.results {
            [Some(values)] => (values, None),
            [Some(values), positions] => (values, positions.as_ref()),
            _ => return None,
        };
        let (from, to) = (dtype(x.buffer)?, dtype(values.buffer)?);
        let like_values = |p: &TensorView| p.strides == values.strides;
        let known = call.mutates.is_empty()
            && kind.computes(to)
            && element::converts(from, to)
            && positions.is_none_or(like_values);
        let rank = (x.shape.len() as i64).max(1);
        let dim = dim.as_const()?;
        let dim = if dim < 0 { dim + rank } else { dim };
        let inside = (0..rank).contains(&dim);
        (known && inside).then_some(Scan { kind, operand, dim: dim as usize, from, to })
    }

    /// Computes it.
    ///
    /// # Safety
    /// All elements of the operand must be there, and memory for all of the results.
    pub(crate) unsafe fn run(
        &self,
        tensors: &[TensorRef<'_>],
        results: &[Option<ResultSpec<'_>>],
        team: &dyn Team,
    ) {
        let (x, Some(Some(values))) = (&tensors[self.operand], results.first()) else { return };
        let Some(to) = values.ptr else { return };
        let positions = results.get(1).and_then(|p| p.as_ref()?.ptr);
        let job = Job { scan: self, lines: Lines::of(x, values, self.dim), from: x.ptr, to, positions, team };
        // SAFETY: the caller's promise; elements are of the types of operand and result.
        unsafe {
            match self.to {
                DType::F64 => job.floats::<f64>(),
                DType::F32 => job.floats::<f32>(),
                DType::F16 => job.floats::<Half>(),
                DType::BF16 => job.floats::<Brain>(),
                DType::I64 => job.numbers::<i64>(),
                DType::I32 => job.numbers::<i32>(),
                _ => job.extremes::<u8>(),
            }
        }
    }
}

/// A scan with its memory.
struct Job<'a> {
    scan: &'a Scan,
    lines: Lines,
    from: *const u8,
    to: *mut u8,
    positions: Option<*mut u8>,
    team: &'a dyn Team,
}

impl Job<'_> {
    /// # Safety
    /// As for [`Scan::run`].
    unsafe fn floats<E: Target + Summed + Compared + Logarithm>(&self) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.scan.kind {
                Kind::LogSumExp => self.run::<LogSumExp<E>>(),
                _ => self.numbers::<E>(),
            }
        }
    }

    /// # Safety
    /// As for [`Scan::run`].
    unsafe fn numbers<E: Target + Summed + Compared>(&self) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.scan.kind {
                Kind::Sum => self.run::<Sum<E>>(),
                Kind::Product => self.run::<Product<E>>(),
                _ => self.extremes::<E>(),
            }
        }
    }

    /// # Safety
    /// As for [`Scan::run`].
    unsafe fn extremes<E: Target + Compared>(&self) {
        // SAFETY: the caller's promise.
        unsafe {
            match (self.scan.kind, self.positions) {
                (Kind::Minimum, Some(_)) => self.run::<Extreme<Minimum<E>, i64>>(),
                (Kind::Minimum, None) => self.run::<Extreme<Minimum<E>, ()>>(),
                (_, Some(_)) => self.run::<Extreme<Maximum<E>, i64>>(),
                (_, None) => self.run::<Extreme<Maximum<E>, ()>>(),
            }
        }
    }

    /// # Safety
    /// As for [`Scan::run`].
    unsafe fn run<O: Operation<Element: Target>>(&self) {
        let Some(read) = reader(self.scan.from) else { return };
        let memory = Memory::<O> {
            from: self.from,
            from_bytes: self.scan.from.bytes() as isize,
            read,
            as_it_is: self.scan.from == self.scan.to,
            to: self.to.cast(),
            positions: self.positions.unwrap_or(self.to).cast(),
        };
        // SAFETY: the caller's promise.
        unsafe { self.lines.run(&memory, self.team) };
    }
}
