"""Schedulers, in the order in which they are asked; the first that accepts a fusion schedules it."""

from .base import Scheduler
from .declining import EXPR_EVAL, MATMUL, RESIZE, NoOp
from .inner_outer import InnerOuterPersistent
from .inner_persistent import InnerPersistent
from .outer_persistent import OuterPersistent
from .pointwise import PointWise
from .reduction import Reduction
from .scans import Scans
from .transpose import Transpose

SCHEDULERS: tuple[Scheduler, ...] = (
    EXPR_EVAL, NoOp(), MATMUL, Reduction(), RESIZE, Transpose(), PointWise(), InnerPersistent(), OuterPersistent(), InnerOuterPersistent(),
    Scans(),
)  # fmt: skip

__all__ = ["SCHEDULERS", "Scheduler"]
