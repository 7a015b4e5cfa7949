"""`select` at an index that a call brings: torch's element, an error where the axis has none, in first and in warm calls. Sizes that scalars give, too."""

from __future__ import annotations

import pytest
import torch

from weft import DataType, FusionDefinition
from weft.ops.lookups import SelectOutside
from weft.ops.shapes import NegativeExtent


def selecting(dim: int, shape: list[int], *, is_computed: bool) -> FusionDefinition:
    """Return x at an index along dim, plus 1 if a kernel computes it."""
    with FusionDefinition() as fd:
        x, index = fd.define_tensor(shape, contiguity=True), fd.define_scalar(None, dtype=DataType.Int)
        y = fd.ops.select(x, index, dim)
        fd.add_output(fd.ops.add(y, 1.0) if is_computed else y)
    return fd


@pytest.mark.parametrize("is_computed", [False, True])
@pytest.mark.parametrize(("dim", "shape"), [(0, [-1, -1]), (1, [-1, -1]), (1, [5, 7]), (0, [-1])], ids=str)
def test_elements_and_what_is_none(dim: int, shape: list[int], is_computed: bool) -> None:
    fd = selecting(dim, shape, is_computed=is_computed)
    x = torch.randn(5, 7)[: len(shape) == 1 or 5]
    x = x[0] if len(shape) == 1 else x
    size = x.shape[dim]
    for index in (0, size - 1, -size, 1, size, -1, -size - 1, 2, 1 << 40, -(1 << 40)):
        if -size <= index < size:
            torch.testing.assert_close(fd.execute([x, index])[0], x.select(dim, index) + is_computed, rtol=0, atol=0)
        else:
            with pytest.raises(SelectOutside, match=f"index {index} is out of range for axis {dim} .* {size} elements"):
                fd.execute([x, index])


def test_other_sizes_of_a_warm_definition() -> None:
    fd = selecting(0, [-1, -1], is_computed=True)
    for rows in (3, 5, 1, 2):
        x = torch.randn(rows, 4)
        with pytest.raises(SelectOutside):
            fd.execute([x, rows])
        torch.testing.assert_close(fd.execute([x, rows - 1])[0], x[rows - 1] + 1, rtol=0, atol=0)


def test_an_axis_without_elements_has_none() -> None:
    fd = selecting(0, [-1, -1], is_computed=True)
    with pytest.raises(SelectOutside, match="has 0 elements"):
        fd.execute([torch.empty(0, 4), 0])


def test_a_computed_index() -> None:
    with FusionDefinition() as fd:
        x, n = fd.define_tensor([-1, -1], contiguity=True), fd.define_scalar(None, dtype=DataType.Int)
        fd.add_output(fd.ops.neg(fd.ops.select(x, fd.ops.mul(n, 2), 1)))
    x = torch.randn(3, 6)
    for n in (1, 2, 0):
        torch.testing.assert_close(fd.execute([x, n])[0], -x[:, 2 * n], rtol=0, atol=0)
    with pytest.raises(SelectOutside, match="index 6 "):
        fd.execute([x, 3])


@pytest.mark.parametrize("is_folded", [False, True])
def test_an_expand_below_nothing(is_folded: bool) -> None:
    with FusionDefinition() as fd:
        x, n = fd.define_tensor([1, -1], contiguity=True), fd.define_scalar(None, dtype=DataType.Int)
        y = fd.ops.expand(x, [n, -1])
        fd.add_output(fd.ops.sum(y, [0]) if is_folded else fd.ops.add(y, 1.0))
    x = torch.randn(1, 6)
    for n in (2, 0, 1, 4):
        expected = x.expand(n, 6).sum(0) if is_folded else x.expand(n, 6) + 1
        torch.testing.assert_close(fd.execute([x, n])[0], expected, rtol=1e-6, atol=0)
    for n in (-1, -4):
        with pytest.raises(NegativeExtent, match=f"extent {n} "):
            fd.execute([x, n])
