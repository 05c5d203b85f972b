"""Small functions give eager mode's values, layouts and side effects."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support import check, compare, compiled

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]


def randn(*shape, dtype=torch.float32, grad=False):
    return torch.randn(*shape, dtype=torch.float64).to(dtype).requires_grad_(grad)


UNARY = [
    torch.abs, torch.neg, torch.sign, torch.exp, torch.exp2, torch.expm1, torch.sin, torch.cos, torch.tan,
    torch.tanh, torch.sigmoid, torch.erf, torch.erfc, torch.atan, torch.sinh, torch.cosh, torch.asinh, torch.floor,
    torch.ceil, torch.trunc, torch.round, torch.square, torch.relu, F.gelu, F.silu, F.softplus, F.elu, F.leaky_relu,
    F.hardswish, F.hardsigmoid, F.mish, torch.isnan, torch.isinf, torch.signbit, torch.logical_not,
    torch.nan_to_num, torch.frac, torch.reciprocal,
]  # fmt: skip
POSITIVE = [torch.sqrt, torch.rsqrt, torch.log, torch.log2, torch.log10, torch.log1p, torch.acosh, torch.lgamma]
WITHIN_ONE = [torch.asin, torch.acos, torch.atanh, torch.erfinv]
BINARY = [
    torch.add, torch.sub, torch.mul, torch.div, torch.maximum, torch.minimum, torch.fmax, torch.fmin, torch.atan2,
    torch.remainder, torch.fmod, torch.floor_divide, torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge,
    torch.hypot, torch.copysign, torch.logical_and, torch.logical_or, torch.logical_xor,
]  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("op", UNARY, ids=lambda f: f.__name__)
def test_unary(op, dtype):
    if op is torch.frac and dtype in (torch.float16, torch.bfloat16):
        pytest.skip("eager rounds the whole part first")
    x = randn(37, 5, dtype=dtype) * 3
    check(lambda x: op(x), x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("op", POSITIVE, ids=lambda f: f.__name__)
def test_unary_of_positive_numbers(op, dtype):
    check(lambda x: op(x), randn(37, 5, dtype=dtype).abs() + 1.0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("op", WITHIN_ONE, ids=lambda f: f.__name__)
def test_unary_within_one(op, dtype):
    check(lambda x: op(x), torch.rand(37, 5, dtype=dtype) * 1.8 - 0.9)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("op", BINARY, ids=lambda f: f.__name__)
def test_binary_broadcasts(op, dtype):
    check(lambda a, b: op(a, b), randn(7, 1, 5, dtype=dtype), randn(3, 1, dtype=dtype) + 0.01)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integer_arithmetic(dtype):
    a = torch.randint(-100 if dtype.is_signed else 0, 100, (50,), dtype=dtype)
    b = torch.randint(1, 10, (50,), dtype=dtype)
    check(lambda a, b: (a + b, a * b, a - b, a // b, a % b, torch.fmod(a, b), a / b, a & b, a | b, a ^ b, ~a), a, b)
    check(lambda a, b: (a << 1, a >> 1, a < b, a.abs(), -a, a.sum(), a.amax(), a.prod(), a.float().mean()), a, b)


@pytest.mark.parametrize("source", [*FLOATS, *INTEGERS, torch.bool], ids=str)
def test_casts(source):
    x = (randn(64) * 20).to(source) if source is not torch.bool else torch.rand(64) > 0.5
    if not source.is_signed:
        x = x.abs() if source is not torch.bool else x
    check(lambda x: [(x.to(d)) for d in (*FLOATS, *INTEGERS[:4], torch.bool)], x)


def test_special_values_of_floats():
    x = torch.tensor([0.0, -0.0, 1.0, float("inf"), -float("inf"), float("nan"), 1e-45, 3e38])
    check(lambda x: (x.exp(), x.sqrt(), x * 0, x / x, x.tanh(), x.sigmoid(), x.relu(), x.clamp(-1, 1)), x)
    check(lambda x: (x.amax(), x.amin(), x.sum(), x.argmax(), x[:5].max(0).values, x.isfinite(), x.sign()), x)


REDUCTIONS = {
    "sum": lambda x: x.sum(),
    "sum_last": lambda x: x.sum(-1),
    "sum_first_keep": lambda x: x.sum(0, keepdim=True),
    "sum_two": lambda x: x.sum((0, 2)),
    "mean": lambda x: x.mean(1),
    "amax": lambda x: x.amax(-1),
    "amin": lambda x: x.amin((0, 1)),
    "max_dim": lambda x: x.max(1),
    "min_dim": lambda x: x.min(-1, keepdim=True),
    "argmax": lambda x: x.argmax(1),
    "argmin_flat": lambda x: x.argmin(),
    "prod": lambda x: x.prod(-1),
    "var": lambda x: x.var(-1),
    "std": lambda x: x.std((0, 1), correction=0),
    "var_mean": lambda x: torch.var_mean(x, 2),
    "any": lambda x: (x > 2).any(1),
    "all": lambda x: (x > -2).all(),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=-1),
    "logsumexp": lambda x: x.logsumexp(1),
    "softmax": lambda x: x.softmax(-1),
    "softmax_first": lambda x: x.softmax(0),
    "log_softmax": lambda x: x.log_softmax(1),
    "cumsum": lambda x: x.cumsum(1),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("shape", [(4, 6, 8), (1, 1, 1), (3, 37, 65)], ids=str)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name, shape, dtype):
    if shape == (1, 1, 1) and name == "var":
        pytest.skip("eager warns and gives NaN")
    check(REDUCTIONS[name], randn(*shape, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_reductions_of_half_precision_accumulate_in_single(dtype):
    check(
        lambda x: (x.sum(-1), x.mean(0), x.amax(-1), x.softmax(-1)), randn(33, 130, dtype=dtype), rtol=1e-2, atol=1e-3
    )


def test_reductions_over_no_elements():
    check(lambda x: (x.sum(0), x.prod(0), x.mean(0), (x > 0).any(0), (x > 0).all(0)), torch.zeros(0, 3))
    check(lambda x: (x + 1, x.sum(-1), x.t().contiguous()), torch.zeros(3, 0))


VIEWS = {
    "transpose": lambda x: x.transpose(0, 1) + 1,
    "permute": lambda x: x.permute(2, 0, 1) * 2,
    "view": lambda x: (x + 1).view(6, -1) * 2,
    "reshape_of_transpose": lambda x: x.transpose(0, 2).reshape(-1) + 1,
    "flatten": lambda x: x.flatten(1) - 1,
    "unflatten": lambda x: x.unflatten(-1, (2, -1)).sum(-1),
    "expand": lambda x: x[:, :1].expand(-1, 6, -1) + x,
    "slice": lambda x: x[1:, ::2, :-1] * 3,
    "select": lambda x: x[:, 1] + x[:, -1],
    "cat": lambda x: torch.cat([x, x * 2, x[:, :1]], 1),
    "stack": lambda x: torch.stack([x, -x], 1),
    "split": lambda x: [c + 1 for c in x.split([2, 4], 1)],
    "chunk": lambda x: torch.cat([c.exp() for c in x.chunk(2, -1)], 0),
    "unbind": lambda x: sum(x.unbind(1)),
    "pad": lambda x: F.pad(x, (1, 2, 0, 3), value=7.0),
    "pad_reflect": lambda x: F.pad(x, (1, 2), mode="reflect"),
    "flip": lambda x: x.flip((0, 2)),
    "roll": lambda x: x.roll((1, 2), (0, 1)),
    "repeat": lambda x: x.repeat(2, 1, 3),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 1),
    "tril": lambda x: x.tril(1) + x.triu(-1),
    "diagonal": lambda x: x.diagonal(dim1=0, dim2=1) + 1,
    "as_strided": lambda x: torch.as_strided(x, (3, 4), (8, 2), 1) + 1,
    "squeeze": lambda x: x.sum(1, keepdim=True).squeeze(1),
    "movedim": lambda x: x.movedim(0, -1).contiguous(),
    "unfold": lambda x: x.unfold(2, 3, 2).sum(-1),
    "channels_last": lambda x: x.unsqueeze(0).contiguous(memory_format=torch.channels_last) + 1,
    "view_dtype": lambda x: x.view(torch.int32) + 1,
}


@pytest.mark.parametrize("name", VIEWS)
def test_views(name):
    check(VIEWS[name], randn(4, 6, 8))


@pytest.mark.parametrize("name", [n for n in VIEWS if n not in ("as_strided", "view_dtype", "view", "flatten")])
def test_views_of_a_strided_input(name):
    x = randn(8, 12, 4).permute(2, 1, 0)[:, ::2]
    assert x.shape == (4, 6, 8)
    check(VIEWS[name], x)


INDEXING = {
    "gather": lambda x, i: x.gather(1, i),
    "index_select": lambda x, i: x.index_select(0, i[0]),
    "index": lambda x, i: x[i[0]],
    "index_two": lambda x, i: x[i[0], i[1]],
    "index_negative": lambda x, i: x[-1 - i[0]],
    "embedding": lambda x, i: F.embedding(i, x),
    "take_along": lambda x, i: torch.take_along_dim(x, i, 1),
    "scatter": lambda x, i: torch.zeros_like(x).scatter(1, i, 2.0),
    "scatter_add": lambda x, i: torch.zeros_like(x).scatter_add(1, i, x),
    "index_add": lambda x, i: x.index_add(0, i[0], x[: i.shape[1]]),
    "index_put": lambda x, i: x.index_put((i[0],), x[0], accumulate=True),
    "one_hot": lambda x, i: F.one_hot(i, 8),
    "where": lambda x, i: torch.where(i[0, 0] > 2, x, -x),
    "masked_fill": lambda x, i: x.masked_fill(x > 0, 3.0),
    "boolean_assign": lambda x, i: torch.where(x > 0, 0.0, x),
    "slice_assign": lambda x, i: x.clone().index_fill(1, i[0], 0.5),
}


@pytest.mark.parametrize("name", INDEXING)
def test_indexing(name):
    check(INDEXING[name], randn(8, 8), torch.randint(0, 8, (8, 5)))


CREATION = {
    "arange": lambda x: torch.arange(x.shape[0], dtype=torch.float32) + x[:, 0],
    "arange_step": lambda x: torch.arange(1, 12, 3) * 2,
    "full": lambda x: torch.full((3, 2), 2.5) + x[:3, :2],
    "zeros_like": lambda x: torch.zeros_like(x) + 1,
    "eye": lambda x: torch.eye(4, 6) + x,
    "linspace": lambda x: torch.linspace(0, 1, 6) * x,
    "meshgrid": lambda x: torch.meshgrid(torch.arange(3), torch.arange(4), indexing="ij"),
    "tensor": lambda x: x + torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
}


@pytest.mark.parametrize("name", CREATION)
def test_creation(name):
    check(CREATION[name], randn(4, 6))


MATRICES = {
    "mm": lambda a, b: a @ b + 1,
    "mm_transposed": lambda a, b: a @ b.t().contiguous().t(),
    "addmm": lambda a, b: torch.addmm(a[:, :1], a, b, beta=0.5, alpha=2),
    "bmm": lambda a, b: torch.bmm(a.expand(3, -1, -1), b.expand(3, -1, -1)).relu(),
    "baddbmm": lambda a, b: torch.baddbmm(a[None, :, :1], a[None], b[None], alpha=0.1),
    "linear": lambda a, b: F.linear(a, b.t(), b[0]).relu(),
    "attention": lambda a, b: F.scaled_dot_product_attention(a[None, None], a[None, None], a[None, None]),
    "einsum": lambda a, b: torch.einsum("ij,jk->ki", a, b),
    "outer": lambda a, b: torch.outer(a[0], b[0]),
    "mv": lambda a, b: a @ b[:, 0],
    "dot": lambda a, b: a[0] @ b[:, 0],
}


@pytest.mark.parametrize("name", MATRICES)
def test_matrix_products(name):
    check(MATRICES[name], randn(5, 7), randn(7, 9), strides=name != "einsum")


BACKWARD = {
    "pointwise": lambda x: (x.sin() * x.exp()).tanh(),
    "softmax": lambda x: x.softmax(-1),
    "layer_norm": lambda x: F.layer_norm(x, (16,)),
    "rms_norm": lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6),
    "gelu": F.gelu,
    "cross_entropy": lambda x: F.cross_entropy(x, torch.arange(x.shape[0]) % 16),
    "matmul": lambda x: (x @ x.t()).relu(),
    "index": lambda x: x[torch.tensor([0, 2, 2])].square(),
    "cat": lambda x: torch.cat([x, x.flip(0)], 1).sigmoid(),
    "max": lambda x: x.amax(1),
    "expand": lambda x: (x.sum(0) * x).sum(1, keepdim=True) * x,
    "var": lambda x: (x - x.mean(0)) / (x.var(0) + 1e-5).sqrt(),
    "cumsum": lambda x: x.cumsum(0) * x,
    "two_outputs": lambda x: (x.sum(0), x.t() * 2),
}


@pytest.mark.parametrize("name", BACKWARD)
def test_backward(name):
    check(BACKWARD[name], randn(6, 16, grad=True), backward=True, rtol=1e-4, atol=1e-5)


MODULES = {
    "conv": lambda: (torch.nn.Conv2d(3, 8, 3, padding=1), (2, 3, 8, 8)),
    "conv_channels_last": lambda: (
        torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU()).to(memory_format=torch.channels_last),
        (2, 3, 8, 8),
    ),
    "batch_norm": lambda: (torch.nn.BatchNorm2d(4), (3, 4, 5, 5)),
    "group_norm": lambda: (torch.nn.GroupNorm(2, 4), (3, 4, 5, 5)),
    "max_pool": lambda: (torch.nn.MaxPool2d(3, 2, 1), (2, 3, 9, 9)),
    "avg_pool": lambda: (torch.nn.AvgPool2d(2), (2, 3, 8, 8)),
    "adaptive_pool": lambda: (torch.nn.AdaptiveAvgPool2d((2, 3)), (2, 3, 8, 9)),
    "upsample": lambda: (torch.nn.Upsample(scale_factor=2, mode="bilinear"), (1, 2, 4, 5)),
    "lstm": lambda: (torch.nn.LSTM(4, 6), (5, 2, 4)),
    "encoder_layer": lambda: (torch.nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True), (2, 5, 16)),
}


@pytest.mark.parametrize("name", MODULES)
def test_modules_forward_and_backward(name):
    import copy

    module, shape = MODULES[name]()
    twin = copy.deepcopy(module)
    x = randn(*shape, grad=True)
    y = x.detach().clone().requires_grad_()
    want = module(x)
    got = torch.compile(twin, backend="loafc")(y)
    compare(got, want, strides=False, rtol=1e-4, atol=1e-5)
    for out in (want, got):
        out = out[0] if isinstance(out, tuple) else out
        out.square().mean().backward()
    compare(y.grad, x.grad, strides=False, rtol=1e-3, atol=1e-5)
    for p, q in zip(twin.parameters(), module.parameters(), strict=True):
        compare(p.grad, q.grad, strides=False, rtol=1e-3, atol=1e-5)
    for p, q in zip(twin.buffers(), module.buffers(), strict=True):
        compare(p, q, rtol=1e-4, atol=1e-5)


MUTATIONS = {
    "add_": lambda x: x.add_(1),
    "returned": lambda x: (x.mul_(2), x.sum()),
    "row": lambda x: x[1].zero_(),
    "shifted": lambda x: x[1:].copy_(x[:-1].clone()),
    "shifted_in_place": lambda x: x[:, 1:].add_(x[:, :1]),
    "transposed": lambda x: x.t()[0].add_(x.sum()),
    "copy": lambda x: x.copy_(x.flip(0)),
    "twice": lambda x: x.add_(1).mul_(x.mean()),
    "read_before": lambda x: (x.sum(0), x.add_(5), x.sum(0))[::2],
    "fill_diagonal": lambda x: x.fill_diagonal_(3.0),
    "index_put_": lambda x: x.index_put_((torch.tensor([0, 1]),), torch.tensor(9.0)),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_mutation_of_arguments(name):
    check(MUTATIONS[name], randn(4, 4))


def test_outputs_that_are_views_of_arguments():
    x = randn(4, 6)
    f = compiled(lambda x: (x, x.t(), x[1:], x.view(-1)))
    outs = f(x)
    compare(outs, (x, x.t(), x[1:], x.view(-1)))
    assert all(o.data_ptr() - x.data_ptr() in (0, 24) for o in outs)


def test_outputs_that_share_memory_with_each_other():
    def f(x):
        y = x + 1
        return y, y.t(), y[1:], y

    outs = compiled(f)(randn(4, 6))
    outs[0].zero_()
    assert all(o.abs().sum() == 0 for o in outs)


def test_outputs_outlive_the_program_and_each_other():
    f = compiled(lambda x: (x + 1, x * 2))
    x = torch.ones(1000)
    kept = [f(x * k) for k in range(20)]
    for k, (a, b) in enumerate(kept):
        assert torch.equal(a, torch.full((1000,), k + 1.0)) and torch.equal(b, torch.full((1000,), 2.0 * k))


def test_no_outputs_and_none_outputs():
    check(lambda x: None, randn(2))
    check(lambda x: (x + 1, None, 3, "text"), randn(2))


def test_zero_dimensional_tensors():
    check(lambda x, y: (x + y, x * 2, (x > y) & (y > 0)), torch.tensor(1.5), torch.tensor(2))


def test_complex_numbers_go_through_aten():
    x = torch.randn(4, 4, dtype=torch.complex64)
    check(lambda x: (x * 2, x.conj() + 1, torch.view_as_real(x) * 3, x.abs()), x)
    check(lambda x: torch.fft.fft(x).real.sum(0), randn(4, 8))


def test_lazily_negated_argument_with_gaps():
    x = torch.randn(3, 4, dtype=torch.complex64).conj().imag
    assert x.is_neg()
    check(lambda x: x * 2, x)
    check(lambda x: (x + 1).t(), x[:, ::2])


def test_lazily_conjugated_argument():
    x = torch.randn(4, dtype=torch.complex64)
    f = compiled(lambda x: torch.view_as_real(x.resolve_conj()) + 1)
    compare(f(x.conj()), torch.view_as_real(x.conj().resolve_conj()) + 1)


@pytest.mark.parametrize("seed", [0, 7])
def test_random_numbers_are_those_of_eager(seed):
    def f(x):
        a = F.dropout(x, 0.4)
        return a + torch.rand_like(x), torch.randn(3), torch.bernoulli(x.sigmoid()), torch.randint(0, 9, (4,))

    x = randn(16, 16)
    torch.manual_seed(seed)
    want = f(x)
    torch.manual_seed(seed)
    got = compiled(f)(x)
    compare(got, want)


def test_dropout_in_training_drops_the_same_elements():
    x, y = (torch.ones(64, 64, requires_grad=True) for _ in range(2))
    f = lambda x: F.dropout(x.exp(), 0.3, training=True)
    torch.manual_seed(3)
    f(x).sum().backward()
    torch.manual_seed(3)
    compiled(f)(y).sum().backward()
    compare(y.grad, x.grad)


def test_optimizer_step():
    def train(compile_step):
        torch.manual_seed(0)
        model = torch.nn.Linear(8, 4)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        step = compiled(optimizer.step) if compile_step else optimizer.step
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.ones(2, 8)).square().sum().backward()
            step()
        return [p.detach() for p in model.parameters()]

    compare(train(True), train(False), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("threads", [1, 2])
def test_results_do_not_depend_on_the_number_of_threads(threads):
    f = compiled(lambda x: (x.sum(), x.softmax(0), x.sum(1), x.exp().mean(0)))
    x = randn(300, 700)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        want = f(x)
        torch.set_num_threads(threads)
        got = f(x)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(g, w) for g, w in zip(got, want, strict=True))


_BY_A_NUMBER = {
    "add": lambda x, s: x + s,
    "sub": lambda x, s: x - s,
    "rsub": lambda x, s: s - x,
    "mul": lambda x, s: x * s,
    "div": lambda x, s: x / s,
    "floor_divide": lambda x, s: x // s,
    "divide and truncate": lambda x, s: torch.div(x, s, rounding_mode="trunc"),
    "fmod": lambda x, s: torch.fmod(x, s),
    "remainder": lambda x, s: torch.remainder(x, s),
    "remainder of a number": lambda x, s: torch.remainder(s, x),
    "pow": lambda x, s: x.abs() ** s,
    "pow of a number": lambda x, s: s**x,
    "add a multiple": lambda x, s: torch.add(x, x.flip(0), alpha=s),
    "subtract a multiple": lambda x, s: torch.sub(x, x.flip(0), alpha=s),
    "lerp": lambda x, s: torch.lerp(x, x.flip(0), s / 4),
    "clamp": lambda x, s: x.clamp(-s, s),
    "gt": lambda x, s: x > s,
    "mul by a tensor": lambda x, s: x * torch.tensor(s),
    "floor_divide by a tensor": lambda x, s: x // torch.tensor(s),
    "fmod by a tensor": lambda x, s: torch.fmod(x, torch.tensor(s)),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_numbers_are_rounded_to_narrow_types_where_eager_mode_rounds_them(dtype):
    x = (torch.randn(512) * 3).to(dtype)

    def all_of(x):
        return [fn(x, s) for fn in _BY_A_NUMBER.values() for s in (0.3, 1.7)]

    for got, want in zip(compiled(all_of)(x), all_of(x), strict=True):
        assert torch.equal(got.nan_to_num(), want.nan_to_num())


_OUT_OF_RANGE = {
    "gather": lambda x, i: x.gather(0, i),
    "scatter": lambda x, i: x.scatter(0, i, 1.0),
    "scatter_add": lambda x, i: x.scatter_add(0, i, x),
    "index_add": lambda x, i: x.index_add(0, i, x),
    "index_add of rows": lambda x, i: x[:, None].index_add(0, i, x[:, None]),
    "index_copy": lambda x, i: x.index_copy(0, i, x),
    "index_select": lambda x, i: x.index_select(0, i),
    "index": lambda x, i: x[i],
    "index_put": lambda x, i: x.index_put((i,), x),
    "take": lambda x, i: x.take(i),
    "embedding": lambda x, i: F.embedding(i, x[:, None]),
    "nll_loss": lambda x, i: F.nll_loss(x[:, None].expand(3, 4), i),
    # Two planes of three elements: a position beyond the first one is none of the second's.
    "max_unpool1d": lambda x, i: F.max_unpool1d(x.expand(2, 3), i.expand(2, 3), 1),
    "max_unpool2d": lambda x, i: F.max_unpool2d(x.expand(2, 1, 3), i.expand(2, 1, 3), 1),
    "max_unpool3d": lambda x, i: F.max_unpool3d(x.expand(2, 1, 1, 3), i.expand(2, 1, 1, 3), 1),
}


@pytest.mark.parametrize("position", [-9, -1, 4, 7])
@pytest.mark.parametrize("fn", _OUT_OF_RANGE.values(), ids=_OUT_OF_RANGE)
def test_positions_out_of_range_raise_what_eager_mode_raises(fn, position):
    x, i = torch.randn(3), torch.tensor([0, position, 1])
    try:
        want = fn(x, i)
    except (IndexError, RuntimeError) as error:
        with pytest.raises(type(error)):
            compiled(fn)(x, i)
    else:
        compare(compiled(fn)(x, i), want)


@pytest.mark.parametrize("index", [0, [0]], ids=["a number", "one position"])
def test_a_tensor_without_dimensions_has_one_row(index):
    x, i, source = torch.tensor(1.0), torch.tensor(index), torch.tensor(2.0)
    check(lambda x, i, s: (x.index_add(0, i, s), x.index_copy(0, i, s), x.index_fill(0, i, 3.0)), x, i, source)


def test_moments_of_nothing_are_nan():
    fn = lambda x: (torch.var_mean(x), torch.std_mean(x, 0), x.var(), x.mean(0))
    check(fn, torch.zeros(0, 3))
    check(fn, torch.zeros(0))


def test_integers_between_two_are_cut_as_in_eager_mode():
    def fn(x):
        return x + torch.linspace(-4, 100, 50, dtype=torch.int64), torch.linspace(2.7, -9, 31, dtype=torch.int32)

    check(fn, torch.zeros(50, dtype=torch.int64))


def test_complex_halves_pass_through():
    x = torch.randn(8)
    got = compiled(lambda x: (x.chalf(), x + 1))(x)
    assert torch.equal(torch.view_as_real(got[0]), torch.view_as_real(x.chalf()))
    assert torch.equal(got[1], x + 1)


_KINKED = [F.hardtanh, F.relu6, F.hardshrink, F.softshrink, F.elu, F.celu, F.selu, F.hardswish]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("fn", _KINKED, ids=lambda fn: fn.__name__)
def test_gradients_at_nan_are_among_eager_modes(fn, dtype):
    """Eager mode gives two: one to elements in whole vectors, another to those behind them."""
    gradient = lambda fn, x: torch.autograd.grad(fn(x).sum(), x)[0]
    x = torch.full((67,), torch.nan, dtype=dtype, requires_grad=True)
    eagers = gradient(fn, x)
    among = lambda g: any(torch.allclose(g, e, equal_nan=True) for e in (eagers[0], eagers[-1]))
    assert all(among(g) for g in gradient(compiled(fn), x))
