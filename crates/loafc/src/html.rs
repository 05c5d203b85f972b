//! The report as a page of its own: kernels, extern calls, and a table of the scheduler's decisions.

use maud::{DOCTYPE, Markup, html};

use crate::report::{BufferTraffic, KernelReport, Report, bytes_text};

const STYLE: &str = "body{font:14px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem}\
table{border-collapse:collapse;width:100%}td,th{border-bottom:1px solid #ddd;padding:.25rem .5rem;text-align:left;\
vertical-align:top}code{font:13px ui-monospace,monospace}.kernel{border:1px solid #ccc;border-radius:6px;\
padding:.5rem 1rem;margin:1rem 0}.fused{background:#eaf6ea}small{color:#555}\
@media(prefers-color-scheme:dark){body{background:#181818;color:#ddd}td,th,.kernel{border-color:#444}\
.fused{background:#1e3320}small{color:#aaa}}";

/// The whole page.
pub(crate) fn page(report: &Report) -> String {
    let s = &report.compile_seconds;
    let log = &report.decisions;
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                title { (report.program) " - loafc" }
                style { (maud::PreEscaped(STYLE)) }
            }
            body {
                h1 { (report.program) }
                p {
                    (report.kernels.len()) " kernels, " (report.extern_calls.len()) " extern calls, "
                    (report.loop_reorderings) " loop reorderings, " (bytes_text(report.bytes_accessed)) " accessed. "
                    "Without the final round: " (log.kernels_before_final_round) " kernels, "
                    (bytes_text(log.bytes_before_final_round)) "."
                }
                p {
                    "Compiled in " (format!("{:.1}", 1e3 * s.total())) " ms: convert "
                    (format!("{:.1}", 1e3 * s.convert)) ", lower " (format!("{:.1}", 1e3 * s.lower)) ", fuse "
                    (format!("{:.1}", 1e3 * s.fuse)) ", codegen " (format!("{:.1}", 1e3 * s.codegen)) "."
                }
                h2 { "Kernels" }
                @for (k, kernel) in report.kernels.iter().enumerate() { (kernel_box(k, kernel)) }
                @if !report.extern_calls.is_empty() {
                    h2 { "Extern calls" }
                    table {
                        tr { th { "operator" } th { "operands" } th { "results" } th { "source" } }
                        @for call in &report.extern_calls {
                            tr {
                                td { code { (call.op) } }
                                td { (call.operands.join(", ")) }
                                td { (call.results.join(", ")) }
                                td { @if let Some(source) = &call.source { (source) } }
                            }
                        }
                    }
                }
                h2 { "Decisions" }
                (decisions(report))
            }
        }
    }
    .into_string()
}

fn kernel_box(number: usize, kernel: &KernelReport) -> Markup {
    html! {
        div.kernel {
            h3 { (number) " " code { (kernel.name) } }
            p { "over " code { (kernel.outer) } ", " (kernel.stages) " stages, " (bytes_text(kernel.bytes)) }
            ol {
                @for member in &kernel.members {
                    li {
                        code { (member.name) }
                        @if kernel.stages > 1 { small { " stage " (member.stage) } }
                        @for line in &member.source { " " small { (line) } }
                    }
                }
            }
            (traffic("reads", &kernel.reads))
            (traffic("writes", &kernel.writes))
            @if !kernel.local.is_empty() { p { "keeps " (kernel.local.join(", ")) } }
        }
    }
}

fn traffic(verb: &str, buffers: &[BufferTraffic]) -> Markup {
    html! {
        @if !buffers.is_empty() {
            p {
                (verb) " "
                @for (k, b) in buffers.iter().enumerate() {
                    @if k > 0 { ", " }
                    code { (b.name) } " " small { (b.dtype) " " (bytes_text(b.bytes)) }
                }
            }
        }
    }
}

fn decisions(report: &Report) -> Markup {
    let log = &report.decisions;
    html! {
        @if log.records.is_empty() { p { "No two loop nests touch the same memory." } }
        @else {
            table {
                tr { th { "round" } th { "first" } th { "second" } th { "how" } th { "score" } th { "verdict" } }
                @for record in &log.records {
                    tr.fused[record.reason.is_fused()] {
                        td { (format!("{:?}", record.round).to_lowercase()) }
                        td { code { (log.name_of(record.first)) } }
                        td { code { (log.name_of(record.second)) } }
                        td { (format!("{:?}", record.method).to_lowercase()) }
                        td { (record.natural_score) " → " (record.score) }
                        td { (record.reason) }
                    }
                }
            }
        }
    }
}
