"""One pair of an operator and an element type: its samples in eager mode and compiled, with what differs.

The first samples are compiled as users do it, unless gradients are compared. For the others Dynamo, which takes longer
than all the rest and would trace the same call once more, is left out; where AOTAutograd refuses a call, as one whose
result's size depends on elements, they run as users do it too. Each result, gradient and argument after the call is
compared by itself, so that what is found names its sample.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from .. import metrics
from . import opinfo
from .agreement import disagreement
from .gradients import gradients_of
from .high_precision import HighPrecision
from .operator_calls import Compile, compiled_by_aot, compiled_by_dynamo, kind_of
from .opinfo import Pair, Sample

# The first samples of a pair, which are compiled with Dynamo in front where no gradients are compared.
_WITH_DYNAMO = 4

# So many are compiled as one function.
_TOGETHER = 32


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
    # Samples that PyTorch leaves to eager mode: of all that ran together, no graph reached a backend.
    uncompiled: int = 0

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
    # The random number generator's state before the call and after it, if that draws from it.
    drawn: tuple[torch.Tensor, torch.Tensor] | None


@dataclass
class _Run:
    """The cases of a pair, and what was found so far."""

    pair: Pair
    backend: Any
    failures: list[Failure]
    uncompiled: int = 0

    @property
    def by_dynamo(self) -> Compile:
        return partial(compiled_by_dynamo, backend=self.backend)


def check_pair(pair: Pair, backend: Any, most: int | None, gradients: bool = False) -> Outcome:
    """Runs the first ``most`` samples of a pair, or all, compiled and in eager mode; with ``gradients`` both ways."""
    start = time.perf_counter()
    warnings.simplefilter("ignore")
    metrics.reset()
    run = _Run(pair, backend, [])
    samples: list[Sample] = []
    cases: list[Case] = []
    with torch.set_grad_enabled(gradients):
        try:
            samples = list(opinfo.samples(pair, most, gradients))
        except ImportError as error:
            run.failures.append(Failure("", f"the database can't make its samples: {error}"))
        function = opinfo.function(pair)
        torch.manual_seed(opinfo.SEED)
        cases = [case for sample in samples if (case := _eager(function, sample, gradients)) is not None]
        _check_all(run, cases, gradients)
    return Outcome(
        operator=pair.operator,
        dtype=pair.dtype,
        samples=len(samples),
        graphs=metrics.graphs,
        kernels=metrics.kernels,
        extern_calls=metrics.extern_calls,
        seconds=time.perf_counter() - start,
        failures=run.failures,
        gradients=sum(len(case.gradients or []) for case in cases),
        backward=gradients,
        most=most,
        uncompiled=run.uncompiled,
    )


def _check_all(run: _Run, cases: Sequence[Case], gradients: bool) -> None:
    if run.backend != "loafc":
        _check_by_dynamo(run, cases)
        return
    first = 0 if gradients else _WITH_DYNAMO
    _check_by_dynamo(run, cases[:first])
    if not metrics.graphs:
        # Dynamo left them to eager mode.
        first = 0
    # Programs of as many calls each go together: they run as often as the kind with the most calls has some.
    kinds = sorted(_by_kind(cases[first:]), key=len, reverse=True)
    refused = [case for some in _batches(kinds) for case in _check_programs(run, some)]
    for some in _batches(refused):
        graphs = metrics.graphs
        _check_by_dynamo(run, some)
        run.uncompiled += len(some) if metrics.graphs == graphs else 0


def _batches(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for at in range(0, len(items), _TOGETHER):
        yield items[at : at + _TOGETHER]


def _by_kind(cases: Sequence[Case]) -> list[list[Case]]:
    """The cases that one program serves. Those that draw random numbers have one each: all are drawn in order."""
    kinds: dict[Any, list[Case]] = {}
    for number, case in enumerate(cases):
        alone = number if case.drawn is not None else None
        kind = kind_of((tuple(case.sample.args), case.sample.kwargs)), case.gradients is None, alone
        kinds.setdefault(kind, []).append(case)
    return list(kinds.values())


def _check_by_dynamo(run: _Run, cases: Sequence[Case]) -> None:
    """Compares cases as users run them: together, and by themselves where something is wrong."""
    for some in _batches(cases):
        found = _check_separately(run.pair, some, run.by_dynamo)
        if found:
            # One that raises hides the others.
            alone = [f for case in some for f in _check_separately(run.pair, [case], run.by_dynamo)]
            found = alone or [Failure(f.sample, f"among others, {f.problem}") for f in found]
        run.failures += found


def _check_separately(pair: Pair, cases: Sequence[Case], compile_all: Compile) -> list[Failure]:
    """What differs, once those that are differentiated and those that aren't were each compiled together."""
    forward = [case for case in cases if case.gradients is None]
    both = [case for case in cases if case.gradients is not None]
    failures = []
    for some in filter(None, (forward, both)):
        try:
            failures += _compare(pair, [[case] for case in some], compile_all)
        except KeyboardInterrupt:
            raise
        # A panic in the compiler is no Exception.
        except BaseException as error:
            failures.append(Failure(some[0].sample.name, _first_line(error)))
    return failures


def _check_programs(run: _Run, kinds: Sequence[Sequence[Case]]) -> list[Case]:
    """Compares cases that share programs; returns those that can't be compiled without Dynamo."""
    forward = [cases for cases in kinds if cases[0].gradients is None]
    both = [cases for cases in kinds if cases[0].gradients is not None]
    return [case for some in filter(None, (forward, both)) for case in _check_halves(run, some)]


def _check_halves(run: _Run, kinds: Sequence[Sequence[Case]]) -> list[Case]:
    try:
        run.failures += _compare(run.pair, kinds, compiled_by_aot)
        return []
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if len(kinds) == 1:
            return list(kinds[0])
        half = len(kinds) // 2
        refused = [*_check_halves(run, kinds[:half]), *_check_halves(run, kinds[half:])]
        if not refused:
            # No part of it raises by itself: it is nothing that PyTorch refuses.
            run.failures.append(Failure(kinds[0][0].sample.name, f"among others, {_first_line(error)}"))
        return refused


def _compare(pair: Pair, kinds: Sequence[Sequence[Case]], compile_all: Compile) -> list[Failure]:
    """Compiles one case of each kind in one program, and runs it until each case had its turn."""
    function, gradients = opinfo.function(pair), kinds[0][0].gradients is not None
    run = None
    failures = []
    for turn in range(max(map(len, kinds))):
        cases = _drawn_in_order(function, [cases[min(turn, len(cases) - 1)] for cases in kinds])
        copies = [case.sample.copy() for case in cases]
        calls = [(tuple(copy.args), copy.kwargs) for copy in copies]
        run = run or compile_all(function, calls)
        torch.manual_seed(opinfo.SEED)
        results = run(calls)
        found = _gradients(copies, results) if gradients else [None for _ in cases]
        for of_kind, case, *got in zip(kinds, cases, copies, results, found, strict=True):
            problem = _problem(pair, case, *got) if turn < len(of_kind) else None
            if problem is not None:
                failures.append(Failure(case.sample.name, problem))
    return failures


def _drawn_in_order(function: Callable[..., Any], cases: Sequence[Case]) -> list[Case]:
    """The cases as eager mode has them when it draws their random numbers one after the other."""
    torch.manual_seed(opinfo.SEED)
    redrawn = []
    for case in cases:
        if case.drawn is not None:
            again = _eager(function, case.sample, case.gradients is not None)
            assert again is not None, "eager mode takes it one time and refuses it another"
            case = again
        redrawn.append(case)
    return redrawn


def _problem(pair: Pair, case: Case, copy: Sample, result: Any, gradients: list[torch.Tensor] | None) -> str | None:
    truth = partial(_truth, opinfo.function(pair), case, opinfo.DTYPES[pair.dtype])
    got = (result, gradients, copy.args, copy.kwargs)
    want = (case.result, case.gradients, case.after.args, case.after.kwargs)
    return disagreement(got, want, truth, opinfo.has_defined_values(pair))


def _eager(function: Callable[..., Any], sample: Sample, gradients: bool) -> Case | None:
    """Eager mode's result; None where it refuses the arguments, and without gradients where it has none of them."""
    after, before = sample.copy(), torch.get_rng_state()
    try:
        result = function(*after.args, **after.kwargs)
        drawn = None if torch.equal(before, state := torch.get_rng_state()) else (before, state)
    except Exception:
        return None
    if not gradients:
        return Case(sample, after, result, None, drawn)
    try:
        return Case(sample, after, result, _gradients([after], [result])[0], drawn)
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


def _truth(function: Callable[..., Any], case: Case, dtype: torch.dtype) -> Any:
    """The result, its gradients and the arguments after the call, in f64."""
    wide = case.sample.copy().map(_widened)
    if case.drawn is None:
        result = function(*wide.args, **wide.kwargs)
    else:
        before, after = case.drawn
        torch.set_rng_state(before)
        with HighPrecision(dtype):
            result = function(*wide.args, **wide.kwargs)
        if not torch.equal(torch.get_rng_state(), after):
            raise ValueError("other types draw other numbers")
    gradients = None if case.gradients is None else _gradients([wide], [result])[0]
    return result, gradients, wide.args, wide.kwargs


def _widened(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
        return leaf.detach().double().requires_grad_(leaf.requires_grad)
    if isinstance(leaf, torch.dtype) and leaf.is_floating_point:
        return torch.float64
    return leaf
