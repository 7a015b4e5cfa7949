"""Sums of quotients by what does not vary along them: which sums are divided instead, and that results are torch's in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fusion_check import poisoned_outputs

from weft import DataType, FusionDefinition
from weft.graph.normalize import normalize
from weft.graph.quotients_behind_sums import FEWEST_TERMS
from weft.ir.values import PointwiseOp, ReductionOp, TensorView
from weft.options import options

Define = Callable[[FusionDefinition, Any, Any, Any], list[Any]]
Given = torch.Tensor


def _wide(fd: FusionDefinition, w: Any) -> Any:
    return fd.ops.broadcast(w, [False, True, True])


def by_a_scale(fd: FusionDefinition, x: Any, y: Any, w: Any) -> list[Any]:
    return [fd.ops.sum(fd.ops.div(x, _wide(fd, w)), [2])]


def by_a_number(fd: FusionDefinition, x: Any, y: Any, w: Any) -> list[Any]:
    return [fd.ops.sum(fd.ops.div(x, -3.7), [0, 2])]


def in_a_product(fd: FusionDefinition, x: Any, y: Any, w: Any) -> list[Any]:
    return [fd.ops.sum(fd.ops.mul(y, fd.ops.neg(fd.ops.mul(2.0, fd.ops.div(x, _wide(fd, w))))), [1])]


def of_a_quotient(fd: FusionDefinition, x: Any, y: Any, w: Any) -> list[Any]:
    """The divisor outside varies along the sum, the one inside does not."""
    return [fd.ops.sum(fd.ops.div(fd.ops.div(x, _wide(fd, w)), fd.ops.add(fd.ops.abs(y), 1.0)), [2])]


def softmax_mean(fd: FusionDefinition, x: Any, y: Any, w: Any) -> list[Any]:
    e = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, [2], keepdim=True)))
    return [fd.ops.sum(fd.ops.mul(fd.ops.div(e, fd.ops.sum(e, [2], keepdim=True)), y), [2])]


DIVIDED: dict[Define, Callable[[Given, Given, Given], Given]] = {
    by_a_scale: lambda x, y, w: (x / w[:, None, None]).sum(2), by_a_number: lambda x, y, w: (x / -3.7).sum((0, 2)),
    in_a_product: lambda x, y, w: (y * -(2.0 * (x / w[:, None, None]))).sum(1),
    of_a_quotient: lambda x, y, w: (x / w[:, None, None] / (y.abs() + 1)).sum(2), softmax_mean: lambda x, y, w: (x.softmax(2) * y).sum(2),
}  # fmt: skip


def varying(fd: FusionDefinition, x: Any, y: Any, w: Any) -> list[Any]:
    return [fd.ops.sum(fd.ops.div(x, fd.ops.add(fd.ops.abs(y), 1.0)), [2])]


def squared(fd: FusionDefinition, x: Any, y: Any, w: Any) -> list[Any]:
    """The quotient is a factor twice."""
    q = fd.ops.div(x, _wide(fd, w))
    return [fd.ops.sum(fd.ops.mul(q, q), [2])]


def stored_too(fd: FusionDefinition, x: Any, y: Any, w: Any) -> list[Any]:
    q = fd.ops.div(x, _wide(fd, w))
    return [fd.ops.sum(q, [2]), q]


def with_a_term(fd: FusionDefinition, x: Any, y: Any, w: Any) -> list[Any]:
    return [fd.ops.sum(fd.ops.add(fd.ops.div(x, _wide(fd, w)), y), [2])]


def largest(fd: FusionDefinition, x: Any, y: Any, w: Any) -> list[Any]:
    return [fd.ops.max(fd.ops.div(x, _wide(fd, w)), [2])]


def of_a_row(fd: FusionDefinition, x: Any, y: Any, w: Any) -> list[Any]:
    """The quotient has fewer axes than the divisor gives it."""
    return [fd.ops.sum(fd.ops.mul(fd.ops.div(1.0, _wide(fd, w)), x), [2])]


KEPT: dict[Define, Callable[[Given, Given, Given], list[Given]]] = {
    varying: lambda x, y, w: [(x / (y.abs() + 1)).sum(2)], squared: lambda x, y, w: [(x / w[:, None, None]).square().sum(2)],
    stored_too: lambda x, y, w: [(x / w[:, None, None]).sum(2), x / w[:, None, None]],
    with_a_term: lambda x, y, w: [(x / w[:, None, None] + y).sum(2)], largest: lambda x, y, w: [(x / w[:, None, None]).amax(2)],
    of_a_row: lambda x, y, w: [(x / w[:, None, None]).sum(2)],
}  # fmt: skip


def defined(define: Define) -> FusionDefinition:
    with FusionDefinition() as fd:
        x, y, w = (fd.define_tensor([-1] * rank, contiguity=True) for rank in (3, 3, 1))
        for out in define(fd, x, y, w):
            fd.add_output(out)
    return fd


def divides_a_sum(fd: FusionDefinition) -> bool:
    def is_sum(value: object) -> bool:
        return isinstance(value, TensorView) and isinstance(value.definition(), ReductionOp)

    return any(isinstance(e, PointwiseOp) and e.op_name in ("div", "truediv") and is_sum(e.inputs[0]) for e in normalize(fd.fusion).tensor_exprs())


def compare(define: Define, sizes: tuple[int, int, int], wanted: Callable[[Given, Given, Given], list[Given]]) -> None:
    generator = torch.Generator().manual_seed(sum(sizes))
    x, y = (torch.randn(sizes, generator=generator) for _ in range(2))
    w = torch.rand(sizes[0], generator=generator) - 1.5
    with poisoned_outputs(), options(check="races"):
        got = defined(define).execute([x, y, w])
    for mine, want in zip(got, wanted(x.double(), y.double(), w.double()), strict=True):
        torch.testing.assert_close(mine.double(), want, rtol=1e-5, atol=1e-5 * max(1.0, float(want.abs().max()) if want.numel() else 1.0))


SIZES = [(3, 5, 40), (2, 7, 129), (1, 1, 1), (4, 3, 1030), (2, 0, 8), (0, 3, 5)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("define", DIVIDED, ids=lambda define: define.__name__)
def test_a_sum_is_divided_instead_of_its_terms(define: Define, sizes: tuple[int, int, int]) -> None:
    assert divides_a_sum(defined(define))
    compare(define, sizes, lambda *given: [DIVIDED[define](*given)])


@pytest.mark.parametrize("define", KEPT, ids=lambda define: define.__name__)
def test_terms_that_are_divided_themselves(define: Define) -> None:
    assert not divides_a_sum(defined(define))
    compare(define, (3, 5, 129), KEPT[define])


def twice(fd: FusionDefinition, x: Any, y: Any, w: Any) -> list[Any]:
    return [fd.ops.sum(fd.ops.div(fd.ops.mul(y, fd.ops.div(x, 3.0)), _wide(fd, w)), [2])]


def test_both_quotients_of_a_term_go_behind_the_sum() -> None:
    left = [e for e in normalize(defined(twice).fusion).tensor_exprs() if isinstance(e, PointwiseOp) and e.op_name in ("div", "truediv")]
    assert len(left) == 2 and all(e.tensor_outputs[0].ndim == 2 for e in left)
    compare(twice, (3, 5, 129), lambda x, y, w: [(y * (x / 3.0) / w[:, None, None]).sum(2)])


@pytest.mark.parametrize("terms", [FEWEST_TERMS - 1, FEWEST_TERMS])
def test_few_terms_are_divided_themselves(terms: int) -> None:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.sum(fd.ops.div(fd.define_tensor([70, terms], contiguity=True), 3.0), [1]))
    assert divides_a_sum(fd) is (terms >= FEWEST_TERMS)
    x = torch.randn(70, terms)
    torch.testing.assert_close(fd.execute([x])[0].double(), (x.double() / 3).sum(1), rtol=1e-5, atol=1e-5)


def test_a_divisor_of_zero_gives_what_it_gives_the_terms() -> None:
    x, y, w = torch.tensor([[[1.0, 2.0]], [[0.0, 0.0]], [[-3.0, -1.0]]]), torch.zeros(3, 1, 2), torch.zeros(3)
    (got,) = defined(by_a_scale).execute([x, y, w])
    torch.testing.assert_close(got, (x / w[:, None, None]).sum(2), equal_nan=True)


def test_sums_of_integers_and_of_16_bits_stay() -> None:
    """What is rounded to 16 bits after the quotient is summed as that."""
    with FusionDefinition() as fd:
        x = fd.ops.cast(fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.BFloat16), DataType.Float)
        rounded = fd.ops.cast(fd.ops.div(x, 3.0), DataType.BFloat16)
        fd.add_output(fd.ops.sum(fd.ops.cast(rounded, DataType.Float), [1]))
    assert not divides_a_sum(fd)
    x = torch.randn(5, 77).bfloat16()
    (got,) = fd.execute([x])
    torch.testing.assert_close(got.double(), (x.float() / 3).bfloat16().double().sum(1), rtol=1e-6, atol=1e-6)
