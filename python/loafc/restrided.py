"""Functions that write to an argument and view it through ``as_strided``, which run in eager mode where that matters.

AOTAutograd computes a written argument anew, in memory that holds its elements alone, and ``as_strided`` counts in that
memory. It is the argument's storage only where the argument is the whole of it. No graph behind AOTAutograd tells what
was meant, so that this is decided on Dynamo's.
"""

from __future__ import annotations

import inspect
import operator
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule, Node

from . import metrics
from .errors import CompileError, LoafcWarning

aten = torch.ops.aten

_INPLACE_OPERATORS = frozenset(
    {
        operator.setitem,
        operator.iadd,
        operator.iand,
        operator.ifloordiv,
        operator.ilshift,
        operator.imatmul,
        operator.imod,
        operator.imul,
        operator.ior,
        operator.ipow,
        operator.irshift,
        operator.isub,
        operator.itruediv,
        operator.ixor,
    }
)

_INPLACE_METHODS = frozenset(f"__{function.__name__}__" for function in _INPLACE_OPERATORS)

_REASON = "it writes to a tensor and calls as_strided, and an argument is only a part of its storage"


def views_what_it_writes(gm: GraphModule) -> bool:
    """Whether one of Dynamo's graphs calls ``as_strided``, and writes to any tensor."""
    nodes = [n for m in gm.modules() if isinstance(m, GraphModule) for n in m.graph.nodes if n.op.startswith("call_")]
    return any("as_strided" in _name(n) for n in nodes) and any(_writes(n) for n in nodes)


def _name(node: Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def _writes(node: Node) -> bool:
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target._schema.is_mutable
    name = _name(node)
    inplace = name.endswith("_") and not name.endswith("__")
    named = inplace or name in _INPLACE_METHODS or node.target in _INPLACE_OPERATORS
    return named or "out" in node.kwargs or _asks_to_write(node)


def _asks_to_write(node: Node) -> bool:
    """Whether a function is passed ``inplace=True``, by name or by position."""
    if "inplace" in node.kwargs or not callable(node.target):
        return bool(node.kwargs.get("inplace"))
    try:
        passed = inspect.signature(node.target).bind_partial(*node.args, **node.kwargs)
    except (TypeError, ValueError):
        # A builtin without a signature; none of those has such a parameter.
        return False
    return bool(passed.arguments.get("inplace"))


def eager_for_parts(run: Callable[..., Any], gm: GraphModule, fallback: bool) -> Callable[..., Any]:
    """What was compiled, for arguments that are the whole of their storages; ``gm`` itself for others."""

    def run_whole(*args: Any) -> Any:
        if all(_is_whole(a) for a in args if isinstance(a, torch.Tensor)):
            return run(*args)
        if not fallback:
            raise CompileError(f"the function can't be compiled: {_REASON}")
        metrics.add_fallback()
        warnings.warn(f"loafc runs a function in eager mode: {_REASON}", LoafcWarning, stacklevel=2)
        return gm(*args)

    return run_whole


def _is_whole(tensor: torch.Tensor) -> bool:
    if tensor.layout is not torch.strided or not aten.is_non_overlapping_and_dense(tensor):
        return False
    return tensor.untyped_storage().nbytes() == tensor.numel() * tensor.itemsize
