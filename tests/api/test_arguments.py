"""check_arguments: every mismatch of inputs is found, and its message names the input and both values."""

import re

import pytest
import torch

from weft import DataType, FusionDefinition
from weft.api.arguments import check_arguments
from weft.errors import UserError


def definition(*shapes, body=None, **kwargs):
    """A definition with one tensor per (shape, contiguity) and, unless `body` says otherwise, their relu as outputs."""
    with FusionDefinition() as fd:
        tensors = [fd.define_tensor(shape=shape, contiguity=contiguity, **kwargs) for shape, contiguity in shapes]
        for out in body(fd, *tensors) if body else [fd.ops.relu(t) for t in tensors]:
            fd.add_output(out)
    return fd.fusion


def message(fusion, inputs):
    error = pytest.raises(UserError, check_arguments, fusion, inputs).value
    assert "fix: " in str(error) and not isinstance(error, TypeError)
    return str(error)


@pytest.mark.parametrize(
    ("shape", "contiguity", "given"),
    [
        ([-1, -1], True, torch.ones(2, 3)),
        ([-1, -1], True, torch.ones(1, 3).as_strided((1, 3), (77, 1))),
        ([-1, -1], True, torch.ones(0, 3)),
        ([-1, -1], True, torch.ones(9).as_strided((0, 3), (5, 2))),
        ([-1, 3], [False, True], torch.ones(4, 5)[:, :3]),
        ([-1, -1], [False, False], torch.ones(4, 6)[::2, ::3]),
        ([-1, -1], False, torch.ones(4, 6).t()),
        ([2, 1, 4], [True, None, True], torch.ones(2, 1, 4)),
        ([-1, 5], [None, True], torch.ones(5).expand(3, 5)),
        ([-1, 5], [None, True], torch.ones(1, 5)),
        ([], [], torch.tensor(1.0)),
        ([-1], True, torch.nn.Parameter(torch.ones(3))),
        ([-1, -1, -1], [True, False, True], torch.ones(4, 1, 3).as_strided((4, 1, 3), (3, 99, 1))),
    ],
)
def test_inputs_that_fit_pass(shape, contiguity, given):
    """Strides do not matter where the size is 1, nor in empty tensors."""
    check_arguments(definition((shape, contiguity)), [given])


def test_stride_order_is_the_order_of_contiguity():
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.relu(fd.define_tensor([-1, -1], contiguity=True, stride_order=[0, 1])))
    check_arguments(fd.fusion, [torch.ones(2, 3).t()])
    assert "to have stride 1 in dimension 0" in message(fd.fusion, [torch.ones(2, 3)])


def test_count():
    assert "Expected 1 inputs (T0_g), but got 2" in message(definition(([-1], True)), [torch.ones(1)] * 2)


def test_scalar_for_a_tensor():
    assert re.search("Expected input 0, .*, to be an at::Tensor but got scalar 2\n", message(definition(([-1], True)), [2]))


def test_tensor_for_a_scalar():
    with FusionDefinition() as fd:
        x, s = fd.define_tensor([-1], contiguity=True), fd.define_scalar(DataType.Double)
        fd.add_output(fd.ops.mul(x, s))
    expected = "Expected input 1, d2, to be a scalar but got float tensor of rank 1\n"
    assert expected in message(fd.fusion, [torch.ones(2), torch.ones(2)])
    assert "to be a scalar but got str 'a'" in message(fd.fusion, [torch.ones(2), "a"])


def test_dtype():
    text = message(definition(([-1], True)), [torch.ones(2, dtype=torch.half)])
    assert "to be bound to a tensor of dtype float, but got a tensor of dtype __half\n" in text and "tensor.to(torch.float32)" in text


def test_rank():
    assert "to be bound to a tensor of rank 1, but got a tensor of rank 2" in message(definition(([-1], True)), [torch.ones(2, 2)])


@pytest.mark.parametrize(
    ("dtype", "given", "shown", "expected"),
    [
        (DataType.Double, 2 + 1j, "(2,1)", "double"), (DataType.Int, 1.5, "1.5", "int64_t"), (DataType.Bool, 2, "2", "bool"),
        (DataType.Int, 1j, "(0,1)", "int64_t"),
    ],
)  # fmt: skip
def test_a_number_of_a_wider_kind_is_refused(dtype, given, shown, expected):
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.add(fd.define_tensor([-1], contiguity=True), fd.define_scalar(dtype)))
    assert f"Scalar value {shown} is not compatible with the expected data type: {expected}." in message(fd.fusion, [torch.ones(2), given])


NARROWER = [(DataType.Double, 2), (DataType.Double, True), (DataType.Int, True), (DataType.ComplexDouble, 1.5), (DataType.Bool, False)]


@pytest.mark.parametrize(("dtype", "given"), NARROWER)
def test_a_number_of_a_narrower_kind_passes(dtype, given):
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.add(fd.define_tensor([-1], contiguity=True, dtype=DataType.ComplexDouble), fd.define_scalar(dtype)))
    check_arguments(fd.fusion, [torch.ones(2, dtype=torch.cdouble), given])


def test_static_size():
    text = message(definition(([4], True)), [torch.ones(5)])
    assert "to have size 4 in dimension 0, but got 5" in text and "pass size 4" in text


def test_broadcast_size():
    text = message(definition(([1, 3], [None, True])), [torch.ones(2, 3)])
    assert "to have size 1 in dimension 0, but got 2" in text and "define that dimension with size -1" in text


def test_contiguous_stride_names_the_input_the_values_and_the_remedy():
    text = message(definition(([-1, -1], True)), [torch.ones(4, 6)[:, :3]])
    assert "to have stride 3 in dimension 0 (the definition says it is contiguous), but got 6; sizes [4, 3], strides [6, 1]" in text
    assert "fix: pass tensor.contiguous(), or define that dimension with contiguity False" in text


def test_inner_stride():
    assert "to have stride 1 in dimension 0" in message(definition(([-1], True)), [torch.ones(6)[::2]])


def test_expanded_stride():
    text = message(definition(([-1, 5], [None, True])), [torch.ones(3, 5)])
    assert "to have stride 0 in dimension 0 (the definition says it is expanded: it has expanded extent but input tensor has size 3), but got 5" in text


def test_sizes_that_the_definition_makes_equal():
    fusion = definition(([-1, -1], True), ([-1, -1], True), body=lambda fd, a, b: [fd.ops.add(fd.ops.relu(a), b)])
    check_arguments(fusion, [torch.ones(2, 3), torch.ones(2, 3)])
    text = message(fusion, [torch.ones(2, 3), torch.ones(2, 4)])
    assert "dimension 1 of input 0, T0_g, is 3, and dimension 1 of input 1, T1_g, is 4 (Tried to bind to a value: 3 as 4); add makes them equal, at " in text and "fd.ops.add(fd.ops.relu(a), b)" in text


def test_a_constant_size_elsewhere_in_the_fusion():
    def body(fd, a):
        return [fd.ops.add(a, fd.ops.full([4], 1.0, DataType.Float))]

    fusion = definition(([-1], True), body=body)
    check_arguments(fusion, [torch.ones(4)])
    text = message(fusion, [torch.ones(5)])
    assert "the constant size that the definition gives it" in text and " is 4, and dimension 0 of input 0, T0_g, is 5" in text


def test_sizes_through_a_broadcast_are_independent():
    def body(fd, a, b):
        return [fd.ops.add(fd.ops.broadcast(a, [False, True]), fd.ops.broadcast(b, [True, False]))]

    check_arguments(definition(([-1], True), ([-1], True), body=body), [torch.ones(2), torch.ones(3)])


def test_cpu_scalars():
    with FusionDefinition() as fd:
        c = fd.define_tensor([], [], is_cpu=True)
        fd.add_output(fd.ops.mul(fd.define_tensor([-1], contiguity=True), c))
    check_arguments(fd.fusion, [torch.tensor(2.0), torch.ones(2)])
    text = message(fd.fusion, [torch.tensor(2.0, device="meta"), torch.ones(2)])
    assert "to be bound to a CPU or meta scalar tensor, but got a tensor of rank 0 on device meta" in text


def test_unused_inputs_are_checked_too():
    with FusionDefinition() as fd:
        fd.define_tensor([3], contiguity=True)
        fd.add_output(fd.ops.relu(fd.define_tensor([-1], contiguity=True)))
    check_arguments(fd.fusion, [torch.ones(3), torch.ones(7)])
    assert "size 3" in message(fd.fusion, [torch.ones(2), torch.ones(7)])
