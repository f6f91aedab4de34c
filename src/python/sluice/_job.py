"""How a job, and the keys that are set beside it, reach the library."""

from __future__ import annotations

import json
import os
import signal
import threading
from typing import Any, List, Mapping, Optional, Sequence, Tuple, Union

from ._errors import WrongJob

Path = Union[str, "os.PathLike[str]"]
#: A job: the path of a job file, or the object that it would hold.
Job = Union[Path, Mapping[str, Any]]
#: Keys that override the job's: {"run.steps": 5} or ["run.steps=5"].
Overrides = Union[Mapping[str, Any], Sequence[str]]


def to_json(value: Any) -> str:
    """JSON, with paths as text."""
    try:
        return json.dumps(value, default=os.fspath, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise WrongJob(f"this cannot be written as JSON: {error}") from None


def job_arguments(job: Job) -> Tuple[str, Optional[str]]:
    """The name of a job in messages, and its text if it is no file."""
    if isinstance(job, Mapping):
        return "job", to_json(job)
    try:
        return os.fspath(job), None
    except TypeError:
        raise WrongJob(
            f"a job is the path of a file or a dict, and this is {type(job).__name__}"
        ) from None


def overrides_list(overrides: Overrides) -> List[str]:
    """The overrides as the command's --set takes them."""
    if isinstance(overrides, Mapping):
        return [f"{key}={to_json(value)}" for key, value in overrides.items()]
    if isinstance(overrides, str):
        raise WrongJob(f'"set" is the text "{overrides}", and must be a dict or a list of texts')
    return list(overrides)


def optional_path(path: Optional[Path]) -> Optional[str]:
    return None if path is None else os.fspath(path)


def watches_interrupt() -> bool:
    """True if Ctrl-C is to stop the run, as it raises KeyboardInterrupt elsewhere. A program that
    handles it itself keeps its handler, which may raise."""
    return (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
