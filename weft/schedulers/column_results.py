"""The column results of a kernel that reduces rows, too: those to which all blocks contribute, and those that one block, or cluster, has alone.

Owns what differs between the two. Read first: `column_results`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..ir.enums import ParallelType
from ..ir.fusion import Fusion
from ..ir.values import TensorView
from .column_partials import column_side, columns_in_memory, cut, parallel_columns, schedule_columns, slot_place, sum_in_block, vectorize_partials
from .inner_outer_params import InnerOuterParams
from .template import Template
from .two_sides import TwoSidedAnalysis


@dataclass(frozen=True)
class ColumnResults:
    """Column results that a block has alone: they are computed in the loops of its rows, and no blocks meet.

    totals: the column reductions. read: what is combined with them next. of_columns: `read`, what is computed from it, and what only that needs.
    """

    totals: Sequence[TensorView]
    read: list[TensorView]
    of_columns: list[TensorView]
    params: InnerOuterParams

    def in_loops_of_rows(self, tensor: TensorView) -> bool:
        """Tell whether a tensor is computed in the loops over rows."""
        return True

    def schedule(self) -> None:
        """Transform and bind what is computed behind the loops over rows."""

    def vectorize(self, template: Template, results: list[int]) -> None:
        """Vectorize what is stored and loaded behind the loops over rows. results: names of the outputs that are contiguous along the columns."""
        template.vectorize(results, self.params.vector_elems)
        self._fold_groups_at_once(self.read)

    def _fold_groups_at_once(self, sums: Sequence[TensorView]) -> None:
        """Let the rows side by side in a block add up all elements of a vector together: each element alone would need a barrier or more."""
        if self.params.groups > 1:
            for tensor in sums:
                tensor.axis(-1).parallelize(ParallelType.group)

    def limits(self) -> dict[TensorView, int]:
        """Return how many loops the readers of partial results share with these."""
        return {}


@dataclass(frozen=True)
class SharedColumnResults(ColumnResults):
    """Column results that blocks contribute to: each stores its part, all meet, and add them up in loops of their own. places: of the parts, among the axes of
    each total."""

    places: list[int]

    def in_loops_of_rows(self, tensor: TensorView) -> bool:
        return tensor not in self.of_columns

    def schedule(self) -> None:
        partials = [schedule_columns(total, self.params, self.of_columns) for total in self.totals]
        parallel_columns(list(self.totals), partials, self.read, self.places, self.of_columns, self.params)

    def vectorize(self, template: Template, results: list[int]) -> None:
        template.vectorize(results, self.params.column_vector_elems)
        self._fold_groups_at_once(vectorize_partials(self.read, self.params))

    def limits(self) -> dict[TensorView, int]:
        return dict.fromkeys(self.read, 3 + (self.params.cluster_blocks > 1) + self.params.has_samples)


def column_results(fusion: Fusion, analysis: TwoSidedAnalysis, totals: list[TensorView], row_axes: int, params: InnerOuterParams) -> ColumnResults:
    """Split the column reductions of a fusion as `params` say, and return them with what comes after them."""
    if params.is_alone:
        read = sum_in_block(totals, row_axes, params)
        return ColumnResults(totals, read, column_side(fusion, read), params)
    return shared_column_results(fusion, totals, row_axes, params, [columns_in_memory(expr, analysis) for expr in analysis.columns.reductions])


def shared_column_results(fusion: Fusion, totals: list[TensorView], row_axes: int, params: InnerOuterParams, orders: list[list[int]]) -> SharedColumnResults:
    """Split column reductions into parts of blocks and their sum. orders: the kept axes of each as they are in memory."""
    read = [cut(total, row_axes, params, order) for total, order in zip(totals, orders)]
    return SharedColumnResults(totals, read, column_side(fusion, read), params, [slot_place(total) for total in totals])


__all__ = ["ColumnResults", "column_results", "shared_column_results"]
