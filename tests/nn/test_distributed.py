"""Several processes: FSDP2, DDP, tensor parallelism and DTensors give what one process gives; gloo on CPUs, NCCL where there are two GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
PARTS = ["fsdp,data_parallel,tensor_parallel,operators,functions,compiled,uneven,collectives"]  # one pair of processes: each imports torch's compiler


def run(parts: str, folder: Path, device: str) -> None:
    """Start two processes, and wait until both have agreed."""
    paths = os.pathsep.join([str(HERE), str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "WEFT_CHECK": "", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / "distributed_worker.py"), parts]
    logs = [folder / f"{rank}.log" for rank in range(2)]
    processes = []
    for rank, log in enumerate(logs):
        with log.open("w") as out:
            arguments = [*command, str(rank), "2", str(folder / "store"), device]
            processes.append(subprocess.Popen(arguments, env=environment, stdout=out, stderr=subprocess.STDOUT))
    try:
        codes = [process.wait(timeout=300) for process in processes]
    finally:
        for process in processes:
            process.kill()
    texts = [log.read_text() for log in logs]
    assert codes == [0, 0], "\n".join(text[-4000:] for text in texts)
    for part in parts.split(","):
        assert all(f"{part}: process {rank} of 2 agrees" in text for rank, text in enumerate(texts))


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available() or not torch.distributed.is_gloo_available(), reason="torch has no gloo here")
@pytest.mark.parametrize("parts", PARTS)
def test_two_processes_on_a_cpu(parts: str, tmp_path: Path) -> None:
    run(parts, tmp_path, "cpu")


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two GPUs")
@pytest.mark.parametrize("parts", PARTS)
def test_two_gpus(parts: str, tmp_path: Path) -> None:
    run(parts, tmp_path, "cuda")
