"""Is the memory behind a tensor as large as its sizes and strides say? Not when its storage was resized, and a kernel would read what lies beyond.

Resizing a storage moves it, so the warm path asks only when an address differs from that of the last call with this signature.
Read first: `check_storage`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..errors import UserError
from ..ir.values import Val


class StorageTooSmall(UserError):
    code = "W785"
    what = "Expected input {index}, {value}, to have {needed} bytes of memory for its sizes {sizes} and strides {strides}, but its storage has {given}"
    fix = "give the storage its size back (storage.resize_), or pass a tensor that owns its memory"


def check_storage(tensor: torch.Tensor, span_bytes: int, index: int, value: Val) -> None:
    """Errors: StorageTooSmall unless the bytes from the tensor's first to its last element are its storage's."""
    if not span_bytes:
        return
    try:
        offset = tensor.storage_offset() * tensor.element_size()
        given = tensor.untyped_storage().nbytes() - offset if tensor.data_ptr() else 0
    except (RuntimeError, NotImplementedError):  # a subclass without memory of its own
        given = 0
    if given < span_bytes:
        shown = f"T{value.name}_g"
        sizes, strides = list(tensor.shape), list(tensor.stride())
        raise StorageTooSmall(index=index, value=shown, needed=span_bytes, given=max(given, 0), sizes=sizes, strides=strides)


def checker(wanted: Sequence[tuple[int, Val, int]]) -> Callable[..., None]:
    """Return check(tensors...) for inputs given as (index, value, span in bytes). It is written out: a call of `check_storage` costs twice as much."""
    asked = [(n, *entry) for n, entry in enumerate(wanted) if entry[2]]
    names = [f"a{n}" for n in range(len(wanted))]
    short = []
    for a, (*_, span) in zip(names, wanted):
        if span:
            short.append(f"{a}.untyped_storage().nbytes() < {a}.storage_offset() * {a}.element_size() + {span} or not {a}.data_ptr()")
    if not asked:
        return lambda *tensors: None

    def say(*tensors: torch.Tensor) -> None:
        for n, index, value, span_bytes in asked:
            check_storage(tensors[n], span_bytes, index, value)

    return _check(tuple(names), tuple(short))(say)


@functools.lru_cache(maxsize=1024)
def _check(names: tuple[str, ...], short: tuple[str, ...]) -> Callable[..., Any]:
    text = f"""
def make(say):
    def check({", ".join(names)}):
        try:
            if not ({" or ".join(short)}): return
        except (RuntimeError, NotImplementedError): pass
        say({", ".join(names)})
    return check
"""
    from .warm_path import written

    return written(text, {})["make"]
