"""``python -m loafc.bench memory``: peak memory of real models' steps, compiled by loafc and by TorchInductor.

Each step of each backend runs in a process of its own; its peak is the resident memory of the whole process, with
Python, PyTorch and what the compiler left behind. Both compile with their caches on disk off; with ``--cached`` both
find everything there, and TorchInductor doesn't even trace. Ends with status 1 when loafc's peak is above
TorchInductor's.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from ..table import print_table
from .common import status_of
from .models import MODELS

KINDS = ("inference", "training")
BACKENDS = ("eager", "loafc", "inductor")

# Reads the status before it imports loafc, which the other backends don't need.
_CHILD = """
import sys
import torch._dynamo
with open("/proc/self/status") as file:
    before = file.read()
from loafc.bench import memory_step
memory_step.main(before, *sys.argv[1:])
"""


@dataclass(frozen=True)
class Peaks:
    """Peak resident memory in MB of 2^20 bytes: during steps, and of the whole process with compiling."""

    peak: float
    whole: float


@dataclass(frozen=True)
class Row:
    """One step of a model."""

    step: str
    eager: Peaks
    loafc: Peaks
    inductor: Peaks

    def cells(self) -> dict[str, str]:
        """The row as printed."""
        backends = {name: getattr(self, name) for name in BACKENDS}
        return {
            "step": self.step,
            **{f"{name} MB": f"{peaks.peak:.0f}" for name, peaks in backends.items()},
            "loafc/inductor": f"{self.loafc.peak / self.inductor.peak:.3f}",
            **{f"with compiling: {name}": f"{backends[name].whole:.0f}" for name in BACKENDS[1:]},
        }

    def problems(self) -> list[str]:
        """What is worse than it may be."""
        found = []
        for when, field in (("", "peak"), (" with compiling", "whole")):
            ours, theirs = getattr(self.loafc, field), getattr(self.inductor, field)
            if ours > theirs:
                found.append(f"{self.step}{when}: a peak of {ours:.0f} MB, TorchInductor's is {theirs:.0f}")
        return found


def measure(model: str, kind: str, cached: bool, run: Callable[[list[str]], str]) -> Row:
    """Measures one step with each backend."""
    peaks = {}
    for backend in BACKENDS:
        arguments = [backend, model, kind, "cached" if cached else "fresh"]
        if cached and backend != "eager":
            run(arguments)  # Fills the cache.
        peaks[backend] = Peaks(**json.loads(run(arguments).splitlines()[-1]))
    return Row(f"{model} {kind}", **peaks)


def run_child(arguments: list[str]) -> str:
    """What the process of one step prints. Raises ``CalledProcessError`` when it fails; its errors are shown."""
    command = [sys.executable, "-W", "ignore", "-c", _CHILD, *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def main(args: list[str]) -> int:
    """Runs the benchmark; returns the exit status."""
    parser = argparse.ArgumentParser(prog="loafc.bench memory", description=__doc__.split("\n")[0])
    parser.add_argument("--model", action="append", choices=MODELS, help="only this one; may be given again")
    parser.add_argument("--kind", choices=KINDS, help="only inference or training")
    parser.add_argument("--cached", action="store_true", help="with the compilers' caches on disk, filled")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured to this file")
    options = parser.parse_args(args)
    if not Path("/proc/self/clear_refs").exists():
        parser.error("peaks are read from /proc, which only Linux has")

    kinds = [options.kind] if options.kind else KINDS
    rows: list[Row] = []
    for model in options.model or MODELS:
        for kind in kinds:
            print(f"  {model} {kind} ...", flush=True)
            rows.append(measure(model, kind, options.cached, run_child))
    print()
    print_table([row.cells() for row in rows])
    problems = [problem for row in rows for problem in row.problems()]
    if options.json is not None:
        report = {"cached": options.cached, "rows": [asdict(row) for row in rows], "problems": problems}
        options.json.write_text(json.dumps(report, indent=1))
    return status_of(problems)
