//! The state of a lowering and its steps: one call of the program after the other, then the outputs. What the
//! operators' lowerings share, such as making, viewing and storing lazy tensors, is in the modules below.

mod conditions;
mod externs;
mod memory;
mod outputs;
mod values;
mod views;
mod writes;

use std::cell::RefCell;
use std::sync::Arc;

use loafc_ir::condition::Conditions;
use loafc_ir::dtype::{DType, Scalar};
use loafc_ir::graph::{Arg, Device, Dims, Graph, Input, Node, TensorId, TensorType};
use loafc_ir::index::Index;
use loafc_ir::nest::{Buffer, BufferId, BufferSource, NestProgram, StoreMode, TensorView};
use loafc_ir::ops::{Call, InferError};
use loafc_ir::size::Size;
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use crate::analysis::{self, Facts, base_name};
use crate::emit::Emitter;
use crate::error::LowerError;
use crate::expr::{Arena, Coord, Expr, ExprId};
use crate::realize::{LowerOptions, is_too_large, should_realize};
use crate::table;
use crate::view::{coordinate, storage_len};
pub(crate) use externs::Replaced;
pub(crate) use memory::{loop_coordinates, parallel_loops};

/// Coordinates of a tensor as functions of a nest's loops.
pub(crate) type Coords = SmallVec<[Index; 6]>;

/// Turns a tensor program into loop nests and extern calls. The program must be well-formed (see
/// [`loafc_ir::verify`]).
pub fn lower(graph: &Graph, options: &LowerOptions) -> Result<NestProgram, LowerError> {
    let mut lowering = Lowering::new(graph, options);
    lowering.inputs();
    for (at, node) in graph.nodes.iter().enumerate() {
        if lowering.facts.live[at] {
            lowering.call(at, node)?;
        }
    }
    lowering.outputs()?;
    lowering.program.conditions = lowering.conditions.into_vec();
    Ok(lowering.program)
}

/// Why an operator's lowering gives up.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// No lowering for these arguments: the call stays a call. Nothing has been emitted yet.
    Extern,
    /// The program is wrong.
    Error(LowerError),
}

/// Arguments in a form that the lowering doesn't read stay with the library, which gives PyTorch's own message
/// if they are wrong.
impl From<InferError> for Refusal {
    fn from(_: InferError) -> Refusal {
        Refusal::Extern
    }
}

impl From<LowerError> for Refusal {
    fn from(error: LowerError) -> Refusal {
        Refusal::Error(error)
    }
}

/// What a lowering of a call gives: one lazy tensor for each result. Those of unused results are not looked at.
pub(crate) type Lowered = Result<Vec<ExprId>, Refusal>;

/// Where and how the elements of a value are written.
pub(crate) struct Placement {
    /// Coordinates in the target at an element's coordinates.
    pub coords: Vec<Coord>,
    /// A truth value at an element's coordinates: where it is false, nothing is written.
    pub guard: Option<ExprId>,
    /// How elements combine with what is there.
    pub mode: StoreMode,
}

/// A lowering under way.
pub(crate) struct Lowering<'g> {
    graph: &'g Graph,
    pub(crate) options: &'g LowerOptions,
    facts: Facts,
    pub(crate) arena: Arena,
    program: NestProgram,
    /// The lazy tensor of each value of the graph, once made.
    values: Vec<Option<ExprId>>,
    /// Values whose expressions may read a buffer, for when it is written to.
    readers: FxHashMap<BufferId, Vec<TensorId>>,
    /// What must hold for the sizes of a call of the program.
    conditions: Conditions,
    /// Position of the call that is being lowered.
    current: usize,
    /// Position of the result that counts as its first: calls on lists of tensors are lowered part by part.
    first_result: usize,
    /// Where its results live.
    device: Device,
}

impl<'g> Lowering<'g> {
    fn new(graph: &'g Graph, options: &'g LowerOptions) -> Lowering<'g> {
        Lowering {
            graph,
            options,
            facts: Facts::of(graph),
            arena: Arena::default(),
            program: NestProgram {
                name: graph.name.clone(),
                inputs: graph.inputs.clone(),
                hints: graph.hints.clone(),
                ..NestProgram::default()
            },
            values: vec![None; graph.values.len()],
            readers: FxHashMap::default(),
            conditions: Conditions::new(conditions::extents(graph)),
            current: 0,
            first_result: 0,
            device: Device::Cpu,
        }
    }

    fn inputs(&mut self) {
        for (at, input) in self.graph.inputs.iter().enumerate() {
            let Input::Tensor(id) = input else { continue };
            let Some(ty) = self.graph.tensor_type(*id) else { continue };
            let name = self.graph.value(*id).name.clone();
            let buffer = self.add_buffer(Buffer {
                name: name.clone(),
                dtype: ty.dtype,
                len: storage_len(&ty.shape, &ty.strides),
                device: ty.device,
                source: BufferSource::Input(at),
            });
            let view = TensorView {
                buffer,
                shape: ty.shape.to_vec(),
                strides: ty.strides.to_vec(),
                offset: Size::ZERO,
            };
            let node = self.arena.add(Expr::Load(view), ty.dtype, ty.shape.clone(), ty.device, u32::MAX);
            self.bind(*id, node, ty);
        }
    }

    fn call(&mut self, at: usize, node: &'g Node) -> Result<(), LowerError> {
        self.current = at;
        if self.makes_sizes(node)? {
            return Ok(());
        }
        self.device = self.result_types(node).next().map_or(self.device, |ty| ty.device);
        let graph = self.graph;
        let value_type = |id: TensorId| graph.value(id).ty.clone();
        let noted = RefCell::default();
        let call = Call::new(&node.op, &node.args, &node.kwargs, &value_type).noting(&noted);
        self.require_types(node, &call, &noted);
        let lowered = match table::find(&node.op) {
            Some(entry) if self.has_kernels(node) => (entry.lower)(self, &call),
            _ => Err(Refusal::Extern),
        };
        self.require_noted(node, noted.take());
        match lowered {
            Ok(results) => self.bind_results(node, &results),
            Err(Refusal::Extern) => self.extern_call(node),
            Err(Refusal::Error(error)) => Err(error),
        }
    }

    /// Whether a call makes sizes: the program knows them already, unless they depend on a tensor's contents.
    fn makes_sizes(&self, node: &Node) -> Result<bool, LowerError> {
        let sized = node.results.iter().flatten().find(|id| self.graph.tensor_type(**id).is_none());
        let Some(id) = sized else { return Ok(false) };
        if matches!(base_name(&node.op), "_local_scalar_dense" | "item") {
            return Err(LowerError::DataDependentSize {
                op: node.op.to_string(),
                size: self.graph.value(*id).name.to_string(),
                origin: node.origin.clone(),
            });
        }
        Ok(true)
    }

    /// Whether kernels can compute with all of the call's tensors.
    fn has_kernels(&self, node: &Node) -> bool {
        let mut all = self.result_types(node).all(|ty| ty.dtype.has_kernels());
        analysis::for_each_argument(node, &mut |id| {
            all &= self.graph.tensor_type(id).is_none_or(|ty| ty.dtype.has_kernels());
        });
        all
    }

    fn result_types(&self, node: &Node) -> impl Iterator<Item = &'g TensorType> + use<'g> {
        let graph = self.graph;
        let ids: Vec<TensorId> = node.results.iter().flatten().copied().collect();
        ids.into_iter().filter_map(move |id| graph.tensor_type(id))
    }

    /// The user's source line of the current call, as messages begin with it.
    pub(crate) fn source_line(&self) -> String {
        self.node().origin.as_ref().map(|line| format!("{line}: ")).unwrap_or_default()
    }

    fn node(&self) -> &'g Node {
        &self.graph.nodes[self.current]
    }

    fn result_id(&self, k: usize) -> Option<TensorId> {
        self.node().results.get(self.first_result + k).copied().flatten()
    }

    /// Type of a result of the current call; `None` where nobody uses it.
    pub(crate) fn result(&self, k: usize) -> Option<&'g TensorType> {
        self.result_id(k).and_then(|id| self.graph.tensor_type(id))
    }

    /// Name of a result of the current call.
    pub(crate) fn result_name(&self, k: usize) -> Arc<str> {
        match self.result_id(k) {
            Some(id) => self.graph.value(id).name.clone(),
            None => self.default_name(self.current as u32),
        }
    }

    /// Whether the program returns a result of the current call.
    pub(crate) fn is_returned(&self, k: usize) -> bool {
        self.result_id(k).is_some_and(|id| self.graph.outputs.contains(&Arg::Value(id)))
    }

    /// Number of results of the current call, unused ones too.
    pub(crate) fn result_count(&self) -> usize {
        self.node().results.len()
    }

    /// Type of the first result that is used.
    pub(crate) fn out(&self) -> Result<&'g TensorType, Refusal> {
        (0..self.result_count()).find_map(|k| self.result(k)).ok_or(Refusal::Extern)
    }

    /// Lowers a call of which the current one consists, as the call that makes result `k` first.
    pub(crate) fn part(&mut self, k: usize, lower: table::LowerFn, call: &Call) -> Lowered {
        self.first_result = k;
        let lowered = lower(self, call);
        self.first_result = 0;
        lowered
    }

    /// Position of the current call.
    pub(crate) fn current_origin(&self) -> u32 {
        self.current as u32
    }

    /// Where the current call's results live.
    pub(crate) fn device(&self) -> Device {
        self.device
    }

    fn bind_results(&mut self, node: &'g Node, results: &[ExprId]) -> Result<(), LowerError> {
        for (id, expr) in node.results.iter().zip(results) {
            let Some(id) = id else { continue };
            let Some(ty) = self.graph.tensor_type(*id) else { continue };
            let made = self.arena.get(*expr);
            let fits = made.dtype == ty.dtype
                && made.shape.len() == ty.shape.len()
                && made.shape.iter().zip(&ty.shape).all(|(a, b)| may_be_equal(*a, *b));
            if !fits {
                return Err(LowerError::Contradiction {
                    op: node.op.to_string(),
                    result: self.graph.value(*id).name.to_string(),
                    declared: describe(ty.dtype, &ty.shape),
                    found: describe(made.dtype, &made.shape),
                    origin: node.origin.clone(),
                });
            }
            let made = made.shape.clone();
            self.require_shape(node, *id, &made, &ty.shape);
            self.bind(*id, *expr, ty);
        }
        if results.len() < node.results.len()
            && let Some(id) = node.results[results.len()..].iter().flatten().next()
        {
            return Err(LowerError::Contradiction {
                op: node.op.to_string(),
                result: self.graph.value(*id).name.to_string(),
                declared: format!("result {} of the call", results.len() + 1),
                found: format!("{} results", results.len()),
                origin: node.origin.clone(),
            });
        }
        Ok(())
    }

    /// Makes a lazy tensor the value of a graph's tensor, and stores it if it is better stored.
    fn bind(&mut self, id: TensorId, expr: ExprId, ty: &TensorType) {
        self.values[id.0 as usize] = Some(expr);
        let name = self.graph.value(id).name.clone();
        let node = self.arena.get_mut(expr);
        if node.name.is_none() {
            node.name = Some(name);
            node.strides = ty.strides.clone();
            node.device = ty.device;
        }
        self.settle(expr, id);
        if self.facts.writes {
            for buffer in self.arena.get(expr).cost.reads.clone() {
                self.readers.entry(buffer).or_default().push(id);
            }
        }
    }

    /// Applies the cost rule to a value.
    fn settle(&mut self, expr: ExprId, id: TensorId) {
        if matches!(self.arena.get(expr).expr, Expr::Load(_) | Expr::Const(_)) {
            return;
        }
        self.count_exactly(expr);
        let cost = &self.arena.get(expr).cost;
        let demand = self.facts.demand[id.0 as usize];
        let plain_view = matches!(self.arena.get(expr).expr, Expr::View { .. });
        if is_too_large(cost, self.options) || (!plain_view && should_realize(cost, demand, self.options)) {
            self.realize(expr);
        }
    }

    /// Replaces a cost that looks too large, since it counts shared operands again and again, by the true one.
    fn count_exactly(&mut self, expr: ExprId) {
        let cost = &self.arena.get(expr).cost;
        if cost.ops <= self.options.max_body_ops.min(self.options.realize_opcount_threshold) {
            return;
        }
        let ops = match self.count_nodes(expr) {
            Some(ops) => ops,
            None => self.count_operations(expr),
        };
        let cost = &mut self.arena.get_mut(expr).cost;
        cost.ops = cost.ops.min(ops);
    }

    /// Number of nodes that an element takes, those below different views apart even if these agree in the end;
    /// `None` for more than a body may have.
    fn count_nodes(&self, expr: ExprId) -> Option<u32> {
        let mut seen: FxHashSet<(ExprId, Option<ExprId>)> = FxHashSet::default();
        let mut ops = 0;
        let mut left = vec![(expr, None)];
        while let Some((id, below)) = left.pop() {
            if !seen.insert((id, below)) {
                continue;
            }
            if seen.len() as u32 > 2 * self.options.max_body_ops {
                return None;
            }
            let expr = &self.arena.get(id).expr;
            let is_view = matches!(expr, Expr::View { .. });
            ops += u32::from(!is_view);
            // A view inside of another is told apart by the inner one alone only where the outer is none.
            if is_view && below.is_some() {
                return None;
            }
            let inner = if is_view { Some(id) } else { below };
            self.arena.for_each_operand(expr, &mut |operand| left.push((operand, inner)));
        }
        (ops <= self.options.max_body_ops).then_some(ops)
    }

    /// Number of operations in a body that computes an element.
    fn count_operations(&self, expr: ExprId) -> u32 {
        let node = self.arena.get(expr);
        let mut emitter = Emitter::new(&self.arena, parallel_loops(&node.shape));
        let at: Coords = (0..node.shape.len()).map(coordinate).collect();
        let at = emitter.coordinates(&at);
        emitter.emit(expr, at, None);
        emitter.len() as u32
    }

    /// The lazy tensor of a value of the program.
    pub(crate) fn value(&self, id: TensorId) -> Result<ExprId, LowerError> {
        self.values[id.0 as usize].ok_or_else(|| LowerError::Undefined {
            op: self.node().op.to_string(),
            value: self.graph.value(id).name.to_string(),
            origin: self.node().origin.clone(),
        })
    }

    /// The lazy tensor of an argument.
    pub(crate) fn tensor(&self, call: &Call, position: usize, name: &str) -> Result<ExprId, Refusal> {
        Ok(self.value(call.tensor(position, name)?.id)?)
    }

    pub(crate) fn dtype(&self, a: ExprId) -> DType {
        self.arena.get(a).dtype
    }

    pub(crate) fn shape(&self, a: ExprId) -> Dims {
        self.arena.get(a).shape.clone()
    }

    /// Whether a value is the same constant everywhere, and which.
    pub(crate) fn as_constant(&self, a: ExprId) -> Option<Scalar> {
        match &self.arena.get(a).expr {
            Expr::Const(value) => Some(*value),
            Expr::View { source, .. } | Expr::Copy(source) => self.as_constant(*source),
            _ => None,
        }
    }
}

/// Two extents that are not surely different: two forms of one size may not be recognised as equal.
fn may_be_equal(a: Size, b: Size) -> bool {
    (a - b).as_const().is_none_or(|d| d == 0)
}

fn describe(dtype: DType, shape: &[Size]) -> String {
    format!("{dtype}{}", loafc_ir::ops::call::shape_text(shape))
}
