"""The extension's session of a module, with the results' classes."""

from __future__ import annotations

import os
import sys
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Union

from .._errors import Error, WrongJob
from .._job import Path
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
    entries = [nvme] if isinstance(nvme, (str, os.PathLike)) else list(nvme)
    return [dict(e) if isinstance(e, Mapping) else {"path": os.fspath(e)} for e in entries]


class Core:
    """An open run of a module. The methods module_* are those of the extension (sluice.h)."""

    def __init__(self, session: Session, job: Mapping[str, Any], machine: Any) -> None:
        self._session = session
        self._job = job
        self._machine = machine
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


def open_core(job: Dict[str, Any], **options: Any) -> Core:
    return Core(open_session(job, **options), job, options.get("machine"))


def give_up(core: Any, error: BaseException) -> Error:
    """Ends a run whose step cannot go on. Returns what later calls raise."""
    text = f"{type(error).__name__}: {error}"
    core.has_failed = True
    try:
        core.module_abort(text[:400].encode("utf-8", "replace").decode())
    except Error:
        pass  # the first failure counts
    if isinstance(error, Error):
        return error
    return WrongJob(
        f"a step failed ({text}), so this run takes no more steps; a new one with the same run_dir "
        "goes on from the last commit"
    )


def close_at_end(core: Any) -> None:
    """Closes the run of a program that did not."""
    try:
        core.close()
    except Error as error:
        if not core.has_failed:  # else the program has seen the failure
            print(f"sluice: error: {error}", file=sys.stderr)
