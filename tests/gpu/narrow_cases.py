"""Narrow types for compute-sanitizer: odd widths, one row, slices at every byte, no rows, each recipe, scales in tiles and columns, all ways to keep rows.

    PYTHONPATH=. compute-sanitizer --tool memcheck python tests/gpu/narrow_cases.py [--only TEXT] [--share 0/2]
    (also --tool racecheck, --tool initcheck)

Every result is compared with the reference of the same inputs; exits with 1 when one is wrong. Read first: `cases`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).resolve().parents[1] / "narrow"))

from narrow_tensors import FP4, NARROW, random_codes, random_values  # noqa: E402

from weft import DataType, FusionDefinition, quantize  # noqa: E402
from weft.options import options  # noqa: E402
from weft.reference import narrow  # noqa: E402
from weft.reference.torch_types import torch_dtype  # noqa: E402

FLOAT, BF16, E4M3 = DataType.Float, DataType.BFloat16, DataType.Float8_e4m3fn
Case = tuple[str, Callable[[], bool]]


def cast_agrees(source: DataType, target: DataType, x: torch.Tensor) -> bool:
    """Cast on the GPU; compare bytes with the reference."""
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.cast(fd.define_tensor([-1, -1], contiguity=[False, True], dtype=source), target))
    found = fd.execute([x])[0].cpu()
    values = narrow.values_of(x.cpu(), source) if source.is_narrow_float else x.cpu().double()
    if target.is_narrow_float:
        return torch.equal(found.view(torch.uint8), narrow.packed(values, target).view(torch.uint8))
    return torch.equal(found.double(), values.to(torch_dtype(target)).double())


def casts() -> Iterator[Case]:
    for kind in NARROW:
        for rows, columns in ((1, 2), (1, 4096), (3, 34), (129, 254), (0, 64)):
            yield f"{kind.name} to bf16 {rows}x{columns}", lambda k=kind, r=rows, c=columns: cast_agrees(k, BF16, random_codes((r, c), k).cuda())
            yield f"float to {kind.name} {rows}x{columns}", lambda k=kind, r=rows, c=columns: cast_agrees(FLOAT, k, random_values((r, c), FLOAT).cuda())
    for offset in (1, 2, 4, 8, 16):
        yield f"FP4 to bf16 from byte {offset}", lambda o=offset: cast_agrees(FP4, BF16, random_codes((5, 1088), FP4).cuda()[:, o : o + 512])
        yield f"e4m3 to float from byte {offset}", lambda o=offset: cast_agrees(E4M3, FLOAT, random_codes((5, 544), E4M3).cuda()[:, o : o + 512])
        yield f"bf16 to FP4 from element {offset}", lambda o=offset: cast_agrees(BF16, FP4, random_values((5, 544), BF16).cuda()[:, o : o + 512])


RECIPES: dict[str, Callable[..., tuple[torch.Tensor, ...]]] = {
    "nvfp4": quantize.nvfp4, "nvfp4 in tiles": lambda x: quantize.nvfp4(x, None, "128x4"), "mxfp8": quantize.mxfp8, "mxfp4": quantize.mxfp4,
    "mxfp8 in tiles": lambda x: quantize.mxfp8(x, "128x4"), "1x128": quantize.per_1x128, "1x128 in columns": lambda x: quantize.per_1x128(x, "columns"),
    "mxfp8 padded": lambda x: quantize.mxfp8(x, "te"), "1x128 padded": lambda x: quantize.per_1x128(x, "te"),
    "nvfp4 and the largest": lambda x: quantize.nvfp4(x, has_amax=x.numel() > 0),
    "back from tiles": lambda x: (quantize.dequantize(*quantize.nvfp4(x, None, "128x4"), dtype=torch.float32, layout="128x4"),),
    "back": lambda x: (quantize.dequantize(*quantize.mxfp8(x), dtype=torch.float32),),
    "nvfp4 hadamard": lambda x: quantize.nvfp4(x, None, "128x4", hadamard=(1, -1, -1, 1) * 4), "nvfp4 in groups": lambda x: in_groups(x),
    "per row": quantize.per_row, "per tensor": lambda x: quantize.per_tensor_current(x), "delayed": lambda x: quantize.per_tensor(x, torch.tensor(3.0, device=x.device)),
}  # fmt: skip


def same_bytes(recipe: Callable[..., tuple[torch.Tensor, ...]], x: torch.Tensor, way: str) -> bool:
    """Run on the GPU and in the emulator; compare bytes."""
    with options(rows=way):
        found, wanted = recipe(x), recipe(x.cpu().contiguous())
    return all(is_same(a.cpu(), b) for a, b in zip(found, wanted, strict=True))


def is_same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a, b) if a.dtype == torch.float32 else torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def in_groups(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Rows of five groups, some without rows, quantized to NVFP4, with the scales of each in tiles of its own."""
    m = x.shape[0]
    begins = torch.tensor([0, m // 5, m // 5, m // 2, m])
    tiles = (torch.diff(begins, append=torch.tensor([m])) + 127) // 128 * 128
    places = torch.cumsum(tiles, 0) - tiles
    return tuple(GROUPS.execute([x, begins.int().to(x.device), places.int().to(x.device)]))


with FusionDefinition() as GROUPS:
    _rows = GROUPS.define_tensor([-1, -1], contiguity=True, dtype=BF16)
    for _result in GROUPS.ops.nv_grouped_block_quantize(_rows, *(GROUPS.define_tensor([-1], dtype=DataType.Int32) for _ in range(2))):
        GROUPS.add_output(_result)


BOTH_WAYS: dict[str, Callable[..., tuple[torch.Tensor, ...]]] = {
    "nvfp4 both ways": quantize.nvfp4_both_ways, "nvfp4 both ways in tiles": lambda x: quantize.nvfp4_both_ways(x, None, "128x4"),
    "nvfp4 both ways padded": lambda x: quantize.nvfp4_both_ways(x, None, "te"), "mxfp8 both ways padded": lambda x: quantize.mxfp8_both_ways(x, "te"),
    "mxfp8 both ways": quantize.mxfp8_both_ways, "mxfp8 both ways in tiles": lambda x: quantize.mxfp8_both_ways(x, "128x4"),
}  # fmt: skip


def at_element(x: torch.Tensor, first: int) -> torch.Tensor:
    """The same numbers on the GPU, so many elements behind an aligned address."""
    store = torch.empty(x.numel() + first, dtype=x.dtype, device="cuda")
    store[first:] = x.flatten().cuda()
    return store[first:].view(x.shape)


def recipes() -> Iterator[Case]:
    for name, recipe in BOTH_WAYS.items():
        for rows, columns in ((32, 32), (96, 1056), (4128, 64), (0, 64)):
            yield f"{name} {rows}x{columns}", lambda f=recipe, r=rows, c=columns: same_bytes(f, random_values((r, c), BF16).cuda(), "auto")
    for name, recipe in RECIPES.items():
        for rows, columns in ((1, 128), (3, 384), (129, 640), (0, 128), (5, 4224)):
            yield f"{name} {rows}x{columns}", lambda f=recipe, r=rows, c=columns: same_bytes(f, random_values((r, c), BF16).cuda(), "auto")
        yield f"{name} misaligned", lambda f=recipe: same_bytes(f, random_values((7 * 256 + 1,), BF16).cuda()[1:].view(7, 256), "auto")
    for name in ("nvfp4 both ways", "mxfp8 both ways"):
        yield f"{name} misaligned", lambda f=BOTH_WAYS[name]: same_bytes(f, random_values((96 * 1056 + 1,), BF16).cuda()[1:].view(96, 1056), "auto")
    for recipe in (quantize.rms_norm_nvfp4, quantize.rms_norm_mxfp8, quantize.rms_norm_per_1x128):
        for x_at, w_at in ((1, 0), (0, 1), (3, 1)):
            x, w = at_element(random_values((7, 2048), BF16), x_at), at_element(random_values((2048,), BF16), w_at)
            yield f"{recipe.__name__} from elements {x_at} and {w_at}", lambda f=recipe, x=x, w=w: same_codes(f, x, w, "auto")
    w = random_values((2048,), BF16)
    for way in ("register", "tma", "specialized"):
        for recipe in (quantize.rms_norm_nvfp4, quantize.rms_norm_mxfp8):
            yield f"{recipe.__name__} {way}", lambda f=recipe, way=way: same_codes(f, random_values((140, 2048), BF16).cuda(), w.cuda(), way)
    for rows, columns in ((16896, 1024), (4224, 4096), (2176, 8192)):
        yield f"rms_norm_nvfp4 four rows per block {rows}x{columns}", lambda r=rows, c=columns: same_as_in_registers(r, c)


def same_codes(function: Callable[..., tuple[torch.Tensor, ...]], x: torch.Tensor, w: torch.Tensor, way: str) -> bool:
    """Norms sum in another order in the emulator: few codes may differ."""
    with options(rows=way):
        found = function(x, w)
        wanted = function(x.cpu(), w.cpu())
    return all(is_near(a.cpu(), b) for a, b in zip(found, wanted, strict=True))


def is_near(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Scales of Float within 1e-5, codes all but one in a hundred."""
    if a.dtype == torch.float32:
        return torch.allclose(a, b, rtol=1e-5, atol=0)
    return float((a.view(torch.uint8) != b.view(torch.uint8)).double().mean()) < 0.01


def same_as_in_registers(rows: int, columns: int) -> bool:
    """Four rows of a tile per block against rows in registers, whose sums have another order: few codes may differ."""
    x, w = random_values((rows, columns), BF16).cuda(), random_values((columns,), BF16).cuda()
    x[rows // 2] = 0
    with options(rows="tma"):
        found = quantize.rms_norm_nvfp4(x, w, layout="128x4")
    with options(rows="register"):
        wanted = quantize.rms_norm_nvfp4(x, w, layout="128x4")
    return all(float((a.view(torch.uint8) != b.view(torch.uint8)).double().mean()) < 0.01 for a, b in zip(found, wanted, strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name has this text")
    parser.add_argument("--share", default="0/1", help="I/N: of these, each Nth from the Ith on")
    given = parser.parse_args()
    first, step = map(int, given.share.split("/"))
    chosen, wrong = [case for case in (*casts(), *recipes()) if given.only in case[0]][first::step], 0
    for name, agrees in chosen:
        is_right = agrees()
        wrong += not is_right
        print(f"{'ok   ' if is_right else 'WRONG'} {name}", flush=True)
    print(f"{len(chosen) - wrong} of {len(chosen)} right", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
