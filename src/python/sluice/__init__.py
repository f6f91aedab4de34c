"""Sluice: trains transformer models whose states are larger than the memory of all devices.

    import sluice

    sluice.plan(job)                      where states go, what it needs, how long a step takes
    sluice.train(job, on_step=print)      trains, resumes, commits
    with sluice.open(job) as run: ...     step by step
    sluice.Run("runs/first").metrics()    what a run has written
    sluice.generate("runs/first", "...")  evaluate, export: with a trained model
    sluice.probe("machine.json")          measures this machine

A job is a dict or the path of a job file, with the keys of `sluice train`. Failures are exceptions
with the exit status of the command: sluice.Error and its classes. Bytes are int, times are seconds,
losses are nats per token.
"""

from __future__ import annotations

from ._errors import Error, Failed, NoFit, Stopped, WrongJob
from ._load import native as _native
from ._optimizers import Adagrad, AdamW, Lion, Muon
from ._run import EvaluationMetrics, Lane, Metrics, Run, StepMetrics
from ._session import Info, Session, Step, open
from ._tasks import (
    Evaluation,
    Generation,
    Plan,
    Tiers,
    Training,
    evaluate,
    export,
    generate,
    plan,
    probe,
    train,
)

__version__: str = _native.version()

__all__ = [
    "Adagrad",
    "AdamW",
    "Error",
    "Evaluation",
    "EvaluationMetrics",
    "Failed",
    "Generation",
    "Info",
    "Lane",
    "Lion",
    "Metrics",
    "Muon",
    "NoFit",
    "Plan",
    "Run",
    "Session",
    "Step",
    "StepMetrics",
    "Stopped",
    "Tiers",
    "Training",
    "WrongJob",
    "__version__",
    "evaluate",
    "export",
    "generate",
    "open",
    "plan",
    "probe",
    "train",
]
