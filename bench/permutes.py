"""Transposes with a short innermost run on one side (pixels of 3 channels, matrices of 8 columns): as chosen, and element by element as before.

    python bench/permutes.py [OUT.json] [--only TEXT] [--rep-ms 30]
    python bench/permutes.py --counts            # no GPU: machine code of both kernels for four chips, and sectors of memory that their accesses touch

Each case is a fraction of a copy of the same bytes, right in every bit; "before" is the pointwise kernel as its scheduler chooses it, in the same process.
`--all` adds every candidate. Every third case is marked "held": nothing is tuned on it. Read first: `CASES`.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Iterator
from typing import Any

import torch
from forced import Forced
from measure import compile_ahead, copy_us, device_of, median_us, moved_bytes, parser, table, write

from weft import DataType, FusionDefinition
from weft.arch import arch_by_name
from weft.compiler import Proposal, compile_program, prepare
from weft.device.library import translation_unit
from weft.ir.enums import SchedulerType
from weft.runtime import runtimes
from weft.runtime.nvrtc import compile_cubin
from weft.runtime.resources import disassemble
from weft.schedulers.pointwise import PointWise
from weft.schedulers.transpose import Transpose

TYPES = {
    torch.bfloat16: DataType.BFloat16, torch.float32: DataType.Float, torch.float64: DataType.Double, torch.uint8: DataType.Byte,
    torch.complex64: DataType.ComplexFloat,
}  # fmt: skip
BF16, FLOAT, DOUBLE, BYTE, COMPLEX = TYPES
TO_LAST, TO_FIRST, TURN = (0, 2, 3, 1), (0, 3, 1, 2), (1, 0)
CASES: list[tuple[torch.dtype, tuple[int, ...], tuple[int, ...]]] = [
    (BF16, (256, 3, 224, 224), TO_LAST), (BF16, (64, 4, 512, 512), TO_LAST), (BF16, (128, 6, 256, 256), TO_LAST), (FLOAT, (128, 3, 224, 224), TO_LAST),
    (BYTE, (512, 3, 224, 224), TO_LAST), (BF16, (300, 3, 180, 180), TO_LAST), (BF16, (256, 224, 224, 3), TO_FIRST), (BF16, (64, 512, 512, 4), TO_FIRST),
    (BF16, (128, 256, 256, 6), TO_FIRST), (FLOAT, (128, 224, 224, 3), TO_FIRST), (BYTE, (512, 224, 224, 3), TO_FIRST), (BF16, (300, 180, 180, 3), TO_FIRST),
    (BF16, (4_000_000, 8), TURN), (BF16, (8, 4_000_000), TURN), (BF16, (10_000_000, 3), TURN), (BF16, (3, 10_000_000), TURN), (BF16, (16_000_000, 2), TURN),
    (BF16, (2_000_000, 15), TURN), (BF16, (2_500_000, 12), TURN), (FLOAT, (4_000_000, 4), TURN), (FLOAT, (7, 2_400_000), TURN), (FLOAT, (2_400_000, 7), TURN),
    (DOUBLE, (3_000_000, 3), TURN), (COMPLEX, (5_000_000, 2), TURN), (BYTE, (4_000_000, 12), TURN), (BF16, (3_333_334, 9), TURN),
    (BF16, (4096, 64, 64, 3), TO_FIRST), (BF16, (4096, 3, 64, 64), TO_LAST), (BF16, (20_000, 3, 32, 32), TO_LAST), (BF16, (20_000, 32, 32, 3), TO_FIRST),
    (BF16, (100_000, 2), TURN), (BF16, (32, 3, 224, 224), TO_LAST),
]  # fmt: skip
SMOKE = [(BF16, (560, 3), TURN), (FLOAT, (2, 3, 16, 24), TO_LAST)]
COUNTED = [
    (BF16, (256, 3, 256, 256), TO_LAST), (BF16, (256, 256, 256, 3), TO_FIRST), (BF16, (256, 4, 256, 256), TO_LAST), (BF16, (256, 256, 256, 4), TO_FIRST),
    (BF16, (4194304, 8), TURN), (BF16, (8, 4194304), TURN), (FLOAT, (4194304, 3), TURN), (FLOAT, (3, 4194304), TURN), (BYTE, (512, 256, 256, 3), TO_FIRST),
]  # fmt: skip
"""Sizes that tiles divide, so that machine code has no second version for the last tile."""
CHIPS = {"sm_80": "A100", "sm_90a": "H200", "sm_100a": "B200", "sm_120a": "B200"}
"""Targets, and whose choice is compiled for them."""
SECTOR, LANES = 32, 32


def definition(dtype: torch.dtype, shape: tuple[int, ...] | int, dims: tuple[int, ...]) -> FusionDefinition:
    """A permute whose result lies as it prints. shape: its sizes, or how many open ones."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1] * shape if isinstance(shape, int) else list(shape), contiguity=True, dtype=TYPES[dtype])
        fd.add_output(fd.ops.stride_order(fd.ops.permute(x, list(dims)), list(range(len(dims)))[::-1]))
    return fd


def label_of(dtype: torch.dtype, shape: tuple[int, ...], dims: tuple[int, ...]) -> str:
    return f"{str(dtype)[6:]} {'x'.join(map(str, shape))} {list(dims)}"


def values(dtype: torch.dtype, shape: tuple[int, ...], device: str) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=dtype, device=device) if dtype is BYTE else torch.randn(shape, device=device).to(dtype)


class Given(Forced):
    """A definition whose kernel has the params that `choose` was given, of the scheduler `kind`."""

    def __init__(self, fd: FusionDefinition, kind: SchedulerType) -> None:
        super().__init__(fd)
        self.kind = kind

    def request(self, use: Any, sizes: Any, engine: Any, options: Any, disable: frozenset[str] = frozenset()) -> Any:
        params = self.chosen.get(tuple(tuple(tensor.sizes) for tensor in sizes.bound.tensors.values()))
        return runtimes.request_for(Proposal(self.kind, params), use.part, runtimes.index_type_for(use, sizes), engine, options)


def kernels(dtype: torch.dtype, dims: tuple[int, ...], x: torch.Tensor, is_all: bool) -> dict[str, Given]:
    """Name -> definition: "now" as chosen, "before", and with is_all every candidate by its params."""
    out: dict[str, Given] = {}
    for scheduler in (Transpose(), PointWise()):
        fd = definition(dtype, len(dims), dims)
        sizes, engine = Given(fd, scheduler.name).sizes([x])
        (use,) = sizes.kernels
        analysis, arch = prepare(use.part.fusion).analysis(scheduler), engine.arch
        if scheduler.name is SchedulerType.transpose and scheduler.accept(analysis, sizes.env, {}, arch):
            continue
        params, _ = scheduler.choose(analysis, sizes.env, {}, arch)
        found = {"now" if scheduler.name is SchedulerType.transpose else "before": params}
        if is_all and scheduler.name is SchedulerType.transpose:
            found |= {f"{p.vector_elems} x {p.threads}": p for _, p in scheduler.candidates(analysis, sizes.env, {}, arch) if p != params}
        for name, each in found.items():
            out[name] = Given(definition(dtype, len(dims), dims), scheduler.name)
            out[name].choose([x], each)
    return out


# ---------------------------------------------------------------- counts, without a GPU
def instructions(sass: str) -> collections.Counter[str]:
    """Return how often each instruction stands in machine code."""
    found = re.findall(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+ )?([A-Z][A-Z0-9_]*)", sass, re.M)
    return collections.Counter(name for name in found if name != "NOP")


def sectors_of_single_reads(dtype: torch.dtype, shape: tuple[int, ...], dims: tuple[int, ...], vector: int) -> float:
    """Sectors that a warp touches for each 16 bytes it reads, one element at a time, of 32 neighbouring vectors of the result."""
    source = torch.arange(torch.Size(shape).numel(), dtype=torch.int32).view(shape).permute(dims)
    first = 12345 * LANES * vector
    flat = torch.arange(first, first + LANES * vector)
    places = source[torch.unravel_index(flat, source.shape)].view(LANES, vector) * dtype.itemsize // SECTOR
    touched = sum(places[:, n].unique().numel() for n in range(vector))
    return touched / (LANES * vector * dtype.itemsize / 16)


def counts() -> Iterator[list[Any]]:
    """Yield a row for each counted case, kernel and chip."""
    for dtype, shape, dims in COUNTED:
        moved = 2 * torch.Size(shape).numel() * dtype.itemsize
        for scheduler in (PointWise(), Transpose()):
            for target, chip in CHIPS.items():
                fd = definition(dtype, shape, dims)
                params, _ = scheduler.choose(prepare(fd.fusion).analysis(scheduler), {}, {}, arch_by_name(chip))
                program = compile_program(fd.fusion, Proposal(scheduler.name, params), DataType.Int32, name="kernel")
                unit = translation_unit(program.text, program.blocks)
                made = compile_cubin(unit, "kernel", target, max_registers=program.max_registers, ptxas_verbose=True)
                found, uses = instructions(disassemble(made.cubin) or ""), made.resources
                threads = [s.value for s in (*program.grid, *program.block)]
                of_16_bytes = sum(found.values()) * torch.Size(threads).numel() / (moved / 16)
                sectors = 0.5 if scheduler.name is SchedulerType.transpose else sectors_of_single_reads(dtype, shape, dims, params.vector_elems)
                spills = (uses.spill_store_bytes or 0) + (uses.spill_load_bytes or 0)
                kernel = "before" if scheduler.name is SchedulerType.pointwise else "now"
                yield [label_of(dtype, shape, dims), kernel, target, uses.registers, spills, round(of_16_bytes, 1), round(sectors, 2)]


# ---------------------------------------------------------------- times
def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--only", default="", help="cases whose label has this text")
    arguments.add_argument("--rep-ms", type=int, default=30)
    arguments.add_argument("--all", action="store_true", help="time every candidate")
    arguments.add_argument("--counts", action="store_true", help="count machine code instead; needs no GPU")
    a = arguments.parse_args()
    if a.counts:
        print(table(("case", "kernel", "chip", "registers", "spilled", "instructions per 16 bytes", "sectors per 16 bytes read"), counts()))
        return
    device, rows = device_of(a), []
    for n, (dtype, shape, dims) in enumerate(SMOKE if a.cpu_smoke else CASES):
        label = label_of(dtype, shape, dims)
        if a.only not in label:
            continue
        x = values(dtype, shape, device)
        found = kernels(dtype, dims, x, a.all)
        if not a.cpu_smoke:
            compile_ahead([given.wanted([x])[:2] for given in found.values()], 8)
        row: dict[str, Any] = {"case": label, "held": n % 3 == 2}
        copy = copy_us(2 * moved_bytes([x]), device)
        for name, given in found.items():
            (out,) = given([x])
            row[name] = round(copy / median_us(lambda: given([x]), device, a.rep_ms), 3)  # noqa: B023
            row["is_right"] = row.get("is_right", True) and bool(torch.equal(out, x.permute(dims)))
        row["params"] = str(found["now"].chosen) if "now" in found else "not taken"
        row["torch"] = round(copy / median_us(lambda: x.permute(dims).contiguous(), device, a.rep_ms), 3)  # noqa: B023
        rows.append(row)
        print(row, flush=True)
    columns = ("case", "held", "now", "before", "torch", "is_right")
    print(table(columns, [[row.get(name, "") for name in columns] for row in rows]))
    write(a, __file__, device, rows, is_row_a_line=True)


if __name__ == "__main__":
    main()
