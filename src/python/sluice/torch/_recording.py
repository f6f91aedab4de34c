"""The first step, run once to learn in which order a module uses its units.

It runs the module's forward and a backward as they are, on the first batch, with the parameters of
one unit in memory at a time. Gradients are dropped as they come, those of the root at the end.
Random numbers, and what the module's attributes hold, are as before when it is over, so the real
step that follows is the same as if it had been the first.
"""

from __future__ import annotations

import contextlib
import copy
import random
import sys
import time
from collections import Counter, OrderedDict, defaultdict, deque
from statistics import median_low
from types import ModuleType
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

import torch
from torch import is_tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from .._errors import WrongJob
from ._holding import Holding, address_of, changed_error, slot_at
from ._memory import placeholder_of
from ._units import Holder, Seconds, Slot, Stage, common_dtype
from ._values import Values


_COPIED_ELEMS = 8 << 20


#: A unit that a forward uses more often is not worth its transfers.
_MOST_USES = 32


class Unfit(WrongJob):
    """A module that cannot be a unit, because of the way in which it is used. `reason` says which."""

    def __init__(self, holder: Holder, reason: str, advice: str) -> None:
        super().__init__(f"{reason}: {advice}")
        self.holder = holder
        self.reason = reason


def has_attributes(item: Any) -> bool:
    """An object of some class, such as a dataclass, and no module or function."""
    return hasattr(item, "__dict__") and not callable(item) and not isinstance(item, ModuleType)


#: More objects than these, or a longer list in one of them, hold data and nothing that a unit made.
_MOST_OBJECTS = 1000


def _attributes(item: Any) -> Dict[str, Any]:
    """Those of an object of some class, without its long lists."""
    return {
        name: value
        for name, value in vars(item).items()
        if not (isinstance(value, (list, tuple, dict, set, deque)) and len(value) > _MOST_OBJECTS)
    }


def tensors_in(outputs: Any) -> List[torch.Tensor]:
    """The tensors within outputs, also those in objects of the user's own classes."""
    found: List[torch.Tensor] = []
    waiting: List[Any] = [outputs]
    seen: Set[int] = set()
    while waiting:
        for leaf in tree_flatten(waiting.pop())[0]:
            if is_tensor(leaf):
                found.append(leaf)
            elif has_attributes(leaf) and id(leaf) not in seen and len(seen) < _MOST_OBJECTS:
                seen.add(id(leaf))
                waiting.append(list(_attributes(leaf).values()))
    return found


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


def _checked(call: Callable[[], Any]) -> Any:
    """What the call returns. Says what to do where torch refuses the engine's hooks."""
    try:
        return call()
    except RuntimeError as error:
        if "support saved tensor hooks" not in str(error):
            raise
        raise WrongJob(
            "the forward uses torch.func.grad or another function of its kind, and torch cannot do "
            "so under the hooks by which an engine finds parameters again in the backward: use "
            "torch.autograd.grad(..., create_graph=True)"
        ) from error


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

    def __init__(self, others: List[Holder], root: Holder, holding: Holding) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._away = {
            placeholder_of(slot).untyped_storage().data_ptr(): (holder, slot)
            for holder in others
            for slot in holder.slots
        }
        self._holding = holding
        self._root = {
            address_of(slot.parameter): (unit, slot) for unit in root.units for slot in unit.slots
        }

    def _check_written(self, func: Any, tensor: torch.Tensor) -> None:
        unit = self._holding.owner(tensor)
        if unit is not None:
            slot = slot_at(unit, tensor)
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
            holder, slot = self._away.get(address_of(item), (None, None))
            if holder and slot and not str(func).startswith("aten.detach"):
                raise Unfit(
                    holder,
                    f'the parameter "{slot.name}" is used ({func}) outside of a call of its unit '
                    f'"{holder.name}"',
                    "name the part of the module that does both as the unit (units=...), or leave "
                    "it out of the units",
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
        self._dtype = common_dtype(holding.holders)
        self._copies = _Copies(self._dtype, device)
        self.is_forward = True
        self._now: Optional[Tuple[str, str]] = None
        self._since = 0.0
        self.stage: Optional[Stage] = None  # the one whose units are held
        self.order: List[Stage] = []  # of the forward, without the root
        self.backward: List[Stage] = []
        self.seconds: Seconds = {}
        self._with_gradient: Set[int] = set()  # by id(slot)
        #: Torch would add up several gradients of a parameter in 16 bits, where the run has fp32.
        self.rounds_sums = False

    # ---- what the module's hooks call ----

    def enter(self, holder: Holder) -> None:
        if not self.is_forward:
            self.turn(holder, None)  # a checkpoint computes the unit's forward again
            return
        if self.stage is not None:
            raise Unfit(
                holder,
                f'the unit "{holder.name}" is called within the unit "{self.stage.name}"',
                "leave it out of the units (units=...)",
            )
        use = sum(stage.holder is holder for stage in self.order)
        if use == _MOST_USES:
            raise Unfit(
                holder,
                f'the unit "{holder.name}" is used more than {use} times in one forward',
                "name a part of the module around all uses as the unit (units=...), or leave it "
                "out of the units",
            )
        stage = Stage(holder, use, adds=use == 0)
        self._begin(stage.name, "forward")
        self.order.append(stage)
        self._take(stage)

    def leave(self, holder: Holder) -> None:
        if self.is_forward:
            self._release()

    def turn(self, holder: Holder, stage: Optional[Stage]) -> None:
        """The backward is at a use of the holder. `stage`: which one, if that is known."""
        if self.is_forward:
            raise Unfit(
                holder,
                f'the forward goes back through the unit "{holder.name}" (torch.autograd.grad)',
                "name a part of the module around both as the unit (units=...), or leave it out of "
                "the units",
            )
        held = self.stage
        if held is not None and held.holder is holder and stage in (None, held):
            return
        left = [one for one in self.order if one.holder is holder and one not in self.backward]
        if not left or (stage is not None and stage not in left):
            raise Unfit(
                holder,
                f'the backward comes back to the unit "{holder.name}" after it had left it for '
                f'"{held.name if held else "another"}"',
                "give each unit a checkpoint of its own, or name a part of the module around both "
                "as the unit (units=...)",
            )
        self._release()
        stage = stage or left[-1]
        self._begin(stage.name, "backward")
        self.backward.append(stage)
        self._take(stage)

    def gradient(self, holder: Holder, slot: Slot, is_root: bool) -> None:
        if is_root:  # handed over at the end
            return
        if self.stage is None or self.stage.holder is not holder:
            self.turn(holder, None)
        assert self.stage is not None
        self.stage.adds = True
        self.rounds_sums |= id(slot) in self._with_gradient and slot.parameter.itemsize < 4
        self._with_gradient.add(id(slot))
        self._copy_gradients(self.stage.name, [slot])

    def _copy_gradients(self, name: str, slots: List[Slot]) -> None:
        begin = time.perf_counter()
        for slot in slots:
            self._copies.gradient(slot)
        key = (name, "copies")
        self.seconds[key] = self.seconds.get(key, 0.0) + time.perf_counter() - begin

    # ---- units ----

    def _begin(self, name: str, what: str) -> None:
        """What is computed from now on is the forward or the backward of this stage."""
        now = time.perf_counter()
        if self._now is not None:
            self.seconds[self._now] = self.seconds.get(self._now, 0.0) + now - self._since
        self._now = (name, what)

    def _take(self, stage: Stage) -> None:
        for unit in stage.holder.units:
            self._holding.place(unit, self._values.flat(unit, self._dtype, self._device))
        self.stage = stage
        self._since = time.perf_counter()

    def _release(self) -> None:
        if self.stage is not None:
            for unit in self.stage.holder.units:
                self._holding.take_away(unit)
        self.stage = None

    # ---- the whole ----

    def total_seconds(self) -> float:
        """Copies are a part of their backward."""
        return sum(took for (_, what), took in self.seconds.items() if what != "copies")

    def run(
        self, call: Callable[[], Any], root: Holder, others: List[Holder], checks: bool
    ) -> None:
        """Calls the module once and goes back. Afterwards `order` has all uses of the holders.
        `checks`: looks at each operation for parameters that are not there, which takes time."""
        for slot in root.slots:
            slot.parameter.data = self._values.of(slot)
        for holder in others:
            for unit in holder.units:
                self._holding.take_away(unit)
        self._now, self._since = ("root", "forward"), time.perf_counter()
        for slot in root.slots:
            self._copies.parameter(slot.parameter.data)
        try:
            with _Watch(others, root, self._holding) if checks else contextlib.nullcontext():
                loss = loss_of(_checked(call))
                self._release()
                self.is_forward = False
                self._begin("loss", "backward")
                self._since = time.perf_counter()
                loss.backward()
            self._begin("root", "backward")
            self._since = time.perf_counter()
            self._copy_gradients("root", root.slots)
            self._begin("", "")
        finally:
            self._release()
            for slot in root.slots:  # there still, if the backward failed
                slot.parameter.grad = None
        self._check_backward()

    def _check_backward(self) -> None:
        wanted = [stage for stage in reversed(self.order) if stage in self.backward]
        for one, other in zip(wanted, self.backward):
            if one is not other:
                raise WrongJob(
                    f'the backward uses the unit "{other.name}" where "{one.name}" should come: it '
                    "must go through the units in the opposite order of the forward; name a part "
                    "of the module around both as the unit (units=...)"
                )


# A step is recorded again for its times, since first calls are slow: so often, until the repeats
# took so long together, and not if the first took longer than the last number.
_REPEATS, _REPEAT_SECONDS, _SLOW_SECONDS = 4, 6.0, 60.0


def settle_times(first: Recorder, record: Callable[[], Recorder]) -> None:
    """Gives the first recording the times of those that `record` makes."""
    again: List[Seconds] = []
    spent = 0.0
    if first.total_seconds() > _SLOW_SECONDS:
        return
    while len(again) < _REPEATS and spent < _REPEAT_SECONDS:
        recorder = record()
        again.append(recorder.seconds)
        spent += recorder.total_seconds()
    for key in first.seconds if again else ():
        first.seconds[key] = median_low(times.get(key, 0.0) for times in again)


#: What these hold is as before. What objects of other classes hold may have been changed.
_LISTS = (list, deque)
_CONTAINERS = (*_LISTS, dict, OrderedDict, defaultdict, Counter, set)
#: Of tensors that are no buffers, so much is copied. The others must not be changed.
_KEPT_BYTES = 64 << 20


class State:
    """Random numbers, and a module's attributes with what they hold, to be as before: buffers and
    other tensors, hooks, and flags that say what is done."""

    def __init__(self, module: torch.nn.Module, device: torch.device) -> None:
        self._random = torch.get_rng_state()
        self._python = random.getstate()
        self._numpy = sys.modules.get("numpy.random")
        self._random_numpy = self._numpy.get_state() if self._numpy else None
        self._device = device
        self._random_device = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        self._generators: List[Tuple[torch.Generator, torch.Tensor]] = []
        self._containers: List[Tuple[Any, Any]] = []  # each with a copy of it
        self._tensors: List[_Kept] = []
        self._parameters = {id(parameter) for parameter in module.parameters()}
        self._left = _KEPT_BYTES
        seen: Set[int] = set()
        for name, item in module.named_modules():
            for buffer in item.buffers(recurse=False):
                if id(buffer) not in seen and _may_be_written(buffer):
                    self._tensors.append(_Kept(f'"{name}"', buffer, True))
                seen.add(id(buffer))
            self._note(f'"{name}"', vars(item), seen)

    def _note(self, owner: str, attributes: Dict[str, Any], seen: Set[int]) -> None:
        waiting: List[Any] = [attributes]
        while waiting:
            item = waiting.pop()
            if id(item) in seen:
                continue
            if is_tensor(item):
                is_own = id(item) in self._parameters and item.is_floating_point()
                if not is_own and _may_be_written(item):
                    is_copied = item.nbytes <= self._left
                    self._left -= item.nbytes if is_copied else 0
                    self._tensors.append(_Kept(owner, item, is_copied))
            elif isinstance(item, torch.Generator):
                self._generators.append((item, item.get_state()))
            elif isinstance(item, tuple):
                waiting.extend(item)
            elif type(item) in _CONTAINERS:
                self._containers.append((item, item.copy()))
                waiting.extend(item.values() if isinstance(item, dict) else item)
            else:
                continue
            seen.add(id(item))

    def restore(self) -> None:
        torch.set_rng_state(self._random)
        random.setstate(self._python)
        if self._numpy:
            self._numpy.set_state(self._random_numpy)
        if self._random_device is not None:
            torch.cuda.set_rng_state(self._random_device, self._device)
        for generator, state in self._generators:
            generator.set_state(state)
        for container, items in self._containers:
            if _contents(container) != _contents(items):
                container.clear()
                (container.extend if type(container) in _LISTS else container.update)(items)
        with torch.no_grad():
            changed = [kept for kept in self._tensors if not kept.restore()]
        if changed:
            raise WrongJob(
                f"the forward of {changed[0].owner} changes a tensor of {changed[0].tensor.nbytes} "
                "bytes in place that is no buffer, which the recording of the first step cannot "
                "take back: call register_buffer for it"
            )


class _Kept:
    """A tensor that a module has, with its values and its gradient before the recording."""

    def __init__(self, owner: str, tensor: torch.Tensor, is_copied: bool) -> None:
        self.owner = owner
        self.tensor = tensor
        self._version = tensor._version
        self._alias = tensor.detach()  # the memory, sizes and strides
        self._values = self._alias.clone() if is_copied else None
        self._grad = tensor.grad if tensor.is_leaf else None
        self._grad_values = self._grad.detach().clone() if self._grad is not None else None

    def restore(self) -> bool:
        """Writes what differs, and nothing else: the tensor may also belong to another graph, or may
        not be writable. Returns False if it was changed and is not copied."""
        tensor, values = self.tensor, self._values
        if tensor.is_leaf and tensor.grad is not self._grad:
            tensor.grad = self._grad
        if self._grad is not None and self._grad_values is not None:
            self._grad.copy_(self._grad_values)
        is_written = tensor._version != self._version
        if values is None:
            return not is_written
        if _place_of(tensor) != _place_of(self._alias):  # resized, as observers of a quantization do
            tensor.data = self._alias
        if is_written or (type(tensor) is torch.Tensor and not torch.equal(tensor, values)):
            tensor.copy_(values)
        return True


def _place_of(tensor: torch.Tensor) -> Any:
    return address_of(tensor), tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype


def _contents(container: Any) -> List[int]:
    values = container.values() if isinstance(container, dict) else ()
    return [id(item) for item in (*container, *values)]


def _may_be_written(tensor: torch.Tensor) -> bool:
    """In place, and by the module itself."""
    if tensor.requires_grad and not tensor.is_leaf:
        return False
    if tensor.device.type == "meta" or tensor.is_inference() or tensor._is_zerotensor():
        return False
    if tensor.layout != torch.strided or tensor.is_nested:
        return False
    return not any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape))


def copy_inputs(inputs: Any) -> Any:
    """Copies of all tensors, without the graphs that they come from, of generators, arrays and sets,
    and of objects that may hold some: a forward may change them. Modules are not copied."""
    copies: Dict[int, Tuple[Any, Any]] = {}
    waiting: List[Any] = []

    def copied(item: Any) -> Any:
        if id(item) in copies:
            return copies[id(item)][1]
        made = item
        if is_tensor(item):
            made = item.detach().clone().requires_grad_(item.requires_grad)
        elif isinstance(item, torch.Generator):
            made = torch.Generator(item.device)
            made.set_state(item.get_state())
        elif isinstance(item, set) or hasattr(item, "__array_interface__"):
            made = copy.copy(item)
        elif has_attributes(item) and len(copies) < _MOST_OBJECTS:
            with contextlib.suppress(Exception):  # there are objects that cannot be copied
                made = copy.copy(item)
            if made is not item:
                waiting.append(made)
        copies[id(item)] = (item, made)
        return made

    result = tree_map(copied, inputs)
    while waiting:
        made = waiting.pop()
        vars(made).update(tree_map(copied, _attributes(made)))
    return result
