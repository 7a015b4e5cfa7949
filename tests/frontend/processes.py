"""Processes that know nothing of what other tests compiled, without the five seconds that each would take to import torch.

One process imports torch and its compiler, compiles nothing, and forks a child for each program: what weft imports, reads and writes is the child's own.
Not for programs whose environment torch reads when it is imported (TORCH_LOGS), nor for those that use a GPU. Read first: `Forks.run`.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any


class Forks:
    """The process that forks. It reads a request per line, and answers with the child's exit status."""

    def __init__(self) -> None:
        environment = os.environ | {"TORCH_WARM_POOL": "0"}  # Inductor would start workers when it is imported
        self.process = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        atexit.register(self.process.terminate)

    def run(self, program: str, arguments: list[str], environment: dict[str, str], folder: Path) -> str:
        """Run a program with these arguments in a new process, and return what it printed. folder: for what it writes. Errors: AssertionError with its errors."""
        out, err = folder / "stdout", folder / "stderr"
        request = {"program": program, "arguments": arguments, "environment": environment, "out": str(out), "err": str(err)}
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        status = self.process.stdout.readline().strip()
        assert status == "0", err.read_text()[-3000:]
        return out.read_text()


@functools.cache
def forks() -> Forks:
    """The one of this test process."""
    return Forks()


def _become(request: dict[str, Any]) -> None:
    """Run a program as if this process had been started for it."""
    for stream, path in ((1, request["out"]), (2, request["err"])):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), stream)
    os.environ.clear()
    os.environ.update(request["environment"])
    tempfile.tempdir = None  # found anew, from the environment
    sys.argv = ["program", *request["arguments"]]
    path = Path(request["out"]).with_name("program.py")  # Dynamo reads the lines of what it compiles
    path.write_text(request["program"])
    exec(compile(request["program"], str(path), "exec"), {"__name__": "__main__", "__file__": str(path)})


def _serve() -> None:
    import torch._dynamo
    import torch._functorch.aot_autograd  # noqa: F401  (not Inductor, which a second process of weft's does without)

    assert threading.active_count() == 1 and not any(name == "weft" or name.startswith("weft.") for name in sys.modules)
    for line in sys.stdin:
        child = os.fork()
        if not child:
            status = 1
            try:
                _become(json.loads(line))
                status = 0
            except SystemExit as end:
                status = end.code if isinstance(end.code, int) else int(end.code is not None)
            except BaseException:  # noqa: BLE001  (a child never goes on in the loop)
                sys.excepthook(*sys.exc_info())
            threading._shutdown()  # type: ignore[attr-defined]  # as at the end of any process: what threads still do, such as storing what was compiled, is waited for
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        answered = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(answered, flush=True)


if __name__ == "__main__":
    _serve()
