"""Runs eager mode in float64, whatever types a program names, as the reference for how exact a result can be.

Every float type that an operator is asked for becomes float64. Random numbers are drawn in the type of the
original program, so that a seed gives the same ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

_LOW = (torch.float32, torch.bfloat16, torch.float16)

_RANDOM = frozenset(
    {
        "bernoulli",
        "bernoulli_",
        "exponential_",
        "native_dropout",
        "normal_",
        "rand",
        "rand_like",
        "randn",
        "randn_like",
        "uniform_",
    }
)


class HighPrecision(TorchDispatchMode):
    """Operators compute in float64; ``drawn`` is the float type in which random numbers are drawn."""

    def __init__(self, drawn: torch.dtype) -> None:
        super().__init__()
        self.drawn = drawn

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func._schema.name.removeprefix("aten::") in _RANDOM:
            return self._draw(func, args, kwargs)
        if func is torch.ops.aten.view.dtype:
            return func(*args, **kwargs)
        raised, raised_by_name = tree_map(_raised, args), tree_map(_raised, dict(kwargs))
        if func is torch.ops.aten._grouped_mm.default:
            return _grouped_mm(*raised, **raised_by_name)
        return func(*raised, **raised_by_name)

    def _draw(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        def lowered(value: Any) -> Any:
            if isinstance(value, torch.Tensor) and value.dtype is torch.float64:
                return value.to(self.drawn)
            return self.drawn if value is torch.float64 else value

        args_low = tree_map(lowered, list(args))
        if "dtype" in kwargs and kwargs["dtype"] is None:
            kwargs = {**kwargs, "dtype": self.drawn}
        drawn = func(*args_low, **tree_map(lowered, dict(kwargs)))
        if func._schema.is_mutable:
            return args[0].copy_(drawn)
        return tree_map(lambda t: t.double() if isinstance(t, torch.Tensor) and t.dtype in _LOW else t, drawn)


def _grouped_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """PyTorch's products of groups, which know no float64.

    ``offs`` are the ends of the groups, along the rows of ``a``, the columns of ``b`` or the dimension that both share:
    where there is no dimension for groups.
    """
    if bias is not None or out_dtype not in (None, torch.float64):
        raise NotImplementedError("products of groups with a bias or another type have no form in float64")
    if offs is None:
        return torch.bmm(a, b)
    ends = offs.tolist()
    spans = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
    if a.dim() == 2 and b.dim() == 2:
        return torch.stack([a[:, span] @ b[span] for span in spans])
    if a.dim() == 2:
        return _padded([a[span] @ b[k] for k, span in enumerate(spans)], 0, a.shape[0])
    return _padded([a[k] @ b[:, span] for k, span in enumerate(spans)], 1, b.shape[1])


def _padded(parts: list[torch.Tensor], dimension: int, extent: int) -> torch.Tensor:
    """The parts in a row, and zeros for what belongs to no group."""
    whole = torch.cat(parts, dimension)
    missing = list(whole.shape)
    missing[dimension] = extent - whole.shape[dimension]
    return torch.cat([whole, whole.new_zeros(missing)], dimension)


def _raised(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype in _LOW:
        return value.double()
    return torch.float64 if value in _LOW and isinstance(value, torch.dtype) else value
