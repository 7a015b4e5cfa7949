"""Programs that generate, keep, load and look into models, and use what torch.compile has besides. Read first: `PROGRAMS`."""

from __future__ import annotations

import copy
import dataclasses
import io
import pickle
import threading
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from program_run import Program, Run, gradients, state, trained
from torch import Tensor, nn


def small(width: int = 10, out: int = 6) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, 14), nn.LayerNorm(14), nn.GELU(), nn.Linear(14, out))


def turned(x: Tensor, angles: Tensor) -> Tensor:
    """Rotary positions by complex numbers, as in Llama's own code."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2) if x.dtype is torch.bfloat16 else x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)[None, :, None]).flatten(3).to(x.dtype)


class Decoder(nn.Module):
    """One layer with rotary positions, heads that share keys, and a cache of keys and values of fixed size."""

    def __init__(self, words: int = 17, width: int = 16, most: int = 12) -> None:
        super().__init__()
        self.words, self.norm, self.last = nn.Embedding(words, width), nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.kv, self.out = nn.Linear(width, 16, bias=False), nn.Linear(width, 16, bias=False), nn.Linear(16, width, bias=False)
        self.up, self.down, self.head = nn.Linear(width, 40), nn.Linear(20, width), nn.Linear(width, words, bias=False)
        self.register_buffer("angles", torch.outer(torch.arange(most).float(), torch.tensor([1.0, 0.1])), persistent=False)

    def forward(self, tokens: Tensor, places: Tensor, kept: tuple[Tensor, Tensor]) -> Tensor:
        x = self.words(tokens)
        y = self.norm(x)
        q, (k, v) = self.q(y).unflatten(-1, (4, 4)), self.kv(y).unflatten(-1, (2, 2, 4)).unbind(-3)
        kept[0].index_copy_(1, places, turned(k, self.angles[places]))
        kept[1][:, places] = v
        mask = torch.arange(kept[0].shape[1], device=x.device) <= places[:, None]
        keys, values = (t.repeat_interleave(2, 2).transpose(1, 2) for t in kept)
        z = F.scaled_dot_product_attention(turned(q, self.angles[places]).transpose(1, 2), keys, values, attn_mask=mask)
        x = x + self.out(z.transpose(1, 2).flatten(2))
        gate, up = self.up(x).chunk(2, -1)
        return self.head(self.last(x + self.down(F.silu(gate) * up)))


def decoding_with_a_cache(run: Run) -> Any:
    """A prompt, then token after token; the cache is written in place by the compiled step."""
    model = run.made(Decoder()).eval()
    kept = tuple(torch.zeros(2, 12, 2, 4, dtype=run.dtype) for _ in range(2))
    tokens, out = torch.tensor([[3, 5, 2], [1, 16, 0]]), []
    fast = run.compile(model)
    with torch.no_grad():
        logits = fast(tokens, torch.arange(3), kept)
        for place in range(3, 6):
            token = logits[:, -1:].argmax(-1)
            logits = fast(token, torch.tensor([place]), kept)
            out += [token, logits]
    return [*out, *kept]


def decoding_with_a_growing_cache(run: Run) -> Any:
    """Keys and values are joined in each step: sizes change, and graphs take any."""
    x, k, v, out = run.randn(2, 3, 1, 4), run.randn(2, 3, 2, 4), run.randn(2, 3, 2, 4), []

    @run.compile
    def step(x: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        k, v = torch.cat((k, torch.tanh(x)), 2), torch.cat((v, x * 2), 2)
        score = x @ k.transpose(-1, -2) * 0.5
        bias = torch.arange(k.shape[2], device=x.device) - (k.shape[2] - 1)
        return torch.softmax(score + bias * 0.1, -1) @ v, k, v

    for _ in range(4):
        x, k, v = step(x, k, v)
        out.append(x)
    return [*out, k, v]


def sampling(run: Run) -> Any:
    """Temperature, repetition penalty, top k, top p and a draw, token after token."""

    def chances(logits: Tensor, seen: Tensor) -> Tensor:
        score = logits.gather(1, seen)
        logits = logits.scatter(1, seen, torch.where(score < 0, score * 1.2, score / 1.2)) / 0.7
        logits = logits.masked_fill(logits < logits.topk(9, -1).values[:, -1:], float("-inf"))
        order, index = logits.sort(-1, descending=True)
        late = order.softmax(-1).cumsum(-1) - order.softmax(-1) > 0.9
        return logits.masked_fill(late.scatter(1, index, late), float("-inf")).softmax(-1)

    fast, seen, out = run.compile(chances), torch.tensor([[1, 2], [7, 7]]), []
    for _ in range(3):
        share = fast(run.randn(2, 20) * 2, seen)
        out.append(share)
        seen = torch.cat((seen, share.double().cumsum(-1).gt(0.5).to(torch.int64).argmax(-1, keepdim=True)), 1)
    return [*out, seen]


def batches_of_any_size(run: Run) -> Any:
    """Also of one row and of none, with sizes in the arithmetic."""
    model = run.made(nn.Sequential(nn.Linear(6, 8), nn.SiLU(), nn.RMSNorm(8)))
    fast, out = run.compile(lambda x: model(x).sum(0) / x.shape[0] ** 0.5 + x.numel()), []
    with torch.no_grad():
        for rows in (4, 7, 1, 3):
            out.append(fast(run.randn(rows, 6)))
        out.append(run.compile(lambda x: F.layer_norm(x, (6,)) * 2)(run.randn(0, 6)))
    return out


def marked_dynamic(run: Run) -> Any:
    model, out = run.made(small()), []
    fast = run.compile(model)
    for rows in (5, 3, 8):
        x = run.leaf(rows, 10)
        torch._dynamo.mark_dynamic(x, 0)
        fast(x).square().sum().backward()
        out.append(x.grad)
    return [*out, *gradients(model)]


def everything_dynamic(run: Run) -> Any:
    """dynamic=True: halves of an open size, joined axes, padding to a multiple."""

    def f(x: Tensor) -> Tensor:
        a, b = x.split(x.shape[-1] // 2, -1)
        y = F.pad(a * b.sigmoid(), (0, -a.shape[-1] % 4))
        return y.reshape(x.shape[0], -1, 2).mean(1) + x.new_ones(x.shape[0], 1) * y.size(-1)

    fast, out = run.compile(f, dynamic=True), []
    for shape in ((3, 4, 10), (2, 5, 6), (5, 2, 14)):
        x = run.leaf(*shape)
        y = fast(x)
        y.square().sum().backward()
        out += [y, x.grad]
    return out


def complex_rotation(run: Run) -> Any:
    x, angles = run.leaf(2, 5, 3, 8), run.rand(5, 4) * 6
    y = run.compile(lambda x, angles: turned(x.sigmoid(), angles) * 2)(x, angles)
    y.square().sum().add(y[..., 0].sum()).backward()
    return [y, x.grad]


def indices_of_every_kind(run: Run) -> Any:
    """Tensors, lists, slices with steps, None, dots and masks as indices; rows that are chosen twice; numbers of 32 bits."""

    def f(x: Tensor, rows: Tensor, mask: Tensor) -> list[Tensor]:
        return [
            x[rows], x[:, [2, 0]], x[..., None, 1], x[rows, rows % 3], x[1:, ::2].exp(), x[rows[:, None], :, rows[None] % 2], x.index_select(1, rows.int() % 3),
            torch.take_along_dim(x, x.argsort(1), 1), x.gather(2, (rows % 2).expand(4, 3, 5)), torch.where(mask[:, None], x[:, :, 0], -x[:, :, 1]), x.roll(1, 1).flip(2),
            x.narrow(0, 1, 2).unfold(1, 2, 1).sum(-1), x[torch.tensor([True, False, True, True])].mean(), x.diagonal(0, 0, 1).tanh(), x.tril(-1).movedim(0, 2),
        ]  # fmt: skip

    x = run.leaf(4, 3, 6)
    out = run.compile(f)(x, torch.tensor([3, 0, 3, 1, 2]), torch.tensor([True, False, True, False]))
    sum((y * y).sum() * (n + 1) for n, y in enumerate(out)).backward()
    return [*out, x.grad]


class Packed(nn.Module):
    """Weights of 4 bits, two in a byte, with scales of groups."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randint(0, 256, (6, 8), dtype=torch.uint8))
        self.register_buffer("scale", torch.rand(6, 4) / 9)

    def forward(self, x: Tensor) -> Tensor:
        whole = torch.stack((self.weight & 15, self.weight >> 4), -1).flatten(1).to(x.dtype) - 8
        return F.linear(x, (whole.view(6, 4, 4) * self.scale[..., None]).flatten(1))


def quantized_linear(run: Run) -> Any:
    """Weights of 4 and 8 bits that are unpacked, and activations that are rounded to 8 bits by row."""
    four = Packed()
    four.scale = four.scale.to(run.dtype)
    eight, scale = torch.randint(-127, 128, (5, 6), dtype=torch.int8), run.rand(5) / 50

    def f(x: Tensor) -> Tensor:
        y = four(x)
        step = y.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 127
        small = (y / step).round().clamp(-128, 127).to(torch.int8)
        product = (small.to(torch.int32)[:, None] * eight.to(torch.int32)).sum(-1)
        return product.to(x.dtype) * step * scale

    with torch.no_grad():
        return [run.compile(f)(run.randn(7, 16))]


def state_dict_both_ways(run: Run) -> Any:
    """What the compiled module saves has a prefix; what the module compiled in place saves has none."""
    model, other = run.made(small()), run.made(small())
    fast, file = run.compile(model), io.BytesIO()
    fast(run.randn(3, 10)).sum().backward()
    torch.save({k.removeprefix("_orig_mod."): v for k, v in fast.state_dict().items()}, file)
    run.compile_in_place(other)
    other.load_state_dict(torch.load(io.BytesIO(file.getvalue())))
    x = run.randn(3, 10)
    return [fast(x), other(x), sorted(other.state_dict()) == sorted(model.state_dict())]


def copied_and_pickled(run: Run) -> Any:
    """Copies of a compiled module have parameters of their own, and are compiled again."""
    fast, x = run.compile(run.made(small())), run.randn(3, 10)
    first = fast(x)
    twin = copy.deepcopy(fast)
    with torch.no_grad():
        next(twin.parameters()).mul_(2)
    plain = getattr(fast, "_orig_mod", fast)
    back = run.compile(pickle.loads(pickle.dumps(plain)))
    return [first, twin(x), back(x), fast(x)]


def compiled_inside_compiled(run: Run) -> Any:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = run.compile(small(10, 10).to(run.dtype))
            self.activation = run.compile(lambda x: F.silu(x) * x)

        def forward(self, x: Tensor) -> Tensor:
            return self.activation(self.inner(x)) + x

    return trained(run, Outer(), [run.randn(4, 10) for _ in range(2)])


def broken_graphs(run: Run) -> Any:
    """print, a number read from a tensor, a function that is not compiled, a branch on data, a try."""

    @torch.compiler.disable
    def apart(x: Tensor) -> Tensor:
        return x.round()

    def f(x: Tensor) -> Tensor:
        y = torch.tanh(x) * 2
        print(end="")
        if y.sum().item() > -1e9:
            y = y + apart(y) * y.norm()
        torch._dynamo.graph_break()
        try:
            if (y > 100).any():
                raise ValueError
            return y.exp().mean(0)
        except ValueError:
            return y

    x = run.leaf(4, 5)
    y = run.compile(f)(x)
    y.sum().backward()
    return [y, x.grad]


def whole_graph(run: Run) -> Any:
    """fullgraph=True with a branch and a loop of torch's own, and what a number of data decides."""

    def f(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.cond(x.sum() > 0, lambda x: (x * 2).sin(), lambda x: x.cos() - 1, (x,))
        count, z = torch.while_loop(lambda n, z: n < 3, lambda n, z: (n + 1, torch.tanh(z @ w) + 0.1), (torch.tensor(0), y))
        return F.softmax(z, -1) * y, count

    return run.compile(f, fullgraph=True)(run.randn(4, 5), run.randn(5, 5))


def exported(run: Run) -> Any:
    """torch.export, with an open size, is what is compiled."""
    model = run.made(nn.Sequential(nn.Linear(6, 8), nn.GroupNorm(2, 8), nn.Softplus())).eval()
    rows = torch.export.Dim("rows", min=2, max=64)
    program = torch.export.export(model, (run.randn(4, 6),), dynamic_shapes=({0: rows},))
    fast = run.compile(program.module())
    with torch.no_grad():
        return [fast(run.randn(4, 6)), fast(run.randn(9, 6))]


@dataclasses.dataclass
class Answer:
    value: Tensor
    extra: list[Tensor]
    name: str


class Pair(NamedTuple):
    first: Tensor
    second: Tensor | None


def python_values(run: Run) -> Any:
    """Arguments and results that are numbers, strings, None, lists, dictionaries, classes; results that are an input, a view of one, or one result twice."""

    def f(x: Tensor, pair: Pair, *more: Tensor, scale: float = 1.0, how: str = "add", **named: Any) -> Any:
        y = F.relu(x) * scale
        y = y + pair.first if how == "add" else y * pair.first
        for each in more:
            y = y - each * named["weights"]["a"]
        return Answer(y, [x, x[1:], y], how), {"twice": (y, y), "none": None, "view": y.t(), "size": y.shape[0] * 2}

    fast, x, out = run.compile(f), run.randn(3, 4), []
    for scale, how, count in ((1.0, "add", 1), (2.5, "mul", 2), (0.5, "add", 0)):
        answer, rest = fast(x, Pair(run.randn(4), None), *[run.randn(3, 4) for _ in range(count)], scale=scale, how=how, weights={"a": 3})
        same = answer.extra[0] is x and rest["twice"][0] is rest["twice"][1] and answer.extra[1].data_ptr() == x[1:].data_ptr()
        out += [answer.value, *answer.extra, same, rest["view"], rest["size"], rest["none"]]
    return out


def several_threads(run: Run) -> Any:
    """One compiled module, called from threads at once, in inference."""
    model = run.made(small()).eval()
    fast, inputs, out = run.compile(model), [run.randn(3, 10) for _ in range(4)], [None] * 4
    with torch.no_grad():
        fast(inputs[0])

    def work(number: int) -> None:
        with torch.no_grad():
            out[number] = fast(inputs[number])

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return out


@torch.library.custom_op("weft_programs::doubled", mutates_args=())
def doubled(x: Tensor) -> Tensor:
    return x.clone() * 2


@doubled.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


doubled.register_autograd(lambda ctx, slope: slope * 2)


def operator_of_the_users(run: Run) -> Any:
    x = run.leaf(4, 5)
    y = run.compile(lambda x: F.silu(doubled(x.exp()) + 1), fullgraph=True)(x)
    y.sum().backward()
    return [y, x.grad]


def attention_of_every_kind(run: Run) -> Any:
    """Masks of numbers and flags, causal, heads that share keys, a window, a soft cap by hand, weights asked for."""
    q, k, v = run.leaf(2, 4, 5, 8), run.leaf(2, 2, 7, 8), run.leaf(2, 2, 7, 8)
    layer = run.made(nn.MultiheadAttention(8, 2, batch_first=True))

    def f(q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
        mask = (torch.arange(5)[:, None] - torch.arange(7)[None]).abs() < 3
        wide = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        causal = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3)
        score = 5 * torch.tanh(q @ k.mT / 5) + torch.zeros(5, 7).masked_fill(~mask, float("-inf"))
        out, weights = layer(q[:, 0], k[:, 0], v[:, 0], key_padding_mask=torch.arange(7).expand(2, 7) > 4)
        return [wide, causal, torch.softmax(score, -1) @ v, out, weights]

    out = run.compile(f)(q, k, v)
    sum(y.square().sum() for y in out).backward()
    return [*out, q.grad, k.grad, v.grad, *gradients(layer)]


def transformer_layer(run: Run) -> Any:
    """torch's layer of a decoder, with masks of padding and of the future."""
    model = run.made(nn.TransformerDecoderLayer(8, 2, 12, dropout=0.0, batch_first=True, norm_first=True, bias=False))
    hidden = torch.tensor([[False] * 4, [False, False, True, True]])
    x, y = run.leaf(2, 3, 8), run.randn(2, 4, 8)
    mask = torch.full((3, 3), float("-inf"), dtype=run.dtype).triu(1)
    out = run.compile(lambda x, y: model(x, y, tgt_mask=mask, memory_key_padding_mask=hidden, tgt_is_causal=True))(x, y)
    out.square().sum().backward()
    return [out, x.grad, *gradients(model)]


def boxes_and_images(run: Run) -> Any:
    """Images of bytes, normalized; overlaps of boxes; sampling at places; pooling, blurring and edges."""
    image, boxes = torch.randint(0, 256, (2, 3, 8, 9), dtype=torch.uint8), run.rand(5, 2)

    def f(image: Tensor, corner: Tensor) -> list[Tensor]:
        x = (image.to(corner.dtype) / 255 - torch.tensor([0.4, 0.5, 0.6], dtype=corner.dtype)[:, None, None]) / 0.25
        box = torch.cat((corner, corner + 0.5), -1)
        low, high = torch.max(box[:, None, :2], box[None, :, :2]), torch.min(box[:, None, 2:], box[None, :, 2:])
        both = (high - low).clamp(min=0).prod(-1)
        area = (box[:, 2:] - box[:, :2]).prod(-1)
        overlap = both / (area[:, None] + area[None] - both)
        grid = (
            torch.stack(torch.meshgrid(torch.linspace(-1, 1, 5, dtype=x.dtype), torch.linspace(-1, 1, 4, dtype=x.dtype), indexing="ij"), -1)
            .flip(-1)
            .expand(2, -1, -1, -1)
        )
        seen = F.grid_sample(x, grid * 0.9, align_corners=False)
        return [
            overlap, overlap.max(1).values, (overlap > 0.3).sum(0), seen, F.avg_pool2d(x, 2), F.adaptive_avg_pool2d(x, (3, 2)), F.interpolate(x, (11, 7), mode="bicubic"),
            F.pad(x, (2, 1, 1, 2), mode="reflect"), F.pixel_unshuffle(x[..., :8], 2), x.var((2, 3)), x.flip(-1).quantile(0.5), F.unfold(x, 3).std(1), F.local_response_norm(x, 2),
        ]  # fmt: skip

    return run.compile(f)(image, boxes)


def signals(run: Run) -> Any:
    """A spectrum on a logarithmic scale, a causal convolution, a scan, a filter by Fourier's transform."""

    def f(x: Tensor, w: Tensor) -> list[Tensor]:
        spectrum = torch.stft(x, 8, 4, window=torch.hann_window(8, dtype=x.dtype), return_complex=True).abs().square()
        loud = torch.clamp(spectrum, min=1e-10).log10()
        loud = torch.maximum(loud, loud.max() - 8)
        late = F.conv1d(F.pad(x[:, None], (2, 0)), w)
        share = torch.sigmoid(late)
        kept = torch.cumsum(torch.log1p(-share * 0.5), -1)
        return [
            (loud + 4) / 4,
            (torch.cumsum(share * (-kept).exp(), -1) * kept.exp()),
            torch.fft.irfft(torch.fft.rfft(x) * 0.5, 20),
            x.diff().cumprod(-1),
            torch.logcumsumexp(x, -1),
        ]

    x, w = run.leaf(3, 20), run.leaf(2, 1, 3)
    out = run.compile(f)(x, w)
    sum(y.sum() for y in out[:3]).backward()
    return [*out, x.grad, w.grad]


def other_types(run: Run) -> Any:
    """Whole numbers of all widths, flags, divisions that round, bits, half precision in between."""
    a, b = torch.randint(-90, 90, (5, 7)), torch.randint(1, 9, (5, 7))

    def f(a: Tensor, b: Tensor, x: Tensor) -> list[Tensor]:
        small, byte = a.to(torch.int8), b.to(torch.uint8)
        half = x.to(torch.bfloat16 if x.dtype is torch.float32 else x.dtype)
        return [
            a // b, a % b, -a // b, torch.div(a, b, rounding_mode="trunc"), torch.fmod(a, b), a / b, small * 3, byte - 9, (a > 0) & ~(b == 3) | (a < -50), a ^ b, a << (b % 4), a >> 2,
            (a > 0).sum(0), (a > 80).any(1), (b > 0).all(), a.sum(1, dtype=torch.int32), a.cumsum(0), b.prod(1), a.abs().max(0).indices, a.to(torch.int16) + small, x.floor().long(),
            torch.bitwise_not(b), torch.where(a > 0, 1, 0), torch.where(a > 0, a, 0.5), a.clamp(-5, 7) ** 2, a.float() @ b.float().t(), half.to(x.dtype).isfinite(), x.sign().bool().int(),
            torch.bucketize(x.float(), torch.tensor([-1.0, 0.0, 1.0])), a.unique_consecutive().numel() > 0, torch.count_nonzero(b - 1),
        ]  # fmt: skip

    return run.compile(f)(a, b, run.randn(5, 7))


def nested_lengths(run: Run) -> Any:
    """Sequences of several lengths in one tensor, without padding."""
    x = torch.nested.nested_tensor([run.randn(n, 6) for n in (3, 5, 2)], layout=torch.jagged)
    y = run.compile(lambda x: F.silu(x * 2 + 1) * x)(x)
    return [y.values(), y.offsets()]


def flexible_attention(run: Run) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q, k, v = (run.randn(1, 2, 16, 8) for _ in range(3))
    mask = create_block_mask(lambda b, h, i, j: i >= j, 1, 1, 16, 16, device="cpu", BLOCK_SIZE=16)

    def f(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.silu(flex_attention(F.normalize(q, dim=-1), k * 2, v, score_mod=lambda s, b, h, i, j: s + (i - j) * 0.1, block_mask=mask))

    return [run.compile(f)(q, k, v)]


def stances_and_errors(run: Run) -> Any:
    """A compiled function outlives an error of the user's, other types of inputs, and stances that turn compiling off."""
    fast, out = run.compile(lambda x, y: F.softplus(x + y).sum(-1)), []
    for shapes in (((3, 4), (4,)), ((3, 4), (5,)), ((2, 4), (4,))):
        try:
            out.append(fast(*[run.randn(*shape) for shape in shapes]))
        except (RuntimeError, torch._dynamo.exc.TorchRuntimeError) as error:
            out.append("must match" in str(error) or "broadcast" in str(error))
    with torch.compiler.set_stance("force_eager"):
        out.append(fast(run.randn(6, 4), run.randn(4)))
    return [
        *out,
        fast(torch.ones(3, 4, dtype=torch.float64), torch.ones(4)),
        fast(torch.ones(3, 4, dtype=torch.bfloat16), torch.ones(4, dtype=torch.bfloat16)).float(),
    ]


def per_layer_compile(run: Run) -> Any:
    """Each layer is compiled in place; the loop over them is Python."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.up = nn.RMSNorm(8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return x + F.silu(self.up(self.norm(x)))

    model = run.made(nn.Sequential(*[Layer() for _ in range(3)]))
    for layer in model:
        run.compile_in_place(layer)
    x = run.leaf(4, 8)
    model(x).square().sum().backward()
    return [x.grad, *gradients(model)]


def buffers_and_globals(run: Run) -> Any:
    """A counter, a running mean and a list of a module that each call changes."""

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
            self.register_buffer("mean", torch.zeros(6))
            self.seen: list[Tensor] = []

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            self.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
            self.seen.append(x.mean())
            return (x - self.mean) / self.calls

    model = run.made(Counting())
    fast = run.compile(model)
    out = [fast(run.randn(4, 6)) for _ in range(3)]
    return [*out, *model.seen, *state(model)]


PROGRAMS: dict[str, Program] = {
    function.__name__: function
    for function in (
        decoding_with_a_cache, decoding_with_a_growing_cache, sampling, batches_of_any_size, marked_dynamic, everything_dynamic, complex_rotation, indices_of_every_kind,
        quantized_linear, state_dict_both_ways, copied_and_pickled, compiled_inside_compiled, broken_graphs, whole_graph, exported, python_values, several_threads,
        operator_of_the_users, attention_of_every_kind, transformer_layer, boxes_and_images, signals, other_types, nested_lengths, flexible_attention, stances_and_errors,
        per_layer_compile, buffers_and_globals,
    )
}  # fmt: skip

__all__ = ["PROGRAMS"]
