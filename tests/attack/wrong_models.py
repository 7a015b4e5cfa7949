"""Random wrong calls over the surface for models: functions and modules of weft.nn, recipes of weft.quantize, gradients, operators of torch, patches, torch.compile,
and the functions and classes of the package itself.

Each call is a sensible one in which some arguments were replaced by odd values. What torch says of arguments that only torch has seen counts as a coded error.
Read first: `SURFACES`.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import random
from collections.abc import Callable
from typing import Any

import torch

import weft
from weft import DataType, FusionDefinition
from weft.nn import functional
from weft.quantize import functions as recipes

Try = Callable[[random.Random], str]
Junk = Callable[[random.Random], Any]

_VALUES: dict[str, list[Any]] = {
    "dim": [-1, 0, 1, 5], "dtype": [None, torch.float32, torch.bfloat16, torch.float8_e4m3fn], "eps": [1e-5, 0.0], "p": [0.0, 0.5, 2.0], "num_groups": [1, 2, 3],
    "normalized_shape": [(8,), 8, [4, 8], (7,)], "training": [True, False], "momentum": [0.1, None], "approximate": ["none", "tanh"], "reduction": ["none", "mean", "sum"],
    "size_average": [None], "reduce": [None], "label_smoothing": [0.0, 0.1], "ignore_index": [-100, 0], "log_target": [False, True], "scale": [1.0, None], "inplace": [False],
    "layout": ["rows", "128x4", "columns"], "rounding": ["up", "down"], "_stacklevel": [3], "out": [None], "weight_offset": [0.0, 1.0], "unsqueeze_dim": [1],
    "use_input_stats": [True], "before": ["", "rms_norm"],
}  # fmt: skip


def odd_tensor(draw: random.Random) -> torch.Tensor:
    """A dense tensor of a random shape and type, or an unusual one."""
    shape = draw.choice([(), (0,), (1,), (8,), (4, 8), (4, 8), (2, 4, 8), (2, 4, 8, 8), (3, 0, 2), (4, 128)])
    dtype = draw.choice([torch.float32] * 4 + [torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.bool, torch.complex64, torch.uint8, torch.float8_e4m3fn])
    made = torch.ones(shape).to(dtype)
    kind = draw.random()
    if kind < 0.03:
        return made.to("meta")
    if kind < 0.05:
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    if kind < 0.07:
        return torch.ones(3, 3).to_sparse()
    if kind < 0.10:
        return made.expand(2, *shape)
    if kind < 0.13 and made.ndim > 1:
        return made.transpose(0, -1)
    if kind < 0.18 and made.is_floating_point() and made.element_size() > 1:
        return made.requires_grad_()
    return made


def argument(draw: random.Random, name: str, junk: Junk, odds: float) -> Any:
    """A value for a parameter: mostly a sensible one."""
    if draw.random() < odds:
        return odd_tensor(draw) if draw.random() < 0.5 else junk(draw)
    if name in _VALUES:
        return draw.choice(_VALUES[name])
    if name in ("weight", "bias", "running_mean", "running_var"):
        return draw.choice([None, torch.ones(8), torch.ones(4)])
    if name in ("indices", "target"):
        return torch.zeros(4, dtype=torch.int64)
    if name in ("scale", "global_scale", "amax", "scales"):
        return draw.choice([torch.ones(()), None])
    return torch.ones(4, 8) if draw.random() < 0.7 else odd_tensor(draw)


def call(draw: random.Random, function: Callable[..., Any], junk: Junk) -> Any:
    """Call a function with an argument for each parameter."""
    odds = draw.choice([0.0, 0.1, 0.3, 0.7])
    args, keywords = [], {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            args += [argument(draw, name, junk, odds) for _ in range(draw.randrange(3))]
        elif parameter.kind is parameter.VAR_KEYWORD:
            if draw.random() < 0.1:
                keywords[draw.choice(["nothing", "eps"])] = junk(draw)
        elif parameter.default is not parameter.empty and draw.random() < 0.5:
            continue
        elif parameter.kind is parameter.KEYWORD_ONLY or keywords:
            keywords[name] = argument(draw, name, junk, odds)
        elif len(args) == list(inspect.signature(function).parameters).index(name):
            args.append(argument(draw, name, junk, odds))
        else:
            keywords[name] = argument(draw, name, junk, odds)
    return function(*args, **keywords)


def public(module: Any) -> list[str]:
    return sorted(n for n, f in vars(module).items() if not n.startswith("_") and inspect.isfunction(f) and (f.__module__ or "") == module.__name__ and n not in ("quick", "written"))


FUNCTIONS, RECIPES = sorted(functional.__all__), public(recipes)
MODULES = sorted(n for n in weft.nn.__all__ if inspect.isclass(getattr(weft.nn, n)))


def of_functions(draw: random.Random, junk: Junk) -> str:
    name = draw.choice(FUNCTIONS)
    result = call(draw, getattr(functional, name), junk)
    if draw.random() < 0.3 and isinstance(result, torch.Tensor) and result.requires_grad:
        result.sum().backward()
    return f"nn.functional.{name}"


def of_modules(draw: random.Random, junk: Junk) -> str:
    name = draw.choice(MODULES)
    kind = getattr(weft.nn, name)
    sensible = {"LayerNorm": (8,), "RMSNorm": (8,), "AddRMSNorm": (8,), "GroupNorm": (2, 4), "Softmax": (-1,), "LogSoftmax": (-1,)}.get(name, (4,) if "Norm" in name else ())
    try:
        module = kind(*sensible)
    except TypeError:
        module = kind()
    parameters = list(inspect.signature(module.forward).parameters)
    if draw.random() < 0.2:
        module.train(draw.random() < 0.5)
    if draw.random() < 0.2:  # attributes are as public as arguments
        setattr(module, draw.choice(["eps", "dim", "momentum", "normalized_shape", "reduction", "num_groups", "approximate"]), junk(draw))
    module(*[argument(draw, n, junk, 0.4) for n in parameters[: draw.randrange(1, len(parameters) + 1)]])
    return f"nn.{name}"


def of_recipes(draw: random.Random, junk: Junk) -> str:
    name = draw.choice(RECIPES)
    call(draw, getattr(recipes, name), junk)
    return f"quantize.{name}"


def scaled(operation: str = "mul") -> FusionDefinition:
    """x, s -> f(x) * s."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        s = fd.define_scalar(DataType.Double)
        fd.add_output(fd.ops.mul(getattr(fd.ops, operation)(x, x) if operation == "mul" else getattr(fd.ops, operation)(x), s))
    return fd


_kept: list[Any] = []


def of_gradients(draw: random.Random, junk: Junk) -> str:
    if not _kept:
        _kept.append(scaled().autograd())
    found = _kept[0] if draw.random() < 0.8 else scaled(draw.choice(["floor", "bitwise_not", "sin", "erfcinv"])).autograd()
    given: list[Any] = [torch.ones(3, 4, requires_grad=True), 2.0]
    for place in range(2):
        if draw.random() < 0.5:
            given[place] = odd_tensor(draw) if draw.random() < 0.5 else junk(draw)
    which = draw.randrange(3)
    outputs = found(*given) if which == 0 else found.execute(given) if which == 1 else found.execute(junk(draw))
    result = outputs[0] if isinstance(outputs, (list, tuple)) else outputs
    if result.requires_grad:
        torch.autograd.grad(result, [given[0]], odd_tensor(draw) if draw.random() < 0.5 else torch.ones_like(result))
    return "autograd"


_numbers = itertools.count()


def of_operators(draw: random.Random, junk: Junk) -> str:
    name: Any = f"attacked::op{next(_numbers)}" if draw.random() < 0.6 else draw.choice(["", "a", "a::", "::a", "a::b::c", "aten::add", "1::2", "a b::c", "a::b\0", junk(draw)])
    made = weft.op(name, scaled() if draw.random() < 0.7 else junk(draw))
    if draw.random() < 0.5:
        made(*[odd_tensor(draw) if draw.random() < 0.5 else junk(draw) for _ in range(draw.randrange(4))])
    return "op"


def of_patch(draw: random.Random, junk: Junk) -> str:
    layers = [torch.nn.LayerNorm(8), torch.nn.Softmax(-1), torch.nn.GELU(), torch.nn.SiLU(), torch.nn.BatchNorm1d(8), torch.nn.RMSNorm(8)]
    model: Any = torch.nn.Sequential(*draw.sample(layers, draw.randrange(4))) if draw.random() < 0.8 else junk(draw)
    keywords = {"only": draw.choice(["LayerNorm", "norms", ["softmax"], [], "", junk(draw)])} if draw.random() < 0.5 else {}
    patched = weft.patch(model, **keywords)
    if draw.random() < 0.5:
        model(odd_tensor(draw) if draw.random() < 0.8 else junk(draw))
    patched.undo()
    patched.undo()
    return "patch"


def of_compile(draw: random.Random, junk: Junk) -> str:
    """Options and modes of the backend; the model is fine."""
    from torch._dynamo.exc import BackendCompilerFailed

    keywords: dict[str, Any] = {}
    if draw.random() < 0.7:
        names = ["strict", "emulate", "debug", "min_ops", "nothing", "", "graphs"]
        keywords["options"] = {draw.choice(names): junk(draw) for _ in range(draw.randrange(3))} if draw.random() < 0.8 else junk(draw)
    else:
        keywords["mode"] = draw.choice(["default", "reduce-overhead", "max-autotune", "", "fast"])
    torch._dynamo.reset()
    from weft.frontend.backend import backend

    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) * 2.0

    given = draw.choice([torch.ones(3, 4), torch.ones(()), torch.ones(3, dtype=torch.int64)])
    try:
        result = torch.compile(model, backend=lambda gm, inputs: backend(gm, inputs, **keywords))(given)
    except BackendCompilerFailed as failed:
        raise failed.inner_exception from None
    assert torch.equal(result, model(given))
    return "torch.compile"


def is_attacked(name: str) -> bool:
    """Functions and classes, but for errors, and for nodes of the graph, which definitions make."""
    found = getattr(weft, name)
    is_left_out = inspect.isclass(found) and (issubclass(found, BaseException) or found.__module__ in ("weft.ir.values", "weft.ir.graph_ops"))
    return callable(found) and not is_left_out and name not in ("op", "patch", "FusionDefinition", "explain")


PACKAGE = sorted(name for name in weft.__all__ if is_attacked(name))


def of_package(draw: random.Random, junk: Junk) -> str:
    """Functions and classes of `weft` itself, and methods of what these make."""
    name = draw.choice(PACKAGE)
    values = [lambda: junk(draw), lambda: odd_tensor(draw), scaled, lambda: scaled().fusion, lambda: [torch.ones(2, 3), 2.0]]
    made = getattr(weft, name)(*[draw.choice(values)() for _ in range(draw.choice([0, 1, 1, 1, 2, 2, 3]))])
    methods = [n for n in dir(made) if not n.startswith("_") and callable(getattr(made, n, None))] if type(made).__module__.startswith("weft") else []
    if methods:
        method = draw.choice(methods)
        name += f".{method}"
        with contextlib.suppress(StopIteration):
            getattr(made, method)(*[draw.choice(values)() for _ in range(draw.choice([0, 1, 1, 2, 3]))])
    return name


SURFACES: dict[str, Callable[[random.Random, Junk], str]] = {
    "nn.functional": of_functions, "nn modules": of_modules, "quantize": of_recipes, "autograd": of_gradients, "op": of_operators, "patch": of_patch,
    "torch.compile": of_compile, "package": of_package,
}  # fmt: skip
