"""The checks against PyTorch: that they read and count rightly, and that they find what is wrong."""

from __future__ import annotations

import json

import pytest
import torch
from loafc.check import census
from loafc.check.call_text import UnreadableCall, read_call


def test_a_call_of_the_census_becomes_arguments():
    args, kwargs = read_call(
        "(f32[2,3]/s(1,2), [None, i64[4]], -inf, True, 'floor', dtype=bf16, device=device(type='cpu'),"
        " memory_format=torch.preserve_format) -> f32[2,3]"
    )
    first, (nothing, indices), low, flag, mode = args
    assert (first.dtype, first.shape, first.stride()) == (torch.float32, (2, 3), (1, 2))
    assert nothing is None and indices.tolist() == [0, 0, 0, 0]
    assert (low, flag, mode) == (float("-inf"), True, "floor")
    assert kwargs == {
        "dtype": torch.bfloat16,
        "device": torch.device("cpu"),
        "memory_format": torch.preserve_format,
    }


def test_a_constant_has_the_type_of_the_result():
    (constant,), _ = read_call("(attr:_tensor_constant0) -> i64[2]")
    assert (constant.dtype, constant.shape) == (torch.int64, (2,))


@pytest.mark.parametrize("text", ["(f32[2])", "(f32[2] -> f32[2]", "(q7[2]) -> f32[2]", "(open('x')) -> f32[]"])
def test_an_unreadable_call_is_refused(text):
    with pytest.raises(UnreadableCall):
        read_call(text)


def entry(category, calls, examples, dtypes):
    return {
        "category": category,
        "calls": calls,
        "calls_core_aten": 0,
        "out_dtypes": dtypes,
        "examples": examples,
    }


def test_the_census_counts_what_is_lowered(tmp_path, capsys):
    calls = {
        "aten.exp.default": entry("pointwise", 90, ["(f32[4]) -> f32[4]"], {"f32": 3, "complex64": 1}),
        "aten.grid_sampler_2d.default": entry(
            "indexing/scatter", 10, ["(f32[1,1,2,2], f32[1,2,2,2], 0, 0, False) -> f32[1,1,2,2]"], {"f32": 1}
        ),
        "aten.mm.default": entry("matmul/conv/attention", 10**6, ["(f32[2,2], f32[2,2]) -> f32[2,2]"], {"f32": 1}),
        "_operator.getitem": entry("misc", 10**6, ["((f32[2]), 0) -> f32[2]"], {"f32": 1}),
        "aten.no_such_thing.default": entry("misc", 1, ["(f32[2]) -> f32[2]"], {"f32": 1}),
    }
    rows = {row.operator: row for row in census.rows_of(calls)}
    assert rows.keys() == {"aten.exp.default", "aten.grid_sampler_2d.default", "aten.no_such_thing.default"}
    assert rows["aten.exp.default"].lowered == 67.5
    assert "no operator" in rows["aten.no_such_thing.default"].reason

    path = tmp_path / "ops.json"
    path.write_text(json.dumps({"aten.exp.default": calls["aten.exp.default"]}))
    assert census.main(["--ops", str(path)]) == 1
    assert "75.00 %" in capsys.readouterr().out


def test_a_census_that_is_not_there_is_said(capsys):
    assert census.main(["--ops", "no such file"]) == 2
    assert "can't be read" in capsys.readouterr().err
