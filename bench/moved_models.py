"""Bytes that the regions of whole models move at real sizes, against those that they must, without a GPU: training, forward and backward.

    PYTHONPATH=. python bench/moved_models.py [OUT.json] [--only TEXT] [--chip H200]

A model is traced with memory that nothing touches, and cut into regions as ever; nothing of it runs. Each region is called once with tensors of the traced
sizes and a stub in place of the emulator. What must move is each of its inputs and outputs once; of a tensor that a
kernel looks up in part (an embedding, a class token) all of it is counted. Regions that waste little are not shown, but are in OUT.json; so are the ops,
other than products, that stay with torch. Models of timm need timm. Read first: `MODELS`, `regions_of`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import models
import torch
import torch.nn.functional as F
from by_count import report
from moved import BF16, counting
from torch import nn

from weft.frontend import ahead, backend, region_call
from weft.frontend.calling import PRODUCTS
from weft.frontend.origins import bytes_of
from weft.frontend.record import GRAPHS, counts

LEAST_RATIO, LEAST_WASTE = 1.15, 1_000_000
"""What is shown wastes more. Units of the second: bytes."""
Inputs = tuple[torch.Tensor, ...]


class Llama(nn.Module):
    """One layer with keys shared by heads, norms of queries and keys (Qwen 3), an embedding and the loss."""

    def __init__(self, width: int, heads: int, shared: int, hidden: int, words: int, *, has_norms: bool) -> None:
        super().__init__()
        self.size, self.has_norms = width // heads, has_norms
        self.embedding, self.head = nn.Embedding(words, width), nn.Linear(width, words, bias=False)
        self.norm1, self.norm2, self.norm3 = (models.RMSNorm(width) for _ in range(3))
        self.query_norm, self.key_norm = models.RMSNorm(self.size), models.RMSNorm(self.size)
        self.q, self.k, self.v = (nn.Linear(width, n * self.size, bias=False) for n in (heads, shared, shared))
        self.out, self.down = nn.Linear(width, width, bias=False), nn.Linear(hidden, width, bias=False)
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)

    def forward(self, tokens: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        frequency = 10000 ** (-torch.arange(0, self.size, 2, device=x.device).float() / self.size)
        angle = torch.outer(torch.arange(x.shape[1], device=x.device).float(), frequency).repeat(1, 2)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        y = self.norm1(x)
        q, k, v = (part(y).unflatten(-1, (-1, self.size)) for part in (self.q, self.k, self.v))
        if self.has_norms:
            q, k = self.query_norm(q), self.key_norm(k)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        q, k = (t * cos + models.rotated(t) * sin for t in (q, k))
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        y = self.norm2(x)
        x = self.norm3(x + self.down(F.silu(self.gate(y)) * self.up(y)))
        return F.cross_entropy(self.head(x).float().flatten(0, 1), target.flatten())


class Bert(nn.Module):
    """One layer with norms behind it and dropout, embeddings and the head of words."""

    def __init__(self, width: int, words: int) -> None:
        super().__init__()
        self.words, self.places, self.kinds = nn.Embedding(words, width), nn.Embedding(512, width), nn.Embedding(2, width)
        self.norm1, self.norm2, self.norm3, self.norm4 = (nn.LayerNorm(width, eps=1e-12) for _ in range(4))
        self.q, self.k, self.v, self.out, self.transform = (nn.Linear(width, width) for _ in range(5))
        self.up, self.down, self.drop, self.bias = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.Dropout(0.1), nn.Parameter(torch.zeros(words))

    def forward(self, tokens: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.drop(self.norm1(self.words(tokens) + self.kinds(torch.zeros_like(tokens)) + self.places(places)))
        q, k, v = (part(x).unflatten(-1, (-1, 64)).transpose(1, 2) for part in (self.q, self.k, self.v))
        x = self.norm2(x + self.drop(self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))))
        x = self.norm3(x + self.drop(self.down(F.gelu(self.up(x)))))
        logits = F.linear(self.norm4(F.gelu(self.transform(x))), self.words.weight, self.bias)
        return F.cross_entropy(logits.float().flatten(0, 1), target.flatten())


class DiT(nn.Module):
    """One block: layer norms with a scale, a shift and a gate per sample."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm, self.change = heads, nn.LayerNorm(width, elementwise_affine=False, eps=1e-6), nn.Linear(width, 6 * width)
        self.qkv, self.out, self.up, self.down = (nn.Linear(a * width, b * width) for a, b in ((1, 3), (1, 1), (1, 4), (4, 1)))

    def forward(self, x: torch.Tensor, c: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.change(F.silu(c))[:, None].chunk(6, -1)
        qkv = self.qkv(self.norm(x) * (1 + scale1) + shift1)
        q, k, v = qkv.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + gate1 * self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        x = x + gate2 * self.down(F.gelu(self.up(self.norm(x) * (1 + scale2) + shift2), approximate="tanh"))
        return F.mse_loss(x.float(), target.float())


class Mamba(nn.Module):
    """A block of Mamba 2 without the scan over tokens: convolution along tokens, time steps, gated norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner, self.heads = 2 * width, 2 * width // 64
        self.norm, self.gated_norm = models.RMSNorm(width), models.RMSNorm(self.inner)
        self.split = (self.inner, self.inner + 256, self.heads)
        self.into, self.out = nn.Linear(width, sum(self.split), bias=False), nn.Linear(self.inner, width, bias=False)
        self.conv = nn.Parameter(torch.zeros(self.inner + 256, 4))
        self.step_bias, self.decay, self.skip = (nn.Parameter(torch.zeros(self.heads)) for _ in range(3))

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        z, y, step = self.into(self.norm(x)).split(self.split, -1)
        y = F.silu(sum(F.pad(y, (0, 0, 3 - n, 0))[:, : y.shape[1]] * self.conv[:, n] for n in range(4)))
        y, b, c = y.split((self.inner, 128, 128), -1)
        step = F.softplus(step.float() + self.step_bias)
        decay = (step * -torch.exp(self.decay.float())).cumsum(1).exp()
        heads = y.unflatten(-1, (self.heads, 64)) * (step * decay)[..., None].to(y.dtype)
        y = heads * self.skip[:, None] + ((b * c).sum(-1, keepdim=True)[..., None] * heads)
        return F.mse_loss((x + self.out(self.gated_norm(y.flatten(2) * F.silu(z)))).float(), target.float())


class Router(nn.Module):
    """The router of Mixtral with its loss of balance."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.gate = models.RMSNorm(width), nn.Linear(width, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        share = self.gate(self.norm(x)).flatten(0, 1).float().softmax(-1)
        weight, chosen = share.topk(2, -1)
        weight = weight / weight.sum(-1, keepdim=True)
        mask = F.one_hot(chosen, 8).float()
        return 8 * (mask.mean(0) * share.mean(0)[None]).sum() + (weight * mask.sum(1).gather(1, chosen)).mean()


class Classifier(nn.Module):
    """A model of timm and the loss of its classes."""

    def __init__(self, name: str, **given: Any) -> None:
        super().__init__()
        import timm

        self.model = timm.create_model(name, **given)

    def forward(self, images: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.model(images).float(), target)


def _tokens(batch: int, length: int) -> Inputs:
    return torch.zeros(batch, length, dtype=torch.long), torch.zeros(batch, length, dtype=torch.long)


def _wide(*shapes: tuple[int, ...]) -> Inputs:
    return tuple(torch.empty(shape, dtype=BF16) for shape in shapes)


def _images(batch: int) -> Inputs:
    return torch.empty(batch, 3, 224, 224), torch.zeros(batch, dtype=torch.long)


def _of_timm(name: str, **given: Any) -> tuple[Callable[[], nn.Module], Callable[[], Inputs], bool]:
    return lambda: Classifier(name, **given), lambda: _images(64), True


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Inputs], bool]] = {
    "Llama": (lambda: Llama(4096, 32, 8, 14336, 128256, has_norms=False), lambda: _tokens(1, 4096), False),
    "Qwen": (lambda: Llama(4096, 32, 8, 12288, 151936, has_norms=True), lambda: _tokens(1, 4096), False),
    "Llama, autocast": (lambda: Llama(4096, 32, 8, 14336, 128256, has_norms=False), lambda: _tokens(1, 4096), True),
    "GPT-2": (lambda: models.GPT(layers=1), lambda: _tokens(8, 1024), False),
    "GPT-2, autocast": (lambda: models.GPT(layers=1), lambda: _tokens(8, 1024), True),
    "BERT": (lambda: Bert(1024, 30522), lambda: _tokens(32, 512), False),
    "BERT, autocast": (lambda: Bert(1024, 30522), lambda: _tokens(32, 512), True),
    "ViT-L": (lambda: models.ViT(layers=2), lambda: (*_wide((64, 3, 224, 224)), torch.zeros(64, dtype=torch.long)), False),
    "ViT-L, autocast": (lambda: models.ViT(layers=2), lambda: _images(64), True),
    "DiT": (lambda: DiT(1152, 16), lambda: _wide((64, 256, 1152), (64, 1152), (64, 256, 1152)), False),
    "U-Net": (lambda: models.UNet(320), lambda: _wide((16, 320, 64, 64), (16, 1280), (16, 320, 64, 64)), False),
    "U-Net, autocast": (lambda: models.UNet(320), lambda: _wide((16, 320, 64, 64), (16, 1280), (16, 320, 64, 64)), True),
    "Mamba": (lambda: Mamba(2560), lambda: _wide((4, 2048, 2560), (4, 2048, 2560)), False),
    "Mixtral router": (lambda: Router(4096), lambda: _wide((2, 4096, 4096)), False),
    "mixture of experts": (lambda: models.MoE(layers=1), lambda: _wide((4, 2048, 2048), (4, 2048, 2048)), False),
    "ConvNeXt-B": _of_timm("convnext_base", depths=(1, 1, 1, 1)),
    "EfficientNet-B0": _of_timm("efficientnet_b0"),
    "MobileNetV3": _of_timm("mobilenetv3_large_100"),
    "ResNet-50": _of_timm("resnet50", layers=(1, 1, 1, 1)),
    "Swin-B": _of_timm("swin_base_patch4_window7_224", depths=(2, 2, 2, 2)),
}  # fmt: skip
"""Name -> what makes the model, what makes its inputs, and whether its weights are in float32 and it runs under autocast; else all is in bfloat16."""
NOT_TOLD = ("scaled_dot_product", "convolution")
"""Ops of torch that compute products."""


@contextmanager
def only_planned() -> Iterator[list[dict[str, Any]]]:
    """Let `torch.compile` make graphs that return memory of their results' sizes instead of running; yield the list of the ops that stay with torch."""
    left: list[dict[str, Any]] = []
    compile_graph, start = backend.compile_graph, ahead.start

    def planned(gm: torch.fx.GraphModule, *, kind: str, **given: Any) -> Callable[[list[Any]], Any]:
        compile_graph(gm, kind=kind, **given)
        inside = {n for call in GRAPHS[-1].calls for n in call.region.nodes}
        for node in gm.graph.nodes:
            if node.op == "call_function" and counts(node) and node not in inside and node.target not in PRODUCTS:
                bytes_ = bytes_of([node, *node.all_input_nodes])
                if bytes_ > LEAST_WASTE and not any(text in str(node.target) for text in NOT_TOLD):
                    left.append({"kind": kind, "op": str(node.target), "bytes": bytes_})
        made = [n.meta["val"] if isinstance(n, torch.fx.Node) else n for n in gm.graph.output_node().args[0]]

        def run(inputs: list[Any]) -> list[Any]:
            inputs.clear()
            return [torch.empty_strided(v.shape, v.stride(), dtype=v.dtype) if isinstance(v, torch.Tensor) else v for v in made]

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    backend.compile_graph, ahead.start = planned, lambda *_, **__: []  # type: ignore[assignment]
    try:
        yield left
    finally:
        backend.compile_graph, ahead.start = compile_graph, start  # type: ignore[assignment]


def regions_of(model: nn.Module, inputs: Inputs, *, is_autocast: bool) -> Iterator[dict[str, Any]]:
    """Yield a row for each region of a training step, and one for each large op that stays with torch. model: on the device "meta"."""
    torch._dynamo.reset()
    model = (model if is_autocast else model.to(BF16)).to_empty(device="cpu").train()
    with only_planned() as left, torch._functorch.config.patch(enable_autograd_cache=False), counting() as counted:
        compiled = torch.compile(model, backend="weft", options={"emulate": True, "cache": False})
        with torch.autocast("cpu", dtype=BF16, enabled=is_autocast):
            loss = compiled(*inputs)
        loss.backward()
        for graph in list(GRAPHS):
            for call in graph.calls:
                counted.clear()
                yield _row(graph.kind, call, counted)
    yield from ({"kind": op["kind"], "name": op["op"], "moved": op["bytes"], "must": 0, "ratio": 0.0, "kernels": [], "why": "torch's"} for op in left)


def _row(kind: str, call: region_call.RegionCall, counted: list[tuple[str, int]]) -> dict[str, Any]:
    if call.plan.inputs is None:
        return {"kind": kind, "name": call.plan.name, "moved": 0, "must": 0, "ratio": 0.0, "kernels": [], "why": "sizes are not known"}
    call(*[torch.empty_strided(v.sizes, v.strides, dtype=v.dtype) if isinstance(v, ahead.Likeness) else v for v in call.plan.inputs])
    must, done = call.plan.told["bytes"], sum(bytes_ for _, bytes_ in counted)
    kernels = [(name, round(bytes_ / 1e6)) for name, bytes_ in counted]
    return {
        "kind": kind, "name": call.plan.name, "moved": done, "must": must, "ratio": round(done / max(must, 1), 3), "kernels": kernels,
        "origin": call.plan.told["origin"], "why": call.fallback_reason,
    }  # fmt: skip


def main() -> None:
    def rows_of(name: str, chip: str) -> Iterator[dict[str, Any]]:
        make, make_inputs, is_autocast = MODELS[name]
        with torch.device("meta"):
            model = make()
        for row in regions_of(model, make_inputs(), is_autocast=is_autocast):
            yield {"case": name, **row}

    def line_of(row: dict[str, Any]) -> str:
        wasted = row["moved"] - row["must"]
        if not row["why"] and (row["ratio"] < LEAST_RATIO or wasted < LEAST_WASTE):
            return ""
        text = f"{row['case']}, {row['kind']}: {wasted / 1e6:5.0f} MB wasted, {row['ratio']:5.2f} of {row['must'] / 1e6:4.0f} MB, {row['name']}"
        return f"{text} {row['kernels']} {row.get('origin', '')} {row['why']}"

    logging.getLogger("weft").setLevel(logging.ERROR)
    report(__doc__.split("\n")[0], MODELS, rows_of, line_of)


if __name__ == "__main__":
    main()
