"""The memory that compiled programs reuse: it is counted, shared between sizes, and given back."""

from __future__ import annotations

import gc

import loafc
import pytest
import torch
from loafc import memory

MIB = 1 << 20


def compiled(fn):
    return torch.compile(fn, backend="loafc", dynamic=False, options={"fallback": False})


def test_a_result_counts_until_its_tensor_dies():
    fn = compiled(lambda x: x + 1)
    x = torch.zeros(MIB)
    fn(x)
    gc.collect()
    before = memory.usage()
    result = fn(x)
    assert memory.usage().live == before.live + 4 * MIB
    view = result[10:]
    del result
    assert memory.usage().live == before.live + 4 * MIB
    del view
    assert memory.usage().live == before.live


def test_memory_of_small_results_serves_a_large_one():
    memory.trim()
    small, large = torch.zeros(MIB), torch.zeros(4 * MIB)
    fn = compiled(lambda x: x + 1)
    results = [fn(small) for _ in range(4)]
    del results
    free = memory.usage().free
    result = fn(large)
    assert memory.usage().free <= free - 16 * MIB
    del result


def test_trimming_gives_back_what_is_free_and_nothing_else():
    fn = compiled(lambda x: x + 1)
    kept = fn(torch.arange(MIB))
    fn(torch.zeros(4 * MIB))
    memory.trim(4 * MIB)
    assert memory.usage().free <= 4 * MIB
    loafc.memory.trim()
    assert memory.usage().free == 0
    assert torch.equal(kept, torch.arange(MIB) + 1)
    with pytest.raises(OverflowError):
        memory.trim(-1)


def test_the_peak_is_the_most_since_it_was_reset():
    fn = compiled(lambda x: x + 1)
    result = fn(torch.zeros(4 * MIB))
    del result
    memory.reset_peak()
    before = memory.usage()
    assert before.peak == before.live
    result = fn(torch.zeros(MIB))
    del result
    assert memory.usage().peak == before.live + 4 * MIB


def _backward(retain):
    """What a backward pass adds to the memory in use at most, in parts of its gradients' bytes."""
    layers, width = 10, 512
    weights = [torch.randn(width, width, requires_grad=True) for _ in range(layers)]

    def fn(x):
        for weight in weights:
            x = torch.tanh(x @ weight)
        return x.sum()

    fn, x = compiled(fn), torch.randn(width, width)
    fn(x).backward(retain_graph=retain)
    first = [weight.grad.clone() for weight in weights]
    for weight in weights:
        weight.grad = None
    gc.collect()
    loss = fn(x)
    memory.reset_peak()
    before = memory.usage().live
    loss.backward(retain_graph=retain)
    grown = memory.usage().peak - before
    if retain:
        loss.backward()
    for weight, grad in zip(weights, first, strict=True):
        assert torch.equal(weight.grad, 2 * grad if retain else grad)
    return grown / (layers * width * width * 4)


def test_a_backward_pass_lets_go_of_what_it_has_used():
    assert _backward(retain=False) < 0.5


def test_a_backward_pass_that_may_come_again_lets_go_of_nothing():
    with torch._functorch.config.patch(donated_buffer=False):
        assert _backward(retain=True) >= 1
