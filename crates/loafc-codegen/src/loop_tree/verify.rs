//! The rules of loop trees, as code. Run on every tree that is built: it is cheap beside generating machine
//! code, and turns a bug of this crate into a message instead of a crash.

use loafc_ir::index::{Index, IndexAtom, LoopVar};
use loafc_ir::nest::{BufferId, Op, ValueId};

use super::{AccumulatorId, Home, Kernel, Loop, Mapping, Node, Transpose};

/// Checks that values and variables are bound where they are used, that numbers name things which exist, and
/// that vector loops hold straight lines.
pub fn verify(kernel: &Kernel) -> Result<(), String> {
    for phase in &kernel.phases {
        let mut scope = Scope { kernel, values: Vec::new(), vars: vec![phase.unit] };
        scope.nodes(&phase.body, false)?;
    }
    Ok(())
}

struct Scope<'a> {
    kernel: &'a Kernel,
    values: Vec<ValueId>,
    vars: Vec<LoopVar>,
}

impl Scope<'_> {
    fn nodes(&mut self, nodes: &[Node], in_vector: bool) -> Result<(), String> {
        let (values, vars) = (self.values.len(), self.vars.len());
        for node in nodes {
            self.node(node, in_vector)?;
        }
        self.values.truncate(values);
        self.vars.truncate(vars);
        Ok(())
    }

    fn node(&mut self, node: &Node, in_vector: bool) -> Result<(), String> {
        match node {
            Node::Op(v, op) => {
                self.op(op)?;
                self.define(*v)
            }
            Node::Var(v, index) => {
                self.index(index)?;
                self.vars.push(*v);
                Ok(())
            }
            Node::Loop(_) if in_vector => Err("a loop inside of a vector loop".to_owned()),
            Node::Loop(l) => self.a_loop(l),
            Node::Transpose(_) if in_vector => Err("a transpose inside of a vector loop".to_owned()),
            Node::Transpose(t) => self.transpose(t),
            Node::Init(a) => self.accumulator(*a),
            Node::Accumulate { into, value, position } => {
                self.accumulator(*into)?;
                self.value(*value)?;
                position.map_or(Ok(()), |p| self.value(p))
            }
            Node::Merge { into, from } => {
                self.accumulator(*into)?;
                self.accumulator(*from)
            }
            Node::Finish { of, first, second } => {
                self.accumulator(*of)?;
                self.define(*first)?;
                second.map_or(Ok(()), |s| self.define(s))
            }
        }
    }

    fn a_loop(&mut self, l: &Loop) -> Result<(), String> {
        self.index(&l.begin)?;
        l.end.iter().try_for_each(|e| self.index(e))?;
        if l.end.is_empty() || l.step < 1 {
            return Err(format!("loop i{} has no end or no positive step", l.var.0));
        }
        if l.mapping == Mapping::Vector && l.step != 1 {
            return Err(format!("vector loop i{} with step {}", l.var.0, l.step));
        }
        self.vars.push(l.var);
        self.nodes(&l.body, l.mapping == Mapping::Vector)?;
        self.vars.pop();
        Ok(())
    }

    fn transpose(&mut self, t: &Transpose) -> Result<(), String> {
        for range in [&t.rows, &t.columns] {
            self.index(&range.begin)?;
            range.end.iter().try_for_each(|e| self.index(e))?;
        }
        self.memory(t.from.0)?;
        self.memory(t.to.0)?;
        let dtype = |b: BufferId| self.kernel.memory[b.0 as usize].dtype;
        if dtype(t.from.0) != dtype(t.to.0) {
            return Err(format!("transpose of {} to {}", dtype(t.from.0), dtype(t.to.0)));
        }
        self.vars.extend([t.rows.var, t.columns.var]);
        let result = self.index(&t.from.1).and_then(|()| self.index(&t.to.1));
        self.vars.truncate(self.vars.len() - 2);
        result
    }

    fn define(&mut self, v: ValueId) -> Result<(), String> {
        if v.0 as usize >= self.kernel.types.len() {
            return Err(format!("{v} has no type"));
        }
        self.values.push(v);
        Ok(())
    }

    fn value(&self, v: ValueId) -> Result<(), String> {
        // Most uses are close behind their definition.
        match self.values.iter().rev().any(|known| *known == v) {
            true => Ok(()),
            false => Err(format!("{v} is used where it is not defined")),
        }
    }

    fn memory(&self, b: BufferId) -> Result<(), String> {
        match (b.0 as usize) < self.kernel.memory.len() {
            true => Ok(()),
            false => Err(format!("{b} does not exist")),
        }
    }

    fn accumulator(&self, a: AccumulatorId) -> Result<(), String> {
        let Some(accumulator) = self.kernel.accumulators.get(a.0 as usize) else {
            return Err(format!("accumulator {} does not exist", a.0));
        };
        let Home::Array { memory, index } = &accumulator.home else { return Ok(()) };
        if memory.len() != accumulator.components().len() {
            return Err(format!("accumulator {} has arrays for {} of its parts", a.0, memory.len()));
        }
        memory.iter().try_for_each(|m| self.memory(*m))?;
        self.index(index)
    }

    fn index(&self, index: &Index) -> Result<(), String> {
        for (atom, _) in &index.terms {
            match atom {
                IndexAtom::Loop(v) if self.vars.contains(v) => {}
                IndexAtom::Loop(v) => return Err(format!("i{} is used where it is not bound", v.0)),
                IndexAtom::Value(v) => self.value(*v)?,
                IndexAtom::FloorDiv(division) | IndexAtom::Mod(division) => self.index(&division.index)?,
            }
        }
        Ok(())
    }

    fn op(&self, op: &Op) -> Result<(), String> {
        let mut result = Ok(());
        op.for_each_operand(&mut |v| {
            if result.is_ok() {
                result = self.value(v);
            }
        });
        result?;
        match op {
            Op::Reduce { .. } | Op::ReduceSecond(_) => Err("a reduction among operations".to_owned()),
            Op::Load { buffer, index, .. } | Op::Store { buffer, index, .. } => {
                self.memory(*buffer)?;
                self.index(index)
            }
            Op::IndexValue(index) | Op::InRange { index, .. } => self.index(index),
            Op::Check(_, failure) if !self.kernel.failures.contains(failure) => {
                Err(format!("check {failure:?} has no number"))
            }
            _ => Ok(()),
        }
    }
}
