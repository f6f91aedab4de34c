"""The values with which parameters begin, until a run has taken them over, and a module's state_dict
with those that they have later."""

from __future__ import annotations

from typing import Callable, Dict, List, Optional, Tuple, Union

import torch

from .._errors import WrongJob
from ._holding import address_of, view_of
from ._memory import as_tensor, placeholder_of
from ._units import Holder, Slot, Unit

#: A tensor with the values, or a function that makes it.
Value = Union[torch.Tensor, Callable[[], torch.Tensor]]


class Values:
    """First values of all parameters, by parameter."""

    def __init__(self, holders: List[Holder], lazy: Dict[int, Value]) -> None:
        """`lazy`: values of parameters that are not in memory, by id(parameter)."""
        self._values: Dict[int, Value] = {}
        for holder in holders:
            for slot in holder.slots:
                key = id(slot.parameter)
                self._values[key] = lazy.get(key, slot.parameter.data)
        self._kept: Optional[Tuple[int, torch.Tensor]] = None  # a unit's index, its flat fp32 vector

    def of(self, slot: Slot) -> torch.Tensor:
        value = self._values[id(slot.parameter)]
        return value if isinstance(value, torch.Tensor) else value()

    def give_back(self, slot: Slot) -> None:
        """The parameter is as it was before the recording."""
        value = self._values[id(slot.parameter)]
        there = value if isinstance(value, torch.Tensor) else placeholder_of(slot)
        slot.parameter.data = there
        slot.parameter.grad = None

    def flat(self, unit: Unit, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A new flat vector of the unit [unit.elems]."""
        base = torch.zeros(unit.elems, dtype=dtype, device=device)
        for slot in unit.slots:
            value = self.of(slot).detach()
            if value.numel() > 1 and all(stride == 0 for stride in value.stride()):
                raise WrongJob(
                    f'"{slot.name}" has no values of its own: they are those of a run whose engine '
                    "is open or was closed, or sluice.torch.init built it for an Engine; build the "
                    "module again, or load engine.state_dict() with assign=True before"
                )
            view_of(base, slot).copy_(value)
        return base

    def fill(self, unit: Unit, begin: int, count: int, address: int) -> None:
        """Writes elements [begin, begin + count) of the padded flat vector to the address, in fp32."""
        target = as_tensor(None, address, count, torch.float32, torch.device("cpu"))
        if self._kept is None or self._kept[0] != unit.index:
            self._kept = (unit.index, self.flat(unit, torch.float32, torch.device("cpu")))
        part = self._kept[1][begin : begin + count]
        with torch.no_grad():
            target[: part.numel()] = part
            target[part.numel() :] = 0

    def forget(self) -> None:
        """The run has the values."""
        self._values.clear()
        self._kept = None


def state_of(
    module: torch.nn.Module, values: List[Tuple[Slot, torch.Tensor]]
) -> Dict[str, torch.Tensor]:
    """module.state_dict() as it is while the parameters have these values, in new tensors."""
    before = [slot.parameter.data for slot, _ in values]
    try:
        for slot, value in values:
            slot.parameter.data = value
        state = module.state_dict()
    finally:
        for (slot, _), data in zip(values, before):
            slot.parameter.data = data
    own = {address_of(value) for _, value in values}
    for name, value in state.items():
        if isinstance(value, torch.Tensor) and address_of(value) not in own:
            state[name] = value.clone()
    return state
