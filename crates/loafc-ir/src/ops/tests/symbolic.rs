//! Types of calls on tensors whose extents are size symbols.

use expect_test::{Expect, expect};

use super::*;

/// Checks the type of the first result of one call in a program with symbols `s0` and `s1`.
fn check(inputs: &str, call: &str, expected: Expect) {
    let text = format!("size s0\nsize s1\ngraph @g({inputs}) {{\n  {call}\n  return\n}}");
    let graph = text::parse(&text, "g").unwrap_or_else(|e| panic!("{e}"));
    let node = &graph.nodes[0];
    let value_type = |id: TensorId| graph.value(id).ty.clone();
    let types = infer(&node.op, &node.args, &node.kwargs, &value_type).unwrap();
    let ty = types[0].clone().unwrap();
    let own = format!("{} strides {}", call::shape_text(&ty.shape), call::shape_text(&ty.strides));
    expected.assert_eq(&own);
}

#[test]
fn symbols_broadcast_against_themselves_and_one() {
    check("%x: f32[s0, 4], %y: f32[s0, 1]", "aten.add.Tensor(%x, %y)", expect!["[s0, 4] strides [4, 1]"]);
}

#[test]
fn elementwise_results_keep_the_memory_order_of_symbolic_strides() {
    check("%x: f32[s0, s1] strides [1, s0]", "aten.exp.default(%x)", expect!["[s0, s1] strides [1, s0]"]);
    check("%x: f32[s0, s1] strides [1, s0]", "aten.mul.Tensor(%x, 2)", expect!["[s0, s1] strides [1, s0]"]);
}

#[test]
fn the_open_extent_of_a_view_is_divided_exactly() {
    check("%x: f32[s0, 4, s1]", "aten.view.default(%x, [-1, s1])", expect!["[4*s0, s1] strides [s1, 1]"]);
    check("%x: f32[s0, 12]", "aten.view.default(%x, [s0, 3, -1])", expect!["[s0, 3, 4] strides [12, 4, 1]"]);
    check(
        "%x: f32[s0*4]",
        "aten.view.default(%x, [8, -1])",
        expect!["[8, (4*s0 // 8)] strides [(4*s0 // 8), 1]"],
    );
}

#[test]
fn symbolic_bounds_of_slices_are_taken_to_lie_inside() {
    check(
        "%x: f32[s0, 4]",
        "aten.slice.Tensor(%x, 0, 1, 9223372036854775807)",
        expect!["[(s0 - 1), 4] strides [4, 1]"],
    );
    check("%x: f32[s0, 4]", "aten.slice.Tensor(%x, 0, 0, -1)", expect!["[(s0 - 1), 4] strides [4, 1]"]);
    check("%x: f32[64, 4]", "aten.slice.Tensor(%x, 0, 0, s0)", expect!["[s0, 4] strides [4, 1]"]);
    check(
        "%x: f32[s0*2]",
        "aten.slice.Tensor(%x, 0, 0, 9223372036854775807, 2)",
        expect!["[((2*s0 + 1) // 2)] strides [2]"],
    );
}

#[test]
fn concatenation_adds_symbols() {
    check(
        "%x: f32[s0, 4], %y: f32[s1, 4]",
        "aten.cat.default([%x, %y])",
        expect!["[(s0 + s1), 4] strides [4, 1]"],
    );
}

#[test]
fn products_and_ranges_take_symbols() {
    check("%x: f32[s0, 8], %y: f32[8, s1]", "aten.mm.default(%x, %y)", expect!["[s0, s1] strides [s1, 1]"]);
    check("%x: f32[s0]", "aten.arange.default(s0)", expect!["[s0] strides [1]"]);
    check("%x: f32[s0*2]", "aten.split.Tensor(%x, s0)", expect!["[s0] strides [1]"]);
}

#[test]
fn sizes_that_may_be_equal_are_told_from_those_that_are_not() {
    let (a, b) = (Size::symbol("s0"), Size::symbol("s1"));
    assert!(shape::provably_differ(a, a + Size::ONE));
    assert!(shape::provably_differ(a, b));
    assert!(!shape::provably_differ(a, a));
    assert!(!shape::provably_differ(a, b.floor_div(Size::from(2))));
}

#[test]
fn attention_takes_keys_and_values_of_lengths_that_were_never_compared() {
    check(
        "%q: f32[2, 4, 1, 16], %k: f32[2, 2, s0, 16], %v: f32[2, 2, s1, 16], %m: f32[2, 1, 1, s1]",
        "aten._scaled_dot_product_flash_attention_for_cpu.default(%q, %k, %v, 0.0, false, attn_mask=%m)",
        expect!["[2, 4, 1, 16] strides [64, 16, 16, 1]"],
    );
}
