"""Times candidates of the choice among kernels for rows and columns: many random definitions and sizes, a part of the legal params of each.

    python bench/candidates.py [OUT.json] [--count 200] [--kernels 24] [--seconds 150] [--first 0] [--processes 24]
    python bench/candidates.py OUT.json --compile [...]     no GPU: compiles the same kernels into the disk cache, so that timing them is short
    python bench/candidates.py --softmax [...]              softmax with sums of columns, whose maximum and sum may be one reduction
    python bench/candidates.py --plain [...]                pointwise kernels, plain reductions and transposes
    python bench/candidates.py OUT.json --cases CASES.json  the definitions and params of a file: {"cases": [{"spec": [...], "params": [[...], ...]}, ...]}
    python bench/candidates.py --cpu-smoke

Several processes schedule, lower and compile; one at a time has the GPU, so that nobody disturbs a measurement. A kernel that dies takes its process along:
another one goes on with the next case, and the record says which kernel it was. All kernels of a case run in turn, beside a copy of the same bytes. The fastest
by prediction are timed as well as some near them and some at random, and the present choice always. The record holds definitions as values of `Spec`, so that
facts are made anew from them. Read first: `measure_case`.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fcntl
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import plain_definitions
import torch
from measure import RESULTS, about, device_of, medians_in_turn, moved_bytes, parser
from plain_definitions import PlainSpec
from two_sided_definitions import Spec, benchmark_specs, definition, fill, inputs_of, random_softmax, random_spec, seen_of

from weft import FusionDefinition
from weft.arch import Arch, arch_by_name, arch_of_device
from weft.compiler import Proposal
from weft.device.library import translation_unit
from weft.errors import WeftError
from weft.ir.enums import SchedulerType
from weft.options import current
from weft.runtime import runtimes
from weft.runtime.nvrtc import compile_or_load
from weft.runtime.resources import Resources
from weft.runtime.timing import Timings
from weft.schedulers.cost.model import time_ns
from weft.schedulers.cost.two_sided import work_of
from weft.schedulers.inner_outer_candidates import Candidates
from weft.schedulers.inner_outer_heuristic import choose_inner_outer
from weft.schedulers.inner_outer_params import InnerOuterParams

AnySpec = Spec | PlainSpec
Case = tuple[AnySpec, list[Any] | None]
"""A definition and its sizes, and the params to time; None: they are drawn."""
SAMPLES, LONG_SAMPLES, LONG_US = 25, 12, 300.0
"""Of each kernel; the second where a copy takes longer than the third."""
WRONG = 2e-2
"""Relative L2 distance to what another kernel computes: rounding makes 5e-3 at most."""
SLACK = 1.15
"""Registers that candidates may need over what they have: some of these spill, which the model must know."""
NEAR = 1.25
"""Over the least predicted time: what may well be the fastest."""
STUCK_S = 12.0
"""For one case on the GPU, from which its process is ended."""
FIELDS = tuple(InnerOuterParams.__dataclass_fields__)


# ---------------------------------------------------------------- which kernels
def cases_of(a: argparse.Namespace) -> Iterator[Case]:
    """Return the cases of a file; else the benchmark's, then random ones; of the templates without kept rows random ones."""
    if a.cases:
        return map(case_from_json, json.loads(Path(a.cases).read_text(encoding="utf-8"))["cases"])
    if a.softmax:
        return ((random_softmax(seed), None) for seed in itertools.count(a.first))
    if a.plain:
        return ((plain_definitions.random_spec(seed), None) for seed in itertools.count(a.first))
    return ((spec, None) for spec in itertools.chain(benchmark_specs(), (random_spec(seed) for seed in itertools.count(a.first))))


def case_from_json(found: dict[str, Any]) -> Case:
    """Return a case of a file; without params, they are drawn. Names of templates are first in the specs of those without kept rows."""
    values = found["spec"]
    spec: AnySpec = PlainSpec.from_json(values) if values[0] in plain_definitions.PARAMS else Spec(*values)
    if "params" not in found:
        return spec, None
    made = plain_definitions.PARAMS[spec.template] if isinstance(spec, PlainSpec) else InnerOuterParams
    return spec, list(dict.fromkeys(made(*(tuple(v) if isinstance(v, list) else v for v in one)) for one in found["params"]))


def chosen_candidates(spec: AnySpec, arch: Arch, count: int) -> list[Any]:
    """Return the present choice, a third that is predicted to be fastest, a third at random of those predicted near them, and the rest at random."""
    if isinstance(spec, PlainSpec):
        return plain_definitions.tried(spec, arch, count)
    seen = seen_of(spec)
    choice, _ = choose_inner_outer(seen.facts, arch, seen.is_loadable)
    found, drawn = [choice], random.Random(str(spec))
    has_two_forms = seen.facts.online is not None
    for is_online in (False, True)[: 1 + has_two_forms]:
        candidates = Candidates(seen.facts, arch, seen.is_loadable, SLACK, is_online=is_online)
        if is_online and candidates.vector == 1:
            continue
        made = candidates.table()
        times = time_ns(work_of(made, candidates.facts_of_rows, arch), arch)
        order, third = np.argsort(times, kind="stable"), count // 3 // (1 + has_two_forms)
        near = max(third, int(np.sum(times < NEAR * times[order[:1]])))
        some = [drawn.sample(part, min(len(part), third)) for part in (order[third:near].tolist(), order[near:].tolist())]
        found += [candidates.params(made, place) for place in (*order[:third], *some[0])]
        found += [varied(candidates.params(made, place), drawn) for place in some[1]]
    return list(dict.fromkeys(found))


def varied(params: InnerOuterParams, drawn: random.Random) -> InnerOuterParams:
    """Return params, some of them with fewer stages, other lanes along the columns, or other loads at once of partial results: what candidates leave out."""
    if params.stages > 2 and drawn.random() < 0.25:
        params = dataclasses.replace(params, stages=drawn.randrange(2, params.stages))
    threads, lanes = params.lanes * params.threads_y, drawn.choice((2, 4, 8, 16, 32))
    if drawn.random() < 0.2 and threads % lanes == 0:
        params = dataclasses.replace(params, lanes=lanes, threads_y=threads // lanes)
    return dataclasses.replace(params, slots_unroll=drawn.choice((2, 4, 6, 9))) if drawn.random() < 0.15 else params


# ---------------------------------------------------------------- one kernel
def new_definition(spec: AnySpec) -> FusionDefinition:
    return plain_definitions.definition(spec) if isinstance(spec, PlainSpec) else definition(spec)


def new_inputs(spec: AnySpec, device: str) -> list[torch.Tensor]:
    """Return inputs in memory that nobody has written yet."""
    fd = new_definition(spec)
    return plain_definitions.inputs_of(fd, spec, device) if isinstance(spec, PlainSpec) else inputs_of(fd, spec, device)


class Kernel:
    """A definition whose kernel has given params."""

    def __init__(self, spec: AnySpec, params: Any) -> None:
        self.fd: FusionDefinition = new_definition(spec)
        self.params = params
        self.template = SchedulerType[spec.template] if isinstance(spec, PlainSpec) else SchedulerType.inner_outer_persistent
        self.caller = self.fd._executor_cache()._caller
        self.caller.request = self.request  # type: ignore[method-assign]
        self.runtime: Any = None

    def request(self, use: Any, sizes: Any, engine: Any, options: Any, disable: frozenset[str] = frozenset()) -> Any:
        proposal = Proposal(self.template, self.params)
        return runtimes.request_for(proposal, use.part, runtimes.index_type_for(use, sizes), engine, options)

    def build(self, inputs: list[torch.Tensor]) -> None:
        """Compile and load. Errors: what the compiler or the limits of the chip say."""
        sizes, engine = self.caller.sizes(inputs, None, current())
        (use,) = sizes.kernels
        request = self.request(use, sizes, engine, current())
        self.runtime = self.caller.kernels.runtime(request, self.caller.kernels.program(request), Timings())

    def compile(self, inputs: list[torch.Tensor], arch: Arch) -> Resources:
        """Compile into the disk cache, without a GPU; inputs may be on the CPU. Errors: what the compiler says."""
        sizes, engine = self.caller.sizes(inputs, None, current())
        (use,) = sizes.kernels
        program = self.caller.kernels.program(self.request(use, sizes, engine, current()))
        text = translation_unit(program.text, program.blocks, shortened=True)
        return compile_or_load(text, program.name, arch.nvrtc_target, max_registers=program.max_registers).resources

    def resources(self) -> list[int | None]:
        """Return registers, and bytes that a thread spills."""
        found = getattr(self.runtime.built.report, "resources", None)
        return [None, None] if found is None else [found.registers, found.spill_store_bytes]


def compile_case(spec: AnySpec, tried: list[Any], arch: Arch) -> dict[str, Any]:
    """Compile the kernels of a case; return its row, without times."""
    inputs, rows = new_inputs(spec, "cpu"), []
    for params in tried:
        try:
            found = Kernel(spec, params).compile(inputs, arch)
            rows.append([None, found.registers, found.spill_store_bytes, "", *short(params)])
        except WeftError as error:
            rows.append([None, None, None, type(error).__name__, *short(params)])
    return {"spec": spec.to_json(), "kernels": rows}


def short(params: Any) -> list[Any]:
    """The values of params, in the order of their fields."""
    return [getattr(params, name) for name in type(params).__dataclass_fields__]


# ---------------------------------------------------------------- one case
def measure_case(spec: AnySpec, tried: list[Any], arch: Arch, device: str, folder: Path) -> dict[str, Any]:
    """Build the kernels of a case and time them in turn; return its row. us: None for kernels that cannot be used or compute something else."""
    inputs = new_inputs(spec, device)
    kernels, rows = [], []
    for params in tried:
        kernel = Kernel(spec, params)
        try:
            kernel.build(inputs)
            kernels.append(kernel)
        except WeftError as error:
            rows.append([None, None, None, type(error).__name__, *short(params)])
    with lock(folder / "gpu"):
        (folder / f"at.{os.getpid()}").write_text(json.dumps([time.time(), spec.to_json()]))
        fill(inputs)
        good, first, count_bytes = [], None, 0
        for kernel in kernels:
            (folder / f"running.{os.getpid()}").write_text(json.dumps([spec.to_json(), short(kernel.params)]))
            try:
                outputs = kernel.fd.execute(inputs)
                if device == "cuda":
                    torch.cuda.synchronize()
            except WeftError as error:
                rows.append([None, *kernel.resources(), type(error).__name__, *short(kernel.params)])
                continue
            first = outputs if first is None else first
            far = max(float((a.float() - b.float()).norm() / b.float().norm().clamp_min(1e-20)) for a, b in zip(outputs, first))
            if far < WRONG:
                good.append(kernel)
            else:
                rows.append([None, *kernel.resources(), f"differs by {far:.1e}", *short(kernel.params)])
            count_bytes = moved_bytes(inputs, outputs)
            del outputs
        source = torch.empty(max(1, count_bytes // 2), dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        calls = [lambda: target.copy_(source), *((lambda fd=kernel.fd: fd.execute(inputs)) for kernel in good)]
        samples = LONG_SAMPLES if spec.moved_bytes / arch.roof_bytes_per_s * 1e6 > LONG_US else SAMPLES
        times = [statistics.median(found) for found in medians_in_turn(calls, device, samples)]
        (folder / f"at.{os.getpid()}").unlink()
    rows += [[round(us, 2), *kernel.resources(), "", *short(kernel.params)] for us, kernel in zip(times[1:], good)]
    return {"spec": spec.to_json(), "bytes": count_bytes, "copy_us": round(times[0], 2), "chosen": short(tried[0]), "kernels": rows}


@contextlib.contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold a lock that all processes share; it is free again when its holder dies."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# ---------------------------------------------------------------- processes
def next_number(folder: Path) -> int:
    """Return the number of the next case; each is handed out once."""
    with lock(folder / "cases"):
        place = folder / "next"
        number = int(place.read_text()) if place.exists() else 0
        place.write_text(str(number + 1))
    return number


def work(a: argparse.Namespace, folder: Path, device: str) -> None:
    """Measure cases until none is left or the time is over. Each is a line of a file of this process."""
    torch.set_num_threads(1)
    arch = arch_of_device(0) if device == "cuda" else arch_by_name("H200")
    while time.time() < a.until:
        number = next_number(folder)
        if number >= a.count:
            return
        case = next(itertools.islice(cases_of(a), number, None), None)
        if case is None:
            return
        spec, tried = case
        if device == "cpu" and not a.compile:
            spec = spec.small()
        try:
            tried = tried or chosen_candidates(spec, arch, a.kernels)
            row = compile_case(spec, tried, arch) if a.compile else measure_case(spec, tried, arch, device, folder)
        except (WeftError, ValueError, torch.OutOfMemoryError) as error:  # a spec that the template does not take
            row = {"spec": spec.to_json(), "failed": f"{type(error).__name__}: {str(error)[:200]}"}
        with (folder / f"rows.{os.getpid()}").open("a") as file:
            file.write(json.dumps(row) + "\n")
        if device == "cuda":
            torch.cuda.empty_cache()


def supervise(a: argparse.Namespace, folder: Path) -> list[list[Any]]:
    """Keep the processes at work; return the kernels that killed one."""
    died: list[list[Any]] = []
    command = [sys.executable, __file__, "--worker", str(folder), "--until", str(a.until), "--count", str(a.count), "--first", str(a.first)]
    command += ["--kernels", str(a.kernels)] + ["--cpu-smoke"] * a.cpu_smoke + ["--compile"] * a.compile + ["--plain"] * a.plain + ["--softmax"] * a.softmax
    command += ["--cases", a.cases] * bool(a.cases)
    running = [subprocess.Popen(command) for _ in range(a.processes)]
    while running:
        time.sleep(0.25)
        now = time.time()
        for worker in list(running):
            at, was = folder / f"at.{worker.pid}", folder / f"running.{worker.pid}"
            is_stuck = at.exists() and now - (_read(at) or [now])[0] > STUCK_S
            if worker.poll() is None and (is_stuck or now > a.until + STUCK_S):
                worker.kill()
                worker.wait()
            if worker.poll() is None:
                continue
            running.remove(worker)
            at.unlink(missing_ok=True)
            if worker.returncode and now <= a.until:
                died.append([worker.returncode, *(_read(was) or [])])
                print(f"a process ended with {worker.returncode} in {died[-1][1:]}", flush=True)
                running.append(subprocess.Popen(command))
    return died


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def collect(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(folder.glob("rows.*")) for line in path.read_text().splitlines()]


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--count", type=int, default=200, help="cases")
    arguments.add_argument("--kernels", type=int, default=24, help="of each case")
    arguments.add_argument("--seconds", type=float, default=150.0)
    arguments.add_argument("--first", type=int, default=0, help="seed of the first random case")
    arguments.add_argument("--processes", type=int, default=24)
    arguments.add_argument("--worker", help=argparse.SUPPRESS)
    arguments.add_argument("--until", type=float, help=argparse.SUPPRESS)
    arguments.add_argument("--compile", action="store_true", help="compile only, for an H200, without a GPU")
    arguments.add_argument("--plain", action="store_true", help="pointwise kernels, plain reductions and transposes instead")
    arguments.add_argument("--softmax", action="store_true", help="softmax with sums of columns instead")
    arguments.add_argument("--cases", help="a file of definitions and params to time")
    a = arguments.parse_args()
    device = "cpu" if a.compile else device_of(a)
    if a.worker:
        return work(a, Path(a.worker), device)
    if a.cpu_smoke:
        a.count, a.kernels, a.processes = min(a.count, 3), 2, 2
    out = Path(a.out) if a.out else RESULTS / ("plain.json" if a.plain else "two_sided.json")
    folder = out.with_suffix(".parts")
    folder.mkdir(parents=True, exist_ok=True)
    a.until = time.time() + a.seconds
    died = supervise(a, folder)
    rows = collect(folder)
    kernels = sum(len(row.get("kernels", ())) for row in rows)
    print(f"{len(rows)} cases, {kernels} kernels, {len(died)} that killed a process")
    if a.out or not a.cpu_smoke:
        write_record(out, device, rows, died, a.plain)
    return None


def write_record(out: Path, device: str, rows: list[dict[str, Any]], died: list[list[Any]], is_plain: bool) -> None:
    """Write cases one a line. columns: of the rows of `kernels`."""
    columns = ["us", "registers", "spill_bytes", "failed"]
    if is_plain:
        fields = {name: [*columns, *params.__dataclass_fields__] for name, params in plain_definitions.PARAMS.items()}
        head = {"what": "kernels without kept rows, timed by bench/candidates.py --plain", **about(device), "columns": fields}
    else:
        head = {"what": "kernels for rows and columns, timed by bench/candidates.py", **about(device), "columns": [*columns, *FIELDS]}
    lines = ",\n".join("  " + json.dumps(row, separators=(",", ":")) for row in rows)
    text = json.dumps({**head, "died": died, "cases": []}, indent=1).replace('"cases": []', f'"cases": [\n{lines}\n ]')
    out.write_text(text + "\n", encoding="utf-8")
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
