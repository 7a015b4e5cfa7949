"""Integers of 32 bits that a constant operand negates: ptxas of CUDA 13.0 loses such a negation in front of a minimum of three, so the text hides it from the compiler."""

from __future__ import annotations

import re

import pytest
import torch

from weft import DataType, FusionDefinition
from weft.device.library import translation_unit
from weft.ops.registry import lookup
from weft.runtime.nvrtc import compile_cubin
from weft.runtime.resources import disassemble, disassembler

NEGATIONS = [
    ("neg", ["{}"]), ("sub", ["0", "{}"]), ("mul", ["{}", "-1"]), ("mul", ["-1", "{}"]), ("mul", ["{}", "-4"]), ("mul", ["-8", "{}"]),
    ("div", ["{}", "-1"]), ("div", ["{}", "-4"]),
]  # fmt: skip
OTHERS = [("sub", ["1", "{}"]), ("sub", ["{}", "0"]), ("mul", ["{}", "-3"]), ("mul", ["{}", "4"]), ("mul", ["{}", "(-2147483647 - 1)"]), ("div", ["{}", "-7"]), ("mul", ["{}", "p"])]


def text_of(op: str, args: list[str], value: str, dtype: DataType = DataType.Int32) -> str:
    return lookup(op).cuda([a.format(value) for a in args], dtype)


@pytest.mark.parametrize("op, args", NEGATIONS, ids=str)
def test_the_machine_code_negates_each_operand_of_a_minimum(op: str, args: list[str]) -> None:
    """Four values, four complements: NVRTC and ptxas of any version may not turn them back into negations."""
    if disassembler() is None:
        pytest.skip("no nvdisasm")
    values = "".join(f"  const int v{k} = {text_of(op, args, f'a[threadIdx.x + {32 * k}]')};\n" for k in range(4))
    folded = "weft::int_min<int>(weft::int_min<int>(weft::int_min<int>(v0, v1), v2), v3)"
    kernel = f'extern "C" __global__ void kernel(const int* a, int* o) {{\n{values}  o[threadIdx.x] = {folded};\n}}\n'
    sass = disassemble(compile_cubin(translation_unit(kernel, lookup(op).blocks_for(DataType.Int32)), "kernel", "sm_90a").cubin) or ""
    assert len(re.findall(r"LOP3\.LUT R\d+, RZ, R\d+, RZ, 0x33,", sass)) == 4, sass


@pytest.mark.parametrize("op, args", OTHERS, ids=str)
def test_other_constants_are_written_as_they_are(op: str, args: list[str]) -> None:
    assert "int_neg" not in text_of(op, args, "x")
    for negating, of in NEGATIONS[1:]:
        assert "int_neg" not in text_of(negating, of, "x", DataType.Int) and "int_neg" not in text_of(negating, of, "x", DataType.Float)


def test_minima_of_negated_integers_are_right() -> None:
    x = torch.randint(-(2**31), 2**31 - 1, (5, 37), dtype=torch.int32)
    x[0, :3] = torch.tensor([-(2**31), 2**31 - 1, 0], dtype=torch.int32)
    with FusionDefinition() as fd:
        t, o = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Int32), fd.ops
        for value in (o.sub(0, t), o.mul(t, -1), o.mul(-4, t), o.div(t, -1), o.div(t, -4), o.mul(t, -3)):
            fd.add_output(o.min(value, [1]))
            fd.add_output(o.maximum(value, t))
    truncated = [torch.div(x.long(), d, rounding_mode="trunc").int() for d in (-1, -4)]
    for n, wanted in enumerate([-x, -x, x * -4, *truncated, x * -3]):
        results = fd.execute([x])[2 * n : 2 * n + 2]
        assert torch.equal(results[0], wanted.amin(1)) and torch.equal(results[1], torch.maximum(wanted, x))
