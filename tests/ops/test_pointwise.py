"""Every pointwise op in every type: the text compiles for the GPU, and computes torch's values in the emulator and, where there is one, on the GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from engines import first_entry, run_emulated, run_on_gpu
from fusion_check import poisoned_outputs
from pointwise_kernels import COMPUTE_TYPES, STORAGE, Case, all_cases, operands, register_unit, unit

from weft import FusionDefinition
from weft.dtypes import DataType
from weft.emulator import EmulatedKernel
from weft.ops.registry import OPS, lookup
from weft.runtime.nvrtc import compile_cubin

NUMERIC = [case for case in all_cases() if case.compute in STORAGE]
ON_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


KNOWN_WARNINGS = ("declared but never referenced", "pointless comparison of unsigned integer with zero")
"""The second is what NVRTC 13.0 says of templates for integers of either kind."""


@pytest.mark.parametrize("compute", COMPUTE_TYPES, ids=lambda t: t.name)
def test_all_texts_of_a_type_compile_for_the_gpu(compute: DataType) -> None:
    text = unit(compute)
    compiled = compile_cubin(text, first_entry(text), "sm_90a")
    warnings = [line for line in compiled.log.splitlines() if "warning #" in line and not any(known in line for known in KNOWN_WARNINGS)]
    assert not warnings


@pytest.mark.parametrize("compute", COMPUTE_TYPES, ids=lambda t: t.name)
def test_texts_take_elements_of_register_arrays(compute: DataType) -> None:
    text = register_unit(compute)
    EmulatedKernel(text, first_entry(text), check="races")
    compile_cubin(text, first_entry(text), "sm_90a")


def reference(case: Case, inputs: list[torch.Tensor]) -> torch.Tensor:
    """The op in float64 on the very operands; integers and bool in their own type. nextafter and bitcast depend on the type, so they stay in it."""
    wide = {torch.float32: torch.float64, torch.complex64: torch.complex128}
    return case.op.ref(*(inputs if case.op.name in ("nextafter", "bitcast") else [x.to(wide.get(x.dtype, x.dtype)) for x in inputs]))


def allowed_error(case: Case, inputs: list[torch.Tensor], expected: torch.Tensor) -> torch.Tensor:
    """The op's ulps and one for the rounding; where an op's bound is not relative to its result (zeros, cancellation), what it is relative to."""
    epsilon = 2.0**-23 if case.compute in (DataType.Float, DataType.ComplexFloat) else 2.0**-52
    size = expected.abs().nan_to_num(posinf=0.0)
    allowed = (case.op.ulp + 1.0) * epsilon * size + 2.0**-126  # denormals may be flushed to zero
    if case.op.name == "silu":  # x times a flushed sigmoid, which happens for x near -100
        allowed = allowed + 2.0**-119
    if case.op.name == "lgamma":
        allowed = allowed + 8 * epsilon
    if case.op.name in ("digamma", "trigamma"):  # for negative x what is reflected has a pole at each integer, near which a rounded x is farther from it
        x = inputs[0].double()
        apart = (x - x.round()).abs().clamp(min=1e-30)
        pole = torch.where(x < 0.5, 1 / apart, 0.0)
        allowed = allowed + 8 * epsilon * (1 + (pole if case.op.name == "digamma" else pole * pole))
    if case.op.name == "lerp":
        allowed = allowed + 4 * epsilon * torch.stack([x.abs() for x in inputs]).nan_to_num(posinf=0.0).amax(0).double() ** 2
    if case.compute.is_complex:
        allowed = allowed + 30 * epsilon * (1 + size)
    return allowed


def check_values(case: Case, inputs: list[torch.Tensor], got: torch.Tensor) -> None:
    expected = reference(case, inputs)
    assert got.dtype == STORAGE[case.out]
    if got.is_floating_point() or got.is_complex():
        rounded = expected.to(got.dtype)
        near = (got.to(expected.dtype) - expected).abs() <= allowed_error(case, inputs, expected)
        wrong = ~(near | (got == rounded) | (got.isnan() & rounded.isnan()))
    else:
        wrong = got != expected.to(got.dtype)
    first = torch.nonzero(wrong)[:5, 0]
    shown = [(*(x[i].item() for x in inputs), "->", got[i].item(), "not", expected[i].item()) for i in first]
    assert not wrong.any(), f"{int(wrong.sum())} of {wrong.numel()} values are wrong: {shown}"


@pytest.mark.parametrize("case", NUMERIC, ids=lambda c: f"{c.op.name}-{c.compute.name}")
def test_values_in_the_emulator(case: Case) -> None:
    inputs = operands(case)
    check_values(case, inputs, run_emulated(case, inputs))


@pytest.mark.gpu
@ON_GPU
@pytest.mark.parametrize("case", NUMERIC, ids=lambda c: f"{c.op.name}-{c.compute.name}")
def test_values_on_the_gpu(case: Case) -> None:
    inputs = operands(case)
    check_values(case, inputs, run_on_gpu(case, inputs))


@pytest.mark.parametrize(
    ("exponent", "text"),
    [
        ("2.0f", "weft::square<float>(x)"),
        ("3.0f", "weft::cube<float>(x)"),
        ("0.5f", "weft::sqrt(x)"),
        ("(-0.5f)", "weft::rsqrt(x)"),
        ("(-1.0f)", "weft::reciprocal(x)"),
        ("8.0f", "weft::whole_power<8, float>(x)"),
        ("9.0f", "weft::pow(x, 9.0f)"),
        ("2.5f", "weft::pow(x, 2.5f)"),
        ("y", "weft::pow(x, y)"),
    ],
)
def test_special_exponents_need_no_logarithm(exponent: str, text: str) -> None:
    assert lookup("pow").cuda(["x", exponent], DataType.Float) == text


def every_float(step: int) -> torch.Tensor:
    """All `step`-th float32 bit patterns but NaNs."""
    x = torch.arange(-(2**31), 2**31, step, dtype=torch.int64).to(torch.int32).view(torch.float32)
    return x[~x.isnan()]


OWN_FUNCTIONS = ("tanh", "sigmoid", "silu", "reciprocal", "rsqrt", "exp", "expm1", "erf", "log", "log1p", "erfinv")


@pytest.mark.parametrize("name", OWN_FUNCTIONS)
def test_accuracy_over_all_magnitudes_in_the_emulator(name: str) -> None:
    case, inputs = Case(lookup(name), DataType.Float), [every_float(1 << 14)]
    check_values(case, inputs, run_emulated(case, inputs))


@pytest.mark.parametrize("exponent", [5, 6, 7, 8])
def test_whole_powers_of_all_magnitudes(exponent: int) -> None:
    """n factors are off by less than n / 2 units in the last place of float32; signs, infinities and what no float holds are as in float64."""
    x = every_float(1 << 14)
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.pow(fd.define_tensor([-1], contiguity=True), float(exponent)))
    with poisoned_outputs():
        given = fd.execute([x])[0].double()
    exact = x.double() ** exponent
    is_finite = exact.abs() < 3.3e38
    unit = torch.finfo(torch.float32).eps * exact.abs()
    assert float(((given - exact).abs() / (exponent / 2 * unit + 1.2e-38))[is_finite].max()) <= 1
    assert torch.equal(given[exact.float().isinf()], exact.float()[exact.float().isinf()].double())
    assert torch.equal(given.signbit(), exact.signbit())


NARROW_FUNCTIONS = [name for name, op in OPS.items() if "narrow" in op.text]
NARROW_ERROR = 1e-5
"""Relative, what `OpDef.text["narrow"]` promises: a thousandth of what rounding to bfloat16 leaves, a fiftieth of what rounding to half leaves."""


def check_narrow(name: str, run: Callable[[Case, list[torch.Tensor]], torch.Tensor], step: int) -> None:
    """Run the narrow formula over floats of all magnitudes, two operands in pairs at random; denormal results may be flushed."""
    op, x = lookup(name), every_float(step)
    operands = [x, *(x[torch.randperm(len(x))] for _ in range(1, op.arity))]
    given = run(Case(replace(op, text={"real": op.text["narrow"]}), DataType.Float), operands).double()
    exact = op.ref(*(operand.double() for operand in operands))
    is_finite = exact.abs() < 3.3e38
    scale = x.double().abs().clamp(min=1) if op.arity == 1 else 1  # of what a flushed denormal is multiplied with
    error = (given - exact).abs() / (NARROW_ERROR * exact.abs() + 1.2e-38 * scale)
    assert float(error[is_finite].max()) <= 1
    assert torch.equal(given[exact.isinf()], exact[exact.isinf()])


@pytest.mark.parametrize("name", NARROW_FUNCTIONS)
def test_accuracy_of_narrow_formulas_in_the_emulator(name: str) -> None:
    check_narrow(name, run_emulated, 1 << 14)


@pytest.mark.gpu
@ON_GPU
@pytest.mark.parametrize("name", NARROW_FUNCTIONS)
def test_accuracy_of_narrow_formulas_on_the_gpu(name: str) -> None:
    check_narrow(name, run_on_gpu, 1 << 9)


@pytest.mark.gpu
@ON_GPU
@pytest.mark.parametrize("name", OWN_FUNCTIONS)
def test_accuracy_over_all_magnitudes_on_the_gpu(name: str) -> None:
    case, inputs = Case(lookup(name), DataType.Float), [every_float(1 << 9)]
    check_values(case, inputs, run_on_gpu(case, inputs))
