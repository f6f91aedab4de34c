"""Modules larger than memory: built without values, which come unit by unit when a run begins."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import struct
import sys
import weakref
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .._errors import WrongJob
from .._job import Path, path_text
from ._recording import written_by
from ._units import _blocks
from ._values import Value

_KEPT_ELEMS = 1 << 16
_INITIALIZERS = ("reset_parameters", "_reset_parameters")  # methods of a module

_lazy: "weakref.WeakKeyDictionary[torch.nn.Module, Dict[int, Value]]" = weakref.WeakKeyDictionary()


def values_of(module: torch.nn.Module) -> Dict[int, Value]:
    """The values of a module that init() made, by id(parameter); {} for any other module."""
    return _lazy.get(module, {})


def _mix(seed: int, what: str) -> int:
    """A seed for torch, whose generator on the CPU uses the low 32 bits alone."""
    digest = hashlib.sha256(f"{seed} {what}".encode()).digest()
    return int.from_bytes(digest[:4], "little")


def init(
    build: Callable[[], torch.nn.Module],
    *,
    checkpoint: Optional[Path] = None,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> torch.nn.Module:
    """Calls build() and returns its module, whose parameters take no memory.

    An Engine fills them when its run begins, one unit after the other. They come from `checkpoint`,
    a folder with Hugging Face's safetensors. Without one they come from the module's own
    initializers (reset_parameters, or the _init_weights of transformers), which are called for each
    block with random numbers of its own that depend on `seed` and the block's name.

    Without a checkpoint, parameters of up to 65536 elements keep the values that build() gives them,
    with random numbers that depend on `seed`.

    Until then the larger parameters have no values: do not compute with the module.
    """
    before = torch.get_default_dtype()
    if isinstance(build, torch.nn.Module) or not callable(build):
        raise WrongJob(
            f"init: the first argument is {type(build).__name__}, and must be a function that "
            "builds the module: init(lambda: Model(...))"
        )
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise WrongJob(f"init: dtype is {dtype}, and must be float32, bfloat16 or float16")
    if not isinstance(seed, int):
        raise WrongJob(f"init: seed is {type(seed).__name__}, and must be an int")
    folder = path_text(checkpoint, "init: checkpoint") if checkpoint is not None else None
    torch.set_default_dtype(dtype)
    state = torch.get_rng_state()
    torch.default_generator.manual_seed(_mix(seed, "build"))
    try:
        with _without_parameters(), _Writes() as writes:
            module = build()
    finally:
        torch.set_default_dtype(before)
        torch.set_rng_state(state)
    if not isinstance(module, torch.nn.Module):
        raise WrongJob(f"init: build() returned {type(module).__name__}, and must return a module")
    if folder is None:
        writes.check(module)
    kept = _settle(module, dtype)
    names: Dict[int, List[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    if folder is None:
        _lazy[module] = {**_Initializer(module, seed, kept).values(), **kept}
    else:
        values = _Checkpoint(folder).values(module, names)
        for parameter in module.parameters():
            if not parameter.is_floating_point():  # no engine takes it over
                parameter.data.copy_(values[id(parameter)]())
        _lazy[module] = {**values}
    return module


@contextlib.contextmanager
def _without_parameters() -> Iterator[None]:
    """Each large parameter loses its memory as soon as a module has it."""
    original = torch.nn.Module.register_parameter

    def register(self: torch.nn.Module, name: str, parameter: Any) -> None:
        original(self, name, parameter)
        if parameter is None or parameter.numel() <= _KEPT_ELEMS:
            return
        if not parameter.is_floating_point():
            return
        if parameter.device.type != "meta":
            made = torch.nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
            made.__dict__.update(parameter.__dict__)
            self._parameters[name] = made

    torch.nn.Module.register_parameter = register  # type: ignore
    try:
        yield
    finally:
        torch.nn.Module.register_parameter = original  # type: ignore


class _Writes(TorchDispatchMode):
    """Notes what build() writes to parameters that have no memory. Such values are lost, unless it
    is an initializer of a module that writes them, which _Initializer calls again."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        #: The storage and the operation, by the storage's address, which is in use as long.
        self._lost: Dict[int, Tuple[Any, str]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for item in written_by(func, args, kwargs):
            key = item.untyped_storage()._cdata if item.device.type == "meta" else 0
            if key and not _is_in_initializer():
                self._lost[key] = (item.untyped_storage(), str(func))
            elif key:
                self._lost.pop(key, None)  # it replaces what was written before
        return func(*args, **kwargs)

    def check(self, module: torch.nn.Module) -> None:
        for name, parameter in module.named_parameters():
            _, operation = self._lost.get(parameter.untyped_storage()._cdata, (None, None))
            if parameter.device.type == "meta" and operation is not None:
                raise WrongJob(
                    f'init: building {type(module).__name__} writes values to "{name}" '
                    f"({operation}), which has no memory then: write them in a method "
                    "reset_parameters of the part that has the parameter, or give a checkpoint"
                )


def _is_in_initializer() -> bool:
    frame: Any = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_name in (*_INITIALIZERS, "_init_weights"):
            return True
        frame = frame.f_back
    return False


def _settle(module: torch.nn.Module, dtype: torch.dtype) -> Dict[int, torch.Tensor]:
    """Parameters on the CPU whose values are one element that is not a number. Returns the values
    of those that have some."""
    kept: Dict[int, torch.Tensor] = {}
    made: Dict[int, torch.nn.Parameter] = {}
    for item in module.modules():
        for name, old in item._parameters.items():
            if old is None or not old.is_floating_point():
                continue  # such as indices, which are torch's alone
            if id(old) not in made:
                one = torch.full((1,), float("nan"), dtype=dtype)
                data = one.expand(old.shape) if old.shape else one[0]
                made[id(old)] = torch.nn.Parameter(data, old.requires_grad)
                if old.device.type != "meta":
                    kept[id(made[id(old)])] = old.detach().to(dtype)
            item._parameters[name] = made[id(old)]
    return kept


class _Initializer:
    """Values by the module's own initializers, for one block or one module at a time."""

    def __init__(
        self, module: torch.nn.Module, seed: int, known: Dict[int, torch.Tensor]
    ) -> None:
        self._module = weakref.ref(module)
        self._seed = seed
        self._known = known  # values that are not asked of it, by id(parameter)
        self._kept: Tuple[Optional[str], Dict[int, torch.Tensor]] = (None, {})

    def values(self) -> Dict[int, Value]:
        module = self._module()
        assert module is not None
        blocks = _blocks(module)
        found: Dict[int, Value] = {}
        for name, item in module.named_modules():
            scope = next((b for b in blocks if name == b or name.startswith(b + ".")), name)
            for parameter in filter(torch.is_floating_point, item.parameters(recurse=False)):
                found.setdefault(id(parameter), self._maker(scope, scope in blocks, id(parameter)))
        return found

    def _maker(self, scope: str, is_block: bool, key: int) -> Callable[[], torch.Tensor]:
        def make() -> torch.Tensor:
            if self._kept[0] != scope:
                self._kept = (None, {})
                self._kept = (scope, self._initialize(scope, is_block))
            return self._kept[1][key]

        return make

    def _initialize(self, scope: str, is_block: bool) -> Dict[int, torch.Tensor]:
        module = self._module()
        if module is None:
            raise WrongJob("the module that sluice.torch.init made is gone")
        target = module.get_submodule(scope)
        parameters = list(filter(torch.is_floating_point, target.parameters(recurse=is_block)))
        before = [p.data for p in parameters]
        state = torch.get_rng_state()
        torch.default_generator.manual_seed(_mix(self._seed, scope))
        try:
            for p in parameters:
                known = self._known.get(id(p))
                nothing = torch.full(p.shape, float("nan"), dtype=p.dtype)
                p.data = nothing if known is None else known.clone()
            with torch.no_grad():
                if is_block:
                    target.apply(self._reset(module))
                else:
                    self._reset(module)(target)
            made = {id(p): p.data for p in parameters}
        finally:
            for p, data in zip(parameters, before):
                p.data = data
            torch.set_rng_state(state)
        names = {id(p): name for name, p in target.named_parameters()}
        for key, value in made.items():
            if bool(torch.isnan(value).any()):
                raise WrongJob(
                    f'init: the initializers of {type(module).__name__} give "{scope}'
                    f'{"." if scope else ""}{names.get(key, "?")}" no values: its module needs a '
                    "reset_parameters, or give a checkpoint"
                )
        return made

    @staticmethod
    def _reset(module: torch.nn.Module) -> Callable[[torch.nn.Module], None]:
        own: Any = getattr(module, "_init_weights", None)

        def reset(item: torch.nn.Module) -> None:
            for name in _INITIALIZERS:
                if hasattr(item, name):
                    getattr(item, name)()
            if own is not None:
                own(item)

        return reset


_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16, "F64": torch.float64}
_DTYPES.update({"I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8})
_DTYPES.update({"U8": torch.uint8, "BOOL": torch.bool})


class _Checkpoint:
    """A folder of safetensors files, read tensor by tensor."""

    def __init__(self, folder: str) -> None:
        self._places: Dict[str, Tuple[str, str, List[int], int, int]] = {}
        files = sorted(f for f in _list(folder) if f.endswith(".safetensors"))
        if not files:
            raise WrongJob(f"init: {folder} has no files *.safetensors")
        for name in files:
            self._read_header(os.path.join(folder, name))
        self._folder = folder

    def _read_header(self, path: str) -> None:
        try:
            with open(path, "rb") as file:
                (size,) = struct.unpack("<Q", file.read(8))
                header = json.loads(file.read(size))
            for key, item in header.items():
                if key != "__metadata__":
                    begin, end = item["data_offsets"]
                    place = (path, item["dtype"], item["shape"], 8 + size + begin, end - begin)
                    self._places[key] = place
        except (OSError, ValueError, KeyError, TypeError, struct.error) as error:
            raise WrongJob(f"init: {path} is not a whole safetensors file: {error}") from None

    def values(
        self, module: torch.nn.Module, names: Dict[int, List[str]]
    ) -> Dict[int, Callable[[], torch.Tensor]]:
        prefix = getattr(module, "base_model_prefix", "")
        found: Dict[int, Callable[[], torch.Tensor]] = {}
        parameters = {id(p): p for p in module.parameters()}
        for key, aliases in names.items():
            tried = list(aliases)
            for alias in aliases:
                tried.append(f"{prefix}.{alias}")
                tried.append(alias[len(prefix) + 1 :] if alias.startswith(prefix + ".") else alias)
            place = next((n for n in tried if n in self._places), None)
            if place is None:
                raise WrongJob(
                    f'init: the checkpoint in {self._folder} has no tensor "{aliases[0]}"'
                )
            found[key] = self._reader(place, parameters[key])
        return found

    def _reader(self, name: str, parameter: torch.Tensor) -> Callable[[], torch.Tensor]:
        path, dtype, stored, begin, size_bytes = self._places[name]
        shape = parameter.shape
        if list(shape) != list(stored):
            raise WrongJob(
                f'init: "{name}" is {stored} in {path}, and {list(shape)} in the module'
            )
        has_floats = parameter.is_floating_point()
        if dtype not in _DTYPES or _DTYPES[dtype].is_floating_point != has_floats:
            raise WrongJob(f'init: "{name}" in {path} is {dtype}, and {parameter.dtype} is needed')

        def read() -> torch.Tensor:
            with open(path, "rb") as file:
                file.seek(begin)
                data = bytearray(file.read(size_bytes))
            if len(data) != size_bytes:
                raise WrongJob(f"init: {path} ends within {name}")
            return torch.frombuffer(data, dtype=_DTYPES[dtype]).view(shape)

        return read


def _list(folder: str) -> List[str]:
    try:
        return os.listdir(folder)
    except OSError as error:
        raise WrongJob(f"init: {folder} cannot be read: {error.strerror}") from None
