//! States of reductions. A state in registers has a stack slot for each part and each copy, which LLVM turns
//! into registers; lanes and copies are combined in a fixed order, so that results never depend on chance.

use llvm_sys::LLVMIntPredicate::{LLVMIntEQ, LLVMIntSLT};
use llvm_sys::LLVMRealPredicate::{
    LLVMRealOEQ, LLVMRealOLT, LLVMRealORD, LLVMRealUGT, LLVMRealULT, LLVMRealUNO,
};
use loafc_ir::dtype::DType;
use loafc_ir::interp::scalar;
use loafc_ir::nest::{BinaryOp, BufferId, ReduceOp, ValueId};
use smallvec::SmallVec;

use super::convert::{Family, family};
use super::emit::{EmitError, Emitter, LanePlace, Value};
use super::ir::V;
use crate::loop_tree::{Accumulator, AccumulatorId, Home};

/// The parts of a state, in the order of [`Accumulator::components`].
pub(super) type Parts = SmallVec<[V; 4]>;

/// Stack slots of a state.
#[derive(Clone, Debug)]
pub(super) struct RegisterState {
    lanes: Option<u32>,
    /// For each copy the slots of its parts.
    copies: Vec<Parts>,
}

impl Emitter<'_, '_, '_> {
    fn accumulator(&self, a: AccumulatorId) -> &Accumulator {
        &self.kernel.accumulators[a.0 as usize]
    }

    /// The parts of the state of no values.
    fn identity(&self, of: &Accumulator, lanes: Option<u32>) -> Parts {
        let first = |e: &Self| e.constant(scalar::identity(of.op, of.dtype), of.dtype).v;
        let scalars: Parts = match of.op {
            // Any position beats this one, so that a value equal to the identity is still found.
            ReduceOp::ArgMax | ReduceOp::ArgMin => {
                SmallVec::from_slice(&[first(self), self.ir.i64(i64::MAX)])
            }
            ReduceOp::Welford => SmallVec::from_elem(self.ir.const_float(self.ir.double(), 0.0), 4),
            _ => SmallVec::from_slice(&[first(self)]),
        };
        match lanes {
            Some(n) => scalars.into_iter().map(|v| self.ir.splat(v, n)).collect(),
            None => scalars,
        }
    }

    pub(super) fn init(&mut self, a: AccumulatorId) -> Result<(), EmitError> {
        let of = self.accumulator(a).clone();
        if let Home::Array { .. } = of.home {
            let parts = self.identity(&of, self.lanes.map(|l| l.count));
            return self.write(a, &parts);
        }
        let (lanes, copies) = self.shapes.get(&a).copied().unwrap_or((None, 1));
        let parts = self.identity(&of, lanes);
        if !self.states.contains_key(&a) {
            let slots = |e: &Self| parts.iter().map(|v| e.ir.slot(e.ir.type_of(*v))).collect();
            let copies = (0..copies).map(|_| slots(self)).collect();
            self.states.insert(a, RegisterState { lanes, copies });
        }
        for copy in &self.states[&a].copies {
            for (slot, v) in copy.iter().zip(&parts) {
                self.ir.set(*slot, *v);
            }
        }
        Ok(())
    }

    pub(super) fn accumulate(
        &mut self,
        into: AccumulatorId,
        value: ValueId,
        position: Option<ValueId>,
    ) -> Result<(), EmitError> {
        let of = self.accumulator(into).clone();
        let value = self.value(value)?;
        // Positions of all that a state takes are told apart by one loop, or come in any order.
        let ascends = position.is_some_and(|p| self.ascending.contains(&p));
        let position = position.map(|p| self.value(p)).transpose()?;
        let old = self.read(into)?;
        let lanes = self.ir.lanes_of(old[0]);
        let widen = |e: &Self, x: Value| match (lanes, e.ir.lanes_of(x.v)) {
            (Some(n), None) => e.ir.splat(x.v, n),
            _ => x.v,
        };
        let value_v = widen(self, value);
        let position = position.map(|p| widen(self, p));
        let mut new = match position {
            Some(position) if ascends => self.first_best(&of, &old, value_v, position)?,
            _ => self.step(&of, &old, value_v, position)?,
        };
        if let (Some(mask), Some(_)) = (self.lanes.and_then(|l| l.mask), lanes) {
            for (new, old) in new.iter_mut().zip(&old) {
                *new = self.ir.select(mask, *new, *old);
            }
        }
        self.write(into, &new)
    }

    pub(super) fn merge(&mut self, into: AccumulatorId, from: AccumulatorId) -> Result<(), EmitError> {
        let of = self.accumulator(into).clone();
        let both_in_registers = of.home == Home::Registers && self.accumulator(from).home == Home::Registers;
        if both_in_registers && self.states.contains_key(&into) && self.states.contains_key(&from) {
            let (to, from) = (self.states[&into].clone(), self.states[&from].clone());
            if to.lanes == from.lanes && to.copies.len() == from.copies.len() {
                for (to, from) in to.copies.iter().zip(&from.copies) {
                    let (a, b) = (self.get_parts(&of, to, &into), self.get_parts(&of, from, &into));
                    let new = self.merged(&of, &a, &b)?;
                    self.set_parts(to, &new);
                }
                return Ok(());
            }
        }
        let other = self.total(from)?;
        let old = self.read(into)?;
        let new = self.merged(&of, &old, &other)?;
        self.write(into, &new)
    }

    /// The reduction's results: the first, and the second of reductions that have two.
    pub(super) fn finish(
        &mut self,
        a: AccumulatorId,
        first: DType,
        second: Option<DType>,
    ) -> Result<(Value, Option<Value>), EmitError> {
        let of = self.accumulator(a).clone();
        let parts = self.total(a)?;
        let ir = &self.ir;
        let (one, two) = match of.op {
            ReduceOp::Welford => {
                let (mean, squares) = self.moments(&parts);
                let narrow = |v| self.cast(Value { v, dtype: DType::F64 }, of.dtype.compute()).v;
                (narrow(mean), Some(narrow(squares)))
            }
            ReduceOp::ArgMax | ReduceOp::ArgMin => {
                let none = ir.const_int(ir.type_of(parts[1]), i64::MAX);
                let empty = ir.icmp(LLVMIntEQ, parts[1], none);
                (parts[0], Some(ir.select(empty, ir.zero(ir.type_of(parts[1])), parts[1])))
            }
            _ => (parts[0], None),
        };
        let second = second.zip(two).map(|(dtype, v)| Value { v, dtype });
        Ok((Value { v: one, dtype: first }, second))
    }

    /// The state in the current loop: lanes of an array in a vector loop, the current copy's registers.
    fn read(&mut self, a: AccumulatorId) -> Result<Parts, EmitError> {
        let of = self.accumulator(a).clone();
        let Home::Array { memory, index } = &of.home else {
            let copy = self.lanes.map_or(0, |l| l.copy);
            let state = self.register_state(a)?;
            let slots = state.copies.get(copy).unwrap_or(&state.copies[0]).clone();
            return Ok(self.get_parts(&of, &slots, &a));
        };
        if let Some((_, parts)) = self.changed.iter().find(|c| c.0 == a) {
            return Ok(parts.clone());
        }
        let place = self.place(index);
        if self.lanes.is_some() && matches!(place.lanes, LanePlace::Same) {
            return Err(format!("lanes share a state of accumulator {}", a.0));
        }
        Ok(memory.iter().map(|m| self.load_at(*m, &place, None).v).collect())
    }

    fn write(&mut self, a: AccumulatorId, parts: &Parts) -> Result<(), EmitError> {
        if let Home::Array { .. } = self.accumulator(a).home {
            if self.lanes.is_none() {
                return self.write_array(a, parts);
            }
            self.changed.retain(|c| c.0 != a);
            self.changed.push((a, parts.clone()));
            return Ok(());
        }
        let copy = self.lanes.map_or(0, |l| l.copy);
        let state = self.register_state(a)?;
        let slots = state.copies.get(copy).unwrap_or(&state.copies[0]).clone();
        self.set_parts(&slots, parts);
        Ok(())
    }

    pub(super) fn write_array(&mut self, a: AccumulatorId, parts: &Parts) -> Result<(), EmitError> {
        let of = self.accumulator(a).clone();
        let Home::Array { memory, index } = &of.home else { return Ok(()) };
        let place = self.place(index);
        for (m, v) in memory.iter().zip(parts) {
            let dtype = self.kernel.memory[m.0 as usize].dtype;
            self.store_at(BufferId(m.0), &place, Value { v: *v, dtype }, None);
        }
        Ok(())
    }

    fn register_state(&self, a: AccumulatorId) -> Result<&RegisterState, EmitError> {
        self.states.get(&a).ok_or_else(|| format!("accumulator {} was never set", a.0))
    }

    fn get_parts(&self, of: &Accumulator, slots: &Parts, a: &AccumulatorId) -> Parts {
        let lanes = self.states.get(a).and_then(|s| s.lanes);
        let types = of.components();
        let ty = |d: &DType| self.ir.vector(self.register_type(*d), lanes);
        slots.iter().zip(&types).map(|(slot, d)| self.ir.get(ty(d), *slot)).collect()
    }

    fn set_parts(&self, slots: &Parts, parts: &Parts) {
        for (slot, v) in slots.iter().zip(parts) {
            self.ir.set(*slot, *v);
        }
    }

    /// One state out of all copies and lanes.
    fn total(&mut self, a: AccumulatorId) -> Result<Parts, EmitError> {
        let of = self.accumulator(a).clone();
        if of.home != Home::Registers {
            return self.read(a);
        }
        let state = self.register_state(a)?.clone();
        let mut copies: Vec<Parts> =
            state.copies.iter().map(|slots| self.get_parts(&of, slots, &a)).collect();
        // Neighbours first: a tree, as over lanes.
        while copies.len() > 1 {
            let mut next = Vec::new();
            for pair in copies.chunks(2) {
                next.push(match pair {
                    [a, b] => self.merged(&of, a, b)?,
                    _ => pair[0].clone(),
                });
            }
            copies = next;
        }
        let mut parts = copies.swap_remove(0);
        let mut lanes = state.lanes.unwrap_or(1);
        let is_vector = state.lanes.is_some();
        while is_vector && lanes > 1 {
            lanes /= 2;
            let low: Parts = parts.iter().map(|v| self.ir.part(*v, 0, lanes)).collect();
            let high: Parts = parts.iter().map(|v| self.ir.part(*v, lanes, lanes)).collect();
            parts = self.merged(&of, &low, &high)?;
        }
        if is_vector {
            parts = parts.iter().map(|v| self.ir.extract(*v, self.ir.i32(0))).collect();
        }
        Ok(parts)
    }

    fn simple_op(op: ReduceOp) -> Option<BinaryOp> {
        match op {
            ReduceOp::Sum => Some(BinaryOp::Add),
            ReduceOp::Prod => Some(BinaryOp::Mul),
            ReduceOp::Max => Some(BinaryOp::Max),
            ReduceOp::Min => Some(BinaryOp::Min),
            ReduceOp::Any => Some(BinaryOp::Or),
            ReduceOp::All => Some(BinaryOp::And),
            ReduceOp::Xor => Some(BinaryOp::Xor),
            ReduceOp::ArgMax | ReduceOp::ArgMin | ReduceOp::Welford => None,
        }
    }

    /// A state with one more value.
    fn step(&self, of: &Accumulator, old: &Parts, value: V, position: Option<V>) -> Result<Parts, EmitError> {
        let ir = &self.ir;
        match of.op {
            ReduceOp::ArgMax | ReduceOp::ArgMin => {
                let position = position.ok_or("a position is missing")?;
                self.better(of, old, &SmallVec::from_slice(&[value, position]))
            }
            ReduceOp::Welford => {
                let x = self.cast(Value { v: value, dtype: of.dtype.compute() }, DType::F64).v;
                let first = ir.fcmp(LLVMRealOEQ, old[1], ir.zero(ir.type_of(x)));
                let shift = ir.select(first, x, old[0]);
                let count = ir.fadd(old[1], ir.const_float(ir.type_of(x), 1.0));
                let difference = ir.fsub(x, shift);
                let sum = ir.fadd(old[2], difference);
                let squares = ir.intrinsic_like("llvm.fma", &[difference, difference, old[3]]);
                Ok(SmallVec::from_slice(&[shift, count, sum, squares]))
            }
            _ => self.merged(of, old, &SmallVec::from_slice(&[value])),
        }
    }

    /// Both states' values in one.
    fn merged(&self, of: &Accumulator, a: &Parts, b: &Parts) -> Result<Parts, EmitError> {
        match of.op {
            ReduceOp::ArgMax | ReduceOp::ArgMin => self.better(of, a, b),
            ReduceOp::Welford => Ok(self.merged_moments(a, b)),
            op => {
                // Sums of truth values don't exist; everything else has a binary operation of its type.
                let dtype = of.dtype.compute();
                let (a, b) = (Value { v: a[0], dtype }, Value { v: b[0], dtype });
                let combine =
                    Self::simple_op(op).ok_or_else(|| format!("{op:?} has a state of several parts"))?;
                let v = self.binary(combine, a, b)?.v;
                Ok(SmallVec::from_slice(&[v]))
            }
        }
    }

    /// The extreme value, of equals the one with the smaller position; NaN wins over all.
    fn better(&self, of: &Accumulator, a: &Parts, b: &Parts) -> Result<Parts, EmitError> {
        let ir = &self.ir;
        let dtype = of.dtype.compute();
        let op = if of.op == ReduceOp::ArgMax { BinaryOp::Gt } else { BinaryOp::Lt };
        let mut wins = self.compare(op, dtype, b[0], a[0])?;
        let mut equal = self.compare(BinaryOp::Eq, dtype, b[0], a[0])?;
        if family(dtype) == Family::Float {
            let (a_nan, b_nan) = (ir.fcmp(LLVMRealUNO, a[0], a[0]), ir.fcmp(LLVMRealUNO, b[0], b[0]));
            let not = |v| ir.xor(v, ir.const_int(ir.type_of(v), -1));
            wins = ir.or(wins, ir.and(b_nan, not(a_nan)));
            equal = ir.or(equal, ir.and(a_nan, b_nan));
        }
        let earlier = ir.icmp(LLVMIntSLT, b[1], a[1]);
        let takes = ir.or(wins, ir.and(equal, earlier));
        Ok(SmallVec::from_slice(&[ir.select(takes, b[0], a[0]), ir.select(takes, b[1], a[1])]))
    }

    /// The state with one more value whose position is larger than those before: of equal values the one that is there
    /// stays. Where all values are equal to that of no values, no position is taken, and the result is the first one.
    fn first_best(&self, of: &Accumulator, old: &Parts, value: V, position: V) -> Result<Parts, EmitError> {
        let dtype = of.dtype.compute();
        let op = if of.op == ReduceOp::ArgMax { BinaryOp::Gt } else { BinaryOp::Lt };
        let takes = match family(dtype) {
            Family::Float => {
                // True for NaNs too: a new one is taken, but nothing after one.
                let beats = if of.op == ReduceOp::ArgMax { LLVMRealUGT } else { LLVMRealULT };
                let beaten = self.ir.fcmp(beats, value, old[0]);
                self.ir.and(beaten, self.ir.fcmp(LLVMRealORD, old[0], old[0]))
            }
            _ => self.compare(op, dtype, value, old[0])?,
        };
        let ir = &self.ir;
        Ok(SmallVec::from_slice(&[ir.select(takes, value, old[0]), ir.select(takes, position, old[1])]))
    }

    /// Mean and sum of squared differences from it.
    fn moments(&self, parts: &Parts) -> (V, V) {
        let ir = &self.ir;
        let [shift, count, sum, squares] = [parts[0], parts[1], parts[2], parts[3]];
        let ty = ir.type_of(count);
        let (zero, one) = (ir.zero(ty), ir.const_float(ty, 1.0));
        let empty = ir.fcmp(LLVMRealOEQ, count, zero);
        let mean_difference = ir.fdiv(sum, ir.select(empty, one, count));
        let mean = ir.fadd(shift, mean_difference);
        let about_mean = ir.fsub(squares, ir.fmul(sum, mean_difference));
        // Rounding may leave less than nothing; NaN stays.
        let negative = ir.fcmp(LLVMRealOLT, about_mean, zero);
        (mean, ir.select(negative, zero, about_mean))
    }

    /// The state about the common mean.
    fn merged_moments(&self, a: &Parts, b: &Parts) -> Parts {
        let ir = &self.ir;
        let ((mean_a, squares_a), (mean_b, squares_b)) = (self.moments(a), self.moments(b));
        let (count_a, count_b) = (a[1], b[1]);
        let count = ir.fadd(count_a, count_b);
        let ty = ir.type_of(count);
        let (zero, one) = (ir.zero(ty), ir.const_float(ty, 1.0));
        let empty = ir.fcmp(LLVMRealOEQ, count, zero);
        let (no_a, no_b) = (ir.fcmp(LLVMRealOEQ, count_a, zero), ir.fcmp(LLVMRealOEQ, count_b, zero));
        let share = ir.fdiv(count_b, ir.select(empty, one, count));
        let difference = ir.fsub(mean_b, mean_a);
        let mean = ir.fadd(mean_a, ir.fmul(difference, share));
        let spread = ir.fmul(ir.fmul(difference, difference), ir.fmul(count_a, share));
        let squares = ir.fadd(ir.fadd(squares_a, squares_b), spread);
        // With one side empty the other is taken as it is: an infinite mean would make NaNs.
        let mean = ir.select(no_b, mean_a, ir.select(no_a, mean_b, mean));
        let squares = ir.select(no_b, squares_a, ir.select(no_a, squares_b, squares));
        SmallVec::from_slice(&[mean, count, zero, squares])
    }
}
