//! Copies rectangles between memories that are contiguous along different variables: squares are transposed in
//! registers, so that every cache line is read once and written once.

use llvm_sys::LLVMIntPredicate::LLVMIntSGE;
use loafc_ir::index::{Index, LoopVar};
use loafc_ir::nest::BufferId;
use loafc_ir::size::Size;

use super::emit::{EmitError, Emitter, LanePlace, Lanes, Place};
use super::ir::V;
use super::stream::{LINE_BYTES, gcd};
use crate::loop_tree::{MemoryPlace, Range, Transpose};

/// How many rows on from those that are read rows are fetched: what is read at a distance, a run of each row, would
/// not come before it is needed.
const ROWS_AHEAD: i64 = 32;

/// A part of a rectangle that is being copied: a cache line of columns, where these fill lines, and as many rows as are
/// written at once.
struct Square<'t> {
    rectangle: &'t Transpose,
    /// Rows that are transposed at once.
    side: u32,
    rows: u32,
    columns: u32,
    /// First row and column.
    at: (V, V),
    /// Rows and columns left from there on.
    left: (V, V),
}

impl Emitter<'_, '_, '_> {
    pub(super) fn transpose(&mut self, t: &Transpose) -> Result<(), EmitError> {
        let bytes = self.kernel.memory[t.from.0.0 as usize].dtype.bytes() as u32;
        // 16 vectors fit the registers; those of 8-byte elements fill them with half as many.
        let side: u32 = if bytes == 8 { 8 } else { 16 };
        let line = (LINE_BYTES as u32 / bytes).max(side);
        let fills = |range: &Range| constant_length(range).is_none_or(|n| n % i64::from(line) == 0);
        let columns = if fills(&t.columns) { line } else { side };
        // A part of a line would leave the cache before the rest of it came.
        let rows = if self.is_param(t.to.0) && fills(&t.rows) { line } else { side };
        let row_range = (self.bound(&t.rows.begin), self.lowest(&t.rows.end));
        let column_range = (self.bound(&t.columns.begin), self.lowest(&t.columns.end));
        for (range, step) in [(&t.rows, rows), (&t.columns, columns)] {
            let divisor = gcd(self.divisor(&range.begin), i64::from(step));
            self.divisors.insert(range.var, divisor);
        }
        let after_rows = self.counted_loop(t.rows.var, row_range.0, row_range.1, i64::from(rows), |e| {
            let step = i64::from(columns);
            let after = e.counted_loop(t.columns.var, column_range.0, column_range.1, step, |e| {
                let at = (e.var(t.rows.var), e.var(t.columns.var));
                let left = (e.ir.sub(row_range.1, at.0), e.ir.sub(column_range.1, at.1));
                e.square(&Square { rectangle: t, side, rows, columns, at, left })
            })?;
            e.ir.at(after);
            Ok(())
        })?;
        self.ir.at(after_rows);
        Ok(())
    }

    fn square(&mut self, square: &Square<'_>) -> Result<(), EmitError> {
        let at_least = |e: &Self, left, count: u32| {
            let count = e.ir.i64(i64::from(count));
            e.ir.icmp(LLVMIntSGE, left, count)
        };
        let full_rows = at_least(self, square.left.0, square.rows);
        let full_columns = at_least(self, square.left.1, square.columns);
        let full = self.ir.and(full_rows, full_columns);
        let [whole, cut, after] = ["whole", "cut", "after"].map(|name| self.ir.block(name));
        self.ir.cond_br(full, whole, cut);
        self.ir.at(whole);
        self.copy_whole(square)?;
        self.ir.br(after);
        self.ir.at(cut);
        self.copy_cut(square)?;
        self.ir.br(after);
        self.ir.at(after);
        Ok(())
    }

    fn copy_whole(&mut self, square: &Square<'_>) -> Result<(), EmitError> {
        let Square { rectangle: t, side, rows, columns, at, .. } = *square;
        if rows == side {
            let lines = self.transposed_rows(square, at.0);
            for (k, line) in lines.into_iter().enumerate() {
                let column = self.ir.add(at.1, self.ir.i64(k as i64));
                self.store_line(square, column, line);
            }
            return Ok(());
        }
        // Rows that make up lines together meet in a small memory of their own.
        let element = self.memory_type(self.kernel.memory[t.to.0.0 as usize].dtype);
        let slot = self.ir.slot(self.ir.vector(element, Some(rows * columns)));
        let end = self.ir.add(at.0, self.ir.i64(i64::from(rows)));
        let after = self.counted_loop(t.rows.var, at.0, end, i64::from(side), |e| {
            let row = e.var(t.rows.var);
            let first = e.ir.sub(row, at.0);
            for (k, line) in e.transposed_rows(square, row).into_iter().enumerate() {
                let at = e.ir.add(first, e.ir.i64(k as i64 * i64::from(rows)));
                e.ir.store(line, e.ir.element(element, slot, at), 1);
            }
            Ok(())
        })?;
        self.ir.at(after);
        let end = self.ir.add(at.1, self.ir.i64(i64::from(columns)));
        let after = self.counted_loop(t.columns.var, at.1, end, 1, |e| {
            let column = e.var(t.columns.var);
            let first = e.ir.mul(e.ir.sub(column, at.1), e.ir.i64(i64::from(rows)));
            let line = e.ir.load(e.ir.vector(element, Some(rows)), e.ir.element(element, slot, first), 1);
            e.store_line(square, column, line);
            Ok(())
        })?;
        self.ir.at(after);
        Ok(())
    }

    /// The square's columns of as many rows as are transposed at once, from `row` on.
    fn transposed_rows(&mut self, square: &Square<'_>, row: V) -> Vec<V> {
        let t = square.rectangle;
        let from = t.from.0;
        let dtype = self.kernel.memory[from.0 as usize].dtype;
        let vector = self.ir.vector(self.memory_type(dtype), Some(square.columns));
        let mut lines = Vec::new();
        for k in 0..i64::from(square.side) {
            let row = self.ir.add(row, self.ir.i64(k));
            let place = self.place_at(&t.from.1, t.rows.var, row);
            let line = self.ir.load(vector, self.pointer(from, &place), dtype.bytes() as u32);
            self.ir.in_scope(line, self.scopes[from.0 as usize]);
            lines.push(line);
            if self.is_param(from) && self.large[from.0 as usize] {
                let row = self.ir.add(row, self.ir.i64(ROWS_AHEAD));
                let place = self.place_at(&t.from.1, t.rows.var, row);
                self.ir.prefetch(self.pointer(from, &place));
            }
        }
        let vectors = self.transposed(lines);
        let per_vector = square.columns / square.side;
        let column = |k: u32| {
            let (vector, part) = (vectors[(k / per_vector) as usize], k % per_vector);
            if per_vector == 1 { vector } else { self.ir.part(vector, part * square.side, square.side) }
        };
        (0..square.columns).map(column).collect()
    }

    /// Writes the rows of one column.
    fn store_line(&mut self, square: &Square<'_>, column: V, line: V) {
        let t = square.rectangle;
        let to = t.to.0;
        let outer = self.set_var(t.rows.var, square.at.0);
        let place = self.place_at(&t.to.1, t.columns.var, column);
        if let Some(outer) = outer {
            self.set_var(t.rows.var, outer);
        }
        let place = Place { lanes: LanePlace::Stride(Size::ONE), ..place };
        let lanes = Lanes { var: t.rows.var, count: square.rows, mask: None, copy: 0 };
        let pointer = self.pointer(to, &place);
        let store = match self.streamed_alignment(to.0 as usize, &place, lanes) {
            // Parts of lines would leave one by one.
            Some(bytes) if i64::from(bytes) == LINE_BYTES => self.ir.store_past_cache(line, pointer, bytes),
            _ => self.ir.store(line, pointer, self.kernel.memory[to.0 as usize].dtype.bytes() as u32),
        };
        self.ir.in_scope(store, self.scopes[to.0 as usize]);
    }

    fn is_param(&self, memory: BufferId) -> bool {
        matches!(self.kernel.memory[memory.0 as usize].place, MemoryPlace::Param(_))
    }

    /// Element by element: only squares at the rectangle's edges are cut.
    fn copy_cut(&mut self, square: &Square<'_>) -> Result<(), EmitError> {
        let t = square.rectangle;
        let (from, to) = (t.from.0, t.to.0);
        let dtype = self.kernel.memory[from.0 as usize].dtype;
        let (ty, align) = (self.memory_type(dtype), dtype.bytes() as u32);
        let behind = |e: &Self, at: V, left: V, count: u32| {
            let count = e.ir.i64(i64::from(count));
            let count = e.ir.intrinsic_like("llvm.smin", &[left, count]);
            e.ir.add(at, count)
        };
        let last_row = behind(self, square.at.0, square.left.0, square.rows);
        let last_column = behind(self, square.at.1, square.left.1, square.columns);
        let after_rows = self.counted_loop(t.rows.var, square.at.0, last_row, 1, |e| {
            let after = e.counted_loop(t.columns.var, square.at.1, last_column, 1, |e| {
                let place = e.place(&t.from.1);
                let element = e.ir.load(ty, e.pointer(from, &place), align);
                e.ir.in_scope(element, e.scopes[from.0 as usize]);
                let place = e.place(&t.to.1);
                let store = e.ir.store(element, e.pointer(to, &place), align);
                e.ir.in_scope(store, e.scopes[to.0 as usize]);
                Ok(())
            })?;
            e.ir.at(after);
            Ok(())
        })?;
        self.ir.at(after_rows);
        Ok(())
    }

    /// A position with another value of one variable.
    fn place_at(&mut self, index: &Index, var: LoopVar, value: V) -> Place {
        let old = (self.set_var(var, value), self.divisors.remove(&var));
        let place = self.place(index);
        if let Some(value) = old.0 {
            self.set_var(var, value);
        }
        if let Some(divisor) = old.1 {
            self.divisors.insert(var, divisor);
        }
        place
    }

    /// Interleaves line k with line k + n/2, as often as the number n of lines can be halved: then the elements of
    /// each column are neighbours, in the order of the lines.
    fn transposed(&self, mut lines: Vec<V>) -> Vec<V> {
        let half = lines.len() / 2;
        for _ in 0..lines.len().trailing_zeros() {
            let mut next = Vec::with_capacity(lines.len());
            for k in 0..half {
                let (a, b) = (lines[k], lines[k + half]);
                let lanes = self.ir.lanes_of(a).unwrap_or(1);
                next.push(self.ir.interleave(a, b, 0));
                next.push(self.ir.interleave(a, b, lanes / 2));
            }
            lines = next;
        }
        lines
    }
}

/// Number of a range's values, where it is the same everywhere but at the end of a digit.
fn constant_length(range: &Range) -> Option<i64> {
    let lengths = range.end.iter().map(|end| end.plus(&range.begin.times(Size::from(-1))));
    lengths.filter_map(|length| length.as_constant()?.as_const()).min()
}
