"""The first step, run once to learn in which order a module uses its units.

It runs the module's forward and a backward as they are, on the first batch, with the parameters of
one unit in memory at a time. Gradients are dropped as they come, those of the root at the end.
Random numbers and buffers are as before when it is over, so the real step that follows is the same
as if it had been the first.
"""

from __future__ import annotations

import contextlib
import random
import time
from typing import Any, Callable, List, Optional, Set, Tuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from .._errors import WrongJob
from ._holding import Holding, address_of, changed_error
from ._memory import placeholder_of
from ._units import Holder, Seconds, Slot
from ._values import Values


_COPIED_ELEMS = 8 << 20


class UsedTwice(WrongJob):
    """A unit is used twice in one forward."""

    holder: Holder


def tensors_in(outputs: Any) -> List[torch.Tensor]:
    """The tensors within outputs."""
    leaves, _ = tree_flatten(outputs)
    is_object = len(leaves) == 1 and leaves[0] is outputs and not isinstance(outputs, torch.Tensor)
    if is_object and hasattr(outputs, "__dict__"):
        leaves, _ = tree_flatten(list(vars(outputs).values()))  # of a class of the user's own
    return [x for x in leaves if isinstance(x, torch.Tensor)]


def differentiable(outputs: Any) -> List[torch.Tensor]:
    """Those that have gradients."""
    return [tensor for tensor in tensors_in(outputs) if tensor.requires_grad]


def loss_of(outputs: Any) -> torch.Tensor:
    """A number to go back from: the outputs' loss, or else the sum of all outputs."""
    loss = getattr(outputs, "loss", None)
    if isinstance(loss, torch.Tensor) and loss.requires_grad:
        return loss.sum()
    tensors = differentiable(outputs)
    if not tensors:
        raise WrongJob(
            "no output of the module has a gradient: call the engine outside of torch.no_grad(), "
            "and check that its parameters learn"
        )
    return torch.stack([x.float().sum() for x in tensors]).sum()


def written_by(func: Any, args: Any, kwargs: Any) -> List[torch.Tensor]:
    """The tensors that an operation changes in place."""
    found: List[torch.Tensor] = []
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[position] if position < len(args) else kwargs.get(argument.name)
            found += [t for t in tree_flatten(given)[0] if isinstance(t, torch.Tensor)]
    return found


class _Watch(TorchDispatchMode):
    """Refuses operations on parameters that are not held, and those that change a parameter."""

    def __init__(self, slots: List[Slot], root: Holder, holding: Holding) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._names = {
            placeholder_of(slot).untyped_storage().data_ptr(): slot.name for slot in slots
        }
        self._holding = holding
        self._root = {
            address_of(slot.parameter): (unit, slot) for unit in root.units for slot in unit.slots
        }

    def _check_written(self, func: Any, tensor: torch.Tensor) -> None:
        unit = self._holding.owner(tensor)
        if unit is not None:
            inside = tensor.storage_offset()
            slot = [s for s in unit.slots if s.offset <= inside][-1]
        elif address_of(tensor) in self._root:
            unit, slot = self._root[address_of(tensor)]
        else:
            return
        raise changed_error(unit, slot, f" by the forward or backward ({func})")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for item in tree_flatten((args, kwargs))[0]:
            if not isinstance(item, torch.Tensor) or item.device.type == "meta":
                continue
            name = self._names.get(address_of(item))
            if name is not None and not str(func).startswith("aten.detach"):
                raise WrongJob(
                    f'the parameter "{name}" is used ({func}) while its unit is not there: its '
                    "module is not called where it is used; name the part of the module that does "
                    "both as the unit (units=...), or leave it out of the units"
                )
        for item in written_by(func, args, kwargs):
            self._check_written(func, item)
        return func(*args, **kwargs)


class _Copies:
    """What a step copies beside the module's own work: the root's parameters into torch's memory, and
    gradients out of it. A recording makes these copies too, for their time, into one small target."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        # not zeros: that would leave the memory to be mapped by the first copy
        self._parameters = torch.full((_COPIED_ELEMS,), 0, dtype=dtype, device=device)
        self._gradients = self._parameters
        if dtype != torch.float32:
            self._gradients = torch.full((_COPIED_ELEMS,), 0.0, device=device)

    def parameter(self, value: torch.Tensor) -> None:
        self._copy(value, self._parameters)

    def gradient(self, slot: Slot) -> None:
        if slot.parameter.grad is not None and not slot.parameter.grad.is_sparse:
            self._copy(slot.parameter.grad, self._gradients)
        slot.parameter.grad = None

    @staticmethod
    def _copy(source: torch.Tensor, target: torch.Tensor) -> None:
        with torch.no_grad():
            for part in source.reshape(-1).split(target.numel()):
                target[: part.numel()].copy_(part)


class Recorder:
    """What the hooks of a module call while its first step is recorded."""

    def __init__(self, holding: Holding, values: Values, device: torch.device) -> None:
        self._holding = holding
        self._values = values
        self._device = device
        slot = next(slot for holder in holding.holders for slot in holder.slots)
        self._copies = _Copies(slot.parameter.dtype, device)
        self._is_forward = True
        self._now: Optional[Tuple[str, str]] = None
        self._since = 0.0
        self._held: Optional[Holder] = None
        self.order: List[Holder] = []
        self.backward: List[Holder] = []
        self.seconds: Seconds = {}
        self._with_gradient: Set[int] = set()  # by id(slot)
        #: Torch would add up several gradients of a parameter in 16 bits, where the run has fp32.
        self.rounds_sums = False

    # ---- what the module's hooks call ----

    def enter(self, holder: Holder) -> None:
        if not self._is_forward:
            self.turn(holder)  # a checkpoint computes the unit's forward again
            return
        if holder in self.order:
            error = UsedTwice(
                f'the unit "{holder.name}" is used twice in one forward: name a part of the module '
                "around both uses as the unit (units=...), or leave it out of the units"
            )
            error.holder = holder
            raise error
        self._begin(holder, "forward")
        self.order.append(holder)
        self._take(holder)

    def leave(self, holder: Holder) -> None:
        if self._is_forward:
            self._release()

    def turn(self, holder: Holder) -> None:
        if self._held is holder:
            return
        if holder in self.backward:
            raise WrongJob(
                f'the backward comes back to the unit "{holder.name}" after it had left it for '
                f'"{self._held.name if self._held else "another"}": give each unit a checkpoint of '
                "its own, or name a part of the module around both as the unit (units=...)"
            )
        self._release()
        self._begin(holder, "backward")
        self.backward.append(holder)
        self._take(holder)

    def gradient(self, slot: Slot, is_root: bool) -> None:
        if is_root:  # handed over at the end
            return
        self.rounds_sums |= id(slot) in self._with_gradient and slot.parameter.itemsize < 4
        self._with_gradient.add(id(slot))
        self._copy_gradients(self._held, [slot])

    def _copy_gradients(self, holder: Optional[Holder], slots: List[Slot]) -> None:
        begin = time.perf_counter()
        for slot in slots:
            self._copies.gradient(slot)
        if holder is not None:
            key = (holder.name, "copies")
            self.seconds[key] = self.seconds.get(key, 0.0) + time.perf_counter() - begin

    # ---- units ----

    def _begin(self, holder: Optional[Holder], what: str) -> None:
        now = time.perf_counter()
        if self._now is not None:
            self.seconds[self._now] = self.seconds.get(self._now, 0.0) + now - self._since
        self._now = (holder.name if holder is not None else "loss", what)

    def _take(self, holder: Holder) -> None:
        for unit in holder.units:
            dtype = unit.slots[0].parameter.dtype
            self._holding.place(unit, self._values.flat(unit, dtype, self._device))
        self._held = holder
        self._since = time.perf_counter()

    def _release(self) -> None:
        if self._held is not None:
            for unit in self._held.units:
                self._holding.take_away(unit)
        self._held = None

    # ---- the whole ----

    def total_seconds(self) -> float:
        """Copies are a part of their backward."""
        return sum(took for (_, what), took in self.seconds.items() if what != "copies")

    def run(
        self, call: Callable[[], Any], root: Holder, others: List[Holder], checks: bool
    ) -> None:
        """Calls the module once and goes back. Afterwards `order` has all holders that it used.
        `checks`: looks at each operation for parameters that are not there, which takes time."""
        slots = [slot for holder in others for slot in holder.slots]
        for slot in root.slots:
            slot.parameter.data = self._values.of(slot)
        for holder in others:
            for unit in holder.units:
                self._holding.take_away(unit)
        self._now, self._since = (root.name, "forward"), time.perf_counter()
        for slot in root.slots:
            self._copies.parameter(slot.parameter.data)
        try:
            with _Watch(slots, root, self._holding) if checks else contextlib.nullcontext():
                loss = loss_of(call())
                self._release()
                self._is_forward = False
                self._begin(None, "backward")
                self._since = time.perf_counter()
                loss.backward()
            self._begin(root, "backward")
            self._since = time.perf_counter()
            self._copy_gradients(root, root.slots)
            self._begin(None, "")
        finally:
            self._release()
            for slot in root.slots:  # there still, if the backward failed
                slot.parameter.grad = None
        missing = [holder.name for holder in others if holder not in self.order]
        if missing:
            raise WrongJob(
                f'the forward does not use the unit "{missing[0]}" ({len(missing)} of '
                f"{len(others)} units): a step uses all of them; leave it out of the units (units=...)"
            )
        self._check_backward()

    def _check_backward(self) -> None:
        names = [holder.name for holder in reversed(self.order) if holder in self.backward]
        found = [holder.name for holder in self.backward]
        for one, other in zip(names, found):
            if one != other:
                raise WrongJob(
                    f'the backward uses the unit "{other}" where "{one}" should come: it must go '
                    "through the units in the opposite order of the forward; name a part of the "
                    "module around both as the unit (units=...)"
                )


class _State:
    """Random numbers and buffers, to be as before."""

    def __init__(self, module: torch.nn.Module, device: torch.device) -> None:
        self._random = torch.get_rng_state()
        self._python = random.getstate()
        self._device = device
        self._random_device = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        self._buffers = [
            (item._buffers, name, buffer, buffer.detach().clone())
            for item in module.modules()
            for name, buffer in item._buffers.items()
            if buffer is not None
        ]

    def restore(self) -> None:
        torch.set_rng_state(self._random)
        random.setstate(self._python)
        if self._random_device is not None:
            torch.cuda.set_rng_state(self._random_device, self._device)
        with torch.no_grad():
            for owner, name, buffer, value in self._buffers:
                buffer.copy_(value)
                owner[name] = buffer


def copy_inputs(inputs: Any) -> Any:
    """Copies of all tensors, without the graphs that they come from: a forward may change them."""

    def copy(item: Any) -> Any:
        if not isinstance(item, torch.Tensor):
            return item
        return item.detach().clone().requires_grad_(item.requires_grad)

    return tree_map(copy, inputs)


def keep_state(module: torch.nn.Module, device: torch.device) -> _State:
    return _State(module, device)
