"""Which ops give the same bytes in the emulator as on the GPU, and how far the others are apart.

    python tests/ops/exactness.py emulated FILE.pt.gz              (without a GPU: what the emulator computes)
    python tests/ops/exactness.py compare FILE.pt.gz RESULT.json   (on a GPU: the same operands there, and the differences)
    python tests/ops/exactness.py page RESULT.json                 (writes docs/exactness.md)

FILE holds the operands too, so that both machines compute on the same ones. Operands: every combination of special values (zeros, infinities, NaN, limits), some thousand random ones for ops of one operand, all values of 16-bit types
for casts. Distances are in units in the last place of the result's type; NaNs count as equal. Read first: `differences`.
"""

from __future__ import annotations

import gzip
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "ops"), str(ROOT / "tests" / "device")]

import engines  # noqa: E402
import test_cast  # noqa: E402
from pointwise_kernels import STORAGE, Case, cases, operands  # noqa: E402

from weft.runtime.driver import load_kernel  # noqa: E402
from weft.runtime.nvrtc import compile_cubin  # noqa: E402

INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def op_cases() -> list[Case]:
    return [case for compute in STORAGE for case in cases(compute) if case.out in STORAGE and all(case.operand_type(i) in STORAGE for i in range(case.op.arity))]


def cast_on_gpu(values: torch.Tensor, source: str, target: str) -> torch.Tensor:
    major, minor = torch.cuda.get_device_capability()
    key = (source, torch.cuda.current_device())
    text = test_cast.source_of_casts_from(source)
    if key not in _CUBINS:
        _CUBINS[key] = compile_cubin(text, engines.first_entry(text), f"sm_{major}{minor}" + ("a" if major >= 9 else "")).cubin
    result = torch.zeros(values.shape, dtype=test_cast.TYPES[target][1], device="cuda")
    on_device = values.cuda()
    kernel = load_kernel(_CUBINS[key], f"cast_{source}_{target}", torch.cuda.current_device())
    record = kernel.record((1,), (32,), 0, [("pointer", 0), ("pointer", 1), ("scalar", "int", values.numel())])
    record.launch([on_device.data_ptr(), result.data_ptr()], torch.cuda.current_stream().cuda_stream)
    return result.cpu()


_CUBINS: dict[tuple[str, int], bytes] = {}


def all_operands() -> dict[str, list[torch.Tensor]]:
    """Return the operands of each op by name, and the values of each type that casts begin with."""
    return {name_of(case): operands(case) for case in op_cases()} | {f"cast {source}": [test_cast.samples(source)] for source in test_cast.TYPES}


def name_of(case: Case) -> str:
    return f"{case.op.name} {case.compute.name}"


def results(
    given: dict[str, list[torch.Tensor]], run: Callable[[Case, list[torch.Tensor]], torch.Tensor], cast: Callable[[torch.Tensor, str, str], torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return the results of all ops and casts by name; one that fails is left out, and said so."""
    out: dict[str, torch.Tensor] = {}
    for case in op_cases():
        attempt(out, name_of(case), lambda case=case: run(case, given[name_of(case)]))
    for source in test_cast.TYPES:
        (values,) = given[f"cast {source}"]
        for target in test_cast.TYPES:
            attempt(out, f"cast {source} {target}", lambda values=values, source=source, target=target: cast(values, source, target))
    return out


def attempt(out: dict[str, torch.Tensor], name: str, make: Callable[[], torch.Tensor]) -> None:
    try:
        out[name] = make()
    except RuntimeError as error:
        print(f"{name}: {str(error).splitlines()[0]}", flush=True)


def places(values: torch.Tensor) -> torch.Tensor:
    """Return numbers in the order of the values, one apart for neighbours; complex numbers as pairs."""
    if values.is_complex():
        values = torch.view_as_real(values)
    if not values.is_floating_point():
        return values.contiguous().view(torch.uint8).long() if values.dtype is torch.bool else values.to(torch.int64)
    bits = values.contiguous().view(INTEGERS[values.element_size()]).long()
    sign = -(1 << (8 * values.element_size() - 1))
    return torch.where(bits < 0, sign - bits, bits)


def differences(here: torch.Tensor, there: torch.Tensor) -> dict[str, Any]:
    """Return how many elements differ in value or in the sign of zero, and the largest distance in units in the last place."""
    a, b = (torch.view_as_real(x) if x.is_complex() else x for x in (here, there))
    same = a.contiguous().view(torch.uint8).reshape(a.numel(), -1).eq(b.contiguous().view(torch.uint8).reshape(a.numel(), -1)).all(1)
    if a.is_floating_point():
        same |= (a.isnan() & b.isnan()).reshape(-1)
    far = (places(here).reshape(-1) - places(there).reshape(-1)).abs()[~same]
    return {"elements": a.numel(), "differ": int((~same).sum()), "ulp": int(far.max()) if len(far) else 0}


def page(found: dict[str, Any]) -> str:
    """Return the page of a result of `compare`."""
    by_op: dict[str, dict[str, Any]] = {}
    for name, row in found["rows"].items():
        op, _, types = name.partition(" ")
        by_op.setdefault(op, {})[types.replace(" ", " to ")] = row
    lines = []
    for op, rows in by_op.items():
        off = {types: row for types, row in rows.items() if row["differ"]}
        apart = "; ".join(f"{types}: {row['differ']} of {row['elements']}, up to {row['ulp']} ulp" for types, row in off.items())
        lines.append(f"| `{op}` | {len(rows) - len(off)} of {len(rows)} | {apart or 'none'} |")
    return PAGE.format(device=found["device"], compared=len(found["rows"]), equal=sum(not row["differ"] for row in found["rows"].values()), rows="\n".join(lines))


PAGE = """# Exactness: where the emulator and the GPU give different bits, op by op

In {equal} of {compared} pairs of op and type the emulator and an {device} gave the same bytes. The table has, for the others, how many elements differ and by how many units in the last place
(ulp) at most. Always the same bytes: integers, casts, comparisons, minimum and maximum (with the sign of a zero), and operations that IEEE 754 rounds correctly (sums, products, quotients and
square roots of real numbers). Where results differ, one of the two is an approximate instruction of the chip, or comes from a different math library. The tests hold both to the limit `ulp` in
the op's definition, against float64.

Both ran on the same operands, made once: special values in every combination, some thousand random values for ops of one operand, all values of 16-bit types for casts. NaNs count as equal
whatever their bits. This page is made by `python tests/ops/exactness.py page RESULT.json`.

| op | types with the same bytes | where they differ |
|---|---|---|
{rows}
"""


def main() -> None:
    mode, path = sys.argv[1], Path(sys.argv[2])
    if mode == "emulated":
        with gzip.open(path, "wb", compresslevel=6) as file:
            given = all_operands()
            torch.save({"operands": given, "results": results(given, engines.run_emulated, test_cast.emulated)}, file)
    elif mode == "compare":
        with gzip.open(path) as file:
            kept = torch.load(io.BytesIO(file.read()))
        emulated, on_gpu = kept["results"], results(kept["operands"], engines.run_on_gpu, cast_on_gpu)
        rows = {name: differences(emulated[name], value) for name, value in on_gpu.items() if name in emulated}
        found = {"device": torch.cuda.get_device_name(), "rows": rows}
        Path(sys.argv[3]).write_text(json.dumps(found, indent=0))
        differing = {name: row for name, row in rows.items() if row["differ"]}
        print(len(rows), "compared,", len(differing), "differ:", json.dumps(differing), flush=True)
    else:
        (ROOT / "docs" / "exactness.md").write_text(page(json.loads(path.read_text())), encoding="utf-8")


if __name__ == "__main__":
    main()
