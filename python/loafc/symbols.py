"""Finds out where each size symbol of a graph gets its value from when the compiled program is called."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.fx import Node

from .errors import ConvertError
from .sizes import linear_in


class UnknownSize(ConvertError):
    """A size symbol that no argument gives."""

    def __init__(self, symbol: sympy.Symbol) -> None:
        super().__init__(f"no argument gives the value of size `{symbol}`: it depends on data")
        self.symbol = symbol


@dataclass(frozen=True)
class DerivedSize:
    """A size symbol as ``(property of an argument - offset) // factor``."""

    position: int
    kind: str  # "size", "stride" or "value"
    dim: int
    factor: int
    offset: int

    def value(self, args: Sequence[Any]) -> int:
        arg = args[self.position]
        number = arg if self.kind == "value" else arg.size(self.dim) if self.kind == "size" else arg.stride(self.dim)
        return (number - self.offset) // self.factor


@dataclass(frozen=True)
class SymbolSources:
    """For the symbols that arguments give by themselves, as opposed to extents of tensors: names in the order in
    which the program takes them, the positions of integer arguments, then what is derived."""

    names: list[sympy.Symbol]
    positions: list[int]
    derived: list[DerivedSize]


def find_sources(
    symbols: Iterable[sympy.Symbol], placeholders: Sequence[Node], tensor_positions: Sequence[int]
) -> SymbolSources:
    """Finds a source for each symbol; the tensors at ``tensor_positions`` are passed to the program and give the
    symbols that are an extent of theirs.

    Raises UnknownSize for a symbol that no argument gives, such as one that depends on data.
    """
    wanted = dict.fromkeys(symbols)
    names: list[sympy.Symbol] = []
    positions: list[int] = []
    for k, node in enumerate(placeholders):
        val = node.meta.get("val")
        expr = val.node.expr if isinstance(val, torch.SymInt) else None
        if isinstance(expr, sympy.Symbol) and expr in wanted:
            del wanted[expr]
            names.append(expr)
            positions.append(k)
    for k in tensor_positions:
        for size in placeholders[k].meta["val"].shape:
            wanted.pop(_expr_of(size), None)
    derived = derive(wanted, placeholders)
    return SymbolSources([*names, *wanted], positions, derived)


def derive(symbols: Iterable[sympy.Symbol], placeholders: Sequence[Node]) -> list[DerivedSize]:
    """How each symbol follows from a property of an argument.

    Raises UnknownSize for a symbol that no argument gives, such as one that depends on data.
    """
    sources = list(_sources(placeholders)) if symbols else []
    derived: list[DerivedSize] = []
    for symbol in symbols:
        found = next((d for s in sources if (d := _derive(s, symbol))), None)
        if found is None:
            raise UnknownSize(symbol)
        derived.append(found)
    return derived


def _sources(placeholders: Sequence[Node]) -> Iterator[tuple[int, str, int, Any]]:
    for k, node in enumerate(placeholders):
        val = node.meta.get("val")
        if isinstance(val, torch.SymInt):
            yield k, "value", 0, val.node.expr
        elif isinstance(val, torch.Tensor):
            for d, size in enumerate(val.shape):
                yield k, "size", d, _expr_of(size)
            for d, stride in enumerate(val.stride()):
                yield k, "stride", d, _expr_of(stride)


def _expr_of(size: Any) -> Any:
    return size.node.expr if isinstance(size, torch.SymInt) else size


def _derive(source: tuple[int, str, int, Any], symbol: sympy.Symbol) -> DerivedSize | None:
    position, kind, dim, expr = source
    line = linear_in(expr, symbol)
    return None if line is None else DerivedSize(position, kind, dim, *line)
