"""Measured steps beside the plan."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Dict

from .._errors import WrongJob
from .._job import Path
from .._run import Run
from .._tasks import Plan

_FIRST = 2  # steps that are not counted: memory is touched, and nothing is read ahead yet


@dataclass(frozen=True)
class LaneProfile:
    """How long one lane is busy in a step."""

    predicted_busy_seconds: float
    measured_busy_seconds: float  #: median
    measured_stall_seconds: float  #: median: computing and updates waited so long for it


@dataclass(frozen=True)
class Profile:
    """Steps as the plan foretold and as they were."""

    steps: int  #: how many were measured
    predicted_seconds: float
    measured_seconds: float  #: median
    lanes: Dict[str, LaneProfile]


def profile_of(run_dir: Path, plan: Plan) -> Profile:
    steps = Run(run_dir).metrics().steps
    if len(steps) < _FIRST + 3:
        raise WrongJob(
            f"profile: the run has {len(steps)} steps, and {_FIRST + 3} steps or more are needed"
        )
    steps = steps[_FIRST:]
    predicted = plan.figures["lanes"]
    lanes = {
        name: LaneProfile(
            predicted[name]["busy_seconds"],
            median(step.lanes[name].busy_seconds for step in steps),
            median(step.lanes[name].stall_seconds for step in steps),
        )
        for name in steps[0].lanes
    }
    return Profile(
        len(steps), plan.step_seconds or 0.0, median(step.seconds for step in steps), lanes
    )
