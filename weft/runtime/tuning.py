"""Tuning: times the best candidates of every way to compute a kernel on its device, with the arguments of the call, and keeps the fastest.

Owns which candidates are timed, how often, and when it stops. A call that is tuned runs once for each timing, with one of its launches repeated: the kernel
sees what earlier steps of the call computed. Inputs that the call writes are copies then, and torch's random generator is put back. What was found is kept
by `weft.runtime.tuned`. Read first: `tune`, `Session`.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import torch

from .. import compiler, forking
from ..errors import WeftError
from ..lower.program import Need
from ..options import Options, is_disabled
from . import philox_state, profile, stopwatch, tuned
from .call_writer import CallerFacts, prepare_call
from .engines import Engine
from .limits import check_alignment, check_limits, check_residency, launch_sizes
from .runtimes import Kernels, Runtime, Sizes, alignments_bits, index_type_for, input_name, request_for
from .steps import KernelUse
from .timing import Timings
from .tuned import Found
from .warm_path import write_run

OF_A_WAY, AT_MOST = 4, 20
"""Most candidates that are timed, per way and in total."""
FIRST_COUNT, LAST_COUNT = 5, 25
"""Launches for a median: in the first round, and in the second."""
GO_ON = 3
"""Candidates in the second round, besides the default choice."""
MOST_COMPILERS = 16
LEAST_GAIN = 1.01
"""A candidate replaces the default choice if it is this many times faster: medians of one kernel differ by half of that from run to run."""

LOGGER = logging.getLogger("weft")
Measure = Callable[[Callable[[], None], "int | None", int], float]
"""measure(launch, device, count) -> the median time of `count` launches in microseconds."""


@dataclass
class Session:
    """How calls are tuned. limit_s: seconds, counted from the first call that tunes. again: also time kernels with known results. tell: gets lines of progress.
    measure, clock: functions that time launches and return the time. results: the results, in order; done: their keys.
    """

    limit_s: float
    again: bool = False
    tell: Callable[[str], None] = LOGGER.info
    measure: Measure = stopwatch.median_us
    clock: Callable[[], float] = time.monotonic
    results: list[Found] = field(default_factory=list)
    done: set[tuned.Place] = field(default_factory=set)
    _deadline: float | None = None

    @property
    def is_over(self) -> bool:
        """True when the time is used up."""
        if self._deadline is None:
            self._deadline = self.clock() + self.limit_s
        return self.clock() >= self._deadline


_sessions: list[Session] = []
_lock = forking.recursive_lock()


@contextlib.contextmanager
def session(chosen: Session) -> Iterator[Session]:
    """Tune all calls within the block, in all threads, with `chosen`; outside of such a block each call that tunes has its own session."""
    _sessions.append(chosen)
    try:
        yield chosen
    finally:
        _sessions.remove(chosen)


class TunedCaller(CallerFacts, Protocol):
    """The part of a caller that tuning needs, besides what the writer of calls needs. _kinds: of its inputs; _pointers: the addresses that its functions
    take."""

    _kinds: list[str]

    def _pointers(self, values: Sequence[Any]) -> list[int]: ...

    def runtime(self, use: KernelUse, sizes: Sizes, engine: Engine, options: Options, disable: frozenset[str], timings: Timings) -> Runtime: ...


@dataclass(frozen=True)
class Asked:
    """A planned call: what follows from its values, its kernels so far, and its flat values."""

    sizes: Sizes
    engine: Engine
    options: Options
    disable: frozenset[str]
    kernels: Sequence[Runtime]
    values: Sequence[Any]


def tune(caller: TunedCaller, asked: Asked, timings: Timings) -> list[Runtime]:
    """Return the kernels of a call, the fastest that were found by timing. While a CUDA graph is captured or launches are profiled nothing is timed."""
    kernels = list(asked.kernels)
    if asked.options.rows != "auto" or profile.active or asked.engine.device is not None and philox_state.is_capturing():
        return kernels
    with _lock:
        chosen = _sessions[-1] if _sessions else Session(asked.options.tune_limit_s)
        for number, use in enumerate(asked.sizes.kernels):
            place = tuned.place_of(use, alignments_bits(caller.shared, use, asked.sizes), asked.engine, asked.options)
            is_new = tuned.known(place, asked.options) is None or chosen.again and place not in chosen.done
            if kernels[number].proposal is None or not is_new or chosen.is_over:
                continue
            found = _Tuner(caller, replace(asked, kernels=tuple(kernels)), number, chosen).found()
            if found is not None:
                chosen.results.append(found)
                chosen.done.add(place)
                tuned.keep(place, found, asked.options)
                kernels[number] = caller.runtime(use, asked.sizes, asked.engine, asked.options, asked.disable, timings)
    return kernels


@dataclass(eq=False)
class _Timed:
    """A candidate with its kernel. us: its time in the last round."""

    proposal: compiler.Proposal
    runtime: Runtime
    us: float = float("inf")


class _Tuner:
    """One kernel of a call: the launch `number`."""

    def __init__(self, caller: TunedCaller, asked: Asked, number: int, chosen: Session) -> None:
        self.caller, self.asked, self.number, self.session = caller, asked, number, chosen
        self.use, self.runtime = asked.sizes.kernels[number], asked.kernels[number]
        self.kernels = Kernels()  # losing kernels are dropped with this table
        self.values = copies_of_written(caller, asked.values)

    def found(self) -> Found | None:
        """Time the candidates in two rounds. None if the time limit is reached before there is anything to compare."""
        proposals = self.proposals()
        title = f"{self.runtime.program.name} {self.shape()}"
        if len(proposals) < 2:
            return None
        chosen = _Timed(proposals[0], self.runtime)
        timed = [chosen]
        try:
            chosen.us = self.time(chosen, FIRST_COUNT)
            for made in self.built(proposals[1:]):
                try:
                    made.us = self.time(made, FIRST_COUNT)
                except WeftError as error:
                    LOGGER.info("a candidate of %s is left out: %s", self.runtime.program.name, error)
                else:
                    timed.append(made)
            last = sorted((t for t in timed if t is not chosen), key=lambda t: t.us)[:GO_ON]
            for one in (chosen, *last):
                one.us = self.time(one, LAST_COUNT)
        except torch.OutOfMemoryError as error:
            LOGGER.warning("not tuned: %s: %s", title, str(error).splitlines()[0])
            return None
        best = min(last, key=lambda t: t.us, default=chosen)
        best = best if best.us * LEAST_GAIN < chosen.us else chosen
        proposal = best.proposal
        found = Found(
            proposal.scheduler.name, proposal.way, repr(proposal.params), round(chosen.us, 3), round(best.us, 3), len(timed), len(proposals), title
        )  # fmt: skip
        kept = "the choice stays" if best is chosen else f"{found.gain:.2f} times faster: {proposal.scheduler.name} {proposal.way}"
        self.session.tell(f"{title}: {len(timed)} of {len(proposals)} candidates, {chosen.us:.1f} us -> {best.us:.1f} us, {kept}")
        return found

    def shape(self) -> str:
        """Describe the sizes of the tensors that the kernel reads and writes."""
        sizes = [list(self.asked.sizes.bound.tensors[n].sizes) for n in self.asked.sizes.inputs_of(self.use) if n in self.asked.sizes.bound.tensors]
        return " ".join("x".join(map(str, one)) or "1" for one in sizes)

    def proposals(self) -> list[compiler.Proposal]:
        """Return the candidates: the present choice, then the best of each way in turn."""
        asked = self.asked
        found = compiler.candidates(self.use.part.fusion, self.use.env, alignments_bits(self.caller.shared, self.use, asked.sizes), asked.engine.arch)
        ways: dict[tuple[Any, str], list[compiler.Proposal]] = {}
        present = self.runtime.proposal
        for proposal in found:
            if proposal != present:
                ways.setdefault((proposal.scheduler, proposal.way), []).append(proposal)
        turns = [way[turn] for turn in range(OF_A_WAY) for way in ways.values() if turn < len(way)]
        own = next((p for p in found if p == present), present)
        return [own, *turns[: AT_MOST - 1]]  # type: ignore[list-item]

    def built(self, proposals: Sequence[compiler.Proposal]) -> Iterator[_Timed]:
        """Yield candidates with their kernels, until the time limit. The next ones are compiled meanwhile, because NVRTC releases the interpreter's lock."""
        with ThreadPoolExecutor(max_workers=min(MOST_COMPILERS, os.cpu_count() or 1)) as pool:
            waiting = [pool.submit(contextvars.copy_context().run, self.build, proposal) for proposal in proposals]
            for future in waiting:
                if self.session.is_over:
                    break
                made = future.result()
                if made is not None:
                    yield made
            for future in waiting:
                future.cancel()

    def build(self, proposal: compiler.Proposal) -> _Timed | None:
        """Return a candidate with its kernel; None if it cannot be compiled or launched, or spills."""
        asked = self.asked
        request = request_for(
            proposal, self.use.part, index_type_for(self.use, asked.sizes), asked.engine, asked.options, fmad=not is_disabled("fma", asked.disable),
            overlaps=Need.dependent_launch in self.runtime.program.needs,
        )  # fmt: skip
        try:
            program = self.kernels.program(request)
            launch = launch_sizes(program, self.use.env)
            check_limits(program, self.use.env, launch, asked.engine.arch)
            check_residency(program, launch, asked.engine.arch)
            places = [asked.sizes.places.get(input_name(v)) for v in self.use.inputs]
            check_alignment(program, self.use.part.fusion.inputs(), places, self.caller.shown, asked.sizes.bound.tensors)
            runtime = self.kernels.runtime(request, program, Timings())
            if program.cooperative:
                runtime.built.check_residency(launch, program)
        except (WeftError, compiler.ScheduleFailed) as error:
            LOGGER.info("a candidate of %s is left out: %s", self.runtime.program.name, error)
            return None
        except Exception as error:  # noqa: BLE001  (a defect in what nobody chose must not fail the call; it is told)
            LOGGER.warning("a candidate of %s is left out by a defect of weft, please report it: %r: %s", self.runtime.program.name, error, proposal.params)
            return None
        resources = runtime.built.report.resources
        return None if resources is not None and resources.has_spills else _Timed(proposal, runtime)

    def time(self, one: _Timed, count: int) -> float:
        """Run the call once, with the launch of this kernel repeated; return the time of one of them in microseconds."""
        asked = self.asked
        kernels = [one.runtime if n == self.number else kernel for n, kernel in enumerate(asked.kernels)]
        prepared = prepare_call(self.caller, asked.sizes, kernels, asked.engine, self.caller._kinds)
        parts = prepared.run.parts  # type: ignore[attr-defined]
        name = f"launch{self.number}"
        repeated = _Repeated(parts.constants[name], asked.engine.device, count, self.session.measure)
        run = write_run(replace(parts, constants={**parts.constants, name: repeated}))
        with philox_state.kept(asked.engine.device):
            run(*self.values, *self.caller._pointers(self.values))
        return repeated.us


class _Repeated:
    """A launch that is repeated and timed in its place within a call."""

    def __init__(self, launch: Callable[..., Any], device: int | None, count: int, measure: Measure) -> None:
        self.launch, self.device, self.count, self.measure = launch, device, count, measure
        self.us = float("inf")

    def __call__(self, *arguments: Any) -> None:
        self.us = self.measure(partial(self.launch, *arguments), self.device, self.count)


def copies_of_written(caller: TunedCaller, values: Sequence[Any]) -> list[Any]:
    """Return the values of a call, with copies of those that it writes."""
    outputs = caller.shared.outputs
    written = {*(index for index in outputs.alias if index is not None), *(to for to, _ in outputs.copies)}
    return [_copy(value) if n in written and isinstance(value, torch.Tensor) else value for n, value in enumerate(values)]


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy with the same sizes, strides and alignment or a better one."""
    source = tensor.detach()
    return torch.empty_strided(source.size(), source.stride(), dtype=source.dtype, device=source.device).copy_(source)


__all__ = ["Asked", "Found", "Session", "copies_of_written", "session", "tune"]
