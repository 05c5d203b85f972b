"""The gradients of calls, made by eager mode or by a compiled program, in a form in which both can be compared.

The gradient of a result is a fixed random tensor: with ones alone, mistakes that add up to nothing would not show.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

_SEED = 1


def gradients_of(arguments: Sequence[Any], results: Sequence[Any]) -> list[list[torch.Tensor]]:
    """For each call, the gradients with respect to the tensors among its arguments that ask for one; none where no
    result depends on them.

    All are computed at once, for calls that were compiled together have one backward program. Eager mode and
    AOTAutograd leave out different gradients that are zero, and lay them out differently: here all are there, and
    dense.
    """
    outputs = [_differentiable(r) for r in results]
    inputs = [_differentiable(a) if out else [] for a, out in zip(arguments, outputs, strict=True)]
    if not any(inputs):
        return inputs
    found = torch.autograd.grad(
        [t for out in outputs for t in out],
        [t for one in inputs for t in one],
        [_random_like(t, seed) for out in outputs for seed, t in enumerate(out, _SEED)],
        allow_unused=True,
    )
    rest = iter(found)
    return [[_dense(next(rest), t) for t in one] for one in inputs]


def _differentiable(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]


def _random_like(result: torch.Tensor, seed: int) -> torch.Tensor:
    # Drawn in the narrower type, so that the run in float64 gets the same numbers.
    drawn = torch.complex64 if result.is_complex() else torch.float32
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(result.shape, dtype=drawn, generator=generator).to(result.dtype)


def _dense(gradient: torch.Tensor | None, of: torch.Tensor) -> torch.Tensor:
    if gradient is None:
        return torch.zeros(of.shape, dtype=of.dtype)
    return gradient.detach().to_dense().contiguous()
