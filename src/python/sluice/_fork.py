"""os.fork() is refused while a run is open: the child would have the run's memory and locks, but
none of its threads."""

from __future__ import annotations

import sys

from ._errors import WrongJob
from ._load import native as _native

_installed = False


def _refuse(event: str, arguments: object) -> None:
    if event in ("os.fork", "os.forkpty") and _native.has_open_run():
        raise WrongJob(
            "this process has a run of Sluice open and cannot be forked: start processes with the "
            'method "spawn" (multiprocessing.set_start_method), or before the run is opened'
        )


def guard() -> None:
    """Installs the check; hooks cannot be taken away, so it comes with the first run."""
    global _installed
    if not _installed:
        _installed = True
        sys.addaudithook(_refuse)
