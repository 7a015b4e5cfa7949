"""Convolutions of 16-bit images in channels last: cuDNN computes them so, and turns other inputs and results by kernels of its own, in each call.

Here an operand is turned once for all convolutions that read it, by a kernel of ours (`regions.ALONE`), and what reads a result reads it turned back.
Everything else stays as it was traced. Owns the rewriting. Read first: `lay_out_convolutions`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node
from torch.utils.checkpoint import CheckpointPolicy

from .regions import is_getitem
from .rewrites import CONVOLUTIONS, drop_unread, emit, fake_result

aten = torch.ops.aten

LEAST_CHANNELS = 16
"""Channels of the image and of the result, at least: with fewer, a pixel is shorter than a sector of 32 bytes, and cuDNN pads it."""
LEAST_ELEMS = 1 << 18
"""Elements of the image, at least. An estimate: transposing fewer takes less time than a launch."""


def lay_out_convolutions(graph: Graph) -> None:
    """Rewrite a graph, in place, with equal results: its convolutions take and return channels last if cuDNN would transpose them itself."""
    turned: dict[Node, Node] = {}
    for node in list(graph.nodes):
        if node.target not in CONVOLUTIONS:
            continue
        first = 0 if node.target is aten.convolution.default else 1  # position of the image; a gradient precedes it
        if not _is_wanted(node.args[first], node.args[first + 1], node.args[first + 3 :]):
            continue
        traced = node.meta["val"]
        node.args = (*(_turned(graph, node, image, turned) for image in node.args[: first + 2]), *node.args[first + 2 :])
        node.meta["val"] = _as_computed(fake_result(node))
        for part in [user for user in node.users if is_getitem(user)] if isinstance(traced, tuple) else [node]:
            _turn_back(graph, part, traced if part is node else part.meta["val"], turned)
    if turned:
        drop_unread(graph)


def _is_wanted(x: Any, weight: Any, rest: Any) -> bool:
    """True for a plain convolution of two axes, in 16 bits, of an image whose channels fill vectors and are not innermost yet. rest: from the stride on."""
    stride, is_transposed, groups = rest[0], rest[3], rest[5]
    image, kernel = x.meta["val"], weight.meta["val"]
    if image.dtype not in (torch.bfloat16, torch.float16) or image.dim() != 4 or len(stride) != 2 or is_transposed or groups != 1:
        return False
    is_known = torch.backends.cudnn.is_available() and torch.backends.cudnn.enabled if image.is_cuda else torch.backends.mkldnn.is_available()
    elems = image.numel()
    is_large = not isinstance(elems, int) or elems >= LEAST_ELEMS
    is_turned = _is_channels_last(image) or not image.is_contiguous()
    return is_known and is_large and not is_turned and all(isinstance(n, int) and n >= LEAST_CHANNELS and n % 8 == 0 for n in kernel.shape[:2])


def _is_channels_last(value: torch.Tensor) -> bool:
    return value.is_contiguous(memory_format=torch.channels_last)


def _turned(graph: Graph, node: Node, operand: Any, turned: dict[Node, Node]) -> Node:
    """An operand of `node` in channels last."""
    if _is_channels_last(operand.meta["val"]):
        return operand
    if operand not in turned:
        turned[operand] = emit(graph, node, aten.clone.default, operand, memory_format=torch.channels_last)
    return turned[operand]


def _as_computed(value: Any) -> Any:
    """A convolution's fake result, or gradients, with the strides of the real ones: torch's fake gradients on a GPU do not follow their operands."""
    if isinstance(value, (tuple, list)):
        return tuple(_as_computed(part) for part in value)
    if not isinstance(value, torch.Tensor) or value.dim() != 4:
        return value
    with value.fake_mode:  # type: ignore[attr-defined]
        return torch.empty_like(value, memory_format=torch.channels_last)


def _turn_back(graph: Graph, node: Node, traced: Any, turned: dict[Node, Node]) -> None:
    """Make the readers of a result, or a gradient, read a copy with the traced strides."""
    if is_getitem(node):
        node.meta["val"] = node.args[0].meta["val"][node.args[1]]  # type: ignore[union-attr]
    value = node.meta["val"]
    if value is None or value.stride() == traced.stride() or not traced.is_contiguous():
        return
    readers = list(node.users)
    if readers:
        copy = emit(graph, node.next, aten.clone.default, node, memory_format=torch.contiguous_format)
        copy.meta = {"recompute": CheckpointPolicy.MUST_SAVE, **node.meta, "val": copy.meta["val"]}  # not transposed again in the backward
        for reader in readers:
            reader.replace_input_with(node, copy)
        turned[copy] = node


__all__ = ["lay_out_convolutions"]
