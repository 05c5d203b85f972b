//! The way of a program through all phases, with the time that each takes.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use loafc_codegen::code::ObjectStore;
use loafc_codegen::kernel::{CodegenOptions, KernelUse};
use loafc_fuse::Fused;
use loafc_ir::graph::Graph;
use loafc_ir::nest::{ExternCall, NestProgram};
use loafc_lower::LowerOptions;
use loafc_runtime::externs_native::NativeExterns;
use loafc_runtime::{Executable, inputs_of};

use crate::disk_cache::{CacheError, DiskCache, standard_folder};
use crate::error::{CompileError, Phase, guarded};
use crate::options::{CacheFolder, Options};
use crate::program::Program;
use crate::report::{CodeOrigins, CompileSeconds, Report};

/// Says which extern calls put their results where the runtime wants them.
type WritesResults = Arc<dyn Fn(&ExternCall) -> bool + Send + Sync>;

/// Compiles tensor programs.
#[derive(Clone)]
pub struct Compiler {
    options: Options,
    writes_results: WritesResults,
}

impl Compiler {
    /// A compiler for programs whose extern calls are made by [`NativeExterns`].
    pub fn new(options: Options) -> Compiler {
        Compiler { options, writes_results: Arc::new(NativeExterns::writes_results) }
    }

    /// A compiler for a front end that makes extern calls itself: `writes_results` says which of them put their
    /// results where the runtime wants them; the others bring memory of their own.
    pub fn with_externs(
        options: Options,
        writes_results: impl Fn(&ExternCall) -> bool + Send + Sync + 'static,
    ) -> Compiler {
        Compiler { options, writes_results: Arc::new(writes_results) }
    }

    /// The settings.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Turns a tensor program into loop nests.
    ///
    /// # Errors
    /// When the program is not valid or an operator can't be lowered.
    pub fn lower(&self, graph: &Graph) -> Result<NestProgram, CompileError> {
        self.verify_graph(graph)?;
        let nests =
            guarded(Phase::Lower, &graph.name, || Ok(loafc_lower::lower(graph, &LowerOptions::default())?))?;
        self.verify_nests(&nests)?;
        Ok(nests)
    }

    /// Decides which loop nests become one kernel.
    ///
    /// # Errors
    /// When the loop nests can't be scheduled.
    pub fn fuse(&self, nests: NestProgram) -> Result<Fused, CompileError> {
        let name = nests.name.clone();
        guarded(Phase::Fuse, &name, || Ok(loafc_fuse::fuse(nests, &self.options.fuse())?))
    }

    /// Lowers and schedules a tensor program, and reports on it; makes no code.
    ///
    /// # Errors
    /// When lowering or scheduling fails.
    pub fn explain(&self, graph: &Graph) -> Result<Report, CompileError> {
        let mut seconds = CompileSeconds::default();
        let Fused { schedule, log, .. } = self.schedule(graph, &mut seconds)?;
        guarded(Phase::Report, &graph.name, || Ok(Report::new(&schedule, log, seconds)))
    }

    fn schedule(&self, graph: &Graph, seconds: &mut CompileSeconds) -> Result<Fused, CompileError> {
        let start = Instant::now();
        let nests = self.lower(graph)?;
        seconds.lower = start.elapsed().as_secs_f64();
        let start = Instant::now();
        let fused = self.fuse(nests)?;
        seconds.fuse = start.elapsed().as_secs_f64();
        seconds.rounds = fused.rounds.as_secs_f64();
        Ok(fused)
    }

    /// Compiles a tensor program.
    ///
    /// # Errors
    /// When some phase refuses the program, or fails by a bug.
    pub fn compile(&self, graph: Graph) -> Result<Program, CompileError> {
        let mut seconds = CompileSeconds::default();
        let fused = self.schedule(&graph, &mut seconds)?;
        let start = Instant::now();
        let (cache, mut warning) = match self.cache() {
            Ok(cache) => (cache.map(Arc::new), None),
            Err(error) => (None, Some(error.to_string())),
        };
        let store = cache.clone().map(|cache| cache as Arc<dyn ObjectStore>);
        let codegen = CodegenOptions { store, ..self.options.codegen() };
        let kernels = guarded(Phase::Codegen, &graph.name, || {
            Ok(loafc_codegen::kernel::compile(&fused.schedule, &codegen)?)
        })?;
        let executable = guarded(Phase::Link, &graph.name, || {
            Ok(Executable::new(inputs_of(&graph), &fused.schedule, &kernels, &*self.writes_results)?)
        })?;
        seconds.codegen = start.elapsed().as_secs_f64();

        let Fused { schedule, log, .. } = fused;
        let mut report = guarded(Phase::Report, &graph.name, || Ok(Report::new(&schedule, log, seconds)))?;
        report.code = CodeOrigins::of(&kernels);
        if self.options.cache_dir != CacheFolder::Standard {
            warning = warning.or_else(|| cache?.failure());
        }
        report.warnings.extend(
            warning.map(|what| format!("option `cache_dir`: {what}; machine code is not kept there")),
        );
        if let Some(folder) = &self.options.debug_dir {
            write_debug_files(folder, &graph, &report, &kernels)?;
        }
        Ok(Program::new(executable, report, self.options.threads))
    }

    /// The folder for machine code, if it is to be used and can be.
    ///
    /// # Errors
    /// When one that the user named can't be.
    fn cache(&self) -> Result<Option<DiskCache>, CacheError> {
        let limit = self.options.cache_mib.saturating_mul(1 << 20);
        match &self.options.cache_dir {
            CacheFolder::Off => Ok(None),
            CacheFolder::Standard => {
                Ok(standard_folder().and_then(|folder| DiskCache::open(&folder, limit).ok()))
            }
            CacheFolder::At(folder) => DiskCache::open(folder, limit).map(Some),
        }
    }

    fn verify_graph(&self, graph: &Graph) -> Result<(), CompileError> {
        if !self.options.verify {
            return Ok(());
        }
        guarded(Phase::Verify, &graph.name, || {
            loafc_ir::verify::verify_graph(graph)
                .map_err(|e| CompileError::Invalid { program: graph.name.clone(), message: e.to_string() })
        })
    }

    /// Loop nests are the compiler's own: what is wrong with them is a bug.
    fn verify_nests(&self, nests: &NestProgram) -> Result<(), CompileError> {
        if !self.options.verify {
            return Ok(());
        }
        guarded(Phase::Verify, &nests.name, || {
            loafc_ir::verify::verify_program(nests).map_err(|e| CompileError::Internal {
                phase: Phase::Lower,
                program: nests.name.clone(),
                message: e.to_string(),
            })
        })
    }
}

impl Default for Compiler {
    fn default() -> Self {
        Compiler::new(Options::default())
    }
}

/// Writes a program's text, its report and its kernels into a folder named after the program.
fn write_debug_files(
    folder: &Path,
    graph: &Graph,
    report: &Report,
    kernels: &[KernelUse],
) -> Result<(), CompileError> {
    let folder = folder.join(file_name(&graph.name));
    let failed = |path: &Path, e: std::io::Error| CompileError::DebugDir {
        path: path.display().to_string(),
        message: e.to_string(),
    };
    std::fs::create_dir_all(&folder).map_err(|e| failed(&folder, e))?;
    let write = |name: String, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).map_err(|e| failed(&path, e))
    };
    write("program.loaf".to_owned(), &graph.to_string())?;
    write("report.txt".to_owned(), &report.to_text())?;
    write("report.json".to_owned(), &report.to_json())?;
    write("report.html".to_owned(), &report.to_html())?;
    for (k, kernel) in kernels.iter().enumerate() {
        let Some(text) = &kernel.kernel.text else { continue };
        let name = format!("kernel{k}_{}", file_name(&kernel.kernel.name));
        write(format!("{name}.tree"), &text.loop_tree)?;
        write(format!("{name}.ll"), &text.llvm_ir)?;
        write(format!("{name}.s"), &text.assembly)?;
    }
    Ok(())
}

/// The name with what file systems don't take replaced, and of bounded length.
fn file_name(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
    let text: String = name.chars().map(plain).take(80).collect();
    if text.trim_matches('.').is_empty() { "program".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_file_names() {
        assert_eq!(file_name("a/b c"), "a_b_c");
        assert_eq!(file_name(".."), "program");
        assert_eq!(file_name(&"x".repeat(500)).len(), 80);
    }
}
