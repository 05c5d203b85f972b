//! Gradients of attention against their definition in f64, for each width that the processor has and any number of threads.

use super::attention_call::Attention;
use super::attention_gradients_call::AttentionGradients;
use super::attention_tests::{Case, Mask, Rows, Sizes, tensor};
use super::test_support::{assert_close, largest, random, widths};
use crate::strided::contiguous_strides;
use crate::threads::{Serial, Team, ThreadTeam};
use crate::value::ResultSpec;
use crate::width::Width;
use loafc_ir::dtype::DType;

fn result_gradient(case: &Case) -> Rows {
    let Sizes(batch, heads, _, queries, _, _, value_dim) = case.sizes;
    Rows::random([batch, heads, queries, value_dim], 4)
}

/// The gradients of query, key and value, all contiguous.
fn compute(case: &Case, width: Width, team: &dyn Team) -> [Vec<f32>; 3] {
    let Sizes(batch, heads, _, queries, _, _, value_dim) = case.sizes;
    let (out, logarithms) = case.compute(width, &Serial);
    let out_shape = [batch, heads, queries, value_dim].map(|n| n as i64);
    let (out_strides, row_strides) = (contiguous_strides(&out_shape), contiguous_strides(&out_shape[..3]));
    let [q, k, v] = case.operands();
    let g = result_gradient(case);
    let mask_strides = case.mask.as_ref().map_or(vec![], |m| contiguous_strides(&m.1));
    let mut tensors = vec![
        g.tensor(),
        q.tensor(),
        k.tensor(),
        v.tensor(),
        tensor(&out, &out_shape, &out_strides),
        tensor(&logarithms, &out_shape[..3], &row_strides),
    ];
    if let Some(mask) = &case.mask {
        tensors.push(tensor(&mask.0, &mask.1, &mask_strides));
    }
    let shapes = [q.shape, k.shape, v.shape];
    let strides = shapes.map(|s| contiguous_strides(&s));
    let mut made = shapes.map(|s| vec![f32::MAX; s.iter().product::<i64>() as usize]);
    let results: Vec<_> = (0..3)
        .map(|k| {
            let ptr = Some(made[k].as_mut_ptr().cast());
            Some(ResultSpec { dtype: DType::F32, shape: &shapes[k], strides: &strides[k], ptr })
        })
        .collect();
    let attention = Attention {
        query: 1,
        key: 2,
        value: 3,
        mask: case.mask.as_ref().map(|_| 6),
        causal: case.causal,
        scale: case.scale,
    };
    let gradients = AttentionGradients { attention, result: 4, result_gradient: 0, logarithms: 5 };
    // SAFETY: the tensors have as many elements as their shapes say.
    unsafe { gradients.run(width, &tensors, &results, team).unwrap() };
    made
}

fn expected(case: &Case) -> [Vec<f64>; 3] {
    let Sizes(batch, heads, key_heads, queries, keys, dim, value_dim) = case.sizes;
    let [q, k, v] = case.operands();
    let g = result_gradient(case);
    let scale = case.scale.unwrap_or(1.0 / (dim as f64).sqrt());
    let mut made = [q.data.len(), k.data.len(), v.data.len()].map(|n| vec![0.0; n]);
    for (b, h, row) in
        (0..batch).flat_map(|b| (0..heads).flat_map(move |h| (0..queries).map(move |row| (b, h, row))))
    {
        let shared = h / (heads / key_heads);
        let powers = case.powers(&q, &k, [b, h, row]);
        let total: f64 = powers.iter().sum();
        let part = |power: f64| if total == 0.0 { 0.0 } else { power / total };
        let through = |key: usize| -> f64 {
            (0..value_dim).map(|c| g.at([b, h, row, c]) * v.at([b, shared, key, c])).sum()
        };
        let mean: f64 = (0..keys).map(|key| part(powers[key]) * through(key)).sum();
        for (key, power) in powers.iter().enumerate() {
            let p = part(*power);
            let change = p * (through(key) - mean) * scale;
            let (at_query, at_key) = ((b * heads + h) * queries + row, (b * key_heads + shared) * keys + key);
            for d in 0..dim {
                made[0][at_query * dim + d] += change * k.at([b, shared, key, d]);
                made[1][at_key * dim + d] += change * q.at([b, h, row, d]);
            }
            for c in 0..value_dim {
                made[2][at_key * value_dim + c] += p * g.at([b, h, row, c]);
            }
        }
    }
    made
}

fn check(case: &Case) {
    let want = expected(case);
    for width in widths() {
        let got = compute(case, width, &Serial);
        for (which, (got, want)) in got.iter().zip(&want).enumerate() {
            assert_close(got, want, 1e-5 * largest(want), &(width, case.sizes, which));
        }
        assert!(
            compute(case, width, &ThreadTeam::new(3)) == got,
            "{width:?} {:?}: threads matter",
            case.sizes
        );
    }
}

#[test]
fn sizes_that_fill_no_tile_are_right() {
    for sizes in [
        Sizes(1, 1, 1, 1, 1, 1, 1),
        Sizes(2, 3, 3, 5, 7, 8, 8),
        Sizes(1, 2, 2, 49, 49, 32, 32),
        Sizes(2, 4, 1, 13, 33, 20, 17),
        Sizes(1, 4, 2, 101, 65, 64, 48),
        Sizes(1, 1, 1, 23, 600, 65, 33),
        Sizes(1, 2, 1, 60, 300, 4, 5),
    ] {
        for causal in [false, true] {
            check(&Case { causal, ..Case::of(sizes) });
        }
    }
}

#[test]
fn masked_rows_pass_nothing_on() {
    let mut mask = random(20 * 270, 9);
    mask[..270].fill(f32::NEG_INFINITY);
    mask[270 * 3..270 * 3 + 269].fill(f32::NEG_INFINITY);
    for (shape, count) in [(vec![20, 270], 20 * 270), (vec![20, 1], 20), (vec![2, 1, 1, 270], 540)] {
        let mask = Some(Mask(mask[..count].to_vec(), shape));
        check(&Case { mask, scale: Some(-0.7), ..Case::of(Sizes(2, 3, 3, 20, 270, 16, 16)) });
    }
}
