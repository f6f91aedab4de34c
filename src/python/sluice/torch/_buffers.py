"""A module's buffers as a part of its run: those of module.state_dict(), such as the means of batch
norms. A run that goes on has those of the step that it goes on from.

    <run_dir>/buffers/step-000000050.pt

The library makes the commit of a step when that step is over, at a moment of its own. So the file
of a step is there before the step ends if run.commit_every commits it, and else before a commit
that the program asks for or that closing makes. Only the commit that follows a failure may come
before its file. A run that was killed between the two has no buffers of its step, and is refused.

Rank 0 writes the files, and reads them for all ranks when the run goes on: as with
DistributedDataParallel, all have rank 0's buffers. A run that begins with another's state reads
the other's file.
"""

from __future__ import annotations

import os
import stat
import weakref
from contextlib import suppress
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import torch

from .._errors import Failed, WrongJob
from .._job import Path
from ._core import warn
from ._units import uncompiled

#: Larger ones are saved if they were changed since the module was built.
_SMALL_BYTES = 16 << 20

#: A commit becomes durable within the two steps after its own, so that older files are of no use:
#: a kept commit has a copy of its own (kept_commits.c).
_KEPT_FILES = 4

_Values = Dict[str, torch.Tensor]


class Buffers:
    """The buffers as they were after the last step, and after the one that ends."""

    def __init__(
        self, module: torch.nn.Module, run: Dict[str, Any], rank: int, start_from: Optional[Path]
    ) -> None:
        self._module = weakref.ref(module)
        self._run_dir = os.path.abspath(run["dir"])
        self._folder = os.path.join(self._run_dir, "buffers")
        self._every: int = run["commit_every"]
        self._rank = rank
        self._step = 0
        self._has_folder = os.path.isdir(self._folder)
        #: The folder of the run that this one begins with.
        self._other: Optional[str] = None
        if start_from is not None:
            self._other = os.path.join(os.path.abspath(os.fsdecode(start_from)), "buffers")
        self._values: Dict[int, _Values] = {}  # by step, those without a file: two at most
        #: Large ones that are as the module was built: their versions and sums.
        self._unchanged: Dict[str, Tuple[torch.Tensor, int, int]] = {}
        self._is_first = True

    def begin(self, step: int, from_rank0: Callable[[Callable[[], _Values]], _Values]) -> None:
        """The run is open. If it goes on, the module gets the buffers of this step. `from_rank0`:
        Core.from_rank0."""
        self._step = step
        for name, value in self._each() if self._rank == 0 else ():
            if value.nbytes > _SMALL_BYTES:
                self._unchanged[name] = (value, value._version, _sum_bits(value))
        if step > 0 or self._other is not None:
            parts = dict(self._parts())
            for name, value in from_rank0(lambda: self._read(step)).items():
                self._set(parts, name, value)
        if self._rank != 0:
            return
        for later, path in _files(self._folder):
            if later > step:  # of an earlier run, or of a step that was not committed
                with suppress(OSError):
                    os.unlink(path)
        if any(self._each()):
            self._make_folder()
            if step == 0 or not os.path.exists(os.path.join(self._folder, _name(step))):
                self._note(step, False)
                if step > 0:  # those of step 0 are written if it is committed
                    self._write(step)

    def end_step(self) -> None:
        """Before the end of a step, after its last backward. It may turn out not to count."""
        if self._rank != 0:
            return
        step = self._step + 1
        is_committed = bool(self._every) and step % self._every == 0
        # writes through .data, which leave the version as it was, are looked for only sometimes
        self._note(step, self._is_first or is_committed)
        self._is_first = False
        if is_committed and step in self._values:  # a module without buffers has none to write
            self._write(step)

    def step_counts(self) -> None:
        """After the end of a step."""
        self._values.pop(self._step, None)
        self._step += 1

    def write(self) -> None:
        """Makes the files of the last step, and of one that ends, if they are not there yet."""
        for step in list(self._values):
            self._write(step)

    def _write(self, step: int) -> None:
        path = os.path.join(self._folder, _name(step))
        temporary = os.path.join(self._folder, "step-next.partial")
        self._make_folder()
        try:
            mode = stat.S_IMODE(os.stat(self._folder).st_mode) & 0o666
            with suppress(FileNotFoundError):
                os.unlink(temporary)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with open(os.open(temporary, flags, mode), "wb") as file:
                _set_mode(file.fileno(), mode)
                torch.save(self._values[step], file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            _sync(self._folder)
            for _, older in _files(self._folder)[:-_KEPT_FILES]:
                os.unlink(older)
        except (OSError, RuntimeError) as error:
            raise Failed(f"the module's buffers cannot be written to {path}: {error}") from None
        del self._values[step]

    def _make_folder(self) -> None:
        """As soon as the module has buffers. From then on each commit has a file, even if the module
        has none any more: a run without the folder never had any."""
        if self._has_folder:
            return
        try:
            # what a run makes has the permissions of run.mode, and so has this directory
            mode = stat.S_IMODE(os.stat(os.path.join(self._run_dir, "state")).st_mode)
            os.mkdir(self._folder, mode)
            _set_mode(self._folder, mode)
            _sync(self._run_dir)
        except OSError as error:
            raise Failed(f"{self._folder} cannot be made: {error}") from None
        self._has_folder = True

    def _parts(self) -> Iterator[Tuple[str, torch.nn.Module]]:
        """The modules by their names. One that is compiled comes after its wrapper of this name."""
        module = self._module()
        for name, item in module.named_modules() if module is not None else ():
            yield uncompiled(name), item

    def _each(self) -> Iterator[Tuple[str, torch.Tensor]]:
        """Uncompiled name and value of all that module.state_dict() would have."""
        for prefix, item in self._parts():
            for name, value in item._buffers.items():
                is_stored = name not in item._non_persistent_buffers_set
                if is_stored and type(value) is torch.Tensor:
                    yield (f"{prefix}.{name}" if prefix else name), value

    def _note(self, step: int, compares: bool) -> None:
        each = list(self._each())
        if each or self._has_folder:
            self._values[step] = {
                name: value.detach().to("cpu", copy=True)
                for name, value in each
                if value.nbytes <= _SMALL_BYTES or self._is_changed(name, value, compares)
            }

    def _is_changed(self, name: str, value: torch.Tensor, compares: bool) -> bool:
        before, version, bits = self._unchanged.get(name, (None, 0, 0))
        if before is value and value._version == version:
            if not compares or _sum_bits(value) == bits:
                return False
        self._unchanged.pop(name, None)  # it is saved from now on
        return True

    def _read(self, step: int) -> _Values:
        """Those with which the run goes on; none if it never had any."""
        own = self._folder if step > 0 else None  # the program's buffers are those of step 0
        other = self._other if not self._has_folder else None
        for folder in filter(None, (own, other)):
            path = os.path.join(folder, _name(step))
            if not os.path.exists(path):
                continue
            try:
                values: _Values = torch.load(path, map_location="cpu", weights_only=True)
                return values
            except Exception as error:
                way = "remove the file, and the next start says how to go on without it"
                way = "the run needs them" if isinstance(error, OSError) else way
                raise _unreadable(path, error, way) from None
        if step > 0:
            self._miss(step)
        return {}

    def _miss(self, step: int) -> None:
        """Goes on with the buffers that the program has made, if the run never had any."""
        folder, target = self._folder, f"{_name(step)} there"
        way = "remove that folder to go on with those that the program makes"
        if self._other is not None and not self._has_folder:
            folder, target = self._other, os.path.join(self._folder, _name(step))
            way = "begin with another commit"
        what = f"{folder} has no buffers of step {step}, at which the run goes on"
        if os.path.isdir(folder):
            older = [number for number, _ in _files(folder) if number < step]
            ways = [f"copy {_name(number)} to {target}" for number in older[-1:]]
            raise WrongJob(f"{what}: {', or '.join([*ways, way])}")
        if any(self._each()):
            warn(f"{what}: they are as the program has made them")

    def _set(self, parts: Dict[str, torch.nn.Module], name: str, value: torch.Tensor) -> None:
        """Also one that the module has not made yet, as its first step did."""
        prefix, _, leaf = name.rpartition(".")
        item = parts.get(prefix)
        if item is None:
            return
        now = item._buffers.get(leaf)
        if now is None and leaf not in item._buffers and hasattr(item, leaf):
            return
        if now is not None and now.shape == value.shape and now.dtype == value.dtype:
            with torch.no_grad():
                now.copy_(value)
        else:
            like = now if now is not None else next(parts[""].parameters(), value)
            item._buffers[leaf] = value.to(like.device)


def _unreadable(path: str, error: Exception, way: str) -> WrongJob:
    return WrongJob(f"the buffers in {path} cannot be read ({type(error).__name__}): {way}")


def _name(step: int) -> str:
    return f"step-{step:09}.pt"


def _files(folder: str) -> List[Tuple[int, str]]:
    """Steps and paths, in the order of steps. None if there is no such folder."""
    found: List[Tuple[int, str]] = []
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return found
    except OSError as error:
        raise _unreadable(folder, error, "the run needs them") from None
    for name in names:
        digits = name[len("step-") : -len(".pt")]
        if digits.isdigit() and name == _name(int(digits)):
            found.append((int(digits), os.path.join(folder, name)))
    return sorted(found)


def _sum_bits(value: torch.Tensor) -> int:
    flat = value.detach().reshape(-1)
    try:
        return int(flat.view(torch.int64).sum())
    except RuntimeError:  # no whole number of such elements
        return int(flat.view(torch.uint8).sum())


def _set_mode(path: Any, mode: int) -> None:
    with suppress(OSError):  # a file system without permissions
        os.chmod(path, mode)


def _sync(folder: str) -> None:
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
