"""Copies of FX graphs, for what changes a graph that others still hold."""

from __future__ import annotations

from torch.fx import Graph, Node


def copied(graph: Graph) -> tuple[Graph, dict[Node, Node]]:
    """A copy of a graph, what its output is known by included, and the copy of each other node."""
    copy = Graph()
    copies: dict[Node, Node] = {}
    output = copy.graph_copy(graph, copies, return_output_node=True)
    if output is not None:
        value, old = output
        copy.output(value).meta.update(old.meta)
    return copy, copies
