"""The benchmark of CPU kernels: what it counts as least bytes, what it calls wrong, what it writes."""

from __future__ import annotations

import json
import math

import pytest
import torch
from loafc.bench import cpu
from loafc.bench.programs import PROGRAMS, Program


def program(fn, inputs, **rest) -> Program:
    return Program("p", "k", fn, inputs, **rest)


def test_each_program_has_a_name_of_its_own_and_the_size_of_its_kind():
    assert len({p.name for p in PROGRAMS}) == len(PROGRAMS) and len(PROGRAMS) >= 40
    for p in PROGRAMS:
        assert p.small == (p.kind == "small")
        if p.small:
            assert cpu.Case(p).bytes < 64 << 10


def test_least_bytes_are_inputs_outputs_and_what_changes_in_place():
    def fn(x, y):
        y.add_(1)
        return x[:2] * 2

    assert cpu.Case(program(fn, lambda: [torch.ones(4, 8), torch.ones(3)])).bytes == 4 * (32 + 3 + 16 + 3)


def test_training_reads_inputs_twice_and_gradients_of_outputs_and_writes_gradients():
    case = cpu.Case(program(lambda x: x.sum(0), lambda: [torch.ones(4, 8)], train=True))
    assert case.bytes == 4 * (32 + 8 + 32 + 8 + 32)


def test_a_wrong_result_is_told_from_a_right_one():
    case = cpu.Case(program(lambda x: x * 2, lambda: [torch.ones(4)]))
    assert case.error(lambda x: x * 2) == 0
    assert 1 < case.error(lambda x: x * 2.001) < math.inf
    assert case.error(lambda x: x * math.nan) == math.inf
    assert case.error(lambda x: (x * 2).double()) == math.inf
    ints = cpu.Case(program(lambda x: x * 2, lambda: [torch.arange(4)]))
    assert ints.error(lambda x: x * 2) == 0 and ints.error(lambda x: x * 2 + 1) == math.inf


def test_wrong_gradients_and_wrong_changes_in_place_are_seen():
    trained = cpu.Case(program(lambda x: x.sin(), lambda: [torch.ones(4)], train=True))
    assert trained.error(lambda x: x.sin().detach() + 2 * (x - x.detach())) > 1
    changed = cpu.Case(program(lambda x: x.add_(1), lambda: [torch.ones(4)]))
    assert changed.error(lambda x: x + 1) > 1
    assert changed.error(lambda x: x.add_(1)) == 0


def test_functions_of_two_backends_share_no_code():
    def fn(x):
        return x

    ours, theirs = cpu._own(fn), cpu._own(fn)
    assert ours.__code__ is not theirs.__code__ and ours(3) == theirs(3) == 3


def row(name: str, **values) -> cpu.Row:
    defaults = {"kind": "norms", "bytes": 1 << 25, "kernels": 1, "extern_calls": 0, "error": 0.0, "seconds": 1.0}
    measured = {"floor": 0.9, "speedup": 3.0, "inductor_floor": 0.3}
    return cpu.Row(name=name, **{**defaults, **measured, **values})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"speedup": 0.9}, "TorchInductor"),
        ({"kind": "small", "speedup": 0.97}, "less than 1.0"),
        ({"floor": 0.3}, "no note"),
    ],
)
def test_missed_bars_are_named(values, message):
    good = [row("good")] * 20
    assert cpu.missed_bars(good, cpu.summarise(good)) == []
    rows = [*good, row("bad", **values)]
    (missed,) = cpu.missed_bars(rows, cpu.summarise(rows))
    assert missed.startswith("bad") and message in missed


@pytest.mark.parametrize(
    "name",
    [
        "sums_and_transposed",
        "layer_norm_train",
        "softmax_outer",
        "cross_entropy",
        "argmax_columns",
        "variance_columns",
        "sum_all",
        "sum_rows_and_columns",
        "scatter_add",
        "cumsum_rows",
        "cumsum_columns",
        "cummax_rows",
        "logcumsumexp_rows",
        "positions_of_mask",
    ],
)
def test_two_threads_give_the_bits_of_one(name):
    (chosen,) = (p for p in PROGRAMS if p.name == name)
    case = cpu.Case(chosen)
    compiled = torch.compile(chosen.fn, backend="loafc", dynamic=False)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            inputs = case.fresh_inputs()
            results.append(case._results(cpu._run(compiled, inputs, chosen.train), inputs))
    finally:
        torch.set_num_threads(before)
    for others in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], others, strict=True))


def test_notes_name_programs():
    assert set(cpu.NOTES) <= {p.name for p in PROGRAMS}


def test_the_command_measures_and_writes(tmp_path, capsys):
    data, chart = tmp_path / "rows.json", tmp_path / "chart.svg"
    args = ["--only", "small_softmax", "--rounds", "2", "--no-inductor", "--json", str(data), "--plot", str(chart)]
    assert cpu.main(args) == 0
    assert "small_softmax" in capsys.readouterr().out
    (measured,) = json.loads(data.read_text())["rows"]
    assert measured["kernels"] == 1 and measured["seconds"] > 0 and measured["speedup"] is None
    assert chart.read_text().startswith("<svg")
