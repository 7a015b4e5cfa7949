"""Definitions over views: how they are defined, what they are given, what torch makes of it.

`CASES` maps a name to a `Case`. Each is defined with constant sizes or, with `is_symbolic`, with sizes that a call brings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from weft import FusionDefinition

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """build(fd, tensors) returns the outputs; reference does the same with float64 tensors. kernels: how many are enough."""

    shapes: tuple[Shape, ...]
    build: Callable[..., Any]
    reference: Callable[..., Any]
    kernels: int = 1
    contiguous: bool = True

    def define(self, *, is_symbolic: bool = False) -> FusionDefinition:
        """Return the definition."""
        with FusionDefinition() as fd:
            tensors = [fd.define_tensor([n if n == 1 or not is_symbolic else -1 for n in s], contiguity=self.contiguous) for s in self.shapes]
            for out in listed(self.build(fd.ops, *tensors)):
                fd.add_output(out)
        return fd

    def inputs(self, shapes: Sequence[Shape] | None = None) -> list[torch.Tensor]:
        """Return random tensors; strided ones where the case says so."""
        generator = torch.Generator().manual_seed(sum(map(sum, self.shapes)))
        out = []
        for shape in shapes or self.shapes:
            if self.contiguous:
                out.append(torch.randn(shape, generator=generator))
            else:
                wide = torch.randn([2 * n + 1 for n in shape], generator=generator)
                out.append(wide[tuple(slice(0, 2 * n, 2) for n in shape)])
        return out

    def expected(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return torch's results in float64."""
        return listed(self.reference(*(x.double() for x in inputs)))


def listed(value: Any) -> list[Any]:
    """Return outputs as a list."""
    return list(value) if isinstance(value, (list, tuple)) else [value]


def softmax(o: Any, x: Any, dim: int) -> Any:
    """softmax of the front end's ops."""
    e = o.exp(o.sub(x, o.max(x, [dim], True)))
    return o.div(e, o.sum(e, [dim], True))


def normed(o: Any, x: Any, dims: list[int]) -> Any:
    """x with mean 0 and variance 1 over dims."""
    variance, mean = o.var_mean(x, dims, 0, True)
    return o.mul(o.sub(x, mean), o.rsqrt(o.add(variance, 1e-5)))


def heads(o: Any, x: Any, count: int) -> Any:
    """[B, E] -> [B, count, E / count]"""
    return o.reshape(x, [o.size(x, 0), count, -1])


def like(o: Any, x: Any, y: Any) -> Any:
    """x in the shape of y."""
    return o.reshape(x, o.shape(y))


def torch_normed(x: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    """`normed` of torch."""
    return (x - x.mean(dims, keepdim=True)) / (x.var(dims, correction=0, keepdim=True) + 1e-5).sqrt()


CASES: dict[str, Case] = {
    "softmax over heads after a split": Case(
        ((5, 24),), lambda o, x: like(o, softmax(o, heads(o, x, 3), 2), x), lambda x: x.reshape(x.shape[0], 3, -1).softmax(2).reshape(x.shape)
    ),
    "softmax of a strided input": Case(
        ((5, 24),), lambda o, x: softmax(o, heads(o, x, 3), 2), lambda x: x.reshape(x.shape[0], 3, -1).softmax(2), contiguous=False
    ),
    "norm after a flatten": Case(
        ((3, 4, 7),), lambda o, x: normed(o, o.reshape(x, [o.size(x, 0), -1]), [1]), lambda x: torch_normed(x.flatten(1), (1,))
    ),
    "sum over merged axes": Case(
        ((3, 4, 5, 7),), lambda o, x: o.sum(o.reshape(x, [o.size(x, 0), -1, o.size(x, 3)]), [1]), lambda x: x.flatten(1, 2).sum(1)
    ),
    "sum over an axis that was split": Case(((5, 24),), lambda o, x: o.sum(heads(o, x, 4), [1]), lambda x: x.reshape(x.shape[0], 4, -1).sum(1)),
    "group norm": Case(
        ((2, 6, 5, 3), (6,)),
        lambda o, x, w: o.mul(like(o, normed(o, o.reshape(x, [o.size(x, 0), 2, -1]), [2]), x), o.broadcast(w, [True, False, True, True])),
        lambda x, w: torch_normed(x.reshape(x.shape[0], 2, -1), (2,)).reshape(x.shape) * w[:, None, None],
    ),
    "flatten, unflatten, add": Case(((4, 6),), lambda o, x: o.add(like(o, o.exp(o.reshape(x, [-1])), x), x), lambda x: x.exp() + x),
    "heads permuted": Case(((5, 24),), lambda o, x: o.exp(o.permute(heads(o, x, 3), [1, 0, 2])), lambda x: x.reshape(x.shape[0], 3, -1).permute(1, 0, 2).exp()),
    "heads merged back": Case(
        ((3, 5, 8),),
        lambda o, x: o.exp(o.reshape(o.permute(o.relu(x), [1, 0, 2]), [o.size(x, 1), -1])), lambda x: x.relu().permute(1, 0, 2).flatten(1).exp(),
    ),
    "a bias of one shape, an input of another": Case(
        ((5, 24), (24,)), lambda o, x, b: o.relu(heads(o, o.add(x, o.broadcast(b, [True, False])), 3)), lambda x, b: (x + b).relu().reshape(x.shape[0], 3, -1)
    ),
    "an input merged beside one that was split": Case(
        ((5, 24), (5, 6, 4)), lambda o, x, y: o.add(heads(o, x, 3), heads(o, o.reshape(y, [o.size(y, 0), -1]), 3)),
        lambda x, y: (x + y.flatten(1)).reshape(x.shape[0], 3, -1),
    ),
    "scores scaled per head": Case(
        ((5, 24), (5, 3, 1)), lambda o, x, s: like(o, o.mul(heads(o, x, 3), s), x), lambda x, s: (x.reshape(x.shape[0], 3, -1) * s).reshape(x.shape),
    ),
    "two outputs of two shapes": Case(
        ((5, 24),), lambda o, x: [o.exp(x), o.sum(heads(o, o.exp(x), 3), [2])], lambda x: [x.exp(), x.exp().reshape(x.shape[0], 3, -1).sum(2)]
    ),
    "an expanded axis merged": Case(
        ((5, 1), (5, 4)), lambda o, x, y: o.add(o.reshape(o.expand(x, [-1, 4]), [-1]), o.reshape(y, [-1])), lambda x, y: (x.expand(-1, 4) + y).flatten()
    ),
}  # fmt: skip

SHIFTED: dict[str, Case] = {
    "a slice split into heads": Case(
        ((5, 24),), lambda o, x: o.exp(heads(o, o.slice(x, [0, 8], [5, 24]), 2)), lambda x: x[:, 8:].reshape(5, 2, 8).exp()
    ),
    "q, k and v": Case(
        ((5, 24),), lambda o, x: [o.exp(heads(o, o.slice(x, [0, 8 * k], [5, 8 * k + 8]), 2)) for k in range(3)],
        lambda x: [x[:, 8 * k : 8 * k + 8].reshape(5, 2, 4).exp() for k in range(3)], kernels=3,
    ),
    "pad": Case(((3, 5),), lambda o, x: o.exp(o.pad(x, [2, -1, 0, 3])), lambda x: torch.nn.functional.pad(x, [2, -1, 0, 3]).exp()),
    "cat": Case(((3, 5), (3, 4)), lambda o, x, y: o.cat([o.exp(x), y], 1), lambda x, y: torch.cat([x.exp(), y], 1)),
    "cat of three along the outer axis": Case(
        ((3, 5), (1, 5), (4, 5)), lambda o, x, y, z: o.exp(o.cat([x, y, z], 0)), lambda x, y, z: torch.cat([x, y, z]).exp()
    ),
    "heads joined": Case(
        ((5, 16), (5, 8)), lambda o, x, y: o.reshape(o.cat([heads(o, x, 4), heads(o, y, 2)], 1), [5, 24]),
        lambda x, y: torch.cat([x.reshape(5, 4, 4), y.reshape(5, 2, 4)], 1).reshape(5, 24),
    ),
}  # fmt: skip

DIVIDED: dict[str, Case] = {
    "no common factorization": Case(((4, 6),), lambda o, x: o.exp(o.reshape(o.relu(x), [6, 4])), lambda x: x.relu().reshape(6, 4).exp(), kernels=2),
    "an expanded axis beside one that does not factor": Case(
        ((3, 5, 6),),
        lambda o, x: [
            o.neg(o.slice(x, [0, 4, 1], [3, 5, 4])), o.reshape(o.expand(o.broadcast(o.exp(x), [False, True, False, False]), [3, 2, 5, 6]), [3, 2, 10, 3]),
        ],
        lambda x: [-x[:, 4:, 1:4], x.exp()[:, None].expand(3, 2, 5, 6).reshape(3, 2, 10, 3)], kernels=3,
    ),
    "one axis split in two ways": Case(
        ((5, 24),), lambda o, x: [o.sum(heads(o, o.exp(x), 4), [2]), o.sum(heads(o, o.exp(x), 6), [2])],
        lambda x: [x.exp().reshape(5, 4, 6).sum(2), x.exp().reshape(5, 6, 4).sum(2)], kernels=3,
    ),
}  # fmt: skip

