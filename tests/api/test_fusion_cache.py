"""LRUCache and LruFusionCache: executors by structure, eviction, and the text of the statistics."""

import pytest
from example_definitions import unary

from weft import FusionDefinition, LRUCache, LruFusionCache
from weft.api import executors


class FakeExecutorCache:
    """Owns a fusion, as the runtime's FusionExecutorCache does."""

    def __init__(self, fusion, fusion_id=0):
        self._fusion, self.fusion_id = fusion, fusion_id

    def fusion(self):
        return self._fusion


@pytest.fixture(autouse=True)
def fake_executors(monkeypatch):
    monkeypatch.setattr(executors, "executor_cache", FakeExecutorCache)


def fusion(op="relu"):
    with FusionDefinition() as fd:
        unary(fd, op=op)
    return fd.fusion


def test_the_same_structure_gets_the_same_executor():
    cache = LRUCache(max_fusions=4)
    first, other = cache.cache_compile(fusion()), cache.cache_compile(fusion("exp"))
    assert cache.cache_compile(fusion()) is first and first is not other
    assert cache.num_fusions() == 2 and (first.fusion_id, other.fusion_id) == (0, 1)


def test_the_least_recently_used_leaves_first():
    cache = LRUCache(2)
    relu, exp = cache.cache_compile(fusion("relu")), cache.cache_compile(fusion("exp"))
    cache.cache_compile(fusion("relu"))
    cache.cache_compile(fusion("sin"))
    assert cache.num_fusions() == 2 and cache.cache_compile(fusion("relu")) is relu
    assert cache.cache_compile(fusion("exp")) is not exp


def test_stats_of_an_empty_cache():
    assert LRUCache(8).stats() == "Max Fusions Allowed: 8\nThe fusion cache is empty.\n"


def test_stats_list_hits_from_the_most_recently_used():
    cache = LRUCache(8)
    for op in ("relu", "exp", "relu", "relu"):
        cache.cache_compile(fusion(op))
    assert cache.stats() == (
        "Max Fusions Allowed: 8\n"
        "Total Fusions in Cache: 2\n"
        "Total Unique Fusions Compiled: 2\n"
        "Cache Hits by LRU ordering:\n"
        "\t0 -> 2 hits\n"
        "\t1 -> 0 hits\n"
        "Cache Lookups: 4\n"
        "Cache Hits: 2\n"
        "Hit Rate: 50%\n"
    )


def test_the_hit_rate_has_six_digits():
    cache = LRUCache(8)
    for op in ("relu", "exp", "relu"):
        cache.cache_compile(fusion(op))
    assert cache.stats().endswith("Hit Rate: 33.3333%\n")


@pytest.mark.parametrize(("value", "error"), [(0, RuntimeError), (-1, RuntimeError), ("a", TypeError), (1.5, TypeError)])
def test_capacities_that_make_no_sense(value, error):
    with pytest.raises(error):
        LRUCache(value)


def test_the_decorator_shares_executors_between_calls():
    @LruFusionCache(max_fusions=4)
    def define(op):
        """Define one."""
        with FusionDefinition() as fd:
            unary(fd, op=op)
        return fd

    a, b, c = define("relu"), define("relu"), define("exp")
    assert a.fec is b.fec is not c.fec and define.num_fusions() == 2 and "Cache Hits: 1\n" in define.stats()
    assert a.fusion is a.fec.fusion() and not hasattr(a, "_fusion") and define.__doc__ == "Define one."


def test_the_decorator_wants_a_definition():
    with pytest.raises(TypeError, match="returned int, not a FusionDefinition"):
        LruFusionCache()(lambda: 3)()


def test_an_executor_set_by_hand_takes_over_the_definition():
    with FusionDefinition() as fd:
        unary(fd)
    text = repr(fd)
    fd.fec = LRUCache(2).cache_compile(fd.fusion)
    del fd._fusion
    assert repr(fd) == text and fd.validate_definition() == (True, None)
