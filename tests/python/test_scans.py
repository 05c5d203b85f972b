"""Scans against eager mode: operations, types, dimensions, layouts, what isn't a number, gradients, threads."""

from __future__ import annotations

import pytest
import torch

OPERATIONS = ["cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"]
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
WHOLE = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]
NOT_FINITE = [float("nan"), float("inf"), -float("inf"), -0.0]


def compiled(fn):
    return torch.compile(fn, backend="loafc", dynamic=False, options={"fallback": False})


def scan(name, dim, **options):
    def fn(x):
        made = getattr(torch, name)(x, dim, **options)
        return made if isinstance(made, torch.Tensor) else tuple(made)

    return fn


def assert_alike(got, want):
    if not isinstance(want, torch.Tensor):
        for g, w in zip(got, want, strict=True):
            assert_alike(g, w)
        return
    assert got.dtype == want.dtype and got.stride() == want.stride()
    # Eager mode sums exponentials of 16 bits in few digits.
    rough = want.dtype in (torch.float16, torch.bfloat16)
    tolerances = (
        {"rtol": 2e-2, "atol": 1e-2}
        if rough
        else {"rtol": 2e-6 if want.dtype == torch.float32 else 1e-12, "atol": 1e-12}
    )
    torch.testing.assert_close(got, want, equal_nan=True, **tolerances)


def numbers(shape, dtype):
    torch.manual_seed(sum(shape) + len(shape))
    x = torch.randn(shape) * 2
    return x > 0 if dtype == torch.bool else x.to(dtype) if dtype.is_floating_point else x.abs().to(dtype)


def scans(name, dtype):
    return dtype.is_floating_point or name != "logcumsumexp"


@pytest.mark.parametrize("dtype", FLOATS + WHOLE, ids=str)
@pytest.mark.parametrize("name", OPERATIONS)
def test_every_type_is_scanned_along_every_dimension(name, dtype):
    if not scans(name, dtype):
        return
    x = numbers((3, 37, 20), dtype)
    layouts = [x, x.permute(2, 0, 1), x[:, 1::3, ::2]]
    for layout in layouts:
        for dim in (0, 1, -1):
            assert_alike(compiled(scan(name, dim))(layout), scan(name, dim)(layout))


@pytest.mark.parametrize("shape", [(), (1,), (0,), (0, 3), (3, 0), (5000, 4), (4, 5000), (70_000,), (2, 9, 300)])
@pytest.mark.parametrize("name", OPERATIONS)
def test_every_shape_is_scanned(name, shape):
    x = numbers(shape, torch.float32)
    for dim in {0, -1}:
        assert_alike(compiled(scan(name, dim))(x), scan(name, dim)(x))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", OPERATIONS)
def test_what_is_not_a_number_goes_on_as_in_eager_mode(name, dtype):
    for special in NOT_FINITE:
        x = numbers((6, 50), dtype)
        x[2, 20] = x[3, 40] = x[3, 45] = special
        x[4, :] = special
        x[5, 3], x[5, 30] = float("inf"), -float("inf")
        for dim in (0, 1):
            assert_alike(compiled(scan(name, dim))(x), scan(name, dim)(x))


@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
def test_elements_become_the_type_that_is_asked_for(name):
    for source in (torch.bool, torch.uint8, torch.int32, torch.float16, torch.float32):
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.int16):
            x = numbers((7, 33), source)
            for dim in (0, 1):
                fn = scan(name, dim, dtype=dtype)
                assert_alike(compiled(fn)(x), fn(x))


@pytest.mark.parametrize("name", ["cummax", "cummin"])
def test_only_values_or_only_positions_are_made(name):
    x = numbers((9, 70), torch.float32)
    for part in (0, 1):

        def fn(x, part=part):
            return getattr(torch, name)(x, 1)[part]

        assert_alike(compiled(fn)(x), fn(x))


@pytest.mark.parametrize("name", OPERATIONS)
def test_gradients_are_those_of_eager_mode(name):
    def fn(x):
        made = getattr(torch, name)(x * 1.5, 1)
        return (made if isinstance(made, torch.Tensor) else made[0]).sin()

    x = numbers((8, 40), torch.float64)
    x[1, 7] = x[2, 3] = x[2, 9] = 0
    grads = []
    for f in (compiled(fn), fn):
        leaf = x.clone().requires_grad_()
        f(leaf).sum().backward()
        grads.append(leaf.grad)
    torch.testing.assert_close(*grads, rtol=1e-9, atol=1e-9)


def bits(made):
    """All results as bytes: infinite products and what comes of them are not equal to themselves."""
    parts = [made] if isinstance(made, torch.Tensor) else made
    return torch.cat([part.view(torch.uint8) for part in parts], -1)


@pytest.mark.parametrize("name", OPERATIONS)
def test_two_threads_give_the_bits_of_one(name):
    before = torch.get_num_threads()
    try:
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            if not scans(name, dtype):
                continue
            for shape, dim in (((150_000,), 0), ((3, 70_000), 1), ((64, 900), 0)):
                x, fn = numbers(shape, dtype), compiled(scan(name, dim))
                results = []
                for threads in (1, 2, 3):
                    torch.set_num_threads(threads)
                    results.append(bits(fn(x)))
                assert all(torch.equal(results[0], other) for other in results[1:])
    finally:
        torch.set_num_threads(before)
