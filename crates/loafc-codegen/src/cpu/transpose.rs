//! Copies rectangles between memories that are contiguous along different variables: squares are transposed in
//! registers, so that every cache line is read once and written once.

use llvm_sys::LLVMIntPredicate::LLVMIntSGE;
use loafc_ir::index::{Index, LoopVar};

use super::emit::{EmitError, Emitter, Place};
use super::ir::V;
use crate::loop_tree::Transpose;

/// A square of a rectangle that is being copied.
struct Square<'t> {
    rectangle: &'t Transpose,
    side: u32,
    /// First row and column.
    at: (V, V),
    /// Rows and columns left from there on.
    left: (V, V),
}

impl Emitter<'_, '_, '_> {
    pub(super) fn transpose(&mut self, t: &Transpose) -> Result<(), EmitError> {
        let dtype = self.kernel.memory[t.from.0.0 as usize].dtype;
        // A square of 16 vectors fits the registers; 8-byte elements fill them with half as many.
        let side: u32 = if dtype.bytes() == 8 { 8 } else { 16 };
        let rows = (self.bound(&t.rows.begin), self.lowest(&t.rows.end));
        let columns = (self.bound(&t.columns.begin), self.lowest(&t.columns.end));
        let step = i64::from(side);
        let after_rows = self.counted_loop(t.rows.var, rows.0, rows.1, step, |e| {
            let after = e.counted_loop(t.columns.var, columns.0, columns.1, step, |e| {
                let at = (e.var(t.rows.var), e.var(t.columns.var));
                let left = (e.ir.sub(rows.1, at.0), e.ir.sub(columns.1, at.1));
                e.square(&Square { rectangle: t, side, at, left })
            })?;
            e.ir.at(after);
            Ok(())
        })?;
        self.ir.at(after_rows);
        Ok(())
    }

    fn square(&mut self, square: &Square<'_>) -> Result<(), EmitError> {
        let side = self.ir.i64(i64::from(square.side));
        let full_rows = self.ir.icmp(LLVMIntSGE, square.left.0, side);
        let full_columns = self.ir.icmp(LLVMIntSGE, square.left.1, side);
        let full = self.ir.and(full_rows, full_columns);
        let [whole, cut, after] = ["whole", "cut", "after"].map(|name| self.ir.block(name));
        self.ir.cond_br(full, whole, cut);
        self.ir.at(whole);
        self.copy_whole(square);
        self.ir.br(after);
        self.ir.at(cut);
        self.copy_cut(square)?;
        self.ir.br(after);
        self.ir.at(after);
        Ok(())
    }

    fn copy_whole(&mut self, square: &Square<'_>) {
        let t = square.rectangle;
        let (from, to) = (t.from.0, t.to.0);
        let dtype = self.kernel.memory[from.0 as usize].dtype;
        let vector = self.ir.vector(self.memory_type(dtype), Some(square.side));
        let align = dtype.bytes() as u32;
        let mut lines = Vec::new();
        for k in 0..i64::from(square.side) {
            let row = self.ir.add(square.at.0, self.ir.i64(k));
            let place = self.place_at(&t.from.1, t.rows.var, row);
            let line = self.ir.load(vector, self.pointer(from, &place), align);
            self.ir.in_scope(line, self.scopes[from.0 as usize]);
            lines.push(line);
        }
        for (k, line) in self.transposed(lines, square.side).into_iter().enumerate() {
            let column = self.ir.add(square.at.1, self.ir.i64(k as i64));
            let place = self.place_at(&t.to.1, t.columns.var, column);
            let store = self.ir.store(line, self.pointer(to, &place), align);
            self.ir.in_scope(store, self.scopes[to.0 as usize]);
        }
    }

    /// Element by element: only squares at the rectangle's edges are cut.
    fn copy_cut(&mut self, square: &Square<'_>) -> Result<(), EmitError> {
        let t = square.rectangle;
        let (from, to) = (t.from.0, t.to.0);
        let dtype = self.kernel.memory[from.0 as usize].dtype;
        let (ty, align) = (self.memory_type(dtype), dtype.bytes() as u32);
        let side = self.ir.i64(i64::from(square.side));
        let behind = |e: &Self, at: V, left: V| {
            let count = e.ir.intrinsic_like("llvm.smin", &[left, side]);
            e.ir.add(at, count)
        };
        let last_row = behind(self, square.at.0, square.left.0);
        let last_column = behind(self, square.at.1, square.left.1);
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
        let old = self.set_var(var, value);
        let place = self.place(index);
        if let Some(old) = old {
            self.set_var(var, old);
        }
        place
    }

    /// Interleaves line k with line k + side/2, as often as the side can be halved: then lanes are lines.
    fn transposed(&self, mut lines: Vec<V>, side: u32) -> Vec<V> {
        let half = side as usize / 2;
        for _ in 0..side.trailing_zeros() {
            let mut next = Vec::with_capacity(lines.len());
            for k in 0..half {
                let (a, b) = (lines[k], lines[k + half]);
                next.push(self.ir.interleave(a, b, 0));
                next.push(self.ir.interleave(a, b, side / 2));
            }
            lines = next;
        }
        lines
    }
}
