"""The attacks in a size for every run; `python tests/attack ...` runs them in any size, docs/attack.md has what came of the full one."""

from __future__ import annotations

import sys
from pathlib import Path

import cache_fuzz
import kills
import many_threads
import pytest
import soak
import wrong_calls
from tally import Tally

from weft.options import options


def is_clean(tally: Tally) -> None:
    assert tally.is_clean, "\n".join([tally.row(), *tally.bad])


@pytest.mark.parametrize("surface", wrong_calls.SURFACES)
def test_wrong_calls_give_errors_with_codes(surface: str) -> None:
    is_clean(wrong_calls.attack(surface, 40, seed=1))


@pytest.mark.skipif(not hasattr(cache_fuzz.os, "mkfifo"), reason="no FIFOs here")
def test_damage_to_the_cache_is_noticed(tmp_path: Path) -> None:
    for tally in cache_fuzz.attack(tmp_path, 20, seed=1):
        is_clean(tally)


def test_kills_lose_nothing(tmp_path: Path) -> None:
    is_clean(kills.attack(tmp_path, 5, 4, seed=1))


def test_threads_do_not_disturb_each_other(tmp_path: Path) -> None:
    is_clean(many_threads.attack(tmp_path, 16, 4, seed=1))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_calls_and_definitions_hold_on_to_nothing() -> None:
    """2,000 warm calls, and 24 definitions of 6 kernels of which 3 are kept: no file and few maps more, memory within 8 MiB."""
    with options(check="", kept_kernels=3):
        for held in (soak.warm_calls(2000, looks=2), soak.definitions(24, 6, looks=3)):
            first, last = held[-2:]
            assert last.files == first.files and last.maps <= first.maps + 6 and last.resident_mib < first.resident_mib + 8, list(map(str, held))
