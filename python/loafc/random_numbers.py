"""Events drawn from PyTorch's generator, many at a time: the same numbers as eager mode's, which draws one by one.

How PyTorch turns its generator's words into events is no promise of PyTorch's. It is therefore compared once in a
process, and where it differs PyTorch draws.
"""

from __future__ import annotations

import functools
import os
import threading

import torch

from . import _loafc

# Between reading the generator's state and writing it back no other program of loafc may draw. Eager mode doesn't ask:
# where it drew in between, the draw is made again.
_generator = threading.Lock()


def _renew_lock() -> None:
    global _generator
    _generator = threading.Lock()


# Another thread may have held it when this process forked.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def bernoulli(probability: float, *, out: torch.Tensor) -> torch.Tensor:
    """Fills ``out``, a tensor of truth values that is dense in memory, as ``out.bernoulli_(probability)`` does."""
    if not _draws_alike():
        return out.bernoulli_(probability)
    with _generator:
        while True:
            before = torch.get_rng_state()
            after = before.clone()
            _draw(after, probability, out)
            if torch.equal(torch.get_rng_state(), before):
                torch.set_rng_state(after)
                return out


def normal(
    like: torch.Tensor, mean: float = 0.0, std: float = 1.0, generator: torch.Generator | None = None
) -> torch.Tensor:
    """What ``like.normal_(mean, std)`` writes: for elements with gaps between them other numbers than for dense ones,
    which ATen's own form of it draws for both."""
    drawn = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)
    return drawn.normal_(mean, std, generator=generator).clone()


def _draw(state: torch.Tensor, probability: float, out: torch.Tensor) -> None:
    _loafc.draw_events(state.data_ptr(), state.numel(), probability, out.data_ptr(), out.numel())


@functools.cache
def _draws_alike() -> bool:
    generator = torch.Generator("cpu").manual_seed(20)
    # An odd number of words used up, as other draws may leave it.
    torch.rand(5, generator=generator, device="cpu")
    state = generator.get_state()
    mine, eagers = torch.empty(2, 1500, dtype=torch.bool, device="cpu")
    eagers.bernoulli_(0.7, generator=generator)
    try:
        _draw(state, 0.7, mine)
    except ValueError:
        return False
    return torch.equal(mine, eagers) and torch.equal(state, generator.get_state())
