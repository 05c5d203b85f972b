//! Conversions of element types, and elementwise copies.

use super::{Accepts, Types, map};
use crate::ops::OpDef;
use crate::ops::call::KEYWORD;

const TO_COPY: &str = "self, *, dtype, layout, device, pin_memory, non_blocking, memory_format";

pub(super) const OPS: &[OpDef] = &[
    map("prims.convert_element_type.default", "self, dtype", Types::Named(1, "dtype"), Accepts::All, same),
    map("aten._to_copy.default", TO_COPY, Types::Named(KEYWORD, "dtype"), Accepts::All, same),
    map(
        "aten.to.dtype",
        "self, dtype, non_blocking, copy, memory_format",
        Types::Named(1, "dtype"),
        Accepts::All,
        same,
    ),
    map("aten.positive.default", "self", Types::Promote, Accepts::Numbers, same),
    map("prims.device_put.default", "self, device, non_blocking", Types::Promote, Accepts::All, same),
];

fn same(
    _: &crate::ops::Call,
    _: crate::dtype::DType,
    x: &[crate::dtype::Scalar],
) -> Result<crate::dtype::Scalar, crate::ops::eval::Fault> {
    Ok(x[0])
}
