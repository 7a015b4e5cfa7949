"""FusionExecutorCache: one definition, all shapes.

Owns the executor of a definition: it runs calls, and says which kernels exist, with their text and timings. How a call is
prepared is in `weft.runtime.calls`, how kernels are found and shared in `weft.runtime.runtimes`.
Read first: `FusionExecutorCache`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import compiler
from ..analysis.scheduled_text import scheduled_text
from ..device.library import translation_unit
from ..errors import UserError, shown
from ..ir.fusion import Fusion
from ..options import Options, current, is_disabled
from . import runtimes
from .argument_kinds import WrongKind
from .arguments import flattened
from .calls import Caller
from .kernel_executor import caller_as_scheduled
from .engines import Engine
from .profile import report
from .runtimes import Request, Runtime, Sizes
from .steps import KernelUse
from .timing import Timings
from .warm_path import Warm


class NotCompiled(UserError):
    code = "W797"
    what = "there is no kernel for these inputs yet"
    fix = "execute the fusion with such inputs first"


class _AutomaticCaller(Caller):
    """Calls whose kernels the schedulers choose."""

    def __init__(self, fusion: Fusion) -> None:
        super().__init__(runtimes.shared_definition(fusion), fusion.inputs(), runtimes.SHARED)

    def request(self, use: KernelUse, sizes: Sizes, engine: Engine, options: Options, disable: frozenset[str] = frozenset()) -> Request:
        return runtimes.propose(self.shared, use, sizes, engine, options, fmad=not is_disabled("fma", disable), is_tuned=self.is_tuned or options.tune)


class FusionExecutorCache:
    """Runs a fusion, which it owns, at any sizes. Kernels are compiled on first use and shared with all definitions of equal structure.

    auto_schedule False: the fusion runs as one kernel, as it was scheduled by hand.
    execute(inputs, *, device=None, _enable_options=(), _disable_options=(), check=None, seed=None, tune=None) returns the outputs; check, seed and tune
    are the settings of these names, for one call; after a call with tune=True, later calls of this object use its results, too. `execute` is an attribute of
    each object: a function generated for the fusion's inputs (see `weft.runtime.warm_path`).
    kernel_runtimes: the kernels that calls of this object have used so far. timings: the stages of the
    last call that was not warm.
    """

    execute: Callable[..., list[torch.Tensor]]

    def __init__(self, fusion: Fusion, fusion_id: int = 0, auto_schedule: bool = True) -> None:
        if not isinstance(fusion, Fusion):
            raise WrongKind(function="FusionExecutorCache", argument="fusion", value=shown(fusion), wanted="Fusion, such as fd.fusion")
        self._fusion, self.fusion_id, self._auto_schedule = fusion, fusion_id, bool(auto_schedule)
        self._made: Caller | None = None
        self.execute = self._first

    def _first(
        self, inputs: Sequence[Any], *, device: Any = None, _enable_options: Sequence[str] = (), _disable_options: Sequence[str] = (), check: Any = None,
        seed: int | None = None, tune: bool | None = None,
    ) -> list[torch.Tensor]:  # fmt: skip
        """Used as `execute` until the first call."""
        options = {"_enable_options": _enable_options, "_disable_options": _disable_options}
        return self._caller.execute(inputs, device=device, check=check, seed=seed, tune=tune, **options)

    @property
    def _caller(self) -> Caller:
        if self._made is None:
            self._made = _AutomaticCaller(self._fusion) if self._auto_schedule else caller_as_scheduled(self._fusion)
            self.execute = self._made.execute
        return self._made

    def watch(self, watcher: Callable[..., None]) -> None:
        """Call `watcher(caller, values, device, prepared, engine, options)` for each call that is prepared from now on."""
        self._caller.watcher = watcher

    def prepare(self, inputs: Sequence[Any], device: Any = None) -> None:
        """Compile the kernels for inputs like these, without a launch; a call with such inputs then finds them. Errors: those of a call."""
        self._caller.prepare(flattened(inputs), device)

    def fusion(self) -> Fusion:
        """Return the fusion as it was defined."""
        return self._fusion

    @property
    def kernel_runtimes(self) -> tuple[Runtime, ...]:
        """The kernels that calls of this object have used, in order of first use."""
        return tuple(self._caller.runtimes)

    @property
    def timings(self) -> Timings:
        """The stages of the last call that was not warm."""
        return self._caller.timings

    # -- questions about kernels
    def is_compiled(self, inputs: Sequence[Any], device: Any = 0) -> bool:
        """Tell whether a call with these inputs would find its kernel. Errors: those of inputs that do not fit."""
        return self._find(inputs, device) is not None

    def get_cuda_kernel(self, inputs: Sequence[Any], intrinsic_code: bool = False, device: Any = 0) -> str:
        """Return the CUDA text of the kernel for these inputs; with `intrinsic_code` the device library too.

        If the definition has several kernels, their texts follow one another.
        Errors: NotCompiled.
        """
        programs = [runtime.program for runtime in self._compiled(inputs, device)]
        return "\n".join(translation_unit(p.text, p.blocks) if intrinsic_code else p.text for p in programs)

    def get_scheduled_ir(self, inputs: Sequence[Any], tensor_transforms: bool = False, device: Any = 0) -> str:
        """Return the scheduled fusion for these inputs as text. Errors: NotCompiled."""
        return "\n".join(_scheduled_text(runtime, tensor_transforms) for runtime in self._compiled(inputs, device))

    def get_most_recent_scheduled_ir(self, tensor_transforms: bool = False) -> str:
        """Return the scheduled fusion of the kernel made last. Errors: NotCompiled."""
        if not self._caller.runtimes:
            raise NotCompiled()
        return _scheduled_text(list(self._caller.runtimes)[-1], tensor_transforms)

    def warm(self, values: Sequence[Any]) -> Warm | None:
        """Return the prepared call for values like these under the current settings: see `weft.runtime.warm_path`."""
        return self._caller.warm(values)

    def __str__(self) -> str:
        """Describe the number of kernels, and the steps of the last call that was not warm, with the bytes and the reason of each edge."""
        if self._made is None or self._made.last is None:
            return f"<FusionExecutorCache {self.fusion_id}: nothing was executed>"
        count = len(self.kernel_runtimes)
        return f"<FusionExecutorCache {self.fusion_id}: {count} kernel{'' if count == 1 else 's'} made>\n{self._made.last}"

    def get_output_shardings(self) -> list[Any]:
        """Return nothing: this version runs on one device."""
        return []

    def launch_report(self) -> dict[str, Any]:
        """Return the fields of a FusionProfile from the last call under `weft.runtime.profile.recording`."""
        return report(self.fusion_id, self._caller.launches)

    def _find(self, inputs: Sequence[Any], device: Any) -> list[Runtime] | None:
        """Return the kernels of these inputs, [] if none is needed, or None if some do not exist yet."""
        caller, values = self._caller, flattened(inputs)
        has_tensors = any(isinstance(v, torch.Tensor) for v in values)
        sizes, engine = caller.sizes(values, None if has_tensors or not torch.cuda.is_available() else device, current())
        found = [caller.kernels.known(caller.request(use, sizes, engine, current())) for use in sizes.kernels]
        return [runtime for runtime in found if runtime is not None] if all(runtime in caller.runtimes for runtime in found) else None

    def _compiled(self, inputs: Sequence[Any], device: Any) -> list[Runtime]:
        found = self._find(inputs, device)
        if found is None:
            raise NotCompiled()
        return found


def _scheduled_text(runtime: Runtime, tensor_transforms: bool) -> str:
    if runtime.proposal is None:
        return scheduled_text(runtime.part.fusion, tensor_transforms)
    scheduled, _ = compiler.schedule_clone(runtime.part.fusion, runtime.proposal)
    return scheduled_text(scheduled, tensor_transforms)
