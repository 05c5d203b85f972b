//! Products of small matrices: the right operand is packed into panels of two vectors' width, the left one is read in
//! place, and the sums of a tile of the result stay in registers.

use super::vector::{SIDE, Vector, transpose};

/// A matrix in memory, with distances between rows and between columns in elements.
#[derive(Copy, Clone, Debug)]
pub(super) struct Matrix {
    pub first: *const f32,
    pub row: isize,
    pub column: isize,
}

impl Matrix {
    /// The matrix from this row and column on.
    ///
    /// # Safety
    /// They must be in the matrix.
    #[inline(always)]
    pub unsafe fn from(self, row: usize, column: usize) -> Matrix {
        // SAFETY: the caller's promise.
        let first = unsafe { self.first.offset(row as isize * self.row + column as isize * self.column) };
        Matrix { first, ..self }
    }

    /// Rows as columns.
    #[inline(always)]
    pub fn transposed(self) -> Matrix {
        Matrix { row: self.column, column: self.row, ..self }
    }
}

/// Columns of a panel.
#[inline(always)]
pub(super) const fn width<V: Vector>() -> usize {
    2 * V::LANES
}

/// The number of columns when the last panel is full.
#[inline(always)]
pub(super) const fn padded<V: Vector>(columns: usize) -> usize {
    columns.next_multiple_of(width::<V>())
}

/// Packs a matrix into panels for [`product`]; the last one is filled up with zeros. `panels` takes
/// `rows · padded(columns)` elements.
///
/// # Safety
/// All elements must be there, and room in `panels`; the processor must have the vector's instructions.
#[inline(always)]
pub(super) unsafe fn pack<V: Vector>(
    matrix: Matrix,
    rows: usize,
    columns: usize,
    panels: *mut f32,
) -> Panels {
    // SAFETY: the caller's promise; a panel has `width` elements for each row.
    unsafe {
        for (p, begin) in (0..columns).step_by(width::<V>()).enumerate() {
            let panel = panels.add(p * rows * width::<V>());
            pack_panel::<V, 2>(matrix.from(0, begin), rows, (columns - begin).min(width::<V>()), panel);
        }
    }
    Panels { first: panels, apart: rows * width::<V>() }
}

/// Packs `count` columns into a panel of so many vectors' width.
///
/// # Safety
/// As for [`pack`]. No more columns than the panel is wide.
#[inline(always)]
pub(super) unsafe fn pack_panel<V: Vector, const VECTORS: usize>(
    matrix: Matrix,
    rows: usize,
    count: usize,
    panel: *mut f32,
) {
    let width = VECTORS * V::LANES;
    // SAFETY: the caller's promise.
    unsafe {
        if count < width {
            std::slice::from_raw_parts_mut(panel, rows * width).fill(0.0);
        }
        if matrix.column == 1 {
            pack_rows::<V>(matrix, rows, (count, width), panel);
        } else if matrix.row == 1 {
            pack_columns(matrix, rows, (count, width), panel);
        } else {
            for row in 0..rows {
                for column in 0..count {
                    *panel.add(row * width + column) = *matrix.from(row, column).first;
                }
            }
        }
    }
}

/// A panel of a matrix whose rows lie together.
#[inline(always)]
unsafe fn pack_rows<V: Vector>(part: Matrix, rows: usize, (count, width): (usize, usize), panel: *mut f32) {
    // SAFETY: as for `pack`.
    unsafe {
        for row in 0..rows {
            let (from, to) = (part.from(row, 0).first, panel.add(row * width));
            if count == width {
                for k in (0..width).step_by(V::LANES) {
                    V::store(to.add(k), V::load(from.add(k)));
                }
            } else {
                std::ptr::copy_nonoverlapping(from, to, count);
            }
        }
    }
}

/// A panel of a matrix whose columns lie together: squares are transposed in registers.
#[inline(always)]
unsafe fn pack_columns(part: Matrix, rows: usize, (count, width): (usize, usize), panel: *mut f32) {
    // SAFETY: as for `pack`; a square lies within both.
    unsafe {
        let squares = |n: usize| n / SIDE * SIDE;
        for column in (0..squares(count)).step_by(SIDE) {
            for row in (0..squares(rows)).step_by(SIDE) {
                let from = part.from(row, column).first;
                transpose(from, part.column, panel.add(row * width + column), width);
            }
        }
        for column in 0..count {
            let done = if column < squares(count) { squares(rows) } else { 0 };
            for row in done..rows {
                *panel.add(row * width + column) = *part.from(row, column).first;
            }
        }
    }
}

/// A packed matrix: its first panel, and the distance of panels in elements.
#[derive(Copy, Clone, Debug)]
pub(super) struct Panels {
    pub first: *const f32,
    pub apart: usize,
}

/// `result (+)= left · right`: `rows` of `left` by the first `depth` rows of `right`. The result's rows are `stride` apart and
/// take `padded(columns)` elements; with `add` they are added to.
///
/// # Safety
/// All elements must be there; the processor must have the vector's instructions.
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "the three matrices with their sizes, as any matrix product")]
pub(super) unsafe fn product<V: Vector>(
    rows: usize,
    columns: usize,
    depth: usize,
    left: Matrix,
    right: Panels,
    result: *mut f32,
    stride: usize,
    add: bool,
) {
    // SAFETY: the caller's promise.
    unsafe {
        for (p, column) in (0..columns).step_by(width::<V>()).enumerate() {
            let panel = right.first.add(p * right.apart);
            let mut row = 0;
            let mut next = |count: usize| {
                let at = (left.from(row, 0), result.add(row * stride + column));
                row += count;
                at
            };
            let mut remaining = rows;
            if V::ROWS >= 12 {
                while remaining >= 12 {
                    let (left, to) = next(12);
                    tile::<V, 12>(depth, left, panel, to, stride, add);
                    remaining -= 12;
                }
            }
            while remaining >= 6 {
                let (left, to) = next(6);
                tile::<V, 6>(depth, left, panel, to, stride, add);
                remaining -= 6;
            }
            if remaining >= 3 {
                let (left, to) = next(3);
                tile::<V, 3>(depth, left, panel, to, stride, add);
                remaining -= 3;
            }
            while remaining > 0 {
                let (left, to) = next(1);
                tile::<V, 1>(depth, left, panel, to, stride, add);
                remaining -= 1;
            }
        }
    }
}

#[inline(always)]
unsafe fn tile<V: Vector, const ROWS: usize>(
    depth: usize,
    left: Matrix,
    panel: *const f32,
    result: *mut f32,
    stride: usize,
    add: bool,
) {
    // SAFETY: as for `product`.
    unsafe {
        let mut sums = [[V::splat(0.0); 2]; ROWS];
        if add {
            for (row, sum) in sums.iter_mut().enumerate() {
                let from = result.add(row * stride);
                *sum = [V::load(from), V::load(from.add(V::LANES))];
            }
        }
        for k in 0..depth {
            let from = panel.add(k * width::<V>());
            let right = [V::load(from), V::load(from.add(V::LANES))];
            let column = left.first.offset(k as isize * left.column);
            for (row, sum) in sums.iter_mut().enumerate() {
                let x = V::splat(*column.offset(row as isize * left.row));
                *sum = [V::fma(x, right[0], sum[0]), V::fma(x, right[1], sum[1])];
            }
        }
        for (row, sum) in sums.iter().enumerate() {
            let to = result.add(row * stride);
            V::store(to, sum[0]);
            V::store(to.add(V::LANES), sum[1]);
        }
    }
}
