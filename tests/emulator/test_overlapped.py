"""Two kernels at once: what the second does before its wait is compared with what the first does, whenever that is."""

from __future__ import annotations

import pytest
import torch

from weft.emulator import Buffer, EmulatedKernel, KernelFault
from weft.emulator.overlapped import KernelCall, launch_overlapped

WRITER = """
extern "C" __global__ void writer(const float* T0, float* T1) {
  const int i = blockIdx.x * 64 + threadIdx.x;
  const float x = weft::load_global(T0 + i);
  weft::griddep_launch();
  weft::store_global(T1 + i, 2.f * x);
}
"""
READER = """
extern "C" __global__ void reader(const float* T0, const float* T1, float* T2) {
  const int i = blockIdx.x * 32 + threadIdx.x;
  const float w = weft::load_global(T1 + i);  // a weight
  BEFORE
  weft::griddep_wait();
  AFTER
  weft::store_global(T2 + i, weft::load_global(T0 + i) + w);
}
"""
ORDERS = [(None, "early"), (None, "late"), *((seed, "early") for seed in range(4))]
LINE = "weft::store_global(T2 + i, weft::load_global(T0 + i) + w);"


class Pair:
    """Both kernels on one set of tensors: the reader adds its weights to what the writer makes of x."""

    def __init__(self, before: str = "", after: str = "", *, writer: str = WRITER, reader: str = READER) -> None:
        self.x, self.y, self.w, self.z = torch.arange(256.0), torch.full((256,), -7.0), torch.rand(256), torch.full((256,), -7.0)
        written, own = Buffer.of(self.y, "T1", written=True, initialised=False), Buffer.of(self.z, "T2", written=True, initialised=False)
        texts = writer, reader.replace("BEFORE", before).replace("AFTER", after)
        first, second = (EmulatedKernel.of_text(text, [], name, check="races") for text, name in zip(texts, ("writer", "reader")))
        sizes = {"shared_bytes": 0}
        self.first = KernelCall(first, {"grid": (4, 1, 1), "block": (64, 1, 1), **sizes}, [Buffer.of(self.x, "T0"), written])
        self.second = KernelCall(second, {"grid": (8, 1, 1), "block": (32, 1, 1), **sizes}, [Buffer.of(self.y, "T0"), Buffer.of(self.w, "T1"), own])

    def report(self, seed: int | None, overlap: str):
        self.y.fill_(-7.0)
        return launch_overlapped(self.first, self.second, seed=seed, overlap=overlap, raise_findings=False)


@pytest.mark.parametrize("seed, overlap", ORDERS)
def test_a_kernel_that_waits_is_right_and_clean(seed: int | None, overlap: str) -> None:
    pair = Pair()
    report = pair.report(seed, overlap)
    assert not report.findings, [f.text() for f in report.findings]
    assert torch.equal(pair.z, 2 * pair.x + pair.w)


@pytest.mark.parametrize("seed, overlap", ORDERS)
def test_a_read_before_the_wait_is_reported_in_any_order(seed: int | None, overlap: str) -> None:
    (finding,) = Pair("weft::load_global(T0 + i);").report(seed, overlap).findings
    assert (finding.kind, finding.line_text.strip(), finding.other_line_text.strip()) == (
        "overlaps-kernel-before", "weft::load_global(T0 + i);", "weft::store_global(T1 + i, 2.f * x);",
    )  # fmt: skip
    assert "read of 'T0' + " in finding.message and "of reader at line 5 is not behind griddep_wait()" in finding.message
    assert "writer, the kernel before, writes there at line 6" in finding.message and "griddep_wait() in front of the access" in finding.hint


def test_what_was_read_too_early_is_what_was_there_before() -> None:
    """The second kernel really runs before the first one's last stores."""
    pair = Pair("const float y = weft::load_global(T0 + i);", "", reader=READER.replace("weft::load_global(T0 + i) + w", "y + w"))
    pair.report(None, "early")
    assert torch.equal(pair.z, pair.w - 7)
    pair.report(None, "late")
    assert torch.equal(pair.z, 2 * pair.x + pair.w)


@pytest.mark.parametrize("seed, overlap", ORDERS)
def test_a_write_over_what_the_kernel_before_reads(seed: int | None, overlap: str) -> None:
    pair = Pair("weft::store_global(T2 + i, 0.f);")
    pair.second.arguments[2] = Buffer.of(pair.x, "T2", written=True)
    (finding,) = pair.report(seed, overlap).findings
    assert finding.kind == "overlaps-kernel-before" and finding.message.startswith("write of 'T2' + ")
    assert finding.message.endswith("reads there at line 4") and finding.line_text.strip() == "weft::store_global(T2 + i, 0.f);"


def test_memory_that_the_kernel_before_does_not_touch_is_free_before_the_wait() -> None:
    assert not Pair("weft::store_global(T2 + i, 0.f);").report(None, "early").findings


def test_another_thread_may_wait_if_a_barrier_follows() -> None:
    one_waits = READER.replace("weft::griddep_wait();", "if (threadIdx.x == 0) weft::griddep_wait();")
    for after, kinds in (("weft::block_sync();", set()), ("", {"overlaps-kernel-before"})):
        assert Pair(after=after, reader=one_waits).report(None, "early").kinds() == kinds


@pytest.mark.parametrize("seed, overlap", ORDERS)
def test_a_kernel_that_never_waits_ends_what_those_behind_it_rely_on(seed: int | None, overlap: str) -> None:
    idle = READER.replace("weft::griddep_wait();", "").replace(LINE, "weft::store_global(T2 + i, w);")
    assert Pair(reader=idle).report(seed, overlap).kinds() == {"no-griddep-wait"}


def test_without_a_launch_the_second_starts_when_blocks_have_ended() -> None:
    early_reader, without = READER.replace("weft::load_global(T0 + i) + w", "y + w"), WRITER.replace("weft::griddep_launch();", "")
    pair = Pair("const float y = weft::load_global(T0 + i);", reader=early_reader, writer=without)
    assert pair.report(None, "early").kinds() == {"overlaps-kernel-before"}, "the end of a block shows nothing to others"
    assert torch.equal(pair.z, 2 * pair.x + pair.w)


def test_findings_of_one_kernel_alone_are_still_found() -> None:
    assert "out-of-bounds" in Pair(reader=READER.replace("T2 + i,", "T2 + i + 1,")).report(None, "early").kinds()
    early = Pair("weft::load_global(T0 + i);")
    with pytest.raises(KernelFault, match="reader behind writer"):
        launch_overlapped(early.first, early.second)
