"""Operators and methods of tensors and scalars: each is the op of the same meaning; what cannot be is said with a code."""

from __future__ import annotations

import inspect
import operator
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from weft import DataType, FusionDefinition, UserError

A, B = torch.randn(3, 5), torch.rand(3, 5) + 0.5
TENSOR_CASES = {
    "add": lambda x, y: x + y, "radd": lambda x, y: 2 + x, "sub": lambda x, y: x - y, "rsub": lambda x, y: 1.5 - x, "mul": lambda x, y: x * y, "div": lambda x, y: x / y,
    "rdiv": lambda x, y: 1 / y, "pow": lambda x, y: y**x, "rpow": lambda x, y: 2.0**x, "mod": lambda x, y: x % y, "floordiv": lambda x, y: x // y, "neg": lambda x, y: -x,
    "abs": lambda x, y: abs(x), "lt": lambda x, y: x < y, "ge": lambda x, y: x >= y, "le": lambda x, y: 0.1 <= x, "and": lambda x, y: (x > 0) & (y > 1),
    "or": lambda x, y: (x > 0) | (y > 1), "xor": lambda x, y: (x > 0) ^ (y > 1), "not": lambda x, y: ~(x > 0), "unsqueeze": lambda x, y: x[:, None] * y[None],
    "sum": lambda x, y: x.sum(-1), "to": lambda x, y: x.to(torch.bfloat16), "half": lambda x, y: x.half(), "exp": lambda x, y: x.exp(), "T": lambda x, y: x.T * 1,
    "permute": lambda x, y: x.permute(1, 0) + 0, "expand": lambda x, y: x.expand(2, -1, -1) + 0, "softmax": lambda x, y: x.softmax(-1), "type_as": lambda x, y: (x > 0).type_as(y),
}  # fmt: skip


def test_operators_and_methods_are_torchs() -> None:
    """All of them in one definition: torch's tensors and ours take the same text."""
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor(shape=[-1, -1], contiguity=True) for _ in range(2))
        for name in ("add", "radd", "sub", "rsub", "mul", "div", "rdiv", "pow", "rpow", "mod", "floordiv", "neg", "abs", "lt", "ge", "le", "and", "or", "xor", "not", "to", "half", "exp", "type_as"):
            fd.add_output(TENSOR_CASES[name](x, y))
    names = ["add", "radd", "sub", "rsub", "mul", "div", "rdiv", "pow", "rpow", "mod", "floordiv", "neg", "abs", "lt", "ge", "le", "and", "or", "xor", "not", "to", "half", "exp", "type_as"]
    for name, got in zip(names, fd.execute([A, B])):
        torch.testing.assert_close(got, TENSOR_CASES[name](A, B), msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("name", ["unsqueeze", "sum", "T", "permute", "expand", "softmax"])
def test_methods_that_change_axes_are_torchs(name: str) -> None:
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor(shape=[-1, -1], contiguity=True) for _ in range(2))
        fd.add_output(TENSOR_CASES[name](x, y))
    torch.testing.assert_close(fd.execute([A, B])[0], TENSOR_CASES[name](A, B))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float32])
def test_quotients_are_rounded_down_as_the_exact_ones_are(dtype: torch.dtype) -> None:
    """Of integers that no float holds, and of floats whose rounded quotient is the next whole number."""
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor(shape=[-1], contiguity=True, dtype=dtype) for _ in range(2))
        for value in (x // y, x // 3, x // -0.1 if dtype is torch.float32 else x // -7):
            fd.add_output(value)
    a = torch.tensor([2**24 + 1, -(2**24) - 1, 2**31 - 1, -7, 7, 123456789, 1, -1], dtype=torch.int64).to(dtype)
    b = torch.tensor([1, 1, 7, 2, -2, -1, 3, 3]).to(dtype) * (0.1 if dtype is torch.float32 else 1)
    for got, want in zip(fd.execute([a, b]), (a // b, a // 3, a // -0.1 if dtype is torch.float32 else a // -7), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)


def test_scalars_have_operators() -> None:
    with FusionDefinition() as fd:
        x, s = fd.define_tensor(shape=[-1], contiguity=True), fd.define_scalar(dtype=torch.float64)
        n = x.size(0)
        for value in (x * (s + 1), x / n, x + n // 2, x + (n * 2 - 1), x * -s, s * x):
            fd.add_output(value)
    a = torch.randn(7)
    for got, want in zip(fd.execute([a, 0.5]), (a * 1.5, a / 7, a + 3, a + 13, a * -0.5, a * 0.5)):
        torch.testing.assert_close(got, want)


def test_torch_dtypes_stand_for_data_types() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1], contiguity=True, dtype=torch.bfloat16)
        assert x.dtype() is DataType.BFloat16
        assert fd.define_scalar(2, torch.float32).dtype() is DataType.Float
        assert fd.ops.cast(x, torch.float64).dtype() is DataType.Double
        assert fd.ops.full([2], 1.0, torch.float16).dtype() is DataType.Half
        assert fd.ops.sum(x, [0], dtype=torch.float64).dtype() is DataType.Double
        assert fd.ops.sum(x, torch.float64).dtype() is DataType.Double
        fd.add_output(x)


MISTAKES = [
    ("bool(x > 0)", "W132", "ops.where"), ("x and y", "W132", "&"), ("list(x)", "W133", "index"), ("x[0, 0, 0]", "W134", "at most one index per axis"),
    ("x[[1, 2]]", "W134", "ops.index_select"), ("x[..., ...]", "W134", "one `...`"), ("x.nothing", "W120", "dir(fd.ops)"), ("fd.ops.einsum", "W120", "write ops.matmul"),
    ("x.numpy", "W120", "execute returns"), ("x * torch.ones(2)", "W304", "fd.from_pytorch"), ("fd.ops.exp(torch.ones(2))", "W304", "fd.from_pytorch"),
    ("fd.ops.exp(x, x)", "W101", "exp(x"), ("fd.ops.exp(y=x)", "W101", "exp(x"), ("fd.ops.uniform(0, 1, [2], seed=3)", "W101", "rng_seed"),
    ("x.to('cuda')", "W304", "runs on the device of its inputs"), ("fd.ops.cast(x, 'float')", "W304", "a DataType or a torch dtype"), ("x.sum(keepdim=True)", "W304", "name the axes"),
    ("fd.ops.sum(x, axis=1)", "W304", "sum(x, dims"), ("fd.ops.cumsum()", "W101", "cumsum(arg"), ("fd.ops.clamp(x, 'a', 1)", "W304", "a scalar or a number"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "code", "remedy"), MISTAKES, ids=[m[0] for m in MISTAKES])
def test_a_mistake_has_a_code_a_line_and_a_remedy(text: str, code: str, remedy: str) -> None:
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor(shape=[-1, -1], contiguity=True) for _ in range(2))
        with pytest.raises(UserError) as caught:
            eval(text, {"fd": fd, "x": x, "y": y, "torch": torch})
        message = str(caught.value)
        assert message.startswith(code + ":") and "\n  at   " in message and remedy in message, message
        fd.add_output(x)


def test_an_operator_on_a_definition_that_runs_is_refused() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1], contiguity=True)
        fd.add_output(x + 1)
    fd.execute([torch.ones(3)])
    with pytest.raises(UserError, match="W129: mul: the definition of T0"):
        operator.mul(x, 2)
    with pytest.raises(UserError, match="W123"):
        fd.ops.exp(x)


def test_help_and_signatures_show_arguments() -> None:
    with FusionDefinition() as fd:
        assert list(inspect.signature(fd.ops.uniform).parameters) == ["minval", "maxval", "shape", "rng_seed", "rng_offset", "dtype"]
        assert list(inspect.signature(fd.ops.sum).parameters) == ["arg", "dims", "keepdim", "dtype"]
        assert "approximate" in inspect.signature(fd.ops.gelu).parameters and "torch.nn.functional.gelu" in fd.ops.gelu.__doc__
        assert {"exp", "softmax", "layer_norm"} <= set(dir(fd.ops))


def test_a_failing_block_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError), FusionDefinition() as fd:
        fd.ops.nothing_like_it  # noqa: B018
    assert capsys.readouterr() == ("", "")


def test_the_stubs_are_those_of_the_registry() -> None:
    script = Path(__file__).parents[2] / "docs" / "make_stubs.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_help_names_types_meaning_and_errors_of_every_argument(capsys: pytest.CaptureFixture[str]) -> None:
    fd = FusionDefinition()
    help(fd.ops.uniform)
    text = capsys.readouterr().out
    for part in ("uniform(minval, maxval, shape, *, rng_seed=None", "numbers uniform in", "shape: Sequence[int | Scalar]", "Errors: weft.UserError"):
        assert part in text
    assert inspect.signature(fd.ops.slice).parameters["start_indices"].annotation == "Sequence[int | Scalar]"
    for name in dir(fd.ops):
        op = getattr(fd.ops, name)
        arguments = [p.name for p in inspect.signature(op).parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        assert all(f"    {argument}: " in op.__doc__ for argument in arguments), name
