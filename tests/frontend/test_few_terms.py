"""Folds and scans of up to four terms become pointwise where that moves fewer bytes: one kernel, with torch's values in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from compared_images import compare
from fusion_check import poisoned_outputs
from torch import Tensor

from weft import DataType, FusionDefinition
from weft.frontend.backend import GRAPHS, backend
from weft.graph.few_terms import MOST_SCANNED, MOST_TERMS, term_by_term
from weft.graph.normalize import normalize
from weft.ir.graph_ops import ScanOp
from weft.ir.values import ReductionOp
from weft.reference.interpreter import evaluate

CENTERS = torch.linspace(-1, 2, 5)


def radial(x: Tensor) -> Tensor:
    """Distances, each from five centers, summed over neighbours."""
    r = x.square().sum(-1).sqrt()
    return torch.exp(-(r[..., None] - CENTERS.to(x.dtype)).square()).sum(1)


def saturation(x: Tensor) -> Tensor:
    """The largest and smallest of three colors, beside the colors themselves."""
    a, b, c = x.unbind(-1)
    top, low = x.amax(-1), x.amin(-1)
    return torch.where(a == top, b - c, torch.where(b == top, c - a, a - b)) / (top - low + 0.5)


def turned(x: Tensor) -> Tensor:
    """A matrix of two by two, times itself."""
    c, s = x[..., 0].cos(), x[..., 1].sin() * x[..., 2]
    r = torch.stack([c, -s, s, c], -1).unflatten(-1, (2, 2))
    return (r[..., :, None, :] * r[..., None, :, :]).sum(-1).flatten(-2).square() + 1


def products(x: Tensor) -> Tensor:
    """Running products of coordinates, each times a sum over the other axis."""
    return (x.cumprod(-1) * x.sum(0)).prod(-1)[..., None] * CENTERS.to(x.dtype)


FUNCTIONS: dict[Callable[[Tensor], Tensor], int] = {radial: 1, saturation: 1, turned: 1, products: 2}
"""A function, and how many kernels it takes."""


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("shape", [(33, 7, 3), (1, 1, 3), (5, 64, 3), (2, 0, 3)], ids=str)
def test_values_and_gradients(function: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> None:
    compare(function, torch.rand(shape) + 0.1, rtol=2e-5, atol=2e-6, gradient_rtol=1e-4, gradient_atol=2e-5)


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_no_kernel_is_for_the_fold_alone(function: Callable[[Tensor], Tensor]) -> None:
    """Of as many rows as make bytes count."""
    with torch.no_grad():
        torch.compile(function, backend=backend, options={"emulate": True, "strict": True})(torch.rand(300, 64, 3))
    assert sum(len(call.kernels()) for graph in GRAPHS for call in graph.calls) == FUNCTIONS[function]


@pytest.mark.usefixtures("fresh")
def test_a_missing_number_is_the_largest_and_the_smallest() -> None:
    x = torch.rand(40, 16, 3)
    x[3, 5, 1] = x[0, 0, 0] = float("nan")
    out = torch.compile(saturation, backend=backend, options={"emulate": True, "strict": True})(x)
    assert torch.equal(out.isnan(), saturation(x).isnan()) and int(out.isnan().sum()) == 2


def filtered(x: Tensor) -> Tensor:
    """A Kalman filter's covariance: products of matrices of four by four, and of two by two, written out."""
    root, eye = x.unflatten(-1, (4, 4)), torch.eye(4, dtype=x.dtype)
    step = eye + 0.1 * torch.diag(torch.ones(2, dtype=x.dtype), 2)
    p = (root[..., :, None, :] * root[..., None, :, :]).sum(-1) + eye
    p = ((step[:, :, None] * p[..., None, :, :]).sum(-2)[..., None, :] * step).sum(-1)
    a, b, c = p[..., 0, 0] + 0.5, p[..., 0, 1], p[..., 1, 1] + 0.5
    inverse = torch.stack([c, -b, -b, a], -1).unflatten(-1, (2, 2)) / (a * c - b * b)[..., None, None]
    gain = (p[..., :, :2, None] * inverse[..., None, :, :]).sum(-2)
    after = p - (gain[..., :, :, None] * p[..., None, :2, :]).sum(-2)
    return ((after + after.transpose(-1, -2)) / 2).flatten(-2)


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("rows", [3001, 1, 0])
def test_products_of_small_matrices_one_after_the_other(rows: int) -> None:
    """Term by term a definition of two hundred expressions has more than a thousand. It has many kernels otherwise, so it is cut all the same."""
    x = torch.rand(rows, 16) + 0.1
    compiled = torch.compile(filtered, backend=backend, options={"emulate": True, "strict": True}, dynamic=False)
    with torch.no_grad(), poisoned_outputs():
        found = compiled(x)
    torch.testing.assert_close(found.double(), filtered(x.double()), rtol=2e-5, atol=2e-6)
    assert sum(len(call.kernels()) for graph in GRAPHS for call in graph.calls) <= 4


def _definition(terms: int, op: str, *, is_output: bool = False, is_reversed: bool = False) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([9, terms], contiguity=True, dtype=DataType.Float)
        if op == "linear_recurrence":
            y = fd.ops.linear_recurrence(x, fd.ops.add(x, 1.0), 1, is_reversed)
        else:
            y = fd.ops.cumsum(x, 1) if op == "cumsum" else fd.ops.broadcast(getattr(fd.ops, op)(x, [1]), [False, True])
        fd.add_output(y if is_output else fd.ops.mul(y, x))
    return fd


@pytest.mark.parametrize("op", ["sum", "prod", "max", "min", "cumsum", "linear_recurrence"])
def test_what_is_taken_apart(op: str) -> None:
    """Folds of two to four terms, scans of up to sixteen; results that are outputs stay, and so do more terms."""
    most = MOST_SCANNED if op in ("cumsum", "linear_recurrence") else MOST_TERMS
    for terms in (2, most):
        made = term_by_term(normalize(_definition(terms, op).fusion))
        assert made is not None and not any(isinstance(e, (ReductionOp, ScanOp)) for e in made.tensor_exprs())
    assert term_by_term(normalize(_definition(most + 1, op).fusion)) is None
    if op in ("cumsum", "linear_recurrence"):
        assert term_by_term(normalize(_definition(2, op, is_output=True).fusion)) is None


@pytest.mark.parametrize("is_reversed", [False, True])
def test_a_recurrence_of_a_few_terms(is_reversed: bool) -> None:
    """Also what is 0 under a gate that is infinite."""
    made = term_by_term(normalize(_definition(4, "linear_recurrence", is_reversed=is_reversed).fusion))
    assert made is not None
    x = torch.randn(9, 4)
    x[1, 1] = x[5, 2] = -1.0  # adds 0
    x[2] = torch.tensor([-1.0, float("inf"), 0.0, -1.0])
    x = x if not is_reversed else x.flip(1)
    gate, added, y, out = x.double(), x.double() + 1, torch.zeros(9, dtype=torch.double), torch.zeros(9, 4, dtype=torch.double)
    for k in range(3, -1, -1) if is_reversed else range(4):
        y = torch.where(y == 0, added[:, k], gate[:, k] * y + added[:, k])
        out[:, k] = y
    (found,) = evaluate(made, [x])
    torch.testing.assert_close(found, out * x.double(), equal_nan=True)
