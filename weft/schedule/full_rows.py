"""What a schedule knows of the sizes it is for: how far rows fill the batches of their threads."""

from __future__ import annotations

from dataclasses import dataclass

from ..expr import Sym


@dataclass(frozen=True)
class FullRows:
    """Rows cut into `batches` parts, of which every element of each but the last exists, or of the last too when `is_whole`.

    sizes: the variables of the row's length; bounds in these are assumed to hold, and the host checks the assumption for every new shape.
    """

    sizes: frozenset[Sym]
    batches: int
    is_whole: bool
