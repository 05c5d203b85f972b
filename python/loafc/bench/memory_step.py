"""Peak memory of the steps of one model in a process of its own, which ``bench memory`` starts for each backend.

What earlier work left behind can't be told apart within one process. Linux only: peaks are reset through ``/proc``.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

from .. import demo
from .common import silence_libraries
from .models import MODELS
from .steps import jobs

# The first step compiles, and the next ones may still change what is kept for later.
WARM_STEPS, STEPS = 3, 3

_PROCESS = Path("/proc/self")


def megabytes(status: str, name: str) -> float:
    """A figure of a process's status, in MB of 2^20 bytes."""
    for line in status.splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1024
    raise KeyError(name)


def main(before: str, backend: str, model: str, kind: str, caches: str) -> None:
    """Compiles the step, runs it, and prints a line of JSON: the peak resident memory in MB during steps, and that of
    the whole process with compiling.

    ``before`` is the status of the process before it imported loafc: the other backends don't need what that took.
    """
    silence_libraries()
    imported = 0.0 if backend == "loafc" else _status("VmRSS") - megabytes(before, "VmRSS")
    job = next(job for job in jobs(MODELS[model]) if job.train == (kind == "training"))
    step = _compiled(job, backend, caches == "cached")
    for _ in range(WARM_STEPS):
        step()
    whole = _status("VmHWM")
    (_PROCESS / "clear_refs").write_text("5")
    for _ in range(STEPS):
        step()
    peak = _status("VmHWM")
    print(json.dumps({"peak": peak - imported, "whole": max(whole, peak) - imported}))


def _compiled(job: demo.Job, backend: str, cached: bool) -> demo.Step:
    if backend == "eager":
        return demo.step_of(job, job.model)
    if cached:
        return demo.step_of(job, torch.compile(job.model, backend=backend))
    return (demo.compile_loafc if backend == "loafc" else demo.compile_inductor)(job).step


def _status(name: str) -> float:
    return megabytes((_PROCESS / "status").read_text(), name)
