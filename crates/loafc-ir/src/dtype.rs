//! Element types and scalar constants. Storage-only types (8-bit floats, complex, wide unsigned) can be
//! carried through a program and handed to extern calls; kernels compute in the others.

use std::fmt;
use std::str::FromStr;

/// Element type of a tensor.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum DType {
    F64,
    F32,
    F16,
    BF16,
    /// 8-bit float, 4 exponent bits, finite only (`torch.float8_e4m3fn`); storage only.
    F8E4M3FN,
    /// 8-bit float, 5 exponent bits (`torch.float8_e5m2`); storage only.
    F8E5M2,
    I64,
    I32,
    I16,
    I8,
    U64,
    U32,
    U16,
    U8,
    Bool,
    /// Two f16; only for extern calls.
    C32,
    /// Two f32; only for extern calls.
    C64,
    /// Two f64; only for extern calls.
    C128,
}

impl DType {
    /// All element types, in a fixed order.
    pub const ALL: [DType; 18] = [
        DType::F64,
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::F8E4M3FN,
        DType::F8E5M2,
        DType::I64,
        DType::I32,
        DType::I16,
        DType::I8,
        DType::U64,
        DType::U32,
        DType::U16,
        DType::U8,
        DType::Bool,
        DType::C32,
        DType::C64,
        DType::C128,
    ];

    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            DType::C128 => 16,
            DType::F64 | DType::I64 | DType::U64 | DType::C64 => 8,
            DType::F32 | DType::I32 | DType::U32 | DType::C32 => 4,
            DType::F16 | DType::BF16 | DType::I16 | DType::U16 => 2,
            DType::F8E4M3FN | DType::F8E5M2 | DType::I8 | DType::U8 | DType::Bool => 1,
        }
    }

    /// Name in `.loaf` text: `f32`, `bf16`, `b8`, …
    pub const fn name(self) -> &'static str {
        match self {
            DType::F64 => "f64",
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::F8E4M3FN => "f8e4m3fn",
            DType::F8E5M2 => "f8e5m2",
            DType::I64 => "i64",
            DType::I32 => "i32",
            DType::I16 => "i16",
            DType::I8 => "i8",
            DType::U64 => "u64",
            DType::U32 => "u32",
            DType::U16 => "u16",
            DType::U8 => "u8",
            DType::Bool => "b8",
            DType::C32 => "c32",
            DType::C64 => "c64",
            DType::C128 => "c128",
        }
    }

    /// f64, f32, f16, bf16 or an 8-bit float.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F64 | DType::F32 | DType::F16 | DType::BF16 | DType::F8E4M3FN | DType::F8E5M2)
    }

    /// A signed or unsigned integer; `Bool` is none.
    pub const fn is_int(self) -> bool {
        matches!(
            self,
            DType::I64
                | DType::I32
                | DType::I16
                | DType::I8
                | DType::U64
                | DType::U32
                | DType::U16
                | DType::U8
        )
    }

    /// A signed integer.
    pub const fn is_signed_int(self) -> bool {
        matches!(self, DType::I64 | DType::I32 | DType::I16 | DType::I8)
    }

    /// A complex type.
    pub const fn is_complex(self) -> bool {
        matches!(self, DType::C32 | DType::C64 | DType::C128)
    }

    /// Whether kernels can load, compute in and store this type. Others only pass through extern calls.
    pub const fn has_kernels(self) -> bool {
        !self.is_complex() && !matches!(self, DType::U64 | DType::U32 | DType::U16)
    }

    /// The type that arithmetic on this storage type is done in: f32 for the floats narrower than that,
    /// itself otherwise (PyTorch's `opmath_t`).
    pub const fn compute(self) -> DType {
        match self {
            DType::F16 | DType::BF16 | DType::F8E4M3FN | DType::F8E5M2 => DType::F32,
            other => other,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The text is not the name of an element type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown element type `{0}`; known are f64, f32, f16, bf16, f8e4m3fn, f8e5m2, i64, i32, i16, i8, u64, u32, u16, u8, b8, c64, c128"
)]
pub struct UnknownDType(pub String);

impl FromStr for DType {
    type Err = UnknownDType;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        DType::ALL
            .into_iter()
            .find(|d| d.name() == text)
            .or((text == "bool").then_some(DType::Bool))
            .ok_or_else(|| UnknownDType(text.to_owned()))
    }
}

/// A constant of one of the three families that all element types are computed in.
///
/// Equality and hashing are by bits, so that NaN equals itself and `0.0` differs from `-0.0`: two constants
/// are equal exactly when a kernel can't tell them apart.
#[derive(Copy, Clone, Debug)]
pub enum Scalar {
    /// Any float type.
    Float(f64),
    /// Any integer type.
    Int(i64),
    /// A truth value.
    Bool(bool),
}

impl Scalar {
    /// The value as a float: true is 1.
    pub fn to_f64(self) -> f64 {
        match self {
            Scalar::Float(v) => v,
            Scalar::Int(v) => v as f64,
            Scalar::Bool(v) => f64::from(u8::from(v)),
        }
    }

    /// The value as an integer, floats cut towards zero; out of range saturates.
    pub fn to_i64(self) -> i64 {
        match self {
            Scalar::Float(v) => v as i64,
            Scalar::Int(v) => v,
            Scalar::Bool(v) => i64::from(v),
        }
    }

    /// The value as a truth value: everything but zero is true, NaN too.
    pub fn to_bool(self) -> bool {
        match self {
            Scalar::Float(v) => v != 0.0,
            Scalar::Int(v) => v != 0,
            Scalar::Bool(v) => v,
        }
    }

    fn key(self) -> (u8, u64) {
        match self {
            Scalar::Float(v) => (0, v.to_bits()),
            Scalar::Int(v) => (1, v as u64),
            Scalar::Bool(v) => (2, u64::from(v)),
        }
    }
}

impl PartialEq for Scalar {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}
impl Eq for Scalar {}
impl std::hash::Hash for Scalar {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // `{:?}` keeps the point of whole floats, so that 1.0 reads back as a float.
            Scalar::Float(v) => write!(f, "{v:?}"),
            Scalar::Int(v) => write!(f, "{v}"),
            Scalar::Bool(v) => write!(f, "{v}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_reads_back() {
        for d in DType::ALL {
            assert_eq!(d.name().parse(), Ok(d));
        }
    }

    #[test]
    fn constants_compare_by_bits() {
        assert_eq!(Scalar::Float(f64::NAN), Scalar::Float(f64::NAN));
        assert_ne!(Scalar::Float(0.0), Scalar::Float(-0.0));
        assert_ne!(Scalar::Int(1), Scalar::Bool(true));
    }
}
