"""Views that ``as_strided`` makes: what they view, and arguments of which they view more than is passed.

``as_strided`` counts from the start of a tensor's storage, while a program's memory starts at the first element of
the tensor that it gets. Where a view starts before that, or gaps of the argument are written to, the program gets the
storage as one line of elements instead, and the argument becomes a view of it.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from ._torch_compat import returns_alias
from .graphs import copied

aten = torch.ops.aten

_VIEWS = frozenset({aten.as_strided.default, aten.as_strided_scatter.default, aten.as_strided_copy.default})


@dataclass(frozen=True)
class Storage:
    """An argument that is passed as the first ``elements`` of its storage, where it starts at ``offset``."""

    position: int
    offset: int
    elements: int


def expose_storages(gm: GraphModule) -> tuple[GraphModule, list[Storage]]:
    """A graph that takes the storage of each argument around which it views elements that aren't the argument's.

    The graph itself where it views none. An argument that the graph writes to, or whose sizes are symbolic, is left
    as it is.
    """
    placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
    views: dict[Node, list[Node]] = {}
    for node in gm.graph.nodes:
        if node.op == "call_function" and node.target in _VIEWS:
            views.setdefault(as_strided_in_root(node)[0], []).append(node)
    exposed = {
        root: Storage(placeholders.index(root), first_element(root), elements)
        for root, nodes in views.items()
        if root.op == "placeholder" and (elements := _elements_to_expose(root, nodes)) is not None
    }
    if not exposed:
        return gm, []
    graph, copies = copied(gm.graph)
    for root, storage in exposed.items():
        _take_storage(graph, copies, root, views[root], storage.elements)
    return GraphModule(gm, graph), list(exposed.values())


def _elements_to_expose(root: Node, views: Sequence[Node]) -> int | None:
    """How much of an argument's storage the graph touches; None where the argument itself will do, or must."""
    made = root.meta["val"]
    extents = [(made.shape, made.stride(), made.storage_offset())]
    for node in views:
        _, (*_, size, stride, offset) = as_strided_in_root(node)
        extents.append((size, stride, offset + first_element(root)))
    if any(type(n) is not int for size, stride, offset in extents for n in (*size, *stride, offset)):
        return None
    has_gaps = made.numel() < 1 + last_element(made.shape, made.stride())
    into_gaps = has_gaps and any(node.target is aten.as_strided_scatter.default for node in views)
    if not into_gaps and all(offset >= made.storage_offset() for _, _, offset in extents):
        return None
    written = any(user.target is aten.copy_.default and user.args[0] is root for user in root.users)
    copied = any(node.target is aten.as_strided_copy.default for node in views)
    if written or copied or made.is_conj() or made.is_neg():
        return None
    return 1 + max(offset + last_element(size, stride) for size, stride, offset in extents if 0 not in size)


def _take_storage(graph: Graph, copies: dict[Node, Node], root: Node, views: Sequence[Node], elements: int) -> None:
    storage, made = copies[root], root.meta["val"]
    storage.meta = {**root.meta, "val": made.new_empty((elements,))}
    own_view = (list(made.shape), list(made.stride()), made.storage_offset())
    with graph.inserting_before(next(n for n in graph.nodes if n.op != "placeholder")):
        argument = graph.call_function(aten.as_strided.default, (storage, *own_view))
    argument.meta = dict(root.meta)
    storage.replace_all_uses_with(argument, delete_user_cb=lambda user: user is not argument)
    for view in views:
        node = copies[view]
        _, (*_, size, stride, offset) = as_strided_in_root(view)
        where = (size, stride, offset + first_element(root))
        if node.target is aten.as_strided.default:
            node.args, node.kwargs = (storage, *where), {}
            continue
        node.args, node.kwargs = (storage, node.args[1], *where), {}
        node.meta = {**view.meta, "val": made.new_empty((elements,))}
        with graph.inserting_after(node):
            result = graph.call_function(aten.as_strided.default, (node, *own_view))
        result.meta = dict(view.meta)
        node.replace_all_uses_with(result, delete_user_cb=lambda user, result=result: user is not result)


def as_strided_in_root(node: Node) -> tuple[Node, tuple[Any, ...]]:
    """What an ``as_strided`` views, and its arguments for that tensor: sizes, strides and the offset from its first
    element. A scatter writes to a copy of its own argument; the others view what their argument is a view of."""
    base = node.args[0]
    scatter = node.target is aten.as_strided_scatter.default
    root = base if scatter else root_of(base)
    names = ("size", "stride", "storage_offset")
    first = 2 if scatter else 1
    given = dict(zip(names, node.args[first:], strict=False))
    size, stride, offset = (given.get(n, node.kwargs.get(n)) for n in names)
    if offset is None:
        offset = first_element(base)
    elif isinstance(offset, Node):
        offset = offset.meta["val"]
    return root, (root, *node.args[1:first], size, stride, offset - first_element(root))


def first_element(node: Node) -> Any:
    """Where a tensor starts in its storage."""
    return node.meta["val"].storage_offset()


def last_element(size: Sequence[int], stride: Sequence[int]) -> int:
    """How far a tensor's last element is from its first one."""
    return sum((n - 1) * s for n, s in zip(size, stride, strict=True))


def root_of(node: Node) -> Node:
    """The tensor of its own memory that this one is a view of, as far as both count in the same elements."""
    while node.op == "call_function":
        view = node.args[0] if node.target is operator.getitem else node
        source = view.args[0] if returns_alias(view.target) else None
        if not isinstance(source, Node) or not isinstance(source.meta.get("val"), torch.Tensor):
            break
        if source.meta["val"].dtype != node.meta["val"].dtype:
            break
        node = source
    return node
