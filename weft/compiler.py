"""Compiles a fusion for given sizes to one kernel: chooses the scheduler and its parameters, and generates the text.

Owns the order of the stages; each stage is in its own package. Nothing here needs a GPU or torch.
Read first: `propose`, `compile_program`.
"""

from __future__ import annotations

import functools
import logging
import time
import weakref
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import forking
from .analysis.extents import SizeEquality, canonicalize_extents
from .analysis.live_values import Pressure, pressure_of
from .arch import MOST_SPILL_BYTES, Arch
from .codegen.cuda import generate
from .dtypes import DataType
from .dump import Dump
from .errors import Unsupported, WeftError, place_text
from .expr import Number, Sym
from .graph.concretize import settle_as_iteration
from .graph.group_folds import fold_groups
from .ir.enums import SchedulerType
from .ir.fusion import Fusion
from .ir.graph_ops import CatOp, JoinedOp, ReshapeOp, RollOp, ScanOp, ScatterOp, ScatterStoreOp, TorchOp, WrittenOp
from .ir.structure import known_key
from .ir.values import Expr, ReductionOp, WelfordOp
from .lower.kernel_text import body_text
from .lower.pipeline import lower
from .lower.program import KernelProgram
from .schedule.bulk_copies import settle_bulk_copies
from .schedule.cancelled_factors import cancel_factors
from .schedule.logs_of_shares import subtract_logs
from .schedule.one_pass_moments import deviations, fold_moments
from .schedule.online_softmax import exp_sums, fold_online
from .schedule.row_inverses import multiply_by_inverses
from .schedule.scan_states import translate_scans
from .schedule.welford import fold_scheduled_welford, translate_welford
from .schedulers import SCHEDULERS
from .schedulers.base import Decline, ScheduleResult, Scheduler
from .schedulers.cost.parts import missing_registers
from .schedulers.limits import TARGET_WARPS


class NoScheduler(Unsupported):
    code = "W400"
    what = "Can not find a scheduler to schedule fusion segment; each declined:\n{reasons}{lines}"
    fix = "cut the definition at the ops that the reasons name, with ops.segment_set(x) or as two definitions, or compute such an op with torch"

    def __init__(self, reasons: dict[str, str], exprs: Sequence[Expr] = ()) -> None:
        """exprs: what was to be scheduled; the lines where the user wrote it are named."""
        self.reasons = reasons
        written = dict.fromkeys((e.op_name, e.line) for e in exprs if e.line is not None)
        lines = [f"\n    {op} is at {place_text(line)}" for op, line in written if line is not None]
        shown = {name: reason for name, reason in reasons.items() if name not in NEVER_APPLY} or reasons
        more = ["\n    ..."] if len(lines) > MOST_LINES else []
        super().__init__(reasons="\n".join(f"    {name}: {reason}" for name, reason in shown.items()), lines="".join(lines[:MOST_LINES] + more))


MOST_LINES = 8
"""Lines of the user that an error names."""

NEVER_APPLY = frozenset({"expr_eval", "no_op", "matmul"})
"""Schedulers that never accept a definition of arithmetic; reports omit their reasons."""


WITHOUT_KERNEL: tuple[type, ...] = (ScanOp, ScatterOp, TorchOp, ReshapeOp, CatOp, JoinedOp, WrittenOp, RollOp)
"""Expressions that no kernel computes, or only a separate one (ScanOp): they are rewritten before, or are separate steps."""


class ScheduleFailed(Exception):
    """A scheduler accepted a fusion but could not make its kernel: a defect of weft, which another partition or scheduler may avoid. error: the error that it
    raised."""

    def __init__(self, fusion: Fusion, scheduler: SchedulerType, error: WeftError) -> None:
        self.fusion, self.scheduler, self.error = fusion, scheduler, error
        super().__init__(f"{scheduler.name}: {error}")


class Rejected(Exception):
    """The kernel of a proposal cannot be used: the compiler spilled too much, or its blocks do not all run at once. error: the reason."""

    def __init__(self, fusion: Fusion, proposal: "Proposal", error: WeftError) -> None:
        self.fusion, self.proposal, self.error = fusion, proposal, error
        super().__init__(f"{proposal.scheduler.name}: {error}")


@dataclass
class Failures:
    """Failures with fusions of one structure.

    declines: schedulers that failed on them, with the reason. rejected: params whose kernels cannot be used. missing_registers: how many a thread lacked that
    spilled too much with all params of a scheduler.
    """

    declines: dict[SchedulerType, str] = field(default_factory=dict)
    rejected: dict[SchedulerType, dict[Any, WeftError]] = field(default_factory=dict)
    missing_registers: float = 0.0


FAILURES: dict[tuple[Hashable, ...], Failures] = {}
"""By structural key, because each new partition of a definition creates its parts again."""


@dataclass(eq=False)
class Prepared:
    """A fusion made ready for analysis: a clone with canonical extents and no Welford ops, and each scheduler's analysis of it.

    equalities: sizes that the host must find equal. declines: schedulers that never take this fusion, with the reason. rejected: params whose kernels cannot be
    used, with the reason. in_one_pass: reductions were combined. missing_registers: see `Failures`.
    """

    fusion: Fusion
    equalities: list[SizeEquality]
    in_one_pass: bool = False
    analyses: dict[SchedulerType, Any] = field(default_factory=dict)
    declines: dict[SchedulerType, str] = field(default_factory=dict)
    rejected: dict[SchedulerType, dict[Any, WeftError]] = field(default_factory=dict)
    missing_registers: float = 0.0

    @functools.cached_property
    def pressure(self) -> Pressure:
        """What its values take of a thread's registers."""
        return pressure_of(self.fusion.tensor_exprs())

    def learn(self, failures: Failures) -> None:
        """Exclude what failed on fusions like this one."""
        for name, reason in failures.declines.items():
            self.analyses.pop(name, None)
            self.declines[name] = reason
        self.rejected, self.missing_registers = failures.rejected, failures.missing_registers

    def analysis(self, scheduler: Scheduler) -> Any | None:
        """Return the scheduler's analysis, or None if it declines (the reason is in `declines`)."""
        name = scheduler.name
        if name not in self.analyses and name not in self.declines:
            foreign = next((e for e in self.fusion.tensor_exprs() if isinstance(e, WITHOUT_KERNEL)), None)
            foreign = None if scheduler.takes_scans and isinstance(foreign, ScanOp) else foreign
            if not scheduler.takes_scatters:
                foreign = foreign or next((e for e in self.fusion.tensor_exprs() if isinstance(e, ScatterStoreOp)), None)
            found = scheduler.analyze(self.fusion) if foreign is None else Decline(f"no kernel computes {foreign.op_name}")
            if isinstance(found, Decline):
                self.declines[name] = found.reason
            else:
                self.analyses[name] = found
        return self.analyses.get(name)


@dataclass(frozen=True)
class Proposal:
    """A scheduler and its parameters for one set of sizes. `trace`: the candidates; `declined`: the schedulers asked before, with reasons.

    way: which of the scheduler's ways these params belong to, if it has several. is_last: no other params are left, so a kernel that was refused only because
    others are probably faster is accepted.
    """

    scheduler: SchedulerType
    params: Any
    trace: str = field(default="", compare=False)
    declined: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    way: str = field(default="", compare=False)
    is_last: bool = False


MOST_PREPARED_EXPRS = 50_000
"""Expressions of all fusions whose prepared forms a process keeps: some hundred MB. Those that were asked for least recently are made again when they are asked
for, such as at other sizes."""
ROOM = 0.75
"""The part of a thread's registers that values may hold at once in a kernel that is made because one for more spilled: the rest is for addresses and
conditions, and for values that the compiler keeps instead of computing them again."""
MOST_SLOW = 3
"""The most kernels that are refused only because others are probably faster, because each costs a compilation; then the first of them is taken."""
LOGGER = logging.getLogger("weft")
_BY_NAME: dict[SchedulerType, Scheduler] = {s.name: s for s in SCHEDULERS}


class _Recent:
    """The fusions that were prepared, by identity, the least recently used first; it keeps none of them alive."""

    def __init__(self) -> None:
        self._kept: OrderedDict[int, tuple[weakref.ref[Fusion], int]] = OrderedDict()
        self._exprs = 0
        self._lock = forking.lock()

    def used(self, fusion: Fusion) -> None:
        """Note that a prepared form is used now."""
        with self._lock:
            if id(fusion) in self._kept:
                self._kept.move_to_end(id(fusion))

    def add(self, fusion: Fusion) -> None:
        """Add a fusion; drop the prepared forms of others beyond `MOST_PREPARED_EXPRS`."""
        with self._lock:
            count = len(fusion.tensor_exprs())
            self._exprs += count - self._kept.pop(id(fusion), (None, 0))[1]
            self._kept[id(fusion)] = weakref.ref(fusion), count
            while self._exprs > MOST_PREPARED_EXPRS and len(self._kept) > 1:
                _, (old, of_old) = self._kept.popitem(last=False)
                self._exprs -= of_old
                if (dropped := old()) is not None:
                    dropped.findings.pop("prepared", None)


_recent = _Recent()


def prepare(fusion: Fusion) -> Prepared:
    """Return the prepared form of a fusion (made once, unless it was dropped meanwhile: `MOST_PREPARED_EXPRS`)."""
    _, found = fusion.findings.get("prepared", (None, None))
    if isinstance(found, Prepared):
        _recent.used(fusion)
        return found
    clone, _ = fusion.clone()
    _rewrite(clone)
    found = _in_one_pass(clone) or Prepared(clone, canonicalize_extents(clone))
    fusion.findings["prepared"] = None, found
    _recent.add(fusion)
    if FAILURES:  # the same part of a definition, extracted again
        found.learn(FAILURES.get(known_key(fusion), Failures()))
    return found


def prepare_in_place(fusion: Fusion) -> Prepared:
    """Return the prepared form of a fusion, and change the fusion like its clone, so that the analyses are valid for this fusion, too."""
    prepared = prepare(fusion)
    _rewrite(fusion)
    if prepared.in_one_pass:
        fold_online(fusion)
        fold_moments(fusion)
    canonicalize_extents(fusion)
    return prepared


def _rewrite(fusion: Fusion) -> None:
    settle_as_iteration(fusion)
    translate_welford(fusion)
    translate_scans(fusion)
    cancel_factors(fusion)
    subtract_logs(fusion)
    multiply_by_inverses(fusion)
    fold_groups(fusion)


def _in_one_pass(fusion: Fusion) -> Prepared | None:
    """Return a prepared form with combined reductions (online sums of exponentials; a mean and squared deviations) if all of them then need one pass over the
    data, else None. If the exponentials are also outputs, rows are kept, and two reductions of kept rows cost less than one with more work per element; the
    same holds for exponentials of columns, of which each thread has several.
    """
    sums = exp_sums(fusion)
    if not sums and not deviations(fusion):
        return None
    clone, _ = fusion.clone()
    fold_online(clone)
    fold_moments(clone)
    prepared = Prepared(clone, canonicalize_extents(clone), in_one_pass=True)
    analysis = prepared.analysis(_BY_NAME[SchedulerType.reduction])
    return prepared if analysis is not None and (analysis.shape.is_inner or not sums) else None


def propose(
    fusion: Fusion, sizes: Mapping[Sym, Number], alignment_bits: Mapping[str, int], arch: Arch, only: SchedulerType | None = None, way: str = "auto"
) -> Proposal:  # fmt: skip
    """Return the first scheduler that accepts the fusion at these sizes, with its parameters. way: the requested way, for a scheduler with several (the setting
    `rows`); if it is impossible, the scheduler's own choice is used.
    sizes: values of the fusion's size and stride variables. alignment_bits: "T3" -> alignment of the tensor's first element in bits.
    Errors: NoScheduler with every scheduler's reason; ScheduleFailed if all params of a scheduler for these sizes were rejected.
    """
    prepared = prepare(fusion)
    alignments = {int(name[1:]): bits for name, bits in alignment_bits.items()}
    reasons: dict[str, str] = {}
    for scheduler in SCHEDULERS:
        if only is not None and scheduler.name is not only:
            continue
        analysis = prepared.analysis(scheduler)
        if analysis is None:
            reasons[scheduler.name.name] = prepared.declines[scheduler.name]
            continue
        declined = scheduler.accept(analysis, sizes, alignments, arch)  # type: ignore[arg-type]
        if declined is not None:
            reasons[scheduler.name.name] = declined.reason
            continue
        params, trace = scheduler.choose_way(analysis, sizes, alignments, arch, way)  # type: ignore[arg-type]
        rejected, is_last, tried = prepared.rejected.get(scheduler.name, {}), False, [params]
        while params in rejected and not is_last:
            slow = [p for p in tried if rejected[p].is_usable]
            other = None
            if len(slow) < MOST_SLOW:
                spilled = {p: rejected[p].spilled_bytes for p in tried}
                other = scheduler.choose_other(analysis, sizes, alignments, arch, spilled)  # type: ignore[arg-type]
            if other is None and not slow:
                raise ScheduleFailed(fusion, scheduler.name, rejected[params])
            params, trace = other or (slow[0], f"what else there is was refused, too: {slow[0]}")
            is_last = other is None
            tried.append(params)
        proposal = Proposal(scheduler.name, params, trace, tuple(reasons.items()), is_last=is_last)
        Dump.scheduler(proposal)
        return proposal
    raise NoScheduler(reasons, fusion.tensor_exprs())


def candidates(fusion: Fusion, sizes: Mapping[Sym, Number], alignment_bits: Mapping[str, int], arch: Arch) -> list[Proposal]:
    """Return what all schedulers that take the fusion at these sizes propose, their choices and others: the choice of `propose` first, each way best first."""
    prepared = prepare(fusion)
    alignments = {int(name[1:]): bits for name, bits in alignment_bits.items()}
    out: list[Proposal] = []
    for scheduler in SCHEDULERS:
        analysis = prepared.analysis(scheduler)
        if analysis is None or scheduler.accept(analysis, sizes, alignments, arch) is not None:  # type: ignore[arg-type]
            continue
        rejected = prepared.rejected.get(scheduler.name, {})
        found = scheduler.candidates(analysis, sizes, alignments, arch)  # type: ignore[arg-type]
        out += [Proposal(scheduler.name, params, way=way) for way, params in found if params not in rejected]
    return out


class Reasons(dict[str, str]):
    """Why each scheduler declines a fusion. most: what kernels may have into which it is to be divided, if it is declined because one kernel spills; spills:
    how much that is, in words."""

    def __init__(self, most: Pressure | None, spills: str) -> None:
        super().__init__()
        self.most, self.spills = most, spills


def declines(fusion: Fusion, sizes: Mapping[Sym, Number], arch: Arch) -> Reasons | None:
    """Return None when a scheduler takes the fusion at these sizes, else the reason of each. All tensors count as fully aligned."""
    prepared = prepare(fusion)
    surely = _spills_surely(prepared, arch)
    reasons = Reasons(*_divided_for(prepared, arch, surely=surely))
    if surely:
        reasons["registers"] = reasons.spills
        return reasons
    for scheduler in SCHEDULERS:
        analysis = prepared.analysis(scheduler)
        declined = None if analysis is None else scheduler.accept(analysis, sizes, {}, arch)  # type: ignore[arg-type]
        if analysis is not None and declined is None:
            return None
        reasons[scheduler.name.name] = prepared.declines[scheduler.name] if declined is None else declined.reason
    return reasons


def registers_of_a_thread(arch: Arch) -> int:
    """Return how many registers a thread of a small block can have."""
    return arch.max_registers_per_thread


def _divided_for(prepared: Prepared, arch: Arch, *, surely: bool) -> tuple[Pressure | None, str]:
    """Return (what kernels may have into which a fusion is to be divided, why) if one kernel spilled or `surely` would; (None, "") if not."""
    registers = registers_of_a_thread(arch)
    if prepared.missing_registers:
        most = prepared.pressure.times(ROOM * registers / (registers + prepared.missing_registers))
        return most, f"a thread lacked about {prepared.missing_registers:.0f} registers"
    if surely:
        return Pressure(int(ROOM * registers), 1), f"{prepared.pressure.live} registers would hold values at once, and a thread has {registers}"
    return None, ""


def _spills_surely(prepared: Prepared, arch: Arch) -> bool:
    """Tell whether a pointwise kernel has so many values alive at once that it spills too much with one element per thread."""
    most = registers_of_a_thread(arch) + missing_registers(MOST_SPILL_BYTES)
    folds = (ReductionOp, WelfordOp, ScanOp)
    return not any(isinstance(e, folds) for e in prepared.fusion.tensor_exprs()) and prepared.pressure.live > most


def is_taken_at_some_sizes(fusion: Fusion) -> bool:
    """Tell whether a scheduler declines a fusion for its sizes alone, if it does."""
    prepared = prepare(fusion)
    return any(prepared.analysis(scheduler) is not None for scheduler in SCHEDULERS)


def reject(found: Rejected) -> None:
    """Let the scheduler choose other params for fusions like this from now on.

    Two calls at once, or two equal parts of a definition, may reject the same params: the second changes nothing, except that params which were taken because
    nothing else is left, and turn out to be unusable, are rejected for that.
    """
    failures = FAILURES.setdefault(known_key(found.fusion), Failures())
    rejected = failures.rejected.setdefault(found.proposal.scheduler, {})
    known = rejected.get(found.proposal.params)
    if known is None or found.proposal.is_last and known.is_usable:
        rejected[found.proposal.params] = found.error
        LOGGER.info("%s: %s; other params are chosen", found.proposal.scheduler.name, found.error)
    prepare(found.fusion).learn(failures)


def give_up(failed: ScheduleFailed) -> None:
    """Let the scheduler that failed decline fusions like this from now on, and warn unless all of its kernels spill."""
    failures = FAILURES.setdefault(known_key(failed.fusion), Failures())
    failures.declines[failed.scheduler] = f"it failed on this fusion ({failed.error.code})"
    failures.missing_registers = max(failures.missing_registers, missing_registers(failed.error.spilled_bytes))
    prepare(failed.fusion).learn(failures)
    if failed.error.spilled_bytes:
        LOGGER.info("%s: %s; what it computes is divided into several kernels", failed.scheduler.name, failed.error)
        return
    LOGGER.warning("%s took a fusion and failed; others compute it. This is a defect of weft, please report it: %s", failed.scheduler.name, failed.error)


def schedule_clone(fusion: Fusion, proposal: Proposal) -> tuple[Fusion, ScheduleResult]:
    """Return a scheduled clone of the prepared fusion, and what the schedule fixes at launch."""
    prepared = prepare(fusion)
    scheduler = _BY_NAME[proposal.scheduler]
    clone, _ = prepared.fusion.clone()
    return clone, scheduler.apply(clone, prepared.analysis(scheduler), proposal.params)


def compile_program(fusion: Fusion, proposal: Proposal, index_type: DataType, *, name: str, overlaps: bool = False) -> KernelProgram:
    """Return the program of the kernel that `proposal` describes, with the time of each stage in seconds. overlaps: see `lower`."""
    start = time.perf_counter()
    scheduled, result = schedule_clone(fusion, proposal)
    Dump.fusion(name, lambda: f"== {name}: what it computes\n{fusion}== {name}: scheduled\n{scheduled}")
    program = _finish(scheduled, result, index_type, name, time.perf_counter() - start, overlaps)
    program.most_spill_bytes = None if proposal.is_last else result.most_spill_bytes
    program.fewest_warps, program.most_threads = TARGET_WARPS, result.most_threads
    return program


def program_of_scheduled(fusion: Fusion, index_type: DataType, *, name: str, result: ScheduleResult | None = None, overlaps: bool = False) -> KernelProgram:
    """Return the program of a fusion scheduled by hand, which is not changed. overlaps: see `lower`."""
    clone, copies = fusion.clone()
    fold_scheduled_welford(clone)
    settle_as_iteration(clone)
    canonicalize_extents(clone)
    settle_bulk_copies(clone)
    fixed = result or fusion.scheduled or ScheduleResult()
    return _finish(clone, fixed.in_copy(copies), index_type, name, 0.0, overlaps)


def _finish(scheduled: Fusion, result: ScheduleResult, index_type: DataType, name: str, schedule_s: float, overlaps: bool) -> KernelProgram:
    start = time.perf_counter()
    dump = Dump.passes(name)
    kernel = lower(
        scheduled, name=name, index_type=index_type, static_block=dict(result.static_block), cluster_blocks=result.cluster_blocks,
        peel=result.peel, staying=result.staying, overlaps=overlaps, keeps_places=result.keeps_places, sizes=result.sizes, dump=dump,
    )  # fmt: skip
    Dump.kernel_ir(name, lambda: f"== {name}\n{body_text(kernel.body)}")
    program = generate(scheduled, kernel, result.max_registers, result.access_bits)
    program.seconds = {"schedule": schedule_s, "lowering": time.perf_counter() - start}
    program.scheduled_text = str(scheduled) if dump else ""
    Dump.text(name, program.text)
    return program
