"""torch.compile(model, backend="weft"): regions of an aten graph run in weft's kernels, the rest in torch.

The way of a graph: Dynamo -> AOTAutograd (functional aten graphs of forward and backward, split for the fewest saved bytes) -> regions -> definitions ->
a boxed Python function that calls them and torch's ops in order. Read first: `backend`, `compile_graph`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import logging
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.fx import Node

from ..errors import UserError, WeftError, shown
from .aten import RULES, Declined
from .cuda_graphs import CudaGraphs
from .explain import as_text
from .record import GRAPHS, CompiledGraph, counts, weight
from .region_call import RegionCall
from .regions import Region, find_regions, is_cheap
from .stored import REBUILD, StoredGraph, caching
from .structure import structure_of
from .translate import Translated, translate

log = logging.getLogger(__name__)


class BadOption(UserError):
    code = "W880"
    what = "torch.compile(backend=\"weft\") has no {kind} {name!r}"
    fix = "use one of {known}, or leave it out"


class BadOptionValue(UserError):
    code = "W887"
    what = "torch.compile(backend=\"weft\"): {name} is {value}, not {wanted}"
    fix = "give a value of that type, or leave it out"


@dataclass(frozen=True)
class BackendOptions:
    """strict: what cannot be translated raises instead of staying with torch. emulate: regions of CPU tensors run in the emulator, with its checks.
    debug: types and strides of every region's results are compared with what was traced. min_ops: ops from which a region is worth a kernel.
    cache: graphs are kept in torch's caches, so that a second process traces and compiles nothing."""

    strict: bool = False
    emulate: bool = False
    debug: bool = False
    min_ops: int = 1
    cache: bool = True


def reset() -> None:
    """Forget the graphs of this session; called by `torch._dynamo.reset()`."""
    GRAPHS.clear()


def backend(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], *, options: dict[str, Any] | None = None, mode: str | None = None) -> Callable[..., Any]:
    """Compile a graph of Dynamo's. options: fields of BackendOptions. Errors: BadOption."""
    from torch._dynamo.backends.common import aot_autograd

    if mode not in (None, "default", "reduce-overhead"):
        raise BadOption(kind="mode", name=mode, known="default, reduce-overhead")
    chosen = chosen_options({} if options is None else options)
    graphs = CudaGraphs() if mode == "reduce-overhead" else None
    is_kept = chosen.cache and graphs is None
    make = functools.partial(_stored if is_kept else functools.partial, functools.partial(compile_graph, options=chosen, graphs=graphs))
    compiled = aot_autograd(
        fw_compiler=make(kind="forward"), bw_compiler=make(kind="backward"), inference_compiler=make(kind="inference"),
        partition_fn=partition, decompositions=_decompositions(),
    )  # fmt: skip
    with caching(_tag(chosen)) if is_kept else contextlib.nullcontext():
        return compiled(gm, example_inputs)


def _stored(compile_one: Callable[..., Any], *, kind: str) -> Any:
    """Return a compiler of graphs of a kind whose results torch can keep."""
    from torch._functorch._aot_autograd.schemas import SerializableAOTDispatchCompiler

    options = compile_one.keywords["options"]  # type: ignore[attr-defined]

    def compiler(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> StoredGraph:
        return StoredGraph(kind, dataclasses.asdict(options), gm, compile_one(gm, example_inputs, kind=kind))

    return SerializableAOTDispatchCompiler(StoredGraph, compiler)


def _tag(options: BackendOptions) -> str:
    """What a kept graph depends on beside the program: weft's version, the options, and the text of this folder, which makes the graphs."""
    return f"weft-{sys.modules['weft'].__version__}-{graph_version()}-{sorted(dataclasses.asdict(options).items())}"


@functools.cache
def graph_version() -> str:
    """Return a hash of what turns programs into graphs and regions."""
    files = sorted(Path(__file__).parent.rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]


def _rebuilt(gm: torch.fx.GraphModule, kind: str, options: dict[str, Any]) -> Callable[[list[Any]], Any]:
    return compile_graph(gm, (), kind=kind, options=BackendOptions(**options))


REBUILD["compile"] = _rebuilt


def chosen_options(options: Any) -> BackendOptions:
    """Return what `options` of torch.compile say. Errors: BadOption, BadOptionValue."""
    known = BackendOptions.__dataclass_fields__
    if not isinstance(options, Mapping):
        raise BadOptionValue(name="options", value=type(options).__name__, wanted="a dictionary")
    for name, value in options.items():
        if not isinstance(name, str) or name not in known:
            raise BadOption(kind="option", name=name, known=", ".join(known))
        wanted = type(known[name].default)
        if type(value) is not wanted:
            raise BadOptionValue(name=name, value=shown(value), wanted=f"of type {wanted.__name__}")
    return BackendOptions(**options)


def partition(joint: torch.fx.GraphModule, joint_inputs: Any, **keywords: Any) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """Split a joint graph for the fewest saved bytes. Before, ops that only hand a tensor on go: torch's partitioner would not compute them again, and save
    what a softmax hands to its backward."""
    from functorch.compile import min_cut_rematerialization_partition
    from torch._functorch.compile_utils import fx_graph_cse

    for node in list(joint.graph.nodes):
        if node.target in (torch.ops.aten.detach.default, torch.ops.aten.alias.default) and not any(user.op == "output" for user in node.users):
            node.replace_all_uses_with(node.args[0])
            joint.graph.erase_node(node)
    joint.graph = fx_graph_cse(joint.graph)  # else the partitioner would, and keep the marks of one of two equal nodes
    _save_what_extrema_are_of(joint.graph)
    return min_cut_rematerialization_partition(joint, joint_inputs, **keywords)


def _save_what_extrema_are_of(graph: torch.fx.Graph) -> None:
    """Forbid to compute again what a maximum or minimum is taken of. Its gradient goes to the elements that equal the saved maximum, and those of a second
    computation, rounded at other places, may all differ from it: 0 / 0."""
    from torch.utils.checkpoint import CheckpointPolicy

    aten = torch.ops.aten
    for node in graph.nodes:
        if node.target in (aten.amax.default, aten.amin.default, aten.max.default, aten.min.default, aten.max.dim, aten.min.dim):
            source = node.args[0]
            while source.op == "call_function" and is_cheap(source) and source.all_input_nodes:
                source = source.all_input_nodes[0]
            if source.op == "call_function" and any(user.target is aten.eq.Tensor for user in source.users):
                source.meta["recompute"] = CheckpointPolicy.MUST_SAVE


backend.compiler_name = "weft"  # type: ignore[attr-defined]
backend.reset = reset  # type: ignore[attr-defined]


@functools.cache
def _decompositions() -> dict[Any, Callable[..., Any]]:
    """torch's decompositions into core ops, and of norms and softmax into arithmetic; what has a rule of its own is kept."""
    from torch._decomp import core_aten_decompositions, get_decompositions

    from .aten.losses import DECOMPOSITIONS

    aten = torch.ops.aten
    table = dict(core_aten_decompositions())
    table.update(get_decompositions([
        aten.native_layer_norm, aten.native_layer_norm_backward, aten.native_group_norm, aten.native_group_norm_backward,
        aten._native_batch_norm_legit_functional, aten.native_batch_norm_backward, aten._softmax, aten._softmax_backward_data,
        aten._log_softmax, aten._log_softmax_backward_data, aten.slice_backward, aten.select_backward,
    ]))  # fmt: skip
    kept = (
        aten._scaled_dot_product_flash_attention_for_cpu.default,  # its backward wants what the op itself saved
        aten.embedding_dense_backward.default,  # sums in one order, and makes no table in float32
    )
    for target in (*RULES, *kept):
        table.pop(target, None)
    return table | DECOMPOSITIONS


def compile_graph(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], *, kind: str, options: BackendOptions, graphs: CudaGraphs | None = None
) -> Callable[[list[Any]], Any]:  # fmt: skip
    """Return a boxed function (one list of arguments) that runs an aten graph; recorded into a CUDA graph where `graphs` is given.

    Errors: those of translation when `options.strict`.
    """
    record = CompiledGraph(kind)
    on_cpu = not any(_device(n) == "cuda" for n in gm.graph.nodes)
    if on_cpu and not options.emulate:
        log.info("%s graph: its tensors are on the CPU, so torch runs it eagerly (options={'emulate': True} runs weft's kernels in the emulator)", kind)
        return _boxed(gm)
    reasons: dict[Node, str] = {} if on_cpu else {n: ON_CPU for n in gm.graph.nodes if n.op == "call_function" and _is_cpu_number(n)}
    regions = find_regions(gm.graph, reasons)
    made: dict[Any, Translated | str] = {}
    for region in regions:
        if _is_numbers(region):
            continue
        call = _call_of(region, made, options, on_cpu)
        if isinstance(call, str):
            reasons.update({n: call for n in region.nodes if counts(n)})
            continue
        record.regions.append((region, call))
    record.compute_nodes = record.covered_nodes + sum(1 for n in gm.graph.nodes if n in reasons and reasons[n] != ON_CPU)
    for node in gm.graph.nodes:
        if node in reasons:
            times, why = record.torch_ops.get(str(node.target), (0, reasons[node]))
            record.torch_ops[str(node.target)] = (times + 1, why)
    GRAPHS.append(record)
    log.info("%s graph: %d regions hold %d of %d compute nodes", kind, len(record.regions), record.covered_nodes, record.compute_nodes)
    torch._logging.trace_structured(
        "artifact", metadata_fn=lambda: {"name": f"weft_{kind}_regions", "encoding": "string"}, payload_fn=lambda: as_text(record)
    )
    run = _boxed(torch.fx.GraphModule(gm, _with_calls(gm, record.regions)))
    return run if graphs is None else graphs.recorded(run, gm, example_inputs, kind)


def _device(node: Node) -> str:
    value = node.meta.get("val")
    return value.device.type if isinstance(value, torch.Tensor) and value.dim() else ""


ON_CPU = "a number on the CPU"


def _is_cpu_number(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.device.type == "cpu" and not is_cheap(node)


def _boxed(gm: torch.fx.GraphModule) -> Callable[[list[Any]], Any]:
    gm.graph.set_codegen(torch.fx.graph._BoxedCodeGen())
    gm.recompile()
    function = gm.forward

    def run(arguments: list[Any]) -> Any:
        return function(arguments)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _is_numbers(region: Region) -> bool:
    """True when no tensor of a region has axes and none is on a GPU: torch computes such numbers on the host."""
    values = [n.meta.get("val") for n in (*region.inputs, *region.nodes)]
    return not any(isinstance(v, torch.Tensor) and (v.dim() or v.device.type != "cpu") for v in values)


def _call_of(region: Region, made: dict[Any, Translated | str], options: BackendOptions, on_cpu: bool) -> RegionCall | str:
    """Return the call of a region, or why it stays with torch. Regions of equal structure share a definition."""
    if weight(region) < options.min_ops:
        return f"a region of fewer than {options.min_ops} ops"
    if not region.outputs:
        return "nothing reads it"
    key = structure_of(region)
    if key not in made:
        made[key] = _translated(region, options)
    found = made[key]
    if isinstance(found, str):
        return found
    return RegionCall(region, found, is_emulated=on_cpu, is_debug=options.debug, is_strict=options.strict)


def _translated(region: Region, options: BackendOptions) -> Translated | str:
    try:
        return translate(region)
    except (Declined, WeftError, TypeError, ValueError, LookupError, RuntimeError) as error:
        if options.strict:
            raise
        log.debug("a region stays with torch: %s", error)
        return str(error).splitlines()[0]


def _with_calls(gm: torch.fx.GraphModule, calls: list[tuple[Region, RegionCall]]) -> torch.fx.Graph:
    """Return the graph with one call in place of each region's nodes, in an order in which everything is there when it is read."""
    graph, new = gm.graph, torch.fx.Graph()
    owner = {node: at for at, (region, _) in enumerate(calls) for node in region.nodes if not is_cheap(node)}
    placed: dict[Node, Node] = {}
    done: set[int] = set()

    def place_region(at: int) -> None:
        region, call = calls[at]
        whole = new.call_function(call, tuple(placed[n] for n in region.inputs))
        for index, node in enumerate(region.outputs):
            placed[node] = new.call_function(operator.getitem, (whole, index))
            placed[node].meta.update(node.meta)

    def needs(at: Node | int) -> list[Node | int]:
        sources = calls[at][0].inputs if isinstance(at, int) else at.all_input_nodes
        return [owner.get(n, n) for n in sources]

    for node in graph.nodes:
        if is_cheap(node) and node not in owner:
            continue  # made where it is read
        stack: list[tuple[Node | int, bool]] = [(owner.get(node, node), False)]
        while stack:
            at, ready = stack.pop()
            if at in done if isinstance(at, int) else at in placed:
                continue
            if not ready:
                stack.append((at, True))
                stack.extend((source, False) for source in needs(at))
            elif isinstance(at, int):
                done.add(at)
                place_region(at)
            else:
                placed[at] = new.node_copy(at, lambda n: placed[n])
    return new


__all__ = ["GRAPHS", "BackendOptions", "CompiledGraph", "backend", "compile_graph", "reset"]
