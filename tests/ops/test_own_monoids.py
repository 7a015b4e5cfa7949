"""Monoids that a program adds: over expanded axes too, and an oracle that reads the definition as it was written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from weft import DataType, FusionDefinition
from weft.api.validation import ResultMismatch
from weft.dtypes import CUDA_NAMES
from weft.errors import UserError
from weft.expr import EVALUATORS
from weft.ops.monoids import MONOIDS, Monoid, MonoidNotWhole, define_monoid
from weft.ops.promotion import Rule
from weft.ops.registry import OPS, OpDef, define



def logaddexp() -> Monoid:
    return Monoid(
        "logsumexp_", "logaddexp_", identity_text=lambda dtype: f"-weft::infinity<{CUDA_NAMES[dtype]}>()", identity_value=lambda dtype: float("-inf"),
        reduce=lambda x, dims, keepdim: torch.logsumexp(x, dims, keepdim=keepdim), is_idempotent=False,
        repeat=lambda o, x, n: o.add(x, o.log(o.cast(n, dtype=DataType.Double))), has_rounding=True,
    )  # fmt: skip


@pytest.fixture
def added() -> Iterator[Monoid]:
    text = "({0} == {1} ? {0} + ({T})0.69314718055994531 : weft::maximum({0}, {1}) + weft::log1p(weft::exp(-weft::abs({0} - {1}))))"
    define(OpDef("logaddexp_", 2, Rule.floating, {"real": text}, torch.logaddexp, blocks=("math",), ulp=4))
    yield define_monoid(logaddexp())
    del MONOIDS["logsumexp_"], OPS["logaddexp_"], EVALUATORS["logaddexp_"]


def over_an_expanded_axis(rows: int) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1], contiguity=True, dtype=DataType.Float)
        fd.add_output(fd.ops.logsumexp_(fd.ops.expand(fd.ops.broadcast(x, [True, False]), [rows, x.size(0)]), [0, 1]))
        fd.add_output(fd.ops.logsumexp_(fd.ops.expand(fd.ops.broadcast(x, [True, False]), [rows, x.size(0)]), [0]))
    return fd


@pytest.mark.parametrize("columns", [1, 5, 77, 1030])
def test_a_monoid_of_ones_own_folds_expanded_axes(added: Monoid, columns: int) -> None:
    x = torch.randn(columns, generator=torch.Generator().manual_seed(columns))
    wanted = x.double().expand(8, columns)
    total, each = over_an_expanded_axis(8).validate([x])
    torch.testing.assert_close(total.double(), torch.logsumexp(wanted, (0, 1)), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(each.double(), torch.logsumexp(wanted, 0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("wrong", [dict(is_idempotent=True, repeat=None), dict(repeat=lambda o, x, n: o.mul(x, n))])
def test_validate_reads_the_definition_as_it_was_written(added: Monoid, wrong: dict) -> None:
    """A monoid that repeats wrongly gives a wrong graph; a reference that ran this graph would agree with it."""
    MONOIDS["logsumexp_"] = replace(added, **wrong)
    with pytest.raises(ResultMismatch, match="instead of"):
        over_an_expanded_axis(8).validate([torch.randn(77)])


def test_an_axis_that_a_call_expands_repeats_too(added: Monoid) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=[None, True], dtype=DataType.Float)
        fd.add_output(fd.ops.logsumexp_(x, [0]))
        fd.add_output(fd.ops.var_mean(x, [0], correction=0, keepdim=False)[0])
    x = torch.randn(9).expand(4, 9)
    lse, variance = fd.validate([x])
    torch.testing.assert_close(lse, torch.logsumexp(x, 0))
    assert torch.equal(variance, torch.zeros(9))


def test_a_monoid_has_to_say_how_it_repeats() -> None:
    with pytest.raises(MonoidNotWhole, match="it does not say what n equal values combine to"):
        replace(logaddexp(), repeat=None)
    with pytest.raises(MonoidNotWhole, match="it is idempotent and also has `repeat`"):
        replace(logaddexp(), is_idempotent=True)


def test_names_of_monoids_are_looked_up() -> None:
    with FusionDefinition() as fd, pytest.raises(UserError, match="no op 'logsumexp_'"):
        fd.ops.logsumexp_(fd.define_tensor(shape=[-1], contiguity=True, dtype=DataType.Float))
