//! Vectors of f32 for products and softmaxes: one trait, and an implementation for each width that x86 processors
//! have. Everything here is inlined into functions that a processor with those instructions runs.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// A vector of f32.
///
/// # Safety
/// The processor must have the instructions of the implementation, and pointers must be valid for [`Vector::LANES`]
/// elements.
pub(super) trait Vector {
    type Register: Copy;
    /// Elements of a vector.
    const LANES: usize;
    /// Rows of the largest tile whose sums, two vectors for each row, stay in registers.
    const ROWS: usize;

    unsafe fn splat(x: f32) -> Self::Register;
    unsafe fn load(from: *const f32) -> Self::Register;
    unsafe fn store(to: *mut f32, x: Self::Register);
    unsafe fn add(a: Self::Register, b: Self::Register) -> Self::Register;
    unsafe fn sub(a: Self::Register, b: Self::Register) -> Self::Register;
    unsafe fn mul(a: Self::Register, b: Self::Register) -> Self::Register;
    /// `a · b + c`, rounded once.
    unsafe fn fma(a: Self::Register, b: Self::Register, c: Self::Register) -> Self::Register;
    /// The larger one; `b` where either isn't a number.
    unsafe fn max(a: Self::Register, b: Self::Register) -> Self::Register;
    /// The nearest whole number.
    unsafe fn round(x: Self::Register) -> Self::Register;
    /// `x · 2^n` for whole `n` of at least -151, below the normal numbers rounded to the nearest.
    unsafe fn scale(x: Self::Register, n: Self::Register) -> Self::Register;
    /// The first elements, with minus infinity for the others, whatever these are.
    unsafe fn first(x: Self::Register, count: usize) -> Self::Register;
    /// The sum of all elements.
    unsafe fn sum(x: Self::Register) -> f32;
    /// The largest of all elements, none of which has to be a number.
    unsafe fn largest(x: Self::Register) -> f32;
}

/// 16 elements.
#[cfg(target_arch = "x86_64")]
pub(super) struct Avx512;

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_op_in_unsafe_fn, reason = "each function is one instruction, under the trait's promise")]
impl Vector for Avx512 {
    type Register = __m512;
    const LANES: usize = 16;
    const ROWS: usize = 12;

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        _mm512_set1_ps(x)
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m512 {
        _mm512_loadu_ps(from)
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, x: __m512) {
        _mm512_storeu_ps(to, x);
    }

    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        _mm512_add_ps(a, b)
    }

    #[inline(always)]
    unsafe fn sub(a: __m512, b: __m512) -> __m512 {
        _mm512_sub_ps(a, b)
    }

    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        _mm512_mul_ps(a, b)
    }

    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        _mm512_fmadd_ps(a, b, c)
    }

    #[inline(always)]
    unsafe fn max(a: __m512, b: __m512) -> __m512 {
        _mm512_max_ps(a, b)
    }

    #[inline(always)]
    unsafe fn round(x: __m512) -> __m512 {
        _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x)
    }

    #[inline(always)]
    unsafe fn scale(x: __m512, n: __m512) -> __m512 {
        _mm512_scalef_ps(x, n)
    }

    #[inline(always)]
    unsafe fn first(x: __m512, count: usize) -> __m512 {
        let kept = ((1_u32 << count) - 1) as __mmask16;
        _mm512_mask_mov_ps(_mm512_set1_ps(f32::NEG_INFINITY), kept, x)
    }

    #[inline(always)]
    unsafe fn sum(x: __m512) -> f32 {
        _mm512_reduce_add_ps(x)
    }

    #[inline(always)]
    unsafe fn largest(x: __m512) -> f32 {
        _mm512_reduce_max_ps(x)
    }
}

/// 8 elements.
#[cfg(target_arch = "x86_64")]
pub(super) struct Avx2;

#[cfg(target_arch = "x86_64")]
#[allow(
    unsafe_op_in_unsafe_fn,
    reason = "each function is one or two instructions, under the trait's promise"
)]
impl Vector for Avx2 {
    type Register = __m256;
    const LANES: usize = 8;
    const ROWS: usize = 6;

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m256 {
        _mm256_set1_ps(x)
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m256 {
        _mm256_loadu_ps(from)
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, x: __m256) {
        _mm256_storeu_ps(to, x);
    }

    #[inline(always)]
    unsafe fn add(a: __m256, b: __m256) -> __m256 {
        _mm256_add_ps(a, b)
    }

    #[inline(always)]
    unsafe fn sub(a: __m256, b: __m256) -> __m256 {
        _mm256_sub_ps(a, b)
    }

    #[inline(always)]
    unsafe fn mul(a: __m256, b: __m256) -> __m256 {
        _mm256_mul_ps(a, b)
    }

    #[inline(always)]
    unsafe fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
        _mm256_fmadd_ps(a, b, c)
    }

    #[inline(always)]
    unsafe fn max(a: __m256, b: __m256) -> __m256 {
        _mm256_max_ps(a, b)
    }

    #[inline(always)]
    unsafe fn round(x: __m256) -> __m256 {
        _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x)
    }

    #[inline(always)]
    unsafe fn scale(x: __m256, n: __m256) -> __m256 {
        // In two halves, since the exponent of one factor doesn't reach down to the smallest numbers.
        let n = _mm256_cvtps_epi32(n);
        let half = _mm256_srai_epi32::<1>(n);
        let power =
            |n| _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(n, _mm256_set1_epi32(127))));
        _mm256_mul_ps(_mm256_mul_ps(x, power(half)), power(_mm256_sub_epi32(n, half)))
    }

    #[inline(always)]
    unsafe fn first(x: __m256, count: usize) -> __m256 {
        let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        let kept = _mm256_cmpgt_epi32(_mm256_set1_epi32(count as i32), lanes);
        _mm256_blendv_ps(_mm256_set1_ps(f32::NEG_INFINITY), x, _mm256_castsi256_ps(kept))
    }

    #[inline(always)]
    unsafe fn sum(x: __m256) -> f32 {
        let x = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
        let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
        _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps::<1>(x, x)))
    }

    #[inline(always)]
    unsafe fn largest(x: __m256) -> f32 {
        let x = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
        let x = _mm_max_ps(x, _mm_movehl_ps(x, x));
        _mm_cvtss_f32(_mm_max_ss(x, _mm_shuffle_ps::<1>(x, x)))
    }
}

/// Side of the squares that [`transpose`] turns.
pub(super) const SIDE: usize = 8;

/// Writes 8 lines of 8 elements, `from_stride` apart, as 8 columns whose lines are `to_stride` apart.
///
/// # Safety
/// The processor must have AVX, and all elements must be there.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) unsafe fn transpose(from: *const f32, from_stride: isize, to: *mut f32, to_stride: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        let line = |k: isize| _mm256_loadu_ps(from.offset(k * from_stride));
        // Lanes of neighbouring lines alternate, then of pairs of lines, then halves.
        let pairs =
            |k: isize| (_mm256_unpacklo_ps(line(k), line(k + 1)), _mm256_unpackhi_ps(line(k), line(k + 1)));
        let quads = |k: isize| {
            let ((a, b), (c, d)) = (pairs(k), pairs(k + 2));
            [
                _mm256_shuffle_ps::<0x44>(a, c),
                _mm256_shuffle_ps::<0xee>(a, c),
                _mm256_shuffle_ps::<0x44>(b, d),
                _mm256_shuffle_ps::<0xee>(b, d),
            ]
        };
        let (upper, lower) = (quads(0), quads(4));
        for k in 0..4 {
            let store = |row: usize, x| _mm256_storeu_ps(to.add(row * to_stride), x);
            store(k, _mm256_permute2f128_ps::<0x20>(upper[k], lower[k]));
            store(k + 4, _mm256_permute2f128_ps::<0x31>(upper[k], lower[k]));
        }
    }
}

/// `e^x` for x of at most 89, within 2 units in the last place; not a number where x isn't one.
///
/// # Safety
/// As for [`Vector`].
#[inline(always)]
pub(super) unsafe fn exp<V: Vector>(x: V::Register) -> V::Register {
    /// Below, the result is zero.
    const LOWEST: f32 = -104.0;
    /// ln 2 in two parts, of which the first has few digits.
    const LN_2: (f32, f32) = (0.693_359_4, -2.121_944_4e-4);
    /// Taylor coefficients from the fifth power down: the argument is at most ln 2 ÷ 2.
    const POWERS: [f32; 4] = [1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5];
    // SAFETY: the caller's promise.
    unsafe {
        let x = V::max(V::splat(LOWEST), x);
        let n = V::round(V::mul(x, V::splat(std::f32::consts::LOG2_E)));
        let rest = V::fma(n, V::splat(-LN_2.0), x);
        let rest = V::fma(n, V::splat(-LN_2.1), rest);
        let mut sum = V::splat(1.0 / 720.0);
        for power in POWERS {
            sum = V::fma(sum, rest, V::splat(power));
        }
        sum = V::fma(sum, rest, V::splat(1.0));
        sum = V::fma(sum, rest, V::splat(1.0));
        V::scale(sum, n)
    }
}
