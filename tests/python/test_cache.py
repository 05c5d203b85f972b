"""The cache of machine code on disk: a second process compiles nothing, and no process can spoil it for others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import loafc
import pytest
import torch

# Compiles a small model with its own kernels, checks it against eager, and prints how many kernels LLVM made.
PROGRAM = """
import sys, torch, loafc.metrics
torch.set_num_threads(1)
def f(x, w):
    h = torch.relu(x * 2 + 1) @ w
    h = torch.softmax(h + x.sum(-1, keepdim=True), -1) @ w
    return torch.nn.functional.layer_norm(h, [33]).t().contiguous(), h.tanh()
x, w = torch.randn(17, 33), torch.randn(33, 33)
print("ready", flush=True)
got = torch.compile(f, backend="loafc", options={"fallback": False})(x, w)
for g, e in zip(got, f(x, w)):
    torch.testing.assert_close(g, e)
print(loafc.metrics.kernels, loafc.metrics.kernels_compiled)
"""


def start(folder: Path) -> subprocess.Popen:
    env = {**os.environ, "LOAFC_CACHE_DIR": str(folder)}
    return subprocess.Popen([sys.executable, "-c", PROGRAM], env=env, stdout=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen) -> tuple[int, int]:
    """Kernels, and those that were compiled."""
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    kernels, compiled = out.split()[-2:]
    return int(kernels), int(compiled)


def entries(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_warm_start_compiles_nothing_and_damaged_entries_are_made_anew(tmp_path):
    folder = tmp_path / "cache"
    kernels, compiled = finish(start(folder))
    assert compiled == kernels > 1
    assert folder.stat().st_mode & 0o777 == 0o700
    assert len(entries(folder)) == kernels
    assert finish(start(folder)) == (kernels, 0)

    truncated, changed = entries(folder)[:2]
    truncated.write_bytes(truncated.read_bytes()[:100])
    changed.write_bytes(changed.read_bytes()[:-1] + b"!")
    assert finish(start(folder)) == (kernels, 2)
    assert finish(start(folder)) == (kernels, 0)


def test_many_processes_that_compile_the_same_at_once_all_succeed(tmp_path):
    processes = [start(tmp_path / "cache") for _ in range(10)]
    kernels = {finish(process)[0] for process in processes}
    assert len(kernels) == 1
    assert finish(start(tmp_path / "cache")) == (kernels.pop(), 0)


def test_a_process_killed_while_it_compiles_leaves_a_cache_that_works(tmp_path):
    folder = tmp_path / "cache"
    for delay in (0.1, 0.4, 0.8):
        process = start(folder)
        assert process.stdout.readline() == "ready\n"
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
    kernels, _ = finish(start(folder))
    assert finish(start(folder)) == (kernels, 0)


def test_a_folder_that_others_can_write_to_is_left_alone_with_a_warning_that_says_so(tmp_path):
    tmp_path.chmod(0o777)
    options = {"fallback": False, "cache_dir": str(tmp_path)}
    with pytest.warns(loafc.LoafcWarning, match=r"option `cache_dir`: .* can be written to by others") as caught:
        torch.compile(lambda x: x.sin() + 1, backend="loafc", options=options)(torch.randn(5))
    assert "choose a folder that only you can write to" in str(caught[0].message)
    assert list(tmp_path.iterdir()) == []
