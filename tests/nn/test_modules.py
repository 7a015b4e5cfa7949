"""Modules of weft.nn: torch's state, torch's results and gradients; models whose modules are swapped, and put back."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import nn

import weft.nn
from weft import UserError

MODULES: dict[str, tuple[Callable[..., nn.Module], tuple[int, ...]]] = {
    "LayerNorm": (lambda m: m.LayerNorm(6), (2, 3, 6)), "RMSNorm": (lambda m: m.RMSNorm(6), (4, 6)), "GroupNorm": (lambda m: m.GroupNorm(2, 4), (2, 4, 5)),
    "BatchNorm1d": (lambda m: m.BatchNorm1d(4), (5, 4)), "BatchNorm2d": (lambda m: m.BatchNorm2d(3, momentum=None), (2, 3, 4, 4)), "BatchNorm3d": (lambda m: m.BatchNorm3d(2), (2, 2, 2, 2, 3)),
    "InstanceNorm1d": (lambda m: m.InstanceNorm1d(3, affine=True), (2, 3, 5)), "InstanceNorm2d": (lambda m: m.InstanceNorm2d(3, track_running_stats=True), (2, 3, 4, 4)),
    "Softmax": (lambda m: m.Softmax(-1), (3, 5)), "LogSoftmax": (lambda m: m.LogSoftmax(1), (3, 5)), "GELU": (lambda m: m.GELU("tanh"), (3, 5)), "SiLU": (lambda m: m.SiLU(), (3, 5)),
}  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_a_module_is_torchs(name: str) -> None:
    make, shape = MODULES[name]
    ours, theirs = make(weft.nn).double(), make(nn).double()
    for parameter in theirs.parameters():
        nn.init.uniform_(parameter, 0.5, 1.5)
    ours.load_state_dict(theirs.state_dict())
    assert isinstance(ours, type(theirs)) and ours.state_dict().keys() == theirs.state_dict().keys()
    for training in (True, False):
        ours.train(training), theirs.train(training)
        x = torch.randn(shape, dtype=torch.float64)
        a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
        got, want = ours(a), theirs(b)
        torch.testing.assert_close(got, want)
        got.square().sum().backward(), want.square().sum().backward()
        torch.testing.assert_close(a.grad, b.grad)
    for one, other in zip(ours.parameters(), theirs.parameters()):
        torch.testing.assert_close(one.grad, other.grad)
    for key, value in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[key], value)


@pytest.mark.parametrize("name", ["LayerNorm", "RMSNorm", "AddRMSNorm"])
def test_an_unknown_keyword_is_answered_with_the_right_name(name: str) -> None:
    make = getattr(weft.nn, name)
    with pytest.raises(TypeError, match=f"W157: {name}: got an unexpected keyword argument 'epsilon'(.|\n)*fix: write eps instead of epsilon; its arguments are .normalized_shape"):
        make(8, epsilon=1e-6)

    class Own(make):  # type: ignore[misc, valid-type]
        def __init__(self, size: int) -> None:
            super().__init__(size, eps=0.5)

    assert Own(8).eps == 0.5 and make(8, eps=0.25).eps == 0.25


def test_losses() -> None:
    x, target = torch.randn(4, 7, dtype=torch.float64), torch.tensor([1, -100, 3, 6])
    torch.testing.assert_close(weft.nn.CrossEntropyLoss(label_smoothing=0.1)(x, target), nn.CrossEntropyLoss(label_smoothing=0.1)(x, target))
    y = torch.randn(4, 7, dtype=torch.float64)
    torch.testing.assert_close(weft.nn.KLDivLoss(reduction="batchmean", log_target=True)(x, y), nn.KLDivLoss(reduction="batchmean", log_target=True)(x, y))
    z = weft.nn.CrossEntropyLoss(z_loss=0.5)(x[2:3], target[2:3])
    torch.testing.assert_close(z, nn.CrossEntropyLoss()(x[2:3], target[2:3]) + 0.5 * x[2].logsumexp(0) ** 2)


def test_a_module_is_copied_and_pickled() -> None:
    norm = weft.nn.RMSNorm(6, weight_offset=1.0)
    norm(torch.randn(2, 6))
    for other in (copy.deepcopy(norm), pickle.loads(pickle.dumps(norm))):
        assert other.weight_offset == 1.0 and torch.equal(other(torch.ones(2, 6)), norm(torch.ones(2, 6)))


class LlamaRMSNorm(nn.Module):
    """Shaped like Hugging Face's."""

    def __init__(self, size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(size) + 0.5)
        self.variance_epsilon = eps

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        wide = hidden_states.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * wide.to(hidden_states.dtype)


class GatedMLP(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = (nn.Linear(size, size, bias=False) for _ in range(3))
        self.act_fn = nn.SiLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU(), LlamaRMSNorm(8), GatedMLP(8), nn.Dropout(0.1))


def test_a_model_is_patched_and_put_back() -> None:
    plain, net, x = model().eval(), model().eval(), torch.randn(3, 8)
    want = plain(x)
    parameters = list(net.parameters())
    done = weft.nn.patch(net)
    assert done.swapped == {"1": "LayerNorm", "2": "GELU", "3": "Hugging Face RMSNorm", "4": "gated MLP", "4.act_fn": "SiLU"}
    assert "1 LayerNorm" in repr(done)
    got = net(x)
    torch.testing.assert_close(got, want, atol=1e-6, rtol=1e-5)
    got.sum().backward(), want.sum().backward()
    for a, b in zip(net.parameters(), plain.parameters()):
        torch.testing.assert_close(a.grad, b.grad, atol=1e-5, rtol=1e-4)
    assert all(a is b for a, b in zip(parameters, net.parameters()))
    done.undo()
    assert torch.equal(net(x), want) and "forward" not in net[1].__dict__ and not done.swapped
    with weft.nn.patch(net, only=["LayerNorm"]) as part:
        assert list(part.swapped) == ["1"]
    assert nn.LayerNorm.forward is type(plain[1]).forward


def test_what_cannot_be_patched_is_said() -> None:
    with pytest.raises(UserError, match="W143: the model Linear contains no module that weft replaces"):
        weft.nn.patch(nn.Linear(2, 2))
    with pytest.raises(UserError, match="W144: only='Norm'(.|\n)*LayerNorm"):
        weft.nn.patch(model(), only=["Norm"])
