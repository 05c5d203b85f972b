"""Nested tensors in the jagged layout: their ragged size is no number, and their buffers are the program's tensors."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support import compare, compiled

WEIGHT = torch.linspace(-1, 1, 64).view(8, 8)


def _attention(t):
    heads = F.linear(t, WEIGHT).unflatten(-1, [2, 4]).transpose(1, 2)
    return F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2)


FUNCTIONS = {
    "linear": lambda t: F.linear(t, WEIGHT).relu() * 2,
    "sum of each": lambda t: (F.linear(t, WEIGHT) * 2).sum(dim=1),
    "attention": _attention,
}


def _values(t):
    return t.values() if t.is_nested else t


@pytest.mark.parametrize("name", FUNCTIONS)
def test_jagged_tensors_of_several_lengths(name):
    fn = FUNCTIONS[name]
    f = compiled(fn)
    for lengths in ((3, 5), (2, 7), (4, 4, 6)):
        t = torch.nested.nested_tensor([torch.randn(n, 8) for n in lengths], layout=torch.jagged)
        got, want = f(t), fn(t)
        compare(_values(got), _values(want), rtol=1e-4, atol=1e-5, strides=False)
        assert got.is_nested == want.is_nested
        if got.is_nested:
            compare(got.offsets(), want.offsets())


@pytest.mark.parametrize("name", ["linear"])
def test_gradients_of_jagged_tensors(name):
    fn = FUNCTIONS[name]
    f = compiled(lambda t: _values(fn(t)).square().sum())
    for lengths in ((3, 5), (2, 7)):
        t = torch.nested.nested_tensor([torch.randn(n, 8) for n in lengths], layout=torch.jagged, requires_grad=True)
        (want,) = torch.autograd.grad(_values(fn(t)).square().sum(), t)
        (got,) = torch.autograd.grad(f(t), t)
        compare(_values(got), _values(want), rtol=1e-4, atol=1e-5)
