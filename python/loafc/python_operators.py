"""Calls that a tensor program can't express, as Python functions over tensors and integers.

The program passes the tensors and sizes; everything else (modules, complex numbers, floats computed from sizes) is
kept in a template of the call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy

from .size_functions import size_function


@dataclass(frozen=True)
class SymbolicValue:
    """A float or truth value computed from sizes: no tensor program has such values."""

    expr: Any
    cast: Callable[[Any], Any]


@dataclass(frozen=True)
class Leaf:
    """The tensor or size of this position among a Python operator's arguments."""

    position: int


class Computed:
    """A float or truth value that is computed from sizes at each call."""

    def __init__(self, value: SymbolicValue, symbols: Mapping[sympy.Symbol, Leaf]) -> None:
        self._cast = value.cast
        self._function = size_function(value.expr, list(symbols))
        self._positions = [leaf.position for leaf in symbols.values()]

    def at(self, values: Sequence[Any]) -> Any:
        return self._cast(self._function(*[values[p] for p in self._positions]))


def fill(template: Any, values: Sequence[Any]) -> Any:
    if isinstance(template, Leaf):
        return values[template.position]
    if isinstance(template, Computed):
        return template.at(values)
    if isinstance(template, (list, tuple)):
        return rebuild_sequence(template, [fill(t, values) for t in template])
    if isinstance(template, dict):
        return {k: fill(v, values) for k, v in template.items()}
    if isinstance(template, slice):
        return slice(fill(template.start, values), fill(template.stop, values), fill(template.step, values))
    return template


def rebuild_sequence(like: Sequence[Any], items: list[Any]) -> Any:
    if hasattr(like, "_fields"):
        return type(like)(*items)
    return tuple(items) if isinstance(like, tuple) else items


def _flatten(result: Any) -> list[Any]:
    if result is None:
        return []
    if not isinstance(result, (list, tuple)):
        return [result]
    return [leaf for item in result for leaf in (_flatten(item) if isinstance(item, (list, tuple)) else [item])]


def operator(target: Callable[..., Any], args: Any, kwargs: Any) -> Callable[..., list[Any]]:
    """The function that fills the templates with its arguments, calls the target and returns a flat list."""

    def call(*values: Any) -> list[Any]:
        return _flatten(target(*fill(args, values), **fill(kwargs, values)))

    return call
