"""loafc: a fusing tensor compiler for PyTorch programs.

``torch.compile(model, backend="loafc")`` compiles with it, ``loafc.explain`` tells what it made of a function,
``loafc.metrics`` counts over the process, ``loafc.memory`` tells what memory it reuses.
"""

from . import memory, metrics
from .errors import CompileError, ConvertError, LoafcError, LoafcWarning, OptionError, PositionError
from .explain import Report, explain

__all__ = [
    "CompileError",
    "ConvertError",
    "LoafcError",
    "LoafcWarning",
    "OptionError",
    "PositionError",
    "Report",
    "explain",
    "memory",
    "metrics",
]
