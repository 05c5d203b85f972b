"""Compiles a function of tensors as the ``torch.compile`` backend does, without Dynamo in front.

Dynamo takes longer than all the rest for a small function, and tells nothing about the compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._torch_compat import aot_function
from ..backend import Observer, aot_settings, compile_graph, parse_options


def compiled(fn: Callable[..., Any], observe: Observer | None = None) -> Callable[..., Any]:
    """The function, compiled at its first call for arguments like those of that call. Nothing falls back."""
    options = parse_options({"fallback": False})

    def compile_kind(gm: Any, _example_inputs: Any, kind: str) -> Callable[..., Any]:
        return compile_graph(gm, kind, options, observe)

    return aot_function(fn, **aot_settings(compile_kind))
