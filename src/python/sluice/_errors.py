"""The exceptions. Each carries the exit status that the command has for the same failure."""

from __future__ import annotations

__all__ = ["Error", "Failed", "WrongJob", "NoFit", "Stopped", "make_error"]


class Error(Exception):
    """A call of Sluice that failed. str() is one sentence: what, where, numbers, what to do."""

    #: The exit status of the command `sluice` for this failure.
    status: int = 1


class Failed(Error):
    """Input or output, a library, training that diverged, or a bug of Sluice."""

    status = 1


class WrongJob(Error):
    """A wrong call or job, or wrong data, model or run directory that it names."""

    status = 2


class NoFit(Error):
    """The job does not fit its budgets; the sentence says what would. Nothing was made."""

    status = 3


class Stopped(Error):
    """Stopped on request with the state committed. The same call resumes."""

    status = 75


_CLASSES = {kind.status: kind for kind in (Failed, WrongJob, NoFit, Stopped)}


def make_error(status: int, text: str) -> Error:
    """The exception for an exit status, Failed for one that is not known."""
    return _CLASSES.get(status, Failed)(text)
