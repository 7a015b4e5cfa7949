"""A folder to ship: the graphs and kernels of a compiled model, so that a server starts without tracing or compiling them.

    python build.py                                   weft.precompile(model, [example], "folder")
    python serve.py                                   weft.load_precompiled("folder"); torch.compile(model, backend="weft")(...)

The folder holds kernels (entries of weft's cache), graphs (torch's cache artifacts) and a manifest. Read first: `precompile`, `load_precompiled`.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from ..cache import DiskCache, default_cache
from ..cache.private import read_private, write_whole
from ..errors import UserError, shown
from ..options import options as settings
from ..runtime.argument_kinds import WrongKind, checked
from ..runtime.runtimes import forget_kernels

MANIFEST, GRAPH_FILE, KERNEL_FOLDER = "manifest.json", "graphs.bin", "kernels"


class BadBundle(UserError):
    code = "W889"
    what = "this process cannot use the precompiled folder {folder}: {problem}"
    fix = "run weft.precompile again, with the same versions and on a machine of the same kind"


@checked
def precompile(
    model: Callable[..., Any], examples: Iterable[tuple[Any, ...] | Mapping[str, Any]], out: str | Path, *, options: Mapping[str, Any] | None = None,
    dynamic: bool | None = None, train: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Run `model` compiled by weft once per example, and write the resulting graphs and kernels into the folder `out`; return its manifest.

    examples: positional arguments as a tuple, or keywords as a mapping; each with sizes that will be used. options, dynamic: as of torch.compile. train: also
    run the backward of the sum of the outputs; gradients of the model's parameters are not changed.
    torch's compiled functions of this process are forgotten (`torch._dynamo.reset()`). Errors: those of the model and of weft.
    """
    from .ahead import wait_for_all
    from .backend import backend

    if not callable(model):
        raise WrongKind(function="precompile", argument="model", value=shown(model), wanted="module or function")
    given: list[Any] = list(examples) if isinstance(examples, Iterable) and not isinstance(examples, torch.Tensor) else [examples]
    for example in given:
        if not isinstance(example, (tuple, Mapping)):
            raise WrongKind(function="precompile", argument="an example", value=shown(example), wanted="tuple or mapping of arguments")
    folder = Path(out)
    (folder / KERNEL_FOLDER).mkdir(parents=True, exist_ok=True, mode=0o700)
    torch._dynamo.reset()
    forget_kernels()  # kernels that this process has already loaded would not be written
    compiled = torch.compile(model, backend=backend, options=dict(options or {}), dynamic=dynamic)
    with settings(cache=True, cache_dir=str(folder / KERNEL_FOLDER), require_cached=False), torch.set_grad_enabled(train):
        for example in given:
            _run(model, compiled, example, train)
        wait_for_all()  # for the packs, too
    saved = torch.compiler.save_cache_artifacts()
    graphs = saved[0] if saved is not None else b""
    manifest = _here() | {"kernels": DiskCache(folder / KERNEL_FOLDER).keys(), "graphs": hashlib.sha256(graphs).hexdigest()}
    write_whole(folder / GRAPH_FILE, graphs)
    write_whole(folder / MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode())
    return manifest


def _run(model: Callable[..., Any], compiled: Callable[..., Any], example: tuple[Any, ...] | Mapping[str, Any], train: bool) -> None:
    parameters = list(model.parameters()) if isinstance(model, torch.nn.Module) else []
    before = [p.grad for p in parameters]
    result = compiled(**example) if isinstance(example, Mapping) else compiled(*example)
    if train:
        outputs = [t for t in torch.utils._pytree.tree_leaves(result) if isinstance(t, torch.Tensor) and t.requires_grad]
        for p in parameters:
            p.grad = None
        torch.autograd.backward(outputs, [torch.ones_like(t) for t in outputs])
        for p, grad in zip(parameters, before):
            p.grad = grad


@checked
def load_precompiled(folder: str | Path) -> dict[str, Any]:
    """Put the kernels and graphs of a folder into this user's caches, from which torch.compile(backend="weft") takes them; return the manifest.

    With the setting `require_cached` a kernel that the folder does not have raises an error instead of being compiled.
    Load only what you or somebody you trust has made: torch's graphs are pickles, which can run any code. Files that other users may write are refused.
    Errors: BadBundle for another version of weft, torch or Python, another kind of GPU, and anything missing, damaged or writable by others.
    """
    folder = Path(folder)
    try:
        manifest: dict[str, Any] = json.loads(_own(folder / MANIFEST))
        wrong = [f"{name} is {value!r} here and {manifest.get(name)!r} there" for name, value in _here().items() if manifest.get(name) != value]
        graphs = _own(folder / GRAPH_FILE)
        if not wrong and manifest["graphs"] != hashlib.sha256(graphs).hexdigest():
            wrong = [f"{GRAPH_FILE} is damaged"]
    except (OSError, ValueError, KeyError) as error:
        raise BadBundle(folder=folder, problem=f"{type(error).__name__}: {error}") from None
    if wrong:
        raise BadBundle(folder=folder, problem="; ".join(wrong))
    source, target = DiskCache(folder / KERNEL_FOLDER), default_cache()
    for key in manifest["kernels"]:
        artefact = source.get(key)
        if artefact is None:
            raise BadBundle(folder=folder, problem=f"the kernel {key[:12]} is missing, damaged, or may have been written by others ({source.problem})")
        if target is not None:
            target.put(key, artefact)
    if graphs:
        torch.compiler.load_cache_artifacts(graphs)
    return manifest


def _here() -> dict[str, Any]:
    """What a folder depends on."""
    from .backend import graph_version

    chip = torch.cuda.get_device_capability() if torch.cuda.is_available() else None
    versions = {"weft": sys.modules["weft"].__version__, "frontend": graph_version(), "torch": torch.__version__, "python": platform.python_version()}
    return versions | {"arch": list(chip) if chip else None}


def _own(path: Path) -> bytes:
    """Return the content of a file that only this user may write. Errors: OSError, ValueError."""
    found = read_private(path)
    if isinstance(found, str):
        raise ValueError(f"{path.name}: {found}")
    return found[0]


__all__ = ["BadBundle", "load_precompiled", "precompile"]
