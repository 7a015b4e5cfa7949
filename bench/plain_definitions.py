"""Random definitions for the templates without kept rows: pointwise, reductions along and across memory, transposes.

Owns the definitions and their sizes, each from a seed, and which params are tried; `candidates.py --plain` times their kernels.
Read first: `PlainSpec`, `random_spec`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from cases import NAMES

from weft import DataType, FusionDefinition
from weft.analysis.loop_axes import Obstacle
from weft.analysis.vectorization import MAX_VECTOR_BITS
from weft.arch import MAX_GRID, Arch, ceil_div
from weft.compiler import prepare
from weft.schedulers import reduction_heuristic
from weft.schedulers.pointwise import PointWise
from weft.schedulers.pointwise_heuristic import PointwiseParams, breaks
from weft.schedulers.reduction import Reduction
from weft.schedulers.reduction_heuristic import ReductionParams
from weft.schedulers.transpose import Transpose, TransposeParams

TEMPLATES: dict[str, Any] = {"pointwise": PointWise(), "reduction": Reduction(), "transpose": Transpose()}
PARAMS: dict[str, Any] = {"pointwise": PointwiseParams, "reduction": ReductionParams, "transpose": TransposeParams}
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
MOST_BYTES, LEAST_BYTES = 400 << 20, 1 << 16
"""Of all tensors of a case."""
WIDTHS = (40, 96, 128, 192, 256, 320, 384, 512, 640, 768, 1000, 1024, 1280, 1536, 2048, 2560, 3072, 4096, 5120, 7168, 8192, 11008, 12288, 14336, 16384, 32768)
WORK = ("copy", "gelu", "tanh", "silu_mul", "chain")


@dataclass(frozen=True, slots=True)
class PlainSpec:
    """A definition and its sizes.

    template: which kernels. dtype: of inputs; out_dtype: of outputs. shape: of the whole tensors. inputs: how many of these are read. work: what is computed of
    an element. spread: for pointwise, which axes a further input varies over (as 0 and 1), or (); for reductions, the axes that are reduced (as 1);
    for transposes, the order of the output's axes. results: outputs, or reductions.
    """

    template: str
    dtype: str
    out_dtype: str
    shape: tuple[int, ...]
    inputs: int = 1
    work: str = "copy"
    spread: tuple[int, ...] = ()
    results: int = 1

    @property
    def definition_key(self) -> PlainSpec:
        return dataclasses.replace(self, shape=(0,) * len(self.shape))

    @property
    def family(self) -> str:
        if self.template == "reduction":
            return "rows" if self.spread[-1] else "columns"
        return f"{self.template}, spread" if self.template == "pointwise" and self.spread else self.template

    @property
    def moved_bytes(self) -> int:
        """Of the tensors that vary over all axes."""
        outputs = 0 if self.template == "reduction" else self.results
        return math.prod(self.shape) * (self.inputs * DTYPES[self.dtype].itemsize + outputs * DTYPES[self.out_dtype].itemsize)

    def to_json(self) -> list[Any]:
        return list(dataclasses.astuple(self))

    def small(self) -> PlainSpec:
        """Return the same with sizes for the emulator."""
        return dataclasses.replace(self, shape=tuple(min(size, 72) for size in self.shape))

    @classmethod
    def from_json(cls, values: list[Any]) -> PlainSpec:
        return cls(*(tuple(v) if isinstance(v, list) else v for v in values))

    def __str__(self) -> str:
        size = "x".join(map(str, self.shape))
        return f"{self.family} {self.spread}, {self.work} of {self.inputs}, {self.results} results, {self.dtype} to {self.out_dtype} {size}"


# ---------------------------------------------------------------- definitions
@functools.cache
def shared_definition(key: PlainSpec) -> FusionDefinition:
    """Return the definition of all specs with this key."""
    return definition(key)


def definition(spec: PlainSpec) -> FusionDefinition:
    """Return a new definition of symbolic sizes."""
    dtype, out = NAMES[DTYPES[spec.dtype]], NAMES[DTYPES[spec.out_dtype]]
    rank = len(spec.shape)
    with FusionDefinition() as fd:
        ops = fd.ops
        whole = [ops.cast(fd.define_tensor([-1] * rank, contiguity=True, dtype=dtype), DataType.Float) for _ in range(spec.inputs)]
        if spec.template == "pointwise" and spec.spread:
            varies = [bool(v) for v in spec.spread]
            part = fd.define_tensor([-1 if v else 1 for v in varies], contiguity=[True if v else None for v in varies], dtype=dtype)
            whole[0] = ops.add(whole[0], ops.cast(part, DataType.Float))
        y = _worked(fd, whole, spec.work)
        if spec.template == "reduction":
            axes = [n for n, is_reduced in enumerate(spec.spread) if is_reduced]
            for value in (y, ops.mul(y, y), whole[0])[: spec.results]:
                fd.add_output(ops.cast(ops.sum(value, axes), out))
            return fd
        for n in range(spec.results):
            value = y if n == 0 else ops.mul(y, whole[0])
            fd.add_output(ops.cast(ops.permute(value, list(spec.spread)) if spec.template == "transpose" else value, out))
    return fd


def _worked(fd: FusionDefinition, values: list[Any], work: str) -> Any:
    ops, x = fd.ops, values[0]
    if work == "gelu":
        x = ops.mul(ops.mul(x, 0.5), ops.add(ops.erf(ops.mul(x, 0.70710678)), 1.0))
    if work == "tanh":
        x = ops.tanh(x)
    if work == "chain":
        for n in range(12):
            x = ops.add(ops.mul(x, 0.99 - 0.01 * n), 0.5)
    if work == "silu_mul":
        x = ops.mul(x, ops.reciprocal(ops.add(ops.exp(ops.neg(x)), 1.0)))
    if work == "copy" and len(values) == 1:
        x = ops.mul(x, 2.0)
    for other in values[1:]:
        x = ops.mul(x, other) if work == "silu_mul" else ops.add(x, other)
    return x


def inputs_of(fd: FusionDefinition, spec: PlainSpec, device: str) -> list[torch.Tensor]:
    """Return inputs in memory that nobody has written yet."""
    dtype, out = DTYPES[spec.dtype], []
    for value in fd.fusion.inputs():
        axes = value.get_logical_domain()  # type: ignore[attr-defined]
        out.append(torch.empty([1 if a.is_broadcast() else size for a, size in zip(axes, spec.shape)], dtype=dtype, device=device))
    return out


def facts_of(spec: PlainSpec) -> tuple[Any, Any, dict[Any, int]]:
    """Return the analysis, the facts (None for transposes) and the sizes of a spec; tensors are aligned as torch's are.

    Errors: ValueError where the template declines it.
    """
    scheduler = TEMPLATES[spec.template]
    prepared = prepare(shared_definition(spec.definition_key).fusion)
    analysis = prepared.analysis(scheduler)
    if analysis is None or isinstance(analysis, Obstacle):
        raise ValueError(f"{spec}: {prepared.declines[scheduler.name]}")
    env: dict[Any, int] = {}
    for value in prepared.fusion.inputs():
        for axis, size in zip(value.get_logical_domain(), spec.shape):  # type: ignore[attr-defined]
            if not axis.is_broadcast():
                env.setdefault(axis.sym, size)
    return analysis, None if spec.template == "transpose" else analysis.facts(env, {}), env


# ---------------------------------------------------------------- params
def tried(spec: PlainSpec, arch: Arch, count: int) -> list[Any]:
    """Return the present choice, those that tuning would time first, and legal params at random."""
    analysis, facts, env = facts_of(spec)
    scheduler, drawn = TEMPLATES[spec.template], random.Random(str(spec))
    if scheduler.accept(analysis, env, {}, arch) is not None:
        raise ValueError(f"{spec}: not accepted")
    choice, _ = scheduler.choose(analysis, env, {}, arch)
    if not isinstance(choice, PARAMS[spec.template]):
        raise ValueError(f"{spec}: tiles with all of a short run have params of their own")
    near = [p for _, p in scheduler.candidates(analysis, env, {}, arch)][: max(1, count // 3)]
    if spec.template == "pointwise":
        others = list(pointwise_params(facts, arch))
    elif spec.template == "reduction":
        others = list(reduction_params(facts, arch))
    else:
        others = list(transpose_params(choice, spec, arch))
    drawn.shuffle(others)
    return list(dict.fromkeys([choice, *near, *others]))[: max(1, count)]


def pointwise_params(facts: Any, arch: Arch) -> Iterator[PointwiseParams]:
    """Yield legal params of many shapes."""
    for at in breaks(facts):
        left, right = at.left, at.right
        widest = at.vector_elems
        for vector in {widest} if at.is_phased else {widest, max(facts.min_vector_elems, widest // 2), max(facts.min_vector_elems, widest // 4)}:
            vectors = ceil_div(right, vector)
            for bdimx in (8, 16, 32, 64, 96, 128, 160, 192, 256, 384, 512):
                if at.position == 0 and bdimx not in (64, 128, 256, 512) or at.position and bdimx > 2 * vectors or at.is_phased and bdimx < 2 * vector:
                    continue
                for bdimy in {1} if at.position == 0 else {1, max(1, 128 // bdimx), max(1, 256 // bdimx)}:
                    for inner in (1, 2, 4, 8):
                        for outer in (1,) if at.position == 0 or at.is_phased else (1, 2, 4):
                            if bdimx * bdimy < 32 or inner * outer > 8 or inner > 1 and bdimx * inner >= 2 * vectors:
                                continue
                            for is_left_fastest in {False, at.position > 0 and (bdimx + inner + outer) % 3 == 0}:
                                rows = ceil_div(left, bdimy * outer)
                                if at.is_phased and rows > MAX_GRID[1] and not is_left_fastest:
                                    continue
                                y_blocks = ceil_div(vectors, bdimx * inner) if is_left_fastest else rows
                                yield PointwiseParams(
                                    at.position, vector, outer, inner, bdimx, bdimy, is_left_fastest, bool(at.position) and y_blocks > MAX_GRID[1],
                                    arch.max_registers_per_thread, facts.single_reads, at.is_phased,
                                )  # fmt: skip


def reduction_params(facts: Any, arch: Arch) -> Iterator[ReductionParams]:
    """Yield legal params of many shapes."""
    made = reduction_heuristic.Candidates(facts, arch)
    if facts.is_inner:
        for found in map(made.params, made.shapes):
            yield found
            for unroll in (1, 2, 4, 8):
                row = facts.inner_run_elems if found.kind == "3d" else facts.reduction_elems
                vectors = ceil_div(ceil_div(ceil_div(row, found.vector_elems), found.grid_split if found.kind == "inner" else 1), found.bdimx)
                if unroll > 2 * vectors:
                    continue
                yield dataclasses.replace(found, unroll=unroll, unswitch=vectors > unroll > 1 and found.kind == "inner")
                if found.kind == "inner" and found.bdimx >= 32:
                    for bdimy in {1, max(1, 128 // found.bdimx), max(1, 512 // found.bdimx)} - {found.bdimy}:
                        yield dataclasses.replace(found, unroll=unroll, bdimy=bdimy, unswitch=vectors > unroll > 1)
        return
    row = ceil_div(facts.iteration_elems, made.vector)
    for bdimx in (2, 4, 8, 16, 32, 64, 128):
        if bdimx > 1 and bdimx // 2 >= row:
            continue
        for threads in (128, 256, 512, 1024):
            bdimy = made.fitting(bdimx, max(1, min(threads // bdimx, 1 << (facts.reduction_elems - 1).bit_length())))
            blocks, most = ceil_div(row, bdimx), max(1, facts.reduction_elems // (2 * bdimy))
            for unroll in (1, 2, 4, 8):
                for split in {1, *(reduction_heuristic._nice(min(most, 1024, max(1, arch.sm_count * w // blocks))) for w in (1, 2, 3, 4, 6, 8))}:
                    if not (split > 1 and facts.results_meet):
                        yield made.params((False, unroll, bdimx, bdimy, 1, split, False, made.column_registers(bdimx * bdimy, unroll)))
                for split in (2, 4, 8):
                    if split <= min(most, bdimy, arch.max_cluster_blocks) and blocks * split <= 8 * arch.sm_count:
                        yield made.params((False, unroll, bdimx, bdimy, 1, split, True, made.column_registers(bdimx * bdimy, unroll)))


def transpose_params(choice: TransposeParams, spec: PlainSpec, arch: Arch) -> Iterator[TransposeParams]:
    """Yield legal params of many shapes."""
    widest = MAX_VECTOR_BITS // (8 * max(DTYPES[spec.dtype].itemsize, DTYPES[spec.out_dtype].itemsize))
    for chunks in (4, 8, 16):
        tile = chunks * widest
        for threads in (64, 128, 256, 512):
            for along in {1} if choice.is_whole else {choice.along_vector, max(1, choice.along_vector // 2)}:  # whole tiles move vectors wherever rows begin
                for across in {1} if choice.is_whole else {choice.across_vector, max(1, choice.across_vector // 2)}:
                    for most in (1, 2, 4, 8):
                        unrolls = [max(1, min(most, tile * tile // (vector * threads))) for vector in (along, across)]
                        anywhere = choice.across_anywhere and across == choice.across_vector
                        for first in (True, False):
                            if tile * tile >= max(along, across) * threads:
                                yield TransposeParams(tile, along, across, threads, *unrolls, first, anywhere, choice.cut)


# ---------------------------------------------------------------- random specs
def random_spec(seed: int) -> PlainSpec:
    """Return the spec of a seed."""
    drawn = random.Random(seed)
    template = drawn.choices(("pointwise", "reduction", "transpose"), (42, 42, 16))[0]
    dtype = drawn.choices(tuple(DTYPES), (60, 10, 30))[0]
    out_dtype = dtype if drawn.random() < 0.8 else drawn.choice(tuple(DTYPES))
    work = drawn.choices(WORK, (40, 15, 15, 15, 15))[0]
    inputs = drawn.choices((1, 2, 3, 4), (55, 30, 10, 5))[0]
    spread: tuple[int, ...] = ()
    rank, results = 2, drawn.choices((1, 2), (85, 15))[0]
    if template == "pointwise":
        spread = drawn.choices(((), (0, 1), (1, 0), (1, 0, 1), (0, 1, 0), (0, 1, 1)), (35, 30, 15, 10, 5, 5))[0]
        rank = len(spread) or 2
    elif template == "reduction":
        spread = drawn.choices(((1, 0), (0, 1), (0, 1, 0), (1, 0, 0), (1, 0, 1)), (45, 30, 15, 5, 5))[0]
        rank, work = len(spread), drawn.choices(WORK, (70, 5, 5, 10, 10))[0]
        out_dtype = drawn.choice((dtype, "float32"))
    else:
        spread = drawn.choices(((1, 0), (0, 2, 1), (2, 1, 0)), (60, 30, 10))[0]
        rank, inputs, work = len(spread), drawn.choices((1, 2), (80, 20))[0], drawn.choices(WORK, (80, 5, 5, 5, 5))[0]
        results = 1
    spec = PlainSpec(template, dtype, out_dtype, (1,) * rank, inputs, work, spread, results)
    total = round(math.exp(drawn.uniform(math.log(LEAST_BYTES if drawn.random() < 0.35 else 24 << 20), math.log(MOST_BYTES)))) // spec.moved_bytes
    return dataclasses.replace(spec, shape=_shape(drawn, rank, max(64, total)))


def _size(drawn: random.Random, most: int) -> int:
    kind = drawn.random()
    if kind < 0.25:
        return min(most, 1 << drawn.randint(5, 15))
    if kind < 0.55:
        return min(most, drawn.choice(WIDTHS))
    wide = round(2 ** drawn.uniform(5, 15))
    return max(1, min(most, max(8, wide // 8 * 8) if kind < 0.8 else wide))


def _shape(drawn: random.Random, rank: int, total: int) -> tuple[int, ...]:
    """Return sizes whose product is about `total`."""
    sizes = [0] * rank
    order = list(range(rank))
    drawn.shuffle(order)
    for n in order[:-1]:
        sizes[n] = _size(drawn, max(2, total // 2))
        total = max(2, total // sizes[n])
    last = max(2, total)
    sizes[order[-1]] = 1 << (last.bit_length() - 1) if drawn.random() < 0.4 else max(8, last // 8 * 8) if drawn.random() < 0.5 else last
    return tuple(sizes)
