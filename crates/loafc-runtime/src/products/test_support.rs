//! What the tests beside this file share.

use crate::width::Width;

/// Numbers from -2 to 2.
pub fn random(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 22) as f32 - 2.0
        })
        .collect()
}

/// Widths that this processor has.
pub fn widths() -> Vec<Width> {
    [Width::Avx512, Width::Avx2].into_iter().filter(|w| w.is_there()).collect()
}

/// Fails where a result is further than that from what it should be.
pub fn assert_close(got: &[f32], want: &[f64], allowed: f64, what: &dyn std::fmt::Debug) {
    assert_eq!(got.len(), want.len(), "{what:?}");
    for (k, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((f64::from(*g) - w).abs() < allowed, "{what:?} at {k}: {g}, not {w}");
    }
}

/// The largest magnitude, at least 1.
pub fn largest(values: &[f64]) -> f64 {
    values.iter().fold(1.0, |a: f64, b| a.max(b.abs()))
}
