"""Types of results: torch's promotion, but for floats of 16 bits and fewer, which become Float."""

from __future__ import annotations

import itertools

import pytest
import torch
from graphs import Graph

from weft.dtypes import DataType
from weft.errors import UserError
from weft.ops.promotion import WrongDtype, promote
from weft.reference.torch_types import torch_dtype, torch_dtype_to_nvfuser_dtype

D = DataType
TORCH_TYPES = [D.Double, D.Float, D.Half, D.BFloat16, D.Int, D.Int32, D.Bool, D.ComplexFloat, D.ComplexDouble]


def narrow_to_float(dtype: DataType) -> DataType:
    return D.Float if dtype.is_reduced_float else dtype


@pytest.mark.parametrize(("a", "b"), list(itertools.product(TORCH_TYPES, TORCH_TYPES)), ids=lambda t: t.name)
def test_add_of_tensors_promotes_as_torch(a: DataType, b: DataType) -> None:
    g = Graph()
    result = g.add(g.tensor([3], a), g.tensor([3], b))
    expected = torch_dtype_to_nvfuser_dtype(torch.promote_types(torch_dtype(a), torch_dtype(b)))
    if {a, b} == {D.Half, D.ComplexFloat} or {a, b} == {D.Half, D.ComplexDouble}:
        expected = promote(a, b)
    assert result.dtype() is narrow_to_float(expected)


@pytest.mark.parametrize("number", [True, 2, 2.5, 1 + 2j], ids=["bool", "int", "float", "complex"])
@pytest.mark.parametrize("dtype", TORCH_TYPES, ids=lambda t: t.name)
def test_a_number_does_not_widen_a_tensor_of_its_category(dtype: DataType, number: complex) -> None:
    g = Graph()
    if dtype is D.Half and isinstance(number, complex):
        pytest.skip("torch makes ComplexHalf; Float's complex type is used here")
    result = g.mul(g.tensor([3], dtype), number)
    expected = torch_dtype_to_nvfuser_dtype(torch.result_type(torch.ones(3, dtype=torch_dtype(dtype)), number))
    assert result.dtype() is narrow_to_float(expected)


def test_a_tensor_without_axes_does_not_widen_one_with_axes() -> None:
    g = Graph()
    assert g.add(g.tensor([3], D.Float), g.tensor([], D.Double)).dtype() is D.Float
    assert g.add(g.tensor([3], D.Int), g.tensor([], D.Double)).dtype() is D.Double
    assert g.add(g.tensor([], D.Float), g.tensor([], D.Double)).dtype() is D.Double


@pytest.mark.parametrize(
    ("op", "dtype", "expected"),
    [
        ("exp", D.Int, D.Float), ("exp", D.Bool, D.Float), ("exp", D.Half, D.Float), ("exp", D.Double, D.Double), ("exp", D.ComplexFloat, D.ComplexFloat),
        ("abs", D.ComplexDouble, D.Double), ("real", D.ComplexFloat, D.Float), ("imag", D.ComplexFloat, D.Float), ("abs", D.Int32, D.Int32),
        ("isfinite", D.BFloat16, D.Bool), ("logical_not", D.Float, D.Bool), ("bitwise_not", D.Bool, D.Bool), ("bitwise_not", D.Int32, D.Int32),
        ("ceil", D.Int, D.Int), ("neg", D.BFloat16, D.Float), ("reciprocal", D.Int, D.Float), ("set", D.Half, D.Half), ("signbit", D.Float, D.Bool),
    ],
)  # fmt: skip
def test_types_of_unary_ops(op: str, dtype: DataType, expected: DataType) -> None:
    g = Graph()
    assert getattr(g, op)(g.tensor([3], dtype)).dtype() is expected


@pytest.mark.parametrize(
    ("op", "a", "b", "expected"),
    [
        ("eq", D.Half, D.Int, D.Bool), ("lt", D.Float, D.Double, D.Bool), ("logical_and", D.Float, D.Int, D.Bool), ("div", D.Int, D.Int32, D.Int),
        ("truediv", D.Int, D.Int, D.Float), ("atan2", D.Int, D.Int, D.Float), ("bitwise_and", D.Bool, D.Int32, D.Int32), ("pow", D.Int, D.Float, D.Float),
        ("nextafter", D.Double, D.Double, D.Double), ("maximum", D.BFloat16, D.BFloat16, D.Float), ("fmod", D.Bool, D.Bool, D.Int),
        ("add", D.Bool, D.Bool, D.Bool),
    ],
)  # fmt: skip
def test_types_of_binary_ops(op: str, a: DataType, b: DataType, expected: DataType) -> None:
    g = Graph()
    assert getattr(g, op)(g.tensor([3], a), g.tensor([3], b)).dtype() is expected


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (D.Half, D.Half, D.Half),
        (D.BFloat16, D.BFloat16, D.BFloat16),
        (D.Half, D.BFloat16, D.Float),
        (D.Half, D.Float, D.Float),
        (D.Int, D.Float, D.Float),
        (D.Bool, D.Int, D.Int),
    ],
)
def test_where_keeps_a_reduced_float_that_both_sides_have(a: DataType, b: DataType, expected: DataType) -> None:
    g = Graph()
    out = g.where(g.tensor([3], D.Bool), g.tensor([3], a), g.tensor([3], b))
    assert out.dtype() is expected
    assert out.definition().attributes["compute"] is expected


@pytest.mark.parametrize(
    ("kind", "dtype", "given", "expected"),
    [
        ("sum", D.Int32, D.Null, D.Int), ("sum", D.Bool, D.Null, D.Int), ("prod", D.Bool, D.Null, D.Int), ("sum", D.Half, D.Null, D.Float),
        ("sum", D.Float, D.Double, D.Double), ("sum", D.BFloat16, D.BFloat16, D.BFloat16), ("max", D.Int32, D.Null, D.Int32),
        ("max", D.BFloat16, D.Null, D.Float),
        ("min", D.Bool, D.Null, D.Bool), ("sum", D.ComplexFloat, D.Null, D.ComplexFloat),
    ],
)  # fmt: skip
def test_types_of_reductions(kind: str, dtype: DataType, given: DataType, expected: DataType) -> None:
    g = Graph()
    assert getattr(g, kind)(g.tensor([3, 4], dtype), [1], False, given).dtype() is expected


def test_arithmetic_on_half_is_preceded_by_casts_to_float() -> None:
    g = Graph()
    x = g.tensor([3], D.Half)
    node = g.add(x, 1.0).definition()
    assert node.attributes["compute"] is D.Float
    cast = node.inputs[0].definition()
    assert cast.attributes == {"op": "cast", "compute": D.Half, "dtype": D.Float}
    assert cast.inputs == [x]


@pytest.mark.parametrize(
    ("op", "dtype"), [("nextafter", D.Half), ("nextafter", D.Int), ("bitwise_and", D.Float), ("gcd", D.Double), ("bitwise_left_shift", D.Float)]
)
def test_a_type_that_an_op_does_not_take_is_an_error(op: str, dtype: DataType) -> None:
    g = Graph()
    with pytest.raises(WrongDtype, match=f"{op} takes"):
        getattr(g, op)(g.tensor([3], dtype), g.tensor([3], dtype))


def test_max_takes_no_dtype() -> None:
    g = Graph()
    with pytest.raises(UserError, match="max takes no dtype"):
        g.max(g.tensor([3, 4]), [0], False, D.Double)


def test_where_of_two_numbers_has_their_type() -> None:
    g = Graph()
    condition = g.tensor([3], D.Bool)
    assert g.where(condition, 1.0, 0.0).dtype() is D.Double
    assert g.where(condition, 1, 0).dtype() is D.Int
    assert g.where(condition, g.scalar(D.Float), g.scalar(D.Float)).dtype() is D.Float
    assert g.where(g.scalar(D.Bool), g.scalar(D.Double), 1.0).dtype() is D.Double
