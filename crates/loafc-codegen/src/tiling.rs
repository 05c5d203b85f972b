//! Along which digit a kernel's vector loops run: the one under which the accesses of all members cost least.
//! Looks at strides only and knows no machine; the weights are rough costs of one element, in units of one
//! contiguous 4-byte access.

use loafc_fuse::schedule::Member;
use loafc_ir::index::{Index, IndexAtom, LoopVar};
use loafc_ir::interp::body::Phases;
use loafc_ir::nest::{Body, Op, StoreMode, ValueId};
use loafc_ir::size::{Size, SymbolValues};

use crate::loop_tree::partition::{Digit, PhaseGroup, PhaseStage};

/// An access at which neighbouring lanes touch neighbouring elements, for each 4 bytes.
const CONTIGUOUS: f64 = 1.0;
/// All lanes use one element.
const UNIFORM: f64 = 0.1;
/// Each lane touches memory on its own, mostly another cache line.
const GATHER: f64 = 8.0;
/// A scalar operation, per lane of a vector.
const OPERATION: f64 = 0.15;
/// How much dearer an element is outside of vector loops.
const SCALAR_FACTOR: f64 = 6.0;
/// Combining the lanes of a reduction's state, once behind its loops.
const HORIZONTAL: f64 = 24.0;
/// Reading and writing a state in an array, for each value.
const ARRAY_STATE: f64 = 0.5;
/// Lanes that vector loops are assumed to have.
const LANES: i64 = 16;

/// The digit that vector loops run along.
#[derive(Clone, Debug, PartialEq)]
pub enum VectorDigit {
    /// An outer digit: it is cut into tiles, and each stage runs over a tile innermost.
    Outer(LoopVar),
    /// For each stage one of its inner digits; `None` where it has none.
    Inner(Vec<Option<LoopVar>>),
}

/// Chooses the cheapest. Ties go to inner digits, then to digits further inside.
pub fn choose(group: &PhaseGroup<'_>, bytes: &dyn Fn(&Op) -> f64, hints: &SymbolValues) -> VectorDigit {
    let costs = Costs { group, bytes, hints };
    let mut inner_cost = 0.0;
    let mut inner = Vec::new();
    for stage in &group.stages {
        let (cost, var) = costs.best_inner(stage);
        inner_cost += cost;
        inner.push(var);
    }
    let best_outer = group
        .outer
        .iter()
        .rev()
        .filter(|d| !group.serial.contains(&d.var))
        .map(|d| (group.stages.iter().map(|s| costs.stage(s, Some(*d), true)).sum::<f64>(), d.var))
        .min_by(|a, b| a.0.total_cmp(&b.0));
    match best_outer {
        Some((cost, var)) if cost < inner_cost || inner.iter().all(Option::is_none) => {
            VectorDigit::Outer(var)
        }
        _ => VectorDigit::Inner(inner),
    }
}

struct Costs<'a> {
    group: &'a PhaseGroup<'a>,
    bytes: &'a dyn Fn(&Op) -> f64,
    hints: &'a SymbolValues,
}

impl Costs<'_> {
    fn best_inner(&self, stage: &PhaseStage<'_>) -> (f64, Option<LoopVar>) {
        stage
            .inner
            .iter()
            .rev()
            .map(|d| (self.stage(stage, Some(*d), false), Some(d.var)))
            .min_by(|a, b| a.0.total_cmp(&b.0))
            .unwrap_or_else(|| (self.stage(stage, None, false), None))
    }

    fn hint(&self, size: Size) -> f64 {
        size.hint(self.hints).max(1) as f64
    }

    fn stage(&self, stage: &PhaseStage<'_>, vector: Option<Digit>, outer: bool) -> f64 {
        stage.members.iter().map(|m| self.member(stage, m, vector, outer)).sum()
    }

    fn member(&self, stage: &PhaseStage<'_>, member: &Member, vector: Option<Digit>, outer: bool) -> f64 {
        let digits = || self.group.outer.iter().chain(&stage.inner);
        let reduces = member.body.has_reduction();
        let is_reduced =
            |d: &Digit| reduces && member.reduced.get(d.var.0 as usize).copied().unwrap_or(false);
        let every: f64 = digits().map(|d| self.hint(d.extent)).product();
        let behind: f64 = digits().filter(|d| !is_reduced(d)).map(|d| self.hint(d.extent)).product();
        let along = vector.filter(|d| !is_reduced(d));
        // Lanes that are idle in the last vector of each pass.
        let waste = vector.map_or(1.0, |d| {
            let extent = d.extent.hint(self.hints).max(1);
            ((extent + LANES - 1) / LANES * LANES) as f64 / extent as f64
        });
        let phases = Phases::of(&member.body);
        let mut cost = 0.0;
        for (v, op) in member.body.iter() {
            let (count, vector) = if phases.behind[v.0 as usize] { (behind, along) } else { (every, vector) };
            cost += match vector {
                Some(d) => count * waste * self.operation(&member.body, op, d.var),
                None => count * SCALAR_FACTOR * (OPERATION + (self.bytes)(op) / 4.0),
            };
            if let (Op::Reduce { .. }, Some(d)) = (op, vector) {
                let horizontal = is_reduced(&d) && !outer;
                cost +=
                    if horizontal { HORIZONTAL * every / self.hint(d.extent) } else { ARRAY_STATE * every };
            }
        }
        cost
    }

    fn operation(&self, body: &Body, op: &Op, var: LoopVar) -> f64 {
        let access = match op {
            Op::Load { index, .. } => match lane_stride(body, index, var) {
                // Whole vectors are loaded, and lanes picked from them.
                LaneStride::Affine(s) if matches!(s.as_const(), Some(-4..=-1 | 2..=4)) => {
                    1.5 * CONTIGUOUS * s.as_const().unwrap_or(1).abs() as f64
                }
                _ => stride_cost(body, index, var),
            },
            Op::Store { index, mode: StoreMode::Set, .. } => stride_cost(body, index, var),
            // Lanes that combine with one element take turns.
            Op::Store { index, mode: StoreMode::Combine(_), .. } => match lane_stride(body, index, var) {
                LaneStride::Affine(s) if !s.is(0) => stride_cost(body, index, var),
                _ => 2.0 * GATHER,
            },
            _ => return OPERATION,
        };
        access * (self.bytes)(op).max(1.0) / 4.0
    }
}

/// The sizes of elements in accesses that are contiguous along an outer digit, but jump along the digit of vector
/// loops.
pub fn transposed_items(
    group: &PhaseGroup<'_>,
    choice: &VectorDigit,
    columns: LoopVar,
    bytes: &dyn Fn(&Op) -> f64,
) -> Vec<f64> {
    let mut items = Vec::new();
    for (k, stage) in group.stages.iter().enumerate() {
        let rows = match choice {
            VectorDigit::Outer(var) => *var,
            VectorDigit::Inner(vars) => match vars[k] {
                Some(var) => var,
                None => continue,
            },
        };
        for op in stage.members.iter().flat_map(|m| &m.body.ops) {
            if is_transposed_op(op, columns, rows) {
                items.push(bytes(op));
            }
        }
    }
    items
}

/// A member's accesses that are contiguous along `columns`, but jump along `rows`.
pub fn transposed_accesses(member: &Member, columns: LoopVar, rows: LoopVar) -> impl Iterator<Item = &Op> {
    let phases = Phases::of(&member.body);
    let accesses = member.body.iter();
    accesses
        .filter(move |(v, op)| !phases.behind[v.0 as usize] && is_transposed_op(op, columns, rows))
        .map(|(_, op)| op)
}

fn is_transposed_op(op: &Op, columns: LoopVar, rows: LoopVar) -> bool {
    match op {
        Op::Load { index, guard: None, .. } | Op::Store { index, guard: None, mode: StoreMode::Set, .. } => {
            crate::loop_tree::is_transposed(index, columns, rows)
        }
        _ => false,
    }
}

fn stride_cost(body: &Body, index: &Index, var: LoopVar) -> f64 {
    match lane_stride(body, index, var) {
        LaneStride::Affine(s) if s.is(0) => UNIFORM,
        LaneStride::Affine(s) if s.is(1) => CONTIGUOUS,
        LaneStride::Affine(_) => GATHER,
        // What is computed from positions, as in an interpolation, mostly stays near.
        LaneStride::Irregular if !depends_on_data(body, index) => 0.75 * GATHER,
        LaneStride::Irregular => 1.5 * GATHER,
    }
}

/// Whether an index is made of what was loaded.
fn depends_on_data(body: &Body, index: &Index) -> bool {
    let mut needed: Vec<ValueId> = Vec::new();
    index.for_each_value(&mut |v| needed.push(v));
    while let Some(v) = needed.pop() {
        let op = body.op(v);
        if matches!(op, Op::Load { .. }) {
            return true;
        }
        op.for_each_operand(&mut |operand| needed.push(operand));
    }
    false
}

/// How an index moves from one value of a loop variable to the next.
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum LaneStride {
    /// By this many elements.
    Affine(Size),
    /// Otherwise.
    Irregular,
}

/// How an index of a body moves with a loop variable.
pub fn lane_stride(body: &Body, index: &Index, var: LoopVar) -> LaneStride {
    let varies = |atom: &IndexAtom| match atom {
        IndexAtom::Loop(_) => false,
        IndexAtom::Value(v) => value_uses(body, *v, var),
        IndexAtom::FloorDiv(d) | IndexAtom::Mod(d) => index_uses(body, &d.index, var),
    };
    match index.terms.iter().any(|t| varies(&t.0)) {
        true => LaneStride::Irregular,
        false => LaneStride::Affine(index.stride_of(var)),
    }
}

fn index_uses(body: &Body, index: &Index, var: LoopVar) -> bool {
    let mut found = index.uses_loop(var);
    index.for_each_value(&mut |v| found = found || value_uses(body, v, var));
    found
}

/// Whether a value depends on a loop variable. Bodies are small, and few values stand in indices.
fn value_uses(body: &Body, value: ValueId, var: LoopVar) -> bool {
    let mut needed = vec![false; value.0 as usize + 1];
    needed[value.0 as usize] = true;
    for k in (0..=value.0 as usize).rev() {
        if !needed[k] {
            continue;
        }
        let op = &body.ops[k];
        let index = match op {
            Op::Load { index, .. } | Op::IndexValue(index) | Op::InRange { index, .. } => Some(index),
            _ => None,
        };
        if index.is_some_and(|i| i.uses_loop(var)) {
            return true;
        }
        op.for_each_operand(&mut |v| needed[v.0 as usize] = true);
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use loafc_ir::nest::BufferId;

    #[test]
    fn indirect_rows_are_contiguous_along_their_columns() {
        let (row, column) = (LoopVar(0), LoopVar(1));
        let mut body = Body::default();
        let id = body.push(Op::Load { buffer: BufferId(0), index: Index::of_loop(row), guard: None });
        let mut index = Index::of_loop(column);
        index.add_term(IndexAtom::Value(id), Size::from(64));
        assert_eq!(lane_stride(&body, &index, column), LaneStride::Affine(Size::ONE));
        assert_eq!(lane_stride(&body, &index, row), LaneStride::Irregular);
    }
}
