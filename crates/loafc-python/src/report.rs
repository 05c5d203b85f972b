//! The compiler's report in Python: counts as attributes, the rest as text, JSON and HTML.

use pyo3::prelude::*;

/// What the compiler did with one graph.
#[pyclass(frozen, module = "loafc._loafc")]
pub struct Report {
    inner: loafc::Report,
}

impl Report {
    pub fn new(inner: loafc::Report) -> Report {
        Report { inner }
    }
}

#[pymethods]
impl Report {
    /// Number of kernels.
    #[getter]
    fn kernels(&self) -> usize {
        self.inner.kernels.len()
    }

    /// Number of extern calls.
    #[getter]
    fn extern_calls(&self) -> usize {
        self.inner.extern_calls.len()
    }

    /// Number of fusions that reordered loops.
    #[getter]
    fn loop_reorderings(&self) -> usize {
        self.inner.loop_reorderings
    }

    /// Bytes between memory and kernels in one run.
    #[getter]
    fn bytes_accessed(&self) -> i64 {
        self.inner.bytes_accessed
    }

    /// Number of kernels that LLVM made code for; of the others the process or the disk had it.
    #[getter]
    fn kernels_compiled(&self) -> usize {
        self.inner.code.compiled
    }

    /// What the user asked for and doesn't get.
    #[getter]
    fn warnings(&self) -> Vec<String> {
        self.inner.warnings.clone()
    }

    /// For a terminal.
    fn to_text(&self) -> String {
        self.inner.to_text()
    }

    /// Everything as JSON text.
    fn to_json(&self) -> String {
        self.inner.to_json()
    }

    /// A page that needs nothing else.
    fn to_html(&self) -> String {
        self.inner.to_html()
    }

    fn __str__(&self) -> String {
        self.to_text()
    }
}
