from __future__ import annotations

import pytest
import torch

from weft.errors import WeftError
from weft.ir.enums import CacheOp, LoadStoreOpType, MemoryType
from weft.ir.fusion import Fusion
from weft.ir.values import LoadStoreOp, ReductionOp
from weft.ops.build import copy
from weft.ops.shapes import permute
from weft.schedule.caching import CacheOfInlined, NothingToCache, cache_after, cache_and_fork_outputs, cache_before, cache_fork, cache_inputs
from weft.schedule.inline import inline_at
from weft.schedule.primitives import split

from schedule_scenarios import BF16, F32, add_sum, evaluate, fold, loops, message, op, softmax, tensor


def permuted_input(fusion: Fusion):
    """An input [n, m] that lies in memory as [m, n]."""
    x = tensor(fusion, "n", "m")
    n, m = x.get_logical_domain()
    x.domain().allocation, x.domain().contiguity = [m, n], [True, True]
    return x


# ---------------------------------------------------------------- cache_after
def test_cache_after_stands_between_an_input_and_its_uses():
    _, x, t, _, _ = add_sum()
    cache = cache_after(x, LoadStoreOpType.cp_async, CacheOp.streaming)
    load = cache.definition()
    assert isinstance(load, LoadStoreOp) and (load.kind, load.cache_op) == (LoadStoreOpType.cp_async, CacheOp.streaming)
    assert load.inputs == [x] and x.uses() == [load] and t.definition().inputs[0] is cache
    assert (cache.memory_type, cache.dtype(), loops(cache)) == (MemoryType.local, F32, "i[n] i[m]")


def test_cache_after_drops_reduction_axes():
    _, _, _, s, y = add_sum()
    assert loops(cache_after(s)) == "i[n]"
    assert y.definition().inputs[0] is not s


def test_cache_after_of_some_uses():
    fusion = Fusion()
    x = tensor(fusion, "n")
    a, b = op("neg", x), op("exp", x)
    cache = cache_after(x, cached_uses=[b.definition()])
    assert a.definition().inputs == [x] and b.definition().inputs == [cache]
    with pytest.raises(NothingToCache, match="does not read it"):
        cache_after(x, cached_uses=[b.definition()])


def test_cache_after_of_an_op_that_reads_a_tensor_twice():
    fusion = Fusion()
    x = tensor(fusion, "n")
    square = op("mul", x, x)
    cache = cache_after(x)
    assert square.definition().inputs == [cache, cache] and cache.uses() == [square.definition()]


def test_cache_after_keeps_the_order_in_memory_unless_told_otherwise():
    fusion = Fusion()
    x = permuted_input(fusion)
    op("neg", x)
    first = cache_after(x)
    assert [str(a.sym) for a in first.get_allocation_domain()] == ["m", "n"]
    assert cache_after(first, propagate_allocation_domain=False).domain().allocation is None


def test_what_nothing_reads_has_no_cache_after():
    _, _, _, _, y = add_sum()
    with pytest.raises(WeftError) as error:
        cache_after(y)
    assert message(error.value) == (
        "W630: cannot cache_after T3_g_float[iS6{n}]: nothing reads it\n  fix: cache a tensor that is read, or use cache_before"
    )


def test_inlined_tensors_get_no_caches():
    _, _, t, s, _ = add_sum()
    inline_at(s, 1, selected_tensors=[t])
    with pytest.raises(WeftError) as error:
        cache_after(t)
    assert message(error.value) == (
        "W631: cannot cache_after T1_l_float[iS2{n}, iS3{m}] ca_pos( 1 ): it is inlined into its consumers at position 1\n  fix: make caches before inlining"
    )
    with pytest.raises(CacheOfInlined, match="T1 is inlined into it"):
        cache_before(s)


# ---------------------------------------------------------------- cache_before, cache_fork
def test_cache_before_moves_the_computation():
    fusion, _, _, s, y = add_sum()
    local = cache_before(y)
    assert local.definition().op_name == "mul" and local.definition().outputs == [local]
    assert isinstance(y.definition(), LoadStoreOp) and y.definition().inputs == [local]
    assert fusion.outputs() == [y] and (local.memory_type, y.memory_type) == (MemoryType.local, MemoryType.global_)


def test_cache_before_takes_reductions_and_transforms_with_it():
    fusion = Fusion()
    y = fold("sum", tensor(fusion, "n", "m"), 1)
    fusion.add_output(y)
    split(split(y, 1, 4), 0, 8)
    local = cache_before(y)
    assert isinstance(local.definition(), ReductionOp)
    assert loops(local) == "i[ceildiv(n, 8)] i[8] r[ceildiv(m, 4)] r[4]"
    assert loops(y) == "i[ceildiv(n, 8)] i[8]" and len(y.get_logical_domain()) == 1


def test_cache_before_of_a_permute():
    fusion = Fusion()
    y = permute(fusion, tensor(fusion, "n", "m"), [1, 0])
    fusion.add_output(y)
    local = cache_before(y)
    assert local.has_root() and not y.has_root()
    assert loops(local) == loops(y) == "i[m] i[n]"


def test_cache_before_leaves_the_output_in_its_order_in_memory():
    fusion, _, _, _, _ = add_sum()
    x = permuted_input(fusion)
    y = op("neg", x)
    n, m = y.get_logical_domain()
    y.domain().allocation = [m, n]
    fusion.add_output(y)
    assert cache_before(y).domain().allocation is None
    assert y.get_allocation_domain() == [m, n]


def test_an_input_has_no_cache_before():
    _, x, _, _, _ = add_sum()
    with pytest.raises(WeftError) as error:
        cache_before(x)
    assert message(error.value) == (
        "W630: cannot cache_before T0_g_float[iS0{n}, iS1{m}]: it is not computed in the fusion\n  fix: use cache_after for an input"
    )


def test_cache_fork_makes_the_copy_the_output():
    fusion, x, t, _, _ = add_sum()
    fusion.add_output(t, alias_input=x)
    out = cache_fork(t)
    assert fusion.outputs()[1] is out and fusion.aliases == {out: x} and fusion.hidden_outputs == {out}
    assert (t.memory_type, out.memory_type) == (MemoryType.local, MemoryType.global_)
    assert [u.op_name for u in t.uses()] == ["sum", "set"]


def test_cache_fork_is_for_outputs_that_are_read():
    _, _, t, _, y = add_sum()
    with pytest.raises(NothingToCache, match="it is not an output"):
        cache_fork(t)
    with pytest.raises(NothingToCache, match="nothing reads it"):
        cache_fork(y)


# ---------------------------------------------------------------- all at once
def test_cache_inputs_skips_what_is_not_read():
    fusion, x, _, _, _ = add_sum()
    unread = tensor(fusion, "n")
    op("neg", unread)  # dead: no output needs it
    scalar = tensor(fusion)
    scalar.is_cpu_scalar = True
    fusion.add_output(op("mul", x, scalar))
    pairs = cache_inputs(fusion)
    assert [p[0] for p in pairs] == [x] and pairs[0][1].definition().inputs == [x]


def test_outputs_are_plain_copies_of_local_tensors():
    fusion, x, t, s, y = add_sum()
    fusion.add_output(t)
    fusion.add_output(x)
    renamed = copy(fusion, op("exp", s))
    fusion.add_output(renamed)
    pairs = cache_and_fork_outputs(fusion)
    outputs = fusion.outputs()
    assert [o for _, o in pairs] == [y, outputs[1], renamed]
    assert outputs[2] is x and outputs[1] is not t
    assert pairs[1][0] is t and pairs[2][0] is renamed.definition().inputs[0]
    for inner, outer in pairs:
        assert isinstance(outer.definition(), LoadStoreOp) and outer.definition().inputs == [inner]
        assert inner.memory_type is MemoryType.local and outer.memory_type is MemoryType.global_


def test_a_copied_input_goes_through_its_register_cache():
    fusion = Fusion()
    x = tensor(fusion, "n")
    fusion.add_output(copy(fusion, x))
    (_, cache), = cache_inputs(fusion)
    (inner, _), = cache_and_fork_outputs(fusion)
    assert inner is cache


def test_caches_change_no_value():
    torch.manual_seed(0)
    x = torch.randn(3, 5).to(torch.bfloat16)
    plain, cached = softmax(BF16), softmax(BF16)
    cache_inputs(cached)
    cache_and_fork_outputs(cached)
    assert torch.equal(evaluate(plain, [x])[0], evaluate(cached, [x])[0])
