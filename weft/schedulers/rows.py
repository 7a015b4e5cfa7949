"""What the templates share: caches, the canonical loops of a reference, vector lanes, and inlining.

Tensors keep their names when a fusion is cloned, so an analysis of one clone speaks of another by name.
Read first: `Template`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..ir.enums import MemoryType, ParallelType
from ..ir.fusion import Fusion
from ..ir.values import FullOp, IotaOp, IterDomain, PointwiseOp, RandomOp, ReductionOp, TensorView
from ..schedule.caching import cache_and_fork_outputs, cache_inputs
from ..schedule.inline import inline_at, inline_most
from ..schedule.primitives import merge, reorder
from ..schedule.propagate import parallelize_like, transform_like


class Template:
    """A clone of a fusion being scheduled, with its caches.

    inputs: (global input, register cache); outputs: (local tensor, global output). reductions: outputs of the reduction ops.
    """

    def __init__(self, fusion: Fusion) -> None:
        self.fusion = fusion
        self.inputs = cache_inputs(fusion)
        self.outputs = cache_and_fork_outputs(fusion)
        self.reductions: list[TensorView] = [e.outputs[0] for e in fusion.tensor_exprs() if isinstance(e, ReductionOp)]  # type: ignore[misc]

    def tensor(self, name: int) -> TensorView:
        """Return the tensor called T`name`."""
        return next(t for t in self.fusion.tensors() if t.name == name)

    def reduction_behind(self, name: int) -> TensorView:
        """Return the reduction's output that T`name` is, or is a copy of since outputs were cached."""
        tensor = self.tensor(name)
        while not isinstance(tensor.definition(), ReductionOp):
            tensor = tensor.definition().tensor_inputs[0]  # type: ignore[union-attr]
        return tensor

    def propagate(self, reference: TensorView) -> None:
        """Give every tensor the transforms of `reference`."""
        transform_like(reference)

    def bind(self, reference: TensorView) -> None:
        """Give every tensor the bindings to blocks and threads of `reference`."""
        parallelize_like(reference, selected_parallel_types=set(BOUND))

    def vectorize(self, names: Iterable[int], lanes: int) -> None:
        """Let loads and stores of the named inputs and outputs move `lanes` elements at once; also casts to narrow floats and random numbers beside them."""
        if lanes == 1:
            return
        wanted = set(names)
        for source, cache in self.inputs:
            if source.name in wanted:
                set_lanes(cache)
        for local, output in self.outputs:
            if output.name in wanted:
                set_lanes(output)
                definition = local.definition()
                if isinstance(definition, PointwiseOp) and definition.op_name == "cast" and local.dtype().is_reduced_float and lanes % 2 == 0:
                    if isinstance(definition.inputs[0], TensorView) and has_lanes(definition.inputs[0]):
                        set_lanes(local)
        if lanes % 4 == 0:
            for expr in self.fusion.tensor_exprs():
                if isinstance(expr, RandomOp) and expr.outputs[0].dtype().bits == 32:  # type: ignore[attr-defined]
                    set_lanes(expr.outputs[0])  # type: ignore[arg-type]

    def inline(self, keep: Sequence[TensorView] = ()) -> None:
        """Inline everything as deep as possible, except `keep`."""
        inline_most(except_tensors=list(keep), selected_tensors=[t for t in self.fusion.tensors() if not any(t is k for k in keep)])

    def inline_caches(self, position_of: dict[TensorView, int]) -> None:
        for tensor, position in position_of.items():
            inline_at(tensor, position, best_effort=True, selected_tensors=[tensor])


BOUND = (
    ParallelType.grid_x, ParallelType.grid_y, ParallelType.grid_z, ParallelType.block_x, ParallelType.block_y, ParallelType.block_z,
)  # fmt: skip


def has_lanes(tensor: TensorView) -> bool:
    """True when the innermost loop axis is the vector axis of the template and the tensor varies over it."""
    loop = tensor.get_loop_domain()
    return bool(loop) and loop[-1].is_iteration() and tensor.memory_type is MemoryType.local


def set_lanes(tensor: TensorView) -> None:
    loop = tensor.get_loop_domain()
    if loop and loop[-1].is_iteration():
        loop[-1].parallelize(ParallelType.vectorize)


def arrange(tensor: TensorView, order: Sequence[int]) -> None:
    """Reorder the loop axes of `tensor`: new position n holds what was at order[n]."""
    reorder(tensor, {old: new for new, old in enumerate(order)})


def merge_run(tensor: TensorView, first: int, count: int) -> None:
    """Merge `count` neighbouring loop axes from position `first` on into one."""
    for _ in range(count - 1):
        merge(tensor, first, first + 1)


__all__ = ["FullOp", "IotaOp", "IterDomain", "Template", "arrange", "has_lanes", "merge_run", "set_lanes"]
