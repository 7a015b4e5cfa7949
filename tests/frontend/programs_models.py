"""Programs around recent models: caches with windows, experts in one tensor, selective scans, packed sequences, preference losses, ensembles, speculation.

Read first: `PROGRAMS`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from program_run import Program, Run, gradients, state, trained
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions as Hugging Face writes them: the second half, negated, in front of the first."""
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


class RMSNorm(nn.Module):
    """The norm as models have it in their own files: in float32, and back."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width) + torch.randn(width) / 9), 1e-6

    def forward(self, x: Tensor) -> Tensor:
        kept = x.dtype
        x = x.to(torch.promote_types(kept, torch.float32))
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)).to(kept)


class Windowed(nn.Module):
    """Heads that share keys, norms of queries and keys, a window, capped scores, and a ring of keys and values that the compiled step writes."""

    def __init__(self, width: int = 12, window: int = 4) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(a, b, bias=False) for a, b in ((width, 16), (width, 8), (width, 8), (16, width)))
        self.norms, self.window = nn.ModuleList([RMSNorm(width), RMSNorm(4), RMSNorm(4), RMSNorm(width)]), window

    def forward(self, x: Tensor, place: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        b, s, _ = x.shape
        y = self.norms[0](x)
        angle = place[:, None].to(x.dtype) * 0.3 ** torch.arange(2, device=x.device, dtype=x.dtype)
        cos, sin = (torch.cat((t, t), -1)[None, None] for t in (angle.cos(), angle.sin()))
        q = rotated(self.norms[1](self.q(y).view(b, s, 4, 4)).transpose(1, 2), cos, sin)
        k = rotated(self.norms[2](self.k(y).view(b, s, 2, 4)).transpose(1, 2), cos, sin)
        slot = place % self.window
        keys[:, :, slot] = k
        values.index_copy_(2, slot, self.v(y).view(b, s, 2, 4).transpose(1, 2))
        k, v = (t[:, :, None].expand(-1, -1, 2, -1, -1).reshape(b, 4, self.window, 4) for t in (keys, values))
        score = 3.0 * torch.tanh(q @ k.mT / 2 / 3.0)
        held = place[-1] - (place[-1] - torch.arange(self.window, device=x.device)) % self.window  # which position each slot holds
        score = score.masked_fill((held < 0) | (held > place[:, None]), torch.finfo(score.dtype).min)
        z = score.softmax(-1, dtype=torch.promote_types(x.dtype, torch.float32)).to(x.dtype) @ v
        return x + self.norms[3](self.o(z.transpose(1, 2).reshape(b, s, -1)))


def sliding_window_cache(run: Run) -> Any:
    """A prompt of two, then a token at a time until the ring has gone round."""
    model = run.made(Windowed()).eval()
    keys, values = torch.zeros(2, 2, 4, 4, dtype=run.dtype), torch.zeros(2, 2, 4, 4, dtype=run.dtype)
    fast, out = run.compile(model), []
    with torch.no_grad():
        out.append(fast(run.randn(2, 2, 12), torch.arange(2), keys, values))
        for place in range(2, 7):
            out.append(fast(run.randn(2, 1, 12), torch.tensor([place]), keys, values))
    return [*out, keys, values]


class Routed(nn.Module):
    """Experts in one tensor: tokens sorted by expert, products in batches of a fixed capacity, shares scattered back, a bias that balances the load."""

    def __init__(self, experts: int = 4, width: int = 8) -> None:
        super().__init__()
        self.gate, self.capacity = nn.Linear(width, experts, bias=False), 6
        self.up, self.down = nn.Parameter(torch.randn(experts, width, 20) / 4), nn.Parameter(torch.randn(experts, 10, width) / 4)
        self.register_buffer("load_bias", torch.zeros(experts))

    def forward(self, x: Tensor) -> Tensor:
        tokens, experts = x.shape[0], self.up.shape[0]
        score = self.gate(x).sigmoid()
        chosen = (score + self.load_bias).topk(2, -1, sorted=False).indices
        share = score.gather(1, chosen)
        share = share / (share.sum(-1, keepdim=True) + 1e-9)
        flat = chosen.flatten()
        order = flat.argsort(stable=True)
        counts = torch.zeros(experts, dtype=torch.int64, device=x.device).scatter_add_(0, flat, torch.ones_like(flat))
        start = counts.cumsum(0) - counts
        seat = torch.arange(2 * tokens, device=x.device) - start[flat[order]]
        is_kept = seat < self.capacity
        place = torch.where(is_kept, flat[order] * self.capacity + seat, experts * self.capacity)
        room = x.new_zeros(experts * self.capacity + 1, x.shape[1]).index_add(0, place, x[order // 2] * is_kept[:, None])
        gate, up = torch.bmm(room[:-1].view(experts, self.capacity, -1), self.up).chunk(2, -1)
        y = torch.bmm(F.silu(gate) * up, self.down).flatten(0, 1)
        y = torch.cat((y, y.new_zeros(1, y.shape[1])))[place] * share.flatten()[order, None]
        with torch.no_grad():
            self.load_bias += 0.01 * torch.sign(counts.to(x.dtype).mean() - counts.to(x.dtype))
        return x + torch.zeros_like(x).index_add(0, order // 2, y)


def routed_experts(run: Run) -> Any:
    return trained(run, run.made(Routed()), [run.randn(11, 8) for _ in range(2)])


class Selective(nn.Module):
    """Mamba's block: a causal convolution over channels, steps that depend on the input, a scan written as products of cumulated decays."""

    def __init__(self, width: int = 6, states: int = 3) -> None:
        super().__init__()
        self.inside, self.conv = nn.Linear(width, 2 * width, bias=False), nn.Conv1d(width, width, 3, groups=width, padding=2)
        self.parts, self.step = nn.Linear(width, 2 * states + 1, bias=False), nn.Linear(1, width)
        self.decay, self.skip = nn.Parameter(torch.log(torch.arange(1.0, states + 1).repeat(width, 1))), nn.Parameter(torch.ones(width))
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        y, gate = self.inside(x).chunk(2, -1)
        y = F.silu(self.conv(y.transpose(1, 2))[..., :length].transpose(1, 2))
        step, b, c = self.parts(y).split([1, 3, 3], -1)
        step = F.softplus(self.step(step))
        rate = step[..., None] * -self.decay.exp()
        fed = (step * y)[..., None] * b[:, :, None]
        far = rate.cumsum(1)
        weight = torch.exp((far[:, :, None] - far[:, None]).masked_fill(~torch.ones(length, length, dtype=torch.bool, device=x.device).tril()[:, :, None, None], -1e9))
        state = (weight * fed[:, None]).sum(2)
        return x + self.out(((state * c[:, :, None]).sum(-1) + y * self.skip) * F.silu(gate))


def selective_scan(run: Run) -> Any:
    return trained(run, run.made(Selective()), [run.randn(2, 7, 6) for _ in range(2)])


class QuantizedLoRA(nn.Module):
    """A frozen weight of 4 bits in blocks with a table of values (NF4), scales in 8 bits of their own scale, and two small matrices that learn."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("codes", torch.randint(0, 256, (64,), dtype=torch.uint8))
        self.register_buffer("table", torch.linspace(-1, 1, 16) ** 3)
        self.register_buffer("scales", torch.randint(-127, 128, (8,), dtype=torch.int8))
        self.register_buffer("scale", torch.tensor(0.01))
        self.a, self.b = nn.Parameter(torch.randn(3, 16) / 4), nn.Parameter(torch.randn(8, 3) / 4)

    def forward(self, x: Tensor) -> Tensor:
        codes = torch.stack((self.codes >> 4, self.codes & 15), 1).flatten().long()
        scale = self.scales.to(x.dtype) * self.scale
        weight = (self.table[codes].view(8, 16) * scale[:, None]).view(8, 16)
        return F.linear(x, weight) + F.linear(F.linear(x, self.a), self.b) * (16 / 3)


def quantized_lora(run: Run) -> Any:
    return trained(run, run.made(QuantizedLoRA()), [run.randn(5, 16) for _ in range(2)])


class Residual(nn.Module):
    """A block of a diffusion model: group norms around convolutions, a scale and shift from sines of the time, attention over pixels."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(4, channels) for _ in range(3)])
        self.first, self.second = nn.Conv2d(channels, channels, 3, padding=1), nn.Conv2d(channels, channels, 3, padding=1)
        self.time, self.qkv, self.out = nn.Linear(6, 2 * channels), nn.Conv2d(channels, 3 * channels, 1), nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        angle = t[:, None].to(x.dtype) * torch.exp(-torch.arange(3, device=x.device, dtype=x.dtype) * 2.0)
        scale, shift = self.time(F.silu(torch.cat((angle.cos(), angle.sin()), -1)))[..., None, None].chunk(2, 1)
        y = self.first(F.silu(self.norms[0](x)))
        x = x + self.second(F.silu(self.norms[1](y) * (1 + scale) + shift))
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norms[2](x)).reshape(b, 3, 2, c // 2, h * w).unbind(1)
        weight = torch.einsum("bnci,bncj->bnij", q * (c // 2) ** -0.25, k * (c // 2) ** -0.25).softmax(-1)
        return x + self.out(torch.einsum("bnij,bncj->bnci", weight, v).reshape(b, c, h, w))


def denoising_steps(run: Run) -> Any:
    """A few steps back with guidance: two halves of a batch, one without a condition, and a clamp of the guess by quantile."""
    model = run.made(Residual()).eval()
    kept = torch.cumprod(1 - torch.linspace(1e-3, 0.4, 8), 0).to(run.dtype)

    def step(x: Tensor, t: Tensor) -> Tensor:
        free, told = model(torch.cat((x, x)), torch.cat((t * 0, t))).chunk(2)
        noise = torch.lerp(free, told, 2.0)
        now, before = (kept[s].view(-1, 1, 1, 1) for s in (t, (t - 1).clamp(min=0)))
        guess = (x - (1 - now).sqrt() * noise) / now.sqrt()
        most = torch.amax(guess.abs().flatten(1), 1).clamp(min=1.0)[:, None, None, None]
        guess = guess.clamp(-most, most) / most
        return before.sqrt() * guess + (1 - before).sqrt() * noise

    fast, x = run.compile(step), run.randn(2, 8, 3, 5)
    with torch.no_grad():
        for t in (7, 4, 1):
            x = fast(x, torch.tensor([t, t]))
    return [x]


def sigmoid_contrastive(run: Run) -> Any:
    """SigLIP's loss of pairs, a loss of several views with a memory of negatives that goes round, and a learned temperature."""
    a, b, scale, bias = run.leaf(6, 10), run.leaf(6, 10), run.leaf(1), run.leaf(1)
    queue, at = F.normalize(run.randn(10, 9), dim=0), torch.zeros(1, dtype=torch.int64)

    def loss(a: Tensor, b: Tensor, scale: Tensor, bias: Tensor, queue: Tensor, at: Tensor) -> Tensor:
        x, y = F.normalize(a, dim=-1), F.normalize(b, dim=-1)
        logits = x @ y.t() * scale.exp() + bias
        pairs = -F.logsigmoid((2 * torch.eye(len(x), device=x.device) - 1) * logits).sum(-1).mean()
        score = torch.cat((torch.einsum("nc,nc->n", x, y).unsqueeze(-1), x @ queue.clone().detach()), 1) / 0.2
        queue[:, (at + torch.arange(3, device=x.device)) % 9] = y[:3].detach().t()
        at.copy_((at + 3) % 9)
        return pairs + F.cross_entropy(score, torch.zeros(len(x), dtype=torch.int64, device=x.device), label_smoothing=0.1)

    fast, out = run.compile(loss), []
    for _ in range(4):
        out.append(fast(a, b, scale, bias, queue, at))
        out[-1].backward()
    return [*out, a.grad, b.grad, scale.grad, bias.grad, queue, at]


def preferences(run: Run) -> Any:
    """DPO and GRPO: log probabilities of the tokens by gather, masks of answers, ratios that are clipped, advantages within groups, a KL that is estimated."""
    policy, before = run.made(nn.Linear(6, 13)), run.made(nn.Linear(6, 13))
    hidden, tokens = run.randn(4, 7, 6), torch.randint(0, 13, (4, 7))
    mask = torch.arange(7) >= torch.tensor([2, 3, 1, 6])[:, None]
    rewards = run.randn(4)

    def of_tokens(model: nn.Module) -> Tensor:
        logits = model(hidden)[:, :-1] / 0.9
        chosen = torch.gather(logits, -1, tokens[:, 1:, None]).squeeze(-1)
        return chosen - torch.logsumexp(logits, -1)

    def loss() -> tuple[Tensor, Tensor]:
        new = of_tokens(policy)
        with torch.no_grad():
            old = of_tokens(before)
        kept = mask[:, 1:]
        (a, b), (c, d) = ((t * kept).sum(-1).view(2, 2).unbind(1) for t in (new, old))
        dpo = -F.logsigmoid(0.3 * ((a - b) - (c - d))).mean()
        groups = rewards.view(2, 2)
        gain = ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)).flatten()[:, None]
        ratio = torch.exp(new - old)
        gains = torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain)
        far = torch.exp(old - new) - (old - new) - 1
        grpo = -((gains - 0.04 * far) * kept).sum(-1) / kept.sum(-1).clamp(min=1)
        return dpo, grpo.mean()

    dpo, grpo = run.compile(loss)()
    (dpo + grpo).backward()
    return [dpo, grpo, *gradients(policy)]


class Layered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers, self.rate = nn.ModuleList([nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Dropout(0.4)) for _ in range(2)]), 0.25

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + checkpoint(lambda x, layer=layer: F.dropout(layer(x), self.rate, self.training), x, use_reentrant=False)
        return x


def dropout_under_checkpoint(run: Run) -> Any:
    """What is computed again in the backward drops what the forward dropped: a step along the gradient changes the loss as the gradient says."""
    model, x = run.made(Layered()), run.randn(9, 16)
    fast, out = run.compile(model), []
    for seed in (1, 2):
        torch.manual_seed(seed)
        model.zero_grad()
        loss = fast(x).square().mean()
        loss.backward()
        slope = sum(float(p.grad.double().square().sum()) for p in model.parameters())
        step = 1e-3 / slope**0.5
        moved = copied(model, step)
        torch.manual_seed(seed)
        after = run.compile(moved)(x).square().mean()  # with gradients: another graph would draw its numbers in another order
        out.append(0.9 < (after - loss).double().item() / (step * slope) < 1.1)
    return out


@torch.no_grad()
def copied(model: nn.Module, step: float) -> nn.Module:
    """A copy whose parameters are a step along the gradient further."""
    other = Layered().to(next(model.parameters()).dtype)
    for p, q in zip(other.parameters(), model.parameters()):
        p.copy_(q + step * q.grad)
    return other


def packed_sequences(run: Run) -> Any:
    """Sequences one behind the other: positions that begin anew, a block-diagonal mask from lengths, means by segment, a loss that ends at borders."""
    words, layer, head = run.made(nn.Embedding(11, 8)), run.made(nn.Linear(8, 24)), run.made(nn.Linear(8, 11))

    def step(tokens: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
        total, count = tokens.shape[0], ends.shape[0] - 1
        number = torch.bucketize(torch.arange(total, device=tokens.device), ends[1:], right=True)
        place = torch.arange(total, device=tokens.device) - ends[number]
        x = words(tokens)
        x = x + torch.sin(place[:, None] / 3.0 ** torch.arange(8, device=x.device)).to(x.dtype)
        q, k, v = layer(x).view(total, 3, 2, 4).permute(1, 2, 0, 3)
        mask = (number[:, None] == number) & (place[:, None] >= place)
        y = x + F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(0, 1).flatten(1)
        means = torch.zeros(count, 8, dtype=y.dtype, device=y.device).index_add(0, number, y) / ends.diff()[:, None]
        target = torch.where(F.pad(number[1:], (0, 1), value=-1) == number, tokens.roll(-1), -100)
        return F.cross_entropy(head(y), target), means

    fast, out = run.compile(step, dynamic=True), []
    for lengths in ([3, 5, 1], [6, 2, 4, 3]):
        ends = F.pad(torch.tensor(lengths).cumsum(0), (1, 0))
        loss, means = fast(torch.randint(0, 11, (sum(lengths),)), ends)
        (loss + means.square().sum()).backward()
        out += [loss, means]
    return [*out, *gradients(words), *gradients(layer), *gradients(head)]


def ensembles(run: Run) -> Any:
    """torch.func: several models as one with stacked parameters, their gradients per sample, and a step of all of them in place of the optimizer."""
    from torch.func import functional_call, grad_and_value, stack_module_state, vmap

    models = [run.made(nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.SiLU(), nn.Linear(7, 2))) for _ in range(3)]
    parameters, buffers = stack_module_state(models)
    parameters = {k: v.detach() for k, v in parameters.items()}
    x, y = run.randn(3, 6, 5), torch.randint(0, 2, (6,))

    def loss(p: dict[str, Tensor], b: dict[str, Tensor], x: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(models[0], (p, b), (x,)), y)

    @run.compile
    def step(p: dict[str, Tensor], x: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        slopes, losses = vmap(grad_and_value(loss), in_dims=(0, None, 0))(p, buffers, x)
        return {k: v - 0.1 * slopes[k] for k, v in p.items()}, losses

    out = []
    for _ in range(3):
        parameters, losses = step(parameters, x)
        out.append(losses)
    return [*out, *parameters.values()]


def speculation(run: Run) -> Any:
    """Draft tokens are taken while the target agrees; the cache is cut back by a mask, without a look at values on the host."""
    draft, target = run.made(nn.Linear(6, 9)), run.made(nn.Linear(6, 9))

    def verify(hidden: Tensor, guesses: Tensor, chance: Tensor) -> tuple[Tensor, Tensor]:
        p, q = target(hidden).softmax(-1), draft(hidden[:, :-1]).softmax(-1)
        of_guess = p[:, :-1].gather(-1, guesses[..., None]) / q.gather(-1, guesses[..., None])
        taken = (chance < of_guess.squeeze(-1).clamp(max=1)).long().cumprod(-1)
        count = taken.sum(-1)
        rest = (p[:, :-1] - q).clamp(min=0)
        rest = torch.cat((rest / rest.sum(-1, keepdim=True).clamp(min=1e-9), p[:, -1:]), 1)
        after = rest[torch.arange(len(rest), device=rest.device), count].argmax(-1)
        tokens = torch.cat((guesses * taken, torch.zeros_like(count[:, None])), 1)
        return tokens.scatter(1, count[:, None], after[:, None]), count

    with torch.no_grad():
        return [*run.compile(verify)(run.randn(3, 5, 6), torch.randint(0, 9, (3, 4)), run.rand(3, 4))]


class Latent(nn.Module):
    """Attention over a small latent of keys and values that is cached and grows (DeepSeek's), a part of each head with positions and a part without."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.q, self.up, self.out = nn.Linear(12, 6 + 2), nn.Linear(12, 2 * 6), nn.Linear(6, 2 * 8), nn.Linear(8, 12)
        self.norm, self.latent_norm = RMSNorm(12), RMSNorm(6)

    def forward(self, x: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
        y = self.norm(x)
        latent, turned = self.down(y).split([6, 2], -1)
        kept = torch.cat((kept, torch.cat((self.latent_norm(latent), turned), -1)), 1)
        length = kept.shape[1]
        angle = torch.arange(length, device=x.device, dtype=x.dtype)[:, None]
        cos, sin = angle.cos(), angle.sin()
        q, q_turned = self.q(y).unflatten(-1, (2, 6)).transpose(1, 2).split([4, 2], -1)
        k, v = self.up(kept[..., :6]).unflatten(-1, (2, 8)).transpose(1, 2).chunk(2, -1)
        k_turned = rotated(kept[..., 6:], cos, sin)
        q_turned = rotated(q_turned, cos[-x.shape[1] :], sin[-x.shape[1] :])
        score = (torch.einsum("bhid,bhjd->bhij", q, k) + torch.einsum("bhid,bjd->bhij", q_turned, k_turned)) * 6**-0.5
        ahead = torch.arange(length, device=x.device) > torch.arange(length, device=x.device)[-x.shape[1] :, None]
        z = score.masked_fill(ahead, float("-inf")).softmax(-1) @ v
        return x + self.out(z.transpose(1, 2).flatten(2)), kept


def latent_attention(run: Run) -> Any:
    model = run.made(Latent()).eval()
    fast, kept, out = run.compile(model), torch.zeros(2, 0, 8, dtype=run.dtype), []
    with torch.no_grad():
        for length in (3, 1, 1, 1):
            y, kept = fast(run.randn(2, length, 12), kept)
            out.append(y)
    return [*out, kept, *state(model)[:1]]


PROGRAMS: dict[str, Program] = {
    f.__name__: f for f in (
        sliding_window_cache, routed_experts, selective_scan, quantized_lora, denoising_steps, sigmoid_contrastive, preferences, dropout_under_checkpoint,
        packed_sequences, ensembles, speculation, latent_attention,
    )
}  # fmt: skip

__all__ = ["PROGRAMS"]
