//! A compiled program as Python calls it: a list of arguments in, a list of results out.
//!
//! Under AOTAutograd's guards a graph without size symbols is always called with the layouts that it was compiled
//! for, so its arguments are checked in full once, at the first call; later calls read their addresses alone.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use loafc_ir::graph::TensorType;
use loafc_runtime::pool::Block;
use loafc_runtime::threads::{OpenMpTeam, Serial, Team};
use loafc_runtime::{
    CallPlan, Executable, InputKind, InputValue, OutputMemory, OutputTensor, OutputValue, RunError,
};
use pyo3::Borrowed;
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyList, PyTuple};
use smallvec::SmallVec;

use crate::dlpack::{self, Layout};
use crate::errors;
use crate::externs::{AtenExterns, CallSites};
use crate::source::{Passed, Source};
use crate::tensor::{Dims, data_ptr, dtype_of, layout_of};

/// Work of a call, in bytes and operations, from which on other Python threads may run beside it.
const RELEASE_GIL_FROM: i64 = 1 << 18;

/// Call sites kept for calls on several threads.
const KEPT_SITES: usize = 8;

/// A program that can be called.
pub struct Callable {
    executable: Executable,
    sources: Vec<Source>,
    /// For each input, the argument that only it stands for: a call may let go of that before it ends.
    sole_arguments: Vec<Option<usize>>,
    /// `loafc.externs.Operators`.
    operators: Py<PyAny>,
    /// Call sites that no call is using.
    sites: Mutex<Vec<CallSites>>,
    /// The arguments of some call have been checked in full.
    checked: AtomicBool,
}

/// The arguments of one call.
struct Arguments {
    /// What the caller passed.
    objects: Passed,
    /// By input: the first element; null for sizes.
    pointers: SmallVec<[*mut u8; 16]>,
    /// By input: the value of a size, 0 for tensors.
    sizes: SmallVec<[i64; 16]>,
}

/// What a call without the GIL works with.
struct Job<'a> {
    executable: &'a Executable,
    plan: &'a Arc<CallPlan>,
    pointers: &'a [*mut u8],
    externs: AtenExterns<'a>,
    team: &'a dyn Team,
}

// SAFETY: it is made and used by one thread; only the GIL is given up and taken in between. Python objects in it
// are touched with the GIL held.
unsafe impl Send for Job<'_> {}

/// Results leave the call that way for the same reason.
struct Results(Result<Vec<OutputValue>, RunError>);

// SAFETY: as for `Job`.
unsafe impl Send for Results {}

impl Callable {
    /// A program whose inputs come from these sources, one for each.
    pub fn new(executable: Executable, sources: Vec<Source>, operators: Py<PyAny>) -> PyResult<Callable> {
        let expected = executable.inputs().len();
        if sources.len() != expected {
            let text =
                format!("the program takes {expected} inputs, but {} sources were given", sources.len());
            return Err(PyTypeError::new_err(text));
        }
        let sole_arguments = sole_arguments(&sources);
        Ok(Callable {
            executable,
            sources,
            sole_arguments,
            operators,
            sites: Mutex::default(),
            checked: AtomicBool::new(false),
        })
    }

    /// Calls the program and empties the list, so that nobody but the caller keeps the arguments alive afterwards.
    pub fn call<'py>(&self, py: Python<'py>, args: &Bound<'py, PyList>) -> PyResult<Bound<'py, PyList>> {
        let mut arguments = self.collect(args)?;
        args.del_slice(0, args.len())?;
        let plan = self.plan(py, &arguments)?;
        let mut sites = self.take_sites();
        let team = team(py)?;
        let job = Job {
            executable: &self.executable,
            plan: &plan,
            pointers: &arguments.pointers,
            externs: AtenExterns {
                operators: &self.operators,
                sites: &mut sites,
                sources: &self.sources,
                arguments: &mut arguments.objects,
                sole_arguments: &self.sole_arguments,
                released: SmallVec::new(),
            },
            team: &*team,
        };
        let results = if plan.work() < RELEASE_GIL_FROM { job.run() } else { py.detach(|| job.run()) };
        self.keep_sites(sites);
        let values = results.0.map_err(|error| errors::run_error(py, error))?;
        let mut outputs: SmallVec<[_; 16]> = SmallVec::with_capacity(values.len());
        for value in values {
            outputs.push(self.output(py, value, &arguments)?);
        }
        PyList::new(py, outputs)
    }

    fn collect(&self, args: &Bound<'_, PyList>) -> PyResult<Arguments> {
        let count = self.sources.len();
        let objects: Passed = args.iter().map(|object| Some(object.unbind())).collect();
        let mut pointers = SmallVec::with_capacity(count);
        let mut sizes = SmallVec::with_capacity(count);
        for source in &self.sources {
            let (pointer, size) = source.read(args.py(), &objects)?;
            pointers.push(pointer);
            sizes.push(size);
        }
        Ok(Arguments { objects, pointers, sizes })
    }

    /// The tensor that the caller passed for an input.
    fn tensor<'a, 'py>(
        &'a self,
        py: Python<'py>,
        arguments: &'a Passed,
        input: usize,
    ) -> PyResult<Borrowed<'a, 'py, PyAny>> {
        let object = self.sources[input].object(py, arguments)?;
        object.ok_or_else(|| PyTypeError::new_err(format!("input {input} is a size, not a tensor")))
    }

    fn plan(&self, py: Python<'_>, arguments: &Arguments) -> PyResult<Arc<CallPlan>> {
        match self.executable.fixed_plan() {
            Some(plan) if self.checked.load(Ordering::Relaxed) && !self.changed(py, plan, arguments)? => {
                Ok(plan.clone())
            }
            _ => self.plan_of_layouts(py, arguments),
        }
    }

    /// Whether an argument that no guard covers has another layout than the program was compiled for.
    fn changed(&self, py: Python<'_>, plan: &CallPlan, arguments: &Arguments) -> PyResult<bool> {
        let objects = &arguments.objects;
        for (k, source) in self.sources.iter().enumerate() {
            if source.is_unguarded() {
                let layout = &plan.inputs()[k];
                let (shape, strides) = layout_of(py, &*self.tensor(py, objects, k)?)?;
                if shape[..] != layout.shape || strides[..] != layout.strides {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Checks all layouts against the program's types. Those that guards keep as they were at the first call are
    /// not read again.
    fn plan_of_layouts(&self, py: Python<'_>, arguments: &Arguments) -> PyResult<Arc<CallPlan>> {
        let objects = &arguments.objects;
        let first = !self.checked.load(Ordering::Relaxed);
        let is_kept = |k: usize| !first && !self.sources[k].is_unguarded();
        let mut layouts: Vec<Dims> = Vec::with_capacity(self.sources.len());
        for (k, input) in self.executable.inputs().iter().enumerate() {
            layouts.push(match &input.kind {
                InputKind::Size(_) => Dims::default(),
                InputKind::Tensor(ty) => match fixed_layout(ty) {
                    Some(layout) if is_kept(k) => layout,
                    _ => layout_of(py, &*self.tensor(py, objects, k)?)?,
                },
            });
        }
        let mut values = Vec::with_capacity(layouts.len());
        for (k, input) in self.executable.inputs().iter().enumerate() {
            values.push(match &input.kind {
                InputKind::Size(_) => InputValue::Size(arguments.sizes[k]),
                InputKind::Tensor(ty) => InputValue::Tensor {
                    ptr: arguments.pointers[k],
                    dtype: if is_kept(k) { ty.dtype } else { dtype_of(py, &*self.tensor(py, objects, k)?)? },
                    shape: &layouts[k].0,
                    strides: &layouts[k].1,
                },
            });
        }
        let plan = self.executable.plan_for(&values).map_err(|error| errors::run_error(py, error))?;
        self.checked.store(true, Ordering::Relaxed);
        Ok(plan)
    }

    fn output<'py>(
        &self,
        py: Python<'py>,
        value: OutputValue,
        arguments: &Arguments,
    ) -> PyResult<Bound<'py, PyAny>> {
        match value {
            OutputValue::None => Ok(py.None().into_bound(py)),
            OutputValue::Size(size) => Ok(size.into_pyobject(py)?.into_any()),
            OutputValue::Input(position) => match self.sources[position].object(py, &arguments.objects)? {
                Some(object) => Ok(object.to_owned()),
                None => Ok(arguments.sizes[position].into_pyobject(py)?.into_any()),
            },
            OutputValue::Tensor(tensor) => self.output_tensor(py, tensor, arguments),
        }
    }

    fn output_tensor<'py>(
        &self,
        py: Python<'py>,
        tensor: OutputTensor,
        arguments: &Arguments,
    ) -> PyResult<Bound<'py, PyAny>> {
        let layout =
            Layout { ptr: tensor.ptr, dtype: tensor.dtype, shape: &tensor.shape, strides: &tensor.strides };
        match tensor.memory {
            OutputMemory::Block(block) => of_block(py, block, layout),
            OutputMemory::Foreign(keepalive) => match keepalive.downcast_ref::<Py<PyAny>>() {
                Some(object) => {
                    let object = object.bind(py);
                    view_of(py, object, data_ptr(object)?, layout)
                }
                None => Err(PyRuntimeError::new_err("a result lies in memory that is no tensor")),
            },
            OutputMemory::Input(position) => {
                let input = self.tensor(py, &arguments.objects, position)?;
                view_of(py, &input, arguments.pointers[position], layout)
            }
        }
    }

    fn take_sites(&self) -> CallSites {
        // Never waits: a forked child may find the lock held by a thread that is gone.
        self.sites.try_lock().ok().and_then(|mut s| s.pop()).unwrap_or_default()
    }

    fn keep_sites(&self, sites: CallSites) {
        if let Ok(mut kept) = self.sites.try_lock()
            && kept.len() < KEPT_SITES
        {
            kept.push(sites);
        }
    }
}

impl Job<'_> {
    fn run(mut self) -> Results {
        // SAFETY: the plan was made for these arguments' layouts, checked at this call or, where guards keep them
        // as they were, at an earlier one; the externs hold the tensors until the call
        // returns or names them in `release_inputs`.
        Results(unsafe {
            self.executable.run_planned(self.plan, self.pointers, &mut self.externs, self.team)
        })
    }
}

/// For each input, the argument that no other one stands for.
fn sole_arguments(sources: &[Source]) -> Vec<Option<usize>> {
    let positions: Vec<Option<usize>> = sources.iter().map(Source::tensor_position).collect();
    let mut uses = vec![0; positions.iter().flatten().max().map_or(0, |last| last + 1)];
    positions.iter().flatten().for_each(|position| uses[*position] += 1);
    positions.into_iter().map(|position| position.filter(|p| uses[*p] == 1)).collect()
}

/// The layout of a type without size symbols.
fn fixed_layout(ty: &TensorType) -> Option<Dims> {
    let shape = ty.shape.iter().map(|s| s.as_const()).collect::<Option<_>>()?;
    let strides = ty.strides.iter().map(|s| s.as_const()).collect::<Option<_>>()?;
    Some((shape, strides))
}

/// The tensor itself where its layout is this one, or a view on its storage, so that PyTorch knows that they share
/// it. `pointer` is the tensor's first element.
fn view_of<'py>(
    py: Python<'py>,
    tensor: &Bound<'py, PyAny>,
    pointer: *mut u8,
    layout: Layout<'_>,
) -> PyResult<Bound<'py, PyAny>> {
    let (shape, strides) = layout_of(py, tensor)?;
    if pointer == layout.ptr && shape[..] == **layout.shape && strides[..] == **layout.strides {
        return Ok(tensor.clone());
    }
    let start: isize = tensor.call_method0(intern!(py, "storage_offset"))?.extract()?;
    let bytes = (layout.ptr as isize).wrapping_sub(pointer as isize);
    let offset = start + bytes / layout.dtype.bytes() as isize;
    let arguments = (PyTuple::new(py, &**layout.shape)?, PyTuple::new(py, &**layout.strides)?, offset);
    tensor.call_method1(intern!(py, "as_strided"), arguments)
}

/// A tensor on a block of the pool. Its storage starts where the block does: the offset in it tells AOTAutograd which
/// part of its base a result is.
fn of_block<'py>(py: Python<'py>, block: Arc<Block>, layout: Layout<'_>) -> PyResult<Bound<'py, PyAny>> {
    let item = layout.dtype.bytes();
    let start = block.as_ptr();
    let bytes = (layout.ptr as usize).wrapping_sub(start as usize);
    if bytes == 0 || !bytes.is_multiple_of(item) || layout.shape.contains(&0) {
        return dlpack::tensor(py, layout, Some(block));
    }
    let offset = (bytes / item) as i64;
    let last: i64 = layout.shape.iter().zip(&**layout.strides).map(|(n, stride)| (n - 1) * stride).sum();
    let (shape, strides) = (Arc::from([offset + last + 1]), Arc::from([1]));
    let whole = Layout { ptr: start, dtype: layout.dtype, shape: &shape, strides: &strides };
    let tensor = dlpack::tensor(py, whole, Some(block))?;
    // Not `as_strided`, whose result autograd takes for a view of another tensor.
    let storage = tensor.call_method0(intern!(py, "untyped_storage"))?;
    let (shape, strides) = (PyTuple::new(py, &**layout.shape)?, PyTuple::new(py, &**layout.strides)?);
    tensor.call_method1(intern!(py, "set_"), (storage, offset, shape, strides))
}

/// PyTorch's own thread team, with as many threads as PyTorch uses now.
fn team(py: Python<'_>) -> PyResult<Box<dyn Team>> {
    static GET_NUM_THREADS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let function = GET_NUM_THREADS
        .get_or_try_init(py, || py.import("torch")?.getattr("get_num_threads").map(Bound::unbind))?;
    let threads: usize = function.bind(py).call0()?.extract()?;
    if threads > 1
        && let Some(team) = OpenMpTeam::find(threads)
    {
        return Ok(Box::new(team));
    }
    Ok(Box::new(Serial))
}
