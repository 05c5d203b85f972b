//! Rough instruction counts, for the choice of grain sizes.

use loafc_ir::nest::{BinaryOp, UnaryOp};

/// About how many vector instructions an operation takes on a vector of f32; twice that of f64. A division or square
/// root counts as eight.
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
        UnaryOp::Exp | UnaryOp::Exp2 | UnaryOp::Sin | UnaryOp::Cos => 18,
        UnaryOp::Expm1 | UnaryOp::Log | UnaryOp::Log2 | UnaryOp::Log10 | UnaryOp::Log1p => 28,
        UnaryOp::Sigmoid | UnaryOp::Atan | UnaryOp::Erf => 30,
        UnaryOp::Tanh => 36,
        UnaryOp::Sinh | UnaryOp::Cosh | UnaryOp::Asin | UnaryOp::Acos => 60,
        UnaryOp::Tan | UnaryOp::Asinh | UnaryOp::Acosh | UnaryOp::Atanh => 90,
        UnaryOp::Erfc => 200,
        UnaryOp::Erfinv => 150,
        UnaryOp::Lgamma | UnaryOp::Digamma => 900,
    }
}

/// As [`cost`], for operations on two values.
pub fn binary_cost(op: BinaryOp) -> u32 {
    match op {
        BinaryOp::Div | BinaryOp::TruncDiv => 8,
        BinaryOp::Fmod => 24,
        BinaryOp::Remainder => 30,
        BinaryOp::FloorDiv => 60,
        BinaryOp::Pow => 90,
        BinaryOp::Atan2 => 120,
        BinaryOp::Hypot => 30,
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
