"""Which values are seen in more than 16 bits."""

from __future__ import annotations

import pytest
import torch

from weft import DataType, FusionDefinition
from weft.analysis.precision import wide_tensors
from weft.arch import H200
from weft.compiler import compile_program, prepare, propose


def texts_of(define) -> list[str]:  # type: ignore[no-untyped-def]
    """Names of the ops whose result is seen in more than 16 bits."""
    with FusionDefinition() as fd:
        define(fd)
    fusion = prepare(fd.fusion).fusion
    wide = wide_tensors(fusion)
    return [e.op_name for e in fusion.exprs() if e.outputs[0] in wide]


def vector(fd: FusionDefinition, dtype: DataType = DataType.BFloat16):  # type: ignore[no-untyped-def]
    return fd.define_tensor(shape=[-1], contiguity=True, dtype=dtype)


def test_what_only_reaches_a_narrow_output_is_narrow() -> None:
    def define(fd: FusionDefinition) -> None:
        e = fd.ops.exp(fd.ops.cast(vector(fd), dtype=DataType.Float))
        fd.add_output(fd.ops.cast(e, dtype=DataType.BFloat16))

    assert texts_of(define) == []


def test_a_second_output_in_float_makes_what_it_needs_wide() -> None:
    def define(fd: FusionDefinition) -> None:
        e = fd.ops.exp(fd.ops.cast(vector(fd), dtype=DataType.Float))
        fd.add_output(fd.ops.cast(fd.ops.sin(e), dtype=DataType.Half))
        fd.add_output(fd.ops.cos(e))

    assert texts_of(define) == ["cast", "exp", "cos"]


def test_comparisons_and_integers_may_turn_on_the_last_bit() -> None:
    def define(fd: FusionDefinition) -> None:
        x = fd.ops.cast(vector(fd), dtype=DataType.Float)
        chosen = fd.ops.where(fd.ops.gt(fd.ops.exp(x), 1.0), fd.ops.neg(x), fd.ops.cos(x))
        fd.add_output(fd.ops.cast(chosen, dtype=DataType.BFloat16))

    assert "exp" in texts_of(define)
    assert not {"neg", "cos"} & set(texts_of(define))


@pytest.mark.parametrize("steep", ["floor", "ceil", "round", "trunc", "frac", "sign", "sin", "cos", "tan"])
def test_steep_ops_may_turn_on_the_last_bit(steep: str) -> None:
    def define(fd: FusionDefinition) -> None:
        x, y = (fd.ops.cast(vector(fd), dtype=DataType.Float) for _ in range(2))
        whole = getattr(fd.ops, steep)(fd.ops.div(x, y))
        fd.add_output(fd.ops.cast(fd.ops.add(whole, fd.ops.exp(y)), dtype=DataType.BFloat16))

    assert "div" in texts_of(define)
    assert "exp" not in texts_of(define)


@pytest.mark.parametrize("steep", ["fmod", "remainder"])
def test_remainders_may_turn_on_the_last_bit(steep: str) -> None:
    def define(fd: FusionDefinition) -> None:
        x, y = (fd.ops.cast(vector(fd), dtype=DataType.Float) for _ in range(2))
        fd.add_output(fd.ops.cast(getattr(fd.ops, steep)(fd.ops.div(x, y), 1.0), dtype=DataType.Half))

    assert "div" in texts_of(define)


def test_whole_quotients_round_to_themselves() -> None:
    with FusionDefinition() as fd:
        x, y = (fd.ops.cast(vector(fd), dtype=DataType.Float) for _ in range(2))
        fd.add_output(fd.ops.cast(fd.ops.floor(fd.ops.div(x, y)), dtype=DataType.BFloat16))
    divisors = torch.arange(1, 129).repeat_interleave(100)
    quotients = torch.randint(-255, 256, divisors.shape).clamp(-255, 255)
    products = divisors * quotients
    is_exact = products.bfloat16().long() == products
    inputs = [products[is_exact].bfloat16(), divisors[is_exact].bfloat16()]
    assert torch.equal(fd.execute(inputs)[0].long(), quotients[is_exact])


def test_rounding_on_the_way_hides_what_was_before() -> None:
    def define(fd: FusionDefinition) -> None:
        e = fd.ops.cast(fd.ops.exp(fd.ops.cast(vector(fd), dtype=DataType.Float)), dtype=DataType.Half)
        fd.add_output(fd.ops.sin(fd.ops.cast(e, dtype=DataType.Float)))

    assert "exp" not in texts_of(define)
    assert "sin" in texts_of(define)


def test_the_kernel_takes_the_narrow_formula_only_where_it_may() -> None:
    for dtype, is_narrow in ((DataType.BFloat16, True), (DataType.Float, False)):
        with FusionDefinition() as fd:
            e = fd.ops.exp(fd.ops.cast(vector(fd), dtype=DataType.Float))
            fd.add_output(fd.ops.cast(e, dtype=dtype) if is_narrow else e)
        sizes = {a.sym: 1000 for t in fd.fusion.inputs() for a in t.get_logical_domain()}
        program = compile_program(fd.fusion, propose(fd.fusion, sizes, {}, H200), DataType.Int32, name="exponential")
        assert ("weft::narrow_exp" in program.text) is is_narrow


def test_exponentials_below_a_maximum_that_only_sums_read_may_be_approximate() -> None:
    """Not so where their argument is not below a maximum, or where something else reads them."""
    from weft.analysis.precision import shares_of_sums

    def shares(*, is_below: bool, is_returned: bool) -> int:
        with FusionDefinition() as fd:
            x = fd.define_tensor([8, 16], dtype=DataType.Float)
            largest = fd.ops.broadcast(fd.ops.max(x, [1]), [False, True])
            e = fd.ops.exp(fd.ops.sub(x, largest) if is_below else x)
            fd.add_output(fd.ops.sum(e, [1]))
            fd.add_output(e if is_returned else largest)
        return len(shares_of_sums(fd.fusion))

    assert shares(is_below=True, is_returned=False) == 1
    assert shares(is_below=True, is_returned=True) == shares(is_below=False, is_returned=False) == 0
