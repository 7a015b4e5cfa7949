"""Cases that are compared with torch in float64, and with 20 calls of themselves, before they are timed.

`channels.py` and `channels_backward.py` share it. Kernels are compiled by 16 processes before anything is measured. Read first: `run`.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from measure import compile_ahead, device_of, fraction_of_copy, moved_bytes, parser, requests_for, table, write

from weft import FusionDefinition

Call = Callable[[], Sequence[torch.Tensor]]


class Checked(Protocol):
    """A case: its inputs, its definition, and what the results must be, in float64."""

    @property
    def name(self) -> str: ...
    @property
    def label(self) -> str: ...
    def inputs(self, device: str) -> list[torch.Tensor]: ...
    def definition(self) -> FusionDefinition: ...
    def wanted(self, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]: ...


def checked_parser(what: str, seconds: float) -> argparse.ArgumentParser:
    """Return a parser with the arguments of `run`. seconds: after which no further case begins, if the user says nothing."""
    out = parser(what)
    out.add_argument("--seconds", type=float, default=seconds)
    out.add_argument("--only", default=".", help="cases whose label has this regular expression in it")
    return out


def run(a: argparse.Namespace, script: str, cases: Sequence[Checked], small: Callable[[Any], Checked], more: Callable[[Any, Call], Mapping[str, Any]]) -> None:
    """Check and time the cases, print a line for each, and write them.

    small: makes a case of the same name for the emulator. more: what else is measured of a case by calling it, as values of its row.
    """
    device, start = device_of(a), time.monotonic()
    chosen = [c for c in cases if re.search(a.only, c.label)]
    if a.cpu_smoke:
        chosen = list({c.name: small(c) for c in reversed(chosen)}.values())
    definitions = {c: c.definition() for c in chosen}
    kernels = compile_ahead((r for c in chosen for r in requests_for(definitions[c], c.inputs(device))), 2 if a.cpu_smoke else 16)
    rows: list[dict[str, Any]] = []
    for case in chosen:
        if time.monotonic() - start > a.seconds:
            print(f"no time for {case.label}")
            continue
        fd, inputs = definitions[case], case.inputs(device)
        call: Call = lambda fd=fd, inputs=inputs: fd.execute(inputs)  # type: ignore[misc]  # noqa: E731
        row = {"case": case.label, **check(case, call, inputs, 20 if device == "cuda" else 2)}
        row["fraction"] = round(fraction_of_copy(call, row["bytes"], device, rep_ms=20), 3)
        found = dict(more(case, call))
        row |= {"kernels": [f"{k.proposal.scheduler.name} {k.proposal.params}" for k in fd.fec.kernel_runtimes], **found}
        rows.append(row)
        names = ", ".join(k.split()[0] for k in row["kernels"])
        print(f"{case.label:48s} {row['fraction']:6.3f}  error {row['error']:.1e}  {names}  {' '.join(f'{k}: {v}' for k, v in found.items() if v)}", flush=True)
    shown = [[r["case"], r["fraction"], f"{r['error']:.1e}", r["differ"]] for r in rows]
    print(table(["case", "fraction", "error", "of so many calls differ"], shown))
    write(a, script, device, rows, compiled=kernels)


def check(case: Checked, call: Call, inputs: Sequence[torch.Tensor], calls: int) -> dict[str, Any]:
    """Return the bytes of inputs and results, the largest error (relative, L2 norm) of the results, and how many of further calls give other bits."""
    outs = call()
    errors = [float((out.double() - wanted).norm() / wanted.norm()) for out, wanted in zip(outs, case.wanted(inputs), strict=True)]
    differ = sum(not all(map(torch.equal, outs, call())) for _ in range(calls))
    return {"bytes": moved_bytes(inputs, outs), "error": max(errors), "differ": differ}
