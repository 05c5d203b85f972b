"""Small models for test_models.py, in the form of a zoo: each has what models of its kind have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


class Loss(nn.Module):
    """A model with a loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        return self.model(*args).float().square().mean()


class Attention(nn.Module):
    """Tokens, positions, causal attention, a gated layer and tied output weights."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(40, 32), nn.Embedding(16, 32)
        self.norm, self.mixed = nn.LayerNorm(32), nn.Linear(32, 96)
        self.gate, self.up, self.down = nn.Linear(32, 64), nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        batch, length = ids.shape
        x = self.tokens(ids) + self.positions(torch.arange(length))
        q, k, v = self.mixed(self.norm(x)).view(batch, length, 3, 4, 8).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + mixed.transpose(1, 2).reshape(batch, length, 32)
        h = self.norm(x)
        x = x + self.down(F.silu(self.gate(h)) * self.up(h))
        return x @ self.tokens.weight.t()


def _model(model: nn.Module, *args: torch.Tensor) -> dict[str, Any]:
    return {"eval": (model, args, {}), "train": (Loss(model), args, {})}


def attention() -> dict[str, Any]:
    return _model(Attention(), torch.randint(0, 40, (2, 12)))


def convolutions() -> dict[str, Any]:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, groups=8, padding=1),
        nn.GroupNorm(2, 8),
        nn.Hardswish(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 5),
    )
    return _model(model, torch.randn(4, 3, 12, 12))


def dropout() -> dict[str, Any]:
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.2), nn.Linear(32, 8), nn.Dropout(0.5))
    return _model(model, torch.randn(8, 16))


def recurrent() -> dict[str, Any]:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.GRUCell(8, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            state = x.new_zeros(x.shape[0], 16)
            for step in x.unbind(1):
                state = self.cell(step, state)
            return state

    return _model(Last(), torch.randn(3, 4, 8))


def optimizer() -> dict[str, Any]:
    parameters = [nn.Parameter(torch.randn(16, 8)), nn.Parameter(torch.randn(8))]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    adam = torch.optim.AdamW(parameters, lr=1e-2)
    adam.step()

    def step() -> None:
        adam.step()

    return {"eval": (step, (), {}), "train": None}


ZOO: dict[str, tuple[str, Callable[[], dict[str, Any]]]] = {
    build.__name__: ("small", build) for build in (attention, convolutions, dropout, recurrent, optimizer)
}
