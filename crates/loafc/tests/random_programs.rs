//! Random programs through loop trees and machine code: values equal the interpreter's on the tensor program, with
//! the final round off, on, and with fusions in random order. (The scheduler's own guarantees are tested where the
//! scheduler is.)
//! [`check_random_programs`] says how to try more.

use loafc::{Compiler, Options, Tensor, Value};
use loafc::{Level, Outcome};
use loafc_ir::ops::{EvalResult, GraphInput, GraphOutput, eval_graph};
use loafc_ir::random_program::{Random, check_random_programs, random_inputs, same_values};

/// The program's inputs with the strides of their types.
fn values(graph: &loafc_ir::graph::Graph, inputs: &[GraphInput]) -> Vec<Value> {
    graph
        .inputs
        .iter()
        .zip(inputs)
        .map(|(input, given)| {
            let (loafc_ir::graph::Input::Tensor(id), GraphInput::Tensor(host)) = (input, given) else {
                panic!("random programs have tensors only")
            };
            let strides = &graph.tensor_type(*id).expect("a tensor").strides;
            let strides: Vec<i64> = strides.iter().map(|s| s.as_const().expect("constant")).collect();
            let tensor = Tensor::from_host(host).expect("a tensor");
            Value::Tensor(tensor.with_strides(&strides).expect("strides that fit"))
        })
        .collect()
}

fn as_result(outcome: &Outcome) -> EvalResult {
    let host = |t: &Tensor| t.to_host().expect("host");
    let output = |v: &Value| match v {
        Value::Tensor(t) => GraphOutput::Tensor(host(t)),
        Value::Size(s) => GraphOutput::Size(*s),
        Value::None => GraphOutput::None,
    };
    EvalResult {
        outputs: outcome.outputs.iter().map(output).collect(),
        mutated_inputs: outcome.mutated_inputs.iter().map(|(k, t)| (*k, host(t))).collect(),
    }
}

fn check(seed: u64, text: &str, random: &mut Random) -> Result<(), String> {
    let graph = loafc_ir::text::parse(text, "random").map_err(|e| e.to_string())?;
    let inputs = random_inputs(&graph, random);
    let oracle = eval_graph(&graph, &inputs).map_err(|e| e.to_string())?;
    let given = values(&graph, &inputs);
    let off = Options { loop_ordering_after_fusion: false, ..Options::default() };
    let chaos = Options { fusion_chaos_seed: Some(random.bits()), ..Options::default() };
    // One setting for each program keeps the time for LLVM bounded; over many programs all are met.
    let (name, options) = match seed % 4 {
        0 => ("final round off", off),
        1 => ("fusions in random order", chaos),
        _ => ("defaults", Options::default()),
    };
    let compiler = Compiler::new(options);
    for level in [Level::LoopTree, Level::Native] {
        let outcome =
            compiler.run_at(level, &graph, &given).map_err(|e| format!("{} ({name}): {e}", level.name()))?;
        same_values(&oracle, &as_result(&outcome)).map_err(|e| format!("{} ({name}): {e}", level.name()))?;
    }
    Ok(())
}

#[test]
fn machine_code_computes_what_the_tensor_program_says() {
    check_random_programs(2000, check);
}
