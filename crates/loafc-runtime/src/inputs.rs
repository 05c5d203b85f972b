//! What a program takes: names, types, and which inputs give the size symbols their values.

use std::sync::Arc;

use loafc_ir::graph::{Graph, Input, TensorType, ValueType};
use loafc_ir::size::{Size, SymbolValues};

use crate::error::RunError;
use crate::value::{InputValue, same_strides};

/// An input of a program.
#[derive(Clone, Debug, PartialEq)]
pub struct InputSpec {
    /// Name in the program.
    pub name: Arc<str>,
    /// What it is.
    pub kind: InputKind,
}

/// What an input is.
#[derive(Clone, Debug, PartialEq)]
pub enum InputKind {
    /// A tensor of this type.
    Tensor(TensorType),
    /// The value of this size symbol.
    Size(Box<str>),
}

/// An input's extents and strides in one call; empty for a size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputLayout {
    /// Extents.
    pub shape: Vec<i64>,
    /// Strides in elements.
    pub strides: Vec<i64>,
}

/// Where a symbol's value is read.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Source {
    /// The input is the value.
    Input(usize),
    /// An extent of an input.
    Extent(usize, usize),
    /// A stride of an input.
    Stride(usize, usize),
}

/// Where each size symbol gets its value.
#[derive(Clone, Debug, Default)]
pub struct Bindings(Vec<(Box<str>, Source)>);

/// The inputs of a graph.
pub fn inputs_of(graph: &Graph) -> Vec<InputSpec> {
    let spec = |input: &Input| match input {
        Input::Size(id, symbol) => {
            InputSpec { name: graph.value(*id).name.clone(), kind: InputKind::Size(symbol.clone()) }
        }
        Input::Tensor(id) => {
            let value = graph.value(*id);
            let kind = match &value.ty {
                ValueType::Tensor(t) => InputKind::Tensor(t.clone()),
                ValueType::Size(s) => InputKind::Size(s.to_string().into()),
            };
            InputSpec { name: value.name.clone(), kind }
        }
    };
    graph.inputs.iter().map(spec).collect()
}

impl Bindings {
    /// Finds for each symbol the first input that gives it: sizes first, then extents, then strides.
    pub fn of(inputs: &[InputSpec]) -> Bindings {
        let mut bindings = Bindings::default();
        for (k, input) in inputs.iter().enumerate() {
            if let InputKind::Size(name) = &input.kind {
                bindings.add(name.clone(), Source::Input(k));
            }
        }
        bindings.add_dims(inputs, |t| &t.shape, Source::Extent);
        bindings.add_dims(inputs, |t| &t.strides, Source::Stride);
        bindings
    }

    fn add(&mut self, name: Box<str>, source: Source) {
        if self.0.iter().all(|b| b.0 != name) {
            self.0.push((name, source));
        }
    }

    fn add_dims(
        &mut self,
        inputs: &[InputSpec],
        dims: fn(&TensorType) -> &[Size],
        source: fn(usize, usize) -> Source,
    ) {
        for (k, input) in inputs.iter().enumerate() {
            let InputKind::Tensor(ty) = &input.kind else { continue };
            for (d, size) in dims(ty).iter().enumerate() {
                if let Some(name) = size.as_symbol() {
                    self.add(name, source(k, d));
                }
            }
        }
    }

    /// Whether the program has no size symbols.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The symbols' values, in a fixed order. The inputs must have passed [`check_kinds`].
    pub fn values(&self, inputs: &[InputValue<'_>]) -> Vec<i64> {
        let read = |source: &Source| match (source, source.input().and_then(|k| inputs.get(k))) {
            (Source::Input(_), Some(InputValue::Size(v))) => *v,
            (Source::Extent(_, d), Some(InputValue::Tensor { shape, .. })) => shape[*d],
            (Source::Stride(_, d), Some(InputValue::Tensor { strides, .. })) => strides[*d],
            _ => 0,
        };
        self.0.iter().map(|(_, source)| read(source)).collect()
    }

    /// The same values by name.
    pub fn named(&self, values: &[i64]) -> SymbolValues {
        let mut named = SymbolValues::new();
        for ((name, _), value) in self.0.iter().zip(values) {
            named.set(name, *value);
        }
        named
    }
}

impl Source {
    fn input(&self) -> Option<usize> {
        match self {
            Source::Input(k) | Source::Extent(k, _) | Source::Stride(k, _) => Some(*k),
        }
    }
}

/// Checks number, kind, element type and rank of the inputs.
pub fn check_kinds(specs: &[InputSpec], inputs: &[InputValue<'_>]) -> Result<(), RunError> {
    if specs.len() != inputs.len() {
        return Err(RunError::InputCount { expected: specs.len(), got: inputs.len() });
    }
    for (position, (spec, input)) in specs.iter().zip(inputs).enumerate() {
        let name = || spec.name.clone();
        match (&spec.kind, input) {
            (InputKind::Size(_), InputValue::Size(_)) => {}
            (InputKind::Size(_), InputValue::Tensor { .. }) => {
                return Err(RunError::InputKind {
                    position,
                    name: name(),
                    expected: "a size",
                    got: "a tensor",
                });
            }
            (InputKind::Tensor(_), InputValue::Size(_)) => {
                return Err(RunError::InputKind {
                    position,
                    name: name(),
                    expected: "a tensor",
                    got: "a size",
                });
            }
            (InputKind::Tensor(ty), InputValue::Tensor { dtype, shape, strides, .. }) => {
                if ty.dtype != *dtype {
                    return Err(RunError::InputDType {
                        position,
                        name: name(),
                        expected: ty.dtype,
                        got: *dtype,
                    });
                }
                if ty.rank() != shape.len() || ty.rank() != strides.len() {
                    return Err(RunError::InputRank {
                        position,
                        name: name(),
                        expected: ty.rank(),
                        got: shape.to_vec(),
                    });
                }
            }
        }
    }
    Ok(())
}

/// Checks shapes and strides against those of this call. The inputs must have passed [`check_kinds`].
pub fn check_layouts(
    specs: &[InputSpec],
    layouts: &[InputLayout],
    inputs: &[InputValue<'_>],
) -> Result<(), RunError> {
    for (position, (layout, input)) in layouts.iter().zip(inputs).enumerate() {
        let InputValue::Tensor { ptr, shape, strides, .. } = input else { continue };
        let spec = &specs[position];
        if layout.shape != *shape {
            return Err(RunError::InputShape {
                position,
                name: spec.name.clone(),
                expected: shape_text(spec, layout),
                got: shape.to_vec(),
            });
        }
        if layout.strides != *strides && !same_strides(shape, &layout.strides, strides) {
            return Err(RunError::InputStrides {
                position,
                name: spec.name.clone(),
                expected: layout.strides.clone(),
                got: strides.to_vec(),
                shape: shape.to_vec(),
            });
        }
        if ptr.is_null() && !shape.contains(&0) {
            return Err(RunError::InputNull { position, name: spec.name.clone() });
        }
    }
    Ok(())
}

/// `[4, 8]`, or `[s0, 8] = [4, 8]` with symbols.
fn shape_text(spec: &InputSpec, layout: &InputLayout) -> String {
    match &spec.kind {
        InputKind::Tensor(ty) if ty.shape.iter().any(|s| s.as_const().is_none()) => {
            format!("{:?} = {:?}", ty.shape, layout.shape)
        }
        _ => format!("{:?}", layout.shape),
    }
}
