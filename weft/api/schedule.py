"""`fd.sched` and `nvfuser_direct.schedule`: propagation of schedules made by hand, and schedulers by name.

Owns the names and argument forms; transforms are in `weft.schedule`, choices in `weft.schedulers`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..errors import shown
from ..ir.enums import ParallelType, SchedulerType
from ..ir.fusion import Fusion
from ..ir.values import TensorView
from ..ops.arguments import WrongArgument
from .misuse import explained


def _tensors(function: str, tensors: Iterable[Any], fusion: object = None) -> list[TensorView]:
    """Return the tensors as a list. Errors: WrongArgument for what is no tensor of a definition, and for one of another than `fusion`, if that is given."""
    found = list(tensors)
    for tensor in found:
        if not isinstance(tensor, TensorView):
            raise WrongArgument(op=function, problem=f"{shown(tensor)} is not a tensor of a definition", remedy="pass the TensorView that an op returned")
        if fusion is not None and tensor.fusion is not fusion:
            raise WrongArgument(op=function, problem=f"{shown(tensor)} is of another definition than the reference", remedy="pass tensors of one definition")
    return found


@explained
def bounded_transform_backward(from_: TensorView, pos: int, to: Sequence[TensorView], propagate_parallel_type: bool = False) -> None:
    """Replay the transforms of `from_` before position `pos` on its producers up to the tensors `to`."""
    from ..schedule import propagate

    (source,) = _tensors("bounded_transform_backward", [from_])
    propagate.bounded_transform_backward(from_, pos, _tensors("bounded_transform_backward", to, source.fusion), propagate_parallel_type)


@explained
def transform_like(reference_tv: TensorView, selected_tensors: Sequence[TensorView] = ()) -> None:
    """Replay the transforms of `reference_tv` on the selected tensors (all connected ones when none is named)."""
    from ..schedule import propagate

    (reference,) = _tensors("transform_like", [reference_tv])
    selected = _tensors("transform_like", selected_tensors, reference.fusion)
    propagate.transform_like(reference_tv, selected)


@explained
def parallelize_like(
    reference_tv: TensorView, pos: int = -1, selected_tensors: Sequence[TensorView] = (), selected_parallel_types: Iterable[ParallelType] = (),
    propagate_padding: bool = True,
) -> None:  # fmt: skip
    """Bind the axes of the selected tensors as the corresponding axes of `reference_tv` are bound."""
    from ..schedule import propagate

    (reference,) = _tensors("parallelize_like", [reference_tv])
    selected = _tensors("parallelize_like", selected_tensors, reference.fusion)
    propagate.parallelize_like(reference_tv, pos, selected, set(selected_parallel_types), propagate_padding)


@explained
def inline_most(selected_tensors: Sequence[TensorView] = ()) -> None:
    """Share as many loops as possible between the selected tensors (all of them when none is named) and their consumers."""
    from ..schedule import inline

    if isinstance(selected_tensors, TensorView):
        raise WrongArgument(op="inline_most", problem=f"{shown(selected_tensors)} is one tensor", remedy="pass a list: inline_most([tensor])")
    inline.inline_most(_tensors("inline_most", selected_tensors) or _all_tensors())


@explained
def inline_at(reference_tv: TensorView, pos: int = -1, best_effort: bool = False, selected_tensors: Sequence[TensorView] = ()) -> None:
    """Share the loops before position `pos` of `reference_tv`."""
    from ..schedule import inline

    (reference,) = _tensors("inline_at", [reference_tv])
    selected = _tensors("inline_at", selected_tensors, reference.fusion)
    inline.inline_at(reference_tv, pos, best_effort, selected)


def _all_tensors() -> list[TensorView]:
    from .inputs import current_fusion

    return current_fusion("inline_most").tensors()


@explained
def warp_specialize(
    tv: TensorView, number_of_stages: int, prefetch_distance: int, parallel_type: ParallelType, num_registers: tuple[int, int] | None = None,
    async_warp: int = 0, group_position: int | None = None,
) -> None:  # fmt: skip
    """Let warp `async_warp` of those added along `parallel_type` load `tv`, a copy into shared memory by TMA, into a ring of stages.

    num_registers: per thread of the async warps and of the compute warps. group_position: loop axes of `tv` left of it that its readers have bound to
    `parallel_type` are compute groups, each with stages of its own.
    """
    from ..schedule import circular

    circular.warp_specialize(tv, number_of_stages, prefetch_distance, parallel_type, num_registers, async_warp, group_position)


# ---------------------------------------------------------------- schedulers by name
def _check(function: str, fusion: object, scheduler_type: object = SchedulerType.none) -> None:
    """Errors: WrongArgument (a TypeError) for what is no fusion and no scheduler."""
    if not isinstance(fusion, Fusion):
        what = f"fusion must be a Fusion, not {type(fusion).__name__}"
        raise WrongArgument(op=function, problem=what, remedy="pass the fusion of a definition: fd.fusion")
    if not isinstance(scheduler_type, SchedulerType):
        what = f"scheduler_type must be a SchedulerType, not {shown(scheduler_type)}"
        raise WrongArgument(op=function, problem=what, remedy=f"use one of {', '.join(str(kind) for kind in SchedulerType)}")


@explained
def can_schedule(fusion: Fusion, scheduler_type: SchedulerType, inputs: Sequence[Any]) -> tuple[bool, str]:
    """Return (whether that scheduler takes the fusion with such inputs, the reason if not)."""
    from . import automatic

    _check("can_schedule", fusion, scheduler_type)
    return automatic.can_schedule(fusion, scheduler_type, inputs)


@explained
def find_compatible_schedulers(fusion: Fusion, inputs: Sequence[Any]) -> list[SchedulerType]:
    """Return the schedulers that take the fusion with such inputs."""
    _check("find_compatible_schedulers", fusion)
    return [kind for kind in SchedulerType if kind is not SchedulerType.none and can_schedule(fusion, kind, inputs)[0]]


@explained
def compute_heuristics(fusion: Fusion, scheduler_type: SchedulerType, inputs: Sequence[Any]) -> Any:
    """Return the parameters that the scheduler chooses."""
    from . import automatic

    _check("compute_heuristics", fusion, scheduler_type)
    return automatic.compute_heuristics(fusion, scheduler_type, inputs)


@explained
def schedule(fusion: Fusion, scheduler_type: SchedulerType, inputs: Any = None, heuristic_params: Any = None) -> Any:
    """Schedule the fusion in place: with the parameters given, or with those chosen for `inputs`, which are returned."""
    from . import automatic

    _check("schedule", fusion, scheduler_type)
    return automatic.schedule(fusion, scheduler_type, inputs if heuristic_params is None else heuristic_params)


def __dir__() -> list[str]:
    return sorted(name for name, value in globals().items() if getattr(value, "__module__", "") == __name__ and not name.startswith("_"))


def __getattr__(name: str) -> Any:
    """What is no function here. Errors: AttributeError, which names the method of tensors or axes that does it."""
    on_tensors = not name.startswith("_") and callable(getattr(TensorView, name, None))
    home = f"tensor.{name}(...)" if on_tensors else f"tensor.axis(n).{name}(...)" if name == "parallelize" else ""
    raise AttributeError(f"fd.sched has no {name!r}: " + (f"write {home}" if home else f"it has {', '.join(__dir__())}"))
