//! No call, however odd its arguments, makes inference or the interpreter panic: they return errors.

use proptest::prelude::*;

use super::*;

/// Arguments that a careless or hostile program might pass.
fn odd_argument() -> impl Strategy<Value = Arg> {
    let int = prop_oneof![
        Just(0),
        Just(-1),
        Just(1),
        Just(2),
        Just(7),
        Just(i64::MAX),
        Just(i64::MIN),
        Just(1 << 40),
        -4..5i64,
    ];
    let leaf = prop_oneof![
        4 => int.prop_map(|v| Arg::Size(Size::from(v))),
        1 => prop_oneof![Just(0.5), Just(f64::NAN), Just(f64::INFINITY), Just(-1e300)].prop_map(Arg::Float),
        1 => any::<bool>().prop_map(Arg::Bool),
        1 => Just(Arg::Str("mean".into())),
        1 => prop_oneof![Just(DType::F32), Just(DType::I64), Just(DType::Bool), Just(DType::C64)]
            .prop_map(Arg::DType),
        1 => Just(Arg::None),
        4 => (0..EXTRA.len() as u32).prop_map(|k| Arg::Value(TensorId(k))),
    ];
    prop_oneof![
        3 => leaf.clone(),
        1 => prop::collection::vec(leaf, 0..4).prop_map(Arg::List),
    ]
}

/// Tensors that odd arguments can name; they stand in front of the sample's own.
const EXTRA: [&str; 8] =
    ["f32_s", "f32_0", "f32_3", "i64_2_n", "b8_2x3", "f32_2x0x3", "bf16_1x2x3x4", "i64_2x3"];

/// Moves the values that an argument names behind those of [`EXTRA`].
fn shifted(arg: &Arg) -> Arg {
    match arg {
        Arg::Value(id) => Arg::Value(TensorId(id.0 + EXTRA.len() as u32)),
        Arg::List(items) => Arg::List(items.iter().map(shifted).collect()),
        other => other.clone(),
    }
}

fn run(sample: &str, position: usize, argument: Arg) {
    let (graph, inputs) = sample_graph(sample.trim_start_matches(['~', '!']));
    let node = &graph.nodes[0];
    let mut args: Vec<Arg> = node.args.iter().map(shifted).collect();
    let mut kwargs = node.kwargs.clone();
    let count = args.len() + kwargs.len();
    match position % (count + 1) {
        at if at < args.len() => args[at] = argument,
        at if at < count => kwargs[at - args.len()].1 = argument,
        _ => args.push(argument),
    }
    let mut types = Vec::new();
    let mut tensors = Vec::new();
    for name in EXTRA {
        let (ty, tensor) = sample_tensor(name);
        types.push(ValueType::Tensor(ty));
        tensors.push(tensor);
    }
    for (input, tensor) in graph.inputs.iter().zip(inputs) {
        let (Input::Tensor(id), GraphInput::Tensor(tensor)) = (input, tensor) else { unreachable!() };
        types.push(graph.value(*id).ty.clone());
        tensors.push(tensor);
    }
    // Errors are fine; only panics are not.
    let views = types.iter().map(|ty| {
        let ValueType::Tensor(ty) = ty else { unreachable!() };
        crate::nest::TensorView {
            buffer: crate::nest::BufferId(0),
            shape: ty.shape.to_vec(),
            strides: ty.strides.to_vec(),
            offset: Size::ZERO,
        }
    });
    let call = crate::nest::ExternCall {
        op: node.op.clone(),
        args,
        kwargs,
        tensors: views.collect(),
        results: Vec::new(),
        mutates: Vec::new(),
        ordered: false,
        origin: None,
    };
    let _ = infer(&call.op, &call.args, &call.kwargs, &types_of(&types));
    let _ = eval_call(&call, &tensors);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases.max(4000),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn odd_arguments_give_errors_and_no_panic(
        sample in prop::sample::select(samples().collect::<Vec<_>>()),
        position in 0..12usize,
        argument in odd_argument(),
    ) {
        run(sample, position, argument);
    }
}
