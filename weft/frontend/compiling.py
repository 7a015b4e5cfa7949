"""Compiles one aten graph: finds regions, makes their definitions and calls, and the function that runs the graph, also in processes that load it from disk.

Read first: `compile_graph`; `run_plan` for a graph from a cache.
"""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch.fx import Node

from ..cache import default_cache
from ..errors import WeftError
from . import ahead, packs
from .aligned import align_products
from .channels_last import lay_out_convolutions
from .assignments import simplify_assignments
from .aten import Declined
from .backend_options import BackendOptions
from .bodies import CALLED, calls_bodies, owner_of
from .calling import code_of_graph
from .complex_parts import VIEWS_OF_PARTS, split_complex
from .explain import as_text
from .graph_plan import Boxed, GraphPlan, boxed
from .known_indices import place_known
from .overlapping_slices import join_slices
from .record import GRAPHS, CompiledGraph, counts, weight
from .region_call import RegionCall, RegionCalls, plan_of
from .regions import Region, find_regions, is_cheap
from .reuse import donated_arguments, find_reuses
from .rewrites import simplify
from .row_sums import sum_rows
from .scatter_reductions import reduce_rows
from .structure import digest_of, structure_of
from .translate import Translated, translate
from .updated_values import drop_unstored, show_arguments, store_new_values
from .updates import find_updates, find_written, is_done, parts_of_arguments, parts_that_are_copied, write_without_copies, writes_back

log = logging.getLogger(__name__)


def rewrite(graph: torch.fx.Graph, *, is_ours: bool) -> None:
    """Rewrite a graph before regions are found, in place. is_ours: kernels of weft will run it."""
    if is_ours:
        split_complex(graph)
        simplify_assignments(graph)
        place_known(graph)
        join_slices(graph)
    simplify(graph, splits_bias=is_ours)
    if is_ours:
        reduce_rows(graph)
        sum_rows(graph)
        align_products(graph)
        lay_out_convolutions(graph)


def compile_graph(gm: torch.fx.GraphModule, *, kind: str, options: BackendOptions, may_donate: bool = True) -> Callable[[list[Any]], Any]:
    """Return a boxed function (one list of arguments) that runs an aten graph. may_donate: a backward may overwrite what the forward saved for it alone.

    Errors: those of translation when `options.strict`.
    """
    on_cpu = is_on_cpu(gm.graph)
    if kind == "inference":
        rewrite(gm.graph, is_ours=options.emulate or not on_cpu)
    if on_cpu and not options.emulate:
        _tell_eager(gm.graph, kind)
        return _plain(gm)
    record = CompiledGraph(kind)
    if kind != "backward":
        show_arguments(gm.graph)
    regions, reasons = _regions_of(gm, on_cpu)
    made: dict[Any, tuple[Translated, RegionCalls] | str] = {}
    calls: list[tuple[Region, RegionCall]] = []
    structures = [structure_of(region) for region in regions]
    find_reuses(gm.graph, regions, structures, donated_arguments(gm.graph, kind) if may_donate else set())
    for place, region in enumerate(regions):
        if _is_numbers(region):
            continue
        call = _call_of(region, place, structures[place], made, options, on_cpu)
        if isinstance(call, str):
            reasons.update({n: call for n in region.nodes if counts(n)})
        else:
            calls.append((region, call))
    record.calls = [call for _, call in calls]
    called = [region for region, _ in calls]
    written = find_written(gm.graph, called)
    views = {*VIEWS_OF_PARTS, torch.ops.weft.shown.default}
    left = [n for n in gm.graph.nodes if n in reasons and n.target not in views and not is_done(n, called, written)]
    record.compute_nodes = record.covered_nodes + sum(1 for n in left if reasons[n] != ON_CPU and not writes_back(n))
    for node in left:
        times, why = record.torch_ops.get(str(node.target), (0, reasons[node]))
        record.torch_ops[str(node.target)] = (times + 1, why)
    code, owner = code_of_graph(gm, calls, written), owner_of(gm, functools.partial(_compile_body, options=options))
    _tell(record)
    return boxed(code, gm, record, owner)


def _compile_body(body: torch.fx.GraphModule, options: BackendOptions) -> Callable[[list[Any]], Any] | None:
    """Return the function of a graph that an op of another one calls; None for numbers on the host alone."""
    if is_on_cpu(body.graph) and not options.emulate:
        return None
    return compile_graph(body, kind="inference", options=options, may_donate=False)


EAGER = "its tensors are on the CPU; options={'emulate': True} runs weft's kernels in the emulator"


def _tell_eager(graph: torch.fx.Graph, kind: str) -> None:
    """Record a graph of CPU tensors that torch runs. If there is no GPU at all, log a warning once."""
    nodes = [n for n in graph.nodes if n.op == "call_function" and counts(n)]
    times = Counter(str(n.target) for n in nodes)
    is_told = any(ops and all(why == EAGER for _, why in ops.values()) for ops in (g.torch_ops for g in GRAPHS))
    GRAPHS.append(CompiledGraph(kind, torch_ops={op: (n, EAGER) for op, n in times.items()}, compute_nodes=len(nodes)))
    level = logging.INFO if is_told or torch.cuda.is_available() else logging.WARNING
    log.log(level, "%s graph: torch runs it eagerly: %s", kind, EAGER)


def run_plan(plan: GraphPlan, graph: Callable[[], torch.fx.GraphModule], *, options: BackendOptions) -> Boxed:
    """Return the function of a graph that another process has compiled. graph: returns the graph; needed by calls that are in no cache, and by
    `weft.explain`."""
    known = functools.cache(lambda: _known_regions(plan, graph()))
    translated = functools.cache(lambda place: translate(known()[place]))
    first: dict[str, tuple[int, RegionCalls]] = {}
    record = CompiledGraph(plan.kind, torch_ops=plan.torch_ops, compute_nodes=plan.compute_nodes)
    for region in plan.regions:
        place = region.place
        if region.key not in first:
            first[region.key] = place, RegionCalls(region.key, functools.partial(lambda at: translated(at).definition._executor_cache(), place))
        defined, calls = first[region.key]
        source = functools.partial(lambda at, of: (known()[at], translated(of)), place, defined)
        record.calls.append(RegionCall(region, source, calls, is_debug=options.debug, is_strict=options.strict))
    _tell(record, THREADS_FOR_RECORDS)
    return plan.function(record.calls)


def _known_regions(plan: GraphPlan, gm: torch.fx.GraphModule) -> list[Region]:
    """Return the regions of a graph as they were when it was compiled."""
    regions, _ = _regions_of(gm, is_on_cpu(gm.graph))
    for planned in plan.regions:
        regions[planned.place] = regions[planned.place].reusing(planned.reuses)
    return regions


THREADS_FOR_RECORDS = 2


def _tell(record: CompiledGraph, threads: int = ahead.MOST_THREADS) -> None:
    """Record a graph that is ready, and compile its kernels in background threads."""
    GRAPHS.append(record)
    _make_ahead(record.calls, threads)
    log.info("%s graph: %d regions hold %d of %d compute nodes", record.kind, len(record.calls), record.covered_nodes, record.compute_nodes)
    torch._logging.trace_structured(
        "artifact", metadata_fn=lambda: {"name": f"weft_{record.kind}_regions", "encoding": "string"}, payload_fn=lambda: as_text(record)
    )


def _regions_of(gm: torch.fx.GraphModule, on_cpu: bool) -> tuple[list[Region], dict[Node, str]]:
    """Return the regions of a graph, and for every other call the reason why it stays with torch."""
    write_without_copies(gm.graph)
    stored = store_new_values(gm.graph)
    regions, reasons = _regions_with_updates(gm, on_cpu)
    if drop_unstored(gm.graph, stored, regions):
        regions, reasons = _regions_with_updates(gm, on_cpu)
    return regions, reasons


def _regions_with_updates(gm: torch.fx.GraphModule, on_cpu: bool) -> tuple[list[Region], dict[Node, str]]:
    """The same, with the arguments that each region writes."""
    reasons: dict[Node, str] = {} if on_cpu else _on_the_cpu(gm.graph)
    reasons.update(parts_of_arguments(gm.graph))
    reasons.update({n: CALLED for n in gm.graph.nodes if calls_bodies(n)})
    first = dict(reasons)
    regions = find_regions(gm.graph, reasons)
    find_updates(gm.graph, regions)
    copied = parts_that_are_copied(gm.graph, regions)
    if copied:
        reasons = {**first, **copied}
        regions = find_regions(gm.graph, reasons)
        find_updates(gm.graph, regions)
    return regions, reasons


def _on_the_cpu(graph: torch.fx.Graph) -> dict[Node, str]:
    """Return the calls of a GPU graph that torch runs because of CPU tensors: those that create such tensors, and those that read CPU tensors with axes.
    Results of factories do not count, because regions create them on the GPU themselves."""
    reasons: dict[Node, str] = {}
    there: set[Node] = set()
    for node in graph.nodes:
        value, is_call = node.meta.get("val"), node.op == "call_function"
        reads = any(source in there for source in node.all_input_nodes)
        is_view = is_call and is_cheap(node)
        if isinstance(value, torch.Tensor) and value.device.type == "cpu" and (reads or not is_view):
            there.update([node] if value.dim() else [])
            if is_call:
                reasons[node] = ON_CPU
        elif is_call and reads:
            reasons[node] = "it reads a tensor of the CPU"
    return reasons


def is_on_cpu(graph: torch.fx.Graph) -> bool:
    return not any(_device(n) == "cuda" for n in graph.nodes)


def _device(node: Node) -> str:
    value = node.meta.get("val")
    return value.device.type if isinstance(value, torch.Tensor) and value.dim() else ""


ON_CPU = "it is on the CPU"


def _plain(gm: torch.fx.GraphModule) -> Callable[[list[Any]], Any]:
    """Return the function of a graph without regions."""
    boxed = getattr(torch.fx.graph, "_BoxedCodeGen", None)  # torch 2.9; its functions drop each argument after its last use
    if boxed is None:
        from functorch.compile import make_boxed_func

        return make_boxed_func(gm.forward)
    gm.graph.set_codegen(boxed())
    gm.recompile()
    function = gm.forward

    def run(arguments: list[Any]) -> Any:
        return function(arguments)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _is_numbers(region: Region) -> bool:
    """True if no tensor of a region has axes and none is on a GPU: torch computes such numbers on the host."""
    values = [n.meta.get("val") for n in (*region.inputs, *region.nodes)]
    return not any(isinstance(v, torch.Tensor) and (v.dim() or v.device.type != "cpu") for v in values)


def _call_of(
    region: Region, place: int, alone: Hashable, made: dict[Any, tuple[Translated, RegionCalls] | str], options: BackendOptions, on_cpu: bool
) -> RegionCall | str:  # fmt: skip
    """Return the call of a region, or why it stays with torch. Regions of equal structure share a definition. alone: the structure without `reuses`."""
    if weight(region) < options.min_ops:
        return f"a region of fewer than {options.min_ops} ops"
    if not region.outputs:
        return "nothing reads it"
    structure = alone, region.reused_places
    if structure not in made:
        made[structure] = _defined(region, digest_of(structure, region) if options.cache else "", options)
    found = made[structure]
    if isinstance(found, str):
        return found
    translated, calls = found
    plan = plan_of(region, calls.definition, place, weight(region), is_emulated=on_cpu)
    return RegionCall(plan, lambda: (region, translated), calls, is_debug=options.debug, is_strict=options.strict)


def _defined(region: Region, key: str, options: BackendOptions) -> tuple[Translated, RegionCalls] | str:
    found = _translated(region, options)
    return found if isinstance(found, str) else (found, RegionCalls(key, lambda: found.definition._executor_cache()))


def _make_ahead(calls: list[RegionCall], threads: int) -> None:
    """Compile the kernels of new definitions in background threads."""
    new: dict[int, RegionCall] = {}
    for call in calls:
        if call.plan.inputs is not None and call.calls.pending is None and not call.kernels():
            new.setdefault(id(call.calls), call)
    if len(new) < 2 or not ahead.is_wanted():
        return
    made = list(new.values())
    after = None
    if all(call.plan.key for call in made) and default_cache() is not None:
        after = packs.drop_pack if packs.use_pack(made) else functools.partial(packs.write_pack, made)
    futures = ahead.start([(call.prepare, call.plan.inputs or ()) for call in made], threads, after)
    for call, future in zip(new.values(), futures):
        call.calls.pending = future


def _translated(region: Region, options: BackendOptions) -> Translated | str:
    try:
        return translate(region)
    except (Declined, WeftError, TypeError, ValueError, LookupError, RuntimeError) as error:
        if options.strict:
            raise
        log.debug("a region stays with torch: %s", error)
        return str(error).splitlines()[0]


__all__ = ["compile_graph", "is_on_cpu", "rewrite", "run_plan"]
