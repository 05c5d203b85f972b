//! Elements of scans: types that Rust has no name for, and reading operands that become another type first. All of it
//! is without branches, so that it runs in vectors.

use loafc_ir::dtype::DType;

use crate::width::{Work, with_moderate};

/// An element of a scan's result.
pub(super) trait Element: Copy + Default + Send + Sync + 'static {}

/// An f16, as its bits.
#[derive(Copy, Clone, Default)]
pub(super) struct Half(pub u16);

/// A bf16, as its bits.
#[derive(Copy, Clone, Default)]
pub(super) struct Brain(pub u16);

/// A truth value.
#[derive(Copy, Clone, Default)]
pub(super) struct Truth(u8);

impl Half {
    #[inline(always)]
    pub fn wide(self) -> f32 {
        let bits = u32::from(self.0);
        let (sign, exponent, magnitude) = ((bits & 0x8000) << 16, bits & 0x7c00, (bits & 0x7fff) << 13);
        let normal = magnitude + (112 << 23);
        // Multiplied out of whole numbers: right also where the processor takes subnormal numbers for zero.
        let subnormal = ((bits & 0x3ff) as i32 as f32 * (1.0 / 16_777_216.0)).to_bits();
        let rest = if exponent == 0x7c00 { magnitude | 0x7f80_0000 } else { normal };
        f32::from_bits(sign | if exponent == 0 { subnormal } else { rest })
    }

    /// Rounded to the nearest, ties to even.
    #[inline(always)]
    pub fn of(x: f32) -> Half {
        const INFINITY: u32 = 0x7f80_0000;
        const TWO_TO_16: u32 = 0x4780_0000;
        const SMALLEST_NORMAL: u32 = 113 << 23;
        let bits = x.to_bits();
        let (sign, magnitude) = ((bits >> 16) & 0x8000, bits & 0x7fff_ffff);
        let normal = magnitude.wrapping_sub(112 << 23).wrapping_add(0xfff + ((magnitude >> 13) & 1)) >> 13;
        // The sum with a half is rounded where subnormal results end.
        let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
        let huge = if magnitude > INFINITY { 0x7e00 } else { 0x7c00 };
        let large = if magnitude >= TWO_TO_16 { huge } else { normal };
        Half((sign | if magnitude < SMALLEST_NORMAL { subnormal } else { large }) as u16)
    }
}

impl Brain {
    #[inline(always)]
    pub fn wide(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }

    /// Rounded to the nearest, ties to even.
    #[inline(always)]
    pub fn of(x: f32) -> Brain {
        let bits = x.to_bits();
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
        Brain(if x.is_nan() { 0x7fc0 } else { rounded as u16 })
    }
}

/// An element made of one of another type.
pub(super) trait MadeOf<S> {
    fn made_of(x: S) -> Self;
}

/// Implements [`MadeOf`] for types that Rust converts to: `as`, in its ranges as C does.
macro_rules! primitive {
    ($to:ty: $($from:ty)*) => {
        impl Element for $to {}
        $(impl MadeOf<$from> for $to {
            #[inline(always)]
            fn made_of(x: $from) -> $to {
                x as $to
            }
        })*
        impl MadeOf<Half> for $to {
            #[inline(always)]
            fn made_of(x: Half) -> $to {
                x.wide() as $to
            }
        }
        impl MadeOf<Brain> for $to {
            #[inline(always)]
            fn made_of(x: Brain) -> $to {
                x.wide() as $to
            }
        }
        impl MadeOf<Truth> for $to {
            #[inline(always)]
            fn made_of(x: Truth) -> $to {
                u8::from(x.0 != 0) as $to
            }
        }
    };
}
primitive!(f64: f64 f32 i64 i32 i16 i8 u8);
primitive!(f32: f64 f32 i64 i32 i16 i8 u8);
primitive!(i64: f64 f32 i64 i32 i16 i8 u8);
primitive!(i32: f64 f32 i64 i32 i16 i8 u8);
primitive!(u8: f64 f32 i64 i32 i16 i8 u8);

/// Implements [`MadeOf`] for types of 16 bits, by way of f32.
macro_rules! narrow {
    ($to:ty) => {
        impl Element for $to {}
        impl<S> MadeOf<S> for $to
        where
            f32: MadeOf<S>,
        {
            #[inline(always)]
            fn made_of(x: S) -> $to {
                <$to>::of(<f32 as MadeOf<S>>::made_of(x))
            }
        }
    };
}
narrow!(Half);
narrow!(Brain);

/// Defines [`Target`] by the types of operands.
macro_rules! target {
    ($($operand:ty)*) => {
        /// An element that all types of operands can become.
        pub(super) trait Target: Element $(+ MadeOf<$operand>)* {}

        impl<E> Target for E where E: Element $(+ MadeOf<$operand>)* {}
    };
}
target!(f64 f32 Half Brain i64 i32 i16 i8 u8 Truth);

/// Reads elements at this distance, counted in elements.
///
/// # Safety
/// The pointer must be valid for all of them, which are of the type that the function was made for.
pub(super) type Read<E> = unsafe fn(from: *const u8, step: isize, to: &mut [E]);

/// Whether elements of one type become another one as they are read. Fractions that become whole numbers are left to
/// those who know what PyTorch makes of those out of range.
pub(super) fn converts(from: DType, to: DType) -> bool {
    reader::<f32>(from).is_some() && (to.is_float() || !from.is_float())
}

/// What reads elements of this type.
pub(super) fn reader<E: Target>(from: DType) -> Option<Read<E>> {
    Some(match from {
        DType::F64 => read::<f64, E>,
        DType::F32 => read::<f32, E>,
        DType::F16 => read::<Half, E>,
        DType::BF16 => read::<Brain, E>,
        DType::I64 => read::<i64, E>,
        DType::I32 => read::<i32, E>,
        DType::I16 => read::<i16, E>,
        DType::I8 => read::<i8, E>,
        DType::U8 => read::<u8, E>,
        DType::Bool => read::<Truth, E>,
        _ => return None,
    })
}

/// # Safety
/// As for [`Read`].
unsafe fn read<S: Copy, E: MadeOf<S>>(from: *const u8, step: isize, to: &mut [E]) {
    with_moderate(Reading { from: from.cast::<S>(), step, to });
}

/// Elements on their way.
struct Reading<'a, S, E> {
    from: *const S,
    step: isize,
    to: &'a mut [E],
}

impl<S: Copy, E: MadeOf<S>> Work for Reading<'_, S, E> {
    #[inline(always)]
    fn run(self) {
        // SAFETY: the promise of whoever called `read`. Neighbours have loops of their own, which become vectors.
        let element = |k: usize, step: isize| unsafe { E::made_of(*self.from.offset(k as isize * step)) };
        match self.step {
            1 => self.to.iter_mut().enumerate().for_each(|(k, x)| *x = element(k, 1)),
            -1 => self.to.iter_mut().enumerate().for_each(|(k, x)| *x = element(k, -1)),
            step => self.to.iter_mut().enumerate().for_each(|(k, x)| *x = element(k, step)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The value that the bits of an f16 mean.
    fn meaning(bits: u16) -> f64 {
        let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023) / 1024.0);
        let magnitude = match exponent {
            31 if fraction == 0.0 => f64::INFINITY,
            31 => f64::NAN,
            0 => fraction * 2f64.powi(-14),
            _ => (1.0 + fraction) * 2f64.powi(exponent - 15),
        };
        if bits & 0x8000 == 0 { magnitude } else { -magnitude }
    }

    #[test]
    fn every_f16_widens_to_what_it_means_and_back() {
        for bits in 0..=u16::MAX {
            let (wide, meant) = (Half(bits).wide(), meaning(bits));
            assert!(
                f64::from(wide).to_bits() == meant.to_bits() || wide.is_nan() && meant.is_nan(),
                "{bits:x}"
            );
            assert!(
                Half::of(wide).0 == bits || wide.is_nan() && meaning(Half::of(wide).0).is_nan(),
                "{bits:x}"
            );
        }
    }

    #[test]
    fn halves_between_two_round_to_the_even_one() {
        for bits in 0..0x7bff_u16 {
            let (low, high) = (Half(bits).wide(), Half(bits + 1).wide());
            let middle = (low + high) / 2.0;
            let even = bits + (bits & 1);
            assert_eq!(Half::of(middle).0, even);
            assert_eq!(Half::of(middle.next_down()).0, bits);
            assert_eq!(Half::of(-middle.next_up()).0, 0x8000 | (bits + 1));
        }
        assert_eq!(Half::of(65520.0f32.next_down()).0, 0x7bff);
        assert_eq!(Half::of(65520.0).0, 0x7c00);
        assert_eq!(Half::of(f32::MAX).0, 0x7c00);
    }

    #[test]
    fn every_bf16_widens_and_comes_back_and_ties_go_to_even() {
        for bits in 0..=u16::MAX {
            let wide = Brain(bits).wide();
            assert!(Brain::of(wide).0 == bits || wide.is_nan() && Brain::of(wide).wide().is_nan());
            if wide.is_finite() {
                let tie = f32::from_bits((u32::from(bits) << 16) | 0x8000);
                assert_eq!(Brain::of(tie).0, bits + (bits & 1));
                assert_eq!(Brain::of(f32::from_bits(tie.to_bits() + 1)).0, bits + 1);
            }
        }
    }

    #[test]
    fn elements_are_read_at_any_distance_and_become_the_other_type() {
        let bytes = [1u8, 0, 2, 1, 0];
        let mut truths = [0i64; 5];
        let read = |from: DType| reader::<i64>(from).unwrap();
        // SAFETY: five elements of a byte each.
        unsafe { read(DType::Bool)(bytes.as_ptr(), 1, &mut truths) };
        assert_eq!(truths, [1, 0, 1, 1, 0]);
        // SAFETY: as above; the last comes first.
        unsafe { read(DType::U8)(bytes.as_ptr().add(4), -1, &mut truths) };
        assert_eq!(truths, [0, 1, 2, 0, 1]);
        // SAFETY: as above; every second one.
        unsafe { read(DType::I8)(bytes.as_ptr(), 2, &mut truths[..3]) };
        assert_eq!(truths[..3], [1, 2, 0]);
        assert!(!converts(DType::F32, DType::I64) && !converts(DType::C64, DType::F32));
    }
}
