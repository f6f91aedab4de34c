"""A run that is open, step by step."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Optional, Sequence, Union

from ._load import native as _native

Path = Union[str, "os.PathLike[str]"]


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
    host_bytes: int
    nvme_bytes: int
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


class Session:
    """An open run, made by sluice.open(). Close it, or use it as a context manager.

    A process has one run open at a time, and one thread makes all its calls. The interpreter's lock
    is released while a step computes.
    """

    def __init__(self, native_session: "_native.Session") -> None:
        self._native = native_session

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

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
        self, directory: Path, dtype: Optional[str] = None, adapters: bool = False, force: bool = False
    ) -> None:
        """Commits, and writes that state as a Hugging Face checkpoint.

        dtype: "fp32", "bf16" or "fp16"; None: the run's working dtype.
        adapters: for a run with train.lora, only the adapters, as PEFT has them.
        force: replaces files in a directory that is not empty.
        """
        self._native.export(directory, dtype, adapters, force)

    def close(self) -> None:
        """Commits the steps that are not yet committed, and frees all. May be called again."""
        self._native.close()


def open(  # noqa: A001 - the name that people look for
    job: Path,
    set: Sequence[str] = (),
    start_from: Optional[Path] = None,
    machine: Optional[Path] = None,
    fresh: bool = False,
    verbose: bool = False,
) -> Session:
    """Reads the job, plans, reserves all memory, and resumes from the last commit of run.dir or
    begins a new run."""
    return Session(
        _native.Session.open(
            os.fspath(job),
            set,
            None if start_from is None else os.fspath(start_from),
            None if machine is None else os.fspath(machine),
            fresh,
            verbose,
        )
    )
