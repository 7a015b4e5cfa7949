"""Chooses how a normalization keeps its rows: in registers (or streamed, if too long), by TMA with a row per block, or by warp specialization.

Pure: facts and arch in, params out. Owns the choice among the ways; each way's params are chosen in `persistent_heuristic.py` and `async_rows_heuristic.py`,
and how fast each will be is predicted in `row_model.py`. Read first: `choose_rows`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..arch import Arch
from .async_rows_heuristic import AsyncRowsParams, async_rows_candidates, choose_async_rows
from .base import Decline
from .cost.parts import FITTED, Fitted
from .facts import PersistentFacts
from .persistent_heuristic import are_at_once, choose_with_trace, every_candidate
from .persistent_params import PersistentParams
from .row_model import predicted_registers, predicted_specialized, predicted_tma

Params = PersistentParams | AsyncRowsParams

LEAST_PIPELINE_ROW_BYTES = 2048
"""Bytes of a tensor's row from which pipelines are considered. A block has one such row, and a multiprocessor up to 32 blocks."""


@dataclass(frozen=True)
class Ways:
    """The params of every way that is possible, the model's prediction for each, and why others are not possible."""

    params: Mapping[str, Params]
    predict: Mapping[str, Callable[[Fitted], float]]
    declined: Mapping[str, str]
    trace: Any
    is_crowded: bool = False

    def best(self, constants: Fitted) -> str:
        """Return the way that is predicted to be fastest; rows in registers if a pipeline gains little. is_crowded: rows are sums of several inputs of 16 bits
        with two barriers, or are quantized to 4 bits in blocks. Such rows need so many registers that few blocks are resident, so there a pipeline gains much
        (docs/constants.md).
        """
        preference = 0.0 if self.is_crowded else constants.preference
        return max(self.params, key=lambda way: self.predict[way](constants) * (1.0 - preference * (way != "registers")))

    def __str__(self) -> str:
        lines = [f"  {way}: predicted {self.predict[way](FITTED):.3f} of the roof: {params}" for way, params in self.params.items()]
        return "\n".join(["ways to keep rows", *lines, *(f"  not {way}: {reason}" for way, reason in self.declined.items()), str(self.trace)])


def find_ways(facts: PersistentFacts, arch: Arch, *, is_loadable: bool) -> Ways:
    """Return the ways to keep rows. is_loadable: rows of all inputs lie contiguously."""
    in_registers, trace = choose_with_trace(facts, arch)
    params: dict[str, Params] = {"registers": in_registers}
    predict: dict[str, Callable[[Fitted], float]] = {"registers": lambda c: predicted_registers(trace.candidates[0], facts, arch, c)}
    declined: dict[str, str] = {}
    at_once = are_at_once(trace)
    for kind, predicted in (("tma", predicted_tma), ("specialized", predicted_specialized)):
        found = pipeline(facts, arch, kind, in_registers, at_once=at_once) if is_loadable else Decline("the rows of an input do not lie contiguously")
        if isinstance(found, Decline):
            declined[kind] = found.reason
        else:
            params[kind] = found
            predict[kind] = lambda c, found=found, predicted=predicted: predicted(found, facts, arch, c)  # type: ignore[misc]
    has_sums = facts.passes > 2 and facts.vectorizable_inputs > 1 and facts.max_dtype_bits == 16 and facts.broadcast_operands > 0
    return Ways(params, predict, declined, trace, has_sums or facts.block_elems > 0 and facts.min_dtype_bits < 8)


def pipeline(facts: PersistentFacts, arch: Arch, kind: str, in_registers: PersistentParams, *, at_once: bool) -> AsyncRowsParams | Decline:
    """Return the params of a pipeline worth comparing. at_once: all rows are resident at once, so none could be loaded ahead. Even so, rows with two barriers
    may gain by a bulk copy each, but for random numbers with one vector per thread. Measured: docs/constants.md.
    """
    if facts.reduction_elems * facts.max_dtype_bits < LEAST_PIPELINE_ROW_BYTES * 8:
        return Decline(f"rows of less than {LEAST_PIPELINE_ROW_BYTES} bytes are too short to give each a block")
    if at_once:
        if kind != "tma" or facts.passes < 3 or facts.has_rng and in_registers.batches == 1:
            return Decline("all rows are processed at once, so no later row can be loaded ahead")
    elif facts.iteration_elems < arch.sm_count:
        return Decline(f"{facts.iteration_elems} rows leave multiprocessors idle that a cluster per row would use")
    return choose_async_rows(facts, arch, kind)


def choose_rows(facts: PersistentFacts, arch: Arch, *, is_loadable: bool, way: str = "auto") -> tuple[Params, str]:
    """Return the params of a normalization and why.

    is_loadable: rows of all inputs lie contiguously. way: the requested way; if it is impossible, the params of rows in registers.
    """
    if way == "auto":
        ways = find_ways(facts, arch, is_loadable=is_loadable)
        best = ways.best(FITTED)
        return ways.params[best], f"{best} of the {ways}"
    in_registers, trace = choose_with_trace(facts, arch)
    if way == "register":
        return in_registers, str(trace)
    found = choose_async_rows(facts, arch, way)
    if isinstance(found, Decline):
        return in_registers, f"not {way}: {found.reason}\n{trace}"
    shared = replace(found, fill="leading") if found.fill == "whole" and found.batches > 1 else found
    return shared, f"forced, and the same for rows whose last part is not full: {shared}"


def way_of(params: Params) -> str:
    """Return the name of the way of params; a block and a cluster are two ways."""
    if isinstance(params, AsyncRowsParams):
        return params.kind
    return f"{params.storage}, {'one block' if params.cluster_blocks == 1 else 'cluster'}{', 3d' if params.kind == '3d' else ''}"


def way_candidates(facts: PersistentFacts, arch: Arch, *, is_loadable: bool) -> list[tuple[str, Params]]:
    """Return (way, params) to time, of each way fastest by prediction first. is_loadable: rows of all inputs lie contiguously."""
    found: list[Params] = [candidate.params for candidate in every_candidate(facts, arch)]
    if is_loadable:
        found += async_rows_candidates(facts, arch)
    return [(way_of(params), params) for params in dict.fromkeys(found)]
