"""Positions that are sizes: of either sign and beyond the ends, in slices, selections, writes and gradients."""

from __future__ import annotations

import loafc
import pytest
import torch
from loafc.positions import with_positions_from_the_start
from support import compare, compiled


def write_row(x, n):
    x[n] = 7
    return x * 1


def write_rows(x, n):
    x[n:] = 7
    return x * 1


def scale_rows(x, n):
    x[n:].mul_(2)
    return x * 1


ONE_ROW = {"row": lambda x, n: x[n] * 2, "written row": write_row}

ROWS = {
    "from": lambda x, n: x[n:] * 2,
    "up to": lambda x, n: x[:n] * 2,
    "last columns": lambda x, n: x[:, -n:] * 2,
    "last columns by name": lambda x, n: torch.ops.aten.slice.Tensor(x, dim=1, start=-n) * 2,
    "both": lambda x, n: torch.cat([x[n:], x[:n] * 2]),
    "split": lambda x, n: [part * 2 for part in torch.tensor_split(x, (n,))],
    "written rows": write_rows,
    "scaled rows": scale_rows,
    "computed": lambda x, n: x[-int(x.shape[0] * 0.5) :] * n,
    "of the extent": lambda x, n: x[3 - x.shape[0] :] * n,
    "constant from the end": lambda x, n: x[-5:] * n,
    "an end before the start": lambda x, n: x[4:n] * 2,
    "written to an end before the start": lambda x, n: torch.slice_scatter(x, x[4:n] * 0, 0, 4, n),
    "constant beyond the end": lambda x, n: x[:7] + n,
}


@pytest.mark.parametrize("dynamic", [None, True], ids=["automatic", "dynamic"])
@pytest.mark.parametrize("name", [*ONE_ROW, *ROWS])
def test_a_position_counts_from_the_end_where_it_is_negative(name, dynamic):
    fn = (ONE_ROW | ROWS)[name]
    f = compiled(fn, dynamic=dynamic)
    for rows in (6, 3, 9):
        for n in (2, 1, -2, -3) if name in ONE_ROW else (2, 3, -2, -3, -rows, 12, -12):
            x = torch.randn(rows, 10)
            y = x.clone()
            compare(f(x, n), fn(y, n))
            compare(x, y)


@pytest.mark.parametrize("n", [2, -2])
def test_gradients_of_parts_at_such_positions(n):
    fn = lambda x, n: x[n:].exp().sum() + x[n].square().sum()
    f = compiled(fn, dynamic=True)
    for rows in (5, 8):
        x = torch.randn(rows, 4, requires_grad=True)
        compare(torch.autograd.grad(f(x, n), x), torch.autograd.grad(fn(x, n), x))


def test_lengths_that_are_one_while_tracing():
    fn = lambda x: [part * 2 for part in x.split([int(len(x) * 0.3), len(x) - int(len(x) * 0.3)])]
    f = compiled(fn, dynamic=True)
    for rows in (5, 4, 9):
        x = torch.randn(rows, 3)
        compare(f(x), fn(x))


def test_arguments_that_are_left_out_are_not_written():
    graph = torch.fx.symbolic_trace(lambda x: torch.ops.aten.slice.Tensor(x, 1, 2)).graph
    call = next(iter(graph.find_nodes(op="call_function", target=torch.ops.aten.slice.Tensor)))
    call.args[0].meta["val"] = torch.empty(4, 5)
    assert with_positions_from_the_start(call) == ([call.args[0], 1, 2], {})


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64])
def test_a_position_that_was_written_over_is_not_told(dtype):
    # The looked-up values take the place of the positions.
    fn = compiled(lambda m, t: t[m.cumsum(0)].cumsum(0))
    with pytest.raises(loafc.PositionError, match="dimension of size 10") as raised:
        fn(torch.ones(16, dtype=torch.int64), torch.arange(10).to(dtype) + 1000)
    assert "it is" not in str(raised.value) or str(raised.value).endswith("it is 10")
