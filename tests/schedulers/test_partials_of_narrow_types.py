"""Reductions over several blocks of types of one and two bytes: right in the emulator, and a text that NVRTC takes, which no GPU is needed for."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from weft import DataType, FusionDefinition
from weft.arch import H100
from weft.options import current, options
from weft.reference.interpreter import evaluate
from weft.reference.torch_types import torch_dtype
from weft.reference.tolerance import get_val_tolerances
from weft.runtime import engines, nvrtc

pytestmark = pytest.mark.skipif(not nvrtc.candidates(), reason="no NVRTC")

D = DataType
FOLDS = ("max", "min", "sum", "prod", "any", "all", "argmax", "argmin", "topk")
CASES = [
    *((dtype, fold, [0], (131_075,)) for dtype in (D.Bool, D.Byte, D.Char, D.Half, D.BFloat16, D.Float8_e4m3fn, D.Float8_e5m2) for fold in FOLDS),
    *((dtype, fold, dims, shape) for dtype in (D.Bool, D.BFloat16) for fold in ("max", "all") for dims, shape in (([0], (60_001, 3)), ([1], (3, 131_075)))),
]
REFUSED = {
    **{(D.Bool, fold): "no order of bools" for fold in ("argmax", "argmin", "topk")},
    **{(dtype, fold): "no cast to Bool" for dtype in (D.Float8_e4m3fn, D.Float8_e5m2) for fold in ("any", "all")},
    **{(dtype, "topk"): "torch runs it" for dtype in (D.Byte, D.Char, D.Float8_e4m3fn, D.Float8_e5m2)},
}
"""What no kernel folds."""


def folded(fd: FusionDefinition, x: Any, fold: str, dims: list[int]) -> list[Any]:
    if fold == "topk":
        return list(fd.ops.topk(x, 3, dims[0], True, True))
    return [getattr(fd.ops, fold)(x, dims[0] if fold in ("argmax", "argmin") else dims)]


def elements(dtype: DataType, shape: tuple[int, ...]) -> torch.Tensor:
    """Numbers of which a few stand out, in the second half: all() and any() depend on another block than the first, and products stay finite."""
    x = torch.ones(shape) if dtype is not D.Bool else torch.ones(shape, dtype=torch.bool)
    x.view(-1)[-77] = 0
    if dtype is not D.Bool:
        x.view(-1)[-99], x.view(-1)[-1000], x.view(-1)[-5000] = 3, 2, 1.5
    return x.to(torch_dtype(dtype))


@pytest.mark.parametrize("dtype, fold, dims, shape", [case for case in CASES if case[:2] not in REFUSED], ids=str)
def test_partial_results_pass_between_blocks(dtype: DataType, fold: str, dims: list[int], shape: tuple[int, ...]) -> None:
    with FusionDefinition() as fd:
        for out in folded(fd, fd.define_tensor([-1] * len(shape), contiguity=True, dtype=dtype), fold, dims):
            fd.add_output(out)
    inputs, programs = [elements(dtype, shape)], []
    wanted = evaluate(fd.fusion, inputs)
    engines.watchers.append(lambda call: programs.append(call.program))
    try:
        with options(strict_schedules=True):
            outputs = fd.execute(inputs)
    finally:
        engines.watchers.pop()
    for out, expected, (absolute, relative) in zip(outputs, wanted, get_val_tolerances(fd.fusion, inputs), strict=True):
        torch.testing.assert_close(out.to(expected.dtype), expected, atol=absolute, rtol=relative)
    assert any("arrive_grid" in program.text or "reduce_grid" in program.text for program in programs)
    for program in programs:
        engines.machine_code(H100, program, current())
