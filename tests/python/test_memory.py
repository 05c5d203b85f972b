"""How kernels move memory, against eager mode: large results past the cache, transposes of every width, columns."""

from __future__ import annotations

import pytest
import torch

LARGE = (2048, 2064)


def compiled(fn):
    return torch.compile(fn, backend="loafc", dynamic=False, options={"fallback": False})


def test_a_large_result_is_right_wherever_it_begins():
    def fn(x, y):
        y.copy_(x * 2)

    x = torch.randn(LARGE)
    for first in (0, 1, 16):
        y = torch.zeros(x.numel() + 16)[first : first + x.numel()].view(LARGE)
        compiled(fn)(x, y)
        assert torch.equal(y, x * 2)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.int16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(256, 512), (130, 70), (64, 4096), (33, 1000)])
def test_transposes_of_every_width_are_right(dtype, shape):
    x = torch.randint(0, 100, shape).to(dtype)
    y = torch.randint(0, 100, shape[::-1]).to(dtype)

    def fn(x, y):
        return x | y.t() if dtype in (torch.uint8, torch.bool, torch.int16) else x + y.t()

    def copies(x):
        z = x.flip(0)
        return z, z.t().contiguous()

    assert torch.equal(compiled(fn)(x, y), fn(x, y))
    for got, want in zip(compiled(copies)(x), copies(x), strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_large_transposed_result_is_right(dtype):
    x = torch.randn(4096, 2048 if dtype == torch.float32 else 4096).to(dtype)
    assert torch.equal(compiled(lambda x: x.relu().t().contiguous())(x), x.relu().t())


@pytest.mark.parametrize("shape", [(4096, 700), (4098, 64), (1001, 3000), (3, 5000), (70000, 3)])
def test_sums_over_columns_are_right(shape):
    def fn(x):
        return x.sum(0), x.var(0), x.argmax(0), x.amax(0)

    x = torch.randn(shape)
    x[1, 0] = float("nan")
    for got, want in zip(compiled(fn)(x), fn(x), strict=True):
        torch.testing.assert_close(got, want, equal_nan=True, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.float16, torch.int32])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_running_sums_are_those_of_eager_mode(dtype, dim):
    x = torch.randint(-9, 9, (37, 130, 41)).to(dtype)
    assert torch.equal(compiled(lambda x: x.cumsum(dim) * 2)(x), x.cumsum(dim) * 2)
    strided = x.transpose(0, 2)[::2]
    assert torch.equal(compiled(lambda x: x.cumsum(dim))(strided), strided.cumsum(dim))


def test_a_check_of_an_index_comes_before_nothing_is_looked_up():
    def fn(table, ids):
        return torch.nn.functional.embedding(ids, table) * 2

    table = torch.randn(10, 64)
    run = compiled(fn)
    assert torch.equal(run(table, torch.tensor([0, 9])), fn(table, torch.tensor([0, 9])))
    with pytest.raises(Exception, match="out of range"):
        run(table, torch.tensor([0, 10]))
    # Rows without elements are never read, whatever the index.
    assert compiled(fn)(torch.randn(10, 0), torch.tensor([3])).shape == (1, 0)
