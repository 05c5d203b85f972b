"""Dropout of all elements that was called as ``torch.native_dropout``: it draws random numbers.

``torch.nn.functional.dropout`` draws none for it, and after AOTAutograd both are one operator. What the program called
is only to be seen in Dynamo's graph.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

_TARGETS = frozenset({torch.native_dropout, torch.ops.aten.native_dropout, torch.ops.aten.native_dropout.default})


def draw_for_dropout_of_all(gm: GraphModule) -> None:
    """Has such calls in Dynamo's graph, and in graphs within it, draw what eager mode draws."""
    for graph in (module for module in gm.modules() if isinstance(module, GraphModule)):
        found = [node for node in graph.graph.nodes if node.target in _TARGETS and _drops_all(node)]
        for node in found:
            node.target, node.args, node.kwargs = _dropped, (_argument(node, 0, "input"),), {}
        if found:
            graph.recompile()


def _drops_all(node: Node) -> bool:
    return _argument(node, 1, "p") == 1 and _argument(node, 2, "train") is not False


def _argument(node: Node, position: int, name: str) -> Any:
    return node.args[position] if len(node.args) > position else node.kwargs.get(name)


def _dropped(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    mask = torch.empty_like(x, dtype=torch.bool).bernoulli_(0.0)
    return x.mul(mask).mul(torch.zeros((), dtype=x.dtype, device=x.device)), mask
