"""Registers and spills of random kernels for rows and columns, compiled without a GPU, beside what the model estimates.

    python bench/two_sided_registers.py [OUT.json] [--count 60] [--first 70000] [--seconds 600]      compiles, with the limit of registers of each and without
    python bench/two_sided_registers.py --judge [RECORD.json]                                        compares a record with the estimates
    python bench/two_sided_registers.py --cases CASES.json [--count 150]                             writes the choices of both where they differ
    python bench/candidates.py OUT.json --cases CASES.json                                           a GPU: times these
    python bench/two_sided_registers.py --compare CASES.json OUT.json                                says which are faster

Every second spec has an odd width. Of each spec: the present choice, one kernel that is predicted to be near it, one of all. Seeds that no other record has, so
that the record judges. `one_estimate` is the estimate of kernels whose blocks come and go, with words counted for rows and columns: tried, and not taken yet
(docs/cost_model.md). Read first: `compiled_case`, `judge`.
"""

from __future__ import annotations

import dataclasses
import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from candidates import FIELDS, NEAR, SLACK, Kernel, new_inputs, short
from corners import CORNERS
from measure import RESULTS, about, parser, table
from two_sided_definitions import Spec, benchmark_specs, random_spec, seen_of

from weft.arch import H200, WARP_THREADS, Arch
from weft.device.library import translation_unit
from weft.errors import WeftError
from weft.options import current
from weft.runtime.nvrtc import compile_or_load
from weft.schedulers import inner_outer_candidates
from weft.schedulers.cost import two_sided
from weft.schedulers.cost.model import time_ns
from weft.schedulers.cost.parts import ADDRESS_REGISTERS, registers
from weft.schedulers.cost.two_sided import AHEAD, CP_ASYNC, Kernels, Rows, needed_registers, work_of
from weft.schedulers.inner_outer import FEW_SPILL_BYTES
from weft.schedulers.inner_outer_candidates import MOST_REGISTERS_OVER, Candidates, kernel_of
from weft.schedulers.inner_outer_heuristic import choose_inner_outer
from weft.schedulers.inner_outer_params import InnerOuterParams

RECORD = RESULTS / "two_sided_registers.json"
COPY_REGISTERS, RESULT_REGISTERS = 0.5, 5
"""For each copy of a step that nobody waits for, and for each result of a row: its sum, what other threads had of it, what is made of it."""


def spec_of(seed: int) -> Spec:
    """Return the spec of a seed: of odd seeds one with an odd width."""
    spec = random_spec(seed)
    return dataclasses.replace(spec, columns=spec.columns | 1) if seed % 2 else spec


def some_params(spec: Spec, arch: Arch) -> list[Any]:
    """Return the choice, a candidate near it, and one of all."""
    seen, drawn = seen_of(spec), random.Random(str(spec))
    candidates = Candidates(seen.facts, arch, seen.is_loadable, SLACK)
    made = candidates.table()
    times = time_ns(work_of(made, candidates.facts_of_rows, arch), arch)
    near = np.flatnonzero(times < NEAR * times.min()).tolist()
    places = [drawn.choice(near), drawn.randrange(len(times))]
    return list(dict.fromkeys([choose_inner_outer(seen.facts, arch, seen.is_loadable)[0], *(candidates.params(made, place) for place in places)]))


def compiled_case(spec: Spec, arch: Arch) -> dict[str, Any]:
    """Compile the kernels of a spec; rows are registers and spilled bytes with the limit and without, then the params."""
    inputs, rows = new_inputs(spec, "cpu"), []
    for params in some_params(spec, arch):
        kernel = Kernel(spec, params)
        try:
            sizes, engine = kernel.caller.sizes(inputs, None, current())
            (use,) = sizes.kernels
            program = kernel.caller.kernels.program(kernel.request(use, sizes, engine, current()))
            unit = translation_unit(program.text, program.blocks, shortened=True)
            found = [compile_or_load(unit, program.name, arch.nvrtc_target, max_registers=limit).resources for limit in (program.max_registers, None)]
            rows.append([value for one in found for value in (one.registers, one.spill_store_bytes)] + short(params))
        except WeftError as error:
            print(f"{spec}: {type(error).__name__}: {str(error)[:200]}")
    return {"spec": spec.to_json(), "kernels": rows}


def one_estimate(p: Kernels, r: Rows) -> Any:
    """Return the registers of a thread by `cost.parts.registers`, beside it only addresses, five registers for a result of a row, and one for a copy.

    Held: sums of columns, weights, rows that stay; with rows that begin anywhere one more element of each tensor and sum. Loaded: rows that come ahead, and a
    vector of each input as floats. A second pass behind has results of its own, and vectors of all rows but the first.
    """
    elems, bits = p.batches * p.vector_elems, r.input_bits / np.maximum(1, r.inputs)
    packed = np.maximum(1.0, 32 / np.maximum(1, p.vector_elems * bits))
    stays = ~(np.asarray(p.is_reread, bool) & (p.lanes * p.threads_y > WARP_THREADS))
    of_rows, column_words, tensors = p.row_unroll * elems / 32, r.column_accumulator_bits / 32 + r.weights, r.inputs + r.outputs
    held = elems * column_words + stays * of_rows * r.kept_bits * np.where(p.project_to_inputs, packed, 1.0) + p.is_phased * (tensors + column_words)
    at_work = p.row_unroll + p.is_behind * (p.row_unroll - 1)
    loaded = of_rows * r.input_bits * packed * (p.loads == AHEAD) + at_work * p.vector_elems * r.inputs
    copies = (p.loads == CP_ASYNC) * p.row_unroll * p.batches * r.inputs
    results = p.row_unroll * r.reductions * (1 + p.is_behind)
    return registers(loaded, r.instructions, held=held) + COPY_REGISTERS * copies + ADDRESS_REGISTERS * tensors + RESULT_REGISTERS * results


def judge(path: Path) -> None:
    """Print how far both estimates are off the registers that the compiler takes without a limit, and which spills they do not foresee."""
    data = json.loads(path.read_text(encoding="utf-8"))
    found: dict[str, list[tuple[float, ...]]] = {"present": [], "one function": []}
    for case in data["cases"]:
        spec = Spec(*case["spec"])
        seen = seen_of(spec)
        for values in (dict(zip(data["columns"], kernel)) for kernel in case["kernels"]):
            rows = Candidates(seen.facts, H200, seen.is_loadable, may_be_phased=values["is_phased"]).facts_of_rows
            kernel = kernel_of(InnerOuterParams(**{name: values.get(name, False) for name in FIELDS}))
            for name, estimate in (("present", needed_registers), ("one function", one_estimate)):
                is_legal = estimate(kernel, rows) <= values["max_registers"] * (1.0 if values["is_behind"] else MOST_REGISTERS_OVER)
                is_free = values["free_spill_bytes"] == 0
                far = float(estimate(kernel, rows)) - values["free_registers"] if is_free else np.nan
                found[name].append((far, values["is_phased"], is_legal, values["spill_bytes"]))
    lines = []
    for name, rows_of in found.items():
        far, is_phased, is_legal, spilled = np.array(rows_of, dtype=float).T
        parts = (np.isfinite(far), np.isfinite(far) & (is_phased == 0), np.isfinite(far) & (is_phased == 1))
        missed = f"{int(((spilled > FEW_SPILL_BYTES) & (is_legal == 1)).sum())} of {int(is_legal.sum())}"
        lines.append([name, len(far), *(f"{np.sqrt((far[part] ** 2).mean()):.1f}" for part in parts), missed, int(((spilled == 0) & (is_legal == 0)).sum())])
    print(table(["estimate", "kernels", "off by", "aligned", "rows begin anywhere", "spill > 64 bytes unforeseen", "left out, no spill"], lines))


def chosen_by(estimate: Any, spec: Spec, arch: Arch) -> list[Any]:
    """Return the choice with an estimate, and what the runtime takes where that spills."""
    places = (two_sided, inner_outer_candidates)
    seen, before = seen_of(spec), needed_registers
    for place in places:
        place.needed_registers = estimate  # type: ignore[attr-defined]
    try:
        first = choose_inner_outer(seen.facts, arch, seen.is_loadable)[0]
        return [first, choose_inner_outer(seen.facts, arch, seen.is_loadable, {first: 0})[0]]
    finally:
        for place in places:
            place.needed_registers = before  # type: ignore[attr-defined]


def write_cases(out: Path, count: int, arch: Arch) -> None:
    """Write the choices of both estimates where they differ: of the benchmark's cases, those of corners.py and random ones. params: two with each estimate."""
    shapes = [(name.split("_")[0], str(dtype)[6:], rows, columns) for name, dtype, rows, columns in CORNERS["backward"]]
    corners = [Spec(norm, dtype, rows, columns, sums=1 + (norm == "layer")) for norm, dtype, rows, columns in shapes]
    cases = []
    for spec in (*benchmark_specs(), *corners, *(spec_of(80000 + n) for n in range(count))):
        try:
            found = [chosen_by(estimate, spec, arch) for estimate in (needed_registers, one_estimate)]
        except ValueError:
            continue
        if found[0][0] != found[1][0]:
            cases.append({"spec": spec.to_json(), "params": [short(params) for params in (*found[0], *found[1])]})
    out.write_text(json.dumps({"cases": cases}) + "\n", encoding="utf-8")
    print(f"{len(cases)} choices differ: {out}")


def compare(cases: Path, record: Path) -> None:
    """Print how much longer the kernel takes that the runtime would run with the one function. record: what candidates.py --cases wrote of these cases."""
    data = json.loads(record.read_text(encoding="utf-8"))
    head, width = data["columns"], len(data["columns"]) - len(FIELDS)
    timed = {json.dumps(case["spec"]): {json.dumps(k[width:]): dict(zip(head, k)) for k in case.get("kernels", ())} for case in data["cases"]}
    ratios = []
    for case in json.loads(cases.read_text(encoding="utf-8"))["cases"]:
        kernels = [timed.get(json.dumps(case["spec"]), {}).get(json.dumps(params)) for params in case["params"]]
        good = [k for k in kernels if k and k["us"] and k["spill_bytes"] <= (0 if k["loads"] == "tma" else FEW_SPILL_BYTES)]
        before, after = ([k for k in half if k in good] for half in (kernels[:2], kernels[2:]))
        if before and after:
            ratios.append((after[0]["us"] / before[0]["us"], str(Spec(*case["spec"])), before[0]["us"], after[0]["us"]))
    ratios.sort()
    lines = [[name, was, now, f"{ratio:.3f}"] for ratio, name, was, now in (*ratios[:10], *ratios[-10:])]
    print(table(["case", "present us", "one function us", "ratio"], lines))
    print(f"{len(ratios)} of {len(timed)}: {statistics.geometric_mean(r[0] for r in ratios):.4f} times as long with one function")


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--cases", help="write the choices of both estimates where they differ, for candidates.py --cases")
    arguments.add_argument("--compare", nargs=2, type=Path, metavar=("CASES", "RECORD"), help="compare them by what candidates.py timed")
    arguments.add_argument("--judge", action="store_true", help="compare a record with the estimates; needs no compiler")
    arguments.add_argument("--count", type=int, default=60)
    arguments.add_argument("--first", type=int, default=70000)
    arguments.add_argument("--seconds", type=float, default=600.0)
    a = arguments.parse_args()
    if a.judge:
        return judge(Path(a.out or RECORD))
    if a.cases:
        return write_cases(Path(a.cases), a.count, H200)
    if a.compare:
        return compare(*a.compare)
    end, cases = time.time() + a.seconds, []
    for seed in range(a.first, a.first + a.count):
        if time.time() > end:
            break
        try:
            cases.append(compiled_case(spec_of(seed), H200))
        except ValueError as error:
            print(f"{seed}: {error}")
    out = Path(a.out or RECORD)
    columns = ["registers", "spill_bytes", "free_registers", "free_spill_bytes", *FIELDS]
    what = "registers of kernels for rows and columns, compiled by bench/two_sided_registers.py"
    head = {"what": what, **about("cpu"), "chip": H200.name, "columns": columns}
    lines = ",\n".join("  " + json.dumps(row, separators=(",", ":")) for row in cases)
    out.write_text(json.dumps({**head, "cases": []}, indent=1).replace('"cases": []', f'"cases": [\n{lines}\n ]') + "\n", encoding="utf-8")
    print(f"{len(cases)} cases, {sum(len(c['kernels']) for c in cases)} kernels: {out}")
    return None


if __name__ == "__main__":
    main()
