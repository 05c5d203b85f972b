"""How a program calls operators that stay ATen's: finds them by name once and calls them on tensors.

Everything that depends on an operator is decided when a call site is resolved, so that a call at run time is one
call of a builtin function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_map

from . import _loafc, random_numbers
from ._torch_compat import returns_alias, schema_argument_names
from .errors import CompileError
from .literals import DTYPES, LAYOUTS, MEMORY_FORMATS


def _into_output(name: str) -> Callable[..., Any]:
    """The function whose ``out=`` form writes straight into the program's memory: those in ``torch`` parse arguments
    faster than the dispatcher's own."""
    namespace, operator, _ = name.split(".")
    return getattr(random_numbers if namespace == "loafc" else torch, operator)


_INTO_OUTPUT: dict[str, Callable[..., Any]] = {name: _into_output(name) for name in _loafc.INTO_OUTPUT}

# Called instead of what ATen has under these names.
_INSTEAD: dict[str, Callable[..., Any]] = {"aten.normal_functional.default": random_numbers.normal}

# Arguments whose text stands for an object.
_NAMED_OBJECTS: dict[str, Mapping[str, Any]] = {
    "memory_format": MEMORY_FORMATS,
    "layout": LAYOUTS,
}


class Operators:
    """The operators that a graph calls, by their name in the program's text."""

    def __init__(self, by_name: Mapping[str, Callable[..., Any]]) -> None:
        self._by_name = by_name

    def resolve(self, name: str) -> CallSite:
        """The operator of this name, from the graph or, for what the compiler itself calls, from ``torch.ops``."""
        target = self._by_name.get(name) or _INTO_OUTPUT.get(name)
        return CallSite(name, find_operator(name) if target is None else target)


class CallSite:
    """One operator, prepared for calls.

    ``function`` is what is called; ``into_output`` says that it writes into ``out=``; ``may_alias`` that its
    results may share memory with its arguments and must be copied then.
    """

    __slots__ = ("function", "into_output", "may_alias", "names")

    def __init__(self, name: str, target: Callable[..., Any]) -> None:
        into = _INTO_OUTPUT.get(name)
        self.into_output = into is not None
        # An overload's own call is a Python function around this builtin one.
        self.function = into or _INSTEAD.get(name) or getattr(target, "_op", target)
        if name.startswith("_c10d_functional"):
            self.function = _waited(self.function)
        self.may_alias = not isinstance(target, torch._ops.OpOverload) or returns_alias(target)
        self.names = schema_argument_names(target)

    def constant(self, key: int | str, kind: str, text: str) -> Any:
        """The Python object for an argument (position or keyword) that the text gives as dtype, device or string."""
        if kind == "dtype":
            return DTYPES[text]
        if kind == "device":
            return torch.device(text)
        name = self.names[key] if isinstance(key, int) and key < len(self.names) else key
        objects = _NAMED_OBJECTS.get(name) if isinstance(name, str) else None
        return text if objects is None else objects.get(text, text)


def _waited(collective: Callable[..., Any]) -> Callable[..., Any]:
    """The collective, done when it returns. What it is known by while it runs is its result's storage, and a program
    hands on memory, not storages."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return tree_map(torch.ops._c10d_functional.wait_tensor.default, collective(*args, **kwargs))

    return call


def find_operator(name: str) -> Callable[..., Any]:
    parts = name.split(".")
    if len(parts) != 3:
        raise CompileError(f"there is no operator `{name}`: its name isn't of the form namespace.operator.overload")
    namespace, operator, overload = parts
    packet = getattr(getattr(torch.ops, namespace), operator, None)
    target = None if packet is None else getattr(packet, overload, None)
    if target is None:
        raise CompileError(f"PyTorch {torch.__version__} has no operator `{name}`")
    return target
