"""Values of a fusion: scalars, axes (IterDomain), domains of axes, tensors, and the expressions that define them.

Owns the data structures and their invariants. Construction rules of ops are in `weft.ops`, transforms of axes in `weft.schedule`.
Read first: `TensorView`, then `IterDomain`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, overload

from ..dtypes import DataType
from ..errors import Place, UserError, axes_to_give
from ..expr import ONE, Sym, const, var
from .enums import CacheOp, IterType, LoadStoreOpType, MemoryType, ParallelType
from .naming import constant_text, inline_text
from .surface import ScalarSurface, TensorSurface



class NotAParallelType(UserError, TypeError):
    code = "W306"
    what = "cannot bind {axis} to {given!r}, which is not a ParallelType"
    fix = "use a member of ParallelType: ParallelType.block_x, ParallelType.vectorize, ..."


class Statement:
    """Anything that belongs to a fusion."""


class Owner:
    """The interface of a value to its fusion; `Fusion` implements it. names: of sizes (`i0`)."""

    names: "dict[str, str]"
    _inputs: "list[Val]"
    _outputs: "list[Val]"

    def size_scalar(self, tensor: "TensorView", dim: int) -> "Scalar":
        """Return the extent of a logical axis as a scalar."""
        raise NotImplementedError


class Val(Statement):
    """A value of a fusion. `name` counts within its kind; `printed` is its stable printed form."""

    def __init__(self, fusion: "Owner | None", name: int) -> None:
        self.fusion, self.name = fusion, name
        self._definition: Expr | None = None
        self._uses: list[Expr] = []

    def is_tensor(self) -> bool:
        return isinstance(self, TensorView)

    def definition(self) -> "Expr | None":
        """Return the expression that computes this value, or None for an input or a constant."""
        return self._definition

    def uses(self) -> "list[Expr]":
        """Return the expressions that read this value."""
        return list(self._uses)

    def is_symbolic(self) -> bool:
        """True unless the value is a constant known now."""
        return True


class Scalar(Val, ScalarSurface):
    """A scalar value: `sym` is its expression; `definition()` the user's op that computes it (None for constants, inputs, sizes)."""

    def __init__(self, fusion: "Owner | None", name: int, sym: Sym, dtype: DataType) -> None:
        super().__init__(fusion, name)
        self.sym, self._dtype = sym, dtype

    def dtype(self) -> DataType:
        return self._dtype

    def is_symbolic(self) -> bool:
        return not self.sym.is_const

    def __str__(self) -> str:
        """The constant; a size by its name in the fusion (`i0`); otherwise a letter for the type and the number of the scalar."""
        if self.sym.is_const:
            return constant_text(self.sym.value, self._dtype)
        names = names_in(self.fusion)
        if self.sym.is_var and str(self.sym.payload) in names:
            return names[str(self.sym.payload)]
        return f"{_SCALAR_LETTERS.get(self._dtype, 'c')}{self.name}"

    __repr__ = __str__


def names_in(fusion: "Owner | None") -> "dict[str, str]":
    return {} if fusion is None else fusion.names


_SCALAR_LETTERS = {DataType.Double: "d", DataType.Float: "f", DataType.Int: "i", DataType.Int32: "i", DataType.Bool: "b", DataType.Index: "i"}


class IterDomain(Val):
    """One axis of a tensor.

    extent: iterations of a loop over it (1 for a broadcast axis). expanded_extent: the size to which a broadcast axis was expanded, else None. parallel: what
    executes its iterations. is_rfactor: made by rfactor. is_view: made by a view of the user. padded_to_warp: a thread axis rounded up to
    whole warps at launch.
    """

    def __init__(
        self, name: int, extent: Sym, iter_type: IterType = IterType.iteration, *, expanded_extent: Sym | None = None,
        parallel: ParallelType = ParallelType.serial, is_rfactor: bool = False, is_view: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(None, name)
        self._extent, self.iter_type, self.expanded_extent = extent, iter_type, expanded_extent
        self.parallel, self.is_rfactor, self.is_view, self.padded_to_warp = parallel, is_rfactor, is_view, False

    def copied(self, fusion: "Owner | None") -> "IterDomain":
        """Return a copy for another fusion that nothing defines or reads yet. Attributes are set one by one, so that Python keeps no dictionary for them."""
        copy = object.__new__(IterDomain)
        copy.fusion, copy.name, copy._definition, copy._uses = fusion, self.name, None, []
        copy._extent, copy.iter_type, copy.expanded_extent = self._extent, self.iter_type, self.expanded_extent
        copy.parallel, copy.is_rfactor, copy.is_view, copy.padded_to_warp = self.parallel, self.is_rfactor, self.is_view, self.padded_to_warp
        return copy

    @property
    def sym(self) -> Sym:
        """The extent of a loop over this axis."""
        return self._extent

    @property
    def logical_extent(self) -> Sym:
        """The size that torch sees: the expanded extent of an expanded broadcast, else the extent."""
        return self.expanded_extent if self.expanded_extent is not None else self._extent

    def extent(self) -> "Scalar":
        return Scalar(self.fusion, 0, self._extent, DataType.Int)

    def is_reduction(self) -> bool:
        return self.iter_type is IterType.reduction

    def is_broadcast(self) -> bool:
        return self.iter_type is IterType.broadcast

    def is_iteration(self) -> bool:
        return self.iter_type is IterType.iteration

    def is_open(self) -> bool:
        """True if each call decides whether the axis is iteration or broadcast."""
        return self.iter_type is IterType.symbolic

    def parallelize(self, parallel_type: ParallelType) -> None:
        """Bind the axis: `ParallelType.block_x` runs it on threadIdx.x, and so on. Errors: NotAParallelType."""
        if not isinstance(parallel_type, ParallelType):
            raise NotAParallelType(axis=self, given=parallel_type)
        self.parallel = parallel_type

    def pad_to_multiple_of_warp(self) -> None:
        """Round the threads of this axis up to whole warps at launch."""
        self.padded_to_warp = True

    def __str__(self) -> str:
        return self._text(names_in(self.fusion))

    def plain_text(self) -> str:
        """The axis with sizes by tensor and axis (`iS0{T0.size[0]}`), the same in every fusion; used in kernel comments."""
        return self._text({})

    def _text(self, names: "dict[str, str]") -> str:
        kind = self.parallel.value if self.parallel is not ParallelType.serial else "S"
        suffix = ("rf" if self.is_rfactor or self.is_view else "") + ("_p" if self.padded_to_warp else "")
        text = inline_text if names else lambda sym, _: f"{sym}"
        extent = text(self._extent, names)
        if self.expanded_extent is not None:
            extent += f" ex {text(self.expanded_extent, names)}"
        return f"{self.iter_type.value}{kind}{self.name}{{{extent}}}{suffix}"

    __repr__ = __str__


class Expr(Statement):
    """An expression: `outputs` computed from `inputs`. `attributes` has its other properties (hashable values). line: the user's source line; None if a pass
    made it. text_of: prints expressions; set by `weft.ir.printing`.
    """

    line: "Place | None" = None
    text_of: "ClassVar[Callable[[Expr], str]]"

    def __init__(self, inputs: Sequence[Val], outputs: Sequence[Val], **attributes: Any) -> None:
        self.inputs: list[Val] = list(inputs)
        self.outputs: list[Val] = list(outputs)
        self.attributes = attributes

    def input(self, index: int) -> Val:
        return self.inputs[index]

    def output(self, index: int) -> Val:
        return self.outputs[index]

    @property
    def tensor_inputs(self) -> "list[TensorView]":
        return [v for v in self.inputs if isinstance(v, TensorView)]

    @property
    def tensor_outputs(self) -> "list[TensorView]":
        return [v for v in self.outputs if isinstance(v, TensorView)]

    @property
    def axis_inputs(self) -> "list[IterDomain]":
        return [v for v in self.inputs if isinstance(v, IterDomain)]

    @property
    def axis_outputs(self) -> "list[IterDomain]":
        return [v for v in self.outputs if isinstance(v, IterDomain)]

    @property
    def whole_places(self) -> "frozenset[int]":
        """The positions of inputs that are read at arbitrary elements: their axes are not loops, and they must be in memory before the kernel runs. A tensor
        may be at such a position and at another one, too.
        """
        return frozenset()

    @property
    def read_whole(self) -> "list[TensorView]":
        """The tensors at `whole_places`."""
        places = self.whole_places
        return [v for n, v in enumerate(self.inputs) if n in places and isinstance(v, TensorView)] if places else []

    @property
    def read_by_loops(self) -> "list[TensorView]":
        """The tensors at all other positions: read at the loop indices."""
        places = self.whole_places
        return [v for n, v in enumerate(self.inputs) if n not in places and isinstance(v, TensorView)] if places else self.tensor_inputs

    @property
    def op_name(self) -> str:
        """The op's name in the front end."""
        return str(self.attributes.get("op", type(self).__name__))

    def __str__(self) -> str:
        """The expression as in `print_math`."""
        return Expr.text_of(self)

    def __repr__(self) -> str:
        attributes = {k: v for k, v in self.attributes.items() if k != "op"}
        extra = ", ".join(f"{k}={v}" for k, v in attributes.items())
        return f"{', '.join(map(str, self.outputs))} = {self.op_name}({', '.join(map(str, self.inputs))}{', ' + extra if extra else ''})"


# ---- expressions between axes
class Split(Expr):
    """outer, inner = split(input, factor): inner has `factor` iterations (or outer, with inner_split False).

    is_phased: position p = outer * factor + inner of the loops is element p + skipped of the input, where `skipped` < factor differs from row to row; the
    elements before it, and those after the last whole part, are handled separately (`weft.schedule.peel`). multiple: the inner extent is rounded up to a
    multiple of this, so that parts begin at multiples of it; only with inner_split False. part: the inner extent as a constant, only with inner_split False and
    a constant factor; 0 if it follows from the extent. The host checks that factor * part covers the extent.
    overlaps: the last part ends at the axis's end, and repeats elements of the part before, so that all parts are whole; the axis must have at least one part.
    """

    def __init__(
        self, source: IterDomain, outer: IterDomain, inner: IterDomain, factor: Sym, inner_split: bool, is_phased: bool = False, multiple: int = 1,
        part: int = 0, overlaps: bool = False,
    ) -> None:  # fmt: skip
        super().__init__([source], [outer, inner])
        self.factor, self.inner_split, self.is_phased, self.multiple, self.part = factor, inner_split, is_phased, multiple, part
        self.overlaps = overlaps

    @property
    def parameters(self) -> tuple[Sym, bool, bool, int, int, bool]:
        """The parameters that equal splits have in common."""
        return self.factor, self.inner_split, self.is_phased, self.multiple, self.part, self.overlaps

    def outer(self) -> IterDomain:
        return self.outputs[0]  # type: ignore[return-value]

    def inner(self) -> IterDomain:
        return self.outputs[1]  # type: ignore[return-value]

    def source(self) -> IterDomain:
        return self.inputs[0]  # type: ignore[return-value]


class Merge(Expr):
    """out = merge(outer, inner)."""

    def __init__(self, outer: IterDomain, inner: IterDomain, out: IterDomain) -> None:
        super().__init__([outer, inner], [out])

    def outer(self) -> IterDomain:
        return self.inputs[0]  # type: ignore[return-value]

    def inner(self) -> IterDomain:
        return self.inputs[1]  # type: ignore[return-value]

    def out(self) -> IterDomain:
        return self.outputs[0]  # type: ignore[return-value]


class Swizzle(Expr):
    """out_x, out_y = x, y ^ (x mod extent of y): spreads a column of a shared-memory tile over the banks."""

    def __init__(self, x: IterDomain, y: IterDomain, out_x: IterDomain, out_y: IterDomain) -> None:
        super().__init__([x, y], [out_x, out_y])


# ---- expressions between tensors
class PointwiseOp(Expr):
    """One element of each input makes one element of the output. `op` names an entry of the op registry; cast has `dtype`."""


class LoadStoreOp(Expr):
    """A copy: set, permute (the output's logical domain is its root domain in another order), loads and stores of the scheduler."""

    def __init__(
        self, inputs: Sequence[Val], outputs: Sequence[Val], *, kind: LoadStoreOpType = LoadStoreOpType.set, cache_op: CacheOp = CacheOp.unspecified
    ) -> None:
        super().__init__(inputs, outputs, op="set")
        self.kind, self.cache_op = kind, cache_op


class BroadcastOp(Expr):
    """Adds axes of extent 1. `flags[i]`: axis i of the output is new."""


class SqueezeOp(Expr):
    """Removes axes of extent 1. `flags[i]`: axis i of the input is removed."""


class ExpandOp(Expr):
    """Expands broadcast axes; same rank as the input."""


class ReductionOp(Expr):
    """Fold the reduction axes of the output with `kind`: sum, prod, max, min. `kind` names a monoid of `weft.ops.monoids`."""


class WelfordOp(Expr):
    """Outputs (average, sum of squared deviations, count) over the reduction axes of each output."""


class FullOp(Expr):
    """A tensor filled with one scalar (`inputs[0]`)."""


class IotaOp(Expr):
    """start + step * i: inputs (length, start, step) scalars."""


ELEMENTWISE = (PointwiseOp, LoadStoreOp, BroadcastOp, SqueezeOp, ExpandOp, FullOp, IotaOp)
"""Expressions that compute each element from at most one element of each operand, at the same position."""


class RandomOp(Expr):
    """Philox numbers. `distribution` is "uniform" or "normal"; inputs: two scalars, then seed and offset scalars when given; `index`: which random op."""


@dataclass(frozen=True)
class UserAxes:
    """The user's axes of a tensor whose axes were factored (`weft.graph.normalize`). extents: per axis of the user. counts: number of neighbouring logical axes
    that it became. stride_positions: per allocation axis, the allocation position of the user's axis that it is part of; that axis's run-time stride is the
    stride of its innermost part.
    """

    extents: tuple[Sym, ...]
    counts: tuple[int, ...]
    stride_positions: tuple[int, ...]

    def dim_of(self, position: int) -> int:
        """Return the user's axis that contains the logical axis at `position`."""
        return next(dim for dim in range(len(self.counts)) if position < sum(self.counts[: dim + 1]))


@dataclass(frozen=True)
class Roll:
    """A rotation of the elements along `axes` (positions among the logical axes without reductions, outermost first; several are one index in row-major order):
    index i stands for (i + offset) modulo the product of their extents. 0 <= offset, less than that.
    """

    axes: tuple[int, ...]
    offset: Sym


class TensorDomain(Val):
    """The domains of a tensor: root (before a permute or rfactor), logical (torch's view), loop (how it is computed), allocation (its memory layout).

    contiguity: per allocation axis True/False, None for broadcast axes; True means that the stride equals the extent times the stride of the next inner
    contiguous-or-not non-broadcast axis (1 for the innermost).
    user: the user's axes if they differ from the logical domain. rolled: of a kernel's input or output: rotations between the index and the place in memory.
    """

    def __init__(
        self, root: list[IterDomain] | None, logical: list[IterDomain], contiguity: list[bool | None], allocation: list[IterDomain] | None = None
    ) -> None:
        super().__init__(None, 0)
        self.root, self.logical, self.loop = root, list(logical), list(logical)
        self.allocation, self.contiguity = allocation, list(contiguity)
        self.user: UserAxes | None = None
        self.rolled: tuple[Roll, ...] = ()

    def copied(self, axis: "Callable[[IterDomain], IterDomain]") -> "TensorDomain":
        """Return a copy with other axes in place of its own."""
        copy = object.__new__(TensorDomain)
        copy.fusion, copy.name, copy._definition, copy._uses = self.fusion, self.name, None, []
        copy.root = None if self.root is None else [axis(a) for a in self.root]
        copy.logical, copy.loop = [axis(a) for a in self.logical], [axis(a) for a in self.loop]
        copy.allocation, copy.contiguity = None if self.allocation is None else [axis(a) for a in self.allocation], list(self.contiguity)
        copy.user, copy.rolled = self.user, self.rolled
        return copy

    @property
    def maybe_root(self) -> list[IterDomain]:
        return self.root if self.root is not None else self.logical

    @property
    def maybe_allocation(self) -> list[IterDomain]:
        return self.allocation if self.allocation is not None else self.logical

    def __str__(self) -> str:
        """The loop axes, which are the logical ones until the tensor is scheduled: `[iS0{i0}, iS1{4}]`."""
        return f"[{', '.join(map(str, self.loop))}]"


def no_reductions(axes: Sequence[IterDomain]) -> list[IterDomain]:
    return [axis for axis in axes if not axis.is_reduction()]


@dataclass(frozen=True)
class SharedSwizzle:
    """A permutation of the elements of a tensor in shared memory, so that threads which read a column of a tile use different banks. In units of chunks of
    `chunk_elems` neighbouring elements: chunk c is stored at c ^ (c / period % ways), a permutation within each group of `ways` chunks. ways, period: powers of
    two, `period` a multiple of `ways`; with one way nothing is moved. All accesses of threads use it; TMA has separate swizzles (`weft.lower.tiles`).
    """

    chunk_elems: int
    ways: int
    period: int


_PLACES = {MemoryType.local: "l", MemoryType.shared: "s", MemoryType.global_: "g", MemoryType.tensor: "t", MemoryType.symmetric: "y"}


class Shape(list[Scalar]):
    """The extents of a tensor. A call returns them, too."""

    def __call__(self) -> list[Scalar]:
        return list(self)


class TensorView(Val, TensorSurface):
    """A tensor of the fusion.

    memory_type: global for inputs and outputs, else local (registers) or shared.
    compute_at: number of leading loop axes shared with its consumers (0: computed in a separate nest).
    is_cpu_scalar: a zero-dim tensor on the CPU, passed to kernels by value. strides_of: the name of the tensor whose strides it has, if not its own.
    """

    strides_of: int | None = None

    def __init__(self, fusion: "Owner", name: int, domain: TensorDomain, dtype: DataType) -> None:
        super().__init__(fusion, name)
        self._domain, self._dtype = domain, dtype
        self.memory_type = MemoryType.local
        self.compute_at = 0
        self.is_cpu_scalar = False
        self.shared_swizzle: SharedSwizzle | None = None
        self.circular: object | None = None  # a schedule.circular.CircularBuffer if the tensor is circular buffered

    def copied(self, fusion: "Owner") -> "TensorView":
        """Return a copy for another fusion, with the same domain, that nothing defines or reads yet."""
        copy = object.__new__(TensorView)
        copy.fusion, copy.name, copy._definition, copy._uses = fusion, self.name, None, []
        copy._domain, copy._dtype, copy.memory_type, copy.compute_at = self._domain, self._dtype, self.memory_type, self.compute_at
        copy.is_cpu_scalar, copy.shared_swizzle, copy.circular = self.is_cpu_scalar, self.shared_swizzle, self.circular
        if self.strides_of is not None:
            copy.strides_of = self.strides_of
        return copy

    # -- queries
    @property
    def ndim(self) -> int:
        """Number of logical axes without reductions."""
        return len(no_reductions(self._domain.logical))

    def dtype(self) -> DataType:
        return self._dtype

    def domain(self) -> TensorDomain:
        return self._domain

    def has_root(self) -> bool:
        return self._domain.root is not None

    def get_root_domain(self) -> list[IterDomain]:
        return self._domain.root or []

    def get_maybe_root_domain(self) -> list[IterDomain]:
        return self._domain.maybe_root

    def get_logical_domain(self) -> list[IterDomain]:
        return self._domain.logical

    def get_loop_domain(self) -> list[IterDomain]:
        return self._domain.loop

    def get_allocation_domain(self) -> list[IterDomain]:
        return self._domain.maybe_allocation

    def axis(self, index: int) -> IterDomain:
        """Return loop axis `index` (negative from the end)."""
        loop = self._domain.loop
        if not hasattr(index, "__index__") or not -len(loop) <= index < len(loop):
            raise AxisOutOfRange(tensor=str(self), index=_asked(index), rank=len(loop), remedy=axes_to_give(len(loop)))
        return loop[index]

    @overload
    def size(self, dim: int) -> Scalar: ...

    @overload
    def size(self, dim: None = None) -> "Shape": ...

    def size(self, dim: int | None = None) -> "Scalar | Shape":
        """Return the extent of logical axis `dim` as a scalar of the fusion; without one those of all axes, as torch does."""
        if dim is None:
            return self.shape
        axes = no_reductions(self._domain.logical)
        if not hasattr(dim, "__index__") or not -len(axes) <= dim < len(axes):
            raise AxisOutOfRange(tensor=str(self), index=_asked(dim), rank=len(axes), remedy=axes_to_give(len(axes)))
        return self.fusion.size_scalar(self, dim % len(axes))  # type: ignore[union-attr]

    @property
    def shape(self) -> "Shape":
        """The extents of all axes: x.shape() as in nvFuser, and x.shape[0], len(x.shape) as in torch."""
        return Shape(self.size(d) for d in range(self.ndim))

    def has_reduction(self) -> bool:
        return any(a.is_reduction() for a in self._domain.loop)

    @property
    def is_fusion_input(self) -> bool:
        return self in self.fusion._inputs  # type: ignore[union-attr]

    @property
    def is_fusion_output(self) -> bool:
        return self.fusion.is_output(self)  # type: ignore[union-attr,no-any-return]

    def strides(self) -> dict[IterDomain, Sym]:
        """Return the element stride of each allocation axis of a tensor in global memory (0 for broadcast axes)."""
        out: dict[IterDomain, Sym] = {}
        running: Sym = ONE
        axes = self._domain.maybe_allocation
        for position in reversed(range(len(axes))):
            axis, contiguous = axes[position], self._domain.contiguity[position]
            if axis.is_reduction():
                continue
            if axis.is_broadcast() or contiguous is None:
                out[axis] = const(0)
                continue
            if not contiguous:
                running = self.stride_var(position)
            out[axis] = running
            running = running * axis.sym
        return out

    def stride_var(self, position: int) -> Sym:
        """The runtime stride (elements) of allocation axis `position` of an input that is not contiguous there."""
        user, name = self._domain.user, self.name if self.strides_of is None else self.strides_of
        return var(f"T{name}.stride[{position if user is None else user.stride_positions[position]}]", lower=0)

    def __str__(self) -> str:
        position = f" ca_pos( {self.compute_at} )" if self.compute_at else ""
        return f"T{self.name}_{_PLACES[self.memory_type]}_{self._dtype.value}{self._domain}{position}"

    def __repr__(self) -> str:
        return str(self)


def _asked(index: object) -> str:
    """Return the text of an axis that was asked for; a string keeps its quotes."""
    return (str if hasattr(index, "__index__") else repr)(index)[:60]


class AxisOutOfRange(UserError):
    code = "W110"
    what = "Tried to access out of boundary index {index}: there is no axis {index} in {tensor}, which has {rank}"
    fix = "{remedy}"
