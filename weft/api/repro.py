"""Scripts that define a fusion, make inputs like given ones, and execute it.

Owns their text. Read first: `repro_script`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..errors import UserError
from ..runtime.arguments import flattened
from .translate_values import number_text
from .version import version


class NoSavedInputs(UserError, AssertionError):
    code = "W172"
    what = "no execution of this definition has saved its inputs"
    fix = "call fd.execute(inputs, save_repro_inputs=True) first, or fd.repro_script_for(inputs)"


_IMPORTS = """import torch
try:
    from weft import FusionDefinition, DataType
except ImportError:
    from nvfuser_direct import FusionDefinition, DataType
"""


def repro_script(fd: object, inputs: Sequence[Any] | None = None) -> str:
    """Return the script for a definition; without `inputs` it ends with the definition."""
    imports, call = _IMPORTS, "with FusionDefinition() as fd:\n    nvfuser_fusion(fd)\n"
    parts = [_environment(), imports, repr(fd), call]
    if inputs is not None:
        lines = "".join(f"    {input_text(value)},\n" for value in flattened(inputs))
        parts.append(f"inputs = [\n{lines}]\nfd.execute(inputs)\n")
    return "\n".join(parts)


def last_repro_script(fd: object) -> str:
    """Return the script for the inputs that the last execution of a definition saved.

    Errors: NoSavedInputs.
    """
    if "fake_inputs" not in fd.__dict__:
        raise NoSavedInputs()
    return repro_script(fd, fd.__dict__["fake_inputs"])


def fake_copies(inputs: Sequence[Any]) -> list[Any]:
    """Return the inputs with tensors replaced by fake ones: shapes, strides, types and devices without data."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    return [mode.from_tensor(v.detach()) if isinstance(v, torch.Tensor) else v for v in flattened(inputs)]


def weft_version() -> str:
    """Return the version of this package."""
    import sys

    return str(sys.modules[__name__.partition(".")[0]].__version__)


def _environment() -> str:
    devices = [f"#  {i}: {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else ["#  none"]
    lines = ["# CUDA devices:", *devices, f"# torch version: {torch.__version__}", f"# cuda version: {torch.version.cuda}", f"# nvfuser version: {version()}"]
    lines.append(f"# weft version: {weft_version()}")
    return "\n".join(lines)


def input_text(value: Any) -> str:
    """Return an expression that makes an input like `value`: same type, device, sizes and strides, random elements."""
    if not isinstance(value, torch.Tensor):
        return number_text(value)
    sizes, strides = tuple(value.size()), tuple(value.stride())
    where = f"dtype={value.dtype}, device='{value.device}'"
    if value.is_contiguous():
        return f"torch.testing.make_tensor({sizes}, {where})"
    elems = 0 if 0 in sizes else 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides))
    if value.dtype.is_floating_point and value.dtype.itemsize > 1 or value.dtype.is_complex:
        storage = f"torch.randn({elems}, {where})"
    elif value.dtype.is_floating_point:
        storage = f"torch.randn({elems}, device='{value.device}').to({value.dtype})"
    else:
        storage = f"torch.randint(0, {2 if value.dtype is torch.bool else 10}, ({elems},), {where})"
    return f"{storage}.as_strided({sizes}, {strides})"
