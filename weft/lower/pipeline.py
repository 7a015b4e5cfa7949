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
from .apart import keep_iterations_apart
from .behind import run_behind
from .block_sync import insert_block_syncs
from .block_values import compute_once_per_block
from .branches import branch_selections
from .build import build_kernel_state
from .circular import run_pipelines
from .common_values import fill_common_values
from .contracts import check_order, contract_of
from .counted_positions import count_positions
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
from .predicates import group_predicates
from .repack import repack_kept
from .scaled_casts import join_factors
from .scans import plan_scans, reverse_scans, share_scans
from .shared_memory import place_shared_memory
from .state import BuildState
from .staying import load_ahead, merge_reductions
from .tile_scales import join_tile_scales
from .unroll import mark_unrolled
from .unswitch import unswitch_loops
from .verify import verify
from .workspaces import plan_reductions

Pass = Callable[[Kernel, BuildState], Kernel]

PIPELINE: tuple[Pass, ...] = (
    insert_grid_sync,  # moves statements, so before any barrier is placed between them
    merge_reductions,  # also moves statements, and decides how many workspaces there are
    plan_scans,  # as for reductions
    reverse_scans,  # sizes of blocks are known, and later passes take indices as they are
    compute_once_per_block,  # moves statements within loops over vectors, which contain no collective ops; predicates are still fields of their ops
    fold_magnitudes,  # the same, and loops over blocks are separate from those over elements
    plan_reductions,  # workspaces are buffers, so before barriers and placement
    restrict_aliased_loads,  # the flags of last blocks are predicates, and prefetching has not doubled the loads yet
    insert_block_syncs,  # while all threads reach every place in a body, so before predicates become Ifs
    forward_copies,  # each op occurs once, with its `at_row_end`
    advance_lookups,  # an index is no copy any more, and no load has a pipeline stage yet
    run_pipelines,  # loads still stand where their tensors are computed, and ops have their predicates; its barriers need a place in shared memory
    place_shared_memory,  # buffers and workspaces are final
    repack_kept,  # reductions are in their final places
    peel_rows,  # loops over rows are in their final places, and the predicates of what it adds are grouped with the rest
    run_behind,  # waits, loads and barriers have their places; it removes bounds of rows, which are still parts of predicates
    unswitch_loops,  # every barrier, wait and load is in its final place, so both branches have them; bounds are still parts of predicates
    load_ahead,  # loads have their predicates, and their loops are final
    write_known_sizes,  # each op is in its final place, and no later pass looks for sizes in addresses
    split_masked_loops,  # no later pass looks for loops over lanes, and predicates are not grouped yet
    group_predicates,  # barriers are placed, so nothing collective can end up inside an If
    join_factors,  # statements with one predicate are together, and no later pass looks for loops over lanes
    join_tile_scales,  # conditions that differ between threads are Ifs around their statements
    branch_selections,  # predicates are Ifs, and no later pass moves ops
    count_positions,  # no later pass moves ops or changes their loops
    fill_common_values,  # conditions are final
    mark_unrolled,  # addresses are final
    keep_iterations_apart,  # unrolled loops are marked
    fold_runs,  # unrolled loops are marked
    share_scans,  # loops, loads and bounds are final: it copies them
    begin_kernel,  # the remaining reductions and scans are known
    overlap_launches,  # after everything that inserts at the kernel's start
)
check_order(PIPELINE)


def lower(
    fusion: Fusion, *, name: str, index_type: DataType, static_block: dict[ParallelType, int] | None = None, cluster_blocks: int = 1,
    peel: Peel | None = None, staying: StayingBlocks | None = None,
    overlaps: bool = False, keeps_places: bool = False, sizes: Sequence[tuple[Sym, int]] = (), dump: Callable[[str, str], None] | None = None,
) -> Kernel:  # fmt: skip
    """Return the kernel of a scheduled fusion after all passes; reductions of the fusion may be rewritten.

    cluster_blocks: blocks along x that form a cluster. static_block: block dimensions fixed by the schedule's parameters.
    peel: how loops over rows are peeled.
    staying: how staying blocks loop over rows. keeps_places: see `Kernel`. sizes: values that the kernel assumes. overlaps: dependent launch, if the kernel
    allows it.
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
    fusion.findings.pop(MAPS, None)  # they are not needed any more, and the fusion may be kept
    return kernel
