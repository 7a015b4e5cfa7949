"""define_tensor, define_scalar, define_vector, from_pytorch, compute_tensor_descriptor, add_output: forms, meanings, errors."""

import pytest
import torch

from weft import DataType, FusionDefinition, FusionGuard, compute_tensor_descriptor, define_scalar, define_tensor
from weft.expr import const, var
from weft.ir.fusion import Fusion


@pytest.fixture
def fd():
    with FusionDefinition() as definition:
        yield definition


def sizes(tensor):
    return [axis.logical_extent for axis in tensor.get_logical_domain()]


def shape_kinds(tensor):
    return "".join(axis.iter_type.value for axis in tensor.get_logical_domain())


# ---------------------------------------------------------------- define_tensor
def test_list_form_makes_symbolic_static_broadcast_and_empty_axes(fd):
    t = fd.define_tensor(shape=[-1, 4, 1, 0], contiguity=[True, False, None, True])
    assert sizes(t) == [var("T0.size[0]", lower=1), const(4), const(1), const(0)]
    assert shape_kinds(t) == "iibi"
    assert t.domain().contiguity == [True, False, None, True]
    assert (t.dtype(), t.is_cpu_scalar, fd.fusion.inputs()) == (DataType.Float, False, [t])


def test_arguments_may_be_positional(fd):
    t = fd.define_tensor([-1, 4], [True, True], DataType.Half, False, [0, 1])
    assert t.dtype() is DataType.Half and t.domain().allocation == [t.axis(1), t.axis(0)]


def test_bool_form_makes_size_one_none_and_is_false_by_default(fd):
    assert fd.define_tensor(shape=[-1, 1, 3], contiguity=True).domain().contiguity == [True, None, True]
    assert fd.define_tensor([-1, 1, 3]).domain().contiguity == [False, None, False]


def test_stride_form_computes_contiguity_and_order(fd):
    t = fd.define_tensor(sizes=[2, 3, 1], strides=[1, 2, 7], dtype=DataType.Int)
    assert sizes(t)[:2] == [var("T0.size[0]", lower=1), var("T0.size[1]", lower=1)] and shape_kinds(t) == "iib"
    assert t.get_allocation_domain() == [t.axis(2), t.axis(1), t.axis(0)] and t.domain().contiguity == [None, True, True]


def test_two_positional_int_lists_mean_sizes_and_strides(fd):
    assert fd.define_tensor([2, 3], [3, 1]).domain().contiguity == [True, True]


def test_stride_form_with_static_sizes_keeps_them(fd):
    assert sizes(fd.define_tensor(sizes=(2, 3), strides=(3, 1), static_sizes=True)) == [const(2), const(3)]


def test_torch_size_is_a_list_of_sizes(fd):
    x = torch.empty(2, 3)
    assert fd.define_tensor(sizes=x.size(), strides=x.stride()).ndim == 2


@pytest.mark.parametrize("size", [-1, 5])
def test_none_for_a_size_other_than_one_is_an_expanded_axis(fd, size):
    axis = fd.define_tensor(shape=[size, 2], contiguity=[None, True]).axis(0)
    assert axis.is_broadcast() and axis.sym is const(1)
    assert axis.expanded_extent is (const(5) if size == 5 else var("T0.size[0]", lower=1))


def test_contiguity_is_in_memory_order(fd):
    t = fd.define_tensor(shape=[1, -1, -1], contiguity=[True, None, False], stride_order=[1, 2, 0])
    assert shape_kinds(t) == "bii" and t.get_allocation_domain() == [t.axis(1), t.axis(0), t.axis(2)]


def test_stride_order_counts_from_the_innermost_and_wraps_negatives(fd):
    t = fd.define_tensor(shape=[-1, -1, -1], contiguity=True, stride_order=[-1, 0, -2])
    assert t.get_allocation_domain() == [t.axis(0), t.axis(2), t.axis(1)]


def test_the_usual_stride_order_is_no_allocation_domain(fd):
    assert fd.define_tensor(shape=[-1, -1], contiguity=True, stride_order=[1, 0]).domain().allocation is None


def test_zero_dim_and_cpu_scalar(fd):
    t = fd.define_tensor(shape=[], contiguity=[], dtype=DataType.Double, is_cpu=True)
    assert t.ndim == 0 and t.is_cpu_scalar


def test_pairs_of_fp4_become_elements(fd):
    t = fd.define_tensor(shape=[4, 8], contiguity=[True, True], dtype=DataType.Float4_e2m1fn_x2)
    assert sizes(t) == [const(4), const(16)] and t.dtype() is DataType.Float4_e2m1fn


def test_free_function_needs_a_fusion_and_adds_no_input():
    with pytest.raises(RuntimeError, match="define_tensor needs a fusion"):
        define_tensor([2])
    fusion = Fusion()
    with FusionGuard(fusion):
        assert define_tensor([2]).fusion is fusion and define_scalar(1).fusion is fusion
    assert fusion.inputs() == []


@pytest.mark.parametrize(
    "arguments",
    [
        {"shape": [1.0], "contiguity": [True]}, {"shape": [2], "contiguity": [10]}, {"shape": [2], "contiguity": ["yes"]}, {"shape": 3},
        {"shape": [2], "contiguity": True, "dtype": "float"}, {"shape": [1 << 63]},
        {"shape": [2], "contiguous": True}, {"sizes": [2]}, {"sizes": [2], "strides": [1], "contiguity": True}, {"shape": [2], "stride_order": [0.0]},
        {"shape": "ab"}, {},
    ],
)  # fmt: skip
def test_arguments_of_other_types_are_a_type_error(fd, arguments):
    with pytest.raises(TypeError, match=r"define_tensor\(\): incompatible function arguments"):
        fd.define_tensor(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shape": [-2]}, r"The value -2 at index 0 was neither symbolic\(-1\), zero_element\(0\), broadcast\(1\), or static\(>1\)"),
        ({"shape": [2, 3], "contiguity": [True]}, r"Length of contiguity argument \(1\) must match that of sizes argument \(2\)"),
        ({"shape": [1], "contiguity": [True]}, "contiguity True at position 0 is for dimension 0, a dimension of size 1"),
        ({"shape": [2, 3], "contiguity": True, "stride_order": [0, 0]}, r"stride_order \[0, 0\] is not a permutation of 0 to 1"),
        ({"shape": [2, 3], "contiguity": True, "stride_order": [0]}, "is not a permutation"),
        ({"sizes": [2], "strides": [-1]}, "stride -1 of dimension 0 is negative"),
        ({"sizes": [2, 3], "strides": [1]}, "2 sizes and 1 strides"),
    ],
)  # fmt: skip
def test_wrong_values_are_a_runtime_error_that_names_them(fd, arguments, message):
    with pytest.raises(RuntimeError, match=message):
        fd.define_tensor(**arguments)
    assert not isinstance(pytest.raises(RuntimeError, fd.define_tensor, **arguments).value, TypeError)


# ---------------------------------------------------------------- compute_tensor_descriptor
@pytest.mark.parametrize(
    ("shape", "strides", "contiguity", "order"),
    [
        ([2, 3, 4], [12, 4, 1], [True, True, True], [2, 1, 0]),
        ([2, 3, 4], [1, 2, 6], [True, True, True], [0, 1, 2]),
        ([2, 3, 4], [24, 4, 1], [False, True, True], [2, 1, 0]),
        ([2, 3], [6, 2], [True, False], [1, 0]),
        ([2, 1, 4], [4, 4, 1], [True, None, True], [2, 1, 0]),
        ([1, 4, 8], [32, 1, 4], [None, True, True], [2, 0, 1]),
        ([4, 5], [0, 1], [None, True], [1, 0]),
        ([4, 5], [1, 0], [True, None], [1, 0]),
        ([2, 3, 4], [0, 1, 3], [None, True, True], [2, 0, 1]),
        ([], [], [], []),
        ([0, 3], [3, 1], [True, True], [1, 0]),
        ([1], [7], [None], [0]),
    ],
)  # fmt: skip
def test_descriptor(shape, strides, contiguity, order):
    """Non-zero strides are sorted stably, zero strides keep their place; size 1 and stride 0 are None."""
    assert compute_tensor_descriptor(shape, strides) == (contiguity, order)


def test_descriptor_of_channels_last():
    x = torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert compute_tensor_descriptor(x.size(), x.stride()) == ([True] * 4, [3, 0, 2, 1])


# ---------------------------------------------------------------- scalars
def test_define_scalar_of_a_type_is_a_symbolic_input(fd):
    a, b, c = fd.define_scalar(), fd.define_scalar(DataType.Int), fd.define_scalar(dtype=DataType.Bool)
    assert [s.dtype() for s in (a, b, c)] == [DataType.Double, DataType.Int, DataType.Bool]
    assert all(s.is_symbolic() for s in (a, b, c)) and fd.fusion.inputs() == [a, b, c]


def test_define_scalar_of_none_is_symbolic(fd):
    assert fd.define_scalar(None, dtype=DataType.Float).is_symbolic() and fd.define_scalar(None).dtype() is DataType.Double


@pytest.mark.parametrize(("value", "dtype"), [(2, DataType.Int), (2.0, DataType.Double), (True, DataType.Bool), (1 + 2j, DataType.ComplexDouble)])
def test_define_scalar_of_a_value_is_a_constant_of_its_type(fd, value, dtype):
    scalar = fd.define_scalar(value)
    assert (scalar.sym.value, scalar.dtype(), scalar.is_symbolic()) == (value, dtype, False) and fd.fusion.inputs() == []


def test_define_scalar_converts_to_the_given_type(fd):
    scalar = fd.define_scalar(3, DataType.Double)
    assert scalar.dtype() is DataType.Double and type(scalar.sym.value) is float


def test_define_scalar_errors(fd):
    with pytest.raises(TypeError, match=r"define_scalar\(\): incompatible"):
        fd.define_scalar("a")
    with pytest.raises(RuntimeError, match=r"Scalar value \(2,1\) is not compatible with the expected data type: double\."):
        fd.define_scalar(2 + 1j, DataType.Double)


def test_define_vector_is_a_list_of_int_inputs(fd):
    vector = fd.define_vector(3)
    assert fd.fusion.inputs() == vector and {s.dtype() for s in vector} == {DataType.Int}


def test_scalars_are_named_by_type_and_position_among_scalars(fd):
    fd.define_tensor([-1])
    assert str(fd.define_scalar()) == "d2"


# ---------------------------------------------------------------- from_pytorch
def test_from_pytorch_takes_a_cpu_tensor_where_the_emulator_runs(fd, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert not fd.from_pytorch(torch.ones(2)).is_cpu_scalar
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ValueError, match="Found unsupported device cpu, only scalar CPU or CUDA tensors are supported"):
        fd.from_pytorch(torch.ones(2))


def test_from_pytorch_of_a_cpu_scalar(fd):
    t = fd.from_pytorch(torch.tensor(2.0, dtype=torch.float64))
    assert t.is_cpu_scalar and t.dtype() is DataType.Double and t.ndim == 0


class OnGpu:
    """What from_pytorch looks at, of a tensor on a GPU."""

    is_cuda, is_cpu, dtype, device = True, False, torch.bfloat16, "cuda:0"

    def size(self):
        return torch.Size([4, 1, 8])

    def stride(self):
        return (8, 8, 1)

    def dim(self):
        return 3


def test_from_pytorch_is_symbolic_except_size_one_unless_static(fd):
    assert sizes(fd.from_pytorch(OnGpu()))[0].is_var and shape_kinds(fd.fusion.inputs()[0]) == "ibi"
    assert sizes(fd.from_pytorch(OnGpu(), static_sizes=True)) == [const(4), const(1), const(8)]
    assert fd.fusion.inputs()[0].dtype() is DataType.BFloat16


# ---------------------------------------------------------------- outputs
def test_an_aliased_output_is_hidden_unless_added_plainly_too(fd):
    x = fd.define_tensor([-1], contiguity=True)
    other = fd.define_tensor([-1], contiguity=True)
    y, z = fd.ops.relu(x), fd.ops.exp(x)
    fd.add_output(y, other)
    fd.add_output(z, alias_input=x)
    fd.add_output(z)
    assert fd.fusion.outputs() == [y, z] and fd.fusion.aliases == {y: other, z: x} and fd.fusion.hidden_outputs == {y}


def test_of_two_values_for_one_input_the_second_is_written(fd):
    x = fd.define_tensor([-1], contiguity=True)
    y, z = fd.ops.relu(x), fd.ops.exp(x)
    for value in (y, z):
        fd.add_output(value, x)
    assert fd.fusion.outputs() == [z] and fd.fusion.aliases == {z: x} and fd.fusion.hidden_outputs == {z}
    fd.add_output(z)
    fd.add_output(y, x)
    assert fd.fusion.outputs() == [z, y] and fd.fusion.aliases == {y: x} and fd.fusion.hidden_outputs == {y}


def test_alias_errors_name_both_sides(fd):
    x, h = fd.define_tensor([-1], contiguity=True), fd.define_tensor([-1], contiguity=True, dtype=DataType.Half)
    y = fd.ops.relu(x)
    with pytest.raises(RuntimeError, match="dtype is DataType.Float for the output and DataType.Half for the input"):
        fd.add_output(y, h)
    with pytest.raises(RuntimeError, match="is not an input of the fusion"):
        fd.add_output(fd.ops.exp(x), y)
    with pytest.raises(TypeError):
        fd.add_output(3)
    with FusionDefinition() as other, pytest.raises(RuntimeError, match="belongs to another fusion"):
        other.add_output(y)


# ---------------------------------------------------------------- life of a definition
def test_validate_definition():
    fd = FusionDefinition()
    is_valid, reason = fd.validate_definition()
    assert not is_valid and reason.startswith("Fusion does not exist! Use ")
    with fd:
        x = fd.define_tensor([-1])
    assert fd.validate_definition() == (False, "Fusion is empty!")
    fd.fusion.add_output(x)
    assert fd.validate_definition() == (True, None)


@pytest.mark.parametrize("method", ["execute", "manual_execute", "validate", "manual_validate"])
def test_an_incomplete_definition_cannot_be_executed(method):
    fd = FusionDefinition()
    with pytest.raises(NotImplementedError, match="Fusion does not exist!"):
        getattr(fd, method)([])
    with fd:
        fd.define_tensor([2])
    with pytest.raises(NotImplementedError, match="Fusion is empty!"):
        getattr(fd, method)([torch.ones(2)])


def test_exit_lets_an_exception_pass_and_prints_nothing(capsys):
    with pytest.raises(KeyError), FusionDefinition():
        raise KeyError("here")
    assert capsys.readouterr() == ("", "")


def test_definitions_nest_and_take_attributes():
    outer = FusionDefinition()
    outer._selected_device = 3
    with outer, FusionDefinition() as inner:
        define_tensor([2])
        assert len(inner.fusion.vals()) == 1 and not outer.fusion.vals()
    assert FusionGuard.current() is None


def test_unknown_op_names_the_nearest():
    with FusionDefinition() as fd, pytest.raises(AttributeError, match="there is no op 'rleu'(.|\n)*did you mean relu"):
        fd.ops.rleu
    assert not hasattr(fd.ops, "nothing_like_it") and "relu" in dir(fd.ops) and len(dir(fd.ops)) >= 134
