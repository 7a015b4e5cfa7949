"""Copies of tensors: between a tensor and its uses, before an output, around an output that is also read.

Owns the graph surgery; where the copy is kept and how its axes are transformed is the scheduler's business. Make copies before transforming axes.
Read first: `cache_after`, `cache_before`, `cache_inputs`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.axes import axis_transforms
from ..errors import UserError
from ..ir.block_ops import sample_of
from ..ir.enums import CacheOp, LoadStoreOpType, MemoryType
from ..ir.fusion import Fusion
from ..ir.values import Expr, IterDomain, LoadStoreOp, TensorDomain, TensorView, no_reductions
from .transforms import copy_binding, copy_transforms


class NothingToCache(UserError):
    code = "W630"
    what = "cannot {verb} {tensor}: {reason}"
    fix = "{remedy}"


class CacheOfInlined(UserError):
    code = "W631"
    what = "cannot {verb} {tensor}: {reason}"
    fix = "make caches before inlining"


RUNS_AHEAD = "runs_ahead"
"""Attribute of a copy by cp.async that may run some iterations ahead of the loop that first reads it (`lower/circular.py`)."""


def live_uses(tensor: TensorView) -> list[Expr]:
    """Return the expressions that read `tensor` and that an output needs, in the fusion's order."""
    fusion: Fusion = tensor.fusion  # type: ignore[assignment]
    return [e for e in fusion.tensor_exprs() if tensor in e.inputs]


def _live_readers(fusion: Fusion) -> dict[TensorView, list[Expr]]:
    """Return `live_uses` of every tensor with such uses."""
    readers: dict[TensorView, list[Expr]] = {}
    for expr in fusion.tensor_exprs():
        for tensor in dict.fromkeys(expr.tensor_inputs):
            readers.setdefault(tensor, []).append(expr)
    return readers


def require_not_inlined(tensor: TensorView, verb: str) -> None:
    """Raise an error if `tensor` shares loops with its producers or consumers."""
    if tensor.compute_at:
        raise CacheOfInlined(verb=verb, tensor=tensor, reason=f"it is inlined into its consumers at position {tensor.compute_at}")
    definition = tensor.definition()
    for producer in () if definition is None else definition.tensor_inputs:
        if producer.compute_at:
            raise CacheOfInlined(verb=verb, tensor=tensor, reason=f"T{producer.name} is inlined into it")


def cache_after(
    tv: TensorView, op_type: LoadStoreOpType = LoadStoreOpType.set, cache_op: CacheOp = CacheOp.unspecified,
    propagate_allocation_domain: bool = True, cached_uses: Sequence[Expr] = (),
) -> TensorView:  # fmt: skip
    """Return a new tensor, a copy of `tv`, that the uses of `tv` (or `cached_uses` only) now read. For an input: its register cache.

    Lookups still read `tv`, which must be in global memory.
    """
    verb = "cache_after"
    require_not_inlined(tv, verb)
    uses = [use for use in tv.uses() if tv not in use.read_whole]
    if not uses:
        raise NothingToCache(verb=verb, tensor=tv, reason="nothing reads it", remedy="cache a tensor that is read, or use cache_before")
    for use in cached_uses:
        if not any(use is known for known in uses):
            raise NothingToCache(verb=verb, tensor=tv, reason=f"{use} does not read it", remedy="pass uses of this tensor as cached_uses")
    fusion: Fusion = tv.fusion  # type: ignore[assignment]
    copy, images = _same_shape(fusion, tv)
    if propagate_allocation_domain:
        _copy_allocation(fusion, tv, copy, images)
    fusion.replace_inputs(list(cached_uses) or uses, tv, copy)
    fusion.register(LoadStoreOp([tv], [copy], kind=op_type, cache_op=cache_op))
    return copy


def cache_before(tv: TensorView, op_type: LoadStoreOpType = LoadStoreOpType.set) -> TensorView:
    """Return a new local tensor that is computed as `tv` was; `tv` becomes a copy of it and keeps its memory type.

    The new tensor has the transforms and bindings of `tv`, and its reduction axes, which `tv` loses.
    """
    verb = "cache_before"
    definition = tv.definition()
    if definition is None:
        raise NothingToCache(verb=verb, tensor=tv, reason="it is not computed in the fusion", remedy="use cache_after for an input")
    require_not_inlined(tv, verb)
    fusion: Fusion = tv.fusion  # type: ignore[assignment]
    copy = _computed_alike(fusion, tv)
    fusion.redefine(definition, tv, copy)
    tv._domain = without_reductions(tv.domain())
    fusion.register(LoadStoreOp([copy], [tv], kind=op_type))
    return copy


def cache_fork(tv: TensorView) -> TensorView:
    """Return a copy of `tv` that replaces it as output; `tv`, which is also read in the fusion, becomes local."""
    if not tv.is_fusion_output:
        raise NothingToCache(verb="cache_fork", tensor=tv, reason="it is not an output", remedy="use cache_after")
    if not tv.uses():
        raise NothingToCache(verb="cache_fork", tensor=tv, reason="nothing reads it", remedy="use cache_before for an output that is not read")
    if tv.definition() is None:
        raise NothingToCache(verb="cache_fork", tensor=tv, reason="it is an input too", remedy="leave it: an input that is an output is not computed")
    require_not_inlined(tv, "cache_fork")
    fusion: Fusion = tv.fusion  # type: ignore[assignment]
    output, images = _same_shape(fusion, tv)
    _copy_allocation(fusion, tv, output, images)
    domain = tv.domain()
    output.domain().contiguity = [c for a, c in zip(domain.maybe_allocation, domain.contiguity) if not a.is_reduction()]
    domain.allocation = None
    domain.contiguity = _contiguous(domain.logical)
    output.memory_type, tv.memory_type = MemoryType.global_, MemoryType.local
    fusion.register(LoadStoreOp([tv], [output]))
    fusion.replace_output(tv, output)
    return output


def cache_inputs(fusion: Fusion) -> list[tuple[TensorView, TensorView]]:
    """Give every input tensor that is read a register cache; return (input, cache) pairs. CPU scalars, and sources of lookups, get none."""
    out = []
    read = _live_readers(fusion)
    for value in dict.fromkeys(fusion.inputs()):
        if not isinstance(value, TensorView) or value.is_cpu_scalar:
            continue
        if any(value not in use.read_whole for use in read.get(value, ())):
            out.append((value, cache_after(value)))
    return out


def cache_and_fork_outputs(fusion: Fusion) -> list[tuple[TensorView, TensorView]]:
    """Make every output a plain copy of a local tensor; return (local tensor, output) pairs.

    An output that is also read is forked: its copy is the output. An input that is an output is not changed. One element per block is stored directly.
    """
    out = []
    read = _live_readers(fusion)
    for value in dict.fromkeys(fusion.outputs()):
        if not isinstance(value, TensorView) or value.definition() is None or value.is_fusion_input:
            continue
        if sample_of(value) is not None:
            out.append((value.definition().tensor_inputs[0], value))  # type: ignore[union-attr]
        elif value in read:
            out.append((value, cache_fork(value)))
        elif is_plain_copy_of_local(value):
            out.append((value.definition().tensor_inputs[0], value))  # type: ignore[union-attr]
        else:
            out.append((cache_before(value), value))
    return out


def is_plain_copy_of_local(tensor: TensorView) -> bool:
    """True for a copy, axes in order, of a tensor that is neither input nor output."""
    definition = tensor.definition()
    if not isinstance(definition, LoadStoreOp) or tensor.has_root():
        return False
    source = definition.tensor_inputs[0]
    return not source.is_fusion_input and not source.is_fusion_output


# ---------------------------------------------------------------- domains
def _contiguous(axes: list[IterDomain]) -> list[bool | None]:
    return [None if a.is_broadcast() or a.is_reduction() else True for a in axes]


def _same_shape(fusion: Fusion, tensor: TensorView) -> tuple[TensorView, dict[IterDomain, IterDomain]]:
    """Return a new tensor over copies of the axes of `tensor` that are no reductions, and the copies."""
    images = {axis: fusion.copy_axis(axis) for axis in no_reductions(tensor.get_logical_domain())}
    return fusion.new_tensor(list(images.values()), tensor.dtype()), images


def _copy_allocation(fusion: Fusion, source: TensorView, target: TensorView, images: dict[IterDomain, IterDomain]) -> None:
    """Give `target` the memory order of `source`, contiguously."""
    allocation = source.domain().allocation
    if allocation is None:
        return
    copy_transforms(fusion, axis_transforms(source, allocation), images)
    target.domain().allocation = [images[a] for a in allocation if a in images]
    target.domain().contiguity = _contiguous(target.domain().allocation)  # type: ignore[arg-type]


def _computed_alike(fusion: Fusion, tensor: TensorView) -> TensorView:
    """Return a new local tensor with copies of the root, logical and loop axes of `tensor`, transforms and bindings included."""
    domain = tensor.domain()
    images = {axis: fusion.copy_axis(axis) for axis in domain.maybe_root}
    for old, new in images.items():
        new.is_rfactor = old.is_rfactor
        copy_binding(old, new)
    copy_transforms(fusion, axis_transforms(tensor, (*domain.logical, *domain.loop)), images)
    root = None if domain.root is None else [images[a] for a in domain.root]
    copy = fusion.new_tensor([images[a] for a in domain.logical], tensor.dtype(), root=root)
    for old in images:
        images[old].iter_type, images[old].is_rfactor = old.iter_type, old.is_rfactor  # after rfactor, leaves have other types than their sources
    copy.domain().loop = [images[a] for a in domain.loop]
    copy.domain().contiguity = _contiguous(copy.get_logical_domain())
    return copy


def without_reductions(domain: TensorDomain) -> TensorDomain:
    """Return the domain of a plain copy: no root, no reduction axes; loop and allocation as they are."""
    kept = [None if a.is_reduction() else (a, c) for a, c in zip(domain.maybe_allocation, domain.contiguity)]
    pairs = [pair for pair in kept if pair is not None]
    new = TensorDomain(None, no_reductions(domain.logical), [c for _, c in pairs], None if domain.allocation is None else [a for a, _ in pairs])
    new.loop, new.rolled = no_reductions(domain.loop), domain.rolled
    return new


__all__ = ["cache_after", "cache_and_fork_outputs", "cache_before", "cache_fork", "cache_inputs", "live_uses", "require_not_inlined", "without_reductions"]
