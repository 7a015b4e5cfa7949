"""Random definitions whose rows and columns are both reduced: backward of layer norm and RMS norm, with what stands around them.

Owns the definitions and their sizes, each from a seed; `candidates.py` times their kernels. Read first: `Spec`, `random_spec`.
"""

from __future__ import annotations

import dataclasses
import functools
import random
from dataclasses import dataclass
from typing import Any

import torch
from cases import NAMES, matrix, output

from weft import DataType, FusionDefinition
from weft.analysis.loop_axes import Obstacle
from weft.arch import Arch
from weft.compiler import prepare
from weft.schedulers.async_rows import can_load
from weft.schedulers.inner_outer import InnerOuterPersistent
from weft.schedulers.two_sides import TwoSidedAnalysis, TwoSidedFacts

SCHEDULER = InnerOuterPersistent()
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
KEEP = 0.9
SOFTMAX = ("softmax", "log softmax")
MODEL_WIDTHS = (
    384, 640, 768, 1152, 1280, 1536, 1600, 1792, 2304, 2560, 2880, 3072, 3584, 5120, 5376, 6144, 7168, 10240, 11008, 12288, 14336, 18432, 24576,
)  # fmt: skip
MOST_BYTES = 400 << 20
"""Of all tensors of a case."""


@dataclass(frozen=True, slots=True)
class Spec:
    """A definition and its sizes.

    norm: "rms", "layer" (statistics are inputs), "rms inside", "layer inside" (they are computed), "sums" (sums of rows and columns, beside each other),
    "softmax" and "log softmax" (forward; no gradients, so no residual, mask or gate).
    residual: a gradient that is added. mask: of dropout. gate: the gradient goes back through a SiLU. sums: column results. wide_columns: these are float.
    """

    norm: str
    dtype: str
    rows: int
    columns: int
    residual: bool = False
    mask: bool = False
    gate: bool = False
    weight: str = "plain"
    sums: int = 1
    wide_columns: bool = False

    @property
    def family(self) -> str:
        """What the kernel computes, without types and sizes."""
        more = [name for name in ("residual", "mask", "gate") if getattr(self, name)]
        return " + ".join([self.norm, *more])

    @property
    def definition_key(self) -> Spec:
        return dataclasses.replace(self, rows=0, columns=0)

    @property
    def matrices(self) -> int:
        return 1 + (self.norm not in ("sums", *SOFTMAX)) + self.residual + self.gate

    @property
    def moved_bytes(self) -> int:
        """Of the tensors that are matrices."""
        return self.rows * self.columns * ((self.matrices + 1) * DTYPES[self.dtype].itemsize + self.mask)

    def small(self) -> Spec:
        """Return the same with sizes for the emulator."""
        return dataclasses.replace(self, rows=min(self.rows, 5), columns=min(self.columns, 136))

    def to_json(self) -> list[Any]:
        return list(dataclasses.astuple(self))

    def __str__(self) -> str:
        return f"{self.family}, {self.sums} sums, {self.dtype} {self.rows}x{self.columns}"


# ---------------------------------------------------------------- definitions
@functools.cache
def shared_definition(key: Spec) -> FusionDefinition:
    """Return the definition of all specs with this key."""
    return definition(key)


def definition(spec: Spec) -> FusionDefinition:
    """Return a new definition of symbolic sizes."""
    dtype = NAMES[DTYPES[spec.dtype]]
    with FusionDefinition() as fd:
        ops = fd.ops
        x = ops.cast(matrix(fd, dtype), DataType.Float)
        if spec.norm in SOFTMAX:
            y = ops.mul(_softmax(fd, spec, x), _weight(fd, spec, dtype, x))
            output(fd, y, dtype)
            for value in (y, ops.mul(y, y), ops.mul(y, x), x)[: spec.sums]:
                output(fd, ops.sum(value, [0]), DataType.Float if spec.wide_columns else dtype)
            return fd
        if spec.norm == "sums":
            y = _gated(fd, x, ops.cast(matrix(fd, dtype), DataType.Float)) if spec.gate else x
            y = ops.mul(y, _weight(fd, spec, dtype, x))
            output(fd, y, dtype)
            fd.add_output(ops.sum(y, [1]))
            for value in (y, ops.mul(x, x), x, ops.mul(y, x))[: spec.sums]:
                output(fd, ops.sum(value, [0]), DataType.Float if spec.wide_columns else dtype)
            return fd
        g = ops.cast(matrix(fd, dtype), DataType.Float)
        inv = ops.reciprocal(x.size(1))
        normed, rstd = _normed(fd, spec, x, inv)
        if spec.mask:
            kept = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Bool)
            g = ops.mul(ops.mul(g, ops.cast(kept, DataType.Float)), 1 / KEEP)
        if spec.gate:
            g = _gated(fd, g, ops.cast(matrix(fd, dtype), DataType.Float))
        wg = ops.mul(g, _weight(fd, spec, dtype, x))
        d = ops.sub(wg, ops.mul(normed, ops.mul(ops.sum(ops.mul(wg, normed), [1], True), inv)))
        if spec.norm.startswith("layer"):
            d = ops.sub(d, ops.mul(ops.sum(wg, [1], True), inv))
        d = ops.mul(d, rstd)
        if spec.residual:
            d = ops.add(d, ops.cast(matrix(fd, dtype), DataType.Float))
        output(fd, d, dtype)
        for value in (ops.mul(g, normed), g, d, wg)[: spec.sums]:
            output(fd, ops.sum(value, [0]), DataType.Float if spec.wide_columns else dtype)
    return fd


def _softmax(fd: FusionDefinition, spec: Spec, x: Any) -> Any:
    ops = fd.ops
    below = ops.sub(x, ops.max(x, [1], True))
    e = ops.exp(below)
    total = ops.sum(e, [1], True)
    return ops.mul(e, ops.reciprocal(total)) if spec.norm == "softmax" else ops.sub(below, ops.log(total))


def _normed(fd: FusionDefinition, spec: Spec, x: Any, inv: Any) -> tuple[Any, Any]:
    """Return the normalized rows, and 1 / standard deviation."""
    ops, is_layer = fd.ops, spec.norm.startswith("layer")
    if "inside" not in spec.norm:
        mean, rstd = (fd.define_tensor([-1, 1], contiguity=[True, None], dtype=DataType.Float) if n or is_layer else None for n in range(2))
        return ops.mul(ops.sub(x, mean) if is_layer else x, rstd), rstd
    if is_layer:
        var, mean = ops.var_mean(x, [1], 0, True)
        rstd = ops.rsqrt(ops.add(var, 1e-5))
        return ops.mul(ops.sub(x, mean), rstd), rstd
    rstd = ops.rsqrt(ops.add(ops.mul(ops.sum(ops.mul(x, x), [1], True), inv), 1e-5))
    return ops.mul(x, rstd), rstd


def _weight(fd: FusionDefinition, spec: Spec, dtype: DataType, like: Any) -> Any:
    ops = fd.ops
    if spec.weight == "none":
        return 1.5
    w = ops.cast(fd.define_tensor([-1], contiguity=True, dtype=dtype), DataType.Float)
    return ops.broadcast_in_dim(ops.add(w, 1.0) if spec.weight == "zero-centered" else w, like.shape(), [1])


def _gated(fd: FusionDefinition, g: Any, z: Any) -> Any:
    """The gradient g of SiLU(z) as a gradient of z."""
    ops = fd.ops
    s = ops.reciprocal(ops.add(ops.exp(ops.neg(z)), 1.0))
    return ops.mul(g, ops.mul(s, ops.add(ops.mul(z, ops.sub(1.0, s)), 1.0)))


def inputs_of(fd: FusionDefinition, spec: Spec, device: str) -> list[torch.Tensor]:
    """Return inputs in memory that nobody has written yet; see `fill`."""
    out = []
    for value in fd.fusion.inputs():
        axes = value.get_logical_domain()  # type: ignore[attr-defined]
        shape = [spec.columns] if len(axes) == 1 else [spec.rows, 1 if axes[1].is_broadcast() else spec.columns]
        dtype = {DataType.Bool: torch.bool, DataType.Float: torch.float32, DataType.Half: torch.float16, DataType.BFloat16: torch.bfloat16}[value.dtype()]
        out.append(torch.empty(shape, dtype=dtype, device=device))
    return out


def fill(inputs: list[torch.Tensor]) -> None:
    """Write random values."""
    for tensor in inputs:
        if tensor.dtype is torch.bool:
            tensor.copy_(torch.rand(tensor.shape, device=tensor.device) < KEEP)
        else:
            tensor.normal_()


# ---------------------------------------------------------------- facts
@dataclass(frozen=True, slots=True)
class Seen:
    """What the choice depends on."""

    analysis: TwoSidedAnalysis
    facts: TwoSidedFacts
    is_loadable: bool


def seen_of(spec: Spec) -> Seen:
    """Return the facts of a spec, without a GPU; tensors are aligned as torch's are."""
    prepared = prepare(shared_definition(spec.definition_key).fusion)
    analysis = prepared.analysis(SCHEDULER)
    if analysis is None or isinstance(analysis, Obstacle):
        raise ValueError(f"{spec}: {prepared.declines[SCHEDULER.name]}")
    env: dict[Any, int] = {}
    for value in prepared.fusion.inputs():
        axes = value.get_logical_domain()  # type: ignore[attr-defined]
        for axis, size in zip(axes, [spec.columns] if len(axes) == 1 else [spec.rows, spec.columns]):
            if not axis.is_broadcast():
                env.setdefault(axis.sym, size)
    return Seen(analysis, analysis.facts(env, {}), all(can_load(t, analysis) for t in analysis.row_inputs))


def is_taken(spec: Spec, arch: Arch) -> bool:
    """True when the template of rows and columns takes the spec at its sizes."""
    prepared = prepare(shared_definition(spec.definition_key).fusion)
    return prepared.analysis(SCHEDULER) is not None


# ---------------------------------------------------------------- random specs
def random_spec(seed: int) -> Spec:
    """Return the spec of a seed."""
    drawn = random.Random(seed)
    norm = drawn.choices(("rms", "layer", "rms inside", "layer inside", "sums"), (35, 35, 8, 12, 10))[0]
    dtype = drawn.choices(tuple(DTYPES), (55, 15, 30))[0]
    is_sums, is_layer = norm == "sums", norm.startswith("layer")
    spec = Spec(
        norm, dtype, 1, 1, residual=not is_sums and drawn.random() < 0.25, mask=not is_sums and drawn.random() < 0.2, gate=drawn.random() < 0.15,
        weight=drawn.choices(("plain", "zero-centered", "none"), (75, 15, 10))[0],
        sums=drawn.choices((1, 2, 3, 4), (10, 70, 15, 5) if is_layer else (75, 15, 7, 3))[0],
        wide_columns=drawn.random() < 0.3,
    )  # fmt: skip
    columns = _columns(drawn)
    row_bytes = dataclasses.replace(spec, rows=1, columns=columns).moved_bytes
    most = max(1, min(65536, MOST_BYTES // row_bytes))
    if drawn.random() < 0.65:  # large: what training has
        low, high = max(1, min(most, (24 << 20) // row_bytes)), most
    else:
        low, high = 1, max(1, min(most, (24 << 20) // row_bytes))
    rows = round(low * (high / low) ** drawn.random())
    if drawn.random() < 0.5 and rows >= 8:
        rows = 1 << (rows.bit_length() - 1)
    return dataclasses.replace(spec, rows=rows, columns=columns)


def random_softmax(seed: int) -> Spec:
    """Return the spec of a softmax whose columns are summed, with the sizes and types of the random spec of this seed."""
    drawn, like = random.Random(f"softmax {seed}"), random_spec(seed)
    norm = drawn.choices(SOFTMAX, (70, 30))[0]
    rows = min(65536, max(1, round(like.rows * like.moved_bytes / (like.rows * like.columns) / (2 * DTYPES[like.dtype].itemsize))))
    return Spec(norm, like.dtype, rows, like.columns, weight=drawn.choices(("none", "plain"), (70, 30))[0], sums=drawn.choices((1, 2, 3), (75, 15, 10))[0],
                wide_columns=like.wide_columns)


def _columns(drawn: random.Random) -> int:
    """Half of all widths are those of models, a quarter multiples of 8, a quarter any number."""
    kind = drawn.random()
    if kind < 0.25:
        return 1 << drawn.randint(7, 16)
    if kind < 0.5:
        return drawn.choice(MODEL_WIDTHS)
    wide = round(2 ** drawn.uniform(7, 15.6))
    return wide // 8 * 8 if kind < 0.75 else wide


def benchmark_specs() -> list[Spec]:
    """Return the shapes of the benchmark of norm backward: they judge, and nothing is fitted to them."""
    shapes = [(16384, 1024), (16384, 2048), (16384, 4096), (16384, 5120), (8192, 8192), (8192, 12288), (4096, 16384), (2048, 32768)]
    sizes = [("bfloat16", *shape) for shape in shapes] + [("float32", 16384, 4096), ("float32", 4096, 16384)]
    return [Spec(norm, dtype, rows, columns, sums=1 + (norm == "layer")) for norm in ("rms", "layer") for dtype, rows, columns in sizes]
