"""The order of lowering: one list of passes with the reason for each place. Read first: `lower`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .. import options
from ..analysis.axes import MAPS
from ..dtypes import DataType
from ..expr import Sym, const
from ..ir.enums import ParallelType
from ..ir.fusion import Fusion
from ..schedule.peel import Peel
from ..schedule.staying_blocks import StayingBlocks
from . import passes
from .behind import run_behind
from .block_values import compute_once_per_block
from .branches import branch_selections
from .build import build_kernel_state
from .circular import run_pipelines
from .contracts import check_order, contract_of
from .dependent_launch import overlap_launches
from .early_lookups import advance_lookups
from .fold_runs import fold_runs
from .forward_copies import forward_copies
from .grid_sync import insert_grid_sync
from .in_place import restrict_aliased_loads
from .kernel_head import begin_kernel
from .kernel_ir import Kernel
from .kernel_text import body_text
from .known_sizes import write_known_sizes
from .magnitudes import fold_magnitudes
from .masks import split_masked_loops
from .peel import peel_rows
from .scaled_casts import join_factors
from .scans import plan_scans
from .state import BuildState
from .staying import load_ahead, merge_reductions
from .tile_scales import join_tile_scales
from .unswitch import unswitch_loops
from .verify import verify

Pass = Callable[[Kernel, BuildState], Kernel]

PIPELINE: tuple[Pass, ...] = (
    insert_grid_sync,  # moves statements, so before any barrier is placed between them
    merge_reductions,  # moves statements, too, and decides how many workspaces there are
    plan_scans,  # as reductions
    compute_once_per_block,  # moves statements within loops over vectors, which hold nothing collective; predicates are still those of their ops
    fold_magnitudes,  # the same, and loops over blocks are apart from those over elements
    passes.plan_reductions,  # workspaces are buffers, so before barriers and placement
    restrict_aliased_loads,  # the flags of last blocks are predicates, and prefetching has not doubled the loads yet
    passes.insert_block_syncs,  # while every place in a body is reached by all threads, so before predicates become Ifs
    forward_copies,  # each op stands once, with what it does at the end of a row
    advance_lookups,  # an index is no copy any more, and no load has a stage of a ring yet
    run_pipelines,  # loads still stand where their tensors are computed, and ops have their predicates; its barriers need a place in shared memory
    passes.place_shared_memory,  # buffers and workspaces are final
    passes.repack_kept,  # reductions stand where they stay
    peel_rows,  # loops over rows stand where they stay, and the predicates of what it adds are grouped with the rest
    run_behind,  # waits, loads and barriers have their places; bounds of rows are still parts of predicates, and go
    unswitch_loops,  # every barrier, wait and load stands where it stays, so both branches have them; bounds are still parts of predicates
    load_ahead,  # loads have their predicates, and the loop around them is the one that is left
    write_known_sizes,  # each op stands where it stays, and no pass behind looks for sizes in addresses
    split_masked_loops,  # no pass behind looks for loops over lanes, and predicates are not grouped yet
    passes.group_predicates,  # barriers are placed, so nothing collective can end up inside an If
    join_factors,  # what stands under one predicate is together, and no pass behind looks for loops over lanes
    join_tile_scales,  # conditions that differ between threads stand around what they are of
    branch_selections,  # predicates are Ifs, and no pass behind moves ops
    passes.mark_unrolled,  # addresses are final
    fold_runs,  # loops that are unrolled say so
    begin_kernel,  # what is left of reductions and running folds is known
    overlap_launches,  # behind everything that comes first
)
check_order(PIPELINE)


def lower(
    fusion: Fusion, *, name: str, index_type: DataType, static_block: dict[ParallelType, int] | None = None, cluster_blocks: int = 1,
    peel: Peel | None = None, staying: StayingBlocks | None = None,
    overlaps: bool = False, keeps_places: bool = False, sizes: Sequence[tuple[Sym, int]] = (), dump: Callable[[str, str], None] | None = None,
) -> Kernel:  # fmt: skip
    """Return the kernel of a scheduled fusion, whose reductions it may rewrite, after all passes.

    cluster_blocks: blocks along x that form a cluster. static_block: block dimensions fixed by the schedule's parameters.
    peel: how loops over rows are peeled.
    staying: how blocks that stay go from row to row. keeps_places: see `Kernel`. sizes: with values that the kernel takes for granted.
    overlaps: it may start before the kernel in front of it has ended, where it can.
    dump(pass name, text): called after each pass when given.
    Errors: those of the passes; a schedule that cannot be lowered names the axis and the tensor.
    """
    kernel, state = build_kernel_state(fusion, name, index_type, static_block or {})
    state.peel, state.staying = peel, staying
    kernel.assumptions += [pair for size, value in sizes for pair in ((size, const(value)), (const(value), size))]
    kernel.cluster, kernel.overlaps, kernel.keeps_places = (cluster_blocks, 1, 1), overlaps, keeps_places
    if dump:
        dump("build_kernel", body_text(kernel.body))
    given: frozenset[str] = frozenset()
    is_verified = options.current().verify
    for step in PIPELINE:
        kernel = step(kernel, state)
        given |= contract_of(step).gives
        if is_verified:
            verify(kernel, state, step.__name__, given)
        if dump:
            dump(step.__name__, body_text(kernel.body))
    fusion.findings.pop(MAPS, None)  # nobody asks for them any more, and the fusion may be kept
    return kernel
