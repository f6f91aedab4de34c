"""How a job, and the keys that are set beside it, reach the library."""

from __future__ import annotations

import json
import math
import operator
import os
import signal
import threading
from typing import Any, Callable, List, Mapping, Optional, Sequence, Tuple, Union

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


def path_text(path: Any, what: str) -> str:
    """The path as text. `what` names the argument in the refusal."""
    try:
        text = os.fsdecode(path)
    except TypeError:
        raise WrongJob(f"{what} is {type(path).__name__}, and must be a path") from None
    if not text or "\0" in text:
        raise WrongJob(f"{what} is {text!r}, which is no path")
    return text


def optional_path(path: Optional[Path], what: str) -> Optional[str]:
    if path is None:
        return None
    text = path_text(path, what)
    check_text(text, what)
    return text


def path_texts(paths: Any, what: str) -> List[str]:
    """The same for a list of paths, or for one path."""
    if isinstance(paths, (str, bytes, os.PathLike)):
        paths = [paths]
    try:
        items = list(paths)
    except TypeError:
        text = f"{what} is {type(paths).__name__}, and must be a list of paths"
        raise WrongJob(text) from None
    return [path_text(item, f"{what}[{i}]") for i, item in enumerate(items)]


def check_callable(value: Optional[Callable[..., Any]], what: str) -> None:
    """Refuses a callback that is neither None nor a function, before the work begins."""
    if value is not None and not callable(value):
        raise WrongJob(f"{what} is {type(value).__name__}, and must be a function")


def check_text(value: Optional[str], what: str) -> None:
    """Refuses what is neither None nor a text that the library can take."""
    if value is not None and not isinstance(value, str):
        raise WrongJob(f"{what} is {type(value).__name__}, and must be a text")
    if value is not None and ("\0" in value or not is_unicode(value)):
        raise WrongJob(f"{what} is {value!r}, and must be Unicode without NUL")


def is_unicode(text: str) -> bool:
    """False for what Python also takes, halves of pairs."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def as_number(value: Any, what: str) -> float:
    """A finite number, of Python, NumPy or torch."""
    try:
        number = math.nan if isinstance(value, (str, bytes)) else float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise WrongJob(f"{what} is {value!r}, and must be a finite number")
    return number


def check_count(value: Any, what: str, most: int = (1 << 63) - 1) -> None:
    """Refuses what is no whole number, below 0, or above `most`."""
    try:
        count = -1 if isinstance(value, str) else operator.index(value)
    except TypeError:
        count = -1
    if count < 0:
        raise WrongJob(f"{what} is {value!r}, and must be a whole number, 0 or more")
    if count > most:
        raise WrongJob(f"{what} is {value!r}, and must be at most {most}")


def job_arguments(job: Job) -> Tuple[str, Optional[str]]:
    """The name of a job in messages, and its text if it is no file."""
    if isinstance(job, Mapping):
        return "job", to_json(job)
    if not isinstance(job, (str, bytes, os.PathLike)):
        raise WrongJob(f"a job is the path of a file or a dict, and this is {type(job).__name__}")
    return path_text(job, "the job"), None


def overrides_list(overrides: Overrides) -> List[str]:
    """The overrides as the command's --set takes them."""
    if isinstance(overrides, Mapping):
        return [f"{key}={to_json(value)}" for key, value in overrides.items()]
    if isinstance(overrides, str):
        raise WrongJob(f'"set" is the text "{overrides}", and must be a dict or a list of texts')
    items: List[Any]
    try:
        items = list(overrides)
    except TypeError:
        items = [overrides]
    for item in items:
        if not isinstance(item, str):
            raise WrongJob(
                f'"set" has {type(item).__name__}, and must be a dict or a list of texts: '
                '{"run.steps": 5} or ["run.steps=5"]'
            )
        check_text(item, 'a text of "set"')
    return items


def watches_interrupt() -> bool:
    """True if Ctrl-C is to stop the run, as it raises KeyboardInterrupt elsewhere. A program that
    handles it itself keeps its handler, which may raise."""
    return (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
