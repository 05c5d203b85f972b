"""The memory that compiled programs reuse: how much there is, and how to give it back.

Results and scratch come from a pool of the process and return to it when their tensors die. The pool keeps at most a
quarter of the memory that the process may use, or 256 MiB.
"""

from __future__ import annotations

from dataclasses import dataclass

from . import _loafc


@dataclass(frozen=True)
class MemoryUsage:
    """Bytes of the pool: waiting for reuse, in use by tensors and running programs, and the most that was in use at
    once since the process began or :func:`reset_peak`."""

    free: int
    live: int
    peak: int


def usage() -> MemoryUsage:
    """What the pool holds now."""
    return MemoryUsage(*_loafc.memory_usage())


def trim(keep: int = 0) -> None:
    """Gives free memory back to the system, the longest unused first, until at most ``keep`` bytes of it are left.

    Raises ``OverflowError`` if ``keep`` is negative.
    """
    _loafc.trim_memory(keep)


def reset_peak() -> None:
    """Counts the peak from what is in use now."""
    _loafc.reset_peak_memory()
