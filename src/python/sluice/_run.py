"""A run directory: what a run has written for people and programs."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, fields
from typing import Any, Dict, Iterator, List, Optional, Sequence, Type, TypeVar

from ._errors import Failed, WrongJob
from ._job import Path, path_text
from ._tasks import Evaluation, Generation, Plan, Tiers, evaluate, export, generate


@dataclass(frozen=True)
class Lane:
    """What one lane did in a step."""

    bytes: int  #: moved
    busy_seconds: float
    stall_seconds: float  #: how long computing and updates waited for this lane
    spared_bytes: int = 0  #: of experts that no token chose, and that were not moved


@dataclass(frozen=True)
class StepMetrics:
    """One step, as metrics.jsonl has it. None: not a finite number."""

    step: int
    loss: Optional[float]  #: nats per token
    loss_bits: str  #: the fp32 loss as 8 hex digits
    grad_norm: Optional[float]  #: before clipping
    lr: float
    loss_scale: float
    skipped: bool  #: the gradients overflowed, and nothing was changed
    tokens: int  #: of all ranks
    seconds: float
    tokens_per_second: float
    model_tflops: float  #: per second, counted by the model's formula
    lanes: Dict[str, Lane]
    peak_bytes: Tiers
    counted_tokens: Optional[int] = None  #: if some tokens do not count as targets
    balance_loss: Optional[float] = None  #: of routers, without its coefficient
    router_z_loss: Optional[float] = None  #: of routers, without its coefficient


@dataclass(frozen=True)
class EvaluationMetrics:
    """One evaluation on data.valid, as metrics.jsonl has it."""

    step: int
    valid_loss: Optional[float]  #: nats per token
    valid_loss_bits: str  #: the fp32 loss as 8 hex digits
    tokens: int
    seconds: float
    counted_tokens: Optional[int] = None


@dataclass(frozen=True)
class Metrics:
    """All steps and evaluations of a run, in the order of its file."""

    steps: List[StepMetrics]
    evaluations: List[EvaluationMetrics]


_Kind = TypeVar("_Kind")


def _known(kind: Type[_Kind], line: Dict[str, Any]) -> _Kind:
    """The object from a line's members; those that a later version adds are left out."""
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    return kind(**{key: line[key] for key in line if key in names})


def _add(line: Dict[str, Any], out: Metrics) -> None:
    if line.get("event") == "eval":
        out.evaluations.append(_known(EvaluationMetrics, line))
        return
    line["lanes"] = {name: _known(Lane, lane) for name, lane in line["lanes"].items()}
    line["peak_bytes"] = _known(Tiers, line["peak_bytes"])
    out.steps.append(_known(StepMetrics, line))


class Run:
    """A run directory. It may be in use by a process that trains."""

    def __init__(self, path: Path) -> None:
        self.path = path_text(path, "a run directory")
        if not os.path.isdir(self.path):
            raise WrongJob(f"{self.path} is no run directory: there is no such directory")

    def __repr__(self) -> str:
        return f"sluice.Run({self.path!r})"

    def __fspath__(self) -> str:
        return self.path

    def _lines(self) -> Iterator[Dict[str, Any]]:
        name = os.path.join(self.path, "metrics.jsonl")
        try:
            with open(name, encoding="utf-8", errors="replace") as file:
                for number, line in enumerate(file, 1):
                    if not line.endswith("\n"):
                        return  # it is being written
                    try:
                        yield json.loads(line)
                    except ValueError as error:
                        raise Failed(f"{name}, line {number}: {error}") from None
        except FileNotFoundError:
            raise WrongJob(
                f"{self.path} has no metrics.jsonl: it is no run directory, or no step was made"
            ) from None

    def metrics(self) -> Metrics:
        """Reads metrics.jsonl."""
        out = Metrics([], [])
        for number, line in enumerate(self._lines(), 1):
            try:
                _add(line, out)
            except (TypeError, KeyError, AttributeError) as error:
                raise Failed(
                    f"{self.path}/metrics.jsonl, line {number} is not of a run: {error}"
                ) from None
        return out

    def plan(self) -> Plan:
        """Reads plan.json, the plan from before the first step."""
        name = os.path.join(self.path, "plan.json")
        try:
            with open(name, encoding="utf-8") as file:
                return Plan.from_json(json.load(file))
        except FileNotFoundError:
            raise WrongJob(f"{self.path} has no plan.json: it is no run directory") from None
        except (ValueError, KeyError, TypeError) as error:
            raise Failed(f"{name} is no plan: {error}") from None

    def evaluate(self, files: Sequence[Path], **options: Any) -> Evaluation:
        """sluice.evaluate() with this run's model."""
        return evaluate(self.path, files, **options)

    def generate(self, prompt: str = "\n", **options: Any) -> Generation:
        """sluice.generate() with this run's model."""
        return generate(self.path, prompt, **options)

    def export(self, directory: Path, **options: Any) -> None:
        """sluice.export() of this run."""
        export(self.path, directory, **options)
