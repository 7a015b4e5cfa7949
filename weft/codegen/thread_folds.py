"""CUDA text of reductions across threads: over a warp, a block, a group of threads, the blocks of a cluster and of the grid.

Read first: `fold_across_threads`.
"""

from __future__ import annotations

from typing import Any

from ..dtypes import CUDA_NAMES, DataType
from ..expr import ONE, TRUE, ZERO, Sym, add, floordiv, mul, product, var
from ..ir.enums import BLOCK_TYPES, GRID_TYPES
from ..lower.kernel_ir import Access, Reduce, ThreadGroup
from ..lower.reduction_form import reduction_form
from ..ops.monoids import MONOIDS, Monoid, StateMonoid
from .positions import lane_of, linear
from .protocol import exchange_text


def fold_across_threads(writer: Any, s: Reduce, depth: int) -> None:
    """Write a reduction across threads, and across blocks: values into an array, reduced, and out of it."""
    writer.blocks["reduce"] = None
    tensor = s.outputs[0].buffer.tensor
    dtype, n = tensor.dtype(), s.values
    ctype = CUDA_NAMES[dtype]
    monoid = writer.monoid(s.expr, dtype)
    identity = monoid.identity(dtype)
    guard = s.predicate
    writer.emit(depth, "{")
    writer.emit(depth + 1, f"{ctype} value[{n}];")
    for lane in range(n if s.half != "take" else 0):
        source = _lifted(writer, s, lane, monoid)
        if guard is not TRUE:
            source = f"{writer.scalars.condition(guard)} ? {source} : {identity}"
        writer.emit(depth + 1, f"value[{lane}] = {source};")
    workspace = "nullptr" if s.workspace is None else writer.in_shared(s.workspace, ctype)
    if s.grid_types and not s.is_cluster:
        _fold_blocks(writer, s, workspace, identity, depth + 1)
    elif not s.is_fused_cluster:
        _fold_threads(writer, s, workspace, identity, depth + 1)
    if s.is_cluster:
        if s.awaits_cluster:
            writer.emit(depth + 1, "weft::cluster_wait();")
        _fold_cluster(writer, s, monoid.functor_for(dtype), identity, exchange_text(writer, s), depth + 1)
    for lane in range(n if s.half != "hand over" else 0):
        writer.write(lane_of(s.outputs[lane // s.group_elems], lane % s.group_elems), f"value[{lane}]", depth + 1)
    writer.emit(depth, "}")


def _lifted(writer: Any, s: Reduce, lane: int, monoid: Monoid) -> str:
    """Return the element of lane `lane` of a reduction's operands: a plain value, or a lifted state."""
    dtype = s.outputs[lane // s.group_elems].buffer.dtype
    is_state = isinstance(monoid, StateMonoid) and len(s.outputs) == 1  # all operands form one state; otherwise one per output, each with several lanes
    given = s.operands if is_state else [s.operands[lane // s.group_elems]]
    operands = [lane_of(o, lane % s.group_elems) if isinstance(o, Access) else o for o in given]
    texts = [writer.read(o, dtype) for o in operands]
    return texts[0] if is_of(operands[0], dtype) else monoid.lift(texts, dtype)


def is_of(operand: Access | Sym, dtype: DataType) -> bool:
    """True if an operand is already of the folded type: a state of another thread or pass, or a value that needs no lifting."""
    return isinstance(operand, Access) and operand.buffer.dtype is dtype


def _functor(s: Reduce) -> str:
    """The struct whose `combine` folds two values."""
    return MONOIDS[s.expr.attributes["kind"]].functor_for(s.outputs[0].buffer.dtype)


def _fold_threads(writer: Any, s: Reduce, workspace: str, identity: str, depth: int) -> None:
    """Reduce `value` over the threads of the block, in the form given by `reduction_form`."""
    functor = _functor(s)
    form = reduction_form(s, {p: d for p, d in writer.launch.items() if d is not ONE})
    n = s.values
    if not any(writer.launch[p] is not ONE for p in s.thread_types):
        return
    if s.group is not None:
        _fold_group(writer, s, s.group, CUDA_NAMES[s.outputs[0].buffer.dtype], depth)
        return
    if form == "warp":
        width = product(writer.launch[p] for p in s.thread_types).value
        for lane in range(n):
            writer.call(depth, f"value[{lane}] = weft::reduce_lanes<{functor}, {width}>(value[{lane}]);")
    elif form == "rows":
        run = "blockDim.x" if s.thread_types == (BLOCK_TYPES[0],) else "blockDim.x * blockDim.y * blockDim.z"
        if s.thread_types == BLOCK_TYPES[:2] and writer.launch[BLOCK_TYPES[2]] is not ONE:
            run = "blockDim.x * blockDim.y"
        alone_on_x = all(writer.launch[p] is ONE for p in BLOCK_TYPES[1:])
        if alone_on_x and writer.launch[BLOCK_TYPES[0]].is_const:
            run = f"{writer.launch[BLOCK_TYPES[0]].value}u"  # absent warps cost no instructions
        trailing = "true" if s.in_loop and s.turn is None else "false"
        if s.turn is not None:
            half = mul(s.turn, floordiv(s.workspace.elems, 2))  # type: ignore[union-attr]
            workspace += f" + {writer.scalars.index(half)}"
        alone = ", true" if alone_on_x else ""
        if s.half:
            name, more = ("hand_over_rows", workspace) if s.half == "hand over" else ("take_rows", f"{identity}, {workspace}, {run}")
            writer.call(depth, f"weft::{name}<{functor}, {n}{alone}>(value, {more});")
            return
        writer.call(depth, f"weft::reduce_rows<{functor}, {n}, {trailing}{alone}>(value, {identity}, {workspace}, {run});")
    else:
        flags = ", ".join("true" if p in s.thread_types else "false" for p in BLOCK_TYPES)
        if all(writer.launch[p].is_const for p in BLOCK_TYPES):
            flags += "".join(f", {writer.launch[p].value}" for p in BLOCK_TYPES)
        writer.call(depth, f"weft::reduce_tree<{functor}, {n}, {flags}>(value, {workspace});")


def _fold_group(writer: Any, s: Reduce, group: ThreadGroup, ctype: str, depth: int) -> None:
    """Reduce `value` over threads that synchronize at a named barrier."""
    writer.blocks["pipeline"] = None
    functor, n = _functor(s), s.group_elems
    workspace = s.workspace
    live = {p: d for p, d in writer.launch.items() if d is not ONE}
    rows = reduction_form(s, live) == "rows"
    offset: Sym = mul(group.turn, floordiv(workspace.elems, 2)) if group.turn is not ZERO else ZERO  # type: ignore[union-attr]
    if rows:
        offset = add(offset, mul(group.index, group.threads // 32 * n))
    place = writer.in_shared(workspace, ctype)
    place += "" if offset is ZERO else f" + {writer.scalars.index(offset)}"
    folded, kept = ([p for p in BLOCK_TYPES if p in live and (p in s.thread_types) is wanted] for wanted in (True, False))
    if rows:
        thread = writer.scalars.index(_linear_thread(writer, folded))
        writer.call(depth, f"weft::reduce_group<{functor}, {n}, {group.threads}>(value, {place}, {thread}, {writer.barrier(group)});")
        return
    places = [writer.scalars.index(a) for p in (folded, kept) for a in (_linear_thread(writer, p), product(writer.launch[q] for q in p))]
    writer.call(depth, f"weft::reduce_table<{functor}, {n}>(value, {place}, {', '.join(places)}, {writer.barrier(group)}, {group.threads});")


def _linear_thread(writer: Any, kinds: list) -> Sym:
    """The index of this thread among those along `kinds`, x fastest."""
    index: Sym = ZERO
    for p in reversed(kinds):
        index = add(mul(index, writer.launch[p]), var(p.value, extent=writer.launch[p]))
    return index


def _fold_cluster(writer: Any, s: Reduce, functor: str, identity: str, exchange: str, depth: int) -> None:
    """Reduce `value` over the blocks of a cluster."""
    n = s.values
    if s.turn is not None:
        half = writer.scalars.index(floordiv(s.exchange.elems, 2))  # type: ignore[union-attr]
        if s.half:
            name, first = ("hand_over_cluster_turn", "") if s.half == "hand over" else ("take_cluster_turn", f"{identity}, ")
            writer.call(depth, f"weft::{name}<{functor}, {n}>(value, {first}{exchange}, {half}, {writer.scalars.index(s.turn)});")
            return
        writer.call(depth, f"weft::reduce_cluster_turn<{functor}, {n}>(value, {identity}, {exchange}, {half}, {writer.scalars.index(s.turn)});")
        return
    if s.is_fused_cluster:
        writer.call(depth, f"weft::reduce_cluster_rows<{functor}, {n}>(value, {identity}, {exchange});")
        return
    live = [p for p in BLOCK_TYPES if writer.launch[p] is not ONE]
    folded, _ = linear([p for p in live if p in s.thread_types], "blockDim")
    kept, kept_threads = linear([p for p in live if p not in s.thread_types], "blockDim")
    writer.call(depth, f"weft::reduce_cluster<{functor}, {n}>(value, {exchange}, {folded}, {kept}, {kept_threads});")


def _fold_blocks(writer: Any, s: Reduce, workspace: str, identity: str, depth: int) -> None:
    """Reduce `value` over the threads of the block; then the last block that arrives reduces the partial results of all blocks. Both reductions across threads
    are one text in a loop, because it is long and a second copy would double its compile time.
    """
    n, functor = s.values, _functor(s)
    used = [p for p in GRID_TYPES if writer.launch[p] is not ONE]
    rank, ranks = linear([p for p in used if p in s.grid_types], "gridDim")
    segment, segments = linear([p for p in used if p not in s.grid_types], "gridDim")
    if s.iteration is not ZERO:
        segment = f"(unsigned)({writer.scalars.index(s.iteration)}) * ({segments}) + {segment}"
    live = [p for p in BLOCK_TYPES if writer.launch[p] is not ONE]
    worker, workers = linear([p for p in live if p in s.thread_types], "blockDim")
    kept, kept_threads = linear([p for p in live if p not in s.thread_types], "blockDim")
    partials, semaphores = s.global_workspace.name, s.semaphores.name  # type: ignore[union-attr]
    place = f"{segment}, {rank}, {ranks}, {kept}, {kept_threads}, {worker} == 0"
    writer.emit(depth, "#pragma unroll 1")
    writer.emit(depth, "for (int round = 0; round < 2; ++round) {")
    writer.emit(depth + 1, "if (round == 1) {")
    writer.call(depth + 2, f"{s.last_flag} = weft::arrive_grid<{n}>(value, {partials}, {semaphores}, reinterpret_cast<int*>({workspace}), {place});")
    writer.emit(depth + 2, f"if (!{s.last_flag}) break;")
    place = f"{segment}, {ranks}, {kept}, {kept_threads}, {worker}, {workers}"
    writer.call(depth + 2, f"weft::fold_partials<{functor}, {n}>(value, {identity}, {partials}, {place});")
    writer.emit(depth + 1, "}")
    _fold_threads(writer, s, workspace, identity, depth + 1)
    writer.emit(depth, "}")
