"""The analysis of a fusion without reductions: what of `PointwiseFacts` does not depend on sizes.

Make it once per fusion with `analyze_pointwise`; then `facts(env, alignment_bits)` is cheap. `env` maps the variables of the fusion's extents and strides to
integers; `alignment_bits` maps an input's name (`TensorView.name`) to the alignment of its first element, and inputs left out are fully aligned.
Read first: `analyze_pointwise`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from typing import Any

from ..analysis.blocks import block_needs, moved_bits
from ..analysis.connected import is_connected
from ..analysis.index_work import IndexWork, index_work
from ..analysis.lookup_work import FEWEST_OF_A_WINDOW, LookupWork, RowSharing, computed_lookups, lookup_work, row_sharing
from ..analysis.lookups import bad_source, elements_of, in_memory, loads, part_inside
from ..analysis.loop_axes import LoopAxes, Obstacle, loop_axes, loop_order, pointwise_reference
from ..analysis.op_cost import OpCost, cost_of
from ..analysis.precision import wide_tensors
from ..analysis.reduction_shape import reduction_exprs
from ..analysis.vectorization import MAX_VECTOR_BITS, VectorLimits
from ..ir.block_ops import sample_of
from ..ir.fusion import Fusion
from ..ir.graph_ops import LookupOp
from ..ir.values import TensorView
from ..remembered import MOST_REMEMBERED
from ..schedule.peel import gains_by_phase
from .accesses import Analysis, dtype_bits, phased_limit, single_reads
from .base import Alignments, Decline, Sizes
from .facts import PointwiseFacts
from .limits import UNROLLS
from .packed import min_vector_elems, thread_vector_bits, why_not_vectors
from .still_rows import StillRows, still_rows, work_of_values


class PointwiseAnalysis(Analysis):
    """The facts of a pointwise fusion that do not depend on sizes. `reference` has the loops; `order` names them in memory order."""

    def __init__(self, fusion: Fusion, axes: LoopAxes, reference: TensorView) -> None:
        self.axes, self.reference = axes, reference
        inputs, outputs = loads(fusion), fusion.tensor_outputs()
        self._inputs = inputs
        stored = axes.stored(reference)
        self.order = loop_order(axes, [n for n in axes.logical_order(reference) if n in stored], [reference, *outputs, *inputs])
        self.limits = VectorLimits(axes, self.order, [*inputs, *outputs])
        self.right_bits = tuple(
            sum(t.dtype().bits for t in (*inputs, *outputs) if axes.stored(t) - set(self.order[:p])) for p in range(max(1, len(self.order)))
        )
        vectorizable = self.limits.vectorizable
        self.max_dtype_bits, self.min_dtype_bits = dtype_bits(vectorizable, [*inputs, *outputs])
        self.vectorizable_inputs = sum(map(set(vectorizable).__contains__, inputs))
        self.vectorizable_outputs = sum(map(set(vectorizable).__contains__, outputs))
        self.full_inputs = sum(axes.stored(t) == stored for t in inputs)
        self.read_bits = sum(in_memory(t).dtype().bits for t in inputs if axes.stored(t) == stored)
        self.computed = computed_lookups(t for t in inputs if axes.stored(t) == stored)
        self.also_read = {t for t in inputs if axes.stored(t) == stored and in_memory(t) is t}.intersection(map(in_memory, self.computed))
        along = [t for t in inputs if self.order and self.order[-1] in axes.stored(t)]
        self.looked_up = computed_lookups(along)
        others = {t for t in along if isinstance(t.definition(), LookupOp)}.difference(self.looked_up)
        self.other_lookups, self.phased_other_lookups = (self._count_others(others, is_phased) for is_phased in (False, True))
        self._known: dict[tuple[Any, ...], Any] = {}
        self.written_bits = moved_bits([t for t in outputs if axes.stored(t) == stored])
        self.divides_rows = any(sample.layout != "rows" for t in outputs if (sample := sample_of(t)) is not None)
        self.outputs, self.blocks = outputs, block_needs(fusion, axes, self.order[-1] if self.order else None)
        places = [frozenset(n for n, c in enumerate(self.order) if c in axes.stored(t)) for t in inputs]
        self.spread = tuple((in_memory(t).dtype().bits, found) for t, found in zip(inputs, places) if 0 < len(found) < len(self.order))
        self.min_vector_elems, self.vector_bits = max(min_vector_elems(outputs), self.blocks.least_vector_elems), thread_vector_bits(vectorizable, outputs)

    # What is needed where a kernel is chosen, and not to tell whether there is one.
    @cached_property
    def cost(self) -> OpCost:  # type: ignore[override]  # an attribute of other analyses
        fusion = self.axes.fusion
        return cost_of(fusion.tensor_exprs(), wide_tensors(fusion))

    @cached_property
    def still_rows(self) -> tuple[StillRows | None, ...]:
        axes, inputs = self.axes, self._inputs
        at, work = [None, *range(1, len(self.order))], work_of_values(axes, inputs) if len(self.order) > 1 else {}
        return tuple(p and still_rows(axes, self.order, p, inputs, self.limits.in_vectors(p, False), work) for p in at)

    @cached_property
    def index_work(self) -> tuple[IndexWork, ...]:
        return self._index_work([*self._inputs, *self.outputs], False)

    @cached_property
    def phased_index_work(self) -> tuple[IndexWork, ...]:
        return self._index_work([*self._inputs, *self.outputs], True)

    def facts(self, env: Sizes, alignment_bits: Alignments, max_access_bits: int = MAX_VECTOR_BITS, atomic_bits: int = 0) -> PointwiseFacts:
        """Return the facts for the choice, at these sizes. max_access_bits: the chip's widest access; atomic_bits: its widest atomic one."""
        extents = self.axes.extents_elems(env)
        single = self._single_reads(env, alignment_bits)
        limits = self.limits.without(single) if single else self.limits
        access_bits, vector_bits = limits.access_bits(alignment_bits, max_access_bits), self.vector_bits
        if access_bits > MAX_VECTOR_BITS:
            vector_bits = max(access_bits, thread_vector_bits(limits.vectorizable, self.outputs, 0, access_bits))
        phased = [] if single or self.needs_vectors else [self._phased_limit(p, env, alignment_bits) for p in range(len(self.order))]
        vector_limits = tuple(limits.limit_elems(p, env, alignment_bits, vector_bits, atomic_bits) for p in range(max(1, len(self.order))))
        return PointwiseFacts(
            extents_elems=tuple(extents[n] for n in self.order),
            vector_limit_elems=vector_limits,
            right_bits=self.right_bits,
            **self.facts_of_elements(),
            vectorizable_outputs=self.vectorizable_outputs,
            full_inputs=self.full_inputs,
            vector_bits=vector_bits,
            access_bits=access_bits,
            read_bits=self.read_bits,
            repeated_bits=self._repeated_bits(env),
            written_bits=self.written_bits,
            divides_rows=self.divides_rows,
            single_reads=tuple(t.name for t in single),
            phased_limit_elems=tuple(elems for elems, _ in phased), is_tailed=tuple(tailed for _, tailed in phased),
            index_work=self.index_work,
            phased_index_work=tuple(self.index_work[p] if tailed else self.phased_index_work[p] for p, (_, tailed) in enumerate(phased)) or self.index_work,
            **self._lookups(env, vector_limits, phased),
            other_lookups=self.other_lookups,
            phased_other_lookups=tuple(
                self.other_lookups[p] if tailed else self.phased_other_lookups[p] for p, (_, tailed) in enumerate(phased)
            ) if self.other_lookups else (),
            shared_rows=self._shared_rows(env),
            still_rows=self.still_rows,
            outside_accesses=self._outside_accesses(env),
            spread=self.spread,
        )

    def _phased_limit(self, position: int, env: Sizes, alignment_bits: Alignments) -> tuple[int, bool]:
        """As `phased_limit`; (1, False) if an output has one element for several of a row, because it is written in one iteration of the loop over a vector."""
        row = set(self.order[position:])
        if not all(row <= self.axes.stored(t) for t in self.outputs):
            return 1, False
        return phased_limit(self.limits, position, env, alignment_bits)

    def _count_others(self, others: Collection[TensorView], is_phased: bool) -> tuple[int, ...]:
        return tuple(len(set(others).difference(self.limits.in_vectors(p, is_phased))) for p in range(len(self.order))) if others else ()

    def _index_work(self, tensors: Sequence[TensorView], is_phased: bool) -> tuple[IndexWork, ...]:
        places = range(max(1, len(self.order)))
        vectors = [set(self.limits.in_vectors(p, is_phased)) for p in places]
        return tuple(index_work(self.axes, self.order, tensors, vectors[p], p, [t for t in self.looked_up if t not in vectors[p]]) for p in places)

    def _repeated_bits(self, env: Sizes) -> int:
        """Return how many bits lookups read again: more than their sources have, which may be read without a lookup, too."""
        extents = self.axes.extents_elems(env) if self.computed else ()
        total = math.prod(extents[n] for n in self.order) if self.computed else 0
        sources = dict.fromkeys(self.also_read, total)
        for tensor in self.computed:
            sources[in_memory(tensor)] = sources.get(in_memory(tensor), 0) + total
        return sum(max(0, read - elements_of(source, env)) * source.dtype().bits for source, read in sources.items())

    def _outside_accesses(self, env: Sizes) -> float:
        """Return how many of the accesses in vectors are outside of what a pad or a cat reads, where nothing is loaded."""
        vectors = set(self.limits.vectorizable)
        lookups = [t.definition() for t in self.computed if t in vectors]
        return sum(1 - part_inside(e, env) for e in lookups if isinstance(e, LookupOp))

    def _lookups(self, env: Sizes, limits: Sequence[int], phased: Sequence[tuple[int, bool]]) -> dict[str, Any]:
        """Return the facts about lookups that are read element by element. limits, phased: the widest vectors at each break position, and those of rows that
        begin anywhere, which have one width."""
        if not self.looked_up:
            return {}
        widths, depth = [1 << n for n in range(max(limits).bit_length())], len(self.order)
        extents = [self.axes.extents_elems(env)[n] for n in self.order]
        whole, rows = list[tuple[LookupWork, ...]](), list[tuple[LookupWork, ...]]()
        for p in range(depth):
            whole.append(tuple(self._lookup_work(env, self._singles(p, False), width, 0)[p] for width in widths) if self._singles(p, False) else ())
            elems, is_tailed = phased[p] if phased else (1, False)
            singles = self._singles(p, not is_tailed)
            is_candidate = p > 0 and singles and gains_by_phase(math.prod(extents[p:]), limits[p], elems, self.max_dtype_bits)
            rows.append((self._lookup_work(env, singles, elems, depth - p)[p],) * elems.bit_length() if is_candidate else ())
        return {"lookups": tuple(whole) if any(whole) else (), "phased_lookups": tuple(rows) if any(rows) else ()}

    def _is_right_of(self, tensor: TensorView, position: int) -> bool:
        """True if a tensor varies along loops right of a break position alone."""
        found = self.axes.stored(tensor)
        return bool(found) and not found & set(self.order[:position])

    def _shared_rows(self, env: Sizes) -> tuple[tuple[RowSharing, ...], ...]:
        """Return what neighbouring rows of a thread share at each break position, where all lookups are vectors along rows, at positions of these rows."""
        if len(self.computed) < FEWEST_OF_A_WINDOW:
            return ()
        along = [any(self._is_right_of(v, p) for v in _positions(self.computed)) or bool(self._singles(p, False)) for p in range(len(self.order))]
        found = [() if p == 0 or along[p] else self._sharing(env, p) for p in range(len(self.order))]
        return tuple(found) if any(found) else ()

    def _sharing(self, env: Sizes, position: int) -> tuple[RowSharing, ...]:
        found: tuple[RowSharing, ...] = self._once(
            lambda: tuple(row_sharing(self.axes, self.order[:position], env, rows) for rows in UNROLLS), position, frozenset(env.items())
        )  # fmt: skip
        return found if any(of.loads > 0 for of in found) else ()

    def _singles(self, position: int, is_phased: bool) -> tuple[TensorView, ...]:
        vectors = set(self.limits.in_vectors(position, is_phased))
        return tuple(t for t in self.looked_up if t not in vectors)

    def _lookup_work(self, env: Sizes, singles: tuple[TensorView, ...], elems: int, phased: int) -> list[LookupWork]:
        found: list[LookupWork] = self._once(
            lambda: lookup_work(self.axes, self.order, singles, env, elems, phased), singles, elems, phased, frozenset(env.items())
        )  # fmt: skip
        return found

    def _once(self, make: Callable[[], Any], *key: Any) -> Any:
        """Return what `make` returns for a key; it is asked for at the same sizes several times."""
        if key not in self._known:
            if len(self._known) >= MOST_REMEMBERED:
                self._known.clear()
            self._known[key] = make()
        return self._known[key]

    def _single_reads(self, env: Sizes, alignment_bits: Alignments) -> list[TensorView]:
        wanted = self.min_vector_elems if self.needs_vectors else 1
        return single_reads(self.limits, 0, wanted, self.outputs, env, alignment_bits, self.vector_bits)

    def why_not_vectors(self, facts: PointwiseFacts, chosen_elems: int) -> Decline | None:
        """Return why vectors of so many elements do not do for packed outputs, or for folds over blocks."""
        return why_not_vectors(self.outputs, self.limits, facts.vector_limit_elems[0], self.blocks, chosen_elems)


def _positions(computed: Sequence[TensorView]) -> list[TensorView]:
    """Return the positions that a kernel computes for these results of lookups."""
    lookups = [t.definition() for t in computed]
    return [v for e in lookups if e is not None for v in e.tensor_inputs[1:] if v.definition() is not None]


def analyze_pointwise(fusion: Fusion, axes: LoopAxes | None = None) -> PointwiseAnalysis | Obstacle:
    """Return the size-independent facts of a pointwise fusion, or why it is not one."""
    found = reduction_exprs(fusion)
    if found:
        return Obstacle(f"{found[0].outputs[0]} reduces")
    if not is_connected(fusion):
        return Obstacle("the outputs fall into groups that share no tensor")
    if reason := bad_source(fusion):
        return Obstacle(reason)
    axes = axes or loop_axes(fusion)
    reference = pointwise_reference(axes)
    return reference if isinstance(reference, Obstacle) else PointwiseAnalysis(fusion, axes, reference)
