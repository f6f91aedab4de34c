"""The hooks that an engine puts on a module, and what they say to copies of it.

A copy of a module has the hooks of the original. While the parameters are elsewhere, a copy has no
values, so that copying and pickling are refused. Before that, a copy gets hooks that do nothing.
"""

from __future__ import annotations

import weakref
from typing import Any, Callable, List

import torch

from .._errors import WrongJob
from ._units import Holder


def nothing(*args: Any, **kwargs: Any) -> None:
    """The hook of a copy."""


def _get_nothing() -> Callable[..., None]:
    return nothing


class Hook:
    """Calls `call(engine, ...)` as long as the engine is there: the module does not keep it."""

    def __init__(self, engine: Any, call: Callable[..., None]) -> None:
        self._engine = weakref.ref(engine)
        self._call = call

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


def refuse_state_dict(engine: Any, *args: Any) -> None:
    """Before module.state_dict()."""
    if engine._core is not None:
        raise WrongJob(
            "the module's parameters are elsewhere while its engine is open: call "
            "engine.state_dict()"
        )


def refuse_load(engine: Any, *args: Any) -> None:
    """Before module.load_state_dict()."""
    if engine._core is not None:
        raise WrongJob(
            "the module's parameters are elsewhere while its engine is open: load weights before "
            "the first step, or begin another run_dir with them"
        )


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
    _guards[module] = module.register_forward_pre_hook(_Guard(module, holders))


def claim(module: torch.nn.Module, engine: Any) -> None:
    """The module is this engine's from now on. One that was made for it but never called is
    closed."""
    found = _engines.get(module)
    other = found() if found is not None else None
    if other is not None and other is not engine:
        if other._core is not None:
            raise WrongJob(
                "this module has an engine that is open: go on with that one, or close it first"
            )
        other.close()
    _engines[module] = weakref.ref(engine)
    if module in _guards:
        _guards.pop(module).remove()
