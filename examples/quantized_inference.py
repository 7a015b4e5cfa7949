"""A gated MLP whose activations are 8-bit floats: `python examples/quantized_inference.py`.

The norm and the activation leave their results in float8 with a scale per row, each in one kernel; weights are quantized once. Products run on the 8-bit values
where torch has a product for them (a GPU from sm_89 on), else on what they stand for.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from weft import quantize as q

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HAS_FP8_PRODUCT = DEVICE == "cuda" and torch.cuda.get_device_capability() >= (8, 9)
Quantized = tuple[torch.Tensor, ...]


def product(x: Quantized, w: Quantized) -> torch.Tensor:
    """Return x @ w.T for (8-bit elements, a scale per row)."""
    if HAS_FP8_PRODUCT:
        # torch has no public name for this product in every release that weft runs on
        return torch._scaled_mm(x[0], w[0].T, scale_a=x[1], scale_b=w[1].T, out_dtype=torch.bfloat16)  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
    return q.dequantize(x[0], x[1]) @ q.dequantize(w[0], w[1]).T


def main(rows: int = 32, size: int = 64) -> float:
    """Run the MLP in bfloat16 and in 8 bits; return the relative difference of the results."""
    torch.manual_seed(0)
    x, norm = torch.randn(rows, size, device=DEVICE).bfloat16(), torch.rand(size, device=DEVICE).bfloat16() + 0.5
    gate, up, down = (torch.randn(n, k, device=DEVICE).bfloat16() * k**-0.5 for n, k in ((2 * size, size), (2 * size, size), (size, 2 * size)))
    small = [q.per_row(w) for w in (gate, up, down)]

    normed = q.rms_norm_per_row(x, norm)  # one kernel: norm, scale of each row, rounding
    hidden = q.silu_mul_per_row(product(normed, small[0]), product(normed, small[1]))
    result = product(hidden, small[2]).float()

    y = F.rms_norm(x.float(), (size,), norm.float(), 1e-5)
    wanted = (F.silu(y @ gate.float().T) * (y @ up.float().T)) @ down.float().T
    difference = float((result - wanted).norm() / wanted.norm())
    bits = sum(w[0].numel() * 8 + w[1].numel() * 32 for w in small)
    print(f"weights take {bits / sum(w.numel() * 16 for w in (gate, up, down)):.0%} of their memory in bfloat16")
    print(f"the result differs by {difference:.1%} from the one in float32")
    return difference


if __name__ == "__main__":
    main()
