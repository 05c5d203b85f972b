//! The loop trees of typical kernels, as text. `UPDATE_EXPECT=1` rewrites them.

mod support;

use expect_test::{Expect, expect};
use loafc_codegen::kernel::build_tree;
use loafc_codegen::loop_tree::Limits;

fn check_tree(text: &str, expected: Expect) {
    let program = support::program(text);
    let mut trees = String::new();
    for group in support::groups(&program.schedule) {
        let built = build_tree(group, &program.schedule.program, &Limits::default()).expect("a tree");
        trees.push_str(&built.kernel.to_string());
    }
    expected.assert_eq(&trees);
}

/// The text by which machine code is shared.
fn key_of(text: &str) -> String {
    let program = support::program(text);
    let group = support::groups(&program.schedule)[0];
    build_tree(group, &program.schedule.program, &Limits::default()).expect("a tree").kernel.key().0
}

#[test]
fn code_that_reads_at_computed_positions_is_shared_only_by_buffers_of_one_length() {
    let columns = |rows: u32| {
        key_of(&format!(
            "graph @f(%x: f32[{rows}, 64], %k: i64[64]) {{
               %y = aten.index.Tensor(%x, [none, %k])
               return %y
             }}"
        ))
    };
    assert_eq!(columns(20), columns(20));
    assert_ne!(columns(20), columns(40));
}

/// The kernel's text for a map whose weights depend on the column alone.
fn weighted_by_column(rows: u32, columns: u32) -> String {
    key_of(&format!(
        "graph @f(%x: f32[{rows}, {columns}]) {{
           %i = aten.arange.start_step(0, {columns}, 1, dtype=f32)
           %s = aten.sin.default(%i)
           %y = aten.mul.Tensor(%x, %s)
           return %y
         }}"
    ))
}

fn tables(text: &str) -> usize {
    text.lines().filter(|line| line.contains(" Shared")).count()
}

#[test]
fn a_table_is_filled_only_where_enough_passes_go_over_it() {
    for (rows, columns, expected) in [(1, 512, 0), (8, 512, 0), (300, 512, 1), (300, 4096, 0)] {
        let text = weighted_by_column(rows, columns);
        assert_eq!(tables(&text), expected, "{rows} rows of {columns}:\n{text}");
    }
}

#[test]
fn pointwise_operations_run_over_tiles() {
    check_tree(
        "graph @f(%x: f32[100000], %y: f32[100000]) {
           %a = aten.add.Tensor(%x, %y)
           return %a
         }",
        expect![[r#"
            kernel add
              b0 x: f32[100000] Param(Read)
              b1 y: f32[100000] Param(Read)
              b2 a: f32[100000] Param(Write)
            phase i2 in 25
              i1 = i2
              vector i0 in 4000*i1 .. 4000 + 4000*i1
                v0: f32 = load b0[i0]
                v1: f32 = load b1[i0]
                v2: f32 = Add v0 v1
                v3: f32 = store v2 to b2[i0]
        "#]],
    );
}

#[test]
fn rows_stay_in_scratch_memory_between_stages() {
    check_tree(
        "graph @f(%x: f32[512, 100]) {
           %m = aten.amax.default(%x, [1], true)
           %d = aten.sub.Tensor(%x, %m)
           %e = aten.exp.default(%d)
           %s = aten.sum.dim_IntList(%e, [1], true)
           %y = aten.div.Tensor(%e, %s)
           return %y
         }",
        expect![[r#"
            kernel amax_exp_sub_sum_div
              b0 x: f32[51200] Param(Read)
              b1 m: f32[1] Thread
              b2 e: f32[100] Thread
              b3 s: f32[1] Thread
              b4 y: f32[51200] Param(Write)
            phase i2 in 512
              i0 = i2
              init a0(Max f32)
              vector i1 in 0 .. 100
                v0: f32 = load b0[100*i0 + i1]
                accumulate v0 into a0(Max f32)
              v1: f32 = finish a0(Max f32)
              v2: f32 = store v1 to b1[0]
              v4: f32 = load b1[0]
              init a1(Sum f32)
              vector i1 in 0 .. 100
                v3: f32 = load b0[100*i0 + i1]
                v5: f32 = Sub v3 v4
                v6: f32 = Exp v5
                v7: f32 = store v6 to b2[i1]
                accumulate v6 into a1(Sum f32)
              v8: f32 = finish a1(Sum f32)
              v9: f32 = store v8 to b3[0]
              v11: f32 = load b3[0]
              vector i1 in 0 .. 100
                v10: f32 = load b2[i1]
                v12: f32 = Div v10 v11
                v13: f32 = store v12 to b4[100*i0 + i1]
        "#]],
    );
}

#[test]
fn column_sums_keep_a_state_for_each_column_of_a_tile() {
    check_tree(
        "graph @f(%x: f32[512, 2048]) {
           %s = aten.sum.dim_IntList(%x, [0], false)
           return %s
         }",
        expect![[r#"
            kernel sum
              b0 sum: f32[16384] Shared
              b1 x: f32[1048576] Param(Read)
              b2 sum: f32[256] Thread
              b3 s: f32[2048] Param(Write)
            phase i3 in 8
              i2 = i3
              vector i0 in 0 .. 2048
                init a0(Sum f32 b0[i0 + 2048*i2])
              for i1 in 64*i2 .. 64 + 64*i2 by 4
                vector i0 in 0 .. 2048
                  v0: f32 = load b1[i0 + 2048*i1]
                  accumulate v0 into a0(Sum f32 b0[i0 + 2048*i2])
                  v1: f32 = load b1[2048 + i0 + 2048*i1]
                  accumulate v1 into a0(Sum f32 b0[i0 + 2048*i2])
                  v2: f32 = load b1[4096 + i0 + 2048*i1]
                  accumulate v2 into a0(Sum f32 b0[i0 + 2048*i2])
                  v3: f32 = load b1[6144 + i0 + 2048*i1]
                  accumulate v3 into a0(Sum f32 b0[i0 + 2048*i2])
            phase i5 in 8
              i4 = i5
              vector i0 in 256*i4 .. 256 + 256*i4
                init a2(Sum f32 b2[i0 + -256*i4])
              for i6 in 0 .. 8
                vector i0 in 256*i4 .. 256 + 256*i4
                  merge a1(Sum f32 b0[i0 + 2048*i6]) into a2(Sum f32 b2[i0 + -256*i4])
              vector i0 in 256*i4 .. 256 + 256*i4
                v4: f32 = finish a2(Sum f32 b2[i0 + -256*i4])
                v5: f32 = store v4 to b3[i0]
        "#]],
    );
}

#[test]
fn a_total_sum_is_combined_from_parts() {
    check_tree(
        "graph @f(%x: f32[200000]) {
           %s = aten.sum.default(%x)
           return %s
         }",
        expect![[r#"
            kernel sum
              b0 sum: f32[49] Shared
              b1 x: f32[200000] Param(Read)
              b2 s: f32[1] Param(Write)
            phase i2 in 49
              i1 = i2
              init a0(Sum f32 b0[i1])
              init a1(Sum f32)
              vector i0 in 4096*i1 .. 4096 + 4096*i1 min 200000
                v0: f32 = load b1[i0]
                accumulate v0 into a1(Sum f32)
              merge a1(Sum f32) into a0(Sum f32 b0[i1])
            phase i3 in 1
              init a3(Sum f32)
              for i4 in 0 .. 49
                merge a2(Sum f32 b0[i4]) into a3(Sum f32)
              v1: f32 = finish a3(Sum f32)
              v2: f32 = store v1 to b2[0]
        "#]],
    );
}

#[test]
fn a_transposed_operand_is_copied_by_rectangles() {
    check_tree(
        "graph @f(%x: f32[1024, 1024], %y: f32[1024, 1024]) {
           %t = aten.permute.default(%y, [1, 0])
           %a = aten.add.Tensor(%x, %t)
           return %a
         }",
        expect![[r#"
            kernel add
              b0 x: f32[1048576] Param(Read)
              b1 y: f32[1048576] Param(Read)
              b2 y: f32[5120] Thread
              b3 a: f32[1048576] Param(Write)
            phase i4 in 64
              i3 = ((i4) % 4)
              i2 = ((i4) // 4)
              tile i5 in 256*i3 .. 256 + 256*i3 by 64
                transpose b1[i0 + 1024*i1] to b2[80*i0 + i1 + -5120*i2 + -1*i5] for i1 in i5 .. 64 + i5 and i0 in 64*i2 .. 64 + 64*i2
                for i0 in 64*i2 .. 64 + 64*i2
                  vector i1 in i5 .. 64 + i5
                    v0: f32 = load b0[1024*i0 + i1]
                    v1: f32 = load b2[80*i0 + i1 + -5120*i2 + -1*i5]
                    v2: f32 = Add v0 v1
                    v3: f32 = store v2 to b3[1024*i0 + i1]
        "#]],
    );
}

#[test]
fn a_concatenation_has_a_loop_for_each_part() {
    check_tree(
        "graph @f(%x: f32[8, 100], %y: f32[8, 50]) {
           %c = aten.cat.default([%x, %y], 1)
           %n = aten.neg.default(%c)
           return %n
         }",
        expect![[r#"
            kernel neg_cat
              b0 x: f32[800] Param(Read)
              b1 y: f32[400] Param(Read)
              b2 n: f32[1200] Param(Write)
            phase i2 in 8
              i0 = i2
              vector i1 in 0 .. 100
                v1: f32 = load b0[100*i0 + i1]
                v4: f32 = Neg v1
                v5: f32 = store v4 to b2[150*i0 + i1]
              vector i1 in 100 .. 150
                v9: f32 = load b1[-100 + 50*i0 + i1]
                v10: f32 = Neg v9
                v11: f32 = store v10 to b2[150*i0 + i1]
        "#]],
    );
}

#[test]
fn values_of_positions_are_computed_once_in_a_phase_of_their_own() {
    check_tree(
        "graph @f(%x: f32[512, 100]) {
           %i = aten.arange.start_step(0, 200, 1, dtype=f32)
           %h = aten.mul.Tensor(%i, 0.5)
           %k = prims.convert_element_type.default(%h, i64)
           %y = aten._unsafe_index.Tensor(%x, [none, %k])
           return %y
         }",
        expect![[r#"
            kernel unsafe_index_cast_mul_arange
              b0 x: f32[51200] Param(Read)
              b1 y: f32[102400] Param(Write)
              b2 table: i64[200] Shared
            phase i3 in 1
              v12: f32 = 0.5: f32
              v13: i64 = 0: i64
              v14: i64 = 100: i64
              vector i1 in 0 .. 200
                v15: i64 = i1
                v16: f32 = Cast v15 f32
                v17: f32 = Mul v16 v12
                v18: i64 = Cast v17 i64
                v19: b8 = Lt v18 v13
                v20: i64 = Add v18 v14
                v21: i64 = Where v19 v20 v18
                v22: i64 = store v21 to b2[i1]
            phase i2 in 512
              i0 = i2
              vector i1 in 0 .. 200
                v9: i64 = load b2[i1]
                v10: f32 = load b0[100*i0 + v9]
                v11: f32 = store v10 to b1[200*i0 + i1]
        "#]],
    );
}
