//! The compiler's options in Python: read from the environment, then from a dict of texts.

use std::collections::BTreeMap;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::loafc_error;

/// Options of a compilation: the defaults, then `LOAFC_...` variables, then the given texts by name.
///
/// Raises `loafc.OptionError` for a name that doesn't exist or a text that the option can't be.
#[pyclass(frozen, module = "loafc._loafc")]
pub struct Options {
    pub inner: loafc::Options,
}

#[pymethods]
impl Options {
    #[new]
    #[pyo3(signature = (texts=None))]
    fn new(py: Python<'_>, texts: Option<BTreeMap<String, String>>) -> PyResult<Options> {
        let error = |e: loafc::OptionError| loafc_error(py, "OptionError", e);
        let defaults =
            loafc::Options { cache_dir: loafc::CacheFolder::Standard, ..loafc::Options::default() };
        let mut inner = defaults.with_env().map_err(error)?;
        let texts = texts.unwrap_or_default();
        inner.set_all(texts.iter().map(|(name, text)| (name.as_str(), text.as_str()))).map_err(error)?;
        Ok(Options { inner })
    }

    /// Whether a graph that fails to compile runs in eager mode.
    #[getter]
    fn fallback(&self) -> bool {
        self.inner.fallback
    }

    /// The folder for debugging output, or None.
    #[getter]
    fn debug_dir(&self) -> Option<String> {
        self.inner.debug_dir.as_ref().map(|folder| folder.display().to_string())
    }

    /// All options with their values as text.
    fn as_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        for option in loafc::Options::known() {
            dict.set_item(option.name, self.inner.get(option.name))?;
        }
        Ok(dict)
    }

    /// All options: name, and what each takes in words.
    #[staticmethod]
    fn known() -> Vec<(&'static str, &'static str)> {
        loafc::Options::known().iter().map(|option| (option.name, option.expected)).collect()
    }

    /// A warning of `LOAFC_...` variables that nothing reads, or None.
    #[staticmethod]
    fn warning_of_unknown_variables() -> Option<String> {
        loafc::Options::warning_of_unknown_variables()
    }

    fn __repr__(&self) -> String {
        let texts: Vec<String> = loafc::Options::known()
            .iter()
            .map(|o| format!("{}={}", o.name, self.inner.get(o.name).unwrap_or_default()))
            .collect();
        format!("Options({})", texts.join(", "))
    }
}
