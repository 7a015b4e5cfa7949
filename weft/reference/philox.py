"""Philox4x32-10 in NumPy, and the distributions made from it: the reference of `weft/device/philox.cuh`.

Source: Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (SC 2011). Read first: `philox`, then `uniform`.
"""

from __future__ import annotations

import numpy as np

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)


def philox_words(counter: np.ndarray, key: tuple[int, int], rounds: int = 10) -> np.ndarray:
    """Return four 32-bit words per row of `counter` ([n, 4], 32-bit words)."""
    x, y, z, w = (counter[:, i].astype(np.uint64) for i in range(4))
    for r in range(rounds):
        key_x, key_y = np.uint64((key[0] + r * WEYL[0]) & 0xFFFFFFFF), np.uint64((key[1] + r * WEYL[1]) & 0xFFFFFFFF)
        first, second = x * np.uint64(MULTIPLIERS[0]), z * np.uint64(MULTIPLIERS[1])
        x, y, z, w = (second >> _SHIFT) ^ y ^ key_x, second & _LOW, (first >> _SHIFT) ^ w ^ key_y, first & _LOW
    return np.stack([x, y, z, w], axis=1).astype(np.uint32)


def philox(seed: int, subsequences: np.ndarray, offset: int) -> np.ndarray:
    """Return the words of each subsequence: the counter is (offset, subsequence), the key is the seed, low words first."""
    subsequences = subsequences.astype(np.uint64)
    counter = np.empty((len(subsequences), 4), np.uint64)
    offset &= (1 << 64) - 1
    counter[:, 0], counter[:, 1] = offset & 0xFFFFFFFF, offset >> 32
    counter[:, 2], counter[:, 3] = subsequences & _LOW, subsequences >> _SHIFT
    seed &= (1 << 64) - 1
    return philox_words(counter, (seed & 0xFFFFFFFF, seed >> 32))


def uniform(count: int, seed: int, offset: int, low: float = 0.0, high: float = 1.0, *, double: bool = False) -> np.ndarray:
    """Return `count` numbers in [low, high), or (high, low], in linear order, as float32 or float64."""
    if double:
        y = _double_bits(count, seed, offset).astype(np.float64) * 2.0**-53 + 2.0**-54
        kind: type = np.float64
    else:
        words = _words(count, seed, offset)
        rounded = words.astype(np.float32)
        towards_zero = np.where(rounded.astype(np.float64) > words, np.nextafter(rounded, np.float32(0)), rounded)
        y = towards_zero * np.float32(2.0**-32)
        kind = np.float32
    y = np.where(y == 1, kind(0), y)
    scaled = kind(low) + (kind(high) - kind(low)) * y
    is_inside = scaled < kind(high) if kind(low) < kind(high) else scaled > kind(high)
    return np.where(is_inside, scaled, kind(low)).astype(kind)


def normal(count: int, seed: int, offset: int, mean: float = 0.0, deviation: float = 1.0, *, double: bool = False) -> np.ndarray:
    """Return `count` normal numbers, in linear order: pairs by Box and Muller, sine first."""
    if double:
        z = _double_bits(count + 1, seed, offset)[: (count + 1) // 2 * 2].astype(np.float64).reshape(-1, 2)
        u, v = z[:, 0] * 2.0**-53 + 2.0**-54, (z[:, 1] * 2.0**-52 + 2.0**-53) * np.pi
    else:
        words = _words(count + 1, seed, offset)[: (count + 1) // 2 * 2].astype(np.float32).reshape(-1, 2)
        u = (words[:, 0] * np.float32(2.0**-32) + np.float32(2.0**-33)).astype(np.float64)
        v = (words[:, 1] * np.float32(2.0**-32 * 2 * np.pi) + np.float32(2.0**-33 * 2 * np.pi)).astype(np.float64)
    radius = np.sqrt(-2 * np.log(u))
    pairs = np.stack([np.sin(v) * radius, np.cos(v) * radius], axis=1).reshape(-1)[:count]
    return (mean + deviation * pairs).astype(np.float64 if double else np.float32)


def _words(count: int, seed: int, offset: int) -> np.ndarray:
    return philox(seed, np.arange((count + 3) // 4), offset).reshape(-1)[:count]


def _double_bits(count: int, seed: int, offset: int) -> np.ndarray:
    words = philox(seed, np.arange((count + 1) // 2), offset).reshape(-1, 2).astype(np.uint64)
    return (words[:, 0] ^ (words[:, 1] << np.uint64(21)))[:count]
