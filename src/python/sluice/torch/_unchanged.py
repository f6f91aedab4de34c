"""Refuses a module that is not as its engine has left it: it was moved or converted, or it has other
parameters, or some of them have other names. Pruning and parametrizations change names: they would
compute with values that are elsewhere."""

from __future__ import annotations

from typing import List

import torch

from .._errors import WrongJob
from ._holding import Holding
from ._units import Holder, check_kind, common_dtype, is_left


class Unchanged:
    """What a module was when its engine was made."""

    def __init__(self, module: torch.nn.Module, holders: List[Holder], holding: Holding) -> None:
        self.dtype = common_dtype(holders)
        self.device = next(slot.parameter.device for h in holders for slot in h.slots)
        self._holders = holders
        self._holding = holding
        # by each of its names; also those that are torch's alone, which no holder has
        self._parameters = dict(module.named_parameters(remove_duplicate=False))
        self._left = [(n, p, p.dtype) for n, p in module.named_parameters() if is_left(p)]

    def check(self, module: torch.nn.Module) -> None:
        """Refuses the whole module."""
        check_kind(module)
        self.check_values(*self._holders)
        self.check_names(module)
        for name, parameter, dtype in self._left:
            _check_kept(name, parameter, dtype, False)
        found = {name for name, _ in module.named_parameters(remove_duplicate=False)}
        for name in self._parameters:
            if name not in found:
                raise _changed(f'has lost the parameter "{name}"')

    def check_values(self, *holders: Holder) -> None:
        """Refuses parameters that are not as the engine has left them."""
        units = [unit for holder in holders for unit in holder.units]
        for unit, slot in ((unit, slot) for unit in units for slot in unit.slots):
            if slot.parameter.device != self.device:
                raise _other(slot.name, slot.parameter.device, self.device, "move")
            dtype = slot.own_dtype or self.dtype
            _check_kept(slot.name, slot.parameter, dtype, not unit.frozen)
        self._holding.check(units)

    def check_names(self, part: torch.nn.Module, name: str = "", recurse: bool = True) -> None:
        """Refuses a part of the module that has other parameters. `name`: of the part."""
        named = part.named_parameters(name, recurse, remove_duplicate=False)
        for full, parameter in named:
            if self._parameters.get(full) is parameter:
                continue
            before = [other for other, one in self._parameters.items() if one is parameter]
            if before:
                raise _changed(f'has the parameter "{before[0]}" as "{full}"')
            raise _changed(f'has the new parameter "{full}"')


def _check_kept(name: str, parameter: torch.Tensor, dtype: torch.dtype, learns: bool) -> None:
    if parameter.dtype != dtype:
        raise _other(name, parameter.dtype, dtype, "convert")
    if parameter.requires_grad != learns:
        raise WrongJob(
            f'the parameter "{name}" has another requires_grad than when the engine was made: '
            "change the module before, let it rest by a learning rate of 0 (groups=...), or begin "
            "another run with the module that has loaded engine.state_dict()"
        )


def _other(name: str, now: object, before: object, what: str) -> WrongJob:
    return WrongJob(
        f'the parameter "{name}" is {now}, and was {before} when the engine was made: {what} the '
        "module before"
    )


def _changed(how: str) -> WrongJob:
    return WrongJob(f"the module {how} since the engine was made: change the module before")
