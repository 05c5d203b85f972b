//! What loop nests look like: one small program for each decision.

use expect_test::{Expect, expect};

use crate::support::{lowered, parsed};

fn check(program: &str, expected: Expect) {
    expected.assert_eq(&lowered(&parsed(program)).to_string());
}

#[test]
fn pointwise_producers_are_computed_in_the_consumer() {
    check(
        "graph @g(%x: f32[4, 8], %y: f32[8]) {
           %a = aten.add.Tensor(%x, %y)
           %b = aten.mul.Tensor(%a, 0.5)
           %c = aten.relu.default(%b)
           return %c
         }",
        expect![[r#"
            program @g {
              b0 x: f32[32] input 0
              b1 y: f32[8] input 1
              b2 c: f32[32]
              nest relu_mul_add(i0: 4, i1: 8) {
                v0 = load b0[8*i0 + i1]
                v1 = load b1[i1]
                v2 = add v0, v1
                v3 = 0.5: f32
                v4 = mul v2, v3
                v5 = 0.0: f32
                v6 = max v4, v5
                store b2[8*i0 + i1] = v6
              }
              return b2[4, 8]
            }
        "#]],
    );
}

#[test]
fn a_reduction_takes_its_producers_in_and_finishes_its_result() {
    check(
        "graph @g(%x: bf16[4, 8]) {
           %a = aten.exp.default(%x)
           %b = aten.mean.dim(%a, [1])
           return %b
         }",
        expect![[r#"
            program @g {
              b0 x: bf16[32] input 0
              b1 b: bf16[4]
              nest mean_exp(i0: 4, reduce i1: 8) {
                v0 = load b0[8*i0 + i1]
                v1 = exp v0
                v2 = cast v1: f32
                v3 = reduce sum v2
                v4 = 8.0: f32
                v5 = div v3, v4
                v6 = cast v5: bf16
                store b1[i0] = v6
              }
              return b1[4]
            }
        "#]],
    );
}

#[test]
fn variance_and_mean_come_from_one_nest() {
    check(
        "graph @g(%x: f32[4, 8]) {
           %v, %m = aten.var_mean.correction(%x, [1], correction=0, keepdim=true)
           return %v, %m
         }",
        expect![[r#"
            program @g {
              b0 x: f32[32] input 0
              b1 v: f32[4]
              b2 m: f32[4]
              nest var_mean(i0: 4, reduce i1: 8) {
                v0 = load b0[8*i0 + i1]
                v1 = reduce welford v0
                v2 = second v1
                v3 = 8.0: f32
                v4 = div v2, v3
                store b1[i0] = v4
                store b2[i0] = v1
              }
              return b1[4, 1], b2[4, 1]
            }
        "#]],
    );
}

#[test]
fn a_dear_value_with_two_users_is_stored_and_a_cheap_one_is_not() {
    check(
        "graph @g(%x: f32[64]) {
           %cheap = aten.add.Tensor(%x, 1.0)
           %dear = aten.exp.default(%cheap)
           %a = aten.mul.Tensor(%dear, 2.0)
           %b = aten.sub.Tensor(%dear, %cheap)
           return %a, %b
         }",
        expect![[r#"
            program @g {
              b0 x: f32[64] input 0
              b1 dear: f32[64]
              b2 a: f32[64]
              b3 b: f32[64]
              nest exp_add(i0: 64) {
                v0 = load b0[i0]
                v1 = 1.0: f32
                v2 = add v0, v1
                v3 = exp v2
                store b1[i0] = v3
              }
              nest mul(i0: 64) {
                v0 = load b1[i0]
                v1 = 2.0: f32
                v2 = mul v0, v1
                store b2[i0] = v2
              }
              nest sub_add(i0: 64) {
                v0 = load b1[i0]
                v1 = load b0[i0]
                v2 = 1.0: f32
                v3 = add v1, v2
                v4 = sub v0, v3
                store b3[i0] = v4
              }
              return b2[64], b3[64]
            }
        "#]],
    );
}

#[test]
fn a_dear_value_is_stored_before_it_is_broadcast() {
    check(
        "graph @g(%x: f32[64], %y: f32[8, 64]) {
           %dear = aten.tanh.default(%x)
           %a = aten.mul.Tensor(%y, %dear)
           return %a
         }",
        expect![[r#"
            program @g {
              b0 x: f32[64] input 0
              b1 y: f32[512] input 1
              b2 dear: f32[64]
              b3 a: f32[512]
              nest tanh(i0: 64) {
                v0 = load b0[i0]
                v1 = tanh v0
                store b2[i0] = v1
              }
              nest mul(i0: 8, i1: 64) {
                v0 = load b1[64*i0 + i1]
                v1 = load b2[i1]
                v2 = mul v0, v1
                store b3[64*i0 + i1] = v2
              }
              return b3[8, 64]
            }
        "#]],
    );
}

#[test]
fn views_of_memory_are_strides_and_views_of_values_are_digits() {
    check(
        "graph @g(%x: f32[16, 8]) {
           %t = aten.permute.default(%x, [1, 0])
           %a = aten.add.Tensor(%t, 1.0)
           %v = aten.reshape.default(%a, [4, 32])
           %s = aten.slice.Tensor(%v, 1, 8, 24)
           return %s
         }",
        expect![[r#"
            program @g {
              b0 x: f32[128] input 0
              b1 s: f32[112]
              nest slice_add(i0: 4, i1: 16) {
                v0 = load b0[2*i0 + ((i1 + 8) // 16) + 8*((i1 + 8) % 16)]
                v1 = 1.0: f32
                v2 = add v0, v1
                store b1[32*i0 + i1] = v2
              }
              return b1[4, 16] strides [32, 1]
            }
        "#]],
    );
}

#[test]
fn arguments_of_calls_are_stored_once_for_all_their_views() {
    check(
        "graph @g(%x: f32[2, 4, 8], %w: f32[8, 3]) {
           %a = aten.relu.default(%x)
           %v = aten.view.default(%a, [8, 8])
           %y = aten.mm.default(%v, %w)
           %z = aten.add.Tensor(%a, 1.0)
           return %y, %z
         }",
        expect![[r#"
            program @g {
              b0 x: f32[64] input 0
              b1 w: f32[24] input 1
              b2 a: f32[64]
              b3 y: f32[24]
              b4 z: f32[64]
              nest relu(i0: 64) {
                v0 = load b0[i0]
                v1 = 0.0: f32
                v2 = max v0, v1
                store b2[i0] = v2
              }
              b3[8, 3] = extern aten.mm.default(b2[8, 8], b1[8, 3])
              nest add(i0: 64) {
                v0 = load b2[i0]
                v1 = 1.0: f32
                v2 = add v0, v1
                store b4[i0] = v2
              }
              return b3[8, 3], b4[2, 4, 8]
            }
        "#]],
    );
}

#[test]
fn a_concatenation_is_a_choice_by_range() {
    check(
        "graph @g(%x: f32[4, 3], %y: f32[4, 5]) {
           %n = aten.neg.default(%x)
           %c = aten.cat.default([%n, %y], 1)
           return %c
         }",
        expect![[r#"
            program @g {
              b0 x: f32[12] input 0
              b1 y: f32[20] input 1
              b2 c: f32[32]
              nest neg_cat(i0: 4, i1: 8) {
                v0 = in_range i1 in 0..3
                v1 = load b0[3*i0 + i1] if v0
                v2 = neg v1
                v3 = in_range i1 in 3..8
                v4 = load b1[5*i0 + i1 + -3] if v3
                v5 = where v0, v2, v4
                store b2[8*i0 + i1] = v5
              }
              return b2[4, 8]
            }
        "#]],
    );
}

#[test]
fn a_causal_mask_is_a_range_test_on_positions() {
    check(
        "graph @g(%x: f32[4, 4]) {
           %i = aten.arange.default(4)
           %r = aten.unsqueeze.default(%i, 1)
           %m = aten.gt.Tensor(%i, %r)
           %y = aten.masked_fill.Scalar(%x, %m, -inf)
           return %y
         }",
        expect![[r#"
            program @g {
              b0 x: f32[16] input 0
              b1 y: f32[16]
              nest masked_fill_gt(i0: 4, i1: 4) {
                v0 = in_range -1*i0 + i1 in 1..4
                v1 = -inf: f32
                v2 = load b0[4*i0 + i1]
                v3 = where v0, v1, v2
                store b1[4*i0 + i1] = v3
              }
              return b1[4, 4]
            }
        "#]],
    );
}

#[test]
fn an_embedding_checks_its_positions() {
    check(
        "graph @g(%w: f32[100, 16], %i: i64[7]) {
           %e = aten.embedding.default(%w, %i)
           return %e
         }",
        expect![[r#"
            program @g {
              b0 w: f32[1600] input 0
              b1 i: i64[7] input 1
              b2 e: f32[112]
              nest embedding(i0: 7, i1: 16) {
                v0 = load b1[i0]
                v1 = 0: i64
                v2 = ge v0, v1
                v3 = 100: i64
                v4 = lt v0, v3
                v5 = and v2, v4
                check v5 index "aten.embedding.default: index out of range for a dimension of size 100"
                v7 = load b0[i1 + 16*v0]
                store b2[16*i0 + i1] = v7
              }
              return b2[7, 16]
            }
        "#]],
    );
}

#[test]
fn an_accumulating_index_put_copies_its_base_first() {
    check(
        "graph @g(%x: f32[100, 16], %i: i64[7], %v: f32[7, 16]) {
           %e = aten.index_put.default(%x, [%i], %v, true)
           return %e
         }",
        expect![[r#"
            program @g {
              b0 x: f32[1600] input 0
              b1 i: i64[7] input 1
              b2 v: f32[112] input 2
              b3 e: f32[1600]
              nest index_put(i0: 1600) {
                v0 = load b0[i0]
                store b3[i0] = v0
              }
              nest index_put(i0: 7, i1: 16) {
                v0 = load b2[16*i0 + i1]
                v1 = load b1[i0]
                v2 = 0: i64
                v3 = lt v1, v2
                v4 = 100: i64
                v5 = add v1, v4
                v6 = where v3, v5, v1
                v7 = ge v6, v2
                v8 = lt v6, v4
                v9 = and v7, v8
                check v9 index "aten.index_put.default: index out of range for a dimension of size 100"
                store add b3[i1 + 16*v6] = v0
              }
              return b3[100, 16]
            }
        "#]],
    );
}

#[test]
fn a_write_to_an_input_comes_after_what_reads_its_old_contents() {
    check(
        "graph @g(%x: f32[8]) {
           %a = aten.add.Tensor(%x, 1.0)
           %b = aten.mul.Tensor(%x, 2.0)
           %c = aten.copy_.default(%x, %a)
           return %b
         }",
        expect![[r#"
            program @g {
              b0 x: f32[8] input 0
              b1 b: f32[8]
              nest mul(i0: 8) {
                v0 = load b0[i0]
                v1 = 2.0: f32
                v2 = mul v0, v1
                store b1[i0] = v2
              }
              nest add(i0: 8) {
                v0 = load b0[i0]
                v1 = 1.0: f32
                v2 = add v0, v1
                store b0[i0] = v2
              }
              return b1[8]
            }
        "#]],
    );
}

#[test]
fn a_write_that_reads_other_places_goes_through_memory_of_its_own() {
    check(
        "graph @g(%x: f32[8]) {
           %h = aten.slice.Tensor(%x, 0, 0, 7)
           %s = aten.slice_scatter.default(%x, %h, 0, 1, 8)
           %c = aten.copy_.default(%x, %s)
           return none
         }",
        expect![[r#"
            program @g {
              b0 x: f32[8] input 0
              b1 c: f32[8]
              nest copy_slice_scatter(i0: 8) {
                v0 = in_range i0 in 1..8
                v1 = load b0[i0 + -1] if v0
                v2 = load b0[i0]
                v3 = where v0, v1, v2
                store b1[i0] = v3
              }
              nest copy(i0: 8) {
                v0 = load b1[i0]
                store b0[i0] = v0
              }
              return none
            }
        "#]],
    );
}

#[test]
fn symbolic_sizes_need_no_other_path() {
    check(
        "size n = 32
         graph @g(%x: f32[n, 4], %y: f32[4]) {
           %a = aten.mul.Tensor(%x, %y)
           %v = aten.view.default(%a, [n*4])
           %m = aten.mean.dim(%v, [0])
           return %m
         }",
        expect![[r#"
            program @g {
              b0 x: f32[4*n] input 0
              b1 y: f32[4] input 1
              b2 m: f32[1]
              nest mean_mul(reduce i0: n, reduce i1: 4) {
                v0 = load b0[4*i0 + i1]
                v1 = load b1[i1]
                v2 = mul v0, v1
                v3 = reduce sum v2
                v4 = size 4*n
                v5 = cast v4: f32
                v6 = div v3, v5
                store b2[0] = v6
              }
              return b2[]
            }
        "#]],
    );
}
