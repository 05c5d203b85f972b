"""Writing what was compiled to files: ``LOAFC_DEBUG=1``, or a folder, stands for the option ``debug_dir``."""

from __future__ import annotations

import os
from pathlib import Path

from .errors import OptionError

_DEFAULT = "loafc_debug"


def options_from_environment() -> dict[str, str]:
    """The option that ``LOAFC_DEBUG`` stands for, unless ``LOAFC_DEBUG_DIR`` sets it. Graphs are numbered by process,
    so each has a folder of its own."""
    setting = os.environ.get("LOAFC_DEBUG", "")
    if setting in ("", "0") or os.environ.get("LOAFC_DEBUG_DIR"):
        return {}
    base = _DEFAULT if setting == "1" else setting
    return {"debug_dir": str(Path(base) / f"process_{os.getpid()}")}


def write(directory: str, name: str, text: str) -> None:
    """Writes one file, making the folder where it is missing.

    Raises OptionError where that can't be done.
    """
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
        (Path(directory) / name).write_text(text)
    except OSError as error:
        raise OptionError(
            f"option `debug_dir`: {directory}: {error.strerror}; name a folder that you can write to, or none"
        ) from error
