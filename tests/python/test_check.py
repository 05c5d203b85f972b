"""The checks against PyTorch: that they read and count rightly, and that they find what is wrong."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from functorch.compile import make_boxed_func, nop
from loafc.check import census, operator_run, operators, opinfo
from loafc.check.agreement import disagreement
from loafc.check.call_text import UnreadableCall, read_call
from loafc.check.gradients import gradients_of
from loafc.check.operator_calls import compiled_by_aot, kind_of
from loafc.check.opinfo import Pair, Sample
from loafc.check.workers import Lost, run_all
from loafc.decompositions import decompositions
from torch._dynamo.backends.common import aot_autograd


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


def no_truth():
    raise LookupError


@pytest.mark.parametrize(
    ("got", "want", "problem"),
    [
        (torch.zeros(2), torch.zeros(3), "shape"),
        (torch.zeros(2).double(), torch.zeros(2), "type"),
        (torch.zeros(2, 3).t().contiguous().t(), torch.zeros(2, 3), "strides"),
        (torch.tensor([0.0, 1.0]), torch.tensor([0.0, float("nan")]), "close"),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), "equal"),
        ((torch.ones(2), torch.ones(2)), (torch.ones(2), torch.zeros(2)), "result 1"),
        ((1, 2), (1, 2, 3), "structure"),
        (2, 2.0, "int"),
        (torch.ones(1, 2), torch.ones(2, 1).t(), None),
    ],
)
def test_results_that_differ_are_told_apart(got, want, problem):
    found = disagreement(got, want, no_truth)
    assert found is None if problem is None else problem in found


def test_results_may_be_as_far_from_the_true_ones_as_eager_mode():
    eager, true = torch.tensor([1.0, 4.0]), torch.tensor([1.1, 4.0], dtype=torch.float64)
    assert disagreement(torch.tensor([1.15, 4.1]), eager, lambda: true) is None
    assert disagreement(torch.tensor([1.15, 4.3]), eager, lambda: true) is not None
    assert disagreement(torch.tensor([1.15, float("inf")]), eager, lambda: true) is not None


def wrong(gm, example_inputs):
    return lambda *args: [r + 1 if isinstance(r, torch.Tensor) and r.is_floating_point() else r for r in gm(*args)]


def test_a_wrong_result_of_an_operator_is_found():
    pair = Pair("mul", "float32")
    assert operator_run.check_pair(pair, "loafc", 3).passes
    outcome = operator_run.check_pair(pair, wrong, 3)
    assert len(outcome.failures) == outcome.samples == 6
    assert "close" in outcome.failures[0].problem


def wrong_backward(gm, example_inputs):
    def backward(gm, example_inputs):
        return make_boxed_func(lambda *args: [None if g is None else g * 2 for g in gm(*args)])

    return aot_autograd(fw_compiler=nop, bw_compiler=backward)(gm, example_inputs)


def test_a_wrong_gradient_of_an_operator_is_found():
    pair = Pair("mul", "float32")
    assert operator_run.check_pair(pair, wrong_backward, 3).passes
    outcome = operator_run.check_pair(pair, wrong_backward, 3, gradients=True)
    assert len(outcome.failures) == outcome.samples == 6
    assert outcome.gradients == 12
    assert "close" in outcome.failures[0].problem
    assert operator_run.check_pair(pair, "loafc", 3, gradients=True).passes


def test_gradients_that_are_zero_are_there_and_calls_without_any_have_none():
    x, y = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    (x_gradient, y_gradient), none = gradients_of([(x, y), (x,)], [x * 3, torch.ones(2)])
    assert x_gradient.unique().numel() == 2
    assert y_gradient.tolist() == [0.0, 0.0]
    assert none == []


def without_backward(gm, example_inputs):
    """Eager mode's values, and a backward that raises: none is to be compiled."""

    def backward(gm, example_inputs):
        raise AssertionError("a backward graph was compiled")

    return aot_autograd(fw_compiler=nop, bw_compiler=backward)(gm, example_inputs)


def test_a_sample_that_eager_mode_can_not_differentiate_is_compared_without_gradients(monkeypatch):
    # A histogram has no derivative.
    noise = lambda x, y: torch.histc(x * y, 3) + torch.rand(3)
    monkeypatch.setattr(operator_run.opinfo, "function", lambda pair: noise)
    pair = Pair("mul", "float32")
    outcome = operator_run.check_pair(pair, without_backward, 2, gradients=True)
    assert outcome.passes and outcome.samples == 4 and outcome.gradients == 0, outcome.failures
    outcome = operator_run.check_pair(pair, wrong, 2, gradients=True)
    assert len(outcome.failures) == 4


def test_a_lowering_that_is_wrong_for_some_samples_is_found_in_just_those(monkeypatch):
    def without_diagonal(x, diagonal=0):
        return torch.where(torch.ones(x.shape).triu() == 1, x, 0) if diagonal == 2 else NotImplemented

    pair = Pair("triu", "float32")
    samples = list(opinfo.samples(pair))
    wrong = {s.name for s in samples if s.args[1:] == (2,) or s.kwargs.get("diagonal") == 2}
    monkeypatch.setitem(decompositions(), torch.ops.aten.triu.default, without_diagonal)
    outcome = operator_run.check_pair(pair, "loafc", None)
    assert wrong and {f.sample for f in outcome.failures} == wrong
    monkeypatch.undo()
    assert operator_run.check_pair(pair, "loafc", None).passes


def pair_of(monkeypatch, function, calls):
    """A pair whose samples, named by their number, are these calls."""
    samples = [Sample(str(k), args, {}, lambda result: result) for k, args in enumerate(calls)]
    monkeypatch.setattr(opinfo, "samples", lambda pair, most, gradients: iter(samples))
    monkeypatch.setattr(opinfo, "function", lambda pair: function)
    return Pair("neg", "float32")


def test_samples_that_share_a_program_are_each_compared(monkeypatch):
    calls = [(torch.full((3,), float(k)),) for k in range(90)]
    pair = pair_of(monkeypatch, lambda x: x.negative_(), [*calls, ("eager mode refuses this",)])
    outcome = operator_run.check_pair(pair, "loafc", None)
    assert outcome.passes and outcome.samples == 91
    assert outcome.graphs == 2
    wrong = lambda x: torch.where(x == 71, x, -1.0 * x)
    monkeypatch.setitem(decompositions(), torch.ops.aten.neg.default, wrong)
    outcome = operator_run.check_pair(pair, "loafc", None)
    assert [f.sample for f in outcome.failures] == ["71"]


def test_a_sample_that_can_not_be_compiled_does_not_hide_its_neighbours(monkeypatch):
    calls = [(torch.full((k,), 2.0), k == 20) for k in range(1, 40)]
    pair = pair_of(monkeypatch, lambda x, by_value: x * (x[0].item() if by_value else 2), calls)
    outcome = operator_run.check_pair(pair, "loafc", None)
    assert outcome.passes and outcome.graphs > 2
    monkeypatch.setitem(decompositions(), torch.ops.aten.mul.Tensor, lambda x, y: x + y + (x.numel() == 30))
    outcome = operator_run.check_pair(pair, "loafc", None)
    assert [f.sample for f in outcome.failures] == ["29"]


def test_what_only_many_calls_together_show_is_a_failure(monkeypatch):
    def compiled(function, calls):
        assert len(calls) < 20, "too many calls"
        return compiled_by_aot(function, calls)

    pair = pair_of(monkeypatch, lambda x: x + 1, [(torch.ones(k),) for k in range(40)])
    monkeypatch.setattr(operator_run, "compiled_by_aot", compiled)
    outcome = operator_run.check_pair(pair, "loafc", None)
    assert [f.problem for f in outcome.failures] == ["among others, AssertionError: too many calls"]


def test_calls_have_one_program_if_only_elements_differ():
    x, y = torch.zeros(2, 3), torch.ones(2, 3)
    assert kind_of(((x, 1), {})) == kind_of(((y, 1), {}))
    others = [
        ((x, 2), {}),
        ((x, True), {}),
        ((x,), {"dim": 1}),
        ((x.double(), 1), {}),
        ((x.t().contiguous().t(), 1), {}),
        ((torch.zeros(3, 3)[1:], 1), {}),
        ((x.clone().requires_grad_(), 1), {}),
        ((x, y), {}),
        ((x, x), {}),
        ((x, x.view(2, 3)), {}),
    ]
    kinds = [kind_of(call) for call in [((x, 1), {}), *others]]
    assert all(a != b for k, a in enumerate(kinds) for b in kinds[:k])


@pytest.mark.parametrize("operator", ["nn.functional.dropout", "multinomial", "bernoulli"])
def test_operators_that_draw_random_numbers_are_compiled(operator):
    outcome = operator_run.check_pair(Pair(operator, "float64"), "loafc", None)
    assert outcome.passes and outcome.graphs > 0 and outcome.uncompiled == 0


def test_other_random_numbers_than_eagers_are_found(monkeypatch):
    def dropout(x, p, train):
        mask = torch.rand_like(x) > p
        return x * mask / (1 - p), mask

    monkeypatch.setitem(decompositions(), torch.ops.aten.native_dropout.default, dropout)
    outcome = operator_run.check_pair(Pair("nn.functional.dropout", "float32"), "loafc", None)
    assert any(f.sample == "2" for f in outcome.failures)


def outcome_of(operator, failures=(), **settings):
    return operator_run.Outcome(operator, "int64", 2, 1, 1, 0, 0.1, list(failures), **settings)


def test_a_pair_that_is_not_listed_fails_the_check_and_so_does_a_listed_one_that_passes(capsys):
    fails = outcome_of("add", [operator_run.Failure("0", "wrong")])
    passes = [outcome_of(f"op{k}") for k in range(99)]
    assert operators._conclude([fails, *passes], {}, complete=True) == 1
    assert "not listed in known_failures.json: add int64" in capsys.readouterr().out
    known = {"add int64": {"reason": "it is so"}}
    assert operators._conclude([fails, *passes], known, complete=True) == 0
    assert operators._conclude(passes, known, complete=True) == 0
    known = {"op3 int64": {"reason": "it is so"}}
    assert operators._conclude(passes, known, complete=True) == 1
    assert operators._conclude(passes, known, complete=False) == 0


def test_known_failures_and_outcomes_to_resume_are_those_of_the_kind_of_run(tmp_path, monkeypatch, capsys):
    known = tmp_path / "known.json"
    known.write_text(json.dumps({"forward": {"a f": {}}, "gradients": {"a g": {}}}))
    monkeypatch.setattr(operators, "KNOWN_FAILURES", known)
    assert [list(operators._known_failures(g)) for g in (False, True)] == [["a f"], ["a g"]]
    done = [outcome_of("all"), outcome_of("some", most=2), outcome_of("both", backward=True)]
    lines = tmp_path / "done.json"
    lines.write_text("".join(json.dumps(dataclasses.asdict(o)) + "\n" for o in done))
    for outcome in done:
        found = operators._finished(lines, outcome.backward, outcome.most)
        assert found == {outcome.pair: outcome}
        assert "2 outcomes" in capsys.readouterr().err


def act(task):
    if task == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    if task == "hang":
        time.sleep(600)
    return task.upper()


def test_a_task_that_crashes_or_hangs_is_a_result_and_not_the_end():
    done = dict(run_all(["a", "crash", "hang", "b", "c"], act, count=2, seconds=3.0))
    assert done == {
        "a": "A",
        "b": "B",
        "c": "C",
        "crash": Lost("crashes with SIGKILL"),
        "hang": Lost("takes longer than 3 s"),
    }


def check_operators(*options):
    # In a process of its own: it forks, which a process with running threads must not.
    command = [sys.executable, "-m", "loafc.check", "operators", *options]
    run = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]


def test_every_operator_of_pytorch_agrees_with_eager_mode():
    check_operators("--subset")


def test_gradients_of_operators_agree_with_eager_mode():
    check_operators("--subset", "--gradients", "--shard", "0/4")
