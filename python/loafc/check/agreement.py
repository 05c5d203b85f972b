"""Whether a compiled function's results are eager mode's.

Element types, shapes, strides and places of NaN must be equal. Values must be as close as ``torch.testing`` asks of
the element type, to eager mode's or to the result in f64, or about as close to that as eager mode's own are: a chain
of operators that is computed without rounding in between is closer to it than eager mode.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.testing._comparison import default_tolerances
from torch.utils._pytree import tree_flatten

# An element may be as many times as far from the result in f64 as eager mode's worst element.
_TIMES_EAGER = 2.0


def disagreement(got: Any, want: Any, truth: Callable[[], Any], values: bool = True) -> str | None:
    """Where the results differ, in one line, or None.

    ``truth`` computes the result in f64, or raises where that can't be. Without ``values`` only layouts are compared.
    """
    got_leaves, got_structure = tree_flatten(got)
    want_leaves, want_structure = tree_flatten(want)
    if len(got_leaves) != len(want_leaves):
        return f"structure {got_structure} instead of {want_structure}"
    true_leaves: list[Any] | None = None
    for position, (g, w) in enumerate(zip(got_leaves, want_leaves, strict=True)):
        problem = _layout(g, w)
        if problem is None and values:
            problem = _difference(g, w)
            if problem is not None and true_leaves is None:
                true_leaves = _leaves_of(truth, len(want_leaves))
            if problem is not None and _as_true(g, w, true_leaves[position]):
                problem = None
        if problem is not None:
            return problem if len(want_leaves) == 1 else f"result {position}: {problem}"
    return None


def _layout(got: Any, want: Any) -> str | None:
    if not isinstance(want, torch.Tensor):
        return None if type(got) is type(want) else f"a {type(got).__name__} instead of a {type(want).__name__}"
    if not isinstance(got, torch.Tensor):
        return f"a {type(got).__name__} instead of a tensor"
    if got.dtype != want.dtype:
        return f"type {got.dtype} instead of {want.dtype}"
    if got.layout != want.layout:
        return f"layout {got.layout} instead of {want.layout}"
    if got.shape != want.shape:
        return f"shape {list(got.shape)} instead of {list(want.shape)}"
    if want.layout is torch.strided and want.numel() and _strides(got) != _strides(want):
        return f"strides {list(got.stride())} instead of {list(want.stride())} of {list(want.shape)}"
    return None


def _strides(tensor: torch.Tensor) -> list[int]:
    """The strides that tell where elements are."""
    return [s for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n > 1]


def _difference(got: Any, want: Any) -> str | None:
    if not isinstance(want, (torch.Tensor, int, float, complex)):
        return None if got == want else f"{got!r} instead of {want!r}"
    try:
        torch.testing.assert_close(got, want, equal_nan=True, check_stride=False)
    except AssertionError as error:
        return " ".join(str(error).split())
    return None


def _leaves_of(truth: Callable[[], Any], count: int) -> list[Any]:
    try:
        leaves = tree_flatten(truth())[0]
    except Exception:
        # Not every operator has an f64 form: what differs is wrong then.
        return [None] * count
    return leaves if len(leaves) == count else [None] * count


def _as_true(got: Any, want: Any, true: Any) -> bool:
    """Whether each element is about as close to the true one as eager mode's are."""
    if not isinstance(got, torch.Tensor) or not isinstance(true, torch.Tensor) or true.shape != want.shape:
        return False
    if not got.is_floating_point() or not true.is_floating_point() or got.dtype == torch.float64:
        return False
    dtype = got.dtype
    got, want = got.detach().double(), want.detach().double()
    if not torch.equal(got.isnan(), want.isnan()):
        return False
    finite = want.isfinite() & true.isfinite()
    if not torch.equal(got[~finite].nan_to_num(), want[~finite].nan_to_num()):
        return False
    got, want, true = got[finite], want[finite], true[finite]
    if got.numel() == 0:
        return True
    rtol, atol = default_tolerances(dtype)
    allowed = (atol + rtol * true.abs()).clamp(min=_TIMES_EAGER * (want - true).abs().max())
    return bool(((got - true).abs() <= allowed).all())
