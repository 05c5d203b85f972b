//! Removes what forwarding and hoisting left behind: rows of local buffers that nothing reads any more,
//! operations without users, loops without a body.

use loafc_ir::nest::{BufferId, Op, ValueId};
use loafc_ir::size::Size;
use rustc_hash::FxHashSet;

use super::{Home, Kernel, MemoryPlace, Node};

/// The kernel without dead parts. Parameters keep their places.
pub(super) fn cleanup(mut kernel: Kernel, buffers: Vec<BufferId>) -> (Kernel, Vec<BufferId>) {
    let mut read = FxHashSet::default();
    for accumulator in &kernel.accumulators {
        if let Home::Array { memory, .. } = &accumulator.home {
            read.extend(memory.iter().copied());
        }
    }
    for phase in &kernel.phases {
        collect_loads(&phase.body, &mut read);
    }
    let dead: FxHashSet<BufferId> = (0..kernel.memory.len() as u32)
        .map(BufferId)
        .filter(|b| !read.contains(b) && !matches!(kernel.memory[b.0 as usize].place, MemoryPlace::Param(_)))
        .collect();
    let mut used = FxHashSet::default();
    for phase in kernel.phases.iter_mut().rev() {
        sweep(&mut phase.body, &dead, &mut used);
    }
    for b in dead {
        kernel.memory[b.0 as usize].len = Size::ZERO;
    }
    (kernel, buffers)
}

fn collect_loads(nodes: &[Node], read: &mut FxHashSet<BufferId>) {
    for node in nodes {
        match node {
            Node::Op(_, Op::Load { buffer, .. }) => {
                read.insert(*buffer);
            }
            Node::Transpose(t) => {
                read.insert(t.from.0);
            }
            Node::Loop(l) => collect_loads(&l.body, read),
            _ => {}
        }
    }
}

/// Goes backwards, so that users come before what they use.
fn sweep(nodes: &mut Vec<Node>, dead: &FxHashSet<BufferId>, used: &mut FxHashSet<ValueId>) {
    let mut kept = Vec::with_capacity(nodes.len());
    for mut node in std::mem::take(nodes).into_iter().rev() {
        let keep = match &mut node {
            Node::Op(_, Op::Store { buffer, .. }) => !dead.contains(buffer),
            Node::Op(_, Op::Check(..)) => true,
            Node::Op(v, _) => used.contains(v),
            Node::Loop(l) => {
                sweep(&mut l.body, dead, used);
                !l.body.is_empty()
            }
            Node::Transpose(t) => !dead.contains(&t.to.0),
            Node::Accumulate { .. } | Node::Var(..) => true,
            Node::Init(_) | Node::Merge { .. } | Node::Finish { .. } => true,
        };
        if !keep {
            continue;
        }
        match &node {
            Node::Op(_, op) => op.for_each_operand(&mut |v| {
                used.insert(v);
            }),
            Node::Accumulate { value, position, .. } => {
                used.insert(*value);
                used.extend(position);
            }
            _ => {}
        }
        kept.push(node);
    }
    kept.reverse();
    *nodes = kept;
}
