"""The check of models: a few small ones of its own pass, and what is wrong is told for what it is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from loafc.check import model_run
from loafc.check.model_run import Case, examine, run
from loafc.check.model_values import Values, differences
from loafc.check.models import Row

ZOO = Path(__file__).with_name("small_zoo.py")


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("name", model_run.load_zoo(ZOO))
def test_small_models_give_eagers_values(name, dtype):
    _, builder = model_run.load_zoo(ZOO)[name]
    for kind in model_run.KINDS:
        torch._dynamo.reset()
        found = examine(Case(builder, kind, model_run.DTYPES[dtype]), "loafc")
        assert found["status"] in ("same", "not there"), found["detail"]
        assert found["status"] == "not there" or (found["fallbacks"] == 0 and found["compared"] > 0)


def test_the_command_runs_models_in_processes_of_their_own(tmp_path):
    result = tmp_path / "found.json"
    command = [sys.executable, "-m", "loafc.check", "models", "--zoo", str(ZOO), "--only", "optimizer"]
    done = subprocess.run([*command, "--json", str(result)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(result.read_text())
    assert [(r["kind"], r["status"]) for r in rows] == [("inference", "same"), ("training", "not there")]


def test_a_fallback_is_not_the_same():
    def unsupported(x):
        return x.to(torch.float8_e4m3fnuz).float()

    case = Case(lambda: {"eval": (unsupported, (torch.randn(4),), {}), "train": None}, "inference", torch.float32)
    found = examine(case, "loafc")
    assert found["status"] == "fallback" and "float8_e4m3fnuz" in found["detail"]


def test_what_eager_mode_and_the_compiler_can_not_do_is_told_apart():
    def fails(x):
        raise ValueError("no")

    def build():
        return {"eval": (fails, (torch.randn(4),), {}), "train": None}

    assert examine(Case(build, "inference", torch.float32), "loafc")["status"] == "eager fails"
    assert examine(Case(build, "training", torch.float32), "loafc")["status"] == "not there"


@pytest.mark.parametrize(("other", "status"), [(1.0, "eager varies"), (7.0, "different")])
def test_what_eager_mode_makes_anew_in_each_run_is_told(other, status, monkeypatch):
    def left_behind(garbage, other=1.0):
        return Values({"garbage": torch.full((3,), garbage), "other": torch.tensor([other])})

    def run(case, backend, high_precision=False, moved_by=None):
        if backend is not None:
            return left_behind(float("nan"), other)
        # The first run and the one in float64 happen to find the same memory.
        return left_behind(1.0 if next(runs) < 2 else 1e30)

    runs = iter(range(100))
    monkeypatch.setattr(model_run, "run", run)
    found = examine(Case(lambda: {}, "inference", torch.float32), "loafc")
    assert found["status"] == status and "in another run: garbage" in found["detail"]


def test_a_run_in_float64_draws_the_numbers_of_the_original_types():
    _, builder = model_run.load_zoo(ZOO)["dropout"]
    case = Case(builder, "training", torch.float32)
    want, exact = run(case, None), run(case, None, high_precision=True)
    for name, tensor in want.gradients.items():
        assert exact.gradients[name].dtype is torch.float64
        torch.testing.assert_close(tensor.double(), exact.gradients[name], rtol=1e-4, atol=1e-6)


def _values(*numbers, dtype=torch.float32):
    return Values({"y": torch.tensor(numbers, dtype=torch.float64).to(dtype)})


@pytest.mark.parametrize(
    ("got", "reference", "fine"),
    [
        ((1.0, 100.0), None, True),
        ((1.005, 100.0), None, True),
        ((1.1, 100.0), None, False),
        ((float("nan"), 100.0), None, False),
        ((float("inf"), 100.0), None, False),
        # Eager mode is as far from what is exact.
        ((1.1, 100.0), (1.05, 100.0), True),
        ((1.1, 100.0), (1.02, 100.0), False),
        # Eager mode took another branch than the reference.
        ((1.1, 100.0), (1.0, -150.0), False),
    ],
)
def test_errors_are_held_against_the_scale_and_the_reference(got, reference, fine):
    exact = None if reference is None else _values(*reference, dtype=torch.float64)
    (found,) = differences(_values(*got), _values(1.0, 100.0), exact)
    assert found.fine is fine


def test_other_shapes_types_and_integers_differ():
    want = Values({"y": torch.zeros(3)})
    for got in (torch.zeros(4), torch.zeros(3, dtype=torch.float64)):
        assert not all(d.fine for d in differences(Values({"y": got}), want))
    assert not all(d.fine for d in differences(Values(), want))
    assert not all(d.fine for d in differences(Values({"i": torch.tensor([1])}), Values({"i": torch.tensor([2])})))


def test_a_wrong_factor_is_found_beside_a_reference_whose_rounding_is_larger():
    torch.manual_seed(0)
    exact = torch.randn(64, 64, dtype=torch.float64)
    others = [torch.randn(64, 64, dtype=torch.float64) for _ in range(3)]

    def values(factor, noise):
        tensors = [factor * exact, *others]
        return Values({str(k): (t + noise * torch.randn(64, 64)).bfloat16() for k, t in enumerate(tensors)})

    reference = Values({str(k): t for k, t in enumerate([exact, *others])})
    want = values(1.0, 0.03)
    assert all(d.fine for d in differences(values(1.0, 0.03), want, reference))
    wrong = [d for d in differences(values(1.02, 0.03), want, reference) if not d.fine]
    assert [(d.tensor, d.measure) for d in wrong] == [("0", "relative error of all")]
    assert all(d.open for d in wrong)


def test_what_is_zero_in_the_reference_and_in_eager_mode_is_to_be_zero():
    zero, one = torch.zeros(3), torch.ones(3)
    (found,) = differences(Values({"y": one}), Values({"y": zero}), Values({"y": zero.double()}))
    assert not found.fine and found.severity == float("inf")


def _finding(status, severity=10.0):
    return {"status": status, "severity": severity, "detail": "", "moves": None}


@pytest.mark.parametrize(
    ("status", "other", "beside", "expected"),
    [
        ("different", "different", "same", "as aot_eager"),
        ("different", "rounding", "rounding", "as aot_eager"),
        # Both differ from eager mode, but not in the same way.
        ("different", "different", "different", "different"),
        ("different", "same", None, "different"),
        ("error", "error", None, "as aot_eager"),
        ("fallback", "same", None, "fallback"),
    ],
)
def test_only_a_difference_that_aot_eager_shares_is_not_the_compilers(status, other, beside, expected):
    row = Row("m", "s", "inference", _finding(status), _finding(other), beside and _finding(beside))
    assert row.status == expected
    assert "aot_eager" in row.text()


@pytest.mark.parametrize(
    ("exact", "exact_in", "expected"),
    [
        (None, "", "rounding"),
        (_finding("same", 1e-3), "fp64", "rounding"),
        (_finding("same", 0.5), "fp64", "different"),
        (_finding("different"), "fp64", "different"),
        (_finding("eager fails"), "fp64", "rounding"),
        (_finding("same", 0.5), "fp32", "rounding"),
        (_finding("different"), "fp32", "different"),
    ],
)
def test_rounding_is_not_there_in_a_more_precise_type(exact, exact_in, expected):
    row = Row("m", "s", "training", _finding("rounding"), exact=exact, exact_in=exact_in)
    assert row.status == expected
