"""TorchInductor's schedule of a captured graph: loop nests before fusion, kernels, and seconds spent fusing.

TorchInductor lowers, schedules and generates the code of the graph as in any compilation, and is stopped before it
starts a C++ compiler. Its configuration is the default, but that random numbers stay calls into ATen: the pass that
replaces them works on graphs before AOTAutograd cuts them in two, and loafc has them as calls too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from torch._guards import detect_fake_mode
from torch.fx import GraphModule, Interpreter
from torch.fx.experimental.proxy_tensor import make_fx

from .._torch_compat import inductor_decompositions
from .capture import Captured


@dataclass(frozen=True)
class Schedule:
    """What TorchInductor makes of a graph.

    Its kernels can be counted in three ways. ``kernels`` are the groups that its scheduler decides on, where loop
    nests that are to share an outer loop are one. ``generated`` are the outermost loops in the code: nests that were
    to share one are tiled in different ways at times, and then don't. ``metric`` are
    ``torch._inductor.metrics.generated_kernel_count`` without what shares an outer loop; such failed attempts count
    again there.

    ``fuse_seconds`` are those of all fusion rounds in each run, ``whole_seconds`` those of the scheduler from lowered
    buffers to the final order.
    """

    nodes: int
    kernels: int
    generated: int
    metric: int
    fuse_seconds: list[float]
    whole_seconds: list[float]


class _Stop(BaseException):
    """Leaves a compilation of which nothing more is needed. No Exception, so that nobody wraps it."""


def schedule(captured: Captured, repeat: int) -> Schedule:
    """Schedules a graph ``repeat`` times, of which one goes on to generate code."""
    from torch._inductor import metrics
    from torch._inductor.codegen.cpp import KernelGroup
    from torch._inductor.graph import GraphLowering

    runs: list[_Run] = []
    generated = 0
    finalize = KernelGroup.finalize_kernel

    def count(*args: Any, **kwargs: Any) -> Any:
        nonlocal generated
        generated += 1
        return finalize(*args, **kwargs)

    def generate_only(graph: GraphLowering) -> Any:
        graph.codegen()
        raise _Stop

    metrics.reset()
    with (
        mock.patch.object(KernelGroup, "finalize_kernel", count),
        mock.patch.object(GraphLowering, "compile_to_module", generate_only),
        _watched_scheduler(runs, stop=False),
    ):
        _compile(captured)
    enclosed = sum(c.inner_kernel_number for c in metrics.cpp_outer_loop_fused_inner_counts)
    metric = metrics.generated_kernel_count - enclosed
    for _ in range(repeat - 1):
        with _watched_scheduler(runs, stop=True):
            _compile(captured)
    fuse_seconds, whole_seconds = [r.fuse_seconds for r in runs], [r.whole_seconds for r in runs]
    return Schedule(runs[0].nodes, runs[0].kernels, generated, metric, fuse_seconds, whole_seconds)


@dataclass
class _Run:
    """One run of the scheduler."""

    nodes: int = 0
    kernels: int = 0
    fuse_seconds: float = 0.0
    whole_seconds: float = 0.0


@contextmanager
def _watched_scheduler(runs: list[_Run], *, stop: bool) -> Iterator[None]:
    """Notes each run of the scheduler; with ``stop``, leaves the compilation after it."""
    from torch._inductor.scheduler import Scheduler

    run_all: Callable[..., None] = Scheduler.__init__
    fuse_nodes: Callable[..., Any] = Scheduler.fuse_nodes

    def watched(self: Scheduler, buffers: list[Any]) -> None:
        runs.append(_Run())
        start = time.perf_counter()
        run_all(self, buffers)
        runs[-1].whole_seconds = time.perf_counter() - start
        if stop:
            raise _Stop

    def watched_fusion(self: Scheduler, before: list[Any]) -> Any:
        start = time.perf_counter()
        after = fuse_nodes(self, before)
        run = runs[-1]
        run.fuse_seconds += time.perf_counter() - start
        run.nodes, run.kernels = _loop_nests(before), _loop_nests(after)
        return after

    with (
        mock.patch.object(Scheduler, "__init__", watched),
        mock.patch.object(Scheduler, "fuse_nodes", watched_fusion),
    ):
        yield


def _loop_nests(nodes: list[Any]) -> int:
    """How many are loop nests or groups of them, not extern calls, nor buffers that need no code."""
    from torch._inductor.scheduler import FusedSchedulerNode, SchedulerNode

    return sum(isinstance(n, (SchedulerNode, FusedSchedulerNode)) for n in nodes)


def _compile(captured: Captured) -> None:
    """Compiles a copy of the graph as AOTAutograd would have it compiled, up to where a patch stops it."""
    import torch._inductor.config as config
    from torch._inductor.compile_fx import compile_fx_inner

    try:
        with config.patch(force_disable_caches=True, fallback_random=True):
            compile_fx_inner(
                _taken_apart(captured),
                captured.inputs,
                is_backward=captured.kind == "backward",
                is_inference=captured.kind == "inference",
            )
    except _Stop:
        return
    raise RuntimeError("TorchInductor compiled a graph without going through its scheduler")


def _taken_apart(captured: Captured) -> GraphModule:
    """A copy of the graph without operators that TorchInductor takes apart; some of them loafc keeps whole.

    Raises:
        ValueError: There are some, but no fake tensor among the graph's inputs that they could be traced with.
    """
    graph = captured.copy()
    rules = inductor_decompositions()
    table = {n.target: rules[n.target] for n in graph.graph.nodes if n.op == "call_function" and n.target in rules}
    if not table:
        return graph
    mode = detect_fake_mode(captured.inputs)
    if mode is None:
        names = ", ".join(sorted(map(str, table)))
        raise ValueError(f"the {captured.kind} graph has no fake tensor as an input to take {names} apart with")
    with mode:
        return make_fx(Interpreter(graph).run, decomposition_table=table)(*captured.inputs)
