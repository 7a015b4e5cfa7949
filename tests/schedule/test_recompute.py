from __future__ import annotations

import pytest
import torch

from weft.errors import WeftError
from weft.ir.fusion import Fusion
from weft.ops.reductions import var_mean
from weft.schedule.caching import cache_inputs
from weft.schedule.recompute import chain_ends, recompute_chain
from weft.schedule.welford import translate_welford

from schedule_scenarios import BF16, add_sum, evaluate, message, op, softmax, spread, tensor, up


def find(fusion: Fusion, name: str):
    return next(e for e in fusion.tensor_exprs() if e.op_name == name)


def test_the_exponential_of_softmax_is_computed_again_from_the_cached_input_and_the_maximum():
    fusion = softmax(BF16)
    (_, cache), = cache_inputs(fusion)
    use = find(fusion, "div")
    kept = use.inputs[0]
    maximum = find(fusion, "broadcast").outputs[0]
    assert chain_ends(kept) == [cache, maximum]
    clone = recompute_chain(kept, use)
    assert use.inputs[0] is clone and clone is not kept
    names = [e.op_name for e in fusion.exprs([clone]) if e not in fusion.exprs([maximum])]
    assert names == ["cast", "sub", "exp"]
    assert [u.op_name for u in cache.uses()] == ["cast", "cast"] and [u.op_name for u in maximum.uses()] == ["sub", "sub"]
    torch.manual_seed(0)
    x = torch.randn(3, 7).to(torch.bfloat16)
    assert torch.equal(evaluate(fusion, [x])[0], evaluate(softmax(BF16), [x])[0])


def test_a_memo_shares_clones():
    fusion = Fusion()
    x = op("exp", tensor(fusion, "n"))
    a, b = op("neg", x), op("sin", x)
    fusion.add_output(op("add", a, b))
    memo: dict = {}
    assert recompute_chain(x, a.definition(), memo) is recompute_chain(x, b.definition(), memo)


def test_a_broadcast_of_an_input_is_cloned():
    fusion = Fusion()
    x, w = tensor(fusion, "n", "m"), tensor(fusion, "m")
    t = op("mul", x, spread(w, True, False))
    y = op("neg", t)
    fusion.add_output(y)
    cache_inputs(fusion)
    clone = recompute_chain(t, y.definition())
    assert [e.op_name for e in fusion.exprs([clone])].count("broadcast") == 1
    assert clone.definition().inputs[1] is not t.definition().inputs[1]


def test_there_is_nothing_to_clone_of_a_cache():
    fusion, x, t, _, _ = add_sum()
    (_, cache), = cache_inputs(fusion)
    assert recompute_chain(cache, t.definition()) is cache


def test_the_use_must_read_the_tensor():
    _, _, t, s, y = add_sum()
    with pytest.raises(WeftError) as error:
        recompute_chain(t, y.definition())
    assert message(error.value) == (
        f"W670: cannot recompute {t} for {y.definition()}, which does not read it\n  fix: pass an expression that reads the tensor"
    )


# ---------------------------------------------------------------- Welford
def variance(n="n", m="m") -> Fusion:
    fusion = Fusion()
    x = up(tensor(fusion, n, m, dtype=BF16))
    for out in var_mean(fusion, x, [1], correction=1):
        fusion.add_output(out)
    return fusion


def test_welford_becomes_two_passes():
    fusion = variance()
    outputs = fusion.outputs()
    (mean, squares, count), = translate_welford(fusion)
    assert [e.op_name for e in fusion.tensor_exprs()] == ["cast", "sum", "div", "broadcast", "sub", "mul", "sum", "mul"]
    assert fusion.outputs() == outputs and outputs[1] is mean
    assert [len(t.get_logical_domain()) for t in (mean, squares, count)] == [1, 2, 1]
    assert translate_welford(fusion) == []


def test_the_two_passes_compute_the_variance():
    fusion = variance()
    (_, _, count), = translate_welford(fusion)
    fusion.add_output(count)
    torch.manual_seed(0)
    x = (torch.randn(4, 9) + 3).to(torch.bfloat16)
    var, mean, n = evaluate(fusion, [x])
    expected, average = torch.var_mean(x.float(), 1)
    assert torch.allclose(var, expected) and torch.allclose(mean, average) and n.tolist() == [9, 9, 9, 9]
