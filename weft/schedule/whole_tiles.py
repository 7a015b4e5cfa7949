"""Transposed tiles moved from memory to memory by one statement (device/turned.cuh).

Read first: `move_whole_tiles`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.values import IterDomain, LoadStoreOp, TensorView


@dataclass(frozen=True)
class WholeTile:
    """A tile that the copy to an output moves at once. along, across: the axes that are split into tiles: rows of the output are along the first, those of the
    source along the second. tile_elems: the edge. within: the loops over the elements of a tile. threads: of the block. source: the copied input.
    """

    along: IterDomain
    across: IterDomain
    tile_elems: int
    within: tuple[IterDomain, ...]
    threads: int
    source: TensorView


def chain_of(output: TensorView) -> list[LoadStoreOp]:
    """Return the copies that lead from an input to `output`, the last first; none if there are other ops between."""
    found: list[LoadStoreOp] = []
    tensor = output
    while not tensor.is_fusion_input:
        definition = tensor.definition()
        if not isinstance(definition, LoadStoreOp):
            return []
        found.append(definition)
        tensor = definition.tensor_inputs[0]
    return found


def move_whole_tiles(output: TensorView, tile: WholeTile) -> None:
    """Make the copy to `output` move whole tiles; copies before it become part of it."""
    last, *before = chain_of(output)
    last.attributes["whole_tile"] = tile
    for copy in before:
        copy.attributes["whole_tile"] = None


__all__ = ["WholeTile", "chain_of", "move_whole_tiles"]
