//! Runs one body: each iteration, its reductions, and what follows them. Loop nests, fused groups and loop trees
//! are all interpreted with these pieces.

use std::cell::Cell;

use super::InterpError;
use super::scalar::{self, Accumulator, ScalarError};
use crate::dtype::{DType, Scalar};
use crate::index::{Index, LoopVar};
use crate::nest::{Body, BufferId, Op, ReduceOp, StoreMode, ValueId};
use crate::size::{Size, SymbolValues};
use crate::verify::operand_problem;

/// What a body loads from and stores to. Elements are in the form of [`scalar`]; those of types narrower than
/// f32 are rounded to that type before they are stored.
pub trait Memory {
    /// Element type of a buffer.
    fn dtype(&self, buffer: BufferId) -> Result<DType, InterpError>;

    /// Reads one element; outside of the buffer it fails.
    fn load(&self, buffer: BufferId, index: i64) -> Result<Scalar, InterpError>;

    /// Writes one element; outside of the buffer it fails.
    fn store(&mut self, buffer: BufferId, index: i64, value: Scalar) -> Result<(), InterpError>;
}

/// A digit of an iteration space.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Digit {
    /// Number of iterations; none if not positive.
    pub extent: i64,
    /// Whether reductions run over it.
    pub reduced: bool,
}

/// Runs a body over an iteration space. The first digits stand still at the values in `fixed` (reductions do
/// not run over them, whatever they say); the others that are not reduced run outermost first, and within each
/// of their iterations the reduced ones do. What uses a reduction's result runs behind the reduced digits.
pub fn run_body(
    body: &Body,
    digits: &[Digit],
    fixed: &[i64],
    sizes: &SymbolValues,
    memory: &mut dyn Memory,
) -> Result<(), InterpError> {
    let moving = |k: usize| k >= fixed.len();
    let reduced: Vec<bool> = digits.iter().enumerate().map(|(k, d)| d.reduced && moving(k)).collect();
    let of_kind = |kind: bool| -> Vec<usize> {
        (0..digits.len()).filter(|k| moving(*k) && reduced[*k] == kind).collect()
    };
    let (outer, inner) = (of_kind(false), of_kind(true));
    let mut eval = BodyEval::new(body, &reduced, sizes, memory)?;
    let mut at = vec![0; digits.len()];
    for (place, value) in at.iter_mut().zip(fixed) {
        *place = *value;
    }
    for_each_iteration(digits, &outer, &mut at, &mut |at| {
        eval.start()?;
        for_each_iteration(digits, &inner, at, &mut |at| eval.iterate(at, memory))?;
        eval.finish(at, memory)
    })
}

/// Counts through the digits in `which`, the last one fastest; other digits keep their values.
fn for_each_iteration(
    digits: &[Digit],
    which: &[usize],
    at: &mut Vec<i64>,
    visit: &mut dyn FnMut(&mut Vec<i64>) -> Result<(), InterpError>,
) -> Result<(), InterpError> {
    if which.iter().any(|k| digits[*k].extent <= 0) {
        return Ok(());
    }
    for k in which {
        at[*k] = 0;
    }
    loop {
        visit(at)?;
        let Some(k) = which.iter().rev().find(|k| at[**k] + 1 < digits[**k].extent) else { return Ok(()) };
        at[*k] += 1;
        for later in which.iter().rev().take_while(|later| *later != k) {
            at[*later] = 0;
        }
    }
}

/// Evaluates a body iteration by iteration, for interpreters that choose the order of iterations themselves:
/// [`BodyEval::start`], then [`BodyEval::iterate`] for each iteration, then [`BodyEval::finish`], for each
/// combination of the digits that are not reduced.
#[derive(Clone, Debug)]
pub struct BodyEval<'a> {
    body: &'a Body,
    sizes: &'a SymbolValues,
    reduced: Vec<bool>,
    types: Vec<DType>,
    /// Operations of each iteration, reductions among them.
    every: Vec<ValueId>,
    /// Operations behind the reductions: what uses their results, and what that needs besides.
    behind: Vec<ValueId>,
    /// The latest value of each operation.
    values: Vec<Scalar>,
    accumulators: Vec<(ValueId, Accumulator)>,
}

impl<'a> BodyEval<'a> {
    /// Prepares a body. `reduced` says for each digit whether reductions run over it.
    pub fn new(
        body: &'a Body,
        reduced: &[bool],
        sizes: &'a SymbolValues,
        memory: &dyn Memory,
    ) -> Result<BodyEval<'a>, InterpError> {
        check_form(body)?;
        let types = value_types(body, memory)?;
        let phases = Phases::of(body);
        let (mut every, mut behind) = (Vec::new(), Vec::new());
        for (v, op) in body.iter() {
            let k = v.0 as usize;
            if matches!(op, Op::Reduce { .. }) && phases.behind[k] {
                return Err(malformed(v, "a reduction of what depends on a reduction"));
            }
            if !phases.behind[k] {
                every.push(v);
            }
            if phases.needed_behind[k] {
                behind.push(v);
            }
        }
        let values = vec![Scalar::Int(0); body.ops.len()];
        let mut eval = BodyEval {
            body,
            sizes,
            reduced: reduced.to_vec(),
            types,
            every,
            behind,
            values,
            accumulators: Vec::new(),
        };
        eval.start()?;
        Ok(eval)
    }

    /// Sets all reductions to the value of no iterations.
    pub fn start(&mut self) -> Result<(), InterpError> {
        self.accumulators.clear();
        for (v, op) in self.body.iter() {
            if let Op::Reduce { op, value, .. } = op {
                let new = Accumulator::new(*op, self.types[value.0 as usize]);
                self.accumulators.push((v, new.map_err(|source| of_value(v, source))?));
            }
        }
        Ok(())
    }

    /// Runs one iteration: all operations that do not depend on a reduction. `digits` are the values of all
    /// digits.
    pub fn iterate(&mut self, digits: &[i64], memory: &mut dyn Memory) -> Result<(), InterpError> {
        let mut reductions = 0;
        for k in 0..self.every.len() {
            let v = self.every[k];
            let body = self.body;
            let Op::Reduce { value, position, .. } = body.op(v) else {
                self.evaluate(v, digits, false, memory)?;
                continue;
            };
            let position = position.map_or(0, |p| self.values[p.0 as usize].to_i64());
            let value = self.values[value.0 as usize];
            let accumulator = &mut self.accumulators[reductions].1;
            accumulator.add(value, position).map_err(|source| of_value(v, source))?;
            reductions += 1;
        }
        Ok(())
    }

    /// Runs what depends on the reductions. The reduced ones of `digits` have no meaning here; using one is an
    /// error.
    pub fn finish(&mut self, digits: &[i64], memory: &mut dyn Memory) -> Result<(), InterpError> {
        for (v, accumulator) in &self.accumulators {
            self.values[v.0 as usize] = accumulator.finish().0;
        }
        for k in 0..self.behind.len() {
            self.evaluate(self.behind[k], digits, true, memory)?;
        }
        Ok(())
    }

    fn evaluate(
        &mut self,
        v: ValueId,
        digits: &[i64],
        behind: bool,
        memory: &mut dyn Memory,
    ) -> Result<(), InterpError> {
        let body = self.body;
        let value = |a: &ValueId| self.values[a.0 as usize];
        let dtype = |a: &ValueId| self.types[a.0 as usize];
        let passes = |guard: &Option<ValueId>| guard.is_none_or(|g| value(&g).to_bool());
        let scalar = |result: Result<Scalar, ScalarError>| result.map_err(|source| of_value(v, source));
        let at = |index: &Index| self.position(v, index, digits, behind);
        let result = match body.op(v) {
            // As in eager PyTorch, constants are not rounded to storage types.
            Op::Const(c, dtype) => scalar::constant(*c, dtype.compute()),
            Op::SizeValue(size) => Scalar::Int(self.size(*size)?),
            Op::IndexValue(index) => Scalar::Int(at(index)?),
            Op::InRange { index, low, high } => {
                Scalar::Bool((self.size(*low)?..self.size(*high)?).contains(&at(index)?))
            }
            Op::Load { buffer, index, guard } if passes(guard) => memory.load(*buffer, at(index)?)?,
            Op::Load { .. } => scalar::zero(self.types[v.0 as usize]),
            Op::Unary(op, a) => scalar(scalar::unary(*op, dtype(a), value(a)))?,
            Op::Binary(op, a, b) => scalar(scalar::binary(*op, dtype(a), value(a), value(b)))?,
            Op::Where(c, a, b) => value(if value(c).to_bool() { a } else { b }),
            Op::Fma(a, b, c) => scalar(scalar::fma(dtype(a), value(a), value(b), value(c)))?,
            Op::Cast(a, to) => scalar::cast(value(a), dtype(a), *to),
            Op::Bitcast(a, to) => scalar(scalar::bitcast(value(a), dtype(a), *to))?,
            // Set by `finish`.
            Op::Reduce { .. } => return Ok(()),
            Op::ReduceSecond(reduction) => self.second_result(v, *reduction)?,
            Op::Store { buffer, index, value: stored, guard, mode } => {
                if passes(guard) {
                    let (new, element) = (value(stored), at(index)?);
                    self.store(v, memory, *buffer, element, new, dtype(stored), *mode)?;
                }
                return Ok(());
            }
            Op::Check(a, _) if value(a).to_bool() => return Ok(()),
            Op::Check(_, failure) => return Err(InterpError::Check(failure.to_string())),
        };
        self.values[v.0 as usize] = result;
        Ok(())
    }

    fn second_result(&self, v: ValueId, reduction: ValueId) -> Result<Scalar, InterpError> {
        self.accumulators
            .iter()
            .find(|a| a.0 == reduction)
            .and_then(|a| a.1.finish().1)
            .ok_or_else(|| malformed(v, "the second result of what has none"))
    }

    #[allow(clippy::too_many_arguments)]
    fn store(
        &self,
        v: ValueId,
        memory: &mut dyn Memory,
        buffer: BufferId,
        index: i64,
        value: Scalar,
        from: DType,
        mode: StoreMode,
    ) -> Result<(), InterpError> {
        let to = memory.dtype(buffer)?;
        let mut value = scalar::cast(value, from, to);
        if let StoreMode::Combine(op) = mode {
            let old = memory.load(buffer, index)?;
            let new = scalar::binary(op, to, old, value).map_err(|source| of_value(v, source))?;
            value = scalar::cast(new, to, to);
        }
        memory.store(buffer, index, value)
    }

    fn size(&self, size: Size) -> Result<i64, InterpError> {
        size.eval(self.sizes).ok_or_else(|| InterpError::Size(size.to_string()))
    }

    fn position(&self, v: ValueId, index: &Index, digits: &[i64], behind: bool) -> Result<i64, InterpError> {
        let wrong_loop = Cell::new(None);
        let digit = |var: LoopVar| {
            let k = var.0 as usize;
            if k >= digits.len() || (behind && self.reduced.get(k) == Some(&true)) {
                wrong_loop.set(Some(var));
            }
            digits.get(k).copied().unwrap_or(0)
        };
        let position = index.eval(&digit, &|a| self.values[a.0 as usize].to_i64(), self.sizes);
        if let Some(var) = wrong_loop.get() {
            let problem = match digits.get(var.0 as usize) {
                None => format!("loop i{} does not exist", var.0),
                Some(_) => format!("loop i{} is reduced over and has no value behind the reduction", var.0),
            };
            return Err(malformed(v, &problem));
        }
        position.ok_or_else(|| InterpError::Size(index.to_string()))
    }
}

/// Which operations run in each iteration and which behind the reductions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Phases {
    /// For each value, whether it uses a reduction's result, directly or not.
    pub behind: Vec<bool>,
    /// For each value, whether it is evaluated behind the reductions: the same, and what those need besides.
    /// What is needed there and does not depend on a reduction is evaluated in both places; it may use parallel
    /// loops only.
    pub needed_behind: Vec<bool>,
}

impl Phases {
    /// Looks at the operands of each operation; they must stand before it.
    pub fn of(body: &Body) -> Phases {
        let n = body.ops.len();
        let (mut behind, mut needed) = (vec![false; n], vec![false; n]);
        let is_reduction = |v: ValueId| matches!(body.op(v), Op::Reduce { .. });
        for (v, op) in body.iter() {
            let mut uses = matches!(op, Op::ReduceSecond(_));
            op.for_each_operand(&mut |a| uses |= behind[a.0 as usize] || is_reduction(a));
            behind[v.0 as usize] = uses;
            needed[v.0 as usize] = uses;
        }
        for (v, op) in body.iter().collect::<Vec<_>>().into_iter().rev() {
            if needed[v.0 as usize] && !is_reduction(v) {
                op.for_each_operand(&mut |a| needed[a.0 as usize] |= !is_reduction(a));
            }
        }
        Phases { behind, needed_behind: needed }
    }
}

fn of_value(v: ValueId, source: ScalarError) -> InterpError {
    InterpError::Scalar { value: v.0, source }
}

fn malformed(v: ValueId, problem: &str) -> InterpError {
    InterpError::Malformed { value: v.0, problem: problem.to_owned() }
}

/// What evaluation relies on: operands are as [`operand_problem`] says, and positioned reductions have a position.
fn check_form(body: &Body) -> Result<(), InterpError> {
    for (v, op) in body.iter() {
        let mut problem = operand_problem(body, v);
        if let Op::Reduce { op: ReduceOp::ArgMax | ReduceOp::ArgMin, position: None, .. } = op {
            problem = Some("it needs the position of the value".to_owned());
        }
        if let Some(problem) = problem {
            return Err(malformed(v, &problem));
        }
    }
    Ok(())
}

fn value_types(body: &Body, memory: &dyn Memory) -> Result<Vec<DType>, InterpError> {
    for op in &body.ops {
        if let Op::Load { buffer, .. } | Op::Store { buffer, .. } = op {
            let dtype = memory.dtype(*buffer)?;
            if dtype.is_complex() {
                return Err(InterpError::Unsupported { what: format!("buffer {buffer}"), dtype });
            }
        }
    }
    // Every buffer has just answered.
    Ok(body.dtypes(&|b| memory.dtype(b).unwrap_or(DType::F32)))
}
