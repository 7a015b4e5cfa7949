"""Every pointwise op in every type: the text compiles for the GPU, and computes torch's values in the emulator."""

from __future__ import annotations

import functools

import pytest
import torch
from pointwise_kernels import COMPUTE_TYPES, STORAGE, THREADS, Case, all_cases, operands, unit

from weft.dtypes import DataType
from weft.emulator.launch import Buffer, EmulatedKernel, Scalar
from weft.runtime.nvrtc import compile_cubin


@pytest.mark.parametrize("compute", COMPUTE_TYPES, ids=lambda t: t.name)
def test_all_texts_of_a_type_compile_for_the_gpu(compute: DataType) -> None:
    text = unit(compute)
    compiled = compile_cubin(text, text.split('extern "C" __global__ void ')[1].split("(")[0], "sm_90a")
    warnings = [line for line in compiled.log.splitlines() if "warning #" in line and "declared but never referenced" not in line]
    assert not warnings


@functools.lru_cache(maxsize=None)
def emulated(compute: DataType, entry: str) -> EmulatedKernel:
    return EmulatedKernel(unit(compute), entry)


def run(case: Case, inputs: list[torch.Tensor]) -> torch.Tensor:
    count = inputs[0].numel()
    out = torch.zeros(count, dtype=STORAGE[case.out])
    buffers = [Buffer.of(x, f"input {i}") for i, x in enumerate(inputs)]
    emulated(case.compute, case.entry).launch(
        (1, 1, 1), (THREADS, 1, 1), 0, [*buffers, Buffer.of(out, "out", written=True), Scalar("int", count)]
    )
    return out


def reference(case: Case, inputs: list[torch.Tensor]) -> torch.Tensor:
    """The op in float64 on the very operands; integers and bool in their own type. nextafter depends on the type, so it stays in it."""
    wide = {torch.float32: torch.float64, torch.complex64: torch.complex128}
    return case.op.ref(*(inputs if case.op.name == "nextafter" else [x.to(wide.get(x.dtype, x.dtype)) for x in inputs]))


# Values where the op's error bound is not relative to the result: next to zeros of the function, and where fmod's quotient has more bits than a float64.
def _slack(case: Case, inputs: list[torch.Tensor], expected: torch.Tensor) -> torch.Tensor:
    epsilon = 2.0**-23 if case.compute in (DataType.Float, DataType.ComplexFloat) else 2.0**-52
    size = expected.abs().nan_to_num(posinf=0.0)
    slack = (case.op.ulp + 1.0) * epsilon * size + 2.0**-126
    if case.op.name == "lgamma":
        slack = slack + 8 * epsilon
    if case.op.name == "lerp":  # cancellation: relative to the operands
        slack = slack + 4 * epsilon * torch.stack([x.abs() for x in inputs]).nan_to_num(posinf=0.0).amax(0).double() ** 2
    if case.compute.is_complex:
        slack = slack + 30 * epsilon * (1 + size)
    return slack


@pytest.mark.parametrize("case", [c for c in all_cases() if c.compute in STORAGE], ids=lambda c: f"{c.op.name}-{c.compute.name}")
def test_values_in_the_emulator(case: Case) -> None:
    inputs = operands(case)
    got, expected = run(case, inputs), reference(case, inputs)
    assert got.dtype == STORAGE[case.out]
    if not (got.is_floating_point() or got.is_complex()):
        wrong = got != expected.to(got.dtype)
    else:
        expected_rounded = expected.to(got.dtype)
        near = (got.to(expected.dtype) - expected).abs() <= _slack(case, inputs, expected)
        same = (got == expected_rounded) | (got.isnan() & expected_rounded.isnan())
        wrong = ~(near | same)
    first = torch.nonzero(wrong)[:5, 0]
    shown = [(*(x[i].item() for x in inputs), "->", got[i].item(), "not", expected[i].item()) for i in first]
    assert not wrong.any(), f"{int(wrong.sum())} of {wrong.numel()} values are wrong: {shown}"
