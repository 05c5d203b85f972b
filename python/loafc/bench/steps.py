"""``python -m loafc.bench steps``: real models step by step, compiled by loafc and by TorchInductor.

For each model an inference and a training step, in eager mode and compiled by both in one process. Steps run in turns;
the numbers are medians of the ratios within a round. Compiling is timed with both compilers' caches on disk off: their
own part of it, without Dynamo and AOTAutograd. Ends with status 1 when a result is wrong, a graph fell back to eager
mode, or a bar is missed.

A result that differs in float32 counts as right where it is the same in float64 and eager mode moves as far when its
weights move by a rounding (``check/sensitivity.py``): a rectifier opens for a value beside zero in one program only,
and a whole term of the gradient with it.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from .. import demo, metrics
from ..check import sensitivity
from ..table import print_table
from .common import geometric_mean, positive, silence_libraries, status_of
from .models import MODELS, SEED, Model

# Bars: TorchInductor's time ÷ loafc's for each step and as a geometric mean, and its compile seconds ÷ loafc's.
LEAST, MEAN = 1.0, 1.1
COMPILE = 30.0

# In float64 errors are to stay below this part of what is allowed in float32.
EXACT = 1e-3


@dataclass(frozen=True)
class Row:
    """One step of a model. ``speedup`` is TorchInductor's time ÷ loafc's, ``over_eager`` eager mode's ÷ loafc's."""

    step: str
    kernels: int
    extern_calls: int
    fallbacks: int
    error: float
    right: bool
    seconds: float
    speedup: float
    over_eager: float
    compile_seconds: float
    inductor_compile_seconds: float

    def cells(self) -> dict[str, str]:
        """The row as printed."""
        return {
            "step": self.step,
            "kernels": str(self.kernels),
            "extern": str(self.extern_calls),
            "error": f"{self.error:.1e}",
            "ms": f"{1e3 * self.seconds:.1f}",
            "inductor/loafc": f"{self.speedup:.2f}",
            "eager/loafc": f"{self.over_eager:.2f}",
            "compile s": f"{self.compile_seconds:.3f}",
            "ind. compile s": f"{self.inductor_compile_seconds:.1f}",
        }

    def problems(self) -> list[str]:
        """What is worse than it may be."""
        found = []
        if not self.right:
            found.append(f"{self.step}: the error {self.error:.1e} is larger than allowed")
        if self.fallbacks:
            found.append(f"{self.step}: {self.fallbacks} graphs fell back to eager mode")
        if self.speedup < LEAST:
            found.append(f"{self.step}: {self.speedup:.2f} times TorchInductor's speed, less than {LEAST}")
        return found


def jobs(build: Callable[[], Model]) -> Iterator[demo.Job]:
    """Inference and a training step of a model, each with fresh weights."""
    for train in (False, True):
        torch.manual_seed(SEED)
        model = build()
        batch = {**model.batch, "labels": model.labels} if train else model.batch
        name = f"{model.name} {'training' if train else 'inference'}"
        yield demo.Job(name, model.module.train(train), batch, train)


def measure(job: demo.Job, rounds: int) -> Row:
    """Compiles a step with both and runs all in turns."""
    torch._dynamo.reset()
    eager = demo.step_of(job, job.model)
    want = eager()
    ours = demo.compile_loafc(job)
    counts = (metrics.kernels, metrics.extern_calls, metrics.fallbacks)
    error, right = demo.largest_error(ours.results, want, job)
    right = right or is_rounding(job, ours.step)
    theirs = demo.compile_inductor(job)
    times = [[_seconds(step) for step in (eager, ours.step, theirs.step)] for _ in range(rounds)]
    return Row(
        job.name,
        *counts,
        error,
        right,
        statistics.median(own for _, own, _ in times),
        statistics.median(their / own for _, own, their in times),
        statistics.median(plain / own for plain, own, _ in times),
        ours.own_seconds,
        theirs.own_seconds,
    )


def is_rounding(job: demo.Job, step: demo.Step) -> bool:
    """Whether the compiled step differs from eager mode's by rounding only: not more than eager mode moves when the
    job's weights move by a rounding, and in float64 far less than it may in float32."""
    return _is_as_sensitive(job, step) and _is_exact(job)


def _is_as_sensitive(job: demo.Job, step: demo.Step) -> bool:
    eager = demo.step_of(job, job.model)
    state = copy.deepcopy(job.model.state_dict())

    def moved(second: bool, seed: int) -> dict[str, torch.Tensor]:
        job.model.load_state_dict(state)
        sensitivity.move(job.model.parameters(), seed)
        return {str(k): tensor.clone() for k, tensor in enumerate(step() if second else eager())}

    found = sensitivity.points(moved)
    job.model.load_state_dict(state)
    tolerances = {name: demo.tolerance_of(job, int(name)).relative for name in found[0].want}
    return all(f.fine for f in sensitivity.judge(found, tolerances))


def _is_exact(job: demo.Job) -> bool:
    batch = {name: t.double() if t.is_floating_point() else t for name, t in job.batch.items()}
    exact = replace(job, model=copy.deepcopy(job.model).double(), batch=batch)
    truth = demo.step_of(exact, exact.model)()
    return demo.largest_error(demo.compile_loafc(exact).results, truth, exact, EXACT)[1]


def _seconds(step: Callable[[], Any]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def summary(rows: Sequence[Row]) -> tuple[list[str], list[str]]:
    """Lines about all rows, and what is worse than it may be."""
    problems = [problem for row in rows for problem in row.problems()]
    mean = geometric_mean([row.speedup for row in rows])
    own = sum(row.compile_seconds for row in rows)
    theirs = sum(row.inductor_compile_seconds for row in rows)
    if mean < MEAN:
        problems.append(f"{mean:.2f} times TorchInductor's speed as a geometric mean, less than {MEAN}")
    if theirs < COMPILE * own:
        problems.append(f"compiling takes {own:.2f} s, more than 1/{COMPILE:.0f} of TorchInductor's {theirs:.1f} s")
    lines = [
        f"{mean:.2f} times TorchInductor's speed as a geometric mean",
        f"compiling: {own:.2f} s, TorchInductor {theirs:.1f} s, {theirs / own:.0f} times loafc's",
    ]
    return lines, problems


def main(args: list[str]) -> int:
    """Runs the benchmark; returns the exit status."""
    parser = argparse.ArgumentParser(prog="loafc.bench steps", description=__doc__.split("\n")[0])
    parser.add_argument("--model", action="append", choices=MODELS, help="only this one; may be given again")
    parser.add_argument("--rounds", type=positive, default=21, help="how often each step is measured (21)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured to this file")
    options = parser.parse_args(args)
    silence_libraries()

    print(f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads, medians of {options.rounds} rounds")
    rows: list[Row] = []
    for name in options.model or MODELS:
        for job in jobs(MODELS[name]):
            print(f"  {job.name} ...", flush=True)
            rows.append(measure(job, options.rounds))
    print()
    print_table([row.cells() for row in rows])
    lines, problems = summary(rows)
    print("", *lines, sep="\n")
    if options.json is not None:
        report = {"torch": torch.__version__, "rows": [asdict(row) for row in rows], "problems": problems}
        options.json.write_text(json.dumps(report, indent=1))
    return status_of(problems)
