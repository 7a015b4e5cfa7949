"""Torch functions of images, sounds, diffusion, physics and statistics for `model_functions.py`, written before anything was tuned for them (2026-11-30).

Sizes come from the inputs, so the functions also run on small ones. Adds them to `CASES` there. Read first: `case` in `function_cases.py`.
"""

from __future__ import annotations

import math
from itertools import permutations

import torch
import torch.nn.functional as F
from function_cases import I, Input, R, case
from torch import Tensor

FLOAT = torch.float32


# ---------------------------------------------------------------- detection and masks
@case(R(8, 16384, 80), I(82, 8, 16384), R(8, 16384, 4), R(8, 16384, 4, dt=FLOAT), grads=(0, 2))
def retina_loss(x: Tensor, label: Tensor, box: Tensor, target: Tensor) -> Tensor:
    """RetinaNet: class 80 is background, class 81 is ignored; boxes of what is found."""
    classes = x.shape[-1]
    found, used = label < classes, label <= classes
    y = (label[..., None] == torch.arange(classes, device=x.device)).float()
    p, ce = x.float().sigmoid(), F.binary_cross_entropy_with_logits(x.float(), y, reduction="none")
    pt = p * y + (1 - p) * (1 - y)
    focal = (0.25 * y + 0.75 * (1 - y)) * (1 - pt).square() * ce * used[..., None]
    boxes = F.smooth_l1_loss(box.float(), target, beta=1 / 9, reduction="none") * found[..., None]
    return (focal.sum() + boxes.sum()) / found.sum().clamp(min=1)


@case(R(8, 21504, 4), R(8, 21504, 4, dt=FLOAT), R(8, 21504), grads=(0, 2))
def centerness_loss(x: Tensor, target: Tensor, center: Tensor) -> Tensor:
    """FCOS: generalized overlap of distances to four sides, weighted by centerness, and its own loss."""
    p, t = x.float().exp(), target
    inside = t.amin(-1) > -1.5
    t = t.abs() + 0.1
    lr, tb = t[..., 0::2], t[..., 1::2]
    c = (lr.amin(-1) / lr.amax(-1) * (tb.amin(-1) / tb.amax(-1))).sqrt() * inside
    low, high = torch.minimum(p, t), torch.maximum(p, t)
    both = (low[..., 0] + low[..., 2]) * (low[..., 1] + low[..., 3])
    hull = (high[..., 0] + high[..., 2]) * (high[..., 1] + high[..., 3])
    union = (p[..., 0] + p[..., 2]) * (p[..., 1] + p[..., 3]) + (t[..., 0] + t[..., 2]) * (t[..., 1] + t[..., 3]) - both
    giou = both / union - (hull - union) / hull.clamp(min=1e-7)
    bce = F.binary_cross_entropy_with_logits(center.float(), c, reduction="none")
    return ((1 - giou) * c).sum() / c.sum().clamp(min=1e-6) + (bce * inside).sum() / inside.sum().clamp(min=1)


@case(R(16, 3 * 85, 80, 80), R(3, 2, dt=FLOAT), grads=())
def decoded_grid(x: Tensor, anchors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """YOLOv5's head: boxes, and the best class of each with its score."""
    n, _, h, w = x.shape
    a = anchors.shape[0]
    y = x.view(n, a, -1, h, w).permute(0, 1, 3, 4, 2).float().sigmoid()
    grid = torch.stack(torch.meshgrid(torch.arange(w, device=x.device), torch.arange(h, device=x.device), indexing="xy"), -1)
    xy = (y[..., :2] * 2 - 0.5 + grid) * 8
    wh = (y[..., 2:4] * 2).square() * anchors.abs().view(a, 1, 1, 2)
    score, best = (y[..., 5:] * y[..., 4:5]).max(-1)
    return torch.cat([xy - wh / 2, xy + wh / 2], -1).view(n, -1, 4), score.view(n, -1), best.view(n, -1)


@case(R(8, 64, 8192), R(8, 64, 4, dt=FLOAT), R(8, 8192, 4, dt=FLOAT), grads=())
def aligned_assignment(scores: Tensor, truth: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Task-aligned assignment: overlaps to the sixth power times scores, of boxes whose center is inside; the best truth of each."""
    low, high = torch.minimum(truth[..., :2], truth[..., 2:]), torch.maximum(truth[..., :2], truth[..., 2:])
    a, b = torch.minimum(boxes[..., :2], boxes[..., 2:]), torch.maximum(boxes[..., :2], boxes[..., 2:])
    both = (torch.minimum(high[:, :, None], b[:, None]) - torch.maximum(low[:, :, None], a[:, None])).clamp(min=0).prod(-1)
    iou = both / ((high - low).prod(-1)[:, :, None] + (b - a).prod(-1)[:, None] - both + 1e-9)
    c = ((a + b) / 2)[:, None]
    inside = ((c > low[:, :, None]) & (c < high[:, :, None])).all(-1)
    metric = scores.float().sigmoid().sqrt() * iou.pow(6) * inside
    top = metric.amax(-1, keepdim=True)
    best, which = metric.max(1)
    return best / top.amax(1).clamp(min=1e-9), which


@case(R(16, 1, 352, 352), R(16, 1, 352, 352), grads=(0,))
def structure_loss(x: Tensor, mask: Tensor) -> Tensor:
    """F3Net: pixels near the border of a mask weigh more, by averages of 31x31 windows."""
    t = (mask > 0).float()
    weight = 1 + 5 * (F.avg_pool2d(t, 31, 1, 15) - t).abs()
    bce = F.binary_cross_entropy_with_logits(x.float(), t, reduction="none")
    p = x.float().sigmoid()
    wbce = (weight * bce).sum((2, 3)) / weight.sum((2, 3))
    both, union = (p * t * weight).sum((2, 3)), ((p + t) * weight).sum((2, 3))
    return (wbce + 1 - (both + 1) / (union - both + 1)).mean()


@case(R(8, 100, 12544), R(8, 100, 12544), R(8, 100), grads=(0,))
def point_mask_losses(x: Tensor, target: Tensor, matched: Tensor) -> tuple[Tensor, Tensor]:
    """Mask2Former: cross entropy and dice of sampled points, of matched queries."""
    t, used = (target > 0).float(), (matched > 0).float()
    count = used.sum().clamp(min=1)
    bce = F.binary_cross_entropy_with_logits(x.float(), t, reduction="none").mean(-1)
    p = x.float().sigmoid()
    dice = 1 - (2 * (p * t).sum(-1) + 1) / (p.sum(-1) + t.sum(-1) + 1)
    return (bce * used).sum() / count, (dice * used).sum() / count


# ---------------------------------------------------------------- images
@case(R(8, 3, 192, 256), R(8, 3, 192, 256), grads=(0,))
def census_distance(x: Tensor, y: Tensor) -> Tensor:
    """UnFlow: soft Hamming distance of ternary transforms, 7x7 neighbours."""

    def ternary(image: Tensor) -> Tensor:
        grey = image.float().mean(1, keepdim=True) * 255
        h, w = grey.shape[-2:]
        padded = F.pad(grey, (3, 3, 3, 3))
        d = torch.cat([padded[..., i : i + h, j : j + w] - grey for i in range(7) for j in range(7)], 1)
        return d / torch.sqrt(0.81 + d * d)

    d = (ternary(x) - ternary(y)).square()
    inner = F.pad(torch.ones_like(x[:, :1, 6:, 6:]), (3, 3, 3, 3)).float()
    return ((d / (0.1 + d)).sum(1, keepdim=True) * inner).mean()


@case(R(16, 1, 512, 512), grads=())
def thin_edges(x: Tensor) -> Tensor:
    """Canny: Sobel gradients, those that are largest along their direction, two thresholds."""
    p = F.pad(x.float(), (1, 1, 1, 1), mode="replicate")
    a, b, c = p[..., :-2, :], p[..., 1:-1, :], p[..., 2:, :]
    gx = (a + 2 * b + c)[..., 2:] - (a + 2 * b + c)[..., :-2]
    gy = (c - a)[..., :-2] + 2 * (c - a)[..., 1:-1] + (c - a)[..., 2:]
    m = (gx.square() + gy.square()).sqrt()
    sector = torch.round(torch.atan2(gy, gx) * (4 / math.pi)).to(torch.int64) % 4
    q = F.pad(m, (1, 1, 1, 1))
    h, w = m.shape[-2:]

    def at(dy: int, dx: int) -> Tensor:
        return q[..., 1 + dy : 1 + dy + h, 1 + dx : 1 + dx + w]

    top = torch.maximum(at(0, 1), at(0, -1))
    for n, (dy, dx) in enumerate(((1, 1), (1, 0), (1, -1)), 1):
        top = torch.where(sector == n, torch.maximum(at(dy, dx), at(-dy, -dx)), top)
    thin = torch.where(m >= top, m, 0.0)
    return (thin > 2).to(torch.uint8) + (thin > 4).to(torch.uint8)


@case(Input((32, 3, 256, 256), torch.uint8, 256), R(32, dt=FLOAT), grads=())
def balanced_colors(x: Tensor, gamma: Tensor) -> Tensor:
    """sRGB to linear light, grey world, gamma, and back to 8 bits."""
    v = x.float() / 255
    v = torch.where(v <= 0.04045, v / 12.92, ((v + 0.055) / 1.055) ** 2.4)
    mean = v.mean((2, 3), keepdim=True)
    v = (v * (mean.mean(1, keepdim=True) / (mean + 1e-6))).clamp(0, 1) ** (0.2 * gamma).exp()[:, None, None, None]
    v = torch.where(v <= 0.0031308, v * 12.92, 1.055 * v.clamp(min=1e-8) ** (1 / 2.4) - 0.055)
    return (v * 255).round().clamp(0, 255).to(torch.uint8)


@case(Input((16, 512, 512), torch.uint8, 256), R(16, 256, dt=FLOAT), R(16, 256, dt=FLOAT), grads=())
def matched_histograms(x: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """A lookup table from two histograms: the first level whose share of the target is as large; each pixel through it."""
    a, b = source.softmax(-1).cumsum(-1), target.softmax(-1).cumsum(-1)
    table = torch.searchsorted(b, a).clamp(max=b.shape[-1] - 1).to(torch.uint8)
    return table.gather(1, x.flatten(1).long()).view_as(x)


@case(R(16, 1, 512, 512))
def morphological_gradient(x: Tensor) -> Tensor:
    """Opened, closed, and the difference of what is dilated and eroded, 5x5."""
    dilated, eroded = F.max_pool2d(x, 5, 1, 2), -F.max_pool2d(-x, 5, 1, 2)
    opened, closed = F.max_pool2d(eroded, 5, 1, 2), -F.max_pool2d(-dilated, 5, 1, 2)
    return torch.cat([dilated - eroded, x - opened, closed - x], 1)


@case(R(8, 16, 128, 256), R(8, 2, 128, 256, dt=FLOAT), grads=(1,))
def warped_by_flow(x: Tensor, flow: Tensor) -> tuple[Tensor, Tensor]:
    """Bilinear, written out, and which pixels come from inside."""
    n, c, h, w = x.shape
    at_x = torch.arange(w, device=x.device) + flow[:, 0] * 4
    at_y = torch.arange(h, device=x.device)[:, None] + flow[:, 1] * 4
    x0, y0 = at_x.floor(), at_y.floor()
    fx, fy = (at_x - x0)[:, None], (at_y - y0)[:, None]
    pixels = x.float().flatten(2)

    def pixel(dy: int, dx: int) -> Tensor:
        i = (y0.long() + dy).clamp(0, h - 1) * w + (x0.long() + dx).clamp(0, w - 1)
        return pixels.gather(2, i.view(n, 1, -1).expand(-1, c, -1)).view(n, c, h, w)

    inside = (at_x >= 0) & (at_x <= w - 1) & (at_y >= 0) & (at_y <= h - 1)
    top = pixel(0, 0) * (1 - fx) + pixel(0, 1) * fx
    return (top * (1 - fy) + (pixel(1, 0) * (1 - fx) + pixel(1, 1) * fx) * fy) * inside[:, None], inside


@case(R(4, 32, 64, 64), R(4, 18, 64, 64, dt=FLOAT), R(4, 9, 64, 64), grads=(1, 2))
def deformed_columns(x: Tensor, offset: Tensor, mask: Tensor) -> Tensor:
    """Deformable convolution (DCNv2): nine taps at places that the network moves, zeros outside."""
    n, c, h, w = x.shape
    i, j = torch.arange(h, device=x.device)[:, None], torch.arange(w, device=x.device)
    tap = torch.arange(9, device=x.device)[:, None, None]
    y, z = offset[:, 0::2] + i + tap // 3 - 1, offset[:, 1::2] + j + tap % 3 - 1
    y0, z0 = y.floor(), z.floor()
    pixels, out = x.float().flatten(2), 0.0
    for dy in range(2):
        for dz in range(2):
            a, b = y0 + dy, z0 + dz
            weight = (1 - (y - a).abs()) * (1 - (z - b).abs()) * ((a >= 0) & (a < h) & (b >= 0) & (b < w))
            place = a.clamp(0, h - 1).long() * w + b.clamp(0, w - 1).long()
            taken = pixels.gather(2, place.view(n, 1, -1).expand(-1, c, -1)).view(n, c, 9, h, w)
            out = out + taken * weight[:, None]
    return (out * mask.float().sigmoid()[:, None]).flatten(1, 2).to(x.dtype)


@case(R(16, 384, 384), R(16, 384, 384, dt=FLOAT), R(16, 384, 384), grads=(0,))
def aligned_depth_loss(x: Tensor, truth: Tensor, valid: Tensor) -> Tensor:
    """MiDaS: scale and shift by least squares, then differences and their gradients at four scales."""
    p, m = x.float(), (valid > -1).float()
    a00, a01, a11 = (m * p * p).sum((1, 2)), (m * p).sum((1, 2)), m.sum((1, 2))
    b0, b1 = (m * p * truth).sum((1, 2)), (m * truth).sum((1, 2))
    det = a00 * a11 - a01 * a01
    safe = torch.where(det > 0, det, 1.0)
    scale, shift = (a11 * b0 - a01 * b1) / safe, (a00 * b1 - a01 * b0) / safe
    d = m * (scale[:, None, None] * p + shift[:, None, None] - truth)
    loss = d.square().sum() / (2 * m.sum())
    for step in (1, 2, 4, 8):
        e, k = d[:, ::step, ::step], m[:, ::step, ::step]
        gx = (e[:, :, 1:] - e[:, :, :-1]).abs() * k[:, :, 1:] * k[:, :, :-1]
        gy = (e[:, 1:] - e[:, :-1]).abs() * k[:, 1:] * k[:, :-1]
        loss = loss + 0.5 * (gx.sum() + gy.sum()) / k.sum()
    return loss


@case(R(12, 2, 3, 192, 320), R(12, 2, 3, 192, 320), R(12, 3, 192, 320), grads=(0,))
def photometric_loss(warped: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """Monodepth2: the least of the errors of two warped images, and of those that did not move."""

    def error(x: Tensor, y: Tensor) -> Tensor:
        l1 = (x - y).abs().mean(1)
        x, y = F.pad(x, (1, 1, 1, 1), mode="reflect"), F.pad(y, (1, 1, 1, 1), mode="reflect")
        mx, my = F.avg_pool2d(x, 3, 1), F.avg_pool2d(y, 3, 1)
        vx, vy = F.avg_pool2d(x * x, 3, 1) - mx * mx, F.avg_pool2d(y * y, 3, 1) - my * my
        vxy = F.avg_pool2d(x * y, 3, 1) - mx * my
        ssim = (2 * mx * my + 1e-4) * (2 * vxy + 9e-4) / ((mx * mx + my * my + 1e-4) * (vx + vy + 9e-4))
        return 0.85 * ((1 - ssim) / 2).clamp(0, 1).mean(1) + 0.15 * l1

    t = target.float()
    both = [error(warped[:, n].float(), t) for n in range(2)]
    still = [error(source[:, n].float(), t) for n in range(2)]
    return torch.stack(both + still, 1).amin(1).mean()


# ---------------------------------------------------------------- cameras, points, volumes
@case(R(200000, 3, dt=FLOAT), R(200000, 3, dt=FLOAT), R(200000, 4, dt=FLOAT), R(4, 4, dt=FLOAT), grads=(0, 1, 2))
def projected_gaussians(mean: Tensor, scale: Tensor, q: Tensor, view: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gaussian splatting: covariances in the image, their inverses, and radii."""
    w = view[:3, :3]
    t = (mean[:, None, :] * w).sum(-1) + view[:3, 3] * 0.1
    z = t[:, 2].abs() + 2
    x, y = (t[:, 0] / z).clamp(-1.3, 1.3) * z, (t[:, 1] / z).clamp(-1.3, 1.3) * z
    r, i, j, k = F.normalize(q, dim=-1).unbind(-1)
    turn = torch.stack([
        1 - 2 * (j * j + k * k), 2 * (i * j - r * k), 2 * (i * k + r * j),
        2 * (i * j + r * k), 1 - 2 * (i * i + k * k), 2 * (j * k - r * i),
        2 * (i * k - r * j), 2 * (j * k + r * i), 1 - 2 * (i * i + j * j)], -1).view(-1, 3, 3)  # fmt: skip
    m = turn * scale.exp()[:, None, :]
    zero = torch.zeros_like(z)
    jacobian = torch.stack([500 / z, zero, -500 * x / z.square(), zero, 500 / z, -500 * y / z.square()], -1).view(-1, 2, 3)
    jw = (jacobian[:, :, :, None] * w).sum(2)
    half = (jw[:, :, :, None] * m[:, None]).sum(2)
    a, b, c = half[:, 0].square().sum(-1) + 0.3, (half[:, 0] * half[:, 1]).sum(-1), half[:, 1].square().sum(-1) + 0.3
    det = a * c - b * b
    middle = (a + c) / 2
    radius = torch.ceil(3 * (middle + (middle.square() - det).clamp(min=0.1).sqrt()).sqrt())
    return torch.stack([500 * x / z, 500 * y / z], -1), torch.stack([c, -b, a], -1) / det[:, None], z, radius.detach()


@case(R(64, 256, 2, dt=FLOAT), R(64, 256, 3, dt=FLOAT), R(64, 256, dt=FLOAT), R(64, 256, 3, dt=FLOAT), grads=(0, 1, 2, 3))
def splatted_tiles(center: Tensor, conic: Tensor, opacity: Tensor, color: Tensor) -> Tensor:
    """Gaussians of a tile of 16x16 pixels, in order, composited."""
    i = torch.arange(16, device=center.device)
    pixel = torch.stack(torch.meshgrid(i, i, indexing="ij"), -1).view(1, 256, 1, 2) / 4.0
    d = center[:, None] - pixel
    a, b, c = conic.abs().unbind(-1)
    power = -0.5 * (a[:, None] * d[..., 0].square() + c[:, None] * d[..., 1].square()) - 0.1 * b[:, None] * d[..., 0] * d[..., 1]
    alpha = (opacity.sigmoid()[:, None] * power.clamp(max=0).exp()).clamp(max=0.99)
    alpha = torch.where(alpha < 1 / 255, 0.0, alpha)
    left = torch.cumprod(1 - alpha, -1)
    weight = alpha * F.pad(left[..., :-1], (1, 0), value=1.0)
    return torch.stack([(weight * color[:, None, :, n]).sum(-1) for n in range(3)], -1)


@case(R(8, 480, 640, dt=FLOAT), R(8, 4, dt=FLOAT), grads=(0,))
def normals_of_depths(depth: Tensor, camera: Tensor) -> tuple[Tensor, Tensor]:
    """Pixels unprojected, and normals by cross products of central differences."""
    n, h, w = depth.shape
    d = F.softplus(depth) + 0.1
    f, c = camera[:, :2].abs() + 1, camera[:, 2:]
    u, v = torch.linspace(-1, 1, w, device=d.device), torch.linspace(-1, 1, h, device=d.device)[:, None]
    points = torch.stack([(u - c[:, 0, None, None]) / f[:, 0, None, None] * d, (v - c[:, 1, None, None]) / f[:, 1, None, None] * d, d], 1)
    p = F.pad(points, (1, 1, 1, 1), mode="replicate")
    dx, dy = p[:, :, 1:-1, 2:] - p[:, :, 1:-1, :-2], p[:, :, 2:, 1:-1] - p[:, :, :-2, 1:-1]
    return points, F.normalize(torch.linalg.cross(dx, dy, dim=1), dim=1)


@case(R(8, 4096, 3, dt=FLOAT), R(8, 512, 3, dt=FLOAT), R(8, 512, 64), grads=(2,))
def three_interpolated(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    """PointNet++: features of the three nearest points, by inverse distances."""
    d = (a[:, :, None] - b[:, None]).square().sum(-1)
    near, i = d.topk(3, -1, largest=False)
    weight = 1 / (near + 1e-8)
    weight = weight / weight.sum(-1, keepdim=True)
    batch = torch.arange(a.shape[0], device=a.device)[:, None, None]
    return (x[batch, i].float() * weight[..., None]).sum(2)


@case(R(65536, 16, 3, dt=FLOAT), grads=())
def normals_of_points(x: Tensor) -> tuple[Tensor, Tensor]:
    """The least eigenvector of the covariance of 16 neighbours, in closed form, and the curvature."""
    d = x - x.mean(1, keepdim=True)
    a, b, c = (d * d).mean(1).unbind(-1)
    e, f, g = (d[..., 0] * d[..., 1]).mean(1), (d[..., 0] * d[..., 2]).mean(1), (d[..., 1] * d[..., 2]).mean(1)
    q = (a + b + c) / 3
    p = (((a - q) ** 2 + (b - q) ** 2 + (c - q) ** 2 + 2 * (e * e + f * f + g * g)) / 6).sqrt().clamp(min=1e-12)
    u, v, w = a - q, b - q, c - q
    det = (u * (v * w - g * g) - e * (e * w - g * f) + f * (e * g - v * f)) / p**3 / 2
    least = q + 2 * p * torch.cos(torch.acos(det.clamp(-1, 1)) / 3 + 2 * math.pi / 3)
    rows = torch.stack([torch.stack([a - least, e, f], -1), torch.stack([e, b - least, g], -1), torch.stack([f, g, c - least], -1)], 1)
    crossed = torch.linalg.cross(rows, rows.roll(-1, 1), dim=-1)
    size = crossed.square().sum(-1)
    best = size.argmax(1)
    normal = crossed.gather(1, best[:, None, None].expand(-1, 1, 3))[:, 0]
    return F.normalize(normal, dim=-1), least / (3 * q).clamp(min=1e-12)


# ---------------------------------------------------------------- layers of vision networks
@case(R(1024, 49, 192), R(16, 56, 56, 192), R(192), R(192), R(16, 1, 1, 1, dt=FLOAT), grads=(0, 1, 2, 3))
def joined_windows(x: Tensor, shortcut: Tensor, w: Tensor, b: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """Swin: windows put together, rolled back, added with drop path, and the norm behind it."""
    n, h, v, c = shortcut.shape
    m = int(x.shape[1] ** 0.5)
    y = x.view(n, h // m, v // m, m, m, c).permute(0, 1, 3, 2, 4, 5).reshape(n, h, v, c).roll((3, 3), (1, 2))
    y = shortcut + y * ((keep > -1).to(x.dtype) / 0.8)
    return y, F.layer_norm(y, (c,), w, b)


@case(R(32, 128, 64, 64), R(128, dt=FLOAT), R(128, dt=FLOAT))
def coordinate_attention(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Means along rows and along columns, each a gate."""
    h = x.shape[2]
    y = torch.cat([x.mean(3), x.mean(2)], 2).float() * scale[:, None] + shift[:, None]
    y = F.hardswish(y)
    return (x * y[..., :h].sigmoid()[..., None] * y[..., h:].sigmoid()[:, :, None]).to(x.dtype)


@case(R(64, 256, 56, 56), R(5, dt=FLOAT))
def efficient_channel_attention(x: Tensor, k: Tensor) -> Tensor:
    """ECA: a filter over five neighbouring channels of means."""
    m = F.pad(x.mean((2, 3)).float(), (2, 2))
    g = sum(m[:, i : i + x.shape[1]] * k[i] for i in range(5))
    return x * g.sigmoid().to(x.dtype)[:, :, None, None]


@case(R(8, 128, 128, 128), R(8, 2 * 128, 128, 128))
def spatially_adaptive_norm(x: Tensor, maps: Tensor) -> Tensor:
    """SPADE, and a leaky ReLU."""
    g, b = maps.chunk(2, 1)
    return F.leaky_relu(F.instance_norm(x) * (1 + g) + b, 0.2)


@case(R(16, 64, 128, 128), R(64, dt=FLOAT))
def shrunk_wavelets(x: Tensor, threshold: Tensor) -> tuple[Tensor, Tensor]:
    """Haar's wavelet by views: bands, small details set to zero, and back."""
    n, c, h, w = x.shape
    t = x.float().view(n, c, h // 2, 2, w // 2, 2)
    a, b, d, e = t[:, :, :, 0, :, 0], t[:, :, :, 0, :, 1], t[:, :, :, 1, :, 0], t[:, :, :, 1, :, 1]
    ll, details = (a + b + d + e) / 2, torch.stack([a - b + d - e, a + b - d - e, a - b - d + e], 1) / 2
    details = details.sign() * F.relu(details.abs() - F.softplus(threshold - 3)[:, None, None])
    lh, hl, hh = details.unbind(1)
    rows = [torch.stack([ll + lh + hl + hh, ll - lh + hl - hh], -1), torch.stack([ll + lh - hl - hh, ll - lh - hl + hh], -1)]
    return (torch.stack(rows, 3) / 2).reshape(n, c, h, w).to(x.dtype), ll.to(x.dtype)


@case(R(16, 64, 128, 128), R(64, dt=FLOAT), R(64, dt=FLOAT))
def focused_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Space to depth as YOLO's focus layer has it, a norm over the new channels, SiLU."""
    y = torch.cat([x[..., ::2, ::2], x[..., 1::2, ::2], x[..., ::2, 1::2], x[..., 1::2, 1::2]], 1).float()
    v, m = torch.var_mean(y, 1, keepdim=True, unbiased=False)
    y = (y - m) * torch.rsqrt(v + 1e-6) * w.repeat(4)[:, None, None] + b.repeat(4)[:, None, None]
    return F.silu(y).to(x.dtype)


@case(R(16, 64, 64, 64), R(16, 64, 32, 32), R(16, 64, 128, 128), R(3, dt=FLOAT))
def weighted_fusion(x: Tensor, small: Tensor, large: Tensor, w: Tensor) -> Tensor:
    """BiFPN: maps of three sizes by weights that are normalized, and swish."""
    w = F.relu(w)
    w = w / (w.sum() + 1e-4)
    y = w[0] * x + w[1] * F.interpolate(small, scale_factor=2) + w[2] * F.max_pool2d(large, 2)
    return F.silu(y)


# ---------------------------------------------------------------- sounds
@case(R(64, 300, 80), R(80, dt=FLOAT), R(80, dt=FLOAT))
def features_with_deltas(x: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """Log energies, first and second regressions over time, and one normalization."""

    def delta(y: Tensor) -> Tensor:
        p = F.pad(y.transpose(1, 2), (2, 2), mode="replicate").transpose(1, 2)
        t = y.shape[1]
        return sum(n * (p[:, 2 + n : 2 + n + t] - p[:, 2 - n : 2 - n + t]) for n in (1, 2)) / 10

    y = x.float().square().clamp(min=1e-10).log()
    d = delta(y)
    y = (y - mean) / F.softplus(deviation)
    return torch.cat([y, d, delta(d)], -1).to(x.dtype)


@case(R(64, 513, 256, dt=FLOAT), grads=())
def shapes_of_spectra(x: Tensor) -> Tensor:
    """Centroid, bandwidth, flatness, flux, and the frequency below which 85 % of the energy lies."""
    p = x.square() + 1e-8
    f = torch.linspace(0, 8000, p.shape[1], device=x.device)[:, None]
    total = p.sum(1, keepdim=True)
    centroid = (p * f).sum(1, keepdim=True) / total
    width = ((p * (f - centroid).square()).sum(1, keepdim=True) / total).sqrt()
    flatness = p.log().mean(1, keepdim=True).exp() / p.mean(1, keepdim=True)
    flux = F.pad(F.relu(x.abs()[:, :, 1:] - x.abs()[:, :, :-1]).sum(1, keepdim=True), (1, 0))
    rolloff = (p.cumsum(1) < 0.85 * total).sum(1, keepdim=True).float() * (8000 / (p.shape[1] - 1))
    return torch.cat([centroid, width, flatness, flux, rolloff], 1)


@case(R(64, 3, 32000, dt=FLOAT), R(64, 3, 32000, dt=FLOAT), grads=(0,))
def separation_loss(x: Tensor, y: Tensor) -> Tensor:
    """SI-SDR of three sources in the order that fits best."""
    x, y = x - x.mean(-1, keepdim=True), y - y.mean(-1, keepdim=True)
    dot = (x[:, :, None] * y[:, None]).sum(-1)
    energy, own = y.square().sum(-1)[:, None], x.square().sum(-1)[:, :, None]
    signal = dot.square() / (energy + 1e-8)
    sdr = 10 * torch.log10((signal + 1e-8) / (own - signal + 1e-8).clamp(min=1e-8))
    orders = [sum(sdr[:, n, p[n]] for n in range(3)) / 3 for p in permutations(range(3))]
    return -torch.stack(orders, -1).amax(-1).mean()


@case(R(32, 8, 5, dt=FLOAT), R(1025, dt=FLOAT), grads=(0,))
def filter_responses(k: Tensor, target: Tensor) -> Tensor:
    """The magnitudes of cascades of eight biquads in decibels, beside those that are wanted."""
    w = torch.linspace(0, math.pi, target.shape[0], device=k.device)
    c1, s1, c2, s2 = w.cos(), w.sin(), (2 * w).cos(), (2 * w).sin()
    b0, b1, b2, a1, a2 = (t[..., None] for t in k.unbind(-1))
    a1, a2 = 2 * torch.tanh(a1), torch.tanh(a2)
    top = (b0 + b1 * c1 + b2 * c2).square() + (b1 * s1 + b2 * s2).square()
    low = (1 + a1 * c1 + a2 * c2).square() + (a1 * s1 + a2 * s2).square()
    decibels = (10 * torch.log10(top + 1e-6) - 10 * torch.log10(low + 1e-6)).sum(1)
    return F.smooth_l1_loss(decibels, target.expand_as(decibels))


@case(R(64, 400, 1024))
def harmonic_product(x: Tensor) -> Tensor:
    """Log spectra of every first to fifth bin, added: where the fundamental is."""
    y = x.float().square().add(1e-6).log()
    n = y.shape[-1] // 5
    return sum(y[..., : n * k : k] for k in range(1, 6)).softmax(-1)


@case(R(8, 256, 8192), R(256, dt=FLOAT), R(256, dt=FLOAT))
def smooth_snake(x: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    """BigVGAN: twice as many samples by a short filter, the activation, and half as many again."""
    k = [0.0625, 0.25, 0.375, 0.25, 0.0625]
    x = x.float()
    p = F.pad(x, (1, 1), mode="replicate")
    even = 2 * (k[0] * p[..., :-2] + k[2] * p[..., 1:-1] + k[4] * p[..., 2:])
    odd = 2 * (k[1] * p[..., 1:-1] + k[3] * p[..., 2:])
    up = torch.stack([even, odd], -1).flatten(-2)
    up = up + torch.sin(up * alpha.exp()[:, None]).square() / (beta.exp()[:, None] + 1e-9)
    q = F.pad(up, (2, 2), mode="replicate")
    return sum(k[i] * q[..., i : i + up.shape[-1] : 2] for i in range(5)).to(torch.bfloat16)


@case(R(8, 16000, dt=FLOAT), R(8, 16000, 32), R(8, 16000, dt=FLOAT), grads=(1, 2))
def harmonic_oscillators(pitch: Tensor, amplitude: Tensor, loudness: Tensor) -> Tensor:
    """DDSP: phases are running sums; harmonics above half the rate are silent."""
    f = 200 * (0.2 * pitch).exp()
    k = torch.arange(1, amplitude.shape[-1] + 1, device=f.device)
    phase = (f / 16000).cumsum(1)
    phase = 2 * math.pi * (phase - phase.floor())
    a = amplitude.float().sigmoid() * (f[..., None] * k < 8000)
    a = a / a.sum(-1, keepdim=True).clamp(min=1e-7)
    return (torch.sin(phase[..., None] * k) * a).sum(-1) * loudness.exp()


# ---------------------------------------------------------------- diffusion
@case(R(32, 4, 128, 128), R(32, 4, 128, 128), R(32, 4, 128, 128), R(1000, dt=FLOAT), I(1000, 32), grads=(0,))
def min_snr_loss(v: Tensor, x: Tensor, noise: Tensor, betas: Tensor, t: Tensor) -> Tensor:
    """Velocities, a schedule rescaled to end at zero, weights of at most five."""
    root = (1 - (betas.sigmoid() * 0.02 + 1e-4)).cumprod(0).sqrt()
    root = (root - root[-1]) * (root[0] / (root[0] - root[-1]))
    a = root[t]
    s = (1 - a * a).sqrt()
    target = a[:, None, None, None] * noise.float() - s[:, None, None, None] * x.float()
    snr = (a / s) ** 2
    return ((v.float() - target).square().mean((1, 2, 3)) * snr.clamp(max=5) / (snr + 1)).mean()


@case(R(32, 4, 128, 128), R(32, 4, 128, 128), R(32, 4, 128, 128), R(32, 4, 128, 128, dt=FLOAT), R(3, 32, dt=FLOAT), grads=())
def multistep_solver(x: Tensor, eps: Tensor, before: Tensor, noise: Tensor, log_sigma: Tensor) -> tuple[Tensor, Tensor]:
    """DPM-Solver++ of second order with noise; what is predicted is clipped at its own largest value."""
    last, now, then = (s[:, None, None, None] for s in log_sigma.sort(0, descending=True).values.exp())
    x0 = x.float() - now * eps.float()
    top = x0.abs().amax((1, 2, 3), keepdim=True).clamp(min=1) * 0.9
    x0 = x0.clamp(-top, top) / top
    h, h_last = (now / then).log(), (last / now).log()
    d = x0 + (x0 - before.float()) * (h / (2 * h_last + 1e-3))
    out = then / now * torch.exp(-h) * x.float() - torch.expm1(-2 * h) * d + then * (-torch.expm1(-2 * h)).clamp(min=0).sqrt() * noise
    return out.to(x.dtype), x0.to(x.dtype)


@case(R(32, 4, 128, 128), R(32, 4, 128, 128), R(32, 4, 128, 128, dt=FLOAT), grads=())
def projected_guidance(x: Tensor, free: Tensor, momentum: Tensor) -> tuple[Tensor, Tensor]:
    """APG: guidance with momentum, of limited norm, and little of what is parallel to the prediction."""
    x, free = x.float(), free.float()
    d = (x - free) - 0.5 * momentum
    limited = d * (2.5 / d.flatten(1).norm(dim=1).clamp(min=1e-6)).clamp(max=1)[:, None, None, None]
    unit = F.normalize(x, dim=(1, 2, 3))
    parallel = (limited * unit).sum((1, 2, 3), keepdim=True) * unit
    return (x + 6.5 * (limited - parallel + 0.1 * parallel)).to(torch.bfloat16), d


@case(R(32, 3, 64, 64), R(32, 3, 64, 64), R(32, 3, 64, 64), R(32, dt=FLOAT), grads=(0,))
def consistency_loss(student: Tensor, teacher: Tensor, x: Tensor, log_sigma: Tensor) -> Tensor:
    """Pseudo-Huber distances with the scales that keep the boundary."""
    s = log_sigma.exp()[:, None, None, None] + 0.01
    r = s * 0.9
    skip, out = 0.25 / ((s - 0.002) ** 2 + 0.25), 0.5 * (s - 0.002) / (s**2 + 0.25).sqrt()
    skip_r, out_r = 0.25 / ((r - 0.002) ** 2 + 0.25), 0.5 * (r - 0.002) / (r**2 + 0.25).sqrt()
    d = skip * x + out * student.float() - (skip_r * x + out_r * teacher.float()).detach()
    c = 0.00054 * math.sqrt(x[0].numel())
    return (((d.square().flatten(1).sum(1) + c * c).sqrt() - c) / (s - r).flatten()).mean()


# ---------------------------------------------------------------- molecules and fields
@case(R(64, 96, 3, dt=FLOAT), R(64, 96, 96), R(64, 96, 3, dt=FLOAT), R(64, 96), grads=(0, 1, 2))
def moved_points(x: Tensor, phi: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """EGNN with velocities: each point moves along differences to all others."""
    m = (mask > -1).float()
    d = x[:, :, None] - x[:, None]
    r = d.square().sum(-1, keepdim=True)
    push = (d / ((r + 1e-8).sqrt() + 1) * phi.float().tanh()[..., None] * m[:, None, :, None]).sum(2) / m.sum(-1)[:, None, None].clamp(min=1)
    v = v * 0.5 + push
    moved = (x + v) * m[..., None]
    return moved - moved.sum(1, keepdim=True) / m.sum(-1)[:, None, None].clamp(min=1) * m[..., None], v


@case(R(20000, 128), R(200000, 128), R(200000, dt=FLOAT), I(20000, 200000), I(20000, 200000), grads=(0, 1))
def continuous_filters(x: Tensor, w: Tensor, r: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """SchNet: neighbours times filters, cut smoothly, added."""
    r = r.abs()
    cut = torch.where(r < 2, 0.5 * (torch.cos(math.pi * r / 2) + 1), 0.0)
    f = (F.softplus(w.float()) - math.log(2)) * cut[:, None]
    return torch.zeros_like(x, dtype=FLOAT).index_add(0, target, x[source].float() * f).to(x.dtype)


@case(R(64, 2048, 3, dt=FLOAT), R(2045, 3, dt=FLOAT), grads=(0,))
def torsion_energy(x: Tensor, k: Tensor) -> Tensor:
    """Bonds, angles and dihedrals of chains."""
    b = x[:, 1:] - x[:, :-1]
    r = b.square().sum(-1).sqrt()
    u = b / r[..., None]
    cosine = -(u[:, 1:] * u[:, :-1]).sum(-1)
    n = torch.linalg.cross(b[:, :-1], b[:, 1:], dim=-1)
    n0, n1 = n[:, :-1], n[:, 1:]
    angle = torch.atan2((torch.linalg.cross(n0, n1, dim=-1) * u[:, 1:-1]).sum(-1), (n0 * n1).sum(-1))
    torsion = sum(k[:, m - 1].abs() * (1 + torch.cos(m * angle - 0.3 * m)) for m in (1, 2, 3))
    return (100 * (r - 1.5).square()).sum(-1) + (20 * (cosine + 0.5).square()).sum(-1) + torsion.sum(-1)


@case(R(2048, 3, dt=FLOAT), R(2048, dt=FLOAT), grads=(0,))
def ewald_in_real_space(x: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """Screened charges in a periodic box: the energy and the field at each."""
    d = x[:, None] - x[None]
    d = d - 8.0 * torch.round(d / 8.0)
    far = d.square().sum(-1) + torch.eye(x.shape[0], device=x.device)
    r = far.sqrt()
    keep = (r < 4) & ~torch.eye(x.shape[0], dtype=torch.bool, device=x.device)
    screened = torch.where(keep, torch.erfc(0.9 * r) / r, 0.0)
    slope = torch.where(keep, (torch.erfc(0.9 * r) / r + 1.8 / math.sqrt(math.pi) * torch.exp(-0.81 * far)) / far, 0.0)
    return 0.5 * (q[:, None] * q * screened).sum(), (q[:, None] * slope[..., None] * d).sum(1)


@case(R(9, 1024, 1024, dt=FLOAT), R(1024, 1024), grads=())
def lattice_boltzmann(f: Tensor, solid: Tensor) -> Tensor:
    """D2Q9: collision towards equilibrium, walls that send back, streaming."""
    cx, cy = (0, 1, 0, -1, 0, 1, -1, -1, 1), (0, 0, 1, 0, -1, 1, 1, -1, -1)
    w, back = (4 / 9, *[1 / 9] * 4, *[1 / 36] * 4), (0, 3, 4, 1, 2, 7, 8, 5, 6)
    f = f.abs() + 1
    rho = f.sum(0)
    ux, uy = sum(c * f[n] for n, c in enumerate(cx)) / rho, sum(c * f[n] for n, c in enumerate(cy)) / rho
    wall, out = solid > 1.5, []
    for n in range(9):
        cu = 3 * (cx[n] * ux + cy[n] * uy)
        equal = w[n] * rho * (1 + cu + 0.5 * cu * cu - 1.5 * (ux * ux + uy * uy))
        out.append(torch.where(wall, f[back[n]], f[n] - (f[n] - equal) / 0.6).roll((cy[n], cx[n]), (0, 1)))
    return torch.stack(out)


@case(R(8, 512, 512, dt=FLOAT), R(8, 512, 512, dt=FLOAT), R(8, 512, 512, dt=FLOAT))
def shallow_water(h: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A step of Lax and Friedrichs with walls."""
    h = F.softplus(h) + 1
    states = (h, h * u, h * v)
    fx = (h * u, h * u * u + 4.9 * h * h, h * u * v)
    fy = (h * v, h * u * v, h * v * v + 4.9 * h * h)

    def sides(t: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        p = F.pad(t, (1, 1, 1, 1), mode="replicate")
        return p[:, 1:-1, :-2], p[:, 1:-1, 2:], p[:, :-2, 1:-1], p[:, 2:, 1:-1]

    out = []
    for s, x, y in zip(states, fx, fy):
        left, right, _, _ = sides(x)
        _, _, up, down = sides(y)
        out.append(sum(sides(s)) / 4 - 0.01 * (right - left) - 0.01 * (down - up))
    return out[0], out[1] / out[0], out[2] / out[0]


@case(R(4, 64, 128, 128, dt=FLOAT), R(3, 4, 64, 128, 128), grads=(0,))
def advected_volume(c: Tensor, velocity: Tensor) -> Tensor:
    """A scalar in a volume: upwind advection and diffusion."""
    p = F.pad(c, (1, 1, 1, 1, 1, 1), mode="replicate")
    out = c
    for n, axis in enumerate((1, 2, 3)):
        keep = tuple(slice(None) if d in (0, axis) else slice(1, -1) for d in range(4))
        line, size = p[keep], c.shape[axis]
        before, after = line.narrow(axis, 0, size), line.narrow(axis, 2, size)
        u = velocity[n].float()
        out = out - 0.1 * (F.relu(u) * (c - before) - F.relu(-u) * (after - c)) + 0.05 * (before - 2 * c + after)
    return out


@case(R(64, 256, 256, dt=FLOAT), R(2, 64, 256, 256), R(64, dt=FLOAT), grads=())
def checkerboard_sweep(s: Tensor, u: Tensor, coupling: Tensor) -> tuple[Tensor, Tensor]:
    """Ising: black sites flip, then white ones; the energy and magnetization of each lattice."""
    s = torch.where(s >= 0, 1.0, -1.0)
    i = torch.arange(s.shape[-1], device=s.device)
    parity = (i[: s.shape[1], None] + i) % 2
    near = torch.zeros_like(s)
    for color in range(2):
        near = s.roll(1, 1) + s.roll(-1, 1) + s.roll(1, 2) + s.roll(-1, 2)
        flip = (parity == color) & (u[color].float().sigmoid() < torch.exp(-2 * coupling.abs()[:, None, None] * s * near))
        s = torch.where(flip, -s, s)
    return s, torch.stack([-(s * near).mean((1, 2)) / 2, s.mean((1, 2))], -1)


@case(R(8, 512, 512, dt=FLOAT), R(8, 512, 512, dt=FLOAT), grads=(0, 1))
def arakawa_jacobian(p: Tensor, z: Tensor) -> Tensor:
    """Advection of vorticity that conserves energy and enstrophy, periodic."""

    def at(t: Tensor, i: int, j: int) -> Tensor:
        return t.roll((-i, -j), (1, 2))

    one = (at(p, 1, 0) - at(p, -1, 0)) * (at(z, 0, 1) - at(z, 0, -1)) - (at(p, 0, 1) - at(p, 0, -1)) * (at(z, 1, 0) - at(z, -1, 0))
    two = (
        at(p, 1, 0) * (at(z, 1, 1) - at(z, 1, -1)) - at(p, -1, 0) * (at(z, -1, 1) - at(z, -1, -1))
        - at(p, 0, 1) * (at(z, 1, 1) - at(z, -1, 1)) + at(p, 0, -1) * (at(z, 1, -1) - at(z, -1, -1))
    )  # fmt: skip
    return (one + two) / 8 - 0.01 * (at(z, 1, 0) + at(z, -1, 0) + at(z, 0, 1) + at(z, 0, -1) - 4 * z)


@case(R(8, 20, 181, 360), R(8, 20, 181, 360), R(20, 181, 360), R(181, 360), grads=(0,))
def weather_scores(x: Tensor, y: Tensor, climate: Tensor, land: Tensor) -> tuple[Tensor, Tensor]:
    """Errors and correlations of anomalies, weighted by the area of a latitude, over the sea."""
    lat = torch.linspace(-90, 90, x.shape[2], device=x.device).deg2rad().cos().clamp(min=0)[:, None] * (land < 1)
    w = lat / lat.sum()
    a, b = x.float() - climate.float(), y.float() - climate.float()
    a, b = a - (a * w).sum((2, 3), keepdim=True), b - (b * w).sum((2, 3), keepdim=True)
    acc = (a * b * w).sum((2, 3)) / ((a * a * w).sum((2, 3)) * (b * b * w).sum((2, 3))).sqrt()
    return ((x.float() - y.float()).square() * w).sum((2, 3)).sqrt().mean(0), acc.mean(0)


# ---------------------------------------------------------------- statistics and finance
@case(R(1000000, dt=FLOAT), R(1000000, dt=FLOAT), R(1000000, dt=FLOAT), R(1000000, dt=FLOAT), grads=(3,))
def option_greeks(s: Tensor, k: Tensor, t: Tensor, sigma: Tensor) -> tuple[Tensor, ...]:
    """Black and Scholes: price, delta, gamma, vega, theta, rho."""
    s, k, t, sigma = 100 * (0.1 * s).exp(), 100 * (0.1 * k).exp(), F.softplus(t) + 0.05, 0.2 * (0.3 * sigma).exp()
    root = sigma * t.sqrt()
    d1 = ((s / k).log() + (0.03 + 0.5 * sigma.square()) * t) / root
    d2, discount = d1 - root, torch.exp(-0.03 * t)
    n1, n2 = torch.special.ndtr(d1), torch.special.ndtr(d2)
    density = torch.exp(-0.5 * d1.square()) / math.sqrt(2 * math.pi)
    theta = -s * density * sigma / (2 * t.sqrt()) - 0.03 * k * discount * n2
    return s * n1 - k * discount * n2, n1, density / (s * root), s * density * t.sqrt(), theta, k * t * discount * n2


@case(R(4096, 24, dt=FLOAT), R(3, 4096, dt=FLOAT), R(4096, dt=FLOAT))
def garch_likelihood(r: Tensor, parameters: Tensor, freedom: Tensor) -> Tensor:
    """GARCH(1,1) with Student's t, the loop over time as it is written."""
    omega, alpha, beta = F.softplus(parameters[0]), 0.3 * parameters[1].sigmoid(), 0.65 * parameters[2].sigmoid()
    nu = 2.1 + F.softplus(freedom)
    h, total = omega / (1 - alpha - beta), torch.zeros_like(omega)
    for t in range(r.shape[1]):
        total = total - 0.5 * h.log() - (nu + 1) / 2 * torch.log1p(r[:, t].square() / (h * (nu - 2)))
        h = omega + alpha * r[:, t].square() + beta * h
    constant = torch.lgamma((nu + 1) / 2) - torch.lgamma(nu / 2) - 0.5 * torch.log(math.pi * (nu - 2))
    return -(total + r.shape[1] * constant).mean()


@case(R(65536, 4, dt=FLOAT), R(65536, 4, 4, dt=FLOAT), R(65536, 2, dt=FLOAT), R(4, dt=FLOAT), grads=())
def kalman_step(x: Tensor, root: Tensor, z: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Constant velocity in a plane, of which places are measured; small matrices written out."""
    p = (root[:, :, None] * root[:, None]).sum(-1) + torch.eye(4, device=x.device)
    step = torch.eye(4, device=x.device) + 0.1 * torch.diag(torch.ones(2, device=x.device), 2)
    x = (x[:, None] * step).sum(-1)
    p = ((step[:, :, None] * p[:, None]).sum(2)[:, :, None] * step).sum(-1) + torch.diag(noise.abs() + 0.1)
    y = z - x[:, :2]
    s = p[:, :2, :2] + 0.5 * torch.eye(2, device=x.device)
    a, b, c = s[:, 0, 0], s[:, 0, 1], s[:, 1, 1]
    det = a * c - b * b
    inverse = torch.stack([c, -b, -b, a], -1).view(-1, 2, 2) / det[:, None, None]
    gain = (p[:, :, :2, None] * inverse[:, None]).sum(2)
    after = p - (gain[:, :, :, None] * p[:, None, :2]).sum(2)
    chi = (y[:, :, None] * inverse * y[:, None]).sum((1, 2))
    return x + (gain * y[:, None]).sum(-1), (after + after.transpose(1, 2)) / 2, -0.5 * (chi + det.log()) - math.log(2 * math.pi)


@case(R(16384, 32, dt=FLOAT), R(16384, 32, 23), grads=(0, 1))
def rational_splines(x: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
    """Neural spline flows: eight bins of rational quadratics, linear outside, and the logarithm of the slope."""
    bins = (theta.shape[-1] + 1) // 3
    w, h, d = theta.float().split([bins, bins, bins - 1], -1)
    w, h = 1e-3 + (1 - 1e-3 * bins) * w.softmax(-1), 1e-3 + (1 - 1e-3 * bins) * h.softmax(-1)
    at_x, at_y = 6 * F.pad(w.cumsum(-1), (1, 0)) - 3, 6 * F.pad(h.cumsum(-1), (1, 0)) - 3
    slopes = F.pad(1e-3 + F.softplus(d), (1, 1), value=1.0)
    inside = (x >= -3) & (x <= 3)
    t = x.clamp(-3, 3)[..., None]
    bin_ = ((t >= at_x).sum(-1, keepdim=True) - 1).clamp(0, bins - 1)
    x0, y0, d0 = (q.gather(-1, bin_) for q in (at_x, at_y, slopes))
    x1, y1, d1 = (q.gather(-1, bin_ + 1) for q in (at_x, at_y, slopes))
    s, e = (y1 - y0) / (x1 - x0), (t - x0) / (x1 - x0)
    down = s + (d1 + d0 - 2 * s) * e * (1 - e)
    y = y0 + (y1 - y0) * (s * e.square() + d0 * e * (1 - e)) / down
    slope = s.square() * (d1 * e.square() + 2 * s * e * (1 - e) + d0 * (1 - e).square())
    log = slope.log() - 2 * down.log()
    return torch.where(inside, y[..., 0], x), torch.where(inside, log[..., 0], 0.0).sum(-1)


@case(R(32768, 10, dt=FLOAT), R(32768, 10, dt=FLOAT), R(32768, dt=FLOAT), grads=())
def leapfrog_on_a_funnel(x: Tensor, p: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Hamiltonian Monte Carlo on Neal's funnel: five steps, then accepted or not."""

    def energy(q: Tensor) -> Tensor:
        v = q[:, 0]
        return v.square() / 18 + (q[:, 1:].square().sum(-1) * torch.exp(-v) + (q.shape[1] - 1) * v) / 2

    def slope(q: Tensor) -> Tensor:
        v, rest = q[:, :1], q[:, 1:]
        k = torch.exp(-v)
        return torch.cat([v / 9 - 0.5 * k * rest.square().sum(-1, keepdim=True) + 0.5 * (q.shape[1] - 1), rest * k], -1)

    before = energy(x) + 0.5 * p.square().sum(-1)
    y, r = x, p - 0.025 * slope(x)
    for n in range(5):
        y = y + 0.05 * r
        r = r - (0.05 if n < 4 else 0.025) * slope(y)
    accept = torch.log(u.sigmoid()) < before - energy(y) - 0.5 * r.square().sum(-1)
    return torch.where(accept[:, None], y, x), accept.float().mean()


@case(R(16384, 64), R(16384, 64), grads=(0,))
def dirichlet_divergence(a: Tensor, b: Tensor) -> Tensor:
    p, q = F.softplus(a.float()) + 0.1, F.softplus(b.float()) + 0.1
    total, other = p.sum(-1), q.sum(-1)
    kl = torch.lgamma(total) - torch.lgamma(other) + (torch.lgamma(q) - torch.lgamma(p)).sum(-1)
    return (kl + ((p - q) * (torch.digamma(p) - torch.digamma(total)[:, None])).sum(-1)).mean()


@case(R(65536, 2, dt=FLOAT), R(65536, 8, 4), grads=(1,))
def directions_mixture(x: Tensor, theta: Tensor) -> Tensor:
    """A mixture of eight von Mises distributions over an angle, and Student's t over a length."""
    w, mu, kappa, nu = theta.float().unbind(-1)
    angle, length = x[:, :1], x[:, 1:]
    kappa, nu = F.softplus(kappa) + 0.1, F.softplus(nu) + 2
    von = kappa * torch.cos(angle - mu) - math.log(2 * math.pi) - torch.log(torch.special.i0e(kappa)) - kappa
    student = torch.lgamma((nu + 1) / 2) - torch.lgamma(nu / 2) - 0.5 * (nu * math.pi).log() - (nu + 1) / 2 * torch.log1p(length.square() / nu)
    return -torch.logsumexp(w.log_softmax(-1) + von + student, -1).mean()


@case(R(2048, 8, dt=FLOAT), R(2048, 8, dt=FLOAT), R(8, dt=FLOAT), R(2, dt=FLOAT), grads=(0, 2, 3))
def matern_kernel(x: Tensor, y: Tensor, scales: Tensor, noise: Tensor) -> Tensor:
    """Matern 5/2 with a length for each dimension."""
    s = scales.exp()
    r2 = ((x / s)[:, None] - (y / s)[None]).square().sum(-1)
    r = (5 * r2 + 1e-12).sqrt()
    eye = torch.eye(x.shape[0], y.shape[0], device=x.device)
    return noise[0].exp() * (1 + r + r * r / 3) * torch.exp(-r) + eye * F.softplus(noise[1])


@case(R(4096, 4096, dt=FLOAT), grads=(0,))
def mean_discrepancy(gram: Tensor) -> Tensor:
    """MMD of two halves with five widths, from inner products."""
    n = gram.shape[0]
    own = gram.diagonal()
    d = (own[:, None] + own - 2 * gram).clamp(min=0)
    width = d.detach().sum() / (n * n - n)
    k = sum(torch.exp(-d / (width * 2.0 ** (i - 2))) for i in range(5))
    h = n // 2
    return k[:h, :h].mean() + k[h:, h:].mean() - k[:h, h:].mean() - k[h:, :h].mean()


@case(R(4096, 4096, dt=FLOAT), R(4096, 4096, dt=FLOAT), grads=(0,))
def centered_alignment(k: Tensor, m: Tensor) -> Tensor:
    """CKA of two Gram matrices."""
    k = k - k.mean(0, keepdim=True) - k.mean(1, keepdim=True) + k.mean()
    m = m - m.mean(0, keepdim=True) - m.mean(1, keepdim=True) + m.mean()
    return (k * m).sum() / (k.square().sum() * m.square().sum()).sqrt()


@case(R(4096, 4096), R(4096, dt=FLOAT), R(4096, dt=FLOAT), grads=(0,))
def redundancy_loss(c: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Barlow Twins, from products of features that are not normalized yet."""
    c = c.float() / (a.abs()[:, None] + 1) / (b.abs() + 1)
    on = (c.diagonal() - 1).square().sum()
    off = c.masked_fill(torch.eye(c.shape[0], dtype=torch.bool, device=c.device), 0.0).square().sum()
    return on + 0.005 * off


@case(R(6, 64, 8192), R(2, 64, 8192), R(1, 8192, dt=FLOAT), grads=(0,))
def self_distillation_of_crops(student: Tensor, teacher: Tensor, center: Tensor) -> tuple[Tensor, Tensor]:
    """DINO: every crop predicts both large ones but itself; the center moves."""
    q = ((teacher.float() - center) / 0.04).softmax(-1).detach()
    logp = (student.float() / 0.1).log_softmax(-1)
    total, terms = 0.0, 0
    for i in range(teacher.shape[0]):
        for v in range(student.shape[0]):
            if v != i:
                total, terms = total - (q[i] * logp[v]).sum(-1).mean(), terms + 1
    return total / terms, center * 0.9 + 0.1 * teacher.float().mean((0, 1))[None]


@case(R(4096, 1000), I(1000, 4096), grads=(0,))
def proxy_anchor_loss(x: Tensor, label: Tensor) -> Tensor:
    """Log sums over the samples of a class, and over those of others."""
    hit = label[:, None] == torch.arange(x.shape[1], device=x.device)
    s = torch.tanh(x.float())
    pos = torch.where(hit, torch.exp(-32 * (s - 0.1)), 0.0).sum(0)
    neg = torch.where(hit, 0.0, torch.exp(32 * (s + 0.1))).sum(0)
    return torch.log1p(pos).sum() / hit.any(0).sum().clamp(min=1) + torch.log1p(neg).mean()


@case(R(262144, 4, dt=FLOAT), R(6, dt=FLOAT), grads=(0, 1))
def gaussian_copula(u: Tensor, w: Tensor) -> Tensor:
    """The density of four dependent numbers: normal scores, and a triangular matrix in front of them."""
    z = torch.special.ndtri(u.sigmoid().clamp(1e-4, 1 - 1e-4))
    a, b, c, d = z.unbind(-1)
    y = torch.stack([a, (b - w[0] * a) * w[3].exp(), (c - w[1] * a - w[2] * b) * w[4].exp(), (d - 0.1 * (a + b + c)) * w[5].exp()], -1)
    return (0.5 * (y.square() - z.square()).sum(-1) - w[3:].sum()).mean()
