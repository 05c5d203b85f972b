//! Loads and stores: contiguous lanes as one vector, equal lanes as one scalar, others as a gather or scatter.
//! Lanes that combine with memory where they may hit one element take turns.

use llvm_sys::LLVMIntPredicate::LLVMIntSLT;
use loafc_ir::dtype::DType;
use loafc_ir::index::Index;
use loafc_ir::nest::{BinaryOp, BufferId, StoreMode, ValueId};
use loafc_ir::size::Size;

use super::emit::{EmitError, Emitter, LanePlace, Lanes, Place, Value};
use super::ir::{T, V};
use super::window::Scattered;

impl Emitter<'_, '_, '_> {
    fn memory_dtype(&self, buffer: BufferId) -> DType {
        self.kernel.memory[buffer.0 as usize].dtype
    }

    /// Pointer to the first lane's element.
    pub(super) fn pointer(&self, buffer: BufferId, place: &Place) -> V {
        let ty = self.memory_type(self.memory_dtype(buffer));
        let base = self.ir.element(ty, self.memory[buffer.0 as usize], place.fixed);
        match place.moving {
            Some(moving) => self.ir.element(ty, base, moving),
            None => base,
        }
    }

    /// Pointers to all lanes' elements.
    fn pointers(&self, buffer: BufferId, place: &Place, lanes: Lanes) -> V {
        let ty = self.memory_type(self.memory_dtype(buffer));
        let base = self.pointer(buffer, place);
        let each = match &place.lanes {
            LanePlace::Each(each) => *each,
            LanePlace::Same => self.ir.zero(self.ir.vector(self.ir.int(64), Some(lanes.count))),
            LanePlace::Stride(stride) => match stride.as_const() {
                // Distances of 32 bits let the machine gather twice as many lanes at once.
                Some(c) if (c.abs() << 16) < i64::from(i32::MAX) => {
                    let narrow = self.ir.iota(self.ir.int(32), lanes.count, c);
                    self.ir.sext(narrow, self.ir.vector(self.ir.int(64), Some(lanes.count)))
                }
                _ => self.lane_offsets(*stride, lanes.count),
            },
        };
        self.ir.element(ty, base, each)
    }

    /// The lanes in which an access happens; `None` for all.
    fn access_mask(&self, guard: Option<Value>, lanes: Lanes) -> Option<V> {
        let guard = guard.map(|g| match self.ir.lanes_of(g.v) {
            Some(_) => g.v,
            None => self.ir.splat(g.v, lanes.count),
        });
        match (guard, lanes.mask) {
            (Some(g), Some(m)) => Some(self.ir.and(g, m)),
            (one, other) => one.or(other),
        }
    }

    /// Reads an element for each lane, or one for all where index and guard are the same for all.
    pub(super) fn load_op(
        &mut self,
        buffer: BufferId,
        index: &Index,
        guard: Option<ValueId>,
    ) -> Result<Value, EmitError> {
        let guard = guard.map(|g| self.value(g)).transpose()?;
        let place = self.place(index);
        self.fetch_row_ahead(buffer.0 as usize, index, &place);
        Ok(self.load_at(buffer, &place, guard))
    }

    /// See [`Emitter::load_op`].
    pub(super) fn load_at(&self, buffer: BufferId, place: &Place, guard: Option<Value>) -> Value {
        let dtype = self.memory_dtype(buffer);
        let (ty, align) = (self.memory_type(dtype), dtype.bytes() as u32);
        let scope = self.scopes[buffer.0 as usize];
        let guard_varies = guard.is_some_and(|g| self.ir.lanes_of(g.v).is_some());
        let raw = match (self.lanes, &place.lanes) {
            (Some(lanes), LanePlace::Stride(stride)) if stride.is(1) => {
                let pointer = self.pointer(buffer, place);
                self.fetch_ahead(buffer.0 as usize, pointer, lanes);
                let vector = self.ir.vector(ty, Some(lanes.count));
                self.load_vector(vector, pointer, align, self.access_mask(guard, lanes))
            }
            (Some(lanes), LanePlace::Stride(stride))
                if !guard_varies && lanes.mask.is_none() && is_short_stride(*stride) =>
            {
                let distance = stride.as_const().unwrap_or(1);
                let loads = self.load_spread(buffer, place, distance, lanes.count, guard);
                return self.loaded(loads, dtype);
            }
            (Some(lanes), LanePlace::Each(each)) => {
                let shared = place.moving.map_or(place.fixed, |moving| self.ir.add(place.fixed, moving));
                let mask = self.access_mask(guard, lanes);
                let at = Scattered { buffer, shared, each: *each, mask, lanes };
                let raw = self.load_near(&at, |e| e.gather(buffer, place, mask, lanes));
                return self.loaded(raw, dtype);
            }
            (Some(lanes), shape) if guard_varies || !matches!(shape, LanePlace::Same) => {
                let raw = self.gather(buffer, place, self.access_mask(guard, lanes), lanes);
                return self.loaded(raw, dtype);
            }
            _ => {
                let pointer = self.pointer(buffer, place);
                match guard {
                    None => self.ir.load(ty, pointer, align),
                    Some(guard) => {
                        let vector = self.ir.vector(ty, Some(1));
                        let mask = self.ir.splat(guard.v, 1);
                        let (align, nothing) = (self.ir.i32(i64::from(align)), self.ir.zero(vector));
                        let types = [vector, self.ir.ptr()];
                        let one =
                            self.ir.intrinsic("llvm.masked.load", &types, &[pointer, align, mask, nothing]);
                        self.ir.in_scope(one, scope);
                        let raw = self.ir.extract(one, self.ir.i32(0));
                        return self.loaded(raw, dtype);
                    }
                }
            }
        };
        self.ir.in_scope(raw, scope);
        self.loaded(raw, dtype)
    }

    /// Each lane's element, wherever it is; zero in lanes outside of the mask.
    fn gather(&self, buffer: BufferId, place: &Place, mask: Option<V>, lanes: Lanes) -> V {
        let dtype = self.memory_dtype(buffer);
        let pointers = self.pointers(buffer, place, lanes);
        let vector = self.ir.vector(self.memory_type(dtype), Some(lanes.count));
        let mask = mask.unwrap_or_else(|| self.all_lanes(lanes.count));
        let types = [vector, self.ir.type_of(pointers)];
        let (align, nothing) = (self.ir.i32(dtype.bytes() as i64), self.ir.zero(vector));
        let raw = self.ir.intrinsic("llvm.masked.gather", &types, &[pointers, align, mask, nothing]);
        self.ir.in_scope(raw, self.scopes[buffer.0 as usize]);
        raw
    }

    /// A vector from neighbouring elements, zero in lanes outside of the mask.
    fn load_vector(&self, ty: T, pointer: V, align: u32, mask: Option<V>) -> V {
        let Some(mask) = mask else { return self.ir.load(ty, pointer, align) };
        let (align, nothing) = (self.ir.i32(i64::from(align)), self.ir.zero(ty));
        self.ir.intrinsic("llvm.masked.load", &[ty, self.ir.ptr()], &[pointer, align, mask, nothing])
    }

    /// Lanes a short distance apart: whole vectors are loaded, and the lanes picked from them. The last vector
    /// ends with the last lane's element, so that nothing behind it is touched.
    fn load_spread(
        &self,
        buffer: BufferId,
        place: &Place,
        stride: i64,
        count: u32,
        guard: Option<Value>,
    ) -> V {
        let dtype = self.memory_dtype(buffer);
        let ty = self.memory_type(dtype);
        let (lanes, distance) = (i64::from(count), stride.abs());
        let first = self.pointer(buffer, place);
        // The lowest element: the last lane's where lanes go backwards.
        let base = if stride < 0 { (lanes - 1) * stride } else { 0 };
        let last_start = (lanes - 1) * distance + 1 - lanes;
        let mask = guard.map(|g| self.ir.splat(g.v, count));
        let mut picked: Option<V> = None;
        for k in 0..distance {
            let start = (k * lanes).min(last_start);
            let at = self.ir.element(ty, first, self.ir.i64(base + start));
            let vector = self.load_vector(self.ir.vector(ty, Some(count)), at, dtype.bytes() as u32, mask);
            self.ir.in_scope(vector, self.scopes[buffer.0 as usize]);
            // Which element of this vector each lane takes; `None` for those of other vectors.
            let from = |lane: i64| {
                let element = if stride < 0 { lanes - 1 - lane } else { lane } * distance;
                (element / lanes == k).then_some((element - start) as u32)
            };
            let before = picked.unwrap_or(vector);
            let pick: Vec<u32> =
                (0..lanes).map(|lane| from(lane).map_or(lane as u32, |element| count + element)).collect();
            picked = Some(self.ir.shuffle(before, vector, &pick));
        }
        picked.unwrap_or(first)
    }

    /// Writes or combines.
    pub(super) fn store_op(
        &mut self,
        buffer: BufferId,
        index: &Index,
        value: ValueId,
        guard: Option<ValueId>,
        mode: StoreMode,
    ) -> Result<(), EmitError> {
        let value = self.value(value)?;
        let guard = guard.map(|g| self.value(g)).transpose()?;
        let place = self.place(index);
        let varies = |e: &Self, x: Option<Value>| x.is_some_and(|x| e.ir.lanes_of(x.v).is_some());
        let collides = match &place.lanes {
            LanePlace::Stride(_) => false,
            LanePlace::Each(_) => mode != StoreMode::Set,
            // Lanes that store different values to one element do so in order; a uniform store happens once,
            // but combines once for each lane.
            LanePlace::Same => mode != StoreMode::Set || varies(self, Some(value)) || varies(self, guard),
        };
        match self.lanes {
            Some(lanes) if collides => self.store_in_turns(buffer, &place, value, guard, mode, lanes),
            _ => {
                let value = self.combined(buffer, &place, value, guard, mode)?;
                self.store_at(buffer, &place, value, guard);
                Ok(())
            }
        }
    }

    fn combined(
        &mut self,
        buffer: BufferId,
        place: &Place,
        value: Value,
        guard: Option<Value>,
        mode: StoreMode,
    ) -> Result<Value, EmitError> {
        let StoreMode::Combine(op) = mode else { return Ok(value) };
        let old = self.load_at(buffer, place, guard);
        self.combine(op, old, value)
    }

    fn combine(&mut self, op: BinaryOp, old: Value, value: Value) -> Result<Value, EmitError> {
        let [old, value] = self.equal_lanes([old, value]);
        let dtype = old.dtype;
        Ok(Value { dtype, ..self.binary(op, old, Value { dtype, ..value })? })
    }

    /// Writes an element for each lane, or one for all.
    pub(super) fn store_at(&self, buffer: BufferId, place: &Place, value: Value, guard: Option<Value>) {
        let dtype = self.memory_dtype(buffer);
        let (ty, align) = (self.memory_type(dtype), dtype.bytes() as u32);
        let scope = self.scopes[buffer.0 as usize];
        let mut raw = self.for_memory(value, dtype);
        let store = match (self.lanes, &place.lanes) {
            (Some(lanes), LanePlace::Stride(stride)) if stride.is(1) => {
                raw = self.widened(raw, lanes.count);
                let pointer = self.pointer(buffer, place);
                let mask = self.access_mask(guard, lanes);
                match (mask, self.streamed_alignment(buffer.0 as usize, place, lanes)) {
                    (None, Some(line)) => self.ir.store_past_cache(raw, pointer, line),
                    (None, None) => self.ir.store(raw, pointer, align),
                    (Some(mask), _) => {
                        let types = [self.ir.type_of(raw), self.ir.ptr()];
                        let align = self.ir.i32(i64::from(align));
                        self.ir.intrinsic("llvm.masked.store", &types, &[raw, pointer, align, mask])
                    }
                }
            }
            (Some(lanes), LanePlace::Stride(_) | LanePlace::Each(_)) => {
                raw = self.widened(raw, lanes.count);
                let pointers = self.pointers(buffer, place, lanes);
                let mask = self.access_mask(guard, lanes).unwrap_or_else(|| self.all_lanes(lanes.count));
                let types = [self.ir.type_of(raw), self.ir.type_of(pointers)];
                let align = self.ir.i32(i64::from(align));
                self.ir.intrinsic("llvm.masked.scatter", &types, &[raw, pointers, align, mask])
            }
            _ => {
                let pointer = self.pointer(buffer, place);
                match guard {
                    None => self.ir.store(raw, pointer, align),
                    Some(guard) => {
                        let types = [self.ir.vector(ty, Some(1)), self.ir.ptr()];
                        let (raw, mask) = (self.ir.splat(raw, 1), self.ir.splat(guard.v, 1));
                        let align = self.ir.i32(i64::from(align));
                        self.ir.intrinsic("llvm.masked.store", &types, &[raw, pointer, align, mask])
                    }
                }
            }
        };
        self.ir.in_scope(store, scope);
    }

    fn widened(&self, v: V, lanes: u32) -> V {
        match self.ir.lanes_of(v) {
            Some(_) => v,
            None => self.ir.splat(v, lanes),
        }
    }

    /// A loop over the lanes, one store after the other.
    fn store_in_turns(
        &mut self,
        buffer: BufferId,
        place: &Place,
        value: Value,
        guard: Option<Value>,
        mode: StoreMode,
        lanes: Lanes,
    ) -> Result<(), EmitError> {
        let mask = self.access_mask(guard, lanes);
        let value = Value { v: self.widened(value.v, lanes.count), ..value };
        let each = match &place.lanes {
            LanePlace::Each(each) => Some(*each),
            LanePlace::Stride(stride) => Some(self.lane_offsets(*stride, lanes.count)),
            LanePlace::Same => None,
        };
        let before = self.ir.current();
        let [head, store, next, after] = ["lane", "store", "next", "after"].map(|name| self.ir.block(name));
        self.ir.br(head);
        self.ir.at(head);
        let lane = self.ir.phi(self.ir.int(64), &[(self.ir.i64(0), before)]);
        match mask {
            Some(mask) => self.ir.cond_br(self.ir.extract(mask, lane), store, next),
            None => self.ir.br(store),
        }
        self.ir.at(store);
        let offset = each.map(|each| self.ir.extract(each, lane));
        let moving = match (place.moving, offset) {
            (Some(a), Some(b)) => Some(self.ir.add(a, b)),
            (a, b) => a.or(b),
        };
        let one = Place { fixed: place.fixed, moving, lanes: LanePlace::Same, divisor: 1 };
        let value = Value { v: self.ir.extract(value.v, lane), ..value };
        // A single lane is scalar code.
        self.lanes = None;
        let result = self.combined(buffer, &one, value, None, mode);
        if let Ok(value) = &result {
            self.store_at(buffer, &one, *value, None);
        }
        self.lanes = Some(lanes);
        result?;
        self.ir.br(next);
        self.ir.at(next);
        let following = self.ir.add(lane, self.ir.i64(1));
        self.ir.add_incoming(lane, &[(following, next)]);
        let again = self.ir.icmp(LLVMIntSLT, following, self.ir.i64(i64::from(lanes.count)));
        self.ir.cond_br(again, head, after);
        self.ir.at(after);
        Ok(())
    }
}

/// Whether lanes so far apart are better picked from whole vectors than gathered.
fn is_short_stride(stride: Size) -> bool {
    matches!(stride.as_const(), Some(-4..=-1 | 2..=4))
}
