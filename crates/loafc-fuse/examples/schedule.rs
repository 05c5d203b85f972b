//! Prints what the scheduler makes of `.loaf` files: kernels, reorderings and bytes, with the final round off and
//! on. `NESTS=1` prints the loop nests, `RECORDS=1` the decisions, `TINY=1` makes the limits small. `cargo run -p loafc-fuse --example schedule FILE.loaf...`

use loafc_fuse::options::Limits;
use loafc_fuse::{FuseOptions, fuse};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for path in std::env::args().skip(1) {
        let text = std::fs::read_to_string(&path)?;
        let graph = loafc_ir::text::parse(&text, &path)?;
        let program = loafc_lower::lower(&graph, &loafc_lower::LowerOptions::default())?;
        if std::env::var_os("NESTS").is_some() {
            println!("{program}");
        }
        let mixed_reduction_orders = !text.contains("mixed_reduction_orders=false");
        let run = |on| {
            let options = FuseOptions {
                loop_ordering_after_fusion: on,
                mixed_reduction_orders,
                limits: if std::env::var_os("TINY").is_some() { Limits::tiny() } else { Limits::default() },
                ..FuseOptions::default()
            };
            fuse(program.clone(), &options)
        };
        let (off, on) = (run(false)?.log, run(true)?.log);
        println!(
            "{path}: {} -> {} kernels, {} reorderings, {} -> {} bytes",
            off.kernels.len(),
            on.kernels.len(),
            on.loop_reorderings(),
            off.bytes,
            on.bytes
        );
        if std::env::var_os("RECORDS").is_some() {
            for r in &on.records {
                println!(
                    "   {:?} {:?} {} | {}: {}",
                    r.round,
                    r.method,
                    on.name_of(r.first),
                    on.name_of(r.second),
                    r.reason
                );
            }
        }
    }
    Ok(())
}
