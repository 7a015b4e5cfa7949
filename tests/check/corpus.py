"""Every kernel that the test suite launches in the emulator, once more in 8 orders: a report of any of them is false, or a bug.

    python tests/check/corpus.py [--seeds N] [--random N] [pytest's arguments]

Prints how many kernels there were and what was found; exits with 1 when something was. Tests that plant mistakes are left out.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS.parent), str(TESTS / "random_fusions")]

import pytest  # noqa: E402

from weft.check.script import KernelWatch  # noqa: E402
from weft.runtime import engines  # noqa: E402

WITHOUT = ("check", "emulator", "style", "docs")
KNOWN = (
    "runtime/test_engines.py::test_a_failed_emulated_launch_forgets_the_zeroed_memory",  # of a launch that is none
)
LARGE_BYTES = 16 << 20
SAMPLED_BLOCKS = 8


class CorpusWatch(KernelWatch):
    """Explores large launches on some of their blocks."""

    def __call__(self, call: engines.EmulatedCall) -> None:
        large = sum(m.bytes for m in call.plan.memory) > LARGE_BYTES
        self.blocks = SAMPLED_BLOCKS if large else None
        super().__call__(call)


class Plugin:
    """Watches during each test."""

    def __init__(self, watch: KernelWatch) -> None:
        self.watch = watch

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item):  # noqa: ANN201
        with self.watch.watching():
            return (yield)


def random_fusions(count: int, watch: KernelWatch) -> None:
    """Run random fusions under watch."""
    from fusion_check import check
    from fusion_generator import random_case

    with watch.watching():
        for seed in range(count):
            check(random_case(seed))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--random", type=int, default=0, help="random fusions, besides those of the suite")
    given, rest = parser.parse_known_args()
    watch = CorpusWatch(tuple(range(given.seeds)))
    start = time.perf_counter()
    chosen = rest or [str(TESTS), *(f"--ignore={TESTS / name}" for name in WITHOUT), *(f"--deselect=tests/{name}" for name in KNOWN)]
    pytest.main(["-q", "--no-header", "-p", "no:cacheprovider", "--tb=no", *chosen], plugins=[Plugin(watch)])
    random_fusions(given.random, watch)
    found = [k for k in watch.kernels.values() if not k.exploration.is_clean]
    for kernel in found:
        print(kernel.text())
    texts = len({k.program.text for k in watch.kernels.values()})
    launches = sum(k.launches for k in watch.kernels.values())
    spent = time.perf_counter() - start
    print(f"{texts} kernels at {len(watch.kernels)} sets of sizes ({launches} launches), {given.seeds} orders each: {len(found)} with findings, in {spent:.0f} s")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
