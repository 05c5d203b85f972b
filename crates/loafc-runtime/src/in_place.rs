//! Finds the buffers that a kernel may write in the place of one it reads: where each iteration reads exactly the
//! element that it overwrites, and the value written is computed from the one read, so that no order of loads and
//! stores within the kernel can tell the difference.

use loafc_fuse::schedule::{Group, Member, Stage};
use loafc_ir::index::{Index, IndexAtom, LoopVar};
use loafc_ir::nest::{BufferId, Op, StoreMode, ValueId};
use loafc_ir::size::Size;

/// Pairs of a buffer that is read and one that may be written in its place. No buffer is in two pairs.
///
/// Holds for kernels of a single phase that run each iteration once.
pub fn pairs(group: &Group) -> Vec<(BufferId, BufferId)> {
    let mut pairs: Vec<(BufferId, BufferId)> = Vec::new();
    for stage in &group.stages {
        let extents: Vec<Size> = group.digits(stage).collect();
        for member in &stage.members {
            for (read, written) in pairs_of_member(group, member, &extents) {
                if pairs.iter().all(|p| p.0 != read && p.1 != written) {
                    pairs.push((read, written));
                }
            }
        }
    }
    pairs
}

fn pairs_of_member(group: &Group, member: &Member, extents: &[Size]) -> Vec<(BufferId, BufferId)> {
    let mut found = Vec::new();
    if member.reduced.iter().any(|r| *r) {
        return found;
    }
    for op in &member.body.ops {
        let Op::Store { buffer: written, index, value, guard: None, mode: StoreMode::Set } = op else {
            continue;
        };
        if !is_one_to_one(index, extents) || accesses(group, *written) != 1 {
            continue;
        }
        for (load, op) in member.body.iter() {
            let Op::Load { buffer: read, index: from, guard: None } = op else { continue };
            if from == index && accesses(group, *read) == 1 && depends_on(member, *value, load) {
                found.push((*read, *written));
            }
        }
    }
    found
}

/// Number of loads and stores of a buffer in all stages.
fn accesses(group: &Group, buffer: BufferId) -> usize {
    let touches = |op: &&Op| match op {
        Op::Load { buffer: b, .. } | Op::Store { buffer: b, .. } => *b == buffer,
        _ => false,
    };
    let in_stage =
        |s: &Stage| -> usize { s.members.iter().map(|m| m.body.ops.iter().filter(touches).count()).sum() };
    group.stages.iter().map(in_stage).sum()
}

fn depends_on(member: &Member, value: ValueId, load: ValueId) -> bool {
    let mut pending = vec![value];
    let mut seen = vec![false; member.body.ops.len()];
    while let Some(v) = pending.pop() {
        if v == load {
            return true;
        }
        if !std::mem::replace(&mut seen[v.0 as usize], true) {
            member.body.op(v).for_each_operand(&mut |operand| pending.push(operand));
        }
    }
    false
}

/// Whether different iterations have different positions: every digit that runs has a stride, and each stride is
/// at least what the smaller ones reach together.
fn is_one_to_one(index: &Index, extents: &[Size]) -> bool {
    if !index.is_affine() {
        return false;
    }
    let mut digits: Vec<(Size, Size)> = Vec::new();
    for (d, extent) in extents.iter().enumerate().filter(|(_, e)| !e.is(1)) {
        let stride = index.stride_of(LoopVar(d as u16));
        if stride.is(0) {
            return false;
        }
        digits.push((stride, *extent));
    }
    debug_assert!(index.terms.iter().all(|t| matches!(t.0, IndexAtom::Loop(_))));
    // Without gaps: some order of the digits has each stride the product of the extents before it. This also
    // works for symbolic extents, where strides can't be compared.
    let mut reach = Size::ONE;
    while !digits.is_empty() {
        let Some(k) = digits.iter().position(|(stride, _)| *stride == reach) else {
            return has_growing_strides(&digits, reach);
        };
        reach *= digits.swap_remove(k).1;
    }
    true
}

fn has_growing_strides(digits: &[(Size, Size)], reach: Size) -> bool {
    let constant = |s: Size| s.as_const().filter(|c| *c > 0);
    let Some(mut reach) = constant(reach) else { return false };
    let known = digits.iter().map(|(s, e)| Some((constant(*s)?, constant(*e)?)));
    let Some(mut known) = known.collect::<Option<Vec<_>>>() else { return false };
    known.sort_unstable();
    known.into_iter().all(|(stride, extent)| {
        let apart = stride >= reach;
        reach = stride.saturating_mul(extent - 1).saturating_add(reach);
        apart
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use loafc_ir::nest::{BinaryOp, Body, StepId};

    fn index(strides: &[i64]) -> Index {
        let mut i = Index::default();
        for (k, s) in strides.iter().enumerate() {
            i.add_term(IndexAtom::Loop(LoopVar(k as u16)), Size::from(*s));
        }
        i
    }

    fn add_group(read: Index, written: Index, outer: &[i64]) -> Group {
        let mut body = Body::default();
        let x = body.push(Op::Load { buffer: BufferId(0), index: read, guard: None });
        let y = body.push(Op::Load { buffer: BufferId(1), index: index(&[1]), guard: None });
        let sum = body.push(Op::Binary(BinaryOp::Add, x, y));
        body.push(Op::Store {
            buffer: BufferId(2),
            index: written,
            value: sum,
            guard: None,
            mode: StoreMode::Set,
        });
        let reduced = vec![false; outer.len()];
        let member = Member { step: StepId(0), name: "add".into(), body, reduced, origins: vec![] };
        Group {
            name: "add".into(),
            outer: outer.iter().map(|e| Size::from(*e)).collect(),
            stages: vec![Stage { inner: vec![], members: vec![member] }],
            buffers: vec![],
        }
    }

    #[test]
    fn the_operand_read_at_the_same_place_is_found() {
        let group = add_group(index(&[8, 1]), index(&[8, 1]), &[4, 8]);
        assert_eq!(pairs(&group), [(BufferId(0), BufferId(2))]);
    }

    #[test]
    fn another_order_or_a_repeated_element_is_refused() {
        assert_eq!(pairs(&add_group(index(&[1, 4]), index(&[8, 1]), &[4, 8])), []);
        assert_eq!(pairs(&add_group(index(&[0, 1]), index(&[0, 1]), &[4, 8])), []);
        assert_eq!(pairs(&add_group(index(&[3, 1]), index(&[3, 1]), &[4, 8])), []);
    }

    #[test]
    fn gaps_and_symbolic_extents_are_one_to_one() {
        assert!(is_one_to_one(&index(&[16, 2]), &[Size::from(4), Size::from(8)]));
        let n = Size::symbol("n");
        let mut i = index(&[0, 1]);
        i.add_term(IndexAtom::Loop(LoopVar(0)), n);
        assert!(is_one_to_one(&i, &[Size::from(4), n]));
        assert!(!is_one_to_one(&i, &[Size::from(4), n + Size::ONE]));
    }

    #[test]
    fn a_second_reader_in_the_kernel_forbids_it() {
        let mut group = add_group(index(&[1]), index(&[1]), &[8]);
        let again = group.stages[0].members[0].clone();
        group.stages[0].members.push(again);
        assert_eq!(pairs(&group), []);
    }
}
