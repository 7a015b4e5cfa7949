"""The checks of a call's inputs: whole messages, and what is bound where strides mean nothing."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from calls_on_cpu import add, define, relu, tensor

from weft import DataType, FusionDefinition
from weft.runtime import binding
from weft.runtime.binding import Bound, InputPlan, alignment_bytes, span_elems


def bind(fd: FusionDefinition, *values: Any) -> Bound:
    from weft.analysis.extents import canonicalize_extents

    return InputPlan(fd.fusion, canonicalize_extents(fd.fusion.clone()[0])).bind(values)  # type: ignore[union-attr,arg-type]


def message(fd: FusionDefinition, *values: Any) -> str:
    """The first line of the error that these values raise, and its fix."""
    with pytest.raises(RuntimeError) as caught:
        bind(fd, *values)
    lines = str(caught.value).splitlines()
    first = re.sub(r", at [^ ]+:[0-9]+: .*", "", lines[0])  # where the user wrote it
    return f"{first.partition(': ')[2]} | {lines[-1].partition('fix: ')[2]}"


def numbers(bound: Bound) -> dict[str, Any]:
    return {str(sym): value for sym, value in bound.env.items()}


X = torch.zeros(4, 8)


def test_sizes_are_bound_by_dimension() -> None:
    assert numbers(bind(relu(), X)) == {"T0.size[0]": 4, "T0.size[1]": 8}


def test_strides_of_strided_axes_are_bound_by_position() -> None:
    bound = bind(relu(contiguity=False), torch.zeros(8, 16)[::2, ::2])
    assert numbers(bound) == {"T0.size[0]": 4, "T0.size[1]": 8, "T0.stride[0]": 32, "T0.stride[1]": 2}


def test_positions_are_those_of_memory_when_the_order_differs() -> None:
    fd = define(lambda fd: fd.add_output(fd.ops.relu(fd.define_tensor(shape=[-1, -1], contiguity=[False, True], stride_order=[0, 1]))))
    assert numbers(bind(fd, torch.zeros(8, 16)[:, :4].t())) == {"T0.size[0]": 4, "T0.size[1]": 8, "T0.stride[0]": 16}


def test_scalars_are_converted_to_their_type() -> None:
    def build(fd: FusionDefinition) -> None:
        fd.add_output(fd.ops.add(fd.ops.mul(tensor(fd, 1), fd.define_scalar(DataType.Double)), fd.define_scalar(DataType.Int)))

    values = bind(define(build), torch.zeros(3), 2, True).env.values()
    assert [(type(v), v) for v in values] == [(int, 3), (float, 2.0), (int, 1)]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((X,), "Expected 2 inputs (T0_g, T1_g), but got 1 (Inputs do not match.) | pass one value per define_tensor and define_scalar, in the order of the definition"),
        ((X, 2), "Expected input 1, T1_g_float[iS2{i3}, iS3{i4}], to be an at::Tensor but got scalar 2 | pass a torch.Tensor of dtype DataType.Float"),
        (
            (X, X.half()),
            "Expected input 1, T1_g_float[iS2{i3}, iS3{i4}], to be bound to a tensor of dtype float, but got a tensor of dtype __half"
            " | pass tensor.to(torch.float32), or define the input with the dtype of the tensor",
        ),
        (
            (X, X[0]),
            "Expected input 1, T1_g_float[iS2{i3}, iS3{i4}], to be bound to a tensor of rank 2, but got a tensor of rank 1"
            " | pass a tensor of that rank, or define the input with one size per dimension",
        ),
        (
            (X, torch.zeros(4, 16)[:, :8]),
            "Expected input 1, T1_g_float[iS2{i3}, iS3{i4}], to have stride 8 in dimension 0 (the definition says it is contiguous), but got 16;"
            " sizes [4, 8], strides [16, 1] (Tried to bind to a constant value: 8 as 16)"
            " | pass tensor.contiguous(), or define that dimension with contiguity False",
        ),
        (
            (X, torch.zeros(4, 9)),
            "dimension 1 of input 0, T0_g, is 8, and dimension 1 of input 1, T1_g, is 9 (Tried to bind to a value: 8 as 9); add makes them equal"
            " | pass tensors whose sizes agree there",
        ),
        (
            (X, X.to("meta")),
            "Expected input 1, T1_g_float[iS2{i3}, iS3{i4}], to be a dense tensor on a GPU or the CPU, but got a tensor on device meta"
            " | move it to a GPU",
        ),
        (
            (X, X.to_sparse()),
            "Expected input 1, T1_g_float[iS2{i3}, iS3{i4}], to be a dense tensor on a GPU or the CPU, but got a tensor of layout torch.sparse_coo"
            " | pass tensor.to_dense()",
        ),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_message(values: tuple[Any, ...], expected: str) -> None:
    assert message(add(), *values) == expected


@pytest.mark.parametrize("given", ["bool_(True)", "int8(-3)", "uint64(3)", "float16(0.5)", "float32(0.5)", "complex64(1+2j)", "complex128(1-2j)"])
def test_numbers_of_numpy_are_numbers_of_python(given: str) -> None:
    """As scalar inputs, as constants and as operands; complex ones keep their imaginary part."""
    import numpy as np

    value = eval(f"np.{given}", {"np": np})
    x = torch.randn(3, dtype=torch.complex64)
    kind = {bool: DataType.Bool, int: DataType.Int, float: DataType.Double, complex: DataType.ComplexDouble}[type(value.item())]

    def build(fd: FusionDefinition) -> None:
        z = fd.define_tensor([-1], dtype=DataType.ComplexFloat)
        for scalar in (fd.define_scalar(kind), fd.define_scalar(value), value):
            fd.add_output(fd.ops.mul(z, scalar))

    fd = define(build)
    for _ in range(2):
        for output in fd.execute([x, value]):
            torch.testing.assert_close(output, x * value.item())


def test_message_for_a_tensor_where_a_scalar_is_due() -> None:
    fd = define(lambda fd: fd.add_output(fd.ops.mul(tensor(fd, 1), fd.define_scalar(DataType.Double))))
    assert message(fd, X[0], X[0]).startswith("Expected input 1, d2, to be a scalar but got float tensor of rank 1")
    assert message(fd, X[0], 2 + 1j).startswith("Scalar value (2,1) is not compatible with the expected data type: double. (input 1, d2)")
    assert message(fd, X[0], "x").startswith("Expected input 1, d2, to be a scalar but got str 'x'")


def test_message_for_a_constant_size() -> None:
    fd = define(lambda fd: fd.add_output(fd.ops.relu(fd.define_tensor(shape=[-1, 8], contiguity=True))))
    assert message(fd, torch.zeros(4, 9)).startswith("Expected input 0, T0_g_float[iS0{i0}, iS1{8}], to have size 8 in dimension 1, but got 9; its sizes are [4, 9]")


def test_message_for_a_broadcast_axis_that_is_none() -> None:
    fd = define(lambda fd: fd.add_output(fd.ops.relu(fd.define_tensor(shape=[-1, 1], contiguity=True))))
    assert message(fd, torch.zeros(4, 9)).endswith("define that dimension with size -1; 1 says that it is broadcast")


def test_message_for_an_expanded_axis_with_a_stride() -> None:
    fd = define(lambda fd: fd.add_output(fd.ops.relu(fd.define_tensor(shape=[-1, -1], contiguity=[True, None]))))
    assert "(the definition says it is expanded: it has expanded extent but input tensor has size 8), but got 1" in message(fd, X)
    assert numbers(bind(fd, torch.zeros(4, 1).expand(4, 9)))["T0.size[1]"] == 9


def test_a_cpu_scalar_must_be_one() -> None:
    fd = define(lambda fd: fd.add_output(fd.ops.mul(tensor(fd, 1), fd.define_tensor(shape=[], contiguity=[], is_cpu=True))))
    assert numbers(bind(fd, X[0], torch.tensor(2.5)))["T1.value"] == 2.5
    assert "to be bound to a CPU or meta scalar tensor, but got a tensor of rank 0 on device meta" in message(fd, X[0], torch.tensor(2.5).to("meta"))


def test_a_lazy_conjugate_is_refused() -> None:
    negated = torch.zeros(4, dtype=torch.cfloat).conj().imag
    assert negated.is_neg()
    assert "whose conjugation or negation is still to be done" in message(relu(1, contiguity=False), negated)


# ---------------------------------------------------------------- strides that mean nothing
@pytest.mark.parametrize("strides", [(8, 1), (999, 1), (1, 1)])
def test_the_stride_of_an_axis_of_size_1_is_free(strides: tuple[int, int]) -> None:
    assert numbers(bind(relu(), torch.zeros(999).as_strided((1, 8), strides))) == {"T0.size[0]": 1, "T0.size[1]": 8}


def test_a_contiguous_axis_over_a_strided_axis_of_size_1_keeps_its_stride() -> None:
    """The kernel computes the outer stride from the inner one, so the inner one is bound to what fits."""
    fd = define(lambda fd: fd.add_output(fd.ops.relu(fd.define_tensor(shape=[-1, -1, -1], contiguity=[True, False, True]))))
    bound = bind(fd, torch.zeros(200).as_strided((4, 1, 8), (16, 3, 1)))
    assert numbers(bound)["T0.stride[1]"] == 16


def test_an_empty_tensor_has_no_strides() -> None:
    assert numbers(bind(relu(), torch.zeros(9).as_strided((4, 0), (77, 5)))) == {"T0.size[0]": 4, "T0.size[1]": 0}


@pytest.mark.parametrize(("pointer", "expected"), [(0, 32), (512, 32), (8, 8), (4, 4), (2, 2), (1, 1), (24, 8), (1040, 16), (1056, 32)])
def test_alignment(pointer: int, expected: int) -> None:
    assert alignment_bytes(pointer) == expected


@pytest.mark.parametrize(("sizes", "strides", "expected"), [((4, 8), (8, 1), 32), ((4, 8), (0, 1), 8), ((), (), 1), ((3, 0), (1, 1), 0), ((2, 3), (10, 2), 15)])
def test_span(sizes: tuple[int, ...], strides: tuple[int, ...], expected: int) -> None:
    assert span_elems(sizes, strides) == expected


def test_every_error_has_its_own_code() -> None:
    classes = [c for c in vars(binding).values() if isinstance(c, type) and issubclass(c, RuntimeError) and c.__module__ == binding.__name__]
    assert len({c.code for c in classes}) == len(classes) > 8  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("dtype", "right", "wrong"),
    [
        (DataType.Int, (-(2**63), 2**63 - 1), (-(2**63) - 1, 2**63, 2**70)),
        (DataType.Int32, (-(2**31), 2**31 - 1), (-(2**31) - 1, 2**31, 2**40)),
        (DataType.Double, (2**70,), (10**400,)),
    ],
)
def test_integers_that_a_type_does_not_hold_are_refused_cold_and_warm(dtype: DataType, right: tuple[int, ...], wrong: tuple[int, ...]) -> None:
    """A machine word would wrap silently."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], contiguity=True, dtype=DataType.Double)
        fd.add_output(fd.ops.mul(x, fd.define_scalar(dtype)))
    x = torch.ones(2, dtype=torch.float64)
    for value in wrong:  # cold
        with pytest.raises(RuntimeError, match="W775: Scalar value .* is not compatible"):
            fd.execute([x, value])
    for value in (3, *right, *right):
        assert fd.execute([x, value])[0].tolist() == [float(value)] * 2
        for bad in wrong:  # warm
            with pytest.raises(RuntimeError, match="W775: Scalar value .* is not compatible"):
                fd.execute([x, bad])
