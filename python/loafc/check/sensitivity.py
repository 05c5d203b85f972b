"""Whether two programs differ by rounding only, judged by how far the first moves when its weights move by a rounding.

A rounding can decide: a rectifier opens, a router takes another expert, and a whole term of a gradient comes or goes.
Such a difference may be of any size, so that no tolerance tells it from a mistake. Both programs therefore run from
several sets of weights that are a rounding apart. What rounding decides falls otherwise in each of them, and as often
between two runs of the first program; a mistake is there in all of them. So what counts is the error that is there
whatever the set, element by element, beside how far the first program itself moves from one set to another.

An error that is there whatever the set may still be the first program's own, where it rounds a constant for example.
That is seen beside the results in float64: the second program is then no further from them than the first.

A mistake that comes and goes with the weights by itself is not found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from .measures import Unlike, error, measures

# Sets of weights. In all of them would rounding have to decide the same way to look like a mistake.
POINTS = 5

Results = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Point:
    """What both programs gave from the same weights, and the first one from weights a rounding away."""

    got: Results
    want: Results
    elsewhere: Results


@dataclass(frozen=True)
class Finding:
    """The measure of a tensor by which the programs are furthest apart, beside what is allowed.

    ``moved`` is how far the first program moves by this measure, relative to the tensor's scale.
    """

    tensor: str
    measure: str
    size: float
    allowed: float
    moved: float = 0.0

    @property
    def fine(self) -> bool:
        """Whether rounding explains it."""
        return self.size <= self.allowed

    @property
    def severity(self) -> float:
        """As a multiple of what is allowed."""
        if not self.size:
            return 0.0
        return self.size / self.allowed if self.allowed else float("inf")


def move(tensors: Iterable[torch.Tensor], seed: int) -> None:
    """Moves each element in place to the next number above or below it or leaves it, by chance.

    Zeros stay, for what is masked is to stay so, and so do infinite numbers and the largest ones, which stand for them.
    """
    generator = torch.Generator().manual_seed(seed)
    for tensor in tensors:
        if not tensor.is_floating_point():
            continue
        data = tensor.detach()
        way = torch.randint(-1, 2, data.shape, generator=generator)
        way = torch.where((data == 0) | ~(data.abs() < torch.finfo(data.dtype).max / 2), 0, way)
        target = torch.where(way > 0, float("inf"), float("-inf")).to(data.dtype)
        data.copy_(torch.where(way == 0, data, data.nextafter(target)))


def points(run: Callable[[bool, int], Results], count: int = POINTS) -> list[Point]:
    """Runs both programs. ``run`` takes whether to run the second one, and the seed to move the weights with."""
    return [Point(run(True, seed), run(False, seed), run(False, seed + count)) for seed in range(1, count + 1)]


def beside_truth(found: Sequence[Point], truth: Callable[[int], Results]) -> list[Point]:
    """The same points, with the results in float64 in the place of the first program, and that in the place of what is
    elsewhere. ``truth`` takes the seed to move the weights with."""
    beside = []
    for seed, point in enumerate(found, 1):
        exact = {name: t.to(point.want[name].dtype) for name, t in truth(seed).items() if name in point.want}
        beside.append(Point(point.got, exact, point.want))
    return beside


def judge(found: Sequence[Point], tolerances: Mapping[str, float]) -> list[Finding]:
    """One finding for each tensor in ``tolerances``, which tell what is allowed in any case, relative to the scale."""
    return [_judge(name, found, tolerance) for name, tolerance in tolerances.items()]


def _judge(name: str, found: Sequence[Point], tolerance: float) -> Finding:
    try:
        if any(name not in results for point in found for results in (point.got, point.want, point.elsewhere)):
            raise Unlike("it isn't there in each run")
        errors = torch.stack([error(point.got[name], point.want[name]) for point in found])
        others = [point.elsewhere[name] for point in found] + [point.want[name] for point in (*found[1:], found[0])]
        moves = torch.stack([error(a, point.want[name]) for a, point in zip(others, [*found, *found], strict=True)])
    except Unlike as problem:
        return Finding(name, str(problem), float("inf"), 0.0)
    candidates = [
        Finding(name, m.name, m.size, max(tolerance * m.scale, m.rounding) + m.moved, m.moved / (m.scale or 1.0))
        for m in measures(errors, moves, torch.stack([point.want[name] for point in found]))
    ]
    return max(candidates, key=lambda f: f.severity, default=Finding(name, "error", 0.0, 0.0))
