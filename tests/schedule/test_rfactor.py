from __future__ import annotations

import pytest

from weft.errors import Unsupported, WeftError
from weft.ir.enums import ParallelType
from weft.ir.fusion import Fusion
from weft.ir.values import ReductionOp
from weft.ops.reductions import welford
from weft.schedule.inline import inline_at
from weft.schedule.primitives import merge, reorder, rfactor, split
from weft.schedule.rfactor import BadRfactor

from schedule_scenarios import add_sum, check_schedule, fold, loops, message, op, tensor


def kinds(axes) -> str:
    return " ".join(f"{a.iter_type.value}{'*' if a.is_rfactor else ''}[{a.sym}]" for a in axes)


def test_rfactor_of_the_serial_part_of_a_row():
    fusion, _, t, s, _ = add_sum()
    split(s, 1, 8)
    split(s, 1, 4, inner_split=False)
    reorder(s, {1: 2})
    s.axis(0).parallelize(ParallelType.grid_x)
    s.axis(1).parallelize(ParallelType.block_x)
    s.axis(1).pad_to_multiple_of_warp()
    part = rfactor(s, [2, 3])
    assert loops(part) == "i:grid_x[n] i:block_x[ceildiv(ceildiv(m, 8), 4)] r[4] r[8]"
    assert loops(s) == "i:grid_x[n] r:block_x[ceildiv(ceildiv(m, 8), 4)]"
    assert part.axis(1).padded_to_warp and s.axis(1).padded_to_warp
    assert kinds(part.get_root_domain()) == "i[n] r[m]"
    assert kinds(part.get_logical_domain()) == "i[n] i*[ceildiv(ceildiv(m, 8), 4)] r*[4] r*[8]"
    assert kinds(s.get_logical_domain()) == "i[n] r[ceildiv(ceildiv(m, 8), 4)]"
    assert part.definition().inputs == [t] and s.definition().inputs == [part] and t.uses() == [part.definition()]
    assert isinstance(part.definition(), ReductionOp) and part.definition().attributes == s.definition().attributes
    check_schedule(fusion)


def test_transforms_of_kept_axes_stay_in_the_loop_domain():
    _, _, _, s, _ = add_sum()
    split(split(s, 1, 4), 0, 2)
    part = rfactor(s, [3])
    assert kinds(part.get_logical_domain()) == "i[n] i*[ceildiv(m, 4)] r*[4]"
    assert loops(part) == "i[ceildiv(n, 2)] i[2] i[ceildiv(m, 4)] r[4]"
    assert loops(s) == "i[ceildiv(n, 2)] i[2] r[ceildiv(m, 4)]"


def test_a_whole_axis_can_stay():
    fusion = Fusion()
    s = fold("sum", tensor(fusion, 2, 3, 5), 0, 2)
    part = rfactor(s, [0])
    assert kinds(part.get_root_domain()) == "r[2] i[3] i*[5]"
    assert kinds(part.get_logical_domain()) == "r[2] i[3] i*[5]"
    assert loops(s) == "i[3] r[5]"


def test_merged_reduction_axes_stand_where_the_first_stood():
    fusion = Fusion()
    s = fold("max", tensor(fusion, 2, 3, 5), 0, 2)
    merge(s, 0, 2)
    split(s, 0, 4)
    part = rfactor(s, [1])
    assert kinds(part.get_root_domain()) == "r[2] i[3] r[5]"
    assert kinds(part.get_logical_domain()) == "i*[3] r*[4] i[3]"
    assert kinds(s.get_logical_domain()) == "r[3] i[3]"


def test_the_second_part_can_be_cut_again():
    _, _, _, s, _ = add_sum(8, 64)
    split(split(s, 1, 4), 1, 8)
    first = rfactor(s, [3])
    second = rfactor(s, [2])
    assert (loops(first), loops(second), loops(s)) == ("i[8] i[2] i[8] r[4]", "i[8] i[2] r[8]", "i[8] r[2]")


def test_the_first_part_can_be_cut_again():
    """What it leaves to the second part are ordinary axes of its own second part; the root goes to the new first part."""
    fusion, _, t, s, _ = add_sum(8, 64)
    split(split(s, 1, 4), 1, 8)
    part = rfactor(s, [2, 3])
    first = rfactor(part, [3])
    assert (loops(first), loops(part), loops(s)) == ("i[8] i[2] i[8] r[4]", "i[8] i[2] r[8]", "i[8] r[2]")
    assert kinds(first.get_root_domain()) == "i[8] r[64]"
    assert not part.has_root() and kinds(part.get_logical_domain()) == "i[8] i[2] r[8]"
    assert [x.definition().inputs for x in (first, part, s)] == [[t], [first], [part]]
    check_schedule(fusion)


def test_an_output_keeps_its_order_in_memory():
    fusion = Fusion()
    s = fold("sum", tensor(fusion, 2, 3, 8), 2)
    fusion.add_output(s)
    a, b, r = s.get_logical_domain()
    s.domain().allocation, s.domain().contiguity = [b, a, r], [True, False, None]
    split(s, 2, 4)
    rfactor(s, [2])
    assert (s.get_allocation_domain(), s.domain().contiguity) == ([b, a], [True, False])


@pytest.mark.parametrize(
    "axes, reason, remedy",
    [
        ([0], "iS4{n} is not a reduction axis", "name reduction axes only"),
        ([], "no axis is named", "name at least one reduction axis"),
        ([1, -1], "no reduction axis is left for the second part", "omit one of the axes"),
    ],
)
def test_what_rfactor_refuses(axes, reason, remedy):
    _, _, _, s, _ = add_sum()
    split(s, 1, 4)
    with pytest.raises(WeftError) as error:
        rfactor(s, axes)
    assert message(error.value) == f"W640: cannot rfactor axes {axes} of {s}: {reason}\n  fix: {remedy}"


def test_rfactor_is_for_reductions_that_are_not_inlined():
    _, _, t, s, _ = add_sum()
    with pytest.raises(BadRfactor, match="it is not made by a reduction"):
        rfactor(t, [0])
    split(s, 1, 4)
    part = rfactor(s, [2])
    with pytest.raises(BadRfactor, match="no reduction axis is left for the second part"):
        rfactor(part, [2])
    inline_at(part, 1, selected_tensors=[part])
    with pytest.raises(WeftError, match="is inlined into it"):
        rfactor(s, [1])


def test_welford_reductions_are_translated_first():
    fusion = Fusion()
    mean, _, _ = welford(fusion, op("neg", tensor(fusion, "n", "m")), [1])
    split(mean, 1, 4)
    with pytest.raises(Unsupported, match="call schedule.welford.translate_welford first"):
        rfactor(mean, [1])
