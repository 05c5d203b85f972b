"""What benchmarks compare: that graphs are captured as they are compiled, and that counts and bars are right."""

from __future__ import annotations

import dataclasses
import json

import loafc
import pytest
import torch
from loafc import demo
from loafc.bench import inductor, scheduler, steps
from loafc.bench import memory as bench_memory
from loafc.bench.capture import capture
from loafc.bench.models import Model


class Tiny(torch.nn.Module):
    """Returns logits, and a loss when there are labels, as the models of transformers do."""

    class Result:
        def __init__(self, logits, loss):
            self.logits, self.loss = logits, loss

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(16)
        self.linear = torch.nn.Linear(16, 4)

    def forward(self, x, labels=None):
        logits = self.linear(self.norm(x).relu()).softmax(-1)
        return self.Result(logits, None if labels is None else (logits - labels).square().mean())


def tiny() -> Model:
    return Model("tiny", Tiny(), {"x": torch.randn(8, 16)}, torch.randn(8, 4))


def test_each_graph_of_a_model_is_captured_once():
    graphs = dict(scheduler.graphs_of(tiny()))
    assert list(graphs) == ["inference", "forward", "backward"]
    assert [g.kind for g in graphs.values()] == list(graphs)
    for captured in graphs.values():
        placeholders = [n for n in captured.graph.graph.nodes if n.op == "placeholder"]
        assert len(placeholders) == len(captured.inputs)


def test_graphs_are_those_that_loafc_compiles():
    model = tiny()
    args = model.module, model.batch["x"]
    (captured,) = capture(lambda m, x: m(x).logits, *args)
    with torch.no_grad():
        report = loafc.explain(lambda m, x: m(x).logits, *args)
    ours = scheduler.schedule(captured, 2)
    assert ours.kernels == report.kernels
    assert ours.nodes == sum(len(k["members"]) for k in kernels_of(report))
    assert len(ours.fuse_seconds) == 2 and all(s > 0 for s in ours.fuse_seconds)
    assert all(rounds < whole for rounds, whole in zip(ours.fuse_seconds, ours.whole_seconds, strict=True))


def kernels_of(report):
    return [k for g in json.loads(report.to_json())["graphs"] for k in g["report"]["kernels"]]


def test_a_copy_of_a_graph_can_be_changed():
    (captured,) = capture(lambda x: x.exp() + 1, torch.randn(4))
    before = str(captured.graph.graph)
    copy = captured.copy()
    assert str(copy.graph) == before
    assert all("val" in n.meta for n in copy.graph.nodes if n.op != "output")
    for node in reversed(copy.graph.nodes):
        copy.graph.erase_node(node)
    assert str(captured.graph.graph) == before


def test_a_graph_that_can_not_be_taken_apart_is_told():
    (captured,) = capture(lambda x: torch.nn.functional.silu(x), torch.randn(4))
    assert torch.ops.aten.silu.default not in [n.target for n in inductor._taken_apart(captured).graph.nodes]
    graph = captured.graph.graph
    for node in [n for n in graph.nodes if n.op == "call_function"]:
        node.target, node.args = torch.ops.aten.silu.default, tuple(a for a in node.args if hasattr(a, "op"))[:1]
    real = dataclasses.replace(captured, inputs=[torch.randn(4)])
    with pytest.raises(ValueError, match=r"no fake tensor .*aten\.silu\.default"):
        inductor._taken_apart(real)


@pytest.mark.parametrize(
    ("kernels", "seconds", "wrong"),
    [(3, 0.001, []), (4, 0.001, ["kernels"]), (3, 0.002, ["fusing"]), (4, 0.002, ["kernels", "fusing"])],
)
def test_more_kernels_or_more_time_than_allowed_is_told(kernels, seconds, wrong):
    ours = scheduler.Schedule(nodes=9, kernels=kernels, fuse_seconds=[seconds, seconds, 1.0], whole_seconds=[1.0])
    theirs = inductor.Schedule(9, kernels=3, generated=5, metric=5, fuse_seconds=[0.1, 0.1, 9.0], whole_seconds=[1.0])
    problems = scheduler.Row("tiny", "forward", ours, theirs).problems()
    assert len(problems) == len(wrong)
    assert all(w in p and "tiny forward" in p for w, p in zip(wrong, problems, strict=True))


def step_row(step: str, speedup: float, **changes) -> steps.Row:
    row = steps.Row(step, 3, 2, 0, 1e-7, True, 0.01, speedup, 1.5, 0.1, 6.0)
    return dataclasses.replace(row, **changes)


def test_steps_are_held_to_their_bars():
    assert steps.summary([step_row("a", 1.0), step_row("b", 1.3)])[1] == []
    slow, wrong = step_row("a", 0.9), step_row("b", 9.0, right=False, fallbacks=1)
    problems = steps.summary([slow, wrong])[1]
    assert [p.split(":")[0] for p in problems] == ["a", "b", "b"]
    (mean,) = steps.summary([step_row("a", 1.05), step_row("b", 1.05)])[1]
    assert "1.05 times" in mean
    (compiling,) = steps.summary([step_row("a", 2.0, compile_seconds=0.3)])[1]
    assert "1/30" in compiling


def test_a_difference_counts_as_rounding_only_where_nothing_else_differs(monkeypatch):
    _, training = steps.jobs(tiny)
    before = [p.detach().clone() for p in training.model.parameters()]
    step = demo.compile_loafc(training).step
    assert steps.is_rounding(training, step)
    assert all(torch.equal(b, p) for b, p in zip(before, training.model.parameters(), strict=True))
    assert not steps.is_rounding(training, lambda: [t * 1.01 for t in step()])
    compile_loafc = demo.compile_loafc

    def slightly_wrong(job):
        compiled = compile_loafc(job)
        compiled.results[-1] *= 1 + 1e-5
        return compiled

    monkeypatch.setattr(demo, "compile_loafc", slightly_wrong)
    assert not steps.is_rounding(training, step)


def test_a_step_is_run_in_eager_mode_and_by_both_compilers():
    inference, training = steps.jobs(tiny)
    assert not inference.train and training.train
    row = steps.measure(training, rounds=2)
    assert row.right and row.fallbacks == 0 and row.kernels > 0
    assert row.speedup > 0 and row.over_eager > 0
    assert 0 < row.compile_seconds < row.inductor_compile_seconds


def test_memory_is_told_by_step_and_more_than_the_rivals_is_a_problem():
    asked = []

    def run(arguments):
        asked.append(arguments)
        peak = {"eager": 90, "loafc": 100, "inductor": 120}[arguments[0]]
        return f"a line of a library\n{json.dumps({'peak': peak, 'whole': 130 if arguments[0] == 'loafc' else 125})}\n"

    row = bench_memory.measure("bert", "training", True, run)
    # With caches, each fills its own first.
    assert asked == [[name, "bert", "training", "cached"] for name in ("eager", *["loafc"] * 2, *["inductor"] * 2)]
    assert row.cells()["loafc/inductor"] == "0.833"
    assert row.problems() == ["bert training with compiling: a peak of 130 MB, TorchInductor's is 125"]


def test_the_peak_of_a_step_is_measured_in_a_process_of_its_own():
    ours, plain = (
        json.loads(bench_memory.run_child([backend, "gpt2", "inference", "fresh"]).splitlines()[-1])
        for backend in ("loafc", "eager")
    )
    for figures in (ours, plain):
        assert 100 < figures["peak"] <= figures["whole"] < 10_000
    # What compiling leaves behind, Dynamo's part as well.
    assert ours["peak"] > plain["peak"]
