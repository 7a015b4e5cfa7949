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
        shown = str(value).split("[")[0]
        sizes, strides = list(tensor.shape), list(tensor.stride())
        raise StorageTooSmall(index=index, value=shown, needed=span_bytes, given=max(given, 0), sizes=sizes, strides=strides)


def checker(wanted: Sequence[tuple[int, Val, int]]) -> Callable[..., None]:
    """Return check(tensors...) for inputs given as (index, value, span in bytes)."""

    def check(*tensors: torch.Tensor) -> None:
        for tensor, (index, value, span_bytes) in zip(tensors, wanted):
            check_storage(tensor, span_bytes, index, value)

    return check
