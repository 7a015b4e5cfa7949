"""Whole texts of four kernels. After a change that is meant: `UPDATE_GOLDEN=1 python -m pytest tests/lower/test_golden.py`, and read the difference."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import torch

from weft import DataType, FusionDefinition
from weft.check import kernels
from weft.compiler import program_of_scheduled

GOLDEN = Path(__file__).parent / "golden"
KERNELS = {name: (define, inputs) for define, name, inputs in (
    (kernels.pointwise, "pointwise_1d", [torch.randn(9, 64), torch.randn(64)]),
    (kernels.softmax_registers, "softmax_register", [torch.randn(3, 1000).bfloat16()]),
    (kernels.softmax_shared, "softmax_shared", [torch.randn(3, 1000).bfloat16()]),
    (kernels.column_sum, "column_sum", [torch.randn(150, 70)]),
)}  # fmt: skip


@pytest.mark.parametrize("name", KERNELS)
def test_the_text_of_a_kernel(name: str) -> None:
    text = program_of_scheduled(KERNELS[name][0]()[0], DataType.Int32, name=name).text
    path = GOLDEN / f"{name}.cu"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("index_type", [DataType.Int32, DataType.Int])
@pytest.mark.parametrize("name", KERNELS)
def test_the_kernel_is_right(name: str, index_type: DataType) -> None:
    from weft.options import options
    from weft.reference.interpreter import evaluate
    from weft.runtime.kernel_executor import KernelExecutor

    make, inputs = KERNELS[name]
    fusion, _ = make()
    executor = KernelExecutor()
    with options(check="races"):
        executor.compile(fusion, inputs, compile_params=type("Params", (), {"index_type": index_type})())
        (output,) = executor.run(inputs)
    (unscheduled,) = evaluate(plain(name), inputs)
    torch.testing.assert_close(output.double(), unscheduled, atol=2e-2 if name.startswith("softmax") else 1e-4, rtol=1e-2)
    program = executor.kernel_runtimes[0].program
    assert program.index_type is index_type
    if index_type is DataType.Int:
        assert not re.search(r"\(int\)|\bint i\d|const int p", program.text), "an index in 32 bits"


def plain(name: str):
    """The fusion of a kernel without its schedule."""
    with FusionDefinition() as fd:
        if name == "pointwise_1d":
            x, bias = fd.define_tensor([-1, 64], contiguity=True), fd.define_tensor([64], contiguity=True)
            fd.add_output(fd.ops.relu(fd.ops.add(x, bias)))
        elif name == "column_sum":
            fd.add_output(fd.ops.sum(fd.define_tensor([-1, -1], contiguity=True), [0]))
        else:
            kernels.softmax(fd)
    return fd.fusion
