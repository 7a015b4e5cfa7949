"""What lies between the products of GPT-2 and Llama blocks, forward and backward, and some graphs of padding, views and masks: through weft and Inductor.

    PYTHONPATH=. python bench/blocks.py [OUT.json] [--only TEXT] [--seconds S]

Each case is a function of torch tensors; what a product would give is an input. Both compilers are backends of torch.compile, static shapes. Per backend:
kernels of a step (torch.profiler), megabytes that they read and write (weft: tensors of each kernel, once; Inductor: its own count of what its kernels access),
microseconds of a step (median, L2 flushed), and the largest relative error of an output or gradient against eager torch in float64.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

FOLDER = tempfile.TemporaryDirectory()
os.environ |= {"TORCHINDUCTOR_CACHE_DIR": f"{FOLDER.name}/inductor", "TRITON_CACHE_DIR": f"{FOLDER.name}/triton"}

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from measure import device_of, kernel_times, median_us, parser, synchronize, table, write  # noqa: E402
from torch import Tensor  # noqa: E402

from weft.frontend.backend import backend  # noqa: E402
from weft.runtime import calls  # noqa: E402

TOKENS, WIDTH = 8192, 2048
Outputs = tuple[Tensor, ...]


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.float() if x.dtype is torch.bfloat16 else x
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * weight


def rotated(x: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


def gpt_block(x: Tensor, attention: Tensor, hidden: Tensor, down: Tensor, norm: Tensor, shift: Tensor, bias: Tensor, up_bias: Tensor) -> Outputs:
    """What is between the products of a GPT-2 block: bias and residual, layer norm, bias and GELU, bias and residual."""
    x = x + (attention + bias)
    y = F.layer_norm(x, x.shape[-1:], norm, shift)
    return y, F.gelu(hidden + up_bias, approximate="tanh"), x + (down + bias)


def llama_block(x: Tensor, attention: Tensor, gate: Tensor, up: Tensor, down: Tensor, norm: Tensor) -> Outputs:
    """Residual, RMS norm, SwiGLU, residual."""
    x = x + attention
    return rms_norm(x, norm), F.silu(gate) * up, x + down


def rope(qkv: Tensor, cos: Tensor, sin: Tensor) -> Outputs:
    """Heads out of one product, with rotary positions on queries and keys."""
    batch, length, width = qkv.shape
    q, k, v = qkv.view(batch, length, 3, -1, cos.shape[-1]).permute(2, 0, 3, 1, 4)
    return q * cos + rotated(q) * sin, k * cos + rotated(k) * sin, v.contiguous()


def pad_and_reduce(x: Tensor) -> Outputs:
    padded = F.pad(x, (3, 5, 2, 0))
    return padded.sum(-1), padded.mean(-2)


def softmax_of_heads(x: Tensor) -> Outputs:
    return (torch.softmax(x.view(x.shape[0], 16, -1).float() * 0.125, -1).to(x.dtype),)


def masked_mean(x: Tensor, mask: Tensor) -> Outputs:
    wide = mask.to(x.dtype)[..., None]
    return ((x * wide).sum(1) / wide.sum(1).clamp(min=1),)


def normal(device: str, *sizes: int) -> Tensor:
    return torch.randn(sizes, device=device, dtype=torch.bfloat16)


def cases(device: str, tokens: int, width: int) -> dict[str, tuple[Callable[..., Outputs], list[Tensor]]]:
    """Name -> function, inputs."""
    def rows(factor: int = 1) -> Tensor:
        return normal(device, tokens, factor * width)

    def weight(factor: int = 1) -> Tensor:
        return normal(device, factor * width)

    angles = [torch.randn(tokens // 4, 64, device=device).bfloat16() for _ in range(2)]
    return {
        "GPT-2 block": (gpt_block, [rows(), rows(), rows(4), rows(), weight(), weight(), weight(), weight(4)]),
        "Llama block": (llama_block, [rows(), rows(), rows(3), rows(3), rows(), weight()]),
        "rope from qkv": (rope, [normal(device, 4, tokens // 4, 3 * width), *angles]),
        "pad and reduce": (pad_and_reduce, [normal(device, 16, tokens // 16, width)]),
        "softmax after a view": (softmax_of_heads, [rows(2)]),
        "masked mean": (masked_mean, [normal(device, 16, tokens // 16, width), torch.rand(16, tokens // 16, device=device) < 0.7]),
    }  # fmt: skip


class Step:
    """A function, compiled or not, with the gradients of all its floating inputs if asked for."""

    def __init__(self, function: Callable[..., Outputs], inputs: list[Tensor], *, backward: bool) -> None:
        self.function, self.backward = function, backward
        self.inputs = [t.detach().requires_grad_(backward and t.is_floating_point()) for t in inputs]
        self.wanted = [t for t in self.inputs if t.requires_grad]
        self.gradients: list[Tensor] = []

    def __call__(self) -> list[Tensor]:
        outputs = self.function(*self.inputs)
        if not self.backward:
            return list(outputs)
        if not self.gradients:
            draw = torch.Generator(outputs[0].device).manual_seed(1)
            self.gradients = [torch.randn(o.shape, device=o.device, generator=draw).to(o.dtype) for o in outputs]
        return [*outputs, *torch.autograd.grad(outputs, self.wanted, self.gradients)]


def kernels_of(call: Callable[[], Any]) -> int:
    return sum(kernel.count for kernel in kernel_times(call) if "emset" not in kernel.name)


MOVED: list[int] = []
"""Bytes that the kernels of each call prepared by weft move."""
_prepare_call = calls.prepare_call


def recorded(caller: Any, sizes: Any, *others: Any) -> Any:
    """Prepare a call, and note what its kernels move."""
    MOVED.append(sum(sizes.moved_bytes(use) for use in sizes.kernels))
    return _prepare_call(caller, sizes, *others)


calls.prepare_call = recorded


def _backend(name: str, device: str) -> dict[str, Any]:
    if name != "weft":
        return {"backend": "inductor"}
    return {"backend": backend, "options": {"emulate": True}} if device == "cpu" else {"backend": backend}


def through(name: str, function: Callable[..., Outputs], inputs: list[Tensor], backward: bool, exact: list[Tensor], device: str) -> dict[str, Any]:
    """Return what one backend needs for a step."""
    from torch._inductor import compile_fx, metrics

    compile_fx.inductor_metrics_log.setLevel(logging.INFO)  # else it does not count bytes
    torch._dynamo.reset()
    metrics.reset()
    MOVED.clear()
    step = Step(torch.compile(function, dynamic=False, **_backend(name, device)), inputs, backward=backward)
    results = step()
    synchronize(device)
    row: dict[str, Any] = {f"{name} MB": round((sum(MOVED) if name == "weft" else metrics.num_bytes_accessed) / 1e6, 1)}
    row[f"{name} error"] = max(float((a.detach().double() - b).norm() / (b.norm() + 1e-30)) for a, b in zip(results, exact))
    del results
    if device != "cpu":
        step()
        row[f"{name} kernels"], row[f"{name} us"] = kernels_of(step), round(median_us(step, device), 1)
    return row


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--only", default="")
    arguments.add_argument("--seconds", type=float, default=float("inf"), help="begin no more cases after this long")
    a = arguments.parse_args()
    device, begin = device_of(a), time.perf_counter()
    torch.manual_seed(0)
    names = ("weft",) if a.cpu_smoke else ("weft", "inductor")
    found: list[dict[str, Any]] = []
    for case, (function, inputs) in cases(device, *((64, 128) if a.cpu_smoke else (TOKENS, WIDTH))).items():
        for backward in (False, True):
            if a.only not in case or time.perf_counter() - begin > a.seconds:
                continue
            wide = [t.double() if t.is_floating_point() else t for t in inputs]
            exact_step = Step(function, wide, backward=backward)
            if backward:
                shapes = function(*inputs)
                draw = torch.Generator(device).manual_seed(1)
                exact_step.gradients = [torch.randn(o.shape, device=device, generator=draw).to(o.dtype).double() for o in shapes]
                del shapes
            exact = [t.detach() for t in exact_step()]
            row: dict[str, Any] = {"case": f"{case}{', with gradients' if backward else ''}"}
            for name in names:
                row |= through(name, function, inputs, backward, exact, device)
            del exact, exact_step, wide
            found.append(row)
            print(row, flush=True)
    write(a, __file__, device, found, tokens=TOKENS, width=WIDTH)
    keys = ["case", *(f"{name} {what}" for what in ("kernels", "MB", "us", "error") for name in names)]
    print(table(keys, [[f"{row[k]:.1e}" if "error" in k else row.get(k, "") for k in keys] for row in found]))


if __name__ == "__main__":
    main()
