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
