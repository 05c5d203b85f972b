"""Compares what a model gave in eager mode and compiled: by tolerances where computing in float32 allows them, else
by how far each lies from a run in float64, by several measures.
"""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from .measures import Measure, Unlike, error, measures

# The compiled program may be this many times as far from the reference as eager mode.
TIMES = 2.0

# A reference that eager mode itself misses by more than this, relative to the scale, tells nothing: a model that
# branches on its values took another branch. What is only this large beside the other tensors isn't a result that was
# missed, though: it is the rounding of what would be zero.
_USELESS_FROM = 1.0
_ROUNDING = 1e-3


@dataclass(frozen=True)
class Tolerance:
    """Largest error: ``absolute * min(1, largest scale of all tensors) + relative * scale of the tensor``, where a
    scale is the largest magnitude."""

    relative: float
    absolute: float


VALUES = Tolerance(1e-4, 1e-5)
GRADIENTS = Tolerance(1e-3, 1e-5)


@dataclass
class Values:
    """Named tensors that one run of a model left behind: results and changed state, and gradients."""

    values: dict[str, torch.Tensor] = field(default_factory=dict)
    gradients: dict[str, torch.Tensor] = field(default_factory=dict)

    def groups(self) -> list[tuple[dict[str, torch.Tensor], Tolerance]]:
        """Both, with what they are allowed."""
        return [(self.values, VALUES), (self.gradients, GRADIENTS)]


@dataclass(frozen=True)
class Difference:
    """How far a tensor is from eager mode's, by one measure. ``own`` and ``eagers`` are the errors against the
    reference, where there is one. ``open`` says that rounding may explain it: the tensors can be compared."""

    tensor: str
    error: float
    allowed: float
    scale: float
    own: float | None = None
    eagers: float | None = None
    note: str = ""
    measure: str = "error"
    open: bool = True

    @property
    def fine(self) -> bool:
        """Whether the error is allowed."""
        return not self.note and self.severity <= 1.0

    @property
    def severity(self) -> float:
        """The error as a multiple of what is allowed."""
        if self.note or (self.error and not self.allowed):
            return float("inf")
        return self.error / self.allowed if self.error else 0.0

    def to_json(self) -> dict[str, Any]:
        """All fields."""
        return asdict(self)


def differences(got: Values, want: Values, reference: Values | None = None) -> list[Difference]:
    """One for each tensor of eager mode's; those beyond the tolerance are held against the reference."""
    found: list[Difference] = []
    pairs = list(zip(got.groups(), want.groups(), strict=True))
    for (ours, _), (theirs, _) in pairs:
        if ours.keys() != theirs.keys():
            names = sorted(ours.keys() ^ theirs.keys())
            note = f"only one run has {', '.join(names[:4])}"
            found.append(Difference(names[0], 0.0, 0.0, 0.0, note=note, open=False))
    exact = {} if reference is None else {**reference.values, **reference.gradients}
    typical = _typical_errors(want, exact)
    for (ours, tolerance), (theirs, _) in pairs:
        largest = max((_scale(t) for t in theirs.values()), default=0.0)
        for name in theirs.keys() & ours.keys():
            plain = _difference(name, ours[name], theirs[name], tolerance, largest)
            if not plain.fine and not plain.note and name in exact:
                plain = _against(exact[name], plain, ours[name], theirs[name], typical, largest)
            found.append(plain)
    return found


def _typical_errors(want: Values, exact: dict[str, torch.Tensor]) -> dict[str, float]:
    """The median of eager mode's errors relative to the scale, for each kind of measure. One number, such as a loss,
    may be right by chance."""
    errors: dict[str, list[float]] = {}
    for name, tensor in {**want.values, **want.gradients}.items():
        if name not in exact or not tensor.is_floating_point():
            continue
        for measure in _measured(tensor, tensor, exact[name]):
            if measure.moved and measure.scale:
                errors.setdefault(measure.kind, []).append(measure.moved / measure.scale)
    return {kind: statistics.median(sizes) for kind, sizes in errors.items()}


def _measured(got: torch.Tensor, want: torch.Tensor, reference: torch.Tensor) -> list[Measure]:
    """How far one run of each is from the reference; nothing where it can't be one."""
    try:
        errors, eagers = error(got, reference), error(want, reference)
    except Unlike:
        return []
    return list(measures(errors[None], eagers[None], reference.to(want.dtype)[None]))


def _difference(name: str, got: torch.Tensor, want: torch.Tensor, tolerance: Tolerance, largest: float) -> Difference:
    note, is_open = _note(got, want)
    if note:
        return Difference(name, 0.0, 0.0, 0.0, note=note, open=is_open)
    scale = _scale(want)
    allowed = tolerance.absolute * min(1.0, largest) + tolerance.relative * scale
    return Difference(name, _error(got, want), allowed, scale)


def _against(
    reference: torch.Tensor,
    plain: Difference,
    got: torch.Tensor,
    want: torch.Tensor,
    typical: dict[str, float],
    largest: float,
) -> Difference:
    found = _measured(got, want, reference)
    if not found or found[0].moved > max(_USELESS_FROM * max(found[0].scale, plain.scale), _ROUNDING * largest):
        return plain
    candidates = [
        Difference(
            plain.tensor,
            m.size,
            TIMES * max(m.moved, typical.get(m.kind, 0.0) * m.scale) + m.rounding,
            m.scale,
            m.size,
            m.moved,
            measure=m.name,
        )
        for m in found
    ]
    return max(candidates, key=lambda d: d.severity)


def _note(got: torch.Tensor, want: torch.Tensor) -> tuple[str, bool]:
    """What makes errors pointless, and whether rounding may still explain it."""
    if got.shape != want.shape:
        return f"shape {list(got.shape)} instead of {list(want.shape)}", False
    if got.dtype != want.dtype:
        return f"type {got.dtype} instead of {want.dtype}", False
    if not torch.equal(got.isnan(), want.isnan()):
        return f"{int(got.isnan().sum())} NaN where eager mode has {int(want.isnan().sum())}", False
    if not want.is_floating_point() and not want.is_complex() and not torch.equal(got, want):
        return f"{int((got != want).sum())} of {want.numel()} elements differ", True
    return "", True


def _scale(tensor: torch.Tensor) -> float:
    if not tensor.numel():
        return 0.0
    magnitudes = tensor.detach().to(_wide(tensor)).abs()
    finite = magnitudes[magnitudes.isfinite()]
    return float(finite.max()) if finite.numel() else 0.0


def _error(got: torch.Tensor, want: torch.Tensor) -> float:
    """The largest difference; infinite where only one of two is infinite or not a number."""
    if not want.numel():
        return 0.0
    try:
        return float(error(got, want).abs().max())
    except Unlike:
        return float("inf")


def _wide(tensor: torch.Tensor) -> torch.dtype:
    return torch.complex128 if tensor.is_complex() else torch.float64
