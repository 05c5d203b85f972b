"""The places where PyTorch 2.9 to 2.15 differ, each behind one function, so that no other file asks for a version."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import sympy
import torch
from torch._guards import detect_fake_mode
from torch._higher_order_ops.effects import with_effects as with_effects  # a call whose order matters
from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Node
from torch.utils._pytree import tree_map


def symbol_hint(shape_env: Any, symbol: sympy.Symbol) -> int | None:
    """The value that a size symbol had when it was traced, or None for one that depends on data."""
    value = _traced_value(shape_env, symbol)
    return int(value) if isinstance(value, (int, sympy.Integer)) else None


def is_ragged_size(val: torch.SymInt) -> bool:
    """Whether this is the ragged size of a nested tensor: an object that is only equal to itself, and no number."""
    value = _traced_value(val.node.shape_env, val.node.expr)
    return value is not None and not isinstance(value, (int, sympy.Integer))


def _traced_value(shape_env: Any, symbol: sympy.Expr) -> Any:
    # The second name is the older one; where both are, it warns.
    values = getattr(shape_env, "backed_var_to_val", None)
    if values is None:
        values = getattr(shape_env, "var_to_val", {})
    return values.get(symbol)


def guarded_to_be(shape_env: Any, expr: sympy.Expr, value: int) -> bool:
    """Whether the guards on sizes leave an expression only this value."""
    if shape_env is None:
        return False
    hints = {s: sympy.Integer(h) for s in expr.free_symbols if (h := symbol_hint(shape_env, s)) is not None}
    if len(hints) < len(expr.free_symbols) or expr.xreplace(hints) != value:
        return False
    return shape_env._maybe_evaluate_static(sympy.Eq(expr, value)) == sympy.true


def python_text(expr: Any) -> str | None:
    """An expression of sizes in Python, over ``math`` and ``torch``; None where a function has no such form."""
    from torch.utils._sympy.printers import PythonPrinter

    try:
        return PythonPrinter().doprint(expr)
    except NotImplementedError:
        return None


def aot_backend(**kwargs: Any) -> Callable[..., Any]:
    """A Dynamo backend that runs AOTAutograd with these compilers and settings."""
    from torch._dynamo.backends.common import aot_autograd

    return aot_autograd(**kwargs)


def aot_function(fn: Callable[..., Any], **kwargs: Any) -> Callable[..., Any]:
    """A function behind AOTAutograd with these compilers and settings, without Dynamo."""
    from torch._functorch.aot_autograd import aot_function

    return aot_function(fn, **kwargs)


def min_cut_partition() -> Callable[..., Any]:
    """The partitioner that recomputes cheap values in the backward graph."""
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    return min_cut_rematerialization_partition


def inductor_decompositions() -> dict[Any, Callable[..., Any]]:
    """TorchInductor's decomposition table without its random number operators.

    With ``fallback_random`` the random operators stay ATen's, so that a seed gives the values of eager.
    """
    import torch._inductor.config as config
    from torch._inductor.decomposition import select_decomp_table

    with config.patch(fallback_random=True):
        return select_decomp_table()


def equal_unbacked_symbols(shape_env: Any) -> Iterator[tuple[sympy.Symbol, sympy.Symbol]]:
    """Pairs of sizes that depend on data and are asserted to be equal when the program runs."""
    for asserts in getattr(shape_env, "deferred_runtime_asserts", {}).values():
        for asserted in asserts:
            if isinstance(asserted.expr, sympy.Eq) and all(side.is_Symbol for side in asserted.expr.args):
                yield asserted.expr.args


def rng_call_result(node: Node) -> Any:
    """What a random operator that is recomputed in the backward graph returns, as fake tensors; None for other calls.

    The partitioner puts such calls into graphs after tracing, and notes no result.
    """
    if node.target is run_with_rng_state:
        _, target, *args = node.args
    elif node.target is run_and_save_rng_state:
        target, *args = node.args
    else:
        return None
    values, keywords = tree_map(lambda a: a.meta["val"] if isinstance(a, Node) else a, (args, dict(node.kwargs)))
    # In a fake mode, for real tensors would be drawn otherwise.
    known = [n.meta["val"] for n in node.graph.nodes if n.op == "placeholder" and "val" in n.meta]
    with detect_fake_mode(known) or FakeTensorMode():
        result = target(*values, **keywords)
    return (torch.get_rng_state(), result) if node.target is run_and_save_rng_state else result


def returns_alias(target: Any) -> bool:
    """Whether an operator's result shares memory with an argument."""
    schema = getattr(target, "_schema", None)
    return schema is not None and any(r.alias_info is not None for r in schema.returns)


def schema_argument_names(target: Any) -> list[str]:
    """Names of an operator's arguments in order; empty for what has no schema."""
    schema = getattr(target, "_schema", None)
    return [] if schema is None else [a.name for a in schema.arguments]


def no_fake_mode() -> Any:
    """Context in which tensors are real: compilers are called under AOTAutograd's fake mode."""
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()
