"""``python -m loafc.check operators``: PyTorch's own database of operators through ``torch.compile(backend="loafc")``.

Every pair of an operator and an element type that the database has for the CPU runs in eager mode and compiled, with
all of its sample arguments, each also laid out with gaps. A pair passes when all results, and all arguments after
the call, agree; with ``--gradients``, when the gradients of the pairs that can be differentiated do as well. Pairs that
don't are listed in ``known_failures.json`` with the reason, for each kind of run; status 1 tells that a pair fails that
is not listed, or that a listed one passes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from . import opinfo
from .operator_run import Failure, Outcome, check_pair
from .opinfo import Pair
from .workers import Lost, run_all

KNOWN_FAILURES = Path(__file__).with_name("known_failures.json")

# Of all pairs, this many are to pass.
LEAST_PERCENT = 98.0

_SAMPLES_OF_SUBSET = 1

_SECONDS_PER_PAIR = 600.0
_SECONDS_BETWEEN_LINES = 20.0


def outcomes(
    pairs: Sequence[Pair], backend: str, most: int | None, processes: int, gradients: bool = False
) -> Iterator[Outcome]:
    """What becomes of each pair, in the order in which they are done; progress goes to stderr."""
    work = partial(check_pair, backend=backend, most=most, gradients=gradients)
    start = last = time.monotonic()
    failing = 0
    for done, (pair, result) in enumerate(run_all(pairs, work, processes, _SECONDS_PER_PAIR), 1):
        if isinstance(result, Lost):
            lost = [Failure("", result.reason)]
            result = Outcome(pair.operator, pair.dtype, 0, 0, 0, 0, 0.0, lost, backward=gradients, most=most)
        failing += not result.passes
        yield result
        if time.monotonic() - last > _SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            print(
                f"{done} of {len(pairs)} pairs, {failing} fail, {last - start:.0f} s (last: {pair})",
                file=sys.stderr,
                flush=True,
            )


def main(args: list[str]) -> int:
    """Checks the pairs that the arguments select; returns the exit status."""
    options = _parse(args)
    # Results don't depend on the number of threads, and forked processes can't use a team that their parent started.
    torch.set_num_threads(1)
    first, count = options.shard
    pairs = [p for p in _subset() if _selected(p, options)] if options.subset else []
    pairs = pairs or [p for p in opinfo.pairs() if _selected(p, options)]
    pairs = pairs[first::count]
    if not pairs:
        print("no pair is selected: --list prints the names of all", file=sys.stderr)
        return 2
    if options.list:
        print("\n".join(map(str, pairs)))
        return 0
    samples = _SAMPLES_OF_SUBSET if options.subset and options.samples is None else options.samples
    done = _finished(options.resume, options.gradients, samples) if options.resume else {}
    results = [done[p] for p in pairs if p in done]
    run = partial(outcomes, most=samples, processes=options.processes, gradients=options.gradients)
    with open(options.json or os.devnull, "w") as lines:
        for outcome in results:
            print(json.dumps(asdict(outcome)), file=lines)
        for outcome in run([p for p in pairs if p not in done], options.backend):
            results.append(outcome)
            print(json.dumps(asdict(outcome)), file=lines, flush=True)
            if not outcome.passes:
                print(_line(outcome), flush=True)
    failing = [r.pair for r in results if not r.passes]
    if options.compare and failing:
        print(f"the failing pairs with the backend {options.compare}:")
        for outcome in run(failing, options.compare):
            print(f"{outcome.pair} passes" if outcome.passes else _line(outcome), flush=True)
    return _conclude(results, _known_failures(options.gradients), complete=samples is None)


def _subset() -> list[Pair]:
    """Each operator once, with the element types that it supports by turns."""
    by_operator: dict[str, list[Pair]] = {}
    for pair in opinfo.pairs():
        by_operator.setdefault(pair.operator, []).append(pair)
    return [pairs[turn % len(pairs)] for turn, pairs in enumerate(by_operator.values())]


def _parse(args: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m loafc.check operators", description=__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="this operator (again for more)")
    parser.add_argument("--dtype", action="append", default=[], choices=[*opinfo.DTYPES], help="this element type")
    parser.add_argument("--shard", type=_shard, default=(0, 1), metavar="I/N", help="every N-th pair from the I-th")
    parser.add_argument("--subset", action="store_true", help="each operator with one element type and few samples")
    parser.add_argument("--samples", type=int, help="so many samples of each pair (default: all)")
    parser.add_argument("--gradients", action="store_true", help="compare gradients too, where there are any")
    parser.add_argument("--backend", default="loafc", help="the backend of torch.compile (default: loafc)")
    parser.add_argument("--compare", metavar="BACKEND", help="run the pairs that fail with this backend too")
    parser.add_argument("--processes", type=int, default=2, help="so many at a time (default: 2)")
    parser.add_argument("--json", type=Path, help="write each pair's outcome to this file, one a line")
    parser.add_argument("--resume", type=Path, help="take over the outcomes of such a file")
    parser.add_argument("--list", action="store_true", help="list the pairs and do nothing")
    return parser.parse_args(args)


def _shard(text: str) -> tuple[int, int]:
    first, _, count = text.partition("/")
    return int(first), int(count)


def _selected(pair: Pair, options: argparse.Namespace) -> bool:
    return (
        (not options.only or pair.operator in options.only)
        and (not options.dtype or pair.dtype in options.dtype)
        and (not options.gradients or opinfo.has_gradients(pair))
    )


def _finished(path: Path, gradients: bool, most: int | None) -> dict[Pair, Outcome]:
    """The outcomes in a file that a run with these settings would have as well."""
    finished, others = {}, 0
    for line in path.read_text().splitlines():
        fields = json.loads(line)
        fields["failures"] = [Failure(**f) for f in fields["failures"]]
        outcome = Outcome(**fields)
        if (outcome.backward, outcome.most) == (gradients, most):
            finished[outcome.pair] = outcome
        else:
            others += 1
    if others:
        print(f"{others} outcomes in {path} are of runs with other settings, and run again", file=sys.stderr)
    return finished


def _known_failures(gradients: bool) -> dict[str, Any]:
    return json.loads(KNOWN_FAILURES.read_text())["gradients" if gradients else "forward"]


def _line(outcome: Outcome) -> str:
    first = outcome.failures[0]
    return f"{outcome.pair}: {len(outcome.failures)} of {outcome.samples} fail; {first.sample}: {first.problem[:300]}"


def _conclude(results: Sequence[Outcome], known: Mapping[str, Any], complete: bool) -> int:
    """Prints what was counted; the exit status. A listed pair may pass where not all samples ran."""
    new = [r for r in results if not r.passes and str(r.pair) not in known]
    mended = [r for r in results if complete and r.passes and str(r.pair) in known]
    for outcome in new:
        print(f"not listed in {KNOWN_FAILURES.name}: {outcome.pair}")
    for outcome in mended:
        print(f"listed in {KNOWN_FAILURES.name}, but passes: {outcome.pair}")
    passing = sum(r.passes for r in results)
    percent = 100 * passing / len(results)
    print(
        f"{passing} of {len(results)} pairs pass, {percent:.2f} % (bar: {LEAST_PERCENT} %); "
        f"{sum(r.samples for r in results)} samples, {sum(r.gradients for r in results)} gradients, "
        f"{sum(r.graphs for r in results)} graphs, "
        f"{sum(r.kernels for r in results)} kernels, {sum(r.extern_calls for r in results)} extern calls; "
        f"PyTorch leaves {sum(r.uncompiled for r in results)} samples to eager mode"
    )
    return 1 if new or mended or percent < LEAST_PERCENT else 0
