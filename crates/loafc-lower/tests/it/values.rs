//! Lowered programs compute what the tensor programs say.

use loafc_ir::dtype::{DType, Scalar};
use loafc_ir::interp::tensor::HostTensor;
use loafc_ir::ops::GraphInput;

use crate::support::{check, check_nests, check_with, lowered, parsed};

/// Checks a program with one call: `op(args) -> …` over the given inputs.
fn one(inputs: &str, call: &str) {
    check_nests(&format!("graph @one({inputs}) {{\n  %r = {call}\n  return %r\n}}"));
}

fn two(inputs: &str, call: &str) {
    check_nests(&format!("graph @two({inputs}) {{\n  %r, %s = {call}\n  return %r, %s\n}}"));
}

#[test]
fn unary_operators() {
    for op in [
        "neg",
        "abs",
        "sign",
        "exp",
        "exp2",
        "expm1",
        "sin",
        "cos",
        "tan",
        "atan",
        "sinh",
        "cosh",
        "tanh",
        "asinh",
        "erf",
        "erfc",
        "sigmoid",
        "floor",
        "ceil",
        "trunc",
        "round",
        "frac",
        "square",
        "isnan",
        "isinf",
        "isfinite",
        "signbit",
        "logical_not",
        "relu",
        "silu",
        "gelu",
        "mish",
        "hardswish",
        "hardsigmoid",
        "softplus",
        "elu",
        "selu",
        "celu",
        "leaky_relu",
        "hardtanh",
        "relu6",
        "nan_to_num",
        "reciprocal",
    ] {
        for dtype in ["f32", "bf16"] {
            if matches!(op, "floor" | "ceil" | "trunc" | "round" | "frac") && dtype == "bf16" {
                continue;
            }
            one(&format!("%x: {dtype}[3, 5]"), &format!("aten.{op}.default(%x)"));
        }
    }
    for op in ["log", "log2", "log10", "log1p", "sqrt", "rsqrt", "lgamma", "digamma", "acosh"] {
        one("%pos: f32[7]", &format!("aten.{op}.default(%pos)"));
    }
    for op in [
        "neg",
        "abs",
        "sign",
        "exp",
        "floor",
        "square",
        "relu",
        "logical_not",
        "bitwise_not",
        "isnan",
        "signbit",
    ] {
        one("%x: i32[7]", &format!("aten.{op}.default(%x)"));
    }
    one("%x: u8[7]", "aten.neg.default(%x)");
    one("%x: b8[7]", "aten.bitwise_not.default(%x)");
    one("%x: f32[7]", "aten.gelu.default(%x, approximate=\"tanh\")");
    one("%x: f32[3, 8]", "aten.glu.default(%x, 1)");
}

#[test]
fn binary_operators_promote_like_pytorch() {
    for op in ["add.Tensor", "sub.Tensor", "mul.Tensor", "maximum.default", "minimum.default"] {
        for (a, b) in [
            ("f32[3, 5]", "f32[3, 5]"),
            ("f32[3, 5]", "f32[5]"),
            ("f32[3, 1]", "f32[1, 5]"),
            ("bf16[3, 5]", "f32[3, 5]"),
            ("i32[3, 5]", "f32[5]"),
            ("i64[3, 5]", "i32[5]"),
            ("bf16[3, 5]", "f32[]"),
            ("u8[3, 5]", "i8[3, 5]"),
            ("f16[3, 5]", "bf16[3, 5]"),
            ("f32[0, 5]", "f32[5]"),
        ] {
            one(&format!("%x: {a}, %y: {b}"), &format!("aten.{op}(%x, %y)"));
        }
    }
    one("%x: b8[5], %y: b8[5]", "aten.add.Tensor(%x, %y)");
    one("%x: b8[5], %y: b8[5]", "aten.mul.Tensor(%x, %y)");
    one("%x: b8[5], %y: b8[5]", "aten.maximum.default(%x, %y)");
    one("%x: i32[5], %pos: i32[5]", "aten.div.Tensor(%x, 3)");
    one("%x: i64[5]", "aten.div.Tensor_mode(%x, 3, rounding_mode=\"floor\")");
    one("%x: i64[5]", "aten.div.Tensor_mode(%x, 3, rounding_mode=\"trunc\")");
    one("%x: f32[5], %pos: f32[5]", "aten.div.Tensor_mode(%x, %pos, rounding_mode=\"floor\")");
    one("%x: f32[5], %pos: f32[5]", "aten.remainder.Tensor(%x, %pos)");
    one("%x: f32[5], %pos: f32[5]", "aten.fmod.Tensor(%x, %pos)");
    one("%x: i64[5]", "aten.fmod.Scalar(%x, 3)");
    one("%x: i64[5]", "aten.remainder.Scalar(%x, -3)");
    one("%x: f32[5], %y: f32[5]", "aten.add.Tensor(%x, %y, alpha=2)");
    one("%x: f32[5]", "aten.rsub.Scalar(%x, 1.0)");
    one("%x: f32[5]", "aten.add.Tensor(%x, 1)");
    for call in [
        "mul.Tensor(%x, 0.1)",
        "add.Tensor(%x, 0.3)",
        "add.Tensor(%x, %x, alpha=0.3)",
        "rsub.Scalar(%x, 0.3)",
        "fmod.Scalar(%x, 0.3)",
        "remainder.Scalar(%x, 0.3)",
        "remainder.Scalar_Tensor(0.3, %x)",
        "floor_divide.default(%x, 0.3)",
        "div.Tensor_mode(0.3, %x, rounding_mode=\"floor\")",
        "pow.Tensor_Scalar(%x, 1.7)",
    ] {
        one("%x: bf16[5]", &format!("aten.{call}"));
    }
    one("%pos: f32[5], %y: f32[5]", "aten.pow.Tensor_Tensor(%pos, %y)");
    one("%x: f32[2]", "aten.pow.Scalar(10000.0, %x)");
    for exponent in ["0", "1", "2", "3", "4", "0.5", "-0.5", "-1", "-2", "1.5"] {
        one("%pos: f32[5]", &format!("aten.pow.Tensor_Scalar(%pos, {exponent})"));
    }
    one("%x: i64[5]", "aten.pow.Tensor_Scalar(%x, 2)");
    one("%x: f32[5], %y: f32[5]", "aten.atan2.default(%x, %y)");
    one("%x: f32[5], %y: f32[5]", "aten.copysign.Tensor(%x, %y)");
    one("%x: f32[5], %y: f32[5]", "aten.logaddexp.default(%x, %y)");
    one("%x: f32[5], %pos: f32[5]", "aten.xlogy.Tensor(%x, %pos)");
    one("%x: i32[5], %y: i32[5]", "aten.bitwise_and.Tensor(%x, %y)");
    one("%x: b8[5], %y: b8[1]", "aten.bitwise_or.Tensor(%x, %y)");
    one("%x: f32[5], %y: f32[5], %z: f32[5]", "aten.addcmul.default(%x, %y, %z, value=0.5)");
    one("%x: f32[5], %y: f32[5], %pos: f32[5]", "aten.addcdiv.default(%x, %y, %pos, value=-0.5)");
    one("%x: f32[5], %y: f32[5], %z: f32[5]", "aten.lerp.Tensor(%x, %y, %z)");
    one("%x: f32[5], %y: f32[5]", "aten.lerp.Scalar(%x, %y, 0.75)");
    one("%x: f32[4, 5], %y: f32[4, 1], %z: f32[4, 5]", "prims.fma.default(%x, %y, %z)");
}

#[test]
fn comparisons_and_choices() {
    for op in ["eq", "ne", "lt", "le", "gt", "ge"] {
        one("%x: f32[3, 5], %y: f32[5]", &format!("aten.{op}.Tensor(%x, %y)"));
        one("%x: i64[3, 5], %y: f32[5]", &format!("aten.{op}.Tensor(%x, %y)"));
        one("%x: b8[5], %y: b8[5]", &format!("aten.{op}.Tensor(%x, %y)"));
        one("%x: bf16[9]", &format!("aten.{op}.Scalar(%x, 0.1)"));
        one("%x: i64[9]", &format!("aten.{op}.Scalar(%x, 1)"));
    }
    one("%c: b8[5], %x: f32[3, 5], %y: bf16[]", "aten.where.self(%c, %x, %y)");
    one("%x: f32[3, 5], %c: b8[5]", "aten.masked_fill.Scalar(%x, %c, -1.0)");
    one("%x: f32[9]", "aten.clamp.default(%x, -0.5, 0.5)");
    one("%x: i64[9]", "aten.clamp.default(%x, max=1)");
    one("%x: f32[9]", "aten.clamp_min.default(%x, 0.0)");
    one("%x: f32[9], %y: i32[9]", "aten.logical_and.default(%x, %y)");
}

#[test]
fn conversions_round() {
    for to in ["f64", "f16", "bf16", "i64", "i32", "i8", "u8", "b8"] {
        one("%x: f32[9]", &format!("prims.convert_element_type.default(%x, {to})"));
        one("%x: i64[9]", &format!("prims.convert_element_type.default(%x, {to})"));
        one("%x: b8[9]", &format!("aten._to_copy.default(%x, dtype={to})"));
    }
    one("%x: f32[9]", "aten._to_copy.default(%x)");
    one("%x: f32[9]", "aten.view.dtype(%x, i32)");
}

#[test]
fn reductions() {
    for dims in ["[-1]", "[0]", "[0, 2]", "[1]", "[0, 1, 2]"] {
        for keep in ["false", "true"] {
            for op in ["sum.dim_IntList", "amax.default", "amin.default", "mean.dim"] {
                one("%x: f32[3, 4, 5]", &format!("aten.{op}(%x, {dims}, {keep})"));
                one("%x: f32[3, 4, 5] strides [1, 15, 3]", &format!("aten.{op}(%x, {dims}, {keep})"));
            }
            one("%x: bf16[3, 4, 5]", &format!("aten.sum.dim_IntList(%x, {dims}, {keep})"));
            one("%x: i32[3, 4, 5]", &format!("aten.sum.dim_IntList(%x, {dims}, {keep})"));
            one("%x: b8[3, 4, 5]", &format!("aten.any.dims(%x, {dims}, {keep})"));
            two(
                "%x: f32[3, 4, 5]",
                &format!("aten.var_mean.correction(%x, {dims}, correction=0, keepdim={keep})"),
            );
            one(
                "%x: f32[3, 4, 5]",
                &format!("aten.var.correction(%x, {dims}, correction=1, keepdim={keep})"),
            );
            one(
                "%x: f32[3, 4, 5]",
                &format!("aten.std.correction(%x, {dims}, correction=1, keepdim={keep})"),
            );
            one("%x: f32[3, 4, 5]", &format!("aten.linalg_vector_norm.default(%x, 2, {dims}, {keep})"));
        }
    }
    for op in ["sum", "mean", "max", "min", "prod", "argmax", "argmin", "any", "all"] {
        one("%x: f32[3, 4]", &format!("aten.{op}.default(%x)"));
        one("%x: f32[]", &format!("aten.{op}.default(%x)"));
        one("%x: f32[1, 1]", &format!("aten.{op}.default(%x)"));
    }
    for dim in ["0", "1", "-1"] {
        two("%x: f32[3, 4]", &format!("aten.max.dim(%x, {dim})"));
        two("%x: i64[3, 4]", &format!("aten.min.dim(%x, {dim}, true)"));
        one("%x: i32[3, 4]", &format!("aten.argmax.default(%x, {dim})"));
        one("%x: f32[3, 4]", &format!("aten.prod.dim_int(%x, {dim})"));
        one("%x: b8[3, 4]", &format!("aten.all.dim(%x, {dim})"));
    }
    one("%x: f32[3, 0]", "aten.sum.dim_IntList(%x, [1])");
    one("%x: f32[0, 3]", "aten.sum.dim_IntList(%x, [1])");
    one("%x: f32[3, 0]", "aten.mean.dim(%x, [1])");
    one("%x: f32[3, 1]", "aten.sum.dim_IntList(%x, [1])");
    two("%x: f32[3, 1]", "aten.var_mean.correction(%x, [1], correction=0)");
    two("%x: f32[3, 0]", "aten.var_mean.correction(%x, [1], correction=0)");
    two("%x: f32[0]", "aten.std_mean.correction(%x)");
    two("%x: f32[3, 1]", "aten.var_mean.correction(%x, [1], correction=1)");
    two("%x: b8[3, 1]", "aten.max.dim(%x, 1)");
    check_nests(
        "graph @g(%x: f32[3, 4]) {\n %_, %i = aten.max.dim(%x, 1)\n return %i\n}".replace("%_", "_").as_str(),
    );
}

#[test]
fn views() {
    for layout in ["f32[4, 6]", "f32[4, 6] strides [1, 4]", "f32[4, 6] strides [12, 2]"] {
        let x = format!("%x: {layout}");
        for call in [
            "aten.view.default(%x, [24])",
            "aten.reshape.default(%x, [2, -1, 3])",
            "aten.permute.default(%x, [1, 0])",
            "aten.transpose.int(%x, 0, 1)",
            "aten.t.default(%x)",
            "aten.unsqueeze.default(%x, 1)",
            "aten.expand.default(%x, [2, 4, 6])",
            "aten.slice.Tensor(%x, 1, 1, 5, 2)",
            "aten.slice.Tensor(%x, 0, -2, 9223372036854775807)",
            "aten.select.int(%x, 1, -1)",
            "aten.diagonal.default(%x, 1)",
            "aten.unfold.default(%x, 1, 3, 2)",
            "aten.flip.default(%x, [0])",
            "prims.rev.default(%x, [1])",
            "aten.roll.default(%x, [1], [1])",
            "aten.roll.default(%x, [5])",
            "aten.repeat.default(%x, [2, 1, 3])",
            "aten.clone.default(%x)",
            "aten.constant_pad_nd.default(%x, [1, 2], 0.5)",
            "aten.constant_pad_nd.default(%x, [1, -2, -1, 3], 0.5)",
            "aten.tril.default(%x)",
            "aten.triu.default(%x, -1)",
        ] {
            if call.contains("view.default") && layout.contains("strides") {
                continue;
            }
            one(&x, call);
            // The same on a value that is not in memory yet.
            check_nests(&format!(
                "graph @lazy({x}) {{\n %y = aten.mul.Tensor(%x, 2.0)\n %z = {}\n %r = aten.add.Tensor(%z, 1.0)\n return %r\n}}",
                call.replace("%x", "%y")
            ));
        }
    }
    one("%x: f32[1, 4, 1]", "aten.squeeze.default(%x)");
    one("%x: f32[1, 4, 1]", "aten.squeeze.dim(%x, 0)");
    one("%x: f32[1, 4, 1]", "aten.squeeze.dims(%x, [0, 2])");
    one("%x: f32[0, 4]", "aten.reshape.default(%x, [4, 0])");
    one("%x: f32[2, 8, 4, 1]", "aten.as_strided.default(%x, [2, 32], [32, 1])");
    two("%x: f32[5, 3]", "aten.split.Tensor(%x, 3)");
    two("%x: f32[5, 3]", "aten.split_with_sizes.default(%x, [1, 2], 1)");
    two("%x: f32[2, 3]", "aten.unbind.int(%x)");
    two("%x: f32[5, 3]", "aten.chunk.default(%x, 2)");
}

#[test]
fn reshapes_of_permuted_values() {
    check_nests(
        "graph @swizzle(%x: f32[16, 8]) {
           %a = loafc.realize.default(%x)
           %b = aten.view.default(%a, [2, 8, 2, 4])
           %c = aten.permute.default(%b, [0, 2, 1, 3])
           %d = aten.reshape.default(%c, [4, 32])
           %e = aten.view.default(%d, [2, 2, 32])
           %f = aten.permute.default(%e, [1, 0, 2])
           %g = aten.reshape.default(%f, [128])
           %h = aten.add.Tensor(%g, 1.0)
           return %h
         }",
    );
}

#[test]
fn creation() {
    for call in [
        "aten.full.default([2, 3], 1.5)",
        "aten.full.default([], true)",
        "aten.zeros.default([2, 3], dtype=i64)",
        "aten.ones.default([0, 3])",
        "aten.arange.default(5)",
        "aten.arange.start_step(1, 8, 3)",
        "aten.arange.start_step(0.5, 2.0, 0.25)",
        "aten.eye.default(3)",
        "aten.scalar_tensor.default(-inf, dtype=bf16)",
        "prims.iota.default(5, start=2, step=3, dtype=i64, device=cpu, requires_grad=false)",
    ] {
        one("", call);
    }
    one("%x: bf16[2, 3]", "aten.full_like.default(%x, 2)");
    one("%x: f32[2, 3]", "aten.zeros_like.default(%x)");
    check_nests(
        "graph @causal(%x: f32[4, 4]) {
           %i = prims.iota.default(4, start=0, step=1, dtype=i64, device=cpu, requires_grad=false)
           %r = aten.unsqueeze.default(%i, 1)
           %m = aten.le.Tensor(%i, %r)
           %y = aten.where.self(%m, %x, -inf)
           return %y
         }",
    );
}

#[test]
fn concatenation() {
    for dim in ["0", "1", "-1"] {
        one("%x: f32[2, 3], %y: f32[2, 3]", &format!("aten.cat.default([%x, %y], {dim})"));
        one("%x: f32[2, 3], %y: f32[2, 3]", &format!("aten.stack.default([%x, %y], {dim})"));
    }
    one("%x: f32[2, 3], %y: f32[2, 0], %z: f32[2, 4]", "aten.cat.default([%x, %y, %z], 1)");
    one("%x: f32[2, 3], %y: bf16[2, 4]", "aten.cat.default([%x, %y], 1)");
    one("%x: f32[2, 3], %y: f32[0]", "aten.cat.default([%x, %y], 1)");
    one("%x: f32[1]", "aten.cat.default([%x, %x, %x, %x, %x, %x, %x, %x, %x, %x], 0)");
    one("%x: f32[6, 3], %y: f32[2, 3]", "aten.slice_scatter.default(%x, %y, 0, 1, 3)");
    one("%x: f32[6, 3], %y: f32[2, 3]", "aten.slice_scatter.default(%x, %y, 0, 1, 5, 2)");
    one("%x: f32[6, 3], %y: f32[6]", "aten.select_scatter.default(%x, %y, 1, -1)");
    one("%x: f32[6, 3], %y: f32[2, 3]", "aten.as_strided_scatter.default(%x, %y, [2, 3], [6, 1], 3)");
    check_nests(
        "graph @divides(%x: i64[3], %y: i64[3]) {
           %a = aten.add.Tensor(%x, 10)
           %b = aten.div.Tensor_mode(%y, %a, rounding_mode=\"floor\")
           %c = aten.cat.default([%b, %x], 0)
           return %c
         }",
    );
}

#[test]
fn indexing() {
    one("%x: f32[5, 3], %idx5: i64[2, 3]", "aten.gather.default(%x, 0, %idx5)");
    one("%x: f32[5, 3], %idx3: i64[4, 2]", "aten.gather.default(%x, 1, %idx3)");
    one("%x: f32[5, 3], %idx5: i64[4]", "aten.index_select.default(%x, 0, %idx5)");
    one("%x: f32[5, 3], %idx3: i32[4]", "aten.index_select.default(%x, 1, %idx3)");
    one("%x: f32[5, 3], %idx5: i64[2, 4]", "aten.embedding.default(%x, %idx5)");
    one("%x: f32[5, 3, 4], %neg5: i64[2]", "aten.index.Tensor(%x, [%neg5])");
    one("%x: f32[5, 3, 4], %neg3: i64[2]", "aten.index.Tensor(%x, [none, %neg3])");
    one("%x: f32[5, 3, 4], %neg5: i64[2, 1], %neg3: i64[2]", "aten.index.Tensor(%x, [%neg5, %neg3])");
    one("%x: f32[5, 3, 4], %neg5: i64[2, 1], %neg4: i64[2]", "aten.index.Tensor(%x, [%neg5, none, %neg4])");
    one(
        "%x: f32[5, 3, 4], %neg3: i64[2, 1], %neg4: i64[2]",
        "aten._unsafe_index.Tensor(%x, [none, %neg3, %neg4])",
    );
    one(
        "%x: f32[5, 3], %m: b8[2, 1], %neg5: i64[2, 1], %neg3: i64[2]",
        "aten._unsafe_masked_index.default(%x, %m, [%neg5, %neg3], 0.5)",
    );
    check_nests(
        "graph @half_table(%w: f32[5, 3], %idx5: i64[4]) {
           %h = prims.convert_element_type.default(%w, bf16)
           %e = aten.embedding.default(%h, %idx5)
           return %e
         }",
    );
}

#[test]
fn scattering() {
    one("%x: f32[5, 3], %idx5: i64[1, 3], %y: f32[1, 3]", "aten.scatter.src(%x, 0, %idx5, %y)");
    one("%x: f32[5, 3], %idx3: i64[5, 1]", "aten.scatter.value(%x, 1, %idx3, -1.0)");
    one("%x: f32[5, 3], %idx5: i64[4, 3], %y: f32[6, 3]", "aten.scatter_add.default(%x, 0, %idx5, %y)");
    one("%x: f32[5], %idx5: i64[9], %y: f32[9]", "aten.scatter_reduce.two(%x, 0, %idx5, %y, \"amax\")");
    one("%x: f32[5, 3], %neg5: i64[4], %y: f32[4, 3]", "aten.index_put.default(%x, [%neg5], %y, true)");
    one("%x: f32[5, 3], %m: b8[5, 3]", "aten.masked_fill.Scalar(%x, %m, 2.0)");
    one(
        "%x: f32[5, 3], %m: b8[4, 1], %neg5: i64[4], %y: f32[4, 3]",
        "aten._unsafe_masked_index_put_accumulate.default(%x, %m, [%neg5], %y)",
    );
    one("%x: f32[5, 3], %idx5: i64[4], %y: f32[4, 3]", "aten.index_add.default(%x, 0, %idx5, %y, alpha=2)");
    one(
        "%g: f32[2, 4, 3], %idx5: i64[2, 4]",
        "aten.embedding_dense_backward.default(%g, %idx5, 5, 2, false)",
    );
    let program = check_nests(
        "graph @one_hot(%idx7: i64[4, 1]) {
           %z = aten.full.default([4, 7], 0.0)
           %r = aten.scatter.value(%z, 1, %idx7, -1.0)
           return %r
         }",
    );
    assert_eq!(program.steps.len(), 1, "a comparison instead of a scatter\n{program}");
}

#[test]
fn normalisations() {
    for dtype in ["f32", "bf16"] {
        let x = format!("%x: {dtype}[3, 4, 6]");
        for dim in ["-1", "0", "1"] {
            one(&x, &format!("aten._softmax.default(%x, {dim}, false)"));
            one(&x, &format!("aten._log_softmax.default(%x, {dim}, false)"));
        }
    }
    one("%g: f32[3, 4], %y: f32[3, 4]", "aten._softmax_backward_data.default(%g, %y, 1, f32)");
    one("%g: f32[3, 4], %y: f32[3, 4]", "aten._log_softmax_backward_data.default(%g, %y, 1, f32)");
    let norm = |call: &str, inputs: &str, results: &str| {
        check_nests(&format!("graph @norm({inputs}) {{\n {results} = {call}\n return {results}\n}}"));
    };
    norm(
        "aten.native_layer_norm.default(%x, [6], %w, %b, 1e-5)",
        "%x: f32[3, 4, 6], %w: f32[6], %b: f32[6]",
        "%y, %m, %r",
    );
    norm("aten.native_layer_norm.default(%x, [4, 6], none, none, 1e-5)", "%x: f32[3, 4, 6]", "%y, %m, %r");
    norm(
        "aten.native_group_norm.default(%x, %w, %b, 2, 6, 4, 3, 1e-5)",
        "%x: f32[2, 6, 2, 2], %w: f32[6], %b: f32[6]",
        "%y, %m, %r",
    );
    norm(
        "aten._native_batch_norm_legit_no_training.default(%x, %w, %b, %m, %pos, 0.1, 1e-5)",
        "%x: f32[2, 3, 4, 4], %w: f32[3], %b: f32[3], %m: f32[3], %pos: f32[3]",
        "%y, %r, %s",
    );
    norm(
        "aten._native_batch_norm_legit_functional.default(%x, %w, %b, %m, %pos, true, 0.1, 1e-5)",
        "%x: f32[2, 3, 4, 4], %w: f32[3], %b: f32[3], %m: f32[3], %pos: f32[3]",
        "%y, %r, %s, %t, %u",
    );
}

#[test]
fn gradients_of_activations() {
    for op in ["sigmoid", "tanh", "gelu", "silu"] {
        one("%g: f32[9], %x: f32[9]", &format!("aten.{op}_backward.default(%g, %x)"));
    }
    one("%g: f32[9], %x: f32[9]", "aten.threshold_backward.default(%g, %x, 0)");
    one("%g: f32[9], %x: f32[9]", "aten.leaky_relu_backward.default(%g, %x, 0.1, false)");
    one("%g: f32[9], %x: f32[9]", "aten.hardtanh_backward.default(%g, %x, -1.0, 1.0)");
    one("%g: f32[9], %x: f32[9]", "aten.gelu_backward.default(%g, %x, approximate=\"tanh\")");
}

#[test]
fn pooling() {
    for x in ["%x: f32[2, 3, 8, 8]", "%x: f32[2, 3, 8, 8] strides [192, 1, 24, 3]", "%x: bf16[3, 7, 8]"] {
        for args in [
            "[2, 2], [2, 2]",
            "[3, 3], [2, 2], [1, 1]",
            "[3, 3], [1, 1], [1, 1], [2, 2]",
            "[3, 2], [2, 3], [0, 1], [1, 1], true",
        ] {
            two(x, &format!("aten.max_pool2d_with_indices.default(%x, {args})"));
            two(x, &format!("prims._low_memory_max_pool_with_offsets.default(%x, {})", full_arguments(args)));
        }
        for args in [
            "[2, 2], [2, 2]",
            "[3, 3], [2, 2], [1, 1]",
            "[3, 3], [2, 2], [1, 1], true, false",
            "[6, 6], [1, 1]",
            "[2, 2], [3, 3]",
        ] {
            one(x, &format!("aten.avg_pool2d.default(%x, {args})"));
        }
    }
    check_nests(
        "graph @max_training(%x: f32[2, 3, 8, 8], %g: f32[2, 3, 4, 4]) {
           %y, %o = prims._low_memory_max_pool_with_offsets.default(%x, [3, 3], [2, 2], [1, 1], [1, 1], false)
           %i = prims._low_memory_max_pool_offsets_to_indices.default(%o, [3, 3], [8, 8], [2, 2], [1, 1], [1, 1])
           %r = aten.max_pool2d_with_indices_backward.default(%g, %x, [3, 3], [2, 2], [1, 1], [1, 1], false, %i)
           return %y, %i, %r
         }",
    );
    one(
        "%g: f32[2, 3, 4, 4], %x: f32[2, 3, 8, 8]",
        "aten.avg_pool2d_backward.default(%g, %x, [2, 2], [2, 2], [0, 0], false, true, none)",
    );
    one(
        "%g: f32[2, 3, 4, 4], %x: f32[2, 3, 8, 8]",
        "aten.avg_pool2d_backward.default(%g, %x, [3, 3], [2, 2], [1, 1], false, false, none)",
    );
    one("%x: f32[2, 3, 6, 4]", "aten._adaptive_avg_pool2d.default(%x, [2, 2])");
    one("%x: f32[2, 3, 1, 1]", "aten._adaptive_avg_pool2d.default(%x, [6, 6])");
    one("%g: f32[2, 3, 2, 2], %x: f32[2, 3, 4, 6]", "aten._adaptive_avg_pool2d_backward.default(%g, %x)");
    one("%x: f32[2, 3, 2, 2]", "aten.upsample_nearest2d.default(%x, [4, 6])");
}

/// All five arguments of a maximum pooling.
fn full_arguments(args: &str) -> String {
    let given = args.matches('[').count();
    let rest = ["", "", ", [0, 0], [1, 1], false", ", [1, 1], false", ", false"];
    if args.ends_with("true") { args.to_owned() } else { format!("{args}{}", rest[given]) }
}

#[test]
fn lists_of_tensors() {
    two("%x: f32[3], %y: f32[2, 2]", "aten._foreach_add.Scalar([%x, %y], 1)");
    two("%x: f32[3], %y: f32[2, 2]", "aten._foreach_mul.List([%x, %y], [%x, %y])");
    two("%x: f32[3], %y: f32[2, 2]", "aten._foreach_addcmul.Scalar([%x, %y], [%x, %y], [%x, %y], 0.5)");
    two("%x: f32[3], %y: f32[2, 2]", "aten._foreach_pow.ScalarAndTensor(0.9, [%x, %y])");
    two("%x: f32[3], %y: f32[2, 2]", "aten._foreach_norm.Scalar([%x, %y])");
    two(
        "%x: f32[3], %y: f32[2, 2]",
        "aten._foreach_lerp.Scalar([%x, %y], [%y, %x], 0.1)".replace("[%y, %x]", "[%x, %y]").as_str(),
    );
}

#[test]
fn symbolic_sizes() {
    check_nests(
        "size n = 5
         graph @rows(%x: f32[n, 4]) {
           %s = aten.sum.dim_IntList(%x, [1], true)
           %y = aten.div.Tensor(%x, %s)
           %m = aten.mean.dim(%y, [0])
           %v = aten.view.default(%y, [n*4])
           %w = aten.view.default(%v, [n, 2, 2])
           %p = aten.permute.default(%w, [2, 0, 1])
           %c = aten.clone.default(%p, memory_format=\"contiguous_format\")
           return %m, %c, n
         }",
    );
    check_nests(
        "size n = 5
         graph @joined(%x: f32[n, 4], %y: f32[n, 4]) {
           %c = aten.cat.default([%x, %y], 0)
           %s = aten.slice.Tensor(%c, 0, n, 9223372036854775807)
           %a = aten.arange.default(n)
           %b = aten.unsqueeze.default(%a, 1)
           %t = aten.add.Tensor(%s, %b)
           return %t, %c
         }",
    );
}

#[test]
fn writes_to_inputs() {
    check_nests(
        "graph @increment(%x: f32[4, 3]) {
           %a = aten.add.Tensor(%x, 1.0)
           %b = aten.copy_.default(%x, %a)
           return none
         }",
    );
    // What was read before the write keeps its value.
    check_nests(
        "graph @before_and_after(%x: f32[4, 3]) {
           %before = aten.mul.Tensor(%x, 2.0)
           %view = aten.permute.default(%x, [1, 0])
           %a = aten.add.Tensor(%x, 1.0)
           %b = aten.copy_.default(%x, %a)
           %after = aten.mul.Tensor(%x, 2.0)
           %also = aten.sub.Tensor(%b, %a)
           return %before, %view, %after, %also
         }",
    );
    check_nests(
        "graph @shift(%x: f32[6]) {
           %head = aten.slice.Tensor(%x, 0, 0, 5)
           %y = aten.slice_scatter.default(%x, %head, 0, 1, 6)
           %b = aten.copy_.default(%x, %y)
           return none
         }",
    );
    check_nests(
        "graph @swap(%x: f32[6], %y: f32[6]) {
           %a = aten.mul.Tensor(%x, 1.0)
           %b = aten.copy_.default(%x, %y)
           %c = aten.copy_.default(%y, %a)
           return %x, %y
         }",
    );
    check_nests(
        "graph @flip(%x: f32[4, 4]) {
           %t = aten.permute.default(%x, [1, 0])
           %b = aten.copy_.default(%x, %t)
           return %b
         }",
    );
}

#[test]
fn extern_calls_get_and_give_tensors() {
    check(
        "graph @mlp(%x: f32[4, 3], %w: f32[5, 3], %b: f32[5]) {
           %t = aten.permute.default(%w, [1, 0])
           %y = aten.mm.default(%x, %t)
           %z = aten.add.Tensor(%y, %b)
           %r = aten.relu.default(%z)
           %u = aten.permute.default(%r, [1, 0])
           %v = aten.mm.default(%u, %x)
           %s = aten.sum.dim_IntList(%r, [0])
           return %v, %s, %r
         }",
    );
    check(
        "graph @scan(%x: f32[4, 3]) {\n %a = aten.exp.default(%x)\n %y = aten.cumsum.default(%a, 1)\n return %y\n}",
    );
}

#[test]
fn outputs_keep_strides_and_aliases() {
    check_nests(
        "graph @outputs(%x: f32[4, 3]) {
           %t = aten.permute.default(%x, [1, 0])
           %c = aten.clone.default(%t, memory_format=\"contiguous_format\")
           %d = aten.clone.default(%x)
           %e = aten.expand.default(%d, [2, 4, 3])
           %f = aten.full.default([2], 3.0)
           return %x, %t, %c, %d, %e, %x, %f
         }",
    );
}

#[test]
fn chains_that_share_both_operands_stay_small() {
    let mut text = String::from("graph @blowup(%x: f32[8], %y: f32[8]) {\n");
    let (mut a, mut b) = ("%x".to_owned(), "%y".to_owned());
    for k in 0..24 {
        text += &format!("  %p{k} = aten.add.Tensor({a}, {b})\n  %q{k} = aten.sub.Tensor({a}, {b})\n");
        text += &format!("  %r{k} = aten.mul.Tensor(%p{k}, 0.5)\n  %s{k} = aten.roll.default(%q{k}, [1])\n");
        (a, b) = (format!("%r{k}"), format!("%s{k}"));
    }
    text += &format!("  %z = aten.add.Tensor({a}, {b})\n  return %z\n}}");
    let program = check_nests(&text);
    for step in &program.steps {
        let loafc_ir::nest::Step::Nest(nest) = step else { continue };
        assert!(nest.body.ops.len() < 400, "{} operations", nest.body.ops.len());
    }
}

#[test]
fn steps_to_the_end_of_everything_take_one_element() {
    one("%x: f32[4, 6]", "aten.slice.Tensor(%x, 0, 1, 4, 9223372036854775807)");
    one("%x: f32[4, 6], %s: f32[1, 6]", "aten.slice_scatter.default(%x, %s, 0, 1, 4, 9223372036854775807)");
}

#[test]
fn limits_that_an_integer_type_cannot_hold_are_none() {
    for dtype in ["u8", "i8", "i16", "i32"] {
        let x = format!("%x: {dtype}[12]");
        for limits in ["clamp.default(%x, -8589934597, 3)", "clamp.default(%x, 2, 8589934597)"] {
            one(&x, &format!("aten.{limits}"));
        }
        one(&x, "aten.clamp_min.default(%x, -8589934597)");
        one(&x, "aten.clamp_max.default(%x, 8589934597)");
    }
    one("%x: u8[12]", "aten.clamp.default(%x, -3, 50)");
}

#[test]
fn a_wide_number_from_memory_scales_a_narrow_tensor_unrounded() {
    for narrow in ["f16", "bf16"] {
        for wide in ["f32", "f64", "i64"] {
            for call in
                ["mul.Tensor(%h, %s)", "mul.Tensor(%s, %h)", "div.Tensor(%h, %t)", "add.Tensor(%h, %s)"]
            {
                one(
                    &format!("%h: {narrow}[64], %s: {wide}[], %pos: f32[]"),
                    &format!("aten.{}", call.replace("%t", "%pos")),
                );
            }
        }
    }
}

/// 10⁵ is no f16, and a thousandth of it is.
#[test]
fn a_number_beyond_the_narrow_type_scales_without_overflow() {
    let tensor = |dtype, shape: &[usize], value: f64| {
        GraphInput::Tensor(HostTensor {
            dtype,
            shape: shape.to_vec(),
            data: vec![Scalar::Float(value); shape.iter().product()],
        })
    };
    for call in ["mul.Tensor(%h, %s)", "mul.Tensor(%s, %h)", "div.Tensor(%h, %s)", "div.Tensor(%s, %h)"] {
        let graph = parsed(&format!("graph @g(%h: f16[3], %s: f32[]) {{ %y = aten.{call} return %y }}"));
        let inputs = [tensor(DType::F16, &[3], 0.0009765625), tensor(DType::F32, &[], 1e5)];
        check_with(&graph, &lowered(&graph), &inputs);
    }
}
