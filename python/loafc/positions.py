"""Positions in a dimension that a call counts from its end, or that lie outside of it, as a program means them.

A program's slices and selections start where they say: whether a size is negative is not known there. Tracing decided
it, so that graph and guards hold for one sign only; here the extent is added or the position moved to an end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from .errors import ConvertError

_aten = torch.ops.aten

# Slices without an end carry a number that no extent reaches.
_NO_END = 1 << 62


@dataclass(frozen=True)
class _Positions:
    """Which arguments are what: the tensor, or the list of its extents; the dimension; positions in it."""

    of: int
    dim: int
    at: tuple[int, ...]
    # What lies outside of the dimension is moved to its end.
    is_range: bool


_OPERATORS = {
    _aten.slice.Tensor: _Positions(0, 1, (2, 3), True),
    _aten.slice_copy.Tensor: _Positions(0, 1, (2, 3), True),
    _aten.slice_scatter.default: _Positions(0, 2, (3, 4), True),
    _aten.slice_backward.default: _Positions(1, 2, (3, 4), True),
    _aten.select.int: _Positions(0, 1, (2,), False),
    _aten.select_copy.int: _Positions(0, 1, (2,), False),
    _aten.select_scatter.default: _Positions(0, 2, (3,), False),
    _aten.select_backward.default: _Positions(1, 2, (3,), False),
    _aten.narrow.default: _Positions(0, 1, (2,), False),
    _aten.narrow_copy.default: _Positions(0, 1, (2,), False),
}


def with_positions_from_the_start(node: Node) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """A call's arguments, with each position counted from the start of its dimension.

    Raises ConvertError where a position depends on data and may be negative.
    """
    where = _OPERATORS.get(node.target)
    if where is None:
        return node.args, node.kwargs
    args = _in_order(node)
    extents = _extents(args[where.of])
    if not extents:
        return node.args, node.kwargs
    extent = extents[args[where.dim]]
    for k in where.at:
        position = _value(args[k])
        if isinstance(position, (int, torch.SymInt)) and not (type(position) is int and type(extent) is int):
            args[k] = _from_the_start(node, position, extent, where.is_range)
    if where.is_range:
        start, end = where.at
        args[end] = _no_earlier(args[end], args[start])
    return _without_defaults(node, args), {}


def _no_earlier(end: Any, start: Any) -> Any:
    """The end of a range, or its start where the end lies before that: then the range is empty."""
    positions = (_value(start), _value(end))
    if not any(isinstance(position, torch.SymInt) for position in positions) or None in positions:
        return end
    try:
        return start if positions[1] < positions[0] else end
    except GuardOnDataDependentSymNode:
        return end


def _in_order(node: Node) -> list[Any]:
    """All arguments in the order of the operator's schema, those given by name and those left out too."""
    left = node.target._schema.arguments[len(node.args) :]
    return [*node.args, *(node.kwargs.get(argument.name, argument.default_value) for argument in left)]


def _without_defaults(node: Node, args: list[Any]) -> list[Any]:
    """The arguments up to the last one that is not what the operator takes for one left out."""
    defaults = [(a.has_default_value(), a.default_value) for a in node.target._schema.arguments]
    count = len(args)
    while count and defaults[count - 1][0] and type(args[count - 1]) in (int, type(None)):
        if args[count - 1] != defaults[count - 1][1]:
            break
        count -= 1
    return args[:count]


def _extents(of: Any) -> Sequence[Any]:
    value = _value(of)
    return value.shape if isinstance(value, torch.Tensor) else [_value(extent) for extent in value]


def _value(arg: Any) -> Any:
    return arg.meta.get("val") if isinstance(arg, Node) else arg


def _from_the_start(node: Node, position: Any, extent: Any, is_range: bool) -> Any:
    if type(position) is int and position >= _NO_END:
        return position
    try:
        if position < 0:
            position = position + extent
        if is_range and position < 0:
            return 0
    except GuardOnDataDependentSymNode as error:
        raise ConvertError(f"`{node.name}`: whether its position {position} is negative depends on data") from error
    try:
        return extent if is_range and position > extent else position
    except GuardOnDataDependentSymNode:
        return position
