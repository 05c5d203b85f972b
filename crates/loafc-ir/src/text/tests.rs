//! Tests of the text form: what reads, what prints, and which error each mistake gives.

use expect_test::{Expect, expect};

use super::parse;
use crate::dtype::{DType, Scalar};
use crate::graph::{Arg, Device, Graph, SourceLine, TensorId, ValueType};
use crate::index::{Index, IndexAtom, LoopVar};
use crate::nest::*;
use crate::size::{Size, SymbolValues};

fn read(text: &str) -> Graph {
    parse(text, "test.loaf").unwrap_or_else(|e| panic!("{e}"))
}

fn check(text: &str, printed: Expect) {
    let graph = read(text);
    printed.assert_eq(&graph.to_string());
    assert_eq!(without_spans(read(&graph.to_string())), without_spans(graph));
}

fn without_spans(mut graph: Graph) -> Graph {
    for node in &mut graph.nodes {
        node.span = None;
    }
    graph
}

/// The message for a text, with what the parser says to do.
fn check_error(text: &str, expected: Expect) {
    let error = parse(text, "test.loaf").expect_err("the text has a mistake");
    let help = error.help.as_ref().map(|h| format!("\nhelp: {h}")).unwrap_or_default();
    expected.assert_eq(&format!("{error}{help}"));
    assert!(error.span.0 <= error.span.1 && error.span.1 <= text.len());
}

#[test]
fn everything_in_the_form_reads_and_prints() {
    check(
        r#"
        // a comment
        size s0 = 32   // its hint
        size s2
        graph @all(%x: f32[8, s0], s1: size = 7, %w: f32[8, 16] strides [1, 8], # a comment
                   %i: i64[], n.1: size(k), %g: bf16[2] device cuda:1) {
          %a: f32[8, 1] = aten.sum.dim_IntList(%x, [-1], true)
          %b = aten.add.Tensor(%x, %a, alpha=2)
          %c: f32[8, s0] = my.op(%x, [1.0, 1e-05, inf, -inf, -2.5], true, false, none, "a \"b\"\n", f32, cpu, cuda:0)
          %d: f32[max(s0, 2*s1), (s0 // 2), (s0 % 3)] = my.op(%c, [], -1, s0 - 1, (s1*k + 1) // 2, key=[%b, none])
                loc("model.py":12)
          %"odd name": f32[], _, %e.1: size(u0) = "x::y"(%d, u=max(s2, min(4, s1)))
          my.print(%"odd name", u0)
          return %b, s0, none, (s0 // 2), %d // done
        }
        //= expected schedules are comments
        "#,
        expect![[r#"
            size s0 = 32
            size s2
            graph @all(%x: f32[8, s0], s1: size = 7, %w: f32[8, 16] strides [1, 8], %i: i64[], n.1: size(k), %g: bf16[2] device cuda:1) {
              %a: f32[8, 1] = aten.sum.dim_IntList(%x, [-1], true)
              %b: f32[8, s0] = aten.add.Tensor(%x, %a, alpha=2)
              %c: f32[8, s0] = my.op(%x, [1.0, 1e-5, inf, -inf, -2.5], true, false, none, "a \"b\"\n", f32, cpu, cuda:0)
              %d: f32[max(s0, 2*s1), (s0 // 2), (s0 % 3)] = my.op(%c, [], -1, (s0 - 1), ((k*s1 + 1) // 2), key=[%b, none]) loc("model.py":12)
              %"odd name": f32[], _, %e.1: size(u0) = "x::y"(%d, u=max(s2, min(4, s1)))
              my.print(%"odd name", u0)
              return %b, s0, none, (s0 // 2), %d
            }
        "#]],
    );
}

#[test]
fn sizes_follow_the_usual_precedence() {
    let graph = read(
        "size a size b graph @g() { my.op(-a + 2*b*a // a % 5 - (b - -3), 2 - 3 * 4, -7 // 2, -7 % 3) return }",
    );
    let (a, b) = (Size::symbol("a"), Size::symbol("b"));
    let first = -a + (b * 2.into()).modulo(5.into()) - (b + 3.into());
    let expected = [first, Size::from(-10), Size::from(-4), Size::from(2)];
    assert_eq!(graph.nodes[0].args, expected.map(Arg::Size));
}

#[test]
fn nodes_keep_their_place_in_the_text() {
    let text = "graph @g(%x: f32[2]) {\n  %y = aten.exp.default(%x)\n  return %y\n}";
    let span = read(text).nodes[0].span.unwrap();
    assert_eq!(&text[span.0..span.1], "%y = aten.exp.default(%x)");
}

#[test]
fn annotated_strides_win_over_inferred_ones() {
    let graph =
        read("graph @g(%x: f32[2, 3]) { %y: f32[2, 3] strides [1, 2] = aten.exp.default(%x) return %y }");
    let ValueType::Tensor(ty) = &graph.values[1].ty else { panic!("a tensor") };
    assert_eq!(ty.strides[..], [Size::from(1), Size::from(2)]);
}

#[test]
fn unknown_and_repeated_names_are_errors() {
    check_error(
        "graph @g(%x: f32[2]) {\n  %y = aten.exp.default(%z)\n  return %y\n}",
        expect![[r#"
        test.loaf:2:25: %z is not defined
        help: a value must be defined before the line that uses it"#]],
    );
    check_error(
        "graph @g(%x: f32[2]) { %x = aten.exp.default(%x) return %x }",
        expect![[r#"
        test.loaf:1:24: %x is defined twice
        help: every value needs a name of its own"#]],
    );
    check_error(
        "graph @g(%x: f32[2], %x: f32[2]) { return }",
        expect![[r#"
        test.loaf:1:22: %x is defined twice
        help: every value needs a name of its own"#]],
    );
    check_error(
        "size a size a graph @g() { return }",
        expect!["test.loaf:1:13: size symbol `a` is declared twice"],
    );
    check_error(
        "size a graph @g(a: size) { return }",
        expect!["test.loaf:1:17: size symbol `a` is declared twice"],
    );
    check_error(
        "size f32 graph @g() { return }",
        expect!["test.loaf:1:6: `f32` can't name a size symbol; it has another meaning"],
    );
    check_error(
        "graph @g(%x: f32[2]) { my.op(%x, k=1, k=2) return }",
        expect!["test.loaf:1:39: keyword argument `k` is given twice"],
    );
}

#[test]
fn size_symbols_must_be_declared() {
    check_error(
        "graph @g(%x: f32[2, s0]) { return }",
        expect![[r#"
        test.loaf:1:21: size symbol `s0` is not declared
        help: add a line `size s0` before the graph, or an input `s0: size`"#]],
    );
    check_error(
        "graph @g(%x: f32[2]) { my.op(s0) return }",
        expect![[r#"
        test.loaf:1:30: size symbol `s0` is not declared
        help: add a line `size s0` before the graph, or an input `s0: size`"#]],
    );
    read("graph @g(%x: f32[2, s0], s0: size) { return }");
}

#[test]
fn wrong_tokens_are_named() {
    check_error("", expect!["test.loaf:1:1: expected `size` or `graph`, found the end of the file"]);
    check_error(
        "graph g() { return }",
        expect!["test.loaf:1:7: expected the name of the graph, `@name`, found `g`"],
    );
    check_error("graph @g(%x f32[2]) { return }", expect!["test.loaf:1:13: expected `:`, found `f32`"]);
    check_error("graph @g(%x: f32[2) { return }", expect!["test.loaf:1:19: expected `,` or `]`, found `)`"]);
    check_error("graph @g(%x: f32) { return }", expect!["test.loaf:1:17: expected `[`, found `)`"]);
    check_error(
        "graph @g(x: f32[2]) { return }",
        expect![[r#"
        test.loaf:1:13: expected `size`, found `f32`
        help: an input that is a tensor has a name with `%`"#]],
    );
    check_error(
        "graph @g(%x: f32[2]) { %y: aten.exp.default(%x) return }",
        expect![
            "test.loaf:1:28: unknown element type `aten`; known are f64, f32, f16, bf16, f8e4m3fn, f8e5m2, i64, i32, i16, i8, u64, u32, u16, u8, b8, c64, c128"
        ],
    );
    check_error(
        "graph @g(%x: f32[2]) { %y = (%x) return }",
        expect!["test.loaf:1:29: expected an operator or `return`, found `(`"],
    );
    check_error(
        "graph @g(%x: f32[2]) { my.op(%x %x) return }",
        expect!["test.loaf:1:33: expected `,` or `)`, found `%x`"],
    );
    check_error(
        "graph @g(%x: f32[2]) { my.op(a=1, %x) return }",
        expect!["test.loaf:1:35: a positional argument can't stand behind a keyword argument"],
    );
    check_error(
        "graph @g(%x: f32[2]) { my.op(&) return }",
        expect!["test.loaf:1:30: expected an argument, found `&`"],
    );
    check_error(
        "graph @g(%x: f32[2]) { return %x",
        expect!["test.loaf:1:33: expected `}`, found the end of the file"],
    );
    check_error(
        "graph @g() { return } graph @h() { return }",
        expect![[r#"
        test.loaf:1:23: expected the end of the file, found `graph`
        help: a file holds one graph"#]],
    );
    check_error(
        "graph @g(%x: f32[2]) { my.op() loc(12) return }",
        expect!["test.loaf:1:36: expected the name of a file in quotes, found `12`"],
    );
    check_error(
        "graph @g(%ü: f32[2]) { return }",
        expect![[r#"
            test.loaf:1:11: expected the name of an input, found `ü`
            help: a name is made of letters, digits, `_` and `.`; any other stands in quotes, `%"ä b"`"#]],
    );
}

#[test]
fn bad_numbers_are_errors() {
    check_error(
        "graph @g() { my.op(1.) return }",
        expect![[r#"
        test.loaf:1:20: `1.` is not a number
        help: a float has digits on both sides of its point and in its exponent"#]],
    );
    check_error(
        "graph @g() { my.op(1e) return }",
        expect![[r#"
        test.loaf:1:20: `1e` is not a number
        help: a float has digits on both sides of its point and in its exponent"#]],
    );
    check_error("graph @g() { my.op(12ab) return }", expect!["test.loaf:1:20: `12ab` is not a number"]);
    check_error(
        "graph @g() { my.op(1.2.3) return }",
        expect![[r#"
        test.loaf:1:20: `1.2.3` is not a number
        help: a float has digits on both sides of its point and in its exponent"#]],
    );
    check_error(
        "graph @g() { my.op(9223372036854775808) return }",
        expect!["test.loaf:1:20: integer 9223372036854775808 does not fit 64 bits"],
    );
    check_error(
        "graph @g() { my.op(-9223372036854775809) return }",
        expect!["test.loaf:1:21: integer -9223372036854775809 does not fit 64 bits"],
    );
    check_error(
        "graph @g() { my.op(9223372036854775807 + 1) return }",
        expect!["test.loaf:1:40: this size does not fit 64 bits"],
    );
    check_error(
        "graph @g() { my.op(4611686018427387904 * 2) return }",
        expect!["test.loaf:1:39: this size does not fit 64 bits"],
    );
    check_error(
        "graph @g() { my.op(-9223372036854775808 // -1) return }",
        expect!["test.loaf:1:40: this size does not fit 64 bits"],
    );
    check_error(
        "graph @g() { my.op(-(-9223372036854775808)) return }",
        expect!["test.loaf:1:20: this size does not fit 64 bits"],
    );
    check_error(
        "size a graph @g() { my.op(a // (3 - 3)) return }",
        expect!["test.loaf:1:32: a size can't be divided by zero"],
    );
    check_error("graph @g(%x: f32[2.5]) { return }", expect!["test.loaf:1:18: a size can't be a float"]);
    check_error("size a = 1.5 graph @g() { return }", expect!["test.loaf:1:10: this must be an integer"]);
    check_error(
        "graph @g() { my.op() loc(\"a\":-1) return }",
        expect!["test.loaf:1:30: there is no line of this number"],
    );
    check_error(
        "graph @g(%x: f32[2] device cuda:70000) { return }",
        expect!["test.loaf:1:33: there is no device of this number"],
    );
    read("graph @g() { my.op(-9223372036854775808, -9223372036854775808 % -1) return }");
}

#[test]
fn bad_strings_are_errors() {
    check_error(
        "graph @g() { my.op(\"abc) return }",
        expect![[r#"
        test.loaf:1:20: this string has no end
        help: close it with `"` on the same line; a line break inside is written `\n`"#]],
    );
    check_error(
        "graph @g() { my.op(\"a\nb\") return }",
        expect![[r#"
        test.loaf:1:20: this string has no end
        help: close it with `"` on the same line; a line break inside is written `\n`"#]],
    );
    check_error(
        "graph @g() { my.op(\"a\\",
        expect![[r#"
        test.loaf:1:22: unknown escape `\`
        help: known are \" \\ \n \t \r and \u{hexadecimal}"#]],
    );
    check_error(
        "graph @g() { my.op(\"a\\qb\") return }",
        expect![[r#"
        test.loaf:1:22: unknown escape `\q`
        help: known are \" \\ \n \t \r and \u{hexadecimal}"#]],
    );
    check_error(
        "graph @g() { my.op(\"a\\u{110000}b\") return }",
        expect![[r#"
        test.loaf:1:22: unknown escape `\u{110000}`
        help: known are \" \\ \n \t \r and \u{hexadecimal}"#]],
    );
    let graph = read(r#"graph @g() { my.op("ü\u{1F600}\\\"'") return }"#);
    assert_eq!(graph.nodes[0].args, [Arg::Str("ü😀\\\"'".into())]);
}

#[test]
fn types_must_be_known_and_agree_with_what_operators_make() {
    check_error(
        "graph @g(%x: f33[2]) { return }",
        expect![
            "test.loaf:1:14: unknown element type `f33`; known are f64, f32, f16, bf16, f8e4m3fn, f8e5m2, i64, i32, i16, i8, u64, u32, u16, u8, b8, c64, c128"
        ],
    );
    check_error(
        "graph @g(%x: f32[2, 3] strides [1]) { return }",
        expect!["test.loaf:1:24: 1 strides for a tensor of 2 dimensions"],
    );
    check_error(
        "graph @g(%x: f32[2, 3] device tpu) { return }",
        expect!["test.loaf:1:31: expected a device, `cpu` or `cuda:0`, found `tpu`"],
    );
    check_error(
        "graph @g(%x: f32[2]) { %y: f32[3] = aten.exp.default(%x) return }",
        expect!["test.loaf:1:24: the result of `aten.exp.default` is f32[2], not f32[3]"],
    );
    check_error(
        "graph @g(%x: f32[2]) { %y: f64[2] = aten.exp.default(%x) return }",
        expect!["test.loaf:1:24: the result of `aten.exp.default` is f32[2], not f64[2]"],
    );
    check_error(
        "size n graph @g(%x: f32[n]) { %y: f32[n + 1] = aten.exp.default(%x) return }",
        expect!["test.loaf:1:31: the result of `aten.exp.default` is f32[n], not f32[(n + 1)]"],
    );
    check_error(
        "graph @g(%x: f32[2]) { %y: size(2) = aten.exp.default(%x) return }",
        expect!["test.loaf:1:24: this result of `aten.exp.default` is a tensor"],
    );
}

#[test]
fn calls_whose_types_depend_on_a_size_take_the_types_they_are_given() {
    let convolution = |result: &str| {
        format!(
            "graph @g(%x: f32[1, 2, 8, 8], %w: f32[4, 2, 3, 3], n: size) {{
               {result} = aten.convolution.default(%x, %w, none, [n, n], [1, 1], [1, 1], false, [0, 0], 1)
               return %y
             }}"
        )
    };
    let graph = read(&convolution("%y: f32[1, 4, 7 // n + 1, 7 // n + 1]"));
    assert_eq!(crate::verify::verify_graph(&graph), Ok(()));
    check_error(
        &convolution("%y"),
        expect![[r#"
            test.loaf:2:21: argument `stride` of `aten.convolution.default` must be a constant, not the size `n`
            help: a call into a library needs the types of its results, `%name: f32[2, 3] = ...`"#]],
    );
}

#[test]
fn which_dimension_is_meant_must_be_known_whatever_the_types_say() {
    check_error(
        "graph @g(%x: f32[4, 6, 8], n: size) { %y: f32[4, 6, 8, 1] = aten.unsqueeze.default(%x, n) return %y }",
        expect![
            "test.loaf:1:61: argument `dim` of `aten.unsqueeze.default` must be a constant, not the size `n`"
        ],
    );
}

#[test]
fn calls_that_no_types_can_be_given_to_are_errors() {
    check_error(
        "graph @g(%x: f32[2]) {\n  %y = my.op(%x)\n  return %y\n}",
        expect![[r#"
        test.loaf:2:8: operator `my.op` is unknown
        help: a call into a library needs the types of its results, `%name: f32[2, 3] = ...`"#]],
    );
    check_error(
        "graph @g(%x: f32[2]) { %y = aten.rleu.default(%x) return %y }",
        expect![[r#"
            test.loaf:1:29: operator `aten.rleu.default` is unknown
            help: did you mean `aten.relu.default`? a call into a library needs the types of its results, `%name: f32[2, 3] = ...`"#]],
    );
    check_error(
        "graph @g(%x: f32[2]) { %y = aten.relu(%x) return %y }",
        expect![[r#"
        test.loaf:1:29: operator `aten.relu` is unknown
        help: did you mean `aten.relu.default`? a call into a library needs the types of its results, `%name: f32[2, 3] = ...`"#]],
    );
    check_error(
        "graph @g(%x: f32[2]) { %y = aten.exp.default() return %y }",
        expect!["test.loaf:1:29: `aten.exp.default` needs argument 0, `self`: a tensor or a number"],
    );
    check_error(
        "graph @g(%x: f32[2]) { %y = aten.exp.default(%x, %x) return %y }",
        expect![
            "test.loaf:1:29: `aten.exp.default` takes at most 1 positional arguments (self), 2 were given"
        ],
    );
    check_error(
        "graph @g(%x: f32[2]) { %y, %z = aten.exp.default(%x) return %y }",
        expect![[r#"
        test.loaf:1:33: `aten.exp.default` has 1 results, not 2
        help: write `_` for a result that is not used"#]],
    );
    check_error(
        "graph @g(%x: f32[2], %y: f32[3]) { %z = aten.add.Tensor(%x, %y) return %z }",
        expect![
            "test.loaf:1:41: the operands of `aten.add.Tensor` have shapes [2] and [3] that don't broadcast: in dimension 1 from the right the extents 2 and 3 are neither equal nor 1"
        ],
    );
}

#[test]
fn types_that_no_tensor_can_have_are_errors() {
    check_error(
        "graph @g(%x: f32[-4]) { return %x }",
        expect!["test.loaf:1:10: %x can't be f32[-4]: its extent -4 is negative"],
    );
    check_error(
        "graph @g(%x: f32[4] strides [-1]) { return %x }",
        expect!["test.loaf:1:10: %x can't be f32[4]: its stride -1 is negative"],
    );
    check_error(
        "graph @g(%x: f32[9223372036854775807]) { return %x }",
        expect!["test.loaf:1:10: %x can't be f32[9223372036854775807]: it takes 2^62 bytes or more"],
    );
    check_error(
        "graph @g(%x: f32[4294967296, 4294967296, 4294967296]) { return %x }",
        expect![
            "test.loaf:1:10: %x can't be f32[4294967296, 4294967296, 4294967296]: it takes 2^62 bytes or more"
        ],
    );
    check_error(
        "graph @g(%x: f32[2, 2] strides [4611686018427387904, 1]) { return %x }",
        expect!["test.loaf:1:10: %x can't be f32[2, 2]: it takes 2^62 bytes or more"],
    );
    check_error(
        "graph @g(%x: f32[2]) { %y: f32[-2] = my.op(%x) return %y }",
        expect!["test.loaf:1:24: %y can't be f32[-2]: its extent -2 is negative"],
    );
    check_error(
        "graph @g(%x: f32[4]) { %y = aten.expand.default(%x, [9223372036854775807, 4]) return %y }",
        expect!["test.loaf:1:24: %y can't be f32[9223372036854775807, 4]: it takes 2^62 bytes or more"],
    );
    check_error(
        "graph @g(%x: f32[4]) { %y = aten.narrow.default(%x, 0, -100, 3) return %y }",
        expect![
            "test.loaf:1:29: argument `start` of `aten.narrow.default`: -96 lies before the first of 4 positions of dimension 0"
        ],
    );
}

#[test]
fn views_by_strides_stay_inside_of_their_operand() {
    let call = |result: &str, arguments: &str| {
        format!("graph @g(%x: f32[4]) {{ %y{result} = aten.as_strided.default(%x, {arguments}) return %y }}")
    };
    check_error(
        &call("", "[4], [1], 100000000"),
        expect![
            "test.loaf:1:29: argument `self` of `aten.as_strided.default`: the view reaches over 100000004 elements of memory, but its operand has 4 elements"
        ],
    );
    check_error(
        &call("", "[100], [100], 0"),
        expect![
            "test.loaf:1:29: argument `self` of `aten.as_strided.default`: the view reaches over 9901 elements of memory, but its operand has 4 elements"
        ],
    );
    check_error(
        &call("", "[2], [9223372036854775807], 9223372036854775807"),
        expect![
            "test.loaf:1:29: argument `self` of `aten.as_strided.default`: the view reaches over 18446744073709551615 elements of memory, but its operand has 4 elements"
        ],
    );
    check_error(
        &call("", "[4], [1], -1"),
        expect!["test.loaf:1:29: argument `storage_offset` of `aten.as_strided.default`: -1 is negative"],
    );
    check_error(
        &call("", "[2], [-1], 1"),
        expect!["test.loaf:1:29: argument `stride` of `aten.as_strided.default`: -1 is negative"],
    );
    check_error(
        &call(": f32[4]", "[4], [1], 1"),
        expect![
            "test.loaf:1:37: argument `self` of `aten.as_strided.default`: the view reaches over 5 elements of memory, but its operand has 4 elements"
        ],
    );
    check_error(
        "graph @g(%x: f32[4], %s: f32[2]) { %y = aten.as_strided_scatter.default(%x, %s, [2], [4]) return }",
        expect![
            "test.loaf:1:41: argument `self` of `aten.as_strided_scatter.default`: the view reaches over 5 elements of memory, but its operand has 4 elements"
        ],
    );
    for inside in ["[4], [1], 0", "[2], [2], 1", "[0], [100], 3", "[9, 4], [0, 1]"] {
        assert!(parse(&call("", inside), "test.loaf").is_ok(), "{inside}");
    }
    let gaps = "graph @g(%x: f32[2] strides [7]) { %y = aten.as_strided.default(%x, [2], [7], 0) return %y }";
    assert!(parse(gaps, "test.loaf").is_ok());
}

#[test]
fn nesting_and_long_sizes_are_limited_not_overflowing() {
    let nested = |open: &str, close: &str| {
        let (open, close) = (open.repeat(100_000), close.repeat(100_000));
        format!("size a graph @g() {{ my.op({open}a{close}) return }}")
    };
    check_error(&nested("[", "]"), expect!["test.loaf:1:90: brackets are nested more than 64 deep"]);
    check_error(&nested("(", ")"), expect!["test.loaf:1:90: brackets are nested more than 64 deep"]);
    check_error(&nested("max(1, ", ")"), expect!["test.loaf:1:471: brackets are nested more than 64 deep"]);
    check_error(&nested("-", ""), expect!["test.loaf:1:27: a size can't have more than 256 operators"]);
    check_error(&nested("", " // 2"), expect!["test.loaf:1:1308: a size can't have more than 256 operators"]);
    check_error(&nested("", " * a"), expect!["test.loaf:1:1052: a size can't have more than 256 operators"]);
    let sum = "(a + b + c + d + e + f)";
    let product = vec![sum; 40].join(" * ");
    check_error(
        &format!("size a size b size c size d size e size f graph @g() {{ my.op({product}) return }}"),
        expect!["test.loaf:1:189: this product of sizes has more than 1024 terms"],
    );
}

#[test]
fn columns_count_characters() {
    check_error(
        "graph @g() {\n  my.op(\"üü\", &)\n  return\n}",
        expect!["test.loaf:2:15: expected an argument, found `&`"],
    );
}

/// One operation of each kind; it need not make sense.
fn all_operations() -> Body {
    let mut body = Body::default();
    let n = Size::symbol("n");
    let i = Index::of_loop(LoopVar(0));
    let mut mixed = i.times(n * 4.into()).shifted(3.into());
    mixed.add_term(IndexAtom::modulo(i.clone(), n * 2.into()), Size::ONE);
    let v = ValueId;
    body.push(Op::Const(Scalar::Float(1.0), DType::BF16));
    body.push(Op::SizeValue(n));
    body.push(Op::IndexValue(mixed.clone()));
    body.push(Op::InRange { index: i.clone(), low: Size::ONE, high: n });
    body.push(Op::Load { buffer: BufferId(0), index: mixed, guard: Some(v(3)) });
    body.push(Op::Unary(UnaryOp::IsNan, v(4)));
    body.push(Op::Binary(BinaryOp::FloorDiv, v(4), v(0)));
    body.push(Op::Where(v(5), v(6), v(4)));
    body.push(Op::Fma(v(6), v(6), v(7)));
    body.push(Op::Cast(v(8), DType::F32));
    body.push(Op::Bitcast(v(9), DType::I32));
    body.push(Op::Reduce { op: ReduceOp::ArgMax, value: v(9), position: Some(v(2)) });
    body.push(Op::ReduceSecond(v(11)));
    body.push(Op::Check(v(5), Failure::value("no \"NaN\"")));
    let mode = StoreMode::Combine(BinaryOp::Add);
    body.push(Op::Store { buffer: BufferId(1), index: i, value: v(11), guard: Some(v(5)), mode });
    body
}

#[test]
fn nest_programs_print_every_operation() {
    let line = |line| SourceLine { file: "m.py".into(), line };
    let nest = LoopNest {
        name: "arg_max".into(),
        loops: vec![
            Loop { extent: Size::symbol("n"), kind: LoopKind::Parallel },
            Loop { extent: Size::from(8), kind: LoopKind::Reduction },
        ],
        body: all_operations(),
        origins: (1..6).map(line).collect(),
    };
    let view = TensorView {
        buffer: BufferId(1),
        shape: vec![Size::from(2), Size::from(3)],
        strides: vec![Size::ONE, Size::from(2)],
        offset: Size::from(5),
    };
    let call = ExternCall {
        op: "aten.mm.default".into(),
        args: vec![Arg::Value(TensorId(0)), Arg::List(vec![Arg::Size(Size::ONE), Arg::None])],
        kwargs: vec![("out".into(), Arg::Value(TensorId(0)))],
        tensors: vec![view.clone()],
        results: vec![Some(view.clone()), None],
        mutates: vec![0],
        ordered: true,
        origin: None,
    };
    let buffer = |name: &str, source| Buffer {
        name: name.into(),
        dtype: DType::F32,
        len: Size::from(64),
        device: Device::Cpu,
        source,
    };
    let program = NestProgram {
        name: "p".into(),
        buffers: vec![
            buffer("x", BufferSource::Input(0)),
            Buffer { device: Device::Cuda(1), ..buffer("a b", BufferSource::Owned) },
        ],
        steps: vec![Step::Nest(nest), Step::Extern(call)],
        outputs: vec![Output::Tensor(view), Output::Input(0), Output::Size(Size::symbol("n")), Output::None],
        inputs: Vec::new(),
        hints: SymbolValues::new(),
        conditions: Vec::new(),
    };
    expect![[r#"
        program @p {
          b0 x: f32[64] input 0
          b1 "a b": f32[64] device cuda:1
          nest arg_max(i0: n, reduce i1: 8) {  // m.py:1, m.py:2, m.py:3 and 2 more
            v0 = 1.0: bf16
            v1 = size n
            v2 = index 4*n*i0 + ((i0) % (2*n)) + 3
            v3 = in_range i0 in 1..n
            v4 = load b0[4*n*i0 + ((i0) % (2*n)) + 3] if v3
            v5 = is_nan v4
            v6 = floor_div v4, v0
            v7 = where v5, v6, v4
            v8 = fma v6, v6, v7
            v9 = cast v8: f32
            v10 = bitcast v9: i32
            v11 = reduce arg_max v9 at v2
            v12 = second v11
            check v5 "no \"NaN\""
            store add b1[i0] = v11 if v5
          }
          b1[2, 3] strides [1, 2] offset 5, _ = extern aten.mm.default(b1[2, 3] strides [1, 2] offset 5, [1, none], out=b1[2, 3] strides [1, 2] offset 5) mutates b1[2, 3] strides [1, 2] offset 5 ordered
          return b1[2, 3] strides [1, 2] offset 5, input 0, n, none
        }
    "#]].assert_eq(&program.to_string());
}

#[test]
fn the_example_of_the_reference_page_is_a_program() {
    let page = include_str!("../../../../docs/loaf.md");
    let mut examples =
        page.split("```loaf\n").skip(1).map(|rest| rest.split("```").next().unwrap_or_default());
    let graph = parse(examples.next().expect("an example"), "docs/loaf.md").unwrap();
    assert_eq!(graph.outputs.len(), 4);
    assert_eq!(parse(&graph.to_string(), "printed").unwrap().to_string(), graph.to_string());
    assert!(examples.next().is_none());
}
