"""Sizes that indices are divided by, as the words that a kernel multiplies with instead: a division of integers takes 20 instructions, this 3.

Owns the host's half; `device/divide.cuh` has the kernel's. Read first: `divisor_word`.
"""

from __future__ import annotations

from ..dtypes import DataType
from ..expr import EVALUATORS, Sym, op

INDEX_BITS = 31
"""Of an index in a type of 32 bits, which is not negative."""


def divisor_word(size: int) -> int:
    """Return m + (s << 32), so that n / size is n * m >> 31 >> s for each n from 0 to 2**31 - 1; 0, which gives 0, where all n are less or there is no n.

    With 2**s the first power of two from `size` on, m is 2**(31 + s) / size, rounded up: from 2**31 to 2**32 - 1. What it is too large by is less than
    2**-31 of n / size, too little to reach the next quotient.
    """
    if not 0 < size < 1 << INDEX_BITS:
        return 0
    shift = (size - 1).bit_length()
    return -(-(1 << (INDEX_BITS + shift)) // size) + (shift << 32)


EVALUATORS["divisor"] = divisor_word


def divisor(size: Sym) -> Sym:
    """Return the word of a size, which the host computes."""
    return op("divisor", (size,), DataType.Int)
