"""What every function of weft.nn.functional can do: gradients of both orders, batches of torch.func, autocast, empty and strided inputs, checkpointing, graphs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from nn_functions import CASES, SMALL, agree, flat, floats, with_gradients
from torch.utils.checkpoint import checkpoint

EXACT = {"atol": 1e-11, "rtol": 1e-9}  # float64, sums of a few terms
EVERY = pytest.mark.parametrize("name", CASES)


@EVERY
def test_results_and_gradients_are_torchs(name: str) -> None:
    case = CASES[name]
    inputs = case.make(SMALL)
    agree(case, with_gradients(case.ours, inputs), with_gradients(case.theirs, inputs), **EXACT)


@EVERY
def test_gradcheck(name: str) -> None:
    case = CASES[name]
    assert torch.autograd.gradcheck(case.ours, case.make(SMALL), fast_mode=True)


SAME_RULES = ("layer_norm of two axes", "rms_norm with offset", "add_rms_norm", "dropout_add_layer_norm", "apply_rotary_pos_emb", "embedding_layer_norm")
"""Their backwards hold no rule that another function's does not."""


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES if name not in SAME_RULES])
def test_gradients_of_gradients(name: str) -> None:
    case = CASES[name]
    assert torch.autograd.gradgradcheck(case.ours, case.make(SMALL), fast_mode=True)


@EVERY
def test_strided_inputs_and_gradients(name: str) -> None:
    """Inputs that step over elements and lie in another order; gradients of a sum, which are expanded."""
    case = CASES[name]
    inputs = []
    for t in case.make(SMALL):
        spread = torch.stack([t.detach(), t.detach()], -1)[..., 0] if t.dim() < 2 else t.detach().transpose(0, -1).contiguous().transpose(0, -1)
        inputs.append(spread.requires_grad_(t.requires_grad))
    assert any(not t.is_contiguous() for t in inputs)
    got, want = flat(case.ours(*inputs)), flat(case.theirs(*inputs))
    sums = [sum(o.sum() for o in outputs) for outputs in (got, want)]
    grads = [torch.autograd.grad(s, floats(inputs), allow_unused=True) for s in sums]
    agree(case, (got, grads[0]), (want, grads[1]), **EXACT)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.folds_first])
def test_an_empty_batch(name: str) -> None:
    case = CASES[name]
    first = case.inputs[0].split()[0]
    inputs = case.make({**SMALL, first: 0})
    agree(case, with_gradients(case.ours, inputs), with_gradients(case.theirs, inputs))


@EVERY
def test_under_autocast_types_are_those_of_torch(name: str) -> None:
    """On a CPU, of these functions only losses are on autocast's list of float32."""
    case, is_loss = CASES[name], name.startswith(("cross_entropy", "kl_div"))
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            both = {flat(f(*case.make(SMALL, dtype)))[0].dtype for f in (case.ours, case.theirs)[: 1 + case.float32_under_autocast]}
        assert both == {torch.float32 if is_loss else dtype}


@EVERY
def test_checkpointing_gives_the_same_bits(name: str) -> None:
    case = CASES[name]
    inputs = case.make(SMALL)
    plain, again = (with_gradients(f, inputs) for f in (case.ours, lambda *t: checkpoint(case.ours, *t, use_reentrant=False)))
    for a, b in zip([*plain[0], *plain[1]], [*again[0], *again[1]]):
        assert (a is None and b is None) or torch.equal(a, b)  # type: ignore[arg-type]


@EVERY
def test_a_batch_of_torch_func(name: str) -> None:
    case = CASES[name]
    inputs = [t.detach() for t in case.make(SMALL)]
    samples = [torch.stack([t, t.flip(0)]) if t.is_floating_point() else torch.stack([t, t]) for t in inputs]
    got = flat(torch.func.vmap(case.ours)(*samples))
    for i in range(2):
        for a, b in zip(got, flat(case.theirs(*(t[i] for t in samples)))):
            torch.testing.assert_close(a[i], b, **EXACT)


class Module(torch.nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.function(*tensors)


@EVERY
def test_torch_export_holds_it(name: str) -> None:
    case = CASES[name]
    inputs = [t.detach() for t in case.make(SMALL)]
    program = torch.export.export(Module(case.ours), tuple(inputs))
    assert any("weft." in str(node.target) for node in program.graph.nodes)
    for a, b in zip(flat(program.module()(*inputs)), flat(case.theirs(*inputs))):
        torch.testing.assert_close(a, b, **EXACT)


@EVERY
def test_a_compiled_graph_has_no_breaks(name: str) -> None:
    case = CASES[name]
    torch._dynamo.reset()
    inputs = case.make(SMALL)
    compiled = torch.compile(case.ours, fullgraph=True, backend="aot_eager")
    agree(case, with_gradients(compiled, inputs), with_gradients(case.theirs, inputs), **EXACT)
