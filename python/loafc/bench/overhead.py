"""``python -m loafc.bench overhead``: what a call of a compiled program costs beside its work, next to TorchInductor.

Programs so small that the call is nearly all of their time, compiled by both in one process and called in turns.
Prints for each the median time of a call and the median ratio, for the compiled graph as AOTAutograd calls it and for
the whole call with Dynamo's guards, which are the same for both. Ends with status 1 when a graph's ratio is above what
is allowed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ..backend import backend_of, compile_graph, parse_options
from ..table import print_table
from .common import positive, status_of

ELEMENTS = 64
INPUTS = 200

# Medians of a ratio whose true value is one are within this of it.
ALLOWED = 1.05

# Shorter than a time slice, so that another process seldom comes between the two of a pair.
_ROUND_SECONDS = 3e-4

Tensors = list[torch.Tensor]


def _pointwise(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.relu(x + y) * 2


def _sum_of_all(*xs: torch.Tensor) -> torch.Tensor:
    total = xs[0]
    for x in xs[1:]:
        total = total + x
    return total


def _each(*xs: torch.Tensor) -> Tensors:
    return [x * 2 for x in xs[:20]]


def _in_place(*xs: torch.Tensor) -> None:
    for x in xs[:20]:
        x.mul_(1.0)


def _matmul(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.relu(x.view(8, 8) @ y.view(8, 8)) + 1


PROGRAMS: dict[str, tuple[Callable[..., Any], int]] = {
    "pointwise": (_pointwise, 2),
    "200 inputs": (_sum_of_all, INPUTS),
    "20 results": (_each, 20),
    "20 changed": (_in_place, 20),
    "matmul": (_matmul, 2),
}


@dataclass(frozen=True)
class Compiled:
    """A function compiled by one of them: the whole, and the graph that AOTAutograd calls."""

    whole: Callable[..., Any]
    graph: Callable[[list[Any]], Any]


@dataclass(frozen=True)
class Row:
    """One program: median seconds of a call and the median ratio of loafc's to TorchInductor's."""

    program: str
    part: str
    loafc_seconds: float
    inductor_seconds: float
    ratio: float

    def cells(self) -> dict[str, str]:
        """The row as printed."""
        return {
            "program": self.program,
            "part": self.part,
            "loafc us": f"{1e6 * self.loafc_seconds:.2f}",
            "inductor us": f"{1e6 * self.inductor_seconds:.2f}",
            "ratio": f"{self.ratio:.2f}",
        }


def with_loafc(fn: Callable[..., Any], args: Tensors) -> Compiled:
    """Compiles with loafc."""
    graphs: list[Any] = []
    options = parse_options({"fallback": False})

    def compile_kind(gm: Any, _inputs: Sequence[Any], kind: str) -> Any:
        graphs.append(compile_graph(gm, kind, options))
        return graphs[-1]

    return _compiled(fn, args, backend_of(compile_kind), graphs)


def with_inductor(fn: Callable[..., Any], args: Tensors) -> Compiled:
    """Compiles with TorchInductor."""
    import torch._inductor.config as config
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner

    graphs: list[Any] = []

    def inner(*inner_args: Any, **kwargs: Any) -> Any:
        graphs.append(compile_fx_inner(*inner_args, **kwargs))
        return graphs[-1]

    # From a cache, the graph wouldn't come by here.
    with config.patch(force_disable_caches=True):
        return _compiled(fn, args, lambda gm, inputs: compile_fx(gm, inputs, inner_compile=inner), graphs)


def _compiled(fn: Callable[..., Any], args: Tensors, backend: Callable[..., Any], graphs: list[Any]) -> Compiled:
    torch._dynamo.reset()
    whole = torch.compile(fn, backend=backend, dynamic=False)
    whole(*args)
    (graph,) = graphs
    return Compiled(whole, graph)


def measure(name: str, rounds: int) -> list[Row]:
    """Times both, graph alone and whole call."""
    fn, count = PROGRAMS[name]
    args = [torch.randn(ELEMENTS) for _ in range(count)]
    with torch.no_grad():
        ours, theirs = with_loafc(fn, args), with_inductor(fn, args)
        graphs = [lambda g=c.graph: g(list(args)) for c in (ours, theirs)]
        wholes = [lambda w=c.whole: w(*args) for c in (ours, theirs)]
        return [_compare(name, "graph", *graphs, rounds), _compare(name, "whole", *wholes, rounds)]


def _compare(name: str, part: str, ours: Callable[[], Any], theirs: Callable[[], Any], rounds: int) -> Row:
    repeat = max(1, int(_ROUND_SECONDS / max(_seconds(theirs, 20), 1e-7)))
    pairs = [(_seconds(ours, repeat), _seconds(theirs, repeat)) for _ in range(rounds)]
    medians = [statistics.median(times) for times in zip(*pairs, strict=True)]
    return Row(name, part, *medians, statistics.median(a / b for a, b in pairs))


def _seconds(call: Callable[[], Any], repeat: int) -> float:
    start = time.perf_counter()
    for _ in range(repeat):
        call()
    return (time.perf_counter() - start) / repeat


def main(args: list[str]) -> int:
    """Runs the benchmark; returns the exit status."""
    parser = argparse.ArgumentParser(prog="loafc.bench overhead", description=__doc__.split("\n")[0])
    parser.add_argument("--program", action="append", choices=PROGRAMS, help="only this one; may be given again")
    parser.add_argument("--rounds", type=positive, default=1000, help="pairs of measurements of each (1000)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured to this file")
    options = parser.parse_args(args)
    rows = [row for name in options.program or PROGRAMS for row in measure(name, options.rounds)]
    print_table([row.cells() for row in rows])
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    slow = [row for row in rows if row.part == "graph" and row.ratio > ALLOWED]
    return status_of([f"a call of {row.program} takes {row.ratio:.2f} times TorchInductor's" for row in slow])
