"""Which operators are taken apart before loafc sees a graph: TorchInductor's table, with a few exceptions."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from ._torch_compat import inductor_decompositions

aten = torch.ops.aten

# Taken apart by TorchInductor for reasons that are its own. Each stays whole here, for the reason beside it.
_KEPT = (
    # Becomes a product and a sum when rows or columns are one: matrix products stay ATen's.
    aten.mm,
    aten.addmm,
    aten.bmm,
)


@cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """The table that AOTAutograd gets."""
    table = dict(inductor_decompositions())
    for packet in _KEPT:
        for overload in packet.overloads():
            table.pop(getattr(packet, overload), None)
    return table
