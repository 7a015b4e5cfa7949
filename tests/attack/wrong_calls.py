"""Random wrong calls over the public surface: ops, definition, schedule, execution, settings, TOML, command line.

Each try is one call with values drawn from a pool of odd ones. It may succeed, or raise an error with a code; Python's own TypeError for arguments that do
not fit a signature counts as one. Anything else is a defect. Read first: `attack`.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import random
import re
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import wrong_models
from tally import Tally

import weft
from weft import DataType, FusionDefinition
from weft.api import schedule
from weft.check import handwritten
from weft.cli.main import main
from weft.errors import InternalError, WeftError
from weft.options import Options, check_option_names, options, split_option_list

Try = Callable[[random.Random], str]


class Strange:
    """An object that answers nothing sensible."""

    def __repr__(self) -> str:
        return "Strange()"


def junk(draw: random.Random, fd: FusionDefinition | None = None) -> Any:
    """One odd value."""
    simple: list[Any] = [
        None, True, False, 0, 1, -1, 2, 3, 7, -5, 2**31, -(2**31), 2**63, 2**70, 0.0, -0.0, 1.5, 1e308, float("inf"), float("-inf"), float("nan"), 1j, "", "x", "0", "\0",
        "a" * 300, "ünï", b"x", (), [], {}, [1], [-1], [0], [-1, -1], [2, 2], [None], [True, None], ["x"], [1.5], [float("inf")], [[1]], {"a": 1}, {1: 2}, {1},
        range(3), DataType.Float, DataType.Int, DataType.Bool, DataType.Half, DataType.BFloat16, DataType.ComplexFloat, torch.float32, torch.int64, torch.float64,
        torch.device("meta"), torch.Size([2, 3]), Strange(), Strange, len, lambda *a: 1, Ellipsis, NotImplemented, slice(1), iter([1]), 10**400,
    ]  # fmt: skip
    choice = draw.random()
    if fd is not None and choice < 0.45:
        known = list(fd.fusion.inputs()) + list(fd.fusion.tensors()) if fd.fusion is not None else []
        if known:
            return draw.choice(known)
    if choice < 0.5:
        return torch.ones(draw.choice([(), (0,), (3,), (2, 3)]))
    if choice < 0.6:
        return [junk(draw, fd) for _ in range(draw.randrange(4))]
    return draw.choice(simple)


def junk_call(draw: random.Random, function: Callable[..., Any], fd: FusionDefinition | None, names: tuple[str, ...] = ()) -> Any:
    args = [junk(draw, fd) for _ in range(draw.choice([0, 1, 1, 2, 2, 2, 3, 4, 5]))]
    kwargs = {draw.choice(names): junk(draw, fd) for _ in range(draw.choice([0, 0, 1, 2]))} if names else {}
    return function(*args, **kwargs)


def started(draw: random.Random) -> FusionDefinition:
    """A definition with a few tensors, left open."""
    fd = FusionDefinition()
    fd.__enter__()
    x = fd.define_tensor([-1, -1], contiguity=True)
    y = fd.define_tensor([-1], contiguity=True, dtype=draw.choice([DataType.Float, DataType.Int, DataType.Half]))
    fd.ops.add(x, 1.0)
    fd.define_tensor([2, 3], dtype=DataType.Bool)
    fd.ops.sum(y, [0])
    fd.define_scalar(DataType.Double)
    return fd


ARGUMENTS = ("dtype", "dims", "dim", "axes", "keepdim", "correction", "eps", "shape", "size", "start", "end", "strides", "pad", "value", "contiguity", "is_cpu", "symbolic_sizes", "stride_order", "axis", "weight", "index")


def of_ops(draw: random.Random) -> str:
    fd = started(draw)
    try:
        name = draw.choice(OPS)
        what = f"fd.ops.{name}"
        junk_call(draw, getattr(fd.ops, name), fd, ARGUMENTS)
        if draw.random() < 0.2:
            str(fd), repr(fd)
    finally:
        fd.__exit__(None, None, None)
    return what


OPS = [name for name in dir(FusionDefinition().ops) if not name.startswith("_")]
METHODS = [name for name in dir(FusionDefinition) if not name.startswith("_") and callable(getattr(FusionDefinition, name)) and name not in ("last_repro_script",)]
SCHEDULE = [name for name in dir(schedule) if not name.startswith("_") and inspect.isfunction(getattr(schedule, name)) and name != "explained"]


def of_definition(draw: random.Random) -> str:
    fd = started(draw)
    try:
        name = draw.choice(METHODS)
        junk_call(draw, getattr(fd, name), fd, ARGUMENTS)
    finally:
        with contextlib.suppress(Exception):
            fd.__exit__(None, None, None)
    return name


def of_schedule(draw: random.Random) -> str:
    fd = started(draw)
    try:
        name = draw.choice(SCHEDULE)
        junk_call(draw, getattr(fd.sched, name), fd)
    finally:
        fd.__exit__(None, None, None)
    return name


_kept: list[FusionDefinition] = []


def of_execution(draw: random.Random) -> str:
    if not _kept:
        with FusionDefinition() as fd:
            x = fd.define_tensor([-1, -1], contiguity=True)
            fd.add_output(fd.ops.mul(fd.ops.add(x, fd.define_scalar(DataType.Double)), 2.0))
        _kept.append(fd)
    fd = _kept[0]
    right = [torch.ones(2, 3), 1.0]
    if draw.random() < 0.7:
        right[draw.randrange(2)] = junk(draw)  # type: ignore[call-overload]
    inputs = right if draw.random() < 0.7 else junk(draw)
    keywords = {draw.choice(["device", "_enable_options", "_disable_options", "check", "seed", "nothing"]): junk(draw)} if draw.random() < 0.3 else {}
    draw.choice([fd.execute, fd.execute, fd.manual_execute, fd.validate])(inputs, **keywords)
    return "execute"


def of_settings(draw: random.Random) -> str:
    names = [field for field in Options.__dataclass_fields__]
    name = draw.choice([*names, "nothing", "", "dump_dirs", "\0"])
    which = draw.randrange(5)
    if which == 0:
        with options(**{name: junk(draw)}):
            pass
    elif which == 1:
        Options().with_values({name: junk(draw)}, f"WEFT_{name.upper()}")
    elif which == 2:
        split_option_list(draw.choice(["a(", "a)b,", "((", ",,", "a(1,2", "\0", "a(b)c", "()", "a" * 1000]))
    elif which == 3:
        check_option_names([str(junk(draw))], [str(junk(draw))])
    else:
        value = junk(draw)
        with options(**{draw.choice(["cache_dir", "dump_dir", "chip", "nvrtc"]): value}):
            from weft.cache import default_cache

            cache = default_cache()
            if cache is not None:
                cache.get("ab" * 32)
            with FusionDefinition() as fd:
                fd.add_output(fd.ops.relu(fd.define_tensor([-1], contiguity=True)))
    return f"setting {name}"


_EXAMPLE = (Path(handwritten.__file__).parent / "examples" / "rmsnorm.toml").read_text()
_VALUES = ["1", "-1", "0", "1e400", "nan", "inf", "true", '"x"', '""', "[]", "[1]", "[-1]", "[1, 2, 3, 4]", "{}", "{a = 1}", "99999999999999999999", '"\\u0000"', "1979-05-27", "[[1]]", "[1.5]", '["a"]']


def of_toml(draw: random.Random) -> str:
    lines = _EXAMPLE.split("\n")
    for _ in range(draw.randrange(1, 4)):
        place = draw.randrange(len(lines))
        kind = draw.randrange(6)
        if kind == 0:
            del lines[place]
        elif kind == 1:
            lines.insert(place, draw.choice(lines))
        elif kind == 2 and "=" in lines[place]:
            lines[place] = lines[place].split("=")[0] + "= " + draw.choice(_VALUES)
        elif kind == 3:
            lines.insert(place, draw.choice([*handwritten.LAUNCH_KEYS, *handwritten.ARGUMENT_KEYS, "new"]) + " = " + draw.choice(_VALUES))
        elif kind == 4 and lines[place]:
            at = draw.randrange(len(lines[place]))
            lines[place] = lines[place][:at] + draw.choice(["\0", '"', "[", "]", "=", "é", "\\", "#", "\t"]) + lines[place][at + draw.randrange(2) :]
        else:
            lines[place] = draw.choice(["[[argument]]", "[argument]", "[launch]", "argument = 1"])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "launch.toml"
        text = "\n".join(lines)
        path.write_bytes(text.encode() if draw.random() < 0.9 else text.encode("utf-16"))
        handwritten.load(Path(handwritten.__file__).parent / "examples" / "rmsnorm.cu", path, is_foreign=True)
    return "toml"


def of_command_line(draw: random.Random) -> str:
    words = ["check", "settings", "--seeds", "--blocks", "--launch", "--trace", "--planted", "-1", "0", "x", "nowhere.py", "nowhere.cu", "nowhere.toml", "/", "", "\0", "--help", "--nothing", "demo", "softmaxx", "--only", "-", "--", "9" * 400]
    given = [draw.choice(words) for _ in range(draw.randrange(4))]
    if "--planted" in given and not {"-1", "0"} & set(given) or "demo" in given[:1] and "softmaxx" not in given:
        return "left out: it runs for long"
    try:
        main(given)
    except SystemExit as end:
        if end.code not in (0, 1, 2, None):
            raise AssertionError(f"exit status {end.code}") from None
    return f"weft {' '.join(given)}"


OWN = str(Path(weft.__file__).parent) + "/"

UNARY = ("__neg__", "__abs__", "__invert__", "__pos__", "__len__", "__iter__", "__bool__", "__index__", "__float__")
BINARY = (
    "__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__truediv__", "__floordiv__", "__mod__", "__pow__", "__and__", "__or__", "__xor__", "__lshift__", "__rshift__",
    "__lt__", "__ge__", "__matmul__", "__getitem__",
)  # fmt: skip


def of_operators(draw: random.Random) -> str:
    """Python's operators and the methods of tensors and scalars of a definition."""
    fd = started(draw)
    try:
        value = draw.choice(list(fd.fusion.inputs()) + list(fd.fusion.tensors()))  # type: ignore[union-attr]
        kind = draw.random()
        if kind < 0.5:
            name = draw.choice([n for n in BINARY if hasattr(value, n)])
            getattr(value, name)(junk(draw, fd))
        elif kind < 0.65:
            name = draw.choice([n for n in UNARY if hasattr(value, n)] or ["__repr__"])
            getattr(value, name)()
        else:
            name = draw.choice([n for n in dir(value) if not n.startswith("_") and callable(getattr(value, n, None))])
            junk_call(draw, getattr(value, name), fd, ARGUMENTS)
    finally:
        with contextlib.suppress(Exception):
            fd.__exit__(None, None, None)
    return name


SURFACES: dict[str, Try] = {
    "ops": of_ops, "definition": of_definition, "schedule": of_schedule, "execution": of_execution, "settings": of_settings, "TOML": of_toml, "command line": of_command_line,
    "operators": of_operators, **{name: functools.partial(made, junk=lambda draw: junk(draw)) for name, made in wrong_models.SURFACES.items()},
}  # fmt: skip


def is_pythons_own(error: TypeError) -> bool:
    """Tell whether the call itself did not fit a signature: nothing of weft's ran, or only what hands on keywords."""
    if re.search(r"unexpected keyword argument|takes .*positional argument|missing \d+ required|multiple values for", str(error)):
        return True
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and Path(trace.tb_frame.f_code.co_filename).name == Path(__file__).name


def attack(surface: str, count: int, seed: int) -> Tally:
    """Make `count` wrong calls on one surface."""
    tally = Tally(f"wrong calls: {surface}")
    for number in range(count):
        draw = random.Random(f"{surface} {seed} {number}")
        note = f"--surface {surface!r} --seed {seed} --number {number}"
        try:
            with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                warnings.simplefilter("ignore")
                SURFACES[surface](draw)
            tally.add("right")
        except InternalError as error:
            tally.add("raw error", f"{note}: {type(error).__name__}: {str(error)[:200]}")
        except WeftError:
            tally.add("coded error")
        except (RuntimeError, ValueError, OverflowError) as error:
            is_torchs = not place_of(error) and not isinstance(error, InternalError)
            tally.add("coded error" if is_torchs else "raw error", f"{note}: {type(error).__name__}: {str(error)[:200]} {place_of(error)}")
        except TypeError as error:
            tally.add("coded error" if is_pythons_own(error) or not place_of(error) else "raw error", f"{note}: TypeError: {str(error)[:200]} {place_of(error)}")
        except Exception as error:  # noqa: BLE001 - every other kind is what is looked for
            tally.add("raw error", f"{note}: {type(error).__name__}: {str(error)[:200]} {place_of(error)}")
    return tally


def place_of(error: BaseException) -> str:
    """Where it was raised, innermost frame of weft first; nothing where none of weft's ran: torch's dispatcher and Python's enums check what they are given."""
    places = []
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename.startswith(OWN) or "warm_path" in code.co_filename:
            places.append(f"{Path(code.co_filename).name}:{trace.tb_lineno}")
        trace = trace.tb_next
    return " < ".join(places[::-1][:4])
