"""Channels, groups and columns: batch norm, group norm, softmax across memory, running sums and sums down columns, as fractions of a copy.

    python bench/channels.py [OUT.json] [--seconds 120] [--only REGEX]

Each figure with the error against torch in float64, and whether 20 calls agree in every bit. Kernels are compiled by 16 processes before anything is measured.
Read first: `CASES`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from checked import checked_parser, run

from weft import DataType, FusionDefinition
from weft.ir.values import TensorView

BF16, FLOAT = torch.bfloat16, torch.float32
TYPES = {BF16: DataType.BFloat16, FLOAT: DataType.Float}


@dataclass(frozen=True)
class Case:
    """shape: of the first input, and of the residual where there is one. weights: axis of the channels that have a weight and a bias."""

    name: str
    shape: tuple[int, ...]
    define: Callable[..., TensorView]
    reference: Callable[..., torch.Tensor]
    dtype: torch.dtype = BF16
    weights: int | None = None
    has_residual: bool = False

    @property
    def label(self) -> str:
        return f"{self.name} {str(self.dtype)[6:]} {'x'.join(map(str, self.shape))}"

    def inputs(self, device: str) -> list[torch.Tensor]:
        """Random inputs."""
        shapes = [self.shape] + ([] if self.weights is None else [(self.shape[self.weights],)] * 2) + [self.shape] * self.has_residual
        return [torch.randn(shape, device=device).to(self.dtype) for shape in shapes]

    def definition(self) -> FusionDefinition:
        """The definition for inputs of this shape."""
        with FusionDefinition() as fd:
            given = [fd.define_tensor([-1] * t.dim(), contiguity=True, dtype=TYPES[self.dtype]) for t in self.inputs("meta")]
            wide = [fd.ops.cast(t, DataType.Float) for t in given]
            fd.add_output(fd.ops.cast(self.define(fd, self.shape, *wide), TYPES[self.dtype]))
        return fd

    def wanted(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [self.reference(*(t.double() for t in inputs))]


def normalized(fd: FusionDefinition, x: TensorView, axes: list[int]) -> TensorView:
    """Subtract the mean and divide by the standard deviation."""
    var, mean = fd.ops.var_mean(x, axes, correction=0, keepdim=True)
    return fd.ops.mul(fd.ops.sub(x, mean), fd.ops.rsqrt(fd.ops.add(var, 1e-5)))


def scaled(fd: FusionDefinition, y: TensorView, weight: TensorView, bias: TensorView, axis: int) -> TensorView:
    """Multiply by the weight of each channel and add its bias."""
    return fd.ops.add(fd.ops.mul(y, fd.ops.broadcast_in_dim(weight, y.shape(), [axis])), fd.ops.broadcast_in_dim(bias, y.shape(), [axis]))


def batch_norm(axis: int) -> Callable[..., TensorView]:
    """Batch norm of training, and relu(it + residual) where there is one; axis: of the channels."""

    def define(fd: FusionDefinition, shape: tuple[int, ...], x: TensorView, w: TensorView, b: TensorView, r: TensorView | None = None) -> TensorView:
        y = scaled(fd, normalized(fd, x, [n for n in range(len(shape)) if n != axis]), w, b, axis)
        return y if r is None else fd.ops.relu(fd.ops.add(y, r))

    return define


def batch_norm_reference(axis: int) -> Callable[..., torch.Tensor]:
    def reference(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, r: torch.Tensor | None = None) -> torch.Tensor:
        y = F.batch_norm(x.movedim(axis, 1), None, None, w, b, training=True).movedim(1, axis)
        return y if r is None else F.relu(y + r)

    return reference


def group_norm(fd: FusionDefinition, shape: tuple[int, ...], x: TensorView, w: TensorView, b: TensorView) -> TensorView:
    """Group norm in 32 groups."""
    n, c, *image = shape
    groups = fd.ops.reshape(x, new_shape=[n, 32, c // 32, *image])
    return scaled(fd, fd.ops.reshape(normalized(fd, groups, list(range(2, 3 + len(image)))), new_shape=list(shape)), w, b, 1)


def softmax_across(fd: FusionDefinition, shape: tuple[int, ...], x: TensorView) -> TensorView:
    """Softmax over the first axis."""
    e = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, [0], True)))
    return fd.ops.div(e, fd.ops.sum(e, [0], True))


NORMS = ((64, 256, 56, 56), (128, 256, 28, 28), (32, 64, 112, 112), (256, 512, 14, 14), (256, 2048, 7, 7), (16, 64, 224, 224), (32, 128, 28, 28))
GROUPS = (
    (32, 512, 64, 64), (32, 256, 64, 64), (64, 1280, 16, 16), (16, 320, 128, 128), (8, 128, 256, 256), (64, 640, 32, 32), (128, 512, 14, 14), (128, 1024, 7, 7),
)  # fmt: skip
ACROSS = ((4096, 16384), (2048, 32768), (1024, 65536), (512, 131072), (256, 262144), (150, 400000))
RUNNING = ((8192, 8192), (1000, 20000), (512, 131072), (16384, 1024))
COLUMNS = ((3000, 5001), (8191, 8191), (16384, 4095), (5000, 12345), (60000, 1023), (3000, 5000), (4096, 4096), (2048, 6144), (6000, 2504))
CASES = [
    *(Case("batch_norm", s, batch_norm(1), batch_norm_reference(1), weights=1) for s in NORMS),
    *(Case("batch_norm_residual", s, batch_norm(1), batch_norm_reference(1), weights=1, has_residual=True) for s in NORMS),
    *(Case("batch_norm_channels_last", s, batch_norm(3), batch_norm_reference(3), weights=3) for s in ((64, 56, 56, 256), (16, 28, 28, 512))),
    *(Case("group_norm", s, group_norm, lambda x, w, b: F.group_norm(x, 32, w, b), weights=1) for s in GROUPS),
    *(Case("softmax_across", s, softmax_across, lambda x: torch.softmax(x, 0), dtype=d) for d in (BF16, FLOAT) for s in ACROSS),
    *(Case("cumsum_columns", s, lambda fd, shape, x: fd.ops.cumsum(x, 0), lambda x: x.cumsum(0), dtype=FLOAT) for s in RUNNING),
    *(Case("column_sum", s, lambda fd, shape, x: fd.ops.sum(x, [0]), lambda x: x.sum(0)) for s in COLUMNS),
]
SMOKE = {"batch_norm": (4, 3, 8, 8), "group_norm": (2, 64, 4, 8), "softmax_across": (70, 64), "cumsum_columns": (40, 24), "column_sum": (60, 37)}


def main() -> None:
    arguments = checked_parser(__doc__.splitlines()[0], 120.0).parse_args()
    run(arguments, __file__, CASES, lambda c: replace(c, shape=SMOKE.get(c.name, (4, 8, 8, 16))), lambda case, call: {})


if __name__ == "__main__":
    main()
