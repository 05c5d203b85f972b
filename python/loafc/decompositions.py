"""Which operators are taken apart before loafc sees a graph: TorchInductor's table, with a few exceptions."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch._refs as refs
from torch._prims_common import suggest_memory_format

from ._torch_compat import inductor_decompositions

aten = torch.ops.aten
prims = torch.ops.prims

# Taken apart by TorchInductor for reasons that are its own. Each stays whole here, for the reason beside it.
_KEPT = (
    # Becomes a product and a sum when rows or columns are one: matrix products stay ATen's.
    aten.mm,
    aten.addmm,
    aten.bmm,
    # Become `index` and `index_put`, which take negative positions where eager mode refuses them.
    aten.index_add,
    aten.index_copy,
    aten.index_select,
    # Becomes the root of a variance rounded to f32, which may be below f32's range where the root is not.
    aten.std,
    aten.std_mean,
    # Its weight becomes a factor of `add`, which is rounded to the tensors' type where a weight is not.
    aten.lerp,
    # Becomes a comparison with f32 numbers in the order of its argument's memory: eager mode draws f64 ones for an f64
    # argument, and in the order of elements.
    aten.bernoulli,
)


def _max_pool2d(
    x: torch.Tensor,
    kernel_size: list[int],
    stride: list[int] | None = None,
    padding: list[int] | int = 0,
    dilation: list[int] | int = 1,
    ceil_mode: bool = False,
) -> Any:
    """Maxima with one byte for each position in its window, as TorchInductor keeps them for the backward pass.

    Its own decomposition asks its lowering module, which takes a second to import.
    """
    kernel_size, padding, dilation = _pair(kernel_size), _pair(padding), _pair(dilation)
    stride = _pair(stride) if stride else kernel_size
    if kernel_size[0] * kernel_size[1] > torch.iinfo(torch.int8).max:
        return NotImplemented
    values, offsets = prims._low_memory_max_pool_with_offsets(x, kernel_size, stride, padding, dilation, ceil_mode)
    indices = prims._low_memory_max_pool_offsets_to_indices(
        offsets, kernel_size, x.shape[-2:], stride, padding, dilation
    )
    return values, indices


def _pair(value: list[int] | int) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * 2 if len(values) == 1 else values


def _split(x: torch.Tensor, split_size: int, dim: int = 0) -> Any:
    """Parts of a size that is known at the call only: their number is traced, so their sizes can be named."""
    length = x.shape[dim]
    if isinstance(split_size, int) and isinstance(length, int):
        return NotImplemented
    count = int((length + split_size - 1) // split_size)
    sizes = [split_size] * (count - 1) + [length - split_size * (count - 1)]
    return aten.split_with_sizes.default(x, sizes, dim)


def _linspace(start: Any, end: Any, steps: int, *, dtype: torch.dtype | None = None, **how: Any) -> Any:
    """Integers are steps of an f64, rounded towards zero, of integers: f32 misses some."""
    if dtype is None or dtype.is_floating_point or dtype.is_complex or dtype == torch.bool:
        return refs.linspace(start, end, steps, dtype=dtype, **how)
    ends = [prims.convert_element_type(e, dtype) if isinstance(e, torch.Tensor) else int(e) for e in (start, end)]
    return prims.convert_element_type(refs.linspace(*ends, steps, dtype=torch.float64, **how), dtype)


def _max_unpool(x: torch.Tensor, indices: torch.Tensor, output_size: list[int], *_window: Any) -> torch.Tensor:
    """Each value at its position in the plane or volume that it is from.

    PyTorch's decomposition counts positions through all planes, without a check, so that those outside of one are
    written to another or counted from the end; eager mode refuses them.
    """
    inner = len(output_size)
    outer = x.shape[:-inner]
    result = x.new_zeros([*outer, *output_size])
    if result.numel():
        planes = result.reshape(*outer, -1)
        planes = planes.scatter(-1, indices.reshape(*outer, -1), x.reshape(*outer, -1))
        result = planes.reshape(result.shape)
    if inner == 2 and x.dim() == 4:
        return result.contiguous(memory_format=suggest_memory_format(x))
    return result


def _native_dropout(x: torch.Tensor, p: float, train: bool | None) -> Any:
    """Of all elements it is 0 times each, for which ``dropout`` draws no number: that is all a graph shows of it."""
    if not train or p != 1.0:
        return NotImplemented
    # A factor of the tensor's type: a number would make floats of integers.
    return x * torch.zeros((), dtype=x.dtype, device=x.device), torch.zeros_like(x, dtype=torch.bool)


# Taken apart in another way than TorchInductor does.
_OWN: dict[Any, Callable[..., Any]] = {
    aten.linspace.default: _linspace,
    aten.linspace.Tensor_Tensor: _linspace,
    aten.linspace.Tensor_Scalar: _linspace,
    aten.linspace.Scalar_Tensor: _linspace,
    aten.max_pool2d_with_indices.default: _max_pool2d,
    aten.max_unpool2d.default: _max_unpool,
    aten.max_unpool3d.default: _max_unpool,
    aten.native_dropout.default: _native_dropout,
    aten.split.Tensor: _split,
}


@cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """The table that AOTAutograd gets."""
    table = dict(inductor_decompositions())
    for packet in _KEPT:
        for overload in packet.overloads():
            table.pop(getattr(packet, overload), None)
    # Its decomposition needs TorchInductor's lowering module too; ATen's own is called instead.
    table.pop(aten.max_pool3d_with_indices.default, None)
    table.update(_OWN)
    return table
