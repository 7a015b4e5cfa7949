"""Programs that train, as users write them. Read first: `PROGRAMS`; `program_run.Run` is what they are given."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import torch
import torch.nn.functional as F
from program_run import Program, Run, gradients, state, trained
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


def small(width: int = 10, out: int = 6) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, 14), nn.LayerNorm(14), nn.GELU(), nn.Linear(14, out))


def adamw_clipping_schedule(run: Run) -> Any:
    model, target = run.made(small()), torch.tensor([1, 0, 5, 2, 4])
    fast = run.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    losses = []
    for _ in range(3):
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(fast(run.randn(5, 10)), target, label_smoothing=0.1)
        loss.backward()
        losses += [loss.detach(), torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)]
        optimizer.step()
        schedule.step()
    return [*losses, *state(model)]


def whole_step_compiled(run: Run) -> Any:
    """Forward, backward and the optimizer in one compiled function."""
    model = run.made(small())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    fast = run.compile(step)
    return [*[fast(run.randn(5, 10)) for _ in range(3)], *state(model)]


def optimizer_compiled(run: Run) -> Any:
    """With clipping inside, a rate that changes, and lists of tensors, as on a GPU."""
    model, rate = run.made(nn.Linear(10, 6)), torch.tensor(0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, foreach=True)

    def step() -> Tensor:
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        return norm

    fast, norms = run.compile(step), []
    for number in range(3):
        optimizer.zero_grad()
        model(run.randn(5, 10)).square().mean().backward()
        rate.fill_(0.1 / (number + 1))
        norms.append(fast())
    return [*norms, *state(model)]


def autocast_and_scaler(run: Run) -> Any:
    model = run.made(small())
    fast, scaler = run.compile(model), torch.amp.GradScaler("cpu", init_scale=256.0)
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.05), []
    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = fast(run.randn(4, 10)).float().square().mean() if run.dtype is torch.float32 else fast(run.randn(4, 10)).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())
    return [*losses, *state(model)]


def accumulated_gradients(run: Run) -> Any:
    model = run.made(small())
    fast = run.compile(model)
    for rows in (4, 4, 3):
        (fast(run.randn(rows, 10)).square().mean() / 3).backward()
    return gradients(model)


class Checkpointed(nn.Module):
    def __init__(self, **how: Any) -> None:
        super().__init__()
        self.layers, self.how = nn.ModuleList([small(10, 10) for _ in range(2)]), how

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + checkpoint(layer, x, **self.how)
        return x


def checkpointed(run: Run) -> Any:
    return trained(run, run.made(Checkpointed(use_reentrant=False)), [run.randn(5, 10) for _ in range(2)])


def checkpointed_around_compiled(run: Run) -> Any:
    """The layer is compiled, and the checkpoint, of either kind, is around it."""
    model, out = run.made(small(10, 10)), []
    fast, x = run.compile(model), run.leaf(4, 10)
    for reentrant in (True, False):
        checkpoint(fast, x, use_reentrant=reentrant).square().mean().backward()
        out.append(x.grad.clone())
    return [*out, *gradients(model)]


class LoRA(nn.Module):
    def __init__(self, base: nn.Linear, rank: int = 3) -> None:
        super().__init__()
        self.base, self.merged = base.requires_grad_(False), False
        self.a, self.b = nn.Parameter(torch.randn(rank, base.in_features) / 4), nn.Parameter(torch.randn(base.out_features, rank) / 9)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) if self.merged else self.base(x) + F.dropout(x, 0.0) @ self.a.t() @ self.b.t() * 2.0

    def merge(self) -> None:
        with torch.no_grad():
            self.base.weight += 2.0 * self.b @ self.a
        self.merged = True


def lora(run: Run) -> Any:
    model = run.made(nn.Sequential(LoRA(nn.Linear(10, 12)), nn.SiLU(), LoRA(nn.Linear(12, 5))))
    fast, x = run.compile(model), run.randn(6, 10)
    before = fast(x)
    before.square().sum().backward()
    model[0].merge(), model[2].merge()
    with torch.no_grad():
        return [before, fast(x), *gradients(model)]


def moving_average(run: Run) -> Any:
    model = run.made(small())
    average = copy.deepcopy(model).requires_grad_(False)

    @run.compile
    def update(kept: list[Tensor], now: list[Tensor]) -> None:
        with torch.no_grad():
            torch._foreach_lerp_(kept, now, 0.1)

    fast, slow = run.compile(model), run.compile(average)
    fast(run.randn(4, 10)).square().mean().backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.1 * p.grad
    update(list(average.parameters()), list(model.parameters()))
    return [slow(run.randn(4, 10)), *state(average)]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm, self.head = nn.Embedding(19, 8, padding_idx=0), nn.RMSNorm(8), nn.Linear(8, 19, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: Tensor, labels: Tensor | None = None) -> dict[str, Tensor | None]:
        logits = self.head(self.norm(self.words(tokens)))
        shifted = None if labels is None else F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        return {"loss": shifted, "logits": logits}


def tied_weights_and_ignored_labels(run: Run) -> Any:
    model, tokens = run.made(Tied()), torch.tensor([[1, 4, 0, 18], [3, 3, 2, 0]])
    fast = run.compile(model)
    out = fast(tokens, labels=tokens.masked_fill(tokens == 0, -100))
    out["loss"].backward()
    return [out["loss"], out["logits"], model.head.weight is model.words.weight, *gradients(model), fast(tokens)["loss"]]


def halve(p: Tensor) -> None:
    assert p.grad is not None
    p.grad.mul_(0.5)


def hooks(run: Run) -> Any:
    """Before and behind modules, on gradients of modules, tensors and leaves."""
    model, seen = run.made(small()), []
    model[0].register_forward_pre_hook(lambda module, given: (given[0] * 2,))
    model[1].register_forward_hook(lambda module, given, out: out + 1)
    model[3].register_full_backward_hook(lambda module, given, out: seen.append(out[0].norm()))
    model[0].weight.register_post_accumulate_grad_hook(halve)
    x = run.leaf(4, 10)
    x.register_hook(lambda g: g * 3)
    y = run.compile(model)(x)
    y.register_hook(lambda g: g.clamp(-0.1, 0.1))
    y.square().sum().backward()
    return [y, x.grad, *seen, *gradients(model)]


class Clamp(torch.autograd.Function):
    """A clamp whose gradient goes through where it points back inside."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, low: float, high: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.limits = low, high
        return x.clamp(low, high)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Any:
        (x,), (low, high) = ctx.saved_tensors, ctx.limits
        return slope * (((x > low) | (slope < 0)) & ((x < high) | (slope > 0))), None, None


def own_autograd_function(run: Run) -> Any:
    x, w = run.leaf(6, 7), run.leaf(7, 7)
    y = run.compile(lambda x, w: Clamp.apply(torch.tanh(x @ w) * 2, -0.7, 0.9).exp())(x, w)
    y.sin().sum().backward()
    return [y, x.grad, w.grad]


def func_grad_and_vmap(run: Run) -> Any:
    """Gradients of each sample, a Jacobian and a Hessian-vector product."""
    from torch.func import functional_call, grad, jacrev, jvp, vmap

    model, x = run.made(nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))), run.randn(4, 5)
    parameters = {k: v.detach() for k, v in model.named_parameters()}

    def loss(p: dict[str, Tensor], row: Tensor) -> Tensor:
        return functional_call(model, p, (row,)).square().sum()

    each = run.compile(vmap(grad(loss), in_dims=(None, 0)))(parameters, x)
    turned = run.compile(lambda x: vmap(jacrev(lambda r: torch.softmax(r * 2, -1)))(x))(x)
    product = run.compile(lambda x, v: jvp(grad(lambda x: torch.logsumexp(x * x, -1).sum()), (x,), (v,))[1])(x, run.randn(4, 5))
    return [*each.values(), turned, product]


def second_derivatives(run: Run) -> Any:
    """A residual of a differential equation: derivatives of a network by its input, with gradients of its weights."""
    from torch.func import grad, vmap

    model, x = run.made(nn.Sequential(nn.Linear(1, 12), nn.Tanh(), nn.Linear(12, 1))), run.rand(7)

    def value(x: Tensor) -> Tensor:
        return model(x.reshape(1)).squeeze()

    residual = run.compile(lambda x: (vmap(grad(grad(value)))(x) + vmap(value)(x).sin()).square().mean())(x)
    residual.backward()
    return [residual, *gradients(model)]


def data_parallel_on_gloo(run: Run) -> Any:
    """A compiled module in DistributedDataParallel, with one process."""
    import tempfile

    import torch.distributed as dist

    with tempfile.NamedTemporaryFile() as file:
        dist.init_process_group("gloo", init_method=f"file://{file.name}", rank=0, world_size=1)
        try:
            model = run.made(Rounded())
            run.compile_in_place(model)
            fast = nn.parallel.DistributedDataParallel(model)
            for _ in range(2):
                fast(run.randn(4, 9)).square().mean().backward()
            return [*gradients(model), fast(run.randn(4, 9))]
        finally:
            dist.destroy_process_group()


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6, momentum=0.3)
        self.deep, self.plain, self.head = nn.Conv2d(6, 6, 3, groups=6), nn.BatchNorm2d(6, affine=False, momentum=None), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.conv(x)), inplace=True), 2)
        return self.head(F.hardswish(self.plain(self.deep(x))).mean((2, 3)))


def batch_norm_statistics(run: Run) -> Any:
    """Training changes the buffers, evaluation reads them."""
    model = run.made(Images())
    out = trained(run, model, [run.randn(3, 3, 9, 8) for _ in range(2)])
    fast = run.compile(model.eval())
    return [*out, fast(run.randn(2, 3, 9, 8))]


def channels_last(run: Run) -> Any:
    model = run.made(Images()).to(memory_format=torch.channels_last)
    x = run.randn(2, 3, 8, 9).contiguous(memory_format=torch.channels_last).requires_grad_()
    y = run.compile(model)(x)
    y.square().mean().backward()
    middle = run.compile(lambda x: F.relu(model.conv(x)) * 2)(x.detach())
    return [y, x.grad, middle, middle.is_contiguous(memory_format=torch.channels_last), *gradients(model)]


def written_views(run: Run) -> Any:
    """Rows, columns and masked elements of an input and of a temporary are written."""

    def change(x: Tensor, mask: Tensor) -> Tensor:
        y = x.clone() * 2
        y[:, ::2] *= 3
        y[mask] = 0.5
        y[1:, 0].add_(x[:-1, 1])
        y.select(1, 2).mul_(0.3).add_(1)
        x[0] = y[1].detach()
        y.t()[3].clamp_(max=0.2)
        return y.sin_()

    x, leaf, mask = run.randn(5, 6), run.leaf(5, 6), torch.rand(5, 6) > 0.7
    y = run.compile(change)(leaf * 1, mask)
    (y * leaf.exp()).sum().backward()
    plain = run.compile(change)(x, mask)
    return [y, leaf.grad, plain, x]


def dropout_with_a_seed(run: Run) -> Any:
    """Equal seeds give equal masks, other seeds others, and the backward uses the forward's."""
    x = torch.ones(64, 33).to(run.dtype).requires_grad_()
    fast, out = run.compile(lambda x: F.dropout(F.gelu(x), 0.25) * 2), []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        x.grad = None
        y = fast(x)
        y.sum().backward()
        out.append((y.detach().clone(), x.grad))
    (a, slope), (b, _), (c, _) = out
    kept = a != 0
    return [torch.equal(a, b), not torch.equal(a, c), torch.equal(kept, slope != 0), bool(abs(kept.double().mean() - 0.75) < 0.03), a.amax(), slope.amax()]


class Patches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cut, self.token = nn.Conv2d(3, 12, 4, 4), nn.Parameter(torch.randn(1, 1, 12) / 4)
        self.places, self.norm = nn.Parameter(torch.randn(1, 5, 12) / 4), nn.LayerNorm(12, eps=1e-6)
        self.attention, self.scale = nn.MultiheadAttention(12, 3, batch_first=True), nn.Parameter(torch.full((12,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.cut(x)
        _, _, h, w = x.shape
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x.flatten(2).transpose(1, 2)), 1)
        grid = F.interpolate(self.places[:, 1:].reshape(1, 2, 2, 12).permute(0, 3, 1, 2), size=(h, w), mode="bilinear", align_corners=False)
        x = x + torch.cat((self.places[:, :1], grid.permute(0, 2, 3, 1).flatten(1, 2)), 1)
        y = self.norm(x)
        return (x + self.scale * self.attention(y, y, y, need_weights=False)[0])[:, 0]


def vision_transformer(run: Run) -> Any:
    return trained(run, run.made(Patches()), [run.randn(2, 3, 8, 12) for _ in range(2)])


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.time, self.first, self.down = (
            nn.Sequential(nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 16)),
            nn.Conv2d(2, 8, 3, padding=1),
            nn.Conv2d(8, 8, 3, stride=2, padding=1),
        )
        self.norm, self.up, self.last = nn.GroupNorm(4, 8), nn.ConvTranspose2d(8, 8, 2, 2), nn.Conv2d(16, 2, 3, padding=1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        angle = t[:, None] * torch.exp(torch.arange(4, dtype=x.dtype) * -0.7)
        scale, shift = self.time(torch.cat((angle.sin(), angle.cos()), -1))[:, :, None, None].chunk(2, 1)
        x = self.first(x)
        y = F.silu(self.norm(self.down(x)) * (1 + scale) + shift)
        y = F.interpolate(y, scale_factor=2, mode="nearest") + self.up(y)
        return self.last(torch.cat((x, y), 1))


def diffusion_step(run: Run) -> Any:
    """Noise by a table of steps, a U-Net with a skip, a loss weighted by the signal's share."""
    model = run.made(UNet())
    kept = torch.cumprod(1 - torch.linspace(1e-4, 0.3, 10), 0).to(run.dtype)

    def loss(x: Tensor, noise: Tensor, step: Tensor) -> Tensor:
        share = kept[step][:, None, None, None]
        guess = model(share.sqrt() * x + (1 - share).sqrt() * noise, step.to(x.dtype))
        weight = (share / (1 - share)).clamp(max=5).flatten()
        return (weight * (guess - noise).square().mean((1, 2, 3))).mean()

    out = run.compile(loss)(run.randn(3, 2, 6, 6), run.randn(3, 2, 6, 6), torch.tensor([0, 4, 9]))
    out.backward()
    return [out, *gradients(model)]


class Experts(nn.Module):
    """Each expert computes the tokens that chose it, in a loop over experts, as Hugging Face's models do."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(8, 3, bias=False), nn.ModuleList([nn.Sequential(nn.Linear(8, 12), nn.SiLU(), nn.Linear(12, 8)) for _ in range(3)])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.router(x)
        share, chosen = logits.softmax(-1).topk(2, -1)
        share = share / share.sum(-1, keepdim=True)
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, place = torch.where(chosen == number)
            y.index_add_(0, rows, expert(x[rows]) * share[rows, place, None])
        used = F.one_hot(chosen, 3).to(x.dtype).mean((0, 1))
        return y, 3 * (used * logits.softmax(-1).mean(0)).sum() + 1e-3 * logits.logsumexp(-1).square().mean()


def mixture_of_experts(run: Run) -> Any:
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        return trained(run, run.made(Experts()), [run.randn(9, 8) for _ in range(2)], loss=lambda out: out[0].square().mean() + out[1])


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.gru, self.head = nn.LSTMCell(5, 6), nn.GRU(6, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = c = x.new_zeros(x.shape[0], 6)
        seen = []
        for t in range(x.shape[1]):
            h, c = self.cell(x[:, t], (h, c))
            seen.append(h)
        return self.head(self.gru(torch.stack(seen, 1))[0][:, -1])


def recurrent(run: Run) -> Any:
    return trained(run, run.made(Recurrent()), [run.randn(3, 4, 5) for _ in range(2)])


def masked_losses(run: Run) -> Any:
    """Means over a mask, weights of classes, targets that are probabilities, one row that is masked wholly."""

    def loss(x: Tensor, y: Tensor, label: Tensor, mask: Tensor, weight: Tensor) -> list[Tensor]:
        each = F.smooth_l1_loss(x, y, reduction="none") * mask
        row = each.sum(-1) / mask.sum(-1).clamp(min=1)
        return [
            row.mean(), F.cross_entropy(x, label, weight=weight, ignore_index=2), F.cross_entropy(x, y.softmax(-1), label_smoothing=0.1),
            F.binary_cross_entropy_with_logits(x, (y > 0).to(x.dtype), pos_weight=weight, weight=mask.to(x.dtype)),
            F.kl_div(x.log_softmax(-1), y.log_softmax(-1), reduction="batchmean", log_target=True), x[mask].square().mean(),
            F.multi_margin_loss(x, label), F.cosine_embedding_loss(x, y, label.sign() * 2 - 1, margin=0.1), F.huber_loss(x.masked_fill(~mask, 0.0), y * mask, delta=0.3),
        ]  # fmt: skip

    x, mask = run.leaf(5, 7), torch.rand(5, 7) > 0.4
    mask[3] = False
    losses = run.compile(loss)(x, run.randn(5, 7), torch.tensor([0, 2, 6, 2, 1]), mask, run.rand(7) + 0.5)
    torch.stack(losses).sum().backward()
    return [*losses, x.grad]


class Rounded(nn.Module):
    """A linear layer that trains with weights of 8 bits and a gradient that goes straight through."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(6, 9)), nn.Parameter(torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        scale = self.weight.detach().abs().amax(1, keepdim=True).clamp(min=1e-5) / 127
        near = torch.round(self.weight / scale).clamp(-128, 127) * scale
        return F.linear(x, self.weight + (near - self.weight).detach(), self.bias)


def quantization_aware(run: Run) -> Any:
    return trained(run, run.made(nn.Sequential(Rounded(), nn.Hardswish(), nn.PReLU())), [run.randn(4, 9) for _ in range(2)], rate=1e-4)


def contrastive(run: Run) -> Any:
    """CLIP's loss, with a learned scale and normalized features, and a triplet loss of distances."""
    a, b, scale = run.leaf(5, 8), run.leaf(5, 8), torch.tensor(2.0).to(run.dtype).requires_grad_()

    def loss(a: Tensor, b: Tensor, scale: Tensor) -> Tensor:
        x, y = F.normalize(a, dim=-1), F.normalize(b, dim=-1)
        logits = scale.exp().clamp(max=100) * x @ y.t()
        target = torch.arange(a.shape[0], device=a.device)
        far = torch.cdist(a, b)
        near = far.diagonal() - (far + torch.eye(len(far)) * 1e6).amin(1) + 0.2
        return (F.cross_entropy(logits, target) + F.cross_entropy(logits.t(), target)) / 2 + near.relu().mean()

    out = run.compile(loss)(a, b, scale)
    out.backward()
    return [out, a.grad, b.grad, scale.grad]


def policy_gradient(run: Run) -> Any:
    """PPO: advantages by a loop from the end, distributions, a clipped ratio, an entropy."""
    from torch.distributions import Categorical, Normal

    def loss(logits: Tensor, mean: Tensor, action: Tensor, move: Tensor, old: Tensor, reward: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        gain, gains = torch.zeros_like(value[0]), []
        for t in reversed(range(reward.shape[0])):
            after = value[t + 1] if t + 1 < len(value) else torch.zeros_like(value[0])
            gain = reward[t] + 0.9 * after - value[t].detach() + 0.8 * gain
            gains.insert(0, gain)
        advantage = torch.stack(gains).detach()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        policy, body = Categorical(logits=logits), Normal(mean, F.softplus(mean) + 0.1)
        ratio = (policy.log_prob(action) + body.log_prob(move) - old).exp()
        cut = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        return -cut.mean() + 0.5 * (value - advantage).square().mean() - 0.01 * policy.entropy().mean(), advantage

    logits, mean, value = run.leaf(6, 4, 3), run.leaf(6, 4), run.leaf(6, 4)
    out, advantage = run.compile(loss)(logits, mean, torch.randint(0, 3, (6, 4)), run.randn(6, 4), run.randn(6, 4) - 2, run.randn(6, 4), value)
    out.backward()
    return [out, advantage, logits.grad, mean.grad, value.grad]


def adversarial(run: Run) -> Any:
    """Two networks; what one makes is detached for the other, whose gradients are off in between."""
    maker, judge = run.made(small(4, 6)), run.made(small(6, 1))
    make, tell = run.compile(maker), run.compile(judge)
    fake = make(run.randn(5, 4))
    (F.softplus(-tell(run.randn(5, 6))).mean() + F.softplus(tell(fake.detach())).mean()).backward()
    first = gradients(judge)
    judge.requires_grad_(False)
    F.softplus(-tell(fake)).mean().backward()
    return [fake, *first, *gradients(maker)]


def graph_network(run: Run) -> Any:
    """Messages along edges: sums, means and largest by target, a softmax over the edges of a node."""
    edges, x, w = torch.tensor([[0, 1, 2, 3, 3, 0, 4], [1, 1, 0, 2, 4, 3, 4]]), run.leaf(6, 5), run.leaf(5, 5)

    def layer(x: Tensor, w: Tensor, source: Tensor, target: Tensor) -> Tensor:
        message = torch.tanh(x[source] @ w)
        score = (message * x[target]).sum(-1)
        top = torch.full_like(x[:, 0], float("-inf")).scatter_reduce(0, target, score.detach(), "amax", include_self=False)
        share = (score - top[target]).exp()
        share = share / torch.zeros_like(x[:, 0]).scatter_add(0, target, share)[target]
        out = torch.zeros_like(x).index_add(0, target, message * share[:, None])
        return F.elu(out + torch.zeros_like(x).scatter_reduce(0, target[:, None].expand(-1, 5), message, "mean", include_self=False))

    y = run.compile(layer)(x, w, *edges)
    y.square().sum().backward()
    return [y, x.grad, w.grad]


def normalized_weights(run: Run) -> Any:
    """Weight and spectral norm; the latter changes a buffer in each training step."""
    from torch.nn.utils import parametrizations

    model = run.made(nn.Sequential(parametrizations.weight_norm(nn.Linear(7, 6)), nn.Mish(), parametrizations.spectral_norm(nn.Linear(6, 5))))
    return trained(run, model, [run.randn(4, 7) for _ in range(2)])


def saved_tensor_hooks(run: Run) -> Any:
    """Saved tensors go through a function of the user's, as when they are kept on the host."""
    x, w = run.leaf(4, 6), run.leaf(6, 6)
    fast = run.compile(lambda x, w: torch.tanh(F.silu(x @ w) @ w))
    with torch.autograd.graph.save_on_cpu():
        y = fast(x, w)
    y.sum().backward()
    return [y, x.grad, w.grad]


def some_outputs_used(run: Run) -> Any:
    """A backward for one of two results, a second one through a graph that was kept, gradients that lie otherwise than the results."""
    x = run.leaf(5, 6)
    a, b, c = run.compile(lambda x: (x.exp(), (x * 3).softmax(-1), x.t().sigmoid()))(x)
    b.backward(torch.ones(()).to(run.dtype).expand(5, 6), retain_graph=True)
    first = x.grad.clone()
    b.backward(run.randn(6, 5).t(), retain_graph=True)
    (gradient,) = torch.autograd.grad((a, c), x, (run.randn(5, 6)[:, [1, 0, 2, 3, 5, 4]], run.randn(5, 6).t()))
    return [a, b, c, first, x.grad, gradient]


def muon(run: Run) -> Any:
    """An optimizer that makes each step orthogonal by five products, compiled, and writes the parameters."""

    @run.compile
    @torch.no_grad()
    def update(p: Tensor, g: Tensor, kept: Tensor) -> None:
        kept.lerp_(g, 0.1)
        x = g.lerp(kept, 0.9)
        x = x / (x.norm() + 1e-7)
        for _ in range(2):
            a = x @ x.mT
            x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
        p.mul_(1 - 0.01).add_(x, alpha=-0.02 * max(1, p.size(-2) / p.size(-1)) ** 0.5)

    parameters, kept = [run.randn(6, 8), run.randn(9, 4)], [run.randn(6, 8) * 0, run.randn(9, 4) * 0]
    for _ in range(2):
        for p, k in zip(parameters, kept):
            update(p, run.randn(*p.shape), k)
    return [*parameters, *kept]


def sparse_embedding_and_bags(run: Run) -> Any:
    words, bags = run.made(nn.Embedding(11, 6, max_norm=1.0)), run.made(nn.EmbeddingBag(9, 6, mode="mean"))
    fast = run.compile(lambda i, j, o: words(i).mean(1) * F.tanh(bags(j, o)))
    y = fast(torch.tensor([[1, 3], [10, 0]]), torch.tensor([0, 2, 8, 8, 1]), torch.tensor([0, 3]))
    y.sum().backward()
    return [y, *gradients(words), *gradients(bags), *state(words)]


def compiled_autograd(run: Run) -> Any:
    """The whole backward is one graph, with the hooks of leaves."""
    model = run.made(small())
    model[0].weight.register_post_accumulate_grad_hook(halve)
    fast = run.compile(model)
    how = torch._dynamo.compiled_autograd._enable if run.is_ours else contextlib.nullcontext
    losses = []
    for _ in range(2):
        losses.append(fast(run.randn(4, 10)).square().mean())
        with how(run.compile):
            losses[-1].backward()
    return [*losses, *gradients(model)]


def frozen_then_trained(run: Run) -> Any:
    """One compiled module: without gradients, with a frozen part, in evaluation, in inference mode, and trained."""
    model = run.made(nn.Sequential(nn.BatchNorm1d(10), nn.Dropout(0.5), small()))
    fast, x, out = run.compile(model), run.randn(5, 10), []
    model.eval()
    with torch.inference_mode():
        out.append(fast(x).clone())
    with torch.no_grad():
        out.append(fast(x))
    model[2].requires_grad_(False)
    fast(x).exp().sum().backward()
    out += gradients(model)
    model[2].requires_grad_(True)
    model[1].p = 0.0
    model.train()
    fast(x).exp().sum().backward()
    return [*out, *gradients(model), *state(model)]


PROGRAMS: dict[str, Program] = {
    function.__name__: function
    for function in (
        adamw_clipping_schedule, whole_step_compiled, optimizer_compiled, autocast_and_scaler, accumulated_gradients, checkpointed, checkpointed_around_compiled, lora,
        moving_average, tied_weights_and_ignored_labels, hooks, own_autograd_function, func_grad_and_vmap, second_derivatives, data_parallel_on_gloo,
        batch_norm_statistics, channels_last, written_views, dropout_with_a_seed, vision_transformer, diffusion_step, mixture_of_experts, recurrent, masked_losses,
        quantization_aware, contrastive, policy_gradient, adversarial, graph_network, normalized_weights, saved_tensor_hooks, some_outputs_used, muon,
        sparse_embedding_and_bags, compiled_autograd, frozen_then_trained,
    )
}  # fmt: skip

__all__ = ["PROGRAMS"]
