"""Ops that torch runs, each as a step of its own: how torch computes them.

Owns the table of these ops; nothing that is not in it ever runs in torch. Their shapes and types are built in `matmuls.py`, `attention.py` and `scans.py`.
A function here gets the operands in the order of the node's inputs, and the node's attributes by name (expressions as numbers, types as torch's); it
returns one tensor per output. The interpreter calls the same functions with operands in float64, so they take any floating type on any device.
Read first: `TORCH_OPS`, `run`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import Unsupported, WeftError
from ..ir.graph_ops import ScanOp, ScatterOp, TorchOp
from ..ir.values import Expr
from ..options import current
from .registry import torch

Compute = Callable[[Sequence[Any], Mapping[str, Any]], tuple[Any, ...]]


def entry_of(expr: Expr) -> str | None:
    """Return the name under which the table has an expression, or None."""
    name = expr.op_name if isinstance(expr, TorchOp) else "scan" if isinstance(expr, ScanOp) else "scatter" if isinstance(expr, ScatterOp) else None
    return name if name in TORCH_OPS else None


def run(name: str, operands: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[Any, ...]:
    """Compute an op of the table. attributes: those of the node, expressions as numbers, types as torch's."""
    return TORCH_OPS[name](operands, attributes)


# ---------------------------------------------------------------- products
def _matmul(operands: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[Any, ...]:
    if "pieces" in attributes and all(x.dim() > 1 for x in operands):
        return (_in_pieces(*operands, *attributes["pieces"]),)
    return (torch.matmul(*operands),)


def _in_pieces(a: Any, b: Any, dim: int, count: int | None) -> Any:
    """Return a @ b, computed in `count` pieces along dimension `dim` of the result, one for each element when count is None."""
    sizes = (*torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    out = a.new_empty(sizes)
    if 0 in sizes:
        return out
    step = 1 if count is None else -(-sizes[dim] // count)
    a, b = a.expand(*sizes[:-2], *a.shape[-2:]), b.expand(*sizes[:-2], *b.shape[-2:])
    for first in range(0, sizes[dim], step):
        length = min(step, sizes[dim] - first)
        rows = a if dim == len(sizes) - 1 else a.narrow(dim, first, length)
        columns = b if dim == len(sizes) - 2 else b.narrow(dim, first, length)
        torch.matmul(rows, columns, out=out.narrow(dim, first, length))
    return out


def _linear(operands: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[Any, ...]:
    if "pieces" in attributes and operands[0].dim() > 1:
        out = _in_pieces(operands[0], operands[1].t(), *attributes["pieces"])
        return (out if len(operands) < 3 else out + operands[2],)
    return (torch.nn.functional.linear(*operands),)


def _grouped_mm(operands: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[Any, ...]:
    a, b, offsets = operands
    widths = (a.shape[-1], b.shape[-1], b.stride(-1) if b.stride(-1) != 1 else b.stride(-2))
    are_rows = a.dim() == 2 and b.dim() == 3  # else groups begin at any column, of which torch's kernel asserts on the device that it is a multiple of 8
    if are_rows and a.is_cuda and a.dtype == torch.bfloat16 and torch.cuda.get_device_capability(a.device)[0] == 9 and not any(n % 8 for n in widths):
        return (torch.ops.aten._grouped_mm(a, b, offsets),)
    ends = [0, *offsets.tolist()]
    pairs = list(zip(ends, ends[1:]))
    if a.dim() == b.dim() == 2:  # groups along the summed axis
        return (torch.stack([a[:, i:j] @ b[i:j] for i, j in pairs]),)
    out = a.new_zeros((a.shape[-2], b.shape[-1]))
    for group, (i, j) in enumerate(pairs):
        if a.dim() == 2:
            out[i:j] = a[i:j] @ b[group]
        else:
            out[:, i:j] = a[group] @ b[:, i:j]
    return (out,)


def _named(operands: Sequence[Any], attributes: Mapping[str, Any]) -> dict[str, Any]:
    return dict(zip(attributes["given"], operands))


class MissingHardware(Unsupported):
    """A product that torch has, on another chip."""

    code = "W870"
    what = "{op} of {elements} with scales of {scales} needs {needed}; this is {given}"
    fix = "{remedy}"

    def __init__(self, op: str, elements: object, scales: object, needed: str, given: str) -> None:
        remedy = "dequantize the operands (weft.quantize.dequantize) and use matmul, or run it there"
        WeftError.__init__(self, None, op=op, elements=elements, scales=scales, needed=needed, given=given, remedy=remedy)


NEEDED = {
    (8, 9): "a GPU of compute capability 8.9 (Ada) or later", (9, 0): "a GPU of compute capability 9.0 (Hopper)",
    (10, 0): "a GPU of compute capability 10.0 (Blackwell) or later",
}  # fmt: skip


def needed_capability(elements: Any, scales: Any) -> tuple[int, int]:
    """Return the least compute capability with products of these elements and scales. Source: cuBLAS's tables of data types and of scaling modes."""
    if elements == torch.float4_e2m1fn_x2 or scales.dtype in (torch.float8_e8m0fnu, torch.float8_e4m3fn):
        return 10, 0
    is_blocks = scales.dim() == 2 and min(scales.shape) > 1
    return (9, 0) if is_blocks else (8, 9)


def check_hardware(op: str, elements: Any, scales: Any, capability: tuple[int, int], name: str) -> None:
    """Raise MissingHardware where a chip of this capability has no such products. Blocks of 128 are Hopper's alone."""
    needed = needed_capability(elements, scales)
    if capability < needed or needed == (9, 0) and capability[0] != 9:
        found = f"{name}, of compute capability {capability[0]}.{capability[1]}"
        raise MissingHardware(op, str(elements).removeprefix("torch."), str(scales.dtype).removeprefix("torch."), NEEDED[needed], found)


def _check_chip(op: str, a: Any, scales: Any) -> None:
    if a.element_size() == 1:
        check_hardware(op, a.dtype, scales, torch.cuda.get_device_capability(a.device), torch.cuda.get_device_name(a.device))


E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def _wide(x: Any, scale: Any, along: int) -> Any:
    """Return narrow elements times their scales in float64, where axis `along` is summed over: what a product without hardware for them computes."""
    rows = x if along == -1 else x.t()
    if rows.dtype == torch.float4_e2m1fn_x2:
        pairs = rows.contiguous().view(torch.uint8).long()
        rows = torch.tensor(E2M1, dtype=torch.float64)[torch.stack([pairs % 16, pairs // 16], -1).flatten(-2)]
    block = {torch.float8_e8m0fnu: 32, torch.float8_e4m3fn: 16}.get(scale.dtype, 0)
    if block:  # in tiles of 128 x 4, as torch takes them
        m, columns = rows.shape[0], rows.shape[1] // block
        row_tiles, column_tiles = -(-m // 128), -(-columns // 4)
        tiles = scale.float().reshape(row_tiles, column_tiles, 32, 4, 4).permute(0, 3, 2, 1, 4).reshape(row_tiles * 128, column_tiles * 4)
        spread = tiles[:m, :columns].double().repeat_interleave(block, 1)
    else:
        spread = _spread(scale if along == -1 or scale.dim() < 2 else scale.t(), rows, -1)
    wide = rows.double() * spread
    return wide if along == -1 else wide.t()


def _scaled_mm(operands: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[Any, ...]:
    given, dtype = _named(operands, attributes), attributes["dtype"]
    a, b, scale_a, scale_b = (given[n] for n in ("mat1", "mat2", "scale1", "scale2"))
    if not a.is_cuda:
        out = _wide(a, scale_a, -1) @ _wide(b, scale_b, -2)
        if "bias" in given:
            out = out + given["bias"].double()
    else:
        _check_chip("scaled_mm", a, scale_a)
        out = torch._scaled_mm(a, b, scale_a, scale_b, bias=given.get("bias"), out_dtype=dtype)
    return ((out * given["alpha"] if "alpha" in given else out).to(dtype),)


def _spread(scale: Any, tensor: Any, along: int) -> Any:
    """Return one scale per block of elements along an axis, for each element."""
    scale = scale.double()
    if scale.dim() != tensor.dim() or scale.numel() == 1:
        return scale
    for axis in (along, -3 - along):  # scales of squares are fewer than the rows, too
        if 1 < scale.shape[axis] < tensor.shape[axis] or axis == along:
            scale = scale.repeat_interleave(max(1, tensor.shape[axis] // max(1, scale.shape[axis])), axis)
    return scale


def _scaled_grouped_mm(operands: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[Any, ...]:
    given, dtype = _named(operands, attributes), attributes["dtype"]
    a, b, offsets, scale_a, scale_b = (given[n] for n in ("mat1", "mat2", "offsets", "scale1", "scale2"))
    if not a.is_cuda and needed_capability(a.dtype, scale_a) == (10, 0):
        elements, scales = (str(t.dtype).removeprefix("torch.") for t in (a, scale_a))
        raise MissingHardware("grouped_mm", elements, scales, NEEDED[(10, 0)], "the CPU, where groups have a scale per row and per column")
    if a.is_cuda:
        _check_chip("grouped_mm", a, scale_a)
        # torch wants one scale per row of each operand, without the axis of extent 1, and those of groups along the summed axis one behind the other
        rows, columns = (s.squeeze(d).contiguous() if s.dim() > 1 and s.shape[d] == 1 else s for s, d in ((scale_a, -1), (scale_b, -2)))
        if a.dim() == b.dim():
            rows, columns = rows.reshape(-1), columns.reshape(-1)
        return (torch._scaled_grouped_mm(a, b, rows, columns, offs=offsets, out_dtype=torch.bfloat16).to(dtype),)
    if a.dim() == b.dim():  # each group has its own scales of all rows and columns
        out = _grouped_mm([a.double(), b.double(), offsets], {})[0] * scale_a.double() * scale_b.double()
    else:
        out = _grouped_mm([a.double() * scale_a.double(), b.double() * scale_b.double(), offsets], {})[0]
    return (out.to(dtype),)


# ---------------------------------------------------------------- attention
FLASH_MULTIPLE = 8
"""What divides the size of a head in torch's flash attention."""


def _flat(x: Any) -> Any:
    """Return a tensor of 4 axes: the leading ones are one."""
    return x.reshape(-1, *x.shape[-3:]) if x.dim() > 4 else x


def _for_flash(x: Any) -> Any:
    """Return a tensor of 4 axes that flash attention can read, a copy where `x` is not one.

    Its last axis must be a multiple of 8: zeros there change no product, and what they give is cut off again. torch's kernel loads 16 bytes at a time along
    that axis. It does not check that each row begins at a multiple of 16 bytes: where one does not, the process can no longer use the GPU.
    """
    x = _flat(x)
    if x.shape[-1] % FLASH_MULTIPLE:
        return torch.nn.functional.pad(x, [0, -x.shape[-1] % FLASH_MULTIPLE])
    if x.stride(-1) != 1:
        return x.contiguous()
    steps = (x.data_ptr(), *(stride * x.element_size() for n, stride in zip(x.shape[:-1], x.stride()) if n > 1))
    return x.clone() if any(step % 16 for step in steps) else x


def _scores(q: Any, k: Any, given: Mapping[str, Any], attributes: Mapping[str, Any]) -> Any:
    """Return scaled and masked products of queries and keys, in float32 at least."""
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    k = _heads_like(q, k)
    scores = (q.to(wide) * attributes["scale"]) @ k.to(wide).transpose(-1, -2)
    if "bias" in given:
        scores = scores + given["bias"].to(wide)
    if "mask" in given:
        scores = scores.masked_fill(given["mask"].logical_not(), -float("inf"))
    if attributes["is_causal"]:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril().logical_not(), -float("inf"))
    return scores


def _heads_like(q: Any, k: Any) -> Any:
    """Return keys or values with as many heads as queries."""
    return k if k.shape[-3] == q.shape[-3] else k.repeat_interleave(q.shape[-3] // k.shape[-3], -3)


def _with_scale(q: Any, attributes: Mapping[str, Any]) -> dict[str, Any]:
    scale = attributes.get("scale")
    return {**attributes, "scale": q.shape[-1] ** -0.5 if scale is None else float(scale)}


def _sdpfa_fwd(operands: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[Any, ...]:
    given = _named(operands, attributes)
    q, k, v = given["query"], given["key"], given["value"]
    attributes = _with_scale(q, attributes)
    dropout, causal = float(attributes["dropout_p"]), bool(attributes["is_causal"])
    if q.is_cuda and q.dtype in (torch.float16, torch.bfloat16) and "bias" not in given and "mask" not in given:
        found = torch.ops.aten._scaled_dot_product_flash_attention(*map(_for_flash, (q, k, v)), dropout, causal, False, scale=attributes["scale"])
        out, sums, seed, offset = found[0][..., : v.shape[-1]], found[1], found[6], found[7]
        return out.reshape(*q.shape[:-1], v.shape[-1]), sums.reshape(q.shape[:-1]), seed, offset
    scores = _scores(q, k, given, attributes)
    sums = torch.logsumexp(scores, -1)
    shares = torch.exp(scores - sums.unsqueeze(-1)).nan_to_num(0.0)
    if dropout:
        shares = torch.nn.functional.dropout(shares, dropout)
    out = (shares @ _heads_like(q, v).to(shares.dtype)).to(q.dtype)
    device = {"device": q.device}
    return out, sums, torch.zeros(2, dtype=torch.uint64, **device), torch.zeros((), dtype=torch.uint64, **device)


def _sdpfa_bwd(operands: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[Any, ...]:
    grad, q, k, v, out, sums, seed, offset = operands
    attributes = _with_scale(q, attributes)
    if q.is_cuda and q.dtype in (torch.float16, torch.bfloat16):
        flat = [_for_flash(x) for x in (grad, q, k, v, out)]
        found = torch.ops.aten._scaled_dot_product_flash_attention_backward(
            *flat, sums.reshape(flat[1].shape[:-1]), None, None, q.shape[-2], k.shape[-2], float(attributes["dropout_p"]), bool(attributes["is_causal"]),
            seed, offset, scale=attributes["scale"],
        )  # fmt: skip
        return tuple(g[..., : x.shape[-1]].reshape(x.shape) for g, x in zip(found, (q, k, v)))
    shares = torch.exp(_scores(q, k, {}, attributes) - sums.unsqueeze(-1)).nan_to_num(0.0)
    wide = grad.to(shares.dtype)
    of_shares = wide @ _heads_like(q, v).to(shares.dtype).transpose(-1, -2)
    rows = (wide * out.to(shares.dtype)).sum(-1, keepdim=True)
    of_scores = shares * (of_shares - rows) * attributes["scale"]
    of_q = of_scores @ _heads_like(q, k).to(shares.dtype)
    of_k, of_v = of_scores.transpose(-1, -2) @ q.to(shares.dtype), shares.transpose(-1, -2) @ wide
    return of_q.to(q.dtype), _sum_heads(of_k, k).to(k.dtype), _sum_heads(of_v, v).to(v.dtype)


def _sum_heads(grad: Any, like: Any) -> Any:
    """Return the gradient of keys or values of which several heads of queries share one."""
    if grad.shape[-3] == like.shape[-3]:
        return grad
    return grad.unflatten(-3, (like.shape[-3], grad.shape[-3] // like.shape[-3])).sum(-3)


# ---------------------------------------------------------------- sorting, tables, scans
def _embedding(operands: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[Any, ...]:
    index, weight = operands
    if attributes.get("max_norm") is not None:
        norm = attributes.get("norm_type")
        torch.embedding_renorm_(weight.detach(), index.contiguous(), float(attributes["max_norm"]), 2.0 if norm is None else float(norm))
    padding = attributes.get("padding_idx")
    return (torch.embedding(weight, index, -1 if padding is None else int(padding)),)


def _embedding_bwd(operands: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[Any, ...]:
    grad, index = operands
    wide = grad.contiguous() if grad.is_cuda or grad.element_size() > 2 else grad.float()  # on the CPU torch adds up numbers of 16 bits as such
    return (torch.ops.aten.embedding_dense_backward(wide, index, int(attributes["entries"]), -1, False).to(grad.dtype),)


def _argsort(operands: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[Any, ...]:
    (x,) = operands
    if not x.dim():
        return (torch.zeros_like(x, dtype=torch.int64),)
    return (torch.sort(x, dim=attributes["dim"], descending=attributes["descending"], stable=attributes["stable"])[1],)


def _topk(operands: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(torch.topk(operands[0], int(attributes["k"]), attributes["dim"], attributes["largest"], attributes["sorted"]))


def linear_recurrence(gate: Any, x: Any, dim: int) -> Any:
    """Return y[k] = gate[k] * y[k-1] + x[k] along dim, for tensors that are broadcast to each other. Each round, steps of twice as many elements are known."""
    dtype = torch.promote_types(gate.dtype, x.dtype)
    wide = torch.promote_types(dtype, torch.float32)
    factor, value = (t.to(wide) for t in torch.broadcast_tensors(gate, x))
    length, reach = value.shape[dim], 1
    while reach < length:
        rest = length - reach
        before, gates, added = value.narrow(dim, 0, rest), factor.narrow(dim, reach, rest), value.narrow(dim, reach, rest)
        later = torch.where(before == 0, added, gates * before + added)
        value = torch.cat([value.narrow(dim, 0, reach), later], dim)
        factor = torch.cat([factor.narrow(dim, 0, reach), gates * factor.narrow(dim, 0, rest)], dim)
        reach *= 2
    return value.to(dtype, copy=True)


def _scan(operands: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[Any, ...]:
    if attributes.get("reverse"):
        dim = attributes["dim"]
        found = _scan([t.flip(dim) if isinstance(t, torch.Tensor) and t.dim() else t for t in operands], {**attributes, "reverse": False})
        return tuple(t.flip(dim) for t in found)
    if attributes["kind"] == "linear_recurrence":
        return (linear_recurrence(operands[0], operands[1], attributes["dim"]),)
    x, dim, kind = operands[0], attributes["dim"], attributes["kind"]
    start = None if len(operands) < 2 else torch.as_tensor(operands[1], dtype=x.dtype, device=x.device)
    if kind == "logsumexp":
        out = torch.logcumsumexp(x, dim)
        return (out if start is None else torch.logaddexp(out, start),)
    if kind in ("sum", "prod"):
        out = (torch.cumsum if kind == "sum" else torch.cumprod)(x, dim, dtype=x.dtype)
        return (out if start is None else out + start if kind == "sum" else out * start,)
    out, places = (torch.cummax if kind == "max" else torch.cummin)(x, dim)
    if attributes.get("positions"):
        return out, places
    return (out if start is None else (torch.maximum if kind == "max" else torch.minimum)(out, start),)


SCATTERED = {"sum": "sum", "prod": "prod", "max": "amax", "min": "amin"}
"""By how values are combined: torch's names for `scatter_reduce`."""


def _scatter(operands: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[Any, ...]:
    base, index, source = operands
    index, dim, kind = index.to(torch.int64), attributes["dim"], attributes["kind"]
    if "named" in attributes:
        last, plain = dim + attributes["named"] - 1, {name: value for name, value in attributes.items() if name != "named"}
        return (_scatter([base.flatten(dim, last), index, source], plain)[0].view(base.shape),)
    if "places" in attributes:
        index, source = _rows(base, index, source, attributes)
    if not isinstance(source, torch.Tensor) or not source.dim():
        source = torch.as_tensor(source, dtype=base.dtype, device=base.device).expand(index.shape)
    if base.is_floating_point() and base.dtype.itemsize == 1:  # which torch moves as bytes only
        return (_scatter([base.view(torch.uint8), index, source.view(torch.uint8)], attributes)[0].view(base.dtype),)
    if base.is_cuda and kind in ("set", "sum") and (torch.are_deterministic_algorithms_enabled() or current().deterministic):
        return (_scattered_in_order(base, index, source, dim, adds=kind == "sum"),)
    if kind == "set":
        return (torch.scatter(base, dim, index, source),)
    return (torch.scatter_reduce(base, dim, index, source, SCATTERED[kind]),)


def _rows(base: Any, index: Any, source: Any, attributes: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return index and source of a scatter of rows as those of one whose places are one axis. Rows that are skipped go, as nothing, to position 0."""
    dim, last, kind = attributes["dim"], attributes["dim"] + attributes["places"] - 1, attributes["kind"]
    index, source = index.expand(source.shape), source.to(base.dtype)
    if attributes.get("skips"):
        is_inside = (index >= 0) & (index < base.shape[dim])
        index, source = torch.where(is_inside, index, 0), torch.where(is_inside, source, nothing_of(kind, base.dtype))
    return index.flatten(dim, last), source.flatten(dim, last)


def nothing_of(kind: str, dtype: Any) -> float:
    """Return the number of a torch type that changes nothing where it is combined by "sum", "max" or "min"."""
    limits = (-math.inf, math.inf) if dtype.is_floating_point else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    return 0 if kind == "sum" else limits[kind == "min"]


def _scattered_in_order(base: Any, index: Any, source: Any, dim: int, *, adds: bool) -> Any:
    """Return a scatter that gives the same bits every time: torch sorts the positions, and adds (or keeps the last of) equal ones in one order."""
    rank = base.dim()
    along = [torch.arange(n, device=base.device).view([-1 if a == d else 1 for a in range(rank)]) for d, n in enumerate(index.shape)]
    positions = tuple(index if d == dim else along[d].expand(index.shape) for d in range(rank))
    kept = source[tuple(slice(0, n) for n in index.shape)]
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        return base.clone().index_put_(positions, kept, accumulate=adds)
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


TORCH_OPS: dict[str, Compute] = {
    "matmul": _matmul, "linear": _linear, "grouped_mm": _grouped_mm, "scaled_mm": _scaled_mm, "scaled_grouped_mm": _scaled_grouped_mm,
    "sdpfa_fwd": _sdpfa_fwd, "sdpfa_bwd": _sdpfa_bwd, "embedding_fwd": _embedding,
    "embedding_bwd": _embedding_bwd, "argsort": _argsort, "topk": _topk, "scan": _scan, "scatter": _scatter,
}  # fmt: skip

__all__ = ["TORCH_OPS", "entry_of", "run"]
