"""New values of arguments, for kernels that write them where the arguments lie.

Owns two rewrites of graphs that change their arguments: a new value that is a view, or that other results need, too, becomes a result of its own; and results
that are views of such an argument show its memory. What is written by whom, and when, is in `updates.py`.
Read first: `store_new_values`, `show_arguments`.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import Graph, Node

from .own_results import has_own_results
from .regions import Region, is_alike, is_cheap, is_factory, reason_against, shown_by
from .rewrites import drop_unread, emit, replace
from .updates import in_place_ops, readers, writes_back


def show_arguments(graph: Graph) -> None:
    """Make results that AOTAutograd takes for views of an argument with a new value views of the argument, instead of views of the value: then a kernel can
    write the value into the argument. AOTAutograd itself makes these results once more, from the caller's tensor."""
    context = torch._guards.TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    values = {copy.args[1]: copy for copy in graph.nodes if writes_back(copy) and is_alike(*copy.args[:2])}
    if metadata is None or not values:
        return
    output = graph.output_node()
    given: Any = output.args[0]
    results = list(given)
    first = metadata.num_mutated_inp_runtime_indices
    for place, told in enumerate(metadata.output_info, first):
        if told.output_type.name == "alias_of_input" and place < len(results) and isinstance(results[place], Node):
            views = _views_of(results[place], values)
            if views is not None:
                shown = emit(graph, output, torch.ops.weft.shown.default, values[views[0]].args[0])
                for view in views[1:]:
                    shown = emit(graph, output, view.target, shown, *view.args[1:])
                    shown.meta = dict(view.meta, val=shown.meta["val"])
                results[place] = shown
    output.args = (type(given)(results),)
    drop_unread(graph)


def _views_of(result: Node, values: Mapping[Any, Node]) -> list[Node] | None:
    """Return one of these values and the views of it that end in a result; None if the result is nothing of this kind."""
    chain = [result]
    while chain[-1] not in values:
        node = chain[-1]
        is_view = node.op == "call_function" and is_cheap(node) and len(node.all_input_nodes) == 1 and not node.kwargs
        if not is_view or has_own_results(node.target) or node.target is operator.getitem:
            return None
        chain.append(node.all_input_nodes[0])
    return chain[::-1]


def store_new_values(graph: Graph) -> list[Node]:
    """Let kernels write new values of arguments that are views, or that results of the graph need, too: a call of `weft.stored` makes each of these values a
    result of its own. Return these calls."""
    results = set(graph.output_node().all_input_nodes)
    found: list[Node] = []
    for copy in list(graph.nodes):
        if writes_back(copy) and _needs_a_value_of_its_own(copy, results):
            given: Any = copy.args
            argument, value = given[:2]
            made = emit(graph, copy, torch.ops.weft.stored.default, value, list(argument.meta["val"].stride()))
            copy.replace_input_with(value, made)
            found.append(made)
    return found


def _needs_a_value_of_its_own(copy: Node, results: set[Node]) -> bool:
    argument, value = copy.args[:2]
    if not isinstance(argument, Node) or not isinstance(value, Node) or value.target in in_place_ops() or readers(argument, copy, results) is None:
        return False
    made = shown_by(value, lambda node: is_cheap(node) and not is_factory(node))
    if made.op != "call_function" or is_cheap(made) or reason_against(made) or not is_alike(argument, argument):
        return False
    a, b = argument.meta["val"], value.meta["val"]
    is_same = (a.dtype, a.device, a.shape) == (b.dtype, b.device, b.shape)
    return is_same and (made is not value or readers(value, copy, results) is None)


def drop_unstored(graph: Graph, stored: list[Node], regions: list[Region]) -> bool:
    """Remove the calls of `weft.stored` whose value no region writes into its argument; tell whether there is any."""
    updated = {value for region in regions for value in region.updates}
    left = [node for node in stored if node not in updated]
    for node in left:
        replace(graph, node, node.args[0])  # type: ignore[arg-type]
    return bool(left)


__all__ = ["drop_unstored", "show_arguments", "store_new_values"]
