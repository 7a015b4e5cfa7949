"""Tangents of forward mode through weft's functions and definitions: torch's, or an error; never cut in silence."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from nn_functions import CASES, SMALL, Case, flat
from torch.autograd import forward_ad

from weft import FusionDefinition
from weft.nn import functional as W
from weft.runtime.gradient_check import TangentCut


def tangents(function: Any, inputs: list[torch.Tensor]) -> list[torch.Tensor | None]:
    """Return the tangents of the outputs, each float having one that its values determine."""
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(t.detach(), t.detach().cos()) if t.requires_grad else t for t in inputs]
        return [forward_ad.unpack_dual(o).tangent for o in flat(function(*duals))]


@pytest.mark.parametrize("name", [name for name in CASES if "dropout" not in name])
def test_every_function_carries_tangents(name: str) -> None:
    case: Case = CASES[name]
    inputs = case.make(SMALL)
    reference = torch.func.jvp  # of compositions that torch differentiates itself
    floats = [i for i, t in enumerate(inputs) if t.requires_grad]

    def theirs(*values: torch.Tensor) -> Any:
        given = [t.detach() for t in inputs]
        for i, v in zip(floats, values):
            given[i] = v
        return case.theirs(*given)

    plain = tuple(inputs[i].detach() for i in floats)
    _, wanted = reference(theirs, plain, tuple(t.cos() for t in plain))
    for got, want in zip(tangents(case.ours, inputs), flat(wanted)):
        torch.testing.assert_close(torch.zeros_like(want) if got is None else got, want, check_dtype=False)


def test_remembered_calls_carry_tangents_too() -> None:
    x = torch.randn(3, 8, dtype=torch.float64)
    for _ in range(3):
        W.softmax(x, -1)
    (got,) = tangents(lambda t: W.softmax(t, -1), [x.requires_grad_()])
    _, want = torch.func.jvp(lambda t: F.softmax(t, -1), (x.detach(),), (x.detach().cos(),))
    torch.testing.assert_close(got, want)
    assert not W.softmax(x.detach(), -1).requires_grad


def test_tangents_and_gradients_at_once() -> None:
    """Forward over reverse: the tangent is part of the graph of the input."""
    x, t = torch.randn(3, 8, dtype=torch.float64, requires_grad=True), torch.randn(3, 8, dtype=torch.float64)
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(W.softmax(forward_ad.make_dual(x, t), -1)).tangent
    _, want = torch.func.jvp(lambda v: F.softmax(v, -1), (x,), (t,))
    torch.testing.assert_close(torch.autograd.grad(tangent.square().sum(), x), torch.autograd.grad(want.square().sum(), x))


@pytest.mark.parametrize("transform", ["jvp", "jacfwd", "jvp of vmap", "vmap of jvp"])
def test_torch_func(transform: str) -> None:
    x, t, w = (torch.randn(*s, dtype=torch.float64) for s in ((3, 8), (3, 8), (8,)))

    def run(f: Any) -> Any:
        def of(a: torch.Tensor) -> torch.Tensor:
            return f(a, (8,), w, 1e-6)  # type: ignore[no-any-return]

        return {
            "jvp": lambda: torch.func.jvp(of, (x,), (t,)), "jacfwd": lambda: torch.func.jacfwd(of)(x),
            "jvp of vmap": lambda: torch.func.jvp(torch.vmap(of), (x,), (t,)),
            "vmap of jvp": lambda: torch.vmap(lambda a, b: torch.func.jvp(of, (a,), (b,)))(x, t),
        }[transform]()  # fmt: skip

    torch.testing.assert_close(run(W.rms_norm), run(F.rms_norm))


def test_derivatives_of_derivatives_under_torch_func() -> None:
    """Forward over reverse, reverse over reverse over one tensor that is given twice."""
    x = torch.randn(4, dtype=torch.float64)
    losses = [lambda a: (W.softmax(a, -1) ** 3).sum(), lambda a: (F.softmax(a, -1) ** 3).sum()]
    torch.testing.assert_close(torch.func.hessian(losses[0])(x), torch.func.hessian(losses[1])(x))
    gates = [lambda a: W.swiglu(a, a).sum(), lambda a: (F.silu(a) * a).sum()]
    torch.testing.assert_close(*(torch.func.jacrev(torch.func.jacrev(f))(x) for f in gates))


def test_a_definition_without_autograd_refuses_tangents() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        fd.add_output(fd.ops.exp(x))
    a = torch.randn(3, 4)
    fd.execute([a])
    with forward_ad.dual_level():
        for _ in range(2):
            with pytest.raises(TangentCut, match="W186"):
                fd.execute([forward_ad.make_dual(a, a)])
        torch.testing.assert_close(fd.execute([a])[0], a.exp())
        (made,) = fd.autograd().execute([forward_ad.make_dual(a, a)])
        torch.testing.assert_close(forward_ad.unpack_dual(made).tangent, a * a.exp())
    torch.testing.assert_close(fd.execute([a])[0], a.exp())
