"""The reference's values, each with how far a right result may lie from it.

An evaluation in float64 carries a bound of the error along with each value: of a pointwise op what its operands' errors change its result by, and its own
rounding; of a sum all of its terms' errors, and the roundings of its partial sums (`summed.py`). Linear in the size of the fusion: some evaluations per node.
Owns the rule of each node. Read first: `evaluate_with_bounds`, `_pointwise`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..analysis.precision import wide_tensors
from ..dtypes import DataType
from ..ir.block_ops import BlockFoldOp, BlockHadamardOp, BlockSampleOp, GroupFoldOp, GroupResultOp
from ..ir.fusion import Fusion
from ..ir.graph_ops import BagOp, CatOp, LookupOp, ReshapeOp, ScanOp, ScatterOp, TorchOp
from ..ir.values import (
    BroadcastOp, ExpandOp, Expr, FullOp, IotaOp, LoadStoreOp, PointwiseOp, RandomOp, ReductionOp, SqueezeOp, TensorView, Val, WelfordOp,
)  # fmt: skip
from ..ops import torch_ops
from ..ops.monoids import MONOIDS
from ..ops.registry import OpDef, lookup
from .index_rules import look_up
from .interpreter import RULES, Machine, is_second_part, reduced_dims
from .summed import STEP, product_bound, scan_bound, sum_bound
from .tolerance import UNIT_ROUNDOFF
from .torch_types import torch_dtype

AS_WIDE = (DataType.Double, DataType.ComplexDouble)
"""Types in which the reference rounds, too."""
SEEN_IN_16_BITS = 3e-5
"""Relative error of formulas that serve where results are seen in 16 bits (`OpDef.text`)."""
DRAWN = 64
"""Error of random numbers in roundoffs of the largest: the radius, below 7, times the sine's error, one roundoff of 2 pi."""
UNKNOWN = 8
"""Error of an op without a rule, in roundoffs of its largest result for each halving of what it reads per result."""


@dataclass(frozen=True)
class Bounded:
    """An output in float64 (or in its own type, if that is no float), and how far each element may lie from it: float64, or None for not at all."""

    value: torch.Tensor
    bound: torch.Tensor | None


def evaluate_with_bounds(fusion: Fusion, args: Sequence[Any], *, philox: tuple[int, int] | None = None, hidden: bool = False) -> list[Bounded]:
    """Return what `interpreter.evaluate` does in double precision, and the bounds of the errors of kernels that compute in the fusion's own types.

    A bound is infinite where the fusion is undecided: where errors reach a pole, or the largest number of a type. Errors: those of `evaluate`.
    """
    machine = _BoundedMachine(fusion, philox)
    machine.bind(args)
    machine.run_all()
    return [Bounded(machine.output(v), machine.output_bound(v)) for v in fusion.outputs() if hidden or v not in fusion.hidden_outputs]


class _BoundedMachine(Machine):
    """Values and bounds by `Val`. bounds has no entry for a value that is exact."""

    def __init__(self, fusion: Fusion, philox: tuple[int, int] | None) -> None:
        super().__init__(fusion, True, philox)
        self.bounds: dict[Val, torch.Tensor] = {}
        self.wide = wide_tensors(fusion)
        self.of_outputs: dict[Val, torch.Tensor] = {}

    def run(self, node: Expr) -> None:
        super().run(node)
        found = _BOUNDS.get(type(node), _unknown)(self, node)
        for value, bound in zip(node.outputs, found if isinstance(found, tuple) else (found,) * len(node.outputs)):
            if bound is not None and not isinstance(self.tensors[value], list):
                self.of_outputs[value] = self.without_nan(value, bound)
                self.bounds[value] = self.limited(value, self.of_outputs[value])

    def forget(self, value: Val) -> None:
        super().forget(value)
        self.bounds.pop(value, None)
        self.of_outputs.pop(value, None)

    def without_nan(self, value: Val, bound: torch.Tensor) -> torch.Tensor:
        """Return a bound that is a number everywhere: infinite where it was none, 0 where the value is none either."""
        result = self.tensors[value]
        if not math.isnan(_largest(bound)):
            return bound.broadcast_to(torch.broadcast_shapes(bound.shape, result.shape))
        return torch.where(bound.isnan(), torch.where(result.isfinite(), math.inf, 0.0), bound)

    def limited(self, value: Val, bound: torch.Tensor) -> torch.Tensor:
        """Return a bound for those who read a value: infinite where its type has no such number, and 0 where the value is infinite or no number."""
        dtype, result = value.dtype(), self.tensors[value]  # type: ignore[attr-defined]
        most = torch.finfo(torch_dtype(dtype) if dtype in (DataType.Float, DataType.Half, DataType.BFloat16) else torch.float64).max
        if not result.is_floating_point() or _is_within(result, most):
            return bound
        bound = torch.where(result.isfinite() | (bound == math.inf), bound, 0.0)
        return torch.where((result.abs() > most) & result.isfinite(), math.inf, bound)

    def output_bound(self, value: Val) -> torch.Tensor | None:
        bound = self.of_outputs.get(value)
        if bound is None or not isinstance(value, TensorView):
            return None
        return bound.expand_as(self.tensors[value]).reshape(self.output(value).shape)

    def operand_bound(self, value: Val, compute: DataType) -> torch.Tensor | None:
        """Return how far an operand may lie from its value: of a scalar, as far as its rounding to the type computed in."""
        if isinstance(value, TensorView):
            return self.bounds.get(value)
        number = self.operand(value, compute)
        if compute is not DataType.Float or not bool(number.isfinite()):
            return None
        away = (number - number.to(torch.float32)).abs()
        return away if bool(away) else None

    def bounds_in_place(self, node: Expr, values: Sequence[Val]) -> "_BoundedMachine":
        """Return a machine in which bounds stand for these values."""
        other = object.__new__(_BoundedMachine)
        other.__dict__.update(self.__dict__)
        other.tensors = dict(self.tensors)
        other.tensors.update({v: self.bound_or_zeros(v) for v in values})
        return other

    def bound_or_zeros(self, value: Val) -> torch.Tensor:
        bound = self.bounds.get(value)
        return torch.zeros_like(self.tensors[value], dtype=torch.float64) if bound is None else bound


def _as_it_lies(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor's elements in the order of its memory, repeated ones once: torch copies others before it folds them all."""
    for dim in (d for d, (size, stride) in enumerate(zip(x.shape, x.stride())) if size > 1 and not stride):
        x = x.narrow(dim, 0, 1)
    return x if x.is_contiguous() else x.permute(sorted(range(x.dim()), key=x.stride, reverse=True))


def _largest(x: torch.Tensor) -> float:
    """Return the largest element: no number where any is none, 0 where there are none. Most tensors need no more than this look at them."""
    return float(_as_it_lies(x).max()) if x.numel() else 0.0


def _is_within(x: torch.Tensor, most: float) -> bool:
    """True where no element of a tensor of floats is larger than `most` in magnitude, infinite, or no number."""
    if not x.numel():
        return True
    least, largest = _as_it_lies(x).aminmax()
    return -most <= float(least) and float(largest) <= most


def _size(x: torch.Tensor) -> torch.Tensor:
    """Return magnitudes in float64, 0 for what is infinite or no number; memory of their own."""
    sizes = (x if x.is_complex() else x.to(torch.float64)).abs()
    return sizes if math.isfinite(_largest(sizes)) else _finite(x if x.is_complex() else x.to(torch.float64)).abs()


def _roundoff(value: Val) -> float:
    """Return the unit roundoff of a value's type, 0 for one that is no float; twice as much for one in which the reference rounds, too."""
    dtype = value.dtype()  # type: ignore[attr-defined]
    return UNIT_ROUNDOFF.get(dtype, 0.0) * (2 if dtype in AS_WIDE else 1)


def _rounding(result: torch.Tensor, dtype: DataType, ulp: int, moved: torch.Tensor | None) -> torch.Tensor:
    """Return how far a rounded result may be off: by `ulp` units and one more. moved: what the operands' bounds change; where that is nothing, a result that
    is rounded correctly (ulp 0) and needs no rounding is exact.
    """
    bound = _size(result).mul_(2 * UNIT_ROUNDOFF[dtype] * (ulp + 1))
    if dtype in AS_WIDE:
        return bound.mul_(2)
    bound += _least(dtype)
    if ulp:
        return bound
    is_exact = result.to(torch_dtype(dtype)) == result
    return bound.masked_fill_(is_exact if moved is None else is_exact & (moved == 0), 0.0)


def _least(dtype: DataType) -> float:
    """Return the error of numbers below the normal ones, which may be flushed to zero; more where a factor of a product is one of them."""
    return 2.0**-24 if dtype is DataType.Half else 0.0 if dtype in AS_WIDE else 2.0**-119


def _shifted(x: torch.Tensor, bound: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield operands at the ends of their bounds."""
    if x.dtype is torch.bool:
        yield x ^ (bound > 0)
    elif x.is_floating_point() or x.is_complex():
        for step in (bound, -bound, *((1j * bound, -1j * bound) if x.is_complex() else ())):
            yield x + step
    else:
        whole = bound.ceil().nan_to_num(posinf=2.0**62).to(x.dtype)
        yield x + whole
        yield x - whole


def _apart(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return how far two results are apart: 0 where both are the same, no number included, and infinite where only one is a number."""
    if a.dtype is torch.bool:
        return (a != b).to(torch.float64)
    apart = (a - b).abs().to(torch.float64)
    if math.isfinite(_largest(apart)):
        return apart
    same = (a == b) | (a.isnan() & b.isnan())
    return torch.where(same, 0.0, apart.nan_to_num(nan=math.inf, posinf=math.inf))


def _moved_by(m: _BoundedMachine, node: Expr, compute: Callable[..., torch.Tensor], operands: list[torch.Tensor], bounds: list[Any]) -> torch.Tensor | None:
    """Return by how much operands within their bounds change the result of a node, to first order: the sum over operands. None for not at all."""
    value = node.outputs[0]
    assert isinstance(value, TensorView)
    total = None
    for place, bound in enumerate(bounds):
        if bound is None:
            continue
        steps = bound * len(operands) if value.dtype().is_bool else bound  # a comparison turns only when all of its operands have moved
        away = None
        for shifted in _shifted(operands[place], steps):
            result = m.typed(node, value, compute(*operands[:place], shifted, *operands[place + 1 :]))
            apart = _apart(result, m.tensors[value])
            away = apart if away is None else torch.maximum(away, apart)
        total = _sum(total, away)
    return total


def _sum(*bounds: torch.Tensor | None) -> Any:
    """Return the sum of bounds, None for exact."""
    given = [b for b in bounds if b is not None]
    return sum(given[1:], given[0]) if given else None


# ---------------------------------------------------------------- element by element
def _pointwise(m: _BoundedMachine, node: Expr) -> Any:
    name, compute, value = node.attributes["op"], node.attributes["compute"], node.outputs[0]
    assert isinstance(value, TensorView)
    op, result = lookup(name), m.tensors[value]
    if any(isinstance(m.tensors.get(v), list) for v in node.inputs):
        return _unknown(m, node)
    types = [op.fixed.get(i, compute) for i in range(len(node.inputs))]
    operands = [m.operand(v, dtype) for v, dtype in zip(node.inputs, types)]
    bounds = [m.operand_bound(v, dtype) for v, dtype in zip(node.inputs, types)]
    if op.ulp > 1 and compute in UNIT_ROUNDOFF:  # of more than one step: exact for operands that differ by roundings
        bounds = [_sum(b, 2 * UNIT_ROUNDOFF[compute] * _size(x)) for b, x in zip(bounds, operands)]
    moved = _moved_by(m, node, op.ref, operands, bounds)
    given = [b for b in bounds if b is not None]
    if name == "mul" and len(given) == 2:  # of second order: all there is where both factors are zeros that are off by roundings
        moved = _sum(moved, given[0] * given[1])
    return _sum(moved, _own_rounding(m, op, node, result, moved))


def _own_rounding(m: _BoundedMachine, op: OpDef, node: Expr, result: torch.Tensor, moved: torch.Tensor | None) -> torch.Tensor | None:
    value = node.outputs[0]
    assert isinstance(value, TensorView)
    dtype, compute = value.dtype(), node.attributes["compute"]
    if dtype not in UNIT_ROUNDOFF or dtype.is_narrow_float:  # results of narrow types are rounded by the reference, too
        return None
    if op.name == "cast" and compute in UNIT_ROUNDOFF and UNIT_ROUNDOFF[dtype] <= UNIT_ROUNDOFF[compute]:
        return None
    bound = _rounding(result, dtype, op.ulp, moved)
    if dtype.is_complex:  # parts cancel
        bound = bound + 60 * UNIT_ROUNDOFF[dtype] * (1 + _size(result)) * (op.name != "cast")
    if compute is DataType.Float and "narrow" in op.text and value not in m.wide:
        bound = bound + SEEN_IN_16_BITS * _size(result)
    return bound if bool(bound.any()) else None


def _block_fold(m: _BoundedMachine, node: Any) -> Any:
    bound = m.bounds.get(node.inputs[0])
    if not isinstance(node, BlockHadamardOp):
        return None if bound is None else RULES[BlockFoldOp](m.bounds_in_place(node, node.inputs[:1]), node)
    x = m.tensors[node.inputs[0]]
    own = 10 * UNIT_ROUNDOFF[node.attributes["compute"]] * _size(x)
    spread = _sum(bound, own)
    return spread.unflatten(-1, (-1, 16)).sum(-1, keepdim=True).expand(*x.shape[:-1], -1, 16).flatten(-2) / 4 if x.numel() else spread


# ---------------------------------------------------------------- moved
def _moved(m: _BoundedMachine, node: Expr) -> Any:
    sources = node.inputs if isinstance(node, CatOp) else node.inputs[:1]
    if not any(v in m.bounds for v in sources):
        return None
    return RULES[type(node)](m.bounds_in_place(node, sources), node)


def _looked_up(m: _BoundedMachine, node: LookupOp) -> Any:
    fill = node.inputs[-1] if node.is_masked else None
    if node.source not in m.bounds and fill not in m.bounds:
        return None
    indices = {n: m.tensors[v] for n, v in enumerate(node.inputs) if n and isinstance(v, TensorView)}
    shape = m.shape(node.outputs[0])  # type: ignore[arg-type]
    instead = None if fill is None else m.bounds.get(fill, torch.zeros((), dtype=torch.float64, device=m.device))
    return look_up(node, m.bound_or_zeros(node.source), indices, shape, m.number, instead)


def _bag_sums(m: _BoundedMachine, node: BagOp) -> Any:
    """Of a sum of k terms one after the other: k - 1 roundoffs of the sum of their sizes at most, and one of each product with a weight."""
    indices, weights = {n: m.tensors[v] for n, v in enumerate(node.inputs) if n}, node.bag.weights
    shape, x = m.shape(node.outputs[0]), m.tensors[node.source]  # type: ignore[arg-type]
    sizes = indices if weights is None else {**indices, weights: _size(_finite(indices[weights]))}
    given = None if node.source not in m.bounds else look_up(node, m.bounds[node.source].expand(x.shape), sizes, shape, m.number, None)
    if weights is not None and (factor := node.inputs[weights]) in m.bounds:
        wrong = {**indices, weights: m.bounds[factor].expand(indices[weights].shape)}
        given = _sum(given, look_up(node, _size(_finite(x)), wrong, shape, m.number, None))
    roundoff = _roundoff(node.outputs[0])
    if not roundoff:
        return given
    count = (indices[node.bag.end] - indices[node.bag.operand]).clamp_min(0)
    return _sum(given, roundoff * count * look_up(node, _size(_finite(x)), sizes, shape, m.number, None))


def _full(m: _BoundedMachine, node: Expr) -> Any:
    out = node.outputs[0]
    bound = m.operand_bound(node.inputs[0], out.dtype())  # type: ignore[attr-defined]
    return bound if bound is None else bound.expand(m.shape(out))  # type: ignore[arg-type]


def _made(m: _BoundedMachine, node: Expr) -> Any:
    """Iotas and random numbers: some roundoffs of the largest."""
    result = m.tensors[node.outputs[0]]
    if not _roundoff(node.outputs[0]) or not result.numel():
        return None
    steps = DRAWN if isinstance(node, RandomOp) else 2
    return torch.full_like(result, steps * _roundoff(node.outputs[0]) * float(_size(result).max()))


# ---------------------------------------------------------------- folded
def _reduction(m: _BoundedMachine, node: Expr) -> Any:
    first, value, kind = node.inputs[0], node.outputs[0], node.attributes["kind"]
    bound = m.bounds.get(first)
    if is_second_part(node):
        return bound
    if isinstance(m.tensors[value], list) or len(node.inputs) > 1:
        return _unknown(m, node)
    x, dims, dtype = m.tensors[first], reduced_dims(value), value.dtype()  # type: ignore[attr-defined]
    if kind == "sum":
        return _sum(None if bound is None else bound.sum(dims), _of_sum(x, dims, value))
    monoid = MONOIDS[kind]
    if monoid.has_rounding and dtype in UNIT_ROUNDOFF:
        bound = _sum(bound, 2 * UNIT_ROUNDOFF[dtype] * _size(x))
        x = x.abs() if kind == "prod" else x
    if bound is None or not x.numel():
        return None
    folded = monoid.reduce(x, dims, False)
    moved = torch.stack([_apart(monoid.reduce(shifted, dims, False), folded) for shifted in _shifted(x, bound)]).amax(0)
    if not monoid.has_rounding or dtype not in UNIT_ROUNDOFF:
        return moved
    steps = 0.0 if kind == "prod" else _roundoff(value) * STEP * (x.numel() / moved.numel()) ** 0.5
    return moved + steps * _size(folded) + _least(dtype)


def _of_sum(x: torch.Tensor, dims: list[int], value: Val) -> torch.Tensor | None:
    roundoff = _roundoff(value)
    if not roundoff or not (x.is_floating_point() or x.is_complex()):
        return None
    carried = min(roundoff, UNIT_ROUNDOFF[DataType.Float])
    return sum_bound(_finite(x), dims, carried) + (roundoff * _size(x.sum(dims)) if roundoff > carried else 0.0)


def _finite(x: torch.Tensor) -> torch.Tensor:
    """Return values with 0 in place of those that are infinite or no number: kernels get the same of these, without rounding."""
    if x.is_floating_point() and _is_within(x, torch.finfo(x.dtype).max):
        return x
    return torch.where(x.isfinite(), x, 0.0)


def _welford(m: _BoundedMachine, node: Expr) -> Any:
    """Of the mean, the sum of squared deviations, and the count. Squares are summed about a shift, which is one of the numbers (`weft/ops/moments.py`): what is
    rounded is as large as their distances from the shift, of which the farthest is taken."""
    x, dims = _finite(m.tensors[node.inputs[0]]), reduced_dims(node.outputs[0])
    count = max(1, math.prod(x.shape[d] for d in dims))
    given, roundoff = m.bound_or_zeros(node.inputs[0]), _roundoff(node.outputs[0])
    of_mean = given.sum(dims, keepdim=True) / count
    mean = x.mean(dims, keepdim=True)
    of_mean = of_mean + (sum_bound(x, dims, roundoff).view(mean.shape) / count + 2 * roundoff * mean.abs())
    deviation = (x - mean).abs()
    about = deviation.square() + (deviation.square().amax(dims, keepdim=True) if deviation.numel() else 0.0)  # their sum is that of squares about the shift
    away = given + 2 * roundoff * about.sqrt()
    of_squares = (2 * deviation * given + given.square() + 4 * roundoff * about).sum(dims) + sum_bound(about, dims, roundoff)
    # the error of the mean is common to all deviations, whose sum is 0
    of_squares = of_squares + (count * of_mean.square() + 2 * of_mean * away.sum(dims, keepdim=True)).view(of_squares.shape)
    return of_mean.view(of_squares.shape), of_squares, None


def _scan(m: _BoundedMachine, node: Expr) -> Any:
    x, kind, dim, roundoff = m.tensors[node.inputs[0]], node.attributes["kind"], node.attributes["dim"], _roundoff(node.outputs[0])
    bound, start = m.bounds.get(node.inputs[0]), node.inputs[1:]
    if node.attributes.get("positions"):
        return _running_extrema(x, bound, kind, dim)
    if kind == "linear_recurrence":
        return _recurrence(m, node) if x.numel() else None
    if start or not x.numel() or not x.dim():
        return _unknown(m, node) if x.numel() else None
    if kind == "sum":
        own = None
        if roundoff and (x.is_floating_point() or x.is_complex()):
            carried = min(roundoff, UNIT_ROUNDOFF[DataType.Float])
            own = scan_bound(_finite(x), dim, carried) + (roundoff * _size(m.tensors[node.outputs[0]]) if roundoff > carried else 0.0)
        return _sum(None if bound is None else bound.cumsum(dim), own)
    own = _of_running_logsumexp(m.tensors[node.outputs[0]], dim, roundoff) if kind == "logsumexp" and roundoff else None
    if kind == "prod" and roundoff:
        bound, x = _sum(bound, 2 * roundoff * _size(x)), x.abs()
    if bound is None:
        return own
    found, *shifted = (torch_ops.run("scan", [t], {"dim": dim, "kind": kind})[0] for t in (x, *_shifted(x, bound)))
    moved = torch.stack([_apart(t, found) for t in shifted]).amax(0)
    return _sum(moved + _least(node.outputs[0].dtype()) if kind == "prod" and roundoff else moved, own)  # type: ignore[attr-defined]


def _recurrence(m: _BoundedMachine, node: Expr) -> Any:
    """Each step adds roundings of its product and its sum, in whatever order steps are combined: no term has more than one of each per step that it passes."""
    gate, x = (m.tensors[v] for v in node.inputs)
    of_gate, of_x = (m.bounds.get(v) for v in node.inputs)
    dim, roundoff, is_reversed = node.attributes["dim"], _roundoff(node.outputs[0]), bool(node.attributes.get("reverse"))

    def run(gates: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = torch_ops.run("scan", [gates, values], {"dim": dim, "kind": "linear_recurrence", "reverse": is_reversed})[0]
        return found

    widest = _finite(gate).abs() if of_gate is None else _finite(gate).abs() + of_gate
    size = run(widest, _finite(x).abs() if of_x is None else _finite(x).abs() + of_x)
    carried = min(roundoff, UNIT_ROUNDOFF[DataType.Float]) if roundoff else 0.0
    added = 2 * carried * size
    if of_x is not None:
        added = added + of_x
    if of_gate is not None:  # of the value before
        before = torch.cat([size.narrow(dim, 1, size.shape[dim] - 1), torch.zeros_like(size.narrow(dim, 0, 1))], dim)
        after = torch.cat([torch.zeros_like(size.narrow(dim, 0, 1)), size.narrow(dim, 0, size.shape[dim] - 1)], dim)
        added = added + of_gate * (before if is_reversed else after)
    return run(widest, added) + (roundoff * _size(m.tensors[node.outputs[0]]) if roundoff > carried else 0.0)


def _running_extrema(x: torch.Tensor, bound: torch.Tensor | None, kind: str, dim: int) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Of the values, and of their positions: those behind an element that is not exact may be anywhere, because it may be equal to another one."""
    if bound is None or not x.numel() or not x.dim():
        return None, None
    found, *shifted = (torch_ops.run("scan", [t], {"dim": dim, "kind": kind})[0] for t in (x, *_shifted(x, bound)))
    moved = torch.stack([_apart(t, found) for t in shifted]).amax(0)
    return moved, torch.where(bound.expand(x.shape).cummax(dim).values > 0, float(x.shape[dim]), 0.0)


STEP_OF_LOGARITHM = 8
"""Roundoffs of one sum of two exponentials, relative to that sum: those of an exponential and a logarithm."""


def _of_running_logsumexp(out: torch.Tensor, dim: int, roundoff: float) -> torch.Tensor:
    """In torch each step rounds the logarithm so far, and the sum of which it is the logarithm; in a kernel each step rounds the sum alone. What is carried on
    is as wide as float at least."""
    carried, out = min(roundoff, UNIT_ROUNDOFF[DataType.Float]), _finite(out)
    steps = carried * STEP * max(1, out.shape[dim]) ** 0.5
    return steps * (out.abs().cummax(dim).values + STEP_OF_LOGARITHM) + (roundoff * out.abs() if roundoff > carried else 0.0)


def _scatter(m: _BoundedMachine, node: Expr) -> Any:
    """What is added to one element is a sum in some order; what is set or compared has its own bound, of which the largest counts."""
    base, index, source = node.inputs
    kind, roundoff = node.attributes["kind"], _roundoff(node.outputs[0])
    if not isinstance(source, TensorView) or kind == "prod":
        return _unknown(m, node)
    run = lambda a, b, how: torch_ops.run("scatter", [a, m.tensors[index], b], {**node.attributes, "kind": how})[0]  # noqa: E731
    given = m.bound_or_zeros(base), m.bound_or_zeros(source)
    if kind != "sum":
        return run(*given, "max") if base in m.bounds or source in m.bounds else None
    size = run(_size(m.tensors[base]), _size(m.tensors[source]), "sum")
    count = run(torch.ones_like(given[0]), torch.ones_like(given[1]), "sum")
    return run(*given, "sum") + roundoff * 8 * count.sqrt() * size if roundoff else run(*given, "sum")


# ---------------------------------------------------------------- run by torch
PRODUCTS = ("matmul", "linear", "grouped_mm")


def _torch_op(m: _BoundedMachine, node: Expr) -> Any:
    if torch_ops.entry_of(node) not in PRODUCTS:
        return _unknown(m, node, only_moves=len(node.tensor_inputs) < 2)
    roundoff = _roundoff(node.outputs[0])
    attributes = {key: m.attribute(value) for key, value in node.attributes.items()}
    run = lambda *operands: torch_ops.run(node.op_name, operands, attributes)[0]  # noqa: E731
    operands, bias = [m.tensors[v] for v in node.inputs[:2]], node.inputs[2:]
    rest = [m.tensors[v] for v in bias] if node.op_name == "grouped_mm" else []  # offsets
    sizes = [_size(x) for x in operands]
    total, squares = run(*map(_finite, operands), *rest), run(*(x.square() for x in sizes), *rest)
    carried = min(roundoff, UNIT_ROUNDOFF[DataType.Float])
    bound = product_bound(total, squares, operands[0].shape[-1], carried)
    if roundoff > carried:  # torch may add up parts of a product in 16 bits
        bound = bound + 2 * roundoff * (squares.sqrt() + _size(total))
    given = [m.bounds.get(v) for v in node.inputs[:2]]
    if any(b is not None for b in given):
        bound = bound + run(*(x if b is None else x + b for x, b in zip(sizes, given)), *rest) - run(*sizes, *rest)
    if node.op_name == "linear" and bias:
        bound = _sum(bound, m.bounds.get(bias[0]), 2 * roundoff * _size(m.tensors[node.outputs[0]]))
    return bound


def _unknown(m: _BoundedMachine, node: Expr, *, only_moves: bool = False) -> Any:
    """An op without a rule: the relative errors of its operands' largest elements, and roundings of its own for each halving of what it reads per result.

    only_moves: it does not compute, as sorting.
    """
    relative, read = 0.0, 1
    for value in node.tensor_inputs:
        x = m.tensors[value]
        if isinstance(x, list) or not x.numel():
            continue
        read = max(read, x.numel())
        bound = m.bounds.get(value)
        largest = float(_size(x).max())
        if bound is not None and largest:
            relative += float(bound.nan_to_num(posinf=largest).max()) / largest
    return tuple(_in_parts(m, out, relative, 0 if only_moves else read) for out in node.outputs)


def _in_parts(m: _BoundedMachine, out: Val, relative: float, read: int) -> torch.Tensor | None:
    """Return one bound for all elements of a result. read: elements that the op reads; 0 for one that only moves them."""
    result, roundoff = m.tensors[out], _roundoff(out)
    if isinstance(result, list) or not result.numel() or not roundoff and not relative:
        return None
    carried = min(roundoff, UNIT_ROUNDOFF[DataType.Float])
    steps = UNKNOWN * (2 + math.log2(max(2, read / result.numel()))) if read else 0.0
    largest = float(_size(result).max())
    return torch.full(result.shape, (relative + steps * carried + 2 * roundoff * (read > 0)) * largest, dtype=torch.float64, device=result.device)


_BOUNDS: dict[type, Callable[[_BoundedMachine, Any], Any]] = {
    PointwiseOp: _pointwise, BlockFoldOp: _block_fold, BlockHadamardOp: _block_fold,
    LoadStoreOp: _moved, BroadcastOp: _moved, SqueezeOp: _moved, ExpandOp: _moved, ReshapeOp: _moved, CatOp: _moved, BlockSampleOp: _moved,
    LookupOp: _looked_up, BagOp: _bag_sums, FullOp: _full, IotaOp: _made, RandomOp: _made, ReductionOp: _reduction, WelfordOp: _welford, ScanOp: _scan,
    ScatterOp: _scatter, TorchOp: _torch_op, GroupFoldOp: _unknown, GroupResultOp: _moved,
}  # fmt: skip

__all__ = ["Bounded", "evaluate_with_bounds"]
