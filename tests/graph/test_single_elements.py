"""Sizes that are 1 in a call, of axes that are innermost in memory: kernels are as if they were not there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from weft import DataType, FusionDefinition
from weft.errors import WeftError

TYPES = {torch.float32: DataType.Float, torch.bfloat16: DataType.BFloat16}
Define = Callable[[FusionDefinition, Any], Any]


def defined(define: Define, rank: int, dtype: torch.dtype = torch.float32, **given: Any) -> FusionDefinition:
    given = {"contiguity": [True] * rank, **given}
    with FusionDefinition() as fd:
        x = fd.ops.cast(fd.define_tensor([-1] * rank, dtype=TYPES[dtype], **given), DataType.Float)
        fd.add_output(fd.ops.cast(define(fd, x), TYPES[dtype]))
    return fd


def standardized(fd: FusionDefinition, x: Any) -> Any:
    variance, mean = fd.ops.var_mean(x, dims=[0], correction=0, keepdim=True)
    return fd.ops.mul(fd.ops.sub(x, mean), fd.ops.rsqrt(fd.ops.add(variance, 1e-5)))


def standardized_by_torch(x: torch.Tensor) -> torch.Tensor:
    return (x - x.mean(0, keepdim=True)) * (x.var(0, correction=0, keepdim=True) + 1e-5).rsqrt()


CASES: dict[str, tuple[Define, Callable[[torch.Tensor], torch.Tensor]]] = {
    "running sums": (lambda fd, x: fd.ops.cumsum(x, 0), lambda x: x.cumsum(0)),
    "running sums of one": (lambda fd, x: fd.ops.exp(fd.ops.cumsum(x, 1)), lambda x: x.exp()),
    "running sums from a start": (lambda fd, x: fd.ops.cumsum(x, 1, 2.5), lambda x: x + 2.5),
    "standardized": (standardized, standardized_by_torch),
    "sums": (lambda fd, x: fd.ops.sum(fd.ops.mul(x, x), [0]), lambda x: (x * x).sum(0)),
    "sums of one": (lambda fd, x: fd.ops.sum(fd.ops.mul(x, x), [1]), lambda x: (x * x).sum(1)),
    "deviations of one": (lambda fd, x: fd.ops.var(x, [1], 0), lambda x: torch.zeros(x.shape[0])),
    "turned": (lambda fd, x: fd.ops.mul(fd.ops.permute(x, [1, 0]), 2.0), lambda x: 2 * x.T),
    "shifted": (lambda fd, x: fd.ops.add(x, fd.ops.slice(x, [0, 0], [1, 1])), lambda x: x + x[:1, :1]),
}  # fmt: skip


@pytest.mark.parametrize("rows", [4096, 1001, 2, 1])
@pytest.mark.parametrize("name", CASES)
def test_a_column(name: str, rows: int) -> None:
    define, wanted = CASES[name]
    fd, x = defined(define, 2), torch.randn(rows, 1)
    for shape in ((rows, 1), (7, 3) if "of one" not in name and "a start" not in name else (rows, 1)):
        x = torch.randn(shape)
        (out,) = fd.execute([x])
        want = wanted(x.double())
        assert out.shape == want.shape
        torch.testing.assert_close(out.double(), want.double(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", [(4096, 1), (4096, 1, 1), (1, 4096, 1)], ids=str)
@pytest.mark.parametrize("name", ["running sums", "standardized", "sums"])
def test_a_column_is_read_in_vectors(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Along its long axis, wherever axes of one element are."""
    (define, wanted), dim = CASES[name], shape.index(4096)
    x = torch.randn(shape).to(dtype)
    fd = defined(lambda fd, x: define(fd, x) if dim == 0 else fd.ops.cumsum(x, 1), len(shape), dtype)
    (out,) = fd.execute([x])
    want = wanted(x.double()) if dim == 0 else x.double().cumsum(1)
    torch.testing.assert_close(out.double(), want, rtol=2e-2 if dtype.itemsize == 2 else 1e-5, atol=1e-2 if dtype.itemsize == 2 else 1e-4)
    texts = [runtime.program.text for runtime in fd.fec.kernel_runtimes]
    assert all(f"load_global_vector<{16 // dtype.itemsize}," in text for text in texts)


def test_columns_of_more_than_one_share_a_variant() -> None:
    """A call with one column makes a variant of its own, once for all lengths."""
    fd = defined(standardized, 2)
    for shape in ((64, 1), (32, 1), (16, 3), (64, 5), (1, 5), (1, 1), (128, 1)):
        (out,) = fd.execute([x := torch.randn(shape)])
        torch.testing.assert_close(out.double(), standardized_by_torch(x.double()), rtol=1e-4, atol=1e-4)
    assert sum(bool(answers) for _, _, answers in fd.fec._caller.shared._variants._made) == 1


def test_a_strided_column() -> None:
    """A column of a wider matrix is no piece of memory without gaps."""
    fd = defined(standardized, 2, contiguity=[False, True])
    for x in (torch.randn(256, 8)[:, :1], torch.randn(256, 8)[:, 3:4], torch.randn(256, 1), torch.randn(256, 8)[:, :5]):
        (out,) = fd.execute([x])
        torch.testing.assert_close(out.double(), standardized_by_torch(x.double()), rtol=1e-4, atol=1e-4)


def test_a_row_in_column_order() -> None:
    """The innermost axis in memory counts, whatever the order of the sizes is."""
    fd = defined(lambda fd, x: fd.ops.cumsum(x, 1), 2, stride_order=[0, 1])
    (out,) = fd.execute([x := torch.randn(2048, 1).T])
    torch.testing.assert_close(out.double(), x.double().cumsum(1), rtol=1e-5, atol=1e-4)
    assert "load_global_vector<4," in fd.fec.kernel_runtimes[0].program.text


def test_sizes_that_differ_are_still_refused() -> None:
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([-1, -1], contiguity=[True, True]) for _ in range(2))
        fd.add_output(fd.ops.add(x, y))
    (out,) = fd.execute([x := torch.randn(8, 1), y := torch.randn(8, 1)])
    assert torch.equal(out, x + y)
    with pytest.raises(WeftError, match="makes them equal"):
        fd.execute([x, torch.randn(8, 3)])
    with pytest.raises(WeftError, match="makes them equal"):
        fd.execute([x, torch.randn(5, 1)])
