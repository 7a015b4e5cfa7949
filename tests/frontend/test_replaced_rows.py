"""Places that an index names get new values: `index_put`, `index_copy` and `scatter` in kernels, and caches that the graph changes, of which only rows move.

Each program runs compiled (strict, in the emulator with its checks, outputs poisoned) beside eager torch in float64, and must leave equal arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from fusion_check import poisoned_outputs
from half_of_pairs import half, name_of

from weft import options
from weft.frontend.backend import GRAPHS, backend

Program = Callable[..., Any]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def check(function: Program, *given: torch.Tensor, calls: int = 2, dynamic: bool = False) -> None:
    """Compare results and arguments with eager float64. Values are moved, or products with powers of two, so that both are equal."""
    fast = torch.compile(function, backend=backend, dynamic=dynamic, options={"emulate": True, "strict": True})
    wide = [v.to(torch.float64 if v.is_floating_point() else v.dtype, copy=True) for v in given]
    with torch.no_grad(), nullcontext() if dynamic else poisoned_outputs():  # torch traces open sizes within the block
        for _ in range(calls):
            made, wanted = fast(*given), function(*wide)
            for a, b in zip([*given, *flat(made)], [*wide, *flat(wanted)], strict=True):
                torch.testing.assert_close(a.double(), b.double(), rtol=0, atol=0)


def flat(value: Any) -> list[torch.Tensor]:
    return [] if value is None else [value] if isinstance(value, torch.Tensor) else list(value)


def torch_ops() -> set[str]:
    return {op for graph in GRAPHS for op in graph.torch_ops}


def kernels() -> int:
    return sum(len(call.kernels()) for graph in GRAPHS for call in graph.calls)


def updates() -> int:
    return sum(len(call.region.updates) for graph in GRAPHS for call in graph.calls)


def integers(*shape: int) -> torch.Tensor:
    """Values that every type has, and their products with 2."""
    return torch.randint(-30, 30, shape)


def behind_an_axis(x: torch.Tensor, v: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
    out = x.clone()
    out[:, i, j] = v
    return out


CASES: dict[str, tuple[Program, tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {  # function, sizes of target and values, places: count, of
    "index_copy of rows": (lambda x, v, i: x.index_copy(0, i, v * 2), (10, 33), (7, 33), (7, 10)),
    "index_copy of columns": (lambda x, v, i: x.index_copy(1, i, v * 2), (9, 17), (9, 5), (5, 17)),
    "index_copy of an inner axis": (lambda x, v, i: x.index_copy(-2, i, v * 2), (2, 3, 17, 8), (2, 3, 5, 8), (5, 17)),
    "one row": (lambda x, v, i: x.index_copy(0, i, v * 2), (1, 5), (1, 5), (1, 1)),
    "one column": (lambda x, v, i: x.index_copy(0, i, v * 2), (12, 1), (5, 1), (5, 12)),
    "one axis": (lambda x, v, i: x.index_copy(0, i, v * 2), (301,), (77,), (77, 301)),
    "no places": (lambda x, v, i: x.index_copy(0, i, v * 2), (10, 6), (0, 6), (0, 10)),
    "no elements": (lambda x, v, i: x.index_copy(0, i, v * 2), (10, 0), (3, 0), (3, 10)),
    "positions from the end": (lambda x, v, i: x.index_put((i - 10,), v * 2), (10, 33), (7, 33), (7, 10)),
    "places in two axes": (lambda x, v, i: x.index_put((i.view(2, 3),), v * 2), (10, 5), (2, 3, 5), (6, 10)),
    "one row for all places": (lambda x, v, i: x.index_put((i,), v * 2), (10, 33), (33,), (7, 10)),
    "one number for all places": (lambda x, v, i: x.index_put((i,), v.sum().to(x.dtype)), (10, 33), (1,), (7, 10)),
    "one element of each row": (lambda x, v, i: x.index_put((i,), v * 2), (10, 33), (7, 1), (7, 10)),
    "two indices": (lambda x, v, i: x.index_put((i // 3, i % 3), v * 2), (4, 3, 5), (7, 5), (7, 12)),
    "two indices behind an axis": (lambda x, v, i: behind_an_axis(x, v * 2, i // 3, i % 3), (2, 4, 3, 5), (2, 7, 5), (7, 12)),
    "two indices in front of none": (lambda x, v, i: x.index_put((i // 3, i % 3), v * 2), (4, 3), (7,), (7, 12)),
    "a place in a computed tensor": (lambda x, v, i: (x * 2).index_put((i,), v) * 2, (10, 33), (7, 33), (7, 10)),
    "two after each other": (lambda x, v, i: x.index_copy(0, i, v).index_copy(0, i - i.min(), v * 2), (10, 33), (7, 33), (7, 10)),
}  # fmt: skip


@pytest.mark.parametrize(("name", "dtype"), half(CASES, [torch.float32, torch.bfloat16, torch.int8]), ids=str)
def test_values_replace_others(name: str, dtype: torch.dtype) -> None:
    function, sizes, of_values, (count, places) = CASES[name]
    check(function, integers(*sizes).to(dtype), integers(*of_values).to(dtype), torch.randperm(places)[:count])
    assert not torch_ops()


@pytest.mark.parametrize("name", ["index_copy of rows", "index_copy of an inner axis", "one axis", "two indices"])
def test_open_sizes(name: str) -> None:
    function, sizes, of_values, (count, places) = CASES[name]
    check(function, integers(*sizes).float(), integers(*of_values).float(), torch.randperm(places)[:count], dynamic=True)


SCATTERS: dict[str, tuple[Program, tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {  # function, sizes of target, values, index
    "all rows": (lambda x, v, i: x.scatter(1, i, v * 2), (9, 33), (9, 17), (9, 17)),
    "a part of the rows and of the values": (lambda x, v, i: x.scatter(1, i, v * 2), (9, 33), (9, 21), (5, 17)),
    "a number": (lambda x, v, i: x.scatter(1, i, 7), (9, 33), (9, 17), (9, 17)),
    "few": (lambda x, v, i: x.scatter(1, i, v * 2), (9, 33), (9, 3), (9, 3)),
    "an axis in front": (lambda x, v, i: x.scatter(0, i, v * 2), (40, 7), (12, 7), (12, 7)),
}


@pytest.mark.parametrize("is_in_place", [False, True])
@pytest.mark.parametrize("name", SCATTERS)
def test_scatters(name: str, is_in_place: bool) -> None:
    function, sizes, of_values, of_index = SCATTERS[name]
    dim = 0 if name == "an axis in front" else 1
    places = torch.rand(*of_index[:dim], sizes[dim], *of_index[dim + 1 :]).argsort(dim).narrow(dim, 0, of_index[dim]).contiguous()
    program = (lambda x, v, i: x.copy_(function(x, v, i)).sum()) if is_in_place else function
    check(program, integers(*sizes).float(), integers(*of_values).float(), places)
    assert updates() == is_in_place and not torch_ops()


# ---------------------------------------------------------------- arguments
def by_index_copy(cache: torch.Tensor, k: torch.Tensor, at: torch.Tensor) -> None:
    cache.index_copy_(2, at, k * 2)


def by_assignment(cache: torch.Tensor, k: torch.Tensor, at: torch.Tensor) -> None:
    cache[:, :, at] = k * 2


def and_read(cache: torch.Tensor, k: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    cache.index_copy_(2, at, k * 2)
    return cache * 2


def twice(cache: torch.Tensor, k: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    cache.index_copy_(2, at, k * 4)
    cache.index_copy_(2, at, k * 2)
    return cache.float().sum()


def and_returned(cache: torch.Tensor, k: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    return cache.index_copy_(2, at, k * 2)


KERNELS = {by_index_copy: 1, by_assignment: 1, and_read: 2, twice: 3, and_returned: 1}
"""Of each program: one for each write, and one that reads the cache."""


ROWS = [(1, (2, 3, 17, 8)), (5, (2, 3, 17, 8)), (5, (1, 1, 17, 8)), (1, (2, 3, 17, 5)), (5, (2, 1, 17, 1))]
"""How many rows of a cache are replaced, and its sizes."""


@pytest.mark.parametrize(("program", "rows"), half(KERNELS, ROWS), ids=name_of)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8], ids=str)
def test_rows_of_a_cache(program: Program, rows: tuple[int, tuple[int, ...]], dtype: torch.dtype) -> None:
    count, sizes = rows
    b, h, s, d = sizes
    before = integers(*sizes).to(dtype)
    if dtype is torch.int8:
        before = before.clamp(-9, 9)
    check(program, before, integers(b, h, count, d).clamp(-9, 9).to(dtype), torch.randperm(s)[:count])
    assert updates() == 1 and not torch_ops() and kernels() == KERNELS[program]


@pytest.mark.parametrize("order", [(0, 2, 1, 3), (2, 0, 1, 3)], ids=str)
def test_a_cache_in_another_order_of_memory(order: tuple[int, ...]) -> None:
    """Tokens in front of heads, or of samples."""
    cache = integers(*[(2, 3, 17, 8)[d] for d in order]).float().permute(*[order.index(d) for d in range(4)])
    check(by_index_copy, cache, integers(2, 3, 5, 8).float(), torch.randperm(17)[:5])
    assert updates() == 1 and not torch_ops()


def test_a_part_of_a_larger_cache() -> None:
    """It has gaps: torch writes into it."""
    check(by_index_copy, integers(2, 5, 17, 8).float()[:, 1:4], integers(2, 3, 5, 8).float(), torch.randperm(17)[:5])
    assert updates() == 0 and torch_ops() == {"aten.index_put.default"}


def test_pages_by_two_indices() -> None:
    def program(cache: torch.Tensor, k: torch.Tensor, at: torch.Tensor) -> None:
        cache[at // 4, at % 4] = k * 2

    cache = integers(6, 4, 3, 8).float()
    check(program, cache, integers(9, 3, 8).float(), torch.randperm(24)[:9])
    assert updates() == 1 and not torch_ops() and kernels() == 1
    torch._dynamo.reset()
    check(program, cache.transpose(0, 1).contiguous().transpose(0, 1), integers(9, 3, 8).float(), torch.randperm(24)[:9])
    assert updates() == 1 and not torch_ops()


def test_each_sample_has_its_own_length() -> None:
    def program(keys: torch.Tensor, values: torch.Tensor, k: torch.Tensor, v: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
        rows = torch.arange(k.shape[0])
        keys[rows, length] = k * 2
        values[rows, length] = v
        return length + 1

    check(program, *(integers(5, 7, 3, 8).float() for _ in range(2)), *(integers(5, 3, 8).float() for _ in range(2)), torch.randint(0, 7, (5,)))
    assert updates() == 2 and not torch_ops() and kernels() == 2  # one of them writes both caches


def test_readers_of_the_old_value() -> None:
    """In the region itself, and in an op of torch in front of it and behind it."""

    def beside(cache: torch.Tensor, k: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        old = cache * 2
        cache.index_copy_(2, at, k * 2)
        return old + cache

    def in_front(cache: torch.Tensor, k: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        old = cache @ cache.mT
        cache.index_copy_(2, at, k * 2)
        return old + (cache @ cache.mT)

    def behind(cache: torch.Tensor, k: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        k = k * 2
        old = cache @ k.mT
        cache.index_copy_(2, at, k)
        return old * (cache @ k.mT)

    for program in (beside, in_front, behind):
        torch._dynamo.reset()
        check(program, integers(2, 3, 17, 8).float(), integers(2, 3, 5, 8).clamp(-3, 3).float(), torch.randperm(17)[:5])


def test_arguments_that_overlap() -> None:
    def program(cache: torch.Tensor, k: torch.Tensor, at: torch.Tensor) -> None:
        cache.index_copy_(0, at, k * 2)

    fast = torch.compile(program, backend=backend, dynamic=False, options={"emulate": True, "strict": True})
    at = torch.tensor([0, 3, 6, 9, 12])
    whole, again = (torch.arange(20 * 6).float().view(20, 6) for _ in range(2))
    with torch.no_grad():
        for _ in range(3):
            fast(whole[2:18], whole[1:6], at)
            program(again[2:18], again[1:6].clone(), at)
    assert torch.equal(whole, again)


def test_equal_calls_must_return_equal_bits() -> None:
    def program(cache: torch.Tensor, k: torch.Tensor, at: torch.Tensor) -> None:
        cache.index_put_((at,), k * 2)

    with options(deterministic=True):
        check(program, integers(6, 8).float(), integers(9, 8).float(), torch.randperm(6)[[0, 1, 2, 3, 4, 5, 0, 1, 2]])
    assert torch_ops() == {"aten.index_put.default"}


def test_places_that_an_index_names_twice_have_one_of_the_values() -> None:
    def program(cache: torch.Tensor, k: torch.Tensor, at: torch.Tensor) -> None:
        cache.index_put_((at,), k * 2)

    cache, k, at = torch.zeros(6, 8), torch.randn(40, 8), torch.randint(0, 5, (40,))
    with torch.no_grad():
        torch.compile(program, backend=backend, options={"emulate": True, "strict": True})(cache, k, at)
    for row in range(6):
        choices = 2 * k[at == row] if (at == row).any() else torch.zeros(1, 8)
        assert (cache[row] == choices).any(0).all()


ADDS: dict[str, Program] = {
    "index_add": lambda x, v, i: x.index_add_(0, i, v * 2).sum(),
    "scatter_add": lambda x, v, i: x.scatter_add_(0, i[:, None].expand_as(v), v * 2).sum(),
    "index_put": lambda x, v, i: x.index_put_((i,), v * 2, accumulate=True).sum(),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ADDS)
def test_rows_are_added_to_an_argument_where_it_lies(name: str, dtype: torch.dtype) -> None:
    """Whole numbers, of which all sums are exact. 16 bits are added by torch, in place."""
    x = torch.zeros(1, 10, 33).to(dtype)[0] if dtype is torch.bfloat16 else integers(10, 33).to(dtype)
    given = x, integers(25, 33).clamp(-2, 2).to(dtype), torch.randint(0, 10, (25,))
    check(lambda x, v, i: ADDS[name](x, v, i).double(), *given)
    assert dtype is torch.bfloat16 or updates() == 1 and not torch_ops() and kernels() == 2


# ---------------------------------------------------------------- attention with a cache of fixed size
class Attention(torch.nn.Module):
    """As models of transformers have it: positions turned, keys and values written to their places, products with the whole cache behind a mask."""

    def __init__(self, heads: int, width: int, length: int, batch: int) -> None:
        super().__init__()
        self.heads, self.width = heads, width
        self.q, self.k, self.v = (torch.nn.Linear(heads * width, heads * width, bias=False) for _ in range(3))
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(batch, heads, length, width))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        q, k, v = (p(x).view(*x.shape[:2], self.heads, self.width).transpose(1, 2) for p in (self.q, self.k, self.v))
        turns = at[:, None].to(x.dtype) * 0.01 ** (torch.arange(self.width // 2) / self.width)
        c, s = (torch.cat((f(turns), f(turns)), -1).to(x.dtype) for f in (torch.cos, torch.sin))
        q, k = (y * c + torch.cat((-y[..., self.width // 2 :], y[..., : self.width // 2]), -1) * s for y in (q, k))
        self.keys.index_copy_(2, at, k)
        self.values.index_copy_(2, at, v)
        mask = torch.arange(self.keys.shape[2]) <= at[:, None]
        out = torch.nn.functional.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask)
        return x + out.transpose(1, 2).flatten(2)


@pytest.mark.parametrize("dynamic", [False, True])
def test_prefill_and_decode_with_a_cache_of_fixed_size(dynamic: bool) -> None:
    torch.manual_seed(0)
    model, batch = Attention(3, 8, 40, 2), 2
    exact = Attention(3, 8, 40, 2).double()
    exact.load_state_dict(model.state_dict())
    fast = torch.compile(model, backend=backend, dynamic=dynamic, options={"emulate": True, "strict": True})
    at = 0
    with torch.no_grad(), nullcontext() if dynamic else poisoned_outputs():
        for length in (7, 1, 1, 5, 1):
            x, places = torch.randn(batch, length, 24), torch.arange(at, at + length)
            torch.testing.assert_close(fast(x, places).double(), exact(x.double(), places), atol=1e-5, rtol=1e-5)
            for name in ("keys", "values"):
                torch.testing.assert_close(getattr(model, name).double(), getattr(exact, name), atol=1e-5, rtol=1e-5)
            at += length
    assert updates() == 2 * len(GRAPHS) and not {op for op in torch_ops() if "index" in op or "copy" in op}
