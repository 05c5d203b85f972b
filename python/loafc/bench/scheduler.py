"""``python -m loafc.bench scheduler``: loafc's scheduler beside TorchInductor's, on the same graphs of real models.

Prints for each graph the loop nests before fusion, the kernels after it, and the median time that fusing took. What
TorchInductor's scheduler counts as one kernel may be several loops in its code, which are printed beside.
Ends with status 1 when loafc makes more kernels than TorchInductor from a graph, or takes more than a hundredth of
its time. That is the time of all fusion rounds: of ``Scheduler.fuse_nodes`` in TorchInductor. Both find dependencies
before. The whole schedulers' times, from loop nests to fused groups ready for code generation, are in columns of their
own.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ..backend import CompiledGraph, compile_graph, parse_options
from ..table import print_table
from . import inductor
from .capture import Captured, capture
from .common import positive, silence_libraries, status_of
from .models import MODELS, SEED, Model

# TorchInductor is to take this many times loafc's time at least.
TIMES = 100

# loafc schedules each graph this many times as often: what takes a millisecond is disturbed more easily.
MORE_RUNS = 3


@dataclass(frozen=True)
class Schedule:
    """What loafc makes of a graph."""

    nodes: int
    kernels: int
    fuse_seconds: list[float]
    whole_seconds: list[float]


@dataclass(frozen=True)
class Row:
    """One graph of a model, scheduled by both."""

    model: str
    graph: str
    loafc: Schedule
    inductor: inductor.Schedule

    @property
    def seconds(self) -> tuple[float, float]:
        """Median seconds of loafc and of TorchInductor."""
        return statistics.median(self.loafc.fuse_seconds), statistics.median(self.inductor.fuse_seconds)

    @property
    def ratio(self) -> float:
        """How many times loafc's time TorchInductor takes."""
        ours, theirs = self.seconds
        return theirs / ours

    def cells(self) -> dict[str, str]:
        """The row as printed."""
        ours, theirs = self.seconds
        return {
            "graph": f"{self.model} {self.graph}",
            "nests": str(self.loafc.nodes),
            "ind. nests": str(self.inductor.nodes),
            "kernels": str(self.loafc.kernels),
            "ind. kernels": str(self.inductor.kernels),
            "in its code": str(self.inductor.generated),
            "fuse ms": f"{1e3 * ours:.3f}",
            "ind. fuse ms": f"{1e3 * theirs:.1f}",
            "ratio": f"{self.ratio:.0f}",
            "whole ms": f"{1e3 * statistics.median(self.loafc.whole_seconds):.3f}",
            "ind. whole ms": f"{1e3 * statistics.median(self.inductor.whole_seconds):.1f}",
        }

    def problems(self) -> list[str]:
        """What is worse than it may be."""
        name = f"{self.model} {self.graph}"
        found = []
        if self.loafc.kernels > self.inductor.kernels:
            found.append(f"{name}: {self.loafc.kernels} kernels, TorchInductor makes {self.inductor.kernels}")
        if self.ratio < TIMES:
            ours, theirs = self.seconds
            found.append(f"{name}: fusing takes {1e3 * ours:.3f} ms, more than 1/{TIMES} of {1e3 * theirs:.1f} ms")
        return found

    def to_json(self) -> dict[str, Any]:
        """Everything, with the medians."""
        ours, theirs = self.seconds
        medians = {"loafc_seconds": ours, "inductor_seconds": theirs, "ratio": self.ratio}
        return {**asdict(self), **medians, "problems": self.problems()}


def graphs_of(model: Model) -> Iterator[tuple[str, Captured]]:
    """The model's graphs by name: inference, then forward and backward of a training step."""

    def logits(**batch: torch.Tensor) -> torch.Tensor:
        return model.module(**batch).logits

    def loss(**batch: torch.Tensor) -> torch.Tensor:
        return model.module(**batch).loss

    model.module.eval()
    graphs = capture(logits, **model.batch)
    model.module.train()
    graphs += capture(loss, train=True, labels=model.labels, **model.batch)
    model.module.zero_grad(set_to_none=True)
    kinds = [g.kind for g in graphs]
    for k, graph in enumerate(graphs):
        same = kinds.count(graph.kind)
        yield (graph.kind if same == 1 else f"{graph.kind} {kinds[:k].count(graph.kind) + 1}"), graph


def schedule(captured: Captured, repeat: int) -> Schedule:
    """Compiles a graph with loafc ``repeat`` times. Raises CompileError for one that it can't compile."""
    options = parse_options({"fallback": False})
    compiled: list[CompiledGraph] = []
    for _ in range(repeat):
        compile_graph(captured.graph, captured.kind, options, compiled.append)
    reports = [json.loads(c.report.to_json()) for c in compiled]
    nodes = sum(c["kind"] == "step" and not c["is_extern"] for c in reports[0]["decisions"]["clusters"])
    seconds = [report["compile_seconds"] for report in reports]
    whole = [s["fuse"] for s in seconds]
    return Schedule(nodes, compiled[0].report.kernels, [s["rounds"] for s in seconds], whole)


def measure(build: Callable[[], Model], repeat: int) -> Iterator[Row]:
    """Schedules each graph of a model with both schedulers."""
    torch.manual_seed(SEED)
    model = build()
    for name, captured in graphs_of(model):
        yield Row(model.name, name, schedule(captured, MORE_RUNS * repeat), inductor.schedule(captured, repeat))


def main(args: list[str]) -> int:
    """Runs the benchmark; returns the exit status."""
    parser = argparse.ArgumentParser(prog="loafc.bench scheduler", description=__doc__.split("\n")[0])
    parser.add_argument("--model", action="append", choices=MODELS, help="only this one; may be given again")
    parser.add_argument("--repeat", type=positive, default=5, help="runs on each graph, of loafc 3 times as many (5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured to this file")
    options = parser.parse_args(args)
    silence_libraries()

    print(f"PyTorch {torch.__version__}, medians of {options.repeat} runs, of loafc {MORE_RUNS * options.repeat}")
    rows: list[Row] = []
    for name in options.model or MODELS:
        print(f"  {name} ...", flush=True)
        rows += measure(MODELS[name], options.repeat)
    print()
    print_table([row.cells() for row in rows])
    if options.json is not None:
        options.json.write_text(json.dumps({"torch": torch.__version__, "rows": [r.to_json() for r in rows]}, indent=1))
    problems = [problem for row in rows for problem in row.problems()]
    print()
    if not problems:
        print(f"No more kernels than TorchInductor's, in a {TIMES}th of its time or less.")
    return status_of(problems)
