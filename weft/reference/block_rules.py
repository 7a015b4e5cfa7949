"""Blocks of neighbours along the last axis in torch's terms: their largest magnitudes, one element of each, and scales in tiles.

Read first: `fold`, `in_tiles`.
"""

from __future__ import annotations

from typing import Any

import torch

from ..dtypes import DataType
from ..ir.block_ops import (
    GROUPED, PADDED, PADDED_COLUMNS, SWIZZLED, BlockFoldOp, BlockHadamardOp, BlockSampleOp, GroupFoldOp, GroupResultOp,
)  # fmt: skip
from ..ir.values import no_reductions
from ..ops.monoids import MONOIDS
from . import narrow


def fold(machine: Any, node: BlockFoldOp) -> torch.Tensor:
    """Return the largest magnitude of each element's block, of which NaN does not count; or each block transformed."""
    x: torch.Tensor = machine.tensors[node.inputs[0]]
    if not x.numel():
        return x.to(machine.dtype(node.attributes["compute"]))
    if isinstance(node, BlockHadamardOp):
        return transformed(x.to(machine.dtype(node.attributes["compute"])), node.signs)
    size = x.to(machine.dtype(node.attributes["compute"])).abs().nan_to_num(nan=0.0, posinf=float("inf")).unflatten(-1, (-1, node.block))
    return size.amax(-1, keepdim=True).expand_as(size).flatten(-2)


def transformed(x: torch.Tensor, signs: int) -> torch.Tensor:
    """Return each block of 16 neighbours of the last axis times diag(signs) H / 4, by sums and differences at distances 1, 2, 4 and 8."""
    flipped = torch.tensor([-1.0 if signs >> place & 1 else 1.0 for place in range(16)], dtype=x.dtype, device=x.device)
    made = x.unflatten(-1, (-1, 16)) * flipped
    for apart in (1, 2, 4, 8):
        low, high = made.unflatten(-1, (-1, 2, apart)).unbind(-2)
        made = torch.stack([low + high, low - high], -2).flatten(-3)
    return (made * 0.25).flatten(-2)


def fold_groups(machine: Any, node: GroupFoldOp) -> torch.Tensor:
    """Return, for each element, the fold of its group: of all elements along the innermost axes."""
    x: torch.Tensor = machine.tensors[node.inputs[0]]
    return torch.as_tensor(MONOIDS[node.kind].reduce(x, list(range(-node.attributes["axes"], 0)), True)).expand_as(x)


def result_of_groups(machine: Any, node: GroupResultOp) -> torch.Tensor:
    """Return one element of each group, with the axes of the output."""
    domain = node.tensor_outputs[0].domain()
    logical = no_reductions(domain.logical)
    rows: torch.Tensor = machine.tensors[node.inputs[0]][tuple(slice(None) if axis in logical else 0 for axis in domain.maybe_root)]
    kept = [axis for axis in domain.maybe_root if axis in logical]
    rows = rows.permute([kept.index(axis) for axis in logical if axis in kept])
    return rows[tuple(slice(None) if axis in kept else None for axis in logical)]


def sample(machine: Any, node: BlockSampleOp) -> torch.Tensor:
    """Return the first element of each block, in the layout of the node. Padding has no bit set: 0, of Float8_e8m0fnu its smallest number."""
    rows = machine.tensors[node.inputs[0]][..., :: node.block]
    if node.layout == "rows":
        return rows
    least = float(narrow.grid(DataType.Float8_e8m0fnu)[0]) if node.outputs[0].dtype() is DataType.Float8_e8m0fnu else 0.0  # type: ignore[attr-defined]
    return least + _placed(machine, node, rows.flatten(0, -2) - least) if least else _placed(machine, node, rows.flatten(0, -2))


def _placed(machine: Any, node: BlockSampleOp, matrix: torch.Tensor) -> torch.Tensor:
    """Return scales in the layout of the node, with zeros as padding."""
    if node.layout == GROUPED:
        return in_grouped_tiles(matrix, *(machine.tensors[t] for t in node.read_whole))
    if node.layout in PADDED:
        return padded(matrix, *PADDED[node.layout])
    if node.layout == PADDED_COLUMNS:
        return padded(matrix.t(), 1, 4)
    return in_tiles(matrix) if node.layout == SWIZZLED else matrix


def padded(matrix: torch.Tensor, unit_rows: int, unit_columns: int) -> torch.Tensor:
    """Return a matrix with zeros up to multiples of so many rows and columns."""
    rows, columns = matrix.shape
    out = torch.zeros(-(-rows // unit_rows) * unit_rows, -(-columns // unit_columns) * unit_columns, dtype=matrix.dtype, device=matrix.device)
    out[:rows, :columns] = matrix
    return out


def in_grouped_tiles(scales: torch.Tensor, begins: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Return scales of groups of rows, each group in tiles of its own, from row places[group] on, else zeros.

    Shapes: [m, c] -> [m + 127 * groups, c to whole 4].
    """
    m, columns = scales.shape
    rows, column_tiles = m + 127 * places.numel(), -(-columns // 4)
    out = torch.zeros(rows * column_tiles * 4, dtype=scales.dtype, device=scales.device)
    if m and columns:
        row = torch.arange(m, device=scales.device)
        group = torch.searchsorted(begins.to(row.dtype), row, right=True) - 1  # groups without rows begin where the next does
        r = (row - begins[group] + places[group])[:, None]
        c = torch.arange(columns, device=scales.device)[None]
        out[((r // 128 * column_tiles + c // 4) * 512 + r % 32 * 16 + r % 128 // 32 * 4 + c % 4).flatten()] = scales.flatten()
    return out.view(rows, column_tiles * 4)


def in_tiles(rows: torch.Tensor) -> torch.Tensor:
    """Return scales in tiles of 128 rows by 4 columns, each of four groups of 32 rows side by side, padded with zeros.

    Shapes: [r, c] -> [r to whole 128, c to whole 4].
    """
    r, c = rows.shape
    row_tiles, column_tiles = -(-r // 128), -(-c // 4)
    padded = torch.zeros(row_tiles * 128, column_tiles * 4, dtype=rows.dtype, device=rows.device)
    padded[:r, :c] = rows
    tiles = padded.view(row_tiles, 4, 32, column_tiles, 4).permute(0, 3, 2, 1, 4)
    return tiles.reshape(row_tiles * 128, column_tiles * 4)


def out_of_tiles(tiles: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Return the scales that `in_tiles` made tiles of. Shapes: [r to whole 128, c to whole 4] -> [rows, columns]."""
    row_tiles, column_tiles = tiles.shape[0] // 128, tiles.shape[1] // 4
    return tiles.reshape(row_tiles, column_tiles, 32, 4, 4).permute(0, 3, 2, 1, 4).reshape(row_tiles * 128, column_tiles * 4)[:rows, :columns]
