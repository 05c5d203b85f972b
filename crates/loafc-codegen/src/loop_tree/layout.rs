//! Where in the scratch blocks each of a kernel's memories lies.

use loafc_ir::size::Size;

use super::{Kernel, MemoryPlace};

/// Each memory starts at a multiple of this many bytes, so that no two share a cache line.
const ALIGNMENT: i64 = 64;

impl Kernel {
    /// Offset of each memory in its scratch block, in bytes; zero for parameters.
    pub fn scratch_offsets(&self) -> Vec<Size> {
        let (mut shared, mut thread) = (Size::ZERO, Size::ZERO);
        let mut offsets = Vec::with_capacity(self.memory.len());
        for m in &self.memory {
            let block = match m.place {
                MemoryPlace::Param(_) => {
                    offsets.push(Size::ZERO);
                    continue;
                }
                MemoryPlace::Shared => &mut shared,
                MemoryPlace::Thread => &mut thread,
            };
            offsets.push(*block);
            *block += aligned(m.len * Size::from(m.dtype.bytes()));
        }
        offsets
    }

    /// Bytes of the scratch block of this place.
    pub fn scratch_bytes(&self, place: MemoryPlace) -> Size {
        self.memory
            .iter()
            .filter(|m| m.place == place)
            .map(|m| aligned(m.len * Size::from(m.dtype.bytes())))
            .sum()
    }
}

fn aligned(bytes: Size) -> Size {
    bytes.ceil_div(Size::from(ALIGNMENT)) * Size::from(ALIGNMENT)
}
