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
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from .. import metrics
from . import aot, opinfo
from .agreement import disagreement
from .gradients import gradients_of
from .opinfo import Pair, Sample
from .workers import Lost, run_all

KNOWN_FAILURES = Path(__file__).with_name("known_failures.json")

# Of all pairs, this many are to pass.
LEAST_PERCENT = 98.0

# The first samples of a pair are compiled as users do it. For the others Dynamo, which takes longer than all the rest
# and would trace the same call once more, is left out.
_WITH_DYNAMO = 4

# So many are compiled as one function: most of the time does not depend on how many there are.
_TOGETHER = 32

_SAMPLES_OF_SUBSET = 1

_SECONDS_PER_PAIR = 600.0
_SECONDS_BETWEEN_LINES = 20.0


# The arguments of each call, positional and by keyword.
Calls = list[tuple[tuple[Any, ...], dict[str, Any]]]

# Compiles a function for calls, backend and all; what comes back runs them.
Compile = Callable[[Callable[..., Any], Calls], Callable[[], list[Any]]]


@dataclass(frozen=True)
class Failure:
    """A sample whose results differ, or that raises."""

    sample: str
    problem: str


@dataclass(frozen=True)
class Outcome:
    """What became of a pair."""

    operator: str
    dtype: str
    samples: int
    # Graphs that loafc compiled for it, and what they became.
    graphs: int
    kernels: int
    extern_calls: int
    seconds: float
    failures: list[Failure]
    # Gradients that eager mode has for the samples: as many were compared.
    gradients: int = 0
    # What was asked for: gradients too, and so many samples at most.
    backward: bool = False
    most: int | None = None

    @property
    def pair(self) -> Pair:
        return Pair(self.operator, self.dtype)

    @property
    def passes(self) -> bool:
        return not self.failures


@dataclass(frozen=True)
class Case:
    """A sample with what eager mode makes of it."""

    sample: Sample
    # The arguments after the call.
    after: Sample
    result: Any
    # None where it isn't differentiated.
    gradients: list[torch.Tensor] | None


def check_pair(pair: Pair, backend: str, most: int | None, gradients: bool = False) -> Outcome:
    """Runs the first ``most`` samples of a pair, or all, compiled and in eager mode; with ``gradients`` both ways."""
    start = time.perf_counter()
    warnings.simplefilter("ignore")
    metrics.reset()
    failures: list[Failure] = []
    samples: list[Sample] = []
    compared = 0
    with torch.set_grad_enabled(gradients):
        try:
            samples = list(opinfo.samples(pair, most, gradients))
        except ImportError as error:
            failures.append(Failure("", f"the database can't make its samples: {error}"))
        for first, some in _batches(samples):
            whole = partial(torch_compiled, backend=backend)
            together = whole if backend != "loafc" or (first and not gradients) else _aot_compiled
            cases = _cases(pair, some, gradients)
            compared += sum(len(case.gradients or []) for case in cases)
            found = _check(pair, cases, together)
            if found:
                # One that raises hides the others, and what Dynamo leaves to eager mode AOTAutograd may refuse.
                alone = (_cases(pair, [sample], gradients) for sample in some)
                found = [failure for case in alone for failure in _check(pair, case, whole)]
            failures += found
    return Outcome(
        operator=pair.operator,
        dtype=pair.dtype,
        samples=len(samples),
        graphs=metrics.graphs,
        kernels=metrics.kernels,
        extern_calls=metrics.extern_calls,
        seconds=time.perf_counter() - start,
        failures=failures,
        gradients=compared,
        backward=gradients,
        most=most,
    )


def _batches(samples: Sequence[Sample]) -> Iterator[tuple[bool, Sequence[Sample]]]:
    """Samples that are compiled together, with whether they are the first ones."""
    if samples:
        yield True, samples[:_WITH_DYNAMO]
    for at in range(_WITH_DYNAMO, len(samples), _TOGETHER):
        yield False, samples[at : at + _TOGETHER]


def torch_compiled(function: Callable[..., Any], calls: Calls, backend: str) -> Callable[[], list[Any]]:
    """All calls, compiled as users do it."""

    def call_all(calls: Calls) -> list[Any]:
        return [function(*args, **kwargs) for args, kwargs in calls]

    torch._dynamo.reset()
    options = {"fallback": False} if backend == "loafc" else None
    return partial(torch.compile(call_all, backend=backend, dynamic=False, options=options), calls)


def _aot_compiled(function: Callable[..., Any], calls: Calls) -> Callable[[], list[Any]]:
    """All calls, compiled without Dynamo in front."""
    leaves, structure = tree_flatten(calls)
    positions = [k for k, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def call_all(*tensors: torch.Tensor) -> list[Any]:
        filled = list(leaves)
        for k, tensor in zip(positions, tensors, strict=True):
            filled[k] = tensor
        return [function(*args, **kwargs) for args, kwargs in tree_unflatten(filled, structure)]

    return partial(aot.compiled(call_all), *[leaves[k] for k in positions])


def _cases(pair: Pair, samples: Sequence[Sample], gradients: bool) -> list[Case]:
    """The samples that eager mode takes, with what it makes of them."""
    function = opinfo.function(pair)
    torch.manual_seed(opinfo.SEED)
    return [case for sample in samples if (case := _eager(function, sample, gradients)) is not None]


def _check(pair: Pair, cases: Sequence[Case], compile_all: Compile) -> list[Failure]:
    """What differs, once those that are differentiated and those that aren't were each compiled together."""
    forward = [case for case in cases if case.gradients is None]
    both = [case for case in cases if case.gradients is not None]
    return [failure for some in (forward, both) for failure in _check_together(pair, some, compile_all)]


def _check_together(pair: Pair, cases: Sequence[Case], compile_all: Compile) -> list[Failure]:
    if not cases:
        return []
    function, gradients = opinfo.function(pair), cases[0].gradients is not None
    copies = [case.sample.copy() for case in cases]
    torch.manual_seed(opinfo.SEED)
    try:
        results = compile_all(function, [(tuple(c.args), c.kwargs) for c in copies])()
        found = _gradients(copies, results) if gradients else [None for _ in cases]
    except KeyboardInterrupt:
        raise
    # A panic in the compiler is no Exception.
    except BaseException as error:
        return [Failure(cases[0].sample.name, _first_line(error))]
    failures = []
    for case, copy, result, of_case in zip(cases, copies, results, found, strict=True):
        truth = partial(_truth, function, case.sample, gradients)
        got = (result, of_case, copy.args, copy.kwargs)
        want = (case.result, case.gradients, case.after.args, case.after.kwargs)
        problem = disagreement(got, want, truth, opinfo.has_defined_values(pair))
        if problem is not None:
            failures.append(Failure(case.sample.name, problem))
    return failures


def _eager(function: Callable[..., Any], sample: Sample, gradients: bool) -> Case | None:
    """Eager mode's result; None where it refuses the arguments, and without gradients where it has none of them."""
    after, before = sample.copy(), torch.get_rng_state()
    try:
        result = function(*after.args, **after.kwargs)
    except Exception:
        return None
    if not gradients:
        return Case(sample, after, result, None)
    try:
        return Case(sample, after, result, _gradients([after], [result])[0])
    except Exception:
        # The result is compared even so, drawn from the same random numbers.
        torch.set_rng_state(before)
        return _eager(function, sample.map(_detached), gradients=False)


def _detached(leaf: Any) -> Any:
    return leaf.detach() if isinstance(leaf, torch.Tensor) else leaf


def _gradients(samples: Sequence[Sample], results: Sequence[Any]) -> list[list[torch.Tensor]]:
    processed = [sample.differentiated(result) for sample, result in zip(samples, results, strict=True)]
    return gradients_of([(s.args, s.kwargs) for s in samples], processed)


def _first_line(error: BaseException) -> str:
    # Dynamo puts a line of its own before the backend's.
    lines = [line for line in str(error).splitlines() if line.strip() and not line.endswith("raised:")]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def _truth(function: Callable[..., Any], sample: Sample, gradients: bool) -> Any:
    """The result, its gradients and the arguments after the call, in f64."""
    wide = sample.copy().map(_widened)
    result = function(*wide.args, **wide.kwargs)
    return result, _gradients([wide], [result])[0] if gradients else None, wide.args, wide.kwargs


def _widened(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
        return leaf.detach().double().requires_grad_(leaf.requires_grad)
    if isinstance(leaf, torch.dtype) and leaf.is_floating_point:
        return torch.float64
    return leaf


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
        f"{sum(r.kernels for r in results)} kernels, {sum(r.extern_calls for r in results)} extern calls"
    )
    return 1 if new or mended or percent < LEAST_PERCENT else 0
