"""Fusions scheduled by hand around circular buffers, and running them in the emulator with every check on.

`flat`: elements of one axis, tiles go round. `rows`: (sum of inputs) * (their row's sum of squares, or maximum), a row per compute group.
Read first: `run`, `Rows`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from weft import DataType, FusionDefinition, KernelExecutor, LaunchParams, LoadStoreOpType, MemoryType, ParallelType
from weft.compiler import program_of_scheduled
from weft.ir.enums import BLOCK_TYPES
from weft.ir.values import ReductionOp, TensorView
from weft.lower.program import KernelProgram
from weft.options import options
from weft.runtime.nvrtc import compile_cubin
from weft.schedule.circular import Pipelined, circular_buffer, warp_specialize
from weft.schedule.inline import inline_to
from weft.schedulers.base import ScheduleResult

P, L = ParallelType, LoadStoreOpType
TORCH = {DataType.Float: torch.float32, DataType.BFloat16: torch.bfloat16, DataType.Half: torch.float16}


def program(fd: FusionDefinition, block: Sequence[int] = ()) -> KernelProgram:
    """The program of a scheduled definition; block: static dimensions of the compute threads, 0 where free."""
    static = tuple((kind, n) for kind, n in zip(BLOCK_TYPES, block) if n)
    return program_of_scheduled(fd.fusion, DataType.Int32, name="pipeline", result=ScheduleResult(static))  # type: ignore[arg-type]


def run(fd: FusionDefinition, inputs: list[torch.Tensor], block: Sequence[int] = ()) -> list[torch.Tensor]:
    """Run in the emulator with races, barriers, phases and bounds checked; findings are errors."""
    names = ("bdimx", "bdimy", "bdimz")
    launch = LaunchParams(**{name: n for name, n in zip(names, block) if n})
    with options(check="races"):
        executor = KernelExecutor()
        executor.compile(fd.fusion, inputs, launch)  # type: ignore[arg-type]
        return executor.run(inputs)


def check(fd: FusionDefinition, inputs: list[torch.Tensor], expected: torch.Tensor, block: Sequence[int] = ()) -> None:
    """Run, and compare with a float64 reference within the rounding of the output's type, doubled, and of float sums."""
    (out,) = run(fd, inputs, block)
    eps = torch.finfo(out.dtype).eps
    torch.testing.assert_close(out.double(), expected, rtol=2 * eps + 1e-5, atol=1e-5)


def compiles(fd: FusionDefinition, block: Sequence[int] = ()) -> None:
    """NVRTC takes the kernel for sm_90a, and nothing spills."""
    from weft.device.library import translation_unit

    made = program(fd, block)
    found = compile_cubin(translation_unit(made.text, made.blocks), made.name, "sm_90a")
    assert not found.resources.has_spills, found.resources


def flat(
    load: LoadStoreOpType = L.tma, *, store: bool = False, tile: int = 128, threads: int = 32, blocks: int = 2, stages: int = 1, prefetch: int = 1,
    inputs: int = 1, vector: int = 1, unroll: int = 1, nested: int = 0, kind: Any = None, unswitch: str = "",
) -> FusionDefinition:  # fmt: skip
    """The sum of `inputs` vectors: blocks take tiles in turn, as many as there are. nested: tiles per step of an outer loop.

    unswitch: where an unswitched axis of extent 1 stands: "around" the loop of the ring, "inside" it, where loads have one of their own, or "shared" by them.
    """
    with FusionDefinition() as fd:
        xs = [fd.define_tensor([-1], contiguity=True) for _ in range(inputs)]
        y = fd.ops.add(xs[0], 1.0)
        for x in xs[1:]:
            y = fd.ops.add(y, x)
        fd.add_output(y)
        shared = [x.cache_after(load) for x in xs]
        for s in shared:
            s.set_memory_type(MemoryType.shared)
        copies = [s.cache_after() for s in shared] if vector > 1 else []
        staged = y.cache_before(L.tma) if store else None
        if staged is not None:
            staged.set_memory_type(MemoryType.shared)
            if vector > 1:
                staged.cache_before()
        elif vector > 1:
            y.cache_before()
        tensors = [t for t in fd.fusion.tensors() if t not in xs]
        for t in tensors:
            t.split(0, tile)
            t.split(0, blocks)
            t.axis(1).parallelize(P.grid_x)
            if nested:
                t.split(0, nested)
                t.reorder({1: 2, 2: 1})  # [steps, BIDx, nested, tile]
            at = 3 if nested else 2
            if unswitch:
                place = 0 if unswitch == "around" else at
                t.split(place, 1, inner_split=False)
                t.axis(place).parallelize(P.unswitch)
                at += 1
            if t in shared and load is L.tma or store and t is y:
                t.axis(at).parallelize(P.tma)
                continue
            if vector > 1:
                t.split(at, vector)
            if unroll > 1:
                t.split(at, threads * unroll)
                t.split(at + 1, threads)
                t.axis(at + 1).parallelize(P.unroll)
                t.axis(at + 2).parallelize(P.block_x)
            else:
                t.split(at, threads)
                t.axis(at + 1).parallelize(P.block_x)
            moves = t in copies or t is y or t is staged or t in shared
            if vector > 1 and moves:
                t.axis(-1).parallelize(P.vectorize)
        at = 2 + (nested > 0) + (unswitch in ("around", "shared"))
        inline_to(fd.fusion, {t: at if t in shared or t is staged else 9 for t in fd.fusion.tensors()})  # type: ignore[arg-type]
        if stages > 1:
            for s in shared:
                circular_buffer(s, stages, prefetch, kind or Pipelined())
    return fd


@dataclass
class Rows:
    """A row-wise fusion with its rows loaded by async warps.

    groups: rows computed at once, one per index of `axis`. stages, warps: per input. own: groups have stages of their own. grouped: rows per group.
    chained: a second role copies the first input on, within shared memory. store: the result leaves by bulk stores.
    unswitch: an axis of extent 1 "around" the loop over rows, or "inside" it around each loop over a row.
    """

    inputs: int = 2
    stages: tuple[int, ...] = (3, 3)
    warps: tuple[int, ...] = (0, 1)
    groups: int = 2
    axis: ParallelType = P.block_y
    own: bool = False
    grouped: int = 1
    chained: int = 0
    store: bool = False
    registers: tuple[int, int] | None = None
    dtype: DataType = DataType.BFloat16
    cols: int = -1
    blocks: int = 2
    batches: int = 1
    vector: int = 8
    fold: str = "squares"
    unswitch: str = ""
    loaded: list[TensorView] = field(default_factory=list)

    def define(self) -> FusionDefinition:
        with FusionDefinition() as fd:
            self._schedule(fd, *self._math(fd))
        return fd

    def _math(self, fd: FusionDefinition) -> tuple[list[TensorView], TensorView]:
        xs = [fd.define_tensor([-1, self.cols], contiguity=True, dtype=self.dtype) for _ in range(self.inputs)]
        wide = [fd.ops.cast(x, dtype=DataType.Float) if self.dtype is not DataType.Float else x for x in xs]
        h = wide[0]
        for w in wide[1:]:
            h = fd.ops.add(h, w)
        h = fd.ops.mul(h, 0.5)
        folded = fd.ops.max(h, [1], keepdim=True) if self.fold == "max" else fd.ops.sum(fd.ops.mul(h, h), [1], keepdim=True)
        y = fd.ops.mul(h, folded)
        y = y if self.dtype is DataType.Float else fd.ops.cast(y, dtype=self.dtype)
        fd.add_output(y)
        return xs, y

    def _schedule(self, fd: FusionDefinition, xs: list[TensorView], y: TensorView) -> None:
        loaded = [x.cache_after(L.tma) for x in xs]
        handed = []
        source = loaded[0]
        for _ in range(self.chained):
            source = source.cache_after()
            handed.append(source)
        read_from = [handed[-1] if handed else loaded[0], *loaded[1:]]
        copies = [s.cache_after() for s in read_from]
        stored = y.cache_before(L.tma) if self.store else y
        if self.store:
            stored.cache_before()
        else:
            y.cache_before()
        for t in (*loaded, *handed, *([stored] if self.store else [])):
            t.set_memory_type(MemoryType.shared)
        red: TensorView = next(e.outputs[0] for e in fd.fusion.tensor_exprs() if isinstance(e, ReductionOp))
        position = 2
        if self.grouped > 1:
            red.split(0, self.grouped)  # [.., rows of a group, R]
        red.split(0, self.groups)
        red.split(0, self.blocks)  # [steps, BIDx, groups, (rows of a group,) R]
        red.axis(1).parallelize(P.grid_x)
        if self.unswitch == "around":
            red.split(0, 1, inner_split=False)
            red.axis(0).parallelize(P.unswitch)
            position += 1
        fd.sched.transform_like(red)
        fd.sched.parallelize_like(red)
        bulk = [*loaded, *([y] if self.store else [])]
        for t in bulk:
            t.axis(-1).parallelize(P.tma)
        bound = self.axis is not P.block_x
        if self.store and bound:
            y.axis(position).parallelize(self.axis)
        for t in handed:  # [steps, BIDx, groups, n, lanes, vector]
            t.split(-1, self.vector)
            t.split(-2, 32)
            t.axis(-2).parallelize(P.block_x)
            t.axis(-1).parallelize(P.vectorize)
        others = [t for t in fd.fusion.tensors() if t not in (*xs, *loaded, *handed, *([y] if self.store else []))]
        red.split(-1, self.vector)
        red.split(-2, self.batches, inner_split=False)
        if bound:
            red.axis(position).parallelize(self.axis)
        red.axis(-2).parallelize(P.block_x)
        serial = [-3, -1]
        if self.unswitch == "inside":
            red.split(-3, 1, inner_split=False)  # [.., unswitch, batches, TIDx, vector]
            red.axis(-4).parallelize(P.unswitch)
            serial.append(-4)
        rank = len(red.get_loop_domain())
        partial = red.rfactor([rank + n for n in serial])
        fd.sched.transform_like(partial, others)
        fd.sched.parallelize_like(partial, -1, others, [P.grid_x, P.unswitch, *BLOCK_TYPES])
        if self.grouped > 1:
            red.axis(position + 1).parallelize(P.group)
        for t in (*copies, stored):
            t.axis(-1).parallelize(P.vectorize)
        shallow = {*loaded, *handed, *([stored] if self.store else [])}
        inline_to(fd.fusion, {t: position if t in shallow else position + 1 if t in copies or self.grouped > 1 else 9 for t in fd.fusion.tensors()})  # type: ignore[arg-type]
        group_position = position + 1 if self.own else None
        for t, stages, warp in zip([*loaded, *handed], self.stages, self.warps, strict=True):
            warp_specialize(t, stages, stages - 1, self.axis, self.registers, warp, group_position)
        self.loaded = loaded

    def data(self, rows: int, cols: int) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Inputs, and the result in float64."""
        generator = torch.Generator().manual_seed(rows * 1000 + cols)
        xs = [torch.randn(rows, cols, generator=generator).to(TORCH[self.dtype]) for _ in range(self.inputs)]
        h = sum(x.double() for x in xs) * 0.5
        folded = h.amax(1, keepdim=True) if self.fold == "max" else (h * h).sum(1, keepdim=True)  # type: ignore[union-attr]
        return xs, h * folded  # type: ignore[return-value]


def rows_for(case: Rows, laps: int = 2) -> int:
    """Rows with which every stage is used more than `laps` times, and the last step is not full."""
    step = case.groups * case.blocks * case.grouped
    return step * (laps * max(case.stages) + 1) - max(1, step // 2) if step > 1 else laps * max(case.stages) + 1
