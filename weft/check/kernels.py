"""Generated kernels to plant mistakes in: fusions scheduled by hand, so that the heuristics do not move them, with inputs that are large enough.

Owns no mistake; those are in `planted.py`. `captured_launches.py` runs them. Read first: `KERNELS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from weft.api.definition import FusionDefinition
from weft.dtypes import DataType
from weft.ir.enums import LoadStoreOpType, MemoryType, ParallelType
from weft.ir.fusion import Fusion
from weft.ir.values import ReductionOp, TensorView
from weft.ops.blocks import BlockFormat, nvfp4, nvfp4_of_amax
from weft.schedule.caching import cache_after, cache_and_fork_outputs, cache_before, cache_inputs
from weft.schedule.circular import warp_specialize
from weft.schedule.inline import inline_to
from weft.schedule.primitives import merge, reorder, rfactor, set_memory_type, split
from weft.schedule.propagate import parallelize_like, transform_like
from weft.schedule.recompute import recompute_chain
from weft.schedule.scan_states import translate_scans
from weft.schedulers.async_rows_heuristic import AsyncRowsParams
from weft.schedulers.base import ScheduleResult, Scheduler
from weft.schedulers.inner_outer import apply_inner_outer
from weft.schedulers.inner_outer_params import InnerOuterParams
from weft.schedulers.inner_persistent import InnerPersistent
from weft.schedulers.kept_columns import OuterParams
from weft.schedulers.outer_persistent import OuterPersistent
from weft.schedulers.persistent_analysis import analyze_persistent
from weft.schedulers.persistent_params import PersistentParams
from weft.schedulers.pointwise import PointWise
from weft.schedulers.pointwise_heuristic import PointwiseParams
from weft.schedulers.scans import ScanParams, Scans
from weft.schedulers.two_sides import analyze_two_sides

P = ParallelType


@dataclass(frozen=True)
class Generated:
    """A scheduled fusion: `define()` returns it with what its schedule fixes at launch; `inputs()` returns CPU tensors."""

    define: Callable[[], tuple[Fusion, ScheduleResult]]
    inputs: Callable[[], Sequence[Any]]


def _parts(fd: FusionDefinition) -> tuple[Fusion, Any, Any, list[TensorView]]:
    fusion = fd.fusion
    assert fusion is not None
    inputs, outputs = cache_inputs(fusion), cache_and_fork_outputs(fusion)
    return fusion, inputs, outputs, [e.outputs[0] for e in fusion.tensor_exprs() if isinstance(e, ReductionOp)]  # type: ignore[misc]


def _finish(
    fusion: Fusion, reference: TensorView, *vectors: TensorView, inlined: int | None = None, result: ScheduleResult = ScheduleResult()
) -> tuple[Fusion, ScheduleResult]:  # fmt: skip
    """Let all tensors follow `reference`; those in shared memory, or all when `inlined` says so, are computed at that position."""
    transform_like(reference)
    parallelize_like(reference)
    for tensor in vectors:
        tensor.axis(-1).parallelize(P.vectorize)
    inline_to(fusion, {t: (inlined or 1) if t.memory_type is MemoryType.shared else len(t.get_loop_domain()) for t in fusion.tensors()})
    return fusion, result


def softmax(fd: FusionDefinition, columns: int = -1) -> None:
    """Define the softmax of the rows of a bf16 matrix."""
    x = fd.ops.cast(fd.define_tensor([-1, columns], contiguity=True, dtype=DataType.BFloat16), DataType.Float)
    e = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, [1], True)))
    fd.add_output(fd.ops.cast(fd.ops.div(e, fd.ops.sum(e, [1], True)), DataType.BFloat16))


def pointwise() -> tuple[Fusion, ScheduleResult]:
    """relu(x + bias): [BIDx, TIDx, vector of 4], with a guard on the last block."""
    with FusionDefinition() as fd:
        x, bias = fd.define_tensor([-1, 64], contiguity=True), fd.define_tensor([64], contiguity=True)
        fd.add_output(fd.ops.relu(fd.ops.add(x, bias)))
    fusion, inputs, outputs, _ = _parts(fd)
    reference = outputs[0][1]
    merge(reference, 0, 1)
    split(split(reference, 0, 4), 0, 128)
    reference.axis(0).parallelize(P.grid_x)
    reference.axis(1).parallelize(P.block_x)
    return _finish(fusion, reference, inputs[0][1], reference)


def softmax_registers() -> tuple[Fusion, ScheduleResult]:
    """[BIDx | batches, TIDx, vector]: a row per block, in registers."""
    with FusionDefinition() as fd:
        softmax(fd)
    fusion, inputs, outputs, (first, second) = _parts(fd)
    split(first, 1, 8)
    split(first, 1, 4, False)
    transform_like(first)
    partial, _ = rfactor(first, [1, 3]), rfactor(second, [1, 3])
    partial.axis(0).parallelize(P.grid_x)
    partial.axis(2).parallelize(P.block_x)
    partial.axis(2).pad_to_multiple_of_warp()
    return _finish(fusion, partial, inputs[0][1], outputs[0][1])


def softmax_shared() -> tuple[Fusion, ScheduleResult]:
    """[BIDx | serial, TIDx]: a row per block, kept in shared memory."""
    with FusionDefinition() as fd:
        softmax(fd)
    fusion, inputs, _, (first, second) = _parts(fd)
    set_memory_type(inputs[0][1], MemoryType.shared)
    row = first.definition().tensor_inputs[0]  # type: ignore[union-attr]
    for use in [u for u in row.uses() if not isinstance(u, ReductionOp)]:
        recompute_chain(row, use)
    exponential = second.definition().tensor_inputs[0]  # type: ignore[union-attr]
    kept = cache_after(exponential, cached_uses=[u for u in exponential.uses() if not isinstance(u, ReductionOp)])
    set_memory_type(kept, MemoryType.shared)
    split(first, 1, 128)
    transform_like(first)
    partial, _ = rfactor(first, [1]), rfactor(second, [1])
    partial.axis(0).parallelize(P.grid_x)
    partial.axis(2).parallelize(P.block_x)
    return _finish(fusion, partial)


def softmax_cluster() -> tuple[Fusion, ScheduleResult]:
    """[BIDy | BIDx, serial, TIDx]: a row per cluster of 4 blocks."""
    with FusionDefinition() as fd:
        softmax(fd, 2000)
    fusion, _, _, (first, second) = _parts(fd)
    split(first, 1, 4, False)
    split(first, 2, 128)
    transform_like(first)
    partial, _ = rfactor(first, [2]), rfactor(second, [2])
    partial.axis(0).parallelize(P.grid_y)
    partial.axis(1).parallelize(P.grid_x)
    partial.axis(3).parallelize(P.block_x)
    return _finish(fusion, partial, result=ScheduleResult(cluster_blocks=4))


def _columns(rows_on: P, columns_on: P, result: ScheduleResult = ScheduleResult()) -> tuple[Fusion, ScheduleResult]:
    """Sums over rows [`rows_on`, serial, TIDy] of columns [`columns_on`, TIDx]: 4 blocks share the rows of a column."""
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.sum(fd.define_tensor([-1, -1], contiguity=True), [0]))
    fusion, _, _, (total,) = _parts(fd)
    split(total, 1, 32)
    split(total, 0, 16)
    split(total, 0, 4, False)
    partial = rfactor(total, [1])
    for position, kind in ((0, rows_on), (2, P.block_y), (3, columns_on), (4, P.block_x)):
        partial.axis(position).parallelize(kind)
    return _finish(fusion, partial, result=result)


def column_sum() -> tuple[Fusion, ScheduleResult]:
    """columns [BIDx, TIDx], rows [BIDy, serial, TIDy]: the last block of a column adds what all found."""
    return _columns(P.grid_y, P.grid_x)


def column_sum_cluster() -> tuple[Fusion, ScheduleResult]:
    """columns [BIDy, TIDx], rows [BIDx, serial, TIDy]: the 4 blocks of a cluster share the rows."""
    return _columns(P.grid_x, P.grid_y, ScheduleResult(cluster_blocks=4))


def row_sums() -> tuple[Fusion, ScheduleResult]:
    """[BIDx, serial | TIDx]: a block folds several rows, one after another, with one workspace."""
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.sum(fd.define_tensor([-1, -1], contiguity=True), [1]))
    fusion, _, _, (total,) = _parts(fd)
    split(total, 1, 128)
    split(total, 0, 4)
    partial = rfactor(total, [2])
    partial.axis(0).parallelize(P.grid_x)
    partial.axis(3).parallelize(P.block_x)
    return _finish(fusion, partial)


def transpose() -> tuple[Fusion, ScheduleResult]:
    """[BIDx | serial, TIDx]: tiles pass through shared memory; a thread reads what others wrote."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        fd.add_output(fd.ops.neg(fd.ops.permute(x, [1, 0])))
    fusion, inputs, outputs, _ = _parts(fd)
    reference = outputs[0][1]
    split(reference, 1, 64)
    split(reference, 0, 64)
    reorder(reference, {1: 2, 2: 1})  # [columns/64, rows/64, 64, 64]
    tile = inputs[0][1]
    set_memory_type(tile, MemoryType.shared)
    transform_like(reference)
    for t in fusion.tensors():
        if not t.is_fusion_input:
            t.axis(0).parallelize(P.grid_x)
    for t in fusion.tensors():
        if t.is_fusion_input:
            continue
        inner = 2 if t is tile else 3
        t.axis(inner).parallelize(P.block_x)
    inline_to(fusion, {t: 2 if t is tile else len(t.get_loop_domain()) for t in fusion.tensors()})
    return fusion, ScheduleResult()


def pipeline_rows() -> tuple[Fusion, ScheduleResult]:
    """[steps, BIDx, TIDy | TIDx, vector]: two roles bring rows by bulk copies through rings of 3 stages, two groups compute, the result leaves in bulk."""
    with FusionDefinition() as fd:
        xs = [fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.BFloat16) for _ in range(2)]
        h = fd.ops.mul(fd.ops.add(*(fd.ops.cast(x, DataType.Float) for x in xs)), 0.5)
        y = fd.ops.cast(fd.ops.mul(h, fd.ops.sum(fd.ops.mul(h, h), [1], True)), DataType.BFloat16)
        fd.add_output(y)
    fusion = fd.fusion
    assert fusion is not None
    loaded = [cache_after(x, LoadStoreOpType.tma) for x in xs]
    copies = [cache_after(t) for t in loaded]
    stored = cache_before(y, LoadStoreOpType.tma)
    cache_before(stored)
    for t in (*loaded, stored):
        set_memory_type(t, MemoryType.shared)
    total: TensorView = next(e.outputs[0] for e in fusion.tensor_exprs() if isinstance(e, ReductionOp))  # type: ignore[assignment]
    split(total, 0, 2)
    split(total, 0, 2)
    total.axis(1).parallelize(P.grid_x)
    transform_like(total)
    parallelize_like(total)
    for t in (*loaded, y):
        t.axis(-1).parallelize(P.tma)
    y.axis(2).parallelize(P.block_y)
    others = [t for t in fusion.tensors() if t not in (*xs, *loaded, y)]
    split(total, -1, 8)
    split(total, -2, 1, False)
    total.axis(2).parallelize(P.block_y)
    total.axis(-2).parallelize(P.block_x)
    rank = len(total.get_loop_domain())
    partial = rfactor(total, [rank - 3, rank - 1])
    transform_like(partial, others)
    parallelize_like(partial, -1, others, [P.grid_x, P.block_x, P.block_y, P.block_z])
    for t in (*copies, stored):
        t.axis(-1).parallelize(P.vectorize)
    shallow = {*loaded, stored}
    inline_to(fusion, {t: 2 if t in shallow else 3 if t in copies else len(t.get_loop_domain()) for t in fusion.tensors()})
    for warp, t in enumerate(loaded):
        warp_specialize(t, 3, 2, P.block_y, (40, 232), warp, None)
    return fusion, ScheduleResult(((P.block_x, 128),))


def tiles() -> tuple[Fusion, ScheduleResult]:
    """[steps, BIDx | tile]: tiles of 8 x 16 come by tensor maps through a ring of 3 stages that a warp of its own fills, and leave by tensor maps."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        y = fd.ops.add(x, x)
        fd.add_output(y)
    fusion = fd.fusion
    assert fusion is not None
    loaded, stored = cache_after(x, LoadStoreOpType.tma), cache_before(y, LoadStoreOpType.tma)
    for t in (loaded, stored):
        set_memory_type(t, MemoryType.shared)
    for t in (t for t in fusion.tensors() if t is not x):
        split(t, 0, 8)
        split(t, 2, 16)
        reorder(t, {0: 0, 2: 1})
        merge(t, 0, 1)
        split(t, 0, 2)
        t.axis(1).parallelize(P.grid_x)
        if t in (loaded, y):
            t.axis(2).parallelize(P.tma)
            t.axis(3).parallelize(P.tma)
        else:
            merge(t, 2, 3)
            split(t, 2, 128)
            t.axis(3).parallelize(P.block_x)
    inline_to(fusion, {t: 2 if t in (loaded, stored) else len(t.get_loop_domain()) for t in fusion.tensors()})
    warp_specialize(loaded, 3, 2, P.block_x, None, 0, None)
    return fusion, ScheduleResult()


def two_sides(**changes: Any) -> tuple[Fusion, ScheduleResult]:
    """Row sums used over the rows, and column sums: blocks that stay, a ring of bulk copies, partial sums in global memory, a meeting of all blocks."""
    with FusionDefinition() as fd:
        x = fd.ops.cast(fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.BFloat16), DataType.Float)
        y = fd.ops.mul(x, fd.ops.sum(x, [1], True))
        fd.add_output(fd.ops.cast(y, DataType.BFloat16))
        fd.add_output(fd.ops.sum(y, [0]))
    defined = fd.fusion
    assert defined is not None
    analysis = analyze_two_sides(defined)
    params = InnerOuterParams(True, 8, 1, 8, 8, 1, 1, 4, "tma", 3, False, "registers", 4, 2, 128)
    fusion, _ = defined.clone()
    return fusion, apply_inner_outer(fusion, analysis, replace(params, **changes))  # type: ignore[arg-type]


def two_sides_cluster() -> tuple[Fusion, ScheduleResult]:
    """The same with a row over two blocks, whose sums they exchange in every step, and rows loaded by cp.async."""
    return two_sides(blocks=2, cluster_blocks=2, loads="cp_async", fill="partial")


def two_sides_behind() -> tuple[Fusion, ScheduleResult]:
    """The same in a cluster by bulk copies, the second pass over a row behind the first one of the next."""
    return two_sides(blocks=2, cluster_blocks=2, is_reread=True, is_behind=True, fill="partial")


def _pointwise_scheduled(fd: FusionDefinition, **changes: Any) -> tuple[Fusion, ScheduleResult]:
    """Schedule as `PointWise` does, with these params: rows on BIDy, [BIDx, TIDx, vector] along them."""
    params = PointwiseParams(1, 16, 1, 1, 32, 4, False, False, 64)
    return _applied(fd, PointWise(), PointWise().analyze, replace(params, **changes))


def _applied(fd: FusionDefinition, scheduler: Scheduler, analyze: Callable[[Fusion], Any], params: Any) -> tuple[Fusion, ScheduleResult]:
    """Schedule a copy of a definition's fusion with a scheduler's template and these params."""
    defined = fd.fusion
    assert defined is not None
    fusion, _ = defined.clone()
    return fusion, scheduler.apply(fusion, analyze(fusion), params)


def _scan(dim: int, params: ScanParams) -> tuple[Fusion, ScheduleResult]:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.cumsum(fd.ops.mul(fd.define_tensor([-1, -1], contiguity=True), 0.5), dim))
    return _applied(fd, Scans(), Scans().analyze, params)


def shared_scan() -> tuple[Fusion, ScheduleResult]:
    """Running sums of rows, each of which four blocks share: [BIDx | BIDy, pieces, TIDx, vector]."""
    return _scan(1, ScanParams(True, 4, 1, 64, 1, 64, blocks=4))


def shared_scan_down() -> tuple[Fusion, ScheduleResult]:
    """The same down columns, two per thread: [BIDx, TIDx, vector | BIDy, pieces, TIDy, neighbours]."""
    return _scan(0, ScanParams(False, 4, 1, 8, 8, 64, blocks=4, columns=2))


def shared_positions() -> tuple[Fusion, ScheduleResult]:
    """Running maxima of shared rows with their positions: states of two fields go from piece to piece, and from block to block."""
    with FusionDefinition() as fd:
        for result in fd.ops.cummax_with_indices(fd.define_tensor([-1, -1], contiguity=True), 1):
            fd.add_output(result)
    assert fd.fusion is not None
    translate_scans(fd.fusion)
    return _applied(fd, Scans(), Scans().analyze, ScanParams(True, 4, 1, 64, 1, 64, blocks=4))


def shared_recurrence() -> tuple[Fusion, ScheduleResult]:
    """Linear recurrences of shared rows: blocks fold their pieces in the order of the row, too."""
    with FusionDefinition() as fd:
        gate, x = (fd.define_tensor([-1, -1], contiguity=True) for _ in range(2))
        fd.add_output(fd.ops.linear_recurrence(gate, x, 1))
    assert fd.fusion is not None
    translate_scans(fd.fusion)
    return _applied(fd, Scans(), Scans().analyze, ScanParams(True, 4, 1, 64, 1, 64, blocks=4))


def nvfp4_tiles() -> tuple[Fusion, ScheduleResult]:
    """Blocks of 16 to 4 bits, scales in tiles of 128 x 4 whose padding the kernel fills: a block per thread."""
    with FusionDefinition() as fd:
        for result in fd.ops.nv_block_quantize(fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.BFloat16), None, True):
            fd.add_output(result)
    return _pointwise_scheduled(fd)


def nvfp4_four_rows() -> tuple[Fusion, ScheduleResult]:
    """RMS norm before blocks of 16 to 4 bits: a block takes four rows of a tile of scales one after the other, and stores their scales together."""
    with FusionDefinition() as fd:
        x = fd.ops.cast(fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.BFloat16), DataType.Float)
        normed = fd.ops.mul(x, fd.ops.rsqrt(fd.ops.add(fd.ops.mean(fd.ops.mul(x, x), [1], True), 1e-5)))
        for result in fd.ops.nv_block_quantize(normed, None, True):
            fd.add_output(result)
    params = AsyncRowsParams("tma", True, 16, 2, 32, stages=2, max_registers=255, fill="whole", tile_rows=4)
    return _applied(fd, InnerPersistent(), analyze_persistent, params)


def nested_rows() -> tuple[Fusion, ScheduleResult]:
    """Rows of runs in a cluster of two, which shares each run: the sum of a row, used over the row, and the sums of its runs, folded together at the end."""
    with FusionDefinition() as fd:
        x = fd.ops.cast(fd.define_tensor([-1, -1, -1], contiguity=True, dtype=DataType.BFloat16), DataType.Float)
        fd.add_output(fd.ops.cast(fd.ops.mul(x, fd.ops.sum(x, [1, 2], True)), DataType.BFloat16))
        fd.add_output(fd.ops.sum(fd.ops.mul(x, x), [2]))
    params = PersistentParams(
        "3d", "register", True, 8, 1, 1, None, True, 1, 1, bdimz=2, outer_batches=2, is_warp_only=False, max_registers=64, cluster_blocks=2, still_axes=1,
        along_run=True,
    )  # fmt: skip
    return _applied(fd, InnerPersistent(), analyze_persistent, params)


def mxfp8_lanes() -> tuple[Fusion, ScheduleResult]:
    """Blocks of 32 to 8 bits: four lanes share a block."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.BFloat16)
        for result in fd.ops.nv_block_quantize(x, None, False, 32, DataType.Float8_e4m3fn):
            fd.add_output(result)
    return _pointwise_scheduled(fd, break_point=0, vector_elems=8, bdimx=64, bdimy=1)


def nvfp4_groups() -> tuple[Fusion, ScheduleResult]:
    """Blocks of 16 to 4 bits, rows in groups whose scales have tiles of their own."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.BFloat16)
        begins, places = (fd.define_tensor([-1], contiguity=True, dtype=DataType.Int32) for _ in range(2))
        for result in fd.ops.nv_grouped_block_quantize(x, begins, places):
            fd.add_output(result)
    return _pointwise_scheduled(fd)


def _groups() -> Sequence[Any]:
    """Rows of three groups, of which one has none, and where their tiles begin."""
    import torch

    return [*_bf16((33, 96))(), torch.tensor([0, 12, 12], dtype=torch.int32), torch.tensor([0, 128, 128], dtype=torch.int32)]


def nvfp4_hadamard() -> tuple[Fusion, ScheduleResult]:
    """Blocks of 16 transformed and quantized to 4 bits: four lanes share a block."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.BFloat16)
        for result in fd.ops.nv_block_quantize(fd.ops.block_hadamard(x, [1, -1] * 8)):
            fd.add_output(result)
    return _pointwise_scheduled(fd, break_point=0, vector_elems=4, bdimx=64, bdimy=1)


def nvfp4_both_ways() -> tuple[Fusion, ScheduleResult]:
    """Blocks of 16 rows along columns, which a thread stores one by one, beside rows: a tile of `schedulers.turned`."""
    with FusionDefinition() as fd:
        x = fd.ops.cast(fd.define_tensor([-1, 16, -1], contiguity=True, dtype=DataType.BFloat16), DataType.Float)
        elements, scales = nvfp4(fd.fusion, x, None, BlockFormat())  # type: ignore[arg-type]
        amax = fd.ops.max(fd.ops.magnitude(x), [1], True)
        columns, column_scales = nvfp4_of_amax(fd.fusion, x, amax, None, BlockFormat())  # type: ignore[arg-type]
        taken = fd.ops.block_sample(fd.ops.permute(fd.ops.squeeze(column_scales, [1]), [1, 0]), 1)
        for result in (elements, fd.ops.block_sample(scales, 16), fd.ops.stride_order(columns, [1, 0, 2]), taken):
            fd.add_output(result)
    params = OuterParams(4, 1, 8, 4, 128, "register", 16, is_tile=True, is_turned=True)
    return _applied(fd, OuterPersistent(), analyze_persistent, params)


def fp4_halves() -> tuple[Fusion, ScheduleResult]:
    """4 bits to 4 bits by way of Float, with a factor: bytes are read and written whole."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float4_e2m1fn)
        fd.add_output(fd.ops.cast(fd.ops.mul(fd.ops.cast(x, DataType.Float), 0.5), DataType.Float4_e2m1fn))
    return _pointwise_scheduled(fd, break_point=0, vector_elems=8, bdimx=64, bdimy=1)


def _fp4(*shapes: tuple[int, ...]) -> Callable[[], Sequence[Any]]:
    """Sizes in elements."""

    def make() -> Sequence[Any]:
        import torch

        draw = torch.Generator().manual_seed(7)
        return [torch.randint(0, 256, (*s[:-1], s[-1] // 2), dtype=torch.uint8, generator=draw).view(torch.float4_e2m1fn_x2) for s in shapes]

    return make


def _bf16(*shapes: tuple[int, ...]) -> Callable[[], Sequence[Any]]:
    floats = _floats(*shapes)
    return lambda: [x.bfloat16() for x in floats()]


def _floats(*shapes: tuple[int, ...]) -> Callable[[], Sequence[Any]]:
    def make() -> Sequence[Any]:
        import torch

        return [torch.randn(*shape, generator=torch.Generator().manual_seed(0)) for shape in shapes]

    return make


KERNELS = {
    "pointwise": Generated(pointwise, _floats((9, 64), (64,))),
    "softmax_registers": Generated(softmax_registers, _bf16((3, 3000))),
    "softmax_shared": Generated(softmax_shared, _bf16((3, 1000))),
    "softmax_cluster": Generated(softmax_cluster, _bf16((2, 2000))),
    "column_sum": Generated(column_sum, _floats((150, 70))),
    "column_sum_cluster": Generated(column_sum_cluster, _floats((150, 70))),
    "row_sums": Generated(row_sums, _floats((11, 300))),
    "pipeline_rows": Generated(pipeline_rows, _bf16((26, 1000), (26, 1000))),
    "tiles": Generated(tiles, _floats((37, 64))),
    "transpose": Generated(transpose, _floats((70, 130))),
    "two_sides": Generated(two_sides, _bf16((31, 512))),
    "two_sides_cluster": Generated(two_sides_cluster, _bf16((11, 1000))),
    "two_sides_behind": Generated(two_sides_behind, _bf16((11, 1000))),
    "nested_rows": Generated(nested_rows, _bf16((3, 3, 1000))),
    "shared_scan": Generated(shared_scan, _floats((2, 2300))),
    "shared_scan_down": Generated(shared_scan_down, _floats((300, 22))),
    "shared_positions": Generated(shared_positions, _floats((2, 2300))),
    "shared_recurrence": Generated(shared_recurrence, _floats((2, 2300), (2, 2300))),
    "nvfp4_tiles": Generated(nvfp4_tiles, _bf16((33, 96))),
    "nvfp4_four_rows": Generated(nvfp4_four_rows, _bf16((70, 1024))),
    "nvfp4_groups": Generated(nvfp4_groups, _groups),
    "nvfp4_hadamard": Generated(nvfp4_hadamard, _bf16((5, 160))),
    "nvfp4_both_ways": Generated(nvfp4_both_ways, _bf16((3, 16, 48))),
    "mxfp8_lanes": Generated(mxfp8_lanes, _bf16((5, 160))),
    "fp4_halves": Generated(fp4_halves, _fp4((7, 136))),
}
