"""The values of a computed tensor at looked-up positions: f(x)[i] as f(x[i]), expression by expression.

Owns which expressions a lookup moves through, and the rewriting of one lookup. `lookups.py` decides which lookups are moved. Read first: `LookupMover`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..analysis.plain_copies import ends_segment
from ..dtypes import DataType, StateType
from ..expr import EVALUATORS, ONE, ZERO, Number, Sym, add, const, is_int, mul, proves_le
from ..ir.block_ops import BlockFoldOp, BlockSampleOp
from ..ir.enums import IterType
from ..ir.fusion import Fusion
from ..ir.graph_ops import Along, At, BagOp, Fixed, LookupOp, Position
from ..ir.values import ELEMENTWISE, BroadcastOp, Expr, FullOp, IotaOp, IterDomain, LoadStoreOp, PointwiseOp, Scalar, SqueezeOp, TensorView, Val
from ..ops.build import broadcast, cast, constant, is_plain_broadcast, logical_axes, pointwise
from ..ops.factories import iota
from ..ops.registry import lookup as op_named
from ..ops.shapes import permute, squeeze
from .known_places import chosen, value_at
from .order_of_memory import innermost, lies_across, turns_memory

MOVED = (*ELEMENTWISE, LookupOp)
KEPT = (BagOp, BlockFoldOp, BlockSampleOp)
KEPT_WHOLE = "is_kept_whole"
"""Attribute of an expression whose result lookups read in memory."""


@dataclass(frozen=True)
class Value:
    """A position that an index tensor with the axes of the result gives."""

    index: TensorView


Place = Along | Value | Fixed


@dataclass(frozen=True)
class Window:
    """The positions that a result reads: one per axis of a tensor, and whether it may be outside (then the value does not matter)."""

    places: tuple[Place, ...]
    is_masked: bool


class Images:
    """Values that were computed at looked-up positions, and of each value which tensor it is at which positions."""

    def __init__(self) -> None:
        self._found: dict[tuple[TensorView, Window], TensorView] = {}
        self._keys: dict[TensorView, list[tuple[TensorView, Window]]] = {}

    def get(self, tensor: TensorView, window: Window) -> TensorView | None:
        return self._found.get((tensor, window))

    def put(self, tensor: TensorView, window: Window, value: TensorView) -> None:
        self._found[tensor, window] = value
        self._keys.setdefault(value, []).append((tensor, window))

    def of(self, value: TensorView) -> list[tuple[TensorView, Window]]:
        """Return what a value is the image of."""
        return [key for key in self._keys.get(value, ()) if self._found[key] is value]


Made = dict[tuple[Sym, ...], Images]
"""Images by the extents of the result's axes."""


def is_moved(expr: Expr | None) -> bool:
    """True for an expression through which a lookup moves. A copy that ends a segment stays. An op that takes a field out of a reduction's state stays with
    the reduction, because states are not stored in memory. A fold over blocks stays, because it also reads the neighbours of a position, which a lookup may
    leave out or put elsewhere. The sum of a bag stays: it would be computed again for each position. So does what is marked as `KEPT_WHOLE`."""
    if expr is not None and KEPT_WHOLE in expr.attributes:
        return False
    if not isinstance(expr, MOVED) or isinstance(expr, KEPT) or any(isinstance(t.dtype(), StateType) for t in expr.tensor_inputs):
        return False
    return not ends_segment(expr)


def is_joined(expr: Expr | None) -> bool:
    """True for a lookup that is one with a lookup of its result, whatever its source is: outside of the source it has no value of another tensor."""
    return type(expr) is LookupOp and not (expr.is_masked and isinstance(expr.inputs[-1], TensorView))


def extent_count(tensor: TensorView) -> int:
    """Return the number of axes along which a tensor has elements of its own."""
    return sum(not axis.is_broadcast() for axis in logical_axes(tensor))


def picks_few(lookup: LookupOp) -> bool:
    """True if a lookup has fewer axes with several elements than its source, such as one class of each row: in whatever order these lie, they are read sooner
    than the source is transposed."""
    return extent_count(lookup.tensor_outputs[0]) < extent_count(lookup.source)


class LookupMover:
    """Rewrites one lookup. `axes` are those of its result. made: values computed so far for it and for others of the same shape. only_joins: what is computed
    stays, and only lookups of lookups become one."""

    def __init__(self, fusion: Fusion, expr: LookupOp, made: Made, *, only_joins: bool = False) -> None:
        self.fusion, self.expr, self.only_joins = fusion, expr, only_joins
        self.out: TensorView = expr.outputs[0]  # type: ignore[assignment]
        self.axes = logical_axes(self.out)
        self.made = made.setdefault(tuple(a.logical_extent for a in self.axes), Images())

    def run(self) -> None:
        """Compute the result at its own positions, instead of looking it up."""
        fusion, expr = self.fusion, self.expr
        places = tuple(Value(expr.inputs[p.operand]) if isinstance(p, At) else p for p in expr.positions)  # type: ignore[arg-type]
        window = Window(places, expr.is_masked)
        fusion.remove(expr)
        source = expr.source
        if not expr.is_masked or expr.attributes.get("is_discarded"):
            self._finish(self.image(source, window))
            return
        fill = expr.inputs[-1]
        if not isinstance(fill, Scalar):
            self._where(self._inside(source, window), self.image(source, window), fill)  # type: ignore[arg-type]
            return
        kept = self._same_fill(source, window, fill)
        if kept is not None:
            self._finish(kept)
            return
        inside = self._inside(source, window)
        value = self.image(source, window)
        self._where(inside, value, fill)

    def _finish(self, value: TensorView) -> None:
        """Replace the result by `value`, a new tensor or an existing one."""
        fusion, definition = self.fusion, value.definition()
        if any(mine.is_broadcast() is not theirs.is_broadcast() for mine, theirs in zip(self.axes, logical_axes(value))):
            self._where(self._everywhere([fusion.copy_axis(a) for a in self.axes]), value, value)
            return
        keys = self.made.of(value)
        if not keys or any(key[0] is value for key in keys) or value.uses() or value.is_fusion_output or definition is None:
            fusion.register(LoadStoreOp([value], [self.out]))
            return
        fusion.remove(definition)
        definition.outputs = [self.out]
        fusion.register(definition)
        for key in keys:
            self.made.put(*key, self.out)

    def _where(self, condition: TensorView, value: TensorView, other: TensorView | Scalar) -> None:
        """Make the result a selection with the result's axes, whichever of the operands depend on them."""
        columns = zip(self.axes, logical_axes(condition), logical_axes(value))
        if any(not mine.is_broadcast() and a.is_broadcast() and b.is_broadcast() for mine, a, b in columns):
            condition = pointwise(self.fusion, "logical_and", self._everywhere([self.fusion.copy_axis(a) for a in self.axes]), condition)  # type: ignore[assignment]
        self.fusion.register(PointwiseOp([condition, value, other], [self.out], op="where", compute=self.out.dtype()))

    def _everywhere(self, axes: list[IterDomain]) -> TensorView:
        out = self.fusion.new_tensor(axes, DataType.Bool)
        self.fusion.register(FullOp([constant(self.fusion, True, DataType.Bool)], [out], op="full"))
        return out

    # -- the value at the result's positions
    def image(self, tensor: TensorView, window: Window) -> TensorView:
        """Return the values of `tensor` at `window`, with the rank of the result, and broadcast axes where they do not vary."""
        found = self.made.get(tensor, window)
        if found is None:
            found = tensor if self._is_identity(tensor, window) else self._computed(tensor, window)
            self.made.put(tensor, window, found)
        return found

    def _is_identity(self, tensor: TensorView, window: Window) -> bool:
        axes = logical_axes(tensor)
        if len(axes) != len(self.axes):
            return False
        for d, (axis, place) in enumerate(zip(axes, window.places)):
            is_own = isinstance(place, Along) and place.axis == d and place.offset is ZERO and axis.logical_extent is self.axes[d].logical_extent
            if not is_own and not (is_plain_broadcast(axis) and not self._is_used(d, tensor, window)):
                return False
        return True

    def _is_used(self, d: int, tensor: TensorView, window: Window) -> bool:
        """True if the position along a non-broadcast axis of `tensor` depends on axis d of the result."""
        return d in self._varying(tensor, window)

    def _varying(self, tensor: TensorView, window: Window) -> set[int]:
        """Axes of the result along which the values of `tensor` at `window` vary."""
        out: set[int] = set()
        for axis, place in zip(logical_axes(tensor), window.places):
            if is_plain_broadcast(axis) or axis.is_broadcast():
                continue
            if isinstance(place, Along):
                out.add(place.axis)
            elif isinstance(place, Value):
                out.update(self._axes_of(place))
        return out

    @staticmethod
    def _axes_of(place: Value) -> list[int]:
        """Return the axes of the result along which a position varies."""
        return [d for d, axis in enumerate(logical_axes(place.index)) if not axis.is_broadcast()]

    def _computed(self, tensor: TensorView, window: Window) -> TensorView:
        definition = tensor.definition()
        is_named = any(isinstance(place, Value) for place in window.places) and not picks_few(self.expr)
        is_end = is_named and turns_memory(definition) and lies_across(tensor, self._inner(window), is_moved)
        if not is_moved(definition) or is_end or self.only_joins and not is_joined(definition):
            turned = self._turned(tensor, window)
            return self._looked_up(tensor, window) if turned is None else turned
        if isinstance(definition, PointwiseOp):
            only = chosen(definition, window.places)
            if isinstance(only, TensorView) and only.dtype() is tensor.dtype():
                return self.image(only, self._of_operand(only, window))
            inputs = [self.image(v, self._of_operand(v, window)) if isinstance(v, TensorView) else v for v in definition.inputs]
            return self._copy_of(definition, inputs, tensor)
        if isinstance(definition, LookupOp):
            return self._composed(definition, window)
        if isinstance(definition, FullOp):
            return self._single(definition.inputs[0], tensor.dtype())  # type: ignore[arg-type]
        if isinstance(definition, IotaOp):
            return self._counted(definition, window.places[0]) if len(window.places) == 1 else self._counted_over_axes(definition, window.places)
        (source,) = definition.tensor_inputs  # type: ignore[union-attr]
        return self.image(source, Window(self._through(definition, source, window), window.is_masked))  # type: ignore[arg-type]

    def _inner(self, window: Window) -> int | None:
        """Return the axis of a tensor along which it varies where neighbours of the result do, or None."""
        last = innermost(self.axes)
        for number, place in enumerate(window.places):
            if place.axis == last if isinstance(place, Along) else isinstance(place, Value) and last in self._axes_of(place):
                return number
        return None

    def _turned(self, tensor: TensorView, window: Window) -> TensorView | None:
        """Return a tensor of which each element is read at its own place, with its axes in the order of the result's; None if it is read elsewhere. A lookup
        would need the tensor in memory, as a sum of rows that were transposed since, and would not tell which loop each axis of an input has."""
        own: list[int] = []
        axes = logical_axes(tensor)
        for axis, place in zip(axes, window.places):
            if axis.is_broadcast():
                if axis.expanded_extent is not None:
                    return None
                continue
            if not isinstance(place, Along) or place.offset is not ZERO or self.axes[place.axis].logical_extent is not axis.logical_extent:
                return None
            own.append(place.axis)
        if not own or len(set(own)) < len(own):
            return None
        single = [d for d, axis in enumerate(axes) if axis.is_broadcast()]
        value = squeeze(self.fusion, tensor, single) if single else tensor
        order = sorted(range(len(own)), key=own.__getitem__)
        value = value if order == list(range(len(own))) else permute(self.fusion, value, order)
        return broadcast(self.fusion, value, [d not in own for d in range(len(self.axes))])

    def _single(self, value: Scalar, dtype: DataType) -> TensorView:
        """Return a constant as a tensor of the result's rank."""
        out = self.fusion.new_tensor([self.fusion.new_axis(1, IterType.broadcast) for _ in self.axes], dtype)
        self.fusion.register(FullOp([value], [out], op="full"))
        return out

    def _counted(self, definition: IotaOp, place: Place) -> TensorView:
        """Return start + step * position."""
        fusion, dtype, rank = self.fusion, definition.outputs[0].dtype(), len(self.axes)  # type: ignore[attr-defined]
        _, start, step = definition.inputs
        if isinstance(place, Value):
            return pointwise(fusion, "add", pointwise(fusion, "mul", cast(fusion, place.index, dtype), step), start)  # type: ignore[return-value]
        offset = fusion.new_scalar(place.offset if isinstance(place, Along) else place.position, DataType.Int)
        first = cast(fusion, pointwise(fusion, "add", pointwise(fusion, "mul", cast(fusion, offset, dtype), step), start), dtype)
        if isinstance(place, Fixed):
            return self._single(first, dtype)  # type: ignore[arg-type]
        row = iota(fusion, fusion.new_scalar(self.axes[place.axis].logical_extent, DataType.Int), first, cast(fusion, step, dtype), dtype)
        return broadcast(fusion, row, [d != place.axis for d in range(rank)]) if rank > 1 else row

    def _counted_over_axes(self, definition: IotaOp, places: tuple[Place, ...]) -> TensorView:
        """Return start + step * position of an iota whose axis was factored: the position is the sum over its axes, in integers."""
        fusion, stride = self.fusion, ONE
        parts: list[TensorView] = []
        for axis, place in reversed(list(zip(logical_axes(definition.tensor_outputs[0]), places))):
            parts.append(self._strided(place, stride))
            stride = mul(stride, axis.logical_extent)
        total: Val = parts[0]
        for part in parts[1:]:
            total = pointwise(fusion, "add", total, part)
        _, start, step = definition.inputs
        dtype = definition.tensor_outputs[0].dtype()
        return cast(fusion, pointwise(fusion, "add", pointwise(fusion, "mul", cast(fusion, total, dtype), step), start), dtype)  # type: ignore[return-value]

    def _strided(self, place: Place, stride: Sym) -> TensorView:
        """Return stride * position, in Int, of the result's rank."""
        fusion = self.fusion
        scale = fusion.new_scalar(stride, DataType.Int)
        if isinstance(place, Value):
            return pointwise(fusion, "mul", cast(fusion, place.index, DataType.Int), scale)  # type: ignore[return-value]
        first = fusion.new_scalar(mul(stride, place.offset if isinstance(place, Along) else place.position), DataType.Int)
        if isinstance(place, Fixed):
            return self._single(first, DataType.Int)
        row = iota(fusion, fusion.new_scalar(self.axes[place.axis].logical_extent, DataType.Int), first, scale, DataType.Int)
        return broadcast(fusion, row, [d != place.axis for d in range(len(self.axes))]) if len(self.axes) > 1 else row

    def _of_operand(self, operand: TensorView, window: Window) -> Window:
        """The window of an operand of a pointwise op: the first element along axes that it lacks."""
        axes = logical_axes(operand)
        places = tuple(Fixed(ZERO) if is_plain_broadcast(a) else p for a, p in zip(axes, window.places))
        return Window(places, window.is_masked)

    def _through(self, definition: Expr, source: TensorView, window: Window) -> tuple[Place, ...]:
        """The places along the axes of the operand of a broadcast, squeeze, expand or copy."""
        if isinstance(definition, BroadcastOp):
            return tuple(p for p, new in zip(window.places, definition.attributes["flags"]) if not new)
        if isinstance(definition, SqueezeOp):
            rest = iter(window.places)
            return tuple(Fixed(ZERO) if dropped else next(rest) for dropped in definition.attributes["flags"])
        if isinstance(definition, LoadStoreOp):
            target: TensorView = definition.outputs[0]  # type: ignore[assignment]
            place = dict(zip(logical_axes(target), window.places))
            return tuple(place[a] for a in target.get_maybe_root_domain() if not a.is_reduction())
        return self._of_operand(source, window).places

    def _copy_of(self, definition: PointwiseOp, inputs: Sequence[object], old: TensorView) -> TensorView:
        columns = [logical_axes(v) for v in inputs if isinstance(v, TensorView)]
        axes = []
        for d in range(len(self.axes)):
            real = [c[d] for c in columns if not c[d].is_broadcast()] or [c[d] for c in columns if c[d].expanded_extent is not None] or [columns[0][d]]
            axes.append(self.fusion.copy_axis(real[0]))
        out = self.fusion.new_tensor(axes, old.dtype())
        self.fusion.register(PointwiseOp(inputs, [out], **definition.attributes))  # type: ignore[arg-type]
        return out

    def _looked_up(self, tensor: TensorView, window: Window) -> TensorView:
        """Return a lookup of a tensor that is not moved through; a CPU scalar is passed to kernels by value, so it has no memory to look into."""
        if tensor.is_cpu_scalar:
            return broadcast(self.fusion, tensor, [True] * len(self.axes))
        fusion, varying = self.fusion, self._varying(tensor, window)
        axes = [self._axis(d) if d in varying else fusion.new_axis(1, IterType.broadcast) for d in range(len(self.axes))]
        indices = list(dict.fromkeys(p.index for p in window.places if isinstance(p, Value)))
        positions: list[Position] = []
        for axis, place in zip(logical_axes(tensor), window.places):
            if axis.is_broadcast():
                positions.append(Fixed(ZERO))
            else:
                positions.append(At(1 + indices.index(place.index)) if isinstance(place, Value) else place)
        used = {p.operand for p in positions if isinstance(p, At)}
        order = {old: new for new, old in enumerate(sorted(used), 1)}
        positions = [At(order[p.operand]) if isinstance(p, At) else p for p in positions]
        inputs = [tensor, *(indices[old - 1] for old in sorted(used))]
        if window.is_masked:
            inputs.append(constant(fusion, _zero(tensor.dtype()), tensor.dtype()))  # type: ignore[arg-type]
        out = fusion.new_tensor(axes, tensor.dtype())
        attributes: dict[str, object] = {"is_discarded": True} if window.is_masked else {}
        fusion.register(LookupOp(inputs, [out], op=self.expr.op_name, positions=tuple(positions), is_masked=window.is_masked, **attributes))
        return out

    def _axis(self, d: int) -> IterDomain:
        axis = self.axes[d]
        return self.fusion.new_axis(axis.expanded_extent, IterType.iteration) if axis.expanded_extent is not None else self.fusion.copy_axis(axis)

    # -- a lookup of a lookup
    def _composed(self, inner: LookupOp, window: Window) -> TensorView:
        places: list[Place] = []
        axes = logical_axes(inner.outputs[0])  # type: ignore[arg-type]
        for position in inner.positions:
            if isinstance(position, Along):
                place = Fixed(ZERO) if is_plain_broadcast(axes[position.axis]) else window.places[position.axis]
                places.append(self._moved_by(place, position.offset))
            elif isinstance(position, At):
                index: TensorView = inner.inputs[position.operand]  # type: ignore[assignment]
                known = value_at(index, self._of_operand(index, window).places)
                places.append(Value(self._position(index, window)) if known is None else Fixed(const(known)))
            else:
                places.append(position)
        composed = Window(tuple(places), inner.is_masked or window.is_masked)
        value = self.image(inner.source, composed)
        if not inner.is_masked or inner.attributes.get("is_discarded"):
            return value
        inside = self._inside(inner.source, composed)
        fill = inner.inputs[-1]
        fill = self.image(fill, self._of_operand(fill, window)) if isinstance(fill, TensorView) else fill
        columns = zip(logical_axes(inside), logical_axes(value))
        kept = [self.fusion.copy_axis(b if a.is_broadcast() else a) for a, b in columns]
        out = self.fusion.new_tensor(kept, value.dtype())
        self.fusion.register(PointwiseOp([inside, value, fill], [out], op="where", compute=value.dtype()))
        return out

    def _position(self, index: TensorView, window: Window) -> TensorView:
        """Return what an index tensor holds at `window`, which is computed there in any case."""
        joins, self.only_joins = self.only_joins, False
        found = self.image(index, self._of_operand(index, window))
        self.only_joins = joins
        return found

    def _moved_by(self, place: Place, offset: Sym) -> Place:
        if offset is ZERO:
            return place
        if isinstance(place, Along):
            return Along(place.axis, add(place.offset, offset))
        if isinstance(place, Fixed):
            return Fixed(add(place.position, offset))
        moved = pointwise(self.fusion, "add", place.index, self.fusion.new_scalar(offset, DataType.Int))
        return Value(moved)  # type: ignore[arg-type]

    # -- masks
    def _inside(self, tensor: TensorView, window: Window) -> TensorView:
        """Return a Bool tensor of the result's rank: whether the window's positions are in `tensor`."""
        fusion, rank = self.fusion, len(self.axes)
        parts: list[TensorView] = []
        for axis, place in zip(logical_axes(tensor), window.places):
            extent = fusion.new_scalar(axis.logical_extent, DataType.Int)
            is_before, is_behind = True, True
            if isinstance(place, Along):
                mine = self.axes[place.axis]
                is_before = not proves_le(ZERO, place.offset)
                is_behind = not proves_le(add(place.offset, mine.logical_extent), axis.logical_extent)
                if not is_before and not is_behind:
                    continue
                length = fusion.new_scalar(mine.logical_extent, DataType.Int)
                row = iota(fusion, length, fusion.new_scalar(place.offset, DataType.Int), fusion.new_scalar(ONE, DataType.Int), DataType.Int)
                at = broadcast(fusion, row, [d != place.axis for d in range(rank)]) if rank > 1 else row
            elif isinstance(place, Value):
                at = place.index
            elif is_int(place.position, 0):
                continue
            else:
                at = self._single(fusion.new_scalar(place.position, DataType.Int), DataType.Int)
            parts += [pointwise(fusion, "ge", at, 0)] if is_before else []  # type: ignore[list-item]
            parts += [pointwise(fusion, "lt", at, extent)] if is_behind else []  # type: ignore[list-item]
        if not parts:
            return self._single(constant(fusion, True, DataType.Bool), DataType.Bool)
        result = parts[0]
        for part in parts[1:]:
            result = pointwise(fusion, "logical_and", result, part)  # type: ignore[assignment]
        return result

    def _leaves_broadcast(self, tensor: TensorView, window: Window) -> bool:
        """True if positions may be outside of `tensor` along a broadcast axis: a lookup reads index 0 there, without a mask."""
        for axis, place in zip(logical_axes(tensor), window.places):
            is_whole = isinstance(place, Along) and place.offset is ZERO and self.axes[place.axis].logical_extent is axis.logical_extent
            if axis.is_broadcast() and not is_whole and not (isinstance(place, Fixed) and is_int(place.position, 0)):
                return True
        return False

    def _same_fill(self, source: TensorView, window: Window, fill: Scalar) -> TensorView | None:
        """Return the image of a chain of ops on one tensor with a fill value that the chain maps to `fill`, or None."""
        chain: list[PointwiseOp] = []
        tensor = source
        while isinstance(above := tensor.definition(), PointwiseOp) and len(above.inputs) == 1 and is_moved(above):
            chain.append(above)
            tensor = above.tensor_inputs[0]
        if not fill.sym.is_const or is_moved(tensor.definition()) or not chain or self._leaves_broadcast(tensor, window):
            return None
        value = _before(fill.sym.value, fill.dtype(), chain)
        if value is None:
            return None
        image = self._looked_up(tensor, window)
        lookup: Expr = image.definition()  # type: ignore[assignment]
        lookup.attributes.pop("is_discarded", None)
        self.fusion.replace_input(lookup, lookup.inputs[-1], constant(self.fusion, value, tensor.dtype()))
        for op in reversed(chain):
            image = self._copy_of(op, [image], op.outputs[0])  # type: ignore[arg-type]
            self.made.put(op.tensor_outputs[0], window, image)
        return image


def _before(value: Number, dtype: DataType, chain: Sequence[PointwiseOp]) -> Number | None:
    """Return a number of the type of the chain's first operand that the chain maps to `value`, or None. Tried: 0, and the number itself through casts."""
    source: DataType = chain[-1].tensor_inputs[0].dtype()
    if all(op.op_name == "cast" for op in chain):
        exact = value == 0 or source.is_float and dtype.is_float and abs(value) == float("inf")
        return _zero(source) if value == 0 else value if exact else None
    if str(value) != "0.0" or not source.is_float:
        return None
    return next((zero for zero in (0.0, -0.0) if str(_through_chain(zero, chain)) == "0.0"), None)


def _through_chain(number: Number, chain: Sequence[PointwiseOp]) -> Number | None:
    for op in reversed(chain):
        if op.op_name == "cast":
            continue
        function = EVALUATORS.get(op_named(op.op_name).sym_name)
        try:
            number = float("nan") if function is None else function(number)
        except (ValueError, ZeroDivisionError, OverflowError, TypeError):
            return None
    return number


def _zero(dtype: DataType) -> Number:
    return False if dtype.is_bool else 0 if dtype.is_integer else 0j if dtype.is_complex else 0.0
