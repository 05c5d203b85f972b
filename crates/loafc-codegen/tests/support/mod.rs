//! Runs a tensor program kernel by kernel at every level (fused group, loop tree, machine code) and compares what
//! each writes to memory.
#![allow(dead_code, reason = "each test file uses a part")]

use loafc_codegen::kernel::{CodegenOptions, KernelUse, build_tree, compile};
use loafc_codegen::loop_tree::Limits;
use loafc_codegen::loop_tree::interpret::interpret;
use loafc_fuse::interpret::run_group;
use loafc_fuse::schedule::{Group, Schedule, ScheduledStep};
use loafc_fuse::{FuseOptions, fuse};
use loafc_ir::dtype::{DType, Scalar};
use loafc_ir::graph::{Graph, Input, ValueType};
use loafc_ir::interp::memory::HostMemory;
use loafc_ir::interp::nest::{Machine, ProgramInputs, reference_extern};
use loafc_ir::interp::scalar;
use loafc_ir::interp::tensor::HostTensor;
use loafc_ir::nest::BufferId;
use loafc_ir::ops::GraphInput;
use loafc_ir::random_program::Random;
use loafc_ir::size::{Size, SymbolValues};
use loafc_lower::{LowerOptions, lower};

/// A program, lowered and scheduled.
pub struct Program {
    pub graph: Graph,
    pub schedule: Schedule,
}

pub fn program(text: &str) -> Program {
    program_with(text, &FuseOptions::default())
}

pub fn program_with(text: &str, options: &FuseOptions) -> Program {
    let graph = loafc_ir::text::parse(text, "test.loaf").unwrap_or_else(|e| panic!("{e}"));
    let nests = lower(&graph, &LowerOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    let schedule = fuse(nests, options).unwrap_or_else(|e| panic!("{e}")).schedule;
    Program { graph, schedule }
}

pub fn groups(schedule: &Schedule) -> Vec<&Group> {
    let group = |step: &'_ ScheduledStep| matches!(step, ScheduledStep::Kernel(_));
    schedule
        .steps
        .iter()
        .filter(|s| group(s))
        .map(|s| match s {
            ScheduledStep::Kernel(g) => g,
            ScheduledStep::Extern(_) => unreachable!(),
        })
        .collect()
}

pub fn compile_all(schedule: &Schedule) -> Vec<KernelUse> {
    let options = CodegenOptions { threads: 1, keep_text: true, ..CodegenOptions::default() };
    compile(schedule, &options).unwrap_or_else(|e| panic!("{e}"))
}

/// Runs and compares everything; sizes of symbols by name.
pub fn check(text: &str, sizes: &[(&str, i64)]) {
    check_with(text, sizes, &FuseOptions::default(), 1);
}

pub fn check_with(text: &str, sizes: &[(&str, i64)], options: &FuseOptions, seed: u64) {
    let program = program_with(text, options);
    let inputs = random_inputs(&program.graph, sizes, seed);
    for (vector_bits, limits) in [(None, Limits::default()), (Some(128), Limits::tiny())] {
        let options = CodegenOptions { threads: 1, vector_bits, keep_text: true, limits, store: None };
        let uses = compile(&program.schedule, &options).unwrap_or_else(|e| panic!("{e}\n{text}"));
        compare_levels(&program, &inputs, &uses, &options.limits, text);
    }
}

fn compare_levels(
    program: &Program,
    inputs: &ProgramInputs,
    uses: &[KernelUse],
    limits: &Limits,
    text: &str,
) {
    let nests = &program.schedule.program;
    let mut machine = Machine::new(nests, inputs).unwrap_or_else(|e| panic!("{e}"));
    let mut next = uses.iter();
    for step in &program.schedule.steps {
        let group = match step {
            ScheduledStep::Extern(id) => {
                machine
                    .run_step(&nests.steps[id.0 as usize], &mut reference_extern)
                    .unwrap_or_else(|e| panic!("{e}"));
                continue;
            }
            ScheduledStep::Kernel(group) => group,
        };
        let kernel = next.next().expect("a use for each kernel");
        let before = machine.memory.clone();
        run_group(group, &inputs.sizes, &mut machine.memory).unwrap_or_else(|e| panic!("{e}\n{text}"));

        let built = build_tree(group, nests, limits).unwrap_or_else(|e| panic!("{e}"));
        let mut tree_memory = before.clone();
        interpret(&built.kernel, &built.buffers, &inputs.sizes, &mut tree_memory)
            .unwrap_or_else(|e| panic!("loop tree: {e}\n{text}\n{}", built.kernel));
        same(program, &machine.memory, &tree_memory, "loop tree", text, kernel);

        let mut first = None;
        for threads in [1, 3] {
            let native = run_native(kernel, &before, &inputs.sizes, threads)
                .unwrap_or_else(|e| panic!("machine code: check failed: {e}\n{text}"));
            same(program, &machine.memory, &native, "machine code", text, kernel);
            let bits = bits_of(&native);
            assert!(first.get_or_insert_with(|| bits.clone()) == &bits, "threads change bits\n{text}");
        }
    }
}

fn same(
    program: &Program,
    expected: &HostMemory,
    found: &HostMemory,
    level: &str,
    text: &str,
    kernel: &KernelUse,
) {
    for (k, (a, b)) in expected.buffers.iter().zip(&found.buffers).enumerate() {
        let (Some(a), Some(b)) = (a, b) else { continue };
        // What is stored as f64 may have been computed in less.
        let narrowest = program.schedule.program.buffers.iter().map(|b| b.dtype).filter(|d| d.is_float());
        let precision = if a.dtype == DType::F64 {
            narrowest.min_by_key(|d| d.compute().bytes()).unwrap_or(a.dtype)
        } else {
            a.dtype
        };
        let precision = if a.dtype == DType::F64 { precision.compute() } else { precision };
        let magnitude = |x: &Option<Scalar>| x.map_or(0.0, Scalar::to_f64).abs();
        let largest = a.data.iter().map(magnitude).filter(|x| x.is_finite()).fold(0.0, f64::max);
        for (at, (x, y)) in a.data.iter().zip(&b.data).enumerate() {
            let (Some(x), Some(y)) = (x, y) else {
                // Only what the group wrote is compared.
                assert!(x.is_none(), "{level}: b{k}[{at}] ({}) was not written\n{text}", a.name);
                continue;
            };
            if !close(*x, *y, precision, largest) {
                let shown = kernel.kernel.text.as_ref().map_or("", |t| &t.loop_tree);
                panic!("{level}: b{k}[{at}] ({}: {}) is {y}, not {x}\n{text}\n{shown}", a.name, a.dtype);
            }
        }
    }
}

/// Equal up to rounding, which after cancellation is that of the `largest` element.
fn close(a: Scalar, b: Scalar, dtype: DType, largest: f64) -> bool {
    let (Scalar::Float(x), Scalar::Float(y)) = (a, b) else { return a == b };
    if x == y || (x.is_nan() && y.is_nan()) {
        return true;
    }
    let relative = match dtype {
        DType::F64 => 1e-11,
        DType::F32 => 2e-5,
        DType::F16 => 2e-3,
        DType::BF16 => 1.6e-2,
        _ => 0.13,
    };
    (x - y).abs() <= relative * (x.abs().max(y.abs()) + largest)
}

/// Runs a kernel's machine code on a copy of the memory; elements that nothing has written hold junk.
pub fn run_native(
    kernel: &KernelUse,
    memory: &HostMemory,
    sizes: &SymbolValues,
    threads: i64,
) -> Result<HostMemory, String> {
    let mut bytes: Vec<Vec<u64>> =
        memory.buffers.iter().map(|b| b.as_ref().map_or(Vec::new(), to_bytes)).collect();
    let pointers: Vec<*mut u8> =
        kernel.buffers.iter().map(|b| bytes[b.0 as usize].as_mut_ptr().cast::<u8>()).collect();
    let eval = |s: Size| s.eval(sizes).expect("a bound size");
    let values: Vec<i64> = kernel.sizes.iter().map(|s| eval(*s)).collect();
    let mut shared = scratch(eval(kernel.shared_scratch_bytes));
    for (entry, phase) in kernel.kernel.code.entries.iter().zip(&kernel.phases) {
        let units = eval(phase.units);
        let mut thread = scratch(eval(phase.thread_scratch_bytes));
        // In pieces, the last one first: units must not depend on each other.
        for k in (0..threads).rev() {
            let (begin, end) = (units * k / threads, units * (k + 1) / threads);
            // SAFETY: all pointers are to live memory of the sizes that the kernel asks for.
            let code = unsafe {
                entry(
                    pointers.as_ptr(),
                    values.as_ptr(),
                    begin,
                    end,
                    aligned(&mut shared),
                    aligned(&mut thread),
                )
            };
            if code != 0 {
                return Err(kernel.failures[code as usize - 1].to_string());
            }
        }
    }
    let mut result = memory.clone();
    for BufferId(b) in &kernel.buffers {
        if let Some(buffer) = &mut result.buffers[*b as usize] {
            let raw: &[u8] = bytemuck(&bytes[*b as usize]);
            for (k, slot) in buffer.data.iter_mut().enumerate() {
                *slot = Some(read_element(raw, k, buffer.dtype));
            }
        }
    }
    Ok(result)
}

/// All that is in memory, as bits: NaNs equal themselves.
fn bits_of(memory: &HostMemory) -> Vec<Vec<Option<u64>>> {
    let of = |b: &loafc_ir::interp::memory::HostBuffer| -> Vec<Option<u64>> {
        b.data.iter().map(|x| x.map(|x| scalar::to_bits(x, b.dtype))).collect()
    };
    memory.buffers.iter().map(|b| b.as_ref().map_or(Vec::new(), of)).collect()
}

fn scratch(bytes: i64) -> Vec<u64> {
    vec![0x7ff8_dead_7ff8_dead; bytes as usize / 8 + 16]
}

fn aligned(block: &mut [u64]) -> *mut u8 {
    let start = block.as_mut_ptr().cast::<u8>();
    // SAFETY: the block has 128 bytes to spare.
    unsafe { start.add(start.align_offset(64)) }
}

fn bytemuck(words: &[u64]) -> &[u8] {
    // SAFETY: all bytes of a u64 slice are initialised and u8 needs no alignment.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), words.len() * 8) }
}

fn to_bytes(buffer: &loafc_ir::interp::memory::HostBuffer) -> Vec<u64> {
    let width = buffer.dtype.bytes();
    let mut raw = vec![0xabu8; (buffer.data.len() * width).div_ceil(8) * 8 + 64];
    for (k, value) in buffer.data.iter().enumerate() {
        let value =
            value.unwrap_or(if buffer.dtype == DType::Bool { Scalar::Bool(true) } else { Scalar::Int(0x77) });
        let bits = scalar::to_bits(value, buffer.dtype).to_le_bytes();
        raw[k * width..(k + 1) * width].copy_from_slice(&bits[..width]);
    }
    raw.chunks_exact(8).map(|c| u64::from_le_bytes(c.try_into().unwrap())).collect()
}

fn read_element(raw: &[u8], k: usize, dtype: DType) -> Scalar {
    let width = dtype.bytes();
    let mut bits = [0u8; 8];
    bits[..width].copy_from_slice(&raw[k * width..(k + 1) * width]);
    scalar::from_bits(u64::from_le_bytes(bits), dtype)
}

/// Random inputs of a graph: floats around zero, small integers.
pub fn random_inputs(graph: &Graph, sizes: &[(&str, i64)], seed: u64) -> ProgramInputs {
    let mut random = Random(seed);
    let mut bound = SymbolValues::new();
    for (name, value) in sizes {
        bound.set(name, *value);
    }
    let inputs: Vec<GraphInput> = graph
        .inputs
        .iter()
        .map(|input| {
            let (Input::Tensor(id) | Input::Size(id, _)) = input;
            match &graph.value(*id).ty {
                ValueType::Size(size) => GraphInput::Size(size.eval(&bound).expect("a size's value")),
                ValueType::Tensor(ty) => {
                    let shape: Vec<usize> =
                        ty.shape.iter().map(|s| s.eval(&bound).expect("a size's value") as usize).collect();
                    let count = shape.iter().product();
                    let data = (0..count).map(|_| random_element(&mut random, ty.dtype)).collect();
                    GraphInput::Tensor(HostTensor { dtype: ty.dtype, shape, data })
                }
            }
        })
        .collect();
    ProgramInputs::new(graph, &inputs).unwrap_or_else(|e| panic!("{e}"))
}

fn random_element(random: &mut Random, dtype: DType) -> Scalar {
    match dtype {
        DType::Bool => Scalar::Bool(random.one_in(2)),
        d if d.is_int() => scalar::cast(Scalar::Int(random.below(17) as i64 - 8), DType::I64, d),
        d => {
            let x = random.below(4001) as f64 / 1000.0 - 2.0;
            Scalar::Float(scalar::round_to_storage(d, x))
        }
    }
}
