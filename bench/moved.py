"""Bytes that the kernels of torch functions move, against those that they must, without a GPU: forward and backward through torch.compile.

    PYTHONPATH=. python bench/moved.py [OUT.json] [--only TEXT] [--chip H200]

Kernels are chosen for the chip and the real sizes; a stub takes the place of the emulator and launches nothing, so that size costs no time. What must move is
each input, gradient and output once. A kernel that reads a tensor again from L2, or its rows twice, counts it once. Read first: `FUNCTIONS`, `moved`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from by_count import report

import weft  # noqa: F401
from weft.lower.program import KernelProgram
from weft.runtime.engines import BuildReport, EmulatorEngine, LaunchPlan

BF16 = torch.bfloat16
Function = Callable[..., torch.Tensor]
Shapes = tuple[tuple[int, ...], ...]


def interleaved_rotary(q: torch.Tensor, c: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    even, odd = q[..., ::2], q[..., 1::2]
    return torch.stack((even * c - odd * s, even * s + odd * c), -1).flatten(-2)


def rotary(q: torch.Tensor, c: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    a, b = q.chunk(2, -1)
    return q * c + torch.cat((-b, a), -1) * s


def query_norm(x: torch.Tensor, w: torch.Tensor, c: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return rotary(F.rms_norm(x, x.shape[-1:], w), c, s)


def interleaved_query_norm(x: torch.Tensor, w: torch.Tensor, c: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    x = F.rms_norm(x, x.shape[-1:], w)
    even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
    return (x.float() * c + torch.stack((-odd, even), -1).flatten(-2).float() * s).to(x.dtype)


def heads_norm(x: torch.Tensor, w: torch.Tensor, c: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    """Layer norm of heads with weights of their own, then transposed, then interleaved rotary positions."""
    x = (F.layer_norm(x.float(), x.shape[-1:]) * w.float()).to(x.dtype).transpose(1, 2)
    turned = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    return (x.float() * c + turned.float() * s).to(x.dtype)


def dice(p: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    p = p.sigmoid()
    return 1 - (2 * (p * t).sum() + 1) / (p.sum() + t.sum() + 1)


def distillation(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.kl_div(x.float().log_softmax(-1), y.float().softmax(-1), reduction="batchmean")


def adaptive_norm(x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:]) * (1 + scale[:, None]) + shift[:, None]


def adaptive_norm_of_residual(x: torch.Tensor, r: torch.Tensor, gate: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    return adaptive_norm(r + gate[:, None] * x, scale, shift)


def biased_softmax(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return (x + bias).softmax(-1)


def add_norm(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x + r, x.shape[-1:], w)


def group_norm_silu(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.silu(F.group_norm(x, 32, w, b))


def group_norm_relu(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.relu(F.group_norm(x, 32, w, b))


def norm_of_samples(x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[1:])


def gated(x: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return F.silu(a) * b


def total_softmax(x: torch.Tensor) -> torch.Tensor:
    return x.flatten().softmax(0)


def loss_of_pixels(x: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x, torch.zeros(x.shape[0], *x.shape[2:], dtype=torch.long, device=x.device))


def enlarged(x: torch.Tensor) -> torch.Tensor:
    return F.silu(F.interpolate(x, scale_factor=2))


def enlarged_linearly(x: torch.Tensor) -> torch.Tensor:
    return F.interpolate(x, scale_factor=2, mode="bilinear")


def enlarged_between_corners(x: torch.Tensor) -> torch.Tensor:
    return F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True)


def halved(x: torch.Tensor) -> torch.Tensor:
    return x.unflatten(3, (-1, 2)).unflatten(2, (-1, 2)).mean((3, 5))


def shifted_tokens(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    return x * m + F.pad(x, (0, 0, 1, -1)) * (1 - m)


def running_shares(x: torch.Tensor) -> torch.Tensor:
    return x.softmax(-1).cumsum(-1)


def shared_heads(k: torch.Tensor) -> torch.Tensor:
    return k.repeat_interleave(4, 1) * 0.5


def shared_keys(k: torch.Tensor, c: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    """Keys with rotary positions, each for four heads."""
    return rotary(k, c, s).repeat_interleave(4, 1)


def pooled_batch_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.relu(F.batch_norm(x, None, None, w, b, training=True)).mean((2, 3))


def batch_norm_gelu_channels_last(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.gelu(F.batch_norm(x.permute(0, 3, 1, 2), None, None, w, b, training=True)).permute(0, 2, 3, 1)


def unpacked_heads(packed: torch.Tensor) -> torch.Tensor:
    a, b, c = packed.view(*packed.shape[:2], 3, 12, 64).permute(2, 0, 3, 1, 4).unbind(0)
    return a * b + c


def shifted_windows(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Swin: windows of a norm, shifted by half a window."""
    y = torch.roll(F.layer_norm(x, x.shape[-1:], w, b), (-3, -3), (1, 2))
    return y.unflatten(2, (-1, 7)).unflatten(1, (-1, 7)).transpose(2, 3).flatten(0, 2).contiguous()


def joined_windows(parts: torch.Tensor, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Swin: shifted windows put together again, a residual and a norm."""
    y = parts.view(x.shape[0], x.shape[1] // 7, -1, 7, 7, x.shape[3]).transpose(2, 3).reshape(x.shape)
    return F.layer_norm(x + torch.roll(y, (3, 3), (1, 2)), x.shape[-1:], w, b)


def merged_patches(x: torch.Tensor, bias: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Swin: two by two patches as one row of a norm, behind a bias."""
    x = (x + bias).unflatten(2, (-1, 2)).unflatten(1, (-1, 2)).permute(0, 1, 3, 4, 2, 5).flatten(3)
    return F.layer_norm(x, x.shape[-1:], w, b)


def norm_of_words(x: torch.Tensor, places: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """GPT-2: words with positions, as the residual and normalized."""
    x = x + places
    return x + F.layer_norm(x, x.shape[-1:], w, b)


def norm_of_patches(x: torch.Tensor, token: torch.Tensor, places: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """ViT: patches behind a class token, with positions, as the residual and normalized."""
    return norm_of_words(torch.cat((token.expand(x.shape[0], -1, -1), x), 1), places, w, b)


FUNCTIONS: dict[Function, Shapes] = {
    interleaved_rotary: ((4, 32, 2048, 128), (2048, 64), (2048, 64)), rotary: ((4, 32, 2048, 128), (2048, 128), (2048, 128)),
    dice: ((16, 1, 512, 512), (16, 1, 512, 512)), distillation: ((2048, 32000), (2048, 32000)),
    adaptive_norm: ((32, 1024, 1152), (32, 1152), (32, 1152)),
    adaptive_norm_of_residual: ((1, 4096, 3072), (1, 4096, 3072), (1, 3072), (1, 3072), (1, 3072)), biased_softmax: ((256, 12, 64, 64), (12, 64, 64)),
    add_norm: ((8192, 4096), (8192, 4096), (4096,)),
    group_norm_silu: ((16, 320, 64, 64), (320,), (320,)), group_norm_relu: ((16, 320, 64, 64), (320,), (320,)),
    query_norm: ((2, 4096, 32, 128), (128,), (4096, 1, 128), (4096, 1, 128)),
    interleaved_query_norm: ((2, 4096, 32, 128), (128,), (4096, 1, 128), (4096, 1, 128)),
    heads_norm: ((2, 4096, 32, 128), (32, 128), (4096, 128), (4096, 128)),
    loss_of_pixels: ((16, 150, 128, 128),), enlarged: ((16, 320, 32, 32),),
    enlarged_linearly: ((16, 128, 64, 64),), enlarged_between_corners: ((16, 128, 64, 64),),
    halved: ((16, 320, 64, 64),), shifted_tokens: ((8, 2048, 2048), (2048,)),
    running_shares: ((8192, 4096),), shared_heads: ((4, 8, 2048, 128),),
    shared_keys: ((1, 8, 4096, 128), (4096, 128), (4096, 128)),
    norm_of_samples: ((4, 64, 256, 256),), gated: ((8192, 8192),), total_softmax: ((2048, 4096),),
    pooled_batch_norm: ((64, 144, 56, 56), (144,), (144,)), batch_norm_gelu_channels_last: ((64, 56, 56, 144), (144,), (144,)),
    unpacked_heads: ((64, 196, 2304),), shifted_windows: ((64, 56, 56, 128), (128,), (128,)),
    joined_windows: ((4096, 7, 7, 128), (64, 56, 56, 128), (128,), (128,)), merged_patches: ((64, 56, 56, 128), (128,), (512,), (512,)),
    norm_of_words: ((8, 1024, 1024), (1024, 1024), (1024,), (1024,)), norm_of_patches: ((64, 196, 1024), (1, 1, 1024), (1, 197, 1024), (1024,), (1024,)),
}  # fmt: skip
"""A function, and the shapes of its arguments, which have gradients."""
TABLES = {shared_keys: 2, query_norm: 2, interleaved_query_norm: 2, heads_norm: 2}
"""How many arguments at the end have none."""


class Stub:
    """A kernel that counts the bytes of its tensors instead of running."""

    kept = ""

    def __init__(self, name: str, counted: list[tuple[str, int]]) -> None:
        self.name, self.counted, self.report = name, counted, BuildReport(compile_s=0.0)

    def check_residency(self, *_: Any) -> None:
        pass

    def launcher(self, plan: LaunchPlan) -> Callable[..., None]:
        bytes_ = sum(memory.bytes for memory in plan.memory if not memory.workspace)
        return lambda *_, **__: self.counted.append((self.name, bytes_))


@contextmanager
def counting(made: Callable[[KernelProgram, list[tuple[str, int]]], Stub] | None = None) -> Iterator[list[tuple[str, int]]]:
    """Let no kernel run; yield the list of (kernel, bytes of its tensors) of all launches. made: what stands in place of a kernel."""
    counted: list[tuple[str, int]] = []
    build = EmulatorEngine.build
    made = made or (lambda program, counted: Stub(program.name, counted))
    EmulatorEngine.build = lambda self, program, *_, **__: made(program, counted)  # type: ignore[assignment, return-value]
    try:
        yield counted
    finally:
        EmulatorEngine.build = build  # type: ignore[method-assign]


def moved(function: Function, shapes: Shapes) -> list[dict[str, Any]]:
    """Return a row for the forward and one for the backward of a function: bytes that kernels move, bytes that they must, and the kernels."""
    torch._dynamo.reset()
    rows = []
    with counting() as counted, torch.no_grad():
        given = [torch.zeros(shape, dtype=BF16) for shape in shapes]
        compiled = torch.compile(function, backend="weft", options={"emulate": True})
        out = compiled(*given)
        rows.append(_row(function, "forward", counted, [*given, out]))
        with torch.enable_grad():
            leaves = [t.requires_grad_() for t in given[: len(given) - TABLES.get(function, 0)]]
            out = compiled(*given)
        counted.clear()
        gradients = torch.autograd.grad(out, leaves, torch.ones_like(out))
        rows.append(_row(function, "backward", counted, [*given, out, *gradients]))
    return rows


def _row(function: Function, way: str, counted: list[tuple[str, int]], tensors: list[torch.Tensor]) -> dict[str, Any]:
    must, done = sum(t.nbytes for t in tensors), sum(bytes_ for _, bytes_ in counted)
    kernels = [(name, round(bytes_ / 1e6)) for name, bytes_ in counted]
    return {"case": f"{function.__name__}, {way}", "moved": done, "must": must, "ratio": round(done / must, 3), "kernels": kernels}


def main() -> None:
    functions = {function.__name__: function for function in FUNCTIONS}

    def line_of(row: dict[str, Any]) -> str:
        return f"{row['case']:32s} {row['ratio']:5.2f} of {row['must'] / 1e6:4.0f} MB in {len(row['kernels'])} kernels: {row['kernels']}"

    report(__doc__.split("\n")[0], functions, lambda name, chip: moved(functions[name], FUNCTIONS[functions[name]]), line_of)


if __name__ == "__main__":
    main()
