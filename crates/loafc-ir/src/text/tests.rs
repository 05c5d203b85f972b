//! Tests of the text form: what reads, what prints, which error each mistake gives, and round trips.

use expect_test::{Expect, expect};

use super::parse;
use crate::graph::{Arg, Graph, ValueType};
use crate::size::Size;

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
    check_error("graph @g(%x: f32[2]) {\n  %y = aten.exp.default(%z)\n  return %y\n}", expect![[""]]);
    check_error("graph @g(%x: f32[2]) { %x = aten.exp.default(%x) return %x }", expect![[""]]);
    check_error("graph @g(%x: f32[2], %x: f32[2]) { return }", expect![[""]]);
    check_error("size a size a graph @g() { return }", expect![[""]]);
    check_error("size a graph @g(a: size) { return }", expect![[""]]);
    check_error("size f32 graph @g() { return }", expect![[""]]);
    check_error("graph @g(%x: f32[2]) { my.op(%x, k=1, k=2) return }", expect![[""]]);
}

#[test]
fn size_symbols_must_be_declared() {
    check_error("graph @g(%x: f32[2, s0]) { return }", expect![[""]]);
    check_error("graph @g(%x: f32[2]) { my.op(s0) return }", expect![[""]]);
    read("graph @g(%x: f32[2, s0], s0: size) { return }");
}

#[test]
fn wrong_tokens_are_named() {
    check_error("", expect![[""]]);
    check_error("graph g() { return }", expect![[""]]);
    check_error("graph @g(%x f32[2]) { return }", expect![[""]]);
    check_error("graph @g(%x: f32[2) { return }", expect![[""]]);
    check_error("graph @g(%x: f32) { return }", expect![[""]]);
    check_error("graph @g(x: f32[2]) { return }", expect![[""]]);
    check_error("graph @g(%x: f32[2]) { %y: aten.exp.default(%x) return }", expect![[""]]);
    check_error("graph @g(%x: f32[2]) { %y = (%x) return }", expect![[""]]);
    check_error("graph @g(%x: f32[2]) { my.op(%x %x) return }", expect![[""]]);
    check_error("graph @g(%x: f32[2]) { my.op(a=1, %x) return }", expect![[""]]);
    check_error("graph @g(%x: f32[2]) { my.op(&) return }", expect![[""]]);
    check_error("graph @g(%x: f32[2]) { return %x", expect![[""]]);
    check_error("graph @g() { return } graph @h() { return }", expect![[""]]);
    check_error("graph @g(%x: f32[2]) { my.op() loc(12) return }", expect![[""]]);
    check_error("graph @g(%ü: f32[2]) { return }", expect![[""]]);
}

#[test]
fn bad_numbers_are_errors() {
    check_error("graph @g() { my.op(1.) return }", expect![[""]]);
    check_error("graph @g() { my.op(1e) return }", expect![[""]]);
    check_error("graph @g() { my.op(12ab) return }", expect![[""]]);
    check_error("graph @g() { my.op(1.2.3) return }", expect![[""]]);
    check_error("graph @g() { my.op(9223372036854775808) return }", expect![[""]]);
    check_error("graph @g() { my.op(-9223372036854775809) return }", expect![[""]]);
    check_error("graph @g() { my.op(9223372036854775807 + 1) return }", expect![[""]]);
    check_error("graph @g() { my.op(4611686018427387904 * 2) return }", expect![[""]]);
    check_error("graph @g() { my.op(-9223372036854775808 // -1) return }", expect![[""]]);
    check_error("graph @g() { my.op(-(-9223372036854775808)) return }", expect![[""]]);
    check_error("size a graph @g() { my.op(a // (3 - 3)) return }", expect![[""]]);
    check_error("graph @g(%x: f32[2.5]) { return }", expect![[""]]);
    check_error("size a = 1.5 graph @g() { return }", expect![[""]]);
    check_error("graph @g() { my.op() loc(\"a\":-1) return }", expect![[""]]);
    check_error("graph @g(%x: f32[2] device cuda:70000) { return }", expect![[""]]);
    read("graph @g() { my.op(-9223372036854775808, -9223372036854775808 % -1) return }");
}

#[test]
fn bad_strings_are_errors() {
    check_error("graph @g() { my.op(\"abc) return }", expect![[""]]);
    check_error("graph @g() { my.op(\"a\nb\") return }", expect![[""]]);
    check_error("graph @g() { my.op(\"a\\", expect![[""]]);
    check_error("graph @g() { my.op(\"a\\qb\") return }", expect![[""]]);
    check_error("graph @g() { my.op(\"a\\u{110000}b\") return }", expect![[""]]);
    let graph = read(r#"graph @g() { my.op("ü\u{1F600}\\\"'") return }"#);
    assert_eq!(graph.nodes[0].args, [Arg::Str("ü😀\\\"'".into())]);
}

#[test]
fn types_must_be_known_and_agree_with_what_operators_make() {
    check_error("graph @g(%x: f33[2]) { return }", expect![[""]]);
    check_error("graph @g(%x: f32[2, 3] strides [1]) { return }", expect![[""]]);
    check_error("graph @g(%x: f32[2, 3] device tpu) { return }", expect![[""]]);
    check_error("graph @g(%x: f32[2]) { %y: f32[3] = aten.exp.default(%x) return }", expect![[""]]);
    check_error("graph @g(%x: f32[2]) { %y: f64[2] = aten.exp.default(%x) return }", expect![[""]]);
    check_error(
        "size n graph @g(%x: f32[n]) { %y: f32[n + 1] = aten.exp.default(%x) return }",
        expect![[""]],
    );
    check_error("graph @g(%x: f32[2]) { %y: size(2) = aten.exp.default(%x) return }", expect![[""]]);
}

#[test]
fn calls_that_no_types_can_be_given_to_are_errors() {
    check_error("graph @g(%x: f32[2]) {\n  %y = my.op(%x)\n  return %y\n}", expect![[""]]);
    check_error("graph @g(%x: f32[2]) { %y = aten.exp.default() return %y }", expect![[""]]);
    check_error("graph @g(%x: f32[2]) { %y = aten.exp.default(%x, %x) return %y }", expect![[""]]);
    check_error("graph @g(%x: f32[2]) { %y, %z = aten.exp.default(%x) return %y }", expect![[""]]);
    check_error("graph @g(%x: f32[2], %y: f32[3]) { %z = aten.add.Tensor(%x, %y) return %z }", expect![[""]]);
}

#[test]
fn nesting_and_long_sizes_are_limited_not_overflowing() {
    let nested = |open: &str, close: &str| {
        let (open, close) = (open.repeat(100_000), close.repeat(100_000));
        format!("size a graph @g() {{ my.op({open}a{close}) return }}")
    };
    check_error(&nested("[", "]"), expect![[""]]);
    check_error(&nested("(", ")"), expect![[""]]);
    check_error(&nested("max(1, ", ")"), expect![[""]]);
    check_error(&nested("-", ""), expect![[""]]);
    check_error(&nested("", " // 2"), expect![[""]]);
    check_error(&nested("", " * a"), expect![[""]]);
    let sum = "(a + b + c + d + e + f)";
    let product = vec![sum; 40].join(" * ");
    check_error(
        &format!("size a size b size c size d size e size f graph @g() {{ my.op({product}) return }}"),
        expect![[""]],
    );
}

#[test]
fn columns_count_characters() {
    check_error("graph @g() {\n  my.op(\"üü\", &)\n  return\n}", expect![[""]]);
}
