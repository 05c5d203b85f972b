"""Dynamic shapes: one compilation serves many sizes."""

from __future__ import annotations

import pytest
import torch
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
