"""Parameter groups: numbers of the optimizer that may differ from unit to unit and change from step
to step."""

from __future__ import annotations

import math
import weakref
from typing import Any, Callable, Dict, List, Mapping, Optional

import torch

from .._errors import WrongJob
from .._optimizers import as_numbers
from ._core import refuse_copy
from ._units import Holder, Slot, Unit, note_offsets

_KEYS = ("lr", "weight_decay", "betas", "eps")

Choose = Callable[[str, torch.nn.Parameter], Mapping[str, Any]]


class Groups(torch.optim.Optimizer):
    """The groups as torch's learning rate schedulers and trainers take them. step() is that of the
    engine."""

    def __init__(
        self, groups: List[Dict[str, Any]], defaults: Mapping[str, Any], engine: Any
    ) -> None:
        # schedulers that cycle a momentum look for it in the defaults
        super().__init__(groups, dict(defaults))
        self._engine = weakref.ref(engine)
        self.first = [dict(group) for group in self.param_groups]

    __copy__ = __deepcopy__ = __reduce_ex__ = refuse_copy

    def take(self, other: "Groups") -> None:
        """Keeps its groups' numbers, with the parameters of groups that were made after these."""
        for own, group in zip(self.param_groups, other.param_groups):
            own["params"] = group["params"]
        for group in other.param_groups[len(self.param_groups) :]:
            self.param_groups.append(group)
            self.first.append(dict(group))

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        if getattr(self, "_engine", None) is not None:
            raise WrongJob(
                "the engine's memory is planned: say in its argument groups= which parameters have "
                "numbers of their own"
            )
        super().add_param_group(param_group)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        engine = self._engine()
        if closure is not None:
            raise WrongJob("step() takes no closure: call engine and engine.backward before it")
        if engine is None:
            raise WrongJob("the engine of this optimizer is gone")
        engine.step()

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """What torch's GradScaler asks in its step: it has scaled the loss."""
        raise WrongJob(
            "GradScaler finds no gradients, since the engine has taken them over, and made the "
            "update, from the loss that it has scaled: leave it out, as the engine itself scales "
            "the loss of a module in fp16, and other modules need no scaling"
        )

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Nothing to do: gradients are taken over as they come."""

    def send(self, core: Any) -> None:
        """Tells the run the numbers of the update that comes."""
        for number, (group, first) in enumerate(zip(self.param_groups, self.first)):
            numbers = dict(group)
            wrong = [k for k in _KEYS if _is_nan(group.get(k)) and not _is_nan(first.get(k))]
            as_numbers({k: group[k] for k in wrong}, f"param_groups[{number}]:")
            if number == 0 and group["lr"] == first["lr"]:
                numbers["lr"] = math.nan  # the job's own schedule counts
            send_group(core, number, numbers)

    def note_step(self) -> None:
        self._opt_called = True  # schedulers warn if they step before the optimizer


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def send_group(core: Any, number: int, group: Mapping[str, Any]) -> None:
    """Numbers that the group does not have are those of the job, which the library knows as NaN."""
    given = {key: group[key] for key in _KEYS if key in group and not _is_nan(group[key])}
    numbers = as_numbers(given, f"param_groups[{number}]:")
    beta1, beta2 = numbers.get("betas", (math.nan, math.nan))
    lr, decay, eps = (numbers.get(key, math.nan) for key in ("lr", "weight_decay", "eps"))
    core.module_set_group(number, lr, decay, beta1, beta2, eps)


def group_units(
    holders: List[Holder],
    optimizer: Mapping[str, Any],
    choose: Optional[Choose],
    engine: Any,
    before: Optional[Groups],
) -> Groups:
    """Gives each unit its group. A unit whose parameters are of several groups becomes several.
    `before`: groups that were made of other units, whose numbers come first and in their order."""
    params = {k: v for k, v in optimizer.get("params", {}).items() if v != "auto"}
    base = {key: params[key] for key in _KEYS if key in params}
    base.setdefault("lr", math.nan)
    base.setdefault("weight_decay", math.nan)
    if "betas" in base:
        base["betas"] = tuple(base["betas"])
    found: List[Dict[str, Any]] = [{**base, "params": []}]
    if before is not None:
        found = [{**{k: g[k] for k in _KEYS if k in g}, "params": []} for g in before.first]
    for holder in holders:
        made: List[Unit] = []
        for unit in holder.units:
            made += _split(unit, base, found, choose)
        holder.units = made
        if len(made) > 2:
            raise WrongJob(
                f'groups cut the unit "{holder.name or "root"}" into {len(made)}, and 2 are '
                "possible: one kind of parameters beside the rest, such as those without weight "
                "decay; name parts of it that have fewer kinds as units of their own (units=...)"
            )
    for index, unit in enumerate(u for holder in holders for u in holder.units):
        unit.index = index
    note_offsets(holders)
    return Groups(found, base, engine)


def _split(
    unit: Unit, base: Mapping[str, Any], found: List[Dict[str, Any]], choose: Optional[Choose]
) -> List[Unit]:
    parts: Dict[int, List[Slot]] = {}
    for slot in unit.slots:
        numbers = dict(base)
        other = choose(slot.name, slot.parameter) if choose and not unit.frozen else {}
        if not isinstance(other, Mapping):
            raise WrongJob(
                f'groups returns {type(other).__name__} for "{slot.name}", and must return a dict: '
                "{} for the optimizer's own numbers"
            )
        wrong = [key for key in other if key not in _KEYS]
        if wrong:
            raise WrongJob(f'groups: "{wrong[0]}" is unknown; there are {", ".join(_KEYS)}')
        as_numbers(other, f'groups: "{slot.name}":')
        numbers.update(other)
        number = next((i for i, g in enumerate(found) if _is_same(g, numbers)), len(found))
        if number == len(found):
            found.append({**numbers, "params": []})
        if not unit.frozen:
            found[number]["params"].append(slot.parameter)
        parts.setdefault(number, []).append(slot)
    return [
        Unit(unit.index, unit.name + (f".group{number}" if i else ""), slots, unit.frozen, number)
        for i, (number, slots) in enumerate(parts.items())
    ]


def _is_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return all(repr(one.get(key)) == repr(other.get(key)) for key in _KEYS)
