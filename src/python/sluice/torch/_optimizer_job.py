"""What an optimizer alone asks of the library: its parameters in units, and the job that has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Iterable, List, Mapping, Optional, Set, Tuple

import torch

from .._errors import WrongJob
from .._optimizers import as_numbers
from ._core import Bytes
from ._units import _DTYPES, Holder, Slot, Unit, check_plain, note_offsets

UNIT_ELEMS = 16 << 20

#: What the argument `state` stands for, as the job's block `state` says it.
STATES: Dict[str, Dict[str, str]] = {
    "fp32": {},
    "split": {"master": "split"},
    "split+bf16": {"master": "split", "moments": "bf16"},
    "bf16": {"moments": "bf16"},
    "8bit": {"moments": "8bit"},
    "split+8bit": {"master": "split", "moments": "8bit"},
}


@dataclass
class Cut:
    """The parameters of an optimizer."""

    units: List[Unit]  #: of those that learn
    idle: List[Tuple[str, torch.Tensor]]  #: those that do not, with their names
    dtype: torch.dtype
    device: torch.device


def cut_params(groups: Iterable[Mapping[str, Any]], kind: str) -> Cut:
    """Cuts parameters that are neighbours in their group into units. `kind`: the optimizer's."""
    units: List[Unit] = []
    idle: List[Tuple[str, torch.Tensor]] = []
    first: Optional[torch.Tensor] = None
    known: Set[int] = set()
    for number, group in enumerate(groups):
        elems = UNIT_ELEMS
        for position, parameter in enumerate(group["params"]):
            name = f"group{number}.param{position}"
            if id(parameter) in known:
                continue  # torch warns of it
            known.add(id(parameter))
            if not parameter.requires_grad:
                idle.append((name, parameter))
                continue
            first = parameter if first is None else first
            _check(name, parameter, first)
            is_matrix = parameter.dim() == 2
            begins = elems + parameter.numel() > UNIT_ELEMS or (
                kind == "Muon" and is_matrix != (units[-1].slots[0].parameter.dim() == 2)
            )
            if begins:
                units.append(Unit(len(units), f"group{number}.{len(units)}", [], False, number))
                elems = 0
            elems += parameter.numel()
            units[-1].slots.append(Slot(name, parameter, parameter.shape))
    if first is None:
        raise WrongJob("no parameter learns (requires_grad)")
    note_offsets([Holder("", None, units)])
    return Cut(units, idle, first.dtype, first.device)


def _check(name: str, parameter: torch.Tensor, first: torch.Tensor) -> None:
    check_plain(name, parameter)
    if parameter.device.type not in ("cpu", "cuda"):
        raise WrongJob(f"{name} is on {parameter.device}, and has no values to train")
    if parameter.dtype not in _DTYPES or parameter.dtype != first.dtype:
        raise WrongJob(
            f"{name} is {parameter.dtype}, and all parameters must be of one type: "
            "float32, bfloat16 or float16"
        )
    if parameter.device != first.device:
        raise WrongJob(f"{name} is on {parameter.device} and others are on {first.device}")


def make_job(
    cut: Cut,
    kind: str,
    numbers: Mapping[str, Any],
    drives: Optional[List[Dict[str, Any]]],
    host: Bytes,
    state: str,
    run: Dict[str, Any],
) -> Dict[str, Any]:
    """The job of an optimizer of this kind. `run`: the job's block."""
    job: Dict[str, Any] = {
        "model": {"module": _describe(cut, kind)},
        "run": run,
        "device": {"backend": "cpu"},
        "tiers": _place(cut, drives, host),
        "state": _state(cut, kind, state),
        "gradient_clipping": 0,
        # fp16 gradients may overflow, and then the step is left out: all are looked at before
        "schedule": {"update": "after_backward" if cut.dtype == torch.float16 else "in_backward"},
        "zero_optimization": {"stage": 2},  # of several ranks each has a part of the state
        "optimizer": {"type": kind, "params": as_numbers(numbers, f"{kind}:")},
    }
    if cut.dtype == torch.bfloat16:
        job["bf16"] = {"enabled": True, "check_grad_overflow": False}
    if cut.dtype == torch.float16:
        job["fp16"] = {"enabled": True, "loss_scale": 1}
    return job


def _describe(cut: Cut, kind: str) -> Dict[str, Any]:
    """The job's model.module."""
    stages: List[Dict[str, Any]] = [
        {
            "name": unit.name,
            "units": [unit.index],
            "forward": None,
            "backward": {"reads": [False]},
        }
        for unit in cut.units
    ]
    stages.append(
        {
            "name": "begin",
            "units": stages[-1]["units"],
            "forward": None,
            "backward": {"reads": [False], "adds": [False]},
        }
    )
    units = [
        {
            "name": unit.name,
            "group": unit.group,
            "matrices": kind == "Muon" and unit.slots[0].parameter.dim() == 2,
            "tensors": [{"name": s.name, "shape": list(s.shape)} for s in unit.slots],
        }
        for unit in cut.units
    ]
    return {
        "name": "optimizer",
        "lends_grads": cut.device.type == "cpu",
        "units": units,
        "stages": stages,
    }


def _place(cut: Cut, drives: Optional[List[Dict[str, Any]]], host: Bytes) -> Dict[str, Any]:
    """The job's tiers."""
    largest = max(unit.elems for unit in cut.units)
    passing = 6 * 4 * largest + (256 << 20)  # gradients and tiles on their way
    tiers: Dict[str, Any] = {
        "device": {"budget": passing},
        "place": {"params": "host", "optimizer": "nvme" if drives else "host"},
    }
    if drives:
        tiers["nvme"] = drives
    elif cut.device.type == "cpu":
        # the device is host memory, too: what rests there is updated without a copy
        total = sum(unit.elems for unit in cut.units)
        tiers["place"] = {what: "device" for what in ("params", "grads", "optimizer")}
        tiers["device"]["budget"] = 20 * total + passing if host is None else host
        tiers["host"] = {"budget": 4 * largest + (64 << 20)}
    if host is not None and "host" not in tiers:
        tiers["host"] = {"budget": host}
    return tiers


def _state(cut: Cut, kind: str, name: str) -> Dict[str, str]:
    state = dict(STATES[name])
    if cut.dtype == torch.float32 and kind != "Muon":
        state["master"] = "split"  # the parameters are the masters: there is no second copy
    return state
