"""What loafc raises and warns with."""

from __future__ import annotations


class LoafcError(Exception):
    """Base of all of loafc's errors."""


class CompileError(LoafcError):
    """A graph can't be compiled. Raised only with ``fallback=False``; otherwise the graph runs in eager mode."""


class ConvertError(CompileError):
    """A graph holds something that a tensor program can't express."""


class OptionError(LoafcError, ValueError):
    """An option that doesn't exist, or a value that it can't have."""


class PositionError(LoafcError, IndexError, RuntimeError):
    """A position outside of a tensor.

    Eager mode raises one or the other of Python's two classes, by operator and by the number of dimensions.
    """


class LoafcWarning(UserWarning):
    """A graph fell back to eager mode, or the environment holds settings that nothing reads."""
