"""Transposed tiles moved from memory to memory by one statement: where a tile begins, the stride of its rows, and how many there are.

Read first: `turn_tile`.
"""

from __future__ import annotations

from ..errors import InternalError
from ..expr import ZERO, Sym, const, recombine, sub, substitute
from ..ir.enums import MemoryType
from ..ir.values import Expr, LoadStoreOp, TensorView
from ..schedule.whole_tiles import WholeTile
from .access import access
from .kernel_ir import Access, Buffer, TurnTile
from .state import BuildState

SECTOR_BYTES, VECTOR_BYTES = 32, 16
"""The alignment of a tile's rows, and the bytes copied at once, in device/turned.cuh."""
MOST_LANES = 8


def tile_of_copy(expr: Expr) -> WholeTile | None:
    """Return the tile that one statement copies as a whole, or None."""
    return expr.attributes.get("whole_tile") if isinstance(expr, LoadStoreOp) else None


def is_part_of_tile(expr: Expr) -> bool:
    """True for a copy that is done by a later one that moves whole tiles."""
    return isinstance(expr, LoadStoreOp) and expr.attributes.get("whole_tile", 0) is None


def shared_bytes(tile_elems: int, elem_bytes: int) -> int:
    """Return the bytes of a tile in shared memory, as device/turned.cuh places it."""
    vector = VECTOR_BYTES // elem_bytes
    rows, group_vectors = tile_elems + SECTOR_BYTES // elem_bytes - 1, vector * (tile_elems // vector + 1) + 1
    return (rows // vector + 1) * group_vectors * VECTOR_BYTES


def lanes_of_tile(tile_elems: int, elem_bytes: int) -> int:
    """Return how many lanes of a warp write neighbouring vectors."""
    return min(MOST_LANES, tile_elems * elem_bytes // VECTOR_BYTES)


def turn_tile(state: BuildState, expr: Expr, tile: WholeTile) -> TurnTile:
    """Return the statement that moves a tile."""
    output: TensorView = expr.outputs[0]  # type: ignore[assignment]
    groups = [g for axis, g in zip(output.get_loop_domain(), state.plan.groups[output]) if any(axis is a for a in tile.within)]
    indexer = state.indexer(expr)
    far, near = access(state, indexer, output, expr, writing=True), access(state, indexer, tile.source, expr, writing=False)
    assert isinstance(far, Access) and isinstance(near, Access)

    def at(value: Sym, element: int) -> Sym:
        """The value at the tile's element with this number, counted along the innermost axis first."""
        places: dict[Sym, Sym] = {}
        for group in reversed(groups):
            if group.index is not ZERO:
                if not group.extent.is_const:
                    raise InternalError(f"{output} has a tile of {group.extent} elements")
                extent = int(group.extent.value)  # type: ignore[arg-type]
                places[group.index], element = const(element % extent), element // extent
        return recombine(substitute(value, places))

    edge = tile.tile_elems
    to_step, from_step = (recombine(sub(at(place, n), at(place, 0))) for place, n in ((far.index, edge), (near.index, 1)))
    first_row, first_column = (at(indexer.axis_index(axis, output), 0) for axis in (tile.along, tile.across))
    dtype = output.dtype()
    workspace = Buffer(f"tile_T{output.name}", dtype, MemoryType.shared, const(shared_bytes(edge, dtype.bits // 8) * 8 // dtype.bits), output)
    return TurnTile(
        expr, [Access(far.buffer, at(far.index, 0))], [Access(near.buffer, at(near.index, 0))], to_step=to_step, from_step=from_step,
        rows=sub(tile.along.sym, first_row), columns=sub(tile.across.sym, first_column), first_row=first_row, tile_elems=edge, threads=tile.threads,
        lanes=lanes_of_tile(edge, dtype.bits // 8), workspace=workspace,
    )  # fmt: skip


__all__ = ["is_part_of_tile", "shared_bytes", "tile_of_copy", "turn_tile"]
