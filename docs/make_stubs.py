"""Write the stubs for editors and type checkers from the registry of ops: `python docs/make_stubs.py`; `--check` only compares.

Owns weft/__init__.pyi, weft/api/ops.pyi, weft/ir/surface.pyi and weft/quantize/behind.pyi. Read first: `main`.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import weft
from weft.api.op_help import LISTED_DIMS, is_listed, type_of
from weft.api.tensor_methods import METHODS
from weft.ops.functions import UNSUPPORTED
from weft.ops.names import function_of, all_names
from weft.ops.operators import BINARY, COMPARISONS, TYPES, UNARY
from weft.ops.registry import OPS
from weft.quantize.behind import FUNCTIONS as RECIPES_BEHIND

ROOT = Path(__file__).parents[1] / "weft"
HEADER = '"""Made by docs/make_stubs.py from the registry of ops."""\n\n'
RESULTS = {"size": "Scalar", "shape": "list[Scalar]", "var_mean": "tuple[TensorView, TensorView]", "welford": "tuple[TensorView, TensorView, TensorView]"}
MANY_RESULTS = {
    "topk", "cummax_with_indices", "cummin_with_indices", "grouped_mm", "scaled_mm", "sdpfa_fwd", "sdpfa_bwd", "nv_block_quantize",
    "nv_grouped_block_quantize",
}  # fmt: skip
FIRST_IS_NO_TENSOR = {"full", "iota", "uniform", "normal", "zeros", "ones", "arange", "causal_mask", "cat", "complex"}
OWN_METHODS = {"size", "shape", "permute", "expand", "reshape", "squeeze", "view", "type_as", "dim", *TYPES}


def parameters(function: Callable[..., Any], name: str, *, skip: int) -> str:
    """Return the parameters of an op as a stub has them, the first `skip` left out."""
    if name in UNSUPPORTED and not list(inspect.signature(function).parameters)[1:2] != ["args"]:
        pairs = UNSUPPORTED[name][max(skip - 1, 0) :]
        return ", ".join(_parameter(a, inspect.Parameter.empty if default is UNSUPPORTED_DEFAULT else default) for a, default in pairs)
    out: list[str] = []
    positional_only = False
    for parameter in list(inspect.signature(function).parameters.values())[skip:]:
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and "*" not in out:
            out.append("*")
        if positional_only and parameter.kind is not inspect.Parameter.POSITIONAL_ONLY:
            out.append("/")
        positional_only = parameter.kind is inspect.Parameter.POSITIONAL_ONLY
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            out.append(f"*{parameter.name}: Any")
        elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
            out.append(f"**{parameter.name}: Any")
        else:
            listed = is_listed(parameter, inspect.signature(function))
            out.append(f"dims: {LISTED_DIMS[0]}" if listed else _parameter(parameter.name, parameter.default))
    if positional_only:
        out.append("/")
    return ", ".join(out)


UNSUPPORTED_DEFAULT = next((default for arguments in UNSUPPORTED.values() for _, default in arguments if type(default) is object), object())


def _parameter(name: str, default: Any) -> str:
    kind = type_of(name, default) or ("Operand" if default is inspect.Parameter.empty else "Any")
    return f"{name}: {kind}" + ("" if default is inspect.Parameter.empty else " = ...")


def result(name: str) -> str:
    """Return the type of what an op returns."""
    return "Any" if name in MANY_RESULTS else RESULTS.get(name, "TensorView")


def docstring(function: Callable[..., Any]) -> str:
    text = (function.__doc__ or "").split("\n")[0].replace("\\", "\\\\")
    return f'        """{text}"""\n'


def op_stub(name: str) -> str:
    """Return the method of `ops` for one op; an op of elements has a form for scalars."""
    function = function_of(name)
    given = parameters(function, name, skip=1)
    body = f"\n{docstring(function)}        ..."
    if name in OPS and OPS[name].arity < 3 and name != "cast":
        tensor, any_operand, scalar = "TensorView", "Operand", "Scalar | Number"
        forms = [((tensor,), tensor), ((scalar,), "Scalar")]
        if OPS[name].arity == 2:
            forms = [((tensor, any_operand), tensor), ((scalar, tensor), tensor), ((scalar, scalar), "Scalar")]
        texts = []
        for kinds, out in forms:
            given = ", ".join(f"{letter}: {kind}" for letter, kind in zip("xy" if len(kinds) == 1 else "ab", kinds))
            texts.append(f"    @overload\n    def {name}(self, {given}, /) -> {out}:{body if not texts else ' ...'}\n")
        return "".join(texts)
    return f"    def {name}(self{', ' + given if given else ''}) -> {result(name)}:\n{docstring(function)}        ...\n"


IMPORTS = """from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, overload

import torch

from {dots}dtypes import DataType
from {dots}ir.values import Scalar, TensorView

_int = int  # methods have the names of some types
_float = float
_bool = bool
_str = str
_complex = complex
DType = DataType | torch.dtype
Number = complex
Operand = TensorView | Scalar | complex
"""


def ops_stub() -> str:
    """Return weft/api/ops.pyi."""
    methods = "\n".join(op_stub(name) for name in all_names())
    head = "\nclass OpNames:\n    def __init__(self, fusion_of: Callable[[str], Fusion]) -> None: ...\n\n"
    imports = IMPORTS.format(dots="..").replace("from ..ir.values", "from ..ir.fusion import Fusion\nfrom ..ir.values")
    return HEADER + imports + head + methods + "\nops: OpNames\n"


def schedule_method(method: Callable[..., Any]) -> str:
    """Return the stub of a schedule primitive."""
    parts = []
    for name, parameter in inspect.signature(method).parameters.items():
        shown = re.sub(r"\b(int|bool|float|str)\b", r"_\1", str(parameter.annotation))
        parts.append("self" if name == "self" else f"{name}: {shown}" + ("" if parameter.default is parameter.empty else " = ..."))
    returned = method.__annotations__["return"]
    return f'    def {method.__name__}({", ".join(parts)}) -> {returned}:\n        """{inspect.getdoc(method)}"""\n        ...'


def surface_stub() -> str:
    """Return weft/ir/surface.pyi."""
    lines = ["class TensorSurface:"]
    for name in (*BINARY, *COMPARISONS, "floordiv"):
        lines.append(f"    def __{name}__(self, other: Operand) -> TensorView: ...")
        if name not in COMPARISONS and name != "floordiv":
            lines.append(f"    def __r{name}__(self, other: Operand) -> TensorView: ...")
    lines += [f"    def __{name}__(self) -> TensorView: ..." for name in UNARY]
    lines += [
        "    def __matmul__(self, other: TensorView) -> TensorView: ...", "    def __getitem__(self, index: Any) -> TensorView: ...",
        "    def to(self, dtype: DType | TensorView | Scalar) -> TensorView: ...", "    def dim(self) -> int: ...",
        "    def type_as(self, other: TensorView) -> TensorView: ...", "    def permute(self, *dims: Any) -> TensorView: ...",
        "    def expand(self, *shape: Any) -> TensorView: ...", "    def reshape(self, *shape: Any) -> TensorView: ...",
        "    def view(self, *shape: Any) -> TensorView: ...", "    def squeeze(self, dims: int | Sequence[int]) -> TensorView: ...",
        "    @property\n    def T(self) -> TensorView: ...", "    @property\n    def mT(self) -> TensorView: ...",
    ]  # fmt: skip
    lines += [f"    def {name}(self) -> TensorView: ..." for name in TYPES]
    for name in all_names():
        if name in FIRST_IS_NO_TENSOR or name in OWN_METHODS:
            continue
        function = function_of(name)
        given = parameters(function, name, skip=2)
        given = "" if given == "/" else given
        lines.append(f"    def {name}(self{', ' + given if given else ''}) -> {result(name)}:\n{docstring(function)}        ...")
    lines += [schedule_method(method) for method in METHODS]
    lines += ["", "class ScalarSurface:"]
    for name in (*BINARY, *COMPARISONS, "floordiv"):
        for prefix in ("", "r") if name not in COMPARISONS and name != "floordiv" else ("",):
            lines.append(f"    @overload\n    def __{prefix}{name}__(self, other: TensorView) -> TensorView: ...")
            lines.append(f"    @overload\n    def __{prefix}{name}__(self, other: Scalar | Number) -> Scalar: ...")
    lines += [f"    def __{name}__(self) -> Scalar: ..." for name in UNARY]
    lines += ["    def to(self, dtype: DType | TensorView | Scalar) -> Scalar: ..."]
    imports = IMPORTS.format(dots="..").replace("import Callable, Sequence", "import Sequence")
    enums = "from ..ir.enums import CacheOp, LoadStoreOpType, MemoryType, ParallelType\n"
    imports = imports.replace("from ..ir.values import Scalar", enums + "from ..ir.values import IterDomain, Scalar")
    return HEADER + imports + "\n" + "\n".join(lines) + "\n"


def init_stub() -> str:
    """Return weft/__init__.pyi."""
    lines = [f"from .{module} import {', '.join(f'{name} as {name}' for name in names)}" for module, names in weft._NAMES.items()]
    return HEADER + "\n".join(lines) + "\nfrom . import nn as nn, options as options, quantize as quantize\n\n__version__: str\n"


def behind_stub() -> str:
    """Return weft/quantize/behind.pyi."""
    imports = ["from collections.abc import Callable\n", "import torch\n", "from .functions import Results\n"]
    lines = ['"""Made by docs/make_stubs.py from the tables of behind.py."""\n', *imports]
    lines += ["FUNCTIONS: dict[str, Callable[..., Results]]\n", "def behind(before: str, recipe: str) -> Callable[..., Results]: ..."]
    for name, function in RECIPES_BEHIND.items():
        arguments = ", ".join(str(a).replace("'", "", 2) for a in inspect.signature(function).parameters.values())
        lines.append(f'def {name}({arguments}) -> Results:\n    """{function.__doc__}"""')
    return "\n".join(lines) + "\n"


def without_clashes(text: str) -> str:
    """Let annotations name types by aliases, since methods of the classes are called float, int, bool and complex."""

    def renamed(line: str) -> str:
        if not line.lstrip().startswith("def "):
            return line
        name, bracket, rest = line.partition("(")
        return name + bracket + re.sub(r"\b(int|float|bool|str|complex)\b(?!:)", r"_\1", rest)

    return "\n".join(map(renamed, text.split("\n")))


def main() -> int:
    """Write the stubs, or say which are old."""
    stubs = {ROOT / "__init__.pyi": init_stub(), ROOT / "api" / "ops.pyi": without_clashes(ops_stub())}
    stubs[ROOT / "ir" / "surface.pyi"] = without_clashes(surface_stub())
    stubs[ROOT / "quantize" / "behind.pyi"] = behind_stub()
    old = [path for path, text in stubs.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if "--check" in sys.argv:
        print("\n".join(f"{path.relative_to(ROOT.parent)} is old: run docs/make_stubs.py" for path in old), end="")
        return len(old)
    for path in old:
        path.write_text(stubs[path], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
