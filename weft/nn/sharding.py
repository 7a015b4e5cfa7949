"""weft's functions on DTensors: each process computes its shard.

Owns the choice of placements and their way through autograd; which axes can be cut, `weft.analysis.sharding` reads off the definition, so that there is no
rule per function. Read first: `sharded`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..analysis.sharding import ShardableAxis, shardable_axes
from ..errors import UserError
from ..ir.fusion import Fusion

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


class NotSharded(UserError, TypeError):
    code = "W156"
    what = "{function} over DTensors: {problem}"
    fix = "{remedy}"


PLAIN = "write distribute_tensor(x, mesh, [Replicate()]) where each process has the same values"

OUTSIDE = "pad it, or call the function outside of the graph"

_find: list[Callable[[str, str], Fusion]] = []
"""The function that finds a definition by its family and text, once `weft.nn.library` has handed it in: that file imports this one."""


def finds_definitions(function: Callable[[str, str], Fusion]) -> Callable[[str, str], Fusion]:
    """Let `sharded_in_graph` find definitions by `function`. A decorator."""
    _find[:] = [function]
    return function


def has_sharded(tensors: Sequence[Any]) -> bool:
    """Tell whether there is a DTensor among the tensors."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and any(isinstance(t, module.DTensor) for t in tensors)


def sharded(name: str, fusion: Fusion, tensors: Sequence[Any], call: Callable[[list[Any]], Any]) -> Any:
    """Return the result of call(local tensors) as DTensors. tensors: the function's, None where one is left out; fusion: its definition.

    Along each axis of the mesh the first input that is cut along an axis which shards can have for themselves decides; inputs that lie otherwise are moved
    there, what has no such axis is needed whole by all. Gradients of what is whole are partial sums.
    Errors: NotSharded for plain tensors beside DTensors, several meshes, writing in place, and random numbers.
    """
    from torch.distributed.tensor import DTensor

    given = [t for t in tensors if t is not None]
    plain = [i for i, t in enumerate(given) if not isinstance(t, DTensor)]
    if plain:
        raise NotSharded(function=name, problem=f"input {plain[0]} is a plain tensor beside a DTensor", remedy=PLAIN)
    mesh = given[0].device_mesh
    if any(t.device_mesh != mesh for t in given):
        raise NotSharded(function=name, problem="inputs are on different meshes", remedy="redistribute them to one")
    _check_can_be_cut(name, fusion)
    axes = shardable_axes(fusion)
    chosen = [_axis_for(axes, given, level) for level in range(mesh.ndim)]
    local = [_local(t, i, chosen) for i, t in enumerate(given)]
    left = iter(local)
    results = call([None if t is None else next(left) for t in tensors])
    outputs = results if isinstance(results, tuple) else (results,)
    whole = tuple(_whole(o, n, chosen, given) for n, o in enumerate(outputs))
    return whole if isinstance(results, tuple) else whole[0]


# ---------------------------------------------------------------- under torch.compile
def sharded_in_graph(name: str, text: str, tensors: Sequence[Any], call: Callable[[list[Any]], Any]) -> Any:
    """`sharded` in words that Dynamo traces: which axes are cut is a constant of the graph, read off the definition while it is traced.

    text: the call's types, ranks and arguments, as `weft.nn.library` writes them. Where shards have different sizes, the sizes of results are constants of the
    graph, and each process traces its own; open sizes are refused there.
    Errors: NotSharded, inside of what Dynamo raises.
    """
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from torch.fx.experimental.symbolic_shapes import has_static_value

    given = [t for t in tensors if t is not None]
    mesh = given[0].device_mesh
    cuts, is_uneven = [], False
    for tensor in given:
        parts = [1] * tensor.dim()
        if not isinstance(tensor, DTensor):
            return _refuse(name, "an input is a plain tensor beside a DTensor", PLAIN)
        placements: Sequence[Any] = tensor.placements
        for level, placement in enumerate(placements):
            cuts.append(f"{int(placement.dim % max(tensor.dim(), 1))}" if placement.is_shard() else "-1")  # text: Dynamo makes numbers that change symbolic
            if placement.is_shard():
                parts[placement.dim] *= mesh.size(level)
                is_open = not has_static_value(tensor.shape[placement.dim])
                if tensor.shape[placement.dim] % parts[placement.dim]:
                    is_uneven = True
                    if is_open:  # Dynamo would make it a constant without a guard
                        return _refuse(name, "under torch.compile, an axis of open size is cut into shards of different sizes", OUTSIDE)
    chosen = _constant_axes(name, text, len(given), " ".join(cuts))
    local = []
    for i, tensor in enumerate(given):
        wanted, gradient = _placements(chosen, i)
        local.append(tensor.redistribute(mesh, wanted).to_local(grad_placements=gradient))
    left = iter(local)
    results = call([None if t is None else next(left) for t in tensors])
    whole = []
    for n, output in enumerate(results if isinstance(results, tuple) else (results,)):
        placed = [Replicate() if a is None else Shard(a[1][n]) for a in chosen]
        if is_uneven:
            sizes = [int(size) for size in output.shape]
            for axis in chosen:
                if axis is not None:
                    sizes[axis[1][n]] = [int(t.shape[d]) for t, d in zip(given, axis[0]) if d is not None][0]
            shape, stride = _constant_sizes(_words(sizes), _words(output.stride()))
            whole.append(DTensor.from_local(output, mesh, placed, run_check=False, shape=shape, stride=stride))
        else:
            whole.append(DTensor.from_local(output, mesh, placed, run_check=False))
    return tuple(whole) if isinstance(results, tuple) else whole[0]


def _placements(chosen: Sequence[Any], i: int) -> tuple[list[Any], list[Any]]:
    """Return how input `i` has to lie, and how its gradient does. chosen: (axis of each input, axis of each output) or None along each axis of the mesh."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    wanted, gradient = [], []
    for axis in chosen:
        dim = None if axis is None else axis[0][i]
        wanted.append(Replicate() if dim is None else Shard(dim))
        gradient.append(Shard(dim) if dim is not None else Replicate() if axis is None else Partial())
    return wanted, gradient


def _words(numbers: Sequence[int]) -> str:
    return " ".join([f"{int(number)}" for number in numbers])


@torch._dynamo.assume_constant_result
def _constant_sizes(shape_text: str, stride_text: str) -> tuple[torch.Size, tuple[int, ...]]:
    """Return the sizes and strides of a whole tensor. stride_text: the strides of a part of it."""
    shape = [int(word) for word in shape_text.split()]
    return torch.Size(shape), _strides(shape, [int(word) for word in stride_text.split()])


@torch._dynamo.assume_constant_result
def _refuse(name: str, problem: str, remedy: str) -> None:
    raise NotSharded(function=name, problem=problem, remedy=remedy)


@torch._dynamo.assume_constant_result
def _constant_axes(name: str, text: str, count: int, cut_text: str) -> tuple[Any, ...]:
    """Return (axis of each input, axis of each output) or None along each axis of the mesh. cut_text: for each input along each of these, or -1."""
    cuts = [int(word) for word in cut_text.split()]
    fusion = _find[0](name, text)
    _check_can_be_cut(name, fusion)
    axes, levels = shardable_axes(fusion), len(cuts) // count
    chosen = [_axis_of_cuts(axes, [None if cut < 0 else cut for cut in cuts[level::levels]]) for level in range(levels)]
    return tuple([None if axis is None else (axis.inputs, axis.outputs) for axis in chosen])


def _check_can_be_cut(name: str, fusion: Fusion) -> None:
    """Errors: NotSharded for a definition that writes into an input or draws random numbers."""
    if fusion.aliases:
        raise NotSharded(function=name, problem="it writes into an input", remedy="pass the local tensors of each process: x.to_local()")
    if any(type(e).__name__ == "RandomOp" for e in fusion.exprs()):
        raise NotSharded(function=name, problem="it draws random numbers", remedy="pass the local tensors of each process: x.to_local()")


# ---------------------------------------------------------------- which axes
def _axis_for(axes: Sequence[ShardableAxis], given: Sequence["DTensor"], level: int) -> ShardableAxis | None:
    """Return the axis that is cut along axis `level` of the mesh, None where every process computes all."""
    from torch.distributed.tensor import Shard

    cuts = []
    for tensor in given:
        placement = tensor.placements[level]
        cuts.append(placement.dim % max(tensor.dim(), 1) if type(placement) is Shard else None)
    return _axis_of_cuts(axes, cuts)


def _axis_of_cuts(axes: Sequence[ShardableAxis], cuts: Sequence[int | None]) -> ShardableAxis | None:
    """Return the first axis along which an input is cut that shards can have for themselves. cuts: the axis of each input that is cut, or None."""
    for i, cut in enumerate(cuts):
        found = next((axis for axis in axes if cut is not None and axis.inputs[i] == cut), None)
        if found is not None:
            return found
    return None


def _local(tensor: "DTensor", i: int, chosen: Sequence[ShardableAxis | None]) -> torch.Tensor:
    """Return what this process needs of input `i`. Where the work is cut and the input is not, each process has a part of its gradient's sum."""
    from torch.distributed.tensor import Partial, Placement, Replicate, Shard

    wanted: list[Placement] = []
    gradient: list[Placement] = []
    for axis in chosen:
        dim = None if axis is None else axis.inputs[i]
        wanted.append(Replicate() if dim is None else Shard(dim))
        gradient.append(Shard(dim) if dim is not None else Replicate() if axis is None else Partial())
    return tensor.redistribute(placements=wanted).to_local(grad_placements=gradient)


def _whole(output: torch.Tensor, n: int, chosen: Sequence[ShardableAxis | None], given: Sequence["DTensor"]) -> Any:
    """Return the DTensor of which `output` is this process's part: cut axes have the size of the input that they come from."""
    from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

    shape = list(output.shape)
    placements: list[Placement] = []
    for axis in chosen:
        if axis is None:
            placements.append(Replicate())
            continue
        dim = axis.outputs[n]
        shape[dim] = next(t.shape[d] for t, d in zip(given, axis.inputs) if d is not None)
        placements.append(Shard(dim))
    stride = _strides(shape, output.stride())
    return DTensor.from_local(output, given[0].device_mesh, placements, run_check=False, shape=torch.Size(shape), stride=stride)


def _strides(shape: Sequence[int], of_part: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a dense tensor of this shape whose axes lie in the order of those of a part of it."""
    order = sorted(range(len(shape)), key=lambda d: (of_part[d], -d), reverse=True)
    strides, running = [0] * len(shape), 1
    for d in reversed(order):
        strides[d], running = running, running * max(shape[d], 1)
    return tuple(strides)
