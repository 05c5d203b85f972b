"""Calls of one function as one compiled program: most of a compilation's time doesn't depend on how many there are.

Calls that a program can't tell apart, for only the elements of their tensors differ, need one program between them, as
with ``torch.compile``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from . import aot

# The arguments of a call, positional and by keyword.
Call = tuple[tuple[Any, ...], dict[str, Any]]

# Compiles a function for calls; what comes back runs them, or others like them, and gives their results.
Compile = Callable[[Callable[..., Any], Sequence[Call]], Callable[[Sequence[Call]], list[Any]]]

# What a program may depend on besides the layouts of tensors, by value.
_CONSTANTS = (int, float, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


def compiled_by_dynamo(
    function: Callable[..., Any], calls: Sequence[Call], backend: Any
) -> Callable[[Sequence[Call]], list[Any]]:
    """All calls, compiled as users do it."""

    def call_all(calls: Sequence[Call]) -> list[Any]:
        return [function(*args, **kwargs) for args, kwargs in calls]

    torch._dynamo.reset()
    options = {"fallback": False} if backend == "loafc" else None
    return torch.compile(call_all, backend=backend, dynamic=False, options=options)


def compiled_by_aot(function: Callable[..., Any], calls: Sequence[Call]) -> Callable[[Sequence[Call]], list[Any]]:
    """All calls, compiled without Dynamo in front, for these and for others of the same kinds (`kind_of`)."""
    flat = [tree_flatten(call) for call in calls]

    def call_all(*tensors: torch.Tensor) -> list[Any]:
        rest = iter(tensors)
        results = []
        for leaves, structure in flat:
            filled = [next(rest) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
            args, kwargs = tree_unflatten(filled, structure)
            results.append(function(*args, **kwargs))
        return results

    return partial(_run, aot.compiled(call_all))


def _run(program: Callable[..., Any], calls: Sequence[Call]) -> list[Any]:
    leaves = (leaf for call in calls for leaf in tree_flatten(call)[0])
    return program(*[leaf for leaf in leaves if isinstance(leaf, torch.Tensor)])


def kind_of(call: Call) -> Any:
    """Equal for calls that have the same program: everything about them but the elements of their tensors."""
    leaves, structure = tree_flatten(call)
    # Arguments that are the same object or share memory are compiled otherwise than those that don't.
    numbers: dict[int, int] = {}
    return structure, tuple(_kind_of_leaf(leaf, numbers) for leaf in leaves)


def _kind_of_leaf(leaf: Any, numbers: dict[int, int]) -> Any:
    if isinstance(leaf, _CONSTANTS):
        # True equals 1, and 0.0 equals -0.0, but programs tell them apart.
        return type(leaf), repr(leaf)
    if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided:
        return id(leaf)
    storage = leaf.untyped_storage()
    same = [numbers.setdefault(key, len(numbers)) for key in (id(leaf), storage._cdata)]
    layout = leaf.shape, leaf.stride(), leaf.storage_offset(), storage.nbytes()
    return leaf.dtype, layout, leaf.requires_grad, leaf.is_conj(), leaf.is_neg(), *same
