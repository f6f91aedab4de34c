"""The extension's session of a module, with the results' classes."""

from __future__ import annotations

import functools
import os
import sys
import threading
from typing import (
    Any,
    Callable,
    Dict,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    TypeVar,
    Union,
    cast,
)

from .._errors import Error, WrongJob
from .._job import Path, path_text
from .._session import Session, Step
from .._session import open as open_session
from .._tasks import Plan
from .._tasks import plan as make_plan


#: A budget: bytes, "8GiB", or None for a part of what is free.
Bytes = Union[None, int, str]


def list_drives(nvme: Union[None, Path, Sequence[Any]]) -> Optional[List[Dict[str, Any]]]:
    """The job's tiers.nvme, from folders or dicts like its own."""
    if nvme is None:
        return None
    entries: List[Any]
    try:
        if isinstance(nvme, (str, bytes, os.PathLike, Mapping)):
            entries = [nvme]
        else:
            entries = list(nvme)
    except TypeError:
        raise WrongJob(
            f"nvme is {type(nvme).__name__}, and must be a folder on a drive, or a list of them"
        ) from None
    return [
        dict(e) if isinstance(e, Mapping) else {"path": path_text(e, f"nvme[{i}]")}
        for i, e in enumerate(entries)
    ]


_Call = TypeVar("_Call", bound=Callable[..., Any])


def alone(method: _Call) -> _Call:
    """A method that one thread at a time may be in. Its object has an RLock _turn_lock."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not self._turn_lock.acquire(blocking=False):
            raise WrongJob(
                f"{method.__name__} was called while another thread is in a call of the same "
                f"{type(self).__name__}: let one thread make all its calls"
            )
        try:
            return method(self, *args, **kwargs)
        finally:
            self._turn_lock.release()

    return cast(_Call, call)


def refuse_copy(self: Any, *args: Any) -> Any:
    """For __copy__, __deepcopy__ and __reduce_ex__ of what has an open run."""
    raise WrongJob(
        f"{type(self).__name__} cannot be copied or pickled, since it has a run open: save what "
        "its state_dict() returns"
    )


class Core:
    """An open run of a module. The methods module_* are those of the extension (sluice.h)."""

    def __init__(self, session: Session, job: Mapping[str, Any], machine: Any) -> None:
        self._session = session
        #: A thread that computes with the run's memory, outside of our calls too; or None.
        self.user: Optional[threading.Thread] = None
        self._job = job
        self._machine = machine
        self.is_kept = True  # it makes commits
        self.has_failed = False  # a call has raised the failure that closing raises again
        native = session._native
        self.module_begin: Callable[[bool], None] = native.module_begin
        self.module_wait: Callable[[], Any] = native.module_wait
        self.module_done = native.module_done
        self.module_abort = native.module_abort
        self.module_set_group = native.module_set_group
        self.module_home = native.module_home

    def module_end(self) -> Step:
        return Step(**self._session._native.module_end())

    def plan(self) -> Plan:
        return make_plan(self._job, machine=self._machine)

    def commit(self) -> int:
        return self._session.commit()

    def info(self) -> Any:
        return self._session.info()

    @property
    def is_open(self) -> bool:
        """False also if the end of the program has closed the run."""
        return self._session.is_open

    def close(self) -> None:
        self._session.close()

    def note_user(self) -> None:
        """This thread computes with the run's memory. Threads that are not Python's own are not
        noted, since nobody learns when they end."""
        thread = threading.current_thread()
        if not isinstance(thread, threading._DummyThread):
            self.user = thread

    def is_used(self) -> bool:
        """True if another thread may compute with the run's memory."""
        user = self.user
        return user is not None and user.is_alive() and user is not threading.current_thread()

    def leave(self) -> None:
        """The run's memory stays until close(), also when nothing refers to the run any more."""
        self._session._native.leave()

    def set_at_end(self, call: Callable[[], Any]) -> None:
        """What the end of the program calls in place of close()."""
        self._session.at_end = call


#: Dropped runs whose memory another thread may compute with, and what ends them later.
_left: List[Tuple[Core, Callable[[], None]]] = []


def end_later(core: Core, end: Callable[[], None]) -> None:
    """Calls `end` when a run is opened and no other thread uses the memory of this one any more."""
    _left.append((core, end))


def open_core(job: Dict[str, Any], **options: Any) -> Core:
    for entry in list(_left):
        if not entry[0].is_used():
            _left.remove(entry)
            entry[1]()
    core = Core(open_session(job, **options), job, options.get("machine"))
    core.is_kept = not options.get("temporary", False)
    return core


def give_up(core: Any, error: BaseException, is_kept: bool = True) -> Error:
    """Ends a run whose step cannot go on. Returns what later calls raise. `is_kept`: the run has a
    directory of the user's."""
    text = f"{type(error).__name__}: {error}"
    core.has_failed = True
    try:
        core.module_abort(text[:400].encode("utf-8", "replace").decode())
    except Error:
        pass  # the first failure counts
    if isinstance(error, Error):
        return error
    advice = (
        "a new one with the same run_dir goes on from the last commit"
        if is_kept
        else "it has no run_dir to go on from"
    )
    return WrongJob(f"a step failed ({text}), so this run takes no more steps; {advice}")


# How long the end of the program waits for a daemon thread that is in a step. The thread's next
# call of the run is refused.
_PATIENCE_SECONDS = 60.0


def close_at_end(core: Any, lock: Any = None, is_used: Optional[bool] = None) -> None:
    """Closes the run of a program that did not. Its memory stays while another thread uses it: one
    that holds `lock`, or the core's user. `is_used`: what the caller was told of the latter."""
    if lock is not None and not lock.acquire(timeout=_PATIENCE_SECONDS):
        core.leave()
        print(
            "sluice: error: a thread is in a step at the program's end, so the run is as it was "
            "last committed: close it before",
            file=sys.stderr,
        )
        return
    try:
        if not (core.is_used() if is_used is None else is_used):
            core.close()
            return
        core.leave()
        if core.is_kept:
            core.commit()
    except Error as error:
        if not core.has_failed:  # else the program has seen the failure
            print(f"sluice: error: {error}", file=sys.stderr)
