"""The structural key: equal for the same definition made again, different for every difference that changes the computation."""

import itertools

import pytest
from example_definitions import VARIANTS, binary, unary

from weft import DataType as D, FusionDefinition
from weft.ir.structure import structural_key


def key(define):
    with FusionDefinition() as fd:
        define(fd)
    return structural_key(fd.fusion)


@pytest.mark.parametrize("name", VARIANTS)
def test_the_same_definition_made_again_has_the_same_key(name):
    assert key(VARIANTS[name]) == key(VARIANTS[name])
    assert hash(key(VARIANTS[name])) == hash(key(VARIANTS[name]))


def test_every_two_definitions_that_differ_have_different_keys():
    keys = {name: key(define) for name, define in VARIANTS.items()}
    same = [(a, b) for a, b in itertools.combinations(keys, 2) if keys[a] == keys[b]]
    assert same == []


def test_expressions_that_no_output_needs_do_not_count():
    def with_dead_code(fd):
        x = fd.define_tensor([-1, -1], contiguity=True)
        fd.ops.exp(fd.ops.mul(x, 3.0))
        fd.add_output(fd.ops.relu(x))

    assert key(with_dead_code) == key(unary)


def test_inputs_count_even_if_unused_and_in_order():
    def two(first, second):
        def define(fd):
            x = [fd.define_tensor([-1], contiguity=True, dtype=dtype) for dtype in (first, second)]
            fd.add_output(fd.ops.relu(x[0 if first is D.Float else 1]))

        return define

    def one(fd):
        fd.add_output(fd.ops.relu(fd.define_tensor([-1], contiguity=True)))

    assert len({key(one), key(two(D.Float, D.Int)), key(two(D.Int, D.Float))}) == 3


def test_names_do_not_count():
    """The tensors of the second definition are called otherwise, the sizes that it expands to as well."""

    def define(fd, waste):
        if waste:
            fd.ops.exp(fd.ops.full([2], 1.0, D.Float))
        x, w = fd.define_tensor([-1, -1], contiguity=True), fd.define_tensor([-1], contiguity=True)
        fd.add_output(fd.ops.add(x, fd.ops.broadcast_in_dim(w, x.shape(), [1])))

    assert key(lambda fd: define(fd, False)) == key(lambda fd: define(fd, True))


def test_scalar_arithmetic_counts():
    def scaled(factor):
        def define(fd):
            x = fd.define_tensor([-1], contiguity=True)
            fd.add_output(fd.ops.mul(x, fd.ops.mul(fd.ops.size(x, 0), factor)))

        return define

    assert key(scaled(2)) == key(scaled(2)) != key(scaled(3))


def test_fusions_compare_by_structure():
    fusions = []
    for op in ("relu", "relu", "exp"):
        with FusionDefinition() as fd:
            unary(fd, op=op)
        fusions.append(fd.fusion)
    assert fusions[0] == fusions[1] and fusions[0] is not fusions[1] and fusions[0] != fusions[2] and fusions[0] != 3


def test_a_clone_has_the_same_key():
    with FusionDefinition() as fd:
        binary(alias=0)(fd)
    assert structural_key(fd.fusion.clone()[0]) == structural_key(fd.fusion)


def test_the_key_of_a_long_chain_takes_lines_in_proportion():
    from quick import lines_run

    def lines(count: int) -> int:
        with FusionDefinition() as fd:
            x = fd.define_tensor([-1], contiguity=True)
            for _ in range(count):
                x = fd.ops.relu(x)
            fd.add_output(x)
        return lines_run(lambda: hash(structural_key(fd.fusion)))

    short, long = lines(500), lines(1500)
    assert long < 3.2 * short and long < 100 * 1500


def test_fusions_of_one_structure_are_equal_and_have_no_hash() -> None:
    """Equality is by structure, which changes as a fusion grows: a hash could not agree with it, so there is none."""

    def made() -> FusionDefinition:
        with FusionDefinition() as fd:
            x = fd.define_tensor([-1], dtype=D.Float)
            fd.add_output(fd.ops.exp(x))
        return fd

    one, two = made().fusion, made().fusion
    assert one == two and one is not two
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)
    with made() as other:
        x = other.define_tensor([-1], dtype=D.Float)
        other.add_output(other.ops.log(x))
    assert other.fusion != one
