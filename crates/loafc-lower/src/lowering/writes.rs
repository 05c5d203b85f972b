//! Writes to the caller's tensors: what still reads the old contents is kept or copied first.

use loafc_ir::graph::TensorId;
use loafc_ir::nest::{BufferId, Op, TensorView};

use crate::emit::Emitter;
use crate::expr::ExprId;
use crate::view::{coordinate, position};

use super::{Coords, Lowering, parallel_loops};

impl<'g> Lowering<'g> {
    /// Stores every value that is still needed and was defined by the present contents of a buffer, because
    /// those are about to change. Of the values that are the very tensor that is written to, only `target` itself
    /// sees the change; views and aliases are values of their own in a tensor program.
    pub(crate) fn prepare_write(&mut self, buffer: BufferId, target: TensorId) {
        let readers = self.readers.remove(&buffer).unwrap_or_default();
        let written = self.values[target.0 as usize];
        let mut kept = Vec::new();
        let mut copy = None;
        for id in readers {
            let Some(expr) = self.values[id.0 as usize] else { continue };
            if self.facts.last_use[id.0 as usize] <= self.current {
                continue;
            }
            if id == target {
                kept.push(id);
            } else if Some(expr) == written {
                let copy = *copy.get_or_insert_with(|| self.copy_of_old_contents(expr));
                self.values[id.0 as usize] = Some(copy);
            } else {
                self.realize(expr);
            }
        }
        self.readers.insert(buffer, kept);
    }

    pub(super) fn copy_of_old_contents(&mut self, expr: ExprId) -> ExprId {
        let copy = self.copy(expr);
        self.realize(copy);
        copy
    }

    /// Whether computing a value reads elements of a buffer other than the one at the same place in `target`.
    pub(crate) fn reads_elsewhere(&self, id: ExprId, target: &TensorView) -> bool {
        let shape = &self.arena.get(id).shape;
        let mut emitter = Emitter::new(&self.arena, parallel_loops(shape));
        let at: Coords = (0..shape.len()).map(coordinate).collect();
        let coords = emitter.coordinates(&at);
        emitter.emit(id, coords, None);
        let own = position(target, &at);
        let (nest, _) = emitter.finish();
        nest.body.ops.iter().any(|op| match op {
            Op::Load { buffer, index, .. } => *buffer == target.buffer && *index != own,
            _ => false,
        })
    }
}
