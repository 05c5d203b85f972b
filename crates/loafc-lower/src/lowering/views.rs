//! Views of lazy tensors: other coordinates for the same elements, and elements that exist only under a condition.

use loafc_ir::graph::Dims;
use loafc_ir::index::{Index, LoopVar};
use loafc_ir::nest::TensorView;
use loafc_ir::size::Size;

use crate::expr::{Coord, Expr, ExprId};
use crate::view::{compose, coordinate, coordinate_within, reshape_coordinates, reshape_strides};

use super::Lowering;

impl<'g> Lowering<'g> {
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
}
