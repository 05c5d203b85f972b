//! The sizes of an attention, and where one head's matrices lie in tensors of `[batch, head, row, column]`.

use crate::value::{ResultSpec, TensorRef};

use super::panel::Matrix;

/// Sizes and options, the same for all heads.
#[derive(Copy, Clone, Debug)]
pub(super) struct Problem {
    pub batch: usize,
    pub heads: usize,
    /// Heads of keys and values: each serves `heads / key_heads` heads of queries.
    pub key_heads: usize,
    pub queries: usize,
    pub keys: usize,
    /// Elements of a query and a key.
    pub dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
    /// Whether a query sees only the keys up to its own position.
    pub causal: bool,
    pub scale: f32,
}

impl Problem {
    /// The problem of these tensors; `None` if their sizes don't go together.
    pub fn of(
        query: &TensorRef<'_>,
        key: &TensorRef<'_>,
        value: &TensorRef<'_>,
        causal: bool,
        scale: Option<f64>,
    ) -> Option<Problem> {
        let sizes = |t: &TensorRef<'_>| -> Option<[usize; 4]> {
            let sizes: Vec<usize> =
                t.shape.iter().map(|n| usize::try_from(*n).ok()).collect::<Option<_>>()?;
            sizes.try_into().ok()
        };
        let ([batch, heads, queries, dim], [kb, key_heads, keys, kd], [vb, value_heads, vk, value_dim]) =
            (sizes(query)?, sizes(key)?, sizes(value)?);
        let fit = kb == batch && vb == batch && value_heads == key_heads && vk == keys && kd == dim;
        let grouped = key_heads > 0 && heads.is_multiple_of(key_heads);
        let scale = scale.unwrap_or(1.0 / (dim as f64).sqrt()) as f32;
        (fit && grouped).then_some(Problem {
            batch,
            heads,
            key_heads,
            queries,
            keys,
            dim,
            value_dim,
            causal,
            scale,
        })
    }

    /// How many keys the queries before this one see.
    #[inline(always)]
    pub fn visible(&self, end: usize) -> usize {
        if self.causal { self.keys.min(end) } else { self.keys }
    }

    /// The head of keys and values for a head of queries.
    pub fn key_head(&self, head: usize) -> usize {
        head / (self.heads / self.key_heads)
    }
}

/// The matrix of one head. Extents of 1 are as many as needed, as in a mask for all heads, and a tensor of fewer
/// dimensions is the same for those it lacks.
pub(super) fn head(tensor: &TensorRef<'_>, batch: usize, head: usize) -> Matrix {
    let missing = 4_usize.saturating_sub(tensor.shape.len());
    let stride = |d: usize| match d.checked_sub(missing) {
        Some(d) if tensor.shape[d] != 1 => tensor.strides[d] as isize,
        _ => 0,
    };
    let offset = batch as isize * stride(0) + head as isize * stride(1);
    // Not computed with `offset`, which would ask for the element to exist, also in an empty tensor.
    let first = tensor.ptr.cast::<f32>().wrapping_offset(offset);
    Matrix { first, row: stride(2), column: stride(3) }
}

/// Where one head's rows of a result of `[batch, head, row, column]` begin, and their distance. Columns are neighbours.
pub(super) fn rows(result: &ResultSpec<'_>, batch: usize, head: usize) -> Option<(*mut f32, usize)> {
    let (first, apart) = first_row(result.ptr?, result.strides, batch, head);
    Some((first, apart as usize))
}

/// Where one head's rows in memory of these strides begin, and their distance.
pub(super) fn first_row(memory: *mut u8, strides: &[i64], batch: usize, head: usize) -> (*mut f32, isize) {
    let offset = batch as isize * strides[0] as isize + head as isize * strides[1] as isize;
    (memory.cast::<f32>().wrapping_offset(offset), strides[2] as isize)
}
