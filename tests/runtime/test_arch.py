"""Chip records and the register model."""

from __future__ import annotations

import pytest

from weft.arch import A100, B200, CHIPS, H100, H200, Arch, DriverMissing, NoSuchDevice, UnknownChip, arch_by_name, arch_of_device, device_count


def test_names_are_found_in_any_case() -> None:
    assert arch_by_name("h200") is H200
    with pytest.raises(UnknownChip) as error:
        arch_by_name("H201")
    assert str(error.value).splitlines()[0] == "W710: there is no chip named 'H201'"
    assert "did you mean" in str(error.value)


@pytest.mark.parametrize(("threads", "registers"), [(384, 168), (512, 128), (640, 96), (896, 72), (1024, 64), (2048, 32), (32, 255)])
def test_registers_per_thread(threads: int, registers: int) -> None:
    assert H100.registers_per_thread(threads) == registers


@pytest.mark.parametrize("chip", CHIPS.values(), ids=CHIPS)
def test_threads_for_registers_is_the_inverse(chip: Arch) -> None:
    """With as many threads as fit, each may use at least the registers asked for; with one more warp a partition, fewer."""
    for registers in range(1, 256):
        threads = chip.threads_per_sm_for(registers)
        assert chip.registers_per_thread(threads) >= registers
        if threads < chip.max_threads_per_sm:
            assert chip.registers_per_thread(threads + 128) < registers


@pytest.mark.parametrize(
    ("threads", "registers", "shared_bytes", "blocks"),
    [
        (256, 32, 0, 8),  # threads: 2048 / 256
        (32, 32, 0, 32),  # blocks
        (256, 64, 0, 4),  # registers: 1024 threads
        (1024, 64, 0, 1),
        (1024, 65, 0, 0),  # rounded up to 72 registers, 32 warps do not fit
        (128, 32, 227 * 1024, 1),  # shared memory
        (128, 32, 113 * 1024, 2),  # with CUDA's own KiB twice 114
        (128, 32, 114 * 1024, 1),
        (128, 32, 228 * 1024, 0),
        (2048, 16, 0, 0),
        (96, 168, 0, 4),  # 12 warps by registers, 3 a block
    ],
)
def test_blocks_per_sm(threads: int, registers: int, shared_bytes: int, blocks: int) -> None:
    assert H100.blocks_per_sm(threads, registers, shared_bytes) == blocks


@pytest.mark.parametrize("chip", [A100, H100, H200, B200], ids=lambda chip: chip.name)
def test_clock_and_width_agree_with_the_data_sheet(chip: Arch) -> None:
    from_clock = 2 * chip.bus_width_bits / 8 * chip.memory_clock_khz * 1e3
    assert from_clock == pytest.approx(chip.dram_bytes_per_s, rel=0.03)
    assert chip.roof_bytes_per_s < chip.dram_bytes_per_s


def test_targets() -> None:
    assert [chip.nvrtc_target for chip in (A100, H100, H200, B200)] == ["sm_80", "sm_90a", "sm_90a", "sm_100a"]
    assert (A100.has_tma, H100.has_tma) == (False, True)


def test_a_device_is_read_through_the_driver(fake_driver) -> None:  # type: ignore[no-untyped-def]
    assert device_count() == 2
    assert arch_of_device(1) == H200
    assert arch_of_device(1) is arch_of_device(1)
    with pytest.raises(NoSuchDevice) as error:
        arch_of_device(2)
    assert str(error.value).splitlines()[0] == "W712: there is no CUDA device 2: the driver sees 2"


def test_no_driver_is_a_named_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from weft import arch

    def no_library(name: str) -> object:
        raise OSError(f"{name}: not found")

    arch.driver_library.cache_clear()
    monkeypatch.setattr(arch.ctypes, "CDLL", no_library)
    try:
        assert device_count() == 0
        with pytest.raises(DriverMissing, match="no CUDA driver: libcuda.so.1 cannot be loaded"):
            arch.driver_library()
    finally:
        arch.driver_library.cache_clear()


@pytest.mark.gpu
def test_the_table_agrees_with_the_device(real_device: int) -> None:
    read = arch_of_device(real_device)
    if read.name in CHIPS:
        assert read == CHIPS[read.name]
