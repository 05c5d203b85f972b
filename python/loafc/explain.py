"""What loafc makes of a function: ``loafc.explain(fn, *args)``."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ._loafc import count_text
from .backend import CompiledGraph, backend_with


class Report:
    """What was compiled, over all graphs of a call: the forward one, and the backward one if there is any.

    ``kernels``, ``extern_calls``, ``loop_reorderings`` and ``bytes_accessed`` are sums; ``decisions`` is the list of
    the scheduler's decisions, each a dict; ``graphs`` has the same graph by graph.
    """

    def __init__(self, graphs: list[CompiledGraph]) -> None:
        self.graphs = graphs

    @property
    def kernels(self) -> int:
        """Kernels that loafc generated."""
        return sum(g.report.kernels for g in self.graphs)

    @property
    def extern_calls(self) -> int:
        """Calls of operators that stay ATen's."""
        return sum(g.report.extern_calls for g in self.graphs)

    @property
    def loop_reorderings(self) -> int:
        """Fusions that a change of a loop order made possible."""
        return sum(g.report.loop_reorderings for g in self.graphs)

    @property
    def bytes_accessed(self) -> int:
        """Bytes that all kernels together read and write."""
        return sum(g.report.bytes_accessed for g in self.graphs)

    @property
    def decisions(self) -> list[dict[str, Any]]:
        """Each pair that the scheduler looked at, with its verdict and reason."""
        return [
            dict(d, graph=g.name) for g in self.graphs for d in json.loads(g.report.to_json())["decisions"]["records"]
        ]

    @property
    def compile_seconds(self) -> dict[str, float]:
        """Seconds by phase."""
        total: dict[str, float] = {}
        for graph in self.graphs:
            for phase, value in graph.seconds.items():
                total[phase] = total.get(phase, 0.0) + value
        return total

    def to_json(self) -> str:
        """Everything as JSON text."""
        return json.dumps(
            {
                "kernels": self.kernels,
                "extern_calls": self.extern_calls,
                "loop_reorderings": self.loop_reorderings,
                "bytes_accessed": self.bytes_accessed,
                "compile_seconds": self.compile_seconds,
                "graphs": [
                    {"name": g.name, "kind": g.kind, "text": g.text, "report": json.loads(g.report.to_json())}
                    for g in self.graphs
                ],
            }
        )

    def to_html(self) -> str:
        """A page for people, without references to anything outside it. With several graphs, each has a frame."""
        if len(self.graphs) == 1:
            return self.graphs[0].report.to_html()
        frames = "\n".join(
            f"<h2>{html.escape(g.name)}</h2>\n"
            f'<iframe title="{html.escape(g.name)}" srcdoc="{html.escape(g.report.to_html(), quote=True)}"></iframe>'
            for g in self.graphs
        )
        style = "body{font-family:sans-serif;margin:1rem}iframe{width:100%;height:85vh;border:1px solid #ccc}"
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>loafc</title>'
            f"<style>{style}</style></head><body>\n<h1>{html.escape(self._summary())}</h1>\n{frames}\n</body></html>\n"
        )

    def _summary(self) -> str:
        graphs, kernels = count_text(len(self.graphs), "graph"), count_text(self.kernels, "kernel")
        calls, reorderings = (
            count_text(self.extern_calls, "extern call"),
            count_text(self.loop_reorderings, "loop reordering"),
        )
        return f"{graphs}: {kernels}, {calls}, {reorderings}, {self.bytes_accessed} bytes accessed"

    def __str__(self) -> str:
        return "\n".join([self._summary(), *(f"\n== {g.name}\n{g.report.to_text()}" for g in self.graphs)])


def explain(fn: Callable[..., Any], *args: Any, options: Mapping[str, Any] | None = None, **kwargs: Any) -> Report:
    """Compiles and calls ``fn(*args, **kwargs)`` once, and its backward pass if a result needs one.

    ``options`` are loafc's; a keyword argument of that name can't be passed on to ``fn``. The call is real:
    arguments that ``fn`` changes are changed, and gradients are left as they were.
    """
    graphs: list[CompiledGraph] = []
    compiled = torch.compile(fn, backend=backend_with(options, graphs.append))
    result = compiled(*args, **kwargs)
    _compile_backward(result)
    return Report(graphs)


def _compile_backward(result: Any) -> None:
    """Makes AOTAutograd compile a backward graph that it left for the first backward call."""
    leaves = [
        t for t in torch.utils._pytree.tree_leaves(result) if isinstance(t, torch.Tensor) and t.grad_fn is not None
    ]
    inputs = list({id(v): v for t in leaves for v in _accumulators(t.grad_fn)}.values())
    if inputs:
        torch.autograd.grad(leaves, inputs, [torch.zeros_like(t) for t in leaves], allow_unused=True)


def _accumulators(grad_fn: Any) -> list[torch.Tensor]:
    """The leaf tensors that a backward pass from here would reach."""
    seen, stack, found = set(), [grad_fn], []
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if isinstance(variable, torch.Tensor):
            found.append(variable)
        stack.extend(parent for parent, _ in node.next_functions)
    return found
