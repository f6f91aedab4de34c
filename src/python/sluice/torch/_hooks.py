"""The hooks that an engine puts on a module, and what they say to copies of it.

A copy of a module has the hooks of the original. While the parameters are elsewhere, a copy has no
values, so that copying and pickling are refused. Before that, a copy gets hooks that do nothing.
"""

from __future__ import annotations

import gc
import weakref
from collections import OrderedDict
from typing import Any, Callable, Dict, List, Set

import torch

from .._errors import WrongJob
from ._groups import Groups
from ._recording import Recorder
from ._units import Holder, Slot, Unit


def nothing(*args: Any, **kwargs: Any) -> None:
    """The hook of a copy."""


def _get_nothing() -> Callable[..., None]:
    return nothing


class Hook:
    """Calls `call(engine, ...)` as long as the engine is there: the module does not keep it."""

    def __init__(self, engine: Any, call: Callable[..., None]) -> None:
        self._engine = weakref.ref(engine)
        self._call = call

    # torch.compile would look into it
    @torch._disable_dynamo  # type: ignore[attr-defined]
    def __call__(self, *args: Any, **kwargs: Any) -> None:
        engine = self._engine()
        if engine is not None:
            self._call(engine, *args, **kwargs)

    def _check_copied(self) -> None:
        engine = self._engine()
        if engine is not None and engine._core is not None:
            raise WrongJob(
                "a module cannot be copied or pickled while its engine is open, since its "
                "parameters are elsewhere: take engine.state_dict(), and load it in a new module"
            )

    def __deepcopy__(self, memo: Any) -> Callable[..., None]:
        self._check_copied()
        return nothing

    def __reduce_ex__(self, protocol: Any) -> Any:
        self._check_copied()
        return _get_nothing, ()


def _refuse_state_dict(engine: Any, *args: Any) -> None:
    """Before module.state_dict()."""
    if engine._core is not None and not engine._is_saving:
        raise WrongJob(
            "the module's parameters are elsewhere while its engine is open: call "
            "engine.state_dict()"
        )


def _refuse_load(engine: Any, *args: Any) -> None:
    """Before module.load_state_dict()."""
    if engine._core is not None:
        raise WrongJob(
            "the module's parameters are elsewhere while its engine is open: load weights before "
            "the first step, or begin another run_dir with them"
        )


def install(engine: Any) -> List[Any]:
    """Puts the hooks of the engine on its module and the parameters. Returns their handles."""
    root, *others = engine._holders
    hooks = [hook for holder in others for hook in _hook_unit(engine, holder)]
    of_root = {id(slot.parameter) for slot in root.slots}
    for name, item in engine.module.named_modules():
        hooks += _hook_part(engine, name, item, of_root)
    for holder in engine._holders:
        for unit in holder.units:
            for slot in unit.slots if not unit.frozen else ():
                hooks.append(_hook_gradient(engine, holder, unit, slot))
    return hooks


def refuse_optimizers(engine: Any) -> List[Any]:
    """Puts hooks on other optimizers that have parameters of the engine: their step() would find no
    gradients, and change nothing. Returns the handles. A hook of torch's for all optimizers would,
    when it is removed, end a step of another thread's optimizer with an exception."""
    units = [unit for holder in engine._holders for unit in holder.units if not unit.frozen]
    own = {id(slot.parameter) for unit in units for slot in unit.slots}
    hooks = []
    for item in gc.get_objects():
        if not issubclass(type(item), torch.optim.Optimizer) or type(item) is Groups:
            continue
        groups = vars(item).get("param_groups") or ()
        # not those that stand around another one
        can_hook = isinstance(vars(item).get("_optimizer_step_pre_hooks"), OrderedDict)
        if can_hook and any(id(p) in own for group in groups for p in group["params"]):
            hooks.append(item.register_step_pre_hook(Hook(engine, _refuse_step)))
    return hooks


def _refuse_step(engine: Any, optimizer: torch.optim.Optimizer, *args: Any) -> None:
    """Before the step() of an optimizer."""
    if engine._core is not None:
        raise WrongJob(
            f"step() of this {type(optimizer).__name__} would not change its parameters that the "
            "engine has, with their gradients: leave them out of it, as engine.step() updates them "
            "with the numbers of Engine(..., optimizer=)"
        )


def _hook_unit(engine: Any, holder: Holder) -> List[Any]:
    def before(engine: Any, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        engine._enter(holder, (args, kwargs))

    def after(engine: Any, module: Any, args: Any, kwargs: Any, outputs: Any) -> None:
        engine._leave(holder, outputs)

    assert holder.module is not None  # only the root has none
    install_before = holder.module.register_forward_pre_hook
    # also after an exception, so that no unit stays held
    install_after = holder.module.register_forward_hook
    return [
        install_before(Hook(engine, before), prepend=True, with_kwargs=True),
        install_after(Hook(engine, after), with_kwargs=True, always_call=True),
    ]


def _hook_part(engine: Any, name: str, item: torch.nn.Module, of_root: Set[int]) -> List[Any]:
    """Modules that own parameters of the root need them current also where only a part of the
    module is called, as in generation."""

    def before(engine: Any, module: torch.nn.Module, args: Any) -> None:
        engine._enter_part(module, name)

    owns = any(id(p) in of_root for p in item.parameters(recurse=False))
    hooks = []
    if owns or item is engine.module:
        hooks.append(item.register_forward_pre_hook(Hook(engine, before), prepend=True))
    hooks.append(item.register_state_dict_pre_hook(Hook(engine, _refuse_state_dict)))
    hooks.append(item._register_load_state_dict_pre_hook(Hook(engine, _refuse_load)))
    return hooks


def _hook_gradient(engine: Any, holder: Holder, unit: Unit, slot: Slot) -> Any:
    is_root = holder is engine._root
    me, my_holder = weakref.ref(engine), weakref.ref(holder)
    my_unit, my_slot = weakref.ref(unit), weakref.ref(slot)

    def after(parameter: torch.Tensor) -> None:
        engine, holder, unit, slot = me(), my_holder(), my_unit(), my_slot()
        if engine is None or holder is None or unit is None or slot is None:
            return
        if engine._core is None:
            recorder = engine._driver
            if isinstance(recorder, Recorder):
                recorder.gradient(holder, slot, is_root)
            return
        if is_root and not getattr(engine._driver, "is_in_backward", False):
            parameter.grad = None  # it would count in the next step
        training = engine._training("a gradient came")
        if is_root:
            training.check_begun(holder)
        else:
            training.gradient(holder, unit, slot)

    return slot.parameter.register_post_accumulate_grad_hook(after)


class _Guard:
    """Refuses to compute with a module whose engine is closed, and to copy it, until it has values
    again."""

    def __init__(self, module: torch.nn.Module, holders: List[Holder]) -> None:
        placeholders = [slot.placeholder for holder in holders for slot in holder.slots]
        self._empty = {p.untyped_storage().data_ptr() for p in placeholders if p is not None}
        self._kept = placeholders  # so that nothing else gets these addresses
        self._module = weakref.ref(module)

    def check(self) -> None:
        module = self._module()
        for name, parameter in module.named_parameters() if module is not None else ():
            if parameter.data.untyped_storage().data_ptr() in self._empty:
                raise WrongJob(
                    f'the parameter "{name}" has no values, since the engine of this module is '
                    "closed: take engine.state_dict() before closing, and load it with "
                    "module.load_state_dict(state, assign=True); or make a new Engine"
                )

    def __call__(self, module: torch.nn.Module, args: Any) -> None:
        self.check()

    def before_load(
        self, module: torch.nn.Module, state: Any, prefix: str, how: Dict[str, Any], *_: Any
    ) -> None:
        """Before load_state_dict(), which writes into the parameters or assigns new ones."""
        if not how.get("assign_to_params_buffers"):
            self.check()

    def __deepcopy__(self, memo: Any) -> Callable[..., None]:
        self.check()
        return nothing

    def __reduce_ex__(self, protocol: Any) -> Any:
        self.check()
        return _get_nothing, ()


_guards: "weakref.WeakKeyDictionary[torch.nn.Module, Any]" = weakref.WeakKeyDictionary()
_engines: "weakref.WeakKeyDictionary[torch.nn.Module, Any]" = weakref.WeakKeyDictionary()


def guard(module: torch.nn.Module, holders: List[Holder]) -> None:
    """The engine of the module is closed."""
    made = _Guard(module, holders)
    loads = module.register_load_state_dict_pre_hook(made.before_load)
    _guards[module] = [module.register_forward_pre_hook(made), loads]


def claim(module: torch.nn.Module, engine: Any) -> None:
    """The module is this engine's from now on. Other engines that have parameters of it, and were
    never called, are closed."""
    own = {id(parameter) for parameter in module.parameters()}
    for claimed, reference in list(_engines.items()):
        other = reference()
        if other is None or other is engine or own.isdisjoint(map(id, claimed.parameters())):
            continue
        if other._core is not None:
            raise WrongJob(
                f"{_relation(module, claimed)} an engine that is open: go on with that one, or "
                "close it first"
            )
        other.close()
    _engines[module] = weakref.ref(engine)
    for handle in _guards.pop(module, []):
        handle.remove()


def _relation(module: torch.nn.Module, claimed: torch.nn.Module) -> str:
    if claimed is module:
        return "this module has"
    for name, part in module.named_modules():
        if part is claimed:
            return f'the part "{name}" of this module has'
    if any(part is module for part in claimed.modules()):
        return f"this module is a part of a {type(claimed).__name__} that has"
    return f"this module shares parameters with a {type(claimed).__name__} that has"
