//! The state of a lowering and its steps: one call of the program after the other, then the outputs. Holds what
//! the operators' lowerings share: making, viewing, broadcasting and storing lazy tensors.

use std::sync::Arc;

use loafc_ir::canonical::canonicalize;
use loafc_ir::dtype::{DType, Scalar};
use loafc_ir::graph::{Arg, Device, Dims, Graph, Input, Node, TensorId, TensorType, ValueType};
use loafc_ir::index::{Index, LoopVar};
use loafc_ir::interp::scalar;
use loafc_ir::nest::{
    BinaryOp, Body, Buffer, BufferId, BufferSource, ExternCall, Loop, LoopKind, LoopNest, NestProgram, Op,
    Output, Step, StoreMode, TensorView, UnaryOp, ValueId,
};
use loafc_ir::ops::{Call, InferError, Operand};
use loafc_ir::size::Size;
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use crate::analysis::{self, Facts, base_name};
use crate::emit::{Emitter, drop_unused, tidy};
use crate::error::LowerError;
use crate::expr::{Arena, Coord, Expr, ExprId};
use crate::realize::{LowerOptions, is_dear, is_too_large, should_realize};
use crate::table;
use crate::view::{
    compose, coordinate, coordinate_within, dense_strides, position, reshape_coordinates, reshape_strides,
    same_layout, storage_len,
};

/// Coordinates of a tensor as functions of a nest's loops.
pub(crate) type Coords = SmallVec<[Index; 6]>;

/// Names of operators that a nest's name lists at most.
const MAX_NAME_PARTS: usize = 4;

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

    // ---- Calls of the program ----

    fn call(&mut self, at: usize, node: &'g Node) -> Result<(), LowerError> {
        self.current = at;
        if self.makes_sizes(node)? {
            return Ok(());
        }
        self.device = self.result_types(node).next().map_or(self.device, |ty| ty.device);
        let graph = self.graph;
        let value_type = |id: TensorId| graph.value(id).ty.clone();
        let call = Call::new(&node.op, &node.args, &node.kwargs, &value_type);
        let lowered = match table::find(&node.op) {
            Some(entry) if self.has_kernels(node) => (entry.lower)(self, &call),
            _ => Err(Refusal::Extern),
        };
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

    // ---- Values ----

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

    // ---- Making lazy tensors ----

    pub(crate) fn make(&mut self, expr: Expr, dtype: DType, shape: &[Size]) -> ExprId {
        self.arena.add(expr, dtype, shape.iter().copied().collect(), self.device, self.current as u32)
    }

    /// A number that takes part in arithmetic on a type: as precise as the arithmetic, not as the type.
    pub(crate) fn number(&mut self, value: Scalar, dtype: DType, shape: &[Size]) -> ExprId {
        self.make(Expr::Const(scalar::constant(value, dtype.compute())), dtype, shape)
    }

    /// A constant that the type can hold.
    pub(crate) fn constant(&mut self, value: Scalar, dtype: DType, shape: &[Size]) -> ExprId {
        self.make(Expr::Const(scalar::constant(value, dtype)), dtype, shape)
    }

    pub(crate) fn float(&mut self, value: f64, like: ExprId) -> ExprId {
        let (dtype, shape) = (self.dtype(like), self.shape(like));
        self.number(Scalar::Float(value), dtype, &shape)
    }

    pub(crate) fn int(&mut self, value: i64, like: ExprId) -> ExprId {
        let (dtype, shape) = (self.dtype(like), self.shape(like));
        self.constant(Scalar::Int(value), dtype, &shape)
    }

    /// A size as a tensor of this type.
    pub(crate) fn size(&mut self, size: Size, dtype: DType, shape: &[Size]) -> ExprId {
        match size.as_const() {
            Some(c) => self.constant(Scalar::Int(c), dtype, shape),
            None => {
                let size = self.make(Expr::Size(size), DType::I64, shape);
                self.cast(size, dtype)
            }
        }
    }

    /// A function of the coordinates as an i64 tensor.
    pub(crate) fn index(&mut self, index: Index, shape: &[Size]) -> ExprId {
        match index.as_constant() {
            Some(size) => self.size(size, DType::I64, shape),
            None => self.make(Expr::Index(index), DType::I64, shape),
        }
    }

    /// Whether a function of the coordinates lies in `low..high`.
    pub(crate) fn in_range(&mut self, index: Index, low: Size, high: Size, shape: &[Size]) -> ExprId {
        self.make(Expr::InRange { index, low, high }, DType::Bool, shape)
    }

    pub(crate) fn unary(&mut self, op: UnaryOp, a: ExprId) -> ExprId {
        let shape = self.shape(a);
        let dtype = match op {
            UnaryOp::IsNan | UnaryOp::IsInf | UnaryOp::SignBit => DType::Bool,
            _ => self.dtype(a),
        };
        self.make(Expr::Unary(op, a), dtype, &shape)
    }

    /// Both of one type and shape.
    pub(crate) fn binary(&mut self, op: BinaryOp, a: ExprId, b: ExprId) -> ExprId {
        debug_assert_eq!(self.dtype(a), self.dtype(b), "{op:?} needs operands of one type");
        let shape = self.shape(a);
        let dtype = if op.is_comparison() { DType::Bool } else { self.dtype(a) };
        self.make(Expr::Binary(op, a, b), dtype, &shape)
    }

    /// `condition` is of type bool; `a` and `b` of one type; all of one shape.
    pub(crate) fn choose(&mut self, condition: ExprId, a: ExprId, b: ExprId) -> ExprId {
        let (dtype, shape) = (self.dtype(a), self.shape(a));
        self.make(Expr::Where(condition, a, b), dtype, &shape)
    }

    /// `a·b + c`; all of one type and shape.
    pub(crate) fn fma(&mut self, a: ExprId, b: ExprId, c: ExprId) -> ExprId {
        let (dtype, shape) = (self.dtype(a), self.shape(a));
        self.make(Expr::Fma(a, b, c), dtype, &shape)
    }

    pub(crate) fn cast(&mut self, a: ExprId, dtype: DType) -> ExprId {
        let node = self.arena.get(a);
        if node.dtype == dtype {
            return a;
        }
        let shape = node.shape.clone();
        match node.expr {
            Expr::Const(value) => {
                let value = scalar::cast(value, node.dtype, dtype);
                self.constant(value, dtype, &shape)
            }
            _ => self.make(Expr::Cast(a), dtype, &shape),
        }
    }

    /// A tensor or number among the arguments, converted to a type and broadcast to a shape.
    pub(crate) fn operand(
        &mut self,
        operand: &Operand,
        dtype: DType,
        shape: &[Size],
    ) -> Result<ExprId, Refusal> {
        Ok(match operand {
            Operand::Tensor(t) => {
                let value = self.value(t.id)?;
                let value = self.cast(value, dtype);
                self.broadcast(value, shape)
            }
            Operand::Scalar(number) => self.number(*number, dtype, shape),
            Operand::Size(size) => self.size(*size, dtype, shape),
        })
    }

    /// A copy in memory of its own.
    pub(crate) fn copy(&mut self, a: ExprId) -> ExprId {
        let (dtype, shape) = (self.dtype(a), self.shape(a));
        self.make(Expr::Copy(a), dtype, &shape)
    }

    // ---- Views ----

    /// `source` at coordinates that are functions of the coordinates of `shape`.
    pub(crate) fn view(&mut self, source: ExprId, coords: Vec<Index>, shape: &[Size]) -> ExprId {
        let identity = self.arena.get(source).shape.as_slice() == shape
            && coords.iter().enumerate().all(|(d, c)| *c == coordinate_within(d, shape[d]));
        if identity {
            return source;
        }
        let node = self.arena.get(source);
        let dtype = node.dtype;
        let extents = |v: LoopVar| shape.get(v.0 as usize).copied();
        let through = |index: &Index| index.substitute(&|v| coords[v.0 as usize].clone(), &|v| v, &extents);
        let expr = match &node.expr {
            Expr::Const(value) => Expr::Const(*value),
            Expr::Size(size) => Expr::Size(*size),
            Expr::Index(index) => Expr::Index(through(index)),
            Expr::InRange { index, low, high } => {
                Expr::InRange { index: through(index), low: *low, high: *high }
            }
            Expr::Load(view) => match compose(view, &coords, shape) {
                Some(view) => Expr::Load(view),
                None => Expr::View { source, coords: coords.into_iter().map(Coord::At).collect() },
            },
            Expr::View { source: inner, coords: inner_coords }
                if inner_coords.iter().all(|c| matches!(c, Coord::At(_))) =>
            {
                let coords = inner_coords
                    .iter()
                    .map(|c| match c {
                        Coord::At(index) => Coord::At(through(index)),
                        Coord::Value(value) => Coord::Value(*value),
                    })
                    .collect();
                Expr::View { source: *inner, coords }
            }
            _ => Expr::View { source, coords: coords.into_iter().map(Coord::At).collect() },
        };
        self.make(expr, dtype, shape)
    }

    /// `source` at coordinates of which some are values.
    pub(crate) fn indirect(&mut self, source: ExprId, coords: Vec<Coord>, shape: &[Size]) -> ExprId {
        // Random access computes an element any number of times. What is cheap stays where it is: a conversion of
        // a large table that few rows of are read must not convert the table.
        self.store_if_dear(source);
        let dtype = self.dtype(source);
        self.make(Expr::View { source, coords }, dtype, shape)
    }

    /// A tensor with other dimensions and the same elements in row-major order.
    pub(crate) fn reshape(&mut self, a: ExprId, shape: &[Size]) -> ExprId {
        let node = self.arena.get(a);
        if node.shape.as_slice() == shape {
            return a;
        }
        if let Expr::Load(view) = &node.expr
            && let Some(strides) = reshape_strides(&node.shape, &view.strides, shape)
        {
            let view = TensorView {
                buffer: view.buffer,
                shape: shape.to_vec(),
                strides: strides.to_vec(),
                offset: view.offset,
            };
            let dtype = node.dtype;
            return self.make(Expr::Load(view), dtype, shape);
        }
        let coords = reshape_coordinates(&node.shape, shape);
        self.view(a, coords, shape)
    }

    /// Dimension `d` of the result is dimension `order[d]` of `a`.
    pub(crate) fn permute(&mut self, a: ExprId, order: &[usize]) -> ExprId {
        let from = self.shape(a);
        let shape: Dims = order.iter().map(|d| from[*d]).collect();
        let mut coords = vec![Index::constant(Size::ZERO); from.len()];
        for (new, old) in order.iter().enumerate() {
            coords[*old] = coordinate_within(new, from[*old]);
        }
        self.view(a, coords, &shape)
    }

    /// Repeats `a` along dimensions of extent 1 and new leading ones.
    pub(crate) fn broadcast(&mut self, a: ExprId, shape: &[Size]) -> ExprId {
        let from = self.shape(a);
        if from.as_slice() == shape {
            return a;
        }
        let lead = shape.len() - from.len();
        let repeats = (0..shape.len()).any(|d| !shape[d].is(1) && (d < lead || from[d - lead].is(1)));
        if repeats {
            self.store_if_dear(a);
        }
        let coords = (0..from.len()).map(|d| coordinate_within(d + lead, from[d])).collect();
        self.view(a, coords, shape)
    }

    /// `length` elements from `start` on along one dimension, `step` apart.
    pub(crate) fn slice(&mut self, a: ExprId, dim: usize, start: Size, length: Size, step: Size) -> ExprId {
        let mut shape = self.shape(a);
        shape[dim] = length;
        let coords = (0..shape.len())
            .map(|d| if d == dim { coordinate(d).times(step).shifted(start) } else { coordinate(d) })
            .collect();
        self.view(a, coords, &shape)
    }

    /// The element `at` along one dimension, which disappears.
    pub(crate) fn select(&mut self, a: ExprId, dim: usize, at: Size) -> ExprId {
        let mut shape = self.shape(a);
        shape.remove(dim);
        let coords = (0..shape.len() + 1)
            .map(|d| match d.cmp(&dim) {
                std::cmp::Ordering::Less => coordinate(d),
                std::cmp::Ordering::Equal => Index::constant(at),
                std::cmp::Ordering::Greater => coordinate(d - 1),
            })
            .collect();
        self.view(a, coords, &shape)
    }

    /// A new dimension of extent 1 before dimension `dim`.
    pub(crate) fn unsqueeze(&mut self, a: ExprId, dim: usize) -> ExprId {
        let mut shape = self.shape(a);
        let coords = (0..shape.len()).map(|d| coordinate(if d < dim { d } else { d + 1 })).collect();
        shape.insert(dim, Size::ONE);
        self.view(a, coords, &shape)
    }

    /// `a` where the condition holds; elsewhere nothing is read, and `otherwise` is the value.
    pub(crate) fn guarded(&mut self, condition: ExprId, a: ExprId, otherwise: ExprId) -> ExprId {
        let inside = self.only_where(condition, a);
        self.choose(condition, inside, otherwise)
    }

    /// `a` where the condition holds; elsewhere nothing is read, and the value means nothing.
    pub(crate) fn only_where(&mut self, condition: ExprId, a: ExprId) -> ExprId {
        let (dtype, shape) = (self.dtype(a), self.shape(a));
        self.make(Expr::Guarded { condition, source: a }, dtype, &shape)
    }

    // ---- Memory ----

    /// The part of a buffer that a value is, if it is one.
    fn as_view(&self, id: ExprId) -> Option<TensorView> {
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
    fn is_view_once_stored(&self, source: ExprId, coords: &[Index], shape: &[Size]) -> bool {
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
    fn default_name(&self, origin: u32) -> Arc<str> {
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

    fn add_buffer(&mut self, buffer: Buffer) -> BufferId {
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
            emitter.store(Op::Store {
                buffer: view.buffer,
                index: position(view, &at),
                value,
                guard: None,
                mode: StoreMode::Set,
            });
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
        let target_at: Coords = placement
            .coords
            .iter()
            .map(|coord| match coord {
                Coord::At(index) => emitter.at(index, at),
                Coord::Value(value) => {
                    let value = emitter.emit(*value, at, guard);
                    emitter.as_index(value)
                }
            })
            .collect();
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
    fn nest_name(&self, origins: &[u32], body: &Body) -> Arc<str> {
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

    fn source_lines(&self, origins: &[u32]) -> Vec<loafc_ir::graph::SourceLine> {
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

    // ---- Writes to the caller's tensors ----

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

    fn copy_of_old_contents(&mut self, expr: ExprId) -> ExprId {
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

    // ---- Extern calls ----

    fn extern_call(&mut self, node: &'g Node) -> Result<(), LowerError> {
        let written = analysis::written(node);
        let mut tensors: Vec<TensorView> = Vec::new();
        let mut positions = FxHashMap::default();
        let mut args = Vec::new();
        for arg in &node.args {
            args.push(self.extern_argument(arg, &mut tensors, &mut positions)?);
        }
        let mut kwargs = Vec::new();
        for (name, arg) in &node.kwargs {
            kwargs.push((name.clone(), self.extern_argument(arg, &mut tensors, &mut positions)?));
        }
        let mut mutates = Vec::new();
        for id in written {
            if let Some(at) = positions.get(&id) {
                self.prepare_write(tensors[*at].buffer, id);
                mutates.push(*at);
            }
        }
        let mut results = Vec::new();
        for result in &node.results {
            results.push(match result {
                Some(id) => self.extern_result(*id),
                None => None,
            });
        }
        self.program.steps.push(Step::Extern(ExternCall {
            op: node.op.clone(),
            args,
            kwargs,
            tensors,
            results: results.iter().map(|r| r.as_ref().map(|r| r.1.clone())).collect(),
            mutates,
            ordered: analysis::is_ordered(&node.op),
            origin: node.origin.clone(),
        }));
        for (id, view) in results.into_iter().flatten() {
            let Some(ty) = self.graph.tensor_type(id) else { continue };
            let expr = self.make(Expr::Load(view), ty.dtype, &ty.shape);
            self.bind(id, expr, ty);
        }
        Ok(())
    }

    fn extern_result(&mut self, id: TensorId) -> Option<(TensorId, TensorView)> {
        let ty = self.graph.tensor_type(id)?;
        let view = self.new_buffer(self.graph.value(id).name.clone(), ty);
        Some((id, view))
    }

    fn extern_argument(
        &mut self,
        arg: &Arg,
        tensors: &mut Vec<TensorView>,
        positions: &mut FxHashMap<TensorId, usize>,
    ) -> Result<Arg, LowerError> {
        Ok(match arg {
            Arg::Value(id) => match &self.graph.value(*id).ty {
                ValueType::Size(size) => Arg::Size(*size),
                ValueType::Tensor(_) => {
                    let at = match positions.get(id) {
                        Some(at) => *at,
                        None => {
                            let expr = self.value(*id)?;
                            tensors.push(self.store(expr));
                            positions.insert(*id, tensors.len() - 1);
                            tensors.len() - 1
                        }
                    };
                    Arg::Value(TensorId(at as u32))
                }
            },
            Arg::List(items) => Arg::List(
                items
                    .iter()
                    .map(|a| self.extern_argument(a, tensors, positions))
                    .collect::<Result<_, _>>()?,
            ),
            other => other.clone(),
        })
    }

    // ---- Outputs ----

    fn outputs(&mut self) -> Result<(), LowerError> {
        for (at, output) in self.graph.outputs.iter().enumerate() {
            let output = match output {
                Arg::None => Output::None,
                Arg::Size(size) => Output::Size(*size),
                Arg::Value(id) => match &self.graph.value(*id).ty {
                    ValueType::Size(size) => Output::Size(*size),
                    ValueType::Tensor(ty) => self.tensor_output(*id, ty)?,
                },
                other => return Err(LowerError::Output { position: at, found: format!("{other:?}") }),
            };
            self.program.outputs.push(output);
        }
        Ok(())
    }

    fn tensor_output(&mut self, id: TensorId, ty: &TensorType) -> Result<Output, LowerError> {
        let expr = self.values[id.0 as usize].ok_or_else(|| LowerError::Undefined {
            op: "return".to_owned(),
            value: self.graph.value(id).name.to_string(),
            origin: None,
        })?;
        if let Some(input) = self.graph.inputs.iter().position(|i| *i == Input::Tensor(id)) {
            return Ok(Output::Input(input));
        }
        let has_gaps = !same_layout(&ty.shape, &dense_strides(&ty.shape, &ty.strides), &ty.strides);
        let repeats = (0..ty.shape.len()).any(|d| ty.strides[d].is(0) && !ty.shape[d].is(1));
        let mut view = match self.as_view(expr) {
            Some(view) => view,
            // A part of a value that is nowhere as a whole: only that part is written, where the whole would have it.
            None if has_gaps && !repeats => self.stored_as(expr, ty),
            // A copy must be one, even of what lies in memory in the right strides.
            None if matches!(self.arena.get(expr).expr, Expr::Copy(_)) => self.realize(expr),
            None => self.store(expr),
        };
        if !same_layout(&ty.shape, &view.strides, &ty.strides) {
            view = self.stored_as(expr, ty);
        }
        view.strides = ty.strides.to_vec();
        Ok(Output::Tensor(view))
    }

    /// A copy of a value in the strides of a type.
    fn stored_as(&mut self, expr: ExprId, ty: &TensorType) -> TensorView {
        let name = self.arena.get(expr).name.clone().unwrap_or_else(|| Arc::from("output"));
        let view = self.new_buffer(name, ty);
        self.write(expr, &view, StoreMode::Set);
        view
    }
}

/// Two extents that are not surely different: two forms of one size may not be recognised as equal.
fn may_be_equal(a: Size, b: Size) -> bool {
    (a - b).as_const().is_none_or(|d| d == 0)
}

fn describe(dtype: DType, shape: &[Size]) -> String {
    format!("{dtype}{}", loafc_ir::ops::call::shape_text(shape))
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
