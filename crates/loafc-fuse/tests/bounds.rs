//! The final round takes the way that saves most, although it stops looking where it has found all that a bound
//! promises: the bound must hold of passes over buffers, too, that only one of the two clusters touches.

use loafc_fuse::log::Method;
use loafc_fuse::{FuseOptions, fuse};
use loafc_lower::{LowerOptions, lower};

/// Schedules a program; the ways in which it was fused, and the bytes that are left.
fn scheduled(text: &str) -> (Vec<Method>, i64) {
    let graph = loafc_ir::text::parse(text, "bounds").unwrap_or_else(|e| panic!("{e}"));
    let program = lower(&graph, &LowerOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    let log = fuse(program, &FuseOptions::default()).unwrap_or_else(|e| panic!("{e}")).log;
    (log.fusions().map(|r| r.method).collect(), log.bytes)
}

#[test]
fn a_way_that_joins_two_reads_of_an_unshared_buffer_wins() {
    // A reordering keeps y in the kernel, but x is still read along its rows and along its columns. Done in one go
    // x is in the cache for both.
    let (methods, bytes) = scheduled(
        "graph @twice(%x: f32[32, 32]) {
  %t = aten.permute.default(%x, [1, 0])
  %s = aten.add.Tensor(%x, %t)
  %y = loafc.realize.default(%s)
  %u = aten.permute.default(%y, [1, 0])
  %z = aten.clone.default(%u, memory_format=\"contiguous_format\")
  return %z
}
",
    );
    assert_eq!(methods, [Method::Serial]);
    assert_eq!(bytes, 2 * 32 * 32 * 4);
}
