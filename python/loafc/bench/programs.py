"""The programs that ``python -m loafc.bench cpu`` measures, by kind.

The large ones touch 16 MiB or more, so that memory is what limits them; the small ones less than 64 KiB, where the
overhead of a call counts. Each builds its own inputs; all are deterministic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Program:
    """A function with its inputs.

    With ``train``, the gradients of every floating input are computed too. ``bytes`` are the least that have to move
    where inputs and outputs don't say it, because only a part of an input is needed. A program that is not
    ``memory_bound`` has no floor. ``tolerance`` is the largest error, relative to the largest value of a tensor;
    integers have to be equal but for as many units as ``units`` says.
    """

    name: str
    kind: str
    fn: Callable[..., Any]
    inputs: Callable[[], Sequence[Any]]
    train: bool = False
    small: bool = False
    memory_bound: bool = True
    bytes: int | None = None
    tolerance: float = 1e-5
    units: int = 0


BF16_TOLERANCE = 1e-2

PROGRAMS: list[Program] = []


def _add(name: str, kind: str, fn: Callable[..., Any], inputs: Callable[[], Sequence[Any]], **rest: Any) -> None:
    PROGRAMS.append(Program(name, kind, fn, inputs, **rest))


def _rand(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape).to(dtype)


def _ints(high: int, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.randint(0, high, shape, dtype=dtype)


# Transposes and permutes.


def transposed_pair(x: Tensor, y: Tensor) -> Tensor:
    return x * 2 + y.t() * 3


def swap_inner(x: Tensor) -> Tensor:
    return x.transpose(1, 2).contiguous() + 1


def heads_first(x: Tensor) -> Tensor:
    return (x * 0.125).transpose(1, 2).contiguous()


def nchw_to_nhwc(x: Tensor, b: Tensor) -> Tensor:
    return (x + b[:, None, None]).permute(0, 2, 3, 1).contiguous()


def nhwc_to_nchw(x: Tensor, b: Tensor) -> Tensor:
    return (x + b).permute(0, 3, 1, 2).contiguous()


def int8_with_transpose(x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    q = (x * scale).clamp(-127, 127).to(torch.int8)
    return q, q.t().contiguous().t()


def relu_transposed(x: Tensor) -> Tensor:
    return x.relu().t().contiguous()


def xor_transposed(x: Tensor) -> Tensor:
    return (x ^ 0x55).t().contiguous()


def sums_and_transposed(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.sum(-1), x.t().contiguous()


_add("transposed_pair", "transposes", transposed_pair, lambda: [_rand(2048, 4096), _rand(4096, 2048)])
_add("swap_inner", "transposes", swap_inner, lambda: [_rand(32, 512, 768)])
_add("heads_first", "transposes", heads_first, lambda: [_rand(8, 1024, 16, 64)])
_add("nchw_to_nhwc_bias", "transposes", nchw_to_nhwc, lambda: [_rand(16, 64, 96, 96), _rand(64)])
_add("nhwc_to_nchw_bias", "transposes", nhwc_to_nchw, lambda: [_rand(16, 96, 96, 64), _rand(64)])
_add("int8_and_transposed", "transposes", int8_with_transpose, lambda: [_rand(4096, 4096), torch.tensor(20.0)], units=1)
_add("bf16_transposed", "transposes", relu_transposed, lambda: [_rand(4096, 4096, dtype=torch.bfloat16)])
_add("uint8_transposed", "transposes", xor_transposed, lambda: [_ints(256, 8192, 4096, dtype=torch.uint8)])
_add("sums_and_transposed", "transposes", sums_and_transposed, lambda: [_rand(4096, 3072)])


# Normalisations.


def layer_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), w, b)


def add_layer_norm(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    s = x + r
    return s, F.layer_norm(s, (s.shape[-1],), w, b)


def rms_norm(x: Tensor, w: Tensor) -> Tensor:
    f = x.float()
    return (f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w


def head_rms_norm(x: Tensor, w: Tensor) -> Tensor:
    heads = x.view(x.shape[0], -1, w.shape[0])
    return (heads * torch.rsqrt(heads.pow(2).mean(-1, keepdim=True) + 1e-6) * w).view(x.shape)


def group_norm_silu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.silu(F.group_norm(x, 8, w, b))


def batch_norm_relu(x: Tensor, mean: Tensor, var: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.relu(F.batch_norm(x, mean, var, w, b))


def batch_norm_train(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.batch_norm(x, None, None, w, b, training=True)


_add("layer_norm", "norms", layer_norm, lambda: [_rand(8192, 1024), _rand(1024), _rand(1024)])
_add("layer_norm_train", "norms", layer_norm, lambda: [_rand(8192, 1024), _rand(1024), _rand(1024)], train=True)
_add("add_layer_norm", "norms", add_layer_norm, lambda: [_rand(8192, 768), _rand(8192, 768), _rand(768), _rand(768)])
_add("rms_norm", "norms", rms_norm, lambda: [_rand(8192, 1024), _rand(1024)])
_add(
    "rms_norm_bf16",
    "norms",
    rms_norm,
    lambda: [_rand(8192, 2048, dtype=torch.bfloat16), _rand(2048, dtype=torch.bfloat16)],
    tolerance=BF16_TOLERANCE,
)
_add("rms_norm_train", "norms", rms_norm, lambda: [_rand(8192, 1024), _rand(1024)], train=True)
_add("head_rms_norm", "norms", head_rms_norm, lambda: [_rand(4096, 2048), _rand(128)])
_add("group_norm_silu", "norms", group_norm_silu, lambda: [_rand(16, 64, 96, 96), _rand(64), _rand(64)])
_add(
    "batch_norm_relu",
    "norms",
    batch_norm_relu,
    lambda: [_rand(32, 64, 64, 64), _rand(64), _rand(64).abs() + 0.5, _rand(64), _rand(64)],
)
_add("batch_norm_train", "norms", batch_norm_train, lambda: [_rand(32, 64, 64, 64), _rand(64), _rand(64)], train=True)


# Softmax and what is built on it.


def softmax_inner(x: Tensor) -> Tensor:
    return x.softmax(-1)


def softmax_outer(x: Tensor) -> Tensor:
    return x.softmax(0)


def softmax_masked(x: Tensor, mask: Tensor) -> Tensor:
    return (x * 0.125).masked_fill(mask, float("-inf")).softmax(-1)


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits, target)


def log_sum_exp(x: Tensor) -> Tensor:
    return x.logsumexp(-1)


_CAUSAL = 512

_add("softmax_inner", "softmax", softmax_inner, lambda: [_rand(8192, 1024)])
_add("softmax_train", "softmax", softmax_inner, lambda: [_rand(4096, 1024)], train=True)
_add("softmax_outer", "softmax", softmax_outer, lambda: [_rand(1024, 8192)])
_add(
    "softmax_masked",
    "softmax",
    softmax_masked,
    lambda: [_rand(4, 8, _CAUSAL, _CAUSAL), torch.ones(_CAUSAL, _CAUSAL, dtype=torch.bool).triu(1)],
)
_add("softmax_long", "softmax", softmax_inner, lambda: [_rand(32, 262144)])
_add("logsumexp", "softmax", log_sum_exp, lambda: [_rand(8192, 2048)])
_add("cross_entropy", "softmax", cross_entropy, lambda: [_rand(512, 32000), _ints(32000, 512)])
_add("cross_entropy_train", "softmax", cross_entropy, lambda: [_rand(512, 32000), _ints(32000, 512)], train=True)


# Reductions.


def argmax_rows(x: Tensor) -> Tensor:
    return x.argmax(-1)


def argmax_columns(x: Tensor) -> Tensor:
    return x.argmax(0)


def variance_columns(x: Tensor) -> Tensor:
    return x.var(0)


def sum_all(x: Tensor) -> Tensor:
    return x.sum()


def mean_squared_error(x: Tensor, y: Tensor) -> Tensor:
    return ((x - y) ** 2).mean()


def sum_rows_and_columns(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.sum(0), x.sum(1)


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    m = mask[..., None].to(x.dtype)
    return (x * m).sum(1) / m.sum(1)


def cumsum_rows(x: Tensor) -> Tensor:
    return x.cumsum(-1)


def cumsum_columns(x: Tensor) -> Tensor:
    return x.cumsum(0)


def running_maximum(x: Tensor) -> tuple[Tensor, Tensor]:
    values, positions = x.cummax(-1)
    return values, positions


def log_cumulative_sum_exp(x: Tensor) -> Tensor:
    return x.logcumsumexp(-1)


def positions_of_mask(mask: Tensor) -> Tensor:
    return (mask.cumsum(-1) - 1).clamp(min=0)


_add("argmax_rows", "reductions", argmax_rows, lambda: [_rand(4096, 4096)])
_add("argmax_columns", "reductions", argmax_columns, lambda: [_rand(4096, 4096)])
_add("variance_columns", "reductions", variance_columns, lambda: [_rand(8192, 2048)])
_add("sum_all", "reductions", sum_all, lambda: [_rand(4096, 4096)], tolerance=1e-4)
_add("mean_squared_error", "reductions", mean_squared_error, lambda: [_rand(4096, 4096), _rand(4096, 4096)])
_add("sum_rows_and_columns", "reductions", sum_rows_and_columns, lambda: [_rand(4096, 4096)])
_add("masked_mean", "reductions", masked_mean, lambda: [_rand(32, 512, 1024), _ints(2, 32, 512)])
_add("cumsum_rows", "scans", cumsum_rows, lambda: [_rand(4096, 2048)])
_add("cumsum_columns", "scans", cumsum_columns, lambda: [_rand(4096, 2048)])
_add("cummax_rows", "scans", running_maximum, lambda: [_rand(4096, 2048)])
_add("logcumsumexp_rows", "scans", log_cumulative_sum_exp, lambda: [_rand(2048, 2048)])
_add("positions_of_mask", "scans", positions_of_mask, lambda: [_ints(2, 2048, 2048) == 1])


# Quantisation.


def _quantise_blocks(x: Tensor) -> tuple[Tensor, Tensor]:
    blocks = x.unflatten(-1, (-1, 32))
    scale = blocks.abs().amax(-1, keepdim=True) / 127 + 1e-8
    return (blocks / scale).round().clamp(-127, 127).to(torch.int8).flatten(-2), scale.squeeze(-1)


def quantise_blocks(x: Tensor) -> tuple[Tensor, Tensor]:
    return _quantise_blocks(x)


def norm_quantise_blocks(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return _quantise_blocks(x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w)


def dequantise(q: Tensor, scale: Tensor) -> Tensor:
    return (q.unflatten(-1, (-1, 32)).float() * scale[..., None]).flatten(-2)


_add("quantise_blocks", "quantisation", quantise_blocks, lambda: [_rand(4096, 4096)], units=1)
_add("norm_quantise_blocks", "quantisation", norm_quantise_blocks, lambda: [_rand(4096, 4096), _rand(4096)], units=1)
_add(
    "dequantise_blocks",
    "quantisation",
    dequantise,
    lambda: [_ints(256, 4096, 4096).sub(128).to(torch.int8), _rand(4096, 128)],
)


# What stands between the matrix products of language models.


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    return x * cos + turned * sin


def swiglu(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


def gelu_bias(x: Tensor, b: Tensor) -> Tensor:
    return F.gelu(x + b)


def gelu_tanh(x: Tensor, b: Tensor) -> Tensor:
    return F.gelu(x + b, approximate="tanh")


def embedding_norm(ids: Tensor, table: Tensor, places: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(F.embedding(ids, table) + places, (table.shape[1],), w, b)


def transformer_block(x: Tensor, qkv: Tensor, proj: Tensor, up: Tensor, down: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
    n, length, d = x.shape
    heads = d // 64

    def norm(t: Tensor, w: Tensor) -> Tensor:
        return t * torch.rsqrt(t.pow(2).mean(-1, keepdim=True) + 1e-6) * w

    q, k, v = (norm(x, w1) @ qkv).view(n, length, 3, heads, 64).permute(2, 0, 3, 1, 4)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    x = x + mixed.transpose(1, 2).reshape(n, length, d) @ proj
    return x + F.gelu(norm(x, w2) @ up) @ down


_ROTARY_PLACES = lambda: torch.arange(1024)[:, None, None] * torch.logspace(0, -4, 128)  # noqa: E731

_add(
    "rotary",
    "language models",
    rotary,
    lambda: [_rand(4, 1024, 16, 128), _ROTARY_PLACES().cos(), _ROTARY_PLACES().sin()],
)
_add("swiglu", "language models", swiglu, lambda: [_rand(4096, 2 * 2816)])
_add(
    "swiglu_bf16",
    "language models",
    swiglu,
    lambda: [_rand(8192, 2 * 2816, dtype=torch.bfloat16)],
    tolerance=BF16_TOLERANCE,
)
_add("gelu_bias", "language models", gelu_bias, lambda: [_rand(4096, 3072), _rand(3072)])
_add("gelu_tanh_train", "language models", gelu_tanh, lambda: [_rand(4096, 3072), _rand(3072)], train=True)
_add(
    "embedding_norm",
    "language models",
    embedding_norm,
    lambda: [_ints(16384, 8, 1024), _rand(16384, 1024), _rand(1024, 1024), _rand(1024), _rand(1024)],
    bytes=4 * 1024 * (2 * 8 * 1024 + 1024 + 2) + 8 * 8 * 1024,
)
_add(
    "transformer_block",
    "language models",
    transformer_block,
    lambda: [
        _rand(4, 512, 512),
        *(_rand(a, b) / math.sqrt(a) for a, b in ((512, 1536), (512, 512), (512, 2048), (2048, 512))),
        *(_rand(512), _rand(512)),
    ],
    memory_bound=False,
    tolerance=1e-4,
)


# Pointwise chains, optimizers, indexing, images.


def long_chain(x: Tensor, y: Tensor) -> Tensor:
    for k in range(8):
        x = torch.where(x > 0.1 * k, x * y + 0.25, x - y) * 0.75
        y = (y.abs() + 0.5).sqrt() - x * 0.125
    return x + y


def transcendental_chain(x: Tensor) -> Tensor:
    return torch.tanh(torch.sin(x) * torch.exp(-x * x)) + torch.log1p(x.abs())


def adamw(params: list[Tensor], grads: list[Tensor], means: list[Tensor], squares: list[Tensor], step: Tensor) -> None:
    step += 1
    first, second = 1 - 0.9**step, 1 - 0.999**step
    for p, g, m, v in zip(params, grads, means, squares, strict=True):
        p.mul_(1 - 1e-3 * 0.01)
        m.lerp_(g, 0.1)
        v.mul_(0.999).addcmul_(g, g, value=0.001)
        p.sub_(1e-3 * (m / first) / ((v / second).sqrt() + 1e-8))


def gather_rows(x: Tensor, ids: Tensor) -> Tensor:
    return x[ids] * 2


def scatter_add(x: Tensor, ids: Tensor) -> Tensor:
    return torch.zeros(4096, x.shape[1]).index_add(0, ids, x)


def normalise_image(image: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    return ((image.float() / 255 - mean) / std).permute(0, 3, 1, 2).contiguous()


def hash_integers(x: Tensor) -> Tensor:
    x = (x ^ (x >> 16)) * 0x45D9F3B
    x = (x ^ (x >> 15)) * 0x2C1B3C6D
    return x ^ (x >> 16)


def upsample_nearest(x: Tensor) -> Tensor:
    return F.interpolate(x, scale_factor=2, mode="nearest")


def upsample_bilinear(x: Tensor) -> Tensor:
    return F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)


def split_and_cat(x: Tensor) -> Tensor:
    a, b, c = x.split((512, 1024, 512), -1)
    return torch.cat((b.relu(), a * 2, c.sigmoid()), -1)


def pad_and_blur(x: Tensor) -> Tensor:
    x = F.pad(x, (1, 1))
    return 0.25 * x[..., :-2] + 0.5 * x[..., 1:-1] + 0.25 * x[..., 2:]


def average_pool(x: Tensor) -> Tensor:
    return F.avg_pool2d(x, 2)


_LAYERS = ((1024, 1024), (1024,), (1024, 512), (512,), (512, 1024), (2048, 256), (256,))


def _adamw_inputs(layers: Sequence[tuple[int, ...]], repeat: int) -> list[Any]:
    shapes = list(layers) * repeat
    tensors = [[_rand(*s) for s in shapes] for _ in range(3)]
    return [*tensors, [_rand(*s).abs() for s in shapes], torch.tensor(3.0)]


_add("long_chain", "pointwise", long_chain, lambda: [_rand(4096, 2048), _rand(4096, 2048)])
_add("transcendental_chain", "pointwise", transcendental_chain, lambda: [_rand(4096, 4096)])
_add("adamw", "pointwise", adamw, lambda: _adamw_inputs(_LAYERS, 2))
_add("hash_int32", "pointwise", hash_integers, lambda: [_ints(2**31 - 1, 4096, 4096, dtype=torch.int32)])
_add("hash_int64", "pointwise", hash_integers, lambda: [_ints(2**31 - 1, 4096, 2048)])
_add(
    "gather_rows",
    "indexing",
    gather_rows,
    lambda: [_rand(32768, 512), _ints(32768, 16384)],
    bytes=16384 * (2 * 4 * 512 + 8),
)
_add("scatter_add", "indexing", scatter_add, lambda: [_rand(16384, 512), _ints(4096, 16384)])
_add("split_and_cat", "indexing", split_and_cat, lambda: [_rand(4096, 2048)])
_add("pad_and_blur", "indexing", pad_and_blur, lambda: [_rand(4096, 2048)])
_add(
    "normalise_image",
    "images",
    normalise_image,
    lambda: [
        _ints(256, 64, 256, 256, 3, dtype=torch.uint8),
        torch.tensor([0.5, 0.4, 0.3]),
        torch.tensor([0.2, 0.3, 0.1]),
    ],
)
_add("upsample_nearest", "images", upsample_nearest, lambda: [_rand(8, 64, 96, 96)])
_add("upsample_bilinear", "images", upsample_bilinear, lambda: [_rand(8, 64, 96, 96)])
_add("average_pool", "images", average_pool, lambda: [_rand(16, 64, 128, 128)])


# Small tensors: what a call costs.

_add("tiny_add", "small", lambda x, y: x + y, lambda: [_rand(8), _rand(8)], small=True)
_add("small_transposed_pair", "small", transposed_pair, lambda: [_rand(48, 64), _rand(64, 48)], small=True)
_add("small_layer_norm", "small", layer_norm, lambda: [_rand(16, 256), _rand(256), _rand(256)], small=True)
_add("small_rms_norm", "small", rms_norm, lambda: [_rand(16, 256), _rand(256)], small=True)
_add("small_softmax", "small", softmax_inner, lambda: [_rand(32, 128)], small=True)
_add("small_sum_all", "small", sum_all, lambda: [_rand(64, 128)], small=True)
_add("small_gelu_bias", "small", gelu_bias, lambda: [_rand(32, 128), _rand(128)], small=True)
_add("small_long_chain", "small", long_chain, lambda: [_rand(32, 64), _rand(32, 64)], small=True)
_add(
    "small_rotary",
    "small",
    rotary,
    lambda: [_rand(1, 16, 2, 64), _rand(16, 1, 64), _rand(16, 1, 64)],
    small=True,
)
_add("small_quantise_blocks", "small", quantise_blocks, lambda: [_rand(32, 256)], small=True, units=1)
_add("small_adamw", "small", adamw, lambda: _adamw_inputs(((16, 32), (16,)), 2), small=True)
_add(
    "small_layer_norm_train",
    "small",
    layer_norm,
    lambda: [_rand(8, 128), _rand(128), _rand(128)],
    train=True,
    small=True,
)
