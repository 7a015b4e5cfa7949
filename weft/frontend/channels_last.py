"""Convolutions of 16-bit images in channels last: cuDNN computes them so, and turns other inputs and results by kernels of its own, in each call.

The kernel that computes an image writes it as the convolution reads it, and what follows has the strides that eager torch would give it then.
What leaves the graph keeps the strides that were traced. Owns the rewriting. Read first: `lay_out_convolutions`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from .aten import lookup
from .regions import is_cheap, is_getitem
from .rewrites import emit, fake_result

aten = torch.ops.aten

LEAST_CHANNELS = 16
"""Of the image and of the result: with fewer, a pixel is shorter than a sector of 32 bytes, and cuDNN pads it."""


def lay_out_convolutions(graph: Graph) -> None:
    """Write a graph anew, in place, with equal results: its convolutions take and give channels last where cuDNN would turn them itself."""
    if any(_is_wanted(node) for node in graph.nodes):
        _Layouts(graph).run()
        graph.eliminate_dead_code()


def _is_wanted(node: Node) -> bool:
    """True for a plain convolution of two axes, or its gradients, in 16 bits, whose channels fill vectors."""
    if node.target not in (aten.convolution.default, aten.convolution_backward.default):
        return False
    is_forward = node.target is aten.convolution.default
    image, kernel = (operand.meta["val"] for operand in (node.args[:2] if is_forward else node.args[1:3]))  # type: ignore[union-attr]
    stride, is_turned, groups = (node.args[place + (not is_forward)] for place in (3, 6, 8))
    if image.dtype not in (torch.bfloat16, torch.float16) or image.dim() != 4 or len(stride) != 2 or is_turned or groups != 1:  # type: ignore[arg-type]
        return False
    is_known = torch.backends.cudnn.is_available() and torch.backends.cudnn.enabled if image.is_cuda else torch.backends.mkldnn.is_available()
    return is_known and all(isinstance(n, int) and n >= LEAST_CHANNELS and n % 8 == 0 for n in kernel.shape[:2])


def _is_channels_last(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() == 4 and value.is_contiguous(memory_format=torch.channels_last)


def _strides(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [_strides(part) for part in value]
    return value.stride() if isinstance(value, torch.Tensor) else None


def _as_computed(value: Any) -> Any:
    """A convolution's fake result, or gradients, with the strides of the real ones: torch's fake gradients on a GPU do not follow their operands."""
    if isinstance(value, (tuple, list)):
        return tuple(_as_computed(part) for part in value)
    if not isinstance(value, torch.Tensor) or value.dim() != 4:
        return value
    with value.fake_mode:  # type: ignore[attr-defined]
        return torch.empty_like(value, memory_format=torch.channels_last)


def _shape(node: Node) -> tuple[Any, ...]:
    value = node.meta["val"]
    return tuple(value.shape) if isinstance(value, torch.Tensor) else ()


class _Layouts:
    """traced: what a node was traced as, for those whose strides changed. turned, restored: copies in channels last, and as traced."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.traced: dict[Node, Any] = {}
        self.turned: dict[Node, Node] = {}
        self.restored: dict[Node, Node] = {}
        self.leaving = _views_that_leave(graph)

    def run(self) -> None:
        """Go through the graph in order, so that each node meets the strides that its inputs have now."""
        for node in list(self.graph.nodes):
            if node.op == "output":
                self._restore_inputs(node)
            elif node.op == "call_function" and _is_wanted(node):
                images = 2 if node.target is aten.convolution.default else 3
                node.args = (*(self._turned(node, operand) for operand in node.args[:images]), *node.args[images:])  # type: ignore[arg-type]
                self._take(node, _as_computed(fake_result(node)))
            elif node.op == "call_function" and any(source in self.traced for source in node.all_input_nodes):
                self._follow(node)

    def _take(self, node: Node, value: Any) -> None:
        traced = node.meta["val"]
        node.meta["val"] = value
        if _strides(value) != _strides(traced):
            self.traced[node] = traced

    def _follow(self, node: Node) -> None:
        """Strides of a node of whose inputs some lie otherwise than traced. A view that cannot be, or that leaves the graph, takes its input as traced."""
        if is_getitem(node):
            value = node.args[0].meta["val"][node.args[1]]  # type: ignore[union-attr, index]
            return self._take(node, value)
        if node in self.leaving:
            return self._restore_inputs(node)
        if _is_pointwise(node):
            self._turn_inputs(node)
        try:
            value = fake_result(node)
        except (RuntimeError, ValueError):  # torch raises either for a view that cannot be
            return self._restore_inputs(node)
        self._take(node, value)

    def _turn_inputs(self, node: Node) -> None:
        """All images of an op in channels last, if one is: its result is, too."""
        images = [source for source in node.all_input_nodes if _shape(source) == _shape(node) and len(_shape(node)) == 4]
        if any(_is_channels_last(image.meta["val"]) for image in images if image in self.traced):
            for image in images:
                node.replace_input_with(image, self._turned(node, image))

    def _turned(self, node: Node, operand: Node) -> Node:
        """An operand of `node` in channels last."""
        if not _is_channels_last(operand.meta["val"]):
            if operand not in self.turned:
                self.turned[operand] = emit(self.graph, node, aten.clone.default, operand, memory_format=torch.channels_last)
            return self.turned[operand]
        return operand

    def _restore_inputs(self, node: Node) -> None:
        for source in node.all_input_nodes:
            if source in self.traced:
                node.replace_input_with(source, self._restored(node, source))

    def _restored(self, node: Node, source: Node) -> Node:
        """A copy with the strides that were traced, which are those of a dense tensor: a result that was computed."""
        if source not in self.restored:
            strides = self.traced[source].stride()
            order = sorted(range(len(strides)), key=lambda axis: -strides[axis])
            inverse = sorted(range(len(order)), key=order.__getitem__)
            copy = source
            for step in (order, None, inverse):
                if step is None:
                    copy = emit(self.graph, node, aten.clone.default, copy, memory_format=torch.contiguous_format)
                elif step != sorted(step):
                    copy = emit(self.graph, node, aten.permute.default, copy, step)
            self.restored[source] = copy
        return self.restored[source]


def _views_that_leave(graph: Graph) -> set[Node]:
    """Views that are results of the graph, and views that these are of."""
    stack = list(next(node for node in graph.nodes if node.op == "output").all_input_nodes)
    leaving: set[Node] = set()
    while stack:
        node = stack.pop()
        if node.op == "call_function" and is_cheap(node) and node not in leaving and node.target is not aten.clone.default:
            leaving.add(node)
            stack += node.all_input_nodes
    return leaving


def _is_pointwise(node: Node) -> bool:
    return torch.Tag.pointwise in getattr(node.target, "tags", ()) and lookup(node.target) is not None


__all__ = ["lay_out_convolutions"]
