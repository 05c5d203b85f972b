//! The rules of bodies: operands stand before their uses and have the types that operations are defined on,
//! indices name loops that exist, and what runs behind a reduction uses parallel loops only.

use super::VerifyError;
use crate::dtype::{DType, Scalar};
use crate::index::{Index, LoopVar};
use crate::interp::body::Phases;
use crate::interp::scalar::{self, Accumulator, ScalarError};
use crate::nest::{Body, BufferId, Loop, LoopKind, Op, ReduceOp, StoreMode, ValueId};
use crate::size::Size;

/// A buffer, as a body sees it; `None` where there is none of that number.
pub type BufferInfo<'a> = dyn Fn(BufferId) -> Option<(DType, Size)> + 'a;

/// Checks a body that stands in these loops over buffers of these types and lengths. Unlike in a nest, parallel
/// and reduction loops may stand in any order.
pub fn verify_body(body: &Body, loops: &[Loop], buffers: &BufferInfo) -> Result<(), VerifyError> {
    for (v, op) in body.iter() {
        if let Some(problem) = operand_problem(body, v) {
            return Err(at(body, v, problem));
        }
        if let Op::Load { buffer, .. } | Op::Store { buffer, .. } = op
            && buffers(*buffer).is_none()
        {
            return Err(at(body, v, format!("buffer {buffer} does not exist")));
        }
    }
    // Every buffer that the body names exists.
    let types = body.dtypes(&|b| buffers(b).map_or(DType::F32, |info| info.0));
    let phases = Phases::of(body);
    let checked = Checked { loops, buffers, types };
    for (v, op) in body.iter() {
        let behind = phases.needed_behind[v.0 as usize];
        checked
            .types(v, op)
            .and_then(|()| checked.loops(op, behind))
            .and_then(|()| checked.bounds(op))
            .map_err(|problem| at(body, v, problem))?;
        if phases.behind[v.0 as usize] && matches!(op, Op::Reduce { .. }) {
            return Err(at(body, v, "it reduces what depends on a reduction".to_owned()));
        }
    }
    Ok(())
}

fn at(body: &Body, v: ValueId, problem: String) -> VerifyError {
    VerifyError::new(format!("{v} ({})", body.op(v)), problem)
}

/// What is wrong with an operation's operands: they must stand before it and be values, second results must have
/// a first.
pub(crate) fn operand_problem(body: &Body, v: ValueId) -> Option<String> {
    let mut problem = None;
    body.op(v).for_each_operand(&mut |a| {
        if a >= v {
            problem = Some(format!("operand {a} does not stand before it"));
        } else if matches!(body.op(a), Op::Store { .. } | Op::Check(..)) {
            problem = Some(format!("operand {a} is not a value"));
        }
    });
    match body.op(v) {
        Op::ReduceSecond(a)
            if problem.is_none() && !matches!(body.op(*a), Op::Reduce { op, .. } if op.has_second()) =>
        {
            Some(format!("operand {a} has no second result"))
        }
        _ => problem,
    }
}

struct Checked<'a> {
    loops: &'a [Loop],
    buffers: &'a BufferInfo<'a>,
    types: Vec<DType>,
}

impl Checked<'_> {
    fn of(&self, v: ValueId) -> DType {
        self.types[v.0 as usize]
    }

    fn is_bool(&self, v: ValueId, what: &str) -> Result<(), String> {
        match self.of(v) {
            DType::Bool => Ok(()),
            other => Err(format!("{what} {v} is {other}, not b8")),
        }
    }

    fn equal(&self, a: ValueId, b: ValueId) -> Result<(), String> {
        if self.of(a) == self.of(b) {
            return Ok(());
        }
        Err(format!("operands {a} and {b} are {} and {}; they must have one type", self.of(a), self.of(b)))
    }

    fn types(&self, v: ValueId, op: &Op) -> Result<(), String> {
        let dtype = self.of(v);
        if !dtype.has_kernels() {
            return Err(format!("it is {dtype}, which only extern calls can use"));
        }
        self.index_values(op)?;
        match op {
            Op::Const(..) | Op::SizeValue(_) | Op::IndexValue(_) | Op::InRange { .. } | Op::Cast(..) => {
                Ok(())
            }
            Op::ReduceSecond(_) => Ok(()),
            Op::Load { guard, .. } => guard.map_or(Ok(()), |g| self.is_bool(g, "guard")),
            Op::Unary(op, a) => defined(scalar::unary(*op, self.of(*a), one(self.of(*a)))),
            Op::Binary(op, a, b) => {
                self.equal(*a, *b)?;
                let one = one(self.of(*a));
                defined(scalar::binary(*op, self.of(*a), one, one))
            }
            Op::Where(c, a, b) => {
                self.is_bool(*c, "condition")?;
                self.equal(*a, *b)
            }
            Op::Fma(a, b, c) => {
                self.equal(*a, *b)?;
                self.equal(*a, *c)
            }
            Op::Bitcast(a, to) if self.of(*a).bytes() == to.bytes() => Ok(()),
            Op::Bitcast(a, to) => Err(format!("{} and {to} differ in width", self.of(*a))),
            Op::Reduce { op, value, position } => self.reduction(*op, *value, *position),
            Op::Check(a, _) => self.is_bool(*a, "condition"),
            Op::Store { buffer, value, guard, mode, .. } => {
                if let Some(guard) = guard {
                    self.is_bool(*guard, "guard")?;
                }
                let Some((target, _)) = (self.buffers)(*buffer) else { return Ok(()) };
                if self.of(*value) != target {
                    return Err(format!("{value} is {}, but the buffer is {target}", self.of(*value)));
                }
                match mode {
                    StoreMode::Set => Ok(()),
                    StoreMode::Combine(op) if op.is_comparison() => {
                        Err("stores can't combine by comparison".to_owned())
                    }
                    StoreMode::Combine(op) => defined(scalar::binary(*op, target, one(target), one(target))),
                }
            }
        }
    }

    fn reduction(&self, op: ReduceOp, value: ValueId, position: Option<ValueId>) -> Result<(), String> {
        Accumulator::new(op, self.of(value)).map_err(|e| e.to_string())?;
        let positioned = matches!(op, ReduceOp::ArgMax | ReduceOp::ArgMin);
        match position {
            None if positioned => Err("it needs the position of the value".to_owned()),
            Some(_) if !positioned => Err("only arg_max and arg_min take a position".to_owned()),
            Some(p) if self.of(p) != DType::I64 => Err(format!("position {p} is {}, not i64", self.of(p))),
            _ => Ok(()),
        }
    }

    /// Values inside indices are integers.
    fn index_values(&self, op: &Op) -> Result<(), String> {
        let Some(index) = index_of(op) else { return Ok(()) };
        let mut problem = None;
        index.for_each_value(&mut |a| {
            if !self.of(a).is_int() {
                problem = Some(format!("index value {a} is {}, not an integer", self.of(a)));
            }
        });
        problem.map_or(Ok(()), Err)
    }

    fn loops(&self, op: &Op, behind: bool) -> Result<(), String> {
        let Some(index) = index_of(op) else { return Ok(()) };
        let mut problem = None;
        for_each_loop(index, &mut |var| match self.loops.get(var.0 as usize) {
            None => problem = Some(format!("there is no loop i{}", var.0)),
            Some(l) if behind && l.kind == LoopKind::Reduction => {
                problem =
                    Some(format!("loop i{} has no value behind the reduction that it is part of", var.0));
            }
            Some(_) => {}
        });
        problem.map_or(Ok(()), Err)
    }

    /// Accesses that are certainly outside of their buffer. Only affine indices without a guard reach both of
    /// their bounds for certain.
    fn bounds(&self, op: &Op) -> Result<(), String> {
        let (Op::Load { buffer, index, guard: None } | Op::Store { buffer, index, guard: None, .. }) = op
        else {
            return Ok(());
        };
        let runs = self.loops.iter().all(|l| crate::index::provably_positive(l.extent));
        let Some((_, len)) = (self.buffers)(*buffer) else { return Ok(()) };
        if !runs || !index.is_affine() {
            return Ok(());
        }
        let Some((low, high)) = index.bounds(&|var| self.loops.get(var.0 as usize).map(|l| l.extent)) else {
            return Ok(());
        };
        let below = low.as_const().is_some_and(|low| low < 0);
        let above = (len - Size::ONE - high).as_const().is_some_and(|room| room < 0);
        if below || above {
            return Err(format!("it reaches elements {low} to {high} of buffer {buffer}, which has {len}"));
        }
        Ok(())
    }
}

fn index_of(op: &Op) -> Option<&Index> {
    match op {
        Op::IndexValue(index)
        | Op::InRange { index, .. }
        | Op::Load { index, .. }
        | Op::Store { index, .. } => Some(index),
        _ => None,
    }
}

fn for_each_loop(index: &Index, visit: &mut dyn FnMut(LoopVar)) {
    use crate::index::IndexAtom;
    for (atom, _) in &index.terms {
        match atom {
            IndexAtom::Loop(var) => visit(*var),
            IndexAtom::Value(_) => {}
            IndexAtom::FloorDiv(division) | IndexAtom::Mod(division) => for_each_loop(&division.index, visit),
        }
    }
}

/// A value that every operation defined on the type has a result for.
fn one(dtype: DType) -> Scalar {
    scalar::constant(Scalar::Int(1), dtype)
}

fn defined(result: Result<Scalar, ScalarError>) -> Result<(), String> {
    result.map(|_| ()).map_err(|e| e.to_string())
}
