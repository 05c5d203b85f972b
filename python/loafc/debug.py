"""Writes what was compiled to files: ``LOAFC_DEBUG=1``, or a folder, or the option ``debug_dir``."""

from __future__ import annotations

import os
from pathlib import Path

_DEFAULT = "loafc_debug"


def folder(debug_dir: str | None) -> Path | None:
    """Where to write, or None. Each process has a folder of its own, since graphs are numbered by process."""
    setting = os.environ.get("LOAFC_DEBUG", "")
    if debug_dir:
        base = debug_dir
    elif setting in ("", "0"):
        return None
    else:
        base = _DEFAULT if setting == "1" else setting
    return Path(base) / f"process_{os.getpid()}"


def write(directory: Path, name: str, text: str) -> None:
    """Writes one file, making the folder where it is missing."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / name).write_text(text)
