"""Tables of sines and cosines that rows share: computed once and stored, where each row would compute them again. Beside torch in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from fusion_check import poisoned_outputs
from torch import Tensor

from weft import DataType, FusionDefinition
from weft.check.records import programs
from weft.frontend.backend import GRAPHS, backend
from weft.segment import stored_tables


def angles(x: Tensor, dtype: torch.dtype) -> Tensor:
    length, width = x.shape[-2:]
    rates = 10000.0 ** (-torch.arange(0, width // 2 * 2, 2, dtype=dtype) / width)
    return torch.arange(length, dtype=dtype)[:, None] * rates


def turned(x: Tensor) -> Tensor:
    """A norm, and rotary positions."""
    a = angles(x, torch.float64 if x.dtype is torch.float64 else torch.float32)
    c, s = a.cos(), a.sin()
    first, second = F.rms_norm(x, x.shape[-1:]).chunk(2, -1)
    return torch.cat((first * c - second * s, first * s + second * c), -1)


def turned_by_halves(x: Tensor) -> Tensor:
    a = angles(x, torch.float64 if x.dtype is torch.float64 else torch.float32)
    a = torch.cat((a, a), -1)
    x = F.rms_norm(x, x.shape[-1:])
    first, second = x.chunk(2, -1)
    return x * a.cos() + torch.cat((-second, first), -1) * a.sin()


def placed(x: Tensor) -> Tensor:
    """Sines and cosines of positions are added before a norm."""
    a = angles(x, torch.float64 if x.dtype is torch.float64 else torch.float32)
    return F.layer_norm(x + torch.cat((a.sin(), a.cos()), -1), x.shape[-1:])


def counted(x: Tensor) -> Tensor:
    """Nothing is folded: rates at two places, which one kernel stores."""
    y = x[..., None] * 2.0 ** torch.arange(4)
    return torch.cat((y.sin(), y.cos()), -1).flatten(-2)


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("function", [turned, turned_by_halves, placed, counted], ids=lambda f: f.__name__)
@pytest.mark.parametrize("shape", [(11, 7, 24), (9, 33, 10), (1, 5, 8), (12, 1, 4)], ids=str)
def test_tables_are_those_of_each_row(function: Callable[[Tensor], Tensor], shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Here a launch costs nothing, and moving bytes nearly nothing, so each table is stored."""
    monkeypatch.setattr(stored_tables, "LAUNCH_BYTES", 0)
    monkeypatch.setattr(stored_tables, "INSTRUCTIONS_PER_BYTE", 0.01)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(7))
    ours, theirs = x.clone().requires_grad_(), x.double().requires_grad_()
    with poisoned_outputs():
        out = torch.compile(function, backend=backend, options={"emulate": True, "strict": True}, dynamic=False)(ours)
    want = function(theirs)
    torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=3e-6)
    slope = torch.randn_like(out)
    with poisoned_outputs():
        out.backward(slope)
    want.backward(slope.double())
    assert ours.grad is not None and theirs.grad is not None
    torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=1e-5, atol=1e-5)
    names = [kernel.program.name for graph in GRAPHS if graph.kind == "forward" for call in graph.calls for kernel in call.kernels()]
    assert len(names) == 2 or shape[0] == 1 or shape[-1] % 4, names  # tables that vary along columns alone may be stored before those


def norm_with_angles(width: int) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1, width], contiguity=True, dtype=DataType.Float)
        sums = fd.ops.sum(fd.ops.mul(x, x), [2], keepdim=True)
        length = fd.ops.size(x, 1)
        place = fd.ops.cast(fd.ops.iota(length), DataType.Float)
        rate = fd.ops.exp(fd.ops.mul(fd.ops.cast(fd.ops.iota(fd.define_scalar(width)), DataType.Float), -0.01))
        angle = fd.ops.mul(fd.ops.broadcast(place, [False, True]), fd.ops.broadcast(rate, [True, False]))
        turned = fd.ops.add(fd.ops.sin(angle), fd.ops.cos(angle))
        fd.add_output(fd.ops.mul(fd.ops.mul(x, fd.ops.rsqrt(sums)), fd.ops.broadcast(turned, [True, False, False])))
    return fd


def test_a_table_is_stored_where_many_rows_share_it() -> None:
    table, rows = programs(norm_with_angles(768), [(64, 197, 768)])
    assert (table.scheduler, rows.scheduler) == ("pointwise", "inner_persistent")
    assert "sin" in table.program.text and "sin" not in rows.program.text


@pytest.mark.parametrize("shape", [(1, 300, 760), (2, 50, 752)], ids=str)
def test_a_table_of_few_rows_is_computed_in_each(shape: tuple[int, ...]) -> None:
    (kernel,) = programs(norm_with_angles(shape[-1]), [shape])  # a definition is cut for the sizes of its first call
    assert "sin" in kernel.program.text


def test_what_a_thread_has_once_for_its_column_is_not_stored() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, 1024], contiguity=True, dtype=DataType.Float)
        v = fd.define_tensor([1024], contiguity=True, dtype=DataType.Float)
        column = fd.ops.add(fd.ops.sin(v), fd.ops.cos(v))
        fd.add_output(fd.ops.sum(fd.ops.mul(fd.ops.sin(x), fd.ops.broadcast(column, [True, False])), [0]))
    (kernel,) = programs(fd, [(16384, 1024), (1024,)])
    assert kernel.scheduler == "reduction"
