"""The command `sluice`: starts the program that lies in the package, in this process's place."""

from __future__ import annotations

import os
import sys


def path() -> str:
    """Where the program is."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "sluice")


def main() -> None:
    program = path()
    try:
        os.execv(program, ["sluice", *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"sluice: error: cannot start {program}: {error.strerror}; install the wheel again")
