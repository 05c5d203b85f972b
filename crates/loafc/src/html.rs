//! The report as a page of its own: how loop nests became kernels, round by round, as a drawing; the kernels; and
//! every decision of the scheduler with its reason. One file, no network, readable without scripts (a small one
//! filters the decisions).

use std::fmt::Write;

use loafc_fuse::log::{DecisionLog, Round, StepSummary};
use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::report::{BufferTraffic, KernelReport, Report, bytes_text, count_text};

const STYLE: &str = include_str!("report.css");
const SCRIPT: &str = include_str!("report.js");

/// Steps that are drawn at most: beyond that nobody can follow the lines.
const MOST_DRAWN: usize = 600;

/// Records that are listed at most; the JSON has all.
const MOST_RECORDS: usize = 20_000;

/// The whole page.
pub(crate) fn page(report: &Report) -> String {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (report.program) " - loafc" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { (report.program) }
                (summary(report))
                h2 { "From loop nests to kernels" }
                (drawing(&report.decisions))
                h2 { "Kernels" }
                @for (k, kernel) in report.kernels.iter().enumerate() {
                    (kernel_box(k, kernel, &report.decisions))
                }
                (extern_calls(report))
                h2 { "Decisions" }
                (decisions(&report.decisions))
                script { (PreEscaped(SCRIPT)) }
            }
        }
    }
    .into_string()
}

fn summary(report: &Report) -> Markup {
    let (log, s) = (&report.decisions, &report.compile_seconds);
    let nests: Vec<i64> = log.clusters.steps.iter().filter(|s| !s.is_extern).map(|s| s.bytes).collect();
    let rows = [
        ("each nest a kernel", nests.len(), nests.iter().sum()),
        ("after the regular rounds", log.kernels_before_final_round, log.bytes_before_final_round),
        ("after the final round", report.kernels.len(), report.bytes_accessed),
    ];
    let most = rows.iter().map(|r| r.2).max().unwrap_or(0).max(1);
    html! {
        table.summary {
            tr { th {} th { "kernels" } th { "memory traffic" } th {} }
            @for (name, kernels, bytes) in rows {
                tr {
                    td { (name) }
                    td.number { (kernels) }
                    td.number { (bytes_text(bytes)) }
                    td.bar { div style=(format!("width:{:.1}%", 100.0 * bytes as f64 / most as f64)) {} }
                }
            }
        }
        p {
            (count_text(report.extern_calls.len(), "extern call")) ", "
            (count_text(report.loop_reorderings, "loop reordering")) ". Compiled in "
            (format!("{:.1}", 1e3 * s.total())) " ms: convert " (format!("{:.1}", 1e3 * s.convert))
            ", lower " (format!("{:.1}", 1e3 * s.lower)) ", fuse " (format!("{:.1}", 1e3 * s.fuse))
            ", codegen " (format!("{:.1}", 1e3 * s.codegen)) "."
        }
    }
}

/// Width and height of a box of the drawing, and the distance from one row to the next.
const BOX: (usize, usize) = (250, 22);
const ROW: usize = 28;
/// Left edges of the three columns: nests, after the regular rounds, after the final round.
const COLUMNS: [usize; 3] = [120, 470, 820];

/// Three columns: the program's steps, the clusters after the regular rounds, the kernels. Arcs on the left are
/// dependencies.
fn drawing(log: &DecisionLog) -> Markup {
    let regular = log.clusters_after_regular_rounds();
    let steps = regular.len();
    if steps > MOST_DRAWN {
        return html! { p { "The program has " (steps) " steps, too many to draw." } };
    }
    let kernel_of = kernel_of_step(log);
    let middle = rows_of(&regular);
    let last: Vec<u32> = (0..steps).map(|s| kernel_of[s].map_or(u32::MAX - s as u32, |k| k as u32)).collect();
    let last_rows = rows_of(&last);
    let mut svg = String::new();
    arcs(&mut svg, log);
    for step in 0..steps {
        let hue = kernel_of[step].map(|k| k * 137 % 360);
        link(&mut svg, (0, step), (1, middle[step]), hue);
        link(&mut svg, (1, middle[step]), (2, last_rows[step]), hue);
    }
    let mut drawn = [vec![false; steps], vec![false; steps]];
    for step in 0..steps {
        let hue = kernel_of[step].map(|k| k * 137 % 360);
        let (name, hint) = step_text(log, step);
        rect(&mut svg, (0, step), hue, &name, &hint);
        if !std::mem::replace(&mut drawn[0][middle[step]], true) {
            let text = cluster_text(log, regular[step], &name);
            rect(&mut svg, (1, middle[step]), hue, &text, &text);
        }
        if !std::mem::replace(&mut drawn[1][last_rows[step]], true) {
            let text = match kernel_of[step] {
                Some(k) => format!("kernel {k}: {}", log.kernels[k].name),
                None => name.clone(),
            };
            rect(&mut svg, (2, last_rows[step]), hue, &text, &text);
        }
    }
    let height = steps * ROW + 30;
    let width = COLUMNS[2] + BOX.0 + 10;
    html! {
        svg viewBox=(format!("0 -30 {width} {height}")) style=(format!("max-width:{width}px")) {
            (PreEscaped(headings()))
            (PreEscaped(svg))
        }
    }
}

fn headings() -> String {
    let names = ["loop nests and extern calls", "after the regular rounds", "after the final round"];
    names
        .iter()
        .zip(COLUMNS)
        .map(|(name, x)| format!("<text class=\"head\" x=\"{x}\" y=\"-10\">{name}</text>"))
        .collect()
}

/// For each step of the program, the kernel that it ended in; `None` for extern calls.
fn kernel_of_step(log: &DecisionLog) -> Vec<Option<usize>> {
    let mut of_step = vec![None; log.clusters.steps.len()];
    for (k, kernel) in log.kernels.iter().enumerate() {
        for step in &kernel.steps {
            of_step[*step as usize] = Some(k);
        }
    }
    of_step
}

/// A row for each different group, in the order of its first member.
fn rows_of(groups: &[u32]) -> Vec<usize> {
    let mut seen: Vec<u32> = Vec::new();
    groups
        .iter()
        .map(|g| {
            seen.iter().position(|s| s == g).unwrap_or_else(|| {
                seen.push(*g);
                seen.len() - 1
            })
        })
        .collect()
}

fn step_text(log: &DecisionLog, step: usize) -> (String, String) {
    let StepSummary { name, space, source, bytes, .. } = &log.clusters.steps[step];
    let lines = source.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    (format!("{name} {space}"), format!("{name} {space}, {}\n{lines}", bytes_text(*bytes)))
}

fn cluster_text(log: &DecisionLog, cluster: u32, alone: &str) -> String {
    match log.steps_of(cluster).len() {
        1 => alone.to_owned(),
        n => format!("{n} nests: {}", log.name_of(cluster)),
    }
}

fn arcs(svg: &mut String, log: &DecisionLog) {
    for (from, to) in &log.edges {
        let y = |step: u32| step as usize * ROW + BOX.1 / 2;
        let (a, b) = (y(*from), y(*to));
        let reach = (12 + (b - a) / 6).min(COLUMNS[0] - 8);
        let x = COLUMNS[0];
        let _ = write!(svg, "<path class=\"arc\" d=\"M{x} {a}C{0} {a} {0} {b} {x} {b}\"/>", x - reach);
    }
}

fn link(svg: &mut String, from: (usize, usize), to: (usize, usize), hue: Option<usize>) {
    let (x1, x2) = (COLUMNS[from.0] + BOX.0, COLUMNS[to.0]);
    let (y1, y2) = (from.1 * ROW + BOX.1 / 2, to.1 * ROW + BOX.1 / 2);
    let bend = (x1 + x2) / 2;
    let color = color(hue);
    let _ = write!(
        svg,
        "<path class=\"link\" stroke=\"{color}\" d=\"M{x1} {y1}C{bend} {y1} {bend} {y2} {x2} {y2}\"/>"
    );
}

fn color(hue: Option<usize>) -> String {
    hue.map_or_else(|| "#999".to_owned(), |h| format!("hsl({h} 55% 50%)"))
}

fn rect(svg: &mut String, at: (usize, usize), hue: Option<usize>, text: &str, hint: &str) {
    let (x, y) = (COLUMNS[at.0], at.1 * ROW);
    let shown: String = if text.chars().count() > 32 {
        text.chars().take(31).chain(['…']).collect()
    } else {
        text.to_owned()
    };
    let (shown, hint) = (html! { (shown) }.into_string(), html! { (hint) }.into_string());
    let (w, h) = BOX;
    let (color, text_y) = (color(hue), y + 15);
    let _ = write!(
        svg,
        "<g><title>{hint}</title><rect x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\" rx=\"4\" \
         stroke=\"{color}\"/><text x=\"{}\" y=\"{text_y}\">{shown}</text></g>",
        x + 6
    );
}

fn extern_calls(report: &Report) -> Markup {
    html! {
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
    }
}

fn kernel_box(number: usize, kernel: &KernelReport, log: &DecisionLog) -> Markup {
    let fusions = log.kernels.get(number).map_or(0, |k| k.steps.len().saturating_sub(1));
    html! {
        div.kernel id=(format!("kernel{number}")) {
            h3 { (number) " " code { (kernel.name) } small { " " (count_text(fusions, "fusion")) } }
            p { "over " code { (kernel.outer) } ", " (count_text(kernel.stages, "stage")) ", " (bytes_text(kernel.bytes)) }
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

fn decisions(log: &DecisionLog) -> Markup {
    if log.records.is_empty() {
        return html! { p { "No two loop nests touch the same memory." } };
    }
    let of_step = kernel_of_step(log);
    let kernel_of = |cluster: u32| of_step[*log.steps_of(cluster).first()? as usize];
    html! {
        p {
            label { "Show only lines with " input #filter type="search" placeholder="fused, reorder, a name …"; }
            @if log.records.len() > MOST_RECORDS {
                " The first " (MOST_RECORDS) " of " (log.records.len()) " pairs; the JSON has all."
            }
        }
        table #decisions {
            thead {
                tr {
                    th { "round" } th { "first" } th { "second" } th { "how" }
                    th { "score, natural → chosen" } th { "verdict" } th { "kernel" }
                }
            }
            tbody {
                @for record in log.records.iter().take(MOST_RECORDS) {
                    tr.fused[record.reason.is_fused()] {
                        td { (if record.round == Round::Regular { "regular" } else { "final" }) }
                        td { code { (log.name_of(record.first)) } }
                        td { code { (log.name_of(record.second)) } }
                        td { (format!("{:?}", record.method).to_lowercase()) }
                        td.number { (record.natural_score) " → " (record.score) }
                        td { (log.explain(&record.reason)) }
                        td {
                            @for side in [record.first, record.second] {
                                @if let Some(k) = kernel_of(side) {
                                    a href=(format!("#kernel{k}")) { (k) } " "
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}
