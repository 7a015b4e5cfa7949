"""Scalars in CUDA text: literals, what becomes a parameter, index types."""

from __future__ import annotations

import random

import pytest
import torch
from fusion_check import poisoned_outputs

from weft import FusionDefinition
from weft.codegen.scalars import ScalarPrinter, is_host, literal
from weft.device.library import translation_unit
from weft.dtypes import DataType
from weft.expr import add, const, floordiv, less, mod, mul, var
from weft.ops.divisors import divisor_word
from weft.options import options
from weft.reference.torch_types import torch_dtype_to_nvfuser_dtype
from weft.runtime.nvrtc import compile_or_load
from weft.runtime.resources import disassemble

N = var("T0.size[0]", lower=1)
M = var("T0.size[1]", lower=1)
I = var("i3", extent=N)  # noqa: E741
BLOCK = var("blockIdx.x", extent=N)


@pytest.mark.parametrize(
    "value, dtype, text",
    [
        (1.5, DataType.Float, "1.5f"), (0.0, DataType.Float, "0.0f"), (0.5, DataType.Double, "0.5"), (-1.5, DataType.Float, "(-1.5f)"), (2.0, DataType.Double, "2.0"), (1e30, DataType.Float, "1e+30f"),
        (float("inf"), DataType.Float, "weft::infinity<float>()"), (-float("inf"), DataType.Double, "(-weft::infinity<double>())"),
        (float("nan"), DataType.Float, "weft::quiet_nan<float>()"),
        (True, DataType.Bool, "true"), (7, DataType.Int, "7LL"), (7, DataType.Int32, "7"), (-(1 << 63), DataType.Int, "(-9223372036854775807LL - 1LL)"),
        (1.0, DataType.BFloat16, "weft::convert<weft::bf16>(1.0f)"), (7, DataType.UInt64, "7ULL"),
    ],
)  # fmt: skip
def test_literals(value, dtype, text):
    assert literal(value, dtype) == text


def test_what_the_host_knows_is_one_parameter():
    printer = ScalarPrinter(DataType.Int32)
    assert is_host(mul(N, 4)) and not is_host(I) and not is_host(const(3))
    assert printer.index(add(I, mul(N, 4))) == printer.index(add(mul(N, 4), I))
    (param,) = printer.params.values()
    assert param.ctype == "int" and param.sym is mul(N, 4)


@pytest.mark.parametrize("index_type, ctype", [(DataType.Int32, "int"), (DataType.Int, "long long")])
def test_threads_and_parameters_have_the_index_type(index_type, ctype):
    printer = ScalarPrinter(index_type)
    assert f"({ctype})blockIdx.x" in printer.index(add(mul(BLOCK, 128), I))
    assert printer.condition(less(add(mul(BLOCK, 128), I), N)).startswith("((")
    assert {p.ctype for p in printer.params.values()} == {ctype}


def test_division_and_remainder():
    printer = ScalarPrinter(DataType.Int32)
    assert printer.index(floordiv(I, 7)) == "i3 / 7" and printer.index(mod(I, 7)) == "i3 % 7"
    assert not printer.divides


def quotients(values, divisor):
    """What the text of a kernel computes: the product of twice the index and the factor, without its lower word, shifted."""
    return [((2 * n & 0xFFFFFFFF) * (divisor & 0xFFFFFFFF) >> 32) >> (divisor >> 32) for n in values]


def test_sizes_are_divided_by_with_a_factor_of_the_host():
    printer = ScalarPrinter(DataType.Int32)
    index = add(mul(BLOCK, 128), I)
    assert printer.index(floordiv(index, M)).startswith("weft::quotient(") and printer.divides
    assert printer.index(mod(index, M)).startswith("weft::remainder(")
    words = [p for p in printer.params.values() if p.sym.op == "divisor"]
    assert len(words) == 1 and words[0].ctype == "unsigned long long" and words[0].sym.args == (M,)
    assert "quotient" in ScalarPrinter(DataType.Int32).index(floordiv(I, mul(M, N)))


@pytest.mark.parametrize("index", [add(I, -1), add(I, var("at1_T2", lower=-(1 << 62))), add(I, var("at1_T2"))], ids=["negative", "position", "not an index"])
def test_what_may_be_negative_is_divided_as_it_was(index):
    assert "quotient" not in ScalarPrinter(DataType.Int32).index(floordiv(index, M))


def test_indices_of_64_bits_are_divided_as_they_were():
    assert ScalarPrinter(DataType.Int).index(floordiv(I, M)) == "i3 / p0"


def test_factors_give_every_quotient():
    drawn = random.Random(7)
    sizes = [1, 2, 3, 7, 2**30, 2**30 + 1, 2**31 - 1, *(drawn.randrange(1, 1 << drawn.randrange(1, 32)) for _ in range(2000))]
    for size in sizes:
        last = (2**31 - 1) // size * size
        values = [n for n in (0, size - 1, size, last - 1, last, 2**31 - 1, drawn.randrange(2**31)) if 0 <= n < 2**31]
        assert quotients(values, divisor_word(size)) == [n // size for n in values], size
    assert divisor_word(0) == divisor_word(1 << 40) == 0  # nothing is divided by the first; the second is larger than each index


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("number", [float("inf"), -float("inf"), float("nan")], ids=str)
def test_numbers_that_are_not_finite_need_no_other_op(number: float, dtype: torch.dtype) -> None:
    """A selection alone takes nothing else from the library. Both compilers read the text, and no thread divides."""
    kind = torch_dtype_to_nvfuser_dtype(dtype)
    with FusionDefinition() as fd:
        mask, x = (fd.define_tensor([-1, -1], contiguity=True, dtype=t) for t in (DataType.Bool, kind))
        fd.add_output(fd.ops.where(mask, x, fd.define_scalar(number, dtype=kind)))
    chosen, values = torch.rand(5, 7) > 0.5, torch.randn(5, 7).to(dtype)
    with poisoned_outputs(), options(check="races"):
        (out,) = fd.execute([chosen, values])
    torch.testing.assert_close(out, torch.where(chosen, values, torch.tensor(number, dtype=dtype)), rtol=0, atol=0, equal_nan=True)
    (kernel,) = fd.fec.kernel_runtimes
    program = kernel.program
    compiled = compile_or_load(translation_unit(program.text, program.blocks, shortened=True), program.name, "sm_90a")
    assert "MUFU.RCP" not in (disassemble(compiled.cubin) or "")
