"""Parameters in the memory that a plan gives them, for the length of a unit's turn.

While a unit is held, its parameters are views of that memory. Autograd keeps what a backward needs,
and among that are such views: of a weight, or of its transpose. The memory is someone else's by
then, and the backward finds the weight at another place. So what is kept of a held unit is a
Token: which unit, and where in it; the backward makes the view anew.
"""

from __future__ import annotations

import ctypes
import functools
import math
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple, Union

import torch

from .._errors import WrongJob
from ._memory import placeholder_of
from ._units import Holder, Slot, Unit


class Token(NamedTuple):
    """A view of a unit's flat vector, or of a parameter that is cast from it. Sizes and offsets in
    elements."""

    unit: Unit
    slot: Optional[Slot]  # of the one that is cast
    size: Tuple[int, ...]
    stride: Tuple[int, ...]
    offset: int
    dtype: torch.dtype


class Holding:
    """Which units are held, and where. It notes how it left each parameter: nothing else may move,
    convert or write to one."""

    def __init__(self, holders: List[Holder]) -> None:
        self.holders = holders
        self._bases: Dict[int, torch.Tensor] = {}  # by the unit's index: its flat vector
        # by the addresses of these, and of parameters that are cast from them
        self._owners: Dict[int, Tuple[Unit, Optional[Slot]]] = {}
        # by id(slot): the parameter's version and address as noted
        self._marks: Dict[int, Tuple[int, int]] = {}
        #: The backward needs this unit: called to bring it.
        self.bring: Callable[[Unit], None] = lambda unit: None
        #: Called where autograd keeps a tensor, and where the backward takes it.
        self.pause: Callable[[], None] = lambda: None

    def place(self, unit: Unit, base: torch.Tensor) -> None:
        """The unit's parameters become views of `base`, its flat vector, or are cast from it."""
        self._bases[unit.index] = base
        self._owners[address_of(base)] = (unit, None)
        for slot in unit.slots:
            slot.parameter.data = values_in(base, slot)
            if slot.is_cast:
                self._owners[address_of(slot.parameter)] = (unit, slot)
        self.note(unit)

    def take_away(self, unit: Unit) -> None:
        """The unit's parameters are elsewhere from now on."""
        self._bases.pop(unit.index, None)
        for address in [a for a, (owner, _) in self._owners.items() if owner is unit]:
            del self._owners[address]
        for slot in unit.slots:
            slot.parameter.data = placeholder_of(slot)
        self.note(unit)

    def has(self, unit: Unit) -> bool:
        return unit.index in self._bases

    def note(self, unit: Unit) -> None:
        """Notes memory and version of the unit's parameters; check() refuses any other."""
        for slot in unit.slots:
            self._marks[id(slot)] = mark_of(slot)

    def forget(self) -> None:
        """The parameters have memory of their own again."""
        self._marks.clear()

    def check(self, units: List[Unit]) -> None:
        """Refuses what has changed a parameter since it was noted, as the run does not see it. What
        was done to one that is elsewhere is undone, so that it is refused once."""
        error: Optional[WrongJob] = None
        for unit, slot in ((unit, slot) for unit in units for slot in unit.slots):
            mark = self._marks.get(id(slot))
            if mark is None or (mark == mark_of(slot) and not _is_written(slot)):
                continue
            is_away = mark[1] == address_of(placeholder_of(slot))
            if is_away:
                slot.parameter.data = placeholder_of(slot)
                with torch.no_grad():
                    placeholder_of(slot).as_strided((1,), (1,)).fill_(float("nan"))
            self._marks[id(slot)] = mark_of(slot)
            how = " while it was elsewhere," if is_away else ""
            error = error or changed_error(unit, slot, how)
        if error is not None:
            raise error

    def owner(self, tensor: torch.Tensor) -> Optional[Unit]:
        """The held unit whose memory the tensor lies in."""
        return self._owners.get(address_of(tensor), (None, None))[0]

    def hooks(self) -> Any:
        """The context in which a forward runs that a backward follows."""
        return torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    @torch._disable_dynamo  # type: ignore[attr-defined]
    def _pack(self, tensor: torch.Tensor) -> Any:
        self.pause()
        unit, slot = self._owners.get(address_of(tensor), (None, None))
        if unit is None:
            # the tensor itself would keep its own graph alive; both count the same changes
            kept = tensor.detach()
            return kept, kept._version
        base = self._bases[unit.index] if slot is None else slot.parameter.detach()
        return Token(
            unit,
            slot,
            tuple(tensor.shape),
            tensor.stride(),
            int(tensor.storage_offset()) - int(base.storage_offset()),
            tensor.dtype,
        )

    def _unpack(self, kept: Union[Token, Tuple[torch.Tensor, int]]) -> torch.Tensor:
        self.pause()
        if not isinstance(kept, Token):
            tensor, version = kept
            if tensor._version != version:
                raise WrongJob(
                    f"a tensor {list(tensor.shape)} that the backward needs was changed in place "
                    "after it was used: change a copy of it"
                )
            return tensor
        if not self.has(kept.unit):
            self.bring(kept.unit)
        base = self._bases.get(kept.unit.index)
        if base is None:
            raise WrongJob(
                f'the backward needs the parameters of the unit "{kept.unit.name}", which are gone: '
                "the engine of this forward was dropped or closed"
            )
        if kept.slot is not None:
            base = kept.slot.parameter.detach().reshape(-1)
        if base.dtype != kept.dtype:
            each = max(kept.dtype.itemsize // base.itemsize, 1)
            base = base[: base.numel() // each * each].view(kept.dtype)
        return base.as_strided(kept.size, kept.stride, base.storage_offset() + kept.offset)


def changed_error(unit: Unit, slot: Slot, how: str) -> WrongJob:
    return WrongJob(
        f'the parameter "{slot.name}" of the unit "{unit.name}" was changed{how} other than by the '
        "optimizer, and the change would be lost: compute with a changed copy of it, or keep what "
        "changes in a buffer"
    )


def _is_written(slot: Slot) -> bool:
    """What stands for the values is not as it was. So it was filled through .data, which torch does
    not count as a new version."""
    one = slot.placeholder
    if one is None or one.device.type != "cpu":  # a GPU would have to end its work
        return False
    return ctypes.string_at(one.data_ptr(), one.itemsize) != _bytes_of_nan(one.dtype)


@functools.lru_cache(None)
def _bytes_of_nan(dtype: torch.dtype) -> bytes:
    one = torch.full((1,), math.nan, dtype=dtype)
    return ctypes.string_at(one.data_ptr(), one.itemsize)


def mark_of(slot: Slot) -> Tuple[int, int]:
    return slot.parameter._version, address_of(slot.parameter)


def address_of(tensor: torch.Tensor) -> int:
    """Where the tensor's memory begins; 0: it has no memory of the usual kind."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):
        return 0


def view_of(base: torch.Tensor, slot: Slot) -> torch.Tensor:
    """The slot's part of its unit's flat vector, in the parameter's shape. It is fp32 if the
    parameter is cast."""
    part = base[slot.offset : slot.offset + slot.elems]
    if slot.own_dtype is not None and not slot.is_cast:
        part = part.view(slot.own_dtype)[: slot.shape.numel()]
    return part.view(slot.shape)


def values_in(base: torch.Tensor, slot: Slot, copy: bool = False) -> torch.Tensor:
    """The slot's values in its unit's flat vector, in the parameter's dtype: a view where that is
    the vector's and no copy is asked for."""
    return view_of(base, slot).to(slot.parameter.dtype, copy=copy)


def slot_at(unit: Unit, tensor: torch.Tensor) -> Slot:
    """The parameter of a held unit whose memory the tensor lies in."""
    address, begin = address_of(tensor), tensor.data_ptr()
    there = [slot for slot in unit.slots if address_of(slot.parameter) == address]
    return [slot for slot in there if slot.parameter.data_ptr() <= begin][-1]


def gaps_of(unit: Unit, elems: int) -> List[Tuple[int, int]]:
    """The ranges of a flat vector of `elems` elements that no parameter covers."""
    gaps, end = [], 0
    for slot in unit.slots:
        if slot.offset > end:
            gaps.append((end, slot.offset))
        end = slot.offset + slot.elems
    if elems > end:
        gaps.append((end, elems))
    return gaps
