"""The accesses of a kernel as far as its tensors decide: bits of their types, inputs that are read element by element, vectors of rows that begin anywhere.

Owns what analyses of every kind find about accesses, and how params get it from the facts. Read first: `Analysis`, `single_reads`, `with_accesses`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..analysis.blocks import BlockNeeds
from ..analysis.op_cost import OpCost
from ..analysis.vectorization import MAX_VECTOR_BITS, VectorLimits, access_bits
from ..ir.values import TensorView
from .base import Alignments, Sizes
from .facts import PersistentFacts, PointwiseFacts, ReductionFacts


class Analysis:
    """What analyses of pointwise fusions and of rows have in common: types and vectors of tensors, blocks of neighbours, cost of an element."""

    max_dtype_bits: int
    min_dtype_bits: int
    vectorizable_inputs: int
    min_vector_elems: int
    blocks: BlockNeeds
    cost: OpCost

    @property
    def needs_vectors(self) -> bool:
        """True when an output is packed, or blocks of neighbours must be held together."""
        return self.min_vector_elems > 1 or self.blocks.largest > 0

    def facts_of_elements(self) -> dict[str, Any]:
        """Return the fields of the facts that all kinds have and that do not depend on sizes."""
        return dict(
            max_dtype_bits=self.max_dtype_bits, min_dtype_bits=self.min_dtype_bits, vectorizable_inputs=self.vectorizable_inputs,
            instructions=self.cost.instructions, mufu=self.cost.mufu, has_exp=self.cost.has_exp, has_rng=self.cost.has_rng,
            min_vector_elems=self.min_vector_elems, block_elems=self.blocks.largest,
        )  # fmt: skip


def dtype_bits(vectorizable: Sequence[TensorView], every: Sequence[TensorView]) -> tuple[int, int]:
    """Return the bits of the widest and narrowest type of the vectorizable tensors; of all tensors if there is none, 8 without tensors."""
    sizes = [access_bits(t) for t in vectorizable] or [t.dtype().bits for t in every] or [8]
    return max(sizes), min(sizes)


def single_reads(
    limits: VectorLimits, position: int, wanted_elems: int, outputs: Sequence[TensorView], env: Sizes, alignment_bits: Alignments, vector_bits: int
) -> list[TensorView]:  # fmt: skip
    """Return the inputs and lookups that do not allow the vectors that packed outputs or blocks need, and so are read element by element."""
    if limits.limit_elems(position, env, alignment_bits, vector_bits) >= wanted_elems:
        return []
    others = [t for t in limits.vectorizable if not any(t is o for o in outputs)]
    return [t for t in others if limits.only(t).limit_elems(position, env, alignment_bits, vector_bits) < wanted_elems]


def phased_limit(limits: VectorLimits, position: int, env: Sizes, alignment_bits: Alignments) -> tuple[int, bool]:
    """Return the widest vector for rows (the loops from `position` on) whose length need not be a multiple of it, and whether every row begins aligned."""
    anywhere, tailed = limits.phased_limit_elems(position, alignment_bits), limits.tailed_limit_elems(position, env, alignment_bits)
    return max(anywhere, tailed), tailed > anywhere


def with_accesses(params: Any, facts: ReductionFacts | PersistentFacts) -> Any:
    """Return params with the accesses of the facts: the inputs that are read element by element, and the bits of the widest access."""
    if facts.single_reads:
        params = replace(params, single_reads=facts.single_reads)
    access_bits = access_bits_of(facts, params.vector_elems)
    return replace(params, access_bits=access_bits) if access_bits > MAX_VECTOR_BITS else params


def access_bits_of(facts: PointwiseFacts | ReductionFacts | PersistentFacts, vector_elems: int) -> int:
    """Return the bits of the widest access of a kernel with such vectors: 128, unless vectors are wider and the chip has wider accesses."""
    return facts.access_bits if vector_elems * facts.max_dtype_bits > MAX_VECTOR_BITS else MAX_VECTOR_BITS
