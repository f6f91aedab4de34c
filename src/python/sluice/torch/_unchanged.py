"""Refuses a module that is not as its engine has left it: it was moved or converted, or it has other
parameters, or some of them have other names. Pruning and parametrizations change names: they would
compute with values that are elsewhere."""

from __future__ import annotations

from typing import List

import torch

from .._errors import WrongJob
from ._holding import Holding
from ._units import Holder, check_kind


class Unchanged:
    """What a module was when its engine was made."""

    def __init__(self, module: torch.nn.Module, holders: List[Holder], holding: Holding) -> None:
        parameter = next(slot.parameter for holder in holders for slot in holder.slots)
        self.dtype, self.device = parameter.dtype, parameter.device
        self._holders = holders
        self._holding = holding
        # all names of each parameter; ids, since the holders keep the parameters
        named = module.named_parameters(remove_duplicate=False)
        self._ids = {name: id(parameter) for name, parameter in named}

    def check(self, module: torch.nn.Module) -> None:
        """Refuses the whole module."""
        check_kind(module)
        self.check_values(*self._holders)
        self.check_names(module)
        found = {name for name, _ in module.named_parameters(remove_duplicate=False)}
        for name in self._ids:
            if name not in found:
                raise _changed(f'has lost the parameter "{name}"')

    def check_values(self, *holders: Holder) -> None:
        """Refuses parameters that are not as the engine has left them."""
        units = [unit for holder in holders for unit in holder.units]
        for unit, slot in ((unit, slot) for unit in units for slot in unit.slots):
            parameter = slot.parameter
            for now, before, what in (
                (parameter.dtype, self.dtype, "convert"),
                (parameter.device, self.device, "move"),
            ):
                if now != before:
                    raise WrongJob(
                        f'the parameter "{slot.name}" is {now}, and was {before} when the engine '
                        f"was made: {what} the module before"
                    )
            if parameter.requires_grad == unit.frozen:
                raise WrongJob(
                    f'the parameter "{slot.name}" has another requires_grad than when the engine '
                    "was made: change the module before"
                )
        self._holding.check(units)

    def check_names(self, part: torch.nn.Module, name: str = "", recurse: bool = True) -> None:
        """Refuses a part of the module that has other parameters. `name`: of the part."""
        named = part.named_parameters(name, recurse, remove_duplicate=False)
        for full, parameter in named:
            known = self._ids.get(full)
            if known == id(parameter):
                continue
            before = [other for other, key in self._ids.items() if key == id(parameter)]
            if before:
                raise _changed(f'has the parameter "{before[0]}" as "{full}"')
            raise _changed(f'has the new parameter "{full}"')


def _changed(how: str) -> WrongJob:
    return WrongJob(f"the module {how} since the engine was made: change the module before")
