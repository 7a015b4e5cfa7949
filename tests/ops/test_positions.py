"""argmax and argmin in kernels: along rows and columns, ties and values that are no number as in torch."""

from __future__ import annotations

import pytest
import torch

from weft import DataType, FusionDefinition
from weft.errors import UserError

NAMES = {torch.float32: DataType.Float, torch.bfloat16: DataType.BFloat16, torch.float64: DataType.Double, torch.int64: DataType.Int, torch.int32: DataType.Int32}


def check(op: str, x: torch.Tensor, dim: int | None, keepdim: bool = False, contiguity: object = True) -> str:
    """Compare with torch, and with the reference; return the kernels' text."""
    with FusionDefinition() as fd:
        t = fd.define_tensor(shape=[-1] * x.dim(), contiguity=contiguity, dtype=NAMES[x.dtype])
        fd.add_output(getattr(fd.ops, op)(t, dim, keepdim))
    (y,) = fd.validate([x])
    wanted = getattr(torch, op)(x.float() if x.dtype is torch.bfloat16 else x, dim, keepdim) if dim is not None else getattr(torch, op)(x, keepdim=keepdim)
    assert y.dtype is torch.int64 and torch.equal(y, wanted)
    return "\n".join(runtime.program.text for runtime in fd.fec.kernel_runtimes)


@pytest.fixture(autouse=True)
def _checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CHECK", "races")


@pytest.mark.parametrize(("shape", "dim"), [((5, 33), 1), ((3, 2050), 1), ((33, 40), 0), ((3, 17, 6), 1), ((7, 1), 1), ((1, 9), 0), ((4, 5, 6), None)])
def test_positions_are_torchs(shape: tuple[int, ...], dim: int | None) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    assert "FoldWithIndex" in check("argmax", x, dim) or 1 in shape
    check("argmin", (x * 4).round().to(torch.int64), dim, keepdim=True)  # many ties


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int32])
def test_types_of_two_to_eight_bytes(dtype: torch.dtype) -> None:
    x = (torch.randn(4, 300, generator=torch.Generator().manual_seed(2)) * 50).to(dtype)
    check("argmax", x, 1)
    check("argmin", x, 0)


def test_values_that_are_no_number_come_first() -> None:
    x = torch.randn(6, 700)
    x[0, 7] = x[0, 600] = float("nan")
    x[1], x[2] = -float("inf"), float("inf")
    x[3, 5] = x[3, 400] = 100.0
    x[4], x[5, 3], x[5, 9] = float("nan"), 0.0, -0.0
    check("argmax", x, 1)
    check("argmin", x, 1)
    check("argmax", x.t().contiguous(), 0)


def test_expanded_axes_rows_apart_and_sizes_found_at_run_time() -> None:
    x = torch.randn(1, 40)
    check("argmax", x.expand(6, 40), 0, contiguity=[None, True])
    check("argmax", x.expand(6, 40), 1, contiguity=[None, True])
    check("argmax", torch.randn(6, 80)[:, 3:43], 1, contiguity=[False, True])
    with FusionDefinition() as fd:
        t = fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=DataType.Float)
        fd.add_output(fd.ops.argmax(fd.ops.reshape(t, [-1, 4]), 1))
        fd.add_output(fd.ops.argmax(fd.ops.slice(t, [0, 0], [t.size(0), 1]), 1))
    y = torch.randn(3, 8)
    a, b = fd.execute([y])
    assert torch.equal(a, y.reshape(-1, 4).argmax(1)) and torch.equal(b, torch.zeros(3, dtype=torch.int64))


def test_no_rows_and_nothing_to_choose_from() -> None:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.argmax(fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=DataType.Float), 1))
    assert fd.execute([torch.zeros(0, 5)])[0].shape == (0,)
    with pytest.raises(UserError, match="W744: max_index"):
        fd.execute([torch.zeros(5, 0)])


def test_a_row_is_normalized_and_its_largest_is_found_in_one_kernel() -> None:
    x = torch.randn(5, 130)
    with FusionDefinition() as fd:
        t = fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=DataType.Float)
        shares = fd.ops.exp(t - fd.ops.max(t, [1], True))
        shares = shares / fd.ops.sum(shares, [1], True)
        fd.add_output(shares)
        fd.add_output(fd.ops.argmax(shares, 1))
    shares, found = fd.execute([x], check="races")
    torch.testing.assert_close(shares, torch.softmax(x, 1))
    assert torch.equal(found, x.argmax(1)) and len(fd.fec.kernel_runtimes) == 1
