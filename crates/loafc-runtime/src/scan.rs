//! Running sums. Scans are no loop nests yet, and a library's come slowly: here lines that lie beside each other in
//! memory go forward together, and groups of lines are shared among threads. Floats are added up in f64, one after
//! the other along the line: the result is the same for any number of threads.

use loafc_ir::dtype::DType;
use loafc_ir::graph::Arg;
use loafc_ir::nest::{ExternCall, NestProgram};

use crate::threads::Team;
use crate::value::{ResultSpec, TensorRef};
use crate::width::{Work, with_widest};

/// Lines beside each other that go forward together: their sums stay in the first-level cache.
const LINES: i64 = 1024;
/// Lines apart from each other that go forward together: their additions need not wait for each other.
const CHAINS: usize = 8;
/// Elements of such a line that are copied at once.
const PIECE: usize = 128;
/// Elements that are worth a thread.
const GRAIN: i64 = 16 << 10;

/// A running sum that the runtime computes itself.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(crate) struct Scan {
    /// The operand's position in [`ExternCall::tensors`].
    operand: usize,
    /// The dimension, counted from the end where it is negative.
    dim: i64,
    dtype: DType,
}

impl Scan {
    /// The call as a scan, if it is one of a type that is summed here.
    pub(crate) fn of(call: &ExternCall, program: &NestProgram) -> Option<Scan> {
        let ("aten.cumsum.default", [Arg::Value(operand), Arg::Size(dim)]) = (&*call.op, &*call.args) else {
            return None;
        };
        let operand = operand.0 as usize;
        let dtype = |b: loafc_ir::nest::BufferId| program.buffers.get(b.0 as usize).map(|b| b.dtype);
        let from = dtype(call.tensors.get(operand)?.buffer)?;
        let [Some(result)] = call.results.as_slice() else { return None };
        let known = matches!(from, DType::F32 | DType::F64 | DType::I64);
        let alike = call.mutates.is_empty() && dtype(result.buffer) == Some(from);
        (known && alike).then_some(Scan { operand, dim: dim.as_const()?, dtype: from })
    }

    /// Computes it.
    ///
    /// # Safety
    /// All elements of the operand must be there, and memory for all of the result.
    pub(crate) unsafe fn run(
        &self,
        tensors: &[TensorRef<'_>],
        results: &[Option<ResultSpec<'_>>],
        team: &dyn Team,
    ) {
        let (x, Some(Some(result))) = (&tensors[self.operand], results.first()) else { return };
        let Some(to) = result.ptr else { return };
        let lines = Lines::of(x, result, self.dim);
        // SAFETY: the caller's promise; the element type is the operand's and the result's.
        unsafe {
            match self.dtype {
                DType::F32 => lines.run::<f32>(x.ptr.cast(), to.cast(), team),
                DType::F64 => lines.run::<f64>(x.ptr.cast(), to.cast(), team),
                _ => lines.run::<i64>(x.ptr.cast(), to.cast(), team),
            }
        }
    }
}

/// Extent, and strides in operand and result.
#[derive(Copy, Clone, Debug)]
struct Axis {
    extent: i64,
    from: i64,
    to: i64,
}

/// The lines that sums run along.
struct Lines {
    along: Axis,
    /// The dimension in which neighbouring lines lie closest.
    beside: Axis,
    others: Vec<Axis>,
}

impl Lines {
    fn of(x: &TensorRef<'_>, result: &ResultSpec<'_>, dim: i64) -> Lines {
        let one = Axis { extent: 1, from: 0, to: 0 };
        let axis = |k: usize| Axis { extent: x.shape[k], from: x.strides[k], to: result.strides[k] };
        let rank = x.shape.len();
        if rank == 0 {
            return Lines { along: one, beside: one, others: Vec::new() };
        }
        let dim = usize::try_from(if dim < 0 { dim + rank as i64 } else { dim }).unwrap_or(0);
        let mut others: Vec<Axis> =
            (0..rank).filter(|k| *k != dim).map(axis).filter(|a| a.extent != 1).collect();
        let distance = |a: &Axis| a.from.unsigned_abs() + a.to.unsigned_abs();
        let closest = (0..others.len()).min_by_key(|k| distance(&others[*k]));
        let beside = closest.map_or(one, |k| others.swap_remove(k));
        Lines { along: axis(dim), beside, others }
    }

    /// # Safety
    /// The pointers must be valid for all elements.
    unsafe fn run<T: Summed>(&self, from: *const T, to: *mut T, team: &dyn Team) {
        let others: i64 = self.others.iter().map(|a| a.extent).product();
        let adjacent = self.beside.from == 1 && self.beside.to == 1;
        let share = (self.beside.extent + team.threads() as i64 - 1) / team.threads() as i64;
        let group = if adjacent { share.clamp(64, LINES) } else { CHAINS as i64 };
        let groups = (self.beside.extent + group - 1) / group;
        let pointers = Pointers { from, to };
        let grain = (GRAIN / (group * self.along.extent).max(1)).max(1);
        team.parallel_for(others * groups, grain, &|begin, end, _| {
            let pointers = &pointers;
            for unit in begin..end {
                let first = unit % groups * group;
                let count = group.min(self.beside.extent - first);
                let (mut from, mut to) = (first * self.beside.from, first * self.beside.to);
                let mut rest = unit / groups;
                for axis in &self.others {
                    from += rest % axis.extent * axis.from;
                    to += rest % axis.extent * axis.to;
                    rest /= axis.extent;
                }
                // SAFETY: the lines of a unit are lines of the tensors, and no two units share one.
                unsafe {
                    let (from, to) = (pointers.from.offset(from as isize), pointers.to.offset(to as isize));
                    if adjacent { self.side_by_side(from, to, count) } else { self.apart(from, to, count) }
                }
            }
        });
    }

    /// Lines whose elements are neighbours.
    ///
    /// # Safety
    /// The pointers must be valid for all elements of these lines, which operand and result do not share.
    unsafe fn side_by_side<T: Summed>(&self, from: *const T, to: *mut T, count: i64) {
        let mut sums = [T::Sum::default(); LINES as usize];
        let sums = &mut sums[..count as usize];
        for k in 0..self.along.extent {
            // SAFETY: the caller's promise.
            let (from, to) = unsafe {
                (
                    std::slice::from_raw_parts(from.offset((k * self.along.from) as isize), sums.len()),
                    std::slice::from_raw_parts_mut(to.offset((k * self.along.to) as isize), sums.len()),
                )
            };
            with_widest(Advance { sums, from, to });
        }
    }

    /// Lines at any distance. Pieces of them are copied out of memory and back: lines at distances of a power of two
    /// would share few places in the cache.
    ///
    /// # Safety
    /// As for [`Lines::side_by_side`].
    unsafe fn apart<T: Summed>(&self, from: *const T, to: *mut T, count: i64) {
        let mut sums = [T::Sum::default(); CHAINS];
        let mut piece = [[T::default(); CHAINS]; PIECE];
        let Axis { extent, from: from_step, to: to_step } = self.along;
        for begin in (0..extent).step_by(PIECE) {
            let piece = &mut piece[..(extent - begin).min(PIECE as i64) as usize];
            for line in 0..count {
                let first = (line * self.beside.from + begin * from_step) as isize;
                for (k, elements) in piece.iter_mut().enumerate() {
                    // SAFETY: the caller's promise.
                    elements[line as usize] =
                        unsafe { *from.offset(first + k as isize * from_step as isize) };
                }
            }
            for elements in piece.iter_mut() {
                for (sum, x) in sums.iter_mut().zip(elements) {
                    *sum = T::add(*sum, *x);
                    *x = T::of(*sum);
                }
            }
            for line in 0..count {
                let first = (line * self.beside.to + begin * to_step) as isize;
                for (k, elements) in piece.iter().enumerate() {
                    // SAFETY: the caller's promise.
                    unsafe { *to.offset(first + k as isize * to_step as isize) = elements[line as usize] };
                }
            }
        }
    }
}

struct Pointers<T> {
    from: *const T,
    to: *mut T,
}

// SAFETY: each unit reads and writes lines of its own.
unsafe impl<T> Sync for Pointers<T> {}

/// An element, and what it is summed in.
trait Summed: Copy + Default + Send + Sync {
    type Sum: Copy + Default;
    fn add(sum: Self::Sum, x: Self) -> Self::Sum;
    fn of(sum: Self::Sum) -> Self;
}

/// Sums that go one element forward: an element is added to each, and they are written.
struct Advance<'a, T: Summed> {
    sums: &'a mut [T::Sum],
    from: &'a [T],
    to: &'a mut [T],
}

impl<T: Summed> Work for Advance<'_, T> {
    #[inline(always)]
    fn run(self) {
        for ((sum, x), out) in self.sums.iter_mut().zip(self.from).zip(self.to) {
            *sum = T::add(*sum, *x);
            *out = T::of(*sum);
        }
    }
}

/// Implements [`Summed`].
macro_rules! summed {
    ($element:ty, $sum:ty, $add:expr, $of:expr) => {
        impl Summed for $element {
            type Sum = $sum;

            #[inline(always)]
            fn add(sum: $sum, x: $element) -> $sum {
                $add(sum, x)
            }

            #[inline(always)]
            fn of(sum: $sum) -> $element {
                $of(sum)
            }
        }
    };
}

summed!(f32, f64, |sum, x| sum + f64::from(x), |sum| sum as f32);
summed!(f64, f64, |sum, x| sum + x, |sum| sum);
summed!(i64, i64, |sum: i64, x| sum.wrapping_add(x), |sum| sum);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::{Serial, ThreadTeam};

    /// Sums along `dim` of a contiguous tensor of ones, twos, …, seen through these strides.
    fn sums(shape: &[i64], strides: &[i64], dim: i64, team: &dyn Team) -> Vec<i64> {
        let count = shape.iter().product::<i64>() as usize;
        let data: Vec<i64> = (1..=count as i64).collect();
        let mut out = vec![0i64; count];
        let x = TensorRef {
            ptr: data.as_ptr().cast_mut().cast(),
            dtype: DType::I64,
            shape,
            strides,
            input: None,
        };
        let ptr = Some(out.as_mut_ptr().cast());
        let result = ResultSpec { dtype: DType::I64, shape, strides, ptr };
        let scan = Scan { operand: 0, dim, dtype: DType::I64 };
        // SAFETY: data and result have as many elements as the shape says.
        unsafe { scan.run(&[x], &[Some(result)], team) };
        out
    }

    fn expected(shape: &[i64], dim: usize) -> Vec<i64> {
        let inner = shape[dim + 1..].iter().product::<i64>() as usize;
        let extent = shape[dim] as usize;
        let mut out: Vec<i64> = (1..=shape.iter().product::<i64>()).collect();
        for k in 0..out.len() {
            if !(k / inner).is_multiple_of(extent) {
                out[k] += out[k - inner];
            }
        }
        out
    }

    #[test]
    fn every_dimension_sums_with_any_team() {
        let team = ThreadTeam::new(3);
        let teams: [&dyn Team; 2] = [&Serial, &team];
        for shape in [vec![5, 7, 11], vec![3, 1, 130], vec![1, 40, 2000], vec![0, 3, 2], vec![33, 2, 17]] {
            let strides = crate::strided::contiguous_strides(&shape);
            for dim in 0..shape.len() {
                for team in teams {
                    let want = expected(&shape, dim);
                    assert_eq!(sums(&shape, &strides, dim as i64, team), want);
                    assert_eq!(sums(&shape, &strides, dim as i64 - shape.len() as i64, team), want);
                }
            }
        }
    }

    #[test]
    fn columns_of_a_transposed_tensor_are_its_rows() {
        // [3, 4] in column order: element (i, j) at i + 3·j.
        let down = sums(&[3, 4], &[1, 3], 0, &Serial);
        assert_eq!(down, [1, 3, 6, 4, 9, 15, 7, 15, 24, 10, 21, 33]);
    }

    #[test]
    fn a_single_element_is_its_own_sum() {
        assert_eq!(sums(&[], &[], 0, &Serial), [1]);
    }

    #[test]
    fn floats_are_summed_in_twice_their_width() {
        let data = vec![0.1f32; 1 << 16];
        let mut out = vec![0f32; data.len()];
        let shape = [data.len() as i64];
        let x = TensorRef {
            ptr: data.as_ptr().cast_mut().cast(),
            dtype: DType::F32,
            shape: &shape,
            strides: &[1],
            input: None,
        };
        let ptr = Some(out.as_mut_ptr().cast());
        let result = ResultSpec { dtype: DType::F32, shape: &shape, strides: &[1], ptr };
        // SAFETY: data and result have as many elements as the shape says.
        unsafe { Scan { operand: 0, dim: 0, dtype: DType::F32 }.run(&[x], &[Some(result)], &Serial) };
        assert_eq!(out[data.len() - 1], (f64::from(0.1f32) * data.len() as f64) as f32);
    }
}
