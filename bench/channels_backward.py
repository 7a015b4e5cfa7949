"""Batch norm and group norm of training, backward: the gradient of the input, of the weight and of the bias, as fractions of a copy.

    python bench/channels_backward.py [OUT.json] [--seconds 60] [--only REGEX] [--parts]

Inputs: the output's gradient, the input, the weight, and per channel (or group) mean and 1 / standard deviation in float32, as a forward saves them. The bytes
are those of inputs once and results once. Each figure with the largest error of the three against torch's gradients in float64, whether 20 calls agree in every
bit, and the kernels that a call launches; `--parts` times each of them by torch's profiler. Every third case is marked "held": nothing is tuned on it.
Read first: `CASES`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from checked import checked_parser, run
from measure import FLUSHED_BYTES, kernel_times

from weft import DataType, FusionDefinition

TYPES = {torch.bfloat16: DataType.BFloat16, torch.float32: DataType.Float}
GROUPS = 32


@dataclass(frozen=True)
class Case:
    """axis: of the channels. is_grouped: statistics of each sample's groups of channels, else of each channel."""

    name: str
    shape: tuple[int, ...]
    axis: int = 1
    is_grouped: bool = False
    dtype: torch.dtype = torch.bfloat16

    @property
    def label(self) -> str:
        return f"{self.name} {str(self.dtype)[6:]} {'x'.join(map(str, self.shape))}"

    @property
    def groups(self) -> int:
        return min(GROUPS, self.shape[1])

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes of the input as the definition has it: with groups [samples, groups, channels of a group, rest ...]."""
        n, c, *rest = self.shape
        return (n, self.groups, c // self.groups, *rest) if self.is_grouped else self.shape

    @property
    def kept(self) -> tuple[int, ...]:
        """Axes of the statistics."""
        return (0, 1) if self.is_grouped else (self.axis,)

    @property
    def channels(self) -> tuple[int, ...]:
        """Axes of the weight."""
        return (1, 2) if self.is_grouped else (self.axis,)

    def inputs(self, device: str) -> list[torch.Tensor]:
        """Gradient, input, weight, mean and 1 / standard deviation."""
        dy, x = (torch.randn(self.sizes, device=device).to(self.dtype) for _ in range(2))
        weight = torch.randn([self.sizes[n] for n in self.channels], device=device).to(self.dtype)
        if device == "meta":
            return [dy, x, weight, *(torch.empty([self.sizes[n] for n in self.kept], device=device) for _ in range(2))]
        var, mean = torch.var_mean(x.double(), [n for n in range(x.dim()) if n not in self.kept], correction=0)
        return [dy, x, weight, mean.float(), (var + 1e-5).rsqrt().float()]

    def definition(self) -> FusionDefinition:
        """The definition for inputs of this shape, all sizes open."""
        with FusionDefinition() as fd:
            ops, dims = fd.ops, range(len(self.sizes))
            given = [fd.define_tensor([-1] * t.dim(), contiguity=True, dtype=TYPES[t.dtype]) for t in self.inputs("meta")]
            dy, x, weight, mean, rstd = (ops.cast(t, DataType.Float) for t in given)
            within, across = ([n for n in dims if n not in axes] for axes in (self.kept, self.channels))

            def spread(t: Any, axes: tuple[int, ...]) -> Any:
                return ops.broadcast_in_dim(t, x.shape(), list(axes))

            scale = spread(rstd, self.kept)
            normal, scaled = ops.mul(ops.sub(x, spread(mean, self.kept)), scale), ops.mul(dy, spread(weight, self.channels))
            share = 1.0
            for n in within:
                share = ops.mul(share, x.size(n))
            share = ops.reciprocal(share)
            plain, tilted = (ops.mul(ops.sum(t, within, keepdim=True), share) for t in (scaled, ops.mul(scaled, normal)))
            dx = ops.mul(scale, ops.sub(scaled, ops.add(plain, ops.mul(normal, tilted))))
            for t in (dx, ops.sum(ops.mul(dy, normal), across), ops.sum(dy, across)):
                fd.add_output(ops.cast(t, TYPES[self.dtype]))
        return fd

    def wanted(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Torch's gradients in float64."""
        dy, x, weight = (t.double() for t in inputs[:3])
        bias = torch.zeros_like(weight)
        leaves = [t.requires_grad_() for t in (x, weight, bias)]
        if self.is_grouped:
            y = F.group_norm(x.flatten(1, 2), self.groups, weight.flatten(), bias.flatten()).view(x.shape)
        else:
            y = F.batch_norm(x.movedim(self.axis, 1), None, None, weight, bias, training=True).movedim(1, self.axis)
        return list(torch.autograd.grad(y, leaves, dy))


BATCHES = (
    (64, 256, 56, 56), (128, 256, 28, 28), (32, 64, 112, 112), (256, 512, 14, 14), (256, 2048, 7, 7), (16, 64, 224, 224), (32, 128, 28, 28), (48, 96, 96, 96),
    (128, 1024, 14, 14),
)  # fmt: skip
GROUPED = (
    (32, 512, 64, 64), (32, 256, 64, 64), (64, 1280, 16, 16), (16, 320, 128, 128), (8, 128, 256, 256), (64, 640, 32, 32), (128, 512, 14, 14), (24, 192, 80, 80),
)  # fmt: skip
LAST = ((64, 56, 56, 256), (16, 28, 28, 512), (40, 48, 48, 320))
CASES = [
    *(Case("batch_norm_backward", s) for s in BATCHES), *(Case("group_norm_backward", s, is_grouped=True) for s in GROUPED),
    *(Case("batch_norm_backward_last", s, axis=3) for s in LAST), Case("batch_norm_backward", (64, 256, 56, 56), dtype=torch.float32),
]  # fmt: skip
HELD = frozenset(c.label for c in CASES[2::3])
SMOKE = {"batch_norm_backward": (4, 3, 8, 8), "group_norm_backward": (2, 64, 4, 8), "batch_norm_backward_last": (4, 8, 8, 16)}


def parts_of(call: Any) -> dict[str, float]:
    """Return kernel -> microseconds of a call, by torch's profiler."""
    return {k.name: round(k.us / k.count, 1) for k in kernel_times(call, 10, flushed_bytes=FLUSHED_BYTES) if k.name.startswith("weft_")}


def main() -> None:
    arguments = checked_parser(__doc__.splitlines()[0], 60.0)
    arguments.add_argument("--parts", action="store_true")
    a = arguments.parse_args()

    def more(case: Case, call: Any) -> dict[str, Any]:
        return {"held": case.label in HELD, "parts": parts_of(call) if a.parts and not a.cpu_smoke else {}}

    run(a, __file__, CASES, lambda c: replace(c, shape=SMOKE[c.name]), more)


if __name__ == "__main__":
    main()
