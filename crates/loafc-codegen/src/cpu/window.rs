//! Reads at positions that are computed, as in an interpolation: lanes that lie near each other come out of one
//! vector by a permutation, which takes a few instructions where a gather takes several for each lane. Whether they
//! do is looked at when the kernel runs; where they don't, lanes are gathered.

use llvm_sys::LLVMIntPredicate::{LLVMIntEQ, LLVMIntSGE, LLVMIntSLE, LLVMIntULT};
use loafc_ir::nest::BufferId;

use super::emit::{Emitter, Lanes};
use super::ir::V;

/// Lanes of a load whose positions differ irregularly.
pub(super) struct Scattered {
    pub(super) buffer: BufferId,
    /// Position that all lanes share.
    pub(super) shared: V,
    /// What each lane adds, as i64.
    pub(super) each: V,
    /// Lanes that count; `None` for all.
    pub(super) mask: Option<V>,
    pub(super) lanes: Lanes,
}

impl Emitter<'_, '_, '_> {
    /// The lanes' elements as memory holds them, zero in lanes that don't count; `gather` reads them one by one.
    pub(super) fn load_near(&self, at: &Scattered, gather: impl Fn(&Self) -> V) -> V {
        let bytes = self.kernel.memory[at.buffer.0 as usize].dtype.bytes() as u32;
        let Some(permute) = permutation(bytes, at.lanes.count, self.vector_bits) else { return gather(self) };
        let ir = &self.ir;
        let count = at.lanes.count;
        // Positions mostly grow or fall with the lanes.
        let [first, last] = [0, i64::from(count) - 1].map(|k| ir.extract(at.each, ir.i32(k)));
        let lowest = ir.intrinsic_like("llvm.smin", &[first, last]);
        let within = ir.sub(at.each, ir.splat(lowest, count));
        let fits = ir.icmp(LLVMIntULT, within, ir.splat(ir.i64(i64::from(count)), count));
        let fits = match at.mask {
            Some(mask) => ir.or(fits, ir.xor(mask, self.all_lanes(count))),
            None => fits,
        };
        let bits = ir.bitcast(fits, ir.int(count));
        let fits = ir.icmp(LLVMIntEQ, bits, ir.const_int(ir.int(count), -1));
        let start = ir.add(at.shared, lowest);
        let near = ir.and(fits, self.is_whole_window(at.buffer, start, count));

        let [window, each, after] = ["window", "each", "after"].map(|name| ir.block(name));
        ir.cond_br(near, window, each);
        ir.at(window);
        let picked = self.pick(at, start, within, permute);
        let window_end = ir.current();
        ir.br(after);
        ir.at(each);
        let gathered = gather(self);
        let each_end = ir.current();
        ir.br(after);
        ir.at(after);
        ir.phi(ir.type_of(picked), &[(picked, window_end), (gathered, each_end)])
    }

    pub(super) fn all_lanes(&self, count: u32) -> V {
        self.ir.const_int(self.ir.vector(self.ir.int(1), Some(count)), -1)
    }

    /// Whether as many elements as there are lanes lie in the buffer from a position on.
    fn is_whole_window(&self, buffer: BufferId, start: V, count: u32) -> V {
        let ir = &self.ir;
        let len = self.kernel.memory[buffer.0 as usize].len;
        let highest = self.size(len);
        let highest = ir.sub(highest, ir.i64(i64::from(count)));
        let begins = ir.icmp(LLVMIntSGE, start, ir.i64(0));
        ir.and(begins, ir.icmp(LLVMIntSLE, start, highest))
    }

    /// Loads the elements from `start` on, and picks one of them for each lane.
    fn pick(&self, at: &Scattered, start: V, within: V, permute: &str) -> V {
        let ir = &self.ir;
        let (count, memory) = (at.lanes.count, &self.kernel.memory[at.buffer.0 as usize]);
        let bytes = memory.dtype.bytes() as u32;
        let element = self.memory_type(memory.dtype);
        let pointer = ir.element(element, self.memory[at.buffer.0 as usize], start);
        let integers = ir.vector(ir.int(8 * bytes), Some(count));
        let elements = ir.load(integers, pointer, bytes);
        ir.in_scope(elements, self.scopes[at.buffer.0 as usize]);
        let lanes = if bytes == 8 { within } else { ir.trunc(within, integers) };
        let picked = ir.intrinsic(permute, &[], &[elements, lanes]);
        let picked = match at.mask {
            Some(mask) => ir.select(mask, picked, ir.zero(integers)),
            None => picked,
        };
        ir.bitcast(picked, ir.vector(element, Some(count)))
    }
}

/// The instruction that picks lanes of a vector by numbers in another one, where the machine has it.
fn permutation(bytes: u32, lanes: u32, vector_bits: u32) -> Option<&'static str> {
    if !cfg!(target_arch = "x86_64") {
        return None;
    }
    Some(match (bytes, lanes) {
        (4, 8) if vector_bits >= 256 => "llvm.x86.avx2.permd",
        (4, 16) if vector_bits == 512 => "llvm.x86.avx512.permvar.si.512",
        (8, 8) if vector_bits == 512 => "llvm.x86.avx512.permvar.di.512",
        (2, 16) if vector_bits == 512 => "llvm.x86.avx512.permvar.hi.256",
        (2, 32) if vector_bits == 512 => "llvm.x86.avx512.permvar.hi.512",
        // Machines with vectors of 256 bits have it; of the others only some.
        (1, 16) if vector_bits >= 256 => "llvm.x86.ssse3.pshuf.b.128",
        _ => return None,
    })
}
