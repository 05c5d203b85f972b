//! Machine code of programs whose fusion reorders loops, re-indexes, or reduces in several orders at once.

mod support;

use support::check;

#[test]
fn a_sum_of_a_realized_sum() {
    check(
        "graph @f(%x: f32[64, 8, 64]) {
           %s = aten.sum.dim_IntList(%x, [2], false)
           %y = aten.add.Tensor(%s, 1)
           %r = loafc.realize.default(%y)
           %z = aten.sum.dim_IntList(%r, [0], false)
           return %r, %z
         }",
        &[],
    );
}

#[test]
fn a_row_sum_beside_a_transposed_copy() {
    for (m, n) in [(64, 48), (100, 33), (17, 400)] {
        check(
            &format!(
                "graph @f(%x: f32[{m}, {n}]) {{
                   %s = aten.sum.dim_IntList(%x, [1], false)
                   %t = aten.permute.default(%x, [1, 0])
                   %c = aten.clone.default(%t)
                   return %s, %c
                 }}"
            ),
            &[],
        );
    }
}

#[test]
fn a_sum_with_a_transposed_realized_operand() {
    check(
        "graph @f(%x: f32[40, 56], %y: f32[56, 40]) {
           %a = aten.mul.Tensor(%x, 2)
           %b = loafc.realize.default(%a)
           %t = aten.permute.default(%y, [1, 0])
           %c = aten.mul.Tensor(%t, 3)
           %d = loafc.realize.default(%c)
           %z = aten.add.Tensor(%b, %d)
           return %z
         }",
        &[],
    );
}

#[test]
fn a_sum_over_outer_dimensions_of_a_realized_value() {
    check(
        "graph @f(%x: f32[2, 4, 512]) {
           %a = aten.add.Tensor(%x, 1)
           %r = loafc.realize.default(%a)
           %s = aten.sum.dim_IntList(%r, [0, 1], false)
           return %s
         }",
        &[],
    );
}

#[test]
fn eight_bit_values_in_two_layouts() {
    for dtype in ["i8", "f8e4m3fn"] {
        check(
            &format!(
                "graph @f(%x: f32[70, 45]) {{
                   %s = aten.mul.Tensor(%x, 3.0)
                   %c = aten.clamp.default(%s, -5.0, 5.0)
                   %q = prims.convert_element_type.default(%c, {dtype})
                   %t = aten.permute.default(%q, [1, 0])
                   %k = aten.clone.default(%t)
                   %b = aten.permute.default(%k, [1, 0])
                   return %q, %b
                 }}"
            ),
            &[],
        );
    }
}

#[test]
fn a_total_sum_beside_two_layouts() {
    check(
        "graph @f(%x: f32[200, 100]) {
           %r = aten.sum.dim_IntList(%x, [1], false)
           %s = aten.sum.default(%r)
           %d = aten.div.Tensor(%x, 10)
           %t = aten.permute.default(%d, [1, 0])
           %k = aten.clone.default(%t)
           %b = aten.permute.default(%k, [1, 0])
           return %s, %d, %b
         }",
        &[],
    );
}

#[test]
fn norms_of_heads_and_blocks() {
    check(
        "graph @f(%x: f32[12, 256], %w: f32[64]) {
           %h = aten.view.default(%x, [48, 64])
           %q = aten.mul.Tensor(%h, %h)
           %m = aten.mean.dim(%q, [1], true)
           %r = aten.rsqrt.default(%m)
           %n = aten.mul.Tensor(%h, %r)
           %s = aten.mul.Tensor(%n, %w)
           %y = aten.view.default(%s, [12, 256])
           %b = aten.view.default(%y, [12, 8, 32])
           %a = aten.abs.default(%b)
           %x1 = aten.amax.default(%a, [2], true)
           %d = aten.div.Tensor(%b, %x1)
           %z = aten.view.default(%d, [12, 256])
           return %z
         }",
        &[],
    );
}

#[test]
fn a_view_of_a_realized_value_in_another_order() {
    check(
        "graph @f(%x: f32[32, 32]) {
           %a = aten.add.Tensor(%x, 1)
           %r = loafc.realize.default(%a)
           %v = aten.view.default(%r, [2, 16, 4, 8])
           %t = aten.permute.default(%v, [0, 2, 1, 3])
           %c = aten.clone.default(%t)
           return %c
         }",
        &[],
    );
}

#[test]
fn rotary_embedding_behind_a_norm() {
    check(
        "graph @f(%x: f32[10, 64], %c: f32[10, 64], %s: f32[10, 64]) {
           %q = aten.mul.Tensor(%x, %x)
           %m = aten.mean.dim(%q, [1], true)
           %r = aten.rsqrt.default(%m)
           %n = aten.mul.Tensor(%x, %r)
           %a = aten.slice.Tensor(%n, 1, 0, 32)
           %b = aten.slice.Tensor(%n, 1, 32, 64)
           %g = aten.neg.default(%b)
           %h = aten.cat.default([%g, %a], 1)
           %u = aten.mul.Tensor(%n, %c)
           %v = aten.mul.Tensor(%h, %s)
           %y = aten.add.Tensor(%u, %v)
           return %y
         }",
        &[],
    );
}

#[test]
fn sums_in_both_orders_of_stored_transposes() {
    for (m, n) in [(50, 300), (300, 50), (64, 64)] {
        check(
            &format!(
                "graph @f(%x: f32[{m}, {n}] strides [1, {m}]) {{
                   %a = aten.sum.dim_IntList(%x, [0], false)
                   %b = aten.sum.dim_IntList(%x, [1], false)
                   %v, %u = aten.var_mean.correction(%x, [0], correction=1, keepdim=false)
                   return %a, %b, %v, %u
                 }}"
            ),
            &[],
        );
    }
}

#[test]
fn both_orders_of_unknown_sizes() {
    for (a, b) in [(1, 1), (40, 70), (130, 9), (2, 5000), (0, 4), (4, 0)] {
        check(
            "size s0 = 200
             size s1 = 100
             graph @f(%x: f32[s0, s1], %y: f32[s1, s0]) {
               %t = aten.permute.default(%y, [1, 0])
               %p = aten.add.Tensor(%x, %t)
               %s = aten.sum.dim_IntList(%p, [1], false)
               %c = aten.sum.dim_IntList(%p, [0], false)
               %k = aten.permute.default(%p, [1, 0])
               %z = aten.clone.default(%k)
               return %s, %c, %z
             }",
            &[("s0", a), ("s1", b)],
        );
    }
}

#[test]
fn interleaved_pairs() {
    for (m, n) in [(70, 32), (3, 5), (300, 1)] {
        check(
            &format!(
                "graph @f(%x: f32[{m}, {n}, 2], %c: f32[{m}, {n}], %k: f32[2]) {{
                   %a = aten.select.int(%x, 2, 0)
                   %b = aten.select.int(%x, 2, 1)
                   %p = aten.mul.Tensor(%a, %c)
                   %q = aten.mul.Tensor(%b, %c)
                   %z = aten.stack.default([%p, %q], 2)
                   %y = aten.add.Tensor(%z, %k)
                   return %y
                 }}"
            ),
            &[],
        );
    }
}
