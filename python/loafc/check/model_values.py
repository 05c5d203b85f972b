"""Compares what a model gave in eager mode and compiled: by tolerances where computing in float32 allows them, else
by how far each lies from a run in float64.
"""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

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
    """How far a tensor is from eager mode's. Errors are largest magnitudes; ``own`` and ``eagers`` are those against
    the reference, where there is one."""

    tensor: str
    error: float
    allowed: float
    scale: float
    own: float | None = None
    eagers: float | None = None
    note: str = ""

    @property
    def fine(self) -> bool:
        """Whether the error is allowed."""
        return not self.note and self.severity <= 1.0

    @property
    def severity(self) -> float:
        """The error as a multiple of what is allowed."""
        if self.note:
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
            found.append(Difference(names[0], 0.0, 0.0, 0.0, note=f"only one run has {', '.join(names[:4])}"))
    exact = {} if reference is None else {**reference.values, **reference.gradients}
    typical = _typical_error(want, exact)
    for (ours, tolerance), (theirs, _) in pairs:
        largest = max((_scale(t) for t in theirs.values()), default=0.0)
        for name in theirs.keys() & ours.keys():
            plain = _difference(name, ours[name], theirs[name], tolerance, largest)
            if not plain.fine and not plain.note and name in exact:
                plain = _against(exact[name], plain, ours[name], theirs[name], typical, largest)
            found.append(plain)
    return found


def _typical_error(want: Values, exact: dict[str, torch.Tensor]) -> float:
    """The median of eager mode's errors relative to the scale. One number, such as a loss, may be right by chance."""
    errors = []
    for name, tensor in {**want.values, **want.gradients}.items():
        reference = exact.get(name)
        if reference is not None and tensor.is_floating_point() and reference.shape == tensor.shape:
            scale, error = _scale(reference), _error(tensor, reference)
            if error and scale:
                errors.append(error / scale)
    return statistics.median(errors) if errors else 0.0


def _difference(name: str, got: torch.Tensor, want: torch.Tensor, tolerance: Tolerance, largest: float) -> Difference:
    note = _note(got, want)
    if note:
        return Difference(name, 0.0, 0.0, 0.0, note=note)
    scale = _scale(want)
    allowed = tolerance.absolute * min(1.0, largest) + tolerance.relative * scale
    return Difference(name, _error(got, want), allowed, scale)


def _against(
    reference: torch.Tensor,
    plain: Difference,
    got: torch.Tensor,
    want: torch.Tensor,
    typical: float,
    largest: float,
) -> Difference:
    if reference.shape != want.shape:
        return plain
    scale = max(_scale(reference), plain.scale)
    own, eagers = _error(got, reference), _error(want, reference)
    if eagers > max(_USELESS_FROM * scale, _ROUNDING * largest):
        return plain
    allowed = TIMES * max(eagers, typical * scale) + torch.finfo(want.dtype).eps * scale
    return Difference(plain.tensor, own, allowed, scale, own, eagers)


def _note(got: torch.Tensor, want: torch.Tensor) -> str:
    if got.shape != want.shape:
        return f"shape {list(got.shape)} instead of {list(want.shape)}"
    if got.dtype != want.dtype:
        return f"type {got.dtype} instead of {want.dtype}"
    if not torch.equal(got.isnan(), want.isnan()):
        return f"{int(got.isnan().sum())} NaN where eager mode has {int(want.isnan().sum())}"
    if not want.is_floating_point() and not want.is_complex() and not torch.equal(got, want):
        return f"{int((got != want).sum())} of {want.numel()} elements differ"
    return ""


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
    g, w = got.to(_wide(want)), want.to(_wide(want))
    same = (g == w) | (g.isnan() & w.isnan())
    off = torch.where(same, torch.zeros((), dtype=torch.float64), (g - w).abs().double())
    return float(off.nan_to_num(nan=float("inf"), posinf=float("inf")).max())


def _wide(tensor: torch.Tensor) -> torch.dtype:
    return torch.complex128 if tensor.is_complex() else torch.float64
