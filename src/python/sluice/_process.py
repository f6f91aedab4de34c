"""What a process that has computed must and must not do: no os.fork() while a run is open, since
the child would have the run's memory and locks, but none of its threads; and no end of the
interpreter while the engine works."""

from __future__ import annotations

import atexit
import sys
import weakref
from typing import TYPE_CHECKING, Optional

from ._errors import Error, WrongJob
from ._load import native as _native

if TYPE_CHECKING:
    from ._session import Session

_is_guarded = False
_open: Optional["weakref.ref[Session]"] = None


def _refuse_fork(event: str, arguments: object) -> None:
    if event in ("os.fork", "os.forkpty") and _native.has_open_run():
        raise WrongJob(
            "this process has a run of Sluice open and cannot be forked: start processes with the "
            'method "spawn" (multiprocessing.set_start_method), or before the run is opened'
        )


def _end() -> None:
    """Commits an open run, and stops a call that a daemon thread left at work, which commits."""
    session = _open() if _open else None
    if session is not None:
        try:
            session.close()
        except Error as error:
            print(f"sluice: error: at the end of the program: {error}", file=sys.stderr)
    _native.end()


def guard() -> None:
    """Called before the library computes."""
    global _is_guarded
    if not _is_guarded:
        _is_guarded = True
        sys.addaudithook(_refuse_fork)
        atexit.register(_end)


def note_open(session: "Session") -> None:
    """A run that the program leaves open is committed before the interpreter ends."""
    global _open
    _open = weakref.ref(session)
