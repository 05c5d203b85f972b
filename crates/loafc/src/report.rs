//! What the compiler did with one program: kernels with their members and memory traffic, extern calls, every
//! decision of the scheduler, and the seconds that each phase took. One structure for the text, the JSON and the
//! page.

use std::fmt::Write;
use std::sync::Arc;

use loafc_codegen::code::Origin;
use loafc_codegen::kernel::KernelUse;
use loafc_fuse::log::DecisionLog;
use loafc_fuse::schedule::{Group, GroupBuffer, Place, Schedule, ScheduledStep};
use loafc_ir::nest::{NestProgram, Step};
use serde::Serialize;

/// Seconds that the phases of a compilation took.
#[derive(Copy, Clone, Debug, Default, PartialEq, Serialize)]
pub struct CompileSeconds {
    /// From the front end's form to a tensor program; the front end sets it.
    pub convert: f64,
    /// To loop nests.
    pub lower: f64,
    /// To fused groups.
    pub fuse: f64,
    /// How much of `fuse` went into deciding on fusions, without finding dependencies before and laying out groups behind.
    pub rounds: f64,
    /// To machine code that is loaded and linked.
    pub codegen: f64,
}

impl CompileSeconds {
    /// All phases together.
    pub fn total(&self) -> f64 {
        self.convert + self.lower + self.fuse + self.codegen
    }
}

/// A report on one program.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The program's name.
    pub program: Arc<str>,
    /// Kernels in the order in which they run.
    pub kernels: Vec<KernelReport>,
    /// Extern calls in the order in which they are made.
    pub extern_calls: Vec<ExternReport>,
    /// Fusions that reordered loops.
    pub loop_reorderings: usize,
    /// Bytes between memory and kernels in one run; symbols count as their hints.
    pub bytes_accessed: i64,
    /// Everything that the scheduler decided.
    pub decisions: DecisionLog,
    /// Seconds of each phase.
    pub compile_seconds: CompileSeconds,
    /// Where the kernels' machine code came from.
    pub code: CodeOrigins,
    /// What the user asked for and doesn't get, such as a cache in a folder that can't be used.
    pub warnings: Vec<String>,
}

/// Kernels of different structure, by where their machine code came from. All 0 as long as a program is only
/// explained.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CodeOrigins {
    /// LLVM made it.
    pub compiled: usize,
    /// Another program of the process had the same kernel.
    pub process: usize,
    /// The folder for machine code had it.
    pub cache: usize,
}

impl CodeOrigins {
    pub(crate) fn of(kernels: &[KernelUse]) -> CodeOrigins {
        let mut counts = CodeOrigins::default();
        let mut seen = Vec::new();
        for kernel in kernels.iter().map(|k| &k.kernel) {
            if seen.iter().any(|other| Arc::ptr_eq(other, kernel)) {
                continue;
            }
            seen.push(kernel.clone());
            match kernel.origin {
                Origin::Compiled => counts.compiled += 1,
                Origin::Process => counts.process += 1,
                Origin::Store => counts.cache += 1,
            }
        }
        counts
    }
}

/// One kernel.
#[derive(Clone, Debug, Serialize)]
pub struct KernelReport {
    /// Name for people.
    pub name: Arc<str>,
    /// Extents of the loops that all members share.
    pub outer: String,
    /// Passes within an iteration of these.
    pub stages: usize,
    /// The loop nests in it, in order.
    pub members: Vec<MemberReport>,
    /// Buffers that it reads from memory.
    pub reads: Vec<BufferTraffic>,
    /// Buffers that it writes to memory.
    pub writes: Vec<BufferTraffic>,
    /// Buffers that live only within it.
    pub local: Vec<Arc<str>>,
    /// Bytes between memory and kernel in one run.
    pub bytes: i64,
}

/// One loop nest of a kernel.
#[derive(Clone, Debug, Serialize)]
pub struct MemberReport {
    /// Name for people.
    pub name: Arc<str>,
    /// Its stage, from 0.
    pub stage: usize,
    /// Lines of the user's source.
    pub source: Vec<String>,
}

/// A buffer that a kernel reads or writes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BufferTraffic {
    /// The tensor's name.
    pub name: Arc<str>,
    /// Element type.
    pub dtype: &'static str,
    /// Bytes of the whole buffer; a kernel may touch a part of it.
    pub bytes: i64,
}

/// One extern call.
#[derive(Clone, Debug, Serialize)]
pub struct ExternReport {
    /// The operator.
    pub op: Arc<str>,
    /// Its operands, `name: type[shape]`.
    pub operands: Vec<String>,
    /// Its results.
    pub results: Vec<String>,
    /// Line of the user's source.
    pub source: Option<String>,
}

impl Report {
    pub(crate) fn new(schedule: &Schedule, log: DecisionLog, seconds: CompileSeconds) -> Report {
        let program = &schedule.program;
        let mut kernels = Vec::new();
        let mut extern_calls = Vec::new();
        for step in &schedule.steps {
            match step {
                ScheduledStep::Kernel(group) => {
                    let bytes = log.kernels.get(kernels.len()).map_or(0, |k| k.bytes);
                    kernels.push(kernel_report(group, program, bytes));
                }
                ScheduledStep::Extern(id) => {
                    if let Some(Step::Extern(call)) = program.steps.get(id.0 as usize) {
                        extern_calls.push(extern_report(call, program));
                    }
                }
            }
        }
        Report {
            program: program.name.clone(),
            kernels,
            extern_calls,
            loop_reorderings: log.loop_reorderings(),
            bytes_accessed: log.bytes,
            decisions: log,
            compile_seconds: seconds,
            code: CodeOrigins::default(),
            warnings: Vec::new(),
        }
    }

    /// The report for a terminal.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        // Writing to a string can't fail.
        let _ = self.write_text(&mut text);
        text
    }

    /// What the scheduler decided about each pair of loop nests that it looked at, a line each.
    pub fn decisions_text(&self) -> String {
        let log = &self.decisions;
        let line = |record: &loafc_fuse::log::Record| {
            let round = format!("{:?}", record.round).to_lowercase();
            let (first, second) = (log.name_of(record.first), log.name_of(record.second));
            format!("  {round:<7} {first} | {second}: {}\n", log.explain(&record.reason))
        };
        let lines: String = log.records.iter().map(line).collect();
        if lines.is_empty() { "decisions: none to make\n".to_owned() } else { format!("decisions\n{lines}") }
    }

    /// The report as JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_else(|e| format!("{{\"error\": \"{e}\"}}"))
    }

    /// The report as a page that needs nothing else.
    pub fn to_html(&self) -> String {
        crate::html::page(self)
    }

    /// How many kernels and extern calls there are, for people: `1 kernel, 2 extern calls`.
    pub fn counts(&self) -> String {
        let (kernels, calls) = (self.kernels.len(), self.extern_calls.len());
        format!("{}, {}", count_text(kernels, "kernel"), count_text(calls, "extern call"))
    }

    fn write_text(&self, text: &mut String) -> std::fmt::Result {
        let s = &self.compile_seconds;
        writeln!(
            text,
            "{}: {}, {}, {} accessed",
            self.program,
            self.counts(),
            count_text(self.loop_reorderings, "loop reordering"),
            bytes_text(self.bytes_accessed)
        )?;
        writeln!(
            text,
            "compiled in {:.1} ms: convert {:.1}, lower {:.1}, fuse {:.1}, codegen {:.1}",
            1e3 * s.total(),
            1e3 * s.convert,
            1e3 * s.lower,
            1e3 * s.fuse,
            1e3 * s.codegen
        )?;
        for warning in &self.warnings {
            writeln!(text, "warning: {warning}")?;
        }
        for (k, kernel) in self.kernels.iter().enumerate() {
            writeln!(
                text,
                "\nkernel {k} {} over {}, {}",
                kernel.name,
                kernel.outer,
                bytes_text(kernel.bytes)
            )?;
            for member in &kernel.members {
                let stage =
                    if kernel.stages > 1 { format!("stage {}: ", member.stage) } else { String::new() };
                let source = if member.source.is_empty() {
                    String::new()
                } else {
                    format!("  # {}", member.source.join(", "))
                };
                writeln!(text, "  {stage}{}{source}", member.name)?;
            }
            write_traffic(text, "reads", &kernel.reads)?;
            write_traffic(text, "writes", &kernel.writes)?;
            if !kernel.local.is_empty() {
                writeln!(text, "  keeps  {}", kernel.local.join(", "))?;
            }
        }
        for call in &self.extern_calls {
            let source = call.source.as_ref().map_or_else(String::new, |s| format!("  # {s}"));
            let (results, operands) = (call.results.join(", "), call.operands.join(", "));
            writeln!(text, "\nextern {results} = {}({operands}){source}", call.op)?;
        }
        Ok(())
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.to_text())
    }
}

fn write_traffic(text: &mut String, verb: &str, buffers: &[BufferTraffic]) -> std::fmt::Result {
    if buffers.is_empty() {
        return Ok(());
    }
    let each = |b: &BufferTraffic| format!("{}: {} ({})", b.name, b.dtype, bytes_text(b.bytes));
    writeln!(text, "  {verb:<6} {}", buffers.iter().map(each).collect::<Vec<_>>().join(", "))
}

/// A number of things for people: `1 kernel`, `2 kernels`.
pub fn count_text(count: usize, thing: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {thing}{plural}")
}

/// A number of bytes for people: `12 B`, `3.5 KiB`.
pub(crate) fn bytes_text(bytes: i64) -> String {
    let mut value = bytes as f64;
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    while value.abs() >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = if unit == 0 || value.fract() == 0.0 { 0 } else { 1 };
    format!("{value:.digits$} {}", units[unit])
}

fn kernel_report(group: &Group, program: &NestProgram, bytes: i64) -> KernelReport {
    let traffic = |b: &GroupBuffer| {
        let buffer = program.buffer(b.buffer);
        BufferTraffic {
            name: buffer.name.clone(),
            dtype: buffer.dtype.name(),
            bytes: buffer.len.hint(&program.hints).saturating_mul(buffer.dtype.bytes() as i64),
        }
    };
    let in_memory = || group.buffers.iter().filter(|b| b.place == Place::Memory);
    let local = group.buffers.iter().filter(|b| b.place != Place::Memory);
    let members = group.stages.iter().enumerate().flat_map(|(stage, s)| {
        s.members.iter().map(move |m| MemberReport {
            name: m.name.clone(),
            stage,
            source: m.origins.iter().map(ToString::to_string).collect(),
        })
    });
    let outer: Vec<String> = group.outer.iter().map(ToString::to_string).collect();
    KernelReport {
        name: group.name.clone(),
        outer: format!("[{}]", outer.join(", ")),
        stages: group.stages.len(),
        members: members.collect(),
        reads: in_memory().filter(|b| b.read).map(traffic).collect(),
        writes: in_memory().filter(|b| b.written).map(traffic).collect(),
        local: local.map(|b| program.buffer(b.buffer).name.clone()).collect(),
        bytes,
    }
}

fn extern_report(call: &loafc_ir::nest::ExternCall, program: &NestProgram) -> ExternReport {
    let text = |view: &loafc_ir::nest::TensorView| {
        let buffer = program.buffer(view.buffer);
        format!("{}: {}{:?}", buffer.name, buffer.dtype, view.shape)
    };
    ExternReport {
        op: call.op.clone(),
        operands: call.tensors.iter().map(text).collect(),
        results: call.results.iter().map(|r| r.as_ref().map_or_else(|| "_".to_owned(), text)).collect(),
        source: call.origin.as_ref().map(ToString::to_string),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_read_as_people_write_them() {
        let texts = [0, 1023, 1024, 1536, 5 << 20, 3 << 40].map(bytes_text);
        assert_eq!(texts, ["0 B", "1023 B", "1 KiB", "1.5 KiB", "5 MiB", "3 TiB"]);
    }
}
