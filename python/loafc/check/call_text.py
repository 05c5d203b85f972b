"""Reads calls as the census writes them: ``(f32[2,3]/s(1,2), [1], True, dtype=f32) -> f32[2]``.

A tensor is its element type, its shape and, where they are not those of a dense tensor, its strides. A census tells
no values: integers are zeros, which are valid positions whatever they index; everything else is one or true.
"""

from __future__ import annotations

import ast
import re
from typing import Any

import torch

from ..literals import DTYPES

_DTYPES = {**DTYPES, "complex64": torch.complex64, "complex128": torch.complex128}
_TENSOR = re.compile(r"\b([a-z]+[0-9]+)\[([0-9,]*)\](?:/s\(([0-9,]*)\))?")
_ATTRIBUTE = re.compile(r"attr:\w+")
_TENSOR_FUNCTION = "tensor"


class UnreadableCall(ValueError):
    """A text that is no call, or one with arguments that can't be made."""


def read_call(text: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments, positional and by keyword, of a call.

    Raises UnreadableCall.
    """
    arguments, arrow, result = text.rpartition(" -> ")
    if not arrow:
        raise UnreadableCall(f"no result: {text}")
    result_tensor = _TENSOR.search(result)
    if result_tensor is not None:
        # A constant of the model, whose type only the result tells.
        arguments = _ATTRIBUTE.sub(result_tensor.group(0), arguments)
    source = "call" + _TENSOR.sub(_tensor_source, arguments)
    try:
        call = ast.parse(source, mode="eval").body
    except SyntaxError as error:
        raise UnreadableCall(f"{error.msg}: {text}") from error
    if not isinstance(call, ast.Call):
        raise UnreadableCall(f"no list of arguments: {text}")
    return tuple(_value(a) for a in call.args), {k.arg: _value(k.value) for k in call.keywords if k.arg is not None}


def _tensor_source(match: re.Match[str]) -> str:
    dtype, shape, strides = match.groups()
    return f"{_TENSOR_FUNCTION}({dtype!r}, [{shape}], {'None' if strides is None else f'[{strides}]'})"


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_value(item) for item in node.elts]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.Name) and node.id in ("inf", "nan"):
        return float(node.id)
    if isinstance(node, ast.Name) and node.id in _DTYPES:
        return _DTYPES[node.id]
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "torch":
        return getattr(torch, node.attr)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id == _TENSOR_FUNCTION:
            return _tensor(*[_value(a) for a in node.args])
        if node.func.id == "device":
            return torch.device(*[_value(k.value) for k in node.keywords])
    raise UnreadableCall(f"unknown argument {ast.unparse(node)}")


def _tensor(dtype: str, shape: list[int], strides: list[int] | None) -> torch.Tensor:
    if dtype not in _DTYPES:
        raise UnreadableCall(f"unknown element type {dtype}")
    kind = _DTYPES[dtype]
    if strides is None:
        tensor = torch.empty(shape, dtype=kind)
    else:
        # Strides of dimensions of one element may be left out at the end.
        strides = strides + [1] * (len(shape) - len(strides))
        tensor = torch.empty_strided(shape, strides, dtype=kind)
    return tensor.fill_(1 if kind.is_floating_point or kind.is_complex or kind is torch.bool else 0)
