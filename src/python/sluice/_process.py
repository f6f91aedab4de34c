"""What a process that has computed owes to its end: open runs are committed, and the interpreter
does not end while the engine works.

Such a process may be forked, for example for the workers of a torch DataLoader. The child has none
of the run's threads, and zeros in its memory, so it cannot use Sluice: the extension refuses its
calls. Open runs are neither closed nor freed there; what a closed one left is the child's, too."""

from __future__ import annotations

import atexit
import sys
import weakref
from typing import TYPE_CHECKING, Optional

from ._errors import Error
from ._load import native as _native

if TYPE_CHECKING:
    from ._session import Session

_is_guarded = False
_sessions: "weakref.WeakSet[Session]" = weakref.WeakSet()


def _end() -> None:
    """Commits open runs, and stops a call that a daemon thread left at work, which commits."""
    _native.end()
    first: Optional[BaseException] = None
    for session in list(_sessions):
        try:
            if session.is_open:
                _close(session)
        except BaseException as error:  # Ctrl-C: the other runs are closed all the same
            first = first or error
    if first is not None:
        raise first


def _close(session: "Session") -> None:
    uncaught = getattr(sys, "last_value", None)  # the exception by which the program ends
    if uncaught is not None:
        session._note_failure(uncaught)
    try:
        (session.at_end or session.close)()
    except Error as error:
        if str(error) != str(uncaught):  # else the program has said so
            print(f"sluice: error: at the end of the program: {error}", file=sys.stderr)


def guard() -> None:
    """Called before the library computes."""
    global _is_guarded
    if not _is_guarded:
        _is_guarded = True
        atexit.register(_end)


def note_open(session: "Session") -> None:
    """A run that the program leaves open is committed before the interpreter ends."""
    _sessions.add(session)
