"""Programs that keep state beside their parameters, read it before they change it, and return it: streams, observers, codebooks, teachers, optimizers.

Read first: `PROGRAMS`.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
import torch.nn.functional as F
from program_run import Program, Run, gradients, state, trained
from torch import Tensor, nn


class Snapshots(nn.Module):
    """Returns its buffers as they were before this call."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("ring", torch.zeros(3, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = torch.tanh(self.inside(x))
        before = self.mean.clone(), self.calls.clone(), self.ring[0].clone()
        with torch.no_grad():
            self.mean.mul_(0.5).add_(y.mean(0))
            self.calls += 1
            self.ring.copy_(self.ring.roll(-1, 0))
            self.ring[-1] = y[0]
        return y + before[0], *before


def snapshots_of_state(run: Run) -> Any:
    model, out = run.made(Snapshots()), []
    fast = run.compile(model)
    for _ in range(4):
        result = fast(run.randn(3, 4))
        result[0].square().sum().backward()
        out += result
    return [*out, *state(model), *gradients(model)]


class Detector(nn.Module):
    """A convolution that remembers the end of the chunk before, and a cell that goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.cell, self.out = nn.Conv1d(2, 4, 3), nn.GRUCell(4, 4), nn.Linear(4, 1)
        self.register_buffer("context", torch.zeros(1, 2, 2))
        self.register_buffer("hidden", torch.zeros(1, 4))

    @torch.no_grad()
    def forward(self, chunk: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        before, h = self.context.clone(), self.hidden
        x = torch.cat((before, chunk), -1)
        self.context.copy_(x[..., -2:])
        chances = []
        for frame in F.relu(self.conv(x)).unbind(-1):
            h = self.cell(frame, h)
            chances.append(torch.sigmoid(self.out(h)))
        self.hidden.copy_(h)
        return torch.stack(chances, -1), before, x.abs().amax()


def streams_in_chunks(run: Run) -> Any:
    model, out = run.made(Detector()).eval(), []
    fast = run.compile(model)
    for _ in range(4):
        out += fast(run.randn(1, 2, 4))
    return [*out, *state(model)]


def layerwise_optimizer(run: Run) -> Any:
    """LAMB as a function of lists of tensors, with clipping; it also returns the parameters as they were, and how far each moved."""

    @run.compile
    @torch.no_grad()
    def step(weights: list[Tensor], slopes: list[Tensor], first: list[Tensor], second: list[Tensor], rate: Tensor, count: Tensor) -> Any:
        old = [p.clone() for p in weights]
        total = torch.stack([g.norm() for g in slopes]).norm()
        for p, g, m, v in zip(weights, slopes, first, second):
            g = g * (1 / (total + 1e-6)).clamp(max=1)
            m.lerp_(g, 0.1)
            v.mul_(0.99).addcmul_(g, g, value=0.01)
            update = (m / (1 - 0.9**count)) / ((v / (1 - 0.99**count)).sqrt() + 1e-8)
            p.sub_(rate * (p.norm() / update.norm()).clamp(0.01, 10) * update)
            p.mul_(1 - rate * 0.01)
        return old, total, [(a - b).abs().max() for a, b in zip(weights, old)]

    weights = [run.randn(4, 3), run.randn(5)]
    first, second = ([torch.zeros_like(p) for p in weights] for _ in range(2))
    out = []
    for number in range(4):
        rate, count = (torch.tensor(n, dtype=run.dtype) for n in (0.1, number + 1.0))
        old, total, far = step(weights, [run.randn(4, 3), run.randn(5)], first, second, rate, count)
        out += [*old, total, *far]
    return [*out, *weights, *first, *second]


def power(x: Tensor) -> Tensor:
    """The next power of two: steps by which float32 and float64 round to the same numbers."""
    return torch.exp2(torch.ceil(torch.log2(x)))


class Observed(nn.Module):
    """A linear layer in 8 bits: ranges and a histogram of its inputs are buffers, values are rounded down, gradients go straight through."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 8))
        self.register_buffer("low", torch.full((8,), math.inf))
        self.register_buffer("high", torch.full((8,), -math.inf))
        self.register_buffer("histogram", torch.zeros(4, dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            seen = x.detach()
            self.low.copy_(torch.minimum(self.low, seen.amin(0)))
            self.high.copy_(torch.maximum(self.high, seen.amax(0)))
            bin = ((seen.flatten() + 2) // 1.0).clamp(0, 3).long()
            self.histogram.scatter_add_(0, bin, torch.ones_like(bin))
        step = power((self.high - self.low) / 255)
        zero = (-self.low / step).round().clamp(0, 255)
        near = ((x / step + zero).floor().clamp(0, 255) - zero) * step
        scale = power(self.weight.detach().abs().amax(1, keepdim=True) / 127)
        weight = torch.div(self.weight, scale, rounding_mode="floor").clamp(-128, 127) * scale
        return F.linear(x + (near - x).detach(), self.weight + (weight - self.weight).detach())


def observers_of_ranges(run: Run) -> Any:
    model, out = run.made(Observed()), []
    fast = run.compile(model)
    for _ in range(3):
        out.append(fast(run.randn(5, 8)))
        out[-1].square().mean().backward()
    model.eval()
    return [*out, fast(run.randn(2, 8)), *state(model), *gradients(model)]


class Codebook(nn.Module):
    """VQ-VAE: the nearest of a few vectors, which follow a moving average of what chose them."""

    def __init__(self, count: int = 7, width: int = 4) -> None:
        super().__init__()
        self.encode, self.decode = nn.Conv2d(3, width, 2, 2), nn.ConvTranspose2d(width, 3, 2, 2)
        self.register_buffer("vectors", torch.randn(count, width))
        self.register_buffer("chosen", torch.zeros(count))
        self.register_buffer("sums", self.vectors.clone())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.encode(x).permute(0, 2, 3, 1).contiguous()
        flat = z.view(-1, z.shape[-1])
        far = flat.square().sum(1, keepdim=True) - 2 * flat @ self.vectors.t() + self.vectors.square().sum(1)
        one = F.one_hot(far.argmin(1), self.vectors.shape[0]).to(x.dtype)
        near = (one @ self.vectors).view_as(z)
        if self.training:
            with torch.no_grad():
                self.chosen.mul_(0.9).add_(one.sum(0), alpha=0.1)
                self.sums.mul_(0.9).add_(one.t() @ flat, alpha=0.1)
                total = self.chosen.sum()
                size = (self.chosen + 1e-5) / (total + 7e-5) * total
                self.vectors.copy_(self.sums / size[:, None])
        share = one.mean(0)
        loss = 0.25 * F.mse_loss(near.detach(), z) + 0 * (share * (share + 1e-10).log()).sum()
        return self.decode((z + (near - z).detach()).permute(0, 3, 1, 2)), loss


def codebook(run: Run) -> Any:
    model = run.made(Codebook())
    out = trained(run, model, [run.randn(rows, 3, 4, 6) for rows in (2, 3)], loss=lambda made: made[0].square().mean() + made[1])
    with torch.inference_mode():
        return [*out, run.compile(model.eval())(run.randn(2, 3, 4, 6))[0].clone()]


def repeated_heads_of_open_sizes(run: Run) -> Any:
    """Keys of a group repeated by expand and reshape, masks and inputs by repeat, all returned, with any number of rows."""
    keys = run.made(nn.Linear(8, 8, bias=False))

    def f(x: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        b, s, _ = x.shape
        k = keys(x).view(b, s, 2, 4).transpose(1, 2)
        k = k[:, :, None].expand(b, 2, 3, s, 4).reshape(b, 6, s, 4)
        seen = mask[:, None, None].expand(b, 1, s, s).reshape(b, s, s)
        weight = (k @ k.mT * 0.5).masked_fill(~seen[:, None], float("-inf")).softmax(-1)
        return weight @ k, k * 2, x.repeat(2, 1, 1).view(2, b, s, 8) + 1, mask[None].repeat(2, 1, 1), x.repeat_interleave(2, 0)

    fast, out = run.compile(f, dynamic=True), []
    for b, s in ((2, 3), (1, 5), (3, 2)):
        x = run.leaf(b, s, 8)
        made = fast(x, torch.arange(s).expand(b, s) < s - 1)
        sum(y.square().sum() for y in made if y.is_floating_point()).backward()
        out += [*made, x.grad]
    return [*out, *gradients(keys)]


def arguments_and_their_parts_written(run: Run) -> Any:
    """Results into given tensors, a count and a list in a dictionary, a tensor that is turned round, a view that is scaled."""

    def f(a: Tensor, b: Tensor, c: Tensor, kept: dict[str, Any]) -> tuple[Tensor, Tensor]:
        torch.add(a, b, out=c)
        kept["count"].add_(1)
        kept["means"][0].mul_(0.9).add_(a.mean(0), alpha=0.1)
        torch.matmul(a, b.t(), out=kept["product"])
        kept["sums"].append(c.sum())
        b.copy_(a.flip(0))
        a.t().mul_(0.5)
        return c * 2, kept["count"].clone()

    a, b, c = run.randn(3, 4), run.randn(3, 4), torch.zeros(3, 4, dtype=run.dtype)
    kept = {"count": torch.tensor(0), "means": [torch.zeros(4, dtype=run.dtype)], "product": torch.zeros(3, 3, dtype=run.dtype), "sums": []}
    fast, out = run.compile(f), []
    for _ in range(4):
        out += fast(a, b, c, kept)
    return [*out, a, b, c, kept["count"], kept["means"][0], kept["product"], *kept["sums"]]


def teacher_and_student(run: Run) -> Any:
    """Mixed samples with a share of one element, a loss of agreement where the teacher is sure, and a teacher that follows by a compiled function."""
    student = run.made(nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 4)))
    teacher = copy.deepcopy(student).requires_grad_(False)

    def loss(x: Tensor, label: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            wanted = teacher(x).softmax(-1)
            is_sure = wanted.amax(-1) > 0.3
        z = student(share * x + (1 - share) * x.flip(0))
        mixed = share * F.cross_entropy(z, label) + (1 - share) * F.cross_entropy(z, label.flip(0))
        far = F.kl_div(z.log_softmax(-1), wanted, reduction="none").sum(-1)
        return mixed + (far * is_sure).sum() / is_sure.sum().clamp(min=1), is_sure

    @run.compile
    @torch.no_grad()
    def follow() -> None:
        for a, b in zip(teacher.parameters(), student.parameters()):
            a.lerp_(b, 0.3)
        for a, b in zip(teacher.buffers(), student.buffers()):
            a.copy_(b)

    fast, optimizer, out = run.compile(loss), torch.optim.SGD(student.parameters(), 0.05, momentum=0.9), []
    for _ in range(2):
        optimizer.zero_grad()
        made, is_sure = fast(run.randn(6, 5), torch.randint(0, 4, (6,)), run.rand(1))
        made.backward()
        optimizer.step()
        follow()
        out += [made, is_sure]
    return [*out, *state(teacher)]


def scans_of_torchs_own(run: Run) -> Any:
    """torch's operators for loops that carry a value, and for sums that are associative."""
    from torch._higher_order_ops.associative_scan import associative_scan
    from torch._higher_order_ops.scan import scan

    def carried(x: Tensor) -> tuple[Tensor, Tensor]:
        last, each = scan(lambda c, row: (torch.tanh(c * 0.5 + row), c * row), torch.zeros(3, dtype=x.dtype), x * 2)
        return last.exp(), each.softmax(-1)

    x = run.randn(5, 3)
    return [*run.compile(carried)(x), run.compile(lambda x: associative_scan(lambda a, b: a * 0.9 + b, x.sigmoid(), 0, combine_mode="generic"))(x)]


def numbers_that_change(run: Run) -> Any:
    """Widths, factors and flags that differ from call to call."""

    def f(x: Tensor, width: int, factor: float, is_doubled: bool) -> tuple[Tensor, ...]:
        y = F.pad(x[:, :width] * factor + width, (width, 0), value=factor)
        y = y.repeat(2, 1) if is_doubled else y / width
        return y.softmax(-1), torch.full((width,), factor, dtype=x.dtype), torch.arange(width) * 2

    fast, x, out = run.compile(f), run.leaf(3, 8), []
    for width, factor, is_doubled in ((2, 0.5, True), (3, 1.5, True), (5, -2.5, True), (1, 0.25, False)):
        made = fast(x, width, factor, is_doubled)
        made[0].square().sum().backward()
        out += made
    return [*out, x.grad]


def instance_norms_of_any_size(run: Run) -> Any:
    """Images of several sizes through one graph: an instance norm with slopes of its own per channel, a pool, classes."""
    model = run.made(nn.Sequential(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4, affine=True), nn.PReLU(4), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 5)))
    fast, out = run.compile(model, dynamic=True), []
    for shape in ((2, 3, 8, 9), (3, 3, 5, 6)):
        out.append(F.cross_entropy(fast(run.randn(*shape)), torch.arange(shape[0]), label_smoothing=0.1))
        out[-1].backward()
    return [*out, *gradients(model)[2:]]  # a bias in front of a norm has no gradient but rounding errors


PROGRAMS: dict[str, Program] = {
    f.__name__: f for f in (
        snapshots_of_state, streams_in_chunks, layerwise_optimizer, observers_of_ranges, codebook, repeated_heads_of_open_sizes, arguments_and_their_parts_written,
        teacher_and_student, scans_of_torchs_own, numbers_that_change, instance_norms_of_any_size,
    )
}  # fmt: skip

__all__ = ["PROGRAMS"]
