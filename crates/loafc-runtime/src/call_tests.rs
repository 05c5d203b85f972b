//! Tests of whole calls, with kernels written by hand in place of compiled ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use loafc_codegen::kernel::{Entry, PhaseSizes};
use loafc_ir::dtype::DType;
use loafc_ir::graph::{Arg, Device, TensorId, TensorType};
use loafc_ir::nest::{
    Buffer, BufferId, BufferSource, ExternCall, Failure, NestProgram, Output, StepId, TensorView,
};
use loafc_ir::size::Size;

use crate::executable::{LinkedKernel, LinkedStep};
use crate::externs_native::NativeExterns;
use crate::threads::{Part, Serial, Team, ThreadTeam};
use crate::value::OutputMemory;
use crate::{
    Executable, ExternError, Externs, InputKind, InputSpec, InputValue, Invocation, OutputValue,
    ResultMemory, RunError,
};

/// `out[i] = in[i] + sizes[0]`
unsafe extern "C" fn add_size(
    buffers: *const *mut u8,
    sizes: *const i64,
    begin: i64,
    end: i64,
    _shared: *mut u8,
    _thread: *mut u8,
) -> i32 {
    // SAFETY: called as the tests below link it.
    unsafe {
        let (from, to) = (*buffers as *const f32, *buffers.add(1) as *mut f32);
        for i in begin..end {
            *to.offset(i as isize) = *from.offset(i as isize) + *sizes as f32;
        }
    }
    0
}

/// Fails check 1 for units from 100 on; writes to all of its scratch.
unsafe extern "C" fn check_below_100(
    _buffers: *const *mut u8,
    _sizes: *const i64,
    begin: i64,
    end: i64,
    shared: *mut u8,
    thread: *mut u8,
) -> i32 {
    // SAFETY: linked with 64 bytes of each scratch.
    unsafe {
        std::ptr::write_bytes(thread, begin as u8, 64);
        std::ptr::read_volatile(shared);
    }
    if end > 100 { 2 } else { 0 }
}

fn n() -> Size {
    Size::symbol("n")
}

fn buffer(name: &str, len: Size, source: BufferSource) -> Buffer {
    Buffer { name: name.into(), dtype: DType::F32, len, device: Device::Cpu, source }
}

fn kernel(entry: Entry, buffers: &[usize], sizes: &[Size], units: Size) -> LinkedStep {
    LinkedStep::Kernel(LinkedKernel {
        name: "kernel".into(),
        entries: vec![entry],
        failures: ["first", "index out of range"].map(Failure::value).to_vec(),
        buffers: buffers.to_vec(),
        written: buffers.iter().skip(1).copied().collect(),
        sizes: sizes.to_vec(),
        phases: vec![PhaseSizes {
            units,
            work_per_unit: Size::from(1 << 14),
            thread_scratch_bytes: Size::from(64),
        }],
        shared_scratch_bytes: Size::from(64),
        _code: Arc::new(()),
    })
}

fn view(buffer: u32, shape: &[Size]) -> TensorView {
    TensorView {
        buffer: BufferId(buffer),
        shape: shape.to_vec(),
        strides: loafc_ir::graph::contiguous_strides(shape).to_vec(),
        offset: Size::ZERO,
    }
}

fn input(name: &str, shape: &[Size]) -> InputSpec {
    let ty = TensorType::contiguous(DType::F32, shape.iter().copied());
    InputSpec { name: name.into(), kind: InputKind::Tensor(ty) }
}

/// `y = x + n + n; return y, n, none, x` for x[n].
fn add_twice(len: Size) -> Executable {
    let program = NestProgram {
        name: "add_twice".into(),
        buffers: vec![
            buffer("x", len, BufferSource::Input(0)),
            buffer("t", len, BufferSource::Owned),
            buffer("y", len, BufferSource::Owned),
        ],
        outputs: vec![Output::Tensor(view(2, &[len])), Output::Size(len), Output::None, Output::Input(0)],
        ..NestProgram::default()
    };
    let steps = vec![kernel(add_size, &[0, 1], &[len], len), kernel(add_size, &[1, 2], &[len], len)];
    Executable::link(vec![input("x", &[len])], &program, steps, &[], &|_| true).unwrap()
}

fn tensor<'a>(data: &'a [f32], shape: &'a [i64]) -> InputValue<'a> {
    let ptr = data.as_ptr().cast_mut().cast();
    InputValue::Tensor { ptr, dtype: DType::F32, shape, strides: &[1] }
}

fn run(
    program: &Executable,
    inputs: &[InputValue<'_>],
    externs: &mut dyn Externs,
    team: &dyn Team,
) -> Result<Vec<OutputValue>, RunError> {
    // SAFETY: the tests pass slices with their own lengths.
    unsafe { program.run(inputs, externs, team) }
}

fn floats(output: &OutputValue) -> Vec<f32> {
    let OutputValue::Tensor(t) = output else { panic!("{output:?} is no tensor") };
    let count = t.shape.iter().product::<i64>() as usize;
    // SAFETY: a contiguous result of that many elements.
    unsafe { std::slice::from_raw_parts(t.ptr.cast::<f32>(), count) }.to_vec()
}

#[test]
fn a_program_runs_with_any_sizes_and_any_team() {
    let program = add_twice(n());
    let team = ThreadTeam::new(3);
    for count in [0usize, 1, 7, 1000, 7] {
        let data: Vec<f32> = (0..count).map(|i| i as f32).collect();
        let expected: Vec<f32> = data.iter().map(|x| x + 2.0 * count as f32).collect();
        let teams: [&dyn Team; 2] = [&Serial, &team];
        for team in teams {
            let shape = [count as i64];
            let out = run(&program, &[tensor(&data, &shape)], &mut NativeExterns, team).unwrap();
            assert_eq!(floats(&out[0]), expected);
            assert!(matches!(out[1], OutputValue::Size(v) if v == count as i64));
            assert!(matches!(out[2], OutputValue::None));
            assert!(matches!(out[3], OutputValue::Input(0)));
        }
    }
}

/// Counts how often work is shared, and does it alone.
#[derive(Default)]
struct Counting(AtomicUsize);

impl Team for Counting {
    fn threads(&self) -> usize {
        2
    }

    fn parallel_for(&self, units: i64, grain: i64, body: &Part<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
        Serial.parallel_for(units, grain, body);
    }
}

#[test]
fn little_work_wakes_no_other_thread() {
    let program = add_twice(n());
    // Each unit counts as 16 KiB: work of 192 KiB takes less time than waking a thread, work of 16 MiB does not.
    for (count, shared) in [(12, 0), (1024, 2)] {
        let data = vec![1.0; count];
        let team = Counting::default();
        run(&program, &[tensor(&data, &[count as i64])], &mut NativeExterns, &team).unwrap();
        assert_eq!(team.0.into_inner(), shared, "{count} units");
    }
}

#[test]
fn a_program_of_fixed_sizes_is_planned_once() {
    let program = add_twice(Size::from(16));
    let plan = program.fixed_plan().unwrap().clone();
    assert_eq!(plan.arena_bytes(), 64);
    let data = vec![1.0; 16];
    let again = program.plan_for(&[tensor(&data, &[16])]).unwrap();
    assert!(Arc::ptr_eq(&plan, &again));
}

#[test]
fn results_stay_valid_while_the_program_runs_again() {
    let program = add_twice(n());
    let (a, b) = ([1.0f32; 8], [2.0f32; 8]);
    let first = run(&program, &[tensor(&a, &[8])], &mut NativeExterns, &Serial).unwrap();
    let second = run(&program, &[tensor(&b, &[8])], &mut NativeExterns, &Serial).unwrap();
    assert_eq!(floats(&first[0]), [17.0; 8]);
    assert_eq!(floats(&second[0]), [18.0; 8]);
}

#[test]
fn wrong_inputs_are_named() {
    let program = add_twice(Size::from(4));
    let data = [0.0f32; 8];
    let message = |inputs: &[InputValue<'_>]| {
        run(&program, inputs, &mut NativeExterns, &Serial).unwrap_err().to_string()
    };
    assert_eq!(message(&[]), "the program takes 1 inputs, got 0");
    assert_eq!(message(&[InputValue::Size(3)]), "input 0 (`x`): expected a tensor, got a size");
    assert_eq!(message(&[tensor(&data, &[8])]), "input 0 (`x`): expected shape [4], got [8]");
    let with = |dtype, shape, strides| InputValue::Tensor {
        ptr: data.as_ptr().cast_mut().cast(),
        dtype,
        shape,
        strides,
    };
    assert_eq!(message(&[with(DType::I32, &[4], &[1])]), "input 0 (`x`): expected element type f32, got i32");
    assert_eq!(
        message(&[with(DType::F32, &[2, 2], &[2, 1])]),
        "input 0 (`x`): expected 1 dimensions, got [2, 2]"
    );
    assert!(message(&[with(DType::F32, &[4], &[2])]).contains("compiled for strides [1], got [2]"));
    let null =
        InputValue::Tensor { ptr: std::ptr::null_mut(), dtype: DType::F32, shape: &[4], strides: &[1] };
    assert!(message(&[null]).contains("null pointer"));
}

#[test]
fn equal_symbols_must_have_equal_sizes_and_every_symbol_a_value() {
    let program =
        NestProgram { outputs: vec![Output::Size(n() * Size::symbol("m"))], ..NestProgram::default() };
    let inputs = vec![input("x", &[n()]), input("y", &[n()])];
    let executable = Executable::link(inputs.clone(), &program, vec![], &[], &|_| true).unwrap();
    let data = [0.0f32; 8];
    let wrong = [tensor(&data, &[4]), tensor(&data, &[5])];
    let error = run(&executable, &wrong, &mut NativeExterns, &Serial).unwrap_err();
    assert_eq!(
        error.to_string(),
        "size `m*n` has no value: no input gives one to its symbols, or it divides by zero"
    );

    let program = NestProgram { outputs: vec![Output::Size(n())], ..NestProgram::default() };
    let executable = Executable::link(inputs, &program, vec![], &[], &|_| true).unwrap();
    let error = run(&executable, &wrong, &mut NativeExterns, &Serial).unwrap_err();
    assert_eq!(error.to_string(), "input 1 (`y`): expected shape [n] = [4], got [5]");
}

#[test]
fn impossible_sizes_are_errors() {
    for (len, value) in [(n() - Size::from(10), "-6"), (n() * Size::from(1i64 << 60), "4611686018427387904")]
    {
        let program = NestProgram {
            buffers: vec![buffer("t", len, BufferSource::Owned)],
            outputs: vec![Output::Tensor(view(0, &[len]))],
            ..NestProgram::default()
        };
        let executable =
            Executable::link(vec![input("x", &[n()])], &program, vec![], &[], &|_| true).unwrap();
        let error = run(&executable, &[tensor(&[0.0; 4], &[4])], &mut NativeExterns, &Serial).unwrap_err();
        let expected = format!("size `{len}` is {value} in this call, which no tensor can have");
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn a_failed_check_gives_its_message_for_any_split() {
    let program = NestProgram::default();
    let steps = vec![kernel(check_below_100, &[], &[], Size::from(128))];
    let executable = Executable::link(vec![], &program, steps, &[], &|_| true).unwrap();
    let team = ThreadTeam::new(4);
    let teams: [&dyn Team; 2] = [&Serial, &team];
    for team in teams {
        let error = run(&executable, &[], &mut NativeExterns, team).unwrap_err();
        assert_eq!(error.to_string(), "index out of range (in kernel `kernel`)");
    }
}

/// `y = mm(x, x); z = y + 4; return z` where the product comes from `externs`.
fn product(writes: bool, returns_product: bool) -> Executable {
    let four = Size::from(4);
    let shape = [Size::from(2), Size::from(2)];
    let program = NestProgram {
        buffers: vec![
            buffer("x", four, BufferSource::Input(0)),
            buffer("y", four, BufferSource::Owned),
            buffer("z", four, BufferSource::Owned),
        ],
        outputs: vec![Output::Tensor(view(if returns_product { 1 } else { 2 }, &shape))],
        ..NestProgram::default()
    };
    let call = ExternCall {
        op: "aten.mm.default".into(),
        args: vec![Arg::Value(TensorId(0)), Arg::Value(TensorId(1))],
        kwargs: vec![],
        tensors: vec![view(0, &shape), view(0, &shape)],
        results: vec![Some(view(1, &shape))],
        mutates: vec![],
        ordered: false,
        origin: None,
    };
    let steps = vec![
        LinkedStep::Extern { step: StepId(5), call, native: None },
        kernel(add_size, &[1, 2], &[four], four),
    ];
    Executable::link(vec![input("x", &shape)], &program, steps, &[], &|_| writes).unwrap()
}

fn square() -> InputValue<'static> {
    static DATA: [f32; 4] = [1.0, 2.0, 3.0, 4.0];
    InputValue::Tensor {
        ptr: DATA.as_ptr().cast_mut().cast(),
        dtype: DType::F32,
        shape: &[2, 2],
        strides: &[2, 1],
    }
}

#[test]
fn an_extern_call_writes_where_it_is_told_to() {
    let out = run(&product(true, false), &[square()], &mut NativeExterns, &Serial).unwrap();
    assert_eq!(floats(&out[0]), [11.0, 14.0, 19.0, 26.0]);
}

/// Brings memory of its own and counts how much of it is alive.
struct Library {
    alive: Arc<AtomicUsize>,
}

struct Owned {
    data: Vec<f32>,
    alive: Arc<AtomicUsize>,
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Externs for Library {
    fn call(&mut self, invocation: &Invocation<'_>) -> Result<Vec<ResultMemory>, ExternError> {
        assert_eq!(invocation.step, StepId(5));
        assert!(invocation.tensors.iter().all(|t| t.input == Some(0)));
        assert!(invocation.results[0].unwrap().ptr.is_none());
        self.alive.fetch_add(1, Ordering::Relaxed);
        let owned = Owned { data: vec![1.0, 2.0, 3.0, 4.0], alive: self.alive.clone() };
        let ptr = owned.data.as_ptr().cast_mut().cast();
        Ok(vec![ResultMemory::Foreign { ptr, keepalive: Arc::new(owned) }])
    }
}

#[test]
fn memory_of_a_library_lives_as_long_as_it_is_used() {
    let alive = Arc::new(AtomicUsize::new(0));
    let mut library = Library { alive: alive.clone() };
    let out = run(&product(false, false), &[square()], &mut library, &Serial).unwrap();
    assert_eq!(floats(&out[0]), [5.0, 6.0, 7.0, 8.0]);
    assert_eq!(alive.load(Ordering::Relaxed), 0);

    let out = run(&product(false, true), &[square()], &mut library, &Serial).unwrap();
    assert_eq!(alive.load(Ordering::Relaxed), 1);
    assert_eq!(floats(&out[0]), [1.0, 2.0, 3.0, 4.0]);
    assert!(matches!(&out[0], OutputValue::Tensor(t) if matches!(t.memory, OutputMemory::Foreign(_))));
    drop(out);
    assert_eq!(alive.load(Ordering::Relaxed), 0);
}

/// Notes which inputs a call lets go of.
#[derive(Default)]
struct Releases(Vec<Vec<usize>>);

impl Externs for Releases {
    fn call(&mut self, invocation: &Invocation<'_>) -> Result<Vec<ResultMemory>, ExternError> {
        NativeExterns.call(invocation)
    }

    fn release_inputs(&mut self, inputs: &[usize]) {
        self.0.push(inputs.to_vec());
    }
}

#[test]
fn large_inputs_are_let_go_of_behind_their_last_use_unless_they_are_results() {
    // x0 is small, x1 is read by the first kernel, x2 by both, x3 is a result as well.
    let large = Size::from(1 << 16);
    let sources = (0..4).map(|k| {
        let len = if k == 0 { Size::from(16) } else { large };
        buffer("x", len, BufferSource::Input(k))
    });
    let program = NestProgram {
        buffers: sources.chain([buffer("y", large, BufferSource::Owned)]).collect(),
        outputs: vec![Output::Tensor(view(4, &[large])), Output::Input(3)],
        ..NestProgram::default()
    };
    let steps = [1, 2, 3, 0, 2].map(|x| {
        let units = if x == 0 { Size::from(16) } else { large };
        kernel(add_size, &[x, 4], &[units], units)
    });
    let names = ["x0", "x1", "x2", "x3"];
    let inputs = names.iter().enumerate().map(|(k, name)| input(name, &[program.buffers[k].len])).collect();
    let program = Executable::link(inputs, &program, steps.into(), &[], &|_| true).unwrap();
    let data = vec![1.0f32; 1 << 16];
    let shapes = [[16i64], [1 << 16], [1 << 16], [1 << 16]];
    let values = shapes.each_ref().map(|shape| tensor(&data, shape));
    let mut externs = Releases::default();
    run(&program, &values, &mut externs, &Serial).unwrap();
    assert_eq!(externs.0, [[1], [2]]);
}

struct Broken;

impl Externs for Broken {
    fn call(&mut self, invocation: &Invocation<'_>) -> Result<Vec<ResultMemory>, ExternError> {
        Err(ExternError::new(&invocation.call.op, "no such kernel"))
    }
}

#[test]
fn an_error_of_a_library_names_the_operator() {
    let error = run(&product(true, false), &[square()], &mut Broken, &Serial).unwrap_err();
    assert_eq!(error.to_string(), "extern call `aten.mm.default` failed: no such kernel");
    let unwritten = run(&product(false, false), &[square()], &mut NativeExterns, &Serial).unwrap_err();
    assert!(unwritten.to_string().contains("aten.mm.default"));
}

#[test]
fn a_result_on_an_input_is_the_inputs_memory() {
    let program = NestProgram {
        buffers: vec![buffer("x", Size::from(4), BufferSource::Input(0))],
        outputs: vec![Output::Tensor(TensorView { offset: Size::from(2), ..view(0, &[Size::from(2)]) })],
        ..NestProgram::default()
    };
    let executable =
        Executable::link(vec![input("x", &[Size::from(4)])], &program, vec![], &[], &|_| true).unwrap();
    let data = [1.0f32, 2.0, 3.0, 4.0];
    let out = run(&executable, &[tensor(&data, &[4])], &mut NativeExterns, &Serial).unwrap();
    assert_eq!(floats(&out[0]), [3.0, 4.0]);
    assert!(matches!(&out[0], OutputValue::Tensor(t) if matches!(t.memory, OutputMemory::Input(0))));
}

#[test]
fn written_inputs_are_known() {
    let program = NestProgram {
        buffers: vec![buffer("x", n(), BufferSource::Input(0)), buffer("y", n(), BufferSource::Input(1))],
        ..NestProgram::default()
    };
    let inputs = vec![input("x", &[n()]), input("y", &[n()])];
    let steps = vec![kernel(add_size, &[0, 1], &[n()], n())];
    let executable = Executable::link(inputs, &program, steps, &[], &|_| true).unwrap();
    assert_eq!(executable.mutated_inputs(), [1]);
}
