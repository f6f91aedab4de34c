"""A module's passes in the turns that the plan gives its units.

    forward    root, unit 1, ..., unit n          each: wait for its params, compute, hand back
    loss       the time between the last unit's forward and its backward
    backward   unit n, ..., unit 1, root          each: wait for its params, compute, hand over its
                                                  gradients

The core (the extension's session, or a stand-in of the tests) gives out one turn after the other:
begin, then wait and done for each, then end. A turn lasts until the next one begins.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import (
    Any,
    Callable,
    Dict,
    List,
    Optional,
    Sequence,
    Tuple,
    TypeVar,
    Union,
    cast,
)

import torch

from .._errors import Error, WrongJob
from ._holding import Holding, gaps_of, view_of
from ._memory import as_tensor
from ._units import Holder, Slot, Stage, Unit, common_dtype

FORWARD, BACKWARD = 0, 1

_SPARSE = 'the gradient of "{}" is sparse: use sparse=False in its embedding'


@dataclass(frozen=True)
class Use:
    """One turn. Addresses are in the device's memory; 0: there is none."""

    stage: int
    pass_: int  #: FORWARD or BACKWARD
    micro_batch: int
    units: Tuple[int, ...]
    params: Tuple[int, ...]  #: by unit: [elems] of the working dtype
    grads: Tuple[int, ...]  #: by unit: [elems] fp32 sums
    fresh: Tuple[bool, ...]  #: by unit: the sums have no values yet
    elems: Tuple[int, ...]  #: by unit, padding included
    grad_scale: float  #: what the loss is multiplied by for the backward
    lends: bool = False  #: there are no sums: the first unit's gradients are read where they are


class Turns:
    """What all programs share: the turn at hand."""

    def __init__(
        self,
        core: Any,
        stages: List[Stage],
        root: Optional[Holder],
        holding: Holding,
        device: torch.device,
    ) -> None:
        self.core = core
        self.stages = stages  # the last stage, the loss, is not in the list
        self.root = root  # the first stage's; None: the root has no parameters
        self.holding = holding
        self.device = device
        self.lending = Lending()
        self._dtype = common_dtype(holding.holders)
        # torch's own, for the values of the root within a step, by id(slot); that with which a
        # parameter was built may be shared
        self._memory: Dict[int, torch.Tensor] = {}
        for slot in root.slots if root is not None else ():
            dtype = slot.own_dtype or self._dtype
            self._memory[id(slot)] = torch.empty(slot.shape, dtype=dtype, device=device)
        self.use: Optional[Use] = None  # the turn at hand
        self._numbers: Dict[int, List[int]] = {}  # by id(holder), rising
        for i, stage in enumerate(stages):
            self._numbers.setdefault(id(stage.holder), []).append(i)

    def numbers(self, holder: Holder) -> List[int]:
        """The stages that use the holder, in the order of the forward."""
        return self._numbers[id(holder)]

    def next_number(self, holder: Holder, least: int) -> Optional[int]:
        """The first of them from `least` on."""
        return next((number for number in self.numbers(holder) if number >= least), None)

    def take(self, stage: int, pass_: int) -> Use:
        """Ends the turn at hand and waits for the next one, which must be this one."""
        self.finish_turn(None)
        use = Use(*self.core.module_wait())
        self.use = use
        if use.stage != stage or use.pass_ != pass_:
            raise WrongJob(
                f"the plan's turn is {self._name(use.stage, use.pass_)}, and the module wants "
                f"{self._name(stage, pass_)}"
            )
        return use

    def finish_turn(self, loss: Optional[float]) -> None:
        if self.use is not None:
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)  # nothing reads or writes its memory any more
            self.use = None
            self.core.module_done(loss)

    def forget_turn(self) -> None:
        self.use = None

    def _name(self, stage: int, pass_: int) -> str:
        name = self.stages[stage].name if stage < len(self.stages) else "loss"
        return f'the {"backward" if pass_ else "forward"} of "{name}"'

    def over(self, address: int, elems: int, dtype: torch.dtype) -> torch.Tensor:
        """A tensor over memory of the run."""
        return as_tensor(self.core.memory, address, elems, dtype, self.device)

    # ---- params ----

    def place(self, holder: Holder, use: Use) -> None:
        for unit, address, elems in zip(holder.units, use.params, use.elems):
            if address:
                self.holding.place(unit, self.over(address, elems, self._dtype))

    def take_away(self, holder: Holder) -> None:
        try:
            self.holding.check([unit for unit in holder.units if self.holding.has(unit)])
        finally:
            for unit in holder.units:
                self.holding.take_away(unit)

    def copy_root(self, use: Use) -> None:
        """The root's parameters have memory of their own, in which they are until the step is over."""
        assert self.root is not None
        self.holding.check(self.root.units)
        with torch.no_grad():
            for unit, address, elems in zip(self.root.units, use.params, use.elems):
                base = self.over(address, elems, self._dtype)
                for slot in unit.slots:
                    slot.parameter.data = self._memory[id(slot)].copy_(view_of(base, slot))
                self.holding.note(unit)


class Gradients:
    """The sums of one unit's gradients, for the length of its turn in the backward."""

    def __init__(
        self, unit: Unit, sums: torch.Tensor, is_fresh: bool, factor: float = 1.0
    ) -> None:
        self._unit = unit
        self._sums = sums
        self._factor = factor  # of what is added
        self._empty = {id(slot) for slot in unit.slots} if is_fresh else set()
        if is_fresh:
            for begin, end in gaps_of(unit, sums.numel()):
                sums[begin:end] = 0

    def add(self, slot: Slot) -> None:
        """Takes over the parameter's gradient."""
        grad = slot.parameter.grad
        slot.parameter.grad = None
        if grad is None:
            return
        if grad.is_sparse:
            raise WrongJob(_SPARSE.format(slot.name))
        target = view_of(self._sums, slot)
        if id(slot) in self._empty:
            self._empty.discard(id(slot))
            target.copy_(grad)
            if self._factor != 1.0:  # in fp32: gradients of 16 bits would be rounded once more
                target.mul_(self._factor)
        else:
            target.add_(grad.to(target.device), alpha=self._factor)

    def close(self) -> None:
        """Parameters without a gradient in this micro-batch have a gradient of zero."""
        for slot in self._unit.slots:
            if id(slot) in self._empty:
                view_of(self._sums, slot).zero_()
        self._empty.clear()


class Lending:
    """Gradients that updates read where they are. Each unit's are held until the second turn after
    its own, when its update is done (sluice_module_lend in sluice.h)."""

    def __init__(self) -> None:
        self._held: List[List[Optional[torch.Tensor]]] = []

    def begin(self) -> None:
        """A unit that lends has its turn: the updates of all units but the last one that lent are
        done, and their gradients go."""
        del self._held[:-1]

    def lend(self, core: Any, unit: Unit) -> None:
        """Hands over the gradients of the unit whose turn it is."""
        grads = [_readable(slot) for slot in unit.slots]
        self._held.append(grads)
        core.module_lend([0 if g is None else g.data_ptr() for g in grads])

    def end(self) -> None:
        """The step is over."""
        self._held = []


def _readable(slot: Slot) -> Optional[torch.Tensor]:
    """The parameter's gradient as the library reads it, or a copy that is so. None stands for
    zeros."""
    grad, device = slot.parameter.grad, slot.parameter.device
    dtype = torch.float32 if slot.is_cast else slot.parameter.dtype
    if grad is None:
        return None
    if grad.is_sparse:
        raise WrongJob(_SPARSE.format(slot.name))
    is_plain = type(grad) is torch.Tensor and grad.layout == torch.strided and not grad.is_neg()
    has_form = grad.shape == slot.shape and grad.dtype == dtype
    if is_plain and has_form and grad.device == device and grad.is_contiguous():
        return grad
    return torch.empty(slot.shape, dtype=dtype, device=device).copy_(grad)


class LentGradients:
    """One unit's gradients, which stay where torch has them. It stands in place of sums
    (Gradients): torch itself adds up what comes to a parameter."""

    def __init__(self, unit: Unit, turns: Turns) -> None:
        self._unit = unit
        self._turns = turns
        turns.lending.begin()

    def add(self, slot: Slot) -> None:
        """The gradient stays at its parameter until the turn ends."""

    def close(self) -> None:
        self._turns.lending.lend(self._turns.core, self._unit)
        for slot in self._unit.slots:
            slot.parameter.grad = None


class Training:
    """One micro-batch, from its forward to the end of its backward."""

    def __init__(self, turns: Turns, goes_back: Sequence[bool]) -> None:
        self._turns = turns
        self._goes_back = goes_back  # by stage
        self._next = 0  # the stage whose turn comes
        self.is_forward = True
        self.is_in_backward = False
        # of the turn, by the unit's index
        self._gradients: Dict[int, Union[Gradients, LentGradients]] = {}
        self.stage: Optional[int] = None  # the one whose units are held
        self._is_reached = False  # by the backward
        self.loss: Optional[float] = None
        self._newest = 0  # at the end of the forward: the number of autograd's newest node

    def begin(self) -> None:
        if self._turns.root is not None:
            self._turns.copy_root(self._turns.take(0, FORWARD))
            self._next = 1

    def enter(self, holder: Holder) -> None:
        if self.is_in_backward:
            self.turn(holder, None)
            return
        if not self.is_forward:
            raise WrongJob(
                f'the unit "{holder.name}" is used between engine(...) and engine.backward: '
                "evaluate before engine(...) or after engine.step()"
            )
        if self.stage is not None:
            raise _nested(holder, self._turns.stages[self.stage].name)
        stage = self._turns.next_number(holder, self._next)
        if stage is None:
            before = self._turns.stages[self._next - 1].name
            raise WrongJob(
                f'the forward uses the unit "{holder.name}" after "{before}", and in the step that '
                "was recorded it did not: a step may leave units out, and must use all others in "
                "the order of that step, no more often; go on with a new Engine on this run_dir "
                "whose first batch uses all, or leave it out of the units (units=...)"
            )
        self._pass_over(stage)
        self._turns.place(holder, self._turns.take(stage, FORWARD))
        self.stage = stage
        self._next = stage + 1

    def _pass_over(self, until: int) -> None:
        """The forward does not use the stages before this one."""
        while self._next < until:
            self._turns.take(self._next, FORWARD)
            self._next += 1

    def leave(self, holder: Holder) -> None:
        if self.is_forward:
            self._turns.take_away(holder)
            self.stage = None

    def end_forward(self) -> None:
        self._pass_over(len(self._turns.stages))
        self.is_forward = False
        node: Any = (torch.zeros((), requires_grad=True) + 0).grad_fn
        self._newest = node._sequence_nr()

    # ---- backward ----

    def take_loss(self, loss: torch.Tensor) -> None:
        """Notes its value. Refuses one that is not a number since it is computed from a unit's
        parameters after the forward, when they have no values."""
        self.loss = float(loss.detach())
        if not math.isnan(self.loss):
            return
        slots = {
            id(slot.parameter): (stage.holder, slot)
            for stage in self._turns.stages
            for slot in stage.holder.slots
            if stage.holder is not self._turns.root
        }
        waiting, seen = [loss.grad_fn], set()
        while waiting:
            node: Any = waiting.pop()
            # a parameter's node has the highest number there is
            if node is None or node in seen or node._sequence_nr() <= self._newest:
                continue
            seen.add(node)
            holder, slot = slots.get(id(getattr(node, "variable", None)), (None, None))
            if holder and slot:
                raise WrongJob(
                    f'the loss is not a number, and is computed from "{slot.name}" outside of a '
                    f'call of its unit "{holder.name}", where parameters have no values: compute '
                    "what needs them, such as a penalty of weights, in the forward of the module"
                )
            waiting += [before for before, _ in node.next_functions]

    def begin_backward(self) -> float:
        """Returns what the loss is multiplied by."""
        use = self._turns.take(len(self._turns.stages), BACKWARD)
        self._next = len(self._turns.stages) - 1
        self.is_in_backward = True
        return use.grad_scale

    def turn(self, holder: Holder, stage: Optional[int]) -> None:
        """The backward is at a use of the holder. `stage`: which one, if that is known."""
        held, stages = self.stage, self._turns.stages
        if held is not None and stages[held].holder is holder and stage in (None, held):
            return
        self.check_begun(holder)
        if stage is None:
            numbers = self._turns.numbers(holder)
            stage = next((n for n in reversed(numbers) if n <= self._next), numbers[0])
        if stage > self._next or not self._goes_back[stage]:
            raise WrongJob(
                f'the backward uses the unit "{holder.name}" where, in the step that was recorded, '
                f'"{stages[max(self._next, 0)].name}" came: all steps must use the units in the '
                "same order"
            )
        self._is_reached = True
        while self._next > stage:  # no gradient came to these
            self._take_back(False)
        self._take_back(True)

    def check_begun(self, holder: Holder) -> None:
        if not self.is_in_backward:
            raise WrongJob(
                f'a backward that is not this engine\'s reached the unit "{holder.name or "root"}": '
                "call engine.backward(loss), not loss.backward(); take torch.autograd.grad within the "
                "forward of the module; where two modules share a loss, as in a GAN, let one of them "
                "have sluice.torch.AdamW in place of an engine"
            )

    def _take_back(self, is_used: bool) -> None:
        """The turn of the next stage."""
        self._leave_back()
        stage, holder = self._next, self._turns.stages[self._next].holder
        use = self._turns.take(stage, BACKWARD)
        self._next -= 1
        self._take_gradients(holder, use)
        if is_used:
            self._turns.place(holder, use)
            self.stage = stage
        else:
            self._close_gradients()

    def _take_gradients(self, holder: Holder, use: Use) -> None:
        """Those of the turn: first the ones that wait at their parameters."""
        for unit, address, elems, fresh in zip(holder.units, use.grads, use.elems, use.fresh):
            if address:
                sums = self._turns.over(address, elems, torch.float32)
                self._gradients[unit.index] = Gradients(unit, sums, fresh)
        if use.lends:
            self._gradients[use.units[0]] = LentGradients(holder.units[0], self._turns)
        with torch.no_grad():
            for unit in holder.units:
                for slot in unit.slots if unit.index in self._gradients else ():
                    self._gradients[unit.index].add(slot)

    def _close_gradients(self) -> None:
        for gradients in self._gradients.values():
            gradients.close()
        self._gradients.clear()

    def _leave_back(self) -> None:
        if self.stage is not None:
            with torch.no_grad():
                self._close_gradients()
            self._turns.take_away(self._turns.stages[self.stage].holder)
            self.stage = None
        if self._turns.use is not None and self._turns.use.stage == len(self._turns.stages):
            self._turns.finish_turn(self.loss)

    def gradient(self, holder: Holder, unit: Unit, slot: Slot) -> None:
        """A parameter has its gradient, which waits there for the next turn that takes gradients: of
        the unit's first use, or of a later one that gave some in the recording. It waits if the step
        leaves that use out, or if no output has told of it yet."""
        self.check_begun(holder)
        self._is_reached = True
        gradients = self._gradients.get(unit.index)
        if gradients is not None:
            with torch.no_grad():
                gradients.add(slot)
        elif self._turns.numbers(holder)[0] > self._next:
            raise WrongJob(
                f'a gradient of "{slot.name}" came while its unit "{unit.name}" has no turn: the '
                "parameter is used outside of its unit's module; name a part of the module around "
                "both as the unit (units=...)"
            )

    def end_backward(self) -> None:
        root = self._turns.root
        first = 0 if root is None else 1
        slots = [] if root is None else root.slots
        if not self._is_reached and all(slot.parameter.grad is None for slot in slots):
            raise WrongJob(
                "this loss depends on no parameter of the module: give engine.backward the loss of "
                "the forward before it"
            )
        with torch.no_grad():
            while self._next >= first and self._goes_back[self._next]:
                self._take_back(False)
            self._leave_back()
            if root is not None and self._goes_back[0]:
                self._take_gradients(root, self._turns.take(0, BACKWARD))
                self._close_gradients()
        self._turns.finish_turn(None)
        self.is_in_backward = False


def _nested(holder: Holder, outer: str) -> WrongJob:
    return WrongJob(
        f'the unit "{holder.name}" is called within the unit "{outer}", and in the step that was '
        "recorded it was not: leave it out of the units (units=...)"
    )


_Method = TypeVar("_Method", bound=Callable[..., None])


def _whole(method: _Method) -> _Method:
    """A method of Evaluating that, after an exception within, gives up the program at hand, whose
    turn may be lost: Ctrl-C is one, or the failure of another rank."""

    @functools.wraps(method)
    def call(self: "Evaluating", *args: Any) -> None:
        try:
            method(self, *args)
        except BaseException:
            self.give_up()
            raise

    return cast(_Method, call)


class Evaluating:
    """Forwards without gradients. They may use the units in any order; what comes between is passed
    over, and a unit that was passed is reached through a new program."""

    stage = None  # for what goes back

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._next: Optional[int] = None  # the stage whose turn comes; None: no program
        self._is_root_there = False
        self._held: Optional[Holder] = None  # the one that computes

    @_whole
    def make_root_current(self) -> None:
        if self._turns.root is not None and not self._is_root_there:
            self.end()
            self._begin()

    def forget_root(self) -> None:
        """The root's values are no longer those of the run."""
        self._is_root_there = False

    @_whole
    def enter(self, holder: Holder) -> None:
        if self._held is not None:
            raise _nested(holder, self._held.name)
        stage = self._turns.next_number(holder, self._next or 0)
        if self._next is None or stage is None:
            self.end()
            self._begin()
            stage = self._turns.numbers(holder)[0]
        while self._next is not None and self._next < stage:
            self._turns.take(self._next, FORWARD)
            self._next += 1
        self._turns.place(holder, self._turns.take(stage, FORWARD))
        self._held = holder
        self._next = stage + 1

    def leave(self, holder: Holder) -> None:
        if self._held is holder:
            self._held = None
        self._turns.take_away(holder)

    def _begin(self) -> None:
        self._turns.core.module_begin(False)
        self._next = 0
        if self._turns.root is not None:
            use = self._turns.take(0, FORWARD)
            if not self._is_root_there:
                self._turns.copy_root(use)
            self._is_root_there = True
            self._next = 1

    @_whole
    def end(self) -> None:
        """Ends the program, if there is one."""
        if self._next is None:
            return
        for stage in range(self._next, len(self._turns.stages) + 1):
            self._turns.take(stage, FORWARD)
        self._turns.finish_turn(None)
        self._next = None
        self._turns.core.module_end()

    @_whole
    def each(self, visit: Callable[[Holder, Use], None]) -> None:
        """Calls visit for each holder while its params are there."""
        self.end()
        self._turns.core.module_begin(False)
        for number, stage in enumerate(self._turns.stages):
            use = self._turns.take(number, FORWARD)
            if stage.use == 0:
                visit(stage.holder, use)
        self._next = len(self._turns.stages)
        self.end()

    def give_up(self) -> None:
        """Leaves the program at hand, if there is one."""
        self._next, self._is_root_there = None, False
        self._turns.forget_turn()
        try:
            self._turns.core.module_abort("an evaluation was interrupted")
        except Error:
            pass  # none is open
