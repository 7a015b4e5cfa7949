"""Reductions whose threads have whole rows, because elements share most of what is computed; and scans of up to 16 terms, whose partial sums they share."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from compared_images import compare
from torch import Tensor
from torch.nn import functional as F

from weft import DataType, FusionDefinition
from weft.frontend.backend import GRAPHS, backend
from weft.graph.few_terms import MOST_SCANNED, term_by_term
from weft.graph.normalize import normalize
from weft.ir.graph_ops import ScanOp
from weft.schedulers import rows_of_threads, short_rows
from weft.schedulers.persistent_params import PersistentParams
from weft.schedulers.reduction_heuristic import ReductionParams


def angles(x: Tensor) -> Tensor:
    """Of a frame made of two vectors, to another: nine products of what a row shares."""
    a, b = F.normalize(x[:, :3], dim=-1), x[:, 3:6]
    b = F.normalize(b - (a * b).sum(-1, keepdim=True) * a, dim=-1)
    frame = torch.stack([a, b, torch.linalg.cross(a, b)], -2)
    return (frame * x[:, 6:15].unflatten(-1, (3, 3))).sum((-1, -2)).atan()


def quantiles(x: Tensor) -> Tensor:
    """Rising numbers, and a loss of all of them."""
    q = torch.cat([x[:, :1], F.softplus(x[:, 1:9])], -1).cumsum(-1)
    tau = torch.arange(1, 10, device=x.device) / 10
    e = x[:, 9:10] - q
    return torch.maximum(tau * e, (tau - 1) * e).sum(-1)


def shares(x: Tensor) -> Tensor:
    """A softmax of three products, each with a length of all three."""
    y = x[:, :3] * x[:, 3:6]
    return (y * F.normalize(x[:, 6:9], dim=-1)).softmax(-1)


def weighted(x: Tensor) -> Tensor:
    """A normalization of six elements, with means of their neighbours."""
    y = (x[:, :6] + x[:, 1:7]).sin() * torch.arange(1, 7, device=x.device)
    return F.layer_norm(y, (6,)) * y


def spread(x: Tensor) -> Tensor:
    """Vectors of four, the running sums of which are read again."""
    y = x[:, :8].exp().cumsum(-1)
    return (y * y.flip(-1)).sum(-1) + y[:, 3]


@pytest.fixture
def preferred(monkeypatch: pytest.MonkeyPatch, chosen_anew: None) -> None:
    """Take whole rows wherever they are possible."""
    for module in (short_rows, rows_of_threads):
        monkeypatch.setattr(module, "is_faster", lambda *times: True)
    monkeypatch.setattr(short_rows, "SHORT_THREADS", 0)


@pytest.mark.usefixtures("fresh", "preferred")
@pytest.mark.parametrize("function", [angles, quantiles, spread, shares, weighted], ids=lambda f: f.__name__)
@pytest.mark.parametrize("shape", [(261, 15), (1, 16), (0, 15)], ids=str)
def test_values_and_gradients(function: Callable[[Tensor], Tensor], shape: tuple[int, int]) -> None:
    compare(function, torch.rand(shape) + 0.1, rtol=2e-5, atol=2e-6, gradient_rtol=2e-4, gradient_atol=5e-5)
    params = [runtime.proposal.params for graph in GRAPHS for call in graph.calls for runtime in call.kernels()]
    if shape[0] > 1 and function in (angles, quantiles):
        assert any(isinstance(p, ReductionParams) and p.kind == "short" for p in params)
    if shape[0] > 1 and function in (shares, weighted):
        assert any(isinstance(p, PersistentParams) and p.bdimx == 1 and p.batches * p.vector_elems in (3, 6) for p in params)


@pytest.mark.usefixtures("fresh", "chosen_anew")
def test_quantiles_of_many_rows_take_one_kernel() -> None:
    """The scan has no kernel of its own, forward or backward, with no setting of a test."""
    out = torch.compile(quantiles, backend=backend, options={"emulate": True, "strict": True})(torch.rand(40000, 10, requires_grad=True))
    out.sum().backward()
    kernels = [[runtime.scheduler for call in graph.calls for runtime in call.kernels()] for graph in GRAPHS]
    assert all("greedy" not in names for names in kernels)


@pytest.mark.parametrize("is_output", [False, True])
def test_scans_of_up_to_sixteen_terms_are_taken_apart(is_output: bool) -> None:
    """Also one whose result is an output, if something else reads it."""
    for terms in (2, MOST_SCANNED, MOST_SCANNED + 1):
        with FusionDefinition() as fd:
            x = fd.define_tensor([9, terms], contiguity=True, dtype=DataType.Float)
            y = fd.ops.cumsum(x, 1)
            if is_output:
                fd.add_output(y)
            fd.add_output(fd.ops.mul(y, x))
        made = term_by_term(normalize(fd.fusion))
        assert (made is None) == (terms > MOST_SCANNED)
        assert made is None or not any(isinstance(e, ScanOp) for e in made.tensor_exprs())
