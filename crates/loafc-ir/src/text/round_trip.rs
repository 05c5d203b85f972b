//! Properties of the text form: what prints reads back as the same program, and no text makes the parser panic.

use std::fmt::Write;

use proptest::prelude::*;
use proptest::sample::Index as Pick;

use super::parse;
use crate::builder::GraphBuilder;
use crate::dtype::DType;
use crate::graph::{
    Arg, Device, Graph, Input, Node, SourceLine, TensorId, TensorType, Value, ValueType, contiguous_strides,
};
use crate::size::Size;

fn any_size() -> impl Strategy<Value = Size> {
    let leaf = prop_oneof![3 => (-9i64..100).prop_map(Size::from), 1 => any::<i64>().prop_map(Size::from),
                    2 => "s[0-3]".prop_map(|name| Size::symbol(&name))];
    leaf.prop_recursive(3, 8, 2, |inner| {
        (inner.clone(), inner, 0..7).prop_map(|(a, b, op)| match op {
            0 => a + b,
            1 => a * b,
            2 => a - b,
            3 if !b.is(0) => a.floor_div(b),
            4 if !b.is(0) => a.modulo(b),
            5 => a.max(b),
            _ => a.min(b),
        })
    })
}

fn any_dtype() -> impl Strategy<Value = DType> {
    prop::sample::select(&DType::ALL[..])
}

fn any_device() -> impl Strategy<Value = Device> {
    prop_oneof![4 => Just(Device::Cpu), 1 => any::<u16>().prop_map(Device::Cuda)]
}

/// An extent or stride that a tensor can have.
fn any_extent() -> impl Strategy<Value = Size> {
    any_size().prop_map(|size| size.as_const().map_or(size, |c| Size::from(c.rem_euclid(100))))
}

fn any_type() -> impl Strategy<Value = TensorType> {
    let dims = prop::collection::vec((any_extent(), any_extent()), 0..4);
    (any_dtype(), dims, any::<bool>(), any_device()).prop_map(|(dtype, dims, contiguous, device)| {
        let shape: crate::graph::Dims = dims.iter().map(|d| d.0).collect();
        let strides =
            if contiguous { contiguous_strides(&shape) } else { dims.iter().map(|d| d.1).collect() };
        TensorType { dtype, shape, strides, device }
    })
}

/// Names that need quotes and names that don't.
fn any_name() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z][a-z0-9_.]{0,6}",
        "[0-9]{1,3}",
        ".{0,5}",
        Just("return".to_owned()),
        Just("_".to_owned())
    ]
}

/// An argument; values are picked among those defined by then.
#[derive(Clone, Debug)]
enum AnyArg {
    Value(Pick),
    Plain(Arg),
    List(Vec<AnyArg>),
}

fn any_arg() -> impl Strategy<Value = AnyArg> {
    let plain = prop_oneof![
        any_size().prop_map(Arg::Size),
        any::<f64>().prop_filter("NaN equals nothing", |x| !x.is_nan()).prop_map(Arg::Float),
        Just(Arg::Float(f64::NEG_INFINITY)),
        any::<bool>().prop_map(Arg::Bool),
        ".{0,6}".prop_map(|s| Arg::Str(s.into())),
        any_dtype().prop_map(Arg::DType),
        any_device().prop_map(Arg::Device),
        Just(Arg::None),
    ];
    let leaf = prop_oneof![1 => any::<Pick>().prop_map(AnyArg::Value), 2 => plain.prop_map(AnyArg::Plain)];
    leaf.prop_recursive(3, 8, 3, |inner| prop::collection::vec(inner, 0..3).prop_map(AnyArg::List))
}

impl AnyArg {
    fn resolve(self, values: usize) -> Arg {
        match self {
            AnyArg::Value(_) if values == 0 => Arg::None,
            AnyArg::Value(pick) => Arg::Value(TensorId(pick.index(values) as u32)),
            AnyArg::Plain(arg) => arg,
            AnyArg::List(items) => Arg::List(items.into_iter().map(|item| item.resolve(values)).collect()),
        }
    }
}

#[derive(Clone, Debug)]
struct AnyNode {
    op: String,
    args: Vec<AnyArg>,
    kwargs: Vec<AnyArg>,
    results: Vec<Option<(String, TensorType)>>,
    origin: Option<(String, u32)>,
}

fn any_node() -> impl Strategy<Value = AnyNode> {
    (
        any_name(),
        prop::collection::vec(any_arg(), 0..4),
        prop::collection::vec(any_arg(), 0..3),
        prop::collection::vec(prop::option::of((any_name(), any_type())), 0..3),
        prop::option::of((".{0,5}", any::<u32>().prop_map(|n| n >> 1))),
    )
        .prop_map(|(op, args, kwargs, results, origin)| AnyNode {
            op: format!("x{op}"),
            args,
            kwargs,
            results,
            origin,
        })
}

/// Appends a value under this name, or one made from it if that is taken.
fn define(graph: &mut Graph, name: &str, ty: ValueType) -> TensorId {
    let mut name = name.to_owned();
    while graph.values.iter().any(|v| *v.name == *name) {
        let _ = write!(name, "_{}", graph.values.len());
    }
    graph.values.push(Value { name: name.into(), ty });
    TensorId(graph.values.len() as u32 - 1)
}

fn any_graph() -> impl Strategy<Value = Graph> {
    (
        any_name(),
        prop::collection::vec((any_name(), any_type()), 0..4),
        prop::collection::vec(any_name(), 0..3),
        prop::collection::vec(any_node(), 0..6),
        prop::collection::vec(any_arg(), 0..3),
        prop::collection::btree_map(0..6, any::<i64>(), 0..4),
    )
        .prop_map(|(name, tensors, sizes, nodes, outputs, hints)| {
            let mut graph = Graph { name: name.into(), ..Graph::default() };
            for (name, ty) in tensors {
                let id = define(&mut graph, &name, ValueType::Tensor(ty));
                graph.inputs.push(Input::Tensor(id));
            }
            for (k, name) in sizes.into_iter().enumerate() {
                let symbol = format!("s{k}");
                // Most names differ from their symbols.
                let name = if name.len() < 3 { symbol.clone() } else { name };
                let id = define(&mut graph, &name, ValueType::Size(Size::symbol(&symbol)));
                graph.inputs.push(Input::Size(id, symbol.into()));
            }
            for node in nodes {
                let defined = graph.values.len();
                let args = node.args.into_iter().map(|arg| arg.resolve(defined)).collect();
                let kwargs = node.kwargs.into_iter().enumerate();
                let kwargs = kwargs.map(|(k, arg)| (format!("k{k}").into(), arg.resolve(defined))).collect();
                let results = node.results.into_iter();
                let results = results
                    .map(|r| r.map(|(name, ty)| define(&mut graph, &name, ValueType::Tensor(ty))))
                    .collect();
                let origin = node.origin.map(|(file, line)| SourceLine { file: file.into(), line });
                graph.nodes.push(Node { op: node.op.into(), args, kwargs, results, origin, span: None });
            }
            let defined = graph.values.len();
            graph.outputs = outputs.into_iter().map(|arg| arg.resolve(defined)).collect();
            for (k, hint) in hints {
                graph.hints.set(&format!("s{k}"), hint);
            }
            graph
        })
}

fn without_spans(mut graph: Graph) -> Graph {
    for node in &mut graph.nodes {
        node.span = None;
    }
    graph
}

/// A program of known operators, whose types are inferred.
fn built(steps: &[(u8, Pick, Pick)]) -> Graph {
    let mut g = GraphBuilder::new("built");
    let n = g.size_symbol("n", Some(64));
    let dims = [n, Size::from(4)];
    let Ok(x) = g.input("x", TensorType::contiguous(DType::F32, dims)) else { return Graph::default() };
    let mut values = vec![x];
    for (op, a, b) in steps {
        let (a, b) = (values[a.index(values.len())], values[b.index(values.len())]);
        // Calls that do not fit their operands are left out.
        let made = match op % 9 {
            0 => g.add(a, b),
            1 => g.exp(a),
            2 => g.sum(a, &[-1], true),
            3 => g.transpose(a, 0, 1),
            4 => g.amax(a, &[0], false),
            5 => g.cast(a, DType::BF16),
            6 => g.mul(a, 0.5),
            7 => g.unsqueeze(a, 0),
            _ => g.lt(a, b),
        };
        values.extend(made);
    }
    g.finish(&values)
}

proptest! {
    #[test]
    fn what_prints_reads_back(graph in any_graph()) {
        let text = graph.to_string();
        let read = parse(&text, "printed");
        prop_assert_eq!(read.as_ref().err(), None, "{}", text);
        prop_assert_eq!(without_spans(read.unwrap()), graph, "{}", text);
    }

    #[test]
    fn programs_with_inferred_types_read_back(
        steps in prop::collection::vec((any::<u8>(), any::<Pick>(), any::<Pick>()), 0..20),
    ) {
        let graph = built(&steps);
        let read = parse(&graph.to_string(), "printed");
        prop_assert_eq!(read.as_ref().err(), None, "{}", graph);
        prop_assert_eq!(crate::verify::verify_graph(&graph), Ok(()));
        prop_assert_eq!(without_spans(read.unwrap()), graph);
    }

    #[test]
    fn no_text_makes_the_parser_panic(
        graph in any_graph(),
        edits in prop::collection::vec((any::<Pick>(), ".{0,3}|[-(\\[%,]{0,3}", 0usize..4), 1..4),
    ) {
        let mut text: Vec<char> = graph.to_string().chars().collect();
        for (at, insert, remove) in edits {
            let at = at.index(text.len());
            let end = (at + remove).min(text.len());
            text.splice(at..end, insert.chars());
        }
        let text: String = text.into_iter().collect();
        if let Ok(read) = parse(&text, "edited") {
            let again = parse(&read.to_string(), "printed");
            prop_assert_eq!(again.err(), None, "{}", read);
        }
    }
}

/// Run with `--release --ignored --nocapture` to see how long a program of 10,000 nodes takes.
#[test]
#[ignore = "measures time"]
fn ten_thousand_nodes() {
    for nodes in [5_000, 10_000, 20_000] {
        let mut text = String::from("graph @g(%x: f32[64, 128]) {\n  %v0 = aten.exp.default(%x)\n");
        for k in 1..nodes {
            let _ = writeln!(text, "  %v{k} = aten.add.Tensor(%v{}, %x, alpha=2) loc(\"m.py\":{k})", k - 1);
        }
        let _ = write!(text, "  return %v{}\n}}\n", nodes - 1);
        let mut best = std::time::Duration::MAX;
        let mut printed = best;
        for _ in 0..5 {
            let start = std::time::Instant::now();
            let graph = parse(&text, "g").expect("it is right");
            best = best.min(start.elapsed());
            let start = std::time::Instant::now();
            assert!(graph.to_string().len() > nodes);
            printed = printed.min(start.elapsed());
        }
        println!("{nodes} nodes: parse {best:?}, print {printed:?}");
    }
}
