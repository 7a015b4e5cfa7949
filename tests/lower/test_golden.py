"""Whole texts of four kernels. After a change that is meant: `UPDATE_GOLDEN=1 python -m pytest tests/lower/test_golden.py`, and read the difference."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import torch

from weft import DataType, FusionDefinition
from weft.compiler import program_of_scheduled
from weft.ir.enums import MemoryType, ParallelType
from weft.ir.values import ReductionOp
from weft.schedule.caching import cache_after, cache_and_fork_outputs, cache_inputs
from weft.schedule.inline import inline_to
from weft.schedule.primitives import merge, rfactor, set_memory_type, split
from weft.schedule.propagate import parallelize_like, transform_like
from weft.schedule.recompute import recompute_chain

GOLDEN = Path(__file__).parent / "golden"
P = ParallelType


def parts(fd: FusionDefinition):
    fusion = fd.fusion
    inputs, outputs = cache_inputs(fusion), cache_and_fork_outputs(fusion)
    return fusion, inputs, outputs, [e.outputs[0] for e in fusion.tensor_exprs() if isinstance(e, ReductionOp)]


def finish(fusion, reference, *vectors):
    transform_like(reference)
    parallelize_like(reference)
    for tensor in vectors:
        tensor.axis(-1).parallelize(P.vectorize)
    inline_to(fusion, {t: 1 if t.memory_type is MemoryType.shared else len(t.get_loop_domain()) for t in fusion.tensors()})
    return fusion


def pointwise_1d():
    with FusionDefinition() as fd:
        x, bias = fd.define_tensor([-1, 64], contiguity=True), fd.define_tensor([64], contiguity=True)
        fd.add_output(fd.ops.relu(fd.ops.add(x, bias)))
    fusion, inputs, outputs, _ = parts(fd)
    reference = outputs[0][1]
    merge(reference, 0, 1)
    split(split(reference, 0, 4), 0, 128)
    reference.axis(0).parallelize(P.grid_x)
    reference.axis(1).parallelize(P.block_x)
    return finish(fusion, reference, inputs[0][1], reference)


def softmax(fd: FusionDefinition) -> None:
    x = fd.ops.cast(fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.BFloat16), DataType.Float)
    e = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, [1], True)))
    fd.add_output(fd.ops.cast(fd.ops.div(e, fd.ops.sum(e, [1], True)), DataType.BFloat16))


def softmax_register():
    """[BIDx | batches, TIDx, vector]: the row stays in registers."""
    with FusionDefinition() as fd:
        softmax(fd)
    fusion, inputs, outputs, (first, second) = parts(fd)
    split(first, 1, 8)
    split(first, 1, 4, False)
    transform_like(first)
    partial, _ = rfactor(first, [1, 3]), rfactor(second, [1, 3])
    partial.axis(0).parallelize(P.grid_x)
    partial.axis(2).parallelize(P.block_x)
    partial.axis(2).pad_to_multiple_of_warp()
    return finish(fusion, partial, inputs[0][1], outputs[0][1])


def softmax_shared():
    """[BIDx | serial, TIDx]: the row passes through shared memory."""
    with FusionDefinition() as fd:
        softmax(fd)
    fusion, inputs, _, (first, second) = parts(fd)
    source, cache = inputs[0]
    set_memory_type(cache, MemoryType.shared)
    row = first.definition().tensor_inputs[0]
    again = [u for u in row.uses() if not isinstance(u, ReductionOp)]
    for use in again:  # the difference reads the row again from shared memory
        recompute_chain(row, use)
    exponential = second.definition().tensor_inputs[0]
    kept = cache_after(exponential, cached_uses=[u for u in exponential.uses() if not isinstance(u, ReductionOp)])
    set_memory_type(kept, MemoryType.shared)
    split(first, 1, 128)
    transform_like(first)
    partial, _ = rfactor(first, [1]), rfactor(second, [1])
    partial.axis(0).parallelize(P.grid_x)
    partial.axis(2).parallelize(P.block_x)
    return finish(fusion, partial)


def column_sum():
    """columns [BIDx, TIDx]   rows [BIDy, serial, TIDy]: the last block of a column adds what all found."""
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.sum(fd.define_tensor([-1, -1], contiguity=True), [0]))
    fusion, _, _, (total,) = parts(fd)
    split(total, 1, 32)
    split(total, 0, 16)
    split(total, 0, 4, False)
    partial = rfactor(total, [1])
    for position, kind in ((0, P.grid_y), (2, P.block_y), (3, P.grid_x), (4, P.block_x)):
        partial.axis(position).parallelize(kind)
    return finish(fusion, partial)


KERNELS = {f.__name__: (f, inputs) for f, inputs in (
    (pointwise_1d, [torch.randn(9, 64), torch.randn(64)]),
    (softmax_register, [torch.randn(3, 1000).bfloat16()]),
    (softmax_shared, [torch.randn(3, 1000).bfloat16()]),
    (column_sum, [torch.randn(150, 70)]),
)}  # fmt: skip


@pytest.mark.parametrize("name", KERNELS)
def test_the_text_of_a_kernel(name: str) -> None:
    text = program_of_scheduled(KERNELS[name][0](), DataType.Int32, name=name).text
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
    fusion = make()
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
            softmax(fd)
    return fd.fusion
