"""Random compositions of torch functions, compiled: values and gradients beside float64 (`random_compositions.py`)."""

from __future__ import annotations

import pytest
from fusion_check import poisoned_outputs
from random_compositions import check, program_of

pytestmark = [pytest.mark.usefixtures("fresh"), pytest.mark.filterwarnings("error::RuntimeWarning")]  # a time that is no number warns


@pytest.mark.parametrize("seed", [*range(16), 4266, 4467, 25033, *range(100000, 100008), 102017, 104065, 107038, 112021, 212053])
def test_values_and_gradients(seed: int) -> None:
    with poisoned_outputs():
        check(seed)


def test_programs_have_steps_of_every_kind() -> None:
    names = [name for seed in range(300) for name in program_of(seed)[1]]
    assert len(set(names)) == 24
