"""The command `weft`: which commands there are, and the one that is asked for.

Owns the list of commands and their arguments; what a command does is in the module of its name, imported when it runs.
Read first: `COMMANDS`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from weft.errors import WeftError


def _no_arguments(parser: argparse.ArgumentParser) -> None:
    """A command without arguments."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command: its line in `weft --help`, `run(arguments) -> exit status`, and what it accepts."""

    name: str
    help: str
    run: Callable[[argparse.Namespace], int]
    add_arguments: Callable[[argparse.ArgumentParser], None] = _no_arguments


def _run_check(given: argparse.Namespace) -> int:
    from . import check

    return check.main(given)


def _check_arguments(parser: argparse.ArgumentParser) -> None:
    from . import check

    check.add_arguments(parser)


def _run_demo(given: argparse.Namespace) -> int:
    from . import demo

    return demo.main(given.only, given.out)


def _demo_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("only", nargs="*", metavar="CASE", help="cases to run: softmax, rms_norm, layer_norm (default: all)")
    parser.add_argument("--out", metavar="FOLDER", default="", help="folder for the CUDA texts (default: `demo` in the folder of the disk cache)")


def _run_doctor(given: argparse.Namespace) -> int:
    from . import doctor

    return doctor.main()


def _run_record(given: argparse.Namespace) -> int:
    from . import record

    return record.record(given)


def _record_arguments(parser: argparse.ArgumentParser) -> None:
    from . import record

    record.record_arguments(parser)


def _run_diff(given: argparse.Namespace) -> int:
    from . import record

    return record.diff(given)


def _diff_arguments(parser: argparse.ArgumentParser) -> None:
    from . import record

    record.diff_arguments(parser)


def _run_settings(given: argparse.Namespace) -> int:
    from weft.options import describe

    print(describe())
    return 0


def _run_tune(given: argparse.Namespace) -> int:
    from . import tune

    return tune.main(given)


def _tune_arguments(parser: argparse.ArgumentParser) -> None:
    from . import tune

    tune.add_arguments(parser)


COMMANDS = (
    Command("check", "run the kernels of a script, or a CUDA file, in the emulator with all checks, in several thread orders", _run_check, _check_arguments),
    Command("demo", "run softmax, RMSNorm and layer norm on the GPU, or without one in the emulator, and show their kernels", _run_demo, _demo_arguments),
    Command("diff", "show which kernels differ between two files of `record`; the exit status is 1 if any does", _run_diff, _diff_arguments),
    Command("doctor", "check what this machine has and lacks for weft, with a remedy for each gap", _run_doctor),
    Command("record", "compile a set of definitions and write their kernels to a file: text, parameters, registers, spills", _run_record, _record_arguments),
    Command("settings", "list the settings: environment variable, default, meaning", _run_settings),
    Command("tune", "run a script, time several kernels for each of its fusions and sizes, and keep the fastest", _run_tune, _tune_arguments),
)


def _version() -> str:
    import weft

    return weft.__version__


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = argparse.ArgumentParser(
        prog="weft",
        description="weft compiles graphs of tensor ops into fused CUDA kernels.",
        epilog="Start with: weft demo. Help for a command: weft COMMAND --help.",
    )
    top.add_argument("--version", action="version", version=f"weft {_version()}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_arguments(commands.add_parser(command.name, help=command.help, description=command.help))
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status; 2 for a wrong command line, 1 for an error of weft's, which is printed."""
    given = parser().parse_args(arguments)
    command = next(command for command in COMMANDS if command.name == given.command)
    try:
        status = command.run(given)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # who reads has had enough, as `head`; what is left in the buffer goes nowhere when Python ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except WeftError as error:
        print(error, file=sys.stderr)
        return 1
