"""What each process of test_distributed.py runs, under torchrun with gloo; prints ``fine`` when all holds."""

from __future__ import annotations

import copy
import sys
import warnings

import loafc
import loafc.metrics
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch.nn.parallel import DistributedDataParallel

STEPS = 4


class Net(torch.nn.Module):
    """More weights than one of DDP's buckets holds, which is a megabyte at least."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(16, 512),
            torch.nn.LayerNorm(512),
            torch.nn.GELU(),
            torch.nn.Linear(512, 512),
            torch.nn.ReLU(),
            torch.nn.Linear(512, 512),
            torch.nn.ReLU(),
            torch.nn.Linear(512, 4),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).softmax(-1)


def trained(net: torch.nn.Module, rank: int, compiled: bool) -> list[torch.Tensor]:
    """The weights after some steps on this process's own data."""
    torch._dynamo.reset()
    # Several buckets, so that gradients are reduced while the backward pass is still running.
    model = DistributedDataParallel(net, bucket_cap_mb=1)
    run = torch.compile(model, backend="loafc", options={"fallback": False}) if compiled else model
    # Not Adam, whose first steps are as large for a gradient that is nearly zero.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    data = torch.Generator().manual_seed(rank)
    for _ in range(STEPS):
        x = torch.randn(8, 16, generator=data)
        target = torch.randn(8, 4, generator=data)
        (run(x) - target).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach().clone() for p in model.parameters()]


def ddp_trains_to_the_same_weights(rank: int) -> None:
    torch.manual_seed(0)
    net = Net()
    want = trained(copy.deepcopy(net), rank, compiled=False)
    got = trained(copy.deepcopy(net), rank, compiled=True)
    for g, w, start in zip(got, want, net.parameters(), strict=True):
        torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-5)
        assert not torch.equal(g, start)
    others = [torch.empty_like(got[0]) for _ in range(dist.get_world_size())]
    dist.all_gather(others, got[0])
    assert all(torch.equal(other, got[0]) for other in others)


def collectives_within_a_graph_give_eagers_values(rank: int) -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        group = dist.group.WORLD
        total = collectives.all_reduce(x * 2, "sum", group)
        parts = collectives.all_gather_tensor(x + 1, 0, group)
        own = collectives.reduce_scatter_tensor(parts * total.mean(), "sum", 0, group)
        return total.relu(), parts, own - x

    torch._dynamo.reset()
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(rank))
    compiled = torch.compile(fn, backend="loafc", fullgraph=True, options={"fallback": False})
    for _ in range(3):
        for got, want in zip(compiled(x), fn(x), strict=True):
            torch.testing.assert_close(got, want)
        x = x + 1


def collectives_in_place_give_eagers_values(rank: int) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x * 3
        dist.all_reduce(y)
        return y.sum(0) + x

    torch._dynamo.reset()
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(rank))
    compiled = torch.compile(fn, backend="loafc", options={"fallback": False})
    torch.testing.assert_close(compiled(x), fn(x))


def main() -> None:
    dist.init_process_group("gloo")
    warnings.simplefilter("error", loafc.LoafcWarning)
    rank = dist.get_rank()
    ddp_trains_to_the_same_weights(rank)
    collectives_within_a_graph_give_eagers_values(rank)
    collectives_in_place_give_eagers_values(rank)
    assert loafc.metrics.fallbacks == 0 and loafc.metrics.graphs > 0
    dist.destroy_process_group()
    # One write, so that the lines of two processes don't mix.
    sys.stdout.write("fine\n")


if __name__ == "__main__":
    main()
