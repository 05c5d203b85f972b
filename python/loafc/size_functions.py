"""Functions of sizes that a tensor program's integer arithmetic can't express, such as ``floor(1.5 * n)``.

Python computes them at each call. An integer then is an argument of the program like any other size; floats and truth
values are arguments of Python operators.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from ._torch_compat import python_text
from .errors import ConvertError
from .sizes import size_text
from .symbols import DerivedSize

_NAMESPACE = {"math": math, "torch": torch}
_FUNCTIONS = frozenset({"abs", "max", "min", "round", *_NAMESPACE})


@dataclass(frozen=True)
class ComputedSize:
    """A size symbol whose value is a function of others, each found at an argument of the graph."""

    symbol: sympy.Symbol
    function: Callable[..., Any]
    sources: list[DerivedSize]

    def value(self, args: Sequence[Any]) -> int:
        return int(self.function(*[source.value(args) for source in self.sources]))


def size_function(expr: Any, symbols: Sequence[sympy.Symbol]) -> Callable[..., Any]:
    """The expression as a function of these symbols' values, in floats and integers of Python where that can be: what
    SymPy computes takes most of a millisecond."""
    text = python_text(expr)
    if text is not None and _names(text) <= _FUNCTIONS.union(s.name for s in symbols):
        return eval(f"lambda {', '.join(s.name for s in symbols)}: {text}", dict(_NAMESPACE))
    return lambda *values: expr.xreplace({s: sympy.Integer(v) for s, v in zip(symbols, values, strict=True)})


def _names(text: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}


def named_where_unwritable(expr: Any, name: Callable[[Any], sympy.Expr]) -> Any:
    """The expression with a symbol, which ``name`` gives, for each integer part that no program can compute."""
    if _is_writable(expr):
        return expr
    if not expr.args or not all(arg.is_integer for arg in expr.args):
        return name(expr)
    named = expr.func(*[named_where_unwritable(arg, name) for arg in expr.args])
    return named if _is_writable(named) else name(expr)


def _is_writable(expr: Any) -> bool:
    try:
        size_text(expr)
    except ConvertError:
        return False
    return True
