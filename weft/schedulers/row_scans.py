"""Running folds (cumsum and the like) along rows that a kernel also reduces: a block scans the pieces of its row one after the other, as an op of a pass.

Where rows are in shared memory, or read again, a pass is a loop over pieces in a block of a known number of threads, which is what a scan needs
(`lower/scans.py`). Read first: `scanned_candidates`.
"""

from __future__ import annotations

from dataclasses import replace

from ..arch import Arch
from ..dtypes import StateType
from ..ir.enums import ParallelType
from ..ir.fusion import Fusion
from ..ir.graph_ops import ScanOp
from .accesses import with_accesses
from .arithmetic import best_first
from .base import Decline
from .facts import PersistentFacts
from .persistent_analysis import PersistentAnalysis
from .persistent_params import Candidate
from .scans import TYPES
from .streamed_rows import StreamedRows


def why_not_scanned(analysis: PersistentAnalysis) -> Decline | None:
    """Return why the running folds cannot be computed in a pass over the rows, or None."""
    axes, shape, results = analysis.axes, analysis.shape, [e.tensor_outputs[0] for e in analysis.scans]
    along = {axes.of(t.get_logical_domain()[e.attributes["dim"]]) for e, t in zip(analysis.scans, results)}
    if along != shape.reduced or len(along) > 1 or any(axes.stored(t) != frozenset(shape.order) for t in results):
        return Decline("a running fold is not along a whole row of one axis")
    if len({bool(e.attributes.get("reverse")) for e in analysis.scans}) > 1:
        return Decline("some scans begin at the last element, others at the first")
    if analysis.nested or analysis.needs_vectors:
        return Decline("a running fold is beside parts of rows, or outputs that are stored in blocks or whole bytes")
    other = next((t.dtype() for t in results if t.dtype() not in TYPES and not isinstance(t.dtype(), StateType)), None)
    return None if other is None else Decline(f"torch runs scans of {other}")


def why_scanned_apart(analysis: PersistentAnalysis, facts: PersistentFacts, arch: Arch) -> Decline | None:
    """Return why several kernels are better, or the only way, at these sizes; None if one block scans each row."""
    streamed = _streamed(facts, arch)
    if any(c.params.cluster_blocks > 1 for c in streamed.reread_candidates()):
        return Decline(f"share {facts.iteration_elems} long rows of running folds among all blocks")
    if scanned_candidates(analysis, facts, arch):
        return None
    return Decline(f"no block has shared memory for the running folds of {facts.reduction_elems} elements")


def scanned_candidates(analysis: PersistentAnalysis, facts: PersistentFacts, arch: Arch) -> list[Candidate]:
    """Return the candidates, best first. What follows from running folds and is read by a later pass is in shared memory, because each computation of it would
    take the barriers of a scan."""
    streamed = _streamed(facts, arch)
    found = [*streamed.shared_candidates(), *(() if analysis.keeps_scans else streamed.reread_candidates())]
    return [replace(c, params=with_accesses(c.params, facts)) for c in best_first(found, key=lambda candidate: candidate.key)]


def _streamed(facts: PersistentFacts, arch: Arch) -> StreamedRows:
    return StreamedRows(replace(facts, phased_limit_elems=1), arch)


def group_scans(fusion: Fusion) -> None:
    """Let each scan take the vector of a thread at once."""
    for expr in fusion.tensor_exprs():
        if isinstance(expr, ScanOp):
            expr.tensor_outputs[0].axis(-1).parallelize(ParallelType.group)


__all__ = ["group_scans", "scanned_candidates", "why_not_scanned", "why_scanned_apart"]
