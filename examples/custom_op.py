"""A fused op of your own, with its gradient, in eager code, under torch.compile and in an exported program: `python examples/custom_op.py`.

The op is the loss of a bounded regression: smooth_l1(softcap(x * scale), target) per row.
"""

from __future__ import annotations

import torch

import weft
from weft import FusionDefinition

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def definition() -> FusionDefinition:
    """Return the op as a definition: operators and functions as on tensors of torch."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=torch.float32)
        scale = fd.define_tensor([-1], contiguity=True, dtype=torch.float32)
        target = fd.define_tensor([-1, -1], contiguity=True, dtype=torch.float32)
        bounded = 3.0 * fd.ops.tanh(x * scale / 3.0)
        fd.add_output(fd.ops.smooth_l1_loss(bounded, target, "none").sum(1))
    return fd


def in_torch(x: torch.Tensor, scale: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The same in torch's words."""
    return torch.nn.functional.smooth_l1_loss(3.0 * torch.tanh(x * scale / 3.0), target, reduction="none").sum(1)


def main() -> None:
    """Show that forward and gradients are torch's, and what the derived backward is."""
    fd = definition()
    op = weft.op("examples::bounded_loss", fd)
    x, scale = torch.randn(8, 40, device=DEVICE, requires_grad=True), torch.rand(40, device=DEVICE, requires_grad=True)
    target = torch.randn(8, 40, device=DEVICE)
    compiled = torch.compile(lambda a, s: op(a, s, target).mean(), backend="aot_eager", fullgraph=True)
    want = torch.autograd.grad(in_torch(x, scale, target).mean(), (x, scale))
    for name, loss in (("eager", op(x, scale, target).mean()), ("compiled", compiled(x, scale))):
        got = torch.autograd.grad(loss, (x, scale))
        for a, b in zip(got, want):
            torch.testing.assert_close(a, b)
        print(f"{name}: loss {loss.item():.4f}, gradients equal torch's")
    print("\nThe backward, derived from the definition and one kernel as the forward is:")
    print(fd.autograd().definition_of_backward(x, scale, target))


if __name__ == "__main__":
    main()
