//! Machine code against loop trees against groups, for kernels of all shapes.

mod support;

use support::check;

#[test]
fn pointwise_of_odd_sizes() {
    for n in [0, 1, 3, 16, 17, 64, 1000, 5000] {
        check(
            &format!(
                "graph @f(%x: f32[{n}], %y: f32[{n}]) {{
                   %a = aten.add.Tensor(%x, %y)
                   %b = aten.mul.Tensor(%a, %x)
                   return %b
                 }}"
            ),
            &[],
        );
    }
}

#[test]
fn pointwise_over_strides_and_broadcasts() {
    check(
        "graph @f(%x: f32[7, 33], %y: f32[33, 7], %z: f32[33], %w: f32[7, 1]) {
           %t = aten.permute.default(%y, [1, 0])
           %a = aten.add.Tensor(%x, %t)
           %b = aten.mul.Tensor(%a, %z)
           %c = aten.sub.Tensor(%b, %w)
           return %c
         }",
        &[],
    );
}

#[test]
fn element_types_convert() {
    for from in ["f64", "f32", "f16", "bf16", "i64", "i32", "i16", "i8", "u8", "b8"] {
        for to in ["f64", "f32", "f16", "bf16", "i64", "i32", "i16", "i8", "u8", "b8"] {
            check(
                &format!(
                    "graph @f(%x: {from}[37]) {{
                       %a = prims.convert_element_type.default(%x, {to})
                       return %a
                     }}"
                ),
                &[],
            );
        }
    }
}

#[test]
fn reductions_along_rows_and_columns() {
    for (m, n) in [(5, 7), (3, 100), (64, 64), (1, 3000), (200, 3), (2, 40000)] {
        for dim in ["0", "1", "-1"] {
            for dtype in ["f32", "f64", "i64", "bf16"] {
                check(
                    &format!(
                        "graph @f(%x: {dtype}[{m}, {n}]) {{
                           %a = aten.sum.dim_IntList(%x, [{dim}], false)
                           %b = aten.amax.default(%x, [{dim}], false)
                           return %a, %b
                         }}"
                    ),
                    &[],
                );
            }
        }
    }
}

#[test]
fn total_reductions_are_split_and_combined() {
    for n in [1, 17, 5000, 100_000] {
        check(
            &format!(
                "graph @f(%x: f32[{n}]) {{
                   %a = aten.sum.default(%x)
                   %b = aten.amax.default(%x, [], false)
                   return %a, %b
                 }}"
            ),
            &[],
        );
    }
}

#[test]
fn softmax_over_each_dimension() {
    for (m, n) in [(3, 50), (33, 17), (2, 20000)] {
        for dim in [0, 1] {
            check(
                &format!(
                    "graph @f(%x: f32[{m}, {n}]) {{
                       %m = aten.amax.default(%x, [{dim}], true)
                       %d = aten.sub.Tensor(%x, %m)
                       %e = aten.exp.default(%d)
                       %s = aten.sum.dim_IntList(%e, [{dim}], true)
                       %y = aten.div.Tensor(%e, %s)
                       return %y
                     }}"
                ),
                &[],
            );
        }
    }
}

#[test]
fn layer_norm() {
    for (m, n) in [(5, 33), (2, 1024), (1, 50000)] {
        check(
            &format!(
                "graph @f(%x: f32[{m}, {n}], %w: f32[{n}], %b: f32[{n}]) {{
                   %v, %m = aten.var_mean.correction(%x, [1], correction=0, keepdim=true)
                   %e = aten.add.Tensor(%v, 1e-05)
                   %r = aten.rsqrt.default(%e)
                   %d = aten.sub.Tensor(%x, %m)
                   %n = aten.mul.Tensor(%d, %r)
                   %s = aten.mul.Tensor(%n, %w)
                   %y = aten.add.Tensor(%s, %b)
                   return %y, %m, %r
                 }}"
            ),
            &[],
        );
    }
}

#[test]
fn positions_of_extremes() {
    for (m, n) in [(5, 33), (40, 3), (1, 40000)] {
        for dim in [0, 1] {
            check(
                &format!(
                    "graph @f(%x: f32[{m}, {n}], %k: i32[{m}, {n}]) {{
                       %a = aten.argmax.default(%x, {dim}, false)
                       %b = aten.argmin.default(%x, {dim}, false)
                       %c = aten.argmax.default(%k, {dim}, false)
                       return %a, %b, %c
                     }}"
                ),
                &[],
            );
        }
    }
}

#[test]
fn reductions_over_both_orders() {
    check(
        "graph @f(%x: f32[200, 100]) {
           %a = aten.sum.dim_IntList(%x, [0], false)
           %b = aten.sum.dim_IntList(%x, [1], false)
           return %a, %b
         }",
        &[],
    );
}

#[test]
fn sizes_known_only_at_run_time() {
    for (a, b) in [(1, 1), (3, 50), (17, 64), (1, 30000), (0, 5), (5, 0)] {
        check(
            "size s0 = 64
             size s1 = 512
             graph @f(%x: f32[s0, s1], %y: f32[s1]) {
               %m = aten.mul.Tensor(%x, %y)
               %s = aten.sum.dim_IntList(%m, [1], true)
               %c = aten.sum.dim_IntList(%m, [0], false)
               %z = aten.sub.Tensor(%m, %s)
               return %z, %c
             }",
            &[("s0", a), ("s1", b)],
        );
    }
}

#[test]
fn gathers_and_embeddings() {
    check(
        "graph @f(%w: f32[10, 33], %i: i64[7]) {
           %p = aten.abs.default(%i)
           %e = aten.embedding.default(%w, %p)
           %y = aten.mul.Tensor(%e, 2.0)
           return %y
         }",
        &[],
    );
}

#[test]
fn concatenation_and_padding() {
    check(
        "graph @f(%x: f32[5, 20], %y: f32[5, 13]) {
           %c = aten.cat.default([%x, %y], 1)
           %d = aten.cat.default([%x, %x], 0)
           %p = aten.constant_pad_nd.default(%y, [2, 3], 1.5)
           return %c, %d, %p
         }",
        &[],
    );
}

#[test]
fn integer_operations() {
    for dtype in ["i64", "i32", "i16", "i8", "u8"] {
        check(
            &format!(
                "graph @f(%x: {dtype}[50], %y: {dtype}[50]) {{
                   %o = aten.bitwise_or.Scalar(%y, 1)
                   %a = aten.div.Tensor_mode(%x, %o, rounding_mode=\"floor\")
                   %b = aten.remainder.Tensor(%x, %o)
                   %c = aten.fmod.Tensor(%x, %o)
                   %d = aten.maximum.default(%x, %y)
                   %e = aten.bitwise_xor.Tensor(%x, %y)
                   %g = aten.mul.Tensor(%x, %y)
                   return %a, %b, %c, %d, %e, %g
                 }}"
            ),
            &[],
        );
    }
}

#[test]
fn transposed_accesses_go_through_copies() {
    for (m, n) in [(3, 5), (16, 16), (40, 100), (33, 250), (128, 64)] {
        for dtype in ["f32", "f64", "bf16", "i8", "b8"] {
            check(
                &format!(
                    "graph @f(%x: {dtype}[{m}, {n}], %y: {dtype}[{n}, {m}]) {{
                       %t = aten.permute.default(%y, [1, 0])
                       %a = aten.maximum.default(%x, %t)
                       %r = aten.permute.default(%x, [1, 0])
                       %c = aten.clone.default(%r)
                       return %a, %c
                     }}"
                ),
                &[],
            );
        }
    }
}

#[test]
fn reductions_beside_transposed_stores() {
    for (m, n) in [(40, 100), (200, 70), (64, 4096)] {
        check(
            &format!(
                "graph @f(%x: f32[{m}, {n}]) {{
                   %s = aten.sum.dim_IntList(%x, [1], false)
                   %d = aten.div.Tensor(%x, 10.0)
                   %t = aten.permute.default(%d, [1, 0])
                   %c = aten.clone.default(%t)
                   return %s, %d, %c
                 }}"
            ),
            &[],
        );
    }
}

#[test]
fn scatters_add_in_order() {
    for dim in [0, 1] {
        check(
            &format!(
                "graph @f(%x: f32[9, 30], %i: i64[9, 30], %s: f32[9, 30]) {{
                   %p = aten.remainder.Scalar(%i, 5)
                   %y = aten.scatter_add.default(%x, {dim}, %p, %s)
                   return %y
                 }}"
            ),
            &[],
        );
    }
}

#[test]
fn eight_bit_floats() {
    for dtype in ["f8e4m3fn", "f8e5m2"] {
        check(
            &format!(
                "graph @f(%x: f32[200], %y: {dtype}[200]) {{
                   %a = prims.convert_element_type.default(%x, {dtype})
                   %b = prims.convert_element_type.default(%y, f32)
                   %c = aten.mul.Tensor(%b, 1.5)
                   return %a, %c
                 }}"
            ),
            &[],
        );
    }
}

#[test]
fn narrow_and_broadcast_rows() {
    for (m, n) in [(100, 3), (7, 10), (1000, 2)] {
        check(
            &format!(
                "graph @f(%x: f32[{m}, {n}], %b: f32[{n}], %k: i64[{m}, 1]) {{
                   %a = aten.add.Tensor(%x, %b)
                   %q = aten.mul.Tensor(%a, %k)
                   %s = aten.sum.dim_IntList(%q, [1], true)
                   %z = aten.sub.Tensor(%q, %s)
                   return %z
                 }}"
            ),
            &[],
        );
    }
}

#[test]
fn products_truth_values_and_extremes() {
    for dim in [0, 1] {
        check(
            &format!(
                "graph @f(%x: f32[6, 40], %b: b8[6, 40], %k: i32[6, 40]) {{
                   %p = aten.prod.dim_int(%x, {dim}, false)
                   %a = aten.any.dim(%b, {dim}, false)
                   %c = aten.all.dim(%b, {dim}, false)
                   %m = aten.amin.default(%k, [{dim}], false)
                   return %p, %a, %c, %m
                 }}"
            ),
            &[],
        );
    }
}

#[test]
fn one_long_row_is_split_over_units() {
    let options = loafc_fuse::FuseOptions { mixed_reduction_orders: false, ..Default::default() };
    let text = "graph @f(%x: f32[1, 60000], %w: f32[60000]) {
                  %m = aten.amax.default(%x, [1], true)
                  %d = aten.sub.Tensor(%x, %m)
                  %e = aten.exp.default(%d)
                  %s = aten.sum.dim_IntList(%e, [1], true)
                  %y = aten.div.Tensor(%e, %s)
                  %z = aten.mul.Tensor(%y, %w)
                  return %z
                }";
    let program = support::program_with(text, &options);
    let uses = support::compile_all(&program.schedule);
    for kernel in &uses {
        let units: Vec<_> = kernel.phases.iter().map(|p| p.units.as_const()).collect();
        assert!(units.iter().any(|u| u.is_some_and(|u| u >= 8)), "{units:?}");
    }
    support::check_with(text, &[], &options, 1);
}

#[test]
fn lanes_a_short_distance_apart() {
    for step in [2, 3, 4, 5] {
        for dtype in ["f32", "f64", "bf16", "i8"] {
            check(
                &format!(
                    "graph @f(%x: {dtype}[5, 260]) {{
                       %a = aten.slice.Tensor(%x, 1, 1, 260, {step})
                       %b = aten.add.Tensor(%a, %a)
                       %c = aten.flip.default(%x, [1])
                       %d = aten.slice.Tensor(%x, 1, 0, 256, 2)
                       %e = aten.slice.Tensor(%x, 1, 1, 256, 2)
                       %g = aten.maximum.default(%d, %e)
                       return %b, %c, %g
                     }}"
                ),
                &[],
            );
        }
    }
}

#[test]
fn ranges_are_cut_into_loops() {
    let text = "graph @f(%x: f32[6, 70], %y: f32[6, 50], %z: f32[6, 9]) {
                  %c = aten.cat.default([%x, %y, %z], 1)
                  %r = aten.relu.default(%c)
                  %p = aten.constant_pad_nd.default(%r, [3, 5], 0.5)
                  %g = aten.flip.default(%p, [1])
                  return %r, %p, %g
                }";
    let program = support::program(text);
    for kernel in support::compile_all(&program.schedule) {
        let tree = &kernel.kernel.text.as_ref().expect("texts are kept").loop_tree;
        assert!(!tree.contains(" if v"), "{tree}");
    }
    check(text, &[]);
}

#[test]
fn windows_with_a_stride_and_padding() {
    check(
        "graph @f(%x: f32[2, 3, 40, 70]) {
           %y, %i = aten.max_pool2d_with_indices.default(%x, [3, 3], [2, 2], [1, 1])
           %a = aten.avg_pool2d.default(%x, [2, 2], [2, 2])
           return %y, %i, %a
         }",
        &[],
    );
}

/// Columns picked at positions computed from their number; most lie within a vector of each other, or nowhere near.
#[test]
fn columns_at_computed_positions() {
    let positions = [
        "%f = prims.convert_element_type.default(%i, f32)
         %h = aten.mul.Tensor(%f, 0.3)
         %k = prims.convert_element_type.default(%h, i64)",
        "%d = aten.floor_divide.default(%i, 3)
         %k = aten.rsub.Scalar(%d, 63)",
        "%m = aten.mul.Tensor(%i, 37)
         %k = aten.remainder.Scalar(%m, 64)",
        "%m = aten.sub.Tensor(%i, 20)
         %l = aten.clamp_min.default(%m, 0)
         %k = aten.clamp_max.default(%l, 63)",
    ];
    for position in positions {
        for (dtype, columns) in [("f32", 128), ("f64", 100), ("bf16", 128), ("u8", 77), ("b8", 33)] {
            // A single row, whose last window ends with the buffer, and so many that a table pays.
            for rows in [1, 40] {
                check(
                    &format!(
                        "graph @f(%x: {dtype}[{rows}, 64]) {{
                           %i = aten.arange.start_step(0, {columns}, 1, dtype=i64)
                           {position}
                           %y = aten.index.Tensor(%x, [none, %k])
                           %z = aten.add.Tensor(%y, 1)
                           return %z
                         }}"
                    ),
                    &[],
                );
            }
        }
    }
}

/// The value test above would pass without windows.
#[test]
fn columns_at_computed_positions_are_picked_from_windows_where_the_machine_can() {
    let program = support::program(
        "graph @f(%x: f32[40, 64]) {
           %i = aten.arange.start_step(0, 128, 1, dtype=i64)
           %d = aten.floor_divide.default(%i, 3)
           %y = aten.index.Tensor(%x, [none, %d])
           return %y
         }",
    );
    let kernels = support::compile_all(&program.schedule);
    let text = kernels[0].kernel.text.as_ref().expect("texts were asked for");
    let picks = ["llvm.x86.avx512.permvar.si.512", "llvm.x86.avx2.permd"];
    let can = loafc_codegen::cpu::target::host().vector_bits >= 256 && cfg!(target_arch = "x86_64");
    assert_eq!(picks.iter().any(|name| text.llvm_ir.contains(name)), can, "{}", text.llvm_ir);
}

/// Values alone would not tell the two ways of computing it apart.
#[test]
fn erf_is_made_of_pieces_where_registers_hold_them() {
    let program = support::program("graph @f(%x: f32[4096]) { %y = aten.erf.default(%x) return %y }");
    let kernels = support::compile_all(&program.schedule);
    let text = kernels[0].kernel.text.as_ref().expect("texts were asked for");
    let can = loafc_codegen::cpu::target::host().vector_bits == 512 && cfg!(target_arch = "x86_64");
    assert_eq!(text.llvm_ir.contains("llvm.x86.avx512.permvar.sf.512"), can, "{}", text.llvm_ir);
}

/// What only depends on a lane's position is computed once and read by all rows.
#[test]
fn positional_values_come_from_tables() {
    for columns in [5, 64, 200] {
        check(
            &format!(
                "graph @f(%x: f32[300, {columns}], %c: f32[300, 1]) {{
                   %i = aten.arange.start_step(0, {columns}, 1, dtype=f32)
                   %a = aten.mul.Tensor(%i, 0.37)
                   %k = prims.convert_element_type.default(%a, i64)
                   %f = prims.convert_element_type.default(%k, f32)
                   %u = aten.sub.Tensor(%a, %f)
                   %t = aten.gt.Scalar(%u, 0.5)
                   %y = aten.mul.Tensor(%x, %u)
                   %w = aten.where.self(%t, %y, %c)
                   %r = aten.sum.dim_IntList(%w, [1])
                   return %w, %r
                 }}"
            ),
            &[],
        );
    }
}

/// Loops follow memory where positions don't: the first of equal numbers is not the first one that is seen.
#[test]
fn positions_of_equal_numbers_in_another_order_than_memory() {
    for (rows, columns) in [(5, 40), (70, 33), (3, 2500), (64, 64)] {
        for view in ["aten.t.default(%r)", "aten.flip.default(%r, [0, 1])", "aten.flip.default(%r, [1])"] {
            check(
                &format!(
                    "graph @f(%x: f32[{rows}, {columns}]) {{
                       %r = aten.round.default(%x)
                       %v = {view}
                       %a = aten.argmax.default(%v)
                       %b = aten.argmin.default(%v)
                       %c = aten.argmax.default(%v, 1)
                       return %a, %b, %c
                     }}"
                ),
                &[],
            );
        }
    }
}

#[test]
fn positions_of_equal_infinite_and_missing_numbers() {
    for (rows, columns) in [(5, 40), (70, 33), (2, 2500)] {
        for of in ["%l", "%e", "%q"] {
            for op in ["argmax", "argmin"] {
                check(
                    &format!(
                        "graph @f(%x: f32[{rows}, {columns}]) {{
                           %z = aten.mul.Tensor(%x, 0.0)
                           %a = aten.abs.default(%z)
                           %l = aten.log.default(%a)
                           %e = aten.neg.default(%l)
                           %r = aten.round.default(%x)
                           %q = aten.sqrt.default(%r)
                           %c = aten.{op}.default({of}, 0)
                           %w = aten.{op}.default({of}, 1)
                           return %c, %w
                         }}"
                    ),
                    &[],
                );
            }
        }
    }
}
