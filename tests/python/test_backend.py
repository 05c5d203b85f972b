"""The backend's manners: options, errors, fallback, metrics, explain, and what it doesn't do."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import loafc
import loafc.metrics
import pytest
import torch
from loafc.backend import loafc as loafc_backend
from loafc.backend import parse_options
from loafc.convert import located
from support import compare, compiled


def test_the_backend_is_found_by_name():
    assert "loafc" in torch._dynamo.list_backends()


def test_sum_then_sum_of_it_gives_two_kernels_and_no_reordering():
    def fn(x):
        y = x.sum(-1) + 1
        return y, y.sum(0)

    x = torch.randn(64, 64, 64)
    compare(compiled(fn)(x), fn(x), rtol=1e-4, atol=1e-4)
    assert loafc.metrics.kernels == 2
    assert loafc.metrics.loop_reorderings == 0


def test_a_transposed_copy_joins_after_reordering():
    fn = lambda x: (x.sum(-1), x.t().contiguous())
    x = torch.randn(128, 96)
    compare(compiled(fn)(x), fn(x), rtol=1e-4, atol=1e-4)
    assert (loafc.metrics.kernels, loafc.metrics.loop_reorderings) == (1, 1)
    torch._dynamo.reset()
    loafc.metrics.reset()
    compare(compiled(fn, loop_ordering_after_fusion=False)(x), fn(x), rtol=1e-4, atol=1e-4)
    assert (loafc.metrics.kernels, loafc.metrics.loop_reorderings) == (2, 0)


def test_unknown_option_is_named():
    with pytest.raises(Exception, match="loop_order_after_fusion"):
        compiled(lambda x: x + 1, loop_order_after_fusion=True)(torch.ones(2))


def test_wrong_value_of_an_option_is_named():
    with pytest.raises(Exception, match="max_fusion_size"):
        compiled(lambda x: x + 1, max_fusion_size="many")(torch.ones(2))


def test_option_errors_have_a_class_of_their_own():
    with pytest.raises(loafc.OptionError, match="no_such_option"):
        parse_options({"no_such_option": 1})


def test_unknown_mode_is_named():
    with pytest.raises(Exception, match="fastest"):
        torch.compile(lambda x: x + 1, backend=lambda gm, ex: loafc_backend(gm, ex, mode="fastest"))(torch.ones(2))


def test_options_come_from_the_environment_too():
    code = "import torch, loafc; torch.compile(lambda x: x + 1, backend='loafc')(torch.ones(2))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "LOAFC_MAX_FUSION_SIZE": "lots"},
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0 and "max_fusion_size" in done.stderr.lower()


def test_variables_of_the_environment_that_nothing_reads_are_told_once():
    code = """
import torch, loafc
f = torch.compile(lambda x: x + 1, backend="loafc")
for n in (2, 3, 4):
    f(torch.ones(n, n))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "LOAFC_MAX_FUSON_SIZE": "3", "LOAFC_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("nothing reads LOAFC_MAX_FUSON_SIZE of the environment") == 1
    assert "LOAFC_MAX_FUSION_SIZE" in done.stderr


def unsupported(x):
    """An element type that tensor programs don't have."""
    return x.to(torch.float8_e4m3fnuz).float() + 1


def test_fallback_warns_once_and_gives_eagers_values():
    x = torch.randn(4, 4)
    with pytest.warns(loafc.LoafcWarning, match="eager"):
        got = torch.compile(unsupported, backend="loafc")(x)
    compare(got, unsupported(x))
    assert loafc.metrics.fallbacks == 1


def test_a_failure_names_the_operator_and_the_line_of_the_user():
    x = torch.randn(4, 4)
    f = torch.compile(unsupported, backend="loafc")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        f(x)
        f(x + 1)
    (message,) = [str(w.message) for w in caught if issubclass(w.category, loafc.LoafcWarning)]
    line = inspect.getsourcelines(unsupported)[1] + 2
    assert f"test_backend.py:{line}: prims.convert_element_type.default: " in message
    assert "float8_e4m3fnuz" in message


def test_an_error_about_the_text_names_the_line_of_the_user():
    text = 'graph @g() {\n  %x: f32[] = aten.nothing() loc("a \\"b\\".py":12)\n  return\n}'
    assert located("g.loaf:2:5: it is wrong", "g.loaf", text) == 'a "b".py:12: g.loaf:2:5: it is wrong'
    assert located("g.loaf:3:5: it is wrong", "g.loaf", text) == "g.loaf:3:5: it is wrong"
    assert located("something else", "g.loaf", text) == "something else"


def _command_line_tool():
    root = Path(__file__).parents[2]
    target = Path(os.environ.get("CARGO_TARGET_DIR", root / "target"))
    tools = [t for kind in ("release", "debug") if (t := target / kind / "loafc").exists()]
    assert tools, "the command-line tool isn't built: `make bootstrap` builds it"
    return tools[0]


def test_the_debug_folder_can_be_replayed_without_the_model(tmp_path):
    tool = _command_line_tool()
    code = """
import torch
net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.GELU())
torch.compile(net, backend="loafc")(torch.randn(4, 8)).sum().backward()
"""
    environment = {**os.environ, "LOAFC_DEBUG": "1"}
    subprocess.run([sys.executable, "-c", code], env=environment, cwd=tmp_path, check=True, capture_output=True)
    texts = sorted(tmp_path.glob("loafc_debug/process_*/*.loaf"))
    assert [t.name for t in texts] == ["graph_0_forward.loaf", "graph_1_backward.loaf"]
    for text in texts:
        done = subprocess.run([tool, "run", text], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_without_fallback_the_error_comes_out():
    with pytest.raises(Exception, match="float8_e4m3fnuz") as info:
        compiled(unsupported)(torch.randn(4, 4))
    assert isinstance(info.value.inner_exception, loafc.CompileError)
    assert loafc.metrics.fallbacks == 0


def test_errors_of_eager_operators_come_through():
    def fn(x):
        return torch.linalg.inv(x) + 1

    f = compiled(fn)
    f(torch.eye(3))
    # Some versions of PyTorch drop the check while they trace, for every backend.
    try:
        traced = torch.compile(fn, backend="aot_eager")(torch.zeros(3, 3))
    except torch._C._LinAlgError:
        with pytest.raises(torch._C._LinAlgError):
            f(torch.zeros(3, 3))
    else:
        assert not traced.isfinite().any()
        torch.testing.assert_close(f(torch.zeros(3, 3)), traced, equal_nan=True)


def test_index_out_of_bounds_is_an_error():
    f = compiled(lambda x, i: x[i] + 1)
    f(torch.ones(4), torch.tensor([3]))
    with pytest.raises(IndexError, match=r"test_backend.py:\d+: aten.index.Tensor: index .* of size 4: it is -6$"):
        f(torch.ones(4), torch.tensor([3, -6, 5]))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_position_out_of_bounds_is_told_with_the_extent_of_the_call(dtype):
    f = compiled(lambda w, i: torch.nn.functional.embedding(i.t(), w) * 2, dynamic=True)
    f(torch.ones(4, 3), torch.zeros(2, 5, dtype=dtype))
    with pytest.raises(IndexError, match=r"aten.embedding.default: .* of size (\w+): it is 7, and \1 is 6"):
        f(torch.ones(6, 3), torch.tensor([[1, 2], [5, 9], [7, 8]], dtype=dtype))


@pytest.mark.parametrize("fn", [torch.argmax, torch.argmin, lambda x: x.argmax(0)])
def test_positions_of_extreme_truth_values_are_refused_as_in_eager_mode(fn):
    with pytest.raises(NotImplementedError, match="does not support bool input"):
        compiled(fn)(torch.tensor([True, False]))


def test_metrics_count_and_reset():
    compiled(lambda x: (x + 1).sum())(torch.ones(8, 8))
    m = loafc.metrics
    assert m.graphs == 1 and m.kernels == 1 and m.extern_calls == 0 and m.fallbacks == 0
    assert m.bytes_accessed == 8 * 8 * 4 + 4
    assert set(m.compile_seconds) == {"convert", "lower", "fuse", "codegen"}
    assert all(s > 0 for s in m.compile_seconds.values())
    assert m.compile_seconds.total == pytest.approx(sum(m.compile_seconds.values()))
    m.reset()
    assert m.kernels == 0 and m.compile_seconds.total == 0
    with pytest.raises(AttributeError, match="kernel_count"):
        _ = m.kernel_count


def test_explain_reports_forward_and_backward():
    x = torch.randn(32, 16, requires_grad=True)
    w = torch.randn(16, 8, requires_grad=True)
    report = loafc.explain(lambda x, w: (x @ w).softmax(-1), x, w)
    assert [g.kind for g in report.graphs] == ["forward", "backward"]
    assert report.kernels >= 2 and report.extern_calls == 3
    assert report.bytes_accessed > 0
    assert isinstance(report.decisions, list)
    assert x.grad is None
    data = json.loads(report.to_json())
    assert data["kernels"] == report.kernels and len(data["graphs"]) == 2
    assert "<html" in report.to_html() and "http" not in report.to_html().replace("http://www.w3.org", "")
    assert "kernels" in str(report)


def test_debug_folder_gets_text_and_report(tmp_path):
    compiled(lambda x: x.exp() + 1, debug_dir=str(tmp_path))(torch.ones(3))
    files = sorted(p.name for p in tmp_path.rglob("*") if p.is_file())
    assert any(f.endswith(".loaf") for f in files) and any("report" in f for f in files)


OVERLAPPING = {
    "sum": lambda x: x[1:].add_(x[:-1]),
    "copy": lambda x: x[1:].copy_(x[:-1]),
    "out": lambda x: torch.add(x[1:], x[:-1], out=x[1:]),
    "one element for all": lambda x: x[:1].expand(5).add_(1),
    "transposed": lambda x: x[:4].view(2, 2).t().mul_(x[:4].view(2, 2)),
}


@pytest.mark.parametrize("name", OVERLAPPING)
def test_writes_that_overlap_what_they_read_give_what_every_compiler_gives(name):
    def fn(x):
        OVERLAPPING[name](x)
        return x

    with pytest.raises(RuntimeError, match="unsupported operation"):
        fn(torch.arange(6.0))
    want = torch.compile(fn, backend="aot_eager")(torch.arange(6.0))
    torch._dynamo.reset()
    assert torch.equal(compiled(fn)(torch.arange(6.0)), want)


def test_no_compiler_and_no_other_process_is_started():
    code = """
import os, sys, subprocess, torch
os.environ["PATH"] = "/nonexistent"
started = []
sys.addaudithook(lambda event, args: started.append(event) if event in ("subprocess.Popen", "os.system", "os.exec",
                 "os.posix_spawn", "os.fork", "os.forkpty") else None)
f = torch.compile(lambda x: (x.softmax(-1) @ x.t()).relu().sum(0), backend="loafc", options={"fallback": False})
x = torch.randn(8, 8, requires_grad=True)
f(x).sum().backward()
assert not started, started
print("fine")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "fine", done.stderr


def test_a_forked_child_can_run_and_compile():
    code = """
import os, torch
f = torch.compile(lambda x: x.exp().sum(0), backend="loafc", options={"fallback": False})
x = torch.randn(200, 300)
want = f(x)
pid = os.fork()
if pid == 0:
    torch.set_num_threads(1)
    ok = torch.equal(f(x), want)
    os._exit(0 if ok else 1)
print("fine" if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0 else "bad")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "fine", done.stderr


def test_compiled_functions_run_on_several_threads_at_once():
    from concurrent.futures import ThreadPoolExecutor

    f = compiled(lambda x: (x @ x).softmax(-1).sum(0))
    xs = [torch.randn(32, 32) for _ in range(16)]
    want = [f(x) for x in xs]
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(f, xs))
    assert all(torch.equal(g, w) for g, w in zip(got, want, strict=True))


def test_compiling_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error", loafc.LoafcWarning)
        torch.compile(lambda x: x.sin() + 1, backend="loafc")(torch.ones(3))


@pytest.mark.parametrize("fn", [torch.exp, torch.tanh, torch.sigmoid, lambda x: x.softmax(0)])
def test_writing_to_a_result_that_backward_needs_is_an_error(fn):
    x = torch.randn(5, requires_grad=True)
    y = compiled(lambda x: fn(x * 2))(x)
    with torch.no_grad():
        y.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_result_that_is_part_of_an_input_keeps_its_place():
    x = torch.arange(6.0)
    first, second = compiled(lambda a, b: (a.mul_(2), b.add_(1)))(x, x[1:])
    assert first.tolist() == [0, 3, 5, 7, 9, 11]
    assert second.tolist() == [3, 5, 7, 9, 11] and second.storage_offset() == 1
    second.zero_()
    assert x.tolist() == [0] * 6


_AS_STRIDED_FUNCTIONS = {
    "view": lambda a: a.as_strided((3,), (2,), 4) + 1,
    "the offset of the argument": lambda a: a[1:].as_strided((2,), (2,)) + 1,
    "view of a view": lambda a: a[1:].as_strided((2,), (1,), 4) + 1,
    "view of a part": lambda a: a.split(2)[1].as_strided((2,), (1,), 4) + 1,
    "view of a computed tensor": lambda a: (a * 2)[1:].as_strided((2,), (1,), 2) + 1,
    "copy": lambda a: torch.as_strided_copy(a, (2,), (2,), 4),
    "copy of a computed tensor": lambda a: torch.as_strided_copy((a * 2)[1:], (2,), (2,), 1),
    "scatter": lambda a: torch.as_strided_scatter(a, torch.ones(2), (2,), (1,), 4),
    "before the first element": lambda a: a.as_strided((2,), (1,), 1) * a.as_strided((3, 2), (2, 1), 2) + a[-1],
    "scatter before the first element": lambda a: torch.as_strided_scatter(a, torch.ones(6), (6,), (1,), 1),
}


@pytest.mark.parametrize("start", [0, 3])
@pytest.mark.parametrize("fn", _AS_STRIDED_FUNCTIONS.values(), ids=_AS_STRIDED_FUNCTIONS)
def test_as_strided_counts_from_the_start_of_the_storage(fn, start):
    x = torch.arange(10.0)[start:]
    with warnings.catch_warnings():
        warnings.simplefilter("error", loafc.LoafcWarning)
        compare(compiled(fn)(x), fn(x))


def test_as_strided_scatter_writes_between_the_elements_of_an_argument():
    x = torch.arange(18).view(3, 6)[:, 1::2]
    fn = lambda a: torch.as_strided_scatter(a, torch.full((2, 2), -1), (2, 2), (1, 2), 1)
    compare(compiled(fn)(x), fn(x))


def test_as_strided_before_the_first_element_beside_a_copy_runs_in_eager_mode():
    fn = lambda a: a.as_strided((2,), (1,), 1) + torch.as_strided_copy(a, (2,), (1,), 0)
    x = torch.arange(10.0)[3:]
    with pytest.warns(loafc.LoafcWarning, match="before the first one"):
        compare(torch.compile(fn, backend="loafc")(x), fn(x))


def test_as_strided_of_arguments_that_start_elsewhere_runs_in_eager_mode():
    fn = lambda a: a.as_strided((3,), (2,), 4) + 1
    run = torch.compile(fn, backend="loafc")
    arguments = [torch.arange(20.0)[start : start + 7] for start in (3, 0, 2)]
    compare(run(arguments[0]), fn(arguments[0]))
    with pytest.warns(loafc.LoafcWarning, match="starts elsewhere"):
        compare([run(x) for x in arguments], [fn(x) for x in arguments])


_AS_STRIDED_OF_WRITTEN = {
    "view after the write": lambda a: (a.add_(1), a.as_strided((2,), (1,), 0) * 1),
    "view before the write": lambda a: (a.as_strided((2,), (1,), 1), a.mul_(3))[0] * 1,
    "view among the elements": lambda a: (a.relu_(), torch.as_strided(a, (2,), (1,), 4) * 1),
    "write through the view": lambda a: (a.as_strided((2,), (1,), 1).mul_(5), a * 1),
    "write of an item": lambda a: (a.__setitem__(0, 7.0), a.as_strided((2,), (1,), 3) * 1)[1],
    "write as a result": lambda a: torch.add(a, 1, out=a).as_strided((2,), (1,), 3) * 1,
    "write by name": lambda a: (torch.nn.functional.relu(a, inplace=True), a.as_strided((2,), (1,), 3) * 1)[1],
    "write by position": lambda a: (torch.nn.functional.elu(a, 1.0, True), a.as_strided((2,), (1,), 3) * 1)[1],
    "write by an operator's method": lambda a: (a.__iadd__(1), a.as_strided((2,), (1,), 3) * 1)[1],
}


@pytest.mark.parametrize("fn", _AS_STRIDED_OF_WRITTEN.values(), ids=_AS_STRIDED_OF_WRITTEN)
def test_as_strided_of_a_written_part_of_a_storage_runs_in_eager_mode(fn):
    want, got, refused = (torch.arange(10.0) for _ in range(3))
    with pytest.warns(loafc.LoafcWarning, match="only a part of its storage"):
        compare(torch.compile(fn, backend="loafc")(got[3:]), fn(want[3:]))
    compare(got, want)
    torch._dynamo.reset()
    with pytest.raises(Exception, match=r"only a part of its storage|before the first one"):
        compiled(fn)(refused[3:])


_WHOLE = {
    "rows": lambda: torch.arange(10.0),
    "transposed": lambda: torch.arange(12.0).view(3, 4).t(),
    "permuted": lambda: torch.arange(24.0).view(2, 3, 4).permute(2, 0, 1),
    "channels last": lambda: torch.arange(24.0).view(1, 2, 3, 4).contiguous(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("make", _WHOLE.values(), ids=_WHOLE)
@pytest.mark.parametrize("fn", _AS_STRIDED_OF_WRITTEN.values(), ids=_AS_STRIDED_OF_WRITTEN)
def test_as_strided_of_a_written_storage_is_compiled(fn, make):
    want, got = make(), make()
    compare(compiled(fn)(got), fn(want))
    compare(got, want)
    assert loafc.metrics.fallbacks == 0
