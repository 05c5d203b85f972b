//! Lazy tensors: expressions over logical coordinates, in an arena. A node says how one element is computed
//! from the coordinates of that element; nothing is stored until a node is realized, which turns the node
//! itself into a load, so that everything built on it reads the buffer from then on.

use std::sync::Arc;

use loafc_ir::dtype::{DType, Scalar};
use loafc_ir::graph::{Device, Dims, contiguous_strides};
use loafc_ir::index::Index;
use loafc_ir::nest::{BinaryOp, BufferId, Failure, TensorView, UnaryOp};
use loafc_ir::size::Size;
use smallvec::SmallVec;

/// A node of an [`Arena`].
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ExprId(u32);

/// One coordinate of a view's source as a function of the view's own coordinates.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Coord {
    /// A function of the own coordinates: loop variable `d` stands for coordinate `d`.
    At(Index),
    /// An i64 expression at the own coordinates: a data-dependent access.
    Value(ExprId),
}

/// How an element comes about.
#[derive(Clone, Debug)]
pub(crate) enum Expr {
    /// The same constant everywhere.
    Const(Scalar),
    /// A size, as an i64.
    Size(Size),
    /// A function of the coordinates, as an i64: loop variable `d` stands for coordinate `d`.
    Index(Index),
    /// Whether `low <= index < high`; the index as in [`Expr::Index`].
    InRange { index: Index, low: Size, high: Size },
    /// An element of a buffer.
    Load(TensorView),
    /// An operation on one operand.
    Unary(UnaryOp, ExprId),
    /// An operation on two operands of one type.
    Binary(BinaryOp, ExprId, ExprId),
    /// The second where the first is true, else the third.
    Where(ExprId, ExprId, ExprId),
    /// `a·b + c`.
    Fma(ExprId, ExprId, ExprId),
    /// Conversion to this node's type.
    Cast(ExprId),
    /// The same bits as this node's type.
    Bitcast(ExprId),
    /// The source at other coordinates.
    View { source: ExprId, coords: Vec<Coord> },
    /// The source's elements in memory of their own.
    Copy(ExprId),
    /// The source where the condition holds; elsewhere nothing is read and the value means nothing.
    Guarded { condition: ExprId, source: ExprId },
    /// The value, once the condition has been found true; the program fails with the message where it is false.
    Checked { value: ExprId, condition: ExprId, failure: Failure },
}

/// What it takes to compute an element anew.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cost {
    /// Operations of the body, at most: shared operands count once for each use until counted exactly.
    pub ops: u32,
    /// Operations among them that take tens of cycles (exponentials and the like), at most.
    pub heavy: u32,
    /// Buffers read.
    pub reads: SmallVec<[BufferId; 4]>,
}

impl Cost {
    pub(crate) fn add(&mut self, other: &Cost) {
        self.ops = self.ops.saturating_add(other.ops);
        self.heavy = self.heavy.saturating_add(other.heavy);
        for buffer in &other.reads {
            if !self.reads.contains(buffer) {
                self.reads.push(*buffer);
            }
        }
    }
}

/// A lazy tensor.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// How an element comes about.
    pub expr: Expr,
    /// Element type.
    pub dtype: DType,
    /// Extents.
    pub shape: Dims,
    /// Strides it is stored with once it is realized, and the loop order of nests that store it.
    pub strides: Dims,
    /// Where it lives.
    pub device: Device,
    /// Name of the program's value that it is, if it is one.
    pub name: Option<Arc<str>>,
    /// Position of the graph's node that it came from.
    pub origin: u32,
    /// What it takes to compute an element.
    pub cost: Cost,
}

/// All lazy tensors of a program.
#[derive(Default)]
pub(crate) struct Arena {
    nodes: Vec<Node>,
}

impl Arena {
    pub(crate) fn get(&self, id: ExprId) -> &Node {
        &self.nodes[id.0 as usize]
    }

    pub(crate) fn get_mut(&mut self, id: ExprId) -> &mut Node {
        &mut self.nodes[id.0 as usize]
    }

    /// The id that the next node gets.
    pub(crate) fn next(&self) -> ExprId {
        ExprId(self.nodes.len() as u32)
    }

    /// Adds a node. It is stored contiguously until told otherwise.
    pub(crate) fn add(
        &mut self,
        expr: Expr,
        dtype: DType,
        shape: Dims,
        device: Device,
        origin: u32,
    ) -> ExprId {
        let cost = self.cost_of(&expr);
        let strides = contiguous_strides(&shape);
        let id = self.next();
        self.nodes.push(Node { expr, dtype, shape, strides, device, name: None, origin, cost });
        id
    }

    /// Turns a node into a load of the buffer that it has been stored to.
    pub(crate) fn set_stored(&mut self, id: ExprId, view: TensorView) {
        let expr = Expr::Load(view);
        let cost = self.cost_of(&expr);
        let node = self.get_mut(id);
        node.expr = expr;
        node.cost = cost;
    }

    fn cost_of(&self, expr: &Expr) -> Cost {
        let mut cost = Cost { ops: 1, ..Cost::default() };
        match expr {
            Expr::Const(_) | Expr::Size(_) | Expr::Index(_) | Expr::InRange { .. } => {}
            Expr::Load(view) => cost.reads.push(view.buffer),
            Expr::Unary(op, _) if is_heavy_unary(*op) => cost.heavy = 1,
            Expr::Binary(op, ..) if is_heavy_binary(*op) => cost.heavy = 1,
            Expr::View { .. } | Expr::Copy(_) => cost.ops = 0,
            _ => {}
        }
        self.for_each_operand(expr, &mut |operand| cost.add(&self.get(operand).cost));
        cost
    }

    /// Calls `visit` for every operand.
    pub(crate) fn for_each_operand(&self, expr: &Expr, visit: &mut dyn FnMut(ExprId)) {
        match expr {
            Expr::Const(_) | Expr::Size(_) | Expr::Index(_) | Expr::InRange { .. } | Expr::Load(_) => {}
            Expr::Unary(_, a) | Expr::Cast(a) | Expr::Bitcast(a) | Expr::Copy(a) => visit(*a),
            Expr::Binary(_, a, b) => {
                visit(*a);
                visit(*b);
            }
            Expr::Where(a, b, c) | Expr::Fma(a, b, c) => {
                visit(*a);
                visit(*b);
                visit(*c);
            }
            Expr::View { source, coords } => {
                visit(*source);
                for coord in coords {
                    if let Coord::Value(value) = coord {
                        visit(*value);
                    }
                }
            }
            Expr::Guarded { condition, source } => {
                visit(*condition);
                visit(*source);
            }
            Expr::Checked { value, condition, .. } => {
                visit(*value);
                visit(*condition);
            }
        }
    }
}

/// Operations that cost as much as reading many elements: computing them twice is dearer than storing the
/// result. Square roots and divisions are single instructions and not among them.
fn is_heavy_unary(op: UnaryOp) -> bool {
    use UnaryOp::*;
    !matches!(
        op,
        Neg | Abs
            | Sign
            | Not
            | Sqrt
            | Rsqrt
            | Reciprocal
            | Floor
            | Ceil
            | Trunc
            | Round
            | IsNan
            | IsInf
            | SignBit
    )
}

fn is_heavy_binary(op: BinaryOp) -> bool {
    matches!(op, BinaryOp::Pow | BinaryOp::Atan2 | BinaryOp::Hypot)
}
