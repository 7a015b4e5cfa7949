"""The corpus of `weft record`: named definitions at named sizes, of every scheduler and type.

A script may bring its own: a module with `CASES`, name -> (definition, shapes of its tensor inputs). Read first: `suite`.
"""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterator
from typing import Any

from ..api.definition import FusionDefinition
from ..dtypes import DataType
from ..errors import UserError

Case = tuple[FusionDefinition, list[tuple[int, ...]]]
BF16, FLOAT, HALF, DOUBLE = DataType.BFloat16, DataType.Float, DataType.Half, DataType.Double
TYPES = (BF16, FLOAT, HALF, DOUBLE)
SHAPES = ((1, 1), (37, 129), (128, 4096), (16384, 1024), (16384, 4096), (512, 32768), (40000, 20), (2048, 131072))


class NoCases(UserError):
    code = "W868"
    what = "{path} has no CASES: name -> (definition, shapes of its tensor inputs)"
    fix = "define it, or record the corpus `suite`"


def of_script(path: str) -> dict[str, Case]:
    """Return the cases of a script. Errors: NoCases."""
    found = runpy.run_path(path).get("CASES")
    if not isinstance(found, dict):
        raise NoCases(path=path)
    return found


def suite() -> dict[str, Case]:
    """Return the cases that come with the package."""
    return dict(_cases())


def _cases() -> Iterator[tuple[str, Case]]:
    for dtype in TYPES:
        for name, build in _PLAIN.items():
            for shape in SHAPES:
                yield f"{name} {dtype.name} {shape[0]}x{shape[1]}", (_defined(build, dtype, 1), [shape])
    for name, (build, inputs) in _SEVERAL.items():
        for shape in SHAPES:
            yield f"{name} BFloat16 {shape[0]}x{shape[1]}", (_defined(build, BF16, inputs), [shape] * inputs)
    for name, build in _NARROW.items():
        for shape in ((128, 4096), (16384, 4096), (33, 160)):
            yield f"{name} BFloat16 {shape[0]}x{shape[1]}", (_defined(build, BF16, 1), [shape])


def _defined(build: Callable[..., Any], dtype: DataType, inputs: int) -> FusionDefinition:
    with FusionDefinition() as fd:
        tensors = [fd.ops.cast(fd.define_tensor([-1, -1], contiguity=True, dtype=dtype), DOUBLE if dtype is DOUBLE else FLOAT) for _ in range(inputs)]
        results = build(fd, *tensors)
        for result in results if isinstance(results, tuple) else (fd.ops.cast(results, dtype),):
            fd.add_output(result)
    return fd


def _softmax(fd: Any, x: Any) -> Any:
    e = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, [1], True)))
    return fd.ops.div(e, fd.ops.sum(e, [1], True))


def _rms_norm(fd: Any, x: Any) -> Any:
    mean = fd.ops.mul(fd.ops.sum(fd.ops.mul(x, x), [1], True), 1.0 / 1024)
    return fd.ops.mul(x, fd.ops.rsqrt(fd.ops.add(mean, 1e-5)))


def _layer_norm(fd: Any, x: Any) -> Any:
    variance, mean = fd.ops.var_mean(fd.ops.cast(x, DataType.Float), [1], 0, True)
    return fd.ops.mul(fd.ops.sub(x, mean), fd.ops.rsqrt(fd.ops.add(variance, 1e-5)))


def _add_rms_norm(fd: Any, x: Any, y: Any) -> Any:
    total = fd.ops.add(x, y)
    return _rms_norm(fd, total), total


def _softmax_backward(fd: Any, g: Any, y: Any) -> Any:
    return fd.ops.mul(y, fd.ops.sub(g, fd.ops.sum(fd.ops.mul(g, y), [1], True)))


_PLAIN: dict[str, Callable[..., Any]] = {
    "gelu": lambda fd, x: fd.ops.mul(fd.ops.mul(x, 0.5), fd.ops.add(fd.ops.erf(fd.ops.mul(x, 0.7071)), 1.0)), "neg": lambda fd, x: fd.ops.neg(x),
    "row sums": lambda fd, x: fd.ops.sum(x, [1]), "column sums": lambda fd, x: fd.ops.sum(x, [0]), "sum": lambda fd, x: fd.ops.sum(x, [0, 1]),
    "softmax": _softmax, "rms norm": _rms_norm, "layer norm": _layer_norm,
    "columns": lambda fd, x: fd.ops.sub(x, fd.ops.mul(fd.ops.sum(x, [0], True), 0.01)), "transpose": lambda fd, x: fd.ops.permute(fd.ops.neg(x), [1, 0]),
}  # fmt: skip
_SEVERAL: dict[str, tuple[Callable[..., Any], int]] = {
    "silu and mul": (lambda fd, x, y: fd.ops.mul(fd.ops.silu(x), y), 2), "add rms norm": (_add_rms_norm, 2), "softmax backward": (_softmax_backward, 2),
}
_NARROW: dict[str, Callable[..., Any]] = {
    "nvfp4": lambda fd, x: fd.ops.nv_block_quantize(x), "nvfp4 in tiles": lambda fd, x: fd.ops.nv_block_quantize(x, None, True),
    "mxfp8": lambda fd, x: fd.ops.nv_block_quantize(x, None, False, 32, DataType.Float8_e4m3fn),
    "rms norm nvfp4": lambda fd, x: fd.ops.nv_block_quantize(_rms_norm(fd, x)), "fp8": lambda fd, x: (fd.ops.cast(x, DataType.Float8_e4m3fn),),
    "softmax fp4": lambda fd, x: (fd.ops.cast(_softmax(fd, x), DataType.Float4_e2m1fn),),
}  # fmt: skip
