"""Optimizers alone: torch's own training loop, with the optimizer's state in host memory or on
drives, and updates by Sluice's kernels and lanes.

The parameters of each group are cut into units of about 16 Mi elements. A step hands the plan one
unit's gradients after the other; meanwhile the states of those before are read, updated and
written. Parameters on the CPU lie in the plan's host memory, so that no second copy exists, and
stay there when the run is closed: all else of that memory is freed then.

Ranks average their gradients. Each updates its part of every unit, and gets the other parts.
"""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
import threading
import weakref
from typing import Any, Dict, Iterable, Mapping, Optional, Sequence, Tuple, Union

import torch

from .._errors import Error, NoFit, WrongJob
from .._job import Path, check_callable, path_text
from .._optimizers import as_numbers
from ._core import Bytes, alone, close_at_end, give_up, list_drives, open_core, refuse_copy
from ._groups import send_group
from ._memory import as_tensor, placeholder_of
from ._optimizer_job import STATES, cut_params, make_job
from ._turns import BACKWARD, Gradients, Lending, Use
from ._units import Holder, Slot, Unit, list_alike
from ._values import Values

_living: "weakref.WeakSet[_Optimizer]" = weakref.WeakSet()


def _after_fork() -> None:
    for optimizer in list(_living):
        optimizer._take_away_params()


os.register_at_fork(after_in_child=_after_fork)


class _Optimizer(torch.optim.Optimizer):
    _type = ""

    def __init__(
        self,
        params: Any,
        numbers: Dict[str, Any],
        *,
        nvme: Union[None, Path, Sequence[Any]] = None,
        host: Bytes = None,
        state: str = "fp32",
        run_dir: Optional[Path] = None,
        overlap: bool = False,
        commit_every: int = 0,
        machine: Optional[Path] = None,
        verbose: bool = False,
    ) -> None:
        if not isinstance(state, str) or state not in STATES:
            raise WrongJob(f'state is "{state}", and must be one of {", ".join(STATES)}')
        if run_dir is None and commit_every:
            raise WrongJob(
                f"commit_every is {commit_every}, and without run_dir nothing is kept: give run_dir"
            )
        if host is not None and (isinstance(host, bool) or not isinstance(host, (int, str))):
            raise WrongJob(f'host is {host!r}, and must be bytes or a text like "8GiB"')
        if isinstance(params, torch.nn.Module) or callable(params):
            raise WrongJob(f"params is {type(params).__name__}: give module.parameters()")
        self._turn_lock = threading.RLock()
        as_numbers(numbers, f"{self._type}:")
        super().__init__(params, numbers)
        cut = cut_params(self.param_groups, self._type)
        self._units, self._idle = cut.units, cut.idle
        self._dtype, self._device = cut.dtype, cut.device
        self._overlap = overlap
        self._core: Any = None
        self._failure: Optional[Error] = None
        run_path = path_text(run_dir, "run_dir") if run_dir is not None else None
        self._own_dir = tempfile.mkdtemp(prefix="sluice-") if run_path is None else None
        self._run_dir = run_path if run_path is not None else self._own_dir
        self._begun: Optional[int] = None  # units whose gradients are handed over; None: no step
        try:
            run = {"dir": self._run_dir, "commit_every": commit_every}
            job = make_job(cut, self._type, numbers, list_drives(nvme), host, state, run)
            self._open(job, machine, verbose)
        except BaseException:
            if self._own_dir is not None:
                shutil.rmtree(self._own_dir, ignore_errors=True)
            raise
        self._hooks = [self._hook(u, s) for u in self._units for s in u.slots] if overlap else []

    __copy__ = __deepcopy__ = __reduce_ex__ = refuse_copy

    # ---- the run ----

    def _open(self, job: Dict[str, Any], machine: Optional[Path], verbose: bool) -> None:
        values = Values([Holder("", None, self._units)], {})
        named = ((slot.name, slot.parameter) for unit in self._units for slot in unit.slots)

        def first(unit: int, begin: int, count: int, address: int) -> None:
            values.fill(self._units[unit], begin, count, address)

        try:
            self._core = open_core(
                job,
                keeps_params=self._device.type == "cpu",  # else the parameters have their own
                first=first,
                machine=machine,
                verbose=verbose,
                temporary=self._own_dir is not None,
                alike=f"the optimizer {type(self).__name__}\n" + list_alike(named, self._units),
            )
        except NoFit as error:
            reason, _, advice = str(error).partition("; ")
            mine = "host" if "nvme" in job["tiers"] or self._device.type != "cpu" else "device"
            if f"of {mine}, has" not in reason:
                raise
            raise NoFit(f"{reason}, which is what host= says: give more; {advice}") from error
        self._lending = Lending()
        self._places: Dict[int, int] = {}  # by id(slot): the address in the run's memory
        _living.add(self)
        self._process = os.getpid()
        self._finalizer = weakref.finalize(self, _end, self._core, self._turn_lock, self._own_dir)
        self._finalizer.atexit = False  # the run's own end calls it
        self._core.set_at_end(self._finalizer)
        info = self._core.info()
        if info.world_size > 1 and info.step == 0:
            self._compare_first()
        self._take_params()

    def _compare_first(self) -> None:
        """Each rank has given its own part of the first values to all of them."""
        for slot, values in self._homes():
            if not _has_bits_of(slot.parameter.data.cpu(), values):
                where = "" if self._own_dir is not None else f" in {self._run_dir}"
                error = WrongJob(
                    f"{slot.name} {list(slot.shape)} has other values than the run{where} began "
                    "with: all ranks must begin with equal parameters, so use one seed or load one "
                    "checkpoint in all" + (", and another run_dir" if where else "")
                )
                self._failure = self._give_up(error)
                close_at_end(self._core, self._turn_lock)
                raise error

    def _homes(self) -> Iterable[Tuple[Slot, torch.Tensor]]:
        """Each parameter's values where they rest. Each is a storage of its own, as torch saves and
        copies storages as a whole."""
        for unit in self._units:
            home = self._core.module_home(unit.index)
            if home is None:
                raise WrongJob(f"the parameters of {unit.name} are not in host memory")
            for slot in unit.slots:
                yield slot, self._over(
                    home[0] + slot.offset * self._dtype.itemsize, slot.elems, self._dtype
                ).view(slot.shape)

    def _over(self, address: int, elems: int, dtype: torch.dtype) -> torch.Tensor:
        return as_tensor(self._core.memory, address, elems, dtype, torch.device("cpu"))

    def _take_away_params(self) -> None:
        """In a forked process, in which the run's memory reads as zeros. NaN shows in a loss."""
        for unit in self._units:
            for slot in unit.slots:
                if slot.parameter.data_ptr() == self._places.get(id(slot)):
                    slot.parameter.data = placeholder_of(slot)

    def _take_params(self) -> None:
        """The parameters have the run's values."""
        with torch.no_grad():
            for slot, values in self._homes():
                if self._device.type == "cpu":
                    slot.parameter.data = values
                    self._places[id(slot)] = values.data_ptr()
                else:
                    slot.parameter.data.copy_(values)

    # ---- steps ----

    def _hook(self, unit: Unit, slot: Slot) -> Any:
        # the parameter has the hook, and must not keep the optimizer
        reference, index, position = weakref.ref(self), unit.index, unit.slots.index(slot)

        def after(parameter: torch.Tensor) -> None:
            optimizer = reference()
            if optimizer is not None:
                unit = optimizer._units[index]
                optimizer._take_gradient(unit, unit.slots[position])

        return slot.parameter.register_post_accumulate_grad_hook(after)

    # so that no other thread closes the run while its memory is written to
    @functools.partial(alone, name="backward")
    def _take_gradient(self, unit: Unit, slot: Slot) -> None:
        self._check_open()
        if self._begun is None:
            self._send_groups()
            self._begin()
        if id(slot) not in self._waiting[unit.index]:
            raise WrongJob(
                f"{slot.name} has a second gradient before step(): overlap=True takes one backward "
                "for each step"
            )
        self._waiting[unit.index].discard(id(slot))
        while self._begun is not None and self._begun < len(self._units):
            coming = self._units[len(self._units) - 1 - self._begun]
            if self._waiting[coming.index]:
                break
            self._hand_over(coming)

    def _begin(self) -> None:
        self._check_open()
        self._waiting = {u.index: {id(s) for s in u.slots} for u in self._units}
        self._core.module_begin(True)
        self._core.module_wait()  # the turn of no unit
        self._core.module_done(0.0)
        self._begun = 0

    def _send_groups(self) -> None:
        for number, group in enumerate(self.param_groups):
            for key in ("lr", "weight_decay", "betas", "eps"):
                if key in group:
                    as_numbers({key: group[key]}, f"param_groups[{number}]:")
            send_group(self._core, number, group)

    def _give_up(self, error: BaseException) -> Error:
        failure = give_up(self._core, error, self._own_dir is None)
        self._lending.end()
        return failure

    def _hand_over(self, unit: Unit) -> None:
        use = Use(*self._core.module_wait())
        assert use.pass_ == BACKWARD and use.units == (unit.index,)
        if use.lends:
            self._lending.begin()
            with torch.no_grad():
                self._lending.lend(self._core, unit)
            for slot in unit.slots if self._overlap else ():
                slot.parameter.grad = None
        else:
            self._add_up(unit, use)
        self._core.module_done(None)
        assert self._begun is not None
        self._begun += 1

    def _add_up(self, unit: Unit, use: Use) -> None:
        sums = self._over(use.grads[0], use.elems[0], torch.float32)
        # grad_scale: 1 / ranks, since the gradients of all are added
        gradients = Gradients(unit, sums, use.fresh[0], use.grad_scale)
        with torch.no_grad():
            for slot in unit.slots:
                kept = slot.parameter.grad
                gradients.add(slot)
                if not self._overlap:
                    slot.parameter.grad = kept
            gradients.close()

    def step(self, closure: Any = None) -> Any:
        """Updates the parameters from their gradients, and waits until they have their new values.
        The state on drives may be written still. A closure is called once before, and computes
        loss and gradients; its loss is returned."""
        self._check_open()
        check_callable(closure, "closure")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._update()
        return loss

    @functools.partial(alone, name="step")
    def _update(self) -> None:
        self._check_open()
        for unit in self._units:
            for slot in unit.slots:
                is_own = self._device.type != "cpu"
                if not is_own and slot.parameter.data_ptr() != self._places[id(slot)]:
                    raise WrongJob(
                        f"{slot.name} {list(slot.shape)} has other memory than when the optimizer "
                        "was made: move or convert the module before"
                    )
        if not self._overlap:
            for unit in self._units:
                for slot in unit.slots:
                    if slot.parameter.grad is not None and slot.parameter.grad.is_sparse:
                        raise WrongJob(f"the gradient of {slot.name} is sparse: use sparse=False")
                    if slot.parameter.grad is None:
                        raise WrongJob(
                            f"{slot.name} {list(slot.shape)} has no gradient: all parameters of "
                            "the optimizer are updated in each step, so give it only those that "
                            "are used"
                        )
        elif self._begun is None:
            raise WrongJob("there is no gradient: call loss.backward() before step()")
        for name, parameter in self._idle:
            if parameter.requires_grad:
                raise WrongJob(
                    f"{name} {list(parameter.shape)} learns (requires_grad) and did not when the "
                    "optimizer was made: make a new optimizer with it"
                )
        if self._begun is None:
            self._send_groups()
        try:
            if self._begun is None:
                self._begin()
            for number in range(self._begun or 0, len(self._units)):
                self._hand_over(self._units[len(self._units) - 1 - number])
            self._begun = None
            self._core.module_end()
            self._lending.end()
        except BaseException as error:
            self._failure = self._give_up(error)
            raise
        if self._device.type != "cpu":
            self._take_params()

    # ---- the rest ----

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """What torch's GradScaler asks in its step. Without overlap it finds the gradients."""
        if self._overlap:
            raise WrongJob(
                "GradScaler finds no gradients, since the updates were made while the backward ran "
                "(overlap=True), from gradients of the loss that it has scaled: use overlap=False"
            )
        return False

    @alone
    def commit(self) -> int:
        """Makes the state after the last step durable in run_dir. Returns that step."""
        self._check_open()
        self._check_kept()
        if self._begun is not None:
            raise WrongJob("commit comes between steps: after step()")
        step: int = self._core.commit()
        return step

    def _check_kept(self) -> None:
        if self._own_dir is not None:
            raise WrongJob("without run_dir nothing of the state is kept: give run_dir to keep it")

    @alone
    def state_dict(self) -> Dict[str, Any]:
        """The groups' numbers, and where the state is: it stays on its drives, committed."""
        self._check_open()
        self._check_kept()
        step = self.commit()
        groups = [{k: v for k, v in g.items() if k != "params"} for g in self.param_groups]
        return {"param_groups": groups, "sluice": {"run_dir": self._run_dir, "step": step}}

    @alone
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes over the groups' numbers. The state itself was taken over when the optimizer was
        made with the run_dir of that state_dict."""
        self._check_open()
        place = state_dict.get("sluice") if isinstance(state_dict, Mapping) else None
        if not isinstance(place, Mapping) or "step" not in place:
            raise WrongJob(
                "this state_dict is of another optimizer, which has its state in memory: begin "
                "with the parameters alone"
            )
        step = self._core.info().step
        if step != place["step"]:
            raise WrongJob(
                f'the state_dict is of step {place["step"]} of the run in {place["run_dir"]}, and '
                f"this optimizer is at step {step} of {self._run_dir}: make the optimizer with "
                "run_dir as that one had it"
            )
        if len(state_dict["param_groups"]) != len(self.param_groups):
            raise WrongJob(
                f'the state_dict has {len(state_dict["param_groups"])} groups, and the optimizer '
                f"has {len(self.param_groups)}"
            )
        for group, numbers in zip(self.param_groups, state_dict["param_groups"]):
            group.update(numbers)

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        if getattr(self, "_core", None) is not None:
            raise WrongJob("the optimizer's memory is planned: give all groups when it is made")
        super().add_param_group(param_group)

    @alone
    def close(self) -> None:
        """Commits if run_dir was given, and frees all but the memory of parameters on the CPU. They
        and the tensors that share their memory go on with it, as if torch had allocated it."""
        if self._core is not None and self._process == os.getpid():
            self._core.close(self._closed)

    def _closed(self) -> None:
        self._core = None
        self._failure = WrongJob("this optimizer is closed")
        for handle in self._hooks:
            handle.remove()
        _living.discard(self)
        self._finalizer.detach()
        self._lending.end()
        if self._own_dir is not None:
            shutil.rmtree(self._own_dir, ignore_errors=True)

    def _check_open(self) -> None:
        if self._process != os.getpid():
            raise WrongJob(
                "this optimizer was made by the process that this one was forked from, which goes "
                'on with it: start processes with the method "spawn"'
            )
        if self._failure is not None:
            raise self._failure


def _has_bits_of(one: torch.Tensor, other: torch.Tensor) -> bool:
    """True if all bits are equal. Any NaN counts as equal to any other: it may have changed its
    bits on its way through fp32."""
    kind = {2: torch.int16, 4: torch.int32}[one.element_size()]
    same = one.view(kind) == other.view(kind)
    return bool((same | one.isnan() & other.isnan()).all())


def _end(core: Any, lock: Any, own_dir: Optional[str]) -> None:
    """The optimizer is gone, or the program ends."""
    if not core.is_open:
        return  # closed, or of the process that this one was forked from
    close_at_end(core, lock)
    if own_dir is not None:
        shutil.rmtree(own_dir, ignore_errors=True)


_ARGUMENTS = """
    nvme: folders on drives, or dicts like the job's tiers.nvme: the state rests there. None: it
        rests in host memory.
    host: the budget of host memory for parameters and state, and where no drive has the state for
        gradients on their way, as bytes or "8GiB".
    state: "fp32"; "bf16" or "8bit" moments; "split", with or without one of them: the 16 low bits
        of the weights beside bf16 parameters, in place of a second copy. fp32 parameters have no
        second copy (with Muon they have).
    run_dir: where the state is committed. If it has a commit, the optimizer and its parameters
        begin with that. None: no state is kept, and none stays on a drive of any host.
    overlap: updates while the backward runs, as gradients come, and drops them. It allows neither
        several backwards for one step nor clipping of gradients.
    commit_every: steps from commit to commit; 0: none but at state_dict(), commit() and the end.

    Several ranks (mpirun, torchrun) make one optimizer together, with all calls: each has a part
    of the state, and host is for each. All begin with equal parameters. Gradients are averaged over
    the ranks, so that the module needs no DistributedDataParallel; in one it trains as well,
    without overlap.
"""


class AdamW(_Optimizer):
    __doc__ = "torch.optim.AdamW with its state in host memory or on drives.\n" + _ARGUMENTS
    _type = "AdamW"

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: Tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        **options: Any,
    ) -> None:
        numbers = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, numbers, **options)


class Lion(_Optimizer):
    __doc__ = "Lion with its state in host memory or on drives.\n" + _ARGUMENTS
    _type = "Lion"

    def __init__(
        self,
        params: Any,
        lr: float = 1e-4,
        betas: Tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        **options: Any,
    ) -> None:
        numbers = {"lr": lr, "betas": betas, "weight_decay": weight_decay}
        super().__init__(params, numbers, **options)


class Adagrad(_Optimizer):
    __doc__ = "torch.optim.Adagrad with its state in host memory or on drives.\n" + _ARGUMENTS
    _type = "Adagrad"

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        eps: float = 1e-10,
        weight_decay: float = 0.0,
        **options: Any,
    ) -> None:
        numbers = {"lr": lr, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, numbers, **options)


class Muon(_Optimizer):
    __doc__ = (
        "Muon for parameters of two dimensions, Adam for the others, with their state in host "
        "memory or on drives. Give embeddings and heads to another optimizer.\n" + _ARGUMENTS
    )
    _type = "Muon"

    def __init__(
        self,
        params: Any,
        lr: float = 2e-2,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        **options: Any,
    ) -> None:
        numbers = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(params, numbers, **options)
