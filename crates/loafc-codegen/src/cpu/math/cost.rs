//! Rough instruction counts, for the choice of grain sizes.

use loafc_ir::nest::{BinaryOp, UnaryOp};

/// About how many vector instructions an operation takes on a vector of f32, by its measured time; a division or
/// square root counts as eight. On f64 most take twice as many for as many lanes.
pub fn cost(op: UnaryOp) -> u32 {
    match op {
        UnaryOp::Neg
        | UnaryOp::Abs
        | UnaryOp::Not
        | UnaryOp::Floor
        | UnaryOp::Ceil
        | UnaryOp::Trunc
        | UnaryOp::Round
        | UnaryOp::IsNan
        | UnaryOp::IsInf
        | UnaryOp::SignBit => 1,
        UnaryOp::Sign => 4,
        UnaryOp::Sqrt | UnaryOp::Reciprocal => 8,
        UnaryOp::Rsqrt => 16,
        UnaryOp::Exp | UnaryOp::Exp2 => 18,
        UnaryOp::Expm1 | UnaryOp::Sin | UnaryOp::Cos | UnaryOp::Atan => 25,
        UnaryOp::Sigmoid => 30,
        UnaryOp::Log | UnaryOp::Tanh | UnaryOp::Asin => 35,
        UnaryOp::Log1p | UnaryOp::Log2 | UnaryOp::Log10 | UnaryOp::Erf | UnaryOp::Acos => 42,
        UnaryOp::Tan | UnaryOp::Sinh | UnaryOp::Cosh => 68,
        UnaryOp::Acosh | UnaryOp::Atanh | UnaryOp::Erfc => 100,
        UnaryOp::Asinh => 125,
        UnaryOp::Erfinv => 340,
        UnaryOp::Lgamma | UnaryOp::Digamma => 1700,
    }
}

/// As [`cost`], for operations on two values.
pub fn binary_cost(op: BinaryOp) -> u32 {
    match op {
        BinaryOp::Div | BinaryOp::TruncDiv => 8,
        BinaryOp::Fmod => 24,
        BinaryOp::Remainder => 30,
        BinaryOp::FloorDiv => 60,
        BinaryOp::Pow => 160,
        BinaryOp::Atan2 => 210,
        BinaryOp::Hypot => 45,
        BinaryOp::Nextafter => 10,
        BinaryOp::Max | BinaryOp::Min | BinaryOp::Fmax | BinaryOp::Fmin => 2,
        _ => 1,
    }
}

/// Whether the code for floats may branch, and so append blocks to the function that it is emitted into.
pub fn branches(op: UnaryOp) -> bool {
    matches!(op, UnaryOp::Sin | UnaryOp::Cos | UnaryOp::Tan)
}

/// As [`branches`], for operations on two values.
pub fn binary_branches(op: BinaryOp) -> bool {
    matches!(op, BinaryOp::Fmod | BinaryOp::Remainder | BinaryOp::FloorDiv)
}
