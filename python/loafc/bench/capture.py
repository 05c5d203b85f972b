"""Captures the functional ATen graphs that ``torch.compile`` would hand to loafc, without compiling any."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule

from ..backend import backend_of
from ..graphs import copied


@dataclass(frozen=True)
class Captured:
    """A graph, its kind ("forward", "backward" or "inference"), and fake tensors like its inputs."""

    kind: str
    graph: GraphModule
    inputs: list[Any]

    def copy(self) -> GraphModule:
        """A copy of the graph: compilers change what they get."""
        return GraphModule(self.graph, copied(self.graph.graph)[0])


def capture(fn: Callable[..., torch.Tensor], *args: Any, train: bool = False, **kwargs: Any) -> list[Captured]:
    """The graphs of ``fn(*args, **kwargs)``, which runs once in eager mode; with ``train``, its result's backward too.

    Gradients that training leaves behind in parameters are the caller's to drop.
    """
    graphs: list[Captured] = []

    def keep(gm: GraphModule, example_inputs: Sequence[Any], kind: str) -> Callable[..., Any]:
        captured = Captured(kind, gm, list(example_inputs))
        # What runs is a copy, so that the graph stays as it was captured.
        graphs.append(Captured(kind, captured.copy(), captured.inputs))
        return _boxed(gm)

    torch._dynamo.reset()
    compiled = torch.compile(fn, backend=backend_of(keep), dynamic=False)
    with torch.set_grad_enabled(train):
        result = compiled(*args, **kwargs)
    if train:
        result.backward()
    torch._dynamo.reset()
    return graphs


def _boxed(gm: GraphModule) -> Callable[[list[Any]], Any]:
    def run(args: list[Any]) -> Any:
        values = list(args)
        args.clear()
        return gm(*values)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run
