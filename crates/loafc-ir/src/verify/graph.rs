//! The rules of tensor programs: every value is defined once and before its uses, types are what the operators
//! make, and every size symbol is bound.

use rustc_hash::FxHashSet;

use super::VerifyError;
use crate::graph::{Arg, Graph, Input, Node, TensorId, TensorType, ValueType};
use crate::ops;
use crate::size::Size;

/// Checks a tensor program and names the first rule that it breaks.
pub fn verify_graph(graph: &Graph) -> Result<(), VerifyError> {
    check_names(graph)?;
    let mut defined =
        Defined { graph, values: vec![false; graph.values.len()], symbols: FxHashSet::default() };
    for (position, input) in graph.inputs.iter().enumerate() {
        let place = format!("input {position}");
        defined.input(input).map_err(|problem| VerifyError::new(&place, problem))?;
    }
    // Inputs may use symbols that later inputs bind.
    for (position, input) in graph.inputs.iter().enumerate() {
        let (Input::Tensor(id) | Input::Size(id, _)) = input;
        let place = format!("input {position}");
        defined.type_symbols(*id).map_err(|problem| VerifyError::new(&place, problem))?;
    }
    for (position, node) in graph.nodes.iter().enumerate() {
        let place = || format!("node {position} ({})", node.op);
        defined.node(node).map_err(|problem| VerifyError::new(place(), problem))?;
    }
    for (position, output) in graph.outputs.iter().enumerate() {
        let place = format!("output {position}");
        defined.argument(output).map_err(|problem| VerifyError::new(&place, problem))?;
        if !matches!(output, Arg::Value(_) | Arg::Size(_) | Arg::None) {
            return Err(VerifyError::new(place, "an output must be a value, a size or none"));
        }
    }
    Ok(())
}

fn check_names(graph: &Graph) -> Result<(), VerifyError> {
    let mut names = FxHashSet::default();
    for value in &graph.values {
        let place = || format!("%{}", value.name);
        if !names.insert(&value.name) {
            return Err(VerifyError::new(place(), "another value has the same name"));
        }
        if let ValueType::Tensor(ty) = &value.ty
            && ty.strides.len() != ty.shape.len()
        {
            let problem = format!("it has {} extents but {} strides", ty.shape.len(), ty.strides.len());
            return Err(VerifyError::new(place(), problem));
        }
    }
    Ok(())
}

/// What is defined so far.
struct Defined<'a> {
    graph: &'a Graph,
    values: Vec<bool>,
    symbols: FxHashSet<Box<str>>,
}

impl Defined<'_> {
    fn define(&mut self, id: TensorId) -> Result<(), String> {
        match self.values.get_mut(id.0 as usize) {
            None => Err(format!("it defines value {}, which does not exist", id.0)),
            Some(true) => Err(format!("it defines %{} a second time", self.graph.value(id).name)),
            Some(defined) => {
                *defined = true;
                Ok(())
            }
        }
    }

    fn input(&mut self, input: &Input) -> Result<(), String> {
        match input {
            Input::Tensor(id) => {
                self.define(*id)?;
                let Some(ty) = self.graph.tensor_type(*id) else {
                    return Err(format!("%{} is a size, not a tensor", self.graph.value(*id).name));
                };
                self.bind_extents(ty);
            }
            Input::Size(id, symbol) => {
                self.define(*id)?;
                let value = self.graph.value(*id);
                if value.ty != ValueType::Size(Size::symbol(symbol)) {
                    return Err(format!("%{} is {}, not the size {symbol}", value.name, value.ty));
                }
                self.symbols.insert(symbol.clone());
            }
        }
        Ok(())
    }

    /// Extents that are a symbol alone bind it.
    fn bind_extents(&mut self, ty: &TensorType) {
        for size in &ty.shape {
            self.bind(*size);
        }
    }

    fn bind(&mut self, size: Size) {
        self.symbols.extend(size.as_symbol());
    }

    fn node(&mut self, node: &Node) -> Result<(), String> {
        for arg in node.args.iter().chain(node.kwargs.iter().map(|(_, arg)| arg)) {
            self.argument(arg)?;
        }
        self.result_types(node)?;
        for id in node.results.iter().flatten() {
            self.define(*id)?;
            // Extents that only the call knows, and integers read from tensors, bind their symbols.
            match &self.graph.value(*id).ty {
                ValueType::Size(size) => self.bind(*size),
                ValueType::Tensor(ty) if ops::find(&node.op).is_none() => self.bind_extents(ty),
                ValueType::Tensor(_) => {}
            }
            self.type_symbols(*id)?;
        }
        Ok(())
    }

    fn argument(&self, arg: &Arg) -> Result<(), String> {
        match arg {
            Arg::Value(id) => match self.values.get(id.0 as usize) {
                None => Err(format!("it uses value {}, which does not exist", id.0)),
                Some(false) => Err(format!("it uses %{} before that is defined", self.graph.value(*id).name)),
                Some(true) => Ok(()),
            },
            Arg::Size(size) => self.size(*size),
            Arg::List(items) => items.iter().try_for_each(|item| self.argument(item)),
            _ => Ok(()),
        }
    }

    fn size(&self, size: Size) -> Result<(), String> {
        if size.as_const().is_some() {
            return Ok(());
        }
        match size.symbols().iter().find(|symbol| !self.symbols.contains(*symbol)) {
            Some(symbol) => Err(format!("no input binds the size symbol {symbol} of {size}")),
            None => Ok(()),
        }
    }

    fn type_symbols(&self, id: TensorId) -> Result<(), String> {
        match &self.graph.value(id).ty {
            ValueType::Tensor(ty) => ty.shape.iter().chain(&ty.strides).try_for_each(|s| self.size(*s)),
            ValueType::Size(size) => self.size(*size),
        }
    }

    /// What the operator table infers must agree with the program's types, but for strides.
    fn result_types(&self, node: &Node) -> Result<(), String> {
        let value_type = |id: TensorId| self.graph.value(id).ty.clone();
        let inferred = match ops::infer(&node.op, &node.args, &node.kwargs, &value_type) {
            Ok(inferred) => inferred,
            Err(error) if ops::needs_annotations(&error) => return Ok(()),
            Err(error) => return Err(error.to_string()),
        };
        if !node.results.is_empty() && inferred.len() != node.results.len() {
            return Err(format!("it has {} results, not {}", inferred.len(), node.results.len()));
        }
        for (id, inferred) in node.results.iter().zip(inferred) {
            let Some(id) = id else { continue };
            let Some(value) = self.graph.values.get(id.0 as usize) else {
                return Err(format!("it defines value {}, which does not exist", id.0));
            };
            let agree = match (&value.ty, &inferred) {
                (ValueType::Tensor(t), Some(i)) => {
                    t.dtype == i.dtype && shapes_may_be_equal(&t.shape, &i.shape)
                }
                _ => false,
            };
            if !agree {
                let inferred = inferred.map_or("none".to_owned(), |t| t.to_string());
                return Err(format!("its result %{} is {}, not {inferred}", value.name, value.ty));
            }
        }
        Ok(())
    }
}

/// Whether shapes are the same for some values of their symbols, as far as the differences show. A front end may
/// know more about its symbols than the types say.
pub(crate) fn shapes_may_be_equal(a: &[Size], b: &[Size]) -> bool {
    let may_be_equal = |(a, b): (&Size, &Size)| a == b || (*a - *b).as_const().is_none();
    a.len() == b.len() && a.iter().zip(b).all(may_be_equal)
}
