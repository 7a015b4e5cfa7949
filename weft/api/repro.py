"""Scripts that define a fusion, make inputs like given ones, and execute it.

Owns their text. Read first: `repro_script`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..errors import InternalError, UserError
from ..ir.fusion import Fusion
from ..options import Options, current
from ..runtime.arguments import flattened
from ..runtime.internal_errors import writes_scripts
from .translate import translate_fusion
from .translate_values import number_text
from .version import version


class NoSavedInputs(UserError, AssertionError):
    code = "W172"
    what = "no execution of this definition has saved its inputs"
    fix = "call fd.execute(inputs, save_repro_inputs=True) first, or fd.repro_script_for(inputs)"


def _imports() -> str:
    """Return the imports of a script, from the package under whose name the program has imported this one."""
    package = "nvfuser_direct" if "nvfuser_direct" in sys.modules else "weft"
    return f"import torch\nfrom {package} import FusionDefinition, DataType\n"


def repro_script(fd: object, inputs: Sequence[Any] | None = None) -> str:
    """Return the script for a definition; without `inputs` it ends with the definition."""
    return script_of(repr(fd), inputs)


def script_of(definition: str, inputs: Sequence[Any] | None, settings: Mapping[str, object] | None = None) -> str:
    """Return the script for the text of a definition. settings: those to execute it under."""
    imports, call = _imports(), "with FusionDefinition() as fd:\n    nvfuser_fusion(fd)\n"
    parts = [_environment(), imports, definition, call]
    if inputs is not None:
        lines = "".join(f"    {input_text(value)},\n" for value in flattened(inputs))
        execute = "fd.execute(inputs)\n"
        if settings:
            named = ", ".join(f"{name}={value!r}" for name, value in settings.items())
            execute = f"from weft.options import options\n\nwith options({named}):\n    {execute}"
        parts.append(f"inputs = [\n{lines}]\n{execute}")
    return "\n".join(parts)


SHOWN_SETTINGS = ("emulate", "chip", "check", "verify", "seed", "fast_math", "rows", "tune", "strict_schedules", "partition")
"""Settings on which it depends what is computed, and by which kernels."""


@writes_scripts
def script_of_defect(fusion: Fusion, inputs: Sequence[Any], error: InternalError) -> str:
    """Return the script that an internal error leaves; its first lines say what was raised."""
    head = "".join(f"# {line}\n" for line in str(error).splitlines())
    usual, used = Options(), current()
    changed = {name: getattr(used, name) for name in SHOWN_SETTINGS if getattr(used, name) != getattr(usual, name)}
    return f"{head}{script_of(translate_fusion(fusion), inputs, changed | {'strict_schedules': True})}"


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
    return str(sys.modules[__name__.partition(".")[0]].__version__)


def _environment() -> str:
    devices = [f"#  {i}: {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else ["#  none"]
    lines = ["# CUDA devices:", *devices, f"# torch version: {torch.__version__}", f"# cuda version: {torch.version.cuda}", f"# nvfuser version: {version()}"]
    lines.append(f"# weft version: {weft_version()}")
    return "\n".join(lines)


def input_text(value: Any) -> str:
    """Return an expression that makes an input like `value`: same type, device, sizes and strides, random elements; integers in the same range."""
    if not isinstance(value, torch.Tensor):
        return number_text(value)
    sizes, strides = tuple(value.size()), tuple(value.stride())
    where = f"dtype={value.dtype}, device='{value.device}'"
    bounds = _bounds_of_integers(value)
    if value.is_contiguous():
        range_ = "" if bounds is None else f", low={bounds[0]}, high={bounds[1]}"
        return f"torch.testing.make_tensor({sizes}, {where}{range_})"
    elems = 0 if 0 in sizes else 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides))
    if value.dtype.is_floating_point and value.dtype.itemsize > 1 or value.dtype.is_complex:
        storage = f"torch.randn({elems}, {where})"
    elif value.dtype.is_floating_point:
        storage = f"torch.randn({elems}, device='{value.device}').to({value.dtype})"
    else:
        low, high = bounds or (0, 2 if value.dtype is torch.bool else 10)
        storage = f"torch.randint({low}, {high}, ({elems},), {where})"
    return f"{storage}.as_strided({sizes}, {strides})"


def _bounds_of_integers(value: torch.Tensor) -> tuple[int, int] | None:
    """Return the smallest integer and one more than the largest, so that indices stay within their tensors; None where elements are no integers or unknown."""
    from torch._subclasses.fake_tensor import FakeTensor

    if value.dtype is torch.bool or value.dtype.is_floating_point or value.dtype.is_complex or isinstance(value, FakeTensor) or not value.numel():
        return None
    try:
        low, high = (int(v) for v in value.aminmax())
    except RuntimeError:  # a device after a fault, or one that captures a graph, has no values to read: the script is still to be written
        return None
    return low, min(high + 1, torch.iinfo(value.dtype).max)
