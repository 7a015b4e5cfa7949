"""Max and sum of exponentials in one pass: the pattern, the kernels, and values that are infinite or no number."""

from __future__ import annotations

import pytest
import torch

import weft
from weft import DataType, FusionDefinition
from weft.schedule.online_softmax import exp_sums

TORCH = {DataType.Float: torch.float32, DataType.BFloat16: torch.bfloat16, DataType.Half: torch.float16, DataType.Double: torch.float64}


def logsumexp(fd: FusionDefinition, x, dims, *, keepdim: bool = False):  # noqa: ANN001, ANN201
    """log(sum(exp(x - max))) + max, as a user writes it."""
    largest = fd.ops.max(x, dims=dims, keepdim=True)
    total = fd.ops.sum(fd.ops.exp(x - largest), dims=dims, keepdim=keepdim)
    return fd.ops.log(total) + (largest if keepdim else fd.ops.squeeze(largest, dims=dims))


def defined(dtype: DataType, rank: int = 2, dims: tuple[int, ...] = (1,), contiguity: bool = True) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1] * rank, contiguity=contiguity, dtype=dtype)
        wide = fd.ops.cast(x, dtype=DataType.Float) if dtype in (DataType.BFloat16, DataType.Half) else x
        fd.add_output(logsumexp(fd, wide, list(dims)))
    return fd


def run(fd: FusionDefinition, inputs: list[torch.Tensor], is_online: bool = True) -> list[torch.Tensor]:
    """Run with all checks, and say whether the kernel folds both together."""
    out = fd.execute(inputs, check="races")
    text = "\n".join(runtime.program.text for runtime in fd.fec.kernel_runtimes)
    assert ("FoldMaxSum" in text) is is_online
    return out


@pytest.mark.parametrize("dtype", [DataType.Float, DataType.BFloat16, DataType.Double])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 1), (1, 7), (5, 33), (2, 1000), (3, 4099), (7, 2048)])
def test_logsumexp_reads_its_rows_once(dtype: DataType, rows: int, columns: int) -> None:
    x = (torch.randn(rows, columns, generator=torch.Generator().manual_seed(columns)) * 8).to(TORCH[dtype])
    (y,) = run(defined(dtype), [x])
    roundoff = 2.0**-53 if dtype is DataType.Double else 2.0**-24
    wanted = torch.logsumexp(x.double(), 1)
    assert ((y.double() - wanted).abs() <= roundoff * (4 * wanted.abs() + 64)).all()
