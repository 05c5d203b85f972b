//! What in a member's body runs in each iteration and what behind its reductions.

use loafc_ir::nest::{Body, Op, ValueId};

/// For each operation of a body whether it runs behind the reductions, and whether something there needs it.
#[derive(Clone, Debug)]
pub struct BodyPhases {
    behind: Vec<bool>,
    needed_behind: Vec<bool>,
}

impl BodyPhases {
    /// Looks at a body once from front to back and once back.
    pub fn of(body: &Body) -> BodyPhases {
        let count = body.ops.len();
        let (mut behind, mut needed_behind) = (vec![false; count], vec![false; count]);
        for (v, op) in body.iter() {
            let mut depends = matches!(op, Op::ReduceSecond(_));
            op.for_each_operand(&mut |o| {
                depends |= behind[o.0 as usize] || matches!(body.op(o), Op::Reduce { .. });
            });
            behind[v.0 as usize] = depends;
        }
        for k in (0..count).rev() {
            needed_behind[k] |= behind[k];
            // A reduction's operands belong to the iterations, not to what comes behind.
            if !needed_behind[k] || matches!(body.ops[k], Op::Reduce { .. }) {
                continue;
            }
            body.ops[k].for_each_operand(&mut |o| needed_behind[o.0 as usize] = true);
        }
        BodyPhases { behind, needed_behind }
    }

    /// Whether the operation depends on a reduction's result.
    pub fn behind(&self, value: ValueId) -> bool {
        self.behind[value.0 as usize]
    }

    /// Whether the operation runs behind the reductions, or is needed there.
    pub fn needed_behind(&self, value: ValueId) -> bool {
        self.needed_behind[value.0 as usize]
    }
}

/// Whether a body reduces anything.
pub fn has_reduction(body: &Body) -> bool {
    body.ops.iter().any(|op| matches!(op, Op::Reduce { .. }))
}
