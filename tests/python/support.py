"""Runs a function in eager mode and compiled, on equal arguments, and compares all that can be seen of it."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map


def compiled(fn, dynamic=None, **options):
    """The function compiled by loafc, failing instead of falling back."""
    return torch.compile(fn, backend="loafc", dynamic=dynamic, options={"fallback": False, **options})


def check(fn, *args, backward=False, strides=True, dynamic=None, rtol=None, atol=None, **options):
    """Compares outputs, their layout, changed arguments and, with ``backward``, gradients."""
    want_args, got_args = _copy(args), _copy(args)
    want = fn(*want_args)
    got = compiled(fn, dynamic=dynamic, **options)(*got_args)
    compare(got, want, strides, rtol, atol)
    if backward:
        _backward(want)
        _backward(got)
        compare(_gradients(got_args), _gradients(want_args), False, rtol, atol)
    compare([_plain(a) for a in tree_leaves(got_args)], [_plain(a) for a in tree_leaves(want_args)], True, rtol, atol)
    return got


def compare(got: Any, want: Any, strides=True, rtol=None, atol=None) -> None:
    """The same structure, and tensors of the same type, layout and values."""
    got_leaves, want_leaves = tree_leaves(got), tree_leaves(want)
    assert len(got_leaves) == len(want_leaves)
    for g, w in zip(got_leaves, want_leaves, strict=True):
        assert isinstance(g, torch.Tensor) == isinstance(w, torch.Tensor)
        if not isinstance(w, torch.Tensor):
            assert g == w
            continue
        torch.testing.assert_close(g, w, rtol=rtol, atol=atol, equal_nan=True, check_stride=False)
        if strides:
            assert [s for n, s in zip(g.shape, g.stride(), strict=True) if n > 1] == [
                s for n, s in zip(w.shape, w.stride(), strict=True) if n > 1
            ]


def _copy(args):
    def one(value):
        if isinstance(value, torch.Tensor):
            twin = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
            twin.copy_(value.detach())
            return twin.requires_grad_(value.requires_grad)
        return copy.deepcopy(value)

    return tree_map(one, args)


def _plain(value):
    return value.detach() if isinstance(value, torch.Tensor) else value


def _backward(result):
    loss = sum(
        (t.double() * torch.linspace(-1, 1, t.numel(), dtype=torch.float64).view(t.shape)).sum()
        for t in tree_leaves(result)
        if isinstance(t, torch.Tensor) and t.requires_grad
    )
    loss.backward()


def _gradients(args):
    return [a.grad for a in tree_leaves(args) if isinstance(a, torch.Tensor) and a.grad is not None]
