//! Extern calls through ATen: each call site finds its operator once, keeps the arguments that never change as
//! Python objects, and the tensors as long as they lie in the same memory.

use std::sync::Arc;

use loafc_ir::graph::Arg;
use loafc_ir::nest::ExternCall;
use loafc_ir::size::{Size, SymbolValues};
use loafc_runtime::error::ExternError;
use loafc_runtime::externs::{Externs, Invocation, ResultMemory};
use loafc_runtime::value::{Keepalive, ResultSpec, TensorRef, same_strides};
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};
use smallvec::SmallVec;

use crate::dlpack::{self, Layout};
use crate::source::{Passed, Source};
use crate::tensor::data_ptr;

/// The call sites of a program, by step.
#[derive(Default)]
pub struct CallSites {
    sites: Vec<Option<CallSite>>,
}

/// One operator with its arguments prepared.
struct CallSite {
    /// What is called.
    function: Py<PyAny>,
    /// Whether it takes `out=` and writes there.
    into_output: bool,
    /// Whether results may share memory with arguments.
    may_alias: bool,
    args: Vec<Template>,
    kwargs: Vec<(Py<PyString>, Template)>,
    /// The tensor objects of the last call, with the memory that they stand for.
    tensors: Vec<Option<CachedTensor>>,
    output: Option<CachedTensor>,
}

/// How an argument is made.
enum Template {
    /// The tensor of this position.
    Tensor(usize),
    /// Always the same object.
    Constant(Py<PyAny>),
    /// A size of this call.
    Size(Size),
    /// A list of which some entry changes.
    List(Vec<Template>),
}

struct CachedTensor {
    object: Py<PyAny>,
    ptr: *mut u8,
    shape: Arc<[i64]>,
    strides: Arc<[i64]>,
}

// SAFETY: the pointer is only compared, never followed.
unsafe impl Send for CachedTensor {}
// SAFETY: as above.
unsafe impl Sync for CachedTensor {}

/// Calls ATen for one run of a program.
pub struct AtenExterns<'a> {
    /// Finds operators by name: `loafc.externs.Operators`.
    pub operators: &'a Py<PyAny>,
    /// The call sites of the program.
    pub sites: &'a mut CallSites,
    /// Where each input of the program comes from.
    pub sources: &'a [Source],
    /// What the caller passed.
    pub arguments: &'a mut Passed,
    /// For each input, the argument that only it stands for.
    pub sole_arguments: &'a [Option<usize>],
    /// Inputs that nothing will use: let go of as soon as an operator is called, which needs the GIL anyway.
    pub released: SmallVec<[usize; 16]>,
}

impl Externs for AtenExterns<'_> {
    fn call(&mut self, invocation: &Invocation<'_>) -> Result<Vec<ResultMemory>, ExternError> {
        Python::attach(|py| self.call_attached(py, invocation))
            .map_err(|error| ExternError::new(&invocation.call.op, error))
    }

    fn release_inputs(&mut self, inputs: &[usize]) {
        self.released.extend_from_slice(inputs);
    }
}

impl AtenExterns<'_> {
    fn call_attached(&mut self, py: Python<'_>, invocation: &Invocation<'_>) -> PyResult<Vec<ResultMemory>> {
        for input in self.released.drain(..) {
            if let Some(position) = self.sole_arguments[input] {
                self.arguments[position] = None;
            }
        }
        let step = invocation.step.0 as usize;
        if self.sites.sites.len() <= step {
            self.sites.sites.resize_with(step + 1, || None);
        }
        let entry = &mut self.sites.sites[step];
        let site = match entry {
            Some(site) => site,
            None => entry.insert(CallSite::resolve(py, invocation.call, self.operators)?),
        };
        site.call(py, invocation, self.sources, self.arguments)
    }
}

impl CallSite {
    fn resolve(py: Python<'_>, call: &ExternCall, operators: &Py<PyAny>) -> PyResult<CallSite> {
        let site = operators.bind(py).call_method1(intern!(py, "resolve"), (call.op.as_ref(),))?;
        let constant = |key: Key<'_>, arg: &Arg| template(py, &site, key, arg);
        let args = call
            .args
            .iter()
            .enumerate()
            .map(|(k, arg)| constant(Key::Position(k), arg))
            .collect::<PyResult<_>>()?;
        let kwargs = call
            .kwargs
            .iter()
            .map(|(name, arg)| Ok((PyString::intern(py, name).unbind(), constant(Key::Name(name), arg)?)))
            .collect::<PyResult<_>>()?;
        let into_output: bool = site.getattr(intern!(py, "into_output"))?.extract()?;
        Ok(CallSite {
            function: site.getattr(intern!(py, "function"))?.unbind(),
            into_output: into_output && call.results.len() == 1,
            may_alias: site.getattr(intern!(py, "may_alias"))?.extract()?,
            args,
            kwargs,
            tensors: call.tensors.iter().map(|_| None).collect(),
            output: None,
        })
    }

    fn call(
        &mut self,
        py: Python<'_>,
        invocation: &Invocation<'_>,
        sources: &[Source],
        arguments: &Passed,
    ) -> PyResult<Vec<ResultMemory>> {
        let mut tensors: Vec<Bound<'_, PyAny>> = Vec::with_capacity(invocation.tensors.len());
        for (tensor, cached) in invocation.tensors.iter().zip(&mut self.tensors) {
            let passed = match tensor.input {
                Some(position) => sources[position].object(py, arguments)?,
                None => None,
            };
            tensors.push(match passed {
                Some(object) => object.to_owned(),
                None => cached_tensor(py, tensor, cached)?,
            });
        }
        let out = match invocation.results {
            [Some(result)] if self.into_output => result.ptr.map(|ptr| result_tensor(result, ptr)),
            _ => None,
        };
        let arguments =
            self.args.iter().map(|a| a.fill(py, &tensors, invocation.sizes)).collect::<PyResult<Vec<_>>>()?;
        let kwargs = self.keywords(py, &tensors, invocation.sizes, out.as_ref())?;
        let value = self.function.bind(py).call(PyTuple::new(py, arguments)?, kwargs.as_ref())?;
        if out.is_some() {
            return Ok(vec![ResultMemory::Written]);
        }
        collect_results(py, &value, invocation.results, self.may_alias)
    }

    fn keywords<'py>(
        &mut self,
        py: Python<'py>,
        tensors: &[Bound<'py, PyAny>],
        sizes: &SymbolValues,
        out: Option<&TensorRef<'_>>,
    ) -> PyResult<Option<Bound<'py, PyDict>>> {
        if self.kwargs.is_empty() && out.is_none() {
            return Ok(None);
        }
        let dict = PyDict::new(py);
        for (name, value) in &self.kwargs {
            dict.set_item(name.bind(py), value.fill(py, tensors, sizes)?)?;
        }
        if let Some(out) = out {
            dict.set_item(intern!(py, "out"), cached_tensor(py, out, &mut self.output)?)?;
        }
        Ok(Some(dict))
    }
}

fn result_tensor<'a>(result: &ResultSpec<'a>, ptr: *mut u8) -> TensorRef<'a> {
    TensorRef { ptr, dtype: result.dtype, shape: result.shape, strides: result.strides, input: None }
}

fn cached_tensor<'py>(
    py: Python<'py>,
    tensor: &TensorRef<'_>,
    cached: &mut Option<CachedTensor>,
) -> PyResult<Bound<'py, PyAny>> {
    if let Some(c) = cached
        && c.ptr == tensor.ptr
        && *c.shape == *tensor.shape
        && *c.strides == *tensor.strides
    {
        return Ok(c.object.bind(py).clone());
    }
    let (shape, strides) = (tensor.shape.into(), tensor.strides.into());
    let layout = Layout { ptr: tensor.ptr, dtype: tensor.dtype, shape: &shape, strides: &strides };
    // Without an owner: the runtime keeps the memory for the length of the call, and the object is used by a
    // later call only while that call's memory is at the same place.
    let object = dlpack::tensor(py, layout, None)?;
    *cached = Some(CachedTensor { object: object.clone().unbind(), ptr: tensor.ptr, shape, strides });
    Ok(object)
}

/// Takes an operator's results as memory for the program.
fn collect_results(
    py: Python<'_>,
    value: &Bound<'_, PyAny>,
    specs: &[Option<ResultSpec<'_>>],
    may_alias: bool,
) -> PyResult<Vec<ResultMemory>> {
    if specs.iter().all(Option::is_none) {
        return Ok(specs.iter().map(|_| ResultMemory::Unused).collect());
    }
    let single;
    let values: &Bound<'_, PyAny> = if value.is_instance_of::<PyTuple>() || value.is_instance_of::<PyList>() {
        value
    } else {
        single = PyTuple::new(py, [value])?.into_any();
        &single
    };
    let count = values.len()?;
    if count != specs.len() {
        let text = format!("{count} results came back where {} were expected", specs.len());
        return Err(PyRuntimeError::new_err(text));
    }
    let mut results = Vec::with_capacity(specs.len());
    for (k, spec) in specs.iter().enumerate() {
        results.push(match spec {
            None => ResultMemory::Unused,
            Some(spec) => take_result(py, values.get_item(k)?, spec, may_alias)?,
        });
    }
    Ok(results)
}

fn take_result(
    py: Python<'_>,
    value: Bound<'_, PyAny>,
    spec: &ResultSpec<'_>,
    may_alias: bool,
) -> PyResult<ResultMemory> {
    let shape: Vec<i64> = value.getattr(intern!(py, "shape"))?.extract()?;
    let strides: Vec<i64> = value.call_method0(intern!(py, "stride"))?.extract()?;
    if shape != spec.shape {
        let text = format!("a result has shape {shape:?} where {:?} was expected", spec.shape);
        return Err(PyRuntimeError::new_err(text));
    }
    let arranged = if may_alias || spec.dtype.is_complex() || !same_strides(&shape, &strides, spec.strides) {
        arrange(py, &value, spec)?
    } else {
        value
    };
    let ptr = data_ptr(&arranged)?;
    Ok(ResultMemory::Foreign { ptr, keepalive: Arc::new(arranged.unbind()) as Keepalive })
}

/// A copy with the strides that later kernels rely on; it also makes lazy conjugation real.
fn arrange<'py>(
    py: Python<'py>,
    value: &Bound<'py, PyAny>,
    spec: &ResultSpec<'_>,
) -> PyResult<Bound<'py, PyAny>> {
    let shape = PyTuple::new(py, spec.shape)?;
    let strides = PyTuple::new(py, spec.strides)?;
    let copy = value.call_method1(intern!(py, "new_empty_strided"), (shape, strides))?;
    copy.call_method1(intern!(py, "copy_"), (value,))
}

/// Which argument of an operator.
#[derive(Copy, Clone)]
enum Key<'a> {
    Position(usize),
    Name(&'a str),
}

fn template(py: Python<'_>, site: &Bound<'_, PyAny>, key: Key<'_>, arg: &Arg) -> PyResult<Template> {
    let named = |kind: &str, text: &str| -> PyResult<Template> {
        let method = intern!(py, "constant");
        let object = match key {
            Key::Position(k) => site.call_method1(method, (k, kind, text)),
            Key::Name(name) => site.call_method1(method, (name, kind, text)),
        };
        Ok(Template::Constant(object?.unbind()))
    };
    Ok(match arg {
        Arg::Value(id) => Template::Tensor(id.0 as usize),
        Arg::Size(size) => match size.as_const() {
            Some(value) => constant(py, value)?,
            None => Template::Size(*size),
        },
        Arg::Float(value) => constant(py, *value)?,
        Arg::Bool(value) => constant(py, *value)?,
        Arg::Str(text) => named("string", text)?,
        Arg::DType(dtype) => named("dtype", dtype.name())?,
        Arg::Device(device) => named("device", &device.to_string())?,
        Arg::None => Template::Constant(py.None()),
        Arg::List(items) => {
            let items =
                items.iter().map(|item| template(py, site, key, item)).collect::<PyResult<Vec<_>>>()?;
            match constants(py, &items) {
                Some(objects) => Template::Constant(PyList::new(py, objects)?.into_any().unbind()),
                None => Template::List(items),
            }
        }
    })
}

fn constant<'py>(py: Python<'py>, value: impl IntoPyObjectExt<'py>) -> PyResult<Template> {
    Ok(Template::Constant(value.into_py_any(py)?))
}

/// The items as objects, if none of them changes from call to call.
fn constants<'py>(py: Python<'py>, items: &[Template]) -> Option<Vec<Bound<'py, PyAny>>> {
    items
        .iter()
        .map(|item| match item {
            Template::Constant(object) => Some(object.bind(py).clone()),
            _ => None,
        })
        .collect()
}

impl Template {
    fn fill<'py>(
        &self,
        py: Python<'py>,
        tensors: &[Bound<'py, PyAny>],
        sizes: &SymbolValues,
    ) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Template::Tensor(position) => Ok(tensors[*position].clone()),
            Template::Constant(object) => Ok(object.bind(py).clone()),
            Template::Size(size) => match size.eval(sizes) {
                Some(value) => value.into_bound_py_any(py),
                None => Err(PyTypeError::new_err(format!("size `{size}` has no value"))),
            },
            Template::List(items) => {
                let items = items.iter().map(|i| i.fill(py, tensors, sizes)).collect::<PyResult<Vec<_>>>()?;
                Ok(PyList::new(py, items)?.into_any())
            }
        }
    }
}

/// Operators whose result is written to where they are told, by an argument `out`: products of matrices, and what loafc
/// draws itself. The functions behind them are in `loafc.externs`.
pub const INTO_OUTPUT: [&str; 5] = [
    "aten.mm.default",
    "aten.addmm.default",
    "aten.bmm.default",
    "aten.baddbmm.default",
    "loafc.bernoulli.default",
];

/// Whether the result of this call is written to where it is told.
pub fn writes_results(call: &ExternCall) -> bool {
    INTO_OUTPUT.contains(&&*call.op) && call.results.len() == 1
}
