"""`weft.explain`: the regions and kernels of a compiled model, and which ops stay with torch and why, as text or an HTML page. Read first: `explain`."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

from torch.fx import Node

from ..errors import UserError
from .origins import bytes_of, places_of
from .record import GRAPHS, CompiledGraph, counts
from .region_call import RegionCall
from .region_times import microseconds
from .regions import Region


COMPILED = ("_torchdynamo_orig_callable", "_orig_mod", "_compiled_call_impl")
"""Attributes that torch.compile sets on functions, on modules that it wraps, and on those that compile themselves (`Module.compile`)."""


class NothingToExplain(UserError):
    code = "W896"
    what = "weft.explain takes what torch.compile returned, or the path of a page, not {given}"
    fix = "call weft.explain(), or weft.explain(compiled, page=\"page.html\")"


def explain(compiled: object = None, *, page: str | Path | None = None, times: bool = False) -> str:
    """Return a text about every graph compiled by `torch.compile(backend="weft")` since the last `torch._dynamo.reset()`.

    compiled: the result of torch.compile, for readability only; graphs of other models are included. A path: the page.

    Per graph: the share of compute nodes inside regions; per region its kernels (by scheduler, once it was called); per op that torch runs, how often and why.
    page: a file for the same as one self-contained HTML page, with each region's ops, their source lines, the bytes that it reads and writes at the traced
    sizes, and the text of its kernels. times: regions that ran in kernels on a GPU are run again there, on random numbers, and their microseconds and bytes per
    second are added (inputs of that size are allocated).
    """
    if isinstance(compiled, (str, Path)):
        page = compiled
    elif compiled is not None and not any(getattr(compiled, mark, None) is not None for mark in COMPILED):
        raise NothingToExplain(given=f"a {type(compiled).__name__} that was not compiled")
    spent = _times(GRAPHS) if times else {}
    if page is not None:
        Path(page).write_text(as_html(GRAPHS, spent), encoding="utf-8")
    if not GRAPHS:
        return 'no graph was compiled by torch.compile(backend="weft") yet: call the compiled model first'
    return "\n\n".join(as_text(graph, number, spent) for number, graph in enumerate(GRAPHS))


def _times(graphs: list[CompiledGraph]) -> dict[str, float]:
    """Return region structure -> microseconds, for regions that ran in kernels on a GPU."""
    found: dict[str, float] = {}
    for call in (call for graph in graphs for call in graph.calls):
        if _structure(call) not in found:
            spent = microseconds(call)
            if spent is not None:
                found[_structure(call)] = spent
    return found


def _structure(call: RegionCall) -> str:
    return call.plan.key or str(id(call.calls))


def _time(region: Region, call: RegionCall, times: dict[str, float]) -> str:
    """The time of a region, and its bytes per second, or ""."""
    spent = times.get(_structure(call))
    return "" if spent is None else f"{spent:.1f} us, {(bytes_of(region.inputs) + bytes_of(region.outputs)) / spent / 1e6:.2f} TB/s"


def as_text(graph: CompiledGraph, number: int | str = "", times: dict[str, float] | None = None) -> str:
    """Return a description of one graph, a line per region and per op that torch runs. times: microseconds by structure."""
    lines = [f"{f'graph {number}'.strip()} ({graph.kind}): {graph.covered_nodes} of {graph.compute_nodes} compute nodes in {len(graph.regions)} regions"]
    for region, call in graph.regions:
        kernels = ", ".join(kernel.scheduler for kernel in call.kernels()) or "not called yet"
        fallback = f"; runs in torch: {call.fallback_reason}" if call.fallback_reason else ""
        spent = f"; {text}" if (text := _time(region, call, times or {})) else ""
        lines.append(f"  {call.__name__}: {len(region.inputs)} inputs, {len(region.outputs)} outputs, kernels: {kernels}{fallback}{spent}")
    reasons = {why for _, why in graph.torch_ops.values()}
    if len(reasons) == 1 < len(graph.torch_ops):
        names = ", ".join(f"{op} ({count}x)" for op, (count, _) in sorted(graph.torch_ops.items()))
        return "\n".join([*lines, f"  torch runs {names}: {reasons.pop()}"])
    for op, (count, why) in sorted(graph.torch_ops.items()):
        lines.append(f"  torch runs {op} ({count}x): {why}")
    return "\n".join(lines)


# ---------------------------------------------------------------- the page
STYLE = """
body { font: 14px/1.4 system-ui, sans-serif; margin: 2em; max-width: 75em }
table { border-collapse: collapse; margin: .5em 0 1.5em } td, th { border: 1px solid #ccc; padding: .25em .6em; text-align: left; vertical-align: top }
th { background: #f2f2f2 } pre { background: #f7f7f7; padding: .6em; overflow-x: auto; font-size: 12px } .torch { color: #a33 } .n { text-align: right }
"""


def as_html(graphs: list[CompiledGraph], times: dict[str, float] | None = None) -> str:
    """Return a page about graphs. times: microseconds by structure."""
    parts = [f"<!doctype html><html lang=en><meta charset=utf-8><title>weft: compiled graphs</title><style>{STYLE}</style><h1>Compiled graphs</h1>"]
    for number, graph in enumerate(graphs):
        share = graph.covered_nodes / max(1, graph.compute_nodes)
        parts.append(f"<h2>Graph {number}: {_text(graph.kind)}</h2><p>{graph.covered_nodes} of {graph.compute_nodes} compute nodes ({share:.0%}) "
                     f"in {len(graph.regions)} regions.</p>")  # fmt: skip
        parts.append("<table><tr><th>region<th>ops<th>where in the program<th>reads<th>writes<th>time<th>kernels</tr>")
        parts += [_region_row(region, call, times or {}) for region, call in graph.regions]
        parts.append("</table>")
        if graph.torch_ops:
            parts.append("<table><tr><th>torch runs<th>times<th>why</tr>")
            parts += [f"<tr class=torch><td>{_text(op)}<td class=n>{times}<td>{_text(why)}</tr>" for op, (times, why) in sorted(graph.torch_ops.items())]
            parts.append("</table>")
    return "\n".join(parts) + "</html>\n"


def _region_row(region: Region, call: RegionCall, times: dict[str, float]) -> str:
    ops = ", ".join(dict.fromkeys(str(n.target).removeprefix("aten.") for n in region.nodes if counts(n)))
    kernels = "".join(_kernel(kernel) for kernel in call.kernels())
    if call.fallback_reason:
        kernels = f"<span class=torch>runs in torch: {_text(call.fallback_reason)}</span>"
    places = "<br>".join(_text(place) for place in places_of(region))
    return (f"<tr><td>{_text(call.__name__)}<td>{_text(ops)}<td>{places}<td class=n>{_bytes(region.inputs)}<td class=n>{_bytes(region.outputs)}"
            f"<td class=n>{_text(_time(region, call, times))}<td>{kernels or 'not called yet'}</tr>")  # fmt: skip


def _kernel(kernel: Any) -> str:
    return f"<details><summary>{_text(kernel.scheduler)}: {_text(kernel.program.name)}</summary><pre>{_text(kernel.program.text)}</pre></details>"


def _bytes(nodes: list[Node]) -> str:
    total = bytes_of(nodes)
    return f"{total / 2**20:.2f} MiB" if total >= 1 << 20 else f"{total} B"


def _text(value: object) -> str:
    return html.escape(str(value))


__all__ = ["as_html", "as_text", "bytes_of", "explain", "places_of"]
