"""Images of another size. Nearest neighbour, enlarged by whole numbers: each pixel is repeated, which kernels do by views, and whose gradient is a sum over
windows. Linear and cubic interpolation, to any known size: one operator, whose gradient is a sum over windows, too (`resampled_images.py`); others keep
torch's gradient. Padded with the pixels of the other end: one operator, too (`wrapped_pads.py`).

torch's decomposition computes indices of pixels instead, and its gradient adds into rows that an index names, which sorts the index first.
Read first: `enlarge_images`.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import GraphModule, Node

PIXELS = {"linear": 2, "bilinear": 2, "trilinear": 2, "bicubic": 4}
"""By mode: between how many pixels of an axis a result lies."""
MOST_TIMES = 8
"""Up to this factor, torch's own position in float32 is that of the repeated pixel in images of any size that fits memory."""

_SIGNATURE = inspect.signature(F.interpolate)


def enlarge_images(gm: GraphModule) -> None:
    """Replace `interpolate` and circular pads in a Dynamo graph, in place; memory formats stay."""
    calls = [(node, _named(node)) for node in gm.graph.nodes if node.target is F.interpolate]
    for node, named in calls:
        factors = _factors(node, named)
        if factors is not None:
            (_interpolate if named["mode"] in PIXELS else _repeat)(gm, node, named["input"], factors)
        elif _is_differentiated(named):
            _leave_gradient(gm, node, named)
    pads = [node for node in gm.graph.nodes if node.target is torch._C._nn.pad and _is_wrapped(*node.args, **node.kwargs)]
    for node in pads:
        _wrap(gm, node, *node.args[:2])
    if calls or pads:
        gm.recompile()


def _named(node: Node) -> dict[str, Any]:
    """Return the arguments of a call by name, defaults too."""
    given = _SIGNATURE.bind(*node.args, **node.kwargs)
    given.apply_defaults()
    return given.arguments


def _factors(node: Node, named: dict[str, Any]) -> list[int] | None:
    """Return how many times as many pixels each spatial axis gets, or 0 for another size of an interpolated image; None for another way to interpolate."""
    x, out = (n.meta.get("example_value") if isinstance(n, Node) else None for n in (named["input"], node))
    is_interpolated = named["mode"] in PIXELS
    is_plain = not named["recompute_scale_factor"] and not named["antialias"] and (is_interpolated or named["mode"] in ("nearest", "nearest-exact"))
    if not is_plain or not isinstance(x, torch.Tensor) or not isinstance(out, torch.Tensor) or not 3 <= x.dim() <= 5 or _format_of(x) is None:
        return None
    if is_interpolated and not x.is_floating_point():
        return None
    scale, axes = named["scale_factor"], range(2, x.dim())
    pairs = [(x.shape[d], out.shape[d]) for d in axes]
    if scale is not None:
        scales = list(scale) if isinstance(scale, (tuple, list)) else [scale] * len(axes)
        factors = [_whole(s) for s in scales]
    else:  # sizes that are open may be any multiple
        scales = [1.0] * len(axes)
        factors = [_whole(b / a) if isinstance(a, int) and isinstance(b, int) and a else 0 for a, b in pairs]
    if len(factors) != len(axes):
        return None
    factors = [f if 1 <= f <= MOST_TIMES else 0 for f in factors]
    if not is_interpolated:
        return factors if all(factors) else None
    has_open_sizes = any(not isinstance(n, int) for pair in pairs for n in pair)
    if has_open_sizes:
        return factors if all(factors) and not named["align_corners"] else None
    are_exact = scale is None or all(f or a * s == b for (a, b), f, s in zip(pairs, factors, scales))  # otherwise positions are those of the scale
    return factors if are_exact and all(min(pair) > 0 for pair in pairs) else None


def _whole(factor: Any) -> int:
    """Return a number as an integer; 0 if it is none."""
    return int(factor) if isinstance(factor, (int, float)) and factor == int(factor) else 0


def _format_of(x: torch.Tensor) -> torch.memory_format | None:
    """Return the memory format that torch keeps; None for other strides, whose results torch lays out by rules of its own."""
    if x.is_contiguous():
        return torch.contiguous_format
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    return last if last is not None and x.is_contiguous(memory_format=last) else None


def _is_wrapped(image: Any, pad: Any = (), mode: str = "constant", value: Any = None) -> bool:
    """True for pads with pixels of the other end whose sizes are known, by no more than the image."""
    x = image.meta.get("example_value") if isinstance(image, Node) else None
    if mode != "circular" or not isinstance(x, torch.Tensor) or x.is_complex() or len(pad) != 2 * (x.dim() - 2):
        return False
    sizes = [n for n in reversed(x.shape[2:]) for _ in range(2)]
    return all(isinstance(n, int) and isinstance(width, int) and 0 <= width <= n for n, width in zip(sizes, pad))


def _replace(gm: GraphModule, node: Node, target: Any, *args: Any) -> None:
    """Put a call of an operator in place of a node."""
    with gm.graph.inserting_before(node):
        value = gm.graph.call_function(target, args)
    value.meta = dict(node.meta)
    node.replace_all_uses_with(value)
    gm.graph.erase_node(node)


def _wrap(gm: GraphModule, node: Node, image: Node, widths: Any) -> None:
    from . import wrapped_pads  # noqa: F401  (as below)

    _replace(gm, node, torch.ops.weft.pad_wrapped.default, image, list(widths))


def _interpolate(gm: GraphModule, node: Node, image: Node, factors: list[int]) -> None:
    if all(factor == 1 for factor in factors):
        return
    from . import resampled_images  # noqa: F401  (defines the operator: some milliseconds that other graphs do not wait for)

    named = _named(node)
    is_aligned = bool(named["align_corners"])
    sizes = [0 if factor and not is_aligned else size for factor, size in zip(factors, node.meta["example_value"].shape[2:])]
    _replace(gm, node, torch.ops.weft.resize.default, image, sizes, factors, is_aligned, PIXELS[named["mode"]])


def _is_differentiated(named: dict[str, Any]) -> bool:
    """True for an interpolation whose gradient torch's decomposition would add up by sorted indices."""
    x = named["input"].meta.get("example_value") if isinstance(named["input"], Node) else None
    if named["mode"] not in PIXELS or named["antialias"] or named["recompute_scale_factor"] or isinstance(named["scale_factor"], Node):
        return False
    return isinstance(x, torch.Tensor) and x.is_floating_point() and x.requires_grad and not torch.are_deterministic_algorithms_enabled()


def _leave_gradient(gm: GraphModule, node: Node, named: dict[str, Any]) -> None:
    """Let torch's own kernel compute the gradient: of sizes that are open, and of positions that follow from a scale."""
    from . import resampled_images  # noqa: F401  (as above)

    def each(value: Any) -> Any:
        """One for each axis: of a number, a list, or a node for either."""
        if value is None or isinstance(value, (tuple, list)):
            return list(value or ())
        is_one = not isinstance(value, Node) or not isinstance(value.meta.get("example_value"), (tuple, list))
        return [value] * (named["input"].meta["example_value"].dim() - 2) if is_one else value

    given = each(named["size"]), [float(scale) for scale in each(named["scale_factor"])], bool(named["align_corners"]), PIXELS[named["mode"]]
    _replace(gm, node, torch.ops.weft.resize_by_torch.default, named["input"], *given)


def _repeat(gm: GraphModule, node: Node, image: Node, factors: list[int]) -> None:
    value, x = image, image.meta["example_value"]
    is_last = _format_of(x) is not torch.contiguous_format
    rank = x.dim()

    def emit(target: Any, *args: Any) -> Node:
        with gm.graph.inserting_before(node):
            made = gm.graph.call_function(target, args)
        made.meta = {key: found for key, found in node.meta.items() if key in ("stack_trace", "nn_module_stack", "source_fn_stack")}
        return made

    if is_last:
        value = emit(torch.permute, value, (0, *range(2, rank), 1))
    for axis, factor in enumerate(factors, start=1 if is_last else 2):
        value = emit(torch.repeat_interleave, value, factor, axis) if factor > 1 else value
    if is_last:
        value = emit(torch.permute, value, (0, rank - 1, *range(1, rank - 1)))
    if value is image:  # all factors are 1: a copy, as torch's
        value = emit(torch.clone, value)
    value.meta = dict(node.meta)
    node.replace_all_uses_with(value)
    gm.graph.erase_node(node)
