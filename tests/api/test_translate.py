"""repr(fd): the text of a definition, and that executing the text defines the same fusion."""

import pytest
from example_definitions import CASES

from weft import DataType, FusionDefinition, translate_fusion
from weft.api.translate_values import number_text
from weft.ir.structure import structural_key


def defined(define):
    with FusionDefinition() as fd:
        define(fd)
    return fd


def rebuilt(text):
    """Execute the text as a test of nvFuser's suite would: with FusionDefinition and DataType in scope and nothing else."""
    scope = {"FusionDefinition": FusionDefinition, "DataType": DataType}
    exec(text, scope)
    return defined(scope["nvfuser_fusion"])


@pytest.mark.parametrize("name", CASES)
def test_the_text_defines_the_same_fusion(name):
    fd = defined(CASES[name])
    assert structural_key(rebuilt(repr(fd)).fusion) == structural_key(fd.fusion)


@pytest.mark.parametrize("name", CASES)
def test_the_text_of_the_text_is_a_fixed_point(name):
    """Numbering settles after one round, since lines are then in the order of creation."""
    once = repr(rebuilt(repr(defined(CASES[name]))))
    assert repr(rebuilt(once)) == once


def test_layout_inputs_reduction_and_constants():
    def define(fd):
        t0 = fd.define_tensor(shape=[-1, -1, -1], contiguity=[True, True, True], dtype=DataType.Float, is_cpu=False)
        t1 = fd.define_tensor(shape=[-1, -1, -1], contiguity=[True, True, True], dtype=DataType.Float, is_cpu=False)
        c0 = fd.define_scalar(3.0)
        fd.add_output(fd.ops.sum(fd.ops.mul(fd.ops.add(t0, t1), c0), [-1], False, DataType.Float))

    assert repr(defined(define)) == (
        "def nvfuser_fusion(fd : FusionDefinition) -> None :\n"
        "    tv0 = fd.define_tensor(shape=[-1, -1, -1], contiguity=[True, True, True], dtype=DataType.Float, is_cpu=False)\n"
        "    tv1 = fd.define_tensor(shape=[-1, -1, -1], contiguity=[True, True, True], dtype=DataType.Float, is_cpu=False)\n"
        "    tv2 = fd.ops.add(tv0, tv1)\n"
        "    tv3 = fd.ops.mul(tv2, 3.00000)\n"
        "    tv4 = fd.ops.sum(tv3, dims=[2], dtype=DataType.Float)\n"
        "    fd.add_output(tv4)\n"
    )


def body(define):
    return [line.strip() for line in repr(defined(define)).splitlines()[1:]]


def test_lines_follow_the_outputs_and_names_the_creation():
    def define(fd):
        x, y = (fd.define_tensor([-1], contiguity=True) for _ in range(2))
        late = fd.ops.exp(y)
        fd.add_output(fd.ops.add(fd.ops.relu(x), late))

    assert body(define)[2:] == ["tv3 = fd.ops.relu(tv0)", "tv2 = fd.ops.exp(tv1)", "tv4 = fd.ops.add(tv3, tv2)", "fd.add_output(tv4)"]


def test_stride_order_and_expanded_inputs():
    def define(fd):
        fd.add_output(fd.define_tensor([-1, 5, 1], contiguity=[None, None, True], stride_order=[0, 1, 2]))

    assert body(define)[0] == (
        "tv0 = fd.define_tensor(shape=[-1, 5, 1], contiguity=[None, None, True], dtype=DataType.Float, is_cpu=False, stride_order=[0, 1, 2])"
    )


def test_broadcast_in_dim_is_broadcast_and_expand_with_sizes():
    def define(fd):
        x, w = fd.define_tensor([-1, 4], contiguity=True), fd.define_tensor([4], contiguity=True)
        fd.add_output(fd.ops.broadcast_in_dim(w, x.shape(), [1]))

    assert body(define)[2:] == [
        "tv2 = fd.ops.broadcast(tv1, is_broadcast_dim=[True, False])", "tv3 = fd.ops.expand(tv2, shape=[tv0.size(0), -1])", "fd.add_output(tv3)",
    ]  # fmt: skip


def test_broadcast_in_dim_that_broadcasts_nothing_is_expand():
    def same(use_expand):
        def define(fd):
            x, like = fd.define_tensor([1, -1], contiguity=True), fd.define_tensor([-1, -1], contiguity=True)
            fd.add_output(fd.ops.expand(x, like.shape()) if use_expand else fd.ops.broadcast_in_dim(x, like.shape(), [0, 1]))

        return repr(defined(define))

    assert same(True) == same(False)


def test_a_copy_is_a_cast_to_the_same_type():
    def define(fd):
        x = fd.define_tensor([-1], contiguity=True)
        fd.add_output(fd.ops.set(x))
        fd.add_output(fd.ops.segment_set(x))

    assert body(define)[1:3] == ["tv1 = fd.ops.cast(tv0, dtype=DataType.Float)", "tv2 = fd.ops.segment_set(tv0)"]


def test_max_has_no_type():
    def define(fd):
        fd.add_output(fd.ops.max(fd.define_tensor([-1, 4], contiguity=True), [1]))

    assert body(define)[1] == "tv1 = fd.ops.max(tv0, dims=[1], dtype=DataType.Null)"


def test_scalars():
    def define(fd):
        x, s = fd.define_tensor([-1], contiguity=True), fd.define_scalar(DataType.Int)
        twice = fd.ops.mul(x.size(0), s)
        fd.add_output(fd.ops.mul(fd.ops.add(x, twice), fd.define_scalar(0.5, DataType.Float)))

    lines = body(define)
    assert lines[1:4] == ["c2 = fd.define_scalar(None, dtype=DataType.Int)", "c4 = fd.ops.mul(tv0.size(0), c2)", "tv1 = fd.ops.add(tv0, c4)"]
    assert lines[4:6] == ["c5 = fd.define_scalar(0.500000, dtype=DataType.Float)", "tv2 = fd.ops.mul(tv1, c5)"]


def test_aliases():
    def define(fd):
        x = fd.define_tensor([-1], contiguity=True)
        y, z = fd.ops.relu(x), fd.ops.exp(x)
        fd.add_output(y, x)
        fd.add_output(z, x)
        fd.add_output(z)

    assert body(define)[1:] == ["tv2 = fd.ops.exp(tv0)", "fd.add_output(tv2, tv0)", "fd.add_output(tv2)"]  # only the last value is written into an input


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3.0, "3.00000"), (0.1, "0.100000"), (1 / 3, "0.3333333333333333"), (-0.0, "-0.00000"), (1e30, "1.00000e+30"), (1e-5, "1.00000e-05"),
        (float("inf"), 'float("inf")'), (float("-inf"), 'float("-inf")'), (float("nan"), 'float("nan")'), (7, "7"), (True, "True"),
        (1 + 2j, "complex(1.00000, 2.00000)"), (123456789.0, "123456789.0"),
    ],
)  # fmt: skip
def test_numbers_keep_their_value(value, text):
    """Six digits where they are the number, all digits otherwise."""
    assert number_text(value) == text
    again = eval(text)
    assert type(again) is type(value) and repr(again) == repr(value)


def test_an_embedding_is_one_line():
    """The axis that it gives its indices has no line; one that the user gave them has."""

    def define(fd):
        index, table = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Int), fd.define_tensor([-1, -1], contiguity=True)
        fd.add_output(fd.ops.embedding_fwd(index, table))

    assert body(define)[2:] == ["tv3 = fd.ops.embedding_fwd(tv0, tv1)", "fd.add_output(tv3)"]

    def with_its_own(fd):
        define(fd)
        fd.add_output(fd.ops.broadcast(fd.fusion.inputs()[0], [False, False, True]))

    assert "tv4 = fd.ops.broadcast(tv0, is_broadcast_dim=[False, False, True])" in body(with_its_own)
    fd = defined(with_its_own)
    assert structural_key(rebuilt(repr(fd)).fusion) == structural_key(fd.fusion)


def test_a_position_of_an_extremum_is_one_line():
    """Neither the positions that it counts nor the reduction of two tensors has a line; positions of the user's own have."""

    def define(fd):
        x, counted = fd.define_tensor([-1, -1], contiguity=True), fd.ops.iota(5, dtype=DataType.Int32)
        fd.add_output(fd.ops.argmax(x, 1))
        fd.add_output(fd.ops.argmin(fd.ops.neg(x), -2))
        fd.add_output(counted)

    lines = body(define)
    assert [line.partition(" = ")[2] for line in lines if "arg" in line] == ["fd.ops.argmax(tv0, 1)", "fd.ops.argmin(tv8, 0)"]
    assert len([line for line in lines if "iota" in line]) == 1 and "index" not in "".join(lines)
    fd = defined(define)
    assert structural_key(rebuilt(repr(fd)).fusion) == structural_key(fd.fusion)


def test_translate_fusion_is_the_repr():
    fd = defined(CASES["layer norm"])
    assert translate_fusion(fd.fusion) == repr(fd)


def test_an_empty_definition_has_text():
    assert repr(defined(lambda fd: None)) == "def nvfuser_fusion(fd : FusionDefinition) -> None :\n    pass\n"
    assert "Fusion does not exist!" in repr(FusionDefinition())


def test_print_math_lists_inputs_outputs_and_expressions():
    def define(fd):
        x = fd.define_tensor([-1, 4], contiguity=True)
        fd.ops.exp(x)
        fd.add_output(fd.ops.mul(fd.ops.relu(x), 2.0), x)

    fusion = defined(define).fusion
    text = fusion.print_math()
    assert text.startswith("Inputs:\n  T0_g_float[iS0{i0}, iS1{4}]\nOutputs:\n  T3_g_float[iS6{i0}, iS7{4}] written into T0 and not returned\n")
    assert "%kernel_math {\nT2_l_float[iS4{i0}, iS5{4}]\n   = relu(T0_g_float[iS0{i0}, iS1{4}]);\n" in text and "exp" not in text
    assert "   = T2_l_float[iS4{i0}, iS5{4}]\n   * double(2);\n} // %kernel_math" in text
    assert "exp" in fusion.print_math(from_outputs_only=False)
