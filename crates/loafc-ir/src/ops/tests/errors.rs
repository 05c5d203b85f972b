//! Messages of calls that have no types: they name operator and argument and say what would be right.

use expect_test::{Expect, expect};

use super::*;

fn check(op: &str, args: &[Arg], types: &[ValueType], expected: Expect) {
    check_with(op, args, &[], types, expected);
}

fn check_with(op: &str, args: &[Arg], kwargs: &[(&str, Arg)], types: &[ValueType], expected: Expect) {
    let kwargs: Vec<(Arc<str>, Arg)> = kwargs.iter().map(|(k, v)| ((*k).into(), v.clone())).collect();
    let error = infer(op, args, &kwargs, &types_of(types)).expect_err("the call must be refused");
    expected.assert_eq(&error.to_string());
}

fn int(v: i64) -> Arg {
    Arg::Size(Size::from(v))
}

#[test]
fn unknown_operators_are_named() {
    check(
        "aten.nonsense.default",
        &[],
        &[],
        expect![
            "`aten.nonsense.default` is not an operator whose types loafc can infer; annotate the types of its results"
        ],
    );
}

#[test]
fn arguments_are_counted() {
    let types = [tensor(DType::F32, &[2])];
    check(
        "aten.relu.default",
        &[value(0), int(1)],
        &types,
        expect!["`aten.relu.default` takes at most 1 positional arguments (self), 2 were given"],
    );
    check(
        "aten.add.Tensor",
        &[value(0)],
        &types,
        expect!["`aten.add.Tensor` needs argument 1, `other`: a tensor or a number"],
    );
    check(
        "aten.relu.default",
        &[Arg::None],
        &types,
        expect!["`aten.relu.default` needs argument 0, `self`: a tensor or a number"],
    );
}

#[test]
fn keywords_must_be_parameters() {
    let types = [tensor(DType::F32, &[2])];
    check_with(
        "aten.sum.default",
        &[value(0)],
        &[("keepdim", Arg::Bool(true))],
        &types,
        expect!["`aten.sum.default` has no parameter `keepdim`; it has (self, *, dtype)"],
    );
    // Also those that a position has already given.
    check_with(
        "aten.add.Tensor",
        &[value(0), value(0)],
        &[("other", value(0))],
        &types,
        expect!["`aten.add.Tensor` has no parameter `other`; it has (self, other, *, alpha)"],
    );
}

#[test]
fn arguments_of_the_wrong_kind_are_described() {
    let types = [tensor(DType::F32, &[2, 3])];
    check(
        "aten.sum.dim_IntList",
        &[value(0), Arg::Str("rows".into())],
        &types,
        expect![[
            r#"argument `dim` of `aten.sum.dim_IntList` must be a list of integers, not the string "rows""#
        ]],
    );
    check(
        "aten.view.default",
        &[value(0), value(0)],
        &types,
        expect!["argument `size` of `aten.view.default` must be a list of integers, not a tensor f32[2, 3]"],
    );
    check(
        "aten.permute.default",
        &[Arg::Float(1.0), sizes(&[0])],
        &types,
        expect!["argument `self` of `aten.permute.default` must be a tensor, not the float 1.0"],
    );
}

#[test]
fn shapes_that_do_not_broadcast_are_shown() {
    let types = [tensor(DType::F32, &[2, 3]), tensor(DType::F32, &[2])];
    check(
        "aten.add.Tensor",
        &[value(0), value(1)],
        &types,
        expect![
            "the operands of `aten.add.Tensor` have shapes [2, 3] and [2] that don't broadcast: in dimension 1 from the right the extents 3 and 2 are neither equal nor 1"
        ],
    );
}

#[test]
fn dimensions_must_exist_and_differ() {
    let types = [tensor(DType::F32, &[2, 3])];
    check(
        "aten.sum.dim_IntList",
        &[value(0), sizes(&[2])],
        &types,
        expect!["argument `dim` of `aten.sum.dim_IntList` is dimension 2, but the tensor has 2 dimensions"],
    );
    check(
        "aten.amax.default",
        &[value(0), sizes(&[1, -1])],
        &types,
        expect!["argument `dim` of `aten.amax.default` names dimension 1 twice"],
    );
    check(
        "aten.select.int",
        &[value(0), int(1), int(3)],
        &types,
        expect!["argument `index` of `aten.select.int`: 3 is out of range for dimension 1 of extent 3"],
    );
}

#[test]
fn views_must_keep_the_number_of_elements() {
    let types = [tensor(DType::F32, &[2, 3])];
    check(
        "aten.view.default",
        &[value(0), sizes(&[4, 2])],
        &types,
        expect!["argument `size` of `aten.view.default`: 6 elements don't fit the shape [4, 2]"],
    );
    check(
        "aten.view.default",
        &[value(0), sizes(&[4, -1])],
        &types,
        expect!["argument `size` of `aten.view.default`: 6 elements don't fit the shape [4, -1]"],
    );
    check(
        "aten.view.default",
        &[value(0), sizes(&[-1, -1])],
        &types,
        expect!["argument `size` of `aten.view.default`: only one extent can be -1"],
    );
}

#[test]
fn element_types_must_fit() {
    let types = [tensor(DType::I64, &[2]), tensor(DType::F32, &[2]), tensor(DType::Bool, &[2])];
    check(
        "aten.mean.default",
        &[value(0)],
        &types,
        expect!["`aten.mean.default` works on floats, not on i64"],
    );
    check(
        "aten.bitwise_and.Tensor",
        &[value(1), value(0)],
        &types,
        expect!["`aten.bitwise_and.Tensor` works on integers and truth values, not on f32"],
    );
    check("aten.neg.default", &[value(2)], &types, expect!["`aten.neg.default` works on numbers, not on b8"]);
    let types = [tensor(DType::F8E5M2, &[2]), tensor(DType::F32, &[2])];
    check(
        "aten.add.Tensor",
        &[value(0), value(1)],
        &types,
        expect!["`aten.add.Tensor` mixes f8e5m2 and f32, which have no common type; convert one of them"],
    );
}

#[test]
fn products_show_both_shapes() {
    let types = [tensor(DType::F32, &[2, 3]), tensor(DType::F32, &[4, 5])];
    check(
        "aten.mm.default",
        &[value(0), value(1)],
        &types,
        expect![
            "argument `mat2` of `aten.mm.default`: shapes [2, 3] and [4, 5] have no product: 3 differs from 4"
        ],
    );
}

#[test]
fn extremes_of_nothing_are_refused() {
    let types = [tensor(DType::F32, &[0, 3])];
    check(
        "aten.amax.default",
        &[value(0), sizes(&[0])],
        &types,
        expect!["argument `self` of `aten.amax.default`: dimension 0 is empty and has no extreme"],
    );
}

fn refused(call: &str) -> String {
    let (graph, inputs) = sample_graph(call);
    eval_graph(&graph, &inputs).expect_err("it must fail").to_string()
}

#[test]
fn the_interpreter_reports_positions_outside_of_a_tensor() {
    expect!["`aten.embedding.default`: index 2 is out of range for dimension 0 of extent 2"]
        .assert_eq(&refused("aten.embedding.default(%f32_2x3, %i64_3)"));
    expect!["`aten.index.Tensor`: index 2 is out of range for dimension 0 of extent 2"]
        .assert_eq(&refused("aten.index.Tensor(%f32_2x3, [%i64_3])"));
}

#[test]
fn the_interpreter_reports_integer_divisions_by_zero() {
    expect!["`aten.remainder.Scalar`: Remainder of integers by zero"]
        .assert_eq(&refused("aten.remainder.Scalar(%i64_2x3, 0)"));
}

#[test]
fn failed_assertions_are_errors() {
    expect!["`aten._assert_async.msg`: it must hold"]
        .assert_eq(&refused("aten._assert_async.msg(%b8_s_y, \"it must hold\")"));
}
