"""What is said to options, of the backend and of the environment, that are wrong or can't be had."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import loafc
import pytest
import torch
from loafc.backend import parse_options

# By name, with what the message has besides the option's name.
REFUSED = [
    ({"threads": 0}, "from 1 to 1024"),
    ({"threads": 100_000}, "from 1 to 1024"),
    ({"threads": 2.0}, "from 1 to 1024"),
    ({"threads": True}, "from 1 to 1024"),
    ({"compile_threads": 0}, "from 1 to 1024"),
    ({"max_fusion_size": 0}, "1 or more"),
    ({"max_fusion_size": None}, "1 or more"),
    ({"score_fusion_memory_threshold": -1}, "0 or more"),
    ({"vector_bits": 100}, "128, 256, 512 or none"),
    ({"fallback": "maybe"}, "true or false"),
    ({"verify": 2}, "true or false"),
    ({"cache_mib": -1}, "0 or more"),
    ({"cache_dir": ""}, "a folder"),
    ({"cache_dir": b"/x"}, "a string or a path"),
    ({"cache_dir": 5}, "a string or a path"),
    ({"cache-dir": False}, "a string or a path"),
    ({"debug_dir": 1.5}, "a string or a path"),
    ({"stop_after_fusion": [1]}, "numbers, truth values"),
    ({"max_fuson_size": 3}, "did you mean `max_fusion_size`"),
    ({"cache_mib": 1, "cache-mib": 2}, "given twice"),
]


def test_all_options_are_documented_with_their_defaults(monkeypatch):
    for variable in [name for name in os.environ if name.startswith("LOAFC_")]:
        monkeypatch.delenv(variable)
    text = (Path(__file__).parents[2] / "docs/options.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:3]] for line in text.splitlines() if line.startswith("| `")]
    assert {name.strip("`"): default for name, default in rows} == parse_options(None).as_dict()


@pytest.mark.parametrize(("options", "told"), REFUSED, ids=str)
def test_a_wrong_option_is_named_with_what_it_takes(options, told):
    with pytest.raises(loafc.OptionError) as caught:
        parse_options(options)
    assert next(iter(options)).split("-")[0] in str(caught.value)
    assert told in str(caught.value)


@pytest.mark.parametrize("options", [["threads=1"], "threads=1", 3])
def test_options_that_are_no_dict_are_refused(options):
    with pytest.raises(loafc.OptionError, match="a dict"):
        parse_options(options)


def test_a_path_is_a_folder(tmp_path):
    assert parse_options({"debug_dir": tmp_path}).debug_dir == str(tmp_path)


@pytest.mark.parametrize(("variable", "value"), [("LOAFC_THREADS", "0"), ("LOAFC_VERIFY", "maybe")])
def test_a_wrong_variable_is_named(monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    with pytest.raises(loafc.OptionError, match=f"environment variable {variable}: .* got `{value}`"):
        parse_options(None)


def test_an_empty_variable_is_none(monkeypatch):
    monkeypatch.setenv("LOAFC_THREADS", "")
    assert parse_options(None).as_dict()["threads"] == "none"


def test_the_folder_for_debugging_is_the_one_that_is_named(monkeypatch):
    monkeypatch.setenv("LOAFC_DEBUG", "1")
    assert "loafc_debug" in parse_options(None).debug_dir
    monkeypatch.setenv("LOAFC_DEBUG_DIR", "elsewhere")
    assert parse_options(None).debug_dir == "elsewhere"
    monkeypatch.delenv("LOAFC_DEBUG_DIR")
    assert parse_options({"debug-dir": "here"}).debug_dir == "here"


def _bad_folders(tmp_path: Path) -> dict[str, Path]:
    """Folders that nothing can be written to, and one that others can write to."""
    file = tmp_path / "file"
    file.write_text("")
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    return {"a file": file, "below a file": file / "below", "open to all": open_to_all}


@pytest.mark.parametrize("kind", ["a file", "below a file", "open to all"])
def test_a_bad_folder_only_turns_the_cache_off_with_one_warning(tmp_path, kind):
    folder = _bad_folders(tmp_path)[kind]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for factor in (2, 3):
            torch._dynamo.reset()
            loafc.metrics.reset()
            f = torch.compile(lambda x: (x * factor).sin(), backend="loafc", options={"cache_dir": str(folder)})
            torch.testing.assert_close(f(torch.ones(5)), (torch.ones(5) * factor).sin())
            assert (loafc.metrics.kernels, loafc.metrics.fallbacks) == (1, 0)
    [warning] = [str(w.message) for w in caught if issubclass(w.category, loafc.LoafcWarning)]
    assert "option `cache_dir`" in warning and str(folder) in warning and "not kept" in warning


def test_entries_that_cannot_be_written_are_told(tmp_path):
    tmp_path.chmod(0o700)
    for shard in range(64):
        (tmp_path / f"{shard:02x}").write_text("in the way")
    f = torch.compile(lambda x: (x * 7).sinh(), backend="loafc", options={"cache_dir": str(tmp_path)})
    with pytest.warns(loafc.LoafcWarning, match=f"option `cache_dir`: {tmp_path}: "):
        f(torch.ones(5))


@pytest.mark.parametrize("kind", ["a file", "below a file"])
def test_a_bad_folder_for_debugging_is_an_error_that_names_the_option(tmp_path, kind):
    folder = _bad_folders(tmp_path)[kind]
    f = torch.compile(lambda x: x.sin() + 1, backend="loafc", options={"debug_dir": str(folder)})
    with pytest.raises(
        Exception, match=r"option `debug_dir`: .*; name a folder that you can write to, or none"
    ) as caught:
        f(torch.ones(5))
    assert str(folder) in str(caught.value)


def test_what_a_variable_cannot_be_is_told_from_a_process_too():
    program = "import torch; torch.compile(lambda x: x + 1, backend='loafc')(torch.ones(3))"
    environment = {**os.environb, b"LOAFC_CACHE_DIR": b"/\xff"}
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, timeout=300)
    assert run.returncode != 0 and b"LOAFC_CACHE_DIR is not UTF-8 text" in run.stderr
