"""Torch functions of images, cameras and points for `model_functions.py`, written before anything was tuned for them (2026-11-30).

Sizes come from the inputs, so the functions also run on small ones. Adds them to `CASES` there. Read first: `case` in `function_cases.py`.
"""

from __future__ import annotations

import math

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


@case(R(8, 256, 64, 64), grads=(0,))
def pyramid_of_maxima(x: Tensor) -> Tensor:
    """YOLO's spatial pyramid: maxima of windows of 5, 9 and 13 pixels."""
    return torch.cat([x, *(F.max_pool2d(x, k, 1, k // 2) for k in (5, 9, 13))], 1)


@case(R(8, 3, 512, 512, dt=FLOAT), R(8, 3, 512, 512, dt=FLOAT), grads=(0, 1))
def guided_filter(x: Tensor, guide: Tensor) -> Tensor:
    """Means over windows of 17x17."""

    def mean(t: Tensor) -> Tensor:
        return F.avg_pool2d(t, 17, 1, 8, count_include_pad=False)

    x, guide = x.sigmoid(), guide.sigmoid()
    m, of_guide = mean(x), mean(guide)
    a = (mean(x * guide) - m * of_guide) / (mean(guide * guide) - of_guide * of_guide + 1e-3)
    return mean(a) * guide + mean(m - a * of_guide)


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
