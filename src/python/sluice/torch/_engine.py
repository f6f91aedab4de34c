"""Engine: a torch module whose states rest where a plan puts them."""

from __future__ import annotations

import threading
import weakref
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import torch

from .._errors import WrongJob
from .._job import Path, check_callable
from .._session import Closing
from ._buffers import Buffers
from ._config import check_fit, engine_job, with_module
from ._core import Bytes, alone, close_at_end, give_up, open_core, refuse_copy, warn
from ._groups import Groups, group_units
from ._holding import Holding, values_in
from ._hooks import claim, guard, install, refuse_optimizers
from ._init import values_of
from ._memory import plainly, return_free_memory
from ._profile import Profile, profile_of
from ._recording import Recorder, State, Unfit, copy_inputs, differentiable, settle_times
from ._recording import tensors_in
from ._turns import Evaluating, Training, Turns, Use
from ._unchanged import Unchanged
from ._units import Holder, Policy, Seconds, Slot, Stage, Unit, describe, find_learning
from ._units import list_alike, list_stages, make_holders
from ._values import Values, state_of


class Engine(Closing):
    """Trains a module with parameters, gradients and optimizer state on device, host and drives.

        engine = sluice.torch.Engine(module, optimizer=sluice.AdamW(lr=1e-4), device="2GiB",
                                     host="8GiB", nvme=["/mnt/nvme0"], run_dir="runs/mine")
        for batch in loader:
            loss = engine(batch)
            engine.backward(loss)
            engine.step()

    module: any torch module. Its first step says in which order it uses its units, and how often;
        later steps may leave uses out.
    optimizer: sluice.AdamW, Lion, Adagrad or Muon.
    device, host: memory budgets, as bytes or "8GiB"; None: a part of what is free.
    nvme: folders on drives, or dicts like the job's tiers.nvme.
    run_dir: where the run's state and metrics lie. If it has a commit, the run resumes from it.
    config: other keys of a job, or a DeepSpeed configuration: a dict or the path of a JSON file.
    units: names of the modules that are units, or a function (name, module) -> bool; None: the
        repeated blocks of the module.
    groups: a function (name, parameter) -> dict of lr, weight_decay, betas, eps that differ from
        the optimizer's for this parameter.
    start_from: a run or a kept commit. A new run begins with its state: weights, optimizer state,
        buffers and step. It stays as it is.
    fresh: run_dir must be new or hold no commit.

    The first call records a step: it runs the module once, forward and backward, with one unit in
    memory at a time. Then the plan is made, and the same batch is trained on.

    Torch's activations, its workspaces and the root (parameters outside of all units) are in
    torch's own memory, not within these budgets.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        *,
        optimizer: Any = None,
        device: Bytes = None,
        host: Bytes = None,
        nvme: Union[None, Path, Sequence[Any]] = None,
        run_dir: Path,
        config: Union[None, Path, Mapping[str, Any]] = None,
        units: Policy = None,
        groups: Optional[Callable[[str, torch.nn.Parameter], Mapping[str, Any]]] = None,
        commit_every: Optional[int] = None,
        start_from: Optional[Path] = None,
        machine: Optional[Path] = None,
        fresh: bool = False,
        verbose: bool = False,
    ) -> None:
        self._turn_lock = threading.RLock()
        self._job = engine_job(config, optimizer, device, host, nvme, run_dir, commit_every)
        check_callable(groups, "groups")
        self.module = module
        self._policy = units
        self._choose_group = groups
        self._open_options: Dict[str, Any] = {
            "start_from": start_from,
            "machine": machine,
            "fresh": fresh,
            "verbose": verbose,
        }
        self._open_core = open_core
        self._core: Any = None
        self.accumulation = 1  #: micro-batches of a step
        self._micro_batch = 0
        self._failure: Optional[BaseException] = None
        self._driver: Any = None  # what the hooks call; None: nothing runs
        self._is_called = False
        self._is_saving = False  # the module's own state_dict() is asked for
        self._inputs: Dict[int, Any] = {}  # of the unit that runs
        self._hooks: List[Any] = []
        self._unfit: Dict[str, str] = {}  # by the name of a module: why it is no unit
        self._groups: Any = None
        self._turns: Any = None
        self._is_first = True  # no step has been made
        self._prepare()

    __copy__ = __deepcopy__ = __reduce_ex__ = refuse_copy

    # ---- before the first step ----

    def _prepare(self) -> None:
        """Chooses units, and installs the hooks."""
        self._holders = make_holders(self.module, self._policy)
        if self._unfit:
            names = [h.name for h in self._holders[1:] if h.name not in self._unfit]
            self._holders = make_holders(self.module, names)
        self._root = self._holders[0]
        how = self._job["optimizer"], self._choose_group
        groups = group_units(self._holders, *how, self, self._groups)
        if self._groups is not None:  # schedulers have it
            self._groups.take(groups)
        self._groups = self._groups or groups
        self._holding = Holding(self._holders)
        self._unchanged = Unchanged(self.module, self._holders, self._holding)
        self._dtype, self._device = self._unchanged.dtype, self._unchanged.device
        owners = {id(unit): holder for holder in self._holders for unit in holder.units}
        me = weakref.ref(self)

        def bring(unit: Unit) -> None:
            engine = me()
            if engine is not None:
                engine._turn(owners[id(unit)], None)

        def pause() -> None:
            engine = me()
            if engine is not None and engine._core is not None:
                engine._core.module_pause()

        self._holding.bring = bring
        if self._device.type == "cpu":  # updates for a GPU have a thread of their own
            self._holding.pause = pause
        self._values = Values(self._holders, values_of(self.module))
        stages = list_stages(self._holders, [])
        check_fit(self._job_of(stages, {}, True), self._device)
        claim(self.module, self)
        for handle in self._hooks:
            handle.remove()
        self._hooks = install(self)

    # ---- what the hooks do ----

    def _training(self, what: str) -> Training:
        if not isinstance(self._driver, Training):
            raise WrongJob(
                f"{what} outside of a step of the engine: call engine(...), then, once, "
                "engine.backward(loss), for the sum of several losses, then engine.step()"
            )
        return self._driver

    def _evaluation(self) -> Evaluating:
        if self._failure is not None:
            raise self._failure
        if not isinstance(self._driver, Evaluating):
            if self._driver is not None or self._micro_batch > 0:
                raise WrongJob(
                    "the module is called without gradients in the middle of a step: evaluate "
                    "before a step's first engine(...), after its last engine.step(), which returns "
                    "a Step, or within the module's own forward"
                )
            self._driver = Evaluating(self._turns)
        return self._driver

    def _enter(self, holder: Holder, inputs: Any) -> None:
        # outputs that are inputs belong to another unit, unless they were changed
        self._inputs = {id(t): t.grad_fn for t in differentiable(inputs)}
        if self._driver is None or isinstance(self._driver, Evaluating):
            if self._core is None:
                return  # the module is used as it is, before the first step
            if torch.is_grad_enabled():
                raise WrongJob(
                    f'the unit "{holder.name}" is used outside of a step: call the engine itself, '
                    "or use torch.no_grad() to evaluate"
                )
            self._evaluation()
            assert holder.module is not None
            self._unchanged.check_names(holder.module, holder.name)
        self._unchanged.check_values(holder)
        with plainly():
            self._driver.enter(holder)

    def _enter_part(self, part: torch.nn.Module, name: str) -> None:
        """A module that has parameters of the root is called, or the whole one."""
        is_there = self._is_called or isinstance(self._driver, Training)
        if self._core is None or is_there:
            return
        evaluation = self._evaluation()
        try:
            self._unchanged.check_values(self._root)
            self._unchanged.check_names(part, name, recurse=False)
        except WrongJob:
            evaluation.forget_root()
            raise
        with plainly():
            evaluation.make_root_current()

    def _leave(self, holder: Holder, outputs: Any) -> None:
        driver = self._driver
        if driver is None:
            return
        for tensor in tensors_in(outputs):
            if self._holding.owner(tensor) is not None:
                raise Unfit(
                    holder,
                    f'the unit "{holder.name}" returns a view of its parameters, which are gone '
                    "after its call",
                    "return a copy (.clone()), or leave it out of the units",
                )
        stage = driver.stage
        with plainly():
            driver.leave(holder)
        torch.clear_autocast_cache()  # it has copies of the unit's parameters
        if isinstance(driver, Evaluating):
            return
        inputs, self._inputs = self._inputs, {}
        nothing, me = object(), weakref.ref(self)

        def turn(gradient: torch.Tensor) -> None:
            engine = me()
            if engine is not None:
                engine._turn(holder, stage)

        for tensor in differentiable(outputs):
            if tensor.grad_fn is not None and inputs.get(id(tensor), nothing) is not tensor.grad_fn:
                tensor.register_hook(turn)

    def _turn(self, holder: Holder, stage: Any) -> None:
        driver = self._driver
        if not isinstance(driver, Recorder):
            driver = self._training(f'a backward reached the unit "{holder.name}"')
        self._unchanged.check_values(holder)
        driver.turn(holder, stage)

    # ---- a step ----

    @alone
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The module's forward. With gradients it begins a micro-batch of a step."""
        self._check_open()
        if not torch.is_grad_enabled():
            if self._core is None:
                raise WrongJob(
                    "the first call of an engine records a step and needs gradients: call it "
                    "outside of torch.no_grad(); before that, call the module itself"
                )
            try:
                self._unchanged.check(self.module)
            except WrongJob:
                if isinstance(self._driver, Evaluating):
                    self._driver.forget_root()
                raise
            return self.module(*args, **kwargs)
        self.prepare(*args, **kwargs)
        return self._forward(args, kwargs)

    @alone
    def prepare(self, *args: Any, **kwargs: Any) -> None:
        """What the first call does before its step: records, plans, and opens or resumes the run.
        Afterwards plan() and info() work."""
        self._check_open()
        if self._core is None:
            self._unchanged.check(self.module)
            with torch.enable_grad():
                recorder = self._record(args, kwargs)
            self._open(recorder)

    def _forward(self, args: Any, kwargs: Any) -> Any:
        self._end_evaluation()
        if self._driver is not None:
            raise WrongJob(
                "the forward before this one has had no backward: call engine.backward(loss) or "
                "engine.skip(), or use torch.no_grad() to evaluate; for a loss of two forwards, give "
                "the engine a module whose forward makes both"
            )
        if self._micro_batch >= self.accumulation:
            raise WrongJob(
                "engine.step() is missing: call it after engine.backward, once for each micro-batch"
            )
        self._unchanged.check(self.module)
        training = Training(self._turns, self._goes_back)
        if self._micro_batch == 0:
            self._groups.send(self._core)
        try:
            if self._micro_batch == 0:
                self._core.module_begin(True)
            self._driver = training
            self._is_called = True
            training.begin()
            with self._holding.hooks():
                outputs = self.module(*args, **kwargs)
            training.end_forward()
            return outputs
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            self._is_called = False

    @alone
    def backward(self, loss: torch.Tensor) -> None:
        """Goes back from a loss, the mean over this micro-batch, and takes over the gradients."""
        self._check_open()
        training = self._training("backward was called")
        is_real = isinstance(loss, torch.Tensor) and loss.is_floating_point()
        if not is_real or loss.numel() != 1 or not loss.requires_grad:
            raise WrongJob(
                "engine.backward takes a real loss of one element that has a gradient: the mean "
                "over the micro-batch"
            )
        if training.is_in_backward or training.is_forward:
            raise WrongJob("engine.backward was called within a forward or a backward")
        self._unchanged.check(self.module)
        training.take_loss(loss)
        try:
            scale = training.begin_backward()
            (loss * scale).backward()
            training.end_backward()
        except BaseException as error:
            self._fail(error)
            raise
        self._driver = None
        self._micro_batch += 1

    @alone
    def step(self) -> Optional[Any]:
        """Ends the micro-batch. After the last one of a step it waits for the update, and returns a
        sluice.Step; None before that."""
        self._check_open()
        if self._driver is not None or self._micro_batch == 0:
            raise WrongJob("engine.step comes after engine.backward, once for each micro-batch")
        if self._micro_batch < self.accumulation:
            return None
        self._micro_batch = 0
        try:
            self._buffers.end_step()
            made = self._core.module_end()
            self._buffers.step_counts()
            self._turns.lending.end()
            for unit in self._root.units:  # its values are those before the update
                self._holding.take_away(unit)
        except BaseException as error:
            self._fail(error)
            raise
        self._groups.note_step()
        if self._is_first:  # by now the program has the optimizers that it uses
            self._is_first = False
            self._hooks += refuse_optimizers(self)
        return made

    @alone
    def skip(self) -> None:
        """Gives up the step that was begun, whose loss is not wanted; the next call begins it
        again. With several ranks, or schedule.update in_backward, the run then ends."""
        self._check_open()
        if self._driver is None and self._micro_batch == 0:
            return
        if self._micro_batch == self.accumulation:
            raise WrongJob(
                "engine.skip comes before the last backward of a step, after which its update is "
                "made: call engine.step()"
            )
        self._driver = None
        self._micro_batch = 0
        self._turns.forget_turn()
        self._holding_is_over()
        for slot in self._root.slots:
            slot.parameter.grad = None
        goes_on = self._core.module_abort("the program skipped the step")
        self._turns.lending.end()
        if not goes_on:
            self._failure = WrongJob(
                "a step was skipped, and this run cannot go on after that: a new Engine with the "
                "same run_dir goes on from the last commit"
            )
            raise self._failure

    def _fail(self, error: BaseException) -> None:
        """A step that cannot go on ends the run; what is committed stays."""
        self._driver = None
        self._holding_is_over()
        if self._failure is None and self._core is not None:
            if self._turns is not None:
                self._turns.forget_turn()
            self._failure = give_up(self._core, error)
            if self._turns is not None:
                self._turns.lending.end()

    def _holding_is_over(self) -> None:
        for holder in self._holders:
            for unit in holder.units:
                self._holding.take_away(unit)

    def _check_open(self) -> None:
        if self._failure is not None:
            raise self._failure

    # ---- the first call ----

    def _record(self, args: Any, kwargs: Any) -> Recorder:
        while True:
            try:
                recorder = self._record_once(args, kwargs, True)
                break
            except Unfit as error:
                if self._policy is not None:
                    raise
                self._unfit[error.holder.name] = error.reason
            self._prepare()
        if self._unfit:
            warn(
                f"{len(self._unfit)} of the units that were chosen are in torch's memory all the "
                f"time, outside of the budgets: {next(iter(self._unfit.values()))}; name other "
                "units (units=...)"
            )
        settle_times(recorder, lambda: self._record_once(args, kwargs, False))
        return_free_memory()
        return recorder

    def _record_once(self, args: Any, kwargs: Any, checks: bool) -> Recorder:
        state = State(self.module, self._device)
        recorder = Recorder(self._holding, self._values, self._device)
        self._driver = recorder
        self._is_called = True
        try:
            with self._holding.hooks():
                args, kwargs = copy_inputs((args, kwargs))
                recorder.run(
                    lambda: self.module(*args, **kwargs), self._root, self._holders[1:], checks
                )
        finally:
            self._driver = None
            self._is_called = False
            for holder in self._holders:
                for slot in holder.slots:
                    self._values.give_back(slot)
            self._holding.forget()
            state.restore()
        return recorder

    def _job_of(self, stages: List[Stage], seconds: Seconds, lends: bool) -> Dict[str, Any]:
        module = describe(self._holders, stages, seconds, self.module)
        module["lends_grads"] = lends and self._device.type == "cpu"
        return with_module(self._job, module, self._holders, self._device)

    def _open(self, recorder: Recorder) -> None:
        stages = list_stages(self._holders, recorder.order)
        # on the CPU, updates in the backward read gradients where torch has them (sluice.h), unless
        # torch would add up several of a parameter in 16 bits
        job = self._job_of(stages, recorder.seconds, not recorder.rounds_sums)
        units = {unit.index: unit for holder in self._holders for unit in holder.units}

        def first(unit: int, begin: int, count: int, address: int) -> None:
            self._values.fill(units[unit], begin, count, address)

        used = [unit for stage in stages for unit in stage.holder.units]
        alike = list_alike(self.module.named_parameters(), used)
        self._core = self._open_core(job, first=first, alike=alike, **self._open_options)
        self._finalizer = weakref.finalize(self, close_at_end, self._core, self._turn_lock)
        self._finalizer.atexit = False  # the run's own end calls it
        self._core.set_at_end(self._finalizer)
        try:
            self._begin(stages)
        except BaseException as error:  # Ctrl-C, or no memory for the root
            self._fail(error)
            raise

    def _begin(self, stages: List[Stage]) -> None:
        info = self._core.info()  # a micro-batch counts as one token
        self.accumulation = max(info.tokens_per_step // info.world_size, 1)
        root = self._root if self._root.units else None
        self._turns = Turns(self._core, stages, root, self._holding, self._device)
        self._goes_back = find_learning(stages)
        self._values.forget()
        self._holding_is_over()
        self._buffers = Buffers(
            self.module, self._job["run"], info.rank, self._open_options["start_from"]
        )
        self._buffers.begin(info.step, self._core.from_rank0)
        self._core.before_commit = self._buffers.write

    # ---- the rest ----

    @property
    def optimizer(self) -> Groups:
        """A torch optimizer for learning rate schedulers. Its groups' numbers count for the steps
        that begin afterwards."""
        groups: Groups = self._groups
        return groups

    @alone
    def plan(self) -> Any:
        """Where states rest, what they need, and how long a step takes. A sluice.Plan."""
        self._need_core("plan")
        return self._core.plan()

    @alone
    def profile(self) -> Profile:
        """Steps as measured, without the first two, beside the plan."""
        self._need_core("profile")
        return profile_of(self._job["run"]["dir"], self.plan())

    @alone
    def info(self) -> Any:
        """Facts about the run: its step, what is reserved. A sluice.Info."""
        self._need_core("info")
        return self._core.info()

    @alone
    def commit(self) -> int:
        """Makes the state after the last step durable. Returns that step."""
        self._need_core("commit")
        self._end_evaluation()
        if self._driver is not None or self._micro_batch > 0:
            raise WrongJob("commit comes between steps: after engine.step()")
        step: int = self._core.commit()
        return step

    @alone
    def state_dict(self) -> Dict[str, torch.Tensor]:
        """What module.state_dict() would have, in new tensors: as large as the module."""
        self._need_core("state_dict")
        values: List[Tuple[Slot, torch.Tensor]] = []

        def visit(holder: Holder, use: Use) -> None:
            for unit, address, elems in zip(holder.units, use.params, use.elems):
                base = self._turns.over(address, elems, self._dtype)
                values.extend((slot, values_in(base, slot, copy=True)) for slot in unit.slots)

        with plainly(), torch.no_grad():
            self._evaluation().each(visit)
            self._is_saving = True
            try:
                return state_of(self.module, values)
            finally:
                self._is_saving = False

    @alone
    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Parameters and buffers for a run that has not begun."""
        self._check_open()
        self.module.load_state_dict(state)

    @alone
    def close(self) -> None:
        """Commits the steps that are not yet committed, and frees all. May be called again, also
        after a Ctrl-C."""
        core = self._core
        if core is None:
            self._closed()
            return
        try:
            if self._failure is None:
                self._end_evaluation()
        finally:
            self._driver = None
            core.close(self._closed)

    def _closed(self) -> None:
        core, self._core = self._core, None
        self._failure = WrongJob("this engine is closed")
        for handle in self._hooks:
            handle.remove()
        self._hooks = []
        if core is None:
            return
        self._finalizer.detach()
        self._holding_is_over()
        guard(self.module, self._holders)
        self._turns = None  # with lent gradients, which no update reads any more

    def _note_failure(self, error: BaseException) -> None:
        if isinstance(self._driver, Evaluating):
            self._driver = None  # closing gives it up, since its end might wait for other ranks
        if self._core is not None:
            self._core.note_failure(error)

    def _end_evaluation(self) -> None:
        if isinstance(self._driver, Evaluating):
            self._driver.end()
            self._driver = None

    def _need_core(self, what: str) -> None:
        self._check_open()
        if self._core is None:
            raise WrongJob(f"engine.{what} comes after the first call of the engine, which plans")


__all__ = ["Engine"]
