//! Attention against its definition in f64, for each width that the processor has and any number of threads.

use super::attention_call::Attention;
use super::test_support::{assert_close, random, widths};
use crate::strided::contiguous_strides;
use crate::threads::{Serial, Team, ThreadTeam};
use crate::value::{ResultSpec, TensorRef};
use crate::width::Width;
use loafc_ir::dtype::DType;

/// Sizes: batch, heads, heads of keys, queries, keys, elements of a key, elements of a value.
#[derive(Copy, Clone, Debug)]
pub(super) struct Sizes(pub usize, pub usize, pub usize, pub usize, pub usize, pub usize, pub usize);

/// A tensor of `[batch, head, row, column]` whose heads lie beside each other in memory, as after a projection.
pub(super) struct Rows {
    pub data: Vec<f32>,
    pub shape: [i64; 4],
    pub strides: [i64; 4],
}

impl Rows {
    pub fn random([b, h, r, c]: [usize; 4], seed: u64) -> Rows {
        let data = random(b * h * r * c, seed);
        let strides = [r * h * c, c, h * c, 1].map(|s| s as i64);
        Rows { data, shape: [b, h, r, c].map(|n| n as i64), strides }
    }

    pub fn tensor(&self) -> TensorRef<'_> {
        tensor(&self.data, &self.shape, &self.strides)
    }

    pub fn at(&self, position: [usize; 4]) -> f64 {
        let offset: i64 = position.iter().zip(self.strides).map(|(p, s)| *p as i64 * s).sum();
        f64::from(self.data[offset as usize])
    }
}

pub(super) fn tensor<'a>(data: &'a [f32], shape: &'a [i64], strides: &'a [i64]) -> TensorRef<'a> {
    TensorRef { ptr: data.as_ptr().cast_mut().cast(), dtype: DType::F32, shape, strides, input: None }
}

/// A mask with its shape; strides of 0 where the extent is 1.
pub(super) struct Mask(pub Vec<f32>, pub Vec<i64>);

impl Mask {
    pub fn at(&self, position: [usize; 4]) -> f64 {
        let strides = contiguous_strides(&self.1);
        let from = 4 - self.1.len();
        let offset: i64 = (0..self.1.len())
            .map(|d| if self.1[d] == 1 { 0 } else { position[d + from] as i64 * strides[d] })
            .sum();
        f64::from(self.0[offset as usize])
    }
}

pub(super) struct Case {
    pub sizes: Sizes,
    pub causal: bool,
    pub scale: Option<f64>,
    pub mask: Option<Mask>,
}

impl Case {
    pub fn of(sizes: Sizes) -> Case {
        Case { sizes, causal: false, scale: None, mask: None }
    }

    /// Results and logarithms of sums, by head and row.
    pub fn compute(&self, width: Width, team: &dyn Team) -> (Vec<f32>, Vec<f32>) {
        let Sizes(batch, heads, _, queries, _, _, value_dim) = self.sizes;
        let [q, k, v] = self.operands();
        let mask_strides = self.mask.as_ref().map_or(vec![], |m| contiguous_strides(&m.1));
        let mut tensors = vec![q.tensor(), k.tensor(), v.tensor()];
        if let Some(mask) = &self.mask {
            tensors.push(tensor(&mask.0, &mask.1, &mask_strides));
        }
        let shape = [batch, heads, queries, value_dim].map(|n| n as i64);
        let strides = contiguous_strides(&shape);
        let mut out = vec![f32::MAX; batch * heads * queries * value_dim];
        let mut logarithms = vec![f32::MAX; batch * heads * queries];
        let row_strides = contiguous_strides(&shape[..3]);
        let result = |data: &mut Vec<f32>, shape, strides| {
            Some(ResultSpec { dtype: DType::F32, shape, strides, ptr: Some(data.as_mut_ptr().cast()) })
        };
        let results =
            [result(&mut out, &shape, &strides), result(&mut logarithms, &shape[..3], &row_strides)];
        let attention = Attention {
            query: 0,
            key: 1,
            value: 2,
            mask: self.mask.as_ref().map(|_| 3),
            causal: self.causal,
            scale: self.scale,
        };
        // SAFETY: the tensors have as many elements as their shapes say.
        unsafe { attention.run(width, &tensors, &results, team).unwrap() };
        (out, logarithms)
    }

    pub fn operands(&self) -> [Rows; 3] {
        let Sizes(batch, heads, key_heads, queries, keys, dim, value_dim) = self.sizes;
        [
            Rows::random([batch, heads, queries, dim], 1),
            Rows::random([batch, key_heads, keys, dim], 2),
            Rows::random([batch, key_heads, keys, value_dim], 3),
        ]
    }

    /// The exponentials of a row's scores.
    pub fn powers(&self, q: &Rows, k: &Rows, [b, h, row]: [usize; 3]) -> Vec<f64> {
        let Sizes(_, heads, key_heads, _, keys, dim, _) = self.sizes;
        let shared = h / (heads / key_heads);
        let scale = self.scale.unwrap_or(1.0 / (dim as f64).sqrt());
        let power = |key: usize| {
            if self.causal && key > row {
                return 0.0;
            }
            let dot: f64 = (0..dim).map(|d| q.at([b, h, row, d]) * k.at([b, shared, key, d])).sum();
            (dot * scale + self.mask.as_ref().map_or(0.0, |m| m.at([b, h, row, key]))).exp()
        };
        (0..keys).map(power).collect()
    }

    /// The same by the definition.
    pub fn expected(&self) -> (Vec<f64>, Vec<f64>) {
        let Sizes(batch, heads, key_heads, queries, _, _, value_dim) = self.sizes;
        let [q, k, v] = self.operands();
        let (mut out, mut logarithms) = (Vec::new(), Vec::new());
        for (b, h, row) in
            (0..batch).flat_map(|b| (0..heads).flat_map(move |h| (0..queries).map(move |row| (b, h, row))))
        {
            let shared = h / (heads / key_heads);
            let powers = self.powers(&q, &k, [b, h, row]);
            let total: f64 = powers.iter().sum();
            for c in 0..value_dim {
                let sum: f64 = powers.iter().enumerate().map(|(key, p)| p * v.at([b, shared, key, c])).sum();
                out.push(if total == 0.0 { 0.0 } else { sum / total });
            }
            logarithms.push(if total == 0.0 { 0.0 } else { total.ln() });
        }
        (out, logarithms)
    }

    fn check(&self) {
        let (want, want_logarithms) = self.expected();
        for width in widths() {
            let (got, logarithms) = self.compute(width, &Serial);
            let sizes = self.sizes;
            for (got, want) in [(&got, &want), (&logarithms, &want_logarithms)] {
                assert_close(got, want, 1e-5, &(width, sizes));
            }
            let team = ThreadTeam::new(3);
            assert!(self.compute(width, &team) == (got, logarithms), "{width:?} {sizes:?}: threads matter");
        }
    }
}

#[test]
fn sizes_that_fill_no_tile_are_right() {
    for sizes in [
        Sizes(1, 1, 1, 1, 1, 1, 1),
        Sizes(2, 3, 3, 5, 7, 8, 8),
        Sizes(1, 2, 2, 49, 49, 32, 32),
        Sizes(2, 4, 1, 13, 33, 20, 17),
        Sizes(1, 4, 2, 200, 65, 64, 48),
        Sizes(1, 1, 1, 23, 600, 65, 33),
    ] {
        Case::of(sizes).check();
        Case { causal: true, ..Case::of(sizes) }.check();
    }
}

#[test]
fn masks_of_any_shape_are_added() {
    let sizes = Sizes(2, 3, 3, 20, 270, 16, 16);
    for shape in
        [vec![20, 270], vec![270], vec![1, 270], vec![20, 1], vec![2, 1, 1, 270], vec![2, 3, 20, 270]]
    {
        let count = shape.iter().product::<i64>() as usize;
        let mask = Some(Mask(random(count, 9), shape.clone()));
        Case { mask, ..Case::of(sizes) }.check();
    }
}

#[test]
fn rows_that_see_nothing_are_zero_and_late_large_scores_win() {
    let mut mask = vec![0.0; 4 * 600];
    mask[..600].fill(f32::NEG_INFINITY);
    mask[600..600 + 599].fill(f32::NEG_INFINITY);
    mask[1200 + 590] = 60.0;
    mask[1800..1800 + 300].fill(f32::NEG_INFINITY);
    let case = |causal| Case {
        causal,
        mask: Some(Mask(mask.clone(), vec![4, 600])),
        ..Case::of(Sizes(1, 2, 2, 4, 600, 16, 16))
    };
    case(false).check();
    case(true).check();
}

#[test]
fn scales_of_any_sign_work() {
    for scale in [-1.0, 0.0, 3.0] {
        Case { scale: Some(scale), causal: true, ..Case::of(Sizes(1, 2, 2, 30, 20, 16, 16)) }.check();
    }
}

#[test]
fn what_is_no_number_spoils_its_row_only() {
    let mut mask = vec![0.0; 3 * 20];
    mask[20 + 7] = f32::NAN;
    let case = Case { mask: Some(Mask(mask, vec![3, 20])), ..Case::of(Sizes(1, 1, 1, 3, 20, 8, 8)) };
    for width in widths() {
        let (out, logarithms) = case.compute(width, &Serial);
        for (row, values) in out.chunks(8).enumerate() {
            assert!(values.iter().all(|v| v.is_nan() == (row == 1)));
        }
        assert!(!logarithms[0].is_nan() && logarithms[1].is_nan() && !logarithms[2].is_nan());
    }
}

/// What earlier calls left in the threads' memory must not show, nor what a vector has beyond the keys.
#[test]
fn what_is_beyond_the_keys_does_not_matter() {
    let memory = super::width::memory(1 << 18);
    // SAFETY: so much memory was asked for, and nothing else uses it in this thread.
    unsafe { std::slice::from_raw_parts_mut(memory, 1 << 18).fill(f32::NAN) };
    let mask = Some(Mask(random(5 * 20, 4), vec![5, 20]));
    Case { mask, ..Case::of(Sizes(1, 2, 2, 5, 20, 32, 32)) }.check();
}

#[test]
fn infinite_queries_see_no_padding() {
    let (q, k) = (vec![f32::NEG_INFINITY; 3], vec![1.0; 20]);
    let (queries, keys) = ([1, 1, 3, 1], [1, 1, 20, 1]);
    let (query_strides, key_strides) = (contiguous_strides(&queries), contiguous_strides(&keys));
    for width in widths() {
        let mut out = vec![7.0_f32; 3];
        let ptr = Some(out.as_mut_ptr().cast());
        let result = ResultSpec { dtype: DType::F32, shape: &queries, strides: &query_strides, ptr };
        let tensors = [
            tensor(&q, &queries, &query_strides),
            tensor(&k, &keys, &key_strides),
            tensor(&k, &keys, &key_strides),
        ];
        let attention = Attention { query: 0, key: 1, value: 2, mask: None, causal: false, scale: None };
        // SAFETY: the tensors have as many elements as their shapes say.
        unsafe { attention.run(width, &tensors, &[Some(result), None], &Serial).unwrap() };
        assert_eq!(out, [0.0; 3], "{width:?}");
    }
}
