"""torch's key of a graph in AOTAutogradCache, for entries of weft: without what only Inductor's kernels depend on, which took most of a warm start.

torch's key also names Inductor's code generators, for which it imports all of them, and Triton's compiler, for which it reads all of Triton; an entry of
weft has no kernel of either. The text of torch stays in the key: weft's cache knows its digest by names, sizes and times of the files. This holds only while
a key of weft's is made, in the thread that makes it. Read first: `keys_without_inductor`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from .. import forking
from ..cache import digest_of_files, files_below

_lock = forking.recursive_lock()


@contextlib.contextmanager
def keys_without_inductor() -> Iterator[None]:
    """Exclude from the keys of graphs that this thread makes in the block what only Inductor's kernels depend on. Only existing functions are replaced, so a
    torch version that makes its keys differently is not affected.
    """
    autograd_cache: Any = importlib.import_module("torch._functorch._aot_autograd.autograd_cache")
    codecache: Any = importlib.import_module("torch._inductor.codecache")
    plain: Any = getattr(autograd_cache, "autograd_cache_key", None)

    def key(*arguments: Any, **keywords: Any) -> Any:
        text: Any = getattr(codecache, "torch_key", None)
        with (
            _instead(codecache, "init_backend_registration", lambda: None),
            _instead(codecache, "torch_key", lambda: _text_of_torch(text)),
            _instead(getattr(codecache, "CacheBase", None), "get_system", _chip),
            _with_parts(arguments[1] if len(arguments) > 1 else keywords.get("example_inputs", ())),
        ):
            return plain(*arguments, **keywords)

    with _instead(autograd_cache, "autograd_cache_key", key):
        yield


@contextlib.contextmanager
def _instead(owner: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Replace owner.name by a function, for this thread only; do nothing if it does not exist."""
    plain = getattr(owner, name, None)
    if plain is None:
        yield
        return
    thread = threading.get_ident()

    @functools.wraps(plain)
    def chosen(*arguments: Any, **keywords: Any) -> Any:
        return (function if threading.get_ident() == thread else plain)(*arguments, **keywords)

    with _lock:
        kept = vars(owner)[name]  # for a class, including `staticmethod`
        setattr(owner, name, staticmethod(chosen) if isinstance(kept, staticmethod) else chosen)
        try:
            yield
        finally:
            setattr(owner, name, kept)


@contextlib.contextmanager
def _with_parts(inputs: Any) -> Iterator[None]:
    """Add the sizes of the tensors that subclasses hold to keys of the block. torch's key of a DTensor has those of the whole one only: where its shards differ
    in size, a process would be given the graph of another one.
    """
    compiler_config: Any = importlib.import_module("torch.compiler.config")
    parts = [_parts(tensor) for tensor in inputs if isinstance(tensor, torch.Tensor) and hasattr(tensor, "__tensor_flatten__")]
    with compiler_config.patch(cache_key_tag=f"{compiler_config.cache_key_tag} {parts}") if parts else contextlib.nullcontext():
        yield


def _parts(tensor: Any) -> Any:
    """Sizes and strides of a tensor, or of those that it consists of."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return [str(n) for n in (*tensor.shape, *tensor.stride())] if isinstance(tensor, torch.Tensor) else type(tensor).__name__
    return [_parts(getattr(tensor, name)) for name in tensor.__tensor_flatten__()[0]]


def _chip() -> dict[str, Any]:
    """The part of a key that describes the machine."""
    return _chip_of(torch.cuda.current_device()) if torch.cuda.is_available() else {}


@functools.cache
def _chip_of(device: int) -> dict[str, Any]:
    return {"device": {"name": torch.cuda.get_device_properties(device).name}, "version": {"cuda": torch.version.cuda}}


NO_PYTHON = ("bin", "include", "lib", "share")
"""Folders of an installed torch with headers and libraries: as many files as the Python sources, but no Python."""


@functools.cache
def _text_of_torch(digest: Callable[[], bytes]) -> bytes:
    """A digest of torch's text. digest: torch's own function, which reads all of it."""
    files = list(files_below(str(Path(torch.__file__).parent), (".py",), NO_PYTHON))
    return bytes.fromhex(digest_of_files("torch", files, lambda: digest().hex()))


__all__ = ["keys_without_inductor"]
