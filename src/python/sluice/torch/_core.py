"""The extension's session of a module, with the results' classes."""

from __future__ import annotations

import functools
import io
import os
import struct
import sys
import warnings
from contextlib import suppress
from typing import (
    Any,
    Callable,
    Dict,
    List,
    Mapping,
    Optional,
    Sequence,
    TypeVar,
    Union,
    cast,
)

import torch

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


def alone(method: _Call, name: str = "") -> _Call:
    """A method that one thread at a time may be in. Its object has an RLock _turn_lock. `name`: the
    call that the user made."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not self._turn_lock.acquire(blocking=False):
            raise WrongJob(
                f"{name or method.__name__} was called while another thread is in a call of the same "
                f"{type(self).__name__}: let one thread make all its calls"
            )
        try:
            return method(self, *args, **kwargs)
        finally:
            self._turn_lock.release()

    return cast(_Call, call)


def warn(text: str) -> None:
    """A warning about the program's line that called the package."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals["__name__"].startswith("sluice."):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level)


def refuse_copy(self: Any, *args: Any) -> Any:
    """For __copy__, __deepcopy__ and __reduce_ex__ of what has an open run."""
    raise WrongJob(
        f"{type(self).__name__} cannot be copied or pickled, since it has a run open: save what "
        "its state_dict() returns"
    )


class Core:
    """An open run of a module. The methods module_* are those of the extension (sluice.h)."""

    def __init__(
        self, session: Session, job: Mapping[str, Any], machine: Any, keeps_params: bool
    ) -> None:
        self._session = session
        self._job = job
        self._machine = machine
        #: Saves what the library does not have, before what may commit.
        self.before_commit: Callable[[], None] = lambda: None
        self.has_failed = False  # a call has raised the failure that closing raises again
        native = session._native
        #: What each tensor over the run's memory refers to: it owns that memory after close().
        self.memory: Any = native.memory(keeps_params)
        self.module_begin: Callable[[bool], None] = native.module_begin
        self.module_wait: Callable[[], Any] = native.module_wait
        self.module_lend: Callable[[Sequence[int]], None] = native.module_lend
        self.module_pause: Callable[[], bool] = native.module_pause
        self.module_done = native.module_done
        self.module_abort = native.module_abort
        self.module_set_group = native.module_set_group
        self.module_home = native.module_home

    def module_end(self) -> Step:
        return Step(**self._session._native.module_end())

    def from_rank0(self, make: Callable[[], Any]) -> Any:
        """What make() returns on rank 0, tensors and plain values; or its failure, on all ranks."""
        info = self.info()
        if info.world_size == 1:
            return make()
        native, file = self._session._native, io.BytesIO()
        if info.rank == 0:
            try:
                made: Any = (make(), None)
            except Exception as error:  # the others wait for this
                made = (None, str(error))
            torch.save(made, file)
        (count,) = struct.unpack("q", native.broadcast(struct.pack("q", file.tell())))
        data = native.broadcast(file.getvalue() if info.rank == 0 else bytes(count))
        value, failure = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        if failure is not None:
            raise WrongJob(failure)
        return value

    def plan(self) -> Plan:
        return make_plan(self._job, machine=self._machine)

    def commit(self) -> int:
        self.before_commit()
        return self._session.commit()

    def info(self) -> Any:
        return self._session.info()

    @property
    def is_open(self) -> bool:
        """False also if the end of the program has closed the run."""
        return self._session.is_open

    def note_failure(self, error: BaseException) -> None:
        self._session._note_failure(error)

    def close(self, forget: Callable[[], None] = lambda: None) -> None:
        """Commits and frees all. Then calls `forget`, if the run is closed now: after a Ctrl-C that
        came before, close() can be called again."""
        try:
            try:
                if self.is_open:
                    self.before_commit()
            except Exception:
                self._session.close()
                raise
            self._session.close()
        finally:
            if not self.is_open:
                self.memory = None
                forget()

    def set_at_end(self, call: Callable[[], Any]) -> None:
        """What the end of the program calls in place of close()."""
        self._session.at_end = call


def open_core(job: Dict[str, Any], keeps_params: bool = False, **options: Any) -> Core:
    """keeps_params: the params that rest in memory keep their values in tensors that live on when
    the run is closed. All other memory of it then reads as zeros."""
    return Core(open_session(job, **options), job, options.get("machine"), keeps_params)


def give_up(core: Any, error: BaseException, is_kept: bool = True) -> Error:
    """Ends a run whose step cannot go on. Returns what later calls raise. `is_kept`: the run has a
    directory of the user's."""
    text = f"{type(error).__name__}: {error}"
    core.has_failed = True
    try:
        with suppress(Error):  # the first failure counts
            core.before_commit()
    finally:  # else other ranks wait for this one
        with suppress(Error):
            core.module_abort(text[:400].encode("utf-8", "replace").decode())
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


def close_at_end(core: Any, lock: Any) -> None:
    """Closes the run of a program that did not, unless a thread that is in a step has the lock."""
    if not lock.acquire(timeout=_PATIENCE_SECONDS):
        print(
            "sluice: error: a thread is in a step at the program's end, so the run is as it was "
            "last committed: close it before",
            file=sys.stderr,
        )
        return
    try:
        core.close()
    except Error as error:
        if not core.has_failed:  # else the program has seen the failure
            print(f"sluice: error: {error}", file=sys.stderr)
