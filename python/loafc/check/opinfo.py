"""PyTorch's own database of operators as a list of pairs, each an operator and an element type, with arguments.

PyTorch tests its operators with it: for each it has the element types it supports and arguments that cover what its
documentation promises. Every argument comes twice, as it is and laid out with gaps between its elements. Functions that
draw random numbers draw them from the generator as it is: who compares them sets its seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

SEED = 0

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "int64": torch.int64,
    "int32": torch.int32,
    "bool": torch.bool,
}

# Their results are memory that nothing was written to: only its layout can be compared.
_UNDEFINED = frozenset({"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"})


@dataclass(frozen=True)
class Pair:
    """An operator of the database, by name, and an element type."""

    operator: str
    dtype: str

    def __str__(self) -> str:
        return f"{self.operator} {self.dtype}"


@dataclass(frozen=True)
class Sample:
    """Arguments of one call; ``name`` says which of the pair's they are."""

    name: str
    args: Sequence[Any]
    kwargs: dict[str, Any]
    # Makes of the result what can be differentiated: eigenvectors, say, are only known up to their signs.
    differentiated: Callable[[Any], Any]

    def copy(self) -> Sample:
        """The same values in the same places of other memory."""
        return self.map(_copy)

    def map(self, of_leaf: Callable[[Any], Any]) -> Sample:
        """The same call with other tensors and numbers."""
        args, kwargs = tree_map(of_leaf, tuple(self.args)), tree_map(of_leaf, dict(self.kwargs))
        return Sample(self.name, args, kwargs, self.differentiated)


@cache
def _database() -> dict[str, Any]:
    # The import takes seconds, and needs a package that loafc itself doesn't.
    from torch.testing._internal import common_methods_invocations

    # Functions that draw random numbers set a seed first, at which Dynamo breaks the graph: nothing would be compiled.
    assert hasattr(common_methods_invocations, "wrapper_set_seed")
    common_methods_invocations.wrapper_set_seed = _call
    return {op.full_name: op for op in common_methods_invocations.op_db}


def _call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


def pairs() -> Iterator[Pair]:
    """All pairs, in the database's order."""
    for name, op in _database().items():
        for dtype, torch_dtype in DTYPES.items():
            if op.supports_dtype(torch_dtype, "cpu"):
                yield Pair(name, dtype)


def function(pair: Pair) -> Callable[..., Any]:
    """The function to call: usually the operator as users call it."""
    return _database()[pair.operator].op


def has_defined_values(pair: Pair) -> bool:
    """Whether the operator's results have values to compare."""
    return pair.operator not in _UNDEFINED


def has_gradients(pair: Pair) -> bool:
    """Whether the operator can be differentiated, with elements of at least single precision."""
    operator, dtype = _database()[pair.operator], DTYPES[pair.dtype]
    precise = dtype in (torch.float32, torch.float64)
    return precise and operator.supports_autograd and dtype in operator.supported_backward_dtypes("cpu")


def samples(pair: Pair, most: int | None = None, gradients: bool = False) -> Iterator[Sample]:
    """The first ``most`` samples of a pair, or all: each as it is, then with gaps between elements.

    With ``gradients`` their tensors ask for one.
    """
    torch.manual_seed(SEED)
    inputs = _database()[pair.operator].sample_inputs("cpu", DTYPES[pair.dtype], requires_grad=gradients)
    for number, sample in enumerate(inputs):
        if most is not None and number >= most:
            return
        yield _sample(str(number), sample)
        if not _is_strided(sample):
            continue
        yield _sample(f"{number} noncontiguous", sample.noncontiguous())


def _sample(name: str, of: Any) -> Sample:
    return Sample(name, (of.input, *of.args), dict(of.kwargs), of.output_process_fn_grad)


def _is_strided(sample: Any) -> bool:
    leaves = tree_leaves((sample.input, sample.args, sample.kwargs))
    return all(t.layout is torch.strided for t in leaves if isinstance(t, torch.Tensor))


def _copy(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    if leaf.layout is not torch.strided:
        return leaf.detach().clone().requires_grad_(leaf.requires_grad)
    storage = leaf.detach().untyped_storage().clone()
    copy = torch.empty(0, dtype=leaf.dtype).set_(storage, leaf.storage_offset(), leaf.size(), leaf.stride())
    copy = copy.conj() if leaf.is_conj() else copy
    copy = torch._neg_view(copy) if leaf.is_neg() else copy
    return copy.requires_grad_(leaf.requires_grad)
