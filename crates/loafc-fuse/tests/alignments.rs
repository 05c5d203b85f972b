//! An alignment is a bijection between iteration spaces, and under it the accesses that it was derived from are
//! equal: checked by enumeration over random spaces, with constant and with symbolic extents.

use std::collections::HashSet;

use loafc_fuse::alignment::{Alignment, by_access, natural};
use loafc_fuse::cluster::{Cluster, Respace};
use loafc_ir::dtype::DType;
use loafc_ir::graph::Device;
use loafc_ir::index::{Index, IndexAtom, LoopVar};
use loafc_ir::nest::{
    Body, Buffer, BufferId, BufferSource, Loop, LoopKind, LoopNest, NestProgram, Op, ReduceOp, Step, StepId,
    StoreMode,
};
use loafc_ir::size::{Size, SymbolValues};
use proptest::prelude::*;

/// Values of the symbols that extents may be.
fn symbols() -> SymbolValues {
    let mut values = SymbolValues::new();
    for k in 0..4 {
        values.set(&format!("n{k}"), k + 2);
    }
    values
}

fn value(size: Size) -> i64 {
    size.eval(&symbols()).expect("all symbols have values")
}

/// One dimension of the shared buffer.
#[derive(Clone, Debug)]
struct Dim {
    extent: Size,
    stride: Size,
}

/// Dimensions of a dense buffer, outermost first.
fn dims(extents: &[Size]) -> Vec<Dim> {
    let mut stride = Size::ONE;
    let mut out: Vec<Dim> = extents
        .iter()
        .rev()
        .map(|extent| {
            let dim = Dim { extent: *extent, stride };
            stride *= *extent;
            dim
        })
        .collect();
    out.reverse();
    out
}

/// Joins neighbours of the list that continue each other in memory, where `join` says so.
fn joined(dims: &[Dim], join: &[bool]) -> Vec<Dim> {
    let mut out: Vec<Dim> = Vec::new();
    for (k, dim) in dims.iter().enumerate() {
        match out.last_mut() {
            Some(last) if join[k] && last.stride == dim.stride * dim.extent => {
                *last = Dim { extent: last.extent * dim.extent, stride: dim.stride };
            }
            _ => out.push(dim.clone()),
        }
    }
    out
}

/// A nest that reads the whole shared buffer, its last `reduced` loops as a sum.
fn cluster(dims: &[Dim], reduced: usize, step: u32) -> (Cluster, NestProgram) {
    let parallel = dims.len() - reduced;
    let mut load = Index::default();
    let mut store = Index::default();
    let mut next = Size::ONE;
    for (k, dim) in dims.iter().enumerate().rev() {
        load.add_term(IndexAtom::Loop(LoopVar(k as u16)), dim.stride);
        if k < parallel {
            store.add_term(IndexAtom::Loop(LoopVar(k as u16)), next);
            next *= dim.extent;
        }
    }
    let mut body = Body::default();
    let mut result = body.push(Op::Load { buffer: BufferId(0), index: load, guard: None });
    if reduced > 0 {
        result = body.push(Op::Reduce { op: ReduceOp::Sum, value: result, position: None });
    }
    body.push(Op::Store {
        buffer: BufferId(1 + step),
        index: store,
        value: result,
        guard: None,
        mode: StoreMode::Set,
    });
    let kind = |k: usize| if k < parallel { LoopKind::Parallel } else { LoopKind::Reduction };
    let loops = dims.iter().enumerate().map(|(k, d)| Loop { extent: d.extent, kind: kind(k) }).collect();
    let nest = LoopNest { name: "read".into(), loops, body, origins: Vec::new() };
    let buffer = |len| Buffer {
        name: "b".into(),
        dtype: DType::F32,
        len,
        device: Device::Cpu,
        source: BufferSource::Owned,
    };
    let len: Size = dims.iter().map(|d| d.extent).product();
    let program = NestProgram {
        buffers: vec![buffer(len); 3],
        steps: vec![Step::Nest(nest.clone())],
        hints: symbols(),
        ..NestProgram::default()
    };
    (Cluster::of_nest(StepId(step), &nest, &program), program)
}

/// All positions of a space.
fn positions(extents: &[i64]) -> Vec<Vec<i64>> {
    extents.iter().fold(vec![vec![]], |all, extent| {
        all.into_iter()
            .flat_map(|p| (0..*extent).map(move |v| p.iter().copied().chain([v]).collect()))
            .collect()
    })
}

/// Where each new position was in the old outer space.
fn old_position(space: &Respace, outer: usize, new: &[i64]) -> Vec<i64> {
    let mut old = vec![0; outer];
    for (digit, at) in space.digits.iter().zip(new) {
        old[digit.from] += value(digit.weight) * at;
    }
    old
}

fn check_bijection(space: &Respace, outer: &[Size]) -> Result<(), TestCaseError> {
    let new = positions(&space.digits.iter().map(|d| value(d.extent)).collect::<Vec<_>>());
    let old: HashSet<Vec<i64>> = new.iter().map(|p| old_position(space, outer.len(), p)).collect();
    let all: HashSet<Vec<i64>> =
        positions(&outer.iter().map(|e| value(*e)).collect::<Vec<_>>()).into_iter().collect();
    prop_assert_eq!(old.len(), new.len(), "two new positions are one old one");
    prop_assert_eq!(old, all, "old positions are missed");
    Ok(())
}

/// Elements of the shared buffer that each outer iteration reads.
fn elements(cluster: &Cluster, space: &Respace) -> Vec<HashSet<i64>> {
    let mut cluster = cluster.clone();
    cluster.respace(space);
    let member = &cluster.members[0];
    let read = member.accesses.iter().find(|a| a.buffer == BufferId(0)).expect("it reads");
    let strides = &read.place.as_ref().expect("affine").strides;
    let at =
        |p: &[i64], from: usize| -> i64 { p.iter().zip(&strides[from..]).map(|(v, s)| v * value(*s)).sum() };
    let outer: Vec<i64> = cluster.outer.iter().map(|e| value(*e)).collect();
    let inner: Vec<i64> = member.inner.iter().map(|e| value(*e)).collect();
    positions(&outer)
        .iter()
        .map(|o| positions(&inner).iter().map(|i| at(o, 0) + at(i, outer.len())).collect())
        .collect()
}

fn extents() -> impl Strategy<Value = Vec<Size>> {
    let extent =
        prop_oneof![(2i64..5).prop_map(Size::from), (0u32..4).prop_map(|k| Size::symbol(&format!("n{k}")))];
    prop::collection::vec(extent, 1..5)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn an_alignment_by_access_is_a_bijection_under_which_accesses_are_equal(
        extents in extents(),
        order in Just((0..4).collect::<Vec<usize>>()).prop_shuffle(),
        join in prop::collection::vec(any::<bool>(), 8),
        reduced in 0usize..3,
    ) {
        let shared = dims(&extents);
        let first = joined(&shared, &join[..4]);
        let permuted: Vec<Dim> = order.iter().filter_map(|k| shared.get(*k).cloned()).collect();
        let second = joined(&permuted, &join[4..]);
        let reduced = reduced.min(first.len() - 1);
        let ((a, _), (b, _)) = (cluster(&first, reduced, 0), cluster(&second, 0, 1));
        let site = |c: &'static Cluster| (c, &*c.members[0], &c.members[0].accesses[0]);
        let (a, b): (&'static Cluster, &'static Cluster) = (Box::leak(Box::new(a)), Box::leak(Box::new(b)));
        // Equal symbols in a row make strides that can't be told apart by division; constants always can.
        let Some(Alignment { first, second }) = by_access(site(a), site(b)) else {
            prop_assert!(extents.iter().any(|e| e.as_const().is_none()), "constant strides always match");
            return Ok(());
        };
        check_bijection(&first, &a.outer)?;
        check_bijection(&second, &b.outer)?;
        prop_assert_eq!(elements(a, &first), elements(b, &second));
    }

    #[test]
    fn a_natural_alignment_is_a_bijection_that_keeps_the_order(
        extents in extents(),
        join in prop::collection::vec(any::<bool>(), 8),
        reduced in 0usize..3,
    ) {
        let shared = dims(&extents);
        let (first, second) = (joined(&shared, &join[..4]), joined(&shared, &join[4..]));
        let reduced = reduced.min(first.len() - 1);
        let ((a, _), (b, _)) = (cluster(&first, reduced, 0), cluster(&second, 0, 1));
        let alignment = natural(&a, &b);
        check_bijection(&alignment.first, &a.outer)?;
        check_bijection(&alignment.second, &b.outer)?;
        prop_assert_eq!(alignment.reorderings(), 0);
        let outer = |s: &Respace| s.digits[..s.outer].iter().map(|d| d.extent).collect::<Vec<_>>();
        prop_assert_eq!(outer(&alignment.first), outer(&alignment.second));
        if reduced == 0 {
            prop_assert_eq!(alignment.first.outer, alignment.first.digits.len(), "equal spaces align completely");
        }
        // Over a prefix of the order, both read the same elements in the same iteration.
        prop_assert_eq!(elements(&a, &alignment.first), elements(&b, &alignment.second));
    }
}
