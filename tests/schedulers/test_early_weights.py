"""Weights that cp.async brings into shared memory while the row is on its way."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from fusion_check import poisoned_outputs
from part_of_chip import part_of_the_chip, rows_of_part
from row_fusions import layer_norm, numbers, rms_norm, weight, wide

from weft import DataType, FusionDefinition

BF16, FLOAT = DataType.BFloat16, DataType.Float


def scaled(norm: Callable, dtype: DataType, weights: tuple[DataType, ...], is_contiguous: bool = True) -> FusionDefinition:
    """The normalized rows times the first weight, plus the second."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=dtype)
        y = norm(fd, wide(fd, x), x)
        for op, kind in zip((fd.ops.mul, fd.ops.add), weights):
            y = op(y, weight(fd, kind, x, is_contiguous))
        fd.add_output(fd.ops.cast(y, dtype))
    return fd


def checked(fd: FusionDefinition, inputs: list[torch.Tensor]) -> tuple[str, object]:
    """Run in the emulator beside the reference; return the kernel's text and params. The rows are as many as the part of the chip has."""
    with poisoned_outputs():
        fd.validate(inputs)
    runtime = fd.fec.kernel_runtimes[-1]
    return runtime.program.text, runtime.proposal.params


@pytest.fixture(autouse=True)
def a_part_of_the_chip() -> Iterator[None]:
    with part_of_the_chip():
        yield


CASES = [
    (rms_norm, FLOAT, 133, 16384, 4), (rms_norm, FLOAT, 134, 20004, 8), (rms_norm, BF16, 530, 12008, 2), (rms_norm, BF16, 135, 30008, 4),
    (layer_norm, FLOAT, 270, 8192, 2), (layer_norm, FLOAT, 271, 10004, 4), (layer_norm, FLOAT, 140, 12284, 4), (layer_norm, BF16, 530, 16384, 1),
    (layer_norm, BF16, 530, 20008, 1), (rms_norm, FLOAT, 17, 140004, 16),
    (layer_norm, BF16, 133, 64008, 8),
]  # fmt: skip


@pytest.mark.parametrize(("norm", "dtype", "rows", "columns", "blocks"), CASES, ids=lambda v: getattr(v, "__name__", str(v)))
def test_weights_in_shared_memory(norm: Callable, dtype: DataType, rows: int, columns: int, blocks: int) -> None:
    """Lengths that blocks divide and that they do not, also such whose last blocks have nothing of a row."""
    weights = (dtype,) if norm is rms_norm else (dtype, dtype)
    fd = scaled(norm, dtype, weights)
    text, params = checked(fd, [numbers(dtype, rows_of_part(rows), columns), *(numbers(kind, columns) for kind in weights)])
    assert (params.weights, params.cluster_blocks) == ("shared", blocks)
    assert text.count("weft::cp_async<16>") == len(weights)
    assert text.index("weft::load_global_vector") < text.index("weft::cp_async<16>") < text.index("weft::Sum") < text.index("weft::cp_async_wait<0>")
    after = text[text.index("weft::cp_async_wait<0>") :]
    assert "block_sync" not in after[: after.index("weft::load_shared_vector")]  # each thread reads what it asked for
    issued = text[: text.index("weft::cp_async<16>")]
    assert issued[issued.rindex("#pragma") :].startswith("#pragma unroll\n")


@pytest.mark.parametrize(("kinds", "bytes_"), [((BF16,), [8]), ((DataType.Bool, FLOAT), [4, 16])], ids=["bfloat16", "bool, float"])
def test_weights_of_other_types(kinds: tuple[DataType, ...], bytes_: list[int]) -> None:
    fd = scaled(rms_norm, FLOAT, kinds)
    text, params = checked(fd, [numbers(FLOAT, rows_of_part(133), 16384), *(numbers(kind, 16384) for kind in kinds)])
    assert params.weights == "shared"
    for each in bytes_:
        assert text.count(f"weft::cp_async<{each}>") == 1


def test_weights_that_do_not_lie_in_vectors_are_loaded_late() -> None:
    fd = scaled(rms_norm, FLOAT, (FLOAT,), is_contiguous=False)
    x, w = numbers(FLOAT, rows_of_part(133), 16384), numbers(FLOAT, 2 * 16384)
    for vector in (w[::2], w[:16384], w[1:16385]):
        text, _ = checked(fd, [x, vector])
        assert "cp_async" not in text


def test_misaligned_rows_and_weights() -> None:
    fd = scaled(layer_norm, FLOAT, (FLOAT, FLOAT))
    rows = rows_of_part(133)
    x, w = numbers(FLOAT, rows * 16384 + 4), numbers(FLOAT, 16384 + 4)
    for at_x, at_w in ((0, 1), (1, 0), (2, 2)):
        checked(fd, [x[at_x : at_x + rows * 16384].view(rows, 16384), w[at_w : at_w + 16384], w[:16384]])


def test_no_row() -> None:
    fd = scaled(rms_norm, FLOAT, (FLOAT,))
    assert fd.execute([torch.empty(0, 16384), torch.ones(16384)])[0].shape == (0, 16384)
