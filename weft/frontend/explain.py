"""What became of a compiled model: regions, kernels, and what stays with torch, with its reason. Read first: `explain`."""

from __future__ import annotations

from .backend import GRAPHS, CompiledGraph


def explain() -> str:
    """Return a text about every graph compiled by `torch.compile(backend="weft")` since the last `torch._dynamo.reset()`.

    Per graph: the share of compute nodes inside regions; per region its kernels (by scheduler, once it was called); per op that torch runs, how often and why.
    """
    if not GRAPHS:
        return 'no graph was compiled by torch.compile(backend="weft") yet: call the compiled model first'
    return "\n\n".join(_graph(number, graph) for number, graph in enumerate(GRAPHS))


def _graph(number: int, graph: CompiledGraph) -> str:
    lines = [f"graph {number} ({graph.kind}): {graph.covered_nodes} of {graph.compute_nodes} compute nodes in {len(graph.regions)} regions"]
    for region, call in graph.regions:
        kernels = ", ".join(kernel.scheduler for kernel in call.kernels()) or "not called yet"
        fallback = f"; runs in torch: {call.fallback_reason}" if call.fallback_reason else ""
        lines.append(f"  {call.__name__}: {len(region.inputs)} inputs, {len(region.outputs)} outputs, kernels: {kernels}{fallback}")
    for op, (times, why) in sorted(graph.torch_ops.items()):
        lines.append(f"  torch runs {op} ({times}x): {why}")
    return "\n".join(lines)


__all__ = ["explain"]
