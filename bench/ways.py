"""The ways to keep a normalization's rows, each against a copy: registers, TMA a row per block, specialized warps; the choice and its regret.

    python bench/ways.py [OUT.json] [--part tall odd short variants] [--only "softmax * x4096"] [--seconds 200]
    python bench/ways.py OUT.json --changed                 only the cases of which a way has other params by now
    python bench/ways.py --regret OUT.json [--every]     choose again, by the code as it is now, from the recorded facts; needs no GPU
    python bench/ways.py --fit OUT.json                  the constants of the model with which the choice loses least; needs no GPU

Softmax, RMS norm, layer norm, add + RMS norm and dropout + layer norm forward, bf16 and float32. Rows that are measured again replace those in OUT.json, so
that it can be filled in pieces. All ways of a case run in turn, twice, beside a copy of the same bytes; the better median counts.
Read first: `measure_case`.
"""

from __future__ import annotations

import fnmatch
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from cases import BY_NAME
from fit_ways import print_fit
from forced import WAYS, Forced, Seen, ways_of
from measure import RESULTS, compile_ahead, device_of, medians_in_turn, moved_bytes, parser, table, write
from rechoose import changed_labels, print_regret
from regret import regret_of
from way_variants import variants_of

from weft.arch import Arch, arch_by_name, arch_of_device
from weft.device.library import translation_unit
from weft.errors import WeftError
from weft.runtime.nvrtc import compile_or_load
from weft.schedulers.base import Decline
from weft.schedulers.row_ways import choose_rows

NAMES = ("softmax", "rms_norm", "layer_norm", "add_rms_norm", "dropout_layer_norm")
SMOKE_NAMES = ("softmax", "dropout_layer_norm")
DTYPES = (torch.bfloat16, torch.float32)
TALL_ELEMS = 1 << 26
"""Of a tensor: 128 MiB of bf16, 256 MiB of float32."""
TALL = {1024: (16384, 65536), 2048: (16384, 32768), 5120: (16384,), 12288: (8192,)}
"""Rows for some columns, where the peers' shapes have other numbers of rows."""
COLUMNS = (1024, 2048, 4096, 5120, 8192, 12288, 16384, 32768, 65536, 131072)
ODD_COLUMNS = (1025, 4093, 10007)
"""Whose rows are no multiple of 16 bytes: TMA declines."""
SHORT = tuple((rows, columns) for columns in (4096, 16384) for rows in (1, 16, 132, 512))
VARIED = (
    ("softmax", torch.bfloat16, 4096), ("rms_norm", torch.float32, 16384), ("layer_norm", torch.bfloat16, 8192), ("add_rms_norm", torch.bfloat16, 4096),
    ("add_rms_norm", torch.float32, 8192), ("dropout_layer_norm", torch.bfloat16, 4096),
)  # fmt: skip
"""Cases whose specialized kernel is varied."""
SAMPLES, SHORT_SAMPLES, PLACEMENTS, SHORT_BYTES = 40, 40, 7, 64 << 20
"""Of each way, in turn; for inputs of fewer bytes, on so many placements of the tensors."""
WRONG = 1e-2
"""Relative error from which a kernel is wrong: the largest that rounding to bf16 makes is 2e-3."""
PARTS = ("tall", "odd", "short", "variants")


@dataclass(frozen=True)
class Shape:
    """A case and its sizes. part: which of PARTS it belongs to."""

    name: str
    dtype: torch.dtype
    rows: int
    columns: int
    part: str

    @property
    def label(self) -> str:
        return f"{self.name} {str(self.dtype)[6:]} {self.rows}x{self.columns}"

    def inputs(self, device: str) -> list[torch.Tensor]:
        return BY_NAME[self.name].inputs(self.rows, self.columns, self.dtype, device)


def shapes(parts: list[str], only: str, is_smoke: bool) -> list[Shape]:
    """Return what is to be measured."""
    found: list[Shape] = []
    sizes = [("tall", r, n) for n in COLUMNS for r in TALL.get(n, (TALL_ELEMS // n,))]
    sizes += [("odd", TALL_ELEMS // n, n) for n in ODD_COLUMNS] + [("short", r, n) for r, n in SHORT]
    if is_smoke:
        sizes = [("tall", 5, 512), ("odd", 3, 513)]
    for name in SMOKE_NAMES if is_smoke else NAMES:
        for dtype in DTYPES[:1] if is_smoke else DTYPES:
            found += [Shape(name, dtype, rows, columns, part) for part, rows, columns in sizes]
    varied = [("add_rms_norm", torch.bfloat16, 256)] if is_smoke else VARIED
    found += [Shape(name, dtype, 3 if is_smoke else TALL_ELEMS // n, n, "variants") for name, dtype, n in varied]
    return [s for s in found if s.part in parts and fnmatch.fnmatch(s.label, only)]


# ---------------------------------------------------------------- kernels
class Kernels:
    """The definitions of all ways: one per case, type and way, shared by the sizes."""

    def __init__(self, arch: Arch) -> None:
        self.arch = arch
        self.made: dict[tuple[str, torch.dtype, str], Forced] = {}

    def of(self, shape: Shape, way: str) -> Forced:
        key = (shape.name, shape.dtype, way)
        if key not in self.made:
            self.made[key] = Forced(BY_NAME[shape.name].definition(shape.dtype))
        return self.made[key]

    def params(self, shape: Shape, inputs: list[torch.Tensor]) -> tuple[Seen, dict[str, Any], str]:
        """Return what the choice sees, the params of each way, and the way that is chosen when none is asked for."""
        seen = self.of(shape, "registers").seen(inputs)
        if shape.part == "variants":
            return seen, variants_of(seen.facts, self.arch), ""
        found = ways_of(seen, self.arch)
        automatic, _ = choose_rows(seen.facts, self.arch, is_loadable=seen.is_loadable)
        chosen = next((way for way, params in found.items() if params == automatic), "chosen")
        return seen, found if chosen in found else {**found, "chosen": automatic}, chosen


def resources_of(kernel: Forced, inputs: list[torch.Tensor]) -> dict[str, Any]:
    """Return what ptxas and the launch say of a kernel. Its machine code is on disk already."""
    request, program, launch = kernel.wanted(inputs)
    unit = translation_unit(program.text, program.blocks)
    found = compile_or_load(unit, program.name, request.engine.arch.nvrtc_target, max_registers=program.max_registers).resources
    return {
        "registers": found.registers, "spill_bytes": (found.spill_store_bytes or 0) + (found.spill_load_bytes or 0), "stack_bytes": found.stack_bytes,
        "shared_bytes": found.static_shared_bytes + launch["shared_bytes"], "grid": launch["grid"], "block": launch["block"],
    }  # fmt: skip


# ---------------------------------------------------------------- times
def pooled_medians(calls: dict[str, Callable[[list[torch.Tensor]], object]], inputs: list[torch.Tensor], device: str) -> dict[str, float]:
    """Return the median of each call over several placements of the tensors, all calls in turn.

    Where tensors lie decides which pages and banks they share: a kernel of 5 us takes up to 10 % more or less from one placement to the next.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    is_short = moved_bytes(inputs) < SHORT_BYTES
    held: list[torch.Tensor] = []
    for placement in range((PLACEMENTS if device == "cuda" else 2) if is_short else 1):
        if placement:
            held.append(torch.empty((1 << 20) * (2 * placement + 1) + 512 * placement, dtype=torch.uint8, device=device))
            held += inputs
            inputs = [tensor.clone() for tensor in inputs]
        found = medians_in_turn([lambda call=call: call(inputs) for call in calls.values()], device, SHORT_SAMPLES if is_short else SAMPLES)  # type: ignore[misc]
        for name, more in zip(calls, found):
            times[name] += more
    return {name: statistics.median(all_of) for name, all_of in times.items()}


def copy_of(count: int, device: str) -> Callable[[list[torch.Tensor]], object]:
    """Return a copy that reads and writes `count` bytes in all."""
    source = torch.empty(max(1, count // 2), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return lambda _: target.copy_(source)


def measure_case(kernels: Kernels, shape: Shape, device: str) -> dict[str, Any]:
    """Measure every way of one case; return its row of the results."""
    inputs = shape.inputs(device)
    seen, params, chosen = kernels.params(shape, inputs)
    ways: dict[str, dict[str, Any]] = {}
    calls: dict[str, Callable[[list[torch.Tensor]], object]] = {}
    count = 0
    for way, given in params.items():
        if isinstance(given, Decline):
            ways[way] = {"declined": given.reason}
            continue
        kernel = kernels.of(shape, way)
        kernel.choose(inputs, given)
        try:
            outputs = kernel(inputs)
        except (WeftError, RuntimeError) as error:
            ways[way] = {"failed": f"{type(error).__name__}: {str(error).splitlines()[0]}", "params": str(given)}
            print(f"{shape.label} {way}: {ways[way]['failed']}", flush=True)
            continue
        count = moved_bytes(inputs, outputs)
        ways[way] = {"params": str(given), "error": BY_NAME[shape.name].error(inputs, outputs), **resources_of(kernel, inputs)}
        del outputs
        calls[way] = kernel
    times = pooled_medians({"copy": copy_of(count, device), **calls}, inputs, device)
    for way in calls:
        ways[way] |= {"us": round(times[way], 3), "fraction": round(times["copy"] / times[way], 4)}
        if not ways[way]["error"] < WRONG:
            ways[way]["wrong"] = True
    return {
        "label": shape.label, "part": shape.part, "case": shape.name, "dtype": str(shape.dtype)[6:], "rows": shape.rows, "columns": shape.columns,
        "bytes": count, "copy_us": round(times["copy"], 3), "chosen": chosen, "seen": seen.to_json(), "ways": ways,
    }  # fmt: skip


def compile_all(kernels: Kernels, wanted: list[Shape], device: str, processes: int) -> int:
    """Lower every kernel, and compile them all into the disk cache; return how many there were."""

    def requests() -> Iterator[Any]:
        for shape in wanted:
            inputs = shape.inputs(device)
            for way, params in kernels.params(shape, inputs)[1].items():
                if not isinstance(params, Decline):
                    kernel = kernels.of(shape, way)
                    kernel.choose(inputs, params)
                    try:
                        yield kernel.wanted(inputs)[:2]
                    except WeftError:
                        continue  # the call says so again when it is to be measured

    return compile_ahead(requests(), processes)


# ---------------------------------------------------------------- results
def line_of(row: dict[str, Any]) -> list[object]:
    ways = row["ways"]
    cells = [f"{w['fraction']:.3f}{' WRONG' if w.get('wrong') else ''}" if "us" in w else "-" for w in (ways.get(name, {}) for name in WAYS)]
    spills = sum(w.get("spill_bytes", 0) > 0 for w in ways.values())
    regret = regret_of(row, row["chosen"])
    return [row["label"], f"{row['copy_us']:.1f}", *cells, row["chosen"], f"{regret * 100:.1f} %", f"{spills} spill" if spills else ""]


def print_variants(row: dict[str, Any]) -> None:
    body = [
        [name, f"{w['us']:.1f}", f"{w['fraction']:.3f}", w["registers"], w["shared_bytes"]] if "us" in w else [name, w.get("declined") or w["failed"]]
        for name, w in row["ways"].items()
    ]
    print(table([row["label"], "us", "fraction", "registers", "shared"], [b + [""] * (5 - len(b)) for b in body]), flush=True)


def merged(path: Path, rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the rows of the file at `path` with `rows` in place of those of the same case, and what else it holds beside the machine."""
    old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"rows": []}
    kept = {(row["label"], row["part"]): row for row in old["rows"] if row["part"] in PARTS}
    kept |= {(row["label"], row["part"]): row for row in rows}
    return list(kept.values()), {name: old[name] for name in ("right",) if name in old}


def measure(a: Any) -> None:
    device, start = device_of(a), time.monotonic()
    arch = arch_by_name("H200") if device == "cpu" else arch_of_device(0)
    path = Path(a.out) if a.out else RESULTS / "ways.json"
    wanted = shapes(a.part, a.only, a.cpu_smoke)
    if a.changed:
        changed = changed_labels(json.loads(path.read_text(encoding="utf-8"))["rows"], arch)
        wanted = [s for s in wanted if s.label in changed and s.part != "variants"]
    kernels = Kernels(arch)
    count = compile_all(kernels, wanted, device, 2 if a.cpu_smoke else 16)
    print(f"{len(wanted)} cases, {count} kernels: lowered and compiled in {time.monotonic() - start:.1f} s", flush=True)
    found: list[dict[str, Any]] = []
    left: list[str] = []
    shown: list[list[object]] = []
    for shape in wanted:
        if time.monotonic() - start > a.seconds:
            left.append(shape.label)
            continue
        row = measure_case(kernels, shape, device)
        found.append(row)
        if shape.part == "variants":
            print_variants(row)
        else:
            shown.append(line_of(row))
            print("  ".join(map(str, shown[-1])), flush=True)
    if shown:
        print(table(["case", "copy us", *WAYS, "chosen", "regret", ""], shown), flush=True)
        print_regret([row for row in found if row["part"] != "variants"], arch, every=False)
    print(f"{len(found)} cases in {time.monotonic() - start:.0f} s")
    if left:
        print(f"no time for {len(left)}: {', '.join(left)}")
    rows, more = merged(path, found)
    write(a, __file__, device, rows, is_row_a_line=True, **more)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    arguments.add_argument("--only", default="*", help="pattern of cases, as 'layer_norm bfloat16 *x4096'")
    arguments.add_argument("--seconds", type=float, default=220, help="measure no more cases after this long; those left are named")
    arguments.add_argument("--changed", action="store_true", help="only cases of which a way has other params by now than the file has")
    arguments.add_argument("--regret", type=Path, help="a file of results to choose for again")
    arguments.add_argument("--every", action="store_true", help="print the regret of every case, not only where it is above 0.5 %%")
    arguments.add_argument("--fit", type=Path, help="a file of results to fit the model's constants to")
    a = arguments.parse_args()
    if a.fit:
        print_fit([row for row in json.loads(a.fit.read_text(encoding="utf-8"))["rows"] if row["part"] != "variants"], arch_by_name("H200"))
    elif a.regret:
        rows = json.loads(a.regret.read_text(encoding="utf-8"))["rows"]
        print_regret([row for row in rows if row["part"] != "variants"], arch_by_name("H200"), every=a.every)
    else:
        measure(a)


if __name__ == "__main__":
    main()
