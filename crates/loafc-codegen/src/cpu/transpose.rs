//! Copies rectangles between memories that are contiguous along different variables: squares are transposed in
//! registers, so that every cache line is read once and written once.

use llvm_sys::LLVMIntPredicate::{LLVMIntSGE, LLVMIntSLT};
use loafc_ir::index::LoopVar;
use loafc_ir::nest::BufferId;

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
                e.square(&Square { rectangle: t, side, at, left });
                Ok(())
            })?;
            e.ir.at(after);
            Ok(())
        })?;
        self.ir.at(after_rows);
        Ok(())
    }

    fn square(&mut self, square: &Square<'_>) {
        let side = self.ir.i64(i64::from(square.side));
        let full_rows = self.ir.icmp(LLVMIntSGE, square.left.0, side);
        let full_columns = self.ir.icmp(LLVMIntSGE, square.left.1, side);
        let full = self.ir.and(full_rows, full_columns);
        let [whole, cut, after] = ["whole", "cut", "after"].map(|name| self.ir.block(name));
        self.ir.cond_br(full, whole, cut);
        for (block, is_cut) in [(whole, false), (cut, true)] {
            self.ir.at(block);
            self.copy_square(square, is_cut);
            self.ir.br(after);
        }
        self.ir.at(after);
    }

    fn copy_square(&mut self, square: &Square<'_>, is_cut: bool) {
        let t = square.rectangle;
        let lines: Vec<V> =
            (0..square.side).map(|k| self.read_line(square, &t.from.1, t.from.0, k, is_cut)).collect();
        let lines = self.transposed(lines, square.side);
        for (k, line) in lines.into_iter().enumerate() {
            self.write_line(square, line, k as u32, is_cut);
        }
    }

    /// Row `k` of the square.
    fn read_line(
        &mut self,
        square: &Square<'_>,
        index: &loafc_ir::index::Index,
        from: BufferId,
        k: u32,
        is_cut: bool,
    ) -> V {
        let dtype = self.kernel.memory[from.0 as usize].dtype;
        let row = self.ir.add(square.at.0, self.ir.i64(i64::from(k)));
        let place = self.place_at(index, [(square.rectangle.rows.var, row)]);
        let pointer = self.pointer(from, &place);
        let vector = self.ir.vector(self.memory_type(dtype), Some(square.side));
        let align = dtype.bytes() as u32;
        let line = match is_cut {
            false => self.ir.load(vector, pointer, align),
            true => {
                let mask = self.line_mask(square.side, k, square.left.0, square.left.1);
                let types = [vector, self.ir.ptr()];
                let (align, nothing) = (self.ir.i32(i64::from(align)), self.ir.zero(vector));
                self.ir.intrinsic("llvm.masked.load", &types, &[pointer, align, mask, nothing])
            }
        };
        self.ir.in_scope(line, self.scopes[from.0 as usize]);
        line
    }

    /// Column `k` of the square.
    fn write_line(&mut self, square: &Square<'_>, line: V, k: u32, is_cut: bool) {
        let (to, index) = &square.rectangle.to;
        let dtype = self.kernel.memory[to.0 as usize].dtype;
        let column = self.ir.add(square.at.1, self.ir.i64(i64::from(k)));
        let place = self.place_at(index, [(square.rectangle.columns.var, column)]);
        let pointer = self.pointer(*to, &place);
        let align = dtype.bytes() as u32;
        let store = match is_cut {
            false => self.ir.store(line, pointer, align),
            true => {
                let mask = self.line_mask(square.side, k, square.left.1, square.left.0);
                let types = [self.ir.type_of(line), self.ir.ptr()];
                let align = self.ir.i32(i64::from(align));
                self.ir.intrinsic("llvm.masked.store", &types, &[line, pointer, align, mask])
            }
        };
        self.ir.in_scope(store, self.scopes[to.0 as usize]);
    }

    /// Lanes of line `k` that lie inside, with this many lines and lanes left.
    fn line_mask(&self, side: u32, k: u32, lines: V, lanes: V) -> V {
        let ir = &self.ir;
        let inside = ir.icmp(LLVMIntSLT, ir.i64(i64::from(k)), lines);
        let lanes = ir.select(inside, lanes, ir.i64(0));
        let limit = ir.splat(lanes, side);
        ir.icmp(LLVMIntSLT, ir.iota(ir.int(64), side, 1), limit)
    }

    fn place_at(&mut self, index: &loafc_ir::index::Index, vars: [(LoopVar, V); 1]) -> Place {
        let [(var, value)] = vars;
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
