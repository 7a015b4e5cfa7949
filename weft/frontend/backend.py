"""torch.compile(model, backend="weft"): weft's kernels run the regions (subgraphs) of an aten graph that it supports, torch runs the rest.

Stages of a graph: Dynamo -> AOTAutograd (functional aten graphs of forward and backward, split so that the fewest bytes are saved) -> regions -> definitions ->
a boxed Python function that calls them and torch's ops in order. Read first: `backend`, `compile_graph`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd

from ..options import current, must_be_in_order
from ..runtime import preload
from ..runtime.collector import paused
from . import compared_extrema
from .aten.randoms import eager_numbers_are_wanted
from .aten import RULES
from .backend_options import BackendOptions, BadOption, BadOptionValue, check_torch, chosen_options
from .compiling import compile_graph, is_on_cpu, rewrite, run_plan
from .cuda_graphs import CudaGraphs
from .direct_call import collected
from .equal_nodes import merge_equal
from .interpolation import enlarge_images
from .origins import name_lines
from .point_distances import spell_distances
from .record import GRAPHS, CompiledGraph
from .regions import is_alike, is_cheap
from .reuse import mark_shown
from .rewrites import KEPT, emit
from .running_products import running_products_kept
from .stored import REBUILD, StoredGraph, caching, can_be_cached, for_a_file
from .updates import writes_back


for _name in ("torch._functorch._aot_autograd.autograd_cache", "torch._inductor.codegen.wrapper", "torch._inductor.debug"):
    importlib.import_module(_name)  # every compiled graph needs them; torch.compile(backend="inductor") also imports its modules before the first call


def reset() -> None:
    """Forget the graphs of this session; called by `torch._dynamo.reset()`."""
    GRAPHS.clear()


@paused  # a trace makes some hundred thousand objects, and each full garbage collection would visit them and all of torch's
def backend(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], *, options: dict[str, Any] | None = None, mode: str | None = None) -> Callable[..., Any]:
    """Compile a graph of Dynamo's. options: fields of BackendOptions. Errors: BadOption, OldTorch."""
    check_torch(torch.__version__)
    if mode not in (None, "default", "reduce-overhead"):
        raise BadOption(kind="mode", name=mode, known="default, reduce-overhead")
    chosen = chosen_options({} if options is None else options)
    if not can_be_cached():
        chosen = dataclasses.replace(chosen, cache=False)
    name_lines(gm)
    enlarge_images(gm)
    spell_distances(gm, is_emulated=chosen.emulate)
    is_recorded = chosen.graphs or mode == "reduce-overhead"
    compiler = functools.partial(_compiler, options=chosen, graphs=CudaGraphs() if is_recorded else None)
    compiled = aot_autograd(
        fw_compiler=compiler(kind="forward"), bw_compiler=compiler(kind="backward"), inference_compiler=compiler(kind="inference"),
        partition_fn=functools.partial(partition, is_emulated=chosen.emulate), decompositions=Decompositions(), keep_inference_input_mutations=True,
    )  # fmt: skip
    cache = caching(_tag(chosen, mode or "default")) if chosen.cache else contextlib.nullcontext()
    with cache, running_products_kept(is_emulated=chosen.emulate), collected() as made:
        return for_a_file(compiled(gm, example_inputs), made)


def _compiler(*, kind: str, options: BackendOptions, graphs: CudaGraphs | None) -> Any:
    """Return a compiler of graphs of a kind; torch can cache its results, if the options allow it."""

    def compiler(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        run = compile_graph(gm, kind=kind, options=options, may_donate=graphs is None)  # recorded graphs share what is saved
        recording = None if graphs is None else graphs.recording_of(gm, example_inputs, kind)
        stored = StoredGraph(kind, dataclasses.asdict(options), gm, recording, run)
        stored.post_compile()
        return stored if options.cache else stored.run

    if not options.cache:
        return compiler
    from torch._functorch._aot_autograd.schemas import SerializableAOTDispatchCompiler

    return SerializableAOTDispatchCompiler(StoredGraph, compiler)


def _tag(options: BackendOptions, mode: str) -> str:
    """What a cached graph depends on besides the program: weft's version, the options and settings, and the sources of this folder, which make the graphs."""
    settings = current().row_sums, must_be_in_order(), current().chip if options.emulate else "", eager_numbers_are_wanted()
    return f"weft-{sys.modules['weft'].__version__}-{graph_version()}-{mode}-{settings}-{sorted(dataclasses.asdict(options).items())}"


@functools.cache
def graph_version() -> str:
    """Return a hash of what turns programs into graphs and regions: this folder, and what says which tensors weft's own operators make, and how these lie in
    memory."""
    folders = Path(__file__).parent, Path(__file__).parents[1] / "nn", Path(__file__).parents[1] / "autograd"
    files = sorted(file for folder in folders for file in folder.rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]


def _rebuilt(stored: StoredGraph) -> Callable[[list[Any]], Any]:
    options = BackendOptions(**stored.options)
    if stored.plan is not None:
        return run_plan(stored.plan, stored.graph, options=options)
    return compile_graph(stored.graph(), kind=stored.kind, options=options, may_donate=False)


REBUILD["compile"] = _rebuilt


def partition(
    joint: torch.fx.GraphModule, joint_inputs: Any, *, is_emulated: bool = False, **keywords: Any
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:  # fmt: skip
    """Split a joint graph for the fewest saved bytes. First, ops that only pass a tensor on are removed, because torch's partitioner would not recompute them,
    and would save intermediate values of a softmax for its backward."""
    from functorch.compile import min_cut_rematerialization_partition

    functorch_config: Any = importlib.import_module("torch._functorch.config")
    for node in list(joint.graph.nodes):
        if node.target in (torch.ops.aten.detach.default, torch.ops.aten.alias.default) and not any(user.op == "output" for user in node.users):
            node.replace_all_uses_with(node.args[0])
            joint.graph.erase_node(node)
    merge_equal(joint.graph)
    rewrite(joint.graph, is_ours=is_emulated or not is_on_cpu(joint.graph))
    merge_equal(joint.graph)
    _keep_old_values(joint.graph, is_ours=is_emulated or not is_on_cpu(joint.graph))
    _save_copies_of_arguments(joint.graph)
    compared_extrema.prepare(joint.graph)
    _count_again(joint.graph)
    _rotate_again(joint.graph)
    with functorch_config.patch(cse=False):  # otherwise the partitioner would merge equal nodes, and keep the marks of only one of them
        forward, backward = min_cut_rematerialization_partition(joint, joint_inputs, **keywords)
    for module in (forward, backward):
        compared_extrema.round_products(module)
    mark_shown(forward.graph, backward.graph)
    return forward, backward


def _keep_old_values(graph: torch.fx.Graph, *, is_ours: bool) -> None:
    """Let the backward have a copy of an argument that the forward changes at its end, if it may need the argument. torch's partitioner would save the argument
    itself, from which the backward would then compute with the new value. is_ours: kernels of weft will run the graph; one of them can write the copy and
    the new value."""
    from torch.utils.checkpoint import CheckpointPolicy

    later = _behind(node for node in graph.nodes if node.op == "placeholder" and "tangents" in str(node.target))
    for argument in dict.fromkeys(copy.args[0] for copy in graph.nodes if writes_back(copy)):  # in the graph's order: its key is then the same each time
        readers = [user for user in argument.users if not writes_back(user) and user.op != "output"]
        if readers and not later.isdisjoint(_behind(readers)):
            if is_ours and is_alike(argument, argument):
                old = emit(graph, min(readers), torch.ops.weft.stored.default, argument, list(argument.meta["val"].stride()))
            else:
                old = emit(graph, min(readers), torch.ops.aten.clone.default, argument)
            old.meta["recompute"] = CheckpointPolicy.MUST_SAVE
            for reader in readers:
                reader.replace_input_with(argument, old)


def _save_copies_of_arguments(graph: torch.fx.Graph) -> None:
    """Forbid to make a copy of an argument again if nothing else reads the argument. AOTAutograd puts one behind an argument that changes after the forward;
    with a copy of it in the backward the argument itself would be saved, which autograd refuses once it has changed."""
    from torch.utils.checkpoint import CheckpointPolicy

    for node in graph.nodes:
        if node.op == "placeholder" and len(node.users) == 1:
            (reader,) = node.users
            if reader.target is torch.ops.aten.clone.default and not reader.kwargs:
                reader.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def _count_again(graph: torch.fx.Graph) -> None:
    """Let the backward compute positions and other constants again, which follow from no argument: saved, they would be index tensors in memory, of which no
    kernel knows the values. So do elements that are taken at such positions, as many as there are, such as coordinates in turn."""
    from torch.utils.checkpoint import CheckpointPolicy

    aten = torch.ops.aten
    factories = {aten.arange.default, aten.arange.start, aten.arange.start_step, aten.full.default}
    counted: set[torch.fx.Node] = set()
    for node in graph.nodes:
        tags = getattr(node.target, "tags", ())
        is_op = torch.Tag.pointwise in tags and torch.Tag.nondeterministic_seeded not in tags or node.op == "call_function" and is_cheap(node)
        if node.target in factories or is_op and node.all_input_nodes and counted.issuperset(node.all_input_nodes):
            counted.add(node)
            node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
        elif node.target is aten.index_select.default and node.args[2] in counted and _takes_all(node):
            node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE


MOST_SAVED_OF_ROTATIONS = 2
"""Values computed from rotations of a tensor that a forward saves for its backward: with more of them the backward rotates the tensor again."""


def _rotate_again(graph: torch.fx.Graph) -> None:
    """Let the backward rotate again what the forward rotates, an argument or a tensor that is rotated to several places, if it reads many values that are
    computed from rotations: each would be one more tensor to write and read, while kernels read a tensor rotated. One that the forward returns is in memory
    anyway. Few values are saved instead: the backward rotates its gradients, and would compute them at all places that these come from."""
    from torch.utils.checkpoint import CheckpointPolicy

    target = torch.ops.aten.roll.default
    later = _behind(node for node in graph.nodes if node.op == "placeholder" and "tangents" in str(node.target))
    for node in graph.nodes:
        rotated = [user for user in node.users if user.target is target and user not in later]
        if not rotated or node.op != "placeholder" and len(rotated) == 1:
            continue
        saved = [value for value in _behind(rotated) - later if any(user in later for user in value.users)]
        if len(saved) > MOST_SAVED_OF_ROTATIONS:
            for roll in rotated:
                if not any(user.op == "output" for user in roll.users):
                    roll.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE


def _behind(nodes: Iterable[torch.fx.Node]) -> set[torch.fx.Node]:
    """Return nodes and what is computed from them."""
    found, stack = set[torch.fx.Node](), list(nodes)
    while stack:
        node = stack.pop()
        if node not in found and node.op != "output":
            found.add(node)
            stack += node.users
    return found


def _takes_all(taken: torch.fx.Node) -> bool:
    """Tell whether an index names as many elements of an axis as there are, or more, whatever its open sizes are."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    (source, axis, _), result = taken.args, taken.meta["val"]
    return result.dim() > 0 and bool(statically_known_true(result.shape[axis] >= source.meta["val"].shape[axis]))  # type: ignore[union-attr]


backend.compiler_name = "weft"  # type: ignore[attr-defined]
backend.reset = reset  # type: ignore[attr-defined]


class Decompositions(Mapping[Any, Callable[..., Any]]):
    """`_decompositions`, made only when a graph is traced; a graph from torch's cache does not need them."""

    def __getitem__(self, target: Any) -> Callable[..., Any]:
        return _decompositions()[target]

    def __iter__(self) -> Iterator[Any]:
        return iter(_decompositions())

    def __len__(self) -> int:
        return len(_decompositions())


@functools.cache
def _decompositions() -> dict[Any, Callable[..., Any]]:
    """torch's decompositions into core ops, and of norms and softmax into arithmetic; ops with a rule in weft are kept."""
    from torch._decomp import core_aten_decompositions, get_decompositions

    from . import resampled_images, wrapped_pads
    from .aten import fake_quantization, foreach, formulas, groups, lookups, losses, maxima, pads, pools, shapes, unfolded

    if torch.cuda.is_available():
        preload.start()  # a graph is traced, so kernels will be compiled: NVRTC is loaded meanwhile
    aten = torch.ops.aten
    table = dict(core_aten_decompositions())
    table.update(get_decompositions([
        aten.native_layer_norm, aten.native_layer_norm_backward, aten.native_group_norm, aten.native_group_norm_backward,
        aten._native_batch_norm_legit_functional, aten.native_batch_norm_backward, aten._softmax, aten._softmax_backward_data,
        aten._log_softmax, aten._log_softmax_backward_data, aten._native_batch_norm_legit, aten._native_batch_norm_legit_no_training,
        aten.elu, aten.elu_backward, aten.hardtanh, aten.hardtanh_backward, aten.leaky_relu, aten.leaky_relu_backward,
    ]))  # fmt: skip
    kept = (
        aten._scaled_dot_product_flash_attention_for_cpu.default,  # its backward needs values that the op itself saves
        aten.embedding_dense_backward.default,  # adds in a fixed order, and needs no table in float32
    )
    for target in (*RULES, *KEPT, *kept):
        table.pop(target, None)
    for packet in (aten.linspace, aten.logspace):
        for target in (packet.default, packet.Tensor_Tensor, packet.Tensor_Scalar, packet.Scalar_Tensor):
            if target in table:
                table[target] = _of_floats(table[target])
    own = (formulas, losses, lookups, groups, pads, pools, maxima, fake_quantization, resampled_images, shapes, unfolded, wrapped_pads)
    for module in own:
        table.update(module.DECOMPOSITIONS)
    return table | foreach.decompositions()


def _of_floats(decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """A decomposition for results that are floats: for integers, torch's linspace rounds differently from its decomposition, and torch's logspace on a GPU
    computes powers in float32, its decomposition in float64: a power slightly below an integer is truncated to the integer below."""

    def made(*args: Any, dtype: torch.dtype | None = None, **keywords: Any) -> Any:
        is_float = dtype is None or dtype.is_floating_point
        return decomposition(*args, dtype=dtype, **keywords) if is_float else NotImplemented

    return made


__all__ = ["GRAPHS", "BackendOptions", "BadOption", "BadOptionValue", "CompiledGraph", "backend", "compile_graph", "reset"]
