"""``python -m loafc.check.model_run``: one model of a zoo in eager mode and compiled, in a process of its own.

A zoo is a Python file with ``ZOO[name] = (suite, builder)``; a builder returns a dictionary with ``eval``, and
``train`` or None, each ``(module or function, arguments, keyword arguments)``. What is compiled is called twice, so
that what is kept between calls is checked as well. What differs by more than eager mode does from a run in float64 is
judged by how far eager mode moves when its weights do by a rounding (``sensitivity.py``). Writes its findings to a file
as JSON, for what models print is not under our control.
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import json
import random
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from .. import metrics
from ..errors import LoafcWarning
from . import sensitivity
from .high_precision import HighPrecision
from .model_values import Difference, Values, differences

SEED = 1234
CALLS = 2
KINDS = ("inference", "training")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64}

# How many differences are told for a model.
_TOLD = 5

# How often eager mode runs again where it differs, to tell whether it gives the same numbers each time.
_RERUNS = 2

# What torch.compile takes as a backend; None is eager mode.
Backend = str | Callable[..., Any] | None


class NotThere(Exception):
    """A model has no such part: it can't be trained, or holds no module that could be converted."""


@dataclass(frozen=True)
class Case:
    """One part of a model, and in which type it computes."""

    builder: Callable[[], dict[str, Any]]
    kind: str
    dtype: torch.dtype

    def build(self) -> tuple[Any, list[Any], dict[str, Any]]:
        """The same module or function and arguments at each call."""
        _seed()
        part = self.builder()["eval" if self.kind == "inference" else "train"]
        if part is None:
            raise NotThere("it can't be trained")
        target, args, kwargs = part
        if isinstance(target, torch.nn.Module):
            target.train(self.kind == "training")
        if self.dtype is not torch.float32:
            if not isinstance(target, torch.nn.Module):
                raise NotThere("it is no module")
            target, args, kwargs = _converted(target, args, kwargs, self.dtype)
        return target, list(args), dict(kwargs)


def load_zoo(path: Path) -> dict[str, tuple[str, Callable[[], dict[str, Any]]]]:
    """The models of a file."""
    spec = importlib.util.spec_from_file_location("loafc_zoo", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.ZOO


def run(case: Case, backend: Backend, high_precision: bool = False, moved_by: int | None = None) -> Values:
    """What the calls of a case leave behind, in eager mode without a backend. With a seed in ``moved_by``, its weights
    are moved by a rounding before."""
    target, args, kwargs = case.build()
    if moved_by is not None:
        sensitivity.move(_weights_of(target, args, kwargs), moved_by)
    with ExitStack() as stack:
        if high_precision:
            if isinstance(target, torch.nn.Module):
                target.double()
            for tensor in _tensors_of(target, args, kwargs).values():
                if tensor.is_floating_point() and tensor.dtype is not torch.float64:
                    tensor.data = tensor.data.double()
            before = torch.get_default_dtype()
            torch.set_default_dtype(torch.float64)
            stack.callback(torch.set_default_dtype, before)
            stack.enter_context(HighPrecision(case.dtype))
        call = target if backend is None else torch.compile(target, backend=backend)
        found = Values()
        for k in range(CALLS):
            _seed()
            if case.kind == "training":
                _train(call, target, args, kwargs, f"call {k}", found)
            else:
                with torch.no_grad():
                    _note(found.values, f"call {k} result", call(*args, **kwargs))
    for name, tensor in _tensors_of(target, args, kwargs).items():
        found.values[name] = tensor.detach().clone()
    return found


def _train(call: Any, target: Any, args: Any, kwargs: Any, name: str, found: Values) -> None:
    loss = call(*args, **kwargs)
    loss.backward()
    _note(found.values, f"{name} loss", loss)
    for parameter_name, parameter in target.named_parameters():
        if parameter.grad is not None:
            found.gradients[f"{name} {parameter_name}"] = parameter.grad.detach().clone()
    target.zero_grad(set_to_none=True)


def _note(values: dict[str, torch.Tensor], name: str, result: Any) -> None:
    tensors = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor)]
    for k, tensor in enumerate(tensors):
        values[f"{name} {k}"] = tensor.detach().clone()


def _tensors_of(target: Any, args: Any, kwargs: Any) -> dict[str, torch.Tensor]:
    """Every tensor that a call may change: of the module, of what a function closes over, and the arguments."""
    found: dict[str, torch.Tensor] = {}
    for owner_name, owner in _owners(target):
        if isinstance(owner, torch.nn.Module):
            tensors: Any = [*owner.named_parameters(), *owner.named_buffers()]
        elif isinstance(owner, torch.optim.Optimizer):
            tensors = [(f"{k}", t) for k, t in enumerate(_of_optimizer(owner))]
        else:
            tensors = [(f"{k}", t) for k, t in enumerate(tree_leaves(owner)) if isinstance(t, torch.Tensor)]
        found.update({f"{owner_name} {name}".strip(): t for name, t in tensors})
    leaves = [t for t in tree_leaves([args, kwargs]) if isinstance(t, torch.Tensor)]
    found.update({f"argument {k}": t for k, t in enumerate(leaves)})
    return found


def _weights_of(target: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """The parameters of a module; without any, all tensors that are floating point numbers."""
    if isinstance(target, torch.nn.Module) and (parameters := list(target.parameters())):
        return parameters
    # Dictionaries keep the order, and one tensor is moved once however many names it has.
    return list({id(t): t for t in _tensors_of(target, args, kwargs).values()}.values())


def _owners(target: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(target, torch.nn.Module):
        yield "", target
    elif inspect.isfunction(target):
        yield from inspect.getclosurevars(target).nonlocals.items()


def _of_optimizer(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    state = [t for p in parameters for t in optimizer.state[p].values() if isinstance(t, torch.Tensor)]
    return parameters + state


def _converted(target: torch.nn.Module, args: Any, kwargs: Any, dtype: torch.dtype) -> tuple[Any, Any, Any]:
    def convert(value: Any) -> Any:
        is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
        return value.to(dtype) if is_float else value

    return target.to(dtype), tree_map(convert, args), tree_map(convert, kwargs)


def _seed() -> None:
    random.seed(SEED)
    torch.manual_seed(SEED)


def examine(case: Case, backend: Backend, against: Backend = None) -> dict[str, Any]:
    """Runs a case both ways, in eager mode or with the backend ``against`` and with ``backend``, and tells how they
    compare."""
    start = time.perf_counter()
    try:
        want = run(case, against)
    except NotThere as reason:
        return {"status": "not there", "detail": str(reason)}
    except Exception as error:
        return {"status": "eager fails", "detail": _error_text(error)}
    torch._dynamo.reset()
    metrics.reset()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            got = run(case, backend)
        except Exception as error:
            return {"status": "error", "detail": _error_text(error), **_counts(start)}
    counts = _counts(start)
    fallbacks = [str(w.message) for w in caught if issubclass(w.category, LoafcWarning)]
    found, notes = differences(got, want), []
    if not all(d.fine for d in found):
        try:
            found = differences(got, want, run(case, None, high_precision=True))
        except Exception as error:
            notes.append(f"no run in float64: {_error_text(error)}")
    wrong = sorted((d for d in found if not d.fine), key=lambda d: -d.severity)
    worst = max(found, key=lambda d: d.severity, default=None)
    status = "fallback" if counts["fallbacks"] else "different" if wrong else "same"
    moves: dict[str, Any] = {}
    if status == "different" and (varying := _varying(case, against, want)):
        notes.append(f"eager mode gives other values in another run: {', '.join(varying[:_TOLD])}")
        wrong = [d for d in wrong if d.tensor not in varying]
        status = "different" if wrong else "eager varies"
    if status == "different" and all(d.open for d in wrong):
        moves = _judged(case, backend, against, [d.tensor for d in wrong], got, want)
        status = "different" if moves["beyond"] else "rounding"
    return {
        "status": status,
        "detail": "; ".join([*fallbacks[:2], *map(text_of, wrong[:_TOLD]), *notes]),
        "different": len(wrong),
        "compared": len(found),
        "worst": worst and worst.to_json(),
        "severity": worst.severity if worst else 0.0,
        "moves": moves or None,
        **counts,
    }


def _varying(case: Case, against: Backend, want: Values) -> list[str]:
    """Tensors that are other ones each time the program itself runs, because it reads memory that it never wrote to."""
    found: set[str] = set()
    for _ in range(_RERUNS):
        torch._dynamo.reset()
        found |= {d.tensor for d in differences(run(case, against), want) if not d.fine}
    return sorted(found)


def _judged(
    case: Case, backend: Backend, against: Backend, names: list[str], got: Values, want: Values
) -> dict[str, Any]:
    """How the named tensors compare beside how far they move when the weights do by a rounding, and where they are
    further apart, beside the results in float64."""
    tolerances = {n: t.relative for values, t in want.groups() for n in values}
    names = _distinct(names, {**got.values, **got.gradients}, {**want.values, **want.gradients})

    def results(program: Backend, seed: int, high_precision: bool = False) -> dict[str, torch.Tensor]:
        torch._dynamo.reset()
        found = run(case, program, high_precision, moved_by=seed)
        # The others are as they should be: nothing is kept of them.
        return {n: t for values, _ in found.groups() for n, t in values.items() if n in names}

    points = sensitivity.points(lambda second, seed: results(backend if second else against, seed))
    found = sensitivity.judge(points, {n: tolerances[n] for n in names})
    open_names = [f.tensor for f in found if not f.fine]
    if open_names:
        try:
            exact = sensitivity.beside_truth(points, lambda seed: results(None, seed, high_precision=True))
            again = sensitivity.judge(exact, {n: tolerances[n] for n in open_names})
        except Exception:
            # Which operator has no form in float64 is told with the differences.
            again = []
        fine = {f.tensor: f for f in again if f.fine}
        found = [fine.get(f.tensor, f) for f in found]
    beyond = sorted((f for f in found if not f.fine), key=lambda f: -f.severity)
    return {
        "beyond": [_text_of_finding(f) for f in beyond[:_TOLD]],
        "different": len(beyond),
        "severity": max(f.severity for f in found),
        "largest": max(f.moved for f in found),
    }


def _distinct(names: list[str], got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> list[str]:
    """One name of those with the same numbers: a second call often repeats the first one's."""
    kept: list[str] = []
    for name in sorted(names):
        twins = (k for k in kept if torch.equal(got[k], got[name]) and torch.equal(want[k], want[name]))
        if next(twins, None) is None:
            kept.append(name)
    return kept


def _text_of_finding(finding: sensitivity.Finding) -> str:
    return f"{finding.tensor}: {finding.measure} {finding.size:.3g}, allowed {finding.allowed:.3g}"


def text_of(difference: Difference) -> str:
    """One line about a difference."""
    if difference.note:
        return f"{difference.tensor}: {difference.note}"
    text = f"{difference.tensor}: {difference.measure} {difference.error:.3g}, allowed {difference.allowed:.3g}"
    if difference.own is not None:
        text += f" (against float64: {difference.own:.3g}, eager mode {difference.eagers:.3g})"
    return f"{text}, scale {difference.scale:.3g}"


def _counts(start: float) -> dict[str, Any]:
    names = ("graphs", "kernels", "extern_calls", "fallbacks")
    counts: dict[str, Any] = {name: getattr(metrics, name) for name in names}
    return {
        **counts,
        "compile_seconds": dict(metrics.compile_seconds),
        "seconds": time.perf_counter() - start,
    }


def _error_text(error: BaseException) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1:]
    where = "".join(f" ({Path(f.filename).name}:{f.lineno})" for f in last)
    return f"{type(error).__name__}: {str(error).strip()[:600]}{where}"


def main(args: list[str]) -> int:
    """Examines the parts of one model; always returns 0 when it could write its findings."""
    parser = argparse.ArgumentParser(prog="loafc.check.model_run", description=__doc__.split("\n")[0])
    parser.add_argument("zoo", type=Path)
    parser.add_argument("name")
    parser.add_argument("result", type=Path)
    parser.add_argument("--kind", action="append", choices=KINDS, required=True)
    parser.add_argument("--dtype", choices=DTYPES, default="fp32")
    parser.add_argument("--backend", default="loafc")
    parser.add_argument("--against", help="compare with this backend instead of eager mode")
    options = parser.parse_args(args)
    _, builder = load_zoo(options.zoo)[options.name]
    findings = {}
    for kind in options.kind:
        torch._dynamo.reset()
        findings[kind] = examine(Case(builder, kind, DTYPES[options.dtype]), options.backend, options.against)
        # At once: a crash in the second part must not lose the first one.
        options.result.write_text(json.dumps(findings))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
