"""A run that is open, step by step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Optional, TypeVar

from ._errors import Error
from ._job import (
    Job,
    Overrides,
    Path,
    check_callable,
    check_text,
    job_arguments,
    optional_path,
    overrides_list,
    path_text,
)
from ._launch import share_of_launcher
from ._load import native as _native
from ._process import guard, note_open


@dataclass(frozen=True)
class Info:
    """Facts about an open run. Bytes are of this rank."""

    param_count: int
    step: int  #: the step that the run is at
    steps: int  #: the number that run.steps asks for
    tokens_per_step: int  #: of all ranks
    rank: int
    world_size: int
    device_bytes: int  #: planned peak; this much is reserved
    host_bytes: int  #: planned peak; this much is reserved
    nvme_bytes: int  #: planned peak; this much is reserved
    step_seconds: float  #: predicted


@dataclass(frozen=True)
class Step:
    """The result of one step."""

    step: int  #: the first step of a run is 1
    tokens: int  #: of all ranks
    loss: float  #: nats per token, the mean of the step, before its update
    grad_norm: float  #: before clipping
    learning_rate: float
    skipped: bool  #: the gradients overflowed, and nothing was changed
    seconds: float
    tokens_per_second: float  #: of all ranks
    model_flops: float  #: per second, counted by the model's formula


_Self = TypeVar("_Self", bound="Closing")


class Closing:
    """A context manager that closes itself."""

    def close(self) -> None:
        raise NotImplementedError

    def _note_failure(self, error: BaseException) -> None:
        """The program ends by this exception, so it does not wait long for other ranks."""
        raise NotImplementedError

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            if error is not None and not (isinstance(error, SystemExit) and not error.code):
                self._note_failure(error)
            self.close()
        except Error:
            if kind is None:  # else the first exception says more
                raise


class Session(Closing):
    """An open run, made by sluice.open(). Close it, or use it as a context manager.

    A process that is one rank may have several runs open. Only the thread that opened one calls step,
    evaluate and export; any thread may commit and close it. The interpreter's lock is released while the
    library works.
    """

    def __init__(self, native_session: _native.Session) -> None:
        self._native = native_session
        #: What the end of the program calls in place of close().
        self.at_end: Optional[Callable[[], Any]] = None

    @property
    def is_open(self) -> bool:
        """False after close(), and in a process that was forked from the run's."""
        return self._native.is_open()

    def info(self) -> Info:
        return Info(**self._native.info())

    def step(self) -> Step:
        """Makes one step, with the commit that run.commit_every asks for."""
        return Step(**self._native.step())

    def evaluate(self) -> float:
        """The loss on data.valid, in nats per token."""
        return self._native.evaluate()

    def commit(self) -> int:
        """Makes the state after the last step durable. Returns that step."""
        return self._native.commit()

    def export(
        self,
        directory: Path,
        *,
        dtype: Optional[str] = None,
        adapters: bool = False,
        force: bool = False,
    ) -> None:
        """Commits, and writes that state as a Hugging Face checkpoint.

        dtype: "fp32", "bf16" or "fp16"; None: the run's working dtype.
        adapters: for a run with train.lora, only the adapters, as PEFT has them.
        force: replaces files in a directory that is not empty.
        """
        check_text(dtype, "dtype")
        self._native.export(path_text(directory, "directory"), dtype, adapters, force)

    def close(self) -> None:
        """Commits the steps that are not yet committed, and frees all. May be called again. With
        several ranks all of them close the run."""
        self._native.close()

    def _note_failure(self, error: BaseException) -> None:
        if not self.is_open:
            return
        text = type(error).__name__
        try:
            text = f"{text}: {error}" if str(error) else text
        except Exception:  # an exception that cannot say what it is; the run is closed all the same
            pass
        self._native.set_failure(text.encode("utf-8", "replace").replace(b"\0", b" "))


def open(  # noqa: A001 - the name that people look for
    job: Job,
    *,
    set: Overrides = (),
    start_from: Optional[Path] = None,
    machine: Optional[Path] = None,
    fresh: bool = False,
    verbose: bool = False,
    first: Optional[Callable[[int, int, int, int], None]] = None,
    temporary: bool = False,
    alike: Optional[str] = None,
) -> Session:
    """Reads the job, plans, reserves all memory, and resumes from the last commit of run.dir or
    begins a new run.

    set: keys that override the job's, {"run.steps": 5} or ["run.steps=5"].
    start_from: a run directory from whose last commit a new run begins.
    machine: a machine.json of sluice.probe(), which makes the plan better.
    fresh: the run directory must be new or hold no commit.
    verbose: log lines on standard error, not only warnings.
    first: for a job with model.module, writes the first weights of a new run: elements [begin, begin
        + count) of a unit, fp32, to an address.
    temporary: the run ends when it is closed. It makes no commits, and none of its state stays on
        the drives of any host. If it is killed, the small files of its directory stay. The
        directory must be new or hold no commit.
    alike: lines that all ranks must have alike, for a job with model.module. If a rank's are not rank
        0's, all ranks are refused.
    """
    name, text = job_arguments(job)
    check_callable(first, "first")
    guard()
    session = Session(
        _native.Session.open(
            name,
            text,
            overrides_list(set),
            optional_path(start_from, "start_from"),
            optional_path(machine, "machine"),
            fresh,
            verbose,
            first,
            share_of_launcher(),
            temporary,
            alike,
        )
    )
    note_open(session)
    return session
