"""A plain torch interpreter of a fusion: one torch call per node, nothing from the CUDA texts or the schedules.

Owns the meaning of each node in torch's terms. It is the oracle of `validate` and of tests; nothing runs it in place of a kernel.
Read first: `evaluate`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import expr
from ..analysis.random_numbers import drawing_ops
from ..dtypes import DataType
from ..errors import Unsupported, UserError
from ..expr import Number, Sym
from ..ir.block_ops import BlockFoldOp, BlockHadamardOp, BlockSampleOp, GroupFoldOp, GroupResultOp
from ..ir.fusion import AsWritten, Fusion
from ..ir.graph_ops import BagOp, CatOp, LookupOp, ReshapeOp, ScanOp, ScatterOp, TorchOp
from ..ir.values import (
    BroadcastOp, ExpandOp, Expr, FullOp, IotaOp, IterDomain, LoadStoreOp, PointwiseOp, RandomOp, ReductionOp, Scalar, SqueezeOp, TensorView, Val, WelfordOp,
    no_reductions,
)  # fmt: skip
from ..ops import torch_ops
from ..ops.monoids import MONOIDS, Monoid, StateMonoid
from ..ops.registry import lookup
from . import block_rules, narrow
from . import philox as philox_numbers
from .index_rules import look_up
from .torch_types import torch_dtype


class WrongArguments(UserError):
    code = "W351"
    what = "the fusion has {wanted} inputs; {given} arguments were given"
    fix = "pass one argument per input, in order"


class NoGenerator(UserError):
    code = "W352"
    what = "{op} needs the state of a generator, and there is no CUDA generator to read"
    fix = "pass philox=(seed, offset / 4)"


def evaluate(
    fusion: Fusion, args: Sequence[Any], *, precision: str = "double", philox: tuple[int, int] | None = None, hidden: bool = False
) -> list[torch.Tensor]:
    """Return the outputs of `fusion` for `args` (tensors and numbers, one per input).

    precision: "double" computes all floats in float64 and leaves the outputs in it; "native" computes each node in its own type. Floats of 8 and 4 bits are
    rounded to their values in both; those of 4 bits have one element per value in float64.
    philox: (seed, offset) of the random ops: their index is added to the offset, which counts Philox calls (torch's offset / 4). None: torch's CUDA generator.
    hidden: also return outputs that are only written into an input (aliases).
    Errors: WrongArguments, NoGenerator; Unsupported for a node that only a schedule makes.
    """
    machine = Machine(fusion, precision == "double", philox)
    machine.bind(args)
    machine.run_all()
    return [machine.output(v) for v in fusion.outputs() if hidden or v not in fusion.hidden_outputs]


def input_environment(fusion: Fusion, args: Sequence[Any]) -> dict[Sym, Number]:
    """Return the values of the variables that inputs bring: scalars, sizes and strides. Errors: WrongArguments."""
    inputs = fusion.inputs()
    if len(inputs) != len(args):
        raise WrongArguments(wanted=len(inputs), given=len(args))
    env: dict[Sym, Number] = {}
    for value, arg in zip(inputs, args):
        if not isinstance(value, TensorView):
            assert isinstance(value, Scalar)
            env[value.sym] = arg.item() if isinstance(arg, torch.Tensor) else arg
            continue
        logical = no_reductions(value.get_logical_domain())
        unit, inner = value.dtype().elems_per_unit, packed_axis(value)
        user = value.domain().user
        if user is not None:
            packed = packed_dim(value) if unit > 1 else None
            env.update({sym: size * (unit if dim == packed else 1) for dim, (sym, size) in enumerate(zip(user.extents, arg.shape)) if sym.is_var})
            continue
        for axis, size in zip(logical, arg.shape):
            size = size * unit if axis is inner else size
            env.update({sym: size for sym in (axis.sym, axis.expanded_extent) if sym is not None and sym.is_var})
        for position, axis in enumerate(value.domain().maybe_allocation):
            if any(a is axis for a in logical):
                env[value.stride_var(position)] = arg.stride(_position(logical, axis)) * (1 if axis is inner else unit)
    return env


def packed_axis(value: TensorView) -> IterDomain | None:
    """Return the axis along which elements share bytes: the innermost in memory. None where each has bytes of its own."""
    axes = no_reductions(value.domain().maybe_allocation)
    return axes[-1] if value.dtype().is_packed and axes else None


def packed_dim(value: TensorView) -> int:
    """Return the position of `packed_axis` among the axes that torch sees."""
    axis, user = packed_axis(value), value.domain().user
    if axis is None:
        return -1
    position = _position(no_reductions(value.get_logical_domain()), axis)
    return position if user is None else user.dim_of(position)


class Machine:
    """Values by `Val`, scalars by `Sym`."""

    def __init__(self, fusion: Fusion, double: bool, philox: tuple[int, int] | None) -> None:
        self.fusion, self.double, self.philox = fusion, double, philox
        self.tensors: dict[Val, torch.Tensor] = {}
        self.env: dict[Sym, Number] = {}
        self.memo: dict[Sym, Number] = {}
        self.device = torch.device("cpu")
        self.drawing = drawing_ops(fusion)

    def bind(self, args: Sequence[Any]) -> None:
        """Take the arguments, one per input. Errors: WrongArguments."""
        self.env = input_environment(self.fusion, args)
        on_device = [a for a in args if isinstance(a, torch.Tensor) and a.device.type != "cpu"]
        if on_device:
            self.device = on_device[0].device
        for value, arg in zip(self.fusion.inputs(), args):
            if isinstance(value, TensorView):
                given = arg.detach().to(self.device)
                if value.dtype().is_narrow_float:
                    given = narrow.values_of(given, value.dtype(), packed_dim(value))
                given = given.to(self.dtype(value.dtype()))
                self.tensors[value] = given.reshape(self.shape(value)) if value.domain().user is not None else given

    # -- types and numbers
    def dtype(self, dtype: DataType) -> torch.dtype:
        """Return the type to compute in. Narrow floats are floats that have been rounded to their values, also in double precision."""
        if not self.double and dtype.is_narrow_float:
            return torch.float32
        if self.double and dtype.is_float:
            return torch.float64
        if self.double and dtype.is_complex:
            return torch.complex128
        return torch_dtype(dtype)

    def number(self, sym: Sym) -> Number:
        return expr.evaluate(sym, self.env, self.memo)

    def operand(self, value: Val, dtype: DataType) -> torch.Tensor:
        """Return a tensor operand as it is, a scalar as a tensor without axes of `dtype`."""
        if isinstance(value, TensorView):
            return self.tensors[value]
        assert isinstance(value, Scalar)
        return _to(_exact(self.number(value.sym)).to(self.device), self.dtype(dtype))

    def shape(self, value: TensorView) -> list[int]:
        return [int(self.number(a.logical_extent)) for a in no_reductions(value.get_logical_domain())]  # type: ignore[arg-type]

    def output(self, value: Val) -> torch.Tensor:
        """Return an output with the sizes that the user sees."""
        if isinstance(value, Scalar):
            return _exact(self.number(value.sym)).to(self.dtype(value.dtype()))
        assert isinstance(value, TensorView)
        user = value.domain().user
        result = self.tensors[value]
        if user is not None:
            result = result.reshape([int(self.number(extent)) for extent in user.extents])  # type: ignore[arg-type]
        if value.dtype().is_narrow_float and not self.double:
            return narrow.packed(result, value.dtype(), packed_dim(value))
        return result

    def attribute(self, value: Any) -> Any:
        """Return an attribute of a node as torch knows it: expressions as numbers, types as torch's."""
        if isinstance(value, Sym):
            return self.number(value)
        return torch_dtype(value) if isinstance(value, DataType) else value

    # -- nodes
    def run_all(self) -> None:
        """Run all nodes, and forget each value after its last reader."""
        fusion, nodes = self.fusion, self.fusion.tensor_exprs()
        last: dict[Val, int] = {}
        for place, node in enumerate(nodes):
            written = [fusion.as_written[out].source for out in node.outputs if out in fusion.as_written]
            last.update(dict.fromkeys([*node.outputs, *node.inputs, *written], place))
        done: dict[int, list[Val]] = {}
        for value, place in last.items():
            if value not in fusion.outputs():
                done.setdefault(place, []).append(value)
        for place, node in enumerate(nodes):
            self.run(node)
            for out in node.outputs:
                if out in fusion.as_written:
                    self.run_as_written(out, fusion.as_written[out])
            for value in done.get(place, ()):
                self.forget(value)

    def forget(self, value: Val) -> None:
        """Free the memory of a value."""
        self.tensors.pop(value, None)

    def run(self, node: Expr) -> None:
        """Compute the outputs of a node. Errors: Unsupported."""
        function = RULES.get(type(node))
        if function is None:
            raise Unsupported(f"{node.op_name} in the reference interpreter")
        results = function(self, node)
        for value, result in zip(node.outputs, results if isinstance(results, tuple) else (results,)):
            assert isinstance(value, TensorView)
            if isinstance(result, list):  # a state of several fields
                self.tensors[value] = result  # type: ignore[assignment]
            else:
                self.tensors[value] = self.typed(node, value, result)

    def typed(self, node: Expr, value: TensorView, result: torch.Tensor) -> torch.Tensor:
        """Return what a node computed for `value` in the type that it has here, a narrow float rounded to its values."""
        result = _to(result, self.dtype(value.dtype()))
        is_moved = any(t.dtype() is value.dtype() for t in node.tensor_inputs)  # bit by bit, so that infinity stays; only casts round
        return narrow.rounded(result, value.dtype()) if value.dtype().is_narrow_float and not is_moved else result

    def run_as_written(self, value: Val, written: AsWritten) -> None:
        """Compute a result by what the user asked for, in place of what the graph computes."""
        x, dims = self.tensors[written.source], list(written.dims)
        result = _welford_of(x, dims)[written.field] if written.kind == "welford" else _fold(x, MONOIDS[written.kind], dims, value)
        self.tensors[value] = _to(result, self.dtype(value.dtype()))  # type: ignore[attr-defined]


def _exact(number: Number) -> torch.Tensor:
    """Return `number` without rounding (torch's default would be float32)."""
    if isinstance(number, complex):
        return torch.tensor(number, dtype=torch.complex128)
    if isinstance(number, int) and not -(2**63) <= number < 2**63:  # for a floating-point scalar: torch has no such integer
        number = float(number)
    return torch.tensor(number, dtype=torch.float64) if isinstance(number, float) else torch.tensor(number)


def _to(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if x.is_complex() and not dtype.is_complex:
        x = (x != 0) if dtype == torch.bool else x.real
    return x.to(dtype)


def _pointwise(m: Machine, node: Expr) -> torch.Tensor:
    name, compute = node.attributes["op"], node.attributes["compute"]
    op = lookup(name)
    operands = [m.operand(v, op.fixed.get(i, compute)) for i, v in enumerate(node.inputs)]
    return op.ref(*operands)


def _copy(m: Machine, node: Expr) -> torch.Tensor:
    out = node.outputs[0]
    assert isinstance(out, TensorView)
    x = m.operand(node.inputs[0], out.dtype())
    if not out.has_root() and x.dim() == out.ndim:  # a broadcast axis of the input may be an ordinary one of the copy
        x = x.expand(m.shape(out))
    if out.has_root():
        root, logical = no_reductions(out.get_root_domain()), no_reductions(out.get_logical_domain())
        if {id(a) for a in root} != {id(a) for a in logical}:
            raise Unsupported("a copy that splits or merges axes, in the reference interpreter")
        x = x.permute([_position(root, a) for a in logical])
    return x


def _position(axes: list[IterDomain], axis: IterDomain) -> int:
    return next(i for i, a in enumerate(axes) if a is axis)


def _broadcast(m: Machine, node: Expr) -> torch.Tensor:
    x = m.tensors[node.inputs[0]]
    for position, new in enumerate(node.attributes["flags"]):
        if new:
            x = x.unsqueeze(position)
    return x


def _squeeze(m: Machine, node: Expr) -> torch.Tensor:
    x = m.tensors[node.inputs[0]]
    for position in reversed([i for i, dropped in enumerate(node.attributes["flags"]) if dropped]):
        rest = [n for axis, n in enumerate(x.shape) if axis != position]
        x = x.select(position, 0) if x.shape[position] else x.new_zeros(rest)  # only sums and products of no elements are asked for
    return x


def _expand(m: Machine, node: Expr) -> torch.Tensor:
    out = node.outputs[0]
    assert isinstance(out, TensorView)
    return m.tensors[node.inputs[0]].expand(m.shape(out))  # also axes that are expanded only in some calls


def _reshape(m: Machine, node: Expr) -> torch.Tensor:
    out = node.outputs[0]
    assert isinstance(out, TensorView)
    return m.tensors[node.inputs[0]].reshape(m.shape(out))


def _cat(m: Machine, node: Expr) -> torch.Tensor:
    return torch.cat([m.tensors[value] for value in node.inputs], node.attributes["dim"])


def _look_up(m: Machine, node: LookupOp) -> torch.Tensor:
    out = node.outputs[0]
    assert isinstance(out, TensorView)
    indices = {n: m.tensors[v] for n, v in enumerate(node.inputs) if n and isinstance(v, TensorView)}
    fill = m.operand(node.inputs[-1], out.dtype()) if node.is_masked else None
    return look_up(node, m.tensors[node.source], indices, m.shape(out), m.number, fill)


def reduced_dims(value: Val) -> list[int]:
    """Return the axes of its operand that a reduction folds; of a partial result of rfactor those that the whole reduction folds."""
    assert isinstance(value, TensorView)
    logical = value.get_logical_domain()
    return [i for i, a in enumerate(value.get_maybe_root_domain()) if a.is_reduction() or value.has_root() and (a.is_rfactor or a not in logical)]


def is_second_part(node: Expr) -> bool:
    """True for the reduction that rfactor left to fold a partial result: the partial one folds everything here."""
    first = node.inputs[0]
    return isinstance(first, TensorView) and first.has_root() and isinstance(first.definition(), ReductionOp)


def _reduce(m: Machine, node: Expr) -> Any:
    if is_second_part(node):
        return m.tensors[node.inputs[0]]
    monoid = MONOIDS[node.attributes["kind"]]
    if isinstance(monoid, StateMonoid):
        return monoid.reduce([m.tensors[v] for v in node.inputs], reduced_dims(node.outputs[0]), False)
    return _fold(m.tensors[node.inputs[0]], monoid, reduced_dims(node.outputs[0]), node.outputs[0])


def _fold(x: torch.Tensor, monoid: Monoid, dims: list[int], result: Val) -> torch.Tensor:
    if x.numel() == 0 and monoid.needs_elements:  # torch has no value here; where one is needed, a call says so before
        identity = monoid.identity_value(result.dtype())  # type: ignore[attr-defined]
        return torch.full([s for i, s in enumerate(x.shape) if i not in dims], identity, dtype=x.dtype, device=x.device)
    return monoid.reduce(x, dims, False)


def _welford(m: Machine, node: Expr) -> tuple[torch.Tensor, ...]:
    return _welford_of(m.tensors[node.inputs[0]], reduced_dims(node.outputs[0]))


def _welford_of(x: torch.Tensor, dims: list[int]) -> tuple[torch.Tensor, ...]:
    """Mean, squared deviations and count. The mean of what is left after a first mean corrects that: a sum is rounded as its largest partial sums are, and the
    mean of equal elements has to be that element, so that they have no deviation."""
    first = x.detach().mean(dims, keepdim=True)
    first = torch.where(torch.isfinite(first), first, torch.zeros_like(first))
    mean = first + (x - first).mean(dims, keepdim=True)
    squares = (x - mean).square().sum(dims)
    count = 1
    for dim in dims:
        count *= x.shape[dim]
    return mean.squeeze(dims), squares, torch.full_like(squares, count, dtype=torch.int64)


def _full(m: Machine, node: Expr) -> torch.Tensor:
    out = node.outputs[0]
    assert isinstance(out, TensorView)
    return m.operand(node.inputs[0], out.dtype()).expand(m.shape(out))


def _iota(m: Machine, node: Expr) -> torch.Tensor:
    out = node.outputs[0]
    assert isinstance(out, TensorView)
    length, start, step = (m.number(v.sym) for v in node.inputs)  # type: ignore[attr-defined]
    exact = torch.float64 if out.dtype().is_float else torch.int64
    numbers = torch.arange(int(length), device=m.device).to(exact) * step + start  # type: ignore[arg-type]
    return numbers.reshape(m.shape(out))


def _random(m: Machine, node: Expr) -> torch.Tensor:
    out = node.outputs[0]
    assert isinstance(out, TensorView)
    numbers = [m.tensors[v].item() if isinstance(v, TensorView) else m.number(v.sym) for v in node.inputs]  # type: ignore[attr-defined]
    if len(numbers) == 4:
        seed, offset = int(numbers[2]), int(numbers[3])  # type: ignore[arg-type]
    else:
        seed, offset = m.philox if m.philox is not None else _generator_state(m.device, node.op_name)
        offset += m.drawing.index(node)
    shape = m.shape(out)
    count = 1
    for extent in shape:
        count *= extent
    make = philox_numbers.uniform if node.attributes["distribution"] == "uniform" else philox_numbers.normal
    array = make(count, seed, offset, float(numbers[0]), float(numbers[1]), double=out.dtype() is DataType.Double)  # type: ignore[arg-type]
    return torch.from_numpy(array).to(m.device).reshape(shape)


def _generator_state(device: torch.device, op: str) -> tuple[int, int]:
    if not torch.cuda.is_available():
        raise NoGenerator(op=op)
    generator = torch.cuda.default_generators[device.index or 0]
    return generator.initial_seed(), generator.get_offset() // 4


def _torch_op(m: Machine, node: Expr) -> tuple[torch.Tensor, ...]:
    """Call the function of the table of ops that torch runs."""
    name = torch_ops.entry_of(node)
    if name is None:
        raise Unsupported(f"{node.op_name} in the reference interpreter")
    attributes = {key: m.attribute(value) for key, value in node.attributes.items()}
    return torch_ops.run(name, [m.tensors[v] if isinstance(v, TensorView) else m.number(v.sym) for v in node.inputs], attributes)  # type: ignore[attr-defined]


def _scan(m: Machine, node: Expr) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """Call torch's function. In double precision, sums of floats are added up by pairs instead: torch adds one element after the other, and its n roundings of
    partial sums would be more than those of the kernel that is compared with it."""
    x, dim = m.tensors[node.inputs[0]], node.attributes["dim"]
    if not m.double or node.attributes["kind"] != "sum" or not (x.is_floating_point() or x.is_complex()):
        return _torch_op(m, node)
    x, summed = x.flip(dim) if node.attributes.get("reverse") else x, 1
    while x.dim() and summed < x.shape[dim]:  # each element holds the sum of the last `summed` ones up to it
        rest = x.shape[dim] - summed
        x = torch.cat([x.narrow(dim, 0, summed), x.narrow(dim, summed, rest) + x.narrow(dim, 0, rest)], dim)
        summed *= 2
    x = x.flip(dim) if node.attributes.get("reverse") else x
    return x + m.operand(node.inputs[1], node.outputs[0].dtype()) if len(node.inputs) > 1 else x  # type: ignore[attr-defined]


RULES: dict[type, Callable[[Machine, Any], Any]] = {
    PointwiseOp: _pointwise, LoadStoreOp: _copy, BroadcastOp: _broadcast, SqueezeOp: _squeeze, ExpandOp: _expand, ReductionOp: _reduce,
    WelfordOp: _welford, FullOp: _full, IotaOp: _iota, RandomOp: _random,
    ReshapeOp: _reshape, CatOp: _cat, LookupOp: _look_up, BagOp: _look_up, TorchOp: _torch_op, ScanOp: _scan, ScatterOp: _torch_op,
    BlockFoldOp: block_rules.fold, BlockHadamardOp: block_rules.fold, BlockSampleOp: block_rules.sample,
    GroupFoldOp: block_rules.fold_groups, GroupResultOp: block_rules.result_of_groups,
}  # fmt: skip

__all__ = ["evaluate"]
