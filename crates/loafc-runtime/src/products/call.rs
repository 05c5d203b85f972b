//! Which extern calls are computed here.

use loafc_ir::nest::{ExternCall, NestProgram};

use super::attention_call::Attention;
use super::attention_gradients_call::AttentionGradients;
use super::depthwise_call::WeightGradient;
use crate::threads::Team;
use crate::value::{ResultSpec, TensorRef};
use crate::width::Width;

/// A call that is computed here.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SmallProduct {
    width: Width,
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq)]
enum Kind {
    Attention(Attention),
    AttentionGradients(AttentionGradients),
    DepthwiseWeight(WeightGradient),
}

impl SmallProduct {
    /// The call, if it is one that is computed here.
    pub(crate) fn of(call: &ExternCall, program: &NestProgram) -> Option<SmallProduct> {
        let width = Width::of_processor()?;
        let kind = Attention::of(call, program)
            .map(Kind::Attention)
            .or_else(|| AttentionGradients::of(call, program).map(Kind::AttentionGradients))
            .or_else(|| WeightGradient::of(call, program).map(Kind::DepthwiseWeight))?;
        Some(SmallProduct { width, kind })
    }

    /// Computes it.
    ///
    /// # Safety
    /// All elements of the operands must be there, and memory for all of the results.
    pub(crate) unsafe fn run(
        &self,
        tensors: &[TensorRef<'_>],
        results: &[Option<ResultSpec<'_>>],
        team: &dyn Team,
    ) -> Result<(), &'static str> {
        // SAFETY: the processor has the instructions; else the caller's promise.
        unsafe {
            match &self.kind {
                Kind::Attention(attention) => attention.run(self.width, tensors, results, team),
                Kind::AttentionGradients(gradients) => gradients.run(self.width, tensors, results, team),
                Kind::DepthwiseWeight(gradient) => gradient.run(self.width, tensors, results, team),
            }
        }
    }
}
