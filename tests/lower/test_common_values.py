"""A register that is the same in all threads but only in some of them begins as zero, so that warps stay together (`weft.lower.common_values`)."""

from __future__ import annotations

import pytest
import torch
from fusion_check import poisoned_outputs

from weft import DataType, FusionDefinition
from weft.options import options

FLOAT = DataType.Float


def sums(points: int, width: int) -> FusionDefinition:
    """Of sigmoid(t[i] * u[j]) times `width` values (m[c] / count + v[j, c]) over j: m is the same for all rows i, which are threads."""
    with FusionDefinition() as fd:
        ops = fd.ops
        t, u = (fd.define_tensor([-1], contiguity=True, dtype=FLOAT) for _ in range(2))
        m, v = fd.define_tensor([width], contiguity=True, dtype=FLOAT), fd.define_tensor([-1, width], contiguity=True, dtype=FLOAT)
        count = fd.define_scalar(None, dtype=DataType.Double)
        weights = ops.sigmoid(ops.mul(ops.broadcast(t, [False, True]), ops.broadcast(u, [True, False])))
        rows = ops.add(ops.broadcast(ops.div(m, count), [True, False]), v)
        fd.add_output(ops.sum(ops.mul(ops.broadcast(weights, [False, False, True]), ops.broadcast(rows, [True, False, False])), [1]))
    return fd


def check(points: int, width: int, device: str) -> str:
    """Compare with float64; return the text of the kernels."""
    made = torch.Generator().manual_seed(points)
    inputs = [torch.randn(size, generator=made).to(device) for size in ((points,), (points,), (width,), (points, width))]
    fd = sums(points, width)
    with poisoned_outputs():
        (found,) = fd.execute([*inputs, points - 10.0])
    t, u, m, v = (x.double() for x in inputs)
    torch.testing.assert_close(found.double(), torch.sigmoid(t[:, None] * u) @ (m / (points - 10.0) + v), rtol=1e-5, atol=1e-4)
    return "\n".join(r.program.text for r in fd.fec.kernel_runtimes)  # type: ignore[attr-defined]


@pytest.mark.parametrize("points", [1, 7, 121, 130])
def test_values(points: int) -> None:
    with options(chip="H200"):
        check(points, 2, "cpu")


def test_they_begin_as_zero() -> None:
    """Two floats of m are loaded by the threads of rows, under a condition, and divided under another."""
    with options(chip="H200"):
        text = check(121, 2, "cpu")
    (loaded,) = [line for line in text.splitlines() if "load_global_vector<2" in line and line.rstrip(");").split(" + ")[0].endswith("T2")]
    name = loaded.split(">(")[1].split(",")[0]
    assert f"{name}.fill(0.f);" in text, text


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("points", [121, 130, 249])
def test_warps_stay_together(points: int) -> None:
    """Rows that are no multiple of a block's: the other lanes of the last warps hold what was in their registers before."""
    for _ in range(3):
        torch.randn(1 << 20, device="cuda").mul_(1e30).sum().item()
        check(points, 2, "cuda")
