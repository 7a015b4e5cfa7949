"""Rounding errors of sums, whatever the order: how far a sum in floating point may lie from the exact one.

The order of a kernel's sum is not known here: each thread adds some terms one after the other, then trees join the results of threads, warps and blocks. Each
addition rounds a partial sum s by up to u |s| (u: the unit roundoff), and roundings of different data are independent. So their total has a standard deviation
of at most u / sqrt(3) times the root of the sum of squares of all partial sums, its "energy". Constant data round alike, which adds up.
Source: Higham and Mary, A New Approach to Probabilistic Rounding Error Analysis, 2019. Read first: `sum_bound`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

DEVIATIONS = 8
"""How many standard deviations are allowed: fewer than one in 10^14 normal numbers is larger."""
STEP = DEVIATIONS / 3**0.5
"""Allowed error of a sum, in roundoffs of the root of its energy: a rounding is uniform within one roundoff at most."""
SERIAL_TERMS = 1024
"""A thread adds no more terms than this one after the other, or its share if so many threads share all sums."""
SHARING_THREADS = 1 << 15

Join = Callable[[torch.Tensor], torch.Tensor]
JOINS: tuple[Join, ...] = (lambda x: x[0::2] + x[1::2], lambda x: x[: len(x) // 2] + x[len(x) // 2 :])
"""Neighbours, and terms half of the rest apart: trees whose partial sums are blocks of terms, and every 2^j-th term."""


def sum_bound(x: torch.Tensor, dims: list[int], roundoff: float) -> torch.Tensor:
    """Return how far a sum of float64 terms over `dims` may be rounded, with all but certainty. roundoff: of the type that partial sums have."""
    terms = _rows(x, dims)
    if len(terms) < 2:
        return x.abs().sum(dims) * 0.0
    if terms.is_complex():
        return sum_bound(x.real, dims, roundoff) + sum_bound(x.imag, dims, roundoff)
    serial = serial_terms(len(terms), terms[:1].numel())
    squares = _squares(terms)
    energy = (1 + serial / 2) * squares  # terms in no order
    for join in JOINS:
        energy = torch.maximum(energy, _energy(terms, squares, join, serial))
    return roundoff * (STEP * energy.sqrt() + serial / 2 * _repeated(terms) * terms.abs().sum(0)).view(_kept(x, dims))


def serial_terms(count: int, sums: int) -> int:
    """Return how many terms a thread adds one after the other at most, if so many sums have `count` terms each."""
    return min(count, max(SERIAL_TERMS, count * sums // SHARING_THREADS))


def _squares(terms: torch.Tensor) -> torch.Tensor:
    """Return the sums of squares along axis 0: in one reading where the terms of a sum lie beside each other, for which torch has a faster function."""
    return torch.linalg.vector_norm(terms, dim=0).square() if terms.stride(0) == 1 else terms.square().sum(0)


def _energy(terms: torch.Tensor, own: torch.Tensor, join: Join, serial: int) -> torch.Tensor:
    """Return the sum of squares of partial sums over axis 0: those of a tree, of which threads add up to `serial` terms in order.

    Of a thread's partial sums, those of w / 2 to w terms lie between two sums of the tree, and so do their squares on average. Terms in no order have partial
    sums of j terms with squares of j times a term's on average, which `sum_bound` takes at least: a tree's may be small by chance.
    own: the sums of squares of the terms themselves.
    """
    level, width = _padded(terms), 1
    energy, before = torch.zeros_like(terms[0]), own
    while len(level) > 1:
        level, width = join(level), 2 * width
        squares = _squares(level)
        in_order = max(0, min(width, serial) - width // 2) * min(1.0, width / serial)
        energy += squares + in_order * (before + squares) / 2
        before = squares
    return energy


def _padded(terms: torch.Tensor) -> torch.Tensor:
    missing = (1 << (len(terms) - 1).bit_length()) - len(terms)
    return torch.cat([terms, terms.new_zeros(missing, *terms.shape[1:])]) if missing else terms


def _repeated(terms: torch.Tensor) -> torch.Tensor:
    """Return which part of the terms equals its successor along axis 0: equal terms are rounded alike.

    Zeros do not count, nor do values of 8 bits, as of BFloat16, sums of which have few more bits.
    """
    if len(terms) < 2:
        return torch.zeros_like(terms.sum(0))
    kept = terms[1:]
    return ((kept == terms[:-1]) & (kept != kept.to(torch.bfloat16))).to(terms.dtype).mean(0)


def scan_bound(x: torch.Tensor, dim: int, roundoff: float) -> torch.Tensor:
    """Return how far each of the running sums of float64 terms along `dim` may be rounded: each may come from the one before, or from a tree."""
    if x.is_complex():
        return scan_bound(x.real, dim, roundoff) + scan_bound(x.imag, dim, roundoff)
    sums = x.cumsum(dim)
    levels = max(1, x.shape[dim] if x.dim() else 1).bit_length()
    energy = sums.square().cumsum(dim) + levels * x.square().cumsum(dim)
    repeated = _repeated(_rows(x, [dim])).view(_kept(x, [dim])).unsqueeze(dim)
    return roundoff * (STEP * energy.sqrt() + repeated * sums.abs().cumsum(dim) / 2)


def product_bound(total: torch.Tensor, squares: torch.Tensor, count: int, roundoff: float) -> torch.Tensor:
    """Return how far the sums of a matrix product may be rounded. total: the product; squares: the product of the operands' squares; count: terms per sum.

    The terms of such a sum are in no order, so that partial sums of j of n terms have squares of j / n squares + (j / n)^2 total^2 on average.
    """
    count = max(count, 1)
    energy = (count / 2 + count.bit_length()) * squares + (2 + count / 3) * total.abs().square()
    return roundoff * STEP * energy.sqrt()


def _rows(x: torch.Tensor, dims: list[int]) -> torch.Tensor:
    """Return the terms of each sum along axis 0. Shapes: [terms, sums]."""
    if not x.dim():
        return x.view(1, 1)
    kept = [d for d in range(x.dim()) if d not in dims]
    count = 1
    for dim in dims:
        count *= x.shape[dim]
    return x.permute(*dims, *kept).reshape(count, -1) if x.numel() else x.new_zeros(count, _size(_kept(x, dims)))


def _kept(x: torch.Tensor, dims: list[int]) -> list[int]:
    return [n for d, n in enumerate(x.shape) if d not in dims]


def _size(shape: list[int]) -> int:
    count = 1
    for n in shape:
        count *= n
    return count
