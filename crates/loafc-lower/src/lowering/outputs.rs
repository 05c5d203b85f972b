//! The program's outputs: each in the strides that the front end expects, or as an alias of an input.

use std::sync::Arc;

use loafc_ir::graph::{Arg, Input, TensorId, TensorType, ValueType};
use loafc_ir::nest::{Output, StoreMode, TensorView};

use crate::error::LowerError;
use crate::expr::{Expr, ExprId};
use crate::view::{dense_strides, same_layout};

use super::Lowering;

impl<'g> Lowering<'g> {
    pub(super) fn outputs(&mut self) -> Result<(), LowerError> {
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

    pub(super) fn tensor_output(&mut self, id: TensorId, ty: &TensorType) -> Result<Output, LowerError> {
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
    pub(super) fn stored_as(&mut self, expr: ExprId, ty: &TensorType) -> TensorView {
        let name = self.arena.get(expr).name.clone().unwrap_or_else(|| Arc::from("output"));
        let view = self.new_buffer(name, ty);
        self.write(expr, &view, StoreMode::Set);
        view
    }
}
