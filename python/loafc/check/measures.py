"""How large errors are, by measures that different mistakes stand out in.

The largest error of an element finds single wrong ones; the largest of a slice, whose errors are averaged, finds a
wrong row or column among noisy elements; and the part of the error that the result itself would explain finds a wrong
factor, however large the noise of elements is. Of several runs counts what all of them have: the smallest error where
all have the same sign.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

# Of the moves of an element counts the one that so many are no larger than.
_USUAL = 0.7

# Among few elements all moves may be small by chance: there the largest one counts.
_FEW = 64

# How many elements are looked at to tell how many distinct ones there are.
_SAMPLE = 4096


class Unlike(Exception):
    """Tensors have other shapes or types, or are infinite or no numbers in other places."""


@dataclass(frozen=True)
class Measure:
    """How large errors are by it, how large the moves beside them are, and the scale of both.

    ``kind`` is the name without what depends on a tensor's shape. ``rounding`` is what rounding once may make of it
    even where nothing moves: what one program rounds to the same number each time, the other may still round to the
    next.
    """

    kind: str
    name: str
    size: float
    moved: float
    scale: float
    rounding: float


def error(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """The differences in float64; one where integers or truth values differ.

    Raises:
        Unlike: The tensors can't be subtracted, or one only is infinite or no number.
    """
    if got.shape != want.shape:
        raise Unlike(f"shape {list(got.shape)} instead of {list(want.shape)}")
    if not want.is_floating_point() and not want.is_complex():
        return (got != want).double()
    g, w = plain(got), plain(want)
    finite = w.isfinite()
    if not torch.equal(g.isfinite(), finite) or not torch.equal(g[~finite].nan_to_num(), w[~finite].nan_to_num()):
        raise Unlike("other elements are infinite or no numbers")
    return torch.where(finite, g - w, 0.0)


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The elements as float64."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.detach().double()


def measures(errors: torch.Tensor, moves: torch.Tensor, wants: torch.Tensor) -> Iterator[Measure]:
    """Measures ``errors`` and ``moves`` of results like ``wants``.

    All have a leading dimension for runs; there may be several moves for each.
    """
    if not wants.numel():
        return
    epsilon = torch.finfo(wants.dtype).eps if wants.is_floating_point() or wants.is_complex() else 0.0
    wants = plain(wants)
    wants = torch.where(wants.isfinite(), wants, 0.0)
    want = wants[0]
    many = want.numel() >= _FEW
    steady = _steady(errors)
    moved = moves.abs().kthvalue(math.ceil(_USUAL * len(moves)), dim=0).values if many else moves.abs().amax(dim=0)
    scale = float(want.abs().max())
    yield Measure("error", "error", float(steady.max()), float(moved.max()), scale, epsilon * scale)
    for dimension in range(want.dim() if many and want.dim() > 1 else 0):
        size, moved_by, scale = (_largest_slice(tensor, dimension) for tensor in (steady, moved, want))
        name = f"error of a slice of dimension {dimension}"
        yield Measure("slice", name, size, moved_by, scale, epsilon * scale)
    if want.numel() > 1 and scale:
        size, moved_by = float(_steady(_parts(errors, wants))), float(_parts(moves, wants).abs().max())
        yield Measure("factor", "relative error of all", size, moved_by, 1.0, epsilon / _distinct(want) ** 0.5)


def _steady(errors: torch.Tensor) -> torch.Tensor:
    """The smallest magnitude over the runs where all have the same sign, zero elsewhere."""
    same = errors.sign().sum(dim=0).abs() == len(errors)
    return torch.where(same, errors.abs().amin(dim=0), 0.0)


def _parts(errors: torch.Tensor, wants: torch.Tensor) -> torch.Tensor:
    """For each error, which multiple of the result is nearest to it: of another run's result, for its own, and the next
    run's that moves are towards, have the same noise as the error."""
    others = wants.roll(-2, 0).repeat(len(errors) // len(wants), *[1] * (wants.dim() - 1))
    products, squares = ((others * tensor).flatten(1).sum(dim=1) for tensor in (errors, others))
    # Of a run whose results are all zero, none is a multiple: the product is zero then.
    return products / squares.clamp(min=torch.finfo(squares.dtype).tiny)


def _distinct(tensor: torch.Tensor) -> int:
    """About how many numbers are in it, for equal ones are rounded in the same direction, and others as it happens."""
    return tensor.flatten()[:_SAMPLE].unique().numel()


def _largest_slice(tensor: torch.Tensor, dimension: int) -> float:
    return float(tensor.square().movedim(dimension, 0).flatten(1).mean(dim=1).max().sqrt())
