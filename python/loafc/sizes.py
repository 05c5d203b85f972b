"""Writes SymPy size expressions as size expressions of a tensor program."""

from __future__ import annotations

from typing import Any

import sympy

from .errors import ConvertError


def size_text(expr: Any) -> str:
    """The expression in ``+ - * // % max min``, every operand in parentheses where that could matter.

    Raises ConvertError for what integer sizes can't express.
    """
    return _text(sympy.sympify(expr))


def linear_in(expr: Any, symbol: sympy.Symbol) -> tuple[int, int] | None:
    """``(factor, offset)`` when the expression is ``factor * symbol + offset`` with a factor other than 0."""
    if not isinstance(expr, sympy.Expr) or expr.free_symbols != {symbol}:
        return None
    factor = expr.coeff(symbol, 1)
    offset = expr - factor * symbol
    offset = sympy.expand(offset)
    if not (isinstance(factor, sympy.Integer) and isinstance(offset, sympy.Integer) and factor != 0):
        return None
    return int(factor), int(offset)


def _text(expr: Any) -> str:
    if isinstance(expr, sympy.Integer):
        return str(int(expr))
    if isinstance(expr, sympy.Symbol):
        return expr.name
    writer = _WRITERS.get(type(expr).__name__)
    if writer is None:
        raise ConvertError(f"the size expression `{expr}` can't be written: {type(expr).__name__} is unknown")
    return writer(expr)


def _operand(expr: Any) -> str:
    text = _text(expr)
    return text if text.isidentifier() or text.isdigit() or text.startswith(("max(", "min(")) else f"({text})"


def _add(expr: Any) -> str:
    return " + ".join(_operand(a) for a in expr.args)


def _mul(expr: Any) -> str:
    factor, rest = expr.as_coeff_Mul()
    if isinstance(factor, sympy.Rational) and factor.q != 1:
        # A size is an integer, so the division is exact.
        return f"({_product(sympy.Integer(factor.p) * rest)}) // {factor.q}"
    return _product(expr)


def _product(expr: Any) -> str:
    return " * ".join(_operand(a) for a in sympy.Mul.make_args(expr))


def _pow(expr: Any) -> str:
    base, exponent = expr.args
    if not isinstance(exponent, sympy.Integer) or exponent < 0:
        raise ConvertError(f"the size expression `{expr}` has an exponent that is no natural number")
    return " * ".join([_operand(base)] * int(exponent)) if exponent else "1"


def _floor_div(expr: Any) -> str:
    return f"{_operand(expr.args[0])} // {_operand(expr.args[1])}"


def _mod(expr: Any) -> str:
    return f"({_operand(expr.args[0])} % {_operand(expr.args[1])})"


def _modular_indexing(expr: Any) -> str:
    base, divisor, modulus = expr.args
    return f"(({_operand(base)} // {_operand(divisor)}) % {_operand(modulus)})"


def _ceil_div(expr: Any) -> str:
    return f"-((-{_operand(expr.args[0])}) // {_operand(expr.args[1])})"


def _quotient_of(expr: Any) -> tuple[Any, Any] | None:
    inner = expr.args[0]
    return tuple(inner.args) if type(inner).__name__ in ("IntTrueDiv", "FloatTrueDiv") else None


def _ceil_to_int(expr: Any) -> str:
    quotient = _quotient_of(expr)
    if quotient is None:
        return _of_integer(expr)
    return f"-((-{_operand(quotient[0])}) // {_operand(quotient[1])})"


def _floor_to_int(expr: Any) -> str:
    quotient = _quotient_of(expr)
    if quotient is None:
        return _of_integer(expr)
    return f"{_operand(quotient[0])} // {_operand(quotient[1])}"


def _trunc_to_int(expr: Any) -> str:
    quotient = _quotient_of(expr)
    if quotient is None:
        return _of_integer(expr)
    if not all(q.is_nonnegative for q in quotient):
        raise ConvertError(f"the size expression `{expr}` rounds towards zero and may be negative")
    return f"{_operand(quotient[0])} // {_operand(quotient[1])}"


def _of_integer(expr: Any) -> str:
    """An integer turned into a float and back."""
    inner = expr.args[0]
    if type(inner).__name__ == "ToFloat":
        inner = inner.args[0]
    if not inner.is_integer:
        raise ConvertError(f"the size expression `{expr}` rounds a float")
    return _text(inner)


def _extremum(name: str) -> Any:
    def write(expr: Any) -> str:
        texts = [_text(a) for a in sorted(expr.args, key=str)]
        result = texts[0]
        for text in texts[1:]:
            result = f"{name}({result}, {text})"
        return result

    return write


_WRITERS: dict[str, Any] = {
    "Add": _add,
    "Mul": _mul,
    "Pow": _pow,
    "PowByNatural": _pow,
    "FloorDiv": _floor_div,
    "CleanDiv": _floor_div,
    "PythonMod": _mod,
    "Mod": _mod,
    "ModularIndexing": _modular_indexing,
    "CeilDiv": _ceil_div,
    "CeilToInt": _ceil_to_int,
    "FloorToInt": _floor_to_int,
    "TruncToInt": _trunc_to_int,
    "RoundToInt": _of_integer,
    "Identity": lambda expr: _text(expr.args[0]),
    "Max": _extremum("max"),
    "Min": _extremum("min"),
}
