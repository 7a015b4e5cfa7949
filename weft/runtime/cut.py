"""How a call's definition is cut, as text: the steps in order, what each moves, and why what lies between them is not in one kernel.

Read first: `Cut`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..ir.values import Expr, TensorView, Val
from ..segment.plan import KernelStep, TorchStep, ViewStep

if TYPE_CHECKING:
    from .runtimes import Runtime, Sizes


@dataclass(frozen=True)
class Cut:
    """The steps of a call. kernels: the kernels of the kernel steps, in order.

    Example:
        2 kernels, 1 op of torch; 12.6 MB in edges
        1 pointwise weft_pointwise_1a2b3c4d: relu
            reads  T0 4.2 MB
            writes T1 4.2 MB
                for step 2: one of them is no kernel
    """

    sizes: "Sizes"
    kernels: "tuple[Runtime, ...]"

    def __str__(self) -> str:
        plan = self.sizes.plan
        readers_of: dict[TensorView, list[int]] = {}
        for number, step in enumerate(plan.steps, 1):
            for value in step.reads:
                if isinstance(value, TensorView):
                    readers_of.setdefault(value, []).append(number)
        kernels = iter(self.kernels)
        lines = [self._summary()]
        for number, step in enumerate(plan.steps, 1):
            if isinstance(step, KernelStep):
                runtime = next(kernels)
                lines.append(f"{number} {runtime.scheduler} {runtime.program.name}: {_ops(step.fusion.tensor_exprs())}")
            elif isinstance(step, TorchStep):
                lines.append(f"{number} torch: {step.expr.op_name}")
            elif isinstance(step, ViewStep):
                lines.append(f"{number} view of T{step.source.name}")
            else:
                lines.append(f"{number} parts that are stored side by side")
            reads = [f"T{v.name} {self._shown(v)}" for v in step.reads if isinstance(v, TensorView)]
            lines.append(f"    reads  {', '.join(reads) or 'nothing'}")
            for tensor in step.outputs:
                lines.append(f"    writes T{tensor.name} {self._shown(tensor)}{'' if tensor in plan.edges else ', an output'}")
                for reader in readers_of.get(tensor, ()):
                    lines.append(f"        for step {reader}: {plan.reasons.get((tensor, plan.steps[reader - 1]), '')}")
        for n, view in self.sizes.views.items():
            shown = f"T{self.sizes.buffers[view.source].name}" if view.of_result else f"input {view.source}"
            lines.append(f"T{self.sizes.buffers[n].name} is a view of {shown}")
        return "\n".join(lines)

    def _summary(self) -> str:
        plan = self.sizes.plan
        others = [name for name, kind in (("op of torch", TorchStep),) for step in plan.steps if isinstance(step, kind)]
        parts = [_count(len(self.kernels), "kernel"), *([_count(len(others), "op of torch", "ops of torch")] if others else [])]
        return f"{', '.join(parts)}; {_size(sum(self._bytes(t) for t in plan.edges))} in edges"

    def _bytes(self, value: Val) -> int:
        name = f"T{value.name}"
        index = self.sizes.places.get(name)
        if index is not None and index in self.sizes.bound.tensors:
            return self.sizes.bound.tensors[index].span_elems * value.dtype().bits // 8  # type: ignore[attr-defined]
        for tensor, layout in zip(self.sizes.buffers, self.sizes.layouts):
            if tensor.name == value.name:
                return layout.storage_bytes
        return 0

    def _shown(self, value: Val) -> str:
        return _size(self._bytes(value))


def _ops(exprs: list[Expr]) -> str:
    names = list(dict.fromkeys(e.op_name for e in exprs))
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")


def _count(number: int, one: str, several: str = "") -> str:
    return f"{number} {one if number == 1 else several or one + 's'}"


def _size(count: int) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} B"


__all__ = ["Cut"]
