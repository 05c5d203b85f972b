"""``python -m loafc.bench cpu``: loafc's kernels beside TorchInductor's and beside what memory allows.

Both compile the same programs in one process and run in turns, each after a copy of a large tensor, which empties the
cache and measures the bandwidth at that moment. The floor of a program is the time in which the least bytes that it
has to move could be copied. All numbers are medians of ratios within a round. Results are compared with eager mode.
Ends with status 1 when a result is wrong or a bar is missed.

What TorchInductor compiles is kept on disk in its own cache, so that the next run starts at once.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from .. import metrics
from ..table import print_table
from .common import geometric_mean, positive, status_of
from .plot import Bars, bar_chart
from .programs import PROGRAMS, Program

SEED = 1234
COPIED = 64 << 20

# Bars: geometric means over the large programs, and what none may be below.
LARGE_SPEEDUP, LARGE_LEAST = 2.5, 0.95
FLOOR_MEAN, FLOOR_NOTED = 0.6, 0.4
SMALL_LEAST = 1.0

# What one measurement of a small program takes at least.
SMALL_SECONDS = 2e-3

# Why a program stays below FLOOR_NOTED. "In cache" is the time of an element where all data lies in the second-level
# cache, in parts of that where it lies in memory, on one thread of a Zen 4 processor: that part is computing.
NOTES = {
    "transcendental_chain": "94 % in cache: tanh, sin, exp and log1p take 1.8 ns an element",
    "long_chain": "97 % in cache: 64 operations, 8 square roots among them, take 1.7 ns an element",
    "gelu_tanh_train": "a hyperbolic tangent in either direction; the like of its forward half is 90 % in cache",
    "quantise_blocks": "94 % in cache: two passes and a division for each element",
    "norm_quantise_blocks": "71 % in cache: three passes and a division for each element",
    "swiglu_bf16": "77 % in cache: an exponential, a division and two roundings to bf16",
    "cross_entropy": "67 % in cache, most of it exponentials, where only 4 bytes an element move",
    "logsumexp": "60 % in cache, most of it exponentials, where only 4 bytes an element move",
    "softmax_outer": "49 % in cache; three passes over tiles whose rows lie 32 KiB apart",
    "cumsum_rows": "56 % in cache: adds up in f64, one element after the other, as eager mode does",
    "cumsum_columns": "20 % in cache; the rest are short runs of rows at a distance",
    "logcumsumexp_rows": "an exponential and a logarithm in f64 for each element, as precise as eager mode's",
    "positions_of_mask": "sums of 8 bytes for elements of 1; a kernel reads and writes them again",
    "variance_columns": "48 % in cache: sums and squares in f64, four states of 8 bytes for an element of 4",
    "embedding_norm": "rows in random order: with the ids in order it takes 0.6 times as long",
    "scatter_add": "adds rows up in their order, so that threads share columns and read short runs of each row",
}


@dataclass(frozen=True)
class Row:
    """One program's measurements: medians over rounds.

    ``floor`` is floor ÷ time of loafc, ``inductor_floor`` of TorchInductor; ``speedup`` is TorchInductor's time ÷
    loafc's. ``seconds`` are loafc's and tell little on a shared machine.
    """

    name: str
    kind: str
    bytes: int
    kernels: int
    extern_calls: int
    error: float
    seconds: float
    floor: float | None
    speedup: float | None
    inductor_floor: float | None

    def cells(self) -> dict[str, str]:
        """The row as printed."""
        return {
            "program": self.name,
            "kind": self.kind,
            "MiB": f"{self.bytes / 2**20:.1f}" if self.bytes >= 1 << 20 else f"{self.bytes / 2**20:.3f}",
            "kernels": str(self.kernels),
            "extern": str(self.extern_calls),
            "error": f"{self.error:.0e}",
            "ms": f"{1e3 * self.seconds:.3f}",
            "floor/time": _number(self.floor),
            "ind. floor/time": _number(self.inductor_floor),
            "times inductor": _number(self.speedup),
        }


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


class Case:
    """A program's inputs, its results in eager mode, and the least bytes that it has to move."""

    def __init__(self, program: Program):
        torch.manual_seed(SEED)
        self.program = program
        self.inputs = [_with_grad(x) if program.train else x for x in program.inputs()]
        inputs = self.fresh_inputs()
        versions = [t._version for t in _tensors(inputs)]
        out = _run(program.fn, inputs, program.train)
        self.grads = [torch.randn_like(t) for t in out if t.requires_grad]
        written = [t for t, v in zip(_tensors(inputs), versions, strict=True) if t._version != v]
        self.mutates = bool(written)
        self.bytes = program.bytes or self._bytes(_tensors(inputs), [*out, *written])
        self.want = self._results(out, inputs)

    def _bytes(self, inputs: list[Tensor], outputs: list[Tensor]) -> int:
        once = sum(map(_bytes_of, inputs)) + sum(map(_bytes_of, outputs))
        if not self.program.train:
            return once
        # Backward reads the gradients of the outputs, and the inputs again, and writes the gradients of these.
        wanted = [t for t in inputs if t.requires_grad]
        return once + sum(map(_bytes_of, self.grads)) + sum(map(_bytes_of, inputs)) + sum(map(_bytes_of, wanted))

    def fresh_inputs(self) -> list[Any]:
        """The inputs, copied."""
        return pytree.tree_map_only(torch.Tensor, _copied, self.inputs)

    def _results(self, out: list[Tensor], inputs: list[Any]) -> list[Tensor]:
        gradients = self._gradients(out, inputs)
        changed = _tensors(inputs) if self.mutates else []
        return [t.detach() for t in (*out, *gradients, *changed)]

    def _gradients(self, out: list[Tensor], inputs: list[Any]) -> Sequence[Tensor]:
        if not self.program.train:
            return ()
        wanted = [t for t in _tensors(inputs) if t.requires_grad]
        return torch.autograd.grad([t for t in out if t.requires_grad], wanted, self.grads)

    def caller(self, fn: Callable[..., Any]) -> Callable[[], Any]:
        """Calls ``fn`` on inputs of its own where it changes them, else on everyone's; drops what it returns."""
        inputs = self.fresh_inputs() if self.mutates else self.inputs
        if not self.program.train:
            # The mode is the caller's, once around all calls.
            return lambda: fn(*inputs)
        return lambda: self._gradients(_tensors(fn(*inputs)), inputs)

    def error(self, fn: Callable[..., Any]) -> float:
        """The largest error of ``fn`` against eager mode in parts of what is allowed: right up to 1."""
        inputs = self.fresh_inputs()
        got = self._results(_run(fn, inputs, self.program.train), inputs)
        return max((self._error(g, w) for g, w in zip(got, self.want, strict=True)), default=0.0)

    def _error(self, got: Tensor, want: Tensor) -> float:
        if got.dtype != want.dtype or got.shape != want.shape:
            return math.inf
        if not want.is_floating_point():
            difference = (got.long() - want.long()).abs().max().item()
            return difference / self.program.units if self.program.units else (math.inf if difference else 0.0)
        got, want = got.double(), want.double()
        allowed = self.program.tolerance * max(want.abs().max().item(), 1e-30)
        error = (got - want).abs().max().item() / allowed
        return math.inf if math.isnan(error) else error


def _run(fn: Callable[..., Any], inputs: list[Any], train: bool) -> list[Tensor]:
    with torch.set_grad_enabled(train):
        return _tensors(fn(*inputs))


def _tensors(tree: Any) -> list[Tensor]:
    return [t for t in pytree.tree_leaves(tree) if isinstance(t, Tensor)]


def _with_grad(x: Any) -> Any:
    return x.requires_grad_() if isinstance(x, Tensor) and x.is_floating_point() else x


def _copied(x: Tensor) -> Tensor:
    return x.detach().clone().requires_grad_(x.requires_grad)


def _bytes_of(t: Tensor) -> int:
    return t.numel() * t.element_size()


def _own(fn: types.FunctionType) -> types.FunctionType:
    """The same function with code of its own: Dynamo keeps what it compiled by code, and would look through both's."""
    return types.FunctionType(fn.__code__.replace(), fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)


class Copy:
    """A copy of a tensor larger than the cache."""

    def __init__(self) -> None:
        self.source, self.target = torch.zeros(COPIED // 4), torch.zeros(COPIED // 4)

    def seconds_per_byte(self) -> float:
        """Copies once. A byte is counted where it is read and where it is written."""
        start = time.perf_counter()
        self.target.copy_(self.source)
        return (time.perf_counter() - start) / (2 * COPIED)


def measure(program: Program, rounds: int, inductor: bool, copy: Copy) -> tuple[Row, list[str]]:
    """Compiles, checks and times one program; returns its row and what is wrong with it."""
    torch._dynamo.reset()
    metrics.reset()
    case = Case(program)
    ours = torch.compile(_own(program.fn), backend="loafc", dynamic=False)
    error = case.error(ours)
    problems = []
    if not error <= 1:
        problems.append(f"{program.name}: the error is {error:.2g} times what is allowed")
    if metrics.fallbacks:
        problems.append(f"{program.name}: {metrics.fallbacks} graphs fell back to eager mode")
    callers = [case.caller(ours)]
    if inductor:
        theirs = torch.compile(_own(program.fn), backend="inductor", dynamic=False)
        wrong = case.error(theirs)
        if not wrong <= 1:
            print(f"  TorchInductor's error in {program.name} is {wrong:.2g} times what is allowed")
        callers.append(case.caller(theirs))
    with torch.set_grad_enabled(program.train):
        times = (_small_rounds if program.small else _large_rounds)(callers, rounds, copy)
    return _row(case, error, times), problems


# Seconds of each caller in a round, and of a copied byte right before it.
Round = list[tuple[float, float]]


def _large_rounds(callers: list[Callable[[], Any]], rounds: int, copy: Copy) -> list[Round]:
    def timed(call: Callable[[], Any]) -> tuple[float, float]:
        per_byte = copy.seconds_per_byte()
        start = time.perf_counter()
        call()
        return time.perf_counter() - start, per_byte

    for call in callers:
        call()
    return [_in_turn(callers, timed, n) for n in range(rounds)]


def _small_rounds(callers: list[Callable[[], Any]], rounds: int, _copy: Copy) -> list[Round]:
    def timed(call: Callable[[], Any], times: int) -> float:
        start = time.perf_counter()
        for _ in range(times):
            call()
        return time.perf_counter() - start

    once = min(timed(call, 20) / 20 for call in callers for _ in range(3))
    times = max(1, round(SMALL_SECONDS / once))
    return [_in_turn(callers, lambda call: (timed(call, times) / times, math.nan), n) for n in range(rounds)]


def _in_turn(callers: list[Callable[[], Any]], timed: Callable[..., tuple[float, float]], number: int) -> Round:
    """Times each; who is first changes from round to round."""
    order = list(enumerate(callers))
    if number % 2:
        order.reverse()
    measured = {k: timed(call) for k, call in order}
    return [measured[k] for k in range(len(callers))]


def _row(case: Case, error: float, rounds: list[Round]) -> Row:
    program = case.program
    has_floor = program.memory_bound and not program.small

    def floor(k: int) -> float | None:
        if not has_floor or k >= len(rounds[0]):
            return None
        return statistics.median(case.bytes * r[k][1] / r[k][0] for r in rounds)

    return Row(
        program.name,
        program.kind,
        case.bytes,
        metrics.kernels,
        metrics.extern_calls,
        error,
        statistics.median(r[0][0] for r in rounds),
        floor(0),
        statistics.median(r[1][0] / r[0][0] for r in rounds) if len(rounds[0]) > 1 else None,
        floor(1),
    )


@dataclass(frozen=True)
class Summary:
    """Geometric means, each None where nothing was measured for it."""

    large_speedup: float | None
    small_speedup: float | None
    floor: float | None
    inductor_floor: float | None


def summarise(rows: Sequence[Row]) -> Summary:
    """The means over all rows."""
    large = [r for r in rows if r.kind != "small"]
    return Summary(
        geometric_mean([r.speedup for r in large if r.speedup is not None]),
        geometric_mean([r.speedup for r in rows if r.kind == "small" and r.speedup is not None]),
        geometric_mean([r.floor for r in large if r.floor is not None]),
        geometric_mean([r.inductor_floor for r in large if r.inductor_floor is not None]),
    )


def missed_bars(rows: Sequence[Row], summary: Summary) -> list[str]:
    """Which bars are missed."""
    missed = []
    for row in rows:
        least = SMALL_LEAST if row.kind == "small" else LARGE_LEAST
        if row.speedup is not None and row.speedup < least:
            missed.append(f"{row.name}: {row.speedup:.2f} times TorchInductor's speed, less than {least}")
        if row.floor is not None and row.floor < FLOOR_NOTED and row.name not in NOTES:
            missed.append(f"{row.name}: floor ÷ time is {row.floor:.2f}, and no note says why")
    for what, value, bar in (
        ("times TorchInductor's speed on large programs", summary.large_speedup, LARGE_SPEEDUP),
        ("of the floor", summary.floor, FLOOR_MEAN),
    ):
        if value is not None and value < bar:
            missed.append(f"the geometric mean is {value:.2f} {what}, less than {bar}")
    return missed


def plot(rows: Sequence[Row]) -> str:
    """Floor ÷ time of each program with a floor, as SVG."""
    bars = [Bars(r.name, (r.floor, r.inductor_floor)) for r in rows if r.floor is not None]
    title = "Floor ÷ time: 1 is a plain copy of the least bytes"
    return bar_chart(title, ("loafc", "TorchInductor"), bars, 1.4, (0.2, 0.4, 0.6, 0.8, 1.0))


def main(args: list[str]) -> int:
    """Runs the benchmark; returns the exit status."""
    parser = argparse.ArgumentParser(prog="loafc.bench cpu", description=__doc__.split("\n")[0])
    parser.add_argument("--only", action="append", metavar="NAME", help="programs with this in their name or kind")
    parser.add_argument("--rounds", type=positive, default=15, help="measurements of each program (15)")
    parser.add_argument("--threads", type=positive, help="threads of PyTorch (as many as it takes by itself)")
    parser.add_argument("--no-inductor", action="store_true", help="loafc alone, against the floor")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured to this file")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write a chart to this file, as SVG")
    options = parser.parse_args(args)
    chosen = [p for p in PROGRAMS if not options.only or any(o in p.name or o in p.kind for o in options.only)]
    if not chosen:
        parser.error(f"no program is called like {', '.join(options.only)}")
    if options.threads:
        torch.set_num_threads(options.threads)

    rows: list[Row] = []
    problems: list[str] = []
    copy = Copy()
    with _quiet():
        for program in chosen:
            print(f"  {program.name} ...", file=sys.stderr, flush=True)
            row, wrong = measure(program, options.rounds, not options.no_inductor, copy)
            rows.append(row)
            problems += wrong
    summary = summarise(rows)
    problems += missed_bars(rows, summary)
    _print(rows, summary, options.rounds)
    if options.json is not None:
        options.json.write_text(json.dumps(_to_json(rows, summary, problems), indent=1))
    if options.plot is not None:
        options.plot.write_text(plot(rows))
    return status_of(problems)


def _print(rows: Sequence[Row], summary: Summary, rounds: int) -> None:
    print(f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads, medians of {rounds} rounds\n")
    print_table([row.cells() for row in rows])
    print()
    for name, value in asdict(summary).items():
        if value is not None:
            print(f"geometric mean, {name.replace('_', ' ')}: {value:.2f}")
    for row in rows:
        if row.name in NOTES:
            print(f"{row.name}: {NOTES[row.name]}")


def _to_json(rows: Sequence[Row], summary: Summary, problems: list[str]) -> dict[str, Any]:
    return {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "rows": [{**asdict(r), "note": NOTES.get(r.name)} for r in rows],
        "geometric_means": asdict(summary),
        "problems": problems,
    }


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
