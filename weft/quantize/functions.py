"""The functions of `weft.quantize`: tensors in, elements and scales out.

Owns the definitions behind them, one per recipe, what stands before it, types and ranks; kernels and their reuse are those of any definition.
Read first: `quantize`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from ..api.definition import FusionDefinition
from ..dtypes import DataType
from ..errors import shown
from ..ops.blocks import FLOAT_MAX, BlockFormat
from ..ops.build import cast
from ..reference.torch_types import torch_dtype_to_nvfuser_dtype
from ..runtime.argument_kinds import check_kind, checked
from .before import BEFORE, BY_ROWS
from .errors import WrongTensors
from .formats import E4M3, FLOAT, FP4, Mx, MxBothWays, NvFp4, NvFp4BothWays, Per1x128, PerRow, PerTensor, PerTensorCurrent, Recipe, layout_for, tensor_amax


Results = tuple[torch.Tensor, ...]


@checked
def quantize(
    recipe: Recipe, *inputs: torch.Tensor, before: str = "", scale: torch.Tensor | None = None, eps: float = 1e-5, has_amax: bool = False
) -> Results:  # fmt: skip
    """Run a recipe after the op `before`; return elements, scales, and further results.

    inputs: of `before`; vectors are weights along the last axis. scale: of recipes that take one. has_amax: the largest magnitude of the quantized values, a
    Float of rank 0, is a further result, before those of `before`, which have the type of the first input.
    """
    if not isinstance(recipe, Recipe) or before not in BEFORE:
        problem = f"{shown(recipe)} behind {shown(before)}"
        raise WrongTensors(problem=f"no recipe: {problem}", remedy=f"pass an object of weft.quantize.formats, and one of {', '.join(map(repr, BEFORE))}")
    for number, x in enumerate(inputs):
        check_kind("quantize", f"input {number}", x, "Tensor")
        check_floats(x, f"input {number}")
    if recipe.has_scale != (scale is not None):
        raise WrongTensors(problem=f"{recipe} {'takes a scale' if recipe.has_scale else 'takes no scale'}", remedy="see the function of the recipe")
    described = tuple((torch_dtype_to_nvfuser_dtype(x.dtype), x.dim(), x.is_contiguous()) for x in inputs)
    fd = _definition(recipe, before, described, eps, has_amax)
    return tuple(fd.execute([*inputs, *([] if scale is None else [scale])]))


def check_floats(x: torch.Tensor, name: str) -> None:
    """Errors: WrongTensors if elements are integers, bools or complex."""
    if not x.dtype.is_floating_point:
        raise WrongTensors(problem=f"{name} is of type {x.dtype}, which is not a float type", remedy="cast it to a float type")


def elements_of(dtype: torch.dtype) -> DataType:
    """Return the type of quantized elements. Errors: WrongTensors for anything but a float of at most 8 bits (other than e8m0)."""
    found = torch_dtype_to_nvfuser_dtype(dtype)
    if not found.is_narrow_float or found is DataType.Float8_e8m0fnu:
        problem = f"dtype is {dtype}, but these recipes scale to the largest value of a float type of at most 8 bits"
        raise WrongTensors(problem=problem, remedy="use dtype=torch.float8_e4m3fn or torch.float8_e5m2")
    return found


@functools.lru_cache(maxsize=None)
def _definition(recipe: Recipe, before: str, inputs: tuple[tuple[DataType, int, bool], ...], eps: float, has_amax: bool = False) -> FusionDefinition:
    with FusionDefinition() as fd:
        shape = [-1, recipe.tile_rows, -1]  # a constant in the kernel
        tensors = [
            fd.define_tensor(shape if recipe.tile_rows else [-1] * rank, contiguity=is_contiguous, dtype=dtype) for dtype, rank, is_contiguous in inputs
        ]
        scale = fd.define_tensor([], dtype=FLOAT) if recipe.has_scale else None
        fusion = fd.fusion
        assert fusion is not None
        fusion.shares_results = False
        made, more = BEFORE[before](fusion, [cast(fusion, t, FLOAT) for t in tensors], eps)  # type: ignore[misc]
        for result in recipe.results(fusion, made, scale):
            fd.add_output(result)
        if has_amax:
            fd.add_output(tensor_amax(fusion, made, before in BY_ROWS))
        for result in more:
            fd.add_output(cast(fusion, result, inputs[0][0]))
    return fd


# ---------------------------------------------------------------- one scale for many elements
@checked
def per_tensor(x: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype = torch.float8_e4m3fn) -> Results:
    """Return (saturate(x * scale), largest magnitude of x): delayed scaling. scale: Float, rank 0; its inverse dequantizes."""
    if not x.numel():  # the largest magnitude of no elements is 0
        return torch.empty_like(x, dtype=dtype), torch.zeros((), device=x.device)
    return quantize(PerTensor(elements_of(dtype)), x, scale=scale)


@checked
def delayed_scale(
    history: torch.Tensor, dtype: torch.dtype = torch.float8_e4m3fn, *, margin: int = 0, is_most_recent: bool = False, previous: torch.Tensor | None = None
) -> torch.Tensor:  # fmt: skip
    """Return the encode scale of the next step, Float of rank 0: largest value of dtype / amax / 2^margin.

    history: Float, the largest magnitudes of earlier steps, the most recent first; amax: the largest of them, or the first. previous: the scale if amax is 0 or
    NaN; 1 if not given. Source: TransformerEngine's delayed scaling.
    """
    if history.dim() != 1 or not history.numel() or history.dtype is not torch.float32:
        raise WrongTensors(problem=f"a history of {history.dtype} and sizes {tuple(history.shape)}", remedy="pass a float32 tensor with one axis")
    fd = _delayed(elements_of(dtype), margin, previous is not None)
    return fd.execute([history[:1] if is_most_recent else history, *([] if previous is None else [previous])])[0]


@functools.lru_cache(maxsize=None)
def _delayed(dtype: DataType, margin: int, has_previous: bool) -> FusionDefinition:
    with FusionDefinition() as fd:
        ops = fd.ops
        amax = ops.max(fd.define_tensor([-1], contiguity=True, dtype=FLOAT), [0])
        kept = fd.define_tensor([], dtype=FLOAT) if has_previous else 1.0
        wanted = ops.minimum(ops.mul(ops.div(dtype.record.largest, amax), 2.0**-margin), FLOAT_MAX)
        fd.add_output(ops.where(ops.logical_and(ops.gt(amax, 0.0), ops.isfinite(amax)), wanted, kept))
    return fd


@checked
def per_tensor_current(x: torch.Tensor, dtype: torch.dtype = torch.float8_e4m3fn, eps: float = 0.0) -> Results:
    """Return (elements, decode scale of rank 0), with the scale computed from this tensor: two kernels."""
    if not x.numel():
        return torch.empty_like(x, dtype=dtype), torch.ones((), device=x.device)
    return quantize(PerTensorCurrent(elements_of(dtype), eps), x)


@checked
def per_row(x: torch.Tensor, dtype: torch.dtype = torch.float8_e4m3fn) -> Results:
    """Return (elements, decode scales [..., 1]), for row-wise scaling in torch._scaled_mm."""
    return quantize(PerRow(elements_of(dtype)), x)


@checked
def per_1x128(x: torch.Tensor, layout: str = "rows", *, is_power_of_two: bool = False) -> Results:
    """Return (elements of e4m3, decode scales [..., k / 128]). layout "torch", "deepgemm": rows innermost; "te": the same, transposed and padded."""
    return quantize(Per1x128(E4M3, layout_for("1x128", layout), is_power_of_two), x)


@checked
def blocks_128x128(w: torch.Tensor, layout: str = "rows") -> Results:
    """Return (elements of e4m3 [m, k], decode scales [m / 128, k / 128]) of weights.

    layout "te": rows of scales are padded to a multiple of four; "torch": they begin at such multiples, as torch._scaled_mm requires.
    """
    if w.dim() != 2:
        raise WrongTensors(problem=f"a weight of {w.dim()} axes has no tiles", remedy="pass a matrix")
    m, k = w.shape
    if m % 128 or k % 128:
        raise WrongTensors(problem=f"a weight of {m} x {k} does not divide into tiles of 128 x 128", remedy="pad it")
    check_floats(w, "the weight")
    where = "padded 1x4" if layout == "torch" else layout_for("128x128", layout)
    elements, scales = _tiles(torch_dtype_to_nvfuser_dtype(w.dtype), where, w.is_contiguous()).execute([w.view(m // 128, 128, k // 128, 128)])
    if layout == "torch":
        scales = scales[:, : k // 128]
    return elements.view(m, k), scales if where != "rows" else scales.view(m // 128, k // 128)


@functools.lru_cache(maxsize=None)
def _tiles(dtype: DataType, layout: str, is_contiguous: bool) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.ops.cast(fd.define_tensor([-1] * 4, contiguity=is_contiguous, dtype=dtype), FLOAT)
        amax = fd.ops.maximum(fd.ops.max(fd.ops.abs(x), [1, 3], True), 1e-4)
        scale = fd.ops.div(amax, 448.0)
        fd.add_output(fd.ops.cast(fd.ops.mul(x, fd.ops.div(1.0, scale)), E4M3))
        fd.add_output(scale if layout == "rows" else fd.ops.block_sample(fd.ops.squeeze(scale, [1, 3]), 1, layout))
    return fd


# ---------------------------------------------------------------- blocks with narrow scales
@checked
def mxfp8(
    x: torch.Tensor, layout: str = "rows", *, rounding: str = "up", dtype: torch.dtype = torch.float8_e4m3fn, has_amax: bool = False
) -> Results:  # fmt: skip
    """Return (elements, scales of e8m0 [..., k / 32]), and the largest magnitude of x with has_amax.

    layout "128x4" or "torch": tiles, for block-scaled matrix products; "te": rows, padded. rounding: "up", or "floor" as in the OCP specification.
    """
    return quantize(Mx(elements_of(dtype), layout_for("blocks", layout), BlockFormat(rounding=rounding)), x, has_amax=has_amax)


@checked
def mxfp8_both_ways(x: torch.Tensor, layout: str = "rows", *, rounding: str = "up", dtype: torch.dtype = torch.float8_e4m3fn) -> Results:
    """Return (elements, scales [m, k / 32], elements, scales [m / 32, k]) of x [m, k]: blocks along rows, then along columns, both from one read of x.

    layout "128x4": of both scales, those of columns as of the transposed tensor. Errors: WrongTensors unless x is a matrix of whole blocks both ways.
    """
    return _both_ways(_mx_both_ways(dtype, rounding, layout), [x])


@checked
def silu_mul_mxfp8_both_ways(
    x: torch.Tensor, y: torch.Tensor, layout: str = "rows", *, rounding: str = "up", dtype: torch.dtype = torch.float8_e4m3fn
) -> Results:  # fmt: skip
    """mxfp8_both_ways of silu(x) * y."""
    return _both_ways(_mx_both_ways(dtype, rounding, layout), [x, y], "silu_mul")


def _mx_both_ways(dtype: torch.dtype, rounding: str, layout: str) -> MxBothWays:
    return MxBothWays(elements_of(dtype), BlockFormat(rounding=rounding), layout_for("blocks", layout))


@checked
def nvfp4_both_ways(
    x: torch.Tensor, global_scale: torch.Tensor | None = None, layout: str = "rows", *, scale_order: str = "nvfuser", is_stochastic: bool = False
) -> Results:  # fmt: skip
    """Return (elements, scales [m, k / 16], elements [k, m], scales [k, m / 16]) of x [m, k]: nvfp4 of x and of its transpose, both from one read of x.

    Two elements share a byte. layout "128x4": of both scales. Errors: WrongTensors unless x is a matrix of whole blocks of 16 both ways.
    """
    return _both_ways(_nvfp4_both_ways(global_scale, layout, scale_order, is_stochastic), [x], scale=global_scale)


@checked
def silu_mul_nvfp4_both_ways(
    x: torch.Tensor, y: torch.Tensor, global_scale: torch.Tensor | None = None, layout: str = "rows", *, scale_order: str = "nvfuser",
    is_stochastic: bool = False,
) -> Results:  # fmt: skip
    """nvfp4_both_ways of silu(x) * y."""
    return _both_ways(_nvfp4_both_ways(global_scale, layout, scale_order, is_stochastic), [x, y], "silu_mul", global_scale)


def _nvfp4_both_ways(global_scale: torch.Tensor | None, layout: str, scale_order: str, is_stochastic: bool) -> NvFp4BothWays:
    return NvFp4BothWays(layout_for("blocks", layout), global_scale is not None, is_stochastic, BlockFormat(scale_order=scale_order))


def _both_ways(recipe: Recipe, inputs: Sequence[torch.Tensor], before: str = "", scale: torch.Tensor | None = None) -> Results:
    shape, block = inputs[0].shape, recipe.tile_rows
    if len(shape) != 2 or shape[0] % block or shape[1] % block:
        raise WrongTensors(problem=f"a tensor of {tuple(shape)} does not divide into blocks of {block} x {block}", remedy="pad it")
    m, k = shape
    q, scales, column_q, column_scales = quantize(recipe, *(t.unflatten(0, (m // block, block)) for t in inputs), before=before, scale=scale)
    is_packed = isinstance(recipe, NvFp4BothWays)  # elements of columns have the layout [k, m]
    if is_packed:
        column_q = column_q.permute(2, 0, 1).reshape(k, m // 2)
    else:
        column_q = column_q.view(m, k)
        column_scales = column_scales if column_scales.dim() == 2 else column_scales.view(m // block, k)
    return q.view(m, k // 2 if is_packed else k), scales if scales.dim() == 2 else scales.view(m, k // block), column_q, column_scales


@checked
def mxfp4(x: torch.Tensor, layout: str = "rows", *, rounding: str = "up") -> Results:
    """Return (elements of e2m1, two to a byte, scales of e8m0 [..., k / 32])."""
    return quantize(Mx(FP4, layout_for("blocks", layout), BlockFormat(rounding=rounding)), x)


@checked
def nvfp4(
    x: torch.Tensor, global_scale: torch.Tensor | None = None, layout: str = "rows", *, scale_order: str = "nvfuser", is_stochastic: bool = False,
    hadamard: torch.Tensor | Sequence[int] | None = None, has_amax: bool = False,
) -> Results:  # fmt: skip
    """Return (elements of e2m1, two to a byte, scales of e4m3 [..., k / 16]), and the largest magnitude of x with has_amax.

    global_scale: the encode scale, see `nvfp4_global_scale`. layout: see `mxfp8`. hadamard: 16 signs: each block is transformed first, in the same kernel, see
    `hadamard_transform`.
    """
    signs = None if hadamard is None else _signs(x, hadamard)
    return quantize(_nvfp4(global_scale, layout, scale_order, is_stochastic, signs), x, scale=global_scale, has_amax=has_amax)


@checked
def hadamard_transform(x: torch.Tensor, signs: torch.Tensor | Sequence[int]) -> torch.Tensor:
    """Return each block of 16 neighbours of the last axis times diag(signs) H / 4, computed in Float, in x's type; its inverse is its transpose.

    Spreads outliers over a block before it is quantized. signs: 16 numbers, 1 or -1, constants in the kernel; a tensor is read by the host.
    Source: randomized Hadamard transforms of NVFP4 training recipes.
    """
    return _transform(torch_dtype_to_nvfuser_dtype(x.dtype), x.dim(), x.is_contiguous(), _signs(x, signs)).execute([x])[0]


def _signs(x: torch.Tensor, signs: torch.Tensor | Sequence[int]) -> tuple[int, ...]:
    """Return the signs as a tuple for the op. Errors: WrongTensors."""
    found = signs.flatten().tolist() if isinstance(signs, torch.Tensor) else list(signs)
    if not x.dim() or x.shape[-1] % 16 or len(found) != 16 or not all(sign in (1, -1) for sign in found):
        problem = f"a tensor of {tuple(x.shape)} with the signs {shown(found)} does not give blocks of 16 with a sign for each element"
        raise WrongTensors(problem=problem, remedy="use a last axis that 16 divides, and 16 signs, each 1 or -1")
    return tuple(int(sign) for sign in found)


@functools.lru_cache(maxsize=None)
def _transform(dtype: DataType, rank: int, is_contiguous: bool, signs: tuple[int, ...]) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1] * rank, contiguity=is_contiguous, dtype=dtype)
        fd.add_output(fd.ops.cast(fd.ops.block_hadamard(x, signs), dtype))
    return fd


def _nvfp4(
    global_scale: torch.Tensor | None, layout: str, scale_order: str = "nvfuser", is_stochastic: bool = False, signs: tuple[int, ...] | None = None
) -> NvFp4:  # fmt: skip
    return NvFp4(layout_for("blocks", layout), global_scale is not None, is_stochastic, BlockFormat(scale_order=scale_order), signs)


@checked
def nvfp4_global_scale(amax: torch.Tensor) -> torch.Tensor:
    """Return the encode scale of a tensor whose largest magnitude is `amax`: 448 * 6 / amax, 1 if that is not usable."""
    scale = (2688.0 / amax.float()).clamp(max=torch.finfo(torch.float32).max)
    return torch.where((amax == 0) | (scale == 0), torch.ones_like(scale), scale)
