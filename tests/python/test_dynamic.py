"""Dynamic shapes: one compilation serves many sizes."""

from __future__ import annotations

import copy
import math

import loafc.metrics
import pytest
import torch
import torch.nn.functional as F
from support import compare, compiled

FUNCTIONS = {
    "pointwise": lambda x: x * 2 + 1,
    "sum": lambda x: x.sum(0) + x.sum(1)[:1],
    "softmax": lambda x: x.softmax(-1),
    "view": lambda x: x.view(-1) * 2,
    "transpose": lambda x: x.t().contiguous(),
    "size_in_value": lambda x: x * x.shape[0] / x.shape[1],
    "size_returned": lambda x: (x + 1, x.shape[0] * 2 + x.shape[1] // 2),
    "arange": lambda x: torch.arange(x.shape[0])[:, None] + x,
    "cat": lambda x: torch.cat([x, x[:, : x.shape[1] // 2]], 1),
    "split": lambda x: [part + 1 for part in x.split([2, x.shape[0] - 2], 0)],
    "matmul": lambda x: (x @ x.t()).relu(),
    "pad": lambda x: torch.nn.functional.pad(x, (0, 7 - x.shape[1] % 7)),
    "mean": lambda x: x.mean(),
    "slice": lambda x: x[1:, :-1] + 1,
    "layer_norm": lambda x: torch.nn.functional.layer_norm(x, (x.shape[1],)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_graph_for_all_sizes(name):
    fn = FUNCTIONS[name]
    torch._dynamo.utils.counters.clear()
    f = compiled(fn, dynamic=True)
    for shape in [(4, 6), (8, 10), (33, 17), (64, 128)]:
        x = torch.randn(shape)
        compare(f(x), fn(x), rtol=1e-4, atol=1e-5)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


IMAGES = [(2, 3, 8, 10), (2, 3, 9, 12), (3, 3, 16, 20), (2, 3, 17, 31)]
WEIGHT = torch.randn(4, 3, 3, 3, generator=torch.Generator().manual_seed(0))
DEPTHWISE = torch.randn(3, 1, 5, 5, generator=torch.Generator().manual_seed(1))

ROUNDED = {
    "nearest": lambda x: F.interpolate(x, scale_factor=1.5),
    "bilinear": lambda x: F.interpolate(x, scale_factor=1.5, mode="bilinear"),
    "bilinear_recomputed": lambda x: F.interpolate(x, scale_factor=0.7, mode="bilinear", recompute_scale_factor=True),
    "truncated": lambda x: x[:, :, : int(x.shape[2] * 0.7)] * 2,
    "below_a_root": lambda x: x[:, :, : math.floor(x.shape[2] ** 0.5)] * 2,
    "above_a_third": lambda x: x[:, :, : math.ceil(x.shape[2] * (1 / 3))] * 2,
    "to_the_nearest": lambda x: x[:, :, : round(x.shape[2] * 0.3)] * 2,
    "within_other_sizes": lambda x: (x + 1, 2 * int(x.shape[2] * 0.7) // 3 + x.shape[3]),
}

CALLED_WITH_SIZES = {
    "stride": lambda x, n: F.conv2d(x, WEIGHT, stride=n),
    "padding": lambda x, n: F.conv2d(x, WEIGHT, padding=(n, 1)),
    "dilation": lambda x, n: F.conv2d(F.pad(x, (9, 9, 9, 9)), WEIGHT, dilation=n),
    "transposed": lambda x, n: F.conv_transpose2d(x, WEIGHT.transpose(0, 1).contiguous(), stride=n),
    "depthwise": lambda x, n: F.conv2d(x, DEPTHWISE, stride=n, groups=3),
    "stride_of_a_shape": lambda x, n: F.conv2d(x, WEIGHT, stride=x.shape[2] // 4),
}


def _graphs(backend, fn, calls, dynamic):
    """How many graphs a backend compiles for these calls."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    f = torch.compile(
        fn, backend=backend, dynamic=dynamic, **({"options": {"fallback": False}} if backend == "loafc" else {})
    )
    for args in calls:
        compare(f(*args), fn(*args), rtol=1e-4, atol=1e-5)
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


@pytest.mark.parametrize("dynamic", [None, True], ids=["automatic", "dynamic"])
@pytest.mark.parametrize("name", ROUNDED)
def test_sizes_rounded_from_floats_need_no_more_graphs_than_tracing_does(name, dynamic):
    calls = [(torch.randn(shape),) for shape in IMAGES]
    assert _graphs("loafc", ROUNDED[name], calls, dynamic) == _graphs("aot_eager", ROUNDED[name], calls, dynamic)


@pytest.mark.parametrize("dynamic", [None, True], ids=["automatic", "dynamic"])
@pytest.mark.parametrize("name", CALLED_WITH_SIZES)
def test_parameters_of_convolutions_may_be_sizes(name, dynamic):
    calls = [(torch.randn(2, 3, 13 + 4 * n, 19), n) for n in (2, 3, 4, 5)]
    fn = CALLED_WITH_SIZES[name]
    assert _graphs("loafc", fn, calls, dynamic) == _graphs("aot_eager", fn, calls, dynamic)


@pytest.mark.parametrize(
    "fn", [CALLED_WITH_SIZES["stride"], CALLED_WITH_SIZES["depthwise"]], ids=["plain", "depthwise"]
)
def test_gradients_of_a_convolution_whose_stride_is_a_size(fn):
    f = compiled(fn, dynamic=True)
    for stride in (2, 3, 4):
        x = torch.randn(2, 3, 16, 19, requires_grad=True)
        [want] = torch.autograd.grad(fn(x, stride).square().sum(), x)
        [got] = torch.autograd.grad(f(x, stride).square().sum(), x)
        compare(got, want, rtol=1e-4, atol=1e-4)


def test_parts_of_a_size_known_at_the_call():
    fn = lambda x: [part * 2 for part in x.split(x.shape[0] // 2, 0)]
    f = compiled(fn, dynamic=True)
    for rows in (4, 8, 12, 13):
        x = torch.randn(rows, 3)
        compare(f(x), fn(x))


def test_backward_of_dynamic_shapes():
    fn = lambda x: (x.softmax(-1) * x.shape[0]).sum(0).square()
    f = compiled(fn, dynamic=True)
    for rows in (3, 5, 17):
        x = torch.randn(rows, 12, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        fn(x).sum().backward()
        f(y).sum().backward()
        compare(y.grad, x.grad, rtol=1e-4, atol=1e-5)


def test_automatic_dynamic_shapes_after_a_second_size():
    f = compiled(lambda x: x.exp().sum(1))
    for rows in (4, 5, 6, 7):
        x = torch.randn(rows, 9)
        compare(f(x), x.exp().sum(1), rtol=1e-4, atol=1e-5)


def test_a_strided_argument_of_unknown_row_length():
    fn = lambda x: x * 2 + x.sum(1, keepdim=True)
    f = compiled(fn, dynamic=True)
    for columns in (8, 12, 30):
        x = torch.randn(5, columns)[:, ::2]
        compare(f(x), fn(x), rtol=1e-4, atol=1e-5)


class Block(torch.nn.Module):
    """A language model of one layer, whose mask and positions follow from the length."""

    def __init__(self):
        super().__init__()
        self.tokens, self.positions = torch.nn.Embedding(50, 16), torch.nn.Embedding(64, 16)
        self.norm, self.mixed = torch.nn.LayerNorm(16), torch.nn.Linear(16, 48)
        self.up, self.down = torch.nn.Linear(16, 32), torch.nn.Linear(32, 16)

    def forward(self, ids):
        batch, length = ids.shape
        x = self.tokens(ids) + self.positions(torch.arange(length))
        heads = self.mixed(self.norm(x)).view(batch, length, 3, 2, 8).permute(2, 0, 3, 1, 4)
        mask = torch.ones(length, length).tril().bool()
        scores = (heads[0] @ heads[1].mT / 8**0.5).masked_fill(~mask, -torch.inf)
        x = x + (scores.softmax(-1) @ heads[2]).transpose(1, 2).reshape(batch, length, 16)
        x = x + self.down(F.gelu(self.up(self.norm(x))))
        return (x @ self.tokens.weight.t()).logsumexp(-1).mean()


SHAPES = [(2, 8), (3, 8), (3, 12), (4, 17), (5, 9), (7, 33), (2, 64), (9, 5), (6, 6), (16, 40)]


def _graphs_for_all_shapes(block, way, backend, train):
    """How many graphs are compiled for the shapes, and the results."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    options = {"options": {"fallback": False}} if backend == "loafc" else {}
    f = torch.compile(block, backend=backend, dynamic=True if way == "dynamic" else None, **options)
    results = []
    for shape in SHAPES:
        ids = torch.randint(0, 50, shape, generator=torch.Generator().manual_seed(sum(shape)))
        if way == "marked":
            torch._dynamo.mark_dynamic(ids, 0)
            torch._dynamo.mark_dynamic(ids, 1)
        with torch.set_grad_enabled(train):
            loss = f(ids)
        if train:
            loss.backward()
            results.append(block.mixed.weight.grad.clone())
            block.zero_grad()
        results.append(loss.detach())
    return torch._dynamo.utils.counters["stats"]["unique_graphs"], results


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("way", ["dynamic", "marked", "automatic"])
def test_no_more_graphs_than_tracing_needs_for_ten_batches_and_lengths(way, train):
    block = Block()
    # This backend compiles nothing and adds no guard, so it counts what no compiler can do without.
    least, want = _graphs_for_all_shapes(copy.deepcopy(block), way, "aot_eager_decomp_partition", train)
    count, got = _graphs_for_all_shapes(copy.deepcopy(block), way, "loafc", train)
    assert count == least <= (3 if way == "automatic" else 1)
    compare(got, want, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("dynamic", [None, True], ids=["automatic", "dynamic"])
@pytest.mark.parametrize("stride", [1, 2, 3, 4])
def test_divided_sizes_are_kept_for_the_backward_pass(stride, dynamic):
    convolution = torch.nn.Conv2d(3, 4, stride, stride)
    fn = lambda x: convolution(x).mean((2, 3))
    f = compiled(fn, dynamic=dynamic)
    for height, width in ((64, 64), (40, 40), (52, 36)):
        x = torch.randn(2, 3, height, width)
        gradients = []
        for function in (fn, f):
            convolution.zero_grad()
            result = function(x)
            result.square().sum().backward()
            gradients.append((result.detach(), convolution.weight.grad))
        compare(gradients[1], gradients[0], rtol=1e-4, atol=1e-5)


DATA_DEPENDENT = {
    "mask": lambda x, k: x[k > 2].exp(),
    "nonzero": lambda x, k: x.index_select(0, k.nonzero().squeeze(1)).sin(),
    "masked_select": lambda x, k: x.masked_select(k > 2).exp(),
    "repeat_interleave": lambda x, k: torch.repeat_interleave(x.sin(), k),
    "unique": lambda x, k: x.sum() * torch.unique(k),
    "size": lambda x, k: (x.sum() * torch.ones(k[-1].item())).exp(),
    "number": lambda x, k: (x * k[-1].item()).exp(),
}


@pytest.mark.parametrize("name", DATA_DEPENDENT)
@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True)
def test_backward_graphs_get_the_sizes_that_depend_on_data(name):
    fn = DATA_DEPENDENT[name]
    f = torch.compile(fn, backend="loafc", dynamic=True)
    with pytest.warns(loafc.LoafcWarning, match="depends on data") as told:
        for n in (6, 9):
            x, k = torch.randn(n, requires_grad=True), torch.arange(n)
            want, got = fn(x, k), f(x, k)
            compare(got, want)
            compare(torch.autograd.grad(got.sum(), x), torch.autograd.grad(want.sum(), x))
    assert all("_forward" in str(warning.message) for warning in told)
    assert loafc.metrics.graphs > 0
