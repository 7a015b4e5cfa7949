"""What the narrow floats are, from their definition: values of all codes, and the code nearest to a number. Independent of the device library and of torch.

Codes of e4m3, e5m2 and e2m1: sign, exponent, mantissa (OCP Microscaling Formats 1.0). Encoding is to nearest, ties to the even code, and saturates; e8m0 is the
next power of two not below the magnitude.
"""

from __future__ import annotations

import numpy as np

EXPONENT_BITS = {"e4m3": 4, "e5m2": 5, "e2m1": 2}
MANTISSA_BITS = {"e4m3": 3, "e5m2": 2, "e2m1": 1}
LARGEST_CODE = {"e4m3": 0x7E, "e5m2": 0x7B, "e2m1": 0x7, "e8m0": 0xFE}
NAN_CODE = {"e4m3": 0x7F, "e5m2": 0x7F, "e2m1": 0x7, "e8m0": 0xFF}


def magnitudes(kind: str) -> np.ndarray:
    """The finite values of the codes without sign, in order."""
    exponent_bits, mantissa_bits = EXPONENT_BITS[kind], MANTISSA_BITS[kind]
    bias = 2 ** (exponent_bits - 1) - 1
    out = []
    for code in range(LARGEST_CODE[kind] + 1):
        exponent, mantissa = code >> mantissa_bits, code & (2**mantissa_bits - 1)
        fraction = mantissa / 2**mantissa_bits
        out.append(fraction * 2.0 ** (1 - bias) if exponent == 0 else (1 + fraction) * 2.0 ** (exponent - bias))
    return np.array(out)


def decoded(kind: str) -> np.ndarray:
    """The values of all codes in float64."""
    if kind == "e8m0":
        return np.array([2.0 ** (code - 127) for code in range(255)] + [np.nan])
    count = 16 if kind == "e2m1" else 256
    half = np.full(count // 2, np.nan)
    finite = magnitudes(kind)
    half[: len(finite)] = finite
    if kind == "e5m2":
        half[0x7C] = np.inf
    return np.concatenate([half, -half])


def encoded(kind: str, values: np.ndarray) -> np.ndarray:
    """The codes of numbers given in float64."""
    size = np.abs(values)
    if kind == "e8m0":
        with np.errstate(all="ignore"):
            mantissa, exponent = np.frexp(np.where(np.isfinite(size) & (size > 0), size, 1.0))
        codes = np.clip(np.where(mantissa == 0.5, exponent - 1, exponent) + 127, 0, 254)
        codes = np.where(size == 0, 0, np.where(np.isinf(size), 254, codes))
        return np.where(np.isnan(values), 255, codes).astype(np.uint8)
    finite = magnitudes(kind)
    middle = (finite[1:] + finite[:-1]) / 2
    below, above = np.searchsorted(middle, size, "left"), np.searchsorted(middle, size, "right")
    codes = np.where(below == above, below, np.where(below % 2 == 0, below, above))
    sign = 8 if kind == "e2m1" else 0x80
    codes = codes + np.where(np.signbit(values), sign, 0)
    return np.where(np.isnan(values), NAN_CODE[kind], codes).astype(np.uint8)
