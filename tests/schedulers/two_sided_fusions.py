"""Fusions whose rows and columns are both reduced, each with inputs and what torch makes of them in float64.

Read first: `norm_backward`, `CASES`, and `forced` for the ways to make one kernel of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

import weft.schedulers.inner_outer as template
from weft import DataType, FusionDefinition

TORCH = {DataType.Float: torch.float32, DataType.BFloat16: torch.bfloat16, DataType.Half: torch.float16, DataType.Double: torch.float64}
Tensors = Sequence[torch.Tensor]


def matrix(fd: FusionDefinition, dtype: DataType):  # noqa: ANN201
    """Add an input of rows and columns, in the type that is computed in."""
    t = fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=dtype)
    return t if dtype in (DataType.Float, DataType.Double) else fd.ops.cast(t, DataType.Float)


def row_of(fd: FusionDefinition, dtype: DataType, like):  # noqa: ANN001, ANN201
    """Add an input that all rows of `like` share."""
    t = fd.define_tensor(shape=[-1], contiguity=True, dtype=dtype)
    return fd.ops.broadcast_in_dim(t if dtype in (DataType.Float, DataType.Double) else fd.ops.cast(t, DataType.Float), like.shape(), [1])


def per_row(fd: FusionDefinition, dtype: DataType):  # noqa: ANN201
    """Add an input of one value per row."""
    return fd.define_tensor(shape=[-1, 1], contiguity=[True, None], dtype=DataType.Double if dtype is DataType.Double else DataType.Float)


def norm_backward(dtype: DataType, *, is_layer_norm: bool = True, column_dtype: DataType | None = None) -> FusionDefinition:
    """The gradients of layer norm, or RMS norm, whose statistics are inputs: of x, the weight and (layer norm) the bias."""
    with FusionDefinition() as fd:
        ops = fd.ops
        x = matrix(fd, dtype)
        mean = per_row(fd, dtype) if is_layer_norm else None
        rstd, g = per_row(fd, dtype), matrix(fd, dtype)
        w = row_of(fd, dtype, x)
        normed = ops.mul(ops.sub(x, mean) if is_layer_norm else x, rstd)
        wg = ops.mul(g, w)
        inv = ops.reciprocal(x.size(1))
        d = ops.sub(wg, ops.mul(normed, ops.mul(ops.sum(ops.mul(wg, normed), [1], True), inv)))
        if is_layer_norm:
            d = ops.sub(d, ops.mul(ops.sum(wg, [1], True), inv))
        fd.add_output(ops.cast(ops.mul(d, rstd), dtype))
        fd.add_output(ops.cast(ops.sum(ops.mul(g, normed), [0]), column_dtype or dtype))
        if is_layer_norm:
            fd.add_output(ops.cast(ops.sum(g, [0]), column_dtype or dtype))
    return fd


def norm_backward_inputs(rows: int, columns: int, dtype: DataType, *, is_layer_norm: bool = True) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(rows + columns)
    x, g = (torch.randn(rows, columns, generator=generator, dtype=torch.float64).to(TORCH[dtype]) for _ in range(2))
    w = torch.randn(columns, generator=generator, dtype=torch.float64).to(TORCH[dtype])
    stats = torch.float64 if dtype is DataType.Double else torch.float32
    mean, rstd = x.to(stats).mean(1, keepdim=True), 1 / (x.to(stats).pow(2).mean(1, keepdim=True) + 1e-3).sqrt()
    return [x, mean, rstd, g, w] if is_layer_norm else [x, rstd, g, w]


def norm_backward_in_float64(inputs: Tensors) -> list[torch.Tensor]:
    """The same in float64, from the inputs as they are."""
    x, *stats, g, w = (t.double() for t in inputs)
    is_layer_norm = len(stats) == 2
    normed = (x - stats[0] if is_layer_norm else x) * stats[-1]
    wg = g * w
    d = wg - normed * (wg * normed).mean(1, keepdim=True)
    if is_layer_norm:
        d = d - wg.mean(1, keepdim=True)
    return [d * stats[-1], (g * normed).sum(0), *([g.sum(0)] if is_layer_norm else [])]


def relative_error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest error over the largest value: sums of both signs have errors of the size of their terms."""
    if not wanted.numel():
        return 0.0
    return float((got.double() - wanted).abs().max() / wanted.abs().max().clamp_min(1e-30))


# ---------------------------------------------------------------- other definitions
def numbers(*shape: int, dtype: DataType = DataType.Float) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64).to(TORCH[dtype])


def beside_each_other() -> tuple[FusionDefinition, list, list]:
    """Row and column reductions that do not need each other, of several kinds."""
    with FusionDefinition() as fd:
        x = matrix(fd, DataType.Half)
        for out in (fd.ops.sum(x, [1]), fd.ops.min(x, [0]), fd.ops.max(x, [0], True), fd.ops.max(x, [1], True)):
            fd.add_output(out)
    x = numbers(37, 70, dtype=DataType.Half)
    d = x.double()
    return fd, [x], [d.sum(1), d.amin(0), d.amax(0, keepdim=True), d.amax(1, keepdim=True)]


def statistics_inside() -> tuple[FusionDefinition, list, list]:
    """Layer norm backward that computes mean and variance itself: three passes over a row."""
    with FusionDefinition() as fd:
        ops = fd.ops
        x, g = matrix(fd, DataType.Float), matrix(fd, DataType.Float)
        w = row_of(fd, DataType.Float, x)
        var, mean = ops.var_mean(x, [1], 0, True)
        rstd = ops.rsqrt(ops.add(var, 1e-5))
        normed, wg, inv = ops.mul(ops.sub(x, mean), rstd), ops.mul(g, w), ops.reciprocal(x.size(1))
        d = ops.sub(wg, ops.mul(normed, ops.mul(ops.sum(ops.mul(wg, normed), [1], True), inv)))
        fd.add_output(ops.mul(ops.sub(d, ops.mul(ops.sum(wg, [1], True), inv)), rstd))
        fd.add_output(ops.sum(ops.mul(g, normed), [0]))
        fd.add_output(ops.sum(g, [0]))
        fd.add_output(mean)
    x, g, w = numbers(21, 136), numbers(22, 136)[:21], numbers(136)
    leaves = [t.double().requires_grad_() for t in (x, w, torch.zeros(136))]
    torch.nn.functional.layer_norm(leaves[0], (136,), leaves[1], leaves[2], 1e-5).backward(g.double())
    return fd, [x, g, w], [*(t.grad for t in leaves), x.double().mean(1, keepdim=True)]


def residual_mask_gate() -> tuple[FusionDefinition, list, list]:
    """Backward of SiLU(x + bias) with dropout and a residual: four column results and one per row."""
    with FusionDefinition() as fd:
        ops = fd.ops
        g, mask, x = matrix(fd, DataType.BFloat16), fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Bool), matrix(fd, DataType.BFloat16)
        z = ops.add(x, row_of(fd, DataType.BFloat16, x))
        kept = ops.mul(ops.mul(g, ops.cast(mask, DataType.Float)), 1.25)
        s = ops.reciprocal(ops.add(ops.exp(ops.neg(z)), 1.0))
        d = ops.add(ops.mul(kept, ops.mul(s, ops.add(ops.mul(z, ops.sub(1.0, s)), 1.0))), g)
        fd.add_output(ops.cast(d, DataType.BFloat16))
        for out in (ops.sum(d, [0]), ops.sum(d, [1]), ops.sum(kept, [0]), ops.sum(ops.mul(kept, z), [0]), ops.max(z, [0])):
            fd.add_output(out)
    g, x, b = numbers(50, 72, dtype=DataType.BFloat16), numbers(51, 72, dtype=DataType.BFloat16)[:50], numbers(72, dtype=DataType.BFloat16)
    mask = numbers(50, 73)[:, :72].contiguous() > -0.5
    z, kept = x.double() + b.double(), g.double() * mask * 1.25
    s = z.sigmoid()
    d = kept * (s * (1 + z * (1 - s))) + g.double()
    return fd, [g, mask, x, b], [d, d.sum(0), d.sum(1), kept.sum(0), (kept * z).sum(0), z.amax(0)]


def work_on_columns() -> tuple[FusionDefinition, list, list]:
    """Column results meet each other, a scalar, and a weight that rows use too."""
    with FusionDefinition() as fd:
        ops = fd.ops
        x = matrix(fd, DataType.Float)
        w = ops.add(fd.define_tensor([-1], contiguity=True, dtype=DataType.Float), 1.0)
        rate = fd.define_scalar(dtype=DataType.Double)
        y = ops.add(x, ops.sum(ops.mul(x, ops.broadcast_in_dim(w, x.shape(), [1])), [1], True))
        fd.add_output(y)
        total = ops.sum(ops.mul(y, x), [0])
        fd.add_output(ops.sub(w, ops.mul(total, rate)))
        fd.add_output(ops.mul(ops.max(x, [0]), total))
    x, w = numbers(19, 40), numbers(40)
    d, v = x.double(), w.double() + 1
    y = d + (d * v).sum(1, keepdim=True)
    total = (y * d).sum(0)
    return fd, [x, w, 0.5], [y, v - total * 0.5, d.amax(0) * total]


def several_axes(rows: list[int], shape: tuple[int, ...]) -> tuple[FusionDefinition, list, list]:
    """Rows, or columns, of several axes: `rows` are those that the column sums fold."""
    inside = [a for a in range(len(shape)) if a not in rows]
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1] * len(shape), contiguity=True, dtype=DataType.Float)
        y = fd.ops.sub(x, fd.ops.sum(x, inside, True))
        fd.add_output(y)
        fd.add_output(fd.ops.sum(y, rows))
    x = numbers(*shape)
    y = x.double() - x.double().sum(inside, keepdim=True)
    return fd, [x], [y, y.sum(rows)]


CASES: dict[str, Callable[[], tuple[FusionDefinition, list, list]]] = {
    "beside each other": beside_each_other,
    "statistics inside": statistics_inside,
    "residual, mask, gate": residual_mask_gate,
    "work on columns": work_on_columns,
    "rows of two axes": lambda: several_axes([0, 1], (5, 7, 48)),
    "columns of two axes": lambda: several_axes([0], (11, 6, 20)),
}


# ---------------------------------------------------------------- ways
PLAIN: dict[str, Any] = dict(
    blocks=4, batches=1, lanes=8, threads_y=8, groups=1, row_unroll=1, loads="now", stages=1, is_reread=False, cluster_blocks=1, has_whole_steps=False
)
WAYS: dict[str, dict[str, Any]] = {
    "loaded when needed": dict(loads="now"),
    "a row ahead in registers": dict(loads="ahead", row_unroll=2),
    "ring of cp.async": dict(loads="cp_async", stages=3),
    "ring of cp.async, rows at once": dict(loads="cp_async", stages=2, row_unroll=2, groups=2, lanes=8, threads_y=8),
    "ring of bulk copies": dict(loads="tma", stages=4),
    "ring of bulk copies, rows at once": dict(loads="tma", stages=2, row_unroll=2),
    "a warp per row": dict(loads="ahead", lanes=32, threads_y=1, groups=4, batches=2),
    "four warps per row, four rows": dict(loads="now", lanes=8, threads_y=8, groups=4, batches=1),
    "rows read from their stage in each pass": dict(loads="tma", stages=3, is_reread=True, batches=2, threads_y=4),
    "rows over a cluster": dict(loads="cp_async", stages=3, cluster_blocks=2, blocks=2, threads_y=8, fill="partial"),
    "rows over a cluster, bulk copies": dict(loads="tma", stages=2, cluster_blocks=4, is_reread=True, blocks=2, threads_y=8, fill="partial"),
    "weights read by every row": dict(loads="now", weights="late", batches=1, threads_y=8, cluster_blocks=2, blocks=2, fill="partial"),
    "rows that begin anywhere": dict(loads="tma", stages=3, is_shifted=True, fill="partial"),
    "rows that begin anywhere, rows at once": dict(loads="tma", stages=2, is_shifted=True, row_unroll=2, threads_y=4, batches=2, fill="leading"),
    "second passes behind": dict(loads="tma", stages=3, is_reread=True, is_behind=True, fill="partial"),
    "second passes behind, rows at once": dict(loads="tma", stages=3, is_reread=True, is_behind=True, row_unroll=2, fill="partial"),
    "second passes behind, whole steps": dict(
        loads="tma", stages=3, is_reread=True, is_behind=True, row_unroll=2, fill="partial", has_whole_steps=True
    ),
    "second passes behind, in a cluster": dict(loads="tma", stages=3, is_reread=True, is_behind=True, cluster_blocks=2, blocks=2, fill="partial"),
    "what is computed is kept": dict(loads="tma", stages=2, project_to_inputs=False),
}


PHASED: dict[str, Any] = {"vector_elems": 8, "blocks": 8, "fill": "partial", "is_phased": True}
"""What all of the following have: rows that begin anywhere, of which a block has those of one phase. For bf16."""
PHASED_WAYS: dict[str, dict[str, Any]] = {
    "when needed": dict(loads="now"),
    "a row ahead, rows at once": dict(loads="ahead", row_unroll=2),
    "rows side by side": dict(loads="ahead", lanes=64, threads_y=1, groups=4),
    "a ring": dict(loads="tma", stages=3, is_shifted=True),
    "a ring, rows side by side and at once": dict(loads="tma", stages=2, is_shifted=True, lanes=64, threads_y=1, groups=2, row_unroll=2),
    "a ring that passes read again": dict(loads="tma", stages=3, is_shifted=True, is_reread=True, batches=2, threads_y=4),
    "second passes behind, by phase": dict(loads="tma", stages=3, is_shifted=True, is_reread=True, is_behind=True),
    "in a cluster": dict(loads="ahead", cluster_blocks=2),
    "in a cluster, a ring": dict(loads="tma", stages=3, is_shifted=True, cluster_blocks=2),
    "in a large cluster, a ring": dict(loads="tma", stages=2, is_shifted=True, is_reread=True, cluster_blocks=4),
    "in a cluster, second passes behind": dict(loads="tma", stages=3, is_shifted=True, is_reread=True, is_behind=True, cluster_blocks=2),
}


@contextlib.contextmanager
def forced(way: str, *, only_online: bool = False, **values: Any) -> Iterator[None]:
    """Let every two-sided fusion take this way, whatever would be chosen, and these values of params; "" leaves the choice.

    only_online: among kernels with a maximum and the sum of exponentials as one reduction.
    """
    choose = template.choose_inner_outer

    def chosen(facts, arch, *more):  # noqa: ANN001, ANN002, ANN202
        params, trace = choose(facts.online if only_online else facts, arch, *more)
        params = dataclasses.replace(params, is_online=only_online)
        fields = {**PLAIN, **PHASED, **PHASED_WAYS[way]} if way in PHASED_WAYS else {**PLAIN, **WAYS[way]} if way else {}
        params = dataclasses.replace(params, **{**fields, **values})
        whole = params.has_whole_steps and facts.rows.iteration_elems % params.row_unroll == 0
        return dataclasses.replace(params, has_whole_steps=whole), trace

    template.choose_inner_outer = chosen
    try:
        yield
    finally:
        template.choose_inner_outer = choose
