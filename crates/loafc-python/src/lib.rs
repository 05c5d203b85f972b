//! The Python extension module `loafc._loafc`: compiles the text of a tensor program and runs it on PyTorch's
//! tensors. It converts between Python and the compiler and decides nothing.

mod address;
mod dlpack;
mod errors;
mod exchange;
mod externs;
mod options;
mod program;
mod report;
mod source;
mod tensor;

use std::time::Instant;

use loafc_runtime::pool::Pool;
use loafc_runtime::random::Generator;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use errors::{compile_error, loafc_error};
use options::Options;
use program::Callable;
use report::Report;
use source::Source;

/// The compiler makes many small objects and drops them together.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A compiled program: `program(arguments)` takes a list, empties it and returns a list.
#[pyclass(frozen, module = "loafc._loafc")]
struct Program {
    callable: Callable,
    /// What the compiler did.
    #[pyo3(get)]
    report: Py<Report>,
    /// Seconds by phase: `convert`, `lower`, `fuse`, `codegen`. The caller's own conversion is not in `convert`.
    #[pyo3(get)]
    compile_seconds: Py<PyDict>,
}

#[pymethods]
impl Program {
    fn __call__<'py>(&self, py: Python<'py>, args: &Bound<'py, PyList>) -> PyResult<Bound<'py, PyList>> {
        self.callable.call(py, args)
    }
}

/// Compiles the text of a tensor program.
///
/// `sources` says for each input where it comes from in the list of arguments (see `loafc.backend`); `operators` is
/// a `loafc.externs.Operators`. Raises `loafc.CompileError`.
#[pyfunction]
fn compile(
    py: Python<'_>,
    text: &str,
    file_name: &str,
    options: &Bound<'_, Options>,
    sources: Vec<Bound<'_, PyTuple>>,
    operators: Py<PyAny>,
) -> PyResult<Program> {
    let options = options.get().inner.clone();
    let start = Instant::now();
    let (graph, parsed) = py.detach(|| (loafc::parse(text, file_name), start.elapsed()));
    let graph = graph.map_err(|error| loafc_error(py, "CompileError", error))?;
    let traced = graph.hints.clone();
    let compiler = loafc::Compiler::with_externs(options, externs::writes_results);
    let compiled = py.detach(|| {
        let compiled = compiler.compile(graph);
        loafc::release_compiler_memory();
        compiled
    });
    let compiled = compiled.map_err(|error| compile_error(py, error))?;
    let (executable, report) = compiled.into_parts();
    // The sizes of tracing: better refused here, where the caller has another way, than at the first call.
    if let Some(broken) = executable.contradiction(&traced) {
        return Err(loafc_error(py, "CompileError", broken));
    }
    let seconds = report.compile_seconds;
    let compile_seconds = PyDict::new(py);
    compile_seconds.set_item("convert", parsed.as_secs_f64())?;
    compile_seconds.set_item("lower", seconds.lower)?;
    compile_seconds.set_item("fuse", seconds.fuse)?;
    compile_seconds.set_item("codegen", seconds.codegen)?;
    let sources = sources.iter().map(Source::extract).collect::<PyResult<_>>()?;
    Ok(Program {
        callable: Callable::new(executable, sources, operators)?,
        report: Py::new(py, Report::new(report))?,
        compile_seconds: compile_seconds.unbind(),
    })
}

/// Draws events into the `count` bytes at `events` as PyTorch's CPU generator does, whose state of `state_bytes` bytes
/// lies at `state` and goes on. Raises `ValueError` for what is no such state.
#[pyfunction]
fn draw_events(
    state: usize,
    state_bytes: usize,
    probability: f64,
    events: usize,
    count: usize,
) -> PyResult<()> {
    // SAFETY: the caller gives the memory of two tensors that it holds, and nobody else writes to.
    let state = unsafe { bytes_at(state, state_bytes) };
    let mut generator = Generator::from_state(state)
        .ok_or_else(|| PyValueError::new_err("this is no state of PyTorch's generator"))?;
    // SAFETY: as above.
    generator.bernoulli(probability, unsafe { bytes_at(events, count) });
    generator.store(state);
    Ok(())
}

/// Bytes of the pool of memory: waiting for reuse, in use, and the most that was in use at once.
#[pyfunction]
fn memory_usage() -> (usize, usize, usize) {
    let usage = Pool::global().usage();
    (usage.free, usage.live, usage.peak)
}

/// Gives free memory back to the system until at most `keep` bytes of it are left.
#[pyfunction]
fn trim_memory(py: Python<'_>, keep: usize) {
    py.detach(|| Pool::global().trim(keep));
}

/// Counts the peak of `memory_usage` from what is in use now.
#[pyfunction]
fn reset_peak_memory() {
    Pool::global().reset_peak();
}

/// A number of things for people: `1 kernel`, `2 kernels`.
#[pyfunction]
fn count_text(count: usize, thing: &str) -> String {
    loafc::count_text(count, thing)
}

/// # Safety
/// So many bytes must be there, and used by nobody else.
unsafe fn bytes_at<'a>(address: usize, count: usize) -> &'a mut [u8] {
    if count == 0 {
        return &mut [];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(address), count) }
}

/// The extension module.
#[pymodule]
fn _loafc(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("INTO_OUTPUT", externs::INTO_OUTPUT)?;
    module.add_class::<Options>()?;
    module.add_class::<Program>()?;
    module.add_class::<Report>()?;
    module.add_function(wrap_pyfunction!(count_text, module)?)?;
    module.add_function(wrap_pyfunction!(draw_events, module)?)?;
    module.add_function(wrap_pyfunction!(memory_usage, module)?)?;
    module.add_function(wrap_pyfunction!(trim_memory, module)?)?;
    module.add_function(wrap_pyfunction!(reset_peak_memory, module)?)?;
    module.add_function(wrap_pyfunction!(compile, module)?)?;
    // Loading it runs through much of LLVM's code, and a process may find all it needs in the cache on disk.
    loafc::release_compiler_memory();
    Ok(())
}
