//! Giving lazy tensors memory: buffers, the nests that fill them, and the names of both.

use std::sync::Arc;

use loafc_ir::canonical::canonicalize;
use loafc_ir::graph::TensorType;
use loafc_ir::index::{Index, LoopVar};
use loafc_ir::nest::{
    Body, Buffer, BufferId, BufferSource, Loop, LoopKind, LoopNest, Op, Step, StoreMode, TensorView, ValueId,
};
use loafc_ir::size::Size;

use crate::analysis::base_name;
use crate::emit::{Emitter, drop_unused, tidy};
use crate::expr::{Coord, Expr, ExprId};
use crate::realize::is_dear;
use crate::view::{
    compose, coordinate, coordinate_within, dense_strides, position, same_layout, storage_len,
};

use super::{Coords, Lowering, Placement};

/// Names of operators that a nest's name lists at most.
const MAX_NAME_PARTS: usize = 4;

impl<'g> Lowering<'g> {
    /// The part of a buffer that a value is, if it is one.
    pub(crate) fn as_view(&self, id: ExprId) -> Option<TensorView> {
        let node = self.arena.get(id);
        match &node.expr {
            Expr::Load(view) => Some(view.clone()),
            Expr::View { source, coords } => {
                compose(&self.as_view(*source)?, &plain_coordinates(coords)?, &node.shape)
            }
            _ => None,
        }
    }

    /// A value in memory, wherever and in whatever strides that is. Stores it if need be, or what it is a view
    /// of, so that others who read that find it stored.
    pub(crate) fn store(&mut self, id: ExprId) -> TensorView {
        if let Some(view) = self.as_view(id) {
            return view;
        }
        let node = self.arena.get(id);
        let (expr, shape, strides) = (node.expr.clone(), node.shape.clone(), node.strides.clone());
        match expr {
            Expr::Copy(source) => {
                if let Some(view) = self.as_view(source)
                    && same_layout(&shape, &view.strides, &strides)
                {
                    return view;
                }
            }
            Expr::View { source, coords } => {
                if let Some(coords) = plain_coordinates(&coords)
                    && self.is_view_once_stored(source, &coords, &shape)
                {
                    let stored = self.store(source);
                    if let Some(view) = compose(&stored, &coords, &shape) {
                        return view;
                    }
                }
            }
            _ => {}
        }
        self.realize(id)
    }

    /// Stores a value that is about to be read several times, unless computing it anew is cheap.
    pub(crate) fn store_if_dear(&mut self, id: ExprId) {
        if is_dear(&self.arena.get(id).cost, self.options) {
            self.store(id);
        }
    }

    /// Whether storing what a view is of would make the view plain stride arithmetic, at no more memory.
    pub(super) fn is_view_once_stored(&self, source: ExprId, coords: &[Index], shape: &[Size]) -> bool {
        let node = self.arena.get(source);
        let elements = |shape: &[Size]| shape.iter().copied().product::<Size>().hint(&self.graph.hints);
        let stored = TensorView {
            buffer: BufferId(0),
            shape: node.shape.to_vec(),
            strides: dense_strides(&node.shape, &node.strides).to_vec(),
            offset: Size::ZERO,
        };
        elements(&node.shape) <= elements(shape) && compose(&stored, coords, shape).is_some()
    }

    /// A value in memory in the strides of its type; `None` where these overlap or leave gaps and the value is
    /// not in such memory yet.
    pub(crate) fn store_in_strides(&mut self, id: ExprId, ty: &TensorType) -> Option<TensorView> {
        if let Some(view) = self.as_view(id)
            && same_layout(&ty.shape, &view.strides, &ty.strides)
        {
            return Some(view);
        }
        if !same_layout(&ty.shape, &dense_strides(&ty.shape, &ty.strides), &ty.strides) {
            return None;
        }
        let view = self.new_buffer(self.result_name(0), ty);
        self.write(id, &view, StoreMode::Set);
        Some(view)
    }

    /// Gives a node the name and strides of a result of the current call, before it is stored.
    pub(crate) fn name_after_result(&mut self, id: ExprId, k: usize) {
        let Some(ty) = self.result(k) else { return };
        let name = self.result_name(k);
        let node = self.arena.get_mut(id);
        node.name = Some(name);
        node.strides = ty.strides.clone();
        node.device = ty.device;
    }

    /// Stores a value to a buffer of its own, in its own strides if they are dense, and makes the node a load
    /// of it.
    pub(crate) fn realize(&mut self, id: ExprId) -> TensorView {
        let view = self.buffer_for(id);
        self.write(id, &view, StoreMode::Set);
        self.arena.set_stored(id, view.clone());
        view
    }

    /// A new buffer with the type, extents and strides of a node.
    pub(crate) fn buffer_for(&mut self, id: ExprId) -> TensorView {
        let node = self.arena.get(id);
        let name = node.name.clone().unwrap_or_else(|| self.default_name(node.origin));
        let ty = TensorType {
            dtype: node.dtype,
            shape: node.shape.clone(),
            strides: dense_strides(&node.shape, &node.strides),
            device: node.device,
        };
        self.new_buffer(name, &ty)
    }

    /// Name of the first result of a call.
    pub(super) fn default_name(&self, origin: u32) -> Arc<str> {
        self.graph
            .nodes
            .get(origin as usize)
            .and_then(|node| node.results.iter().flatten().next())
            .map_or_else(|| Arc::from("value"), |id| self.graph.value(*id).name.clone())
    }

    /// A new buffer that holds a tensor of this type.
    pub(crate) fn new_buffer(&mut self, name: Arc<str>, ty: &TensorType) -> TensorView {
        let buffer = self.add_buffer(Buffer {
            name,
            dtype: ty.dtype,
            len: storage_len(&ty.shape, &ty.strides),
            device: ty.device,
            source: BufferSource::Owned,
        });
        TensorView { buffer, shape: ty.shape.to_vec(), strides: ty.strides.to_vec(), offset: Size::ZERO }
    }

    pub(super) fn add_buffer(&mut self, buffer: Buffer) -> BufferId {
        self.program.buffers.push(buffer);
        BufferId(self.program.buffers.len() as u32 - 1)
    }

    /// Stores several values of one shape with one nest, because they share most of their operations.
    pub(crate) fn realize_together(&mut self, ids: &[ExprId]) {
        let Some(first) = ids.first() else { return };
        let views: Vec<TensorView> = ids.iter().map(|id| self.buffer_for(*id)).collect();
        let shape = self.shape(*first);
        let order = self.loop_order(&shape, &views[0].strides);
        let loops: Vec<Loop> =
            order.iter().map(|d| Loop { extent: shape[*d], kind: LoopKind::Parallel }).collect();
        let at = loop_coordinates(&order, &shape);
        let mut emitter = Emitter::new(&self.arena, loops);
        let own = emitter.coordinates(&at);
        let values: Vec<ValueId> = ids.iter().map(|id| emitter.emit(*id, own, None)).collect();
        for (view, value) in views.iter().zip(values) {
            emitter.set(view.buffer, position(view, &at), value);
        }
        self.push_nest(emitter.finish());
        for (id, view) in ids.iter().zip(views) {
            self.arena.set_stored(*id, view);
        }
    }

    /// Emits a nest that writes each element of a value to its place in `target`, which has the same extents.
    pub(crate) fn write(&mut self, id: ExprId, target: &TensorView, mode: StoreMode) {
        let coords = (0..target.shape.len()).map(|d| Coord::At(coordinate(d))).collect();
        self.write_at(id, target, &Placement { coords, guard: None, mode });
    }

    /// Emits a nest that writes each element of a value to a place in `target`.
    pub(crate) fn write_at(&mut self, id: ExprId, target: &TensorView, placement: &Placement) {
        let shape = self.arena.get(id).shape.clone();
        let order = self.loop_order(&shape, &own_strides(target, &placement.coords, shape.len()));
        let loops: Vec<Loop> =
            order.iter().map(|d| Loop { extent: shape[*d], kind: LoopKind::Parallel }).collect();
        let at = loop_coordinates(&order, &shape);
        let mut emitter = Emitter::new(&self.arena, loops);
        let at = emitter.coordinates(&at);
        let guard = placement.guard.map(|guard| emitter.emit(guard, at, None));
        let value = emitter.emit(id, at, guard);
        let target_at = emitter.positions(&placement.coords, at, guard);
        let (buffer, index) = (target.buffer, position(target, &target_at));
        emitter.store(Op::Store { buffer, index, value, guard, mode: placement.mode });
        self.push_nest(emitter.finish());
    }

    /// Dimensions from the largest stride to the smallest. Those without a stride stay outside of the others: what
    /// they move by is not known, or nothing.
    pub(crate) fn loop_order(&self, shape: &[Size], strides: &[Size]) -> Vec<usize> {
        let mut order: Vec<usize> = (0..shape.len()).collect();
        let key = |d: &usize| {
            let stride = strides[*d].hint(&self.graph.hints).unsigned_abs();
            std::cmp::Reverse(if stride == 0 { u64::MAX } else { stride })
        };
        order.sort_by_key(key);
        order
    }

    /// Brings a nest into canonical form and appends it. A nest without iterations is none, unless a reduction
    /// over nothing has a result.
    pub(crate) fn push_nest(&mut self, (mut nest, origins): (LoopNest, Vec<u32>)) {
        if nest.loops.iter().any(|l| l.kind == LoopKind::Parallel && l.extent.is(0)) {
            return;
        }
        // What nothing uses must not keep loops apart.
        nest.body = drop_unused(&nest.body);
        canonicalize(&mut nest);
        nest.body = tidy(&nest);
        nest.name = self.nest_name(&origins, &nest.body);
        nest.origins = self.source_lines(&origins);
        self.program.steps.push(Step::Nest(nest));
    }

    /// The operators that a nest came from, the last one first.
    pub(super) fn nest_name(&self, origins: &[u32], body: &Body) -> Arc<str> {
        let mut parts: Vec<&str> = Vec::new();
        for origin in origins.iter().rev() {
            let Some(node) = self.graph.nodes.get(*origin as usize) else { continue };
            let name = match base_name(&node.op) {
                "convert_element_type" | "_to_copy" => "cast",
                name => name.trim_matches('_'),
            };
            let says_nothing = matches!(
                name,
                "view"
                    | "unsafe_view"
                    | "reshape"
                    | "expand"
                    | "unsqueeze"
                    | "squeeze"
                    | "alias"
                    | "permute"
                    | "full"
            );
            if !says_nothing && !parts.contains(&name) {
                parts.push(name);
            }
        }
        parts.truncate(MAX_NAME_PARTS);
        if parts.is_empty() {
            let computes = body.ops.iter().any(|op| !matches!(op, Op::Load { .. } | Op::Store { .. }));
            parts.push(if computes { "compute" } else { "copy" });
        }
        parts.join("_").into()
    }

    pub(super) fn source_lines(&self, origins: &[u32]) -> Vec<loafc_ir::graph::SourceLine> {
        let mut lines = Vec::new();
        let mut positions: Vec<u32> = origins.to_vec();
        positions.sort_unstable();
        for origin in positions {
            let line = self.graph.nodes.get(origin as usize).and_then(|node| node.origin.clone());
            if let Some(line) = line
                && !lines.contains(&line)
            {
                lines.push(line);
            }
        }
        lines
    }
}

fn plain_coordinates(coords: &[Coord]) -> Option<Vec<Index>> {
    coords
        .iter()
        .map(|c| match c {
            Coord::At(index) => Some(index.clone()),
            Coord::Value(_) => None,
        })
        .collect()
}

/// Loops over a shape in logical order.
pub(crate) fn parallel_loops(shape: &[Size]) -> Vec<Loop> {
    shape.iter().map(|e| Loop { extent: *e, kind: LoopKind::Parallel }).collect()
}

/// The coordinates of each dimension where loop `k` runs over dimension `order[k]`.
pub(crate) fn loop_coordinates(order: &[usize], shape: &[Size]) -> Coords {
    let mut at: Coords = shape.iter().map(|_| Index::constant(Size::ZERO)).collect();
    for (k, d) in order.iter().enumerate() {
        at[*d] = coordinate_within(k, shape[*d]);
    }
    at
}

/// Strides in `target` of a tensor's own dimensions, as far as its coordinates there are plain.
fn own_strides(target: &TensorView, coords: &[Coord], rank: usize) -> Vec<Size> {
    let plain: Coords = coords
        .iter()
        .map(|c| match c {
            Coord::At(index) => index.clone(),
            Coord::Value(_) => Index::constant(Size::ZERO),
        })
        .collect();
    let index = position(target, &plain);
    (0..rank).map(|d| index.stride_of(LoopVar(d as u16))).collect()
}
