"""What a fusion returns and where it is written: fresh tensors, inputs passed through, buffers of inputs.

Owns the layout of outputs in memory and the question whether an aliased output may be written while the kernel still reads.
Read first: `OutputPlan`, then `hazard`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import torch

from ..errors import Unsupported, UserError
from ..expr import Number, Sym, evaluate_int
from ..ir.block_ops import COLUMNS, GROUPED, PADDED, PADDED_COLUMNS, sample_of, sample_shape
from ..ir.enums import MemoryType
from ..ir.fusion import Fusion
from ..ir.graph_ops import JoinedOp, ReshapeOp, joined_of
from ..ir.values import IterDomain, LoadStoreOp, PointwiseOp, TensorView, Val, no_reductions
from ..ops.build import copy
from ..reference.torch_types import torch_dtype


class AliasShape(UserError):
    code = "W782"
    what = "output {output} is written into input {index}, {alias}, whose sizes are {alias_sizes}; the output's are {sizes}"
    fix = "pass an input of the output's sizes, or omit alias_input"


class AliasOverlap(UserError):
    code = "W745"
    what = "output {output} is written into input {index}, {alias}, whose elements share memory: sizes {sizes}, strides {strides}"
    fix = "pass a tensor with memory for each element, such as tensor.contiguous(), or omit alias_input"


class OddOutput(UserError):
    code = "W863"
    what = "Last dimension of the logical domain is not divisible by the adjustment factor. (output {output}, {elems} elements of {dtype} share a byte; {why})"
    fix = "{remedy}"


class NotAKernel(Unsupported):
    code = "W783"
    what = "KernelExecutor does not support the Fusion provided. {name}{detail}"

    def __init__(self, name: str, detail: str, remedy: str) -> None:
        super().__init__(name=name, detail=detail, remedy=remedy)


@dataclass(frozen=True)
class Layout:
    """A tensor in memory. Units: strides in elements; an expanded axis has stride 0.

    packed: the dimension along which `unit` elements share a byte, that is, one of torch's elements.
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    packed: int | None = None
    unit: int = 1

    @property
    def torch_sizes(self) -> tuple[int, ...]:
        return self.sizes if self.packed is None else tuple(n // self.unit if d == self.packed else n for d, n in enumerate(self.sizes))

    @property
    def torch_strides(self) -> tuple[int, ...]:
        return self.strides if self.packed is None else tuple(1 if d == self.packed else s // self.unit for d, s in enumerate(self.strides))

    @property
    def is_empty(self) -> bool:
        return 0 in self.sizes

    @property
    def storage_bytes(self) -> int:
        """Bytes from the first to the last element."""
        if self.is_empty:
            return 0
        return (1 + sum((n - 1) * s for n, s in zip(self.torch_sizes, self.torch_strides))) * self.dtype.itemsize

    def is_like(self, sizes: Sequence[int], strides: Sequence[int]) -> bool:
        """True if a tensor with these sizes and strides has the same layout."""
        return tuple(sizes) == self.sizes and all(n == 1 or a == b for n, a, b in zip(self.sizes, self.strides, strides))


def layout_of(tensor: TensorView, env: Mapping[Sym, Number]) -> Layout:
    """Return the layout of an output for the user: dense in the order of its allocation domain, or that of a part of such a tensor."""
    logical = no_reductions(tensor.get_logical_domain())
    allocation = no_reductions(tensor.get_allocation_domain())
    if set(allocation) != set(logical):
        raise Unsupported(f"output {tensor} whose allocation domain is not an order of its logical axes", remedy="set_allocation_domain with the logical axes")
    memo: dict[Sym, Number] = {}
    sample = sample_of(tensor)
    if sample is not None and sample.layout != "rows":
        rows, columns = (evaluate_int(extent, env, memo) for extent in sample_shape(tensor))
        if sample.layout in PADDED:
            unit_rows, unit_columns = PADDED[sample.layout]
            rows, columns = -(-rows // unit_rows) * unit_rows, -(-columns // unit_columns) * unit_columns
            return Layout((rows, columns), (columns, 1), torch_dtype(tensor.dtype()))
        if sample.layout == PADDED_COLUMNS:
            return Layout((columns, -(-rows // 4) * 4), (-(-rows // 4) * 4, 1), torch_dtype(tensor.dtype()))
        if sample.layout == COLUMNS:
            return Layout((rows, columns), (1, -(-rows // 4) * 4), torch_dtype(tensor.dtype()))
        if sample.layout == GROUPED:
            groups = evaluate_int(sample.read_whole[1].get_logical_domain()[0].logical_extent, env, memo)
            rows += 127 * groups
        else:
            rows = -(-rows // 128) * 128
        columns = -(-columns // 4) * 4
        return Layout((rows, columns), (columns, 1), torch_dtype(tensor.dtype()))
    sizes = {axis: evaluate_int(axis.logical_extent, env, memo) for axis in logical}
    joined = joined_of(tensor)
    strides = dict(zip(logical, _dense_strides(tensor if joined is None else joined.tensor_outputs[0], env, memo)))
    packed, unit = None, tensor.dtype().elems_per_unit
    if unit > 1:
        packed = packed_dimension(tensor, logical, allocation)
        if sizes[logical[packed]] % unit:
            _refuse_odd(tensor, f"it has {sizes[logical[packed]]} elements along the axis that is innermost in memory", "use an even size")
    own = tuple(sizes[a] for a in logical), tuple(strides[a] for a in logical)
    user = tensor.domain().user
    if user is not None:  # an axis of the user has the stride of its innermost part
        ends = [sum(user.counts[: n + 1]) - 1 for n in range(len(user.counts))]
        own = tuple(evaluate_int(extent, env, memo) for extent in user.extents), tuple(own[1][end] for end in ends)
        packed = None if packed is None else user.dim_of(packed)
    return Layout(*own, torch_dtype(tensor.dtype()), packed, unit)


def _dense_strides(tensor: TensorView, env: Mapping[Sym, Number], memo: dict[Sym, Number]) -> list[int]:
    """Return the stride of each logical axis of a tensor that has memory of its own."""
    strides, running = dict[IterDomain, int](), 1
    for axis in reversed(no_reductions(tensor.get_allocation_domain())):
        strides[axis] = 0 if axis.expanded_extent is not None else running
        running *= 1 if axis.expanded_extent is not None else max(1, evaluate_int(axis.logical_extent, env, memo))
    return [strides[axis] for axis in no_reductions(tensor.get_logical_domain())]


def joined_parts(fusion: Fusion) -> list[TensorView]:
    """Return the tensors that are stored at their places in other tensors."""
    return [t for e in fusion.tensor_exprs() if isinstance(e, JoinedOp) for t in e.tensor_inputs]


def place_of_part(tensor: TensorView, env: Mapping[Sym, Number]) -> tuple[TensorView, int] | None:
    """Return the tensor in whose memory a part of it lies, and the bytes before the part; None for a tensor that has memory of its own."""
    joined = joined_of(tensor)
    if joined is None:
        return None
    whole, dim, memo = joined.tensor_outputs[0], joined.attributes["dim"], dict[Sym, Number]()
    before = joined.tensor_inputs[: joined.inputs.index(tensor)]
    first = sum(evaluate_int(no_reductions(t.get_logical_domain())[dim].logical_extent, env, memo) for t in before)
    return whole, first * _dense_strides(whole, env, memo)[dim] * tensor.dtype().bits // 8


def packed_dimension(tensor: TensorView, logical: Sequence[IterDomain], allocation: Sequence[IterDomain]) -> int:
    """Return the dimension along which elements share bytes: the innermost in memory. Errors: OddOutput."""
    if not logical:
        _refuse_odd(tensor, "it has rank 0", "make the size of one axis even")
    inner = allocation[-1]
    if inner.is_broadcast():
        _refuse_odd(tensor, "the axis that is innermost in memory is broadcast", "cast to Float instead, or let the innermost axis be a real one")
    return list(logical).index(inner)


def _refuse_odd(tensor: TensorView, why: str, remedy: str) -> NoReturn:
    raise OddOutput(output=tensor, elems=tensor.dtype().elems_per_unit, dtype=tensor.dtype().value, why=why, remedy=remedy)


def stride_values(tensor: TensorView, layout: Layout) -> dict[Sym, Number]:
    """Return the values of the stride variables of an output that was declared strided."""
    domain = tensor.domain()
    dims = {axis: dim for dim, axis in enumerate(no_reductions(domain.logical))}
    return {
        tensor.stride_var(position): layout.strides[dims[axis]]
        for position, (axis, contiguous) in enumerate(zip(domain.maybe_allocation, domain.contiguity))
        if axis in dims and contiguous is False and not axis.is_broadcast()
    }


class OutputPlan:
    """The outputs of a fusion.

    computed: the tensors that a kernel writes, each once. alias: per computed tensor, the position of the input whose buffer it is written into, or None.
    returned: per returned output, ("input", position) or ("computed", index into `computed`). copies: (to, from) inputs, for an input that is copied into
    another one. reuses: positions in `computed` of outputs that need not be written into their input (`Fusion.reuses`).
    """

    def __init__(self, fusion: Fusion) -> None:
        inputs = {value: index for index, value in enumerate(fusion.inputs())}
        self.computed: list[TensorView] = []
        self.alias: list[int | None] = []
        self.returned: list[tuple[str, int]] = []
        self.copies: list[tuple[int, int]] = []
        self.reuses: set[int] = set()
        places: dict[Val, int] = {}
        for value in fusion.outputs():
            target = fusion.aliases.get(value)
            if value in inputs:
                if target is not None and target is not value:
                    self.copies.append((inputs[target], inputs[value]))
                entry = ("input", inputs[value] if target is None else inputs[target])
            elif isinstance(value, TensorView):
                if value not in places:
                    places[value] = len(self.computed)
                    self.computed.append(value)
                    self.alias.append(None if target is None else inputs[target])
                    _refuse_cpu_result(fusion, value)
                index = places[value]
                if value in fusion.reuses:
                    self.reuses.add(index)
                entry = ("computed", index) if target is None or value in fusion.reuses else ("input", inputs[target])
            else:
                raise NotAKernel(name=f"output {value}", detail="it is a scalar", remedy="make it a tensor with full(), or compute it in Python")
            if value not in fusion.hidden_outputs:
                self.returned.append(entry)
        self.copies = list(dict.fromkeys(self.copies))

    @property
    def written(self) -> set[int]:
        """Positions of the inputs whose new values the caller asked for."""
        wanted = {source for place, source in enumerate(self.alias) if source is not None and place not in self.reuses}
        return wanted | {to for to, _ in self.copies}


def return_old_values(fusion: Fusion) -> None:
    """Return a copy, in place, of each returned input that another output is written into: a reader of the definition expects what it was before the call."""
    written = {target for output, target in fusion.aliases.items() if target is not output}
    for value in dict.fromkeys(fusion.outputs()):
        if isinstance(value, TensorView) and value in written and value not in fusion.aliases and not value.is_cpu_scalar:
            before: TensorView = copy(fusion, value)  # type: ignore[assignment]
            before.memory_type = MemoryType.global_
            fusion.replace_output(value, before)


def _refuse_cpu_result(fusion: Fusion, output: TensorView) -> None:
    if not any(isinstance(v, TensorView) and v.is_cpu_scalar for v in fusion.inputs()):
        return
    tensors = [v for v in sources_of(output) if isinstance(v, TensorView)]
    sources = [v for v in tensors if not (definition := v.definition()) or not definition.tensor_inputs]  # results of factories are on the device
    if sources and all(v.is_cpu_scalar for v in sources):
        raise NotAKernel(
            name=f"output {output}", detail="it depends on CPU scalars only, so that it would be a CPU tensor", remedy="compute it outside the fusion"
        )


def sources_of(tensor: TensorView) -> list[Val]:
    """Return all values that `tensor` depends on, itself included."""
    seen: dict[Val, None] = {tensor: None}
    stack: list[Val] = [tensor]
    while stack:
        definition = stack.pop().definition()
        for value in definition.inputs if definition is not None else ():
            if value not in seen:
                seen[value] = None
                stack.append(value)
    return list(seen)


# ---------------------------------------------------------------- writing in place
def hazard(fusion: Fusion, source: TensorView, output: TensorView, *, has_reshapes: bool = False) -> str | None:
    """Return why `output` must not be written into the buffer of input `source` while the kernel runs, or None.

    has_reshapes: those of the user leave elements at their places in memory. Graph passes remove most of them, and each kernel is asked about again.

    None means that each element is read only to compute elements at its own position, and before it is written: the output depends on what was
    read. Lowering proves that nothing else loads the element (`KernelProgram.in_place`).
    """
    if output.domain().rolled or any(t.domain().rolled and t.strides_of == source.name for t in fusion.tensor_inputs()):
        return f"{source} is read, or {output} is written, at rotated positions"
    needed = set(fusion.exprs())
    stack, seen = [source], {source}
    while stack:
        tensor = stack.pop()
        for use in tensor.uses():
            if use not in needed:
                continue
            moves = isinstance(use, LoadStoreOp) and any(isinstance(o, TensorView) and _is_permuted(o) for o in use.outputs)
            if moves or not isinstance(use, (LoadStoreOp, PointwiseOp, ReshapeOp) if has_reshapes else (LoadStoreOp, PointwiseOp)):
                return f"{use.op_name} reads {tensor} at other positions than it is written"
            for result in use.outputs:
                if isinstance(result, TensorView) and result not in seen:
                    seen.add(result)
                    stack.append(result)
    if len(seen) > 1 and output not in seen:
        return f"{output} does not depend on {source}, which may be read after it is written"
    return None


def _is_permuted(tensor: TensorView) -> bool:
    domain = tensor.domain()
    return domain.root is not None and domain.root != domain.logical
