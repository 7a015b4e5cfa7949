"""Torch functions that models contain, forward and backward: bytes and instructions without a GPU, times beside Inductor with one.

    PYTHONPATH=. python bench/model_functions.py [--only TEXT]                  no GPU: bytes moved, and how long the instructions of a kernel take to issue
    PYTHONPATH=. python bench/model_functions.py OUT.json --time [--only TEXT]  a GPU: microseconds of all kernels, weft and Inductor
    PYTHONPATH=. python bench/model_functions.py --warm --share 0/14            a GPU: compiles only, so many processes side by side, before `--time`

Instructions are counted as if each were executed once, so loops count too little, and branches too much.
Functions that no other script has, here and in `task_functions.py`: pools, shuffled pixels, pads, embeddings, losses, gates. What takes longer than Inductor's
is on docs/slow_corners.md.
Read first: `counted`, `timed`.
"""

from __future__ import annotations

import argparse
import math
import re
import time
from collections.abc import Callable
from typing import Any

import applied_functions
import assigned_functions
import everyday_functions
import field_functions
import further_functions
import learning_functions
import moved
import physics_functions
import science_functions
import sensing_functions
import serving_functions
import task_functions
import torch
import torch.nn.functional as F
from by_count import compiled_for
from function_cases import BF, CASES, I, Input, R, case
from measure import FLUSHED_BYTES, KernelTime, kernel_times, write
from torch import Tensor

from weft.arch import Arch, arch_by_name
from weft.frontend.backend import backend as weft_backend
from weft.frontend.record import GRAPHS
from weft.lower.program import KernelProgram
from weft.runtime.engines import LaunchPlan
from weft.runtime.resources import disassemble

TABLES = (
    applied_functions, assigned_functions, everyday_functions, field_functions, further_functions, learning_functions, physics_functions,
    science_functions, sensing_functions, serving_functions, task_functions,
)  # fmt: skip
"""Their functions are in CASES."""
SCHEDULERS = 4
"""Of a multiprocessor; each issues an instruction of a warp per clock."""


@case(R(8192, 2 * 8192))
def geglu_packed(x: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return F.gelu(a) * b


@case(R(8192, 8192), R(8192, 8192))
def swiglu(a: Tensor, b: Tensor) -> Tensor:
    return F.silu(a) * b


@case(R(8, 16, 1024, 1024))
def causal_softmax(x: Tensor) -> Tensor:
    m = torch.ones(x.shape[-2], x.shape[-1], dtype=torch.bool, device=x.device).tril()
    return x.masked_fill(~m, float("-inf")).softmax(-1)


@case(R(8, 16, 1024, 1024), R(16))
def alibi_softmax(x: Tensor, slope: Tensor) -> Tensor:
    i = torch.arange(x.shape[-1], device=x.device)
    return (x + slope[:, None, None] * (i[None, :] - i[:, None])).softmax(-1)


@case(R(8192, 32000), I(32000, 8192), grads=(0,))
def cross_entropy(x: Tensor, t: Tensor) -> Tensor:
    return F.cross_entropy(x.float(), t)


@case(R(8192, 32000), I(32000, 8192), grads=(0,))
def smoothed_cross_entropy(x: Tensor, t: Tensor) -> Tensor:
    return F.cross_entropy(x.float(), t, label_smoothing=0.1)


@case(R(8192, 4096), R(4096), R(4096))
def layer_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, (4096,), w, b)


@case(R(64, 128, 56, 56), R(128), R(128))
def batch_norm_relu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.relu(F.batch_norm(x, None, None, w, b, True))


@case(R(64, 128, 56, 56), R(128, dt=torch.float32), R(128, dt=torch.float32))
def batch_norm_of_parameters(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.relu(F.batch_norm(x, None, None, w, b, True))


@case(R(16, 320, 64, 64), R(320), R(320), R(320), R(16, 320), R(16, 320))
def modulated_group_norm(x: Tensor, bias: Tensor, w: Tensor, b: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return F.silu(F.group_norm(x + bias[:, None, None], 32, w, b) * (1 + scale[..., None, None]) + shift[..., None, None])


@case(R(16, 128, 128, 128))
def instance_norm(x: Tensor) -> Tensor:
    return F.instance_norm(x)


@case(R(64, 96, 56, 56), R(96), R(96))
def convnext_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x.permute(0, 2, 3, 1), (96,), w, b).permute(0, 3, 1, 2)


@case(R(32, 128, 112, 112))
def avg_pool(x: Tensor) -> Tensor:
    return F.avg_pool2d(x, 2)


@case(R(32, 64, 112, 112))
def avg_pool_overlapping(x: Tensor) -> Tensor:
    return F.avg_pool2d(x, 3, 2, 1)


@case(R(64, 512, 28, 28))
def pooled(x: Tensor) -> Tensor:
    return F.adaptive_avg_pool2d(x, 1).flatten(1)


@case(R(16, 64, 128, 128))
def reflected(x: Tensor) -> Tensor:
    return F.pad(x, (1, 1, 1, 1), mode="reflect") * 2


@case(R(16, 64, 128, 128))
def continued(x: Tensor) -> Tensor:
    return F.pad(x, (1, 1, 1, 1), mode="replicate") * 2


@case(R(16, 64, 128, 128))
def wrapped(x: Tensor) -> Tensor:
    return F.pad(x, (1, 1, 1, 1), mode="circular") * 2


@case(R(16, 64, 128, 128))
def padded(x: Tensor) -> Tensor:
    return F.relu(F.pad(x, (1, 1, 1, 1)))


@case(R(16, 256, 128, 128))
def pixel_shuffled(x: Tensor) -> Tensor:
    return F.relu(F.pixel_shuffle(x, 2))


@case(R(16, 64, 256, 256))
def pixel_unshuffled(x: Tensor) -> Tensor:
    return F.relu(F.pixel_unshuffle(x, 2))


@case(R(64, 56, 56, 128))
def shifted_windows(x: Tensor) -> Tensor:
    x = torch.roll(x, (-3, -3), (1, 2))
    return x.view(64, 8, 7, 8, 7, 128).permute(0, 1, 3, 2, 4, 5).reshape(-1, 49, 128) * 2


@case(I(30522, 16, 512), R(30522, 768), R(512, 768), R(768), R(768), grads=(1, 2, 3, 4))
def bert_embedding(t: Tensor, e: Tensor, p: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(F.embedding(t, e) + p, (768,), w, b)


@case(R(8192, 4096), R(8192, 4096), R(4096), R(4096))
def dropout_add_norm(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(F.dropout(x, 0.1) + r, (4096,), w, b)


@case(R(8192, 4096))
def dropout_gelu(x: Tensor) -> Tensor:
    return F.dropout(F.gelu(x), 0.1)


@case(R(8192, 4096, dt=torch.float32))
def cumsum_rows(x: Tensor) -> Tensor:
    return x.cumsum(-1)


@case(R(8192, 4096))
def cumsum_columns(x: Tensor) -> Tensor:
    return x.float().cumsum(0)


@case(R(8192, 4096, dt=torch.float32))
def cumprod_rows(x: Tensor) -> Tensor:
    return (x * 0.01 + 1).cumprod(-1)


@case(R(16384, 1024))
def normalized(x: Tensor) -> Tensor:
    return F.normalize(x, dim=-1)


@case(R(16384, 2048), R(16384, 2048))
def cosine(x: Tensor, y: Tensor) -> Tensor:
    return F.cosine_similarity(x, y, dim=-1)


@case(R(8192, 8192), R(8192, 8192))
def smooth_l1(x: Tensor, y: Tensor) -> Tensor:
    return F.smooth_l1_loss(x, y)


@case(R(8192, 8192), R(8192, 8192))
def mse(x: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(x, y)


@case(R(8192, 4096), R(8192, 4096))
def bce_logits(x: Tensor, y: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(x, y.sigmoid())


@case(R(8192, 4096), R(8192, 4096), grads=(0,))
def focal(x: Tensor, y: Tensor) -> Tensor:
    p, t = x.float().sigmoid(), (y > 0).float()
    ce = F.binary_cross_entropy_with_logits(x.float(), t, reduction="none")
    pt = p * t + (1 - p) * (1 - t)
    return (ce * (1 - pt) ** 2 * (0.25 * t + 0.75 * (1 - t))).mean()


@case(R(8192, 8192))
def var_mean(x: Tensor) -> Tensor:
    v, m = torch.var_mean(x.float(), -1)
    return v + m


@case(R(64, 256, 56, 56))
def channel_means(x: Tensor) -> Tensor:
    return x.mean((0, 2, 3))


@case(R(16384, 1000), R(16384, 1000), R(16384, 1000))
def cat3(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return torch.cat([a, b, c], -1) * 2


@case(R(8, 2048, 32, 128))
def to_heads(x: Tensor) -> Tensor:
    return x.transpose(1, 2).contiguous() * 2


@case(R(8192, 4096), R(1000))
def prelu(x: Tensor, w: Tensor) -> Tensor:
    return F.prelu(x, w[:1])


@case(R(8192, 8192))
def mish(x: Tensor) -> Tensor:
    return F.mish(x)


@case(R(8192, 8192))
def hardswish(x: Tensor) -> Tensor:
    return F.hardswish(x)


@case(R(8192, 8192), grads=())
def int8_rows(x: Tensor) -> Tensor:
    s = x.abs().amax(-1, keepdim=True).float() / 127
    return (x / s).round().clamp(-128, 127).to(torch.int8)


@case(R(8192, 8192), grads=())
def fp8_rows(x: Tensor) -> Tensor:
    s = x.abs().amax(-1, keepdim=True).float() / 448
    return (x / s).to(torch.float8_e4m3fn)


@case(R(8192, 8192), grads=())
def fp8_tensor(x: Tensor) -> Tensor:
    s = x.abs().amax().float() / 448
    return (x / s).to(torch.float8_e4m3fn)


@case(R(8192, 8192))
def logsumexp(x: Tensor) -> Tensor:
    return x.logsumexp(-1)


@case(R(4096, 4096), R(4096, 1))
def weight_norm(v: Tensor, g: Tensor) -> Tensor:
    return v * (g / v.norm(dim=1, keepdim=True))


@case(R(64, 196, 1024), R(64, 196, 1024), R(1024))
def layer_scale(x: Tensor, y: Tensor, g: Tensor) -> Tensor:
    return x + y * g


@case(R(64, 256, 56, 56), R(64, 256))
def excited(x: Tensor, s: Tensor) -> Tensor:
    return x * s.sigmoid()[:, :, None, None]


@case(R(64, 256, 56, 56))
def squeezed_and_excited(x: Tensor) -> Tensor:
    return x * x.mean((2, 3), keepdim=True).sigmoid()


@case(R(4096, 4 * 2048), R(4096, 2048))
def lstm_cell(g: Tensor, c: Tensor) -> Tensor:
    i, f, o, n = g.chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * n.tanh()
    return o.sigmoid() * c.tanh()


@case(R(4096, 3 * 2048), R(4096, 3 * 2048), R(4096, 2048))
def gru_cell(x: Tensor, h: Tensor, s: Tensor) -> Tensor:
    xr, xz, xn = x.chunk(3, -1)
    hr, hz, hn = h.chunk(3, -1)
    z = (xz + hz).sigmoid()
    n = (xn + (xr + hr).sigmoid() * hn).tanh()
    return n + z * (s - n)


@case(Input((64, 224, 224, 3), torch.uint8, 256), grads=())
def image_normalized(x: Tensor) -> Tensor:
    m = torch.tensor([0.485, 0.456, 0.406], device=x.device)
    s = torch.tensor([0.229, 0.224, 0.225], device=x.device)
    return ((x.float() / 255 - m) / s).permute(0, 3, 1, 2).contiguous().to(BF)


@case(R(16, 256, 32, 32), R(16, 128, 64, 64))
def unet_skip(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([F.interpolate(x, scale_factor=2), y], 1) * 2


@case(R(16384, 256))
def fourier(x: Tensor) -> Tensor:
    y = x[:, :, None].float() * (2.0 ** torch.arange(8, device=x.device))
    return torch.cat([y.sin(), y.cos()], -1).flatten(1).to(BF)


@case(R(64, 128, 56, 56), R(128, dt=torch.float32), R(128, dt=torch.float32), R(128, dt=torch.float32), R(128, dt=torch.float32), grads=(0, 3, 4))
def batch_norm_eval(x: Tensor, m: Tensor, v: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.relu(F.batch_norm(x, m, v.abs(), w, b, False))


@case(R(64, 3, 224, 224), I(64, 64), grads=(0,))
def mixup(x: Tensor, p: Tensor) -> Tensor:
    return 0.3 * x + 0.7 * x[p]


@case(R(16384, 64))
def router(x: Tensor) -> Tensor:
    w, i = x.float().softmax(-1).topk(8, -1)
    return w / w.sum(-1, keepdim=True)


@case(R(32, 1024, 1024), R(32, 1024))
def attention_pool(x: Tensor, s: Tensor) -> Tensor:
    return (x * s.softmax(-1)[:, :, None]).sum(1)


@case(R(8, 2048, 4096), R(8, 2048, 4096), R(8, 2048, 4096))
def gated_residual(x: Tensor, g: Tensor, r: Tensor) -> Tensor:
    return r + x * g.tanh()


@case(R(8192, 4096), R(4096), R(4096))
def bias_gelu_bias(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return F.gelu(x + a) * 0.5 + b


@case(R(16, 512, 1024), grads=())
def argmax_rows(x: Tensor) -> Tensor:
    return x.argmax(-1)


@case(R(16384, 4096), I(4096, 16384, 8), grads=(0,))
def gathered(x: Tensor, i: Tensor) -> Tensor:
    return x.gather(1, i) * 2


@case(R(16384, 2048), I(16384, 32768), grads=(0,))
def routed_rows(x: Tensor, i: Tensor) -> Tensor:
    return x[i] * 2


@case(R(8192, 4096))
def relu_squared(x: Tensor) -> Tensor:
    return F.relu(x).square()


@case(R(4096, 8192), grads=())
def sampled(x: Tensor) -> Tensor:
    return (x.float() / 0.7).softmax(-1)


@case(R(2, 4096, 4096), R(2, 4096, 4096))
def token_shift(x: Tensor, m: Tensor) -> Tensor:
    return x + (F.pad(x, (0, 0, 1, -1)) - x) * m


@case(R(64, 64, 112, 112))
def max_pool(x: Tensor) -> Tensor:
    return F.max_pool2d(x, 3, 2, 1)


@case(R(64, 64, 112, 112), R(64, dt=torch.float32), R(64, dt=torch.float32))
def pooled_stem(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.max_pool2d(F.relu(F.batch_norm(x, None, None, w, b, True)), 3, 2, 1)


@case(R(64, 197, 768))
def class_token_dropped(x: Tensor) -> Tensor:
    return x[:, 1:].transpose(1, 2).reshape(64, 768, 14, 14) * 2


@case(R(16, 128, 64, 64))
def bilinear(x: Tensor) -> Tensor:
    return F.interpolate(x, scale_factor=2, mode="bilinear")


@case(R(16, 128, 64, 64))
def bilinear_to_size(x: Tensor) -> Tensor:
    return F.interpolate(x, size=(100, 100), mode="bilinear")


@case(R(16, 64, 128, 128))
def bilinear_halved(x: Tensor) -> Tensor:
    return F.interpolate(x, size=(64, 64), mode="bilinear")


@case(R(16, 64, 64, 64))
def bicubic(x: Tensor) -> Tensor:
    return F.interpolate(x, scale_factor=2, mode="bicubic")


@case(R(16, 64, 128, 128))
def blur(x: Tensor) -> Tensor:
    k = torch.tensor([1.0, 2.0, 1.0], device=x.device, dtype=x.dtype)
    y = F.pad(x, (1, 1, 1, 1), mode="reflect")
    h = (y[..., :-2] * k[0] + y[..., 1:-1] * k[1] + y[..., 2:] * k[2]) / 4
    return (h[..., :-2, :] * k[0] + h[..., 1:-1, :] * k[1] + h[..., 2:, :] * k[2]) / 4


@case(R(8192, 4096), R(8192, 4096))
def js_divergence(x: Tensor, y: Tensor) -> Tensor:
    p, q = x.float().softmax(-1), y.float().softmax(-1)
    m = (p + q) / 2
    return ((p * (p / m).log()).sum(-1) + (q * (q / m).log()).sum(-1)).mean()


@case(R(8192, 4096))
def entropy(x: Tensor) -> Tensor:
    logs = x.float().log_softmax(-1)
    return -(logs.exp() * logs).sum(-1).mean()


@case(R(8192, 4096), R(8192, 4096))
def dpo_margin(x: Tensor, y: Tensor) -> Tensor:
    return -F.logsigmoid((x.float() - y.float()).sum(-1)).mean()


class _Counted(moved.Stub):
    """A kernel that is compiled and not run: it tells how many instructions it has."""

    def __init__(self, program: KernelProgram, counted: list[tuple[str, int]], arch: Arch) -> None:
        super().__init__(program.name, counted)
        text = disassemble(compiled_for(program, arch).cubin) or ""
        self.instructions, self.arch = sum(found != "NOP" for found in re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\d+\s+)?([A-Z0-9_]+)", text)), arch

    def launcher(self, plan: LaunchPlan) -> Callable[..., None]:
        bytes_ = sum(memory.bytes for memory in plan.memory if not memory.workspace)
        warps = math.prod(plan.grid) * -(-math.prod(plan.block) // 32)
        issue_us = self.instructions * warps / (self.arch.sm_count * SCHEDULERS * self.arch.sm_clock_khz * 1e3) * 1e6
        bytes_us = bytes_ / self.arch.roof_bytes_per_s * 1e6

        def launch(*_: Any, **__: Any) -> None:
            self.counted.append((self.name, bytes_))
            print(f"    {self.name}: {self.instructions} instructions in {warps} warps, {issue_us:.0f} us; {bytes_us:.0f} us for the bytes", flush=True)

        return launch


def counted(name: str, arch: Arch) -> None:
    """Print what the kernels of a function move and issue, forward and backward."""
    torch._dynamo.reset()
    one = CASES[name]
    with moved.counting(lambda program, launches: _Counted(program, launches, arch)) as launches, torch.no_grad():
        given = [i.made("cpu") for i in one.inputs]
        compiled = torch.compile(one.function, backend="weft", options={"emulate": True})
        out = _several(compiled(*given))
        _tell(name, "forward", launches, [*given, *out])
        if not one.with_gradient:
            return
        leaves = [given[n].requires_grad_() for n in one.with_gradient]
        with torch.enable_grad():
            out = _several(compiled(*given))
        launches.clear()
        moving = _moving(out)
        _tell(name, "backward", launches, [*given, *out, *torch.autograd.grad(moving, leaves, [torch.ones_like(o) for o in moving])])


def _several(out: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return out if isinstance(out, tuple) else (out,)


def _moving(out: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the results that have a gradient."""
    return tuple(o for o in out if o.requires_grad)


def _tell(name: str, way: str, launches: list[tuple[str, int]], tensors: list[Tensor]) -> None:
    must, done = sum(t.nbytes for t in tensors), sum(bytes_ for _, bytes_ in launches)
    graph = GRAPHS[-1] if GRAPHS else None  # of a function in pieces, the last one's
    left = {op: why for op, (_, why) in graph.torch_ops.items()} if graph else {}
    left |= {call.__name__: call.fallback_reason for call in (graph.calls if graph else ()) if call.fallback_reason}
    print(f"{name}, {way}: {done / must:.2f} of {must / 1e6:.0f} MB in {len(launches)} kernels{f'; torch runs {left}' if left else ''}", flush=True)


def timed(name: str, backend: str, only_compiles: bool) -> dict[str, list[KernelTime]]:
    """Return the kernels of a call, forward and backward: medians over calls, L2 flushed before each."""
    torch._dynamo.reset()
    torch._functorch.config.donated_buffer = False  # the backward runs more than once
    torch.manual_seed(0)
    one, found = CASES[name], dict[str, list[KernelTime]]()
    given = [i.made("cuda") for i in one.inputs]
    compiled = torch.compile(one.function, backend=weft_backend if backend == "weft" else backend)

    def measure(way: str, call: Callable[[], Any]) -> None:
        for _ in range(1 if only_compiles else 4):
            call()
        found[way] = [] if only_compiles else kernel_times(call, 8, flushed_bytes=FLUSHED_BYTES)

    with torch.no_grad():
        measure("forward", lambda: compiled(*given))
    leaves = [given[n].requires_grad_() for n in one.with_gradient]
    if leaves:
        out = _moving(_several(compiled(*given)))
        slopes = [torch.randn_like(o) for o in out]
        measure("backward", lambda: torch.autograd.grad(out, leaves, slopes, retain_graph=True))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", nargs="?", default="")
    parser.add_argument("--only", default="", help="names that contain this")
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--warm", action="store_true", help="compile only")
    parser.add_argument("--share", default="0/1", help="the first of so many processes is 0/14")
    parser.add_argument("--chip", default="H200")
    given = parser.parse_args()
    share, shares = map(int, given.share.split("/"))
    rows = []
    for name in [n for n in CASES if given.only in n][share::shares]:
        try:
            if not given.time and not given.warm:
                began = time.perf_counter()
                counted(name, arch_by_name(given.chip))
                print(f"    {time.perf_counter() - began:.1f} s", flush=True)
                continue
            theirs, ours = (timed(name, backend, given.warm) for backend in ("inductor", "weft"))
        except Exception as error:  # noqa: BLE001  (the next function is to run, too)
            print("FAILED", name, type(error).__name__, str(error)[:300], flush=True)
            continue
        for way in ours if given.time else ():
            us, other = (sum(kernel.us for kernel in found[way]) for found in (ours, theirs))
            kernels = {kernel.name[:60]: round(kernel.us, 1) for kernel in ours[way]}
            print(f"{other / us:5.2f} {name}, {way}: {us:.1f} us in {sum(k.count for k in ours[way])} kernels, Inductor {other:.1f}: {kernels}", flush=True)
            rows.append({"case": f"{name}, {way}", "us": us, "inductor_us": other, "us_of": kernels})
            if given.out:  # after each: a run may end early
                write(given, __file__, "cuda", rows, is_row_a_line=True)
        torch.cuda.empty_cache() if torch.cuda.is_available() else None


if __name__ == "__main__":
    main()
