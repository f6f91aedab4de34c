"""A module's buffers as a part of its run: those of module.state_dict(), such as the means of batch
norms. A run that goes on has those of the step that it goes on from.

    <run_dir>/buffers/step-000000050.rank-0.pt

The library makes the commit of a step when that step is over, at a moment of its own. So the file
of a step is there before the step ends: of each step that run.commit_every commits, and of the last
one before a commit that the program asks for or that closing makes.
"""

from __future__ import annotations

import os
import warnings
import weakref
from typing import Any, Dict, Iterator, List, Optional, Tuple

import torch

from .._errors import Failed, WrongJob

#: Larger ones are saved if they were changed since the module was built.
_SMALL_BYTES = 16 << 20

#: A commit becomes durable within the two steps after its own, so that older files are of no use.
_KEPT_FILES = 4


class Buffers:
    """The buffers as they were after the last step."""

    def __init__(self, module: torch.nn.Module, job: Dict[str, Any], rank: int) -> None:
        run = job["run"]
        self._module = weakref.ref(module)
        self._folder = os.path.join(run["dir"], "buffers")
        self._every = run.get("commit_every", 50)  # the library's default
        self._keeps_all = bool(run.get("keep"))
        self._rank = rank
        self._step = 0
        self._written: Optional[int] = None
        self._marks: Dict[str, Tuple[torch.Tensor, int]] = {}
        self._values: Dict[str, torch.Tensor] = {}

    def begin(self, step: int) -> None:
        """The run is open. If it goes on, the module gets the buffers of this step."""
        self._step = step
        self._marks = {name: (b, b._version) for name, _, b in self._each()}
        self._note()
        if step > 0 and self._values:
            self._restore()
            self._note()
        elif step == 0:
            for name, _ in self._files():
                os.unlink(os.path.join(self._folder, name))

    def end_step(self) -> None:
        """Before the end of a step, after its last backward."""
        self._note()
        self._step += 1
        if isinstance(self._every, int) and self._every and self._step % self._every == 0:
            self.write()

    def write(self) -> None:
        """Makes the file of the last step, if there is none."""
        if not self._values or self._written == self._step or self._step == 0:
            return
        path = os.path.join(self._folder, f"step-{self._step:09}.rank-{self._rank}.pt")
        try:
            os.makedirs(self._folder, exist_ok=True)
            with open(path + ".partial", "wb") as file:
                torch.save(self._values, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(path + ".partial", path)
            folder = os.open(self._folder, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
            for name, _ in [] if self._keeps_all else self._files()[:-_KEPT_FILES]:
                os.unlink(os.path.join(self._folder, name))
        except (OSError, RuntimeError) as error:
            raise Failed(f"the module's buffers cannot be written to {path}: {error}") from None
        self._written = self._step

    def _each(self) -> Iterator[Tuple[str, Dict[str, Any], torch.Tensor]]:
        """Name, owner's dict and value of all that module.state_dict() would have."""
        module = self._module()
        for prefix, item in module.named_modules() if module is not None else ():
            for name, value in item._buffers.items():
                is_stored = name not in item._non_persistent_buffers_set
                if is_stored and type(value) is torch.Tensor:
                    yield (f"{prefix}.{name}" if prefix else name), item._buffers, value

    def _note(self) -> None:
        for name, _, value in self._each():
            before, version = self._marks.get(name, (None, 0))
            is_changed = before is not value or value._version != version
            if is_changed or value.nbytes <= _SMALL_BYTES:
                self._marks[name] = (value, value._version)
                self._values[name] = value.detach().to("cpu", copy=True)

    def _files(self, rank: Optional[int] = None) -> List[Tuple[str, int]]:
        """Names and steps, in the order of steps."""
        end = f".rank-{self._rank if rank is None else rank}.pt"
        names = os.listdir(self._folder) if os.path.isdir(self._folder) else []
        found = [(n, n[5 : -len(end)]) for n in names if n.startswith("step-") and n.endswith(end)]
        return sorted((n, int(step)) for n, step in found if step.isdigit())

    def _restore(self) -> None:
        files = [pair for pair in self._files() or self._files(0) if pair[1] <= self._step]
        if not files or files[-1][1] != self._step:
            what = f"those of step {files[-1][1]}" if files else "as the program has made them"
            warnings.warn(
                f"{self._folder} has no buffers of step {self._step}, at which the run goes on: "
                f"they are {what}",
                stacklevel=6,
            )
        if not files:
            return
        path = os.path.join(self._folder, files[-1][0])
        try:
            values = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:
            raise WrongJob(f"the buffers in {path} cannot be read: {error}") from None
        there = {name: (owner, value) for name, owner, value in self._each()}
        with torch.no_grad():
            for name, value in values.items():
                owner, now = there.get(name, (None, None))
                if owner is None or now is None:
                    continue
                if now.shape == value.shape and now.dtype == value.dtype:
                    now.copy_(value)
                else:
                    owner[name.rpartition(".")[2]] = value.to(now.device)
