"""``make demo``: two small language models, inference and a training step, in eager mode and compiled by loafc.

Prints for each what loafc made of it, how long its own part of compiling took, the largest error against eager
mode and the time as a ratio to eager mode; with ``--inductor``, TorchInductor's beside them. Ends with status 1 when an
error is larger than allowed or a graph fell back to eager mode.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

# The models are built from configurations: nothing is to be fetched.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

from . import metrics
from .table import print_table

SEED = 1234


# Runs once and returns the logits, or the loss and all gradients.
Step = Callable[[], list[torch.Tensor]]


@dataclass(frozen=True)
class Tolerance:
    """Largest error: ``absolute + relative * scale``, where the scale of a tensor is its largest magnitude."""

    relative: float
    absolute: float


OUTPUTS = Tolerance(1e-4, 1e-5)
GRADIENTS = Tolerance(1e-3, 1e-5)


@dataclass(frozen=True)
class Size:
    """How large the models are and how long is measured."""

    layers: int
    hidden: int
    heads: int
    vocabulary: int
    batch: int
    length: int
    seconds: float


FULL = Size(layers=4, hidden=256, heads=8, vocabulary=2048, batch=4, length=128, seconds=6.0)
SHORT = Size(layers=2, hidden=64, heads=4, vocabulary=512, batch=2, length=32, seconds=1.0)


@dataclass(frozen=True)
class Job:
    """A model with its batch, and whether it is trained."""

    name: str
    model: torch.nn.Module
    batch: dict[str, torch.Tensor]
    train: bool


@dataclass
class Compiled:
    """A job compiled by one backend."""

    step: Step
    own_seconds: float
    wall_seconds: float
    results: list[torch.Tensor]
    phases: dict[str, float] = field(default_factory=dict)


def jobs(size: Size) -> Iterator[Job]:
    """The four jobs, each with a fresh model."""
    for name, build in (("BERT", bert), ("GPT-2", gpt2)):
        for train in (False, True):
            torch.manual_seed(SEED)
            model = build(size)
            ids = torch.randint(5, size.vocabulary, (size.batch, size.length))
            mask = torch.ones_like(ids)
            mask[0, size.length * 3 // 4 :] = 0
            batch = {"input_ids": ids, "attention_mask": mask}
            if train:
                batch["labels"] = ids
            yield Job(f"{name} {'training step' if train else 'inference'}", model.train(train), batch, train)


def bert(size: Size) -> torch.nn.Module:
    """A BERT-like masked language model with random weights."""
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(
        BertConfig(
            vocab_size=size.vocabulary,
            hidden_size=size.hidden,
            num_hidden_layers=size.layers,
            num_attention_heads=size.heads,
            intermediate_size=4 * size.hidden,
            max_position_embeddings=size.length,
        )
    )


def gpt2(size: Size) -> torch.nn.Module:
    """A GPT-2-like language model with random weights."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=size.vocabulary,
            n_embd=size.hidden,
            n_layer=size.layers,
            n_head=size.heads,
            n_positions=size.length,
            bos_token_id=1,
            eos_token_id=2,
            use_cache=False,
        )
    )


def step_of(job: Job, call: Callable[..., Any]) -> Step:
    """One step of a job: the logits, or the loss and all gradients."""

    def infer() -> list[torch.Tensor]:
        with torch.no_grad():
            return [call(**job.batch).logits]

    def train() -> list[torch.Tensor]:
        # The same seed before each step: dropout then drops the same elements.
        torch.manual_seed(SEED)
        job.model.zero_grad(set_to_none=True)
        loss = call(**job.batch).loss
        loss.backward()
        return [loss.detach(), *(p.grad for p in job.model.parameters() if p.grad is not None)]

    return train if job.train else infer


def compile_loafc(job: Job) -> Compiled:
    """Compiles with loafc and runs once."""
    metrics.reset()
    step, wall, results = _first_run(job, "loafc")
    seconds = metrics.compile_seconds
    return Compiled(step, seconds.total, wall, results, dict(seconds))


def compile_inductor(job: Job) -> Compiled:
    """Compiles with TorchInductor and runs once; its own part is what its entry point takes.

    Without its caches: what it compiled on another day would hide what compiling costs.
    """
    from torch._dynamo.utils import compilation_time_metrics
    from torch._inductor import config

    compilation_time_metrics.clear()
    with config.patch(force_disable_caches=True):
        step, wall, results = _first_run(job, "inductor")
    own = sum(compilation_time_metrics.get("compile_fx_inner", []))
    return Compiled(step, own, wall, results)


def _first_run(job: Job, backend: str) -> tuple[Step, float, list[torch.Tensor]]:
    # What an earlier run of the demo compiled would hide what compiling costs.
    options = {"cache_dir": None} if backend == "loafc" else None
    step = step_of(job, torch.compile(job.model, backend=backend, options=options))
    start = time.perf_counter()
    results = step()
    return step, time.perf_counter() - start, results


def largest_error(
    got: list[torch.Tensor], want: list[torch.Tensor], job: Job, strictness: float = 1.0
) -> tuple[float, bool]:
    """The largest error relative to its tensor's scale, and whether every error is within ``strictness`` times its
    tolerance."""
    if len(got) != len(want):
        return float("inf"), False
    worst, within = 0.0, True
    for k, (g, w) in enumerate(zip(got, want, strict=True)):
        tolerance = tolerance_of(job, k)
        scale = w.abs().max().item()
        error = (g - w).abs().max().item()
        # A NaN is no number that could be within anything.
        within = within and error <= strictness * (tolerance.absolute + tolerance.relative * scale)
        worst = max(worst, error / max(scale, tolerance.absolute)) if error == error else float("nan")
    return worst, within


def tolerance_of(job: Job, position: int) -> Tolerance:
    """What the result at this position of a step is allowed."""
    return GRADIENTS if job.train and position > 0 else OUTPUTS


def medians(steps: list[Callable[[], Any]], seconds: float) -> list[float]:
    """Median seconds of each step, measured in turns so that all see the same machine."""
    times: list[list[float]] = [[] for _ in steps]
    end = time.perf_counter() + seconds
    while len(times[0]) < 5 or (time.perf_counter() < end and len(times[0]) < 200):
        for step, own in zip(steps, times, strict=True):
            start = time.perf_counter()
            step()
            own.append(time.perf_counter() - start)
    return [statistics.median(t) for t in times]


def run_job(job: Job, size: Size, inductor: bool) -> tuple[dict[str, Any], list[str]]:
    """Measures one job; returns the row of the table and what is wrong."""
    # Once a job and not between the backends: each keeps its compiled code beside the other's.
    torch._dynamo.reset()
    eager = step_of(job, job.model)
    want = eager()
    ours = compile_loafc(job)
    error, within = largest_error(ours.results, want, job)
    row: dict[str, Any] = {
        "job": job.name,
        "kernels": metrics.kernels,
        "extern": metrics.extern_calls,
        "reord.": metrics.loop_reorderings,
        "MiB": f"{metrics.bytes_accessed / 2**20:.1f}",
        "compile s": f"{ours.own_seconds:.3f}",
        "error": f"{error:.1e}",
        "_phases": ours.phases,
        "_own": ours.own_seconds,
    }
    problems = []
    if not within:
        problems.append(f"{job.name}: the error {error:.1e} is larger than allowed")
    if metrics.fallbacks:
        problems.append(f"{job.name}: {metrics.fallbacks} graphs fell back to eager mode")
    steps = [eager, ours.step]
    theirs = None
    if inductor:
        theirs = compile_inductor(job)
        steps.append(theirs.step)
        row["_inductor"] = theirs.own_seconds
    with _quiet():
        seconds = medians(steps, size.seconds)
    row["time/eager"] = f"{seconds[1] / seconds[0]:.2f}"
    if theirs is not None:
        row["inductor s"] = f"{theirs.own_seconds:.2f}"
        row["ind. time/eager"] = f"{seconds[2] / seconds[0]:.2f}"
    return row, problems


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def print_summary(rows: list[dict[str, Any]]) -> None:
    """Compile seconds by phase, and their ratio to TorchInductor's where that was measured."""
    phases = {p: sum(r["_phases"].get(p, 0.0) for r in rows) for p in metrics.PHASES}
    own = sum(r["_own"] for r in rows)
    print(f"\nloafc's part of compiling: {own:.3f} s (" + ", ".join(f"{p} {s:.3f}" for p, s in phases.items()) + ")")
    theirs = sum(r.get("_inductor", 0.0) for r in rows)
    if theirs and own:
        print(f"TorchInductor's part of compiling: {theirs:.1f} s, {theirs / own:.0f} times loafc's")


def main() -> int:
    """Runs the demo; returns the exit status."""
    parser = argparse.ArgumentParser(prog="loafc.demo", description=__doc__.split("\n")[0])
    parser.add_argument("--short", action="store_true", help="smaller models, less measuring: for CI")
    parser.add_argument("--inductor", action="store_true", help="TorchInductor beside loafc (minutes)")
    args = parser.parse_args()
    size = SHORT if args.short else FULL
    warnings.filterwarnings("ignore", message=".*(?:pin_memory|torch.distributed|lr_scheduler).*")

    print(f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads, {size.layers} layers of {size.hidden}")
    rows, problems = [], []
    _warm_up()
    for job in jobs(size):
        print(f"  {job.name} ...", flush=True)
        row, wrong = run_job(job, size, args.inductor)
        rows.append(row)
        problems += wrong
    print()
    print_table(rows)
    print_summary(rows)
    for problem in problems:
        print(f"FAILED: {problem}", file=sys.stderr)
    if not problems:
        print("All results agree with eager mode.")
    return 1 if problems else 0


def _warm_up() -> None:
    """Pays what a process pays once, such as importing the decomposition table, before anything is measured."""
    torch.compile(lambda x: x + 1, backend="loafc")(torch.ones(8))


if __name__ == "__main__":
    sys.exit(main())
