"""Is the memory behind a tensor as large as its sizes and strides say? Not when its storage was resized, and a kernel would read what lies beyond.

Resizing a storage moves it, so the warm path asks only when an address differs from that of the last call with this signature.
Read first: `check_storage`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ..errors import UserError
from ..ir.values import Val


class StorageTooSmall(UserError):
    code = "W785"
    what = "Expected input {index}, {value}, to have {needed} bytes of memory for its sizes {sizes} and strides {strides}, but its storage has {given}"
    fix = "restore the size of the storage (storage.resize_), or pass a tensor that owns its memory"


def check_storage(tensor: torch.Tensor, span_bytes: int, index: int, value: Val) -> None:
    """Errors: StorageTooSmall unless all elements of the tensor are inside its storage."""
    if not span_bytes:
        return
    try:
        offset = tensor.storage_offset() * tensor.element_size()
        given = tensor.untyped_storage().nbytes() - offset if tensor.data_ptr() else 0
    except (RuntimeError, NotImplementedError):  # a subclass without its own memory
        given = 0
    if given < span_bytes:
        shown = f"T{value.name}_g"
        sizes, strides = list(tensor.shape), list(tensor.stride())
        raise StorageTooSmall(index=index, value=shown, needed=span_bytes, given=max(given, 0), sizes=sizes, strides=strides)


def checker(wanted: Sequence[tuple[int, Val, int, int]]) -> Callable[..., None]:
    """Return check(tensors..., pointers..., seen...) for inputs given as (index, value, span in bytes, bytes of an element).

    A tensor whose pointer has not changed is not checked. The check is inlined, because a call of `check_storage` costs twice as much.
    check.spans: (span, bytes of an element) of each, for `shortages`.
    """
    names, pointers, seen = ([f"{letter}{n}" for n in range(len(wanted))] for letter in "apq")
    spans = [(span, element) for *_, span, element in wanted]
    short = shortages(spans, names, pointers, seen)

    def say(*tensors: torch.Tensor) -> None:
        for tensor, (index, value, span_bytes, _) in zip(tensors, wanted):
            check_storage(tensor, span_bytes, index, value)

    text = f"""
def make(say):
    def check({", ".join([*names, *pointers, *seen])}):
        try:
            if not ({short}): return
        except (RuntimeError, NotImplementedError): pass
        say({", ".join(names)})
    return check
"""
    from .warm_path import written

    found: Callable[..., None] = written(text, {})["make"](say)
    found.spans = spans  # type: ignore[attr-defined]
    return found


def shortages(spans: Sequence[tuple[int, int]], names: Sequence[str], pointers: Sequence[str], seen: Sequence[str]) -> str:
    """Return the condition that a tensor with a changed address has a storage that is too small, for variables of these names. spans: `checker(...).spans`."""
    short = []
    for a, p, q, (span, element) in zip(names, pointers, seen, spans, strict=True):
        if span:
            short.append(f"{p} != {q} and (not {p} or len({a}.untyped_storage()) < {a}.storage_offset() * {element} + {span})")
    return " or ".join(short) or "False"
