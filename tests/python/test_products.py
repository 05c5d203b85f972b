"""Convolutions and attention: how a library is called for them, and what is computed without one."""

from __future__ import annotations

import loafc.metrics
import pytest
import torch
import torch.nn.functional as F
from loafc.externs import Operators
from support import check, compare, compiled

# Sums of many products, in another order.
LOOSE = {"rtol": 1e-4, "atol": 1e-4}


# Where the processor has no such vectors, the library computes everything.
needs_vectors = pytest.mark.skipif(
    not torch.backends.cpu.get_cpu_capability().startswith("AVX"), reason="kernels for AVX2 and AVX-512 only"
)


@pytest.fixture
def library_calls(monkeypatch):
    """The calls that programs make into ATen: names and arguments."""
    calls = []
    resolve = Operators.resolve

    def watched(self, name):
        site = resolve(self, name)
        function = site.function
        site.function = lambda *args, **kwargs: (calls.append((name, args)), function(*args, **kwargs))[1]
        return site

    monkeypatch.setattr(Operators, "resolve", watched)
    return calls


@needs_vectors
def test_attention_and_its_gradients_need_no_library(library_calls):
    q, k, v = (torch.randn(2, 3, 20, 16, requires_grad=True) for _ in range(3))
    compiled(F.scaled_dot_product_attention)(q, k, v).sum().backward()
    assert q.grad is not None and not library_calls


@needs_vectors
def test_a_library_computes_only_the_inputs_gradient_of_a_depthwise_convolution(library_calls):
    fn, parameters = DEPTHWISE["large windows"]
    args = [t.requires_grad_() for t in (torch.randn(2, 8, 12, 12), *parameters(8))]
    compiled(fn)(*args).sum().backward()
    backward = [args[-1] for name, args in library_calls if name == "aten.convolution_backward.default"]
    assert backward == [[True, False, False]]


def test_dropout_draws_events_and_calls_nothing_else(library_calls):
    compiled(lambda x: F.dropout(x, 0.5, training=True) * 2)(torch.randn(30))
    assert [name for name, _ in library_calls] == ["loafc.bernoulli.default"]


@pytest.mark.parametrize(("side", "channels_last"), [(600, True), (60, False)])
def test_only_large_images_go_to_the_library_with_channels_last(library_calls, side, channels_last):
    weight = torch.randn(4, 3, 3, 3)
    compiled(lambda x: F.conv2d(x * 2, weight).relu())(torch.randn(2, 3, side, side))
    [images] = [args[0] for name, args in library_calls if name == "aten.convolution.default"]
    assert images.is_contiguous(memory_format=torch.channels_last) == channels_last


def _depthwise(window, **options):
    def fn(x, weight, bias):
        return F.conv2d(x.sin(), weight, bias, groups=weight.shape[0], **options).relu()

    return fn, lambda c: [torch.randn(c, 1, *window), torch.randn(c)]


DEPTHWISE = {
    "large windows": _depthwise((7, 7), padding=3),
    "small windows": _depthwise((3, 3), padding=1),
    "strides": _depthwise((5, 4), stride=2, padding=(2, 1)),
    "dilation": _depthwise((2, 2), dilation=(2, 3)),
}


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("name", DEPTHWISE)
def test_gradients_of_depthwise_convolutions(name, layout):
    fn, parameters = DEPTHWISE[name]
    x = torch.randn(3, 20, 15, 14).to(memory_format=layout)
    check(fn, *(t.requires_grad_() for t in (x, *parameters(20))), backward=True, **LOOSE)


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 1), (1, 2)], ids=str)
def test_only_the_wanted_gradients_of_a_depthwise_convolution_are_made(wanted):
    fn, parameters = DEPTHWISE["large windows"]
    args = [torch.randn(2, 8, 12, 12), *parameters(8)]
    for k in wanted:
        args[k].requires_grad_()
    check(fn, *args, backward=True, **LOOSE)


def test_depthwise_convolutions_of_other_types_and_transposed_ones_stay_with_the_library():
    x = torch.randn(2, 4, 9, 9, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(4, 1, 5, 5, dtype=torch.float64, requires_grad=True)
    check(lambda x, w: F.conv2d(x, w, groups=4), x, weight, backward=True)
    single = [t.detach().float().requires_grad_() for t in (x, weight)]
    check(lambda x, w: F.conv_transpose2d(x, w, groups=4), *single, backward=True, **LOOSE)


def test_large_images_keep_their_values_and_the_result_its_strides():
    x, weight, bias = torch.randn(2, 3, 600, 600), torch.randn(4, 3, 3, 3), torch.randn(4)
    fn = lambda x: F.conv2d(x, weight, bias, stride=2)
    compare(compiled(fn)(x), fn(x), rtol=1e-4, atol=1e-4)
    pooled = lambda x: F.max_pool2d(F.conv2d(x * 2, weight, bias).relu(), 3)
    compare(compiled(pooled)(x), pooled(x), rtol=1e-4, atol=1e-4)


def test_gradients_of_convolutions_of_large_images():
    x, weight = torch.randn(2, 3, 600, 600), torch.randn(4, 3, 3, 3, requires_grad=True)
    fn = lambda x, w: F.conv2d(x * 2, w).sin()
    check(fn, x.requires_grad_(), weight, backward=True, **LOOSE)


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("shape", [(2, 3, 33, 16), (1, 2, 300, 24)], ids=str)
def test_attention(shape, causal, grad):
    def fn(q, k, v):
        return F.scaled_dot_product_attention(q * 2, k, v, is_causal=causal).transpose(1, 2).flatten(2).sin()

    check(fn, *(torch.randn(shape).requires_grad_(grad) for _ in range(3)), backward=grad, **LOOSE)


def test_attention_with_a_mask_and_shared_heads():
    mask = torch.randn(2, 1, 40, 50).masked_fill(torch.rand(2, 1, 40, 50) < 0.3, -torch.inf)
    fn = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)
    q, k, v = torch.randn(2, 6, 40, 32), torch.randn(2, 2, 50, 32), torch.randn(2, 2, 50, 32)
    check(fn, *(t.requires_grad_() for t in (q, k, v)), backward=True, **LOOSE)
    booleans = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, mask > 0, enable_gqa=True)
    compare(compiled(booleans)(q, k, v), booleans(q, k, v), **LOOSE)


def test_attention_of_any_length_is_one_program():
    fn = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)
    f = compiled(fn, dynamic=True)
    loafc.metrics.reset()
    for length in (5, 17, 64, 300):
        q, k, v = (torch.randn(2, 4, length, 16) for _ in range(3))
        compare(f(q, k, v), fn(q, k, v), **LOOSE)
    assert loafc.metrics.graphs == 1


def test_attention_does_not_depend_on_the_number_of_threads():
    q, k, v = (torch.randn(1, 2, 400, 32) for _ in range(3))
    f = compiled(F.scaled_dot_product_attention)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = f(q, k, v).clone()
        torch.set_num_threads(2)
        assert torch.equal(f(q, k, v), one)
    finally:
        torch.set_num_threads(threads)
