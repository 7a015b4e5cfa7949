"""Composites: each formula against torch's function of that name in float64, and some of them in kernels."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fusion_check import poisoned_outputs

from weft import DataType, FusionDefinition, UserError
from weft.ops.composites import COMPOSITES
from weft.ops.functions import FUNCTIONS
from weft.ops.instead import INSTEAD
from weft.ops.names import UnknownName, all_names, function_of
from weft.reference.interpreter import evaluate

X = torch.randn(5, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 2
X4 = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
Y = torch.randn(5, 7, generator=torch.Generator().manual_seed(3), dtype=torch.float64).sigmoid()
W, B, C = Y[0], X[1], Y[0, :3]
TARGET = torch.tensor([0, 6, -100, 3, 3])
_tensors = {"X": X, "X4": X4, "Y": Y, "W": W, "B": B, "C": C, "TARGET": TARGET}

# name -> (arguments of the composite; strings name tensors, and torch's function of the same)
CASES: dict[str, tuple[tuple[Any, ...], Callable[..., Any]]] = {
    "softmax": (("X", 0), F.softmax), "log_softmax": (("X", -1), F.log_softmax), "softmin": (("X", 1), F.softmin), "logsumexp": (("X", [1]), torch.logsumexp),
    "mean": (("X4", [0, 2], True), torch.mean), "std": (("X4", [1]), lambda x, d: torch.std(x, d)), "amax": (("X", [0]), torch.amax), "amin": (("X", [1], True), torch.amin),
    "argmax": (("X", 1), torch.argmax), "argmin": (("X", 0, True), torch.argmin),
    "any": (("X", [1]), torch.any), "all": (("X", [0], True), torch.all), "norm": (("X", 3, [1]), lambda x, p, d: torch.linalg.vector_norm(x, p, d)),
    "layer_norm": (("X", [7], "W", "B"), F.layer_norm), "rms_norm": (("X", [7], "W"), F.rms_norm), "instance_norm": (("X4", "C", "C"), lambda x, w, b: F.instance_norm(x, None, None, w, b)),
    "batch_norm": (("X4", None, None, "C", "C", True), lambda x, m, v, w, b, t: F.batch_norm(x, m, v, w, b, t)), "normalize": (("X", 2, 1), F.normalize),
    "unsqueeze": (("X", 1), torch.unsqueeze), "transpose": (("X4", 1, -1), torch.transpose), "broadcast_to": (("W", [4, 7]), torch.broadcast_to),
    "zeros_like": (("X",), torch.zeros_like), "ones_like": (("X",), torch.ones_like), "full_like": (("X", 2.5), torch.full_like), "detach": (("X",), lambda x: x),
    "gelu": (("X", "tanh"), lambda x, a: F.gelu(x, approximate=a)), "relu6": (("X",), F.relu6), "leaky_relu": (("X", 0.2), F.leaky_relu), "elu": (("X", 1.5), F.elu),
    "celu": (("X", 1.5), F.celu), "selu": (("X",), F.selu), "softplus": (("X", 2.0, 3.0), F.softplus), "logsigmoid": (("X",), F.logsigmoid), "mish": (("X",), F.mish),
    "hardtanh": (("X", -0.5, 0.25), F.hardtanh), "hardsigmoid": (("X",), F.hardsigmoid), "hardswish": (("X",), F.hardswish), "softsign": (("X",), F.softsign),
    "tanhshrink": (("X",), F.tanhshrink), "softshrink": (("X", 0.3), F.softshrink), "hardshrink": (("X", 0.3), F.hardshrink), "square": (("X",), torch.square),
    "swiglu": (("X", "Y"), lambda a, b: F.silu(a) * b), "geglu": (("X", "Y"), lambda a, b: F.gelu(a, approximate="tanh") * b), "geglu_exact": (("X", "Y"), lambda a, b: F.gelu(a) * b),
    "reglu": (("X", "Y"), lambda a, b: F.relu(a) * b), "mse_loss": (("X", "Y"), F.mse_loss), "l1_loss": (("X", "Y", "sum"), lambda a, b, r: F.l1_loss(a, b, reduction=r)),
    "smooth_l1_loss": (("X", "Y", "mean", 0.5), lambda a, b, r, beta: F.smooth_l1_loss(a, b, beta=beta)), "huber_loss": (("X", "Y", "mean", 0.5), lambda a, b, r, d: F.huber_loss(a, b, delta=d)),
    "binary_cross_entropy_with_logits": (("X", "Y"), F.binary_cross_entropy_with_logits), "kl_div": (("X", "Y", "batchmean"), lambda a, b, r: F.kl_div(a, b, reduction=r)),
    "logaddexp": (("X", "Y"), torch.logaddexp), "hypot": (("X", "Y"), torch.hypot), "digamma": (("X",), torch.digamma), "trigamma": (("X",), lambda x: sum((x + k) ** -2 for k in range(10)) + torch.special.zeta(2.0, x + 10)), "copysign": (("Y", "X"), torch.copysign), "rounded_mul": (("X", "Y"), torch.mul),
    "cross_entropy": (("X", "TARGET", "W", -100, "mean", 0.1), lambda x, t, w, i, r, s: F.cross_entropy(x, t, w, label_smoothing=s)),
}  # fmt: skip


def defined(name: str, args: tuple[Any, ...], dtype: torch.dtype = torch.float64, **kwargs: Any) -> tuple[FusionDefinition, list[torch.Tensor]]:
    """Return the definition of one composite, and its inputs."""
    inputs: list[torch.Tensor] = []
    with FusionDefinition() as fd:
        values = []
        for arg in args:
            if isinstance(arg, str) and arg in _tensors:
                inputs.append(_tensors[arg] if arg == "TARGET" else _tensors[arg].to(dtype))
                tensor = inputs[-1]
                arg = fd.define_tensor(shape=[-1] * tensor.ndim, contiguity=True, dtype=tensor.dtype)
            values.append(arg)
        fd.add_output(getattr(fd.ops, name)(*values, **kwargs))
    return fd, inputs


@pytest.mark.parametrize("name", CASES)
def test_a_composite_is_torchs_function(name: str) -> None:
    args, reference = CASES[name]
    fd, inputs = defined(name, args)
    (got,) = evaluate(fd.fusion, inputs, precision="double")  # type: ignore[arg-type]
    want = reference(*(_tensors.get(a, a) if isinstance(a, str) else a for a in args))
    torch.testing.assert_close(got, want, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("name", ["softmax", "layer_norm", "rms_norm", "gelu", "mean", "swiglu"])
def test_a_composite_of_bfloat16_returns_what_torch_returns(name: str) -> None:
    args, reference = CASES[name]
    fd, inputs = defined(name, args, torch.bfloat16)
    (got,) = fd.execute(inputs)
    replaced = iter(inputs)
    want = reference(*((next(replaced).double() if a != "TARGET" else next(replaced)) if isinstance(a, str) and a in _tensors else a for a in args))
    assert got.dtype is torch.bfloat16
    torch.testing.assert_close(got.double(), want, atol=2**-8, rtol=2**-7)  # one rounding of the result, and one of nothing else


@pytest.mark.parametrize("sizes", [(3, 0), (0, 4), (5, 300), (1, 1)])
def test_any_and_all_of_whatever_is_there(sizes: tuple[int, int]) -> None:
    """Of nothing, any is false and all is true."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        for dims in ([1], [0], [0, 1]):
            fd.add_output(fd.ops.any(x, dims))
            fd.add_output(fd.ops.all(fd.ops.sub(1.0, x), dims))
    a = torch.zeros(sizes)
    a[:2, -1:] = 1.0
    wanted = [f(b, d) for d in (1, 0, (0, 1)) for f, b in ((torch.any, a), (torch.all, 1 - a))]
    for got, want in zip(fd.execute([a]), wanted, strict=True):
        assert got.dtype is torch.bool and torch.equal(got, want)


@pytest.mark.parametrize("sizes", [(7, 33), (1, 1), (0, 5), (64, 1)])
def test_the_bits_of_numbers(sizes: tuple[int, int]) -> None:
    """Both ways, in one kernel and back; of other types there is no number of as many bits."""
    with FusionDefinition() as fd:
        x, n = (fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=d) for d in (torch.float32, torch.int32))
        fd.add_output(fd.ops.bitcast(x))
        fd.add_output(fd.ops.bitcast(fd.ops.bitwise_or(n, 1)))
        fd.add_output(fd.ops.bitcast(fd.ops.bitwise_and(fd.ops.bitcast(x), -65536)))
    a = torch.randn(sizes)
    b = torch.randint(-(2**31), 2**31, sizes).to(torch.int32)
    with poisoned_outputs():
        got = fd.execute([a, b])
    wanted = [a.view(torch.int32), (b | 1).view(torch.float32), (a.view(torch.int32) & -65536).view(torch.float32)]
    for out, want in zip(got, wanted, strict=True):
        assert out.dtype is want.dtype and torch.equal(out.view(torch.int32), want.view(torch.int32))
    fd.validate([a, b])
    with FusionDefinition() as fd, pytest.raises(Exception, match="Float or Int32"):
        fd.ops.bitcast(fd.define_tensor(shape=[-1], contiguity=True, dtype=torch.float64))


def test_every_composite_has_a_case() -> None:
    elsewhere = {"bitcast", "flatten", "view", "zeros", "ones", "arange", "masked_fill", "dropout", "causal_mask"}
    assert set(COMPOSITES) - set(CASES) == elsewhere


def test_hints_name_what_is_missing_only() -> None:
    assert not set(INSTEAD) & (set(FUNCTIONS) | set(COMPOSITES))


def test_masks_and_factories() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        mask = fd.ops.causal_mask(x.size(0), x.size(1))
        fd.add_output(fd.ops.masked_fill(x, ~mask, -math.inf))
        fd.add_output(x + fd.ops.arange(x.size(1), dtype=torch.float32))
    a = torch.randn(3, 5)
    masked, shifted = fd.execute([a])
    torch.testing.assert_close(masked, a.masked_fill(torch.ones(3, 5).tril(2) == 0, -math.inf))
    torch.testing.assert_close(shifted, a + torch.arange(5.0))


def test_dropout_keeps_the_mean_and_is_nothing_outside_of_training() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1], contiguity=True)
        assert fd.ops.dropout(x, 0.5, False) is x
        fd.add_output(fd.ops.dropout(x, 0.25))
    (y,) = fd.execute([torch.ones(20000)])
    assert y.unique().tolist() == pytest.approx([0.0, 1 / 0.75])
    assert abs(float((y == 0).float().mean()) - 0.25) < 0.02  # 6.5 standard deviations of 20000 draws


def test_integers_and_wrong_choices_are_refused_by_name() -> None:
    with FusionDefinition() as fd:
        x, i = fd.define_tensor(shape=[-1, 4], contiguity=True), fd.define_tensor(shape=[-1, 4], contiguity=True, dtype=DataType.Int)
        for call in (
            lambda: fd.ops.softmax(i, -1), lambda: fd.ops.gelu(x, "erf"), lambda: fd.ops.mse_loss(x, x, "avg"), lambda: fd.ops.layer_norm(x, [5]),
            lambda: fd.ops.dropout(x, 2.0), lambda: fd.ops.norm(x, -1), lambda: fd.ops.mean(i), lambda: fd.ops.softmax(3.0, 0),
        ):  # fmt: skip
            with pytest.raises(UserError, match="W3.*\n.*at .*test_composites.py"):
                call()
        fd.add_output(x)


def names_of_torch() -> list[str]:
    """Functions of torch and torch.nn.functional, and methods of tensors."""
    found = {n for n in dir(torch._C._VariableFunctions) if not n.startswith("_")}
    found |= {n for n in dir(F) if n[0].islower() and callable(getattr(F, n)) and getattr(F, n).__module__.startswith("torch.nn.functional")}
    return sorted(found | {n for n in dir(torch.Tensor) if not n.startswith("_") and callable(getattr(torch.Tensor, n))})


def test_every_name_of_torch_is_an_op_or_answered_with_what_to_write() -> None:
    for name in names_of_torch():
        try:
            function_of(name)
        except UnknownName as error:
            assert error.values["remedy"].startswith("write "), (name, error.values["remedy"])
    with pytest.raises(UnknownName, match="did you mean softmax"):
        function_of("softmx")


def test_what_to_write_exists() -> None:
    for name, text in INSTEAD.items():
        written = set(re.findall(r"ops\.(\w+)", text))
        assert written <= set(all_names()) | {n for n in written if function_of(n)}, name
        assert all(hasattr(DataType, n) for n in re.findall(r"DataType\.(\w+)", text)), name
