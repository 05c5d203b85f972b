"""Counts over the process, readable as attributes of this module.

``kernels``, ``extern_calls``, ``loop_reorderings``, ``bytes_accessed`` and ``graphs`` of all graphs compiled since
the start or the last ``reset()``; ``kernels_compiled``, those that LLVM made code for, while the process or the cache
on disk had the others'; ``fallbacks``, graphs that run in eager mode instead; ``compile_seconds``, loafc's own part of
the compile time by phase, without Dynamo and AOTAutograd.
"""

from __future__ import annotations

import threading
from typing import Any

PHASES = ("convert", "lower", "fuse", "codegen")

_COUNTERS = (
    "graphs",
    "kernels",
    "kernels_compiled",
    "extern_calls",
    "loop_reorderings",
    "bytes_accessed",
    "fallbacks",
)

__all__ = [*_COUNTERS, "compile_seconds", "reset"]  # noqa: F822 - served by __getattr__


class CompileSeconds(dict[str, float]):
    """Seconds by phase: ``convert``, ``lower``, ``fuse``, ``codegen``."""

    @property
    def total(self) -> float:
        """All phases together."""
        return sum(self.values())


_lock = threading.Lock()
_counts = dict.fromkeys(_COUNTERS, 0)
_seconds = dict.fromkeys(PHASES, 0.0)


def reset() -> None:
    """Sets every count to zero."""
    with _lock:
        _counts.update(dict.fromkeys(_COUNTERS, 0))
        _seconds.update(dict.fromkeys(PHASES, 0.0))


def add_graph(report: Any, seconds: dict[str, float]) -> None:
    """Counts a compiled graph in."""
    with _lock:
        _counts["graphs"] += 1
        _counts["kernels"] += report.kernels
        _counts["kernels_compiled"] += report.kernels_compiled
        _counts["extern_calls"] += report.extern_calls
        _counts["loop_reorderings"] += report.loop_reorderings
        _counts["bytes_accessed"] += report.bytes_accessed
        for phase, value in seconds.items():
            _seconds[phase] += value


def add_fallback() -> None:
    """Counts a graph that runs in eager mode."""
    with _lock:
        _counts["fallbacks"] += 1


def __getattr__(name: str) -> Any:
    if name in _counts:
        return _counts[name]
    if name == "compile_seconds":
        return CompileSeconds(_seconds)
    raise AttributeError(f"loafc.metrics has no `{name}`; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted([*__all__, *globals()])
